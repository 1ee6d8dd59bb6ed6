/*
 * The comm over point-to-point messages of MPI, on a communicator of its own.
 *
 * allreduce = reduce_scatter up the tree of tree.c, then allgather down it; a short vector travels whole
 * instead. On every level a rank of a block holds a slice of the block's sum, trades the pieces
 * that others will hold for those that it will, and adds the two halves' parts of its new slice with the
 * device. Long slices are cut into windows: while one window is added, the next one travels. Between hosts
 * a window is one packet: over TCP the two directions of a long message take turns, half as fast as packets.
 *
 * 16-bit sums are rounded on every level, which is when they travel; so the short and the long way
 * round alike.
 *
 * Operations are queued when issued and run inside wait, in issue order: Open MPI moves nothing
 * between its calls, and all of MPI stays on the caller's thread. One that runs is always either to act or
 * to await a set of messages; so it can also be left when they are not there, and gone on with later
 * (hvt_comm_progress()). Who waits goes the same way.
 *
 * Who closes the comm, or fails, tells all others by a message with a tag of its own: so nobody waits for a
 * rank that will not come, and once all have said so nothing is under way any more.
 */
#include "base_impl.h"
#include "mpi_call.h"
#include "room.h"

#include <stdlib.h>

enum {
    EAGER = 3968, /* bytes of a message that one process of a host hands another without asking first */
    PIECES = 5,   /* into which a short vector is cut for that, at most */
    LEAVES = 1,   /* tag: the sender has left the comm; data have tag 0 */
};

typedef struct level {
    int first, mid, end; /* the block; mid == end: no right half, nothing to do */
    int *narrow, *wide;  /* [end - first] place of every rank's slice in its half and in the block */
    bool far;            /* the block spans hosts */
} level;

typedef enum stage { WHOLE, SCATTER, GATHER, DONE } stage;

/* One operation on its way. */
typedef struct run {
    hvt_comm *c;
    struct comm_mpi *st;
    char *buf;
    size_t count, bytes; /* elements; bytes of one */
    hvt_dtype type;
    MPI_Datatype wire;
    int from;     /* level; what is below has been done */
    bool spreads; /* the sum's slices go back down the tree */

    stage stage;
    int at;                  /* level */
    bool awaits;             /* messages of set k & 1 on that level; else it comes to the level now */
    size_t k, windows, most; /* windows of this level, and elements of one */
} run;

typedef struct comm_mpi {
    hvt__pending pending;
    run run;    /* the operation after pending.run */
    bool begun; /* it has, and is not done */
    MPI_Comm comm;
    int levels;
    level *level;
    size_t window;       /* elements that are added while the next ones travel */
    void *scratch[2];    /* [window] the other half's part of a window */
    MPI_Request *req[2]; /* [2 * PIECES * size] */
    int *peer[2];        /* [2 * PIECES * size] at the other end of each */
    int reqs[2];
    int why;          /* hvt__leaving of this rank, as it was sent */
    int *left;        /* [size] of every rank, as far as it has come */
    MPI_Request *bye; /* [size] on its way to every rank */
    bool dropped;     /* an operation under way was given up: a peer may still read what it was to send */
} comm_mpi;

/* The slice of a block's rank before and after its halves are merged. */
static hvt__span narrow(const level *l, size_t count, int rank)
{
    int i = rank - l->first, n = rank < l->mid ? l->mid - l->first : l->end - l->mid;

    return (hvt__span){hvt__cut(count, l->narrow[i], n), hvt__cut(count, l->narrow[i] + 1, n)};
}

static hvt__span wide(const level *l, size_t count, int rank)
{
    int i = rank - l->first, n = l->end - l->first;

    return (hvt__span){hvt__cut(count, l->wide[i], n), hvt__cut(count, l->wide[i] + 1, n)};
}

/* ---- life --------------------------------------------------------------------------------- */

