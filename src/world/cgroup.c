/*
 * The limits of this process's control group, in both versions of the kernel's interface. A limit of a
 * parent binds its children, so the smallest one on the way up counts.
 */
#include "base_impl.h"
#include "world_internal.h"

#include <stdio.h>
#include <string.h>

enum { PATH = 4096, LINE = 256 };

/* A limit that stands in a group's folder; 0: none. */
typedef double limit_fn(const char *folder, bool v2);

static bool read_line(const char *folder, const char *file, char line[LINE])
{
    char path[PATH + 64];
    FILE *f;
    bool ok;

    snprintf(path, sizeof path, "%s/%s", folder, file);
    f = fopen(path, "re");
    ok = f && fgets(line, LINE, f);
    if (f)
        fclose(f);
    return ok;
}

/* A number alone on its line; "max" and v1's -1 are none. */
static double read_number(const char *folder, const char *file)
{
    char line[LINE];
    double v = 0;

    return read_line(folder, file, line) && sscanf(line, "%lf", &v) == 1 && v > 0 ? v : 0;
}

static double cpus_of(const char *folder, bool v2)
{
    double quota = 0, period = 100000;
    char line[LINE];

    if (v2) {
        if (!read_line(folder, "cpu.max", line) || sscanf(line, "%lf %lf", &quota, &period) < 1)
            return 0;
    } else {
        quota = read_number(folder, "cpu.cfs_quota_us");
        period = read_number(folder, "cpu.cfs_period_us");
    }
    return quota > 0 && period > 0 ? quota / period : 0;
}

/* Pages of files count as used, but are given up on demand. */
static double file_pages(const char *folder)
{
    char path[PATH + 64], line[LINE];
    double sum = 0, v;
    FILE *f;

    snprintf(path, sizeof path, "%s/memory.stat", folder);
    f = fopen(path, "re");
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "active_file %lf", &v) == 1 || sscanf(line, "inactive_file %lf", &v) == 1)
            sum += v;
    if (f)
        fclose(f);
    return sum;
}

static double memory_of(const char *folder, bool v2)
{
    double limit = read_number(folder, v2 ? "memory.max" : "memory.limit_in_bytes"), room;

    if (limit == 0)
        return 0;
    room = limit - read_number(folder, v2 ? "memory.current" : "memory.usage_in_bytes") + file_pages(folder);
    return room > 1 ? room : 1;
}

/* From the group at root/mount/group up to the mount. */
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
    /* number:controllers:/group; v2 names no controllers */
    while (f && fgets(line, sizeof line, f)) {
        char *kinds = strchr(line, ':'), *group = kinds ? strchr(kinds + 1, ':') : NULL, *rest;

        if (!group || group[1] != '/')
            continue;
        *kinds++ = *group++ = '\0';
        group[strcspn(group, "\n")] = '\0';
        if (!*kinds) {
            least = smallest(root, "/sys/fs/cgroup", group, limit, true, least);
            least = smallest(root, "/sys/fs/cgroup/unified", group, limit, true, least);
            continue;
        }
        snprintf(path, sizeof path, "/sys/fs/cgroup/%s", kinds);
        for (char *k = strtok_r(kinds, ",", &rest); k; k = strtok_r(NULL, ",", &rest))
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
