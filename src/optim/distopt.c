/*
 * The distributed optimizer: what happens to a gradient between backward and the parameter.
 *
 * Words. A *pass* is one local shard's backward. The *mark* is how far the pass under way has finished the
 * arena. A *partial* is the sum of a complete subtree of this rank's shards: partial k holds 2^k of them. A
 * *bucket* is a span that travels at once.
 *
 * Passes are added like the bits of a counter: pass i, carrying, adds the partials of its trailing ones and
 * becomes the partial above them; the last pass adds all that are left, lowest first, so that an odd subtree
 * moves up. This is the fixed tree over shards, and the comm goes on with it over ranks. It is done span by
 * span as backward finishes them; in the last pass a span that completes a bucket launches it.
 *
 * Invariants: buckets are launched strictly in order, so every rank issues the same operations; no parameter
 * is touched before the loss of the whole step is known to be finite; between steps nothing is in flight.
 */
#include "optim_impl.h"
#include "base_impl.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    LEVELS = 31,    /* partials: more than shards have bits */
    PROBE = 64,     /* columns of the sums that look for a number that is not finite */
    CHUNK = 1 << 17 /* elements that are decoded and probed while they are in a core's cache */
};

struct hvt_distopt {
    hvt_optim *optim; /* borrowed */
    hvt_comm *comm;   /* borrowed */
    hvt_distopt_opts opts;
    hvt_bucket *bucket;
    int nbucket;
    size_t *bucket_bytes;

    float *grads;           /* the model's gradient arena, in the comm's memory */
    uint16_t *wire;         /* element i travels as wire[i]; NULL for f32 */
    float *partial[LEVELS]; /* device memory, an arena each; NULL past the highest level in use */
    int probes;             /* chunks in all 16-bit buckets; 0 for f32 */
    float *probe;           /* device memory, [probes][2][PROBE] column sums of each chunk */
    float *probed;          /* the same on the host */

    int shards;
    int *counts; /* [shards] images of the step under way */

    /* where the step stands */
    bool begun;
    int64_t images; /* in the global batch */
    int pass;       /* local shards done */
    size_t mark;
    int launched, arrived; /* buckets sent, and waited for */

    double exposed;
    int64_t skipped;
};

/* ---- life ----------------------------------------------------------------------------------------- */

static hvt_status check_opts(const hvt_optim *o, const hvt_comm *comm, const hvt_distopt_opts *opts)
{
    HVT_CHECK(opts->wire == HVT_F32 || opts->wire == HVT_F16 || opts->wire == HVT_BF16, E_ARG,
              "wire type is %s, expected f32, f16 or bf16", hvt_dtype_name(opts->wire));
    HVT_CHECK(opts->local_shards > 0 &&
                  opts->local_shards <= INT32_MAX / hvt_world_size(hvt_comm_world(comm)),
              E_ARG, "a rank works through %d shards, expected 1 or more", opts->local_shards);
    HVT_CHECK(!o->m->grads_placed, E_ARG, "the model's gradients already belong to a distributed optimizer");
    return HVT_OK;
}

/* All that a rank can make without the others. */
static hvt_status make_local(hvt_distopt *d)
{
    const hvt_model *m = d->optim->m;
    const hvt_device_ops *ops = m->dev->ops;

    HVT_TRY(check_opts(d->optim, d->comm, &d->opts));
    d->shards = d->opts.local_shards * hvt_world_size(hvt_comm_world(d->comm));
    HVT_TRY(hvt__bucket_plan(m, &d->opts, &d->bucket, &d->nbucket));
    d->bucket_bytes = malloc((size_t)d->nbucket * sizeof *d->bucket_bytes);
    d->counts = calloc((size_t)d->shards, sizeof *d->counts);
    HVT_CHECK(d->bucket_bytes && d->counts, E_MEM, "no memory for %d buckets and %d shards", d->nbucket,
              d->shards);
    for (int b = 0; b < d->nbucket; b++) {
        size_t n = d->bucket[b].end - d->bucket[b].first;

        d->bucket_bytes[b] = n * sizeof(float);
        if (d->bucket[b].wire != HVT_F32)
            d->probes += (int)((n + CHUNK - 1) / CHUNK);
    }
    for (int k = 0; (d->opts.local_shards - 1) >> k; k++)
        HVT_TRY(ops->alloc(m->dev, m->arena_count * sizeof(float), (void **)&d->partial[k]));
    if (d->probes) {
        size_t bytes = (size_t)d->probes * 2 * PROBE * sizeof(float);

        d->probed = malloc(bytes);
        HVT_CHECK(d->probed, E_MEM, "no memory for %d probes (%zu bytes)", d->probes, bytes);
        HVT_TRY(ops->alloc(m->dev, bytes, (void **)&d->probe));
    }
    return HVT_OK;
}

