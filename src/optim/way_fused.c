/*
 * The fused update, where all ranks see each other's memory and share one copy of parameters and state. A
 * rank reads its slice of all ranks' gradients, adds them along the tree and updates the shared parameters,
 * in one pass of the device: no sum is ever written, and nothing has to be gathered.
 *
 * Invariant: a rank writes parameters only inside the comm's operation on them, which starts after every rank
 * has finished its backward pass over them, and which no rank leaves before all have written. So nobody reads
 * them meanwhile, and the update needs no synchronization of its own.
 */
#include "dist.h"
#include "base_impl.h"

/* This rank's slice of a bucket; in[r]: the bucket in rank r's gradients. Called by hvt_comm_wait(); in a
 * step that is given up there is nothing to do. */
static hvt_status update_slice(void *ctx, size_t first, size_t end, const void *const in[], int ranks)
{
    hvt_distopt *d = ctx;
    const float *mine = in[hvt_world_rank(hvt_comm_world(d->comm))];
    size_t bucket = (size_t)(mine - d->grads);
    double start = hvt__running();
    hvt_status s;

    if (!d->decided)
        return HVT_OK;
    for (int r = 0; r < ranks; r++)
        d->g[r] = (const float *)in[r] + first;
    hvt__trace_begin(HVT__UPDATE, -1);
    hvt__trace_bytes((end - first) * sizeof(float));
    s = hvt__traced(hvt__optim_span(d->optim, d->g, ranks, d->at, bucket + first, bucket + end));
    d->updating += hvt__running() - start;
    return s;
}

static hvt_status post(hvt_distopt *d, hvt_bucket *b)
{
    float *span = d->grads + b->first;
    size_t n = b->end - b->first;

    if (b == d->bucket)
        return hvt_comm_allreduce(d->comm, span, n, HVT_F32, &b->ticket);
    return hvt_comm_reduce_apply(d->comm, span, n, HVT_F32, update_slice, d, &b->ticket);
}

/* The wait for the last bucket updates all of them. */
static hvt_status finish(hvt_distopt *d)
{
    bool waits = d->arrived < d->nbucket;

    d->arrived = d->nbucket;
    d->decided = true;
    if (waits)
        HVT_TRY(hvt__await(d, d->bucket + d->nbucket - 1));
    d->decided = false;
    hvt__model_changed(d->optim->m); /* of a 16-bit copy each rank has written its own slice */
    return HVT_OK;
}

const hvt__way hvt__way_fused = {.post = post, .finish = finish};
