/* vec_avx2.h - vec.h's vectors for AVX2, FMA and F16C. */
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

#define f_stream(p, x)        _mm256_stream_ps(p, x)
#define f_splat(x)            ((F)_mm256_set1_ps(x))
#define f_fma(a, b, c)        ((F)_mm256_fmadd_ps(a, b, c))
#define f_sqrt(x)             ((F)_mm256_sqrt_ps(x))
#define f_relu(x)             ((F)_mm256_max_ps(_mm256_setzero_ps(), x))
#define f_keep(y, d)          ((F)_mm256_and_ps(_mm256_cmp_ps(y, _mm256_setzero_ps(), _CMP_NLE_UQ), d))
#define f_clamp(x, low, high) ((F)_mm256_min_ps(high, _mm256_max_ps(low, x)))
#define f_keep_within(y, low, high, d)                                                                       \
    ((F)_mm256_and_ps(                                                                                       \
        _mm256_and_ps(_mm256_cmp_ps(y, low, _CMP_NLE_UQ), _mm256_cmp_ps(y, high, _CMP_NGE_UQ)), d))
#define i_from_b(b)   ((I)_mm256_cvtepu8_epi32(_mm_cvtsi64_si128((long long)(b))))
#define u_from_h(h)   ((U)_mm256_cvtepu16_epi32((__m128i)(h))) /* GCC's version joins two halves in memory */
#define f_from_f16(h) ((F)_mm256_cvtph_ps((__m128i)(h)))
#define f_to_f16(x)   ((H)_mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC))

/* 8 x 8 floats: pairs, quads, then the two 128-bit lanes */
INLINE void f_transpose(F *r)
{
    F t[8];

    for (int i = 0; i < 4; i++) {
        t[2 * i] = _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
        t[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
    }
    for (int i = 0; i < 2; i++) {
        r[4 * i] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], 0x44);
        r[4 * i + 1] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], 0xee);
        r[4 * i + 2] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0x44);
        r[4 * i + 3] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0xee);
    }
    for (int i = 0; i < 4; i++) {
        t[i] = _mm256_permute2f128_ps(r[i], r[4 + i], 0x20);
        t[4 + i] = _mm256_permute2f128_ps(r[i], r[4 + i], 0x31);
    }
    for (int i = 0; i < 8; i++)
        r[i] = t[i];
}

/* tiles of 6 x 16: 12 of 16 registers are accumulators */
#define ROWS1 6
#define ROWS2 6
#define PITCH 8
#define ISA_ENTRY                                                                                            \
    .conv = &hvt__conv_avx2, .needs = {.ecx1 = 1u << 12 | 1u << 29, /* FMA, F16C */                          \
                                       .ebx7 = 1u << 5,             /* AVX2 */                               \
                                       .xcr0 = 0x06}                /* vectors */
