/*
 * What moves elements and computes nothing: views, permutations, parts and joins of channels, pads and crops.
 */
#include "import.h"

#include <math.h>

enum { MANY = 1024 }; /* inputs of a cat */

/* ---- views ---- */

/* Of a parameter or a buffer: what its sizes are there, who reads it sees. */
static void view_state(importer *p, const tensor *x)
{
    const char *kind;
    const json_t *self = hvt__pt2_arg(p->node, hvt__pt2_first_argument(p), &kind);
    tensor y = *x;

    if (!y.viewed)
        y.viewed = json_string_value(json_object_get(self, "name"));
    hvt__pt2_out(p, 0, y, x);
}

/* The output's sizes say what it is: view, reshape, flatten, unflatten, squeeze, unsqueeze. */
static void view(importer *p)
{
    const tensor *x = hvt__pt2_uncut(p, hvt__pt2_first_argument(p));
    int64_t size[HVT__PT2_DIMS];
    int n;
    tensor y;

    if (x && x->state) {
        view_state(p, x);
        return;
    }
    if (hvt__pt2_view_scores(p))
        return;
    n = hvt__pt2_any_sizes(p, 0, size);
    if (!hvt__pt2_is_computed(p, x) || p->failed)
        return;
    y = *x;
    if (!hvt__pt2_view(&y.axes, n, size))
        hvt__pt2_refuse(p, "it mixes dimensions");
    hvt__pt2_out(p, 0, y, x);
}

/* A clone's memory is its own: what is changed there in place is not changed in x. */
static void same(importer *p)
{
    const tensor *x = hvt__pt2_uncut(p, hvt__pt2_first_argument(p));

    if (x && x->state && !p->operation->view && !x->constant && !x->viewed) {
        tensor y = *x;

        y.copied = true;
        hvt__pt2_out(p, 0, y, NULL);
    } else if (x && x->state) {
        hvt__pt2_out(p, 0, *x, x);
    } else if (hvt__pt2_is_computed(p, x)) {
        hvt__pt2_out(p, 0, *x, p->operation->view ? x : NULL);
    }
}

/* Numbers of a parameter's copy become 0, in place. */
static void zero(importer *p)
{
    const tensor *t = hvt__pt2_uncut(p, "self");
    tensor *copy = t && t->kind == HVT__PT2_PART ? &p->tensor[t->of] : NULL;

    if (!copy || copy->zeros_end) {
        hvt__pt2_refuse(p, "it changes what is computed; expected a part of a copy of a parameter, once");
        return;
    }
    copy->zeros = t->first;
    copy->zeros_end = t->first + t->count;
    hvt__pt2_out(p, 0, *t, NULL);
}

/* A type that it has already, as models say it that are made for several. */
static void same_type(importer *p)
{
    const char *kind, *in = json_string_value(
                          json_object_get(hvt__pt2_arg(p->node, hvt__pt2_first_argument(p), &kind), "name"));

    if (in && hvt__pt2_type(p->file, in) != hvt__pt2_type(p->file, hvt__pt2_out_name(p, 0)))
        hvt__pt2_refuse(p, "it converts what is computed to another type");
    else
        same(p);
}

/* expand: who reads it repeats it, and any operation whose output has the size of its input's pixels is held
 * against the file. */
static void expand(importer *p)
{
    const tensor *x = hvt__pt2_tensor(p, "self");
    int64_t size[HVT__PT2_DIMS];
    tensor y;

    if (x && x->state) {
        view_state(p, x);
        return;
    }
    if (x && x->kind == HVT__PT2_LENGTHS) {
        hvt__pt2_out(p, 0, *x, x);
        return;
    }
    if (!hvt__pt2_is_computed(p, x))
        return;
    y = *x;
    if (hvt__pt2_out_sizes(p, 0, size) != y.axes.ndim)
        hvt__pt2_refuse(p, "it adds dimensions");
    else if (size[0] > 1 && y.axes.end[0] == 0) /* a parameter's value, which has them already */
        hvt__pt2_set(&y.axes, 0, 'N', size[0]);
    hvt__pt2_out(p, 0, y, x);
}

/* Of a parameter, as expand. */
static void repeat(importer *p)
{
    const tensor *x = hvt__pt2_tensor(p, "self");

    if (x && x->state)
        view_state(p, x);
    else if (hvt__pt2_is_computed(p, x))
        hvt__pt2_refuse(p, "it repeats what is computed; expected a parameter");
}

