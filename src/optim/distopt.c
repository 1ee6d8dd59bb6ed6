/*
 * The distributed optimizer's life: from options to buckets and memory, and what happens to it between steps.
 * A step is in step.c.
 */
#include "dist.h"
#include "base_impl.h"
#include "world/items.h"

#include <math.h>
#include <stdlib.h>

static hvt_status check_opts(const hvt_optim *o, const hvt_comm *comm, const hvt_distopt_opts *opts)
{
    const hvt_scaling *scaling = &opts->scaling;

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

/* AUTO becomes what it means here. Sums that go half the way and parameters that come back are as many bytes
 * as sums that go and come back, unless those are of 16 bits: then slices save nothing that the extra traffic
 * between hosts does not cost. */
static hvt_status choose_update(hvt_distopt *d)
{
    const hvt_device *dev = d->optim->m->dev;
    bool alone = hvt_world_size(hvt_comm_world(d->comm)) == 1;
    bool pays =
        ((hvt_comm_can(d->comm) & HVT_COMM_REDUCE_APPLY) || d->codec->wire == HVT_F32) && !d->codec->whole;

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

static const hvt__way *pick_way(const hvt_distopt *d)
{
    if (d->opts.update == HVT_UPDATE_REPLICATED)
        return &hvt__way_replicated;
    if (d->needs_all)
        return &hvt__way_sliced_flagged;
    if ((hvt_comm_can(d->comm) & HVT_COMM_REDUCE_APPLY) && hvt_world_size(hvt_comm_world(d->comm)) > 1)
        return &hvt__way_fused;
    return &hvt__way_sliced;
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
    if (s == HVT_OK)
        s = hvt__slices_replan(d, bucket, n);
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
    size_t ranks = (size_t)hvt_world_size(hvt_comm_world(d->comm));

    HVT_TRY(check_opts(d->optim, d->comm, &d->opts));
    HVT_TRY(hvt__codec_pick(d->optim, &d->opts, &d->codec));
    HVT_TRY(choose_update(d));
    d->needs_all = d->codec->wire != HVT_F32 || d->opts.scaling.scale != 0;
    d->stats_alone = d->codec != &hvt__codec_f32 || d->opts.update == HVT_UPDATE_SHARDED;
    d->shards = d->opts.local_shards * (int)ranks;
    HVT_TRY(hvt__bucket_plan(m, &d->opts, d->codec, d->stats_alone, &d->bucket, &d->nbucket));
    HVT_TRY(measure(d->bucket, d->nbucket, &d->bucket_bytes));
    d->counts = calloc((size_t)d->shards, sizeof *d->counts);
    HVT_CHECK(d->counts, E_MEM, "no memory for %d shards", d->shards);
    d->g = calloc(ranks, sizeof *d->g);
    d->at = calloc(ranks, sizeof *d->at);
    HVT_CHECK(d->g && d->at, E_MEM, "no memory for the gradients of %zu ranks", ranks);
    for (int k = 0; (d->opts.local_shards - 1) >> k; k++)
        HVT_TRY(ops->alloc(m->dev, m->arena_count * sizeof(float), (void **)&d->partial[k]));
    if (d->codec->open)
        HVT_TRY(d->codec->open(d));
    return set_scaling(d);
}

/* The comm's memory: one block, so that "auto" falls back whole. */
static hvt_status make_shared(hvt_distopt *d)
{
    hvt_model *m = d->optim->m;
    size_t grads = m->arena_count * sizeof *d->grads, coded = d->codec->bytes ? d->codec->bytes(d) : 0;
    char *block;

    HVT_TRY(hvt_comm_alloc(d->comm, grads + coded + hvt__flags_bytes(d), (void **)&d->grads));
    block = (char *)d->grads;
    if (coded)
        d->codec->place(d, block + grads);
    if (hvt__flags_bytes(d))
        d->flags = (float *)(void *)(block + grads + coded);
    HVT_TRY(hvt_world_agree(hvt_comm_world(d->comm), hvt__model_place(m, d->grads)));
    d->way = pick_way(d);
    return d->opts.update == HVT_UPDATE_SHARDED ? hvt__slices_open(d) : HVT_OK;
}

hvt_status hvt_distopt_create(hvt_optim *optim, hvt_comm *comm, const hvt_distopt_opts *opts,
                              const hvt_item *items, int n, hvt_distopt **ret_dist)
{
    hvt_distopt *d = NULL;
    hvt_status s = HVT_OK;

    HVT_GIVEN(comm, "a comm");
    HVT_GIVEN(optim, "an optimizer");
    HVT_GIVEN(opts, "options");
    HVT_GIVEN(ret_dist, "a place for the distributed optimizer");
    HVT_CHECK(n >= 0 && (items || !n), E_ARG, "%d items to compare, but no list of them", n);
    d = calloc(1, sizeof *d);
    if (!d) {
        s = HVT_FAIL(E_MEM, "no memory for a distributed optimizer (%zu bytes)", sizeof *d);
    } else {
        *d = (hvt_distopt){.optim = optim, .comm = comm, .opts = *opts};
        hvt__use(&optim->users, HVT__USER_DISTOPT, 1);
        s = make_local(d);
    }
    HVT_TRY_OR(fail, hvt_world_agree(hvt_comm_world(comm), s));
    HVT_TRY_OR(fail, hvt__distopt_agree(d, items, n));
    HVT_TRY_OR(fail, make_shared(d));
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
    hvt__slices_close(d, give_back);
    if (d->grads && m->grads == d->grads) {
        if (!give_back)
            m->grads = NULL;
        else if (hvt__model_place(m, NULL) != HVT_OK)
            HVT_WARN("the model is left without gradients: %s", hvt_last_error());
    }
    hvt_comm_release(d->comm, d->grads);
    for (int k = 0; k < HVT__DIST_LEVELS; k++)
        m->dev->ops->release(m->dev, d->partial[k]);
    if (d->codec && d->codec->close)
        d->codec->close(d);
    hvt__use(&d->optim->users, HVT__USER_DISTOPT, -1);
    free(d->g);
    free(d->at);
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
    return d ? hvt__slices_state(d) * sizeof *d->optim->v : 0;
}

hvt_status hvt_distopt_replan(hvt_distopt *d, size_t bucket_bytes, size_t first_bytes)
{
    hvt_distopt_opts opts;
    hvt_bucket *bucket = NULL;
    hvt__items items = {0};
    int n = 0;
    hvt_status s;

    HVT_CHECK(d, E_ARG, "no distributed optimizer to plan buckets for");
    opts = d->opts;
    opts.bucket_bytes = bucket_bytes;
    opts.first_bytes = first_bytes;
    s = d->begun ? HVT_FAIL(E_ARG, "buckets are planned anew in the middle of a step") : HVT_OK;
    HVT_TRY(hvt_world_agree(hvt_comm_world(d->comm), s));
    hvt__items_add(&items, "bucket bytes\t%zu", bucket_bytes); /* other buckets would be other sums */
    hvt__items_add(&items, "first bucket's bytes\t%zu", first_bytes);
    HVT_TRY(hvt__items_compare(&items, hvt_comm_world(d->comm)));
    s = hvt__bucket_plan(d->optim->m, &opts, d->codec, d->stats_alone, &bucket, &n);
    HVT_TRY(take_plan(d, s, bucket, n));
    d->opts = opts; /* all ranks have the new plan; until then the old one holds */
    return HVT_OK;
}

hvt_status hvt_distopt_broadcast(hvt_distopt *d, int root)
{
    hvt_model *m = d ? d->optim->m : NULL;
    struct {
        int64_t tracked;
        hvt_step_state step;
    } host = {.tracked = m ? m->tracked : 0};

    HVT_GIVEN(d, "a distributed optimizer");
    HVT_CHECK(!d->begun, E_ARG, "parameters are broadcast in the middle of a step");
    HVT_TRY(hvt__slices_broadcast(d, root));
    if (m->stats_count)
        HVT_TRY(hvt_comm_broadcast(d->comm, m->stats, m->stats_count * sizeof *m->stats, root));
    HVT_TRY(hvt__model_state(m, &host.step));
    HVT_TRY(hvt_world_broadcast(hvt_comm_world(d->comm), &host, sizeof host, root));
    HVT_TRY(hvt__model_set_state(m, &host.step));
    m->tracked = host.tracked;
    if (d->codec->broadcast)
        HVT_TRY(d->codec->broadcast(d, root));
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
    if (d->codec->gather)
        HVT_TRY(d->codec->gather(d, root));
    return hvt__slices_gather(d, root);
}
