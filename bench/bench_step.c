/*
 * bench_step - the parts of a training step.
 *
 *     [mpirun -np N] bench_step [OPTION VALUE] ...        --help lists them
 *
 * Trains as hvtrain does: images drawn, read and normalised, forward, backward, exchange, update. The first
 * steps are not counted, nor the last ones, in which the other processes of a comparison may still be
 * running. Of the counted steps each rank takes the middle half by time; their means, summed over the phases,
 * give a step. At the end all ranks must have the same weights, or no time is printed.
 *
 * --ops: the time of every kind of device op, and of every shape of convolution with its share of the peak,
 * which is measured in the same run. The difference between the sum and a step is the library's own time. On
 * one thread also their bound, by the peak and the copy rate of a core.
 *
 * --pairs: each process also trains a model of its own, without exchange. Blocks of --steps steps together
 * and alone take turns and begin at the same time, so that both find the machine in the same state. tax is 1
 * - time of the slowest rank alone / together, median over the pairs; jitter is the tax of an exchange that
 * takes no time: alone, but each step as long as on its slowest rank; net is the tax against that. skew is
 * what exposed_comm would be with that exchange: the share of its time for which a rank alone is ahead of the
 * slowest in a step, on the rank where that share is largest.
 */
#define _GNU_SOURCE
#include "bench.h"
#include "base/trace.h"
#include "hvt/hvt.h"
#include "op_times.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    BEFORE = 3,
    AFTER = 1,
    STEPS_MOST = 10000,
    PAIRS_MOST = 1000,
    PHASES = HVT__PHASE_COUNT,
    TOTAL = HVT__STEP
};

static const struct {
    const char *name, *meaning;
} columns[] = {
    {"phase", "own time: without the phases nested in it; step: all of them together"},
    {"mean ms", "of the middle half of the steps, over ranks"},
    {"share", "of the step"},
    {"least ms", "of a rank"},
    {"most ms", "of a rank"},
};

/* A training: all ranks together, or each alone. */
typedef struct side {
    hvt_world *world;
    hvt_model *model;
    hvt_optim *optim;
    hvt_comm *comm;
    hvt_distopt *dist;
    hvt_loader *loader;
    int epoch;
} side;

static side together, alone;
static hvt_world *world; /* of together */
static hvt_device *dev;
static hvt_dataset *set;
static hvt_cores cores; /* of this rank */

static struct {
    const char *model, *stem, *comm, *update, *overlap, *wire, *json, *amp, *isa;
    int batch, bucket, steps, pairs, side, threads, ops, ema, tile;
} o = {.model = "resnet20",
       .stem = "imagenet",
       .comm = "auto",
       .update = "auto",
       .overlap = "off",
       .wire = "f32",
       .amp = "f32",
       .isa = "auto",
       .batch = 128,
       .side = 32,
       .steps = 20};

static const bench_row options[] = {
    {"--model", "NAME|FILE.pt2", "of hvtrain's zoo (resnet20), or a file of PyTorch", &o.model},
    {"--stem", "imagenet|cifar", "of a ResNet-18 to 152 (imagenet)", &o.stem, .one_of = true},
    {"--batch", "N", "images of a rank (128)", .number = &o.batch, .least = 1},
    {"--size", "N", "side of an image (32)", .number = &o.side, .least = 1},
    {"--steps", "N", "that count (20)", .number = &o.steps, .least = 1, .most = STEPS_MOST},
    {"--amp", "f32|bf16|f16", "type of activations (f32)", &o.amp, .one_of = true},
    {"--isa", "NAME", "instruction set (auto)", &o.isa},
    {"--tile", "4|2|1", "most outputs in each direction of Winograd's tiles; 1: direct (4)",
     .number = &o.tile, .one_of = true},
    {"--threads", "N", "of a rank (0: its share of the node)", .number = &o.threads, .most = HVT_MAX_THREADS},
    {"--comm", "NAME", "how gradients travel (auto)", &o.comm},
    {"--optimizer-state", "auto|replicated|sharded", "who updates what (auto)", &o.update, .one_of = true},
    {"--overlap", "off|worker", "who exchanges before backward ends (off)", &o.overlap, .one_of = true},
    {"--bucket", "KIB", "gradients sent together (0: 25 MiB, the first one 1 MiB)", .number = &o.bucket},
    {"--compression", "f32|f16|bf16|powersgd:R", "how gradients travel as numbers (f32)", &o.wire},
    {"--ema", "", "average the weights after each update", .flag = &o.ema},
    {"--json", "FILE", "the table of phases goes there, too", &o.json},
    {"--pairs", "N", "of blocks with and without the other ranks (0)", .number = &o.pairs,
     .most = PAIRS_MOST},
    {"--ops", "", "the time of each op of rank 0's device", .flag = &o.ops},
};

