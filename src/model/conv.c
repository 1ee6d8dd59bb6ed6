/*
 * Convolution. The device owns the algorithm and the weights' layout; this layer declares the weight, and has
 * the weights packed for backward whenever, and only when, they have changed.
 */
#include "base_impl.h"
#include "layers.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>

enum { FILTERS, SIZE, STRIDE, PAD };

typedef struct conv {
    uint64_t packed; /* version of the model that the device's packed weights were made from; 0: none yet */
} conv;

hvt_value hvt_conv2d(hvt_model *m, hvt_value x, int filters, int size, int stride, int pad)
{
    hvt_layer *l = hvt__layer_begin(m, &hvt_layer_conv, x, -1);
    const int *d;

    if (!l)
        return -1;
    d = m->layer[x].y.dim;
    HVT_EXPECT(
        m, l,
        filters > 0 && size > 0 && stride > 0 && pad >= 0 && filters <= HVT_MOST && size <= HVT_MOST &&
            stride <= HVT_MOST && pad < size,
        "%d filters of %dx%d, stride %d, padding %d: filters, size and stride must be 1 to %d, padding "
        "0 to size-1",
        filters, size, size, stride, pad, HVT_MOST);
    HVT_EXPECT(m, l, d[1] + 2 * pad >= size && d[2] + 2 * pad >= size,
               "input %dx%dx%d is smaller than the %dx%d window with padding %d; it must be at least %dx%d",
               d[1], d[2], d[3], size, size, pad, size - 2 * pad, size - 2 * pad);
    HVT_EXPECT(m, l, (int64_t)size * size <= INT_MAX && (int64_t)size * size * d[3] <= INT_MAX / filters,
               "%d filters of %dx%dx%d have more than %d weights", filters, size, size, d[3], INT_MAX);
    l->arg[FILTERS] = filters;
    l->arg[SIZE] = size;
    l->arg[STRIDE] = stride;
    l->arg[PAD] = pad;
    return hvt__layer_end(m, l, hvt__conv_out(d[1], size, stride, pad),
                          hvt__conv_out(d[2], size, stride, pad), filters);
}

hvt_status hvt__conv_plan(hvt_model *m, hvt_layer *l, const hvt_conv_desc *d, hvt_param p)
{
    conv *own = calloc(1, sizeof *own);

    HVT_CHECK(own, E_MEM, "no memory for %zu bytes of layer %s", sizeof *own, l->name);
    l->own = own;
    HVT_TRY(m->dev->ops->conv_plan(m->dev, d, &l->op, &p.count, &l->ws_bytes));
    p.op = l->op;
    l->saves_input = true;
    HVT_TRY(hvt__param_add(m, l, 0, &p, "weight"));
    return HVT_OK;
}

/* The weight in the activations' type. */
static const void *filters(const hvt_model *m, const hvt_layer *l)
{
    size_t at = m->param[l->param[0]].offset;

    return m->copy ? (const void *)(m->copy + at) : m->params + at;
}

hvt_status hvt__conv_forward(hvt_model *m, hvt_layer *l)
{
    return m->dev->ops->conv_forward(l->op, m->real, hvt__in(m, l, 0)->y.data, filters(m, l), l->y.data,
                                     m->ws);
}

hvt_status hvt__conv_backward(hvt_model *m, hvt_layer *l)
{
    const hvt_device_ops *ops = m->dev->ops;
    const hvt_layer *in = hvt__in(m, l, 0);
    conv *own = l->own;

    if (in->dy.data) {
        if (own->packed != m->version) {
            HVT_TRY(ops->conv_pack_weights(l->op, filters(m, l)));
            own->packed = m->version;
        }
        HVT_TRY(
            ops->conv_backward_x(l->op, m->real, filters(m, l), l->dy.data, in->dy.data, l->add[0], m->ws));
    }
    return ops->conv_backward_w(l->op, m->real, in->y.data, l->dy.data, hvt__grad(m, l, 0), m->ws);
}

/* torchvision: kaiming normal, fan out, for relu: the deviation is sqrt(2 / (size*size*filters)). */
static hvt_status conv_plan(hvt_model *m, hvt_layer *l)
{
    const hvt_layer *in = hvt__in(m, l, 0);
    int k = l->arg[FILTERS], size = l->arg[SIZE], c = in->y.dim[3];

    return hvt__conv_plan(m, l,
                          &(hvt_conv_desc){.order = m->order,
                                           .type = l->y.dtype,
                                           .n = m->batch,
                                           .h = in->y.dim[1],
                                           .w = in->y.dim[2],
                                           .c = c,
                                           .cx = l->in[0] == m->input ? m->input_channels : c,
                                           .k = k,
                                           .r = size,
                                           .s = size,
                                           .stride = l->arg[STRIDE],
                                           .pad = l->arg[PAD],
                                           .no_dx = !in->requires_grad},
                          (hvt_param){.ndim = 4,
                                      .dim = {k, c, size, size},
                                      .role = HVT_ROLE_WEIGHT,
                                      .init = HVT_INIT_NORMAL,
                                      .init_arg = (float)sqrt(2.0 / ((double)size * size * k))});
}

static hvt_status conv_forward(hvt_model *m, hvt_layer *l, bool train)
{
    (void)train;
    return hvt__conv_forward(m, l);
}

const hvt_layer_ops hvt_layer_conv = {"conv2d", conv_plan, conv_forward, hvt__conv_backward};
