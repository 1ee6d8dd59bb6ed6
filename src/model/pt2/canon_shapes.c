/*
 * Views, slices, joins and constants. Most views follow from the sizes of their outputs.
 */
#include "canon.h"

/* Erases n, whose outputs other nodes make now, or are other tensors. */
static void made(pt2_graph *g, pt2_node *n)
{
    hvt__pt2_erase(g, n);
    n->op = PT2_CLONE;
    n->nout = 0;
}

/* Makes output 0 another name of x. */
static void same(pt2_graph *g, pt2_node *n, pt2_value *x)
{
    hvt__alias_is_same(g, n->out[0], x);
    made(g, n);
}

/* A copy of the first argument with memory of its own, or a repetition of it. */
static void unary(pt2_graph *g, pt2_node *n, const pt2_row *r)
{
    hvt__canon_unary(g, n, (pt2_op)r->of, (pt2_attributes){0});
}

/* ---- views that follow from the output's sizes ---- */

/* view, flatten, squeeze ...; of: may be a copy, like a reshape of a tensor that is not dense. */
static void view(pt2_graph *g, pt2_node *n, const pt2_row *r)
{
    hvt__canon_unary(g, n, PT2_VIEW, (pt2_attributes){0});
    if (!r->of || n->in[0]->dense || !n->out[0]->dense)
        hvt__alias_is_view(g, n->out[0]);
}

static void expand(pt2_graph *g, pt2_node *n, const pt2_row *r)
{
    hvt__canon_unary(g, n, PT2_EXPAND, (pt2_attributes){0});
    hvt__alias_is_view(g, n->out[0]);
}

static void contiguous(pt2_graph *g, pt2_node *n, const pt2_row *r)
{
    pt2_value *x = hvt__canon_first(g, n);

    if (x->dense)
        same(g, n, x);
    else
        unary(g, n, r);
}

static void alias(pt2_graph *g, pt2_node *n, const pt2_row *r)
{
    same(g, n, hvt__canon_first(g, n));
}

/* Converts to the output's type; the same tensor if it has that type already. */
static void convert(pt2_graph *g, pt2_node *n, const pt2_row *r)
{
    pt2_value *x = hvt__canon_first(g, n);

    if (x->type != n->out[0]->type)
        hvt__canon_unary(g, n, PT2_CAST, (pt2_attributes){0});
    else if (hvt__arg_bool(g, n, "copy", false))
        hvt__canon_unary(g, n, PT2_CLONE, (pt2_attributes){0});
    else
        same(g, n, x);
}

static void permuted(pt2_graph *g, pt2_node *n, const int *from, int ndim)
{
    pt2_attributes is = {.dims = {.n = ndim}};

    memcpy(is.dims.dim, from, (size_t)ndim * sizeof *from);
    hvt__canon_unary(g, n, PT2_PERMUTE, is);
    hvt__alias_is_view(g, n->out[0]);
}

static void permute(pt2_graph *g, pt2_node *n, const pt2_row *r)
{
    const int ndim = hvt__canon_first(g, n)->ndim;
    int from[PT2_DIMS] = {0};
    unsigned seen = 0;

    hvt__arg_ints(g, n, "dims", ndim, from);
    for (int i = 0; i < ndim; i++) {
        from[i] += from[i] < 0 ? ndim : 0;
        if (from[i] < 0 || from[i] >= ndim || seen >> from[i] & 1)
            hvt__pt2_refuse(g, n, "its dims are not a permutation");
        seen |= 1u << from[i];
    }
    permuted(g, n, from, ndim);
}

static int dim_of(pt2_graph *g, pt2_node *n, const pt2_operand *of, int ndim)
{
    const int otherwise = (int)of->otherwise;

    return hvt__dim(g, n, of->argument ? hvt__arg_int(g, n, of->argument, otherwise) : otherwise, ndim);
}

