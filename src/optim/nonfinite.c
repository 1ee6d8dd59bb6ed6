/*
 * Tells all ranks that a sum is not finite when each of them sees only a slice of the sums. The step
 * statistics, which are all-reduced in any case, are then sent last, after this rank has checked its slices,
 * with a flag per rank behind them.
 *
 * Rank r writes its own flag and leaves the others 0, so the sum holds every rank's flag exactly. A flag is
 * the number of the first bad parameter, counted from 1, which f32 holds exactly. The digits of clip.c
 * follow.
 */
#include "dist.h"

static size_t count(const hvt_distopt *d)
{
    return d->optim->m->step_stats_count + (size_t)d->ranks + hvt__clip_digits(d);
}

size_t hvt__flags_bytes(const hvt_distopt *d)
{
    if (!d->needs_all || d->opts.update != HVT_UPDATE_SHARDED)
        return 0;
    return count(d) * sizeof *d->flags;
}

static hvt_status post(hvt_distopt *d)
{
    const hvt_model *m = d->optim->m;
    float *flag = d->flags + m->step_stats_count;

    memcpy(d->flags, d->grads, m->step_stats_count * sizeof *d->flags);
    memset(flag, 0, (size_t)d->ranks * sizeof *flag);
    if (m->step->bad != UINT64_MAX)
        flag[d->rank] = (float)(hvt__model_owner(m, m->step->bad) + 1);
    if (hvt__clip_digits(d))
        hvt__bins_write(d, m->step->squares, flag + d->ranks);
    return hvt_comm_allreduce(d->comm, d->flags, count(d), HVT_F32, &d->bucket[0].ticket);
}

/* The first parameter that any rank flagged. */
static uint64_t least_bad(const hvt_distopt *d)
{
    const hvt_model *m = d->optim->m;
    int first = 0;

    for (int r = 0; r < d->ranks; r++) {
        int flag = (int)d->flags[m->step_stats_count + (size_t)r];

        first = flag && (!first || flag < first) ? flag : first;
    }
    return first ? m->param[first - 1].offset : UINT64_MAX;
}

hvt_status hvt__flags_exchange(hvt_distopt *d)
{
    hvt_model *m = d->optim->m;

    hvt__phase_begin(d, HVT__LAUNCH, d->bucket);
    HVT_TRY(hvt__traced(post(d)));
    HVT_TRY(hvt__await(d, d->bucket, false));
    if (!d->sums.leaves) {
        memcpy(d->grads, d->flags, m->step_stats_count * sizeof *d->grads);
    } else { /* flags are added over ranks, statistics over shards */
        HVT_TRY(d->update_path->post(d, d->bucket));
        HVT_TRY(hvt__await(d, d->bucket, false));
    }
    m->step->bad = least_bad(d);
    if (hvt__clip_digits(d))
        hvt__bins_read(d, d->flags + m->step_stats_count + d->ranks, m->step->squares);
    return HVT_OK;
}
