/*
 * The comm of one node: ranks read and write each other's memory.
 *
 * Terms. Operations are numbered. A rank *posts* one in its ring: its kind and where its buffer is. A *step*
 * is one exchange. An operation on buffers in segments is one step; others go through the *stage*, two slots
 * per rank, one step per slotful. Every rank's part of the control segment holds values that only it writes
 * and that only grow:
 *
 *   number   of each post: it is complete, and its buffer, if in a segment, may be used
 *   staged   steps for which my slot holds my input
 *   done     steps for which I have finished reading and writing others' memory
 *   ran      operations whose posts I have read, so that their places are free
 *   word     this rank's last word, which does not grow: see hvt_comm_ops
 *
 * A sum. Rank r owns a slice: between the posts and r's `done` only r uses it, in every rank's buffer. It
 * reads that slice of all buffers, adds along the tree, and writes the result into all of them. So one
 * counter hands the buffers over, one hands them back, and nothing is copied. A rank that has seen everyone's
 * `done` may change its buffer at once. The same holds for the stage, with a slot instead of the buffer and
 * `staged` instead of the post.
 *
 * A post never waits. Counters are used instead of flags because a count cannot be missed, nor a slot's
 * second use be taken for its first.
 */
#define _GNU_SOURCE
#include "base_impl.h"
#include "shm.h"

#include <sys/syscall.h>
#include <unistd.h>

static void comm_close_shm(hvt_comm *c)
{
    comm_shm *st = c->state;

    if (!st)
        return;
    if (st->control.base && c->world->size > 1)
        hvt__comm_disconnect(c);
    for (int i = 0; i < st->segments; i++)
        hvt__segment_close(&st->data[i]);
    hvt__segment_close(&st->control);
    for (int r = 0; r < c->world->size; r++)
        if (st->peer[r].life >= 0)
            close(st->peer[r].life);
    free(st->data);
    free(st->part);
    free(st->leaf);
    free(st->extra);
    free(st->at);
    free(st);
    c->state = NULL;
}

/* The steps that may fail on one rank only. */
static hvt_status prepare(hvt_comm *c)
{
    int size = c->world->size;
    comm_shm *st = calloc(1, sizeof *st + (size_t)size * sizeof *st->peer);

    HVT_CHECK(st, E_MEM, "no memory for a comm of %d ranks", size);
    c->state = st;
    for (int r = 0; r < size; r++)
        st->peer[r] = (hvt__peer){.life = -1, .slice_index = hvt__slice_index(r, size)};
    st->at = calloc((size_t)size, sizeof *st->at);
    st->part = calloc((size_t)size, sizeof *st->part);
    st->extra = calloc((size_t)size, sizeof *st->extra);
    HVT_CHECK(st->at && st->part && st->extra, E_MEM, "no memory for a comm of %d ranks", size);
    HVT_CHECK(c->world->nodes == 1, E_UNSUPPORTED, "comm 'shm' is for one node; the world has %d",
              c->world->nodes);
    return HVT_OK;
}

static hvt_status comm_open_shm(hvt_comm *c)
{
    comm_shm *st;
    int32_t *pids;

    HVT_TRY(hvt_world_agree(c->world, prepare(c)));
    st = c->state;
    HVT_TRY(hvt__segment_open(c->world, sizeof(hvt__mailbox) + 2 * HVT__SHM_SLOT, &st->control));
    pids = c->world->scratch;
    HVT_TRY(c->world->ops->allgather(c->world, &(int32_t){getpid()}, sizeof *pids, pids));
    for (int r = 0; r < c->world->size; r++)
        if (r != c->world->rank)
            st->peer[r].life = c->world->ops->life
                                   ? dup(c->world->ops->life(c->world, r))
                                   : (int)syscall(SYS_pidfd_open, pids[r], 0); /* -1 on an old kernel */
    return HVT_OK;
}

/* Shared: each rank reserves its part of the pages. */
static hvt_status comm_alloc_shm(hvt_comm *c, bool shared, hvt__block *b)
{
    comm_shm *st = c->state;
    size_t size = shared ? (size_t)c->world->size : 1;
    hvt__segment *more;
    int i = 0;

    while (i < st->segments && st->data[i].base)
        i++;
    more = i < st->segments ? st->data : realloc(st->data, (size_t)(i + 1) * sizeof *more);
    if (more)
        st->data = more;
    HVT_TRY(hvt_world_agree(c->world, more ? HVT_OK : HVT_FAIL(E_MEM, "no memory for a segment's entry")));
    if (i == st->segments)
        more[st->segments++] = (hvt__segment){0};
    HVT_TRY(hvt__segment_open(c->world, b->bytes / size + (b->bytes % size > 0), &more[i]));
    more[i].shared = shared;
    b->ptr = more[i].base + (shared ? 0 : (size_t)c->world->rank * more[i].stride);
    return HVT_OK;
}

