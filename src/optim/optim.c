/*
 * Optimizers as in torch.optim, and their table. SGD: the learning rate multiplies after momentum, and the
 * first step's momentum is the gradient itself, whatever the dampening.
 *
 * An update is elementwise, so a step may be applied span by span, with any cuts. Parameters differ only in
 * learning rate, weight decay and trust ratio (trust.c); neighbours with the same values are updated in one
 * run, together with the padding between them, which is and stays zero in every arena. If the step takes the
 * average of the weights, a run is cut into pieces, so that new weights are averaged while they are in a
 * core's cache.
 */
#include "optim_impl.h"
#include "base_impl.h"

#include <math.h>

static float *state_at(const hvt_optim *o, int k, size_t at)
{
    return o->v ? o->v + (size_t)k * o->v_count + (at - o->v_at) : NULL;
}

/* The step state with the group's learning rate: the model's, or a changed copy in *own. */
static const hvt_step_state *step_of(const hvt_optim *o, const hvt__group *group, hvt_step_state *own)
{
    if (group->lr_scale == 1)
        return o->m->step;
    *own = *o->m->step;
    own->lr *= group->lr_scale;
    return own;
}

/* ---- SGD ---- */

static int states_of_sgd(const hvt_optim_opts *o)
{
    return o->momentum != 0;
}

static hvt_status check_sgd(const hvt_optim_opts *o)
{
    HVT_CHECK(isfinite(o->momentum) && o->momentum >= 0, E_ARG, "momentum is %g, expected 0 or more",
              (double)o->momentum);
    HVT_CHECK(isfinite(o->dampening), E_ARG, "dampening is %g, expected a finite number",
              (double)o->dampening);
    HVT_CHECK(!o->nesterov || (o->momentum > 0 && o->dampening == 0), E_ARG,
              "nesterov needs momentum above 0 and dampening 0, got %g and %g", (double)o->momentum,
              (double)o->dampening);
    HVT_CHECK(o->betas[0] == 0 && o->betas[1] == 0 && o->eps == 0, E_ARG,
              "betas %g, %g and eps %g are Adam's: %s has none", o->betas[0], o->betas[1], o->eps,
              hvt__optim_rules[o->kind].name);
    return HVT_OK;
}

static hvt_status update_sgd(hvt_optim *o, size_t at, size_t n, const hvt__group *group,
                             const float *const g[], int ng)
{
    const hvt_model *m = o->m;
    hvt_step_state own;
    const hvt_sgd_args a = {.momentum = o->opts.momentum,
                            .dampening = o->opts.dampening,
                            .nesterov = o->opts.nesterov,
                            .weight_decay = group->weight_decay,
                            .step = step_of(o, group, &own),
                            .copy = m->copy ? m->copy + at : NULL,
                            .copy_type = m->type};

    return m->dev->ops->vector.sgd(m->dev, n, &a, g, ng, m->params + at, state_at(o, 0, at));
}

/* ---- Adam and AdamW ---- */

static int states_of_adam(const hvt_optim_opts *o)
{
    return 2;
}

static hvt_status check_adam(const hvt_optim_opts *o)
{
    for (int k = 0; k < 2; k++)
        HVT_CHECK(o->betas[k] >= 0 && o->betas[k] < 1, E_ARG, "betas[%d] is %g, expected 0 or more, below 1",
                  k, o->betas[k]);
    HVT_CHECK(o->eps != 0 || o->betas[0] != 0 || o->betas[1] != 0, E_ARG,
              "%s needs betas and an eps, which are all 0: expected 0.9, 0.999 and 1e-8, or others",
              hvt__optim_rules[o->kind].name);
    HVT_CHECK(isfinite((float)o->eps) && (float)o->eps > 0, E_ARG,
              "eps is %g, expected a number above 0 (1e-8 is usual): gradients of 0 are divided by it",
              o->eps);
    HVT_CHECK(o->betas[0] > 0 || o->betas[1] > 0, E_ARG,
              "both betas are 0, which averages nothing: expected 0.9 and 0.999, or others");
    HVT_CHECK(o->momentum == 0 && o->dampening == 0 && !o->nesterov, E_ARG,
              "momentum %g, dampening %g and nesterov are SGD's: %s has betas", (double)o->momentum,
              (double)o->dampening, hvt__optim_rules[o->kind].name);
    return HVT_OK;
}

