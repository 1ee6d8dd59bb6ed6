/*
 * What the cpu device does with floats, bytes and several types at once, on a part that one thread owns; what
 * it does with activations is in typed.h. One source, compiled once per instruction set with -DHVT_ISA=name
 * and that set's flags; the arithmetic of the elementwise ops is formula.h's.
 */
#include "cpu_impl.h"
#include "elementwise.h"
#include "vec.h"

#include "device/formula.h"

#include <math.h>

/* ---- spans ---- */

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

/* Add along the tree like a binary counter: partial sums of 2^k leaves wait on the stack for their
 * sibling. */
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

/* Two inputs are the common case and get code without a loop over them. */
INLINE void reduce_two_or_all(size_t first, size_t n, hvt_dtype t, const void *const in[], int count,
                              void *out)
{
    if (count == 2) {
        const void *const two[2] = {in[0], in[1]};

        reduce_as(first, n, t, two, 2, out);
    } else {
        reduce_as(first, n, t, in, count, out);
    }
}

static void reduce(size_t first, size_t n, hvt_dtype t, const void *const in[], int count, void *out)
{
    if (t == HVT_F32)
        reduce_two_or_all(first, n, HVT_F32, in, count, out);
    else if (t == HVT_F16)
        reduce_two_or_all(first, n, HVT_F16, in, count, out);
    else
        reduce_two_or_all(first, n, HVT_BF16, in, count, out);
}

INLINE void reduce_all_as(size_t first, size_t n, hvt_dtype t, void *const io[], int count)
{
    SPAN(n, F x = tree(t, (const void *const *)io, count, first + i, lanes);
         for (int k = 0; k < count; k++) f_store_as(t, io[k], first + i, x, lanes););
}

INLINE void reduce_both_or_all(size_t first, size_t n, hvt_dtype t, void *const io[], int count)
{
    if (count == 2) {
        void *const both[2] = {io[0], io[1]};

        reduce_all_as(first, n, t, both, 2);
    } else {
        reduce_all_as(first, n, t, io, count);
    }
}

static void reduce_all(size_t first, size_t n, hvt_dtype t, void *const io[], int count)
{
    if (t == HVT_F32)
        reduce_both_or_all(first, n, HVT_F32, io, count);
    else if (t == HVT_F16)
        reduce_both_or_all(first, n, HVT_F16, io, count);
    else
        reduce_both_or_all(first, n, HVT_BF16, io, count);
}

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
    const hvt_sgd_args a = *args; /* copies, which stores to w and v cannot alias */
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

/* Block by block: x * 0 is nonzero (NaN) exactly if x is not finite, and a sum propagates it. */
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

/* ---- batch norm ---- */

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

static void bn_running_part(size_t n, float rate, float scaled, const float *moments, float *run)
{
    SPAN(n, f_store(run + i,
                    bn_running(f_load(run + i, lanes), f_load(moments + i, lanes), f_splat(rate),
                               f_splat(1 - rate), f_splat(scaled)),
                    lanes););
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

#define NAME_OF(isa, what) hvt__##what##_##isa
#define NAME(isa, what)    NAME_OF(isa, what)

extern const hvt_elementwise NAME(HVT_ISA, elementwise);
extern const hvt_factors NAME(HVT_ISA, factors);
extern const hvt_typed NAME(HVT_ISA, f32), NAME(HVT_ISA, f16), NAME(HVT_ISA, bf16);

const hvt_elementwise NAME(HVT_ISA, elementwise) = {
    .vl = VL,
    .in =
        {[HVT_F32] = &NAME(HVT_ISA, f32), [HVT_F16] = &NAME(HVT_ISA, f16), [HVT_BF16] = &NAME(HVT_ISA, bf16)},
    .factors = &NAME(HVT_ISA, factors),
    .cast = cast,
    .reduce = reduce,
    .reduce_all = reduce_all,
    .sgd = sgd,
    .first_bad = first_bad,
    .bn_join = bn_join,
    .bn_finish = bn_finish,
    .bn_grad_finish = bn_grad_finish,
    .bn_running = bn_running_part,
    .normalise = normalise,
};
