/*
 * Groups, and the library as a guest: a host program that started MPI itself lends a communicator with all of
 * its ranks but the last. The last one waits in MPI_COMM_WORLD and must never be needed. Every MPI call goes
 * through this file, which counts those that a guest may not make.
 */
#include "config.h"

#if HVT_HAVE_MPI
#define RANKS_ARE_PROCESSES
#include "collectives.h"

#include <mpi.h>
#include <pthread.h>
#include <unistd.h>

static bool guest;         /* the library is at work */
static int on_world, life; /* calls on MPI_COMM_WORLD; MPI_Init and MPI_Finalize */

static void see(MPI_Comm comm)
{
    on_world += guest && comm == MPI_COMM_WORLD;
}

/* The host's name for each call is MPI's second one (MPI 3.1, 14.2: the profiling interface). */
int MPI_Init_thread(int *argc, char ***argv, int wanted, int *provided)
{
    life += guest;
    return PMPI_Init_thread(argc, argv, wanted, provided);
}

int MPI_Finalize(void)
{
    life += guest;
    return PMPI_Finalize();
}

int MPI_Allgather(const void *in, int n, MPI_Datatype t, void *out, int m, MPI_Datatype u, MPI_Comm comm)
{
    see(comm);
    return PMPI_Allgather(in, n, t, out, m, u, comm);
}

int MPI_Allreduce(const void *in, void *out, int n, MPI_Datatype t, MPI_Op op, MPI_Comm comm)
{
    see(comm);
    return PMPI_Allreduce(in, out, n, t, op, comm);
}

int MPI_Bcast(void *buf, int n, MPI_Datatype t, int root, MPI_Comm comm)
{
    see(comm);
    return PMPI_Bcast(buf, n, t, root, comm);
}

int MPI_Barrier(MPI_Comm comm)
{
    see(comm);
    return PMPI_Barrier(comm);
}

int MPI_Isend(const void *buf, int n, MPI_Datatype t, int to, int tag, MPI_Comm comm, MPI_Request *r)
{
    see(comm);
    return PMPI_Isend(buf, n, t, to, tag, comm, r);
}

int MPI_Irecv(void *buf, int n, MPI_Datatype t, int from, int tag, MPI_Comm comm, MPI_Request *r)
{
    see(comm);
    return PMPI_Irecv(buf, n, t, from, tag, comm, r);
}

int MPI_Comm_dup(MPI_Comm comm, MPI_Comm *fresh)
{
    see(comm);
    return PMPI_Comm_dup(comm, fresh);
}

int MPI_Comm_split(MPI_Comm comm, int color, int key, MPI_Comm *fresh)
{
    see(comm);
    return PMPI_Comm_split(comm, color, key, fresh);
}

int MPI_Comm_split_type(MPI_Comm comm, int type, int key, MPI_Info info, MPI_Comm *fresh)
{
    see(comm);
    return PMPI_Comm_split_type(comm, type, key, info, fresh);
}

int MPI_Comm_size(MPI_Comm comm, int *n)
{
    see(comm);
    return PMPI_Comm_size(comm, n);
}

int MPI_Comm_rank(MPI_Comm comm, int *r)
{
    see(comm);
    return PMPI_Comm_rank(comm, r);
}

/* ---- groups ------------------------------------------------------------------------------- */

/* Numbers of a world's ranks and their sum, by a comm of its own. */
static int sum_of_ranks(hvt_world *w, const char *name, int number)
{
    hvt_comm *own = NULL;
    int32_t x = number;

    CHECK_OK(hvt_comm_open(name, w, dev, &own));
    CHECK_OK(hvt_allreduce(own, NULL, &x, 1, HVT_I32, HVT_SUM, NULL, NULL));
    hvt_comm_close(&own);
    return x;
}

TEST(a_group_is_a_world_of_its_own)
{
    hvt_world *half = NULL;
    int members = size / 2 + (size % 2 && rank % 2 == 0), sum = 0;

    CHECK_OK(hvt_world_split(world, rank % 2, -rank, &half)); /* in reverse order */
    CHECK(hvt_world_size(half) == members && hvt_world_rank(half) == members - 1 - rank / 2, "rank %d of %d",
          hvt_world_rank(half), hvt_world_size(half));
    CHECK(hvt_world_nodes(half) == 1 && hvt_world_local_size(half) == members, "%d nodes",
          hvt_world_nodes(half));
    for (int r = rank % 2; r < size; r += 2)
        sum += r;
    CHECK(sum_of_ranks(half, "auto", rank) == sum && sum_of_ranks(half, over_messages(), rank) == sum,
          "not %d", sum);
    CHECK(sum_of_ranks(world, "auto", rank) == size * (size - 1) / 2, "the world is as it was");
    hvt_world_close(&half);
    CHECK(!half, "close leaves NULL");
}

