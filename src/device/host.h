/*
 * host.h - shared by the host devices: memory, joining shards' statistics, and the end of a step.
 *
 * Included by src/device. Nothing else.
 */
#ifndef HVT_HOST_H
#define HVT_HOST_H

#include "device_impl.h"
#include "window.h"

/* The input that tap t of output o reads along one dimension, or -1. */
static inline int hvt__input_index(int o, int t, int in, int stride, int pad)
{
    int i = o * stride + t - pad;

    return i >= 0 && i < in ? i : -1;
}

/* The output that reads input i with tap t, or -1. */
static inline int hvt__output_index(int i, int t, int out, int stride, int pad)
{
    int o = i + pad - t;

    return o >= 0 && o % stride == 0 && o / stride < out ? o / stride : -1;
}

/* Returns the row of pixel (h, w) of image n in a batch of `images` images of height x width. */
static inline size_t hvt__row_of(hvt_order o, int images, int height, int width, int n, int h, int w)
{
    return o == HVT_ORDER_HWN ? ((size_t)h * width + w) * images + n : ((size_t)n * height + h) * width + w;
}

/* computes loss, label rank and gradient, times `scale`, of one valid row */
void hvt__host_xent_row(const hvt_xent_args *a, size_t row, float scale);
/* True if this row is an ignored pixel; then writes its results. */
bool hvt__host_xent_ignores(const hvt_xent_args *a, size_t row);
/* computes a->sums from a->loss and a->label_rank */
void hvt__host_xent_sums(const hvt_xent_args *a);
/* The same for the mean squared error: rows [first, end), and the sums of all rows. */
void hvt__host_mse_rows(const hvt_mse_args *a, size_t first, size_t end);
void hvt__host_mse_sums(const hvt_mse_args *a);

/* copies augment's labels and targets */
static inline void hvt__host_answers(const hvt_augment_args *a)
{
    for (int n = 0; n < a->real; n++)
        a->dst_labels[n] = a->labels[n];
    if (a->targets)
        memcpy(a->dst_targets, a->targets, (size_t)a->real * (size_t)a->outputs * sizeof *a->targets);
}

/* adds to bin[HVT__SQUARES_BINS], see squares.h */
void hvt__host_squares(size_t n, const float *g, int64_t *bin);

/* entries of hvt_device_ref and hvt_device_cpu */
hvt_status hvt__host_alloc(hvt_device *d, size_t bytes, void **ret_ptr);
void hvt__host_release(hvt_device *d, void *ptr);
hvt_status hvt__host_copy(hvt_device *d, void *dst, const void *src, size_t bytes);
hvt_status hvt__host_join_moments(hvt_device *d, const hvt_bn_join_args *a);
hvt_status hvt__host_join_sums(hvt_device *d, const hvt_bn_join_args *a);
hvt_status hvt__host_decide(hvt_device *d, hvt_step_state *step, const float *sums);

#define HVT_HOST_OPS                                                                                         \
    .host = true, .memory.alloc = hvt__host_alloc, .memory.release = hvt__host_release,                      \
    .memory.alloc_host = hvt__host_alloc, .memory.release_host = hvt__host_release,                          \
    .memory.upload = hvt__host_copy, .memory.download = hvt__host_copy, .memory.put = hvt__host_copy,        \
    .pooling.plan = hvt__pooling_plan, .resample.plan = hvt__resample_plan,                                  \
    .matrix.bn_join_moments = hvt__host_join_moments, .matrix.bn_join_sums = hvt__host_join_sums,            \
    .step.decide = hvt__host_decide

#endif /* HVT_HOST_H */
