/*
 * Synchronized batch norm: statistics over the images of all shards of a step.
 *
 * The reference is plain batch norm on all images in one batch of one rank, which is what
 * torch.nn.SyncBatchNorm computes (tests/train/test_syncnorm.py compares with PyTorch itself). The bits do
 * not depend on ranks, comm, update path or worker. Runs alone and under mpirun.
 */
#include "comm_impl.h"
#include "nodes.h"
#include "optim/dist.h"
#include "rig.h"

static setup synchronized(hvt_world *world)
{
    setup u = usual(world, even_shards());

    u.dist.sync_batchnorm = true;
    u.dist.bucket_bytes = 3000;
    return u;
}

/* All images of a step as one batch of one rank. */
static setup whole(const setup *of)
{
    setup u = *of;

    u.world = lone;
    u.comm = "self";
    u.dist.sync_batchnorm = false;
    u.batch *= u.shards;
    u.shards = 1;
    return u;
}

/* Parameters and running statistics after steps of these counts; free() it. The first images of a step, full
 * shards but the last one: so they are the first ones of one batch, too. */
static float *after(const setup *u, const int images[], int steps, size_t *ret_count)
{
    size_t n;
    float *w;
    rig r;

    CHECK_OK(rig_open(&r, u));
    for (int t = 0; t < steps && r.d; t++) {
        int counts[SHARDS_MAX];

        for (int s = 0, left = images[t]; s < u->shards; left -= counts[s++])
            counts[s] = left < u->batch ? left : u->batch;
        CHECK_OK(rig_step_counts(&r, t, .05, counts));
    }
    w = parameters(&r, &n);
    w = realloc(w, (n + r.m->stats_count) * sizeof *w);
    memcpy(w + n, r.m->stats, r.m->stats_count * sizeof *w);
    *ret_count = n + r.m->stats_count;
    rig_close(&r);
    return w;
}

TEST(a_step_is_that_of_all_images_in_one_batch)
{
    static const char *const devices[] = {"ref", "cpu"};

    for (size_t k = 0; k < HVT_LEN(devices); k++) {
        setup u = synchronized(job), one = whole(&u), plain = u;
        int all = u.shards * u.batch, images[] = {all, all - 5, 3, all, 1, all - 1};
        size_t n;
        float *base, *want, *got, *other;

        u.device = one.device = plain.device = devices[k];
        plain.dist.sync_batchnorm = false;
        base = after(&one, images, 0, &n);
        want = after(&one, images, HVT_LEN(images), &n);
        got = after(&u, images, HVT_LEN(images), &n);
        other = after(&plain, images, HVT_LEN(images), &n);
        CHECK(distance(got, want, base, n) < 2e-5, "%s: %g from one batch", devices[k],
              distance(got, want, base, n));
        CHECK(distance(other, want, base, n) > 1e-2, "%s: without it only %g", devices[k],
              distance(other, want, base, n));
        free(base);
        free(want);
        free(got);
        free(other);
    }
}

/* Short, single and empty shards come in turns. */
static void check_bits(const char *what, const setup *u)
{
    setup alone = *u;
    result want, got = train(u, 5);

    alone.world = lone;
    alone.comm = "self";
    alone.dist.update = HVT_UPDATE_AUTO;
    want = train(&alone, 5);
    CHECK_SAME(want, got, "%s, %s: %016llx, alone %016llx", what, u->comm, (unsigned long long)got.weights,
               (unsigned long long)want.weights);
    check_replicas(what, got);
}

TEST(any_ranks_comm_and_update_give_the_same_bits)
{
    static const char *const comms[] = {"auto", "self", "shm", "mpi"};

    for (size_t c = 0; c < HVT_LEN(comms); c++)
        for (int k = 0; k < 4 && can_open(comms[c]); k++) {
            setup u = synchronized(job);

            u.comm = comms[c];
            u.device = k & 1 ? "cpu" : "ref";
            u.threads = 1 + (k & 1);
            u.dist.update = k < 2 ? HVT_UPDATE_REPLICATED : HVT_UPDATE_SHARDED;
            u.dist.check_replicas = 1;
            check_bits(k < 2 ? "replicated" : "sharded", &u);
        }
}

TEST(more_shards_on_a_rank_too)
{
    setup u = synchronized(job);

    u.shards *= 2;
    u.dist.update = HVT_UPDATE_SHARDED;
    check_bits("twice the shards", &u);
    u.dist.bucket_bytes = HVT_BUCKET_ALL;
    check_bits("one bucket", &u);
}

