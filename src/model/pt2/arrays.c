/*
 * Strided arrays of numbers, computed in PyTorch's types, and of traced elements.
 */
#include "fold.h"

#include <math.h>

bool hvt__array_next(int n, const int64_t *size, int64_t *at)
{
    int i = n - 1;

    while (i >= 0 && ++at[i] >= size[i])
        at[i--] = 0;
    return i >= 0;
}

int64_t hvt__array_element(const pt2_array *x, int n, const int64_t *at)
{
    int64_t i = x->first;

    for (int d = 0; d < x->ndim; d++)
        i += x->size[d] == 1 ? 0 : at[n - x->ndim + d] * x->stride[d];
    return i;
}

bool hvt__array_repeats(const pt2_array *x, int n, const int64_t *size)
{
    bool is = x->ndim <= n;

    for (int i = 0; i < x->ndim && is; i++)
        is = x->size[i] == 1 || x->size[i] == size[n - x->ndim + i];
    return is;
}

double hvt__array_number(const pt2_array *x, int n, const int64_t *at)
{
    return x->number ? x->number[hvt__array_element(x, n, at)] : 0;
}

pt2_array *hvt__array_new(pt2_graph *g, pt2_node *n, int ndim, const int64_t *size, const bool *shared,
                          bool terms)
{
    pt2_array *x = hvt__pt2_make(g, sizeof *x);
    int64_t all = 1, most = 1;

    x->ndim = ndim;
    memcpy(x->size, size, (size_t)ndim * sizeof *size);
    for (int d = ndim - 1; d >= 0 && most <= PT2_ELEMENTS; d--) {
        const bool once = shared && shared[d];

        x->stride[d] = once ? 0 : all;
        all = once ? all : all * size[d];
        most = once || !size[d] ? most : most * size[d];
    }
    g->elements += most > PT2_ELEMENTS ? 0 : all;
    if (most > PT2_ELEMENTS || g->elements > PT2_ELEMENTS)
        hvt__pt2_refuse(g, n, "the file makes more than %d numbers of constants", PT2_ELEMENTS);
    all = all ? all : 1;
    if (terms)
        x->term = hvt__pt2_make(g, (size_t)all * sizeof *x->term);
    else
        x->number = hvt__pt2_make(g, (size_t)all * sizeof *x->number);
    return x;
}

const pt2_array *hvt__array_only_numbers(pt2_graph *g, pt2_node *n, const pt2_array *x)
{
    if (x && x->term)
        hvt__pt2_refuse(g, n, "it computes with elements of a parameter; expected a sum of them and numbers");
    return x;
}

pt2_array *hvt__array_output(pt2_graph *g, pt2_node *n, int count, const pt2_array *const *x, unsigned own,
                             bool terms, int64_t *ret_loop)
{
    const pt2_value *v = n->out[0];
    bool shared[PT2_DIMS];

    if (v->ndim < 0)
        hvt__pt2_refuse(g, n, "its output has no sizes, or more than %d dimensions", PT2_DIMS);
    for (int d = 0; d < v->ndim; d++) {
        shared[d] = !(own >> d & 1);
        for (int i = 0; i < count; i++) {
            const int at = d - (v->ndim - x[i]->ndim);

            shared[d] = shared[d] && (at < 0 || x[i]->size[at] == 1 || x[i]->stride[at] == 0);
        }
        ret_loop[d] = shared[d] && v->size[d] ? 1 : v->size[d];
    }
    return hvt__array_new(g, n, v->ndim, v->size, shared, terms);
}

/* ---- types ---- */

double hvt__array_as_type(pt2_graph *g, pt2_node *n, int type, double x)
{
    const double whole = trunc(x);

    switch (type) {
    case PT2_F32:
        return (float)x;
    case PT2_F64:
        return x;
    case PT2_BOOL:
        return x != 0;
    default:
        break;
    }
    if (!(fabs(whole) <= 0x1p53))
        hvt__pt2_refuse(g, n, "it makes a whole number of %g; expected at most 2^53", x);
    switch (type) {
    case PT2_U8:
        return (uint8_t)(int64_t)whole;
    case PT2_I8:
        return (int8_t)(int64_t)whole;
    case PT2_I16:
        return (int16_t)(int64_t)whole;
    case PT2_I32:
        return (int32_t)(int64_t)whole;
    case PT2_I64:
        return whole;
    default:
        hvt__pt2_refuse(g, n,
                        "it makes constants of a type that is not known of them, as of 16 bits; expected "
                        "float32 or float64, whole numbers or truth values");
    }
}

pt2_array *hvt__array_typed(pt2_graph *g, pt2_node *n, pt2_array *x, const int64_t *loop)
{
    PT2_EACH(x->ndim, loop, at)
    {
        double *y = &x->number[hvt__array_element(x, x->ndim, at)];

        *y = hvt__array_as_type(g, n, n->out[0]->type, *y);
    }
    return x;
}

/* ---- copies ---- */

pt2_array *hvt__array_like(pt2_graph *g, const pt2_array *x)
{
    return memcpy(hvt__pt2_make(g, sizeof *x), x, sizeof *x);
}

pt2_array *hvt__array_new_like(pt2_graph *g, pt2_node *n, const pt2_array *x, int ndim, const int64_t *size)
{
    pt2_array *y = hvt__array_new(g, n, ndim, size, NULL, x->term);

    y->of = x->of, y->table = x->table, y->sigmoid = x->sigmoid, y->gain = x->gain;
    if (x->term && x->number)
        y->number = hvt__pt2_make(g, (size_t)(hvt__pt2_count(ndim, size) + 1) * sizeof *y->number);
    return y;
}

void hvt__array_move(const pt2_array *x, int64_t from, pt2_array *y, int64_t to)
{
    if (y->term)
        y->term[to] = x->term[from];
    if (y->number)
        y->number[to] = x->number ? x->number[from] : 0;
}
