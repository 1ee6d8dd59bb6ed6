/*
 * Kernels on floats, bytes and several types at once, each on a part that one thread owns; those on
 * activations are in typed_tmpl.c. One source, compiled once per instruction set with -DHVT_ISA=name and that
 * set's flags. Elementwise arithmetic is formula.h's.
 */
#include "device/cpu/cpu_impl.h"
#include "device/cpu/elementwise.h"
#include "vec.h"

#include "device/formula.h"
#include "device/functions.h"
#include "device/step.h"

#include <math.h>

INLINE void sgd_at(const sgd_consts *k, const hvt_sgd_args *a, bool fresh, const float *const g[], int ng,
                   size_t at, float *w, float *v, hvt_dtype copy, int lanes)
{
    const F old = f_load(w + at, lanes);
    F step = sgd_gradient(k, tree(HVT_F32, (const void *const *)g, ng, at, lanes), old);

    if (a->momentum != 0) {
        const F u = fresh ? step : sgd_velocity(k, step, f_load(v + at, lanes));

        f_store(v + at, u, lanes);
        step = a->nesterov ? sgd_nesterov(k, step, u) : u;
    }
    step = sgd_step(k, old, step);
    f_store(w + at, step, lanes);
    if (copy != HVT_F32)
        f_store_as(copy, a->copy, at, step, lanes);
}

static void sgd(size_t first, size_t n, const hvt_sgd_args *args, const float *const g[], int ng, float *w,
                float *v)
{
    const hvt_sgd_args a = *args; /* a copy that stores to w and v cannot alias */
    const bool fresh = a.step->fresh;
    const sgd_consts k = {f_splat(a.step->grad_scale), f_splat(a.weight_decay), f_splat(a.momentum),
                          f_splat(1 - a.dampening), f_splat(-a.step->lr)};

    if (!a.copy)
        SPAN(n, sgd_at(&k, &a, fresh, g, ng, first + i, w, v, HVT_F32, lanes););
    else if (a.copy_type == HVT_F16)
        SPAN(n, sgd_at(&k, &a, fresh, g, ng, first + i, w, v, HVT_F16, lanes););
    else
        SPAN(n, sgd_at(&k, &a, fresh, g, ng, first + i, w, v, HVT_BF16, lanes););
}

INLINE void adam_at(const adam_consts *k, const hvt_adam_args *a, bool fresh, const float *const g[], int ng,
                    size_t at, float *w, float *m, float *v, hvt_dtype copy, int lanes)
{
    const F old = f_load(w + at, lanes);
    const F grad = adam_gradient(k, tree(HVT_F32, (const void *const *)g, ng, at, lanes), old);
    const F mean = adam_mean(k, grad, fresh ? f_zero() : f_load(m + at, lanes));
    const F square = adam_square(k, grad, fresh ? f_zero() : f_load(v + at, lanes));
    const F now = adam_step(k, old, mean, square);

    f_store(m + at, mean, lanes);
    f_store(v + at, square, lanes);
    f_store(w + at, now, lanes);
    if (copy != HVT_F32)
        f_store_as(copy, a->copy, at, now, lanes);
}

static void adam(size_t first, size_t n, const hvt_adam_args *args, const float *const g[], int ng, float *w,
                 float *m, float *v)
{
    const hvt_adam_args a = *args; /* a copy that stores cannot alias */
    const bool fresh = a.step->fresh;
    const hvt__adam_numbers x = hvt__adam_numbers_of(&a);
    const adam_consts k = {f_splat(x.scale),      f_splat(x.decay), f_splat(x.keep1),
                           f_splat(x.beta2),      f_splat(x.keep2), f_splat(x.shrink),
                           f_splat(x.minus_rate), f_splat(x.root),  f_splat(x.eps)};

    if (!a.copy)
        SPAN(n, adam_at(&k, &a, fresh, g, ng, first + i, w, m, v, HVT_F32, lanes););
    else if (a.copy_type == HVT_F16)
        SPAN(n, adam_at(&k, &a, fresh, g, ng, first + i, w, m, v, HVT_F16, lanes););
    else
        SPAN(n, adam_at(&k, &a, fresh, g, ng, first + i, w, m, v, HVT_BF16, lanes););
}

static void ema(size_t n, float share, const float *w, float *to)
{
    if (share == 1)
        SPAN(n, f_store(to + i, f_load(w + i, lanes), lanes););
    else
        SPAN(n,
             f_store(to + i, ema_next(f_splat(share), f_load(w + i, lanes), f_load(to + i, lanes)), lanes););
}

