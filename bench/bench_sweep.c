/*
 * bench_sweep - the effect of the fusion buffer's size on a step, for a given network's gradients.
 *
 *     mpirun -np 2 bench_sweep --shapes bench/shapes/vgg16.txt [OPTION VALUE] ...        --help lists them
 *
 * A shape list has a network's layers in forward order, one per line: name, elements, share of its arithmetic
 * in percent. A line "# backward MS" gives the milliseconds of its backward pass, unless --backward does. No
 * arithmetic is done: a step passes on the layers' gradients in the order of a backward pass of that length,
 * each when its share of the arithmetic would be over, and sleeps meanwhile; then it waits for the sums and
 * updates, as a training step does. The time beyond the backward pass is exchange and update that was not
 * hidden behind arithmetic, with a processor free for them. Without a backward pass (--backward 0) nothing
 * can be hidden, and that column is left out. Sizes take turns, in ascending order; gradients are such that
 * every order of addition gives the same weights, which are checked at the end: a wrong result prints no
 * speed.
 */
#include "bench.h"
#include "base_impl.h"
#include "hvt/train.h"
#include "model/layers.h"
#include "optim_impl.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { LAYERS_MOST = 1000, SIZES_MOST = 16, ROUNDS_MOST = 400, LEVELS = 16 /* values of a gradient */ };

static const struct {
    const char *name, *meaning;
} columns[] = {
    {"size", "of the fusion buffer: --bucket; 0: one message a layer"},
    {"buckets", "messages of a step"},
    {"median ms", "of a step on the slowest rank, over the rounds; its quartiles beside it"},
    {"exposed ms", "median less the backward pass: exchange and update that were not hidden"},
};

typedef struct shape {
    char name[64];
    size_t elements;
    double share;
} shape;

typedef struct size_tried {
    char name[16];
    size_t bytes;
    int buckets;
    double round[ROUNDS_MOST];
} size_tried;

static hvt_world *world;
static hvt_device *dev;
static int rank, ranks, rounds;
static shape list[LAYERS_MOST];
static int layers, sizes;
static size_tried size[SIZES_MOST];
static double backward = -1; /* s; -1: not given */
static int *counts;          /* [ranks] images of each shard */
static const float lr = 0.125f;

static void must(hvt_status s)
{
    bench_must("bench_sweep", world, s);
}

#define refuse(...) bench_refuse("bench_sweep", world, __VA_ARGS__)

/* ---- a network that is nothing but its gradients --------------------------------------------------- */

static void read_shapes(const char *path)
{
    FILE *f = fopen(path, "r");
    char line[256];
    double ms;

    if (!f)
        must(HVT_FAIL(E_IO, "%s cannot be read", path));
    while (fgets(line, sizeof line, f)) {
        shape *s = &list[layers];

        if (backward < 0 && sscanf(line, "# backward %lf", &ms) == 1 && ms >= 0)
            backward = 1e-3 * ms;
        if (*line == '#' || *line == '\n')
            continue;
        if (layers == LAYERS_MOST || sscanf(line, "%63s %zu %lf", s->name, &s->elements, &s->share) != 3 ||
            !s->elements || s->elements > INT32_MAX || !(s->share >= 0 && s->share <= 100))
            refuse("%s: expected at most %d lines of name, elements and share, got '%.*s'", path, LAYERS_MOST,
                   (int)strcspn(line, "\n"), line);
        layers++;
    }
    fclose(f);
    if (!layers)
        refuse("%s holds no layer", path);
    if (backward < 0)
        refuse("%s has no line '# backward MS', and --backward is not given", path);
}

static hvt_status plan_shape(hvt_model *m, hvt_layer *l)
{
    const shape *s = &list[l->size];
    hvt_param p = {.ndim = 1,
                   .dim = {(int)s->elements},
                   .count = s->elements,
                   .role = HVT_ROLE_WEIGHT,
                   .init = HVT_INIT_FILL};

    return hvt__param_add(m, l, 0, &p, "weight");
}

static const hvt_layer_ops only_shape = {.name = "shape", .plan = plan_shape, .hash = hvt__hash_no_arguments};

