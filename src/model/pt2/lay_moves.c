/*
 * Operations that only move elements: views, permutations, slices and joins, pads and crops.
 */
#include "layout.h"

#include <math.h>

/* ---- views ---- */

/* A view: its output's sizes say which. A scalar is a tensor of one element here. */
static void view(pt2_layout *l)
{
    const pt2_value *v = l->n->out[0];
    const int ndim = v->ndim ? v->ndim : 1;
    const int64_t *size = v->ndim ? v->size : (const int64_t[]){1};
    pt2_place y = *hvt__place(l, l->n->in[0]);

    if (!hvt__axes_view(&y.axes, ndim, size)) {
        const int n = y.axes.ndim;

        y = hvt__lay_in_order(l, &y, l->n->in[0]->size, 0, hvt__axes_has(&y.axes, n - 1, 'N') ? n : n - 1);
        if (!hvt__axes_view(&y.axes, ndim, size)) {
            y = hvt__lay_in_order(l, &y, l->n->in[0]->size, 0, n);
            if (!hvt__axes_view(&y.axes, ndim, size))
                REFUSE(l, "it mixes the batch with other dimensions");
        }
    }
    hvt__lay_out(l, y.v, &y.axes);
}

/* expand: readers broadcast it themselves. check_shape() compares their sizes with the file. */
static void expand(pt2_layout *l)
{
    const pt2_value *v = l->n->out[0];
    pt2_place y = *hvt__place(l, l->n->in[0]);

    y.axes = hvt__axes_led(&y.axes, v->ndim);
    if (v->ndim != y.axes.ndim)
        REFUSE(l, "it adds dimensions");
    if (v->size[0] > 1 && y.axes.end[0] == 0) /* a parameter's value already has all images */
        hvt__axes_set(&y.axes, 0, 'N', v->size[0]);
    hvt__lay_out(l, y.v, &y.axes);
}

static void repeat(pt2_layout *l)
{
    const pt2_value *in = l->n->in[0], *out = l->n->out[0];
    const pt2_place y = hvt__lay_repeated(l, hvt__place(l, l->n->in[0]), in, out);

    hvt__lay_out(l, y.v, &y.axes);
}

static void permute(pt2_layout *l)
{
    pt2_place *p = hvt__place(l, l->n->in[0]), y;

    if (p->axes.ndim != l->n->is.dims.n)
        REFUSE(l, "its dims are not a permutation");
    y = *p;
    hvt__axes_permute(&y.axes, l->n->is.dims.dim);
    hvt__lay_out(l, y.v, &y.axes);
}

/* Rolls rows or columns without moving them: the axes record it until something reads them. */
static void roll(pt2_layout *l)
{
    pt2_place y = *hvt__place(l, l->n->in[0]);

    for (int i = 0; i < l->n->is.dims.n; i++) {
        const int dim = l->n->is.dims.dim[i];

        if (!hvt__axes_roll(&y.axes, dim, l->n->is.dims.shift[i])) {
            pt2_along x = hvt__lay_along(l, &y, l->n->in[0]->size, dim);

            hvt__axes_roll(&x.place.axes, x.dim, l->n->is.dims.shift[i]);
            hvt__lay_unroll(l, &x.place);
            y = hvt__lay_resized(&x, x.place.v, dim);
        }
    }
    hvt__lay_out(l, y.v, &y.axes);
}

/* ---- parts of the channels ---- */

/* The outermost part of the channels, if dimension `dim` begins with it; *ret_inner elements are adjacent in
 * each step. Else NULL. */
static pt2_atom *outermost_part(pt2_axes *x, int dim, int *ret_inner)
{
    const int begin = hvt__axes_begin(x, dim);
    pt2_atom *a = &x->atom[begin];
    bool fits = x->end[dim] > begin && a->axis == 'C';

    *ret_inner = 1;
    for (int i = begin + 1; i < x->end[dim]; i++)
        *ret_inner *= (int)x->atom[i].extent;
    for (int i = 0; i < x->end[x->ndim - 1] && fits; i++)
        fits =
            &x->atom[i] == a || x->atom[i].axis != 'C' || x->atom[i].extent * x->atom[i].stride <= a->stride;
    return fits ? a : NULL;
}

