/*
 * The comm over a world's messages, on a channel of its own: comm "mpi" or "tcp".
 *
 * allreduce = reduce_scatter up the tree of tree.c, then allgather down it; a short vector is sent whole
 * instead. On every level a rank holds a slice of its block's sum. It exchanges the pieces that others will
 * hold for those that it will hold, and adds both halves' parts of its new slice on the device. Long slices
 * are cut into windows: while one is added, the next is received. Between hosts a window is one packet,
 * because over TCP the two directions of a long message alternate, at half the speed of packets.
 *
 * 16-bit sums are rounded on every level, where they are sent, so short and long vectors are rounded alike.
 *
 * A rank that closes the comm, or fails, tells all others that it leaves the channel, so that no rank waits
 * for it. Once all have left, no message is in flight any more.
 */
#include "base_impl.h"
#include "comm_internal.h"

enum {
    EAGER = 3968, /* bytes of a message that processes of one host exchange without a handshake */
    PIECES = 5,   /* maximum number of such messages for a short vector */
};

typedef struct level {
    int first, mid, end; /* the block; mid == end: no right half, nothing to do */
    int *child, *parent; /* [end - first] index of every rank's slice in its half and in the block */
    bool far;            /* the block spans hosts */
} level;

/* An operation while it runs. */
typedef struct run {
    hvt_comm *c;
    struct comm_messages *st;
    hvt_device *dev;
    char *buf;
    size_t count, bytes; /* elements; bytes per element */
    hvt_dtype type;
} run;

typedef struct comm_messages {
    void *channel;    /* NULL: one rank, or not yet open */
    int from, levels; /* from: the first level to do */
    level *level;
    int *places;      /* memory of the levels */
    size_t window;    /* elements that are added while the next ones are received */
    void *scratch[2]; /* [window] the other half's part of a window */
    hvt__flight flight[2];
    size_t piece;   /* sums over shards: elements of a leaf that are added while the next ones arrive */
    float *leaf[2]; /* [leaves][piece] the other ranks' leaves */
    void **part;    /* [leaves] */
    bool dropped;   /* an operation was abandoned in flight, so a peer may still read its data */
    int word[];     /* [size] last word of each rank, as far as known */
} comm_messages;

/* A rank's slice of its half, before the halves are merged; parent_slice(): of the block, after it. */
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

static int comm_word_messages(hvt_comm *c, int rank)
{
    comm_messages *st = c->state;

    /* if hearing fails, the waiting thread gets an error, too */
    if (st->channel && (hvt__world_check_up(c->world) != HVT_OK ||
                        c->world->ops->hear(c->world, st->channel, st->word) != HVT_OK))
        return HVT__HERE;
    return st->word[rank];
}

static void comm_tell_messages(hvt_comm *c, int word)
{
    comm_messages *st = c->state;

    if (hvt__is_gone(st->word[c->world->rank]) || !st->channel)
        return;
    st->word[c->world->rank] = word;
    c->world->ops->tell(c->world, st->channel, word);
}

/* Abandon messages in flight. */
static void drop(comm_messages *st)
{
    for (int i = 0; i < 2; i++) {
        st->dropped = st->dropped || st->flight[i].n;
        hvt__flight_drop(&st->flight[i]);
    }
}

static void comm_close_messages(hvt_comm *c)
{
    comm_messages *st = c->state;
    hvt_world *w = c->world;
    bool quiet;

    if (!st)
        return;
    if (st->channel) {
        drop(st);
        quiet = hvt__world_check_up(w) == HVT_OK && hvt__comm_disconnect(c);
        w->ops->close_channel(w, st->channel, quiet);
    }
    for (int i = 0; i < 2; i++) {
        c->dev->ops->memory.release(c->dev, st->scratch[i]);
        c->dev->ops->memory.release(c->dev, st->leaf[i]);
        free(st->flight[i].request);
    }
    free(st->part);
    free(st->level);
    free(st->places);
    free(st);
    c->state = NULL;
}

