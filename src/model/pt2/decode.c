/*
 * Decodes the graph of a .pt2 file: torch/_export/serde/schema.py, major version 8. An input or a node
 * defines each name once, before any use, so the graph has no cycle. Nothing else reads the JSON.
 *
 * The file stores code under torch.no_grad() or torch.autocast() as a graph of its own, in an argument of
 * a node; decoding inlines it. no_grad() ends gradients: it is accepted where nothing trainable is
 * involved and refused elsewhere. autocast() is ignored, as --amp replaces it.
 */
#define _GNU_SOURCE /* memmem */
#include "graph.h"

#include <jansson.h>
#include <math.h>

enum {
    SCHEMA = 8,
    DEPTH = 8, /* maximum depth of nested blocks */
    OPERATIONS = 1 << 16
};

/* Maps a name within a block to its value. */
typedef struct entry {
    struct entry *next;
    const char *name;
    int block;
    pt2_value *value;
    bool trained; /* a parameter, or computed from one */
} entry;

enum { BUCKETS = 1 << 12 };

typedef struct decoder {
    pt2_graph *g;
    entry *bucket[BUCKETS];
    int blocks, operations;
    const char *image;
} decoder;

static entry **bucket_of(decoder *d, const char *name, int block)
{
    return &d->bucket[(hvt__hash_text(HVT_HASH_INIT, name) + (uint64_t)block * 7919) % BUCKETS];
}

static entry *find(decoder *d, const char *name, int block)
{
    entry *e = *bucket_of(d, name, block);

    while (e && (e->block != block || strcmp(e->name, name) != 0))
        e = e->next;
    return e;
}

static hvt_status define(decoder *d, const char *name, int block, pt2_value *v, bool trained)
{
    entry **bucket = bucket_of(d, name, block), *e;

    HVT_CHECK(!find(d, name, block), E_FORMAT, "%s: %s is defined twice", d->g->path, name);
    e = hvt__pt2_make(d->g, sizeof *e);
    *e = (entry){*bucket, hvt__pt2_text(d->g, name), block, v, trained};
    *bucket = e;
    return HVT_OK;
}

/* ---- tensors ---- */

static const json_t *list_of(const json_t *arg)
{
    const json_t *all = json_object_get(arg, "as_tensors");

    return all ? all : json_object_get(arg, "as_optional_tensors");
}

/* Reads {"as_tensor": {"name": ...}} or {"as_tensors": [{"name": ...}]}, and returns how many. */
static size_t tensors_in(const json_t *arg)
{
    return json_object_get(arg, "as_tensor") ? 1 : json_array_size(list_of(arg));
}

/* "": omitted; NULL: no name */
static const char *tensor_in(const json_t *arg, size_t i)
{
    const json_t *one = json_object_get(arg, "as_tensor"),
                 *item = one ? one : json_array_get(list_of(arg), i),
                 *inner = json_object_get(item, "as_tensor"), *tensor = inner ? inner : item;

    return json_object_get(tensor, "as_none") ? "" : json_string_value(json_object_get(tensor, "name"));
}

/* A size is {"as_int": 64} or, where it is symbolic, {"as_expr": {..., "hint": {"as_int": 4}}}. */
static bool read_size(const json_t *size, int64_t *ret_size)
{
    const json_t *hint = json_object_get(json_object_get(size, "as_expr"), "hint");
    const json_t *n = json_object_get(hint ? hint : size, "as_int");

    *ret_size = json_integer_value(n);
    return json_is_integer(n) && *ret_size >= 0 && *ret_size <= INT_MAX;
}

static bool is_dense(const pt2_value *v, const json_t *strides)
{
    int64_t stride;

    for (int i = v->ndim - 1; i >= 0 && strides; i--)
        if (read_size(json_array_get(strides, (size_t)i), &stride) && v->size[i] != 1 &&
            stride != hvt__pt2_count(v->ndim - 1 - i, v->size + i + 1))
            return false;
    return true;
}

