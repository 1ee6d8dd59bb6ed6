/*
 * elementwise.h - what the cpu device does besides the GEMMs of convolutions, on a part that one thread owns:
 * compiled once per instruction set from elementwise.c and typed.h, and combined to whole ops by cpu.c,
 * matrix.c, pooling.c and images.c.
 *
 * A *span* is n contiguous elements. A *part* of a matrix is some of its valid rows, counted without the
 * padding, and some of its columns. Nothing here allocates, waits or fails.
 */
#ifndef HVT_ELEMENTWISE_H
#define HVT_ELEMENTWISE_H

#include "device_impl.h"

/* Rows [first, end) and columns [col, col + cols) of a matrix: all columns or, if rows are wide, some of
 * them. Results per column go to [0, cols). */
typedef struct hvt_part {
    size_t first, end;
    int col, cols;
} hvt_part;

/* per-channel constants of batch norm's second passes */
typedef struct hvt_bn_consts {
    float *scale; /* gamma * rstd */
    float *share; /* backward: sum(dz) / count */
    float *slope; /* backward: rstd * sum(dz * xhat) / count */
} hvt_bn_consts;

/* Tiles of pixels to be transformed for Winograd's GEMMs, see winograd.c: [rows][c], with stride `row` in
 * each of the pixels, become panels of w columns, each [rows][pitch], `panel` floats apart; one such matrix
 * per point, `next` floats apart. */
typedef struct hvt_tiles {
    const void *from[16]; /* the pixels of a tile, line by line; NULL: zeros */
    int rows, c;          /* c <= HVT_TILE_SPAN */
    long row, prefetch;   /* prefetch: distance from two columns of a tile to the next two, which are
                             prefetched; 0: none */
    int w, pitch;
    float *out;
    long panel, next;
} hvt_tiles;

enum { HVT_TILE_SPAN = 1024 };

/* Functions on activations of one type, passed as void pointers. See typed.h. */
typedef struct hvt_typed {
    void (*relu)(size_t n, const void *x, void *y);
    void (*relu_grad)(size_t n, const void *y, const void *dy, void *dx, bool add);
    void (*add)(size_t n, const void *a, const void *b, void *y);
    void (*scale)(size_t n, float s, const void *x, void *y, bool add); /* y (+)= s*x */

    /* rows are split between threads at multiples of this, so that narrow rows fill vectors */
    int (*row_step)(int c);
    /* mean and sum of squared deviations of a part */
    void (*bn_stats)(hvt_rows rows, int c, const void *x, hvt_part p, float *mean, float *m2);
    void (*bn_apply)(const hvt_bn_args *a, hvt_bn_consts k, hvt_part p);
    /* sum(dz) and sum(dz * (x - mean)) of a part; `keep`: dresidual = dz */
    void (*bn_sums)(const hvt_bn_grad_args *a, hvt_bn_consts k, hvt_part p, bool keep, float *sum,
                    float *dot);
    void (*bn_dx)(const hvt_bn_grad_args *a, hvt_bn_consts k, hvt_part p);
    void (*bias)(hvt_rows rows, int c, const float *b, void *y, hvt_part p);
    void (*sums)(hvt_rows rows, int c, const void *dy, hvt_part p, float *sum);

    /* one valid row: its loss, label rank and gradient, which is multiplied by `scale` */
    void (*xent_row)(const hvt_xent_args *a, size_t row, float scale);

    /* y[i] = the first maximum of in[0..count-1][i]; saved[i] = its pos (the argmax) */
    void (*max_forward)(size_t n, const void *const in[], const uint8_t pos[], int count, void *y,
                        uint8_t *saved);
    /* dx[i] (+)= sum over k of dy[k][i] where saved[k][i] == pos[k] */
    void (*max_backward)(size_t n, const void *const dy[], const uint8_t *const saved[], const uint8_t pos[],
                         int count, void *dx, bool add);
    /* y[i] = part * sum over k of x[k*step + i] */
    void (*mean_forward)(size_t n, const void *x, size_t step, int count, float part, void *y);

    /* for convolutions: to f32 */
    void (*widen)(size_t n, const void *x, float *out);
    /* pack [n][c], rows `ld` apart, into panels of w columns, each [n][pitch]; columns past c are zero up to
     * the next whole vector. x + prefetch is prefetched, unless that is x */
    void (*pack_panels)(const void *x, long ld, long prefetch, int n, int c, int w, int pitch, float *out);
    /* to (+)= [rows][cols], with strides `row` and `tile_row` */
    void (*store_tile)(int rows, int cols, const float *tile, long tile_row, void *to, long row, bool add);

    /* Winograd's F(2x2, 3x3), see winograd.c. The matrices of points are `next` floats apart. */
    void (*tile_input)(const hvt_tiles *g); /* 4x4 pixels: B'dB */
    void (*tile_dy)(const hvt_tiles *g);    /* 2x2 pixels: AdA' */
    /* A'mA, rows of `cols` columns, to (+)= 2x2 pixels with stride `row`; NULL: outside the image */
    void (*tile_output)(const float *m, long next, int rows, int cols, void *const to[4], long row, bool add);
    /* of n weights whose taps are `tap` elements apart: GgG'; and of their gradients: G'uG */
    void (*tile_filter)(size_t n, const void *w, long tap, float *out, long next);
    void (*tile_dw)(size_t n, const float *u, long next, float *dw, long tap);
} hvt_typed;

