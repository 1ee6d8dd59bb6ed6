/*
 * immintrin.h - replaces the compiler's header, from earlier on the include path: the intrinsics that the
 * convolution kernels of AVX-512, AVX512_BF16 and AMX use, in plain C, as Intel's manual (Software
 * Developer's Manual, volume 2) specifies each operation. So their unchanged source runs on any machine. See
 * device/test_conv.c.
 *
 * A vector is a GNU vector of 16 words. Masked lanes are not touched. Where a processor would fault (a
 * misaligned streaming store, tiles that were not set up or do not fit), this aborts with a line.
 */
#ifndef HVT_EMULATED_IMMINTRIN_H
#define HVT_EMULATED_IMMINTRIN_H

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EMULATED   static __attribute__((unused, noinline)) /* else each kernel takes minutes to compile */
#define FAULT(...) (fprintf(stderr, "emulated instruction: " __VA_ARGS__), fputc('\n', stderr), abort())

typedef float __m512 __attribute__((vector_size(64)));
typedef int32_t __m512i __attribute__((vector_size(64)));
typedef uint16_t __m512bh __attribute__((vector_size(64)));
typedef uint16_t __m256i __attribute__((vector_size(32)));
typedef uint16_t __m256bh __attribute__((vector_size(32)));
typedef uint16_t __mmask16;
typedef uint32_t __mmask32;

/* ---- AVX-512 F, BW, VL ---- */

EMULATED __m512 _mm512_setzero_ps(void)
{
    return (__m512){0};
}

EMULATED __m512i _mm512_setzero_si512(void)
{
    return (__m512i){0};
}

EMULATED __m512 _mm512_set1_ps(float x)
{
    __m512 v;

    for (int i = 0; i < 16; i++)
        v[i] = x;
    return v;
}

EMULATED __m512i _mm512_set1_epi32(int x)
{
    return (__m512i){0} + x;
}

EMULATED __m512 _mm512_castsi512_ps(__m512i v)
{
    return (__m512)v;
}

EMULATED __m512i _mm512_slli_epi32(__m512i v, unsigned by)
{
    typedef uint32_t bits __attribute__((vector_size(64)));

    return (__m512i)((bits)v << by);
}

EMULATED __m512i _mm512_cvtepu16_epi32(__m256i v)
{
    return __builtin_convertvector(v, __m512i);
}

EMULATED __m512 _mm512_loadu_ps(const void *p)
{
    __m512 v;

    memcpy(&v, p, sizeof v);
    return v;
}

EMULATED void _mm512_storeu_ps(void *p, __m512 v)
{
    memcpy(p, &v, sizeof v);
}

EMULATED void _mm512_stream_ps(void *p, __m512 v)
{
    if ((uintptr_t)p % 64)
        FAULT("a stream to %p, which is not aligned", p);
    memcpy(p, &v, sizeof v);
}

EMULATED __m512 _mm512_maskz_loadu_ps(__mmask16 mask, const void *p)
{
    __m512 v = {0};

    for (int i = 0; i < 16; i++)
        if (mask >> i & 1)
            memcpy((char *)&v + 4 * i, (const char *)p + 4 * i, 4);
    return v;
}

EMULATED void _mm512_mask_storeu_ps(void *p, __mmask16 mask, __m512 v)
{
    for (int i = 0; i < 16; i++)
        if (mask >> i & 1)
            memcpy((char *)p + 4 * i, (char *)&v + 4 * i, 4);
}

EMULATED __m256i _mm256_maskz_loadu_epi16(__mmask16 mask, const void *p)
{
    __m256i v = {0};

    for (int i = 0; i < 16; i++)
        if (mask >> i & 1)
            memcpy((char *)&v + 2 * i, (const char *)p + 2 * i, 2);
    return v;
}

EMULATED __m512i _mm512_loadu_si512(const void *p)
{
    __m512i v;

    memcpy(&v, p, sizeof v);
    return v;
}

EMULATED __m512i _mm512_maskz_loadu_epi16(__mmask32 mask, const void *p)
{
    __m512i v = {0};

    for (int i = 0; i < 32; i++)
        if (mask >> i & 1)
            memcpy((char *)&v + 2 * i, (const char *)p + 2 * i, 2);
    return v;
}