/* News of ranks that leave. */
static hvt_status hear(hvt_comm *c)
{
    comm_mpi *st = c->state;
    MPI_Status from;
    int there = 1, why;

    while (st->comm != MPI_COMM_NULL) {
        HVT_TRY_MPI(MPI_Iprobe(MPI_ANY_SOURCE, LEAVES, st->comm, &there, &from));
        if (!there)
            break;
        HVT_TRY_MPI(MPI_Recv(&why, 1, MPI_INT, from.MPI_SOURCE, LEAVES, st->comm, MPI_STATUS_IGNORE));
        st->left[from.MPI_SOURCE] = why;
    }
    return HVT_OK;
}

static hvt__leaving comm_left_mpi(hvt_comm *c, int rank)
{
    comm_mpi *st = c->state;

    if (hear(c) != HVT_OK)
        return HVT__HERE; /* MPI itself will tell whoever waits */
    return st->left ? (hvt__leaving)st->left[rank] : HVT__HERE;
}

static void comm_leave_mpi(hvt_comm *c, hvt__leaving why)
{
    comm_mpi *st = c->state;
    bool entered;

    if (st->why || st->comm == MPI_COMM_NULL)
        return;
    st->why = st->left[c->world->rank] = (int)why;
    entered = hvt__mpi_enter();
    for (int r = 0; r < c->world->size; r++)
        if (r != c->world->rank)
            MPI_Isend(&st->why, 1, MPI_INT, r, LEAVES, st->comm, &st->bye[r]);
    hvt__mpi_leave(entered);
}

/* What is under way of the operation that has begun is given up. */
static void drop(comm_mpi *st)
{
    for (int i = 0; i < 2; i++) {
        st->dropped = st->dropped || st->reqs[i];
        hvt__mpi_drop(st->reqs[i], st->req[i]);
        st->reqs[i] = 0;
    }
    st->begun = false;
}

/* What failed: this rank takes part in nothing any more, and says so. */
static hvt_status give_up(hvt_comm *c, hvt_status s)
{
    drop(c->state);
    comm_leave_mpi(c, HVT__BY_ITSELF); /* unless hvt__comm_lost() knew better */
    return s;
}

/* Not before all others have left, too, else a message of theirs might reach another communicator that gets
 * this one's number: then it stays open. */
static void free_comm(hvt_comm *c)
{
    comm_mpi *st = c->state;
    bool entered, all_left;

    if (st->comm == MPI_COMM_NULL || !hvt__mpi_is_up())
        return;
    drop(st);
    all_left = hvt__comm_part(c);
    entered = hvt__mpi_enter();
    for (int r = 0; r < c->world->size; r++)
        if (st->bye[r] != MPI_REQUEST_NULL)
            MPI_Request_free(&st->bye[r]);
    if (all_left)
        MPI_Comm_free(&st->comm);
    hvt__mpi_leave(entered);
}

static void comm_close_mpi(hvt_comm *c)
{
    comm_mpi *st = c->state;

    if (!st)
        return;
    free_comm(c);
    for (int i = 0; i < st->levels && st->level; i++) {
        free(st->level[i].narrow);
        free(st->level[i].wide);
    }
    for (int i = 0; i < 2; i++) {
        c->dev->ops->release(c->dev, st->scratch[i]);
        free(st->req[i]);
        free(st->peer[i]);
    }
    free(st->left);
    free(st->bye);
    free(st->level);
    free(st->pending.jobs);
    free(st);
    c->state = NULL;
}

static hvt_status plan_level(level *l, const hvt_world *w, int width)
{
    int rank = w->rank, size = w->size, n;

    l->first = rank / (2 * width) * (2 * width);
    l->mid = l->first + width < size ? l->first + width : size;
    l->end = l->first + 2 * width < size ? l->first + 2 * width : size;
    n = l->end - l->first;
    l->narrow = malloc((size_t)n * sizeof *l->narrow);
    l->wide = malloc((size_t)n * sizeof *l->wide);
    HVT_CHECK(l->narrow && l->wide, E_MEM, "no memory for the slices of %d ranks", n);
    for (int i = 0; i < n; i++) {
        l->wide[i] = hvt__slice_of(i, n);
        l->narrow[i] =
            i < width ? hvt__slice_of(i, l->mid - l->first) : hvt__slice_of(i - width, l->end - l->mid);
        l->far = l->far || w->node_of[l->first + i] != w->node_of[l->first];
    }
    return HVT_OK;
}

