/*
 * What a model computes under torch.no_grad() or torch.autocast() is a graph of its own in the file, the
 * argument of a node. Its nodes take the place of that one, under names that no other block has.
 *
 * Under no_grad() a gradient ends. That makes no difference where nothing trained was computed with, and is
 * refused elsewhere. What autocast() says is left to hvtrain's own --amp.
 */
#include "pt2_impl.h"

enum { DEPTH = 8 /* blocks within blocks */ };

typedef struct unfolding {
    hvt_pt2 *p;
    json_t *nodes;   /* the whole graph's, in order */
    json_t *tensors; /* its tensor_values */
    json_t *trained; /* names of parameters, and of what was computed with them */
    int blocks;
} unfolding;

static bool is_no_grad(const json_t *node)
{
    const json_t *first = json_array_get(json_object_get(node, "inputs"), 0),
                 *enabled = json_object_get(json_object_get(first, "arg"), "as_bool");

    return !strcmp(hvt__pt2_target(node), "higher_order.wrap_with_set_grad_enabled") &&
           !json_is_true(enabled);
}

static bool is_block(const json_t *node)
{
    const char *t = hvt__pt2_target(node);

    return !strcmp(t, "higher_order.wrap_with_set_grad_enabled") ||
           !strcmp(t, "higher_order.wrap_with_autocast");
}

/* ---- names; those that return an int as jansson does: not 0 if there is no memory ---- */

/* The name in the whole graph of a block's; names: those known so far. */
static const char *name_of(json_t *names, const char *name, int block)
{
    const json_t *known = json_object_get(names, name);
    json_t *made;

    if (known)
        return json_string_value(known);
    made = json_sprintf("%s@%d", name, block);
    return made && json_object_set_new(names, name, made) == 0 ? json_string_value(made) : NULL;
}

static int rename_tensors(const json_t *arg, json_t *names, int block)
{
    int failed = 0;

    for (size_t i = 0; i < hvt__pt2_tensors_in(arg) && !failed; i++) {
        json_t *tensor = hvt__pt2_tensor_object(arg, i);
        const char *name = json_string_value(json_object_get(tensor, "name")),
                   *whole = name ? name_of(names, name, block) : NULL;

        failed = name && (!whole || json_object_set_new(tensor, "name", json_string(whole)));
    }
    return failed;
}

/* A copy with names of the whole graph. */
static json_t *renamed(const json_t *node, json_t *names, int block)
{
    json_t *copy = json_deep_copy(node), *in = json_object_get(copy, "inputs"),
           *out = json_object_get(copy, "outputs");
    int failed = 0;

    for (size_t i = 0; i < json_array_size(in) && !failed; i++)
        failed = rename_tensors(json_object_get(json_array_get(in, i), "arg"), names, block);
    for (size_t i = 0; i < json_array_size(out) && !failed; i++)
        failed = rename_tensors(json_array_get(out, i), names, block);
    if (!failed)
        return copy;
    json_decref(copy);
    return NULL;
}

/* `to` is `from`: for a block that returns what it was given, or one tensor twice. */
static json_t *same(const char *from, const char *to)
{
    return json_pack("{s:s, s:[{s:s, s:{s:{s:s}}}], s:[{s:{s:s}}]}", "target", "torch.ops.aten.clone.default",
                     "inputs", "name", "self", "arg", "as_tensor", "name", from, "outputs", "as_tensor",
                     "name", to);
}

/* ---- blocks ---- */

/* Its i-th output's name. */
static const char *output_of(const json_t *outputs, size_t i)
{
    for (size_t k = 0; k < json_array_size(outputs); k++) {
        const json_t *arg = json_array_get(outputs, k);

        if (i < hvt__pt2_tensors_in(arg))
            return hvt__pt2_tensor_in(arg, i);
        i -= hvt__pt2_tensors_in(arg);
    }
    return NULL;
}

