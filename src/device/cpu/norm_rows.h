/*
 * norm_rows.h - computes a batch norm for some rows, for readers of a norm whose output is not stored. In
 * matrix.c.
 *
 * Included by matrix.c and conv/conv_impl.h. Nothing else.
 */
#ifndef HVT_NORM_ROWS_H
#define HVT_NORM_ROWS_H

#include "elementwise.h"

/* Computes y of a batch norm, in training or inference, for `rows` rows of columns [col, col + cols), from
 * x's element `at` on, with its relu and map but without its residual. Rows of x and of out are `ld` elements
 * apart. scale: gamma * rstd. */
void hvt__bn_rows(const hvt_bn_args *a, const hvt_typed *in, const float *scale, size_t at, int rows, int col,
                  int cols, int ld, void *out);

#endif /* HVT_NORM_ROWS_H */
