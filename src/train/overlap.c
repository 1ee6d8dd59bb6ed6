/*
 * --overlap: exchanges gradients during backward, on a worker thread of the comm, or at the end of each step.
 * The results are bit-identical.
 *
 * auto starts a worker if it has something to do, and if every rank has a free processor for it. Without a
 * free processor it takes time from backward, and did not pay between emulated hosts at 1 and at 10 Gbit/s.
 */
#include "run.h"
#include "base_impl.h"

static bool has_own(const hvt_cores *c)
{
    return c->spare >= 0 || (!c->ncpus && !c->crowded && c->threads < c->share);
}

static bool have_own(const run *t)
{
    for (int r = 0; r < t->size; r++)
        if (!has_own(&t->placement[r].cores))
            return false;
    return true;
}

/* The reason for auto not to start a worker; NULL if it starts one. */
static const char *why_off(const run *t)
{
    return t->size == 1    ? "one rank exchanges nothing"
           : !t->train_set ? "nothing is exchanged"
           : t->set.on_gpu ? "a GPU's exchange has a queue of its own, or needs the host"
           : hvt_distopt_update(t->dist) == HVT_UPDATE_SHARDED && (hvt_comm_can(t->comm) & HVT_COMM_SHARE)
               ? "the update is the exchange, and comes after backward"
           : !have_own(t) ? "some rank has no processor for a worker"
                          : NULL;
}

static hvt_status start_worker(run *t)
{
    const hvt_cores *c = &t->placement[t->rank].cores;
    const hvt_overlap how = {.cpus = c->spare >= 0 ? &c->spare : c->cpus,
                             .ncpus = c->spare >= 0 ? 1 : c->ncpus,
                             .yield = !has_own(c)};

    return hvt_world_agree(t->world, hvt_comm_overlap(t->comm, &how));
}

hvt_status hvt__overlap_open(run *t)
{
    const bool automatic = !strcmp(t->opts->overlap, "auto");
    hvt_status s;

    t->overlap_why = automatic ? why_off(t) : "as requested";
    t->overlap = automatic ? t->overlap_why ? "off" : "worker" : t->opts->overlap;
    if (t->size == 1 || !t->train_set)
        t->overlap = "off";
    if (strcmp(t->overlap, "worker") != 0)
        return HVT_OK;
    s = start_worker(t);
    if (automatic && s == HVT_E_UNSUPPORTED) {
        t->overlap = "off";
        t->overlap_why = "this MPI does not allow a worker thread to call it";
        return hvt_world_agree(t->world, hvt_comm_overlap(t->comm, NULL)); /* other ranks may have one */
    }
    if (automatic)
        t->overlap_why = "each rank has a processor for a worker";
    return s;
}
