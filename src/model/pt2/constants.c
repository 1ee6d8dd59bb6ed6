/*
 * Operations whose arguments are known when the file is read, as those that make Swin's masks and the numbers
 * of its relative positions are: they are computed at once, and only what comes of them is imported. An
 * element is a number, or stands for an element of a parameter, or for the sum of both. Views share memory,
 * as PyTorch's do, and operations in place change it.
 */
#include "import.h"

#include <math.h>

enum { MOST_ELEMENTS = 1 << 24 }; /* of all, in a file */

/* ---- arrays ---- */

bool hvt__pt2_next(int n, const int64_t *size, int64_t *at)
{
    int i = n - 1;

    while (i >= 0 && ++at[i] >= size[i])
        at[i--] = 0;
    return i >= 0;
}

static int64_t count(int n, const int64_t *size)
{
    int64_t all = 1;

    for (int i = 0; i < n; i++)
        all = size[i] && all > MOST_ELEMENTS / size[i] ? (int64_t)MOST_ELEMENTS + 1 : all * size[i];
    return all;
}

void *hvt__pt2_keep(importer *p, size_t bytes)
{
    hvt__pt2_kept *k = calloc(1, sizeof *k + bytes);

    if (!k) {
        hvt__pt2_refuse(p, "no memory for what it makes of constants");
        return NULL;
    }
    k->next = p->kept;
    p->kept = k;
    return k->data;
}

void hvt__pt2_forget(importer *p)
{
    for (hvt__pt2_kept *k = p->kept, *then; k; k = then) {
        then = k->next;
        free(k);
    }
    p->kept = NULL;
}

static bool make(importer *p, const known *k, strided *ret)
{
    const int64_t n = count(k->ndim, k->size);

    p->elements += n;
    if (p->elements > MOST_ELEMENTS)
        hvt__pt2_refuse(p, "the file makes more than %d numbers of constants", MOST_ELEMENTS);
    else
        ret->x = hvt__pt2_keep(p, (size_t)(n ? n : 1) * sizeof *ret->x);
    for (int64_t i = k->ndim - 1, step = 1; i >= 0; step *= k->size[i--])
        ret->stride[i] = step;
    ret->fixed = p->failed ? NULL : hvt__pt2_keep(p, sizeof *ret->fixed);
    return !p->failed;
}

known *hvt__pt2_numbers(importer *p, int ndim, const int64_t *size)
{
    known *k = hvt__pt2_keep(p, sizeof *k);

    if (!k)
        return NULL;
    *k = (known){.ndim = ndim, .table = -1};
    memcpy(k->size, size, (size_t)ndim * sizeof *size);
    return make(p, k, &k->number) ? k : NULL;
}

double *hvt__pt2_element(const strided *s, int n, const int64_t *at)
{
    int64_t i = 0;

    for (int d = 0; d < n; d++)
        i += at[d] * s->stride[d];
    return s->x + i;
}

/* One of x, repeated to n dimensions at whose place `at` it is read. */
strided hvt__pt2_repeated(const known *k, const strided *s, int n)
{
    strided y = {.x = s->x, .fixed = s->fixed};

    for (int i = 0; i < k->ndim; i++)
        y.stride[n - k->ndim + i] = k->size[i] == 1 ? 0 : s->stride[i];
    return y;
}

static double number_at(const known *k, int n, const int64_t *at)
{
    const strided s = hvt__pt2_repeated(k, &k->number, n);

    return s.x ? *hvt__pt2_element(&s, n, at) : 0;
}

bool hvt__pt2_repeats(const known *k, int n, const int64_t *size)
{
    bool is = k->ndim <= n;

    for (int i = 0; i < k->ndim && is; i++)
        is = k->size[i] == 1 || k->size[i] == size[n - k->ndim + i];
    return is;
}

