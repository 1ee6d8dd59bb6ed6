/*
 * The comm of several nodes: shared memory inside a node, messages between nodes.
 *
 * A node's ranks are a block of the tree (tree.c), so the tree's lower levels lie inside nodes and its upper
 * ones between them. A sum climbs the lower levels by the node's shm, the upper ones by mpi, where every rank
 * of a node carries its slice at the same time as the others carry theirs, and comes back the same way.
 *
 * Invariant: after the lower levels each rank holds what mpi's own would have left it: its slice of the
 * node's sum, or all of it where a vector travels whole. So slices, order of adding and, in f32, bits are
 * mpi's. 16-bit sums are rounded when they leave a slice's owner: once for a node, then on every level.
 *
 * A block that a node's ranks share is gathered by the upper levels alone: what each rank receives lies in
 * place for all of them. Where halves are unequal a rank may also be sent a piece by one of its own node: it
 * writes the bytes that are there.
 */
#include "base_impl.h"
#include "world/mpi_call.h"
#include "comm_internal.h"

#include <stdlib.h>

typedef struct comm_hier {
    int levels;       /* of the tree, inside nodes */
    hvt_world *node;  /* this node's ranks */
    hvt_comm *inside; /* shm over node */
    hvt_comm *above;  /* mpi over all ranks, of which the upper levels are used */
} comm_hier;

/* ---- life --------------------------------------------------------------------------------- */

static void comm_close_hier(hvt_comm *c)
{
    comm_hier *st = c->state;

    if (!st)
        return;
    hvt_comm_close(&st->inside);
    hvt_comm_close(&st->above);
    hvt_world_close(&st->node);
    free(st);
    c->state = NULL;
}

static hvt_status open_node(hvt_comm *c)
{
    comm_hier *st = c->state;
    hvt_world *w = c->world;
    MPI_Comm node;
    bool entered;
    hvt_status s;

    HVT_TRY_MPI_WAIT(w, HVT__ANYONE, "open a comm",
                     MPI_Comm_split(hvt__world_mpi_comm(w), w->node_of[w->rank], w->rank, &node));
    s = hvt_world_wrap(&node, &st->node);
    entered = hvt__mpi_enter();
    MPI_Comm_free(&node);
    hvt__mpi_leave(entered);
    HVT_TRY(hvt_world_agree(w, s));
    HVT_TRY(hvt_world_agree(w, hvt__world_set_job_ranks(st->node, w)));
    return hvt_world_agree(w, hvt_comm_open("shm", st->node, c->dev, &st->inside));
}

static hvt_status comm_open_hier(hvt_comm *c)
{
    comm_hier *st = calloc(1, sizeof *st);
    hvt_status s = HVT_OK;

    c->state = st;
    if (!st)
        s = HVT_FAIL(E_MEM, "no memory for a comm");
    HVT_TRY(hvt_world_agree(c->world, s));
    HVT_TRY(hvt__levels_inside(c->world, &st->levels));
    HVT_TRY(open_node(c));
    return hvt_comm_open("mpi", c->world, c->dev, &st->above);
}

static hvt_status comm_alloc_hier(hvt_comm *c, size_t bytes, void **ret_ptr)
{
    comm_hier *st = c->state;

    return hvt_comm_alloc(st->inside, bytes, ret_ptr);
}

static hvt_status comm_share_hier(hvt_comm *c, size_t bytes, void **ret_ptr)
{
    comm_hier *st = c->state;

    return hvt_comm_share(st->inside, bytes, ret_ptr);
}

static void comm_release_hier(hvt_comm *c, void *ptr)
{
    comm_hier *st = c->state;

    hvt_comm_release(st->inside, ptr);
}

/* ---- operations --------------------------------------------------------------------------- */

/* On the node's ranks alone. */
static hvt_status run_inside(comm_hier *st, hvt_device *dev, hvt__op_kind kind, const hvt__op *op)
{
    hvt__op inside = *op;

    inside.kind = kind;
    HVT_TRY(st->inside->ops->run(st->inside, dev, &inside));
    return st->inside->ops->fence(st->inside);
}

static hvt_status run(comm_hier *st, hvt_device *dev, const hvt__op *op)
{
    bool whole = hvt__mpi_whole(st->above, op);

    if (op->kind == HVT__BROADCAST)
        return hvt__mpi_above(st->above, dev, op, 0);
    if (op->kind != HVT__ALLGATHER)
        HVT_TRY(run_inside(st, dev, whole ? HVT__ALLREDUCE : HVT__REDUCE_SCATTER, op));
    HVT_TRY(hvt__mpi_above(st->above, dev, op, st->levels));
    if (op->kind != HVT__REDUCE_SCATTER && !whole)
        HVT_TRY(run_inside(st, dev, HVT__ALLGATHER, op));
    return HVT_OK;
}

static hvt__leaving comm_left_hier(hvt_comm *c, int rank)
{
    comm_hier *st = c->state;

    return st->above->ops->left(st->above, rank);
}

static void comm_leave_hier(hvt_comm *c, hvt__leaving why)
{
    comm_hier *st = c->state;

    st->inside->ops->leave(st->inside, why);
    st->above->ops->leave(st->above, why);
}

static hvt_status comm_run_hier(hvt_comm *c, hvt_device *dev, const hvt__op *op)
{
    hvt_status s = run(c->state, dev, op);

    if (s != HVT_OK)
        comm_leave_hier(c, HVT__AFTER_ANOTHER); /* where it has not left already */
    return s;
}

const hvt_comm_ops hvt_comm_hier = {
    .name = "hier",
    .can = HVT_COMM_SHARE,
    .messages = true,
    .open = comm_open_hier,
    .close = comm_close_hier,
    .alloc = comm_alloc_hier,
    .share = comm_share_hier,
    .release = comm_release_hier,
    .run = comm_run_hier,
    .left = comm_left_hier,
    .leave = comm_leave_hier,
};
