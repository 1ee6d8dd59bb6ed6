/*
 * Collectives that move data: each part is sent directly from its owner to its receivers.
 *
 * To match a send with a receive, both sides exchange headers, and each checks the other's arguments.
 */
#include "base_impl.h"
#include "coll.h"

void hvt__work_recv(hvt__work *w, void *to, size_t bytes, int from, bool answer)
{
    if (bytes)
        w->message[w->recvs++] = (hvt__message){to, bytes, from, answer};
}

void hvt__work_send(hvt__work *w, const void *what, size_t bytes, int to, bool answer)
{
    if (bytes)
        w->message[w->most + w->sends++] = (hvt__message){what, bytes, to, answer};
}

hvt_status hvt__work_exchange(hvt__work *w)
{
    hvt_world *world = w->c->world;
    int recvs = w->recvs, sends = w->sends;

    memmove(&w->message[recvs], &w->message[w->most], (size_t)sends * sizeof *w->message);
    w->recvs = w->sends = 0;
    if (recvs || sends)
        HVT_TRY(hvt__exchange(&world->flight, &w->c->group, w->message, recvs, sends));
    return HVT_OK;
}

/* Returns the elements that one rank sends to another; this rank is at least one of the two. */
static size_t given(const hvt__work *w, int from, int to)
{
    const hvt__call *k = w->k;
    int me = w->c->world->rank;

    switch (k->action) {
    case HVT__CALL_GATHER:
        return to != k->peer ? 0 : from == me ? k->count : hvt__part(w->c, k, from);
    case HVT__CALL_SCATTER:
        return from != k->peer ? 0 : to == me ? k->count : hvt__part(w->c, k, to);
    case HVT__CALL_ALLTOALL:
        return from == me || !k->recv_counts ? hvt__part(w->c, k, to) : k->recv_counts[from];
    default:
        return hvt__part(w->c, k, from);
    }
}

/* Received parts lie in rank order. So do sent parts, unless the same part goes to all. */
hvt_status hvt__coll_move(hvt__work *w)
{
    const hvt__call *k = w->k;
    hvt_device *d = w->c->dev;
    int me = w->c->world->rank;
    bool many = k->action == HVT__CALL_SCATTER || k->action == HVT__CALL_ALLTOALL;
    const char *in = k->in;
    char *out = k->out;

    if (k->action == HVT__CALL_BROADCAST)
        return hvt__queue_run_now(w->c, &(hvt__op){.kind = HVT__BROADCAST,
                                                   .buf = k->out,
                                                   .count = k->count * w->bytes,
                                                   .type = HVT_U8,
                                                   .root = k->peer});
    if (!in || k->action == HVT__CALL_ALLREDUCE) { /* in place */
        in = out;
        for (int r = 0; r < me; r++)
            in += given(w, r, me) * w->bytes;
    }
    for (int r = 0; r < w->c->world->size; r++) {
        size_t give = given(w, me, r) * w->bytes, take = given(w, r, me) * w->bytes;

        if (r != me) {
            hvt__work_recv(w, out, take, r, false);
            hvt__work_send(w, in, give, r, false);
        } else if (give && in != out) {
            HVT_TRY(d->ops->memory.copy(d, out, in, give));
        }
        in += many ? give : 0;
        out += take;
    }
    return hvt__work_exchange(w);
}

typedef struct offer {
    uint64_t count;
    int32_t type, status;
} offer;

static const hvt__call *call_at(const hvt_comm *c, hvt_ticket first, int i)
{
    return (const void *)hvt__queue_at(&c->queue, first + (hvt_ticket)i)->args;
}

/* True if the call has a peer other than this rank. */
static bool has_other(const hvt_comm *c, const hvt__call *k)
{
    return k->peer >= 0 && k->peer < c->world->size && k->peer != c->world->rank;
}

/* Compare the other rank's arguments with this rank's. */
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

hvt_status hvt__coll_send_recv(hvt_comm *c, hvt_ticket first, int n)
{
    offer *mine = calloc((size_t)n, sizeof *mine), *theirs = calloc((size_t)n, sizeof *theirs);
    hvt__work w = {.c = c, .message = calloc(2 * (size_t)n, sizeof *w.message), .most = n};
    hvt_status s = HVT_OK, last = HVT_OK;

    HVT_CHECK_OR(done, mine && theirs && w.message, E_MEM, "no memory for %d sends and receives", n);
    for (int i = 0; i < n; i++) { /* a receiver gets the sender's header and vice versa */
        const hvt__call *k = call_at(c, first, i);
        size_t bytes = has_other(c, k) ? sizeof *mine : 0;

        mine[i] = (offer){k->count, (int32_t)k->type, (int32_t)hvt__coll_check(c, k)};
        hvt__work_recv(&w, &theirs[i], bytes, k->peer, k->action == HVT__CALL_SEND);
        hvt__work_send(&w, &mine[i], bytes, k->peer, k->action == HVT__CALL_RECV);
    }
    HVT_TRY_OR(done, hvt__work_exchange(&w));
    for (int i = 0; i < n; i++) {
        const hvt__call *k = call_at(c, first, i);
        hvt_status matched = match(c, k, &theirs[i]);
        size_t bytes = matched == HVT_OK ? k->count * hvt_dtype_size(k->type) : 0;

        last = matched == HVT_OK ? last : matched;
        if (k->action == HVT__CALL_RECV)
            hvt__work_recv(&w, k->out, bytes, k->peer, false);
        else
            hvt__work_send(&w, k->in, bytes, k->peer, false);
    }
    HVT_TRY_OR(done, hvt__work_exchange(&w));
    s = last;
done:
    free(mine), free(theirs), free(w.message);
    return s;
}
