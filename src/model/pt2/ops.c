/*
 * The operations of PyTorch that are imported: layers with parameters, pooling, and the table of these at the
 * end; those element by element are in elementwise.c, those that compute nothing in moves.c. What an argument
 * means, and what it is when it is left out, is in aten/src/ATen/native/native_functions.yaml of PyTorch.
 */
#include "import.h"

#include <float.h>
#include <math.h>

/* ---- tensors on the tape ---- */

bool hvt__pt2_is_computed(importer *p, const tensor *t)
{
    static const char *const name[HVT__PT2_KINDS] = {
        [HVT__PT2_VALUE] = "constants, of which it is not known",
        [HVT__PT2_NOISE] = "random numbers",
        [HVT__PT2_SCORES] = "products of queries and keys",
        [HVT__PT2_JOINED] = "parameters that were joined",
        [HVT__PT2_LENGTHS] = "lengths of vectors within heads, by which these are not divided",
        [HVT__PT2_PART] = "a part of a copy of a parameter",
        [HVT__PT2_PADDED] = "an image with -inf around it, which max_pool2d alone may read",
        [HVT__PT2_ROTATED] = "a part of a rotary embedding"};

    if (t && t->v < 0 && !((t->state || t->known) && hvt__pt2_as_value(p, &p->tensor[t - p->tensor])))
        hvt__pt2_refuse(p, "it computes with %s; expected the result of an operation%s",
                        t->state ? t->state : name[t->kind],
                        t->state && hvt__pt2_ends_in(t->state, "weight")
                            ? ". A layer's weight is imported as it is, not computed anew in each step, as "
                              "standardised weights are"
                            : "");
    return t && t->v >= 0;
}

/* What the operation calls it. */
const char *hvt__pt2_first_argument(const importer *p)
{
    return hvt__pt2_given(p, "input") ? "input" : "self";
}

/* [C/g][g] was [g][C/g]. */
hvt_value hvt__pt2_ordered(importer *p, const tensor *t)
{
    const hvt__pt2_atom *a = t->axes.atom + t->axes.end[0];

    if (t->axes.ndim == 4 && t->axes.end[1] == t->axes.end[0] + 2 && a[0].axis == 'C' && a[1].axis == 'C' &&
        a[0].stride == 1 && a[1].stride == a[0].extent && hvt__pt2_is(&t->axes, 2, 'H') &&
        hvt__pt2_is(&t->axes, 3, 'W'))
        return hvt_shuffle(p->m, t->v, (int)a[1].extent);
    return t->v;
}

/* An argument as [N,C,H,W] of the tape; -1 after a refusal. */
static hvt_value image_of(importer *p, const char *name, const tensor *t)
{
    tensor lined;
    hvt_value v;

    if (!hvt__pt2_is_computed(p, t))
        return -1;
    lined = hvt__pt2_with_lines(p, t);
    t = &lined;
    v = hvt__pt2_ordered(p, t);
    if (v == t->v && (t->axes.ndim != 4 || !hvt__pt2_is(&t->axes, 1, 'C') || !hvt__pt2_is(&t->axes, 2, 'H') ||
                      !hvt__pt2_is(&t->axes, 3, 'W'))) {
        hvt__pt2_refuse(p, "%s is not [N,C,H,W]: its dimensions were moved or joined", name);
        return -1;
    }
    return v;
}

hvt_value hvt__pt2_image(importer *p, const char *name)
{
    return image_of(p, name, hvt__pt2_tensor(p, name));
}

/* As [N,C,H,W] or [N,C]. */
static hvt_value image_or_row(importer *p, const char *name)
{
    const tensor *t = hvt__pt2_tensor(p, name);

    return t && t->v >= 0 && t->axes.ndim == 2 && hvt__pt2_is(&t->axes, 1, 'C') ? t->v
                                                                                : hvt__pt2_image(p, name);
}

/* ---- layers with parameters ---- */

bool hvt__pt2_is_trained(importer *p, const char *argument, const tensor *t)
{
    if (!t->state)
        hvt__pt2_refuse(p, "its %s is computed; expected a parameter", argument);
    else if (t->constant || t->viewed)
        hvt__pt2_refuse(p, "its %s is %s %s; expected a parameter", argument,
                        t->constant ? "the buffer" : "a view of", t->state);
    return !p->failed;
}

/* Without ".weight" or "weight" */
static void layer_name(importer *p, const tensor *weight, char *text, size_t size)
{
    size_t n = weight && weight->state ? strlen(weight->state) : 0;

    text[0] = 0;
    if (weight && !hvt__pt2_is_trained(p, "weight", weight))
        return;
    if (n > 7 && !strcmp(weight->state + n - 7, ".weight") && n - 7 < size)
        snprintf(text, size, "%.*s", (int)(n - 7), weight->state);
    else if (n > 7 && !strcmp(weight->state + n - 7, "_weight") && n - 6 < size)
        snprintf(text, size, "%.*s", (int)(n - 6), weight->state); /* see hvt_name() */
    else if (weight)
        hvt__pt2_refuse(p, "its weight is %s; expected a parameter whose name ends in .weight or _weight",
                        weight->state);
    else
        hvt__pt2_refuse(p, "it has no weight");
}

