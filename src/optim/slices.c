/*
 * Sharing of parameters and state between ranks, and the slices that each rank owns.
 *
 * In a sharded update a rank updates a slice of each bucket for all ranks. If all ranks see each other's
 * memory, there is one copy of parameters and state. Otherwise the ranks of a node share one copy of the
 * parameters or, if they cannot share memory, each has its own; of the optimizer's state each rank has only
 * its slices, packed (o->v, o->v_at). Saving gathers the slices and loading distributes them, through the
 * gradient arena, which is unused between steps.
 *
 * The result is that of an allreduce and an update on every rank, to the bit: an update is elementwise, and a
 * comm's reduce_scatter adds in the order of its allreduce.
 *
 * In a replicated update nothing is shared or sliced: the functions here do nothing, and broadcast copies
 * whole arenas.
 */
#include "dist.h"

/* Returns the elements of all arenas of the state. */
static size_t state_count(const hvt_optim *o)
{
    return (size_t)o->arenas * o->m->grad_count;
}

/* Makes this rank's own copies before the shared memory is freed. Slices that were not gathered are lost. */
static hvt_status take_back(hvt_distopt *d)
{
    hvt_optim *o = d->optim;
    hvt_device *dev = o->m->dev;
    size_t bytes = state_count(o) * sizeof *o->v;
    void *own = o->whole;

    if (d->params && o->m->params == d->params)
        HVT_TRY(hvt__model_place_params(o->m, NULL));
    if (!o->sliced && (!d->v || o->v != d->v))
        return HVT_OK;
    if (!own)
        HVT_TRY(dev->ops->memory.alloc(dev, bytes, &own));
    if (!o->sliced) {
        HVT_TRY(dev->ops->memory.copy(dev, own, d->v, bytes));
    } else {
        if (!o->whole)
            HVT_TRY(hvt__optim_set_updates(o, 0));
        dev->ops->memory.release(dev, o->v);
    }
    o->v = own;
    o->v_count = o->m->grad_count;
    o->v_at = 0;
    o->sliced = o->loaded = false;
    o->whole = NULL;
    return HVT_OK;
}

void hvt__slices_close(hvt_distopt *d, bool give_back)
{
    hvt_optim *o = d->optim;

    if (!d->grads || o->m->grads != d->grads) /* incomplete: the memory may be another optimizer's */
        return;
    if (give_back && take_back(d) != HVT_OK)
        HVT_WARN("the model is left without parameters: %s", hvt_last_error());
    if (d->params && o->m->params == d->params)
        o->m->params = NULL;
    if (d->v && o->v == d->v)
        o->v = NULL;
    hvt_comm_release(d->comm, d->v);
    hvt_comm_release(d->comm, d->params);
}

/* Opens a shared block, and copies into it the values of the lowest rank that shares it. */
static hvt_status share(hvt_distopt *d, const float *mine, size_t count, float **ret_block)
{
    hvt_device *dev = d->optim->m->dev;
    size_t bytes = count * sizeof *mine;
    void *block = NULL;

    HVT_TRY(hvt_comm_share(d->comm, bytes, &block));
    *ret_block = block;
    return hvt_world_agree(
        d->world, hvt_world_local_rank(d->world) ? HVT_OK : dev->ops->memory.copy(dev, block, mine, bytes));
}

/* True if each rank keeps only its slices of the state. */
static bool slices_state(const hvt_distopt *d)
{
    return d->optim->v && !(hvt_comm_can(d->comm) & HVT_COMM_REDUCE_APPLY);
}

/* Computes this rank's slices; returns how many elements they have. The first bucket has step statistics and
 * no slices. */
static size_t cut(const hvt_distopt *d, hvt_bucket *bucket, int n)
{
    size_t at = 0;

    for (hvt_bucket *b = bucket + 1; b < bucket + n; b++) {
        hvt_comm_slice(d->comm, b->end - b->first, d->rank, &b->own_first, &b->own_end);
        b->own_first += b->first;
        b->own_end += b->first;
        b->own_at = slices_state(d) ? at : b->own_first;
        at += b->own_end - b->own_first;
    }
    return at;
}

size_t hvt_distopt_state_bytes(const hvt_distopt *d)
{
    size_t count = 0;

    if (!d || !d->optim->v)
        return 0;
    if (d->v)
        count = d->optim->m->grad_count / (size_t)hvt_world_local_size(d->world);
    else if (!d->optim->sliced)
        count = d->optim->m->grad_count;
    else
        for (const hvt_bucket *b = d->bucket + 1; b < d->bucket + d->nbucket; b++)
            count += b->own_end - b->own_first;
    return (size_t)d->optim->arenas * count * sizeof *d->v;
}

