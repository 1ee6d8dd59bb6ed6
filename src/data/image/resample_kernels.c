/*
 * The kernels of resampling, per instruction set. All give the same bits: they add integers.
 */
#include "resample.h"

#ifdef __x86_64__
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

enum { BETWEEN = 7, HALF_DOWN = 1 << 6, LAST = 21, HALF_ACROSS = 1 << 20 };
enum { FIVE = 5, WIDEST = 64 }; /* outputs or bytes per step of a kernel */

static void down_portable(const hvt__resample_pass *p, const int16_t *weight, int taps)
{
    int32_t sum[WIDEST];

    for (size_t x = 0; x < p->bytes; x += WIDEST) {
        for (int i = 0; i < WIDEST; i++)
            sum[i] = HALF_DOWN;
        for (int k = 0; k < taps; k++)
            for (int i = 0; i < WIDEST; i++)
                sum[i] += weight[k] * p->rows[k][x + (size_t)i];
        for (int i = 0; i < WIDEST; i++)
            p->to[x + (size_t)i] = (int16_t)(sum[i] >> BETWEEN);
    }
}

static void row_portable(const hvt__resample_pass *p, int row)
{
    const hvt__axis *a = p->across;

    for (int j = 0; j < a->count; j++) {
        const int16_t *in = p->between[row] + p->at[j];
        const int16_t *w = a->weight + (size_t)j * (size_t)a->taps;
        int32_t sum[3] = {HALF_ACROSS, HALF_ACROSS, HALF_ACROSS};

        for (int k = 0; k < a->taps; k++, in += 3)
            for (int c = 0; c < 3; c++)
                sum[c] += w[k] * in[c];
        for (int c = 0; c < 3; c++)
            p->line[row][3 * j + c] = (uint8_t)(sum[c] >> LAST);
    }
}

static void across_portable(const hvt__resample_pass *p)
{
    for (int row = 0; row < PAIR; row++)
        row_portable(p, row);
}

static hvt__across_kernel *prepare_portable(hvt__resample_pass *p)
{
    return across_portable;
}

#ifdef __x86_64__

/*
 * Weights as 128 * coarse + fine, both in a byte. With `sum` for the sum over the taps,
 *
 *     (sum(weight * x) + HALF_DOWN) >> BETWEEN = sum(coarse * x) + ((sum(fine * x) + HALF_DOWN) >> BETWEEN),
 *
 * and both sums fit in 16 bits, so the bytes need not be widened to words first. Conditions: coarse are
 * positive with sum 128; fine have the sum 0, and neither the positive nor the negative ones exceed 128 in
 * total.
 */
enum { MOST_SPLIT = 8 };
typedef struct split {
    int16_t coarse[MOST_SPLIT / 2], fine[MOST_SPLIT / 2]; /* by pairs of taps */
} split;

/* Splits weights into coarse and fine parts. Rounds coarse parts down, except those with the largest
 * remainders, as many as make the sum of the fine parts 0. False if that is impossible (a single tap). */
static bool split_weights(const int16_t *weight, int taps, split *ret_split)
{
    int coarse[MOST_SPLIT], fine[MOST_SPLIT], rest = 0, above = 0;

    if (taps > MOST_SPLIT)
        return false;
    for (int k = 0; k < taps; k++) {
        coarse[k] = weight[k] >> BETWEEN;
        fine[k] = weight[k] & (HALF_DOWN * 2 - 1);
        rest += fine[k];
    }
    for (; rest > 0; rest -= HALF_DOWN * 2) {
        int most = 0;

        for (int k = 1; k < taps; k++)
            most = fine[k] > fine[most] ? k : most;
        coarse[most]++;
        fine[most] -= HALF_DOWN * 2;
    }
    for (int k = 0; k < taps; k++) {
        above += fine[k] > 0 ? fine[k] : 0;
        if (coarse[k] > INT8_MAX || above > HALF_DOWN * 2)
            return false;
    }
    for (int k = 0; k < taps; k += 2) {
        ret_split->coarse[k / 2] = (int16_t)(coarse[k] | coarse[k + 1] << 8);
        ret_split->fine[k / 2] = (int16_t)((fine[k] & 0xff) | fine[k + 1] * 256);
    }
    return true;
}

