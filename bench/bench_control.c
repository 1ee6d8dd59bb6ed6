/*
 * bench_control - the cost of a step apart from its data: bookkeeping and messages.
 *
 *     [mpirun -np 2] bench_control [--steps N] [--json FILE]
 *
 * The models have as many layers as ResNet-20 and ResNet-50, but almost no data: convolutions of one weight,
 * each with a batch norm. So the time from the first gradient to the last update is calls, checks and queues,
 * layer by layer and bucket by bucket; no forward or backward pass runs. One rank shows the bookkeeping
 * alone; several ranks add their synchronization. Messages are counted through MPI's profiling interface.
 * Gradients are ones: if the weights are wrong after all steps, no time is printed.
 */
#include "bench.h"
#include "optim_impl.h"
#include "base_impl.h"
#include "config.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#if HVT_HAVE_MPI
#include "../tests/support/count_mpi.h"
#endif

enum { ROUNDS = 11 };

static const struct {
    const char *name, *meaning;
} columns[] = {
    {"layers", "with parameters: convolutions, each with a batch norm, and the head"},
    {"comm", "how the ranks exchange, and who updates"},
    {"buckets", "exchanged one by one"},
    {"median us",
     "of a step on the slowest rank: begin, a call for each layer's gradients, exchange and update"},
    {"least us", "the same, least of all rounds"},
    {"messages", "sent by all ranks in a step, through MPI"},
    {"control", "other calls of MPI that talk, all ranks, in a step"},
};

static const struct {
    const char *name, *comm;
    hvt_update update;
} ways[] = {
    {"self", "self", HVT_UPDATE_REPLICATED},
    {"shm, sharded", "shm", HVT_UPDATE_SHARDED},
    {"shm, replicated", "shm", HVT_UPDATE_REPLICATED},
    {"mpi, replicated", "mpi", HVT_UPDATE_REPLICATED},
};

static hvt_world *world;
static hvt_device *dev;
static int rank, size, steps = 1000;
static int *counts; /* [size] images of each shard */
static FILE *json;
static bool json_begun;

static void must(hvt_status s)
{
    bench_must("bench_control", world, s);
}

static hvt_value chain(hvt_model *m, int layers)
{
    hvt_value x = hvt_input(m, 1, 1, 1);

    for (int i = 0; i < layers; i++)
        x = hvt_batchnorm(m, hvt_conv2d(m, x, 1, 1, 1, 0));
    return hvt_linear(m, x, 2);
}

static void step(hvt_model *m, hvt_distopt *d)
{
    size_t at = 0;

    must(hvt_distopt_begin(d, counts, size, 0x1p-20));
    for (int i = 1; i < m->nparam_tensors; i++, at = m->param[i - 1].offset) /* tensor by tensor */
        if (m->param[i].offset > at)
            must(hvt_distopt_on_grad(d, at, m->param[i].offset));
    must(hvt_distopt_on_grad(d, at, m->arena_count));
    must(hvt_distopt_step(d));
}

static void fill(hvt_model *m)
{
    for (size_t i = 0; i < m->arena_count; i++)
        m->grads[i] = i < m->step_stats_count ? 0 : 1;
}

/* Each step subtracts lr x mean gradient, which is 1, from every weight. */
static bool right(hvt_model *m, float first, int64_t done)
{
    const hvt_param *p = &m->param[0];
    float now = m->params[p->offset], want = first - (float)done * 0x1p-20f;

    return fabsf(now - want) < 1e-3f;
}

static int64_t messages(bool talk)
{
#if HVT_HAVE_MPI
    mpi_count n = mpi_counted((mpi_count){0});

    return talk ? n.talk : n.sent;
#else
    return 0 * talk;
#endif
}

static void report(int way, int layers, int buckets, const double *round, const double *said, bool ok)
{
    const char *name = ways[way].name;
    double median = 1e6 * round[ROUNDS / 2], least = 1e6 * round[0];

    layers = 2 * layers + 1;
    if (!ok) {
        printf("%6d %-16s wrong weights\n", layers, name);
        return;
    }
    printf("%6d %-16s %7d %10.2f %10.2f %9g %8g\n", layers, name, buckets, median, least, said[0], said[1]);
    if (!json)
        return;
    fprintf(json, "%s\n  {\"layers\": %d, \"comm\": \"%s\", \"buckets\": %d, \"median_us\": %.4g,",
            json_begun ? "," : "", layers, name, buckets, median);
    fprintf(json, " \"least_us\": %.4g, \"messages\": %g, \"control\": %g}", least, said[0], said[1]);
    json_begun = true;
}

