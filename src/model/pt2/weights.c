/*
 * The values of parameters and buffers in a .pt2 file: finding them, checking them against the graph, and
 * reading them.
 */
#include "pt2_impl.h"

#include <math.h>

enum { NAME_MOST = 400 };

/* The layout of a tensor in its entry, which may be larger than the tensor. */
typedef struct layout {
    int ndim;
    int64_t size[4], stride[4], first, end; /* the elements [first, end) */
    size_t count;
} layout;

/* True if no two indices share an element: ordered by stride, each dimension must step past all before it. */
static bool is_distinct(const layout *l)
{
    int64_t past = 1;
    bool done[4] = {0};

    for (int n = 0; n < l->ndim; n++) {
        int next = -1;

        for (int i = 0; i < l->ndim; i++)
            if (!done[i] && (next < 0 || l->stride[i] < l->stride[next]))
                next = i;
        done[next] = true;
        if (l->size[next] > 1 && l->stride[next] < past)
            return false;
        past += (l->size[next] - 1) * l->stride[next];
    }
    return true;
}

/* Returns the offset of the element at index at[], and advances at[] in canonical order. */
static int64_t next_place(const layout *l, int64_t at[4])
{
    int64_t from = l->first;

    for (int d = 0; d < l->ndim; d++)
        from += at[d] * l->stride[d];
    for (int d = l->ndim - 1; d >= 0 && ++at[d] == l->size[d]; d--)
        at[d] = 0;
    return from;
}

/* 1 if two tensors of one entry share an element, 0 if not, -1: out of memory. */
static int share_elements(const layout *a, const layout *b)
{
    const int64_t end = a->end > b->end ? a->end : b->end;
    bool *taken, shared = false;
    int64_t at[4] = {0};

    if (a->end <= b->first || b->end <= a->first)
        return 0;
    taken = calloc((size_t)end, sizeof *taken);
    if (!taken)
        return -1;
    for (size_t i = 0; i < a->count; i++)
        taken[next_place(a, at)] = true;
    memset(at, 0, sizeof at);
    for (size_t i = 0; i < b->count && !shared; i++)
        shared = taken[next_place(b, at)];
    free(taken);
    return shared;
}

static const char *type_name(long long type)
{
    static const char *const names[] = {
        "an unknown type", "torch.uint8",      "torch.int8",    "torch.int16",   "torch.int32",
        "torch.int64",     "torch.float16",    "torch.float32", "torch.float64", "torch.complex32",
        "torch.complex64", "torch.complex128", "torch.bool",    "torch.bfloat16"};

    return names[type > 0 && type < (long long)HVT_LEN(names) ? type : 0];
}

static hvt_status read_sizes(const hvt_pt2 *p, const char *name, const json_t *meta, layout *ret_layout)
{
    const json_t *sizes = json_object_get(meta, "sizes"), *strides = json_object_get(meta, "strides"),
                 *offset = json_object_get(json_object_get(meta, "storage_offset"), "as_int");
    layout l = {.ndim = (int)json_array_size(sizes), .count = 1, .first = json_integer_value(offset)};

    HVT_CHECK(json_array_size(sizes) <= 4 && json_array_size(strides) == json_array_size(sizes) &&
                  l.first >= 0 && l.first <= INT_MAX,
              E_FORMAT, "%s: %s has no sizes and strides of at most 4 dimensions, or no place", p->path,
              name);
    l.end = l.first + 1;
    for (int i = 0; i < l.ndim; i++) {
        l.size[i] = json_integer_value(json_object_get(json_array_get(sizes, (size_t)i), "as_int"));
        l.stride[i] = json_integer_value(json_object_get(json_array_get(strides, (size_t)i), "as_int"));
        HVT_CHECK(l.size[i] > 0 && l.size[i] <= INT_MAX && l.stride[i] >= 0 && l.stride[i] <= INT_MAX,
                  E_FORMAT, "%s: dimension %d of %s has size %lld and stride %lld", p->path, i, name,
                  (long long)l.size[i], (long long)l.stride[i]);
        HVT_CHECK(!__builtin_mul_overflow(l.count, (size_t)l.size[i], &l.count) && l.count <= INT_MAX,
                  E_FORMAT, "%s: %s has too many values", p->path, name);
        l.end += (l.size[i] - 1) * l.stride[i]; /* below 2^64: four products of 31 bits */
        HVT_CHECK(l.end <= INT64_C(1) << 40, E_FORMAT, "%s: %s has values too far apart", p->path, name);
    }
    *ret_layout = l;
    return HVT_OK;
}