static pt2_value *make_value(decoder *d, const json_t *tensors, const char *name)
{
    const json_t *meta = json_object_get(tensors, name), *sizes = json_object_get(meta, "sizes");
    const json_int_t type = json_integer_value(json_object_get(meta, "dtype"));
    const size_t n = json_array_size(sizes);
    pt2_value *v = hvt__pt2_value(d->g, NULL);
    bool known = sizes && n <= PT2_DIMS;

    v->name = hvt__pt2_text(d->g, name);
    v->type = type > 0 && type <= PT2_BF16 ? (int)type : 0;
    for (size_t i = 0; i < n && known; i++)
        known = read_size(json_array_get(sizes, i), &v->size[i]);
    v->ndim = known ? (int)n : -1;
    v->dense = is_dense(v, json_object_get(meta, "strides"));
    v->no_gradient = json_is_false(json_object_get(meta, "requires_grad"));
    return v;
}

/* ---- nodes ---- */

static const char *target_of(const json_t *node)
{
    const char *t = json_string_value(json_object_get(node, "target"));
    static const char all[] = "torch.ops.";

    return !t ? "?" : !strncmp(t, all, sizeof all - 1) ? t + sizeof all - 1 : t;
}

/* The innermost layer, and the last stack frame outside of torch that called it. */
static const char *where(pt2_graph *g, const json_t *node)
{
    const json_t *meta = json_object_get(node, "metadata");
    const char *stack = json_string_value(json_object_get(meta, "nn_module_stack"));
    const char *trace = json_string_value(json_object_get(meta, "stack_trace"));
    const char *last = stack ? strrchr(stack, ';') : NULL, *layer, *file = NULL;
    int length = 0, line = 0, name = 0;
    char text[256];

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
    snprintf(text, sizeof text, "%s%.*s%s%.*s%s%.0d", length ? "layer " : "", length, length ? layer : "",
             length && file ? ", " : "", name, file ? file : "", file ? " line " : "", line);
    return hvt__pt2_text(g, text);
}

/* JSON has no infinity, so PyTorch writes a string. */
static pt2_number number(const json_t *x)
{
    const char *text = json_string_value(x);
    const bool below = text && *text == '-';

    if (json_is_integer(x))
        return (pt2_number){PT2_WHOLE, json_integer_value(x), (double)json_integer_value(x)};
    if (json_is_real(x))
        return (pt2_number){PT2_REAL, 0, json_real_value(x)};
    if (text && !strcmp(text + below, "Infinity"))
        return (pt2_number){PT2_REAL, 0, below ? -INFINITY : INFINITY};
    return (pt2_number){PT2_NO_NUMBER, 0, 0};
}

/* ret->name NULL: omitted, or None */
static hvt_status read_arg(decoder *d, const json_t *in, int block, pt2_arg *ret, bool *trained)
{
    pt2_graph *g = d->g;
    json_t *arg = json_object_get(in, "arg");
    void *only = json_object_iter(arg);
    const char *name = json_string_value(json_object_get(in, "name"));
    const size_t tensors = tensors_in(arg);
    const json_t *x;

    *ret = (pt2_arg){.kind = ""};
    if (!only || !strcmp(json_object_iter_key(only), "as_none"))
        return HVT_OK;
    x = json_object_iter_value(only);
    ret->name = hvt__pt2_text(g, name ? name : "");
    ret->kind = hvt__pt2_text(g, json_object_iter_key(only));
    ret->truth = json_is_true(x);
    ret->text = json_is_string(x) ? hvt__pt2_text(g, json_string_value(x)) : NULL;
    if (tensors)
        ret->value = hvt__pt2_make(g, tensors * sizeof(pt2_value *));
    for (size_t i = 0; i < tensors; i++) {
        const char *of = tensor_in(arg, i);
        entry *e;

        HVT_CHECK(of, E_FORMAT, "%s: a tensor without a name", g->path);
        e = *of ? find(d, of, block) : NULL;
        HVT_CHECK(e || !*of, E_FORMAT, "%s: %s is used before it is defined", g->path, of);
        ret->value[i] = e ? e->value : NULL;
        *trained = *trained || (e && e->trained);
    }
    ret->n = (int)(tensors ? tensors : json_array_size(x));
    if (!tensors) {
        pt2_number *all = hvt__pt2_make(g, (size_t)(ret->n ? ret->n : 1) * sizeof *all);

        for (int i = 0; i < ret->n; i++)
            all[i] = number(json_array_get(x, (size_t)i));
        if (!json_is_array(x))
            all[0] = number(x);
        ret->number = all;
    }
    return HVT_OK;
}