/* The sizes to which both are repeated; 0: there are none. */
static int common(const known *a, const known *b, int64_t *ret_size)
{
    const int n = a->ndim > b->ndim ? a->ndim : b->ndim;

    for (int i = 0; i < n; i++) {
        const int64_t p = i < n - a->ndim ? 1 : a->size[i - (n - a->ndim)],
                      q = i < n - b->ndim ? 1 : b->size[i - (n - b->ndim)];

        ret_size[i] = p == 1 ? q : p;
    }
    return hvt__pt2_repeats(a, n, ret_size) && hvt__pt2_repeats(b, n, ret_size);
}

static int ndim_of(const known *a, const known *b)
{
    return a->ndim > b->ndim ? a->ndim : b->ndim;
}

/* ---- types ---- */

static bool is_float(int type)
{
    return type == HVT__PT2_F32 || type == HVT__PT2_F64;
}

/* x as a number of this type: rounded, or, of whole numbers, without what is behind the point, around the
 * type's range. */
static double as_type(importer *p, int type, double x)
{
    const double whole = trunc(x);

    switch (type) {
    case HVT__PT2_F32:
        return (float)x;
    case HVT__PT2_F64:
        return x;
    case HVT__PT2_BOOL:
        return x != 0;
    default:
        break;
    }
    if (!(fabs(whole) <= 0x1p53)) {
        hvt__pt2_refuse(p, "it makes a whole number of %g; expected at most 2^53", x);
        return 0;
    }
    switch (type) {
    case HVT__PT2_U8:
        return (uint8_t)(int64_t)whole;
    case HVT__PT2_I8:
        return (int8_t)(int64_t)whole;
    case HVT__PT2_I16:
        return (int16_t)(int64_t)whole;
    case HVT__PT2_I32:
        return (int32_t)(int64_t)whole;
    case HVT__PT2_I64:
        return whole;
    default:
        hvt__pt2_refuse(p, "it makes constants of a type that is not known of them, as of 16 bits; expected "
                           "float32 or float64, whole numbers or truth values");
        return 0;
    }
}

static int out_type(const importer *p)
{
    const char *name = hvt__pt2_out_name(p, 0);

    return name ? hvt__pt2_type(p->file, name) : 0;
}

/* ---- arguments ---- */

/* Files of weights have it, too; once, in the sizes that it has there. */
static hvt_status attach(importer *p, const tensor *t, const double *values)
{
    int64_t size[4];
    const int n = hvt__pt2_sizes(p->file, t->viewed ? t->viewed : t->name, 4, size);
    int dim[4];

    if (json_object_get(p->attached, t->state))
        return HVT_OK;
    HVT_CHECK(n >= 0 && json_object_set_new(p->attached, t->state, json_true()) == 0, E_UNSUPPORTED,
              "%s: the buffer %s has more than 4 dimensions, or there is no memory", p->file->path, t->state);
    for (int i = 0; i < n; i++)
        dim[i] = (int)size[i];
    return hvt_model_attach(p->m, t->state, n, dim, hvt__pt2_is_whole(p->file, t->name), values);
}

/* The values of a buffer, in the sizes in which the graph reads it. */
static known *read_buffer(importer *p, const tensor *t)
{
    int64_t size[HVT__PT2_DIMS];
    const int n = hvt__pt2_sizes(p->file, t->name, HVT__PT2_DIMS, size);
    int64_t whole[HVT__PT2_DIMS];
    const int of = hvt__pt2_sizes(p->file, t->viewed ? t->viewed : t->name, HVT__PT2_DIMS, whole);
    known *k;

    if (n < 0 || of < 0)
        hvt__pt2_refuse(p, "%s has no sizes, or more than %d dimensions", t->state, HVT__PT2_DIMS);
    else if (count(n, size) != count(of, whole))
        hvt__pt2_refuse(p, "%s is repeated; expected a constant of the sizes that it is saved with",
                        t->state);
    k = p->failed ? NULL : hvt__pt2_numbers(p, n, size);
    if (k && (hvt__pt2_read_buffer(p->file, t->state, count(n, size), k->number.x) != HVT_OK ||
              (t->persistent && attach(p, t, k->number.x) != HVT_OK))) {
        p->failed = true; /* the last error says why */
        return NULL;
    }
    return k;
}

