/*
 * functions: the functions of HVT__MAPS and their slopes on every device equal ref's, over random shapes, at
 * the ends of their range, for NaNs, and for every 16-bit number.
 */
#include "devices.h"

static const char *const names[] = {
#define NAME(constant, name, from_x) #name,
    HVT__MAPS(NAME)
#undef NAME
};

/* f with parameters that are no special case. */
static hvt_map plain_map(int f)
{
    return (hvt_map){(hvt_function)f, f == HVT_HARDTANH || f == HVT_CLAMP ? -0.75f : 1,
                     f == HVT_SOFTPLUS ? 3 : 1.5f};
}

static hvt_map random_map(hvt_function f)
{
    static const float powers[] = {0.5f, -0.5f, 1.0f / 3, -1, 2, 3, -2, 1.7f, 8};

    return (hvt_map){f,
                     f == HVT_HARDTANH || f == HVT_CLAMP ? -0.75f
                     : f == HVT_POW                      ? powers[between(0, 8)]
                                                         : 0.5f + 0.25f * (float)between(0, 4),
                     f == HVT_SOFTPLUS ? 3 : 1.5f};
}

/* Has f a value for numbers below 0? */
static bool takes_negative(const hvt_map *f)
{
    return f->f != HVT_LOG && (f->f != HVT_POW || f->a == rintf(f->a));
}

TEST(functions_equal_ref)
{
    for (int t = 0; t < cases(2 * HVT_FUNCTIONS); t++) {
        hvt_map f = random_map((hvt_function)(t % HVT_FUNCTIONS));
        shape s = random_shape();
        float *x = matrix(&s, 0), *dy = matrix(&s, 0), *old = matrix(&s, 0), *y, *dx = room(s.all * 4), *sum,
              *first[3] = {0};

        for (size_t i = 0; i < s.all; i++)
            x[i] = takes_negative(&f) ? x[i] * (float)between(1, f.f == HVT_EXP ? 8 : 12)
                                      : ldexpf(fabsf(x[i]) + 0.125f, between(-1, 1));
        round_all(s.type, x, s.all);
        y = room(s.all * 4);
        CHECK_OK(ref->ops->general.map_forward(ref, s.all, HVT_F32, &f, x, y));
        for (int dev = 0; dev < ndevs; dev++) {
            const hvt_device_ops *ops = devs[dev]->ops;
            void *in = packed(s.type, x, s.all), *in_dy = packed(s.type, dy, s.all),
                 *out = unwritten(s.type, s.all), *out_dx = unwritten(s.type, s.all),
                 *out_sum = packed(s.type, old, s.all), *kept;
            float *got[3], *saved;

            CHECK_OK(ops->general.map_forward(devs[dev], s.all, s.type, &f, in, out));
            kept = hvt__slope_from_x(f.f) ? in : out;
            CHECK_OK(ops->general.map_backward(devs[dev], s.all, s.type, &f, kept, in_dy, out_dx, false));
            CHECK_OK(ops->general.map_backward(devs[dev], s.all, s.type, &f, kept, in_dy, out_sum, true));
            saved = room(s.all * 4);
            for (size_t i = 0; i < s.all; i++)
                saved[i] = hvt__load(kept, s.type, i);
            CHECK_OK(ref->ops->general.map_backward(ref, s.all, HVT_F32, &f, saved, dy, dx, false));
            sum = copied(old, s.all);
            CHECK_OK(ref->ops->general.map_backward(ref, s.all, HVT_F32, &f, saved, dy, sum, true));
            free(saved);
            if (kept != in)
                free(in);
            got[0] = unpacked(s.type, out, s.all);
            if (kept == in)
                free(in);
            got[1] = unpacked(s.type, out_dx, s.all);
            got[2] = unpacked(s.type, out_sum, s.all);
            free(in_dy);
            check_near(names[f.f], dev, &s, s.all, got[0], y, 1e-6);
            check_near(names[f.f], dev, &s, s.all, got[1], dx, 1e-6);
            check_near(names[f.f], dev, &s, s.all, got[2], sum, 2e-6);
            free(sum);
            for (int k = 0; k < 3; k++) {
                if (dev == one_thread(dev)) {
                    free(first[k]);
                    first[k] = copied(got[k], s.all);
                }
                check_same(names[f.f], dev, &s, s.all, got[k], first[k]);
                free(got[k]);
            }
        }
        for (int k = 0; k < 3; k++)
            free(first[k]);
        free(x);
        free(y);
        free(dy);
        free(dx);
        free(old);
    }
}

