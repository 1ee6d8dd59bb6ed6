/*
 * bench_save - the cost of checkpoints for a run.
 *
 *     [mpirun -np N] bench_save DIR [OPTION VALUE] ...        --help lists them
 *
 * Trains as hvtrain does. First each part of a save is timed separately, between two updates. Then come saves
 * as in hvtrain: a copy is made between two updates, and a thread of low priority writes it to DIR during the
 * next ones; the updates from the copy to the end of the writing are compared with as many without a save, in
 * turn. Last, everything is loaded again and must equal what was saved, or no time is printed.
 *
 * The cost of one save per minute is given twice: as measured beside training, and as the sum of the copy,
 * for which all ranks wait, and the processor time that writing takes from rank 0 if no core is idle.
 */
#include "bench.h"
#include "base_impl.h"
#include "hvt/hvt.h"
#include "train/checkpoint/snapshot.h"
#include "train/checkpoint/writer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

enum { ROUNDS_MOST = 100 };

static struct {
    const char *model, *stem, *isa;
    int batch, side, rounds, beside, threads;
} o = {.model = "resnet50",
       .stem = "imagenet",
       .isa = "auto",
       .batch = 128,
       .side = 32,
       .rounds = 5,
       .beside = 10,
       .threads = 1};

static const char *folder;

static const bench_row options[] = {
    {"DIR", "", "where the checkpoints go", &folder},
    {"--model", "NAME", "of hvtrain's zoo (resnet50)", &o.model},
    {"--stem", "imagenet|cifar", "of a ResNet-18 to 152 (imagenet)", &o.stem, .one_of = true},
    {"--batch", "N", "images of a rank (128)", .number = &o.batch, .least = 1},
    {"--size", "N", "side of an image (32)", .number = &o.side, .least = 1},
    {"--rounds", "N", "of everything (5)", .number = &o.rounds, .least = 1, .most = ROUNDS_MOST},
    {"--beside", "N", "updates from a copy until its writing should have ended (10)", .number = &o.beside,
     .least = 1},
    {"--isa", "NAME", "instruction set (auto)", &o.isa},
    {"--threads", "N", "of a rank (1)", .number = &o.threads, .least = 1, .most = HVT_MAX_THREADS},
};

static hvt_world *world;
static hvt_device *dev;
static hvt_dataset *set;
static hvt_loader *loader;
static hvt_model *model;
static hvt_optim *optim;
static hvt_comm *comm;
static hvt_distopt *dist;
static hvt__snapshot *snapshot;

static void must(hvt_status s)
{
    bench_must("bench_save", world, s);
}

/* ---- the run ---- */

static void open_run(void)
{
    int ranks = hvt_world_size(world);
    const hvt_dataset_opts drawn = {
        .train = true, .image_size = o.side, .samples = (uint32_t)(4 * o.batch * ranks)};
    const hvt_optim_opts sgd = {.momentum = 0.9f};
    const hvt_zoo_opts zoo = {.imagenet_stem = !strcmp(o.stem, "imagenet")};
    const hvt_distopt_opts exchange = {
        .bucket_bytes = HVT_BUCKET_DEFAULT, .first_bytes = 1 << 20, .local_shards = 1};
    hvt_cores cores;

    must(hvt_world_cores(world, o.threads, &cores));
    const hvt_device_opts place = {.threads = cores.threads,
                                   .cpus = cores.cpus,
                                   .ncpus = cores.ncpus,
                                   .yield = cores.crowded,
                                   .isa = o.isa};
    must(hvt_device_open("cpu", &place, &dev));
    must(hvt_dataset_open("synth", &drawn, &set));
    must(hvt_comm_open("auto", world, dev, &comm));
    must(hvt_model_create(dev, &model));
    must(hvt_model_plan(model, o.batch,
                        hvt_zoo(model, o.model, hvt_input(model, o.side, o.side, 3), 10, &zoo)));
    must(hvt_model_init(model, 1));
    must(hvt_optim_create(model, &sgd, &optim));
    must(hvt_distopt_create(optim, comm, &exchange, NULL, 0, &dist));
    must(hvt_distopt_broadcast(dist, 0));
    const hvt_loader_opts read = {.batch = o.batch,
                                  .shards = ranks,
                                  .first_shard = hvt_world_rank(world),
                                  .shard_count = 1,
                                  .mean = {0.5f, 0.5f, 0.5f},
                                  .std = {0.5f, 0.5f, 0.5f},
                                  .order = hvt_model_order(model),
                                  .type = hvt_model_input_type(model),
                                  .channels = hvt_model_input_channels(model)};
    must(hvt_loader_open(set, dev, &read, &loader));
    must(hvt_loader_rewind(loader, 0, 0));
}

