/*
 * Batch normalisation, torch.nn.BatchNorm2d. With the layers that the plan fuses into it, it computes
 *
 *     y = relu?(gamma * (x - mean) / sqrt(var + eps) + beta + residual?)
 *     y = f(gamma * (x - mean) / sqrt(var + eps) + beta)
 *
 * Training normalises with the shard's own statistics, or with those of all shards (below). The shard's
 * moments, weighted by its number of images, are part of the step statistics; their sum over all shards
 * updates the running statistics at the end of the step, identically on every rank. A shard with fewer than
 * two values per channel has no variance, and weight 0.
 *
 * A fixed norm uses the running statistics in training, too. These are then constants, so it has no moments,
 * and dx = gamma * dz / sqrt(var + eps), without the terms of the statistics' gradients.
 */
#include "base_impl.h"
#include "layers.h"

hvt_value hvt_batchnorm(hvt_model *m, hvt_value x)
{
    return hvt_batchnorm_with(m, x, 1e-5f, 0.1f);
}

hvt_value hvt_batchnorm_with(hvt_model *m, hvt_value x, float eps, float momentum)
{
    hvt_layer *l = hvt__layer_begin(m, &hvt_layer_norm, x);

    if (!l)
        return -1;
    HVT_EXPECT(m, l, eps > 0 && eps <= 1 && momentum >= 0 && momentum <= 1,
               "eps %g and momentum %g; expected eps above 0 and both at most 1", (double)eps,
               (double)momentum);
    l->is.batchnorm.eps = eps;
    l->is.batchnorm.rate = momentum;
    l->has_parameter = true;
    return hvt__layer_end(m, l, l->y.dim[1], l->y.dim[2], l->y.dim[3]);
}

hvt_value hvt_batchnorm_fixed(hvt_model *m, hvt_value x, float eps)
{
    hvt_value v = hvt_batchnorm_with(m, x, eps, 0);

    if (v >= 0)
        m->layer[v].is.batchnorm.fixed = true;
    return v;
}

hvt_status hvt_model_fix_norms(hvt_model *m)
{
    HVT_GIVEN(m, "a model");
    HVT_CHECK(!m->batch, E_ARG, "call hvt_model_fix_norms() before hvt_model_plan()");

    bool any = false;

    for (hvt_layer *l = m->layer; l < m->layer + m->nlayer; l++)
        if (l->ops->is_norm)
            any = l->is.batchnorm.fixed = true;
    HVT_CHECK(any, E_ARG, "the model has no batch norm");
    return HVT_OK;
}

/* Offsets in `saved`, in units of c floats; mean and 1/deviation come first. SAVED_GRADIENTS: gradients that
 * are discarded. */
enum { SAVED_GRADIENTS = 2, SAVED_ZEROS = 4, SAVED_FIXED = 5 };

static hvt_status norm_plan(hvt_model *m, hvt_layer *l)
{
    HVT_CHECK(l->shares < 0, E_SHAPE,
              "layer %s (%s): it cannot share the parameters of %s: running statistics are not shared",
              l->name, l->ops->name, m->layer[l->shares].name);

    int c = l->y.dim[3];
    hvt_param p = {.ndim = 1, .dim = {c}, .count = (size_t)c, .role = HVT_ROLE_NORM, .init = HVT_INIT_FILL};

    if (l->is.batchnorm.fixed) {
        HVT__COMPUTES(m, l, general.map_forward);
    } else {
        l->moments = m->step_stats_count;
        m->step_stats_count += 2 * (size_t)c;
    }
    l->saved_bytes = SAVED_GRADIENTS * (size_t)c * sizeof(float);
    l->saves_input = true;
    l->saves_output = l->relu;
    l->in_place[0] = true;
    l->in_place[1] =
        hvt__in(m, l, 0)->requires_grad; /* otherwise dx, which the op always writes, overwrites dy */
    p.init_arg = 1;
    HVT_TRY(hvt__param_add(m, l, 0, &p, "weight"));
    p.init_arg = 0;
    HVT_TRY(hvt__param_add(m, l, 1, &p, "bias"));
    if (l->is.batchnorm.fixed)
        l->saved_bytes = SAVED_FIXED * (size_t)c * sizeof(float);
    else if (hvt__is_frozen(m, l, 0) || hvt__is_frozen(m, l, 1)) /* the op writes both gradients */
        l->saved_bytes = SAVED_ZEROS * (size_t)c * sizeof(float);
    return hvt__stats_add(m, l, c);
}