/* places: [2 * size] for child and parent */
static void plan_level(level *l, const hvt_world *w, int width, int *places)
{
    int rank = w->rank, size = w->size, n;

    l->first = rank / (2 * width) * (2 * width);
    l->mid = l->first + width < size ? l->first + width : size;
    l->end = l->first + 2 * width < size ? l->first + 2 * width : size;
    n = l->end - l->first;
    l->child = places;
    l->parent = places + n;
    for (int i = 0; i < n; i++) {
        l->parent[i] = hvt__slice_index(i, n);
        l->child[i] =
            i < width ? hvt__slice_index(i, l->mid - l->first) : hvt__slice_index(i - width, l->end - l->mid);
        l->far = l->far || w->node_of[l->first + i] != w->node_of[l->first];
    }
}

/* The steps that may fail on one rank only. */
static hvt_status prepare(hvt_comm *c)
{
    const hvt__cutoffs *t = &c->cutoffs;
    int size = c->world->size;
    size_t room;
    comm_messages *st = calloc(1, sizeof *st + (size_t)size * sizeof *st->word);

    HVT_CHECK(st, E_MEM, "no memory for a comm of %d ranks", size);
    c->state = st;
    st->flight[0].world = st->flight[1].world = c->world;
    for (int width = 1; width < size; width *= 2)
        st->levels++;
    st->level = calloc((size_t)st->levels + 1, sizeof *st->level);
    st->places = calloc((size_t)st->levels + 1, 2 * (size_t)size * sizeof *st->places);
    HVT_CHECK(st->level && st->places, E_MEM, "no memory for a tree of %d ranks", size);
    for (int i = 0; i < st->levels; i++)
        plan_level(&st->level[i], c->world, 1 << i, st->places + (size_t)(2 * size * i));
    st->window = t->mpi_window < t->mpi_message ? t->mpi_window : t->mpi_message;
    room = st->window * sizeof(float) > t->mpi_short ? st->window * sizeof(float) : t->mpi_short;
    for (int i = 0; i < 2 && size > 1; i++) {
        HVT_TRY(hvt__flight_reserve(&st->flight[i], 2 * PIECES * size));
        HVT_TRY(c->dev->ops->memory.alloc(c->dev, room, &st->scratch[i]));
    }
    return HVT_OK;
}

static hvt_status comm_open_messages(hvt_comm *c)
{
    comm_messages *st;

    HVT_TRY(hvt_world_agree(c->world, prepare(c)));
    if (c->world->size == 1)
        return HVT_OK; /* no messages, so a world of one process works, too */
    HVT_CHECK(c->world->ops->comm, E_UNSUPPORTED, "the ranks of this world exchange no messages");
    st = c->state;
    HVT_TRY(c->world->ops->open_channel(c->world, &st->channel));
    st->flight[0].channel = st->flight[1].channel = st->channel;
    return HVT_OK;
}

static hvt_status comm_reserve_messages(hvt_comm *c, const hvt__leaves *leaves)
{
    comm_messages *st = c->state;
    const int size = c->world->size, requests = leaves->n + leaves->most * size;
    void **part = realloc(st->part, (size_t)leaves->n * sizeof *part);

    HVT_CHECK(part, E_MEM, "no memory for sums of %d parts", leaves->n);
    st->part = part;
    st->piece = st->window / (size_t)leaves->n / 16 * 16;
    st->piece = st->piece ? st->piece : 16;
    for (int i = 0; i < 2; i++) {
        HVT_TRY(hvt__flight_reserve(&st->flight[i], requests));
        c->dev->ops->memory.release(c->dev, st->leaf[i]);
        st->leaf[i] = NULL;
        HVT_TRY(c->dev->ops->memory.alloc(c->dev, (size_t)leaves->n * st->piece * sizeof *st->leaf[i],
                                          (void **)&st->leaf[i]));
    }
    return HVT_OK;
}

static void comm_release_messages(hvt_comm *c, hvt__block *b)
{
    comm_messages *st = c->state;

    if (!st->dropped)
        c->dev->ops->memory.release(c->dev, b->ptr);
}

