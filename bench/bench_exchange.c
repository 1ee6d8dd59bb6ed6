/*
 * bench_exchange - from "every rank has its gradients" to "every rank has the new weights".
 *
 *     mpirun -np 2 bench_exchange [--model NAME] [--rounds N] [--bucket BYTES] [--alone] [--json FILE]
 *
 * The arenas are a real model's; no forward or backward pass runs: before each call every rank writes its
 * gradients, as backward does, and that is not timed. The methods take turns, round by round, so that each
 * finds its weights as in a training step, after other work; --alone runs each method's rounds in a row, so
 * that weights and momentum of a small model stay in the cores' caches. All gradients are small multiples of
 * a power of two, so every order of addition gives the same sum, and all methods must end with the same
 * weights, to the bit: a wrong one prints no speed. bound is a lower bound for any exchange: a bare loop in
 * which each rank adds its slice of all ranks' gradients and updates shared weights and momentum.
 */
#include "bench.h"
#include "optim_impl.h"
#include "base_impl.h"
#include "config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#if HVT_HAVE_MPI
#include <mpi.h>
#endif

enum { WARM_UP = 2, ROUNDS_MOST = 1000 };

static const struct {
    const char *name, *meaning;
} columns[] = {
    {"way", "who exchanges and who updates"},
    {"median ms", "of a call on the slowest rank, over the rounds"},
    {"least ms", "the same, least of all rounds"},
    {"x bound", "median / median of bound"},
};

typedef enum kind { BOUND, OURS, MPI_FUSED, MPI_TENSORS } kind;

typedef struct way {
    const char *name;
    kind kind;
    const char *comm;
    hvt_update update;
    hvt_comm *c;
    hvt_model *m;
    hvt_optim *o;
    hvt_distopt *d;
    float *g, *w, *v;                   /* of bound: this rank's gradients; weights and momentum of all */
    const float *peer[HVT_MAX_THREADS]; /* of bound: all ranks' gradients */
    double round[ROUNDS_MOST];
    uint64_t weights;
} way;

static hvt_world *world;
static hvt_device *dev;
static int rank, size, rounds = 21;
static int *counts; /* [size] images of each shard */
static const float lr = 0.125f, momentum = 0.5f;

static void must(hvt_status s)
{
    bench_must("bench_exchange", world, s);
}

/* ---- the ways -------------------------------------------------------------------------------------- */

static void open_model(way *w, const char *name)
{
    const hvt_optim_opts sgd = {.momentum = momentum};
    const hvt_zoo_opts zoo = {.imagenet_stem = true};

    must(hvt_model_create(dev, &w->m));
    must(hvt_model_plan(w->m, 1, hvt_zoo(w->m, name, hvt_input(w->m, 32, 32, 3), 1000, &zoo)));
    must(hvt_model_init(w->m, 1));
    must(hvt_optim_create(w->m, &sgd, &w->o));
}

/* The memory of bound: gradients that all ranks read, weights and momentum that all ranks write. */
static hvt_status see_peers(void *ctx, size_t first, size_t end, const void *const in[], int ranks)
{
    way *w = ctx;

    (void)end;
    for (int r = 0; r < ranks; r++)
        w->peer[r] = (const float *)in[r];
    (void)first;
    return HVT_OK;
}

static bool open_bound(way *w, const char *model)
{
    size_t n;
    void *p;
    hvt_ticket t;

    if (size > HVT_MAX_THREADS || hvt_world_nodes(world) > 1)
        return false;
    open_model(w, model);
    n = w->m->arena_count;
    must(hvt_comm_open(size > 1 ? "shm" : "self", world, dev, &w->c));
    if (!(hvt_comm_can(w->c) & HVT_COMM_SHARE))
        return false;
    must(hvt_comm_alloc(w->c, n * sizeof *w->g, (void **)&w->g));
    must(hvt_comm_share(w->c, n * sizeof *w->w, &p));
    w->w = p;
    must(hvt_comm_share(w->c, n * sizeof *w->v, &p));
    w->v = p;
    must(hvt_comm_reduce_apply(w->c, w->g, n, HVT_F32, see_peers, w, &t));
    must(hvt_comm_wait(w->c, t));
    return true;
}

static bool open_way(way *w, const char *model, size_t bucket)
{
    const hvt_distopt_opts opts = {.bucket_bytes = bucket, .local_shards = 1, .update = w->update};
    bool mpi = !strcmp(hvt_world_name(world), "mpi");

    if (w->kind == BOUND)
        return open_bound(w, model);
    if (w->kind != OURS || !strcmp(w->comm, "mpi")) {
        if (!mpi)
            return false;
    } else if (!strcmp(w->comm, "shm") && (size == 1 || hvt_world_nodes(world) > 1)) {
        return false;
    }
    open_model(w, model);
    if (w->kind != OURS)
        return true;
    must(hvt_comm_open(w->comm, world, dev, &w->c));
    must(hvt_distopt_create(w->o, w->c, &opts, NULL, 0, &w->d));
    return true;
}

