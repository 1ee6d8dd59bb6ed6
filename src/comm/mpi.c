/*
 * The comm over point-to-point messages of MPI, on a communicator of its own.
 *
 * allreduce = reduce_scatter up the tree of tree.c, then allgather down it; a short vector travels whole
 * instead. On every level a rank of a block holds a slice of the block's sum, exchanges the pieces
 * that others will hold for those that it will, and adds the two halves' parts of its new slice with the
 * device. Long slices are cut into windows: while one window is added, the next one travels. Between hosts
 * a window is one packet: over TCP the two directions of a long message take turns, half as fast as packets.
 *
 * 16-bit sums are rounded on every level, which is when they travel; so the short and the long way
 * round alike.
 *
 * Who closes the comm, or fails, tells all others by a message with a tag of its own: so nobody waits for a
 * rank that will not come, and once all have said so nothing is under way any more.
 */
#include "base_impl.h"
#include "world/mpi_call.h"
#include "comm_internal.h"

#include <stdlib.h>

enum {
    EAGER = 3968, /* bytes of a message that one process of a host hands another without asking first */
    PIECES = 5,   /* into which a short vector is cut for that, at most */
    LEAVES = 1,   /* tag: the sender has left the comm; data have tag 0 */
};

typedef struct level {
    int first, mid, end; /* the block; mid == end: no right half, nothing to do */
    int *child, *parent; /* [end - first] place of every rank's slice in its half and in the block */
    bool far;            /* the block spans hosts */
} level;

/* The operation that runs. */
typedef struct run {
    hvt_comm *c;
    struct comm_mpi *st;
    hvt_device *dev;
    char *buf;
    size_t count, bytes; /* elements; bytes of one */
    hvt_dtype type;
    MPI_Datatype wire;
    int from; /* level; what is below has been done */
} run;

typedef struct comm_mpi {
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
static hvt__span child_slice(const level *l, size_t count, int rank)
{
    int i = rank - l->first, n = rank < l->mid ? l->mid - l->first : l->end - l->mid;

    return (hvt__span){hvt__cut(count, l->child[i], n), hvt__cut(count, l->child[i] + 1, n)};
}

static hvt__span parent_slice(const level *l, size_t count, int rank)
{
    int i = rank - l->first, n = l->end - l->first;

    return (hvt__span){hvt__cut(count, l->parent[i], n), hvt__cut(count, l->parent[i] + 1, n)};
}

/* ---- life --------------------------------------------------------------------------------- */

/* News of ranks that leave. */
static hvt_status hear(hvt_comm *c)
{
    comm_mpi *st = c->state;
    MPI_Status from;
    int there = 1, why;

    HVT_CHECK(hvt__mpi_is_up(), E_COMM, "MPI has been finalised: no rank can be reached any more");
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

    if (st->why || st->comm == MPI_COMM_NULL || !hvt__mpi_is_up())
        return;
    st->why = st->left[c->world->rank] = (int)why;
    entered = hvt__mpi_enter();
    for (int r = 0; r < c->world->size; r++)
        if (r != c->world->rank)
            MPI_Isend(&st->why, 1, MPI_INT, r, LEAVES, st->comm, &st->bye[r]);
    hvt__mpi_leave(entered);
}

/* What is under way is given up. */
static void drop(comm_mpi *st)
{
    for (int i = 0; i < 2; i++) {
        st->dropped = st->dropped || st->reqs[i];
        hvt__mpi_drop(st->reqs[i], st->req[i]);
        st->reqs[i] = 0;
    }
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
    all_left = hvt__comm_disconnect(c);
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
        free(st->level[i].child);
        free(st->level[i].parent);
    }
    for (int i = 0; i < 2; i++) {
        c->dev->ops->release(c->dev, st->scratch[i]);
        free(st->req[i]);
        free(st->peer[i]);
    }
    free(st->left);
    free(st->bye);
    free(st->level);
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
    l->child = malloc((size_t)n * sizeof *l->child);
    l->parent = malloc((size_t)n * sizeof *l->parent);
    HVT_CHECK(l->child && l->parent, E_MEM, "no memory for the slices of %d ranks", n);
    for (int i = 0; i < n; i++) {
        l->parent[i] = hvt__slice_index(i, n);
        l->child[i] =
            i < width ? hvt__slice_index(i, l->mid - l->first) : hvt__slice_index(i - width, l->end - l->mid);
        l->far = l->far || w->node_of[l->first + i] != w->node_of[l->first];
    }
    return HVT_OK;
}

