/*
 * The queue of operations that were issued and not yet run: run inside wait, in issue order, until one
 * fails.
 */
#include "base_impl.h"
#include "room.h"
#include "watch.h"

#include <stdlib.h>

static hvt_status add(hvt__pending *p, const hvt__job *job)
{
    if (p->issued - p->run == p->room) {
        size_t room = p->room ? 2 * p->room : 64;
        hvt__job *jobs = malloc(room * sizeof *jobs);

        HVT_CHECK(jobs, E_MEM, "no memory for %zu operations in flight", room);
        for (hvt_ticket t = p->run + 1; t <= p->issued; t++)
            jobs[t & (room - 1)] = *hvt__pending_at(p, t);
        free(p->jobs);
        p->jobs = jobs;
        p->room = room;
    }
    *hvt__pending_at(p, ++p->issued) = *job;
    return HVT_OK;
}

hvt_status hvt__pending_issue(hvt_comm *c, const hvt__job *job, hvt_ticket *ret_ticket)
{
    hvt__pending *p = c->state;

    hvt_status s = add(p, job);

    if (s != HVT_OK)
        return p->broken =
                   s; /* the others' operations are not this rank's any more; the next wait tells them */
    *ret_ticket = c->issued = p->issued;
    return HVT_OK;
}

hvt_status hvt__pending_run(hvt_comm *c, hvt_ticket ticket, hvt__perform_fn *perform)
{
    hvt__pending *p = c->state;

    HVT_CHECK(!p->broken, E_COMM, "an earlier operation of this comm failed (%s): it cannot go on",
              hvt_status_name(p->broken));
    while (p->run < ticket) {
        int64_t behind = (int64_t)(ticket - p->run) - 1;
        hvt_status s;

        hvt__wait_behind += behind;
        s = perform(c, hvt__pending_at(p, p->run + 1));
        hvt__wait_behind -= behind;
        if (s != HVT_OK)
            return hvt__pass(p->broken = s, __FILE__, __LINE__, "perform");
        p->run++;
    }
    return HVT_OK;
}

hvt_status hvt__pending_allreduce(hvt_comm *c, void *buf, size_t count, hvt_dtype t, hvt_ticket *ret_ticket)
{
    const hvt__job j = {.buf = buf, .count = count, .type = t, .kind = HVT__ALLREDUCE};

    return hvt__pending_issue(c, &j, ret_ticket);
}

hvt_status hvt__pending_reduce_scatter(hvt_comm *c, void *buf, size_t count, hvt_dtype t,
                                       hvt_ticket *ret_ticket)
{
    const hvt__job j = {.buf = buf, .count = count, .type = t, .kind = HVT__REDUCE_SCATTER};

    return hvt__pending_issue(c, &j, ret_ticket);
}

hvt_status hvt__pending_allgather(hvt_comm *c, void *buf, size_t count, hvt_dtype t, hvt_ticket *ret_ticket)
{
    const hvt__job j = {.buf = buf, .count = count, .type = t, .kind = HVT__ALLGATHER};

    return hvt__pending_issue(c, &j, ret_ticket);
}
