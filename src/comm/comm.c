/*
 * The table of comms and their front door: names, the choice of `auto`, arguments checked once for all.
 */
#include "base_impl.h"
#include "config.h"
#include "coll.h"

#include <stdlib.h>
#include <string.h>

hvt_stall hvt__stall = {.warn = 30, .abort = 300};

static const hvt_comm_ops *const self = &hvt_comm_self, *const shm = &hvt_comm_shm;
#if HVT_HAVE_MPI
static const hvt_comm_ops *const mpi = &hvt_comm_mpi, *const hier = &hvt_comm_hier,
                                 *const staged = &hvt_comm_staged;
#else
static const hvt_comm_ops *const mpi = NULL, *const hier = NULL, *const staged = NULL;
#endif
#if HVT_HAVE_CUDA
static const hvt_comm_ops *const nccl = &hvt_comm_nccl;
#else
static const hvt_comm_ops *const nccl = NULL;
#endif

static const struct {
    const char *name;
    const hvt_comm_ops *const *ops; /* to NULL: not in this build */
} comms[] = {{"self", &self}, {"shm", &shm}, {"mpi", &mpi}, {"hier", &hier}, {"nccl", &nccl}};

/* Open with these operations or leave c as it was, on every rank alike. */
static hvt_status open_table(hvt_comm *c, const hvt_comm_ops *ops)
{
    hvt_comm fresh = *c;
    hvt_status s;

    if (ops == mpi && !c->dev->ops->host)
        ops = staged;
    fresh.ops = ops;
    fresh.state = NULL;
    s = hvt_world_agree(c->world, ops->open(&fresh));
    if (s != HVT_OK) {
        ops->close(&fresh);
        return hvt__pass(s, __FILE__, __LINE__, ops->name);
    }
    *c = fresh;
    return HVT_OK;
}

/* What `auto` tries first. */
static const hvt_comm_ops *best(const hvt_world *w, const hvt_device *dev)
{
    int levels;

    if (w->size == 1)
        return self;
    if (!dev->ops->host)
        return nccl ? nccl : mpi;
    if (w->nodes == 1)
        return shm;
    if (hvt__levels_inside(w, &levels) == HVT_OK)
        return hier;
    if (w->rank == 0)
        HVT_DEBUG("comm: mpi: %s", hvt_last_error());
    return mpi;
}

/* Where memory cannot be shared. */
static hvt_status fall_back(hvt_comm *c, const hvt_comm_ops *from)
{
    if (c->world->rank == 0)
        HVT_WARN("comm: mpi instead of %s: %s", from->name, hvt_last_error());
    return open_table(c, mpi);
}

hvt_status hvt_comm_open(const char *name, hvt_world *world, hvt_device *dev, hvt_comm **ret_comm)
{
    const hvt_comm_ops *ops = NULL;
    hvt_comm *c;
    hvt_status s = HVT_OK;
    bool known = false, shares;

    HVT_CHECK(name && world && dev && ret_comm, E_ARG, "a comm needs a name, a world and a device");
    for (size_t i = 0; i < HVT_LEN(comms) && !known; i++) {
        known = !strcmp(name, comms[i].name);
        ops = *comms[i].ops;
    }
    HVT_CHECK(known || !strcmp(name, "auto"), E_ARG,
              "no comm is called '%s'; known are: auto, self, shm, mpi, hier, nccl", name);
    HVT_CHECK(!known || ops, E_UNSUPPORTED, "comm '%s' is not in this build", name);
    HVT_CHECK(!known || dev->ops->host || (ops != shm && ops != hier), E_UNSUPPORTED,
              "comm %s shares memory of the host; for device %s there are nccl, and mpi, which copies to the "
              "host and back",
              name, dev->ops->name);
    c = calloc(1, sizeof *c);
    s = c ? hvt__calls_open(c) : HVT_FAIL(E_MEM, "no memory for a comm");
    HVT_TRY_OR(fail, hvt_world_agree(world, s));
    c->world = world;
    c->dev = dev;
    c->chosen = !known;
    c->channel = world->channels++;
    if (!known)
        ops = best(world, dev);
    shares = ops == shm || ops == hier;
    s = open_table(c, ops);
    if (s != HVT_OK && !known && shares && mpi)
        s = fall_back(c, ops);
    HVT_TRY_OR(fail, s);
    *ret_comm = c;
    return HVT_OK;
fail:
    if (c)
        hvt__calls_close(c);
    free(c);
    return s;
}