/* Makes dimension `dim`, a part of the channels, their outermost part, in blocks of so many elements. */
static void make_outermost(pt2_layout *l, pt2_place *p, int dim, int block)
{
    pt2_axes *axes = &p->axes;
    const int begin = hvt__axes_begin(axes, dim);
    const pt2_atom a = axes->atom[begin];
    int slower, inner;

    if (axes->end[dim] - begin != 1 || a.axis != 'C' || outermost_part(axes, dim, &inner) || block < 1 ||
        a.extent % block || axes->end[axes->ndim - 1] == PT2_ATOMS)
        return;
    slower = (int)(p->v->size[2] / (a.extent * a.stride));
    if (slower < 2)
        return;
    p->v = hvt__emit_transpose(l, p->v, slower, (int)a.extent / block, (int)a.stride * block, p->v->size[0],
                               p->v->size[1]);
    for (int i = 0; i < axes->end[axes->ndim - 1]; i++)
        if (axes->atom[i].axis == 'C' && axes->atom[i].stride > a.stride)
            axes->atom[i].stride /= a.extent / block;
    axes->atom[begin] = (pt2_atom){'C', a.extent / block, a.stride * block * slower};
    if (block > 1) {
        memmove(axes->atom + begin + 2, axes->atom + begin + 1,
                (size_t)(axes->end[axes->ndim - 1] - begin - 1) * sizeof a);
        axes->atom[begin + 1] = (pt2_atom){'C', block, a.stride};
        for (int i = dim; i < axes->ndim; i++)
            axes->end[i]++;
    }
}

/* True if `dim` is one part of the channels, or their outermost part with what each step holds. False for all
 * channels, and for parts in another order, as behind a channel shuffle. */
static bool is_part_of_channels(const pt2_axes *x, int dim)
{
    const int atoms = dim > 0 && dim < x->ndim ? x->end[dim] - x->end[dim - 1] : 0;
    pt2_axes copy = *x;
    int inner;

    return atoms && !hvt__axes_is(x, dim, 'C') && x->atom[x->end[dim - 1]].axis == 'C' &&
           (atoms == 1 || outermost_part(&copy, dim, &inner));
}

int hvt__lay_parts(pt2_layout *l, pt2_place *p, int dim, int most, pt2_value **ret)
{
    const pt2_axes *axes = &p->axes;
    const pt2_atom *a;

    if (!is_part_of_channels(axes, dim) || axes->end[dim] != axes->end[dim - 1] + 1 ||
        axes->atom[axes->end[dim - 1]].extent > most)
        return 0;
    make_outermost(l, p, dim, 1);
    a = &axes->atom[axes->end[dim - 1]];
    if (p->v->size[2] != a->extent * a->stride)
        return 0;
    for (int i = 0; i < a->extent; i++)
        ret[i] = hvt__emit_channels(l, p->v, i * (int)a->stride, (int)a->stride);
    return (int)a->extent;
}

/* ---- parts of an axis ---- */

/* Arranges the pixels, which are dimension `dim`, as one line of tokens. */
static void as_tokens(pt2_layout *l, pt2_place *p, int dim)
{
    const int64_t pixels = p->v->size[0] * p->v->size[1];

    if (p->v->size[0] > 1)
        p->v = hvt__emit_pixels(l, p->v, 1, pixels);
    hvt__axes_set(&p->axes, dim, 'W', pixels);
}

/* The axis that dimension i is exactly; 0: none. */
static char axis_of(const pt2_axes *x, int i)
{
    for (const char *axis = "CHW"; *axis; axis++)
        if (hvt__axes_has(x, i, *axis) && hvt__axes_is(x, i, *axis))
            return *axis;
    return 0;
}

/* The slice [first:end:step] of one axis. */
static pt2_value *part_of(pt2_layout *l, pt2_value *x, char axis, int size, int first, int end, int step)
{
    const int cut[2] = {-first, end - size};

    if (axis == 'C')
        return hvt__emit_channels(l, x, first, end - first);
    if (first > 0 || end < size)
        x = axis == 'H' ? hvt__emit_pad(l, x, cut[0], cut[1], 0, 0)
                        : hvt__emit_pad(l, x, 0, 0, cut[0], cut[1]);
    return step == 1 ? x : hvt__emit_every(l, x, axis == 'H' ? step : 1, axis == 'W' ? step : 1);
}

