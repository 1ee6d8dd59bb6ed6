/*
 * resample: weighted sums of pixels equal ref's on every device, over random taps, both row orders and short
 * batches; ref's backward is the transpose of its forward.
 */
#include "devices.h"

enum { CASES = 60, MOST_PIXELS = 40, MOST_TAPS = 6 };

typedef struct dimension {
    hvt_taps t;
    int first[MOST_PIXELS + 1];
    hvt_tap tap[MOST_PIXELS * MOST_TAPS];
} dimension;

/* Up to MOST_TAPS taps of each output, some of none. */
static void random_taps(dimension *d, int in, int out)
{
    int count = 0;

    for (int o = 0; o < out; o++) {
        d->first[o] = count;
        for (int k = between(0, between(0, 3) ? 2 : MOST_TAPS); k > 0; k--)
            d->tap[count++] = (hvt_tap){between(0, in - 1), value()};
    }
    d->first[out] = count;
    d->t = (hvt_taps){in, out, d->first, d->tap};
}

/* One pixel read by all: the sum of its gradients is longer than any list of addresses. */
static void spread_taps(dimension *d)
{
    for (int o = 0; o <= MOST_PIXELS; o++) {
        d->first[o] = o;
        d->tap[o] = (hvt_tap){0, 1 + (float)o / 64};
    }
    d->t = (hvt_taps){1, MOST_PIXELS, d->first, d->tap};
}

static void run(hvt_device *dev, hvt_resample_desc d, const shape *in, const shape *out, const float *x0,
                const float *dy0, const float *dx0, bool add, float *ret[2])
{
    void *x = packed(d.type, x0, in->all), *y = unwritten(d.type, out->all),
         *dy = packed(d.type, dy0, out->all), *dx = packed(d.type, dx0, in->all);
    hvt_op *op = NULL;

    CHECK_OK(dev->ops->resample.plan(dev, &d, &op));
    CHECK_OK(dev->ops->resample.forward(op, in->real, x, y));
    CHECK_OK(dev->ops->resample.backward(op, in->real, dy, dx, add));
    hvt__op_free(op);
    ret[0] = unpacked(d.type, y, out->all);
    ret[1] = unpacked(d.type, dx, in->all);
    free(x);
    free(dy);
}

/* <R x, dy> = <x, R' dy> */
static void check_transpose(const shape *in, const shape *out, const float *x, const float *y,
                            const float *dy, const float *dx)
{
    double forward = 0, backward = 0, size = 1;

    for (size_t i = 0; i < out->all; i++)
        if (is_real(out, i)) {
            forward += (double)y[i] * dy[i];
            size += fabs((double)y[i] * dy[i]);
        }
    for (size_t i = 0; i < in->all; i++)
        if (is_real(in, i))
            backward += (double)x[i] * dx[i];
    CHECK(fabs(forward - backward) <= 1e-6 * size, "%.9g forward, %.9g backward", forward, backward);
}

TEST(resampling_equals_ref)
{
    static dimension rows, columns;

    for (int t = 0; t < cases(CASES); t++) {
        hvt_resample_desc d = {.order = t % 2 ? HVT_ORDER_HWN : HVT_ORDER_NHW,
                               .type = (hvt_dtype)between(0, TYPES - 1),
                               .n = t % 10 ? between(1, 5) : 20,
                               .c = t % 10 ? between(1, 40) : 130};
        const bool add = between(0, 1);
        const int real = between(0, d.n);
        float *x, *dy, *dx, *want[2];
        hvt_resample_desc plain;
        shape in, out;

        if (t < 4) {
            spread_taps(&rows);
            spread_taps(&columns);
        } else {
            random_taps(&rows, between(1, 9), between(1, 17));
            random_taps(&columns, between(1, 9), between(1, 17));
        }
        d.rows = rows.t;
        d.columns = columns.t;
        in = typed_shape(d.type, make_shape(d.order, d.rows.in * d.columns.in, d.n, real, d.c));
        out = typed_shape(d.type, make_shape(d.order, d.rows.out * d.columns.out, d.n, real, d.c));
        x = matrix(&in, 0);
        dy = matrix(&out, t < 4 ? 2 : 0); /* a long sum does not cancel */
        dx = matrix(&in, 0);
        plain = d;
        plain.type = HVT_F32;
        run(ref, plain, &in, &out, x, dy, dx, false, want);
        check_transpose(&in, &out, x, want[0], dy, want[1]);
        for (size_t i = 0; i < in.all; i++)
            want[1][i] += add ? dx[i] : 0;
        for (int dev = 0; dev < ndevs; dev++) {
            float *got[2];

            run(devs[dev], d, &in, &out, x, dy, dx, add, got);
            check_near("y", dev, &out, out.all, got[0], want[0], 1e-5);
            /* a sum of many is rounded more than once, and adding rounds to the type */
            check_near("dx", dev, &in, in.all, got[1], want[1],
                       t < 4 ? 4 * unit(d.type) + 1e-5
                       : add ? unit(d.type) * 2 + 1e-5
                             : 1e-5);
            free(got[0]);
            free(got[1]);
        }
        free(x);
        free(dy);
        free(dx);
        free(want[0]);
        free(want[1]);
    }
}

int main(void)
{
    open_devices();
    RUN(resampling_equals_ref);
    close_devices();
    return check_done();
}