/* Relative to the result, for numbers of any size. */
TEST(exponentials_are_as_near_at_the_ends_of_their_range)
{
    enum { N = 2000 };
    static const hvt_map all[] = {{HVT_EXP, 0, 0},      {HVT_LOG, 0, 0},    {HVT_POW, 0.5f, 0},
                                  {HVT_POW, -0.5f, 0},  {HVT_POW, -1, 0},   {HVT_POW, 1.0f / 3, 0},
                                  {HVT_POW, 2.75f, 0},  {HVT_POW, 12, 0},   {HVT_POW, -40, 0},
                                  {HVT_POW, 0.001f, 0}, {HVT_POW, 1000, 0}, {HVT_POW, 3, 0}};
    float *x = floats(N), *y = room(N * 4);

    for (size_t f = 0; f < HVT_LEN(all); f++)
        for (int dev = 0; dev < ndevs; dev++) {
            double worst = 0, at = 0;

            for (int i = 0; i < N; i++)
                x[i] = all[f].f == HVT_EXP ? 86 * sinf((float)i)
                       : i % 2             ? ldexpf(1.5f + 0.49f * sinf((float)i), i % 250 - 125)
                                           : 1 + ldexpf(sinf((float)i), -(i % 24));
            CHECK_OK(devs[dev]->ops->general.map_forward(devs[dev], N, HVT_F32, &all[f], x, y));
            for (int i = 0; i < N; i++) {
                const double want = all[f].f == HVT_EXP   ? exp((double)x[i])
                                    : all[f].f == HVT_LOG ? log((double)x[i])
                                                          : pow((double)x[i], (double)all[f].a);
                const double off = fabs(y[i] / want - 1);

                if (want != 0 && fabs(want) > 2e-38 && fabs(want) < 3e38 && !(off <= worst)) {
                    worst = off;
                    at = (double)x[i];
                }
            }
            CHECK(worst < 3e-7, "%s with %g on %s: %g of %g", names[all[f].f], (double)all[f].a,
                  hvt_device_isa(devs[dev]), worst, at);
        }
    free(x);
    free(y);
}

static bool nearly(float a, float b)
{
    return same_kind(a, b) || fabsf(a / b - 1) < 3e-7f;
}

/* Powers of zero and of numbers below it, and the slopes there, as PyTorch has them. */
TEST(slopes_at_edges_are_pytorchs)
{
    static const struct {
        hvt_map f;
        float x, y, slope;
    } want[] = {
        {{HVT_CLAMP, 0, 6}, 0, 0, 1},
        {{HVT_CLAMP, 0, 6}, 6, 6, 1},
        {{HVT_CLAMP, 0, 6}, -1, 0, 0},
        {{HVT_CLAMP, 0, INFINITY}, 9, 9, 1},
        {{HVT_HARDTANH, 0, 6}, 0, 0, 0},
        {{HVT_POW, 0.5f, 0}, 0, 0, INFINITY},
        {{HVT_POW, -1, 0}, 0, INFINITY, -INFINITY},
        {{HVT_POW, -1, 0}, -2, -0.5f, -0.25f},
        {{HVT_POW, 1, 0}, 0, 0, 1},
        {{HVT_POW, 3, 0}, -2, -8, 12},
        {{HVT_POW, 3, 0}, 0, 0, 0},
        {{HVT_POW, 1.5f, 0}, 0, 0, 0},
        {{HVT_POW, 2, 0}, -3, 9, -6},
        {{HVT_POW, 0.5f, 0}, -1, NAN, NAN},
        {{HVT_LOG, 0, 0}, 0, -INFINITY, INFINITY},
        {{HVT_LOG, 0, 0}, 1, 0, 1},
        {{HVT_EXP, 0, 0}, 0, 1, 1},
        {{HVT_HARDSHRINK, 0.5f, 0}, 0.5f, 0, 0},
        {{HVT_HARDSHRINK, 0.5f, 0}, -0.5f, 0, 0},
        {{HVT_HARDSHRINK, 0.5f, 0}, -0.75f, -0.75f, 1},
        {{HVT_EXP, 0, 0}, -200, 0, 0},
    };

    for (size_t i = 0; i < HVT_LEN(want); i++)
        for (int dev = 0; dev < ndevs; dev++) {
            const hvt_device_ops *ops = devs[dev]->ops;
            const hvt_map *f = &want[i].f;
            float x = want[i].x, dy = 1, y, dx;

            CHECK_OK(ops->general.map_forward(devs[dev], 1, HVT_F32, f, &x, &y));
            CHECK_OK(ops->general.map_backward(devs[dev], 1, HVT_F32, f, hvt__slope_from_x(f->f) ? &x : &y,
                                               &dy, &dx, false));
            CHECK(nearly(y, want[i].y) && nearly(dx, want[i].slope),
                  "%s(%g) with %g is %g on %s, its slope %g; expected %g, %g", names[f->f], (double)x,
                  (double)f->a, (double)y, hvt_device_isa(devs[dev]), (double)dx, (double)want[i].y,
                  (double)want[i].slope);
        }
}

