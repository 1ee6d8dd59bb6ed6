/*
 * The graph of a .pt2 file: torch/_export/serde/schema.py, major version 8. A name is defined once, by an
 * input or a node, and used only afterwards, so there is no cycle. Argument kinds that no operation of ours
 * takes are looked at by nobody.
 */
#define _GNU_SOURCE /* memmem */
#include "pt2_impl.h"

enum { SCHEMA = 8 };

const json_t *hvt__pt2_arg(const json_t *node, const char *name, const char **ret_kind)
{
    const json_t *inputs = json_object_get(node, "inputs");

    for (size_t i = 0; i < json_array_size(inputs); i++) {
        const json_t *in = json_array_get(inputs, i);
        const char *is = json_string_value(json_object_get(in, "name"));
        json_t *arg = json_object_get(in, "arg");
        void *only = json_object_iter(arg);

        if (!is || strcmp(is, name) != 0 || !only || !strcmp(json_object_iter_key(only), "as_none"))
            continue;
        *ret_kind = json_object_iter_key(only);
        return json_object_iter_value(only);
    }
    *ret_kind = "";
    return NULL;
}

const char *hvt__pt2_target(const json_t *node)
{
    const char *t = json_string_value(json_object_get(node, "target"));
    static const char all[] = "torch.ops.";

    return !t ? "?" : !strncmp(t, all, sizeof all - 1) ? t + sizeof all - 1 : t;
}

/* The innermost layer and, of the frames that called it, the last that is not torch's own. */
void hvt__pt2_where(const json_t *node, char *text, size_t size)
{
    const json_t *meta = json_object_get(node, "metadata");
    const char *stack = json_string_value(json_object_get(meta, "nn_module_stack"));
    const char *trace = json_string_value(json_object_get(meta, "stack_trace"));
    const char *last = stack ? strrchr(stack, ';') : NULL, *layer, *file = NULL;
    int length = 0, line = 0, name = 0;

    last = last ? last + 1 : stack;
    layer = last ? strchr(last, ',') : NULL;
    layer = layer ? layer + 1 : NULL;
    length = layer ? (int)strcspn(layer, ",") : 0;
    for (const char *f = trace; f && (f = strstr(f, "File \"")); f++) {
        const char *path = f + 6, *end = strchr(path, '"'), *base = end;
        int at;

        if (!end || sscanf(end, "\", line %d", &at) != 1)
            break;
        while (base > path && base[-1] != '/')
            base--;
        if (memmem(path, (size_t)(end - path), "/torch/", 7) && file)
            continue;
        file = base;
        name = (int)(end - base);
        line = at;
    }
    snprintf(text, size, "%s%.*s%s%.*s%s%.0d", length ? "layer " : "", length, length ? layer : "",
             length && file ? ", " : "", name, file ? file : "", file ? " line " : "", line);
}

bool hvt__pt2_in_place(const json_t *node)
{
    const char *t = hvt__pt2_target(node), *overload = strrchr(t, '.');

    return overload && overload > t && overload[-1] == '_';
}

const char *hvt__pt2_changed(const json_t *node)
{
    const json_t *first = json_array_get(json_object_get(node, "inputs"), 0),
                 *t = json_object_get(json_object_get(first, "arg"), "as_tensor");

    return json_string_value(json_object_get(t, "name"));
}

/* A size is {"as_int": 64} or, where it is symbolic, {"as_expr": {..., "hint": {"as_int": 4}}}. */
static bool read_size(const json_t *size, int64_t *ret_size)
{
    const json_t *hint = json_object_get(json_object_get(size, "as_expr"), "hint");
    const json_t *n = json_object_get(hint ? hint : size, "as_int");

    *ret_size = json_integer_value(n);
    return json_is_integer(n) && *ret_size >= 0 && *ret_size <= INT_MAX;
}

int hvt__pt2_sizes(const hvt_pt2 *p, const char *tensor, int most, int64_t *ret_size)
{
    const json_t *sizes = json_object_get(json_object_get(p->tensors, tensor), "sizes");
    size_t n = json_array_size(sizes);

    if (!sizes || n > (size_t)most)
        return -1;
    for (size_t i = 0; i < n; i++)
        if (!read_size(json_array_get(sizes, i), &ret_size[i]))
            return -1;
    return (int)n;
}