/* 32 columns, with split weights. */
__attribute__((target("avx2"), always_inline)) static inline void down_split_avx2(const hvt__resample_pass *p,
                                                                                  const split *w, int pairs)
{
    const __m256i half = _mm256_set1_epi16(HALF_DOWN);
    const uint8_t *row[MOST_SPLIT]; /* copies, which cannot alias `to` */
    const size_t bytes = p->bytes;
    int16_t *to = p->to;
    __m256i coarse[MOST_SPLIT / 2], fine[MOST_SPLIT / 2];

    for (int k = 0; k < pairs; k++) {
        coarse[k] = _mm256_set1_epi16(w->coarse[k]);
        fine[k] = _mm256_set1_epi16(w->fine[k]);
    }
    for (int k = 0; k < 2 * pairs; k++)
        row[k] = p->rows[k];
    for (size_t x = 0; x < bytes; x += 32) {
        __m256i c0 = _mm256_setzero_si256(), c1 = c0, f0 = half, f1 = half;

        for (int k = 0; k < pairs; k++) {
            __m256i a = _mm256_loadu_si256((const __m256i *)(row[2 * k] + x));
            __m256i b = _mm256_loadu_si256((const __m256i *)(row[2 * k + 1] + x));
            __m256i lo = _mm256_unpacklo_epi8(a, b), hi = _mm256_unpackhi_epi8(a, b);

            c0 = _mm256_add_epi16(c0, _mm256_maddubs_epi16(lo, coarse[k]));
            c1 = _mm256_add_epi16(c1, _mm256_maddubs_epi16(hi, coarse[k]));
            f0 = _mm256_add_epi16(f0, _mm256_maddubs_epi16(lo, fine[k]));
            f1 = _mm256_add_epi16(f1, _mm256_maddubs_epi16(hi, fine[k]));
        }
        c0 = _mm256_add_epi16(c0, _mm256_srai_epi16(f0, BETWEEN));
        c1 = _mm256_add_epi16(c1, _mm256_srai_epi16(f1, BETWEEN));
        _mm256_store_si256((__m256i *)(to + x), _mm256_permute2x128_si256(c0, c1, 0x20));
        _mm256_store_si256((__m256i *)(to + x + 16), _mm256_permute2x128_si256(c0, c1, 0x31));
    }
}

/* 32 columns: the bytes of two rows are interleaved, widened to words, multiplied and added in pairs. */
__attribute__((target("avx2"))) static void down_avx2(const hvt__resample_pass *p, const int16_t *weight,
                                                      int taps)
{
    const __m256i zero = _mm256_setzero_si256(), half = _mm256_set1_epi32(HALF_DOWN);
    split parts;

    if (split_weights(weight, taps, &parts)) {
        if (taps == 2)
            down_split_avx2(p, &parts, 1);
        else if (taps == 4)
            down_split_avx2(p, &parts, 2);
        else
            down_split_avx2(p, &parts, taps / 2);
        return;
    }
    for (size_t x = 0; x < p->bytes; x += 32) {
        __m256i s0 = half, s1 = half, s2 = half, s3 = half;

        for (int k = 0; k < taps; k += 2) {
            __m256i a = _mm256_loadu_si256((const __m256i *)(p->rows[k] + x));
            __m256i b = _mm256_loadu_si256((const __m256i *)(p->rows[k + 1] + x));
            __m256i lo = _mm256_unpacklo_epi8(a, b), hi = _mm256_unpackhi_epi8(a, b), w;
            int32_t pair;

            memcpy(&pair, weight + k, sizeof pair);
            w = _mm256_set1_epi32(pair);
            s0 = _mm256_add_epi32(s0, _mm256_madd_epi16(_mm256_unpacklo_epi8(lo, zero), w));
            s1 = _mm256_add_epi32(s1, _mm256_madd_epi16(_mm256_unpackhi_epi8(lo, zero), w));
            s2 = _mm256_add_epi32(s2, _mm256_madd_epi16(_mm256_unpacklo_epi8(hi, zero), w));
            s3 = _mm256_add_epi32(s3, _mm256_madd_epi16(_mm256_unpackhi_epi8(hi, zero), w));
        }
        s0 = _mm256_packs_epi32(_mm256_srai_epi32(s0, BETWEEN), _mm256_srai_epi32(s1, BETWEEN));
        s2 = _mm256_packs_epi32(_mm256_srai_epi32(s2, BETWEEN), _mm256_srai_epi32(s3, BETWEEN));
        _mm256_store_si256((__m256i *)(p->to + x), _mm256_permute2x128_si256(s0, s2, 0x20));
        _mm256_store_si256((__m256i *)(p->to + x + 16), _mm256_permute2x128_si256(s0, s2, 0x31));
    }
}