TEST(types_scaling_and_frozen_norms_go_with_it)
{
    static const char *const freezes[] = {"batchnorm", "conv2d1,batchnorm2", "conv2d1,batchnorm2.weight"};

    for (int k = 0; k < 6; k++) {
        setup u = synchronized(job);

        u.device = k & 1 ? "cpu" : "ref";
        u.type = k == 1 ? HVT_BF16 : k == 2 ? HVT_F16 : HVT_F32;
        u.dist.scaling = (hvt_scaling){.scale = k == 2 ? 1024 : 0};
        u.freeze = k < 3 ? NULL : freezes[k - 3];
        check_bits("a kind", &u);
    }
}

TEST(several_hosts_give_the_same_bits)
{
    static const int parts[][8] = {{2, 1}, {2, 2}};

    if (hvt_world_size(job) < 3 || hvt_world_size(job) > 4)
        SKIP("two hosts are made of 3 or 4 ranks");
    for (size_t i = 0; i < HVT_LEN(parts); i++) {
        hvt_world *all = job, laid;
        setup u;

        if (parts[i][0] + parts[i][1] != hvt_world_size(all))
            continue;
        laid = on_nodes(all, parts[i]);
        job = &laid;
        u = synchronized(job);
        u.comm = "hier";
        check_bits("two hosts", &u);
        free(laid.node_of);
        job = all;
    }
}

/* Gradients travel on the worker while statistics do on the caller's thread. */
TEST(a_worker_changes_nothing)
{
    static const char *const comms[] = {"auto", "mpi"};
    const hvt_overlap how = {.yield = true};

    for (size_t c = 0; c < HVT_LEN(comms); c++) {
        setup u = synchronized(job);
        result want, got = {0};
        rig r;

        u.comm = comms[c];
        u.dist.update = HVT_UPDATE_REPLICATED;
        if (!can_open(u.comm))
            continue;
        want = train(&u, 5);
        CHECK_OK(rig_open(&r, &u));
        if (r.d && hvt_comm_overlap(r.comm, &how) == HVT_OK) {
            for (int t = 0; t < 5; t++)
                CHECK_OK(rig_step(&r, t));
            CHECK_OK(rig_result(&r, &got));
            CHECK_SAME(want, got, "%s: with a worker %016llx", u.comm, (unsigned long long)got.weights);
        }
        rig_close(&r);
    }
}

TEST(predictions_and_evaluations_come_between)
{
    setup u = synchronized(job);
    result want = train(&u, 3), got;
    hvt_batch b;
    float images[PIXELS] = {0}, logits[CLASSES];
    rig r;

    CHECK_OK(rig_open(&r, &u));
    for (int t = 0; t < 3; t++) {
        CHECK_OK(hvt_model_predict(r.m, images, 1, logits));
        CHECK_OK(rig_step(&r, t));
        CHECK_OK(fill_batch(&r, 0, 3, &b));
        CHECK_OK(hvt_model_forward(r.m, &b, false));
        CHECK_OK(hvt_model_predict(r.m, images, 1, logits));
    }
    CHECK_OK(rig_result(&r, &got));
    CHECK_SAME(want, got, "predictions change it");
    rig_close(&r);
}

/* The distributed optimizer goes, and plain batch norm is back, with memory and all. */
TEST(without_it_everything_is_as_before)
{
    setup u = synchronized(job), plain = u;
    size_t bytes;
    result want, got;
    rig r;

    u.shards *= 2;
    plain.shards *= 2;
    plain.dist.sync_batchnorm = false;
    want = train(&plain, 3);
    CHECK_OK(rig_prepare(&r, &u));
    bytes = hvt_model_bytes(r.m);
    CHECK_OK(hvt_distopt_create(r.o, r.comm, &r.u.dist, NULL, 0, &r.d));
    CHECK(hvt_model_bytes(r.m) > bytes, "activations of %d shards take no memory", r.u.dist.local_shards);
    CHECK_OK(rig_step(&r, 0));
    hvt_distopt_free(&r.d);
    CHECK(hvt_model_bytes(r.m) == bytes, "%zu bytes, before %zu", hvt_model_bytes(r.m), bytes);
    CHECK_OK(hvt_model_init(r.m, u.seed));
    r.u.dist.sync_batchnorm = false;
    CHECK_OK(hvt_distopt_create(r.o, r.comm, &r.u.dist, NULL, 0, &r.d));
    CHECK_OK(hvt_model_take_loss(r.m, &got.loss));
    for (int t = 0; t < 3; t++)
        CHECK_OK(rig_step(&r, t));
    CHECK_OK(rig_result(&r, &got));
    CHECK_SAME(want, got, "after synchronized steps %016llx, else %016llx", (unsigned long long)got.weights,
               (unsigned long long)want.weights);
    rig_close(&r);
}