/* Slices [first:end] of dimension `dim`, if it is the channels or their outermost part. Else false. */
static bool cut_outermost(pt2_layout *l, pt2_place *x, int dim, int first, int end)
{
    int inner;
    pt2_atom *part = outermost_part(&x->axes, dim, &inner);

    if (!part || first % inner || end % inner)
        return false;
    first /= inner, end /= inner;
    x->v = hvt__emit_channels(l, x->v, first * (int)part->stride, (end - first) * (int)part->stride);
    part->extent = end - first;
    if (part->extent == 1 && inner == 1)
        hvt__axes_reduce(&x->axes, dim);
    return true;
}

/* A slice of any other dimension. */
static pt2_place cut_axis(pt2_layout *l, pt2_value *v, int dim, int first, int end, int step)
{
    const int64_t size = v->size[dim];
    pt2_place x = hvt__lay_ordered(l, hvt__place(l, v));
    char axis;

    if (!axis_of(&x.axes, dim) && hvt__axes_pixels(&x.axes, dim))
        as_tokens(l, &x, dim);
    axis = axis_of(&x.axes, dim);
    if (!axis || (axis == 'C' && step > 1)) {
        const pt2_along all = hvt__lay_along(l, &x, v->size, dim);

        return hvt__lay_resized(&all, part_of(l, all.place.v, 'W', (int)size, first, end, step), dim);
    }
    x.v = part_of(l, x.v, axis, (int)size, first, end, step);
    hvt__axes_set(&x.axes, dim, axis, (end - first + step - 1) / step);
    return x;
}

/* slice: [first:end:step] of a dimension. */
static void slice(pt2_layout *l)
{
    pt2_value *v = l->n->in[0], *out = l->n->out[0];
    pt2_place *p = hvt__place(l, v), x;
    const int dim = l->n->is.slice.dim, step = (int)l->n->is.slice.step, first = (int)l->n->is.slice.first,
              end = (int)l->n->is.slice.end;

    if (v->ndim != p->axes.ndim)
        REFUSE(l, "it takes every %d-th of dimension %d of %d", step, dim, v->ndim);
    if (hvt__axes_has(&p->axes, dim, 'N') && (first > 0 || end < v->size[dim] || step > 1))
        REFUSE(l, "it takes a part of the batch; expected parts of images");
    if (!out->size[dim])
        REFUSE(l, "dimension %d becomes empty", dim);
    x = *p;
    if (first > 0 || end < v->size[dim] || step > 1) {
        if (step == 1 && is_part_of_channels(&p->axes, dim)) {
            make_outermost(l, p, dim, (int)l->n->is.slice.block);
            x = *p;
        }
        if (step > 1 || !cut_outermost(l, &x, dim, first, end))
            x = cut_axis(l, v, dim, first, end, step);
    }
    if (!hvt__axes_view(&x.axes, out->ndim, out->size))
        REFUSE(l, "its output has other dimensions than what it takes");
    hvt__lay_out(l, x.v, &x.axes);
}

/* ---- joins ---- */

/* True if dimension i is the channels. A single channel has no atom: then no other dimension may be a
 * candidate. */
static bool is_channels(const pt2_axes *x, int i)
{
    int single = 0;

    for (int k = 1; k < x->ndim; k++)
        single += x->end[k] == x->end[k - 1];
    return hvt__axes_has(x, i, 'C') || (hvt__axes_is(x, i, 'C') && single == 1);
}

/* True if a and b have the same axes in all dimensions but this one. */
static bool lie_alike(const pt2_axes *a, const pt2_axes *b, int but)
{
    bool alike = a->ndim == b->ndim;

    for (int i = 0; i < a->ndim && alike; i++)
        for (int k = 0; k < 4; k++)
            alike = alike && (i == but || hvt__axes_has(a, i, "NCHW"[k]) == hvt__axes_has(b, i, "NCHW"[k]));
    return alike;
}