static hvt_status update_adam(hvt_optim *o, size_t at, size_t n, const hvt__group *group,
                              const float *const g[], int ng)
{
    const hvt_model *m = o->m;
    hvt_step_state own;
    const hvt_adam_args a = {.beta = {o->opts.betas[0], o->opts.betas[1]},
                             .eps = (float)o->opts.eps,
                             .weight_decay = group->weight_decay,
                             .decoupled = o->opts.kind == HVT_OPTIM_ADAMW,
                             .step = step_of(o, group, &own),
                             .copy = m->copy ? m->copy + at : NULL,
                             .copy_type = m->type};

    return m->dev->ops->vector.adam(m->dev, n, &a, g, ng, m->params + at, state_at(o, 0, at),
                                    state_at(o, 1, at));
}

/* ---- RMSprop ---- */

static hvt_status check_rmsprop(const hvt_optim_opts *o)
{
    HVT_CHECK(o->betas[0] == 0 && o->betas[1] >= 0 && o->betas[1] < 1, E_ARG,
              "betas are %g, %g: rmsprop has only the second, its alpha, from 0 to below 1", o->betas[0],
              o->betas[1]);
    HVT_CHECK(isfinite((float)o->eps) && (float)o->eps > 0, E_ARG, "eps is %g, expected a number above 0",
              o->eps);
    HVT_CHECK(isfinite(o->momentum) && o->momentum >= 0, E_ARG, "momentum is %g, expected 0 or more",
              (double)o->momentum);
    HVT_CHECK(o->dampening == 0 && !o->nesterov, E_ARG, "dampening %g and nesterov are SGD's, not rmsprop's",
              (double)o->dampening);
    return HVT_OK;
}

static int states_of_rmsprop(const hvt_optim_opts *o)
{
    return 1 + (o->momentum != 0);
}

/* Updates at most HVT__RULE_PIECE elements, by operations of SGD and Adam. First the gradient with its decay;
 * then Adam's step from 0, without averages of gradients or bias correction, which gives the negated
 * direction; then SGD along it. */
static hvt_status update_rmsprop(hvt_optim *o, size_t at, size_t n, const hvt__group *group,
                                 const float *const g[], int ng)
{
    const hvt_model *m = o->m;
    const hvt_device_ops *ops = m->dev->ops;
    float *zero = o->scratch, *gradient = zero + HVT__RULE_PIECE, *direction = gradient + HVT__RULE_PIECE;
    const float *from = gradient, *weights = m->params + at, *along = direction;
    hvt_step_state own = *m->step;
    const hvt_sgd_args add = {.step = &own};
    const hvt_adam_args adam = {.beta = {0, o->opts.betas[1]}, .eps = (float)o->opts.eps, .step = &own};
    const hvt_sgd_args sgd = {.momentum = o->opts.momentum,
                              .step = &own,
                              .copy = m->copy ? m->copy + at : NULL,
                              .copy_type = m->type};

    HVT_TRY(ops->memory.zero(m->dev, o->scratch, 3 * HVT__RULE_PIECE * sizeof *zero));
    own.lr = -1;
    HVT_TRY(ops->vector.sgd(m->dev, n, &add, g, ng, gradient, NULL));
    own.lr = -group->weight_decay;
    own.grad_scale = 1;
    if (own.lr != 0)
        HVT_TRY(ops->vector.sgd(m->dev, n, &add, &weights, 1, gradient, NULL));
    own.lr = own.bias[0] = own.bias[1] = 1;
    HVT_TRY(ops->vector.adam(m->dev, n, &adam, &from, 1, direction, zero, state_at(o, 0, at)));
    own.lr = m->step->lr * group->lr_scale;
    own.grad_scale = -1;
    return ops->vector.sgd(m->dev, n, &sgd, &along, 1, m->params + at,
                           o->states > 1 ? state_at(o, 1, at) : NULL);
}

/* ---- LARS and LAMB: trust.c has their norms ---- */

static double ratio_lars(double w, double g, double decay)
{
    const double coefficient = 0.001, eps = 1e-8;

    return coefficient * w / (g + w * decay + eps);
}

static hvt_status update_lars(hvt_optim *o, size_t at, size_t n, const hvt__group *group,
                              const float *const g[], int ng)
{
    const hvt_model *m = o->m;
    hvt_step_state own = *m->step;
    const hvt_sgd_args a = {.momentum = o->opts.momentum,
                            .dampening = o->opts.dampening,
                            .nesterov = o->opts.nesterov,
                            .weight_decay = group->weight_decay * group->trust,
                            .step = &own,
                            .copy = m->copy ? m->copy + at : NULL,
                            .copy_type = m->type};

    own.lr *= group->lr_scale;
    own.grad_scale *= group->trust;
    return m->dev->ops->vector.sgd(m->dev, n, &a, g, ng, m->params + at, state_at(o, 0, at));
}

static double ratio_lamb(double w, double g, double decay)
{
    (void)decay;
    return w / g;
}

