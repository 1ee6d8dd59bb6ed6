/*
 * A list of compared items that grows as it is written.
 *
 * Texts lie one behind the other, so adding needs no memory for most items, and failing can wait until all
 * ranks are asked: whoever adds has nothing to check, and no rank leaves the others waiting.
 */
#include "items.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Room for `bytes` more. */
static bool make_room(hvt__items *items, size_t bytes)
{
    size_t room = items->room ? items->room : 1024;
    char *text;

    while (room - items->used < bytes)
        room *= 2;
    if (room == items->room)
        return true;
    text = realloc(items->text, room);
    if (!text)
        return false;
    items->text = text;
    items->room = room;
    return true;
}

void hvt__items_add(hvt__items *items, const char *fmt, ...)
{
    va_list ap, again;
    char *at, *tab;
    int length;

    va_start(ap, fmt);
    va_copy(again, ap);
    length = vsnprintf(NULL, 0, fmt, ap);
    items->failed = items->failed || length < 0 || !make_room(items, (size_t)length + 2);
    if (!items->failed) {
        at = items->text + items->used;
        vsnprintf(at, (size_t)length + 1, fmt, again);
        tab = strchr(at, '\t');
        if (tab)
            *tab = 0;
        else
            at[++length] = 0; /* no value: an empty one */
        items->used += (size_t)length + 1;
        items->n++;
    }
    va_end(again);
    va_end(ap);
}

/* The list as hvt_world_compare() takes it, malloc'ed. */
static hvt_status make_list(const hvt__items *items, hvt_item **ret_list)
{
    hvt_item *list = items->failed ? NULL : malloc(((size_t)items->n + 1) * sizeof *list);
    const char *at = items->text;

    HVT_CHECK(list, E_MEM, "no memory for a list of %d items that ranks compare", items->n);
    for (int i = 0; i < items->n; i++) {
        list[i].name = at;
        list[i].value = at + strlen(at) + 1;
        at = list[i].value + strlen(list[i].value) + 1;
    }
    *ret_list = list;
    return HVT_OK;
}

hvt_status hvt__items_compare(hvt__items *items, hvt_world *world)
{
    hvt_item *list = NULL;
    hvt_status s = hvt_world_agree(world, make_list(items, &list));

    if (s == HVT_OK)
        s = hvt_world_compare(world, list, items->n);
    free(list);
    free(items->text);
    *items = (hvt__items){0};
    return s;
}