/* 64 columns, with split weights. */
__attribute__((target("avx512bw"), always_inline)) static inline void
down_split_avx512(const hvt__resample_pass *p, const split *w, int pairs)
{
    const __m512i half = _mm512_set1_epi16(HALF_DOWN);
    const __m512i low = _mm512_set_epi64(11, 10, 3, 2, 9, 8, 1, 0);
    const __m512i high = _mm512_set_epi64(15, 14, 7, 6, 13, 12, 5, 4);
    const uint8_t *row[MOST_SPLIT]; /* copies, which cannot alias `to` */
    const size_t bytes = p->bytes;
    int16_t *to = p->to;
    __m512i coarse[MOST_SPLIT / 2], fine[MOST_SPLIT / 2];

    for (int k = 0; k < pairs; k++) {
        coarse[k] = _mm512_set1_epi16(w->coarse[k]);
        fine[k] = _mm512_set1_epi16(w->fine[k]);
    }
    for (int k = 0; k < 2 * pairs; k++)
        row[k] = p->rows[k];
    for (size_t x = 0; x < bytes; x += 64) {
        __m512i c0 = _mm512_setzero_si512(), c1 = c0, f0 = half, f1 = half;

        for (int k = 0; k < pairs; k++) {
            __m512i a = _mm512_loadu_si512(row[2 * k] + x), b = _mm512_loadu_si512(row[2 * k + 1] + x);
            __m512i lo = _mm512_unpacklo_epi8(a, b), hi = _mm512_unpackhi_epi8(a, b);

            c0 = _mm512_add_epi16(c0, _mm512_maddubs_epi16(lo, coarse[k]));
            c1 = _mm512_add_epi16(c1, _mm512_maddubs_epi16(hi, coarse[k]));
            f0 = _mm512_add_epi16(f0, _mm512_maddubs_epi16(lo, fine[k]));
            f1 = _mm512_add_epi16(f1, _mm512_maddubs_epi16(hi, fine[k]));
        }
        c0 = _mm512_add_epi16(c0, _mm512_srai_epi16(f0, BETWEEN));
        c1 = _mm512_add_epi16(c1, _mm512_srai_epi16(f1, BETWEEN));
        _mm512_store_si512(to + x, _mm512_permutex2var_epi64(c0, low, c1));
        _mm512_store_si512(to + x + 32, _mm512_permutex2var_epi64(c0, high, c1));
    }
}

__attribute__((target("avx512bw"))) static void down_avx512(const hvt__resample_pass *p,
                                                            const int16_t *weight, int taps)
{
    const __m512i zero = _mm512_setzero_si512(), half = _mm512_set1_epi32(HALF_DOWN);
    const __m512i low = _mm512_set_epi64(11, 10, 3, 2, 9, 8, 1, 0);
    const __m512i high = _mm512_set_epi64(15, 14, 7, 6, 13, 12, 5, 4);
    split parts;

    if (split_weights(weight, taps, &parts)) {
        if (taps == 2)
            down_split_avx512(p, &parts, 1);
        else if (taps == 4)
            down_split_avx512(p, &parts, 2);
        else
            down_split_avx512(p, &parts, taps / 2);
        return;
    }
    for (size_t x = 0; x < p->bytes; x += 64) {
        __m512i s0 = half, s1 = half, s2 = half, s3 = half;

        for (int k = 0; k < taps; k += 2) {
            __m512i a = _mm512_loadu_si512(p->rows[k] + x), b = _mm512_loadu_si512(p->rows[k + 1] + x);
            __m512i lo = _mm512_unpacklo_epi8(a, b), hi = _mm512_unpackhi_epi8(a, b), w;
            int32_t pair;

            memcpy(&pair, weight + k, sizeof pair);
            w = _mm512_set1_epi32(pair);
            s0 = _mm512_add_epi32(s0, _mm512_madd_epi16(_mm512_unpacklo_epi8(lo, zero), w));
            s1 = _mm512_add_epi32(s1, _mm512_madd_epi16(_mm512_unpackhi_epi8(lo, zero), w));
            s2 = _mm512_add_epi32(s2, _mm512_madd_epi16(_mm512_unpacklo_epi8(hi, zero), w));
            s3 = _mm512_add_epi32(s3, _mm512_madd_epi16(_mm512_unpackhi_epi8(hi, zero), w));
        }
        s0 = _mm512_packs_epi32(_mm512_srai_epi32(s0, BETWEEN), _mm512_srai_epi32(s1, BETWEEN));
        s2 = _mm512_packs_epi32(_mm512_srai_epi32(s2, BETWEEN), _mm512_srai_epi32(s3, BETWEEN));
        _mm512_store_si512(p->to + x, _mm512_permutex2var_epi64(s0, low, s2));
        _mm512_store_si512(p->to + x + 32, _mm512_permutex2var_epi64(s0, high, s2));
    }
}

