/*
 * The average of the weights: PyTorch's numbers; the same bits with any ranks, update paths and buckets; used
 * in the model, and exchanged back without a trace; in checkpoints.
 *
 * Runs alone and under mpirun.
 */
#include "folder.h"
#include "nodes.h"
#include "optim/dist.h"
#include "rig.h"
#include "hvt/train.h"

#include <stdio.h>

#define SHARDS (2 * hvt_world_size(job)) /* so that one rank alone must arrive at the same bits */

static const hvt_ema often = {.decay = .75}, seldom = {.decay = .875, .every = 2}, equal = {.equal = true};

/* Ways to train; all must give the same bits. */
typedef struct way {
    const char *comm;
    hvt_update update;
    bool clips; /* to a norm that is out of reach: a sharded update is then not fused */
    bool worker;
} way;

static const way ways[] = {{"self", HVT_UPDATE_REPLICATED},
                           {"self", HVT_UPDATE_SHARDED},
                           {"shm", HVT_UPDATE_REPLICATED},
                           {"shm", HVT_UPDATE_SHARDED},
                           {"shm", HVT_UPDATE_SHARDED, .clips = true},
                           {"shm", HVT_UPDATE_SHARDED, .worker = true},
                           {"mpi", HVT_UPDATE_REPLICATED, .worker = true},
                           {"mpi", HVT_UPDATE_SHARDED},
                           {"hier", HVT_UPDATE_SHARDED}};

static setup averaged(hvt_world *world, hvt_ema ema)
{
    setup u = usual(world, SHARDS);

    u.sgd.ema = ema;
    return u;
}

static setup on_way(const way *w, const setup *base)
{
    setup u = *base;

    u.world = job;
    u.comm = w->comm;
    u.dist.update = w->update;
    u.dist.clip_norm = w->clips ? 1e6 : base->dist.clip_norm;
    u.dist.bucket_bytes = w->worker ? HVT_BUCKET_ALL : 3000;
    return u;
}

/* The next way that these ranks can take; NULL: no more. */
static const way *next_way(const way *w)
{
    for (w = w ? w + 1 : ways; w < ways + HVT_LEN(ways); w++)
        if (can_open(w->comm))
            return w;
    return NULL;
}

static hvt_status open_way(rig *r, const way *w, const setup *base)
{
    const hvt_overlap how = {.yield = true};
    setup u = on_way(w, base);

    HVT_TRY(rig_open(r, &u));
    return w->worker ? hvt_comm_overlap(r->comm, &how) : HVT_OK;
}

/* ---- PyTorch ---- */

enum { GOLDEN = 5 };

static void read_numbers(FILE *f, float ret[GOLDEN])
{
    for (int i = 0; i < GOLDEN; i++)
        CHECK(fscanf(f, "%f", &ret[i]) == 1, "a number is missing");
}

static void check_numbers(const char *what, int t, const float *got, const float want[GOLDEN])
{
    for (int i = 0; i < GOLDEN; i++)
        CHECK(fabsf(got[i] - want[i]) <= 1e-6f * fmaxf(1, fabsf(want[i])),
              "step %d: %s[%d] is %.9g, not %.9g", t, what, i, got[i], want[i]);
}

/* Gradients are sums over four images. */
static void decide(rig *r, float lr)
{
    CHECK_OK(hvt__model_begin_step(r->m, 4, lr, NULL));
    memset(r->m->grads, 0, r->m->step_stats_count * sizeof(float));
    CHECK_OK(hvt__model_end_step(r->m, (int[]){4}, 1));
}

static void update(rig *r, size_t first, size_t end)
{
    const float *g = r->m->grads + first;

    CHECK_OK(hvt__optim_span(r->o, &g, 1, first, end));
}

/* Nothing of what the gradients say may be seen. */
static void skip_an_update(rig *r, float lr)
{
    fill(r, r->m->grads, INFINITY);
    r->m->step->bad = r->m->param[0].offset;
    decide(r, lr);
    CHECK_OK(hvt__ema_stats(r->o));
    update(r, r->m->step_stats_count, r->m->grad_count);
    CHECK(!r->m->step->apply && r->m->step->ema_share == 0, "a skipped update is averaged");
}

