/*
 * Layers with parameters, pooling and dropout: the order that each needs of its input, and the names of
 * its parameters.
 */
#include "layout.h"

#include <math.h>

enum { NAME = 192 };

/* Lays v out as [N,C,H,W], or as another tensor with channels in dimension 1. */
static pt2_place with_channels(pt2_layout *l, pt2_value *v)
{
    const pt2_place *p = hvt__place(l, v);
    int64_t size[4];

    if (p->axes.ndim < 2)
        REFUSE(l, "its input has %d dimensions; expected [N,C,...]", p->axes.ndim);
    if (p->axes.ndim == 4 && !hvt__axes_has(&p->axes, 1, 'N') && v->size[0] == l->g->batch) {
        const pt2_place x = {.v = hvt__lay_image(l, "input", v)};

        memcpy(size, v->size, sizeof size);
        return (pt2_place){x.v, hvt__axes_of(4, size)};
    }
    return hvt__lay_as_channels(l, p, v->size, 1);
}

/* ---- names ---- */

/* The name of a parameter without ".weight" or "weight". */
static const char *layer_name(pt2_layout *l, const pt2_value *weight)
{
    const char *state;
    int n;

    if (!weight)
        REFUSE(l, "it has no weight");
    hvt__lay_check_trained(l, "weight", weight);
    state = hvt__pt2_state_of(weight)->state;
    n = (int)strlen(state) - 7;
    if (n < 1 || n >= NAME || (!hvt__pt2_ends_in(state, ".weight") && !hvt__pt2_ends_in(state, "_weight")))
        REFUSE(l, "its weight is %s; expected a parameter whose name ends in .weight or _weight", state);
    return hvt__pt2_format(l->g, "%.*s", state[n] == '.' ? n : n + 1, state); /* see hvt_name() */
}

/* The name of a parameter of the layer. */
static const char *member_name(pt2_layout *l, const char *layer, const char *suffix)
{
    const size_t n = strlen(layer);

    return hvt__pt2_format(l->g, "%s%s%s", layer, n && layer[n - 1] == '_' ? "" : ".", suffix);
}

/* Refuses the node unless input i is this parameter or buffer of the layer. */
static void check_member(pt2_layout *l, int i, const char *layer, const char *suffix)
{
    const pt2_value *v = hvt__pt2_input(l->n, i), *of = v ? hvt__pt2_state_of(v) : NULL;
    const char *want = member_name(l, layer, suffix);

    if (v && (!of || strcmp(of->state, want) != 0))
        REFUSE(l, "its %s is %s; expected %s", suffix, of ? of->state : "computed", want);
    if (v && !strcmp(suffix, "bias"))
        hvt__lay_check_trained(l, "bias", v);
}

/* Appends the layer; its output is h x w x c. layer: NULL if it has no parameters. */
static pt2_value *emit_layer(pt2_layout *l, pt2_op op, const char *layer, pt2_attributes *is, pt2_value *x,
                             int64_t h, int64_t w, int64_t c)
{
    pt2_value *y;

    is->layer = layer;
    y = hvt__emit(l, op, is, 1, &x, h, w, c);
    y->producer->head = l->n->head;
    if (layer)
        hvt__lay_keep_layer(l, layer);
    return y;
}

/* ---- convolutions and linear layers ---- */

/* The name of the bias if it belongs to the layer; NULL: there is none, or it is added afterwards. */
static const char *own_bias(pt2_layout *l, const char *layer)
{
    const pt2_value *v = hvt__pt2_input(l->n, 2);
    const char *name = member_name(l, layer, "bias");

    if (!v)
        return NULL;
    hvt__lay_check_trained(l, "bias", v);
    return !strcmp(v->state, name) && (!hvt__lay_has_layer(l, layer) || hvt__lay_has_layer(l, name)) ? name
                                                                                                     : NULL;
}

/* Appends the layer with a weight and bias that are tensors of the tape. */
static pt2_value *emit_by_tensors(pt2_layout *l, pt2_value *x, int64_t h, int64_t w)
{
    pt2_value *in[3] = {x, hvt__lay_tensor(l, l->n->in[1]), hvt__pt2_input(l->n, 2)}, *y;
    const int count = in[2] ? 3 : 2;

    in[2] = in[2] ? hvt__lay_tensor(l, in[2]) : NULL;
    y = hvt__emit(l, l->n->op, &l->n->is, count, in, h, w, l->n->is.convolution.filters);
    y->producer->head = l->n->head;
    return y;
}

