/*
 * The layout: turns operations on tensors into layers of the tape. The tables of lay_*.c say which
 * function lays out an operation; see layout.h.
 */
#include "layout.h"

/* True for operations that no layer of the tape computes. */
static void refuse(pt2_layout *l)
{
    static const char *const why[PT2_OP_COUNT] = {
        [PT2_SDPA] = "expected attention over [N, heads, tokens, width]",
        [PT2_BERNOULLI] = "its random numbers are supported only in stochastic depth",
        [PT2_EMPTY] = "its numbers are supported only in stochastic depth",
        [PT2_RAND] = "its random numbers are supported only in stochastic depth",
        [PT2_CAST] = "supported only for constants; it converts an input that depends on the images",
    };

    REFUSE(l, "%s",
           why[l->n->op] ? why[l->n->op]
                         : "it is supported only for constants; this input depends on the images");
}

static void (*builder_of(pt2_op op))(pt2_layout *)
{
    static const pt2_lay_rows *const all[] = {&hvt__lay_layer_rows, &hvt__lay_math_rows, &hvt__lay_move_rows,
                                              &hvt__lay_window_rows, &hvt__lay_attention_rows};

    for (size_t i = 0; i < HVT_LEN(all); i++)
        for (const pt2_lay_row *r = all[i]->row; r < all[i]->row + all[i]->count; r++)
            if (r->op == op)
                return r->lay;
    return refuse;
}

static void put_zeros(pt2_graph *g, pt2_node *n, void *data)
{
    pt2_layout *l = data;
    const pt2_value *y = n->out[0];
    const int64_t h = y->ndim == 4 ? y->size[2] : 1, w = y->ndim == 4 ? y->size[3] : 1;

    hvt__lay_out_image(l, hvt__emit_zeros(l, h, w, y->size[1]));
}

/* Handles a refused node. If its first input and output are images, zeros replace the output, so that one
 * message also names what is wrong later. */
static void stand_in(pt2_layout *l)
{
    pt2_node *n = l->n;
    pt2_value *y = n->nout == 1 || n->nout == 2 ? n->out[0] : NULL;
    const pt2_place *x = n->nin && n->in[0] ? n->in[0]->place : NULL;
    bool fits = x && y && x->axes.ndim == y->ndim && (y->ndim == 2 || hvt__axes_image(&x->axes)) &&
                hvt__axes_is(&x->axes, 1, 'C') && y->size[0] == l->g->batch;

    for (int i = 1; fits && i < y->ndim; i++)
        fits = y->size[i] > 0 && y->size[i] <= 1 << 16;
    if (!fits)
        return;
    y->refused = !hvt__pt2_try(l->g, put_zeros, n, l);
}

static void lay_node(pt2_graph *g, pt2_node *n, void *data)
{
    builder_of(n->op)(data);
}

static void lay_out(pt2_layout *l)
{
    pt2_node *n = l->n;
    bool refused = n->nout && n->out[0]->refused;

    for (int i = 0; i < n->nin; i++)
        refused = refused || (n->in[i] && n->in[i]->refused);
    for (int i = 0; i < n->nout && refused; i++)
        n->out[i]->refused = true;
    if (refused)
        stand_in(l);
    if (refused || !n->nout || n->computes_weights || n->out[0]->array || hvt__lay_is_state(n->out[0]))
        return;
    if (!hvt__pt2_try(l->g, lay_node, n, l))
        stand_in(l);
}

/* The output must be [N, classes], [N, classes, H, W], or one number per image, [N]. */
static bool is_output(const pt2_place *p)
{
    const int64_t *size = p->v->size;

    if (p->axes.ndim == 4)
        return hvt__axes_image(&p->axes);

    return p->axes.ndim == 2 ? hvt__axes_is(&p->axes, 1, 'C')
                             : p->axes.ndim == 1 && size[0] * size[1] * size[2] == 1;
}

static void end(pt2_graph *g, pt2_node *last, void *data)
{
    pt2_layout *l = data;
    pt2_place *p;

    if (g->logits->refused)
        return;
    l->n = last;
    p = hvt__place(l, g->logits);
    if (p->axes.ndim == 2 && g->logits->size[0] == g->batch)
        *p = hvt__lay_as_channels(l, p, g->logits->size, 1);
    else if (p->axes.ndim == 4 && g->logits->size[0] == g->batch)
        *p = (pt2_place){hvt__lay_image(l, "the output", g->logits), hvt__axes_of(4, g->logits->size)};
    if (!is_output(p))
        REFUSE(l, "the model's output is not [N, classes], [N, classes, H, W], or [N]");
    g->logits = p->v, g->rows = p->axes.ndim > 1;
}

void hvt__pt2_lay_out(pt2_graph *g)
{
    const pt2_value like = {.ndim = 3, .size = {g->height, g->width, g->channels}};
    pt2_layout l = {.g = g};
    pt2_value *images = hvt__pt2_value(g, &like);
    pt2_node *last = g->last;

    images->source = PT2_IMAGES;
    images->computed = true;
    g->images->place = hvt__pt2_make(g, sizeof *g->images->place);
    *g->images->place = (pt2_place){.v = images, .axes = hvt__axes_of(4, g->images->size)};
    g->images = images;
    if (!last)
        return;
    hvt__lay_find_weights(g);
    for (pt2_node *n = g->first, *next; n; n = next) {
        next = n == last ? NULL : n->after;
        l.n = n;
        lay_out(&l);
    }
    hvt__pt2_try(g, end, last, &l);
    for (pt2_node *n = g->first, *next; n; n = next) { /* only nodes of the tape are left */
        next = n == last ? NULL : n->after;
        hvt__pt2_erase(g, n);
    }
    hvt__pt2_sweep(g);
}
