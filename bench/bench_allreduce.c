/*
 * bench_allreduce - the sum of a vector over the ranks, by every comm and by MPI_Allreduce.
 *
 *     mpirun -np 2 bench_allreduce [--device NAME] [--seconds S] [--min BYTES] [--max BYTES] [--json FILE]
 *
 * Buffers come from the comm's own alloc, as gradients do; shm/stage sums a buffer from malloc instead. The
 * methods take turns, round by round, so that a disturbance of the machine affects all of them. Before every
 * call each rank writes its buffer, as backward does; that is not timed, but without it a shared slice would
 * never leave its owner's cache. A method is verified on every element before and after it is timed.
 */
#include "bench.h"
#include "base_impl.h"
#include "comm/comm_internal.h"
#include "config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#if HVT_HAVE_MPI
#include <mpi.h>
#endif

enum { ROUNDS = 9 };

static const struct {
    const char *name, *meaning;
} columns[] = {
    {"bytes", "of the vector on every rank, f32"},
    {"way",
     "who sums; two are no sums: in bound every rank reads and writes a vector of its own in place, in "
     "copy it copies one, all at once"},
    {"median us", "microseconds of a call on the slowest rank, mean of a round; median of 9 rounds"},
    {"least us", "the same, least of 9 rounds"},
    {"algbw", "GB/s: bytes / median"},
    {"busbw", "GB/s: algbw x 2(N-1)/N for N ranks, what each rank must at least send"},
    {"share", "median of bound / median: a sum reads and writes at least as many bytes (N slices of size/N)"},
};

typedef struct way {
    const char *name, *comm;     /* comm: NULL for MPI_Allreduce, bound and copy */
    bool plain, touches, copies; /* plain: the buffer is from malloc; touches: bound */
    hvt_comm *c;
    float *buf;
    double round[ROUNDS], once;
    int wrong; /* ranks with a wrong result */
} way;

static hvt_world *world;
static hvt_device *dev;
static int rank, size;
static bool all_right = true;

static void must(hvt_status s)
{
    bench_must("bench_allreduce", world, s);
}

static void *some(size_t bytes)
{
    void *p = aligned_alloc(64, (bytes + 63) / 64 * 64);

    if (!p)
        must(HVT_FAIL(E_MEM, "no memory for %zu bytes; --max asks for less", bytes));
    memset(p, 0, bytes);
    return p;
}

static void fill(float *buf, size_t count)
{
    for (size_t i = 0; i < count; i++)
        buf[i] = (float)(rank + 1) * (float)(i % 1000);
}

/* Values are small integers: every order of addition gives the same bits. */
static bool right(const float *buf, size_t count, int times)
{
    for (size_t i = 0; i < count; i++)
        if (buf[i] != (float)times * (float)(i % 1000))
            return false;
    return true;
}