static hvt_status refuse(const hvt_pt2 *p, const json_t *node, const char *why)
{
    char where[256];

    hvt__pt2_where(node, where, sizeof where);
    return HVT_FAIL(E_UNSUPPORTED, "%s: %.60s (%.100s): %s", p->path, hvt__pt2_target(node), where, why);
}

/* Where the user wrote a block: only the nodes within it say so. */
static const json_t *first_within(const json_t *graph, const json_t *node)
{
    const json_t *first = json_array_get(json_object_get(graph, "nodes"), 0);

    return first ? first : node;
}

/* What the block's inputs are in the whole graph. */
static hvt_status bind_inputs(unfolding *u, const json_t *node, const json_t *graph, size_t at, json_t *names)
{
    const json_t *given = json_object_get(node, "inputs"), *inputs = json_object_get(graph, "inputs");
    const bool ends = is_no_grad(node);

    HVT_CHECK(json_array_size(inputs) == json_array_size(given) - at, E_FORMAT,
              "%s: a block of %zu inputs is given %zu", u->p->path, json_array_size(inputs),
              json_array_size(given) - at);
    for (size_t i = 0; i < json_array_size(inputs); i++) {
        const json_t *arg = json_object_get(json_array_get(given, at + i), "arg"),
                     *input = json_array_get(inputs, i);
        const char *name = json_object_get(arg, "as_tensor") ? hvt__pt2_tensor_in(arg, 0) : NULL,
                   *inner = json_object_get(input, "as_tensor") ? hvt__pt2_tensor_in(input, 0) : NULL;

        if (!name || !inner)
            return refuse(u->p, first_within(graph, node), "its block is given something that is no tensor");
        if (ends && json_object_get(u->trained, name))
            return refuse(
                u->p, first_within(graph, node),
                "it computes under torch.no_grad() with what is trained: a gradient that ends there "
                "is not known; expected constants, or the images");
        HVT_CHECK(json_object_set_new(names, inner, json_string(name)) == 0, E_MEM, "%s: no memory",
                  u->p->path);
    }
    return HVT_OK;
}

/* Its outputs get the names that the node gives them, if they have none yet. */
static int bind_outputs(const json_t *node, const json_t *graph, json_t *names)
{
    const json_t *outputs = json_object_get(graph, "outputs"), *outer = json_object_get(node, "outputs");
    int failed = 0;

    for (size_t i = 0; i < json_array_size(outputs) && !failed; i++) {
        const char *inner = hvt__pt2_tensor_in(json_array_get(outputs, i), 0), *name = output_of(outer, i);

        if (inner && name && !json_object_get(names, inner))
            failed = json_object_set_new(names, inner, json_string(name));
    }
    return failed;
}

/* Those that are what another one is. */
static int repeat_outputs(unfolding *u, const json_t *node, const json_t *graph, json_t *names, int block)
{
    const json_t *outputs = json_object_get(graph, "outputs"), *outer = json_object_get(node, "outputs");
    int failed = 0;

    for (size_t i = 0; i < json_array_size(outputs) && !failed; i++) {
        const char *inner = hvt__pt2_tensor_in(json_array_get(outputs, i), 0), *name = output_of(outer, i),
                   *whole = inner && name ? name_of(names, inner, block) : NULL;

        if (!inner || !name)
            continue;
        failed = !whole || (strcmp(whole, name) != 0 && json_array_append_new(u->nodes, same(whole, name)));
        if (!failed && json_object_get(u->trained, whole))
            failed = json_object_set_new(u->trained, name, json_true());
    }
    return failed;
}

static int bring_tensors(unfolding *u, json_t *graph, json_t *names, int block)
{
    int failed = 0;
    const char *name;
    json_t *value;

    json_object_foreach(json_object_get(graph, "tensor_values"), name, value)
    {
        const char *whole = name_of(names, name, block);

        failed = failed || !whole ||
                 (!json_object_get(u->tensors, whole) && json_object_set(u->tensors, whole, value));
    }
    return failed;
}