/* Reads the layout of a parameter, which must be float32. */
static hvt_status read_layout(const hvt_pt2 *p, const char *name, const json_t *meta, layout *ret_layout)
{
    const json_t *type = json_object_get(meta, "dtype");

    HVT_CHECK(json_integer_value(type) == PT2_F32, E_UNSUPPORTED,
              "%s: %s has values of %s; only torch.float32 is read: export model.float()", p->path, name,
              type_name(json_integer_value(type)));
    return read_sizes(p, name, meta, ret_layout);
}

static bool is_canonical(const layout *l)
{
    int64_t inner = 1;
    bool same = true;

    for (int d = l->ndim - 1; d >= 0; inner *= l->size[d--])
        same = same && (l->size[d] == 1 || l->stride[d] == inner);
    return same;
}

/* Copies from the order of the strides to canonical order: weights of a channels_last model are [K,R,S,C]. */
static void order(const layout *l, const float *stored, float *ret_values)
{
    int64_t at[4] = {0};

    for (size_t i = 0; i < l->count; i++)
        ret_values[i] = stored[next_place(l, at)];
}

static bool is_read(const json_t *entry)
{
    return entry && !json_is_true(json_object_get(entry, "use_pickle")) &&
           json_integer_value(json_object_get(json_object_get(entry, "tensor_meta"), "dtype")) == PT2_F32;
}

/* Finds where the values of a tensor are; *ret_entry is a name below the top folder, of NAME_MOST bytes. */
static hvt_status find_values(const hvt_pt2 *p, const char *tensor, char *ret_entry, layout *ret_layout)
{
    const json_t *entry = json_object_get(p->weights, tensor);
    const char *path = json_string_value(json_object_get(entry, "path_name"));

    HVT_CHECK(path && !json_is_true(json_object_get(entry, "use_pickle")), E_FORMAT,
              "%s: it holds no values of %s", p->path, tensor);
    HVT_TRY(read_layout(p, tensor, json_object_get(entry, "tensor_meta"), ret_layout));
    snprintf(ret_entry, NAME_MOST, "data/weights/%s", path);
    return HVT_OK;
}

/* Finds where an input of the graph has its values, and of what type they are. */
static const json_t *entry_of(const hvt_pt2 *p, const pt2_value *v)
{
    return json_object_get(p->weights, v->state);
}

static const char *path_of(const hvt_pt2 *p, const pt2_value *v)
{
    return json_string_value(json_object_get(entry_of(p, v), "path_name"));
}

/* Refuses parameter `until` if it shares an element with an earlier one: training would separate them. */
static hvt_status check_apart(const hvt_pt2 *p, const pt2_value *until, const char *entry, const layout *l)
{
    const char *path = strrchr(entry, '/') + 1;

    for (int i = 0; p->graph->input[i] != until; i++) {
        const pt2_value *v = p->graph->input[i];
        char other_entry[NAME_MOST];
        layout k;
        int shared;

        if (v->source != PT2_TRAINED || !v->used || !is_read(entry_of(p, v)) ||
            strcmp(path_of(p, v), path) != 0)
            continue;
        HVT_TRY(find_values(p, v->state, other_entry, &k));
        shared = share_elements(l, &k);
        HVT_CHECK(shared >= 0, E_MEM, "%s: no memory to compare %s and %s", p->path, v->state, until->state);
        HVT_CHECK(!shared, E_UNSUPPORTED,
                  "%s: %s and %s are views of the same numbers; expected parameters that share none, or one "
                  "parameter of two names",
                  p->path, v->state, until->state);
    }
    return HVT_OK;
}

hvt_status hvt__pt2_check_weights(const hvt_pt2 *p)
{
    for (int i = 0; i < p->graph->ninputs; i++) {
        const pt2_value *v = p->graph->input[i];
        char entry[NAME_MOST];
        size_t bytes;
        layout l;

        if (v->source != PT2_TRAINED || !v->used || !is_read(entry_of(p, v)))
            continue;
        HVT_TRY(find_values(p, v->state, entry, &l));
        HVT_CHECK(v->ndim == l.ndim && !memcmp(v->size, l.size, (size_t)l.ndim * sizeof *l.size), E_FORMAT,
                  "%s: %s has other sizes in the weights than in the graph", p->path, v->state);
        HVT_TRY(hvt__pt2_archive_has(p, entry, (size_t)l.end * sizeof(float), &bytes));
        HVT_CHECK(is_distinct(&l), E_UNSUPPORTED, "%s: the values of %s overlap", p->path, v->state);
        HVT_TRY(check_apart(p, v, entry, &l));
    }
    return HVT_OK;
}

