/*
 * The three update paths: how a bucket travels, and what happens to its sums.
 *
 * *Replicated*: every rank gets all sums and updates all of its parameters.
 *
 * *Sliced*: reduce_scatter leaves each rank its slice of a bucket's sum, the rank updates this slice for all
 * ranks, and allgather distributes the new parameters, those of early buckets while sums of late ones still
 * travel. If the decision about a step needs all sums, flags travel, too (nonfinite.c).
 *
 * *Fused*, if all ranks see each other's memory and share one copy of parameters and state: a rank reads its
 * slice of all ranks' gradients, adds them along the tree and updates the shared parameters, in one pass of
 * the device. No sum is written, and nothing is gathered. Invariant: a rank writes parameters only inside the
 * comm's operation on them, which starts after every rank has finished its backward pass over them, and which
 * no rank leaves before all have written. So no rank reads them meanwhile, and the update needs no
 * synchronization of its own.
 */
#include "dist.h"
#include "base_impl.h"

/* Updates a part of this rank's slice of a bucket; in[i]: the bucket in a rank's gradients or, if leaves are
 * added first, their sum. Called by hvt_comm_wait(); does nothing in a step that is given up. */
static hvt_status reduce_and_update(void *ctx, size_t first, size_t end, const void *const in[], int vectors)
{
    const hvt_bucket *b = ctx;
    hvt_distopt *d = b->dist;
    double start = hvt__running();
    hvt_status s;

    if (!d->decided)
        return HVT_OK;
    for (int i = 0; i < vectors; i++)
        d->g[i] = (const float *)in[i] + first;
    hvt__trace_begin(HVT__UPDATE, -1);
    hvt__trace_bytes((end - first) * sizeof(float));
    s = hvt__traced(hvt__optim_span(d->optim, d->g, vectors, b->first + first, b->first + end));
    d->updating += hvt__running() - start;
    return s;
}

/* Post the sum of a bucket's span over all shards. */
static hvt_status post_sum(hvt_distopt *d, hvt_bucket *b, void *span, size_t n, hvt__sum kind)
{
    hvt__partials partials = d->sums;

    b->dist = d;
    if (partials.extra)
        partials.extra += b->first;
    if (partials.leaves)
        return hvt__comm_sum(d->comm, kind, span, n, &partials, reduce_and_update, b, &b->ticket);
    if (kind == HVT__SUM_APPLY)
        return hvt_comm_reduce_apply(d->comm, span, n, b->codec->wire, reduce_and_update, b, &b->ticket);
    return kind == HVT__SUM_ALL ? hvt_comm_allreduce(d->comm, span, n, b->codec->wire, &b->ticket)
                                : hvt_comm_reduce_scatter(d->comm, span, n, b->codec->wire, &b->ticket);
}

/* Posts a bucket. If the codec sends nothing in this round, the bucket completes with the one before it. */
static hvt_status post_replicated(hvt_distopt *d, hvt_bucket *b)
{
    size_t n;
    void *span = b->codec->span(d, b, &n);

    if (b->codec->post)
        return b->codec->post(d, b);
    if (n)
        return post_sum(d, b, span, n, HVT__SUM_ALL);
    if (!b->second)
        b->ticket = b[-1].ticket;
    return HVT_OK;
}

/* Updates this rank's slice: all of a bucket if updates are replicated. */
static hvt_status update(hvt_distopt *d, hvt_bucket *b)
{
    d->g[0] = d->grads + b->own_first;
    d->optim->v_at = b->own_first - b->own_at;
    return hvt__optim_span(d->optim, d->g, 1, b->own_first, b->own_end);
}

static hvt_status post_sliced(hvt_distopt *d, hvt_bucket *b)
{
    size_t n;
    void *span = b->codec->span(d, b, &n);

    return post_sum(d, b, span, n, b == d->bucket ? HVT__SUM_ALL : HVT__SUM_SLICES);
}

static hvt_status update_and_gather(hvt_distopt *d, hvt_bucket *b)
{
    HVT_TRY(update(d, b));
    return hvt_comm_allgather(d->comm, d->optim->m->params + b->first, b->end - b->first, HVT_F32,
                              &b->ticket);
}

static hvt_status post_fused(hvt_distopt *d, hvt_bucket *b)
{
    return post_sum(d, b, d->grads + b->first, b->end - b->first,
                    b == d->bucket ? HVT__SUM_ALL : HVT__SUM_APPLY);
}

const hvt__update_path hvt__update_replicated = {.post = post_replicated, .update = update};
const hvt__update_path hvt__update_sliced = {
    .post = post_sliced, .update = update_and_gather, .gathers = true};
const hvt__update_path hvt__update_fused = {.post = post_fused};
