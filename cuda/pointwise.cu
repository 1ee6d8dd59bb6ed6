/*
 * Pointwise ops: relu, sums, casts; rows truncated or padded to another number of channels; and bytes passed
 * as a kernel argument.
 */
#include "inputs.h"

/* ---- relu, add ---- */

template <class T> struct relu_op {
    const T *x;
    T *y;

    template <int W> __device__ void at(size_t i) const
    {
        const vec<T, W> in = load<W>(x + i);
        float out[W];

#pragma unroll
        for (int v = 0; v < W; v++)
            out[v] = f_relu(to_float(in.at[v]));
        store(y + i, out);
    }
};

cudaError_t hvt__cuda_relu_forward(cudaStream_t stream, size_t n, hvt_dtype t, const void *x, void *y)
{
    return with_type(t, [=](auto zero) {
        typedef decltype(zero) T;
        const relu_op<T> op = {(const T *)x, (T *)y};

        return each<full_vec<T>()>(stream, n, {{x, sizeof(T)}, {y, sizeof(T)}}, op);
    });
}

template <class T> struct relu_grad_op {
    const T *y, *dy;
    T *dx;
    bool add;

    template <int W> __device__ void at(size_t i) const
    {
        const vec<T, W> out = load<W>(y + i), in = load<W>(dy + i);
        float g[W];

#pragma unroll
        for (int v = 0; v < W; v++)
            g[v] = f_keep(to_float(out.at[v]), to_float(in.at[v]));
        if (add) {
            const vec<T, W> was = load<W>((const T *)dx + i);

#pragma unroll
            for (int v = 0; v < W; v++)
                g[v] += to_float(was.at[v]);
        }
        store(dx + i, g);
    }
};

cudaError_t hvt__cuda_relu_backward(cudaStream_t stream, size_t n, hvt_dtype t, const void *y, const void *dy,
                                    void *dx, bool add)
{
    return with_type(t, [=](auto zero) {
        typedef decltype(zero) T;
        const relu_grad_op<T> op = {(const T *)y, (const T *)dy, (T *)dx, add};

        return each<full_vec<T>()>(stream, n, {{y, sizeof(T)}, {dy, sizeof(T)}, {dx, sizeof(T)}}, op);
    });
}

template <class T> struct add_op {
    const T *a, *b;
    T *y;

    template <int W> __device__ void at(size_t i) const
    {
        const vec<T, W> p = load<W>(a + i), q = load<W>(b + i);
        float sum[W];

#pragma unroll
        for (int v = 0; v < W; v++)
            sum[v] = to_float(p.at[v]) + to_float(q.at[v]);
        store(y + i, sum);
    }
};

cudaError_t hvt__cuda_add(cudaStream_t stream, size_t n, hvt_dtype t, const void *a, const void *b, void *y)
{
    return with_type(t, [=](auto zero) {
        typedef decltype(zero) T;
        const add_op<T> op = {(const T *)a, (const T *)b, (T *)y};

        return each<full_vec<T>()>(stream, n, {{a, sizeof(T)}, {b, sizeof(T)}, {y, sizeof(T)}}, op);
    });
}

/* ---- cast, reduce ---- */

template <class S, class D> struct cast_op {
    const S *src;
    D *dst;
    float scale;

    template <int W> __device__ void at(size_t i) const
    {
        const vec<S, W> in = load<W>(src + i);
        float out[W];

#pragma unroll
        for (int v = 0; v < W; v++)
            out[v] = to_float(in.at[v]) * scale;
        store(dst + i, out);
    }
};

cudaError_t hvt__cuda_cast(cudaStream_t stream, size_t n, float s, const void *src, hvt_dtype st, void *dst,
                           hvt_dtype dt)
{
    return with_type(st, [=](auto from) {
        return with_type(dt, [=](auto to) {
            typedef decltype(from) S;
            typedef decltype(to) D;
            constexpr int V = full_vec<S>() > full_vec<D>() ? full_vec<S>() : full_vec<D>();
            const cast_op<S, D> op = {(const S *)src, (D *)dst, s};

            return each<V>(stream, n, {{src, sizeof(S)}, {dst, sizeof(D)}}, op);
        });
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

cudaError_t hvt__cuda_reduce(cudaStream_t stream, size_t n, hvt_dtype t, const void *const in[], int count,
                             void *out)
{
    if (count < 1 || count > HVT__CUDA_MOST_INPUTS)
        return cudaErrorInvalidValue;
    return with_type(t, [=](auto zero) {
        typedef decltype(zero) T;
        constexpr int V = full_vec<T>();
        const reduce_op<T> op = {inputs_of(in, count), (T *)out};

        return each_where<V>(
            stream, n,
            [&](size_t head) {
                return vecs_fit(V, head, {{out, sizeof(T)}}) && inputs_fit(V, head, op.in, sizeof(T));
            },
            op);
    });
}

/* ---- other numbers of channels ---- */

template <class S, class D>
__global__ void __launch_bounds__(THREADS) repad_kernel(size_t rows, const S *src, int sc, D *dst, int dc)
{
    for (size_t row = (size_t)blockIdx.x * blockDim.y + threadIdx.y; row < rows;
         row += (size_t)gridDim.x * blockDim.y)
        for (int c = (int)threadIdx.x; c < dc; c += (int)blockDim.x)
            from_float(c < sc ? to_float(src[row * sc + c]) : 0, dst[row * dc + c]);
}

cudaError_t hvt__cuda_repad(cudaStream_t stream, size_t rows, const void *src, hvt_dtype st, int sc,
                            void *dst, hvt_dtype dt, int dc)
{
    int x = 1;

    if (rows == 0 || dc == 0)
        return cudaSuccess;
    while (x < 32 && x < dc)
        x *= 2;
    return with_type(st, [=](auto from) {
        return with_type(dt, [=](auto to) {
            typedef decltype(from) S;
            typedef decltype(to) D;

            return HVT_LAUNCH((repad_kernel<S, D>), blocks_for(rows * x), dim3(x, THREADS / x), stream, rows,
                              (const S *)src, sc, (D *)dst, dc);
        });
    });
}

/* ---- put ---- */

struct words {
    uint32_t at[HVT__PUT_MOST / 4];
};

static __global__ void put_kernel(uint32_t *dst, __grid_constant__ const words from)
{
    dst[threadIdx.x] = from.at[threadIdx.x];
}

cudaError_t hvt__cuda_put(cudaStream_t stream, void *dst, const void *host, size_t bytes)
{
    words from = {};

    if (bytes == 0)
        return cudaSuccess;
    if (bytes > sizeof from || bytes % 4)
        return cudaErrorInvalidValue;
    memcpy(&from, host, bytes);
    return HVT_LAUNCH(put_kernel, 1, (unsigned)(bytes / 4), stream, (uint32_t *)dst, from);
}

/* ---- delay ---- */

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

cudaError_t hvt__cuda_delay(cudaStream_t stream, int us)
{
    return HVT_LAUNCH(delay_kernel, 1, 1, stream, (uint64_t)us * 1000);
}
