/*
 * Arrays of numbers that are known when a file is read: of what the graph makes of constants, and of buffers.
 * Views share memory. An element has a number, an element of a parameter, or both.
 */
#include "import.h"

#include <math.h>

bool hvt__pt2_next(int n, const int64_t *size, int64_t *at)
{
    int i = n - 1;

    while (i >= 0 && ++at[i] >= size[i])
        at[i--] = 0;
    return i >= 0;
}

int64_t hvt__pt2_count(int n, const int64_t *size)
{
    int64_t all = 1;

    for (int i = 0; i < n; i++)
        all = size[i] && all > HVT__PT2_ELEMENTS_MOST / size[i] ? (int64_t)HVT__PT2_ELEMENTS_MOST + 1
                                                                : all * size[i];
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

void hvt__pt2_strides(const known *k, strided *ret)
{
    for (int64_t i = k->ndim - 1, step = 1; i >= 0; step *= k->size[i--])
        ret->stride[i] = step;
}

bool hvt__pt2_room(importer *p, const known *k, strided *ret)
{
    const int64_t n = hvt__pt2_count(k->ndim, k->size);

    p->elements += n;
    if (p->elements > HVT__PT2_ELEMENTS_MOST)
        hvt__pt2_refuse(p, "the file makes more than %d numbers of constants", HVT__PT2_ELEMENTS_MOST);
    else
        ret->x = hvt__pt2_keep(p, (size_t)(n ? n : 1) * sizeof *ret->x);
    hvt__pt2_strides(k, ret);
    ret->fixed = p->failed ? NULL : hvt__pt2_keep(p, sizeof *ret->fixed);
    return !p->failed;
}

known *hvt__pt2_numbers(importer *p, int ndim, const int64_t *size)
{
    known *k = hvt__pt2_keep(p, sizeof *k);

    if (!k)
        return NULL;
    *k = (known){.ndim = ndim, .from = {.table = -1}};
    memcpy(k->size, size, (size_t)ndim * sizeof *size);
    return hvt__pt2_room(p, k, &k->number) ? k : NULL;
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

double hvt__pt2_number_at(const known *k, int n, const int64_t *at)
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

bool hvt__pt2_common(const known *a, const known *b, int64_t *ret_size)
{
    const int n = a->ndim > b->ndim ? a->ndim : b->ndim;

    for (int i = 0; i < n; i++) {
        const int64_t p = i < n - a->ndim ? 1 : a->size[i - (n - a->ndim)],
                      q = i < n - b->ndim ? 1 : b->size[i - (n - b->ndim)];

        ret_size[i] = p == 1 ? q : p;
    }
    return hvt__pt2_repeats(a, n, ret_size) && hvt__pt2_repeats(b, n, ret_size);
}

/* ---- types ---- */

bool hvt__pt2_is_float(int type)
{
    return type == HVT__PT2_F32 || type == HVT__PT2_F64;
}

double hvt__pt2_as_type(importer *p, int type, double x)
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

/* ---- buffers ---- */

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
    else if (hvt__pt2_count(n, size) != hvt__pt2_count(of, whole))
        hvt__pt2_refuse(p, "%s is repeated; expected a constant of the sizes that it is saved with",
                        t->state);
    k = p->failed ? NULL : hvt__pt2_numbers(p, n, size);
    if (k && (hvt__pt2_read_buffer(p->file, t->state, hvt__pt2_count(n, size), k->number.x) != HVT_OK ||
              (t->persistent && attach(p, t, k->number.x) != HVT_OK))) {
        const size_t path = strlen(p->file->path) + 2; /* the message names it, too */

        hvt__pt2_refuse(p, "%s",
                        hvt_last_error() + (strncmp(hvt_last_error(), p->file->path, path - 2) ? 0 : path));
        return NULL;
    }
    return k;
}

const known *hvt__pt2_known(importer *p, const tensor *t)
{
    return !t ? NULL : t->known ? t->known : t->state && t->constant ? read_buffer(p, t) : NULL;
}

/* Batch norms have statistics of their own. */
static bool is_of_norm(const char *state)
{
    return hvt__pt2_ends_in(state, "running_mean") || hvt__pt2_ends_in(state, "running_var") ||
           hvt__pt2_counts_batches(state);
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
            (!hvt__pt2_is_float(hvt__pt2_type(f, name)) && !hvt__pt2_is_whole(f, name)))
            continue;
        k = hvt__pt2_numbers(p, n, size);
        if (!k)
            return hvt__pass(HVT_E_UNSUPPORTED, __FILE__, __LINE__, "import");
        HVT_TRY(hvt__pt2_read_buffer(f, text, hvt__pt2_count(n, size), k->number.x));
        HVT_TRY(attach(p, hvt__pt2_named(p, name), k->number.x));
    }
    return HVT_OK;
}
