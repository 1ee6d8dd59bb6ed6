/*
 * Everything of the cpu device but convolution, on a part that one thread owns. One text, compiled once per
 * instruction set with -DHVT_ISA=name and that set's flags; the arithmetic of the elementwise ops is
 * formula.h's.
 *
 * Matrices are walked in *wide rows*: a few matrix rows side by side, so that narrow or odd rows (16, 37, 3
 * channels) become a whole number of vectors, and channel i of a wide row is i % c. Constants per channel are
 * repeated to that width once per part, sums per wide column are folded to channels at its end. Rows wide
 * enough stay as they are and end in a masked vector.
 *
 * A function called ..._at does one vector of an op: `lanes` of its floats, VL of them in a loop's body.
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

INLINE void relu_grad_at(const float *y, const float *dy, float *dx, bool add, int lanes)
{
    F g = f_keep(f_load(y, lanes), f_load(dy, lanes));

    f_store(dx, add ? f_load(dx, lanes) + g : g, lanes);
}

static void relu_grad(size_t n, const float *y, const float *dy, float *dx, bool add)
{
    SPAN(n, relu_grad_at(y + i, dy + i, dx + i, add, lanes););
}

static void add2(size_t n, const float *a, const float *b, float *y)
{
    SPAN(n, f_store(y + i, f_load(a + i, lanes) + f_load(b + i, lanes), lanes););
}

INLINE void scale_at(F s, const float *x, float *y, bool add, int lanes)
{
    F v = f_load(x, lanes) * s;

    f_store(y, add ? f_load(y, lanes) + v : v, lanes);
}

static void scale(size_t n, float s, const float *x, float *y, bool add)
{
    const F factor = f_splat(s);

    SPAN(n, scale_at(factor, x + i, y + i, add, lanes););
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

INLINE void sgd_at(const sgd_consts *k, const hvt_sgd_args *a, const float *const g[], int ng, size_t at,
                   float *w, float *v, int lanes)
{
    const F old = f_load(w + at, lanes);
    F step = sgd_gradient(k, tree(HVT_F32, (const void *const *)g, ng, at, lanes), old);

    if (a->momentum != 0) {
        const F u = a->first ? step : sgd_velocity(k, step, f_load(v + at, lanes));

        f_store(v + at, u, lanes);
        step = a->nesterov ? sgd_nesterov(k, step, u) : u;
    }
    f_store(w + at, sgd_step(k, old, step), lanes);
}

static void sgd(size_t first, size_t n, const hvt_sgd_args *args, const float *const g[], int ng, float *w,
                float *v)
{
    const hvt_sgd_args a = *args; /* a copy, which no store through w or v can change */
    const sgd_consts k = {f_splat(a.scale), f_splat(a.weight_decay), f_splat(a.momentum),
                          f_splat(1 - a.dampening), f_splat(-a.lr)};

    SPAN(n, sgd_at(&k, &a, g, ng, first + i, w, v, lanes););
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

/* The longest run of real rows from `first` that lies in one piece: its first row in the matrix, and its
 * rows. */
INLINE size_t next_run(hvt_rows r, size_t first, size_t end, size_t *ret_row)
{
    size_t block = first / r.real, within = first % r.real, rows = end - first;

    if (r.real == r.block) {
        *ret_row = first;
        return rows;
    }
    *ret_row = block * r.block + within;
    return rows < r.real - within ? rows : r.real - within;
}

/* x[c] repeated to the width of a wide row; x itself where that is the same */
INLINE const float *widen(const float *x, int c, int width, float *room)
{
    if (width <= c || !x)
        return x;
    for (int i = 0; i < width; i += c)
        memcpy(room + i, x, (size_t)c * sizeof *x);
    return room;
}

/* What a part's rows are made of: `rows` rows of `width` elements, `ld` apart, from element `at` on. */
typedef struct piece {
    size_t at, rows, ld, width;
} piece;

/* Cut a part into pieces: for each run of rows the whole wide rows, and what is left, fewer matrix rows than
 * make a wide one. Statements see the piece as `p`; `wide` tells which kind it is. */
