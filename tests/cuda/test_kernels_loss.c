/*
 * cuda-kernels-loss: losses on the emulator equal ref.
 */
#include "emulated.h"

/* ---- loss ---- */

/* [rows, classes], some rows with ties, NaNs and infinities */
static void *logits_of(runs *r, hvt_dtype t, int rows, int real, int classes)
{
    void *x = input(r, t, (size_t)rows * classes, (size_t)real * classes, 0, 0);

    for (int i = 0; i < real; i++) {
        bool ties = !between(0, 2), odd = !between(0, 5);

        for (int k = 0; k < classes; k++) {
            size_t e = (size_t)i * classes + k;
            float v = ties ? (float)between(-2, 2) : 8 * value();

            hvt__store(x, t, e, odd && !between(0, 3) ? (between(0, 1) ? NAN : -INFINITY) : v);
        }
    }
    return x;
}

TEST(cross_entropy_equals_ref)
{
    for (int k = 0; k < CASES; k++) {
        runs r;
        static const int many[] = {2, 5, 10, 33, 100, 257, 1000};
        hvt_dtype t = any_type();
        int classes = many[between(0, HVT_LEN(many) - 1)],
            rows = between(0, 4) ? between(1, 20) : between(250, 600);
        int real = between(0, 1) ? rows : between(0, rows), dx, loss, place, sums;
        bool wanted = between(0, 3);
        float scale = 1024;
        double *dx_off, *loss_off = slacks(rows), *sums_off = slacks(HVT__SUMS);
        void *labels;
        float *soft;
        hvt_xent_args a = {.rows = {1, rows, real},
                           .classes = classes,
                           .type = t,
                           .smoothing = between(0, 1) ? 0.1f * (float)between(1, 10) : 0};

        rows = classes > 100 &&rows > 20 ? a.rows.block = 21 : rows;
        real = a.rows.real = real < rows ? real : rows;
        dx_off = slacks((size_t)rows * classes);
        begin(&r, "xent");
        a.logits = logits_of(&r, t, rows, real, classes);
        a.labels = labels = guarded_room(&r, rows * sizeof(int32_t), 0);
        soft = guarded_room(&r, (size_t)rows * classes * sizeof *soft, 0);
        for (int i = 0; i < rows * classes; i++) /* two classes a row */
            soft[i] = i % classes == i / classes % classes ? .75f : 0;
        for (int i = 0; i < rows; i++)
            soft[i * classes + between(0, classes - 1)] += .25f;
        a.soft = between(0, 1) ? soft : NULL;
        a.scale = between(0, 1) ? &scale : NULL;
        for (int i = 0; i < rows; i++)
            ((int32_t *)labels)[i] = between(0, classes - 1);
        for (int i = 0; i < real; i++) {
            loss_off[i] = 4 * FEW * 16; /* logits within 8 of 0: differences are off by a few places of 16 */
            sums_off[0] += loss_off[i] * 2;
            for (int c = 0; c < classes; c++)
                dx_off[(size_t)i * classes + c] = 4 * FEW * (a.scale ? scale : 1);
        }
        dx = output(&r, "dlogits", t, (size_t)rows * classes, wanted ? (size_t)rows * classes : 0, NULL,
                    dx_off, 0);
        loss = output(&r, "loss", HVT_F32, rows, real, NULL, loss_off, 4);
        place = output(&r, "place", HVT_I32, rows, real, NULL, NULL, 4);
        sums = output(&r, "sums", HVT_F32, HVT__SUMS, HVT__SUMS, NULL, sums_off, 8);
        for (int run = 0; run < RUNS; run++) {
            a.dlogits = wanted ? of(&r, dx, run) : NULL;
            a.loss = of(&r, loss, run);
            a.label_rank = of(&r, place, run);
            a.sums = of(&r, sums, run);
            set_order(run);
            if (run) {
                double sum = 0;

                CHECK_OK(hvt__xent_cuda(&emulated, &a));
                for (int i = 0; i < real; i++)
                    sum += a.loss[i];
                CHECK(a.sums[0] == (float)sum || isnan(sum), "%.9g is not the rows' sum, %.9g", a.sums[0],
                      sum);
            } else {
                CHECK_OK(ref->ops->matrix.xent(ref, &a));
            }
        }
        judge(&r);
        free(dx_off);
        free(loss_off);
        free(sums_off);
    }
}

TEST(squared_errors_equal_ref)
{
    for (int k = 0; k < CASES; k++) {
        static const int many[] = {1, 2, 10, 33, 257, 1000};
        runs r;
        hvt_dtype t = any_type();
        int outputs = many[between(0, HVT_LEN(many) - 1)],
            rows = outputs > 33 || between(0, 4) ? between(1, 20) : between(250, 600);
        int real = between(0, 1) ? rows : between(0, rows), dy, loss, error, sums;
        size_t count = (size_t)rows * (size_t)outputs;
        bool wanted = between(0, 3);
        float scale = 1024;
        double *dy_off = slacks(count), *loss_off = slacks(rows), *sums_off = slacks(HVT__SUMS);
        float *targets;
        void *y;
        hvt_mse_args a = {.rows = {1, rows, real}, .outputs = outputs, .type = t, .absolute = k & 1};

        begin(&r, a.absolute ? "mae" : "mse");
        a.y = y = guarded_room(&r, count * hvt_dtype_size(t), 0);
        a.targets = targets = guarded_room(&r, count * sizeof *targets, 0);
        a.scale = between(0, 1) ? &scale : NULL;
        for (size_t i = 0; i < count; i++) {
            hvt__store(y, t, i, 4 * value());
            targets[i] = 4 * value();
            dy_off[i] = 0; /* the same arithmetic */
        }
        for (int i = 0; i < real; i++) {
            loss_off[i] = 64 * FEW * (double)(outputs < 16 ? 4 : 16);
            sums_off[HVT__SUM_LOSS] += 2 * loss_off[i];
            sums_off[HVT__SUM_ERROR] += 2 * loss_off[i];
        }
        dy = output(&r, "dy", t, count, wanted ? count : 0, NULL, dy_off, 0);
        loss = output(&r, "loss", HVT_F32, rows, real, NULL, loss_off, 4);
        error = output(&r, "error", HVT_F32, rows, real, NULL, loss_off, 4);
        sums = output(&r, "sums", HVT_F32, HVT__SUMS, HVT__SUMS, NULL, sums_off, 8);
        for (int run = 0; run < RUNS; run++) {
            a.dy = wanted ? of(&r, dy, run) : NULL;
            a.loss = of(&r, loss, run);
            a.error = of(&r, error, run);
            a.sums = of(&r, sums, run);
            set_order(run);
            if (run) {
                double sum = 0, absolute = 0;

                CHECK_OK(hvt__mse_cuda(&emulated, &a));
                for (int i = 0; i < real; i++) {
                    sum += a.loss[i];
                    absolute += a.error[i];
                }
                CHECK(a.sums[HVT__SUM_LOSS] == (float)sum && a.sums[HVT__SUM_ERROR] == (float)absolute,
                      "%.9g and %.9g are not the rows' sums, %.9g and %.9g", a.sums[HVT__SUM_LOSS],
                      a.sums[HVT__SUM_ERROR], sum, absolute);
            } else {
                CHECK_OK(ref->ops->matrix.mse(ref, &a));
            }
        }
        judge(&r);
        free(dy_off);
        free(loss_off);
        free(sums_off);
    }
}

int main(void)
{
    open_emulated();
    RUN(cross_entropy_equals_ref);
    RUN(squared_errors_equal_ref);
    return close_emulated();
}