static double took[STEPS_MOST][PHASES]; /* s of each phase's own time; TOTAL: of the step */

static void must(hvt_status s)
{
    bench_must("bench_step", world, s);
}

static hvt_dtype type_named(const char *name)
{
    return !strcmp(name, "f16") ? HVT_F16 : !strcmp(name, "bf16") ? HVT_BF16 : HVT_F32;
}

/* ---- what is timed ---- */

static void open_device(void)
{
    const hvt_dataset_opts drawn = {
        .train = true, .image_size = o.side, .samples = (uint32_t)(8 * o.batch * hvt_world_size(world))};
    hvt_device_opts place = {.threads = cores.threads,
                             .cpus = cores.cpus,
                             .ncpus = cores.ncpus,
                             .yield = cores.crowded,
                             .conv_tile = o.tile,
                             .isa = o.isa};
    must(hvt_device_open("cpu", &place, &dev));
    if (o.ops && !hvt_world_rank(world))
        op_times_watch(dev);
    must(hvt_dataset_open("synth", &drawn, &set));
}

static void plan_file(hvt_model *m)
{
    hvt_pt2 *file;
    hvt_value logits;

    must(hvt_pt2_open(o.model, &file));
    must(hvt_pt2_build(file, m, hvt_input(m, o.side, o.side, 3), 10, &logits));
    must(hvt_model_plan(m, o.batch, logits));
    hvt_pt2_close(&file);
}

static void plan_model(hvt_model *m)
{
    const hvt_zoo_opts zoo = {.imagenet_stem = !strcmp(o.stem, "imagenet")};
    const char *dot = strrchr(o.model, '.');

    if (dot && !strcmp(dot, ".pt2"))
        plan_file(m);
    else
        must(hvt_model_plan(m, o.batch, hvt_zoo(m, o.model, hvt_input(m, o.side, o.side, 3), 10, &zoo)));
}

static void open_side(side *s, const char *comm)
{
    const hvt_optim_opts sgd = {.momentum = 0.9f, .ema.decay = o.ema ? 0.9999 : 0};
    hvt_distopt_opts exchange = {
        .bucket_bytes = HVT_BUCKET_DEFAULT, .first_bytes = 1 << 20, .local_shards = 1};
    hvt_loader_opts read = {.batch = o.batch,
                            .shards = hvt_world_size(s->world),
                            .first_shard = hvt_world_rank(s->world),
                            .shard_count = 1,
                            .shuffle = true,
                            .mean = {0.5f, 0.5f, 0.5f},
                            .std = {0.5f, 0.5f, 0.5f}};

    must(hvt_comm_open(comm, s->world, dev, &s->comm));
    must(hvt_model_create(dev, &s->model));
    must(hvt_model_set_type(s->model, type_named(o.amp)));
    plan_model(s->model);
    must(hvt_model_init(s->model, 1));
    must(hvt_optim_create(s->model, &sgd, &s->optim));
    if (o.bucket) {
        exchange.bucket_bytes = (size_t)o.bucket << 10;
        exchange.first_bytes = 0;
    }
    exchange.powersgd = strncmp(o.wire, "powersgd:", 9) ? 0 : atoi(o.wire + 9);
    exchange.wire = exchange.powersgd ? HVT_F32 : type_named(o.wire);
    exchange.update = s == &alone || !strcmp(o.update, "auto") ? HVT_UPDATE_AUTO
                      : !strcmp(o.update, "sharded")           ? HVT_UPDATE_SHARDED
                                                               : HVT_UPDATE_REPLICATED;
    must(hvt_distopt_create(s->optim, s->comm, &exchange, NULL, 0, &s->dist));
    must(hvt_distopt_broadcast(s->dist, 0));
    if (!strcmp(o.overlap, "worker") && s == &together)
        must(hvt_comm_overlap(s->comm, &(hvt_overlap){.yield = true}));
    read.order = hvt_model_order(s->model);
    read.type = hvt_model_input_type(s->model);
    read.channels = hvt_model_input_channels(s->model);
    must(hvt_loader_open(set, dev, &read, &s->loader));
    must(hvt_loader_rewind(s->loader, 0, 0));
}