#define PIECES(r, c, part, step, ...)                                                                        \
    for (size_t row_ = (part).first, start_, run_; row_ < (part).end; row_ += run_) {                        \
        run_ = next_run(r, row_, (part).end, &start_);                                                       \
        if (run_ >= (size_t)(step)) {                                                                        \
            const size_t w_ = (step) > 1 ? (size_t)(step) * (c) : (size_t)(part).cols;                       \
            const piece p = {start_ * (c) + (part).col, run_ / (step), (size_t)(step) * (c), w_};            \
            const bool wide = true;                                                                          \
            __VA_ARGS__                                                                                      \
        }                                                                                                    \
        if (run_ % (step)) {                                                                                 \
            const piece p = {(start_ + run_ / (step) * (step)) * (c), run_ % (step), (c), (c)};              \
            const bool wide = false;                                                                         \
            __VA_ARGS__                                                                                      \
        }                                                                                                    \
    }

/* A statement for every vector of a piece: it sees `i` (column), `at` (element), `lanes`. */
#define WALK(p, ...)                                                                                         \
    for (size_t from_ = (p).at, end_ = from_ + (p).rows * (p).ld; from_ < end_; from_ += (p).ld)             \
    SPAN((p).width, const size_t at = from_ + i; __VA_ARGS__)

/* ---- batch norm ---- */

/* Take `rows` <= BLOCK rows into a running mean and sum of squared deviations. The block has a mean of its
 * own first, so no digits are lost to a mean that is large against the deviation. */
INLINE void absorb_at(const float *x, size_t rows, size_t ld, F part, F to_mean, F to_m2, float *mean,
                      float *m2, int lanes)
{
    const F old = f_load(mean, lanes);
    F sum = f_zero(), square = f_zero(), off;

    if (rows == BLOCK) {
        F v[BLOCK];

        for (int r = 0; r < BLOCK; r++)
            v[r] = f_load(x + (size_t)r * ld, lanes);
        sum = ((v[0] + v[1]) + (v[2] + v[3])) + ((v[4] + v[5]) + (v[6] + v[7]));
        sum = sum * part;
        for (int r = 0; r < BLOCK; r++) {
            off = v[r] - sum;
            square = f_fma(off, off, square);
        }
    } else {
        for (size_t r = 0; r < rows; r++)
            sum = sum + f_load(x + r * ld, lanes);
        sum = sum * part;
        for (size_t r = 0; r < rows; r++) {
            off = f_load(x + r * ld, lanes) - sum;
            square = f_fma(off, off, square);
        }
    }
    off = sum - old;
    f_store(mean, f_fma(off, to_mean, old), lanes);
    f_store(m2, f_load(m2, lanes) + f_fma(off * off, to_m2, square), lanes);
}

/* Take a piece into the statistics of `before` rows. */
INLINE void absorb(const float *x, piece p, size_t before, float *mean, float *m2)
{
    for (size_t first = 0; first < p.rows; first += BLOCK) {
        const size_t rows = p.rows - first < BLOCK ? p.rows - first : BLOCK;
        const float *from = x + p.at + first * p.ld;
        const float n = (float)(before + first), all = n + (float)rows;
        const F part = f_splat(1 / (float)rows), to_mean = f_splat((float)rows / all),
                to_m2 = f_splat(n * (float)rows / all);

        SPAN(p.width, absorb_at(from + i, rows, p.ld, part, to_mean, to_m2, mean + i, m2 + i, lanes););
    }
}

static void clear(float *x, int n)
{
    memset(x, 0, (size_t)n * sizeof *x);
}

static void bn_stats(hvt_rows rows, int c, const float *x, hvt_part part, float *mean, float *m2)
{
    const int step = row_step(c);
    float wide_mean[WIDE_MAX], wide_m2[WIDE_MAX];
    float *wm = step > 1 ? wide_mean : mean, *w2 = step > 1 ? wide_m2 : m2;
    size_t taken = 0, narrow = 0; /* rows of each kind */

    clear(mean, part.cols);
    clear(m2, part.cols);
    if (step > 1) {
        clear(wm, step * c);
        clear(w2, step * c);
    }
    PIECES(rows, c, part, step, {
        if (wide) {
            absorb(x, p, taken, wm, w2);
            taken += p.rows;
        } else {
            absorb(x, p, narrow, mean, m2);
            narrow += p.rows;
        }
    })
    /* fold the wide columns into the channels: each stands for `taken` rows */
    for (int s = 0; step > 1 && taken && s < step; s++) {
        float n = (float)(narrow + s * taken), all = n + (float)taken;

        for (int i = 0; i < c; i++) {
            float off = wm[s * c + i] - mean[i];

            mean[i] += off * ((float)taken / all);
            m2[i] += w2[s * c + i] + off * off * (n * (float)taken / all);
        }
    }
}

