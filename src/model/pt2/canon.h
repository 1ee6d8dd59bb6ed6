/*
 * canon.h - the pass that maps ATen operations to those of graph.h: reading arguments (arguments.c), tensors
 * that share memory (alias.c), and the tables (canon_*.c).
 */
#ifndef HVT_PT2_CANON_H
#define HVT_PT2_CANON_H

#include "graph.h"

/* ---- arguments.c: a wrong argument refuses the node ---- */

/* The argument of this name, or `otherwise` if it is omitted; without a name always `otherwise`. */
typedef struct pt2_operand {
    const char *argument;
    double otherwise;
} pt2_operand;

const pt2_arg *hvt__arg(const pt2_node *n, const char *name); /* NULL: omitted */
int hvt__arg_int(pt2_graph *g, pt2_node *n, const char *name, int otherwise);
/* Accepts integers, too. */
double hvt__arg_float(pt2_graph *g, pt2_node *n, const char *name, double otherwise);
double hvt__arg_operand(pt2_graph *g, pt2_node *n, const pt2_operand *of);
bool hvt__arg_bool(pt2_graph *g, pt2_node *n, const char *name, bool otherwise);
const char *hvt__arg_string(pt2_graph *g, pt2_node *n, const char *name, const char *otherwise);
/* Reads `count` integers, or one for all of them. Leaves ret_x unchanged if the argument is omitted or empty.
 */
void hvt__arg_ints(pt2_graph *g, pt2_node *n, const char *name, int count, int *ret_x);
/* Reads a list of at most `most` integers, and returns how many. */
int hvt__arg_list(pt2_graph *g, pt2_node *n, const char *name, int most, int *ret_x);
/* An integer that may be as large as PyTorch writes "to the end". */
int64_t hvt__arg_long(pt2_graph *g, pt2_node *n, const char *name, int64_t otherwise);
/* A dimension below `ndim`; a negative one counts from the end. */
int hvt__arg_dim(pt2_graph *g, pt2_node *n, const char *name, int otherwise, int ndim);
int hvt__dim(pt2_graph *g, pt2_node *n, int dim, int ndim);

/* The current value of a tensor argument; NULL: omitted. */
pt2_value *hvt__canon_tensor(pt2_graph *g, pt2_node *n, const char *name);
/* The same for a required argument, and for the first one (self or input). */
pt2_value *hvt__canon_given(pt2_graph *g, pt2_node *n, const char *name);
pt2_value *hvt__canon_first(pt2_graph *g, pt2_node *n);
/* Reads a list of tensors, and returns how many. */
int hvt__canon_tensors(pt2_graph *g, pt2_node *n, const char *name, pt2_value ***ret);

/* Turns n into an operation on its first argument alone. */
void hvt__canon_unary(pt2_graph *g, pt2_node *n, pt2_op op, pt2_attributes is);
/* Inserts an operation before n, and returns its output, which has the sizes of n's output. */
pt2_value *hvt__canon_before(pt2_graph *g, pt2_node *n, pt2_op op, pt2_attributes is, int count,
                             pt2_value *const *in);

/* ---- alias.c ---- */

/* The current value of tensor v, after in-place operations. Inserts new nodes before `at`. */
pt2_value *hvt__alias_now(pt2_graph *g, pt2_node *at, pt2_value *v);
/* Records that `name` is another name of tensor v. */
void hvt__alias_is_same(pt2_graph *g, pt2_value *name, pt2_value *v);
/* Records that `view` shares the memory of its producer's first input. */
void hvt__alias_is_view(pt2_graph *g, pt2_value *view);
/* Records that the in-place operation n turned tensor x into v. */
void hvt__alias_changes(pt2_graph *g, pt2_node *n, pt2_value *x, pt2_value *v);
/* The tensor that owns x's memory. */
pt2_value *hvt__alias_base(pt2_value *x);

/* ---- the tables ---- */

typedef struct pt2_row {
    /* Overloads: "mul.Tensor mul.Scalar", without "aten.", ".default" and the _ of operations in place. */
    const char *names;
    void (*fill)(pt2_graph *g, pt2_node *n, const struct pt2_row *r);
    int of;           /* the function, or whatever distinguishes the operations that share `fill` */
    pt2_operand a, b; /* the function's parameters */
} pt2_row;

typedef struct pt2_rows {
    const pt2_row *row;
    size_t count;
} pt2_rows;
extern const pt2_rows hvt__pt2_layer_rows, hvt__pt2_math_rows, hvt__pt2_shape_rows;

/* Fills in an interpolation. r NULL: a mode that is supported only where it copies. */
void hvt__canon_upsample(pt2_graph *g, pt2_node *n, const pt2_row *r);

#endif /* HVT_PT2_CANON_H */
