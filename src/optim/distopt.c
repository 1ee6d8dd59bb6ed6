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
 * What a step decides, it decides in device memory (hvt_step_state): no host waits for it, and where devices
 * queue, a run that ends is noticed by hvt_distopt_check() later; until then nothing is applied any more.
 *
 * Invariants: buckets are launched strictly in order, so every rank issues the same operations; no parameter
 * is touched before the step is settled, and it is settled on sums, which are the same everywhere; between
 * steps no exchange is under way.
 */
#include "dist.h"
#include "base/trace.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- life ----------------------------------------------------------------------------------------- */

static hvt_status check_opts(const hvt_optim *o, const hvt_comm *comm, const hvt_distopt_opts *opts)
{
    const hvt_scaling *scaling = &opts->scaling;

    HVT_CHECK(hvt__codec_of(opts->wire), E_ARG, "wire type is %s, expected f32, f16 or bf16",
              hvt_dtype_name(opts->wire));
    HVT_CHECK(!opts->error_feedback || opts->wire != HVT_F32, E_ARG,
              "error feedback is for wires of 16 bits: f32 loses nothing on the way");
    HVT_CHECK(!opts->error_feedback || o->m->dev->ops->host, E_UNSUPPORTED,
              "error feedback is for devices of the host, not %s", o->m->dev->ops->name);
    HVT_CHECK(opts->powersgd >= 0, E_ARG, "PowerSGD of rank %d, expected 1 or more, or 0 for none",
              opts->powersgd);
    HVT_CHECK(!opts->powersgd || opts->wire == HVT_F32, E_ARG, "PowerSGD's factors travel as f32, not as %s",
              hvt_dtype_name(opts->wire));
    HVT_CHECK(!opts->powersgd || o->m->dev->ops->factor_p, E_UNSUPPORTED,
              "PowerSGD is for devices of the host, not %s", o->m->dev->ops->name);
    HVT_CHECK(!opts->powersgd || opts->update != HVT_UPDATE_SHARDED, E_ARG,
              "PowerSGD needs a replicated update: factors cannot be cut into slices of gradients");
    HVT_CHECK(opts->local_shards > 0 &&
                  opts->local_shards <= INT32_MAX / hvt_world_size(hvt_comm_world(comm)),
              E_ARG, "a rank works through %d shards, expected 1 or more", opts->local_shards);
    HVT_CHECK(
        !scaling->scale || (isfinite(scaling->scale) && scaling->scale > 0 && scaling->interval >= 0 &&
                            (!scaling->interval || (scaling->floor > 0 && scaling->floor <= scaling->scale))),
        E_ARG,
        "loss scale %g with at least %g, doubled after %d updates: expected numbers above 0, the least at "
        "most the first",
        scaling->scale, scaling->floor, scaling->interval);
    HVT_CHECK(opts->replica_check >= 0, E_ARG, "replicas are compared every %d updates, expected 0 or more",
              opts->replica_check);
    HVT_CHECK(!opts->replica_check || o->m->dev->ops->host, E_UNSUPPORTED,
              "replicas are compared where the host has them, not on device %s", o->m->dev->ops->name);
    HVT_CHECK(!o->m->grads_placed, E_ARG, "the model's gradients already belong to a distributed optimizer");
    return HVT_OK;
}

/* The decision about a step needs every sum: one of them may not be finite though the loss is. */
static bool needs_all(const hvt_distopt *d)
{
    return d->opts.wire != HVT_F32 || d->opts.scaling.scale != 0;
}

/* AUTO becomes what it means here. Sums that go half the way and parameters that come back are as many bytes
 * as sums that go and come back, unless those are of 16 bits: then slices save nothing that the extra traffic
 * between hosts does not cost. */
static hvt_status choose_update(hvt_distopt *d)
{
    const hvt_device *dev = d->optim->m->dev;
    bool alone = hvt_world_size(hvt_comm_world(d->comm)) == 1;
    bool pays = (hvt_comm_combines(d->comm) || d->opts.wire == HVT_F32) && !d->opts.powersgd;

    if (d->opts.update == HVT_UPDATE_AUTO)
        d->opts.update = alone || !dev->ops->host || !pays ? HVT_UPDATE_REPLICATED : HVT_UPDATE_SHARDED;
    HVT_CHECK(d->opts.update == HVT_UPDATE_REPLICATED || dev->ops->host, E_UNSUPPORTED,
              "no sharded update on device %s: its ranks add in an order that depends on who updates what",
              dev->ops->name);
    return HVT_OK;
}

