/*
 * typed_winograd.h - the transforms of Winograd's F(2x2, 3x3), a part of typed.h; used by winograd.c.
 *
 *         | 1  0 -1  0 |       | 1    0    0  |        | 1  0 |
 *   B'  = | 0  1  1  0 |   G = | 1/2  1/2 1/2 |    A = | 1  1 |
 *         | 0 -1  1  0 |       | 1/2 -1/2 1/2 |        | 1 -1 |
 *         | 0  1  0 -1 |       | 0    0    1  |        | 0 -1 |
 */

static const float no_pixel[HVT_TILE_SPAN];

/* B' of a column or row of four elements, results `step` apart */
INLINE void input4(F a, F b, F c, F d, F *out, int step)
{
    out[0] = a - c;
    out[step] = b + c;
    out[2 * step] = c - b;
    out[3 * step] = b - d;
}

/* A */
INLINE void dy4(F a, F b, F *out, int step)
{
    out[0] = a;
    out[step] = a + b;
    out[2 * step] = a - b;
    out[3 * step] = -b;
}

/* G */
INLINE void filter4(F a, F b, F c, F *out, int step)
{
    const F half = f_splat(0.5f), outer = (a + c) * half, inner = b * half;

    out[0] = a;
    out[step] = outer + inner;
    out[2 * step] = outer - inner;
    out[3 * step] = c;
}

/* A' */
INLINE void output2(F a, F b, F c, F d, F *out, int step)
{
    out[0] = a + b + c;
    out[step] = b - c - d;
}

/* G' */
INLINE void dw3(F a, F b, F c, F d, F *out, int step)
{
    const F half = f_splat(0.5f), sum = (b + c) * half;

    out[0] = a + sum;
    out[step] = (b - c) * half;
    out[2 * step] = sum + d;
}

INLINE void input_at(const void *const from[], size_t at, float *out, long next, int lanes)
{
    F d[16], t[16];

    UNROLL
    for (int i = 0; i < 16; i++)
        d[i] = get(from[i], at, lanes);
    UNROLL
    for (int i = 0; i < 4; i++)
        input4(d[i], d[4 + i], d[8 + i], d[12 + i], t + i, 4);
    UNROLL
    for (int i = 0; i < 4; i++)
        input4(t[4 * i], t[4 * i + 1], t[4 * i + 2], t[4 * i + 3], d + 4 * i, 1);
    UNROLL
    for (int i = 0; i < 16; i++)
        f_store(out + i * next, d[i], lanes);
}

INLINE void dy_at(const void *const from[], size_t at, float *out, long next, int lanes)
{
    F d[4], t[8], m[16];

    UNROLL
    for (int i = 0; i < 4; i++)
        d[i] = get(from[i], at, lanes);
    UNROLL
    for (int i = 0; i < 2; i++)
        dy4(d[i], d[2 + i], t + i, 2);
    UNROLL
    for (int i = 0; i < 4; i++)
        dy4(t[2 * i], t[2 * i + 1], m + 4 * i, 1);
    UNROLL
    for (int i = 0; i < 16; i++)
        f_store(out + i * next, m[i], lanes);
}

/* Transforms the `pixels` (16 or 4) of each tile to 16 points. */
INLINE void transform(const hvt_tiles *g, const int pixels)
{
    const int side = pixels == 16 ? 4 : 2;

    for (int r = 0; r < g->rows; r++) {
        const void *from[16];
        float *out = g->out + (long)r * g->pitch;

        UNROLL
        for (int i = 0; i < pixels; i++)
            from[i] = g->from[i] ? hvt__at(g->from[i], TYPE, (size_t)(r * g->row)) : no_pixel;
        for (int first = 0; first < g->c; first += g->w, out += g->panel) {
            const int count = g->c - first < g->w ? g->c - first : g->w;

            for (int i = 0; g->prefetch && i < pixels; i++)
                if (i % side >= side - 2 && from[i] != no_pixel)
                    hvt__prefetch(hvt__at(from[i], TYPE, (size_t)(g->prefetch + first)),
                                  hvt_dtype_size(TYPE) * (size_t)count);
            if (pixels == 16)
                SPAN(count, input_at(from, first + i, out + i, g->next, lanes););
            else
                SPAN(count, dy_at(from, first + i, out + i, g->next, lanes););
        }
    }
}

static void tile_input(const hvt_tiles *g)
{
    transform(g, 16);
}

static void tile_dy(const hvt_tiles *g)
{
    transform(g, 4);
}

INLINE void output_at(const float *m, long next, void *const to[4], size_t at, bool add, int lanes)
{
    F d[16], t[8], y[4];

    UNROLL
    for (int i = 0; i < 16; i++)
        d[i] = f_load(m + i * next, lanes);
    UNROLL
    for (int i = 0; i < 4; i++)
        output2(d[i], d[4 + i], d[8 + i], d[12 + i], t + i, 4);
    UNROLL
    for (int i = 0; i < 2; i++)
        output2(t[4 * i], t[4 * i + 1], t[4 * i + 2], t[4 * i + 3], y + 2 * i, 1);
    UNROLL
    for (int i = 0; i < 4; i++)
        if (to[i])
            put_or_add(to[i], at, y[i], add, lanes);
}

static void tile_output(const float *m, long next, int rows, int cols, void *const to[4], long row, bool add)
{
    void *const pixel[4] = {to[0], to[1], to[2], to[3]}; /* a copy, which the stores cannot alias */

    for (int r = 0; r < rows; r++, m += cols)
        SPAN(cols, output_at(m + i, next, pixel, (size_t)(r * row) + i, add, lanes););
}

INLINE void filter_at(const void *w, size_t at, long tap, float *out, long next, int lanes)
{
    F g[9], t[12], u[16];

    UNROLL
    for (int i = 0; i < 9; i++)
        g[i] = get(w, at + (size_t)(i * tap), lanes);
    UNROLL
    for (int i = 0; i < 3; i++)
        filter4(g[i], g[3 + i], g[6 + i], t + i, 3);
    UNROLL
    for (int i = 0; i < 4; i++)
        filter4(t[3 * i], t[3 * i + 1], t[3 * i + 2], u + 4 * i, 1);
    UNROLL
    for (int i = 0; i < 16; i++)
        f_store(out + i * next, u[i], lanes);
}

static void tile_filter(size_t n, const void *w, long tap, float *out, long next)
{
    SPAN(n, filter_at(w, i, tap, out + i, next, lanes););
}

INLINE void dw_at(const float *u, long next, float *dw, long tap, int lanes)
{
    F d[16], t[12], g[9];

    UNROLL
    for (int i = 0; i < 16; i++)
        d[i] = f_load(u + i * next, lanes);
    UNROLL
    for (int i = 0; i < 4; i++)
        dw3(d[i], d[4 + i], d[8 + i], d[12 + i], t + i, 4);
    UNROLL
    for (int i = 0; i < 3; i++)
        dw3(t[4 * i], t[4 * i + 1], t[4 * i + 2], t[4 * i + 3], g + 3 * i, 1);
    UNROLL
    for (int i = 0; i < 9; i++)
        f_store(dw + i * tap, g[i], lanes);
}

static void tile_dw(size_t n, const float *u, long next, float *dw, long tap)
{
    SPAN(n, dw_at(u + i, next, dw + i, tap, lanes););
}
