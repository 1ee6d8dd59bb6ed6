/*
 * typed_winograd.h - part of typed_tmpl.c: the transforms of Winograd's F(m x m, 3x3), m = 2 and 4, for
 * winograd.c. A tile has m x m outputs and (m+2) x (m+2) inputs and points.
 *
 * The matrices follow from the points at which polynomials are multiplied (Toom and Cook): for m = 2 these
 * are 0, 1, -1 and infinity,
 *
 *         | 1  0 -1  0 |       | 1    0    0  |        | 1  0 |
 *   B'  = | 0  1  1  0 |   G = | 1/2  1/2 1/2 |    A = | 1  1 |
 *         | 0 -1  1  0 |       | 1/2 -1/2 1/2 |        | 1 -1 |
 *         | 0  1  0 -1 |       | 0    0    1  |        | 0 -1 |
 *
 * and for m = 4 0, p, -p, q, -q and infinity with p = 5/8 and q = 3/2, with 2 to 4 times smaller errors than
 * Lavin and Gray's 1 and 2:
 *
 *         | ppqq   0   -pp-qq   0     1   0 |       | 1/ppqq   0     0   |        | 1   0   0    0   |
 *         |  0   -pqq   -qq     p     1   0 |       |   f     fp    fpp  |        | 1   p   pp   ppp |
 *   B'  = |  0    pqq   -qq    -p     1   0 |   G = |   f    -fp    fpp  |    A = | 1  -p   pp  -ppp |
 *         |  0   -ppq   -pp     q     1   0 |       |   g     gq    gqq  |        | 1   q   qq   qqq |
 *         |  0    ppq   -pp    -q     1   0 |       |   g    -gq    gqq  |        | 1  -q   qq  -qqq |
 *         |  0   ppqq    0   -pp-qq   0   1 |       |   0      0     1   |        | 0   0   0    1   |
 *
 *   f = 1/(2pp(pp - qq)), g = 1/(2qq(qq - pp))
 */

#define P  0.625f
#define Q  1.5f
#define PP (P * P)
#define QQ (Q * Q)
#define F1 (1 / (2 * PP * (PP - QQ))) /* f and g */
#define G1 (1 / (2 * QQ * (QQ - PP)))

static const float no_pixel[HVT_TILE_SPAN];

/* One dimension of each transform. Results are `o` apart; m is a constant. */
enum { MOST_SIDE = 6, MOST_TILE = 4 };

/* out = k*x + y */
INLINE F plus(float k, F x, F y)
{
    return f_fma(f_splat(k), x, y);
}

/* B' */
INLINE void input_1d(const int m, const F *in, F *out, int o)
{
    const F a = in[0], b = in[1], c = in[2], d = in[3];

    if (m == 2) {
        out[0] = a - c;
        out[o] = b + c;
        out[2 * o] = c - b;
        out[3 * o] = b - d;
    } else {
        const F e = in[4], f = in[5];
        const F p = plus(-QQ, b, d) * P, q = plus(-PP, b, d) * Q, ep = plus(-QQ, c, e), eq = plus(-PP, c, e);

        out[0] = plus(PP * QQ, a, plus(-PP - QQ, c, e));
        out[o] = ep + p;
        out[2 * o] = ep - p;
        out[3 * o] = eq + q;
        out[4 * o] = eq - q;
        out[5 * o] = plus(PP * QQ, b, plus(-PP - QQ, d, f));
    }
}

/* A */
INLINE void dy_1d(const int m, const F *in, F *out, int o)
{
    const F a = in[0], b = in[1];

    if (m == 2) {
        out[0] = a;
        out[o] = a + b;
        out[2 * o] = a - b;
        out[3 * o] = -b;
    } else {
        const F c = in[2], d = in[3];
        const F p = plus(PP, d, b) * P, q = plus(QQ, d, b) * Q, ep = plus(PP, c, a), eq = plus(QQ, c, a);

        out[0] = a;
        out[o] = ep + p;
        out[2 * o] = ep - p;
        out[3 * o] = eq + q;
        out[4 * o] = eq - q;
        out[5 * o] = d;
    }
}

