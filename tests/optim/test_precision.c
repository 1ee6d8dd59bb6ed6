/*
 * Activations in 16 bits and loss scaling, from the batch to the checkpoint. Runs alone and under mpirun.
 */
#include "folder.h"
#include "rig.h"
#include "hvt/train.h"

#include <unistd.h>

static const char *const devices[] = {"ref", "cpu"};

/* f16 with a scale that moves, or bf16 without one. */
static setup precise(hvt_world *world, int shards, const char *device, hvt_dtype type)
{
    setup u = usual(world, shards);

    u.device = device;
    u.type = type;
    if (type == HVT_F16)
        u.dist.scaling = (hvt_scaling){.scale = 65536, .interval = 3, .floor = 1};
    return u;
}

TEST(training_in_16_bits_stays_close_to_f32)
{
    static const double close[] = {[HVT_F16] = 8e-2, [HVT_BF16] = 3e-1};

    for (size_t d = 0; d < HVT_LEN(devices); d++)
        for (hvt_dtype type = HVT_F16; type <= HVT_BF16; type++) {
            setup u = precise(job, 2 * hvt_world_size(job), devices[d], type),
                  exact = precise(job, 2 * hvt_world_size(job), devices[d], HVT_F32);
            float *start, *a, *b;
            double far;
            size_t n;

            b = walk(&exact, 6, &start, &n);
            a = walk(&u, 6, NULL, &n);
            far = distance(a, b, start, n);
            CHECK(far > 0 && far < close[type], "%s in %s parts from f32 by %g", devices[d],
                  hvt_dtype_name(type), far);
            free(start);
            free(a);
            free(b);
        }
}

TEST(ranks_buckets_and_wires_keep_their_promise_in_16_bits)
{
    for (size_t d = 0; d < HVT_LEN(devices); d++)
        for (hvt_dtype type = HVT_F16; type <= HVT_BF16; type++) {
            setup all = precise(job, even_shards(), devices[d], type),
                  one = precise(lone, even_shards(), devices[d], type);
            result want = train(&one, 6);

            CHECK_SAME(want, train(&all, 6), "%s in %s: ranks change the bits", devices[d],
                       hvt_dtype_name(type));
            all.dist.bucket_bytes = 1 << 20;
            CHECK_SAME(want, train(&all, 6), "%s in %s: buckets change the bits", devices[d],
                       hvt_dtype_name(type));
            all.dist.wire = type;
            check_replicas("a wire of 16 bits", train(&all, 6));
        }
}

/* What convolutions read is the rounded parameters: an update writes them along, or, where it wrote a slice
 * alone, the next forward pass does. */
static void check_copy(rig *r, const char *when)
{
    size_t n = r->m->arena_count;
    uint16_t *want = calloc(n, sizeof *want);

    CHECK_OK(hvt__model_refresh(r->m));
    CHECK_OK(r->dev->ops->vector.cast(r->dev, n, 1, r->m->params, HVT_F32, want, r->m->type));
    CHECK(!memcmp(want, r->m->copy, n * sizeof *want), "the copy is stale %s", when);
    free(want);
}

TEST(the_16_bit_copy_follows_the_parameters)
{
    setup u = precise(job, hvt_world_size(job), "cpu", HVT_F16);
    size_t plain;
    rig r;

    u.seed = 100 + (uint64_t)hvt_world_rank(job);
    CHECK_OK(rig_open(&r, &u));
    CHECK_OK(hvt_distopt_broadcast(r.d, 0));
    for (int t = 0; t < 3; t++) {
        CHECK_OK(rig_step(&r, t));
        check_copy(&r, "after an update");
    }
    CHECK_OK(hvt_world_barrier(job)); /* the parameters may be one block of all ranks */
    CHECK_OK(hvt_model_init(r.m, 7));
    CHECK_OK(hvt_world_barrier(job));
    CHECK_OK(rig_step_counts(&r, 3, 0, (int[SHARDS_MAX]){1, 1, 1, 1})); /* its forward pass makes it anew */
    check_copy(&r, "after initialisation");
    plain = 2 * hvt_model_bytes(r.m);
    CHECK(plain > 2 * r.m->arena_count * 10, "%zu bytes do not hold the arenas", plain / 2);
    rig_close(&r);
}

/* The first updates overflow, so the scale falls; then it is as if training began there. */
static void check_skips(hvt_optim_opts optim)
{
    setup u = precise(job, hvt_world_size(job) * 2, "ref", HVT_F16);
    float *a, *b;
    size_t n;
    rig x, y;

    u.sgd = optim;
    skip_first_updates(&u, &x, &y);
    a = parameters(&x, &n);
    b = parameters(&y, &n);
    CHECK(!memcmp(a, b, n * sizeof *a), "they left something");
    free(a);
    free(b);
    rig_close(&x);
    rig_close(&y);
}

TEST(skipped_first_updates_leave_no_trace)
{
    check_skips((hvt_optim_opts){.momentum = .9f, .weight_decay = 5e-4f});
    check_skips((hvt_optim_opts){.kind = HVT_OPTIM_ADAM, HVT_ADAM_DEFAULTS, .weight_decay = 5e-4f});
}

static size_t bad_at;
static float one_bad(int shard, size_t i)
{
    return i >= bad_at && shard == hvt_world_size(job) - 1 ? INFINITY : 1e-3f;
}

