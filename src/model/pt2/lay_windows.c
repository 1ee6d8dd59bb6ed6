/*
 * Gathers elements by constant indices: index, windows of a dimension, im2col and col2im. And images that
 * are windows of the batch's images.
 */
#include "layout.h"

/* Gathers elements of each of h lines of x, as pixels. */
static pt2_value *take_columns(pt2_layout *l, pt2_value *x, const int *column, int64_t count)
{
    const int64_t h = x->size[0], w = x->size[1];
    int *index;

    if (count > PT2_REPEATS / h)
        REFUSE(l, "it takes %lld elements of %lld lines; expected at most %d", (long long)count, (long long)h,
               PT2_REPEATS);
    index = hvt__pt2_make(l->g, (size_t)(h * count) * sizeof *index);
    for (int64_t i = 0; i < h * count; i++)
        index[i] = column[i % count] < 0 ? -1 : (int)(i / count * w) + column[i % count];
    return hvt__emit_gather(l, x, index, 1, h, count);
}

/* Views dimension `dim`, which was x's W, as several of these sizes. */
static void out_divided(pt2_layout *l, pt2_along *x, pt2_value *v, int dim)
{
    const pt2_value *y = l->n->out[0];
    pt2_place p = hvt__lay_resized(x, v, dim);

    if (!hvt__axes_view(&p.axes, y->ndim, y->size))
        REFUSE(l, "its output has other dimensions than what it takes");
    hvt__lay_out(l, p.v, &p.axes);
}

static void take(pt2_layout *l)
{
    const pt2_node *n = l->n;
    const int dim = n->is.along.dim;
    const pt2_array *k = hvt__array_numbers_of(l->g, l->n, n->in[1]);
    const int64_t count = hvt__pt2_count(n->in[1]->ndim, n->in[1]->size), size = n->in[0]->size[dim];
    pt2_along x;
    int *column, i = 0;

    if (!k || count < 1 || count > PT2_REPEATS)
        REFUSE(l, "its index is computed; expected a constant");
    column = hvt__pt2_make(l->g, (size_t)count * sizeof *column);
    PT2_EACH(n->in[1]->ndim, n->in[1]->size, at)
    {
        const double e = k->number[hvt__array_element(k, n->in[1]->ndim, at)];

        if (!(e >= -(double)size && e < (double)size))
            REFUSE(l, "its index %g is outside of %lld elements", e, (long long)size);
        column[i++] = (int)e + (e < 0 ? (int)size : 0);
    }
    x = hvt__lay_along(l, hvt__place(l, n->in[0]), n->in[0]->size, dim);
    out_divided(l, &x, take_columns(l, x.place.v, column, count), dim);
}

/* slice_scatter: replaces elements first, first + step ... of a dimension by another tensor. */
static void put(pt2_layout *l)
{
    const pt2_node *n = l->n;
    const int dim = n->is.slice.dim, first = (int)n->is.slice.first, step = (int)n->is.slice.step;
    const int64_t size = n->in[0]->size[dim], count = n->in[1]->size[dim];
    pt2_along x = hvt__lay_along(l, hvt__place(l, n->in[0]), n->in[0]->size, dim),
              y = hvt__lay_along(l, hvt__place(l, n->in[1]), n->in[1]->size, dim);
    int *kept, *part;
    pt2_place a, b;

    if (size > PT2_REPEATS || first + (count - 1) * step >= size)
        REFUSE(l, "it replaces %lld of %lld elements", (long long)count, (long long)size);
    kept = hvt__pt2_make(l->g, (size_t)size * sizeof *kept);
    part = hvt__pt2_make(l->g, (size_t)size * sizeof *part);
    for (int i = 0; i < size; i++) {
        const bool is = i >= first && (i - first) % step == 0 && (i - first) / step < count;

        kept[i] = is ? -1 : i;
        part[i] = is ? (i - first) / step : -1;
    }
    a = hvt__lay_resized(&x, take_columns(l, x.place.v, kept, size), dim);
    b = hvt__lay_resized(&y, take_columns(l, y.place.v, part, size), dim);
    hvt__lay_alike(l, &a, &b, n->out[0]->ndim, n->out[0]->size);
    hvt__lay_out(l, hvt__emit_binary(l, HVT_ADD, a.v, b.v), &a.axes);
}

