/*
 * The public collectives' front door, and a comm's queue of calls.
 *
 * A call runs when somebody waits for it or for a later one, after all that was issued before. So a comm's
 * own operations, which may be under way already, are waited for first; and those issued behind a waiting
 * call queue up behind it (HVT__CALL_COMM), or they would overtake it.
 *
 * Tickets count both. Between two calls the comm's own tickets run beside them at a fixed distance.
 */
#include "base_impl.h"
#include "coll.h"

#include <stdlib.h>

struct hvt__calls {
    hvt__call *call; /* a ring */
    size_t room;     /* a power of two */
    size_t head, tail;
    uint64_t checked;  /* collectives so far: the same number on every rank, whatever it sent and received */
    hvt_status broken; /* why the comm cannot go on */
    hvt_ticket lost;   /* then: the first call that failed or did not run because of that */
};

hvt_status hvt__calls_open(hvt_comm *c)
{
    struct hvt__calls *q = calloc(1, sizeof *q);

    HVT_CHECK(q, E_MEM, "no memory for a comm's calls");
    c->calls = q;
    q->room = 16; /* most programs need no more, so none of their calls can lack memory on one rank alone */
    q->call = malloc(q->room * sizeof *q->call);
    HVT_CHECK(q->call, E_MEM, "no memory for a comm's calls");
    return HVT_OK;
}

void hvt__calls_close(hvt_comm *c)
{
    if (c->calls)
        free(c->calls->call);
    free(c->calls);
    c->calls = NULL;
}

bool hvt__calls_waiting(const hvt_comm *c)
{
    return c->calls->head != c->calls->tail;
}

hvt_status hvt__calls_check(const hvt_comm *c)
{
    HVT_CHECK(!c->calls->broken, E_COMM, "an earlier collective of this comm failed (%s): it cannot go on",
              hvt_status_name(c->calls->broken));
    return HVT_OK;
}

static hvt__call *at(const struct hvt__calls *q, size_t i)
{
    return &q->call[i & (q->room - 1)];
}

hvt_status hvt__calls_add(hvt_comm *c, const hvt__call *k, hvt_ticket *ret_ticket)
{
    struct hvt__calls *q = c->calls;

    if (q->tail - q->head == q->room) {
        size_t room = 2 * q->room;
        hvt__call *grown = malloc(room * sizeof *grown);

        HVT_CHECK(grown, E_MEM, "no memory for %zu operations in flight", room);
        for (size_t i = q->head; i != q->tail; i++)
            grown[i & (room - 1)] = *at(q, i);
        free(q->call);
        q->call = grown;
        q->room = room;
    }
    *at(q, q->tail) = *k;
    at(q, q->tail++)->ticket = ++c->front;
    *ret_ticket = c->front;
    return HVT_OK;
}

/* ---- running ------------------------------------------------------------------------------ */

/* All that a call takes, in one block: what is missing here is found before the others go on. */
static hvt_status prepare(hvt_comm *c, const hvt__call *k, hvt__work *w, void **ret_block)
{
    size_t size = (size_t)c->world->size, firsts = (size + 1) * sizeof *w->first;
    size_t parcels = 2 * size * sizeof *w->parcel, room;
    char *block;

    HVT_TRY(hvt__coll_check(c, k));
    room = hvt__coll_room(c, k);
    firsts = (firsts + 63) / 64 * 64;
    parcels = (parcels + 63) / 64 * 64;
    block = aligned_alloc(64, firsts + parcels + (room + 63) / 64 * 64);
    HVT_CHECK(block, E_MEM, "%s: no memory for %zu bytes of work", hvt__action_name(k),
              firsts + parcels + room);
    *ret_block = block;
    w->first = (size_t *)(void *)block;
    w->parcel = (hvt__parcel *)(void *)(block + firsts);
    w->room = block + firsts + parcels;
    return HVT_OK;
}