static void permute(importer *p)
{
    const tensor *x = hvt__pt2_uncut(p, "self");
    int from[HVT__PT2_DIMS] = {0}, n;
    unsigned seen = 0;
    tensor y;

    if (!hvt__pt2_is_computed(p, x))
        return;
    y = *x;
    n = y.axes.ndim;
    hvt__pt2_ints(p, "dims", n, from);
    for (int i = 0; i < n && !p->failed; i++) {
        from[i] += from[i] < 0 ? n : 0;
        if (from[i] < 0 || from[i] >= n || seen >> from[i] & 1)
            hvt__pt2_refuse(p, "its dims are no permutation");
        else
            seen |= 1u << from[i];
    }
    if (p->failed)
        return;
    hvt__pt2_permute(&y.axes, from);
    hvt__pt2_out(p, 0, y, x);
}

static void swap(importer *p, int a, int b)
{
    const tensor *x = hvt__pt2_uncut(p, "self");
    int from[HVT__PT2_DIMS], n;
    tensor y;

    if (!hvt__pt2_is_computed(p, x))
        return;
    y = *x;
    n = y.axes.ndim;
    a += a < 0 ? n : 0, b += b < 0 ? n : 0;
    if (a < 0 || b < 0 || a >= n || b >= n) {
        hvt__pt2_refuse(p, "it transposes dimensions %d and %d of %d", a, b, n);
        return;
    }
    for (int i = 0; i < n; i++)
        from[i] = i == a ? b : i == b ? a : i;
    hvt__pt2_permute(&y.axes, from);
    hvt__pt2_out(p, 0, y, x);
}

static void transpose(importer *p)
{
    swap(p, hvt__pt2_int(p, "dim0", 0), hvt__pt2_int(p, "dim1", 0));
}

static void swap_axes(importer *p)
{
    swap(p, hvt__pt2_int(p, "axis0", 0), hvt__pt2_int(p, "axis1", 0));
}

/* mT of a tensor */
static void swap_last(importer *p)
{
    swap(p, -2, -1);
}

/* A single channel has no atom, so dimension i is it only if no other one may be. */
static bool is_channels(const hvt__pt2_axes *x, int i)
{
    int single = 0;

    for (int k = 1; k < x->ndim; k++)
        single += x->end[k] == x->end[k - 1];
    return hvt__pt2_has(x, i, 'C') || (hvt__pt2_is(x, i, 'C') && single == 1);
}

/* Do all dimensions but this one lie alike? */
static bool lie_alike(const hvt__pt2_axes *a, const hvt__pt2_axes *b, int but)
{
    bool alike = a->ndim == b->ndim;

    for (int i = 0; i < a->ndim && alike; i++)
        for (int k = 0; k < 4; k++)
            alike = alike && (i == but || hvt__pt2_has(a, i, "NCHW"[k]) == hvt__pt2_has(b, i, "NCHW"[k]));
    return alike;
}

/* Where dimension `dim` begins with the outermost part of the channels, that part; and how many of its
 * elements are neighbours in each of them. NULL: it does not. */
static hvt__pt2_atom *outermost_part(hvt__pt2_axes *x, int dim, int *ret_inner)
{
    const int begin = dim ? x->end[dim - 1] : 0;
    hvt__pt2_atom *a = &x->atom[begin];
    bool fits = x->end[dim] > begin && a->axis == 'C';

    *ret_inner = 1;
    for (int i = begin + 1; i < x->end[dim]; i++)
        *ret_inner *= (int)x->atom[i].extent;
    for (int i = 0; i < x->end[x->ndim - 1] && fits; i++)
        fits =
            &x->atom[i] == a || x->atom[i].axis != 'C' || x->atom[i].extent * x->atom[i].stride <= a->stride;
    return fits ? a : NULL;
}

/* Dimension `dim` is a part of the channels, and others turn more slowly: blocks of so many of its elements
 * become the outermost part, on the tape. */
static void make_outermost(importer *p, const tensor *t, int dim, int block)
{
    const int begin = dim ? t->axes.end[dim - 1] : 0;
    const hvt__pt2_atom a = t->axes.atom[begin];
    int shape[3], slower, inner;
    tensor *x = &p->tensor[t - p->tensor];
    hvt__pt2_axes *axes = &x->axes;

    if (axes->end[dim] - begin != 1 || a.axis != 'C' || outermost_part(axes, dim, &inner) ||
        a.extent % block || axes->end[axes->ndim - 1] == HVT__PT2_ATOMS)
        return;
    hvt__pt2_value(p, t);
    hvt_value_shape(p->m, x->v, shape);
    slower = (int)(shape[2] / (a.extent * a.stride));
    if (x->v < 0 || slower < 2)
        return;
    x->v =
        hvt_transpose(p->m, x->v, slower, (int)a.extent / block, (int)a.stride * block, shape[0], shape[1]);
    for (int i = 0; i < axes->end[axes->ndim - 1]; i++)
        if (axes->atom[i].axis == 'C' && axes->atom[i].stride > a.stride)
            axes->atom[i].stride /= a.extent / block;
    axes->atom[begin] = (hvt__pt2_atom){'C', a.extent / block, a.stride * block * slower};
    if (block > 1) {
        memmove(axes->atom + begin + 2, axes->atom + begin + 1,
                (size_t)(axes->end[axes->ndim - 1] - begin - 1) * sizeof a);
        axes->atom[begin + 1] = (hvt__pt2_atom){'C', block, a.stride};
        for (int i = dim; i < axes->ndim; i++)
            axes->end[i]++;
    }
    p->mistaken = p->mistaken || x->v < 0;
}

