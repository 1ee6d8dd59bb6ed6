/*
 * squares.h - the sum of squares of all gradients, for their norm. It is exact beyond blocks of 16 elements,
 * so it depends neither on the order of additions nor on which rank adds what.
 *
 * Squares of floats are exact doubles; those of a block are added in order. A block's sum is split at
 * multiples of 32 bits and added to integer bins: bin k counts 2^(32 k - 384). Buckets, pieces and slices are
 * multiples of 16 elements, so every part of the gradients consists of whole blocks.
 *
 * A non-finite gradient adds nothing; its step is skipped.
 *
 * One source for all devices, like step.h.
 *
 * Included by src/device and cuda/. Nothing else.
 */
#ifndef HVT_SQUARES_H
#define HVT_SQUARES_H

#include "device_impl.h"
#include "half.h" /* HVT_FN */

enum { HVT__SQUARES_BITS = 32, HVT__SQUARES_LOWEST = -384 /* to 2^384: a square has 2^-298 to 2^256 */ };

/* The sum of squares of n elements, at most HVT__SQUARES_BLOCK. */
HVT_FN double hvt__squares_block(const float *g, int n)
{
    double sum = 0;

    for (int i = 0; i < n; i++)
        sum += (double)g[i] * (double)g[i];
    return sum;
}

/* Split a block's sum into parts for the returned bin and the two above it: its 53 bits begin in the first
 * one. */
HVT_FN int hvt__squares_cut(double sum, int64_t ret_part[3])
{
    uint64_t bits, low, high;
    int exponent, at;

    memcpy(&bits, &sum, sizeof bits);
    exponent = (int)(bits >> 52 & 2047);
    bits = (bits & UINT64_MAX >> 12) | 1ULL << 52;
    if (exponent == 0 || exponent == 2047) { /* zero; not finite */
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

/* The sum of all bins, which it clears. */
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
