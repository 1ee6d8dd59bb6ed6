/*
 * What a distributed optimizer tells of itself between steps.
 */
#include "dist.h"
#include "base_impl.h"

#include <stdio.h>
#include <stdlib.h>

double hvt_distopt_take_exposed(hvt_distopt *d)
{
    if (!d)
        return 0;

    double seconds = d->exposed;

    d->exposed = 0;
    return seconds;
}

/* A dynamic scale finds its place by them. */
static void tell_skips(const hvt_distopt *d, int64_t skipped)
{
    int64_t n = skipped - d->skipped;

    if (d->opts.scaling.interval)
        HVT_INFO("note: %lld update%s skipped, %lld so far: gradients did not fit; the loss scale is %g now",
                 (long long)n, n > 1 ? "s" : "", (long long)skipped, d->loss_scale);
    else
        HVT_WARN("%lld update%s skipped, %lld so far: a gradient's sum does not fit into %s", (long long)n,
                 n > 1 ? "s" : "", (long long)skipped,
                 hvt_dtype_name(d->opts.scaling.scale ? d->optim->m->type : d->opts.wire));
}

/* Ranks were told different things of a step, which then did nothing; so the next one may be begun. All ranks
 * know, and are here. Where the host is ahead of its device they have begun other steps since: what they were
 * told of the last one is what can be compared. */
static hvt_status name_told(hvt_distopt *d, hvt_step_state *now)
{
    enum { TEXT = 40 };
    hvt_world *world = hvt_comm_world(d->comm);
    int n = d->shards + 1;
    hvt_item *item = malloc((size_t)n * sizeof *item);
    char(*text)[2][TEXT] = malloc((size_t)n * sizeof *text);
    hvt_status s = item && text ? HVT_OK : HVT_FAIL(E_MEM, "no memory to compare %d shards' images", n);

    HVT_TRY_OR(done, hvt_world_agree(world, s));
    for (int i = 0; i < n; i++) {
        if (i == 0)
            snprintf(text[i][0], TEXT, "learning rate");
        else
            snprintf(text[i][0], TEXT, "images of shard %d", i - 1);
        if (i == 0)
            snprintf(text[i][1], TEXT, "%.9g", (double)(float)d->lr);
        else
            snprintf(text[i][1], TEXT, "%d", d->counts[i - 1]);
        item[i] = (hvt_item){text[i][0], text[i][1]};
    }
    s = hvt_world_compare(world, item, n);
    if (s == HVT_OK)
        s = HVT_FAIL(E_MISMATCH, "step %lld was begun with different learning rates or shard counts",
                     (long long)now->stop_step);
    else
        s = HVT_FAIL(E_MISMATCH, "step %lld: %s", (long long)now->stop_step, hvt_last_error());
    hvt__error_agreed(true);
    now->stop = HVT_STOP_NOT;
    if (hvt__model_set_state(d->optim->m, now) != HVT_OK)
        s = HVT_E_DEVICE;
done:
    free(item);
    free(text);
    return s;
}

hvt_status hvt_distopt_check(hvt_distopt *d)
{
    hvt_model *m;
    hvt_step_state now;
    hvt_status s;

    HVT_GIVEN(d, "a distributed optimizer");
    m = d->optim->m;
    HVT_TRY(hvt__model_state(m, &now));
    d->loss_scale = d->opts.scaling.scale ? (float)(now.loss_scale * (float)m->batch) : 1;
    if (now.skipped > d->skipped && hvt_world_rank(hvt_comm_world(d->comm)) == 0)
        tell_skips(d, now.skipped);
    d->skipped = now.skipped;
    d->stopped = now.stop_step;
    s = hvt__model_stopped(m, &now);
    if (s == HVT_E_DIVERGED)
        hvt__error_agreed(true); /* every rank settles on the same sums */
    return s == HVT_E_MISMATCH ? name_told(d, &now) : s;
}

hvt_update hvt_distopt_update(const hvt_distopt *d)
{
    if (!d)
        return HVT_UPDATE_AUTO;
    return d->opts.update;
}

int64_t hvt_distopt_stopped(const hvt_distopt *d)
{
    if (!d)
        return 0;
    return d->stopped;
}

double hvt_distopt_loss_scale(const hvt_distopt *d)
{
    if (!d)
        return 1;
    return d->loss_scale;
}

int64_t hvt_distopt_skipped(const hvt_distopt *d)
{
    if (!d)
        return 0;
    return d->skipped;
}

size_t hvt_distopt_bytes(const hvt_distopt *d)
{
    if (!d)
        return 0;

    const hvt_model *m = d->optim->m;
    size_t rider = hvt__ride_bytes(d) ? hvt__ride_bytes(d) : m->step_stats_count * sizeof *d->grads;

    if (d->powersgd)
        return rider + hvt__powersgd_bytes(d);
    return rider + (m->arena_count - m->step_stats_count) * hvt_dtype_size(d->opts.wire);
}

int hvt_distopt_buckets(const hvt_distopt *d, const size_t **ret_bytes)
{
    if (!d)
        return 0;
    if (ret_bytes)
        *ret_bytes = d->bucket_bytes;
    return d->nbucket;
}
