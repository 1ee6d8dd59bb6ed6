/*
 * The end of a step: the check for non-finite gradients, their squares, the decision, the update, and the
 * average of the weights. Kernels read decisions from the step's state in device memory, so their arguments
 * do not change from step to step.
 */
#include "lanes.h"

#include "device/squares.h"
#include "device/step.h"

/* Read a value that another thread's atomic may be changing. */
HVT_FN unsigned long long now(const unsigned long long *at)
{
#ifdef __CUDA_ARCH__
    return *(const volatile unsigned long long *)at;
#else
    return __atomic_load_n(at, __ATOMIC_RELAXED);
#endif
}

struct finite_op {
    const float *g;
    unsigned long long base, *bad;

    template <int W> __device__ void at(size_t i) const
    {
        const vec<float, W> in = load<W>(g + i);
        int first = W;

        for (int v = W - 1; v >= 0; v--)
            if (!hvt__is_finite(in.at[v]))
                first = v;
        if (first < W && base + i + first < now(bad)) /* if all are bad, few threads reach the atomic */
            atomicMin(bad, base + i + first);
    }
};

hvt_status hvt__check_cuda(hvt_device *d, size_t n, const float *g, uint64_t base, hvt_step_state *step)
{
    constexpr int V = full_vec<float>();

    return each<V>(d, n, heads(V, g, sizeof *g), finite_op{g, base, (unsigned long long *)&step->bad});
}

/* Every thread has its own bins, because most blocks add to the same ones. */
enum { SQUARES_THREADS = 128, SQUARES_BLOCKS = 1024 };

/* Loads V elements at a time. */
template <int V>
__global__ void __launch_bounds__(SQUARES_THREADS)
    squares_kernel(size_t n, const float *g, unsigned long long *bins)
{
    struct shared {
        int64_t bin[HVT__SQUARES_BINS][SQUARES_THREADS];
    };
    HVT_SHARED(shared, s);
    constexpr size_t B = HVT__SQUARES_BLOCK;
    const size_t step = (size_t)gridDim.x * SQUARES_THREADS * B;
    const unsigned me = threadIdx.x;

    for (int k = 0; k < HVT__SQUARES_BINS; k++)
        s.bin[k][me] = 0;
    for (size_t first = ((size_t)blockIdx.x * SQUARES_THREADS + me) * B; first < n; first += step) {
        float x[B] = {};
        int64_t part[3];

        if (n - first >= B)
            for (size_t i = 0; i < B; i += V) {
                const vec<float, V> in = load<V>(g + first + i);

                for (int v = 0; v < V; v++)
                    x[i + v] = in.at[v];
            }
        else
            for (size_t i = 0; i < B; i++)
                x[i] = first + i < n ? g[first + i] : 0;

        const int at = hvt__squares_cut(hvt__squares_block(x, B), part);

        for (int k = 0; k < 3; k++)
            s.bin[at + k][me] += part[k];
    }
    for (unsigned half = SQUARES_THREADS / 2; half; half /= 2) {
        __syncthreads();
        if (me < half)
            for (int k = 0; k < HVT__SQUARES_BINS; k++)
                s.bin[k][me] += s.bin[k][me + half];
    }
    __syncthreads();
    if (me < HVT__SQUARES_BINS && s.bin[me][0])
        atomicAdd(bins + me, (unsigned long long)s.bin[me][0]);
}

hvt_status hvt__squares_cuda(hvt_device *d, size_t n, const float *g, hvt_step_state *step)
{
    const size_t block = SQUARES_THREADS * HVT__SQUARES_BLOCK, blocks = (n + block - 1) / block;
    const unsigned grid = blocks < SQUARES_BLOCKS ? (unsigned)blocks : (unsigned)SQUARES_BLOCKS;
    constexpr int V = full_vec<float>();
    unsigned long long *bins = (unsigned long long *)step->squares;

    if (n == 0)
        return HVT_OK;
    return heads(V, g, sizeof *g) & 1 ? HVT_LAUNCH(d, squares_kernel<V>, grid, SQUARES_THREADS, n, g, bins)
                                      : HVT_LAUNCH(d, squares_kernel<1>, grid, SQUARES_THREADS, n, g, bins);
}

static __global__ void decide_kernel(hvt_step_state *step, const float *sums)
{
    hvt__step_decide(step, sums);
}

hvt_status hvt__decide_cuda(hvt_device *d, hvt_step_state *step, const float *sums)
{
    return HVT_LAUNCH(d, decide_kernel, 1, 1, step, sums);
}

/* Source of gradients: one array, or several to add. */
struct one_gradient {
    const float *g;

    template <int W> __device__ void sum(size_t i, float (&to)[W]) const
    {
        load_floats(g + i, to);
    }
};

struct several_gradients {
    inputs g;

    template <int W> __device__ void sum(size_t i, float (&to)[W]) const
    {
        tree_sum<float>(g, i, to);
    }
};