/* What can fail on one rank alone. */
static hvt_status prepare(hvt_comm *c)
{
    const hvt__comm_tuning *t = &c->tuned;
    int size = c->world->size;
    size_t room;
    comm_mpi *st = calloc(1, sizeof *st);

    HVT_CHECK(st, E_MEM, "no memory for a comm");
    st->comm = MPI_COMM_NULL;
    st->pending.run = st->pending.issued = c->issued;
    c->state = st;
    if (size == 1)
        return HVT_OK;
    for (int width = 1; width < size; width *= 2)
        st->levels++;
    st->level = calloc((size_t)st->levels, sizeof *st->level);
    HVT_CHECK(st->level, E_MEM, "no memory for a tree of %d ranks", size);
    for (int i = 0; i < st->levels; i++)
        HVT_TRY(plan_level(&st->level[i], c->world, 1 << i));
    st->left = calloc((size_t)size, sizeof *st->left);
    st->bye = malloc((size_t)size * sizeof *st->bye);
    HVT_CHECK(st->left && st->bye, E_MEM, "no memory for a comm of %d ranks", size);
    for (int r = 0; r < size; r++)
        st->bye[r] = MPI_REQUEST_NULL;
    st->window = t->mpi_window < t->mpi_message ? t->mpi_window : t->mpi_message;
    room = st->window * sizeof(float) > t->mpi_short ? st->window * sizeof(float) : t->mpi_short;
    for (int i = 0; i < 2; i++) {
        st->req[i] = malloc(2 * PIECES * (size_t)size * sizeof *st->req[i]);
        st->peer[i] = malloc(2 * PIECES * (size_t)size * sizeof *st->peer[i]);
        HVT_CHECK(st->req[i] && st->peer[i], E_MEM, "no memory for the requests of %d ranks", size);
        HVT_TRY(c->dev->ops->alloc(c->dev, room, &st->scratch[i]));
    }
    return HVT_OK;
}

static hvt_status comm_open_mpi(hvt_comm *c)
{
    comm_mpi *st;

    HVT_TRY(hvt_world_agree(c->world, prepare(c)));
    if (c->world->size == 1)
        return HVT_OK; /* nothing travels, so a lone world will do */
    st = c->state;
    HVT_TRY_MPI_WAIT(c->world, HVT__ANYONE, "open a comm",
                     MPI_Comm_dup(hvt__world_mpi_comm(c->world), &st->comm));
    HVT_TRY_MPI(MPI_Comm_set_errhandler(st->comm, MPI_ERRORS_RETURN));
    return HVT_OK;
}

static hvt_status comm_alloc_mpi(hvt_comm *c, size_t bytes, void **ret_ptr)
{
    return c->dev->ops->alloc(c->dev, bytes, ret_ptr);
}

static hvt_status comm_wait_mpi(hvt_comm *c, hvt_ticket ticket);

static void comm_release_mpi(hvt_comm *c, void *ptr)
{
    comm_mpi *st = c->state;

    if (ptr && st->pending.run < c->issued)
        comm_wait_mpi(c, c->issued); /* what was issued on it; a failure has been or will be told by wait */
    if (!st->dropped)
        c->dev->ops->release(c->dev, ptr);
}

static int comm_peers_mpi(hvt_comm *c, const void *buf, const void *ret_ptrs[])
{
    (void)c, (void)buf, (void)ret_ptrs;
    return 0;
}

/* ---- messages ----------------------------------------------------------------------------- */

static hvt_status take(run *o, int set, void *to, size_t count, int from)
{
    comm_mpi *st = o->st;

    HVT_TRY_MPI(MPI_Irecv(to, (int)count, o->wire, from, 0, st->comm, &st->req[set][st->reqs[set]]));
    st->peer[set][st->reqs[set]++] = from;
    return HVT_OK;
}

static hvt_status give(run *o, int set, const void *what, size_t count, int to)
{
    comm_mpi *st = o->st;

    HVT_TRY_MPI(MPI_Isend(what, (int)count, o->wire, to, 0, st->comm, &st->req[set][st->reqs[set]]));
    st->peer[set][st->reqs[set]++] = to;
    return HVT_OK;
}