static hvt_status add_outputs(decoder *d, pt2_node *n, const json_t *node, const json_t *tensors, int block,
                              bool trained)
{
    const json_t *out = json_object_get(node, "outputs");
    size_t count = 0, at = 0;
    pt2_value **v;

    for (size_t k = 0; k < json_array_size(out); k++)
        count += tensors_in(json_array_get(out, k));
    v = hvt__pt2_make(d->g, (count + 1) * sizeof(pt2_value *));
    for (size_t k = 0; k < json_array_size(out); k++)
        for (size_t i = 0; i < tensors_in(json_array_get(out, k)); i++) {
            const char *name = tensor_in(json_array_get(out, k), i);

            HVT_CHECK(name, E_FORMAT, "%s: a tensor without a name", d->g->path);
            v[at] = make_value(d, tensors, name);
            if (*name)
                HVT_TRY(define(d, name, block, v[at], trained));
            at++;
        }
    hvt__pt2_outputs(d->g, n, (int)count, v);
    return HVT_OK;
}

static hvt_status add_node(decoder *d, const json_t *node, const json_t *tensors, int block)
{
    const json_t *in = json_object_get(node, "inputs");
    const size_t count = json_array_size(in);
    pt2_node *n = hvt__pt2_node(d->g, NULL, NULL, PT2_UNKNOWN);
    pt2_arg *arg = hvt__pt2_make(d->g, (count + 1) * sizeof *arg);
    bool trained = false;

    HVT_CHECK(++d->operations <= OPERATIONS, E_UNSUPPORTED, "%s: it has more than %d operations", d->g->path,
              OPERATIONS);
    n->target = hvt__pt2_text(d->g, target_of(node));
    n->where = where(d->g, node);
    n->arg = arg;
    for (size_t i = 0; i < count; i++) {
        HVT_TRY(read_arg(d, json_array_get(in, i), block, &arg[n->nargs], &trained));
        n->nargs += arg[n->nargs].name != NULL;
    }
    return add_outputs(d, n, node, tensors, block, trained);
}

/* ---- blocks ---- */

static bool is_no_grad(const json_t *node)
{
    const json_t *first = json_array_get(json_object_get(node, "inputs"), 0),
                 *enabled = json_object_get(json_object_get(first, "arg"), "as_bool");

    return !strcmp(target_of(node), "higher_order.wrap_with_set_grad_enabled") && !json_is_true(enabled);
}

static bool is_block(const json_t *node)
{
    const char *t = target_of(node);

    return !strcmp(t, "higher_order.wrap_with_set_grad_enabled") ||
           !strcmp(t, "higher_order.wrap_with_autocast");
}

/* only the nodes inside have the user's source lines */
static hvt_status refuse_block(decoder *d, const json_t *node, const json_t *graph, const char *why)
{
    const json_t *first = json_array_get(json_object_get(graph, "nodes"), 0);
    const pt2_node n = {.target = target_of(first ? first : node),
                        .where = where(d->g, first ? first : node)};

    return hvt__pt2_fail_at(d->g, &n, why);
}

/* Binds the inputs of a block to the values outside. */
static hvt_status bind_inputs(decoder *d, const json_t *node, const json_t *graph, size_t at, int outer,
                              int block)
{
    const json_t *given = json_object_get(node, "inputs"), *inputs = json_object_get(graph, "inputs");
    const size_t n = json_array_size(inputs);

    HVT_CHECK(n == json_array_size(given) - at, E_FORMAT, "%s: a block of %zu inputs is given %zu",
              d->g->path, n, json_array_size(given) - at);
    for (size_t i = 0; i < n; i++) {
        const json_t *arg = json_object_get(json_array_get(given, at + i), "arg"),
                     *input = json_array_get(inputs, i);
        const char *name = json_object_get(arg, "as_tensor") ? tensor_in(arg, 0) : NULL,
                   *inner = json_object_get(input, "as_tensor") ? tensor_in(input, 0) : NULL;
        const entry *e = name ? find(d, name, outer) : NULL;

        if (!name || !inner)
            return refuse_block(d, node, graph, "its block is given something that is no tensor");
        HVT_CHECK(e, E_FORMAT, "%s: %s is used before it is defined", d->g->path, name);
        if (is_no_grad(node) && e->trained)
            return refuse_block(d, node, graph,
                                "it computes under torch.no_grad() with what is trained: a gradient that "
                                "ends there is not known; expected constants, or the images");
        HVT_TRY(define(d, inner, block, e->value, e->trained));
    }
    return HVT_OK;
}

