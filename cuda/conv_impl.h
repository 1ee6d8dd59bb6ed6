/*
 * conv_impl.h - the matrix product that replaces a convolution of 1x1 images.
 *
 * Included by conv_cudnn.c and linear_cublas.c. Nothing else.
 */
#ifndef HVT_CUDA_CONV_IMPL_H
#define HVT_CUDA_CONV_IMPL_H

#include "cuda_impl.h"

/* x [n,c], w [k,c], y [n,k] */
typedef struct linear linear;

hvt_status hvt__linear_plan_cublas(hvt_device *d, const hvt_conv_desc *c, linear **ret_linear,
                                   size_t *ret_ws);
void hvt__linear_free_cublas(linear *l); /* NULL is fine */
hvt_status hvt__linear_forward_cublas(linear *l, const void *x, const void *w, void *y, void *ws);
hvt_status hvt__linear_backward_x_cublas(linear *l, const void *w, const void *dy, void *dx, bool add,
                                         void *ws);
hvt_status hvt__linear_backward_w_cublas(linear *l, const void *x, const void *dy, float *dw, void *ws);

#endif /* HVT_CUDA_CONV_IMPL_H */
