/*
 * Matches rotary embeddings. Models write them as slices of queries and keys, products with constants,
 * negations, joins and sums, each in its own order. From the last operation all paths are followed back
 * to one tensor of the same sizes; then its elements are traced forward. If each element of the result is
 * a weighted sum of at most two elements, in the pattern of a rotary embedding, the operations become
 * one.
 */
#include "patterns.h"

#include "fold.h"

enum { CONE = 64, PENDING = 32 };

/* The operations between a tensor and the result. */
typedef struct cone {
    pt2_node *node[CONE]; /* [n] the last operation first */
    pt2_value *pending[PENDING];
    int n, npending;
    bool multiplies;
} cone;

/* True for a constant that stays a number. A one-dimensional buffer becomes a constant of the tape instead.
 */
static bool is_constant(const pt2_value *v)
{
    int wide = 0;

    for (int i = 0; i < v->ndim; i++)
        wide += v->size[i] > 1;
    return v->constant == PT2_FOLDED || (v->constant == PT2_SOFT && wide > 1);
}

static bool push(cone *c, pt2_value *v)
{
    for (int i = 0; i < c->npending; i++)
        if (c->pending[i] == v)
            return true;
    if (c->npending == PENDING)
        return false;
    c->pending[c->npending++] = v;
    return true;
}

/* True if n moves elements, adds them, or multiplies them by constants. Its other inputs become pending. */
static bool enter(cone *c, pt2_node *n)
{
    const pt2_op op = n->op;
    const int of = op == PT2_BINARY ? n->is.binary.op : 0;

    if (c->n == CONE || n->nout != 1)
        return false;
    c->node[c->n++] = n;
    if (op == PT2_SLICE || op == PT2_VIEW ||
        (op == PT2_MAP && n->is.map.f == HVT_AFFINE && n->is.map.a == -1 && n->is.map.b == 0))
        return push(c, n->in[0]);
    if (op == PT2_BINARY && n->nin == 2 && (of == HVT_ADD || of == HVT_SUB))
        return push(c, n->in[0]) && push(c, n->in[1]);
    if (op == PT2_BINARY && n->nin == 2 && of == HVT_MUL && is_constant(n->in[0]) != is_constant(n->in[1])) {
        c->multiplies = true;
        return push(c, n->in[is_constant(n->in[0])]);
    }
    for (int i = 0; op == PT2_CAT && i < n->nin; i++)
        if (!push(c, n->in[i]))
            return false;
    return op == PT2_CAT;
}

/* Takes the pending value that was computed last; NULL: it is an input of the graph. */
static pt2_node *last_pending(cone *c)
{
    int last = 0;
    pt2_node *n;

    for (int i = 0; i < c->npending; i++) {
        if (!c->pending[i]->producer)
            return NULL;
        if (c->pending[i]->producer->order > c->pending[last]->producer->order)
            last = i;
    }
    n = c->pending[last]->producer;
    c->pending[last] = c->pending[--c->npending];
    return n;
}

/* Finds the dimensions along which all factors are equal, which must be all but the tokens and the vectors.
 */
static bool find_shared(pt2_graph *g, const cone *c, const pt2_value *x, bool *ret_shared, int *ret_tokens)
{
    int apart = 0;

    for (int d = 0; d < x->ndim; d++)
        ret_shared[d] = d < x->ndim - 1;
    for (int i = 0; i < c->n; i++) {
        pt2_node *n = c->node[i];
        const pt2_array *k;

        if (n->op != PT2_BINARY || n->is.binary.op != HVT_MUL)
            continue;
        k = hvt__array_numbers_of(g, n, n->in[!is_constant(n->in[0])]);
        if (!k || n->out[0]->ndim < x->ndim)
            return false;
        for (int d = 0; d < x->ndim - 1; d++) {
            const int at = d - (n->out[0]->ndim - k->ndim);

            ret_shared[d] = ret_shared[d] && (at < 0 || k->size[at] == 1 || k->stride[at] == 0);
        }
    }
    for (int d = 0; d < x->ndim - 1; d++)
        if (!ret_shared[d])
            apart++, *ret_tokens = d;
    return apart == 1;
}