/* Joins along any dimension: `dim` and all dimensions after it become channels. */
static void cat_any(pt2_layout *l, int dim)
{
    pt2_node *n = l->n;
    const pt2_value *out = n->out[0];
    pt2_value **v = hvt__pt2_make(l->g, (size_t)n->nin * sizeof(pt2_value *));
    int64_t inner = 1;
    pt2_place x = {0};

    for (int i = 0; i < n->nin; i++) {
        pt2_place p = *hvt__place(l, n->in[i]);

        if (p.axes.ndim != out->ndim)
            REFUSE(l, "one of its tensors has other dimensions");
        if (out->size[0] == l->g->batch && dim > 0 && p.axes.end[0] == 0) /* the same for all images */
            hvt__axes_set(&p.axes, 0, 'N', out->size[0]);
        p = hvt__lay_in_order(l, &p, n->in[i]->size, 0, dim);
        if (i && memcmp(p.axes.atom, x.axes.atom, (size_t)(dim ? x.axes.end[dim - 1] : 0) * sizeof(pt2_atom)))
            REFUSE(l, "one of its tensors has the batch in another dimension");
        v[i] = p.v;
        x = i ? x : p;
    }
    for (int i = out->ndim - 1; i >= dim; inner *= out->size[i--]) {
        hvt__axes_set(&x.axes, i, 'C', out->size[i]);
        x.axes.atom[hvt__axes_begin(&x.axes, i)].stride = inner;
        if (out->size[i] == 1)
            hvt__axes_reduce(&x.axes, i);
    }
    hvt__lay_out(l, hvt__emit_concat(l, n->nin, v), &x.axes);
}

static void cat_channels(pt2_layout *l, int dim)
{
    pt2_node *n = l->n;
    pt2_value **v = hvt__pt2_make(l->g, (size_t)n->nin * sizeof(pt2_value *));
    pt2_axes axes = {0};

    for (int i = 0; i < n->nin; i++) {
        const pt2_place x = hvt__lay_ordered(l, hvt__place(l, n->in[i]));

        if (dim >= x.axes.ndim || !hvt__axes_is(&x.axes, dim, 'C') || !is_channels(&x.axes, dim) ||
            (i > 0 && (!lie_alike(&axes, &x.axes, dim) || x.v->size[0] != v[0]->size[0] ||
                       x.v->size[1] != v[0]->size[1]))) {
            cat_any(l, dim);
            return;
        }
        v[i] = x.v;
        if (i == 0 || hvt__axes_has(&x.axes, dim, 'C'))
            axes = x.axes;
    }
    hvt__axes_set(&axes, dim, 'C', n->out[0]->size[dim]);
    hvt__lay_out(l, hvt__emit_concat(l, n->nin, v), &axes);
}

/* Joins [.., tokens, C]: pads each value with zeros at the places of the others, and adds them. Parameters
 * are repeated for all images. */
static void cat_tokens(pt2_layout *l, int dim, const pt2_axes *like)
{
    pt2_node *n = l->n;
    const pt2_value *y = n->out[0];
    pt2_axes axes = *like;
    pt2_value *sum = NULL;
    int64_t first = 0;

    for (int pass = 0; pass < 2; pass++, first = 0)
        for (int i = 0; i < n->nin; first += n->in[i++]->size[dim]) {
            pt2_value *v = n->in[i], *x;
            const bool is_state = !v->place && hvt__lay_is_state(v);
            bool fits = v->ndim == y->ndim;
            pt2_place p;

            if (is_state && pass) {
                for (int k = 0; k < y->ndim && fits; k++)
                    fits = k == dim || v->size[k] == (k == y->ndim - 1 ? y->size[k] : 1) ||
                           (k == 0 && v->size[k] == l->g->batch);
                if (!fits)
                    REFUSE(l, "%s is not [1, tokens, C]", hvt__pt2_state_of(v)->state);
                sum = hvt__lay_embedding(l, sum, (int)first, v->size[dim], v);
                continue;
            }
            if (is_state || pass)
                continue;
            p = *hvt__place(l, v);
            p = hvt__lay_as_channels(l, &p, v->size, y->ndim - 1);
            if (!fits || !hvt__axes_pixels(&p.axes, dim))
                REFUSE(l, "one of its tensors is not [N, tokens, C]");
            as_tokens(l, &p, dim);
            x = hvt__emit_pad(l, p.v, 0, 0, (int)first, (int)(y->size[dim] - first - v->size[dim]));
            sum = sum ? hvt__emit_binary(l, HVT_ADD, sum, x) : x;
        }
    hvt__axes_set(&axes, dim, 'W', y->size[dim]);
    hvt__lay_out(l, sum, &axes);
}