/* Appends the layer with its bias; its output has h x w pixels. */
static pt2_value *emit_weighted(pt2_layout *l, pt2_value *x, int64_t h, int64_t w)
{
    if (hvt__lay_reads_tensors(l->n))
        return emit_by_tensors(l, x, h, w);

    const pt2_value *v = hvt__pt2_input(l->n, 2);
    const char *layer = layer_name(l, l->n->in[1]), *bias = own_bias(l, layer);
    pt2_attributes is = l->n->is;
    pt2_value *y;

    is.convolution.bias = bias != NULL;
    y = emit_layer(l, l->n->op, layer, &is, x, h, w, is.convolution.filters);
    if (bias)
        hvt__lay_keep_layer(l, bias);
    return v && !bias ? hvt__lay_by_parameter(l, HVT_ADD, y, v, 0) : y;
}

/* Convolves x, an image or a line of tokens. */
static pt2_value *convolve(pt2_layout *l, pt2_value *x)
{
    const pt2_value *y = l->n->out[0];
    const bool line = l->n->is.convolution.line;

    if (y->ndim != 4 - line)
        REFUSE(l, "its output has %d dimensions", y->ndim);
    return emit_weighted(l, x, line ? 1 : y->size[2], y->size[3 - line]);
}

/* A 1-D convolution along tokens, [N,C,T], or along the channels of a row, [N,1,C]. */
static void convolve_line(pt2_layout *l)
{
    pt2_place x = *hvt__place(l, l->n->in[0]);

    hvt__lay_unroll(l, &x);
    if (x.axes.ndim == 3 && hvt__axes_has(&x.axes, 2, 'C'))
        hvt__lay_turn(l, &x, 0, 0);
    if (x.axes.ndim != 3)
        REFUSE(l, "its input has %d dimensions; expected [N,C,T]", x.axes.ndim);
    x = hvt__lay_as_channels(l, &x, l->n->in[0]->size, 1);
    if (!hvt__axes_pixels(&x.axes, 2) || l->n->in[0]->size[0] != l->g->batch)
        REFUSE(l, "its input is not [N,C,T]: the batch was joined with another dimension");
    if (x.v->size[0] > 1)
        x.v = hvt__emit_pixels(l, x.v, 1, x.v->size[0] * x.v->size[1]);
    x.v = convolve(l, x.v);
    hvt__axes_set(&x.axes, 1, 'C', l->n->out[0]->size[1]);
    hvt__axes_set(&x.axes, 2, 'W', l->n->out[0]->size[2]);
    hvt__lay_out(l, x.v, &x.axes);
}

/* A convolution of windows, [N * windows,C,H,W], as one image that contains all windows with zeros between
 * them. */
static void convolve_windows(pt2_layout *l)
{
    hvt_conv2d_opts *o = &l->n->is.convolution;
    const int64_t *in = l->n->in[0]->size, *out = l->n->out[0]->size, windows = in[0] / l->g->batch;
    const int64_t high = (in[2] + o->top + o->bottom + o->stride_h - 1) / o->stride_h * o->stride_h,
                  wide = in[3] + o->left + o->right, made = high / o->stride_h,
                  all = (windows * high - o->dilation_h * (o->kernel_h - 1) - 1) / o->stride_h + 1;
    pt2_value *x = hvt__lay_windows(l, l->n->in[0], false);

    if (high != in[2] || wide != in[3])
        x = hvt__lay_lines(l, x, windows, in[2], high, -o->top, wide, -o->left);
    o->top = o->bottom = o->left = o->right = 0;
    x = emit_weighted(l, x, all, out[3]);
    if (all != windows * out[2])
        x = hvt__lay_lines(l, x, windows, made, out[2], 0, out[3], 0);
    hvt__lay_out_windows(l, x, false);
}

static void conv(pt2_layout *l)
{
    if (l->n->is.convolution.line)
        convolve_line(l);
    else if (l->n->op == PT2_CONV && hvt__lay_has_windows(l, l->n->in[0]))
        convolve_windows(l);
    else
        hvt__lay_out_image(l, convolve(l, hvt__lay_image(l, "input", l->n->in[0])));
}