TEST(mistakes_are_one_clear_line)
{
    setup u = synchronized(job), bare = u;
    int local = u.shards / hvt_world_size(job), first = hvt_world_rank(job) * local, counts[SHARDS_MAX];
    hvt_batch b;
    rig r;

    CHECK_OK(rig_open(&r, &u));
    CHECK_OK(fill_batch(&r, 0, BATCH, &b));
    CHECK_FAILS(hvt_model_forward(r.m, &b, true), E_ARG, "call hvt_distopt_begin() first");
    for (int s = 0; s < u.shards; s++)
        counts[s] = BATCH;
    CHECK_OK(hvt_distopt_begin(r.d, counts, u.shards, .1));
    CHECK_OK(fill_batch(&r, 0, BATCH - 1, &b));
    CHECK_FAILS(hvt_model_forward(r.m, &b, true), E_ARG, "hvt_distopt_begin() got 4");
    for (int s = first; s < first + local; s++) {
        CHECK_OK(fill_batch(&r, s * BATCH, BATCH, &b));
        CHECK_OK(hvt_model_forward(r.m, &b, true));
        if (s < first + local - 1)
            CHECK_OK(hvt_model_backward(r.m, hvt_distopt_on_grad, r.d));
    }
    CHECK_FAILS(hvt_model_forward(r.m, &b, true), E_ARG, "training passes in a step");
    CHECK_OK(hvt_distopt_abandon(r.d));
    CHECK_OK(rig_step(&r, 0));
    rig_close(&r);

    bare.norm = false;
    CHECK_OK(rig_prepare(&r, &bare));
    CHECK_FAILS(hvt_distopt_create(r.o, r.comm, &r.u.dist, NULL, 0, &r.d), E_ARG,
                "the model has no batch norm");
    rig_close(&r);
}

TEST(parameters_that_layers_share_need_one_shard_a_rank)
{
    for (int local = 1; local <= 2; local++) {
        setup u = synchronized(job);
        hvt_value x, a, y;
        rig r = {.u = u};
        hvt_device_opts dev = {.threads = 1};
        hvt_status s;

        r.u.dist.local_shards = local;
        CHECK_OK(hvt_device_open("ref", &dev, &r.dev));
        CHECK_OK(hvt_comm_open(u.comm, job, r.dev, &r.comm));
        CHECK_OK(hvt_model_create(r.dev, &r.m));
        x = hvt_input(r.m, SIDE, SIDE, 3);
        a = hvt_conv2d(r.m, x, 3, 3, 1, 1);
        y = hvt_batchnorm(r.m, a);
        hvt_share(r.m, a);
        y = hvt_conv2d(r.m, y, 3, 3, 1, 1);
        CHECK_OK(hvt_model_plan(r.m, BATCH, hvt_linear(r.m, hvt_avgpool(r.m, y), CLASSES)));
        CHECK_OK(hvt_optim_create(r.m, &u.sgd, &r.o));
        s = hvt_distopt_create(r.o, r.comm, &r.u.dist, NULL, 0, &r.d);
        CHECK(s == (local == 1 ? HVT_OK : HVT_E_UNSUPPORTED), "%d shards: %s", local, hvt_last_error());
        rig_close(&r);
    }
}

TEST(ranks_agree_on_it)
{
    setup u = synchronized(job);
    rig r;

    if (hvt_world_size(job) == 1)
        SKIP("one rank");
    u.dist.sync_batchnorm = hvt_world_rank(job) == 0;
    CHECK_OK(rig_prepare(&r, &u));
    CHECK_FAILS(hvt_distopt_create(r.o, r.comm, &r.u.dist, NULL, 0, &r.d), E_MISMATCH, "batch norm over");
    rig_close(&r);
}

TEST(a_rank_without_memory_stops_all_of_them)
{
    setup u = synchronized(job);
    rig r;

    u.shards = 2 * hvt_world_size(job);
    CHECK_OK(rig_prepare(&r, &u));
    rig_create_scarcely(&r);
    if (r.d)
        CHECK_OK(rig_step(&r, 0));
    CHECK(r.m->sync, "it is not synchronized");
    rig_close(&r);
}

int main(void)
{
    if (!rig_begin())
        return 1;
    RUN(a_step_is_that_of_all_images_in_one_batch);
    RUN(any_ranks_comm_and_update_give_the_same_bits);
    RUN(more_shards_on_a_rank_too);
    RUN(types_scaling_and_frozen_norms_go_with_it);
    RUN(several_hosts_give_the_same_bits);
    RUN(a_worker_changes_nothing);
    RUN(predictions_and_evaluations_come_between);
    RUN(without_it_everything_is_as_before);
    RUN(mistakes_are_one_clear_line);
    RUN(parameters_that_layers_share_need_one_shard_a_rank);
    RUN(ranks_agree_on_it);
    RUN(a_rank_without_memory_stops_all_of_them);
    return rig_end();
}
