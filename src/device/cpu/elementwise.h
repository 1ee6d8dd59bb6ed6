/*
 * elementwise.h - kernels besides the convolutions' GEMMs, each on a part that one thread owns. They are
 * compiled once per instruction set from elementwise_tmpl.c and typed_tmpl.c; cpu.c, matrix.c, pooling.c and
 * images.c combine them into whole ops.
 *
 * A *span* is n contiguous elements. A *part* of a matrix is some of its valid rows, numbered without the
 * padding, and some of its columns. No function here allocates, waits or fails.
 */
#ifndef HVT_ELEMENTWISE_H
#define HVT_ELEMENTWISE_H

#include "device/half.h"
#include "device_impl.h"

/* Rows [first, end) and columns [col, col + cols) of a matrix: all columns or, if rows are wide, some of
 * them. Results per column go to [0, cols). */
typedef struct hvt_part {
    size_t first, end;
    int col, cols;
} hvt_part;

/* Per-channel constants of batch norm's second passes. */
typedef struct hvt_bn_consts {
    float *scale; /* gamma * rstd */
    float *share; /* backward: sum(dz) / count */
    float *slope; /* backward: rstd * sum(dz * xhat) / count */
} hvt_bn_consts;

/* Tiles of pixels to transform for Winograd's GEMMs (winograd.c): [rows][c], with stride `row` in each pixel,
 * become panels of w columns, each [rows][pitch], `panel` floats apart; one such matrix per point, `next`
 * floats apart. */
typedef struct hvt_tiles {
    void *from[36]; /* the pixels of a tile, line by line; NULL: zeros */
    int rows, c;    /* c <= HVT_TILE_SPAN */
    long row,
        prefetch; /* prefetch: distance from a tile's last m columns to the next m, to prefetch; 0: none */
    int w, pitch;
    float *out;
    long panel, next;
} hvt_tiles;

enum { HVT_TILE_SPAN = 1024 };

/* True for functions that batch norm's passes compute themselves: their slope is 0 or 1, so backward needs no
 * memory for dy times the slope. */
static inline bool hvt__is_clamp(const hvt_map *f)
{
    return f && f->f == HVT_HARDTANH;
}

typedef void hvt_pointwise_fn(size_t n, const void *a, const void *b, void *y, bool add);

/* Targets of a depthwise convolution: pixels of a line of some images, rows of `channels` elements, that use
 * the same taps. Target t of image n reads, for each pair of an entry of `row` and one of `col`, the source
 * at row.from + col.from + from_step * t + from_image * n, with the weights at row.w + col.w. Offsets are in
 * elements. Weights are [panel][tap][HVT_PANEL]. */
typedef struct hvt_depthwise_entry {
    long from, w;
} hvt_depthwise_entry;

typedef struct hvt_depthwise {
    int channels, count, images;
    int rows, cols;
    int shift; /* columns from a target's first column to the next target's; 0: targets share no columns */
    const hvt_depthwise_entry *row, *col;
    long panel; /* elements between panels of weights */
    long from_step, to_step, from_image, to_image;
    bool stream;       /* targets are whole lines, written past the caches; the caller calls hvt__fence() */
    const void *ahead; /* lines of columns to prefetch, of image 0; NULL: none */
    int ahead_lines;
    long ahead_line, ahead_pixel, ahead_step, ahead_image; /* ahead_step: per target */
} hvt_depthwise;

/* Second operand of a binary operation for a vector of activations: a vector of their type, a vector of
 * floats, or a number. */
typedef enum hvt_operand_kind { HVT_OPERAND_TYPED, HVT_OPERAND_FLOATS, HVT_OPERAND_NUMBER } hvt_operand_kind;
typedef struct hvt_operand {
    hvt_operand_kind kind;
    const void *p;
    float x;
} hvt_operand;

/* A group of hvt_norm_args. It begins at element `at` of x and has pixels `step` elements apart; in gamma it
 * begins at `first`, with pixels gamma_step apart. index: that of its mean. */
typedef struct hvt_group {
    size_t at, step, first, gamma_step, index;
    int pixels;
} hvt_group;

