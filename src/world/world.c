/*
 * The table of worlds and the public functions about a world. Exchanges between ranks are in agree.c and
 * items.c.
 */
#include "base/trace.h"
#include "config.h"
#include "facts.h"
#include "tcp.h"
#include "world_internal.h"
#include "watch.h"

#include <unistd.h>

size_t hvt__world_message = (size_t)1 << 30; /* longest message in bytes; MPI counts in int */

#if HVT_HAVE_MPI
static const hvt_world_ops *const mpi = &hvt_world_mpi;
#else
static const hvt_world_ops *const mpi = NULL;
#endif

hvt__mpi_facts hvt__mpi_describe(void)
{
    hvt__mpi_facts f = {.threads = ""};

    if (mpi)
        mpi->describe(&f);
    return f;
}

static hvt_status open_table(const hvt_world_ops *ops, const void *how, hvt_world **ret_world)
{
    hvt_world *w = calloc(1, sizeof *w);
    hvt_status s;

    if (w) {
        w->ops = ops;
        w->flight = (hvt__flight){.world = w, .element = 1};
    }
    s = ops->open(w, how);
    if (s) {
        hvt_world_close(&w);
        return s;
    }
    hvt__watch_by_default(w);
    *ret_world = w;
    return s;
}

static hvt_status open_tcp(const hvt_tcp_opts *opts, hvt_world **ret_world)
{
    hvt__meeting m;

    hvt_status s;

    HVT_TRY(hvt__meeting_of(opts, &m));
    s = open_table(&hvt_world_tcp, &m, ret_world);
    hvt__startup_close(); /* which began when the ranks met */
    return s;
}

static hvt_status open_named(const char *name, hvt_world **ret_world)
{
    hvt_launch l = hvt__launch(getenv);
    const hvt_world_ops *ops = &hvt_world_singleton;
    hvt_status s;

    if (!name) /* a launcher's only process needs no MPI if none is built in */
        name = l.started && (mpi || l.size != 1) ? "mpi" : "singleton";
    if (!strcmp(name, "mpi"))
        ops = mpi;
    else
        HVT_CHECK(!strcmp(name, "singleton"), E_ARG, "unknown world '%s', expected mpi, tcp or singleton",
                  name);
    HVT_CHECK(ops || !l.started, E_UNSUPPORTED,
              "a launcher started %d processes (%s), but this build has no MPI: add --init-method "
              "tcp://HOST:PORT, or build it with MPI",
              l.size, l.var ? l.var : "PMIX_RANK");
    HVT_CHECK(ops, E_UNSUPPORTED, "world '%s' is not in this build", name);
    if (ops == mpi && l.size != 1)
        hvt__startup_open(&l);
    s = open_table(ops, NULL, ret_world);
    hvt__startup_close();
    return s;
}

hvt_status hvt_world_join(const hvt_tcp_opts *opts, hvt_world **ret_world)
{
    const hvt_launch l = hvt__launch(getenv);
    bool asked = opts && ((opts->init_method && *opts->init_method) ||
                          (opts->interface && *opts->interface) || opts->rank >= 0 || opts->size > 0);
    bool told = hvt__launch_without_mpi(getenv), launched = l.started && (mpi || !(asked || told));

    HVT_CHECK(ret_world, E_ARG, "no output pointer for the world");
    if (hvt__was_spawned || (!launched && (asked || (told && strcmp(getenv("WORLD_SIZE"), "1")))))
        return open_tcp(opts, ret_world);
    if (launched && (asked || (told && getenv("MASTER_ADDR"))) && hvt_world_launched_rank() <= 0)
        HVT_INFO("a launcher of MPI started the ranks (%s), so MPI connects them, not %s",
                 l.var ? l.var : "PMIX_RANK", asked ? "--init-method" : "MASTER_ADDR, RANK and WORLD_SIZE");
    return open_named(NULL, ret_world);
}

hvt_status hvt_world_open(const char *name, hvt_world **ret_world)
{
    HVT_CHECK(ret_world, E_ARG, "no output pointer for the world");
    if (name && !strcmp(name, "tcp"))
        return open_tcp(NULL, ret_world);
    return name ? open_named(name, ret_world) : hvt_world_join(NULL, ret_world);
}

hvt_status hvt_world_wrap(const void *mpi_comm, hvt_world **ret_world)
{
    HVT_CHECK(mpi_comm && ret_world, E_ARG, "no communicator to wrap");
    HVT_CHECK(mpi, E_UNSUPPORTED, "this build has no MPI whose communicator it could wrap");
    return open_table(mpi, mpi_comm, ret_world);
}