/* T: type of the copy */
template <class T, class From> struct sgd_op {
    From from;
    hvt_sgd_args a;
    float *w, *v;

    template <int W> __device__ void at(size_t i) const
    {
        const sgd_consts k = {a.step->grad_scale, a.weight_decay, a.momentum, 1 - a.dampening, -a.step->lr};
        const bool fresh = a.step->fresh;
        float g[W] = {}, was[W], new_w[W], new_v[W] = {};

        if (!a.step->apply)
            return;
        from.sum(i, g);
        load_floats(w + i, was);
        if (a.momentum != 0 && !fresh)
            load_floats(v + i, new_v);
        for (int n = 0; n < W; n++) {
            float step = sgd_gradient(&k, g[n], was[n]);

            if (a.momentum != 0) {
                new_v[n] = fresh ? step : sgd_velocity(&k, step, new_v[n]);
                step = a.nesterov ? sgd_nesterov(&k, step, new_v[n]) : new_v[n];
            }
            new_w[n] = sgd_step(&k, was[n], step);
        }
        if (a.momentum != 0)
            store(v + i, new_v);
        store(w + i, new_w);
        if (a.copy)
            store((T *)a.copy + i, new_w);
    }
};

hvt_status hvt__sgd_cuda(hvt_device *d, size_t n, const hvt_sgd_args *a, const float *const g[], int ng,
                         float *w, float *v)
{
    constexpr int V = full_vec<float>();

    HVT_TRY(check_inputs(ng));
    return with_type(a->copy ? a->copy_type : HVT_F32, [=](auto zero) {
        typedef decltype(zero) T;
        const inputs in = inputs_of((const void *const *)g, ng);
        const unsigned fit = heads(V, w, sizeof *w) & heads(V, v, sizeof *v) & heads(V, a->copy, sizeof(T)) &
                             inputs_heads(V, in, sizeof *w);

        if (ng == 1)
            return each<V>(d, n, fit, sgd_op<T, one_gradient>{{g[0]}, *a, w, v});
        return each<V>(d, n, fit, sgd_op<T, several_gradients>{{in}, *a, w, v});
    });
}

template <class T, class From> struct adam_op {
    From from;
    hvt_adam_args a;
    float *w, *m, *v;

    template <int W> __device__ void at(size_t i) const
    {
        const hvt__adam_numbers x = hvt__adam_numbers_of(&a);
        const adam_consts k = {x.scale,  x.decay,      x.keep1, x.beta2, x.keep2,
                               x.shrink, x.minus_rate, x.root,  x.eps};
        float g[W] = {}, was[W], mean[W] = {}, square[W] = {};

        if (!a.step->apply)
            return;
        from.sum(i, g);
        load_floats(w + i, was);
        if (!a.step->fresh) {
            load_floats(m + i, mean);
            load_floats(v + i, square);
        }
        for (int n = 0; n < W; n++) {
            const float grad = adam_gradient(&k, g[n], was[n]);

            mean[n] = adam_mean(&k, grad, mean[n]);
            square[n] = adam_square(&k, grad, square[n]);
            was[n] = adam_step(&k, was[n], mean[n], square[n]);
        }
        store(m + i, mean);
        store(v + i, square);
        store(w + i, was);
        if (a.copy)
            store((T *)a.copy + i, was);
    }
};

hvt_status hvt__adam_cuda(hvt_device *d, size_t n, const hvt_adam_args *a, const float *const g[], int ng,
                          float *w, float *m, float *v)
{
    constexpr int V = 1; /* more would spill registers: square roots and divisions are calls */

    HVT_TRY(check_inputs(ng));
    return with_type(a->copy ? a->copy_type : HVT_F32, [=](auto zero) {
        typedef decltype(zero) T;
        const inputs in = inputs_of((const void *const *)g, ng);
        const unsigned fit = heads(V, w, sizeof *w) & heads(V, m, sizeof *m) & heads(V, v, sizeof *v) &
                             heads(V, a->copy, sizeof(T)) & inputs_heads(V, in, sizeof *w);

        if (ng == 1)
            return each<V>(d, n, fit, adam_op<T, one_gradient>{{g[0]}, *a, w, m, v});
        return each<V>(d, n, fit, adam_op<T, several_gradients>{{in}, *a, w, m, v});
    });
}

struct ema_op {
    const hvt_step_state *step;
    const float *w;
    float *ema;

    template <int W> __device__ void at(size_t i) const
    {
        const float share = step->ema_share;
        float now[W], mean[W];

        if (share == 0)
            return;
        load_floats(w + i, now);
        load_floats(ema + i, mean);
        for (int n = 0; n < W; n++)
            mean[n] = share == 1 ? now[n] : ema_next(share, now[n], mean[n]);
        store(ema + i, mean);
    }
};

hvt_status hvt__ema_cuda(hvt_device *d, size_t n, const hvt_step_state *step, const float *w, float *ema)
{
    constexpr int V = full_vec<float>();

    return each<V>(d, n, heads(V, w, sizeof *w) & heads(V, ema, sizeof *ema), ema_op{step, w, ema});
}
