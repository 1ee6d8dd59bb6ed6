/*
 * What a distributed optimizer tells of itself between steps.
 */
#include "dist.h"
#include "base_impl.h"

double hvt_distopt_take_exposed(hvt_distopt *d)
{
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

hvt_status hvt_distopt_check(hvt_distopt *d)
{
    hvt_model *m = d->optim->m;
    hvt_step_state now;
    hvt_status s;

    HVT_TRY(hvt__model_state(m, &now));
    d->loss_scale = d->opts.scaling.scale ? (float)(now.loss_scale * (float)m->batch) : 1;
    if (now.skipped > d->skipped && hvt_world_rank(hvt_comm_world(d->comm)) == 0)
        tell_skips(d, now.skipped);
    d->skipped = now.skipped;
    d->stopped = now.stop_step;
    s = hvt__model_stopped(m, &now);
    if (s == HVT_E_DIVERGED)
        hvt__error_agreed(true); /* every rank settles on the same sums */
    return s;
}

hvt_update hvt_distopt_update(const hvt_distopt *d)
{
    return d->opts.update;
}

int64_t hvt_distopt_stopped(const hvt_distopt *d)
{
    return d->stopped;
}

double hvt_distopt_loss_scale(const hvt_distopt *d)
{
    return d->loss_scale;
}

int64_t hvt_distopt_skipped(const hvt_distopt *d)
{
    return d->skipped;
}

size_t hvt_distopt_bytes(const hvt_distopt *d)
{
    const hvt_model *m = d->optim->m;
    size_t rider = hvt__ride_bytes(d) ? hvt__ride_bytes(d) : m->rider_count * sizeof *d->grads;

    if (d->powersgd)
        return rider + hvt__powersgd_bytes(d);
    return rider + (m->arena_count - m->rider_count) * hvt_dtype_size(d->opts.wire);
}

int hvt_distopt_buckets(const hvt_distopt *d, const size_t **ret_bytes)
{
    *ret_bytes = d->bucket_bytes;
    return d->nbucket;
}
