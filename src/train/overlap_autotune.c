/*
 * --overlap: exchanges gradients during backward, on a worker thread of the comm, or at the end of each step.
 *
 * auto is off if a worker would have nothing to do. Otherwise the first updates are a trial: each round has
 * one update each way, in alternating order, and the medians on the slowest rank decide. The expected way (a
 * worker if each rank has a processor for it, otherwise off) stays unless the other one is faster by a
 * margin, so that noise does not decide. The results are bit-identical either way. A worker without its own
 * processor pays on a slow network, since it sleeps while messages are in flight.
 */
#include "run.h"
#include "base_impl.h"

enum { WARM_UP = 3 };

static const double margin = 0.02;

/* Why auto needs no trial; NULL if it needs one. */
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

/* Checks that a worker can start, and stops it again. */
static hvt_status try_worker(run *t)
{
    hvt_status s = hvt_world_agree(t->world, use(t, HVT__WORKER));

    HVT_TRY(hvt_world_agree(t->world, use(t, HVT__OFF)));
    if (s == HVT_E_UNSUPPORTED)
        t->trial.why = "this MPI does not allow a worker thread to call it";
    return s == HVT_E_UNSUPPORTED ? HVT_OK : s;
}

hvt_status hvt__trial_open(run *t)
{
    hvt__trial *trial = &t->trial;
    bool automatic = !strcmp(t->opts->overlap, "auto");

    trial->overlap = t->opts->overlap;
    trial->after = t->at.steps + WARM_UP;
    trial->why = automatic ? why_no_trial(t) : "as requested";
    if (!trial->why)
        HVT_TRY(try_worker(t));
    if (t->size == 1 || !t->train_set || (automatic && trial->why))
        trial->overlap = "off";
    if (!trial->why)
        trial->why = "the first updates decide";
    return strcmp(trial->overlap, "worker") ? HVT_OK : hvt_world_agree(t->world, use(t, HVT__WORKER));
}

/* seconds: of an update, off and with a worker. */
static hvt_status report_choice(const run *t, const double seconds[HVT__OVERLAPS])
{
    const char *overlap = t->trial.overlap;

    if (!t->rep)
        return HVT_OK;
    HVT_TRY(hvt__report_put(t->rep, json_pack("{s:s, s:s, s:o, s:o}", "record", "overlap", "overlap", overlap,
                                              "seconds_off", hvt__number(seconds[HVT__OFF]), "seconds_worker",
                                              hvt__number(seconds[HVT__WORKER]))));
    hvt__report_print(t->rep,
                      "overlap %s: an update takes %.3g ms without, %.3g ms with a worker for the exchange",
                      overlap, 1e3 * seconds[HVT__OFF], 1e3 * seconds[HVT__WORKER]);
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
    trial->overlap = best == HVT__WORKER ? "worker" : "off";
    HVT_TRY(use(t, best));
    return report_choice(t, median);
}

hvt_status hvt__trial_step(run *t, double seconds)
{
    hvt__trial *trial = &t->trial;
    int64_t nth = t->at.steps - trial->after; /* updates of the trial so far */
    int n = HVT__OVERLAPS;

    if (strcmp(trial->overlap, "auto") || nth < 0)
        return HVT_OK;
    if (nth > 0)
        trial->seconds[trial->on][(nth - 1) / n] = seconds;
    if (nth == n * HVT__TRIES)
        return decide(t);
    return use(t, (int)((nth + nth / n) % n));
}
