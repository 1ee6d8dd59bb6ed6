/*
 * What the rows of the tables are made of: tensors that an operation reads, as they are now, and the node
 * that it becomes.
 */
#include "canon.h"

/* An argument that is a tensor; NULL: it is left out. */
pt2_value *hvt__canon_tensor(pt2_graph *g, pt2_node *n, const char *name)
{
    const pt2_arg *x = hvt__arg(n, name);

    if (x && strcmp(x->kind, "as_tensor") != 0)
        hvt__pt2_refuse(g, n, "its argument %s is %s, not as_tensor", name, x->kind);
    return x && x->value && x->value[0] && !g->failed ? hvt__alias_now(g, n, x->value[0]) : NULL;
}

/* PyTorch calls its first argument self or input. */
pt2_value *hvt__canon_first(pt2_graph *g, pt2_node *n)
{
    const char *name = hvt__arg(n, "input") ? "input" : "self";
    pt2_value *x = hvt__canon_tensor(g, n, name);

    if (!x)
        hvt__pt2_refuse(g, n, "it has no argument %s", name);
    return x;
}

/* The tensors of a list; how many. */
int hvt__canon_tensors(pt2_graph *g, pt2_node *n, const char *name, pt2_value ***ret)
{
    const pt2_arg *x = hvt__arg(n, name);
    const int count = x && x->value ? x->n : 0;

    *ret = hvt__pt2_make(g, (size_t)(count + 1) * sizeof(pt2_value *));
    for (int i = 0; i < count; i++)
        (*ret)[i] = x->value[i] ? hvt__alias_now(g, n, x->value[i]) : NULL;
    if (!count)
        hvt__pt2_refuse(g, n, "it has no tensors");
    return count;
}

void hvt__canon_set(pt2_graph *g, pt2_node *n, pt2_op op, int count, pt2_value *const *in)
{
    if (g->failed)
        return;
    n->op = op;
    hvt__pt2_inputs(g, n, count, in);
}

void hvt__canon_unary(pt2_graph *g, pt2_node *n, pt2_op op)
{
    pt2_value *x = hvt__canon_first(g, n);

    hvt__canon_set(g, n, op, 1, &x);
}

/* An operation before n that computes like its output. */
pt2_value *hvt__canon_before(pt2_graph *g, pt2_node *n, pt2_op op, pt2_attributes is, int count,
                             pt2_value *const *in)
{
    return hvt__pt2_compute(g, n, n, op, &is, count, in, n->nout ? n->out[0] : NULL);
}
