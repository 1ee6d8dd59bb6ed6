/*
 * kern.h - the convolution kernels: one text, compiled once per instruction set by kern_<isa>.c, which
 * defines before including it
 *
 *     VL          words in a vector
 *     ROWS1 ROWS2 most rows of a tile with one and with two vectors of columns; all 1 .. that exist
 *     PITCH       words between inner steps of a packed panel, >= ROWS1 and a multiple of VL
 *     EACH1 EACH2 (X): X(1) .. X(ROWS1), X(1) .. X(ROWS2)
 *     ROWS3 EACH3 where there are registers for three vectors: the same for them
 *     vec         a vector, and its verbs below
 *     ARRANGE     where a word is a pair of bf16: the initializers of arrange_a and arrange_b
 *     HALVES      where a tile may be stored as bf16: defined, with HALVES_INIT, .halves = true, and
 *                 halves_store(p, v, n)    n words
 *                 halves_store2(p, v, w)   two vectors
 *                 halves_load(p, n)
 *
 * A word is what one multiply-add takes from A for one row: a float, or a pair of bf16 along the inner loop.
 *
 * A tile's accumulators live in registers from the first entry to the last; every element is one chain of
 * multiply-adds in the order entry, inner step, whatever the tile's height, width or place. So an image's
 * result does not depend on which other images share its tile.
 */
#include "turn.h"

INLINE void fetch_ahead(const hvt_ahead *a, int i)
{
    hvt__fetch(a->from + (a->pixel ? a->pixel[i] : i) * a->step, a->bytes);
}

/* c += A[e.a] * B[e.b] over entries `from` to `to`: columns of vectors `first` to `vectors`, the next of
 * which is `next` words on in B. `turned`: A's rows lie side by side and the inner step is a_row apart
 * (backward weights); else rows are a_row apart and the inner step is one float. `rows`, `first`, `vectors`
 * and `turned` are constants: the loops over them disappear. */
INLINE void products(const hvt_tile *t, int from, int to, const int rows, const int first, const int vectors,
                     const bool turned, const long next, vec (*c)[3])
{
    const long a_row = t->a_row, b_row = t->b_row;
    const int len = t->len;

    for (int e = from; e < to; e++) {
        const float *a = t->a + t->e[e].a * t->a_entry, *b = t->b + t->e[e].b * t->b_entry;
        /* one pointer for each three rows: the other two are reached by the address modes of x86 */
        const float *a3 = a + 3 * a_row, *a6 = a + 6 * a_row, *a9 = a + 9 * a_row, *a12 = a + 12 * a_row,
                    *a15 = a + 15 * a_row;

        if (turned && t->e[e].b < t->ahead.count)
            fetch_ahead(&t->ahead, t->e[e].b);
        for (int k = 0; k < len; k++) {
            vec bv[3];

            UNROLL
            for (int v = first; v < vectors; v++)
                bv[v] = vload(b + next * (v - first));
            b += b_row;
            UNROLL
            for (int i = 0; i < rows; i++) {
                const float *base = i < 3 ? a : i < 6 ? a3 : i < 9 ? a6 : i < 12 ? a9 : i < 15 ? a12 : a15;
                vec av = vbroadcast(turned ? a + i : base + i % 3 * a_row);

                UNROLL
                for (int v = first; v < vectors; v++)
                    c[i][v] = vmuladd(av, bv[v], c[i][v]);
            }
            if (turned) {
                a += a_row;
            } else {
                a++, a3++, a6++, a9++, a12++, a15++;
            }
        }
    }
}

/* Vector v of a row is stored v * next elements on; all but the last `vectors` are whole, unless there is one
 * for each of several targets: `twins`. */
#ifdef HALVES
INLINE void store_halves(const hvt_tile *t, const int rows, const int vectors, const bool twins, vec (*c)[3])
{
    const long next = twins ? t->c_next : VL;
    const int last = twins ? t->nc : t->nc - VL * (vectors - 1), before = twins ? last : VL;
    uint16_t *out = (uint16_t *)t->c;

    UNROLL
    for (int i = 0; i < rows; i++, out += t->c_row) {
        if (t->add) {
            UNROLL
            for (int v = 0; v < vectors; v++)
                c[i][v] = vadd(halves_load(out + next * v, v < vectors - 1 ? before : last), c[i][v]);
        }
        if (vectors == 2 && !twins && last == VL) {
            halves_store2(out, c[i][0], c[i][vectors - 1]);
        } else {
            UNROLL
            for (int v = 0; v < vectors; v++)
                halves_store(out + next * v, c[i][v], v < vectors - 1 ? before : last);
        }
    }
}
#else
#define HALVES_INIT
#endif

INLINE void store(const hvt_tile *t, const int rows, const int vectors, const bool twins, vec (*c)[3])
{
    const long next = twins ? t->c_next : VL;
    const int last = twins ? t->nc : t->nc - VL * (vectors - 1);

    UNROLL
    for (int i = 0; i < rows; i++) {
        UNROLL
        for (int v = 0; v < vectors; v++) {
            float *out = t->c + i * t->c_row + next * v;

            if (t->stream && last == VL)
                vstream(out, c[i][v]);
            else if ((v < vectors - 1 && !twins) || last == VL)
                vstore(out, t->add ? vadd(vload(out), c[i][v]) : c[i][v]);
            else
                vstore_part(out, t->add ? vadd(vload_part(out, last), c[i][v]) : c[i][v], last);
        }
    }
}

