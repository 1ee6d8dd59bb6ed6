/*
 * Which GPU is whose: --device read, what every rank got gathered and told, and what is wrong with it.
 *
 * A rank takes the GPU of its local rank, modulo those it can see. So ranks that each see one GPU of their
 * own (a launcher's binding) are as right as ranks that see all of them; but only the latter can reach each
 * other's memory, and that costs NVLink in silence. Two ranks on one GPU are a mistake unless it was asked
 * for.
 */
#include "run.h"
#include "base_impl.h"

#include "train/cli/options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* "; did you mean ...?", or nothing. */
static const char *meant(const char *device, char ret_text[48])
{
    size_t name = strcspn(device, "0123456789"), digits = strspn(device + name, "0123456789");
    char word[16];

    *ret_text = 0;
    if (!hvt__suggest("ref|cpu|cuda:R", device, word, sizeof word))
        return ret_text;
    if (*word == 'c' && word[1] == 'u') /* cuda0, GPU:1 */
        snprintf(word, sizeof word, digits && digits < 4 ? "cuda:%.*s" : "cuda", (int)digits, device + name);
    if (strcmp(word, device))
        snprintf(ret_text, 48, "; did you mean %s?", word);
    return ret_text;
}

hvt_status hvt__settle_device(const hvt_options *o, int ranks, hvt_settled *t)
{
    static const char *const names[] = {"ref", "cpu", "cuda"};
    const char *colon = strchr(o->device, ':');
    size_t len = colon ? (size_t)(colon - o->device) : strlen(o->device);
    char *end = NULL, near[48];
    long index = colon ? strtol(colon + 1, &end, 10) : 0;

    for (size_t i = 0; i < HVT_LEN(names); i++)
        if (strlen(names[i]) == len && !strncmp(o->device, names[i], len))
            t->device = names[i];
    HVT_CHECK(t->device && (!colon || (!strcmp(t->device, "cuda") && end > colon + 1 && !*end && index >= 0 &&
                                       index < HVT_MAX_GPUS)),
              E_ARG, "--device: expected ref, cpu, cuda or cuda:N, got '%s'%s", o->device,
              meant(o->device, near));
    HVT_CHECK(!colon || ranks == 1, E_ARG,
              "--device %s names one GPU for %d ranks; --device cuda gives every rank of a host its own",
              o->device, ranks);
    t->gpu = colon ? (int)index : -1;
    t->on_gpu = !strcmp(t->device, "cuda");
    HVT_CHECK(t->on_gpu || !(o->share_gpu || o->tf32), E_ARG, "--%s is for --device cuda, not %s",
              o->share_gpu ? "share-gpu" : "tf32", t->device);
    HVT_CHECK(o->winograd || !strcmp(t->device, "cpu"), E_ARG, "--winograd off is for --device cpu, not %s",
              t->device);
    return HVT_OK;
}

static bool same_gpu(const hvt_place *a, const hvt_place *b)
{
    return *a->gpu.uuid && !strcmp(a->gpu.uuid, b->gpu.uuid);
}

/* Of all pairs the first; every rank sees the same places, so every rank comes to the same verdict. */
static hvt_status refuse_shared(const run *t)
{
    for (int b = 1; b < t->size && !t->opts->share_gpu; b++)
        for (int a = 0; a < b; a++)
            HVT_CHECK(
                !same_gpu(&t->place[a], &t->place[b]), E_ARG,
                "ranks %d and %d (%s) would both use GPU %s (%s): start no more ranks on a host than it "
                "has GPUs, or say --share-gpu",
                a, b, hvt_world_host(t->world, a), t->place[a].gpu.bus, t->place[a].gpu.name);
    return HVT_OK;
}

/* Where --plan-cache auto is; "" without a home. */
static void default_cache(char ret_path[HVT_OPTION_VALUE])
{
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");

    *ret_path = 0;
    if (cache && *cache == '/')
        snprintf(ret_path, HVT_OPTION_VALUE, "%.4000s", cache);
    else if (home && *home == '/')
        snprintf(ret_path, HVT_OPTION_VALUE, "%.4000s/.cache", home);
    if (!*ret_path)
        return;
    mkdir(ret_path, 0777); /* failures show, and cost nothing but time, where the file is written */
    strcat(ret_path, "/hvtrain");
    mkdir(ret_path, 0777);
    strcat(ret_path, "/plans");
}

hvt_status hvt__open_gpu(run *t)
{
    static char cache[HVT_OPTION_VALUE];
    const hvt_options *o = t->opts;
    hvt_device_opts opts = {.share = o->share_gpu, .deterministic = o->deterministic, .tf32 = o->tf32};
    int count = hvt_device_count("cuda");

    opts.index = t->set.gpu >= 0 ? t->set.gpu : count ? hvt_world_local_rank(t->world) % count : 0;
    if (!strcmp(o->plan_cache, "auto"))
        default_cache(cache);
    else
        snprintf(cache, sizeof cache, "%s", strcmp(o->plan_cache, "none") ? o->plan_cache : "");
    opts.plan_cache = *cache ? cache : NULL;
    return hvt_device_open("cuda", &opts, &t->dev);
}

hvt_status hvt__gather_gpus(run *t)
{
    hvt_place mine = t->place[t->rank];

    if (!t->set.on_gpu)
        return HVT_OK;
    hvt_device_describe(t->dev, &mine.gpu);
    mine.gpus = hvt_device_count("cuda");
    HVT_TRY(hvt_world_allgather(t->world, &mine, sizeof mine, t->place));
    return hvt_world_agree(t->world, refuse_shared(t));
}

void hvt__gpu_warning(int ranks, const char *const *host, const hvt_place *place, char ret_text[HVT_PLACE])
{
    *ret_text = 0;
    for (int b = 1; b < ranks && !*ret_text; b++)
        for (int a = 0; a < b && !*ret_text; a++)
            if (!strcmp(host[a], host[b]) && place[a].gpus == 1 && place[b].gpus == 1 && *place[a].gpu.uuid &&
                !same_gpu(&place[a], &place[b]))
                snprintf(ret_text, HVT_PLACE,
                         "%.255s: ranks %d and %d each see one GPU, not each other's, so gradients go round "
                         "NVLink; srun --gpus-per-node=N --gpu-bind=none shows all GPUs to every rank",
                         host[a], a, b);
}
