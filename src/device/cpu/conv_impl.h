/*
 * conv_impl.h - a prepared convolution. Included by conv_plan.c, gather.c, wgrad.c and weights.c.
 *
 * A convolution is a set of triples (input pixel, tap, output pixel). Forward groups them by output pixel,
 * backward data by input pixel, backward weights by tap; each group is a short list of (A, B) pairs made
 * once, and one kernel walks it: C += sum A[e.a] * B[e.b]. Stride, padding, 1x1 images and 7x7 filters are
 * lists of other lengths, nothing else.
 *
 * Words: a *pixel* is a place in an image plane, y*w + x; a *tap* a place in the filter, r*S + s; a *panel*
 * 32 columns of weights, [tap][C][32]; a *tile* what one kernel call computes.
 */
#ifndef HVT_CONV_IMPL_H
#define HVT_CONV_IMPL_H

#include "base_impl.h"
#include "cpu_impl.h"

#define CONV_PANEL 32

/* Targets (output pixels forward, input pixels backward) that share one list: `count` pixels, `step` apart in
 * the list's lines, each one `shift` source pixels further. */
typedef struct conv_run {
    int entry; /* first one; the next run's is the end */
    int pixel, count;
} conv_run;

/* What the rows of a tile are. */
typedef enum conv_rows {
    CONV_IMAGES, /* the images of one pixel */
    CONV_WIDTH,  /* the pixels of one run, image by image: few images, or images that lie far apart */
    CONV_BOTH    /* pixels and images of one run, which lie one after the other: HWN, stride 1, few images */
} conv_rows;

typedef struct conv_list {
    conv_rows rows;
    int pixels, step, shift;
    int runs;
    conv_run *run; /* [runs+1] */
    hvt_ent *e;    /* a: source pixel, b: tap */

    int sources;     /* source pixels */
    int pitch;       /* > 0: source rows are first copied to ws, `pitch` floats apart */
    bool *is_source; /* [sources] with a pitch: any entry reads it */
} conv_list;

/* One block of backward weights: output pixels whose rows, copied, stay in the cache while all taps are
 * formed. */
typedef struct conv_block {
    int pixel, end;  /* output pixels */
    int fresh, done; /* range in op->used: input pixels to copy that no earlier block has copied */
} conv_block;

typedef struct conv_op {
    hvt_op head;
    const hvt_conv_kernels *kern;
    hvt_pool *pool;

    /* the convolution as it is computed: a 1x1 one over NHW rows is one pixel with n*h*w images */
    int n, h, w, c, k, oh, ow, r, s, stride, pad, taps;
    int rows_per_image;                      /* 1, or h*w in that case */
    long x_pixel, x_image, y_pixel, y_image; /* floats from one to the next */

    conv_list out, in; /* forward; backward data */
    float *turned;     /* weights for backward data, panels along c: [ceil(C/32)][tap][K][32] */
    bool stream;       /* so many weights that gradients and turned copies go past the caches */
    bool *tap_used;    /* [taps] any triple has it; with small images and much padding some have none */

    /* backward weights */
    int blocks;
    conv_block *block;
    int *first;          /* [blocks*taps+1] into e */
    hvt_ent *e;          /* a: slot of the input pixel, b: output pixel within its block */
    int *used;           /* input pixels that any tap reads, in order; the i-th is copied to slot i % slots */
    int slots;           /* 0: x is read where it lies, a is the pixel itself */
    bool copy_y;         /* else dy is read where it lies, b is the pixel itself */
    int chunk;           /* images at a time */
    int a_tiles, a_rows; /* c is cut into a_tiles tiles of a_rows rows */
    int vectors;         /* of a tile's columns; fewer in the last one */
    long a_slot, b_slot; /* floats of one copied pixel */
    size_t x_bytes;      /* of ws that hold copied x; dy's copies follow */
} conv_op;

/* Streaming stores are not ordered by the pool's atomics. */
static inline void conv_fence(void)
{
#ifdef __x86_64__
    __builtin_ia32_sfence();
#endif
}

/* How many tiles of at most `most` rows cover `count`; they are of even size, ceil(count / tiles). */
static inline int conv_tiles(int count, int most)
{
    return (count + most - 1) / most;
}

/* Where part i of `parts` begins, of `count` things. */
static inline int conv_part(int count, int i, int parts)
{
    return (int)((long)count * i / parts);
}

static inline int conv_panels(int columns)
{
    return (columns + CONV_PANEL - 1) / CONV_PANEL;
}

/* Where a tap's element lies in weights or their gradient: [K/32][tap][C][32]. */
static inline long conv_weight(int taps, int channels, int tap, int channel, int column)
{
    return (((long)(column / CONV_PANEL) * taps + tap) * channels + channel) * CONV_PANEL +
           column % CONV_PANEL;
}

#endif /* HVT_CONV_IMPL_H */
