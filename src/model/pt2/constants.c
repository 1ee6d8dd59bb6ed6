/*
 * Operations whose arguments are known when the file is read, as those that make Swin's masks and the numbers
 * of its relative positions are: they are computed at once, and only what comes of them is imported.
 * Views share memory, as PyTorch's do, and operations in place change it.
 */
#include "constants.h"

#include <math.h>

/* ---- arguments ---- */

const known *hvt__pt2_constant(importer *p, const char *name)
{
    const tensor *t = hvt__pt2_uncut(p, name);
    const known *k = hvt__pt2_known(p, t);

    if (t && !k)
        hvt__pt2_refuse(p, "its %s is computed; expected a constant", name);
    return p->failed ? NULL : k;
}

const known *hvt__pt2_constant_self(importer *p)
{
    const known *k = hvt__pt2_constant(p, "self");

    if (!k && !p->failed)
        hvt__pt2_refuse(p, "it has no tensor");
    return k;
}

static void put(importer *p, const known *from);

static void out_number(importer *p, int i, const known *k)
{
    if (k && !p->failed)
        hvt__pt2_out(p, i, (tensor){.v = -1, .known = k}, NULL);
}

static void out(importer *p, const known *k)
{
    out_number(p, 0, k);
}

void hvt__pt2_out_numbers(importer *p, known *k)
{
    int64_t at[HVT__PT2_DIMS] = {0};
    const int type = out_type(p);

    if (!k || p->failed)
        return;
    if (k->number.x && hvt__pt2_count(k->ndim, k->size) > 0)
        do {
            double *x = hvt__pt2_element(&k->number, k->ndim, at);

            *x = hvt__pt2_as_type(p, type, *x);
        } while (hvt__pt2_next(k->ndim, k->size, at));
    if (hvt__pt2_in_place(p->node))
        put(p, k);
    else
        out(p, k);
}

/* A copy that has other sizes and strides. */
static known *view_of(importer *p, const known *x)
{
    known *k = hvt__pt2_keep(p, sizeof *k);

    if (k)
        *k = *x;
    return k;
}

static int sizes_of_output(importer *p, int64_t *ret_size)
{
    const char *name = hvt__pt2_out_name(p, 0);
    const int n = name ? hvt__pt2_sizes(p->file, name, HVT__PT2_DIMS, ret_size) : -1;

    if (n < 0)
        hvt__pt2_refuse(p, "its output has no sizes, or more than %d dimensions", HVT__PT2_DIMS);
    return n;
}

/* A dimension, counted from the end if negative, of n. */
static int dimension(importer *p, const char *name, int otherwise, int n)
{
    int dim = hvt__pt2_int(p, name, otherwise);

    dim += dim < 0 ? n : 0;
    if (dim < 0 || dim >= n)
        hvt__pt2_refuse(p, "its dimension is %d of %d", dim, n);
    return p->failed ? 0 : dim;
}

/* ---- new ones ---- */

bool hvt__pt2_only_numbers(importer *p, const known *x)
{
    if (x && x->element.x)
        hvt__pt2_refuse(p, "it computes with elements of a parameter; expected a sum of them and numbers");
    return x && !p->failed;
}

static void fill(known *k, double value)
{
    int64_t at[HVT__PT2_DIMS] = {0};

    if (hvt__pt2_count(k->ndim, k->size) > 0)
        do
            *hvt__pt2_element(&k->number, k->ndim, at) = value;
        while (hvt__pt2_next(k->ndim, k->size, at));
}

/* Of the output's sizes: the number that the table names. */
static void full(importer *p)
{
    const operand *value = &p->operation->a;
    int64_t size[HVT__PT2_DIMS];
    const int n = sizes_of_output(p, size);
    known *k = p->failed ? NULL : hvt__pt2_numbers(p, n, size);

    if (k)
        fill(k, value->argument ? hvt__pt2_float(p, value->argument, 0) : value->otherwise);
    hvt__pt2_out_numbers(p, k);
}

known *hvt__pt2_mapped(importer *p, const known *x, double (*f)(double))
{
    int64_t at[HVT__PT2_DIMS] = {0};
    known *k = hvt__pt2_only_numbers(p, x) ? hvt__pt2_numbers(p, x->ndim, x->size) : NULL;

    if (k && hvt__pt2_count(k->ndim, k->size) > 0)
        do {
            const double from = hvt__pt2_number_at(x, k->ndim, at);

            *hvt__pt2_element(&k->number, k->ndim, at) = f ? f(from) : from;
        } while (hvt__pt2_next(k->ndim, k->size, at));
    return k;
}

static void clone(importer *p)
{
    hvt__pt2_out_numbers(p, hvt__pt2_mapped(p, hvt__pt2_constant_self(p), NULL));
}

