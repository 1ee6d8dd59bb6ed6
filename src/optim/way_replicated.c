/*
 * The replicated update: every rank gets all sums and updates all of its parameters. Early buckets are
 * applied while late ones still travel.
 */
#include "dist.h"

/* What a codec sends nothing of in a round is over with the bucket before. */
static hvt_status post(hvt_distopt *d, hvt_bucket *b)
{
    size_t n;
    void *span = b->codec->span(d, b, &n);

    if (n)
        return hvt_comm_allreduce(d->comm, span, n, b->codec->wire, &b->ticket);
    if (!b->second)
        b->ticket = b[-1].ticket;
    return HVT_OK;
}

static hvt_status finish(hvt_distopt *d)
{
    for (hvt_bucket *b = d->bucket; b < d->bucket + d->nbucket; b++) {
        d->g[0] = d->grads + b->first;
        if (b == d->bucket + d->arrived)
            HVT_TRY(hvt__receive(d));
        hvt__phase_begin(d, HVT__UPDATE, b);
        HVT_TRY(hvt__traced(hvt__optim_span(d->optim, d->g, 1, d->at, b->first, b->end)));
    }
    hvt__model_updated(d->optim->m);
    return HVT_OK;
}

const hvt__way hvt__way_replicated = {.post = post, .finish = finish};
