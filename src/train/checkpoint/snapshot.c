/*
 * The contents of a checkpoint as they were between two updates: a copy in host memory, so that training
 * continues while it is written.
 *
 * The copy is made at memory speed, in the device's own layouts. Its memory is reused from save to save: page
 * faults of fresh memory would cost each step that saves. The writing thread converts it to canonical layout:
 * the parameters at once, because they are hashed before they are written, and everything else tensor by
 * tensor while it is written, which saves a pass over memory.
 */
#include "snapshot.h"
#include "base_impl.h"

/* The next part of the block: `count` floats from *at on, which is advanced. NULL without a block. */
static float *part(const hvt__snapshot *s, size_t *at, size_t count)
{
    float *here = s->block ? s->block + *at : NULL;

    *at += (count + 15) / 16 * 16;
    return here;
}

static size_t largest_span(const hvt_model *m)
{
    size_t most = 1;

    for (int i = 0; i < m->nparam_tensors; i++)
        most = m->param[i].count > most ? m->param[i].count : most;
    return most;
}

/* True if an update was made, so that the optimizer's state holds something. */
static bool has_state(const hvt__snapshot *s)
{
    return !s->step.fresh || s->step.apply;
}

/* Divides the block into its parts, and returns the number of floats in it. State and average have their room
 * before they hold anything. */
static size_t cut(hvt__snapshot *s, const hvt_optim *o)
{
    const hvt__powersgd_state *p = o ? o->powersgd : NULL;
    size_t at = 0, arena = s->m->arena_count, arenas = o ? (size_t)o->arenas : 0;
    float *averages;

    s->room = part(s, &at, largest_span(s->m));
    s->params = part(s, &at, arena);
    s->stats = part(s, &at, s->m->stats_count);
    s->rule = o ? o->rule : NULL;
    s->states = o ? o->states : 0;
    s->takes_average = arenas > (size_t)s->states;
    s->arenas = part(s, &at, arenas * s->m->grad_count);
    averages = part(s, &at, s->takes_average ? s->m->stats_count : 0);
    s->state = s->states && has_state(s) ? s->arenas : NULL;
    s->average = s->average_stats = NULL;
    if (s->takes_average && s->step.ema_count && s->arenas) {
        s->average = s->arenas + (size_t)s->states * s->m->grad_count;
        s->average_stats = averages;
    }
    s->powersgd = p ? *p : (hvt__powersgd_state){0};
    if (p) {
        s->powersgd.q = part(s, &at, p->q_count);
        s->powersgd.residual = part(s, &at, (size_t)p->ranks * p->residual_count);
    }
    return at;
}

static void free_block(hvt__snapshot *s)
{
    if (s->block)
        s->dev->ops->memory.release_host(s->dev, s->block);
    s->block = NULL;
    s->count = 0;
}

static hvt_status make_room(hvt__snapshot *s, const hvt_optim *o)
{
    size_t count = cut(s, o);

    if (count > s->count) {
        free_block(s);
        HVT_TRY(s->dev->ops->memory.alloc_host(s->dev, count * sizeof *s->block, (void **)&s->block));
        s->count = count;
    }
    cut(s, o);
    return HVT_OK;
}

/* Copies an arena of `count` floats; an optimizer's has no frozen parameters. */
static hvt_status copy_arena(const hvt_model *m, float *to, const float *from, size_t count)
{
    size_t first = m->step_stats_count;

    return hvt_device_download(m->dev, to + first, from + first, (count - first) * sizeof *to);
}

void hvt__progress_free(hvt_progress *p)
{
    free(p->options);
    free(p->class_names);
    free(p->begun);
    p->options = p->class_names = p->begun = NULL;
}

static hvt_status copy_progress(hvt__snapshot *s, const hvt_progress *p)
{
    char *options = p->options ? strdup(p->options) : NULL;
    char *names = p->class_names ? strdup(p->class_names) : NULL;
    char *begun = p->begun ? strdup(p->begun) : NULL;

    hvt__progress_free(&s->progress);
    s->progress = *p;
    s->progress.options = options;
    s->progress.class_names = names;
    s->progress.begun = begun;
    HVT_CHECK((options || !p->options) && (names || !p->class_names) && (begun || !p->begun), E_MEM,
              "no memory for a copy of options and class names");
    return HVT_OK;
}