static void arange(importer *p)
{
    const double start = hvt__pt2_float(p, "start", 0), step = hvt__pt2_float(p, "step", 1);
    int64_t size[HVT__PT2_DIMS];
    known *k;

    if (sizes_of_output(p, size) != 1)
        hvt__pt2_refuse(p, "its output has not one dimension");
    k = p->failed ? NULL : hvt__pt2_numbers(p, 1, size);
    for (int64_t i = 0; k && i < size[0]; i++)
        k->number.x[i] = start + step * (double)i;
    hvt__pt2_out_numbers(p, k);
}

/* ---- views ---- */

static void same(importer *p)
{
    out(p, hvt__pt2_constant_self(p));
}

/* A view where x is dense, else a copy; may_be_view: PyTorch makes views of some that are not. */
static known *reshaped(importer *p, const known *x, int n, const int64_t *size, bool may_be_view)
{
    const strided *const from[] = {&x->number, &x->element};
    known *k = view_of(p, x);
    strided *const to[] = {&k->number, &k->element};

    if (!k)
        return NULL;
    k->ndim = n;
    memcpy(k->size, size, (size_t)n * sizeof *size);
    for (int i = 0; i < 2; i++) {
        int64_t at[HVT__PT2_DIMS] = {0}, next_to = 0;
        bool dense = true;

        if (!from[i]->x)
            continue;
        for (int64_t d = x->ndim - 1, step = 1; d >= 0; step *= x->size[d--])
            dense = dense && (x->size[d] == 1 || from[i]->stride[d] == step);
        if (dense) {
            hvt__pt2_strides(k, to[i]);
            continue;
        }
        if (!hvt__pt2_room(p, k, to[i]))
            return NULL;
        *from[i]->fixed = *from[i]->fixed || may_be_view;
        *to[i]->fixed = may_be_view;
        if (hvt__pt2_count(n, size) > 0)
            do
                to[i]->x[next_to++] = *hvt__pt2_element(from[i], x->ndim, at);
            while (hvt__pt2_next(x->ndim, x->size, at));
    }
    return k;
}

/* The output's sizes say what it is. */
static void view(importer *p)
{
    const known *x = hvt__pt2_constant_self(p);
    int64_t size[HVT__PT2_DIMS];
    const int n = sizes_of_output(p, size);

    if (p->failed)
        return;
    if (hvt__pt2_count(n, size) != hvt__pt2_count(x->ndim, x->size))
        hvt__pt2_refuse(p, "its output has another number of elements than its input");
    else
        out(p, reshaped(p, x, n, size, true));
}

static void expand(importer *p)
{
    const known *x = hvt__pt2_constant_self(p);
    int64_t size[HVT__PT2_DIMS];
    const int n = sizes_of_output(p, size);
    known *k;

    if (p->failed)
        return;
    if (!hvt__pt2_repeats(x, n, size) || hvt__pt2_count(n, size) > HVT__PT2_ELEMENTS_MOST)
        hvt__pt2_refuse(p, "its output is no repetition of its input");
    k = p->failed ? NULL : view_of(p, x);
    if (!k)
        return;
    k->number = hvt__pt2_repeated(x, &x->number, n);
    k->element = hvt__pt2_repeated(x, &x->element, n);
    k->ndim = n;
    memcpy(k->size, size, (size_t)n * sizeof *size);
    out(p, k);
}

static void contiguous(importer *p)
{
    const known *x = hvt__pt2_constant_self(p);

    out(p, x ? reshaped(p, x, x->ndim, x->size, false) : NULL);
}

static known *permuted(importer *p, const known *x, const int *from)
{
    known *k = view_of(p, x);
    unsigned seen = 0;

    for (int i = 0; k && i < x->ndim; i++) {
        if (from[i] < 0 || from[i] >= x->ndim || seen >> from[i] & 1) {
            hvt__pt2_refuse(p, "its dims are no permutation");
            return NULL;
        }
        seen |= 1u << from[i];
        k->size[i] = x->size[from[i]];
        k->number.stride[i] = x->number.stride[from[i]];
        k->element.stride[i] = x->element.stride[from[i]];
    }
    return k;
}

static void permute(importer *p)
{
    const known *x = hvt__pt2_constant_self(p);
    int from[HVT__PT2_DIMS] = {0};

    if (x)
        hvt__pt2_ints(p, "dims", x->ndim, from);
    for (int i = 0; x && i < x->ndim; i++)
        from[i] += from[i] < 0 ? x->ndim : 0;
    if (!p->failed)
        out(p, permuted(p, x, from));
}

