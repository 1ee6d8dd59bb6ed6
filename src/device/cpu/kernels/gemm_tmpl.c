/*
 * The convolution microkernels, and the instruction set's entry in the table. One source, compiled once per
 * set with -DHVT_ISA=name and that set's flags. It uses from vec_<isa>.h
 *
 *     ROWS1 ROWS2 maximum rows of tiles one and two vectors wide; kernels for 1 .. that are generated
 *     ROWS3       the same for three_taps, if there are enough registers for three vectors
 *     PITCH       k-groups between inner steps of a packed panel, >= ROWS1 and a multiple of VL
 *     vmuladd vbroadcast  (a, b, c), (p): if not f_fma and f_splat
 *     VNNI2       defined if a k-group is two bf16 and C can be stored as bf16, with
 *                 bf16_store(p, v, n)    n elements
 *                 bf16_store2(p, v, w)   two vectors
 *                 bf16_load(p, n)
 *
 * A k-group is A's operand of one multiply-add for one row: a float, or two bf16 along the inner dimension.
 *
 * A tile's accumulators stay in registers from the first entry to the last. Every element is one chain of
 * multiply-adds in the order of entries and inner steps, whatever the tile's height, width or position. So an
 * image's result does not depend on the images that share its tile.
 */
#include "device/cpu/cpu_impl.h"

#include HVT_VECTORS

#ifdef VNNI2
#include "vnni2.h"
#define VNNI2_INIT .stores_bf16 = true, .shared_panels = true, .pack_a = pack_b, .pack_b = pack_b
#else
#include "pack_weights.h"
#define VNNI2_INIT /* typed_tmpl.c packs floats */
#endif

#ifndef vmuladd
#define vmuladd(a, b, c) f_fma(a, b, c)
#define vbroadcast(p)    f_splat(*(p))
#endif

/* LINE: k-groups of a cache line. FAR: a tile that reads more rows of B finds them in the L2 cache or beyond.
 * B_AHEAD: rows ahead to prefetch then. (Zen 3: 3072 -> 768, 1x1 at 7x7, 60 GF/s without, 75 with it; 256 ->
 * 256, 3x3 at 14x14, 103 and 140. Not measured with longer vectors.) */
enum { LINE = 16, FAR = 256, B_AHEAD = 32 };

/* Prefetch the one or two lines of `count` k-groups; 32 with long vectors. */
INLINE void prefetch_row(const float *row, const int count)
{
    __builtin_prefetch(row, 0, 2);
    __builtin_prefetch(row + count - 1, 0, 2);
}

/* c += A[e.a] * B[e.b] over entries `from` to `to`, for vectors `first` to `vectors` of columns, `next`
 * k-groups apart in B. `trans_a`: rows of A are adjacent and inner steps a_row apart (backward weights); else
 * rows are a_row apart and inner steps one k-group. `rows`, `first`, `vectors` and `trans_a` are constants,
 * so that loops over them are unrolled. */
INLINE void accumulate(const hvt_tile *t, int from, int to, const int rows, const int first,
                       const int vectors, const bool trans_a, const long next, F (*c)[3])
{
    const long a_row = t->a_row, b_row = t->b_row;
    const int len = t->len;

    for (int e = from; e < to; e++) {
        const float *a = t->a + t->e[e].a * t->a_entry, *b = t->b + t->e[e].b * t->b_entry;
        /* one pointer per three rows: x86 address modes reach the other two */
        const float *a3 = a + 3 * a_row, *a6 = a + 6 * a_row, *a9 = a + 9 * a_row, *a12 = a + 12 * a_row,
                    *a15 = a + 15 * a_row;

        const hvt_prefetch *f = &t->prefetch;
        const int pixel = t->e[e].b;

        if (trans_a && pixel < f->count)
            hvt__prefetch(f->from + (f->pixel ? f->pixel[pixel] : pixel) * f->step, f->bytes);
        const bool ahead = !trans_a && t->ahead && e == t->entries - 1,
                   far = !trans_a && VL == 8 && t->entries * len >= FAR;

        for (int begin = 0, end; begin < len; begin = end) {
            end = ahead && len - begin > LINE ? begin + LINE : len;
            if (ahead) {
                const float *row = a + t->ahead;

                NO_UNROLL
                for (int i = 0; i < rows; i++, row += a_row)
                    __builtin_prefetch(row, 0, 2);
            }
            for (int k = begin; k < end; k++) {
                F bv[3];

                if (trans_a && t->a_ahead)
                    prefetch_row(a + t->a_ahead, rows);
                if (far)
                    __builtin_prefetch(b + B_AHEAD * b_row);
                if (trans_a && t->b_ahead)
                    prefetch_row(b + t->b_ahead, vectors * VL);
                UNROLL
                for (int v = first; v < vectors; v++)
                    bv[v] = f_load(b + next * (v - first), VL);
                b += b_row;
                UNROLL
                for (int i = 0; i < rows; i++) {
                    const float *base = i < 3    ? a
                                        : i < 6  ? a3
                                        : i < 9  ? a6
                                        : i < 12 ? a9
                                        : i < 15 ? a12
                                                 : a15;
                    F av = vbroadcast(trans_a ? a + i : base + i % 3 * a_row);

                    UNROLL
                    for (int v = first; v < vectors; v++)
                        c[i][v] = vmuladd(av, bv[v], c[i][v]);
                }
                if (trans_a) {
                    a += a_row;
                } else {
                    a++, a3++, a6++, a9++, a12++, a15++;
                }
            }
        }
    }
}