hvt_bn_args hvt__norm_arguments(hvt_model *m, const hvt_layer *l)
{
    return (hvt_bn_args){
        .rows = hvt__real_rows(m, l),
        .c = l->y.dim[3],
        .type = l->y.dtype,
        .eps = l->is.batchnorm.eps,
        .mean = l->saved,
        .rstd = (float *)l->saved + l->y.dim[3],
        .x = hvt__in(m, l, 0)->y.data,
        .gamma = hvt__weight(m, l, 0),
        .beta = hvt__weight(m, l, 1),
        .residual = l->in[1] < 0 ? NULL : hvt__in(m, l, 1)->y.data,
        .relu = l->relu,
        .map = l->maps ? &l->is.batchnorm.map : NULL,
        .y = l->y.data,
    };
}

static hvt_status fixed_forward(hvt_model *m, hvt_layer *l, const hvt_bn_args *a)
{
    const hvt_device_ops *ops = m->dev->ops;
    const size_t c = (size_t)l->y.dim[3];
    const hvt_map with_eps = {HVT_AFFINE, 1, a->eps}, root = {HVT_POW, -0.5f, 0};

    HVT_TRY(ops->memory.copy(m->dev, a->mean, m->stats + m->stat[l->stat].offset, c * sizeof(float)));
    HVT_TRY(ops->general.map_forward(m->dev, c, HVT_F32, &with_eps, m->stats + m->stat[l->stat + 1].offset,
                                     a->rstd));
    HVT_TRY(ops->general.map_forward(m->dev, c, HVT_F32, &root, a->rstd, a->rstd));
    return l->in_reader ? HVT_OK : ops->matrix.bn_infer(m->dev, a);
}

static hvt_status norm_forward(hvt_model *m, hvt_layer *l)
{
    hvt_bn_args a = hvt__norm_arguments(m, l);

    if (m->training && l->is.batchnorm.fixed)
        return fixed_forward(m, l, &a);
    if (m->training && hvt__synchronizes(m)) { /* hvt__norm_moments() has read x */
        HVT_TRY(m->dev->ops->memory.copy(m->dev, l->saved, m->sync->joined,
                                         2 * (size_t)l->y.dim[3] * sizeof(float)));
        return l->in_reader ? HVT_OK : m->dev->ops->matrix.bn_infer(m->dev, &a);
    }
    if (!m->training) {
        a.mean = m->stats + m->stat[l->stat].offset;
        a.rstd = m->stats + m->stat[l->stat + 1].offset;
        a.is_variance = true;
        return m->dev->ops->matrix.bn_infer(m->dev, &a);
    }
    a.moments = hvt__step_stats(m) + l->moments;
    a.weight = (float)m->real;
    if (l->in_reader)
        a.y = NULL;
    return m->dev->ops->matrix.bn_train(m->dev, &a);
}

/* Same result as in the last training pass. */
static hvt_status norm_recompute(hvt_model *m, hvt_layer *l)
{
    hvt_bn_args a = hvt__norm_arguments(m, l);

    return m->dev->ops->matrix.bn_infer(m->dev, &a);
}

/* Destination of the gradient of gamma (slot 0) or beta (1). */
static float *gradient(const hvt_model *m, const hvt_layer *l, int slot)
{
    return hvt__is_frozen(m, l, slot) ? (float *)l->saved + (SAVED_GRADIENTS + slot) * l->y.dim[3]
                                      : hvt__grad(m, l, slot);
}

static hvt_bn_grad_args grad_arguments(hvt_model *m, const hvt_layer *l)
{
    const hvt_layer *in = hvt__in(m, l, 0), *residual = l->in[1] < 0 ? NULL : hvt__in(m, l, 1);
    const float *saved = l->saved;

    return (hvt_bn_grad_args){
        .rows = hvt__real_rows(m, l),
        .c = l->y.dim[3],
        .type = l->y.dtype,
        .x = in->y.data,
        .y = l->relu ? l->y.data : NULL,
        .dy = l->dy.data,
        .map = l->maps ? &l->is.batchnorm.map : NULL,
        .dz = l->dy.data,
        .gamma = hvt__weight(m, l, 0),
        .mean = saved,
        .rstd = saved + l->y.dim[3],
        .beta = residual ? NULL : hvt__weight(m, l, 1),
        .dx = in->dy.data ? in->dy.data : l->dy.data,
        .add = l->add[0],
        .dresidual = residual ? residual->dy.data : NULL,
        .add_residual = l->add[1],
        .dgamma = gradient(m, l, 0),
        .dbeta = gradient(m, l, 1),
    };
}

