/*
 * nodes.h - several nodes on one host: a world that claims that its ranks are on nodes of given sizes. Memory
 * is really shared inside such a node, and messages really travel between them.
 */
#ifndef HVT_NODES_H
#define HVT_NODES_H

#include "comm_impl.h"

#include <stdlib.h>

/* The same ranks, the first of[0] of them on one node, the next of[1] on another, ...; free its node_of. */
static inline hvt_world on_nodes(const hvt_world *real, const int *of)
{
    hvt_world w = *real;

    w.node_of = calloc((size_t)w.size, sizeof *w.node_of);
    w.nodes = w.local_rank = w.local_size = 0;
    for (int r = 0; r < w.size; w.nodes++)
        for (int i = 0; i < of[w.nodes] && r < w.size; i++)
            w.node_of[r++] = w.nodes;
    for (int r = 0; r < w.size; r++) {
        w.local_rank += r < w.rank && w.node_of[r] == w.node_of[w.rank];
        w.local_size += w.node_of[r] == w.node_of[w.rank];
    }
    return w;
}

#endif /* HVT_NODES_H */