const known *hvt__pt2_known(importer *p, const tensor *t)
{
    return !t ? NULL : t->known ? t->known : t->state && t->constant ? read_buffer(p, t) : NULL;
}

/* NULL: it is not given, or was refused. */
static const known *argument(importer *p, const char *name)
{
    const tensor *t = hvt__pt2_uncut(p, name);
    const known *k = hvt__pt2_known(p, t);

    if (t && !k)
        hvt__pt2_refuse(p, "its %s is computed; expected a constant", name);
    return p->failed ? NULL : k;
}

static const known *self(importer *p)
{
    const known *k = argument(p, "self");

    if (!k && !p->failed)
        hvt__pt2_refuse(p, "it has no tensor");
    return k;
}

static void put(importer *p, const known *from);

static void out(importer *p, const known *k)
{
    if (k && !p->failed)
        hvt__pt2_out(p, 0, (tensor){.v = -1, .known = k}, NULL);
}

/* Numbers of its own, as those of the output's type; in place they are put where those before were. */
static void out_numbers(importer *p, known *k)
{
    int64_t at[HVT__PT2_DIMS] = {0};
    const int type = out_type(p);

    if (!k || p->failed)
        return;
    if (k->number.x && count(k->ndim, k->size) > 0)
        do {
            double *x = hvt__pt2_element(&k->number, k->ndim, at);

            *x = as_type(p, type, *x);
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

static bool only_numbers(importer *p, const known *x)
{
    if (x && x->element.x)
        hvt__pt2_refuse(p, "it computes with elements of a parameter; expected a sum of them and numbers");
    return x && !p->failed;
}

static void fill(known *k, double value)
{
    int64_t at[HVT__PT2_DIMS] = {0};

    if (count(k->ndim, k->size) > 0)
        do
            *hvt__pt2_element(&k->number, k->ndim, at) = value;
        while (hvt__pt2_next(k->ndim, k->size, at));
}

static void make_full(importer *p, double value)
{
    int64_t size[HVT__PT2_DIMS];
    const int n = sizes_of_output(p, size);
    known *k = p->failed ? NULL : hvt__pt2_numbers(p, n, size);

    if (k)
        fill(k, value);
    out_numbers(p, k);
}

static void zeros(importer *p)
{
    make_full(p, 0);
}

static void clone(importer *p)
{
    const known *x = self(p);
    int64_t at[HVT__PT2_DIMS] = {0};
    known *k = only_numbers(p, x) ? hvt__pt2_numbers(p, x->ndim, x->size) : NULL;

    if (k && count(k->ndim, k->size) > 0)
        do
            *hvt__pt2_element(&k->number, k->ndim, at) = number_at(x, k->ndim, at);
        while (hvt__pt2_next(k->ndim, k->size, at));
    out_numbers(p, k);
}

static void ones(importer *p)
{
    make_full(p, 1);
}

static void full(importer *p)
{
    make_full(p, hvt__pt2_float(p, "fill_value", 0));
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
    out_numbers(p, k);
}

/* ---- views ---- */

static void same(importer *p)
{
    out(p, self(p));
}

static bool is_contiguous(const importer *p)
{
    return !strcmp(hvt__pt2_target(p->node), "aten.contiguous.default");
}

static known *reshaped(importer *p, const known *x, int n, const int64_t *size)
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
        if (!make(p, k, to[i]))
            return NULL;
        if (dense) {
            to[i]->x = from[i]->x;
            to[i]->fixed = from[i]->fixed;
            continue;
        }
        if (k->ndim != x->ndim || memcmp(k->size, x->size, (size_t)n * sizeof *size) || !is_contiguous(p))
            *from[i]->fixed = *to[i]->fixed = true; /* PyTorch may have made a view */
        if (count(n, size) > 0)
            do
                to[i]->x[next_to++] = *hvt__pt2_element(from[i], x->ndim, at);
            while (hvt__pt2_next(x->ndim, x->size, at));
    }
    return k;
}

