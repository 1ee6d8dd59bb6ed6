/* ops/conv.h - convolutions and pooling: arguments, sizes. */
#ifndef HVT_DEVICE_OPS_CONV_H
#define HVT_DEVICE_OPS_CONV_H

#include "device/ops/op.h"

typedef struct hvt_conv_desc {
    hvt_order order;
    hvt_dtype type; /* type of x, w, y and the gradients of x and y */
    int n, h, w, c; /* input [n,h,w,c] */
    int cx; /* channels stored per pixel of x, >= c, as the device's `channels` prefers; those past c are zero
               and not written in dx */
    int k, r, s; /* k filters of r x s taps */
    int stride_h, stride_w;
    int top, left, bottom, right; /* rows and columns of zeros around the input */
    int dilation_h, dilation_w;   /* pixels from tap to tap; 1: dense */
    int groups; /* filters [g*k/groups, (g+1)*k/groups) read only channels [g*c/groups, ...) */
    bool no_dx; /* x needs no gradient, as in a first layer: backward_x is never called */
} hvt_conv_desc;

/* Members of a desc with one group, equal strides and padding, and no dilation. */
#define HVT_CONV_EVEN(stride, pad)                                                                           \
    .stride_h = (stride), .stride_w = (stride), .top = (pad), .left = (pad), .bottom = (pad),                \
    .right = (pad), .dilation_h = 1, .dilation_w = 1, .groups = 1

/* A convolution's plan, or the start of a backend's. */
typedef struct hvt_conv {
    hvt_op op;
    hvt_conv_desc d;
    int p, q; /* output [n,p,q,k] */
} hvt_conv;

static inline int hvt__conv_out(int in, int window, int stride, int pad)
{
    return (in + 2 * pad - window) / stride + 1;
}

static inline int hvt__conv_height(const hvt_conv_desc *d) /* of the output */
{
    return (d->h + d->top + d->bottom - d->dilation_h * (d->r - 1) - 1) / d->stride_h + 1;
}

static inline int hvt__conv_width(const hvt_conv_desc *d)
{
    return (d->w + d->left + d->right - d->dilation_w * (d->s - 1) - 1) / d->stride_w + 1;
}

/* Channels that a filter reads, as weights store them. */
static inline int hvt__conv_depth(const hvt_conv_desc *d)
{
    return d->cx / d->groups;
}

/* Windows along one dimension: output o reads the existing inputs of [o*stride - pad, o*stride - pad + size);
 * with stride 0 (adaptive) [o*in/out, (o+1)*in/out rounded up). */
typedef struct hvt_window {
    int size, stride, pad, out;
} hvt_window;

typedef struct hvt_pooling_desc {
    hvt_order order;
    hvt_dtype type;
    int n, h, w, c;
    int size, stride, pad;
    bool mean;    /* global mean over h x w (size, stride, pad unused); else maximum over size x size */
    bool windows; /* windows are given by rows and columns, also for means; size, stride and pad are unused */
    bool count_pad; /* a mean divides by the window's size, padding included */
    hvt_window rows, columns;
} hvt_pooling_desc;

typedef struct hvt_pooling {
    hvt_op op;
    hvt_pooling_desc d; /* rows and columns are set, except for a global mean */
    int p, q;           /* output [n,p,q,c] */
} hvt_pooling;

enum { HVT_POOLING_WINDOW = 15, HVT_POOLING_TAPS = 225 }; /* maxima, because the argmax is stored in a byte */

/* Errors: E_UNSUPPORTED type or stored channels, E_SHAPE. */
hvt_status hvt__conv_check(const hvt_device *d, const hvt_conv_desc *c);
/* Entries for backends: pooling_plan; conv_permute for plans that start with an hvt_conv, with weights
 * [K,R,S,cx/groups]. Errors: E_UNSUPPORTED type, E_SHAPE window that does not fit, E_MEM. */
hvt_status hvt__pooling_plan(hvt_device *d, const hvt_pooling_desc *p, hvt_op **ret_op, size_t *ret_saved);
void hvt__conv_permute_krsc(const hvt_op *op, bool to_file, float *mine, float *kcrs);
void hvt__op_free_plain(hvt_op *op); /* for an op that is a single block of memory */

#endif /* HVT_DEVICE_OPS_CONV_H */