static void close_way(way *w)
{
    hvt_distopt_free(&w->d);
    if (w->o)
        hvt_optim_free(&w->o);
    if (w->m)
        hvt_model_free(&w->m);
    if (w->c) {
        hvt_comm_release(w->c, w->v);
        hvt_comm_release(w->c, w->w);
        hvt_comm_release(w->c, w->g);
    }
    hvt_comm_close(&w->c);
}

/* ---- a call ---------------------------------------------------------------------------------------- */

static void fill(way *w, int round)
{
    float *g = w->kind == BOUND ? w->g : w->m->grads;

    /* the step statistics decide whether the step updates: none is against it */
    for (size_t i = 0; i < w->m->arena_count; i++)
        g[i] = i < w->m->step_stats_count ? 0 : (float)((i + (size_t)(round + rank)) % 97) * 0x1p-10f;
}

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
__attribute__((target_clones("avx512f", "arch=haswell", "default"), optimize("O3", "tree-vectorize")))
#endif
static void
bare_two(size_t n, const float *restrict a, const float *restrict b, float *restrict w, float *restrict v,
         float scale)
{
    for (size_t i = 0; i < n; i++) {
        float x = scale * (a[i] + b[i]), y = momentum * v[i] + x;

        v[i] = y;
        w[i] -= lr * y;
    }
}

static void bare(way *w, float scale)
{
    size_t first, end;

    hvt_comm_slice(w->c, w->m->arena_count, rank, &first, &end);
    if (size == 2) {
        bare_two(end - first, w->peer[0] + first, w->peer[1] + first, w->w + first, w->v + first, scale);
        return;
    }
    for (size_t i = first; i < end; i++) {
        float x = 0, y;

        for (int r = 0; r < size; r++)
            x += w->peer[r][i];
        y = momentum * w->v[i] + scale * x;
        w->v[i] = y;
        w->w[i] -= lr * y;
    }
}

