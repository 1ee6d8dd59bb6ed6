/*
 * Views, parts and joins, and what makes constants. The sizes of the outputs say what most views are.
 */
#include "canon.h"

/* Output 0 is x, and shares its memory. */
static void same(pt2_graph *g, pt2_node *n, pt2_value *x)
{
    if (g->failed)
        return;
    if (n->nout)
        hvt__alias_is_same(g, n->out[0], x);
    hvt__pt2_erase(g, n);
    n->op = PT2_CLONE; /* an operation without outputs */
    n->nout = 0;
}

/* It computes nothing, but its output has memory of its own. */
static void clone(pt2_graph *g, pt2_node *n, const pt2_row *r)
{
    hvt__canon_unary(g, n, PT2_CLONE);
}

/* ---- views: the output's sizes say what they are ---- */

/* The output of n, or of a node before it, shares the memory of its input. */
static void is_view(pt2_graph *g, const pt2_node *n)
{
    if (!g->failed && n->nout)
        hvt__alias_is_view(g, n->out[0]);
}

/* view, flatten, squeeze ...; of: it may be a copy, as a reshape of what is not dense. */
static void view(pt2_graph *g, pt2_node *n, const pt2_row *r)
{
    const pt2_value *x = hvt__canon_first(g, n);

    hvt__canon_unary(g, n, PT2_VIEW);
    if (x && (!r->of || x->dense || (n->nout && !n->out[0]->dense)))
        is_view(g, n);
}

static void expand(pt2_graph *g, pt2_node *n, const pt2_row *r)
{
    hvt__canon_unary(g, n, (pt2_op)r->of);
    if (r->of == PT2_EXPAND)
        is_view(g, n);
}

static void contiguous(pt2_graph *g, pt2_node *n, const pt2_row *r)
{
    pt2_value *x = hvt__canon_first(g, n);

    if (x && x->dense)
        same(g, n, x);
    else
        hvt__canon_unary(g, n, PT2_CLONE);
}

static void alias(pt2_graph *g, pt2_node *n, const pt2_row *r)
{
    pt2_value *x = hvt__canon_first(g, n);

    if (x)
        same(g, n, x);
}

/* To the type of the output; of the same one it is the same tensor. */
static void convert(pt2_graph *g, pt2_node *n, const pt2_row *r)
{
    pt2_value *x = hvt__canon_first(g, n);

    if (!x || !n->nout)
        return;
    if (x->type != n->out[0]->type)
        hvt__canon_unary(g, n, PT2_CAST);
    else if (hvt__arg_bool(g, n, "copy", false))
        hvt__canon_unary(g, n, PT2_CLONE);
    else
        same(g, n, x);
}

static void permuted(pt2_graph *g, pt2_node *n, const int *from, int ndim)
{
    hvt__canon_unary(g, n, PT2_PERMUTE);
    n->is = (pt2_attributes){.dims = {.n = ndim}};
    memcpy(n->is.dims.dim, from, (size_t)ndim * sizeof *from);
    is_view(g, n);
}

static void permute(pt2_graph *g, pt2_node *n, const pt2_row *r)
{
    const pt2_value *x = hvt__canon_first(g, n);
    const int ndim = x && x->ndim > 0 ? x->ndim : 0;
    int from[PT2_DIMS] = {0};
    unsigned seen = 0;

    hvt__arg_ints(g, n, "dims", ndim, from);
    for (int i = 0; i < ndim && !g->failed; i++) {
        from[i] += from[i] < 0 ? ndim : 0;
        if (from[i] < 0 || from[i] >= ndim || seen >> from[i] & 1)
            hvt__pt2_refuse(g, n, "its dims are no permutation");
        else
            seen |= 1u << from[i];
    }
    if (!g->failed)
        permuted(g, n, from, ndim);
}

