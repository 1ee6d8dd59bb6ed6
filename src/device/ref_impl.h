/*
 * ref_impl.h - the reference device's entries that are defined in ref_conv.c, and the row of a pixel.
 *
 * Included by src/device/ref*.c. Nothing else.
 */
#ifndef HVT_REF_IMPL_H
#define HVT_REF_IMPL_H

#include "device_impl.h"
#include "scalar.h"

/* the row of pixel (h, w) of image n in a batch of `images` images of height x width */
static inline size_t row_of(hvt_order o, int images, int height, int width, int n, int h, int w)
{
    return o == HVT_ORDER_HWN ? ((size_t)h * width + w) * images + n : ((size_t)n * height + h) * width + w;
}

/* p[i] (+)= x */
static inline void put(void *p, hvt_dtype t, size_t i, float x, bool add)
{
    hvt__store(p, t, i, add ? hvt__load(p, t, i) + x : x);
}

hvt_status hvt__conv_plan_ref(hvt_device *d, const hvt_conv_desc *c, hvt_op **ret_op, size_t *ret_weights,
                              size_t *ret_ws);
void hvt__conv_permute_ref(const hvt_op *op, bool to_file, float *mine, float *kcrs);
hvt_status hvt__conv_pack_weights_ref(hvt_op *op, const void *w);
hvt_status hvt__conv_forward_ref(hvt_op *op, int real, const void *x, const void *w, void *y, void *ws);
hvt_status hvt__conv_backward_x_ref(hvt_op *op, int real, const void *w, const void *dy, void *dx, bool add,
                                    void *ws);
hvt_status hvt__conv_backward_w_ref(hvt_op *op, int real, const void *x, const void *dy, float *dw, void *ws);
hvt_status hvt__pooling_plan_ref(hvt_device *d, const hvt_pooling_desc *p, hvt_op **ret_op,
                                 size_t *ret_saved);
hvt_status hvt__pooling_forward_ref(hvt_op *op, int real, const void *x, void *y, void *saved);
hvt_status hvt__pooling_backward_ref(hvt_op *op, int real, const void *saved, const void *dy, void *dx,
                                     bool add);
hvt_status hvt__subsample_forward_ref(hvt_device *d, hvt_order o, hvt_dtype t, int n, int h, int w, int c,
                                      int stride, int channels, const void *x, void *y);
hvt_status hvt__subsample_backward_ref(hvt_device *d, hvt_order o, hvt_dtype t, int n, int h, int w, int c,
                                       int stride, int channels, const void *dy, void *dx, bool add);

#endif /* HVT_REF_IMPL_H */