/* A parameter of the layer. */
static void member_name(const char *layer, const char *suffix, char *text, size_t size)
{
    const size_t n = strlen(layer);

    snprintf(text, size, "%s%s%s", layer, n && layer[n - 1] == '_' ? "" : ".", suffix);
}

static bool belongs(importer *p, const char *argument, const char *layer, const char *suffix)
{
    const tensor *t = hvt__pt2_tensor(p, argument);
    char want[256];

    member_name(layer, suffix, want, sizeof want);
    if (t && (!t->state || strcmp(t->state, want) != 0))
        hvt__pt2_refuse(p, "its %s is %s; expected %s", argument, t->state ? t->state : "computed", want);
    return t && (strcmp(suffix, "bias") != 0 || hvt__pt2_is_trained(p, argument, t));
}

void hvt__pt2_begin_layer(importer *p, const char *layer)
{
    const json_t *made = json_object_get(p->layers, layer);

    if (made)
        hvt_share(p->m, (hvt_value)json_integer_value(made));
    else
        hvt_name(p->m, "%s", layer);
}

/* Name the layer appended next after its weight, or let it share the parameters of the one that has them; the
 * sizes of the weight in the file. */
static int begin_layer(importer *p, char *layer, size_t room, int64_t *ret_size)
{
    const tensor *w = hvt__pt2_tensor(p, "weight");

    layer_name(p, w, layer, room);
    if (p->failed)
        return 0;
    hvt__pt2_begin_layer(p, layer);
    return hvt__pt2_argument_sizes(p, "weight", 4, ret_size);
}

/* "": it has no parameters */
void hvt__pt2_keep_layer(importer *p, const char *layer, hvt_value v)
{
    if (*layer && !json_object_get(p->layers, layer) &&
        json_object_set_new(p->layers, layer, json_integer(v)) != 0)
        hvt__pt2_refuse(p, "no memory for its name");
}

/* The bias of a convolution or linear layer, whose weight may be others', too. */
typedef struct bias_of {
    bool inside;         /* it is the layer's own */
    const tensor *apart; /* or of another name, added behind the layer; NULL: there is none */
    char name[256];
} bias_of;

static bias_of find_bias(importer *p, const char *layer)
{
    const tensor *t;
    bias_of b = {0};

    p->bias = true;
    t = hvt__pt2_tensor(p, "bias");
    p->bias = false;
    member_name(layer, "bias", b.name, sizeof b.name);
    if (!t)
        return b;
    if (t->kind != HVT__PT2_JOINED && hvt__pt2_is_trained(p, "bias", t) && !t->zeros_end)
        b.inside = !strcmp(t->state, b.name) &&
                   (!json_object_get(p->layers, layer) || json_object_get(p->layers, b.name));
    b.apart = b.inside ? NULL : t;
    return b;
}

/* The layer made v of `outputs` channels: with its bias. */
static hvt_value end_bias(importer *p, const char *layer, const bias_of *b, hvt_value v, int64_t outputs)
{
    hvt__pt2_keep_layer(p, layer, v);
    if (b->inside)
        hvt__pt2_keep_layer(p, b->name, v);
    if (b->apart && (b->apart->kind == HVT__PT2_JOINED || b->apart->zeros_end))
        return hvt__pt2_add_in_parts(p, v, b->apart);
    return b->apart ? hvt__pt2_by_parameter(p, HVT_ADD, v, b->apart, 1, &outputs, 0) : v;
}

static void end_layer(importer *p, const char *layer, hvt_value v)
{
    hvt__pt2_keep_layer(p, layer, v);
    hvt__pt2_out_value(p, v);
}

/* Output 0 is v, which lies as one of the arguments. */
void hvt__pt2_out_like(importer *p, hvt_value v, const hvt__pt2_axes *axes)
{
    hvt__pt2_out(p, 0, (tensor){.v = v, .axes = *axes}, NULL);
}

static int outputs(const importer *p, int64_t in_file)
{
    return p->classes && hvt__pt2_makes_classes(p->file, p->node) ? p->classes : (int)in_file;
}

static void same_padding(const hvt_conv2d_opts *o, int *ret)
{
    const int64_t h = o->dilation_h * (o->kernel_h - (int64_t)1),
                  w = o->dilation_w * (o->kernel_w - (int64_t)1),
                  all[4] = {h / 2, w / 2, h - h / 2, w - w / 2};

    for (int i = 0; i < 4; i++) /* the convolution refuses what is too large */
        ret[i] = all[i] > INT_MAX ? INT_MAX : (int)all[i];
}