/* True for [N,C*H*W] in this order. */
static bool is_flat(pt2_layout *l, pt2_axes *x)
{
    int64_t image[4] = {l->g->batch, 1, 1, 1};

    for (int i = x->end[0]; i < x->end[1]; i++)
        image[strchr("NCHW", x->atom[i].axis) - "NCHW"] *= x->atom[i].extent;
    return hvt__axes_view(x, 4, image) && hvt__axes_image(x);
}

/* A linear layer over the last dimension, which becomes the channels, or over a flattened image. */
static void linear(pt2_layout *l)
{
    pt2_place x = hvt__lay_channels_last(l, hvt__place(l, l->n->in[0]));
    const int last = x.axes.ndim - 1;
    pt2_axes image = x.axes;
    const bool flat = last == 1 && !hvt__axes_is(&x.axes, last, 'C') && is_flat(l, &image);

    if (last < 0)
        REFUSE(l, "its input is a number");
    if (flat)
        x.v = hvt__emit(l, PT2_FLATTEN, NULL, 1, &x.v, 1, 1, x.v->size[0] * x.v->size[1] * x.v->size[2]);
    else
        x = hvt__lay_as_channels(l, &x, l->n->in[0]->size, last);
    x.v = emit_weighted(l, x.v, x.v->size[0], x.v->size[1]);
    if (flat) {
        hvt__lay_out_image(l, x.v);
        return;
    }
    hvt__axes_set(&x.axes, last, 'C', x.v->size[2]);
    hvt__lay_out(l, x.v, &x.axes);
}

/* A parameter of n numbers as one pixel. */
static pt2_value *row_of(pt2_layout *l, const pt2_value *v)
{
    return hvt__lay_by_parameter(l, HVT_ADD, hvt__emit_zeros(l, 1, 1, v->size[0]), v, 0);
}

/* Adds a bias that consists of parameters and zeros, or of a parameter with a range set to 0. */
static void bias(pt2_layout *l)
{
    const pt2_node *n = l->n;
    pt2_place *p = hvt__place(l, n->in[0]);
    const int first = n->is.channels.first, count = n->is.channels.count;
    pt2_value *part[16], *all;
    int parts = 0;

    if (count) {
        const int end = first + count, size = (int)n->in[1]->size[0];

        all = row_of(l, n->in[1]);
        if (first > 0)
            part[parts++] = hvt__emit_channels(l, all, 0, first);
        part[parts++] = hvt__emit_zeros(l, 1, 1, count);
        if (end < size)
            part[parts++] = hvt__emit_channels(l, all, end, size - end);
    }
    for (int i = 1; i < n->nin && !count; i++)
        part[parts++] = n->in[i]->source == PT2_TRAINED ? row_of(l, n->in[i])
                                                        : hvt__emit_zeros(l, 1, 1, n->in[i]->size[0]);
    hvt__lay_out(l, hvt__emit_binary(l, HVT_ADD, p->v, hvt__emit_concat(l, parts, part)), &p->axes);
}

/* ---- norms ---- */

static void batch_norm(pt2_layout *l)
{
    pt2_node *n = l->n;
    pt2_place x = with_channels(l, n->in[0]);
    pt2_attributes is = n->is;
    const char *layer;

    if (!n->in[1] || !n->in[2])
        REFUSE(l, "it has no weight and bias, as with affine=False; expected affine=True");
    if (!n->in[3] || !n->in[4])
        REFUSE(l, "it has no running statistics, as with track_running_stats=False; expected "
                  "track_running_stats=True");
    layer = layer_name(l, n->in[1]);
    check_member(l, 2, layer, "bias");
    check_member(l, 3, layer, "running_mean");
    check_member(l, 4, layer, "running_var");
    is.norm.trains = !l->g->fixed_norms || n->is.norm.trains;
    x.v = emit_layer(l, PT2_BATCH_NORM, layer, &is, x.v, x.v->size[0], x.v->size[1], x.v->size[2]);
    hvt__lay_out(l, x.v, &x.axes);
}

/* The weight or bias of a norm that is not the layer's own, since the norm has only one of them; NULL: none.
 */
static const pt2_value *alone(const pt2_node *n)
{
    const pt2_value *weight = n->in[1], *bias = hvt__pt2_input(n, 2);

    return weight && bias ? NULL : weight ? weight : bias;
}

