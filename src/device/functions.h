/*
 * functions.h - the functions of HVT__MAPS and binary operations, with gradients, defined once. Functions are
 * within a few units in the last place of ref's, which computes in double.
 *
 * A template for one type, like formula.h: the including file (cpu/kernels/typed_tmpl.c, cuda/maps.h)
 * defines, besides F, I, U, f_fma, f_relu and f_keep,
 *
 *     INLINE                   prefix of every function
 *     f_splat(x), f_zero()     a float, and 0, as an F
 *     f_select(mask, yes, no)  yes where mask, the result of comparing two F, is true
 *     f_bits(x) f_from_bits(u) the same bits as a U, and as an F
 *     f_clamp f_keep_within    optional macros, if faster than those below
 *     f_scale                  optional macro (p, n): p * 2^n
 *     f_fraction, f_short      optional: x - floor(x), 0 for an infinity, where f_scale takes the floor
 *                              of n; and whether results have no more than 16 bits
 *
 * Included by src/device and cuda/. Nothing else.
 */
#include "device_impl.h"

/* ---- building blocks ---- */

/* e^x for x from -87 to 88, and with f_scale to 89: 2^n * e^r, |r| <= ln2/2; e^r - 1 - r is r^2 times a
 * polynomial, ordered for short dependency chains (error below one unit in the last place). exp(0) is exactly
 * 1. Without f_scale a NaN may become a number: see keep_nan(). */
INLINE F exp_finite(F x)
{
    const float magic = 0x1.8p23f; /* adding it rounds to an integer and leaves that in the low bits */
    F shifted = f_fma(x, f_splat(0x1.715476p0f), f_splat(magic)), n = shifted - magic;
    F r = f_fma(n, f_splat(-0x1.62e4p-1f), x), p, square;

    r = f_fma(n, f_splat(-0x1.7f7d1cp-20f), r);
    square = r * r;
    p = f_fma(f_splat(0x1.6a2156p-10f), square, f_fma(f_splat(0x1.123b9cp-7f), r, f_splat(0x1.5558fcp-5f)));
    p = f_fma(p, square, f_fma(f_splat(0x1.55549p-3f), r, f_splat(0x1.fffffcp-2f)));
    p = 1 + f_fma(p, square, r);
#ifdef f_scale
    return f_scale(p, n);
#else
    return f_from_bits(f_bits(p) + ((f_bits(shifted) - f_bits(f_splat(magic))) << 23));
#endif
}

/* y, or NaN where x is one, which exp_finite() may have lost */
INLINE F keep_nan(F x, F y)
{
#ifdef f_scale
    (void)x;
    return y;
#else
    return f_select((I)(x != x), x, y);
#endif
}

/* e^x for x <= 0; below -87, where the result would be subnormal, it is 0 */
INLINE F exp_below_one(F x)
{
    return f_select((I)(x < -87), f_zero(), keep_nan(x, exp_finite(x)));
}

#ifdef f_short
/* e^x with an error of 2^-17, several times smaller than that of rounding to 16 bits: 2^floor(t) times a
 * polynomial of the rest */
INLINE F exp_short(F x)
{
    const F t = x * 0x1.715476p0f, r = f_fraction(t);
    F p = f_fma(f_splat(0x1.bb7cd4p-7f), r, f_splat(0x1.aa13fp-5f));

    p = f_fma(f_fma(p, r, f_splat(0x1.ee798ap-3f)), r, f_splat(0x1.62d166p-1f));
    return f_scale(f_fma(p, r, f_splat(0x1.00002cp0f)), t);
}
#endif

/* exp_below_one() with the precision that the result type needs */
INLINE F decay(F x)
{
#ifdef f_short
    if (f_short)
        return exp_short(x);
#endif
    return exp_below_one(x);
}

INLINE F f_abs(F x)
{
    return f_from_bits(f_bits(x) & 0x7fffffff);
}

#ifndef f_clamp
INLINE F f_clamp(F x, F low, F high) /* keeps NaN */
{
    return f_select((I)(x < low), low, f_select((I)(x > high), high, x));
}

