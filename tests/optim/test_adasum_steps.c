/*
 * Steps that add the shards' gradients by Adasum, against plain loops over all shards. Runs alone and under
 * mpirun.
 */
#include "optim/dist.h"
#include "heap.h"
#include "rig.h"

static const char *const comms[] = {"mpi", "shm", "self"};

static int size;

static setup by_adasum(hvt_world *world, int shards)
{
    setup u = usual(world, shards);

    u.dist.adasum = true;
    return u;
}

/* The Adasum of elements [first, end) of all shards' mean gradients, of three images each; free() it. */
static double *expected(int shards, size_t first, size_t end)
{
    const size_t n = end - first;
    double *v = malloc((size_t)shards * n * sizeof *v);

    for (size_t i = 0; i < (size_t)shards * n; i++)
        v[i] = (double)leaf((int)(i / n), first + i % n) / 3;
    for (int left = shards; left > 1; left = (left + 1) / 2)
        for (int p = 0; 2 * p < left; p++) {
            const double *a = v + (size_t)(2 * p) * n, *b = a + n;
            double aa = 0, bb = 0, ab = 0;

            for (size_t i = 0; 2 * p + 1 < left && i < n; i++) {
                aa += a[i] * a[i];
                bb += b[i] * b[i];
                ab += a[i] * b[i];
            }
            for (size_t i = 0; i < n; i++)
                v[(size_t)p * n + i] =
                    2 * p + 1 < left ? (1 - ab / (2 * aa)) * a[i] + (1 - ab / (2 * bb)) * b[i] : a[i];
        }
    return v;
}

TEST(a_step_applies_the_adasum_of_the_mean_gradients_of_shards)
{
    for (size_t k = 0; k < HVT_LEN(comms); k++)
        for (int each = 1; each < 4 && can_open(comms[k]); each++) {
            setup u = by_adasum(job, each * size);
            float *before;
            rig r;

            u.comm = comms[k];
            u.sgd = (hvt_optim_opts){0};
            CHECK_OK(rig_open(&r, &u));
            before = malloc(r.m->arena_count * sizeof *before);
            memcpy(before, r.m->params, r.m->arena_count * sizeof *before);
            CHECK_OK(hvt_world_barrier(job)); /* ranks share their parameters */
            CHECK_OK(step_by_hand(&r, leaf, 3, 1));
            for (int i = 0; i < r.m->ntrained; i++) {
                const size_t first = r.m->param[i].offset;
                const size_t end = i + 1 < r.m->ntrained ? r.m->param[i + 1].offset : r.m->grad_count;
                double *want = expected(u.shards, first, end), far = 0;

                for (size_t j = 0; j < r.m->param[i].count; j++)
                    far =
                        fmax(far, fabs((double)before[first + j] - (double)r.m->params[first + j] - want[j]));
                CHECK(far < 2e-7, "%s, %d shards, %s: off by %g", u.comm, u.shards, r.m->param[i].name, far);
                free(want);
            }
            free(before);
            rig_close(&r);
        }
}

TEST(ranks_comms_buckets_threads_and_a_worker_do_not_change_a_bit)
{
    const int steps = heap_memcheck() ? 2 : 6, shards = 3 * size;

    for (int k = 0; k < 2; k++) {
        setup u = by_adasum(lone, shards);
        result want, mean;

        u.device = k ? "cpu" : "ref";
        want = train(&u, steps);
        u.dist.adasum = false;
        mean = train(&u, steps);
        CHECK(want.weights != mean.weights || shards == 1, "Adasum is the mean");
        u = by_adasum(job, shards);
        u.device = k ? "cpu" : "ref";
        check_every_exchange(u, steps, want);
    }
}

/* Gives rank 0 all shards but one of each other rank, halfway. */
TEST(shards_may_be_divided_anew)
{
    const int shards = 2 * size + 1;
    setup u = by_adasum(lone, shards);
    const result want = train(&u, 4);
    const int rank = hvt_world_rank(job);
    result got;
    rig r;

    u = by_adasum(job, shards);
    CHECK_OK(rig_prepare(&r, &u));
    r.u.dist.local_shards = 2 + (rank == size - 1);
    CHECK_OK(hvt_distopt_create(r.o, r.comm, &r.u.dist, NULL, 0, &r.d));
    for (int t = 0; t < 4; t++) {
        int counts[SHARDS_MAX], local = t < 2 ? 2 + (rank == size - 1) : rank ? 1 : shards - size + 1;
        int first = t < 2 ? 2 * rank : rank ? shards - size + rank : 0;

        if (t == 2)
            CHECK_OK(hvt_distopt_divide(r.d, local));
        for (int s = 0; s < shards; s++)
            counts[s] = t % 3 == 0 ? BATCH : (int[]){BATCH, BATCH - 1, 0, 1}[(s + t) % 4];
        CHECK_OK(hvt_distopt_begin(r.d, counts, shards, .05));
        for (int s = first; s < first + local; s++) {
            hvt_batch b;

            CHECK_OK(fill_batch(&r, (t * shards + s) * BATCH, counts[s], &b));
            b.shard = s;
            b.shards = shards;
            b.shard_counts = counts;
            CHECK_OK(hvt_model_forward(r.m, &b, true));
            CHECK_OK(hvt_model_backward(r.m, hvt_distopt_on_grad, r.d));
        }
        CHECK_OK(hvt_distopt_step(r.d));
    }
    CHECK_OK(rig_result(&r, &got));
    rig_close(&r);
    CHECK_SAME(want, got, "another division: other bits");
}

TEST(what_adasum_cannot_do_is_refused)
{
    setup u = by_adasum(job, size);
    rig r;

    CHECK_OK(rig_prepare(&r, &u));
    r.u.dist.wire = HVT_F16;
    CHECK_FAILS(hvt_distopt_create(r.o, r.comm, &r.u.dist, NULL, 0, &r.d), E_ARG,
                "sends gradients as f32, not as f16");
    r.u.dist.wire = HVT_F32;
    r.u.dist.powersgd = 2;
    CHECK_FAILS(hvt_distopt_create(r.o, r.comm, &r.u.dist, NULL, 0, &r.d), E_ARG,
                "not as PowerSGD's factors");
    r.u.dist.powersgd = 0;
    r.u.dist.update = HVT_UPDATE_SHARDED;
    CHECK_FAILS(hvt_distopt_create(r.o, r.comm, &r.u.dist, NULL, 0, &r.d), E_ARG,
                "needs a replicated update");
    r.u.dist.update = HVT_UPDATE_AUTO;
    r.u.dist.adasum = hvt_world_rank(job) == 0;
    if (size > 1)
        CHECK_FAILS(hvt_distopt_create(r.o, r.comm, &r.u.dist, NULL, 0, &r.d), E_MISMATCH, "adasum");
    rig_close(&r);
}

int main(void)
{
    if (rig_begin()) {
        size = hvt_world_size(job);
        RUN(a_step_applies_the_adasum_of_the_mean_gradients_of_shards);
        RUN(ranks_comms_buckets_threads_and_a_worker_do_not_change_a_bit);
        RUN(shards_may_be_divided_anew);
        RUN(what_adasum_cannot_do_is_refused);
    }
    return rig_end();
}
