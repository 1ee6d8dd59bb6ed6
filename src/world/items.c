/*
 * Lists of values that must be the same on all ranks.
 *
 * Texts are stored one after the other, so most additions allocate nothing. A failure is reported by the
 * comparison, so that callers need no checks and no rank leaves the others waiting. Ranks compare a hash;
 * only if it differs do they exchange the texts, in which every rank finds the same first difference.
 */
#include "items.h"
#include "text.h"

#include <stdarg.h>

/* Room for an item of `bytes` bytes; NULL: out of memory, which the comparison reports. */
static char *add(hvt__items *items, size_t bytes)
{
    size_t room = items->room ? items->room : 1024;
    char *text = items->text;

    while (room - items->used < bytes)
        room *= 2;
    if (!items->failed && room != items->room)
        text = realloc(items->text, room);
    if (items->failed || !text) {
        items->failed = true;
        return NULL;
    }
    items->text = text;
    items->room = room;
    items->used += bytes;
    items->n++;
    return text + items->used - bytes;
}

void hvt__items_add(hvt__items *items, const char *fmt, ...)
{
    va_list ap, again;
    char *at, *tab;
    int length;

    va_start(ap, fmt);
    va_copy(again, ap);
    length = vsnprintf(NULL, 0, fmt, ap);
    at = add(items, (size_t)length + 2);
    if (at) {
        vsnprintf(at, (size_t)length + 1, fmt, again);
        at[length + 1] = 0; /* empty value if there is no tab */
        tab = strchr(at, '\t');
        if (tab) {
            *tab = 0;
            items->used--;
        }
    }
    va_end(again);
    va_end(ap);
}

typedef struct digest {
    uint64_t hash, n, bytes; /* n: UINT64_MAX if the rank has failed */
} digest;

_Static_assert(sizeof(digest) <= HVT__SCRATCH, "a gathered digest must fit in the world's scratch");

/* One rank's items: name, value, name, value, each NUL-terminated. */
typedef struct item_list {
    const char *text;
    int n;
} item_list;

static const char *behind(const char *text)
{
    return text + strlen(text) + 1;
}

static const char *name_of(const item_list *l, int i)
{
    const char *at = l->text;

    for (int k = 0; k < i && i < l->n; k++)
        at = behind(behind(at));
    return i < l->n ? at : NULL;
}

static const char *value_of(const item_list *l, const char *name)
{
    const char *at = l->text;

    for (int i = 0; i < l->n; i++, at = behind(behind(at)))
        if (!strcmp(at, name))
            return behind(at);
    return NULL;
}

static bool same(const char *a, const char *b)
{
    return a && b ? !strcmp(a, b) : a == b;
}

/* Compares an item's value on every rank (NULL: missing) and writes "NAME differs: "a" on rank 0 (host), "b"
 * on ranks 1-3 (host)". False if all are equal. */
static bool say_difference(hvt__text *b, const hvt_world *w, const char *name, const char *const *value,
                           bool *in)
{
    int kinds = 0, r = 1;

    while (r < w->size && same(value[r], value[0]))
        r++;
    if (r == w->size)
        return false;
    hvt__text_add(b, "%s differs: ", name);
    for (r = 0; r < w->size; r++) {
        bool seen = false;

        for (int q = 0; q < r && !seen; q++)
            seen = same(value[q], value[r]);
        if (seen)
            continue;
        if (kinds == 4) {
            hvt__text_add(b, ", ...");
            break;
        }
        for (int q = 0; q < w->size; q++)
            in[q] = same(value[q], value[r]);
        hvt__text_add(b, "%s", kinds++ ? ", " : "");
        if (value[r])
            hvt__text_add(b, "\"%s\" on ", value[r]);
        else
            hvt__text_add(b, "missing on ");
        hvt__text_add_ranks(b, w, in);
    }
    return true;
}

