/*
 * Replica checks: after every so many updates ranks compare their copies. These are the parameters (one copy
 * per node if its ranks share them, none to compare if all ranks do), the optimizer state of a replicated
 * update, and the 16-bit parameters that a replicated update writes.
 *
 * One message compares a hash of each; only if they differ do ranks compare tensor by tensor.
 */
#include "dist.h"
#include "base_impl.h"
#include "world/items.h"

#include <inttypes.h>

/* An arena that may have a copy on each rank. */
typedef struct replica {
    const char *what;
    const void *arena;
    size_t size; /* of an element */
    size_t end;  /* of the arena, in elements */
    bool mine;   /* this rank's copy counts; one rank counts for a shared one */
} replica;

enum { COPIES = 1 + HVT__ARENAS, KINDS };

static void list_replicas(const hvt_distopt *d, replica ret_list[KINDS])
{
    const hvt_optim *o = d->optim;
    const hvt_model *m = o->m;
    bool paged =
        d->params && ((hvt_comm_can(d->comm) & HVT_COMM_REDUCE_APPLY) || hvt_world_local_rank(d->world));

    ret_list[0] = (replica){"parameters", m->params, sizeof *m->params, m->arena_count, !paged};
    for (int k = 0; k < HVT__ARENAS; k++)
        ret_list[1 + k] = (replica){k < o->states ? o->rule->state[k] : "averages of the weights",
                                    k < o->arenas ? o->v + (size_t)k * o->v_count : NULL, sizeof *o->v,
                                    m->grad_count, k < o->arenas && !o->sliced && !d->v};
    ret_list[COPIES] = (replica){"16-bit copies of parameters", m->copy, sizeof *m->copy, m->arena_count,
                                 m->copy && !m->copy_stale};
}

static uint64_t hash_span(const replica *r, size_t first, size_t count)
{
    return hvt__hash(HVT_HASH_INIT, (const char *)r->arena + first * r->size, count * r->size);
}

/* Names the first tensor that differs. Ranks that share a copy all hash it. */
static hvt_status name_difference(const hvt_distopt *d, const replica *r)
{
    const hvt_model *m = d->optim->m;
    hvt__items items = {0};
    hvt_status s;

    for (int i = m->nparam_tensors - 1; i >= 0; i--) /* in the order of the forward pass */
        if (m->param[i].offset < r->end)
            hvt__items_add(&items, "%s\t%016" PRIx64, m->param[i].name,
                           hash_span(r, m->param[i].offset, m->param[i].count));
    s = hvt__items_compare(&items, d->world);
    if (s != HVT_OK && s != HVT_E_MISMATCH)
        return s;
    s = HVT_FAIL(E_MISMATCH, "after %" PRId64 " updates ranks have different %s: %s", m->step->steps, r->what,
                 s == HVT_OK ? "between tensors" : hvt_last_error());
    hvt__error_agreed(true);
    return s;
}

hvt_status hvt__replicas_check(const hvt_distopt *d)
{
    const hvt_model *m = d->optim->m;
    replica list[KINDS];
    int64_t least[2 * KINDS]; /* over all ranks: the least hash, and the complement of the greatest */

    if (!d->opts.check_replicas || m->step->steps % d->opts.check_replicas)
        return HVT_OK;
    list_replicas(d, list);
    for (int k = 0; k < KINDS; k++) {
        least[2 * k] = least[2 * k + 1] = INT64_MAX; /* no copy that counts */
        if (!list[k].mine)
            continue;
        least[2 * k] =
            (int64_t)(hash_span(&list[k], m->step_stats_count, list[k].end - m->step_stats_count) >> 1);
        least[2 * k + 1] = ~least[2 * k];
    }
    HVT_TRY(hvt_world_allreduce_i64(d->world, HVT_MIN, least, 2 * KINDS));
    for (int k = 0; k < KINDS; k++)
        if (least[2 * k] < ~least[2 * k + 1])
            return name_difference(d, &list[k]);
    return HVT_OK;
}