hvt_status hvt_distopt_create(hvt_optim *optim, hvt_comm *comm, const hvt_distopt_opts *opts,
                              const hvt_item *items, int n, hvt_distopt **ret_dist)
{
    hvt_world *world = hvt_comm_world(comm);
    hvt_model *m = optim->m;
    hvt_distopt *d = calloc(1, sizeof *d);
    hvt_status s = HVT_OK;

    if (!d) {
        s = HVT_FAIL(E_MEM, "no memory for a distributed optimizer (%zu bytes)", sizeof *d);
    } else {
        *d = (hvt_distopt){.optim = optim, .comm = comm, .opts = *opts};
        s = make_local(d);
    }
    HVT_TRY_OR(fail, hvt_world_agree(world, s));
    HVT_TRY_OR(fail, hvt__distopt_agree(optim, world, opts, d->bucket, d->nbucket, items, n));
    HVT_TRY_OR(fail, hvt_comm_alloc(comm, m->arena_count * sizeof *d->grads, (void **)&d->grads));
    if (opts->wire != HVT_F32)
        HVT_TRY_OR(fail, hvt_comm_alloc(comm, m->arena_count * sizeof *d->wire, (void **)&d->wire));
    HVT_TRY_OR(fail, hvt_world_agree(world, hvt__model_place(m, d->grads)));
    *ret_dist = d;
    return HVT_OK;
fail:
    hvt_distopt_free(&d);
    return s;
}

void hvt_distopt_free(hvt_distopt **dist)
{
    hvt_distopt *d = *dist;
    hvt_model *m;

    *dist = NULL;
    if (!d)
        return;
    m = d->optim->m;
    for (; d->arrived < d->launched; d->arrived++) /* a step that was given up: no peer may still read */
        hvt_comm_wait(d->comm, d->bucket[d->arrived].ticket);
    if (d->grads && m->grads == d->grads && hvt__model_place(m, NULL) != HVT_OK)
        HVT_WARN("the model is left without gradients: %s", hvt_last_error());
    hvt_comm_release(d->comm, d->wire);
    hvt_comm_release(d->comm, d->grads);
    for (int k = 0; k < LEVELS; k++)
        m->dev->ops->release(m->dev, d->partial[k]);
    m->dev->ops->release(m->dev, d->probe);
    free(d->probed);
    free(d->counts);
    free(d->bucket_bytes);
    free(d->bucket);
    free(d);
}

hvt_status hvt_distopt_broadcast(hvt_distopt *d, int root)
{
    hvt_optim *o = d->optim;
    hvt_model *m = o->m;
    struct {
        int64_t tracked, fresh;
    } host = {m->tracked, o->fresh};

    HVT_TRY(hvt_comm_broadcast(d->comm, m->params, m->arena_count * sizeof *m->params, root));
    if (m->stats_count)
        HVT_TRY(hvt_comm_broadcast(d->comm, m->stats, m->stats_count * sizeof *m->stats, root));
    if (o->v)
        HVT_TRY(hvt_comm_broadcast(d->comm, o->v, m->arena_count * sizeof *o->v, root));
    HVT_TRY(hvt_world_broadcast(hvt_comm_world(d->comm), &host, sizeof host, root));
    m->tracked = host.tracked;
    o->fresh = host.fresh;
    hvt__model_changed(m);
    return HVT_OK;
}

/* ---- a step: begin, passes, end -------------------------------------------------------------------- */

hvt_status hvt_distopt_begin(hvt_distopt *d, const int *shard_counts, int shards)
{
    int64_t images = 0;

    HVT_CHECK(!d->begun, E_ARG, "a step begins after %d of %d backward passes of the one before", d->pass,
              d->opts.local_shards);
    HVT_CHECK(shards == d->shards, E_ARG, "a step of %d shards, expected %d (%d on each of %d ranks)", shards,
              d->shards, d->opts.local_shards, d->shards / d->opts.local_shards);
    for (int i = 0; i < shards; i++) {
        HVT_CHECK(shard_counts[i] >= 0, E_ARG, "shard %d has %d images", i, shard_counts[i]);
        images += shard_counts[i];
    }
    HVT_CHECK(images > 0, E_ARG, "a step without images: all %d shards are empty", shards);
    memcpy(d->counts, shard_counts, (size_t)shards * sizeof *d->counts);
    d->images = images;
    d->pass = d->launched = d->arrived = 0;
    d->mark = 0;
    d->begun = true;
    return HVT_OK;
}