static void bn_join(int parts, const size_t *count, int cols, const float *mean, const float *m2,
                    double *ret_mean, double *ret_m2)
{
    double n = 0;

    for (int i = 0; i < cols; i++)
        ret_mean[i] = ret_m2[i] = 0;
    for (int p = 0; p < parts; p++, mean += cols, m2 += cols) {
        double k = (double)count[p], all = n + k, to_mean = k / all, to_m2 = n * k / all;

        for (int i = 0; i < cols; i++) {
            double off = mean[i] - ret_mean[i];

            ret_mean[i] += off * to_mean;
            ret_m2[i] += m2[i] + off * off * to_m2;
        }
        n = all;
    }
}

static void bn_finish(const hvt_bn_args *a, size_t rows, const double *mean, const double *m2, int col,
                      int cols, hvt_bn_consts k)
{
    const double part = 1 / (rows ? (double)rows : 1), part2 = 1 / (rows > 1 ? (double)rows - 1 : 1),
                 eps = a->eps;
    const float weight = rows < 2 ? 0 : a->weight, *restrict gamma = a->gamma + col;
    float *restrict to_mean = a->mean + col, *restrict to_rstd = a->rstd + col,
                    *restrict moment = a->moments + col, *restrict moment2 = moment + a->c,
                    *restrict scaled = k.scale + col;

    for (int i = 0; i < cols; i++) {
        float rstd = (float)(1 / sqrt(m2[i] * part + eps));

        to_mean[i] = (float)mean[i];
        to_rstd[i] = rstd;
        scaled[i] = gamma[i] * rstd;
        moment[i] = weight * (float)mean[i];
        moment2[i] = weight * (float)(m2[i] * part2);
    }
}

INLINE void apply_at(const float *x, const float *res, float *y, F mean, F sc, F beta, bool rectify,
                     int lanes)
{
    F v = bn_value(f_load(x, lanes), mean, sc, beta);

    if (res)
        v = v + f_load(res, lanes);
    f_store(y, rectify ? f_relu(v) : v, lanes);
}

INLINE void apply(const hvt_bn_args *a, const float *mean, const float *sc, const float *beta, piece p,
                  bool residual, bool rectify)
{
    const float *x = a->x, *res = a->residual;
    float *y = a->y;

    WALK(p, apply_at(x + at, residual ? res + at : NULL, y + at, f_load(mean + i, lanes),
                     f_load(sc + i, lanes), f_load(beta + i, lanes), rectify, lanes););
}

static void bn_apply(const hvt_bn_args *a, hvt_bn_consts k, hvt_part part)
{
    const int step = row_step(a->c), width = step * a->c;
    float room[3][WIDE_MAX];
    const float *mean = widen(a->mean + part.col, a->c, width, room[0]),
                *sc = widen(k.scale + part.col, a->c, width, room[1]),
                *beta = widen(a->beta + part.col, a->c, width, room[2]);

    PIECES(a->rows, a->c, part, step, {
        (void)wide;
        if (a->residual && a->relu)
            apply(a, mean, sc, beta, p, true, true);
        else if (a->residual)
            apply(a, mean, sc, beta, p, true, false);
        else if (a->relu)
            apply(a, mean, sc, beta, p, false, true);
        else
            apply(a, mean, sc, beta, p, false, false);
    })
}

/* Where relu's mask comes from: there is none; forward's output; or it is taken from x again, which saves
 * reading that (the same arithmetic gives the same sign). */
typedef enum mask { MASK_NONE, MASK_Y, MASK_X } mask;

static mask mask_of(const hvt_bn_grad_args *a)
{
    return !a->y ? MASK_NONE : a->beta ? MASK_X : MASK_Y;
}

/* What backward reads and writes; members that a kind does not need are NULL. */
typedef struct grad {
    const float *x, *y, *dy;
    float *keep, *dx, *res;
    const float *mean, *scale, *beta, *share, *slope; /* per column */
} grad;

/* dz: what relu let through of dy */
INLINE F masked(const grad *g, size_t i, size_t at, F x, mask how, int lanes)
{
    const F dz = f_load(g->dy + at, lanes);

    if (how == MASK_Y)
        return f_keep(f_load(g->y + at, lanes), dz);
    if (how == MASK_X)
        return f_keep(
            bn_value(x, f_load(g->mean + i, lanes), f_load(g->scale + i, lanes), f_load(g->beta + i, lanes)),
            dz);
    return dz;
}

