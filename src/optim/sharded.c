/*
 * The sharded update: of each bucket a slice for every rank to update, for all of them.
 *
 * Where all ranks see each other's memory there is one copy of parameters and state. A rank reads its slice
 * of all ranks' gradients, adds them along the tree, and updates the shared parameters, in one pass of the
 * device's: this is the fused way. No sum is ever written, and there is nothing to gather.
 *
 * Elsewhere, and where no parameter may be touched before all sums have come, a reduce_scatter leaves each
 * rank its slice of the sum, and after the update an allgather hands the new parameters out. Parameters are
 * then one copy for the ranks of a node, or, where nothing can be shared, one for each rank. Optimizer state
 * is never handed out: each rank keeps that of its slices, which lie one after the other in its memory
 * (o->v, o->v_at). To be saved it is gathered, to be loaded it is spread; the gradient arena, which holds
 * nothing between steps, is where it lies on the way.
 *
 * The bits are those of an allreduce and an update on every rank, because an update is elementwise and a
 * comm's reduce_scatter adds as its allreduce does.
 *
 * Invariant: parameters are written between the moment at which every rank that shares them has finished its
 * backward pass over them and the end of the comm's last operation on them, which no rank leaves before all
 * have written. So nobody reads them meanwhile, and no flag of their own is needed.
 */
#include "optim_impl.h"
#include "base/trace.h"

#include <stdlib.h>

struct hvt_sharded {
    hvt_optim *o;       /* borrowed */
    hvt_comm *comm;     /* borrowed */
    hvt_bucket *bucket; /* borrowed */
    int nbucket;
    bool fused;
    float *params;         /* one block for a node's ranks; NULL: they have their own */
    float *v;              /* one block for all ranks; NULL: slices, or no state */
    const float **g, **at; /* [ranks] a slice of the gradients of each */
    double seconds;
    bool open; /* the step is settled: slices that come are to be updated, not passed over */
};

/* ---- life ---- */

/* State in memory of this rank's own; slices that were not gathered are lost with the others'. */
static hvt_status take_back_state(hvt_sharded *s)
{
    hvt_optim *o = s->o;
    hvt_model *m = o->m;
    size_t bytes = m->arena_count * sizeof *o->v;
    void *own = o->whole;

    if (!o->sliced && (!s->v || o->v != s->v))
        return HVT_OK;
    if (!own)
        HVT_TRY(m->dev->ops->alloc(m->dev, bytes, &own));
    if (!o->sliced) {
        HVT_TRY(m->dev->ops->copy(m->dev, own, s->v, bytes));
    } else {
        if (!o->whole)
            HVT_TRY(hvt__optim_set_fresh(o, true));
        m->dev->ops->release(m->dev, o->v);
    }
    o->v = own;
    o->v_at = 0;
    o->sliced = o->loaded = false;
    o->whole = NULL;
    return HVT_OK;
}

/* What this rank can fail at alone: copies of its own, before the shared ones go. */
static hvt_status take_back(hvt_sharded *s)
{
    hvt_model *m = s->o->m;

    if (s->params && m->params == s->params)
        HVT_TRY(hvt__model_place_params(m, NULL));
    return take_back_state(s);
}

/* The model's and the optimizer's are gone with ours. */
static void let_go(hvt_sharded *s)
{
    if (s->params && s->o->m->params == s->params)
        s->o->m->params = NULL;
    if (s->v && s->o->v == s->v)
        s->o->v = NULL;
}

void hvt__sharded_close(hvt_sharded **sharded, bool give_back)
{
    hvt_sharded *s = *sharded;

    *sharded = NULL;
    if (!s)
        return;
    if (give_back && take_back(s) != HVT_OK) {
        HVT_WARN("the model is left without parameters: %s", hvt_last_error());
        give_back = false;
    }
    if (!give_back)
        let_go(s);
    hvt_comm_release(s->comm, s->v);
    hvt_comm_release(s->comm, s->params);
    free(s->g);
    free(s->at);
    free(s);
}

