/*
 * restart: how a run can continue. After divergence, initialising the model is enough; a step may be given up
 * at any point; and ranks that begin a step with different arguments all get an error before anything has
 * changed.
 *
 * Runs alone and under mpirun.
 */
#include "optim/dist.h"
#include "device/step.h"
#include "rig.h"

/* The ways that gradients take. */
typedef struct way {
    const char *name, *device;
    hvt_update update;
    hvt_dtype wire;
    int powersgd;
} way;

static const way ways[] = {
    {"replicated", "ref", HVT_UPDATE_REPLICATED, HVT_F32, 0},
    {"automatic", "cpu", HVT_UPDATE_AUTO, HVT_F32, 0},
    {"sharded", "ref", HVT_UPDATE_SHARDED, HVT_F32, 0},
    {"sharded in bf16", "ref", HVT_UPDATE_SHARDED, HVT_BF16, 0},
    {"bf16", "ref", HVT_UPDATE_REPLICATED, HVT_BF16, 0},
    {"factors", "cpu", HVT_UPDATE_REPLICATED, HVT_F32, 1},
};
static const char *const comms[] = {"auto", "mpi"};

static setup setup_of(const way *w, const char *comm)
{
    setup u = usual(job, even_shards());

    u.comm = comm;
    u.device = w->device;
    u.dist.bucket_bytes = 1000; /* several buckets */
    u.dist.update = w->update;
    u.dist.wire = w->wire;
    u.dist.powersgd = w->powersgd;
    u.dist.seed = 5;
    return u;
}

static void for_all_ways(void (*test)(const setup *u, const char *what))
{
    for (size_t c = 0; c < HVT_LEN(comms); c++)
        for (size_t i = 0; i < HVT_LEN(ways) && can_open(comms[c]); i++) {
            setup u = setup_of(&ways[i], comms[c]);
            char what[80];

            snprintf(what, sizeof what, "%s over %s", ways[i].name, comms[c]);
            test(&u, what);
        }
}

static hvt_status begin_full(rig *r, double lr, int *ret_counts)
{
    for (int s = 0; s < r->u.shards; s++)
        ret_counts[s] = r->u.batch;
    return hvt_distopt_begin(r->d, ret_counts, r->u.shards, lr);
}

static hvt_status forward_of(rig *r, int shard, const int *counts)
{
    hvt_batch b;

    HVT_TRY(fill_batch(r, shard * r->u.batch, counts[shard], &b));
    b.shard = shard;
    b.shards = r->u.shards;
    b.shard_counts = counts;
    return hvt_model_forward(r->m, &b, true);
}

/* ---- votes ---- */

/* In step t rank t % ranks wants to save; in the last one all want to stop. */
static void vote(const setup *u, const char *what)
{
    enum { STEPS = 5 };
    int rank = hvt_world_rank(job), ranks = hvt_world_size(job);
    result want = train(u, STEPS), got = {0};
    rig r;

    CHECK_OK(rig_open(&r, u));
    for (int t = 0; t < STEPS; t++) {
        int64_t save, stop;

        hvt_distopt_vote(r.d, HVT_VOTE_SAVE, t % ranks == rank);
        hvt_distopt_vote(r.d, HVT_VOTE_STOP, t == STEPS - 1);
        CHECK_OK(rig_step(&r, t));
        save = hvt_distopt_votes(r.d, HVT_VOTE_SAVE);
        stop = hvt_distopt_votes(r.d, HVT_VOTE_STOP);
        CHECK(save == t + 1 && stop == (t == STEPS - 1 ? ranks : 0), "%s: after step %d %lld and %lld votes",
              what, t + 1, (long long)save, (long long)stop);
    }
    CHECK_OK(rig_result(&r, &got));
    CHECK_SAME(want, got, "%s: votes have changed the weights from %016llx to %016llx", what,
               (unsigned long long)want.weights, (unsigned long long)got.weights);
    rig_close(&r);
}

TEST(every_rank_counts_the_same_votes_after_the_same_step)
{
    for_all_ways(vote);
}

/* ---- after it diverged ---- */

