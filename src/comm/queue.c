/*
 * A comm's queue: operations run in the order of issue.
 *
 * Without a worker they run in hvt_comm_wait(), on the caller's thread. A worker (worker.c) runs them as soon
 * as they are issued, except *held* ones: operations that call a function of the caller or of the collectives
 * run on the caller's thread when it waits.
 *
 * Invariants: operations after a call are not posted before the call has run, since they may share its
 * buffer. After a failure nothing runs any more, unless a call failed before it moved data.
 */
#include "base_impl.h"
#include "comm_internal.h"
#include "world/watch.h"

hvt_status hvt__queue_check(const hvt_comm *c)
{
    HVT_CHECK(!c->queue.reported, E_COMM,
              "this comm cannot be used any more: an earlier operation failed (%s: %s)",
              hvt_status_name(c->queue.broken), c->queue.why);
    return HVT_OK;
}

/* Records the queue's first failure, and leaves the comm. Call with the worker's lock. */
static hvt_status give_up(hvt_comm *c, hvt_status s)
{
    hvt__queue *q = &c->queue;

    if (!q->broken) {
        q->broken = s;
        snprintf(q->why, sizeof q->why, "%s", hvt_last_error());
    }
    if (c->ops->tell)
        c->ops->tell(c, HVT__BY_ITSELF);
    return s;
}

hvt_status hvt__comm_break(hvt_comm *c, hvt_status s)
{
    hvt__worker_lock(c);
    give_up(c, s);
    hvt__worker_unlock(c);
    return s;
}

static hvt_status add(hvt__queue *q, const hvt__op *op)
{
    if (q->issued - q->run == q->room) {
        size_t room = 2 * q->room;
        hvt__op *grown = malloc(room * sizeof *grown);

        HVT_CHECK(grown, E_MEM, "no memory for %zu operations in flight", room);
        for (hvt_ticket t = q->run + 1; t <= q->issued; t++)
            grown[t & (room - 1)] = *hvt__queue_at(q, t);
        free(q->op);
        q->op = grown;
        q->room = room;
    }
    *hvt__queue_at(q, ++q->issued) = *op;
    return HVT_OK;
}

/* Posts (announces) issued operations, up to the next call or a full ring. A worker announces its operations
 * when it runs them. */
static hvt_status post(hvt_comm *c)
{
    hvt__queue *q = &c->queue;
    bool posted = c->ops->post && !c->worker;

    if (q->posted < q->run)
        q->posted = q->run;
    while (posted && q->posted < q->issued) {
        const hvt__op *op = hvt__queue_at(q, q->posted + 1);

        if (op->kind == HVT__CALL)
            break;
        posted = false;
        HVT_TRY(c->ops->post(c, op, &posted));
        q->posted += posted;
    }
    return HVT_OK;
}

hvt_status hvt__queue_add(hvt_comm *c, const hvt__op *op, hvt_ticket *ret_ticket)
{
    hvt__queue *q = &c->queue;
    hvt_status s;

    HVT_TRY(hvt__queue_check(c));
    hvt__worker_lock(c);
    s = add(q, op);
    if (s != HVT_OK) { /* this rank's operations no longer match the others' */
        give_up(c, s);
        q->reported = true;
    } else {
        s = post(c);
        if (s != HVT_OK) /* an operation that could not be posted was not issued */
            q->issued--;
    }
    *ret_ticket = q->issued;
    hvt__worker_unlock(c);
    return s;
}

/* Number of calls that run together with the queue's first. */
static int joined(const hvt__queue *q)
{
    const hvt__op *first = hvt__queue_at(q, q->run + 1), *op = first;
    int n = 0;

    while (op->kind == HVT__CALL && op->joins && op->call == first->call &&
           q->run + (hvt_ticket)++n < q->issued)
        op = hvt__queue_at(q, q->run + 1 + (hvt_ticket)n);
    return n ? n : 1;
}

hvt_status hvt__queue_fence(hvt_comm *c)
{
    hvt_ticket ran = c->queue.run;

    if (c->ops->fence)
        HVT_TRY(c->ops->fence(c));
    c->queue.ended = ran;
    return HVT_OK;
}

hvt_status hvt__queue_run_now(hvt_comm *c, const hvt__op *op)
{
    HVT_TRY(c->ops->run(c, c->dev, op));
    return hvt__queue_fence(c);
}

static hvt_status run(hvt_comm *c, hvt_device *dev, const hvt__op *op)
{
    hvt_status s;

    c->operations++;
    c->running = HVT__OPERATION + (int)op->kind;
    s = c->ops->run(c, dev, op);
    c->running = 0;
    return s;
}

hvt_status hvt__queue_run_next(hvt_comm *c, hvt_device *dev)
{
    hvt__queue *q = &c->queue;
    hvt__op op = *hvt__queue_at(q, q->run + 1); /* a copy: the ring may grow meanwhile */
    bool call = op.kind == HVT__CALL;
    int n = joined(q);
    hvt_status s;

    hvt__worker_unlock(c);
    s = call ? op.call(c, q->run + 1, n) : run(c, dev, &op);
    if (s == HVT_OK && c->worker && c->ops->fence) /* another thread may run the next one */
        s = c->ops->fence(c);
    hvt__worker_lock(c);
    if (s == HVT_OK && c->worker)
        q->ended = q->run + (hvt_ticket)n;
    if (s != HVT_OK && (!call || s == HVT_E_COMM || s == HVT_E_DEVICE))
        give_up(c, s);
    if (!q->broken)
        q->run += (hvt_ticket)n;
    return s == HVT_OK ? s : hvt__pass(s, __FILE__, __LINE__, "run");
}

hvt_status hvt_comm_wait(hvt_comm *comm, hvt_ticket ticket)
{
    hvt_status s = HVT_OK, next;
    hvt__queue *q;

    HVT_CHECK(comm, E_ARG, "no comm to wait for");
    q = &comm->queue;
    HVT_CHECK(ticket <= q->issued, E_ARG, "ticket %llu was never issued; the last one is %llu",
              (unsigned long long)ticket, (unsigned long long)q->issued);
    hvt__worker_lock(comm);
    while (q->run < ticket && !q->broken) {
        int64_t behind = (int64_t)(ticket - q->run) - 1;

        if (hvt__worker_await(comm))
            continue;
        hvt__wait_behind += behind;
        next = post(comm);
        next = next == HVT_OK ? hvt__queue_run_next(comm, comm->dev) : give_up(comm, next);
        hvt__wait_behind -= behind;
        q->reported = q->broken;
        s = next == HVT_OK ? s : next;
    }
    if (s == HVT_OK && (q->broken ? q->ended : q->run) < ticket) {
        s = q->reported ? hvt__queue_check(comm) : hvt__worker_error(comm, q->broken);
        q->reported = true;
    }
    if (!q->broken && !comm->worker) {
        next = hvt__queue_fence(comm);
        if (next != HVT_OK) {
            s = hvt__pass(give_up(comm, next), __FILE__, __LINE__, "fence");
            q->reported = true;
        }
    }
    hvt__worker_unlock(comm);
    return s;
}
