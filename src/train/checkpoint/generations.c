/*
 * The checkpoints of a folder: its *generations*, and the one from which a run continues.
 *
 * A generation is DIR/gen-000012.safetensors with its sidecar files; the newest has the highest number.
 * `last.safetensors` and `best.safetensors` are symbolic links to generations. In folders of earlier
 * releases, and on file systems without symbolic links, they are separate files, and are read as generations.
 */
#include "checkpoint_impl.h"
#include "base_impl.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <sys/stat.h>
#include <unistd.h>

#define PREFIX "gen-"

enum { DIGITS_MOST = 18, LISTINGS_MOST = 20 };

void hvt__generation_name(int64_t number, char ret_name[32])
{
    snprintf(ret_name, 32, PREFIX "%06" PRId64, number);
}

int64_t hvt__generation_number(const char *name, const char **ret_end)
{
    const char *digits = name + sizeof PREFIX - 1;
    size_t n;

    if (strncmp(name, PREFIX, sizeof PREFIX - 1))
        return -1;
    n = strspn(digits, "0123456789");
    *ret_end = digits + n;
    return n >= 6 && n <= DIGITS_MOST && **ret_end == '.' ? strtoll(digits, NULL, 10) : -1;
}

int64_t hvt__newest_number(const char *dir)
{
    DIR *d = opendir(dir);
    struct dirent *e;
    int64_t newest = 0;

    while (d && (e = readdir(d))) {
        const char *end;
        int64_t number = hvt__generation_number(e->d_name, &end);
        newest = number > newest ? number : newest;
    }
    if (d)
        closedir(d);
    return newest;
}

/* True if DIR/NAME is a link to a generation of the folder, present or removed. */
static bool leads_to_generation(const char *path)
{
    char target[64] = "";
    const char *end;

    return readlink(path, target, sizeof target - 1) > 0 && hvt__generation_number(target, &end) >= 0;
}

/* Reads the header of g->path. */
static hvt_status look(hvt__generation *g)
{
    hvt_status s = hvt__checkpoint_read(g->path, NULL, NULL, false, &g->p);

    g->is_readable = s == HVT_OK;
    if (s == HVT_E_MEM)
        return hvt__pass(s, __FILE__, __LINE__, "hvt__checkpoint_read");
    if (s)
        snprintf(g->why, sizeof g->why, "%s", hvt_last_error());
    return HVT_OK;
}

static hvt_status add(hvt__generations *g, const char *dir, const char *name, int64_t number)
{
    hvt__generation *at = realloc(g->at, (size_t)(g->n + 1) * sizeof *at);

    HVT_CHECK(at, E_MEM, "no memory to list the checkpoints in %s", dir);
    g->at = at;
    at[g->n] = (hvt__generation){.number = number,
                                 .is_best = number < 0 && !strcmp(name, "best" HVT_CHECKPOINT_END)};
    HVT_TRY(hvt__path(at[g->n].path, "%s/%s", dir, name));
    return look(&at[g->n++]);
}

static hvt_status add_numbered(hvt__generations *g, const char *dir)
{
    DIR *d = opendir(dir);
    struct dirent *e;
    hvt_status s = HVT_OK;

    while (d && s == HVT_OK && (e = readdir(d))) {
        const char *end;
        int64_t number = hvt__generation_number(e->d_name, &end);
        if (number >= 0 && !strcmp(end, HVT_CHECKPOINT_END))
            s = add(g, dir, e->d_name, number);
    }
    if (d)
        closedir(d);
    return s;
}

/* Adds `last` or `best`, if it is a file of its own. */
static hvt_status add_named(hvt__generations *g, const char *dir, const char *name)
{
    char path[PATH_MAX];

    HVT_TRY(hvt__path(path, "%s/%s", dir, name));
    return access(path, F_OK) == 0 && !leads_to_generation(path) ? add(g, dir, name, -1) : HVT_OK;
}

/* Orders generations by number, newest first; then `last`, then `best`. */
static int newest_first(const void *a, const void *b)
{
    const hvt__generation *x = a, *y = b;

    return x->number != y->number ? (x->number < y->number) - (x->number > y->number)
                                  : x->is_best - y->is_best;
}