/* Copies this rank's slices of one arena. */
static hvt_status copy_slices(hvt_device *dev, const hvt_bucket *bucket, int n, float *slices,
                              const float *whole)
{
    for (const hvt_bucket *b = bucket + 1; b < bucket + n; b++)
        if (b->own_first < b->own_end)
            HVT_TRY(dev->ops->memory.copy(dev, slices + b->own_at, whole + b->own_first,
                                          (b->own_end - b->own_first) * sizeof *slices));
    return HVT_OK;
}

/* Allocates slices of `count` elements of each state, for o->v. */
static hvt_status alloc_slices(const hvt_optim *o, size_t count, float **ret_slices)
{
    size_t bytes = (size_t)o->arenas * (count ? count : 1) * sizeof **ret_slices;

    return o->m->dev->ops->memory.alloc(o->m->dev, bytes, (void **)ret_slices);
}

/* o->whole stays until the first broadcast or step decides what the slices hold. */
static hvt_status open_slices(hvt_distopt *d, size_t count)
{
    hvt_optim *o = d->optim;
    float *slices = NULL;
    hvt_status s = alloc_slices(o, count, &slices);

    for (int k = 0; s == HVT_OK && k < o->arenas; k++)
        s = copy_slices(o->m->dev, d->bucket, d->nbucket, slices + (size_t)k * count,
                        o->v + (size_t)k * o->v_count);
    if (s != HVT_OK) {
        o->m->dev->ops->memory.release(o->m->dev, slices);
        return s;
    }
    o->whole = o->v;
    o->v = slices;
    o->v_count = count;
    o->sliced = true;
    return HVT_OK;
}

hvt_status hvt__slices_open(hvt_distopt *d)
{
    hvt_optim *o = d->optim;
    size_t count = cut(d, d->bucket, d->nbucket);

    if (hvt_comm_can(d->comm) & HVT_COMM_SHARE)
        HVT_TRY(share(d, o->m->params, o->m->arena_count, &d->params));
    if (slices_state(d)) {
        HVT_TRY(hvt_world_agree(d->world, open_slices(d, count)));
    } else if (o->v) {
        HVT_TRY(share(d, o->v, state_count(o), &d->v));
    }
    if (d->params)
        HVT_TRY(hvt_world_agree(d->world, hvt__model_place_params(o->m, d->params)));
    if (d->v) {
        o->m->dev->ops->memory.release(o->m->dev, o->v);
        o->v = d->v;
    }
    return HVT_OK;
}

/* Broadcasts root's `from` to all gradient arenas. */
static hvt_status broadcast_grads(hvt_distopt *d, const float *from, size_t count, int root)
{
    hvt_model *m = d->optim->m;
    size_t bytes = count * sizeof *m->grads;

    if (d->rank == root)
        HVT_TRY(m->dev->ops->memory.copy(m->dev, m->grads, from, bytes));
    return hvt_comm_broadcast(d->comm, m->grads, bytes, root);
}

static hvt_status broadcast_params(hvt_distopt *d, int root)
{
    hvt_model *m = d->optim->m;
    size_t bytes = m->arena_count * sizeof *m->params;

    if (!d->params)
        return hvt_comm_broadcast(d->comm, m->params, bytes, root);
    if (hvt_comm_can(d->comm) & HVT_COMM_REDUCE_APPLY)
        return HVT_OK; /* all ranks share one copy */
    for (size_t at = 0, n; at < m->arena_count;
         at += n) { /* including frozen ones, in pieces of the gradient arena's size */
        n = m->arena_count - at < m->grad_count ? m->arena_count - at : m->grad_count;
        HVT_TRY(broadcast_grads(d, m->params + at, n, root));
        if (hvt_world_local_rank(d->world) == 0)
            HVT_TRY(m->dev->ops->memory.copy(m->dev, m->params + at, m->grads, n * sizeof *m->params));
    }
    return hvt_world_barrier(d->world);
}

