/*
 * The comm of one node: ranks read and write each other's memory.
 *
 * Words. Operations have numbers. A rank *posts* one in its ring: what it is, where its buffer lies. A *step*
 * is one exchange: on buffers that lie in segments an operation is one step; else it goes through the
 * *stage*, two slots per rank, one step per slotful. Every rank's part of the control segment holds what only
 * it writes and what only grows:
 *
 *   number   of each post: that it is there, and that the buffer, if in a segment, may be touched
 *   staged   steps for which my slot holds my input
 *   done     steps for which I have read and written all that is others'
 *   ran      operations whose posts I have read: their places are free
 *   left     0; 1 after close or a failure of this rank's own; 2 when it gave up because of another one
 *
 * A sum. Rank r owns a slice: in every rank's buffer only r touches it between the posts and r's
 * `done`. It reads that slice of all buffers, adds along the tree, and writes the result into all of them. So
 * one counter hands the buffers over, one hands them back, nothing is copied in or out, and a rank that
 * has seen everyone's `done` may change its buffer at once. With a slot in the place of the buffer and
 * `staged` in that of the post, the same holds for the stage.
 *
 * A post waits for nobody. A counter says more than a flag could: it cannot be missed, and a slot's second
 * use is not taken for its first.
 */
#define _GNU_SOURCE
#include "base_impl.h"
#include "shm.h"

#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* ---- life --------------------------------------------------------------------------------- */

static void comm_close_shm(hvt_comm *c)
{
    comm_shm *st = c->state;

    if (!st)
        return;
    if (st->box && st->box[c->world->rank] && c->world->size > 1)
        hvt__comm_disconnect(c);
    for (int i = 0; i < st->segments; i++)
        hvt__segment_close(&st->data[i]);
    hvt__segment_close(&st->control);
    for (int r = 0; st->life && r < c->world->size; r++)
        if (st->life[r].fd >= 0)
            close(st->life[r].fd);
    free(st->data);
    free(st->box);
    free(st->life);
    free(st->part);
    free(st->at);
    free(st->slice_index);
    free(st->busy);
    free(st);
    c->state = NULL;
}

/* What can fail on one rank alone. */
static hvt_status prepare(hvt_comm *c)
{
    size_t size = (size_t)c->world->size;
    comm_shm *st = calloc(1, sizeof *st);

    HVT_CHECK(st, E_MEM, "no memory for a comm");
    c->state = st;
    st->box = calloc(size, sizeof *st->box);
    st->life = calloc(size, sizeof *st->life);
    st->slice_index = calloc(size, sizeof *st->slice_index);
    st->at = calloc(size, sizeof *st->at);
    st->part = calloc(size, sizeof *st->part);
    st->busy = calloc(size, sizeof *st->busy);
    HVT_CHECK(st->box && st->life && st->slice_index && st->at && st->part && st->busy, E_MEM,
              "no memory for a comm of %zu ranks", size);
    for (size_t r = 0; r < size; r++)
        st->slice_index[r] = hvt__slice_index((int)r, (int)size);
    for (size_t r = 0; r < size; r++)
        st->life[r] = (struct pollfd){.fd = -1, .events = POLLIN};
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
    for (int r = 0; r < c->world->size; r++)
        st->box[r] = (hvt__mailbox *)(void *)(st->control.base + (size_t)r * st->control.stride);
    pids = c->world->scratch;
    HVT_TRY(c->world->ops->allgather(c->world, &(int32_t){getpid()}, sizeof *pids, pids));
    for (int r = 0; r < c->world->size; r++)
        if (r != c->world->rank)
            st->life[r].fd = (int)syscall(SYS_pidfd_open, pids[r], 0); /* -1 on an old kernel */
    return HVT_OK;
}

/* ---- memory ------------------------------------------------------------------------------- */

/* `bytes` in every rank's part. */
static hvt_status open_segment(hvt_comm *c, size_t bytes, hvt__segment **ret_segment)
{
    comm_shm *st = c->state;
    hvt_status s = HVT_OK;
    int i = 0;

    while (i < st->segments && st->data[i].base)
        i++;
    if (i == st->segments) {
        hvt__segment *grown = realloc(st->data, (size_t)(i + 1) * sizeof *grown);

        if (grown) {
            st->data = grown;
            st->data[i] = (hvt__segment){0};
            st->segments++;
        } else {
            s = HVT_FAIL(E_MEM, "no memory for a segment's entry");
        }
    }
    HVT_TRY(hvt_world_agree(c->world, s));
    HVT_TRY(hvt__segment_open(c->world, bytes, &st->data[i]));
    *ret_segment = &st->data[i];
    return HVT_OK;
}

static hvt_status comm_alloc_shm(hvt_comm *c, size_t bytes, void **ret_ptr)
{
    hvt__segment *g;

    HVT_TRY(open_segment(c, bytes, &g));
    *ret_ptr = g->base + (size_t)c->world->rank * g->stride;
    return HVT_OK;
}

/* Each rank brings its part of the pages. */
static hvt_status comm_share_shm(hvt_comm *c, size_t bytes, void **ret_ptr)
{
    size_t size = (size_t)c->world->size;
    hvt__segment *g;

    HVT_TRY(open_segment(c, bytes / size + (bytes % size > 0), &g));
    g->shared = true;
    *ret_ptr = g->base;
    return HVT_OK;
}

static bool is_shared(const comm_shm *st, const void *buf)
{
    uintptr_t p = (uintptr_t)buf;

    for (int i = 0; i < st->segments; i++) {
        const hvt__segment *g = &st->data[i];
        uintptr_t base = (uintptr_t)g->base;

        if (g->base && g->shared && p >= base && p - base < g->stride * (size_t)g->ranks)
            return true;
    }
    return false;
}