/* Gives the outputs of a block the names that they have outside. */
static hvt_status bind_outputs(decoder *d, const json_t *node, const json_t *graph, int outer, int block)
{
    const json_t *outputs = json_object_get(graph, "outputs"), *given = json_object_get(node, "outputs");
    size_t at = 0;

    for (size_t k = 0; k < json_array_size(given); k++)
        for (size_t i = 0; i < tensors_in(json_array_get(given, k)); i++, at++) {
            const char *name = tensor_in(json_array_get(given, k), i),
                       *inner = tensor_in(json_array_get(outputs, at), 0);
            const entry *e = inner ? find(d, inner, block) : NULL;

            if (!name || !*name)
                continue;
            HVT_CHECK(e, E_FORMAT, "%s: a block makes no %s", d->g->path, name);
            HVT_TRY(define(d, name, outer, e->value, e->trained));
        }
    return HVT_OK;
}

/* depth: how many blocks enclose it */
static hvt_status add_nodes(decoder *d, const json_t *graph, int block, int depth)
{
    const json_t *nodes = json_object_get(graph, "nodes"), *tensors = json_object_get(graph, "tensor_values");

    HVT_CHECK(depth <= DEPTH, E_UNSUPPORTED, "%s: more than %d blocks within each other", d->g->path, DEPTH);
    for (size_t i = 0; i < json_array_size(nodes); i++) {
        const json_t *node = json_array_get(nodes, i), *given = json_object_get(node, "inputs"),
                     *inner = NULL;
        size_t at = 0;
        int own;

        if (!is_block(node)) {
            HVT_TRY(add_node(d, node, tensors, block));
            continue;
        }
        own = ++d->blocks;
        while (at < json_array_size(given) && !inner)
            inner = json_object_get(
                json_object_get(json_object_get(json_array_get(given, at++), "arg"), "as_graph"), "graph");
        HVT_CHECK(inner, E_FORMAT, "%s: %.60s without a graph", d->g->path, target_of(node));
        HVT_TRY(bind_inputs(d, node, inner, at, block, own));
        HVT_TRY(add_nodes(d, inner, own, depth + 1));
        HVT_TRY(bind_outputs(d, node, inner, block, own));
    }
    return HVT_OK;
}

/* ---- inputs and outputs ---- */

/* {"arg": {"name": "p_fc_weight"}, "parameter_name": "fc.weight"} */
static hvt_status add_input(decoder *d, const json_t *spec, const char *field, bool buffer,
                            const json_t *tensors)
{
    pt2_graph *g = d->g;
    const char *name = json_string_value(json_object_get(json_object_get(spec, "arg"), "name"));
    const char *state = json_string_value(json_object_get(spec, field));
    pt2_value *v;

    HVT_CHECK(name && state, E_FORMAT, "%s: a parameter or buffer without a name", g->path);
    v = make_value(d, tensors, name);
    v->source = buffer ? PT2_BUFFER : PT2_TRAINED;
    v->state = hvt__pt2_text(g, state);
    v->persistent = buffer && json_is_true(json_object_get(spec, "persistent"));
    g->input[g->ninputs++] = v;
    return define(d, name, 0, v, !buffer);
}

static hvt_status add_inputs(decoder *d, const json_t *specs, const json_t *tensors)
{
    static const struct {
        const char *kind, *field;
        bool buffer;
    } kinds[] = {{"parameter", "parameter_name", false},
                 {"buffer", "buffer_name", true},
                 {"tensor_constant", "tensor_constant_name", true}};
    pt2_graph *g = d->g;

    g->input = hvt__pt2_make(g, (3 * json_array_size(specs) + 1) * sizeof(pt2_value *));
    for (size_t i = 0; i < json_array_size(specs); i++) {
        const json_t *spec = json_array_get(specs, i), *user = json_object_get(spec, "user_input");

        for (size_t k = 0; k < HVT_LEN(kinds); k++)
            if (json_object_get(spec, kinds[k].kind))
                HVT_TRY(add_input(d, json_object_get(spec, kinds[k].kind), kinds[k].field, kinds[k].buffer,
                                  tensors));
        if (!user)
            continue;
        HVT_CHECK(!d->image, E_UNSUPPORTED, "%s: the model has more than one input; expected one of images",
                  g->path);
        d->image = json_string_value(
            json_object_get(json_object_get(json_object_get(user, "arg"), "as_tensor"), "name"));
    }
    HVT_CHECK(d->image, E_UNSUPPORTED, "%s: the model has no input of images", g->path);
    g->images = make_value(d, tensors, d->image);
    g->images->source = PT2_IMAGES;
    g->images->computed = true;
    return define(d, d->image, 0, g->images, false);
}