/* One call. other: the destination of copy. */
static void run(way *w, float *other, size_t count)
{
    hvt_ticket t;

    if (w->touches) {
        must(dev->ops->host_only.reduce_all(dev, count, HVT_F32, (void *const[]){w->buf}, 1));
        return;
    }
    if (w->copies) {
        must(dev->ops->memory.copy(dev, other, w->buf, count * sizeof *other));
        return;
    }
#if HVT_HAVE_MPI
    if (!w->c) {
        MPI_Allreduce(MPI_IN_PLACE, w->buf, (int)count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        return;
    }
#endif
    must(hvt_comm_allreduce(w->c, w->buf, count, HVT_F32, &t));
    must(hvt_comm_wait(w->c, t));
}

static void verify(way *w, float *other, size_t count)
{
    double wrong;

    fill(w->buf, count);
    run(w, other, count);
    if (w->touches || w->copies)
        wrong = !right(w->copies ? other : w->buf, count, rank + 1);
    else
        wrong = !right(w->buf, count, size * (size + 1) / 2);
    must(hvt_world_allreduce(world, HVT_SUM, &wrong, 1));
    w->wrong = wrong > w->wrong ? (int)wrong : w->wrong;
    all_right = all_right && !w->wrong;
}

static double call(way *w, float *other, size_t count)
{
    double start;

    memset(w->buf, 0, count * sizeof *w->buf); /* sums of zeros stay finite */
    start = hvt__now();
    run(w, other, count);
    return hvt__now() - start;
}

/* True if this method is available here. */
static bool open_way(way *w, size_t bytes)
{
    bool mpi = !strcmp(hvt_world_name(world), "mpi");
    int levels;

    if (w->comm && !strcmp(w->comm, "self") && size > 1)
        return false;
    if (w->comm && !strcmp(w->comm, "shm") && hvt_world_nodes(world) > 1)
        return false;
    if (w->comm && !strcmp(w->comm, "tcp") && strcmp(hvt_world_name(world), "tcp"))
        return false;
    if (w->comm && !strcmp(w->comm, "hier") && (size == 1 || hvt__levels_inside(world, &levels) != HVT_OK))
        return false;
    if (w->touches && !dev->ops->host)
        return false;
    if (!w->touches && !w->copies && (!w->comm || !strcmp(w->comm, "mpi")) && !mpi)
        return false;
    if (w->comm)
        must(hvt_comm_open(w->comm, world, dev, &w->c));
    if (w->comm && !w->plain)
        must(hvt_comm_alloc(w->c, bytes, (void **)&w->buf));
    else
        w->buf = some(bytes);
    return true;
}

static void close_way(way *w)
{
    if (w->comm && !w->plain)
        hvt_comm_release(w->c, w->buf);
    else
        free(w->buf);
    hvt_comm_close(&w->c);
}

static void report(const way *w, size_t bytes, const way *bound, FILE *json)
{
    static bool followed;
    double median = w->round[ROUNDS / 2], least = w->round[0], algbw = 1e-9 * (double)bytes / median;
    double busbw = algbw * 2 * (size - 1) / size, share = bound->round[ROUNDS / 2] / median;
    bool sums = !w->touches && !w->copies;

    if (w->wrong) {
        printf("%10zu  %-14s wrong on %d of %d ranks\n", bytes, w->name, w->wrong, size);
    } else if (!sums) {
        printf("%10zu  %-14s %11.2f %11.2f %9.2f\n", bytes, w->name, 1e6 * median, 1e6 * least, algbw);
    } else {
        printf("%10zu  %-14s %11.2f %11.2f %9.2f %9.2f %7.2f\n", bytes, w->name, 1e6 * median, 1e6 * least,
               algbw, busbw, share);
    }
    fflush(stdout);
    if (!json)
        return;
    fprintf(json, "%s\n  {\"bytes\": %zu, \"way\": \"%s\"", followed ? "," : "", bytes, w->name);
    followed = true;
    if (w->wrong)
        fprintf(json, ", \"wrong\": true}");
    else
        fprintf(
            json,
            ", \"median_us\": %.4g, \"least_us\": %.4g, \"algbw\": %.4g, \"busbw\": %.4g, \"share\": %.4g}",
            1e6 * median, 1e6 * least, algbw, sums ? busbw : 0, share);
}

/* Times all methods for one size. Collective operations have the same order on every rank. */
static void bench(size_t bytes, double seconds, FILE *json)
{
    way all[] = {{.name = "bound", .touches = true},
                 {.name = "copy", .copies = true},
                 {.name = "self", .comm = "self"},
                 {.name = "shm", .comm = "shm"},
                 {.name = "shm/stage", .comm = "shm", .plain = true},
                 {.name = "mpi", .comm = "mpi"},
                 {.name = "tcp", .comm = "tcp"},
                 {.name = "hier", .comm = "hier"},
                 {.name = "MPI_Allreduce"}};
    way *at[HVT_LEN(all)];
    size_t count = bytes / sizeof(float);
    float *other = some(bytes);
    int ways = 0;

    for (size_t i = 0; i < HVT_LEN(all); i++)
        if (open_way(&all[i], bytes))
            at[ways++] = &all[i];
    for (int i = 0; i < ways; i++) {
        verify(at[i], other, count);
        at[i]->once = call(at[i], other, count);
        must(hvt_world_allreduce(world, HVT_MAX, &at[i]->once, 1));
    }
    for (int r = 0; r < ROUNDS; r++)
        for (int i = 0; i < ways; i++) {
            int calls = (int)(seconds / ROUNDS / (at[i]->once + 1e-7));

            calls = calls < 1 ? 1 : calls;
            at[i]->round[r] = 0;
            must(hvt_world_barrier(world));
            for (int k = 0; k < calls; k++)
                at[i]->round[r] += call(at[i], other, count) / calls;
        }
    for (int i = 0; i < ways; i++) {
        verify(at[i], other, count);
        must(hvt_world_allreduce(world, HVT_MAX, at[i]->round, ROUNDS));
        hvt__sort(at[i]->round, ROUNDS);
        if (rank == 0)
            report(at[i], bytes, at[0], json);
    }
    for (int i = 0; i < ways; i++)
        close_way(at[i]);
    free(other);
}

static void start_json(FILE *json)
{
    char text[512];

    bench_describe(text, sizeof text, "bench_allreduce", hvt_device_isa(dev), 1);
    fprintf(json, "{\"run\": \"%s\", \"ranks\": %d, \"nodes\": %d,\n \"columns\": {", text, size,
            hvt_world_nodes(world));
    for (size_t i = 0; i < HVT_LEN(columns); i++)
        fprintf(json, "%s\n  \"%s\": \"%s\"", i ? "," : "", columns[i].name, columns[i].meaning);
    fprintf(json, "},\n \"rows\": [");
}

int main(int argc, char **argv)
{
    static const size_t sizes[] = {8,       64,      256,     1 << 10,  4 << 10,  16 << 10,  64 << 10,
                                   1 << 18, 1 << 20, 4 << 20, 16 << 20, 64 << 20, 100 << 20, 256 << 20};
    const char *device = "cpu", *path = NULL;
    double seconds = 1, least = 0, most = 1e15;
    const bench_row options[] = {
        {"--device", "NAME", "(cpu)", &device},
        {"--seconds", "S", "for one way and size (1)", .real = &seconds},
        {"--min", "BYTES", "of the shortest vector (8)", .real = &least},
        {"--max", "BYTES", "of the longest vector (256 MiB)", .real = &most},
        {"--json", "FILE", "the table goes there, too", &path},
    };
    FILE *json = NULL;
    int made = 0;

    must(hvt_world_open(NULL, &world));
    bench_options("bench_allreduce", world, options, HVT_LEN(options), argc, argv);
    for (size_t i = 0; i < HVT_LEN(sizes); i++)
        made += (double)sizes[i] >= least && (double)sizes[i] <= most;
    if (!made)
        bench_refuse("bench_allreduce", world,
                     "no vector has from --min %.10g to --max %.10g bytes; the sizes are 8 B to 256 MiB",
                     least, most);
    rank = hvt_world_rank(world);
    size = hvt_world_size(world);
    must(hvt_device_open(device, NULL, &dev));
    if (rank == 0 && path && !(json = fopen(path, "w")))
        must(HVT_FAIL(E_IO, "%s cannot be written", path));
    if (rank == 0) {
        bench_header("bench_allreduce", hvt_device_isa(dev), 1);
        printf("%d ranks on %d nodes\n", size, hvt_world_nodes(world));
        for (size_t i = 0; i < HVT_LEN(columns); i++)
            printf("  %-9s  %s\n", columns[i].name, columns[i].meaning);
        printf("%10s  %-14s %11s %11s %9s %9s %7s\n", columns[0].name, columns[1].name, columns[2].name,
               columns[3].name, columns[4].name, columns[5].name, columns[6].name);
    }
    if (json)
        start_json(json);
    for (size_t i = 0; i < HVT_LEN(sizes); i++)
        if ((double)sizes[i] >= least && (double)sizes[i] <= most)
            bench(sizes[i], seconds, json);
    if (json && (fprintf(json, "\n ]}\n") < 0 || fclose(json)))
        must(HVT_FAIL(E_IO, "%s could not be written", path));
    hvt_device_close(&dev);
    hvt_world_close(&world);
    return !all_right;
}
