/*
 * Convolution kernels of 14 x 32 with vdpbf16ps, which multiplies two bf16 and adds both products, that of
 * the odd half first; otherwise as kern_avx512.c. See kern.h.
 */
#include "avx512.h"

#include "vnni2.h"

#include <string.h>

#define ROWS1    16
#define ROWS2    14
#define PITCH    32
#define EACH2(X) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14)
#define EACH1(X) EACH2(X) X(15) X(16)
#define ROWS3    8
#define EACH3(X) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8)

#define vmuladd(a, b, c) _mm512_dpbf16_ps(c, (__m512bh)(a), (__m512bh)(b))

INLINE vec vbroadcast(const float *p)
{
    int group;

    memcpy(&group, p, sizeof group); /* two bf16, which read as a float may be anything */
    return _mm512_castsi512_ps(_mm512_set1_epi32(group));
}

#define BF16
#define BF16_INIT .stores_bf16 = true,

INLINE void bf16_store(uint16_t *p, vec v, int n)
{
    _mm256_mask_storeu_epi16(p, (__mmask16)((1u << n) - 1), (__m256i)_mm512_cvtneps_pbh(v));
}

INLINE void bf16_store2(uint16_t *p, vec v, vec w)
{
    _mm512_storeu_ps(p, (vec)_mm512_cvtne2ps_pbh(w, v));
}

INLINE vec bf16_load(const uint16_t *p, int n)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(
        _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16((__mmask16)((1u << n) - 1), p)), 16));
}

#define PACK_INIT .shared_panels = true, .pack_a = pack_b, .pack_b = pack_b
#include "kern.h"

KERNELS(avx512_bf16);

extern const hvt_conv_kernels hvt__conv_avx512;
extern const hvt_elementwise hvt__elementwise_avx512_bf16;

/* AMD's processors execute vdpbf16ps at the rate of f32 multiply-adds, with twice the work each (Zen 5: 500
 * GFLOP/s a core against 250). Intel's execute it at a quarter of that rate (117 against 217 to 240), so
 * there bf16 is better widened, unless there is AMX. */
const hvt_isa hvt__isa_avx512_bf16 = {.name = "avx512_bf16",
                                      .vendor = "AuthenticAMD",
                                      .needs = {AVX512_NEEDS, .eax7_1 = AVX512_BF16, .xcr0 = AVX512_STATE},
                                      .conv = &hvt__conv_avx512,
                                      .bf16 = &hvt__conv_avx512_bf16,
                                      .el = &hvt__elementwise_avx512_bf16};
