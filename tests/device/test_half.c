/* half: f16 and bf16 on every device: all bit patterns converted both ways, sums, copies. */
#include "devices.h"

/* What a 16-bit pattern stands for, in double, from its parts; NaN for a NaN. */
static double meaning(hvt_dtype t, int h)
{
    int bits = t == HVT_F16 ? 10 : 7, top = t == HVT_F16 ? 31 : 255, bias = t == HVT_F16 ? 15 : 127;
    int exponent = (h & 0x7fff) >> bits, fraction = h & ((1 << bits) - 1);
    double size = exponent == top ? (fraction ? NAN : INFINITY)
                  : exponent      ? ldexp((1 << bits) + fraction, exponent - bias - bits)
                                  : ldexp(fraction, 1 - bias - bits);

    return h & 0x8000 ? -size : size;
}

/* The f32 pattern of a double that has one; nothing is computed in f32, where subnormals are flushed. */
static uint32_t pattern(double x)
{
    uint32_t sign = signbit(x) ? 0x80000000 : 0;
    int e;
    double m;

    if (isinf(x) || x == 0)
        return sign | (isinf(x) ? 0x7f800000 : 0);
    m = frexp(fabs(x), &e);
    if (e < -125)
        return sign | (uint32_t)ldexp(fabs(x), 149);
    return sign | ((uint32_t)(e + 126) << 23) | ((uint32_t)ldexp(m, 24) & 0x7fffff);
}

TEST(all_16_bit_values_widen_exactly)
{
    uint16_t *h = room(65536 * 2);
    float *x = room(65536 * 4);

    for (int i = 0; i < 65536; i++)
        h[i] = (uint16_t)i;
    for (int dev = 0; dev < ndevs; dev++)
        for (int t = HVT_F16; t <= HVT_BF16; t++) {
            int bad = 0;

            CHECK_OK(devs[dev]->ops->vector.cast(devs[dev], 65536, 1, h, (hvt_dtype)t, x, HVT_F32));
            for (int i = 0; i < 65536; i++) {
                double want = meaning((hvt_dtype)t, i);

                if (fabs(want) < 0x1p-126 && !heap_memcheck()) /* bf16's subnormals are f32's, and flushed;
                                                                  valgrind's processor flushes none */
                    want = copysign(0, want);
                bad += isnan(want) ? !isnan(x[i]) : bits_of(x[i]) != pattern(want);
            }
            CHECK(!bad, "%d values of %s on %s", bad, hvt_dtype_name((hvt_dtype)t),
                  hvt_device_isa(devs[dev]));
        }
    free(h);
    free(x);
}

/* Between two neighbours a < b: a and what lies before the middle go to a, the middle to the even one, what
 * lies behind it to b. One step past the last finite value the middle belongs to infinity. */
TEST(all_16_bit_values_round_to_nearest_even)
{
    enum { EACH = 4 };
    float *x = room(65536 * EACH * 4);
    uint16_t *want = room(65536 * EACH * 2), *got = room(65536 * EACH * 2);

    for (int t = HVT_F16; t <= HVT_BF16; t++) {
        int n = 0;

        for (int sign = 0; sign < 0x10000; sign += 0x8000)
            for (int h = 0; h < (t == HVT_F16 ? 0x7c00 : 0x7f80); h++) {
                double a = meaning((hvt_dtype)t, h), b = meaning((hvt_dtype)t, h + 1), middle;
                uint32_t m;

                if (isinf(b)) /* where the next value would be, were there one more exponent */
                    b = 2 * a - meaning((hvt_dtype)t, h - 1);
                middle = (a + b) / 2;
                if (t == HVT_BF16 && a < 0x1p-126)
                    continue; /* flushed */
                m = pattern(middle);
                x[n] = from_pattern(pattern(a) | (uint32_t)sign << 16);
                want[n++] = (uint16_t)(sign | h);
                x[n] = from_pattern((m - 1) | (uint32_t)sign << 16);
                want[n++] = (uint16_t)(sign | h);
                x[n] = from_pattern(m | (uint32_t)sign << 16);
                want[n++] = (uint16_t)(sign | (h + (h & 1)));
                x[n] = from_pattern((m + 1) | (uint32_t)sign << 16);
                want[n++] = (uint16_t)(sign | (h + 1));
            }
        for (int dev = 0; dev < ndevs; dev++) {
            static const float odd[] = {INFINITY, -INFINITY, 3.4e38f, -3.4e38f, NAN};
            int bad = 0, at = 0, inf = t == HVT_F16 ? 0x7c00 : 0x7f80;

            CHECK_OK(devs[dev]->ops->vector.cast(devs[dev], (size_t)n, 1, x, HVT_F32, got, (hvt_dtype)t));
            for (int i = 0; i < n; i++)
                if (got[i] != want[i] && !bad++)
                    at = i;
            CHECK(!bad, "%d of %d to %s on %s, first %.9g gave %04x, not %04x", bad, n,
                  hvt_dtype_name((hvt_dtype)t), hvt_device_isa(devs[dev]), x[at], got[at], want[at]);
            CHECK_OK(devs[dev]->ops->vector.cast(devs[dev], 5, 1, odd, HVT_F32, got, (hvt_dtype)t));
            CHECK(got[0] == inf && got[1] == (inf | 0x8000), "infinity became %04x %04x", got[0], got[1]);
            CHECK(t == HVT_BF16 || (got[2] == inf && got[3] == (inf | 0x8000)), "3.4e38 became %04x", got[2]);
            CHECK((got[4] & inf) == inf && (got[4] & ~inf & 0x7fff), "NaN became %04x", got[4]);
        }
    }
    free(x);
    free(want);
    free(got);
}

