/*
 * inputs.h - arrays of several ranks or shards, added elementwise along the fixed tree: 2i and 2i+1 are
 * added, an odd last one moves up a level.
 *
 * Included by pointwise.cu and optim.cu. Nothing else.
 */
#ifndef HVT_CUDA_INPUTS_H
#define HVT_CUDA_INPUTS_H

#include "lanes.h"

struct inputs {
    const void *at[HVT__CUDA_MOST_INPUTS];
    int count;
};

enum { INPUT_LEVELS = 8 };
static_assert(HVT__CUDA_MOST_INPUTS < 1 << INPUT_LEVELS, "a sum for every level of the tree");

static inline inputs inputs_of(const void *const in[], int count)
{
    inputs all = {};

    for (int i = 0; i < count; i++)
        all.at[i] = in[i];
    all.count = count;
    return all;
}

static inline bool inputs_fit(int v, size_t head, const inputs &in, size_t size)
{
    for (int i = 0; i < in.count; i++)
        if (!vecs_fit(v, head, {{in.at[i], size}}))
            return false;
    return true;
}

/* The sums of elements [i, i+V). The tree is a binary counter: where a bit of the leaf's index is set,
 * held[l] is the sum of 2^l leaves that waits for its sibling. */
template <class T, int V> HVT_FN void tree_sum(const inputs &in, size_t i, float (&sum)[V])
{
    float held[INPUT_LEVELS][V] = {};
    bool any = false;

    for (int leaf = 0; leaf < in.count; leaf++) {
        const vec<T, V> x = load<V>((const T *)in.at[leaf] + i);
        bool carry = true;

#pragma unroll
        for (int v = 0; v < V; v++)
            sum[v] = to_float(x.at[v]);
#pragma unroll
        for (int l = 0; l < INPUT_LEVELS; l++) {
            const bool full = leaf >> l & 1;

#pragma unroll
            for (int v = 0; v < V; v++)
                if (carry && full)
                    sum[v] = held[l][v] + sum[v];
                else if (carry)
                    held[l][v] = sum[v];
            carry = carry && full;
        }
    }
#pragma unroll
    for (int l = 0; l < INPUT_LEVELS; l++)
        if (in.count >> l & 1) {
#pragma unroll
            for (int v = 0; v < V; v++)
                sum[v] = any ? held[l][v] + sum[v] : held[l][v];
            any = true;
        }
}

#endif /* HVT_CUDA_INPUTS_H */
