/*
 * direct_impl.h - direct convolution. Included by direct_plan.c, gemm_nn.c, gemm_tn.c and weights.c.
 *
 * A convolution is a set of triples (input pixel, tap, output pixel). Forward groups them by output pixel,
 * backward data by input pixel, backward weights by tap. Each group is a short list of (A, B) pairs made at
 * plan time, and one kernel computes C += sum A[e.a] * B[e.b] over it. Stride, padding and sizes only change
 * the lists.
 *
 * Kernels compute in f32 or on bf16 in the vnni2 layout. With 16-bit activations, x, w and dy are widened, or
 * packed to vnni2, in the workspace, and each tile is rounded from a small buffer to y or dx.
 */
#ifndef HVT_DIRECT_IMPL_H
#define HVT_DIRECT_IMPL_H

#include "conv_impl.h"

/* Targets (output pixels forward, input pixels backward) that share one list: `count` pixels of a line, the
 * list's `step` apart, each reading `shift` source pixels further on than the previous one. */
typedef struct conv_run {
    int entry; /* its first entry; its list ends at the next run's first entry */
    int pixel, count;
    int own, shared; /* shared > 0: the run is `pixel` and the next one, for two_pixels. Numbers of entries
                        for the first pixel only, and for both (with the first pixel's taps); the others are
                        for the second only. */
} conv_run;

/* The rows of a tile. */
typedef enum conv_rows {
    CONV_IMAGES, /* the images of one pixel */
    CONV_WIDTH,  /* the pixels of one run, image by image: for few images, or images far apart in memory */
    CONV_BOTH    /* pixels and images of one run, which are adjacent: for HWN, stride 1, few images */
} conv_rows;

typedef struct conv_list {
    conv_rows rows;
    int pixels, step, shift;
    int runs;
    int next_tap;  /* difference between the taps with which neighbouring targets read a source */
    conv_run *run; /* [runs+1] */
    hvt_entry *e;  /* a: source pixel, b: tap */

    int len, depth;  /* k-groups of a source row (inner dimension), and per instruction */
    int sources;     /* source pixels */
    int pitch;       /* > 0: source rows are first copied to ws with this pitch in k-groups */
    bool *is_source; /* [sources] with a pitch: some entry reads it */
} conv_list;

/* A block of backward weights: output pixels whose packed rows stay in the cache while all taps are
 * computed. */
typedef struct conv_block {
    int pixel, end;           /* output pixels */
    int reads;                /* index in `used` of the first input pixel that it reads */
    int pack_first, pack_end; /* range in `used` of the input pixels that no earlier block has packed */
} conv_block;

typedef struct direct {
    conv_op op;

    conv_list out, in; /* forward; backward data */
    bool stream;       /* large weights: gradient and packed copy use non-temporal stores */
    size_t w_bytes;    /* bytes of ws for weights widened or in vnni2; 0: w is read in place */
    bool *tap_used;    /* [taps] some triple uses it; small images with much padding have unused taps */

    /* backward weights */
    int blocks;
    conv_block *block;
    int *first;   /* [blocks*taps+1] index into e of the entries of a block and tap; with three taps per tile
                     those for the first two taps, for all three, for the last two */
    hvt_entry *e; /* a: slot of the input pixel, b: output pixel within its block */
    int *used;    /* input pixels that any tap reads, ascending; the i-th is packed to slot i % slots */
    int slots;    /* 0: x is read in place, and a is the pixel */
    bool pack_y;  /* else dy is read in place, and b is the pixel */
    int chunk;    /* images per unit */
    int a_tiles, a_rows; /* c is cut into a_tiles tiles of a_rows rows */
    int a_panel;     /* channels in a panel of packed x; all tiles of a panel but its last have a_rows rows */
    int panel_tiles; /* tiles in a panel */
    int b_panel;     /* columns in a panel of packed dy */
    int a_pitch, b_pitch; /* k-groups per inner step in a panel of packed x, of packed dy */
    int taps_per_tile;    /* 1, or the 3 of a filter row, one vector each */
    long a_slot, b_slot;  /* k-groups between packed pixels: a tile's floats of all pixels are adjacent, pairs
                             of bf16 are stored by pixel */
    long a_next, b_next;  /* k-groups between panels */
    size_t x_bytes, y_bytes; /* bytes of ws for packed x, and for packed dy after it */
} direct;

static inline const direct *direct_of(const conv_op *op)
{
    return (const direct *)op;
}

/* True if every target pixel reads only the source pixel of its own number, so that a norm of x
 * (conv.set_norm) can be computed per block of pixels. */
static inline bool direct_takes_norm(const conv_op *op)
{
    return op->hwn && op->rows_per_image == 1 && op->taps == 1 && op->even && op->stride_h == 1 && !op->top &&
           op->oh == op->h && op->ow == op->w;
}

/* Returns the k-groups of an inner dimension of `count` elements; *ret_depth: how many each instruction
 * consumes. The last k-groups may be zero padding. */
static inline int conv_k_groups(const hvt_conv_kernels *kern, int count, int *ret_depth)
{
    int k_groups = kern->pack_b ? (count + 1) / 2 : count, steps = tile_count(k_groups, kern->depth);

    *ret_depth = tile_count(k_groups, steps);
    return steps * *ret_depth;
}

/* gemm_nn.c */
size_t hvt__direct_pass_bytes(const conv_op *op, bool back);
void hvt__direct_forward(const conv_op *op, int real, const void *x, const void *w, void *y, void *ws);
void hvt__direct_backward_x(const conv_op *op, int real, const void *w, const void *dy, void *dx, bool add,
                            void *ws);
/* gemm_tn.c */
size_t hvt__direct_backward_w_bytes(const conv_op *op);
void hvt__direct_backward_w(const conv_op *op, int real, const void *x, const void *dy, float *dw, void *ws);

/* weights.c. Pack a block's weights for forward, widened or as vnni2 (w_bytes); for backward data, in panels
 * along c of [taps][in.len][32] floats; one of these panels, on the calling thread. */
void hvt__direct_pack_forward(const direct *d, const void *w, float *to);
void hvt__direct_pack(const direct *d, const void *w, float *to);
void hvt__direct_pack_panel(const direct *d, const void *w, int panel, float *to);
/* Zero the padding between the groups of each block after backward weights. */
void hvt__conv_clear_between_groups(const conv_op *op, float *dw);

#endif /* HVT_DIRECT_IMPL_H */