TEST(sums_in_16_bits_are_rounded_once)
{
    enum { N = 1000, MOST = 9 };
    uint16_t *in[MOST], *want = room(N * 2), *got = room(N * 2);
    const void *p[MOST];
    void *io[MOST];

    for (int t = HVT_F16; t <= HVT_BF16; t++) {
        for (int k = 0; k < MOST; k++) {
            float *x = floats(N);

            in[k] = room(N * 2);
            p[k] = in[k];
            CHECK_OK(ref->ops->vector.cast(ref, N, 1, x, HVT_F32, in[k], (hvt_dtype)t));
            free(x);
        }
        for (int count = 1; count <= MOST; count++) {
            CHECK_OK(ref->ops->vector.reduce(ref, N, (hvt_dtype)t, p, count, want));
            for (int dev = 1; dev < ndevs; dev++) {
                int bad = 0;

                CHECK_OK(devs[dev]->ops->vector.reduce(devs[dev], N, (hvt_dtype)t, p, count, got));
                for (int i = 0; i < N; i++)
                    bad += got[i] != want[i];
                CHECK(!bad, "%d of %d: %s, %d inputs, %s", bad, N, hvt_dtype_name((hvt_dtype)t), count,
                      hvt_device_isa(devs[dev]));
                for (int k = 0; k < count; k++)
                    memcpy(io[k] = room(N * 2), in[k], N * 2);
                CHECK_OK(devs[dev]->ops->host_only.reduce_all(devs[dev], N, (hvt_dtype)t, io, count));
                for (int k = 0; k < count; k++) {
                    CHECK(!memcmp(io[k], want, N * 2), "%s, %d of %d, %s", hvt_dtype_name((hvt_dtype)t), k,
                          count, hvt_device_isa(devs[dev]));
                    free(io[k]);
                }
            }
        }
        /* 1 + 2^-12 four times: rounding each partial sum to f16 or bf16 would lose the small part */
        {
            float one = 1, small = t == HVT_F16 ? 0x1p-11f : 0x1p-8f, sum;
            uint16_t h[3];
            const void *three[3] = {&h[0], &h[1], &h[2]};

            for (int dev = 0; dev < ndevs; dev++) {
                CHECK_OK(devs[dev]->ops->vector.cast(devs[dev], 1, 1, &one, HVT_F32, &h[0], (hvt_dtype)t));
                CHECK_OK(devs[dev]->ops->vector.cast(devs[dev], 1, 1, &small, HVT_F32, &h[1], (hvt_dtype)t));
                h[2] = h[1];
                CHECK_OK(devs[dev]->ops->vector.reduce(devs[dev], 1, (hvt_dtype)t, three, 3, &h[0]));
                CHECK_OK(devs[dev]->ops->vector.cast(devs[dev], 1, 1, &h[0], (hvt_dtype)t, &sum, HVT_F32));
                CHECK(sum == 1 + 2 * small, "%.9g on %s", sum, hvt_device_isa(devs[dev]));
            }
        }
        for (int k = 0; k < MOST; k++)
            free(in[k]);
    }
    free(want);
    free(got);
}

TEST(bytes_are_copied_and_zeroed)
{
    for (int dev = 0; dev < ndevs; dev++)
        for (size_t n = 0; n < 100000; n = n * 3 + 1) {
            char *a = room(n), *b = room(n);
            size_t bad = 0;

            for (size_t i = 0; i < n; i++)
                a[i] = (char)draw();
            CHECK_OK(devs[dev]->ops->memory.copy(devs[dev], b, a, n));
            CHECK(!memcmp(a, b, n), "%zu bytes", n);
            CHECK_OK(devs[dev]->ops->memory.zero(devs[dev], b, n));
            for (size_t i = 0; i < n; i++)
                bad += b[i] != 0;
            CHECK(!bad, "%zu of %zu bytes", bad, n);
            free(a);
            free(b);
        }
}

int main(void)
{
    open_devices();
    RUN(all_16_bit_values_widen_exactly);
    RUN(all_16_bit_values_round_to_nearest_even);
    RUN(sums_in_16_bits_are_rounded_once);
    RUN(bytes_are_copied_and_zeroed);
    close_devices();
    return check_done();
}