/* Carry: the span of pass i becomes part of the partial above i's trailing ones. */
static hvt_status store_pass(hvt_distopt *d, size_t first, size_t n)
{
    hvt_device *dev = d->optim->m->dev;
    float *g = d->grads + first;
    int level = 0;

    while (d->pass >> level & 1)
        level++;
    if (level == 0)
        return dev->ops->copy(dev, d->partial[0] + first, g, n * sizeof *g);
    for (int k = 0; k < level; k++)
        HVT_TRY(dev->ops->add(dev, n, HVT_F32, g, d->partial[k] + first,
                              k == level - 1 ? d->partial[level] + first : g));
    return HVT_OK;
}

/* The last pass: all that is left, lowest first. */
static hvt_status finish_passes(hvt_distopt *d, size_t first, size_t n)
{
    hvt_device *dev = d->optim->m->dev;
    float *g = d->grads + first;

    for (int k = 0; d->pass >> k; k++)
        if (d->pass >> k & 1)
            HVT_TRY(dev->ops->add(dev, n, HVT_F32, g, d->partial[k] + first, g));
    return HVT_OK;
}

static hvt_status launch(hvt_distopt *d, hvt_bucket *b)
{
    hvt_device *dev = d->optim->m->dev;
    size_t n = b->end - b->first;
    float *g = d->grads + b->first;
    uint16_t *w;

    if (b->wire == HVT_F32)
        return hvt_comm_allreduce(d->comm, g, n, HVT_F32, &b->ticket);
    w = d->wire + b->first; /* scaled before the sum: the mean has a chance to fit where the sum has not */
    HVT_TRY(dev->ops->cast(dev, n, (float)(1.0 / (double)d->images), g, HVT_F32, w, b->wire));
    return hvt_comm_allreduce(d->comm, w, n, b->wire, &b->ticket);
}

hvt_status hvt_distopt_on_grad(void *dist, size_t first, size_t end)
{
    hvt_distopt *d = dist;
    bool last = d->pass == d->opts.local_shards - 1;

    HVT_CHECK(d->begun, E_ARG, "gradients come before hvt_distopt_begin()");
    HVT_CHECK(d->pass < d->opts.local_shards, E_ARG, "more than %d backward passes in a step",
              d->opts.local_shards);
    HVT_CHECK(first == d->mark && end >= first && end <= d->optim->m->arena_count, E_ARG,
              "gradients [%zu, %zu) come, expected them to go on at %zu of %zu", first, end, d->mark,
              d->optim->m->arena_count);
    if (last)
        HVT_TRY(finish_passes(d, first, end - first));
    else
        HVT_TRY(store_pass(d, first, end - first));
    d->mark = end;
    for (; last && d->launched < d->nbucket && d->bucket[d->launched].end <= d->mark; d->launched++)
        HVT_TRY(launch(d, &d->bucket[d->launched]));
    if (d->mark == d->optim->m->arena_count) {
        d->pass++;
        d->mark = 0;
    }
    return HVT_OK;
}

/* The next bucket's sum has come. */
static hvt_status await_next(hvt_distopt *d)
{
    double start = hvt__now();
    hvt_status s = hvt_comm_wait(d->comm, d->bucket[d->arrived].ticket);

    d->exposed += hvt__now() - start;
    d->arrived++;
    return s;
}

/* The rider is in the first bucket: settle loss and moving statistics, or refuse the step. */
static hvt_status settle_rider(hvt_distopt *d)
{
    hvt_status s;

    HVT_TRY(await_next(d));
    s = hvt__model_end_step(d->optim->m, d->counts, d->shards);
    if (s == HVT_E_DIVERGED) { /* the same sum everywhere, so everyone is here */
        while (d->arrived < d->nbucket)
            HVT_TRY(await_next(d));
        d->begun = false;
        hvt__error_agreed(true);
    }
    return s;
}

