/*
 * What ranks tell each other: reductions, agreement on an outcome, comparison of what must be equal. All of
 * it is made of a gather and a broadcast, and every rank computes the answer from the same bytes in rank
 * order, so all hold the same bits and the same message.
 */
#include "base/trace.h"
#include "world_internal.h"
#include "text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- reductions -------------------------------------------------------------------------------- */

/* Values of one gather: so many of every rank fit in the world's scratch. A reduction takes no memory, which
 * one rank alone might lack while the others wait for it. */
enum { AT_ONCE = HVT__SCRATCH / 8 };

/* world->scratch: n <= AT_ONCE values of every rank */
static hvt_status gather_words(hvt_world *w, const void *mine, int n)
{
    hvt__trace_begin(HVT__AGREE, -1);
    return hvt__traced(w->ops->allgather(w, mine, 8 * (size_t)n, w->scratch));
}

static hvt_status check(const hvt_world *w, const void *values, int n)
{
    HVT_CHECK(w, E_ARG, "a reduction of %d values: no world", n);
    HVT_CHECK(n >= 0 && (values || !n), E_ARG, "a reduction of %d values%s", n, values ? "" : ": no buffer");
    return HVT_OK;
}

static double reduce(hvt_reduction how, double v, double x)
{
    if (how == HVT_SUM)
        return v + x;
    return x != x || (how == HVT_MIN ? x < v : x > v) ? x : v; /* from a NaN no comparison leads back */
}

static int64_t reduce_i64(hvt_reduction how, int64_t v, int64_t x)
{
    if (how == HVT_SUM)
        return (int64_t)((uint64_t)v + (uint64_t)x);
    if (how == HVT_AND)
        return v & x;
    return (how == HVT_MIN ? x < v : x > v) ? x : v;
}

hvt_status hvt_world_allreduce(hvt_world *world, hvt_reduction how, double *values, int n)
{
    HVT_TRY(check(world, values, n));
    HVT_CHECK(how == HVT_SUM || how == HVT_MIN || how == HVT_MAX, E_ARG,
              "doubles are reduced by sum, minimum or maximum, not %d", how);
    for (int at = 0, m; at < n; at += m) {
        const double *all = world->scratch;

        m = n - at < AT_ONCE ? n - at : AT_ONCE;
        HVT_TRY(gather_words(world, values + at, m));
        for (int i = 0; i < m; i++) {
            values[at + i] = all[i];
            for (int r = 1; r < world->size; r++)
                values[at + i] = reduce(how, values[at + i], all[r * m + i]);
        }
    }
    return HVT_OK;
}

hvt_status hvt_world_allreduce_i64(hvt_world *world, hvt_reduction how, int64_t *values, int n)
{
    HVT_TRY(check(world, values, n));
    HVT_CHECK(how == HVT_SUM || how == HVT_MIN || how == HVT_MAX || how == HVT_AND, E_ARG,
              "integers are reduced by sum, minimum, maximum or and, not %d", how);
    for (int at = 0, m; at < n; at += m) {
        const int64_t *all = world->scratch;

        m = n - at < AT_ONCE ? n - at : AT_ONCE;
        HVT_TRY(gather_words(world, values + at, m));
        for (int i = 0; i < m; i++) {
            values[at + i] = all[i];
            for (int r = 1; r < world->size; r++)
                values[at + i] = reduce_i64(how, values[at + i], all[r * m + i]);
        }
    }
    return HVT_OK;
}

/* ---- one outcome for all ------------------------------------------------------------------ */

hvt_status hvt_world_agree(hvt_world *world, hvt_status mine)
{
    char text[1024] = "";
    int32_t code = (int32_t)mine, *all;
    int first = 0;
    hvt_status s;

    if (!world)
        return mine == HVT_OK ? HVT_FAIL(E_ARG, "no world to agree with") : mine;
    all = world->scratch;
    if (world->size == 1) {
        hvt__error_agreed(mine != HVT_OK);
        return mine;
    }
    hvt__trace_begin(HVT__AGREE, -1);
    HVT_TRY(hvt__traced(world->ops->allgather(world, &code, sizeof code, all)));
    while (first < world->size && all[first] == HVT_OK)
        first++;
    if (first == world->size)
        return HVT_OK;
    s = (hvt_status)all[first];
    if (first == world->rank)
        snprintf(text, sizeof text, "%s", hvt_last_error());
    HVT_TRY(world->ops->broadcast(world, text, sizeof text, first));
    if (first == 0 && world->rank == 0) {
        hvt__error_agreed(true); /* its trace stays */
        return s;
    }
    if (first == 0)
        hvt__fail(s, __FILE__, __LINE__, "%s", text);
    else
        hvt__fail(s, __FILE__, __LINE__, "rank %d (%s): %s", hvt__job_rank(world, first), world->host[first],
                  text);
    hvt__error_agreed(true);
    return s;
}

/* ---- comparison --------------------------------------------------------------------------- */

typedef struct digest {
    uint64_t hash, n, bytes; /* of all names and values, each with its 0 */
} digest;

_Static_assert(sizeof(digest) <= HVT__SCRATCH, "a gathered digest must fit in the world's scratch");

/* One rank's items as text: name, value, name, value, each with its 0. */
typedef struct item_list {
    hvt_item *items;
    int n;
} item_list;

static const char *value_of(const item_list *l, const char *name)
{
    for (int i = 0; i < l->n; i++)
        if (!strcmp(l->items[i].name, name))
            return l->items[i].value;
    return NULL;
}

static bool same(const char *a, const char *b)
{
    return a && b ? !strcmp(a, b) : a == b;
}