static hvt_status read_example(pt2_graph *g)
{
    const pt2_value *x = g->images;

    HVT_CHECK(x->ndim == 4, E_UNSUPPORTED,
              "%s: its input is no batch of images: expected 4 dimensions, [N,C,H,W]", g->path);
    for (int i = 0; i < 4; i++)
        HVT_CHECK(x->size[i] > 0 && x->size[i] <= 1 << 20, E_FORMAT, "%s: dimension %d of its input is %lld",
                  g->path, i, (long long)x->size[i]);
    g->batch = (int)x->size[0];
    g->channels = (int)x->size[1];
    g->height = (int)x->size[2];
    g->width = (int)x->size[3];
    return HVT_OK;
}

/* The first key of the dict that the model returns; NULL: it returns something else. */
static const char *key_of_output(pt2_graph *g, const json_t *module)
{
    const json_t *call = json_array_get(json_object_get(module, "module_call_graph"), 0);
    const char *text = json_string_value(json_object_get(json_object_get(call, "signature"), "out_spec"));
    json_t *spec = text ? json_loads(text, 0, NULL) : NULL;
    const json_t *made = json_array_get(spec, 1);
    const char *type = json_string_value(json_object_get(made, "type")),
               *context = json_string_value(json_object_get(made, "context")), *key = NULL;
    json_t *keys = type && context && hvt__pt2_ends_in(type, "ict") ? json_loads(context, 0, NULL) : NULL;

    if (json_string_value(json_array_get(keys, 0)))
        key = hvt__pt2_text(g, json_string_value(json_array_get(keys, 0)));
    json_decref(keys);
    json_decref(spec);
    return key;
}

static hvt_status find_outputs(decoder *d, const json_t *specs)
{
    const char *logits = NULL;

    for (size_t i = 0; i < json_array_size(specs); i++) {
        const json_t *user = json_object_get(json_array_get(specs, i), "user_output");
        const char *name = json_string_value(
            json_object_get(json_object_get(json_object_get(user, "arg"), "as_tensor"), "name"));

        d->g->outputs += name != NULL;
        logits = logits ? logits : name;
    }
    HVT_CHECK(logits, E_UNSUPPORTED, "%s: the model has no output", d->g->path);
    HVT_CHECK(find(d, logits, 0), E_FORMAT, "%s: %s is used before it is defined", d->g->path, logits);
    d->g->logits = find(d, logits, 0)->value;
    return HVT_OK;
}

hvt_status hvt__pt2_decode(pt2_graph *g, const struct json_t *program)
{
    const json_t *module = json_object_get(program, "graph_module"),
                 *version = json_object_get(json_object_get(program, "schema_version"), "major"),
                 *signature = json_object_get(module, "signature"), *graph = json_object_get(module, "graph");
    decoder *d = hvt__pt2_make(g, sizeof *d);

    d->g = g;
    HVT_CHECK(json_is_integer(version), E_FORMAT, "%s: the program has no schema_version", g->path);
    HVT_CHECK(json_integer_value(version) == SCHEMA, E_UNSUPPORTED,
              "%s: written in version %lld of torch.export's schema; %d is read (PyTorch 2.6 and later)",
              g->path, (long long)json_integer_value(version), SCHEMA);
    HVT_TRY(
        add_inputs(d, json_object_get(signature, "input_specs"), json_object_get(graph, "tensor_values")));
    HVT_TRY(read_example(g));
    HVT_TRY(add_nodes(d, graph, 0, 0));
    HVT_TRY(find_outputs(d, json_object_get(signature, "output_specs")));
    g->output_name = key_of_output(g, module);
    if ((g->logits->ndim == 2 || g->logits->ndim == 4) && g->logits->size[1] <= INT_MAX)
        g->classes = (int)g->logits->size[1];
    else
        g->classes = g->logits->ndim == 1;
    return HVT_OK;
}
