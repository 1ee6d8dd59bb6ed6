/*
 * The end of a step: the check for non-finite gradients, the decision, and the update. Decisions are read
 * from the step's state in device memory, so that kernel arguments do not change from step to step.
 */
#include "inputs.h"

#include "device/step.h"

/* ---- is every gradient finite? ---- */

struct finite_op {
    const float *g;
    unsigned long long base, *bad;

    template <int W> __device__ void at(size_t i) const
    {
        const vec<float, W> in = load<W>(g + i);
        int first = W;

#pragma unroll
        for (int v = W - 1; v >= 0; v--)
            if (!hvt__is_finite(in.at[v]))
                first = v;
        if (first < W &&
            base + i + first < *(volatile unsigned long long *)bad) /* if all are bad, few reach the atomic */
            atomicMin(bad, base + i + first);
    }
};

cudaError_t hvt__cuda_check_finite(cudaStream_t stream, size_t n, const float *g, uint64_t base,
                                   hvt_step_state *step)
{
    const finite_op op = {g, base, (unsigned long long *)&step->bad};

    return each<full_vec<float>()>(stream, n, {{g, sizeof *g}}, op);
}

/* ---- the decision ---- */

static __global__ void decide_kernel(hvt_step_state *step, const float *sums)
{
    hvt__step_decide(step, sums);
}

cudaError_t hvt__cuda_decide(cudaStream_t stream, hvt_step_state *step, const float *sums)
{
    return HVT_LAUNCH(decide_kernel, 1, 1, stream, step, sums);
}

/* ---- torch.optim.SGD ---- */

/* source of gradients: one array, or several to be added */
struct one_gradient {
    const float *g;

    template <int W> __device__ void sum(size_t i, float (&to)[W]) const
    {
        const vec<float, W> in = load<W>(g + i);

#pragma unroll
        for (int v = 0; v < W; v++)
            to[v] = in.at[v];
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
        float g[W] = {}, new_w[W], new_v[W] = {};

        if (!a.step->apply)
            return;
        from.sum(i, g);
        const vec<float, W> was = load<W>((const float *)w + i);
        if (a.momentum != 0 && !fresh) {
            const vec<float, W> velocity = load<W>((const float *)v + i);

#pragma unroll
            for (int n = 0; n < W; n++)
                new_v[n] = velocity.at[n];
        }
#pragma unroll
        for (int n = 0; n < W; n++) {
            float step = sgd_gradient(&k, g[n], was.at[n]);

            if (a.momentum != 0) {
                new_v[n] = fresh ? step : sgd_velocity(&k, step, new_v[n]);
                step = a.nesterov ? sgd_nesterov(&k, step, new_v[n]) : new_v[n];
            }
            new_w[n] = sgd_step(&k, was.at[n], step);
        }
        if (a.momentum != 0)
            store(v + i, new_v);
        store(w + i, new_w);
        if (a.copy)
            store((T *)a.copy + i, new_w);
    }
};

cudaError_t hvt__cuda_sgd(cudaStream_t stream, size_t n, const hvt_sgd_args *a, const float *const g[],
                          int ng, float *w, float *v)
{
    constexpr int V = full_vec<float>();

    if (ng < 1 || ng > HVT__CUDA_MOST_INPUTS)
        return cudaErrorInvalidValue;
    return with_type(a->copy ? a->copy_type : HVT_F32, [=](auto zero) {
        typedef decltype(zero) T;
        const inputs in = inputs_of((const void *const *)g, ng);
        const auto fit = [&](size_t head) {
            return vecs_fit(V, head, {{w, sizeof *w}, {v, sizeof *v}, {a->copy, sizeof(T)}}) &&
                   inputs_fit(V, head, in, sizeof(float));
        };

        if (ng == 1)
            return each_where<V>(stream, n, fit, sgd_op<T, one_gradient>{{g[0]}, *a, w, v});
        return each_where<V>(stream, n, fit, sgd_op<T, several_gradients>{{in}, *a, w, v});
    });
}