static void transpose(importer *p)
{
    const known *x = hvt__pt2_constant_self(p);
    int from[HVT__PT2_DIMS], a, b;

    if (!x)
        return;
    a = dimension(p, "dim0", 0, x->ndim), b = dimension(p, "dim1", 0, x->ndim);
    for (int i = 0; i < x->ndim; i++)
        from[i] = i == a ? b : i == b ? a : i;
    if (!p->failed)
        out(p, permuted(p, x, from));
}

/* Elements first, first + step ... before `end` of dimension `dim`. */
static known *part_of(importer *p, const known *x, int dim, int64_t first, int64_t end, int64_t step)
{
    known *k;

    first = hvt__pt2_within(first, x->size[dim]);
    end = hvt__pt2_within(end, x->size[dim]);
    end = end < first ? first : end;
    k = view_of(p, x);
    if (!k)
        return NULL;
    k->size[dim] = (end - first + step - 1) / step;
    k->number.x = x->number.x ? x->number.x + first * x->number.stride[dim] : NULL;
    k->element.x = x->element.x ? x->element.x + first * x->element.stride[dim] : NULL;
    if (k->size[dim] > 1) { /* then a step is within the dimension */
        k->number.stride[dim] *= step;
        k->element.stride[dim] *= step;
    }
    return k;
}

/* A dimension of one element is left out. */
static void without(known *k, int dim)
{
    for (int i = dim; i + 1 < k->ndim; i++) {
        k->size[i] = k->size[i + 1];
        k->number.stride[i] = k->number.stride[i + 1];
        k->element.stride[i] = k->element.stride[i + 1];
    }
    k->ndim--;
}

static void slice(importer *p)
{
    const known *x = hvt__pt2_constant_self(p);
    const int64_t step = hvt__pt2_place(p, "step", 1);
    int dim;

    if (!x)
        return;
    dim = dimension(p, "dim", 0, x->ndim);
    if (step < 1)
        hvt__pt2_refuse(p, "its step is %lld", (long long)step);
    if (!p->failed)
        out(p, part_of(p, x, dim, hvt__pt2_place(p, "start", 0), hvt__pt2_place(p, "end", INT64_MAX), step));
}

static void select_one(importer *p)
{
    const known *x = hvt__pt2_constant_self(p);
    int dim;
    int64_t index;
    known *k;

    if (!x)
        return;
    dim = dimension(p, "dim", 0, x->ndim);
    index = hvt__pt2_int(p, "index", 0);
    index += index < 0 && !p->failed ? x->size[dim] : 0;
    if (!p->failed && (index < 0 || index >= x->size[dim]))
        hvt__pt2_refuse(p, "it selects element %lld of %lld", (long long)index, (long long)x->size[dim]);
    k = p->failed ? NULL : part_of(p, x, dim, index, index + 1, 1);
    if (!k)
        return;
    without(k, dim);
    out(p, k);
}

/* ---- several at once ---- */

enum { MANY = 64 };

/* chunk, split, unbind: parts of a dimension, whose sizes the outputs say; unbind's have lost it. */
static void parts(importer *p)
{
    const known *x = hvt__pt2_constant_self(p);
    int64_t first = 0, size[HVT__PT2_DIMS];
    int dim;

    if (!x)
        return;
    dim = dimension(p, "dim", 0, x->ndim);
    for (int i = 0; i < hvt__pt2_outs(p) && !p->failed; i++) {
        const char *name = hvt__pt2_out_name(p, i);
        const int n = name ? hvt__pt2_sizes(p->file, name, HVT__PT2_DIMS, size) : -1;
        const int64_t count = n == x->ndim ? size[dim] : 1;
        known *k;

        if ((n != x->ndim && n != x->ndim - 1) || count > x->size[dim] - first)
            hvt__pt2_refuse(p, "its outputs have other dimensions than its input");
        k = p->failed ? NULL : part_of(p, x, dim, first, first + count, 1);
        if (k && n < x->ndim)
            without(k, dim);
        out_number(p, i, k);
        first += count;
    }
}

/* The arrays of a list, numbers alone: how many. */
static int list(importer *p, const known **ret)
{
    const tensor *t[MANY];
    const int n = hvt__pt2_tensors(p, "tensors", MANY, t);

    for (int i = 0; i < n && !p->failed; i++) {
        ret[i] = hvt__pt2_known(p, t[i]);
        if (!ret[i])
            hvt__pt2_refuse(p, "one of its tensors is computed; expected constants");
        else
            (void)hvt__pt2_only_numbers(p, ret[i]);
    }
    if (n < 1)
        hvt__pt2_refuse(p, "it has no tensors");
    return p->failed ? 0 : n;
}

