/*
 * Pooling: the maximum of a window, and the mean of an image.
 */
#include "base_impl.h"
#include "layers.h"

enum { SIZE, STRIDE, PAD };

hvt_value hvt_maxpool(hvt_model *m, hvt_value x, int size, int stride, int pad)
{
    hvt_layer *l = hvt__layer_begin(m, &hvt_layer_maxpool, x, -1);
    const int *d;

    if (!l)
        return -1;
    d = m->layer[x].y.dim;
    HVT_EXPECT(m, l,
               size > 0 && size <= HVT_POOLING_WINDOW && stride > 0 && stride <= HVT_MOST && pad >= 0 &&
                   pad * 2 <= size,
               "window %dx%d, stride %d, padding %d: the window must be 1 to %d wide, the padding at most "
               "half of it",
               size, size, stride, pad, HVT_POOLING_WINDOW);
    HVT_EXPECT(m, l, d[1] + 2 * pad >= size && d[2] + 2 * pad >= size,
               "input %dx%dx%d is smaller than the %dx%d window with padding %d; it must be at least %dx%d",
               d[1], d[2], d[3], size, size, pad, size - 2 * pad, size - 2 * pad);
    l->arg[SIZE] = size;
    l->arg[STRIDE] = stride;
    l->arg[PAD] = pad;
    return hvt__layer_end(m, l, hvt__conv_out(d[1], size, stride, pad),
                          hvt__conv_out(d[2], size, stride, pad), d[3]);
}

hvt_value hvt_avgpool(hvt_model *m, hvt_value x)
{
    hvt_layer *l = hvt__layer_begin(m, &hvt_layer_avgpool, x, -1);

    return l ? hvt__layer_end(m, l, 1, 1, m->layer[x].y.dim[3]) : -1;
}

static hvt_status pooling_plan(hvt_model *m, hvt_layer *l)
{
    const int *d = hvt__in(m, l, 0)->y.dim;

    return m->dev->ops->pooling_plan(m->dev,
                                     &(hvt_pooling_desc){.order = m->order,
                                                         .type = l->y.dtype,
                                                         .n = m->batch,
                                                         .h = d[1],
                                                         .w = d[2],
                                                         .c = d[3],
                                                         .size = l->arg[SIZE],
                                                         .stride = l->arg[STRIDE],
                                                         .pad = l->arg[PAD],
                                                         .mean = l->ops == &hvt_layer_avgpool},
                                     &l->op, &l->saved_bytes);
}

static hvt_status pooling_forward(hvt_model *m, hvt_layer *l, bool train)
{
    (void)train;
    return m->dev->ops->pooling_forward(l->op, m->real, hvt__in(m, l, 0)->y.data, l->y.data, l->saved);
}

static hvt_status pooling_backward(hvt_model *m, hvt_layer *l)
{
    return m->dev->ops->pooling_backward(l->op, m->real, l->saved, l->dy.data, hvt__in(m, l, 0)->dy.data,
                                         l->add[0]);
}

const hvt_layer_ops hvt_layer_maxpool = {"maxpool", pooling_plan, pooling_forward, pooling_backward};
const hvt_layer_ops hvt_layer_avgpool = {"avgpool", pooling_plan, pooling_forward, pooling_backward};
