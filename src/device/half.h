/*
 * half.h - f16 and bf16 in integer arithmetic: round to nearest even, infinities and NaNs are kept, and
 * subnormal f16 are exact in any mode of the processor. And loads and stores of an element of any type as a
 * float.
 *
 * This file, formula.h, scalar.h, step.h, squares.h and join.h are both C17 and C++17, so that GPU kernels
 * are compiled from the same source. CUDA sources define HVT_FN, the prefix of every function, before they
 * include them.
 *
 * Included by src/device, cuda/ and the reader of safetensors. Nothing else.
 */
#ifndef HVT_HALF_H
#define HVT_HALF_H

#include "hvt/tensor.h"

#include <stdint.h>
#include <string.h>

#ifndef HVT_FN
#define HVT_FN static inline
#endif

HVT_FN uint32_t hvt__bits(float x)
{
    uint32_t u;

    memcpy(&u, &x, sizeof u);
    return u;
}

HVT_FN float hvt__from_bits(uint32_t u)
{
    float x;

    memcpy(&x, &u, sizeof x);
    return x;
}

HVT_FN float hvt__from_bf16(uint16_t h)
{
    return hvt__from_bits((uint32_t)h << 16);
}

HVT_FN uint16_t hvt__to_bf16(float x)
{
    uint32_t u = hvt__bits(x);

    if ((u & 0x7fffffff) > 0x7f800000)
        return (uint16_t)(u >> 16 | 0x40); /* NaN: quiet, never rounded up to infinity */
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

HVT_FN float hvt__from_f16(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, mag = h & 0x7fff;

    if (mag >= 0x7c00) /* infinity; NaN, made quiet */
        return hvt__from_bits(sign | 0x7f800000 | (mag & 0x3ff) << 13 | (mag > 0x7c00 ? 0x400000 : 0));
    if (mag < 0x400) /* zero and subnormals: mag * 2^-24 is exact and normal */
        return hvt__from_bits(sign | hvt__bits((float)mag * 0x1p-24f));
    return hvt__from_bits(sign | ((mag << 13) + ((127 - 15) << 23)));
}

HVT_FN uint16_t hvt__to_f16(float x)
{
    uint32_t u = hvt__bits(x), mag = u & 0x7fffffff, sign = u >> 16 & 0x8000;

    if (mag > 0x7f800000)
        return (uint16_t)(sign | 0x7e00 | (mag >> 13 & 0x3ff));
    if (mag >= 0x477ff000) /* 65520 and more round to infinity */
        return (uint16_t)(sign | 0x7c00);
    if (mag >= 0x38800000) { /* normal: 2^-14 and more */
        mag -= (127 - 15) << 23;
        return (uint16_t)(sign | ((mag + 0xfff + (mag >> 13 & 1)) >> 13));
    }
    if (mag < 0x33000000) /* less than half of the smallest subnormal, 2^-25 */
        return (uint16_t)sign;
    {
        uint32_t shift = 126 - (mag >> 23), m = (mag & 0x7fffff) | 0x800000; /* value = m * 2^(-24-shift) */
        uint32_t half = 1u << (shift - 1), rest = m & ((1u << shift) - 1);

        m >>= shift;
        return (uint16_t)(sign | (m + (rest > half || (rest == half && (m & 1)))));
    }
}

/* the address of element i of an array of type t: f32, f16 or bf16 */
HVT_FN void *hvt__at(const void *p, hvt_dtype t, size_t i)
{
    return (char *)(uintptr_t)p + i * (t == HVT_F32 ? sizeof(float) : sizeof(uint16_t));
}

/* element i of an array of type t: f32, f16 or bf16 */
HVT_FN float hvt__load(const void *p, hvt_dtype t, size_t i)
{
    return t == HVT_F32   ? ((const float *)p)[i]
           : t == HVT_F16 ? hvt__from_f16(((const uint16_t *)p)[i])
                          : hvt__from_bf16(((const uint16_t *)p)[i]);
}

HVT_FN void hvt__store(void *p, hvt_dtype t, size_t i, float x)
{
    if (t == HVT_F32)
        ((float *)p)[i] = x;
    else
        ((uint16_t *)p)[i] = t == HVT_F16 ? hvt__to_f16(x) : hvt__to_bf16(x);
}

#endif /* HVT_HALF_H */
