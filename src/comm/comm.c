/*
 * The table of comms and their front door: names, the choice of `auto`, arguments checked once for all.
 */
#include "base_impl.h"
#include "config.h"
#include "room.h"

#include <stdlib.h>
#include <string.h>

static const hvt_comm_ops *const self = &hvt_comm_self, *const shm = &hvt_comm_shm;
#if HVT_HAVE_MPI
static const hvt_comm_ops *const mpi = &hvt_comm_mpi;
#else
static const hvt_comm_ops *const mpi = NULL;
#endif

static const struct {
    const char *name;
    const hvt_comm_ops *const *ops; /* to NULL: not in this build */
} comms[] = {{"self", &self}, {"shm", &shm}, {"mpi", &mpi}};

/* Open with these operations or leave c as it was, on every rank alike. */
static hvt_status open_table(hvt_comm *c, const hvt_comm_ops *ops)
{
    hvt_comm fresh = {.ops = ops, .world = c->world, .dev = c->dev, .issued = c->issued, .chosen = c->chosen};
    hvt_status s = hvt_world_agree(c->world, ops->open(&fresh));

    if (s != HVT_OK) {
        ops->close(&fresh);
        return hvt__pass(s, __FILE__, __LINE__, ops->name);
    }
    *c = fresh;
    return HVT_OK;
}

static hvt_status fall_back(hvt_comm *c)
{
    if (c->world->rank == 0)
        HVT_WARN("comm: mpi instead of shm: %s", hvt_last_error());
    return open_table(c, mpi);
}

hvt_status hvt_comm_open(const char *name, hvt_world *world, hvt_device *dev, hvt_comm **ret_comm)
{
    const hvt_comm_ops *ops = NULL;
    hvt_comm *c;
    hvt_status s = HVT_OK;
    bool known = false;

    HVT_CHECK(name && world && dev && ret_comm, E_ARG, "a comm needs a name, a world and a device");
    for (size_t i = 0; i < HVT_LEN(comms) && !known; i++) {
        known = !strcmp(name, comms[i].name);
        ops = *comms[i].ops;
    }
    HVT_CHECK(known || !strcmp(name, "auto"), E_ARG,
              "no comm is called '%s'; known are: auto, self, shm, mpi", name);
    HVT_CHECK(!known || ops, E_UNSUPPORTED, "comm '%s' is not in this build", name);
    c = calloc(1, sizeof *c);
    if (!c)
        s = HVT_FAIL(E_MEM, "no memory for a comm");
    HVT_TRY_OR(fail, hvt_world_agree(world, s));
    c->world = world;
    c->dev = dev;
    c->chosen = !known;
    if (known)
        HVT_TRY_OR(fail, open_table(c, ops));
    else if (world->size == 1)
        HVT_TRY_OR(fail, open_table(c, self));
    else if (world->nodes > 1)
        HVT_TRY_OR(fail, open_table(c, mpi));
    else if (open_table(c, shm) != HVT_OK)
        HVT_TRY_OR(fail, fall_back(c));
    *ret_comm = c;
    return HVT_OK;
fail:
    free(c);
    return s;
}

void hvt_comm_close(hvt_comm **comm)
{
    if (!comm || !*comm)
        return;
    (*comm)->ops->close(*comm);
    free(*comm);
    *comm = NULL;
}

const char *hvt_comm_name(const hvt_comm *comm)
{
    return comm->ops->name;
}

hvt_world *hvt_comm_world(const hvt_comm *comm)
{
    return comm->world;
}

static hvt_status alloc_here(hvt_comm *c, size_t bytes, void **ret_ptr)
{
    void *ptr = NULL;
    hvt_status s = hvt_world_agree(c->world, c->ops->alloc(c, bytes, &ptr));

    if (s != HVT_OK) {
        c->ops->release(c, ptr);
        return s;
    }
    c->blocks++;
    *ret_ptr = ptr;
    return HVT_OK;
}

hvt_status hvt_comm_alloc(hvt_comm *comm, size_t bytes, void **ret_ptr)
{
    hvt_comm old = *comm;
    hvt_status s;

    HVT_CHECK(ret_ptr, E_ARG, "no place for the address of %zu bytes", bytes);
    s = alloc_here(comm, bytes, ret_ptr);
    if (s == HVT_OK)
        return HVT_OK;
    if (!comm->chosen || comm->ops != shm || comm->blocks || !mpi ||
        (s != HVT_E_MEM && s != HVT_E_UNSUPPORTED))
        return hvt__pass(s, __FILE__, __LINE__, "alloc");
    HVT_TRY(hvt_comm_wait(comm, comm->issued)); /* the other comm knows nothing of what is on its way */
    HVT_TRY(fall_back(comm));
    old.ops->close(&old);
    return alloc_here(comm, bytes, ret_ptr);
}

void hvt_comm_release(hvt_comm *comm, void *ptr)
{
    if (!ptr)
        return;
    comm->ops->release(comm, ptr);
    comm->blocks--;
}

hvt_status hvt_comm_broadcast(hvt_comm *comm, void *buf, size_t bytes, int root)
{
    HVT_CHECK(root >= 0 && root < comm->world->size, E_ARG, "root %d is not one of %d ranks", root,
              comm->world->size);
    HVT_CHECK(buf || !bytes, E_ARG, "no buffer for a broadcast of %zu bytes", bytes);
    return comm->ops->broadcast(comm, buf, bytes, root);
}

static hvt_status check_sum(const void *buf, size_t count, hvt_dtype dtype, const hvt_ticket *ret_ticket)
{
    HVT_CHECK(ret_ticket && (buf || !count), E_ARG, "no buffer or no ticket for %zu elements", count);
    HVT_CHECK(dtype == HVT_F32 || dtype == HVT_F16 || dtype == HVT_BF16, E_ARG,
              "ranks exchange f32, f16 and bf16, not %s", hvt_dtype_name(dtype));
    return HVT_OK;
}

hvt_status hvt_comm_allreduce(hvt_comm *comm, void *buf, size_t count, hvt_dtype dtype,
                              hvt_ticket *ret_ticket)
{
    HVT_TRY(check_sum(buf, count, dtype, ret_ticket));
    return comm->ops->allreduce(comm, buf, count, dtype, ret_ticket);
}

hvt_status hvt_comm_reduce_scatter(hvt_comm *comm, void *buf, size_t count, hvt_dtype dtype,
                                   hvt_ticket *ret_ticket)
{
    HVT_TRY(check_sum(buf, count, dtype, ret_ticket));
    return comm->ops->reduce_scatter(comm, buf, count, dtype, ret_ticket);
}

hvt_status hvt_comm_allgather(hvt_comm *comm, void *buf, size_t count, hvt_dtype dtype,
                              hvt_ticket *ret_ticket)
{
    HVT_TRY(check_sum(buf, count, dtype, ret_ticket));
    return comm->ops->allgather(comm, buf, count, dtype, ret_ticket);
}

void hvt_comm_slice(const hvt_comm *comm, size_t count, int rank, size_t *ret_first, size_t *ret_end)
{
    int size = comm->world->size, place = hvt__slice_of(rank, size);

    *ret_first = hvt__cut(count, place, size);
    *ret_end = hvt__cut(count, place + 1, size);
}

hvt_status hvt_comm_wait(hvt_comm *comm, hvt_ticket ticket)
{
    HVT_CHECK(ticket <= comm->issued, E_ARG, "ticket %llu was never issued; the last one is %llu",
              (unsigned long long)ticket, (unsigned long long)comm->issued);
    return comm->ops->wait(comm, ticket);
}
