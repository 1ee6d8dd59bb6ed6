/* Convolution and transposed convolution. The device chooses the algorithm and the weights' layout; this
 * layer declares the weight. */
#include "base_impl.h"
#include "layers.h"

#include <math.h>

hvt_value hvt__window_end(hvt_model *m, hvt_layer *l, int size, int stride, int pad, int channels)
{
    const int *d = l->y.dim;

    HVT_EXPECT(m, l, d[1] + 2 * pad >= size && d[2] + 2 * pad >= size,
               "input %dx%dx%d is smaller than the %dx%d window with padding %d; it must be at least %dx%d",
               d[1], d[2], d[3], size, size, pad, size - 2 * pad, size - 2 * pad);
    l->size = size;
    l->stride = stride;
    l->pad = pad;
    return hvt__layer_end(m, l, hvt__conv_out(d[1], size, stride, pad),
                          hvt__conv_out(d[2], size, stride, pad), channels);
}

/* True if n is `least` to HVT_MOST: sums and products of two then fit 64 bits. */
static bool is_size(int n, int least)
{
    return n >= least && n <= HVT_MOST;
}

/* l->conv = opts, with defaults filled in. -1 after a mistake. A transposed convolution may have negative
 * padding below and on the right. */
static hvt_value set_opts(hvt_model *m, hvt_layer *l, const hvt_conv2d_opts *opts, bool transposed)
{
    const int *d = l->y.dim;

    HVT_EXPECT(m, l, opts, "the hvt_conv2d_opts are NULL");
    hvt_conv2d_opts o = *opts;

    o.kernel_w = o.kernel_w ? o.kernel_w : o.kernel_h;
    o.stride_h = o.stride_h ? o.stride_h : 1;
    o.stride_w = o.stride_w ? o.stride_w : o.stride_h;
    o.dilation_h = o.dilation_h ? o.dilation_h : 1;
    o.dilation_w = o.dilation_w ? o.dilation_w : o.dilation_h;
    o.groups = o.groups ? o.groups : 1;
    HVT_EXPECT(
        m, l,
        is_size(o.filters, 1) && is_size(o.kernel_h, 1) && is_size(o.kernel_w, 1) && is_size(o.stride_h, 1) &&
            is_size(o.stride_w, 1) && is_size(o.dilation_h, 1) && is_size(o.dilation_w, 1) &&
            is_size(o.top, 0) && is_size(o.left, 0) && is_size(o.bottom, transposed ? 1 - o.stride_h : 0) &&
            is_size(o.right, transposed ? 1 - o.stride_w : 0),
        "%d filters of %dx%d, stride %dx%d, dilation %dx%d, padding %d above, %d left, %d below, %d right: "
        "padding must be 0 to %d%s, all others 1 to %d",
        o.filters, o.kernel_h, o.kernel_w, o.stride_h, o.stride_w, o.dilation_h, o.dilation_w, o.top, o.left,
        o.bottom, o.right, HVT_MOST, transposed ? " (below and right at least 1 - stride)" : "", HVT_MOST);
    HVT_EXPECT(m, l, o.groups >= 1 && d[3] % o.groups == 0 && o.filters % o.groups == 0,
               "%d channels and %d filters in %d groups: both must be multiples of the groups", d[3],
               o.filters, o.groups);
    HVT_EXPECT(m, l,
               (int64_t)o.kernel_h * o.kernel_w <= INT_MAX &&
                   (int64_t)o.kernel_h * o.kernel_w * (d[3] / o.groups) <= INT_MAX / o.filters,
               "%d filters of %dx%dx%d have more than %d weights", o.filters, o.kernel_h, o.kernel_w,
               d[3] / o.groups, INT_MAX);
    l->conv = o;
    l->has_parameter = true;
    return 0;
}

/* l->y is still the input's. */
static hvt_value conv2d(hvt_model *m, hvt_layer *l, const hvt_conv2d_opts *opts)
{
    if (set_opts(m, l, opts, false) < 0)
        return -1;
    const int *d = l->y.dim;
    const hvt_conv2d_opts o = l->conv;
    const int k = o.filters, c = d[3] / o.groups, r = o.kernel_h, s = o.kernel_w;

    if (hvt__filters_are_computed(l) &&
        hvt__filters_check(m, l, o.line ? 3 : 4, (int[]){k, c, o.line ? s : r, s}) < 0)
        return -1;

    HVT_EXPECT(m, l, !o.line || o.kernel_h == 1, "a kernel of %d rows; a 1-D convolution expects 1",
               o.kernel_h);
    HVT_EXPECT(m, l, !o.line || !o.dirac, "a 1-D convolution; expected `dirac` false");

    const int64_t high = (o.kernel_h - 1) * (int64_t)o.dilation_h + 1,
                  wide = (o.kernel_w - 1) * (int64_t)o.dilation_w + 1;
    const int64_t rows = (int64_t)d[1] + o.top + o.bottom, columns = (int64_t)d[2] + o.left + o.right;

    HVT_EXPECT(
        m, l, rows >= high && columns >= wide,
        "input %dx%dx%d with padding %d above, %d left, %d below, %d right is smaller than the %lldx%lld "
        "window of %dx%d taps",
        d[1], d[2], d[3], o.top, o.left, o.bottom, o.right, (long long)high, (long long)wide, o.kernel_h,
        o.kernel_w);
    return hvt__layer_end(m, l, (rows - high) / o.stride_h + 1, (columns - wide) / o.stride_w + 1, o.filters);
}

