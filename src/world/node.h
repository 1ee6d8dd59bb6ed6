/*
 * node.h - a little memory that all ranks of a node have in common, for those above the comm: what they have
 * to decide among themselves when no message can be sent any more.
 */
#ifndef HVT_WORLD_NODE_H
#define HVT_WORLD_NODE_H

#include "hvt/world.h"

typedef struct hvt__node {
    void *block;   /* begins at a multiple of 128 */
    size_t shared; /* bytes that it has in common with the others of this node; 0: it is this rank's alone */
} hvt__node;

/* A block of the same number of bytes on all ranks, zeroed and reserved: touching it cannot fail later. Where
 * the ranks of a node cannot share memory (process numbers of their own, no /proc), each has a block by
 * itself. It outlives the world. Collective. Errors: E_MEM, E_COMM, on all ranks alike. */
hvt_status hvt__node_open(hvt_world *world, size_t bytes, hvt__node *ret_node);
/* Rank 0's bytes, at `from` there, into the block of every node; they are there on return. Collective.
 * Errors: E_COMM, E_MEM, on all ranks alike. */
hvt_status hvt__node_fill(hvt_world *world, const hvt__node *node, const void *from, size_t bytes);
void hvt__node_close(hvt__node *node); /* all zero after it, and before hvt__node_open() */

#endif /* HVT_WORLD_NODE_H */
