/*
 * The world that MPI sees. It lives on a communicator of its own, duplicated from MPI_COMM_WORLD or from
 * the host program's, and returns MPI's errors instead of dying of them. MPI is initialised only if nobody
 * has, and then finalised on close: who starts it, ends it.
 */
#include "base_impl.h"
#include "mpi_call.h"
#include "room.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct world_mpi {
    MPI_Comm comm;
    bool started; /* MPI, by us */
} world_mpi;

hvt_status hvt__mpi_fail(int rc, const char *file, int line, const char *call)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;

    MPI_Error_string(rc, text, &length);
    return hvt__fail(HVT_E_COMM, file, line, "%.*s: %s", (int)strcspn(call, "("), call, text);
}

MPI_Comm hvt__world_mpi_comm(const hvt_world *w)
{
    return ((world_mpi *)w->state)->comm;
}

/*
 * MPI_Init, which Open MPI spends mostly on looking for networks (0.25 s here). Where all ranks are on one
 * node and the user chose no transport, ob1 over shared memory is what it would find (0.045 s), so ask
 * for it; only for the call, so that children of this process do not inherit it.
 */
static int initialise(const hvt_launch *l, int *provided)
{
    bool hint = false;
    int rc;

#ifdef OPEN_MPI
    static const char *const chosen[] = {"OMPI_MCA_pml", "OMPI_MCA_btl", "OMPI_MCA_mtl"};

    hint = l->one_node;
    for (size_t i = 0; i < HVT_LEN(chosen); i++)
        hint = hint && !getenv(chosen[i]);
    if (hint)
        setenv("OMPI_MCA_pml", "ob1", 1);
#else
    (void)l;
#endif
    rc = MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, provided);
    if (hint)
        unsetenv("OMPI_MCA_pml");
    return rc;
}

static hvt_status start(world_mpi *st)
{
    hvt_launch l = hvt__launch(getenv); /* before MPI_Init, which sets some of these variables itself */
    int up, down, provided, size;

    HVT_TRY_MPI(MPI_Finalized(&down));
    HVT_CHECK(!down, E_COMM, "MPI was finalised already: a process can join a world only once");
    HVT_TRY_MPI(MPI_Initialized(&up));
    if (!up) {
#ifdef OPEN_MPI
        /* Open MPI would print two pages and exit inside MPI_Init. */
        if (l.unwired)
            HVT_TRY(hvt__launch_check(&l, 1));
        /* With PMI-2, and built without it, it would print them too, and _exit(): nobody could speak after.
         */
        if (l.by_srun && !getenv("PMIX_RANK") && getenv("PMI_RANK") && !strcmp(getenv("PMI_RANK"), "0"))
            HVT_WARN("srun offers PMI, not PMIx; if MPI cannot use it, start with `srun --mpi=pmix ...`");
#endif
        HVT_TRY_MPI(initialise(&l, &provided));
        st->started = true;
    }
    HVT_TRY_MPI(MPI_Comm_size(MPI_COMM_WORLD, &size));
    return up ? HVT_OK : hvt__launch_check(&l, size);
}

static hvt_status world_gather_mpi(hvt_world *w, const void *mine, size_t bytes, void *all)
{
    HVT_CHECK(bytes <= INT_MAX, E_ARG, "a gather of %zu bytes a rank; at most %d", bytes, INT_MAX);
    HVT_TRY_MPI(MPI_Allgather(mine, (int)bytes, MPI_BYTE, all, (int)bytes, MPI_BYTE, hvt__world_mpi_comm(w)));
    return HVT_OK;
}

/* What one rank lacks, none can go on without. */
static hvt_status all_have(MPI_Comm comm, bool mine, int size)
{
    int all = mine;

    HVT_TRY_MPI(MPI_Allreduce(MPI_IN_PLACE, &all, 1, MPI_INT, MPI_MIN, comm));
    if (all)
        return HVT_OK;
    HVT_FAIL(E_MEM, "%s has no memory for the names of %d ranks", mine ? "another rank" : "this rank", size);
    hvt__error_agreed(true); /* all fail here: one line, not one from each */
    return HVT_E_MEM;
}