/* transpose, swapaxes, and mT, which swaps the last two dimensions */
static void transpose(pt2_graph *g, pt2_node *n, const pt2_row *r)
{
    const int ndim = hvt__canon_first(g, n)->ndim, a = dim_of(g, n, &r->a, ndim),
              b = dim_of(g, n, &r->b, ndim);
    int from[PT2_DIMS];

    for (int i = 0; i < ndim; i++)
        from[i] = i == a ? b : i == b ? a : i;
    permuted(g, n, from, ndim);
}

/* ---- slices and joins ---- */

static int64_t divisor(int64_t a, int64_t b)
{
    while (b) {
        const int64_t rest = a % b;

        a = b, b = rest;
    }
    return a;
}

/* Inserts a view `op` of x before n, with output `out`. */
static void make_view(pt2_graph *g, pt2_node *n, pt2_op op, const pt2_attributes *is, pt2_value *x,
                      pt2_value *out)
{
    pt2_node *view = hvt__pt2_node(g, n, n, op);

    view->is = *is;
    hvt__pt2_inputs(g, view, 1, &x);
    hvt__pt2_outputs(g, view, 1, &out);
    hvt__alias_is_view(g, out);
}

/* `out` is the slice [first:end:step] of dimension `dim` of x, without that dimension if it has one dimension
 * less. */
static void part(pt2_graph *g, pt2_node *n, pt2_value *x, pt2_value *out, int dim, int64_t first_one,
                 int64_t end, int64_t step, int64_t block)
{
    const pt2_attributes is = {
        .slice = {.dim = dim, .first = first_one, .end = end, .step = step, .block = block}};
    pt2_value *y = hvt__pt2_value(g, x);

    y->size[dim] = (end - first_one + step - 1) / step;
    if (out->ndim != x->ndim - 1) {
        if (!hvt__pt2_same_sizes(y, out))
            hvt__pt2_refuse(g, n, "its output has other dimensions than what it takes");
        out->type = x->type;
        make_view(g, n, PT2_SLICE, &is, x, out);
        return;
    }
    make_view(g, n, PT2_SLICE, &is, x, y);
    make_view(g, n, PT2_VIEW, &(pt2_attributes){0}, y, out);
}

static int64_t within(int64_t at, int64_t size)
{
    at += at < 0 ? size : 0;
    return at < 0 ? 0 : at > size ? size : at;
}

/* slice, narrow, select */
static void cut(pt2_graph *g, pt2_node *n, const pt2_row *r)
{
    pt2_value *x = hvt__canon_first(g, n);
    const int dim = hvt__arg_dim(g, n, "dim", 0, x->ndim);
    const int64_t size = x->size[dim];
    int64_t begin = hvt__arg_long(g, n, r->a.argument, 0), end = INT64_MAX, step = 1;

    if (r->of == 's') {
        end = hvt__arg_long(g, n, "end", INT64_MAX);
        step = hvt__arg_long(g, n, "step", 1);
    } else {
        const int64_t length = r->of == 'n' ? hvt__arg_int(g, n, "length", 1) : 1;

        end = begin < 0 && begin + length >= 0 ? INT64_MAX : begin + length;
    }
    if (step < 1 || step > INT_MAX)
        hvt__pt2_refuse(g, n, "it takes every %lld-th of dimension %d of %d", (long long)step, dim, x->ndim);
    if (r->of == 'i' && (begin < -size || begin >= size))
        hvt__pt2_refuse(g, n, "it selects element %lld of %lld", (long long)begin, (long long)size);
    begin = within(begin, size), end = within(end, size);
    end = end < begin ? begin : end;
    part(g, n, x, n->out[0], dim, begin, end, step, divisor(divisor(begin, end), size));
    made(g, n);
}