static hvt_status run_checked(hvt_comm *c, const hvt__call *k)
{
    hvt__work w = {.c = c, .k = k, .bytes = hvt_dtype_size(k->type)};
    void *block = NULL;
    hvt_status s;

    HVT_TRY(c->ops->wait(c, c->issued));
    s = prepare(c, k, &w, &block);
    HVT_TRY_OR(done, hvt__coll_meet(&w, s, ++c->calls->checked));
    if (k->action == HVT__CALL_ALLREDUCE || k->action == HVT__CALL_REDUCE_SCATTER)
        s = hvt__coll_reduce(&w);
    else
        s = hvt__coll_move(&w);
    if (s != HVT_OK)
        c->calls->broken = s; /* data was on its way */
done:
    free(block);
    return s;
}

static bool passes(const hvt__call *k)
{
    return k->action == HVT__CALL_SEND || k->action == HVT__CALL_RECV;
}

/* Sends and receives at the head of the queue, all in a row. */
static hvt_status run_passing(hvt_comm *c)
{
    struct hvt__calls *q = c->calls;
    size_t n = 1;
    const hvt__call **calls;
    hvt_status s;

    HVT_TRY(c->ops->wait(c, c->issued));
    while (q->head + n != q->tail && passes(at(q, q->head + n)))
        n++;
    calls = malloc(n * sizeof *calls);
    HVT_CHECK(calls, E_MEM, "no memory for %zu sends and receives", n);
    for (size_t i = 0; i < n; i++)
        calls[i] = at(q, q->head + i);
    s = hvt__coll_pass(c, calls, (int)n);
    free(calls);
    q->head += n;
    return s;
}

/* The first of the queue leaves it, whatever becomes of it. */
static hvt_status run_first(hvt_comm *c)
{
    struct hvt__calls *q = c->calls;
    size_t head = q->head;
    const hvt__call *k = at(q, head);
    hvt_ticket inner;
    hvt_status s;

    if (passes(k)) {
        s = run_passing(c);
        q->head += q->head == head;
        return s;
    }
    if (k->action == HVT__CALL_COMM) {
        s = hvt__comm_issue(c, k->kind, k->out, k->count, k->type, &inner);
        q->broken = s; /* the others have issued it */
    } else {
        s = run_checked(c, k);
    }
    q->head++;
    return s;
}

hvt_status hvt__calls_wait(hvt_comm *c, hvt_ticket ticket)
{
    struct hvt__calls *q = c->calls;
    hvt_ticket last, back;
    hvt_status s = HVT_OK;

    if (q->broken && ticket >= q->lost)
        return hvt__calls_check(c);
    while (q->head != q->tail && at(q, q->head)->ticket <= ticket) {
        hvt_ticket t = at(q, q->head)->ticket;
        hvt_status first = run_first(c);

        s = first != HVT_OK ? first : s;
        if (first != HVT_E_COMM && first != HVT_E_DEVICE && !q->broken)
            continue;
        q->broken = q->broken ? q->broken : first;
        q->lost = t;
        q->head = q->tail; /* nothing that is behind can run any more */
        if (c->ops->leave) /* nor do the others wait for it */
            c->ops->leave(c, HVT__BY_ITSELF);
        return s;
    }
    last = q->head == q->tail ? c->front : at(q, q->head)->ticket - 1;
    back = last > ticket ? last - ticket : 0;
    if (back < c->issued)
        HVT_TRY(c->ops->wait(c, c->issued - back));
    return s;
}

/* ---- the front door ----------------------------------------------------------------------- */

static hvt_status issue(hvt_comm *c, hvt__call k, hvt_ticket *ret_ticket)
{
    hvt_ticket ticket;

    HVT_CHECK(c, E_ARG, "%s: no comm", hvt__action_name(&k));
    HVT_TRY(hvt__calls_check(c));
    HVT_TRY(hvt__calls_add(c, &k, &ticket));
    if (ret_ticket)
        *ret_ticket = ticket;
    else
        HVT_TRY(hvt_comm_wait(c, ticket));
    return HVT_OK;
}

static hvt_scale scale_of(const hvt_scale *scale)
{
    return scale ? *scale : (hvt_scale){1, 1};
}