hvt_value hvt_conv2d_with(hvt_model *m, hvt_value x, const hvt_conv2d_opts *opts)
{
    hvt_layer *l = hvt__layer_begin(m, &hvt_layer_conv, x);

    return l ? conv2d(m, l, opts) : -1;
}

hvt_value hvt_conv2d_by(hvt_model *m, hvt_value x, hvt_value weight, hvt_value bias,
                        const hvt_conv2d_opts *opts)
{
    hvt_layer *l;

    return hvt__filters_begin(m, &hvt_layer_conv, x, weight, bias, &l) < 0 ? -1 : conv2d(m, l, opts);
}

hvt_value hvt_conv2d(hvt_model *m, hvt_value x, int filters, int size, int stride, int pad)
{
    return hvt_conv2d_with(m, x,
                           &(hvt_conv2d_opts){.filters = filters,
                                              .kernel_h = size,
                                              .stride_h = stride ? stride : -1, /* 0: invalid */
                                              .top = pad,
                                              .left = pad,
                                              .bottom = pad,
                                              .right = pad});
}

static hvt_value conv_transpose2d(hvt_model *m, hvt_layer *l, const hvt_conv2d_opts *opts)
{
    if (set_opts(m, l, opts, true) < 0)
        return -1;
    const int *d = l->y.dim;
    const hvt_conv2d_opts *o = &l->conv;

    if (hvt__filters_are_computed(l) &&
        hvt__filters_check(m, l, 4, (int[]){d[3], o->filters / o->groups, o->kernel_h, o->kernel_w}) < 0)
        return -1;
    const int64_t h = (d[1] - (int64_t)1) * o->stride_h - o->top - o->bottom +
                      (o->kernel_h - (int64_t)1) * o->dilation_h + 1,
                  w = (d[2] - (int64_t)1) * o->stride_w - o->left - o->right +
                      (o->kernel_w - (int64_t)1) * o->dilation_w + 1;

    HVT_EXPECT(m, l, !o->line && !o->dirac, "a transposed convolution; expected `line` and `dirac` false");
    HVT_EXPECT(m, l, h >= 1 && w >= 1 && h <= HVT_MOST && w <= HVT_MOST,
               "an output of %lldx%lld; expected 1 to %d in each dimension", (long long)h, (long long)w,
               HVT_MOST);
    return hvt__layer_end(m, l, h, w, o->filters);
}

hvt_value hvt_conv_transpose2d(hvt_model *m, hvt_value x, const hvt_conv2d_opts *opts)
{
    hvt_layer *l = hvt__layer_begin(m, &hvt_layer_conv_transpose, x);

    return l ? conv_transpose2d(m, l, opts) : -1;
}

hvt_value hvt_conv_transpose2d_by(hvt_model *m, hvt_value x, hvt_value weight, hvt_value bias,
                                  const hvt_conv2d_opts *opts)
{
    hvt_layer *l;

    return hvt__filters_begin(m, &hvt_layer_conv_transpose, x, weight, bias, &l) < 0
               ? -1
               : conv_transpose2d(m, l, opts);
}

/* Describes layer l's convolution. That of a transposed layer goes from its output to its input. */
static hvt_conv_desc desc_of(const hvt_model *m, const hvt_layer *l)
{
    const hvt_layer *in = &m->layer[l->in[0]];
    const bool transposed = l->ops == &hvt_layer_conv_transpose;
    const int *x = (transposed ? l : in)->y.dim;
    const hvt_conv2d_opts *o = &l->conv;

    return (hvt_conv_desc){.order = m->order,
                           .type = l->y.dtype,
                           .n = m->batch,
                           .h = x[1],
                           .w = x[2],
                           .c = x[3],
                           .cx = !transposed && l->in[0] == m->input ? m->input_channels : x[3],
                           .k = transposed ? in->y.dim[3] : o->filters,
                           .r = o->kernel_h,
                           .s = o->kernel_w,
                           .stride_h = o->stride_h,
                           .stride_w = o->stride_w,
                           .top = o->top,
                           .left = o->left,
                           .bottom =
                               o->bottom > 0 ? o->bottom : 0, /* output padding is below the last window */
                           .right = o->right > 0 ? o->right : 0,
                           .dilation_h = o->dilation_h,
                           .dilation_w = o->dilation_w,
                           .groups = o->groups,
                           .no_dx = !transposed && !in->requires_grad};
}