/* Of a line, 1 x S, or of an image; x: what it reads. Output 0 lies as that, or, axes NULL, as an image. */
static void convolve(importer *p, hvt_value x, bool line, const hvt__pt2_axes *axes)
{
    const int dims = line ? 1 : 2;
    int64_t size[4], out[HVT__PT2_DIMS];
    char layer[192];
    int stride[2] = {1, 1}, pad[4] = {0}, dilation[2] = {1, 1};
    hvt_conv2d_opts o;
    bias_of bias;
    hvt_value v;

    if (begin_layer(p, layer, sizeof layer, size) != 2 + dims) {
        hvt__pt2_refuse(p, "its weight has not %d dimensions", 2 + dims);
        return;
    }
    hvt__pt2_ints(p, "stride", dims, stride + line);
    hvt__pt2_ints(p, "dilation", dims, dilation + line);
    bias = find_bias(p, layer);
    o = (hvt_conv2d_opts){.filters = outputs(p, size[0]),
                          .kernel_h = line ? 1 : (int)size[2],
                          .kernel_w = (int)size[1 + dims],
                          .stride_h = stride[0],
                          .stride_w = stride[1],
                          .dilation_h = dilation[0],
                          .dilation_w = dilation[1],
                          .groups = hvt__pt2_int(p, "groups", 1),
                          .bias = bias.inside,
                          .line = line};
    if (strstr(hvt__pt2_target(p->node), ".padding")) {
        if (!strcmp(hvt__pt2_string(p, "padding", "valid"), "same"))
            same_padding(&o, pad);
    } else {
        hvt__pt2_ints(p, "padding", dims, pad + line);
        pad[2] = pad[0], pad[3] = pad[1];
    }
    o.top = pad[0], o.left = pad[1], o.bottom = pad[2], o.right = pad[3];
    if (p->failed)
        return;
    v = end_bias(p, layer, &bias, hvt_conv2d_with(p->m, x, &o), o.filters);
    if (!axes) {
        hvt__pt2_out_value(p, v);
    } else if (hvt__pt2_out_sizes(p, 0, out) == 3) {
        hvt__pt2_axes y = *axes;

        hvt__pt2_set(&y, 1, 'C', out[1]);
        hvt__pt2_set(&y, 2, 'W', out[2]);
        hvt__pt2_out_like(p, v, &y);
    }
}

static void conv2d(importer *p)
{
    hvt_value x = hvt__pt2_image(p, "input");

    if (!p->failed)
        convolve(p, x, false, NULL);
}

/* Along tokens, [N,C,T], or along the channels of a row, [N,1,C]. */
static void conv1d(importer *p)
{
    const tensor *t = hvt__pt2_tensor(p, "input");
    tensor x;
    int shape[3];

    if (!hvt__pt2_is_computed(p, t))
        return;
    x = *t;
    hvt__pt2_unroll(p, &x);
    if (x.axes.ndim == 3 && hvt__pt2_has(&x.axes, 2, 'C'))
        hvt__pt2_turn(p, &x, 0, 0);
    if (x.axes.ndim != 3 || !hvt__pt2_is(&x.axes, 1, 'C') || !hvt__pt2_is_pixels(&x.axes, 2)) {
        hvt__pt2_refuse(p, "its input is not [N,C,T]: its dimensions were moved or joined");
        return;
    }
    hvt_value_shape(p->m, x.v, shape);
    if (shape[0] > 1)
        x.v = hvt_reshape(p->m, x.v, 1, shape[0] * shape[1]);
    convolve(p, x.v, true, &x.axes);
}

/* Over the last dimension, which is the channels, wherever pixels and images are; or over all of an image,
 * [N,C*H*W]. */
static void linear(importer *p)
{
    const tensor *t = hvt__pt2_tensor(p, "input");
    tensor x;
    hvt__pt2_axes axes;
    int last;
    bool flat;
    int64_t size[4];
    char layer[192];
    bias_of bias;
    hvt_value v;

    if (!hvt__pt2_is_computed(p, t))
        return;
    x = hvt__pt2_channels_last(p, t);
    v = x.v;
    axes = x.axes;
    last = axes.ndim - 1;
    flat = last < 0 || !hvt__pt2_is(&axes, last, 'C');
    if (flat && last == 1) {
        int64_t image[4] = {p->file->batch, 1, 1, 1};

        for (int i = axes.end[0]; i < axes.end[1]; i++)
            image[strchr("NCHW", axes.atom[i].axis) - "NCHW"] *= axes.atom[i].extent;
        if (!hvt__pt2_view(&axes, 4, image) || !hvt__pt2_is(&axes, 1, 'C') || !hvt__pt2_is(&axes, 2, 'H') ||
            !hvt__pt2_is(&axes, 3, 'W'))
            hvt__pt2_refuse(p, "its input was flattened in another order than C, H, W");
        v = hvt_flatten(p->m, v);
    } else if (flat) {
        hvt__pt2_refuse(p, "the last dimension of its input is not the channels");
    }
    if (begin_layer(p, layer, sizeof layer, size) != 2)
        hvt__pt2_refuse(p, "its weight has not 2 dimensions");
    bias = find_bias(p, layer);
    if (p->failed)
        return;
    v = hvt_linear_with(p->m, v, outputs(p, size[0]), bias.inside);
    v = end_bias(p, layer, &bias, v, outputs(p, size[0]));
    if (flat) {
        hvt__pt2_out_value(p, v);
        return;
    }
    hvt__pt2_set(&axes, last, 'C', size[0]);
    hvt__pt2_out_like(p, v, &axes);
}

