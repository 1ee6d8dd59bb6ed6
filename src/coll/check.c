/*
 * Checks, before a collective moves data, that it is the same on every rank.
 *
 * Every rank sends a header to all: its arguments, and whether they are valid and it has enough memory. All
 * read the same headers, so all reach the same verdict. Only on a mismatch is more sent: the headers become
 * texts, and hvt_world_compare() names the difference, the values and the ranks.
 *
 * Counts known to pairs of ranks only (gather, scatter, alltoall) take a second round.
 */
#include "base_impl.h"
#include "coll.h"
#include "world/items.h"

#include <stddef.h>

/* The contents of a buffer. ROOTS: all parts, on the root; GIVEN and TAKEN: the two sides of alltoall. */
typedef enum content { NONE, COUNT, PARTS, ROOTS, GIVEN, TAKEN } content;

static const struct {
    content in, out;   /* NONE also if the buffer may be NULL: in place, or not read */
    bool root, common; /* has a root; all ranks know all parts */
} actions[] = {
    [HVT__CALL_ALLREDUCE] = {NONE, COUNT},
    [HVT__CALL_REDUCE_SCATTER] = {PARTS, COUNT, .common = true},
    [HVT__CALL_BROADCAST] = {NONE, COUNT, .root = true},
    [HVT__CALL_ALLGATHER] = {NONE, PARTS, .common = true},
    [HVT__CALL_GATHER] = {COUNT, ROOTS, .root = true},
    [HVT__CALL_SCATTER] = {ROOTS, COUNT, .root = true},
    [HVT__CALL_ALLTOALL] = {GIVEN, TAKEN},
    [HVT__CALL_BARRIER] = {NONE, NONE},
    [HVT__CALL_SEND] = {COUNT, NONE},
    [HVT__CALL_RECV] = {NONE, COUNT},
};
static const char *const reductions[] = {
    [HVT_SUM] = "sum", [HVT_AVERAGE] = "average", [HVT_MIN] = "min",
    [HVT_MAX] = "max", [HVT_PRODUCT] = "product", [HVT_ADASUM] = "adasum",
};

/* Elements of a buffer, checked to fit in the address space. */
static hvt_status measure(const hvt_comm *c, const hvt__call *k, content what, size_t *ret_total)
{
    const size_t *counts = what == COUNT ? NULL : what == TAKEN ? k->recv_counts : k->counts;
    int me = c->world->rank, first = what == COUNT ? me : 0, end = what == COUNT ? me + 1 : c->world->size;
    size_t total = 0, most = PTRDIFF_MAX / hvt_dtype_size(k->type);

    if (what == NONE || (what == ROOTS && k->peer != me))
        end = 0;
    for (int r = first; r < end; r++) {
        size_t n = counts ? counts[r] : k->count;

        HVT_CHECK(n <= most - total, E_ARG,
                  "%s: %zu elements of rank %d after %zu others exceed the address space",
                  hvt__action_name(k), n, r, total);
        total += n;
    }
    *ret_total = total;
    return HVT_OK;
}

