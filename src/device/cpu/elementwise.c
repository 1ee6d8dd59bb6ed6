/*
 * Everything of the cpu device but convolution, on a part that one thread owns. One text, compiled once per
 * instruction set with -DHVT_ISA=name and that set's flags; the arithmetic of the elementwise ops is
 * formula.h's.
 *
 * Matrices are walked in *wide rows*: a few matrix rows side by side, so that narrow or odd rows (16, 37, 3
 * channels) become a whole number of vectors, and channel i of a wide row is i % c. Constants per channel are
 * repeated to that width once per part, sums per wide column are folded to channels at its end. Rows wide
 * enough stay as they are and end in a masked vector. Several wide rows are worked on at a time, so that what
 * is per column (constants, running sums) is loaded once for all of them.
 *
 * Sums add whole blocks of rows first, then blocks, in an order that only the shape decides.
 */
#include "cpu_impl.h"
#include "elementwise.h"
#include "vec.h"

#include "device/formula.h"

#include <math.h>

enum {
    WIDE = 4 * VL,              /* rows below this width are joined */
    WIDE_MAX = (WIDE - 1) * VL, /* the widest that comes of it */
    BLOCK = 8                   /* wide rows summed before they are added to what was */
};

/* ---- spans ---- */

static void relu(size_t n, const float *x, float *y)
{
    SPAN(n, f_store(y + i, f_relu(f_load(x + i, lanes)), lanes););
}

static void relu_grad(size_t n, const float *y, const float *dy, float *dx, bool add)
{
    SPAN(n, F g = f_keep(f_load(y + i, lanes), f_load(dy + i, lanes)); if (add) g = f_load(dx + i, lanes) + g;
         f_store(dx + i, g, lanes););
}

static void add2(size_t n, const float *a, const float *b, float *y)
{
    SPAN(n, f_store(y + i, f_load(a + i, lanes) + f_load(b + i, lanes), lanes););
}

static void scale(size_t n, float s, const float *x, float *y, bool add)
{
    SPAN(n, F v = f_load(x + i, lanes) * s; if (add) v = f_load(y + i, lanes) + v; f_store(y + i, v, lanes););
}

INLINE void cast_from_to(size_t n, float s, const void *src, hvt_dtype st, void *dst, hvt_dtype dt)
{
    SPAN(n, f_store_as(dt, dst, i, f_load_as(st, src, i, lanes) * s, lanes););
}

INLINE void cast_from(size_t n, float s, const void *src, hvt_dtype st, void *dst, hvt_dtype dt)
{
    if (dt == HVT_F32)
        cast_from_to(n, s, src, st, dst, HVT_F32);
    else if (dt == HVT_F16)
        cast_from_to(n, s, src, st, dst, HVT_F16);
    else
        cast_from_to(n, s, src, st, dst, HVT_BF16);
}

static void cast(size_t n, float s, const void *src, hvt_dtype st, void *dst, hvt_dtype dt)
{
    if (st == HVT_F32)
        cast_from(n, s, src, HVT_F32, dst, dt);
    else if (st == HVT_F16)
        cast_from(n, s, src, HVT_F16, dst, dt);
    else
        cast_from(n, s, src, HVT_BF16, dst, dt);
}

/* Add along the tree as a binary counter does: part sums of 2^k leaves wait on the stack for their twin. */
INLINE F tree(hvt_dtype t, const void *const in[], int count, size_t at, int lanes)
{
    F stack[32], x = f_load_as(t, in[0], at, lanes);
    int depth = 0;

    if (count <= 2)
        return count == 2 ? x + f_load_as(t, in[1], at, lanes) : x;
    for (int k = 0; k < count; k++) {
        x = f_load_as(t, in[k], at, lanes);
        for (int bits = k; bits & 1; bits >>= 1)
            x = stack[--depth] + x;
        stack[depth++] = x;
    }
    x = stack[--depth];
    while (depth)
        x = stack[--depth] + x;
    return x;
}

INLINE void reduce_as(size_t first, size_t n, hvt_dtype t, const void *const in[], int count, void *out)
{
    SPAN(n, f_store_as(t, out, first + i, tree(t, in, count, first + i, lanes), lanes););
}

