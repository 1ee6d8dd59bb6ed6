/*
 * The plan cache: a list in memory and, with a path, a text file
 *
 *     hvt plans 3
 *     CONFIGURATION MICROSECONDS KEY...
 *
 * with one line per measured shape; of several lines with one key the last counts. Several ranks may share
 * the file: each line is appended by one write. Damaged lines are ignored, and their shapes measured again.
 */
#include "conv_impl.h"

#include <errno.h>

static const char HEADER[] = "hvt plans 3\n";

typedef struct line {
    char key[PLAN_KEY_MOST];
    plan_choice choice;
} line;

struct plan_cache {
    char *path; /* NULL: memory only, or the file could not be written */
    line *lines;
    size_t count;
};

static line *find(const plan_cache *c, const char *key)
{
    for (size_t i = 0; i < c->count; i++)
        if (!strcmp(c->lines[i].key, key))
            return &c->lines[i];
    return NULL;
}

static hvt_status set(plan_cache *c, const char *key, plan_choice choice)
{
    line *l = find(c, key);

    if (!l) {
        line *more = realloc(c->lines, (c->count + 1) * sizeof *more);

        HVT_CHECK(more, E_MEM, "no memory for %zu plans", c->count + 1);
        c->lines = more;
        l = &more[c->count++];
        snprintf(l->key, PLAN_KEY_MOST, "%s", key);
    }
    l->choice = choice;
    return HVT_OK;
}

/* Add the file's entries. *ret_foreign: it is not a plan cache. */
static hvt_status read_file(plan_cache *c, bool *ret_foreign)
{
    FILE *f = fopen(c->path, "r");
    char text[PLAN_KEY_MOST + PLAN_NAME_MOST + 32];
    hvt_status s = HVT_OK;

    *ret_foreign = f && fgets(text, sizeof text, f) && strcmp(text, HEADER) != 0;
    while (f && !*ret_foreign && s == HVT_OK && fgets(text, sizeof text, f)) {
        plan_choice p;
        char *end = strchr(text, '\n');
        int at = 0;

        _Static_assert(PLAN_NAME_MOST == 256, "the width that is scanned");
        if (!end || sscanf(text, "%255s %f %n", p.name, &p.us, &at) != 2 || at == 0)
            continue;
        *end = '\0';
        if (text[at] && strlen(text + at) < PLAN_KEY_MOST && p.us >= 0)
            s = set(c, text + at, p);
    }
    if (f)
        fclose(f);
    return s;
}

static bool append(const char *path, bool replace, const char *key, plan_choice p)
{
    FILE *f = fopen(path, replace ? "w" : "a");
    bool ok = f && fseek(f, 0, SEEK_END) == 0 &&
              fprintf(f, "%s%s %.1f %s\n", ftell(f) ? "" : HEADER, p.name, (double)p.us, key) > 0;

    return f && fclose(f) == 0 && ok;
}

hvt_status hvt__plan_cache_open(const char *path, plan_cache **ret_cache)
{
    plan_cache *c = calloc(1, sizeof *c);
    bool foreign = false;
    hvt_status s;

    HVT_CHECK(c, E_MEM, "no memory for %zu bytes of a plan cache", sizeof *c);
    if (path && path[0]) {
        c->path = strdup(path);
        HVT_CHECK_OR(fail, c->path, E_MEM, "no memory for the path of the plan cache");
        HVT_TRY_OR(fail, read_file(c, &foreign));
    }
    if (foreign)
        HVT_WARN("%s is not a plan cache of this version; it will be replaced", c->path);
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
    bool foreign = false;

    if (c->path)
        HVT_TRY(read_file(c, &foreign));
    HVT_TRY(set(c, key, choice));
    if (!c->path || append(c->path, foreign, key, choice))
        return HVT_OK;
    HVT_WARN("%s cannot be written (%s): measured choices of algorithms are not saved", c->path,
             strerror(errno));
    free(c->path);
    c->path = NULL;
    return HVT_OK;
}