EMULATED __m512i _mm512_permutex2var_epi16(__m512i a, __m512i which, __m512i b)
{
    uint16_t from[64], index[32], to[32];
    __m512i v;

    memcpy(from, &a, sizeof a);
    memcpy(from + 32, &b, sizeof b);
    memcpy(index, &which, sizeof which);
    for (int i = 0; i < 32; i++)
        to[i] = from[index[i] % 64];
    memcpy(&v, to, sizeof v);
    return v;
}

EMULATED void _mm256_mask_storeu_epi16(void *p, __mmask16 mask, __m256i v)
{
    for (int i = 0; i < 16; i++)
        if (mask >> i & 1)
            memcpy((char *)p + 2 * i, (char *)&v + 2 * i, 2);
}

EMULATED __m512 _mm512_add_ps(__m512 a, __m512 b)
{
    return a + b;
}

EMULATED __m512 _mm512_fmadd_ps(__m512 a, __m512 b, __m512 c)
{
    for (int i = 0; i < 16; i++)
        c[i] = fmaf(a[i], b[i], c[i]);
    return c;
}

/* words of each 128-bit lane: a0 b0 a1 b1; a2 b2 a3 b3 */
EMULATED __m512 _mm512_unpacklo_ps(__m512 a, __m512 b)
{
    __m512 v;

    for (int i = 0; i < 16; i++)
        v[i] = (i & 1 ? b : a)[i / 4 * 4 + i % 4 / 2];
    return v;
}

EMULATED __m512 _mm512_unpackhi_ps(__m512 a, __m512 b)
{
    __m512 v;

    for (int i = 0; i < 16; i++)
        v[i] = (i & 1 ? b : a)[i / 4 * 4 + 2 + i % 4 / 2];
    return v;
}

/* in each 128-bit lane two words of a, then two of b */
EMULATED __m512 _mm512_shuffle_ps(__m512 a, __m512 b, unsigned which)
{
    __m512 v;

    for (int i = 0; i < 16; i++)
        v[i] = (i % 4 < 2 ? a : b)[i / 4 * 4 + (int)(which >> i % 4 * 2 & 3)];
    return v;
}

/* two 128-bit lanes of a, then two of b */
EMULATED __m512 _mm512_shuffle_f32x4(__m512 a, __m512 b, unsigned which)
{
    __m512 v;

    for (int i = 0; i < 16; i++)
        v[i] = (i < 8 ? a : b)[(int)(which >> i / 4 * 2 & 3) * 4 + i % 4];
    return v;
}

/* ---- products of bf16: operands and results that are subnormal count as zero, whatever MXCSR says ---- */

typedef uint32_t emulated_bits __attribute__((vector_size(64)));

EMULATED __m512 emulated_flush(__m512 x)
{
    const emulated_bits u = (emulated_bits)x;

    return (__m512)(u & ((emulated_bits)((u & 0x7f800000) != 0) | 0x80000000));
}

/* half 0 or 1 of each word */
EMULATED __m512 emulated_bf16(emulated_bits words, int half)
{
    return emulated_flush((__m512)(half ? words & 0xffff0000 : words << 16));
}

/* The product of two bf16 has 16 bits and is exact: fused or not is the same. */
EMULATED __m512 emulated_muladd(__m512 a, __m512 b, __m512 c)
{
    return emulated_flush(emulated_flush(a * b) + emulated_flush(c));
}

EMULATED __m512 _mm512_dpbf16_ps(__m512 c, __m512bh a, __m512bh b)
{
    for (int half = 1; half >= 0; half--)
        c = emulated_muladd(emulated_bf16((emulated_bits)a, half), emulated_bf16((emulated_bits)b, half), c);
    return c;
}

/* To nearest even; a NaN stays one, a subnormal becomes zero. */
EMULATED __m256bh _mm512_cvtneps_pbh(__m512 a)
{
    const emulated_bits bits = (emulated_bits)emulated_flush(a);
    __m256bh h;

    for (int i = 0; i < 16; i++)
        h[i] =
            (uint16_t)(a[i] != a[i] ? bits[i] >> 16 | 0x40 : (bits[i] + 0x7fff + (bits[i] >> 16 & 1)) >> 16);
    return h;
}