/* sum += dz, dot += dz * (x - mean) over `rows` rows; without x only the sum. */
INLINE void sums_at(const grad *g, size_t rows, size_t ld, size_t i, size_t at, float *sum, float *dot,
                    mask how, bool with_x, int lanes)
{
    const F mean = with_x ? f_load(g->mean + i, lanes) : f_zero();
    F s = f_zero(), d = f_zero();

    for (size_t r = 0; r < rows; r++, at += ld) {
        const F x = with_x ? f_load(g->x + at, lanes) : f_zero(), dz = masked(g, i, at, x, how, lanes);

        if (g->keep)
            f_store(g->keep + at, dz, lanes);
        s = s + dz;
        if (with_x)
            d = f_fma(dz, x - mean, d);
    }
    f_store(sum + i, f_load(sum + i, lanes) + s, lanes);
    if (with_x)
        f_store(dot + i, f_load(dot + i, lanes) + d, lanes);
}

INLINE void gather_sums(const grad *g, piece p, float *sum, float *dot, mask how, bool with_x)
{
    for (size_t first = 0; first < p.rows; first += BLOCK) {
        const size_t rows = p.rows - first < BLOCK ? p.rows - first : BLOCK, from = p.at + first * p.ld;

        SPAN(p.width, sums_at(g, rows, p.ld, i, from + i, sum, dot, how, with_x, lanes););
    }
}

INLINE void part_sums(hvt_rows rows, int c, const grad *whole, hvt_part part, float *sum, float *dot,
                      mask how, bool with_x)
{
    const int step = row_step(c), width = step * c;
    float wide_sum[WIDE_MAX], wide_dot[WIDE_MAX], room[3][WIDE_MAX];
    float *ws = step > 1 ? wide_sum : sum, *wd = step > 1 ? wide_dot : dot;
    grad g = *whole;

    if (with_x)
        g.mean = widen(g.mean + part.col, c, width, room[0]);
    if (how == MASK_X) {
        g.scale = widen(g.scale + part.col, c, width, room[1]);
        g.beta = widen(g.beta + part.col, c, width, room[2]);
    }
    clear(sum, part.cols);
    if (with_x)
        clear(dot, part.cols);
    if (step > 1) {
        clear(ws, width);
        clear(wd, width);
    }
    PIECES(rows, c, part, step, gather_sums(&g, p, wide ? ws : sum, wide ? wd : dot, how, with_x);)
    for (int s = 0; step > 1 && s < step; s++)
        for (int i = 0; i < c; i++) {
            sum[i] += ws[s * c + i];
            if (with_x)
                dot[i] += wd[s * c + i];
        }
}

static void bn_sums(const hvt_bn_grad_args *a, hvt_bn_consts k, hvt_part part, bool keep, float *sum,
                    float *dot)
{
    const grad g = {.x = a->x,
                    .y = a->y,
                    .dy = a->dy,
                    .keep = keep ? a->dresidual : NULL,
                    .mean = a->mean,
                    .scale = k.scale,
                    .beta = a->beta};

    switch (mask_of(a)) {
    case MASK_NONE:
        part_sums(a->rows, a->c, &g, part, sum, dot, MASK_NONE, true);
        break;
    case MASK_Y:
        part_sums(a->rows, a->c, &g, part, sum, dot, MASK_Y, true);
        break;
    case MASK_X:
        part_sums(a->rows, a->c, &g, part, sum, dot, MASK_X, true);
        break;
    }
}

static void sums(hvt_rows rows, int c, const float *dy, hvt_part part, float *sum)
{
    const grad g = {.dy = dy};

    part_sums(rows, c, &g, part, sum, NULL, MASK_NONE, false);
}

static void bn_grad_finish(const hvt_bn_grad_args *a, size_t rows, int parts, const float *sum,
                           const float *dot, int col, int cols, hvt_bn_consts k)
{
    enum { SOME = 64 }; /* channels at a time: their sums stay in registers or close */
    const double part = 1 / (rows ? (double)rows : 1);

    for (int first = 0; first < cols; first += SOME) {
        const int count = cols - first < SOME ? cols - first : SOME;
        double s[SOME] = {0}, d[SOME] = {0};

        for (int p = 0; p < parts; p++)
            for (int i = 0; i < count; i++) {
                s[i] += sum[(size_t)p * cols + first + i];
                d[i] += dot[(size_t)p * cols + first + i];
            }
        for (int i = 0; i < count; i++) {
            const int c = col + first + i;
            const double rstd = a->rstd[c];

            a->dbeta[c] = (float)s[i];
            a->dgamma[c] = (float)(d[i] * rstd);
            k.share[c] = (float)(s[i] * part);
            k.slope[c] = (float)(d[i] * rstd * rstd * part);
        }
    }
}