/* chunk, split, unbind: slices whose sizes are those of the outputs; unbind drops the dimension. */
static void parts(pt2_graph *g, pt2_node *n, const pt2_row *r)
{
    pt2_value *x = hvt__canon_first(g, n);
    const int dim = hvt__arg_dim(g, n, "dim", 0, x->ndim);
    int64_t begin = 0, block = 0, *count = hvt__pt2_make(g, (size_t)n->nout * sizeof *count);

    for (int i = 0; i < n->nout; i++) {
        const pt2_value *y = n->out[i];

        count[i] = y->ndim == x->ndim ? y->size[dim] : 1;
        if ((y->ndim != x->ndim && y->ndim != x->ndim - 1) || count[i] > x->size[dim] - begin)
            hvt__pt2_refuse(g, n, "its outputs have other dimensions than its input");
        begin += count[i];
        block = divisor(block, count[i]);
    }
    begin = 0;
    for (int i = 0; i < n->nout; begin += count[i++])
        part(g, n, x, n->out[i], dim, begin, begin + count[i], 1, block);
    made(g, n);
}

/* cat; stack if `of`: along a new dimension */
static void cat(pt2_graph *g, pt2_node *n, const pt2_row *r)
{
    pt2_value **in, like = *n->out[0];
    const int count = hvt__canon_tensors(g, n, "tensors", &in);
    const int dim = hvt__arg_dim(g, n, "dim", 0, like.ndim);

    like.size[dim] = 1;
    for (int i = 0; i < count; i++) {
        if (in[i]->ndim != like.ndim - r->of)
            hvt__pt2_refuse(g, n, "the sizes of its tensors differ");
        if (r->of)
            in[i] = hvt__pt2_compute(g, n, n, PT2_VIEW, NULL, 1, &in[i], &like);
    }
    hvt__pt2_become(g, n, PT2_CAT, &(pt2_attributes){.along = {dim}}, count, in);
}

/* meshgrid: output i has all dimensions and varies along its own as x[i]; "xy" swaps the first two. */
static void meshgrid(pt2_graph *g, pt2_node *n, const pt2_row *r)
{
    const bool exchanged = !strcmp(hvt__arg_string(g, n, "indexing", "ij"), "xy");
    pt2_value **in;
    const int count = hvt__canon_tensors(g, n, "tensors", &in);

    if (count > PT2_DIMS || count != n->nout)
        hvt__pt2_refuse(g, n, "it has %d tensors and %d outputs", count, n->nout);
    for (int i = 0; i < count; i++) {
        const int own = exchanged && count > 1 && i < 2 ? 1 - i : i;
        pt2_value like = *n->out[i];

        for (int d = 0; d < PT2_DIMS; d++)
            like.size[d] = d == own ? like.size[d] : 1;
        if (like.ndim != count || in[i]->ndim != 1 || in[i]->size[0] != like.size[own])
            hvt__pt2_refuse(g, n, "its outputs have other dimensions than its tensors make");
        in[i] = hvt__pt2_compute(g, n, n, PT2_VIEW, NULL, 1, &in[i], &like);
        make_view(g, n, PT2_EXPAND, &(pt2_attributes){0}, in[i], n->out[i]);
    }
    made(g, n);
}

/* Repeats each element so many times in a row; flattens first if no dimension is given. */
static void repeat_each(pt2_graph *g, pt2_node *n, const pt2_row *r)
{
    pt2_value *x = hvt__canon_first(g, n), like = *x;
    const int64_t times = hvt__arg_int(g, n, "repeats", 1);
    int dim = 0;

    if (hvt__arg(n, "dim"))
        dim = hvt__arg_dim(g, n, "dim", 0, x->ndim);
    else
        like.size[0] = hvt__pt2_count(x->ndim, x->size), like.ndim = 1;
    if (times < 1 || like.ndim >= PT2_DIMS || like.ndim < 1)
        hvt__pt2_refuse(g, n, "its output does not repeat its input");
    memmove(like.size + dim + 2, like.size + dim + 1, (size_t)(PT2_DIMS - dim - 2) * sizeof *like.size);
    like.size[dim + 1] = 1;
    like.ndim++;
    x = hvt__pt2_compute(g, n, n, PT2_VIEW, NULL, 1, &x, &like);
    like.size[dim + 1] = times;
    x = hvt__pt2_compute(g, n, n, PT2_EXPAND, NULL, 1, &x, &like);
    if (hvt__pt2_count(n->out[0]->ndim, n->out[0]->size) != hvt__pt2_count(like.ndim, like.size))
        hvt__pt2_refuse(g, n, "its output does not repeat its input");
    hvt__pt2_become(g, n, PT2_VIEW, &(pt2_attributes){0}, 1, &x);
}