static void batch_norm(importer *p)
{
    hvt_value x = image_or_row(p, "input");
    double eps = hvt__pt2_float(p, "eps", 1e-5), momentum = hvt__pt2_float(p, "momentum", 0.1);
    int64_t size[4];
    char layer[192];

    if (!hvt__pt2_given(p, "weight") || !hvt__pt2_given(p, "bias"))
        hvt__pt2_refuse(p, "it has no weight and bias, as with affine=False; expected affine=True");
    if (!hvt__pt2_given(p, "running_mean") || !hvt__pt2_given(p, "running_var"))
        hvt__pt2_refuse(p, "it has no running statistics, as with track_running_stats=False; expected "
                           "track_running_stats=True");
    if (p->failed)
        return;
    begin_layer(p, layer, sizeof layer, size);
    if (!p->failed && belongs(p, "bias", layer, "bias") &&
        belongs(p, "running_mean", layer, "running_mean") && belongs(p, "running_var", layer, "running_var"))
        end_layer(p, layer,
                  p->file->fixed_norms && !hvt__pt2_norm_trains(p->node)
                      ? hvt_batchnorm_fixed(p->m, x, (float)eps)
                      : hvt_batchnorm_with(p->m, x, (float)eps, (float)momentum));
}

/* A weight without a bias, or a bias without a weight, which is not the layer's own. */
typedef struct apart {
    const tensor *of; /* NULL: there is none */
    const char *argument;
    hvt_binary op;
} apart;

/* Has the layer a weight and a bias? */
static bool affine(importer *p, char *layer, size_t room, apart *ret_apart)
{
    const tensor *weight = hvt__pt2_tensor(p, "weight"), *bias = hvt__pt2_tensor(p, "bias");
    int64_t size[4];

    *ret_apart = (apart){0};
    if (weight && bias) {
        begin_layer(p, layer, room, size);
        if (!p->failed)
            belongs(p, "bias", layer, "bias");
        return true;
    }
    if (weight && hvt__pt2_is_trained(p, "weight", weight))
        *ret_apart = (apart){weight, "weight", HVT_MUL};
    else if (bias && hvt__pt2_is_trained(p, "bias", bias))
        *ret_apart = (apart){bias, "bias", HVT_ADD};
    return false;
}

/* What such a layer made, with what is not its own. */
static hvt_value with_apart(importer *p, hvt_value v, const apart *a)
{
    int64_t channels = 0;

    if (!a->of || p->failed)
        return v;
    hvt__pt2_argument_sizes(p, a->argument, 1, &channels);
    return hvt__pt2_by_parameter(p, a->op, v, a->of, 1, &channels, a->op == HVT_MUL ? 1 : 0);
}

/* Is the last dimension channels, all, or those of each head? */
static bool ends_in_channels(const hvt__pt2_axes *x)
{
    const int last = x->ndim - 1, begin = last > 0 ? x->end[last - 1] : 0;

    return last > 0 &&
           (hvt__pt2_is(x, last, 'C') ||
            (x->end[last] == begin + 1 && x->atom[begin].axis == 'C' && x->atom[begin].stride == 1));
}

/* Over C of [N,H,W,C], or of each head, or over all of [N,C,H,W]. */
static void layer_norm(importer *p)
{
    const tensor *t = hvt__pt2_tensor(p, "input");
    double eps = hvt__pt2_float(p, "eps", 1e-5);
    hvt__pt2_axes axes;
    const char *kind;
    size_t n = json_array_size(hvt__pt2_arg(p->node, "normalized_shape", &kind));
    char layer[192] = "";
    bool scaled, last, whole;
    int heads = 1;
    tensor x;
    apart alone;
    hvt_value v;

    if (!hvt__pt2_is_computed(p, t))
        return;
    x = hvt__pt2_channels_last(p, t);
    axes = x.axes;
    last = n == 1 && ends_in_channels(&axes);
    v = last ? hvt__pt2_vectors(p, &x, &heads) : x.v;
    whole = n == 3 && axes.ndim == 4 && hvt__pt2_is(&axes, 1, 'C') && hvt__pt2_is(&axes, 2, 'H');
    if (!last && !whole)
        hvt__pt2_refuse(p,
                        "it normalises neither over channels, its last dimension, nor over all of [N,C,H,W]");
    scaled = affine(p, layer, sizeof layer, &alone);
    if (alone.of && !last)
        hvt__pt2_refuse(p, "it has a weight without a bias, or a bias without a weight, for each element");
    if (p->failed)
        return;
    v = hvt_layernorm(p->m, v, whole ? HVT_OVER_IMAGE : HVT_OVER_CHANNELS, (float)eps, scaled);
    hvt__pt2_keep_layer(p, layer, v);
    hvt__pt2_out_like(p, hvt__pt2_of_heads(p, with_apart(p, v, &alone), heads), &axes);
}

/* x / sqrt(mean of x^2 + eps) * weight, over C of [N,H,W,C], or of each head. */
static void rms_norm(importer *p)
{
    const tensor *t = hvt__pt2_tensor(p, "input");
    const apart weight = {hvt__pt2_tensor(p, "weight"), "weight", HVT_MUL};
    const double eps = hvt__pt2_float(p, "eps", FLT_EPSILON);
    const char *kind;
    tensor x;
    hvt_value v, scale;
    int heads = 1;

    if (!hvt__pt2_is_computed(p, t))
        return;
    x = hvt__pt2_channels_last(p, t);
    if (json_array_size(hvt__pt2_arg(p->node, "normalized_shape", &kind)) != 1 || !ends_in_channels(&x.axes))
        hvt__pt2_refuse(p, "it does not normalise over channels, its last dimension");
    if (weight.of)
        hvt__pt2_is_trained(p, "weight", weight.of);
    if (p->failed)
        return;
    v = hvt__pt2_vectors(p, &x, &heads);
    scale = hvt_mean_channels(p->m, hvt_combine(p->m, HVT_MUL, v, v));
    scale = hvt_apply(p->m, hvt_apply(p->m, scale, HVT_AFFINE, 1, (float)eps), HVT_POW, -0.5f, 0);
    v = with_apart(p, hvt_combine(p->m, HVT_MUL, v, scale), &weight);
    hvt__pt2_out_like(p, hvt__pt2_of_heads(p, v, heads), &x.axes);
}