INLINE void dx_at(const grad *g, size_t i, size_t at, mask how, bool add, bool add_res, int lanes)
{
    const F x = f_load(g->x + at, lanes), dz = masked(g, i, at, x, how, lanes);
    const F dx = bn_dx(x, f_load(g->mean + i, lanes), f_load(g->scale + i, lanes),
                       f_load(g->share + i, lanes), f_load(g->slope + i, lanes), dz);

    if (g->res)
        f_store(g->res + at, add_res ? f_load(g->res + at, lanes) + dz : dz, lanes);
    f_store(g->dx + at, add ? f_load(g->dx + at, lanes) + dx : dx, lanes);
}

INLINE void dx_piece(const grad *g, piece p, mask how, bool add, bool add_res)
{
    WALK(p, dx_at(g, i, at, how, add, add_res, lanes););
}

static void bn_dx_part(const hvt_bn_grad_args *a, hvt_bn_consts k, hvt_part part)
{
    const int step = row_step(a->c), width = step * a->c, col = part.col;
    const mask how = mask_of(a);
    float room[5][WIDE_MAX];
    const grad g = {.x = a->x,
                    .y = a->y,
                    .dy = a->dy,
                    .dx = a->dx,
                    .res = a->dresidual,
                    .mean = widen(a->mean + col, a->c, width, room[0]),
                    .scale = widen(k.scale + col, a->c, width, room[1]),
                    .beta = how == MASK_X ? widen(a->beta + col, a->c, width, room[2]) : NULL,
                    .share = widen(k.share + col, a->c, width, room[3]),
                    .slope = widen(k.slope + col, a->c, width, room[4])};

    PIECES(a->rows, a->c, part, step, {
        (void)wide;
        if (how == MASK_NONE)
            dx_piece(&g, p, MASK_NONE, a->add, a->add_residual);
        else if (how == MASK_Y)
            dx_piece(&g, p, MASK_Y, a->add, a->add_residual);
        else
            dx_piece(&g, p, MASK_X, a->add, a->add_residual);
    })
}

static void bn_moving_part(size_t n, float rate, float scaled, const float *moments, float *run)
{
    SPAN(n, f_store(run + i,
                    bn_moving(f_load(run + i, lanes), f_load(moments + i, lanes), f_splat(rate),
                              f_splat(1 - rate), f_splat(scaled)),
                    lanes););
}

/* ---- bias ---- */

static void bias(hvt_rows rows, int c, const float *b, float *y, hvt_part part)
{
    const int step = row_step(c);
    float room[WIDE_MAX];
    const float *each = widen(b + part.col, c, step * c, room);

    PIECES(rows, c, part, step, {
        (void)wide;
        WALK(p, f_store(y + at, f_load(y + at, lanes) + f_load(each + i, lanes), lanes););
    })
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
    p = (F)((U)p + (((U)shifted - (U)f_splat(magic)) << 23));
    p = f_select((I)(x < -87), f_zero(), p);
    return f_select((I)(x != x), x, p);
}

/* What a row's first pass finds, lane by lane. */
typedef struct xent_scan {
    F max, poison;
    I place;
} xent_scan;

/* `index`: the classes of these lanes. A NaN counts as larger than the label's logit. */
INLINE void scan_at(const float *x, I index, int classes, int label, F target, xent_scan *s, int lanes)
{
    const F v = f_load(x, lanes);
    const I valid = (I)(index < classes), larger = ~(I)(v <= target) & (I)(index != label),
            tie = (I)(v == target) & (I)(index < label);

    s->max = f_select((I)(v > s->max) & valid, v, s->max);
    s->poison = s->poison + v * 0; /* NaN as soon as a logit is not finite */
    s->place = s->place - ((larger | tie) & valid);
}

INLINE F exp_at(const float *x, I index, int classes, F max, float *dx, int lanes)
{
    const F e = f_select((I)(index < classes), exp_below_one(f_load(x, lanes) - max), f_zero());

    if (dx)
        f_store(dx, e, lanes);
    return e;
}