/* One whose dimension `dim`, counted from the end if negative, is the channels. */
static tensor along_channels(importer *p, const tensor *t, int *ret_dim)
{
    int dim = hvt__pt2_int(p, "dim", 0);
    tensor x = hvt__pt2_in_order(p, t);

    if (x.v < 0)
        return x;
    dim += dim < 0 ? x.axes.ndim : 0;
    if (dim < 0 || dim >= x.axes.ndim || !hvt__pt2_is(&x.axes, dim, 'C') || !is_channels(&x.axes, dim))
        hvt__pt2_refuse(p, "it is imported along channels only");
    *ret_dim = dim;
    return x;
}

static void cat_channels(importer *p, int n, const tensor **t)
{
    hvt_value v[MANY];
    hvt__pt2_axes axes = {0};
    int64_t size[HVT__PT2_DIMS];
    int dim = 1;

    for (int i = 0; i < n && !p->failed; i++) {
        tensor x = along_channels(p, t[i], &dim);

        v[i] = x.v;
        if (i > 0 && !p->failed && !lie_alike(&axes, &x.axes, dim))
            hvt__pt2_refuse(p, "the dimensions of one of its tensors were moved");
        if (i == 0 || hvt__pt2_has(&x.axes, dim, 'C'))
            axes = x.axes;
    }
    if (!p->failed && hvt__pt2_any_sizes(p, 0, size) != axes.ndim)
        hvt__pt2_refuse(p, "its output has other dimensions than its inputs");
    if (p->failed)
        return;
    hvt__pt2_set(&axes, dim, 'C', size[dim]);
    hvt__pt2_out_like(p, hvt_concat(p->m, v, n), &axes);
}

/* Dimension `dim`, all pixels, as tokens: one line of them. */
static hvt_value as_tokens(importer *p, const tensor *t, int dim, hvt__pt2_axes *ret_axes)
{
    int d[3];

    hvt_value_shape(p->m, t->v, d);
    *ret_axes = t->axes;
    hvt__pt2_set(ret_axes, dim, 'W', (int64_t)d[0] * d[1]);
    return d[0] == 1 ? t->v : hvt_reshape(p->m, t->v, 1, d[0] * d[1]);
}

/* Are all the same for each image, as parts of a parameter are? */
static bool all_alike(int n, const tensor **t)
{
    bool alike = true;

    for (int i = 0; i < n; i++)
        alike = alike && (t[i]->state || t[i]->alike);
    return alike;
}

/* Each [.., tokens, C]: values get pixels that are zeros around their own, and are added; so are parameters,
 * repeated over the images. */
static void cat_tokens(importer *p, int n, const tensor **t, int dim, const hvt__pt2_axes *like)
{
    int64_t out[HVT__PT2_DIMS], size[HVT__PT2_DIMS] = {0};
    const int ndim = all_alike(n, t) ? hvt__pt2_any_sizes(p, 0, out) : hvt__pt2_out_sizes(p, 0, out);
    hvt__pt2_axes axes = *like;
    hvt_value sum = -1;
    int64_t first = 0;

    for (int pass = 0; pass < 2; pass++, first = 0)
        for (int i = 0; i < n && !p->failed; i++, first += size[dim]) {
            bool fits = hvt__pt2_sizes(p->file, t[i]->name, HVT__PT2_DIMS, size) == ndim &&
                        size[dim] <= out[dim] - first;

            if (!t[i]->state) {
                hvt__pt2_axes is;
                hvt_value v;

                fits = fits && hvt__pt2_is_computed(p, t[i]) && hvt__pt2_is_pixels(&t[i]->axes, dim) &&
                       hvt__pt2_is(&t[i]->axes, ndim - 1, 'C');
                if (!fits)
                    hvt__pt2_refuse(p, "one of its tensors is not [N, tokens, C]");
                if (p->failed || pass)
                    continue;
                v = as_tokens(p, t[i], dim, &is);
                v = hvt_pad(p->m, v, 0, 0, (int)first, (int)(out[dim] - first - size[dim]));
                sum = sum < 0 ? v : hvt_add(p->m, sum, v);
            } else if (pass) {
                for (int k = 0; k < ndim && fits; k++)
                    fits = k == dim || size[k] == (k == ndim - 1 ? out[k] : 1) ||
                           (k == 0 && size[k] == p->file->batch);
                if (!fits)
                    hvt__pt2_refuse(p, "%s is not [1, tokens, C]", t[i]->state);
                else
                    sum = hvt__pt2_embedding(p, sum, (int)first, size[dim], t[i], ndim, size);
            }
        }
    hvt__pt2_set(&axes, dim, 'W', out[dim]);
    if (!p->failed)
        hvt__pt2_out(p, 0, (tensor){.v = sum, .axes = axes}, NULL);
}

