/*
 * The fixed tree over ranks, the slices that fall out of it, and the queue of issued operations.
 *
 * On level l the ranks form blocks of 2^l, the last one cut off at the world's end. A block is the sum of its
 * left and its right half; a block without a right half is its left half. That is "2i and 2i+1 are added, an
 * odd last one moves up".
 *
 * A block's sum lies spread over its ranks in equal slices. When two halves are merged, every rank keeps a
 * part of the slice that it held, as far as possible: so the ranks of the halves take turns, in the order
 * of their slices' middles. With equal halves every rank then talks to one partner only, at distance
 * 1, 2, 4 ... The place of rank r among N slices is thus, for N a power of two, the bits of r read backwards.
 */
#include "base_impl.h"
#include "room.h"

#include <stdlib.h>
#include <string.h>

int hvt__slice_of(int rank, int size)
{
    int left = 1, right, place, before = 0;

    if (size == 1)
        return 0;
    while (2 * left < size)
        left *= 2;
    right = size - left;
    /* compare (2i+1)/(2 left) with (2j+1)/(2 right); the left one goes first */
    if (rank < left) {
        place = hvt__slice_of(rank, left);
        while (before < right && (int64_t)(2 * before + 1) * left < (int64_t)(2 * place + 1) * right)
            before++;
    } else {
        place = hvt__slice_of(rank - left, right);
        while (before < left && (int64_t)(2 * before + 1) * right <= (int64_t)(2 * place + 1) * left)
            before++;
    }
    return place + before;
}

hvt_status hvt__pending_add(hvt__pending *p, const hvt__job *job)
{
    if (p->issued - p->run == p->room) {
        size_t room = p->room ? 2 * p->room : 64;
        hvt__job *jobs = malloc(room * sizeof *jobs);

        HVT_CHECK(jobs, E_MEM, "no memory for %zu operations in flight", room);
        for (hvt_ticket t = p->run + 1; t <= p->issued; t++)
            jobs[t & (room - 1)] = *hvt__pending_at(p, t);
        free(p->jobs);
        p->jobs = jobs;
        p->room = room;
    }
    *hvt__pending_at(p, ++p->issued) = *job;
    return HVT_OK;
}
