/* Convolution kernels of 14 x 32: 28 accumulators, one broadcast, two columns of weights. See kern.h. */
#include <immintrin.h>

#define VL       16
#define ROWS1    16
#define ROWS2    14
#define PITCH    16
#define EACH2(X) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14)
#define EACH1(X) EACH2(X) X(15) X(16)

typedef __m512 vec;

#define vzero()              _mm512_setzero_ps()
#define vload(p)             _mm512_loadu_ps(p)
#define vstore(p, v)         _mm512_storeu_ps(p, v)
#define vstream(p, v)        _mm512_stream_ps(p, v)
#define vbroadcast(p)        _mm512_set1_ps(*(p))
#define vadd(a, b)           _mm512_add_ps(a, b)
#define vmuladd(a, b, c)     _mm512_fmadd_ps(a, b, c)
#define vload_part(p, n)     _mm512_maskz_loadu_ps((__mmask16)((1u << (n)) - 1), p)
#define vstore_part(p, v, n) _mm512_mask_storeu_ps(p, (__mmask16)((1u << (n)) - 1), v)

/* 16 x 16 floats: pairs, quads, then 128-bit lanes twice */
static inline __attribute__((always_inline)) void vturn(__m512 *r)
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

#include "kern.h"

KERNELS(avx512);
