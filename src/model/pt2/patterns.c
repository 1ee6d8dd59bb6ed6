/*
 * The table of patterns, and the small patterns. A pattern that does not match leaves the graph as it
 * was, but may refuse an operation that makes sense only as part of it.
 */
#include "patterns.h"

#include "fold.h"

#include <math.h>

/* ---- stochastic depth ---- */

/* Which elements share one random number, by these sizes; false: an unsupported way. */
static bool shared_by(const pt2_graph *g, const pt2_value *v, pt2_share *ret)
{
    int many = v->ndim > 0 && v->size[0] == g->batch, i;

    while (many && many < v->ndim && v->size[many] != 1)
        many++;
    for (i = many; i < v->ndim && v->size[i] == 1;)
        i++;
    *ret = many == v->ndim && v->ndim > 2 ? PT2_PER_ELEMENT
           : many == 2                    ? PT2_PER_CHANNEL
           : many == 1                    ? PT2_PER_IMAGE
                                          : PT2_PER_BATCH;
    return v->ndim > 0 && i == v->ndim && (many <= 2 || many == v->ndim);
}

/* Skips multiplications and divisions by numbers, and returns what they are applied to. *factor: their
 * product. */
static pt2_value *unscaled(pt2_value *v, double *factor)
{
    const pt2_node *d;

    while ((d = hvt__pt2_maker(v, PT2_BINARY)) && d->is.binary.has_number && !d->is.binary.reversed &&
           (d->is.binary.op == HVT_DIV || d->is.binary.op == HVT_MUL)) {
        *factor = d->is.binary.op == HVT_MUL ? *factor * d->is.binary.number : *factor / d->is.binary.number;
        v = d->in[0];
    }
    return v;
}

static bool is_random(const pt2_value *v)
{
    return hvt__pt2_maker(v, PT2_EMPTY) || hvt__pt2_maker(v, PT2_RAND);
}

/* A product of an image and noise, written as empty(sizes), bernoulli_(keep), div_(keep) by torchvision's
 * stochastic_depth.py and timm's DropPath. Older code divides the image instead. */
static bool match_depth(pt2_graph *g, pt2_node *n, pt2_match *ret)
{
    for (int i = 0; i < 2 && n->is.binary.op == HVT_MUL && n->nin == 2; i++) {
        double factor = 1, keep;
        const pt2_node *b = hvt__pt2_maker(unscaled(n->in[i], &factor), PT2_BERNOULLI);
        pt2_value *x = n->in[1 - i];

        if (!b || !is_random(b->in[0]) || !shared_by(g, b->in[0], &ret->is.dropout.share))
            continue;
        keep = b->is.dropout.p;
        if (fabs(keep * factor - 1) > 1e-6)
            x = unscaled(x, &factor);
        if (keep < 0 || keep > 1 || (keep > 0 && fabs(keep * factor - 1) > 1e-6)) {
            n->in[i]->refused = b->out[0]->refused = b->in[0]->refused = true;
            hvt__pt2_refuse(g, n, "its random numbers are not 0 or 1 / probability, as in stochastic depth");
        }
        ret->is.dropout.p = 1 - keep;
        ret->in[ret->nin++] = x;
        return true;
    }
    return false;
}

/* ---- vectors of length 1 ---- */

/* x / clamp(norm(x), least) */
static bool match_normalise(pt2_graph *g, pt2_node *n, pt2_match *ret)
{
    const pt2_value *x = n->in[0], *length;
    const pt2_node *e, *c, *r;

    if (n->is.binary.op != HVT_DIV || n->nin != 2)
        return false;
    length = n->in[1];
    e = hvt__pt2_maker(length, PT2_EXPAND);
    length = e ? e->in[0] : length;
    c = hvt__pt2_maker(length, PT2_MAP);
    if (c && (c->is.map.f != HVT_HARDTANH || c->is.map.b != INFINITY))
        return false;
    r = hvt__pt2_maker(c ? c->in[0] : length, PT2_REDUCE);
    if (!r || r->is.reduce.how != PT2_NORM || r->is.reduce.n != 1 || r->in[0] != x ||
        r->out[0]->ndim != x->ndim)
        return false;
    ret->is.normalise.dim = r->is.reduce.dim[0] + (r->is.reduce.dim[0] < 0 ? x->ndim : 0);
    ret->is.normalise.least = c ? c->is.map.a : 0;
    ret->is.normalise.clamped = c;
    ret->in[ret->nin++] = n->in[0];
    return ret->is.normalise.dim > 0 && ret->is.normalise.dim < x->ndim;
}

/* ---- a joined bias ---- */

static bool all_zero(pt2_graph *g, pt2_node *n, pt2_value *v)
{
    const pt2_array *x = hvt__array_numbers_of(g, n, v);
    bool zero = x && x->ndim == 1;

    for (int64_t i = 0; zero && i < x->size[0]; i++)
        zero = x->number[hvt__array_element(x, 1, &i)] == 0;
    return zero;
}

static bool is_trained(const pt2_value *v)
{
    return v->source == PT2_TRAINED && v->ndim == 1;
}