/* Are all of them parameters, or constants, of one dimension? */
static bool are_rows(importer *p, int n, const tensor **t)
{
    int64_t size[1];
    bool rows = true;

    for (int i = 0; i < n && rows; i++)
        rows = (t[i]->state || t[i]->known) && hvt__pt2_sizes(p->file, t[i]->name, 1, size) == 1;
    return rows;
}

/* For the bias of a layer, which is put together so. */
static void join_rows(importer *p, int n, const tensor **t)
{
    int *joined = hvt__pt2_keep(p, (size_t)n * sizeof *joined);

    for (int i = 0; i < n && joined; i++)
        joined[i] = hvt__pt2_index(p, t[i]);
    if (joined)
        hvt__pt2_out(p, 0, (tensor){.kind = HVT__PT2_JOINED, .v = -1, .joined = joined, .njoined = n}, NULL);
}

static void cat(importer *p)
{
    const tensor *t[MANY];
    int n = hvt__pt2_tensors(p, "tensors", MANY, t), dim = hvt__pt2_int(p, "dim", 0);

    if (n < 1)
        hvt__pt2_refuse(p, "it has no tensors");
    if (!p->failed && are_rows(p, n, t)) {
        join_rows(p, n, t);
        return;
    }
    for (int i = 0; i < n && !p->failed; i++) {
        const int nth = t[i]->axes.ndim, at = dim < 0 ? dim + nth : dim;

        if (!t[i]->state && nth == 3 && at == 1 && hvt__pt2_is_pixels(&t[i]->axes, at) &&
            hvt__pt2_is(&t[i]->axes, nth - 1, 'C')) {
            cat_tokens(p, n, t, at, &t[i]->axes);
            return;
        }
    }
    if (!p->failed)
        cat_channels(p, n, t);
}

/* [N, tokens, C], or windows of them: attention reads parts of its channels where they are. */
static bool is_of_tokens(const hvt__pt2_axes *x)
{
    return x->ndim == 3 || (x->ndim > 3 && hvt__pt2_is(x, x->ndim - 1, 'C') && !hvt__pt2_plain(x));
}

static void cut(importer *p, int i, int dim, int64_t first, int64_t end, int64_t step);

static int64_t divisor(int64_t a, int64_t b)
{
    while (b) {
        const int64_t rest = a % b;

        a = b, b = rest;
    }
    return a;
}

/* A dimension, counted from the end if negative, that is one part of the channels, or the outermost one and
 * what its steps hold; not all channels, nor several parts in another order, as behind a channel shuffle. */
static bool is_part_of_channels(const hvt__pt2_axes *x, int *dim)
{
    const int at = *dim < 0 ? *dim + x->ndim : *dim,
              atoms = at > 0 && at < x->ndim ? x->end[at] - x->end[at - 1] : 0;
    hvt__pt2_axes copy = *x;
    int inner;

    if (!atoms || hvt__pt2_is(x, at, 'C') || x->atom[x->end[at - 1]].axis != 'C' ||
        (atoms > 1 && !outermost_part(&copy, at, &inner)))
        return false;
    *dim = at;
    return true;
}

int hvt__pt2_parts(importer *p, const tensor *t, int dim, int most, hvt_value *ret_v)
{
    const hvt__pt2_axes *axes = &t->axes;
    const hvt__pt2_atom *a;
    int shape[3];
    hvt_value x;

    if (!is_part_of_channels(axes, &dim) || axes->end[dim] != axes->end[dim - 1] + 1 ||
        axes->atom[axes->end[dim - 1]].extent > most)
        return 0;
    make_outermost(p, t, dim, 1);
    a = &axes->atom[axes->end[dim - 1]];
    x = hvt__pt2_value(p, t);
    hvt_value_shape(p->m, x, shape);
    if (x < 0 || shape[2] != a->extent * a->stride)
        return 0;
    for (int i = 0; i < a->extent; i++)
        ret_v[i] = hvt_slice(p->m, x, i * (int)a->stride, (int)a->stride);
    return (int)a->extent;
}