static void pad(pt2_graph *g, pt2_node *n, const pt2_row *r)
{
    pt2_attributes is = {.pad = {.mode = hvt__arg_string(g, n, "mode", "constant")}};
    int nothing = 0;

    is.pad.value = hvt__arg_float(g, n, "value", 0);
    is.pad.n = hvt__arg_list(g, n, "pad", 2 * PT2_DIMS, is.pad.by);
    while (nothing < is.pad.n && !is.pad.by[nothing])
        nothing++;
    hvt__canon_unary(g, n, nothing == is.pad.n ? PT2_CLONE : PT2_PAD, is);
}

static void roll(pt2_graph *g, pt2_node *n, const pt2_row *r)
{
    const int ndim = hvt__canon_first(g, n)->ndim;
    pt2_attributes is = {0};
    int shifts;

    shifts = hvt__arg_list(g, n, "shifts", PT2_DIMS, is.dims.shift);
    is.dims.n = hvt__arg_list(g, n, "dims", PT2_DIMS, is.dims.dim);
    if (is.dims.n != shifts || shifts < 1)
        hvt__pt2_refuse(g, n, "it has %d shifts for %d dims; expected one for each", shifts, is.dims.n);
    for (int i = 0; i < is.dims.n; i++)
        is.dims.dim[i] = hvt__dim(g, n, is.dims.dim[i], ndim);
    hvt__canon_unary(g, n, PT2_ROLL, is);
}

/* unfold: windows of a dimension, with a new dimension within the window. flip: a dimension in reverse. */
static void unfold(pt2_graph *g, pt2_node *n, const pt2_row *r)
{
    const pt2_value *x = hvt__canon_first(g, n);
    const int dim = hvt__arg_dim(g, n, "dimension", 0, x->ndim);
    const int64_t size = hvt__arg_int(g, n, "size", 1), step = hvt__arg_int(g, n, "step", 1);

    if (size < 1 || step < 1 || size > x->size[dim] || n->out[0]->ndim != x->ndim + 1)
        hvt__pt2_refuse(g, n, "its windows of %lld, %lld apart, do not fit", (long long)size,
                        (long long)step);
    hvt__canon_unary(g, n, PT2_UNFOLD, (pt2_attributes){.slice = {.dim = dim, .step = step, .block = size}});
}

/* ---- constants ---- */

/* A constant of the output's sizes: the number from the table. Also the in-place zero_ and fill_. */
static void full(pt2_graph *g, pt2_node *n, const pt2_row *r)
{
    const pt2_attributes is = {.fill = {.start = hvt__arg_operand(g, n, &r->a)}};

    hvt__pt2_become(g, n, PT2_FULL, &is, 0, NULL);
}

static void arange(pt2_graph *g, pt2_node *n, const pt2_row *r)
{
    const pt2_attributes is = {
        .fill = {.start = hvt__arg_float(g, n, "start", 0), .step = hvt__arg_float(g, n, "step", 1)}};

    if (n->out[0]->ndim != 1)
        hvt__pt2_refuse(g, n, "its output does not have one dimension");
    hvt__pt2_become(g, n, PT2_ARANGE, &is, 0, NULL);
}

