/*
 * bench_allreduce - the sum of a vector over the ranks, by every comm and by MPI_Allreduce.
 *
 *     mpirun -np 2 bench_allreduce [--device NAME] [--seconds S] [--max BYTES]
 *
 * Buffers come from the comm's own alloc, as gradients do; `shm/stage` sums a buffer from malloc instead.
 * Each way is verified on every element, then timed. Before every call each rank writes its buffer, as
 * backward does; that is not timed, but without it a shared slice would never leave its owner's cache.
 * Columns: a round's mean time of a call on its slowest rank, median and least of nine rounds (us); bytes of
 * the vector per least time.
 */
#include "bench.h"
#include "base_impl.h"
#include "config.h"
#include "device_impl.h"
#include "hvt/comm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#if HVT_HAVE_MPI
#include <mpi.h>
#endif

static hvt_world *world;
static hvt_device *dev;
static int rank, size;

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static void must(hvt_status s)
{
    if (s == HVT_OK)
        return;
    fprintf(stderr, "bench_allreduce: rank %d: %s\n%s", rank, hvt_last_error(), hvt_last_trace());
    hvt_world_abort(world, 1);
}

static void fill(float *buf, size_t count)
{
    for (size_t i = 0; i < count; i++)
        buf[i] = (float)(rank + 1) * (float)(i % 1000);
}

/* Small integers: every order of adding gives the same bits. */
static bool right(const float *buf, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (buf[i] != (float)(size * (size + 1) / 2) * (float)(i % 1000))
            return false;
    return true;
}

static void sum(hvt_comm *c, float *buf, size_t count)
{
    hvt_ticket t;

#if HVT_HAVE_MPI
    if (!c) {
        MPI_Allreduce(MPI_IN_PLACE, buf, (int)count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        return;
    }
#endif
    must(hvt_comm_allreduce(c, buf, count, HVT_F32, &t));
    must(hvt_comm_wait(c, t));
}

static void bench(const char *name, hvt_comm *c, float *buf, size_t count, double seconds)
{
    enum { ROUNDS = 9 };
    double round[ROUNDS], once, wrong;
    int calls;

    fill(buf, count);
    sum(c, buf, count);
    wrong = !right(buf, count);
    must(hvt_world_fold(world, HVT_FOLD_SUM, &wrong, 1));
    once = hvt__now();
    sum(c, buf, count);
    once = hvt__now() - once;
    must(hvt_world_fold(world, HVT_FOLD_MAX, &once, 1));
    calls = (int)(seconds / ROUNDS / (once + 1e-7));
    calls = calls < 1 ? 1 : calls;
    for (int r = 0; r < ROUNDS; r++) {
        must(hvt_world_barrier(world));
        round[r] = 0;
        for (int i = 0; i < calls; i++) {
            double start;

            memset(buf, 0, count * sizeof *buf); /* sums of zeros stay finite */
            start = hvt__now();
            sum(c, buf, count);
            round[r] += (hvt__now() - start) / calls;
        }
    }
    must(hvt_world_fold(world, HVT_FOLD_MAX, round, ROUNDS));
    qsort(round, ROUNDS, sizeof *round, ascending);
    if (rank)
        return;
    if (wrong != 0)
        printf("%10zu  %-14s wrong sum on %d of %d ranks\n", 4 * count, name, (int)wrong, size);
    else
        printf("%10zu  %-14s %11.1f %11.1f %9.2f\n", 4 * count, name, 1e6 * round[ROUNDS / 2], 1e6 * round[0],
               4e-9 * (double)count / round[0]);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    static const size_t bytes[] = {1 << 10, 64 << 10, 1 << 20, 25 << 20, 100 << 20};
    const char *device = "cpu", *v;
    double seconds = 1, most = 1e18;

    for (int i = 1; i < argc; i++) {
        if ((v = bench_option(argc, argv, &i, "--device")))
            device = v;
        else if ((v = bench_option(argc, argv, &i, "--seconds")))
            seconds = atof(v);
        else if ((v = bench_option(argc, argv, &i, "--max")))
            most = atof(v);
        else {
            fprintf(stderr, "bench_allreduce: unknown option %s\n", argv[i]);
            return 2;
        }
    }
    must(hvt_world_open(NULL, &world));
    rank = hvt_world_rank(world);
    size = hvt_world_size(world);
    must(hvt_device_open(device, NULL, &dev));
    if (rank == 0) {
        bench_header("bench_allreduce", hvt_device_isa(dev), 1);
        printf("%d ranks on %d nodes\n%10s  %-14s %11s %11s %9s\n", size, hvt_world_nodes(world), "bytes",
               "way", "median us", "least us", "GB/s");
    }
    for (size_t i = 0; i < HVT_LEN(bytes) && (double)bytes[i] <= most; i++) {
        static const char *const names[] = {"shm", "shm/stage", "mpi"};
        void *plain = aligned_alloc(64, bytes[i]);

        memset(plain, 0, bytes[i]);
        for (size_t k = 0; k < HVT_LEN(names); k++) {
            hvt_comm *c = NULL;
            void *buf = NULL;

            if (!strncmp(names[k], "shm", 3) ? hvt_world_nodes(world) > 1
                                             : strcmp(hvt_world_name(world), "mpi"))
                continue;
            must(hvt_comm_open(k < 2 ? "shm" : "mpi", world, dev, &c));
            must(hvt_comm_alloc(c, bytes[i], &buf));
            bench(names[k], c, k == 1 ? plain : buf, bytes[i] / 4, seconds);
            hvt_comm_release(c, buf);
            hvt_comm_close(&c);
        }
#if HVT_HAVE_MPI
        if (!strcmp(hvt_world_name(world), "mpi"))
            bench("MPI_Allreduce", NULL, plain, bytes[i] / 4, seconds);
#endif
        free(plain);
    }
    hvt_device_close(&dev);
    hvt_world_close(&world);
    return 0;
}