static void restart(const setup *u, const char *what)
{
    static float first[40][12 * 12 * 9]; /* the largest tensor is that of layers of 12 channels */
    result want = train(u, 4), got = {0};
    hvt_named tensor;
    int64_t steps;
    rig r;

    CHECK_OK(rig_open(&r, u));
    for (int t = 0; t < 2; t++)
        CHECK_OK(rig_step(&r, t));
    CHECK_OK(rig_step_counts(&r, 2, 1e30, (const int[SHARDS_MAX]){4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4}));
    CHECK(rig_step(&r, 3) == HVT_E_DIVERGED, "%s: the loss is still finite", what);
    CHECK(rig_step(&r, 4) == HVT_E_DIVERGED, "%s: it goes on by itself", what);
    CHECK(hvt_distopt_stopped(r.d) == 4, "%s: stopped at %lld", what, (long long)hvt_distopt_stopped(r.d));
    for (int set = 0; set < 2; set++) {        /* drawn, and then set to what was drawn */
        CHECK_OK(hvt_world_barrier(u->world)); /* others may read parameters that are shared */
        steps = r.m->step->steps;
        CHECK_OK((set ? hvt_model_restart : hvt_model_init)(r.m, r.u.seed));
        for (int i = 0; hvt_model_named(r.m, i, &tensor) && i < (int)HVT_LEN(first); i++)
            CHECK_OK(set ? hvt_model_set(r.m, tensor.name, first[i], tensor.count)
                         : hvt_model_get(r.m, tensor.name, first[i], tensor.count));
        for (int i = 0; i < 4; i++)
            CHECK_OK(rig_step(&r, i));
        CHECK(r.m->step->steps == steps + 4 && !hvt_distopt_stopped(r.d), "%s: steps or the stop", what);
        CHECK_OK(rig_result(&r, &got));
        want.skipped = got.skipped; /* counted over all runs */
        CHECK_SAME(want, got, "%s: begun anew (%d) it gives %016llx, a new model %016llx", what, set,
                   (unsigned long long)got.weights, (unsigned long long)want.weights);
    }
    check_replicas(what, got);
    rig_close(&r);
}

TEST(after_a_run_diverged_initialising_the_model_is_enough)
{
    for_all_ways(restart);
}

TEST(a_loss_scale_begins_anew_with_the_model)
{
    setup u = usual(job, even_shards());
    rig r;

    u.dist.wire = HVT_F16;
    u.dist.scaling = (hvt_scaling){.scale = 0x1p40, .interval = 2000, .floor = 1};
    CHECK_OK(rig_open(&r, &u));
    for (int t = 0; t < 3; t++)
        CHECK_OK(rig_step(&r, 0));
    CHECK(hvt_distopt_skipped(r.d) > 0 && hvt_distopt_loss_scale(r.d) < 0x1p40, "nothing was skipped");
    CHECK_OK(hvt_model_init(r.m, 0));
    CHECK(r.m->step->loss_scale * (float)u.batch == 0x1p40f, "the scale is %g",
          (double)r.m->step->loss_scale * u.batch);
    rig_close(&r);
}

/* ---- a step that is given up ---- */

typedef struct some {
    rig *r;
    int left; /* calls that still go through */
} some;

static hvt_status fail_later(void *ctx, size_t first, size_t end)
{
    some *s = ctx;

    if (s->left-- <= 0)
        return HVT_FAIL(E_DEVICE, "a test");
    return hvt_distopt_on_grad(s->r->d, first, end);
}

/* Rank r goes on for longer, the higher it is: after begin, after some layers, or through all of backward. */
static void give_up(rig *r, int stage)
{
    int counts[SHARDS_MAX], rank = hvt_world_rank(r->u.world), local = r->u.dist.local_shards;
    some s = {r, stage == 0 ? 0 : stage == 3 ? 1000 : stage + 3 * rank};

    if (stage == 4 && rank == hvt_world_size(r->u.world) - 1)
        return; /* it has not even begun */
    CHECK_OK(begin_full(r, 1e30, counts));
    for (int i = 0; i < local; i++) {
        CHECK_OK(forward_of(r, rank * local + i, counts));
        s.left += i < local - 1 && stage ? 1000 : 0;
        if (hvt_model_backward(r->m, fail_later, &s) != HVT_OK)
            return;
        s.left = stage == 3 ? 1000 : stage + 3 * rank;
    }
}

static void give_up_and_go_on(const setup *u, const char *what)
{
    setup plain = *u;
    result want, got = {0};
    rig r;

    /* what factors kept is dropped, so nothing must have been kept where bits are held against a run without
     */
    bool keeps = u->dist.powersgd;

    want = train(&plain, 4);
    CHECK_OK(rig_open(&r, u));
    for (int t = 0; t < 4; t++) {
        for (int stage = 0; stage < 5 && (t == 0 || !keeps); stage++) {
            give_up(&r, stage);
            CHECK_OK(hvt_distopt_abandon(r.d));
        }
        CHECK_OK(rig_step(&r, t));
    }
    CHECK_OK(rig_result(&r, &got));
    CHECK_SAME(want, got, "%s: after steps that were given up %016llx, without %016llx", what,
               (unsigned long long)got.weights, (unsigned long long)want.weights);
    CHECK_OK(hvt_distopt_abandon(r.d)); /* there is none */
    rig_close(&r);
}