static void reduce(size_t first, size_t n, hvt_dtype t, const void *const in[], int count, void *out)
{
    if (t == HVT_F32)
        reduce_as(first, n, HVT_F32, in, count, out);
    else if (t == HVT_F16)
        reduce_as(first, n, HVT_F16, in, count, out);
    else
        reduce_as(first, n, HVT_BF16, in, count, out);
}

static void sgd(size_t first, size_t n, const hvt_sgd_args *a, const float *const g[], int ng, float *w,
                float *v)
{
    const sgd_consts k = {f_splat(a->scale), f_splat(a->weight_decay), f_splat(a->momentum),
                          f_splat(1 - a->dampening), f_splat(-a->lr)};
    const bool momentum = a->momentum != 0, fresh = a->first, nesterov = a->nesterov;

    w += first;
    v += momentum ? first : 0;
    SPAN(
        n, F x = f_load(w + i, lanes);
        F step = sgd_gradient(&k, tree(HVT_F32, (const void *const *)g, ng, first + i, lanes), x);
        if (momentum) {
            F u = fresh ? step : sgd_velocity(&k, step, f_load(v + i, lanes));

            f_store(v + i, u, lanes);
            step = nesterov ? sgd_nesterov(&k, step, u) : u;
        } f_store(w + i, sgd_step(&k, x, step), lanes););
}

/* ---- walking a matrix ---- */

static int gcd(int a, int b)
{
    return b ? gcd(b, a % b) : a;
}

/* matrix rows in a wide row */
static int row_step(int c)
{
    int step = VL / gcd(c, VL);

    if (c >= WIDE)
        return 1;
    return c * step >= WIDE ? step : step * ((WIDE + c * step - 1) / (c * step));
}

/* The longest run of real rows from `first` that lies in one piece: its first element, and its rows. */
INLINE size_t next_run(hvt_rows r, int c, size_t first, size_t end, size_t *ret_at)
{
    size_t block = first / r.real, within = first % r.real, rows = end - first;

    if (r.real == r.block) {
        *ret_at = first * c;
        return rows;
    }
    *ret_at = (block * r.block + within) * c;
    return rows < r.real - within ? rows : r.real - within;
}

/* x[c] repeated to the width of a wide row; x itself where that is the same */
INLINE const float *widen(const float *x, int c, int width, float *room)
{
    if (width == c || !x)
        return x;
    for (int i = 0; i < width; i += c)
        memcpy(room + i, x, (size_t)c * sizeof *x);
    return room;
}

/* Statements for every vector of `rows` wide rows and then of the `rest` elements (whole rows, fewer than a
 * wide one) that follow: they see `i` (column), `at` (element), `lanes`. `EACH` rows at a time share `per`.
 */
#define WALK(count, width, per, ...)                                                                         \
    do {                                                                                                     \
        size_t base = 0, all = (count);                                                                      \
                                                                                                             \
        for (; base + (size_t)(width)*4 <= all; base += (size_t)(width)*4)                                   \
            SPAN(                                                                                            \
                width, per for (size_t row = 0; row < 4; row++) {                                            \
                    const size_t at = base + row * (width) + i;                                              \
                    __VA_ARGS__                                                                              \
                });                                                                                          \
        for (; base < all; base += (width))                                                                  \
            SPAN(                                                                                            \
                all - base < (size_t)(width) ? all - base : (size_t)(width), per {                           \
                    const size_t at = base + i;                                                              \
                    __VA_ARGS__                                                                              \
                });                                                                                          \
    } while (0)

/* ---- batch norm ---- */

/* Take rows [count x width] into a running mean and sum of squared deviations of `before` rows: each block of
 * rows has its own mean first, so no digits are lost to a mean that is large against the deviation. */
