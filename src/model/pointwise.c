/*
 * The input, and the pointwise layers: relu, add, and the option A shortcut of He et al., which subsamples.
 * Relu and add after a batch norm are usually fused into it (fold.c) and never run.
 */
#include "base_impl.h"
#include "layers.h"

static hvt_status nothing_to_plan(hvt_model *m, hvt_layer *l)
{
    (void)m;
    (void)l;
    return HVT_OK;
}

/* ---- input: its y is the batch's images ---- */

hvt_value hvt_input(hvt_model *m, int h, int w, int c)
{
    hvt_layer *l = hvt__layer_begin(m, &hvt_layer_input, -1, -1);
    hvt_value v;

    if (!l)
        return -1;
    HVT_EXPECT(m, l, m->input < 0, "a model has one input; layer %s is one already", m->layer[m->input].name);
    HVT_EXPECT(m, l, h > 0 && w > 0 && c > 0 && h <= HVT_MOST && w <= HVT_MOST && c <= HVT_MOST,
               "images of %dx%dx%d; each number must be 1 to %d", h, w, c, HVT_MOST);
    v = hvt__layer_end(m, l, h, w, c);
    if (v >= 0)
        m->input = v;
    return v;
}

static hvt_status input_forward(hvt_model *m, hvt_layer *l, bool train)
{
    (void)train;
    return nothing_to_plan(m, l);
}

/* ---- relu: y = max(x, 0) ---- */

hvt_value hvt_relu(hvt_model *m, hvt_value x)
{
    hvt_layer *l = hvt__layer_begin(m, &hvt_layer_relu, x, -1);
    const int *d;

    if (!l)
        return -1;
    d = m->layer[x].y.dim;
    return hvt__layer_end(m, l, d[1], d[2], d[3]);
}

static hvt_status relu_plan(hvt_model *m, hvt_layer *l)
{
    (void)m;
    l->saves_output = true;
    return HVT_OK;
}

static hvt_status relu_forward(hvt_model *m, hvt_layer *l, bool train)
{
    (void)train;
    return m->dev->ops->relu_forward(m->dev, hvt__elements(l), l->y.dtype, hvt__in(m, l, 0)->y.data,
                                     l->y.data);
}

static hvt_status relu_backward(hvt_model *m, hvt_layer *l)
{
    return m->dev->ops->relu_backward(m->dev, hvt__elements(l), l->y.dtype, l->y.data, l->dy.data,
                                      hvt__in(m, l, 0)->dy.data, l->add[0]);
}

/* ---- add: y = a + b ---- */

hvt_value hvt_add(hvt_model *m, hvt_value a, hvt_value b)
{
    hvt_layer *l = hvt__layer_begin(m, &hvt_layer_add, a, b);
    const int *p, *q;

    if (!l)
        return -1;
    p = m->layer[a].y.dim;
    q = m->layer[b].y.dim;
    HVT_EXPECT(m, l, p[1] == q[1] && p[2] == q[2] && p[3] == q[3],
               "adds %s, which is %dx%dx%d, and %s, which is %dx%dx%d", m->layer[a].name, p[1], p[2], p[3],
               m->layer[b].name, q[1], q[2], q[3]);
    return hvt__layer_end(m, l, p[1], p[2], p[3]);
}

static hvt_status add_plan(hvt_model *m, hvt_layer *l)
{
    (void)m;
    l->in_place[0] = l->in_place[1] = true;
    return HVT_OK;
}

static hvt_status add_forward(hvt_model *m, hvt_layer *l, bool train)
{
    (void)train;
    return m->dev->ops->add(m->dev, hvt__elements(l), l->y.dtype, hvt__in(m, l, 0)->y.data,
                            hvt__in(m, l, 1)->y.data, l->y.data);
}

static hvt_status add_backward(hvt_model *m, hvt_layer *l)
{
    for (int i = 0; i < 2; i++) {
        void *dx = hvt__in(m, l, i)->dy.data;

        if (!dx || (dx == l->dy.data && !l->add[i])) /* not needed; there already */
            continue;
        if (l->add[i])
            HVT_TRY(m->dev->ops->add(m->dev, hvt__elements(l), l->y.dtype, dx, l->dy.data, dx));
        else
            HVT_TRY(m->dev->ops->copy(m->dev, dx, l->dy.data, hvt__bytes(l)));
    }
    return HVT_OK;
}

/* ---- subsample: every stride-th pixel, channels zero-padded evenly on both sides ---- */

enum { STRIDE, CHANNELS };

hvt_value hvt_subsample(hvt_model *m, hvt_value x, int stride, int channels)
{
    hvt_layer *l = hvt__layer_begin(m, &hvt_layer_subsample, x, -1);
    const int *d;

    if (!l)
        return -1;
    d = m->layer[x].y.dim;
    HVT_EXPECT(m, l, stride > 0 && stride <= HVT_MOST, "stride %d, not 1 to %d", stride, HVT_MOST);
    HVT_EXPECT(m, l, channels >= d[3] && channels <= HVT_MOST && (channels - d[3]) % 2 == 0,
               "input %dx%dx%d cannot be padded evenly to %d channels", d[1], d[2], d[3], channels);
    l->arg[STRIDE] = stride;
    l->arg[CHANNELS] = channels;
    return hvt__layer_end(m, l, (d[1] + stride - 1) / stride, (d[2] + stride - 1) / stride, channels);
}

static hvt_status subsample_forward(hvt_model *m, hvt_layer *l, bool train)
{
    const hvt_tensor *x = &hvt__in(m, l, 0)->y;

    (void)train;
    return m->dev->ops->subsample_forward(m->dev, m->order, l->y.dtype, m->batch, x->dim[1], x->dim[2],
                                          x->dim[3], l->arg[STRIDE], l->arg[CHANNELS], x->data, l->y.data);
}

static hvt_status subsample_backward(hvt_model *m, hvt_layer *l)
{
    const hvt_tensor *dx = &hvt__in(m, l, 0)->dy;

    return m->dev->ops->subsample_backward(m->dev, m->order, l->y.dtype, m->batch, dx->dim[1], dx->dim[2],
                                           dx->dim[3], l->arg[STRIDE], l->arg[CHANNELS], l->dy.data, dx->data,
                                           l->add[0]);
}

const hvt_layer_ops hvt_layer_input = {"input", nothing_to_plan, input_forward, nothing_to_plan};
const hvt_layer_ops hvt_layer_relu = {"relu", relu_plan, relu_forward, relu_backward};
const hvt_layer_ops hvt_layer_add = {"add", add_plan, add_forward, add_backward};
const hvt_layer_ops hvt_layer_subsample = {"subsample", nothing_to_plan, subsample_forward,
                                           subsample_backward};
