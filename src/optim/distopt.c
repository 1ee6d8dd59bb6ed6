/* The distributed optimizer between steps: options, buckets, memory, saving, loading; step.c has the step. */
#include "dist.h"
#include "base_impl.h"
#include "world/items.h"

#include <math.h>

static hvt_status check_opts(const hvt_distopt *d)
{
    const hvt_distopt_opts *opts = &d->opts;
    const hvt_scaling *scaling = &opts->scaling;
    const hvt_model *m = d->optim->m;

    HVT_CHECK(!scaling->scale ||
                  (isfinite(scaling->scale) && scaling->scale > 0 && scaling->interval >= 0 &&
                   (!scaling->interval || (scaling->floor > 0 && scaling->floor <= scaling->scale))),
              E_ARG,
              "loss scale %g, minimum %g, doubled after %d updates: expected numbers above 0, and a minimum "
              "that is not above the scale",
              scaling->scale, scaling->floor, scaling->interval);
    HVT_CHECK((unsigned)opts->update <= HVT_UPDATE_SHARDED, E_ARG, "update %d, expected 0 to %d",
              (int)opts->update, (int)HVT_UPDATE_SHARDED);
    HVT_CHECK(opts->check_replicas >= 0, E_ARG, "a replica check every %d updates, expected 0 or more",
              opts->check_replicas);
    HVT_CHECK(!opts->check_replicas || m->dev->ops->host, E_UNSUPPORTED,
              "replica checks need a device of the host's memory, not %s", m->dev->ops->name);
    HVT_CHECK(isfinite(opts->clip_norm) && opts->clip_norm >= 0, E_ARG,
              "the clip norm is %g, expected a number above 0, or 0 for none", opts->clip_norm);
    HVT_CHECK(!m->grads_placed, E_ARG, "the model's gradients already belong to a distributed optimizer");
    return HVT_OK;
}

/* Resolves HVT_UPDATE_AUTO. A sharded update's scattered sums and gathered parameters are as many bytes as
 * all-reduced sums, unless the wire has 16 bits: then the extra traffic between hosts costs as much as slices
 * save. */
static hvt_status choose_update(hvt_distopt *d)
{
    const hvt_device *dev = d->optim->m->dev;
    bool sees_all = hvt_comm_can(d->comm) & HVT_COMM_REDUCE_APPLY;
    bool pays = (sees_all || d->codec->wire == HVT_F32) && !d->codec->whole;

    if (d->opts.update == HVT_UPDATE_AUTO)
        d->opts.update =
            d->ranks == 1 || !dev->ops->host || !pays ? HVT_UPDATE_REPLICATED : HVT_UPDATE_SHARDED;
    HVT_CHECK(
        d->opts.update == HVT_UPDATE_REPLICATED || dev->ops->host, E_UNSUPPORTED,
        "device %s has no sharded update: its order of additions would depend on which rank updates what",
        dev->ops->name);
    d->needs_all = d->codec->wire != HVT_F32 || d->opts.scaling.scale != 0 || d->opts.clip_norm > 0 ||
                   d->optim->rule->ratio;
    if (d->opts.update == HVT_UPDATE_REPLICATED)
        d->update_path = &hvt__update_replicated;
    else
        d->update_path = sees_all && !d->needs_all && d->ranks > 1 ? &hvt__update_fused : &hvt__update_sliced;
    return HVT_OK;
}

/* Passes the options to the device. The loss is a sum, whose gradients are `batch` times the mean's, so the
 * scale is divided by that. */
static hvt_status set_step(hvt_distopt *d)
{
    const hvt_scaling *from = &d->opts.scaling;
    hvt_model *m = d->optim->m;
    hvt_step_state s;

    HVT_TRY(hvt__model_state(m, &s));
    s.loss_scale = from->scale ? (float)(from->scale / m->batch) : 1;
    s.floor = (float)(from->floor / m->batch);
    s.interval = from->scale ? from->interval : 0;
    s.good = s.skips_in_row = 0;
    s.clip_norm = d->opts.clip_norm;
    memset(s.squares, 0, sizeof s.squares); /* left by a failed step */
    m->first_scale = s.loss_scale;
    d->loss_scale = from->scale ? from->scale : 1;
    return hvt__model_set_state(m, &s);
}

/* Chooses the order in which gradients are added. Gradients that do not travel as f32 are rounded on their
 * way, so the tree over shards gains nothing: each rank then adds its own and contributes one sum. */