/* Along a new dimension: the outermost part of the channels. */
static void stack(importer *p)
{
    const tensor *t[MANY];
    hvt_value v[MANY];
    const int n = hvt__pt2_tensors(p, "tensors", MANY, t);
    int dim = hvt__pt2_int(p, "dim", 0), shape[3];
    tensor first;

    if (n < 1)
        hvt__pt2_refuse(p, "it has no tensors");
    for (int i = 0; i < n && !p->failed; i++) {
        const tensor x = hvt__pt2_in_order(p, t[i]);

        v[i] = x.v;
        first = i ? first : x;
        if (!p->failed && !hvt__pt2_same(&x.axes, &first.axes))
            hvt__pt2_refuse(p, "the dimensions of one of its tensors were moved");
    }
    if (p->failed)
        return;
    hvt_value_shape(p->m, v[0], shape);
    dim += dim < 0 ? first.axes.ndim + 1 : 0;
    if (dim < 1 || dim > first.axes.ndim ||
        !hvt__pt2_insert(&first.axes, dim, (hvt__pt2_atom){'C', n, shape[2]})) {
        hvt__pt2_refuse(p, "its dimension is %d of %d; expected one behind the batch", dim,
                        first.axes.ndim + 1);
        return;
    }
    if (n == 1)
        hvt__pt2_reduce(&first.axes, dim);
    hvt__pt2_out_like(p, hvt_concat(p->m, v, n), &first.axes);
}

/* chunk and split: parts of the channels, whose sizes the outputs say. Those that nobody reads are left out.
 */
static void chunk(importer *p)
{
    const tensor *x = hvt__pt2_tensor(p, "self");
    const int outs = hvt__pt2_outs(p);
    int first = 0, dim = hvt__pt2_int(p, "dim", 0);
    tensor whole;

    if (!hvt__pt2_is_computed(p, x))
        return;
    if (is_part_of_channels(&x->axes, &dim)) {
        int64_t size[HVT__PT2_DIMS], block = 0;

        for (int pass = 0; pass < 2; pass++, first = 0) {
            for (int i = 0; i < outs && !p->failed && !p->mistaken; i++) {
                if (hvt__pt2_any_sizes(p, i, size) != x->axes.ndim || size[dim] > INT_MAX - first)
                    hvt__pt2_refuse(p, "its outputs have other dimensions than its input");
                else if (!pass)
                    block = divisor(block, size[dim]);
                else if (hvt__pt2_is_read(p, i))
                    cut(p, i, dim, first, first + size[dim], 1);
                first += p->failed ? 0 : (int)size[dim];
            }
            if (!pass && !p->failed && block)
                make_outermost(p, x, dim, (int)block);
        }
        return;
    }
    whole = along_channels(p, x, &dim);
    for (int i = 0; i < outs && !p->failed && !p->mistaken; i++) {
        int64_t size[HVT__PT2_DIMS];
        tensor part = whole;

        if (hvt__pt2_any_sizes(p, i, size) != part.axes.ndim || size[dim] > INT_MAX - first) {
            hvt__pt2_refuse(p, "its outputs have other dimensions than its input");
            return;
        }
        hvt__pt2_set(&part.axes, dim, 'C', size[dim]);
        if (hvt__pt2_is_read(p, i)) {
            if (is_of_tokens(&part.axes)) {
                part.first = first;
                part.count = (int)size[dim];
            } else {
                part.v = hvt_slice(p->m, whole.v, first, (int)size[dim]);
            }
            hvt__pt2_out(p, i, part, x);
        }
        first += (int)size[dim];
    }
}

/* ---- parts of an axis, and pads ---- */

/* Elements first, first + step ... before `end` of one axis. */
static hvt_value part_of(importer *p, hvt_value x, char axis, int size, int first, int end, int step)
{
    const int cut[2] = {-first, end - size};

    if (axis == 'C' && step != 1)
        hvt__pt2_refuse(p, "it takes every %d-th channel; expected channels that are neighbours", step);
    if (p->failed)
        return -1;
    if (axis == 'C')
        return hvt_slice(p->m, x, first, end - first);
    if (first > 0 || end < size)
        x = axis == 'H' ? hvt_pad(p->m, x, cut[0], cut[1], 0, 0) : hvt_pad(p->m, x, 0, 0, cut[0], cut[1]);
    return step == 1
               ? x
               : hvt_pool_with(p->m, x, HVT_POOL_MEAN,
                               &(hvt_pool_opts){.size = {1, 1},
                                                .stride = {axis == 'H' ? step : 1, axis == 'W' ? step : 1}});
}

