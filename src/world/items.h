/*
 * items.h - lists of values that ranks compare, written with printf formats.
 *
 *     hvt__items items = {0};
 *
 *     hvt__items_add(&items, "learning rate\t%.9g", lr);
 *     hvt__items_add(&items, "tensor %s\t[%zu] f32", name, count);
 *     HVT_TRY(hvt__items_compare(&items, world));
 */
#ifndef HVT_WORLD_ITEMS_H
#define HVT_WORLD_ITEMS_H

#include "base_impl.h"
#include "hvt/world.h"

/* {0} is empty. */
typedef struct hvt__items {
    char *text; /* name and value of each, both NUL-terminated */
    size_t used, room;
    int n;
    bool failed; /* out of memory, reported by hvt__items_compare() */
} hvt__items;

/* Add an item; the format is name, tab, value. */
void hvt__items_add(hvt__items *items, const char *fmt, ...) HVT_PRINTF(2, 3);
/* hvt_world_compare() of the list, which it empties. Also E_MEM, agreed, if a rank's list ran out of memory.
 * Collective. */
hvt_status hvt__items_compare(hvt__items *items, hvt_world *world);

#endif /* HVT_WORLD_ITEMS_H */
