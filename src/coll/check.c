/*
 * Before a collective moves data: is it the same on every rank?
 *
 * Every rank sends a header to all: what it was asked for, and whether its arguments and memory do. All
 * read the same headers, so all come to the same verdict, and only where it is bad does anyone send a word
 * more: then the headers become texts, and hvt_world_compare() names what differs, the values and the ranks.
 *
 * Counts that one rank alone knows both sides of (gather, scatter, alltoall) take a second round.
 */
#include "base_impl.h"
#include "coll.h"
#include "world/items.h"

#include <string.h>

static const char *const actions[] = {
    [HVT__CALL_ALLREDUCE] = "allreduce", [HVT__CALL_REDUCE_SCATTER] = "reduce_scatter",
    [HVT__CALL_BROADCAST] = "broadcast", [HVT__CALL_ALLGATHER] = "allgather",
    [HVT__CALL_GATHER] = "gather",       [HVT__CALL_SCATTER] = "scatter",
    [HVT__CALL_ALLTOALL] = "alltoall",   [HVT__CALL_BARRIER] = "barrier",
    [HVT__CALL_SEND] = "send",           [HVT__CALL_RECV] = "receive",
};
static const char *const reductions[] = {
    [HVT_SUM] = "sum", [HVT_AVERAGE] = "average", [HVT_MIN] = "min",
    [HVT_MAX] = "max", [HVT_PRODUCT] = "product",
};

const char *hvt__action_name(const hvt__call *k)
{
    return actions[k->action];
}

static bool reduces(const hvt__call *k)
{
    return k->action == HVT__CALL_ALLREDUCE || k->action == HVT__CALL_REDUCE_SCATTER;
}

static bool has_root(const hvt__call *k)
{
    return k->action == HVT__CALL_BROADCAST || k->action == HVT__CALL_GATHER ||
           k->action == HVT__CALL_SCATTER;
}

/* Every rank knows the parts of all. */
static bool has_common_parts(const hvt__call *k)
{
    return k->action == HVT__CALL_ALLGATHER || k->action == HVT__CALL_REDUCE_SCATTER;
}

/* ---- this rank's arguments ------------------------------------------------------------------ */

/* Parts of these counts fit in memory; their sum. */
static hvt_status add_up(const hvt_comm *c, const hvt__call *k, const size_t *counts, size_t *ret_total)
{
    size_t total = 0, most = PTRDIFF_MAX / hvt_dtype_size(k->type);

    for (int r = 0; r < c->world->size; r++) {
        size_t n = counts ? counts[r] : k->count;

        HVT_CHECK(n <= most - total, E_ARG,
                  "%s: %zu elements are the part of rank %d, too many with those before", hvt__action_name(k),
                  n, r);
        total += n;
    }
    *ret_total = total;
    return HVT_OK;
}

static hvt_status check_buffers(const hvt_comm *c, const hvt__call *k)
{
    bool root = k->peer == c->world->rank;
    size_t in = k->count, out = k->count;

    switch (k->action) {
    case HVT__CALL_REDUCE_SCATTER:
        HVT_TRY(add_up(c, k, k->counts, &in));
        break;
    case HVT__CALL_ALLGATHER:
        HVT_TRY(add_up(c, k, k->counts, &out));
        break;
    case HVT__CALL_GATHER:
        out = 0;
        if (root)
            HVT_TRY(add_up(c, k, k->counts, &out));
        break;
    case HVT__CALL_SCATTER:
        in = 0;
        if (root)
            HVT_TRY(add_up(c, k, k->counts, &in));
        break;
    case HVT__CALL_ALLTOALL:
        HVT_CHECK(k->counts && k->recv_counts, E_ARG, "alltoall: no counts to send or to receive");
        HVT_TRY(add_up(c, k, k->counts, &in));
        HVT_TRY(add_up(c, k, k->recv_counts, &out));
        break;
    default:
        HVT_CHECK(k->count <= PTRDIFF_MAX / hvt_dtype_size(k->type), E_ARG, "%s: %zu elements are too many",
                  hvt__action_name(k), k->count);
    }
    if (k->action == HVT__CALL_ALLREDUCE || k->action == HVT__CALL_ALLGATHER || k->action == HVT__CALL_RECV ||
        k->action == HVT__CALL_BROADCAST)
        in = 0; /* in place, or nothing is read */
    if (k->action == HVT__CALL_SEND)
        out = 0;
    HVT_CHECK((k->in || !in) && (k->out || !out), E_ARG, "%s: no buffer for %zu elements",
              hvt__action_name(k), k->in || !in ? out : in);
    return HVT_OK;
}