/* Finds the first differing item, in rank 0's order and then in the order of the others. */
static bool find_difference(hvt__text *b, const hvt_world *w, const item_list *lists, const char **value,
                            bool *in)
{
    const char *name;

    for (int r = 0; r < w->size; r++)
        for (int i = 0; (name = name_of(&lists[r], i)); i++) {
            for (int q = 0; q < w->size; q++)
                value[q] = value_of(&lists[q], name);
            if (say_difference(b, w, name, value, in))
                return true;
        }
    /* every value is equal, so the order differs, or one rank has an item twice */
    for (int i = 0;; i++) {
        bool more = false;
        char nth[32];

        for (int q = 0; q < w->size; q++) {
            value[q] = name_of(&lists[q], i);
            more = more || value[q];
        }
        snprintf(nth, sizeof nth, "item %d of the list", i);
        if (!more || say_difference(b, w, nth, value, in))
            return more;
    }
}

/* Exchange and compare texts. The digests, which differ, are in the world's scratch. */
static hvt_status explain(hvt_world *w, const hvt__items *items)
{
    size_t size = (size_t)w->size, most = 0;
    const digest *digests = w->scratch;
    item_list *lists = calloc(size, sizeof *lists);
    const char **value = calloc(size, sizeof *value);
    bool *in = calloc(size, sizeof *in);
    char *mine, *all;
    hvt__text b = {.used = 0};
    hvt_status s = HVT_OK;

    for (size_t r = 0; r < size; r++)
        most = digests[r].bytes > most ? digests[r].bytes : most;
    mine = calloc(1, most + 1);
    all = malloc(size * most + 1);
    if (mine && all && lists && value && in)
        for (size_t r = 0; r < size; r++)
            lists[r] = (item_list){all + r * most, (int)digests[r].n};
    else
        s = HVT_FAIL(E_MEM, "no memory to compare %d items of %d ranks", items->n, w->size);
    HVT_TRY_OR(done, hvt_world_agree(w, s)); /* overwrites the digests */
    if (items->used)
        memcpy(mine, items->text, items->used);
    HVT_TRY_OR(done, w->ops->allgather(w, mine, most, all));
    if (!find_difference(&b, w, lists, value, in))
        hvt__text_add(&b, "the hashes of %d items differ, but the items are equal", items->n);
    s = HVT_FAIL(E_MISMATCH, "%s", b.at);
    hvt__error_agreed(true);
done:
    free(mine), free(all), free(lists), free(value), free(in);
    return s;
}

/* Compare and empty the list. s: this rank's failure so far. */
static hvt_status compare(hvt_world *w, hvt__items *items, hvt_status s)
{
    digest mine = {.n = (uint64_t)items->n, .bytes = items->used}, *all = w->scratch;
    bool equal = true, ready = true;
    hvt_status gathered;

    if (s == HVT_OK && items->failed)
        s = HVT_FAIL(E_MEM, "no memory for a list of %d items that ranks compare", items->n);
    if (s != HVT_OK)
        mine.n = UINT64_MAX;
    else
        mine.hash = hvt__hash(HVT_HASH_INIT, items->n ? items->text : "", items->used);
    gathered = hvt_world_allgather(w, &mine, sizeof mine, all);
    for (int r = 0; r < w->size && gathered == HVT_OK; r++) {
        equal = equal && !memcmp(&all[r], &all[0], sizeof *all);
        ready = ready && all[r].n != UINT64_MAX;
    }
    if (gathered != HVT_OK)
        s = gathered;
    else if (!ready)
        s = hvt_world_agree(w, s);
    else if (!equal)
        s = explain(w, items);
    free(items->text);
    *items = (hvt__items){0};
    return s;
}

hvt_status hvt__items_compare(hvt__items *items, hvt_world *world)
{
    return compare(world, items, HVT_OK);
}

hvt_status hvt_world_compare(hvt_world *world, const hvt_item *items, int n)
{
    hvt__items list = {0};
    hvt_status s = HVT_OK;

    HVT_CHECK(world, E_ARG, "a comparison of %d items: no world", n);
    if (n < 0 || (!items && n))
        s = HVT_FAIL(E_ARG, "a comparison of %d items%s", n, items ? "" : ": no list");
    for (int i = 0; i < n && s == HVT_OK; i++) {
        const char *name = items[i].name, *value = items[i].value;

        if (name && value)
            hvt__items_add(&list, "%s\t%s", name, value);
        else
            s = HVT_FAIL(E_ARG, "item %d of %d to compare has no %s", i, n, name ? "value" : "name");
    }
    return compare(world, &list, s);
}
