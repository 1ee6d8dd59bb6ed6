/*
 * A model over several devices: its local shards run through the stages as a pipeline, with the bits that
 * they have one after the other on one device. Runs alone and under mpirun.
 */
#include "model/layers.h"
#include "rig.h"

/* Every rank has `local` shards. */
static setup split(int stages, int local)
{
    setup u = usual(job, local * hvt_world_size(job));

    u.device = "cpu";
    u.stages = stages;
    return u;
}

static void check_bits(const char *what, const setup *u)
{
    setup plain = *u;
    result want, got = train(u, 5);

    plain.stages = 0;
    want = train(&plain, 5);
    CHECK_SAME(want, got, "%s: %d stages have %016llx, one device %016llx", what, u->stages,
               (unsigned long long)got.weights, (unsigned long long)want.weights);
    check_replicas(what, got);
}

TEST(any_stages_shards_and_orders_have_the_bits_of_one_device)
{
    static const int shards[] = {1, 2, 3, 4, 7};

    for (int stages = 2; stages <= STAGES_MAX; stages++)
        for (size_t i = 0; i < HVT_LEN(shards); i++)
            for (int k = 0; k < 4; k++) {
                setup u = split(stages, shards[i]);

                u.split.pipeline = k & 1 ? HVT_PIPELINE_1F1B : HVT_PIPELINE_GPIPE;
                u.device = k & 2 ? "ref" : "cpu";
                u.threads = 1 + (k == 1);
                check_bits("a pipeline", &u);
            }
}

TEST(types_scaling_clipping_and_averages_go_with_it)
{
    for (int k = 0; k < 6; k++) {
        setup u = split(2 + k % 2, 4);

        u.type = k == 1 ? HVT_BF16 : k == 2 ? HVT_F16 : HVT_F32;
        u.dist.scaling = (hvt_scaling){.scale = k == 2 ? 1024 : 0};
        u.dist.clip_norm = k == 3 ? .5 : 0;
        u.sgd.ema = (hvt_ema){k == 4 ? .9 : 0, 1};
        u.dist.update = k % 2 ? HVT_UPDATE_SHARDED : HVT_UPDATE_REPLICATED;
        u.dist.bucket_bytes = k == 5 ? HVT_BUCKET_ALL : 0;
        u.loss.kind = k == 5 ? HVT_LOSS_MSE : HVT_LOSS_CE;
        u.norm = k != 4;
        check_bits("a kind", &u);
    }
}

TEST(frozen_stages_have_no_gradients)
{
    static const char *const freezes[] = {"conv2d1.weight$", "conv2d1,batchnorm2,conv2d4,batchnorm5",
                                          "conv2d,batchnorm"};

    for (size_t i = 0; i < HVT_LEN(freezes); i++) {
        setup u = split(3, 4);

        u.freeze = freezes[i];
        check_bits(freezes[i], &u);
    }
}

TEST(synchronized_norms_go_with_it)
{
    for (int stages = 2; stages <= 3; stages++) {
        setup u = split(stages, 4);

        u.dist.sync_batchnorm = true;
        check_bits("synchronized", &u);
    }
}

TEST(evaluation_has_the_bits_of_one_device)
{
    float logits[2][BATCH * CLASSES], loss[2][BATCH];

    for (int k = 0; k < 2; k++) {
        setup u = split(k ? 3 : 0, 2);
        int32_t places[BATCH];
        hvt_batch b;
        rig r;

        CHECK_OK(rig_open(&r, &u));
        for (int t = 0; t < 3 && r.d; t++) {
            CHECK_OK(rig_step(&r, t));
            CHECK_OK(fill_batch(&r, 7, BATCH, &b));
            CHECK_OK(hvt_model_forward(r.m, &b, false));
            CHECK_OK(hvt_model_rows(r.m, loss[k], places));
            CHECK_OK(hvt_model_logits(r.m, logits[k]));
        }
        rig_close(&r);
    }
    CHECK(!memcmp(logits[0], logits[1], sizeof logits[0]), "logits differ");
    CHECK(!memcmp(loss[0], loss[1], sizeof loss[0]), "losses differ");
}