/* One step of the golden ones, on the first elements of the first parameter and of the statistics. */
static void check_step(rig *r, FILE *f, int t, float lr, bool averages)
{
    size_t at = r->m->param[0].offset;
    float want[GOLDEN];
    long tracked;

    fill(r, r->m->grads, 0);
    read_numbers(f, r->m->grads + at);
    for (int i = 0; i < GOLDEN; i++)
        r->m->grads[at + (size_t)i] *= 4;
    r->m->averages_next = averages;
    decide(r, lr);
    read_numbers(f, want);
    read_numbers(f, r->m->stats);
    CHECK_OK(hvt__ema_stats(r->o));
    update(r, r->m->step_stats_count, at + 3);
    update(r, at + 3, r->m->grad_count);
    check_numbers("weight", t, r->m->params + at, want);
    CHECK(fscanf(f, "%ld", &tracked) == 1 && r->m->tracked == tracked, "%lld batches",
          (long long)r->m->tracked);
    read_numbers(f, want);
    check_numbers("average", t, r->o->v + at, want);
    read_numbers(f, want);
    check_numbers("statistic", t, r->o->ema_stats, want);
    CHECK(fscanf(f, "%ld", &tracked) == 1 && r->m->step->ema_tracked == tracked,
          "step %d: %lld batches, not %ld", t, (long long)r->m->step->ema_tracked, tracked);
}

/* Source: golden/ema.txt by torch.optim.swa_utils. */
TEST(averages_follow_pytorch)
{
    FILE *f = fopen(check_file("golden/ema.txt"), "r");
    setup u = usual(lone, 1);
    int blocks = 0, steps;
    long tracked;
    float lr;

    CHECK(f, "golden/ema.txt cannot be read");
    u.sgd = (hvt_optim_opts){0};
    while (f && fscanf(f, " ema %lf %d %f %d %ld", &u.sgd.ema.decay, &u.sgd.ema.every, &lr, &steps,
                       &tracked) == 5) {
        const int every = u.sgd.ema.every;
        rig r;

        u.sgd.ema.equal = !(u.sgd.ema.decay > 0);
        if (u.sgd.ema.equal)
            u.sgd.ema.every = 0;
        CHECK_OK(rig_prepare(&r, &u));
        r.m->tracked = tracked;
        read_numbers(f, r.m->params + r.m->param[0].offset);
        for (int t = 0; t < steps; t++) {
            if (t == 3)
                skip_an_update(&r, lr);
            check_step(&r, f, t, lr, u.sgd.ema.equal && t % every == 0);
        }
        rig_close(&r);
        blocks++;
    }
    CHECK(blocks == 5, "%d blocks", blocks);
    if (f)
        fclose(f);
}

/* ---- bits ---- */

TEST(ranks_ways_buckets_and_a_worker_do_not_change_a_bit)
{
    static const hvt_optim_opts optims[] = {
        {.momentum = .9f, .weight_decay = 5e-4f},
        {0},
        {.kind = HVT_OPTIM_ADAMW, HVT_ADAM_DEFAULTS, .weight_decay = .01f},
    };

    for (size_t k = 0; k < HVT_LEN(optims); k++) {
        setup alone = usual(lone, SHARDS), plain;
        result want, bare;

        alone.sgd = optims[k];
        plain = alone;
        alone.sgd.ema = k == 2 ? equal : k == 1 ? often : seldom;
        alone.type = k == 1 ? HVT_BF16 : HVT_F32;
        plain.type = alone.type;
        want = train(&alone, 6);
        bare = train(&plain, 6);
        CHECK(want.weights == bare.weights && want.momentum != bare.momentum, "an average moves the weights");
        for (const way *w = NULL; (w = next_way(w));) {
            result got = {0};
            rig r;

            CHECK_OK(open_way(&r, w, &alone));
            for (int t = 0; t < 6; t++)
                CHECK_OK(rig_step(&r, t));
            CHECK(hvt_distopt_averages(r.d) == (k ? 6 : 3), "%lld averages",
                  (long long)hvt_distopt_averages(r.d));
            CHECK_OK(rig_result(&r, &got));
            CHECK_SAME(want, got, "%s, update %d: %016llx and %016llx, on one rank %016llx and %016llx",
                       w->comm, (int)w->update, (unsigned long long)got.weights,
                       (unsigned long long)got.momentum, (unsigned long long)want.weights,
                       (unsigned long long)want.momentum);
            rig_close(&r);
        }
    }
}

