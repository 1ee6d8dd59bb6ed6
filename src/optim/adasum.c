/*
 * Adasum of the shards' gradients: hvt_allreduce() with HVT_ADASUM, for each tensor.
 *
 * It adds mean gradients. The arena holds sums over a shard's images, so each is multiplied by all images and
 * divided by the shard's; the update then divides by all images, as always. Every shard is a leaf
 * (comm/sums.h), so no bit depends on which rank holds which shards.
 */
#include "dist.h"
#include "base_impl.h"
#include "coll/vectors.h"

typedef struct tensors {
    int n;
    size_t *end;          /* [n] in the arena; padding belongs to the tensor before it */
    hvt__vectors *bucket; /* [n] of each bucket: there are at most as many */
} tensors;

static tensors *of(const hvt_distopt *d)
{
    return d->codec_state;
}

static hvt_status check(const hvt_optim *o, const hvt_distopt_opts *opts)
{
    HVT_CHECK(opts->wire == HVT_F32 && !opts->powersgd, E_ARG, "adasum sends gradients as f32, not as %s",
              opts->powersgd ? "PowerSGD's factors" : hvt_dtype_name(opts->wire));
    HVT_CHECK(o->m->dev->ops->host, E_UNSUPPORTED, "adasum needs a device of the host's memory, not %s",
              o->m->dev->ops->name);
    HVT_CHECK(opts->update != HVT_UPDATE_SHARDED, E_ARG,
              "adasum needs a replicated update: tensors cannot be cut into slices of gradients");
    return HVT_OK;
}

static hvt_status open(hvt_distopt *d)
{
    const hvt_model *m = d->optim->m;
    const size_t n = (size_t)m->ntrained;
    tensors *t = malloc(sizeof *t + n * (sizeof *t->end + sizeof *t->bucket));

    HVT_CHECK(t, E_MEM, "no memory for the gradients of %zu tensors", n);
    *t = (tensors){.n = (int)n, .bucket = (hvt__vectors *)(t + 1)};
    t->end = (size_t *)(t->bucket + n);
    for (size_t i = 0; i < n; i++)
        t->end[i] = i + 1 < n ? m->param[i + 1].offset : m->grad_count;
    d->codec_state = t;
    return HVT_OK;
}

static void close(hvt_distopt *d)
{
    free(d->codec_state);
    d->codec_state = NULL;
}

static hvt_status encode(hvt_distopt *d, const hvt_bucket *b)
{
    hvt_device *dev = d->optim->m->dev;
    const int local = d->opts.local_shards;
    int64_t all = 0;

    for (int i = 0; i < d->shards; i++)
        all += d->counts[i];
    for (int i = 0; i < local; i++) {
        const int images = d->counts[d->first_of[d->rank] + i];
        float *g = i + 1 < local ? d->sums.extra + (size_t)i * d->sums.stride : d->grads;

        if (images) /* else it is 0 */
            HVT_TRY(dev->ops->vector.cast(dev, b->end - b->first, (float)((double)all / images), g + b->first,
                                          HVT_F32, g + b->first, HVT_F32));
    }
    return HVT_OK;
}

static hvt_status post(hvt_distopt *d, hvt_bucket *b)
{
    const tensors *t = of(d);
    hvt__vectors *v = &t->bucket[b - d->bucket - 1]; /* after that of the step statistics */
    int first = 0, end;

    while (t->end[first] <= b->first)
        first++;
    for (end = first; end < t->n && t->end[end] <= b->end;)
        end++;
    *v = (hvt__vectors){.first = d->first_of,
                        .extra = d->sums.extra ? d->sums.extra + b->first : NULL,
                        .stride = d->sums.stride,
                        .end = t->end + first,
                        .base = b->first,
                        .tensors = end - first};
    return hvt__adasum_post(d->comm, d->grads + b->first, b->end - b->first, v, &b->ticket);
}

const hvt__codec hvt__codec_adasum = {.wire = HVT_F32,
                                      .whole = true,
                                      .each = true,
                                      .check = check,
                                      .open = open,
                                      .close = close,
                                      .encode = encode,
                                      .span = hvt__span_f32,
                                      .post = post};