INLINE void tile(const hvt_tile *t, const int rows, const int vectors, const bool turned)
{
    vec c[ROWS1][3];

    UNROLL
    for (int i = 0; i < rows; i++) {
        UNROLL
        for (int v = 0; v < vectors; v++)
            c[i][v] = vzero();
    }
    products(t, 0, t->entries, rows, 0, vectors, turned, VL, c);
#ifdef HALVES
    if (!turned && t->half) {
        store_halves(t, rows, vectors, false, c);
        return;
    }
#endif
    store(t, rows, vectors, false, c);
}

/* Two targets of one vector each: what both read is loaded once. A tile of one vector takes 17 loads for 16
 * multiply-adds; processors with two units for either then wait for loads. */
INLINE void twins(const hvt_tile *t, const int rows)
{
    const int shared = t->own + t->shared;
    vec c[ROWS1][3];

    UNROLL
    for (int i = 0; i < rows; i++)
        c[i][0] = c[i][1] = vzero();
    products(t, 0, t->own, rows, 0, 1, false, 0, c);
    products(t, t->own, shared, rows, 0, 2, false, t->b_next, c);
    products(t, shared, t->entries, rows, 1, 2, false, 0, c);
#ifdef HALVES
    if (t->half) {
        store_halves(t, rows, 2, true, c);
        return;
    }
#endif
    store(t, rows, 2, true, c);
}

/* Three neighbouring taps of one vector each: a pixel of x meets dy of three pixels, 11 loads for 24
 * multiply-adds. */
INLINE void triplets(const hvt_tile *t, const int rows)
{
    const int shared = t->own + t->shared;
    vec c[ROWS1][3];

    UNROLL
    for (int i = 0; i < rows; i++)
        c[i][0] = c[i][1] = c[i][2] = vzero();
    products(t, 0, t->own, rows, 0, 2, true, t->b_next, c);
    products(t, t->own, shared, rows, 0, 3, true, t->b_next, c);
    products(t, shared, t->entries, rows, 1, 3, true, t->b_next, c);
    store(t, rows, 3, true, c);
}

#define GATHER(i, v)                                                                                         \
    static void gather_##i##x##v(const hvt_tile *t)                                                          \
    {                                                                                                        \
        tile(t, i, v, false);                                                                                \
    }
#define WGRAD(i, v)                                                                                          \
    static void wgrad_##i##x##v(const hvt_tile *t)                                                           \
    {                                                                                                        \
        tile(t, i, v, true);                                                                                 \
    }
#define TWINS(i)                                                                                             \
    static void twins_##i(const hvt_tile *t)                                                                 \
    {                                                                                                        \
        twins(t, i);                                                                                         \
    }
#define TRIPLETS(i)                                                                                          \
    static void triplets_##i(const hvt_tile *t)                                                              \
    {                                                                                                        \
        triplets(t, i);                                                                                      \
    }
#define DEFINE1(i) GATHER(i, 1) WGRAD(i, 1)
#define DEFINE2(i) GATHER(i, 2) WGRAD(i, 2) TWINS(i)
#define GATHER1(i) [i - 1] = gather_##i##x1,
#define GATHER2(i) [i - 1] = gather_##i##x2,
#define WGRAD1(i)  [i - 1] = wgrad_##i##x1,
#define WGRAD2(i)  [i - 1] = wgrad_##i##x2,
#define TWINS2(i)  [i - 1] = twins_##i,
#define WGRAD3(i)  [i - 1] = triplets_##i,

EACH1(DEFINE1)
EACH2(DEFINE2)
#ifdef ROWS3
EACH3(TRIPLETS)
static hvt_kernel *const wgrad3[] = {EACH3(WGRAD3)};
#else
#define ROWS3  0
#define wgrad3 NULL
#endif

static hvt_kernel *const gather1[] = {EACH1(GATHER1)};
static hvt_kernel *const gather2[] = {EACH2(GATHER2)};
static hvt_kernel *const wgrad1[] = {EACH1(WGRAD1)};
static hvt_kernel *const wgrad2[] = {EACH2(WGRAD2)};
static hvt_kernel *const twins2[] = {EACH2(TWINS2)};

#ifndef ARRANGE
#define ARRANGE /* floats are arranged by typed.h */
#endif
#define KERNELS(isa)                                                                                         \
    const hvt_conv_kernels hvt__conv_##isa = {.vl = VL,                                                      \
                                              .rows = {ROWS1, ROWS2, ROWS3},                                 \
                                              .pitch = PITCH,                                                \
                                              .gather = {gather1, gather2},                                  \
                                              .wgrad = {wgrad1, wgrad2, wgrad3},                             \
                                              .twins = twins2,                                               \
                                              .transpose = transpose,                                        \
                                              .depth = 1,                                                    \
                                              HALVES_INIT ARRANGE}
