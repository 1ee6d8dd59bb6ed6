/*
 * The operations of PyTorch that are imported: a function for each kind, and the table that names them at the
 * end. What an argument means, and what it is when it is left out, is in
 * aten/src/ATen/native/native_functions.yaml of PyTorch.
 */
#include "import.h"

#include <math.h>

enum { MANY = 1024 }; /* inputs of a cat */

/* ---- tensors on the tape ---- */

bool hvt__pt2_is_computed(importer *p, const tensor *t)
{
    if (t && t->v < 0)
        hvt__pt2_refuse(p, "it computes with %s; expected the result of an operation",
                        t->state ? t->state : "random numbers");
    return t && t->v >= 0;
}

/* What the operation calls it. */
const char *hvt__pt2_first_argument(const importer *p)
{
    return hvt__pt2_given(p, "input") ? "input" : "self";
}

/* Channels that view and transpose have put in another order, as a channel shuffle does: [C/g][g] was
 * [g][C/g]. */
static hvt_value ordered(importer *p, const tensor *t)
{
    const hvt__pt2_atom *a = t->axes.atom + 1;

    if (t->axes.ndim == 4 && t->axes.end[1] == 3 && a[0].axis == 'C' && a[1].axis == 'C' &&
        a[0].stride == 1 && a[1].stride == a[0].extent && hvt__pt2_is(&t->axes, 2, 'H') &&
        hvt__pt2_is(&t->axes, 3, 'W'))
        return hvt_shuffle(p->m, t->v, (int)a[1].extent);
    return t->v;
}

/* The first argument as [N,C,H,W] of the tape; -1 after a refusal. */
hvt_value hvt__pt2_image(importer *p, const char *name)
{
    const tensor *t = hvt__pt2_tensor(p, name);
    hvt_value v;

    if (!hvt__pt2_is_computed(p, t))
        return -1;
    v = ordered(p, t);
    if (v == t->v && (t->axes.ndim != 4 || !hvt__pt2_is(&t->axes, 1, 'C') || !hvt__pt2_is(&t->axes, 2, 'H') ||
                      !hvt__pt2_is(&t->axes, 3, 'W'))) {
        hvt__pt2_refuse(p, "%s is not [N,C,H,W]: its dimensions were moved or joined", name);
        return -1;
    }
    return v;
}

/* As [N,C,H,W] or [N,C]. */
static hvt_value image_or_row(importer *p, const char *name)
{
    const tensor *t = hvt__pt2_tensor(p, name);

    return t && t->v >= 0 && t->axes.ndim == 2 && hvt__pt2_is(&t->axes, 1, 'C') ? t->v
                                                                                : hvt__pt2_image(p, name);
}

/* ---- layers with parameters ---- */

static bool is_trained(importer *p, const char *argument, const tensor *t)
{
    if (t->constant)
        hvt__pt2_refuse(p, "its %s is %s, a buffer; expected a parameter, as it would be trained", argument,
                        t->state);
    return !t->constant;
}

/* Without ".weight" */
static void layer_name(importer *p, const tensor *weight, char *text, size_t size)
{
    size_t n = weight && weight->state ? strlen(weight->state) : 0;

    text[0] = 0;
    if (weight && !is_trained(p, "weight", weight))
        return;
    if (n > 7 && !strcmp(weight->state + n - 7, ".weight") && n - 7 < size)
        snprintf(text, size, "%.*s", (int)(n - 7), weight->state);
    else if (weight)
        hvt__pt2_refuse(p, "its weight is %s; expected a parameter whose name ends in .weight",
                        weight->state ? weight->state : "computed");
    else
        hvt__pt2_refuse(p, "it has no weight");
}

static bool belongs(importer *p, const char *argument, const char *layer, const char *suffix)
{
    const tensor *t = hvt__pt2_tensor(p, argument);
    char want[256];

    snprintf(want, sizeof want, "%s.%s", layer, suffix);
    if (t && (!t->state || strcmp(t->state, want) != 0))
        hvt__pt2_refuse(p, "its %s is %s; expected %s", argument, t->state ? t->state : "computed", want);
    return t && (strcmp(suffix, "bias") != 0 || is_trained(p, argument, t));
}

/* Name the layer appended next after its weight, or let it share the parameters of the one that has them; the
 * sizes of the weight in the file. */