static void group_norm(importer *p)
{
    hvt_value x = image_or_row(p, "input");
    int groups = hvt__pt2_int(p, "num_groups", 1);
    double eps = hvt__pt2_float(p, "eps", 1e-5);
    char layer[192] = "";
    apart alone;
    bool scaled = affine(p, layer, sizeof layer, &alone);

    if (!p->failed)
        end_layer(p, layer, with_apart(p, hvt_groupnorm(p->m, x, groups, (float)eps, scaled), &alone));
}

/* A group norm of as many groups as channels. */
static void instance_norm(importer *p)
{
    hvt_value x = hvt__pt2_image(p, "input");
    double eps = hvt__pt2_float(p, "eps", 1e-5);
    int64_t size[HVT__PT2_DIMS];
    char layer[192] = "";
    apart alone;
    bool scaled = affine(p, layer, sizeof layer, &alone);

    if (hvt__pt2_given(p, "running_mean"))
        hvt__pt2_refuse(p, "it has running statistics; expected track_running_stats=False");
    if (!p->failed && hvt__pt2_out_sizes(p, 0, size) == 4 && size[1] <= INT_MAX)
        end_layer(p, layer, with_apart(p, hvt_groupnorm(p->m, x, (int)size[1], (float)eps, scaled), &alone));
}

/* ---- pooling ---- */

/* To h x w windows. */
static hvt_value pool_to(importer *p, hvt_value x, hvt_pooling_kind kind, int h, int w)
{
    return kind == HVT_POOL_MEAN && h == 1 && w == 1 ? hvt_avgpool(p->m, x)
                                                     : hvt_adaptive_pool(p->m, x, kind, h, w);
}

static void pool(importer *p, hvt_pooling_kind kind)
{
    const tensor *t = hvt__pt2_tensor(p, "self");
    const bool padded = t && t->kind == HVT__PT2_PADDED && kind == HVT_POOL_MAX;
    hvt_value x = image_of(p, "self", padded ? &p->tensor[t->of] : t);
    int size[2] = {1, 1}, stride[2], pad[2] = {0, 0}, dilation[2] = {1, 1}, shape[3];

    hvt__pt2_ints(p, "kernel_size", 2, size);
    stride[0] = size[0], stride[1] = size[1];
    hvt__pt2_ints(p, "stride", 2, stride);
    hvt__pt2_ints(p, "padding", 2, pad);
    hvt__pt2_ints(p, "dilation", 2, dilation);
    if (dilation[0] != 1 || dilation[1] != 1)
        hvt__pt2_refuse(p, "its dilation is %dx%d; expected 1x1", dilation[0], dilation[1]);
    if (hvt__pt2_given(p, "divisor_override"))
        hvt__pt2_refuse(p, "it has a divisor_override; expected none");
    if (padded && (pad[0] || pad[1]))
        hvt__pt2_refuse(p, "it pads an image that has -inf around it");
    if (p->failed)
        return;
    if (padded)
        memcpy(pad, t->front, sizeof pad);
    hvt_value_shape(p->m, x, shape);
    if (size[0] == shape[0] && size[1] == shape[1] && !pad[0] && !pad[1]) {
        hvt__pt2_out_value(p, pool_to(p, x, kind, 1, 1));
        return;
    }
    hvt__pt2_out_value(
        p, hvt_pool_with(p->m, x, kind,
                         &(hvt_pool_opts){.size = {size[0], size[1]},
                                          .stride = {stride[0], stride[1]},
                                          .pad = {pad[0], pad[1]},
                                          .ceil_mode = hvt__pt2_bool(p, "ceil_mode", false) ||
                                                       (padded && t->more_behind),
                                          .exclude_pad = !hvt__pt2_bool(p, "count_include_pad", true)}));
}

static void max_pool(importer *p)
{
    pool(p, HVT_POOL_MAX);
}

static void avg_pool(importer *p)
{
    pool(p, HVT_POOL_MEAN);
}

static void adaptive_pool(importer *p, hvt_pooling_kind kind)
{
    hvt_value x = hvt__pt2_image(p, "self");
    int size[2] = {1, 1};

    hvt__pt2_ints(p, "output_size", 2, size);
    if (!p->failed)
        hvt__pt2_out_value(p, pool_to(p, x, kind, size[0], size[1]));
}

static void adaptive_avg_pool(importer *p)
{
    adaptive_pool(p, HVT_POOL_MEAN);
}

