/*
 * step: the decisions of a step, on every device: check, decide, and the ops that obey. A *state* is the
 * step's, in memory that a host device can read.
 */
#include "devices.h"
#include "device/step.h"

static hvt_step_state begun(float loss_scale, int interval)
{
    return (hvt_step_state){.images = 8,
                            .loss_scale = loss_scale,
                            .growth = 2,
                            .backoff = 0.5f,
                            .interval = interval,
                            .fresh = 1,
                            .bad = UINT64_MAX,
                            .stop_bad = UINT64_MAX};
}

/* One step: is its gradient finite? */
static void decide(hvt_device *d, hvt_step_state *s, bool finite, float loss)
{
    const float g = finite ? 1 : INFINITY, sums[HVT__STEP_SUMS] = {loss, 3.25f, 5};

    CHECK_OK(d->ops->step.check(d, 1, &g, 77, s));
    CHECK_OK(d->ops->step.decide(d, s, sums));
}

/* Source: golden/scaler.txt by torch.amp.GradScaler. */
TEST(the_loss_scale_moves_as_in_pytorch)
{
    for (int dev = 0; dev < ndevs; dev++) {
        FILE *f = fopen(check_file("golden/scaler.txt"), "r");
        int interval, steps, lines = 0;
        float scale;

        CHECK(f, "golden/scaler.txt cannot be read");
        while (f && fscanf(f, " scaler %f %d %d", &scale, &interval, &steps) == 3) {
            hvt_step_state s = begun(scale, interval);

            s.floor = 1e-30f;
            for (int t = 1; t <= steps; t++, lines++) {
                int finite, good;

                CHECK(fscanf(f, "%d %f %d", &finite, &scale, &good) == 3, "a line is missing");
                decide(devs[dev], &s, finite, 1);
                CHECK(s.loss_scale == scale && s.good == good && s.apply == finite && !s.stop,
                      "step %d: scale %g, good %d, applied %d; PyTorch: %g, %d, %d", t, s.loss_scale, s.good,
                      s.apply, scale, good, finite);
            }
        }
        CHECK(lines == 160, "%d lines", lines);
        if (f)
            fclose(f);
    }
}

TEST(a_scale_at_its_floor_ends_the_run)
{
    for (int dev = 0; dev < ndevs; dev++) {
        hvt_step_state s = begun(10, 2000), at_floor;

        s.floor = 4;
        decide(devs[dev], &s, false, 1);
        CHECK(s.loss_scale == 5 && s.skipped == 1 && !s.stop, "scale %g", s.loss_scale);
        decide(devs[dev], &s, false, 1);
        CHECK(s.loss_scale == 4 && s.skipped == 2 && !s.stop, "scale %g fell below 4", s.loss_scale);
        decide(devs[dev], &s, true, 1);
        CHECK(s.apply && s.count == 24, "a good step at the floor is a step");
        at_floor = s;
        decide(devs[dev], &s, false, 9);
        CHECK(s.stop == HVT_STOP_SCALE && !s.apply && s.stop_step == 4 && s.stop_bad == 77 &&
                  s.stop_loss == 9,
              "stop %d at step %lld", s.stop, (long long)s.stop_step);
        CHECK(s.count == at_floor.count && s.sums[HVT__SUM_LOSS] == at_floor.sums[HVT__SUM_LOSS] &&
                  s.skipped == 2,
              "the step that ended the run was counted");
        decide(devs[dev], &s, true, 1);
        CHECK(s.stop == HVT_STOP_SCALE && !s.apply && s.stop_step == 4 && s.count == at_floor.count,
              "a run that ended goes on");
    }
}

TEST(skips_that_no_scale_can_end_end_the_run)
{
    for (int dev = 0; dev < ndevs; dev++) {
        hvt_step_state s = begun(1, 0);

        for (int t = 1; t < HVT__SKIPS_MOST; t++)
            decide(devs[dev], &s, false, 1);
        decide(devs[dev], &s, true, 1); /* one update among them, and they count anew */
        CHECK(s.loss_scale == 1 && s.apply && s.skipped == HVT__SKIPS_MOST - 1, "%lld skips",
              (long long)s.skipped);
        for (int t = 1; t < HVT__SKIPS_MOST; t++)
            decide(devs[dev], &s, false, 1);
        CHECK(!s.stop, "stopped after %d", s.skips_in_row);
        decide(devs[dev], &s, false, 1);
        CHECK(s.stop == HVT_STOP_SCALE && s.stop_step == 2 * HVT__SKIPS_MOST, "stop %d at %lld", s.stop,
              (long long)s.stop_step);
    }
}