/* What no number may break: both infinities and NaN, as in PyTorch. */
TEST(functions_of_infinity_and_nan)
{
    static const float special[3] = {INFINITY, -INFINITY, NAN};
    static const float want[][2] = {
        [HVT_RELU] = {INFINITY, 0},
        [HVT_HARDTANH] = {1.5f, -0.75f},
        [HVT_LEAKY_RELU] = {INFINITY, -INFINITY},
        [HVT_ELU] = {INFINITY, -1},
        [HVT_SIGMOID] = {1, 0},
        [HVT_HARDSIGMOID] = {1, 0},
        [HVT_HARDSWISH] = {INFINITY, NAN},
        [HVT_SILU] = {INFINITY, NAN},
        [HVT_GELU] = {INFINITY, NAN},
        [HVT_GELU_TANH] = {INFINITY, NAN},
        [HVT_TANH] = {1, -1},
        [HVT_SOFTPLUS] = {INFINITY, 0},
        [HVT_AFFINE] = {INFINITY, -INFINITY},
        [HVT_CLAMP] = {1.5f, -0.75f},
        [HVT_EXP] = {INFINITY, 0},
        [HVT_LOG] = {INFINITY, NAN},
        [HVT_POW] = {INFINITY, -INFINITY},
        [HVT_HARDSHRINK] = {INFINITY, -INFINITY},
    };

    for (int f = 0; f < HVT_FUNCTIONS; f++)
        for (int dev = 0; dev < ndevs; dev++) {
            const hvt_map k = plain_map(f);
            float y[3];

            CHECK_OK(devs[dev]->ops->general.map_forward(devs[dev], 3, HVT_F32, &k, special, y));
            for (int i = 0; i < 3; i++) {
                float expected = i < 2 ? want[f][i] : NAN;

                CHECK(same_kind(y[i], expected), "%s(%g) is %g on %s, expected %g", names[f],
                      (double)special[i], (double)y[i], hvt_device_isa(devs[dev]), (double)expected);
            }
        }
}

/* Is `got` the nearest number of the type to `exact`, or one as near but for an error far below that of
 * rounding? Near the least floats 0 will do. */
static bool rounds_to(hvt_dtype type, float exact, float got)
{
    const int bits = type == HVT_F16 ? 11 : 8;
    const double size = fabs((double)exact), half = ldexp(1, (size > 0 ? ilogb(size) : -149) - bits),
                 least = type == HVT_F16 ? 0x1p-25 : 2e-36;
    float rounded = exact;

    round_all(type, &rounded, 1);
    return same_kind(got, rounded) || fabs((double)got - (double)exact) <= half + 0x1p-15 * size + least;
}

/* All but those next to the end of the range of floats, where some results are infinite. */
TEST(functions_of_every_number_of_16_bits)
{
    enum { N = 1 << 16 };
    static const hvt_dtype types[] = {HVT_F16, HVT_BF16};
    uint16_t *in = room(N * sizeof *in), *out = room(N * sizeof *out);
    float *x = room(N * sizeof *x), *want = room(N * sizeof *want);

    for (int i = 0; i < N; i++)
        in[i] = (uint16_t)i;
    for (int t = 0; t < 2 * HVT_FUNCTIONS; t++) {
        const hvt_dtype type = types[t % 2];
        const hvt_map f = plain_map(t / 2);

        for (int i = 0; i < N; i++)
            x[i] = hvt__load(in, type, (size_t)i);
        CHECK_OK(ref->ops->general.map_forward(ref, N, HVT_F32, &f, x, want));
        for (int dev = 0; dev < ndevs; dev++) {
            int i = 0;

            if (dev != one_thread(dev))
                continue;
            CHECK_OK(devs[dev]->ops->general.map_forward(devs[dev], N, type, &f, in, out));
            while (i < N &&
                   (fabsf(x[i]) > 5e37f || rounds_to(type, want[i], hvt__load(out, type, (size_t)i))))
                i++;
            CHECK(i == N, "%s(%g) is %g in %s on %s, expected %g", names[f.f], (double)x[i],
                  (double)hvt__load(out, type, (size_t)i), hvt_dtype_name(type), hvt_device_isa(devs[dev]),
                  (double)want[i]);
        }
    }
    free(in);
    free(out);
    free(x);
    free(want);
}

int main(void)
{
    open_devices();
    RUN(functions_equal_ref);
    RUN(exponentials_are_as_near_at_the_ends_of_their_range);
    RUN(slopes_at_edges_are_pytorchs);
    RUN(functions_of_infinity_and_nan);
    RUN(functions_of_every_number_of_16_bits);
    close_devices();
    return check_done();
}
