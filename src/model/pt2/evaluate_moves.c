/*
 * Evaluates operations that move elements: views, which share memory, joins, and indexing.
 */
#include "fold.h"

#include <math.h>

/* ---- views ---- */

/* Strides for the same elements in other sizes; false: impossible. Groups of dimensions with the same number
 * of elements on both sides must be contiguous or have stride 0. */
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

/* Copies x to y, which has the same sizes; stride 0 in y takes one of the equal elements. */
static void assign(const pt2_array *x, pt2_array *y)
{
    int64_t loop[PT2_DIMS];

    for (int d = 0; d < y->ndim; d++)
        loop[d] = y->stride[d] || !y->size[d] ? y->size[d] : 1;
    PT2_EACH(y->ndim, loop, at)
    {
        hvt__array_move(x, hvt__array_element(x, y->ndim, at), y, hvt__array_element(y, y->ndim, at));
    }
}

static pt2_array *view(pt2_graph *g, pt2_node *n, const pt2_array *const *in)
{
    const pt2_array *x = in[0];
    const pt2_value *v = n->out[0];
    int64_t stride[PT2_DIMS] = {0};
    pt2_array *y;

    if (!x)
        return NULL;
    if (v->ndim < 0 || hvt__pt2_count(v->ndim, v->size) != hvt__pt2_count(x->ndim, x->size))
        hvt__pt2_refuse(g, n, "its output has another number of elements than its input");
    if (!hvt__pt2_count(v->ndim, v->size) || restride(x, v->ndim, v->size, stride)) {
        y = hvt__array_like(g, x);
    } else { /* a copy is dense, so it always has a view */
        y = hvt__array_new_like(g, n, x, x->ndim, x->size);
        assign(x, y);
        restride(y, v->ndim, v->size, stride);
    }
    y->ndim = v->ndim;
    memcpy(y->size, v->size, sizeof y->size);
    memcpy(y->stride, stride, sizeof y->stride);
    return y;
}

static pt2_array *expand(pt2_graph *g, pt2_node *n, const pt2_array *const *in)
{
    const pt2_array *x = in[0];
    const pt2_value *v = n->out[0];
    pt2_array *y;

    if (!x)
        return NULL;
    if (v->ndim < 0 || !hvt__array_repeats(x, v->ndim, v->size))
        hvt__pt2_refuse(g, n, "its output does not repeat its input");
    y = hvt__array_like(g, x);
    y->ndim = v->ndim;
    for (int d = 0; d < v->ndim; d++) {
        const int of = d - (v->ndim - x->ndim);

        y->size[d] = v->size[d];
        y->stride[d] = of < 0 || x->size[of] == 1 ? 0 : x->stride[of];
    }
    return y;
}

static pt2_array *permute(pt2_graph *g, pt2_node *n, const pt2_array *const *in)
{
    const pt2_array *x = in[0];
    pt2_array *y = x ? hvt__array_like(g, x) : NULL;

    for (int i = 0; y && i < x->ndim; i++) {
        y->size[i] = x->size[n->is.dims.dim[i]];
        y->stride[i] = x->stride[n->is.dims.dim[i]];
    }
    return y;
}

/* slice: `count` elements of dimension `dim`, first, first + step ... */
static pt2_array *part_of(pt2_graph *g, const pt2_array *x, int dim, int64_t first, int64_t count,
                          int64_t step)
{
    pt2_array *y = hvt__array_like(g, x);

    y->size[dim] = count;
    y->first += x->size[dim] == 1 ? 0 : first * x->stride[dim];
    y->stride[dim] = count > 1 ? x->stride[dim] * step : 0;
    return y;
}

static pt2_array *slice(pt2_graph *g, pt2_node *n, const pt2_array *const *in)
{
    const int dim = n->is.slice.dim;

    return in[0] ? part_of(g, in[0], dim, n->is.slice.first, n->out[0]->size[dim], n->is.slice.step) : NULL;
}

/* ---- copies ---- */

/* repeat and roll: each element of the output comes from another index of the input. */
static pt2_array *moved(pt2_graph *g, pt2_node *n, const pt2_array *const *in)
{
    const pt2_array *x = hvt__array_only_numbers(g, n, in[0]);
    const pt2_value *v = n->out[0];
    const int lead = x ? v->ndim - x->ndim : 0;
    int64_t from[PT2_DIMS];
    pt2_array *y;

    if (!x)
        return NULL;
    for (int d = 0; d < x->ndim; d++)
        if (lead < 0 || (x->size[d] ? v->size[lead + d] % x->size[d] : v->size[lead + d]))
            hvt__pt2_refuse(g, n, "its output does not repeat its input");
    y = hvt__array_new(g, n, v->ndim, v->size, NULL, false);
    PT2_EACH(v->ndim, v->size, at)
    {
        for (int d = 0; d < x->ndim; d++)
            from[d] = at[lead + d] % x->size[d];
        for (int i = 0; n->op == PT2_ROLL && i < n->is.dims.n; i++) {
            const int d = n->is.dims.dim[i];

            from[d] = ((from[d] - n->is.dims.shift[i]) % x->size[d] + x->size[d]) % x->size[d];
        }
        hvt__array_move(x, hvt__array_element(x, x->ndim, from), y, hvt__array_element(y, y->ndim, at));
    }
    return y;
}