/* {"arg": {"name": "p_fc_weight"}, "parameter_name": "fc.weight"} */
static hvt_status add_input(hvt_pt2 *p, const json_t *spec, const char *field, bool constant)
{
    const char *name = json_string_value(json_object_get(json_object_get(spec, "arg"), "name"));
    const char *state = json_string_value(json_object_get(spec, field));

    HVT_CHECK(name && state, E_FORMAT, "%s: a parameter or buffer without a name", p->path);
    HVT_CHECK(!json_object_get(p->inputs, name), E_FORMAT, "%s: input %s is defined twice", p->path, name);
    HVT_CHECK(json_object_set_new(p->inputs, name, json_string(state)) == 0, E_MEM, "%s: no memory", p->path);
    HVT_CHECK(!constant ||
                  json_object_set_new(p->constants, name,
                                      json_boolean(json_is_true(json_object_get(spec, "persistent")))) == 0,
              E_MEM, "%s: no memory", p->path);
    return HVT_OK;
}

static hvt_status find_inputs(hvt_pt2 *p, const json_t *specs)
{
    static const struct {
        const char *kind, *field;
        bool constant;
    } kinds[] = {{"parameter", "parameter_name", false},
                 {"buffer", "buffer_name", true},
                 {"tensor_constant", "tensor_constant_name", true}};

    for (size_t i = 0; i < json_array_size(specs); i++) {
        const json_t *spec = json_array_get(specs, i);
        const json_t *user = json_object_get(spec, "user_input");

        for (size_t k = 0; k < HVT_LEN(kinds); k++)
            if (json_object_get(spec, kinds[k].kind))
                HVT_TRY(
                    add_input(p, json_object_get(spec, kinds[k].kind), kinds[k].field, kinds[k].constant));
        if (!user)
            continue;
        HVT_CHECK(!p->image, E_UNSUPPORTED, "%s: the model has more than one input; expected one of images",
                  p->path);
        p->image = json_string_value(
            json_object_get(json_object_get(json_object_get(user, "arg"), "as_tensor"), "name"));
    }
    HVT_CHECK(p->image, E_UNSUPPORTED, "%s: the model has no input of images", p->path);
    return HVT_OK;
}

static hvt_status find_outputs(hvt_pt2 *p, const json_t *specs)
{
    for (size_t i = 0; i < json_array_size(specs); i++) {
        const json_t *user = json_object_get(json_array_get(specs, i), "user_output");
        const char *name = json_string_value(
            json_object_get(json_object_get(json_object_get(user, "arg"), "as_tensor"), "name"));

        p->outputs += name != NULL;
        p->logits = p->logits ? p->logits : name;
    }
    HVT_CHECK(p->logits, E_UNSUPPORTED, "%s: the model has no output", p->path);
    return HVT_OK;
}

static hvt_status read_image(hvt_pt2 *p)
{
    int64_t size[4];
    int n = hvt__pt2_sizes(p, p->image, 4, size);

    HVT_CHECK(n == 4, E_UNSUPPORTED, "%s: its input is no batch of images: expected 4 dimensions, [N,C,H,W]",
              p->path);
    for (int i = 0; i < 4; i++)
        HVT_CHECK(size[i] > 0 && size[i] <= 1 << 20, E_FORMAT, "%s: dimension %d of its input is %lld",
                  p->path, i, (long long)size[i]);
    p->batch = (int)size[0];
    p->channels = (int)size[1];
    p->height = (int)size[2];
    p->width = (int)size[3];
    return HVT_OK;
}

typedef hvt_status name_fn(const hvt_pt2 *p, json_t *defined, const char *name);

static hvt_status define(const hvt_pt2 *p, json_t *defined, const char *name)
{
    HVT_CHECK(!json_object_get(defined, name), E_FORMAT, "%s: %s is defined twice", p->path, name);
    HVT_CHECK(json_object_set_new(defined, name, json_true()) == 0, E_MEM, "%s: no memory", p->path);
    return HVT_OK;
}