/* ret_direction = -(m / (1 - b0^t) / (sqrt(v) / sqrt(1 - b1^t) + eps) + decay * w) */
static hvt_status direct_lamb(hvt_optim *o, size_t at, size_t n, const hvt__group *group, const float *g,
                              float *ret_direction)
{
    const hvt_model *m = o->m;
    const hvt_device_ops *ops = m->dev->ops;
    const float *weights = m->params + at;
    hvt_step_state own = *m->step;
    const hvt_adam_args adam = {
        .beta = {o->opts.betas[0], o->opts.betas[1]}, .eps = (float)o->opts.eps, .step = &own};
    const hvt_sgd_args decay = {.step = &own};

    own.lr = 1;
    HVT_TRY(ops->memory.zero(m->dev, ret_direction, n * sizeof *ret_direction));
    HVT_TRY(ops->vector.adam(m->dev, n, &adam, &g, 1, ret_direction, state_at(o, 0, at), state_at(o, 1, at)));
    own.lr = group->weight_decay;
    own.grad_scale = 1;
    return own.lr != 0 ? ops->vector.sgd(m->dev, n, &decay, &weights, 1, ret_direction, NULL) : HVT_OK;
}

static hvt_status update_lamb(hvt_optim *o, size_t at, size_t n, const hvt__group *group,
                              const float *const g[], int ng)
{
    const hvt_model *m = o->m;
    hvt_step_state own = *m->step;
    const hvt_sgd_args a = {.step = &own, .copy = m->copy ? m->copy + at : NULL, .copy_type = m->type};

    own.lr *= group->lr_scale * group->trust;
    own.grad_scale = -1;
    return m->dev->ops->vector.sgd(m->dev, n, &a, g, ng, m->params + at, NULL);
}

/* ---- the table ---- */

#define ADAM                                                                                                 \
    .state = {"exp_avg", "exp_avg_sq"}, .file = "adam", .states = states_of_adam, .check = check_adam,       \
    .update = update_adam

const hvt__optim_rule hvt__optim_rules[] = {
    [HVT_OPTIM_SGD] = {.name = "sgd",
                       .state = {"momentum_buffer"},
                       .file = "momentum",
                       .begins_at_any_time = true, /* from its first gradient, as with a momentum of 0 */
                       .states = states_of_sgd,
                       .check = check_sgd,
                       .update = update_sgd},
    [HVT_OPTIM_ADAM] = {.name = "adam", ADAM},
    [HVT_OPTIM_ADAMW] = {.name = "adamw", ADAM},
    [HVT_OPTIM_RMSPROP] = {.name = "rmsprop",
                           .state = {"square_avg", "momentum_buffer"},
                           .file = "momentum",
                           .begins_at_any_time = true,
                           .scratch = 3,
                           .states = states_of_rmsprop,
                           .check = check_rmsprop,
                           .update = update_rmsprop},
    [HVT_OPTIM_LARS] = {.name = "lars",
                        .state = {"momentum_buffer"},
                        .file = "momentum",
                        .begins_at_any_time = true,
                        .states = states_of_sgd,
                        .check = check_sgd,
                        .update = update_lars,
                        .ratio = ratio_lars},
    [HVT_OPTIM_LAMB] = {.name = "lamb",
                        .state = {"exp_avg", "exp_avg_sq"},
                        .file = "adam",
                        .scratch = 1,
                        .states = states_of_adam,
                        .check = check_adam,
                        .update = update_lamb,
                        .ratio = ratio_lamb,
                        .direct = direct_lamb},
};

static hvt_status check(const hvt_optim_opts *o)
{
    HVT_CHECK((size_t)o->kind < HVT_LEN(hvt__optim_rules), E_ARG, "optimizer %d, expected 0 to %zu",
              (int)o->kind, HVT_LEN(hvt__optim_rules) - 1);
    HVT_CHECK(isfinite(o->weight_decay) && o->weight_decay >= 0, E_ARG,
              "weight decay is %g, expected 0 or more", (double)o->weight_decay);
    HVT_CHECK(o->ema.decay >= 0 && o->ema.decay < 1, E_ARG,
              "the decay of the weights' average is %g, expected a number above 0 and below 1, or 0 for none",
              o->ema.decay);
    HVT_CHECK(o->ema.every >= 0, E_ARG, "the weights' average is taken every %d updates, expected 1 or more",
              o->ema.every);
    HVT_CHECK(!o->ema.equal || (o->ema.decay == 0 && o->ema.every == 0), E_ARG,
              "an equal average of the weights has neither a decay (%g) nor a number of updates (%d)",
              o->ema.decay, o->ema.every);
    return hvt__optim_rules[o->kind].check(o);
}

