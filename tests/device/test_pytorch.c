/*
 * Convolutions and their bias, forward and gradients, against PyTorch's on every device, instruction set and
 * row order. Source: golden/conv.txt by make_conv.py, which explains its numbers.
 */
#include "devices.h"

#ifndef HVT_TESTS
#define HVT_TESTS "tests" /* where golden/ is; Meson says so */
#endif

enum { SEED = 1007, GOLDEN_INTS = 16, GOLDEN_RESULTS = 4 };

/* Element i of operand `key`: signed_unit() of make_losses.py. */
static float operand(int key, size_t i)
{
    return 2 * hvt__unit(hvt__draw(SEED, 4, (uint64_t)key, i)) - 1;
}

/* The golden operand's element for a row's place in memory. */
static size_t golden_row(const hvt_conv_desc *d, int pixels, size_t row)
{
    return d->order == HVT_ORDER_HWN ? row % (size_t)d->n * (size_t)pixels + row / (size_t)d->n : row;
}

static float *activations(const hvt_conv_desc *d, int key, int pixels, int channels)
{
    size_t rows = (size_t)d->n * (size_t)pixels, c = (size_t)channels;
    float *p = room(rows * c * sizeof *p);

    for (size_t i = 0; i < rows * c; i++)
        p[i] = operand(key, golden_row(d, pixels, i / c) * c + i % c);
    return p;
}

static double product(const float *a, const float *b, size_t n)
{
    double sum = 0;

    for (size_t i = 0; i < n; i++)
        sum += (double)a[i] * b[i];
    return sum;
}

static void check_line(int dev, hvt_conv_desc d, const double *want)
{
    static const char *const what[GOLDEN_RESULTS] = {"y", "dx", "dw", "the bias's gradient"};
    const hvt_device_ops *ops = devs[dev]->ops;
    const int p = hvt__conv_height(&d), q = hvt__conv_width(&d);
    const hvt_rows rows = hvt__rows(d.order, p * q, d.n, d.n);
    const size_t nx = (size_t)d.n * d.h * d.w * d.c, ny = (size_t)d.n * p * q * d.k,
                 nw = (size_t)d.k * (d.c / d.groups) * d.r * d.s;
    float *x = activations(&d, 0, d.h * d.w, d.c), *ux = activations(&d, 4, d.h * d.w, d.c),
          *dy = activations(&d, 3, p * q, d.k), *y = unwritten(HVT_F32, ny), *dx = unwritten(HVT_F32, nx),
          *file = room(nw * 4), *uw = room(nw * 4), *b = room((size_t)d.k * 4), *ub = room((size_t)d.k * 4),
          *db = room((size_t)d.k * 4), *w, *dw;
    size_t weights, bytes;
    double got[GOLDEN_RESULTS];
    hvt_op *op;
    void *ws;

    for (size_t i = 0; i < nw; i++) {
        file[i] = operand(1, i);
        uw[i] = operand(5, i);
    }
    for (int i = 0; i < d.k; i++) {
        b[i] = operand(2, (size_t)i);
        ub[i] = operand(6, (size_t)i);
    }
    CHECK_OK(ops->conv.plan(devs[dev], &d, &op, &weights, &bytes));
    ws = room(bytes);
    w = unwritten(HVT_F32, weights);
    dw = unwritten(HVT_F32, weights);
    ops->conv.permute(op, false, w, file);
    CHECK_OK(ops->conv.forward(op, d.n, x, w, y, ws));
    CHECK_OK(ops->matrix.bias_forward(devs[dev], rows, d.k, HVT_F32, b, y));
    CHECK_OK(ops->conv.backward_x(op, d.n, w, dy, dx, false, ws));
    CHECK_OK(ops->conv.backward_w(op, d.n, x, dy, dw, ws));
    CHECK_OK(ops->matrix.bias_backward(devs[dev], rows, d.k, HVT_F32, dy, db));
    ops->conv.permute(op, true, dw, file);
    got[0] = product(y, dy, ny);
    got[1] = product(dx, ux, nx);
    got[2] = product(file, uw, nw);
    got[3] = product(db, ub, (size_t)d.k);
    for (int i = 0; i < GOLDEN_RESULTS; i++)
        CHECK(fabs(got[i] - want[i]) <= 1e-4 * (1 + fabs(want[i])),
              "%s, order %d: %dx%dx%d by %d filters of %dx%d in %d groups: %s gives %.9g, PyTorch's %.9g",
              hvt_device_isa(devs[dev]), d.order, d.h, d.w, d.c, d.k, d.r, d.s, d.groups, what[i], got[i],
              want[i]);
    hvt__op_free(op);
    void *const owned[] = {x, ux, dy, y, dx, file, uw, b, ub, db, ws, w, dw};
    for (size_t i = 0; i < HVT_LEN(owned); i++)
        free(owned[i]);
}

TEST(convolutions_and_their_gradients_equal_pytorchs)
{
    FILE *f = fopen(HVT_TESTS "/golden/conv.txt", "r");
    char line[512];
    int lines = 0;

    CHECK(f, "golden/conv.txt cannot be read");
    while (f && fgets(line, sizeof line, f)) {
        int v[GOLDEN_INTS], n = 0, at = 0, used = 0;
        double want[GOLDEN_RESULTS];

        if (line[0] == '#')
            continue;
        for (; n < GOLDEN_INTS && sscanf(line + at, "%d%n", &v[n], &used) == 1; n++)
            at += used;
        CHECK(n == GOLDEN_INTS &&
                  sscanf(line + at, "%lf %lf %lf %lf", &want[0], &want[1], &want[2], &want[3]) == 4,
              "%s", line);
        for (int t = 0; t < 2 * ndevs; t++)
            check_line(t / 2,
                       (hvt_conv_desc){.order = t % 2 ? HVT_ORDER_HWN : HVT_ORDER_NHW,
                                       .n = v[0],
                                       .c = v[1],
                                       .cx = v[1],
                                       .h = v[2],
                                       .w = v[3],
                                       .k = v[4],
                                       .r = v[5],
                                       .s = v[6],
                                       .stride_h = v[7],
                                       .stride_w = v[8],
                                       .top = v[9],
                                       .left = v[10],
                                       .bottom = v[11],
                                       .right = v[12],
                                       .dilation_h = v[13],
                                       .dilation_w = v[14],
                                       .groups = v[15]},
                       want);
        lines++;
    }
    CHECK(lines == 13, "%d convolutions", lines);
    if (f)
        fclose(f);
}

int main(void)
{
    open_devices();
    RUN(convolutions_and_their_gradients_equal_pytorchs);
    close_devices();
    return check_done();
}