hvt_status hvt__coll_check(const hvt_comm *c, const hvt__call *k)
{
    const hvt_world *w = c->world;

    HVT_CHECK(c->dev->ops->host, E_UNSUPPORTED,
              "%s: collectives are for host memory; device '%s' has its own", hvt__action_name(k),
              hvt_device_name(c->dev));
    HVT_CHECK(hvt_dtype_size(k->type), E_ARG, "%s: type %d is unknown", hvt__action_name(k), (int)k->type);
    HVT_CHECK(!reduces(k) || (k->how >= HVT_SUM && k->how <= HVT_PRODUCT), E_ARG,
              "%s: reduction %d is unknown", hvt__action_name(k), (int)k->how);
    if (k->action == HVT__CALL_SEND || k->action == HVT__CALL_RECV)
        HVT_CHECK(k->peer >= 0 && k->peer < w->size && k->peer != w->rank, E_ARG,
                  "%s: rank %d is not another one of %d ranks", hvt__action_name(k), k->peer, w->size);
    HVT_CHECK(!has_root(k) || (k->peer >= 0 && k->peer < w->size), E_ARG,
              "%s: root %d is not one of %d ranks", hvt__action_name(k), k->peer, w->size);
    HVT_CHECK(!has_common_parts(k) || !k->counts || k->counts[w->rank] == k->count, E_ARG,
              "%s: this rank's part has %zu elements, but counts[%d] is %zu", hvt__action_name(k), k->count,
              w->rank, k->counts[w->rank]);
    return check_buffers(c, k);
}

/* ---- what all ranks must have in common ------------------------------------------------------- */

typedef struct header {
    uint64_t number, parts; /* which call of the comm; hash of the parts that all know */
    uint64_t count;         /* may differ where there are parts */
    double pre, post;
    int32_t status, root;
    int16_t action, type, how;
} header;

_Static_assert(sizeof(header) <= HVT__SCRATCH, "a gathered header must fit in the world's scratch");

static header header_of(const hvt_comm *c, const hvt__call *k, hvt_status s, uint64_t number)
{
    header h;

    memset(&h, 0, sizeof h);
    h.number = number;
    h.status = (int32_t)s;
    h.action = (int16_t)k->action;
    h.type = (int16_t)k->type;
    h.count = k->count;
    h.root = has_root(k) ? k->peer : 0;
    if (reduces(k)) {
        h.how = (int16_t)k->how;
        h.pre = k->scale.pre;
        h.post = k->scale.post;
    }
    if (s == HVT_OK && has_common_parts(k)) {
        h.parts = HVT_HASH_INIT;
        for (int r = 0; r < c->world->size; r++)
            h.parts = hvt__hash(h.parts, &(uint64_t){hvt__part(k, r)}, sizeof(uint64_t));
    }
    return h;
}

static bool alike(const header *a, const header *b)
{
    bool one_count = a->action == HVT__CALL_ALLREDUCE || a->action == HVT__CALL_BROADCAST;

    return a->number == b->number && a->parts == b->parts && (a->count == b->count || !one_count) &&
           !memcmp(&a->pre, &b->pre, sizeof a->pre) && !memcmp(&a->post, &b->post, sizeof a->post) &&
           a->root == b->root && a->action == b->action && a->type == b->type && a->how == b->how;
}

/* The headers as texts; the comparison finds the first that differs. */
static hvt_status explain(hvt_comm *c, const hvt__call *k, uint64_t number)
{
    unsigned long long nth = (unsigned long long)number;
    const char *name = hvt__action_name(k);
    hvt__items items = {0};
    hvt_status s;

    hvt__items_add(&items, "collective %llu\t%s", nth, name);
    hvt__items_add(&items, "%s %llu: type\t%s", name, nth, hvt_dtype_name(k->type));
    if (has_root(k))
        hvt__items_add(&items, "%s %llu: root\t%d", name, nth, k->peer);
    if (reduces(k)) {
        hvt__items_add(&items, "%s %llu: reduction\t%s", name, nth, reductions[k->how]);
        hvt__items_add(&items, "%s %llu: factor before\t%.17g", name, nth, k->scale.pre);
        hvt__items_add(&items, "%s %llu: factor after\t%.17g", name, nth, k->scale.post);
    }
    if (!has_common_parts(k))
        hvt__items_add(&items, "%s %llu: count\t%zu", name, nth, k->count);
    for (int r = 0; r < c->world->size && has_common_parts(k); r++)
        hvt__items_add(&items, "%s %llu: count of rank %d's part\t%zu", name, nth, r, hvt__part(k, r));
    s = hvt__items_compare(&items, c->world);
    if (s == HVT_OK)
        s = HVT_FAIL(E_MISMATCH, "ranks are at different collectives of this comm; rank %d is at %s %llu",
                     c->world->rank, name, nth);
    return s;
}