/* cat: along a dimension; stack: along one that is new. */
static void join(importer *p)
{
    const bool new = p->operation->of;
    const known *x[MANY];
    int64_t size[HVT__PT2_DIMS], at[HVT__PT2_DIMS], from[HVT__PT2_DIMS], first = 0;
    const int many = list(p, x), n = p->failed ? 0 : sizes_of_output(p, size),
              dim = p->failed ? 0 : dimension(p, "dim", 0, n);
    known *k = p->failed ? NULL : hvt__pt2_numbers(p, n, size);

    for (int i = 0; i < many && k && !p->failed; i++) {
        const known *in = x[i];
        bool fits = in->ndim == n - new;

        for (int d = 0; d < n && fits; d++)
            fits = d == dim ? first + (new ? 1 : in->size[d]) <= size[d]
                            : in->size[d - (new &&d > dim)] == size[d];
        if (!fits) {
            hvt__pt2_refuse(p, "the sizes of its tensors differ");
            return;
        }
        memset(from, 0, sizeof from);
        if (hvt__pt2_count(in->ndim, in->size) > 0)
            do {
                memcpy(at, from, sizeof at);
                if (new) {
                    memmove(at + dim + 1, from + dim, (size_t)(n - 1 - dim) * sizeof *at);
                    at[dim] = 0;
                }
                at[dim] += first;
                *hvt__pt2_element(&k->number, n, at) = hvt__pt2_number_at(in, in->ndim, from);
            } while (hvt__pt2_next(in->ndim, in->size, from));
        first += new ? 1 : in->size[dim];
    }
    if (k && !p->failed && first != size[dim])
        hvt__pt2_refuse(p, "its output is longer than its tensors are");
    hvt__pt2_out_numbers(p, k);
}

/* Output i has all dimensions, and x[i] along one of them: its own, of "xy" the first two exchanged. */
static void meshgrid(importer *p)
{
    const bool exchanged = !strcmp(hvt__pt2_string(p, "indexing", "ij"), "xy");
    const known *x[MANY];
    const int n = list(p, x);
    int64_t size[HVT__PT2_DIMS], at[HVT__PT2_DIMS];

    if (n > HVT__PT2_DIMS || n != hvt__pt2_outs(p))
        hvt__pt2_refuse(p, "it has %d tensors and %d outputs", n, hvt__pt2_outs(p));
    for (int i = 0; i < n && !p->failed; i++) {
        const int own = exchanged && n > 1 && i < 2 ? 1 - i : i;
        const char *name = hvt__pt2_out_name(p, i);
        known *k;

        if (!name || hvt__pt2_sizes(p->file, name, HVT__PT2_DIMS, size) != n || x[i]->ndim != 1 ||
            x[i]->size[0] != size[own]) {
            hvt__pt2_refuse(p, "its outputs have other dimensions than its tensors make");
            return;
        }
        k = hvt__pt2_numbers(p, n, size);
        memset(at, 0, sizeof at);
        if (k && hvt__pt2_count(n, size) > 0)
            do
                *hvt__pt2_element(&k->number, n, at) = hvt__pt2_number_at(x[i], 1, at + own);
            while (hvt__pt2_next(n, size, at));
        out_number(p, i, k);
    }
}

/* repeat, tile: the output's sizes say how often. */
static void repeat(importer *p)
{
    const known *x = hvt__pt2_constant_self(p);
    int64_t size[HVT__PT2_DIMS], at[HVT__PT2_DIMS] = {0}, from[HVT__PT2_DIMS] = {0};
    const int n = sizes_of_output(p, size);
    known *k;

    if (!x || p->failed)
        return;
    if (n < x->ndim)
        hvt__pt2_refuse(p, "its output is no repetition of its input");
    for (int i = 0; i < x->ndim && !p->failed; i++)
        if (x->size[i] && size[n - x->ndim + i] % x->size[i] != 0)
            hvt__pt2_refuse(p, "its output is no repetition of its input");
    k = !p->failed && hvt__pt2_only_numbers(p, x) ? hvt__pt2_numbers(p, n, size) : NULL;
    if (k && hvt__pt2_count(n, size) > 0 && hvt__pt2_count(x->ndim, x->size) > 0)
        do {
            for (int i = 0; i < x->ndim; i++)
                from[i] = at[n - x->ndim + i] % x->size[i];
            *hvt__pt2_element(&k->number, n, at) = hvt__pt2_number_at(x, x->ndim, from);
        } while (hvt__pt2_next(n, size, at));
    hvt__pt2_out_numbers(p, k);
}