/* Shuffles two pixels of three words, and two more words, to r r' g g' b b' 0 0. */
#define PAIR_UP                                                                                              \
    _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 6, 7, 2, 3, 8, 9, 4, 5, 10, 11, -128, -128, -128, -128))
/* Shuffles four pixels of four bytes to four of three. */
#define DROP_FOURTH                                                                                          \
    _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -128, -128, -128, -128))

/* sum += weights * (two inputs from `a` on in the lower half, from `b` on in the upper half) */
__attribute__((target("avx2"), always_inline)) static inline __m256i
add_pair(__m256i sum, const int16_t *a, const int16_t *b, const int16_t *weights)
{
    __m256i x = _mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)a));

    x = _mm256_inserti128_si256(x, _mm_loadu_si128((const __m128i *)b), 1);
    x = _mm256_shuffle_epi8(x, PAIR_UP);
    return _mm256_add_epi32(sum, _mm256_madd_epi16(x, _mm256_load_si256((const __m256i *)weights)));
}

/* Eight outputs. Outputs 0 and 4 are the halves of one vector, and so on, so that packing puts them in
 * order. */
__attribute__((target("avx2"))) static void row_avx2(const hvt__resample_pass *p, int row)
{
    const int16_t *w = p->spread, *in = p->between[row];
    const __m256i half = _mm256_set1_epi32(HALF_ACROSS);

    for (int j = 0; j < p->across->count; j += GROUP) {
        const int32_t *at = p->at + j;
        const int16_t *i0 = in + at[0], *i1 = in + at[1], *i2 = in + at[2], *i3 = in + at[3];
        const int16_t *i4 = in + at[4], *i5 = in + at[5], *i6 = in + at[6], *i7 = in + at[7];
        __m256i s0 = half, s1 = half, s2 = half, s3 = half;

        for (int k = 0; k < p->pairs; k++, w += 64) {
            s0 = add_pair(s0, i0 + 6 * k, i4 + 6 * k, w);
            s1 = add_pair(s1, i1 + 6 * k, i5 + 6 * k, w + 16);
            s2 = add_pair(s2, i2 + 6 * k, i6 + 6 * k, w + 32);
            s3 = add_pair(s3, i3 + 6 * k, i7 + 6 * k, w + 48);
        }
        s0 = _mm256_packs_epi32(_mm256_srai_epi32(s0, LAST), _mm256_srai_epi32(s1, LAST));
        s2 = _mm256_packs_epi32(_mm256_srai_epi32(s2, LAST), _mm256_srai_epi32(s3, LAST));
        s0 = _mm256_shuffle_epi8(_mm256_packus_epi16(s0, s2), DROP_FOURTH);
        _mm_storeu_si128((__m128i *)(p->line[row] + 3 * j), _mm256_castsi256_si128(s0));
        _mm_storeu_si128((__m128i *)(p->line[row] + 3 * j + 12), _mm256_extracti128_si256(s0, 1));
    }
}

static void across_avx2(const hvt__resample_pass *p)
{
    for (int row = 0; row < PAIR; row++)
        row_avx2(p, row);
}

/* Each output's pairs of weights three times, then a zero, in the order of row_avx2()'s vectors. */
static hvt__across_kernel *prepare_avx2(hvt__resample_pass *p)
{
    const hvt__axis *a = p->across;

    for (int j = 0; j < (int)round_up((size_t)a->count, GROUP); j++) {
        const int16_t *w = a->weight + (size_t)(j < a->count ? j : a->count - 1) * (size_t)a->taps;
        int16_t *to =
            p->spread + (size_t)(j / GROUP) * (size_t)p->pairs * 64 + j % 4 * 16 + j % GROUP / 4 * 8;

        for (int k = 0; k < p->pairs; k++, to += 64, w += 2)
            for (int c = 0; c < 8; c++)
                to[c] = c < 6 ? w[c % 2] : 0;
    }
    return across_avx2;
}

__attribute__((target("avx512bw"), always_inline)) static inline __m512i
add_five(__m512i sum, __m512i which, const int16_t *in, __m512i weights)
{
    __m512i x = _mm512_permutexvar_epi16(which, _mm512_loadu_si512(in));

    return _mm512_add_epi32(sum, _mm512_madd_epi16(x, weights));
}

/* Five outputs of both rows. Their inputs of a pair of taps are in one vector, from which a permutation takes
 * them; the permutation is the same for the next pair, two inputs further. */