/* transpose, swapaxes, and mT, of the last two dimensions */
static void transpose(pt2_graph *g, pt2_node *n, const pt2_row *r)
{
    const pt2_value *x = hvt__canon_first(g, n);
    const int ndim = x && x->ndim > 0 ? x->ndim : 0;
    int a = r->a.argument ? hvt__arg_int(g, n, r->a.argument, 0) : -2, from[PT2_DIMS],
        b = r->b.argument ? hvt__arg_int(g, n, r->b.argument, 0) : -1;

    a += a < 0 ? ndim : 0, b += b < 0 ? ndim : 0;
    if (a < 0 || b < 0 || a >= ndim || b >= ndim)
        hvt__pt2_refuse(g, n, "it transposes dimensions %d and %d of %d", a, b, ndim);
    for (int i = 0; i < ndim; i++)
        from[i] = i == a ? b : i == b ? a : i;
    if (!g->failed)
        permuted(g, n, from, ndim);
}

/* ---- parts and joins ---- */

static int64_t divisor(int64_t a, int64_t b)
{
    while (b) {
        const int64_t rest = a % b;

        a = b, b = rest;
    }
    return a;
}

/* `out` is elements first, first + step ... of x before `end` of dimension `dim`, without that dimension if
 * it has one less. The node is put before n. */
static void part(pt2_graph *g, pt2_node *n, pt2_value *x, pt2_value *out, int dim, int64_t first_one,
                 int64_t end, int64_t step, int64_t block)
{
    const pt2_attributes is = {
        .slice = {.dim = dim, .first = first_one, .end = end, .step = step, .block = block}};
    const bool drops = out->ndim == x->ndim - 1;
    pt2_value *y = drops ? hvt__pt2_value(g, x) : out;
    pt2_node *slice = hvt__pt2_node(g, n, n, PT2_SLICE);
    int64_t size[PT2_DIMS];

    memcpy(size, x->size, sizeof size);
    size[dim] = (end - first_one + step - 1) / step;
    if (drops)
        memcpy(y->size, size, sizeof size);
    y->type = x->type;
    if (y->ndim != x->ndim || memcmp(y->size, size, (size_t)x->ndim * sizeof *size))
        hvt__pt2_refuse(g, n, "its output has other dimensions than what it takes");
    slice->is = is;
    hvt__pt2_inputs(g, slice, 1, &x);
    hvt__pt2_outputs(g, slice, 1, &y);
    is_view(g, slice);
    if (!drops || g->failed)
        return;
    slice = hvt__pt2_node(g, n, n, PT2_VIEW);
    hvt__pt2_inputs(g, slice, 1, &y);
    hvt__pt2_outputs(g, slice, 1, &out);
    is_view(g, slice);
}

/* n's outputs are made by other nodes. */
static void made(pt2_graph *g, pt2_node *n)
{
    if (g->failed)
        return;
    hvt__pt2_erase(g, n);
    n->op = PT2_CLONE;
    n->nout = 0;
}

static int64_t within(int64_t at, int64_t size)
{
    at += at < 0 ? size : 0;
    return at < 0 ? 0 : at > size ? size : at;
}

/* slice, narrow, select: elements first, first + step ... before `end` */
static void cut(pt2_graph *g, pt2_node *n, const pt2_row *r)
{
    pt2_value *x = hvt__canon_first(g, n);
    const char *what = r->a.argument;
    int64_t begin, end = INT64_MAX, step = 1, size;
    int dim;

    if (!x || !n->nout)
        return;
    dim = hvt__arg_dim(g, n, "dim", 0, x->ndim);
    begin = hvt__arg_long(g, n, what, 0);
    if (r->of == 's') {
        end = hvt__arg_long(g, n, "end", INT64_MAX);
        step = hvt__arg_long(g, n, "step", 1);
    } else {
        const int64_t length = r->of == 'n' ? hvt__arg_int(g, n, "length", 1) : 1;

        end = begin < 0 && begin + length >= 0 ? INT64_MAX : begin + length;
    }
    if (step < 1 || step > INT_MAX)
        hvt__pt2_refuse(g, n, "it takes every %lld-th of dimension %d of %d", (long long)step, dim, x->ndim);
    if (g->failed)
        return;
    size = x->size[dim];
    if (r->of == 'i' && (begin < -size || begin >= size)) {
        hvt__pt2_refuse(g, n, "it selects element %lld of %lld", (long long)begin, (long long)size);
        return;
    }
    begin = within(begin, size), end = within(end, size);
    end = end < begin ? begin : end;
    part(g, n, x, n->out[0], dim, begin, end, step, divisor(divisor(begin, end), size));
    made(g, n);
}