/* Each element so many times, side by side; all elements in one dimension if none is given. */
static void repeat_each(importer *p)
{
    const known *x = hvt__pt2_constant_self(p);
    const int64_t times = hvt__pt2_int(p, "repeats", 1);
    int64_t size[HVT__PT2_DIMS], at[HVT__PT2_DIMS] = {0}, from[HVT__PT2_DIMS];
    const int n = sizes_of_output(p, size);
    int dim = 0;
    known *k;

    if (!x || p->failed)
        return;
    if (!hvt__pt2_given(p, "dim"))
        x = reshaped(p, x, 1, (int64_t[]){hvt__pt2_count(x->ndim, x->size)}, false);
    else
        dim = dimension(p, "dim", 0, x->ndim);
    if (!x || p->failed)
        return;
    if (times < 1 || n != x->ndim || size[dim] != times * x->size[dim])
        hvt__pt2_refuse(p, "its output is no repetition of its input");
    for (int i = 0; i < n && !p->failed; i++)
        if (i != dim && size[i] != x->size[i])
            hvt__pt2_refuse(p, "its output is no repetition of its input");
    k = !p->failed && hvt__pt2_only_numbers(p, x) ? hvt__pt2_numbers(p, n, size) : NULL;
    if (k && hvt__pt2_count(n, size) > 0)
        do {
            memcpy(from, at, sizeof from);
            from[dim] /= times;
            *hvt__pt2_element(&k->number, n, at) = hvt__pt2_number_at(x, n, from);
        } while (hvt__pt2_next(n, size, at));
    hvt__pt2_out_numbers(p, k);
}

/* Sums of the elements up to each one of a dimension. */
static void cumulate(importer *p)
{
    const known *x = hvt__pt2_constant_self(p);
    const int dim = x ? dimension(p, "dim", 0, x->ndim) : 0;
    int64_t at[HVT__PT2_DIMS] = {0};
    known *k = hvt__pt2_mapped(p, x, NULL);

    if (k && !p->failed && hvt__pt2_count(k->ndim, k->size) > 0)
        do {
            double *to = hvt__pt2_element(&k->number, k->ndim, at);

            if (at[dim] > 0)
                *to += to[-k->number.stride[dim]];
        } while (hvt__pt2_next(k->ndim, k->size, at));
    hvt__pt2_out_numbers(p, k);
}

/* out[i] = x[i - shift], around each dimension */
static void roll(importer *p)
{
    const known *x = hvt__pt2_constant_self(p);
    int shift[HVT__PT2_DIMS], dim[HVT__PT2_DIMS], n = hvt__pt2_list(p, "shifts", HVT__PT2_DIMS, shift);
    int64_t at[HVT__PT2_DIMS] = {0}, from[HVT__PT2_DIMS];
    known *k;

    if (hvt__pt2_list(p, "dims", HVT__PT2_DIMS, dim) != n || n < 1)
        hvt__pt2_refuse(p, "its shifts are not as many as its dims");
    for (int i = 0; x && i < n && !p->failed; i++) {
        dim[i] += dim[i] < 0 ? x->ndim : 0;
        if (dim[i] < 0 || dim[i] >= x->ndim)
            hvt__pt2_refuse(p, "its dimension is %d of %d", dim[i], x->ndim);
    }
    k = !p->failed && hvt__pt2_only_numbers(p, x) ? hvt__pt2_numbers(p, x->ndim, x->size) : NULL;
    if (k && hvt__pt2_count(k->ndim, k->size) > 0)
        do {
            memcpy(from, at, sizeof from);
            for (int i = 0; i < n; i++) {
                const int64_t all = x->size[dim[i]];

                from[dim[i]] = ((from[dim[i]] - shift[i]) % all + all) % all;
            }
            *hvt__pt2_element(&k->number, k->ndim, at) = hvt__pt2_number_at(x, k->ndim, from);
        } while (hvt__pt2_next(k->ndim, k->size, at));
    hvt__pt2_out_numbers(p, k);
}

/* To the type of the output; of the same one it is the same tensor. */
static void convert(importer *p)
{
    const char *kind;

    if (type_of(p, "self") == out_type(p) && !json_is_true(hvt__pt2_arg(p->node, "copy", &kind)))
        same(p);
    else
        clone(p);
}

/* ---- in place ---- */

/* It may be changed, and what is made of it later sees that. */
static known *changed(importer *p)
{
    const tensor *t = hvt__pt2_uncut(p, "self");

    p->changes++;
    if (t && t->known && !t->known->element.x && t->known->number.x && !*t->known->number.fixed)
        return (known *)t->known;
    hvt__pt2_refuse(
        p, "it changes a tensor that is no constant of the file's own, or of which a view may have been "
           "reshaped");
    return NULL;
}

static void fill_scalar(importer *p)
{
    known *x = changed(p);

    if (x)
        fill(x, hvt__pt2_as_type(p, out_type(p), hvt__pt2_float(p, "value", 0)));
    out(p, x);
}