static void load(side *s, hvt_batch *b)
{
    bool end;

    must(hvt_loader_next(s->loader, b, &end));
    if (end) {
        must(hvt_loader_rewind(s->loader, ++s->epoch, 0));
        must(hvt_loader_next(s->loader, b, &end));
    }
}

static void train(side *s, const hvt_batch *b)
{
    must(hvt_distopt_begin(s->dist, b->shard_counts, b->shards, 0.001));
    must(hvt_model_forward(s->model, b, true));
    must(hvt_model_backward(s->model, hvt_distopt_on_grad, s->dist));
    must(hvt_distopt_step(s->dist));
}

static void step(side *s)
{
    hvt_batch b;

    load(s, &b);
    train(s, &b);
}

static void timed_step(side *s, double *ret_took)
{
    double before[PHASES], after[PHASES], total = 0;

    hvt__trace_seconds(before);
    step(s);
    hvt__trace_seconds(after);
    for (int i = 0; i < PHASES; i++)
        total += ret_took[i] = after[i] - before[i];
    ret_took[TOTAL] = total;
}

/* Phases of a step that leave events. */
static int count_phases(void)
{
    int64_t count, lost;

    must(hvt__trace_open(1 << 16));
    hvt__trace_enable(true);
    step(&together);
    hvt__trace_enable(false);
    hvt__trace_take(NULL, 0, &count, &lost);
    hvt__trace_close();
    return (int)count;
}

/* The cost of a phase without a listener. */
static double phase_seconds(void)
{
    enum { PAIRS = 100000 };
    double start = hvt__now();

    for (int i = 0; i < PAIRS; i++) {
        hvt__trace_begin(HVT__OTHER, -1);
        hvt__trace_end();
    }
    return (hvt__now() - start) / PAIRS;
}

/* ---- what is told ---- */

typedef struct result {
    double mean[PHASES], least[PHASES], most[PHASES]; /* ms of the middle half's steps, over ranks */
    double median;                                    /* ms of a step, on the slowest rank */
    double img_s;                                     /* all ranks, all steps that count */
    double exposed;                                   /* share of time, on the rank with the largest */
    double trace_us;                                  /* of a step, for counting its phases */
    int phases;
} result;

static int by_total(const void *a, const void *b)
{
    double x = ((const double *)a)[TOTAL], y = ((const double *)b)[TOTAL];

    return (x > y) - (x < y);
}

/* Sums of this rank's steps, then of all ranks'. */
static void sum_up(double exposed, result *r)
{
    int first = o.steps / 4, end = o.steps - o.steps / 4;
    double all = 0;

    for (int k = 0; k < o.steps; k++)
        all += took[k][TOTAL];
    qsort(took, (size_t)o.steps, sizeof *took, by_total);
    for (int i = 0; i < PHASES; i++) {
        r->mean[i] = 0;
        for (int k = first; k < end; k++)
            r->mean[i] += 1e3 * took[k][i] / (end - first);
        r->least[i] = r->most[i] = r->mean[i];
    }
    r->median = 1e3 * took[o.steps / 2][TOTAL];
    r->exposed = exposed / all;
    must(hvt_world_allreduce(world, HVT_SUM, r->mean, PHASES));
    must(hvt_world_allreduce(world, HVT_MIN, r->least, PHASES));
    must(hvt_world_allreduce(world, HVT_MAX, r->most, PHASES));
    must(hvt_world_allreduce(world, HVT_MAX, &r->median, 1));
    must(hvt_world_allreduce(world, HVT_MAX, &r->exposed, 1));
    must(hvt_world_allreduce(world, HVT_MAX, &all, 1));
    for (int i = 0; i < PHASES; i++)
        r->mean[i] /= hvt_world_size(world);
    r->img_s = (double)o.batch * hvt_world_size(world) * o.steps / all;
}

static bool same_weights(void)
{
    uint64_t hash;
    int64_t least, most;

    must(hvt_model_hash(together.model, &hash)); /* E_DIVERGED: weights that are not finite */
    least = most = (int64_t)hash;
    must(hvt_world_allreduce_i64(world, HVT_MIN, &least, 1));
    must(hvt_world_allreduce_i64(world, HVT_MAX, &most, 1));
    return least == most;
}