static pt2_array *cumulate(pt2_graph *g, pt2_node *n, const pt2_array *const *in)
{
    pt2_array *y = moved(g, n, in);

    if (!y)
        return NULL;
    PT2_EACH(y->ndim, y->size, at)
    {
        double *to = &y->number[hvt__array_element(y, y->ndim, at)];

        if (at[n->is.along.dim] > 0)
            *to += to[-y->stride[n->is.along.dim]];
    }
    return hvt__array_typed(g, n, y, y->size);
}

static pt2_array *cat(pt2_graph *g, pt2_node *n, const pt2_array *const *in)
{
    const int dim = n->is.along.dim;
    const pt2_value *v = n->out[0];
    int64_t loop[PT2_DIMS], length = 0, first = 0;
    const pt2_array *of = in[0];
    bool same = true;
    pt2_array *y;

    if (!of)
        return NULL;
    for (int i = 0; i < n->nin; i++) { /* all must be numbers, or all elements of one tensor */
        const pt2_array *x = in[i];

        if (!x || !x->term != !of->term || x->gain != 0 ||
            (x->term && (x->number || of->of != x->of || x->sigmoid)))
            return NULL;
        for (int d = 0; d < v->ndim && x->ndim == v->ndim; d++)
            same = same && (d == dim || x->size[d] == v->size[d]);
        if (!same || x->ndim != v->ndim)
            hvt__pt2_refuse(g, n, "the sizes of its tensors differ");
        length += x->size[dim];
    }
    if (length != v->size[dim])
        hvt__pt2_refuse(g, n, "its output is not as long as all its tensors together");
    y = hvt__array_output(g, n, n->nin, in, 1u << dim, of->term, loop);
    y->of = of->of;
    y->table = of->table;
    for (int i = 0; i < n->nin; first += in[i++]->size[dim])
        assign(in[i], part_of(g, y, dim, first, in[i]->size[dim], 1));
    return y;
}

/* slice_scatter: a copy of the first input in which the second one replaces a slice. */
static pt2_array *put(pt2_graph *g, pt2_node *n, const pt2_array *const *in)
{
    const pt2_array *x = hvt__array_only_numbers(g, n, in[0]), *part = hvt__array_only_numbers(g, n, in[1]);
    const int dim = n->is.slice.dim;
    pt2_array *y;

    if (!x || !part)
        return NULL;
    y = hvt__array_new(g, n, x->ndim, x->size, NULL, false);
    assign(x, y);
    assign(part, part_of(g, y, dim, n->is.slice.first, part->size[dim], n->is.slice.step));
    return y;
}

/* ---- indexing ---- */

/* An array of v's elements, each traced to itself. */
static pt2_array *elements_of(pt2_graph *g, pt2_node *n, pt2_value *v)
{
    pt2_array *x = v->ndim < 0 ? NULL : hvt__array_new(g, n, v->ndim, v->size, NULL, true);

    for (int64_t i = 0; x && i < hvt__pt2_count(v->ndim, v->size); i++)
        x->term[i] = (pt2_term){{(int32_t)i, -1}, {1, 0}};
    if (x)
        x->of = v, x->table = true;
    return x;
}

static pt2_array *take(pt2_graph *g, pt2_node *n, const pt2_array *const *in)
{
    pt2_value *v = n->in[0];
    const int dim = n->is.along.dim;
    const pt2_array *index = hvt__array_only_numbers(g, n, in[1]), *x = v->constant || v->array ? in[0]
                                                                        : v->computed           ? NULL
                                                                                      : elements_of(g, n, v);
    int64_t from[PT2_DIMS], size[PT2_DIMS];
    pt2_array *y;
    int ndim;

    if (!index || !x || (x->term && x->number))
        return NULL;
    ndim = x->ndim - 1 + index->ndim;
    if (dim >= x->ndim || ndim > PT2_DIMS)
        hvt__pt2_refuse(g, n, "it makes %d dimensions of %d", ndim, x->ndim);
    memcpy(size, x->size, (size_t)dim * sizeof *size);
    memcpy(size + dim, index->size, (size_t)index->ndim * sizeof *size);
    memcpy(size + dim + index->ndim, x->size + dim + 1, (size_t)(x->ndim - dim - 1) * sizeof *size);
    y = hvt__array_new_like(g, n, x, ndim, size);
    PT2_EACH(ndim, size, at)
    {
        const double i = hvt__array_number(index, index->ndim, at + dim);

        if (!(i >= -(double)x->size[dim] && i < (double)x->size[dim]) || i != floor(i))
            hvt__pt2_refuse(g, n, "its index %g is outside of %lld elements", i, (long long)x->size[dim]);
        memcpy(from, at, (size_t)dim * sizeof *from);
        from[dim] = (int64_t)i + (i < 0 ? x->size[dim] : 0);
        memcpy(from + dim + 1, at + dim + index->ndim, (size_t)(x->ndim - dim - 1) * sizeof *from);
        hvt__array_move(x, hvt__array_element(x, x->ndim, from), y, hvt__array_element(y, ndim, at));
    }
    return y;
}

pt2_move *const hvt__pt2_moves[PT2_OP_COUNT] = {
    [PT2_VIEW] = view,    [PT2_EXPAND] = expand, [PT2_PERMUTE] = permute, [PT2_SLICE] = slice,
    [PT2_REPEAT] = moved, [PT2_ROLL] = moved,    [PT2_CUMSUM] = cumulate, [PT2_CAT] = cat,
    [PT2_PUT] = put,      [PT2_INDEX] = take,
};