/* fill_ and copy_ from a tensor */
static void copy(pt2_graph *g, pt2_node *n, const pt2_row *r)
{
    pt2_value *x = hvt__canon_given(g, n, r->a.argument);

    x = hvt__canon_before(g, n, PT2_EXPAND, (pt2_attributes){0}, 1, &x);
    hvt__pt2_become(g, n, x->type == n->out[0]->type ? PT2_CLONE : PT2_CAST, &(pt2_attributes){0}, 1, &x);
}

static pt2_value *of_index(pt2_graph *g, pt2_node *n, int op, double number, pt2_value *a, pt2_value *b)
{
    const pt2_attributes is = {.binary = {.op = op, .has_number = !b, .number = number, .alpha = 1}};
    pt2_value like = *a;

    for (int i = 0; b && i < PT2_DIMS; i++) { /* broadcast to each other */
        const int of_a = a->ndim - 1 - i, of_b = b->ndim - 1 - i,
                  ndim = a->ndim > b->ndim ? a->ndim : b->ndim;

        if (i < ndim)
            like.size[ndim - 1 - i] = of_a < 0                         ? b->size[of_b]
                                      : of_b < 0 || a->size[of_a] != 1 ? a->size[of_a]
                                                                       : b->size[of_b];
        like.ndim = ndim;
    }
    return hvt__pt2_compute(g, n, n, PT2_BINARY, &is, b ? 2 : 1, (pt2_value *[]){a, b}, &like);
}

/* Joins a second index, into the dimension after the first one's, with the first: one index into the joined
 * dimension. */
static void join_index(pt2_graph *g, pt2_node *n, pt2_value **in, int dim, pt2_value *index)
{
    pt2_value like = *in[0], *first;
    const double size[2] = {(double)like.size[dim], (double)like.size[dim + 1]};

    first = of_index(g, n, PT2_REMAINDER, size[0], in[1], NULL);
    first = of_index(g, n, HVT_MUL, size[1], first, NULL);
    in[1] = of_index(g, n, HVT_ADD, 0, first, of_index(g, n, PT2_REMAINDER, size[1], index, NULL));
    like.size[dim] *= like.size[dim + 1];
    memmove(like.size + dim + 1, like.size + dim + 2, (size_t)(PT2_DIMS - dim - 2) * sizeof *like.size);
    like.ndim--;
    in[0] = hvt__pt2_compute(g, n, n, PT2_VIEW, NULL, 1, &in[0], &like);
}

/* The index, and the dimension that it indexes. */
static void take(pt2_graph *g, pt2_node *n, const pt2_row *r)
{
    const pt2_arg *list = hvt__arg(n, "indices");
    pt2_value *in[2] = {hvt__canon_first(g, n), NULL};
    int dim = 0, last = 0;

    for (int i = 0; list && list->value && i < list->n; i++) {
        pt2_value *index = list->value[i] ? hvt__alias_now(g, n, list->value[i]) : NULL;

        if (!index)
            continue;
        if (!hvt__pt2_is_whole(index->type) || index->type == PT2_BOOL || index->type == PT2_U8)
            hvt__pt2_refuse(g, n, "its index %s is a mask; expected integers", index->name);
        if (i >= hvt__canon_first(g, n)->ndim)
            hvt__pt2_refuse(g, n, "it has more indices than dimensions");
        if (in[1] && last != i - 1)
            hvt__pt2_refuse(g, n, "it indexes dimensions that are not adjacent");
        if (in[1])
            join_index(g, n, in, dim, index);
        else
            in[1] = index, dim = i;
        last = i;
    }
    if (!in[1])
        hvt__pt2_refuse(g, n, "it has no index");
    hvt__pt2_become(g, n, PT2_INDEX, &(pt2_attributes){.along = {dim}}, 2, in);
}

/* mask ? a : b */
static void choose(pt2_graph *g, pt2_node *n, const pt2_row *r)
{
    pt2_value *in[3] = {hvt__canon_given(g, n, "condition"), hvt__canon_given(g, n, "self"),
                        hvt__canon_given(g, n, "other")};

    hvt__pt2_become(g, n, PT2_WHERE, &(pt2_attributes){0}, 3, in);
}