/* Searches block by block: x * 0 is NaN exactly if x is not finite, and a sum propagates it. */
static size_t first_bad(size_t n, const float *g)
{
    enum { STEP = 4096 };

    for (size_t at = 0; at < n; at += STEP) {
        const size_t m = n - at < STEP ? n - at : STEP;
        F poison = f_zero();
        float sum = 0;

        SPAN(m, poison = poison + f_load(g + at + i, lanes) * 0;);
        for (int l = 0; l < VL; l++)
            sum += poison[l];
        for (size_t i = at; sum != 0 && i < at + m; i++)
            if (g[i] * 0 != 0)
                return i;
    }
    return n;
}

static void bn_join(int parts, size_t stride, size_t step, size_t rows, int cols, const float *mean,
                    const float *m2, double *ret_mean, double *ret_m2)
{
    double n = 0;

    for (int i = 0; i < cols; i++)
        ret_mean[i] = ret_m2[i] = 0;
    for (int p = 0; p < parts; p++, mean += stride, m2 += stride) {
        double k = (double)(p < parts - 1 ? step : rows - p * step), all = n + k, to_mean = k / all,
               to_m2 = n * k / all;

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

static void bn_grad_finish(const hvt_bn_grad_args *a, size_t rows, int parts, size_t stride, const float *sum,
                           const float *dot, int col, int cols, hvt_bn_consts k)
{
    enum { SOME = 64 }; /* channels at a time: their sums stay in registers or close */
    const double part = 1 / (rows ? (double)rows : 1);

    for (int first = 0; first < cols; first += SOME) {
        const int count = cols - first < SOME ? cols - first : SOME;
        double s[SOME] = {0}, d[SOME] = {0};

        for (int p = 0; p < parts; p++)
            for (int i = 0; i < count; i++) {
                s[i] += sum[(size_t)p * stride + first + i];
                d[i] += dot[(size_t)p * stride + first + i];
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

static void bn_running_part(size_t n, float rate, float scaled, const float *moments, float *run)
{
    SPAN(n, f_store(run + i,
                    bn_running(f_load(run + i, lanes), f_load(moments + i, lanes), f_splat(rate),
                               f_splat(1 - rate), f_splat(scaled)),
                    lanes););
}

INLINE void normalise_at(const uint8_t *bytes, const float *sc, const float *shift, float *out, int lanes,
                         bool stream)
{
    const F x = f_fma(f_from_int(i_load_bytes(bytes, lanes)), f_load(sc, VL), f_load(shift, VL));

    if (stream && lanes == VL)
        f_stream(out, x);
    else
        f_store(out, x, lanes);
}

static void normalise(size_t n, const uint8_t *bytes, int c, const float *sc, const float *shift, float *out,
                      bool stream)
{
    int at = 0;

    if (stream && (uintptr_t)out % sizeof(F) == 0)
        SPAN(n, normalise_at(bytes + i, sc + at, shift + at, out + i, lanes, true);
             at = at + VL < c * VL ? at + VL : 0;);
    else
        SPAN(n, normalise_at(bytes + i, sc + at, shift + at, out + i, lanes, false);
             at = at + VL < c * VL ? at + VL : 0;);
}

static void normalise_floats(size_t n, const float *x, int c, const float *sc, const float *shift, float *out)
{
    int at = 0;

    SPAN(n, f_store(out + i, f_fma(f_load(x + i, lanes), f_load(sc + at, VL), f_load(shift + at, VL)), lanes);
         at = at + VL < c * VL ? at + VL : 0;);
}

#ifdef __clang__
#define MIRROR(x, ...) __builtin_shufflevector(x, x, __VA_ARGS__)
#else
#define MIRROR(x, ...) __builtin_shuffle(x, (bytes_16){__VA_ARGS__})
#endif
typedef uint8_t bytes_16 __attribute__((vector_size(16)));

/* Reverses five pixels at a time; a byte of the pixel before them is stored, too, and then overwritten. */
static void mirror(int count, const uint8_t *in, uint8_t *out)
{
    bytes_16 x;

    for (; count > 5; count -= 5, out += 15) {
        memcpy(&x, in + 3 * (count - 5) - 1, sizeof x);
        x = MIRROR(x, 13, 14, 15, 10, 11, 12, 7, 8, 9, 4, 5, 6, 1, 2, 3, 0);
        memcpy(out, &x, sizeof x);
    }
    while (count-- > 0)
        for (int c = 0; c < 3; c++)
            *out++ = in[3 * count + c];
}

/* ---- scores of attention ---- */

/* Returns v with `otherwise` in unused lanes. */
INLINE F or_else(F v, int lanes, float otherwise)
{
    I lane = {0};

    for (int l = 0; l < VL; l++)
        lane[l] = l;
    return lanes == VL ? v : f_select((I)(lane < i_splat(lanes)), v, f_splat(otherwise));
}

/* Returns the sum of the lanes, in order. */
INLINE float lanes_sum(F v)
{
    float sum = 0;

    for (int l = 0; l < VL; l++)
        sum += v[l];
    return sum;
}

/* Each step is done for all rows, to hide the latency of sums over lanes. */
INLINE void softmax_rows(const hvt_scores *s, const bool biased, const bool masked)
{
    const F scale = f_splat(s->scale);
    F found[HVT_SCORE_ROWS]; /* maxima, then sums */
    float of_row[HVT_SCORE_ROWS];

    for (int r = 0; r < s->rows; r++) {
        float *x = s->x + (size_t)r * s->step;
        const float *bias = biased ? s->bias + (size_t)r * s->step : NULL,
                    *mask = masked ? s->mask + (size_t)r * s->n : NULL;
        F most = f_splat(-INFINITY);

        SPAN(s->n, F v = f_load(x + i, VL); v = biased   ? f_fma(v, scale, f_load(bias + i, VL))
                                                : masked ? f_fma(v, scale, f_load(mask + i, lanes))
                                                         : v * scale;
             v = or_else(biased && masked ? v + f_load(mask + i, lanes) : v, lanes, -INFINITY);
             f_store(x + i, v, VL); most = f_select((I)(v > most), v, most););
        found[r] = most;
    }
    for (int r = 0; r < s->rows; r++) {
        of_row[r] = -INFINITY;
        for (int l = 0; l < VL; l++)
            of_row[r] = found[r][l] > of_row[r] ? found[r][l] : of_row[r];
    }
    for (int r = 0; r < s->rows; r++) {
        float *x = s->x + (size_t)r * s->step;
        F sums = f_zero();

        SPAN(s->n, const F v = or_else(exp_below_one(f_load(x + i, VL) - of_row[r]), lanes, 0);
             f_store(x + i, v, VL); sums = sums + v;);
        found[r] = sums;
    }
    for (int r = 0; r < s->rows; r++)
        of_row[r] = 1 / lanes_sum(found[r]);
    for (int r = 0; r < s->rows; r++) {
        float *x = s->x + (size_t)r * s->step;

        SPAN(s->n, (void)lanes; f_store(x + i, f_load(x + i, VL) * of_row[r], VL););
    }
}

static void softmax(const hvt_scores *s)
{
    if (s->bias && s->mask)
        softmax_rows(s, true, true);
    else if (s->bias)
        softmax_rows(s, true, false);
    else if (s->mask)
        softmax_rows(s, false, true);
    else
        softmax_rows(s, false, false);
}

static void softmax_slope(const hvt_scores *s)
{
    F found[HVT_SCORE_ROWS];

    for (int r = 0; r < s->rows; r++) {
        const float *p = s->x + (size_t)r * s->step, *dp = s->dx + (size_t)r * s->step;
        F sums = f_zero();

        SPAN(s->n, sums = f_fma(f_load(p + i, VL), or_else(f_load(dp + i, VL), lanes, 0), sums););
        found[r] = sums;
    }
    for (int r = 0; r < s->rows; r++) {
        const float *p = s->x + (size_t)r * s->step, dot = lanes_sum(found[r]);
        float *dp = s->dx + (size_t)r * s->step, *sum = s->sum ? s->sum + (size_t)r * s->step : NULL;

        if (!sum)
            SPAN(s->n, (void)lanes;
                 f_store(dp + i, f_load(p + i, VL) * (f_load(dp + i, VL) - dot) * s->scale, VL););
        else
            SPAN(s->n, (void)lanes; const F slope = f_load(p + i, VL) * (f_load(dp + i, VL) - dot);
                 f_store(sum + i, f_load(sum + i, VL) + slope, VL); f_store(dp + i, slope * s->scale, VL););
    }
}

extern const hvt_factors HVT_OF_ISA(factors);
#ifndef OTHER_TYPES
#define OTHER_TYPES HVT_ISA
#endif
extern const hvt_typed HVT_NAME(OTHER_TYPES, f32), HVT_NAME(OTHER_TYPES, f16), HVT_OF_ISA(bf16);

const hvt_elementwise HVT_OF_ISA(elementwise) = {
    .vl = VL,
    .in = {[HVT_F32] = &HVT_NAME(OTHER_TYPES, f32),
           [HVT_F16] = &HVT_NAME(OTHER_TYPES, f16),
           [HVT_BF16] = &HVT_OF_ISA(bf16)},
    .factors = &HVT_OF_ISA(factors),
    .sgd = sgd,
    .adam = adam,
    .ema = ema,
    .first_bad = first_bad,
    .bn_join = bn_join,
    .bn_finish = bn_finish,
    .bn_grad_finish = bn_grad_finish,
    .bn_running = bn_running_part,
    .softmax = softmax,
    .softmax_slope = softmax_slope,
    .mirror = mirror,
    .normalise = normalise,
    .normalise_floats = normalise_floats,
};
