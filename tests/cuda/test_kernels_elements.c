/*
 * cuda-kernels-elements: elementwise ops, and the end of a step, on the emulator equal ref.
 */
#include "emulated.h"

/* ---- elements ---- */

TEST(relu_and_add_equal_ref_bit_for_bit)
{
    for (int k = 0; k < 3 * CASES; k++) {
        runs r;
        element_shape e = random_elements();
        hvt_dtype t = any_type();
        bool add = between(0, 1);
        const void *x, *dy;
        int y, dx, sum;

        begin(&r, "relu and add");
        x = elements_of(&r, &e, t);
        dy = elements_of(&r, &e, t);
        if (e.n > 3)
            hvt__store((void *)x, t, e.n / 2, NAN);
        y = output(&r, "relu", t, e.n, e.n, NULL, NULL, skew_of(&e, t));
        dx = output(&r, "relu's gradient", t, e.n, e.n, add ? elements_of(&r, &e, t) : NULL, NULL,
                    skew_of(&e, t));
        sum = output(&r, "sum", t, e.n, e.n, x, NULL, skew_of(&e, t)); /* in place */
        for (int run = 0; run < RUNS; run++) {
            set_order(run);
            if (run) {
                CHECK_OK(hvt__relu_forward_cuda(&emulated, e.n, t, x, of(&r, y, run)));
                CHECK_OK(hvt__relu_backward_cuda(&emulated, e.n, t, x, dy, of(&r, dx, run), add));
                CHECK_OK(hvt__add_cuda(&emulated, e.n, t, of(&r, sum, run), dy, of(&r, sum, run)));
            } else {
                CHECK_OK(ref->ops->vector.relu_forward(ref, e.n, t, x, of(&r, y, run)));
                CHECK_OK(ref->ops->vector.relu_backward(ref, e.n, t, x, dy, of(&r, dx, run), add));
                CHECK_OK(ref->ops->vector.add(ref, e.n, t, of(&r, sum, run), dy, of(&r, sum, run)));
            }
        }
        judge(&r);
    }
}

TEST(casts_of_all_types_equal_ref_bit_for_bit)
{
    for (int k = 0; k < 9 * 8; k++) {
        runs r;
        element_shape e = random_elements();
        hvt_dtype from = float_types[k % 3], to = float_types[k / 3 % 3];
        float scale = between(0, 1) ? 1 : 1000 * value();
        void *x;
        int y;

        begin(&r, "cast");
        x = elements_of(&r, &e, from);
        for (size_t i = 0; i < e.n; i += 7) /* to the ends of f16 and past them */
            hvt__store(x, from, i, ldexpf(value(), between(-30, 20)));
        y = output(&r, "dst", to, e.n, e.n, NULL, NULL, skew_of(&e, to));
        for (int run = 0; run < RUNS; run++) {
            set_order(run);
            if (run)
                CHECK_OK(hvt__cast_cuda(&emulated, e.n, scale, x, from, of(&r, y, run), to));
            else
                CHECK_OK(ref->ops->vector.cast(ref, e.n, scale, x, from, of(&r, y, run), to));
        }
        judge(&r);
    }
}

TEST(sums_of_any_number_of_arrays_follow_the_tree)
{
    static const int counts[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 15, 31, 64};

    for (int k = 0; k < 3 * (int)HVT_LEN(counts); k++) {
        runs r;
        element_shape e = random_elements();
        hvt_dtype t = float_types[k % 3];
        const void *in[64];
        int count = counts[k / 3], y;

        begin(&r, "reduce");
        for (int i = 1; i < count; i++)
            in[i] = elements_of(&r, &e, t);
        y = output(&r, "out", t, e.n, e.n, elements_of(&r, &e, t), NULL, skew_of(&e, t));
        for (int run = 0; run < RUNS; run++) {
            in[0] = of(&r, y, run); /* in place */
            set_order(run);
            if (run)
                CHECK_OK(hvt__reduce_cuda(&emulated, e.n, t, in, count, of(&r, y, run)));
            else
                CHECK_OK(ref->ops->vector.reduce(ref, e.n, t, in, count, of(&r, y, run)));
        }
        judge(&r);
    }
    CHECK_FAILS(hvt__reduce_cuda(&emulated, 1, HVT_F32, NULL, HVT__CUDA_MOST_INPUTS + 1, NULL), E_UNSUPPORTED,
                "1 to 128 arrays to add, got 129");
}

TEST(put_takes_its_bytes_at_the_call)
{
    for (size_t bytes = 0; bytes <= HVT__PUT_MOST; bytes += 4) {
        runs r;
        unsigned char from[HVT__PUT_MOST];
        int y;

        begin(&r, "put");
        y = output(&r, "dst", HVT_U8, bytes, bytes, NULL, NULL, 4);
        for (size_t i = 0; i < bytes; i++)
            from[i] = (unsigned char)draw();
        for (int run = 0; run < RUNS; run++) {
            set_order(run);
            if (run)
                CHECK_OK(hvt__cuda_put(&emulated, of(&r, y, run), from, bytes));
            else
                memcpy(of(&r, y, run), from, bytes);
        }
        judge(&r);
    }
    CHECK_FAILS(hvt__cuda_put(&emulated, NULL, NULL, HVT__PUT_MOST + 4), E_ARG, "put of 260 bytes");
}

