/*
 * Evaluates operations over strided arrays of numbers and of traced elements.
 */
#include "pt2_impl.h"

#include "fold.h"

#include <math.h>

enum { INPUTS = 64 };

/* ---- element by element ---- */

/* One element of the output at this index, from the inputs. */
typedef double element(pt2_graph *g, pt2_node *n, const double *x, const int64_t *at);

static double full(pt2_graph *g, pt2_node *n, const double *x, const int64_t *at)
{
    return n->is.fill.start;
}

static double arange(pt2_graph *g, pt2_node *n, const double *x, const int64_t *at)
{
    return n->is.fill.start + n->is.fill.step * (double)at[0];
}

static double cast(pt2_graph *g, pt2_node *n, const double *x, const int64_t *at)
{
    return x[0];
}

static double not(pt2_graph * g, pt2_node *n, const double *x, const int64_t *at)
{
    return !x[0];
}

static double triangle(pt2_graph *g, pt2_node *n, const double *x, const int64_t *at)
{
    const int last = n->out[0]->ndim - 1;

    return (at[last] - at[last - 1] - n->is.triangle.diagonal) * n->is.triangle.side < 0 ? 0 : x[0];
}

/* where(mask, a, b), or masked_fill with a number */
static double choose(pt2_graph *g, pt2_node *n, const double *x, const int64_t *at)
{
    return x[0] == 0 ? x[2] : n->in[1] ? x[1] : n->is.fill.start;
}

static double map(pt2_graph *g, pt2_node *n, const double *x, const int64_t *at)
{
    const double a = n->is.map.a;

    switch (n->is.map.f) {
    case PT2_SIN:
        return sin(*x);
    case PT2_COS:
        return cos(*x);
    case PT2_FLOOR:
        return floor(*x);
    case HVT_EXP:
        return exp(*x);
    case HVT_LOG:
        return log(*x);
    case HVT_POW:
        return a == 0.5 ? sqrt(*x) : a == -0.5 ? 1 / sqrt(*x) : pow(*x, a);
    default: /* HVT_AFFINE */
        return a * *x + n->is.map.b;
    }
}

/* The remainder has the divisor's sign. */
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

/* The floating-point type to which PyTorch promotes two operands; 0: integers. */
static int common_type(const pt2_node *n)
{
    const int out = n->out[0]->type, a = n->in[0]->type, b = n->nin > 1 ? n->in[1]->type : 0;

    if (hvt__pt2_is_float(out))
        return out;
    if (out != PT2_BOOL || (!hvt__pt2_is_float(a) && !hvt__pt2_is_float(b)))
        return n->is.binary.has_number && out == PT2_BOOL && n->is.binary.real ? PT2_F32 : 0;
    return !hvt__pt2_is_float(b) || (hvt__pt2_is_float(a) && a > b) ? a : b;
}

static double binary(pt2_graph *g, pt2_node *n, const double *x, const int64_t *at)
{
    const int op = n->is.binary.op, type = common_type(n);
    const double number = n->is.binary.has_number ? n->is.binary.number : x[1],
                 p = n->is.binary.reversed ? number : x[0],
                 q = (n->is.binary.reversed ? x[0] : number) *
                     (n->is.binary.alpha != 0 ? n->is.binary.alpha : 1);

    if (type == PT2_F32 && op == PT2_TRUNC_DIV)
        return trunc((float)p / (float)q);
    return type ? combine(op, hvt__array_as_type(g, n, type, p), hvt__array_as_type(g, n, type, q))
                : combine(op, p, q);
}

static element *const elements[PT2_OP_COUNT] = {
    [PT2_FULL] = full,         [PT2_ARANGE] = arange, [PT2_CAST] = cast, [PT2_NOT] = not,
    [PT2_TRIANGLE] = triangle, [PT2_WHERE] = choose,  [PT2_MAP] = map,   [PT2_BINARY] = binary,
};