static void print_result(const result *r)
{
    const size_t *bytes;

    bench_header("bench_step", hvt_device_isa(dev), hvt_device_threads(dev));
    printf("%s, batch %d, %d ranks, comm %s, overlap %s, wire %s, %.2f MiB a step, %s update, %d buckets, %d "
           "steps\n",
           o.model, o.batch, hvt_world_size(world), hvt_comm_name(together.comm), o.overlap, o.wire,
           (double)hvt_distopt_bytes(together.dist) / (1 << 20),
           hvt_distopt_update(together.dist) == HVT_UPDATE_SHARDED ? "sharded" : "replicated",
           hvt_distopt_buckets(together.dist, &bytes), o.steps);
    for (size_t i = 0; i < HVT_LEN(columns); i++)
        printf("  %-8s  %s\n", columns[i].name, columns[i].meaning);
    printf("%-10s %10s %8s %10s %10s\n", columns[0].name, columns[1].name, columns[2].name, columns[3].name,
           columns[4].name);
    for (int i = 0; i < PHASES; i++)
        if (r->most[i] > 0)
            printf("%-10s %10.3f %7.2f%% %10.3f %10.3f\n", hvt__phase_name((hvt__phase)i), r->mean[i],
                   100 * r->mean[i] / r->mean[TOTAL], r->least[i], r->most[i]);
    printf("median step %.3f ms, %.1f img/s, exposed_comm %.2f%%; counting %d phases takes %.2f us a step\n",
           r->median, r->img_s, 100 * r->exposed, r->phases, r->trace_us);
}

/* Convolutions multiply pairs of bf16 if the set has them, otherwise floats. */
static void print_ops(void)
{
    const double pairs = bench_peak_bf16(hvt_device_isa(dev)), floats = bench_peak(hvt_device_isa(dev));

    op_times_print(floats > pairs || type_named(o.amp) != HVT_BF16 ? floats : pairs,
                   hvt_device_threads(dev) == 1 ? bench_copy((size_t)256 << 20) : 0);
}

static void write_result(const result *r)
{
    FILE *f = fopen(o.json, "w");
    char text[512];

    if (!f)
        must(HVT_FAIL(E_IO, "%s cannot be written", o.json));
    bench_describe(text, sizeof text, "bench_step", hvt_device_isa(dev), hvt_device_threads(dev));
    fprintf(f, "{\"run\": \"%s\", \"model\": \"%s\", \"batch\": %d, \"ranks\": %d, \"comm\": \"%s\",\n", text,
            o.model, o.batch, hvt_world_size(world), hvt_comm_name(together.comm));
    fprintf(
        f,
        " \"steps\": %d, \"median_ms\": %.6g, \"img_s\": %.6g, \"exposed_comm\": %.6g, \"trace_us\": %.4g,\n"
        " \"phases\": {",
        o.steps, r->median, r->img_s, r->exposed, r->trace_us);
    for (int i = 0; i < PHASES; i++)
        fprintf(f, "%s\n  \"%s\": {\"mean_ms\": %.6g, \"least_ms\": %.6g, \"most_ms\": %.6g}", i ? "," : "",
                hvt__phase_name((hvt__phase)i), r->mean[i], r->least[i], r->most[i]);
    if (fprintf(f, "\n }}\n") < 0 || fclose(f))
        must(HVT_FAIL(E_IO, "%s could not be written", o.json));
}

/* ---- together and alone ---- */

/* Seconds of a block on the slowest rank, and the sum of each step's slowest. Adds this rank's phases, in ms,
 * and the seconds that it is ahead to the totals. */
static double block(side *s, double *phases, double *ahead, double *ret_in_step)
{
    double all = 0, total[STEPS_MOST];

    must(hvt_world_barrier(world));
    for (int k = 0; k < o.steps; k++) {
        timed_step(s, took[k]);
        all += total[k] = took[k][TOTAL];
        for (int i = 0; i < PHASES; i++)
            phases[i] += 1e3 * took[k][i];
    }
    must(hvt_world_allreduce(world, HVT_MAX, &all, 1));
    must(hvt_world_allreduce(world, HVT_MAX, total, o.steps));
    *ret_in_step = 0;
    for (int k = 0; k < o.steps; k++) {
        *ret_in_step += total[k];
        *ahead += total[k] - took[k][TOTAL];
    }
    return all;
}