hvt_status hvt_world_split(hvt_world *world, int color, int key, hvt_world **ret_world)
{
    hvt_world *w = NULL;
    hvt_status s = HVT_OK;

    HVT_CHECK(world, E_ARG, "no world to split");
    w = calloc(1, sizeof *w);
    if (!w)
        s = HVT_FAIL(E_MEM, "no memory for a world");
    else if (!ret_world)
        s = HVT_FAIL(E_ARG, "no output pointer for the new world");
    HVT_TRY_OR(fail, hvt_world_agree(world, s));
    w->ops = world->ops;
    w->flight = (hvt__flight){.world = w, .element = 1};
    HVT_TRY_OR(fail, hvt_world_agree(world, world->ops->split(world, color, key, w)));
    if (color < 0) {
        hvt_world_close(&w);
        *ret_world = NULL;
        return HVT_OK;
    }
    w->job = world->job ? world->job : world;
    w->parent = world;
    world->groups++;
    *ret_world = w;
    return HVT_OK;
fail:
    hvt_world_close(&w);
    return s;
}

void hvt_world_close(hvt_world **world)
{
    hvt_world *w = world ? *world : NULL;

    if (!w)
        return;
    if (w->comms || w->groups) {
        HVT_ERROR("world %s is not closed: %d comms and %d groups of it are still open; close "
                  "those first",
                  w->ops->name, w->comms, w->groups);
        return;
    }
    if (w->parent)
        w->parent->groups--;
    if (w->ops && w->ops->close)
        w->ops->close(w);
    hvt__watch_close(w); /* until here it also watches MPI's shutdown */
    free(w->job_rank);
    free(w->node_of);
    free(w->host);
    free(w->scratch);
    free(w->flight.request);
    free(w);
    *world = NULL;
}

const char *hvt_world_name(const hvt_world *world)
{
    return world ? world->ops->name : "";
}

int hvt_world_rank(const hvt_world *world)
{
    return world ? world->rank : 0;
}

int hvt_world_size(const hvt_world *world)
{
    return world ? world->size : 1;
}

int hvt_world_local_rank(const hvt_world *world)
{
    return world ? world->local_rank : 0;
}

int hvt_world_local_size(const hvt_world *world)
{
    return world ? world->local_size : 1;
}

int hvt_world_nodes(const hvt_world *world)
{
    return world ? world->nodes : 1;
}

const char *hvt_world_host(const hvt_world *world, int rank)
{
    return world && rank >= 0 && rank < world->size ? world->host[rank] : "";
}

hvt_status hvt_world_allgather(hvt_world *world, const void *mine, size_t bytes, void *all)
{
    HVT_CHECK(world && ((mine && all) || !bytes), E_ARG, "a gather of %zu bytes: no world or no buffer",
              bytes);
    hvt__trace_begin(HVT__AGREE, -1);
    return hvt__traced(world->ops->allgather(world, mine, bytes, all));
}

hvt_status hvt_world_gather(hvt_world *world, const void *mine, size_t bytes, void *all, int root)
{
    HVT_CHECK(world && (mine || !bytes), E_ARG, "a gather of %zu bytes: no world or no buffer", bytes);
    HVT_CHECK(root >= 0 && root < world->size, E_ARG, "root %d is not one of %d ranks", root, world->size);
    HVT_CHECK(all || !bytes || root != world->rank, E_ARG, "a gather of %zu bytes: no buffer on its root",
              bytes);
    hvt__trace_begin(HVT__AGREE, -1);
    return hvt__traced(world->ops->gather(world, mine, bytes, all, root));
}

hvt_status hvt_world_broadcast(hvt_world *world, void *data, size_t bytes, int root)
{
    HVT_CHECK(world && (data || !bytes), E_ARG, "a broadcast of %zu bytes: no world or no buffer", bytes);
    HVT_CHECK(root >= 0 && root < world->size, E_ARG, "root %d is not one of %d ranks", root, world->size);
    hvt__trace_begin(HVT__AGREE, -1);
    return hvt__traced(world->ops->broadcast(world, NULL, data, bytes, root));
}

hvt_status hvt_world_barrier(hvt_world *world)
{
    HVT_CHECK(world, E_ARG, "a barrier: no world");
    hvt__trace_begin(HVT__AGREE, -1);
    return hvt__traced(world->ops->barrier ? world->ops->barrier(world) : HVT_OK);
}

void hvt_world_abort(hvt_world *world, int exit_code)
{
    if (world && world->ops->abort)
        world->ops->abort(world, exit_code);
    _exit(exit_code);
}