static hvt_status plan_sums(hvt_distopt *d)
{
    const hvt_model *m = d->optim->m;
    hvt__leaves *leaves = NULL;

    if ((d->codec == &hvt__codec_f32 || d->codec->each) && hvt__comm_can_sum(d->comm))
        HVT_TRY(hvt__leaves_plan(d->ranks, d->first_of, d->codec->each, &leaves));
    d->sums.leaves = leaves;
    d->sums.stride = m->grad_count;
    return leaves ? hvt__comm_reserve(d->comm, leaves) : HVT_OK;
}

/* Allocates memory for this rank's passes; keeps memory that is allocated already. */
static hvt_status alloc_passes(hvt_distopt *d)
{
    const hvt_model *m = d->optim->m;
    const int local = d->opts.local_shards;
    size_t *mark = realloc(d->mark, (size_t)local * sizeof *mark);

    HVT_CHECK(mark, E_MEM, "no memory for %d shards", local);
    d->mark = mark;
    for (int k = 0; (local - 1) >> k; k++)
        if (!d->partial[k])
            HVT_TRY(
                m->dev->ops->memory.alloc(m->dev, m->grad_count * sizeof(float), (void **)&d->partial[k]));
    return HVT_OK;
}

/* Creates everything that needs no other rank. */
static hvt_status make_local(hvt_distopt *d)
{
    const hvt_model *m = d->optim->m;

    HVT_TRY(check_opts(d));
    HVT_TRY(hvt__codec_pick(d->optim, &d->opts, &d->codec));
    HVT_TRY(choose_update(d));
    d->stats_alone = d->codec != &hvt__codec_f32 || d->opts.update == HVT_UPDATE_SHARDED;
    d->shards = d->first_of[d->ranks];
    HVT_TRY(plan_sums(d));
    HVT_TRY(hvt__bucket_plan(m, &d->opts, d->codec, d->stats_alone, &d->bucket, &d->nbucket));
    d->counts = calloc((size_t)d->shards, sizeof *d->counts);
    HVT_CHECK(d->counts, E_MEM, "no memory for %d shards", d->shards);
    d->g = calloc((size_t)d->ranks, sizeof *d->g);
    HVT_CHECK(d->g, E_MEM, "no memory for the gradients of %d ranks", d->ranks);
    HVT_TRY(alloc_passes(d));
    if (d->codec->open)
        HVT_TRY(d->codec->open(d));
    return set_step(d);
}

/* Opens the model's sync, if local shards run together. Collective. */
static hvt_status open_shards(hvt_distopt *d)
{
    hvt_model *m = d->optim->m;
    const hvt__sync_opts opts = {
        .first = d->first_of[d->rank], .local = d->opts.local_shards, .all = d->shards};

    if (d->opts.sync_batchnorm)
        return hvt__moments_open(d);
    return hvt_world_agree(d->world, hvt__model_is_split(m) ? hvt__sync_open(m, &opts) : HVT_OK);
}

static void close_shards(hvt_distopt *d)
{
    hvt__moments_close(d);
    hvt__sync_close(d->optim->m);
}

/* Allocates one block of the comm's memory, so that "auto" falls back as a whole. */
static hvt_status make_shared(hvt_distopt *d)
{
    hvt_model *m = d->optim->m;
    size_t grads = m->grad_count * sizeof *d->grads, flags = hvt__flags_bytes(d), trust = hvt__trust_bytes(d);
    size_t extra = d->sums.leaves ? (size_t)(d->sums.leaves->most - 1) * grads : 0;
    char *block;

    HVT_TRY(hvt_comm_alloc(d->comm, grads + extra + d->coded_bytes + flags + trust, (void **)&d->grads));
    block = (char *)d->grads;
    if (extra) {
        d->sums.extra = d->grads + m->grad_count;
        d->leaves_room = d->sums.leaves->most - 1;
    }
    d->coded = block + grads + extra;
    if (flags)
        d->flags = (float *)(void *)(block + grads + extra + d->coded_bytes);
    if (trust)
        d->squares = (float *)(void *)(block + grads + extra + d->coded_bytes + flags);
    HVT_TRY(open_shards(d)); /* after the comm of the gradients is chosen */
    HVT_TRY(hvt_world_agree(d->world, hvt__model_place(m, d->grads)));
    return d->opts.update == HVT_UPDATE_SHARDED ? hvt__slices_open(d) : HVT_OK;
}

