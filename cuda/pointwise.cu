/*
 * Pointwise ops: relu, sums, casts; and bytes passed as a kernel argument.
 */
#include "lanes.h"

/* y[i] = f(x[0][i], x[1][i], x[2][i]) for N arrays x; f gets the last one's element for missing arrays */
template <class S, class D, class F, int N> struct map_op {
    F f;
    const S *x[N];
    D *y;

    template <int W> __device__ void at(size_t i) const
    {
        float in[N][W], out[W];

        for (int n = 0; n < N; n++)
            load_floats(x[n] + i, in[n]);
        for (int v = 0; v < W; v++)
            out[v] = f(in[0][v], in[N > 1 ? 1 : 0][v], in[N - 1][v]);
        store(y + i, out);
    }
};

template <class S, class D, class F, int N>
static hvt_status map(hvt_device *d, size_t n, F f, const void *const (&x)[N], void *y)
{
    constexpr int V = full_vec<S>() > full_vec<D>() ? full_vec<S>() : full_vec<D>();
    unsigned fit = heads(V, y, sizeof(D));
    map_op<S, D, F, N> op = {f, {}, (D *)y};

    for (int i = 0; i < N; i++) {
        op.x[i] = (const S *)x[i];
        fit &= heads(V, x[i], sizeof(S));
    }
    return each<V>(d, n, fit, op);
}

/* the same for arrays of one type */
template <class F, int N>
static hvt_status map_in(hvt_device *d, size_t n, hvt_dtype t, F f, const void *const (&x)[N], void *y)
{
    return with_type(t, [=](auto zero) { return map<decltype(zero), decltype(zero)>(d, n, f, x, y); });
}

struct relu {
    __device__ float operator()(float x, float, float) const
    {
        return f_relu(x);
    }
};

hvt_status hvt__relu_forward_cuda(hvt_device *d, size_t n, hvt_dtype t, const void *x, void *y)
{
    return map_in(d, n, t, relu(), {x}, y);
}

template <bool ADD> struct relu_grad {
    __device__ float operator()(float y, float dy, float dx) const
    {
        return ADD ? f_keep(y, dy) + dx : f_keep(y, dy);
    }
};

hvt_status hvt__relu_backward_cuda(hvt_device *d, size_t n, hvt_dtype t, const void *y, const void *dy,
                                   void *dx, bool add)
{
    return add ? map_in(d, n, t, relu_grad<true>(), {y, dy, dx}, dx)
               : map_in(d, n, t, relu_grad<false>(), {y, dy}, dx);
}

struct sum_of_two {
    __device__ float operator()(float a, float b, float) const
    {
        return a + b;
    }
};

hvt_status hvt__add_cuda(hvt_device *d, size_t n, hvt_dtype t, const void *a, const void *b, void *y)
{
    return map_in(d, n, t, sum_of_two(), {a, b}, y);
}

struct scaled {
    float scale;

    __device__ float operator()(float x, float, float) const
    {
        return x * scale;
    }
};

hvt_status hvt__cast_cuda(hvt_device *d, size_t n, float s, const void *src, hvt_dtype st, void *dst,
                          hvt_dtype dt)
{
    return with_type(st, [=](auto from) {
        return with_type(
            dt, [=](auto to) { return map<decltype(from), decltype(to)>(d, n, scaled{s}, {src}, dst); });
    });
}

template <class T> struct reduce_op {
    inputs in;
    T *out;

    template <int W> __device__ void at(size_t i) const
    {
        float sum[W] = {};

        tree_sum<T>(in, i, sum);
        store(out + i, sum);
    }
};

hvt_status hvt__reduce_cuda(hvt_device *d, size_t n, hvt_dtype t, const void *const in[], int count,
                            void *out)
{
    HVT_TRY(check_inputs(count));
    return with_type(t, [=](auto zero) {
        typedef decltype(zero) T;
        constexpr int V = full_vec<T>();
        const reduce_op<T> op = {inputs_of(in, count), (T *)out};

        return each<V>(d, n, heads(V, out, sizeof(T)) & inputs_heads(V, op.in, sizeof(T)), op);
    });
}

struct words {
    uint32_t at[HVT__PUT_MOST / 4];
};

static __global__ void put_kernel(uint32_t *dst, __grid_constant__ const words from)
{
    dst[threadIdx.x] = from.at[threadIdx.x];
}

hvt_status hvt__cuda_put(hvt_device *d, void *dst, const void *host, size_t bytes)
{
    words from = {};

    if (bytes == 0)
        return HVT_OK;
    HVT_CHECK(bytes <= sizeof from && bytes % 4 == 0, E_ARG,
              "device cuda: put of %zu bytes, expected a multiple of 4, at most %zu", bytes, sizeof from);
    memcpy(&from, host, bytes);
    return HVT_LAUNCH(d, put_kernel, 1, (unsigned)(bytes / 4), (uint32_t *)dst, from);
}

static __global__ void delay_kernel(uint64_t ns)
{
#ifdef __CUDA_ARCH__
    uint64_t start, now;

    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
    do
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    while (now - start < ns);
#else
    (void)ns;
#endif
}

hvt_status hvt__cuda_delay(hvt_device *d, int us)
{
    return HVT_LAUNCH(d, delay_kernel, 1, 1, (uint64_t)us * 1000);
}