hvt_status hvt__coll_check(const hvt_comm *c, const hvt__call *k)
{
    const hvt_world *w = c->world;
    size_t in, out;

    HVT_CHECK(c->dev->ops->host, E_UNSUPPORTED, "%s: expected a comm on host memory, got device '%s'",
              hvt__action_name(k), hvt_device_name(c->dev));
    HVT_CHECK(hvt_dtype_size(k->type), E_ARG, "%s: type %d is unknown", hvt__action_name(k), (int)k->type);
    HVT_CHECK(!hvt__call_reduces(k) || (k->how >= HVT_SUM && k->how <= HVT_ADASUM && k->how != HVT_AND),
              E_ARG, "%s: reduction %d is unknown", hvt__action_name(k), (int)k->how);
    HVT_CHECK(!hvt__call_adds_adaptively(k) || k->action == HVT__CALL_ALLREDUCE, E_UNSUPPORTED,
              "%s: adasum needs whole tensors, as allreduce has them", hvt__action_name(k));
    HVT_CHECK(!hvt__call_adds_adaptively(k) || k->type == HVT_F64 || hvt__is_narrow_float(k->type), E_ARG,
              "%s: adasum of %s, expected f16, bf16, f32 or f64", hvt__action_name(k),
              hvt_dtype_name(k->type));
    if (k->action == HVT__CALL_SEND || k->action == HVT__CALL_RECV)
        HVT_CHECK(k->peer >= 0 && k->peer < w->size && k->peer != w->rank, E_ARG,
                  "%s: peer %d is not another of the %d ranks", hvt__action_name(k), k->peer, w->size);
    HVT_CHECK(!actions[k->action].root || (k->peer >= 0 && k->peer < w->size), E_ARG,
              "%s: root %d is not one of %d ranks", hvt__action_name(k), k->peer, w->size);
    HVT_CHECK(!actions[k->action].common || !k->counts || k->counts[w->rank] == k->count, E_ARG,
              "%s: this rank's part has %zu elements, but counts[%d] is %zu", hvt__action_name(k), k->count,
              w->rank, k->counts[w->rank]);
    HVT_CHECK(k->action != HVT__CALL_ALLTOALL || (k->counts && k->recv_counts), E_ARG,
              "alltoall: no send_counts or recv_counts");
    HVT_TRY(measure(c, k, actions[k->action].in, &in));
    HVT_TRY(measure(c, k, actions[k->action].out, &out));
    HVT_CHECK((k->in || !in) && (k->out || !out), E_ARG, "%s: no buffer for %zu elements",
              hvt__action_name(k), k->in || !in ? out : in);
    return HVT_OK;
}

/* No padding: the bytes up to `status` are compared. */
typedef struct header {
    uint64_t number,
        common; /* number of the call; the counts that all ranks know: the count, or a hash of the parts */
    double pre, post;
    int32_t root;
    int16_t action, type, how, unused;
    int32_t status;
    uint64_t count; /* this rank's own count */
} header;

_Static_assert(sizeof(header) <= HVT__SCRATCH, "a gathered header must fit in the world's scratch");

static header header_of(const hvt_comm *c, const hvt__call *k, hvt_status s, uint64_t number)
{
    header h = {.number = number, .status = (int32_t)s, .count = k->count};

    h.action = (int16_t)k->action;
    h.type = (int16_t)k->type;
    h.root = actions[k->action].root ? k->peer : 0;
    if (hvt__call_reduces(k)) {
        h.how = (int16_t)k->how;
        h.pre = k->scale.pre;
        h.post = k->scale.post;
    }
    if (k->action == HVT__CALL_ALLREDUCE || k->action == HVT__CALL_BROADCAST)
        h.common = k->count;
    for (int r = 0; s == HVT_OK && actions[k->action].common && r < c->world->size; r++)
        h.common = hvt__hash(h.common, &(uint64_t){hvt__part(c, k, r)}, sizeof(uint64_t));
    return h;
}

/* Compare the headers as texts, to name the first difference. */
static hvt_status explain(hvt_comm *c, const hvt__call *k, uint64_t number)
{
    unsigned long long nth = (unsigned long long)number;
    const char *name = hvt__action_name(k);
    hvt__items items = {0};
    hvt_status s;

    hvt__items_add(&items, "collective %llu\t%s", nth, name);
    hvt__items_add(&items, "%s %llu: type\t%s", name, nth, hvt_dtype_name(k->type));
    if (actions[k->action].root)
        hvt__items_add(&items, "%s %llu: root\t%d", name, nth, k->peer);
    if (hvt__call_reduces(k)) {
        hvt__items_add(&items, "%s %llu: reduction\t%s", name, nth, reductions[k->how]);
        hvt__items_add(&items, "%s %llu: factor before\t%.17g", name, nth, k->scale.pre);
        hvt__items_add(&items, "%s %llu: factor after\t%.17g", name, nth, k->scale.post);
    }
    if (!actions[k->action].common)
        hvt__items_add(&items, "%s %llu: count\t%zu", name, nth, k->count);
    for (int r = 0; r < c->world->size && actions[k->action].common; r++)
        hvt__items_add(&items, "%s %llu: count of rank %d's part\t%zu", name, nth, r, hvt__part(c, k, r));
    s = hvt__items_compare(&items, c->world);
    if (s == HVT_OK)
        s = HVT_FAIL(E_MISMATCH, "ranks run different collectives on this comm; rank %d runs %s %llu",
                     c->world->rank, name, nth);
    return s;
}

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
        size_t theirs = (size_t)all[r].count, mine = hvt__part(c, k, r);
        bool gather = k->action == HVT__CALL_GATHER;

        HVT_TRY(same_count(c, k, gather ? r : k->peer, gather ? theirs : mine, gather ? k->peer : r,
                           gather ? mine : theirs));
    }
    return HVT_OK;
}