INLINE F f_keep_within(F y, F low, F high, F d) /* d where low < y < high, and where y is a NaN; else 0 */
{
    return f_select((I)((y <= low) | (y >= high)), f_zero(), d);
}
#endif

/* 1 / (1 + e^88) would be subnormal, and is 0 */
INLINE F sigmoid(F x)
{
#ifdef f_short
    if (f_short)
        return 1 / (1 + exp_short(-x));
#endif
    return keep_nan(x, 1 / (1 + exp_finite(f_clamp(-x, f_splat(-87), f_splat(88)))));
}

/* tanh(x), as Cephes' tanhf: a polynomial where 1 - e^-2x would cancel. */
INLINE F hyperbolic(F x)
{
    const F size = f_abs(x), e = decay(-2 * size), z = x * x;
    F p = f_splat(-5.70498872745e-3f);

    p = f_fma(p, z, f_splat(2.06390887954e-2f));
    p = f_fma(p, z, f_splat(-5.37397155531e-2f));
    p = f_fma(p, z, f_splat(1.33314422036e-1f));
    p = f_fma(p, z, f_splat(-3.33332819422e-1f));
    p = f_fma(p * z, x, x);
    return f_select((I)(size < 0.625f), p,
                    f_from_bits(f_bits((1 - e) / (1 + e)) | (f_bits(x) & 0x80000000u)));
}

/* e^x - 1 for x <= 0: 2t / (1 - t) with t = tanh(x/2) */
INLINE F expm1_below_zero(F x)
{
    const F t = hyperbolic(0.5f * x);

    return 2 * t / (1 - t);
}

/* log(1 + u) for u from 0 to 1: Cephes' logf of w = 1 + u, times u / (w - 1) to correct w's rounding. */
INLINE F log1p_unit(F u)
{
    const F w = 1 + u, off = w - 1;
    const I large = (I)(w > 1.41421356f);
    const F f = f_select(large, 0.5f * w, w) - 1, z = f * f;
    F p = f_splat(7.0376836292e-2f);

    p = f_fma(p, f, f_splat(-1.1514610310e-1f));
    p = f_fma(p, f, f_splat(1.1676998740e-1f));
    p = f_fma(p, f, f_splat(-1.2420140846e-1f));
    p = f_fma(p, f, f_splat(1.4249322787e-1f));
    p = f_fma(p, f, f_splat(-1.6668057665e-1f));
    p = f_fma(p, f, f_splat(2.0000714765e-1f));
    p = f_fma(p, f, f_splat(-2.4999993993e-1f));
    p = f_fma(p, f, f_splat(3.3333331174e-1f));
    p = f_fma(p * z, f, -0.5f * z) + f;
    p = p + f_select(large, f_splat(0.693147181f), f_zero());
    return f_select((I)(off == 0), u, p * (u / off));
}

/* e^x for any x */
INLINE F exponential(F x)
{
    const F e = exp_finite(f_clamp(x, f_splat(-87), f_splat(89)));

#ifdef f_scale
    return f_select((I)(x < -87), f_zero(), e);
#else
    return f_select((I)(x < -87), f_zero(),
                    f_select((I)(x > 88.7228394f), f_splat(INFINITY), keep_nan(x, e)));
#endif
}

/* x with the upper 12 bits of its mantissa: the product of two such numbers is exact. */
INLINE F upper(F x)
{
    return f_from_bits(f_bits(x) & 0xfffff000u);
}

/* log(x) as the sum of two numbers, the first one upper(), for finite x above 0. With x = 2^n * m and m from
 * sqrt(1/2) to sqrt(2) it is n*ln2 + 2*(s + s^3/3 + s^5/5 + ...), s = (m - 1) / (m + 1), which is kept in two
 * parts, too. Without fma, as e_powf.c of FreeBSD's msun. */