/* Gradients here are those of a sum: over a shard's batch they are so many times the mean's. */
static hvt_status set_scaling(hvt_distopt *d)
{
    const hvt_scaling *from = &d->opts.scaling;
    hvt_model *m = d->optim->m;
    hvt_step_state s;

    HVT_TRY(hvt__model_state(m, &s));
    s.loss_scale = from->scale ? (float)(from->scale / m->batch) : 1;
    s.floor = (float)(from->floor / m->batch);
    s.interval = from->scale ? from->interval : 0;
    s.good = s.skips_in_row = 0;
    d->loss_scale = from->scale ? from->scale : 1;
    return hvt__model_set_state(m, &s);
}

/* The rider is always all-reduced as f32. */
bool hvt__rider_alone(const hvt_distopt *d)
{
    return d->opts.wire != HVT_F32 || d->opts.powersgd || d->opts.update == HVT_UPDATE_SHARDED || d->words;
}

/* f32 bytes of each bucket, malloc'ed. */
static hvt_status measure(const hvt_bucket *bucket, int n, size_t **ret_bytes)
{
    size_t *bytes = malloc((size_t)n * sizeof *bytes);

    HVT_CHECK(bytes, E_MEM, "no memory for %d buckets", n);
    for (int b = 0; b < n; b++)
        bytes[b] = (bucket[b].end - bucket[b].first) * sizeof(float);
    *ret_bytes = bytes;
    return HVT_OK;
}

hvt_status hvt__distopt_take_plan(hvt_distopt *d, hvt_status mine, hvt_bucket *bucket, int n)
{
    size_t *bytes = NULL;
    hvt_status s;

    s = hvt_world_agree(hvt_comm_world(d->comm), mine == HVT_OK ? measure(bucket, n, &bytes) : mine);
    if (s == HVT_OK && d->sharded)
        s = hvt__sharded_replan(d->sharded, bucket, n);
    if (s != HVT_OK) {
        free(bytes);
        free(bucket);
        return s;
    }
    free(d->bucket);
    free(d->bucket_bytes);
    d->bucket = bucket;
    d->nbucket = n;
    d->bucket_bytes = bytes;
    return HVT_OK;
}

/* All that a rank can make without the others. */
static hvt_status make_local(hvt_distopt *d)
{
    const hvt_model *m = d->optim->m;
    const hvt_device_ops *ops = m->dev->ops;

    HVT_TRY(check_opts(d->optim, d->comm, &d->opts));
    d->shards = d->opts.local_shards * hvt_world_size(hvt_comm_world(d->comm));
    HVT_TRY(choose_update(d));
    d->late = needs_all(d) && d->opts.update == HVT_UPDATE_SHARDED;
    d->words = hvt__ride_words(d);
    HVT_TRY(hvt__bucket_plan(m, &d->opts, hvt__rider_alone(d), &d->bucket, &d->nbucket));
    HVT_TRY(measure(d->bucket, d->nbucket, &d->bucket_bytes));
    d->counts = calloc((size_t)d->shards, sizeof *d->counts);
    HVT_CHECK(d->counts, E_MEM, "no memory for %d shards", d->shards);
    for (int k = 0; (d->opts.local_shards - 1) >> k; k++)
        HVT_TRY(ops->alloc(m->dev, m->arena_count * sizeof(float), (void **)&d->partial[k]));
    if (d->opts.powersgd)
        HVT_TRY(hvt__powersgd_open(d));
    if (d->opts.error_feedback || d->powersgd)
        HVT_TRY(ops->alloc(m->dev, m->arena_count * sizeof(float), (void **)&d->rest));
    return set_scaling(d);
}

