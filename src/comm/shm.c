/*
 * The comm of one node: ranks read and write each other's memory.
 *
 * Words. An *operation* has a ticket. A *step* is one exchange: an operation on buffers that
 * lie in segments is one step; any other goes through the *stage*, two slots per rank, one step per slotful.
 * Every rank's part of the control segment holds its counters, which only it writes and which only grow:
 *
 *   posted   operations whose descriptor is in my ring and whose buffer, if in a segment, may be touched
 *   staged   steps for which my slot holds my input
 *   done     steps for which I have read and written all that is others'
 *   ran      operations whose descriptors I have read, so that their places in the rings are free
 *   left     0; 1 after close or a failure of this rank's own; 2 when it gave up because of another one
 *
 * A sum. Rank r owns a slice: in every rank's buffer only r touches it between `posted` and r's `done`. It
 * reads that slice of all buffers, adds along the tree, and writes the result into all of them. So one
 * counter hands the buffers over, one hands them back, nothing is copied in or out, and a rank that
 * has seen everyone's `done` may change its buffer at once. With a slot in the place of the buffer and
 * `staged` in that of `posted`, the same holds for the stage.
 *
 * Issuing only posts: it waits for nobody. The work is done in wait, in issue order. A counter says more
 * than a flag could: it cannot be missed, and a slot's second use is not taken for its first.
 *
 * A rank that waits spins, then yields, then sleeps; ten times a second it asks the kernel whether its peers
 * still live.
 */
#define _GNU_SOURCE
#include "base_impl.h"
#include "room.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum {
    RING = 256,          /* descriptors per rank */
    SLOT = 1 << 20,      /* bytes of one of a rank's two slots */
    CHUNK = 1 << 15,     /* bytes that are added and handed out while they are in the cache */
    SPINS = 2000,        /* looks at a counter before yielding */
    YIELD_US = 1000,     /* of yielding before sleeping */
    SLEEP_US = 50,       /* at a time */
    LIFE_CHECK_MS = 100, /* between looks at the peers' processes */
};

typedef struct counter {
    _Alignas(128) _Atomic uint64_t v; /* a line of its own, and its neighbour's, which is fetched along */
} counter;

typedef struct descriptor {
    uint64_t count, offset; /* offset: of the buffer in the rank's part of the segment */
    int32_t segment;        /* -1: memory of the rank's own */
    int16_t kind, type;
    int32_t root;
} descriptor;

/* One rank's part of the control segment; its two slots follow. */
typedef struct mailbox {
    counter posted, staged, done, ran, left;
    descriptor ring[RING];
} mailbox;

typedef struct comm_shm {
    hvt__segment control, *data; /* data: [segments] open ones have a base */
    int segments;
    mailbox **box;       /* [size] */
    struct pollfd *life; /* [size] pidfds; -1: none */
    hvt__pending pending;
    hvt_ticket published, free_up_to; /* posted of mine; ring places known to be free */
    uint64_t step;
    bool unsettled; /* a rank may still be copying a staged sum into its buffer */
    hvt_status broken;
    /* [size] each */
    int *place;      /* of the rank's slice */
    char **at;       /* the rank's buffer or slot in this step */
    const void **in; /* the same, at the chunk */
    hvt__span *busy; /* addresses that steps since the last settle() touch, of the rank's memory */
} comm_shm;

/* ---- counters --------------------------------------------------------------------------------- */

static void tell(counter *mine, uint64_t value)
{
    atomic_thread_fence(memory_order_seq_cst); /* kernels may have stored past the cache */
    atomic_store_explicit(&mine->v, value, memory_order_release);
}

static bool reached(const counter *c, uint64_t value)
{
    return atomic_load_explicit(&c->v, memory_order_acquire) >= value;
}

enum { BY_ITSELF = 1, AFTER_ANOTHER = 2 };

/* The others need not wait for this rank any more. */
static void leave(hvt_comm *c, uint64_t why)
{
    comm_shm *st = c->state;
    counter *left = &st->box[c->world->rank]->left;

    if (!reached(left, 1))
        tell(left, why);
}

/* ---- life --------------------------------------------------------------------------------- */

