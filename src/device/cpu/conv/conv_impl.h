/*
 * conv_impl.h - a planned convolution, and the table of the algorithms that compute one. Included by conv.c,
 * depthwise.c, stem.c, winograd.c and direct_impl.h.
 *
 * An algorithm computes all passes of the shapes that suit it. What is common to all of them is the
 * shape, the types, and the layout of the weights and of their gradient.
 *
 * Terms: a *k-group* is a float or two bf16 along the inner dimension (cpu_impl.h); a *pixel* is an index
 * into an image plane, y*w + x; a *tap* an index into the filter, r*S + s; a *panel* 32 columns of weights,
 * [tap][C][32]; a *tile* what one kernel call computes.
 */
#ifndef HVT_CONV_IMPL_H
#define HVT_CONV_IMPL_H

#include "base_impl.h"
#include "device/cpu/cpu_impl.h"
#include "device/cpu/norm_rows.h"

#define CONV_PANEL        HVT_PANEL
#define CONV_TILE_ROWS    32 /* at least as many as any kernel's */
#define CONV_STREAM_BYTES (16u << 20)

typedef struct conv_algorithm conv_algorithm;

typedef struct conv_op {
    hvt_op head;
    const conv_algorithm *algorithm;
    const hvt_conv_kernels *kern;
    const hvt_typed *typed; /* reads x, w and dy, stores y and dx */
    hvt_dtype type;         /* theirs */
    bool vnni2;             /* kernels multiply bf16 in the vnni2 layout */
    bool no_dx;             /* backward_x is never called */
    hvt_thread_pool *pool;

    /* the convolution as computed: a 1x1 one over NHW rows is treated as one pixel with n*h*w images, and one
     * in groups as `blocks` convolutions of c channels by k filters, which are one group or, if groups are
     * narrow, several of them: weights between two of these are padding. A depthwise one has c = 1, as many
     * filters as there are channels, and a block for each filter of a channel. */
    int blocks, depth, filters; /* depth and filters of a group */
    bool depthwise;
    int x_row, y_row; /* channels of a pixel of x and y */
    int n, h, w, c, k, oh, ow, r, s, stride_h, stride_w, top, left, dilation_h, dilation_w, taps;
    bool even;                               /* one group, equal strides and padding, no dilation */
    int rows_per_image;                      /* 1, or h*w in that case */
    bool hwn;                                /* the images of a pixel are adjacent: HWN, or that case */
    long x_pixel, x_image, y_pixel, y_image; /* strides in elements */
    long products;                           /* (output pixel, tap) pairs whose input pixel exists */
    bool normed;                             /* x is that of a norm whose y is meant, see conv.set_norm */
    hvt_bn_args norm;
    float *scale; /* [x_row] of the norm; NULL: this operation never has one */
} conv_op;

/*
 * An algorithm. Its choice and its plans depend on the shape and the instruction set, never on the number of
 * threads; neither do the bits of its results. real > 0: rows of images past it may be computed or left
 * alone. w and ws are as in device_impl.h; x, w, y and their gradients are of op->type.
 */
struct conv_algorithm {
    size_t size;                      /* of its own operation, which starts with a conv_op */
    int tile;                         /* Winograd's: outputs in each direction */
    bool (*suits)(const conv_op *op); /* is it faster than those that follow it in the table? NULL: always */
    hvt_status (*plan)(conv_op *op);  /* NULL: there is nothing to remember */
    void (*free)(conv_op *op);        /* what plan allocated, also after it failed; NULL: nothing */
    size_t (*bytes)(const conv_op *op);    /* of ws, for any pass */
    bool (*takes_norm)(const conv_op *op); /* forward and backward_w heed op->normed; NULL: never */
    void (*describe)(const conv_op *op, char *ret_text, size_t room);

    void (*forward)(const conv_op *op, int real, const void *x, const void *w, void *y, void *ws);
    /* NULL: it suits shapes with no_dx alone */
    void (*backward_x)(const conv_op *op, int real, const void *w, const void *dy, void *dx, bool add,
                       void *ws);
    void (*backward_w)(const conv_op *op, int real, const void *x, const void *dy, float *dw, void *ws);
};

extern const conv_algorithm hvt__conv_depthwise, hvt__conv_direct, hvt__conv_stem, hvt__conv_winograd_2,
    hvt__conv_winograd_4;

/* First of `count` items that belong to part i of `parts`. */
static inline int conv_part(int count, int i, int parts)
{
    return (int)((long)count * i / parts);
}

/* How long threads take for so many equal jobs; at the end they wait for each other, longer for long jobs. */
#define CONV_ROUNDS 8 /* more are not tried where a cut is finer than it must be */
static inline double conv_time(int jobs, int threads, double job)
{
    return (tile_count(jobs, threads) + (threads > 1 ? 0.1 : 0)) * job;
}

/* Into how many parts to cut so many tiles, where each part has `jobs` and at least one is done in these
 * rounds: as many as are, and no more than make the parts shorter. */
static inline int conv_parts(int tiles, int jobs, int threads, int rounds)
{
    const int fit = rounds * threads / jobs;

    return tile_count(tiles, tile_count(tiles, fit < tiles ? fit : tiles));
}

/* Backward weights: into how many parts to split `columns` and `rows` of tiles of each of `groups` matrices,
 * for some eight jobs per thread. */
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

/* Index of an element of a tap in the weights or their gradient: [K/32][tap][C][32]. */
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

/* Whether y or dx, n rows of `columns` elements with these strides, is written past the caches: it would
 * leave them before anyone reads it, and each of its lines would be read for nothing. Whole lines of floats
 * alone. (16
 * -> 96, 1x1 at 112x112, 16 images on Zen 4: 63 GF/s without, 82 with it; a step of MobileNetV2, EfficientNet
 * or ShuffleNet 1 to 4 % faster.) */
static inline bool conv_streams(const conv_op *op, const void *to, bool add, size_t n, int columns,
                                long image, long pixel)
{
    const int line = 64 / sizeof(float);

    return op->type == HVT_F32 && !add && n * (size_t)columns * sizeof(float) >= CONV_STREAM_BYTES &&
           !((uintptr_t)to % 64) && !(columns % line) && !(image % line) && !(pixel % line);
}

/* y of op's norm for rows of pixels whose first element is x's number `at`, see hvt__bn_rows() */
static inline void conv_norm(const conv_op *op, size_t at, int rows, int col, int cols, void *out)
{
    hvt__bn_rows(&op->norm, op->typed, op->scale, at, rows, col, cols, op->x_row, out);
}

#endif /* HVT_CONV_IMPL_H */
