/*
 * Arithmetic on arrays: functions, sums, comparisons, choices.
 */
#include "evaluate.h"

#include <math.h>

/* ---- new numbers ---- */

pt2_array *hvt__evaluate_full(pt2_graph *g, pt2_node *n, const pt2_array *const *in)
{
    int64_t loop[PT2_DIMS], at[PT2_DIMS] = {0};
    pt2_array *y = hvt__array_output(g, n, 0, NULL, n->op == PT2_ARANGE ? 0 : -1, false, loop);

    if (y && hvt__pt2_count(y->ndim, loop) > 0)
        do
            y->number[hvt__array_element(y, y->ndim, at)] =
                n->is.fill.start + (n->op == PT2_ARANGE ? n->is.fill.step * (double)at[0] : 0);
        while (hvt__array_next(y->ndim, loop, at));
    return hvt__array_typed(g, n, y, loop);
}

static double function(int f, double a, double b, double x)
{
    switch (f) {
    case PT2_SIN:
        return sin(x);
    case PT2_COS:
        return cos(x);
    case PT2_FLOOR:
        return floor(x);
    case HVT_EXP:
        return exp(x);
    case HVT_LOG:
        return log(x);
    case HVT_POW:
        return a == 0.5 ? sqrt(x) : a == -0.5 ? 1 / sqrt(x) : pow(x, a);
    case HVT_AFFINE:
        return a * x + b;
    default:
        return NAN;
    }
}

static bool is_evaluated(int f)
{
    return f >= HVT_FUNCTIONS || f == HVT_EXP || f == HVT_LOG || f == HVT_POW || f == HVT_AFFINE;
}

/* -x, or a sigmoid, of elements that are followed. */
static pt2_array *function_of_elements(pt2_graph *g, pt2_node *n, const pt2_array *x)
{
    const pt2_array *const all[] = {x};
    int64_t loop[PT2_DIMS], at[PT2_DIMS] = {0};
    pt2_array *y;

    if (n->is.map.f == HVT_SIGMOID && x->table && !x->sigmoid && x->gain == 0 && !x->number) {
        y = hvt__array_like(g, x);
        y->sigmoid = true;
        return y;
    }
    if (n->is.map.f != HVT_AFFINE || n->is.map.b != 0 || x->table)
        return NULL;
    y = hvt__array_output(g, n, 1, all, -1, true, loop);
    if (y && hvt__pt2_count(y->ndim, loop) > 0)
        do {
            pt2_term *t = &y->term[hvt__array_element(y, y->ndim, at)];

            *t = x->term[hvt__array_element(x, y->ndim, at)];
            t->times[0] *= (float)n->is.map.a, t->times[1] *= (float)n->is.map.a;
        } while (hvt__array_next(y->ndim, loop, at));
    if (y)
        y->of = x->of;
    return y;
}

/* map, cast, logical_not, triu and tril: the function of each number */
pt2_array *hvt__evaluate_mapped(pt2_graph *g, pt2_node *n, const pt2_array *const *in)
{
    const pt2_array *x = in[0];
    const int64_t side = n->is.triangle.side;
    int64_t loop[PT2_DIMS], at[PT2_DIMS] = {0};
    pt2_array *y;

    if (!x || (n->op == PT2_MAP && x->term))
        return x ? function_of_elements(g, n, x) : NULL;
    if ((n->op == PT2_MAP && !is_evaluated(n->is.map.f)) || !hvt__array_only_numbers(g, n, x))
        return NULL;
    y = hvt__array_output(g, n, n->op != PT2_TRIANGLE, &x, -1, false, loop);
    if (n->op == PT2_TRIANGLE)
        y = hvt__array_new(g, n, x->ndim, x->size, NULL, false), memcpy(loop, x->size, sizeof loop);
    if (y && hvt__pt2_count(y->ndim, loop) > 0)
        do {
            double k = hvt__array_number(x, y->ndim, at);

            if (n->op == PT2_MAP)
                k = function(n->is.map.f, n->is.map.a, n->is.map.b, k);
            else if (n->op == PT2_NOT)
                k = !k;
            else if (n->op == PT2_TRIANGLE &&
                     (at[y->ndim - 1] - at[y->ndim - 2] - n->is.triangle.diagonal) * side < 0)
                k = 0;
            y->number[hvt__array_element(y, y->ndim, at)] = k;
        } while (hvt__array_next(y->ndim, loop, at));
    return hvt__array_typed(g, n, y, loop);
}

/* ---- two operands ---- */