/* The axis that dimension i is all of; 0: it is none. */
static char axis_of(const hvt__pt2_axes *x, int i)
{
    for (const char *axis = "CHW"; *axis; axis++)
        if (hvt__pt2_has(x, i, *axis) && hvt__pt2_is(x, i, *axis))
            return *axis;
    return 0;
}

/* Elements first ... before `end` of dimension `dim` of x, which is the channels of tokens, or the outermost
 * one of several that the channels were divided into: they stay side by side. False: it is neither. */
static bool cut_outermost(tensor *x, int dim, int first, int end)
{
    int inner;
    hvt__pt2_atom *part = outermost_part(&x->axes, dim, &inner);

    if (x->count || !part || (hvt__pt2_is(&x->axes, dim, 'C') && !is_of_tokens(&x->axes)) || first % inner ||
        end % inner)
        return false;
    first /= inner, end /= inner;
    x->first = first * (int)part->stride;
    x->count = (end - first) * (int)part->stride;
    part->extent = end - first;
    if (part->extent == 1 && inner == 1)
        hvt__pt2_reduce(&x->axes, dim);
    return true;
}

/* Output i: elements first, first + step ... before `end` of dimension `dim`. */
static void cut(importer *p, int i, int dim, int64_t first, int64_t end, int64_t step)
{
    const tensor *t = hvt__pt2_uncut(p, "self");
    int64_t in[HVT__PT2_DIMS], out[HVT__PT2_DIMS];
    int n = hvt__pt2_argument_sizes(p, "self", HVT__PT2_DIMS, in), to;
    tensor x;
    char axis;

    if (t && t->copied && n == 1 && step == 1) {
        x = (tensor){.kind = HVT__PT2_PART,
                     .of = hvt__pt2_index(p, t),
                     .v = -1,
                     .first = (int)hvt__pt2_within(first, in[0])};
        x.count = (int)hvt__pt2_within(end, in[0]) - x.first;
        hvt__pt2_out(p, i, x, t);
        return;
    }
    if (!hvt__pt2_is_computed(p, t) || p->failed)
        return;
    dim += dim < 0 ? n : 0;
    if (n != t->axes.ndim || dim < 0 || dim >= n || step < 1 || step > INT_MAX) {
        hvt__pt2_refuse(p, "it takes every %lld-th of dimension %d of %d", (long long)step, dim, n);
        return;
    }
    first = hvt__pt2_within(first, in[dim]);
    end = hvt__pt2_within(end, in[dim]);
    if (hvt__pt2_has(&t->axes, dim, 'N') && (first > 0 || end < in[dim] || step > 1))
        hvt__pt2_refuse(p, "it takes a part of the batch; expected parts of images");
    to = hvt__pt2_any_sizes(p, i, out);
    if (p->failed)
        return;
    x = *t;
    if (first > 0 || end < in[dim] || step > 1) {
        if (end <= first)
            hvt__pt2_refuse(p, "nothing is left of dimension %d", dim);
        if (p->failed)
            return;
        if (step == 1 && is_part_of_channels(&t->axes, &dim)) {
            make_outermost(p, t, dim, (int)divisor(divisor(first, end), in[dim]));
            x = *t;
        }
        if (step > 1 || !cut_outermost(&x, dim, (int)first, (int)end)) {
            x = hvt__pt2_in_order(p, hvt__pt2_tensor(p, "self"));
            if (x.v >= 0 && !axis_of(&x.axes, dim) && hvt__pt2_is_pixels(&x.axes, dim))
                x.v = as_tokens(p, &x, dim, &x.axes);
            axis = axis_of(&x.axes, dim);
            if (!axis)
                hvt__pt2_refuse(p, "dimension %d is not channels, rows or columns: dimensions were joined",
                                dim);
            x.v = part_of(p, x.v, axis, (int)in[dim], (int)first, (int)end, (int)step);
            hvt__pt2_set(&x.axes, dim, axis, (end - first + step - 1) / step);
        }
    }
    if (!p->failed && x.v >= 0 && !hvt__pt2_view(&x.axes, to, out))
        hvt__pt2_refuse(p, "its output has other dimensions than what it takes");
    hvt__pt2_out(p, i, x, t);
}

static void slice(importer *p)
{
    cut(p, 0, hvt__pt2_int(p, "dim", 0), hvt__pt2_place(p, "start", 0), hvt__pt2_place(p, "end", INT64_MAX),
        hvt__pt2_place(p, "step", 1));
}