hvt_status hvt_optim_create(hvt_model *m, const hvt_optim_opts *opts, hvt_optim **ret_optim)
{
    HVT_GIVEN(m, "a model");
    HVT_GIVEN(opts, "options");
    HVT_GIVEN(ret_optim, "an output pointer for the optimizer");

    hvt_optim *o;
    hvt_status s;

    HVT_CHECK(m->arena_count, E_ARG, "an optimizer needs a planned model; call hvt_model_plan() first");
    HVT_TRY(check(opts));
    HVT_CHECK(m->dev->ops->host || opts->kind < HVT_OPTIM_RMSPROP, E_UNSUPPORTED,
              "%s needs a device of the host's memory, not %s: expected sgd, adam or adamw there",
              hvt__optim_rules[opts->kind].name, m->dev->ops->name);
    o = calloc(1, sizeof *o);
    HVT_CHECK(o, E_MEM, "no memory for an optimizer (%zu bytes)", sizeof *o);
    *o = (hvt_optim){.m = m, .opts = *opts, .rule = &hvt__optim_rules[opts->kind]};
    o->states = o->rule->states(opts);
    o->arenas = hvt__optim_arenas(opts);
    o->v_count = m->grad_count;
    hvt__use(&m->users, HVT__USER_OPTIM, 1);
    HVT_TRY_OR(fail, hvt__optim_set_updates(o, 0));
    if (o->arenas)
        HVT_TRY_OR(fail, m->dev->ops->memory.alloc(m->dev, hvt__optim_bytes(opts, m), (void **)&o->v));
    HVT_TRY_OR(fail, hvt__trust_open(o));
    if (o->rule->scratch)
        HVT_TRY_OR(fail, m->dev->ops->memory.alloc(m->dev,
                                                   (size_t)o->rule->scratch * HVT__RULE_PIECE * sizeof(float),
                                                   (void **)&o->scratch));
    if (o->arenas > o->states)
        HVT_TRY_OR(fail, m->dev->ops->memory.alloc(m->dev, 2 * (m->stats_count + 1) * sizeof *o->ema_stats,
                                                   (void **)&o->ema_stats));
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
    o->m->dev->ops->memory.release(o->m->dev, o->ema_stats);
    free(o->group);
    hvt__trust_close(o);
    o->m->dev->ops->memory.release(o->m->dev, o->scratch);
    hvt__use(&o->m->users, HVT__USER_OPTIM, -1);
    free(o);
    *optim = NULL;
}

static hvt__group group_of(const hvt_optim *o, const hvt_param *p)
{
    hvt__group group = hvt__optim_group_of(o, p);

    group.trust = hvt__trust_ratio(o, p);
    return group;
}

static bool same(hvt__group a, hvt__group b)
{
    return a.lr_scale == b.lr_scale && a.weight_decay == b.weight_decay && a.trust == b.trust;
}

/* Updates a run, and its average if due: on a host in pieces of so many elements per thread; and in pieces
 * that fit the rule's scratch memory. */
static hvt_status update_run(hvt_optim *o, size_t at, size_t n, const hvt__group *group, const float *g[],
                             int ng)
{
    const bool average = hvt__ema_is_due(o);
    size_t most = average && o->m->dev->ops->host ? hvt__ema_piece * (size_t)o->m->dev->threads : n;

    if (o->rule->scratch && most > HVT__RULE_PIECE)
        most = HVT__RULE_PIECE;
    for (size_t done = 0, part; done < n; done += part) {
        part = n - done < most ? n - done : most;
        HVT_TRY(o->rule->update(o, at + done, part, group, g, ng));
        if (average)
            HVT_TRY(hvt__ema_span(o, at + done, part));
        for (int r = 0; r < ng; r++)
            g[r] += part;
    }
    for (int r = 0; r < ng; r++)
        g[r] -= n;
    return HVT_OK;
}

hvt_status hvt__optim_span(hvt_optim *o, const float *g[], int ng, size_t first, size_t end)
{
    const hvt_model *m = o->m;
    const hvt_param *p = m->param, *last = m->param + m->ntrained;

    while (p < last && p->offset + p->count <= first)
        p++;
    while (first < end && p < last && p->offset < end) {
        const hvt__group group = group_of(o, p);
        size_t from = p->offset < first ? first : p->offset, to = from;

        for (; p < last && p->offset < end && same(group_of(o, p), group); p++)
            to = p->offset + p->count;
        to = to < end ? to : end;
        for (int r = 0; r < ng; r++)
            g[r] += from - first;
        first = from;
        HVT_TRY(update_run(o, from, to - from, &group, g, ng));
    }
    return HVT_OK;
}
