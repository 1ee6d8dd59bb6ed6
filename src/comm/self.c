/* The comm of one rank, which adds only its own leaves. Saves a special case elsewhere. */
#include "base_impl.h"
#include "comm_internal.h"

static hvt_status comm_open_self(hvt_comm *c)
{
    HVT_CHECK(c->world->size == 1, E_UNSUPPORTED, "comm 'self' is for one rank; the world has %d",
              c->world->size);
    return HVT_OK;
}

static hvt_status comm_run_self(hvt_comm *c, hvt_device *dev, const hvt__op *op)
{
    return hvt__leaves_add_own(dev, op);
}

const hvt_comm_ops hvt_comm_self = {
    .name = "self",
    .can = HVT_COMM_CAPTURABLE | HVT_COMM_ASYNCHRONOUS,
    .leaves = true,
    .open = comm_open_self,
    .run = comm_run_self,
};