TEST(a_loss_that_is_not_finite_ends_the_run_whatever_the_gradients)
{
    static const float loss[] = {NAN, INFINITY, -INFINITY};

    for (int dev = 0; dev < ndevs; dev++)
        for (int i = 0; i < 6; i++) {
            hvt_step_state s = begun(4, 2000);

            decide(devs[dev], &s, i % 2, loss[i / 2]);
            CHECK(s.stop == HVT_STOP_LOSS && !s.apply && s.stop_step == 1 && s.count == 0 &&
                      s.loss_scale == 4 && !(s.stop_loss - s.stop_loss == 0),
                  "loss %g: stop %d", loss[i / 2], s.stop);
        }
}

TEST(a_step_counts_and_divides_by_images_and_scale)
{
    for (int dev = 0; dev < ndevs; dev++) {
        hvt_step_state s = begun(1024, 2);

        decide(devs[dev], &s, true, 2.5f);
        CHECK(s.grad_scale == 1.0f / 8192 && s.fresh && s.apply, "scale %g", s.grad_scale);
        decide(devs[dev], &s, true, 0.5f); /* the scale grows, but this step's gradients have the old one */
        CHECK(s.grad_scale == 1.0f / 8192 && s.loss_scale == 2048 && !s.fresh, "scale %g", s.grad_scale);
        CHECK(s.sums[HVT__SUM_LOSS] == 3 && s.sums[HVT__SUM_ERROR] == 6.5 && s.sums[HVT__SUM_TOP5] == 10 &&
                  s.count == 16 && s.steps == 2,
              "loss %g, %g and %g, of %lld", s.sums[HVT__SUM_LOSS], s.sums[HVT__SUM_ERROR],
              s.sums[HVT__SUM_TOP5], (long long)s.count);
        s = begun(1024, 2000);
        s.floor = 1;
        decide(devs[dev], &s, false, 1);
        decide(devs[dev], &s, true, 1);
        CHECK(s.fresh && s.apply, "a skipped first step gave momentum something to hold");
    }
}

TEST(the_first_gradient_that_is_not_finite_is_found)
{
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    enum { MOST = 40000 };

    for (int t = 0; t < 60; t++) {
        size_t n = (size_t)(t % 3 ? between(1, 300) : between(9000, MOST)), first = n;
        uint64_t base = (uint64_t)between(0, 1 << 20);
        float *g = floats(n);

        g[between(0, (int)n - 1)] = 3e38f; /* large is not bad, nor is a subnormal */
        g[between(0, (int)n - 1)] = 1e-45f;
        for (int k = between(0, 3); k > 0; k--) {
            size_t at = (size_t)between(0, (int)n - 1);

            g[at] = bad[between(0, 2)];
            first = at < first ? at : first;
        }
        for (int dev = 0; dev < ndevs; dev++) {
            hvt_step_state s = begun(1, 0);
            uint64_t want = first < n ? base + first : UINT64_MAX;

            CHECK_OK(devs[dev]->ops->step.check(devs[dev], n, g, base, &s));
            CHECK(s.bad == want, "device %d, %zu elements: %llu, expected %llu", dev, n,
                  (unsigned long long)s.bad, (unsigned long long)want);
            s.bad = 5; /* what was found before is lower */
            CHECK_OK(devs[dev]->ops->step.check(devs[dev], n, g, base + 6, &s));
            CHECK(s.bad == 5, "a higher index took its place");
        }
        free(g);
    }
}

/* n floats from 2^-126 to 2^128, or all near 2^-20, some of them 0 */
static float *gradients(size_t n, bool wide)
{
    float *g = floats(n);

    for (size_t i = 0; i < n; i++)
        g[i] = between(0, 9) ? ldexpf(1 + fabsf(g[i]) / 2, wide ? between(-126, 127) : between(-22, -18)) : 0;
    return g;
}

