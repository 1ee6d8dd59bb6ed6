/*
 * The placement of ranks: their hosts, processors and GPUs in the table at the start, and warnings about
 * bindings that are probably mistakes.
 */
#define _GNU_SOURCE /* sched_getaffinity */

#include "report_impl.h"
#include "base_impl.h"

#include <sched.h>
#include <unistd.h>

int hvt__launchers_processors(void)
{
    cpu_set_t set;

    if (hvt_world_launched_rank() < 0 || getppid() <= 1 || sched_getaffinity(getppid(), sizeof set, &set))
        return 0;
    return CPU_COUNT(&set);
}

bool hvt__same_gpu(const hvt_placement *a, const hvt_placement *b)
{
    return *a->gpu.uuid && !strcmp(a->gpu.uuid, b->gpu.uuid);
}

static int cpu_list(const hvt_cores *c, char *ret_text, size_t bytes)
{
    size_t n = 0;

    *ret_text = 0;
    for (int i = 0; i < c->ncpus && n < bytes;) { /* consecutive ones as first-last */
        int end = i;
        while (end + 1 < c->ncpus && c->cpus[end + 1] == c->cpus[end] + 1)
            end++;
        n += (size_t)snprintf(ret_text + n, bytes - n, end > i ? "%s%d-%d" : "%s%d", i ? "," : "", c->cpus[i],
                              c->cpus[end]);
        i = end + 1;
    }
    return c->ncpus;
}

/* Counts the ranks on the host of rank `first`; false if `first` is not the first of them. */
static bool ranks_of_host(int ranks, const char *const *host, int first, int *ret_count, int *ret_last)
{
    int count = 0;

    for (int r = 0; r < ranks; r++)
        if (!strcmp(host[r], host[first])) {
            if (r < first)
                return false;
            count++;
            *ret_last = r;
        }
    *ret_count = count;
    return true;
}

void hvt__report_ranks(hvt_reporter *rep, int ranks, const char *const *host, const hvt_placement *placement)
{
    enum { SMALL = 16 };

    for (int r = 0; r < ranks; r++) {
        const hvt_cores *c = &placement[r].cores;
        const hvt_device_info *gpu = &placement[r].gpu;
        const char *threads = c->threads > 1 ? "threads" : "thread";
        char cpus[200], who[64];
        int count = 0, last = r;

        if (ranks > SMALL && !ranks_of_host(ranks, host, r, &count, &last))
            continue;
        if (ranks == 1)
            snprintf(who, sizeof who, "process");
        else if (count <= 1)
            snprintf(who, sizeof who, "rank %d", r);
        else if (count == last - r + 1)
            snprintf(who, sizeof who, "ranks %d-%d", r, last);
        else
            snprintf(who, sizeof who, "%d ranks from %d to %d", count, r, last);
        if (count && *gpu->name)
            hvt__report_print(rep, "  %s on %s: %s%s", who, host[r], count > 1 ? "a GPU each, " : "",
                              gpu->name);
        else if (count)
            hvt__report_print(rep, "  %s on %s: %d %s%s, %s", who, host[r], c->threads, threads,
                              count > 1 ? " each" : "", c->ncpus ? "pinned" : "not pinned");
        else if (*gpu->name)
            hvt__report_print(rep, "  %-10s %s: %s, %s, %s, %.1f GiB", who, host[r], gpu->name, gpu->bus,
                              gpu->uuid, hvt__mib((double)gpu->total_bytes) / 1024);
        else if (cpu_list(c, cpus, sizeof cpus))
            hvt__report_print(rep, "  %-10s %s: %d %s on core%s %s", who, host[r], c->threads, threads,
                              c->ncpus > 1 ? "s" : "", cpus);
        else
            hvt__report_print(rep, "  %-10s %s: %d %s, not pinned, %d processor%s allowed", who, host[r],
                              c->threads, threads, c->mask, c->mask == 1 ? "" : "s");
    }
}

