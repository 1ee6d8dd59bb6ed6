/*
 * One evaluator of operations over strided arrays, of numbers and of elements that are followed: the table,
 * the arrays of its inputs, and the numbers of buffers.
 */
#include "pt2_impl.h"

#include "evaluate.h"

enum { INPUTS = 64 };

static pt2_array *(*const table[PT2_OP_COUNT])(pt2_graph *, pt2_node *, const pt2_array *const *) = {
    [PT2_VIEW] = hvt__evaluate_view,       [PT2_EXPAND] = hvt__evaluate_expand,
    [PT2_PERMUTE] = hvt__evaluate_permute, [PT2_SLICE] = hvt__evaluate_slice,
    [PT2_REPEAT] = hvt__evaluate_moved,    [PT2_ROLL] = hvt__evaluate_moved,
    [PT2_CUMSUM] = hvt__evaluate_cumulate, [PT2_CAT] = hvt__evaluate_cat,
    [PT2_PUT] = hvt__evaluate_put,         [PT2_FULL] = hvt__evaluate_full,
    [PT2_ARANGE] = hvt__evaluate_full,     [PT2_MAP] = hvt__evaluate_mapped,
    [PT2_CAST] = hvt__evaluate_mapped,     [PT2_NOT] = hvt__evaluate_mapped,
    [PT2_TRIANGLE] = hvt__evaluate_mapped, [PT2_BINARY] = hvt__evaluate_binary,
    [PT2_WHERE] = hvt__evaluate_choose,    [PT2_INDEX] = hvt__evaluate_take,
};

pt2_array *hvt__pt2_evaluate(pt2_graph *g, pt2_node *n)
{
    const pt2_array *in[INPUTS] = {NULL};

    if (!table[n->op] || n->nin > INPUTS)
        return NULL;
    for (int i = 0; i < n->nin; i++)
        if (n->in[i])
            in[i] = n->in[i]->trace ? n->in[i]->trace : hvt__array_of(g, n, n->in[i]);
    return table[n->op](g, n, in);
}

/* ---- arrays of values ---- */

static pt2_array *read_buffer(pt2_graph *g, pt2_node *n, pt2_value *v)
{
    const bool traces = g->traces;
    pt2_array *x;

    g->traces = false; /* this is told in any case */
    if (v->ndim < 0)
        hvt__pt2_refuse(g, n, "%s has no sizes, or more than %d dimensions", v->state, PT2_DIMS);
    x = hvt__array_new(g, n, v->ndim, v->size, NULL, false);
    if (hvt__pt2_read_buffer(g->file, v->state, hvt__pt2_count(v->ndim, v->size), x->number) != HVT_OK) {
        const size_t path = strlen(g->path) + 2; /* the message names it, too */

        hvt__pt2_refuse(g, n, "%s",
                        hvt_last_error() + (strncmp(hvt_last_error(), g->path, path - 2) ? 0 : path));
    }
    g->traces = traces;
    v->read = true;
    return x;
}

const pt2_array *hvt__array_of(pt2_graph *g, pt2_node *n, pt2_value *v)
{
    if (v->array || !v->constant)
        return v->array;
    v->array = v->source == PT2_BUFFER ? read_buffer(g, n, v)
               : v->producer           ? hvt__pt2_evaluate(g, v->producer)
                                       : NULL;
    return v->array;
}

const pt2_array *hvt__array_numbers_of(pt2_graph *g, pt2_node *n, pt2_value *v)
{
    const pt2_array *x = hvt__array_of(g, n, v);

    return x && !x->term ? x : NULL;
}
