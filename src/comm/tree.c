/*
 * The fixed tree over ranks, and the slices that follow from it.
 *
 * On level l the ranks form blocks of 2^l; the last one may be shorter. A block's sum is the sum of its left
 * half plus, if there is a right half, the sum of that: "2i and 2i+1 are added, an odd last one moves up".
 *
 * A block's sum is spread over its ranks in equal slices. When two halves are merged, every rank keeps a part
 * of its slice if possible, so ranks of both halves alternate, in the order of their slices' middles. With
 * equal halves every rank then exchanges with one partner only, at distance 1, 2, 4 ... For N a power of two,
 * rank r's slice has the index of r's bits reversed.
 */
#include "base_impl.h"
#include "comm_internal.h"

int hvt__slice_index(int rank, int size)
{
    int left = 1, right, place, before = 0;

    if (size == 1)
        return 0;
    while (2 * left < size)
        left *= 2;
    right = size - left;
    /* compare (2i+1)/(2 left) with (2j+1)/(2 right); left first */
    if (rank < left) {
        place = hvt__slice_index(rank, left);
        while (before < right && (int64_t)(2 * before + 1) * left < (int64_t)(2 * place + 1) * right)
            before++;
    } else {
        place = hvt__slice_index(rank - left, right);
        while (before < left && (int64_t)(2 * before + 1) * right <= (int64_t)(2 * place + 1) * left)
            before++;
    }
    return place + before;
}

hvt_status hvt__levels_inside(const hvt_world *w, int *ret_levels)
{
    int block = 0, levels = 0;

    while (block < w->size && w->node_of[block] == 0)
        block++;
    HVT_CHECK(w->nodes > 1, E_UNSUPPORTED, "comm 'hier' is for several nodes; the world has one");
    while (1 << levels < block)
        levels++;
    HVT_CHECK(1 << levels == block, E_UNSUPPORTED,
              "comm 'hier' needs 2^k neighbouring ranks on every node; %s holds the first %d", w->host[0],
              block);
    for (int r = 0; r < w->size; r++)
        HVT_CHECK(
            w->node_of[r] == r / block, E_UNSUPPORTED,
            "comm 'hier' needs %d neighbouring ranks on every node, as on %s; rank %d is on node %d (%s), "
            "not %d",
            block, w->host[0], r, w->node_of[r], w->host[r], r / block);
    HVT_CHECK(levels, E_UNSUPPORTED, "comm 'hier' is for several ranks on a node; every node has one");
    *ret_levels = levels;
    return HVT_OK;
}