TEST(groups_do_not_wait_for_each_other)
{
    hvt_world *half = NULL;
    hvt_comm *all = NULL, *own = NULL;
    int64_t x = rank, sum = 0;
    float grad[100], whole = (float)rank;
    hvt_ticket t, later;

    CHECK_OK(hvt_world_split(world, rank % 2, 0, &half));
    CHECK_OK(hvt_comm_open("auto", half, dev, &own));
    CHECK_OK(hvt_comm_open("auto", world, dev, &all));
    /* something of all ranks is in flight, while the groups do different things, a different number of times
     */
    CHECK_OK(hvt_allreduce(all, NULL, &whole, 1, HVT_F32, HVT_SUM, NULL, &later));
    for (int round = 0; round < (rank % 2 ? 5 : 20); round++) {
        if (rank % 2) {
            for (int i = 0; i < 100; i++)
                grad[i] = (float)(i + rank);
            CHECK_OK(hvt_comm_allreduce(own, grad, 100, HVT_F32, &t));
            CHECK_OK(hvt_comm_wait(own, t));
        } else {
            CHECK_OK(hvt_broadcast(own, &x, 1, HVT_I64, hvt_world_size(half) - 1, NULL));
            CHECK_OK(hvt_barrier(own, NULL));
        }
    }
    for (int r = 1; r < size; r += 2)
        sum += r;
    if (rank % 2)
        CHECK(grad[7] == (float)(7 * hvt_world_size(half) + (int)sum), "%g", (double)grad[7]);
    else
        CHECK(x == (size - 1) / 2 * 2, "%d", (int)x);
    CHECK_OK(hvt_comm_wait(all, later));
    CHECK(whole == (float)(size * (size - 1) / 2), "%g", (double)whole);
    hvt_comm_close(&all);
    hvt_comm_close(&own);
    hvt_world_close(&half);
}

TEST(what_goes_wrong_in_a_group_stays_there)
{
    hvt_world *half = NULL;
    int32_t x[2] = {1, 1};

    CHECK_OK(hvt_world_split(world, rank % 2, 0, &half));
    CHECK_OK(hvt_comm_open(over_messages(), half, dev, &c));
    if (rank % 2 == 0 && hvt_world_size(half) > 1)
        CHECK_FAILS(hvt_allreduce(c, NULL, x, rank ? 1 : 2, HVT_I32, HVT_SUM, NULL, NULL), E_MISMATCH,
                    "count differs: \"2\" on rank 0 (");
    else
        CHECK_OK(hvt_allreduce(c, NULL, x, 2, HVT_I32, HVT_SUM, NULL, NULL));
    CHECK_OK(hvt_allreduce(c, NULL, x, 2, HVT_I32, HVT_MAX, NULL, NULL));
    hvt_comm_close(&c);
    hvt_world_close(&half);
}

TEST(groups_have_groups_and_some_have_none)
{
    hvt_world *most = NULL, *one = NULL;

    CHECK_OK(hvt_world_split(world, rank ? 3 : -1, 0, &most));
    CHECK(!most == !rank, "rank %d", rank);
    if (most) {
        CHECK(hvt_world_size(most) == size - 1 && hvt_world_rank(most) == rank - 1, "%d of %d",
              hvt_world_rank(most), hvt_world_size(most));
        CHECK_OK(hvt_world_split(most, hvt_world_rank(most), 0, &one));
        CHECK(one && hvt_world_size(one) == 1 && sum_of_ranks(one, "self", rank) == rank, "alone");
        hvt_world_close(&one);
        CHECK(sum_of_ranks(most, "auto", rank) == size * (size - 1) / 2, "all but rank 0");
    }
    hvt_world_close(&most);
}

