/*
 * --overlap: does a worker of the comm's exchange gradients while backward goes on, or does every step do it
 * at its end?
 *
 * Where neither can do anything (one rank, a GPU, an update that is the exchange), auto is off. Elsewhere it
 * depends on network, model and processors, so it is tried: the first updates come in rounds, one update each
 * way, and who begins changes; the median of what they took on the slowest rank decides for all.
 * What is to be expected (a worker where it has a processor of its own, else off) yields only to what is
 * faster by a margin: within that it is noise that would choose. The bits are the same either way.
 *
 * A worker with no processor of its own shares those of the rank: it sleeps while messages travel, and takes
 * what moving and adding them costs. That pays where the network is what is waited for.
 */
#include "run.h"
#include "base_impl.h"

#include <string.h>

enum { WARM_UP = 3 };

static const double margin = 0.02;

/* Why auto needs no trial; NULL: it does. */
static const char *settled(const run *t)
{
    return t->size == 1    ? "one rank exchanges nothing"
           : !t->train_set ? "nothing is exchanged"
           : t->set.on_gpu ? "a GPU's exchange has a queue of its own, or needs the host"
           : hvt_distopt_update(t->dist) == HVT_UPDATE_SHARDED && (hvt_comm_can(t->comm) & HVT_COMM_SHARE)
               ? "the update is the exchange, and comes after backward"
               : NULL;
}

static bool has_own(const hvt_cores *c)
{
    return c->spare >= 0 || (!c->ncpus && !c->crowded && c->threads < c->share);
}

static hvt_status turn(run *t, int way)
{
    const hvt_cores *c = &t->place[t->rank].cores;
    const hvt_overlap how = {.cpus = c->spare >= 0 ? &c->spare : c->cpus,
                             .ncpus = c->spare >= 0 ? 1 : c->ncpus,
                             .yield = !has_own(c)};

    if (way != t->trial.on)
        HVT_TRY(hvt_comm_overlap(t->comm, way == HVT__WORKER ? &how : NULL));
    t->trial.on = way;
    return HVT_OK;
}

static const char *const names[] = {"off", "worker"};

/* Can there be a worker? None is left. */
static hvt_status try_worker(run *t, bool *ret_can)
{
    hvt_status s = hvt_world_agree(t->world, turn(t, HVT__WORKER));

    HVT_TRY(hvt_world_agree(t->world, turn(t, HVT__OFF)));
    *ret_can = s == HVT_OK;
    return s == HVT_E_UNSUPPORTED ? HVT_OK : s;
}

static hvt_status open_auto(run *t)
{
    hvt__trial *trial = &t->trial;
    const char *why = settled(t);
    bool can = false;

    if (!why)
        HVT_TRY(try_worker(t, &can));
    trial->why = why ? why : can ? "the first updates decide" : "this MPI keeps a worker from calling it";
    if (!can)
        trial->overlap = "off";
    return HVT_OK;
}

hvt_status hvt__trial_open(run *t)
{
    hvt__trial *trial = &t->trial;

    trial->overlap = t->opts->overlap;
    trial->after = t->steps + WARM_UP;
    if (!strcmp(trial->overlap, "auto"))
        return open_auto(t);
    trial->why = "as asked for";
    if (!t->train_set || t->size == 1) /* without a meaning */
        trial->overlap = "off";
    if (!strcmp(trial->overlap, "worker"))
        return hvt_world_agree(t->world, turn(t, HVT__WORKER));
    return HVT_OK;
}

static hvt_status decide(run *t)
{
    hvt__trial *trial = &t->trial;
    double median[HVT__OVERLAPS];
    int best = HVT__WORKER;

    for (int r = 0; r < t->size; r++)
        if (!has_own(&t->place[r].cores))
            best = HVT__OFF;
    for (int k = 0; k < HVT__OVERLAPS; k++) {
        HVT_TRY(hvt_world_allreduce(t->world, HVT_MAX, trial->seconds[k], HVT__TRIES));
        hvt__sort(trial->seconds[k], HVT__TRIES);
        median[k] = trial->seconds[k][HVT__TRIES / 2];
    }
    if (median[!best] < (1 - margin) * median[best])
        best = !best;
    trial->overlap = names[best];
    HVT_TRY(turn(t, best));
    return hvt__report_overlap(t->rep, names[best], median);
}

hvt_status hvt__trial_step(run *t, double seconds)
{
    hvt__trial *trial = &t->trial;
    int64_t nth = t->steps - trial->after; /* updates of the trial so far */
    int n = HVT__OVERLAPS;

    if (strcmp(trial->overlap, "auto") || nth < 0)
        return HVT_OK;
    if (nth > 0)
        trial->seconds[trial->on][(nth - 1) / n] = seconds;
    if (nth == n * HVT__TRIES)
        return decide(t);
    return turn(t, (int)((nth + nth / n) % n));
}
