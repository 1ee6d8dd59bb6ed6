/*
 * dropout: cpu equals ref bit for bit; the mask depends on key, channel and pixel alone; and it is random:
 * mean, variance, and correlations between neighbours, images, epochs and layers.
 */
#include "devices.h"
#include "device/scalar.h"

enum { CASES = 60, BITS = 1 << 20 };

static int32_t least_of(double p)
{
    return (int32_t)(ldexp(p, 32) - 0x1p31);
}

static hvt_dropout_args random_args(const shape *s, const uint64_t *keys)
{
    double p = between(1, 9) / 10.0;

    return (hvt_dropout_args){.order = s->order,
                              .n = s->n,
                              .real = s->real,
                              .pixels = s->pixels,
                              .c = s->c,
                              .what = (hvt_drop)between(0, 2),
                              .least = least_of(p),
                              .scale = (float)(1 / (1 - p)),
                              .salt = draw(),
                              .keys = keys,
                              .add = between(0, 1)};
}

static uint64_t *random_keys(int n)
{
    uint64_t *keys = room((size_t)n * sizeof *keys);

    for (int i = 0; i < n; i++)
        keys[i] = draw();
    return keys;
}

/* y as floats */
static float *run(hvt_device *d, hvt_dropout_args a, hvt_dtype t, const shape *s, const float *x,
                  const float *old)
{
    void *in = packed(t, x, s->all), *out = a.add ? packed(t, old, s->all) : unwritten(t, s->all);

    a.type = t;
    a.x = in;
    a.y = out;
    CHECK_OK(d->ops->general.dropout(d, &a));
    free(in);
    return unpacked(t, out, s->all);
}

TEST(dropout_equals_ref_bit_for_bit)
{
    for (int t = 0; t < cases(CASES); t++) {
        shape s = random_shape();
        uint64_t *keys = random_keys(s.n);
        hvt_dropout_args a = random_args(&s, keys);
        float *x = matrix(&s, 0), *old = matrix(&s, 0), *want = run(ref, a, s.type, &s, x, old);

        for (int dev = 1; dev < ndevs; dev++) {
            float *got = run(devs[dev], a, s.type, &s, x, old);

            check_same("dropout", dev, &s, s.all, got, want);
            free(got);
        }
        free(keys);
        free(x);
        free(old);
        free(want);
    }
}

/* Its memory may be that of x. */
TEST(dropout_in_place_is_the_same)
{
    for (int dev = 0; dev < ndevs; dev++) {
        shape s = typed_shape(HVT_BF16, make_shape(HVT_ORDER_HWN, 9, 5, 5, 37));
        uint64_t *keys = random_keys(s.n);
        hvt_dropout_args a = random_args(&s, keys);
        float *x = matrix(&s, 0), *want, *got;
        void *both = packed(s.type, x, s.all);

        a.add = false;
        want = run(devs[dev], a, s.type, &s, x, NULL);
        a.type = s.type;
        a.x = a.y = both;
        CHECK_OK(devs[dev]->ops->general.dropout(devs[dev], &a));
        got = unpacked(s.type, both, s.all);
        check_same("dropout in place", dev, &s, s.all, got, want);
        free(keys);
        free(x);
        free(want);
        free(got);
    }
}

/* The order of rows, the batch's size, and the image's place in it do not matter. */
TEST(an_image_is_dropped_alike_wherever_it_lies)
{
    enum { PIXELS = 15, C = 20, N = 4 };
    const uint64_t key = draw();

    for (int dev = 0; dev < ndevs; dev++)
        for (int what = 0; what < 3; what++) {
            float one[PIXELS * C], first[PIXELS * C];
            hvt_dropout_args a = {.pixels = PIXELS,
                                  .c = C,
                                  .n = 1,
                                  .real = 1,
                                  .what = (hvt_drop)what,
                                  .least = least_of(0.5),
                                  .scale = 2,
                                  .keys = &key,
                                  .x = one,
                                  .y = first};

            for (int i = 0; i < PIXELS * C; i++)
                one[i] = 1;
            CHECK_OK(devs[dev]->ops->general.dropout(devs[dev], &a));
            for (int place = 0; place < N; place++) {
                float x[N * PIXELS * C], y[N * PIXELS * C];
                uint64_t keys[N] = {5, 6, 7, 8};

                for (int i = 0; i < N * PIXELS * C; i++)
                    x[i] = 1;
                keys[place] = key;
                a = (hvt_dropout_args){.order = HVT_ORDER_HWN,
                                       .pixels = PIXELS,
                                       .c = C,
                                       .n = N,
                                       .real = N,
                                       .what = (hvt_drop)what,
                                       .least = least_of(0.5),
                                       .scale = 2,
                                       .keys = keys,
                                       .x = x,
                                       .y = y};
                CHECK_OK(devs[dev]->ops->general.dropout(devs[dev], &a));
                for (int p = 0; p < PIXELS; p++)
                    CHECK(!memcmp(&y[(p * N + place) * C], &first[p * C], C * sizeof *y),
                          "kind %d on %s: pixel %d differs in place %d", what, hvt_device_isa(devs[dev]), p,
                          place);
            }
        }
}

