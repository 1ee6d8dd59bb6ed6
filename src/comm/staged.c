/*
 * The comm over messages for a device whose memory the host cannot read: each piece of a vector is
 * downloaded, summed by the host's comm over messages along the same tree, and uploaded. Slow: the fallback
 * without NCCL, and the reference for testing it.
 *
 * Elements are summed independently, so cutting a vector into pieces changes no bits. All pieces use one
 * buffer.
 */
#include "base_impl.h"
#include "comm_internal.h"

enum { PIECE = 1 << 20 }; /* elements */

typedef struct comm_staged {
    hvt_device *host; /* computes the sums */
    hvt_comm inner;   /* the same ranks, on `host` */
    void *piece;      /* [PIECE] f32, or as many bytes; pinned host memory */
} comm_staged;

static void comm_close_staged(hvt_comm *c)
{
    comm_staged *st = c->state;

    if (!st)
        return;
    if (st->inner.ops)
        st->inner.ops->close(&st->inner);
    hvt_device_close(&st->host);
    c->dev->ops->memory.release_host(c->dev, st->piece);
    free(st);
    c->state = NULL;
}

/* The steps that may fail on one rank only. */
static hvt_status prepare(hvt_comm *c)
{
    comm_staged *st = calloc(1, sizeof *st);

    HVT_CHECK(st, E_MEM, "no memory for a comm");
    c->state = st;
    HVT_TRY(hvt_device_open("cpu", &(hvt_device_opts){.threads = 1, .yield = c->dev->yield}, &st->host));
    return c->dev->ops->memory.alloc_host(c->dev, PIECE * sizeof(float), &st->piece);
}

static hvt_status comm_open_staged(hvt_comm *c)
{
    comm_staged *st;

    HVT_TRY(hvt_world_agree(c->world, prepare(c)));
    st = c->state;
    st->inner = (hvt_comm){.ops = &hvt_comm_messages,
                           .name = c->name,
                           .world = c->world,
                           .dev = st->host,
                           .cutoffs = c->cutoffs,
                           .group = c->group};
    return st->inner.ops->open(&st->inner);
}

/* A sum or a broadcast. Slices are not worth an operation of their own here: every rank gets the whole sum.
 */
static hvt_status run_pieces(hvt_comm *c, hvt__op op)
{
    comm_staged *st = c->state;
    size_t bytes = hvt_dtype_size(op.type), most = PIECE * sizeof(float) / bytes, left = op.count;
    bool sums = op.kind == HVT__ALLREDUCE, mine = c->world->rank == op.root;

    for (char *at = op.buf; left; at += op.count * bytes, left -= op.count) {
        op.buf = st->piece;
        op.count = left < most ? left : most;
        if (sums || mine)
            HVT_TRY(c->dev->ops->memory.download(c->dev, st->piece, at, op.count * bytes));
        HVT_TRY(st->inner.ops->run(&st->inner, st->host, &op));
        if (sums || !mine)
            HVT_TRY(c->dev->ops->memory.upload(c->dev, at, st->piece, op.count * bytes));
    }
    return HVT_OK;
}

static void comm_tell_staged(hvt_comm *c, int word)
{
    comm_staged *st = c->state;

    st->inner.ops->tell(&st->inner, word);
}

static hvt_status comm_run_staged(hvt_comm *c, hvt_device *dev, const hvt__op *op)
{
    size_t bytes = hvt_dtype_size(op->type), first, end;
    hvt__op part = {.kind = HVT__BROADCAST, .type = HVT_U8};

    if (op->kind == HVT__BROADCAST)
        return run_pieces(c, *op);
    if (op->kind != HVT__ALLGATHER)
        return run_pieces(
            c, (hvt__op){.kind = HVT__ALLREDUCE, .type = op->type, .buf = op->buf, .count = op->count});
    for (part.root = 0; part.root < c->world->size; part.root++) {
        hvt_comm_slice(c, op->count, part.root, &first, &end);
        part.buf = (char *)op->buf + first * bytes;
        part.count = (end - first) * bytes;
        HVT_TRY(run_pieces(c, part));
    }
    return HVT_OK;
}

const hvt_comm_ops hvt_comm_staged = {
    .name = "staged",
    .open = comm_open_staged,
    .close = comm_close_staged,
    .run = comm_run_staged,
    .tell = comm_tell_staged,
};