static int begin_layer(importer *p, char *layer, size_t room, int64_t *ret_size)
{
    const tensor *w = hvt__pt2_tensor(p, "weight");
    const json_t *made, *arg;
    const char *kind;

    layer_name(p, w, layer, room);
    if (p->failed)
        return 0;
    made = json_object_get(p->layers, layer);
    if (made)
        hvt_share(p->m, (hvt_value)json_integer_value(made));
    else
        hvt_name(p->m, "%s", layer);
    arg = hvt__pt2_arg(p->node, "weight", &kind);
    return hvt__pt2_sizes(p->file, json_string_value(json_object_get(arg, "name")), 4, ret_size);
}

/* "": it has no parameters */
static void keep_layer(importer *p, const char *layer, hvt_value v)
{
    if (*layer && !json_object_get(p->layers, layer) &&
        json_object_set_new(p->layers, layer, json_integer(v)) != 0)
        hvt__pt2_refuse(p, "no memory for its name");
}

static void end_layer(importer *p, const char *layer, hvt_value v)
{
    keep_layer(p, layer, v);
    hvt__pt2_out_value(p, v);
}

/* Output 0 is v, which lies as one of the arguments. */
void hvt__pt2_out_like(importer *p, hvt_value v, const hvt__pt2_axes *axes)
{
    hvt__pt2_out(p, 0, (tensor){.v = v, .axes = *axes}, NULL);
}

static int outputs(const importer *p, int64_t in_file)
{
    return p->classes && p->node == p->file->head ? p->classes : (int)in_file;
}

static void same_padding(const hvt_conv2d_opts *o, int *ret)
{
    const int64_t h = o->dilation_h * (o->kernel_h - (int64_t)1),
                  w = o->dilation_w * (o->kernel_w - (int64_t)1),
                  all[4] = {h / 2, w / 2, h - h / 2, w - w / 2};

    for (int i = 0; i < 4; i++) /* the convolution refuses what is too large */
        ret[i] = all[i] > INT_MAX ? INT_MAX : (int)all[i];
}

static void conv2d(importer *p)
{
    hvt_value x = hvt__pt2_image(p, "input");
    int64_t size[4];
    char layer[128];
    int stride[2] = {1, 1}, pad[4] = {0}, dilation[2] = {1, 1};
    hvt_conv2d_opts o;

    if (begin_layer(p, layer, sizeof layer, size) != 4) {
        hvt__pt2_refuse(p, "its weight has not 4 dimensions");
        return;
    }
    hvt__pt2_ints(p, "stride", 2, stride);
    hvt__pt2_ints(p, "dilation", 2, dilation);
    o = (hvt_conv2d_opts){.filters = outputs(p, size[0]),
                          .kernel_h = (int)size[2],
                          .kernel_w = (int)size[3],
                          .stride_h = stride[0],
                          .stride_w = stride[1],
                          .dilation_h = dilation[0],
                          .dilation_w = dilation[1],
                          .groups = hvt__pt2_int(p, "groups", 1),
                          .bias = belongs(p, "bias", layer, "bias")};
    if (!strcmp(hvt__pt2_target(p->node), "aten.conv2d.padding")) {
        if (!strcmp(hvt__pt2_string(p, "padding", "valid"), "same"))
            same_padding(&o, pad);
    } else {
        hvt__pt2_ints(p, "padding", 2, pad);
        pad[2] = pad[0], pad[3] = pad[1];
    }
    o.top = pad[0], o.left = pad[1], o.bottom = pad[2], o.right = pad[3];
    end_layer(p, layer, hvt_conv2d_with(p->m, x, &o));
}

/* Other sizes, dimension i being the channels, which may have been one. */
static bool of_channels(hvt__pt2_axes *x, int i, const int64_t *size)
{
    if (!hvt__pt2_has(x, i, 'C'))
        hvt__pt2_insert(x, i, 'C');
    return hvt__pt2_resize(x, size);
}

