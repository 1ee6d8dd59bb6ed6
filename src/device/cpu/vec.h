/*
 * vec.h - a vector of floats for the instruction set this file is compiled for, and its operations.
 *
 * GCC's vector extension provides the operators (+, -, <, &, bit casts); the rest is here. `lanes` is how
 * many of the VL elements a load or store may touch: VL in a loop's body, where it is a constant and costs
 * nothing, fewer in its tail. Lanes that were not loaded are zero, so a tail does the same arithmetic as a
 * body.
 *
 * Included by elementwise.c, factors.c and typed.h. Nothing else.
 */
#ifndef HVT_VEC_H
#define HVT_VEC_H

#include "device/half.h"
#include "cpu_impl.h"

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__AVX512F__)

#include <immintrin.h>
enum { VL = 16 };
typedef float F __attribute__((vector_size(64)));

INLINE F f_load(const float *p, int lanes)
{
    return lanes == VL ? _mm512_loadu_ps(p) : _mm512_maskz_loadu_ps((__mmask16)((1u << lanes) - 1), p);
}

INLINE void f_store(float *p, F x, int lanes)
{
    if (lanes == VL)
        _mm512_storeu_ps(p, x);
    else
        _mm512_mask_storeu_ps(p, (__mmask16)((1u << lanes) - 1), x);
}

INLINE F f_splat(float x)
{
    return _mm512_set1_ps(x);
}

INLINE F f_fma(F a, F b, F c)
{
    return _mm512_fmadd_ps(a, b, c);
}

INLINE F f_relu(F x)
{
    return _mm512_max_ps(_mm512_setzero_ps(), x); /* the second operand where one is NaN */
}

INLINE F f_keep(F y, F d)
{
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(y, _mm512_setzero_ps(), _CMP_NLE_UQ), d);
}

#elif defined(__AVX2__) && defined(__FMA__)

#include <immintrin.h>
enum { VL = 8 };
typedef float F __attribute__((vector_size(32)));

INLINE __m256i first_lanes(int n)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

INLINE F f_load(const float *p, int lanes)
{
    return lanes == VL ? _mm256_loadu_ps(p) : _mm256_maskload_ps(p, first_lanes(lanes));
}

INLINE void f_store(float *p, F x, int lanes)
{
    if (lanes == VL)
        _mm256_storeu_ps(p, x);
    else
        _mm256_maskstore_ps(p, first_lanes(lanes), x);
}

INLINE F f_splat(float x)
{
    return _mm256_set1_ps(x);
}

INLINE F f_fma(F a, F b, F c)
{
    return _mm256_fmadd_ps(a, b, c);
}

INLINE F f_relu(F x)
{
    return _mm256_max_ps(_mm256_setzero_ps(), x);
}

INLINE F f_keep(F y, F d)
{
    return _mm256_and_ps(_mm256_cmp_ps(y, _mm256_setzero_ps(), _CMP_NLE_UQ), d);
}

#else /* SSE2, NEON */

#ifdef __aarch64__
#include <arm_neon.h>
#endif
enum { VL = 4 };
typedef float F __attribute__((vector_size(16)));
typedef int32_t portable_mask __attribute__((vector_size(16)));

INLINE F f_load(const float *p, int lanes)
{
    F x = {0};

    memcpy(&x, p, lanes == VL ? sizeof x : (size_t)lanes * sizeof *p);
    return x;
}

INLINE void f_store(float *p, F x, int lanes)
{
    memcpy(p, &x, lanes == VL ? sizeof x : (size_t)lanes * sizeof *p);
}

INLINE F f_splat(float x)
{
    return (F){x, x, x, x};
}

INLINE F f_fma(F a, F b, F c)
{
#ifdef __aarch64__
    return vfmaq_f32(c, a, b);
#else
    return a * b + c;
#endif
}

INLINE F f_relu(F x)
{
    return (F)(~(portable_mask)(0 > x) & (portable_mask)x);
}

INLINE F f_keep(F y, F d)
{
    return (F)(~(portable_mask)(y <= 0) & (portable_mask)d);
}

#endif

/* ---- the same for all sets ---- */

typedef int32_t I __attribute__((vector_size(VL * 4)));
typedef I M; /* formula.h's */
typedef uint32_t U __attribute__((vector_size(VL * 4)));
typedef uint16_t H __attribute__((vector_size(VL * 2)));
typedef uint8_t B __attribute__((vector_size(VL)));

INLINE F f_zero(void)
{
    return f_splat(0);
}

/* mask: all bits of a lane set or none, as comparisons give it */
INLINE F f_select(I mask, F yes, F no)
{
    return (F)((mask & (I)yes) | (~mask & (I)no));
}

