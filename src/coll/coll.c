/*
 * The public functions of collectives. A collective is a call in the comm's queue, so it runs in
 * hvt_comm_wait(), after the operations issued before it.
 */
#include "base_impl.h"
#include "coll.h"

/* Allocate all of a call's memory in one block, so that a lack is found before any rank moves data. */
static hvt_status prepare(hvt__work *w, void **ret_block)
{
    size_t size = (size_t)w->c->world->size, messages = 2 * size * sizeof *w->message, head, room;
    char *block;

    HVT_TRY(hvt__coll_check(w->c, w->k));
    head = (messages + (size + 1) * sizeof *w->first + 63) / 64 * 64;
    room = (hvt__coll_room(w) + 63) / 64 * 64;
    block = aligned_alloc(64, head + room);
    HVT_CHECK(block, E_MEM, "%s: no memory for %zu bytes of work", hvt__action_name(w->k), head + room);
    *ret_block = block;
    w->message = (hvt__message *)(void *)block;
    w->most = w->c->world->size;
    w->first = (size_t *)(void *)(block + messages);
    w->room = block + head;
    return HVT_OK;
}

static hvt_status run_checked(hvt_comm *c, hvt_ticket ticket, int n)
{
    const hvt__call *k = (const void *)hvt__queue_at(&c->queue, ticket)->args;
    hvt__work w = {.c = c, .k = k, .bytes = hvt_dtype_size(k->type)};
    void *block = NULL;
    hvt_status s = hvt__queue_fence(c);

    HVT_TRY_OR(broken, s);
    s = prepare(&w, &block);
    c->running = 1 + (int)k->action;
    c->waiting = 0;
    HVT_TRY_OR(done, hvt__coll_compare(&w, s, ++c->collectives));
    s = hvt__call_reduces(k) ? hvt__coll_reduce(&w) : hvt__coll_move(&w);
    if (s == HVT_OK)
        goto done;
broken: /* data may have been in flight, so the comm cannot continue */
    hvt__comm_break(c, s);
done:
    c->running = 0;
    free(block);
    return s;
}

static hvt_status run_passing(hvt_comm *c, hvt_ticket first, int n)
{
    hvt_status s = hvt__queue_fence(c);

    return s == HVT_OK ? hvt__coll_send_recv(c, first, n) : hvt__comm_break(c, s);
}

static hvt_status issue(hvt_comm *c, const hvt__call *k, hvt_ticket *ret_ticket)
{
    bool passes = k->action == HVT__CALL_SEND || k->action == HVT__CALL_RECV;
    hvt__op op = {.kind = HVT__CALL, .call = passes ? run_passing : run_checked, .joins = passes};
    hvt_ticket ticket;

    HVT_CHECK(c, E_ARG, "%s: no comm", hvt__action_name(k));
    memcpy(op.args, k, sizeof *k);
    HVT_TRY(hvt__queue_add(c, &op, &ticket));
    if (ret_ticket)
        *ret_ticket = ticket;
    else
        HVT_TRY(hvt_comm_wait(c, ticket));
    return HVT_OK;
}

static const hvt_scale none = {1, 1};

hvt_status hvt_allreduce(hvt_comm *comm, const void *in, void *out, size_t count, hvt_dtype dtype,
                         hvt_reduction how, const hvt_scale *scale, hvt_ticket *ret_ticket)
{
    const hvt__call k = {HVT__CALL_ALLREDUCE,           dtype, in, out, count, .how = how,
                         .scale = scale ? *scale : none};

    return issue(comm, &k, ret_ticket);
}

hvt_status hvt_reduce_scatter(hvt_comm *comm, const void *in, void *out, size_t count, const size_t *counts,
                              hvt_dtype dtype, hvt_reduction how, const hvt_scale *scale,
                              hvt_ticket *ret_ticket)
{
    const hvt__call k = {HVT__CALL_REDUCE_SCATTER,      dtype, in, out, count, counts, .how = how,
                         .scale = scale ? *scale : none};

    return issue(comm, &k, ret_ticket);
}

hvt_status hvt_broadcast(hvt_comm *comm, void *buf, size_t count, hvt_dtype dtype, int root,
                         hvt_ticket *ret_ticket)
{
    return issue(comm, &(hvt__call){HVT__CALL_BROADCAST, dtype, NULL, buf, count, NULL, root}, ret_ticket);
}

hvt_status hvt_allgather(hvt_comm *comm, const void *in, size_t count, void *out, const size_t *counts,
                         hvt_dtype dtype, hvt_ticket *ret_ticket)
{
    return issue(comm, &(hvt__call){HVT__CALL_ALLGATHER, dtype, in, out, count, counts}, ret_ticket);
}

hvt_status hvt_gather(hvt_comm *comm, const void *in, size_t count, void *out, const size_t *counts,
                      hvt_dtype dtype, int root, hvt_ticket *ret_ticket)
{
    return issue(comm, &(hvt__call){HVT__CALL_GATHER, dtype, in, out, count, counts, root}, ret_ticket);
}

hvt_status hvt_scatter(hvt_comm *comm, const void *in, const size_t *counts, void *out, size_t count,
                       hvt_dtype dtype, int root, hvt_ticket *ret_ticket)
{
    return issue(comm, &(hvt__call){HVT__CALL_SCATTER, dtype, in, out, count, counts, root}, ret_ticket);
}

hvt_status hvt_alltoall(hvt_comm *comm, const void *in, const size_t *send_counts, void *out,
                        const size_t *recv_counts, hvt_dtype dtype, hvt_ticket *ret_ticket)
{
    return issue(comm, &(hvt__call){HVT__CALL_ALLTOALL, dtype, in, out, 0, send_counts, 0, recv_counts},
                 ret_ticket);
}

hvt_status hvt_send(hvt_comm *comm, const void *buf, size_t count, hvt_dtype dtype, int to,
                    hvt_ticket *ret_ticket)
{
    return issue(comm, &(hvt__call){HVT__CALL_SEND, dtype, buf, NULL, count, NULL, to}, ret_ticket);
}

hvt_status hvt_recv(hvt_comm *comm, void *buf, size_t count, hvt_dtype dtype, int from,
                    hvt_ticket *ret_ticket)
{
    return issue(comm, &(hvt__call){HVT__CALL_RECV, dtype, NULL, buf, count, NULL, from}, ret_ticket);
}

hvt_status hvt_barrier(hvt_comm *comm, hvt_ticket *ret_ticket)
{
    return issue(comm, &(hvt__call){HVT__CALL_BARRIER}, ret_ticket);
}
