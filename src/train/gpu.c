/*
 * Assigning GPUs to ranks, and checking the assignment.
 *
 * A rank uses the GPU with the number of its local rank, modulo the number of GPUs that it sees. This is
 * right both where each rank sees one GPU of its own (bound by the launcher) and where all ranks see all
 * GPUs, but only the latter can use NVLink. Two ranks on one GPU are an error unless --device cuda:N asks for
 * it.
 */
#include "run.h"
#include "base_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* Reports the first such pair. All ranks check the same placements, so they agree. */
static hvt_status refuse_shared(const run *t)
{
    for (int b = 1; b < t->size && t->set.gpu < 0; b++)
        for (int a = 0; a < b; a++)
            HVT_CHECK(
                !hvt__same_gpu(&t->placement[a], &t->placement[b]), E_ARG,
                "ranks %d and %d (%s) would both use GPU %s (%s): start no more ranks on a host than it "
                "has GPUs, or share one with --device cuda:N",
                a, b, hvt_world_host(t->world, a), t->placement[a].gpu.bus, t->placement[a].gpu.name);
    return HVT_OK;
}

/* The file for the algorithms that were found fastest; "": no home directory. */
static void plan_cache(char ret_path[HVT_OPTION_VALUE])
{
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");

    *ret_path = 0;
    if (cache && *cache == '/')
        snprintf(ret_path, HVT_OPTION_VALUE, "%.4000s", cache);
    else if (home && *home == '/')
        snprintf(ret_path, HVT_OPTION_VALUE, "%.4000s/.cache", home);
    if (!*ret_path)
        return;
    mkdir(ret_path, 0777); /* an error shows when the file is written, and costs only time */
    strcat(ret_path, "/hvtrain");
    mkdir(ret_path, 0777);
    strcat(ret_path, "/plans");
}

hvt_status hvt__open_gpu(run *t)
{
    char cache[HVT_OPTION_VALUE];
    hvt_device_opts opts = {
        .share = t->set.gpu >= 0, .deterministic = t->opts->deterministic, .tf32 = t->opts->tf32};
    int count = hvt_device_count("cuda");

    opts.index = t->set.gpu >= 0 ? t->set.gpu : count ? hvt_world_local_rank(t->world) % count : 0;
    plan_cache(cache);
    opts.plan_cache = *cache ? cache : NULL;
    return hvt_device_open("cuda", &opts, &t->dev);
}

hvt_status hvt__gather_gpus(run *t)
{
    hvt_placement mine = t->placement[t->rank];

    if (!t->set.on_gpu)
        return HVT_OK;
    hvt_device_describe(t->dev, &mine.gpu);
    mine.gpus = hvt_device_count("cuda");
    HVT_TRY(hvt_world_allgather(t->world, &mine, sizeof mine, t->placement));
    return hvt_world_agree(t->world, refuse_shared(t));
}
