/* The shm comm's steps: directly on buffers in segments, through the stage for others. */
#include "base_impl.h"
#include "shm.h"

static char *slot(const comm_shm *st, int rank, uint64_t step)
{
    return hvt__shm_box(st, rank)->slots + (step & 1) * HVT__SHM_SLOT;
}

static hvt__span slice(const hvt_comm *c, size_t count, int rank)
{
    const comm_shm *st = c->state;
    int size = c->world->size;

    return (hvt__span){hvt__cut(count, st->peer[rank].slice_index, size),
                       hvt__cut(count, st->peer[rank].slice_index + 1, size)};
}

/* Add my slice of the ranks' `count` elements at at[r], and write the sum to all of them or, for a
 * reduce_scatter, to mine. */
static hvt_status add_slice(hvt_comm *c, hvt_device *dev, size_t count, hvt_dtype t, bool everywhere)
{
    comm_shm *st = c->state;
    const hvt_device_ops *ops = dev->ops;
    int me = c->world->rank, size = c->world->size;
    hvt__span mine = slice(c, count, me);

    for (int r = 0; r < size; r++)
        st->part[r] = st->at[r] + mine.first * hvt_dtype_size(t);
    if (everywhere)
        return ops->host_only.reduce_all(dev, mine.end - mine.first, t, st->part, size);
    return ops->vector.reduce(dev, mine.end - mine.first, t, (const void *const *)st->part, size,
                              st->part[me]);
}

/* Elements of each leaf that are added at once: the leaves' pieces stay in a core's cache until the sum is
 * used. */
enum { PIECE = 1 << 15 };

/* The sum over all ranks' leaves of elements [at, at + n), in place of the first leaf. */
static hvt_status sum_leaves(hvt_comm *c, hvt_device *dev, const hvt__op *op, size_t at, size_t n,
                             float **ret_sum)
{
    comm_shm *st = c->state;
    const hvt__partials *p = &op->partials;
    const hvt__leaves *l = p->leaves;

    for (int i = 0; i < l->n; i++) {
        const int r = l->leaf[i].rank, j = i - l->of[r];
        const bool last = i + 1 == l->of[r + 1];

        st->leaf[i] =
            (float *)(void *)(last ? st->at[r] : st->extra[r]) + (last ? 0 : (size_t)j * p->stride) + at;
    }
    *ret_sum = st->leaf[0];
    return hvt__leaves_add(dev, l, n, st->leaf);
}

/* A sum over shards of my slice: added piece by piece, and put where it belongs or applied. */
static hvt_status run_leaves(hvt_comm *c, hvt_device *dev, const hvt__op *op, hvt__span mine)
{
    comm_shm *st = c->state;
    const int me = c->world->rank, size = c->world->size;

    for (size_t at = mine.first, n; at < mine.end; at += n) {
        float *sum;

        n = mine.end - at < PIECE ? mine.end - at : PIECE;
        HVT_TRY(sum_leaves(c, dev, op, at, n, &sum));
        if (op->kind == HVT__REDUCE_APPLY)
            HVT_TRY(op->apply(op->ctx, at, at + n, (const void *const[]){sum - at}, 1));
        for (int r = 0; r < size && op->kind != HVT__REDUCE_APPLY; r++) {
            float *to = (float *)(void *)st->at[r] + at;

            if (to != sum && (op->kind == HVT__ALLREDUCE || r == me))
                HVT_TRY(dev->ops->memory.copy(dev, to, sum, n * sizeof *to));
        }
    }
    return HVT_OK;
}

hvt_status hvt__shm_fence(hvt_comm *c)
{
    comm_shm *st = c->state;

    HVT__SHM_AWAIT(c, done, st->step, "do its part of a sum");
    st->unfenced = false;
    for (int r = 0; r < c->world->size; r++)
        st->peer[r].busy = (hvt__span){0, 0};
    return HVT_OK;
}

/* The elements of [p.first, p.end) that a rank provides and others read. */
static hvt__span given(const hvt_comm *c, const hvt__op *op, hvt__span p, int rank)
{
    if (op->kind == HVT__ALLGATHER)
        return hvt__intersect(p, slice(c, op->count, rank));
    return op->kind == HVT__BROADCAST && rank != op->root ? (hvt__span){0, 0} : p;
}

/* Copies elements s from my buffer to the slot, or back. The slot begins with element `first`. */
static hvt_status stage(hvt_device *dev, const hvt__op *op, hvt__span s, size_t first, void *slot, bool in)
{
    size_t bytes = hvt_dtype_size(op->type);
    char *mine = (char *)op->buf + s.first * bytes, *there = (char *)slot + (s.first - first) * bytes;

    return dev->ops->memory.copy(dev, in ? there : mine, in ? mine : there, (s.end - s.first) * bytes);
}

/* The span of rank r's buffer that this step may use; may be empty. */
static hvt__span touched(const hvt_comm *c, const hvt__op *op, int rank)
{
    const comm_shm *st = c->state;
    size_t first = (size_t)(uintptr_t)st->at[rank];

    if (op->kind == HVT__BROADCAST && rank != op->root && rank != c->world->rank)
        return (hvt__span){0, 0};
    return (hvt__span){first, first + op->count * hvt_dtype_size(op->type)};
}

/* Fences if this step would use memory that an earlier one may still use. Steps may overlap in time, but not
 * in memory. */