/* Over [N,C] or [N,C*H*W], or over the last dimension of [N,H,W,C]. */
static void linear(importer *p)
{
    const tensor *t = hvt__pt2_tensor(p, "input");
    hvt__pt2_axes axes;
    bool rows;
    int64_t size[4], out[HVT__PT2_DIMS];
    char layer[128];
    hvt_value v;

    if (!hvt__pt2_is_computed(p, t))
        return;
    v = t->v;
    axes = t->axes;
    rows = axes.ndim == 2;
    if (rows && !hvt__pt2_is(&axes, 1, 'C')) {
        int64_t image[4] = {axes.atom[0].extent, 1, 1, 1};

        for (int i = 1; i < axes.end[1]; i++)
            image[strchr("NCHW", axes.atom[i].axis) - "NCHW"] *= axes.atom[i].extent;
        if (!hvt__pt2_view(&axes, 4, image) || !hvt__pt2_is(&axes, 1, 'C') || !hvt__pt2_is(&axes, 2, 'H') ||
            !hvt__pt2_is(&axes, 3, 'W'))
            hvt__pt2_refuse(p, "its input was flattened in another order than C, H, W");
        v = hvt_flatten(p->m, v);
    } else if (!rows && !(axes.ndim == 4 && hvt__pt2_is(&axes, 3, 'C'))) {
        hvt__pt2_refuse(p, "its input is neither [N,features] nor [N,H,W,C]");
    }
    if (begin_layer(p, layer, sizeof layer, size) != 2)
        hvt__pt2_refuse(p, "its weight has not 2 dimensions");
    if (p->failed)
        return;
    v = hvt_linear_with(p->m, v, outputs(p, size[0]), belongs(p, "bias", layer, "bias"));
    keep_layer(p, layer, v);
    if (rows) {
        hvt__pt2_out_value(p, v);
        return;
    }
    if (hvt__pt2_out_sizes(p, 0, out) != 4 || !of_channels(&axes, 3, out))
        hvt__pt2_refuse(p, "its output has other dimensions than its input");
    hvt__pt2_out_like(p, v, &axes);
}

static void batch_norm(importer *p)
{
    hvt_value x = image_or_row(p, "input");
    double eps = hvt__pt2_float(p, "eps", 1e-5), momentum = hvt__pt2_float(p, "momentum", 0.1);
    int64_t size[4];
    char layer[128];

    begin_layer(p, layer, sizeof layer, size);
    if (!p->failed &&
        !(belongs(p, "bias", layer, "bias") && belongs(p, "running_mean", layer, "running_mean") &&
          belongs(p, "running_var", layer, "running_var")))
        hvt__pt2_refuse(p, "it lacks its bias or its running statistics; expected affine=True and "
                           "track_running_stats=True");
    if (!p->failed)
        end_layer(p, layer, hvt_batchnorm_with(p->m, x, (float)eps, (float)momentum));
}

/* Its weight and bias, or neither. */
static bool affine(importer *p, char *layer, size_t room)
{
    int64_t size[4];

    if (!hvt__pt2_given(p, "weight"))
        return false;
    begin_layer(p, layer, room, size);
    if (!p->failed && !belongs(p, "bias", layer, "bias"))
        hvt__pt2_refuse(p, "it has a weight without a bias");
    return true;
}

/* Over C of [N,H,W,C], or over all of [N,C,H,W]. */
static void layer_norm(importer *p)
{
    const tensor *t = hvt__pt2_tensor(p, "input");
    double eps = hvt__pt2_float(p, "eps", 1e-5);
    hvt__pt2_axes axes;
    const char *kind;
    size_t n = json_array_size(hvt__pt2_arg(p->node, "normalized_shape", &kind));
    char layer[128] = "";
    bool scaled, last, whole;
    hvt_value v;

    if (!hvt__pt2_is_computed(p, t))
        return;
    axes = t->axes;
    v = t->v;
    last = n == 1 && hvt__pt2_is(&axes, axes.ndim - 1, 'C') && (axes.ndim == 4 || axes.ndim == 2);
    whole = n == 3 && axes.ndim == 4 && hvt__pt2_is(&axes, 1, 'C') && hvt__pt2_is(&axes, 2, 'H');
    if (!last && !whole)
        hvt__pt2_refuse(
            p, "it normalises neither over the last dimension of [N,H,W,C] nor over all of [N,C,H,W]");
    scaled = affine(p, layer, sizeof layer);
    if (p->failed)
        return;
    v = hvt_layernorm(p->m, v, whole ? HVT_OVER_IMAGE : HVT_OVER_CHANNELS, (float)eps, scaled);
    keep_layer(p, layer, v);
    hvt__pt2_out_like(p, v, &axes);
}