/* Every kind of message that the library knows. */
TEST(a_guest_exchanges_everything)
{
    for (int k = 1; k < 3; k++) {
        int32_t x[64] = {rank + 1}, y[64];
        float g[500] = {1};
        size_t one[64];
        hvt_piece piece = {"g", g, 500, HVT_F32};
        hvt_fuse *f = NULL;
        hvt_cores cores;

        for (int r = 0; r < size; r++)
            one[r] = 1;
        CHECK_OK(hvt_world_cores(world, 1, &cores));
        CHECK_OK(hvt_comm_open(comms[k], world, dev, &c));
        CHECK_OK(hvt_allgather(c, x, 1, y, NULL, HVT_I32, NULL));
        CHECK_OK(hvt_alltoall(c, y, one, x, one, HVT_I32, NULL));
        CHECK_OK(hvt_allreduce(c, x, y, 64, HVT_I32, HVT_MAX, NULL, NULL));
        CHECK_OK(hvt_broadcast(c, y, 64, HVT_I32, size - 1, NULL));
        CHECK_OK(hvt_fuse_create(c, &piece, 1, 0, HVT_SUM, &f));
        CHECK_OK(hvt_fuse_exchange(f));
        CHECK(g[0] == (float)size && y[size - 1] == size, "%g, %d", (double)g[0], y[size - 1]);
        hvt_fuse_free(&f);
        hvt_comm_close(&c);
    }
}

TEST(a_worker_stays_out_of_an_mpi_that_cannot_bear_it)
{
    const hvt_overlap worker = {.yield = true};
    const char *const names[] = {over_messages(), "shm"};
    float x[3] = {1, 2, 3};
    hvt_ticket t;

    for (int i = 0; i < 2; i++) {
        CHECK_OK(hvt_comm_open(names[i], world, dev, &c));
        if (i == 0)
            CHECK_FAILS(hvt_comm_overlap(c, &worker), E_UNSUPPORTED, "MPI_THREAD_MULTIPLE");
        else
            CHECK_OK(hvt_comm_overlap(c, &worker)); /* which calls no MPI */
        CHECK_OK(hvt_comm_allreduce(c, x, 3, HVT_F32, &t));
        CHECK_OK(hvt_comm_wait(c, t));
        hvt_comm_close(&c);
    }
    CHECK(x[1] == (float)(2 * size * size), "%g", (double)x[1]);
}

/* Below MPI_THREAD_MULTIPLE the other rank's threads might wait the other way round, for ever. */
static void *meet(void *arg)
{
    static hvt_status s;

    s = hvt_world_barrier(arg);
    return &s;
}

TEST(two_threads_that_wait_at_once_need_an_mpi_for_several_threads)
{
    hvt_world *own = NULL;
    pthread_t thread;
    void *s = NULL;

    if (size < 2)
        SKIP("one rank waits for nobody");
    CHECK_OK(hvt_world_split(world, 0, 0, &own));
    if (rank == 0) {
        CHECK(!pthread_create(&thread, NULL, meet, own), "no thread");
        usleep(1000000); /* it waits by now; the others come later */
        CHECK_FAILS(hvt_world_barrier(world), E_COMM, "MPI_THREAD_MULTIPLE");
        pthread_join(thread, &s);
        CHECK(s && *(hvt_status *)s == HVT_OK, "the first one's barrier failed");
    } else {
        usleep(3000000);
        CHECK_OK(hvt_world_barrier(own));
    }
    hvt_world_close(&own);
}

int main(int argc, char **argv)
{
    MPI_Comm lent;
    int all, me, provided, failed = 0, any;

    MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided);
    MPI_Comm_size(MPI_COMM_WORLD, &all);
    MPI_Comm_rank(MPI_COMM_WORLD, &me);
    MPI_Comm_split(MPI_COMM_WORLD, me == all - 1 ? MPI_UNDEFINED : 0, 0, &lent);
    if (lent != MPI_COMM_NULL) {
        guest = true;
        CHECK_OK(hvt_world_wrap(&lent, &world));
        CHECK_OK(hvt_device_open("ref", NULL, &dev));
        rank = hvt_world_rank(world);
        size = hvt_world_size(world);
        CHECK(size == all - 1, "%d ranks of %d", size, all);
        RUN(a_group_is_a_world_of_its_own);
        RUN(groups_do_not_wait_for_each_other);
        RUN(what_goes_wrong_in_a_group_stays_there);
        RUN(groups_have_groups_and_some_have_none);
        RUN(a_guest_exchanges_everything);
        RUN(a_worker_stays_out_of_an_mpi_that_cannot_bear_it);
        RUN(two_threads_that_wait_at_once_need_an_mpi_for_several_threads);
        failed = ranks_done();
        guest = false;
        failed += on_world != 0 || life != 0;
        printf("%d calls on MPI_COMM_WORLD, %d of MPI_Init and MPI_Finalize\n", on_world, life);
        MPI_Comm_free(&lent); /* still the host's */
    }
    MPI_Allreduce(&failed, &any, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    MPI_Finalize();
    return any != 0;
}
#else
int main(void)
{
    return 77; /* no MPI whose guest one could be */
}
#endif