/* Store vector v of a row `next` * v elements on. All but the last of `vectors` are whole, unless they belong
 * to two target pixels. */
#ifdef VNNI2
INLINE void store_bf16(const hvt_tile *t, const int rows, const int vectors, const bool two_pixels, F (*c)[3])
{
    const long next = two_pixels ? t->c_next : VL;
    const int last = two_pixels ? t->nc : t->nc - VL * (vectors - 1), before = two_pixels ? last : VL;
    uint16_t *out = (uint16_t *)t->c;

    UNROLL
    for (int i = 0; i < rows; i++, out += t->c_row) {
        if (t->add) {
            UNROLL
            for (int v = 0; v < vectors; v++)
                c[i][v] = bf16_load(out + next * v, v < vectors - 1 ? before : last) + c[i][v];
        }
        if (vectors == 2 && !two_pixels && last == VL) {
            bf16_store2(out, c[i][0], c[i][vectors - 1]);
        } else {
            UNROLL
            for (int v = 0; v < vectors; v++)
                bf16_store(out + next * v, c[i][v], v < vectors - 1 ? before : last);
        }
    }
}
#endif

INLINE void store(const hvt_tile *t, const int rows, const int vectors, const bool two_pixels, F (*c)[3])
{
    const long next = two_pixels ? t->c_next : VL;
    const int last = two_pixels ? t->nc : t->nc - VL * (vectors - 1);

    UNROLL
    for (int i = 0; i < rows; i++) {
        UNROLL
        for (int v = 0; v < vectors; v++) {
            float *out = t->c + i * t->c_row + next * v;

            if (t->stream && last == VL)
                f_stream(out, c[i][v]);
            else if ((v < vectors - 1 && !two_pixels) || last == VL)
                f_store(out, t->add ? f_load(out, VL) + c[i][v] : c[i][v], VL);
            else
                f_store(out, t->add ? f_load(out, last) + c[i][v] : c[i][v], last);
        }
    }
}

/* Prefetch the next tile's rows of C, which are too far apart for the hardware prefetcher. (32 -> 192, 1x1 at
 * 28x28, 16 images on Zen 3: 19 GF/s without, 31 with it. With AVX-512, where a tile has more rows of two
 * lines, stores wait less.) */
INLINE void prefetch_next_c(const hvt_tile *t, const int rows)
{
    if (VL == 16 || t->stream)
        return;
    UNROLL
    for (int i = rows; i < 2 * rows; i++)
        __builtin_prefetch(t->c + i * t->c_row, 1);
}

INLINE void tile(const hvt_tile *t, const int rows, const int vectors, const bool trans_a)
{
    F c[ROWS1][3];

    UNROLL
    for (int i = 0; i < rows; i++) {
        UNROLL
        for (int v = 0; v < vectors; v++)
            c[i][v] = f_splat(0);
    }
    if (!trans_a)
        prefetch_next_c(t, rows);
    accumulate(t, 0, t->entries, rows, 0, vectors, trans_a, VL, c);
#ifdef VNNI2
    if (!trans_a && t->c_bf16) {
        store_bf16(t, rows, vectors, false, c);
        return;
    }
#endif
    store(t, rows, vectors, false, c);
}

/* Two target pixels of one vector each: source rows that both read are loaded once. A tile of one vector
 * takes 17 loads for 16 multiply-adds, so processors with two units for each are bound by loads. */