/* names: NULL where the nodes are the whole graph's. */
static hvt_status add_nodes(unfolding *u, const json_t *nodes, json_t *names, int block, int depth);

static hvt_status add_block(unfolding *u, const json_t *node, int depth)
{
    const json_t *given = json_object_get(node, "inputs");
    const int block = ++u->blocks;
    json_t *graph = NULL, *names;
    size_t at = 0;
    hvt_status s;

    while (at < json_array_size(given) && !graph)
        graph = json_object_get(
            json_object_get(json_object_get(json_array_get(given, at++), "arg"), "as_graph"), "graph");
    HVT_CHECK(graph, E_FORMAT, "%s: %.60s without a graph", u->p->path, hvt__pt2_target(node));
    HVT_CHECK(depth < DEPTH, E_UNSUPPORTED, "%s: more than %d blocks within each other", u->p->path, DEPTH);
    names = json_object();
    HVT_CHECK(names, E_MEM, "%s: no memory", u->p->path);
    HVT_TRY_OR(done, bind_inputs(u, node, graph, at, names));
    HVT_CHECK_OR(done, !bind_outputs(node, graph, names) && !bring_tensors(u, graph, names, block), E_MEM,
                 "%s: no memory", u->p->path);
    HVT_TRY_OR(done, add_nodes(u, json_object_get(graph, "nodes"), names, block, depth + 1));
    HVT_CHECK_OR(done, !repeat_outputs(u, node, graph, names, block), E_MEM, "%s: no memory", u->p->path);
done:
    json_decref(names);
    return s;
}

static hvt_status add_node(unfolding *u, json_t *node, int depth)
{
    if (is_block(node))
        return add_block(u, node, depth);
    HVT_CHECK(!json_array_append(u->nodes, node) &&
                  (!hvt__pt2_reads(node, u->trained) || !hvt__pt2_add_outputs(node, u->trained)),
              E_MEM, "%s: no memory", u->p->path);
    return HVT_OK;
}

static hvt_status add_nodes(unfolding *u, const json_t *nodes, json_t *names, int block, int depth)
{
    for (size_t i = 0; i < json_array_size(nodes); i++) {
        json_t *node = json_array_get(nodes, i);
        hvt_status s;

        node = names ? renamed(node, names, block) : json_incref(node);
        HVT_CHECK(node, E_MEM, "%s: no memory", u->p->path);
        s = add_node(u, node, depth);
        json_decref(node);
        HVT_TRY(s);
    }
    return HVT_OK;
}

static bool has_blocks(const json_t *nodes)
{
    for (size_t i = 0; i < json_array_size(nodes); i++)
        if (is_block(json_array_get(nodes, i)))
            return true;
    return false;
}

hvt_status hvt__pt2_unfold_blocks(hvt_pt2 *p, json_t *graph)
{
    unfolding u = {.p = p, .tensors = json_object_get(graph, "tensor_values")};
    const char *name;
    json_t *state;
    hvt_status s = HVT_OK;
    int failed;

    if (!has_blocks(json_object_get(graph, "nodes")))
        return HVT_OK;
    u.nodes = json_array();
    u.trained = json_object();
    failed = !u.nodes || !u.trained;
    json_object_foreach(p->inputs, name, state)
    {
        if (!failed && !json_object_get(p->constants, name))
            failed = json_object_set_new(u.trained, name, json_true());
    }
    HVT_CHECK_OR(done, !failed, E_MEM, "%s: no memory", p->path);
    HVT_CHECK_OR(done, u.tensors, E_FORMAT, "%s: its graph has no tensor_values", p->path);
    HVT_TRY_OR(done, add_nodes(&u, json_object_get(graph, "nodes"), NULL, 0, 0));
    HVT_CHECK_OR(done, !json_object_set(graph, "nodes", u.nodes), E_MEM, "%s: no memory", p->path);
done:
    json_decref(u.nodes);
    json_decref(u.trained);
    return s;
}