static void compare(void)
{
    static double tax[PAIRS_MOST], jitter[PAIRS_MOST], net[PAIRS_MOST];
    double phases[2][PHASES] = {{0}}, ahead[2] = {0, 0}, in_steps = 0, exposed, skew,
           n = (double)o.pairs * o.steps * hvt_world_size(world);

    hvt_distopt_take_exposed(together.dist);
    for (int p = 0; p < o.pairs; p++) {
        double seconds[2], in_step[2];
        for (int i = 0; i < 2; i++) {
            int who = (p + i) % 2;
            seconds[who] = block(who ? &alone : &together, phases[who], &ahead[who], &in_step[who]);
        }
        in_steps += in_step[1];
        tax[p] = 1 - seconds[1] / seconds[0];
        jitter[p] = 1 - seconds[1] / in_step[1];
        net[p] = 1 - in_step[1] / seconds[0];
    }
    skew = 100 * ahead[1] / in_steps;
    must(hvt_world_allreduce(world, HVT_MAX, &skew, 1));
    exposed = 1e5 * hvt_distopt_take_exposed(together.dist) / phases[0][TOTAL];
    must(hvt_world_allreduce(world, HVT_MAX, &exposed, 1));
    must(hvt_world_allreduce(world, HVT_SUM, phases[0], PHASES));
    must(hvt_world_allreduce(world, HVT_SUM, phases[1], PHASES));
    hvt__sort(tax, (size_t)o.pairs);
    hvt__sort(jitter, (size_t)o.pairs);
    hvt__sort(net, (size_t)o.pairs);
    if (hvt_world_rank(world))
        return;
    printf("%d pairs of %d steps: tax %.2f%%, least %.2f%%, most %.2f%%; jitter %.2f%%, net %.2f%%; "
           "exposed_comm %.2f%%, skew %.2f%%\n",
           o.pairs, o.steps, 100 * tax[o.pairs / 2], 100 * tax[0], 100 * tax[o.pairs - 1],
           100 * jitter[o.pairs / 2], 100 * net[o.pairs / 2], exposed, skew);
    printf("%-10s %11s %10s %9s\n", "phase", "together ms", "alone ms", "more");
    for (int i = 0; i < PHASES; i++)
        if (phases[0][i] + phases[1][i] > 0)
            printf("%-10s %11.3f %10.3f %+8.2f%%\n", hvt__phase_name((hvt__phase)i), phases[0][i] / n,
                   phases[1][i] / n, 100 * (phases[0][i] - phases[1][i]) / phases[1][TOTAL]);
}

static void close_side(side *s)
{
    hvt_loader_close(&s->loader);
    hvt_distopt_free(&s->dist);
    hvt_optim_free(&s->optim);
    hvt_model_free(&s->model);
    hvt_comm_close(&s->comm);
}

/* ---- the command ---- */

static void close_all(void)
{
    close_side(&alone);
    close_side(&together);
    hvt_dataset_close(&set);
    hvt_device_close(&dev);
    hvt_world_close(&alone.world);
    hvt_world_close(&world);
}

/* Times the steps together, on all ranks, and the pairs. */
static bool time_steps(void)
{
    static result r;
    double exposed;
    bool right;

    open_device();
    open_side(&together, o.comm);
    if (o.pairs > 0) {
        must(hvt_world_split(world, hvt_world_rank(world), 0, &alone.world));
        open_side(&alone, "self");
        for (int i = 0; i < BEFORE; i++)
            step(&alone);
    }
    for (int i = 1; i < BEFORE; i++)
        step(&together);
    r.phases = count_phases();
    r.trace_us = 1e6 * r.phases * phase_seconds();
    hvt_distopt_take_exposed(together.dist);
    op_times_reset();
    for (int i = 0; i < o.steps; i++)
        timed_step(&together, took[i]);
    exposed = hvt_distopt_take_exposed(together.dist);
    if (o.ops)
        op_times_stop(o.steps);
    for (int i = 0; i < AFTER; i++)
        step(&together);
    right = same_weights();
    sum_up(exposed, &r);
    if (right && !hvt_world_rank(world)) {
        print_result(&r);
        if (o.ops)
            print_ops();
        if (o.json)
            write_result(&r);
    }
    if (right && o.pairs > 0)
        compare();
    if (!right && !hvt_world_rank(world))
        printf("bench_step: the ranks' weights differ\n");
    return right;
}

int main(int argc, char **argv)
{
    bool right;
    int rank;
    char more;

    must(hvt_world_open(NULL, &world));
    bench_options("bench_step", world, options, HVT_LEN(options), argc, argv);
    if (sscanf(o.wire, "powersgd:%d%c", &rank, &more) == 1 ? rank < 1
                                                           : !type_named(o.wire) && strcmp(o.wire, "f32"))
        bench_refuse("bench_step", world, "--compression takes f32, f16, bf16 or powersgd:R, got '%s'",
                     o.wire);
    must(hvt_world_cores(world, o.threads, &cores));
    together.world = world;
    right = time_steps();
    close_all();
    return !right;
}