hvt_status hvt__conv_plan(hvt_model *m, hvt_layer *l, hvt_param weight, hvt_param bias)
{
    const hvt_conv2d_opts *o = &l->conv;
    const hvt_conv_desc d = desc_of(m, l);

    HVT_TRY(m->dev->ops->conv.plan(m->dev, &d, &l->op, &weight.count, &l->ws_bytes));
    if (hvt__filters_are_computed(l))
        return hvt__filters_plan(m, l, weight.count);
    weight.op = l->op;
    weight.role = HVT_ROLE_WEIGHT;
    HVT_TRY(hvt__param_add(m, l, 0, &weight, "weight"));
    l->saves_input = !hvt__is_frozen(m, l, 0);
    if (!o->bias)
        return HVT_OK;
    bias.ndim = 1;
    bias.flat = 0;
    bias.dim[0] = o->filters;
    bias.count = (size_t)o->filters;
    bias.role = HVT_ROLE_BIAS;
    return hvt__param_add(m, l, 1, &bias, "bias");
}

/* The weight in the activations' type. */
static const void *filters(const hvt_model *m, const hvt_layer *l)
{
    if (hvt__filters_are_computed(l))
        return l->saved;

    size_t at = m->param[l->param[0]].offset;

    return m->copy ? (const void *)(m->copy + at) : m->params + at;
}

/* Returns the input of forward and backward_w: l's input or, if that is a norm whose y is not stored
 * (in_reader), the norm's input. */
static const void *input_of(hvt_model *m, const hvt_layer *l)
{
    const hvt_layer *in = hvt__in(m, l, 0);
    hvt_bn_args norm;

    if (!in->in_reader)
        return in->y.data;
    if (!m->training) {
        m->dev->ops->conv.set_norm(l->op, NULL);
        return in->y.data;
    }
    norm = hvt__norm_arguments(m, in);
    m->dev->ops->conv.set_norm(l->op, &norm);
    return norm.x;
}

static hvt_status add_bias(hvt_model *m, hvt_layer *l)
{
    if (!l->conv.bias)
        return HVT_OK;
    const float *bias = hvt__filters_are_computed(l) ? hvt__in(m, l, 2)->y.data : hvt__weight(m, l, 1);

    return m->dev->ops->matrix.bias_forward(m->dev, hvt__real_rows(m, l), l->y.dim[3], l->y.dtype, bias,
                                            l->y.data);
}

static hvt_status bias_gradient(hvt_model *m, hvt_layer *l)
{
    if (l->conv.bias && hvt__filters_are_computed(l))
        return hvt__filters_bias_gradient(m, l);
    return l->conv.bias && !hvt__is_frozen(m, l, 1)
               ? m->dev->ops->matrix.bias_backward(m->dev, hvt__real_rows(m, l), l->y.dim[3], l->y.dtype,
                                                   l->dy.data, hvt__grad(m, l, 1))
               : HVT_OK;
}

static bool has_gradient(hvt_model *m, const hvt_layer *l)
{
    return hvt__filters_are_computed(l) ? hvt__in(m, l, 1)->dy.data != NULL : !hvt__is_frozen(m, l, 0);
}

/* Computes the gradient of the weight from the convolution's input and the gradient of its output. */
static hvt_status weight_gradient(hvt_model *m, hvt_layer *l, const void *x, const void *dy)
{
    const bool computed = hvt__filters_are_computed(l);

    HVT_TRY(m->dev->ops->conv.backward_w(l->op, m->real, x, dy,
                                         computed ? hvt__filters_gradient(m, l) : hvt__grad(m, l, 0), m->ws));
    if (computed)
        hvt__filters_take_gradient(m, l);
    return HVT_OK;
}

hvt_status hvt__conv_forward(hvt_model *m, hvt_layer *l)
{
    if (hvt__filters_are_computed(l))
        HVT_TRY(hvt__filters_bring(m, l));
    HVT_TRY(m->dev->ops->conv.forward(l->op, m->real, input_of(m, l), filters(m, l), l->y.data, m->ws));
    return add_bias(m, l);
}

hvt_status hvt__conv_backward(hvt_model *m, hvt_layer *l)
{
    const hvt_device_ops *ops = m->dev->ops;
    const hvt_layer *in = hvt__in(m, l, 0);

    HVT_TRY(bias_gradient(m, l));
    if (in->dy.data)
        HVT_TRY(
            ops->conv.backward_x(l->op, m->real, filters(m, l), l->dy.data, in->dy.data, l->add[0], m->ws));
    return has_gradient(m, l) ? weight_gradient(m, l, input_of(m, l), l->dy.data) : HVT_OK;
}

