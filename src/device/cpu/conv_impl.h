/*
 * conv_impl.h - a prepared convolution. Included by conv_plan.c, gemm_nn.c, gemm_tn.c,
 * weights.c and winograd.c.
 *
 * A convolution is a set of triples (input pixel, tap, output pixel). Forward groups them by output pixel,
 * backward data by input pixel, backward weights by tap; each group is a short list of (A, B) pairs made
 * once, and one kernel walks it: C += sum A[e.a] * B[e.b]. Stride, padding, 1x1 images and 7x7 filters are
 * lists of other lengths, nothing else.
 *
 * Kernels compute in floats, or multiply pairs of bf16. In 16 bits x, w and dy are widened, or paired, where
 * they are copied, in ws, and each tile is rounded on its way from a small buffer to y or dx.
 *
 * Words: a *word* is a float or a pair (cpu_impl.h); a *pixel* is a place in an image plane, y*w + x; a *tap*
 * a place in the filter, r*S + s; a *panel* 32 columns of weights, [tap][C][32]; a *tile* what one kernel
 * call computes.
 */
#ifndef HVT_CONV_IMPL_H
#define HVT_CONV_IMPL_H

#include "base_impl.h"
#include "cpu_impl.h"
#include "elementwise.h"

#define CONV_PANEL     HVT_PANEL
#define CONV_TILE_ROWS 32 /* at least as many as any kernel's */

/* Targets (output pixels forward, input pixels backward) that share one list: `count` pixels, `step` apart in
 * the list's lines, each one `shift` source pixels further. */
typedef struct conv_run {
    int entry; /* first one; the next run's is the end */
    int pixel, count;
    int own, shared; /* twins, where shared > 0: `pixel` and the one after it. Entries for the first alone and
                        for both, with the first's taps; then for the second alone. Else 0. */
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
    int next_tap;  /* from the tap by which a target reads a source to that of the target after it */
    conv_run *run; /* [runs+1] */
    hvt_entry *e;    /* a: source pixel, b: tap */

    int len, depth;  /* words of a source row in the inner loop; how many an instruction takes */
    int sources;     /* source pixels */
    int pitch;       /* > 0: source rows are first copied to ws, `pitch` words apart */
    bool *is_source; /* [sources] with a pitch: any entry reads it */
} conv_list;

/* One block of backward weights: output pixels whose rows, copied, stay in the cache while all taps are
 * formed. */
typedef struct conv_block {
    int pixel, end;  /* output pixels */
    int pack_first, pack_end; /* range in op->used: input pixels to copy that no earlier block has copied */
} conv_block;

typedef struct conv_op {
    hvt_op head;
    const hvt_conv_kernels *kern;
    const hvt_typed *typed; /* reads x, w and dy, stores y and dx */
    hvt_dtype type;         /* theirs */
    bool vnni2;             /* words are pairs of bf16 */
    hvt_thread_pool *pool;

    /* the convolution as it is computed: a 1x1 one over NHW rows is one pixel with n*h*w images */
    int n, h, w, c, k, oh, ow, r, s, stride, pad, taps;
    int rows_per_image;                      /* 1, or h*w in that case */
    long x_pixel, x_image, y_pixel, y_image; /* elements from one to the next */

    conv_list out, in; /* forward; backward data */
    float *packed_w;     /* weights for backward data, panels along c: [ceil(C/32)][tap][in.len][32] */
    bool stream;       /* so many weights that gradients and turned copies go past the caches */
    size_t w_bytes;    /* of ws that hold weights widened or paired; 0: w is read where it lies */
    bool *tap_used;    /* [taps] any triple has it; with small images and much padding some have none */

    bool winograd; /* all three passes are winograd.c's, which needs nothing of what follows */

    /* backward weights */
    int blocks;
    conv_block *block;
    int *first;  /* [blocks*taps+1] into e: of a block's tap; or of a row of three taps the entries for
                    the first two, for all, for the last two */
    hvt_entry *e;  /* a: slot of the input pixel, b: output pixel within its block */
    int *used;   /* input pixels that any tap reads, in order; the i-th is copied to slot i % slots */
    int slots;   /* 0: x is read where it lies, a is the pixel itself */
    bool pack_y; /* else dy is read where it lies, b is the pixel itself */
    int chunk;   /* images at a time */
    int a_tiles, a_rows;  /* c is cut into a_tiles tiles of a_rows rows */
    int a_panel;          /* channels in a panel of copied x; all tiles of a panel but its last have a_rows */
    int panel_tiles;      /* tiles in a panel */
    int a_pitch, b_pitch; /* words for one inner step in a panel of copied x, of dy */
    int vectors;          /* of a tile's columns; fewer in the last one */
    int taps_per_tile;         /* taps that a tile forms: 1, or the 3 of a filter's row, with a vector for each */
    long a_slot, b_slot;  /* words of one copied pixel */
    size_t x_bytes;       /* of ws that hold copied x; dy's copies follow */
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

/* Words of an inner loop over `count` elements, and how many of them one instruction takes: each takes as
 * many as the others, so that the last words may be zeros. */
static inline int conv_k_groups(const hvt_conv_kernels *kern, int count, int *ret_depth)
{
    int k_groups = kern->pack_b ? (count + 1) / 2 : count, steps = conv_tiles(k_groups, kern->depth);

    *ret_depth = conv_tiles(k_groups, steps);
    return steps * *ret_depth;
}

/* Where part i of `parts` begins, of `count` things. */
static inline int conv_part(int count, int i, int parts)
{
    return (int)((long)count * i / parts);
}

/* Backward weights: the parts in which threads share out `columns` and `rows` of tiles of each of `groups`
 * matrices, some eight jobs for each thread. */
static inline void conv_share(const conv_op *op, int groups, int columns, int rows, int *ret_columns,
                              int *ret_rows)
{
    const int threads = hvt__thread_pool_size(op->pool), jobs = threads > 1 ? conv_tiles(threads * 8, groups) : 1;
    int left;

    *ret_columns = jobs < columns ? jobs : columns;
    left = conv_tiles(jobs, *ret_columns);
    *ret_rows = left < rows ? left : rows;
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

/* weights.c: forward's, in words, from w to op->w_bytes of ws */
void hvt__conv_pack_forward(const conv_op *op, const void *w, float *ws);

/* winograd.c. pairs: (output, tap) pairs whose input exists. Do fewer multiplications make up for what comes
 * with them? By the shape of a layer alone. */
bool hvt__winograd_is_faster(const conv_op *op, long products);
size_t hvt__winograd_bytes(const conv_op *op, bool no_dx); /* of ws */
void hvt__winograd_forward(const conv_op *op, int real, const void *x, const void *w, void *y, void *ws);
void hvt__winograd_backward_x(const conv_op *op, int real, const void *w, const void *dy, void *dx, bool add,
                              void *ws);
void hvt__winograd_backward_w(const conv_op *op, int real, const void *x, const void *dy, float *dw,
                              void *ws);

#endif /* HVT_CONV_IMPL_H */
