/*
 * Clipping when each rank sees only slices of the sums. The sum of squares (device/squares.h) consists of
 * integers. They travel as floats behind the flags of nonfinite.c, in digits of so few bits that a digit's
 * sum over all ranks is exact, in any order of addition.
 */
#include "dist.h"

enum { EXACT = 24 /* bits of an integer that a float holds exactly */ };

static int digit_bits(const hvt_distopt *d)
{
    int bits = EXACT;

    for (int n = 1; n < d->ranks; n *= 2)
        bits--;
    return bits;
}

/* Digits of a non-negative int64_t. */
static int digits(const hvt_distopt *d)
{
    int bits = digit_bits(d);

    return (63 + bits - 1) / bits;
}

size_t hvt__bin_digits(const hvt_distopt *d)
{
    return (size_t)(HVT__SQUARES_BINS * digits(d));
}

size_t hvt__clip_digits(const hvt_distopt *d)
{
    return d->opts.clip_norm > 0 ? hvt__bin_digits(d) : 0;
}

void hvt__bins_write(const hvt_distopt *d, const int64_t bin[HVT__SQUARES_BINS], float *ret_digit)
{
    const int bits = digit_bits(d), n = digits(d);

    for (int k = 0; k < HVT__SQUARES_BINS; k++) {
        int64_t left = bin[k];

        for (int i = 0; i < n; i++, left >>= bits)
            *ret_digit++ = (float)(left & (((int64_t)1 << bits) - 1));
    }
}

void hvt__bins_read(const hvt_distopt *d, const float *sum, int64_t ret_bin[HVT__SQUARES_BINS])
{
    const int bits = digit_bits(d), n = digits(d);

    for (int k = 0; k < HVT__SQUARES_BINS; k++) {
        int64_t all = 0;

        for (int i = 0; i < n; i++)
            all += (int64_t)*sum++ << i * bits;
        ret_bin[k] = all;
    }
}