static hvt_status keep_apart(hvt_comm *c, const hvt__op *op)
{
    comm_shm *st = c->state;
    bool clash = st->unfenced;

    for (int r = 0; r < c->world->size; r++) {
        hvt__span s = touched(c, op, r);

        clash = clash || (s.first < st->peer[r].busy.end && st->peer[r].busy.first < s.end);
    }
    if (clash)
        HVT_TRY(hvt__shm_fence(c));
    for (int r = 0; r < c->world->size; r++) {
        hvt__span s = touched(c, op, r), *b = &st->peer[r].busy;

        if (s.first == s.end)
            continue;
        if (b->first == b->end)
            *b = s;
        b->first = s.first < b->first ? s.first : b->first;
        b->end = s.end > b->end ? s.end : b->end;
    }
    return HVT_OK;
}

hvt_status hvt__shm_run_direct(hvt_comm *c, hvt_device *dev, const hvt__op *op)
{
    comm_shm *st = c->state;
    int me = c->world->rank, size = c->world->size;
    size_t bytes = hvt_dtype_size(op->type);
    hvt__span mine = slice(c, op->count, me);

    HVT_TRY(keep_apart(c, op));
    st->step++;
    if (op->partials.leaves) {
        HVT_TRY(run_leaves(c, dev, op, mine));
    } else if (op->kind == HVT__ALLREDUCE || op->kind == HVT__REDUCE_SCATTER) {
        HVT_TRY(add_slice(c, dev, op->count, op->type, op->kind == HVT__ALLREDUCE));
    } else if (op->kind == HVT__BROADCAST && me != op->root) {
        HVT_TRY(dev->ops->memory.copy(dev, op->buf, st->at[op->root], op->count));
    } else if (op->kind == HVT__REDUCE_APPLY && mine.first < mine.end) {
        HVT_TRY(op->apply(op->ctx, mine.first, mine.end, (const void *const *)st->at, size));
    } else if (op->kind == HVT__ALLGATHER && mine.first < mine.end) {
        for (int k = 1; k < size; k++)
            HVT_TRY(dev->ops->memory.copy(dev, st->at[(me + k) % size] + mine.first * bytes,
                                          st->at[me] + mine.first * bytes, (mine.end - mine.first) * bytes));
    }
    hvt__store_release(&hvt__shm_box(st, me)->done.v, st->step);
    return HVT_OK;
}

/* Copy what others will read of elements [p.first, p.end) from my buffer to my slot. */
static hvt_status stage_in(hvt_comm *c, hvt_device *dev, const hvt__op *op, hvt__span p, uint64_t step)
{
    const comm_shm *st = c->state;
    int me = c->world->rank;
    hvt__span s = given(c, op, p, me);

    if (s.first < s.end)
        HVT_TRY(stage(dev, op, s, p.first, slot(st, me, step), true));
    hvt__store_release(&hvt__shm_box(st, me)->staged.v, step);
    return HVT_OK;
}

/* Copy to my buffer what others provided or, of a sum, which is complete in every slot, the elements that
 * this rank gets. */
static hvt_status stage_out(hvt_comm *c, hvt_device *dev, const hvt__op *op, hvt__span p, bool sum)
{
    const comm_shm *st = c->state;
    int me = c->world->rank;

    for (int r = 0; r < c->world->size; r++) {
        hvt__span s = !sum                         ? given(c, op, p, r)
                      : op->kind == HVT__ALLREDUCE ? p
                                                   : hvt__intersect(p, slice(c, op->count, me));

        if ((r == me) == sum && s.first < s.end)
            HVT_TRY(stage(dev, op, s, p.first, st->at[r], false));
    }
    return HVT_OK;
}

/*
 * The owner writes a slot until `staged`; the others read and add in it until their `done`; then the owner
 * reads it. The slot of step s + 1 is filled before the others are done with s. It was last used in s - 1,
 * which all had finished before this rank left that step.
 */
hvt_status hvt__shm_run_staged(hvt_comm *c, hvt_device *dev, const hvt__op *op)
{
    comm_shm *st = c->state;
    bool sums = op->kind == HVT__ALLREDUCE || op->kind == HVT__REDUCE_SCATTER;
    size_t most = HVT__SHM_SLOT / hvt_dtype_size(op->type);
    hvt__mailbox *mine = hvt__shm_box(st, c->world->rank);
    hvt__span whole = {0, op->count}, p = hvt__intersect(whole, (hvt__span){0, most});

    HVT_TRY(hvt__shm_fence(c));
    HVT_TRY(stage_in(c, dev, op, p, st->step + 1));
    while (p.first < p.end) {
        hvt__span next = hvt__intersect(whole, (hvt__span){p.end, p.end + most});
        uint64_t step = ++st->step;

        HVT__SHM_AWAIT(c, staged, step, "provide its data");
        for (int r = 0; r < c->world->size; r++)
            st->at[r] = slot(st, r, step);
        if (sums)
            HVT_TRY(add_slice(c, dev, p.end - p.first, op->type, true));
        else
            HVT_TRY(stage_out(c, dev, op, p, false));
        hvt__store_release(&mine->done.v, step);
        if (next.end)
            HVT_TRY(stage_in(c, dev, op, next, step + 1));
        HVT__SHM_AWAIT(c, done, step, "do its part of a sum");
        if (sums)
            HVT_TRY(stage_out(c, dev, op, p, true));
        p = next;
    }
    if (sums) { /* a direct step on the same buffer may follow, and must not begin before this copy is done */
        hvt__store_release(&mine->done.v, ++st->step);
        st->unfenced = true;
    }
    return HVT_OK;
}
