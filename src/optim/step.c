/*
 * A distributed optimizer's step: what happens to a gradient between backward and the parameter.
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
 * What a step decides, it decides in device memory (hvt_step_state): no host waits for it, and where devices
 * queue, a run that ends is noticed by hvt_distopt_check() later; until then nothing is applied any more.
 *
 * Invariants: buckets are launched strictly in order, so every rank issues the same operations; no parameter
 * is touched before the step is settled, and it is settled on sums, which are the same everywhere; between
 * steps no exchange is under way.
 */
#include "dist.h"
#include "base_impl.h"
#include "base/trace.h"

#include <math.h>
#include <string.h>

/* What this rank was told of the step, as hvt__step_agrees() wants it: words of as many bits as their
 * squares' sum over all ranks leaves exact. */
static void tell(const hvt_distopt *d, float told[HVT__STEP_AGREEMENT])
{
    int bits = 24, ranks = hvt_world_size(hvt_comm_world(d->comm));
    const float lr = (float)d->lr;
    uint64_t all = hvt__hash(HVT_HASH_INIT, &lr, sizeof lr);

    all = hvt__hash(all, d->counts, (size_t)d->shards * sizeof *d->counts);
    for (int n = 1; n < ranks; n *= 2)
        bits--;
    told[0] = 1;
    for (int i = 0; i < HVT__STEP_WORDS; i++) {
        float word = (float)(hvt__draw(all, (uint64_t)i, 0, 0) >> (64 - bits / 2));

        told[1 + 2 * i] = word;
        told[2 + 2 * i] = word * word;
    }
}