hvt_status hvt_allreduce(hvt_comm *comm, const void *in, void *out, size_t count, hvt_dtype dtype,
                         hvt_reduction how, const hvt_scale *scale, hvt_ticket *ret_ticket)
{
    return issue(comm,
                 (hvt__call){.action = HVT__CALL_ALLREDUCE,
                             .type = dtype,
                             .how = how,
                             .scale = scale_of(scale),
                             .count = count,
                             .in = in,
                             .out = out},
                 ret_ticket);
}

hvt_status hvt_reduce_scatter(hvt_comm *comm, const void *in, void *out, size_t count, const size_t *counts,
                              hvt_dtype dtype, hvt_reduction how, const hvt_scale *scale,
                              hvt_ticket *ret_ticket)
{
    return issue(comm,
                 (hvt__call){.action = HVT__CALL_REDUCE_SCATTER,
                             .type = dtype,
                             .how = how,
                             .scale = scale_of(scale),
                             .count = count,
                             .counts = counts,
                             .in = in,
                             .out = out},
                 ret_ticket);
}

hvt_status hvt_broadcast(hvt_comm *comm, void *buf, size_t count, hvt_dtype dtype, int root,
                         hvt_ticket *ret_ticket)
{
    return issue(
        comm,
        (hvt__call){.action = HVT__CALL_BROADCAST, .type = dtype, .peer = root, .count = count, .out = buf},
        ret_ticket);
}

hvt_status hvt_allgather(hvt_comm *comm, const void *in, size_t count, void *out, const size_t *counts,
                         hvt_dtype dtype, hvt_ticket *ret_ticket)
{
    return issue(comm,
                 (hvt__call){.action = HVT__CALL_ALLGATHER,
                             .type = dtype,
                             .count = count,
                             .counts = counts,
                             .in = in,
                             .out = out},
                 ret_ticket);
}

hvt_status hvt_gather(hvt_comm *comm, const void *in, size_t count, void *out, const size_t *counts,
                      hvt_dtype dtype, int root, hvt_ticket *ret_ticket)
{
    return issue(comm,
                 (hvt__call){.action = HVT__CALL_GATHER,
                             .type = dtype,
                             .peer = root,
                             .count = count,
                             .counts = counts,
                             .in = in,
                             .out = out},
                 ret_ticket);
}

hvt_status hvt_scatter(hvt_comm *comm, const void *in, const size_t *counts, void *out, size_t count,
                       hvt_dtype dtype, int root, hvt_ticket *ret_ticket)
{
    return issue(comm,
                 (hvt__call){.action = HVT__CALL_SCATTER,
                             .type = dtype,
                             .peer = root,
                             .count = count,
                             .counts = counts,
                             .in = in,
                             .out = out},
                 ret_ticket);
}

hvt_status hvt_alltoall(hvt_comm *comm, const void *in, const size_t *gives, void *out, const size_t *takes,
                        hvt_dtype dtype, hvt_ticket *ret_ticket)
{
    return issue(comm,
                 (hvt__call){.action = HVT__CALL_ALLTOALL,
                             .type = dtype,
                             .counts = gives,
                             .takes = takes,
                             .in = in,
                             .out = out},
                 ret_ticket);
}

hvt_status hvt_send(hvt_comm *comm, const void *buf, size_t count, hvt_dtype dtype, int to,
                    hvt_ticket *ret_ticket)
{
    return issue(comm,
                 (hvt__call){.action = HVT__CALL_SEND, .type = dtype, .peer = to, .count = count, .in = buf},
                 ret_ticket);
}

hvt_status hvt_recv(hvt_comm *comm, void *buf, size_t count, hvt_dtype dtype, int from,
                    hvt_ticket *ret_ticket)
{
    return issue(
        comm, (hvt__call){.action = HVT__CALL_RECV, .type = dtype, .peer = from, .count = count, .out = buf},
        ret_ticket);
}

hvt_status hvt_barrier(hvt_comm *comm, hvt_ticket *ret_ticket)
{
    return issue(comm, (hvt__call){.action = HVT__CALL_BARRIER}, ret_ticket);
}