/* Windows of a dimension; the last dimension is within a window. */
static void unfold(pt2_layout *l)
{
    const pt2_value *in = l->n->in[0], *y = l->n->out[0];
    const int dim = l->n->is.slice.dim, size = (int)l->n->is.slice.block, step = (int)l->n->is.slice.step;
    const int64_t count = y->size[dim] * size;
    pt2_along x = hvt__lay_along(l, hvt__place(l, l->n->in[0]), in->size, dim);
    int order[PT2_DIMS], to = 0, *column;
    int64_t divided[PT2_DIMS];
    pt2_place p;

    if (count > PT2_REPEATS || (y->size[dim] - 1) * step + size > in->size[dim])
        REFUSE(l, "it has %lld windows of %d", (long long)y->size[dim], size);
    column = hvt__pt2_make(l->g, (size_t)count * sizeof *column);
    for (int i = 0; i < count; i++)
        column[i] = i / size * step + i % size;
    p = hvt__lay_resized(&x, take_columns(l, x.place.v, column, count), dim);
    for (int i = 0; i < in->ndim; i++)
        if (i == dim)
            divided[to++] = y->size[dim], divided[to++] = size;
        else
            divided[to++] = in->size[i];
    if (!hvt__axes_view(&p.axes, y->ndim, divided))
        REFUSE(l, "its output has other dimensions than what it takes");
    for (int i = 0; i < y->ndim; i++)
        order[i] = i == y->ndim - 1 ? dim + 1 : i + (i > dim);
    hvt__axes_permute(&p.axes, order);
    hvt__lay_out(l, p.v, &p.axes);
}

/* How many windows fit into dimension i of an image of this size. */
static int64_t windows_of(const hvt_conv2d_opts *o, int i, int64_t size)
{
    const int pad = i ? o->left : o->top, kernel = i ? o->kernel_w : o->kernel_h,
              dilation = i ? o->dilation_w : o->dilation_h, stride = i ? o->stride_w : o->stride_h;

    return (size + 2 * pad - dilation * (kernel - 1) - 1) / stride + 1;
}

/* The pixel of tap k of window i in an image of h x w; -1: outside. */
static int pixel_of(const hvt_conv2d_opts *o, int64_t wide, int64_t i, int k, int64_t h, int64_t w)
{
    const int64_t y = i / wide * o->stride_h - o->top + (int64_t)(k / o->kernel_w) * o->dilation_h,
                  x = i % wide * o->stride_w - o->left + (int64_t)(k % o->kernel_w) * o->dilation_w;

    return y >= 0 && y < h && x >= 0 && x < w ? (int)(y * w + x) : -1;
}

/* [N,C,H,W] -> [N, C * taps, windows] */
static void im2col(pt2_layout *l)
{
    const hvt_conv2d_opts *o = &l->n->is.convolution;
    pt2_value *x = hvt__lay_image(l, "self", l->n->in[0]);
    const int64_t h = x->size[0], w = x->size[1], wide = windows_of(o, 1, w),
                  count = windows_of(o, 0, h) * wide, taps = (int64_t)o->kernel_h * o->kernel_w;
    pt2_axes axes;
    int *index;

    if (l->n->out[0]->ndim != 3 || count < 1 || taps > PT2_REPEATS / count)
        REFUSE(l, "it has %lld windows of %lld taps; expected 1 to %d of both", (long long)count,
               (long long)taps, PT2_REPEATS);
    index = hvt__pt2_make(l->g, (size_t)(count * taps) * sizeof *index);
    for (int64_t i = 0; i < count * taps; i++)
        index[i] = pixel_of(o, wide, i / taps, (int)(i % taps), h, w);
    x = hvt__emit_gather(l, x, index, 1, count, taps);
    axes = hvt__axes_of(4, (const int64_t[]){l->g->batch, x->size[2], count, taps});
    hvt__axes_permute(&axes, (const int[]){0, 1, 3, 2});
    if (!hvt__axes_view(&axes, 3, l->n->out[0]->size))
        REFUSE(l, "its output has other dimensions than what it takes");
    hvt__lay_out(l, x, &axes);
}