hvt_status hvt_distopt_begin(hvt_distopt *d, const int *shard_counts, int shards, double lr)
{
    int64_t images = 0;
    float told[HVT__STEP_AGREEMENT];

    HVT_GIVEN(d, "a distributed optimizer");
    HVT_GIVEN(shard_counts, "the shards' counts");
    HVT_CHECK(!d->begun, E_ARG, "a step begins after %d of %d backward passes of the one before", d->pass,
              d->opts.local_shards);
    HVT_CHECK(shards == d->shards, E_ARG, "a step of %d shards, expected %d (%d on each of %d ranks)", shards,
              d->shards, d->opts.local_shards, d->shards / d->opts.local_shards);
    for (int i = 0; i < shards; i++) {
        HVT_CHECK(shard_counts[i] >= 0, E_ARG, "shard %d has %d images", i, shard_counts[i]);
        images += shard_counts[i];
    }
    HVT_CHECK(images > 0, E_ARG, "a step without images: all %d shards are empty", shards);
    HVT_CHECK(isfinite(lr), E_ARG, "learning rate is %g", lr);
    if (d->sharded)
        HVT_TRY(hvt__sharded_forget(d->sharded));
    if (d->powersgd)
        HVT_TRY(hvt__powersgd_forget(d));
    if (d->inits != d->optim->m->inits) { /* a new run: nothing is left of gradients of the one before */
        d->rest_unit = 0;
        if (d->powersgd)
            hvt__powersgd_draw(d);
        d->inits = d->optim->m->inits;
    }
    hvt__trace_step(0);
    if (d->rest)
        HVT_TRY(hvt__rest_begin(d, images));
    memcpy(d->counts, shard_counts, (size_t)shards * sizeof *d->counts);
    d->lr = lr;
    tell(d, told);
    HVT_TRY(hvt__model_begin_step(d->optim->m, images, lr, told));
    /* to a mean, nearly; a scaled loss is one over a shard's images already */
    d->wire_scale = 1;
    while ((double)d->wire_scale * (double)images > (d->opts.scaling.scale ? d->optim->m->batch : 1))
        d->wire_scale /= 2;
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

static void begin_phase(const hvt_distopt *d, hvt__phase phase, const hvt_bucket *b)
{
    size_t n = b->end - b->first;

    if (hvt__codec_for(d, b)->whole && phase != HVT__UPDATE)
        hvt__powersgd_span(d, b, &n);
    hvt__trace_begin(phase, (int)(b - d->bucket));
    hvt__trace_bytes(n * hvt_dtype_size(phase == HVT__UPDATE ? HVT_F32 : b->wire));
}

/* A round of a bucket's factors; one that has none is over with the round of the bucket before. */
static hvt_status issue_factors(hvt_distopt *d, hvt_bucket *b)
{
    size_t n;
    float *factors = hvt__powersgd_span(d, b, &n);

    if (n)
        return hvt_comm_allreduce(d->comm, factors, n, HVT_F32, &b->ticket);
    if (!b->second)
        b->ticket = b[-1].ticket;
    return HVT_OK;
}

static hvt_status issue(hvt_distopt *d, hvt_bucket *b)
{
    size_t n = b->end - b->first;
    void *buf = b->wire == HVT_F32 ? (void *)(d->grads + b->first) : d->wire + b->first;

    if (d->ride && b == d->bucket)
        return hvt__ride_launch(d, &b->ticket);
    if (hvt__codec_for(d, b)->whole)
        return issue_factors(d, b);
    if (!d->sharded || b == d->bucket)
        return hvt_comm_allreduce(d->comm, buf, n, b->wire, &b->ticket);
    if (hvt__sharded_fused(d->sharded))
        return hvt__sharded_launch(d->sharded, b);
    return hvt_comm_reduce_scatter(d->comm, buf, n, b->wire, &b->ticket);
}

static hvt_status launch(hvt_distopt *d, hvt_bucket *b)
{
    const hvt__codec *codec = hvt__codec_for(d, b);

    if (d->late && b == d->bucket) {
        b->ticket = 0;
        return HVT_OK;
    }
    b->second = false;
    if (codec->encode) {
        begin_phase(d, HVT__COMPRESS, b);
        HVT_TRY(hvt__traced(codec->encode(d, b->first, b->end - b->first)));
    }
    begin_phase(d, HVT__LAUNCH, b);
    return hvt__traced(issue(d, b));
}

/* Is what backward walks over the shard whose turn it is, of the size that begin was told? */
static hvt_status check_pass(const hvt_distopt *d)
{
    const hvt_model *m = d->optim->m;
    int shard = hvt_world_rank(hvt_comm_world(d->comm)) * d->opts.local_shards + d->pass;

    if (!m->in_backward) /* gradients that were made elsewhere */
        return HVT_OK;
    HVT_CHECK(m->shard < 0 || m->shard == shard, E_ARG,
              "a batch of shard %d comes as number %d of this rank's, expected shard %d", m->shard, d->pass,
              shard);
    HVT_CHECK(m->real == d->counts[shard], E_ARG,
              "a batch of %d images of shard %d, but hvt_distopt_begin() was told of %d", m->real, shard,
              d->counts[shard]);
    return HVT_OK;
}

/* With the sums of losses travels what this rank was told of the step. */
static hvt_status add_told(const hvt_distopt *d)
{
    const hvt_model *m = d->optim->m;

    return m->dev->ops->copy(m->dev, d->grads + m->step_stats_count - HVT__STEP_AGREEMENT, m->step->agreement,
                             sizeof m->step->agreement);
}

hvt_status hvt_distopt_on_grad(void *dist, size_t first, size_t end)
{
    hvt_distopt *d = dist;
    size_t rider;
    bool last;

    HVT_GIVEN(d, "a distributed optimizer");
    rider = d->optim->m->step_stats_count;
    last = d->pass == d->opts.local_shards - 1;
    HVT_CHECK(d->begun, E_ARG, "gradients come before hvt_distopt_begin()");
    HVT_CHECK(d->pass < d->opts.local_shards, E_ARG, "more than %d backward passes in a step",
              d->opts.local_shards);
    HVT_CHECK(first == d->mark && end >= first && end <= d->optim->m->arena_count, E_ARG,
              "gradients [%zu, %zu) come, expected them to go on at %zu of %zu", first, end, d->mark,
              d->optim->m->arena_count);
    if (first == 0)
        HVT_TRY(check_pass(d));
    if (last)
        HVT_TRY(finish_passes(d, first, end - first));
    else
        HVT_TRY(store_pass(d, first, end - first));
    if (last && first < rider && end >= rider)
        HVT_TRY(add_told(d));
    d->mark = end;
    for (; last && d->launched < d->nbucket && d->bucket[d->launched].end <= d->mark; d->launched++)
        HVT_TRY(launch(d, &d->bucket[d->launched]));
    if (d->mark == d->optim->m->arena_count) {
        d->pass++;
        d->mark = 0;
    }
    return HVT_OK;
}

static const char *bucket_name(const void *dist, int bucket)
{
    const hvt_distopt *d = dist;

    return bucket >= 0 && bucket < d->nbucket ? d->bucket[bucket].tensor : "";
}

static hvt_status await(hvt_distopt *d, int bucket)
{
    double start = hvt__running();
    hvt_status s;

    begin_phase(d, HVT__EXCHANGE, &d->bucket[bucket]);
    hvt__trace_names(bucket_name, d);
    s = hvt__traced(hvt_comm_wait(d->comm, d->bucket[bucket].ticket));
    hvt__trace_names(NULL, NULL);
    d->exposed += hvt__running() - start - (d->sharded ? hvt__sharded_take_seconds(d->sharded) : 0);
    return s;
}

/* The first round's sums, bucket by bucket; what they make travels at once. */
static hvt_status second_round(hvt_distopt *d)
{
    for (int i = 1; i < d->nbucket; i++) {
        hvt_bucket *b = &d->bucket[i];

        HVT_TRY(await(d, i));
        b->second = true;
        begin_phase(d, HVT__COMPRESS, b);
        HVT_TRY(hvt__traced(hvt__codec_for(d, b)->again(d, b->first, b->end - b->first)));
        begin_phase(d, HVT__LAUNCH, b);
        HVT_TRY(hvt__traced(issue(d, b)));
    }
    return HVT_OK;
}

/* The next bucket's sum has come. */
static hvt_status await_next(hvt_distopt *d)
{
    d->arrived++;
    return await(d, d->arrived - 1);
}

/* Gradients of a bucket that has come, or of this rank's slice of it, from the wire back into the arena as
 * they were before they were scaled: are they finite? */
static hvt_status look_at_span(hvt_distopt *d, const hvt_bucket *b)
{
    hvt_model *m = d->optim->m;
    const hvt__codec *codec = hvt__codec_for(d, b);
    size_t first = d->sharded ? b->own_first : b->first, end = d->sharded ? b->own_end : b->end;
    size_t most = codec->whole ? SIZE_MAX : hvt__codec_chunk(d), n;

    for (size_t at = first < m->step_stats_count ? m->step_stats_count : first; at < end; at += n) {
        n = end - at < most ? end - at : most;
        if (codec->decode)
            HVT_TRY(codec->decode(d, at, n, 1, d->grads + at));
        HVT_TRY(m->dev->ops->check(m->dev, n, d->grads + at, at, m->step));
    }
    return HVT_OK;
}

static hvt_status look_at(hvt_distopt *d, const hvt_bucket *b)
{
    begin_phase(d, HVT__COMPRESS, b);
    return hvt__traced(look_at_span(d, b));
}

/* The rider, and all sums that the decision needs. */
static hvt_status await_decisive(hvt_distopt *d)
{
    do {
        HVT_TRY(await_next(d));
        if (d->ride && !d->late && d->arrived == 1)
            HVT_TRY(hvt__ride_land(d));
        if (hvt__needs_all(d))
            HVT_TRY(look_at(d, &d->bucket[d->arrived - 1]));
    } while (hvt__needs_all(d) && d->arrived < d->nbucket);
    if (!d->late)
        return HVT_OK;
    begin_phase(d, HVT__LAUNCH, d->bucket);
    HVT_TRY(hvt__traced(hvt__ride_launch(d, &d->bucket[0].ticket)));
    HVT_TRY(await(d, 0));
    return hvt__ride_land(d);
}

static hvt_status decide(hvt_distopt *d)
{
    hvt_model *m = d->optim->m;

    HVT_TRY(await_decisive(d));
    hvt__trace_begin(HVT__UPDATE, -1);
    HVT_TRY(hvt__traced(hvt__model_end_step(m, d->counts, d->shards)));
    return m->dev->ops->host ? hvt_distopt_check(d) : HVT_OK;
}

/* The rider is in the first bucket: it settles the step, after all that the decision needs. Where it ends the
 * run, and the host sees it, nothing stays under way. */
static hvt_status settle(hvt_distopt *d)
{
    hvt_status s = decide(d);

    if (s == HVT_E_DIVERGED || s == HVT_E_MISMATCH) {
        hvt_status later = HVT_OK;

        while (later == HVT_OK && d->arrived < d->nbucket)
            later = await_next(d);
        hvt__distopt_drop(d);
    }
    return s;
}

/* What a codec took from its gradients is gone with them. */
void hvt__distopt_drop(hvt_distopt *d)
{
    d->begun = false;
    d->pass = d->launched = d->arrived = 0;
    d->mark = 0;
    d->rest_unit = 0;
    d->optim->m->backward_pending = false;
    hvt__trace_step_end();
}

/* Ranks may have come to different points. All launch what any of them has, so that the comm sees the same
 * operations everywhere; what the others send is whatever lies there, and nobody reads the sums. */
hvt_status hvt_distopt_abandon(hvt_distopt *d)
{
    hvt_world *world;
    int64_t most;
    hvt_status s = HVT_OK;

    HVT_GIVEN(d, "a distributed optimizer");
    world = hvt_comm_world(d->comm);
    if (!d->begun)
        d->launched = d->arrived = 0;
    most = d->launched;
    HVT_TRY(hvt_world_allreduce_i64(world, HVT_MAX, &most, 1));
    for (; s == HVT_OK && d->launched < most; d->launched++)
        s = launch(d, &d->bucket[d->launched]);
    while (s == HVT_OK && d->arrived < d->launched)
        s = await_next(d);
    hvt__distopt_drop(d);
    return hvt_world_agree(world, s);
}

/* Of what the decision did not need to look at. */
static hvt_status unpack(hvt_distopt *d, const hvt_bucket *b)
{
    begin_phase(d, HVT__COMPRESS, b);
    return hvt__traced(hvt__codec_for(d, b)->decode(d, b->first, b->end - b->first, 1, d->grads + b->first));
}

static hvt_status apply(hvt_distopt *d, const hvt_bucket *b)
{
    const float *g = d->grads + b->first, *at;

    begin_phase(d, HVT__UPDATE, b);
    return hvt__traced(hvt__optim_span(d->optim, &g, 1, &at, b->first, b->end));
}

/* Bucket by bucket: early ones are applied while late ones still travel. */
static hvt_status update_all(hvt_distopt *d)
{
    for (int b = 0; b < d->nbucket; b++) {
        if (b == d->arrived)
            HVT_TRY(await_next(d));
        if (hvt__codec_for(d, &d->bucket[b])->whole && !hvt__needs_all(d))
            HVT_TRY(unpack(d, &d->bucket[b]));
        HVT_TRY(apply(d, &d->bucket[b]));
    }
    return HVT_OK;
}

/* Bucket by bucket, too: parameters of early ones are handed out while sums of late ones still travel. */
static hvt_status update_slices(hvt_distopt *d)
{
    for (int b = 1; b < d->nbucket; b++) {
        if (b == d->arrived)
            HVT_TRY(await_next(d));
        begin_phase(d, HVT__UPDATE, &d->bucket[b]);
        HVT_TRY(hvt__traced(hvt__sharded_update(d->sharded, &d->bucket[b])));
    }
    return await(d, d->nbucket - 1);
}

/* Waiting is updating; for the last bucket is for all. */
static hvt_status update_fused(hvt_distopt *d)
{
    if (d->arrived == d->nbucket)
        return HVT_OK;
    hvt__sharded_gate(d->sharded, true);
    d->arrived = d->nbucket - 1;
    HVT_TRY(await_next(d));
    hvt__sharded_gate(d->sharded, false);
    return HVT_OK;
}

hvt_status hvt_distopt_step(hvt_distopt *d)
{
    HVT_GIVEN(d, "a distributed optimizer");
    HVT_CHECK(d->begun && d->pass == d->opts.local_shards, E_ARG,
              "a step ends after %d of %d backward passes", d->begun ? d->pass : 0, d->opts.local_shards);
    if (d->powersgd)
        HVT_TRY(second_round(d));
    HVT_TRY(settle(d));
    if (!d->sharded)
        HVT_TRY(update_all(d));
    else if (hvt__sharded_fused(d->sharded))
        HVT_TRY(update_fused(d));
    else
        HVT_TRY(update_slices(d));
    hvt__optim_end(d->optim);
    if (d->powersgd)
        hvt__powersgd_end(d);
    if (d->sharded) /* of a 16-bit copy each rank has written its own slice */
        hvt__model_changed(d->optim->m);
    d->begun = false;
    hvt__trace_step_end();
    return HVT_OK;
}