/* Stacks along a new dimension, which becomes the outermost part of the channels. False if they do not lie
 * alike. */
static bool stack(pt2_layout *l, int dim)
{
    pt2_node *n = l->n;
    pt2_value **v = hvt__pt2_make(l->g, (size_t)n->nin * sizeof(pt2_value *));
    pt2_axes axes = {0};

    for (int i = 0; i < n->nin; i++) {
        pt2_place x;

        if (!n->in[i]->computed && !n->in[i]->place)
            return false;
        x = hvt__lay_ordered(l, hvt__place(l, n->in[i]));
        if (x.axes.ndim != n->out[0]->ndim || x.axes.end[dim] > hvt__axes_begin(&x.axes, dim) ||
            is_channels(&x.axes, dim))
            return false;
        if (i && !hvt__axes_same(&x.axes, &axes))
            return false;
        v[i] = x.v;
        axes = x.axes;
    }
    for (int k = dim; k + 1 < axes.ndim; k++)
        axes.end[k] = axes.end[k + 1];
    axes.ndim--;
    if (!hvt__axes_insert(&axes, dim, (pt2_atom){'C', n->nin, v[0]->size[2]}))
        REFUSE(l, "it makes too many dimensions");
    if (n->nin == 1 || v[0]->size[2] * n->nin == 1)
        hvt__axes_reduce(&axes, dim);
    hvt__lay_out(l, hvt__emit_concat(l, n->nin, v), &axes);
    return true;
}

static void cat(pt2_layout *l)
{
    pt2_node *n = l->n;
    const int dim = n->is.along.dim;

    for (int i = 0; i < n->nin && n->out[0]->ndim == 3 && dim == 1; i++) {
        const pt2_place *p = n->in[i]->place;

        if (p && hvt__axes_pixels(&p->axes, dim) && hvt__axes_is(&p->axes, 2, 'C')) {
            const pt2_axes like = p->axes;

            cat_tokens(l, dim, &like);
            return;
        }
    }
    if (!stack(l, dim))
        cat_channels(l, dim);
}

/* ---- pads ---- */

/* The order of the dimensions of an image, a transposed image or a row; NULL: another tensor. */
static const char *axes_in(const pt2_axes *x)
{
    static const char *const orders[] = {"NCHW", "NHWC", "NC"};

    for (size_t i = 0; i < HVT_LEN(orders); i++) {
        bool same = x->ndim == (int)strlen(orders[i]);

        for (int k = 1; k < x->ndim && same; k++)
            same = hvt__axes_is(x, k, orders[i][k]);
        if (same)
            return orders[i];
    }
    return NULL;
}

/* Axes in this order for other sizes. */
static pt2_axes resized(const char *axes, const int64_t *size)
{
    const int64_t turned[4] = {size[0], size[3], size[1], size[2]};
    pt2_axes x;

    if (strcmp(axes, "NHWC") != 0)
        return hvt__axes_of((int)strlen(axes), size);
    x = hvt__axes_of(4, turned);
    hvt__axes_permute(&x, (int[]){0, 2, 3, 1});
    return x;
}

/* Pads channels equally on both sides, as shortcuts of residual networks do. NULL: something else. */
static pt2_value *pad_channels(pt2_layout *l, pt2_value *x, int front, int behind)
{
    if (!front && !behind)
        return x;
    if (front < 0 || front != behind || front > (1 << 20))
        return NULL;
    return hvt__emit(l, PT2_SUBSAMPLE, NULL, 1, &x, x->size[0], x->size[1], x->size[2] + 2 * front);
}

/* by: rows, then columns. how: 0 for zeros, else hvt_padding + 1. */
static pt2_value *pad_pixels(pt2_layout *l, pt2_value *x, int how, int by[2][2])
{
    pt2_attributes is = {.border = {.by = {by[0][0], by[0][1], by[1][0], by[1][1]}}};

    if (!how)
        return hvt__emit_pad(l, x, by[0][0], by[0][1], by[1][0], by[1][1]);
    for (int i = 0; i < 4; i++)
        if (is.border.by[i] < 0)
            REFUSE(l, "it pads with %s and crops; expected one of them", l->n->is.pad.mode);
    is.border.how = (hvt_padding)(how - 1);
    return hvt__emit(l, PT2_BORDER, &is, 1, &x, x->size[0] + by[0][0] + by[0][1],
                     x->size[1] + by[1][0] + by[1][1], x->size[2]);
}