/* chunk, split, unbind: parts of a dimension, whose sizes the outputs say; unbind's have lost it. */
static void parts(pt2_graph *g, pt2_node *n, const pt2_row *r)
{
    pt2_value *x = hvt__canon_first(g, n);
    const int dim = x ? hvt__arg_dim(g, n, "dim", 0, x->ndim) : 0;
    int64_t begin = 0, block = 0;

    for (int i = 0; i < n->nout && !g->failed; i++) {
        const pt2_value *y = n->out[i];
        const int64_t count = y->ndim == x->ndim ? y->size[dim] : 1;

        if ((y->ndim != x->ndim && y->ndim != x->ndim - 1) || count > x->size[dim] - begin)
            hvt__pt2_refuse(g, n, "its outputs have other dimensions than its input");
        begin += count;
        block = divisor(block, count);
    }
    begin = 0;
    for (int i = 0; i < n->nout && !g->failed; i++) {
        const int64_t count = n->out[i]->ndim == x->ndim ? n->out[i]->size[dim] : 1;

        part(g, n, x, n->out[i], dim, begin, begin + count, 1, block);
        begin += count;
    }
    made(g, n);
}

/* cat; stack, of: along a new dimension */
static void cat(pt2_graph *g, pt2_node *n, const pt2_row *r)
{
    pt2_value **in;
    const int count = hvt__canon_tensors(g, n, "tensors", &in), ndim = n->nout ? n->out[0]->ndim : 0;
    const int dim = hvt__arg_dim(g, n, "dim", 0, ndim);

    for (int i = 0; i < count && !g->failed; i++) {
        pt2_value like = n->out[0] ? *n->out[0] : (pt2_value){0};

        if (!in[i] || in[i]->ndim != ndim - r->of) {
            hvt__pt2_refuse(g, n, "the sizes of its tensors differ");
            return;
        }
        like.size[dim] = 1;
        if (r->of)
            in[i] = hvt__pt2_compute(g, n, n, PT2_VIEW, NULL, 1, &in[i], &like);
    }
    hvt__canon_set(g, n, PT2_CAT, count, in);
    n->is = (pt2_attributes){.along = {dim}};
}

/* Output i has all dimensions, and x[i] along its own; of "xy" the first two are exchanged. */
static void meshgrid(pt2_graph *g, pt2_node *n, const pt2_row *r)
{
    const bool exchanged = !strcmp(hvt__arg_string(g, n, "indexing", "ij"), "xy");
    pt2_value **in;
    const int count = hvt__canon_tensors(g, n, "tensors", &in);

    if (!g->failed && (count > PT2_DIMS || count != n->nout))
        hvt__pt2_refuse(g, n, "it has %d tensors and %d outputs", count, n->nout);
    for (int i = 0; i < count && !g->failed; i++) {
        const int own = exchanged && count > 1 && i < 2 ? 1 - i : i;
        pt2_value like = *n->out[i], *line;
        pt2_node *wide;

        for (int d = 0; d < PT2_DIMS; d++)
            like.size[d] = d == own ? like.size[d] : 1;
        if (!in[i] || like.ndim != count || in[i]->ndim != 1 || in[i]->size[0] != like.size[own]) {
            hvt__pt2_refuse(g, n, "its outputs have other dimensions than its tensors make");
            return;
        }
        line = hvt__pt2_compute(g, n, n, PT2_VIEW, NULL, 1, &in[i], &like);
        wide = hvt__pt2_node(g, n, n, PT2_EXPAND);
        hvt__pt2_inputs(g, wide, 1, &line);
        hvt__pt2_outputs(g, wide, 1, &n->out[i]);
    }
    made(g, n);
}