/* Evaluates inputs that are all numbers. */
static pt2_array *each_element(pt2_graph *g, pt2_node *n, const pt2_array *const *in)
{
    const int ndim = n->out[0]->ndim, f = n->is.map.f;
    const unsigned own = n->op == PT2_ARANGE ? 1 : n->op == PT2_TRIANGLE ? 3u << (ndim - 2) : 0;
    const pt2_array *given[3];
    int64_t loop[PT2_DIMS];
    double x[3] = {0};
    int count = 0;
    pt2_array *y;

    if (n->nin > 3 || (n->op == PT2_MAP && f < HVT_FUNCTIONS && f != HVT_EXP && f != HVT_LOG &&
                       f != HVT_POW && f != HVT_AFFINE))
        return NULL;
    for (int i = 0; i < n->nin; i++) {
        if (n->in[i] && !hvt__array_only_numbers(g, n, in[i]))
            return NULL;
        if (in[i] && (ndim < 0 || !hvt__array_repeats(in[i], ndim, n->out[0]->size)))
            hvt__pt2_refuse(g, n, "the sizes of its arguments differ");
        if (in[i])
            given[count++] = in[i];
    }
    y = hvt__array_output(g, n, count, given, own, false, loop);
    PT2_EACH(ndim, loop, at)
    {
        for (int i = 0; i < n->nin; i++)
            x[i] = in[i] ? hvt__array_number(in[i], ndim, at) : 0;
        y->number[hvt__array_element(y, ndim, at)] = elements[n->op](g, n, x, at);
    }
    return hvt__array_typed(g, n, y, loop);
}

/* ---- traced elements ---- */

/* False if the sum has more than two elements. */
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

/* x times the numbers `by` (NULL: times `factor`), plus `sign` times `more` (NULL: 0). */
static pt2_array *follow(pt2_graph *g, pt2_node *n, const pt2_array *x, double factor, const pt2_array *by,
                         const pt2_array *more, float sign)
{
    const pt2_array *const all[] = {x, by ? by : more};
    int64_t loop[PT2_DIMS];
    pt2_array *y = hvt__array_output(g, n, 1 + (by || more), all, 0, true, loop);

    y->of = x->of;
    PT2_EACH(y->ndim, loop, at)
    {
        pt2_term *t = &y->term[hvt__array_element(y, y->ndim, at)];
        const float times = (float)(by ? hvt__array_number(by, y->ndim, at) : factor);

        *t = x->term[hvt__array_element(x, y->ndim, at)];
        t->times[0] *= times, t->times[1] *= times;
        for (int k = 0; k < 2 && more; k++) {
            const pt2_term *u = &more->term[hvt__array_element(more, y->ndim, at)];

            if (!add_term(t, u->at[k], sign * u->times[k]))
                return NULL;
        }
    }
    return y;
}

/* Negation, or a sigmoid. */
static pt2_array *map_elements(pt2_graph *g, pt2_node *n, const pt2_array *x)
{
    if (n->is.map.f == HVT_SIGMOID && x->table && !x->sigmoid && x->gain == 0 && !x->number) {
        pt2_array *y = hvt__array_like(g, x);

        y->sigmoid = true;
        return y;
    }
    return n->is.map.f == HVT_AFFINE && n->is.map.b == 0 && !x->table
               ? follow(g, n, x, n->is.map.a, NULL, NULL, 0)
               : NULL;
}

/* A table plus numbers, or times one number. */
static pt2_array *combine_table(pt2_graph *g, pt2_node *n, const pt2_array *a, const pt2_array *b,
                                double number)
{
    const pt2_array *x = a->term ? a : b, *by = x == a ? b : a;
    const int op = n->is.binary.op;
    int64_t loop[PT2_DIMS];
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
    y = hvt__array_output(g, n, 2, (const pt2_array *[]){x, by}, 0, true, loop);
    y->of = x->of, y->table = true, y->sigmoid = x->sigmoid, y->gain = x->gain;
    y->number = hvt__pt2_make(g, (size_t)(hvt__pt2_count(y->ndim, loop) + 1) * sizeof *y->number);
    PT2_EACH(y->ndim, loop, at)
    {
        const int64_t to = hvt__array_element(y, y->ndim, at);

        y->term[to] = x->term[hvt__array_element(x, y->ndim, at)];
        y->number[to] = (float)(hvt__array_number(x, y->ndim, at) +
                                (n->is.binary.has_number ? number : hvt__array_number(by, y->ndim, at)));
    }
    return y;
}

