/*
 * What moves the elements of arrays: views, which share memory, joins, and elements by their numbers.
 */
#include "evaluate.h"

#include <math.h>

/* ---- views ---- */

/* Strides of the same elements in other sizes; false: there are none. Runs of dimensions of as many elements
 * in both must be neighbours in memory, or all alike. */
static bool restride(const pt2_array *x, int n, const int64_t *size, int64_t *ret_stride)
{
    int64_t old_size[PT2_DIMS], old[PT2_DIMS];
    int m = 0, i = 0, k = 0;

    for (int d = 0; d < x->ndim; d++)
        if (x->size[d] != 1)
            old_size[m] = x->size[d], old[m++] = x->stride[d];
    while (k < n) {
        int64_t have = 1, want = size[k];
        int from = i, end = k + 1;

        if (want == 1) {
            ret_stride[k++] = 0;
            continue;
        }
        while (have != want) {
            if (have < want && i < m)
                have *= old_size[i++];
            else if (have > want && end < n)
                want *= size[end++];
            else
                return false;
        }
        for (int d = from; d + 1 < i; d++)
            if (old[d] != old_size[d + 1] * old[d + 1])
                return false;
        for (int64_t step = i > from ? old[i - 1] : 0; end > k;) {
            ret_stride[--end] = step;
            step *= size[end];
        }
        for (want = 1; k < n && want != have; k++)
            want *= size[k];
    }
    return i == m;
}

pt2_array *hvt__evaluate_view(pt2_graph *g, pt2_node *n, const pt2_array *const *in)
{
    const pt2_array *x = in[0];
    const pt2_value *v = n->out[0];
    int64_t at[PT2_DIMS] = {0}, to = 0;
    pt2_array *y;

    if (!x)
        return NULL;
    if (v->ndim < 0 || hvt__pt2_count(v->ndim, v->size) != hvt__pt2_count(x->ndim, x->size))
        hvt__pt2_refuse(g, n, "its output has another number of elements than its input");
    y = hvt__array_like(g, x);
    y->ndim = v->ndim;
    memcpy(y->size, v->size, sizeof y->size);
    if (!hvt__pt2_count(v->ndim, v->size) || restride(x, v->ndim, v->size, y->stride))
        return y;
    y = hvt__array_new(g, n, v->ndim, v->size, NULL, x->term);
    if (!y)
        return NULL;
    y->of = x->of, y->table = x->table, y->sigmoid = x->sigmoid, y->gain = x->gain;
    if (x->term && x->number)
        y->number = hvt__pt2_make(g, (size_t)hvt__pt2_count(v->ndim, v->size) * sizeof *y->number);
    do {
        const int64_t from = hvt__array_element(x, x->ndim, at);

        if (y->term)
            y->term[to] = x->term[from];
        if (y->number)
            y->number[to] = x->number[from];
        to++;
    } while (hvt__array_next(x->ndim, x->size, at));
    return y;
}

pt2_array *hvt__evaluate_expand(pt2_graph *g, pt2_node *n, const pt2_array *const *in)
{
    const pt2_array *x = in[0];
    const pt2_value *v = n->out[0];
    pt2_array *y;

    if (!x)
        return NULL;
    if (v->ndim < 0 || !hvt__array_repeats(x, v->ndim, v->size))
        hvt__pt2_refuse(g, n, "its output is no repetition of its input");
    y = hvt__array_like(g, x);
    y->ndim = v->ndim;
    for (int d = 0; d < v->ndim; d++) {
        const int of = d - (v->ndim - x->ndim);

        y->size[d] = v->size[d];
        y->stride[d] = of < 0 || x->size[of] == 1 ? 0 : x->stride[of];
    }
    return y;
}

pt2_array *hvt__evaluate_permute(pt2_graph *g, pt2_node *n, const pt2_array *const *in)
{
    const pt2_array *x = in[0];
    pt2_array *y = x ? hvt__array_like(g, x) : NULL;

    for (int i = 0; y && i < x->ndim; i++) {
        y->size[i] = x->size[n->is.dims.dim[i]];
        y->stride[i] = x->stride[n->is.dims.dim[i]];
    }
    return y;
}