/* The segment that contains these bytes, in my part or, if it is shared, anywhere; NULL: none. */
static hvt__segment *find(const hvt_comm *c, const void *buf, size_t bytes, size_t *ret_offset)
{
    const comm_shm *st = c->state;

    for (int i = 0; i < st->segments; i++) {
        hvt__segment *g = &st->data[i];
        size_t room = g->shared ? g->stride * (size_t)g->ranks : g->stride;
        size_t at = (size_t)((uintptr_t)buf - (uintptr_t)g->base) -
                    (g->shared ? 0 : (size_t)c->world->rank * g->stride); /* wraps if outside */

        if (g->base && at < room && bytes <= room - at) {
            *ret_offset = at;
            return g;
        }
    }
    return NULL;
}

static void comm_release_shm(hvt_comm *c, hvt__block *b)
{
    size_t offset;
    hvt__segment *g = find(c, b->ptr, 0, &offset);

    if (g)
        hvt__segment_close(g);
}

static hvt__post *posted(const comm_shm *st, int rank, uint64_t number)
{
    return &hvt__shm_box(st, rank)->ring[number % HVT__SHM_RING];
}

/* Read all ranks' progress. */
static void read_progress(hvt_comm *c)
{
    comm_shm *st = c->state;
    uint64_t least = UINT64_MAX;

    for (int r = 0; r < c->world->size; r++) {
        uint64_t ran = atomic_load_explicit(&hvt__shm_box(st, r)->ran.v, memory_order_acquire);

        least = ran < least ? ran : least;
    }
    st->ran = least;
}

/* Post, once all ranks have read the previous post in this place. */
static hvt_status comm_post_shm(hvt_comm *c, const hvt__op *op, bool *ret_posted)
{
    comm_shm *st = c->state;
    uint64_t number = st->posted + 1;
    hvt__post *p = posted(st, c->world->rank, number);
    size_t offset = 0;
    hvt__segment *g;

    if (number > st->ran + HVT__SHM_RING)
        read_progress(c);
    if (number > st->ran + HVT__SHM_RING)
        return HVT_OK;
    g = find(c, op->buf, op->count * hvt_dtype_size(op->type), &offset);
    p->segment = g && !g->shared ? (int32_t)(g - st->data) : -1;
    p->offset = offset;
    p->count = op->count;
    p->kind = (int16_t)op->kind;
    p->type = (int16_t)op->type;
    p->root = op->root;
    hvt__store_release(&p->number, number);
    st->posted = number;
    *ret_posted = true;
    return HVT_OK;
}

static const char *const kind_name[] = {"allreduce", "reduce_scatter", "allgather", "broadcast",
                                        "reduce_apply"};

/* Check that all ranks issued the same operation. All read the same posts, so all reach the same verdict. */
static hvt_status match(hvt_comm *c, uint64_t number)
{
    const hvt_world *w = c->world;
    const hvt__post *a = posted(c->state, 0, number);

    for (int r = 1; r < w->size; r++) {
        const hvt__post *b = posted(c->state, r, number);

        if (a->kind == b->kind && a->type == b->type && a->count == b->count && a->root == b->root)
            continue;
        HVT_FAIL(E_MISMATCH,
                 "operation %llu: rank %d (%s) issued %s of %llu %s (root %d), rank %d (%s) %s of %llu %s "
                 "(root %d)",
                 (unsigned long long)number, hvt__job_rank(w, 0), w->host[0], kind_name[a->kind],
                 (unsigned long long)a->count, hvt_dtype_name((hvt_dtype)a->type), hvt__job_rank(w, a->root),
                 hvt__job_rank(w, r), w->host[r], kind_name[b->kind], (unsigned long long)b->count,
                 hvt_dtype_name((hvt_dtype)b->type), hvt__job_rank(w, b->root));
        hvt__error_agreed(true);
        return HVT_E_MISMATCH;
    }
    return HVT_OK;
}