INLINE void absorb(const float *x, size_t count, int width, size_t before, float *mean, float *m2)
{
    for (size_t first = 0; first < count; first += BLOCK, x += (size_t)BLOCK * width) {
        size_t rows = count - first < BLOCK ? count - first : BLOCK;
        float n = (float)(before + first), all = n + (float)rows;
        F part = f_splat(1 / (float)rows), to_mean = f_splat((float)rows / all),
          to_m2 = f_splat(n * (float)rows / all);

        SPAN(
            width, F v[BLOCK]; F sum; F off; F square; const F old = f_load(mean + i, lanes);
            if (rows == BLOCK) {
                for (int r = 0; r < BLOCK; r++)
                    v[r] = f_load(x + (size_t)r * width + i, lanes);
                sum = ((v[0] + v[1]) + (v[2] + v[3])) + ((v[4] + v[5]) + (v[6] + v[7]));
                sum = sum * part;
                off = v[0] - sum;
                square = off * off;
                for (int r = 1; r < BLOCK; r++) {
                    off = v[r] - sum;
                    square = f_fma(off, off, square);
                }
            } else {
                sum = f_zero();
                for (size_t r = 0; r < rows; r++)
                    sum = sum + f_load(x + r * width + i, lanes);
                sum = sum * part;
                square = f_zero();
                for (size_t r = 0; r < rows; r++) {
                    off = f_load(x + r * width + i, lanes) - sum;
                    square = f_fma(off, off, square);
                }
            } off = sum - old;
            f_store(mean + i, f_fma(off, to_mean, old), lanes);
            f_store(m2 + i, f_load(m2 + i, lanes) + f_fma(off * off, to_m2, square), lanes););
    }
}

static void bn_stats(hvt_rows rows, int c, const float *x, size_t first, size_t end, float *mean, float *m2)
{
    const int step = row_step(c), width = step * c;
    float wide_mean[WIDE_MAX], wide_m2[WIDE_MAX];
    float *wm = step > 1 ? wide_mean : mean, *w2 = step > 1 ? wide_m2 : m2;
    size_t wide = 0, narrow = 0; /* rows of each kind taken in */

    for (int i = 0; i < width; i++)
        wm[i] = w2[i] = 0;
    for (int i = 0; step > 1 && i < c; i++)
        mean[i] = m2[i] = 0;
    while (first < end) {
        size_t at, run = next_run(rows, c, first, end, &at), whole = run / step;

        absorb(x + at, whole, width, wide, wm, w2);
        wide += whole;
        first += run;
        run -= whole * step;
        if (run) {
            absorb(x + at + whole * width, run, c, narrow, mean, m2);
            narrow += run;
        }
    }
    /* fold the wide columns into the channels: each stands for `wide` rows */
    for (int s = 0; step > 1 && wide && s < step; s++) {
        float n = (float)(narrow + s * wide), all = n + (float)wide;

        for (int i = 0; i < c; i++) {
            float off = wm[s * c + i] - mean[i];

            mean[i] += off * ((float)wide / all);
            m2[i] += w2[s * c + i] + off * off * (n * (float)wide / all);
        }
    }
}

static void bn_join(int parts, const size_t *count, int c, const float *mean, const float *m2, double *sum64)
{
    double *m = sum64, *v = sum64 + c, n = 0;

    for (int i = 0; i < 2 * c; i++)
        sum64[i] = 0;
    for (int p = 0; p < parts; p++, mean += c, m2 += c) {
        double k = (double)count[p], all = n + k, to_mean = k / all, to_m2 = n * k / all;

        for (int i = 0; i < c; i++) {
            double off = mean[i] - m[i];

            m[i] += off * to_mean;
            v[i] += m2[i] + off * off * to_m2;
        }
        n = all;
    }
}

INLINE void apply(const hvt_bn_args *a, const float *mean, const float *sc, const float *beta, int width,
                  size_t start, size_t n, bool residual, bool rectify)
{
    const float *x = (const float *)a->x + start, *res = residual ? (const float *)a->residual + start : NULL;
    float *y = (float *)a->y + start;

    WALK(n, width, const F m = f_load(mean + i, lanes); const F s = f_load(sc + i, lanes);
         const F b = f_load(beta + i, lanes);, F v = bn_value(f_load(x + at, lanes), m, s, b);
         if (residual) v = v + f_load(res + at, lanes); f_store(y + at, rectify ? f_relu(v) : v, lanes););
}