void hvt_comm_close(hvt_comm **comm)
{
    if (!comm || !*comm)
        return;
    (*comm)->ops->close(*comm);
    hvt__calls_close(*comm);
    free(*comm);
    *comm = NULL;
}

hvt_status hvt_comm_overlap(hvt_comm *comm, const hvt_overlap *how)
{
    HVT_CHECK(comm->dev->ops->host, E_UNSUPPORTED, "no worker for comm %s on device %s", comm->ops->name,
              comm->dev->ops->name);
    HVT_TRY(hvt_comm_wait(comm, comm->front));
    hvt__overlap_end(comm);
    return how ? hvt__overlap_begin(comm, how) : HVT_OK;
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
    if (!comm->chosen || (comm->ops != shm && comm->ops != hier) || comm->blocks || !mpi ||
        (s != HVT_E_MEM && s != HVT_E_UNSUPPORTED))
        return hvt__pass(s, __FILE__, __LINE__, "alloc");
    HVT_TRY(hvt_comm_wait(comm, comm->front)); /* the other comm knows nothing of what is on its way */
    HVT_TRY(fall_back(comm, old.ops));
    old.ops->close(&old);
    return alloc_here(comm, bytes, ret_ptr);
}

void hvt_comm_release(hvt_comm *comm, void *ptr)
{
    if (!ptr)
        return;
    if (hvt__calls_waiting(comm)) /* they may use it; a failure is told again by what comes next */
        hvt_comm_wait(comm, comm->front);
    comm->ops->release(comm, ptr);
    comm->blocks--;
}

hvt_status hvt_comm_broadcast(hvt_comm *comm, void *buf, size_t bytes, int root)
{
    HVT_CHECK(root >= 0 && root < comm->world->size, E_ARG, "root %d is not one of %d ranks", root,
              comm->world->size);
    HVT_CHECK(buf || !bytes, E_ARG, "no buffer for a broadcast of %zu bytes", bytes);
    if (hvt__calls_waiting(comm))
        HVT_TRY(hvt_comm_wait(comm, comm->front));
    return comm->ops->broadcast(comm, buf, bytes, root);
}

static hvt_status check_sum(const void *buf, size_t count, hvt_dtype dtype, const hvt_ticket *ret_ticket)
{
    HVT_CHECK(ret_ticket && (buf || !count), E_ARG, "no buffer or no ticket for %zu elements", count);
    HVT_CHECK(dtype == HVT_F32 || dtype == HVT_F16 || dtype == HVT_BF16, E_ARG,
              "ranks exchange f32, f16 and bf16, not %s", hvt_dtype_name(dtype));
    return HVT_OK;
}

hvt_status hvt__comm_issue(hvt_comm *c, hvt__kind kind, void *buf, size_t count, hvt_dtype t,
                           hvt_ticket *ret_ticket)
{
    switch (kind) {
    case HVT__REDUCE_SCATTER:
        return c->ops->reduce_scatter(c, buf, count, t, ret_ticket);
    case HVT__ALLGATHER:
        return c->ops->allgather(c, buf, count, t, ret_ticket);
    default:
        return c->ops->allreduce(c, buf, count, t, ret_ticket);
    }
}

static hvt_status issue(hvt_comm *c, hvt__kind kind, void *buf, size_t count, hvt_dtype t,
                        hvt_ticket *ret_ticket)
{
    hvt_ticket inner;

    HVT_TRY(check_sum(buf, count, t, ret_ticket));
    if (hvt__calls_waiting(c))
        return hvt__calls_add(
            c, &(hvt__call){.action = HVT__CALL_COMM, .kind = kind, .type = t, .count = count, .out = buf},
            ret_ticket);
    HVT_TRY(hvt__comm_issue(c, kind, buf, count, t, &inner));
    *ret_ticket = ++c->front;
    return HVT_OK;
}