static hvt_status use(const hvt_pt2 *p, json_t *defined, const char *name)
{
    HVT_CHECK(json_object_get(defined, name), E_FORMAT, "%s: %s is used before it is defined", p->path, name);
    return HVT_OK;
}

static const json_t *list_of(const json_t *arg)
{
    const json_t *all = json_object_get(arg, "as_tensors");

    return all ? all : json_object_get(arg, "as_optional_tensors");
}

size_t hvt__pt2_tensors_in(const json_t *arg)
{
    return json_object_get(arg, "as_tensor") ? 1 : json_array_size(list_of(arg));
}

json_t *hvt__pt2_tensor_object(const json_t *arg, size_t i)
{
    json_t *one = json_object_get(arg, "as_tensor"), *item = one ? one : json_array_get(list_of(arg), i),
           *inner = json_object_get(item, "as_tensor");

    return inner ? inner : item;
}

const char *hvt__pt2_tensor_in(const json_t *arg, size_t i)
{
    const json_t *tensor = hvt__pt2_tensor_object(arg, i);

    return json_object_get(tensor, "as_none") ? "" : json_string_value(json_object_get(tensor, "name"));
}

static hvt_status each_tensor(const hvt_pt2 *p, json_t *defined, const json_t *arg, name_fn *fn)
{
    for (size_t i = 0; i < hvt__pt2_tensors_in(arg); i++) {
        const char *name = hvt__pt2_tensor_in(arg, i);

        HVT_CHECK(name, E_FORMAT, "%s: a tensor without a name", p->path);
        if (*name)
            HVT_TRY(fn(p, defined, name));
    }
    return HVT_OK;
}

static hvt_status check_names(const hvt_pt2 *p, json_t *defined)
{
    const char *name;
    json_t *state;

    json_object_foreach(p->inputs, name, state) HVT_TRY(define(p, defined, name));
    HVT_TRY(define(p, defined, p->image));
    for (size_t i = 0; i < json_array_size(p->nodes); i++) {
        const json_t *node = json_array_get(p->nodes, i), *in = json_object_get(node, "inputs"),
                     *out = json_object_get(node, "outputs");

        for (size_t k = 0; k < json_array_size(in); k++)
            HVT_TRY(each_tensor(p, defined, json_object_get(json_array_get(in, k), "arg"), use));
        for (size_t k = 0; k < json_array_size(out); k++)
            HVT_TRY(each_tensor(p, defined, json_array_get(out, k), define));
    }
    return use(p, defined, p->logits);
}

/* ---- what leads to the logits ---- */

enum {
    SHOWN = 20,          /* unknown operations in a message */
    OPERATIONS = 1 << 14 /* that lead to the logits; each takes a time that grows with those before it */
};

static bool any_tensor(const json_t *arg, const json_t *set)
{
    bool found = false;

    for (size_t i = 0; i < hvt__pt2_tensors_in(arg) && !found; i++)
        found = json_object_get(set, hvt__pt2_tensor_in(arg, i));
    return found;
}

bool hvt__pt2_reads(const json_t *node, const json_t *set)
{
    const json_t *in = json_object_get(node, "inputs");
    bool found = false;

    for (size_t k = 0; k < json_array_size(in) && !found; k++)
        found = any_tensor(json_object_get(json_array_get(in, k), "arg"), set);
    return found;
}

int hvt__pt2_add_outputs(const json_t *node, json_t *set)
{
    const json_t *out = json_object_get(node, "outputs");
    int failed = 0;

    for (size_t k = 0; k < json_array_size(out); k++)
        for (size_t t = 0; t < hvt__pt2_tensors_in(json_array_get(out, k)) && !failed; t++) {
            const char *name = hvt__pt2_tensor_in(json_array_get(out, k), t);

            failed = name && json_object_set_new(set, name, json_true());
        }
    return failed;
}

/* The tensor whose memory this one is a part of. */
static const char *owner_of(const json_t *owners, const char *name)
{
    const char *owner = json_string_value(json_object_get(owners, name));

    return owner ? owner : name;
}