static bool fits(const layout *l, const hvt_named *t)
{
    bool same = l->count == t->count && l->ndim == t->ndim;

    for (int i = 0; same && i < l->ndim; i++)
        same = l->size[i] == t->dim[i];
    return same;
}

/* True if the size of the tensor depends on the number of classes. */
static bool is_resized(const hvt_pt2 *p, const char *tensor)
{
    for (int i = 0; i < p->graph->ninputs; i++)
        if (p->graph->input[i]->resized && !strcmp(p->graph->input[i]->state, tensor))
            return true;
    return false;
}

static hvt_status load(const hvt_pt2 *p, hvt_model *m, const hvt_named *t)
{
    char entry[NAME_MOST];
    layout l = {0};
    size_t bytes;
    float *stored, *values;
    hvt_status s;

    HVT_TRY(find_values(p, t->name, entry, &l));
    if (!fits(&l, t)) {
        HVT_CHECK(is_resized(p, t->name), E_FORMAT, "%s: %s has other sizes in the weights than in the graph",
                  p->path, t->name);
        return HVT_OK;
    }
    HVT_TRY(hvt__pt2_archive_has(p, entry, (size_t)l.end * sizeof *stored, &bytes));
    stored = malloc(bytes);
    values = is_canonical(&l) ? stored + l.first : malloc(l.count * sizeof *values);
    HVT_CHECK_OR(done, stored && values, E_MEM, "%s: no memory for %zu values of %s", p->path, l.count,
                 t->name);
    HVT_TRY_OR(done, hvt__pt2_archive_read(p, entry, stored, bytes));
    if (!is_canonical(&l))
        order(&l, stored, values);
    for (size_t i = 0; i < l.count; i++)
        HVT_CHECK_OR(done, isfinite(values[i]), E_FORMAT, "%s: %s holds numbers that are not finite", p->path,
                     t->name);
    s = hvt_model_set(m, t->name, values, l.count);
done:
    if (!is_canonical(&l))
        free(values);
    free(stored);
    return s;
}

/* The used parameter that has the same values in the same order as this one; NULL: none. */
static const pt2_value *same_values(const hvt_pt2 *p, const pt2_value *v)
{
    const char *path = path_of(p, v);
    const pt2_value *found = NULL;

    for (int i = 0; i < p->graph->ninputs && path; i++) {
        const pt2_value *of = p->graph->input[i];

        if (of->source == PT2_TRAINED && of->used && path_of(p, of) && !strcmp(path_of(p, of), path) &&
            json_equal(entry_of(p, v), entry_of(p, of)))
            found = of;
    }
    return found;
}

void hvt__pt2_find_unused(hvt_pt2 *p)
{
    for (int i = 0; i < p->graph->ninputs; i++) {
        pt2_value *v = p->graph->input[i];

        if (v->source != PT2_TRAINED || v->used)
            continue;
        v->second_of = same_values(p, v);
        if (!v->second_of && p->unused++ == 0)
            p->first_unused = v->state;
    }
}

/* ---- numbers ---- */

/* Reads one number of this type of the schema. */
static double number(json_int_t type, const char *at)
{
    float f;
    double d;
    int16_t i16;
    int32_t i32;
    int64_t i64;

    switch (type) {
    case PT2_I8:
        return (signed char)*at;
    case PT2_I16:
        return memcpy(&i16, at, sizeof i16), i16;
    case PT2_I32:
        return memcpy(&i32, at, sizeof i32), i32;
    case PT2_I64:
        return memcpy(&i64, at, sizeof i64), (double)i64;
    case PT2_F32:
        return memcpy(&f, at, sizeof f), f;
    case PT2_F64:
        return memcpy(&d, at, sizeof d), d;
    default:
        return (unsigned char)*at;
    }
}

