/*
 * conv_impl.h - a planned convolution, and the table of algorithms. Included by conv.c, depthwise.c, stem.c,
 * winograd.c and direct_impl.h.
 *
 * An algorithm computes all passes of the shapes that suit it. All share the shape, the types, and the layout
 * of weights and their gradient.
 *
 * Terms: a *k-group* is a float or two bf16 along the inner dimension (cpu_impl.h); a *pixel* is an index
 * into an image plane, y*w + x; a *tap* an index into the filter, r*S + s; a *panel* 32 columns of weights,
 * [tap][C][32]; a *tile* the result of one kernel call.
 */
#ifndef HVT_CONV_IMPL_H
#define HVT_CONV_IMPL_H

#include "base_impl.h"
#include "device/cpu/cpu_impl.h"
#include "device/cpu/norm_rows.h"

#define CONV_PANEL        HVT_PANEL
#define CONV_TILE_ROWS    32 /* maximum over kernels */
#define CONV_STREAM_BYTES (16u << 20)

typedef struct conv_algorithm conv_algorithm;

typedef struct conv_op {
    hvt_op head;
    const conv_algorithm *algorithm;
    const hvt_conv_kernels *kern;
    const hvt_typed *typed; /* loads x, w and dy, stores y and dx */
    hvt_dtype type;         /* type of x, w, y, dx and dy */
    bool vnni2;             /* kernels multiply bf16 in the vnni2 layout */
    bool no_dx;             /* backward_x is never called */
    hvt_thread_pool *pool;

    /* The convolution as computed. A 1x1 convolution over NHW rows becomes one pixel with n*h*w images. A
     * convolution with groups becomes `blocks` convolutions of c channels by k filters; a block is one group
     * or, if groups are narrow, several, and weights between these are padding. A depthwise convolution has c
     * = 1, k = the number of channels, and a block for each filter of a channel. */
    int blocks, depth, filters; /* depth, filters: of a group */
    bool depthwise;
    int x_row, y_row; /* channels of a pixel of x and y */
    int n, h, w, c, k, oh, ow, r, s, stride_h, stride_w, top, left, dilation_h, dilation_w, taps;
    bool even;                               /* one group, equal strides and padding, no dilation */
    int rows_per_image;                      /* 1, or h*w for that 1x1 case */
    bool hwn;                                /* the images of a pixel are adjacent: HWN, or the 1x1 case */
    long x_pixel, x_image, y_pixel, y_image; /* strides in elements */
    long products;                           /* (output pixel, tap) pairs whose input pixel exists */
    bool normed; /* x is the input of a norm, whose y is to be convolved; see conv.set_norm */
    hvt_bn_args norm;
    float *scale; /* [x_row] scale of the norm; NULL: never fused */
} conv_op;

/*
 * An algorithm. Its choice, its plans and the bits of its results depend on the shape and the instruction
 * set, never on the number of threads. real > 0; rows of images past it may be computed or not. w and ws are
 * as in device_impl.h; x, w, y, dx and dy have op->type; dw is f32.
 */
struct conv_algorithm {
    size_t size; /* size of the algorithm's operation, which starts with a conv_op */
    int tile;    /* Winograd's: outputs in each direction */
    bool (*suits)(
        const conv_op *op);          /* true if it is faster than the later ones in the table; NULL: always */
    hvt_status (*plan)(conv_op *op); /* NULL: nothing to plan */
    void (*free)(conv_op *op);       /* frees plan's memory, also after it failed; NULL: nothing */
    size_t (*bytes)(const conv_op *op);    /* bytes of ws, for any pass */
    bool (*takes_norm)(const conv_op *op); /* true if forward and backward_w handle op->normed; NULL: never */
    void (*describe)(const conv_op *op, char *ret_text, size_t room);

    void (*forward)(const conv_op *op, int real, const void *x, const void *w, void *y, void *ws);
    /* NULL: suits only shapes with no_dx */
    void (*backward_x)(const conv_op *op, int real, const void *w, const void *dy, void *dx, bool add,
                       void *ws);
    void (*backward_w)(const conv_op *op, int real, const void *x, const void *dy, float *dw, void *ws);
};