TEST(threads_and_pieces_do_not_change_a_bit)
{
    size_t was = hvt__ema_piece;
    setup u = averaged(job, often);
    result want, got;

    u.device = "cpu";
    want = train(&u, 3);
    u.threads = 3;
    got = train(&u, 3);
    CHECK_SAME(want, got, "three threads");
    hvt__ema_piece = 37;
    got = train(&u, 3);
    CHECK_SAME(want, got, "in pieces");
    hvt__ema_piece = was;
}

TEST(what_is_skipped_is_not_averaged)
{
    setup u = averaged(job, seldom);
    result x, y;
    rig a, b;

    hvt_log_to(NULL, NULL, HVT_LOG_ERROR);
    u.type = HVT_F16;
    u.norm = false;
    skip_first_updates(&u, &a, &b);
    CHECK(hvt_distopt_averages(a.d) == 2 && hvt_distopt_averages(b.d) == 2, "%lld averages",
          (long long)hvt_distopt_averages(a.d));
    CHECK_OK(rig_result(&a, &x));
    CHECK_OK(rig_result(&b, &y));
    CHECK(x.weights == y.weights && x.momentum == y.momentum, "skipped updates left traces");
    rig_close(&a);
    rig_close(&b);
    hvt_log_to(NULL, NULL, HVT_LOG_INFO);
}

TEST(new_buckets_are_new_slices_of_the_same_average)
{
    setup alone = averaged(lone, often);
    result want = train(&alone, 5), got;

    for (const way *w = NULL; (w = next_way(w));) {
        rig r;

        CHECK_OK(open_way(&r, w, &alone));
        for (int t = 0; t < 5; t++) {
            CHECK_OK(rig_step(&r, t));
            CHECK_OK(hvt_distopt_replan(r.d, t % 2 ? 1000 : HVT_BUCKET_ALL, 0));
        }
        CHECK_OK(rig_result(&r, &got));
        CHECK_SAME(want, got, "%s: %016llx", w->comm, (unsigned long long)got.momentum);
        rig_close(&r);
    }
}

TEST(a_replica_s_average_that_differs_is_named)
{
    int last = hvt_world_size(job) - 1;

    if (!last)
        SKIP("it takes two ranks");
    for (const way *w = NULL; (w = next_way(w));) {
        setup u = averaged(job, often);
        rig r;

        if (w->update == HVT_UPDATE_SHARDED)
            continue;
        u.dist.check_replicas = 2;
        CHECK_OK(open_way(&r, w, &u));
        for (int t = 0; t < 2; t++)
            CHECK_OK(rig_step(&r, t));
        if (hvt_world_rank(job) == last)
            r.o->v[r.o->v_count + r.m->param[2].offset] += 1;
        CHECK_FAILS(hvt__replicas_check(r.d), E_MISMATCH, r.m->param[2].name);
        CHECK(strstr(hvt_last_error(), "averages of the weights"), "%s", hvt_last_error());
        rig_close(&r);
    }
}

/* ---- in the model's place ---- */

/* The losses of a batch in evaluation. */
static void losses(rig *r, float ret_loss[BATCH])
{
    int32_t rank[BATCH];
    hvt_batch b;

    CHECK_OK(fill_batch(r, 900, BATCH, &b));
    CHECK_OK(hvt_model_forward(r->m, &b, false));
    CHECK_OK(hvt_model_rows(r->m, ret_loss, rank));
}

