/*
 * Memory of a node: the first rank's part of a segment, or, where a segment cannot be had or nobody else is
 * there, memory of one's own.
 */
#include "node.h"
#include "base_impl.h"
#include "world_internal.h"

#include <stdlib.h>

struct hvt__node {
    hvt__segment segment;
    void *own; /* instead of a segment */
};

static hvt_status allocate(size_t bytes, hvt__node **ret_node)
{
    hvt__node *n = calloc(1, sizeof *n);

    HVT_CHECK(n, E_MEM, "no memory for what a node has in common");
    n->own = calloc(1, bytes);
    if (!n->own) {
        free(n);
        return HVT_FAIL(E_MEM, "no memory for the %zu bytes that a node has in common", bytes);
    }
    *ret_node = n;
    return HVT_OK;
}

hvt_status hvt__node_open(hvt_world *world, size_t bytes, hvt__node **ret_node)
{
    hvt_world *part = NULL;
    hvt__node *n = NULL;
    hvt_status s;

    HVT_TRY_OR(fail, hvt_world_agree(world, allocate(bytes, &n)));
    if (world->size > 1) {
        if (world->nodes > 1)
            HVT_TRY_OR(fail, hvt_world_split(world, world->node_of[world->rank], world->rank, &part));
        s = hvt__segment_open(part ? part : world, bytes, &n->segment); /* on all ranks of the node alike */
        hvt_world_close(&part);
        if (s)
            HVT_DEBUG("the ranks of this node share no memory: %s", hvt_last_error());
    }
    *ret_node = n;
    return HVT_OK;
fail:
    hvt__node_close(&n);
    return s;
}

void *hvt__node_block(const hvt__node *node)
{
    return node->segment.base ? node->segment.base : node->own;
}

void hvt__node_close(hvt__node **node)
{
    if (!*node)
        return;
    hvt__segment_close(&(*node)->segment);
    free((*node)->own);
    free(*node);
    *node = NULL;
}
