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
/* What node n makes of the arrays of its inputs; NULL: that is not known. With g->traces nothing is refused.
 */
pt2_array *hvt__pt2_evaluate(pt2_graph *g, pt2_node *n);
/* The array of a value, for node n; NULL: it is no constant. */
const pt2_array *hvt__array_of(pt2_graph *g, pt2_node *n, pt2_value *v);
/* The same, if it consists of numbers alone. */
const pt2_array *hvt__array_numbers_of(pt2_graph *g, pt2_node *n, pt2_value *v);

#endif /* HVT_PT2_FOLD_H */