/* What the trainer's average is, as a file's weights in a model of their own. */
static void check_elsewhere(const rig *r, const float want[BATCH])
{
    setup u = usual(lone, 1);
    float got[BATCH];
    uint64_t hash, its;
    rig other;

    u.type = r->u.type;
    CHECK_OK(rig_prepare(&other, &u));
    CHECK_OK(hvt_weights_load(in_folder("average.safetensors"), other.m, false));
    losses(&other, got);
    CHECK(!memcmp(got, want, sizeof got), "%g, not %g", (double)got[0], (double)want[0]);
    CHECK_OK(hvt_model_hash(other.m, &hash));
    CHECK_OK(hvt_model_hash(r->m, &its));
    CHECK(hash == its && other.m->tracked == r->m->tracked, "%016llx, %lld batches", (unsigned long long)hash,
          (long long)other.m->tracked);
    rig_close(&other);
}

/* A hash of an arena of parameters, and of statistics. */
static uint64_t hash_of(const rig *r, const float *arena, const float *stats)
{
    size_t first = r->m->step_stats_count;
    uint64_t h = hvt__hash(HVT_HASH_INIT, arena + first, (r->m->grad_count - first) * sizeof *arena);

    return hvt__hash(h, stats, r->m->stats_count * sizeof *stats);
}

/* The model has it after this. */
static void use_average(rig *r)
{
    uint64_t want, got;
    float *arenas;

    CHECK_OK(hvt_distopt_gather(r->d, -1));
    CHECK_OK(hvt__optim_state(r->o, false, &arenas));
    want = hash_of(r, arenas + (size_t)r->o->states * r->m->grad_count, r->o->ema_stats);
    CHECK_OK(hvt_world_barrier(job));
    CHECK_OK(hvt_distopt_use_average(r->d, true));
    got = hash_of(r, r->m->params, r->m->stats);
    CHECK(want == got, "the model has %016llx, the average is %016llx", (unsigned long long)got,
          (unsigned long long)want);
}

TEST(the_model_has_the_average_and_its_own_back)
{
    hvt_progress p = {0};

    for (const way *w = NULL; (w = next_way(w));) {
        for (int k = 0; k < 2; k++) {
            setup u = averaged(job, often), v;
            float own[BATCH], average[BATCH], again[BATCH];
            result straight, got;
            int64_t tracked;
            rig r;

            u.type = k ? HVT_BF16 : HVT_F32;
            v = on_way(w, &u);
            straight = train(&v, 5);
            CHECK_OK(open_way(&r, w, &u));
            CHECK_OK(hvt_distopt_use_average(r.d, true)); /* there is none yet */
            for (int t = 0; t < 3; t++)
                CHECK_OK(rig_step(&r, t));
            losses(&r, own);
            tracked = r.m->tracked;
            use_average(&r);
            CHECK_OK(hvt_distopt_use_average(r.d, true)); /* the model has it already */
            losses(&r, average);
            CHECK(memcmp(own, average, sizeof own) != 0 && r.m->tracked < tracked, "the model has its own");
            if (hvt_world_rank(job) == 0)
                CHECK_OK(hvt_checkpoint_save(folder, "average", r.m, NULL, &p));
            CHECK_OK(hvt_world_barrier(job));
            check_elsewhere(&r, average);
            CHECK_OK(hvt_distopt_use_average(r.d, false));
            losses(&r, again);
            CHECK(!memcmp(own, again, sizeof own) && r.m->tracked == tracked, "%s: its own is another",
                  w->comm);
            for (int t = 3; t < 5; t++)
                CHECK_OK(rig_step(&r, t));
            CHECK_OK(rig_result(&r, &got));
            CHECK_SAME(straight, got, "%s: an evaluation of the average left traces", w->comm);
            rig_close(&r);
        }
    }
}