/* Factors of a gradient in panels of HVT_PANEL filters, [ceil(k/HVT_PANEL)][m][HVT_PANEL]; see device_impl.h
 * and factors.c. */
enum { HVT_PANEL = 32, HVT_FACTOR_ROWS = 64 };
typedef struct hvt_factors {
    void (*p)(const hvt_factor_args *a, int panel);                         /* of a panel's filters */
    void (*q)(const hvt_factor_args *a, int first, int rows);               /* rows <= HVT_FACTOR_ROWS of m */
    void (*join)(const hvt_factor_args *a, int panel, int first, int rows); /* the same in one panel */
} hvt_factors;

struct hvt_elementwise {
    int vl;                 /* floats in a vector */
    const hvt_typed *in[3]; /* by hvt_dtype: f32, f16, bf16 */
    const hvt_factors *factors;

    void (*cast)(size_t n, float s, const void *src, hvt_dtype st, void *dst, hvt_dtype dt);
    /* on elements [first, first + n) of every array */
    void (*reduce)(size_t first, size_t n, hvt_dtype t, const void *const in[], int count, void *out);
    void (*reduce_all)(size_t first, size_t n, hvt_dtype t, void *const io[], int count);
    void (*sgd)(size_t first, size_t n, const hvt_sgd_args *a, const float *const g[], int ng, float *w,
                float *v);
    size_t (*first_bad)(size_t n, const float *g); /* index of the first that is not finite; n: none */

    /* Chan, Golub and LeVeque 1979: merge the statistics of parts, stored one after the other, in order */
    void (*bn_join)(int parts, const size_t *count, int cols, const float *mean, const float *m2,
                    double *ret_mean, double *ret_m2);
    /* from the merged statistics of `rows` rows: a's mean, rstd and moments, k's scale */
    void (*bn_finish)(const hvt_bn_args *a, size_t rows, const double *mean, const double *m2, int col,
                      int cols, hvt_bn_consts k);
    /* from the sums of all parts, stored one after the other: a's dgamma and dbeta, k's share and slope */
    void (*bn_grad_finish)(const hvt_bn_grad_args *a, size_t rows, int parts, const float *sum,
                           const float *dot, int col, int cols, hvt_bn_consts k);
    void (*bn_running)(size_t n, float rate, float scale, const float *moments, float *run);

    /* out[i] = fma(bytes[i], scale[i % (c*vl)], shift[i % (c*vl)]) */
    void (*normalise)(size_t n, const uint8_t *bytes, int c, const float *scale, const float *shift,
                      float *out);
};

/* element i of an array of type t */
static inline void *hvt__at(const void *p, hvt_dtype t, size_t i)
{
    return (char *)(uintptr_t)p + i * (t == HVT_F32 ? sizeof(float) : sizeof(uint16_t));
}

#endif /* HVT_ELEMENTWISE_H */
