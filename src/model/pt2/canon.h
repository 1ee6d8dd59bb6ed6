/*
 * canon.h - from PyTorch's operations to those of graph.h: arguments as the file has them (arguments.c),
 * memory that several tensors share (alias.c), and the tables, whose functions call both.
 */
#ifndef HVT_PT2_CANON_H
#define HVT_PT2_CANON_H

#include "graph.h"

/* ---- arguments.c: a wrong one refuses the node ---- */

/* The argument of this name, or `otherwise` where it is left out; no name: always that. */
typedef struct pt2_operand {
    const char *argument;
    double otherwise;
} pt2_operand;

const pt2_arg *hvt__arg(const pt2_node *n, const char *name); /* NULL: it is left out */
int hvt__arg_int(pt2_graph *g, pt2_node *n, const char *name, int otherwise);
/* Also of whole numbers. */
double hvt__arg_float(pt2_graph *g, pt2_node *n, const char *name, double otherwise);
double hvt__arg_operand(pt2_graph *g, pt2_node *n, const pt2_operand *of);
bool hvt__arg_bool(pt2_graph *g, pt2_node *n, const char *name, bool otherwise);
const char *hvt__arg_string(pt2_graph *g, pt2_node *n, const char *name, const char *otherwise);
/* count of them; one stands for all. Left out or empty: ret_x is not changed. */
void hvt__arg_ints(pt2_graph *g, pt2_node *n, const char *name, int count, int *ret_x);
/* A list of at most `most` integers: how many. */
int hvt__arg_list(pt2_graph *g, pt2_node *n, const char *name, int most, int *ret_x);
/* An integer that may be as large as PyTorch writes "to the end". */
int64_t hvt__arg_long(pt2_graph *g, pt2_node *n, const char *name, int64_t otherwise);
/* A dimension, counted from the end if negative, of `ndim`. */
int hvt__arg_dim(pt2_graph *g, pt2_node *n, const char *name, int otherwise, int ndim);
int hvt__dim(pt2_graph *g, pt2_node *n, int dim, int ndim);

/* An argument that is a tensor, as it is now; NULL: it is left out. */
pt2_value *hvt__canon_tensor(pt2_graph *g, pt2_node *n, const char *name);
/* One that must be given; the first one, which PyTorch calls self or input. */
pt2_value *hvt__canon_given(pt2_graph *g, pt2_node *n, const char *name);
pt2_value *hvt__canon_first(pt2_graph *g, pt2_node *n);
/* The tensors of a list; how many. */
int hvt__canon_tensors(pt2_graph *g, pt2_node *n, const char *name, pt2_value ***ret);

/* n becomes an operation of its first argument alone. */
void hvt__canon_unary(pt2_graph *g, pt2_node *n, pt2_op op, pt2_attributes is);
/* The output of a new operation before n, of the sizes of n's output. */
pt2_value *hvt__canon_before(pt2_graph *g, pt2_node *n, pt2_op op, pt2_attributes is, int count,
                             pt2_value *const *in);

/* ---- alias.c ---- */

/* What v is now, after operations in place; new nodes are put before `at`. */
pt2_value *hvt__alias_now(pt2_graph *g, pt2_node *at, pt2_value *v);
/* `name` is the same tensor as v. */
void hvt__alias_is_same(pt2_graph *g, pt2_value *name, pt2_value *v);
/* `view`, which its producer makes of its first input, is a part of that one's memory. */
void hvt__alias_is_view(pt2_graph *g, pt2_value *view);
/* The operation in place `n` has made v of the tensor x. */
void hvt__alias_changes(pt2_graph *g, pt2_node *n, pt2_value *x, pt2_value *v);
/* The tensor whose memory x is a part of. */
pt2_value *hvt__alias_base(pt2_value *x);

/* ---- the tables ---- */

typedef struct pt2_row {
    /* Overloads: "mul.Tensor mul.Scalar", without "aten.", ".default" and the _ of operations in place. */
    const char *names;
    void (*fill)(pt2_graph *g, pt2_node *n, const struct pt2_row *r);
    int of;           /* the function, or what else the operations of one `fill` differ in */
    pt2_operand a, b; /* of a function */
} pt2_row;

typedef struct pt2_rows {
    const pt2_row *row;
    size_t count;
} pt2_rows;
extern const pt2_rows hvt__pt2_layer_rows, hvt__pt2_math_rows, hvt__pt2_shape_rows;

/* Interpolation; r NULL: of another mode, which is known only where it copies. */
void hvt__canon_upsample(pt2_graph *g, pt2_node *n, const pt2_row *r);

#endif /* HVT_PT2_CANON_H */