__attribute__((target("avx512bw"))) static void across_avx512(const hvt__resample_pass *of)
{
    const hvt__resample_pass p = *of; /* a copy, which cannot alias its lines */
    const int count = p.across->count;
    const int16_t *w = p.spread;

    for (int j = 0; j < count; j += FIVE) {
        const int16_t *upper = p.between[0] + p.at[j], *lower = p.between[1] + p.at[j];
        __m512i which = _mm512_load_si512(w), u = _mm512_set1_epi32(HALF_ACROSS), l = u;

        w += 32;
        for (int k = 0; k < p.pairs; k++, w += 32, upper += 6, lower += 6) {
            __m512i weights = _mm512_load_si512(w);

            u = add_five(u, which, upper, weights);
            l = add_five(l, which, lower, weights);
        }
        _mm_storeu_si128((__m128i *)(p.line[0] + 3 * j), _mm512_cvtepi32_epi8(_mm512_srli_epi32(u, LAST)));
        _mm_storeu_si128((__m128i *)(p.line[1] + 3 * j), _mm512_cvtepi32_epi8(_mm512_srli_epi32(l, LAST)));
    }
}

/* The permutation of each five outputs, then their weights pair by pair. */
static hvt__across_kernel *prepare_avx512(hvt__resample_pass *p)
{
    const hvt__axis *a = p->across;
    int16_t *to = p->spread;

    for (int j = 0; j < a->count; j += FIVE)
        if (p->at[j + FIVE - 1] - p->at[j] > 32 - 6)
            return prepare_avx2(p);
    for (int j = 0; j < a->count; j += FIVE) {
        memset(to, 0, (size_t)(p->pairs + 1) * 32 * sizeof *to);
        for (int i = j; i < j + FIVE && i < a->count; i++)
            for (int c = 0; c < 3; c++) {
                int16_t *lane = to + 6 * (i - j) + 2 * c;
                const int16_t *w = a->weight + (size_t)i * (size_t)a->taps;

                lane[0] = (int16_t)(p->at[i] - p->at[j] + c);
                lane[1] = (int16_t)(lane[0] + 3);
                for (int k = 0; k < p->pairs; k++)
                    memcpy(lane + 32 * (k + 1), w + 2 * k, 2 * sizeof *w);
            }
        to += 32 * (p->pairs + 1);
    }
    return across_avx512;
}

static bool has_avx2(void)
{
    return __builtin_cpu_supports("avx2");
}

static bool has_avx512(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("avx512bw");
}

#endif

#ifdef __aarch64__

/* A pixel's channels, and one of the next pixel, which is discarded. (The compiler vectorises the other pass
 * well.) */
static void row_neon(const hvt__resample_pass *p, int row)
{
    const hvt__axis *a = p->across;
    const int16_t *w = a->weight;

    for (int j = 0; j < a->count; j++) {
        const int16_t *in = p->between[row] + p->at[j];
        int32x4_t sum = vdupq_n_s32(HALF_ACROSS);

        for (int k = 0; k < a->taps; k++, in += 3)
            sum = vmlal_n_s16(sum, vld1_s16(in), *w++);
        sum = vshrq_n_s32(sum, LAST);
        p->line[row][3 * j] = (uint8_t)vgetq_lane_s32(sum, 0);
        p->line[row][3 * j + 1] = (uint8_t)vgetq_lane_s32(sum, 1);
        p->line[row][3 * j + 2] = (uint8_t)vgetq_lane_s32(sum, 2);
    }
}

static void across_neon(const hvt__resample_pass *p)
{
    for (int row = 0; row < PAIR; row++)
        row_neon(p, row);
}

static hvt__across_kernel *prepare_neon(hvt__resample_pass *p)
{
    return across_neon;
}

#endif

static bool always(void)
{
    return true;
}

static const struct {
    hvt__resample_kernels kernels;
    bool (*supported)(void);
} isas[] = {
    {{"portable", down_portable, prepare_portable}, always},
#ifdef __x86_64__
    {{"avx2", down_avx2, prepare_avx2}, has_avx2},
    {{"avx512", down_avx512, prepare_avx512}, has_avx512},
#elif defined(__aarch64__)
    {{"neon", down_portable, prepare_neon}, always},
#endif
};

static int forced = -1; /* set by a test, before there are threads */

const char *hvt__resample_isa(int isa)
{
    return isa >= 0 && isa < (int)HVT_LEN(isas) && isas[isa].supported() ? isas[isa].kernels.name : NULL;
}

void hvt__resample_use(int isa)
{
    forced = isa;
}

const hvt__resample_kernels *hvt__strongest_kernels(void)
{
    int isa = forced >= 0 ? forced : (int)HVT_LEN(isas) - 1;

    while (!isas[isa].supported())
        isa--;
    return &isas[isa].kernels;
}
