/*
 * Offsets of blocks in an arena, given their lifetimes: first fit, the largest first. Blocks share memory if
 * their lifetimes do not intersect. The result depends on sizes and lifetimes alone, so it is the same on
 * every rank.
 */
#include "layers.h"

enum { ALIGN = 64, UNPLACED = -2, LAST = -1 };

/* Place block b in the first gap that is large enough between placed blocks whose lifetimes intersect its
 * own. `first` heads their list in order of offset, linked by `next`. */
static void place(hvt_block *block, int b, int *first)
{
    hvt_block *me = &block[b];
    int *link = first;

    me->offset = 0;
    for (int i = *first; i != LAST; i = block[i].next) {
        const hvt_block *other = &block[i];

        if (me->from > other->to || other->from > me->to)
            continue;
        if (other->offset >= me->offset + me->bytes)
            break;
        if (other->offset + other->bytes > me->offset)
            me->offset = (other->offset + other->bytes + ALIGN - 1) / ALIGN * ALIGN;
    }
    while (*link != LAST && block[*link].offset < me->offset)
        link = &block[*link].next;
    me->next = *link;
    *link = b;
}

size_t hvt__arena_fit(hvt_block *block, int n)
{
    size_t bytes = 0;
    int first = LAST;

    for (int i = 0; i < n; i++)
        block[i].next = UNPLACED;
    for (;;) {
        int largest = -1;

        for (int i = 0; i < n; i++)
            if (block[i].next == UNPLACED && block[i].bytes &&
                (largest < 0 || block[i].bytes > block[largest].bytes))
                largest = i;
        if (largest < 0)
            return bytes;
        place(block, largest, &first);
        if (block[largest].offset + block[largest].bytes > bytes)
            bytes = block[largest].offset + block[largest].bytes;
    }
}
