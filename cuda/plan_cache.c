/*
 * The plan cache: a list in memory and, with a path, a text file
 *
 *     hvt plans 2
 *     INDEX ENGINE MICROSECONDS KEY...
 *
 * with one line per measured shape. Several ranks may share it: a writer first reads it again, writes a
 * temporary file beside it and renames that, so a reader sees one complete file or the other. Of two
 * simultaneous writers one may lose its lines, which are then measured again in a later run.
 */
#include "plan_cache.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char HEADER[] = "hvt plans 2\n";

typedef struct line {
    char key[PLAN_KEY_MOST];
    plan_choice choice;
} line;

struct plan_cache {
    char *path; /* NULL: memory only, or the file could not be written */
    line *lines;
    size_t count, capacity;
};

static line *find(const plan_cache *c, const char *key)
{
    for (size_t i = 0; i < c->count; i++)
        if (!strcmp(c->lines[i].key, key))
            return &c->lines[i];
    return NULL;
}

static hvt_status add(plan_cache *c, const char *key, plan_choice choice)
{
    if (c->count == c->capacity) {
        size_t capacity = 2 * c->capacity + 32;
        line *more = realloc(c->lines, capacity * sizeof *more);

        HVT_CHECK(more, E_MEM, "no memory for %zu plans", capacity);
        c->lines = more;
        c->capacity = capacity;
    }
    snprintf(c->lines[c->count].key, PLAN_KEY_MOST, "%s", key);
    c->lines[c->count++].choice = choice;
    return HVT_OK;
}

/* Add the file's entries that are not in memory. Malformed lines are ignored. */
static hvt_status read_file(plan_cache *c, bool warn)
{
    FILE *f = fopen(c->path, "r");
    char text[PLAN_KEY_MOST + 96];
    hvt_status s = HVT_OK;

    if (!f)
        return HVT_OK;
    if (!fgets(text, sizeof text, f) || strcmp(text, HEADER) != 0) {
        if (warn)
            HVT_WARN("%s is no file of plans of this version; it will be replaced", c->path);
        fclose(f);
        return HVT_OK;
    }
    while (s == HVT_OK && fgets(text, sizeof text, f)) {
        plan_choice p;
        long long engine;
        char *end = strchr(text, '\n');
        int at = 0;

        if (!end || sscanf(text, "%d %lld %f %n", &p.index, &engine, &p.us, &at) != 3 || at == 0)
            continue;
        *end = '\0';
        p.engine = engine;
        if (text[at] && strlen(text + at) < PLAN_KEY_MOST && p.index >= 0 && !find(c, text + at))
            s = add(c, text + at, p);
    }
    fclose(f);
    return s;
}

static bool write_file(const plan_cache *c)
{
    char beside[PATH_MAX];
    FILE *f;
    bool ok;

    if (snprintf(beside, sizeof beside, "%s.%ld", c->path, (long)getpid()) >= (int)sizeof beside) {
        errno = ENAMETOOLONG;
        return false;
    }
    f = fopen(beside, "w");
    if (!f)
        return false;
    ok = fputs(HEADER, f) >= 0;
    for (size_t i = 0; i < c->count; i++) {
        const line *l = &c->lines[i];

        ok = fprintf(f, "%d %lld %.1f %s\n", l->choice.index, (long long)l->choice.engine,
                     (double)l->choice.us, l->key) > 0 &&
             ok;
    }
    ok = fclose(f) == 0 && ok;
    ok = ok && rename(beside, c->path) == 0;
    if (!ok)
        unlink(beside);
    return ok;
}

hvt_status hvt__plan_cache_open(const char *path, plan_cache **ret_cache)
{
    plan_cache *c = calloc(1, sizeof *c);
    hvt_status s;

    HVT_CHECK(c, E_MEM, "no memory for %zu bytes of a cache of plans", sizeof *c);
    if (path && path[0]) {
        c->path = strdup(path);
        HVT_CHECK_OR(fail, c->path, E_MEM, "no memory for the name of the file of plans");
        HVT_TRY_OR(fail, read_file(c, true));
    }
    *ret_cache = c;
    return HVT_OK;
fail:
    hvt__plan_cache_close(&c);
    return s;
}

void hvt__plan_cache_close(plan_cache **cache)
{
    if (!*cache)
        return;
    free((*cache)->path);
    free((*cache)->lines);
    free(*cache);
    *cache = NULL;
}

bool hvt__plan_cache_find(const plan_cache *c, const char *key, plan_choice *ret_choice)
{
    const line *l = find(c, key);

    if (l)
        *ret_choice = l->choice;
    return l;
}

hvt_status hvt__plan_cache_put(plan_cache *c, const char *key, plan_choice choice)
{
    line *l = find(c, key);

    if (l)
        l->choice = choice;
    else
        HVT_TRY(add(c, key, choice));
    if (!c->path)
        return HVT_OK;
    HVT_TRY(read_file(c, false));
    if (!write_file(c)) {
        HVT_WARN("%s cannot be written (%s): what was found out about algorithms is not kept", c->path,
                 strerror(errno));
        free(c->path);
        c->path = NULL;
    }
    return HVT_OK;
}