/* Moves `last` to the front if an earlier release continued the run in this folder and wrote it as a file. */
static void put_further_last_first(hvt__generations *g)
{
    const hvt__generation *first = hvt__generations_first(g);
    hvt__generation last;

    for (int i = 1; first && i < g->n; i++) {
        last = g->at[i];
        if (last.number >= 0 || last.is_best || !last.is_readable || last.p.run != first->p.run ||
            last.p.steps <= first->p.steps)
            continue;
        memmove(g->at + 1, g->at, (size_t)i * sizeof last);
        g->at[0] = last;
        return;
    }
}

hvt_status hvt__generations_open(const char *dir, hvt__generations *ret)
{
    hvt__generations g = {0};
    hvt_status s;

    HVT_TRY_OR(fail, add_numbered(&g, dir));
    HVT_TRY_OR(fail, add_named(&g, dir, "last" HVT_CHECKPOINT_END));
    HVT_TRY_OR(fail, add_named(&g, dir, "best" HVT_CHECKPOINT_END));
    if (g.n)
        qsort(g.at, (size_t)g.n, sizeof *g.at, newest_first);
    put_further_last_first(&g);
    *ret = g;
    return HVT_OK;
fail:
    hvt__generations_close(&g);
    return s;
}

void hvt__generations_close(hvt__generations *g)
{
    for (int i = 0; i < g->n; i++)
        hvt__progress_free(&g->at[i].p);
    free(g->at);
    *g = (hvt__generations){0};
}

const hvt__generation *hvt__generations_first(const hvt__generations *g)
{
    for (int i = 0; i < g->n; i++)
        if (g->at[i].is_readable)
            return &g->at[i];
    return NULL;
}