/* The output's sizes say what it is. */
static void view(importer *p)
{
    const known *x = self(p);
    int64_t size[HVT__PT2_DIMS];
    const int n = sizes_of_output(p, size);

    if (p->failed)
        return;
    if (count(n, size) != count(x->ndim, x->size))
        hvt__pt2_refuse(p, "its output has another number of elements than its input");
    else
        out(p, reshaped(p, x, n, size));
}

static void expand(importer *p)
{
    const known *x = self(p);
    int64_t size[HVT__PT2_DIMS];
    const int n = sizes_of_output(p, size);
    known *k;

    if (p->failed)
        return;
    if (!hvt__pt2_repeats(x, n, size) || count(n, size) > MOST_ELEMENTS)
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
    const known *x = self(p);

    out(p, x ? reshaped(p, x, x->ndim, x->size) : NULL);
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
    const known *x = self(p);
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
    const known *x = self(p);
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

    first += first < 0 ? x->size[dim] : 0;
    end += end < 0 ? x->size[dim] : 0;
    first = first < 0 ? 0 : first > x->size[dim] ? x->size[dim] : first;
    end = end < first ? first : end > x->size[dim] ? x->size[dim] : end;
    k = view_of(p, x);
    if (!k)
        return NULL;
    k->size[dim] = (end - first + step - 1) / step;
    k->number.x = x->number.x ? x->number.x + first * x->number.stride[dim] : NULL;
    k->element.x = x->element.x ? x->element.x + first * x->element.stride[dim] : NULL;
    k->number.stride[dim] *= step;
    k->element.stride[dim] *= step;
    return k;
}

static void slice(importer *p)
{
    const known *x = self(p);
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
    const known *x = self(p);
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
    for (int i = dim; i + 1 < k->ndim; i++) {
        k->size[i] = k->size[i + 1];
        k->number.stride[i] = k->number.stride[i + 1];
        k->element.stride[i] = k->element.stride[i + 1];
    }
    k->ndim--;
    out(p, k);
}

/* ---- arithmetic ---- */

typedef double function(double a, double b);

static double add(double a, double b)
{
    return a + b;
}

static double sub(double a, double b)
{
    return a - b;
}

static double mul(double a, double b)
{
    return a * b;
}

static double divide(double a, double b)
{
    return a / b;
}

static double eq(double a, double b)
{
    return a == b;
}

static double ne(double a, double b)
{
    return a != b;
}

static double ge(double a, double b)
{
    return a >= b;
}

static double gt(double a, double b)
{
    return a > b;
}

static double le(double a, double b)
{
    return a <= b;
}

static double lt(double a, double b)
{
    return a < b;
}

/* The type of an argument. */
static int type_of(importer *p, const char *name)
{
    const tensor *t = hvt__pt2_uncut(p, name);

    return t ? hvt__pt2_type(p->file, t->name) : 0;
}

/* The type of floats in which two arguments meet, as PyTorch promotes them; 0: they are whole numbers. */
static int common_type(importer *p, bool is_number)
{
    const int a = type_of(p, "self"), b = is_number ? 0 : type_of(p, "other");
    const char *kind;

    (void)hvt__pt2_arg(p->node, "other", &kind);
    if (is_float(out_type(p)))
        return out_type(p);
    if (out_type(p) != HVT__PT2_BOOL || (!is_float(a) && !is_float(b)))
        return is_number && out_type(p) == HVT__PT2_BOOL && !strcmp(kind, "as_float") ? HVT__PT2_F32 : 0;
    return !is_float(b) || (is_float(a) && a > b) ? a : b;
}