hvt_status hvt__pt2_read_values(const hvt_pt2 *p, const char *state, int64_t count, double *ret_values)
{
    static const size_t bytes_of[] = {[PT2_U8] = 1,  [PT2_I8] = 1,  [PT2_I16] = 2, [PT2_I32] = 4,
                                      [PT2_I64] = 8, [PT2_F32] = 4, [PT2_F64] = 8, [PT2_BOOL] = 1};
    const json_t *kept = json_object_get(p->weights, state),
                 *entry = kept ? kept : json_object_get(p->fixed, state),
                 *meta = json_object_get(entry, "tensor_meta");
    const char *path = json_string_value(json_object_get(entry, "path_name"));
    const json_int_t type = json_integer_value(json_object_get(meta, "dtype"));
    const size_t size = type > 0 && type < (json_int_t)HVT_LEN(bytes_of) ? bytes_of[type] : 0;
    char name[NAME_MOST], *stored;
    int64_t at[4] = {0};
    size_t bytes;
    hvt_status s;
    layout l;

    HVT_CHECK(path && !json_is_true(json_object_get(entry, "use_pickle")), E_UNSUPPORTED,
              "%s: it holds no values of the buffer %s, or they are pickled, as PyTorch 2.8 and older write "
              "them; export it by a newer PyTorch",
              p->path, state);
    HVT_CHECK(size, E_UNSUPPORTED, "%s: the buffer %s has values of %s", p->path, state, type_name(type));
    HVT_TRY(read_sizes(p, state, meta, &l));
    HVT_CHECK(l.count == (size_t)count, E_FORMAT, "%s: the buffer %s has %zu values, and %lld in the graph",
              p->path, state, l.count, (long long)count);
    snprintf(name, sizeof name, "data/%s/%s", kept ? "weights" : "constants", path);
    HVT_TRY(hvt__pt2_archive_has(p, name, (size_t)l.end * size, &bytes));
    stored = malloc(bytes);
    HVT_CHECK(stored, E_MEM, "%s: no memory for %zu values of %s", p->path, l.count, state);
    s = hvt__pt2_archive_read(p, name, stored, bytes);
    for (size_t i = 0; i < l.count && s == HVT_OK; i++)
        ret_values[i] = number(type, stored + (size_t)next_place(&l, at) * size);
    free(stored);
    return s;
}

hvt_status hvt__pt2_find_trained(hvt_pt2 *p)
{
    for (const pt2_node *n = p->graph->first; n && !p->trained; n = n->after) {
        const bool norm = n->op == PT2_BATCH_NORM || n->op == PT2_LAYER_NORM || n->op == PT2_GROUP_NORM ||
                          n->op == PT2_RMS_NORM;
        const pt2_value *v = norm ? hvt__pt2_input(n, 1) : NULL;
        const int64_t count = v ? hvt__pt2_count(v->ndim, v->size) : 0;
        double *x;
        hvt_status s;

        if (!v || v->source != PT2_TRAINED || !v->used || !is_read(entry_of(p, v)))
            continue;
        x = malloc((size_t)count * sizeof *x);
        HVT_CHECK(x, E_MEM, "%s: no memory for %lld values of %s", p->path, (long long)count, v->state);
        s = hvt__pt2_read_values(p, v->state, count, x);
        for (int64_t i = 0; i < count && s == HVT_OK; i++)
            p->trained |= x[i] != 0 && x[i] != 1;
        free(x);
        HVT_TRY(s);
    }
    return HVT_OK;
}

/* ---- into a model ---- */

/* The largest number of batches that the file's batch norms have counted. */
static hvt_status load_tracked(const hvt_pt2 *p, hvt_model *m)
{
    double most = 0, count;

    for (int i = 0; i < p->graph->ninputs; i++) {
        const pt2_value *v = p->graph->input[i];

        if (v->source != PT2_BUFFER || !hvt__pt2_counts_batches(v->state) ||
            !json_object_get(p->weights, v->state))
            continue;
        HVT_TRY(hvt__pt2_read_values(p, v->state, 1, &count));
        most = count > most ? count : most;
    }
    return hvt_model_set_tracked(m, most < 0x1p62 ? (int64_t)most : 0);
}

hvt_status hvt_pt2_load(const hvt_pt2 *p, hvt_model *m)
{
    hvt_named t;

    HVT_GIVEN(p, "a .pt2 file");
    HVT_GIVEN(m, "a model");
    HVT_CHECK(
        p->weights, E_UNSUPPORTED,
        "%s: its weights are pickled, as PyTorch 2.8 and older write them, and are not read. Write them by "
        "safetensors.torch.save_file(model.state_dict(), \"net.safetensors\") and give them by --init",
        p->path);
    for (int i = 0; hvt_model_named(m, i, &t); i++)
        HVT_TRY(load(p, m, &t));
    return load_tracked(p, m);
}
