/*
 * The comm of one rank: every sum has one term. It keeps "one rank" out of every if elsewhere.
 */
#include "base_impl.h"
#include "room.h"

static hvt_status comm_open_self(hvt_comm *c)
{
    HVT_CHECK(c->world->size == 1, E_UNSUPPORTED, "comm 'self' is for one rank; the world has %d",
              c->world->size);
    return HVT_OK;
}

static void comm_close_self(hvt_comm *c)
{
    (void)c;
}

static hvt_status comm_alloc_self(hvt_comm *c, size_t bytes, void **ret_ptr)
{
    return c->dev->ops->alloc(c->dev, bytes, ret_ptr);
}

static void comm_release_self(hvt_comm *c, void *ptr)
{
    c->dev->ops->release(c->dev, ptr);
}

static int comm_peers_self(hvt_comm *c, const void *buf, const void *ret_ptrs[])
{
    (void)c;
    ret_ptrs[0] = buf;
    return 1;
}

static hvt_status comm_broadcast_self(hvt_comm *c, void *buf, size_t bytes, int root)
{
    (void)c, (void)buf, (void)bytes, (void)root;
    return HVT_OK;
}

static hvt_status comm_sum_self(hvt_comm *c, void *buf, size_t count, hvt_dtype t, hvt_ticket *ret_ticket)
{
    (void)buf, (void)count, (void)t;
    *ret_ticket = ++c->issued;
    return HVT_OK;
}

static hvt_status comm_wait_self(hvt_comm *c, hvt_ticket ticket)
{
    (void)c, (void)ticket;
    return HVT_OK;
}

const hvt_comm_ops hvt_comm_self = {
    .name = "self",
    .records = true,
    .open = comm_open_self,
    .close = comm_close_self,
    .alloc = comm_alloc_self,
    .release = comm_release_self,
    .peers = comm_peers_self,
    .broadcast = comm_broadcast_self,
    .allreduce = comm_sum_self,
    .reduce_scatter = comm_sum_self,
    .allgather = comm_sum_self,
    .wait = comm_wait_self,
};