/* Of tokens, [N,C,T], to one. */
static void adaptive_avg_pool_1d(importer *p)
{
    const tensor *t = hvt__pt2_tensor(p, "self");
    hvt__pt2_axes axes;
    int size = 1;

    hvt__pt2_ints(p, "output_size", 1, &size);
    if (!hvt__pt2_is_computed(p, t))
        return;
    axes = t->axes;
    if (axes.ndim != 3 || !hvt__pt2_is(&axes, 1, 'C') || !hvt__pt2_is_pixels(&axes, 2) || size != 1)
        hvt__pt2_refuse(p, "it makes %d of the last dimension; expected 1 of the tokens of [N,C,T]", size);
    if (p->failed)
        return;
    hvt__pt2_reduce(&axes, 2);
    hvt__pt2_out_like(p, hvt_avgpool(p->m, t->v), &axes);
}

/* Whose second output is not imported. */
static void adaptive_max_pool(importer *p)
{
    adaptive_pool(p, HVT_POOL_MAX);
}

/* Does the argument scale_factors, where it is given, make `to` of `from` pixels without rounding? */
static bool scales(importer *p, const int *from, const int64_t *to)
{
    const char *kind;
    const json_t *given = hvt__pt2_arg(p->node, "scale_factors", &kind);
    double factor;

    for (size_t i = 0; given && i < 2; i++)
        if (!hvt__pt2_real(json_array_get(given, i), &factor) || factor * from[i] != (double)to[i])
            return false;
    return true;
}

/* By whole factors: then adaptive windows are of one pixel each. */
static void upsample_nearest(importer *p)
{
    hvt_value x = hvt__pt2_image(p, "input");
    int64_t to[HVT__PT2_DIMS];
    int from[3];

    if (x < 0 || hvt__pt2_out_sizes(p, 0, to) != 4)
        return;
    hvt_value_shape(p->m, x, from);
    if (!scales(p, from, to + 2))
        hvt__pt2_refuse(p,
                        "its scale_factors are not those of %dx%d and %lldx%lld pixels, its input and output",
                        from[0], from[1], (long long)to[2], (long long)to[3]);
    else if (to[2] % from[0] || to[3] % from[1] || to[2] > INT_MAX || to[3] > INT_MAX)
        hvt__pt2_refuse(p, "it makes %lldx%lld pixels of %dx%d; expected whole multiples", (long long)to[2],
                        (long long)to[3], from[0], from[1]);
    else
        hvt__pt2_out_value(p, hvt_adaptive_pool(p->m, x, HVT_POOL_MEAN, (int)to[2], (int)to[3]));
}

/* What is summed of an image in the file; it may be repeated more than on the tape. */
static double elements(importer *p, int n, const int *dim)
{
    int64_t size[HVT__PT2_DIMS];
    double all = 1;

    if (hvt__pt2_argument_sizes(p, "self", HVT__PT2_DIMS, size) > 0)
        for (int i = 0; i < n; i++)
            all *= (double)size[dim[i]];
    return all;
}

/* MAX: of equal ones the first has the gradient; AMAX: all share it. */
typedef enum reduction { MEAN, SUM, NORM, MAX, AMAX } reduction;

enum { PARTS = 16 }; /* of the channels, that are added or compared */

static hvt_value joined(importer *p, hvt_binary op, const hvt_value *v, int n)
{
    hvt_value all = v[0];

    for (int i = 1; i < n; i++)
        all = hvt_combine(p->m, op, all, v[i]);
    return all;
}

/* Over a part of the channels; false: it is none. */
static bool reduce_part(importer *p, reduction how, int dim)
{
    const tensor *t = hvt__pt2_tensor(p, "self");
    hvt_value part[PARTS], v;
    int64_t size[HVT__PT2_DIMS];
    hvt__pt2_axes axes;
    int n;

    if (!t || t->v < 0 || how == NORM)
        return false;
    dim += dim < 0 ? t->axes.ndim : 0;
    n = hvt__pt2_parts(p, t, dim, PARTS, part);
    if (!n)
        return p->failed;
    axes = t->axes;
    if (how == MAX)
        v = hvt_max_groups(p->m, hvt_concat(p->m, part, n), n);
    else if (how == AMAX)
        v = hvt_amax(p->m, hvt_concat(p->m, part, n), false, false, n);
    else
        v = joined(p, HVT_ADD, part, n);
    if (how == MEAN)
        v = hvt_apply(p->m, v, HVT_AFFINE, 1 / (float)n, 0);
    hvt__pt2_reduce(&axes, dim);
    if (!hvt__pt2_view(&axes, hvt__pt2_out_sizes(p, 0, size), size))
        hvt__pt2_refuse(p, "its output has other dimensions than its input");
    hvt__pt2_out_like(p, v, &axes);
    return true;
}

