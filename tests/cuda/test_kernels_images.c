/*
 * cuda-kernels-images: poolings, subsampling, and loading of images on the emulator equal ref.
 */
#include "emulated.h"

/* ---- pooling ---- */

/* Values with many ties, now and then a NaN or an infinity. */
static void *pool_input(runs *r, hvt_dtype t, size_t count, size_t real, size_t skew)
{
    void *x = input(r, t, count, real, 0, skew);

    for (size_t i = 0; i < real; i++)
        hvt__store(x, t, i,
                   !between(0, 40)   ? NAN
                   : !between(0, 40) ? -INFINITY
                                     : (float)between(-3, 3) * 0.25f);
    return x;
}

static void pool_case(hvt_pooling_desc p, bool finite, bool add)
{
    runs r;
    int real = between(0, 2) ? p.n : between(0, p.n);
    size_t in = (size_t)p.h * p.w * p.c, out;
    size_t skew = between(0, 3) ? 0 : hvt_dtype_size(p.type) * between(1, 7);
    double *off;
    void *saved[RUNS], *x;
    const void *dy;
    hvt_op *op = NULL, *emu_op = NULL;
    size_t bytes = 0, emu_bytes = 0;
    int y, dx;

    begin(&r, p.mean ? "mean pool" : "max pool");
    CHECK_OK(ref->ops->pooling.plan(ref, &p, &op, &bytes));
    CHECK_OK(hvt__pooling_plan(&emulated, &p, &emu_op, &emu_bytes));
    out = (size_t)((hvt_pooling *)op)->p * ((hvt_pooling *)op)->q * p.c;
    off = slacks(real * out);
    x = finite ? input(&r, p.type, p.n * in, real * in, 0, skew)
               : pool_input(&r, p.type, p.n * in, real * in, skew);
    dy = input(&r, p.type, p.n * out, real * out, 0, skew);
    for (size_t i = 0; p.windows && i < real * out; i++)
        off[i] = FEW;
    for (size_t i = 0; p.mean && !p.windows && i < real * in; i++)
        off[i / in * p.c + i % p.c] += FEW * fabs(element(x, p.type, i)) / (p.h * p.w);
    y = output(&r, "y", p.type, p.n * out, real * out, NULL, p.mean ? off : NULL, skew);
    dx = output(&r, "dx", p.type, p.n * in, real * in,
                add ? input(&r, p.type, p.n * in, real * in, 0, skew) : NULL, NULL, skew);
    for (int run = 0; run < RUNS; run++) {
        set_order(run);
        saved[run] = guarded_room(&r, run ? emu_bytes : bytes, 0);
        if (run) {
            CHECK_OK(hvt__pooling_forward_cuda(emu_op, real, x, of(&r, y, run), saved[run]));
            CHECK_OK(hvt__pooling_backward_cuda(emu_op, real, saved[run], dy, of(&r, dx, run), add));
        } else {
            CHECK_OK(ref->ops->pooling.forward(op, real, x, of(&r, y, run), saved[run]));
            CHECK_OK(ref->ops->pooling.backward(op, real, saved[run], dy, of(&r, dx, run), add));
        }
    }
    hvt__op_free(op);
    hvt__op_free(emu_op);
    judge(&r);
    free(off);
}

TEST(pooling_equals_ref_with_ties_and_nans)
{
    for (int k = 0; k < 2 * CASES; k++) {
        hvt_pooling_desc p = random_pool();

        p.order = HVT_ORDER_NHW;
        p.type = any_type();
        p.n = between(1, 3);
        p.c = between(0, 1) ? 8 * between(1, 9) : between(1, 70);
        pool_case(p, p.mean, between(0, 1));
    }
}

TEST(pooling_of_rectangles_and_of_adaptive_windows_equals_ref)
{
    for (int k = 0; k < 2 * CASES; k++) {
        const bool adaptive = between(0, 1);
        hvt_pooling_desc p = {.order = HVT_ORDER_NHW,
                              .type = any_type(),
                              .n = between(1, 3),
                              .h = between(1, 13),
                              .w = between(1, 13),
                              .c = between(0, 1) ? 8 * between(1, 9) : between(1, 40),
                              .mean = k % 2,
                              .windows = true,
                              .count_pad = !adaptive && between(0, 1)};

        p.rows = random_window(p.h, adaptive);
        p.columns = random_window(p.w, adaptive);
        pool_case(p, p.mean, between(0, 1));
    }
}