TEST(while_the_model_has_the_average_nothing_else_moves)
{
    for (const way *w = NULL; (w = next_way(w));) {
        static const char text[] = "hvt_distopt_use_average()";
        setup u = averaged(job, often);
        hvt_progress p = {0};
        uint64_t before, after;
        rig r;

        CHECK_OK(open_way(&r, w, &u));
        CHECK_OK(rig_step(&r, 0));
        CHECK_OK(rig_step(&r, 1));
        CHECK_OK(hvt_model_hash(r.m, &before));
        CHECK_OK(hvt_distopt_use_average(r.d, true));
        CHECK_FAILS(rig_step(&r, 2), E_ARG, text);
        CHECK_FAILS(hvt_distopt_gather(r.d, -1), E_ARG, text);
        CHECK_FAILS(hvt_distopt_broadcast(r.d, 0), E_ARG, text);
        CHECK_FAILS(hvt_distopt_replan(r.d, 100, 0), E_ARG, text);
        CHECK_FAILS(hvt_checkpoint_save(folder, "not", r.m, r.o, &p), E_ARG, text);
        if (hvt_world_rank(job) == 0)
            CHECK_OK(hvt_checkpoint_save(folder, "other", r.m, NULL, &p));
        CHECK_OK(hvt_world_barrier(job));
        CHECK_FAILS(hvt_checkpoint_load(in_folder("other.safetensors"), r.m, r.o, &p), E_ARG, text);
        hvt_distopt_free(&r.d); /* puts its own back */
        CHECK_OK(hvt_model_hash(r.m, &after));
        CHECK(before == after, "%s: %016llx after it was freed, not %016llx", w->comm,
              (unsigned long long)after, (unsigned long long)before);
        rig_close(&r);
    }
}

TEST(without_an_average_the_model_keeps_its_own)
{
    setup u = usual(job, SHARDS);
    uint64_t before, after;
    rig r;

    CHECK_OK(rig_open(&r, &u));
    CHECK_OK(rig_step(&r, 0));
    CHECK_OK(hvt_model_hash(r.m, &before));
    CHECK_OK(hvt_distopt_use_average(r.d, true));
    CHECK_OK(hvt_model_hash(r.m, &after));
    CHECK(before == after && !hvt_distopt_averages(r.d), "an average of nothing");
    CHECK_OK(rig_step(&r, 1));
    CHECK(hvt_distopt_use_average(NULL, true) == HVT_E_ARG, "of no optimizer");
    rig_close(&r);
}

TEST(impossible_averages_are_refused)
{
    static const struct {
        hvt_ema ema;
        const char *part;
    } bad[] = {{{.decay = 1}, "average is 1"},
               {{.decay = -.1}, "average is -0.1"},
               {{.decay = NAN}, "average is nan"},
               {{.decay = .5, .every = -2}, "every -2 updates"}};
    setup u = usual(lone, 1);

    for (size_t i = 0; i < HVT_LEN(bad); i++) {
        rig r;

        u.sgd.ema = bad[i].ema;
        CHECK_FAILS(rig_prepare(&r, &u), E_ARG, bad[i].part);
        rig_close(&r);
    }
}

/* ---- checkpoints ---- */

/* On a way of the job, or (NULL) on rank 0 alone. */
static void save_half(const way *w, const setup *base)
{
    const setup u = w ? on_way(w, base) : *base;
    hvt_progress p = {.steps = 3};
    rig r;

    if (is_mine(&u)) {
        CHECK_OK(w ? open_way(&r, w, base) : rig_open(&r, base));
        for (int t = 0; t < 3; t++)
            CHECK_OK(rig_step(&r, t));
        CHECK_OK(hvt_distopt_gather(r.d, 0));
        if (hvt_world_rank(job) == 0)
            CHECK_OK(hvt_checkpoint_save(folder, "last", r.m, r.o, &p));
        rig_close(&r);
    }
    CHECK_OK(hvt_world_barrier(job));
}

static result other_half(const way *w, const setup *base)
{
    const setup u = w ? on_way(w, base) : *base;
    result ret = {0};
    hvt_progress p;
    rig r;

    if (is_mine(&u)) {
        CHECK_OK(w ? open_way(&r, w, base) : rig_open(&r, base));
        if (hvt_world_rank(job) == 0) {
            CHECK_OK(hvt_checkpoint_load(folder, r.m, r.o, &p));
            free(p.options);
        }
        CHECK_OK(hvt_distopt_broadcast(r.d, 0));
        ret = rig_finish(&r, 3, 6);
    }
    tell_all(&u, &ret);
    CHECK_OK(hvt_world_barrier(job));
    return ret;
}