INLINE I i_select(I mask, I yes, I no)
{
    return (mask & yes) | (~mask & no);
}

INLINE I i_splat(int x)
{
    return (I){0} + x;
}

INLINE I i_load_bytes(const uint8_t *p, int lanes)
{
    B b = {0};

    memcpy(&b, p, lanes == VL ? sizeof b : (size_t)lanes);
    return __builtin_convertvector(b, I);
}

INLINE void i_store_bytes(uint8_t *p, I x, int lanes)
{
    B b = __builtin_convertvector(x, B);

    memcpy(p, &b, lanes == VL ? sizeof b : (size_t)lanes);
}

INLINE F f_from_int(I x)
{
    return __builtin_convertvector(x, F);
}

INLINE H h_load(const uint16_t *p, int lanes)
{
    H h = {0};

    memcpy(&h, p, lanes == VL ? sizeof h : (size_t)lanes * sizeof *p);
    return h;
}

INLINE void h_store(uint16_t *p, H h, int lanes)
{
    memcpy(p, &h, lanes == VL ? sizeof h : (size_t)lanes * sizeof *p);
}

/* GCC's generic conversion widens the two halves and joins them in memory. */
INLINE U u_from_h(H h)
{
#if defined(__AVX512F__)
    return (U)_mm512_cvtepu16_epi32((__m256i)h);
#elif defined(__AVX2__) && defined(__FMA__)
    return (U)_mm256_cvtepu16_epi32((__m128i)h);
#else
    return __builtin_convertvector(h, U);
#endif
}

INLINE F f_from_bf16(H h)
{
    return (F)(u_from_h(h) << 16);
}

#ifdef __AVX512BF16__

/* Subnormals are flushed to zero, as in arithmetic. */
INLINE H f_to_bf16(F x)
{
    return (H)_mm512_cvtneps_pbh(x);
}

#else

INLINE H f_to_bf16(F x)
{
    U u = (U)x, even = (u + 0x7fff + (u >> 16 & 1)) >> 16, quiet = u >> 16 | 0x40;
    I nan = (I)(x != x);

    return __builtin_convertvector((U)i_select(nan, (I)quiet, (I)even), H);
}

#endif

#if defined(__AVX512F__)

INLINE F f_from_f16(H h)
{
    return _mm512_cvtph_ps((__m256i)h);
}

INLINE H f_to_f16(F x)
{
    return (H)_mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

#elif defined(__AVX2__) && defined(__F16C__)

INLINE F f_from_f16(H h)
{
    return _mm256_cvtph_ps((__m128i)h);
}

INLINE H f_to_f16(F x)
{
    return (H)_mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

#elif defined(__aarch64__)

INLINE F f_from_f16(H h)
{
    return vcvt_f32_f16((float16x4_t)h);
}

INLINE H f_to_f16(F x)
{
    return (H)vcvt_f16_f32(x);
}

#else

INLINE F f_from_f16(H h)
{
    F x;

    for (int i = 0; i < VL; i++)
        x[i] = hvt__from_f16(h[i]);
    return x;
}

INLINE H f_to_f16(F x)
{
    H h;

    for (int i = 0; i < VL; i++)
        h[i] = hvt__to_f16(x[i]);
    return h;
}

#endif

INLINE F f_load_as(hvt_dtype t, const void *p, size_t i, int lanes)
{
    return t == HVT_F32   ? f_load((const float *)p + i, lanes)
           : t == HVT_F16 ? f_from_f16(h_load((const uint16_t *)p + i, lanes))
                          : f_from_bf16(h_load((const uint16_t *)p + i, lanes));
}

INLINE void f_store_as(hvt_dtype t, void *p, size_t i, F x, int lanes)
{
    if (t == HVT_F32)
        f_store((float *)p + i, x, lanes);
    else
        h_store((uint16_t *)p + i, t == HVT_F16 ? f_to_f16(x) : f_to_bf16(x), lanes);
}

/* Run the statements for i = 0, VL, 2*VL ... below n: they see `i` and `lanes`. */
#define SPAN(n, ...)                                                                                         \
    do {                                                                                                     \
        size_t i = 0;                                                                                        \
                                                                                                             \
        for (; i + VL <= (size_t)(n); i += VL) {                                                             \
            enum { lanes = VL };                                                                             \
            __VA_ARGS__                                                                                      \
        }                                                                                                    \
        if (i < (size_t)(n)) {                                                                               \
            const int lanes = (int)((size_t)(n)-i);                                                          \
            __VA_ARGS__                                                                                      \
        }                                                                                                    \
    } while (0)

#endif /* HVT_VEC_H */
