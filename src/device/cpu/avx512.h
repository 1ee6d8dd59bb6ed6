/* avx512.h - a vector of 16 k-groups for the AVX-512 kernels: the operations that do no arithmetic, and vadd.
 * A k-group is a float or two bf16. See kern.h. */
#include <immintrin.h>

#define VL 16

typedef __m512 vec;

/* FMA, F16C; AVX2, AVX512F, DQ, BW, VL */
#define AVX512_NEEDS .ecx1 = 1u << 12 | 1u << 29, .ebx7 = 1u << 5 | 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31
#define AVX512_BF16  (1u << 5) /* of eax7_1 */
#define AVX512_STATE 0xe6      /* of XCR0: vector and mask state */

#define vzero()              _mm512_setzero_ps()
#define vload(p)             _mm512_loadu_ps(p)
#define vstore(p, v)         _mm512_storeu_ps(p, v)
#define vstream(p, v)        _mm512_stream_ps(p, v)
#define vadd(a, b)           _mm512_add_ps(a, b)
#define vload_part(p, n)     _mm512_maskz_loadu_ps((__mmask16)((1u << (n)) - 1), p)
#define vstore_part(p, v, n) _mm512_mask_storeu_ps(p, (__mmask16)((1u << (n)) - 1), v)

/* 16 x 16 floats: pairs, quads, then 128-bit lanes twice */
static inline __attribute__((always_inline)) void vtranspose(__m512 *r)
{
    __m512 t[16];

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