/* G */
INLINE void filter_1d(const int m, const F *in, F *out, int o)
{
    const F a = in[0], b = in[1], c = in[2];

    if (m == 2) {
        const F half = f_splat(0.5f), outer = (a + c) * half, inner = b * half;

        out[0] = a;
        out[o] = outer + inner;
        out[2 * o] = outer - inner;
        out[3 * o] = c;
    } else {
        const F p = b * (F1 * P), q = b * (G1 * Q), ep = plus(PP, c, a) * F1, eq = plus(QQ, c, a) * G1;

        out[0] = a * (1 / (PP * QQ));
        out[o] = ep + p;
        out[2 * o] = ep - p;
        out[3 * o] = eq + q;
        out[4 * o] = eq - q;
        out[5 * o] = c;
    }
}

/* A' */
INLINE void output_1d(const int m, const F *in, F *out, int o)
{
    const F a = in[0], b = in[1], c = in[2], d = in[3];

    if (m == 2) {
        out[0] = a + b + c;
        out[o] = b - c - d;
    } else {
        const F e = in[4], f = in[5], p = (b - c) * P, q = (d - e) * Q, ep = b + c, eq = d + e;

        out[0] = a + (ep + eq);
        out[o] = p + q;
        out[2 * o] = plus(QQ, eq, ep * PP);
        out[3 * o] = plus(QQ, q, plus(PP, p, f));
    }
}

/* G' */
INLINE void dw_1d(const int m, const F *in, F *out, int o)
{
    const F a = in[0], b = in[1], c = in[2], d = in[3];

    if (m == 2) {
        const F half = f_splat(0.5f), sum = (b + c) * half;

        out[0] = a + sum;
        out[o] = (b - c) * half;
        out[2 * o] = sum + d;
    } else {
        const F e = in[4], f = in[5], ep = (b + c) * F1, eq = (d + e) * G1;

        out[0] = plus(1 / (PP * QQ), a, ep + eq);
        out[o] = plus(G1 * Q, d - e, (b - c) * (F1 * P));
        out[2 * o] = plus(QQ, eq, plus(PP, ep, f));
    }
}

/* Both dimensions, columns first. FOR(i, n, ...) is an unrolled loop. */
#define FOR(i, n, ...)                                                                                       \
    UNROLL                                                                                                   \
    for (int i = 0; i < (n); i++) {                                                                          \
        __VA_ARGS__                                                                                          \
    }

enum { AHEAD = 32 }; /* floats */

/* Transform a tile's pixels (inputs, or gradients of outputs) to points. Their matrices are more streams than
 * a hardware prefetcher follows, and may be in the caches of other cores, so the next stores are prefetched.
 */
INLINE void tile_at(const int m, const bool of_dy, const void *const from[], size_t at, float *out, long next,
                    int lanes)
{
    const int pixels = of_dy ? m : m + 2, side = m + 2;
    F x[MOST_SIDE], t[MOST_SIDE * MOST_SIDE];

    FOR(i, pixels,
        FOR(j, pixels, x[j] = get(from[pixels * j + i], at, lanes);)(of_dy ? dy_1d : input_1d)(m, x, t + i,
                                                                                               pixels);)
    FOR(i, side, (of_dy ? dy_1d : input_1d)(m, t + pixels * i, x, 1);
        FOR(j, side, f_store(out, x[j], lanes); __builtin_prefetch(out + AHEAD, 1, 2); out += next;))
}

