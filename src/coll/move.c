/*
 * Collectives that move data: each part goes straight from its owner to whoever wants it.
 *
 * Sends and receives meet in pairs: the sender offers a header along the data's way, the receiver answers
 * with its own against it, and each sees by itself whether the other one means the same.
 */
#include "base_impl.h"
#include "coll.h"

#include <stdlib.h>
#include <string.h>

/* ---- messages ------------------------------------------------------------------------------ */

void hvt__work_recv(hvt__work *w, void *to, size_t bytes, int from)
{
    if (bytes)
        w->message[w->recvs++] = (hvt__message){to, bytes, from, false};
}

void hvt__work_send(hvt__work *w, const void *what, size_t bytes, int to)
{
    if (bytes)
        w->message[2 * w->c->world->size - ++w->sends] = (hvt__message){what, bytes, to, false};
}

hvt_status hvt__work_exchange(hvt__work *w)
{
    hvt_world *world = w->c->world;
    int recvs = w->recvs, sends = w->sends;

    memmove(&w->message[recvs], &w->message[2 * world->size - sends], (size_t)sends * sizeof *w->message);
    w->recvs = w->sends = 0;
    if (!recvs && !sends)
        return HVT_OK;
    HVT_TRY(world->ops->exchange(world, &w->c->party, w->message, recvs, sends));
    return HVT_OK;
}

/* ---- parts -------------------------------------------------------------------------------- */

/* counts NULL: `count` each */
static void lay_out(hvt__work *w, const size_t *counts)
{
    w->first[0] = 0;
    for (int r = 0; r < w->c->world->size; r++)
        w->first[r + 1] = w->first[r] + (counts ? counts[r] : w->k->count) * w->bytes;
}

static void take_part(hvt__work *w, void *all, int from)
{
    hvt__work_recv(w, (char *)all + w->first[from], w->first[from + 1] - w->first[from], from);
}

static void give_part(hvt__work *w, const void *all, int to)
{
    hvt__work_send(w, (const char *)all + w->first[to], w->first[to + 1] - w->first[to], to);
}

static hvt_status copy(hvt__work *w, void *to, const void *from, size_t bytes)
{
    hvt_device *d = w->c->dev;

    return bytes && to != from ? d->ops->copy(d, to, from, bytes) : HVT_OK;
}

static hvt_status allgather(hvt__work *w)
{
    const hvt__call *k = w->k;
    int me = w->c->world->rank;
    char *mine;

    lay_out(w, k->counts);
    mine = (char *)k->out + w->first[me];
    if (k->in)
        HVT_TRY(copy(w, mine, k->in, k->count * w->bytes));
    for (int r = 0; r < w->c->world->size; r++)
        if (r != me) {
            take_part(w, k->out, r);
            hvt__work_send(w, mine, k->count * w->bytes, r);
        }
    return hvt__work_exchange(w);
}

static hvt_status gather(hvt__work *w)
{
    const hvt__call *k = w->k;
    int me = w->c->world->rank;

    if (me != k->peer) {
        hvt__work_send(w, k->in, k->count * w->bytes, k->peer);
        return hvt__work_exchange(w);
    }
    lay_out(w, k->counts);
    for (int r = 0; r < w->c->world->size; r++)
        if (r != me)
            take_part(w, k->out, r);
    HVT_TRY(copy(w, (char *)k->out + w->first[me], k->in, k->count * w->bytes));
    return hvt__work_exchange(w);
}

static hvt_status scatter(hvt__work *w)
{
    const hvt__call *k = w->k;
    int me = w->c->world->rank;

    if (me != k->peer) {
        hvt__work_recv(w, k->out, k->count * w->bytes, k->peer);
        return hvt__work_exchange(w);
    }
    lay_out(w, k->counts);
    for (int r = 0; r < w->c->world->size; r++)
        if (r != me)
            give_part(w, k->in, r);
    HVT_TRY(copy(w, k->out, (const char *)k->in + w->first[me], k->count * w->bytes));
    return hvt__work_exchange(w);
}

static hvt_status alltoall(hvt__work *w)
{
    const hvt__call *k = w->k;
    int me = w->c->world->rank;
    const char *mine;

    lay_out(w, k->counts);
    mine = (const char *)k->in + w->first[me];
    for (int r = 0; r < w->c->world->size; r++)
        if (r != me)
            give_part(w, k->in, r);
    lay_out(w, k->recv_counts);
    for (int r = 0; r < w->c->world->size; r++)
        if (r != me)
            take_part(w, k->out, r);
    HVT_TRY(copy(w, (char *)k->out + w->first[me], mine, w->first[me + 1] - w->first[me]));
    return hvt__work_exchange(w);
}