/* The segment in whose part of mine these bytes lie, or -1. */
static int find(const hvt_comm *c, const void *buf, size_t bytes, size_t *ret_offset)
{
    const comm_shm *st = c->state;

    for (int i = 0; i < st->segments; i++) {
        const hvt__segment *g = &st->data[i];
        uintptr_t mine = (uintptr_t)g->base + (size_t)c->world->rank * g->stride, p = (uintptr_t)buf;

        if (g->base && !g->shared && p >= mine && p - mine <= g->bytes && bytes <= g->bytes - (p - mine)) {
            *ret_offset = p - mine;
            return i;
        }
    }
    return -1;
}

static void comm_release_shm(hvt_comm *c, void *ptr)
{
    comm_shm *st = c->state;
    size_t offset;
    int i = find(c, ptr, 0, &offset);

    for (int k = 0; k < st->segments && i < 0; k++)
        if (st->data[k].shared && st->data[k].base == (char *)ptr)
            i = k;
    if (i >= 0)
        hvt__segment_close(&st->data[i]);
}

/* ---- posting ------------------------------------------------------------------------------ */

static hvt__post *posted(const comm_shm *st, int rank, uint64_t number)
{
    return &st->box[rank]->ring[number % HVT__SHM_RING];
}

/* How far have all ranks come? */
static void read_progress(hvt_comm *c)
{
    comm_shm *st = c->state;
    uint64_t least = UINT64_MAX;

    for (int r = 0; r < c->world->size; r++) {
        uint64_t ran = atomic_load_explicit(&st->box[r]->ran.v, memory_order_acquire);

        least = ran < least ? ran : least;
    }
    st->ran = least;
}

/* Where everybody has read what was in its place before. */
static hvt_status comm_post_shm(hvt_comm *c, const hvt__op *op, bool *ret_posted)
{
    comm_shm *st = c->state;
    uint64_t number = st->posted + 1;
    hvt__post *p = posted(st, c->world->rank, number);
    size_t offset = 0;

    if (number > st->ran + HVT__SHM_RING)
        read_progress(c);
    if (number > st->ran + HVT__SHM_RING)
        return HVT_OK;
    p->segment = find(c, op->buf, hvt__shm_bytes(op), &offset);
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

static const char *kind_name(int kind)
{
    static const char *const names[] = {"allreduce", "reduce_scatter", "allgather", "broadcast",
                                        "reduce_apply"};

    return kind >= 0 && kind < (int)HVT_LEN(names) ? names[kind] : "?";
}

/* Did all ranks issue the same? All read the same descriptors, so all come to the same verdict. */
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
                 (unsigned long long)number, hvt__job_rank(w, 0), w->host[0], kind_name(a->kind),
                 (unsigned long long)a->count, hvt_dtype_name((hvt_dtype)a->type), hvt__job_rank(w, a->root),
                 hvt__job_rank(w, r), w->host[r], kind_name(b->kind), (unsigned long long)b->count,
                 hvt_dtype_name((hvt_dtype)b->type), hvt__job_rank(w, b->root));
        hvt__error_agreed(true);
        return HVT_E_MISMATCH;
    }
    return HVT_OK;
}

/* All ranks have posted the operation, and the same one. */
static hvt_status rendezvous(hvt_comm *c, uint64_t number, const hvt__op *op)
{
    comm_shm *st = c->state;
    bool done = st->posted >= number;

    if (!done && number > st->ran + HVT__SHM_RING) {
        HVT__SHM_AWAIT(c, ran, number - HVT__SHM_RING, "read what was posted");
        st->ran = number - HVT__SHM_RING;
    }
    if (!done)
        HVT_TRY(comm_post_shm(c, op, &done));
    HVT_TRY(hvt__shm_await(c, offsetof(hvt__mailbox, ring[0]) + number % HVT__SHM_RING * sizeof(hvt__post),
                           number, "issue the operation"));
    return match(c, number);
}

/* ---- operations --------------------------------------------------------------------------- */

/* Where all ranks' buffers lie; whether all that others need of them is in segments. */
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

static hvt_status comm_run_shm(hvt_comm *c, hvt_device *dev, const hvt__op *op)
{
    comm_shm *st = c->state;
    uint64_t number = st->run + 1;
    bool direct;

    if (c->world->size == 1)
        return op->kind == HVT__REDUCE_APPLY
                   ? op->apply(op->ctx, 0, op->count, (const void *const[]){op->buf}, 1)
                   : HVT_OK;
    st->yield = dev->yield;
    HVT_TRY(rendezvous(c, number, op));
    direct = find_buffers(c, number, op);
    st->run = number;
    hvt__store_release(&st->box[c->world->rank]->ran.v, number);
    if (!op->count ||
        (op->kind == HVT__ALLGATHER && is_shared(st, op->buf))) /* all have written: it is there */
        return HVT_OK;
    HVT_CHECK(direct || op->kind != HVT__REDUCE_APPLY, E_ARG,
              "operation %llu: some rank's buffer is not of hvt_comm_alloc(), so others cannot read it",
              (unsigned long long)number);
    return direct ? hvt__shm_run_direct(c, dev, op) : hvt__shm_run_staged(c, dev, op);
}

const hvt_comm_ops hvt_comm_shm = {
    .name = "shm",
    .can = HVT_COMM_SHARE | HVT_COMM_REDUCE_APPLY,
    .open = comm_open_shm,
    .close = comm_close_shm,
    .alloc = comm_alloc_shm,
    .share = comm_share_shm,
    .release = comm_release_shm,
    .post = comm_post_shm,
    .run = comm_run_shm,
    .fence = hvt__shm_fence,
    .left = hvt__shm_left,
    .leave = hvt__shm_leave,
};
