/*
 * The distributed optimizer's life: from options to buckets and memory, and what happens to it between steps.
 * A step is in step.c.
 */
#include "dist.h"
#include "base_impl.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static hvt_status check_opts(const hvt_optim *o, const hvt_comm *comm, const hvt_distopt_opts *opts)
{
    const hvt_scaling *scaling = &opts->scaling;

    HVT_CHECK(hvt__codec_of(opts->wire), E_ARG, "wire type is %s, expected f32, f16 or bf16",
              hvt_dtype_name(opts->wire));
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
bool hvt__needs_all(const hvt_distopt *d)
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
    bool pays =
        ((hvt_comm_can(d->comm) & HVT_COMM_REDUCE_APPLY) || d->opts.wire == HVT_F32) && !d->opts.powersgd;

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
    m->first_scale = s.loss_scale;
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

/* New buckets for those that are there; they become d's. mine: whether this rank has them, else those that
 * are there stay on all ranks. Collective. */
static hvt_status take_plan(hvt_distopt *d, hvt_status mine, hvt_bucket *bucket, int n)
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
    d->late = hvt__needs_all(d) && d->opts.update == HVT_UPDATE_SHARDED;
    d->words = hvt__ride_words(d);
    HVT_TRY(hvt__bucket_plan(m, &d->opts, hvt__rider_alone(d), &d->bucket, &d->nbucket));
    HVT_TRY(measure(d->bucket, d->nbucket, &d->bucket_bytes));
    d->counts = calloc((size_t)d->shards, sizeof *d->counts);
    HVT_CHECK(d->counts, E_MEM, "no memory for %d shards", d->shards);
    for (int k = 0; (d->opts.local_shards - 1) >> k; k++)
        HVT_TRY(ops->alloc(m->dev, m->arena_count * sizeof(float), (void **)&d->partial[k]));
    if (d->opts.powersgd)
        HVT_TRY(hvt__powersgd_open(d));
    if (d->powersgd)
        HVT_TRY(ops->alloc(m->dev, m->arena_count * sizeof(float), (void **)&d->rest));
    return set_scaling(d);
}

hvt_status hvt_distopt_create(hvt_optim *optim, hvt_comm *comm, const hvt_distopt_opts *opts,
                              const hvt_item *items, int n, hvt_distopt **ret_dist)
{
    hvt_world *world;
    hvt_model *m;
    hvt_distopt *d = NULL;
    size_t bytes, wire_bytes;
    hvt_status s = HVT_OK;

    HVT_GIVEN(comm, "a comm");
    HVT_GIVEN(optim, "an optimizer");
    HVT_GIVEN(opts, "options");
    HVT_GIVEN(ret_dist, "a place for the distributed optimizer");
    HVT_CHECK(n >= 0 && (items || !n), E_ARG, "%d items to compare, but no list of them", n);
    world = hvt_comm_world(comm);
    m = optim->m;
    d = calloc(1, sizeof *d);
    if (!d) {
        s = HVT_FAIL(E_MEM, "no memory for a distributed optimizer (%zu bytes)", sizeof *d);
    } else {
        *d = (hvt_distopt){.optim = optim, .comm = comm, .opts = *opts, .inits = m->inits};
        hvt__use(&optim->users, HVT__USER_DISTOPT, 1);
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
    if (d->opts.update == HVT_UPDATE_SHARDED)
        HVT_TRY_OR(fail,
                   hvt__sharded_open(optim, comm, d->bucket, d->nbucket, hvt__needs_all(d), &d->sharded));
    *ret_dist = d;
    return HVT_OK;
fail:
    hvt_distopt_free(&d);
    return s;
}

static void close_dist(hvt_distopt **dist, bool give_back)
{
    hvt_distopt *d = dist ? *dist : NULL;
    hvt_model *m;

    if (!d)
        return;
    *dist = NULL;
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
    hvt__use(&d->optim->users, HVT__USER_DISTOPT, -1);
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
    const hvt_optim *o = d ? d->optim : NULL;
    size_t whole = o && o->v ? o->m->arena_count : 0;

    if (!o)
        return 0;
    return (d->sharded ? hvt__sharded_state(d->sharded) : whole) * sizeof *o->v;
}

/* Ranks with other buckets would issue other sums. */
static hvt_status compare_plan(hvt_world *w, size_t bucket_bytes, size_t first_bytes)
{
    char values[2][24];
    const hvt_item items[] = {{"bucket bytes", values[0]}, {"first bucket's bytes", values[1]}};

    snprintf(values[0], sizeof values[0], "%zu", bucket_bytes);
    snprintf(values[1], sizeof values[1], "%zu", first_bytes);
    return hvt_world_compare(w, items, 2);
}

hvt_status hvt_distopt_replan(hvt_distopt *d, size_t bucket_bytes, size_t first_bytes)
{
    hvt_distopt_opts opts;
    hvt_bucket *bucket = NULL;
    int n = 0;
    hvt_status s;

    HVT_CHECK(d, E_ARG, "no distributed optimizer to plan buckets for");
    opts = d->opts;
    opts.bucket_bytes = bucket_bytes;
    opts.first_bytes = first_bytes;
    s = d->begun ? HVT_FAIL(E_ARG, "buckets are planned anew in the middle of a step") : HVT_OK;
    HVT_TRY(hvt_world_agree(hvt_comm_world(d->comm), s));
    HVT_TRY(compare_plan(hvt_comm_world(d->comm), bucket_bytes, first_bytes));
    s = hvt__bucket_plan(d->optim->m, &opts, hvt__rider_alone(d), &bucket, &n);
    HVT_TRY(take_plan(d, s, bucket, n));
    d->opts = opts; /* all ranks have the new plan; until then the old one holds */
    return HVT_OK;
}

hvt_status hvt_distopt_broadcast(hvt_distopt *d, int root)
{
    hvt_optim *o = d ? d->optim : NULL;
    hvt_model *m = o ? o->m : NULL;
    struct {
        int64_t tracked;
        hvt_step_state step;
    } host = {.tracked = m ? m->tracked : 0};

    HVT_GIVEN(d, "a distributed optimizer");
    HVT_CHECK(!d->begun, E_ARG, "parameters are broadcast in the middle of a step");
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
    int ranks;

    HVT_GIVEN(d, "a distributed optimizer");
    ranks = hvt_world_size(hvt_comm_world(d->comm));
    HVT_CHECK(root >= -1 && root < ranks, E_ARG, "root %d is not one of %d ranks, nor -1 for all", root,
              ranks);
    HVT_CHECK(!d->begun, E_ARG, "optimizer state is gathered in the middle of a step");
    if (d->powersgd)
        HVT_TRY(hvt__powersgd_gather(d, root));
    return d->sharded ? hvt__sharded_gather(d->sharded, root) : HVT_OK;
}