extern const conv_algorithm hvt__conv_depthwise, hvt__conv_direct, hvt__conv_stem, hvt__conv_winograd_2,
    hvt__conv_winograd_4;

/* Returns the first of `count` items that belongs to part i of `parts`. */
static inline int conv_part(int count, int i, int parts)
{
    return (int)((long)count * i / parts);
}

/* Time of threads for equal jobs, including the wait at the end, which is longer for long jobs. */
#define CONV_ROUNDS 8 /* more are not tried if the cut is already finer than needed */
static inline double conv_time(int jobs, int threads, double job)
{
    return (tile_count(jobs, threads) + (threads > 1 ? 0.1 : 0)) * job;
}

/* Returns the number of parts to cut `tiles` into, with `jobs` jobs per part: as many as run within `rounds`
 * rounds, and no more than make the parts shorter. rounds * threads must be at least `jobs`. */
static inline int conv_parts(int tiles, int jobs, int threads, int rounds)
{
    const int fit = rounds * threads / jobs;

    return tile_count(tiles, tile_count(tiles, fit < tiles ? fit : tiles));
}

/* Backward weights: parts to split `columns` and `rows` of tiles of each of `groups` matrices into, for about
 * eight jobs per thread. */
static inline void conv_share(const conv_op *op, int groups, int columns, int rows, int *ret_columns,
                              int *ret_rows)
{
    const int threads = hvt__thread_pool_size(op->pool),
              jobs = threads > 1 ? tile_count(threads * 8, groups) : 1;
    int left;

    *ret_columns = jobs < columns ? jobs : columns;
    left = tile_count(jobs, *ret_columns);
    *ret_rows = left < rows ? left : rows;
}

static inline int conv_panels(int columns)
{
    return (columns + CONV_PANEL - 1) / CONV_PANEL;
}

/* Returns the index of an element of a tap in the weights or their gradient, [K/32][tap][C][32]. */
static inline long conv_weight(int taps, int channels, int tap, int channel, int column)
{
    return (((long)(column / CONV_PANEL) * taps + tap) * channels + channel) * CONV_PANEL +
           column % CONV_PANEL;
}

/* Bytes of a packed panel with `len` k-groups per tap. */
static inline size_t conv_panel_bytes(const conv_op *op, int len)
{
    return sizeof(float) * CONV_PANEL * (size_t)op->taps * (size_t)len;
}

/* Elements of a block's weights, and of their gradient. */
static inline size_t conv_block_weights(const conv_op *op)
{
    return (size_t)conv_panels(op->k) * CONV_PANEL * (size_t)op->taps * (size_t)op->c;
}

static inline size_t conv_weights(const conv_op *op)
{
    return (size_t)op->blocks * conv_block_weights(op);
}

/* True if y or dx, n rows of `columns` elements with these strides, is to be written past the caches: it
 * would be evicted before its next use, and each line would be read for nothing. Only for whole lines of
 * floats. (16 -> 96, 1x1 at 112x112, 16 images on Zen 4: 63 GF/s without, 82 with it; a step of MobileNetV2,
 * EfficientNet or ShuffleNet 1 to 4 % faster.) */
static inline bool conv_streams(const conv_op *op, const void *to, bool add, size_t n, int columns,
                                long image, long pixel)
{
    const int line = 64 / sizeof(float);

    return op->type == HVT_F32 && !add && n * (size_t)columns * sizeof(float) >= CONV_STREAM_BYTES &&
           !((uintptr_t)to % 64) && !(columns % line) && !(image % line) && !(pixel % line);
}

/* Computes y of op's norm for rows of pixels from x's element `at` on; see hvt__bn_rows(). */
static inline void conv_norm(const conv_op *op, size_t at, int rows, int col, int cols, void *out)
{
    hvt__bn_rows(&op->norm, op->typed, op->scale, at, rows, col, cols, op->x_row, out);
}

#endif /* HVT_CONV_IMPL_H */