static void zero(importer *p)
{
    known *x = changed(p);

    if (x)
        fill(x, 0);
    out(p, x);
}

static void put(importer *p, const known *from)
{
    known *x = changed(p);
    int64_t at[HVT__PT2_DIMS] = {0};

    if (!x || !hvt__pt2_only_numbers(p, from))
        return;
    if (!hvt__pt2_repeats(from, x->ndim, x->size))
        hvt__pt2_refuse(p, "the sizes of its arguments differ");
    else if (hvt__pt2_count(x->ndim, x->size) > 0)
        do
            *hvt__pt2_element(&x->number, x->ndim, at) =
                hvt__pt2_as_type(p, out_type(p), hvt__pt2_number_at(from, x->ndim, at));
        while (hvt__pt2_next(x->ndim, x->size, at));
    out(p, x);
}

/* Another tensor, which may be a part of the same memory. */
static void copy_from(importer *p, const known *x)
{
    known *k = hvt__pt2_mapped(p, x, NULL);

    if (k)
        put(p, k);
}

static void fill_tensor(importer *p)
{
    copy_from(p, hvt__pt2_constant(p, "value"));
}

static void copy(importer *p)
{
    copy_from(p, hvt__pt2_constant(p, "src"));
}

/* ---- elements of a parameter, or of a constant ---- */

/* Its only index, and the dimension that this walks along. */
static const known *only_index(importer *p, int *ret_dim)
{
    const char *kind;
    const json_t *list = hvt__pt2_arg(p->node, "indices", &kind);
    const known *index = NULL;

    for (size_t i = 0; i < json_array_size(list) && !p->failed; i++) {
        const json_t *item = json_array_get(list, i), *t = json_object_get(item, "as_tensor");
        const char *name = json_string_value(json_object_get(t ? t : item, "name"));

        if (!name)
            continue;
        if (index)
            hvt__pt2_refuse(p, "it has several indices; expected one");
        if (!hvt__pt2_is_whole(p->file, name) || hvt__pt2_is_truth(p->file, name) ||
            hvt__pt2_type(p->file, name) == HVT__PT2_U8)
            hvt__pt2_refuse(p, "its index %s is no tensor of whole numbers, but a mask", name);
        index = hvt__pt2_known(p, hvt__pt2_named(p, name));
        *ret_dim = (int)i;
        if (!index && !p->failed)
            hvt__pt2_refuse(p, "its index is computed; expected a constant");
    }
    if (!index && !p->failed)
        hvt__pt2_refuse(p, "it has no index");
    return p->failed ? NULL : index;
}

/* Each element of a parameter of these sizes, by its number. */
static known *elements_of(importer *p, const tensor *t)
{
    int64_t size[HVT__PT2_DIMS];
    const int n = hvt__pt2_sizes(p->file, t->name, HVT__PT2_DIMS, size);
    known *k = n < 0 ? NULL : hvt__pt2_numbers(p, n, size);

    if (n < 0)
        hvt__pt2_refuse(p, "%s has no sizes, or more than %d dimensions", t->name, HVT__PT2_DIMS);
    if (!k)
        return NULL;
    k->element = k->number;
    k->number.x = NULL;
    for (int64_t i = 0; i < hvt__pt2_count(n, size); i++)
        k->element.x[i] = (double)i;
    k->from.table = hvt__pt2_index(p, t);
    return k;
}

static void take(importer *p)
{
    const tensor *t = hvt__pt2_uncut(p, "self");
    int dim = 0;
    const bool elements =
        t && ((t->state && !t->constant) || (t->v >= 0 && t->alike && hvt__pt2_in_order_of_tape(&t->axes)));
    const known *x = elements ? elements_of(p, t) : hvt__pt2_known(p, t), *index;
    int64_t size[HVT__PT2_DIMS], at[HVT__PT2_DIMS] = {0}, from[HVT__PT2_DIMS];
    int n;
    known *k;

    if (!x && !p->failed)
        hvt__pt2_refuse(p, "it takes elements of what is computed; expected a parameter or a constant");
    index = p->failed ? NULL : only_index(p, &dim);
    if (!index || !hvt__pt2_only_numbers(p, index))
        return;
    n = x->ndim - 1 + index->ndim;
    if (dim >= x->ndim || n > HVT__PT2_DIMS) {
        hvt__pt2_refuse(p, "it makes %d dimensions of %d", n, x->ndim);
        return;
    }
    memcpy(size, x->size, (size_t)dim * sizeof *size);
    memcpy(size + dim, index->size, (size_t)index->ndim * sizeof *size);
    memcpy(size + dim + index->ndim, x->size + dim + 1, (size_t)(x->ndim - dim - 1) * sizeof *size);
    k = hvt__pt2_numbers(p, n, size);
    if (!k)
        return;
    if (x->element.x) {
        k->element = k->number;
        k->number.x = NULL;
        k->from = x->from;
    }
    if (x->element.x && x->number.x)
        (void)hvt__pt2_only_numbers(p, x);
    if (!p->failed && hvt__pt2_count(n, size) > 0)
        do {
            const double i = hvt__pt2_number_at(index, index->ndim, at + dim);

            if (!(i >= -(double)x->size[dim] && i < (double)x->size[dim]) || i != floor(i)) {
                hvt__pt2_refuse(p, "its index %g is none of %lld elements", i, (long long)x->size[dim]);
                return;
            }
            memcpy(from, at, (size_t)dim * sizeof *from);
            from[dim] = (int64_t)i + (i < 0 ? x->size[dim] : 0);
            memcpy(from + dim + 1, at + dim + index->ndim, (size_t)(x->ndim - dim - 1) * sizeof *from);
            *hvt__pt2_element(k->element.x ? &k->element : &k->number, n, at) =
                *hvt__pt2_element(x->element.x ? &x->element : &x->number, x->ndim, from);
        } while (hvt__pt2_next(n, size, at));
    hvt__pt2_out_numbers(p, k);
}