/* f of each two numbers, b's multiplied by alpha. Where f is a sum, one of both may have elements. */
static void combine(importer *p, function *f)
{
    const known *a = self(p), *b;
    double number = 0, alpha = hvt__pt2_float(p, "alpha", 1);
    const bool is_number = hvt__pt2_number(p, &number);
    const int type = common_type(p, is_number);
    int64_t size[HVT__PT2_DIMS], at[HVT__PT2_DIMS] = {0};
    const known of_number = {.table = -1};
    const known *with;
    int n;
    known *k;

    b = is_number ? &of_number : argument(p, "other");
    if (!a || !b) {
        if (!p->failed)
            hvt__pt2_refuse(p, "it has one argument");
        return;
    }
    n = ndim_of(a, b);
    if (!common(a, b, size))
        hvt__pt2_refuse(p, "the sizes of its arguments differ");
    with = a->element.x ? a : b->element.x ? b : NULL;
    if (with && (f != add || alpha != 1 || (a->element.x && b->element.x)))
        (void)only_numbers(p, with);
    k = p->failed ? NULL : hvt__pt2_numbers(p, n, size);
    if (!k)
        return;
    if (with) {
        k->element = hvt__pt2_repeated(with, &with->element, n);
        k->table = with->table;
    }
    if (count(n, size) > 0)
        do {
            const double x = number_at(a, n, at), y = alpha * (is_number ? number : number_at(b, n, at));

            *hvt__pt2_element(&k->number, n, at) =
                type ? f(as_type(p, type, x), as_type(p, type, y)) : f(x, y);
        } while (hvt__pt2_next(n, size, at));
    out_numbers(p, k);
}

#define COMBINE(f)                                                                                           \
    static void combine_##f(importer *p)                                                                     \
    {                                                                                                        \
        combine(p, f);                                                                                       \
    }

COMBINE(add)
COMBINE(sub)
COMBINE(mul)
COMBINE(divide)
COMBINE(eq)
COMBINE(ne)
COMBINE(ge)
COMBINE(gt)
COMBINE(le)
COMBINE(lt)

static void logical_not(importer *p)
{
    const known *x = self(p);
    int64_t at[HVT__PT2_DIMS] = {0};
    known *k = only_numbers(p, x) ? hvt__pt2_numbers(p, x->ndim, x->size) : NULL;

    if (k && count(k->ndim, k->size) > 0)
        do
            *hvt__pt2_element(&k->number, k->ndim, at) = !number_at(x, k->ndim, at);
        while (hvt__pt2_next(k->ndim, k->size, at));
    out_numbers(p, k);
}

/* Of truth values. */
static void bitwise_not(importer *p)
{
    if (type_of(p, "self") == HVT__PT2_BOOL)
        logical_not(p);
    else
        hvt__pt2_refuse(p, "it is known of truth values only");
}

/* 0 where column - row is on the wrong side of `diagonal` */
static void triangle(importer *p, int side)
{
    const known *x = self(p);
    const int64_t diagonal = hvt__pt2_int(p, "diagonal", 0);
    int64_t at[HVT__PT2_DIMS] = {0};
    known *k = only_numbers(p, x) ? hvt__pt2_numbers(p, x->ndim, x->size) : NULL;

    if (k && k->ndim < 2)
        hvt__pt2_refuse(p, "it has %d dimensions", k->ndim);
    if (k && !p->failed && count(k->ndim, k->size) > 0)
        do {
            const int64_t apart = at[k->ndim - 1] - at[k->ndim - 2] - diagonal;

            if (apart * side >= 0)
                *hvt__pt2_element(&k->number, k->ndim, at) = number_at(x, k->ndim, at);
        } while (hvt__pt2_next(k->ndim, k->size, at));
    out_numbers(p, k);
}

static void triu(importer *p)
{
    triangle(p, 1);
}

static void tril(importer *p)
{
    triangle(p, -1);
}

/* mask ? a : b, each a tensor or a number */
static void choose(importer *p, const known *mask, const known *a, const known *b, double number_a)
{
    int64_t size[HVT__PT2_DIMS], at[HVT__PT2_DIMS] = {0};
    const known of_number = {.table = -1}, *wide;
    known *k;
    int n;

    if (!only_numbers(p, mask) || (a && !only_numbers(p, a)) || !only_numbers(p, b))
        return;
    wide = mask->ndim > b->ndim ? mask : b;
    n = wide->ndim;
    if (!common(mask, b, size) || !hvt__pt2_repeats(a ? a : &of_number, n, size))
        hvt__pt2_refuse(p, "the sizes of its arguments differ");
    k = p->failed ? NULL : hvt__pt2_numbers(p, n, size);
    if (k && count(n, size) > 0)
        do
            *hvt__pt2_element(&k->number, n, at) = !number_at(mask, n, at) ? number_at(b, n, at)
                                                   : a                     ? number_at(a, n, at)
                                                                           : number_a;
        while (hvt__pt2_next(n, size, at));
    out_numbers(p, k);
}

