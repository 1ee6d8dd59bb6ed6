/*
 * items.h - what ranks compare, as a list that is written with printf.
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

/* All zero: empty. */
typedef struct hvt__items {
    char *text; /* a name and a value of each, both with their 0 */
    size_t used, room;
    int n;
    bool failed; /* no memory for one of them, which hvt__items_compare() reports */
} hvt__items;

/* An item: its name, a tab, its value. */
void hvt__items_add(hvt__items *items, const char *fmt, ...) HVT_PRINTF(2, 3);
/* hvt_world_compare() of the list, which is empty then. Also E_MEM, agreed, where a rank had no memory for
 * its list. Collective. */
hvt_status hvt__items_compare(hvt__items *items, hvt_world *world);

#endif /* HVT_WORLD_ITEMS_H */