static void bn_apply(const hvt_bn_args *a, hvt_bn_consts k, size_t first, size_t end)
{
    const int width = row_step(a->c) * a->c;
    float room[3][WIDE_MAX];
    const float *mean = widen(a->mean, a->c, width, room[0]), *sc = widen(k.scale, a->c, width, room[1]),
                *beta = widen(a->beta, a->c, width, room[2]);

    while (first < end) {
        size_t at, run = next_run(a->rows, a->c, first, end, &at), n = run * a->c;

        if (a->residual && a->relu)
            apply(a, mean, sc, beta, width, at, n, true, true);
        else if (a->residual)
            apply(a, mean, sc, beta, width, at, n, true, false);
        else if (a->relu)
            apply(a, mean, sc, beta, width, at, n, false, true);
        else
            apply(a, mean, sc, beta, width, at, n, false, false);
        first += run;
    }
}

/* Add up rows [count x width]: sum += dz, dot += dz * (x - mean); dz is dy, or its part where y > 0. Without
 * x only the sum. */
INLINE void gather_sums(const float *x, const float *y, const float *dy, size_t count, int width,
                        const float *mean, float *sum, float *dot, bool mask, bool with_x)
{
    for (size_t first = 0; first < count; first += BLOCK) {
        const size_t rows = count - first < BLOCK ? count - first : BLOCK, from = first * width;

        SPAN(
            width, F s = f_zero(); F d = f_zero(); const F m = with_x ? f_load(mean + i, lanes) : f_zero();
            for (size_t r = 0; r < rows; r++) {
                const size_t at = from + r * width + i;
                F dz = f_load(dy + at, lanes);

                if (mask)
                    dz = f_keep(f_load(y + at, lanes), dz);
                s = s + dz;
                if (with_x)
                    d = f_fma(dz, f_load(x + at, lanes) - m, d);
            } f_store(sum + i, f_load(sum + i, lanes) + s, lanes);
            if (with_x) f_store(dot + i, f_load(dot + i, lanes) + d, lanes););
    }
}

INLINE void part_sums(hvt_rows rows, int c, const float *x, const float *y, const float *dy,
                      const float *mean, size_t first, size_t end, float *sum, float *dot, bool mask,
                      bool with_x)
{
    const int step = row_step(c), width = step * c;
    float wide_sum[WIDE_MAX], wide_dot[WIDE_MAX], room[WIDE_MAX];
    float *ws = step > 1 ? wide_sum : sum, *wd = step > 1 ? wide_dot : dot;
    const float *wm = with_x ? widen(mean, c, width, room) : NULL;

    for (int i = 0; i < width; i++) {
        ws[i] = 0;
        if (with_x)
            wd[i] = 0;
    }
    for (int i = 0; step > 1 && i < c; i++) {
        sum[i] = 0;
        if (with_x)
            dot[i] = 0;
    }
    while (first < end) {
        size_t at, run = next_run(rows, c, first, end, &at), whole = run / step, rest = at + whole * width;

        gather_sums(with_x ? x + at : NULL, mask ? y + at : NULL, dy + at, whole, width, wm, ws, wd, mask,
                    with_x);
        first += run;
        run -= whole * step;
        if (run)
            gather_sums(with_x ? x + rest : NULL, mask ? y + rest : NULL, dy + rest, run, c, mean, sum, dot,
                        mask, with_x);
    }
    for (int s = 0; step > 1 && s < step; s++)
        for (int i = 0; i < c; i++) {
            sum[i] += ws[s * c + i];
            if (with_x)
                dot[i] += wd[s * c + i];
        }
}

static void bn_sums(const hvt_bn_grad_args *a, size_t first, size_t end, float *sum, float *dot)
{
    if (a->y)
        part_sums(a->rows, a->c, a->x, a->y, a->dy, a->mean, first, end, sum, dot, true, true);
    else
        part_sums(a->rows, a->c, a->x, NULL, a->dy, a->mean, first, end, sum, dot, false, true);
}

static void sums(hvt_rows rows, int c, const float *dy, size_t first, size_t end, float *sum)
{
    part_sums(rows, c, NULL, NULL, dy, NULL, first, end, sum, NULL, false, false);
}