static void open_model(hvt_model **ret_model)
{
    hvt_value x;

    must(hvt_model_create(dev, ret_model));
    x = hvt_input(*ret_model, 1, 1, 2);
    for (int i = 0; i < layers; i++) {
        hvt_layer *l = hvt__layer_begin(*ret_model, &only_shape, x);

        if (!l)
            must(HVT_FAIL(E_FORMAT, "layer %d cannot be built", i));
        l->size = i;
        x = hvt__layer_end(*ret_model, l, 1, 1, 2);
    }
    must(hvt_model_plan(*ret_model, 1, x));
    must(hvt_model_init(*ret_model, 1));
}

/* ---- a step ---------------------------------------------------------------------------------------- */

static float gradient(size_t i, int of)
{
    return (float)((i + (size_t)of) % LEVELS) * 0x1p-10f;
}

static void sleep_until(double when)
{
    double left = when - hvt__now();
    struct timespec t = {.tv_sec = (time_t)left, .tv_nsec = (long)(1e9 * (left - floor(left)))};

    if (left > 0)
        nanosleep(&t, NULL);
}

/* Seconds of one step, on this rank. */
static double step(hvt_model *m, hvt_distopt *d)
{
    size_t end[LAYERS_MOST + 1], at = 0;
    int n = hvt__layer_ends(m, end);
    double start, share = 0, all = 0;

    for (size_t i = m->step_stats_count; i < m->arena_count; i++)
        m->grads[i] = gradient(i, rank);
    memset(m->grads, 0, m->step_stats_count * sizeof *m->grads);
    for (int i = 0; i < layers; i++)
        all += list[i].share;
    must(hvt_distopt_begin(d, counts, ranks, (double)lr));
    must(hvt_world_barrier(world));
    start = hvt__now();
    for (int i = 0; i < n; at = end[i++]) { /* the arena's first layer is the list's last */
        share += list[layers - 1 - i].share;
        sleep_until(start + backward * (all > 0 ? share / all : (double)(i + 1) / n));
        must(hvt_distopt_on_grad(d, at, end[i]));
    }
    must(hvt_distopt_step(d));
    return hvt__now() - start;
}

/* True if every weight has the value after `steps` mean gradients, from 0. */
static bool right(const hvt_model *m, int steps)
{
    double mean[LEVELS] = {0};

    for (size_t i = 0; i < LEVELS; i++)
        for (int r = 0; r < ranks; r++)
            mean[i] += (double)gradient(i, r) / ranks;
    for (int p = 0; p < m->nparam_tensors; p++)
        for (size_t i = m->param[p].offset; i < m->param[p].offset + m->param[p].elements; i++) {
            double want = -(double)lr * steps * mean[i % LEVELS];

            if (!(fabs((double)m->params[i] - want) <= 1e-3 * fabs(want)))
                return false;
        }
    return true;
}

/* ---- all of them ----------------------------------------------------------------------------------- */

static int by_bytes(const void *a, const void *b)
{
    const size_t x = ((const size_tried *)a)->bytes, y = ((const size_tried *)b)->bytes;

    return (x > y) - (x < y);
}

static void read_sizes(const char *text)
{
    hvt_options opts;

    hvt_options_default(&opts);
    while (*text) {
        size_tried *s = &size[sizes];
        int len = (int)strcspn(text, ",");

        if (sizes++ == SIZES_MOST)
            refuse("--sizes takes at most %d sizes", SIZES_MOST);
        if (len >= (int)sizeof s->name)
            refuse("--sizes: %.*s is no size", len, text);
        snprintf(s->name, sizeof s->name, "%.*s", len, text);
        if (hvt_options_set(&opts, "bucket", s->name) != HVT_OK)
            refuse("--sizes: %s", hvt_last_error());
        s->bytes = opts.bucket;
        text += len + (text[len] == ',');
    }
    qsort(size, (size_t)sizes, sizeof *size, by_bytes);
    for (int i = 1; i < sizes; i++)
        if (size[i].bytes == size[i - 1].bytes)
            refuse("--sizes: %s and %s are the same size", size[i - 1].name, size[i].name);
}