/* where(mask, x, y), masked_fill */
static void fill_masked(pt2_graph *g, pt2_node *n, const pt2_row *r)
{
    pt2_value *in[3] = {hvt__canon_given(g, n, "mask"), NULL, hvt__canon_first(g, n)};
    const pt2_attributes is = {.fill = {.start = hvt__arg_float(g, n, "value", 0)}};

    hvt__pt2_become(g, n, PT2_WHERE, &is, 3, in);
}

static void negate(pt2_graph *g, pt2_node *n, const pt2_row *r)
{
    if (r->of && hvt__canon_first(g, n)->type != PT2_BOOL)
        hvt__pt2_refuse(g, n, "supported only for booleans");
    hvt__canon_unary(g, n, PT2_NOT, (pt2_attributes){0});
}

static void triangle(pt2_graph *g, pt2_node *n, const pt2_row *r)
{
    const int ndim = hvt__canon_first(g, n)->ndim;

    if (ndim < 2)
        hvt__pt2_refuse(g, n, "it has %d dimensions", ndim);
    hvt__canon_unary(g, n, PT2_TRIANGLE,
                     (pt2_attributes){.triangle = {r->of, hvt__arg_int(g, n, "diagonal", 0)}});
}

static void cumsum(pt2_graph *g, pt2_node *n, const pt2_row *r)
{
    const int dim = hvt__arg_dim(g, n, "dim", 0, hvt__canon_first(g, n)->ndim);

    hvt__canon_unary(g, n, PT2_CUMSUM, (pt2_attributes){.along = {dim}});
}

/* ---- the table ---- */

static const pt2_row table[] = {
    {"view _unsafe_view view_as unflatten.int squeeze.dim squeeze.dims unsqueeze", view},
    {"reshape reshape_as flatten.using_ints", view, 1},
    {"expand expand_as broadcast_to", expand},
    {"repeat tile", unary, PT2_REPEAT},
    {"repeat_interleave.self_int", repeat_each},
    {"permute", permute},
    {"transpose.int", transpose, 0, {"dim0", 0}, {"dim1", 0}},
    {"swapaxes", transpose, 0, {"axis0", 0}, {"axis1", 0}},
    {"mT t", transpose, 0, {NULL, -2}, {NULL, -1}},
    {"contiguous", contiguous, PT2_CLONE},
    {"clone lift_fresh_copy", unary, PT2_CLONE},
    {"alias detach", alias},
    {"to.dtype to.device to.dtype_layout type_as", convert},
    {"slice.Tensor", cut, 's', {"start", 0}},
    {"narrow", cut, 'n', {"start", 0}},
    {"select.int", cut, 'i', {"index", 0}},
    {"chunk split.Tensor split_with_sizes unbind.int", parts},
    {"cat", cat, 0},
    {"stack", cat, 1},
    {"pad constant_pad_nd", pad},
    {"roll", roll},
    {"unfold", unfold},
    {"zeros new_zeros zeros_like zero", full},
    {"ones new_ones ones_like", full, 0, {NULL, 1}},
    {"full new_full full_like", full, 0, {"fill_value", 0}},
    {"fill.Scalar", full, 0, {"value", 0}},
    {"fill.Tensor", copy, 0, {"value", 0}},
    {"copy", copy, 0, {"src", 0}},
    {"arange arange.start arange.start_step", arange},
    {"meshgrid meshgrid.indexing", meshgrid},
    {"index.Tensor", take},
    {"masked_fill.Scalar", fill_masked},
    {"where.self", choose},
    {"logical_not", negate, 0},
    {"bitwise_not", negate, 1},
    {"triu", triangle, 1},
    {"tril", triangle, -1},
    {"cumsum", cumsum},
};

const pt2_rows hvt__pt2_shape_rows = {table, HVT_LEN(table)};