static void group_norm(importer *p)
{
    hvt_value x = image_or_row(p, "input");
    int groups = hvt__pt2_int(p, "num_groups", 1);
    double eps = hvt__pt2_float(p, "eps", 1e-5);
    char layer[128] = "";
    bool scaled = affine(p, layer, sizeof layer);

    if (!p->failed)
        end_layer(p, layer, hvt_groupnorm(p->m, x, groups, (float)eps, scaled));
}

/* A group norm of as many groups as channels. */
static void instance_norm(importer *p)
{
    hvt_value x = hvt__pt2_image(p, "input");
    double eps = hvt__pt2_float(p, "eps", 1e-5);
    int64_t size[HVT__PT2_DIMS];
    char layer[128] = "";
    bool scaled = affine(p, layer, sizeof layer);

    if (hvt__pt2_given(p, "running_mean"))
        hvt__pt2_refuse(p, "it has running statistics; expected track_running_stats=False");
    if (!p->failed && hvt__pt2_out_sizes(p, 0, size) == 4 && size[1] <= INT_MAX)
        end_layer(p, layer, hvt_groupnorm(p->m, x, (int)size[1], (float)eps, scaled));
}

/* ---- functions of one number ---- */

static void map(importer *p, hvt_function f, double a, double b)
{
    const tensor *t = hvt__pt2_tensor(p, "self");
    hvt__pt2_axes axes;

    if (!hvt__pt2_is_computed(p, t))
        return;
    axes = t->axes;
    hvt__pt2_out_like(p, hvt_apply(p->m, t->v, f, (float)a, (float)b), &axes);
}

static void relu(importer *p)
{
    const tensor *t = hvt__pt2_tensor(p, "self");
    hvt__pt2_axes axes;

    if (!hvt__pt2_is_computed(p, t))
        return;
    axes = t->axes;
    hvt__pt2_out_like(p, hvt_relu(p->m, t->v), &axes);
}

#define MAP(name, f, a, b)                                                                                   \
    static void name(importer *p)                                                                            \
    {                                                                                                        \
        map(p, f, a, b);                                                                                     \
    }
MAP(sigmoid, HVT_SIGMOID, 0, 0)
MAP(hardsigmoid, HVT_HARDSIGMOID, 0, 0)
MAP(hardswish, HVT_HARDSWISH, 0, 0)
MAP(silu, HVT_SILU, 0, 0)
MAP(tanh_, HVT_TANH, 0, 0)
MAP(relu6, HVT_HARDTANH, 0, 6)
MAP(hardtanh, HVT_HARDTANH, hvt__pt2_float(p, "min_val", -1), hvt__pt2_float(p, "max_val", 1))
MAP(leaky_relu, HVT_LEAKY_RELU, hvt__pt2_float(p, "negative_slope", 0.01), 0)
MAP(softplus, HVT_SOFTPLUS, hvt__pt2_float(p, "beta", 1), hvt__pt2_float(p, "threshold", 20))
MAP(gelu, strcmp(hvt__pt2_string(p, "approximate", "none"), "tanh") ? HVT_GELU : HVT_GELU_TANH, 0, 0)

static void elu(importer *p)
{
    if (hvt__pt2_float(p, "scale", 1) != 1 || hvt__pt2_float(p, "input_scale", 1) != 1)
        hvt__pt2_refuse(p, "its scale is not 1");
    map(p, HVT_ELU, hvt__pt2_float(p, "alpha", 1), 0);
}

/* ---- two tensors, or a tensor and a number ---- */

/* The other argument as a number. */
bool hvt__pt2_number(importer *p, double *ret_x)
{
    const char *kind;
    const json_t *x = hvt__pt2_arg(p->node, "other", &kind);

    return hvt__pt2_real(x, ret_x);
}