/* Broadcasts the state from root's o->whole. Without one, each owner's slice is right already. */
static hvt_status spread_state(hvt_distopt *d, int root)
{
    hvt_optim *o = d->optim;
    bool fresh, spread;

    HVT_TRY(hvt__optim_fresh(o, &fresh));
    spread = o->whole && !fresh;
    HVT_TRY(hvt_world_broadcast(d->world, &spread, sizeof spread, root));
    for (int k = 0; spread && k < o->arenas; k++) {
        const float *from = o->whole ? o->whole + (size_t)k * o->m->grad_count : NULL;

        HVT_TRY(broadcast_grads(d, from, o->m->grad_count, root));
        HVT_TRY(copy_slices(o->m->dev, d->bucket, d->nbucket, o->v + (size_t)k * o->v_count, o->m->grads));
    }
    o->loaded = false;
    return hvt__slices_forget(d);
}

hvt_status hvt__slices_broadcast(hvt_distopt *d, int root)
{
    hvt_optim *o = d->optim;

    HVT_TRY(broadcast_params(d, root));
    if (o->sliced)
        return spread_state(d, root);
    return o->v && !d->v ? hvt_comm_broadcast(d->comm, o->v, state_count(o) * sizeof *o->v, root) : HVT_OK;
}

/* Gathers all of state k in every rank's gradient arena. */
static hvt_status collect(hvt_distopt *d, int k)
{
    hvt_optim *o = d->optim;
    hvt_model *m = o->m;
    hvt_ticket t = 0;

    for (const hvt_bucket *b = d->bucket + 1; b < d->bucket + d->nbucket; b++) {
        if (b->own_first < b->own_end)
            HVT_TRY(m->dev->ops->memory.copy(m->dev, m->grads + b->own_first,
                                             o->v + (size_t)k * o->v_count + b->own_at,
                                             (b->own_end - b->own_first) * sizeof *o->v));
        HVT_TRY(hvt_comm_allgather(d->comm, m->grads + b->first, b->end - b->first, HVT_F32, &t));
    }
    return hvt_comm_wait(d->comm, t);
}

/* Copies state k from the gradient arena to o->whole. */
static hvt_status keep_whole(hvt_optim *o, int k)
{
    hvt_model *m = o->m;
    size_t first = m->step_stats_count;
    float *whole;

    HVT_TRY(hvt__optim_state(o, true, &whole));
    o->loaded = false;
    whole += (size_t)k * m->grad_count;
    return m->dev->ops->memory.copy(m->dev, whole + first, m->grads + first,
                                    (m->grad_count - first) * sizeof *whole);
}

hvt_status hvt__slices_gather(hvt_distopt *d, int root)
{
    if (!d->optim->sliced)
        return HVT_OK;
    HVT_TRY(hvt_world_agree(d->world, hvt__slices_forget(d)));
    for (int k = 0; k < d->optim->arenas; k++) {
        HVT_TRY(collect(d, k));
        HVT_TRY(hvt_world_agree(d->world, root < 0 || root == d->rank ? keep_whole(d->optim, k) : HVT_OK));
    }
    return HVT_OK;
}

hvt_status hvt__slices_replan(hvt_distopt *d, hvt_bucket *bucket, int n)
{
    hvt_optim *o = d->optim;
    hvt_device *dev = o->m->dev;
    float *slices = NULL;
    size_t count;
    hvt_status s;

    if (d->opts.update != HVT_UPDATE_SHARDED)
        return HVT_OK;
    count = cut(d, bucket, n);
    if (!o->sliced)
        return HVT_OK;
    HVT_TRY(hvt_world_agree(d->world, hvt__slices_forget(d)));
    s = hvt_world_agree(d->world, alloc_slices(o, count, &slices));
    for (int k = 0; s == HVT_OK && k < o->arenas; k++) {
        s = collect(d, k);
        if (s == HVT_OK)
            s = hvt_world_agree(d->world,
                                copy_slices(dev, bucket, n, slices + (size_t)k * count, o->m->grads));
    }
    dev->ops->memory.release(dev, s == HVT_OK ? o->v : slices);
    if (s != HVT_OK)
        return s;
    o->v = slices;
    o->v_count = count;
    return HVT_OK;
}

hvt_status hvt__slices_forget(hvt_distopt *d)
{
    hvt_optim *o = d->optim;

    HVT_CHECK(!o->loaded, E_ARG,
              "the optimizer's state was loaded on this rank only; call hvt_distopt_broadcast() first");
    o->m->dev->ops->memory.release(o->m->dev, o->whole);
    o->whole = NULL;
    return HVT_OK;
}