/* See xent_row of ref.c. Each row by itself, its lanes joined in one order. */
static void xent_row(const float *x, int classes, int label, float *dx, float *ret_loss, int32_t *ret_place)
{
    const F target = f_splat(x[label]);
    xent_scan s = {f_splat(x[0]), f_zero(), {0}};
    F total = f_zero();
    I first = {0};
    float max = x[0], poison = 0;
    double sum = 0;
    int place = 0;

    for (int l = 0; l < VL; l++)
        first[l] = l;
    SPAN(classes, scan_at(x + i, first + (int)i, classes, label, target, &s, lanes););
    for (int l = 0; l < VL; l++) {
        max = s.max[l] > max ? s.max[l] : max;
        poison += s.poison[l];
        place += s.place[l];
    }
    SPAN(classes,
         total = total + exp_at(x + i, first + (int)i, classes, f_splat(max), dx ? dx + i : NULL, lanes););
    for (int l = 0; l < VL; l++)
        sum += total[l];
    if (dx) {
        const F all = f_splat((float)sum);

        SPAN(classes, f_store(dx + i, f_load(dx + i, lanes) / all, lanes););
        dx[label] -= 1;
    }
    *ret_loss = (float)(log(sum) - ((double)x[label] - max)) + poison;
    *ret_place = place;
}

/* ---- pooling ---- */

/* Later pixels win only if larger; a NaN wins over all before it. */
INLINE void max_forward_at(const float *const in[], const uint8_t pos[], int count, size_t i, float *y,
                           uint8_t *saved, int lanes)
{
    F best = f_load(in[0] + i, lanes);
    I place = i_splat(pos[0]);

    for (int k = 1; k < count; k++) {
        const F v = f_load(in[k] + i, lanes);
        const I wins = (I)(v > best) | (I)(v != v);

        best = f_select(wins, v, best);
        place = i_select(wins, i_splat(pos[k]), place);
    }
    f_store(y + i, best, lanes);
    i_store_bytes(saved + i, place, lanes);
}

static void max_forward(size_t n, const float *const in[], const uint8_t pos[], int count, float *y,
                        uint8_t *saved)
{
    SPAN(n, max_forward_at(in, pos, count, i, y, saved, lanes););
}

INLINE void max_backward_at(const float *const dy[], const uint8_t *const saved[], const uint8_t pos[],
                            int count, size_t i, float *dx, bool add, int lanes)
{
    F sum = f_zero();

    for (int k = 0; k < count; k++) {
        const I chosen = (I)(i_load_bytes(saved[k] + i, lanes) == i_splat(pos[k]));

        sum = sum + f_select(chosen, f_load(dy[k] + i, lanes), f_zero());
    }
    f_store(dx + i, add ? f_load(dx + i, lanes) + sum : sum, lanes);
}

static void max_backward(size_t n, const float *const dy[], const uint8_t *const saved[], const uint8_t pos[],
                         int count, float *dx, bool add)
{
    SPAN(n, max_backward_at(dy, saved, pos, count, i, dx, add, lanes););
}

/* Sixteen pixels at a time, so that the sum of many keeps its digits. */
INLINE F mean_at(const float *x, size_t step, int count, int lanes)
{
    F sum = f_zero();

    for (int first = 0; first < count; first += 16) {
        const int end = count - first < 16 ? count : first + 16;
        F some = f_zero();

        for (int k = first; k < end; k++)
            some = some + f_load(x + k * step, lanes);
        sum = sum + some;
    }
    return sum;
}

static void mean_forward(size_t n, const float *x, size_t step, int count, float part, float *y)
{
    SPAN(n, f_store(y + i, mean_at(x + i, step, count, lanes) * part, lanes););
}

/* ---- images ---- */

INLINE void normalise_at(const uint8_t *bytes, const float *sc, const float *shift, float *out, int lanes)
{
    f_store(out, f_fma(f_from_int(i_load_bytes(bytes, lanes)), f_load(sc, VL), f_load(shift, VL)), lanes);
}

static void normalise(size_t n, const uint8_t *bytes, int c, const float *sc, const float *shift, float *out)
{
    int at = 0;

    SPAN(n, normalise_at(bytes + i, sc + at, shift + at, out + i, lanes);
         at = at + VL < c * VL ? at + VL : 0;);
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
    .bn_finish = bn_finish,
    .bn_grad_finish = bn_grad_finish,
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
