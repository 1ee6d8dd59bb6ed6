/*
 * An average of the weights, exponential or equal, as in torch.optim.swa_utils.AveragedModel.
 *
 * The parameters' average is one more arena behind the optimizer's state, so it is shared, sliced, gathered
 * and sent with the state. The running statistics' average, which every rank has, is a separate block. The
 * device decides when to take the average (device/step.h).
 *
 * To use it, the model and the average are exchanged: each rank exchanges what it updates, and then the ranks
 * gather the model's new parameters, as after an update. A second exchange restores both, so no copy of the
 * weights is needed, and no bit is lost.
 */
#include "dist.h"
#include "base_impl.h"

size_t hvt__ema_piece = 1 << 15; /* elements: four arenas of them are half a MiB */

static bool has_average(const hvt_optim *o)
{
    return o->arenas > o->states;
}

/* The average of the parameter arena's element `at`. */
static float *average_at(const hvt_optim *o, size_t at)
{
    return o->v + (size_t)o->states * o->v_count + (at - o->v_at);
}

bool hvt__ema_is_due(const hvt_optim *o)
{
    return has_average(o) && (!o->m->dev->ops->host || o->m->step->ema_share != 0);
}

hvt_status hvt__ema_span(hvt_optim *o, size_t at, size_t n)
{
    hvt_model *m = o->m;

    return m->dev->ops->vector.ema(m->dev, n, m->step, m->params + at, average_at(o, at));
}

hvt_status hvt__ema_stats(hvt_optim *o)
{
    hvt_model *m = o->m;

    if (!m->stats_count || !hvt__ema_is_due(o))
        return HVT_OK;
    return m->dev->ops->vector.ema(m->dev, m->stats_count, m->step, m->stats, o->ema_stats);
}

hvt_status hvt__ema_check_place(const hvt_optim *o, const char *what)
{
    HVT_CHECK(!o->is_averaged, E_ARG,
              "%s is not possible while the model has the average of its weights; restore them by "
              "hvt_distopt_use_average() first",
              what);
    return HVT_OK;
}

hvt_status hvt__ema_load(hvt_optim *o, int64_t count)
{
    hvt_model *m = o->m;
    hvt_device *dev = m->dev;
    size_t first = m->step_stats_count;
    hvt_step_state s;
    float *arenas;

    HVT_TRY(hvt__optim_state(o, true, &arenas));
    HVT_TRY(dev->ops->memory.copy(dev, arenas + (size_t)o->states * m->grad_count + first, m->params + first,
                                  (m->grad_count - first) * sizeof *arenas));
    if (m->stats_count)
        HVT_TRY(dev->ops->memory.copy(dev, o->ema_stats, m->stats, m->stats_count * sizeof *m->stats));
    HVT_TRY(hvt__model_state(m, &s));
    s.ema_count = count;
    s.ema_tracked = m->tracked;
    return hvt__model_set_state(m, &s);
}

/* ---- exchanging weights and average ---- */

static hvt_status exchange(hvt_device *dev, float *a, float *b, float *room, size_t n)
{
    size_t bytes = n * sizeof *a;

    if (!n)
        return HVT_OK;
    HVT_TRY(dev->ops->memory.copy(dev, room, a, bytes));
    HVT_TRY(dev->ops->memory.copy(dev, a, b, bytes));
    return dev->ops->memory.copy(dev, b, room, bytes);
}

/* Exchanges what this rank updates. The gradient arena, unused between steps, is the scratch memory. */
static hvt_status exchange_params(hvt_distopt *d)
{
    hvt_optim *o = d->optim;
    hvt_model *m = o->m;

    for (const hvt_bucket *b = d->bucket; b < d->bucket + d->nbucket; b++) {
        size_t at = b->own_first < m->step_stats_count ? m->step_stats_count : b->own_first;

        if (at >= b->own_end)
            continue;
        o->v_at = b->own_first - b->own_at;
        HVT_TRY(exchange(m->dev, m->params + at, average_at(o, at), m->grads + at, b->own_end - at));
    }
    return HVT_OK;
}

