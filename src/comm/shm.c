/*
 * The comm of one node: ranks read and write each other's memory.
 *
 * Words. An *operation* has a ticket. A rank *posts* it in its ring: what it is, where its buffer lies. A
 * small one's data *ride* along, in the post itself or in one of two seats. A *step* is one exchange of
 * another one's: on buffers that lie in segments one step; else through the *stage*, two slots per rank, one
 * step per slotful. Every rank's part of the control segment holds what only it writes and what only grows:
 *
 *   ticket   of each post: that it is there, and that the buffer, if in a segment, may be touched
 *   staged   steps for which my slot holds my input
 *   done     steps for which I have read and written all that is others'
 *   ran      operations whose posts, and data that rode, I have read: their places are free
 *   left     0; 1 after close or a failure of this rank's own; 2 when it gave up because of another one
 *
 * A small sum. Everybody adds what rode with all posts, along the tree, into its own buffer. That is one
 * exchange, and nobody waits a second time to use a seat again: data ride only when all operations ahead
 * have run, so that whoever has seen every rank's t knows that t - 1 is behind all, and its seat is t + 1's.
 *
 * Any other sum. Rank r owns a slice: in every rank's buffer only r touches it between the posts and r's
 * `done`. It reads that slice of all buffers, adds along the tree, and writes the result into all of them. So
 * one counter hands the buffers over, one hands them back, nothing is copied in or out, and a rank that
 * has seen everyone's `done` may change its buffer at once. With a slot in the place of the buffer and
 * `staged` in that of the post, the same holds for the stage.
 *
 * Issuing only posts: it waits for nobody. The work is done in wait, in issue order. A counter says more
 * than a flag could: it cannot be missed, and a slot's second use is not taken for its first.
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
        hvt__comm_part(c);
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
    free(st->place);
    free(st->busy);
    free(st->pending.jobs);
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
    st->pending.run = st->pending.issued = st->published = st->ran = st->rode = c->issued;
    st->box = calloc(size, sizeof *st->box);
    st->life = calloc(size, sizeof *st->life);
    st->place = calloc(size, sizeof *st->place);
    st->at = calloc(size, sizeof *st->at);
    st->part = calloc(size, sizeof *st->part);
    st->busy = calloc(size, sizeof *st->busy);
    HVT_CHECK(st->box && st->life && st->place && st->at && st->part && st->busy, E_MEM,
              "no memory for a comm of %zu ranks", size);
    for (size_t r = 0; r < size; r++)
        st->place[r] = hvt__slice_of((int)r, (int)size);
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
    atomic_store(&st->box[c->world->rank]->ran.v, c->issued);
    pids = c->world->scratch;
    HVT_TRY(c->world->ops->gather(c->world, &(int32_t){getpid()}, sizeof *pids, pids));
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

static hvt_status comm_wait_shm(hvt_comm *c, hvt_ticket ticket);

static void comm_release_shm(hvt_comm *c, void *ptr)
{
    comm_shm *st = c->state;
    size_t offset;
    int i = ptr ? find(c, ptr, 0, &offset) : -1;

    for (int k = 0; k < st->segments && i < 0; k++)
        if (st->data[k].shared && st->data[k].base == (char *)ptr)
            i = k;
    if (i < 0)
        return;
    comm_wait_shm(c, c->issued); /* what was issued on it; a failure has been or will be told by wait */
    hvt__segment_close(&st->data[i]);
}

static int comm_peers_shm(hvt_comm *c, const void *buf, const void *ret_ptrs[])
{
    const comm_shm *st = c->state;
    size_t offset;
    int i = find(c, buf, 0, &offset);

    for (int r = 0; i >= 0 && r < c->world->size; r++)
        ret_ptrs[r] = st->data[i].base + (size_t)r * st->data[i].stride + offset;
    return i >= 0 ? c->world->size : 0;
}

/* ---- issuing ------------------------------------------------------------------------------ */

static hvt__post *posted(const comm_shm *st, int rank, hvt_ticket t)
{
    return &st->box[rank]->ring[t % HVT__SHM_RING];
}

/* Do the data ride along with the post? Those of small sums; the same on every rank. */
static bool rides(const hvt_comm *c, const hvt__job *j)
{
    size_t bytes = hvt__shm_bytes(j);

    return (j->kind == HVT__ALLREDUCE || j->kind == HVT__REDUCE_SCATTER) && bytes <= HVT__SHM_RIDE &&
           bytes * (size_t)(c->world->size - 1) <= c->tuned.shm_ride;
}

/* Where rank r's data ride. */
static char *seat(const comm_shm *st, int rank, hvt_ticket t, size_t bytes)
{
    return bytes <= HVT__SHM_INLINE ? posted(st, rank, t)->data : st->box[rank]->seat[t % HVT__SHM_SEATS];
}

