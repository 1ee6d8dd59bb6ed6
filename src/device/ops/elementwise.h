/* ops/elementwise.h - arguments of functions, binary operations, moves and dropout. */
#ifndef HVT_DEVICE_OPS_ELEMENTWISE_H
#define HVT_DEVICE_OPS_ELEMENTWISE_H

#include "device/ops/op.h"

/* A function of HVT__MAPS with its arguments. */
typedef struct hvt_map {
    hvt_function f;
    float a, b;
} hvt_map;

/* All functions: constant, name, and whether backward computes f' from x (else from y = f(x), which is
 * usually kept for the next layer). */
/* clang-format off */
#define HVT__MAPS(X)                                                                                         \
    X(RELU, relu, false) X(HARDTANH, hardtanh, false) X(LEAKY_RELU, leaky_relu, false) X(ELU, elu, false)    \
    X(SIGMOID, sigmoid, false) X(HARDSIGMOID, hardsigmoid, true) X(HARDSWISH, hardswish, true)               \
    X(SILU, silu, true) X(GELU, gelu, true) X(GELU_TANH, gelu_tanh, true) X(TANH, tanh, false)               \
    X(SOFTPLUS, softplus, true) X(AFFINE, affine, false) X(CLAMP, clamp, true) X(EXP, exp, false)            \
    X(LOG, log, true) X(POW, pow, true) X(HARDSHRINK, hardshrink, false)
/* clang-format on */

/* backward reads x, not y */
static inline bool hvt__slope_from_x(hvt_function f)
{
#define HVT__FROM_X(constant, name, from_x) [HVT_##constant] = from_x,
    static const bool from[] = {HVT__MAPS(HVT__FROM_X)};

    return from[f];
}

/* The option A shortcut of He et al.: y[.., p, q, (k-c)/2 + i] = x[.., p*stride, q*stride, i]; other channels
 * are zero. */
typedef struct hvt_subsample_desc {
    hvt_order order;
    hvt_dtype type;
    int n, h, w, c; /* x [n,h,w,c] */
    int stride, k;  /* y [n,p,q,k]; p, q = h, w / stride, rounded up */
} hvt_subsample_desc;

/* Shape of the second operand b, which is broadcast. In the last three cases b is a parameter, so b and its
 * gradient are f32. */
typedef enum hvt_across {
    HVT_SAME,        /* b is [N,H,W,C] */
    HVT_PER_IMAGE,   /* [N,1,1,C] */
    HVT_PER_PIXEL,   /* [N,H,W,1] */
    HVT_PER_CHANNEL, /* [C] */
    HVT_ONE_NUMBER,  /* [1] */
    HVT_PER_ELEMENT  /* [at.count,C], only with HVT_ADD: one row for each pixel from at.first on */
} hvt_across;

/* y = a op b, or b op a if swapped; da (+)= dy * dy/da. db (+)= the same for b, summed over broadcast
 * dimensions and valid images; a parameter's db is overwritten. */
typedef struct hvt_binary_args {
    hvt_order order;
    hvt_dtype type;
    int n, real, pixels, c; /* of a and y */
    hvt_binary op;
    bool swapped;
    hvt_across across;
    struct {
        int first, count;
    } at; /* HVT_PER_ELEMENT: other pixels of y and da are copies of a and dy */
    const void *a, *b, *dy;
    void *y;
    void *da, *db; /* NULL: not needed; da may be dy */
    bool add_a, add_b;
} hvt_binary_args;

/* A box of pixels and channels in [n,h,w,c], from pixel (y, x) and channel `first` on. */
typedef struct hvt_box {
    int h, w, c;
    int y, x, first;
} hvt_box;

typedef struct hvt_move_args {
    hvt_order order;
    hvt_dtype type;
    int n;
    int h, w, c; /* of both boxes */
    hvt_box src, dst;
    const void *from;
    void *to;
    bool add;
} hvt_move_args;

/*
 * Dropout: y (+)= x * noise, noise being 0 or scale, for valid images. Element k of image n is kept if
 * drop_keeps(drop_bits(k, low, high), least), where low and high are the halves of hvt__mix(keys[n] ^ salt)
 * and
 *
 *     k = c * pixels + p    HVT_DROP_ELEMENTS, of channel c and pixel p: the index in [C,H,W]
 *     k = c                 HVT_DROP_CHANNELS, torch.nn.Dropout2d
 *     k = 0                 HVT_DROP_IMAGES, stochastic depth
 *
 * Backward is the same with gradients. x may be y.
 */
typedef enum hvt_drop { HVT_DROP_ELEMENTS, HVT_DROP_CHANNELS, HVT_DROP_IMAGES } hvt_drop;
typedef struct hvt_dropout_args {
    hvt_order order;
    hvt_dtype type;
    int n, real, pixels, c;
    hvt_drop what;
    int32_t least;
    float scale;
    uint64_t salt;
    const uint64_t *keys; /* [n] device memory */
    const void *x;
    void *y;
    bool add;
} hvt_dropout_args;

#endif /* HVT_DEVICE_OPS_ELEMENTWISE_H */