/* Which ranks share a node, and how the hosts are called. */
static hvt_status look_around(hvt_world *w)
{
    struct place {
        int leader; /* lowest rank on the node */
        char host[sizeof *w->host];
    } mine = {0}, *all = NULL;
    MPI_Comm comm = hvt__world_mpi_comm(w), node;
    bool ready;
    hvt_status s;

    HVT_TRY_MPI(MPI_Comm_rank(comm, &w->rank));
    HVT_TRY_MPI(MPI_Comm_size(comm, &w->size));
    HVT_TRY_MPI(MPI_Comm_split_type(comm, MPI_COMM_TYPE_SHARED, w->rank, MPI_INFO_NULL, &node));
    HVT_TRY_MPI(MPI_Comm_rank(node, &w->local_rank));
    HVT_TRY_MPI(MPI_Comm_size(node, &w->local_size));
    mine.leader = w->rank;
    HVT_TRY_MPI(MPI_Bcast(&mine.leader, 1, MPI_INT, 0, node));
    HVT_TRY_MPI(MPI_Comm_free(&node));
    gethostname(mine.host, sizeof mine.host - 1);

    all = calloc((size_t)w->size, sizeof *all);
    w->node_of = calloc((size_t)w->size, sizeof *w->node_of);
    w->host = calloc((size_t)w->size, sizeof *w->host);
    w->scratch = malloc((size_t)w->size * HVT__SCRATCH);
    ready = all && w->node_of && w->host && w->scratch;
    HVT_TRY_OR(done, all_have(comm, ready, w->size));
    HVT_TRY_OR(done, world_gather_mpi(w, &mine, sizeof mine, all));
    for (int r = 0; r < w->size; r++) {
        memcpy(w->host[r], all[r].host, sizeof *w->host);
        w->node_of[r] = all[r].leader == r ? w->nodes++ : w->node_of[all[r].leader];
    }
    s = HVT_OK;
done:
    free(all);
    return s;
}

static hvt_status world_open_mpi(hvt_world *w, const void *mpi_comm)
{
    world_mpi *st = calloc(1, sizeof *st);

    HVT_CHECK(st, E_MEM, "no memory for a world");
    st->comm = MPI_COMM_NULL;
    w->state = st;
    if (!mpi_comm)
        HVT_TRY(start(st));
    HVT_TRY_MPI(MPI_Comm_dup(mpi_comm ? *(const MPI_Comm *)mpi_comm : MPI_COMM_WORLD, &st->comm));
    HVT_TRY_MPI(MPI_Comm_set_errhandler(st->comm, MPI_ERRORS_RETURN));
    return look_around(w);
}

static void world_close_mpi(hvt_world *w)
{
    world_mpi *st = w->state;

    if (!st)
        return;
    if (st->comm != MPI_COMM_NULL)
        MPI_Comm_free(&st->comm);
    if (st->started)
        MPI_Finalize();
    free(st);
}

static hvt_status world_broadcast_mpi(hvt_world *w, void *data, size_t bytes, int root)
{
    for (size_t at = 0; at < bytes;) {
        size_t part = bytes - at < INT_MAX ? bytes - at : INT_MAX;

        HVT_TRY_MPI(MPI_Bcast((char *)data + at, (int)part, MPI_BYTE, root, hvt__world_mpi_comm(w)));
        at += part;
    }
    return HVT_OK;
}

static hvt_status world_barrier_mpi(hvt_world *w)
{
    HVT_TRY_MPI(MPI_Barrier(hvt__world_mpi_comm(w)));
    return HVT_OK;
}

static void world_abort_mpi(hvt_world *w, int exit_code)
{
    MPI_Abort(hvt__world_mpi_comm(w), exit_code);
    _exit(exit_code);
}

const hvt_world_ops hvt_world_mpi = {
    .name = "mpi",
    .open = world_open_mpi,
    .close = world_close_mpi,
    .gather = world_gather_mpi,
    .broadcast = world_broadcast_mpi,
    .barrier = world_barrier_mpi,
    .abort = world_abort_mpi,
};