/* A pass without a step, and its gradients. */
TEST(a_pass_on_its_own_has_the_gradients_of_one_device)
{
    float *g[2] = {NULL};
    size_t n = 0;

    for (int k = 0; k < 2; k++) {
        setup u = split(k ? 3 : 0, 1);
        hvt_batch b;
        rig r;

        CHECK_OK(rig_prepare(&r, &u));
        CHECK_OK(fill_batch(&r, 7, BATCH, &b));
        CHECK_OK(hvt_model_forward(r.m, &b, true));
        CHECK_OK(hvt_model_backward(r.m, NULL, NULL));
        n = r.m->grad_count;
        g[k] = malloc(n * sizeof(float));
        memcpy(g[k], r.m->grads, n * sizeof(float));
        rig_close(&r);
    }
    CHECK(!memcmp(g[0], g[1], n * sizeof(float)), "gradients differ");
    free(g[0]);
    free(g[1]);
}

/* Memory of activations is filled with NaN as soon as nothing needs it. */
TEST(no_stage_reads_what_it_does_not_keep)
{
    for (int stages = 0; stages <= 3; stages += 1 + !stages)
        for (int k = 0; k < 4; k++) {
            setup u = split(stages, 5), clean;

            u.split.pipeline = k & 1 ? HVT_PIPELINE_1F1B : HVT_PIPELINE_GPIPE;
            u.dist.sync_batchnorm = k & 2;
            clean = u;
            u.poisons = true;
            CHECK_SAME(train(&clean, 3), train(&u, 3), "%d stages", stages);
        }
}

/* ---- refusals ---- */

static void check_refused(const setup *u, hvt_status code, const char *text)
{
    rig r;
    hvt_status s = rig_prepare(&r, u);

    CHECK(s == code && strstr(hvt_last_error(), text), "%s: %d, %s", text, s,
          s ? hvt_last_error() : "not refused");
    rig_close(&r);
}

TEST(cuts_that_cannot_be_are_refused)
{
    static const struct {
        const char *at, *text;
    } bad[] = {
        {"layer9,conv2d11", "'layer9': the model has no layer or module of this name"},
        {"conv2d4", "1 place for 3 devices, expected 2"},
        {"conv2d4,conv2d7,conv2d11", "3 places for 3 devices, expected 2"},
        {"conv2d4,conv2d7", "cut before conv2d7: 2 values cross it, such as batchnorm"},
        {"conv2d11,conv2d4", "conv2d4 comes before the cut"},
        {"conv2d4,conv2d4", "no layer is left for device 1 of 3"},
        {"conv2d1,conv2d4", "no layer is left for device 0 of 3"},
        {"conv2d4,", "'': the model has no layer"},
    };

    for (size_t i = 0; i < HVT_LEN(bad); i++) {
        setup u = split(3, 1);

        u.split.at = bad[i].at;
        check_refused(&u, HVT_E_ARG, bad[i].text);
    }
}

TEST(named_cuts_have_the_same_bits)
{
    setup u = split(3, 4);

    u.split.at = "conv2d4,conv2d11";
    check_bits("by names", &u);
}

static size_t needs(int stages, hvt_pipeline pipeline, int shards)
{
    setup u = split(stages, shards);
    size_t bytes = 0;
    rig r;

    u.split.pipeline = pipeline;
    CHECK_OK(rig_open(&r, &u));
    if (r.d)
        bytes = hvt_model_memory(r.m).activations;
    rig_close(&r);
    return bytes;
}

TEST(one_backward_pass_after_each_forward_pass_needs_less_memory)
{
    size_t gpipe = needs(2, HVT_PIPELINE_GPIPE, 8), one = needs(2, HVT_PIPELINE_1F1B, 8);

    CHECK(one < gpipe / 2, "%zu bytes of activations, gpipe %zu", one, gpipe);
}

TEST(a_model_that_exceeds_a_devices_memory_is_refused_and_fits_on_two)
{
    setup one = split(1, 1), two = split(2, 1);
    size_t all;
    rig r;

    CHECK_OK(rig_prepare(&r, &one));
    all = hvt_model_bytes(r.m);
    rig_close(&r);
    one.split.memory_limit = two.split.memory_limit = all * 3 / 4;
    check_refused(&one, HVT_E_MEM, "device cpu:0 needs ");
    CHECK_OK(rig_prepare(&r, &two));
    rig_close(&r);
    two.split.memory_limit = 1000;
    check_refused(&two, HVT_E_MEM, "but its limit is ");
}