INLINE void two_pixels(const hvt_tile *t, const int rows)
{
    const int shared = t->own + t->shared;
    F c[ROWS1][3];

    UNROLL
    for (int i = 0; i < rows; i++)
        c[i][0] = c[i][1] = f_splat(0);
    accumulate(t, 0, t->own, rows, 0, 1, false, 0, c);
    accumulate(t, t->own, shared, rows, 0, 2, false, t->b_next, c);
    accumulate(t, shared, t->entries, rows, 1, 2, false, 0, c);
#ifdef VNNI2
    if (t->c_bf16) {
        store_bf16(t, rows, 2, true, c);
        return;
    }
#endif
    store(t, rows, 2, true, c);
}

#ifdef ROWS3
/* Three adjacent taps of one vector each: a pixel of x is multiplied by dy of three pixels, 11 loads for 24
 * multiply-adds. */
INLINE void three_taps(const hvt_tile *t, const int rows)
{
    const int shared = t->own + t->shared;
    F c[ROWS1][3];

    UNROLL
    for (int i = 0; i < rows; i++)
        c[i][0] = c[i][1] = c[i][2] = f_splat(0);
    accumulate(t, 0, t->own, rows, 0, 2, true, t->b_next, c);
    accumulate(t, t->own, shared, rows, 0, 3, true, t->b_next, c);
    accumulate(t, shared, t->entries, rows, 1, 3, true, t->b_next, c);
    store(t, rows, 3, true, c);
}
#endif

/* X(1) ... X(n) */
#define EACH_6(X)  X(1) X(2) X(3) X(4) X(5) X(6)
#define EACH_8(X)  EACH_6(X) X(7) X(8)
#define EACH_12(X) EACH_8(X) X(9) X(10) X(11) X(12)
#define EACH_14(X) EACH_12(X) X(13) X(14)
#define EACH_16(X) EACH_14(X) X(15) X(16)
#define EACH_OF(n) EACH_##n
#define EACH(n)    EACH_OF(n)

#define KERNEL(name, call)                                                                                   \
    static void name(const hvt_tile *t)                                                                      \
    {                                                                                                        \
        call;                                                                                                \
    }
#define DEFINE1(i) KERNEL(gemm_nn_##i##x1, tile(t, i, 1, false)) KERNEL(gemm_tn_##i##x1, tile(t, i, 1, true))
#define DEFINE2(i)                                                                                           \
    KERNEL(gemm_nn_##i##x2, tile(t, i, 2, false))                                                            \
    KERNEL(gemm_tn_##i##x2, tile(t, i, 2, true)) KERNEL(two_pixels_##i, two_pixels(t, i))
#define DEFINE3(i)     KERNEL(three_taps_##i, three_taps(t, i))
#define GEMM_NN1(i)    [i - 1] = gemm_nn_##i##x1,
#define GEMM_NN2(i)    [i - 1] = gemm_nn_##i##x2,
#define GEMM_TN1(i)    [i - 1] = gemm_tn_##i##x1,
#define GEMM_TN2(i)    [i - 1] = gemm_tn_##i##x2,
#define TWO_PIXELS2(i) [i - 1] = two_pixels_##i,
#define GEMM_TN3(i)    [i - 1] = three_taps_##i,

EACH(ROWS1)
(DEFINE1) EACH(ROWS2)(DEFINE2)
#ifdef ROWS3
    EACH(ROWS3)(DEFINE3) static hvt_kernel *const gemm_tn3[] = {EACH(ROWS3)(GEMM_TN3)};
#else
#define ROWS3    0
#define gemm_tn3 NULL
#endif

static hvt_kernel *const gemm_nn1[] = {EACH(ROWS1)(GEMM_NN1)};
static hvt_kernel *const gemm_nn2[] = {EACH(ROWS2)(GEMM_NN2)};
static hvt_kernel *const gemm_tn1[] = {EACH(ROWS1)(GEMM_TN1)};
static hvt_kernel *const gemm_tn2[] = {EACH(ROWS2)(GEMM_TN2)};
static hvt_kernel *const two_pixels2[] = {EACH(ROWS2)(TWO_PIXELS2)};

const hvt_conv_kernels HVT_OF_ISA(conv) = {.vl = VL,
                                           .rows = {ROWS1, ROWS2, ROWS3},
                                           .pitch = PITCH,
                                           .gemm_nn = {gemm_nn1, gemm_nn2},
                                           .gemm_tn = {gemm_tn1, gemm_tn2, gemm_tn3},
                                           .two_pixels = two_pixels2,
                                           .pack_weights = pack_weights,
                                           .depth = 1,
                                           VNNI2_INIT};

extern const hvt_elementwise HVT_OF_ISA(elementwise);

const hvt_isa HVT_OF_ISA(isa) = {.name = HVT_TEXT(HVT_ISA), .el = &HVT_OF_ISA(elementwise), ISA_ENTRY};
