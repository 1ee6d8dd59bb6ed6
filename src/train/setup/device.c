/* The devices of a run: the cores or the GPU of each rank. */
#include "train/setup/setup.h"
#include "base_impl.h"

hvt_status hvt__find_placements(run *t)
{
    hvt_placement mine = {.allowed = hvt__launchers_processors()};

    t->placement = calloc((size_t)t->size, sizeof *t->placement);
    t->spents = calloc((size_t)t->size, sizeof *t->spents);
    AGREE(t, t->placement && t->spents ? HVT_OK
                                       : HVT_FAIL(E_MEM, "no memory for the places of %d ranks", t->size));
    AGREE(t, hvt_world_cores(t->world, t->opts->threads, &mine.cores));
    return hvt_world_allgather(t->world, &mine, sizeof mine, t->placement);
}

/* The best instruction set that all ranks support. */
static hvt_status common_isa(run *t, const char **ret_isa)
{
    int64_t have = 0;

    for (int i = 0; i < hvt_cpu_isa_count() && i < 63; i++)
        have |= (int64_t)hvt_cpu_isa_auto(i) << i;
    HVT_TRY(hvt_world_allreduce_i64(t->world, HVT_AND, &have, 1));
    HVT_CHECK(have, E_UNSUPPORTED, "no instruction set of the cpu device is supported on every rank");
    for (int i = 0; i < hvt_cpu_isa_count() && i < 63; i++)
        if (have >> i & 1)
            *ret_isa = hvt_cpu_isa_name(i);
    return HVT_OK;
}

/* Opens this rank's GPU: that with the number of its local rank, modulo the number of GPUs that it sees. This
 * is right both where the launcher bound each rank to one GPU and where all ranks see all GPUs, but only the
 * latter can use NVLink. */
static hvt_status open_gpu(run *t)
{
    char cache[PATH_MAX];
    hvt_device_opts opts = {
        .share = t->set.gpu >= 0, .deterministic = t->opts->deterministic, .tf32 = t->opts->tf32};
    int count = hvt_device_count("cuda");
    hvt__devices all = {0};

    if (*t->opts->devices)
        HVT_TRY(hvt__devices_parse(t->opts->devices, &all));
    opts.index = t->set.gpu >= 0 ? t->set.gpu
                 : all.n         ? all.index[hvt_world_local_rank(t->world) % all.n]
                 : count         ? hvt_world_local_rank(t->world) % count
                                 : 0;
    hvt__cache_path("plans", cache); /* the fastest algorithms found so far */
    opts.plan_cache = *cache ? cache : NULL;
    return hvt_device_open("cuda", &opts, &t->dev);
}

/* Opens device k of --split, on one of as many equal sets of this rank's cores. opts: those for all cores. */
static hvt_status open_stage(run *t, int k, hvt_device_opts opts)
{
    const int stages = t->set.stages, set = t->set.place[k];
    const int first = opts.threads * set / stages, end = opts.threads * (set + 1) / stages;

    HVT_CHECK(opts.threads >= stages, E_ARG,
              "--split %s has %d devices, but rank %d has %d core%s: expected at most as many devices%s, or "
              "--threads %d, with which devices share cores",
              t->opts->split, stages, t->rank, opts.threads, opts.threads > 1 ? "s" : "",
              t->size > 1 ? ", fewer ranks on a host" : "", stages);
    opts.threads = end - first;
    opts.pin_caller = false; /* the device of all cores has done so */
    if (opts.ncpus) {
        opts.cpus += first;
        opts.ncpus = opts.threads;
    }
    return hvt_device_open(t->set.device, &opts, &t->stage[k]);
}

hvt_status hvt__open_device(run *t)
{
    const hvt_cores *cores = &t->placement[t->rank].cores;
    hvt_device_opts opts = {.threads = cores->threads,
                            .cpus = cores->ncpus ? cores->cpus : NULL,
                            .ncpus = cores->ncpus,
                            .pin_caller = true, /* the process is hvtrain */
                            .yield = cores->crowded};

    if (t->set.on_gpu)
        return open_gpu(t);
    if (strcmp(t->opts->isa, "auto"))
        opts.isa = t->opts->isa;
    else if (!strcmp(t->set.device, "cpu"))
        HVT_TRY(common_isa(t, &opts.isa));
    for (int k = 0; k < t->set.stages; k++)
        HVT_TRY(open_stage(t, k, opts));
    return hvt_device_open(t->set.device, &opts, &t->dev);
}

/* Refuses two ranks on one GPU unless --device cuda:N is given. All ranks check the same placements. */
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
