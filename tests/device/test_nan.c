/*
 * nan: relu's gradients where its output is NaN, and constant pieces of functions with gradients that are not
 * finite, on every device and instruction set. PyTorch's threshold_backward gives y <= 0 ? 0 : dy, so there
 * the gradient passes.
 */
#include "devices.h"

enum { ROWS = 37, C = 19, AT = 7 * C + 2 /* where the NaN is: row 7, channel 2 */ };

TEST(relu_passes_a_gradient_where_its_output_is_nan)
{
    for (int t = 0; t < TYPES * 2 * ndevs; t++) {
        const int dev = t / (TYPES * 2);
        const hvt_dtype type = (hvt_dtype)(t % TYPES);
        const bool add = t / TYPES % 2;
        float y[ROWS * C], dy[ROWS * C], before[ROWS * C], *dx;
        void *py, *pdy, *pdx;
        int wrong = 0;

        for (int i = 0; i < ROWS * C; i++) {
            y[i] = (float)(i % 3 - 1);
            dy[i] = (float)(1 + i % 5);
            before[i] = (float)(i % 7);
        }
        y[AT] = NAN;
        py = packed(type, y, ROWS * C);
        pdy = packed(type, dy, ROWS * C);
        pdx = packed(type, before, ROWS * C);
        CHECK_OK(devs[dev]->ops->vector.relu_backward(devs[dev], ROWS * C, type, py, pdy, pdx, add));
        dx = unpacked(type, pdx, ROWS * C);
        for (int i = 0; i < ROWS * C; i++)
            wrong += dx[i] != (y[i] <= 0 ? 0 : dy[i]) + (add ? before[i] : 0);
        CHECK(!wrong, "in %s on %s %d of %d are wrong; where y is NaN: %g, not %g", hvt_dtype_name(type),
              hvt_device_isa(devs[dev]), wrong, ROWS * C, dx[AT], dy[AT] + (add ? before[AT] : 0));
        free(py);
        free(pdy);
        free(dx);
    }
}

/* The sum of what relu lets through is batch norm's dbeta. It does not read x, which is NaN there, too. */
static void sum_is_whole(int dev, hvt_dtype type, bool mask_from_x)
{
    float x[ROWS * C], y[ROWS * C], dy[ROWS * C], gamma[C], beta[C], mean[C], rstd[C], dgamma[C], dbeta[C];
    float want[C] = {0};
    void *px, *py, *pdy, *pdx = unwritten(type, ROWS * C);
    const float *dx;

    for (int c = 0; c < C; c++) {
        gamma[c] = rstd[c] = 1;
        beta[c] = mean[c] = 0;
    }
    for (int i = 0; i < ROWS * C; i++) {
        x[i] = i == AT ? NAN : (float)(i % 3 - 1);
        y[i] = x[i] < 0 ? 0 : x[i];
        dy[i] = (float)(1 + i % 5);
        want[i % C] += y[i] <= 0 ? 0 : dy[i];
    }
    px = packed(type, x, ROWS * C);
    py = packed(type, y, ROWS * C);
    pdy = packed(type, dy, ROWS * C);
    CHECK_OK(
        devs[dev]->ops->matrix.bn_backward(devs[dev], &(hvt_bn_grad_args){.rows = {1, ROWS, ROWS},
                                                                          .c = C,
                                                                          .type = type,
                                                                          .x = px,
                                                                          .y = py,
                                                                          .dy = pdy,
                                                                          .gamma = gamma,
                                                                          .mean = mean,
                                                                          .rstd = rstd,
                                                                          .beta = mask_from_x ? beta : NULL,
                                                                          .dx = pdx,
                                                                          .dgamma = dgamma,
                                                                          .dbeta = dbeta}));
    dx = unpacked(type, pdx, ROWS * C);
    for (int c = 0; c < C; c++) {
        CHECK(dbeta[c] == want[c], "in %s on %s, mask from %s: channel %d has dbeta %g, not %g",
              hvt_dtype_name(type), hvt_device_isa(devs[dev]), mask_from_x ? "x" : "y", c, dbeta[c], want[c]);
        CHECK(isnan(dgamma[c]) == (c == 2) && isnan(dx[c]) == (c == 2), "channel %d has dgamma %g, dx %g", c,
              dgamma[c], dx[c]);
    }
    free(px);
    free(py);
    free(pdy);
    free((void *)dx);
}

TEST(batch_norm_with_relu_passes_it_too)
{
    for (int t = 0; t < TYPES * 2 * ndevs; t++)
        sum_is_whole(t / (TYPES * 2), (hvt_dtype)(t % TYPES), t / TYPES % 2);
}

TEST(constant_pieces_pass_no_infinity_on)
{
    static const struct {
        hvt_map map;
        float saved[4]; /* x or y on constant pieces and, the last one, elsewhere */
    } cases[] = {{{HVT_RELU, 0, 0}, {0, 0, -1, 1}},
                 {{HVT_HARDTANH, 0, 6}, {0, 6, 0, 3}},
                 {{HVT_HARDSIGMOID, 0, 0}, {-3, 3, 7, 1}},
                 {{HVT_HARDSWISH, 0, 0}, {-3, -9, -4, 4}},
                 {{HVT_HARDSHRINK, 1, 0}, {0, -0.0f, 0, 4}}};

    for (int t = 0; t < TYPES * ndevs; t++)
        for (size_t i = 0; i < HVT_LEN(cases); i++) {
            const hvt_dtype type = (hvt_dtype)(t % TYPES);
            hvt_device *d = devs[t / TYPES];
            float dy[4] = {INFINITY, NAN, -INFINITY, 5}, *dx;
            void *saved = packed(type, cases[i].saved, 4), *pdy = packed(type, dy, 4),
                 *pdx = unwritten(type, 4);

            CHECK_OK(d->ops->general.map_backward(d, 4, type, &cases[i].map, saved, pdy, pdx, false));
            dx = unpacked(type, pdx, 4);
            CHECK(dx[0] == 0 && dx[1] == 0 && dx[2] == 0 && dx[3] != 0,
                  "function %d in %s on %s: dx is %g %g %g %g, expected zeros and the last one",
                  cases[i].map.f, hvt_dtype_name(type), hvt_device_isa(d), dx[0], dx[1], dx[2], dx[3]);
            free(saved);
            free(pdy);
            free(dx);
        }
}

int main(void)
{
    open_devices();
    RUN(relu_passes_a_gradient_where_its_output_is_nan);
    RUN(batch_norm_with_relu_passes_it_too);
    RUN(constant_pieces_pass_no_infinity_on);
    close_devices();
    return check_done();
}