TEST(a_step_may_be_given_up_wherever_each_rank_stands)
{
    for_all_ways(give_up_and_go_on);
}

/* ---- arguments that differ ---- */

static void differ(const setup *u, const char *what)
{
    int rank = hvt_world_rank(job), ranks = hvt_world_size(job), counts[SHARDS_MAX];
    result want, got = {0};
    rig r;

    if (ranks == 1)
        return;
    want = train(u, 3);
    CHECK_OK(rig_open(&r, u));
    CHECK_OK(rig_step(&r, 0));
    for (int s = 0; s < u->shards; s++)
        counts[s] = 4;
    CHECK_FAILS(rig_step_counts(&r, 1, rank == ranks - 1 ? .05000001 : .05, counts), E_MISMATCH,
                "learning rate");
    CHECK(hvt_last_error_is_agreed(), "%s: not all know", what);
    /* ranks disagree about a shard that is neither's, if there is one */
    if (rank == 0)
        counts[u->shards - 1] = 3;
    CHECK_FAILS(rig_step_counts(&r, 1, .05, counts), E_MISMATCH, "images of shard");
    for (int t = 1; t < 3; t++)
        CHECK_OK(rig_step(&r, t));
    CHECK_OK(rig_result(&r, &got));
    if (!u->dist.powersgd)
        CHECK_SAME(want, got, "%s: a step that ranks disagreed about has changed something", what);
    check_replicas(what, got);
    rig_close(&r);
}

TEST(ranks_that_begin_a_step_with_different_arguments_all_get_an_error)
{
    if (hvt_world_size(job) > 1)
        for_all_ways(differ);
}

TEST(any_difference_shows_in_the_sums)
{
    for (int ranks = 1; ranks <= 4096; ranks = ranks * 3 / 2 + 1) {
        int bits = 24;

        for (int n = 1; n < ranks; n *= 2)
            bits--;
        for (int t = 0; t < 50; t++) {
            float sum[HVT__STEP_SUMS] = {1}, word;
            hvt_step_state s = {.images = 1, .loss_scale = 1, .bad = UINT64_MAX};
            int odd = (int)hvt__below(hvt__draw(1, (uint64_t)t, 0, 0), (uint32_t)ranks);

            sum[HVT__SUMS] = (float)ranks;
            for (int i = 0; i < HVT__STEP_WORDS; i++)
                for (int r = 0; r < ranks; r++) {
                    word = (float)((1 << bits / 2) - 1 - (t && r == odd && i == t % HVT__STEP_WORDS));
                    sum[HVT__SUMS + 1 + 2 * i] += word;
                    sum[HVT__SUMS + 2 + 2 * i] += word * word;
                }
            hvt__step_decide(&s, sum);
            CHECK(s.stop == (t && ranks > 1 ? HVT_STOP_DISAGREE : HVT_STOP_NOT), "%d ranks, case %d: %d",
                  ranks, t, s.stop);
        }
    }
}

TEST(a_batch_that_is_not_the_one_whose_turn_it_is_is_named)
{
    setup u = usual(job, 2 * even_shards());
    int counts[SHARDS_MAX], rank = hvt_world_rank(job), local, first;
    char want[80];
    rig r;

    CHECK_OK(rig_open(&r, &u));
    local = r.u.dist.local_shards;
    first = rank * local;
    CHECK_OK(begin_full(&r, .1, counts));
    CHECK_OK(forward_of(&r, first + 1, counts));
    snprintf(want, sizeof want, "shard %d is number 0 of this rank's; expected shard %d", first + 1, first);
    CHECK_FAILS(hvt_model_backward(r.m, hvt_distopt_on_grad, r.d), E_ARG, want);
    counts[first] = 2;
    CHECK_OK(forward_of(&r, first, counts));
    CHECK_FAILS(hvt_model_backward(r.m, hvt_distopt_on_grad, r.d), E_ARG, "batch of 2 images of shard");
    CHECK_OK(hvt_distopt_abandon(r.d));
    rig_close(&r);
}

int main(void)
{
    if (!rig_begin())
        return 1;
    RUN(every_rank_counts_the_same_votes_after_the_same_step);
    RUN(after_a_run_diverged_initialising_the_model_is_enough);
    RUN(a_loss_scale_begins_anew_with_the_model);
    RUN(a_step_may_be_given_up_wherever_each_rank_stands);
    if (hvt_world_size(job) > 1)
        RUN(ranks_that_begin_a_step_with_different_arguments_all_get_an_error);
    else
        check_skip("ranks_that_begin_a_step_with_different_arguments_all_get_an_error", "one rank");
    RUN(any_difference_shows_in_the_sums);
    RUN(a_batch_that_is_not_the_one_whose_turn_it_is_is_named);
    return rig_end();
}