/* Runs rounds over all sizes until the time is over; returns the number of steps. */
static int run_rounds(hvt_model *m, hvt_distopt *d, double seconds)
{
    double began = hvt__now();
    const size_t *bytes;
    int64_t more = 1;
    int steps = 0;

    for (rounds = -1; more; rounds++) { /* one to warm up */
        for (int k = 0; k < sizes; k++) {
            size_tried *s = &size[(k + rounds + sizes) % sizes];
            double took;

            must(hvt_distopt_replan(d, s->bytes, 0));
            took = step(m, d);
            steps++;
            must(hvt_world_allreduce(world, HVT_MAX, &took, 1));
            s->round[rounds < 0 ? 0 : rounds] = took;
            s->buckets = hvt_distopt_buckets(d, &bytes);
        }
        more = rounds + 2 < ROUNDS_MOST && (rounds < 2 || hvt__now() - began < seconds);
        must(hvt_world_broadcast(world, &more, sizeof more, 0));
    }
    return steps;
}

static double quantile(const size_tried *s, int quarters)
{
    return 1e3 * s->round[((rounds - 1) * quarters + (quarters > 2 ? 3 : 0)) / 4];
}

static void report(FILE *json)
{
    for (int i = 0; i < sizes; i++) {
        size_tried *s = &size[i];
        double median, exposed;

        hvt__sort(s->round, (size_t)rounds);
        median = quantile(s, 2);
        exposed = median - 1e3 * backward;
        printf("%-8s %8d %10.3f %10.3f-%-10.3f", s->name, s->buckets, median, quantile(s, 1), quantile(s, 3));
        if (backward > 0)
            printf(" %10.3f", exposed);
        printf("\n");
        if (!json)
            continue;
        fprintf(json, "%s\n  {\"size\": \"%s\", \"buckets\": %d, \"median_ms\": %.5g,", i ? "," : "", s->name,
                s->buckets, median);
        fprintf(json, " \"quartiles_ms\": [%.5g, %.5g], \"default\": %s", quantile(s, 1), quantile(s, 3),
                s->bytes == HVT_BUCKET_DEFAULT ? "true" : "false");
        if (backward > 0)
            fprintf(json, ", \"exposed_ms\": %.5g", exposed);
        fprintf(json, "}");
    }
}

static struct {
    const char *shapes, *comm, *wire, *update, *sizes, *json;
    double backward, seconds;
} a = {.comm = "auto",
       .wire = "f32",
       .update = "auto",
       .backward = -1,
       .seconds = 5,
       .sizes = "0,1MiB,2MiB,4MiB,8MiB,16MiB,25MiB,32MiB,64MiB,128MiB,all"};

static const bench_row options[] = {
    {"--shapes", "FILE", "the network's layers, as in bench/shapes", &a.shapes},
    {"--comm", "NAME", "how gradients travel (auto)", &a.comm},
    {"--compression", "f32|f16|bf16", "how gradients travel as numbers (f32)", &a.wire, .one_of = true},
    {"--optimizer-state", "auto|replicated|sharded", "who updates what (auto)", &a.update, .one_of = true},
    {"--backward", "MS", "of the backward pass (the one in FILE)", .real = &a.backward},
    {"--sizes", "SIZE,SIZE,...", "of the fusion buffer (11 from 0 to all)", &a.sizes},
    {"--seconds", "S", "for all sizes together (5)", .real = &a.seconds},
    {"--json", "FILE", "the table goes there, too", &a.json},
};

static void open_device(void)
{
    hvt_device_opts place = {.threads = 1};
    hvt_cores cores;

    must(hvt_world_cores(world, 1, &cores));
    place.yield = cores.crowded || hvt_world_nodes(world) > 1; /* emulated hosts share processors */
    must(hvt_device_open("cpu", &place, &dev));
}

