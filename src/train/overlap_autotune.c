/*
 * --overlap: whether a worker thread of the comm exchanges gradients during backward, or each step does so at
 * its end.
 *
 * auto is off where a worker has nothing to do (one rank, a GPU, an update that is itself the exchange).
 * Elsewhere the better way depends on the network, the model and the processors, so the first updates are a
 * trial: in each round one update each way, in alternating order. The medians on the slowest rank decide. The
 * expected way (a worker if each has a processor of its own, else off) stays unless the other one is faster
 * by a margin, so that noise does not decide. The results are bit-identical either way.
 *
 * A worker without a processor of its own shares those of its rank. It sleeps while messages are in flight,
 * and takes the time to move and add them; that pays where the network is slow.
 */
#include "run.h"
#include "base_impl.h"

#include <string.h>

enum { WARM_UP = 3 };

static const double margin = 0.02;

/* Why auto needs no trial; NULL: it needs one. */
static const char *why_no_trial(const run *t)
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

static hvt_status use(run *t, int way)
{
    const hvt_cores *c = &t->placement[t->rank].cores;
    const hvt_overlap how = {.cpus = c->spare >= 0 ? &c->spare : c->cpus,
                             .ncpus = c->spare >= 0 ? 1 : c->ncpus,
                             .yield = !has_own(c)};

    if (way != t->trial.on)
        HVT_TRY(hvt_comm_overlap(t->comm, way == HVT__WORKER ? &how : NULL));
    t->trial.on = way;
    return HVT_OK;
}

static const char *const names[] = {"off", "worker"};

/* Is a worker possible? It is stopped again. */
static hvt_status try_worker(run *t, bool *ret_can)
{
    hvt_status s = hvt_world_agree(t->world, use(t, HVT__WORKER));

    HVT_TRY(hvt_world_agree(t->world, use(t, HVT__OFF)));
    *ret_can = s == HVT_OK;
    return s == HVT_E_UNSUPPORTED ? HVT_OK : s;
}

static hvt_status open_auto(run *t)
{
    hvt__trial *trial = &t->trial;
    const char *why = why_no_trial(t);
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
    if (!t->train_set || t->size == 1) /* there is nothing to exchange */
        trial->overlap = "off";
    if (!strcmp(trial->overlap, "worker"))
        return hvt_world_agree(t->world, use(t, HVT__WORKER));
    return HVT_OK;
}

static hvt_status decide(run *t)
{
    hvt__trial *trial = &t->trial;
    double median[HVT__OVERLAPS];
    int best = HVT__WORKER;

    for (int r = 0; r < t->size; r++)
        if (!has_own(&t->placement[r].cores))
            best = HVT__OFF;
    for (int k = 0; k < HVT__OVERLAPS; k++) {
        HVT_TRY(hvt_world_allreduce(t->world, HVT_MAX, trial->seconds[k], HVT__TRIES));
        hvt__sort(trial->seconds[k], HVT__TRIES);
        median[k] = trial->seconds[k][HVT__TRIES / 2];
    }
    if (median[!best] < (1 - margin) * median[best])
        best = !best;
    trial->overlap = names[best];
    HVT_TRY(use(t, best));
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
    return use(t, (int)((nth + nth / n) % n));
}