static void narrow(importer *p)
{
    const int64_t first = hvt__pt2_place(p, "start", 0), length = hvt__pt2_int(p, "length", 1);
    const bool to_end = first < 0 && first + length >= 0;

    cut(p, 0, hvt__pt2_int(p, "dim", 0), first, to_end ? INT64_MAX : first + length, 1);
}

static void select_one(importer *p)
{
    const int64_t index = hvt__pt2_int(p, "index", 0);

    cut(p, 0, hvt__pt2_int(p, "dim", 0), index, index == -1 ? INT64_MAX : index + 1, 1);
}

/* All elements of a dimension, each a tensor. */
static void unbind(importer *p)
{
    const int outs = hvt__pt2_outs(p);

    for (int i = 0; i < outs && !p->failed && !p->mistaken; i++)
        if (hvt__pt2_is_read(p, i))
            cut(p, i, hvt__pt2_int(p, "dim", 0), i, i + 1, 1);
}

/* The axis of each dimension of an image, a turned image or a row; NULL: it is another tensor. */
static const char *axes_in(importer *p, const hvt__pt2_axes *x)
{
    static const char *const orders[] = {"NCHW", "NHWC", "NC"};

    for (size_t i = 0; i < HVT_LEN(orders); i++) {
        bool same = x->ndim == (int)strlen(orders[i]);

        for (int k = 1; k < x->ndim && same; k++)
            same = hvt__pt2_is(x, k, orders[i][k]);
        if (same)
            return orders[i];
    }
    hvt__pt2_refuse(p,
                    "its input is none of [N,C,H,W], [N,H,W,C], [N,C]: its dimensions were moved or joined");
    return NULL;
}

/* The axes of a tensor of other sizes. */
static hvt__pt2_axes resized(const char *axes, const int64_t *size)
{
    const int64_t turned[4] = {size[0], size[3], size[1], size[2]};
    hvt__pt2_axes x;

    if (strcmp(axes, "NHWC") != 0)
        return hvt__pt2_axes_of((int)strlen(axes), size);
    x = hvt__pt2_axes_of(4, turned);
    hvt__pt2_permute(&x, (int[]){0, 2, 3, 1});
    return x;
}

/* As many in front as behind, as shortcuts of residual networks have them. */
static hvt_value pad_channels(importer *p, hvt_value x, int front, int behind)
{
    int shape[3];

    if (!front && !behind)
        return x;
    hvt_value_shape(p->m, x, shape);
    if (front < 0 || front != behind || front > (1 << 20))
        hvt__pt2_refuse(p, "it adds %d channels in front and %d behind; expected as many behind", front,
                        behind);
    return p->failed ? -1 : hvt_subsample(p->m, x, 1, shape[2] + 2 * front);
}

/* -inf around rows and columns; false: it is something else. */
static bool pad_for_maximum(importer *p, const tensor *t, double value, int by[4][2])
{
    if (value != -INFINITY || by[1][0] || by[1][1])
        return false;
    for (int i = 2; i < 4; i++)
        if (by[i][0] < 0 || by[i][1] < by[i][0] || by[i][1] - by[i][0] > 1)
            return false;
    hvt__pt2_out(p, 0,
                 (tensor){.kind = HVT__PT2_PADDED,
                          .v = -1,
                          .of = hvt__pt2_index(p, t),
                          .front = {by[2][0], by[3][0]},
                          .more_behind = by[2][1] > by[2][0] || by[3][1] > by[3][0]},
                 NULL);
    return true;
}

