/*
 * The comm of several nodes: shared memory within a node, messages between nodes.
 *
 * A node's ranks are a block of the tree (tree.c), so the tree's lower levels lie within nodes and its upper
 * ones between them. The lower levels use the node's shm. The upper levels use messages, by which all ranks
 * of a node exchange their slices at the same time. The result returns the same way.
 *
 * Invariant: after the lower levels each rank holds the same as with messages alone: its slice of the node's
 * sum, or the whole sum if the vector is sent whole. So slices, order of additions and, in f32, bits are the
 * same. 16-bit sums are rounded when they leave a slice's owner: once per node, then on every level.
 *
 * If a node's ranks share a block of memory, only the upper levels gather it: data that one rank receives are
 * in place for all of them. With unequal halves a rank may also receive a piece from its own node: it
 * overwrites the same bytes.
 */
#include "base_impl.h"
#include "comm_internal.h"

typedef struct comm_hier {
    hvt_world *node;  /* this node's ranks */
    hvt_comm *inside; /* shm over node */
    hvt_comm *above;  /* messages of all ranks; only its upper levels are used */
} comm_hier;

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

static hvt_status comm_open_hier(hvt_comm *c)
{
    comm_hier *st = c->state = calloc(1, sizeof *st);
    hvt_world *w = c->world;
    int levels;

    HVT_TRY(hvt_world_agree(w, st ? HVT_OK : HVT_FAIL(E_MEM, "no memory for a comm")));
    HVT_TRY(hvt__levels_inside(w, &levels));
    HVT_TRY(hvt_world_split(w, w->node_of[w->rank], w->rank, &st->node));
    HVT_TRY(hvt_world_agree(w, hvt_comm_open("shm", st->node, c->dev, &st->inside)));
    HVT_TRY(hvt_comm_open(w->ops->comm, w, c->dev, &st->above));
    hvt__skip_levels(st->above, levels);
    return HVT_OK;
}

static hvt_comm *inside(const hvt_comm *c)
{
    return ((comm_hier *)c->state)->inside;
}

static hvt_status comm_alloc_hier(hvt_comm *c, bool shared, hvt__block *b)
{
    return inside(c)->ops->alloc(inside(c), shared, b);
}

static void comm_release_hier(hvt_comm *c, hvt__block *b)
{
    inside(c)->ops->release(inside(c), b);
}

/* Runs an operation on the node's ranks only. */
static hvt_status run_inside(comm_hier *st, hvt_device *dev, hvt__op_kind kind, const hvt__op *op)
{
    hvt__op part = *op;

    part.kind = kind;
    HVT_TRY(st->inside->ops->run(st->inside, dev, &part));
    return st->inside->ops->fence(st->inside);
}

static int comm_word_hier(hvt_comm *c, int rank)
{
    comm_hier *st = c->state;

    return st->above->ops->word(st->above, rank);
}

static void comm_tell_hier(hvt_comm *c, int word)
{
    comm_hier *st = c->state;

    st->inside->ops->tell(st->inside, word);
    st->above->ops->tell(st->above, word);
}

static hvt_status comm_reserve_hier(hvt_comm *c, const hvt__leaves *leaves)
{
    comm_hier *st = c->state;

    return st->above->ops->reserve(st->above, leaves);
}

static hvt_status comm_run_hier(hvt_comm *c, hvt_device *dev, const hvt__op *op)
{
    comm_hier *st = c->state;
    bool whole = hvt__sent_whole(st->above, op), spreads = op->kind == HVT__BROADCAST;
    hvt_status s;

    st->inside->outer = st->above->outer = c;
    if (op->partials.leaves) { /* a node's leaves need not form a block of the tree, so all of them travel */
        hvt__op sum = *op,
                gather = {.kind = HVT__ALLGATHER, .type = op->type, .buf = op->buf, .count = op->count};

        sum.kind = HVT__REDUCE_SCATTER;
        HVT_TRY_OR(fail, st->above->ops->run(st->above, dev, &sum));
        return op->kind == HVT__ALLREDUCE ? comm_run_hier(c, dev, &gather) : HVT_OK;
    }
    if (op->kind != HVT__ALLGATHER && !spreads)
        HVT_TRY_OR(fail, run_inside(st, dev, whole ? HVT__ALLREDUCE : HVT__REDUCE_SCATTER, op));
    HVT_TRY_OR(fail, st->above->ops->run(st->above, dev, op));
    if (op->kind != HVT__REDUCE_SCATTER && !spreads && !whole)
        HVT_TRY_OR(fail, run_inside(st, dev, HVT__ALLGATHER, op));
    return HVT_OK;
fail:
    comm_tell_hier(c, HVT__AFTER_ANOTHER); /* unless it has left already */
    return s;
}

const hvt_comm_ops hvt_comm_hier = {
    .name = "hier",
    .can = HVT_COMM_SHARE,
    .messages = true,
    .leaves = true,
    .open = comm_open_hier,
    .close = comm_close_hier,
    .alloc = comm_alloc_hier,
    .release = comm_release_hier,
    .reserve = comm_reserve_hier,
    .run = comm_run_hier,
    .word = comm_word_hier,
    .tell = comm_tell_hier,
};