/* The factors of y as a rotary embedding of vectors of this width; false: it is not one. */
static bool find_factors(pt2_graph *g, const pt2_array *y, pt2_attributes *is)
{
    const int width = is->rotary.width, rows = is->rotary.rows;
    float *own = hvt__pt2_make(g, (size_t)rows * (size_t)width * sizeof *own),
          *other = hvt__pt2_make(g, (size_t)rows * (size_t)width * sizeof *other);
    int64_t at[PT2_DIMS] = {0};
    int apart = 0;

    for (int r = 0; r < rows; r++)
        for (int c = 0; c < width; c++) {
            const pt2_term *t;

            at[is->rotary.tokens] = r, at[y->ndim - 1] = c;
            t = &y->term[hvt__array_element(y, y->ndim, at)];
            for (int k = 0; k < 2; k++) {
                const int from = t->at[k] - r * width;

                if (t->at[k] < 0)
                    continue;
                if (from == c) {
                    own[r * width + c] = t->times[k];
                    continue;
                }
                apart = apart ? apart : abs(from - c);
                if (from != (c / apart % 2 ? c - apart : c + apart) || width % (2 * apart))
                    return false;
                other[r * width + c] = t->times[k];
            }
        }
    is->rotary.apart = apart;
    is->rotary.own = own, is->rotary.other = other;
    return apart > 0;
}

static pt2_array *begin(pt2_graph *g, pt2_node *n, pt2_value *x, const bool *shared)
{
    pt2_array *y = hvt__array_new(g, n, x->ndim, x->size, shared, true);
    int64_t loop[PT2_DIMS];
    int32_t i = 0;

    for (int d = 0; d < x->ndim; d++)
        loop[d] = shared[d] ? 1 : x->size[d];
    PT2_EACH(x->ndim, loop, at)
    {
        y->term[hvt__array_element(y, x->ndim, at)] = (pt2_term){{i++, -1}, {1, 0}};
    }
    y->of = x;
    return y;
}

/* Traces the elements of x through the operations. */
static bool follow(pt2_graph *g, const cone *c, pt2_value *x, pt2_match *ret)
{
    const int64_t elements = g->elements;
    pt2_value *v = c->node[0]->out[0];
    bool shared[PT2_DIMS], fits = true;
    int tokens = 0;

    if (!find_shared(g, c, x, shared, &tokens) ||
        x->size[tokens] * x->size[x->ndim - 1] > PT2_ELEMENTS - elements)
        return false;
    ret->is.rotary.tokens = tokens;
    ret->is.rotary.rows = (int)x->size[tokens];
    ret->is.rotary.width = (int)x->size[x->ndim - 1];
    hvt__pt2_scratch(g, true);
    x->trace = begin(g, c->node[0], x, shared);
    for (int i = c->n - 1; i >= 0 && fits; i--) {
        pt2_value *out = c->node[i]->out[0];

        out->trace = hvt__pt2_follow(g, c->node[i]);
        fits = out->trace && out->trace->term;
    }
    g->scratches = false; /* keeps what was found */
    fits = fits && v->trace->of == x && find_factors(g, v->trace, &ret->is);
    hvt__pt2_scratch(g, false);
    g->elements = elements;
    x->trace = NULL;
    for (int i = 0; i < c->n; i++)
        c->node[i]->out[0]->trace = NULL;
    return fits;
}

bool hvt__pt2_match_rotary(pt2_graph *g, pt2_node *n, pt2_match *ret)
{
    pt2_value *v = n->out[0];
    cone c = {.n = 0};

    if (v->ndim < 3 || !v->computed || v->size[v->ndim - 1] < 2 || !enter(&c, n))
        return false;
    while (c.npending) {
        pt2_value *x = c.pending[0];
        pt2_node *maker;

        if (c.npending == 1 && c.multiplies && hvt__pt2_same_sizes(x, v) && follow(g, &c, x, ret)) {
            ret->in[ret->nin++] = x;
            return true;
        }
        maker = last_pending(&c);
        if (!maker || !enter(&c, maker))
            return false;
    }
    return false;
}
