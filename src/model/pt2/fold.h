/*
 * fold.h - arrays of numbers that are known when a file is read, and of elements of a tensor that are
 * followed through operations, shared by the passes that need them. One function evaluates each operation
 * over strided arrays (evaluate.c); fold.c computes all constants with it, rotary.c follows the elements of
 * queries and keys.
 */
#ifndef HVT_PT2_FOLD_H
#define HVT_PT2_FOLD_H

#include "graph.h"

enum { PT2_ELEMENTS = 1 << 24 }; /* of all arrays of a file */

/* A sum of at most two elements of a tensor, times numbers; at -1: none. */
typedef struct pt2_term {
    int32_t at[2];
    float times[2];
} pt2_term;

/* Elements of dimensions whose stride is 0 are alike and stored once. */
struct pt2_array {
    int ndim;
    int64_t size[PT2_DIMS], stride[PT2_DIMS], first;
    double *number; /* NULL: 0 */
    pt2_term *term; /* NULL: none; added to the number */
    /* The value that the terms are elements of. With `table` they index it. `sigmoid` applies to the element,
     * then a factor `gain`, unless it is 0. */
    pt2_value *of;
    bool table, sigmoid;
    double gain;
};

/* The next place in an array of these sizes; false: there is none. */
bool hvt__array_next(int n, const int64_t *size, int64_t *at);
/* Walks through all places `at`. */
#define PT2_EACH(n, size, at)                                                                                \
    for (int64_t at[PT2_DIMS] = {0}, at##_is = hvt__pt2_count(n, size) > 0; at##_is;                         \
         at##_is = hvt__array_next(n, size, at))
/* Where the element is at this place of n dimensions, to which x is repeated. */
int64_t hvt__array_element(const pt2_array *x, int n, const int64_t *at);
bool hvt__array_repeats(const pt2_array *x, int n, const int64_t *size);
/* A new one; in dimensions that are `shared` (NULL: none) elements are alike. Refuses node n if there would
 * be too many. */
pt2_array *hvt__array_new(pt2_graph *g, pt2_node *n, int ndim, const int64_t *size, const bool *shared,
                          bool terms);
/* What node n makes of the arrays of its inputs; NULL: that is not known. hvt__pt2_follow() refuses nothing.
 */
pt2_array *hvt__pt2_evaluate(pt2_graph *g, pt2_node *n);
pt2_array *hvt__pt2_follow(pt2_graph *g, pt2_node *n);
/* The array of a value, for node n; NULL: it is no constant. */
const pt2_array *hvt__array_of(pt2_graph *g, pt2_node *n, pt2_value *v);
/* The same, if it consists of numbers alone. */
const pt2_array *hvt__array_numbers_of(pt2_graph *g, pt2_node *n, pt2_value *v);

/* ---- arrays.c, for the evaluator ---- */

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

/* evaluate_moves.c: operations that move elements. Each computes the array of its node's output from those of
 * the inputs; NULL: it cannot. */
typedef pt2_array *pt2_move(pt2_graph *g, pt2_node *n, const pt2_array *const *in);
extern pt2_move *const hvt__pt2_moves[PT2_OP_COUNT];

#endif /* HVT_PT2_FOLD_H */
