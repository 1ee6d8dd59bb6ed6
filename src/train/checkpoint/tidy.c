/*
 * Links in a folder of checkpoints that name generations, and the removal of files from it.
 *
 * `last` and `best` are symbolic links. Hard links would outlive their generation, whose sidecar files are
 * found by name, and `ls -l` would not show the generation; some network file systems have no hard links.
 * Without symbolic links they are copies. Either is replaced by a rename, so the name always leads to a
 * complete file.
 *
 * Files are removed by name: only if the whole name is one that is given here.
 */
#include "checkpoint_impl.h"
#include "base_impl.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sys/stat.h>
#include <unistd.h>

#define TEMPORARY ".tmp"

/* ---- links ---- */

static hvt_status copy_bytes(int from, int to, const char *path)
{
    char buf[1 << 16];
    ssize_t n;

    while ((n = read(from, buf, sizeof buf)) > 0) {
        HVT_CHECK(write(to, buf, (size_t)n) == n, E_IO, "%s: cannot write: %s", path, strerror(errno));
        hvt__progressed();
    }
    HVT_CHECK(n == 0 && fsync(to) == 0, E_IO, "%s: cannot write: %s", path, strerror(errno));
    return HVT_OK;
}

static hvt_status copy_file(const char *from, const char *path)
{
    int in = open(from, O_RDONLY | O_CLOEXEC),
        out = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    hvt_status s = in >= 0 && out >= 0 ? copy_bytes(in, out, path)
                                       : HVT_FAIL(E_IO, "%s: cannot create: %s", path, strerror(errno));

    if (in >= 0)
        close(in);
    if (out >= 0)
        close(out);
    return s;
}

/* The errors of file systems without symbolic links. */
static bool has_no_links(int error)
{
    return error == EPERM || error == ENOSYS || error == EOPNOTSUPP || error == EINVAL;
}

hvt_status hvt__link_generation(const char *dir, const char *name, int64_t number)
{
    char stem[32], target[64], from[PATH_MAX], path[PATH_MAX], temp[PATH_MAX], now[64] = "";
    hvt_status s = HVT_OK;

    hvt__generation_name(number, stem);
    snprintf(target, sizeof target, "%s" HVT_CHECKPOINT_END, stem);
    HVT_TRY(hvt__path(path, "%s/%s" HVT_CHECKPOINT_END, dir, name));
    HVT_TRY(hvt__path(temp, "%s" TEMPORARY, path));
    HVT_TRY(hvt__path(from, "%s/%s", dir, target));
    if (readlink(path, now, sizeof now - 1) > 0 && !strcmp(now, target))
        return HVT_OK;
    unlink(temp);
    if (symlink(target, temp))
        s = has_no_links(errno) ? copy_file(from, temp)
                                : HVT_FAIL(E_IO, "%s: cannot link to %s: %s", path, target, strerror(errno));
    if (s == HVT_OK && rename(temp, path))
        s = HVT_FAIL(E_IO, "%s: cannot rename %s to it: %s", path, temp, strerror(errno));
    if (s)
        unlink(temp);
    return s;
}

/* ---- what is to be removed ---- */

static int sidecar_named(const char *end)
{
    for (int k = 0; k < HVT__SIDECARS; k++)
        if (!strcmp(end, hvt__sidecar_end[k]))
            return k;
    return -1;
}

static bool has_generation(const char *dir, int64_t number)
{
    char stem[32], path[PATH_MAX];

    hvt__generation_name(number, stem);
    return hvt__path(path, "%s/%s" HVT_CHECKPOINT_END, dir, stem) || access(path, F_OK) == 0;
}

/* True for a sidecar file of `last` or `best` by an earlier release: NAME-<16 hex digits>END. */
static bool is_old_sidecar(const char *name)
{
    bool known = !strncmp(name, "last-", 5) || !strncmp(name, "best-", 5);

    return known && strspn(name + 5, "0123456789abcdef") == 16 && sidecar_named(name + 21) >= 0;
}

/* True if DIR/CHECKPOINT.safetensors names this sidecar file, or cannot be read. */
static bool names(const char *dir, const char *checkpoint, const char *name)
{
    char path[PATH_MAX], its[HVT__SIDECARS][128] = {0};

    if (hvt__path(path, "%s/%s" HVT_CHECKPOINT_END, dir, checkpoint))
        return true;
    if (access(path, F_OK))
        return false;
    if (hvt__checkpoint_sidecars(path, its))
        return true;
    for (int k = 0; k < HVT__SIDECARS; k++)
        if (!strcmp(its[k], name))
            return true;
    return false;
}

/* True for a name, without its ".tmp", that only our saves use. */
static bool is_ours(const char *name)
{
    const char *end;

    return !strcmp(name, "last" HVT_CHECKPOINT_END) || !strcmp(name, "best" HVT_CHECKPOINT_END) ||
           is_old_sidecar(name) ||
           (hvt__generation_number(name, &end) >= 0 &&
            (!strcmp(end, HVT_CHECKPOINT_END) || sidecar_named(end) >= 0));
}

static bool is_left_over(const char *dir, const char *name)
{
    size_t len = strlen(name), tail = sizeof TEMPORARY - 1;
    char stem[256];
    const char *end;
    int64_t number;

    if (len > tail && !strcmp(name + len - tail, TEMPORARY)) {
        snprintf(stem, sizeof stem, "%.*s", (int)(len - tail), name);
        return is_ours(stem);
    }
    number = hvt__generation_number(name, &end);
    if (!is_old_sidecar(name) && !(number >= 0 && sidecar_named(end) >= 0 && !has_generation(dir, number)))
        return false;
    return !names(dir, "last", name) && !names(dir, "best", name);
}

void hvt__sweep_folder(const char *dir)
{
    DIR *d = opendir(dir);
    struct dirent *e;

    while (d && (e = readdir(d)))
        if (is_left_over(dir, e->d_name))
            unlinkat(dirfd(d), e->d_name, 0);
    if (d)
        closedir(d);
}

/* Removes the weights first: sidecar files without weights are only leftovers; weights without sidecar files
 * would be damaged. */
void hvt__prune_generations(const char *dir, bool keeps(void *ctx, int64_t number), void *ctx)
{
    DIR *d = opendir(dir);
    struct dirent *e;

    while (d && (e = readdir(d))) {
        const char *end;
        int64_t number = hvt__generation_number(e->d_name, &end);
        if (number >= 0 && !strcmp(end, HVT_CHECKPOINT_END) && !keeps(ctx, number))
            unlinkat(dirfd(d), e->d_name, 0);
    }
    if (d)
        closedir(d);
}