static void step(void)
{
    hvt_batch b;
    bool end;

    must(hvt_loader_next(loader, &b, &end));
    if (end) {
        must(hvt_loader_rewind(loader, 0, 0));
        must(hvt_loader_next(loader, &b, &end));
    }
    must(hvt_distopt_begin(dist, b.shard_counts, b.shards, 0.001));
    must(hvt_model_forward(model, &b, true));
    must(hvt_model_backward(model, hvt_distopt_on_grad, dist));
    must(hvt_distopt_step(dist));
}

/* ---- what is timed ---- */

typedef struct clocks {
    double wall, cpu; /* cpu: of this thread */
} clocks;

static clocks now(void)
{
    struct timespec cpu;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &cpu);
    return (clocks){hvt__now(), (double)cpu.tv_sec + 1e-9 * (double)cpu.tv_nsec};
}

typedef struct row {
    const char *name, *meaning;
    double wall[ROUNDS_MOST], cpu[ROUNDS_MOST];
    int n;
} row;

static row steps = {"step", "an update"}, copies = {"copy", "state gathered on rank 0, and copied there"},
           writes = {"write", "rank 0: layouts, hashes, files, sync (at the thread's priority: longer)"},
           plain = {"plain", "--beside updates"},
           saving = {"saving", "as many with a copy before them, and its writing beside them"},
           thread = {"thread", "how long that writing took"},
           loads = {"load", "rank 0: the newest generation, checked, into model and optimizer"};

static void add(row *r, clocks since)
{
    clocks t = now();

    r->wall[r->n] = 1e3 * (t.wall - since.wall);
    r->cpu[r->n++] = 1e3 * (t.cpu - since.cpu);
}

static void copy(int nth)
{
    const hvt_progress p = {.steps = nth, .top1 = -1};

    must(hvt_distopt_gather(dist, 0));
    if (hvt_world_rank(world) == 0)
        must(hvt__snapshot_take(&snapshot, model, optim, &p));
    must(hvt_world_barrier(world));
}

static hvt_status write_copy(void *ctx)
{
    (void)ctx;
    return hvt__checkpoint_write(folder, "bench_save", "bench_save", snapshot);
}

static void round_of_parts(int nth)
{
    clocks start = now();

    step();
    add(&steps, start);
    start = now();
    copy(nth);
    add(&copies, start);
    start = now();
    if (hvt_world_rank(world) == 0)
        must(write_copy(NULL));
    add(&writes, start);
    must(hvt_world_barrier(world));
}

static void updates(row *r, bool save, int nth)
{
    hvt__writer writer = {0};
    clocks start = now();

    if (save)
        copy(nth);
    if (save && hvt_world_rank(world) == 0)
        hvt__writer_start(&writer, write_copy, NULL);
    for (int i = 0; i < o.beside; i++)
        step();
    must(hvt__writer_wait(&writer));
    must(hvt_world_barrier(world));
    add(r, start);
    if (save) {
        thread.wall[thread.n] = 1e3 * writer.seconds;
        thread.cpu[thread.n++] = 0;
    }
}

