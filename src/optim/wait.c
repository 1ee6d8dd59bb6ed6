/* Waits for a bucket's sum, and decodes it. */
#include "dist.h"
#include "base_impl.h"

enum { CHUNK = 1 << 17 /* elements that stay in a core's cache */ };
_Static_assert(CHUNK % HVT__SQUARES_BLOCK == 0, "a chunk has whole blocks of squares");

void hvt__phase_begin(const hvt_distopt *d, hvt__phase phase, const hvt_bucket *b)
{
    size_t n = b->end - b->first;

    if (phase != HVT__UPDATE)
        b->codec->span(d, b, &n);
    hvt__trace_begin(phase, (int)(b - d->bucket));
    hvt__trace_bytes(n * hvt_dtype_size(phase == HVT__UPDATE ? HVT_F32 : b->codec->wire));
}

static const char *bucket_name(const void *dist, int bucket)
{
    const hvt_distopt *d = dist;

    return bucket >= 0 && bucket < d->nbucket ? d->bucket[bucket].tensor : "";
}

/* Decodes a bucket, or this rank's slice of it, from the wire into the arena and undoes the scale; checks
 * that it is finite, and adds its squares for the norm. */
static hvt_status decode(hvt_distopt *d, const hvt_bucket *b)
{
    hvt_model *m = d->optim->m;
    size_t most = b->codec->whole || !m->dev->ops->host ? SIZE_MAX : CHUNK, n;

    for (size_t at = b->own_first < m->step_stats_count ? m->step_stats_count : b->own_first; at < b->own_end;
         at += n) {
        n = b->own_end - at < most ? b->own_end - at : most;
        if (b->codec->decode)
            HVT_TRY(b->codec->decode(d, at, n));
        if (d->needs_all)
            HVT_TRY(m->dev->ops->step.check(m->dev, n, d->grads + at, at, m->step));
        if (d->opts.clip_norm > 0)
            HVT_TRY(m->dev->ops->step.squares(m->dev, n, d->grads + at, m->step));
    }
    return HVT_OK;
}

hvt_status hvt__await(hvt_distopt *d, const hvt_bucket *b, bool decodes)
{
    double start = hvt__running();
    hvt_status s;

    d->updating = 0;
    hvt__phase_begin(d, HVT__EXCHANGE, b);
    hvt__trace_names(bucket_name, d);
    s = hvt__traced(hvt_comm_wait(d->comm, b->ticket));
    hvt__trace_names(NULL, NULL);
    d->exposed += hvt__running() - start - d->updating;
    if (s != HVT_OK || !decodes || (!b->codec->decode && !d->needs_all))
        return s;
    hvt__phase_begin(d, HVT__COMPRESS, b);
    return hvt__traced(decode(d, b));
}