INLINE F log_upper(F x, F *ret_rest)
{
    const U shifted = f_bits(x) - f_bits(f_splat(0.70710678f)); /* n is above the mantissa, >= 0 if n >= 0 */
    const U over = shifted + (128u << 23);
    const F n = f_from_bits((over >> 23) | f_bits(f_splat(0x1p23f))) - (0x1p23f + 128);
    const F m = f_from_bits(f_bits(x) - (over & 0xff800000u) + (128u << 23)), f = m - 1, w = m + 1;
    const F s = f / w, su = upper(s), wu = upper(w), z = s * s;
    const F sl = ((f - su * wu) - su * (f - (wu - 2))) / w;
    F p = f_splat(2.0f / 11), rest, all;

    p = f_fma(p, z, f_splat(2.0f / 9));
    p = f_fma(p, z, f_splat(2.0f / 7));
    p = f_fma(p, z, f_splat(2.0f / 5));
    p = f_fma(p, z, f_splat(2.0f / 3));
    rest = 2 * sl + s * z * p + n * 0x1.7f7d1cp-20f; /* ln2 is in two parts, too */
    all = upper(n * 0x1.62e4p-1f + 2 * su + rest);
    *ret_rest = rest - ((all - n * 0x1.62e4p-1f) - 2 * su);
    return all;
}

INLINE F logarithm(F x)
{
    F rest;
    const F all = log_upper(x, &rest), y = all + rest;

    return f_select((I)(x > 0), f_select((I)(x < INFINITY), y, x),
                    f_select((I)(x == 0), f_splat(-INFINITY), f_splat(NAN)));
}

/* x^a = e^(a * log |x|), with the special cases of zero, infinity and signs. */
INLINE F power(F x, F a)
{
    const F size = f_abs(x), au = upper(a), magic = f_splat(0x1.8p23f), whole = a + magic;
    F rest;
    const F all = log_upper(size, &rest);
    const F head = au * all, tail = (a - au) * all + a * rest, sum = head + tail;
    const F e = exponential(sum), grown = f_select((I)(a > 0), size, 1 / size);
    const U sign = f_bits(whole) << 31 & f_bits(x); /* sign of x if a is odd */
    const I is_whole = (I)(whole - magic == a);
    F y = f_select((I)(e < INFINITY), e * (1 + (tail - (sum - head))), e);

    y = f_select((I)((size == 0) | (size == INFINITY)), f_select((I)(a == 0), f_splat(1), grown), y);
    y = f_select(is_whole, f_from_bits(f_bits(y) | sign), f_select((I)(x < 0), f_splat(NAN), y));
    return f_select((I)(x != x), x, y);
}

/* e^(-x^2/2), the density of the normal distribution times sqrt(2 pi) */
INLINE F bell(F x)
{
    return decay(-0.5f * x * x);
}

/* The cumulative normal distribution: erfc(z) = t * Q(t) * e^(-z^2) with t = 1 / (1 + z/2), and for Q a
 * polynomial that minimises the relative error, 4e-8. The power is bell()'s, which gelu's slope needs, too.
 */
INLINE F cumulative(F x)
{
    const float k[] = {-0.058890913f, 0.28370258f, -0.48538491f, 0.2759794f, -0.025178442f,
                       0.20207012f,   0.24326095f, 0.28235349f,  0.28208768f};
    const F t = 1 / f_fma(f_abs(x), f_splat(0.353553391f), f_splat(1));
    F p = f_splat(k[0]), half;

    for (int i = 1; i < 9; i++)
        p = f_fma(p, t, f_splat(k[i]));
    half = 0.5f * t * p * bell(x);
    return f_select((I)(x >= 0), 1 - half, half);
}

/* gelu_tanh is x * sigmoid(2 * this), which does not cancel; and the derivative of this */
INLINE F gelu_inner(F x)
{
    return 0.797884561f * f_fma(0.044715f * x * x, x, x);
}

INLINE F gelu_inner_slope(F x)
{
    return 0.797884561f * f_fma(3 * 0.044715f * x, x, f_splat(1));
}

/* ---- the functions ---- */

#define FUNCTION(name, value, gradient)                                                                      \
    INLINE F name##_value(F x, F a, F b)                                                                     \
    {                                                                                                        \
        (void)a, (void)b;                                                                                    \
        return value;                                                                                        \
    }                                                                                                        \
    INLINE F name##_gradient(F x, F a, F b, F dy)                                                            \
    {                                                                                                        \
        (void)x, (void)a, (void)b;                                                                           \
        return gradient;                                                                                     \
    }

/* In gradients that HVT__MAPS computes from y, x is y. Where a function is constant, its gradient is 0 even
 * if dy is not finite. */