hvt_status hvt_comm_allreduce(hvt_comm *comm, void *buf, size_t count, hvt_dtype dtype,
                              hvt_ticket *ret_ticket)
{
    return issue(comm, HVT__ALLREDUCE, buf, count, dtype, ret_ticket);
}

hvt_status hvt_comm_reduce_scatter(hvt_comm *comm, void *buf, size_t count, hvt_dtype dtype,
                                   hvt_ticket *ret_ticket)
{
    return issue(comm, HVT__REDUCE_SCATTER, buf, count, dtype, ret_ticket);
}

hvt_status hvt_comm_allgather(hvt_comm *comm, void *buf, size_t count, hvt_dtype dtype,
                              hvt_ticket *ret_ticket)
{
    return issue(comm, HVT__ALLGATHER, buf, count, dtype, ret_ticket);
}

bool hvt_comm_records(const hvt_comm *comm)
{
    return comm->ops->records;
}

bool hvt_comm_shares(const hvt_comm *comm)
{
    return comm->ops->share != NULL;
}

bool hvt_comm_ahead(const hvt_comm *comm)
{
    return comm->overlap || comm->ops->records;
}

bool hvt_comm_progresses(const hvt_comm *comm)
{
    return comm->ops->progress != NULL;
}

hvt_status hvt_comm_progress(hvt_comm *comm)
{
    return comm->ops->progress && !hvt__calls_waiting(comm) ? comm->ops->progress(comm) : HVT_OK;
}

bool hvt_comm_combines(const hvt_comm *comm)
{
    return comm->ops->combine != NULL;
}

hvt_status hvt_comm_share(hvt_comm *comm, size_t bytes, void **ret_ptr)
{
    void *ptr = NULL;
    hvt_status s;

    HVT_CHECK(ret_ptr, E_ARG, "no place for the address of %zu bytes", bytes);
    HVT_CHECK(comm->ops->share, E_UNSUPPORTED, "ranks of comm '%s' do not share memory", comm->ops->name);
    s = hvt_world_agree(comm->world, comm->ops->share(comm, bytes, &ptr));
    if (s != HVT_OK) {
        comm->ops->release(comm, ptr);
        return hvt__pass(s, __FILE__, __LINE__, "share");
    }
    comm->blocks++;
    *ret_ptr = ptr;
    return HVT_OK;
}

hvt_status hvt_comm_combine(hvt_comm *comm, void *buf, size_t count, hvt_dtype dtype, hvt_combine_fn *fn,
                            void *ctx, hvt_ticket *ret_ticket)
{
    hvt_ticket inner;

    HVT_TRY(check_sum(buf, count, dtype, ret_ticket));
    HVT_CHECK(fn, E_ARG, "nothing to combine %zu elements with", count);
    HVT_CHECK(comm->ops->combine, E_UNSUPPORTED, "ranks of comm '%s' do not see each other's memory",
              comm->ops->name);
    if (hvt__calls_waiting(comm))
        HVT_TRY(hvt_comm_wait(comm, comm->front));
    HVT_TRY(comm->ops->combine(comm, buf, count, dtype, fn, ctx, &inner));
    *ret_ticket = ++comm->front;
    return HVT_OK;
}

void hvt_comm_slice(const hvt_comm *comm, size_t count, int rank, size_t *ret_first, size_t *ret_end)
{
    int size = comm->world->size, place = hvt__slice_of(rank, size);

    if (comm->ops->slice) {
        comm->ops->slice(comm, count, rank, ret_first, ret_end);
        return;
    }
    *ret_first = hvt__cut(count, place, size);
    *ret_end = hvt__cut(count, place + 1, size);
}

hvt_status hvt_comm_wait(hvt_comm *comm, hvt_ticket ticket)
{
    HVT_CHECK(ticket <= comm->front, E_ARG, "ticket %llu was never issued; the last one is %llu",
              (unsigned long long)ticket, (unsigned long long)comm->front);
    return hvt__calls_wait(comm, ticket);
}