/* ---- the table ---- */

/* What computes a constant of constants; those that are always one need no argument. */
static const struct {
    operation o;
    bool always;
} table[] = {
    {{"aten.zeros.default", full, .a = {NULL, 0}}, true},
    {{"aten.new_zeros.default", full, .a = {NULL, 0}}, true},
    {{"aten.zeros_like.default", full, .a = {NULL, 0}}, true},
    {{"aten.ones.default", full, .a = {NULL, 1}}, true},
    {{"aten.new_ones.default", full, .a = {NULL, 1}}, true},
    {{"aten.ones_like.default", full, .a = {NULL, 1}}, true},
    {{"aten.full.default", full, .a = {"fill_value", 0}}, true},
    {{"aten.new_full.default", full, .a = {"fill_value", 0}}, true},
    {{"aten.full_like.default", full, .a = {"fill_value", 0}}, true},
    {{"aten.arange.default", arange}, true},
    {{"aten.arange.start", arange}, true},
    {{"aten.arange.start_step", arange}, true},
    {{"aten.index.Tensor", take}, true},
    {{"aten.fill.Scalar", fill_scalar}, false},
    {{"aten.fill.Tensor", fill_tensor}, false},
    {{"aten.copy.default", copy}, false},
    {{"aten.zero.default", zero}, false},
    {{"aten.clone.default", clone}, false},
    {{"aten.alias.default", same, .view = true}, false},
    {{"aten.contiguous.default", contiguous, .view = true}, false},
    {{"aten.lift_fresh_copy.default", same, .view = true}, false},
    {{"aten.detach.default", same, .view = true}, false},
    {{"aten.to.dtype", convert, .view = true}, false},
    {{"aten.to.device", same, .view = true}, false},
    {{"aten.view.default", view, .view = true}, false},
    {{"aten._unsafe_view.default", view, .view = true}, false},
    {{"aten.reshape.default", view, .view = true}, false},
    {{"aten.flatten.using_ints", view, .view = true}, false},
    {{"aten.unflatten.int", view, .view = true}, false},
    {{"aten.squeeze.dim", view, .view = true}, false},
    {{"aten.squeeze.dims", view, .view = true}, false},
    {{"aten.unsqueeze.default", view, .view = true}, false},
    {{"aten.expand.default", expand, .view = true}, false},
    {{"aten.expand_as.default", expand, .view = true}, false},
    {{"aten.permute.default", permute, .view = true}, false},
    {{"aten.transpose.int", transpose, .view = true}, false},
    {{"aten.slice.Tensor", slice, .view = true}, false},
    {{"aten.select.int", select_one, .view = true}, false},
    {{"aten.add.Tensor", hvt__pt2_math_combine, ADD}, false},
    {{"aten.add.Scalar", hvt__pt2_math_combine, ADD}, false},
    {{"aten.sub.Tensor", hvt__pt2_math_combine, SUB}, false},
    {{"aten.sub.Scalar", hvt__pt2_math_combine, SUB}, false},
    {{"aten.mul.Tensor", hvt__pt2_math_combine, MUL}, false},
    {{"aten.mul.Scalar", hvt__pt2_math_combine, MUL}, false},
    {{"aten.div.Tensor", hvt__pt2_math_combine, DIV}, false},
    {{"aten.div.Scalar", hvt__pt2_math_combine, DIV}, false},
    {{"aten.div.Tensor_mode", hvt__pt2_math_combine, DIV}, false},
    {{"aten.div.Scalar_mode", hvt__pt2_math_combine, DIV}, false},
    {{"aten.floor_divide.default", hvt__pt2_math_combine, FLOOR_DIV}, false},
    {{"aten.remainder.Scalar", hvt__pt2_math_combine, REMAINDER}, false},
    {{"aten.remainder.Tensor", hvt__pt2_math_combine, REMAINDER}, false},
    {{"aten.pow.Tensor_Scalar", hvt__pt2_math_power}, false},
    {{"aten.pow.Scalar", hvt__pt2_math_power}, false},
    {{"aten.eq.Tensor", hvt__pt2_math_combine, EQ}, false},
    {{"aten.eq.Scalar", hvt__pt2_math_combine, EQ}, false},
    {{"aten.ne.Tensor", hvt__pt2_math_combine, NE}, false},
    {{"aten.ne.Scalar", hvt__pt2_math_combine, NE}, false},
    {{"aten.ge.Tensor", hvt__pt2_math_combine, GE}, false},
    {{"aten.ge.Scalar", hvt__pt2_math_combine, GE}, false},
    {{"aten.gt.Tensor", hvt__pt2_math_combine, GT}, false},
    {{"aten.gt.Scalar", hvt__pt2_math_combine, GT}, false},
    {{"aten.le.Tensor", hvt__pt2_math_combine, LE}, false},
    {{"aten.le.Scalar", hvt__pt2_math_combine, LE}, false},
    {{"aten.lt.Tensor", hvt__pt2_math_combine, LT}, false},
    {{"aten.lt.Scalar", hvt__pt2_math_combine, LT}, false},
    {{"aten.logical_not.default", hvt__pt2_math_logical_not}, false},
    {{"aten.bitwise_not.default", hvt__pt2_math_bitwise_not}, false},
    {{"aten.triu.default", hvt__pt2_math_triangle, 1}, false},
    {{"aten.tril.default", hvt__pt2_math_triangle, -1}, false},
    {{"aten.masked_fill.Scalar", hvt__pt2_math_masked_fill}, false},
    {{"aten.where.self", hvt__pt2_math_where}, false},
    {{"aten.roll.default", roll}, false},
    {{"aten.sin.default", hvt__pt2_math_function, SIN}, false},
    {{"aten.cos.default", hvt__pt2_math_function, COS}, false},
    {{"aten.exp.default", hvt__pt2_math_function, EXP}, false},
    {{"aten.log.default", hvt__pt2_math_function, LOG}, false},
    {{"aten.sqrt.default", hvt__pt2_math_function, SQRT}, false},
    {{"aten.rsqrt.default", hvt__pt2_math_function, RSQRT}, false},
    {{"aten.neg.default", hvt__pt2_math_function, NEG}, false},
    {{"aten.floor.default", hvt__pt2_math_function, FLOOR}, false},
    {{"aten.chunk.default", parts, .view = true}, false},
    {{"aten.split.Tensor", parts, .view = true}, false},
    {{"aten.split_with_sizes.default", parts, .view = true}, false},
    {{"aten.unbind.int", parts, .view = true}, false},
    {{"aten.cat.default", join, 0}, false},
    {{"aten.stack.default", join, 1}, false},
    {{"aten.meshgrid.default", meshgrid}, false},
    {{"aten.meshgrid.indexing", meshgrid}, false},
    {{"aten.repeat.default", repeat}, false},
    {{"aten.tile.default", repeat}, false},
    {{"aten.repeat_interleave.self_int", repeat_each}, false},
    {{"aten.cumsum.default", cumulate}, false},
};

bool hvt__pt2_folds(importer *p)
{
    const char *target = hvt__pt2_target(p->node);
    size_t i = 0;

    while (i < HVT_LEN(table) && !hvt__pt2_is_called(&table[i].o, target))
        i++;
    if (i == HVT_LEN(table) || (!table[i].always && !hvt__pt2_reads_constants(p)))
        return false;
    p->operation = &table[i].o;
    if (p->operation->view && p->operation->build != same && hvt__pt2_in_place(p->node))
        hvt__pt2_refuse(p, "it changes the dimensions of a constant in place");
    else
        p->operation->build(p);
    return true;
}

bool hvt__pt2_computes_constants(const char *target, bool computed)
{
    for (size_t i = 0; i < HVT_LEN(table); i++)
        if (hvt__pt2_is_called(&table[i].o, target))
            return table[i].always || !computed;
    return false;
}

bool hvt__pt2_makes_constants(const char *target)
{
    for (size_t i = 0; i < HVT_LEN(table); i++)
        if (hvt__pt2_is_called(&table[i].o, target))
            return table[i].always && table[i].o.build != take;
    return false;
}
