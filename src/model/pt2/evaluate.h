/*
 * evaluate.h - the evaluator's operations. Each computes the array of its node's output from those of the
 * inputs. NULL: it cannot.
 */
#ifndef HVT_PT2_EVALUATE_H
#define HVT_PT2_EVALUATE_H

#include "fold.h"

/* ---- arrays.c ---- */

double hvt__array_number(const pt2_array *x, int n, const int64_t *at);
/* Refuses the node if x has elements of a tensor. */
const pt2_array *hvt__array_only_numbers(pt2_graph *g, pt2_node *n, const pt2_array *x);
/* A new array for the output of n; dimensions in which all inputs are alike are stored once, but for `own`.
 * The sizes that its loop has are put into ret_loop. */
pt2_array *hvt__array_output(pt2_graph *g, pt2_node *n, int count, const pt2_array *const *x, int own,
                             bool terms, int64_t *ret_loop);
double hvt__array_as_type(pt2_graph *g, pt2_node *n, int type, double x);
/* All numbers of x as those of the output's type. */
pt2_array *hvt__array_typed(pt2_graph *g, pt2_node *n, pt2_array *x, const int64_t *loop);
pt2_array *hvt__array_like(pt2_graph *g, const pt2_array *x);
/* An element of x goes to that of y at these places. */
void hvt__array_move(const pt2_array *x, int64_t from, pt2_array *y, int64_t to);

/* ---- evaluate_moves.c, evaluate_math.c ---- */

pt2_array *hvt__evaluate_view(pt2_graph *g, pt2_node *n, const pt2_array *const *in);
pt2_array *hvt__evaluate_expand(pt2_graph *g, pt2_node *n, const pt2_array *const *in);
pt2_array *hvt__evaluate_permute(pt2_graph *g, pt2_node *n, const pt2_array *const *in);
pt2_array *hvt__evaluate_slice(pt2_graph *g, pt2_node *n, const pt2_array *const *in);
pt2_array *hvt__evaluate_moved(pt2_graph *g, pt2_node *n, const pt2_array *const *in);
pt2_array *hvt__evaluate_cumulate(pt2_graph *g, pt2_node *n, const pt2_array *const *in);
pt2_array *hvt__evaluate_cat(pt2_graph *g, pt2_node *n, const pt2_array *const *in);
pt2_array *hvt__evaluate_put(pt2_graph *g, pt2_node *n, const pt2_array *const *in);
pt2_array *hvt__evaluate_full(pt2_graph *g, pt2_node *n, const pt2_array *const *in);
pt2_array *hvt__evaluate_mapped(pt2_graph *g, pt2_node *n, const pt2_array *const *in);
pt2_array *hvt__evaluate_binary(pt2_graph *g, pt2_node *n, const pt2_array *const *in);
pt2_array *hvt__evaluate_choose(pt2_graph *g, pt2_node *n, const pt2_array *const *in);
pt2_array *hvt__evaluate_take(pt2_graph *g, pt2_node *n, const pt2_array *const *in);

#endif /* HVT_PT2_EVALUATE_H */