TEST(devices_that_cannot_be_are_refused)
{
    hvt_device *cpu = NULL, *ref = NULL;
    hvt_model *m = NULL;

    CHECK_OK(hvt_device_open("cpu", NULL, &cpu));
    CHECK_OK(hvt_device_open("ref", NULL, &ref));
    CHECK_OK(hvt_model_create(cpu, &m));
    hvt_device *const twice[] = {cpu, cpu}, *const mixed[] = {cpu, ref}, *const other[] = {ref};
    const struct {
        hvt_split_opts o;
        const char *text;
    } bad[] = {
        {{.devices = twice, .count = 2}, "devices 0 and 1 of a split model are the same"},
        {{.devices = mixed, .count = 2}, "expected the same kind"},
        {{.devices = other, .count = 1}, "expected the same kind"},
        {{.devices = twice}, "a model on 0 devices"},
        {{.devices = twice, .count = 1, .micro_batches = -1}, "-1 micro-batches"},
    };

    for (size_t i = 0; i < HVT_LEN(bad); i++)
        CHECK_FAILS(hvt_model_split(m, &bad[i].o), E_ARG, bad[i].text);
    hvt_model_free(&m);
    hvt_device_close(&ref);
    hvt_device_close(&cpu);
}

/* ---- failures ---- */

TEST(a_rank_without_memory_stops_all_of_them)
{
    setup u = split(3, 3);
    rig r;

    CHECK_OK(rig_prepare(&r, &u));
    rig_create_scarcely(&r);
    if (r.d)
        CHECK_OK(rig_step(&r, 0));
    rig_close(&r);
}

static int calls_left;

static hvt_status failing_forward(hvt_op *op, int real, const void *x, const void *w, void *y, void *ws)
{
    HVT_CHECK(calls_left-- > 0, E_DEVICE, "the device broke");
    return hvt_device_ref.conv.forward(op, real, x, w, y, ws);
}

TEST(a_stage_that_fails_ends_the_step_with_its_message)
{
    for (int stage = 0; stage < 3; stage++)
        for (int calls = 0; calls < 20; calls += 3) {
            hvt_device_ops broken = hvt_device_ref;
            setup u = split(3, 6);
            hvt_status s;
            rig r;

            u.device = "ref";
            u.split.pipeline = calls & 1 ? HVT_PIPELINE_1F1B : HVT_PIPELINE_GPIPE;
            CHECK_OK(rig_open(&r, &u));
            if (r.d)
                CHECK_OK(rig_step(&r, 0)); /* the threads have begun */
            broken.conv.forward = failing_forward;
            calls_left = calls;
            r.stage[stage]->ops = &broken;
            s = r.d ? rig_step(&r, 0) : HVT_OK;
            if (calls_left < 0)
                CHECK(s == HVT_E_DEVICE && strstr(hvt_last_error(), "the device broke"), "stage %d: %d, %s",
                      stage, s, hvt_last_error());
            r.stage[stage]->ops = &hvt_device_ref;
            if (s)
                CHECK_OK(hvt_distopt_abandon(r.d));
            if (r.d)
                CHECK_OK(rig_step(&r, 0)); /* the next step begins anew */
            rig_close(&r);
        }
}

int main(void)
{
    if (!rig_begin())
        return 1;
    RUN(any_stages_shards_and_orders_have_the_bits_of_one_device);
    RUN(types_scaling_clipping_and_averages_go_with_it);
    RUN(frozen_stages_have_no_gradients);
    RUN(synchronized_norms_go_with_it);
    RUN(evaluation_has_the_bits_of_one_device);
    RUN(a_pass_on_its_own_has_the_gradients_of_one_device);
    RUN(no_stage_reads_what_it_does_not_keep);
    RUN(cuts_that_cannot_be_are_refused);
    RUN(named_cuts_have_the_same_bits);
    RUN(one_backward_pass_after_each_forward_pass_needs_less_memory);
    RUN(a_model_that_exceeds_a_devices_memory_is_refused_and_fits_on_two);
    RUN(devices_that_cannot_be_are_refused);
    RUN(a_rank_without_memory_stops_all_of_them);
    RUN(a_stage_that_fails_ends_the_step_with_its_message);
    return rig_end();
}