/* Two numbers for each dimension, from the last one on. */
static void pad(importer *p)
{
    const tensor *t = hvt__pt2_tensor(p, "self");
    const char *mode = hvt__pt2_string(p, "mode", "constant"), *axes;
    const double value = hvt__pt2_float(p, "value", 0);
    int around[2 * HVT__PT2_DIMS] = {0}, n = hvt__pt2_list(p, "pad", 2 * HVT__PT2_DIMS, around),
                   by[4][2] = {{0}}, nothing = 0;
    int64_t size[HVT__PT2_DIMS];
    tensor x;

    while (nothing < n && !around[nothing])
        nothing++;
    if (nothing == n && hvt__pt2_is_computed(p, t)) {
        hvt__pt2_out(p, 0, *t, NULL);
        return;
    }
    x = hvt__pt2_in_order(p, t);
    axes = p->failed ? NULL : axes_in(p, &x.axes);
    if (strcmp(mode, "constant") != 0 || (value != 0 && value != -INFINITY))
        hvt__pt2_refuse(p, "it pads with %s; expected zeros, or, for max_pool2d, -inf",
                        strcmp(mode, "constant") ? mode : "another number");
    if (axes && (n % 2 || n > 2 * x.axes.ndim))
        hvt__pt2_refuse(p, "its argument pad has %d numbers for %d dimensions", n, x.axes.ndim);
    if (p->failed)
        return;
    for (int i = 0; i < n / 2; i++)
        memcpy(by[strchr("NCHW", axes[x.axes.ndim - 1 - i]) - "NCHW"], around + 2 * i, sizeof by[0]);
    if (by[0][0] || by[0][1])
        hvt__pt2_refuse(p, "it pads the batch; expected images");
    if (p->failed || pad_for_maximum(p, t, value, by))
        return;
    if (value != 0)
        hvt__pt2_refuse(
            p, "it pads with -inf; expected rows and columns, behind as many as in front or one more");
    x.v = pad_channels(p, x.v, by[1][0], by[1][1]);
    if (x.v >= 0 && (by[2][0] || by[2][1] || by[3][0] || by[3][1]))
        x.v = hvt_pad(p->m, x.v, by[2][0], by[2][1], by[3][0], by[3][1]);
    if (hvt__pt2_out_sizes(p, 0, size) != x.axes.ndim)
        hvt__pt2_refuse(p, "its output has other dimensions than its input");
    if (!p->failed)
        hvt__pt2_out(p, 0, (tensor){.v = x.v, .axes = resized(axes, size)}, NULL);
}

/* Rows or columns around the image: nothing is moved, but what reads it looks where they are. */
static void roll(importer *p)
{
    const tensor *t = hvt__pt2_uncut(p, "self");
    int shift[HVT__PT2_DIMS], dim[HVT__PT2_DIMS], n = hvt__pt2_list(p, "shifts", HVT__PT2_DIMS, shift);
    tensor x;

    if (!hvt__pt2_is_computed(p, t))
        return;
    x = *t;
    if (hvt__pt2_list(p, "dims", HVT__PT2_DIMS, dim) != n)
        hvt__pt2_refuse(p, "its shifts are not as many as its dims");
    for (int i = 0; i < n && !p->failed; i++) {
        dim[i] += dim[i] < 0 ? x.axes.ndim : 0;
        if (dim[i] < 0 || dim[i] >= x.axes.ndim || !hvt__pt2_roll(&x.axes, dim[i], shift[i]))
            hvt__pt2_refuse(p, "its dimension %d is not all rows or all columns of an image", dim[i]);
    }
    hvt__pt2_out(p, 0, x, NULL);
}

/* ---- the table ---- */

static const operation table[] = {
    {"aten.view.default", view, .view = true},
    {"aten._unsafe_view.default", view, .view = true},
    {"aten.reshape.default", view, .view = true},
    {"aten.flatten.using_ints", view, .view = true},
    {"aten.unflatten.int", view, .view = true},
    {"aten.reshape_as.default", view, .view = true},
    {"aten.view_as.default", view, .view = true},
    {"aten.squeeze.dim", view, .view = true},
    {"aten.squeeze.dims", view, .view = true},
    {"aten.unsqueeze.default", view, .view = true},
    {"aten.expand.default", expand, .view = true},
    {"aten.expand_as.default", expand, .view = true},
    {"aten.repeat.default", repeat},
    {"aten.broadcast_to.default", expand, .view = true},
    {"aten.contiguous.default", same, .view = true},
    {"aten.clone.default", same},
    {"aten.alias.default", same, .view = true},
    {"aten.to.dtype", same_type, .view = true},
    {"aten.to.device", same_type, .view = true},
    {"aten.to.dtype_layout", same_type, .view = true},
    {"aten.type_as.default", same_type, .view = true},
    {"aten.zero.default", zero},
    {"aten.permute.default", permute, .view = true},
    {"aten.transpose.int", transpose, .view = true},
    {"aten.swapaxes.default", swap_axes, .view = true},
    {"aten.mT.default", swap_last, .view = true},
    {"aten.roll.default", roll},
    {"aten.cat.default", cat},
    {"aten.stack.default", stack},
    {"aten.chunk.default", chunk, .view = true},
    {"aten.split.Tensor", chunk, .view = true},
    {"aten.split_with_sizes.default", chunk, .view = true},
    {"aten.slice.Tensor", slice, .view = true},
    {"aten.narrow.default", narrow, .view = true},
    {"aten.select.int", select_one, .view = true},
    {"aten.unbind.int", unbind, .view = true},
    {"aten.pad.default", pad},
    {"aten.constant_pad_nd.default", pad},
};

const operations hvt__pt2_moves = {table, HVT_LEN(table)};
