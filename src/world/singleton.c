/*
 * The world of a single process without a launcher. It never uses MPI, so `./hvtrain` starts at once and runs
 * without MPI installed.
 */
#include "base_impl.h"
#include "world_impl.h"

#include <unistd.h>

static hvt_status world_open_singleton(hvt_world *w, const void *mpi_comm)
{
    HVT_CHECK(!mpi_comm, E_ARG, "a world of one process has no communicator to wrap");
    HVT_CHECK(w, E_MEM, "no memory for a world of one rank");
    w->rank = w->local_rank = 0;
    w->size = w->local_size = w->nodes = 1;
    w->node_of = calloc(1, sizeof *w->node_of);
    w->host = calloc(1, sizeof *w->host);
    w->scratch = malloc(HVT__SCRATCH);
    HVT_CHECK(w->node_of && w->host && w->scratch, E_MEM, "no memory for a world of one rank");
    gethostname(w->host[0], sizeof w->host[0] - 1);
    return HVT_OK;
}

static hvt_status world_allgather_singleton(hvt_world *w, const void *mine, size_t bytes, void *all)
{
    if (bytes)
        memmove(all, mine, bytes);
    return HVT_OK;
}

static hvt_status world_broadcast_singleton(hvt_world *w, void *channel, void *data, size_t bytes, int root)
{
    return HVT_OK;
}

static hvt_status world_gather_singleton(hvt_world *w, const void *mine, size_t bytes, void *all, int root)
{
    return world_allgather_singleton(w, mine, bytes, all);
}

static hvt_status world_split_singleton(hvt_world *w, int color, int key, hvt_world *fresh)
{
    return color < 0 ? HVT_OK : world_open_singleton(fresh, NULL);
}

const hvt_world_ops hvt_world_singleton = {
    .name = "singleton",
    .open = world_open_singleton,
    .allgather = world_allgather_singleton,
    .broadcast = world_broadcast_singleton,
    .gather = world_gather_singleton,
    .split = world_split_singleton,
    .comm = "mpi",
};
