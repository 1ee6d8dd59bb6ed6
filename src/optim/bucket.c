/*
 * Which spans of the gradient arena travel together.
 *
 * The arena lies in the order backward finishes it, so a bucket is a run of layers and the plan follows from
 * the parameters' offsets alone, before any step. A bucket closes at the first end of a layer where it holds
 * its limit, so it may exceed it; what is left at the end is the last one. The rider, which lies in front,
 * travels in the first bucket; where the wire has 16 bits it is a bucket of its own, because it is always
 * sent as f32.
 */
#include "optim_impl.h"
#include "base_impl.h"

#include <stdlib.h>

int hvt__bucket_cut(size_t start, const size_t *end, int layers, size_t first_bytes, size_t bytes,
                    size_t *ret_end)
{
    bool small_first = first_bytes && bytes && bytes != HVT_BUCKET_ALL;
    size_t limit = small_first ? first_bytes : bytes;
    int n = 0;

    for (int i = 0; i < layers; i++) {
        if (i + 1 < layers && (end[i] - start) * sizeof(float) < limit)
            continue;
        ret_end[n++] = start = end[i];
        limit = bytes;
    }
    return n;
}

/* The layer that owns a parameter. */
static int owner(const hvt_model *m, int param)
{
    for (int l = 0; l < m->nlayer; l++)
        for (int i = 0; i < HVT_LAYER_PARAMS; i++)
            if (m->layer[l].param[i] == param)
                return l;
    return -1;
}

/* Ends of the layers' spans in arena order; padding behind a layer belongs to it. Returns how many. */
static int layer_ends(const hvt_model *m, size_t *ret_end)
{
    int n = 0, last = -1;

    for (int i = 0; i < m->nparam_tensors; i++) {
        int l = owner(m, i);

        if (i && l != last)
            ret_end[n++] = m->param[i].offset;
        last = l;
    }
    ret_end[n++] = m->arena_count;
    return n;
}

hvt_status hvt__bucket_plan(const hvt_model *m, const hvt_distopt_opts *opts, hvt_bucket **ret_bucket,
                            int *ret_count)
{
    size_t most = (size_t)m->nparam_tensors + 1, start = 0;
    size_t *layer = malloc(most * sizeof *layer), *end = malloc(most * sizeof *end);
    hvt_bucket *bucket = calloc(most + 1, sizeof *bucket);
    int n = 0, cuts;
    hvt_status s = HVT_OK;

    HVT_CHECK_OR(done, layer && end && bucket, E_MEM, "no memory for a plan of %zu buckets", most);
    if (opts->wire != HVT_F32) {
        bucket[n++] = (hvt_bucket){.end = m->rider_count, .wire = HVT_F32};
        start = m->nparam_tensors ? m->param[0].offset : m->arena_count;
    }
    cuts = hvt__bucket_cut(start, layer, layer_ends(m, layer), opts->first_bytes, opts->bucket_bytes, end);
    for (int i = 0; i < cuts && start < m->arena_count; i++) {
        bucket[n++] = (hvt_bucket){.first = start, .end = end[i], .wire = opts->wire};
        start = end[i];
    }
    *ret_bucket = bucket;
    *ret_count = n;
    bucket = NULL;
done:
    free(layer);
    free(end);
    free(bucket);
    return s;
}