/* [N, C * taps, windows] -> [N,C,H,W]: sums the taps that fall on a pixel */
static void col2im(pt2_layout *l)
{
    const hvt_conv2d_opts *o = &l->n->is.convolution;
    const pt2_value *y = l->n->out[0];
    pt2_place x = *hvt__place(l, l->n->in[0]);
    const int64_t h = y->ndim == 4 ? y->size[2] : 0, w = y->ndim == 4 ? y->size[3] : 0,
                  wide = windows_of(o, 1, w), count = windows_of(o, 0, h) * wide,
                  taps = (int64_t)o->kernel_h * o->kernel_w;
    const int64_t view[4] = {l->g->batch, y->size[1], taps, count};
    int *met, *index;

    if (y->ndim != 4 || count < 1 || taps > PT2_REPEATS / count || h * w > PT2_REPEATS / taps)
        REFUSE(l, "it has %lld windows of %lld taps; expected 1 to %d of both", (long long)count,
               (long long)taps, PT2_REPEATS);
    x = hvt__lay_in_order(l, &x, l->n->in[0]->size, 0, x.axes.ndim);
    if (!hvt__axes_view(&x.axes, 4, view))
        REFUSE(l, "its input has other dimensions than its output takes");
    hvt__axes_permute(&x.axes, (const int[]){0, 3, 2, 1});
    x = hvt__lay_in_order(l, &x, NULL, 0, 3);
    met = hvt__pt2_make(l->g, (size_t)(h * w) * sizeof *met);
    index = hvt__pt2_make(l->g, (size_t)(h * w * taps) * sizeof *index);
    for (int64_t i = 0; i < h * w * taps; i++)
        index[i] = -1;
    for (int64_t i = 0; i < count * taps; i++) {
        const int p = pixel_of(o, wide, i / taps, (int)(i % taps), h, w);

        if (p >= 0) {
            index[p * taps + met[p]++] = (int)i;
        }
    }
    hvt__lay_out_image(l, hvt__emit_gather(l, x.v, index, (int)taps, h, w));
}

/* ---- images that are windows ---- */

bool hvt__lay_has_windows(pt2_layout *l, const pt2_value *v)
{
    return v->ndim == 4 && v->size[0] > l->g->batch && v->size[0] % l->g->batch == 0;
}

pt2_value *hvt__lay_windows(pt2_layout *l, pt2_value *v, bool channels)
{
    const int64_t batch = l->g->batch, *d = v->size, size[5] = {batch, d[0] / batch, d[1], d[2], d[3]};
    pt2_place p = *hvt__place(l, v);

    if (!hvt__axes_view(&p.axes, 5, size) || !hvt__axes_is(&p.axes, 0, 'N'))
        REFUSE(l, "its batch was joined with other dimensions than windows of images");
    hvt__axes_permute(&p.axes, channels ? (const int[]){0, 3, 4, 1, 2} : (const int[]){0, 1, 3, 4, 2});
    return hvt__lay_in_order(l, &p, NULL, channels ? 2 : 3, channels ? 3 : 4).v;
}

void hvt__lay_out_windows(pt2_layout *l, pt2_value *v, bool channels)
{
    const int64_t batch = l->g->batch, *d = l->n->out[0]->size, windows = d[0] / batch;
    const int64_t joined[4] = {batch, d[1] * (channels ? windows : 1), d[2] * (channels ? 1 : windows), d[3]},
                  images[5] = {batch, windows, d[2], d[3], d[1]},
                  pixels[5] = {batch, d[2], d[3], windows, d[1]};
    pt2_axes axes = hvt__axes_of(4, joined);
    bool fits = l->n->out[0]->ndim == 4;

    hvt__axes_permute(&axes, (const int[]){0, 2, 3, 1});
    fits = fits && hvt__axes_view(&axes, 5, channels ? pixels : images);
    if (fits)
        hvt__axes_permute(&axes, channels ? (const int[]){0, 3, 4, 1, 2} : (const int[]){0, 1, 4, 2, 3});
    if (!fits || !hvt__axes_view(&axes, 4, d))
        REFUSE(l, "its output has other dimensions than its windows make");
    hvt__lay_out(l, v, &axes);
}

pt2_value *hvt__lay_lines(pt2_layout *l, pt2_value *x, int64_t windows, int64_t from, int64_t to,
                          int64_t first, int64_t wide, int64_t left)
{
    int *index;

    if (windows < 1 || to < 1 || wide < 1 || to > PT2_REPEATS / windows || wide > PT2_REPEATS / windows / to)
        REFUSE(l, "it has %lld windows of %lldx%lld pixels; expected at most %d in all", (long long)windows,
               (long long)to, (long long)wide, PT2_REPEATS);
    index = hvt__pt2_make(l->g, (size_t)(windows * to * wide) * sizeof *index);
    for (int64_t i = 0; i < windows * to * wide; i++) {
        const int64_t at = i % wide + left, line = i / wide % to + first;
        const bool is = line >= 0 && line < from && at >= 0 && at < x->size[1];

        index[i] = is ? (int)((i / wide / to * from + line) * x->size[1] + at) : -1;
        index[i] = index[i] < x->size[0] * x->size[1] ? index[i] : -1;
    }
    return hvt__emit_gather(l, x, index, 1, windows * to, wide);
}

/* ---- the table ---- */

static const pt2_lay_row table[] = {
    {PT2_INDEX, take}, {PT2_PUT, put}, {PT2_UNFOLD, unfold}, {PT2_IM2COL, im2col}, {PT2_COL2IM, col2im},
};

const pt2_lay_rows hvt__lay_window_rows = {table, HVT_LEN(table)};