static hvt_status norm_backward(hvt_model *m, hvt_layer *l)
{
    const int c = l->y.dim[3];
    const hvt_device_ops *ops = m->dev->ops;
    hvt_bn_grad_args a = grad_arguments(m, l);

    if (l->is.batchnorm.fixed) {
        float *zeros = (float *)l->saved + SAVED_ZEROS * c;

        HVT_TRY(ops->memory.zero(m->dev, zeros, (size_t)c * sizeof *zeros));
        HVT_TRY(ops->matrix.bn_sums(m->dev, &a));
        a.share = a.slope = zeros;
        return ops->matrix.bn_dx(m->dev, &a);
    }
    if (hvt__synchronizes(m)) { /* hvt__norm_sums() has read dy */
        const float *mine = hvt__sync_part(m, false, c, m->sync->opts.first + m->turn);

        HVT_TRY(ops->memory.copy(m->dev, a.dgamma, mine, (size_t)c * sizeof *mine));
        HVT_TRY(ops->memory.copy(m->dev, a.dbeta, mine + c, (size_t)c * sizeof *mine));
        a.share = m->sync->joined;
        a.slope = m->sync->joined + c;
        return ops->matrix.bn_dx(m->dev, &a);
    }
    return ops->matrix.bn_backward(m->dev, &a);
}

/*
 * Statistics of all shards: torch.nn.SyncBatchNorm, which is BatchNorm2d on all images of the step at once.
 * Each shard contributes mean and squared deviations per channel and, in backward, dgamma and dbeta, which
 * remain its own gradients. Every rank combines the contributions of all shards (device/join.h).
 */
hvt_status hvt__norm_moments(hvt_model *m, hvt_layer *l, float *part)
{
    hvt_bn_args a = hvt__norm_arguments(m, l);

    a.moments = part;
    return m->dev->ops->matrix.bn_moments(m->dev, &a);
}

hvt_status hvt__norm_sums(hvt_model *m, hvt_layer *l, float *part)
{
    hvt_bn_grad_args a = grad_arguments(m, l);

    a.dgamma = part;
    a.dbeta = part + l->y.dim[3];
    HVT_TRY(hvt__recompute_input(m, l));
    return m->dev->ops->matrix.bn_sums(m->dev, &a);
}

static hvt_bn_join_args join_arguments(const hvt_model *m, const hvt_layer *l)
{
    const struct hvt__sync *s = m->sync;
    const int c = l->y.dim[3];

    return (hvt_bn_join_args){
        .c = c,
        .pixels = hvt__pixels(l),
        .shards = s->shards,
        .shard = s->shard,
        .part = s->opts.parts(s->opts.ctx, false),
        .stride = hvt__part_floats(c),
        .eps = l->is.batchnorm.eps,
        .joined = s->joined,
        .moments = s->moments + l->moments,
    };
}

hvt_status hvt__norm_join_moments(hvt_model *m, const hvt_layer *l)
{
    const hvt_bn_join_args a = join_arguments(m, l);

    return m->dev->ops->matrix.bn_join_moments(m->dev, &a);
}

hvt_status hvt__norm_join_sums(hvt_model *m, const hvt_layer *l)
{
    const hvt_bn_join_args a = join_arguments(m, l);

    return m->dev->ops->matrix.bn_join_sums(m->dev, &a);
}

hvt_status hvt__norm_end_step(hvt_model *m, hvt_layer *l, const int *counts, int shards)
{
    const hvt_stat *s = &m->stat[l->stat];
    int64_t images = 0, all = 0;

    for (int i = 0; i < shards; i++) {
        all += counts[i];
        if ((int64_t)counts[i] * hvt__pixels(l) >= 2)
            images += counts[i];
    }
    if (hvt__synchronizes(m))
        images = all * hvt__pixels(l) >= 2;
    if (!images)
        return HVT_OK;
    return m->dev->ops->matrix.bn_update(
        m->dev, &(hvt_bn_update_args){
                    .step = m->step,
                    .c = l->y.dim[3],
                    .rate = l->is.batchnorm.rate,
                    .scale = (float)(1.0 / (double)images),
                    .moments = (hvt__synchronizes(m) ? m->sync->moments : m->grads) + l->moments,
                    .mean = m->stats + s[0].offset,
                    .var = m->stats + s[1].offset,
                });
}

static uint64_t norm_hash(const hvt_model *m, const hvt_layer *l, uint64_t h)
{
    return HVT__HASH(h, l->is.batchnorm.eps);
}

const hvt_layer_ops hvt_layer_norm = {.name = "batchnorm",
                                      .plan = norm_plan,
                                      .forward = norm_forward,
                                      .backward = norm_backward,
                                      .recompute = norm_recompute,
                                      .hash = norm_hash,
                                      .is_norm = true};
