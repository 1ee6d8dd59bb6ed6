/*
 * vnni2.h - packs bf16 for vdpbf16ps and AMX: a k-group holds values of two rows, the even one in its lower
 * half. Included by the kernels of these sets, after vec_avx512.h.
 */
#define WEIGHTS_ROW 16
#include "pack_weights.h"

INLINE __mmask32 first_lanes(int count)
{
    return count < 32 ? (1u << count) - 1 : ~0u;
}

/* k-groups of columns 0 to 15 of two rows, or of 16 to 31. */
INLINE F interleave(__m512i even, __m512i odd, const int upper)
{
    static const uint16_t order[2][32] = {{0, 32, 1, 33, 2,  34, 3,  35, 4,  36, 5,  37, 6,  38, 7,  39,
                                           8, 40, 9, 41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47},
                                          {16, 48, 17, 49, 18, 50, 19, 51, 20, 52, 21, 53, 22, 54, 23, 55,
                                           24, 56, 25, 57, 26, 58, 27, 59, 28, 60, 29, 61, 30, 62, 31, 63}};

    return _mm512_castsi512_ps(_mm512_permutex2var_epi16(even, _mm512_loadu_si512(order[upper]), odd));
}

/* Up to VL k-groups from column `first` on, `count` of them valid; rows past p->n are zero. */
INLINE F vnni2_at(const hvt_vnni2 *p, int k, int first, int count)
{
    const uint16_t *even = p->x + 2L * k * p->ld + first;
    const __mmask32 lanes = first_lanes(count < VL ? count : VL);

    return interleave(_mm512_maskz_loadu_epi16(2 * k < p->n ? lanes : 0, even),
                      _mm512_maskz_loadu_epi16(2 * k + 1 < p->n ? lanes : 0, even + p->ld), 0);
}

/* Pack panels of w <= 32 columns, each [len][pitch]; columns past p->c are zero up to the next whole vector.
 */
static void pack_b(const hvt_vnni2 *from, int w, float *out)
{
    const hvt_vnni2 p = *from; /* a copy that the stores cannot alias */
    const long row = p.ld;
    const int last = (p.c - 1) / w * w; /* column */
    const __mmask32 all = first_lanes(w), tail = first_lanes(p.c - last);
    const bool two = p.c - last > VL;

    for (int i = 0; i < p.len; i++, out += p.pitch) {
        const uint16_t *even = p.x + 2L * i * row;
        const __mmask32 first = 2 * i < p.n ? ~0u : 0, second = 2 * i + 1 < p.n ? ~0u : 0;
        float *to = out;
        __m512i a, b;

        for (int column = 0; column < last; column += w, even += w, to += p.next) {
            if (p.prefetch) {
                __builtin_prefetch(even + p.prefetch);
                __builtin_prefetch(even + p.prefetch + row);
            }
            a = _mm512_maskz_loadu_epi16(first & all, even);
            b = _mm512_maskz_loadu_epi16(second & all, even + row);
            f_store(to, interleave(a, b, 0), VL);
            f_store(to + VL, interleave(a, b, 1), VL);
        }
        if (p.prefetch) {
            __builtin_prefetch(even + p.prefetch);
            __builtin_prefetch(even + p.prefetch + row);
        }
        a = _mm512_maskz_loadu_epi16(first & tail, even);
        b = _mm512_maskz_loadu_epi16(second & tail, even + row);
        f_store(to, interleave(a, b, 0), VL);
        if (two)
            f_store(to + VL, interleave(a, b, 1), VL);
    }
}
