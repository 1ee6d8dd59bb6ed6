/*
 * The model's part of a step: inputs, decision and counters, in one hvt_step_state in device memory. Only
 * queued ops change it, so the host need not wait for it; device/step.h has the rules.
 */
#include "base_impl.h"
#include "layers.h"

#include <math.h>

hvt_status hvt__step_open(hvt_model *m)
{
    const int pixels = hvt_loss_has_targets(m->loss.kind) ? 0 : hvt__logit_pixels(m);
    const hvt_step_state first = {.images = 1,
                                  .growth = 2,
                                  .backoff = 0.5f,
                                  .grad_scale = 1,
                                  .pixels = (float)pixels,
                                  .weighted = pixels || m->class_weights};

    HVT_TRY(m->dev->ops->memory.alloc(m->dev, sizeof first, (void **)&m->step));
    m->taken = (hvt_loss){0};
    m->first_scale = 1;
    HVT_TRY(hvt__model_set_state(m, &first));
    return hvt__step_restart(m);
}

hvt_status hvt__model_state(hvt_model *m, hvt_step_state *ret_state)
{
    return hvt_device_download(m->dev, ret_state, m->step, sizeof *ret_state);
}

hvt_status hvt__model_set_state(hvt_model *m, const hvt_step_state *state)
{
    return hvt_device_upload(m->dev, m->step, state, sizeof *state);
}

hvt_status hvt__step_restart(hvt_model *m)
{
    hvt_step_state s;

    HVT_TRY(hvt__model_state(m, &s));
    s.loss_scale = m->first_scale;
    s.good = s.skips_in_row = s.apply = 0;
    s.fresh = 1;
    s.updates = s.ema_count = 0;
    s.stop = HVT_STOP_NOT;
    s.stop_step = 0;
    s.bad = s.stop_bad = UINT64_MAX;
    memset(s.squares, 0, sizeof s.squares);
    return hvt__model_set_state(m, &s);
}

hvt_status hvt__model_begin_step(hvt_model *m, int64_t images, double lr,
                                 const float inputs[HVT__STEP_INPUTS])
{
    hvt_step_state step = {
        .images = (double)images, .tracked = m->tracked, .lr = (float)lr, .average = m->averages_next};

    m->averages_next = false;
    if (inputs)
        memcpy(step.inputs, inputs, sizeof step.inputs);
    return m->dev->ops->memory.put(m->dev, m->step, &step, HVT__STEP_PUT);
}

hvt_status hvt__model_end_step(hvt_model *m, const int *counts, int shards)
{
    const hvt_device_ops *ops = m->dev->ops;

    HVT_CHECK(m->batch && m->grads, E_ARG, "a step ended without a plan or a gradient arena");
    HVT_TRY(ops->step.decide(m->dev, m->step, m->grads + m->step_stats_count - HVT__STEP_SUMS));
    if (ops->host && m->step->stop)
        return HVT_OK;
    for (hvt_layer *l = m->layer; l < m->layer + m->nlayer; l++)
        if (hvt__has_statistics(l))
            HVT_TRY(hvt__norm_end_step(m, l, counts, shards));
    m->tracked++;
    return HVT_OK;
}

int hvt__model_owner(const hvt_model *m, uint64_t at)
{
    int i = m->nparam_tensors - 1;

    while (i > 0 && m->param[i].offset > at)
        i--;
    return i;
}

hvt_status hvt__model_stopped(const hvt_model *m, const hvt_step_state *s)
{
    double loss = isnan(s->stop_loss) ? (double)NAN : s->stop_loss; /* print a NaN without its sign */

    if (s->stop == HVT_STOP_NOT)
        return HVT_OK;
    if (s->stop == HVT_STOP_DISAGREE)
        return HVT_FAIL(E_MISMATCH, "ranks were given different learning rates or shard counts for step %lld",
                        (long long)s->stop_step);
    if (s->stop == HVT_STOP_SCALE && s->interval)
        return HVT_FAIL(E_DIVERGED, "gradients are not finite at the minimum loss scale, %g: %s is the first",
                        (double)(s->loss_scale * (float)m->batch),
                        m->param[hvt__model_owner(m, s->stop_bad)].name);
    if (s->stop == HVT_STOP_SCALE)
        return HVT_FAIL(E_DIVERGED, "gradients are not finite in %d consecutive updates: %s is the first",
                        s->skips_in_row, m->param[hvt__model_owner(m, s->stop_bad)].name);
    if (s->stop_step < s->steps)
        return HVT_FAIL(E_DIVERGED, "the loss is %g", loss);
    return HVT_FAIL(E_DIVERGED, "the loss is %g over the %lld images of this step", loss,
                    (long long)s->images);
}

/* Counters since the plan. */
static hvt_loss counted(const hvt_model *m, const hvt_step_state *s)
{
    hvt_loss l = {.sum = s->sums[HVT__SUM_LOSS], .count = s->count};

    if (hvt_loss_has_targets(m->loss.kind)) {
        l.error = s->sums[HVT__SUM_ERROR];
    } else {
        l.top1 = (int64_t)s->sums[HVT__SUM_TOP1];
        l.top5 = hvt__logit_pixels(m) ? 0 : (int64_t)s->sums[HVT__SUM_TOP5];
    }
    return l;
}

hvt_status hvt_model_take_loss(hvt_model *m, hvt_loss *ret_loss)
{
    HVT_GIVEN(m, "a model");
    HVT_GIVEN(ret_loss, "an output pointer for the loss");

    hvt_step_state state;
    hvt_loss now, was = m->taken;

    HVT_CHECK(m->batch, E_ARG, "call hvt_model_plan() before requesting the loss");
    HVT_TRY(hvt__model_state(m, &state));
    m->taken = now = counted(m, &state);
    *ret_loss = (hvt_loss){now.sum - was.sum, now.top1 - was.top1, now.top5 - was.top5, now.count - was.count,
                           now.error - was.error};
    return HVT_OK;
}
