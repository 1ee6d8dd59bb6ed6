/*
 * Stochastic gradient descent, as torch.optim.SGD does it: the learning rate multiplies after momentum, and
 * the first step's momentum is the gradient itself, whatever the dampening.
 *
 * An update is elementwise, so a step may be done span by span, cut anywhere. Parameters differ only in
 * whether they are decayed; neighbours that agree in this are updated in one run, together with the padding
 * between them, which is zero in every arena and stays zero.
 */
#include "optim_impl.h"
#include "base_impl.h"

#include <math.h>

static hvt_status check(const hvt_optim_opts *o)
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

hvt_status hvt_optim_create(hvt_model *m, const hvt_optim_opts *opts, hvt_optim **ret_optim)
{
    HVT_GIVEN(m, "a model");
    HVT_GIVEN(opts, "options");
    HVT_GIVEN(ret_optim, "a place for the optimizer");

    hvt_optim *o;
    hvt_status s;

    HVT_CHECK(m->arena_count, E_ARG, "an optimizer needs a planned model; call hvt_model_plan() first");
    HVT_TRY(check(opts));
    o = calloc(1, sizeof *o);
    HVT_CHECK(o, E_MEM, "no memory for an optimizer (%zu bytes)", sizeof *o);
    *o = (hvt_optim){.m = m, .opts = *opts};
    hvt__use(&m->users, HVT__USER_OPTIM, 1);
    HVT_TRY_OR(fail, hvt__optim_set_fresh(o, true));
    if (opts->momentum != 0)
        HVT_TRY_OR(fail, m->dev->ops->memory.alloc(m->dev, m->grad_count * sizeof *o->v, (void **)&o->v));
    *ret_optim = o;
    return HVT_OK;
fail:
    hvt_optim_free(&o);
    return s;
}

void hvt_optim_free(hvt_optim **optim)
{
    hvt_optim *o = optim ? *optim : NULL;

    if (!o || hvt__in_use(&o->users, "an optimizer"))
        return;
    o->m->dev->ops->memory.release(o->m->dev, o->v);
    o->m->dev->ops->memory.release(o->m->dev, o->whole);
    hvt__use(&o->m->users, HVT__USER_OPTIM, -1);
    free(o);
    *optim = NULL;
}

hvt_status hvt__optim_state(hvt_optim *o, bool write, float **ret_v)
{
    hvt_device *dev = o->m->dev;

    if (o->sliced && !o->whole && write)
        HVT_TRY(dev->ops->memory.alloc(dev, o->m->grad_count * sizeof *o->whole, (void **)&o->whole));
    HVT_CHECK(!o->sliced || o->whole, E_ARG,
              "the optimizer's state lies in slices on the ranks; hvt_distopt_gather() brings it here");
    o->loaded = o->loaded || (o->sliced && write);
    *ret_v = o->sliced ? o->whole : o->v;
    return HVT_OK;
}

hvt_status hvt__optim_fresh(const hvt_optim *o, bool *ret_fresh)
{
    hvt_step_state s;

    HVT_TRY(hvt__model_state(o->m, &s));
    *ret_fresh = s.fresh && !s.apply;
    return HVT_OK;
}

hvt_status hvt__optim_set_fresh(hvt_optim *o, bool fresh)
{
    hvt_step_state s;

    HVT_TRY(hvt__model_state(o->m, &s));
    s.fresh = fresh;
    s.apply = 0;
    return hvt__model_set_state(o->m, &s);
}

static bool decayed(const hvt_optim *o, const hvt_param *p)
{
    return o->opts.weight_decay != 0 && !(p->role == HVT_ROLE_NORM && o->opts.no_decay_norm) &&
           !(p->role == HVT_ROLE_BIAS && o->opts.no_decay_bias);
}

hvt_status hvt__optim_span(hvt_optim *o, const float *g[], int ng, size_t first, size_t end)
{
    const hvt_model *m = o->m;
    const hvt_param *p = m->param, *last = m->param + m->ntrained;
    hvt_sgd_args a = {.momentum = o->opts.momentum,
                      .dampening = o->opts.dampening,
                      .nesterov = o->opts.nesterov,
                      .step = m->step,
                      .copy_type = m->type};

    while (p < last && p->offset + p->count <= first)
        p++;
    while (first < end && p < last && p->offset < end) {
        bool decay = decayed(o, p);
        size_t from = p->offset < first ? first : p->offset, to = from;

        for (; p < last && p->offset < end && decayed(o, p) == decay; p++)
            to = p->offset + p->count;
        to = to < end ? to : end;
        for (int r = 0; r < ng; r++)
            g[r] += from - first;
        first = from;
        a.weight_decay = decay ? o->opts.weight_decay : 0;
        a.copy = m->copy ? m->copy + from : NULL;
        HVT_TRY(m->dev->ops->vector.sgd(m->dev, to - from, &a, g, ng, m->params + from,
                                        o->v ? o->v + (from - o->v_at) : NULL));
    }
    return HVT_OK;
}
