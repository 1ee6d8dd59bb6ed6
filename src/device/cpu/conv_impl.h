/*
 * conv_impl.h - a planned convolution. Included by conv_plan.c, gemm_nn.c, gemm_tn.c, weights.c and
 * winograd.c.
 *
 * A convolution is a set of triples (input pixel, tap, output pixel). Forward groups them by output pixel,
 * backward data by input pixel, backward weights by tap. Each group is a short list of (A, B) pairs made once
 * at plan time, and one kernel computes C += sum A[e.a] * B[e.b] over it. Stride, padding, 1x1 images and 7x7
 * filters only change the lists.
 *
 * Kernels compute on f32 or on bf16 in the vnni2 layout. With 16-bit activations, x, w and dy are widened, or
 * packed to vnni2, into the workspace, and each tile is rounded on its way from a small buffer to y or dx.
 *
 * Terms: a *k-group* is a float or two bf16 along the inner dimension (cpu_impl.h); a *pixel* is an index
 * into an image plane, y*w + x; a *tap* an index into the filter, r*S + s; a *panel* 32 columns of weights,
 * [tap][C][32]; a *tile* what one kernel call computes.
 */
#ifndef HVT_CONV_IMPL_H
#define HVT_CONV_IMPL_H

#include "base_impl.h"
#include "cpu_impl.h"
#include "elementwise.h"

#define CONV_PANEL     HVT_PANEL
#define CONV_TILE_ROWS 32 /* at least as many as any kernel's */

/* Targets (output pixels forward, input pixels backward) that share one list: `count` pixels of a line, the
 * list's `step` apart, each of which reads `shift` source pixels further on than the one before. */
typedef struct conv_run {
    int entry; /* first one; the next run's is the end */
    int pixel, count;
    int own, shared; /* two_pixels, if shared > 0: `pixel` and the one after it. Entries for the first alone
                        and for both, with the first's taps; then those for the second alone. Else 0. */
} conv_run;

/* What the rows of a tile are. */
typedef enum conv_rows {
    CONV_IMAGES, /* the images of one pixel */
    CONV_WIDTH,  /* the pixels of one run, image by image: few images, or images far apart in memory */
    CONV_BOTH    /* pixels and images of one run, which are adjacent: HWN, stride 1, few images */
} conv_rows;

typedef struct conv_list {
    conv_rows rows;
    int pixels, step, shift;
    int runs;
    int next_tap;  /* from the tap with which a target reads a source to the next target's tap for it */
    conv_run *run; /* [runs+1] */
    hvt_entry *e;  /* a: source pixel, b: tap */

    int len, depth;  /* k-groups of a source row (inner dimension); how many an instruction consumes */
    int sources;     /* source pixels */
    int pitch;       /* > 0: source rows are first copied to ws with this pitch in k-groups */
    bool *is_source; /* [sources] with a pitch: any entry reads it */
} conv_list;

/* A block of backward weights: output pixels whose packed rows stay in the cache while all taps are
 * computed. */
typedef struct conv_block {
    int pixel, end;           /* output pixels */
    int pack_first, pack_end; /* range in op->used: input pixels that no earlier block has packed */
} conv_block;