/* Functions on activations of one type, passed as void pointers. See typed_tmpl.c. */
typedef struct hvt_typed {
    hvt_pointwise_fn *relu, *relu_grad, *add; /* relu(a); b where a, relu's output, is positive; a + b */
    void (*scale)(size_t n, float s, const void *x, void *y, bool add); /* y (+)= s*x */
    void (*cast)(size_t n, float s, const void *x, void *y, hvt_dtype to);
    /* sum elements [first, first + n) of all `in` into each of `out` */
    void (*reduce)(size_t first, size_t n, const void *const in[], int count, void *const out[], int outs);

    /* threads split rows at multiples of this, so that narrow rows fill vectors */
    int (*row_step)(int c);
    /* mean and sum of squared deviations of a part; a no-op without rows */
    void (*bn_stats)(hvt_rows rows, int c, const void *x, hvt_part p, float *mean, float *m2);
    void (*bn_apply)(const hvt_bn_args *a, hvt_bn_consts k, hvt_part p);
    /* by hvt_function: bn_apply with a's map and no residual; a's dz from its dy */
    void (*bn_map[HVT_FUNCTIONS])(const hvt_bn_args *a, hvt_bn_consts k, hvt_part p);
    void (*bn_slope[HVT_FUNCTIONS])(const hvt_bn_grad_args *a, hvt_bn_consts k, hvt_part p);
    /* sum(dz) and sum(dz * (x - mean)) of a part; `keep`: dresidual = dz */
    void (*bn_sums)(const hvt_bn_grad_args *a, hvt_bn_consts k, hvt_part p, bool keep, float *sum,
                    float *dot);
    void (*bn_dx)(const hvt_bn_grad_args *a, hvt_bn_consts k, hvt_part p);
    void (*bias)(hvt_rows rows, int c, const float *b, void *y, hvt_part p);
    void (*sums)(hvt_rows rows, int c, const void *dy, hvt_part p, float *sum);

    /* loss, label rank and gradient, times `scale`, of one valid row */
    void (*xent_row)(const hvt_xent_args *a, size_t row, float scale);

    /* y[i] = the first maximum of in[0..count-1][i]; saved[i] = its pos (the argmax) */
    void (*max_forward)(size_t n, const void *const in[], const uint8_t pos[], int count, void *y,
                        uint8_t *saved);
    /* dx[i] (+)= sum over k of dy[k][i] where saved[k][i] == pos[k] */
    void (*max_backward)(size_t n, const void *const dy[], const uint8_t *const saved[], const uint8_t pos[],
                         int count, void *dx, bool add);
    /* y[i] = part * sum over k of x[k*step + i] */
    void (*mean_forward)(size_t n, const void *x, size_t step, int count, float part, void *y);
    /* the same over `high` lines of `wide` pixels, `step` and `line` elements apart; dx[i] (+)= the sum over
     * k of part[k] * dy[k][i] */
    void (*window_mean)(size_t n, const void *x, size_t step, int wide, size_t line, int high, float part,
                        void *y);
    void (*window_spread)(size_t n, const void *const dy[], const float part[], int count, void *dx,
                          bool add);

    /* by hvt_function: y = f(x); dx (+)= dy * f', from x or y */
    void (*map[HVT_FUNCTIONS])(size_t n, const hvt_map *f, const void *x, void *y);
    void (*slope[HVT_FUNCTIONS])(size_t n, const hvt_map *f, const void *saved, const void *dy, void *dx,
                                 bool add);

    /* y = a op b; da (+)= dy times its derivative by a; both heed `swapped` */
    void (*binary)(const hvt_binary_args *k, size_t n, const void *a, const hvt_operand *b, void *y);
    void (*binary_slope)(const hvt_binary_args *k, bool swapped, size_t n, const void *dy, const void *a,
                         const hvt_operand *b, void *da, bool add);
    /* derivative by b. A vector: sum[i] += over `count` rows, `step` elements apart. A number: returns it */
    void (*binary_columns)(const hvt_binary_args *k, size_t n, int count, size_t step, const void *dy,
                           const void *a, const hvt_operand *b, float *sum);
    float (*binary_dot)(const hvt_binary_args *k, size_t n, const void *dy, const void *a, float b);
    /* to (+)= from, [rows, cols], with these distances between rows */
    void (*move_rows)(size_t rows, int cols, const void *from, size_t from_step, void *to, size_t to_step,
                      bool add);
    /* y[k,j,b] (+)= x[j,k,b] */
    void (*transpose)(int rows, int cols, int block, const void *x, void *y, bool add);
    void (*group_forward)(const hvt_norm_args *a, const hvt_group *g);
    void (*group_backward)(const hvt_norm_args *a, const hvt_group *g, float *dgamma, float *dbeta);

    /* dropout of pixels [first, end) of an image with this mixed key; x and y point to the first, and pixels
     * are `step` elements apart */
    void (*drop)(const hvt_dropout_args *a, uint64_t key, size_t first, size_t end, size_t step,
                 const void *x, void *y);

    /* rotary embeddings of a pixel's vectors, from x and y on, with the pixel's own and other */
    void (*rotary)(const hvt_rotary_args *a, const float *own, const float *other, const void *x, void *y);

    /* for convolutions: to f32 */
    void (*widen)(size_t n, const void *x, float *out);
    /* pack [n][c], rows `ld` apart, into panels of w columns, each [n][pitch], `next` floats apart; columns
     * past c are zero up to the next whole vector. Prefetches x + prefetch, unless that is x */
    void (*pack_panels)(const void *x, long ld, long prefetch, int n, int c, int w, int pitch, long next,
                        float *out);
    /* to (+)= [rows][cols], with strides `row` and `tile_row` */
    void (*store_tile)(int rows, int cols, const float *tile, long tile_row, void *to, long row, bool add);

    /* to (+)= sum over taps of from * w; dw += sum over targets of from * to */
    void (*depthwise)(const hvt_depthwise *g, const void *from, const float *w, void *to, bool add);
    void (*depthwise_dw)(const hvt_depthwise *g, const void *from, const void *to, float *dw);

    /* Winograd's F(m x m, 3x3), m = 2 or 4, see winograd.c. The matrices of points are `next` floats apart.
     * B'dB of (m+2)x(m+2) pixels; with grad AdA' of mxm pixels */
    void (*tile)(const hvt_tiles *g, int m, bool grad);
    /* to (+)= A'uA, rows of `cols` columns, for mxm pixels with stride `row`; NULL: outside the image */
    void (*tile_output)(int m, const float *u, long next, int rows, int cols, void *const to[], long row,
                        bool add);
    /* for n weights whose taps are `tap` elements apart: GgG' of g or of g rotated by 180 degrees; for their
     * gradients G'uG */
    void (*tile_filter)(int m, size_t n, const void *w, long tap, bool rotated, float *out, long next);
    void (*tile_dw)(int m, size_t n, const float *u, long next, float *dw, long tap);
} hvt_typed;

