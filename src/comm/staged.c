/*
 * The comm "mpi" for a device whose memory the host cannot read: each piece of a vector is downloaded, summed
 * by the host's comm of that name along the same tree, and uploaded. Slow, and right wherever MPI is: the
 * fallback where NCCL is not, and the oracle for it.
 *
 * A sum is taken piece by piece, which changes no bit, since elements do not mix; all pieces pass through one
 * buffer.
 */
#include "base_impl.h"
#include "comm_internal.h"

#include <stdlib.h>

enum { PIECE = 1 << 20 }; /* elements */

typedef struct comm_staged {
    hvt_device *host; /* where it is summed */
    hvt_comm inner;   /* of the same ranks, over `host` */
    void *piece;      /* [PIECE] f32 at most; host memory that the device copies fast */
} comm_staged;

/* ---- life --------------------------------------------------------------------------------- */

static void comm_close_staged(hvt_comm *c)
{
    comm_staged *st = c->state;

    if (!st)
        return;
    if (st->inner.ops)
        st->inner.ops->close(&st->inner);
    hvt_device_close(&st->host);
    c->dev->ops->release_host(c->dev, st->piece);
    free(st);
    c->state = NULL;
}

/* What can fail on one rank alone. */
static hvt_status prepare(hvt_comm *c)
{
    comm_staged *st = calloc(1, sizeof *st);

    HVT_CHECK(st, E_MEM, "no memory for a comm");
    c->state = st;
    HVT_TRY(hvt_device_open("cpu", &(hvt_device_opts){.threads = 1, .yield = c->dev->yield}, &st->host));
    return c->dev->ops->alloc_host(c->dev, PIECE * sizeof(float), &st->piece);
}

static hvt_status comm_open_staged(hvt_comm *c)
{
    comm_staged *st;

    HVT_TRY(hvt_world_agree(c->world, prepare(c)));
    st = c->state;
    st->inner = (hvt_comm){.ops = &hvt_comm_mpi,
                           .world = c->world,
                           .dev = st->host,
                           .cutoffs = c->cutoffs,
                           .party = hvt__comm_party(0)};
    return st->inner.ops->open(&st->inner);
}

static hvt_status comm_alloc_staged(hvt_comm *c, size_t bytes, void **ret_ptr)
{
    return c->dev->ops->alloc(c->dev, bytes, ret_ptr);
}

static void comm_release_staged(hvt_comm *c, void *ptr)
{
    c->dev->ops->release(c->dev, ptr);
}

/* ---- operations --------------------------------------------------------------------------- */

static hvt_status run_inner(comm_staged *st, const hvt__op *op)
{
    return st->inner.ops->run(&st->inner, st->host, op);
}

/* Slices are not worth an operation of their own here: everyone gets the whole sum. */
static hvt_status sum(hvt_comm *c, char *buf, size_t count, hvt_dtype t)
{
    comm_staged *st = c->state;
    size_t bytes = hvt_dtype_size(t);

    for (size_t at = 0, n; at < count; at += n) {
        n = count - at < PIECE ? count - at : PIECE;
        HVT_TRY(c->dev->ops->download(c->dev, st->piece, buf + at * bytes, n * bytes));
        HVT_TRY(run_inner(st, &(hvt__op){.kind = HVT__ALLREDUCE, .buf = st->piece, .count = n, .type = t}));
        HVT_TRY(c->dev->ops->upload(c->dev, buf + at * bytes, st->piece, n * bytes));
    }
    return HVT_OK;
}

static hvt_status spread(hvt_comm *c, char *buf, size_t bytes, int root)
{
    comm_staged *st = c->state;
    bool mine = c->world->rank == root;

    for (size_t at = 0, n; at < bytes && c->world->size > 1; at += n) {
        n = bytes - at < PIECE * sizeof(float) ? bytes - at : PIECE * sizeof(float);
        if (mine)
            HVT_TRY(c->dev->ops->download(c->dev, st->piece, buf + at, n));
        HVT_TRY(
            run_inner(st, &(hvt__op){.kind = HVT__BROADCAST, .buf = st->piece, .count = n, .root = root}));
        if (!mine)
            HVT_TRY(c->dev->ops->upload(c->dev, buf + at, st->piece, n));
    }
    return HVT_OK;
}

static hvt_status gather(hvt_comm *c, char *buf, size_t count, hvt_dtype t)
{
    size_t bytes = hvt_dtype_size(t), first, end;

    for (int r = 0; r < c->world->size; r++) {
        hvt_comm_slice(c, count, r, &first, &end);
        HVT_TRY(spread(c, buf + first * bytes, (end - first) * bytes, r));
    }
    return HVT_OK;
}

static hvt__leaving comm_left_staged(hvt_comm *c, int rank)
{
    comm_staged *st = c->state;

    return st->inner.ops->left(&st->inner, rank);
}

static void comm_leave_staged(hvt_comm *c, hvt__leaving why)
{
    comm_staged *st = c->state;

    st->inner.ops->leave(&st->inner, why);
}

static hvt_status comm_run_staged(hvt_comm *c, hvt_device *dev, const hvt__op *op)
{
    (void)dev; /* c->dev: no worker comes here */
    if (op->kind == HVT__BROADCAST)
        return spread(c, op->buf, op->count, op->root);
    if (op->kind == HVT__ALLGATHER)
        return gather(c, op->buf, op->count, op->type);
    return sum(c, op->buf, op->count, op->type);
}

const hvt_comm_ops hvt_comm_staged = {
    .name = "mpi",
    .open = comm_open_staged,
    .close = comm_close_staged,
    .alloc = comm_alloc_staged,
    .release = comm_release_staged,
    .run = comm_run_staged,
    .left = comm_left_staged,
    .leave = comm_leave_staged,
};