static void print_head(const hvt_model *m, const hvt_comm *c, FILE *json)
{
    const size_t shown = HVT_LEN(columns) - (backward > 0 ? 0 : 1);
    char text[512];

    bench_header("bench_sweep", hvt_device_isa(dev), 1);
    printf("%s, %d layers, %.1f MiB, %d ranks on %d nodes, comm %s, wire %s, backward %g ms\n", a.shapes,
           layers, (double)m->arena_count * sizeof(float) / (1 << 20), ranks, hvt_world_nodes(world),
           hvt_comm_name(c), a.wire, 1e3 * backward);
    for (size_t i = 0; i < shown; i++)
        printf("  %-10s  %s\n", columns[i].name, columns[i].meaning);
    printf("%-8s %8s %10s %21s %10s\n", columns[0].name, columns[1].name, columns[2].name, "quartiles",
           backward > 0 ? columns[3].name : "");
    if (!json)
        return;
    bench_describe(text, sizeof text, "bench_sweep", hvt_device_isa(dev), 1);
    fprintf(json,
            "{\"run\": \"%s\", \"shapes\": \"%s\", \"bytes\": %zu, \"ranks\": %d, \"nodes\": %d, \"comm\": "
            "\"%s\", "
            "\"wire\": \"%s\", \"backward_ms\": %g,\n \"rows\": [",
            text, a.shapes, m->arena_count * sizeof(float), ranks, hvt_world_nodes(world), hvt_comm_name(c),
            a.wire, 1e3 * backward);
}

int main(int argc, char **argv)
{
    const hvt_optim_opts sgd = {0};
    hvt_distopt_opts exchange = {.bucket_bytes = HVT_BUCKET_DEFAULT, .local_shards = 1};
    FILE *json = NULL;
    hvt_model *m = NULL;
    hvt_optim *o = NULL;
    hvt_comm *c = NULL;
    hvt_distopt *d = NULL;
    int steps;
    bool same;

    must(hvt_world_open(NULL, &world));
    bench_options("bench_sweep", world, options, HVT_LEN(options), argc, argv);
    if (!a.shapes)
        refuse("expected --shapes FILE; bench/shapes has some");
    backward = a.backward < 0 ? -1 : 1e-3 * a.backward;
    rank = hvt_world_rank(world);
    ranks = hvt_world_size(world);
    hvt_log_to(NULL, NULL, HVT_LOG_WARN);
    read_shapes(a.shapes);
    read_sizes(a.sizes);
    counts = malloc((size_t)ranks * sizeof *counts);
    for (int i = 0; i < ranks; i++)
        counts[i] = 1;
    exchange.wire = !strcmp(a.wire, "f16") ? HVT_F16 : !strcmp(a.wire, "bf16") ? HVT_BF16 : HVT_F32;
    exchange.update = !strcmp(a.update, "sharded")      ? HVT_UPDATE_SHARDED
                      : !strcmp(a.update, "replicated") ? HVT_UPDATE_REPLICATED
                                                        : HVT_UPDATE_AUTO;
    open_device();
    open_model(&m);
    must(hvt_optim_create(m, &sgd, &o));
    must(hvt_comm_open(a.comm, world, dev, &c));
    must(hvt_distopt_create(o, c, &exchange, NULL, 0, &d));
    if (rank == 0 && a.json && !(json = fopen(a.json, "w")))
        must(HVT_FAIL(E_IO, "%s cannot be written", a.json));
    steps = run_rounds(m, d, a.seconds);
    same = right(m, steps);
    if (!same)
        fprintf(stderr, "bench_sweep: rank %d ends with wrong weights\n", rank);
    must(hvt_world_agree(world, same ? HVT_OK : HVT_FAIL(E_COMM, "wrong weights")));
    if (rank == 0) {
        print_head(m, c, json);
        report(json);
        if (json && (fprintf(json, "\n ]}\n") < 0 || fclose(json)))
            must(HVT_FAIL(E_IO, "%s could not be written", a.json));
    }
    hvt_distopt_free(&d);
    hvt_comm_close(&c);
    hvt_optim_free(&o);
    hvt_model_free(&m);
    free(counts);
    hvt_device_close(&dev);
    hvt_world_close(&world);
    return 0;
}