/* The index of a mode of torch.nn.functional.pad: 0 for constant; 4 if unknown. */
static int mode_of(const char *mode)
{
    static const char *const modes[] = {"constant", "reflect", "replicate", "circular"};
    int how = 0;

    while (how < (int)HVT_LEN(modes) && strcmp(modes[how], mode) != 0)
        how++;
    return how;
}

/* Pads any tensor, one dimension at a time. */
static void pad_any(pt2_layout *l, pt2_place x, int how)
{
    const pt2_attributes *is = &l->n->is;
    const double number = how ? 0 : is->pad.value;
    int64_t size[PT2_DIMS];

    memcpy(size, l->n->in[0]->size, sizeof size);
    for (int i = 0; i < is->pad.n / 2; i++) {
        const int dim = x.axes.ndim - 1 - i;
        int by[2][2] = {{0, 0}, {is->pad.by[2 * i], is->pad.by[2 * i + 1]}};
        pt2_along along;
        pt2_value *v;

        if (!by[1][0] && !by[1][1])
            continue;
        along = hvt__lay_along(l, &x, size, dim);
        v = hvt__emit_affine(l, along.place.v, 1, -number);
        v = hvt__emit_affine(l, pad_pixels(l, v, how, by), 1, number);
        x = hvt__lay_resized(&along, v, dim);
        size[dim] += by[1][0] + by[1][1];
    }
    hvt__lay_out(l, x.v, &x.axes);
}

/* pad: two numbers per dimension, from the last dimension on. */
static void pad(pt2_layout *l)
{
    const pt2_attributes *is = &l->n->is;
    pt2_place x = hvt__lay_ordered(l, hvt__place(l, l->n->in[0]));
    const char *axes = axes_in(&x.axes);
    const pt2_value *y = l->n->out[0];
    const int how = mode_of(is->pad.mode);
    int by[4][2] = {{0}};
    pt2_value *padded;

    if (how > 1 + HVT_PAD_CIRCULAR || (!how && !isfinite(is->pad.value)))
        REFUSE(
            l, "it pads with %s; expected a number, reflect, replicate, circular, or, for max_pool2d, -inf",
            how ? is->pad.mode : "-inf other than as many rows and columns behind as in front, or one more");
    if (is->pad.n % 2 || is->pad.n > 2 * x.axes.ndim)
        REFUSE(l, "its argument pad has %d numbers for %d dimensions", is->pad.n, x.axes.ndim);
    if (!axes || (!how && is->pad.value != 0)) {
        pad_any(l, x, how);
        return;
    }
    for (int i = 0; i < is->pad.n / 2; i++)
        memcpy(by[strchr("NCHW", axes[x.axes.ndim - 1 - i]) - "NCHW"], is->pad.by + 2 * i, sizeof by[0]);
    if (by[0][0] || by[0][1])
        REFUSE(l, "it pads the batch; expected images");
    if (y->ndim != x.axes.ndim)
        REFUSE(l, "its output has other dimensions than its input");
    padded = how && (by[1][0] || by[1][1]) ? NULL : pad_channels(l, x.v, by[1][0], by[1][1]);
    if (!padded) {
        pad_any(l, x, how);
        return;
    }
    x.v = padded;
    if (by[2][0] || by[2][1] || by[3][0] || by[3][1])
        x.v = pad_pixels(l, x.v, how, by + 2);
    x.axes = resized(axes, y->size);
    hvt__lay_out(l, x.v, &x.axes);
}

/* ---- the table ---- */

static const pt2_lay_row table[] = {
    {PT2_VIEW, view},   {PT2_EXPAND, expand}, {PT2_REPEAT, repeat}, {PT2_PERMUTE, permute},
    {PT2_SLICE, slice}, {PT2_CAT, cat},       {PT2_PAD, pad},       {PT2_ROLL, roll},
};

const pt2_lay_rows hvt__lay_move_rows = {table, HVT_LEN(table)};
