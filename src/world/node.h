/*
 * node.h - a little memory that all ranks of a node have in common, for those above the comm: what they have
 * to decide among themselves when no message can be sent any more.
 */
#ifndef HVT_WORLD_NODE_H
#define HVT_WORLD_NODE_H

#include "hvt/world.h"

typedef struct hvt__node hvt__node;

/* A block of this many bytes, zeroed and reserved: touching it cannot fail later. Where the ranks of a node
 * cannot share memory (process numbers of their own, no /proc), each has a block by itself. It outlives the
 * world. Collective. Errors: E_MEM, E_COMM, on all ranks alike. */
hvt_status hvt__node_open(hvt_world *world, size_t bytes, hvt__node **ret_node);
void *hvt__node_block(const hvt__node *node);
void hvt__node_close(hvt__node **node);

#endif /* HVT_WORLD_NODE_H */
