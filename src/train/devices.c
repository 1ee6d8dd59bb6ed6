/* --devices: checks that the devices are there, and starts a rank on each. */
#include "devices.h"
#include "train/cli/cli_impl.h"
#include "world/threads.h"
#include "base_impl.h"

/* Checks that there are enough cores. cores: this process's. alone: it may use its whole share. */
static hvt_status check_cores(const hvt_options *o, int n, const hvt_cores *cores, bool alone)
{
    const int have = alone ? cores->share : cores->mask;
    const char *hint = hvt_world_launched_rank() < 0 ? "" : "; mpirun --bind-to none lets it use all of them";

    HVT_CHECK(n <= have, E_ARG, "--devices %s: %d parts of the cores, but this process may use %d%s",
              o->devices, n, have, hint);
    HVT_CHECK(n * (int64_t)o->threads <= have, E_ARG,
              "--threads %d for each of the %d --devices: this process may use %d core%s%s", o->threads, n,
              have, have > 1 ? "s" : "", hint);
    return HVT_OK;
}

static hvt_status check_gpus(const hvt_options *o, hvt__devices *all)
{
    const int have = hvt_device_count("cuda");

    HVT_CHECK(have > 0, E_UNSUPPORTED, "--devices %s: no GPU is visible here%s", o->devices,
              have < 0 ? ", or this build has no device cuda" : "");
    for (int k = 0; k < all->n; k++)
        HVT_CHECK(all->index[k] < have, E_ARG, "--devices %s: expected GPUs 0 to %d, got cuda:%d", o->devices,
                  have - 1, all->index[k]);
    if (!all->n)
        all->n = have < HVT__DEVICES_MOST ? have : HVT__DEVICES_MOST;
    return HVT_OK;
}

hvt_status hvt__devices_run(const hvt_options *opts, hvt_world *processes, hvt_rank_fn *fn, void *ctx)
{
    hvt__devices all;
    hvt_cores cores;
    hvt_status s;

    HVT_TRY(hvt_world_agree(processes, hvt__devices_parse(opts->devices, &all)));
    HVT_TRY(hvt_world_cores(processes, 0, &cores));
    s = all.on_gpu ? check_gpus(opts, &all)
                   : check_cores(opts, all.n, &cores, hvt_world_size(processes) == 1);
    HVT_TRY(hvt_world_agree(processes, s));
    return hvt__world_open_threads(processes, all.n, fn, ctx);
}