/* Alternates the order from round to round. */
static void round_beside(int nth)
{
    for (int second = 0; second < 2; second++) {
        bool save = (nth + second) % 2;
        updates(save ? &saving : &plain, save, nth);
    }
}

/* Loads into the model and the optimizer that were saved. */
static void load(void)
{
    char path[4096];
    hvt_progress p;
    uint64_t before, after;
    clocks start;

    copy(0);
    if (hvt_world_rank(world) == 0)
        must(write_copy(NULL));
    must(hvt_model_hash(model, &before));
    snprintf(path, sizeof path, "%s/bench_save" HVT_CHECKPOINT_END, folder);
    for (int i = 0; i < o.rounds && hvt_world_rank(world) == 0; i++) {
        start = now();
        must(hvt__checkpoint_read(path, model, optim, false, &p));
        add(&loads, start);
        free(p.options);
    }
    must(hvt_world_barrier(world));
    must(hvt_model_hash(model, &after));
    if (before != after)
        must(HVT_FAIL(E_DIVERGED, "what was loaded is not what was saved"));
    must(hvt_distopt_broadcast(dist, 0));
}

/* ---- what is told ---- */

static double median(double *x, int n)
{
    hvt__sort(x, (size_t)n);
    return x[n / 2];
}

static void print_row(row *r)
{
    double wall = median(r->wall, r->n), cpu = median(r->cpu, r->n); /* sorts */

    printf("%-6s %10.1f %10.1f %10.1f   %s\n", r->name, wall, r->wall[0], cpu, r->meaning);
}

/* Call before rows are sorted. */
static double median_beside(void)
{
    double more[ROUNDS_MOST];

    for (int i = 0; i < o.rounds; i++)
        more[i] = saving.wall[i] - plain.wall[i];
    return median(more, o.rounds);
}

static void print_all(void)
{
    double more = median_beside();

    bench_header("bench_save", hvt_device_isa(dev), hvt_device_threads(dev));
    printf("%s, batch %d, %d ranks, %.1f MiB of parameters; ms\n", o.model, o.batch, hvt_world_size(world),
           (double)(model->arena_count * sizeof(float)) / (1 << 20));
    printf("%-6s %10s %10s %10s\n", "", "median", "least", "processor");
    for (row **r = (row *[]){&steps, &copies, &writes, &plain, &saving, &thread, &loads, NULL}; *r; r++)
        print_row(*r);
    printf("the step with a copy takes %.2f of another\n",
           1 + median(copies.wall, copies.n) / median(steps.wall, steps.n));
    printf("a save in a minute takes %.2f %% of it: %.0f ms more beside training, median of %d\n", more / 600,
           more, o.rounds);
    printf("by its parts %.2f %%: the copy, and the processor time of writing\n",
           (median(copies.wall, copies.n) + median(writes.cpu, writes.n)) / 600);
}

int main(int argc, char **argv)
{
    must(hvt_world_open(NULL, &world));
    bench_options("bench_save", world, options, HVT_LEN(options), argc, argv);
    if (!folder)
        bench_refuse("bench_save", world, "expected a folder for the checkpoints: bench_save DIR");
    if (hvt_world_rank(world) == 0)
        mkdir(folder, 0777); /* the save reports an error */
    open_run();
    step();
    round_of_parts(1); /* the first copy allocates */
    steps.n = copies.n = writes.n = 0;
    for (int i = 0; i < o.rounds; i++)
        round_of_parts(2 + i);
    for (int i = 0; i < o.rounds; i++)
        round_beside(i);
    load();
    if (hvt_world_rank(world) == 0)
        print_all();
    hvt_loader_close(&loader);
    hvt_distopt_discard(&dist);
    hvt_optim_free(&optim);
    hvt__snapshot_free(&snapshot);
    hvt_comm_close(&comm);
    hvt_model_free(&model);
    hvt_dataset_close(&set);
    hvt_device_close(&dev);
    hvt_world_close(&world);
    return 0;
}