/* What can fail on one rank alone. */
static hvt_status prepare(hvt_comm *c)
{
    const hvt__cutoffs *t = &c->cutoffs;
    int size = c->world->size;
    size_t room;
    comm_mpi *st = calloc(1, sizeof *st);

    HVT_CHECK(st, E_MEM, "no memory for a comm");
    st->comm = MPI_COMM_NULL;
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

static void comm_release_mpi(hvt_comm *c, void *ptr)
{
    comm_mpi *st = c->state;

    if (!st->dropped)
        c->dev->ops->release(c->dev, ptr);
}

/* ---- messages ----------------------------------------------------------------------------- */

static hvt_status recv(run *o, int set, void *to, size_t count, int from)
{
    comm_mpi *st = o->st;

    HVT_TRY_MPI(MPI_Irecv(to, (int)count, o->wire, from, 0, st->comm, &st->req[set][st->reqs[set]]));
    st->peer[set][st->reqs[set]++] = from;
    return HVT_OK;
}

static hvt_status send(run *o, int set, const void *what, size_t count, int to)
{
    comm_mpi *st = o->st;

    HVT_TRY_MPI(MPI_Isend(what, (int)count, o->wire, to, 0, st->comm, &st->req[set][st->reqs[set]]));
    st->peer[set][st->reqs[set]++] = to;
    return HVT_OK;
}

static hvt_status arrive(run *o, int set)
{
    comm_mpi *st = o->st;
    int n = st->reqs[set];

    HVT_TRY(
        hvt__mpi_await(o->c->world, &o->c->party, n, st->req[set], st->peer[set], "send and take its part"));
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
    return o->dev->ops->reduce(o->dev, w.end - w.first, o->type, in, 2, at(o, w.first));
}

/* Elements of a message that carries all or a part of a short vector. */
static size_t eager(const run *o, const level *l)
{
    size_t most = EAGER / o->bytes;

    return l->far || o->count > PIECES * most ? o->count : most;
}

/* Let elements [p.first, p.end) of the halves' sums change sides. */
static hvt_status exchange(run *o, const level *l, hvt__span p)
{
    int me = o->c->world->rank, lefts = l->mid - l->first, rights = l->end - l->mid;
    void *in = (char *)o->st->scratch[0] + p.first * o->bytes, *out = at(o, p.first);
    size_t n = p.end - p.first;

    if (me < l->mid) {
        HVT_TRY(recv(o, 0, in, n, l->mid + (me - l->first) % rights));
        return me - l->first < rights ? send(o, 0, out, n, l->mid + (me - l->first)) : HVT_OK;
    }
    HVT_TRY(recv(o, 0, in, n, l->first + (me - l->mid)));
    for (int j = me - l->mid; j < lefts; j += rights)
        HVT_TRY(send(o, 0, out, n, l->first + j));
    return HVT_OK;
}

/* Does this rank's block have two halves on level i? */
static bool merges(const run *o, int i)
{
    return o->st->level[i].mid < o->st->level[i].end;
}

/* Vectors that are not worth cutting: every rank of a half holds all of its sum. */
static hvt_status sum_whole(run *o)
{
    hvt__span all = {0, o->count};

    for (int i = o->from; i < o->st->levels; i++) {
        const level *l = &o->st->level[i];
        size_t most;

        if (!merges(o, i))
            continue;
        most = eager(o, l);
        for (size_t first = 0; first < o->count; first += most)
            HVT_TRY(exchange(o, l, hvt__intersect(all, (hvt__span){first, first + most})));
        HVT_TRY(arrive(o, 0));
        HVT_TRY(merge(o, l, all, o->st->scratch[0]));
    }
    return HVT_OK;
}

/* ---- up the tree: while one window is added, the next one travels ----------------------------- */

/* Window k of a rank's new slice. */
static hvt__span window(const run *o, const level *l, int rank, size_t k, size_t most)
{
    hvt__span s = parent_slice(l, o->count, rank);

    return hvt__intersect(s, (hvt__span){s.first + k * most, s.first + (k + 1) * most});
}

/* Let window k of everyone's new slice travel. */
static hvt_status send_up(run *o, const level *l, size_t k, size_t most)
{
    int me = o->c->world->rank, set = (int)(k & 1);
    hvt__span mine = window(o, l, me, k, most), held = child_slice(l, o->count, me);

    for (int r = l->first; r < l->end; r++) {
        hvt__span in, out;

        if (r == me)
            continue;
        in = hvt__intersect(mine, child_slice(l, o->count, r));
        out = hvt__intersect(held, window(o, l, r, k, most));
        if (in.end && (r < l->mid) == (me < l->mid)) /* my half's: beside what I hold of it */
            HVT_TRY(recv(o, set, at(o, in.first), in.end - in.first, r));
        else if (in.end)
            HVT_TRY(recv(o, set, (char *)o->st->scratch[set] + (in.first - mine.first) * o->bytes,
                         in.end - in.first, r));
        if (out.end)
            HVT_TRY(send(o, set, at(o, out.first), out.end - out.first, r));
    }
    return HVT_OK;
}

/* Elements of a window on this level, `most` where all are on one host. */
static size_t window_of(const run *o, const level *l, size_t most)
{
    size_t packet = o->c->cutoffs.mpi_packet / o->bytes;

    return l->far && packet < most ? packet : most;
}

static hvt_status sum_level(run *o, const level *l)
{
    size_t n = (size_t)(l->end - l->first), longest = ((o->count + 15) / 16 + n - 1) / n * 16;
    size_t most = window_of(o, l, o->st->window), windows = (longest + most - 1) / most;

    HVT_TRY(send_up(o, l, 0, most));
    for (size_t k = 0; k < windows; k++) {
        HVT_TRY(arrive(o, (int)(k & 1)));
        if (k + 1 < windows)
            HVT_TRY(send_up(o, l, k + 1, most));
        HVT_TRY(merge(o, l, window(o, l, o->c->world->rank, k, most), o->st->scratch[k & 1]));
    }
    return HVT_OK;
}

static hvt_status reduce_scatter(run *o)
{
    for (int i = o->from; i < o->st->levels; i++)
        if (merges(o, i))
            HVT_TRY(sum_level(o, &o->st->level[i]));
    return HVT_OK;
}

/* ---- and back: on every level, from slices of the block to slices of the halves ---------------- */

/* Let window k of every slice of the block travel into the halves' slices. */
static hvt_status send_down(run *o, const level *l, size_t k, size_t most)
{
    int me = o->c->world->rank, set = (int)(k & 1);
    hvt__span have = parent_slice(l, o->count, me), want = child_slice(l, o->count, me);

    for (int r = l->first; r < l->end; r++) {
        hvt__span in = hvt__intersect(want, parent_slice(l, o->count, r));
        hvt__span out = hvt__intersect(have, child_slice(l, o->count, r));

        if (r == me)
            continue;
        in = hvt__intersect(in, (hvt__span){in.first + k * most, in.first + (k + 1) * most});
        out = hvt__intersect(out, (hvt__span){out.first + k * most, out.first + (k + 1) * most});
        if (in.end)
            HVT_TRY(recv(o, set, at(o, in.first), in.end - in.first, r));
        if (out.end)
            HVT_TRY(send(o, set, at(o, out.first), out.end - out.first, r));
    }
    return HVT_OK;
}

static hvt_status allgather(run *o)
{
    for (int i = o->st->levels - 1; i >= o->from; i--) {
        const level *l = &o->st->level[i];
        size_t most = window_of(o, l, o->c->cutoffs.mpi_message);

        if (!merges(o, i))
            continue;
        HVT_TRY(send_down(o, l, 0, most));
        for (size_t k = 0; o->st->reqs[k & 1]; k++) {
            HVT_TRY(send_down(o, l, k + 1, most));
            HVT_TRY(arrive(o, (int)(k & 1)));
        }
    }
    return HVT_OK;
}

/* ---- operations --------------------------------------------------------------------------- */

bool hvt__mpi_whole(const hvt_comm *c, const hvt__op *op)
{
    return op->kind == HVT__ALLREDUCE && op->count * hvt_dtype_size(op->type) <= c->cutoffs.mpi_short &&
           op->count <= c->cutoffs.mpi_message;
}

static hvt_status broadcast(run *o, int root)
{
    for (size_t done = 0; done < o->count && o->c->world->size > 1;) {
        size_t most = o->c->cutoffs.mpi_message, part = o->count - done < most ? o->count - done : most;

        HVT_TRY_MPI_WAIT(o->c->world, root, "broadcast",
                         MPI_Bcast(o->buf + done, (int)part, MPI_BYTE, root, o->st->comm));
        done += part;
    }
    return HVT_OK;
}

static hvt_status run_kind(run *o, const hvt__op *op)
{
    if (op->kind == HVT__BROADCAST)
        return broadcast(o, op->root);
    if (!o->count || o->c->world->size == 1)
        return HVT_OK;
    HVT_CHECK(hvt__mpi_is_up(), E_COMM, "MPI has been finalised: no rank can be reached any more");
    if (hvt__mpi_whole(o->c, op))
        return sum_whole(o);
    if (op->kind != HVT__ALLGATHER)
        HVT_TRY(reduce_scatter(o));
    return op->kind != HVT__REDUCE_SCATTER ? allgather(o) : HVT_OK;
}

/* What fails: this rank takes part in nothing any more, and says so, unless hvt__comm_lost() knew better. */
hvt_status hvt__mpi_above(hvt_comm *c, hvt_device *dev, const hvt__op *op, int levels)
{
    run o = {.c = c,
             .st = c->state,
             .dev = dev,
             .buf = op->buf,
             .count = op->count,
             .bytes = hvt_dtype_size(op->type),
             .type = op->type,
             .wire = op->type == HVT_F32 ? MPI_FLOAT : MPI_UINT16_T,
             .from = levels};
    hvt_status s = run_kind(&o, op);

    if (s != HVT_OK) {
        drop(c->state);
        comm_leave_mpi(c, HVT__BY_ITSELF);
    }
    return s;
}

static hvt_status comm_run_mpi(hvt_comm *c, hvt_device *dev, const hvt__op *op)
{
    return hvt__mpi_above(c, dev, op, 0);
}

const hvt_comm_ops hvt_comm_mpi = {
    .name = "mpi",
    .messages = true,
    .open = comm_open_mpi,
    .close = comm_close_mpi,
    .alloc = comm_alloc_mpi,
    .release = comm_release_mpi,
    .run = comm_run_mpi,
    .left = comm_left_mpi,
    .leave = comm_leave_mpi,
};
