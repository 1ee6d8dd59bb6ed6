/*
 * window.h - pooling windows along one dimension, for all devices.
 *
 * Included by src/device and cuda/. Nothing else.
 */
#ifndef HVT_WINDOW_H
#define HVT_WINDOW_H

#include "device_impl.h"
#include "half.h" /* HVT_FN */

/* Called by pooling.plan: products of outputs and inputs must fit in 32 bits, because wider divisions are
 * slow on GPUs. */
static inline bool hvt__window_fits(const hvt_window *w, int in)
{
    return w->stride || ((uint64_t)in + 1) * ((uint64_t)w->out + 1) <= UINT32_MAX;
}

/* The inputs [*ret_first, *ret_end) of `in` that output o reads; returns the divisor of a mean. */
HVT_FN int hvt__window_at(const hvt_window *w, int in, int o, bool count_pad, int *ret_first, int *ret_end)
{
    int first = o * w->stride - w->pad, end = first + w->size, padded;

    if (!w->stride) {
        first = (int)((uint32_t)o * (uint32_t)in / (uint32_t)w->out);
        end = (int)(((uint32_t)(o + 1) * (uint32_t)in + (uint32_t)w->out - 1) / (uint32_t)w->out);
    }
    padded = (end < in + w->pad ? end : in + w->pad) - first;
    *ret_first = first > 0 ? first : 0;
    *ret_end = end < in ? end : in;
    return count_pad ? padded : *ret_end - *ret_first;
}

/* The outputs [*ret_first, *ret_end) that read input i. */
HVT_FN void hvt__readers_of(const hvt_window *w, int in, int i, int *ret_first, int *ret_end)
{
    int first = w->stride ? (i + w->pad - w->size + w->stride) / w->stride
                          : (int)((uint32_t)i * (uint32_t)w->out / (uint32_t)in),
        end, from, to;

    first = i + w->pad < w->size && w->stride ? 0 : first;
    while (first > 0 && (hvt__window_at(w, in, first - 1, false, &from, &to), to > i))
        first--;
    for (end = first; end < w->out; end++) {
        hvt__window_at(w, in, end, false, &from, &to);
        if (from > i)
            break;
    }
    *ret_first = first;
    *ret_end = end;
}

#endif /* HVT_WINDOW_H */