/* Compares the counts of pairs in an alltoall. Uses w->first for the counts that the others send. */
static hvt_status pairs_compare(const hvt__work *w)
{
    const hvt__call counts = {HVT__CALL_ALLTOALL, HVT_I64, w->k->counts, w->first, 1};
    int me = w->c->world->rank;
    hvt__work alltoall = *w;

    alltoall.k = &counts;
    alltoall.bytes = sizeof *w->first;
    HVT_TRY(hvt__coll_move(&alltoall));
    for (int r = 0; r < w->c->world->size; r++)
        HVT_TRY(same_count(w->c, w->k, r, w->first[r], me, w->k->recv_counts[r]));
    return HVT_OK;
}

/* List messages with the headers of n ranks from `first` on, modulo size, to or from `rank`. */
static int list_headers(const hvt_world *w, header *all, int first, int n, int rank, hvt__message *ret_list)
{
    int head = n < w->size - first ? n : w->size - first;

    ret_list[0] = (hvt__message){all + first, (size_t)head * sizeof *all, rank, false};
    ret_list[1] = (hvt__message){all, (size_t)(n - head) * sizeof *all, rank, false};
    return head < n ? 2 : 1;
}

/*
 * all[r] = rank r's header. Headers travel in messages between pairs of ranks, which detect a rank that has
 * left the comm; an allgather would wait for that rank for ever. In each round a rank receives all headers of
 * the rank `have` places further on, which doubles its number (Bruck et al. 1997).
 */
static hvt_status gather_headers(hvt_comm *c, const header *mine, header *all)
{
    hvt_world *w = c->world;

    if (!w->ops->post)
        return w->ops->allgather(w, mine, sizeof *mine, all);
    all[w->rank] = *mine;
    for (int have = 1, n; have < w->size; have += n) {
        int from = (w->rank + have) % w->size, to = (w->rank + w->size - have) % w->size, recvs, sends;
        hvt__message message[4];

        n = w->size - have < have ? w->size - have : have;
        recvs = list_headers(w, all, from, n, from, message);
        sends = list_headers(w, all, w->rank, n, to, message + recvs);
        HVT_TRY(hvt__exchange(&w->flight, &c->group, message, recvs, sends));
    }
    return HVT_OK;
}

hvt_status hvt__coll_compare(hvt__work *w, hvt_status s, uint64_t number)
{
    hvt_world *world = w->c->world;
    const hvt__call *k = w->k;
    header mine = header_of(w->c, k, s, number), *all = world->scratch;
    bool ready = true, same = true;
    hvt_status gathered;

    if (number % 64 == 0 && w->c->ops->word) /* hears words, so that they do not pile up */
        w->c->ops->word(w->c, world->rank);
    gathered = gather_headers(w->c, &mine, all);
    if (gathered != HVT_OK) /* a rank has left, or runs an operation of the comm */
        return hvt__comm_break(w->c, gathered);
    for (int r = 0; r < world->size; r++) {
        ready = ready && all[r].status == HVT_OK;
        same = same && !memcmp(&all[r], &all[0], offsetof(header, status));
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
