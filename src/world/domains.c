/* Third-level caches and NUMA nodes of CPUs, from Linux's /sys. */
#include "base_impl.h"
#include "world_internal.h"

#include <dirent.h>

enum { FOLDER = 400, PATH = 512 };

/* The number at the start of a file of a CPU's i-th cache, or -1. */
static int number_in(const char *processor, int i, const char *file)
{
    char path[PATH];
    int v = -1;
    FILE *f;

    snprintf(path, sizeof path, "%s/cache/index%d/%s", processor, i, file);
    f = fopen(path, "re");
    if (f && fscanf(f, "%d", &v) != 1)
        v = -1;
    if (f)
        fclose(f);
    return v;
}

/* The lowest CPU with the same third-level cache; -1: none or unknown. */
static int cache_of(const char *processor)
{
    for (int i = 0; i < 8; i++)
        if (number_in(processor, i, "level") == 3)
            return number_in(processor, i, "shared_cpu_list");
    return -1;
}

static int node_of(const char *processor)
{
    DIR *d = opendir(processor);
    int node = -1;

    for (struct dirent *e; d && node < 0 && (e = readdir(d));)
        if (sscanf(e->d_name, "node%d", &node) != 1)
            node = -1;
    if (d)
        closedir(d);
    return node;
}

/* Count an id on its first occurrence. */
static void count_new(int id, bool *seen, int *count)
{
    if (id < 0 || id >= HVT__MAX_CPUS || seen[id])
        return;
    seen[id] = true;
    ++*count;
}

void hvt__domains(const char *root, const int *cpus, int count, int *ret_caches, int *ret_nodes)
{
    bool caches[HVT__MAX_CPUS] = {false}, nodes[HVT__MAX_CPUS] = {false};

    *ret_caches = *ret_nodes = 0;
    for (int i = 0; i < count; i++) {
        char folder[FOLDER];

        snprintf(folder, sizeof folder, "%s/sys/devices/system/cpu/cpu%d", root, cpus[i]);
        count_new(cache_of(folder), caches, ret_caches);
        count_new(node_of(folder), nodes, ret_nodes);
    }
}
