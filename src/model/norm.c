/*
 * Batch normalisation, torch.nn.BatchNorm2d: eps 1e-5, momentum 0.1; with what the plan fuses into it,
 *
 *     y = relu?(gamma * (x - mean) / sqrt(var + eps) + beta + residual?)
 *
 * Training normalises with the shard's own statistics. Its moments, weighted by its number of images, are
 * part of the step statistics; their sum over all shards updates the running statistics at the end of the
 * step, identically on every rank. A shard with fewer than two values per channel has no variance, and weight
 * 0.
 */
#include "base_impl.h"
#include "layers.h"

#include <stdlib.h>

#define EPS  1e-5f
#define RATE 0.1f

typedef struct norm {
    size_t moments; /* offset of [2,C] in the step statistics */
} norm;

hvt_value hvt_batchnorm(hvt_model *m, hvt_value x)
{
    hvt_layer *l = hvt__layer_begin(m, &hvt_layer_norm, x, -1);
    const int *d;

    if (!l)
        return -1;
    d = m->layer[x].y.dim;
    return hvt__layer_end(m, l, d[1], d[2], d[3]);
}

static hvt_status norm_plan(hvt_model *m, hvt_layer *l)
{
    int c = l->y.dim[3];
    hvt_param p = {.ndim = 1, .dim = {c}, .count = (size_t)c, .role = HVT_ROLE_NORM, .init = HVT_INIT_FILL};
    norm *own = calloc(1, sizeof *own);

    HVT_CHECK(own, E_MEM, "no memory for %zu bytes of layer %s", sizeof *own, l->name);
    l->own = own;
    own->moments = m->step_stats_count;
    m->step_stats_count += 2 * (size_t)c;
    l->saved_bytes = 2 * (size_t)c * sizeof(float); /* mean and 1/deviation */
    l->saves_input = true;
    l->saves_output = l->arg[HVT_NORM_RELU];
    l->in_place[0] = true;
    l->in_place[1] = hvt__in(m, l, 0)->requires_grad; /* else dx, which the op always writes, overwrites dy */
    p.init_arg = 1;
    HVT_TRY(hvt__param_add(m, l, 0, &p, "weight"));
    p.init_arg = 0;
    HVT_TRY(hvt__param_add(m, l, 1, &p, "bias"));
    HVT_TRY(hvt__stats_add(m, l, c));
    return HVT_OK;
}

static hvt_bn_args arguments(hvt_model *m, const hvt_layer *l)
{
    return (hvt_bn_args){
        .rows = hvt__real_rows(m, l),
        .c = l->y.dim[3],
        .type = l->y.dtype,
        .eps = EPS,
        .x = hvt__in(m, l, 0)->y.data,
        .gamma = hvt__weight(m, l, 0),
        .beta = hvt__weight(m, l, 1),
        .residual = l->in[1] < 0 ? NULL : hvt__in(m, l, 1)->y.data,
        .relu = l->arg[HVT_NORM_RELU],
        .y = l->y.data,
    };
}

static hvt_status norm_forward(hvt_model *m, hvt_layer *l, bool train)
{
    const norm *own = l->own;
    hvt_bn_args a;

    if (l->recompute_y[0])
        l->y.data = l->recompute_y[0];
    a = arguments(m, l);
    if (!train) {
        a.mean = m->stats + m->stat[l->stat].offset;
        a.rstd = m->stats + m->stat[l->stat + 1].offset;
        return m->dev->ops->bn_infer(m->dev, &a);
    }
    a.mean = l->saved;
    a.rstd = a.mean + a.c;
    a.moments = m->grads + own->moments;
    a.weight = (float)m->real;
    return m->dev->ops->bn_train(m->dev, &a);
}

hvt_status hvt__norm_recompute(hvt_model *m, hvt_layer *l)
{
    hvt_bn_args a;

    l->y.data = l->recompute_y[1];
    a = arguments(m, l);
    a.mean = l->saved;
    a.rstd = a.mean + a.c;
    return m->dev->ops->bn_recompute(m->dev, &a);
}

static hvt_status norm_backward(hvt_model *m, hvt_layer *l)
{
    const hvt_layer *in = hvt__in(m, l, 0), *residual = l->in[1] < 0 ? NULL : hvt__in(m, l, 1);
    const float *saved = l->saved;

    return m->dev->ops->bn_backward(m->dev, &(hvt_bn_grad_args){
                                                .rows = hvt__real_rows(m, l),
                                                .c = l->y.dim[3],
                                                .type = l->y.dtype,
                                                .x = in->y.data,
                                                .y = l->arg[HVT_NORM_RELU] ? l->y.data : NULL,
                                                .dy = l->dy.data,
                                                .gamma = hvt__weight(m, l, 0),
                                                .mean = saved,
                                                .rstd = saved + l->y.dim[3],
                                                .beta = residual ? NULL : hvt__weight(m, l, 1),
                                                .dx = in->dy.data ? in->dy.data : l->dy.data,
                                                .add = l->add[0],
                                                .dresidual = residual ? residual->dy.data : NULL,
                                                .add_residual = l->add[1],
                                                .dgamma = hvt__grad(m, l, 0),
                                                .dbeta = hvt__grad(m, l, 1),
                                            });
}

hvt_status hvt__norm_end_step(hvt_model *m, hvt_layer *l, const int *counts, int shards)
{
    const norm *own = l->own;
    const hvt_stat *s = &m->stat[l->stat];
    int64_t images = 0;

    for (int i = 0; i < shards; i++)
        if ((int64_t)counts[i] * hvt__pixels(l) >= 2)
            images += counts[i];
    if (!images)
        return HVT_OK;
    return m->dev->ops->bn_update(m->dev, m->step, l->y.dim[3], RATE, (float)(1.0 / (double)images),
                                  m->grads + own->moments, m->stats + s[0].offset, m->stats + s[1].offset);
}

const hvt_layer_ops hvt_layer_norm = {"batchnorm", norm_plan, norm_forward, norm_backward};