/* A shared block with the values of the lowest of the ranks that share it. */
static hvt_status share(hvt_sharded *s, const float *mine, float **ret_block)
{
    hvt_model *m = s->o->m;
    hvt_world *world = hvt_comm_world(s->comm);
    size_t bytes = m->arena_count * sizeof *mine;
    void *block = NULL;

    HVT_TRY(hvt_comm_share(s->comm, bytes, &block));
    *ret_block = block;
    return hvt_world_agree(
        world, hvt_world_local_rank(world) ? HVT_OK : m->dev->ops->copy(m->dev, block, mine, bytes));
}

/* Which slices are mine, and how many elements they have. */
static size_t cut(hvt_sharded *s)
{
    int rank = hvt_world_rank(hvt_comm_world(s->comm));
    size_t at = 0;

    for (hvt_bucket *b = s->bucket + 1; b < s->bucket + s->nbucket; b++) {
        hvt_comm_slice(s->comm, b->end - b->first, rank, &b->own_first, &b->own_end);
        b->own_first += b->first;
        b->own_end += b->first;
        b->own_at = at;
        at += b->own_end - b->own_first;
    }
    return at;
}

size_t hvt__sharded_state(const hvt_sharded *s)
{
    const hvt_bucket *last = s->bucket + s->nbucket - 1;

    if (s->v)
        return s->o->m->arena_count / (size_t)hvt_world_local_size(hvt_comm_world(s->comm));
    if (!s->o->v)
        return 0;
    return s->nbucket > 1 ? last->own_at + last->own_end - last->own_first : 0;
}

static hvt_status copy_slices(hvt_sharded *s, float *slices, const float *whole)
{
    hvt_device *dev = s->o->m->dev;

    for (const hvt_bucket *b = s->bucket + 1; b < s->bucket + s->nbucket; b++)
        if (b->own_first < b->own_end)
            HVT_TRY(dev->ops->copy(dev, slices + b->own_at, whole + b->own_first,
                                   (b->own_end - b->own_first) * sizeof *slices));
    return HVT_OK;
}

static hvt_status prepare(hvt_sharded *s, int ranks)
{
    s->g = calloc((size_t)ranks, sizeof *s->g);
    s->at = calloc((size_t)ranks, sizeof *s->at);
    HVT_CHECK(s->g && s->at, E_MEM, "no memory for the gradients of %d ranks", ranks);
    return HVT_OK;
}

/* This rank's slices of `whole` in memory of their own. */
static hvt_status make_slices(hvt_sharded *s, size_t count, const float *whole, float **ret_slices)
{
    hvt_device *dev = s->o->m->dev;
    void *slices;
    hvt_status status;

    HVT_TRY(dev->ops->alloc(dev, (count ? count : 1) * sizeof *whole, &slices));
    status = copy_slices(s, slices, whole);
    if (status == HVT_OK)
        *ret_slices = slices;
    else
        dev->ops->release(dev, slices);
    return status;
}

/* All of the state stays until it is told what it is to be. */
static hvt_status slice_state(hvt_sharded *s, size_t count)
{
    hvt_optim *o = s->o;
    float *slices;

    HVT_TRY(make_slices(s, count, o->v, &slices));
    o->whole = o->v;
    o->v = slices;
    o->sliced = true;
    return HVT_OK;
}

static hvt_status open_all(hvt_sharded *s)
{
    hvt_optim *o = s->o;
    hvt_world *world = hvt_comm_world(s->comm);
    size_t count = cut(s);

    if (hvt_comm_can(s->comm) & HVT_COMM_SHARE)
        HVT_TRY(share(s, o->m->params, &s->params));
    if (o->v && (hvt_comm_can(s->comm) & HVT_COMM_REDUCE_APPLY))
        HVT_TRY(share(s, o->v, &s->v));
    else if (o->v)
        HVT_TRY(hvt_world_agree(world, slice_state(s, count)));
    if (s->params)
        HVT_TRY(hvt_world_agree(world, hvt__model_place_params(o->m, s->params)));
    if (s->v) {
        o->m->dev->ops->release(o->m->dev, o->v);
        o->v = s->v;
    }
    return HVT_OK;
}