static hvt_status exchange_all(hvt_distopt *d)
{
    hvt_optim *o = d->optim;
    hvt_model *m = o->m;
    hvt_step_state s;

    HVT_TRY(hvt__model_state(m, &s));
    HVT_TRY(exchange_params(d));
    HVT_TRY(exchange(m->dev, m->stats, o->ema_stats, o->ema_stats + m->stats_count, m->stats_count));
    if (!o->is_averaged)
        o->tracked = m->tracked;
    m->tracked = o->is_averaged ? o->tracked : s.ema_tracked;
    o->is_averaged = !o->is_averaged;
    return HVT_OK;
}

/* Gathers every slice from its owner, and returns when all ranks have theirs. */
static hvt_status gather_params(hvt_distopt *d)
{
    hvt_ticket ticket = 0;

    if (d->opts.update != HVT_UPDATE_SHARDED)
        return HVT_OK;
    for (const hvt_bucket *b = d->bucket + 1; b < d->bucket + d->nbucket; b++)
        HVT_TRY(
            hvt_comm_allgather(d->comm, d->optim->m->params + b->first, b->end - b->first, HVT_F32, &ticket));
    return hvt_comm_wait(d->comm, ticket);
}

static hvt_status check(const hvt_distopt *d)
{
    HVT_CHECK(!d->begun, E_ARG, "weights and their average cannot be exchanged in the middle of a step");
    HVT_CHECK(!d->optim->loaded, E_ARG,
              "the average was loaded on this rank only; call hvt_distopt_broadcast() first");
    return HVT_OK;
}

hvt_status hvt_distopt_use_average(hvt_distopt *d, bool average)
{
    HVT_GIVEN(d, "a distributed optimizer");

    hvt_optim *o = d->optim;

    if (!has_average(o) || average == o->is_averaged)
        return HVT_OK;
    HVT_TRY(hvt_world_agree(d->world, check(d))); /* after this no rank reads shared memory */
    if (average && !hvt_distopt_averages(d))
        return HVT_OK;
    HVT_TRY(hvt_world_agree(d->world, exchange_all(d)));
    HVT_TRY(gather_params(d));
    hvt__model_changed(o->m);
    return HVT_OK;
}

/* Copies the average of what this rank updates to the model. */
static hvt_status adopt(hvt_distopt *d)
{
    hvt_optim *o = d->optim;
    hvt_model *m = o->m;
    hvt_device *dev = m->dev;

    for (const hvt_bucket *b = d->bucket; b < d->bucket + d->nbucket; b++) {
        size_t at = b->own_first < m->step_stats_count ? m->step_stats_count : b->own_first;

        if (at >= b->own_end)
            continue;
        o->v_at = b->own_first - b->own_at;
        HVT_TRY(dev->ops->memory.copy(dev, m->params + at, average_at(o, at),
                                      (b->own_end - at) * sizeof *m->params));
    }
    m->step->ema_share = 0;
    return m->stats_count
               ? dev->ops->memory.copy(dev, m->stats, o->ema_stats, m->stats_count * sizeof *m->stats)
               : HVT_OK;
}

hvt_status hvt_distopt_look_ahead(hvt_distopt *d, double decay)
{
    HVT_GIVEN(d, "a distributed optimizer");

    hvt_optim *o = d->optim;

    HVT_CHECK(o->m->dev->ops->host, E_UNSUPPORTED, "hvt_distopt_look_ahead() is for devices cpu and ref");
    HVT_CHECK(has_average(o) && decay >= 0 && decay < 1, E_ARG,
              "the decay %g of hvt_distopt_look_ahead(); expected 0 to below 1, and an optimizer that "
              "averages weights",
              decay);
    o->m->step->ema_decay = decay;
    if (!hvt__ema_is_due(o))
        return HVT_OK;
    HVT_TRY(hvt_world_agree(d->world, check(d))); /* after this no rank reads shared memory */
    HVT_TRY(hvt_world_agree(d->world, adopt(d)));
    HVT_TRY(gather_params(d));
    hvt__model_changed(o->m);
    return HVT_OK;
}

void hvt_distopt_average(hvt_distopt *d)
{
    if (d)
        d->optim->m->averages_next = d->optim->opts.ema.equal;
}

int64_t hvt_distopt_averages(const hvt_distopt *d)
{
    hvt_step_state s;

    if (!d || !has_average(d->optim) || hvt__model_state(d->optim->m, &s) != HVT_OK)
        return 0;
    return s.ema_count;
}
