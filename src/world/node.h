/*
 * node.h - a small block of memory shared by a node's ranks, for decisions when no message can be sent any
 * more.
 */
#ifndef HVT_WORLD_NODE_H
#define HVT_WORLD_NODE_H

#include "hvt/world.h"

typedef struct hvt__node {
    void *block;   /* 128-byte aligned */
    size_t shared; /* bytes shared with the node's other ranks; 0: private */
} hvt__node;

/* Open a block of `bytes`, the same on all ranks, zeroed and reserved, so that touching it cannot fail later.
 * If the ranks of a node cannot share memory (PID namespaces, no /proc), each gets a private block. It
 * outlives the world. Collective. Errors: E_MEM, E_COMM, on all ranks alike. */
hvt_status hvt__node_open(hvt_world *world, size_t bytes, hvt__node *ret_node);
/* Copy rank 0's `from` into the block of every node. Complete on return. Collective. Errors: E_COMM, E_MEM,
 * on all ranks alike. */
hvt_status hvt__node_fill(hvt_world *world, const hvt__node *node, const void *from, size_t bytes);
void hvt__node_close(hvt__node *node); /* zeroes *node, which must also be zero before hvt__node_open() */

/* True if a launcher (torchrun, --spawn, srun, mpirun) shows this process's output with that of other ranks.
 */
bool hvt__launch_shows_output(void);

#endif /* HVT_WORLD_NODE_H */
