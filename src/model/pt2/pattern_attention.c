/*
 * Matches attention, either as one operation or as a product of queries and keys, its softmax, and the
 * product of that and the values. Both become one node whose inputs are queries, keys, values, a factor
 * per head, and the tables whose elements are added to the scores.
 */
#include "patterns.h"

#include "fold.h"

/* Collects a term added to the scores `to`: numbers, or elements of a table, which becomes an input. */
static bool add(pt2_graph *g, pt2_node *by, pt2_value *what, int ndim, const int64_t *size, pt2_match *ret)
{
    const pt2_array *x = hvt__array_of(g, by, what);
    const int at = ret->is.attention.nadded;
    pt2_addition *a = &ret->is.attention.added[at];

    if (!x)
        return false;
    if (at == PT2_ADDITIONS)
        hvt__pt2_refuse(g, by, "more than %d tensors are added to attention's scores", PT2_ADDITIONS);
    if (ndim < 0 || !hvt__array_repeats(x, ndim, size))
        hvt__pt2_refuse(g, by, "the tensor added to attention's scores has a different size");
    *a = (pt2_addition){.value = what, .ndim = ndim};
    memcpy(a->size, size, (size_t)ndim * sizeof *size);
    ret->in[4 + at] = x->of;
    ret->nin = 4 + ++ret->is.attention.nadded;
    return true;
}

bool hvt__pt2_match_sdpa(pt2_graph *g, pt2_node *n, pt2_match *ret)
{
    const pt2_value *q = n->in[0], *k = n->in[1];
    const int ndim = q->ndim;
    int64_t size[PT2_DIMS];

    memcpy(ret->in, n->in, 3 * sizeof *ret->in);
    ret->nin = 4;
    ret->is.attention.scale = n->is.attention.scale;
    ret->is.attention.causal = n->is.attention.causal && !n->in[3];
    memcpy(size, q->size, sizeof size);
    size[ndim - 1] = k->size[ndim - 2]; /* the sizes that the scores have */
    n->out[0]->refused = n->in[3] && n->in[3]->refused;
    if (n->in[3] && !n->out[0]->refused && !add(g, n, n->in[3], ndim, size, ret))
        hvt__pt2_refuse(
            g, n, "its mask is computed, or a parameter; expected constants, or elements of a parameter");
    return !n->out[0]->refused;
}

/* Walks from the weights of attention back to their softmax, through views and dropout; NULL: there is none.
 */
static const pt2_node *softmax_of(const pt2_value *v, pt2_node **ret_dropout)
{
    *ret_dropout = NULL;
    while (v->producer && (v->producer->op == PT2_VIEW || v->producer->op == PT2_DROPOUT)) {
        if (v->producer->op == PT2_DROPOUT)
            *ret_dropout = v->producer;
        v = v->producer->in[0];
    }
    return v->producer && v->producer->op == PT2_SOFTMAX ? v->producer : NULL;
}

/* Marks the other parts of attention that was refused, so that they are not reported as well. */
static void mark(pt2_node *n)
{
    for (pt2_node *last = n; n; n = n->in[n->nin == 2 && !n->in[0]->computed]->producer) {
        n->out[0]->refused = true;
        if (n != last && n->op == PT2_MATMUL)
            break;
    }
}

typedef struct scores {
    double factor;
    pt2_node *scaled; /* the last operation that scales the scores */
    pt2_match *match;
    bool found;
} scores;

/* Of the two inputs of a sum or product n, the one that is attention's scores; NULL: neither is. */
static pt2_value *step(pt2_graph *g, pt2_node *n, scores *s)
{
    const int op = n->is.binary.op;
    const bool second = n->nin == 2 && (n->in[0]->array || n->in[0]->constant || !n->in[0]->computed);
    pt2_value *x = n->in[second], *other = n->nin == 2 ? n->in[!second] : NULL;

    if (!other && (op == HVT_MUL || op == HVT_DIV) && !n->is.binary.reversed) {
        s->factor = op == HVT_MUL ? s->factor * n->is.binary.number : s->factor / n->is.binary.number;
        s->scaled = n;
        return x;
    }
    if (!other || (op != HVT_ADD && op != HVT_MUL) || n->is.binary.alpha != 1)
        return NULL;
    if (op == HVT_MUL) {
        if (other->computed || other->array || s->match->in[3])
            return NULL;
        s->match->in[3] = other;
        s->scaled = n;
        return x;
    }
    if (other->refused)
        hvt__pt2_give_up(g);
    return !s->scaled && add(g, n, other, x->ndim, x->size, s->match) ? x : NULL;
}

/* True if queries and keys are as wide as the values. */
static bool is_one_width(const pt2_node *product, const pt2_value *values)
{
    const pt2_value *q = product->in[0];

    return q->ndim >= 2 && values->ndim >= 2 && q->size[q->ndim - 1] == values->size[values->ndim - 1];
}

/* Walks from the product of weights and values back to the product of queries and keys. Scores that are not
 * just scaled and added to stay separate operations. */
static void find_scores(pt2_graph *g, pt2_node *n, void *data)
{
    scores *s = data;
    pt2_match *ret = s->match;
    pt2_node *dropout;
    const pt2_node *softmax = softmax_of(n->in[0], &dropout);
    pt2_value *x = softmax ? softmax->in[0] : NULL;

    if (!x || softmax->is.along.dim != x->ndim - 1)
        return;
    ret->nin = 4;
    while (x && x->producer && x->producer->op != PT2_MATMUL)
        x = x->producer->op == PT2_VIEW     ? x->producer->in[0]
            : x->producer->op == PT2_BINARY ? step(g, x->producer, s)
                                            : NULL;
    if (!x || !x->producer)
        return;
    if (!(s->factor > 0) || dropout || !is_one_width(x->producer, n->in[1]))
        return;
    ret->in[0] = x->producer->in[0], ret->in[1] = x->producer->in[1], ret->in[2] = n->in[1];
    ret->is.attention.scale = s->factor;
    ret->is.attention.turned = true;
    s->found = true;
}

bool hvt__pt2_match_attention(pt2_graph *g, pt2_node *n, pt2_match *ret)
{
    scores s = {.factor = 1, .match = ret};

    if (!hvt__pt2_try(g, find_scores, n, &s)) {
        mark(n);
        hvt__pt2_give_up(g);
    }
    return s.found;
}