static void *at(const run *o, size_t element)
{
    return o->buf + element * o->bytes;
}

/* Computes buf[w] = left half's sum + right half's. My half's sum is in buf, the other one in scratch. */
static hvt_status merge(run *o, const level *l, hvt__span w, const void *scratch)
{
    bool left = o->c->world->rank < l->mid;
    const void *in[2] = {left ? at(o, w.first) : scratch, left ? scratch : at(o, w.first)};

    if (w.first == w.end)
        return HVT_OK;
    return o->dev->ops->vector.reduce(o->dev, w.end - w.first, o->type, in, 2, at(o, w.first));
}

/* Exchanges elements [p.first, p.end) of the halves' sums. The left half is at least as large as the right
 * half, so ranks of the right half may have several partners. */
static hvt_status exchange(run *o, const level *l, hvt__span p)
{
    hvt__flight *f = &o->st->flight[0];
    bool left = o->c->world->rank < l->mid;
    int other = left ? l->mid : l->first, theirs = left ? l->end - l->mid : l->mid - l->first;
    int i = o->c->world->rank - (left ? l->first : l->mid), ours = l->end - l->first - theirs;
    size_t n = p.end - p.first;

    HVT_TRY(
        hvt__flight_post(f, false, (char *)o->st->scratch[0] + p.first * o->bytes, n, other + i % theirs));
    for (int j = i; j < theirs; j += ours)
        HVT_TRY(hvt__flight_post(f, true, at(o, p.first), n, other + j));
    return HVT_OK;
}

/* True if this rank's block has two halves on level i. */
static bool merges(const run *o, int i)
{
    return o->st->level[i].mid < o->st->level[i].end;
}

/* Sums a vector that is sent whole: every rank of a half holds the whole sum of the half. */
static hvt_status sum_whole(run *o)
{
    hvt__span all = {0, o->count};

    for (int i = o->st->from; i < o->st->levels; i++) {
        const level *l = &o->st->level[i];
        size_t most = EAGER / o->bytes; /* per message */

        if (!merges(o, i))
            continue;
        if (l->far || o->count > PIECES * most)
            most = o->count;
        for (size_t first = 0; first < o->count; first += most)
            HVT_TRY(exchange(o, l, hvt__intersect(all, (hvt__span){first, first + most})));
        HVT_TRY(hvt__flight_await(&o->st->flight[0], &o->c->group));
        HVT_TRY(merge(o, l, all, o->st->scratch[0]));
    }
    return HVT_OK;
}

/* Returns window k of a rank's new slice. */
static hvt__span window(const run *o, const level *l, int rank, size_t k, size_t most)
{
    hvt__span s = parent_slice(l, o->count, rank);

    return hvt__intersect(s, (hvt__span){s.first + k * most, s.first + (k + 1) * most});
}

/* Send and receive window k of all new slices. */
static hvt_status send_up(run *o, const level *l, size_t k, size_t most)
{
    hvt__flight *f = &o->st->flight[k & 1];
    int me = o->c->world->rank;
    hvt__span mine = window(o, l, me, k, most), held = child_slice(l, o->count, me);
    char *scratch = o->st->scratch[k & 1];
    bool own;

    for (int r = l->first; r < l->end; r++) {
        hvt__span in, out;

        if (r == me)
            continue;
        in = hvt__intersect(mine, child_slice(l, o->count, r));
        out = hvt__intersect(held, window(o, l, r, k, most));
        own = (r < l->mid) == (me < l->mid); /* r's data belong to my half's sum */
        if (in.end)
            HVT_TRY(hvt__flight_post(f, false,
                                     own ? at(o, in.first) : scratch + (in.first - mine.first) * o->bytes,
                                     in.end - in.first, r));
        if (out.end)
            HVT_TRY(hvt__flight_post(f, true, at(o, out.first), out.end - out.first, r));
    }
    return HVT_OK;
}

