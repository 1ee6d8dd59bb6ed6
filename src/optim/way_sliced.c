/*
 * The sliced update: reduce_scatter leaves each rank its slice of a bucket's sum, the rank updates this slice
 * for all ranks, and allgather distributes the new parameters. Parameters of early buckets are distributed
 * while sums of late ones still travel.
 *
 * Where the decision about a step needs all sums, no single rank sees them all; step statistics then leave
 * last, together with flags (nonfinite.c).
 */
#include "dist.h"

static hvt_status post(hvt_distopt *d, hvt_bucket *b)
{
    size_t n;
    void *span = b->codec->span(d, b, &n);

    if (b == d->bucket)
        return hvt_comm_allreduce(d->comm, span, n, b->codec->wire, &b->ticket);
    return hvt_comm_reduce_scatter(d->comm, span, n, b->codec->wire, &b->ticket);
}

static hvt_status update_slice(hvt_distopt *d, hvt_bucket *b)
{
    hvt_optim *o = d->optim;

    d->g[0] = d->grads + b->own_first;
    o->v_at = b->own_first - b->own_at;
    HVT_TRY(hvt__optim_span(o, d->g, 1, d->at, b->own_first, b->own_end));
    return hvt_comm_allgather(d->comm, o->m->params + b->first, b->end - b->first, HVT_F32, &b->ticket);
}

static hvt_status finish(hvt_distopt *d)
{
    for (hvt_bucket *b = d->bucket + 1; b < d->bucket + d->nbucket; b++) {
        if (b == d->bucket + d->arrived)
            HVT_TRY(hvt__receive(d));
        hvt__phase_begin(d, HVT__UPDATE, b);
        HVT_TRY(hvt__traced(update_slice(d, b)));
    }
    hvt__model_changed(d->optim->m); /* of a 16-bit copy each rank has written its own slice */
    return hvt__await(d, d->bucket + d->nbucket - 1);
}

const hvt__way hvt__way_sliced = {.post = post, .finish = finish};
const hvt__way hvt__way_sliced_flagged = {
    .first = 1, .post = post, .exchange_flags = hvt__flags_exchange, .finish = finish};