/* Messages that did not come are waited for, or left for later. */
static hvt_status arrive(run *o, int set, bool wait, bool *ret_there)
{
    comm_mpi *st = o->st;

    *ret_there = wait;
    if (wait)
        HVT_TRY(hvt__mpi_await(o->c, st->reqs[set], st->req[set], st->peer[set], "send and take its part"));
    else
        HVT_TRY(hvt__mpi_test(st->reqs[set], st->req[set], ret_there));
    if (*ret_there)
        st->reqs[set] = 0;
    return HVT_OK;
}

static void *at(const run *o, size_t element)
{
    return o->buf + element * o->bytes;
}

/* buf[w] = left half's sum + right half's; mine is in buf, the other one in scratch. */
static hvt_status merge(run *o, const level *l, hvt__span w, const void *scratch)
{
    bool left = o->c->world->rank < l->mid;
    const void *in[2] = {left ? at(o, w.first) : scratch, left ? scratch : at(o, w.first)};

    if (w.first == w.end)
        return HVT_OK;
    return o->c->dev->ops->reduce(o->c->dev, w.end - w.first, o->type, in, 2, at(o, w.first));
}

/* Elements of a message that carries all or a part of a short vector. */
static size_t eager(const run *o, const level *l)
{
    size_t most = EAGER / o->bytes;

    return l->far || o->count > PIECES * most ? o->count : most;
}

/* Let elements [p.first, p.end) of the halves' sums change sides. */
static hvt_status trade(run *o, const level *l, hvt__span p)
{
    int me = o->c->world->rank, lefts = l->mid - l->first, rights = l->end - l->mid;
    void *in = (char *)o->st->scratch[0] + p.first * o->bytes, *out = at(o, p.first);
    size_t n = p.end - p.first;

    if (me < l->mid) {
        HVT_TRY(take(o, 0, in, n, l->mid + (me - l->first) % rights));
        return me - l->first < rights ? give(o, 0, out, n, l->mid + (me - l->first)) : HVT_OK;
    }
    HVT_TRY(take(o, 0, in, n, l->first + (me - l->mid)));
    for (int j = me - l->mid; j < lefts; j += rights)
        HVT_TRY(give(o, 0, out, n, l->first + j));
    return HVT_OK;
}

/* ---- what an operation does between messages ---------------------------------------------- */

/* The next level with two halves; NULL: nothing is left to add. */
static const level *climb(run *o)
{
    while (o->at < o->st->levels && o->st->level[o->at].mid == o->st->level[o->at].end)
        o->at++;
    return o->at < o->st->levels && o->count ? &o->st->level[o->at] : NULL;
}

/* Vectors that are not worth cutting: every rank of a half holds all of its sum. */
static hvt_status go_on_whole(run *o)
{
    hvt__span all = {0, o->count};
    const level *l = &o->st->level[o->at];
    size_t most;

    if (o->awaits) {
        o->awaits = false;
        o->at++;
        return merge(o, l, all, o->st->scratch[0]);
    }
    l = climb(o);
    if (!l) {
        o->stage = DONE;
        return HVT_OK;
    }
    most = eager(o, l);
    for (size_t first = 0; first < o->count; first += most)
        HVT_TRY(trade(o, l, hvt__meet(all, (hvt__span){first, first + most})));
    o->k = 0;
    o->awaits = true;
    return HVT_OK;
}

/* Window k of a rank's new slice. */
static hvt__span window(const run *o, const level *l, int rank, size_t k, size_t most)
{
    hvt__span s = wide(l, o->count, rank);

    return hvt__meet(s, (hvt__span){s.first + k * most, s.first + (k + 1) * most});
}