void hvt__placement_warning(int ranks, const char *const *host, const hvt_placement *placement,
                            char ret_text[HVT_PLACEMENT_TEXT])
{
    int others = 0;

    *ret_text = 0;
    for (int first = 0; first < ranks; first++) {
        int count = 0, last = first, masks = 0, most = 0, threads = 0, shared,
            allowed = placement[first].allowed;
        bool crowded = placement[first].cores.crowded;
        if (!ranks_of_host(ranks, host, first, &count, &last))
            continue;
        for (int r = first; r <= last; r++)
            if (!strcmp(host[r], host[first])) {
                masks += placement[r].cores.mask;
                most = placement[r].cores.mask > most ? placement[r].cores.mask : most;
                threads += placement[r].cores.threads;
            }
        if (!crowded && 2 * masks >= allowed)
            continue;
        shared = !allowed ? most : masks < allowed ? masks : allowed; /* masks of several ranks may overlap */
        if (*ret_text)
            others++;
        else if (crowded && ranks == 1)
            snprintf(ret_text, HVT_PLACEMENT_TEXT,
                     "%.255s: %d threads share %d processor%s; --threads %d would be faster", host[first],
                     threads, masks, masks == 1 ? "" : "s", masks > 0 ? masks : 1);
        else if (crowded)
            snprintf(
                ret_text, HVT_PLACEMENT_TEXT,
                "%.255s: %d threads of %d rank%s share %d processor%s; fewer ranks, or --threads, would be "
                "faster",
                host[first], threads, count, count > 1 ? "s" : "", shared, shared > 1 ? "s" : "");
        else
            snprintf(ret_text, HVT_PLACEMENT_TEXT,
                     "%.255s: the launcher binds %d rank%s to %d of %d processors; mpirun --bind-to none or "
                     "--map-by slot:PE=%d lets them use the rest",
                     host[first], count, count > 1 ? "s" : "", masks, allowed, allowed / count);
    }
    if (others) {
        size_t used = strlen(ret_text);
        snprintf(ret_text + used, HVT_PLACEMENT_TEXT - used, " (also on %d other host%s)", others,
                 others > 1 ? "s" : "");
    }
}

void hvt__domains_advice(int ranks, const char *const *host, const hvt_placement *placement,
                         char ret_text[HVT_PLACEMENT_TEXT])
{
    *ret_text = 0;
    for (int r = 0; r < ranks && !*ret_text; r++) {
        const hvt_cores *c = &placement[r].cores;
        const bool far = c->nodes > 1;
        char who[300] = "this process";

        if (ranks > 1)
            snprintf(who, sizeof who, "rank %d (%.255s)", r, host[r]);
        if (far || c->caches > 1)
            snprintf(ret_text, HVT_PLACEMENT_TEXT,
                     "%s has threads on %d %s; one rank per domain is usually faster: mpirun --map-by "
                     "ppr:1:%s --bind-to %s, with --batch divided by %d",
                     who, far ? c->nodes : c->caches, far ? "NUMA nodes" : "third-level caches",
                     far ? "numa" : "l3cache", far ? "numa" : "l3cache", far ? c->nodes : c->caches);
    }
}

void hvt__gpu_warning(int ranks, const char *const *host, const hvt_placement *placement,
                      char ret_text[HVT_PLACEMENT_TEXT])
{
    *ret_text = 0;
    for (int b = 1; b < ranks && !*ret_text; b++)
        for (int a = 0; a < b && !*ret_text; a++)
            if (!strcmp(host[a], host[b]) && placement[a].gpus == 1 && placement[b].gpus == 1 &&
                *placement[a].gpu.uuid && !hvt__same_gpu(&placement[a], &placement[b]))
                snprintf(
                    ret_text, HVT_PLACEMENT_TEXT,
                    "%.255s: ranks %d and %d each see one GPU, not each other's; if cgroups hide them, NCCL "
                    "cannot use NVLink: srun --gpus-per-node=N --gpu-bind=none shows all GPUs to every rank",
                    host[a], a, b);
}

void hvt__sums_warning(const char *comm, hvt_dtype wire, int ranks, char ret_text[HVT_PLACEMENT_TEXT])
{
    enum {
        MOST_BF16 = 64,
        MOST_F16 = 512
    }; /* above this, more than a percent may be lost: bench/wire_sums.py */
    bool many = ranks > (wire == HVT_BF16 ? MOST_BF16 : MOST_F16);

    *ret_text = 0;
    if (wire != HVT_F32 && many && !strcmp(comm, "nccl"))
        snprintf(ret_text, HVT_PLACEMENT_TEXT,
                 "NCCL adds %s in %s, in rings one rank after the other: a sum over %d ranks may lose a "
                 "part; --compression f32%s or NCCL_ALGO=allreduce:tree keeps it (docs/gpu.md)",
                 hvt_dtype_name(wire), hvt_dtype_name(wire), ranks,
                 wire == HVT_BF16 && ranks <= MOST_F16 ? ", --compression f16" : "");
}