hvt_status hvt_distopt_create(hvt_optim *optim, hvt_comm *comm, const hvt_distopt_opts *opts,
                              const hvt_item *items, int n, hvt_distopt **ret_dist)
{
    hvt_world *world = hvt_comm_world(comm);
    hvt_model *m = optim->m;
    hvt_distopt *d = calloc(1, sizeof *d);
    size_t bytes, wire_bytes;
    hvt_status s = HVT_OK;

    if (!d) {
        s = HVT_FAIL(E_MEM, "no memory for a distributed optimizer (%zu bytes)", sizeof *d);
    } else {
        *d = (hvt_distopt){.optim = optim, .comm = comm, .opts = *opts};
        s = make_local(d);
    }
    HVT_TRY_OR(fail, hvt_world_agree(world, s));
    HVT_TRY_OR(fail, hvt__distopt_agree(optim, world, &d->opts, d->bucket, d->nbucket, items, n));
    bytes = m->arena_count * sizeof *d->grads;
    wire_bytes = opts->powersgd          ? hvt__powersgd_bytes(d)
                 : opts->wire == HVT_F32 ? 0
                                         : (m->arena_count * sizeof *d->wire + 63) / 64 * 64;
    /* one block: "auto" falls back whole */
    HVT_TRY_OR(fail, hvt_comm_alloc(comm, bytes + wire_bytes + hvt__ride_bytes(d), (void **)&d->grads));
    if (opts->wire != HVT_F32)
        d->wire = (uint16_t *)(d->grads + m->arena_count);
    if (d->powersgd)
        hvt__powersgd_place(d, d->grads + m->arena_count);
    if (d->words)
        d->ride = (float *)(void *)((char *)d->grads + bytes + wire_bytes);
    HVT_TRY_OR(fail, hvt_world_agree(world, hvt__model_place(m, d->grads)));
    if (d->opts.bucket_bytes == HVT_BUCKET_AUTO)
        HVT_TRY_OR(fail, hvt__timing_open(d));
    if (d->opts.update == HVT_UPDATE_SHARDED)
        HVT_TRY_OR(fail, hvt__sharded_open(optim, comm, d->bucket, d->nbucket, needs_all(d), &d->sharded));
    *ret_dist = d;
    return HVT_OK;
fail:
    hvt_distopt_free(&d);
    return s;
}

static void close_dist(hvt_distopt **dist, bool give_back)
{
    hvt_distopt *d = *dist;
    hvt_model *m;

    *dist = NULL;
    if (!d)
        return;
    m = d->optim->m;
    for (; d->arrived < d->launched; d->arrived++) /* a step that was given up: no peer may still read */
        hvt_comm_wait(d->comm, d->bucket[d->arrived].ticket);
    hvt__sharded_close(&d->sharded, give_back);
    if (d->grads && m->grads == d->grads) {
        if (!give_back)
            m->grads = NULL;
        else if (hvt__model_place(m, NULL) != HVT_OK)
            HVT_WARN("the model is left without gradients: %s", hvt_last_error());
    }
    hvt_comm_release(d->comm, d->grads);
    for (int k = 0; k < HVT__DIST_LEVELS; k++)
        m->dev->ops->release(m->dev, d->partial[k]);
    m->dev->ops->release(m->dev, d->rest);
    hvt__powersgd_close(d);
    hvt__timing_close(&d->timing);
    free(d->counts);
    free(d->bucket_bytes);
    free(d->bucket);
    free(d);
}

void hvt_distopt_free(hvt_distopt **dist)
{
    close_dist(dist, true);
}

void hvt_distopt_discard(hvt_distopt **dist)
{
    close_dist(dist, false);
}

size_t hvt_distopt_state_bytes(const hvt_distopt *d)
{
    const hvt_optim *o = d->optim;
    size_t whole = o->v ? o->m->arena_count : 0;

    return (d->sharded ? hvt__sharded_state(d->sharded) : whole) * sizeof *o->v;
}

hvt_status hvt_distopt_replan(hvt_distopt *d, size_t bucket_bytes, size_t first_bytes)
{
    hvt_bucket *bucket = NULL;
    int n = 0;
    hvt_status s;

    HVT_CHECK(!d->begun, E_ARG, "buckets are planned anew in the middle of a step");
    d->opts.bucket_bytes = bucket_bytes;
    d->opts.first_bytes = first_bytes;
    if (d->timing && bucket_bytes == HVT_BUCKET_AUTO)
        return hvt__timing_replan(d);
    hvt__timing_close(&d->timing);
    s = hvt__bucket_plan(d->optim->m, &d->opts, hvt__rider_alone(d), &bucket, &n);
    HVT_TRY(hvt__distopt_take_plan(d, s, bucket, n));
    return bucket_bytes == HVT_BUCKET_AUTO ? hvt__timing_open(d) : HVT_OK;
}

