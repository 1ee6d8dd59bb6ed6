/*
 * matmul.h - products of matrices of floats in a thread's scratch, by the convolutions' microkernels.
 *
 * Included by src/device/cpu/{matmul,attention}.c. Nothing else.
 */
#ifndef HVT_CPU_MATMUL_H
#define HVT_CPU_MATMUL_H

#include "cpu_impl.h"
#include "elementwise.h"

/* A matrix of floats: rows `step` apart, or panels of HVT_PANEL columns, each [rows][HVT_PANEL], `step`
 * apart. */
typedef struct hvt_floats {
    float *at;
    size_t step;
    bool panels;
} hvt_floats;

static inline size_t hvt__up(size_t n, int to)
{
    return (n + (size_t)to - 1) / (size_t)to * (size_t)to;
}

/* Allocate [rows][cols] from base, which may be NULL to count floats. Whole vectors of a row may be read and
 * written. */
static inline hvt_floats hvt__take_floats(float *base, size_t *taken, size_t rows, size_t cols)
{
    hvt_floats f = {base ? base + *taken : NULL, hvt__up(cols, HVT_PANEL), false};

    *taken += rows * f.step;
    return f;
}

/* The same for a transposed matrix. */
static inline hvt_floats hvt__take_panels(float *base, size_t *taken, size_t rows, size_t cols)
{
    hvt_floats f = {base ? base + *taken : NULL, rows * HVT_PANEL, true};

    *taken += hvt__up(cols, HVT_PANEL) * rows;
    return f;
}

/* C [m,n] (+)= A B, with A [m,k], or [k,m] if transposed. Whole vectors of C are written. each(ctx) is called
 * after each tile, unless NULL. */
void hvt__multiply(const hvt_conv_kernels *kernels, int m, int n, int k, const hvt_floats *a, bool transposed,
                   const hvt_floats *b, const hvt_floats *c, bool add, void (*each)(void *ctx), void *ctx);

/* Row i of a matrix, from column `col` on. */
typedef const void *hvt_rows_fn(const void *ctx, int i, int col);
/* Writes the transpose of [rows][cols] as floats into panels that hvt__take_panels() has allocated with
 * `cols` rows. */
void hvt__widen_transposed(const hvt_conv_kernels *kernels, const hvt_typed *in, int rows, int cols,
                           hvt_rows_fn *row, const void *ctx, float (*scratch)[HVT_PANEL],
                           const hvt_floats *to);

#endif /* HVT_CPU_MATMUL_H */