/* Blocks of 16 in order, and their sums cut by frexp and added to integers. */
static void add_plain(size_t n, const float *g, int64_t bin[HVT__SQUARES_BINS])
{
    for (size_t first = 0; first < n; first += 16) {
        double sum = 0, left;
        int exponent, at;

        for (size_t i = first; i < n && i < first + 16; i++)
            sum += (double)g[i] * g[i];
        frexp(sum, &exponent);
        at = (exponent - 53 + 384) / 32;
        left = sum;
        for (int k = 2; sum > 0 && k >= 0; k--) {
            double unit = ldexp(1, 32 * (at + k) - 384), part = floor(left / unit);

            bin[at + k] += (int64_t)part;
            left -= part * unit;
        }
    }
}

/* The same value, whatever the bins' carries. */
static bool equal_sums(const int64_t *a, const int64_t *b)
{
    int64_t carry[2] = {0};
    bool same = true;

    for (int k = 0; k < HVT__SQUARES_BINS; k++) {
        carry[0] += a[k];
        carry[1] += b[k];
        same = same && (carry[0] & UINT32_MAX) == (carry[1] & UINT32_MAX);
        carry[0] >>= 32;
        carry[1] >>= 32;
    }
    return same && carry[0] == carry[1];
}

TEST(squares_are_added_exactly_in_any_order)
{
    for (int t = 0; t < 60; t++) {
        size_t n = (size_t)(t % 3 ? between(0, 300) : between(9000, 40000)), cut = n / 32 * 16;
        float *g = gradients(n, t % 2);
        hvt_step_state first = begun(1, 0);

        for (int dev = 0; dev < ndevs; dev++) {
            hvt_step_state s = begun(1, 0), parts = s, twice = s;
            int64_t want[HVT__SQUARES_BINS] = {0};
            const hvt_device_ops *ops = devs[dev]->ops;

            add_plain(n, g, want);
            CHECK_OK(ops->step.squares(devs[dev], n, g, &s));
            CHECK(equal_sums(s.squares, want), "device %d, %zu elements: not the sum of a plain loop", dev,
                  n);
            first = dev ? first : s;
            CHECK(!memcmp(s.squares, first.squares, sizeof s.squares), "device %d has other bits than ref",
                  dev);
            CHECK_OK(ops->step.squares(devs[dev], n - cut, g + cut, &parts));
            CHECK_OK(ops->step.squares(devs[dev], cut, g, &parts));
            CHECK(!memcmp(s.squares, parts.squares, sizeof s.squares),
                  "device %d: %zu elements in two parts have another sum", dev, n);
            CHECK_OK(ops->step.squares(devs[dev], n, g, &twice));
            CHECK_OK(ops->step.squares(devs[dev], n, g, &twice));
            for (int k = 0; k < HVT__SQUARES_BINS; k++)
                CHECK(twice.squares[k] == 2 * s.squares[k], "device %d: what was there before is lost", dev);
        }
        free(g);
    }
}

TEST(a_decision_clips_the_norm_and_forgets_it)
{
    static const struct {
        double most, squares, want; /* of images * loss scale * grad_scale */
    } cases[] = {
        {0, 9, 1}, {1e9, 9, 1}, {8, 0, 1}, {8, 4096, 1 / (1 + 1e-6 / 8)}, {.25, 4096, .25 / (8 + 1e-6)}};

    for (int dev = 0; dev < ndevs; dev++)
        for (size_t i = 0; i < HVT_LEN(cases); i++) {
            hvt_step_state s = begun(1, 0);
            const float g = (float)sqrt(cases[i].squares), sums[HVT__STEP_SUMS] = {1};

            s.clip_norm = cases[i].most;
            for (int finite = 0; finite < 2; finite++) { /* a step that is skipped leaves nothing behind */
                if (s.clip_norm > 0)
                    CHECK_OK(devs[dev]->ops->step.squares(devs[dev], 1, &g, &s));
                decide(devs[dev], &s, finite, 1);
                CHECK(s.apply == finite, "%d is applied", finite);
            }
            CHECK(fabs(8 * s.grad_scale / cases[i].want - 1) < 1e-7,
                  "device %d, case %zu: gradients times %.9g, expected %.9g", dev, i, 8 * s.grad_scale,
                  cases[i].want);
            CHECK_OK(devs[dev]->ops->step.decide(devs[dev], &s, sums));
            CHECK(8 * s.grad_scale == 1, "device %d, case %zu: the next step is clipped, too", dev, i);
        }
}