/* ---- the end of a step ---- */

TEST(sgd_equals_ref_bit_for_bit)
{
    for (int k = 0; k < 4 * CASES; k++) {
        runs r;
        element_shape e = random_elements();
        hvt_dtype copy_type = any_type();
        int ng = between(0, 1) ? 1 : between(2, 9), w, v, copy;
        hvt_step_state step = {
            .lr = 0.1f, .grad_scale = 0.125f, .apply = between(0, 4) > 0, .fresh = !between(0, 3)};
        hvt_sgd_args a = {.momentum = between(0, 2) ? 0.9f : 0,
                          .dampening = between(0, 1) ? 0.1f : 0,
                          .weight_decay = between(0, 1) ? 1e-4f : 0,
                          .step = &step,
                          .copy_type = copy_type};
        bool copied = between(0, 2);
        const float *g[9];

        begin(&r, "sgd");
        a.nesterov = a.momentum != 0 && a.dampening == 0 && between(0, 1);
        for (int i = 0; i < ng; i++)
            g[i] = elements_of(&r, &e, HVT_F32);
        w = output(&r, "w", HVT_F32, e.n, e.n, elements_of(&r, &e, HVT_F32), NULL, skew_of(&e, HVT_F32));
        v = output(&r, "v", HVT_F32, e.n, e.n, step.fresh ? NULL : elements_of(&r, &e, HVT_F32), NULL,
                   skew_of(&e, HVT_F32));
        copy = output(&r, "copy", copy_type, e.n, e.n, NULL, NULL, skew_of(&e, copy_type));
        for (int run = 0; run < RUNS; run++) {
            a.copy = copied ? of(&r, copy, run) : NULL;
            set_order(run);
            if (run)
                CHECK_OK(hvt__sgd_cuda(&emulated, e.n, &a, g, ng, of(&r, w, run),
                                       a.momentum != 0 ? of(&r, v, run) : NULL));
            else
                CHECK_OK(ref->ops->vector.sgd(ref, e.n, &a, g, ng, of(&r, w, run), of(&r, v, run)));
        }
        judge(&r);
    }
}

TEST(adam_equals_ref_bit_for_bit)
{
    for (int k = 0; k < 4 * CASES; k++) {
        runs r;
        element_shape e = random_elements();
        hvt_dtype copy_type = any_type();
        int ng = between(0, 1) ? 1 : between(2, 9), w, m, v, copy;
        hvt_step_state step = {.lr = 0.1f,
                               .grad_scale = 0.125f,
                               .apply = between(0, 4) > 0,
                               .fresh = !between(0, 3),
                               .bias = {3, 7}};
        hvt_adam_args a = {.beta = {.9, .99},
                           .eps = 1e-3f,
                           .weight_decay = between(0, 1) ? 1e-2f : 0,
                           .decoupled = between(0, 1),
                           .step = &step,
                           .copy_type = copy_type};
        bool copied = between(0, 2);
        float *squares;
        const float *g[9];

        begin(&r, "adam");
        for (int i = 0; i < ng; i++)
            g[i] = elements_of(&r, &e, HVT_F32);
        squares = elements_of(&r, &e, HVT_F32);
        for (size_t i = 0; i < e.n; i++)
            squares[i] *= squares[i];
        w = output(&r, "w", HVT_F32, e.n, e.n, elements_of(&r, &e, HVT_F32), NULL, skew_of(&e, HVT_F32));
        m = output(&r, "m", HVT_F32, e.n, e.n, step.fresh ? NULL : elements_of(&r, &e, HVT_F32), NULL,
                   skew_of(&e, HVT_F32));
        v = output(&r, "v", HVT_F32, e.n, e.n, step.fresh ? NULL : squares, NULL, skew_of(&e, HVT_F32));
        copy = output(&r, "copy", copy_type, e.n, e.n, NULL, NULL, skew_of(&e, copy_type));
        for (int run = 0; run < RUNS; run++) {
            a.copy = copied ? of(&r, copy, run) : NULL;
            set_order(run);
            if (run)
                CHECK_OK(hvt__adam_cuda(&emulated, e.n, &a, g, ng, of(&r, w, run), of(&r, m, run),
                                        of(&r, v, run)));
            else
                CHECK_OK(ref->ops->vector.adam(ref, e.n, &a, g, ng, of(&r, w, run), of(&r, m, run),
                                               of(&r, v, run)));
        }
        judge(&r);
    }
}