/* Wait until all ranks have posted the operation, and check that it is the same. */
static hvt_status rendezvous(hvt_comm *c, uint64_t number, const hvt__op *op)
{
    comm_shm *st = c->state;
    bool done = st->posted >= number;

    if (!done && number > st->ran + HVT__SHM_RING) {
        HVT__SHM_AWAIT(c, ran, number - HVT__SHM_RING, "read earlier operations");
        st->ran = number - HVT__SHM_RING;
    }
    if (!done)
        HVT_TRY(comm_post_shm(c, op, &done));
    HVT_TRY(hvt__shm_await(c, offsetof(hvt__mailbox, ring[0]) + number % HVT__SHM_RING * sizeof(hvt__post),
                           number, "issue the operation"));
    return match(c, number);
}

/* Find all ranks' buffers. True if everything that other ranks need is in segments. */
static bool find_buffers(hvt_comm *c, uint64_t number, const hvt__op *op)
{
    comm_shm *st = c->state;
    bool direct = true;

    for (int r = 0; r < c->world->size; r++) {
        const hvt__post *p = posted(st, r, number);
        const hvt__segment *g = p->segment >= 0 ? &st->data[p->segment] : NULL;

        st->at[r] = g ? g->base + (size_t)r * g->stride + p->offset : NULL;
        if (r == c->world->rank)
            st->at[r] = op->buf;
        direct = direct && (g || (op->kind == HVT__BROADCAST && r != op->root));
    }
    return direct;
}

/* Sets the addresses of every rank's extra leaves, which lie at the same offset in each rank's part of a
 * segment. */
static hvt_status find_leaves(hvt_comm *c, uint64_t number, const hvt__op *op)
{
    comm_shm *st = c->state;
    const hvt__partials *p = &op->partials;
    const hvt__segment *g;
    size_t offset;

    if (!p->leaves || p->leaves->most == 1)
        return HVT_OK;
    g = find(c, p->extra, ((size_t)(p->leaves->most - 2) * p->stride + op->count) * sizeof *p->extra,
             &offset);
    HVT_CHECK(g && !g->shared, E_ARG,
              "operation %llu: partial sums that were not allocated by hvt_comm_alloc() cannot be read by "
              "other ranks",
              (unsigned long long)number);
    for (int r = 0; r < c->world->size; r++)
        st->extra[r] = g->base + (size_t)r * g->stride + offset;
    return HVT_OK;
}

static hvt_status comm_reserve_shm(hvt_comm *c, const hvt__leaves *leaves)
{
    comm_shm *st = c->state;
    void **more = realloc(st->leaf, (size_t)leaves->n * sizeof *more);

    HVT_CHECK(more, E_MEM, "no memory for sums of %d parts", leaves->n);
    st->leaf = more;
    return HVT_OK;
}

static hvt_status comm_run_shm(hvt_comm *c, hvt_device *dev, const hvt__op *op)
{
    comm_shm *st = c->state;
    uint64_t number = st->run + 1;
    const hvt__segment *g;
    size_t offset;
    bool direct;

    if (c->world->size == 1)
        return op->kind == HVT__REDUCE_APPLY
                   ? op->apply(op->ctx, 0, op->count, (const void *const[]){op->buf}, 1)
                   : hvt__leaves_add_own(dev, op);
    st->yield = dev->yield;
    HVT_TRY(rendezvous(c, number, op));
    direct = find_buffers(c, number, op);
    st->run = number;
    hvt__store_release(&hvt__shm_box(st, c->world->rank)->ran.v, number);
    g = op->kind == HVT__ALLGATHER ? find(c, op->buf, op->count * hvt_dtype_size(op->type), &offset) : NULL;
    if (!op->count || (g && g->shared)) /* shared: the ranks have written all of it already */
        return HVT_OK;
    HVT_CHECK(direct || (op->kind != HVT__REDUCE_APPLY && !op->partials.leaves), E_ARG,
              "operation %llu: a rank's buffer was not allocated by hvt_comm_alloc(), so other ranks cannot "
              "read it",
              (unsigned long long)number);
    HVT_TRY(find_leaves(c, number, op));
    return direct ? hvt__shm_run_direct(c, dev, op) : hvt__shm_run_staged(c, dev, op);
}

const hvt_comm_ops hvt_comm_shm = {
    .name = "shm",
    .can = HVT_COMM_SHARE | HVT_COMM_REDUCE_APPLY,
    .leaves = true,
    .open = comm_open_shm,
    .close = comm_close_shm,
    .alloc = comm_alloc_shm,
    .release = comm_release_shm,
    .reserve = comm_reserve_shm,
    .post = comm_post_shm,
    .run = comm_run_shm,
    .fence = hvt__shm_fence,
    .word = hvt__shm_word,
    .tell = hvt__shm_tell,
};