#define CHOOSE(condition, yes, no) f_select((I)(condition), yes, no)
FUNCTION(relu, f_relu(x), f_keep(x, dy))
FUNCTION(hardtanh, f_clamp(x, a, b), f_keep_within(x, a, b, dy))
FUNCTION(leaky_relu, CHOOSE(x > 0, x, a *x), CHOOSE(x > 0, dy, a *dy))
FUNCTION(elu, CHOOSE(x > 0, x, a *expm1_below_zero(CHOOSE(x > 0, f_zero(), x))),
         CHOOSE(x > 0, dy, dy *(x + a)))
FUNCTION(sigmoid, sigmoid(x), dy *(x *(1 - x)))
FUNCTION(hardsigmoid, f_clamp(x + 3, f_zero(), f_splat(6)) * (1.0f / 6),
         CHOOSE((x > -3) & (x < 3), dy *(1.0f / 6), f_zero()))
FUNCTION(hardswish, x *f_clamp(x + 3, f_zero(), f_splat(6)) * (1.0f / 6),
         CHOOSE(x <= -3, f_zero(), CHOOSE(x < 3, dy *f_fma(x, f_splat(1.0f / 3), f_splat(0.5f)), dy)))
FUNCTION(silu, x *sigmoid(x), dy *(sigmoid(x) * f_fma(x, 1 - sigmoid(x), f_splat(1))))
FUNCTION(gelu, x *cumulative(x), dy *f_fma(x, 0.398942280f * bell(x), cumulative(x)))
FUNCTION(gelu_tanh, x *sigmoid(2 * gelu_inner(x)),
         dy *f_fma(2 * x * sigmoid(2 * gelu_inner(x)) * (1 - sigmoid(2 * gelu_inner(x))), gelu_inner_slope(x),
                   sigmoid(2 * gelu_inner(x))))
FUNCTION(tanh, hyperbolic(x), dy *f_fma(-x, x, f_splat(1)))
FUNCTION(softplus,
         CHOOSE(a *x > b, x, (CHOOSE(x > 0, a *x, f_zero()) + log1p_unit(decay(-f_abs(a * x)))) / a),
         CHOOSE(a *x > b, dy, dy *sigmoid(a *x)))
FUNCTION(affine, f_fma(a, x, b), dy *a)
FUNCTION(clamp, f_clamp(x, a, b), CHOOSE((x >= a) & (x <= b), dy, f_zero()))
FUNCTION(exp, exponential(x), dy *x)
FUNCTION(log, logarithm(x), dy / x)
FUNCTION(pow, power(x, a), dy *(a *power(x, a - 1)))
FUNCTION(hardshrink, CHOOSE((x >= -a) & (x <= a), f_zero(), x), CHOOSE((x >= -a) & (x <= a), f_zero(), dy))
#undef CHOOSE
#undef FUNCTION

/* ---- binary operations ---- */

/* a op b, or b op a */
INLINE F combine(hvt_binary op, bool swapped, F a, F b)
{
    const F u = swapped ? b : a, v = swapped ? a : b;

    switch (op) {
    case HVT_ADD:
        return u + v;
    case HVT_SUB:
        return u - v;
    case HVT_MUL:
        return u * v;
    case HVT_MAXIMUM:
        return f_select((I)((u > v) | (u != u)), u, v);
    case HVT_MINIMUM:
        return f_select((I)((u < v) | (u != u)), u, v);
    default:
        return u / v;
    }
}

/* dy times the derivative of the operation by u; `first`: u is its first operand */
INLINE F pulled(hvt_binary op, bool first, F dy, F u, F v)
{
    switch (op) {
    case HVT_ADD:
        return dy;
    case HVT_SUB:
        return first ? dy : -dy;
    case HVT_MUL:
        return dy * v;
    case HVT_MAXIMUM:
        return f_select((I)(u < v), f_zero(), f_select((I)(u == v), 0.5f * dy, dy));
    case HVT_MINIMUM:
        return f_select((I)(u > v), f_zero(), f_select((I)(u == v), 0.5f * dy, dy));
    default:
        return first ? dy / v : -dy * v / (u * u);
    }
}