/* Each element so many times, side by side; all elements in one dimension if none is given. */
static void repeat_each(pt2_graph *g, pt2_node *n, const pt2_row *r)
{
    pt2_value *x = hvt__canon_first(g, n);
    const int64_t times = hvt__arg_int(g, n, "repeats", 1);
    pt2_value like = x ? *x : (pt2_value){0};
    int dim = 0;

    if (x && !hvt__arg(n, "dim"))
        like.size[0] = hvt__pt2_count(x->ndim, x->size), like.ndim = 1;
    else if (x)
        dim = hvt__arg_dim(g, n, "dim", 0, x->ndim);
    if (times < 1 || like.ndim >= PT2_DIMS || like.ndim < 1)
        hvt__pt2_refuse(g, n, "its output is no repetition of its input");
    if (g->failed)
        return;
    memmove(like.size + dim + 2, like.size + dim + 1, (size_t)(PT2_DIMS - dim - 2) * sizeof *like.size);
    like.size[dim + 1] = 1;
    like.ndim++;
    x = hvt__pt2_compute(g, n, n, PT2_VIEW, NULL, 1, &x, &like);
    like.size[dim + 1] = times;
    x = hvt__pt2_compute(g, n, n, PT2_EXPAND, NULL, 1, &x, &like);
    if (!n->nout || hvt__pt2_count(n->out[0]->ndim, n->out[0]->size) != hvt__pt2_count(like.ndim, like.size))
        hvt__pt2_refuse(g, n, "its output is no repetition of its input");
    hvt__canon_set(g, n, PT2_VIEW, 1, &x);
}

static void pad(pt2_graph *g, pt2_node *n, const pt2_row *r)
{
    pt2_attributes is = {.pad = {.mode = hvt__arg_string(g, n, "mode", "constant")}};
    int nothing = 0;

    is.pad.value = hvt__arg_float(g, n, "value", 0);
    is.pad.n = hvt__arg_list(g, n, "pad", 2 * PT2_DIMS, is.pad.by);
    while (nothing < is.pad.n && !is.pad.by[nothing])
        nothing++;
    hvt__canon_unary(g, n, nothing == is.pad.n ? PT2_CLONE : PT2_PAD);
    n->is = is;
}

static void roll(pt2_graph *g, pt2_node *n, const pt2_row *r)
{
    pt2_attributes is = {.dims = {.n = hvt__arg_list(g, n, "shifts", PT2_DIMS, (int[PT2_DIMS]){0})}};
    const pt2_value *x = hvt__canon_first(g, n);

    hvt__arg_list(g, n, "shifts", PT2_DIMS, is.dims.shift);
    if (hvt__arg_list(g, n, "dims", PT2_DIMS, is.dims.dim) != is.dims.n || is.dims.n < 1)
        hvt__pt2_refuse(g, n, "its shifts are not as many as its dims");
    for (int i = 0; i < is.dims.n && x && !g->failed; i++) {
        is.dims.dim[i] += is.dims.dim[i] < 0 ? x->ndim : 0;
        if (is.dims.dim[i] < 0 || is.dims.dim[i] >= x->ndim)
            hvt__pt2_refuse(g, n, "its dimension is %d of %d", is.dims.dim[i], x->ndim);
    }
    hvt__canon_unary(g, n, PT2_ROLL);
    n->is = is;
}

/* ---- constants ---- */

/* Of the output's sizes: the number that the table names; zero and fill in place, too. */
static void full(pt2_graph *g, pt2_node *n, const pt2_row *r)
{
    const double value = r->a.argument ? hvt__arg_float(g, n, r->a.argument, 0) : r->a.otherwise;

    hvt__canon_set(g, n, PT2_FULL, 0, NULL);
    n->is = (pt2_attributes){.fill = {.start = value}};
}