static hvt_status copy_all(hvt__snapshot *s, hvt_model *m, hvt_optim *o, const hvt_progress *progress)
{
    float *v = NULL;

    if (o)
        HVT_TRY(hvt__ema_check_place(o, "a save"));
    HVT_CHECK(!o || !o->powersgd || o->powersgd->q, E_ARG,
              "PowerSGD's residuals are on their ranks; call hvt_distopt_gather() first");
    HVT_TRY(hvt__model_state(m, &s->step));
    if (o && o->arenas && has_state(s))
        HVT_TRY(hvt__optim_state(o, false, &v));
    if (s->dev != m->dev)
        free_block(s);
    s->m = m;
    s->dev = m->dev;
    HVT_TRY(make_room(s, o));
    HVT_TRY(copy_progress(s, progress));
    HVT_TRY(copy_arena(m, s->params, m->params, m->arena_count));
    HVT_TRY(hvt_device_download(m->dev, s->stats, m->stats, m->stats_count * sizeof *s->stats));
    for (size_t k = 0; v && k < (size_t)o->arenas; k++)
        HVT_TRY(copy_arena(m, s->arenas + k * m->grad_count, v + k * m->grad_count, m->grad_count));
    if (s->average)
        HVT_TRY(hvt_device_download(m->dev, s->average_stats, o->ema_stats,
                                    m->stats_count * sizeof *s->average_stats));
    if (s->powersgd.q) {
        memcpy(s->powersgd.q, o->powersgd->q, s->powersgd.q_count * sizeof(float));
        memcpy(s->powersgd.residual, o->powersgd->residual,
               (size_t)s->powersgd.ranks * s->powersgd.residual_count * sizeof(float));
    }
    s->tracked = m->tracked;
    return HVT_OK;
}

hvt_status hvt__snapshot_take(hvt__snapshot **snapshot, hvt_model *m, hvt_optim *o,
                              const hvt_progress *progress)
{
    if (!*snapshot)
        *snapshot = calloc(1, sizeof **snapshot);
    HVT_CHECK(*snapshot, E_MEM, "no memory for a copy of weights and optimizer state");
    return copy_all(*snapshot, m, o, progress);
}

const float *hvt__snapshot_tensor(const hvt__snapshot *s, const float *arena, const hvt_param *p)
{
    if (!p->op && p->flat <= 1)
        return arena + p->offset;
    hvt__param_to_file(s->m, p, arena + p->offset, s->room);
    return s->room;
}

/* Converts each tensor to canonical layout and moves it down by the size of the room, which holds the largest
 * tensor. So no tensor overwrites itself or one that has not moved yet. Then the room is behind them. */
static void arrange_params(hvt__snapshot *s)
{
    float *from = s->params, *to = s->room;

    for (const hvt_param *p = s->m->param; p < s->m->param + s->m->nparam_tensors; p++)
        hvt__param_to_file(s->m, p, from + p->offset, to + p->offset);
    s->params = to;
    s->room = s->stats - (from - to);
}

const float *hvt__snapshot_weight(const hvt__snapshot *s, const hvt_param *p)
{
    return s->average && !p->frozen ? hvt__snapshot_tensor(s, s->average, p) : s->params + p->offset;
}

const float *hvt__snapshot_stat(const hvt__snapshot *s, const hvt_stat *t)
{
    return (s->average ? s->average_stats : s->stats) + t->offset;
}

static hvt_status get_arranged(void *ctx, const hvt_param *p, const hvt_stat *t, const float **ret_x)
{
    *ret_x = p ? hvt__snapshot_weight(ctx, p) : hvt__snapshot_stat(ctx, t);
    return HVT_OK;
}

void hvt__snapshot_arrange(hvt__snapshot *s)
{
    arrange_params(s);
    hvt__model_hash_of(s->m, get_arranged, s, &s->hash); /* cannot fail */
}

const hvt_progress *hvt__snapshot_progress(const hvt__snapshot *s)
{
    return &s->progress;
}

void hvt__snapshot_free(hvt__snapshot **snapshot)
{
    hvt__snapshot *s = *snapshot;

    if (!s)
        return;
    hvt__progress_free(&s->progress);
    free_block(s);
    free(s);
    *snapshot = NULL;
}
