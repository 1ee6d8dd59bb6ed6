/*
 * --overlap: does a worker of the comm's exchange gradients while backward goes on, or does every step do it
 * itself at its end?
 *
 * Where a worker can do nothing (one rank, a GPU, an update that is the exchange), auto is off. Elsewhere it
 * depends on network, model and processors, so it is tried: the first updates come in pairs, with and without
 * a worker, in turns first and second, and the median of what they took on the slowest rank decides for all.
 * What is to be expected (a worker where it has a processor of its own, else none) yields only to what is
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
           : hvt_distopt_update(t->dist) == HVT_UPDATE_SHARDED && hvt_comm_shares(t->comm)
               ? "the update is the exchange, and comes after backward"
               : NULL;
}

static bool has_own(const hvt_cores *c)
{
    return c->spare >= 0 || (!c->ncpus && !c->crowded && c->threads < c->share);
}

static hvt_status turn(run *t, bool on)
{
    const hvt_cores *c = &t->place[t->rank].cores;
    const hvt_overlap how = {.cpus = c->spare >= 0 ? &c->spare : c->cpus,
                             .ncpus = c->spare >= 0 ? 1 : c->ncpus,
                             .yield = !has_own(c)};

    if (on != t->trial.on)
        HVT_TRY(hvt_comm_overlap(t->comm, on ? &how : NULL));
    t->trial.on = on;
    return HVT_OK;
}

/* Between updates: buckets that were planned for the one way are planned for the other. Collective. */
static hvt_status change(run *t, bool on)
{
    if (on == t->trial.on)
        return HVT_OK;
    HVT_TRY(turn(t, on));
    return t->opts->bucket == HVT_BUCKET_AUTO
               ? hvt_distopt_replan(t->dist, HVT_BUCKET_AUTO, t->set.first_bucket)
               : HVT_OK;
}

hvt_status hvt__trial_open(run *t)
{
    hvt__trial *trial = &t->trial;
    const char *why = settled(t);
    bool automatic = !strcmp(t->opts->overlap, "auto");
    hvt_status s;

    trial->overlap = t->opts->overlap;
    trial->why = automatic ? "the first updates decide" : "as asked for";
    trial->after = t->steps + WARM_UP;
    if (!automatic && (!t->train_set || t->size == 1)) /* asked for, and without a meaning */
        trial->overlap = "off";
    if (automatic && why) {
        trial->overlap = "off";
        trial->why = why;
    }
    if (!strcmp(trial->overlap, "off"))
        return HVT_OK;
    s = hvt_world_agree(t->world, turn(t, true)); /* can there be one? */
    if (s == HVT_E_UNSUPPORTED && automatic) {
        trial->overlap = "off";
        trial->why = "this MPI keeps a worker from calling it";
        return hvt_world_agree(t->world, turn(t, false));
    }
    HVT_TRY(s);
    return automatic ? hvt_world_agree(t->world, turn(t, false)) : HVT_OK;
}

static hvt_status decide(run *t)
{
    hvt__trial *trial = &t->trial;
    double median[2];
    bool worker = true;

    for (int r = 0; r < t->size; r++)
        worker = worker && has_own(&t->place[r].cores);
    for (int k = 0; k < 2; k++) {
        HVT_TRY(hvt_world_fold(t->world, HVT_FOLD_MAX, trial->seconds[k], HVT__TRIES));
        hvt__sort(trial->seconds[k], HVT__TRIES);
        median[k] = trial->seconds[k][HVT__TRIES / 2];
    }
    worker = median[!worker] < (1 - margin) * median[worker] ? !worker : worker;
    trial->overlap = worker ? "worker" : "off";
    HVT_TRY(change(t, worker));
    return hvt__report_overlap(t->rep, trial->overlap, median[0], median[1]);
}

hvt_status hvt__trial_step(run *t, double seconds)
{
    hvt__trial *trial = &t->trial;
    int64_t nth = t->steps - trial->after; /* updates of the trial so far */

    if (strcmp(trial->overlap, "auto") || nth < 0)
        return HVT_OK;
    if (nth > 0)
        trial->seconds[trial->on][(nth - 1) / 2] = seconds;
    if (nth == 2 * HVT__TRIES)
        return decide(t);
    return change(t, nth % 2 != nth / 2 % 2);
}