#if HVT_HAVE_MPI
static void by_mpi(way *w)
{
    hvt_model *m = w->m;
    const float *g = m->grads;

    must(hvt__model_begin_step(m, size, (double)lr, NULL));
    if (w->kind == MPI_FUSED)
        MPI_Allreduce(MPI_IN_PLACE, m->grads, (int)m->arena_count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    else
        MPI_Allreduce(MPI_IN_PLACE, m->grads, (int)m->step_stats_count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    for (int i = 0; w->kind == MPI_TENSORS && i < m->nparam_tensors; i++)
        MPI_Allreduce(MPI_IN_PLACE, m->grads + m->param[i].offset, (int)m->param[i].count, MPI_FLOAT, MPI_SUM,
                      MPI_COMM_WORLD);
    must(hvt__model_end_step(m, counts, size));
    must(hvt__optim_span(w->o, &g, 1, 0, m->arena_count));
}
#endif

static double call(way *w, int round)
{
    double start;

    fill(w, round);
    if (w->kind == OURS)
        must(hvt_distopt_begin(w->d, counts, size, (double)lr));
    must(hvt_world_barrier(world));
    start = hvt__now();
    if (w->kind == OURS) {
        must(hvt_distopt_on_grad(w->d, 0, w->m->arena_count));
        must(hvt_distopt_step(w->d));
    } else if (w->kind == BOUND) {
        bare(w, 1 / (float)size);
        must(hvt_world_barrier(world));
    }
#if HVT_HAVE_MPI
    else {
        by_mpi(w);
    }
#endif
    return hvt__now() - start;
}

/* ---- all of them ----------------------------------------------------------------------------------- */

static void report(way *w, const way *bound, bool right, FILE *json, bool first)
{
    int n = rounds;
    double median = 1e3 * w->round[n / 2], least = 1e3 * w->round[0];
    double ratio = bound ? w->round[n / 2] / bound->round[n / 2] : 0;

    if (!right)
        printf("%-24s wrong weights\n", w->name);
    else
        printf("%-24s %10.3f %10.3f %9.2f\n", w->name, median, least, ratio);
    if (json && right)
        fprintf(json, "%s\n  {\"way\": \"%s\", \"median_ms\": %.4g, \"least_ms\": %.4g, \"bounds\": %.4g}",
                first ? "" : ",", w->name, median, least, ratio);
}

static void head(const char *model, size_t count, bool alone)
{
    bench_header("bench_exchange", hvt_device_isa(dev), 1);
    printf("%s, %zu floats, %d ranks on %d nodes, %d rounds %s\n", model, count, size, hvt_world_nodes(world),
           rounds, alone ? "of each way in a row" : "in turns");
    for (size_t i = 0; i < HVT_LEN(columns); i++)
        printf("  %-9s  %s\n", columns[i].name, columns[i].meaning);
    printf("%-24s %10s %10s %9s\n", columns[0].name, columns[1].name, columns[2].name, columns[3].name);
}

static bool bench(const char *model, size_t bucket, bool alone, FILE *json)
{
    static way all[] = {
        {.name = "bound", .kind = BOUND},
        {.name = "shm, sharded", .kind = OURS, .comm = "shm", .update = HVT_UPDATE_SHARDED},
        {.name = "shm, replicated", .kind = OURS, .comm = "shm", .update = HVT_UPDATE_REPLICATED},
        {.name = "mpi, replicated", .kind = OURS, .comm = "mpi", .update = HVT_UPDATE_REPLICATED},
        {.name = "MPI_Allreduce, all", .kind = MPI_FUSED},
        {.name = "MPI_Allreduce, tensors", .kind = MPI_TENSORS}};
    way *at[HVT_LEN(all)], *bound = NULL;
    uint64_t want = 0;
    int ways = 0;
    bool right = true, first = true;

    for (size_t i = 0; i < HVT_LEN(all); i++) {
        if (open_way(&all[i], model, bucket))
            at[ways++] = &all[i];
        else
            close_way(&all[i]);
    }
    if (rank == 0 && ways)
        head(model, at[0]->m->arena_count, alone);
    for (int k = 0; k < ways * (rounds + WARM_UP); k++) {
        int i = alone ? k / (rounds + WARM_UP) : k % ways, r = alone ? k % (rounds + WARM_UP) : k / ways;

        at[i]->round[r < WARM_UP ? 0 : r - WARM_UP] = call(at[i], r);
    }
    for (int i = 0; i < ways; i++) {
        must(hvt_world_allreduce(world, HVT_MAX, at[i]->round, rounds));
        hvt__sort(at[i]->round, (size_t)rounds);
        if (at[i]->kind == BOUND)
            bound = at[i];
        else
            must(hvt_model_hash(at[i]->m, &at[i]->weights));
        if (!want)
            want = at[i]->weights;
    }
    for (int i = 0; i < ways; i++) {
        bool same = at[i]->kind == BOUND || at[i]->weights == want;

        right = right && same;
        if (rank == 0)
            report(at[i], bound, same, json, first);
        first = false;
    }
    for (int i = ways - 1; i >= 0; i--)
        close_way(at[i]);
    return right;
}

int main(int argc, char **argv)
{
    const char *model = "resnet50", *path = NULL;
    double bucket = (double)HVT_BUCKET_DEFAULT;
    hvt_device_opts place = {.threads = 1};
    FILE *json = NULL;
    hvt_cores cores;
    int alone = 0;
    bool right;
    const bench_row options[] = {
        {"--model", "NAME", "of hvtrain's zoo (resnet50)", &model},
        {"--rounds", "N", "of every way (21)", .number = &rounds, .least = 1, .most = ROUNDS_MOST},
        {"--bucket", "BYTES", "of a bucket (25 MiB)", .real = &bucket},
        {"--json", "FILE", "the table goes there, too", &path},
        {"--alone", "", "every way's rounds in a row", .flag = &alone},
    };

    must(hvt_world_open(NULL, &world));
    bench_options("bench_exchange", world, options, HVT_LEN(options), argc, argv);
    rank = hvt_world_rank(world);
    size = hvt_world_size(world);
    counts = malloc((size_t)size * sizeof *counts);
    for (int i = 0; i < size; i++)
        counts[i] = 1;
    must(hvt_world_cores(world, 1, &cores));
    place.cpus = cores.ncpus ? cores.cpus : NULL;
    place.ncpus = cores.ncpus;
    place.yield = cores.crowded;
    must(hvt_device_open("cpu", &place, &dev));
    if (rank == 0 && path && !(json = fopen(path, "w")))
        must(HVT_FAIL(E_IO, "%s cannot be written", path));
    if (json) {
        char text[512];

        bench_describe(text, sizeof text, "bench_exchange", hvt_device_isa(dev), 1);
        fprintf(json, "{\"run\": \"%s\", \"model\": \"%s\", \"ranks\": %d,\n \"rows\": [", text, model, size);
    }
    right = bench(model, (size_t)bucket, alone, json);
    if (json && (fprintf(json, "\n ]}\n") < 0 || fclose(json)))
        must(HVT_FAIL(E_IO, "%s could not be written", path));
    free(counts);
    hvt_device_close(&dev);
    hvt_world_close(&world);
    return !right;
}