/* "NAME differs: "a" on rank 0 (host), "b" on ranks 1-3 (host)", from every rank's value or NULL. */
static void say_difference(hvt__text *b, const hvt_world *w, const char *name, const char *const *value,
                           bool *in)
{
    int kinds = 0;

    hvt__text_add(b, "%s differs: ", name);
    for (int r = 0; r < w->size; r++) {
        bool told = false;

        for (int q = 0; q < r && !told; q++)
            told = same(value[q], value[r]);
        if (told)
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
}

/* The first item, in rank 0's order and then in that of the others, that is not the same everywhere. */
static bool find_difference(hvt__text *b, const hvt_world *w, const item_list *lists, const char **value,
                            bool *in)
{
    for (int r = 0; r < w->size; r++)
        for (int i = 0; i < lists[r].n; i++) {
            const char *name = lists[r].items[i].name;
            bool equal = true;

            for (int q = 0; q < w->size; q++) {
                value[q] = value_of(&lists[q], name);
                equal = equal && same(value[q], value[0]);
            }
            if (!equal) {
                say_difference(b, w, name, value, in);
                return true;
            }
        }
    /* the same things in another order, or twice */
    for (int i = 0;; i++) {
        char name[32];
        bool equal = true, more = false;

        for (int q = 0; q < w->size; q++) {
            value[q] = i < lists[q].n ? lists[q].items[i].name : NULL;
            equal = equal && same(value[q], value[0]);
            more = more || value[q];
        }
        if (!more)
            return false;
        if (!equal) {
            snprintf(name, sizeof name, "item %d of the list", i);
            say_difference(b, w, name, value, in);
            return true;
        }
    }
}

/* Every rank's items are exchanged and every rank finds the same first difference. */
static hvt_status explain(hvt_world *w, const hvt_item *items, int n)
{
    size_t size = (size_t)w->size, most = 0, total = 0;
    const digest *digests = w->scratch;
    char *mine, *all, *p;
    item_list *lists = calloc(size, sizeof *lists);
    const char **value = calloc(size, sizeof *value);
    bool *in = calloc(size, sizeof *in);
    hvt_item *room = NULL;
    hvt__text b = {.used = 0};
    hvt_status s = HVT_OK;

    for (int r = 0; r < w->size; r++) {
        total += (size_t)digests[r].n;
        most = digests[r].bytes > most ? digests[r].bytes : most;
    }
    mine = p = calloc(1, most + 1);
    all = malloc(size * most + 1);
    room = calloc(total + 1, sizeof *room);
    if (mine && all && lists && value && in && room)
        for (int r = 0, at = 0; r < w->size; at += lists[r++].n)
            lists[r] = (item_list){room + at, (int)digests[r].n};
    else
        s = HVT_FAIL(E_MEM, "no memory to compare %d items of %d ranks", n, w->size);
    HVT_TRY_OR(done, hvt_world_agree(w, s)); /* and the digests are gone */
    for (int i = 0; i < n; i++) {
        p = stpcpy(p, items[i].name) + 1;
        p = stpcpy(p, items[i].value) + 1;
    }
    HVT_TRY_OR(done, w->ops->allgather(w, mine, most, all));
    for (int r = 0; r < w->size; r++) {
        char *q = all + (size_t)r * most;

        for (int i = 0; i < lists[r].n; i++) {
            lists[r].items[i].name = q;
            q += strlen(q) + 1;
            lists[r].items[i].value = q;
            q += strlen(q) + 1;
        }
    }
    if (!find_difference(&b, w, lists, value, in))
        hvt__text_add(&b, "the fingerprints of %d items differ, but not the items", n);
    s = HVT_FAIL(E_MISMATCH, "%s", b.at);
    hvt__error_agreed(true);
done:
    free(mine), free(all), free(lists), free(value), free(in), free(room);
    return s;
}

static hvt_status check_items(const hvt_item *items, int n)
{
    HVT_CHECK(n >= 0 && (items || !n), E_ARG, "a comparison of %d items%s", n, items ? "" : ": no list");
    for (int i = 0; i < n; i++)
        HVT_CHECK(items[i].name && items[i].value, E_ARG, "item %d of %d to compare has no %s", i, n,
                  items[i].name ? "value" : "name");
    return HVT_OK;
}

hvt_status hvt_world_compare(hvt_world *world, const hvt_item *items, int n)
{
    const uint64_t bad = UINT64_MAX; /* in the place of n, of a rank that cannot take part */
    digest mine = {.hash = HVT_HASH_INIT}, *all;
    bool equal = true, ready = true;
    hvt_status s;

    HVT_CHECK(world, E_ARG, "a comparison of %d items: no world", n);
    all = world->scratch;
    s = check_items(items, n);
    mine.n = s == HVT_OK ? (uint64_t)n : bad;
    for (int i = 0; i < n && s == HVT_OK; i++) {
        mine.hash = hvt__hash_text(hvt__hash_text(mine.hash, items[i].name), items[i].value);
        mine.bytes += strlen(items[i].name) + strlen(items[i].value) + 2;
    }
    hvt__trace_begin(HVT__AGREE, -1);
    HVT_TRY(hvt__traced(world->ops->allgather(world, &mine, sizeof mine, all)));
    for (int r = 0; r < world->size; r++) {
        equal = equal && !memcmp(&all[r], &all[0], sizeof *all);
        ready = ready && all[r].n != bad;
    }
    if (!ready)
        return hvt_world_agree(world, s);
    return equal ? HVT_OK : explain(world, items, n);
}