/* A view that is not imported. */
static bool is_other_view(const char *target)
{
    static const char *const names[] = {"diagonal", "t",          "unfold",   "as_strided",   "swapdims",
                                        "movedim",  "moveaxis",   "squeeze",  "ravel",        "tensor_split",
                                        "hsplit",   "vsplit",     "dsplit",   "unsafe_chunk", "unsafe_split",
                                        "numpy_T",  "matrix_H",   "mH",       "adjoint",      "detach",
                                        "to",       "lift_fresh", "positive", "view_as_real"};
    const char *name = strchr(target, '.'), *end = name ? strchr(name + 1, '.') : NULL;

    for (size_t i = 0; end && i < HVT_LEN(names); i++)
        if (strlen(names[i]) == (size_t)(end - name - 1) && !strncmp(names[i], name + 1, strlen(names[i])))
            return true;
    return false;
}

/* Of every view, and of what an operation in place returns. */
static int find_owners(const hvt_pt2 *f, json_t *owners)
{
    int failed = 0;

    for (size_t i = 0; i < json_array_size(f->nodes) && !failed; i++) {
        const json_t *node = json_array_get(f->nodes, i), *out = json_object_get(node, "outputs");
        const char *target = hvt__pt2_target(node),
                   *of = hvt__pt2_makes_view(target) || is_other_view(target) || hvt__pt2_in_place(node)
                             ? hvt__pt2_changed(node)
                             : NULL;

        for (size_t k = 0; k < json_array_size(out) && of; k++)
            for (size_t t = 0; t < hvt__pt2_tensors_in(json_array_get(out, k)) && !failed; t++)
                failed = json_object_set_new(owners, hvt__pt2_tensor_in(json_array_get(out, k), t),
                                             json_string(owner_of(owners, of)));
    }
    return failed;
}

static int add_tensors(const json_t *arg, const json_t *owners, json_t *set, json_t *memory)
{
    int failed = 0;

    for (size_t i = 0; i < hvt__pt2_tensors_in(arg) && !failed; i++) {
        const char *name = hvt__pt2_tensor_in(arg, i);

        failed = json_object_set_new(set, name, json_true()) ||
                 json_object_set_new(memory, owner_of(owners, name), json_true());
    }
    return failed;
}

/* A buffer that the model counts its calls in, or the like. Batch norms count theirs, too. */
static bool is_changed_aside(const hvt_pt2 *f, const char *buffer)
{
    const char *state = buffer ? json_string_value(json_object_get(f->inputs, buffer)) : NULL;

    return state && json_is_true(json_object_get(f->constants, buffer)) && !hvt__pt2_counts_batches(state) &&
           !json_object_get(f->changed, state);
}

/* A buffer in this memory must stay as it is; batch norms change theirs without an operation of their own. */
static hvt_status check_buffers(hvt_pt2 *f, const json_t *owners, const json_t *memory)
{
    f->changed = json_object();
    HVT_CHECK(f->changed, E_MEM, "%s: no memory", f->path);
    for (size_t i = 0; i < json_array_size(f->nodes); i++) {
        const json_t *node = json_array_get(f->nodes, i);
        const char *changed = hvt__pt2_in_place(node) ? hvt__pt2_changed(node) : NULL,
                   *buffer = changed ? owner_of(owners, changed) : NULL;
        char where[256];

        if (is_changed_aside(f, buffer) && !json_object_get(memory, buffer))
            HVT_CHECK(!json_object_set(f->changed, json_string_value(json_object_get(f->inputs, buffer)),
                                       json_object_get(f->inputs, buffer)),
                      E_MEM, "%s: no memory", f->path);
        if (!buffer || !json_object_get(f->constants, buffer) || !json_object_get(memory, buffer) ||
            hvt__pt2_type(f, buffer) != hvt__pt2_type(f, changed))
            continue;
        hvt__pt2_where(node, where, sizeof where);
        HVT_CHECK(
            false, E_UNSUPPORTED,
            "%s: %.60s (%.100s): it changes the buffer %s, on which the output depends; expected a buffer "
            "that stays as it is",
            f->path, hvt__pt2_target(node), where, json_string_value(json_object_get(f->inputs, buffer)));
    }
    return HVT_OK;
}