/* Over whole axes, wherever they are. */
static void reduce(importer *p, reduction how, int n, int *dim)
{
    tensor x;
    int64_t size[HVT__PT2_DIMS];
    int to, shape[3];
    hvt__pt2_axes axes;
    bool fits = n > 0, over[3] = {0};
    hvt_value v;

    if (n == 1 && reduce_part(p, how, dim[0]))
        return;
    x = hvt__pt2_in_order(p, hvt__pt2_tensor(p, "self"));
    to = hvt__pt2_out_sizes(p, 0, size);
    axes = x.axes;
    v = x.v;
    if (p->failed || v < 0)
        return;
    for (int i = 0; i < n && fits; i++) {
        dim[i] += dim[i] < 0 ? axes.ndim : 0;
        if (dim[i] <= 0 || dim[i] >= axes.ndim) {
            fits = false;
            break;
        }
        for (int k = 0; k < 3; k++)
            over[k] = over[k] || hvt__pt2_has(&axes, dim[i], "HWC"[k]);
        hvt__pt2_reduce(&axes, dim[i]);
    }
    for (int i = 0; i < axes.ndim; i++)
        for (int k = 0; k < 3; k++)
            fits = fits && !(over[k] && hvt__pt2_has(&axes, i, "HWC"[k]));
    if (!fits || !hvt__pt2_view(&axes, to, size))
        hvt__pt2_refuse(p, "it is imported over all of C, H or W only, not over the batch or a part of them");
    if (p->failed)
        return;
    if (how == NORM)
        v = hvt_combine(p->m, HVT_MUL, v, v);
    hvt_value_shape(p->m, v, shape);
    if (how == AMAX)
        v = hvt_amax(p->m, v, over[0], over[1], over[2] ? shape[2] : 1);
    else if (over[0] || over[1])
        v = pool_to(p, v, how == MAX ? HVT_POOL_MAX : HVT_POOL_MEAN, over[0] ? 1 : shape[0],
                    over[1] ? 1 : shape[1]);
    if (over[2] && how != AMAX)
        v = how == MAX ? hvt_max_channels(p->m, v) : hvt_mean_channels(p->m, v);
    if (how == SUM)
        v = hvt_apply(p->m, v, HVT_AFFINE, (float)elements(p, n, dim), 0);
    if (how == NORM) { /* the gradient at 0 is 0 */
        v = hvt_apply(p->m, hvt_apply(p->m, v, HVT_CLAMP, 1e-30f, INFINITY), HVT_POW, 0.5f, 0);
        v = hvt_apply(p->m, v, HVT_AFFINE, (float)sqrt(elements(p, n, dim)), 0);
    }
    hvt__pt2_out_like(p, v, &axes);
}

static void reduce_listed(importer *p, reduction how)
{
    int dim[HVT__PT2_DIMS], n = hvt__pt2_list(p, "dim", HVT__PT2_DIMS, dim);

    reduce(p, how, n, dim);
}

static void mean(importer *p)
{
    reduce_listed(p, MEAN);
}

static void sum(importer *p)
{
    reduce_listed(p, SUM);
}

/* Is the dimension some neighbouring channels of several such heads, and kept? */
static bool is_within_heads(importer *p, const hvt__pt2_axes *a, int dim)
{
    const int at = dim < 0 ? dim + a->ndim : dim, begin = at > 0 ? a->end[at - 1] : 0;

    return at > 0 && at < a->ndim && a->end[at] == begin + 1 && a->atom[begin].axis == 'C' &&
           a->atom[begin].stride == 1 && !hvt__pt2_is(a, at, 'C') && hvt__pt2_bool(p, "keepdim", false);
}

static void norm(importer *p)
{
    const double order = hvt__pt2_float(p, "ord", 2);
    const tensor *t = hvt__pt2_uncut(p, "self");
    int dim[HVT__PT2_DIMS];
    const bool within = t && t->v >= 0 && hvt__pt2_list(p, "dim", HVT__PT2_DIMS, dim) == 1 &&
                        is_within_heads(p, &t->axes, dim[0]);

    if (order != 2)
        hvt__pt2_refuse(p, "its order is %g; expected 2", order);
    else if (within)
        hvt__pt2_out(p, 0, (tensor){.kind = HVT__PT2_LENGTHS, .of = hvt__pt2_index(p, t), .v = -1}, NULL);
    else
        reduce_listed(p, NORM);
}

static void amax(importer *p)
{
    reduce_listed(p, AMAX);
}

static void max_along(importer *p)
{
    int dim = hvt__pt2_int(p, "dim", 0);

    if (hvt__pt2_is_read(p, 1))
        hvt__pt2_refuse(p, "its indices are read; expected its values alone");
    else
        reduce(p, MAX, 1, &dim);
}

/* ---- the end ---- */

/* The loss computes it itself, and of the same numbers it makes no others: see hvt_pt2_info.log_softmax. */
static void log_softmax(importer *p)
{
    const tensor *x = hvt__pt2_tensor(p, "self");
    const int dim = hvt__pt2_int(p, "dim", 1);

    if (!hvt__pt2_is_computed(p, x))
        return;
    if (x->axes.ndim != 2 || (dim != 1 && dim != -1))
        hvt__pt2_refuse(p, "it is along dimension %d of %d; expected 1 of [N, classes]", dim, x->axes.ndim);
    hvt__pt2_out(p, 0, *x, x);
}

static bool follows_the_head(const importer *p)
{
    const hvt_pt2 *f = p->file;
    size_t i = 0;

    while (i < f->nneeded && f->needed[i] != f->head && f->needed[i] != p->node)
        i++;
    return i < f->nneeded && f->needed[i] == f->head;
}