/* Sets first_of[ranks + 1], the shards of each rank. Errors are the same on all ranks. */
static hvt_status share_shards(hvt_world *w, int mine, int *first_of)
{
    const int ranks = hvt_world_size(w);
    int64_t sum = 0;

    HVT_TRY(hvt_world_allgather(w, &mine, sizeof mine, first_of));
    for (int r = 0; r < ranks; r++) {
        const int local = first_of[r];

        HVT_CHECK(local > 0 && local <= INT32_MAX - sum, E_ARG,
                  "%d shards per rank (rank %d), expected 1 or more", local, r);
        first_of[r] = (int)sum;
        sum += local;
    }
    first_of[ranks] = (int)sum;
    return HVT_OK;
}

/* Allocates d's lists on every rank or on none, and finds out which rank holds which shards. */
static hvt_status make_first(hvt_distopt *d, hvt_comm *comm)
{
    hvt_status s = HVT_OK;

    if (d)
        d->first_of = calloc((size_t)d->ranks + 1, sizeof *d->first_of);
    if (!d || !d->first_of)
        s = HVT_FAIL(E_MEM, "no memory for a distributed optimizer (%zu bytes)", sizeof *d);
    HVT_TRY(hvt_world_agree(hvt_comm_world(comm), s));
    HVT_TRY(hvt_world_agree(d->world, share_shards(d->world, d->opts.local_shards, d->first_of)));
    return hvt_world_agree(d->world, make_local(d));
}

hvt_status hvt_distopt_create(hvt_optim *optim, hvt_comm *comm, const hvt_distopt_opts *opts,
                              const hvt_item *items, int n, hvt_distopt **ret_dist)
{
    hvt_distopt *d;
    hvt_status s;

    HVT_GIVEN(comm, "a comm");
    HVT_GIVEN(optim, "an optimizer");
    HVT_GIVEN(opts, "options");
    HVT_GIVEN(ret_dist, "an output pointer for the distributed optimizer");
    HVT_CHECK(n >= 0 && (items || !n), E_ARG, "%d items to compare, but no list of them", n);
    d = calloc(1, sizeof *d);
    if (d) {
        *d = (hvt_distopt){.optim = optim, .comm = comm, .world = hvt_comm_world(comm), .opts = *opts};
        d->rank = hvt_world_rank(d->world);
        d->ranks = hvt_world_size(d->world);
        hvt__use(&optim->users, HVT__USER_DISTOPT, 1);
    }
    HVT_TRY_OR(fail, make_first(d, comm));
    HVT_TRY_OR(fail, hvt__distopt_agree(d, items, n));
    HVT_TRY_OR(fail, make_shared(d));
    *ret_dist = d;
    return HVT_OK;
fail:
    hvt_distopt_free(&d);
    return s;
}

/* Reserves arenas for the leaves of a division of shards. Collective. */
static hvt_status reserve_leaves(hvt_distopt *d)
{
    const int need = d->sums.leaves ? d->sums.leaves->most - 1 : 0;
    void *more;

    if (need <= d->leaves_room)
        return HVT_OK;
    HVT_TRY(hvt_comm_alloc(d->comm, (size_t)need * d->sums.stride * sizeof(float), &more));
    hvt_comm_release(d->comm, d->leaves);
    d->leaves = d->sums.extra = more;
    d->leaves_room = need;
    return HVT_OK;
}

/* Takes over the new division, first_of. Collective. */
static hvt_status take_division(hvt_distopt *d, int *first_of)
{
    free(d->first_of);
    free(d->sums.leaves);
    d->sums.leaves = NULL;
    d->first_of = first_of;
    d->opts.local_shards = first_of[d->rank + 1] - first_of[d->rank];
    HVT_TRY(hvt_world_agree(d->world, plan_sums(d)));
    HVT_TRY(hvt_world_agree(d->world, alloc_passes(d)));
    HVT_TRY(reserve_leaves(d));
    close_shards(d);
    return open_shards(d);
}

hvt_status hvt_distopt_divide(hvt_distopt *d, int local_shards)
{
    int *first_of;
    hvt_status s;

    HVT_GIVEN(d, "a distributed optimizer");
    first_of = calloc((size_t)d->ranks + 1, sizeof *first_of);
    s = d->begun    ? HVT_FAIL(E_ARG, "shards are divided anew in the middle of a step")
        : !first_of ? HVT_FAIL(E_MEM, "no memory for the shards of %d ranks", d->ranks)
                    : HVT_OK;
    HVT_TRY_OR(fail, hvt_world_agree(d->world, s));
    HVT_TRY_OR(fail, hvt_world_agree(d->world, share_shards(d->world, local_shards, first_of)));
    HVT_CHECK_OR(fail, first_of[d->ranks] == d->shards, E_ARG, "the ranks' shards are %d in all, expected %d",
                 first_of[d->ranks], d->shards);
    return take_division(d, first_of);
fail:
    free(first_of);
    return s;
}