static bool is_folder(const char *path)
{
    struct stat info;

    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

hvt_status hvt__weights_file(const char *path, char ret_path[PATH_MAX])
{
    hvt__generations g;
    const hvt__generation *first;
    hvt_status s;

    if (!is_folder(path))
        return hvt__path(ret_path, "%s", path);
    HVT_TRY(hvt__generations_open(path, &g));
    first = hvt__generations_first(&g);
    if (!first && g.n)
        first = g.at;
    s = first ? hvt__path(ret_path, "%s", first->path)
              : hvt__path(ret_path, "%s/last" HVT_CHECKPOINT_END, path);
    hvt__generations_close(&g);
    HVT_CHECK(s || access(ret_path, F_OK) == 0 || errno != ENOENT, E_IO, "%s holds no complete checkpoint",
              path);
    return s;
}

hvt_status hvt_weights_load(const char *file, hvt_model *m, bool skip_head)
{
    HVT_GIVEN(file, "a file");
    HVT_GIVEN(m, "a model");

    char path[PATH_MAX];
    hvt_st *st = NULL;
    hvt_status s;

    HVT_TRY(hvt__weights_file(file, path));
    HVT_TRY(hvt__st_open(path, &st));
    s = hvt__weights_load(st, m, skip_head, NULL);
    hvt__st_close(&st);
    return s;
}

/* ---- resuming ---- */

/* The damaged generations that were skipped, for one line. */
typedef struct damaged {
    int n;
    char why[1200];
    hvt_status s; /* of the first */
} damaged;

static void add_damaged(damaged *d, hvt_status s, const char *why)
{
    size_t used = strlen(d->why);

    snprintf(d->why + used, sizeof d->why - used, "%s%s", d->n ? "; " : "", why);
    if (d->n++ == 0)
        d->s = s;
}

/* Resumes the first complete generation, and warns of damaged ones before it. */
static hvt_status resume_newest(hvt__generations *g, hvt_model *m, hvt_optim *o, bool raw,
                                hvt_progress *ret_progress, char ret_file[PATH_MAX])
{
    damaged d = {0};

    for (int i = 0; i < g->n; i++) {
        const hvt__generation *at = &g->at[i];
        hvt_status s =
            at->is_readable ? hvt__checkpoint_read(at->path, m, o, raw, ret_progress) : HVT_E_FORMAT;
        if (s == HVT_E_IO || s == HVT_E_FORMAT) {
            add_damaged(&d, s, at->is_readable ? hvt_last_error() : at->why);
            continue;
        }
        HVT_TRY(s);
        memcpy(ret_file, at->path, sizeof at->path);
        if (d.n && m)
            HVT_WARN("%s; continuing from %s (epoch %d, update %" PRId64 ")", d.why, at->path,
                     ret_progress->epoch, ret_progress->steps);
        return HVT_OK;
    }
    return hvt__fail(d.s, __FILE__, __LINE__, "%s%s", d.why, d.n > 1 ? "; there is no other checkpoint" : "");
}

/* True if a file has been removed meanwhile, by a job that saves in this folder. */
static bool has_lost(const hvt__generations *g)
{
    for (int i = 0; i < g->n; i++)
        if (access(g->at[i].path, F_OK))
            return true;
    return false;
}

hvt_status hvt__resume(const char *path, hvt_model *m, hvt_optim *o, bool raw, hvt_progress *ret_progress,
                       char ret_file[PATH_MAX])
{
    hvt__generations g = {0};

    for (int listings = LISTINGS_MOST; is_folder(path); listings--) {
        HVT_TRY(hvt__generations_open(path, &g));
        if (!g.n)
            break;
        hvt_status s = resume_newest(&g, m, o, raw, ret_progress, ret_file);
        bool again = s != HVT_OK && listings > 1 && has_lost(&g);
        hvt__generations_close(&g);
        if (!again)
            return s;
    }
    HVT_TRY(hvt__weights_file(path, ret_file));
    return hvt__checkpoint_read(ret_file, m, o, raw, ret_progress);
}

/* True if the folder has generations, `last` or `best`, by name. Does not open the files. */
static bool has_generations(const char *dir)
{
    static const char *const names[] = {"last", "best"};
    char path[PATH_MAX];

    for (size_t i = 0; i < HVT_LEN(names); i++)
        if (hvt__path(path, "%s/%s" HVT_CHECKPOINT_END, dir, names[i]) == HVT_OK && access(path, F_OK) == 0)
            return true;
    return hvt__newest_number(dir) > 0;
}

/* The checkpoint with the most updates among those in a folder whose names were given to
 * hvt_checkpoint_save(); of equal ones the first by name; "" if there is none. */
static void find_named(const char *dir, char ret_file[PATH_MAX])
{
    DIR *d = opendir(dir);
    struct dirent *e;
    char path[PATH_MAX];
    int64_t most = -1;

    *ret_file = 0;
    while (d && (e = readdir(d))) {
        hvt_progress p = {0};
        size_t len = strlen(e->d_name), end = sizeof HVT_CHECKPOINT_END - 1;

        if (len <= end || strcmp(e->d_name + len - end, HVT_CHECKPOINT_END) ||
            hvt__path(path, "%s/%s", dir, e->d_name) || hvt__checkpoint_read(path, NULL, NULL, false, &p))
            continue; /* sidecar files fail, too: they have no progress */
        if (p.steps > most || (p.steps == most && strcmp(path, ret_file) < 0)) {
            most = p.steps;
            memcpy(ret_file, path, sizeof path);
        }
        hvt__progress_free(&p);
    }
    if (d)
        closedir(d);
}

hvt_status hvt_checkpoint_load(const char *path, hvt_model *m, hvt_optim *o, hvt_progress *ret_progress)
{
    HVT_GIVEN(path, "a path");
    HVT_GIVEN(ret_progress, "an output pointer for the progress");

    char file[PATH_MAX], named[PATH_MAX] = "";

    if (is_folder(path) && !has_generations(path)) {
        find_named(path, named);
        HVT_CHECK(*named, E_IO, "%s: holds no checkpoint", path);
    } else if (access(path, F_OK)) { /* DIR/NAME, as given when it was saved */
        HVT_TRY(hvt__path(named, "%s" HVT_CHECKPOINT_END, path));
        if (access(named, F_OK))
            *named = 0;
    }
    return hvt__resume(*named ? named : path, m, o, false, ret_progress, file);
}
