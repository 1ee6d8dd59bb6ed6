/*
 * cuda-kernels-shape_norm: norms over a shape on the emulator equal ref: means of pixels, of images and of
 * groups of channels; images of many pixels, whose sums are in parts; and an image's norm does not depend on
 * the batch.
 */
#include "emulated.h"

static hvt_norm_args random_norm(int k)
{
    static const int channels[] = {1, 3, 8, 12, 24, 64, 96, 130, 300};
    const int c = channels[between(0, HVT_LEN(channels) - 1)], n = between(1, 4), kind = k % 4;
    hvt_norm_args a = {.order = HVT_ORDER_NHW,
                       .type = any_type(),
                       .n = n,
                       .real = between(0, 2) ? n : between(0, n),
                       .pixels = c < 30 && !between(0, 2) ? between(1000, 1300) : between(1, 40),
                       .c = c,
                       .groups = 1,
                       .per_pixel = kind == 0,
                       .per_element = kind == 2 || (kind == 0 && between(0, 1)),
                       .eps = 1e-3f,
                       .add = between(0, 1)};

    for (int i = 2; kind != 1 && i <= c; i++)
        if (c % i == 0 && (a.groups == 1 || between(0, 1)))
            a.groups = i;
    return a;
}

TEST(norms_over_a_shape_equal_ref)
{
    for (int k = 0; k < 4 * CASES; k++) {
        runs r;
        hvt_norm_args a = random_norm(k);
        const size_t all = (size_t)a.n * a.pixels * a.c, real = (size_t)a.real * a.pixels * a.c,
                     params = (size_t)(a.per_element ? a.pixels : 1) * a.c,
                     samples = (size_t)(a.per_pixel ? a.pixels : 1) * a.groups;
        const size_t skew = between(0, 3) ? 0 : hvt_dtype_size(a.type) * (size_t)between(1, 7);
        const bool affine = between(0, 3), in_place = !a.add && between(0, 1), wants_dx = between(0, 7);
        const double count = (double)a.c / a.groups * (a.per_pixel ? 1 : a.pixels);
        double *off = slacks(all), *few = slacks(all), *sums = slacks(params);
        int y, mean, rstd, dx, dgamma, dbeta;
        const void *dy;

        begin(&r, "norm");
        a.x = input(&r, a.type, all, real, 1, skew);
        dy = input(&r, a.type, all, real, 0, skew);
        a.gamma = affine ? input(&r, HVT_F32, params, params, 1, 4) : NULL;
        a.beta = affine ? input(&r, HVT_F32, params, params, 0, 8) : NULL;
        for (size_t i = 0; i < all; i++) {
            few[i] = 4 * FEW;
            off[i] = 16 * FEW * (count < 9 ? 12 : 4); /* 1/deviation, at most 32, enlarges what is off */
        }
        for (size_t i = 0; i < params; i++)
            sums[i] = FEW * 32 * ((double)real / (double)params + 1);
        y = output(&r, "y", a.type, all, real, NULL, off, skew);
        mean = output(&r, "mean", HVT_F32, a.n * samples, a.real * samples, NULL, few, 4);
        rstd = output(&r, "rstd", HVT_F32, a.n * samples, a.real * samples, NULL, off, 8);
        dx = output(&r, "dx", a.type, all, wants_dx ? real : 0,
                    in_place ? dy
                    : a.add  ? input(&r, a.type, all, real, 0, skew)
                             : NULL,
                    off, skew);
        dgamma = output(&r, "dgamma", HVT_F32, params, affine ? params : 0, NULL, sums, 12);
        dbeta = output(&r, "dbeta", HVT_F32, params, affine ? params : 0, NULL, sums, 4);
        for (int run = 0; run < RUNS; run++) {
            hvt_norm_args b = a;

            b.y = of(&r, y, run);
            b.mean = of(&r, mean, run);
            b.rstd = of(&r, rstd, run);
            b.dx = wants_dx ? of(&r, dx, run) : NULL;
            b.dy = in_place && wants_dx ? b.dx : dy;
            b.dgamma = affine ? of(&r, dgamma, run) : NULL;
            b.dbeta = affine ? of(&r, dbeta, run) : NULL;
            set_order(run);
            if (run) {
                CHECK_OK(hvt__norm_forward_cuda(&emulated, &b));
                CHECK_OK(hvt__norm_backward_cuda(&emulated, &b));
            } else {
                CHECK_OK(ref->ops->general.norm_forward(ref, &b));
                CHECK_OK(ref->ops->general.norm_backward(ref, &b));
            }
        }
        judge(&r);
        free(off);
        free(few);
        free(sums);
    }
}

