/*
 * fold.h - constant arrays, and arrays that record from which elements of a tensor theirs are computed. One
 * function evaluates each operation on either (evaluate.c, evaluate_moves.c). fold.c computes constants with
 * it; pattern_rotary.c traces the elements of queries and keys.
 */
#ifndef HVT_PT2_FOLD_H
#define HVT_PT2_FOLD_H

#include "graph.h"

enum { PT2_ELEMENTS = 1 << 24 }; /* limit for all arrays of a file */

/* A weighted sum of at most two elements of a tensor; at = -1: none. */
typedef struct pt2_term {
    int32_t at[2];
    float times[2];
} pt2_term;

/* A strided array. Stride 0 stores the equal elements of a dimension once. */
struct pt2_array {
    int ndim;
    int64_t size[PT2_DIMS], stride[PT2_DIMS], first;
    double *number; /* NULL: 0 */
    pt2_term *term; /* added to the number; NULL: none */
    /* The value whose elements the terms are; with `table`, elements are indices into it. An element stands
     * for its sigmoid if `sigmoid`, times `gain` unless that is 0. */
    pt2_value *of;
    bool table, sigmoid;
    double gain;
};

/* Advances to the next index in an array of these sizes. False at the end. */
bool hvt__array_next(int n, const int64_t *size, int64_t *at);
/* Loops over all indices `at`. */
#define PT2_EACH(n, size, at)                                                                                \
    for (int64_t at[PT2_DIMS] = {0}, at##_is = hvt__pt2_count(n, size) > 0; at##_is;                         \
         at##_is = hvt__array_next(n, size, at))
/* The offset of the element at this index of n dimensions, to which x is broadcast. */
int64_t hvt__array_element(const pt2_array *x, int n, const int64_t *at);
/* True if x broadcasts to these sizes. */
bool hvt__array_repeats(const pt2_array *x, int n, const int64_t *size);
/* A new array, with stride 0 in the dimensions that are `shared` (NULL: none). Refuses node n if the arrays
 * of the file get too large. */
pt2_array *hvt__array_new(pt2_graph *g, pt2_node *n, int ndim, const int64_t *size, const bool *shared,
                          bool terms);
/* Evaluates node n on the arrays of its inputs. NULL if they are not constant; hvt__pt2_follow() also returns
 * NULL where hvt__pt2_evaluate() refuses the node. */
pt2_array *hvt__pt2_evaluate(pt2_graph *g, pt2_node *n);
pt2_array *hvt__pt2_follow(pt2_graph *g, pt2_node *n);
/* The array of a value that node n reads; NULL: not constant. */
const pt2_array *hvt__array_of(pt2_graph *g, pt2_node *n, pt2_value *v);
/* The same; NULL also if it has elements of a tensor. */
const pt2_array *hvt__array_numbers_of(pt2_graph *g, pt2_node *n, pt2_value *v);

/* ---- arrays.c, for the evaluator ---- */

double hvt__array_number(const pt2_array *x, int n, const int64_t *at);
/* Refuses the node if x, which may be NULL, has elements of a tensor. */
const pt2_array *hvt__array_only_numbers(pt2_graph *g, pt2_node *n, const pt2_array *x);
/* A new array for the output of n. Dimensions in which all inputs have stride 0 get it too, except those in
 * the set `own`. ret_loop: the sizes to loop over. */
pt2_array *hvt__array_output(pt2_graph *g, pt2_node *n, int count, const pt2_array *const *x, unsigned own,
                             bool terms, int64_t *ret_loop);
double hvt__array_as_type(pt2_graph *g, pt2_node *n, int type, double x);
/* Converts all numbers of x to the output's type. */
pt2_array *hvt__array_typed(pt2_graph *g, pt2_node *n, pt2_array *x, const int64_t *loop);
/* A second view of x's elements, and a new array of other sizes for elements of x. */
pt2_array *hvt__array_like(pt2_graph *g, const pt2_array *x);
pt2_array *hvt__array_new_like(pt2_graph *g, pt2_node *n, const pt2_array *x, int ndim, const int64_t *size);
/* Copies an element of x to y, at these offsets. */
void hvt__array_move(const pt2_array *x, int64_t from, pt2_array *y, int64_t to);

/* evaluate_moves.c: operations that move elements. Each returns the array of the node's output; NULL: not
 * constant. */
typedef pt2_array *pt2_move(pt2_graph *g, pt2_node *n, const pt2_array *const *in);
extern pt2_move *const hvt__pt2_moves[PT2_OP_COUNT];

#endif /* HVT_PT2_FOLD_H */