static void comm_close_shm(hvt_comm *c)
{
    comm_shm *st = c->state;

    if (!st)
        return;
    if (st->box && st->box[c->world->rank])
        leave(c, BY_ITSELF);
    for (int i = 0; i < st->segments; i++)
        hvt__segment_close(&st->data[i]);
    hvt__segment_close(&st->control);
    for (int r = 0; st->life && r < c->world->size; r++)
        if (st->life[r].fd >= 0)
            close(st->life[r].fd);
    free(st->data);
    free(st->box);
    free(st->life);
    free(st->in);
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
    st->pending.run = st->pending.issued = st->published = c->issued;
    st->free_up_to = c->issued + RING;
    st->box = calloc(size, sizeof *st->box);
    st->life = calloc(size, sizeof *st->life);
    st->place = calloc(size, sizeof *st->place);
    st->at = calloc(size, sizeof *st->at);
    st->in = calloc(size, sizeof *st->in);
    st->busy = calloc(size, sizeof *st->busy);
    HVT_CHECK(st->box && st->life && st->place && st->at && st->in && st->busy, E_MEM,
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
    HVT_TRY(hvt__segment_open(c->world, sizeof(mailbox) + 2 * SLOT, &st->control));
    for (int r = 0; r < c->world->size; r++)
        st->box[r] = (mailbox *)(void *)(st->control.base + (size_t)r * st->control.stride);
    atomic_store(&st->box[c->world->rank]->posted.v, c->issued);
    atomic_store(&st->box[c->world->rank]->ran.v, c->issued);
    pids = c->world->scratch;
    HVT_TRY(c->world->ops->gather(c->world, &(int32_t){getpid()}, sizeof *pids, pids));
    for (int r = 0; r < c->world->size; r++)
        if (r != c->world->rank)
            st->life[r].fd = (int)syscall(SYS_pidfd_open, pids[r], 0); /* -1 on an old kernel */
    return HVT_OK;
}

/* ---- waiting ------------------------------------------------------------------------------ */

static void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#else
    atomic_signal_fence(memory_order_seq_cst);
#endif
}

/*
 * Will the others still come? Name the cause before its consequences: a rank whose process ended without a
 * word, then one that left by itself, then one that gave up as this one will.
 */
static hvt_status find_lost(hvt_comm *c, const counter *theirs, int peer, uint64_t value, const char *what)
{
    comm_shm *st = c->state;
    int size = c->world->size, ended = -1, gone = -1, why = 0;

    if (poll(st->life, (nfds_t)size, 0) < 0)
        return HVT_OK; /* interrupted: ask next time */
    for (int r = 0; r < size; r++) {
        int left = (int)atomic_load_explicit(&st->box[r]->left.v, memory_order_acquire);

        if (left && (gone < 0 || left < why)) {
            gone = r;
            why = left;
        }
        if (!left && st->life[r].revents && ended < 0)
            ended = r;
    }
    if ((ended < 0 && gone < 0) || reached(theirs, value)) /* it went, but not before it was done */
        return HVT_OK;
    leave(c, AFTER_ANOTHER);
    if (ended >= 0)
        return HVT_FAIL(E_COMM, "rank %d (%s) has ended; rank %d was waiting for rank %d to %s", ended,
                        c->world->host[ended], c->world->rank, peer, what);
    return HVT_FAIL(E_COMM, "rank %d (%s) has left the comm; rank %d was waiting for rank %d to %s", gone,
                    c->world->host[gone], c->world->rank, peer, what);
}

/* The long way, off the hot path: yield, sleep, look after the peers. */
static hvt_status await_long(hvt_comm *c, const counter *theirs, int peer, uint64_t value, const char *what)
{
    double start = hvt__now(), now = start, checked = start;

    while (!reached(theirs, value)) {
        if (now - start < YIELD_US * 1e-6)
            sched_yield();
        else
            nanosleep(&(struct timespec){0, SLEEP_US * 1000}, NULL);
        now = hvt__now();
        if (now - checked >= LIFE_CHECK_MS * 1e-3) {
            HVT_TRY(find_lost(c, theirs, peer, value, what));
            checked = now;
        }
    }
    return HVT_OK;
}