INLINE void dx_run(const hvt_bn_grad_args *a, const float *mean, const float *sc, const float *share,
                   const float *slope, int width, size_t start, size_t n, bool mask)
{
    const float *x = (const float *)a->x + start, *y = mask ? (const float *)a->y + start : NULL,
                *dy = (const float *)a->dy + start;
    float *dx = (float *)a->dx + start, *res = a->dresidual ? (float *)a->dresidual + start : NULL;
    const bool add = a->add, add_res = a->add_residual;

    WALK(n, width, const F m = f_load(mean + i, lanes); const F s = f_load(sc + i, lanes);
         const F b = f_load(share + i, lanes); const F c = f_load(slope + i, lanes);
         , F dz = f_load(dy + at, lanes); if (mask) dz = f_keep(f_load(y + at, lanes), dz);
         F g = bn_dx(f_load(x + at, lanes), m, s, b, c, dz);
         if (res) f_store(res + at, add_res ? f_load(res + at, lanes) + dz : dz, lanes);
         f_store(dx + at, add ? f_load(dx + at, lanes) + g : g, lanes););
}

static void bn_dx_part(const hvt_bn_grad_args *a, hvt_bn_consts k, size_t first, size_t end)
{
    const int width = row_step(a->c) * a->c;
    float room[4][WIDE_MAX];
    const float *mean = widen(a->mean, a->c, width, room[0]), *sc = widen(k.scale, a->c, width, room[1]),
                *share = widen(k.share, a->c, width, room[2]), *slope = widen(k.slope, a->c, width, room[3]);

    while (first < end) {
        size_t at, run = next_run(a->rows, a->c, first, end, &at);

        if (a->y)
            dx_run(a, mean, sc, share, slope, width, at, run * a->c, true);
        else
            dx_run(a, mean, sc, share, slope, width, at, run * a->c, false);
        first += run;
    }
}

static void bn_moving_part(size_t n, float rate, float scaled, const float *moments, float *run)
{
    SPAN(n, f_store(run + i,
                    bn_moving(f_load(run + i, lanes), f_load(moments + i, lanes), f_splat(rate),
                              f_splat(1 - rate), f_splat(scaled)),
                    lanes););
}

/* ---- bias ---- */

static void bias(hvt_rows rows, int c, const float *b, float *y, size_t first, size_t end)
{
    const int width = row_step(c) * c;
    float room[WIDE_MAX];
    const float *wide = widen(b, c, width, room);

    while (first < end) {
        size_t start, run = next_run(rows, c, first, end, &start);
        float *to = y + start;

        WALK(run * c, width, const F v = f_load(wide + i, lanes);
             , f_store(to + at, f_load(to + at, lanes) + v, lanes););
        first += run;
    }
}

/* ---- loss ---- */

/* e^x for x <= 0: 2^n * e^r, |r| <= ln2/2, e^r by its Taylor polynomial to r^7 (error below one unit in the
 * last place). exp(0) is 1 exactly; below -87, where the result would be subnormal, it is 0; a NaN stays one.
 */
INLINE F exp_below_one(F x)
{
    const float magic = 0x1.8p23f; /* adding it rounds to an integer and leaves that in the low bits */
    F shifted = f_fma(x, f_splat(0x1.715476p0f), f_splat(magic)), n = shifted - magic;
    F r = f_fma(n, f_splat(-0x1.62e4p-1f), x), p = f_splat(1.0f / 5040);

    r = f_fma(n, f_splat(-0x1.7f7d1cp-20f), r);
    p = f_fma(p, r, f_splat(1.0f / 720));
    p = f_fma(p, r, f_splat(1.0f / 120));
    p = f_fma(p, r, f_splat(1.0f / 24));
    p = f_fma(p, r, f_splat(1.0f / 6));
    p = f_fma(p, r, f_splat(0.5f));
    p = f_fma(p, r, f_splat(1));
    p = f_fma(p, r, f_splat(1));
    p = (F)((I)p + (((I)shifted - (I)f_splat(magic)) << 23));
    p = f_select((I)(x < -87), f_zero(), p);
    return f_select((I)(x != x), x, p);
}