TEST(sgd_obeys_the_step_and_writes_a_rounded_copy)
{
    for (int t = 0; t < 40; t++) {
        size_t n = (size_t)(t % 4 ? between(1, 200) : between(9000, 30000));
        float *w0 = floats(n), *v0 = floats(n), *g = floats(n);
        const float *gs[] = {g};

        for (int dev = 0; dev < ndevs; dev++)
            for (int apply = 0; apply < 2; apply++) {
                hvt_step_state s = {.lr = 0.1f, .grad_scale = 0.3f, .apply = apply, .fresh = t % 2};
                hvt_dtype type = t % 3 ? HVT_F16 : HVT_BF16;
                float *w = copied(w0, n), *v = copied(v0, n), *plain = copied(w0, n), *v2 = copied(v0, n);
                uint16_t *copy = room(n * 2), *want = room(n * 2);
                hvt_sgd_args a = {.momentum = 0.9f, .step = &s, .copy = copy, .copy_type = type}, b = a;

                b.copy = NULL;
                memset(copy, 0xab, n * 2);
                memset(want, 0xab, n * 2);
                CHECK_OK(devs[dev]->ops->vector.sgd(devs[dev], n, &a, gs, 1, w, v));
                CHECK_OK(devs[dev]->ops->vector.sgd(devs[dev], n, &b, gs, 1, plain, v2));
                if (apply)
                    CHECK_OK(ref->ops->vector.cast(ref, n, 1, plain, HVT_F32, want, type));
                CHECK(!memcmp(w, plain, n * 4) && !memcmp(v, v2, n * 4), "the copy changes the update");
                CHECK(!memcmp(copy, want, n * 2), "device %d: the copy is not the rounded weight", dev);
                CHECK(apply == (memcmp(w, w0, n * 4) != 0) && apply == (memcmp(v, v0, n * 4) != 0),
                      "device %d: an update that may not be, or none", dev);
                free(w);
                free(v);
                free(plain);
                free(v2);
                free(copy);
                free(want);
            }
        free(w0);
        free(v0);
        free(g);
    }
}

TEST(adam_obeys_the_step_and_writes_a_rounded_copy)
{
    for (int t = 0; t < 24; t++) {
        size_t n = (size_t)(t % 4 ? between(1, 200) : between(9000, 30000));
        float *w0 = floats(n), *m0 = floats(n), *v0 = floats(n), *g = floats(n);
        const float *gs[] = {g};

        for (size_t i = 0; i < n; i++)
            v0[i] *= v0[i];

        for (int dev = 0; dev < ndevs; dev++)
            for (int apply = 0; apply < 2; apply++) {
                hvt_step_state s = {
                    .lr = 0.1f, .grad_scale = 0.3f, .apply = apply, .fresh = t % 2, .bias = {2, 3}};
                hvt_dtype type = t % 3 ? HVT_F16 : HVT_BF16;
                float *w = copied(w0, n), *m = copied(m0, n), *v = copied(v0, n);
                float *w2 = copied(w0, n), *m2 = copied(m0, n), *v2 = copied(v0, n);
                uint16_t *copy = room(n * 2), *want = room(n * 2);
                hvt_adam_args a = {
                    .beta = {.9, .99}, .eps = 1e-3f, .step = &s, .copy = copy, .copy_type = type};
                hvt_adam_args b = a;

                b.copy = NULL;
                memset(copy, 0xab, n * 2);
                memset(want, 0xab, n * 2);
                CHECK_OK(devs[dev]->ops->vector.adam(devs[dev], n, &a, gs, 1, w, m, v));
                CHECK_OK(devs[dev]->ops->vector.adam(devs[dev], n, &b, gs, 1, w2, m2, v2));
                if (apply)
                    CHECK_OK(ref->ops->vector.cast(ref, n, 1, w2, HVT_F32, want, type));
                CHECK(!memcmp(w, w2, n * 4) && !memcmp(m, m2, n * 4) && !memcmp(v, v2, n * 4),
                      "the copy changes the update");
                CHECK(!memcmp(copy, want, n * 2), "device %d: the copy is not the rounded weight", dev);
                CHECK(apply == (memcmp(w, w0, n * 4) != 0) && apply == (memcmp(m, m0, n * 4) != 0) &&
                          apply == (memcmp(v, v0, n * 4) != 0),
                      "device %d: an update that may not be, or none", dev);
                free(w);
                free(m);
                free(v);
                free(w2);
                free(m2);
                free(v2);
                free(copy);
                free(want);
            }
        free(w0);
        free(m0);
        free(v0);
        free(g);
    }
}