static void check_halves(const char *what, result got, result straight)
{
    CHECK(got.weights == straight.weights && got.momentum == straight.momentum,
          "%s: %016llx and %016llx, straight %016llx and %016llx", what, (unsigned long long)got.weights,
          (unsigned long long)got.momentum, (unsigned long long)straight.weights,
          (unsigned long long)straight.momentum);
}

TEST(a_run_goes_on_from_its_weights_and_average_on_other_ranks)
{
    for (int k = 0; k < 3; k++) {
        setup alone = averaged(lone, seldom);
        result straight;

        if (k)
            alone.sgd.momentum = 0; /* nothing else is kept */
        alone.freeze = k == 2 ? "conv2d1" : NULL;
        straight = train(&alone, 6);
        for (const way *w = NULL; (w = next_way(w));) {
            save_half(w, &alone);
            check_halves("one rank goes on", other_half(NULL, &alone), straight);
            check_halves(w->comm, other_half(w, &alone), straight);
        }
        save_half(NULL, &alone);
        for (const way *w = NULL; (w = next_way(w));)
            check_halves("goes on from one rank", other_half(w, &alone), straight);
    }
}

/* A file's weights are the average, which a run without one does not want. */
TEST(averages_come_and_go_with_the_option)
{
    setup plain = usual(lone, SHARDS), with = averaged(lone, often);
    result straight = train(&plain, 6);

    hvt_log_to(NULL, NULL, HVT_LOG_ERROR);
    for (const way *w = NULL; (w = next_way(w));) {
        result got;

        save_half(w, &with);
        check_halves("without it from now on", other_half(w, &plain), straight);
        save_half(w, &plain);
        got = other_half(w, &with);
        CHECK(got.weights == straight.weights && got.momentum != straight.momentum, "with it from now on");
    }
    hvt_log_to(NULL, NULL, HVT_LOG_INFO);
}

TEST(a_checkpoint_without_its_raw_weights_is_refused)
{
    setup u = averaged(lone, often);
    char file[300];
    hvt_progress p;
    rig r;

    save_half(NULL, &u);
    if (hvt_world_rank(job) == 0) {
        snprintf(file, sizeof file, "rm %s/last-*.raw.safetensors", folder);
        CHECK(system(file) == 0, "there is no such file: %s", file);
        CHECK_OK(rig_open(&r, &u));
        CHECK_FAILS(hvt_checkpoint_load(folder, r.m, r.o, &p), E_IO, "weights before averaging");
        CHECK_OK(hvt_checkpoint_load(folder, r.m, NULL, &p)); /* the average is there */
        free(p.options);
        rig_close(&r);
    }
    CHECK_OK(hvt_world_barrier(job));
}

int main(void)
{
    if (!rig_begin())
        return 1;
    if (hvt_world_rank(job) == 0)
        CHECK(folder_make(), "no folder");
    CHECK_OK(hvt_world_broadcast(job, folder, sizeof folder, 0));
    RUN(averages_follow_pytorch);
    RUN(ranks_ways_buckets_and_a_worker_do_not_change_a_bit);
    RUN(threads_and_pieces_do_not_change_a_bit);
    RUN(what_is_skipped_is_not_averaged);
    RUN(new_buckets_are_new_slices_of_the_same_average);
    RUN(a_replica_s_average_that_differs_is_named);
    RUN(the_model_has_the_average_and_its_own_back);
    RUN(while_the_model_has_the_average_nothing_else_moves);
    RUN(without_an_average_the_model_keeps_its_own);
    RUN(impossible_averages_are_refused);
    RUN(a_run_goes_on_from_its_weights_and_average_on_other_ranks);
    RUN(averages_come_and_go_with_the_option);
    RUN(a_checkpoint_without_its_raw_weights_is_refused);
    CHECK_OK(hvt_world_barrier(job));
    if (hvt_world_rank(job) == 0)
        CHECK(folder_remove(), "%s stays behind", folder);
    return rig_end();
}
