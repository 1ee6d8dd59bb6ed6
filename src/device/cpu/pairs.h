/*
 * pairs.h - bf16 in pairs along the inner loop, as vdpbf16ps and AMX multiply them: a word holds the values
 * of two rows, the even one in its lower half. Included by the kernels of these sets, after avx512.h.
 */
#define WEIGHTS_ROW 16
#include "turn.h"

/* n <= 16 words of two rows of bf16; NULL is a row of zeros, so are lanes past n. */
INLINE vec pair_rows(const uint16_t *even, const uint16_t *odd, int n)
{
    const __mmask16 lanes = (__mmask16)((1u << n) - 1);
    __m512i low = _mm512_setzero_si512(), high = low;

    if (even)
        low = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(lanes, even));
    if (odd)
        high = _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(lanes, odd)), 16);
    return _mm512_castsi512_ps(_mm512_or_si512(low, high));
}

/* Up to VL words from column `first` on, of which `count` are wanted. */
INLINE vec pair_at(const hvt_pairs *p, int word, int first, int count)
{
    const uint16_t *even = p->x + 2L * word * p->ld + first;

    return pair_rows(2 * word < p->n ? even : NULL, 2 * word + 1 < p->n ? even + p->ld : NULL,
                     count < VL ? count : VL);
}

/* Panels of w columns, each [len][pitch]; columns past p->c are zero up to the next whole vector. */
INLINE void pair_panels(const hvt_pairs *p, int w, int pitch, float *out)
{
    for (int first = 0; first < p->c; first += w)
        for (int i = 0; i < p->len; i++, out += pitch) {
            const int count = p->c - first < w ? p->c - first : w;

            if (first == 0 && p->ahead) {
                const uint16_t *next = p->x + p->ahead + 2L * i * p->ld;

                hvt__fetch(next, sizeof *next * (size_t)p->c);
                hvt__fetch(next + p->ld, sizeof *next * (size_t)p->c);
            }
            for (int at = 0; at < count; at += VL)
                vstore(out + at, pair_at(p, i, first + at, count - at));
        }
}

/* B of both directions, and weights: panels of 32 columns. */
static void arrange_b(const hvt_pairs *p, int w, float *out)
{
    pair_panels(p, w, 32, out);
}
