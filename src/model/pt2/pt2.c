/*
 * A .pt2 file: opened, described, its values read. See pt2_impl.h.
 */
#include "pt2_impl.h"

#include <math.h>

void hvt_pt2_close(hvt_pt2 **file)
{
    hvt_pt2 *p = file ? *file : NULL;

    if (!p)
        return;
    if (p->zip)
        zip_discard(p->zip);
    free(p->needed);
    free(p->head_name);
    json_decref(p->program);
    json_decref(p->weights);
    json_decref(p->fixed);
    json_decref(p->inputs);
    json_decref(p->constants);
    json_decref(p->computed);
    json_decref(p->used);
    json_decref(p->second);
    json_decref(p->changed);
    json_decref(p->heads);
    json_decref(p->resized);
    free(p->top);
    free(p->path);
    free(p);
    *file = NULL;
}

hvt_pt2_info hvt_pt2_describe(const hvt_pt2 *p)
{
    int64_t size[HVT__PT2_DIMS];
    int n = p ? hvt__pt2_sizes(p, p->logits, HVT__PT2_DIMS, size) : 0;

    if (!p)
        return (hvt_pt2_info){0};
    return (hvt_pt2_info){.height = p->height,
                          .width = p->width,
                          .channels = p->channels,
                          .classes = n == 1                         ? 1
                                     : n == 2 && size[1] <= INT_MAX ? (int)size[1]
                                                                    : 0,
                          .outputs = p->outputs,
                          .unused = p->unused,
                          .first_unused = p->first_unused,
                          .norms = p->norms,
                          .fixed_norms = p->fixed_norms,
                          .eval_mode = p->eval_mode,
                          .changed = (int)json_object_size(p->changed),
                          .first_changed = json_object_iter_key(json_object_iter(p->changed)),
                          .log_softmax = p->log_softmax,
                          .weights = p->weights != NULL,
                          .head = p->head_name};
}

/* ---- values ---- */

enum { NAME_MOST = 400 };

/* Where the elements of a tensor lie in its entry. */
typedef struct layout {
    int ndim;
    int64_t size[4], stride[4];
    size_t count;
} layout;

/* Strides differ, and each is the product of the sizes of all dimensions with smaller ones. */
static bool is_dense(const layout *l)
{
    bool dense = true;

    for (int i = 0; i < l->ndim; i++) {
        int64_t inner = 1;

        for (int k = 0; k < l->ndim; k++) {
            if (k == i || l->size[k] == 1)
                continue;
            inner *= l->stride[k] < l->stride[i] ? l->size[k] : 1;
            dense = dense && (l->size[i] == 1 || l->stride[k] != l->stride[i]);
        }
        dense = dense && (l->size[i] == 1 || l->stride[i] == inner);
    }
    return dense;
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
    layout l = {.ndim = (int)json_array_size(sizes), .count = 1};

    HVT_CHECK(json_array_size(sizes) <= 4 && json_array_size(strides) == json_array_size(sizes) &&
                  json_integer_value(offset) == 0,
              E_FORMAT, "%s: %s has no sizes and strides of at most 4 dimensions, or an offset", p->path,
              name);
    for (int i = 0; i < l.ndim; i++) {
        l.size[i] = json_integer_value(json_object_get(json_array_get(sizes, (size_t)i), "as_int"));
        l.stride[i] = json_integer_value(json_object_get(json_array_get(strides, (size_t)i), "as_int"));
        HVT_CHECK(l.size[i] > 0 && l.size[i] <= INT_MAX && l.stride[i] >= 0 && l.stride[i] <= INT_MAX,
                  E_FORMAT, "%s: dimension %d of %s has size %lld and stride %lld", p->path, i, name,
                  (long long)l.size[i], (long long)l.stride[i]);
        HVT_CHECK(!__builtin_mul_overflow(l.count, (size_t)l.size[i], &l.count) && l.count <= INT_MAX,
                  E_FORMAT, "%s: %s has too many values", p->path, name);
    }
    HVT_CHECK(is_dense(&l), E_UNSUPPORTED, "%s: the values of %s overlap or are not dense", p->path, name);
    *ret_layout = l;
    return HVT_OK;
}