static void arange(pt2_graph *g, pt2_node *n, const pt2_row *r)
{
    pt2_attributes is = {.fill = {.start = hvt__arg_float(g, n, "start", 0)}};

    is.fill.step = hvt__arg_float(g, n, "step", 1);
    if (!n->nout || n->out[0]->ndim != 1)
        hvt__pt2_refuse(g, n, "its output has not one dimension");
    hvt__canon_set(g, n, PT2_ARANGE, 0, NULL);
    n->is = is;
}

/* fill and copy by a tensor */
static void copy(pt2_graph *g, pt2_node *n, const pt2_row *r)
{
    pt2_value *x = hvt__canon_tensor(g, n, r->a.argument);

    if (!x || !n->nout) {
        hvt__pt2_refuse(g, n, "it has no argument %s", r->a.argument);
        return;
    }
    x = hvt__canon_before(g, n, PT2_EXPAND, (pt2_attributes){0}, 1, &x);
    hvt__canon_set(g, n, PT2_CAST, 1, &x);
}

/* Its only index, and the dimension that this walks along. */
static void take(pt2_graph *g, pt2_node *n, const pt2_row *r)
{
    const pt2_arg *list = hvt__arg(n, "indices");
    pt2_value *in[2] = {hvt__canon_first(g, n), NULL};
    int dim = 0;

    for (int i = 0; list && list->value && i < list->n && !g->failed; i++) {
        if (!list->value[i])
            continue;
        if (in[1])
            hvt__pt2_refuse(g, n, "it has several indices; expected one");
        in[1] = hvt__alias_now(g, n, list->value[i]);
        dim = i;
        if (!hvt__pt2_is_whole(in[1]->type) || in[1]->type == PT2_BOOL || in[1]->type == PT2_U8)
            hvt__pt2_refuse(g, n, "its index %s is no tensor of whole numbers, but a mask", in[1]->name);
    }
    if (!in[1])
        hvt__pt2_refuse(g, n, "it has no index");
    hvt__canon_set(g, n, PT2_INDEX, 2, in);
    n->is = (pt2_attributes){.along = {dim}};
}

/* mask ? a : b; a may be a number */
static void choose(pt2_graph *g, pt2_node *n, const pt2_row *r)
{
    const bool fills = r->of;
    pt2_value *in[3] = {hvt__canon_tensor(g, n, fills ? "mask" : "condition"),
                        fills ? NULL : hvt__canon_tensor(g, n, "self"),
                        fills ? hvt__canon_first(g, n) : hvt__canon_tensor(g, n, "other")};
    const double value = fills ? hvt__arg_float(g, n, "value", 0) : 0;

    if (!in[0] || !in[2] || (!fills && !in[1]))
        hvt__pt2_refuse(g, n, "its arguments are no tensors");
    hvt__canon_set(g, n, PT2_WHERE, 3, in);
    n->is = (pt2_attributes){.fill = {.start = value}};
}

static void negate(pt2_graph *g, pt2_node *n, const pt2_row *r)
{
    const pt2_value *x = hvt__canon_first(g, n);

    if (r->of && x && x->type != PT2_BOOL)
        hvt__pt2_refuse(g, n, "it is known of truth values only");
    hvt__canon_unary(g, n, PT2_NOT);
}

static void triangle(pt2_graph *g, pt2_node *n, const pt2_row *r)
{
    const int64_t diagonal = hvt__arg_int(g, n, "diagonal", 0);
    const pt2_value *x = hvt__canon_first(g, n);

    if (x && x->ndim < 2)
        hvt__pt2_refuse(g, n, "it has %d dimensions", x->ndim);
    hvt__canon_unary(g, n, PT2_TRIANGLE);
    n->is = (pt2_attributes){.triangle = {r->of, diagonal}};
}

