/*
 * A node's memory: a segment, in which each rank reserves a part of the pages, or private memory if a segment
 * is not available or the rank is alone on its node.
 */
#include "node.h"
#include "base_impl.h"
#include "world_impl.h"

static hvt_status allocate(size_t bytes, hvt__node *n)
{
    const size_t line = 128;

    bytes = (bytes + line - 1) / line * line;
    n->block = aligned_alloc(line, bytes);
    HVT_CHECK(n->block, E_MEM, "no memory for %zu bytes shared by a node's ranks", bytes);
    memset(n->block, 0, bytes);
    return HVT_OK;
}

hvt_status hvt__node_open(hvt_world *world, size_t bytes, hvt__node *ret_node)
{
    hvt_world *part = NULL;
    hvt__segment segment;
    hvt__node n = {0};
    hvt_status s;

    HVT_TRY_OR(fail, hvt_world_agree(world, allocate(bytes, &n)));
    if (world->size > 1) {
        if (world->nodes > 1)
            HVT_TRY_OR(fail, hvt_world_split(world, world->node_of[world->rank], world->rank, &part));
        s = hvt__segment_open(part ? part : world, bytes / (size_t)world->local_size + 1,
                              &segment); /* the same on all ranks of the node */
        hvt_world_close(&part);
        if (s == HVT_OK) {
            free(n.block);
            n = (hvt__node){segment.base, segment.stride * (size_t)segment.ranks};
        } else {
            HVT_DEBUG("the ranks of this node share no memory: %s", hvt_last_error());
        }
    }
    *ret_node = n;
    return HVT_OK;
fail:
    free(n.block);
    return s;
}

/* Sends to one rank of each node, or to every rank of a node whose ranks cannot share memory. */
hvt_status hvt__node_fill(hvt_world *world, const hvt__node *node, const void *from, size_t bytes)
{
    const size_t most = (size_t)1 << 30;
    bool gets = !node->shared || world->local_rank == 0;
    hvt_world *part = NULL;
    hvt_status s = HVT_OK;

    if (world->rank == 0)
        memcpy(node->block, from, bytes);
    if (world->size == 1)
        return HVT_OK;
    HVT_TRY(hvt_world_split(world, gets ? 0 : -1, world->rank, &part));
    for (size_t at = 0; part && at < bytes && s == HVT_OK; at += most)
        s = hvt_world_broadcast(part, (char *)node->block + at, bytes - at < most ? bytes - at : most, 0);
    hvt_world_close(&part);
    return hvt_world_agree(world, s); /* also a barrier: all blocks are filled */
}

void hvt__node_close(hvt__node *node)
{
    if (node->shared)
        hvt__segment_close(&(hvt__segment){node->block, node->shared, 1, true});
    else
        free(node->block);
    *node = (hvt__node){0};
}