/* Over a part of the channels; false: it is none. */
static bool softmax_parts(importer *p, int dim)
{
    const tensor *t = hvt__pt2_tensor(p, "self");
    hvt_value part[PARTS], most, sum;
    const int n = t && t->v >= 0 ? hvt__pt2_parts(p, t, dim, PARTS, part) : 0;

    if (!n)
        return p->failed;
    most = joined(p, HVT_MAXIMUM, part, n);
    for (int i = 0; i < n; i++)
        part[i] = hvt_apply(p->m, hvt_combine(p->m, HVT_SUB, part[i], most), HVT_EXP, 0, 0);
    sum = joined(p, HVT_ADD, part, n);
    for (int i = 0; i < n; i++)
        part[i] = hvt_combine(p->m, HVT_DIV, part[i], sum);
    hvt__pt2_out_like(p, hvt_concat(p->m, part, n), &t->axes);
    return true;
}

/* Over all channels: e^(x - max) / sum. */
static void softmax(importer *p)
{
    tensor x;
    int dim = hvt__pt2_int(p, "dim", 0), shape[3];
    hvt_value v;

    if (hvt__pt2_softmax_scores(p))
        return;
    if (follows_the_head(p))
        hvt__pt2_refuse(p, "the loss computes the softmax of the model's output itself; export the model "
                           "without this one");
    else if (softmax_parts(p, dim))
        return;
    x = hvt__pt2_in_order(p, hvt__pt2_tensor(p, "self"));
    if (p->failed || x.v < 0)
        return;
    dim += dim < 0 ? x.axes.ndim : 0;
    if (dim <= 0 || dim >= x.axes.ndim || !hvt__pt2_has(&x.axes, dim, 'C') ||
        !hvt__pt2_is(&x.axes, dim, 'C')) {
        hvt__pt2_refuse(p, "it is imported over channels only");
        return;
    }
    hvt_value_shape(p->m, x.v, shape);
    v = hvt_combine(p->m, HVT_SUB, x.v, hvt_max_channels(p->m, x.v));
    v = hvt_apply(p->m, v, HVT_EXP, 0, 0);
    v = hvt_combine(p->m, HVT_DIV, v,
                    hvt_apply(p->m, hvt_mean_channels(p->m, v), HVT_AFFINE, (float)shape[2], 0));
    hvt__pt2_out_like(p, v, &x.axes);
}

/* ---- the tables ---- */

static const operation layers[] = {
    {"aten.conv2d.default", conv2d},
    {"aten.conv2d.padding", conv2d},
    {"aten.conv1d.default", conv1d},
    {"aten.conv1d.padding", conv1d},
    {"aten.linear.default", linear},
    {"aten.batch_norm.default", batch_norm},
    {"aten.layer_norm.default", layer_norm},
    {"aten.group_norm.default", group_norm},
    {"aten.rms_norm.default", rms_norm},
    {"aten.instance_norm.default", instance_norm},
    {"aten.empty.memory_format", hvt__pt2_noise},
    {"aten.new_empty.default", hvt__pt2_noise},
    {"aten.bernoulli.float", hvt__pt2_bernoulli},
    {"aten.scaled_dot_product_attention.default", hvt__pt2_attention},
    {"aten.matmul.default", hvt__pt2_matmul},
    {"aten.bmm.default", hvt__pt2_matmul},
    {"aten.einsum.default", hvt__pt2_einsum},
    {"aten.dropout.default", hvt__pt2_dropout},
    {"aten.feature_dropout.default", hvt__pt2_feature_dropout},
    {"aten.max_pool2d.default", max_pool},
    {"aten.avg_pool2d.default", avg_pool},
    {"aten.adaptive_avg_pool2d.default", adaptive_avg_pool},
    {"aten.adaptive_avg_pool1d.default", adaptive_avg_pool_1d},
    {"aten.adaptive_max_pool2d.default", adaptive_max_pool},
    {"aten.upsample_nearest2d.vec", upsample_nearest},
    {"aten._upsample_nearest_exact2d.vec", upsample_nearest},
    {"aten.mean.dim", mean},
    {"aten.sum.dim_IntList", sum},
    {"aten.linalg_vector_norm.default", norm},
    {"aten.amax.default", amax},
    {"aten.max.dim", max_along},
    {"aten.log_softmax.int", log_softmax, .last = true},
    {"aten.softmax.int", softmax},
};

/* Is this its name, or with a _ before the last dot that of its way in place? */
bool hvt__pt2_is_called(const operation *o, const char *target)
{
    const size_t name = strcspn(strchr(o->target, '.') + 1, ".") + 5; /* "aten.relu" */

    return !strncmp(o->target, target, name) &&
           !strcmp(o->target + name, target + name + (target[name] == '_'));
}

const operation *hvt__pt2_operation(const char *target)
{
    const operations all[] = {{layers, HVT_LEN(layers)}, hvt__pt2_elementwise, hvt__pt2_moves};

    for (size_t k = 0; k < HVT_LEN(all); k++)
        for (size_t i = 0; i < all[k].count; i++)
            if (hvt__pt2_is_called(&all[k].of[i], target))
                return &all[k].of[i];
    return NULL;
}

bool hvt__pt2_knows(const char *target, bool last, bool computed)
{
    const operation *o = hvt__pt2_operation(target);

    return o ? last || !o->last : hvt__pt2_computes_constants(target, computed);
}

bool hvt__pt2_makes_view(const char *target)
{
    const operation *o = hvt__pt2_operation(target);

    return o && o->view;
}
