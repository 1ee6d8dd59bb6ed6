/*
 * squares.h - the sum of squares of all gradients, from which their norm is made: exact as soon as it leaves
 * a block of 16 neighbours, so that it depends neither on the order of additions nor on who adds what.
 *
 * Squares of floats are exact doubles, and those of a block are added one after the other. A block's sum is
 * cut at multiples of 32 binary places and added to integers, one for each such place that a square can
 * reach: bin k counts 2^(32 k - 384). Whoever works on a part of the gradients has whole blocks: buckets,
 * pieces and slices are cut at multiples of 16 elements.
 *
 * A gradient that is not finite adds nothing; its step is skipped.
 *
 * One source for all devices, as step.h is.
 *
 * Included by src/device and cuda/. Nothing else.
 */
#ifndef HVT_SQUARES_H
#define HVT_SQUARES_H

#include "device_impl.h"
#include "half.h" /* HVT_FN */

enum { HVT__SQUARES_BITS = 32, HVT__SQUARES_LOWEST = -384 /* to 2^384: a square has 2^-298 to 2^256 */ };

/* Of n elements, at most HVT__SQUARES_BLOCK. */
HVT_FN double hvt__squares_block(const float *g, int n)
{
    double sum = 0;

    for (int i = 0; i < n; i++)
        sum += (double)g[i] * (double)g[i];
    return sum;
}

/* What a block's sum adds to the bin that is returned and to the two above it: its 53 bits begin somewhere in
 * the first one. */
HVT_FN int hvt__squares_cut(double sum, int64_t ret_part[3])
{
    uint64_t bits, low, high;
    int exponent, at;

    memcpy(&bits, &sum, sizeof bits);
    exponent = (int)(bits >> 52 & 2047);
    bits = (bits & UINT64_MAX >> 12) | 1ULL << 52;
    if (exponent == 0 || exponent == 2047) { /* of nothing but zeros; not finite */
        bits = 0;
        exponent = 1023;
    }
    at = exponent - 1075 - HVT__SQUARES_LOWEST;
    low = (bits & UINT32_MAX) << at % HVT__SQUARES_BITS;
    high = (bits >> 32) << at % HVT__SQUARES_BITS;
    ret_part[0] = (int64_t)(low & UINT32_MAX);
    ret_part[1] = (int64_t)(low >> 32) + (int64_t)(high & UINT32_MAX);
    ret_part[2] = (int64_t)(high >> 32);
    return at / HVT__SQUARES_BITS;
}

/* The sum, and none are left. */
HVT_FN double hvt__squares_take(int64_t bin[HVT__SQUARES_BINS])
{
    double sum = 0, unit = 0x1p-384;

    for (int k = 0; k < HVT__SQUARES_BINS; k++, unit *= 0x1p32) {
        sum += (double)bin[k] * unit;
        bin[k] = 0;
    }
    return sum;
}

#endif /* HVT_SQUARES_H */