static void masked_fill(importer *p)
{
    const known *x = self(p), *mask = p->failed ? NULL : argument(p, "mask");

    choose(p, mask, NULL, x, hvt__pt2_float(p, "value", 0));
}

static void where(importer *p)
{
    const known *mask = argument(p, "condition"), *a = p->failed ? NULL : self(p),
                *b = p->failed ? NULL : argument(p, "other");

    if (mask && a && b)
        choose(p, mask, a, b, 0);
    else if (!p->failed)
        hvt__pt2_refuse(p, "its arguments are no tensors");
}

/* out[i] = x[i - shift], around each dimension */
static void roll(importer *p)
{
    const known *x = self(p);
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
    k = !p->failed && only_numbers(p, x) ? hvt__pt2_numbers(p, x->ndim, x->size) : NULL;
    if (k && count(k->ndim, k->size) > 0)
        do {
            memcpy(from, at, sizeof from);
            for (int i = 0; i < n; i++) {
                const int64_t all = x->size[dim[i]];

                from[dim[i]] = ((from[dim[i]] - shift[i]) % all + all) % all;
            }
            *hvt__pt2_element(&k->number, k->ndim, at) = number_at(x, k->ndim, from);
        } while (hvt__pt2_next(k->ndim, k->size, at));
    out_numbers(p, k);
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
        fill(x, as_type(p, out_type(p), hvt__pt2_float(p, "value", 0)));
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

    if (!x || !only_numbers(p, from))
        return;
    if (!hvt__pt2_repeats(from, x->ndim, x->size))
        hvt__pt2_refuse(p, "the sizes of its arguments differ");
    else if (count(x->ndim, x->size) > 0)
        do
            *hvt__pt2_element(&x->number, x->ndim, at) =
                as_type(p, out_type(p), number_at(from, x->ndim, at));
        while (hvt__pt2_next(x->ndim, x->size, at));
    out(p, x);
}

/* Another tensor, which may be a part of the same memory. */
static void copy_from(importer *p, const known *x)
{
    int64_t at[HVT__PT2_DIMS] = {0};
    known *k = only_numbers(p, x) ? hvt__pt2_numbers(p, x->ndim, x->size) : NULL;

    if (k && count(k->ndim, k->size) > 0)
        do
            *hvt__pt2_element(&k->number, k->ndim, at) = number_at(x, k->ndim, at);
        while (hvt__pt2_next(k->ndim, k->size, at));
    if (k)
        put(p, k);
}

static void fill_tensor(importer *p)
{
    copy_from(p, argument(p, "value"));
}

static void copy(importer *p)
{
    copy_from(p, argument(p, "src"));
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
        hvt__pt2_refuse(p, "%s has no sizes, or more than %d dimensions", t->state, HVT__PT2_DIMS);
    if (!k)
        return NULL;
    k->element = k->number;
    k->number.x = NULL;
    for (int64_t i = 0; i < count(n, size); i++)
        k->element.x[i] = (double)i;
    k->table = (int)(t - p->tensor);
    return k;
}

static void take(importer *p)
{
    const tensor *t = hvt__pt2_uncut(p, "self");
    int dim = 0;
    const known *x = t && t->state && !t->constant ? elements_of(p, t) : hvt__pt2_known(p, t), *index;
    int64_t size[HVT__PT2_DIMS], at[HVT__PT2_DIMS] = {0}, from[HVT__PT2_DIMS];
    int n;
    known *k;

    if (!x && !p->failed)
        hvt__pt2_refuse(p, "it takes elements of what is computed; expected a parameter or a constant");
    index = p->failed ? NULL : only_index(p, &dim);
    if (!index || !only_numbers(p, index))
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
        k->table = x->table;
    }
    if (x->element.x && x->number.x)
        (void)only_numbers(p, x);
    if (!p->failed && count(n, size) > 0)
        do {
            const double i = number_at(index, index->ndim, at + dim);

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
    out_numbers(p, k);
}