/* How many operations after it another one may use its place. */
static hvt_ticket reuse(const hvt__job *j, bool rider)
{
    return rider && hvt__shm_bytes(j) > HVT__SHM_INLINE ? HVT__SHM_SEATS : HVT__SHM_RING;
}

static void look_round(hvt_comm *c)
{
    comm_shm *st = c->state;
    hvt_ticket least = UINT64_MAX;

    for (int r = 0; r < c->world->size; r++) {
        hvt_ticket ran = atomic_load_explicit(&st->box[r]->ran.v, memory_order_acquire);

        least = ran < least ? ran : least;
    }
    st->ran = least;
}

static void post(hvt_comm *c, hvt_ticket t, const hvt__job *j, bool rider)
{
    comm_shm *st = c->state;
    hvt__post *p = posted(st, c->world->rank, t);
    size_t bytes = hvt__shm_bytes(j), offset = 0;

    p->segment = rider ? -1 : find(c, j->buf, bytes, &offset);
    p->offset = offset;
    p->count = j->count;
    p->kind = (int16_t)j->kind;
    p->type = (int16_t)j->type;
    p->root = j->root;
    if (rider && bytes)
        memcpy(seat(st, c->world->rank, t, bytes), j->buf, bytes);
    hvt__shm_tell(&p->ticket, t);
}

/* Post what was issued, as far as there are places that everybody has read. Data ride only when it is their
 * turn: before, they may not be what the operations ahead will leave. */
static void publish(hvt_comm *c, hvt_ticket turn)
{
    comm_shm *st = c->state;

    while (st->published < st->pending.issued) {
        hvt_ticket t = st->published + 1;
        const hvt__job *j = hvt__pending_at(&st->pending, t);
        bool rider = rides(c, j);

        if (rider && (t != turn || st->settled < st->step))
            return;
        if (t > st->ran + reuse(j, rider))
            look_round(c);
        if (t > st->ran + reuse(j, rider))
            return;
        post(c, t, j, rider);
        st->published = t;
    }
}

static const char *kind_name(int kind)
{
    static const char *const names[] = {"allreduce", "reduce_scatter", "allgather", "broadcast", "combine"};

    return kind >= 0 && kind < (int)HVT_LEN(names) ? names[kind] : "?";
}

/* Did all ranks issue the same? All read the same descriptors, so all come to the same verdict. */
static hvt_status match(hvt_comm *c, hvt_ticket t)
{
    const hvt_world *w = c->world;
    const hvt__post *a = posted(c->state, 0, t);

    for (int r = 1; r < w->size; r++) {
        const hvt__post *b = posted(c->state, r, t);

        if (a->kind == b->kind && a->type == b->type && a->count == b->count && a->root == b->root)
            continue;
        HVT_FAIL(E_MISMATCH,
                 "operation %llu: rank %d (%s) issued %s of %llu %s (root %d), rank %d (%s) %s of %llu %s "
                 "(root %d)",
                 (unsigned long long)t, hvt__called(w, 0), w->host[0], kind_name(a->kind),
                 (unsigned long long)a->count, hvt_dtype_name((hvt_dtype)a->type), hvt__called(w, a->root),
                 hvt__called(w, r), w->host[r], kind_name(b->kind), (unsigned long long)b->count,
                 hvt_dtype_name((hvt_dtype)b->type), hvt__called(w, b->root));
        hvt__error_agreed(true);
        return HVT_E_MISMATCH;
    }
    return HVT_OK;
}

/* ---- operations --------------------------------------------------------------------------- */

/* All ranks have posted the operation, and the same one. */
static hvt_status meet(hvt_comm *c, hvt_ticket t, const hvt__job *j, bool rider)
{
    comm_shm *st = c->state;

    publish(c, t);
    if (st->published < t) {
        if (rider)
            HVT_TRY(hvt__shm_settle(c));
        if (t > st->ran + reuse(j, rider)) {
            HVT__SHM_AWAIT(c, ran, t - reuse(j, rider), "read what was posted");
            st->ran = t - reuse(j, rider);
        }
        publish(c, t);
    }
    HVT_TRY(hvt__shm_await(c, offsetof(hvt__mailbox, ring[0]) + t % HVT__SHM_RING * sizeof(hvt__post), t,
                           "issue the operation"));
    return match(c, t);
}

static hvt_status run_rider(hvt_comm *c, hvt_ticket t, const hvt__job *j)
{
    comm_shm *st = c->state;

    for (int r = 0; r < c->world->size; r++)
        st->at[r] = seat(st, r, t, hvt__shm_bytes(j));
    HVT_TRY(hvt__shm_run_riding(c, j));
    if (st->ran < t - 1)
        st->ran = t - 1; /* nobody lets data ride before having run all else */
    st->rode = t;
    hvt__shm_tell(&st->box[c->world->rank]->ran.v, t);
    return HVT_OK;
}