/* Sums of elements, and elements times numbers. */
static pt2_array *combine_elements(pt2_graph *g, pt2_node *n, const pt2_array *a, const pt2_array *b)
{
    const int op = n->is.binary.op;

    if (a->table || b->table)
        return combine_table(g, n, a, b, n->is.binary.number);
    if (n->is.binary.has_number)
        return NULL;
    if (op == HVT_MUL && !a->term != !b->term)
        return a->term ? follow(g, n, a, 1, b, NULL, 0) : follow(g, n, b, 1, a, NULL, 0);
    return a->term && b->term && a->of == b->of && n->is.binary.alpha == 1 && op <= HVT_SUB
               ? follow(g, n, a, 1, NULL, b, op == HVT_SUB ? -1 : 1)
               : NULL;
}

/* ---- all operations ---- */

pt2_array *hvt__pt2_evaluate(pt2_graph *g, pt2_node *n)
{
    const pt2_array *in[INPUTS] = {NULL};
    const pt2_array *a, *b;

    if ((!hvt__pt2_moves[n->op] && !elements[n->op]) || n->nin > INPUTS)
        return NULL;
    for (int i = 0; i < n->nin; i++)
        if (n->in[i])
            in[i] = n->in[i]->trace ? n->in[i]->trace : hvt__array_of(g, n, n->in[i]);
    if (hvt__pt2_moves[n->op])
        return hvt__pt2_moves[n->op](g, n, in);
    a = in[0], b = n->nin > 1 ? in[1] : a;
    if (n->op == PT2_MAP && a && a->term)
        return map_elements(g, n, a);
    if (n->op == PT2_BINARY && a && b && (a->term || b->term))
        return combine_elements(g, n, a, b);
    return each_element(g, n, in);
}

static void evaluate(pt2_graph *g, pt2_node *n, void *ret_array)
{
    *(pt2_array **)ret_array = hvt__pt2_evaluate(g, n);
}

pt2_array *hvt__pt2_follow(pt2_graph *g, pt2_node *n)
{
    pt2_array *x = NULL;
    bool is_error;

    g->traces = true;
    is_error = !hvt__pt2_try(g, evaluate, n, &x) && !g->traces;
    g->traces = false;
    if (is_error)
        hvt__pt2_give_up(g);
    return x;
}

/* ---- arrays of values ---- */

static pt2_array *read_buffer(pt2_graph *g, pt2_node *n, pt2_value *v)
{
    const bool traces = g->traces;
    pt2_array *x;

    g->traces = false; /* so that this refusal is reported */
    if (v->ndim < 0)
        hvt__pt2_refuse(g, n, "%s has no sizes, or more than %d dimensions", v->state, PT2_DIMS);
    x = hvt__array_new(g, n, v->ndim, v->size, NULL, false);
    if (hvt__pt2_read_values(g->file, v->state, hvt__pt2_count(v->ndim, v->size), x->number) != HVT_OK) {
        const size_t path = strlen(g->path) + 2; /* the message names it as well */

        hvt__pt2_refuse(g, n, "%s",
                        hvt_last_error() + (strncmp(hvt_last_error(), g->path, path - 2) ? 0 : path));
    }
    g->traces = traces;
    v->read = true;
    return x;
}

const pt2_array *hvt__array_of(pt2_graph *g, pt2_node *n, pt2_value *v)
{
    if (v->array || !v->constant)
        return v->array;
    v->array = v->source == PT2_BUFFER ? read_buffer(g, n, v)
               : v->producer           ? hvt__pt2_evaluate(g, v->producer)
                                       : NULL;
    return v->array;
}

const pt2_array *hvt__array_numbers_of(pt2_graph *g, pt2_node *n, pt2_value *v)
{
    const pt2_array *x = hvt__array_of(g, n, v);

    return x && !x->term ? x : NULL;
}