/* Walks from the last node to the first. An operation in place whose result nobody reads counts as needed
 * where memory that it changed is needed: importing it then says that it cannot be. */
static hvt_status find_needed(hvt_pt2 *f)
{
    size_t n = json_array_size(f->nodes), at = n;
    hvt_status s = HVT_OK;
    json_t *needed = f->used = json_object(), *owners = json_object(), *memory = json_object();
    int failed = !needed || !memory || find_owners(f, owners) ||
                 json_object_set_new(needed, f->logits, json_true()) ||
                 json_object_set_new(memory, owner_of(owners, f->logits), json_true());

    f->needed = malloc((n + 1) * sizeof(json_t *));
    f->names = json_object_size(f->inputs) + 1;
    for (size_t i = n; i-- > 0 && !failed && f->needed;) {
        const json_t *node = json_array_get(f->nodes, i), *in = json_object_get(node, "inputs"),
                     *out = json_object_get(node, "outputs");
        const char *old = hvt__pt2_in_place(node) ? hvt__pt2_changed(node) : NULL;
        bool needs = old && json_object_get(memory, owner_of(owners, old));

        for (size_t k = 0; k < json_array_size(out); k++) {
            const json_t *list = json_object_get(json_array_get(out, k), "as_tensors");

            needs = needs || any_tensor(json_array_get(out, k), needed);
            f->names += list ? json_array_size(list) : 1;
        }
        if (!needs)
            continue;
        f->needed[--at] = node;
        for (size_t k = 0; k < json_array_size(in) && !failed; k++)
            failed = add_tensors(json_object_get(json_array_get(in, k), "arg"), owners, needed, memory);
    }
    if (!failed)
        s = check_buffers(f, owners, memory);
    json_decref(owners);
    json_decref(memory);
    HVT_TRY(s);
    HVT_CHECK(!failed && f->needed, E_MEM, "%s: no memory for %zu operations", f->path, n);
    f->nneeded = n - at;
    memmove(f->needed, f->needed + at, f->nneeded * sizeof(json_t *));
    return HVT_OK;
}

static hvt_status find_computed(hvt_pt2 *f)
{
    int failed = !(f->computed = json_object()) || json_object_set_new(f->computed, f->image, json_true());

    for (size_t i = 0; i < f->nneeded && !failed; i++) {
        const json_t *node = f->needed[i];

        if (!hvt__pt2_makes_constants(hvt__pt2_target(node)) && hvt__pt2_reads(node, f->computed))
            failed = hvt__pt2_add_outputs(node, f->computed);
    }
    HVT_CHECK(!failed, E_MEM, "%s: no memory for %zu operations", f->path, f->nneeded);
    return HVT_OK;
}

/* NULL: an input is the output */
static const json_t *maker_of_logits(const hvt_pt2 *f)
{
    for (size_t i = f->nneeded; i-- > 0;) {
        const json_t *out = json_object_get(f->needed[i], "outputs");
        const char *name = hvt__pt2_tensor_in(json_array_get(out, 0), 0);

        if (name && !strcmp(name, f->logits))
            return f->needed[i];
    }
    return NULL;
}

/* Operations that run_decompositions() writes, as AOT compilers want them, and the exported graph has not. */
static bool is_decomposed(const char *target)
{
    static const char *const names[] = {"convolution.",
                                        "addmm.",
                                        "native_",
                                        "_native_",
                                        "_softmax.",
                                        "_log_softmax.",
                                        "max_pool2d_with_indices.",
                                        "_adaptive_avg_pool2d.",
                                        "hardtanh_backward."};
    bool found = false;

    for (size_t i = 0; i < HVT_LEN(names) && !strncmp(target, "aten.", 5); i++)
        found = found || !strncmp(target + 5, names[i], strlen(names[i]));
    return found;
}