/* ---- is it random? Bounds are five standard deviations, of which a million draws see none. ---- */

static uint8_t mask[2][BITS];

/* As ref makes it, of image `key` at layer `salt`. */
static void fill(uint8_t *m, uint64_t key, uint64_t salt, double p)
{
    const uint64_t k = hvt__mix(key ^ salt);

    for (uint32_t i = 0; i < BITS; i++)
        m[i] = drop_keeps(drop_bits(i, (uint32_t)k, (uint32_t)(k >> 32)), least_of(p));
}

/* Of a[i] and b[i + lag], each 0 or 1 with mean q. */
static void check_correlation(const char *what, int lag, const uint8_t *a, const uint8_t *b, double q)
{
    const int n = BITS - lag;
    double sum = 0;

    for (int i = 0; i < n; i++)
        sum += (a[i] - q) * (b[i + lag] - q);
    sum /= q * (1 - q) * sqrt(n);
    CHECK(fabs(sum) < 5, "%s, %d apart, keep %g: correlation of %g deviations", what, lag, q, sum);
}

TEST(as_many_are_dropped_as_should_be)
{
    static const double p[] = {0.01, 0.1, 0.2, 0.5, 0.8, 0.95};

    for (size_t k = 0; k < HVT_LEN(p); k++)
        for (uint64_t key = 1; key <= 4; key++) {
            enum { BLOCK = 256 };
            const double q = 1 - p[k];
            double sum = 0, square = 0;

            fill(mask[0], hvt__mix(key), 1, p[k]);
            for (int first = 0; first < BITS; first += BLOCK) {
                double kept = -q * BLOCK;

                for (int i = first; i < first + BLOCK; i++)
                    kept += mask[0][i];
                sum += kept;
                square += kept * kept / (BLOCK * q * p[k]);
            }
            sum /= sqrt(BITS * q * p[k]);
            CHECK(fabs(sum) < 5, "p %g: the mean is off by %g deviations", p[k], sum);
            square = (square - BITS / BLOCK) / sqrt(2.0 * BITS / BLOCK);
            CHECK(fabs(square) < 5, "p %g: the variance of %d is off by %g deviations", p[k], BLOCK, square);
        }
}

TEST(neighbours_are_independent)
{
    static const int lags[] = {1,  2,  3,  4,   7,   8,   14,   16,   28,    32,
                               49, 56, 64, 196, 256, 784, 1024, 3136, 12544, 65536};
    static const double p[] = {0.1, 0.5, 0.9};

    for (size_t k = 0; k < HVT_LEN(p); k++)
        for (uint64_t key = 1; key <= 3; key++) {
            fill(mask[0], hvt__mix(key), 2, p[k]);
            for (size_t i = 0; i < HVT_LEN(lags); i++)
                check_correlation("elements", lags[i], mask[0], mask[0], 1 - p[k]);
        }
}

/* The keys that the model makes: mix(mix(seed ..) ^ sample) ^ layer. */
TEST(images_epochs_and_layers_are_independent)
{
    const uint64_t epoch[2] = {hvt__draw(1, 4, 0, 9), hvt__draw(1, 5, 0, 9)};

    for (uint64_t i = 0; i < 12; i++) {
        fill(mask[0], hvt__mix(epoch[0] ^ i), 1, 0.3);
        fill(mask[1], hvt__mix(epoch[0] ^ (i + 1)), 1, 0.3);
        check_correlation("images", 0, mask[0], mask[1], 0.7);
        fill(mask[1], hvt__mix(epoch[1] ^ i), 1, 0.3);
        check_correlation("epochs", 0, mask[0], mask[1], 0.7);
        fill(mask[1], hvt__mix(epoch[0] ^ i), 2, 0.3);
        check_correlation("layers", 0, mask[0], mask[1], 0.7);
    }
}

int main(void)
{
    open_devices();
    RUN(dropout_equals_ref_bit_for_bit);
    RUN(dropout_in_place_is_the_same);
    RUN(an_image_is_dropped_alike_wherever_it_lies);
    RUN(as_many_are_dropped_as_should_be);
    RUN(neighbours_are_independent);
    RUN(images_epochs_and_layers_are_independent);
    close_devices();
    return check_done();
}