/* After updates 1, 4, 7 ...: what is skipped does not count. */
TEST(an_average_is_taken_after_each_so_many_updates)
{
    for (int dev = 0; dev < ndevs; dev++) {
        hvt_step_state s = begun(1, 0);
        float w[3] = {1, -2, 3}, mean[3] = {NAN, NAN, NAN};
        double want = NAN;
        int updates = 0, averages = 0;

        s.ema_decay = .75;
        s.ema_every = 3;
        for (int t = 0; t < 20; t++) {
            bool applies = t % 5 != 1, takes = applies && updates % 3 == 0;

            w[0] = (float)t;
            decide(devs[dev], &s, applies, 1);
            CHECK_OK(devs[dev]->ops->vector.ema(devs[dev], 3, &s, w, mean));
            want = !takes ? want : averages ? .75 * want + .25 * t : t;
            averages += takes;
            updates += applies;
            CHECK(s.ema_count == averages && s.updates == updates, "step %d: %lld averages, %lld updates", t,
                  (long long)s.ema_count, (long long)s.updates);
            CHECK(fabs(mean[0] - want) < 1e-5 && mean[1] == -2 && mean[2] == 3,
                  "device %d, step %d: %g %g %g, expected %g", dev, t, mean[0], mean[1], mean[2], want);
        }
        CHECK(averages == 6, "%d averages", averages);
        decide(devs[dev], &s, true, INFINITY); /* the run ends */
        CHECK(s.stop && s.ema_share == 0 && s.ema_count == averages, "a run that ended takes an average");
    }
}

TEST(the_loss_scale_multiplies_gradients_alone)
{
    enum { ROWS = 9, CLASSES = 37 };

    for (int dev = 0; dev < ndevs; dev++) {
        float *x = floats(ROWS * CLASSES), dx[2][ROWS * CLASSES], loss[2][ROWS], sums[2][HVT__SUMS],
              scale = 512;
        int32_t labels[ROWS], place[ROWS];

        for (int i = 0; i < ROWS; i++)
            labels[i] = between(0, CLASSES - 1);
        for (int k = 0; k < 2; k++) {
            hvt_xent_args a = {.rows = {1, ROWS, ROWS - 2},
                               .classes = CLASSES,
                               .logits = x,
                               .labels = labels,
                               .dlogits = dx[k],
                               .loss = loss[k],
                               .label_rank = place,
                               .sums = sums[k],
                               .scale = k ? &scale : NULL};

            CHECK_OK(devs[dev]->ops->matrix.xent(devs[dev], &a));
        }
        for (int i = 0; i < ROWS * CLASSES; i++)
            CHECK(dx[1][i] == 512 * dx[0][i], "device %d: %g is not 512 times %g", dev, dx[1][i], dx[0][i]);
        CHECK(!memcmp(loss[0], loss[1], (ROWS - 2) * sizeof(float)) &&
                  !memcmp(sums[0], sums[1], sizeof sums[0]),
              "the loss is scaled, too");
        free(x);
    }
}

int main(void)
{
    open_devices();
    RUN(the_loss_scale_moves_as_in_pytorch);
    RUN(a_scale_at_its_floor_ends_the_run);
    RUN(skips_that_no_scale_can_end_end_the_run);
    RUN(a_loss_that_is_not_finite_ends_the_run_whatever_the_gradients);
    RUN(a_step_counts_and_divides_by_images_and_scale);
    RUN(the_first_gradient_that_is_not_finite_is_found);
    RUN(squares_are_added_exactly_in_any_order);
    RUN(a_decision_clips_the_norm_and_forgets_it);
    RUN(sgd_obeys_the_step_and_writes_a_rounded_copy);
    RUN(adam_obeys_the_step_and_writes_a_rounded_copy);
    RUN(an_average_is_taken_after_each_so_many_updates);
    RUN(the_loss_scale_multiplies_gradients_alone);
    close_devices();
    return check_done();
}