pt2_array *hvt__evaluate_slice(pt2_graph *g, pt2_node *n, const pt2_array *const *in)
{
    const pt2_array *x = in[0];
    pt2_array *y = x ? hvt__array_like(g, x) : NULL;
    const int dim = n->is.slice.dim;

    if (!y)
        return NULL;
    y->size[dim] = n->out[0]->size[dim];
    y->first += x->size[dim] == 1 ? 0 : n->is.slice.first * x->stride[dim];
    y->stride[dim] = y->size[dim] > 1 ? x->stride[dim] * n->is.slice.step : 0;
    return y;
}

/* ---- moves ---- */

/* repeat, roll, and cumulative sums: each element of the output is that of the input at another place. */
pt2_array *hvt__evaluate_moved(pt2_graph *g, pt2_node *n, const pt2_array *const *in)
{
    const pt2_array *x = in[0];
    const pt2_value *v = n->out[0];
    int64_t at[PT2_DIMS] = {0}, from[PT2_DIMS];
    const int lead = x ? v->ndim - x->ndim : 0;
    pt2_array *y;

    if (!hvt__array_only_numbers(g, n, x))
        return NULL;
    for (int d = 0; d < x->ndim; d++)
        if (lead < 0 || (x->size[d] && v->size[lead + d] % x->size[d]))
            hvt__pt2_refuse(g, n, "its output is no repetition of its input");
    y = hvt__array_new(g, n, v->ndim, v->size, NULL, false);
    if (y && hvt__pt2_count(v->ndim, v->size) > 0 && hvt__pt2_count(x->ndim, x->size) > 0)
        do {
            for (int d = 0; d < x->ndim; d++)
                from[d] = at[lead + d] % x->size[d];
            for (int i = 0; n->op == PT2_ROLL && i < n->is.dims.n; i++) {
                const int d = n->is.dims.dim[i];

                from[d] = ((from[d] - n->is.dims.shift[i]) % x->size[d] + x->size[d]) % x->size[d];
            }
            hvt__array_move(x, hvt__array_element(x, x->ndim, from), y, hvt__array_element(y, y->ndim, at));
        } while (hvt__array_next(v->ndim, v->size, at));
    return y;
}

pt2_array *hvt__evaluate_cumulate(pt2_graph *g, pt2_node *n, const pt2_array *const *in)
{
    pt2_array *y = hvt__evaluate_moved(g, n, in);
    int64_t at[PT2_DIMS] = {0};

    if (y && hvt__pt2_count(y->ndim, y->size) > 0)
        do {
            double *to = &y->number[hvt__array_element(y, y->ndim, at)];

            if (at[n->is.along.dim] > 0)
                *to += to[-y->stride[n->is.along.dim]];
        } while (hvt__array_next(y->ndim, y->size, at));
    return hvt__array_typed(g, n, y, y ? y->size : NULL);
}

enum { JOINED = 64 };

pt2_array *hvt__evaluate_cat(pt2_graph *g, pt2_node *n, const pt2_array *const *in)
{
    const int dim = n->is.along.dim;
    const pt2_array *x[JOINED], *of = NULL;
    int64_t loop[PT2_DIMS], at[PT2_DIMS], to[PT2_DIMS], first = 0;
    pt2_array *y;

    if (n->nin < 1 || n->nin > JOINED)
        return NULL;
    for (int i = 0; i < n->nin; i++) {
        x[i] = in[i];
        if (!x[i] ||
            (x[i]->term && (x[i]->number || (of && of->of != x[i]->of) || x[i]->sigmoid || x[i]->gain != 0)))
            return NULL;
        of = x[i]->term ? x[i] : of;
    }
    for (int i = 0; i < n->nin; i++)
        if (of && !x[i]->term)
            return NULL;
    y = hvt__array_output(g, n, n->nin, x, dim, of, loop);
    if (!y)
        return NULL;
    y->of = of ? of->of : NULL;
    y->table = of && of->table;
    for (int i = 0; i < n->nin; i++) {
        for (int d = 0; d < y->ndim; d++)
            if (x[i]->ndim != y->ndim ||
                (d == dim ? first + x[i]->size[d] > y->size[d] : x[i]->size[d] != y->size[d]))
                hvt__pt2_refuse(g, n, "the sizes of its tensors differ");
        loop[dim] = x[i]->size[dim];
        memset(at, 0, sizeof at);
        if (hvt__pt2_count(y->ndim, loop) > 0)
            do {
                memcpy(to, at, sizeof to);
                to[dim] += first;
                hvt__array_move(x[i], hvt__array_element(x[i], y->ndim, at), y,
                                hvt__array_element(y, y->ndim, to));
            } while (hvt__array_next(y->ndim, loop, at));
        first += x[i]->size[dim];
    }
    if (first != y->size[dim])
        hvt__pt2_refuse(g, n, "its output is longer than its tensors are");
    return y;
}