/* ---- what nothing reads ---- */

static bool ends_in(const char *text, const char *end)
{
    const size_t n = strlen(text), of = strlen(end);

    return n >= of && !strcmp(text + n - of, end);
}

/* Batch norms have statistics of their own. */
static bool is_of_norm(const char *state)
{
    return ends_in(state, "running_mean") || ends_in(state, "running_var") ||
           ends_in(state, "num_batches_tracked");
}

hvt_status hvt__pt2_attach_unused(importer *p)
{
    const hvt_pt2 *f = p->file;
    const char *name;
    json_t *state;

    json_object_foreach(f->inputs, name, state)
    {
        const char *text = json_string_value(state);
        int64_t size[4];
        const int n = hvt__pt2_sizes(f, name, 4, size);
        known *k;

        if (!json_is_true(json_object_get(f->constants, name)) || json_object_get(f->used, name) || n < 0 ||
            is_of_norm(text) || !json_object_get(f->weights, text) ||
            (!is_float(hvt__pt2_type(f, name)) && !hvt__pt2_is_whole(f, name)))
            continue;
        k = hvt__pt2_numbers(p, n, size);
        if (!k)
            return hvt__pass(HVT_E_UNSUPPORTED, __FILE__, __LINE__, "import");
        HVT_TRY(hvt__pt2_read_buffer(f, text, count(n, size), k->number.x));
        HVT_TRY(attach(p, hvt__pt2_named(p, name), k->number.x));
    }
    return HVT_OK;
}

/* ---- the table ---- */

/* What computes a constant of constants; those that are always one need no argument. */
static const struct {
    operation o;
    bool always;
} table[] = {
    {{"aten.zeros.default", zeros}, true},
    {{"aten.new_zeros.default", zeros}, true},
    {{"aten.zeros_like.default", zeros}, true},
    {{"aten.ones.default", ones}, true},
    {{"aten.new_ones.default", ones}, true},
    {{"aten.ones_like.default", ones}, true},
    {{"aten.full.default", full}, true},
    {{"aten.new_full.default", full}, true},
    {{"aten.full_like.default", full}, true},
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
    {{"aten.add.Tensor", combine_add}, false},
    {{"aten.add.Scalar", combine_add}, false},
    {{"aten.sub.Tensor", combine_sub}, false},
    {{"aten.sub.Scalar", combine_sub}, false},
    {{"aten.mul.Tensor", combine_mul}, false},
    {{"aten.mul.Scalar", combine_mul}, false},
    {{"aten.div.Tensor", combine_divide}, false},
    {{"aten.div.Scalar", combine_divide}, false},
    {{"aten.eq.Tensor", combine_eq}, false},
    {{"aten.eq.Scalar", combine_eq}, false},
    {{"aten.ne.Tensor", combine_ne}, false},
    {{"aten.ne.Scalar", combine_ne}, false},
    {{"aten.ge.Tensor", combine_ge}, false},
    {{"aten.ge.Scalar", combine_ge}, false},
    {{"aten.gt.Tensor", combine_gt}, false},
    {{"aten.gt.Scalar", combine_gt}, false},
    {{"aten.le.Tensor", combine_le}, false},
    {{"aten.le.Scalar", combine_le}, false},
    {{"aten.lt.Tensor", combine_lt}, false},
    {{"aten.lt.Scalar", combine_lt}, false},
    {{"aten.logical_not.default", logical_not}, false},
    {{"aten.bitwise_not.default", bitwise_not}, false},
    {{"aten.triu.default", triu}, false},
    {{"aten.tril.default", tril}, false},
    {{"aten.masked_fill.Scalar", masked_fill}, false},
    {{"aten.where.self", where}, false},
    {{"aten.roll.default", roll}, false},
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

const operation *hvt__pt2_constant_operation(const char *target)
{
    for (size_t i = 0; i < HVT_LEN(table); i++)
        if (hvt__pt2_is_called(&table[i].o, target))
            return &table[i].o;
    return NULL;
}