/* Let window k of everyone's new slice travel. */
static hvt_status depart(run *o, const level *l, size_t k, size_t most)
{
    int me = o->c->world->rank, set = (int)(k & 1);
    hvt__span mine = window(o, l, me, k, most), held = narrow(l, o->count, me);

    for (int r = l->first; r < l->end; r++) {
        hvt__span in, out;

        if (r == me)
            continue;
        in = hvt__meet(mine, narrow(l, o->count, r));
        out = hvt__meet(held, window(o, l, r, k, most));
        if (in.end && (r < l->mid) == (me < l->mid)) /* my half's: beside what I hold of it */
            HVT_TRY(take(o, set, at(o, in.first), in.end - in.first, r));
        else if (in.end)
            HVT_TRY(take(o, set, (char *)o->st->scratch[set] + (in.first - mine.first) * o->bytes,
                         in.end - in.first, r));
        if (out.end)
            HVT_TRY(give(o, set, at(o, out.first), out.end - out.first, r));
    }
    return HVT_OK;
}

/* Elements of a window on this level, `most` where all are on one host. */
static size_t window_of(const run *o, const level *l, size_t most)
{
    size_t packet = o->c->tuned.mpi_packet / o->bytes;

    return l->far && packet < most ? packet : most;
}

/* Up the tree: while one window is added, the next one travels. */
static hvt_status go_on_scatter(run *o)
{
    const level *l = &o->st->level[o->at];
    size_t n, longest;

    if (o->awaits) {
        if (o->k + 1 < o->windows)
            HVT_TRY(depart(o, l, o->k + 1, o->most));
        HVT_TRY(merge(o, l, window(o, l, o->c->world->rank, o->k, o->most), o->st->scratch[o->k & 1]));
        o->awaits = ++o->k < o->windows;
        o->at += !o->awaits;
        return HVT_OK;
    }
    l = climb(o);
    if (!l) {
        o->stage = o->spreads ? GATHER : DONE;
        o->at = o->st->levels - 1;
        return HVT_OK;
    }
    n = (size_t)(l->end - l->first);
    longest = ((o->count + 15) / 16 + n - 1) / n * 16;
    o->most = window_of(o, l, o->st->window);
    o->windows = (longest + o->most - 1) / o->most;
    o->k = 0;
    o->awaits = true;
    return depart(o, l, 0, o->most);
}

/* Let window k of every slice of the block travel into the halves' slices. */
static hvt_status spread(run *o, const level *l, size_t k, size_t most)
{
    int me = o->c->world->rank, set = (int)(k & 1);
    hvt__span have = wide(l, o->count, me), want = narrow(l, o->count, me);

    for (int r = l->first; r < l->end; r++) {
        hvt__span in = hvt__meet(want, wide(l, o->count, r)), out = hvt__meet(have, narrow(l, o->count, r));

        if (r == me)
            continue;
        in = hvt__meet(in, (hvt__span){in.first + k * most, in.first + (k + 1) * most});
        out = hvt__meet(out, (hvt__span){out.first + k * most, out.first + (k + 1) * most});
        if (in.end)
            HVT_TRY(take(o, set, at(o, in.first), in.end - in.first, r));
        if (out.end)
            HVT_TRY(give(o, set, at(o, out.first), out.end - out.first, r));
    }
    return HVT_OK;
}

/* The way back: on every level, from slices of the block to slices of the halves. */
static hvt_status go_on_gather(run *o)
{
    const level *l;

    if (o->awaits) {
        o->k++;
    } else {
        while (o->at >= o->from && o->st->level[o->at].mid == o->st->level[o->at].end)
            o->at--;
        if (o->at < o->from) {
            o->stage = DONE;
            return HVT_OK;
        }
        o->k = 0;
        o->most = window_of(o, &o->st->level[o->at], o->c->tuned.mpi_message);
        HVT_TRY(spread(o, &o->st->level[o->at], 0, o->most));
    }
    l = &o->st->level[o->at];
    o->awaits = o->st->reqs[o->k & 1] > 0;
    o->at -= !o->awaits;
    return o->awaits ? spread(o, l, o->k + 1, o->most) : HVT_OK;
}

static hvt_status go_on(run *o, bool wait, bool *ret_done)
{
    static hvt_status (*const next[])(run *) = {go_on_whole, go_on_scatter, go_on_gather};
    bool there = true;

    while (o->stage != DONE) {
        if (o->awaits)
            HVT_TRY(arrive(o, (int)(o->k & 1), wait, &there));
        if (!there)
            break;
        HVT_TRY(next[o->stage](o));
    }
    *ret_done = o->stage == DONE;
    return HVT_OK;
}

