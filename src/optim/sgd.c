/*
 * Stochastic gradient descent, as torch.optim.SGD does it: the learning rate multiplies after momentum, and
 * the first step's momentum is the gradient itself, whatever the dampening.
 */
#include "optim_impl.h"
#include "base_impl.h"

#include <math.h>

static hvt_status check_sgd(const hvt_optim_opts *o)
{
    HVT_CHECK(isfinite(o->momentum) && o->momentum >= 0, E_ARG, "momentum is %g, expected 0 or more",
              (double)o->momentum);
    HVT_CHECK(isfinite(o->dampening), E_ARG, "dampening is %g, expected a finite number",
              (double)o->dampening);
    HVT_CHECK(isfinite(o->weight_decay) && o->weight_decay >= 0, E_ARG,
              "weight decay is %g, expected 0 or more", (double)o->weight_decay);
    HVT_CHECK(!o->nesterov || (o->momentum > 0 && o->dampening == 0), E_ARG,
              "nesterov needs momentum above 0 and dampening 0, got %g and %g", (double)o->momentum,
              (double)o->dampening);
    return HVT_OK;
}

static bool keeps_state_sgd(const hvt_optim_opts *o)
{
    return o->momentum != 0;
}

static hvt_status update_sgd(hvt_optim *o, float weight_decay, const float *const g[], int ng, size_t first,
                             size_t count)
{
    const hvt_model *m = o->m;
    hvt_sgd_args a = {
        .momentum = o->opts.momentum,
        .dampening = o->opts.dampening,
        .weight_decay = weight_decay,
        .nesterov = o->opts.nesterov,
        .step = m->step,
        .copy = m->copy ? m->copy + first : NULL,
        .copy_type = m->type,
    };

    return m->dev->ops->sgd(m->dev, count, &a, g, ng, m->params + first,
                            o->v ? o->v + (first - o->v_at) : NULL);
}

const hvt_optim_ops hvt_optim_sgd = {
    .name = "sgd",
    .check = check_sgd,
    .keeps_state = keeps_state_sgd,
    .update = update_sgd,
};
