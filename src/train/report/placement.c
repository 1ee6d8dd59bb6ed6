/*
 * Where the ranks run: their hosts, processors and GPUs in the table at the start, and warnings about
 * bindings that are probably mistakes.
 */
#include "reporter.h"

#include <stdlib.h>
#include <string.h>

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

/* The ranks on the same host as rank `first`; false if `first` is not the first of them. */
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
        char cpus[200], who[64];
        int count = 0, last = r;
        if (ranks <= SMALL) {
            if (*placement[r].gpu.name)
                hvt__report_print(rep, "  rank %-5d %s: %s, %s, %s, %.1f GiB", r, host[r],
                                  placement[r].gpu.name, placement[r].gpu.bus, placement[r].gpu.uuid,
                                  hvt__mib((double)placement[r].gpu.total_bytes) / 1024);
            else if (cpu_list(c, cpus, sizeof cpus))
                hvt__report_print(rep, "  rank %-5d %s: %d thread%s on core%s %s", r, host[r], c->threads,
                                  c->threads > 1 ? "s" : "", c->ncpus > 1 ? "s" : "", cpus);
            else
                hvt__report_print(rep, "  rank %-5d %s: %d thread%s, not pinned, %d processors allowed", r,
                                  host[r], c->threads, c->threads > 1 ? "s" : "", c->mask);
            continue;
        }
        if (!ranks_of_host(ranks, host, r, &count, &last))
            continue;
        if (count == 1)
            snprintf(who, sizeof who, "rank %d", r);
        else if (count == last - r + 1)
            snprintf(who, sizeof who, "ranks %d-%d", r, last);
        else
            snprintf(who, sizeof who, "%d ranks from %d to %d", count, r, last);
        if (*placement[r].gpu.name) {
            hvt__report_print(rep, "  %s on %s: %s%s", who, host[r], count > 1 ? "a GPU each, " : "",
                              placement[r].gpu.name);
            continue;
        }
        hvt__report_print(rep, "  %s on %s: %d thread%s%s, %s", who, host[r], c->threads,
                          c->threads > 1 ? "s" : "", count > 1 ? " each" : "",
                          c->ncpus ? "pinned" : "not pinned");
    }
}

void hvt__placement_warning(int ranks, const char *const *host, const hvt_placement *placement,
                            char ret_text[HVT_PLACEMENT_TEXT])
{
    int others = 0;

    *ret_text = 0;
    for (int first = 0; first < ranks; first++) {
        int count = 0, last = first, masks = 0, threads = 0, allowed = placement[first].allowed;
        bool crowded = placement[first].cores.crowded;
        if (!ranks_of_host(ranks, host, first, &count, &last))
            continue;
        for (int r = first; r <= last; r++)
            if (!strcmp(host[r], host[first])) {
                masks += placement[r].cores.mask;
                threads += placement[r].cores.threads;
            }
        if (!crowded && 2 * masks >= allowed)
            continue;
        if (*ret_text)
            others++;
        else if (crowded)
            snprintf(ret_text, HVT_PLACEMENT_TEXT,
                     "%.255s: %d threads of %d rank%s share fewer processors; --threads or fewer ranks would "
                     "be faster",
                     host[first], threads, count, count > 1 ? "s" : "");
        else
            snprintf(ret_text, HVT_PLACEMENT_TEXT,
                     "%.255s: the launcher binds %d rank%s to %d of %d processors; mpirun --bind-to none or "
                     "--map-by slot:PE=%d lets them use the rest",
                     host[first], count, count > 1 ? "s" : "", masks, allowed, allowed / count);
    }
    if (others) {
        size_t used = strlen(ret_text);
        snprintf(ret_text + used, HVT_PLACEMENT_TEXT - used, " (and so on %d other host%s)", others,
                 others > 1 ? "s" : "");
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
                snprintf(ret_text, HVT_PLACEMENT_TEXT,
                         "%.255s: ranks %d and %d each see one GPU, not each other's, so gradients go round "
                         "NVLink; srun --gpus-per-node=N --gpu-bind=none shows all GPUs to every rank",
                         host[a], a, b);
}