/* ---- counts that two ranks must have in common -------------------------------------------------- */

static hvt_status same_count(const hvt_comm *c, const hvt__call *k, int from, size_t sent, int to,
                             size_t received)
{
    HVT_CHECK(sent == received, E_MISMATCH, "%s: rank %d (%s) sends %zu %s, rank %d (%s) receives %zu",
              hvt__action_name(k), from, c->world->host[from], sent, hvt_dtype_name(k->type), to,
              c->world->host[to], received);
    return HVT_OK;
}

static hvt_status root_compares(const hvt_comm *c, const hvt__call *k)
{
    const header *all = c->world->scratch;

    for (int r = 0; r < c->world->size && k->peer == c->world->rank; r++) {
        size_t theirs = (size_t)all[r].count, mine = hvt__part(k, r);
        bool gather = k->action == HVT__CALL_GATHER;

        HVT_TRY(same_count(c, k, gather ? r : k->peer, gather ? theirs : mine, gather ? k->peer : r,
                           gather ? mine : theirs));
    }
    return HVT_OK;
}

/* first: memory for the count that each of the others sends */
static hvt_status pairs_compare(hvt__work *w)
{
    int me = w->c->world->rank;

    w->first[me] = w->k->counts[me];
    for (int r = 0; r < w->c->world->size; r++)
        if (r != me) {
            hvt__work_recv(w, &w->first[r], sizeof *w->first, r);
            hvt__work_send(w, &w->k->counts[r], sizeof *w->k->counts, r);
        }
    HVT_TRY(hvt__work_exchange(w));
    for (int r = 0; r < w->c->world->size; r++)
        HVT_TRY(same_count(w->c, w->k, r, w->first[r], me, w->k->recv_counts[r]));
    return HVT_OK;
}

static void swap(header *a, size_t n)
{
    for (size_t i = 0; i < n / 2; i++) {
        header h = a[i];

        a[i] = a[n - 1 - i];
        a[n - 1 - i] = h;
    }
}

/*
 * all[r] = rank r's header. By messages between pairs of ranks, in which a rank that has left the comm is
 * found out: one that closed it is somewhere else, and MPI's own gather would wait for it for ever. In each
 * round a rank receives all that the rank `have` places behind it has, so that it then has twice as many
 * (Bruck et al. 1997).
 */
static hvt_status gather_headers(hvt_comm *c, const header *mine, header *all)
{
    hvt_world *w = c->world;

    if (!w->ops->exchange)
        return w->ops->allgather(w, mine, sizeof *mine, all);
    all[0] = *mine;
    for (int have = 1, n; have < w->size; have += n) {
        hvt__message message[2];
        size_t bytes;

        n = w->size - have < have ? w->size - have : have;
        bytes = (size_t)n * sizeof *all;
        message[0] = (hvt__message){all + have, bytes, (w->rank + have) % w->size, false};
        message[1] = (hvt__message){all, bytes, (w->rank + w->size - have) % w->size, false};
        HVT_TRY(w->ops->exchange(w, &c->party, message, 1, 1));
    }
    /* all[i] is of rank (this one + i) mod size: let every header go to its place */
    swap(all, (size_t)w->size);
    swap(all, (size_t)w->rank);
    swap(all + w->rank, (size_t)(w->size - w->rank));
    return HVT_OK;
}

hvt_status hvt__coll_compare(hvt__work *w, hvt_status s, uint64_t number)
{
    hvt_world *world = w->c->world;
    const hvt__call *k = w->k;
    header mine = header_of(w->c, k, s, number), *all = world->scratch;
    bool ready = true, same = true;

    HVT_TRY(gather_headers(w->c, &mine, all));
    for (int r = 0; r < world->size; r++) {
        ready = ready && all[r].status == HVT_OK;
        same = same && alike(&all[r], &all[0]);
    }
    if (!ready)
        return hvt_world_agree(world, s);
    if (!same)
        return explain(w->c, k, number);
    if (k->action == HVT__CALL_GATHER || k->action == HVT__CALL_SCATTER)
        return hvt_world_agree(world, root_compares(w->c, k));
    if (k->action == HVT__CALL_ALLTOALL)
        return hvt_world_agree(world, pairs_compare(w));
    return HVT_OK;
}