bool hvt__pt2_is_unknown(const hvt_pt2 *f, const json_t *node)
{
    const char *name = hvt__pt2_tensor_in(json_array_get(json_object_get(node, "outputs"), 0), 0);

    return name && json_object_get(f->unknown_nodes, name);
}

/* All that are not known; each kind once, with the first place where it is used. */
static hvt_status find_unknown(hvt_pt2 *f)
{
    char text[SHOWN * 128] = "";
    const json_t *last = maker_of_logits(f);
    json_t *unknown = json_object();
    int failed = !unknown || !(f->unknown_nodes = json_object());
    size_t n;

    for (size_t i = 0; i < f->nneeded && !failed; i++) {
        const char *target = hvt__pt2_target(f->needed[i]);
        char where[256];

        if (hvt__pt2_knows(target, f->needed[i] == last, hvt__pt2_reads(f->needed[i], f->computed)))
            continue;
        failed = hvt__pt2_add_outputs(f->needed[i], f->unknown_nodes);
        if (failed || json_object_get(unknown, target))
            continue;
        f->decomposed = f->decomposed || is_decomposed(target);
        failed = json_object_set_new(unknown, target, json_true());
        if (json_object_size(unknown) > SHOWN)
            continue;
        hvt__pt2_where(f->needed[i], where, sizeof where);
        snprintf(text + strlen(text), sizeof text - strlen(text), "%s%.60s%s%.100s%s%s", *text ? ", " : "",
                 target, *where ? " (" : "", where, *where ? ")" : "",
                 hvt__pt2_knows(target, false, false) ? ", known of constants alone" : "");
    }
    n = json_object_size(unknown);
    json_decref(unknown);
    HVT_CHECK(!failed, E_MEM, "%s: no memory for its operations", f->path);
    if (n && asprintf(&f->unknown, "%zu %s unknown: %s%s%s", n, n == 1 ? "operation is" : "operations are",
                      text, n > SHOWN ? ", ..." : "",
                      f->decomposed ? "; run_decompositions() was called on this program: export without it"
                                    : "") < 0)
        f->unknown = NULL, failed = 1;
    HVT_CHECK(!failed, E_MEM, "%s: no memory for its operations", f->path);
    HVT_CHECK(f->nneeded <= OPERATIONS, E_UNSUPPORTED,
              "%s: %zu operations lead to its output; at most %d are imported", f->path, f->nneeded,
              OPERATIONS);
    return HVT_OK;
}

int hvt__pt2_type(const hvt_pt2 *p, const char *tensor)
{
    const json_int_t type = json_integer_value(json_object_get(json_object_get(p->tensors, tensor), "dtype"));

    return type > 0 && type <= HVT__PT2_BF16 ? (int)type : 0;
}

bool hvt__pt2_is_truth(const hvt_pt2 *p, const char *tensor)
{
    return hvt__pt2_type(p, tensor) == HVT__PT2_BOOL;
}

bool hvt__pt2_is_whole(const hvt_pt2 *p, const char *tensor)
{
    return hvt__pt2_is_truth(p, tensor) ||
           (hvt__pt2_type(p, tensor) >= HVT__PT2_U8 && hvt__pt2_type(p, tensor) <= HVT__PT2_I64);
}

bool hvt__pt2_norm_trains(const json_t *node)
{
    const char *kind;

    return json_is_true(hvt__pt2_arg(node, "training", &kind));
}

/* Batch norms and dropout that were in train() mode; stochastic depth, which is in the graph in no other. */
static bool in_train_mode(const json_t *node)
{
    const char *kind;

    return hvt__pt2_norm_trains(node) || json_is_true(hvt__pt2_arg(node, "train", &kind)) ||
           !strncmp(hvt__pt2_target(node), "aten.bernoulli", 14);
}

/* Batch norms in eval() mode are fixed if anything else is in train() mode. Else the whole model was in
 * eval() mode, which says nothing of how it is to be trained. */
