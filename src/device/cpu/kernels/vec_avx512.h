/* vec_avx512.h - vec.h's vectors for AVX-512, also used by AVX512_BF16 and AMX; in gemm_tmpl.c an element may
 * be two bf16. */
#include <immintrin.h>

enum { VL = 16 };
typedef float F __attribute__((vector_size(64)));

/* FMA, F16C; AVX2, AVX512F, DQ, BW, VL */
#define AVX512_NEEDS .ecx1 = 1u << 12 | 1u << 29, .ebx7 = 1u << 5 | 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31
#define AVX512_BF16  (1u << 5) /* of eax7_1 */
#define AVX512_STATE 0xe6      /* of XCR0: vector and mask state */

#define f_load_part(p, n)     ((F)_mm512_maskz_loadu_ps((__mmask16)((1u << (n)) - 1), p))
#define f_store_part(p, x, n) _mm512_mask_storeu_ps(p, (__mmask16)((1u << (n)) - 1), x)
#define f_stream(p, x)        _mm512_stream_ps(p, x)
#define f_splat(x)            ((F)_mm512_set1_ps(x))
#define f_fma(a, b, c)        ((F)_mm512_fmadd_ps(a, b, c))
#define f_sqrt(x)             ((F)_mm512_sqrt_ps(x))
#define f_relu(x)             ((F)_mm512_max_ps(_mm512_setzero_ps(), x)) /* returns the second operand if one is NaN */
#define f_keep(y, d)          ((F)_mm512_maskz_mov_ps(_mm512_cmp_ps_mask(y, _mm512_setzero_ps(), _CMP_NLE_UQ), d))
#define f_clamp(x, low, high) ((F)_mm512_min_ps(high, _mm512_max_ps(low, x)))
#define f_keep_within(y, low, high, d)                                                                       \
    ((F)_mm512_maskz_mov_ps(                                                                                 \
        _mm512_mask_cmp_ps_mask(_mm512_cmp_ps_mask(y, low, _CMP_NLE_UQ), y, high, _CMP_NGE_UQ), d))
#define f_scale(p, n)         ((F)_mm512_scalef_ps(p, n))
#define f_fraction(x)         ((F)_mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC))
#define i_from_b(b)           ((I)_mm512_cvtepu8_epi32((__m128i)(b)))
#define u_from_h(h)           ((U)_mm512_cvtepu16_epi32((__m256i)(h)))
#define h_load_part(p, n)     _mm256_maskz_loadu_epi16((__mmask16)((1u << (n)) - 1), p)
#define h_store_part(p, h, n) _mm256_mask_storeu_epi16(p, (__mmask16)((1u << (n)) - 1), (__m256i)(h))
#define f_from_f16(h)         ((F)_mm512_cvtph_ps((__m256i)(h)))
#define f_to_f16(x)           ((H)_mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC))

INLINE F f_load(const float *p, int lanes)
{
    return lanes == VL ? (F)_mm512_loadu_ps(p) : f_load_part(p, lanes);
}

INLINE void f_store(float *p, F x, int lanes)
{
    if (lanes == VL)
        _mm512_storeu_ps(p, x);
    else
        f_store_part(p, x, lanes);
}

/* 16 x 16 floats: pairs, quads, then 128-bit lanes twice */
INLINE void f_transpose(F *r)
{
    F t[16];

    for (int i = 0; i < 8; i++) {
        t[2 * i] = _mm512_unpacklo_ps(r[2 * i], r[2 * i + 1]);
        t[2 * i + 1] = _mm512_unpackhi_ps(r[2 * i], r[2 * i + 1]);
    }
    for (int i = 0; i < 4; i++) {
        r[4 * i] = _mm512_shuffle_ps(t[4 * i], t[4 * i + 2], 0x44);
        r[4 * i + 1] = _mm512_shuffle_ps(t[4 * i], t[4 * i + 2], 0xee);
        r[4 * i + 2] = _mm512_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0x44);
        r[4 * i + 3] = _mm512_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0xee);
    }
    for (int i = 0; i < 4; i++) {
        t[i] = _mm512_shuffle_f32x4(r[i], r[4 + i], 0x88);
        t[4 + i] = _mm512_shuffle_f32x4(r[i], r[4 + i], 0xdd);
        t[8 + i] = _mm512_shuffle_f32x4(r[8 + i], r[12 + i], 0x88);
        t[12 + i] = _mm512_shuffle_f32x4(r[8 + i], r[12 + i], 0xdd);
    }
    for (int i = 0; i < 4; i++) {
        r[i] = _mm512_shuffle_f32x4(t[i], t[8 + i], 0x88);
        r[8 + i] = _mm512_shuffle_f32x4(t[i], t[8 + i], 0xdd);
        r[4 + i] = _mm512_shuffle_f32x4(t[4 + i], t[12 + i], 0x88);
        r[12 + i] = _mm512_shuffle_f32x4(t[4 + i], t[12 + i], 0xdd);
    }
}

/* tiles of 14 x 32: 28 accumulators, one broadcast, two columns of B */
#define ROWS1 16
#define ROWS2 14
#define ROWS3 8
#define PITCH 16

extern const hvt_conv_kernels hvt__conv_avx512; /* shared with sets that include this one */
#define ISA_ENTRY .conv = &hvt__conv_avx512, .needs = {AVX512_NEEDS, .xcr0 = AVX512_STATE}