/* Restores the weights before the model gets its own memory back. */
static void put_weights_back(hvt_distopt *d)
{
    bool whole = d->grads && d->optim->m->grads == d->grads;

    if (whole && d->optim->is_averaged && hvt_distopt_use_average(d, false) != HVT_OK)
        HVT_WARN("the model keeps the average of its weights: %s", hvt_last_error());
}

static void close_dist(hvt_distopt **dist, bool give_back)
{
    hvt_distopt *d = dist ? *dist : NULL;
    hvt_model *m;

    if (!d)
        return;
    *dist = NULL;
    m = d->optim->m;
    if (give_back)
        put_weights_back(d);
    close_shards(d);
    hvt__slices_close(d, give_back);
    if (d->grads && m->grads == d->grads) {
        if (!give_back)
            m->grads = NULL;
        else if (hvt__model_place(m, NULL) != HVT_OK)
            HVT_WARN("the model is left without gradients: %s", hvt_last_error());
    }
    hvt_comm_release(d->comm, d->leaves);
    hvt_comm_release(d->comm, d->grads); /* waits for a step that was given up: peers may still read */
    for (int k = 0; k < HVT__DIST_LEVELS; k++)
        m->dev->ops->memory.release(m->dev, d->partial[k]);
    if (d->codec && d->codec->close)
        d->codec->close(d);
    hvt__use(&d->optim->users, HVT__USER_DISTOPT, -1);
    free(d->g);
    free(d->sums.leaves);
    free(d->first_of);
    free(d->counts);
    free(d->mark);
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
    s = d->begun ? HVT_FAIL(E_ARG, "buckets cannot be replanned in the middle of a step")
                 : hvt__ema_check_place(d->optim, "replanning buckets");
    HVT_TRY(hvt_world_agree(d->world, s));
    hvt__items_add(&items, "bucket bytes\t%zu", bucket_bytes); /* other buckets are other sums */
    hvt__items_add(&items, "first bucket's bytes\t%zu", first_bytes);
    HVT_TRY(hvt__items_compare(&items, d->world));
    s = hvt__bucket_plan(d->optim->m, &opts, d->codec, d->stats_alone, &bucket, &n);
    s = hvt_world_agree(d->world, s);
    if (s == HVT_OK)
        s = hvt__slices_replan(d, bucket, n);
    if (s != HVT_OK) {
        free(bucket);
        return s;
    }
    free(d->bucket);
    d->bucket = bucket;
    d->nbucket = n;
    d->opts = opts; /* all ranks have the new plan; until here the old plan applies */
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
    HVT_CHECK(!d->begun, E_ARG, "parameters cannot be broadcast in the middle of a step");
    HVT_TRY(hvt__ema_check_place(d->optim, "a broadcast"));
    HVT_TRY(hvt__slices_broadcast(d, root));
    if (m->stats_count)
        HVT_TRY(hvt_comm_broadcast(d->comm, m->stats, m->stats_count * sizeof *m->stats, root));
    if (m->stats_count && d->optim->ema_stats)
        HVT_TRY(hvt_comm_broadcast(d->comm, d->optim->ema_stats, m->stats_count * sizeof *m->stats, root));
    HVT_TRY(hvt__model_state(m, &host.step));
    HVT_TRY(hvt_world_broadcast(d->world, &host, sizeof host, root));
    HVT_TRY(hvt__model_set_state(m, &host.step));
    m->tracked = host.tracked;
    if (d->codec->broadcast)
        HVT_TRY(d->codec->broadcast(d, root));
    hvt__model_changed(m);
    return HVT_OK;
}

hvt_status hvt_distopt_gather(hvt_distopt *d, int root)
{
    HVT_GIVEN(d, "a distributed optimizer");
    HVT_CHECK(root >= -1 && root < d->ranks, E_ARG, "root %d is not one of %d ranks, nor -1 for all", root,
              d->ranks);
    HVT_CHECK(!d->begun, E_ARG, "optimizer state cannot be gathered in the middle of a step");
    HVT_TRY(hvt__ema_check_place(d->optim, "a gather"));
    if (d->codec->gather)
        HVT_TRY(d->codec->gather(d, root));
    return hvt__slices_gather(d, root);
}