/* the second one in the lower half */
EMULATED __m512bh _mm512_cvtne2ps_pbh(__m512 a, __m512 b)
{
    const __m256bh high = _mm512_cvtneps_pbh(a), low = _mm512_cvtneps_pbh(b);
    __m512bh h;

    memcpy(&h, &low, sizeof low);
    memcpy((char *)&h + sizeof low, &high, sizeof high);
    return h;
}

/* ---- AMX ---- */

typedef struct emulated_tiles {
    uint8_t rows[8];
    uint16_t bytes[8]; /* of a row; 0: the tile was not set up */
    emulated_bits word[8][16];
} emulated_tiles;

static _Thread_local emulated_tiles tiles __attribute__((unused));

EMULATED void _tile_loadconfig(const void *p)
{
    const uint8_t *c = p;

    if (c[0] != 1 || c[1] != 0)
        FAULT("palette %d, start row %d", c[0], c[1]);
    for (int i = 2; i < 64; i++)
        if (c[i] && (i < 16 || (i >= 32 && i < 48) || i >= 56))
            FAULT("byte %d of the configuration is %d", i, c[i]);
    memset(&tiles, 0, sizeof tiles);
    for (int t = 0; t < 8; t++) {
        memcpy(&tiles.bytes[t], c + 16 + 2 * t, 2);
        tiles.rows[t] = c[48 + t];
        if (tiles.rows[t] > 16 || tiles.bytes[t] > 64 || tiles.bytes[t] % 4 ||
            !tiles.rows[t] != !tiles.bytes[t])
            FAULT("tile %d is set up as %d rows of %d bytes", t, tiles.rows[t], tiles.bytes[t]);
    }
}

EMULATED void _tile_release(void)
{
    memset(&tiles, 0, sizeof tiles);
}

EMULATED int emulated_tile(int t)
{
    if (t < 0 || t > 7 || !tiles.rows[t])
        FAULT("tile %d was not set up", t);
    return t;
}

EMULATED void _tile_zero(int t)
{
    memset(tiles.word[emulated_tile(t)], 0, sizeof tiles.word[t]);
}

EMULATED void _tile_loadd(int t, const void *p, long stride)
{
    _tile_zero(t);
    for (int i = 0; i < tiles.rows[t]; i++)
        memcpy(&tiles.word[t][i], (const char *)p + i * stride, tiles.bytes[t]);
}

EMULATED void _tile_stored(int t, void *p, long stride)
{
    for (int i = 0; i < tiles.rows[emulated_tile(t)]; i++)
        memcpy((char *)p + i * stride, &tiles.word[t][i], tiles.bytes[t]);
}

/* Even halves are summed along k, odd halves are, then both are added to C. */
EMULATED void _tile_dpbf16ps(int c, int a, int b)
{
    const int words = tiles.bytes[emulated_tile(a)] / 4;

    if (tiles.rows[emulated_tile(c)] != tiles.rows[a] || tiles.bytes[c] != tiles.bytes[emulated_tile(b)] ||
        tiles.rows[b] != words || c == a || c == b || a == b)
        FAULT("tiles %d, %d and %d do not fit: %dx%d, %dx%d, %dx%d", c, a, b, tiles.rows[c], tiles.bytes[c],
              tiles.rows[a], tiles.bytes[a], tiles.rows[b], tiles.bytes[b]);
    for (int m = 0; m < tiles.rows[c]; m++) {
        __m512 sum[2] = {{0}}, *row = (__m512 *)&tiles.word[c][m];

        for (int k = 0; k < words; k++)
            for (int half = 0; half < 2; half++)
                sum[half] = emulated_muladd(emulated_bf16((emulated_bits){0} + tiles.word[a][m][k], half),
                                            emulated_bf16(tiles.word[b][k], half), sum[half]);
        *row = emulated_flush(emulated_flush(*row) + emulated_flush(sum[0] + sum[1]));
    }
}

#endif /* HVT_EMULATED_IMMINTRIN_H */