/* Of the divisor's sign. */
static double remainder_of(double a, double b)
{
    const double rest = fmod(a, b);

    return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

static double combine(int op, double a, double b)
{
    switch (op) {
    case HVT_ADD:
        return a + b;
    case HVT_SUB:
        return a - b;
    case HVT_MUL:
        return a * b;
    case HVT_DIV:
        return a / b;
    case HVT_MAXIMUM:
        return a > b ? a : b;
    case HVT_MINIMUM:
        return a < b ? a : b;
    case PT2_FLOOR_DIV:
        return b != 0 ? round((a - remainder_of(a, b)) / b) : floor(a / b);
    case PT2_TRUNC_DIV:
        return trunc(a / b);
    case PT2_REMAINDER:
        return remainder_of(a, b);
    case PT2_POWER:
        return pow(a, b);
    case PT2_EQ:
        return a == b;
    case PT2_NE:
        return a != b;
    case PT2_GE:
        return a >= b;
    case PT2_GT:
        return a > b;
    case PT2_LE:
        return a <= b;
    default:
        return a < b;
    }
}

/* The type of floats in which two operands meet, as PyTorch promotes them; 0: they are whole numbers. */
static int common_type(const pt2_node *n)
{
    const int out = n->out[0]->type, a = n->in[0]->type, b = n->nin > 1 ? n->in[1]->type : 0;

    if (hvt__pt2_is_float(out))
        return out;
    if (out != PT2_BOOL || (!hvt__pt2_is_float(a) && !hvt__pt2_is_float(b)))
        return n->is.binary.has_number && out == PT2_BOOL && n->is.binary.real ? PT2_F32 : 0;
    return !hvt__pt2_is_float(b) || (hvt__pt2_is_float(a) && a > b) ? a : b;
}

/* false: there are more than two */
static bool add_term(pt2_term *to, int32_t at, float times)
{
    for (int k = 0; k < 2 && at >= 0; k++)
        if (to->at[k] == at || to->at[k] < 0) {
            to->times[k] = (to->at[k] == at ? to->times[k] : 0) + times;
            to->at[k] = at;
            return true;
        }
    return at < 0;
}

/* Sums of elements, and elements times numbers. */
static pt2_array *combine_elements(pt2_graph *g, pt2_node *n, const pt2_array *a, const pt2_array *b)
{
    const int op = n->is.binary.op;
    const float sign = op == HVT_SUB ? -1 : 1;
    const bool both = a->term && b->term, scales = op == HVT_MUL && !both;
    const pt2_array *const all[] = {a, b}, *x = a->term ? a : b, *by = x == a ? b : a;
    int64_t loop[PT2_DIMS], at[PT2_DIMS] = {0};
    bool fits =
        scales ? by->number != NULL : both && a->of == b->of && n->is.binary.alpha == 1 && op <= HVT_SUB;
    pt2_array *y;

    if (!fits)
        return NULL;
    y = hvt__array_output(g, n, 2, all, -1, true, loop);
    if (y && hvt__pt2_count(y->ndim, loop) > 0)
        do {
            pt2_term *t = &y->term[hvt__array_element(y, y->ndim, at)];

            *t = x->term[hvt__array_element(x, y->ndim, at)];
            if (scales) {
                const float times = (float)hvt__array_number(by, y->ndim, at);

                t->times[0] *= times, t->times[1] *= times;
                continue;
            }
            for (int k = 0; k < 2 && fits; k++) {
                const pt2_term *u = &b->term[hvt__array_element(b, y->ndim, at)];

                fits = add_term(t, u->at[k], sign * u->times[k]);
            }
        } while (hvt__array_next(y->ndim, loop, at));
    if (y)
        y->of = x->of;
    return fits ? y : NULL;
}

/* A table and numbers: these are added, or it is multiplied by one. */
static pt2_array *combine_table(pt2_graph *g, pt2_node *n, const pt2_array *a, const pt2_array *b,
                                double number)
{
    const pt2_array *x = a->term ? a : b, *by = x == a ? b : a;
    const int op = n->is.binary.op;
    int64_t loop[PT2_DIMS], at[PT2_DIMS] = {0};
    pt2_array *y;

    if (n->is.binary.has_number && (op == HVT_MUL || op == HVT_DIV) && !n->is.binary.reversed && !x->number) {
        y = hvt__array_like(g, x);
        y->gain = (x->gain != 0 ? x->gain : 1) * (op == HVT_MUL ? number : 1 / number);
        if (!(fabs(y->gain) > 0 && isfinite(y->gain)))
            hvt__pt2_refuse(g, n, "its factor is %g; expected another one than 0", number);
        return y;
    }
    if (op != HVT_ADD || n->is.binary.alpha != 1 || by->term)
        return NULL;
    y = hvt__array_output(g, n, 2, (const pt2_array *[]){x, by}, -1, true, loop);
    if (!y)
        return NULL;
    y->of = x->of, y->table = true, y->sigmoid = x->sigmoid, y->gain = x->gain;
    y->number = hvt__pt2_make(g, (size_t)(hvt__pt2_count(y->ndim, loop) + 1) * sizeof *y->number);
    if (hvt__pt2_count(y->ndim, loop) > 0)
        do {
            const int64_t to = hvt__array_element(y, y->ndim, at);

            y->term[to] = x->term[hvt__array_element(x, y->ndim, at)];
            y->number[to] = (float)(hvt__array_number(x, y->ndim, at) +
                                    (n->is.binary.has_number ? number : hvt__array_number(by, y->ndim, at)));
        } while (hvt__array_next(y->ndim, loop, at));
    return y;
}

pt2_array *hvt__evaluate_binary(pt2_graph *g, pt2_node *n, const pt2_array *const *in)
{
    const int op = n->is.binary.op, type = common_type(n);
    const double alpha = n->is.binary.alpha ? n->is.binary.alpha : 1;
    const pt2_array *a = in[0], *b = n->is.binary.has_number ? a : in[1];
    int64_t loop[PT2_DIMS], at[PT2_DIMS] = {0};
    pt2_array *y;

    if (!a || !b)
        return NULL;
    if (a->table || b->table)
        return combine_table(g, n, a, b, n->is.binary.number);
    if (a->term || b->term)
        return n->is.binary.has_number ? NULL : combine_elements(g, n, a, b);
    if (n->out[0]->ndim < 0 || !hvt__array_repeats(a, n->out[0]->ndim, n->out[0]->size) ||
        !hvt__array_repeats(b, n->out[0]->ndim, n->out[0]->size))
        hvt__pt2_refuse(g, n, "the sizes of its arguments differ");
    y = hvt__array_output(g, n, 2, (const pt2_array *[]){a, b}, -1, false, loop);
    if (y && hvt__pt2_count(y->ndim, loop) > 0)
        do {
            double p = hvt__array_number(a, y->ndim, at),
                   q = n->is.binary.has_number ? n->is.binary.number : hvt__array_number(b, y->ndim, at);

            if (n->is.binary.reversed) {
                const double first = p;

                p = q, q = first;
            }
            q *= alpha;
            y->number[hvt__array_element(y, y->ndim, at)] =
                type == PT2_F32 && op == PT2_TRUNC_DIV ? trunc((float)p / (float)q)
                : type ? combine(op, hvt__array_as_type(g, n, type, p), hvt__array_as_type(g, n, type, q))
                       : combine(op, p, q);
        } while (hvt__array_next(y->ndim, loop, at));
    return hvt__array_typed(g, n, y, loop);
}

/* mask ? a : b; without a, a number */
pt2_array *hvt__evaluate_choose(pt2_graph *g, pt2_node *n, const pt2_array *const *in)
{
    const pt2_array *mask = in[0], *a = in[1], *b = in[2];
    const pt2_array *const all[] = {mask, b, a};
    int64_t loop[PT2_DIMS], at[PT2_DIMS] = {0};
    pt2_array *y;

    if (!hvt__array_only_numbers(g, n, mask) || !hvt__array_only_numbers(g, n, b) ||
        (a ? !hvt__array_only_numbers(g, n, a) : n->in[1] != NULL))
        return NULL;
    for (int i = 0; i < 2 + (a != NULL); i++)
        if (n->out[0]->ndim < 0 || !hvt__array_repeats(all[i], n->out[0]->ndim, n->out[0]->size))
            hvt__pt2_refuse(g, n, "the sizes of its arguments differ");
    y = hvt__array_output(g, n, 2 + (a != NULL), all, -1, false, loop);
    if (y && hvt__pt2_count(y->ndim, loop) > 0)
        do
            y->number[hvt__array_element(y, y->ndim, at)] = !hvt__array_number(mask, y->ndim, at)
                                                                ? hvt__array_number(b, y->ndim, at)
                                                            : a ? hvt__array_number(a, y->ndim, at)
                                                                : n->is.fill.start;
        while (hvt__array_next(y->ndim, loop, at));
    return hvt__array_typed(g, n, y, loop);
}
