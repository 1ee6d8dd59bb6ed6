/*
 * Filters and biases of convolutions and linear layers that are tensors of the tape (weight.c) instead of
 * parameters of the layer. Forward brings the filters into the device's layout and the activations' type and
 * keeps them for backward; backward brings their gradient back into the tensor's layout.
 */
#include "base_impl.h"
#include "layers.h"
#include "loops.h"

/* Scratch memory after the convolution's workspace: f32 filters in the device's and the tensor's layout. */
static float *scratch(const hvt_model *m, const hvt_layer *l)
{
    return (float *)((char *)m->ws + l->is.filters.scratch);
}

static size_t up64(size_t n)
{
    return (n + 63) / 64 * 64;
}

hvt_value hvt__filters_begin(hvt_model *m, const hvt_layer_ops *ops, hvt_value x, hvt_value weight,
                             hvt_value bias, hvt_layer **ret_layer)
{
    const hvt_value in[3] = {x, weight, bias};
    hvt_layer *l = hvt__layer_begin_many(m, ops, in, bias < 0 ? 2 : 3);

    *ret_layer = l;
    if (!l)
        return -1;
    HVT_EXPECT(m, l, l->shares < 0,
               "it shares parameters, but its weights are computed; let both layers read the same weights");
    return 0;
}

hvt_value hvt__filters_check(hvt_model *m, hvt_layer *l, int ndim, const int *dim)
{
    const hvt_layer *w = hvt__in(m, l, 1), *b = l->nin > 2 ? hvt__in(m, l, 2) : NULL;

    HVT_EXPECT(m, l, !l->conv.bias, "a bias of its own and computed weights; expected the bias as a tensor");
    HVT_EXPECT(m, l, w->ndim == ndim && !memcmp(w->dim, dim, (size_t)ndim * sizeof *dim),
               "its weight %s has %d dimensions, [%d,%d,%d,%d]; expected %d, [%d,%d,%d,%d]", w->name, w->ndim,
               w->dim[0], w->dim[1], w->dim[2], w->dim[3], ndim, dim[0], dim[1], dim[2], dim[3]);
    HVT_EXPECT(m, l, !b || (b->ndim == 1 && b->dim[0] == l->conv.filters),
               "its bias %s has %d dimensions and %d elements; expected 1 dimension of %d", b ? b->name : "",
               b ? b->ndim : 0, b ? b->y.dim[3] : 0, l->conv.filters);
    l->conv.bias = b != NULL;
    l->has_parameter = false;
    return 0;
}

hvt_status hvt__filters_plan(hvt_model *m, hvt_layer *l, size_t count)
{
    const hvt_layer *w = hvt__in(m, l, 1);

    HVT_CHECK(
        m->dev->ops->host, E_UNSUPPORTED,
        "layer %s (%s): its weight is computed, which device %s does not support; devices cpu and ref do",
        l->name, l->ops->name, m->dev->ops->name);
    l->is.filters.count = count;
    l->is.filters.scratch = up64(l->ws_bytes);
    l->is.filters.flat = hvt__in(m, l, 0)->flat;
    l->ws_bytes = l->is.filters.scratch + (count + hvt__elements(w)) * sizeof(float);
    l->saved_bytes = count * hvt_dtype_size(m->type);
    l->saves_input = w->requires_grad;
    return HVT_OK;
}

/* Copies filters between [K, channels, pixels], as PyTorch flattens images, and [K, pixels, channels]. */
static void flatten(hvt_model *m, const hvt_layer *l, bool to_pixels, float *from, float *to, bool add)
{
    const int k = hvt__in(m, l, 1)->dim[0], flat = l->is.filters.flat, c = hvt__in(m, l, 1)->dim[1] / flat;
    const hvt__operand dense = {to, {0, (ptrdiff_t)flat * c, to_pixels ? 1 : flat, to_pixels ? c : 1}},
                       other = {from, {0, (ptrdiff_t)flat * c, to_pixels ? flat : 1, to_pixels ? 1 : c}};

    hvt__loops_run(m->dev, (hvt__loops){.dim = {1, k, c, flat}, .of = {dense, other}, .add = add});
}

hvt_status hvt__filters_bring(hvt_model *m, hvt_layer *l)
{
    float *w = hvt__in(m, l, 1)->y.data, *own = scratch(m, l), *other = own + l->is.filters.count;

    if (l->is.filters.flat > 1) {
        flatten(m, l, true, w, other, false);
        w = other;
    }
    m->dev->ops->conv.permute(l->op, false, m->type == HVT_F32 ? l->saved : own, w);
    return m->type == HVT_F32
               ? HVT_OK
               : m->dev->ops->vector.cast(m->dev, l->is.filters.count, 1, own, HVT_F32, l->saved, m->type);
}

float *hvt__filters_gradient(const hvt_model *m, const hvt_layer *l)
{
    return scratch(m, l);
}

void hvt__filters_take_gradient(hvt_model *m, hvt_layer *l)
{
    const hvt_layer *w = hvt__in(m, l, 1);
    const hvt_device_ops *ops = m->dev->ops;
    float *own = scratch(m, l), *other = own + l->is.filters.count, *dw = w->dy.data;

    if (!l->add[1] && l->is.filters.flat <= 1) {
        ops->conv.permute(l->op, true, own, dw);
        return;
    }
    ops->conv.permute(l->op, true, own, other);
    if (l->is.filters.flat > 1)
        flatten(m, l, false, other, dw, l->add[1]);
    else
        hvt__loops_run(m->dev, (hvt__loops){.dim = {1, 1, 1, w->y.dim[3]},
                                            .of = {{dw, {0, 0, 0, 1}}, {other, {0, 0, 0, 1}}},
                                            .add = true});
}

hvt_status hvt__filters_bias_gradient(hvt_model *m, hvt_layer *l)
{
    const hvt_layer *b = hvt__in(m, l, 2);
    float *sum = l->add[2] ? scratch(m, l) : b->dy.data;

    if (!b->dy.data)
        return HVT_OK;
    HVT_TRY(m->dev->ops->matrix.bias_backward(m->dev, hvt__real_rows(m, l), l->y.dim[3], l->y.dtype,
                                              l->dy.data, sum));
    return l->add[2]
               ? m->dev->ops->vector.add(m->dev, (size_t)b->dim[0], HVT_F32, b->dy.data, sum, b->dy.data)
               : HVT_OK;
}