TEST(subsampling_equals_ref)
{
    for (int k = 0; k < CASES; k++) {
        runs r;
        hvt_dtype t = any_type();
        int n = between(1, 3), h = between(1, 9), w = between(1, 9), stride = between(1, 3);
        int c = between(0, 1) ? 8 * between(1, 5) : between(1, 40),
            channels = c + (between(0, 1) ? c : between(0, 20));
        hvt_subsample_desc d = {HVT_ORDER_NHW, t, n, h, w, c, stride, channels};
        int p = (h + stride - 1) / stride, q = (w + stride - 1) / stride;
        size_t in = (size_t)n * h * w * c, out = (size_t)n * p * q * channels;
        bool add = between(0, 1);
        const void *x, *dy;
        int y, dx;

        begin(&r, "subsample");
        x = input(&r, t, in, in, 0, 0);
        dy = input(&r, t, out, out, 0, 0);
        y = output(&r, "y", t, out, out, NULL, NULL, 0);
        dx = output(&r, "dx", t, in, in, add ? x : NULL, NULL, 0);
        for (int run = 0; run < RUNS; run++) {
            set_order(run);
            if (run) {
                CHECK_OK(hvt__subsample_forward_cuda(&emulated, &d, x, of(&r, y, run)));
                CHECK_OK(hvt__subsample_backward_cuda(&emulated, &d, dy, of(&r, dx, run), add));
            } else {
                CHECK_OK(ref->ops->matrix.subsample_forward(ref, &d, x, of(&r, y, run)));
                CHECK_OK(ref->ops->matrix.subsample_backward(ref, &d, dy, of(&r, dx, run), add));
            }
        }
        judge(&r);
    }
}

/* ---- images ---- */

TEST(images_equal_ref_bit_for_bit)
{
    static const int stored[] = {0, 4, 8, 5};

    for (int k = 0; k < 2 * CASES; k++) {
        runs r;
        hvt_augment_args a = {.order = HVT_ORDER_NHW,
                              .n = between(1, 5),
                              .h = between(1, 40),
                              .w = between(1, 40),
                              .c = between(1, 4),
                              .floats = between(0, 1),
                              .type = any_type()};
        uint8_t *src;
        float *floats;
        int8_t *crops;
        int16_t *erased;
        int32_t *labels;
        size_t pixels = (size_t)a.h * a.w, all;
        int dst, dst_labels;

        begin(&r, "augment");
        a.real = between(0, 2) ? a.n : between(0, a.n);
        a.cx = stored[between(0, 3)];
        a.cx = a.cx < a.c ? a.c : a.cx;
        all = pixels * a.cx;
        a.src = src =
            guarded_room(&r, a.real * pixels * a.c * (a.floats ? sizeof *floats : 1), a.floats ? 0 : 1);
        floats = (float *)src;
        crops = guarded_room(&r, 3 * a.real, 0);
        erased = guarded_room(&r, 4 * a.real * sizeof *erased, 0);
        a.labels = labels = guarded_room(&r, a.real * sizeof *labels, 0);
        for (size_t i = 0; i < a.real * pixels * a.c; i++)
            if (a.floats)
                floats[i] = value();
            else
                src[i] = (uint8_t)draw();
        for (int i = 0; i < a.real; i++) {
            crops[3 * i] = (int8_t)between(-4, 4);
            crops[3 * i + 1] = (int8_t)between(-4, 4);
            crops[3 * i + 2] = (int8_t)between(0, 1);
            labels[i] = between(0, 9);
            erased[4 * i + 2] = (int16_t)between(0, a.h);
            erased[4 * i + 3] = (int16_t)between(0, a.w);
            erased[4 * i] = (int16_t)between(0, a.h - erased[4 * i + 2]);
            erased[4 * i + 1] = (int16_t)between(0, a.w - erased[4 * i + 3]);
        }
        a.erased = between(0, 1) ? erased : NULL;
        if (between(0, 2))
            a.mixing = (hvt_mixing){between(0, 1) ? .3125f : 0, between(0, a.h / 2), between(0, a.w / 2),
                                    between(a.h / 2, a.h), between(a.w / 2, a.w)};
        for (int c = 0; c < a.c; c++) {
            a.scale[c] = value() * 0.02f;
            a.shift[c] = value();
        }
        a.draws = between(0, 3) ? crops : NULL;
        dst = output(&r, "dst", a.type, a.n * all, a.real * all, NULL, NULL, 0);
        dst_labels = output(&r, "labels", HVT_I32, a.n, a.real, NULL, NULL, 0);
        for (int run = 0; run < RUNS; run++) {
            a.dst = of(&r, dst, run);
            a.dst_labels = of(&r, dst_labels, run);
            set_order(run);
            if (run)
                CHECK_OK(hvt__cuda_augment(&emulated, &a, a.src, a.draws, a.erased, a.labels));
            else
                CHECK_OK(ref->ops->augment(ref, &a));
        }
        judge(&r);
    }
}

int main(void)
{
    open_emulated();
    RUN(pooling_equals_ref_with_ties_and_nans);
    RUN(pooling_of_rectangles_and_of_adaptive_windows_equals_ref);
    RUN(subsampling_equals_ref);
    RUN(images_equal_ref_bit_for_bit);
    return close_emulated();
}