TEST(the_first_parameter_that_is_not_finite_is_named_on_every_rank)
{
    for (int wire = HVT_F32; wire <= HVT_BF16; wire++)
        for (int p = 0;; p++) {
            setup u = precise(job, hvt_world_size(job), "ref", HVT_F16);
            result before, after;
            rig r;

            u.dist.wire = (hvt_dtype)wire;
            u.dist.scaling = (hvt_scaling){.scale = 8, .interval = 2000, .floor = 8};
            CHECK_OK(rig_open(&r, &u));
            if (p == r.m->nparam_tensors) {
                rig_close(&r);
                break;
            }
            bad_at = r.m->param[p].offset + r.m->param[p].count / 2;
            CHECK_OK(rig_result(&r, &before));
            CHECK_FAILS(step_by_hand(&r, one_bad, 2, .1), E_DIVERGED, r.m->param[p].name);
            CHECK(strstr(hvt_last_error(), "loss scale, 8:") && hvt_last_error_is_agreed(), "%s",
                  hvt_last_error());
            CHECK(hvt_distopt_stopped(r.d) == 1, "step %lld", (long long)hvt_distopt_stopped(r.d));
            CHECK_OK(rig_result(&r, &after));
            CHECK(same(before, after), "the step that ended the run changed something");
            rig_close(&r);
        }
}

/* ---- checkpoints ---- */

static setup saved_setup(int interval)
{
    setup u = precise(lone, 2, "cpu", HVT_F16);

    u.comm = "self";
    u.dist.scaling = (hvt_scaling){.scale = 0x1p20, .interval = interval, .floor = 1};
    return u;
}

TEST(a_checkpoint_goes_on_with_its_loss_scale)
{
    setup u = saved_setup(3);
    hvt_progress p = {.top1 = -1};
    result straight, resumed;
    rig r;

    if (!folder_make())
        abort();
    CHECK_OK(rig_open(&r, &u));
    for (int t = 0; t < 11; t++) {
        if (t == 7)
            CHECK_OK(hvt_checkpoint_save(folder, "last", r.m, r.o, &p));
        CHECK_OK(rig_step(&r, t));
    }
    CHECK_OK(rig_result(&r, &straight));
    CHECK(straight.skipped > 0, "nothing was skipped: the scale did not move");
    rig_close(&r);

    u.seed++;
    CHECK_OK(rig_open(&r, &u));
    CHECK_OK(hvt_checkpoint_load(folder, r.m, r.o, &p));
    CHECK_OK(hvt_distopt_broadcast(r.d, 0));
    for (int t = 7; t < 11; t++)
        CHECK_OK(rig_step(&r, t));
    CHECK_OK(rig_result(&r, &resumed));
    CHECK(straight.weights == resumed.weights && straight.momentum == resumed.momentum,
          "saving and going on is not a straight run");
    rig_close(&r);
    free(p.options);

    u.dist.scaling = (hvt_scaling){.scale = 32}; /* one that was asked for stays */
    CHECK_OK(rig_open(&r, &u));
    CHECK_OK(hvt_checkpoint_load(folder, r.m, r.o, &p));
    CHECK_OK(rig_step(&r, 0));
    CHECK(hvt_distopt_loss_scale(r.d) == 32, "scale %g", hvt_distopt_loss_scale(r.d));
    rig_close(&r);
    free(p.options);
    CHECK(folder_remove(), "%s stays behind", folder);
}

TEST(impossible_precisions_are_refused)
{
    static const hvt_scaling bad[] = {{.scale = -1},
                                      {.scale = NAN},
                                      {.scale = 8, .interval = 4, .floor = 16},
                                      {.scale = 8, .interval = 4},
                                      {.scale = 8, .interval = -1, .floor = 1}};
    hvt_device *dev = NULL;
    hvt_model *m = NULL;

    CHECK_OK(hvt_device_open("ref", NULL, &dev));
    CHECK_OK(hvt_model_create(dev, &m));
    CHECK_FAILS(hvt_model_set_type(m, HVT_I32), E_ARG, "i32");
    CHECK_OK(hvt_model_plan(m, 1, hvt_linear(m, hvt_avgpool(m, hvt_input(m, 2, 2, 3)), 4)));
    CHECK_FAILS(hvt_model_set_type(m, HVT_F16), E_ARG, "before hvt_model_plan()");
    hvt_model_free(&m);
    hvt_device_close(&dev);
    for (size_t i = 0; i < HVT_LEN(bad); i++) {
        setup u = precise(lone, 1, "ref", HVT_F16);
        rig r;

        u.dist.scaling = bad[i];
        CHECK_FAILS(rig_open(&r, &u), E_ARG, "loss scale");
        rig_close(&r);
    }
}

int main(void)
{
    if (!rig_begin())
        return 1;
    RUN(training_in_16_bits_stays_close_to_f32);
    RUN(ranks_buckets_and_wires_keep_their_promise_in_16_bits);
    RUN(the_16_bit_copy_follows_the_parameters);
    RUN(skipped_first_updates_leave_no_trace);
    RUN(the_first_parameter_that_is_not_finite_is_named_on_every_rank);
    RUN(a_checkpoint_goes_on_with_its_loss_scale);
    RUN(impossible_precisions_are_refused);
    return rig_end();
}
