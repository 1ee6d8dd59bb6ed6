/*
 * --overlap: does a worker of the comm's exchange gradients while backward goes on, does the rank itself
 * between layers, or does every step do it at its end?
 *
 * Where neither can do anything (one rank, a GPU, an update that is the exchange), auto is off. Elsewhere it
 * depends on network, model and processors, so it is tried: the first updates come in rounds, one update each
 * way, and who begins changes; the median of what they took on the slowest rank decides for all.
 * What is to be expected (a worker where it has a processor of its own, else off) yields only to what is
 * faster by a margin: within that it is noise that would choose. The bits are the same either way.
 *
 * A worker with no processor of its own shares those of the rank: it sleeps while messages travel, and takes
 * what moving and adding them costs. That pays where the network is what is waited for. Between layers the
 * same is done without a second thread, at fewer moments; only by comm mpi, and only what needs no waiting.
 */
#include "run.h"
#include "base_impl.h"

#include <math.h>
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

static hvt_status turn(run *t, int way)
{
    const hvt_cores *c = &t->place[t->rank].cores;
    const hvt_overlap how = {.cpus = c->spare >= 0 ? &c->spare : c->cpus,
                             .ncpus = c->spare >= 0 ? 1 : c->ncpus,
                             .yield = !has_own(c)};

    hvt_distopt_between(t->dist, false);
    if ((way == HVT__WORKER) != (t->trial.on == HVT__WORKER))
        HVT_TRY(hvt_comm_overlap(t->comm, way == HVT__WORKER ? &how : NULL));
    hvt_distopt_between(t->dist, way == HVT__LAYERS);
    t->trial.on = way;
    return HVT_OK;
}

/* Between updates: buckets that were planned for one way are planned for the other. Collective. */
static hvt_status change(run *t, int way)
{
    if (way == t->trial.on)
        return HVT_OK;
    HVT_TRY(turn(t, way));
    return t->opts->bucket == HVT_BUCKET_AUTO
               ? hvt_distopt_replan(t->dist, HVT_BUCKET_AUTO, t->set.first_bucket)
               : HVT_OK;
}

static const char *const names[] = {"off", "worker", "layers"};

/* The ways that auto can try, in their order; how many. */
static int candidates(const hvt__trial *trial, int ret_way[])
{
    int n = 0;

    for (int w = 0; w < HVT__OVERLAPS; w++)
        if (trial->can[w])
            ret_way[n++] = w;
    return n;
}

/* Can there be a worker? None is left. */
static hvt_status try_worker(run *t)
{
    hvt_status s = hvt_world_agree(t->world, turn(t, HVT__WORKER));

    HVT_TRY(hvt_world_agree(t->world, turn(t, HVT__OFF)));
    t->trial.can[HVT__WORKER] = s == HVT_OK;
    return s == HVT_E_UNSUPPORTED ? HVT_OK : s;
}

static hvt_status open_auto(run *t)
{
    hvt__trial *trial = &t->trial;
    int way[HVT__OVERLAPS];
    const char *why = settled(t);

    trial->why = why ? why : "the first updates decide";
    trial->can[HVT__OFF] = true;
    trial->can[HVT__LAYERS] = !why && hvt_comm_progresses(t->comm);
    if (!why)
        HVT_TRY(try_worker(t));
    if (!why && candidates(trial, way) == 1)
        trial->why = "this MPI keeps a worker from calling it";
    if (candidates(trial, way) == 1)
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
    if (strcmp(trial->overlap, "layers"))
        return HVT_OK;
    HVT_CHECK(hvt_comm_progresses(t->comm), E_ARG,
              "--overlap layers: comm %s has nothing to do between layers; comm mpi has",
              hvt_comm_name(t->comm));
    return turn(t, HVT__LAYERS);
}

static hvt_status decide(run *t)
{
    hvt__trial *trial = &t->trial;
    double median[HVT__OVERLAPS];
    int way[HVT__OVERLAPS], n = candidates(trial, way), expected = HVT__WORKER, best;

    for (int r = 0; r < t->size; r++)
        if (!has_own(&t->place[r].cores) || !trial->can[HVT__WORKER])
            expected = HVT__OFF;
    for (int k = 0; k < HVT__OVERLAPS; k++)
        median[k] = NAN;
    best = expected;
    for (int k = 0; k < n; k++) {
        double *seconds = trial->seconds[way[k]];

        HVT_TRY(hvt_world_fold(t->world, HVT_FOLD_MAX, seconds, HVT__TRIES));
        hvt__sort(seconds, HVT__TRIES);
        median[way[k]] = seconds[HVT__TRIES / 2];
    }
    for (int k = 0; k < n; k++)
        if (median[way[k]] < (1 - margin) * median[expected] && median[way[k]] < median[best])
            best = way[k];
    trial->overlap = names[best];
    HVT_TRY(change(t, best));
    return hvt__report_overlap(t->rep, names[best], median);
}

hvt_status hvt__trial_step(run *t, double seconds)
{
    hvt__trial *trial = &t->trial;
    int64_t nth = t->steps - trial->after; /* updates of the trial so far */
    int way[HVT__OVERLAPS], n;

    if (strcmp(trial->overlap, "auto") || nth < 0)
        return HVT_OK;
    n = candidates(trial, way);
    if (nth > 0)
        trial->seconds[trial->on][(nth - 1) / n] = seconds;
    if (nth == n * HVT__TRIES)
        return decide(t);
    return change(t, way[(nth + nth / n) % n]);
}