/* A copy of the first input in which the second one replaces a slice. */
pt2_array *hvt__evaluate_put(pt2_graph *g, pt2_node *n, const pt2_array *const *in)
{
    const pt2_array *x = in[0], *part = in[1];
    const int dim = n->is.slice.dim;
    int64_t at[PT2_DIMS] = {0}, from[PT2_DIMS];
    pt2_array *y;

    if (!hvt__array_only_numbers(g, n, x) || !hvt__array_only_numbers(g, n, part))
        return NULL;
    y = hvt__array_new(g, n, x->ndim, x->size, NULL, false);
    if (y && hvt__pt2_count(x->ndim, x->size) > 0)
        do {
            const int64_t behind = at[dim] - n->is.slice.first;
            const bool in_part =
                behind >= 0 && behind % n->is.slice.step == 0 && behind / n->is.slice.step < part->size[dim];

            memcpy(from, at, sizeof from);
            from[dim] = in_part ? behind / n->is.slice.step : at[dim];
            y->number[hvt__array_element(y, y->ndim, at)] =
                hvt__array_number(in_part ? part : x, x->ndim, from);
        } while (hvt__array_next(x->ndim, x->size, at));
    return y;
}

/* ---- elements by their numbers ---- */

/* Each element of a tensor, by its number. */
static pt2_array *elements_of(pt2_graph *g, pt2_node *n, pt2_value *v)
{
    pt2_array *x = v->ndim < 0 ? NULL : hvt__array_new(g, n, v->ndim, v->size, NULL, true);

    for (int64_t i = 0; x && i < hvt__pt2_count(v->ndim, v->size); i++)
        x->term[i] = (pt2_term){{(int32_t)i, -1}, {1, 0}};
    if (x)
        x->of = v, x->table = true;
    return x;
}

pt2_array *hvt__evaluate_take(pt2_graph *g, pt2_node *n, const pt2_array *const *in)
{
    pt2_value *v = n->in[0];
    const int dim = n->is.along.dim;
    const pt2_array *index = hvt__array_only_numbers(g, n, in[1]), *x;
    int64_t at[PT2_DIMS] = {0}, from[PT2_DIMS], size[PT2_DIMS];
    pt2_array *y;
    int ndim;

    if (!index)
        return NULL;
    x = v->constant || v->array ? in[0] : v->computed ? NULL : elements_of(g, n, v);
    if (!x || (x->term && x->number))
        return NULL;
    ndim = x->ndim - 1 + index->ndim;
    if (dim >= x->ndim || ndim > PT2_DIMS)
        hvt__pt2_refuse(g, n, "it makes %d dimensions of %d", ndim, x->ndim);
    memcpy(size, x->size, (size_t)dim * sizeof *size);
    memcpy(size + dim, index->size, (size_t)index->ndim * sizeof *size);
    memcpy(size + dim + index->ndim, x->size + dim + 1, (size_t)(x->ndim - dim - 1) * sizeof *size);
    y = hvt__array_new(g, n, ndim, size, NULL, x->term);
    if (!y)
        return NULL;
    y->of = x->of, y->table = x->table, y->sigmoid = x->sigmoid, y->gain = x->gain;
    if (hvt__pt2_count(ndim, size) > 0)
        do {
            const double i = hvt__array_number(index, index->ndim, at + dim);

            if (!(i >= -(double)x->size[dim] && i < (double)x->size[dim]) || i != floor(i))
                hvt__pt2_refuse(g, n, "its index %g is none of %lld elements", i, (long long)x->size[dim]);
            memcpy(from, at, (size_t)dim * sizeof *from);
            from[dim] = (int64_t)i + (i < 0 ? x->size[dim] : 0);
            memcpy(from + dim + 1, at + dim + index->ndim, (size_t)(x->ndim - dim - 1) * sizeof *from);
            hvt__array_move(x, hvt__array_element(x, x->ndim, from), y, hvt__array_element(y, ndim, at));
        } while (hvt__array_next(ndim, size, at));
    return y;
}
