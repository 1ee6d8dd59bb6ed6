/* winograd.h - rows of tiles, shared by the passes of Winograd convolutions (winograd.c) and their backward
 * weights (winograd_dw.c). */
#ifndef HVT_WINOGRAD_H
#define HVT_WINOGRAD_H

#include "conv_impl.h"

static const hvt_entry one_entry = {0, 0}; /* a plain GEMM is a batch of one entry */
enum { LEAST_ROWS = 56 };                  /* minimum of a block: whole tiles of 14 */

/* Round up to an odd number of lines of 16 floats: otherwise the matrices of different points would map to
 * the same cache sets. */
static inline size_t lines(size_t floats)
{
    return ((floats + 15) / 16 | 1) * 16;
}

/* Returns the number of points of a transformed tile. */
static inline int points(const conv_op *op)
{
    return (op->algorithm->tile + 2) * (op->algorithm->tile + 2);
}

static inline size_t u_floats(const conv_op *op, int channels, int columns)
{
    return (size_t)(conv_panels(columns) * points(op)) * (size_t)channels * CONV_PANEL;
}

typedef struct plane {
    const void *at;
    long pixel, image; /* strides in elements */
    int h, w, c;
} plane;

/* A pass of a Winograd convolution, from planes of one size to planes of another. */
typedef struct pass {
    const conv_op *op;
    plane from, to;
    int m, points, pad, images, across, tiles, rows; /* tiles per line; tiles per image; tiles * images */
    bool by_tile; /* order of rows: the images of each tile; else the tiles of each image */
    bool back, add;

    const void *w;
    float *u;       /* transformed w */
    float *scratch; /* scratch_floats for each thread */
    long scratch_floats;
    int block; /* rows */
    long v_next, m_next;
    int pieces, column_parts; /* pieces of all rows, parts of the columns of a point */
    int each;                 /* channels of a filter_job */
} pass;

/* Rows at a constant stride: the images of a tile, or neighbouring tiles of a line. */
typedef struct run {
    int y, x, image, count; /* y, x: of the outputs; image: of the first row */
} run;

/* A GEMM operand for transformed rows, in panels of w columns. */
typedef struct matrix {
    float *at;
    int w, pitch;
    long panel, next;
} matrix;

pass hvt__winograd_pass(const conv_op *op, bool back, int real, const void *from, const void *to);
run hvt__winograd_run(const pass *g, int row, int end);
/* Sets the addresses of the first row's size x size pixels at (y, x); NULL outside the image. */
void hvt__winograd_pixels(const conv_op *op, const plane *p, int image, int y, int x, int size, void **out);
static inline long row_step(const pass *g, const plane *p)
{
    return g->by_tile ? p->image : g->m * p->pixel;
}

/* Transform rows [row, end) of a plane (inputs, or gradients of outputs) into the matrices `to`, one per
 * point, whose row 0 is `row`. */
void hvt__winograd_transform(const pass *g, const plane *p, bool grad, int row, int end, matrix to);

/* ws: hvt__winograd_dw_bytes() */
void hvt__winograd_backward_w(const conv_op *op, int real, const void *x, const void *dy, float *dw,
                              void *ws);
size_t hvt__winograd_dw_bytes(const conv_op *op);

#endif /* HVT_WINOGRAD_H */