/* Of a parameter. */
static hvt_status read_layout(const hvt_pt2 *p, const char *name, const json_t *meta, layout *ret_layout)
{
    const json_t *type = json_object_get(meta, "dtype");

    HVT_CHECK(json_integer_value(type) == HVT__PT2_F32, E_UNSUPPORTED,
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

/* Canonical order from that of the strides: weights of a model in channels_last are [K,R,S,C]. */
static void order(const layout *l, const float *stored, float *ret_values)
{
    int64_t at[4] = {0};

    for (size_t i = 0; i < l->count; i++) {
        int64_t from = 0;

        for (int d = 0; d < l->ndim; d++)
            from += at[d] * l->stride[d];
        ret_values[i] = stored[from];
        for (int d = l->ndim - 1; d >= 0 && ++at[d] == l->size[d]; d--)
            at[d] = 0;
    }
}

static bool is_read(const json_t *entry)
{
    return entry && !json_is_true(json_object_get(entry, "use_pickle")) &&
           json_integer_value(json_object_get(json_object_get(entry, "tensor_meta"), "dtype")) ==
               HVT__PT2_F32;
}

/* Where the values of a tensor are; *ret_entry is a name below the top folder, of NAME_MOST bytes. */
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

/* Are the weights those of the graph? So nothing is allocated for a graph whose sizes are damaged. Values
 * that are not read, since they are pickled or no f32, may be given by hvt_model_set() in place of
 * hvt_pt2_load().
 */
static hvt_status check_weights(const hvt_pt2 *p)
{
    const char *name;
    json_t *state;

    json_object_foreach(p->inputs, name, state)
    {
        const char *tensor = json_string_value(state);
        int64_t size[4];
        char entry[NAME_MOST];
        layout l;

        if (json_object_get(p->constants, name) || !json_object_get(p->used, name) ||
            !is_read(json_object_get(p->weights, tensor)))
            continue;
        HVT_TRY(find_values(p, tensor, entry, &l));
        HVT_CHECK(hvt__pt2_sizes(p, name, 4, size) == l.ndim &&
                      !memcmp(size, l.size, (size_t)l.ndim * sizeof *size),
                  E_FORMAT, "%s: %s has other sizes in the weights than in the graph", p->path, tensor);
        HVT_TRY(hvt__pt2_archive_has(p, entry, l.count * sizeof(float)));
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

bool hvt__pt2_is_resized(const hvt_pt2 *p, const char *tensor)
{
    return json_object_get(p->resized, tensor) != NULL;
}

bool hvt__pt2_makes_classes(const hvt_pt2 *p, const json_t *node)
{
    const json_t *out = json_array_get(json_object_get(node, "outputs"), 0);
    const char *name = hvt__pt2_tensor_in(out, 0);

    return name && json_object_get(p->heads, name);
}

static hvt_status load(const hvt_pt2 *p, hvt_model *m, const hvt_named *t)
{
    char entry[NAME_MOST];
    layout l = {0};
    bool moved;
    float *stored, *values;
    hvt_status s;

    HVT_TRY(find_values(p, t->name, entry, &l));
    if (!fits(&l, t)) {
        HVT_CHECK(hvt__pt2_is_resized(p, t->name), E_FORMAT,
                  "%s: %s has other sizes in the weights than in the graph", p->path, t->name);
        return HVT_OK;
    }
    moved = !is_canonical(&l);
    stored = malloc((1 + moved) * l.count * sizeof *stored);
    HVT_CHECK(stored, E_MEM, "%s: no memory for %zu values of %s", p->path, l.count, t->name);
    values = stored + moved * l.count;
    s = hvt__pt2_archive_read(p, entry, stored, l.count * sizeof *stored);
    for (size_t i = 0; i < l.count && s == HVT_OK; i++)
        if (!isfinite(stored[i]))
            s = HVT_FAIL(E_FORMAT, "%s: %s holds numbers that are not finite", p->path, t->name);
    if (s == HVT_OK) {
        if (moved)
            order(&l, stored, values);
        s = hvt_model_set(m, t->name, values, l.count);
    }
    free(stored);
    return s;
}

/* Of an input of the graph: where its values are, and what they are. */
static const json_t *entry_of(const hvt_pt2 *p, const json_t *state)
{
    return json_object_get(p->weights, json_string_value(state));
}

static const char *path_of(const hvt_pt2 *p, const json_t *state)
{
    return json_string_value(json_object_get(entry_of(p, state), "path_name"));
}

/* Parameters that do not lead to the logits: second names of those that do, and those that nothing reads. */
static hvt_status find_unused(hvt_pt2 *p)
{
    json_t *paths = json_object(), *state;
    const char *name;
    bool has = paths != NULL;

    p->second = json_object();
    json_object_foreach(p->inputs, name, state)
    {
        const bool is_parameter = !json_object_get(p->constants, name) && json_object_get(p->used, name);

        if (is_parameter && path_of(p, state))
            has = json_object_set(paths, path_of(p, state), state) == 0 && has;
    }
    json_object_foreach(p->inputs, name, state)
    {
        json_t *of = path_of(p, state) ? json_object_get(paths, path_of(p, state)) : NULL;

        if (json_object_get(p->constants, name) || json_object_get(p->used, name))
            continue;
        if (of && json_equal(entry_of(p, state), entry_of(p, of))) /* no view of other sizes */
            has = json_object_set(p->second, json_string_value(state), of) == 0 && has;
        else if (p->unused++ == 0)
            p->first_unused = json_string_value(state);
    }
    json_decref(paths);
    HVT_CHECK(has, E_MEM, "%s: no memory", p->path);
    return HVT_OK;
}

/* ---- buffers ---- */

/* A number of one of the types of the schema. */
static double number(json_int_t type, const char *at)
{
    float f;
    double d;
    int16_t i16;
    int32_t i32;
    int64_t i64;

    switch (type) {
    case HVT__PT2_I8:
        return (signed char)*at;
    case HVT__PT2_I16:
        return memcpy(&i16, at, sizeof i16), i16;
    case HVT__PT2_I32:
        return memcpy(&i32, at, sizeof i32), i32;
    case HVT__PT2_I64:
        return memcpy(&i64, at, sizeof i64), (double)i64;
    case HVT__PT2_F32:
        return memcpy(&f, at, sizeof f), f;
    case HVT__PT2_F64:
        return memcpy(&d, at, sizeof d), d;
    default:
        return (unsigned char)*at;
    }
}

hvt_status hvt__pt2_read_buffer(const hvt_pt2 *p, const char *state, int64_t count, double *ret_values)
{
    static const size_t bytes_of[] = {
        [HVT__PT2_U8] = 1,  [HVT__PT2_I8] = 1,  [HVT__PT2_I16] = 2, [HVT__PT2_I32] = 4,
        [HVT__PT2_I64] = 8, [HVT__PT2_F32] = 4, [HVT__PT2_F64] = 8, [HVT__PT2_BOOL] = 1};
    const json_t *kept = json_object_get(p->weights, state),
                 *entry = kept ? kept : json_object_get(p->fixed, state),
                 *meta = json_object_get(entry, "tensor_meta");
    const char *path = json_string_value(json_object_get(entry, "path_name"));
    const json_int_t type = json_integer_value(json_object_get(meta, "dtype"));
    const size_t size = type > 0 && type < (json_int_t)HVT_LEN(bytes_of) ? bytes_of[type] : 0;
    char name[NAME_MOST], *stored;
    hvt_status s;
    layout l;

    HVT_CHECK(
        path && !json_is_true(json_object_get(entry, "use_pickle")), E_UNSUPPORTED,
        "%s: it holds no values of the buffer %s, or they are pickled, as PyTorch 2.8 and older write them; "
        "export it by a newer PyTorch",
        p->path, state);
    HVT_CHECK(size, E_UNSUPPORTED, "%s: the buffer %s has values of %s", p->path, state, type_name(type));
    HVT_TRY(read_sizes(p, state, meta, &l));
    HVT_CHECK(l.count == (size_t)count, E_FORMAT, "%s: the buffer %s has %zu values, and %lld in the graph",
              p->path, state, l.count, (long long)count);
    for (int64_t i = l.ndim - 1, step = 1; i >= 0; step *= l.size[i--])
        HVT_CHECK(l.size[i] == 1 || l.stride[i] == step, E_UNSUPPORTED,
                  "%s: the values of the buffer %s are not in order", p->path, state);
    snprintf(name, sizeof name, "data/%s/%s", kept ? "weights" : "constants", path);
    HVT_TRY(hvt__pt2_archive_has(p, name, l.count * size));
    stored = malloc(l.count * size);
    HVT_CHECK(stored, E_MEM, "%s: no memory for %zu values of %s", p->path, l.count, state);
    s = hvt__pt2_archive_read(p, name, stored, l.count * size);
    for (size_t i = 0; i < l.count && s == HVT_OK; i++)
        ret_values[i] = number(type, stored + i * size);
    free(stored);
    return s;
}

static hvt_status read_program(hvt_pt2 *p)
{
    json_t *config;

    HVT_TRY(hvt__pt2_archive_json(p, *p->top ? "models/model.json" : "serialized_exported_program.json",
                                  &p->program));
    HVT_TRY(hvt__pt2_graph(p));
    HVT_TRY(hvt__pt2_archive_json(p, "data/weights/model_weights_config.json", &config));
    p->weights = json_incref(json_object_get(config, "config"));
    json_decref(config);
    HVT_TRY(hvt__pt2_archive_json(p, "data/constants/model_constants_config.json", &config));
    p->fixed = json_incref(json_object_get(config, "config"));
    json_decref(config);
    HVT_TRY(find_unused(p));
    return p->weights ? check_weights(p) : HVT_OK;
}

hvt_status hvt_pt2_open(const char *path, hvt_pt2 **ret_file)
{
    HVT_GIVEN(path, "the path of a .pt2 file");
    HVT_GIVEN(ret_file, "an output pointer for the file");

    hvt_pt2 *p = calloc(1, sizeof *p);
    hvt_status s = HVT_OK;

    HVT_CHECK(p, E_MEM, "no memory");
    p->path = strdup(path);
    HVT_CHECK_OR(fail, p->path, E_MEM, "no memory");
    HVT_TRY_OR(fail, hvt__pt2_archive_open(p));
    HVT_TRY_OR(fail, read_program(p));
    *ret_file = p;
    return HVT_OK;
fail:
    hvt_pt2_close(&p);
    return s;
}

bool hvt__pt2_counts_batches(const char *state)
{
    static const char end[] = "num_batches_tracked";
    const size_t n = strlen(state), of = sizeof end - 1;

    return n >= of && !strcmp(state + n - of, end);
}

/* The batches that the file's batch norms have counted, the largest number. */
static hvt_status load_tracked(const hvt_pt2 *p, hvt_model *m)
{
    double most = 0, count;
    const char *name;
    json_t *state;

    json_object_foreach(p->inputs, name, state)
    {
        const char *buffer = json_string_value(state);

        if (!json_object_get(p->constants, name) || !hvt__pt2_counts_batches(buffer) ||
            !json_object_get(p->weights, buffer))
            continue;
        HVT_TRY(hvt__pt2_read_buffer(p, buffer, 1, &count));
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