/* A parameter or a buffer of one element, or of C: [C,1,1]. */
static hvt_value with_parameter(importer *p, hvt_binary op, const tensor *t, const tensor *b)
{
    const char *kind;
    const json_t *arg = hvt__pt2_arg(p->node, hvt__pt2_tensor(p, "self") == b ? "self" : "other", &kind);
    int64_t size[4];
    const char *name = json_string_value(json_object_get(arg, "name"));
    int n = hvt__pt2_sizes(p->file, name, 4, size), dim[4];

    if (b->constant && !json_is_true(json_object_get(p->file->constants, name))) {
        hvt__pt2_refuse(
            p, "%s is a constant, or a buffer that is not persistent; expected one of the state_dict",
            b->state);
        return -1;
    }
    if (n < 0 || json_object_get(p->layers, b->state)) {
        hvt__pt2_refuse(p, "%s %s", b->state,
                        n < 0 ? "has more than 4 dimensions" : "is used more than once");
        return -1;
    }
    for (int i = 0; i < n; i++)
        dim[i] = (int)size[i];
    hvt_name(p->m, "%s", b->state);
    return b->constant ? hvt_combine_constant(p->m, op, t->v, n, dim, 1)
                       : hvt_combine_parameter(p->m, op, t->v, n, dim, 1);
}

/* Each dimension has the same axes in both, or none in one of them. ret_all: those of the result. */
static bool broadcasts(const hvt__pt2_axes *a, const hvt__pt2_axes *b, hvt__pt2_axes *ret_all)
{
    int n = a->ndim;
    bool a_is_all = true, b_is_all = true;

    for (int i = 0; i < n && b->ndim == n; i++)
        for (int k = 0; k < 4; k++) {
            bool in_a = hvt__pt2_has(a, i, "NCHW"[k]), in_b = hvt__pt2_has(b, i, "NCHW"[k]);

            a_is_all = a_is_all && (in_a || !in_b);
            b_is_all = b_is_all && (in_b || !in_a);
        }
    *ret_all = a_is_all ? *a : *b;
    return b->ndim == n &&
           (hvt__pt2_same(a, b) || ((a_is_all || b_is_all) && hvt__pt2_plain(a) && hvt__pt2_plain(b)));
}

static void binary(importer *p, hvt_binary op)
{
    const tensor *a = hvt__pt2_tensor(p, "self"), *b = NULL;
    double x;
    hvt_value v = -1;
    hvt__pt2_axes axes;

    if (hvt__pt2_given(p, "alpha") && hvt__pt2_float(p, "alpha", 1) != 1)
        hvt__pt2_refuse(p, "its alpha is %g, not 1", hvt__pt2_float(p, "alpha", 1));
    if (hvt__pt2_number(p, &x)) {
        bool factor = op == HVT_MUL || op == HVT_DIV;

        map(p, HVT_AFFINE,
            op == HVT_MUL   ? x
            : op == HVT_DIV ? 1 / x
                            : 1,
            factor          ? 0
            : op == HVT_SUB ? -x
                            : x);
        return;
    }
    b = hvt__pt2_tensor(p, "other");
    if (!a || !b || p->failed)
        return;
    if (op == HVT_MUL && hvt__pt2_multiply_noise(p, a, b))
        return;
    if (a->v < 0 && b->v >= 0 && (op == HVT_ADD || op == HVT_MUL)) { /* they commute */
        const tensor *t = a;

        a = b, b = t;
    }
    if (!hvt__pt2_is_computed(p, a))
        return;
    axes = a->axes;
    if (b->state)
        v = with_parameter(p, op, a, b);
    else if (!hvt__pt2_is_computed(p, b))
        return;
    else if (broadcasts(&a->axes, &b->axes, &axes))
        v = hvt_combine(p->m, op, a->v, b->v);
    else
        hvt__pt2_refuse(
            p, "its arguments are no images of one shape, one of them repeated over pixels or channels");
    if (!p->failed)
        hvt__pt2_out_like(p, v, &axes);
}

static void add(importer *p)
{
    binary(p, HVT_ADD);
}

static void sub(importer *p)
{
    binary(p, HVT_SUB);
}

static void mul(importer *p)
{
    binary(p, HVT_MUL);
}

static void divide(importer *p)
{
    if (!hvt__pt2_divide_noise(p))
        binary(p, HVT_DIV);
}

/* ---- pooling ---- */