hvt_status hvt__sharded_open(hvt_optim *o, hvt_comm *comm, hvt_bucket *bucket, int nbucket, bool needs_all,
                             hvt_sharded **ret_sharded)
{
    hvt_world *world = hvt_comm_world(comm);
    hvt_sharded *s = calloc(1, sizeof *s);
    hvt_status status = HVT_OK;

    if (s) {
        *s = (hvt_sharded){.o = o,
                           .comm = comm,
                           .bucket = bucket,
                           .nbucket = nbucket,
                           .fused = (hvt_comm_can(comm) & HVT_COMM_REDUCE_APPLY) && !needs_all &&
                                    hvt_world_size(world) > 1};
        status = prepare(s, hvt_world_size(world));
    } else {
        status = HVT_FAIL(E_MEM, "no memory for a sharded update (%zu bytes)", sizeof *s);
    }
    status = hvt_world_agree(world, status);
    if (status == HVT_OK)
        status = open_all(s);
    if (status != HVT_OK) {
        hvt__sharded_close(&s, true);
        return hvt__pass(status, __FILE__, __LINE__, "sharded");
    }
    *ret_sharded = s;
    return HVT_OK;
}

/* ---- a step, fused ---- */

bool hvt__sharded_fused(const hvt_sharded *s)
{
    return s->fused;
}

/* This rank's slice of a bucket; in[r]: the bucket in rank r's gradients. */
static hvt_status update_slice(void *ctx, size_t first, size_t end, const void *const in[], int ranks)
{
    hvt_sharded *s = ctx;
    const float *mine = in[hvt_world_rank(hvt_comm_world(s->comm))];
    size_t bucket = (size_t)(mine - s->o->m->grads);
    double start = hvt__running();
    hvt_status status;

    if (!s->open)
        return HVT_OK;
    for (int r = 0; r < ranks; r++)
        s->g[r] = (const float *)in[r] + first;
    hvt__trace_begin(HVT__UPDATE, -1);
    hvt__trace_bytes((end - first) * sizeof(float));
    status = hvt__traced(hvt__optim_span(s->o, s->g, ranks, s->at, bucket + first, bucket + end));
    s->seconds += hvt__running() - start;
    return status;
}

hvt_status hvt__sharded_launch(hvt_sharded *s, hvt_bucket *b)
{
    return hvt_comm_reduce_apply(s->comm, s->o->m->grads + b->first, b->end - b->first, HVT_F32, update_slice,
                                 s, &b->ticket);
}

void hvt__sharded_gate(hvt_sharded *s, bool open)
{
    s->open = open;
}

double hvt__sharded_take_seconds(hvt_sharded *s)
{
    double seconds = s->seconds;

    s->seconds = 0;
    return seconds;
}

/* ---- a step, not fused ---- */

hvt_status hvt__sharded_update(hvt_sharded *s, hvt_bucket *b)
{
    hvt_optim *o = s->o;
    hvt_model *m = o->m;
    const float *g = m->grads + b->own_first;

    if (o->sliced)
        o->v_at = b->own_first - b->own_at;
    HVT_TRY(hvt__optim_span(o, &g, 1, s->at, b->own_first, b->own_end));
    return hvt_comm_allgather(s->comm, m->params + b->first, b->end - b->first, HVT_F32, &b->ticket);
}

/* ---- parameters and state as a whole ---- */

/* From root's gradient arena into all of them. */
static hvt_status broadcast_grads(hvt_sharded *s, const float *from, int root)
{
    hvt_model *m = s->o->m;
    size_t bytes = m->arena_count * sizeof *m->grads;

    if (hvt_world_rank(hvt_comm_world(s->comm)) == root)
        HVT_TRY(m->dev->ops->copy(m->dev, m->grads, from, bytes));
    return hvt_comm_broadcast(s->comm, m->grads, bytes, root);
}

static hvt_status broadcast_params(hvt_sharded *s, int root)
{
    hvt_world *world = hvt_comm_world(s->comm);
    hvt_model *m = s->o->m;
    size_t bytes = m->arena_count * sizeof *m->params;

    if (!s->params)
        return hvt_comm_broadcast(s->comm, m->params, bytes, root);
    if (hvt_comm_can(s->comm) & HVT_COMM_REDUCE_APPLY)
        return HVT_OK; /* they are root's already, as of the broadcasts that follow */
    HVT_TRY(broadcast_grads(s, m->params, root));
    if (hvt_world_local_rank(world) == 0)
        HVT_TRY(m->dev->ops->copy(m->dev, m->params, m->grads, bytes));
    return hvt_world_barrier(world);
}