/* torchvision: kaiming normal, fan out, for relu: deviation sqrt(2 / (R*S*K)) in any number of groups; no
 * bias. */
static hvt_status conv_plan(hvt_model *m, hvt_layer *l)
{
    const hvt_conv2d_opts *o = &l->conv;
    const int k = o->filters, r = o->kernel_h, s = o->kernel_w, c = hvt__in(m, l, 0)->y.dim[3] / o->groups;

    return hvt__conv_plan(m, l,
                          (hvt_param){.ndim = o->line ? 3 : 4,
                                      .dim = {k, c, o->line ? s : r, s},
                                      .init = o->dirac ? HVT_INIT_DIRAC : HVT_INIT_NORMAL,
                                      .init_arg = (float)sqrt(o->dirac ? 1.0 / ((double)r * s * c)
                                                                       : 2.0 / ((double)r * s * k))},
                          (hvt_param){.init = HVT_INIT_FILL});
}

/* ---- transposed convolution: the convolution's passes with their roles swapped ---- */

/* True if a later layer reads l's input, too: the gradient is then added to that layer's. */
static bool has_later_reader(const hvt_model *m, const hvt_layer *l)
{
    for (const hvt_layer *other = l + 1; other < m->layer + m->nlayer; other++)
        for (int i = 0; i < other->nin; i++)
            if (other->in[i] == l->in[0])
                return true;
    return false;
}

static hvt_status transpose_plan(hvt_model *m, hvt_layer *l)
{
    const hvt_conv2d_opts *o = &l->conv;
    const int c = hvt__in(m, l, 0)->y.dim[3], r = o->kernel_h, s = o->kernel_w;

    HVT_TRY(hvt__conv_plan(m, l,
                           (hvt_param){.ndim = 4,
                                       .dim = {c, o->filters / o->groups, r, s},
                                       .init = HVT_INIT_NORMAL,
                                       .init_arg = (float)sqrt(2.0 / ((double)r * s * c))},
                           (hvt_param){.init = HVT_INIT_FILL}));
    if (has_later_reader(m, l)) /* room at the end for the gradient before it is added */
        l->ws_bytes = (l->ws_bytes + 63) / 64 * 64 + hvt__bytes(hvt__in(m, l, 0));
    return HVT_OK;
}

static hvt_status transpose_forward(hvt_model *m, hvt_layer *l)
{
    const hvt_device_ops *ops = m->dev->ops;

    if (hvt__filters_are_computed(l))
        HVT_TRY(hvt__filters_bring(m, l));
    HVT_TRY(ops->conv.backward_x(l->op, m->real, filters(m, l), hvt__in(m, l, 0)->y.data, l->y.data, false,
                                 m->ws));
    return add_bias(m, l);
}

static hvt_status transpose_backward(hvt_model *m, hvt_layer *l)
{
    const hvt_device_ops *ops = m->dev->ops;
    const hvt_layer *in = hvt__in(m, l, 0);

    HVT_TRY(bias_gradient(m, l));
    if (in->dy.data && !l->add[0]) {
        HVT_TRY(ops->conv.forward(l->op, m->real, l->dy.data, filters(m, l), in->dy.data, m->ws));
    } else if (in->dy.data) {
        void *dx = (char *)m->ws + l->ws_bytes - hvt__bytes(in);

        HVT_TRY(ops->conv.forward(l->op, m->real, l->dy.data, filters(m, l), dx, m->ws));
        HVT_TRY(ops->vector.add(m->dev, hvt__elements(in), in->y.dtype, in->dy.data, dx, in->dy.data));
    }
    return has_gradient(m, l) ? weight_gradient(m, l, l->dy.data, in->y.data) : HVT_OK;
}

uint64_t hvt__conv_hash(const hvt_model *m, const hvt_layer *l, uint64_t h)
{
    const hvt_conv2d_opts *c = &l->conv;

    return HVT__HASH(h, c->kernel_h, c->kernel_w, c->stride_h, c->stride_w, c->top, c->left, c->bottom,
                     c->right, c->dilation_h, c->dilation_w, c->groups, c->bias);
}

const hvt_layer_ops hvt_layer_conv = {"conv2d",
                                      conv_plan,
                                      hvt__conv_forward,
                                      hvt__conv_backward,
                                      .hash = hvt__conv_hash,
                                      .is_conv = true,
                                      .takes = HVT_TAKES_FILTERS};
const hvt_layer_ops hvt_layer_conv_transpose = {"conv_transpose2d",     transpose_plan,
                                                transpose_forward,      transpose_backward,
                                                .hash = hvt__conv_hash, .takes = HVT_TAKES_FILTERS};