/* A norm with weight and bias, or without; a single one of them is applied afterwards. */
static pt2_value *emit_norm(pt2_layout *l, pt2_op op, pt2_attributes is, pt2_value *x)
{
    const pt2_node *n = l->n;
    const pt2_value *apart = alone(n);
    const hvt_binary by = n->in[1] ? HVT_MUL : HVT_ADD;
    const char *layer = NULL;
    pt2_value *y;

    is.norm.affine = n->in[1] && n->in[2];
    if (is.norm.affine) {
        layer = layer_name(l, n->in[1]);
        check_member(l, 2, layer, "bias");
    }
    if (apart)
        hvt__lay_check_trained(l, n->in[1] ? "weight" : "bias", apart);
    y = emit_layer(l, op, layer, &is, x, x->size[0], x->size[1], x->size[2]);
    return apart ? hvt__lay_by_parameter(l, by, y, apart, by == HVT_MUL ? 1 : 0) : y;
}

/* True if the last dimension is all channels, or those of each head. */
static bool ends_in_channels(const pt2_axes *x)
{
    const int last = x->ndim - 1, begin = last > 0 ? x->end[last - 1] : 0;

    return last > 0 &&
           (hvt__axes_is(x, last, 'C') ||
            (x->end[last] == begin + 1 && x->atom[begin].axis == 'C' && x->atom[begin].stride == 1));
}

/* Over C of [N,H,W,C], over the channels of each head, or over all of [N,C,H,W]. */
static void layer_norm(pt2_layout *l)
{
    pt2_place x = hvt__lay_channels_last(l, hvt__place(l, l->n->in[0]));
    pt2_attributes is = l->n->is;
    const bool last = is.norm.dims == 1 && ends_in_channels(&x.axes),
               whole = is.norm.dims == 3 && x.axes.ndim == 4 && hvt__axes_is(&x.axes, 1, 'C') &&
                       hvt__axes_is(&x.axes, 2, 'H');
    int heads = 1;

    if (!last && !whole && is.norm.dims == 1)
        x = hvt__lay_as_channels(l, &x, l->n->in[0]->size, x.axes.ndim - 1);
    else if (!last && !whole)
        REFUSE(l, "it normalises neither over its last dimension nor over all of [N,C,H,W]");
    if (whole && alone(l->n))
        REFUSE(l, "it has a weight without a bias, or a bias without a weight, for each element");
    x.v = whole ? x.v : hvt__lay_vectors(l, &x, &heads);
    is.norm.dims = whole ? HVT_OVER_IMAGE : HVT_OVER_CHANNELS;
    x.v = emit_norm(l, PT2_LAYER_NORM, is, x.v);
    hvt__lay_out(l, hvt__lay_of_heads(l, x.v, heads), &x.axes);
}

/* x / sqrt(mean of x^2 + eps) * weight over C of [N,H,W,C], or over the channels of each head. */
static void rms_norm(pt2_layout *l)
{
    pt2_place x = hvt__lay_channels_last(l, hvt__place(l, l->n->in[0]));
    const pt2_value *weight = hvt__pt2_input(l->n, 1);
    pt2_value *v, *scale;
    int heads = 1;

    if (l->n->is.norm.dims != 1)
        REFUSE(l, "it normalises over %d dimensions; expected the last one", l->n->is.norm.dims);
    if (!ends_in_channels(&x.axes))
        x = hvt__lay_as_channels(l, &x, l->n->in[0]->size, x.axes.ndim - 1);
    if (weight)
        hvt__lay_check_trained(l, "weight", weight);
    v = hvt__lay_vectors(l, &x, &heads);
    scale = hvt__emit_binary(l, HVT_MUL, v, v);
    scale = hvt__emit(l, PT2_MEAN_CHANNELS, NULL, 1, &scale, v->size[0], v->size[1], 1);
    scale = hvt__emit_map(l, hvt__emit_map(l, scale, HVT_AFFINE, 1, l->n->is.norm.eps), HVT_POW, -0.5, 0);
    v = hvt__emit_binary(l, HVT_MUL, v, scale);
    v = weight ? hvt__lay_by_parameter(l, HVT_MUL, v, weight, 1) : v;
    hvt__lay_out(l, hvt__lay_of_heads(l, v, heads), &x.axes);
}

static void group_norm(pt2_layout *l)
{
    pt2_place x = with_channels(l, l->n->in[0]);

    if (x.axes.end[0] > 1 || (x.axes.end[0] == 1 && x.axes.atom[0].axis != 'N'))
        REFUSE(l, "it normalises a part of an image; expected [N,C,...]");
    x.v = emit_norm(l, PT2_GROUP_NORM, l->n->is, x.v);
    hvt__lay_out(l, x.v, &x.axes);
}