/* Elements of a window on this level; `most` if its ranks are on one host. */
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
        HVT_TRY(hvt__flight_await(&o->st->flight[k & 1], &o->c->group));
        if (k + 1 < windows)
            HVT_TRY(send_up(o, l, k + 1, most));
        HVT_TRY(merge(o, l, window(o, l, o->c->world->rank, k, most), o->st->scratch[k & 1]));
    }
    return HVT_OK;
}

static hvt_status reduce_scatter(run *o)
{
    for (int i = o->st->from; i < o->st->levels; i++)
        if (merges(o, i))
            HVT_TRY(sum_level(o, &o->st->level[i]));
    return HVT_OK;
}

/* Returns the address of my leaf j. */
static float *my_leaf(const run *o, const hvt__partials *p, int j)
{
    const int me = o->c->world->rank, last = p->leaves->of[me + 1] - p->leaves->of[me] - 1;

    return j == last ? (float *)(void *)o->buf : p->extra + (size_t)j * p->stride;
}

/* Returns piece k of a rank's slice of all elements. */
static hvt__span piece(const run *o, int rank, size_t k)
{
    const level *top = &o->st->level[o->st->levels - 1];

    return window(o, top, rank, k, o->st->piece);
}

/* Send and receive piece k of all ranks' slices of all leaves. */
static hvt_status send_leaves(run *o, const hvt__partials *p, size_t k)
{
    hvt__flight *f = &o->st->flight[k & 1];
    const hvt__leaves *l = p->leaves;
    const int me = o->c->world->rank;
    const hvt__span in = piece(o, me, k);

    for (int r = 0; r < o->c->world->size; r++) {
        const hvt__span out = piece(o, r, k);

        for (int i = l->of[r]; r != me && in.end && i < l->of[r + 1]; i++)
            HVT_TRY(hvt__flight_post(f, false, o->st->leaf[k & 1] + (size_t)i * o->st->piece,
                                     in.end - in.first, r));
        for (int j = 0; r != me && out.end && j < l->of[me + 1] - l->of[me]; j++)
            HVT_TRY(hvt__flight_post(f, true, my_leaf(o, p, j) + out.first, out.end - out.first, r));
    }
    return HVT_OK;
}

/* Adds piece k of my slice over all leaves, into my buffer. */
static hvt_status add_leaves(run *o, const hvt__partials *p, size_t k)
{
    const hvt__leaves *l = p->leaves;
    const int me = o->c->world->rank;
    const hvt__span s = piece(o, me, k);
    float *sum = (float *)(void *)o->buf + s.first;

    if (!s.end)
        return HVT_OK;
    for (int i = 0; i < l->n; i++)
        o->st->part[i] = l->leaf[i].rank == me ? my_leaf(o, p, i - l->of[me]) + s.first
                                               : o->st->leaf[k & 1] + (size_t)i * o->st->piece;
    HVT_TRY(hvt__leaves_add(o->dev, l, s.end - s.first, o->st->part));
    if (o->st->part[0] == sum)
        return HVT_OK;
    return o->dev->ops->memory.copy(o->dev, sum, o->st->part[0], (s.end - s.first) * sizeof *sum);
}

/* Computes a sum over shards: each rank gets the leaves of its slice from all others, and adds them. */
static hvt_status reduce_scatter_leaves(run *o, const hvt__partials *p)
{
    const size_t size = (size_t)o->c->world->size, longest = ((o->count + 15) / 16 + size - 1) / size * 16,
                 pieces = (longest + o->st->piece - 1) / o->st->piece;

    HVT_TRY(send_leaves(o, p, 0));
    for (size_t k = 0; k < pieces; k++) {
        HVT_TRY(hvt__flight_await(&o->st->flight[k & 1], &o->c->group));
        if (k + 1 < pieces)
            HVT_TRY(send_leaves(o, p, k + 1));
        HVT_TRY(add_leaves(o, p, k));
    }
    return HVT_OK;
}

