/*
 * Status of a distributed optimizer between steps: failures, skipped updates, votes and times.
 */
#include "dist.h"
#include "base_impl.h"
#include "world/items.h"

double hvt_distopt_take_exposed(hvt_distopt *d)
{
    double seconds = d ? d->exposed : 0;

    if (d)
        d->exposed = 0;
    return seconds;
}

/* Logs skipped updates: a note with a dynamic scale, which finds its value by skipping; a warning with a
 * fixed one, because the update is lost. */
static void report_skips(const hvt_distopt *d, int64_t skipped)
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

/* Names the arguments that differed between the ranks when they began a step. All ranks have noticed and are
 * here. The step did nothing, so the next one may begin. If the host is ahead of its device, the ranks have
 * begun further steps since; then the last step's arguments are compared. */
static hvt_status name_arguments(hvt_distopt *d, hvt_step_state *now)
{
    hvt__items items = {0};
    hvt_status s;

    hvt__items_add(&items, "learning rate\t%.9g", (double)(float)d->lr);
    for (int i = 0; i < d->shards; i++)
        hvt__items_add(&items, "images of shard %d\t%d", i, d->counts[i]);
    s = hvt__items_compare(&items, d->world);
    if (s != HVT_OK && s != HVT_E_MISMATCH)
        return s;
    s = HVT_FAIL(E_MISMATCH, "step %lld: %s", (long long)now->stop_step,
                 s == HVT_OK ? "begun with different learning rates or shard counts" : hvt_last_error());
    hvt__error_agreed(true);
    now->stop = HVT_STOP_NOT;
    return hvt__model_set_state(d->optim->m, now) == HVT_OK ? s : HVT_E_DEVICE;
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
    if (now.skipped > d->skipped && d->rank == 0)
        report_skips(d, now.skipped);
    d->skipped = now.skipped;
    d->stopped = now.stop_step;
    memcpy(d->votes, now.votes, sizeof d->votes);
    s = hvt__model_stopped(m, &now);
    if (s == HVT_E_DIVERGED)
        hvt__error_agreed(true); /* every rank decides on the same sums */
    return s == HVT_E_MISMATCH ? name_arguments(d, &now) : s;
}

hvt_update hvt_distopt_update(const hvt_distopt *d)
{
    return d ? d->opts.update : HVT_UPDATE_AUTO;
}

int64_t hvt_distopt_stopped(const hvt_distopt *d)
{
    return d ? d->stopped : 0;
}

void hvt_distopt_vote(hvt_distopt *d, hvt_vote vote, bool wants)
{
    if (d && vote >= 0 && vote < HVT_VOTES)
        d->vote[vote] = wants;
}

int64_t hvt_distopt_votes(const hvt_distopt *d, hvt_vote vote)
{
    return d && vote >= 0 && vote < HVT_VOTES ? d->votes[vote] : 0;
}

double hvt_distopt_loss_scale(const hvt_distopt *d)
{
    return d ? d->loss_scale : 1;
}

int64_t hvt_distopt_skipped(const hvt_distopt *d)
{
    return d ? d->skipped : 0;
}

size_t hvt_distopt_bytes(const hvt_distopt *d)
{
    if (!d)
        return 0;

    const hvt_model *m = d->optim->m;
    size_t stats = d->flags ? hvt__flags_bytes(d) : m->step_stats_count * sizeof *d->grads;

    if (d->coded_bytes && d->codec->whole)
        return stats + d->coded_bytes;
    return stats + (m->grad_count - m->step_stats_count) * hvt_dtype_size(d->codec->wire);
}

int hvt_distopt_buckets(const hvt_distopt *d, const size_t **ret_bytes)
{
    if (!d)
        return 0;
    if (ret_bytes)
        *ret_bytes = (const size_t *)(d->bucket + d->nbucket);
    return d->nbucket;
}
