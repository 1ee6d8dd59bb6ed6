/*
 * Tensors that share memory. In PyTorch a view is a part of another tensor's memory, and an in-place
 * operation changes every tensor that shares it. This graph writes each value once: an in-place operation
 * makes a new value, and the next read of a view computes that view again.
 */
#include "canon.h"

typedef struct pt2_memory_of {
    pt2_value *base; /* the tensor that owns the memory */
    pt2_value *is;   /* the tensor that this is another name of; NULL: it has its own value */
    int version;     /* the memory's version when `now` was computed */
    pt2_value *now;
    int newest; /* in a base: the current version of its memory */
} memory_of;

static memory_of *memory(pt2_graph *g, pt2_value *v)
{
    if (!v->alias) {
        v->alias = hvt__pt2_make(g, sizeof *v->alias);
        v->alias->base = v->alias->now = v;
    }
    return v->alias;
}

static pt2_value *identity(pt2_value *v)
{
    while (v->alias && v->alias->is)
        v = v->alias->is;
    return v;
}

pt2_value *hvt__alias_base(pt2_value *x)
{
    x = identity(x);
    return x->alias ? x->alias->base : x;
}

pt2_value *hvt__alias_now(pt2_graph *g, pt2_node *at, pt2_value *v)
{
    memory_of *a, *of;

    v = identity(v);
    a = v->alias;
    if (!a)
        return v;
    of = a->base->alias;
    if (a->version != of->newest) { /* a base is always up to date */
        pt2_value *in = hvt__alias_now(g, at, v->producer->in[0]);
        const pt2_node *n = v->producer;

        a->now = hvt__pt2_compute(g, at, n, n->op, &n->is, 1, &in, v);
        a->now->name = v->name;
        a->version = of->newest;
        hvt__alias_is_same(g, a->now, v);
    }
    return a->now;
}

void hvt__alias_is_same(pt2_graph *g, pt2_value *name, pt2_value *v)
{
    memory(g, identity(v));
    memory(g, name)->is = identity(v);
}

void hvt__alias_is_view(pt2_graph *g, pt2_value *view)
{
    pt2_value *base = hvt__alias_base(view->producer->in[0]);
    memory_of *a = memory(g, view);

    a->base = base;
    a->version = memory(g, base)->newest;
}

/* Returns a copy of `of` in which v replaces the part that x views. It is computed after operation n. */
static pt2_value *put_back(pt2_graph *g, pt2_node *n, pt2_node *at, pt2_value *x, pt2_value *of, pt2_value *v)
{
    const pt2_node *view = x->producer;
    pt2_attributes is = view->is;
    pt2_value *both[2];

    if (view->op == PT2_VIEW)
        return hvt__pt2_compute(g, at, n, PT2_VIEW, NULL, 1, &v, of);
    if (view->op == PT2_PERMUTE) {
        for (int i = 0; i < view->is.dims.n; i++)
            is.dims.dim[view->is.dims.dim[i]] = i;
        return hvt__pt2_compute(g, at, n, PT2_PERMUTE, &is, 1, &v, of);
    }
    both[0] = hvt__alias_now(g, at, of), both[1] = v;
    if (view->op == PT2_SLICE)
        return hvt__pt2_compute(g, at, n, PT2_PUT, &is, 2, both, of);
    return hvt__pt2_compute(g, at, view, PT2_UNKNOWN, NULL, 2, both, of);
}

void hvt__alias_changes(pt2_graph *g, pt2_node *n, pt2_value *x, pt2_value *v)
{
    pt2_node *at = n->after; /* where the nodes that propagate the change go */
    pt2_value *base, *part, *made = v;
    memory_of *of;

    x = identity(x);
    base = hvt__alias_base(x);
    of = memory(g, base);
    for (part = x; part != base;) {
        pt2_value *whole = identity(part->producer->in[0]);

        made = put_back(g, n, at, part, whole, made);
        part = whole;
    }
    if (made != v)
        memory(g, made)->is = base;
    of->now = made;
    of->version = ++of->newest;
    memory(g, x)->now = v;
    x->alias->version = of->newest;
    for (int i = 0; i < n->nout; i++)
        if (n->out[i] != x)
            memory(g, n->out[i])->is = x;
}