typedef struct conv_op {
    hvt_op head;
    const hvt_conv_kernels *kern;
    const hvt_typed *typed; /* reads x, w and dy, stores y and dx */
    hvt_dtype type;         /* theirs */
    bool vnni2;             /* kernels multiply bf16 in the vnni2 layout */
    hvt_thread_pool *pool;

    /* the convolution as computed: a 1x1 one over NHW rows is treated as one pixel with n*h*w images */
    int n, h, w, c, k, oh, ow, r, s, stride, pad, taps;
    int rows_per_image;                      /* 1, or h*w in that case */
    long x_pixel, x_image, y_pixel, y_image; /* strides in elements */

    conv_list out, in; /* forward; backward data */
    float *packed_w; /* weights packed for backward data, in panels along c: [ceil(C/32)][tap][in.len][32] */
    bool stream;     /* large weights: their gradient and packed copy are written with non-temporal stores */
    size_t w_bytes;  /* of ws for weights widened or in vnni2; 0: w is read in place */
    bool *tap_used;  /* [taps] any triple uses it; with small images and much padding some are unused */

    bool winograd; /* all three passes are done by winograd.c, and the fields below are unused */

    /* backward weights */
    int blocks;
    conv_block *block;
    int *first; /* [blocks*taps+1] into e: the entries of a block and tap; or, with three taps per tile, those
                   for the first two taps, for all three, for the last two */
    hvt_entry *e; /* a: slot of the input pixel, b: output pixel within its block */
    int *used;    /* input pixels that any tap reads, ascending; the i-th is packed to slot i % slots */
    int slots;    /* 0: x is read in place, and a is the pixel itself */
    bool pack_y;  /* else dy is read in place, and b is the pixel itself */
    int chunk;    /* images at a time */
    int a_tiles, a_rows; /* c is cut into a_tiles tiles of a_rows rows */
    int a_panel;     /* channels in a panel of packed x; all tiles of a panel but its last have a_rows rows */
    int panel_tiles; /* tiles in a panel */
    int a_pitch, b_pitch; /* k-groups per inner step in a panel of packed x, of packed dy */
    int vectors;          /* of columns in a tile; fewer in the last tile */
    int taps_per_tile;    /* 1, or the 3 of a filter row, one vector each */
    long a_slot, b_slot;  /* k-groups of one packed pixel */
    size_t x_bytes;       /* of ws for packed x; packed dy follows */
} conv_op;

/* Non-temporal stores are not ordered by the thread pool's atomics. */
static inline void conv_fence(void)
{
#ifdef __x86_64__
    __builtin_ia32_sfence();
#endif
}

/* Number of tiles of at most `most` rows that cover `count`; tiles are of even size, ceil(count / tiles). */
static inline int conv_tiles(int count, int most)
{
    return (count + most - 1) / most;
}

/* k-groups of an inner dimension of `count` elements, and how many of them one instruction consumes. Every
 * instruction consumes equally many, so the last k-groups may be zero padding. */
static inline int conv_k_groups(const hvt_conv_kernels *kern, int count, int *ret_depth)
{
    int k_groups = kern->pack_b ? (count + 1) / 2 : count, steps = conv_tiles(k_groups, kern->depth);

    *ret_depth = conv_tiles(k_groups, steps);
    return steps * *ret_depth;
}

/* First of `count` items that belong to part i of `parts`. */
static inline int conv_part(int count, int i, int parts)
{
    return (int)((long)count * i / parts);
}

/* Backward weights: into how many parts to split `columns` and `rows` of tiles of each of `groups` matrices,
 * for some eight jobs per thread. */
static inline void conv_share(const conv_op *op, int groups, int columns, int rows, int *ret_columns,
                              int *ret_rows)
{
    const int threads = hvt__thread_pool_size(op->pool),
              jobs = threads > 1 ? conv_tiles(threads * 8, groups) : 1;
    int left;

    *ret_columns = jobs < columns ? jobs : columns;
    left = conv_tiles(jobs, *ret_columns);
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

/* weights.c: packs forward's weights, widened or as vnni2, into the first op->w_bytes of ws */
void hvt__conv_pack_forward(const conv_op *op, const void *w, float *ws);

/* winograd.c. products: (output, tap) pairs whose input exists. Whether the saved multiplications outweigh
 * the transforms, judged by the layer's shape alone. */
bool hvt__winograd_is_faster(const conv_op *op, long products);
size_t hvt__winograd_bytes(const conv_op *op, bool no_dx); /* of ws */
void hvt__winograd_forward(const conv_op *op, int real, const void *x, const void *w, void *y, void *ws);
void hvt__winograd_backward_x(const conv_op *op, int real, const void *w, const void *dy, void *dx, bool add,
                              void *ws);
void hvt__winograd_backward_w(const conv_op *op, int real, const void *x, const void *dy, float *dw,
                              void *ws);

#endif /* HVT_CONV_IMPL_H */