TEST(ema_equals_ref_bit_for_bit)
{
    static const float share[] = {0, 1, .25f, 1e-4f, .875f};

    for (int k = 0; k < 2 * CASES; k++) {
        runs r;
        element_shape e = random_elements();
        hvt_step_state step = {.ema_share = share[k % (int)HVT_LEN(share)]};
        const float *w;
        int ema;

        begin(&r, "ema");
        w = elements_of(&r, &e, HVT_F32);
        ema = output(&r, "ema", HVT_F32, e.n, e.n, step.ema_share == 1 ? NULL : elements_of(&r, &e, HVT_F32),
                     NULL, skew_of(&e, HVT_F32));
        for (int run = 0; run < RUNS; run++) {
            set_order(run);
            if (run)
                CHECK_OK(hvt__ema_cuda(&emulated, e.n, &step, w, of(&r, ema, run)));
            else
                CHECK_OK(ref->ops->vector.ema(ref, e.n, &step, w, of(&r, ema, run)));
        }
        judge(&r);
    }
}

TEST(the_lowest_gradient_that_is_not_finite_is_found)
{
    for (int k = 0; k < 2 * CASES; k++) {
        runs r;
        element_shape e = random_elements();
        hvt_step_state step[RUNS];
        uint64_t base = draw() >> 30, before = between(0, 3) ? UINT64_MAX : base + e.n / 2;
        float *g;

        begin(&r, "check");
        g = elements_of(&r, &e, HVT_F32);
        for (int bad = between(0, 3); e.n && bad; bad--)
            g[between(0, (int)e.n - 1)] = between(0, 1) ? NAN : INFINITY;
        for (int run = 0; run < RUNS; run++) {
            step[run] = (hvt_step_state){.bad = before};
            set_order(run);
            if (run)
                CHECK_OK(hvt__check_cuda(&emulated, e.n, g, base, &step[run]));
            else
                CHECK_OK(ref->ops->step.check(ref, e.n, g, base, &step[run]));
            CHECK(step[run].bad == step[0].bad, "%llu, not %llu", (unsigned long long)step[run].bad,
                  (unsigned long long)step[0].bad);
        }
        judge(&r);
    }
}

TEST(squares_are_ref_s)
{
    for (int k = 0; k < 2 * CASES; k++) {
        runs r;
        element_shape e = random_elements();
        hvt_step_state step[RUNS];
        float *g;

        begin(&r, "squares");
        if (k == 0) /* threads with several blocks each */
            e.n = (1 << 21) + (size_t)between(1, 1 << 16);
        g = elements_of(&r, &e, HVT_F32);
        for (size_t i = 0; i < e.n; i++)
            g[i] = ldexpf(g[i], between(-130, k % 2 ? 126 : -120)); /* subnormals among them */
        if (e.n && k % 8 == 3)
            g[between(0, (int)e.n - 1)] = between(0, 1) ? NAN : -INFINITY;
        for (int run = 0; run < RUNS; run++) {
            step[run] = (hvt_step_state){.squares = {1, 2, 3}};
            set_order(run);
            if (run)
                CHECK_OK(hvt__squares_cuda(&emulated, e.n, g, &step[run]));
            else
                CHECK_OK(ref->ops->step.squares(ref, e.n, g, &step[run]));
            CHECK(!memcmp(&step[run], &step[0], sizeof *step), "run %d of %zu elements has other bits", run,
                  e.n);
        }
        judge(&r);
    }
}

TEST(a_step_is_settled_as_on_the_host)
{
    static const float losses[] = {1.5f, 2, NAN, 3};
    hvt_step_state s[2] = {{.images = 4,
                            .loss_scale = 65536,
                            .growth = 2,
                            .backoff = 0.5f,
                            .floor = 1,
                            .interval = 2,
                            .fresh = 1,
                            .bad = UINT64_MAX}};

    s[0].clip_norm = .1;
    s[1] = s[0];
    for (int i = 0; i < (int)HVT_LEN(losses); i++) {
        float sums[HVT__STEP_SUMS] = {losses[i], 1, 3};

        for (int k = 0; k < HVT__SQUARES_BINS; k++)
            s[0].squares[k] = s[1].squares[k] = (int64_t)(draw() >> 20);
        s[0].bad = s[1].bad = i == 1 ? 17 : UINT64_MAX;
        CHECK_OK(ref->ops->step.decide(ref, &s[0], sums));
        CHECK_OK(hvt__decide_cuda(&emulated, &s[1], sums));
        CHECK(!memcmp(&s[0], &s[1], sizeof s[0]), "step %d is decided differently", i);
    }
}

int main(void)
{
    open_emulated();
    RUN(relu_and_add_equal_ref_bit_for_bit);
    RUN(casts_of_all_types_equal_ref_bit_for_bit);
    RUN(sums_of_any_number_of_arrays_follow_the_tree);
    RUN(put_takes_its_bytes_at_the_call);
    RUN(sgd_equals_ref_bit_for_bit);
    RUN(adam_equals_ref_bit_for_bit);
    RUN(ema_equals_ref_bit_for_bit);
    RUN(the_lowest_gradient_that_is_not_finite_is_found);
    RUN(squares_are_ref_s);
    RUN(a_step_is_settled_as_on_the_host);
    return close_emulated();
}