INLINE void transform(const hvt_tiles *g, const int m, const bool of_dy)
{
    const int side = of_dy ? m : m + 2, count = side * side;

    for (int r = 0; r < g->rows; r++) {
        const void *from[MOST_SIDE * MOST_SIDE];
        float *out = g->out + (long)r * g->pitch;

        for (int i = 0; i < count; i++)
            from[i] = g->from[i] ? hvt__at(g->from[i], TYPE, (size_t)(r * g->row)) : no_pixel;
        for (int first = 0; first < g->c; first += g->w, out += g->panel) {
            const int cols = g->c - first < g->w ? g->c - first : g->w;

            for (int i = 0; g->prefetch && i < count; i++)
                if (i % side >= side - m && from[i] != no_pixel)
                    hvt__prefetch(hvt__at(from[i], TYPE, (size_t)(g->prefetch + first)),
                                  ELEMENT * (size_t)cols);
            SPAN(cols, tile_at(m, of_dy, from, first + i, out + i, g->next, lanes););
        }
    }
}

static void tile(const hvt_tiles *g, int m, bool of_dy)
{
#define CASE(n, grad)                                                                                        \
    if (m == n && of_dy == grad)                                                                             \
        transform(g, n, grad);
    CASE(2, false) CASE(2, true) CASE(4, false) CASE(4, true)
#undef CASE
}

INLINE void output_at(const int m, const float *u, long next, void *const to[], size_t at, bool add,
                      int lanes)
{
    const int side = m + 2;
    F x[MOST_SIDE], t[MOST_SIDE * MOST_TILE];

    FOR(i, side, FOR(j, side, x[j] = f_load(u + (side * j + i) * next, lanes);) output_1d(m, x, t + i, side);)
    FOR(i, m, output_1d(m, t + side * i, x, 1);
        FOR(j, m, if (to[m * i + j]) put_or_add(to[m * i + j], at, x[j], add, lanes);))
}

INLINE void output(const int m, const float *u, long next, int rows, int cols, void *const to[], long row,
                   bool add)
{
    void *pixel[MOST_TILE * MOST_TILE]; /* a copy that the stores cannot alias */

    memcpy(pixel, to, sizeof *pixel * (size_t)(m * m));
    for (int r = 0; r < rows; r++, u += cols)
        SPAN(cols, output_at(m, u + i, next, pixel, (size_t)(r * row) + i, add, lanes););
}

static void tile_output(int m, const float *u, long next, int rows, int cols, void *const to[], long row,
                        bool add)
{
    if (m == 2)
        output(2, u, next, rows, cols, to, row, add);
    else
        output(4, u, next, rows, cols, to, row, add);
}

INLINE void filter_at(const int m, const void *w, size_t at, long tap, bool rotated, float *out, long next,
                      int lanes)
{
    const int side = m + 2;
    F x[MOST_SIDE], t[MOST_SIDE * 3];

    FOR(i, 3,
        FOR(j, 3, x[j] = get(w, at + (size_t)((rotated ? 8 - 3 * j - i : 3 * j + i) * tap), lanes);)
            filter_1d(m, x, t + i, 3);)
    FOR(i, side, filter_1d(m, t + 3 * i, x, 1); FOR(j, side, f_store(out, x[j], lanes); out += next;))
}

static void tile_filter(int m, size_t n, const void *w, long tap, bool rotated, float *out, long next)
{
    if (m == 2)
        SPAN(n, filter_at(2, w, i, tap, rotated, out + i, next, lanes););
    else
        SPAN(n, filter_at(4, w, i, tap, rotated, out + i, next, lanes););
}

INLINE void dw_at(const int m, const float *u, long next, float *dw, long tap, int lanes)
{
    const int side = m + 2;
    F x[MOST_SIDE], t[MOST_SIDE * 3];

    FOR(i, side, FOR(j, side, x[j] = f_load(u + (side * j + i) * next, lanes);) dw_1d(m, x, t + i, side);)
    FOR(i, 3, dw_1d(m, t + side * i, x, 1); FOR(j, 3, f_store(dw, x[j], lanes); dw += tap;))
}

static void tile_dw(int m, size_t n, const float *u, long next, float *dw, long tap)
{
    if (m == 2)
        SPAN(n, dw_at(2, u + i, next, dw + i, tap, lanes););
    else
        SPAN(n, dw_at(4, u + i, next, dw + i, tap, lanes););
}
