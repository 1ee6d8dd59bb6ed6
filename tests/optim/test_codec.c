/*
 * Error feedback: what 16 bits cannot carry is sent later. Runs alone and under mpirun.
 */
#include "optim/dist.h"
#include "rig.h"

static const char *const comms[] = {"mpi", "shm", "self"};

/* Gradients that one rank has alone, so that their sum is rounded on the way there only: `size` times a
 * number from 1 to 1 + 2^-8, of which bf16 carries the 1. Times `images`, for the mean. */
static double size;
static int images;

static double mean(size_t i)
{
    return size * (1 + 0x1p-8 * hvt__unit(hvt__draw(7, i, 0, 0)));
}

static float gradient(int shard, size_t i)
{
    int ranks = hvt_world_size(job);

    return i % (size_t)ranks == (size_t)shard ? (float)(mean(i) * images) : 0;
}

typedef struct far {
    double sent, held; /* the most that what was sent, and that with what is held back, is off; in `size` */
} far;

/* Steps of 1 to 4 images a shard, of a rate that moves each parameter by its mean gradient in `size`. */
static far send(const setup *u, int steps)
{
    far ret = {0};
    float *start;
    size_t n;
    rig r;

    CHECK_OK(rig_open(&r, u));
    n = r.m->arena_count;
    start = malloc(n * sizeof *start);
    memcpy(start, r.m->params, n * sizeof *start);
    CHECK_OK(hvt_world_barrier(job));
    for (int t = 0; t < steps; t++) {
        int each = 1 + t % 4;

        images = each * u->shards;
        CHECK_OK(step_by_hand(&r, gradient, each, 1 / size));
    }
    for (int k = 0; k < r.m->nparam_tensors; k++) {
        const hvt_param *p = &r.m->param[k];

        for (size_t i = p->offset; i < p->offset + p->count; i++) {
            double sent = (double)start[i] - (double)r.m->params[i], all = steps * mean(i) / size;
            double held = r.d->rest ? (double)r.d->rest[i] / images / size : 0;

            if (i % (size_t)u->shards != (size_t)hvt_world_rank(job))
                continue;
            ret.sent = fmax(ret.sent, fabs(sent - all));
            ret.held = fmax(ret.held, fabs(sent + held - all));
        }
    }
    CHECK_OK(hvt_world_barrier(job));
    free(start);
    rig_close(&r);
    return ret;
}

TEST(what_16_bits_cannot_carry_is_sent_later)
{
    static const struct {
        hvt_dtype wire;
        double size, close; /* the most that may be held back */
    } table[] = {{HVT_BF16, 1, 0x1p-8}, {HVT_F16, 1, 0x1p-11}, {HVT_F16, 0x1p-27, 8}};
    enum { STEPS = 64 };

    for (size_t c = 0; c < HVT_LEN(comms); c++)
        for (size_t k = 0; k < 2 * HVT_LEN(table) && can_open(comms[c]); k++) {
            setup u = usual(job, hvt_world_size(job));
            double close = table[k / 2].close, rounded = 0x1p-12; /* of a parameter, in all steps */
            far with, without;

            size = table[k / 2].size;
            u.device = c == 0 ? "cpu" : "ref";
            u.comm = comms[c];
            u.sgd = (hvt_optim_opts){0};
            u.dist.wire = table[k / 2].wire;
            u.dist.update = k % 2 ? HVT_UPDATE_SHARDED : HVT_UPDATE_REPLICATED;
            without = send(&u, STEPS);
            u.dist.error_feedback = true;
            with = send(&u, STEPS);
            CHECK(with.sent < close + rounded, "%s as %s over %s: %g is missing",
                  k / 2 == 2 ? "small ones" : "gradients", hvt_dtype_name(u.dist.wire), comms[c], with.sent);
            CHECK(with.held < rounded, "%s over %s: %g is neither sent nor held back",
                  hvt_dtype_name(u.dist.wire), comms[c], with.held);
            CHECK(without.sent > 4 * with.sent, "%s over %s loses %g with, %g without",
                  hvt_dtype_name(u.dist.wire), comms[c], with.sent, without.sent);
        }
}

TEST(buckets_and_updates_do_not_change_what_is_fed_back)
{
    for (size_t i = 0; i < 2 * HVT_LEN(comms); i++) {
        setup u = usual(job, 2 * hvt_world_size(job));
        result plain, want, got;

        if (!can_open(comms[i / 2]))
            continue;
        u.comm = comms[i / 2];
        u.dist.wire = i % 2 ? HVT_BF16 : HVT_F16;
        u.dist.update = HVT_UPDATE_REPLICATED;
        plain = train(&u, 6);
        u.dist.error_feedback = true;
        want = train(&u, 6);
        CHECK(want.weights != plain.weights, "%s over %s: nothing is fed back", hvt_dtype_name(u.dist.wire),
              u.comm);
        for (int k = 0; k < 3; k++) {
            u.dist.update = k ? HVT_UPDATE_SHARDED : HVT_UPDATE_REPLICATED;
            u.dist.bucket_bytes = k < 2 ? HVT_BUCKET_ALL : 1000;
            got = train(&u, 6);
            check_replicas(u.comm, got);
            CHECK_SAME(want, got, "%s over %s, update %d, buckets of %zu bytes: other bits",
                       hvt_dtype_name(u.dist.wire), u.comm, (int)u.dist.update, u.dist.bucket_bytes);
        }
    }
}

/* The first updates overflow and take what they held back along; then it is as if training began there. */
TEST(what_a_skipped_update_held_back_is_dropped)
{
    setup u = usual(job, hvt_world_size(job));
    result a, b;
    rig x, y;

    u.type = u.dist.wire = HVT_F16;
    u.dist.error_feedback = true;
    u.norm = false; /* moving statistics are kept when an update is skipped */
    skip_first_updates(&u, &x, &y);
    CHECK_OK(rig_result(&x, &a));
    CHECK_OK(rig_result(&y, &b));
    CHECK(a.weights == b.weights && a.momentum == b.momentum, "a skipped update left something behind");
    rig_close(&x);
    rig_close(&y);
}

TEST(feedback_that_has_nothing_to_feed_or_differs_is_refused)
{
    setup u = usual(job, hvt_world_size(job));
    rig r;

    u.dist.error_feedback = true;
    CHECK_FAILS(rig_open(&r, &u), E_ARG, "error feedback is for wires of 16 bits");
    rig_close(&r);
    u.dist.wire = HVT_BF16;
    u.dist.error_feedback = hvt_world_rank(job) == 0;
    if (hvt_world_size(job) > 1) {
        CHECK_FAILS(rig_open(&r, &u), E_MISMATCH, "error feedback");
        rig_close(&r);
    }
}

int main(void)
{
    if (!rig_begin())
        return 1;
    RUN(what_16_bits_cannot_carry_is_sent_later);
    RUN(buckets_and_updates_do_not_change_what_is_fed_back);
    RUN(what_a_skipped_update_held_back_is_dropped);
    RUN(feedback_that_has_nothing_to_feed_or_differs_is_refused);
    return rig_end();
}