hvt_status hvt__coll_move(hvt__work *w)
{
    const hvt__call *k = w->k;

    switch (k->action) {
    case HVT__CALL_BROADCAST:
        return hvt__queue_run_now(w->c, &(hvt__op){.kind = HVT__BROADCAST,
                                                   .buf = k->out,
                                                   .count = k->count * w->bytes,
                                                   .type = HVT_U8,
                                                   .root = k->peer});
    case HVT__CALL_ALLGATHER:
        return allgather(w);
    case HVT__CALL_GATHER:
        return gather(w);
    case HVT__CALL_SCATTER:
        return scatter(w);
    case HVT__CALL_ALLTOALL:
        return alltoall(w);
    default:
        return HVT_OK; /* a barrier: all headers are there, so all have come */
    }
}

/* ---- from one to another ------------------------------------------------------------------ */

typedef struct offer {
    uint64_t count;
    int32_t type, status;
} offer;

static const hvt__call *call_at(const hvt_comm *c, hvt_ticket first, int i)
{
    return hvt__queue_args(c, first + (hvt_ticket)i);
}

/* There is another rank to talk to. */
static bool has_other(const hvt_comm *c, const hvt__call *k)
{
    return k->peer >= 0 && k->peer < c->world->size && k->peer != c->world->rank;
}

/* What the pair's other rank has beside what this one has. */
static hvt_status match(const hvt_comm *c, const hvt__call *k, const offer *theirs)
{
    bool sends = k->action == HVT__CALL_SEND;
    int from = sends ? c->world->rank : k->peer, to = sends ? k->peer : c->world->rank;
    size_t given = sends ? k->count : (size_t)theirs->count, taken = sends ? (size_t)theirs->count : k->count;
    hvt_dtype type = (hvt_dtype)theirs->type;

    HVT_TRY(hvt__coll_check(c, k));
    HVT_CHECK(theirs->status == HVT_OK, E_ARG, "%s: rank %d (%s) failed to %s (%s)", hvt__action_name(k),
              k->peer, c->world->host[k->peer], sends ? "receive" : "send",
              hvt_status_name((hvt_status)theirs->status));
    HVT_CHECK(given == taken && type == k->type, E_MISMATCH,
              "rank %d (%s) sends %zu %s, rank %d (%s) receives %zu %s", from, c->world->host[from], given,
              hvt_dtype_name(sends ? k->type : type), to, c->world->host[to], taken,
              hvt_dtype_name(sends ? type : k->type));
    return HVT_OK;
}

/* Every call's header goes out and the other one's comes in. */
static hvt_status introduce(hvt_comm *c, hvt_ticket first, int n, hvt__message *message, const offer *mine,
                            offer *theirs)
{
    int m = 0;

    for (int i = 0; i < n; i++) { /* a receiver takes the offer, a sender the answer */
        const hvt__call *k = call_at(c, first, i);

        if (has_other(c, k))
            message[m++] = (hvt__message){&theirs[i], sizeof *theirs, k->peer, k->action == HVT__CALL_SEND};
    }
    for (int i = 0; i < n; i++) {
        const hvt__call *k = call_at(c, first, i);

        if (has_other(c, k))
            message[m++] = (hvt__message){&mine[i], sizeof *mine, k->peer, k->action == HVT__CALL_RECV};
    }
    return m ? c->world->ops->exchange(c->world, &c->party, message, m / 2, m / 2) : HVT_OK;
}

/* Of the calls that both ranks mean alike: what this rank does by `action`. */
static int list(hvt_comm *c, hvt_ticket first, int n, hvt__action action, const offer *mine,
                hvt__message *ret_message)
{
    int m = 0;

    for (int i = 0; i < n; i++) {
        const hvt__call *k = call_at(c, first, i);
        const void *at = action == HVT__CALL_RECV ? k->out : k->in;

        if (mine[i].status == HVT_OK && k->action == action)
            ret_message[m++] = (hvt__message){at, k->count * hvt_dtype_size(k->type), k->peer, false};
    }
    return m;
}

hvt_status hvt__coll_send_recv(hvt_comm *c, hvt_ticket first, int n)
{
    offer *mine = calloc((size_t)n, sizeof *mine), *theirs = calloc((size_t)n, sizeof *theirs);
    hvt__message *message = calloc(2 * (size_t)n, sizeof *message);
    hvt_status s = HVT_OK, last = HVT_OK;
    int recvs = 0, sends = 0;

    HVT_CHECK_OR(done, mine && theirs && message, E_MEM, "no memory for %d sends and receives", n);
    for (int i = 0; i < n; i++) {
        const hvt__call *k = call_at(c, first, i);

        mine[i] = (offer){k->count, (int32_t)k->type, (int32_t)hvt__coll_check(c, k)};
    }
    HVT_TRY_OR(done, introduce(c, first, n, message, mine, theirs));
    for (int i = 0; i < n; i++) {
        mine[i].status = (int32_t)match(c, call_at(c, first, i), &theirs[i]);
        last = mine[i].status ? (hvt_status)mine[i].status : last;
    }
    recvs = list(c, first, n, HVT__CALL_RECV, mine, message);
    sends = list(c, first, n, HVT__CALL_SEND, mine, message + recvs);
    if (recvs + sends)
        HVT_TRY_OR(done, c->world->ops->exchange(c->world, &c->party, message, recvs, sends));
    s = last;
done:
    free(mine), free(theirs), free(message);
    return s;
}