static hvt_status perform(hvt_comm *c, const hvt__job *j)
{
    comm_shm *st = c->state;
    hvt_ticket t = st->pending.run + 1;
    bool rider = rides(c, j), direct = true;

    HVT_TRY(meet(c, t, j, rider));
    if (rider)
        return run_rider(c, t, j);
    for (int r = 0; r < c->world->size; r++) {
        const hvt__post *p = posted(st, r, t);
        const hvt__segment *g = p->segment >= 0 ? &st->data[p->segment] : NULL;

        st->at[r] = g ? g->base + (size_t)r * g->stride + p->offset : NULL;
        if (r == c->world->rank)
            st->at[r] = j->buf;
        direct = direct && (g || (j->kind == HVT__BROADCAST && r != j->root));
    }
    hvt__shm_tell(&st->box[c->world->rank]->ran.v, t);
    if (!j->count || (j->kind == HVT__ALLGATHER && is_shared(st, j->buf))) /* all have written: it is there */
        return HVT_OK;
    HVT_CHECK(direct || j->kind != HVT__COMBINE, E_ARG,
              "operation %llu: some rank's buffer is not of hvt_comm_alloc(), so others cannot read it",
              (unsigned long long)t);
    if (direct && st->rode > st->ran) { /* what they rode for goes into the buffers */
        HVT__SHM_AWAIT(c, ran, st->rode, "finish a sum");
        st->ran = st->rode;
    }
    return direct ? hvt__shm_run_direct(c, j) : hvt__shm_run_staged(c, j);
}

static hvt_status comm_wait_shm(hvt_comm *c, hvt_ticket ticket)
{
    comm_shm *st = c->state;
    hvt_status s;

    if (c->world->size == 1)
        return HVT_OK;
    s = hvt__pending_run(c, ticket, perform);
    if (s == HVT_OK)
        s = hvt__shm_settle(c);
    if (s == HVT_OK)
        return s;
    if (!st->pending.broken)
        st->pending.broken = s;
    hvt__shm_leave(c, HVT__BY_ITSELF); /* unless find_lost() knew better */
    return hvt__pass(s, __FILE__, __LINE__, "wait");
}

/* A lone rank's ops are done when issued. */
static hvt_status issue(hvt_comm *c, const hvt__job *j, hvt_ticket *ret)
{
    if (c->world->size == 1) {
        *ret = ++c->issued;
        return HVT_OK;
    }
    HVT_TRY(hvt__pending_issue(c, j, ret));
    publish(c, 0); /* nothing rides before wait */
    return HVT_OK;
}

static hvt_status comm_allreduce_shm(hvt_comm *c, void *buf, size_t count, hvt_dtype t, hvt_ticket *ret)
{
    return issue(c, &(hvt__job){.buf = buf, .count = count, .type = t, .kind = HVT__ALLREDUCE}, ret);
}

static hvt_status comm_reduce_scatter_shm(hvt_comm *c, void *buf, size_t count, hvt_dtype t, hvt_ticket *ret)
{
    return issue(c, &(hvt__job){.buf = buf, .count = count, .type = t, .kind = HVT__REDUCE_SCATTER}, ret);
}

static hvt_status comm_allgather_shm(hvt_comm *c, void *buf, size_t count, hvt_dtype t, hvt_ticket *ret)
{
    return issue(c, &(hvt__job){.buf = buf, .count = count, .type = t, .kind = HVT__ALLGATHER}, ret);
}

static hvt_status comm_combine_shm(hvt_comm *c, void *buf, size_t count, hvt_dtype t, hvt_combine_fn *fn,
                                   void *ctx, hvt_ticket *ret)
{
    const hvt__job j = {.buf = buf, .count = count, .type = t, .kind = HVT__COMBINE, .fn = fn, .ctx = ctx};

    HVT_TRY(issue(c, &j, ret));
    return c->world->size == 1 ? fn(ctx, 0, count, (const void *const[]){buf}, 1) : HVT_OK;
}

static hvt_status comm_broadcast_shm(hvt_comm *c, void *buf, size_t bytes, int root)
{
    const hvt__job j = {.buf = buf, .count = bytes, .type = HVT_U8, .kind = HVT__BROADCAST, .root = root};
    hvt_ticket ticket;

    HVT_TRY(issue(c, &j, &ticket));
    return comm_wait_shm(c, ticket);
}

const hvt_comm_ops hvt_comm_shm = {
    .name = "shm",
    .open = comm_open_shm,
    .close = comm_close_shm,
    .alloc = comm_alloc_shm,
    .release = comm_release_shm,
    .peers = comm_peers_shm,
    .broadcast = comm_broadcast_shm,
    .allreduce = comm_allreduce_shm,
    .reduce_scatter = comm_reduce_scatter_shm,
    .allgather = comm_allgather_shm,
    .wait = comm_wait_shm,
    .share = comm_share_shm,
    .combine = comm_combine_shm,
    .left = hvt__shm_left,
    .leave = hvt__shm_leave,
};