/* Bucket by bucket: early ones are applied while late ones still travel. */
static hvt_status apply_f32(hvt_distopt *d, double lr)
{
    float scale = (float)(1.0 / (double)d->images);

    HVT_TRY(hvt__optim_span(d->optim, lr, scale, d->bucket[0].first, d->bucket[0].end));
    for (int b = 1; b < d->nbucket; b++) {
        HVT_TRY(await_next(d));
        HVT_TRY(hvt__optim_span(d->optim, lr, scale, d->bucket[b].first, d->bucket[b].end));
    }
    hvt__optim_end(d->optim);
    return HVT_OK;
}

/* Column sums of a decoded chunk, seen as a matrix of PROBE columns and a rest: they are finite if and, but
 * for sums beyond f32, only if every element is. */
static hvt_status probe(hvt_device *dev, const float *g, size_t n, float *sums)
{
    int rows = (int)(n / PROBE), rest = (int)(n % PROBE);

    if (rows)
        HVT_TRY(dev->ops->bias_backward(dev, (hvt_rows){1, rows, rows}, PROBE, HVT_F32, g, sums));
    if (rest)
        HVT_TRY(dev->ops->bias_backward(dev, (hvt_rows){1, 1, 1}, rest, HVT_F32, g + (size_t)rows * PROBE,
                                        sums + PROBE));
    return HVT_OK;
}

/* From the wire back into the arena, probing as it goes. */
static hvt_status decode(hvt_distopt *d, const hvt_bucket *b, float **sums)
{
    hvt_device *dev = d->optim->m->dev;

    for (size_t at = b->first; at < b->end; at += CHUNK, *sums += 2 * PROBE) {
        size_t n = b->end - at < CHUNK ? b->end - at : CHUNK;

        HVT_TRY(dev->ops->cast(dev, n, 1, d->wire + at, b->wire, d->grads + at, HVT_F32));
        HVT_TRY(probe(dev, d->grads + at, n, *sums));
    }
    return HVT_OK;
}

static hvt_status all_finite(hvt_distopt *d, bool *ret_finite)
{
    size_t n = (size_t)d->probes * 2 * PROBE;

    *ret_finite = true;
    if (!n)
        return HVT_OK;
    HVT_TRY(hvt_device_download(d->optim->m->dev, d->probed, d->probe, n * sizeof *d->probed));
    for (size_t i = 0; i < n; i++)
        *ret_finite = *ret_finite && isfinite(d->probed[i]);
    return HVT_OK;
}

/* Every sum first, one decision, then the updates. The sums are already divided. */
static hvt_status apply_16bit(hvt_distopt *d, double lr)
{
    float *sums = d->probe;
    bool finite = false;

    for (int b = 1; b < d->nbucket; b++) {
        HVT_TRY(await_next(d));
        HVT_TRY(decode(d, &d->bucket[b], &sums));
    }
    HVT_TRY(all_finite(d, &finite));
    if (!finite) {
        d->skipped++;
        if (hvt_world_rank(hvt_comm_world(d->comm)) == 0)
            HVT_WARN("update skipped: a gradient's sum does not fit into %s (%lld so far)",
                     hvt_dtype_name(d->opts.wire), (long long)d->skipped);
        return HVT_OK;
    }
    for (int b = 1; b < d->nbucket; b++)
        HVT_TRY(hvt__optim_span(d->optim, lr, 1, d->bucket[b].first, d->bucket[b].end));
    hvt__optim_end(d->optim);
    return HVT_OK;
}

hvt_status hvt_distopt_step(hvt_distopt *d, double lr)
{
    HVT_CHECK(d->begun && d->pass == d->opts.local_shards, E_ARG,
              "a step ends after %d of %d backward passes", d->begun ? d->pass : 0, d->opts.local_shards);
    HVT_CHECK(isfinite(lr), E_ARG, "learning rate is %g", lr);
    HVT_TRY(settle_rider(d));
    if (d->opts.wire == HVT_F32)
        HVT_TRY(apply_f32(d, lr));
    else
        HVT_TRY(apply_16bit(d, lr));
    d->begun = false;
    return HVT_OK;
}

/* ---- what it tells --------------------------------------------------------------------------------- */

double hvt_distopt_take_exposed(hvt_distopt *d)
{
    double seconds = d->exposed;

    d->exposed = 0;
    return seconds;
}

int64_t hvt_distopt_skipped(const hvt_distopt *d)
{
    return d->skipped;
}

int hvt_distopt_buckets(const hvt_distopt *d, const size_t **ret_bytes)
{
    *ret_bytes = d->bucket_bytes;
    return d->nbucket;
}
