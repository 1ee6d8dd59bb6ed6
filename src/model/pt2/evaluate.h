/*
 * evaluate.h - the evaluator's arrays and operations. Each operation computes the array of its node's output
 * from those of the inputs. NULL: it cannot.
 */
#ifndef HVT_PT2_EVALUATE_H
#define HVT_PT2_EVALUATE_H

#include "fold.h"

/* ---- arrays.c ---- */

double hvt__array_number(const pt2_array *x, int n, const int64_t *at);
/* Refuses the node if x, which may be NULL, has elements of a tensor. */
const pt2_array *hvt__array_only_numbers(pt2_graph *g, pt2_node *n, const pt2_array *x);
/* A new array for the output of n; dimensions in which all inputs are alike are stored once, but for those of
 * the set `own`. The sizes that its loop has are put into ret_loop. */
pt2_array *hvt__array_output(pt2_graph *g, pt2_node *n, int count, const pt2_array *const *x, unsigned own,
                             bool terms, int64_t *ret_loop);
double hvt__array_as_type(pt2_graph *g, pt2_node *n, int type, double x);
/* All numbers of x as those of the output's type. */
pt2_array *hvt__array_typed(pt2_graph *g, pt2_node *n, pt2_array *x, const int64_t *loop);
/* The same array; a new one of other sizes for elements of x. */
pt2_array *hvt__array_like(pt2_graph *g, const pt2_array *x);
pt2_array *hvt__array_new_like(pt2_graph *g, pt2_node *n, const pt2_array *x, int ndim, const int64_t *size);
/* An element of x goes to that of y at these places. */
void hvt__array_move(const pt2_array *x, int64_t from, pt2_array *y, int64_t to);

/* ---- evaluate_moves.c ---- */

/* The operation that moves elements; NULL: n moves none. */
typedef pt2_array *pt2_move(pt2_graph *g, pt2_node *n, const pt2_array *const *in);
extern pt2_move *const hvt__pt2_moves[PT2_OP_COUNT];

#endif /* HVT_PT2_EVALUATE_H */