/* ---- pooling ---- */

/* Adaptive pooling to h x w. */
static pt2_value *pool_to(pt2_layout *l, pt2_value *x, hvt_pooling_kind kind, int h, int w)
{
    return hvt__emit(l, PT2_ADAPTIVE_POOL, &(pt2_attributes){.pool = {kind, {.size = {h, w}}}}, 1, &x, h, w,
                     x->size[2]);
}

/* True if adaptive pooling gives the same result: one window, or adjacent ones that are too long for
 * hvt_pool_with(). */
static bool is_even(const hvt_pool_opts *o, const pt2_value *x)
{
    const bool one = o->size[0] == x->size[0] && o->size[1] == x->size[1];
    bool even = !o->pad[0] && !o->pad[1];

    for (int i = 0; i < 2 && even && !one; i++)
        even = o->size[i] > 0 && o->stride[i] == o->size[i] && x->size[i] % o->size[i] == 0 &&
               (o->size[0] > 15 || o->size[1] > 15);
    return even;
}

static void pool(pt2_layout *l)
{
    const pt2_attributes *is = &l->n->is;
    const hvt_pool_opts *o = &is->pool.opts;
    const bool windows = hvt__lay_has_windows(l, l->n->in[0]);
    pt2_value *x = windows ? hvt__lay_windows(l, l->n->in[0], true) : hvt__lay_image(l, "self", l->n->in[0]),
              *y = l->n->out[0];

    if (is_even(o, x))
        x = pool_to(l, x, is->pool.kind, (int)x->size[0] / o->size[0], (int)x->size[1] / o->size[1]);
    else
        x = hvt__emit(l, PT2_POOL, is, 1, &x, y->ndim == 4 ? y->size[2] : 1, y->ndim == 4 ? y->size[3] : 1,
                      x->size[2]);
    if (windows)
        hvt__lay_out_windows(l, x, true);
    else
        hvt__lay_out_image(l, x);
}

static void adaptive_pool(pt2_layout *l)
{
    const int *size = l->n->is.pool.opts.size;
    pt2_value *x = hvt__lay_image(l, "self", l->n->in[0]);

    hvt__lay_out_image(l, pool_to(l, x, l->n->is.pool.kind, size[0], size[1]));
}

/* ---- other numbers of pixels or channels, without parameters ---- */

static void resized(pt2_layout *l)
{
    const pt2_value *y = l->n->out[0];
    pt2_value *x = hvt__lay_image(l, "input", l->n->in[0]);

    if (y->ndim != 4)
        REFUSE(l, "its output has %d dimensions", y->ndim);
    hvt__lay_out_image(l, hvt__emit(l, l->n->op, &l->n->is, 1, &x, y->size[2], y->size[3], y->size[1]));
}

/* ---- dropout ---- */

static void dropout_channels(pt2_layout *l)
{
    hvt__lay_out_image(l, hvt__emit_like(l, l->n->op, &l->n->is, hvt__lay_image(l, "input", l->n->in[0])));
}

static void drop_path(pt2_layout *l)
{
    const pt2_place *p = hvt__place(l, l->n->in[0]);

    if (l->n->is.dropout.share == PT2_PER_CHANNEL && !hvt__axes_is(&p->axes, 1, 'C'))
        REFUSE(l, "its random numbers are for dimension 1, which is not the channels");
    hvt__lay_as_is(l);
}

/* ---- the table ---- */

static const pt2_lay_row table[] = {
    {PT2_CONV, conv},
    {PT2_CONV_TRANSPOSE, conv},
    {PT2_INTERPOLATE, resized},
    {PT2_PIXEL_SHUFFLE, resized},
    {PT2_PIXEL_UNSHUFFLE, resized},
    {PT2_SHUFFLE, resized},
    {PT2_LINEAR, linear},
    {PT2_BIAS, bias},
    {PT2_BATCH_NORM, batch_norm},
    {PT2_LAYER_NORM, layer_norm},
    {PT2_RMS_NORM, rms_norm},
    {PT2_GROUP_NORM, group_norm},
    {PT2_POOL, pool},
    {PT2_ADAPTIVE_POOL, adaptive_pool},
    {PT2_DROPOUT_CHANNELS, dropout_channels},
    {PT2_DROP_PATH, drop_path},
};

const pt2_lay_rows hvt__lay_layer_rows = {table, HVT_LEN(table)};