static void pool(importer *p, hvt_pooling_kind kind)
{
    hvt_value x = hvt__pt2_image(p, "self");
    int size[2] = {1, 1}, stride[2], pad[2] = {0, 0}, dilation[2] = {1, 1};

    hvt__pt2_ints(p, "kernel_size", 2, size);
    stride[0] = size[0], stride[1] = size[1];
    hvt__pt2_ints(p, "stride", 2, stride);
    hvt__pt2_ints(p, "padding", 2, pad);
    hvt__pt2_ints(p, "dilation", 2, dilation);
    if (dilation[0] != 1 || dilation[1] != 1 || hvt__pt2_given(p, "divisor_override"))
        hvt__pt2_refuse(p, "it is imported without dilation and divisor_override only");
    if (p->failed)
        return;
    hvt__pt2_out_value(
        p, hvt_pool_with(p->m, x, kind,
                         &(hvt_pool_opts){.size = {size[0], size[1]},
                                          .stride = {stride[0], stride[1]},
                                          .pad = {pad[0], pad[1]},
                                          .ceil_mode = hvt__pt2_bool(p, "ceil_mode", false),
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
        hvt__pt2_out_value(p, kind == HVT_POOL_MEAN && size[0] == 1 && size[1] == 1
                                  ? hvt_avgpool(p->m, x)
                                  : hvt_adaptive_pool(p->m, x, kind, size[0], size[1]));
}

static void adaptive_avg_pool(importer *p)
{
    adaptive_pool(p, HVT_POOL_MEAN);
}

/* Whose second output is not imported. */
static void adaptive_max_pool(importer *p)
{
    adaptive_pool(p, HVT_POOL_MAX);
}

/* Over H and W. */
static void mean(importer *p)
{
    hvt_value x = hvt__pt2_image(p, "self");
    int dim[2] = {0, 0};

    hvt__pt2_ints(p, "dim", 2, dim);
    for (int i = 0; i < 2; i++)
        dim[i] += dim[i] < 0 ? 4 : 0;
    if (!(dim[0] == 2 && dim[1] == 3) && !(dim[0] == 3 && dim[1] == 2))
        hvt__pt2_refuse(p, "it is imported over both H and W of [N,C,H,W] only");
    if (!p->failed)
        hvt__pt2_out_value(p, hvt_avgpool(p->m, x));
}

/* ---- views, and what moves channels ---- */

/* The output's sizes say what it is: view, reshape, flatten, unflatten, squeeze, unsqueeze. */
static void view(importer *p)
{
    const tensor *x = hvt__pt2_tensor(p, hvt__pt2_first_argument(p));
    int64_t size[HVT__PT2_DIMS];
    int n = hvt__pt2_out_sizes(p, 0, size);
    tensor y;

    if (!hvt__pt2_is_computed(p, x) || p->failed)
        return;
    y = *x;
    if (!hvt__pt2_view(&y.axes, n, size))
        hvt__pt2_refuse(p, "it mixes dimensions");
    hvt__pt2_out(p, 0, y, x);
}

static void same(importer *p)
{
    const tensor *x = hvt__pt2_tensor(p, hvt__pt2_first_argument(p));

    if (hvt__pt2_is_computed(p, x))
        hvt__pt2_out(p, 0, *x, x);
}

static void permute(importer *p)
{
    const tensor *x = hvt__pt2_tensor(p, "self");
    int from[HVT__PT2_DIMS] = {0}, n;
    unsigned seen = 0;
    tensor y;

    if (!hvt__pt2_is_computed(p, x))
        return;
    y = *x;
    n = y.axes.ndim;
    hvt__pt2_ints(p, "dims", n, from);
    for (int i = 0; i < n && !p->failed; i++) {
        from[i] += from[i] < 0 ? n : 0;
        if (from[i] < 0 || from[i] >= n || seen >> from[i] & 1)
            hvt__pt2_refuse(p, "its dims are no permutation");
        else
            seen |= 1u << from[i];
    }
    if (p->failed)
        return;
    hvt__pt2_permute(&y.axes, from);
    hvt__pt2_out(p, 0, y, x);
}

static void transpose(importer *p)
{
    const tensor *x = hvt__pt2_tensor(p, "self");
    int from[HVT__PT2_DIMS], n, a, b;
    tensor y;

    if (!hvt__pt2_is_computed(p, x))
        return;
    y = *x;
    n = y.axes.ndim;
    a = hvt__pt2_int(p, "dim0", 0), b = hvt__pt2_int(p, "dim1", 0);
    a += a < 0 ? n : 0, b += b < 0 ? n : 0;
    if (a < 0 || b < 0 || a >= n || b >= n) {
        hvt__pt2_refuse(p, "it transposes dimensions %d and %d of %d", a, b, n);
        return;
    }
    for (int i = 0; i < n; i++)
        from[i] = i == a ? b : i == b ? a : i;
    hvt__pt2_permute(&y.axes, from);
    hvt__pt2_out(p, 0, y, x);
}

/* A single channel has no atom, so dimension i is it only if no other one may be. */
static bool is_channels(const hvt__pt2_axes *x, int i)
{
    int single = 0;

    for (int k = 1; k < x->ndim; k++)
        single += x->end[k] == x->end[k - 1];
    return hvt__pt2_has(x, i, 'C') || (hvt__pt2_is(x, i, 'C') && single == 1);
}

/* Do all dimensions but this one lie alike? */
static bool lie_alike(const hvt__pt2_axes *a, const hvt__pt2_axes *b, int but)
{
    bool alike = a->ndim == b->ndim;

    for (int i = 0; i < a->ndim && alike; i++)
        for (int k = 0; k < 4; k++)
            alike = alike && (i == but || hvt__pt2_has(a, i, "NCHW"[k]) == hvt__pt2_has(b, i, "NCHW"[k]));
    return alike;
}

/* The axes and the value of a tensor whose dimension `dim`, counted from the end if negative, is the
 * channels. */
static tensor along_channels(importer *p, const tensor *t, int *ret_dim)
{
    int dim = hvt__pt2_int(p, "dim", 0);
    tensor x = {.v = -1};

    if (!hvt__pt2_is_computed(p, t))
        return x;
    x = *t;
    dim += dim < 0 ? x.axes.ndim : 0;
    x.v = ordered(p, t);
    if (x.v != t->v) { /* as it should be now */
        const hvt__pt2_axes *y = &t->axes;
        int64_t size[4] = {y->atom[0].extent, y->atom[1].extent * y->atom[2].extent, 1, 1};

        for (int a = 3; a < y->end[3]; a++)
            size[y->atom[a].axis == 'H' ? 2 : 3] = y->atom[a].extent;
        x.axes = hvt__pt2_axes_of(4, size);
    }
    if (dim < 0 || dim >= x.axes.ndim || !hvt__pt2_plain(&x.axes) || !is_channels(&x.axes, dim))
        hvt__pt2_refuse(p, "it is imported along channels only");
    *ret_dim = dim;
    return x;
}

static void cat(importer *p)
{
    const tensor *t[MANY];
    hvt_value v[MANY];
    hvt__pt2_axes axes = {0};
    int64_t size[HVT__PT2_DIMS];
    int n = hvt__pt2_tensors(p, "tensors", MANY, t), dim = 1;

    for (int i = 0; i < n && !p->failed; i++) {
        tensor x = along_channels(p, t[i], &dim);

        v[i] = x.v;
        if (i > 0 && !p->failed && !lie_alike(&axes, &x.axes, dim))
            hvt__pt2_refuse(p, "the dimensions of one of its tensors were moved");
        if (i == 0 || hvt__pt2_has(&x.axes, dim, 'C'))
            axes = x.axes;
    }
    if (n < 1)
        hvt__pt2_refuse(p, "it has no tensors");
    if (!p->failed && (hvt__pt2_out_sizes(p, 0, size) != axes.ndim || !of_channels(&axes, dim, size)))
        hvt__pt2_refuse(p, "its output has other dimensions than its inputs");
    if (!p->failed)
        hvt__pt2_out_like(p, hvt_concat(p->m, v, n), &axes);
}

/* chunk and split: parts of the channels, whose sizes the outputs say. */
static void chunk(importer *p)
{
    const tensor *x = hvt__pt2_tensor(p, "self");
    const json_t *out = json_object_get(json_array_get(json_object_get(p->node, "outputs"), 0), "as_tensors");
    int first = 0, dim = 1;
    tensor whole = along_channels(p, x, &dim);

    for (int i = 0; i < (int)json_array_size(out) && !p->failed && !p->mistaken; i++) {
        int64_t size[HVT__PT2_DIMS];
        tensor part = whole;

        if (hvt__pt2_out_sizes(p, i, size) != part.axes.ndim || !hvt__pt2_resize(&part.axes, size) ||
            size[dim] > INT_MAX - first) {
            hvt__pt2_refuse(p, "its outputs have other dimensions than its input");
            return;
        }
        part.v = hvt_slice(p->m, whole.v, first, (int)size[dim]);
        first += (int)size[dim];
        hvt__pt2_out(p, i, part, x);
    }
}

/* ---- the table ---- */

static const operation operations[] = {
    {"aten.conv2d.default", conv2d},
    {"aten.conv2d.padding", conv2d},
    {"aten.linear.default", linear},
    {"aten.batch_norm.default", batch_norm},
    {"aten.layer_norm.default", layer_norm},
    {"aten.group_norm.default", group_norm},
    {"aten.instance_norm.default", instance_norm},
    {"aten.relu.default", relu},
    {"aten.relu_.default", relu},
    {"aten.relu6.default", relu6},
    {"aten.relu6_.default", relu6},
    {"aten.hardtanh.default", hardtanh},
    {"aten.hardtanh_.default", hardtanh},
    {"aten.leaky_relu.default", leaky_relu},
    {"aten.leaky_relu_.default", leaky_relu},
    {"aten.elu.default", elu},
    {"aten.elu_.default", elu},
    {"aten.sigmoid.default", sigmoid},
    {"aten.sigmoid_.default", sigmoid},
    {"aten.hardsigmoid.default", hardsigmoid},
    {"aten.hardsigmoid_.default", hardsigmoid},
    {"aten.hardswish.default", hardswish},
    {"aten.hardswish_.default", hardswish},
    {"aten.silu.default", silu},
    {"aten.silu_.default", silu},
    {"aten.gelu.default", gelu},
    {"aten.gelu_.default", gelu},
    {"aten.tanh.default", tanh_},
    {"aten.tanh_.default", tanh_},
    {"aten.softplus.default", softplus},
    {"aten.add.Tensor", add},
    {"aten.add_.Tensor", add},
    {"aten.sub.Tensor", sub},
    {"aten.sub_.Tensor", sub},
    {"aten.mul.Tensor", mul},
    {"aten.mul_.Tensor", mul},
    {"aten.div.Tensor", divide},
    {"aten.div_.Tensor", divide},
    {"aten.div_.Scalar", divide},
    {"aten.empty.memory_format", hvt__pt2_noise},
    {"aten.new_empty.default", hvt__pt2_noise},
    {"aten.bernoulli_.float", hvt__pt2_bernoulli},
    {"aten.max_pool2d.default", max_pool},
    {"aten.avg_pool2d.default", avg_pool},
    {"aten.adaptive_avg_pool2d.default", adaptive_avg_pool},
    {"aten.adaptive_max_pool2d.default", adaptive_max_pool},
    {"aten.mean.dim", mean},
    {"aten.view.default", view},
    {"aten._unsafe_view.default", view},
    {"aten.reshape.default", view},
    {"aten.flatten.using_ints", view},
    {"aten.unflatten.int", view},
    {"aten.squeeze.dim", view},
    {"aten.squeeze.dims", view},
    {"aten.unsqueeze.default", view},
    {"aten.dropout.default", hvt__pt2_dropout},
    {"aten.dropout_.default", hvt__pt2_dropout},
    {"aten.feature_dropout.default", hvt__pt2_feature_dropout},
    {"aten.feature_dropout_.default", hvt__pt2_feature_dropout},
    {"aten.contiguous.default", same},
    {"aten.clone.default", same},
    {"aten.alias.default", same},
    {"aten.permute.default", permute},
    {"aten.transpose.int", transpose},
    {"aten.cat.default", cat},
    {"aten.chunk.default", chunk},
    {"aten.split.Tensor", chunk},
    {"aten.split_with_sizes.default", chunk},
};

const operation *hvt__pt2_operation(const char *target)
{
    for (size_t i = 0; i < HVT_LEN(operations); i++)
        if (!strcmp(operations[i].target, target))
            return &operations[i];
    return NULL;
}

bool hvt__pt2_knows(const char *target)
{
    return hvt__pt2_operation(target) != NULL;
}