static void find_fixed_norms(hvt_pt2 *f)
{
    bool trains = false;

    for (size_t i = 0; i < f->nneeded; i++) {
        trains = trains || in_train_mode(f->needed[i]);
        if (!strcmp(hvt__pt2_target(f->needed[i]), "aten.batch_norm.default")) {
            f->norms++;
            f->fixed_norms += !hvt__pt2_norm_trains(f->needed[i]);
        }
    }
    f->eval_mode = f->norms && !trains;
    f->fixed_norms = trains ? f->fixed_norms : 0;
}

/* Interpolation to as many pixels as there are, by no factor of its own: every mode then copies them. */
static bool is_identity(const hvt_pt2 *p, const json_t *node)
{
    const char *target = hvt__pt2_target(node), *kind,
               *from = json_string_value(json_object_get(hvt__pt2_arg(node, "input", &kind), "name")),
               *to = hvt__pt2_tensor_in(json_array_get(json_object_get(node, "outputs"), 0), 0);
    const json_t *factors = hvt__pt2_arg(node, "scale_factors", &kind);
    int64_t before[HVT__PT2_DIMS], after[HVT__PT2_DIMS];
    bool same =
        from && to && (!strncmp(target, "aten.upsample_", 14) || !strncmp(target, "aten._upsample_", 15));
    const int n = same ? hvt__pt2_sizes(p, from, HVT__PT2_DIMS, before) : 0;

    same = n > 0 && hvt__pt2_sizes(p, to, HVT__PT2_DIMS, after) == n &&
           !memcmp(before, after, (size_t)n * sizeof *before);
    for (size_t i = 0; i < json_array_size(factors); i++)
        same = same && json_number_value(json_array_get(factors, i)) == 1;
    return same;
}

/* These are no operations. */
static hvt_status name_identities(const hvt_pt2 *p, json_t *nodes)
{
    for (size_t i = 0; i < json_array_size(nodes); i++) {
        json_t *node = json_array_get(nodes, i);

        if (is_identity(p, node))
            HVT_CHECK(!json_object_set_new(node, "target", json_string("torch.ops.aten.alias.default")),
                      E_MEM, "%s: no memory", p->path);
    }
    return HVT_OK;
}

hvt_status hvt__pt2_graph(hvt_pt2 *p)
{
    const json_t *module = json_object_get(p->program, "graph_module"),
                 *version = json_object_get(json_object_get(p->program, "schema_version"), "major"),
                 *signature = json_object_get(module, "signature");
    json_t *graph = json_object_get(module, "graph"), *defined;
    hvt_status s;

    HVT_CHECK(json_is_integer(version), E_FORMAT, "%s: the program has no schema_version", p->path);
    HVT_CHECK(json_integer_value(version) == SCHEMA, E_UNSUPPORTED,
              "%s: written in version %lld of torch.export's schema; %d is read (PyTorch 2.6 and later)",
              p->path, (long long)json_integer_value(version), SCHEMA);
    p->inputs = json_object();
    p->constants = json_object();
    HVT_CHECK(p->inputs && p->constants, E_MEM, "%s: no memory", p->path);
    HVT_TRY(find_inputs(p, json_object_get(signature, "input_specs")));
    HVT_TRY(hvt__pt2_unfold_blocks(p, graph));
    p->nodes = json_object_get(graph, "nodes");
    p->tensors = json_object_get(graph, "tensor_values");
    defined = json_object();
    HVT_CHECK(defined, E_MEM, "%s: no memory", p->path);
    s = find_outputs(p, json_object_get(signature, "output_specs"));
    if (s == HVT_OK)
        s = read_image(p);
    if (s == HVT_OK)
        s = check_names(p, defined);
    json_decref(defined);
    if (s == HVT_OK)
        s = name_identities(p, json_object_get(graph, "nodes"));
    if (s == HVT_OK)
        s = find_needed(p);
    if (s == HVT_OK)
        s = find_computed(p);
    if (s == HVT_OK)
        s = find_unknown(p);
    if (s == HVT_OK)
        s = hvt__pt2_find_heads(p);
    if (s == HVT_OK)
        find_fixed_norms(p);
    if (s == HVT_OK && maker_of_logits(p))
        p->log_softmax = !strcmp(hvt__pt2_target(maker_of_logits(p)), "aten.log_softmax.int");
    return s;
}
