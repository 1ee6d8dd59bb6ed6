/*
 * Arithmetic on constants: functions, sums, comparisons, choices, in the types in which PyTorch computes.
 */
#include "constants.h"

#include <math.h>

static double reciprocal_root(double x)
{
    return 1 / sqrt(x);
}

static double negative(double x)
{
    return -x;
}

/* The function that the table names. */
void hvt__pt2_math_function(importer *p)
{
    static double (*const of[])(double) = {
        [SIN] = sin,      [COS] = cos,    [EXP] = exp, [LOG] = log, [SQRT] = sqrt, [RSQRT] = reciprocal_root,
        [NEG] = negative, [FLOOR] = floor};

    hvt__pt2_out_numbers(p, hvt__pt2_mapped(p, hvt__pt2_constant_self(p), of[p->operation->of]));
}

/* Of the divisor's sign. */
static double remainder_of(double a, double b)
{
    const double rest = fmod(a, b);

    return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

static double apply(int of, double a, double b)
{
    switch (of) {
    case ADD:
        return a + b;
    case SUB:
        return a - b;
    case MUL:
        return a * b;
    case DIV:
        return a / b;
    case FLOOR_DIV:
        return b != 0 ? round((a - remainder_of(a, b)) / b) : floor(a / b);
    case TRUNC_DIV:
        return trunc(a / b);
    case REMAINDER:
        return remainder_of(a, b);
    case EQ:
        return a == b;
    case NE:
        return a != b;
    case GE:
        return a >= b;
    case GT:
        return a > b;
    case LE:
        return a <= b;
    default:
        return a < b;
    }
}

/* The type of floats in which two arguments meet, as PyTorch promotes them; 0: they are whole numbers. */
static int common_type(importer *p, bool is_number)
{
    const int a = type_of(p, "self"), b = is_number ? 0 : type_of(p, "other");
    const char *kind;

    (void)hvt__pt2_arg(p->node, "other", &kind);
    if (hvt__pt2_is_float(out_type(p)))
        return out_type(p);
    if (out_type(p) != HVT__PT2_BOOL || (!hvt__pt2_is_float(a) && !hvt__pt2_is_float(b)))
        return is_number && out_type(p) == HVT__PT2_BOOL && !strcmp(kind, "as_float") ? HVT__PT2_F32 : 0;
    return !hvt__pt2_is_float(b) || (hvt__pt2_is_float(a) && a > b) ? a : b;
}

/* Of each two numbers, the second multiplied by alpha. Of a sum, one of both may have elements. */
void hvt__pt2_math_combine(importer *p)
{
    const char *const mode = hvt__pt2_string(p, "rounding_mode", "");
    const int of = !strcmp(mode, "floor") ? FLOOR_DIV : !strcmp(mode, "trunc") ? TRUNC_DIV : p->operation->of;
    const known *a = hvt__pt2_constant_self(p), *b;
    double number = 0, alpha = hvt__pt2_float(p, "alpha", 1);
    const bool is_number = hvt__pt2_number(p, &number);
    const int type = common_type(p, is_number);
    int64_t size[HVT__PT2_DIMS], at[HVT__PT2_DIMS] = {0};
    const known of_number = {.from = {.table = -1}};
    const known *with;
    int n;
    known *k;

    if (is_number && (of == MUL || of == DIV) &&
        hvt__pt2_squash_biases(p, false, of == MUL ? number : 1 / number))
        return;
    b = is_number ? &of_number : hvt__pt2_constant(p, "other");
    if (!a || !b) {
        if (!p->failed)
            hvt__pt2_refuse(p, "it has one argument");
        return;
    }
    n = ndim_of(a, b);
    if (!hvt__pt2_common(a, b, size))
        hvt__pt2_refuse(p, "the sizes of its arguments differ");
    with = a->element.x ? a : b->element.x ? b : NULL;
    if (with && (of != ADD || alpha != 1 || (a->element.x && b->element.x)))
        (void)hvt__pt2_only_numbers(p, with);
    k = p->failed ? NULL : hvt__pt2_numbers(p, n, size);
    if (!k)
        return;
    if (with) {
        k->element = hvt__pt2_repeated(with, &with->element, n);
        k->from = with->from;
    }
    if (hvt__pt2_count(n, size) > 0)
        do {
            const double x = hvt__pt2_number_at(a, n, at),
                         y = alpha * (is_number ? number : hvt__pt2_number_at(b, n, at));

            *hvt__pt2_element(&k->number, n, at) =
                type == HVT__PT2_F32 && of == TRUNC_DIV ? trunc((float)x / (float)y)
                : type ? apply(of, hvt__pt2_as_type(p, type, x), hvt__pt2_as_type(p, type, y))
                       : apply(of, x, y);
        } while (hvt__pt2_next(n, size, at));
    hvt__pt2_out_numbers(p, k);
}

/* Numbers to one power, or one number to powers. */
void hvt__pt2_math_power(importer *p)
{
    const char *kind;
    double base, exponent = 1;
    const bool powers = hvt__pt2_real(hvt__pt2_arg(p->node, "self", &kind), &base);
    const known *x = hvt__pt2_constant(p, powers ? "exponent" : "self");
    int64_t at[HVT__PT2_DIMS] = {0};
    known *k;

    if (!x && !p->failed)
        hvt__pt2_refuse(p, "it has no tensor");
    if (!powers && !p->failed)
        exponent = hvt__pt2_float(p, "exponent", 1);
    k = hvt__pt2_mapped(p, x, NULL);
    if (k && !p->failed && hvt__pt2_count(k->ndim, k->size) > 0)
        do {
            double *to = hvt__pt2_element(&k->number, k->ndim, at);

            *to = powers ? pow(base, *to) : pow(*to, exponent);
        } while (hvt__pt2_next(k->ndim, k->size, at));
    hvt__pt2_out_numbers(p, k);
}

static double not(double x)
{
    return !x;
}

void hvt__pt2_math_logical_not(importer *p)
{
    hvt__pt2_out_numbers(p, hvt__pt2_mapped(p, hvt__pt2_constant_self(p), not ));
}

/* Of truth values. */
void hvt__pt2_math_bitwise_not(importer *p)
{
    if (type_of(p, "self") == HVT__PT2_BOOL)
        hvt__pt2_math_logical_not(p);
    else
        hvt__pt2_refuse(p, "it is known of truth values only");
}

/* 0 where column - row is not on the side of `diagonal` that the table names. */
void hvt__pt2_math_triangle(importer *p)
{
    const int side = p->operation->of;
    const known *x = hvt__pt2_constant_self(p);
    const int64_t diagonal = hvt__pt2_int(p, "diagonal", 0);
    int64_t at[HVT__PT2_DIMS] = {0};
    known *k = hvt__pt2_only_numbers(p, x) ? hvt__pt2_numbers(p, x->ndim, x->size) : NULL;

    if (k && k->ndim < 2)
        hvt__pt2_refuse(p, "it has %d dimensions", k->ndim);
    if (k && !p->failed && hvt__pt2_count(k->ndim, k->size) > 0)
        do {
            const int64_t apart = at[k->ndim - 1] - at[k->ndim - 2] - diagonal;

            if (apart * side >= 0)
                *hvt__pt2_element(&k->number, k->ndim, at) = hvt__pt2_number_at(x, k->ndim, at);
        } while (hvt__pt2_next(k->ndim, k->size, at));
    hvt__pt2_out_numbers(p, k);
}

/* mask ? a : b, each a tensor or a number */
static void choose(importer *p, const known *mask, const known *a, const known *b, double number_a)
{
    int64_t size[HVT__PT2_DIMS], at[HVT__PT2_DIMS] = {0};
    const known of_number = {.from = {.table = -1}}, *wide;
    known *k;
    int n;

    if (!hvt__pt2_only_numbers(p, mask) || (a && !hvt__pt2_only_numbers(p, a)) ||
        !hvt__pt2_only_numbers(p, b))
        return;
    wide = mask->ndim > b->ndim ? mask : b;
    n = wide->ndim;
    if (!hvt__pt2_common(mask, b, size) || !hvt__pt2_repeats(a ? a : &of_number, n, size))
        hvt__pt2_refuse(p, "the sizes of its arguments differ");
    k = p->failed ? NULL : hvt__pt2_numbers(p, n, size);
    if (k && hvt__pt2_count(n, size) > 0)
        do
            *hvt__pt2_element(&k->number, n, at) = !hvt__pt2_number_at(mask, n, at)
                                                       ? hvt__pt2_number_at(b, n, at)
                                                   : a ? hvt__pt2_number_at(a, n, at)
                                                       : number_a;
        while (hvt__pt2_next(n, size, at));
    hvt__pt2_out_numbers(p, k);
}

void hvt__pt2_math_masked_fill(importer *p)
{
    const known *x = hvt__pt2_constant_self(p), *mask = p->failed ? NULL : hvt__pt2_constant(p, "mask");

    choose(p, mask, NULL, x, hvt__pt2_float(p, "value", 0));
}

void hvt__pt2_math_where(importer *p)
{
    const known *mask = hvt__pt2_constant(p, "condition"), *a = p->failed ? NULL : hvt__pt2_constant_self(p),
                *b = p->failed ? NULL : hvt__pt2_constant(p, "other");

    if (mask && a && b)
        choose(p, mask, a, b, 0);
    else if (!p->failed)
        hvt__pt2_refuse(p, "its arguments are no tensors");
}
