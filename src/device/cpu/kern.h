/*
 * kern.h - the convolution kernels: one text, compiled once per instruction set by kern_<isa>.c, which
 * defines before including it
 *
 *     VL          words in a vector
 *     ROWS1 ROWS2 most rows of a tile with one and with two vectors of columns; all 1 .. that exist
 *     PITCH       words between inner steps of a packed panel, >= ROWS1 and a multiple of VL
 *     EACH1 EACH2 (X): X(1) .. X(ROWS1), X(1) .. X(ROWS2)
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

#ifdef HALVES
INLINE void store_halves(const hvt_tile *t, const int rows, const int vectors, const int last, vec (*c)[2])
{
    uint16_t *out = (uint16_t *)t->c;

    UNROLL
    for (int i = 0; i < rows; i++, out += t->c_row) {
        if (t->add) {
            UNROLL
            for (int v = 0; v < vectors; v++)
                c[i][v] = vadd(halves_load(out + VL * v, v < vectors - 1 ? VL : last), c[i][v]);
        }
        if (vectors == 2 && last == VL) {
            halves_store2(out, c[i][0], c[i][vectors - 1]);
        } else {
            UNROLL
            for (int v = 0; v < vectors; v++)
                halves_store(out + VL * v, c[i][v], v < vectors - 1 ? VL : last);
        }
    }
}
#else
#define HALVES_INIT
#endif

/* `turned`: A's rows lie side by side and the inner step is a_row apart (backward weights); else rows are
 * a_row apart and the inner step is one float. `rows`, `vectors` and `turned` are constants: the loops over
 * them disappear. */
INLINE void tile(const hvt_tile *t, const int rows, const int vectors, const bool turned)
{
    vec c[ROWS1][2];
    const long a_row = t->a_row, b_row = t->b_row;
    const int len = t->len;

    UNROLL
    for (int i = 0; i < rows; i++) {
        UNROLL
        for (int v = 0; v < vectors; v++)
            c[i][v] = vzero();
    }
    for (int e = 0; e < t->entries; e++) {
        const float *a = t->a + t->e[e].a * t->a_entry, *b = t->b + t->e[e].b * t->b_entry;
        /* one pointer for each three rows: the other two are reached by the address modes of x86 */
        const float *a3 = a + 3 * a_row, *a6 = a + 6 * a_row, *a9 = a + 9 * a_row, *a12 = a + 12 * a_row,
                    *a15 = a + 15 * a_row;

        for (int k = 0; k < len; k++) {
            vec bv[2];

            UNROLL
            for (int v = 0; v < vectors; v++)
                bv[v] = vload(b + VL * v);
            b += b_row;
            UNROLL
            for (int i = 0; i < rows; i++) {
                const float *base = i < 3 ? a : i < 6 ? a3 : i < 9 ? a6 : i < 12 ? a9 : i < 15 ? a12 : a15;
                vec av = vbroadcast(turned ? a + i : base + i % 3 * a_row);

                UNROLL
                for (int v = 0; v < vectors; v++)
                    c[i][v] = vmuladd(av, bv[v], c[i][v]);
            }
            if (turned) {
                a += a_row;
            } else {
                a++, a3++, a6++, a9++, a12++, a15++;
            }
        }
    }

    int last = t->nc - VL * (vectors - 1); /* columns of the last vector */

#ifdef HALVES
    if (!turned && t->half) {
        store_halves(t, rows, vectors, last, c);
        return;
    }
#endif
    UNROLL
    for (int i = 0; i < rows; i++) {
        UNROLL
        for (int v = 0; v < vectors; v++) {
            float *out = t->c + i * t->c_row + VL * v;

            if (t->stream && last == VL)
                vstream(out, c[i][v]);
            else if (v < vectors - 1 || last == VL)
                vstore(out, t->add ? vadd(vload(out), c[i][v]) : c[i][v]);
            else
                vstore_part(out, t->add ? vadd(vload_part(out, last), c[i][v]) : c[i][v], last);
        }
    }
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
#define DEFINE1(i) GATHER(i, 1) WGRAD(i, 1)
#define DEFINE2(i) GATHER(i, 2) WGRAD(i, 2)
#define GATHER1(i) [i - 1] = gather_##i##x1,
#define GATHER2(i) [i - 1] = gather_##i##x2,
#define WGRAD1(i)  [i - 1] = wgrad_##i##x1,
#define WGRAD2(i)  [i - 1] = wgrad_##i##x2,

EACH1(DEFINE1)
EACH2(DEFINE2)

static hvt_kernel *const gather1[] = {EACH1(GATHER1)};
static hvt_kernel *const gather2[] = {EACH2(GATHER2)};
static hvt_kernel *const wgrad1[] = {EACH1(WGRAD1)};
static hvt_kernel *const wgrad2[] = {EACH2(WGRAD2)};

#ifndef ARRANGE
#define ARRANGE /* floats are arranged by typed.h */
#endif
#define KERNELS(isa)                                                                                         \
    const hvt_conv_kernels hvt__conv_##isa = {.vl = VL,                                                      \
                                              .rows = {ROWS1, ROWS2},                                        \
                                              .pitch = PITCH,                                                \
                                              .gather = {gather1, gather2},                                  \
                                              .wgrad = {wgrad1, wgrad2},                                     \
                                              .transpose = transpose,                                        \
                                              .depth = 1,                                                    \
                                              HALVES_INIT ARRANGE}
