/*
 * The public functions of collectives. A collective is a call in the comm's queue, so it runs in
 * hvt_comm_wait(), after the operations issued before it.
 */
#include "base_impl.h"
#include "coll.h"

/* Get all of a call's memory in one block, so that a lack is found before any rank moves data. The comm keeps
 * the block, because clearing new pages can take longer than the call. */
static hvt_status prepare(hvt__work *w)
{
    hvt_comm *c = w->c;
    size_t size = (size_t)c->world->size, messages, head, room;

    HVT_TRY(hvt__coll_check(c, w->k));
    w->most = hvt__call_adds_adaptively(w->k) ? hvt__adasum_messages(w) : c->world->size;
    messages = 2 * (size_t)w->most * sizeof *w->message;
    head = (messages + (size + 1) * sizeof *w->first + 63) / 64 * 64;
    room = hvt__call_adds_adaptively(w->k) ? hvt__adasum_room(w) : (hvt__coll_room(w) + 63) / 64 * 64;
    if (head + room > c->work_bytes) {
        free(c->work);
        c->work = aligned_alloc(64, head + room);
        c->work_bytes = c->work ? head + room : 0;
    }
    HVT_CHECK(c->work, E_MEM, "%s: no memory for %zu bytes of work", hvt__action_name(w->k), head + room);
    w->message = c->work;
    w->first = (size_t *)(void *)((char *)c->work + messages);
    w->room = (char *)c->work + head;
    return HVT_OK;
}

static hvt_status run_checked(hvt_comm *c, hvt_ticket ticket, int n)
{
    const hvt__call *k = (const void *)hvt__queue_at(&c->queue, ticket)->args;
    hvt__work w = {.c = c, .k = k, .bytes = hvt_dtype_size(k->type)};
    hvt_status s = hvt__queue_fence(c);

    HVT_TRY_OR(broken, s);
    s = prepare(&w);
    c->running = 1 + (int)k->action;
    c->waiting = 0;
    HVT_TRY_OR(done, hvt__coll_compare(&w, s, ++c->collectives));
    s = hvt__call_adds_adaptively(k) ? hvt__adasum(&w)
        : hvt__call_reduces(k)       ? hvt__coll_reduce(&w)
                                     : hvt__coll_move(&w);
    if (s == HVT_OK)
        goto done;
broken: /* data may have been in flight, so the comm cannot continue */
    hvt__comm_break(c, s);
done:
    c->running = 0;
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

hvt_status hvt__adasum_post(hvt_comm *comm, float *buf, size_t count, const hvt__vectors *of,
                            hvt_ticket *ret_ticket)
{
    const hvt__call k = {HVT__CALL_ALLREDUCE, HVT_F32,       NULL,    buf, count,
                         .how = HVT_ADASUM,   .scale = none, .of = of};

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