/* Send and receive window k of the block's slices into the halves' slices. */
static hvt_status send_down(run *o, const level *l, size_t k, size_t most)
{
    hvt__flight *f = &o->st->flight[k & 1];
    int me = o->c->world->rank;
    hvt__span have = parent_slice(l, o->count, me), want = child_slice(l, o->count, me);

    for (int r = l->first; r < l->end; r++) {
        hvt__span in = hvt__intersect(want, parent_slice(l, o->count, r));
        hvt__span out = hvt__intersect(have, child_slice(l, o->count, r));

        if (r == me)
            continue;
        in = hvt__intersect(in, (hvt__span){in.first + k * most, in.first + (k + 1) * most});
        out = hvt__intersect(out, (hvt__span){out.first + k * most, out.first + (k + 1) * most});
        if (in.end)
            HVT_TRY(hvt__flight_post(f, false, at(o, in.first), in.end - in.first, r));
        if (out.end)
            HVT_TRY(hvt__flight_post(f, true, at(o, out.first), out.end - out.first, r));
    }
    return HVT_OK;
}

static hvt_status allgather(run *o)
{
    for (int i = o->st->levels - 1; i >= o->st->from; i--) {
        const level *l = &o->st->level[i];
        size_t most = window_of(o, l, o->c->cutoffs.mpi_message);

        if (!merges(o, i))
            continue;
        HVT_TRY(send_down(o, l, 0, most));
        for (size_t k = 0; o->st->flight[k & 1].n; k++) {
            HVT_TRY(send_down(o, l, k + 1, most));
            HVT_TRY(hvt__flight_await(&o->st->flight[k & 1], &o->c->group));
        }
    }
    return HVT_OK;
}

bool hvt__sent_whole(const hvt_comm *c, const hvt__op *op)
{
    return op->kind == HVT__ALLREDUCE && op->count * hvt_dtype_size(op->type) <= c->cutoffs.mpi_short &&
           op->count <= c->cutoffs.mpi_message;
}

void hvt__skip_levels(hvt_comm *c, int levels)
{
    ((comm_messages *)c->state)->from = levels;
}

/* After a failure this rank leaves and tells the others, unless the group's lost() has done so. */
static hvt_status comm_run_messages(hvt_comm *c, hvt_device *dev, const hvt__op *op)
{
    run o = {.c = c,
             .st = c->state,
             .dev = dev,
             .buf = op->buf,
             .count = op->count,
             .bytes = hvt_dtype_size(op->type),
             .type = op->type};
    hvt_status s;

    if (c->world->size == 1)
        return hvt__leaves_add_own(dev, op);
    if (!op->count)
        return HVT_OK;
    HVT_TRY_OR(fail, hvt__world_check_up(c->world));
    o.st->flight[0].element = o.st->flight[1].element = o.bytes;
    if (op->kind == HVT__BROADCAST) {
        HVT_TRY_OR(fail, c->world->ops->broadcast(c->world, o.st->channel, op->buf, op->count, op->root));
    } else if (op->partials.leaves) {
        HVT_TRY_OR(fail, reduce_scatter_leaves(&o, &op->partials));
        if (op->kind == HVT__ALLREDUCE)
            HVT_TRY_OR(fail, allgather(&o));
    } else if (hvt__sent_whole(c, op)) {
        HVT_TRY_OR(fail, sum_whole(&o));
    } else {
        if (op->kind != HVT__ALLGATHER)
            HVT_TRY_OR(fail, reduce_scatter(&o));
        if (op->kind != HVT__REDUCE_SCATTER)
            HVT_TRY_OR(fail, allgather(&o));
    }
    return HVT_OK;
fail:
    drop(c->state);
    comm_tell_messages(c, HVT__BY_ITSELF);
    return s;
}

const hvt_comm_ops hvt_comm_messages = {
    .name = "messages",
    .messages = true,
    .leaves = true,
    .open = comm_open_messages,
    .close = comm_close_messages,
    .release = comm_release_messages,
    .reserve = comm_reserve_messages,
    .run = comm_run_messages,
    .word = comm_word_messages,
    .tell = comm_tell_messages,
};
