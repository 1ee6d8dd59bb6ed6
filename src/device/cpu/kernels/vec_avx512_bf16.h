/*
 * vec_avx512_bf16.h - vec_avx512.h's vectors with AVX512_BF16, and a multiply-add of pairs of bf16: vdpbf16ps
 * adds both products, first the one of the odd half.
 */

#include "vec_avx512.h"

#include <string.h>

#define f_to_bf16(x) ((H)_mm512_cvtneps_pbh(x)) /* flushes subnormals to zero, as arithmetic does */

#define OTHER_TYPES avx512

#define VNNI2
#define vmuladd(a, b, c) _mm512_dpbf16_ps(c, (__m512bh)(a), (__m512bh)(b))

INLINE F vbroadcast(const float *p)
{
    int group;

    memcpy(&group, p, sizeof group); /* two bf16, which may be any float */
    return _mm512_castsi512_ps(_mm512_set1_epi32(group));
}

INLINE void bf16_store(uint16_t *p, F v, int n)
{
    h_store_part(p, _mm512_cvtneps_pbh(v), n);
}

INLINE void bf16_store2(uint16_t *p, F v, F w)
{
    _mm512_storeu_ps(p, (F)_mm512_cvtne2ps_pbh(w, v));
}

INLINE F bf16_load(const uint16_t *p, int n)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h_load_part(p, n)), 16));
}

#undef PITCH
#define PITCH 32

/* AMD's processors execute vdpbf16ps at the rate of f32 multiply-adds, with twice the work each (Zen 5: 500
 * GFLOP/s per core against 250). Intel's execute it at a quarter of that rate (117 against 217 to 240), so
 * without AMX widening bf16 is faster there. */
#undef ISA_ENTRY
#define ISA_ENTRY                                                                                            \
    .conv = &hvt__conv_avx512, .bf16 = &hvt__conv_avx512_bf16, .vendor = "AuthenticAMD",                     \
    .needs = {AVX512_NEEDS, .eax7_1 = AVX512_BF16, .xcr0 = AVX512_STATE}