static bool measure(int way, int layers, size_t bucket)
{
    const hvt_distopt_opts opts = {.bucket_bytes = bucket, .local_shards = 1, .update = ways[way].update};
    const hvt_optim_opts sgd = {0};
    double round[ROUNDS], said[2];
    const size_t *bytes;
    hvt_comm *c = NULL;
    hvt_model *m;
    hvt_optim *o;
    hvt_distopt *d;
    bool ok;
    float first;

    must(hvt_comm_open(ways[way].comm, world, dev, &c));
    must(hvt_model_create(dev, &m));
    must(hvt_model_plan(m, 1, chain(m, layers)));
    must(hvt_model_init(m, 1));
    must(hvt_optim_create(m, &sgd, &o));
    must(hvt_distopt_create(o, c, &opts, NULL, 0, &d));
    must(hvt_distopt_broadcast(d, 0));
    first = m->params[m->param[0].offset];
    fill(m);
    step(m, d);
    for (int i = 0; i < 2; i++)
        said[i] = -(double)messages(i);
    for (int r = 0; r < ROUNDS; r++) {
        double start = hvt__now();

        for (int i = 0; i < steps; i++) {
            fill(m);
            step(m, d);
        }
        round[r] = (hvt__now() - start) / steps;
    }
    for (int i = 0; i < 2; i++)
        said[i] = (said[i] + (double)messages(i)) / (ROUNDS * (double)steps);
    ok = right(m, first, 1 + (int64_t)ROUNDS * steps);
    must(hvt_world_allreduce(world, HVT_MAX, round, ROUNDS));
    must(hvt_world_allreduce(world, HVT_SUM, said, 2));
    hvt__sort(round, ROUNDS);
    if (rank == 0)
        report(way, layers, hvt_distopt_buckets(d, &bytes), round, said, ok);
    hvt_distopt_free(&d);
    hvt_optim_free(&o);
    hvt_model_free(&m);
    hvt_comm_close(&c);
    return ok;
}

static bool is_here(const char *comm)
{
    if (!strcmp(comm, "self"))
        return size == 1;
    if (!strcmp(comm, "shm"))
        return size > 1 && hvt_world_nodes(world) == 1;
    return size > 1 && !strcmp(hvt_world_name(world), "mpi");
}

int main(int argc, char **argv)
{
    static const int layers[] = {20, 53};
    static const size_t buckets[] = {HVT_BUCKET_ALL, 0};
    hvt_device_opts place = {.threads = 1};
    const char *path = NULL;
    const bench_row options[] = {{"--steps", "N", "of a round", .number = &steps, .least = 1},
                                 {"--json", "FILE", "the table goes there, too", &path}};
    bool ok = true;

    must(hvt_world_open(NULL, &world));
    bench_options("bench_control", world, options, HVT_LEN(options), argc, argv);
    rank = hvt_world_rank(world);
    size = hvt_world_size(world);
    counts = malloc((size_t)size * sizeof *counts);
    for (int i = 0; i < size; i++)
        counts[i] = 1;
    must(hvt_device_open("cpu", &place, &dev));
    if (rank == 0 && path) {
        char text[512];

        bench_describe(text, sizeof text, "bench_control", hvt_device_isa(dev), 1);
        if (!(json = fopen(path, "w")))
            must(HVT_FAIL(E_IO, "%s cannot be written", path));
        fprintf(json, "{\"run\": \"%s\", \"ranks\": %d,\n \"rows\": [", text, size);
    }
    if (rank == 0) {
        bench_header("bench_control", hvt_device_isa(dev), 1);
        printf("%d ranks, %d rounds of %d steps\n", size, ROUNDS, steps);
        for (size_t i = 0; i < HVT_LEN(columns); i++)
            printf("  %-9s  %s\n", columns[i].name, columns[i].meaning);
        printf("%6s %-16s %7s %10s %10s %9s %8s\n", columns[0].name, columns[1].name, columns[2].name,
               columns[3].name, columns[4].name, columns[5].name, columns[6].name);
    }
    for (size_t l = 0; l < HVT_LEN(layers); l++)
        for (size_t b = 0; b < HVT_LEN(buckets); b++)
            for (int way = 0; way < (int)HVT_LEN(ways); way++)
                if (is_here(ways[way].comm))
                    ok = measure(way, layers[l], buckets[b]) && ok;
    if (json && (fprintf(json, "\n ]}\n") < 0 || fclose(json)))
        must(HVT_FAIL(E_IO, "%s could not be written", path));
    free(counts);
    hvt_device_close(&dev);
    hvt_world_close(&world);
    return !ok;
}