static void cumsum(pt2_graph *g, pt2_node *n, const pt2_row *r)
{
    const pt2_value *x = hvt__canon_first(g, n);
    const int dim = x ? hvt__arg_dim(g, n, "dim", 0, x->ndim) : 0;

    hvt__canon_unary(g, n, PT2_CUMSUM);
    n->is = (pt2_attributes){.along = {dim}};
}

/* ---- the table ---- */

static const pt2_row table[] = {
    {"aten.view.default", view},
    {"aten._unsafe_view.default", view},
    {"aten.reshape.default", view, 1},
    {"aten.flatten.using_ints", view, 1},
    {"aten.unflatten.int", view},
    {"aten.reshape_as.default", view, 1},
    {"aten.view_as.default", view},
    {"aten.squeeze.dim", view},
    {"aten.squeeze.dims", view},
    {"aten.unsqueeze.default", view},
    {"aten.expand.default", expand, PT2_EXPAND},
    {"aten.expand_as.default", expand, PT2_EXPAND},
    {"aten.broadcast_to.default", expand, PT2_EXPAND},
    {"aten.repeat.default", expand, PT2_REPEAT},
    {"aten.tile.default", expand, PT2_REPEAT},
    {"aten.repeat_interleave.self_int", repeat_each},
    {"aten.permute.default", permute},
    {"aten.transpose.int", transpose, 0, {"dim0", 0}, {"dim1", 0}},
    {"aten.swapaxes.default", transpose, 0, {"axis0", 0}, {"axis1", 0}},
    {"aten.mT.default", transpose},
    {"aten.contiguous.default", contiguous},
    {"aten.clone.default", clone},
    {"aten.lift_fresh_copy.default", clone},
    {"aten.alias.default", alias},
    {"aten.detach.default", alias},
    {"aten.to.dtype", convert},
    {"aten.to.device", convert},
    {"aten.to.dtype_layout", convert},
    {"aten.type_as.default", convert},
    {"aten.slice.Tensor", cut, 's', {"start", 0}},
    {"aten.narrow.default", cut, 'n', {"start", 0}},
    {"aten.select.int", cut, 'i', {"index", 0}},
    {"aten.chunk.default", parts},
    {"aten.split.Tensor", parts},
    {"aten.split_with_sizes.default", parts},
    {"aten.unbind.int", parts},
    {"aten.cat.default", cat, 0},
    {"aten.stack.default", cat, 1},
    {"aten.pad.default", pad},
    {"aten.constant_pad_nd.default", pad},
    {"aten.roll.default", roll},
    {"aten.zeros.default", full},
    {"aten.new_zeros.default", full},
    {"aten.zeros_like.default", full},
    {"aten.zero.default", full},
    {"aten.ones.default", full, 0, {NULL, 1}},
    {"aten.new_ones.default", full, 0, {NULL, 1}},
    {"aten.ones_like.default", full, 0, {NULL, 1}},
    {"aten.full.default", full, 0, {"fill_value", 0}},
    {"aten.new_full.default", full, 0, {"fill_value", 0}},
    {"aten.full_like.default", full, 0, {"fill_value", 0}},
    {"aten.fill.Scalar", full, 0, {"value", 0}},
    {"aten.fill.Tensor", copy, 0, {"value", 0}},
    {"aten.copy.default", copy, 0, {"src", 0}},
    {"aten.arange.default", arange},
    {"aten.arange.start", arange},
    {"aten.arange.start_step", arange},
    {"aten.meshgrid.default", meshgrid},
    {"aten.meshgrid.indexing", meshgrid},
    {"aten.index.Tensor", take},
    {"aten.masked_fill.Scalar", choose, 1},
    {"aten.where.self", choose, 0},
    {"aten.logical_not.default", negate, 0},
    {"aten.bitwise_not.default", negate, 1},
    {"aten.triu.default", triangle, 1},
    {"aten.tril.default", triangle, -1},
    {"aten.cumsum.default", cumsum},
};

const pt2_rows hvt__pt2_shape_rows = {table, HVT_LEN(table)};