/* ---- operations --------------------------------------------------------------------------- */

bool hvt__mpi_whole(const hvt_comm *c, const hvt__job *j)
{
    return j->kind == HVT__ALLREDUCE && j->count * hvt_dtype_size(j->type) <= c->tuned.mpi_short &&
           j->count <= c->tuned.mpi_message;
}

/* From level `levels` on. */
static run begin(hvt_comm *c, const hvt__job *j, int levels)
{
    comm_mpi *st = c->state;

    return (run){.c = c,
                 .st = st,
                 .buf = j->buf,
                 .count = j->count,
                 .bytes = hvt_dtype_size(j->type),
                 .type = j->type,
                 .wire = j->type == HVT_F32 ? MPI_FLOAT : MPI_UINT16_T,
                 .from = levels,
                 .spreads = j->kind != HVT__REDUCE_SCATTER,
                 .stage = hvt__mpi_whole(c, j)        ? WHOLE
                          : j->kind == HVT__ALLGATHER ? GATHER
                                                      : SCATTER,
                 .at = j->kind == HVT__ALLGATHER ? st->levels - 1 : levels};
}

hvt_status hvt__mpi_above(hvt_comm *c, const hvt__job *j, int levels)
{
    run o = begin(c, j, levels);
    hvt_status s;
    bool done;

    HVT_TRY_OR(fail, go_on(&o, true, &done));
    return HVT_OK;
fail:
    return give_up(c, s);
}

static hvt_status advance(hvt_comm *c, const hvt__job *j, bool wait)
{
    comm_mpi *st = c->state;
    bool done;

    if (!st->begun)
        st->run = begin(c, j, 0);
    HVT_TRY(go_on(&st->run, wait, &done));
    st->begun = !done;
    return HVT_OK;
}

static hvt_status perform(hvt_comm *c, const hvt__job *j)
{
    return advance(c, j, true);
}

static hvt_status comm_wait_mpi(hvt_comm *c, hvt_ticket ticket)
{
    hvt_status s = hvt__pending_run(c, ticket, perform);

    return s == HVT_OK ? s : give_up(c, s);
}

static hvt_status comm_progress_mpi(hvt_comm *c)
{
    comm_mpi *st = c->state;
    hvt__pending *p = &st->pending;

    while (!p->broken && p->run < p->issued) {
        p->broken = advance(c, hvt__pending_at(p, p->run + 1), false);
        if (p->broken)
            return hvt__pass(give_up(c, p->broken), __FILE__, __LINE__, "progress");
        if (st->begun)
            break;
        p->run++;
    }
    return HVT_OK;
}

static hvt_status comm_broadcast_mpi(hvt_comm *c, void *buf, size_t bytes, int root)
{
    comm_mpi *st = c->state;

    HVT_TRY(comm_wait_mpi(c, c->issued));
    for (size_t done = 0; done < bytes && c->world->size > 1;) {
        size_t most = c->tuned.mpi_message, part = bytes - done < most ? bytes - done : most;

        HVT_TRY_MPI_WAIT(c->world, root, "broadcast",
                         MPI_Bcast((char *)buf + done, (int)part, MPI_BYTE, root, st->comm));
        done += part;
    }
    return HVT_OK;
}

const hvt_comm_ops hvt_comm_mpi = {
    .name = "mpi",
    .messages = true,
    .open = comm_open_mpi,
    .close = comm_close_mpi,
    .alloc = comm_alloc_mpi,
    .release = comm_release_mpi,
    .peers = comm_peers_mpi,
    .broadcast = comm_broadcast_mpi,
    .allreduce = hvt__pending_allreduce,
    .reduce_scatter = hvt__pending_reduce_scatter,
    .allgather = hvt__pending_allgather,
    .wait = comm_wait_mpi,
    .progress = comm_progress_mpi,
    .left = comm_left_mpi,
    .leave = comm_leave_mpi,
};