/* Without `whole` on root each slice has one owner, and is what it is to be. */
static hvt_status broadcast_state(hvt_sharded *s, int root)
{
    hvt_optim *o = s->o;
    bool fresh, spread;

    if (!o->sliced)
        return HVT_OK;
    HVT_TRY(hvt__optim_fresh(o, &fresh));
    spread = o->whole && !fresh;
    HVT_TRY(hvt_world_broadcast(hvt_comm_world(s->comm), &spread, sizeof spread, root));
    if (spread) {
        HVT_TRY(broadcast_grads(s, o->whole, root));
        HVT_TRY(copy_slices(s, o->v, o->m->grads));
    }
    o->loaded = false;
    return hvt__sharded_forget(s);
}

hvt_status hvt__sharded_broadcast(hvt_sharded *s, int root)
{
    HVT_TRY(broadcast_params(s, root));
    return broadcast_state(s, root);
}

/* All of the state into every rank's gradient arena. */
static hvt_status collect(hvt_sharded *s)
{
    hvt_optim *o = s->o;
    hvt_model *m = o->m;
    hvt_ticket t = 0;

    HVT_TRY(hvt_world_agree(hvt_comm_world(s->comm), hvt__sharded_forget(s)));
    for (const hvt_bucket *b = s->bucket + 1; b < s->bucket + s->nbucket; b++) {
        if (b->own_first < b->own_end)
            HVT_TRY(m->dev->ops->copy(m->dev, m->grads + b->own_first, o->v + b->own_at,
                                      (b->own_end - b->own_first) * sizeof *o->v));
        HVT_TRY(hvt_comm_allgather(s->comm, m->grads + b->first, b->end - b->first, HVT_F32, &t));
    }
    return hvt_comm_wait(s->comm, t);
}

/* All of it from there. */
static hvt_status keep_whole(hvt_optim *o)
{
    hvt_model *m = o->m;
    float *whole;

    HVT_TRY(hvt__optim_state(o, true, &whole));
    o->loaded = false;
    return m->dev->ops->copy(m->dev, whole + m->step_stats_count, m->grads + m->step_stats_count,
                             (m->arena_count - m->step_stats_count) * sizeof *whole);
}

hvt_status hvt__sharded_gather(hvt_sharded *s, int root)
{
    hvt_world *world = hvt_comm_world(s->comm);
    bool mine = root < 0 || hvt_world_rank(world) == root;

    if (!s->o->sliced)
        return HVT_OK;
    HVT_TRY(collect(s));
    return hvt_world_agree(world, mine ? keep_whole(s->o) : HVT_OK);
}

hvt_status hvt__sharded_replan(hvt_sharded *s, hvt_bucket *bucket, int nbucket)
{
    hvt_sharded old = *s;
    hvt_optim *o = s->o;
    hvt_device *dev = o->m->dev;
    float *slices = NULL;
    size_t count;
    hvt_status status;

    if (o->sliced)
        HVT_TRY(collect(s));
    s->bucket = bucket;
    s->nbucket = nbucket;
    count = cut(s);
    if (!o->sliced)
        return HVT_OK;
    status = hvt_world_agree(hvt_comm_world(s->comm), make_slices(s, count, o->m->grads, &slices));
    dev->ops->release(dev, status == HVT_OK ? o->v : slices);
    if (status == HVT_OK)
        o->v = slices;
    else
        *s = old;
    return status;
}

hvt_status hvt__sharded_forget(hvt_sharded *s)
{
    hvt_optim *o = s->o;

    HVT_CHECK(!o->loaded, E_ARG,
              "the optimizer's state was loaded on this rank; hvt_distopt_broadcast() "
              "brings it into the ranks' slices");
    o->m->dev->ops->release(o->m->dev, o->whole);
    o->whole = NULL;
    return HVT_OK;
}