/* Scratch has room for the sums of about 100 images of 16,384 channels, so that these take two turns. */
TEST(sums_of_many_images_and_channels_take_turns)
{
    enum { N = 120, C = 16384 };
    const size_t all = (size_t)N * C;
    float *x = malloc(all * sizeof *x), *y[2], *dx[2], *mean = malloc(2 * N * sizeof *mean), *dgamma[2],
          *dbeta[2];
    hvt_norm_args a = {.order = HVT_ORDER_NHW,
                       .n = N,
                       .real = N,
                       .pixels = 1,
                       .c = C,
                       .groups = 1,
                       .eps = 1e-3f,
                       .x = x,
                       .dy = x,
                       .mean = mean,
                       .rstd = mean + N};

    for (size_t i = 0; i < all; i++)
        x[i] = value();
    for (int on = 0; on < 2; on++) {
        a.y = y[on] = malloc(all * sizeof *x);
        a.dx = dx[on] = malloc(all * sizeof *x);
        a.dgamma = dgamma[on] = malloc(C * sizeof *x);
        a.dbeta = dbeta[on] = malloc(C * sizeof *x);
        launches = 0;
        CHECK_OK(on ? hvt__norm_forward_cuda(&emulated, &a) : ref->ops->general.norm_forward(ref, &a));
        CHECK(!on || launches > 3, "%d kernels: all images in one turn", launches);
        CHECK_OK(on ? hvt__norm_backward_cuda(&emulated, &a) : ref->ops->general.norm_backward(ref, &a));
    }
    for (size_t i = 0; i < all; i++)
        CHECK(fabsf(y[1][i] - y[0][i]) < 1e-5f && fabsf(dx[1][i] - dx[0][i]) < 1e-5f,
              "element %zu: y %g and dx %g, not %g and %g", i, y[1][i], dx[1][i], y[0][i], dx[0][i]);
    for (int i = 0; i < C; i++)
        CHECK(fabsf(dgamma[1][i] - dgamma[0][i]) < 1e-3f && fabsf(dbeta[1][i] - dbeta[0][i]) < 1e-3f,
              "channel %d: dgamma %g and dbeta %g, not %g and %g", i, dgamma[1][i], dbeta[1][i], dgamma[0][i],
              dbeta[0][i]);
    for (int on = 0; on < 2; on++) {
        free(y[on]);
        free(dx[on]);
        free(dgamma[on]);
        free(dbeta[on]);
    }
    free(x);
    free(mean);
}

TEST(an_image_s_norm_does_not_depend_on_the_batch)
{
    enum { N = 5, PIXELS = 1200, C = 24, IMAGE = PIXELS * C };
    float *x = malloc(sizeof *x * N * IMAGE), *y = malloc(sizeof *y * N * IMAGE),
          *alone = malloc(sizeof *alone * IMAGE), statistics[2 * N * PIXELS * 3];

    for (int i = 0; i < N * IMAGE; i++)
        x[i] = value();
    for (int per_pixel = 0; per_pixel < 2; per_pixel++) {
        hvt_norm_args a = {.order = HVT_ORDER_NHW,
                           .n = N,
                           .real = N,
                           .pixels = PIXELS,
                           .c = C,
                           .groups = 3,
                           .per_pixel = per_pixel,
                           .eps = 1e-3f,
                           .x = x,
                           .mean = statistics,
                           .rstd = statistics + N * PIXELS * 3,
                           .y = y};

        CHECK_OK(hvt__norm_forward_cuda(&emulated, &a));
        a.n = a.real = 1;
        a.y = alone;
        for (int i = 0; i < N; i++) {
            a.x = x + (size_t)i * IMAGE;
            CHECK_OK(hvt__norm_forward_cuda(&emulated, &a));
            CHECK(!memcmp(alone, y + (size_t)i * IMAGE, sizeof *y * IMAGE), "image %d is another", i);
        }
    }
    free(x);
    free(y);
    free(alone);
}

int main(void)
{
    open_emulated();
    RUN(norms_over_a_shape_equal_ref);
    if (IS_TSAN)
        check_skip("sums_of_many_images_and_channels_take_turns", "it takes minutes");
    else
        RUN(sums_of_many_images_and_channels_take_turns);
    RUN(an_image_s_norm_does_not_depend_on_the_batch);
    return close_emulated();
}