/* Factors of a gradient in panels of HVT_PANEL filters, [ceil(k/HVT_PANEL)][m][HVT_PANEL]; see
 * device/ops/step.h and factors_tmpl.c. */
enum { HVT_PANEL = 32, HVT_FACTOR_ROWS = 64 };
typedef void hvt_factor_fn(const hvt_factor_args *a, int panel, int first, int rows);
typedef struct hvt_factors {
    hvt_factor_fn *p;    /* for a panel's filters */
    hvt_factor_fn *q;    /* for rows [first, first + rows) of m, rows <= HVT_FACTOR_ROWS */
    hvt_factor_fn *join; /* for these rows in a panel */
} hvt_factors;

/* Some rows of scores, n each, `step` floats apart. Arrays may be read and written up to the next whole
 * vector, except the mask, whose rows are n apart. */
enum { HVT_SCORE_ROWS = 8 };
typedef struct hvt_scores {
    int rows; /* at most HVT_SCORE_ROWS */
    size_t n, step;
    float scale;
    const float *bias, *mask; /* NULL: 0 */
    float *x, *dx;
    float *sum; /* NULL: not needed */
} hvt_scores;

struct hvt_elementwise {
    int vl;                 /* floats in a vector */
    const hvt_typed *in[3]; /* by hvt_dtype: f32, f16, bf16 */
    const hvt_factors *factors;

    /* on elements [first, first + n) of every array */
    void (*sgd)(size_t first, size_t n, const hvt_sgd_args *a, const float *const g[], int ng, float *w,
                float *v);
    void (*adam)(size_t first, size_t n, const hvt_adam_args *a, const float *const g[], int ng, float *w,
                 float *m, float *v);
    void (*ema)(size_t n, float share, const float *w, float *ema); /* share 1: a copy */
    size_t (*first_bad)(size_t n, const float *g); /* index of the first non-finite element; n: none */

    /* Chan, Golub and LeVeque 1979: merge the statistics of parts, `stride` floats apart, in order; each has
     * `step` rows, the last one the rest of `rows` */
    void (*bn_join)(int parts, size_t stride, size_t step, size_t rows, int cols, const float *mean,
                    const float *m2, double *ret_mean, double *ret_m2);
    /* from the merged statistics of `rows` rows: a's mean, rstd and moments, k's scale */
    void (*bn_finish)(const hvt_bn_args *a, size_t rows, const double *mean, const double *m2, int col,
                      int cols, hvt_bn_consts k);
    /* from the sums of all parts, `stride` floats apart: a's dgamma and dbeta, k's share and slope */
    void (*bn_grad_finish)(const hvt_bn_grad_args *a, size_t rows, int parts, size_t stride, const float *sum,
                           const float *dot, int col, int cols, hvt_bn_consts k);
    void (*bn_running)(size_t n, float rate, float scale, const float *moments, float *run);

    /* x = softmax of scale * x + bias + mask. Backward: x holds p; dx holds p's gradient and becomes the
     * gradient of forward's x; sum += the gradient of bias */
    void (*softmax)(const hvt_scores *s);
    void (*softmax_slope)(const hvt_scores *s);

    /* reverse `count` pixels of three bytes */
    void (*mirror)(int count, const uint8_t *in, uint8_t *out);
    /* out[i] = fma(bytes[i], scale[i % (c*vl)], shift[i % (c*vl)]); stream: past the caches if out is
     * aligned; the caller calls hvt__fence() */
    void (*normalise)(size_t n, const uint8_t *bytes, int c, const float *scale, const float *shift,
                      float *out, bool stream);
    void (*normalise_floats)(size_t n, const float *x, int c, const float *scale, const float *shift,
                             float *out); /* the same */
};

#endif /* HVT_ELEMENTWISE_H */