static hvt_status await(hvt_comm *c, size_t which, uint64_t value, const char *what)
{
    comm_shm *st = c->state;

    for (int i = 1; i < c->world->size; i++) {
        int peer = (c->world->rank + i) % c->world->size;
        const counter *theirs = (const counter *)(const void *)((const char *)st->box[peer] + which);

        for (int n = c->dev->yield ? 1 : SPINS; n && !reached(theirs, value); n--)
            relax();
        if (!reached(theirs, value))
            HVT_TRY(await_long(c, theirs, peer, value, what));
    }
    return HVT_OK;
}

#define AWAIT(c, which, value, what) HVT_TRY(await(c, offsetof(mailbox, which), value, what))

/* ---- memory ------------------------------------------------------------------------------- */

static hvt_status comm_alloc_shm(hvt_comm *c, size_t bytes, void **ret_ptr)
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
            st->data[i].base = NULL;
            st->segments++;
        } else {
            s = HVT_FAIL(E_MEM, "no memory for a segment's entry");
        }
    }
    HVT_TRY(hvt_world_agree(c->world, s));
    HVT_TRY(hvt__segment_open(c->world, bytes, &st->data[i]));
    *ret_ptr = st->data[i].base + (size_t)c->world->rank * st->data[i].stride;
    return HVT_OK;
}