/* See xent_row of ref.c. Each row by itself, its lanes joined in one order. */
static void xent_row(const float *x, int classes, int label, float *dx, float *ret_loss, int32_t *ret_place)
{
    const F target = f_splat(x[label]);
    F max = f_splat(x[0]), poison = f_zero(), total = f_zero();
    I place = {0}, index = {0};
    float lanes_of[VL], top = x[0], bad = 0;
    double sum = 0;
    int count = 0;

    for (int l = 0; l < VL; l++)
        index[l] = l;
    SPAN(classes, const F v = f_load(x + i, lanes); const I here = index + (int)i;
         const I valid = (I)(here < classes); const I above = ~(I)(v <= target) & (I)(here != label);
         const I tie = (I)(v == target) & (I)(here < label);

         max = f_select((I)(v > max) & valid, v, max); poison = poison + v * 0;
         place = place - ((above | tie) & valid););
    for (int l = 0; l < VL; l++) {
        top = max[l] > top ? max[l] : top;
        bad += poison[l];
        count += place[l];
    }
    SPAN(classes, F e = exp_below_one(f_load(x + i, lanes) - top);
         e = f_select((I)(index + (int)i < classes), e, f_zero()); total = total + e;
         if (dx) f_store(dx + i, e, lanes););
    f_store(lanes_of, total, VL);
    for (int l = 0; l < VL; l++)
        sum += lanes_of[l];
    if (dx) {
        const F all = f_splat((float)sum);

        SPAN(classes, f_store(dx + i, f_load(dx + i, lanes) / all, lanes););
        dx[label] -= 1;
    }
    *ret_loss = (float)(log(sum) - ((double)x[label] - top)) + bad;
    *ret_place = count;
}

/* ---- pooling ---- */

static void max_forward(size_t n, const float *const in[], const uint8_t pos[], int count, float *y,
                        uint8_t *saved)
{
    SPAN(
        n, F best = f_load(in[0] + i, lanes); I place = i_splat(pos[0]); for (int k = 1; k < count; k++) {
            const F v = f_load(in[k] + i, lanes);
            const I wins = (I)(v > best) | (I)(v != v);

            best = f_select(wins, v, best);
            place = i_select(wins, i_splat(pos[k]), place);
        } f_store(y + i, best, lanes);
        i_store_bytes(saved + i, place, lanes););
}

static void max_backward(size_t n, const float *const dy[], const uint8_t *const saved[], const uint8_t pos[],
                         int count, float *dx, bool add)
{
    SPAN(
        n, F sum = f_zero(); for (int k = 0; k < count; k++) {
            const I chosen = (I)(i_load_bytes(saved[k] + i, lanes) == i_splat(pos[k]));

            sum = sum + f_select(chosen, f_load(dy[k] + i, lanes), f_zero());
        } if (add) sum = f_load(dx + i, lanes) + sum;
        f_store(dx + i, sum, lanes););
}

static void mean_forward(size_t n, const float *x, size_t step, int count, float part, float *y)
{
    SPAN(
        n, F sum = f_zero(); for (int first = 0; first < count; first += 16) {
            const int end = count - first < 16 ? count : first + 16;
            F some = f_zero();

            for (int k = first; k < end; k++)
                some = some + f_load(x + k * step + i, lanes);
            sum = sum + some;
        } f_store(y + i, sum * part, lanes););
}

/* ---- images ---- */

static void normalise(size_t n, const uint8_t *bytes, int c, const float *sc, const float *shift, float *out)
{
    int at = 0;

    SPAN(n, f_store(out + i,
                    f_fma(f_from_int(i_load_bytes(bytes + i, lanes)), f_load(sc + at, VL),
                          f_load(shift + at, VL)),
                    lanes);
         at = at + VL == c * VL ? 0 : at + VL;);
}

#define TABLE_OF(isa) hvt__elementwise_##isa
#define TABLE(isa)    TABLE_OF(isa)

extern const hvt_elementwise TABLE(HVT_ISA);

const hvt_elementwise TABLE(HVT_ISA) = {
    .vl = VL,
    .relu = relu,
    .relu_grad = relu_grad,
    .add = add2,
    .scale = scale,
    .cast = cast,
    .reduce = reduce,
    .sgd = sgd,
    .row_step = row_step,
    .bn_stats = bn_stats,
    .bn_join = bn_join,
    .bn_apply = bn_apply,
    .bn_sums = bn_sums,
    .bn_dx = bn_dx_part,
    .bn_moving = bn_moving_part,
    .bias = bias,
    .sums = sums,
    .xent_row = xent_row,
    .max_forward = max_forward,
    .max_backward = max_backward,
    .mean_forward = mean_forward,
    .normalise = normalise,
};