/* A bias of parameters and zeros side by side, or a parameter with a range set to 0. */
static bool match_bias(pt2_graph *g, pt2_node *n, pt2_match *ret)
{
    pt2_value *bias = hvt__pt2_input(n, 2);
    const pt2_node *c = hvt__pt2_maker(bias, PT2_CAT), *p = hvt__pt2_maker(bias, PT2_PUT);
    const int outputs = n->nout && n->in[1] && n->in[1]->ndim > 0 ? (int)n->in[1]->size[0] : 0;

    if (p && is_trained(p->in[0]) && p->in[1]->ndim == 1 && p->is.slice.step == 1 &&
        all_zero(g, n, p->in[1])) {
        ret->in[ret->nin++] = p->in[0];
        ret->is.channels.first = (int)p->is.slice.first;
        ret->is.channels.count = (int)p->in[1]->size[0];
        return bias->size[0] == outputs;
    }
    if (!c || bias->ndim != 1)
        return false;
    if (c->nin > (int)HVT_LEN(ret->in))
        hvt__pt2_refuse(g, n, "its bias is %d parameters; expected at most %d", c->nin,
                        (int)HVT_LEN(ret->in));
    for (int i = 0; i < c->nin; i++) {
        if (!is_trained(c->in[i]) && !all_zero(g, n, c->in[i]))
            hvt__pt2_refuse(g, n,
                            "a part of its bias is computed, or a constant that is not 0; expected zeros, or "
                            "a parameter");
        ret->in[ret->nin++] = c->in[i];
    }
    if (bias->size[0] != outputs)
        hvt__pt2_refuse(g, n, "its bias has %lld numbers for %d outputs", (long long)bias->size[0], outputs);
    return true;
}

/* Moves the bias out of the layer: adds it to the output. */
static void replace_bias(pt2_graph *g, pt2_node *n, const pt2_match *m)
{
    pt2_value *y = hvt__pt2_value(g, n->out[0]), *in[1 + HVT_LEN(m->in)] = {y}, *out = n->out[0];
    pt2_node *sum = hvt__pt2_node(g, n->after, n, PT2_BIAS);

    memcpy(in + 1, m->in, (size_t)m->nin * sizeof *in);
    y->computed = out->computed;
    hvt__pt2_set_input(g, n, 2, NULL);
    hvt__pt2_outputs(g, n, 1, &y);
    sum->is = m->is;
    hvt__pt2_inputs(g, sum, 1 + m->nin, in);
    hvt__pt2_outputs(g, sum, 1, &out);
}

/* ---- a padded maximum ---- */

/* max_pool2d of an image padded with -inf, equally on both sides, or by one more at the end. */
static bool match_pool(pt2_graph *g, pt2_node *n, pt2_match *ret)
{
    const pt2_node *p = hvt__pt2_maker(n->in[0], PT2_PAD);
    const int *by = p ? p->is.pad.by : NULL;

    if (n->is.pool.kind != HVT_POOL_MAX || !p || p->is.pad.value != -INFINITY || p->is.pad.n > 4)
        return false;
    for (int i = 0; i < 4; i += 2)
        if (by[i] < 0 || by[i + 1] < by[i] || by[i + 1] - by[i] > 1)
            return false;
    if (n->is.pool.opts.pad[0] || n->is.pool.opts.pad[1])
        hvt__pt2_refuse(g, n, "it pads an image that has -inf around it");
    ret->is = n->is;
    ret->is.pool.opts.pad[0] = by[2], ret->is.pool.opts.pad[1] = by[0];
    ret->is.pool.opts.ceil_mode = n->is.pool.opts.ceil_mode || by[1] > by[0] || by[3] > by[2];
    ret->in[ret->nin++] = p->in[0];
    return true;
}

/* ---- the table ---- */

static const pt2_pattern forward[] = {
    {"stochastic depth", PT2_BINARY, match_depth, PT2_DROP_PATH},
    {"padded maximum", PT2_POOL, match_pool, PT2_POOL},
    {"joined bias of linear", PT2_LINEAR, match_bias, PT2_BIAS, replace_bias},
    {"joined bias of conv", PT2_CONV, match_bias, PT2_BIAS, replace_bias},
    {"normalise", PT2_BINARY, match_normalise, PT2_NORMALISE},
    {"scaled_dot_product_attention", PT2_SDPA, hvt__pt2_match_sdpa, PT2_ATTENTION},
    {"softmax(queries @ keys') @ values", PT2_MATMUL, hvt__pt2_match_attention, PT2_ATTENTION},
};

static const pt2_pattern backward[] = {
    {"rotary embedding that ends in a sum", PT2_BINARY, hvt__pt2_match_rotary, PT2_ROTARY},
    {"rotary embedding that ends in a join", PT2_CAT, hvt__pt2_match_rotary, PT2_ROTARY},
    {"rotary embedding that ends in a view", PT2_VIEW, hvt__pt2_match_rotary, PT2_ROTARY},
};

typedef struct patterns {
    const pt2_pattern *first, *end;
} patterns;

static void match(pt2_graph *g, pt2_node *n, void *data)
{
    const patterns *all = data;

    for (const pt2_pattern *p = all->first; p < all->end && !n->out[0]->refused; p++) {
        pt2_match m = {.nin = 0};

        if (n->op == p->root && p->match(g, n, &m)) {
            if (p->replace)
                p->replace(g, n, &m);
            else
                hvt__pt2_become(g, n, p->op, &m.is, m.nin, m.in);
            return;
        }
    }
}

/* matches patterns that may be part of a longer one of their kind from the last node to the first */
void hvt__pt2_match(pt2_graph *g)
{
    int order = 0;

    for (pt2_node *n = g->first, *after; n; n = after) {
        after = n->after;
        if (n->nout)
            hvt__pt2_try(g, match, n, &(patterns){forward, forward + HVT_LEN(forward)});
    }
    hvt__pt2_sweep(g);
    for (pt2_node *n = g->first; n; n = n->after)
        n->order = order++;
    for (pt2_node *n = g->last, *before; n; n = before) {
        before = n->before;
        if (n->nout)
            hvt__pt2_try(g, match, n, &(patterns){backward, backward + HVT_LEN(backward)});
    }
    hvt__pt2_sweep(g);
}