/* The segment in whose part of mine these bytes lie, or -1. */
static int find(const hvt_comm *c, const void *buf, size_t bytes, size_t *ret_offset)
{
    const comm_shm *st = c->state;

    for (int i = 0; i < st->segments; i++) {
        const hvt__segment *g = &st->data[i];
        uintptr_t mine = (uintptr_t)g->base + (size_t)c->world->rank * g->stride, p = (uintptr_t)buf;

        if (g->base && p >= mine && p - mine <= g->bytes && bytes <= g->bytes - (p - mine)) {
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

/* ---- operations --------------------------------------------------------------------------- */

static descriptor *described(const comm_shm *st, int rank, hvt_ticket t)
{
    return &st->box[rank]->ring[t % RING];
}

/* Post what was issued, as far as the ring has places that everybody has read. */
static void publish(hvt_comm *c)
{
    comm_shm *st = c->state;
    mailbox *mine = st->box[c->world->rank];

    while (st->published < st->pending.issued) {
        const hvt__job *j = hvt__pending_at(&st->pending, st->published + 1);
        int segment;
        size_t offset = 0, bytes = j->count * (j->kind == HVT__BROADCAST ? 1 : hvt_dtype_size(j->type));

        if (st->published == st->free_up_to) {
            hvt_ticket least = UINT64_MAX;

            for (int r = 0; r < c->world->size; r++) {
                hvt_ticket ran = atomic_load_explicit(&st->box[r]->ran.v, memory_order_acquire);

                least = ran < least ? ran : least;
            }
            st->free_up_to = least + RING;
            if (st->published == st->free_up_to)
                return;
        }
        segment = find(c, j->buf, bytes, &offset);
        *described(st, c->world->rank, st->published + 1) = (descriptor){
            .segment = segment,
            .offset = offset,
            .count = j->count,
            .kind = (int16_t)j->kind,
            .type = (int16_t)j->type,
            .root = j->root,
        };
        tell(&mine->posted, ++st->published);
    }
}

static const char *kind_name(int kind)
{
    static const char *const names[] = {"allreduce", "reduce_scatter", "allgather", "broadcast"};

    return kind >= 0 && kind < (int)HVT_LEN(names) ? names[kind] : "?";
}

/* Did all ranks issue the same? All read the same descriptors, so all come to the same verdict. */
static hvt_status match(hvt_comm *c, hvt_ticket t)
{
    const descriptor *a = described(c->state, 0, t);

    for (int r = 1; r < c->world->size; r++) {
        const descriptor *b = described(c->state, r, t);

        if (a->kind == b->kind && a->type == b->type && a->count == b->count && a->root == b->root)
            continue;
        HVT_FAIL(E_MISMATCH,
                 "operation %llu: rank 0 (%s) issued %s of %llu %s (root %d), rank %d (%s) %s of %llu %s "
                 "(root %d)",
                 (unsigned long long)t, c->world->host[0], kind_name(a->kind), (unsigned long long)a->count,
                 hvt_dtype_name((hvt_dtype)a->type), a->root, r, c->world->host[r], kind_name(b->kind),
                 (unsigned long long)b->count, hvt_dtype_name((hvt_dtype)b->type), b->root);
        hvt__error_agreed(true);
        return HVT_E_MISMATCH;
    }
    return HVT_OK;
}

static char *slot(const comm_shm *st, int rank, uint64_t step)
{
    return (char *)st->box[rank] + sizeof(mailbox) + (step & 1) * SLOT;
}

static hvt_status copy(hvt_comm *c, void *dst, const void *src, size_t bytes)
{
    return bytes ? c->dev->ops->copy(c->dev, dst, src, bytes) : HVT_OK;
}

static hvt__span slice(const hvt_comm *c, size_t count, int rank)
{
    const comm_shm *st = c->state;
    int size = c->world->size;

    return (hvt__span){hvt__cut(count, st->place[rank], size), hvt__cut(count, st->place[rank] + 1, size)};
}

/*
 * at[r] is where rank r's `count` elements lie. Add my slice of them and put the sum where it belongs:
 * everywhere, or, for a reduce_scatter, in my own. Bit by bit, so that what is written is still in the cache.
 */
static hvt_status add_slice(hvt_comm *c, size_t count, hvt_dtype t, bool everywhere)
{
    comm_shm *st = c->state;
    int me = c->world->rank, size = c->world->size, threads = c->dev->threads > 1 ? c->dev->threads : 1;
    size_t bytes = hvt_dtype_size(t), most = CHUNK * (size_t)threads / bytes;
    hvt__span mine = slice(c, count, me);

    for (size_t i = mine.first; i < mine.end; i += most) {
        size_t n = mine.end - i < most ? mine.end - i : most;
        char *out = st->at[me] + i * bytes;

        for (int r = 0; r < size; r++)
            st->in[r] = st->at[r] + i * bytes;
        HVT_TRY(c->dev->ops->reduce(c->dev, n, t, st->in, size, out));
        for (int k = 1; k < size && everywhere; k++)
            HVT_TRY(copy(c, st->at[(me + k) % size] + i * bytes, out, n * bytes));
    }
    return HVT_OK;
}

/* All ranks are done with all steps so far: my buffers are mine again. */
static hvt_status settle(hvt_comm *c)
{
    comm_shm *st = c->state;

    AWAIT(c, done, st->step, "do its part of a sum");
    st->unsettled = false;
    memset(st->busy, 0, (size_t)c->world->size * sizeof *st->busy);
    return HVT_OK;
}

/* ---- a step on buffers in segments -------------------------------------------------------- */

/* Where rank r's buffer may be touched in this step, or an empty span. */
static hvt__span touched(const hvt_comm *c, const hvt__job *j, int rank)
{
    const comm_shm *st = c->state;
    size_t bytes = j->count * (j->kind == HVT__BROADCAST ? 1 : hvt_dtype_size(j->type));
    size_t first = (size_t)(uintptr_t)st->at[rank];

    if (j->kind == HVT__BROADCAST && rank != j->root && rank != c->world->rank)
        return (hvt__span){0, 0};
    return (hvt__span){first, first + bytes};
}

/* Steps may overlap in time as long as they do not in memory. */
static hvt_status keep_apart(hvt_comm *c, const hvt__job *j)
{
    comm_shm *st = c->state;
    bool clash = st->unsettled;

    for (int r = 0; r < c->world->size; r++) {
        hvt__span s = touched(c, j, r);

        clash = clash || (s.first < st->busy[r].end && st->busy[r].first < s.end);
    }
    if (clash)
        HVT_TRY(settle(c));
    for (int r = 0; r < c->world->size; r++) {
        hvt__span s = touched(c, j, r), *b = &st->busy[r];

        if (s.first == s.end)
            continue;
        if (b->first == b->end)
            *b = s;
        b->first = s.first < b->first ? s.first : b->first;
        b->end = s.end > b->end ? s.end : b->end;
    }
    return HVT_OK;
}

static hvt_status run_direct(hvt_comm *c, const hvt__job *j)
{
    comm_shm *st = c->state;
    int me = c->world->rank, size = c->world->size;
    size_t bytes = hvt_dtype_size(j->type);
    hvt__span mine = slice(c, j->count, me);

    HVT_TRY(keep_apart(c, j));
    st->step++;
    switch (j->kind) {
    case HVT__ALLREDUCE:
    case HVT__REDUCE_SCATTER:
        HVT_TRY(add_slice(c, j->count, j->type, j->kind == HVT__ALLREDUCE));
        break;
    case HVT__ALLGATHER:
        for (int k = 1; k < size; k++)
            HVT_TRY(copy(c, st->at[(me + k) % size] + mine.first * bytes, st->at[me] + mine.first * bytes,
                         (mine.end - mine.first) * bytes));
        break;
    case HVT__BROADCAST:
        if (me != j->root)
            HVT_TRY(copy(c, j->buf, st->at[j->root], j->count));
        break;
    }
    tell(&st->box[me]->done, st->step);
    return HVT_OK;
}

/* ---- steps through the stage -------------------------------------------------------------- */

/* Of the elements [p.first, p.end) of my buffer: into my slot what others will read. */
static hvt_status stage_in(hvt_comm *c, const hvt__job *j, size_t bytes, hvt__span p, uint64_t step)
{
    comm_shm *st = c->state;
    int me = c->world->rank;
    hvt__span s = p;

    if (j->kind == HVT__ALLGATHER)
        s = hvt__meet(p, slice(c, j->count, me));
    else if (j->kind == HVT__BROADCAST && me != j->root)
        s = (hvt__span){p.first, p.first};
    HVT_TRY(copy(c, slot(st, me, step) + (s.first - p.first) * bytes, (char *)j->buf + s.first * bytes,
                 (s.end - s.first) * bytes));
    tell(&st->box[me]->staged, step);
    return HVT_OK;
}

/* From the slots into my buffer: the sum from my own slot, else from its owner's. */
static hvt_status stage_out(hvt_comm *c, const hvt__job *j, size_t bytes, hvt__span p, uint64_t step)
{
    comm_shm *st = c->state;
    int me = c->world->rank;

    for (int r = 0; r < c->world->size; r++) {
        hvt__span s = {0, 0};

        if (j->kind == HVT__ALLREDUCE && r == me)
            s = p;
        else if (j->kind == HVT__REDUCE_SCATTER && r == me)
            s = hvt__meet(p, slice(c, j->count, me));
        else if (j->kind == HVT__ALLGATHER && r != me)
            s = hvt__meet(p, slice(c, j->count, r));
        else if (j->kind == HVT__BROADCAST && r == j->root && r != me)
            s = p;
        HVT_TRY(copy(c, (char *)j->buf + s.first * bytes, slot(st, r, step) + (s.first - p.first) * bytes,
                     (s.end - s.first) * bytes));
    }
    return HVT_OK;
}

/*
 * A slot is written by its owner up to `staged`, by its readers and adders up to their `done`, and read by
 * its owner after that. The one of step s + 1 is filled before the others are done with s; it was last used
 * in s - 1, which everyone had finished before this rank left it.
 */
static hvt_status run_staged(hvt_comm *c, const hvt__job *j)
{
    comm_shm *st = c->state;
    bool sums = j->kind == HVT__ALLREDUCE || j->kind == HVT__REDUCE_SCATTER;
    size_t bytes = j->kind == HVT__BROADCAST ? 1 : hvt_dtype_size(j->type), most = SLOT / bytes;
    hvt__span whole = {0, j->count}, p = hvt__meet(whole, (hvt__span){0, most});

    HVT_TRY(settle(c));
    HVT_TRY(stage_in(c, j, bytes, p, st->step + 1));
    while (p.first < p.end) {
        hvt__span next = hvt__meet(whole, (hvt__span){p.end, p.end + most});
        uint64_t step = ++st->step;

        AWAIT(c, staged, step, "bring its data");
        for (int r = 0; r < c->world->size; r++)
            st->at[r] = slot(st, r, step);
        if (sums)
            HVT_TRY(add_slice(c, p.end - p.first, j->type, true));
        else
            HVT_TRY(stage_out(c, j, bytes, p, step));
        tell(&st->box[c->world->rank]->done, step);
        if (next.end)
            HVT_TRY(stage_in(c, j, bytes, next, step + 1));
        AWAIT(c, done, step, "do its part of a sum");
        if (sums)
            HVT_TRY(stage_out(c, j, bytes, p, step));
        p = next;
    }
    if (sums) { /* a direct step may follow on the same buffer, and must not begin before this one is out */
        tell(&st->box[c->world->rank]->done, ++st->step);
        st->unsettled = true;
    }
    return HVT_OK;
}

/* ---- operations --------------------------------------------------------------------------- */

static hvt_status perform(hvt_comm *c, hvt_ticket t)
{
    comm_shm *st = c->state;
    const hvt__job *j = hvt__pending_at(&st->pending, t);
    bool direct = true;

    publish(c);
    if (st->published < t) {
        AWAIT(c, ran, t - RING, "read what was posted");
        publish(c);
    }
    AWAIT(c, posted, t, "issue the operation");
    HVT_TRY(match(c, t));
    for (int r = 0; r < c->world->size; r++) {
        const descriptor *d = described(st, r, t);
        const hvt__segment *g = d->segment >= 0 ? &st->data[d->segment] : NULL;

        st->at[r] = g ? g->base + (size_t)r * g->stride + d->offset : NULL;
        if (r == c->world->rank)
            st->at[r] = j->buf;
        direct = direct && (g || (j->kind == HVT__BROADCAST && r != j->root));
    }
    tell(&st->box[c->world->rank]->ran, t);
    if (!j->count)
        return HVT_OK;
    return direct ? run_direct(c, j) : run_staged(c, j);
}

static hvt_status comm_wait_shm(hvt_comm *c, hvt_ticket ticket)
{
    comm_shm *st = c->state;
    hvt_status s = HVT_OK;

    if (c->world->size == 1)
        return HVT_OK;
    HVT_CHECK(!st->broken, E_COMM, "an earlier operation of this comm failed (%s): it cannot go on",
              hvt_status_name(st->broken));
    while (s == HVT_OK && st->pending.run < ticket) {
        s = perform(c, st->pending.run + 1);
        if (s == HVT_OK)
            st->pending.run++;
    }
    if (s == HVT_OK)
        s = settle(c);
    if (s == HVT_OK)
        return s;
    st->broken = s;
    leave(c, BY_ITSELF); /* unless find_lost() knew better */
    return hvt__pass(s, __FILE__, __LINE__, "wait");
}

static hvt_status issue(hvt_comm *c, hvt__kind kind, void *buf, size_t count, hvt_dtype t, hvt_ticket *ret)
{
    comm_shm *st = c->state;

    if (c->world->size > 1) {
        HVT_TRY(hvt__pending_add(&st->pending, &(hvt__job){buf, count, t, kind, 0}));
        publish(c);
    }
    *ret = ++c->issued;
    return HVT_OK;
}

static hvt_status comm_allreduce_shm(hvt_comm *c, void *buf, size_t count, hvt_dtype t, hvt_ticket *ret)
{
    return issue(c, HVT__ALLREDUCE, buf, count, t, ret);
}

static hvt_status comm_reduce_scatter_shm(hvt_comm *c, void *buf, size_t count, hvt_dtype t, hvt_ticket *ret)
{
    return issue(c, HVT__REDUCE_SCATTER, buf, count, t, ret);
}

static hvt_status comm_allgather_shm(hvt_comm *c, void *buf, size_t count, hvt_dtype t, hvt_ticket *ret)
{
    return issue(c, HVT__ALLGATHER, buf, count, t, ret);
}

static hvt_status comm_broadcast_shm(hvt_comm *c, void *buf, size_t bytes, int root)
{
    comm_shm *st = c->state;

    if (c->world->size == 1)
        return HVT_OK;
    HVT_TRY(hvt__pending_add(&st->pending, &(hvt__job){buf, bytes, HVT_U8, HVT__BROADCAST, root}));
    publish(c);
    return comm_wait_shm(c, ++c->issued);
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
};
