/*
 * The input, and the pointwise layers: relu, add, and the option A shortcut of He et al., which subsamples.
 * Relu and add after a batch norm are usually fused into it (fold.c) and never run.
 */
#include "base_impl.h"
#include "layers.h"

/* y is the batch's images. */
hvt_value hvt_input(hvt_model *m, int h, int w, int c)
{
    hvt_layer *l = hvt__layer_begin_many(m, &hvt_layer_input, NULL, 0);

    if (!l)
        return -1;
    HVT_EXPECT(m, l, m->input < 0, "a model has one input; layer %s is one already", m->layer[m->input].name);
    HVT_EXPECT(m, l, h > 0 && w > 0 && c > 0 && h <= HVT_MOST && w <= HVT_MOST && c <= HVT_MOST,
               "images of %dx%dx%d; each number must be 1 to %d", h, w, c, HVT_MOST);
    m->input = hvt__layer_end(m, l, h, w, c);
    return m->input;
}

hvt_value hvt_relu(hvt_model *m, hvt_value x)
{
    hvt_layer *l = hvt__layer_begin(m, &hvt_layer_relu, x);

    if (!l)
        return -1;
    l->saves_output = true;
    return hvt__layer_end(m, l, l->y.dim[1], l->y.dim[2], l->y.dim[3]);
}

static hvt_status relu_forward(hvt_model *m, hvt_layer *l)
{
    return m->dev->ops->vector.relu_forward(m->dev, hvt__elements(l), l->y.dtype, hvt__in(m, l, 0)->y.data,
                                            l->y.data);
}

static hvt_status relu_backward(hvt_model *m, hvt_layer *l)
{
    return m->dev->ops->vector.relu_backward(m->dev, hvt__elements(l), l->y.dtype, l->y.data, l->dy.data,
                                             hvt__in(m, l, 0)->dy.data, l->add[0]);
}

hvt_value hvt_add(hvt_model *m, hvt_value a, hvt_value b)
{
    hvt_layer *l = hvt__layer_begin_many(m, &hvt_layer_add, (hvt_value[]){a, b}, 2);
    if (!l)
        return -1;
    const int *p = m->layer[a].y.dim, *q = m->layer[b].y.dim;

    HVT_EXPECT(m, l, p[1] == q[1] && p[2] == q[2] && p[3] == q[3],
               "adds %s, which is %dx%dx%d, and %s, which is %dx%dx%d", m->layer[a].name, p[1], p[2], p[3],
               m->layer[b].name, q[1], q[2], q[3]);
    l->in_place[0] = l->in_place[1] = true;
    return hvt__layer_end(m, l, p[1], p[2], p[3]);
}

static hvt_status add_forward(hvt_model *m, hvt_layer *l)
{
    return m->dev->ops->vector.add(m->dev, hvt__elements(l), l->y.dtype, hvt__in(m, l, 0)->y.data,
                                   hvt__in(m, l, 1)->y.data, l->y.data);
}

static hvt_status add_backward(hvt_model *m, hvt_layer *l)
{
    for (int i = 0; i < 2; i++) {
        void *dx = hvt__in(m, l, i)->dy.data;

        if (!dx || (dx == l->dy.data && !l->add[i])) /* not needed, or in place */
            continue;
        if (l->add[i])
            HVT_TRY(m->dev->ops->vector.add(m->dev, hvt__elements(l), l->y.dtype, dx, l->dy.data, dx));
        else
            HVT_TRY(m->dev->ops->memory.copy(m->dev, dx, l->dy.data, hvt__bytes(l)));
    }
    return HVT_OK;
}

hvt_value hvt_subsample(hvt_model *m, hvt_value x, int stride, int channels)
{
    hvt_layer *l = hvt__layer_begin(m, &hvt_layer_subsample, x);
    if (!l)
        return -1;
    const int *d = l->y.dim;

    HVT_EXPECT(m, l, stride > 0 && stride <= HVT_MOST, "stride %d, not 1 to %d", stride, HVT_MOST);
    HVT_EXPECT(m, l, channels >= d[3] && channels <= HVT_MOST && (channels - d[3]) % 2 == 0,
               "input %dx%dx%d cannot be padded evenly to %d channels", d[1], d[2], d[3], channels);
    l->stride = stride;
    return hvt__layer_end(m, l, (d[1] + stride - 1) / stride, (d[2] + stride - 1) / stride, channels);
}

static hvt_subsample_desc subsample_desc(hvt_model *m, const hvt_layer *l)
{
    const int *x = hvt__in(m, l, 0)->y.dim;

    return (hvt_subsample_desc){m->order, l->y.dtype, m->batch, x[1], x[2], x[3], l->stride, l->y.dim[3]};
}

static hvt_status subsample_forward(hvt_model *m, hvt_layer *l)
{
    hvt_subsample_desc d = subsample_desc(m, l);

    return m->dev->ops->matrix.subsample_forward(m->dev, &d, hvt__in(m, l, 0)->y.data, l->y.data);
}

static hvt_status subsample_backward(hvt_model *m, hvt_layer *l)
{
    hvt_subsample_desc d = subsample_desc(m, l);

    return m->dev->ops->matrix.subsample_backward(m->dev, &d, l->dy.data, hvt__in(m, l, 0)->dy.data,
                                                  l->add[0]);
}

static uint64_t subsample_hash(const hvt_model *m, const hvt_layer *l, uint64_t h)
{
    return HVT__HASH(h, l->stride, l->y.dim[3]);
}

const hvt_layer_ops hvt_layer_input = {.name = "input", .hash = hvt__hash_no_arguments};
const hvt_layer_ops hvt_layer_relu = {"relu",
                                      NULL,
                                      relu_forward,
                                      relu_backward,
                                      true,
                                      .hash = hvt__hash_no_arguments,
                                      .may_fuse = HVT_FUSE_RELU,
                                      .takes = HVT_TAKES_EITHER};
const hvt_layer_ops hvt_layer_add = {
    "add", NULL, add_forward, add_backward, true, .hash = hvt__hash_no_arguments, .may_fuse = HVT_FUSE_ADD};
const hvt_layer_ops hvt_layer_subsample = {"subsample", NULL, subsample_forward, subsample_backward,
                                           .hash = subsample_hash};