hvt_status hvt_distopt_broadcast(hvt_distopt *d, int root)
{
    hvt_optim *o = d->optim;
    hvt_model *m = o->m;
    struct {
        int64_t tracked;
        hvt_step_state step;
    } host = {.tracked = m->tracked};

    if (d->sharded)
        HVT_TRY(hvt__sharded_broadcast(d->sharded, root));
    else
        HVT_TRY(hvt_comm_broadcast(d->comm, m->params, m->arena_count * sizeof *m->params, root));
    if (o->v && !d->sharded)
        HVT_TRY(hvt_comm_broadcast(d->comm, o->v, m->arena_count * sizeof *o->v, root));
    if (m->stats_count)
        HVT_TRY(hvt_comm_broadcast(d->comm, m->stats, m->stats_count * sizeof *m->stats, root));
    HVT_TRY(hvt__model_state(m, &host.step));
    HVT_TRY(hvt_world_broadcast(hvt_comm_world(d->comm), &host, sizeof host, root));
    HVT_TRY(hvt__model_set_state(m, &host.step));
    m->tracked = host.tracked;
    d->rest_unit = 0;
    if (d->powersgd)
        HVT_TRY(hvt__powersgd_broadcast(d, root));
    hvt__model_changed(m);
    return HVT_OK;
}

hvt_status hvt_distopt_gather(hvt_distopt *d, int root)
{
    int ranks = hvt_world_size(hvt_comm_world(d->comm));

    HVT_CHECK(root >= -1 && root < ranks, E_ARG, "root %d is not one of %d ranks, nor -1 for all", root,
              ranks);
    HVT_CHECK(!d->begun, E_ARG, "optimizer state is gathered in the middle of a step");
    if (d->powersgd)
        HVT_TRY(hvt__powersgd_gather(d, root));
    return d->sharded ? hvt__sharded_gather(d->sharded, root) : HVT_OK;
}

/* ---- a step: begin, passes, end -------------------------------------------------------------------- */

hvt_status hvt_distopt_begin(hvt_distopt *d, const int *shard_counts, int shards, double lr)
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
    HVT_CHECK(isfinite(lr), E_ARG, "learning rate is %g", lr);
    if (d->sharded)
        HVT_TRY(hvt__sharded_forget(d->sharded));
    if (d->powersgd)
        HVT_TRY(hvt__powersgd_forget(d));
    hvt__trace_step(0);
    if (d->timing)
        HVT_TRY(hvt__timing_begin(d));
    if (d->rest)
        HVT_TRY(hvt__rest_begin(d, images));
    HVT_TRY(hvt__model_begin_step(d->optim->m, images, lr));
    memcpy(d->counts, shard_counts, (size_t)shards * sizeof *d->counts);
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
    if (d->late && b == d->bucket) {
        b->ticket = 0;
        return HVT_OK;
    }
    b->second = false;
    if (hvt__codec_for(d, b)->encode) {
        begin_phase(d, HVT__COMPRESS, b);
        HVT_TRY(hvt__traced(hvt__encode(d, b)));
    }
    begin_phase(d, HVT__LAUNCH, b);
    return hvt__traced(issue(d, b));
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
    if (d->timing && last)
        HVT_TRY(hvt__timing_mark(d, end));
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
    double start = hvt__now();
    hvt_status s;

    begin_phase(d, HVT__EXCHANGE, &d->bucket[bucket]);
    hvt__trace_names(bucket_name, d);
    s = hvt__traced(hvt_comm_wait(d->comm, d->bucket[bucket].ticket));
    hvt__trace_names(NULL, NULL);
    d->exposed += hvt__now() - start - (d->sharded ? hvt__sharded_take_seconds(d->sharded) : 0);
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

    for (size_t at = first < m->rider_count ? m->rider_count : first; at < end; at += n) {
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
        if (needs_all(d))
            HVT_TRY(look_at(d, &d->bucket[d->arrived - 1]));
    } while (needs_all(d) && d->arrived < d->nbucket);
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
        d->begun = false;
    }
    return s;
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
        if (hvt__codec_for(d, &d->bucket[b])->whole && !needs_all(d))
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
