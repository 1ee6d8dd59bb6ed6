/*
 * Limits of this process's cgroup, v1 and v2. A parent's limit binds its children, so the smallest on the
 * path to the root counts.
 */
#include "base_impl.h"
#include "world_internal.h"

enum { PATH = 4096, LINE = 256 };

/* Reads a limit from a cgroup's folder; returns 0 if there is none. */
typedef double limit_fn(const char *folder, bool v2);

double hvt__file_number(const char *folder, const char *file, const char *key)
{
    char path[PATH + 64], line[LINE];
    double v = 0;
    FILE *f;

    snprintf(path, sizeof path, "%s/%s", folder, file);
    f = fopen(path, "re");
    while (f && v <= 0 && fgets(line, sizeof line, f))
        if (!strncmp(line, key, strlen(key)))
            v = strtod(line + strlen(key), NULL);
    if (f)
        fclose(f);
    return v > 0 ? v : 0; /* "max" and v1's -1: no limit */
}

static double cpus_of(const char *folder, bool v2)
{
    double quota = hvt__file_number(folder, v2 ? "cpu.max" : "cpu.cfs_quota_us", ""), period;
    char key[32];

    if (quota == 0)
        return 0;
    snprintf(key, sizeof key, "%.0f ", quota);
    period =
        v2 ? hvt__file_number(folder, "cpu.max", key) : hvt__file_number(folder, "cpu.cfs_period_us", "");
    return quota / (period > 0 ? period : 100000);
}

static double memory_of(const char *folder, bool v2)
{
    double limit = hvt__file_number(folder, v2 ? "memory.max" : "memory.limit_in_bytes", ""), room;

    if (limit == 0)
        return 0;
    room = limit - hvt__file_number(folder, v2 ? "memory.current" : "memory.usage_in_bytes", "");
    for (int i = 0; i < 2; i++) /* the page cache counts as used, but is reclaimable */
        room += hvt__file_number(folder, "memory.stat", i ? "inactive_file " : "active_file ");
    return room > 1 ? room : 1;
}

/* Returns the smallest limit on the path from root/mount/group up to the mount. */
static double smallest(const char *root, const char *mount, const char *group, limit_fn *limit, bool v2,
                       double least)
{
    char folder[PATH];
    size_t top = (size_t)snprintf(folder, sizeof folder, "%s%s", root, mount);

    snprintf(folder + top, sizeof folder - top, "%s", strcmp(group, "/") ? group : "");
    for (;;) {
        double v = limit(folder, v2);

        if (v > 0 && (least == 0 || v < least))
            least = v;
        if (!folder[top])
            return least;
        *strrchr(folder + top, '/') = '\0';
    }
}

static double look(const char *root, const char *controller, limit_fn *limit)
{
    char path[PATH], line[PATH];
    double least = 0;
    FILE *f;

    snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    f = fopen(path, "re");
    /* lines are number:controllers:/group; v2 has no controllers */
    while (f && fgets(line, sizeof line, f)) {
        char *at = line, *kinds, *group;

        strsep(&at, ":");
        kinds = strsep(&at, ":");
        group = strsep(&at, "\n");
        if (!group || *group != '/')
            continue;
        if (!*kinds) {
            least = smallest(root, "/sys/fs/cgroup", group, limit, true, least);
            least = smallest(root, "/sys/fs/cgroup/unified", group, limit, true, least);
            continue;
        }
        snprintf(path, sizeof path, "/sys/fs/cgroup/%s", kinds);
        for (char *k; (k = strsep(&kinds, ","));)
            if (!strcmp(k, controller))
                least = smallest(root, path, group, limit, false, least);
    }
    if (f)
        fclose(f);
    return least;
}

double hvt__cgroup_cpus(const char *root)
{
    return look(root, "cpu", cpus_of);
}

double hvt__cgroup_memory(const char *root)
{
    return look(root, "memory", memory_of);
}
