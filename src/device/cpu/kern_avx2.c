/* Convolution kernels of 6 x 16: 12 of 16 registers are accumulators. See kern.h. */
#include <immintrin.h>

#define VL       8
#define ROWS1    6
#define ROWS2    6
#define PITCH    8
#define EACH1(X) X(1) X(2) X(3) X(4) X(5) X(6)
#define EACH2(X) EACH1(X)

typedef __m256 vec;

#define vzero()              _mm256_setzero_ps()
#define vload(p)             _mm256_loadu_ps(p)
#define vstore(p, v)         _mm256_storeu_ps(p, v)
#define vstream(p, v)        _mm256_stream_ps(p, v)
#define vbroadcast(p)        _mm256_broadcast_ss(p)
#define vadd(a, b)           _mm256_add_ps(a, b)
#define vmuladd(a, b, c)     _mm256_fmadd_ps(a, b, c)
#define vload_part(p, n)     _mm256_maskload_ps(p, first_lanes(n))
#define vstore_part(p, v, n) _mm256_maskstore_ps(p, first_lanes(n), v)

static inline __attribute__((always_inline)) __m256i first_lanes(int n)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

/* 8 x 8 floats: pairs, quads, then the two 128-bit lanes */
static inline __attribute__((always_inline)) void vtranspose(__m256 *r)
{
    __m256 t[8];

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

#include "kern.h"

KERNELS(avx2);

extern const hvt_elementwise hvt__elementwise_avx2;

const hvt_isa hvt__isa_avx2 = {.name = "avx2",
                               .needs = {.ecx1 = 1u << 12 | 1u << 29, /* FMA, F16C */
                                         .ebx7 = 1u << 5,             /* AVX2 */
                                         .xcr0 = 0x06},               /* vectors */
                               .conv = &hvt__conv_avx2,
                               .el = &hvt__elementwise_avx2};
