/*
 * The layers of a file whose outputs are the classes, and all else that changes with their number.
 */
#include "pt2_impl.h"

static bool is_head_layer(const json_t *node)
{
    const char *t = hvt__pt2_target(node);

    return !strncmp(t, "aten.linear.", 12) || !strncmp(t, "aten.conv2d.", 12);
}

/* The first dimension of a layer's weight; 0: the file does not say. */
static int64_t outputs_of(const hvt_pt2 *f, const json_t *node)
{
    const char *kind,
        *weight = json_string_value(json_object_get(hvt__pt2_arg(node, "weight", &kind), "name"));
    int64_t size[HVT__PT2_DIMS];

    return weight && hvt__pt2_sizes(f, weight, HVT__PT2_DIMS, size) > 0 ? size[0] : 0;
}

static bool has_size(const hvt_pt2 *f, const char *tensor, int64_t wanted)
{
    int64_t size[HVT__PT2_DIMS];
    bool has = false;

    for (int i = hvt__pt2_sizes(f, tensor, HVT__PT2_DIMS, size); i-- > 0;)
        has = has || size[i] == wanted;
    return has;
}

static bool makes_any(const json_t *node, const json_t *set)
{
    const json_t *out = json_object_get(node, "outputs");
    bool found = false;

    for (size_t k = 0; k < json_array_size(out); k++)
        for (size_t i = 0; i < hvt__pt2_tensors_in(json_array_get(out, k)) && !found; i++)
            found = json_object_get(set, hvt__pt2_tensor_in(json_array_get(out, k), i));
    return found;
}

/* What a node reads: parameters and buffers with a dimension of the classes to f->resized, if `renews`; all
 * tensors to `set`. */
static int add_reads(hvt_pt2 *f, const json_t *node, int64_t classes, bool renews, json_t *set)
{
    const json_t *in = json_object_get(node, "inputs");
    int failed = 0;

    for (size_t k = 0; k < json_array_size(in); k++) {
        const json_t *arg = json_object_get(json_array_get(in, k), "arg");

        for (size_t i = 0; i < hvt__pt2_tensors_in(arg) && !failed; i++) {
            const char *name = hvt__pt2_tensor_in(arg, i),
                       *state = json_string_value(json_object_get(f->inputs, name));

            failed = json_object_set_new(set, name, json_true()) ||
                     (renews && state && has_size(f, name, classes) &&
                      json_object_set_new(f->resized, state, json_true()));
        }
    }
    return failed;
}

/* What changes with the number of classes: the last layers, several where their outputs meet, and parameters
 * of what is computed of these outputs alone. Walks from the logits back. */
static int find_resized(hvt_pt2 *f)
{
    const int64_t classes = outputs_of(f, f->head);
    json_t *behind = json_object(), *other = json_object();
    int failed = !behind || !other || json_object_set_new(behind, f->logits, json_true());

    for (size_t i = f->nneeded; i-- > 0 && !failed;) {
        const json_t *node = f->needed[i];
        const bool layer = is_head_layer(node);
        const bool renews = node == f->head || (makes_any(node, behind) && !makes_any(node, other) &&
                                                (!layer || outputs_of(f, node) == classes));

        if (renews && layer)
            failed = hvt__pt2_add_outputs(node, f->heads);
        failed = failed || add_reads(f, node, classes, renews, renews && !layer ? behind : other);
    }
    json_decref(behind);
    json_decref(other);
    return failed;
}

/* The last layer that leads to the logits and has as many outputs; or else the last layer. */
hvt_status hvt__pt2_find_heads(hvt_pt2 *f)
{
    const int64_t classes = hvt_pt2_describe(f).classes;
    const json_t *last = NULL;

    f->heads = json_object();
    f->resized = json_object();
    for (size_t i = f->nneeded; i-- > 0 && !f->head;)
        if (is_head_layer(f->needed[i])) {
            last = last ? last : f->needed[i];
            f->head = outputs_of(f, f->needed[i]) == classes ? f->needed[i] : NULL;
        }
    f->head = f->head ? f->head : last;
    HVT_CHECK(f->heads && f->resized && (!f->head || !find_resized(f)), E_MEM, "%s: no memory", f->path);
    if (f->head) {
        const char *kind,
            *name = json_string_value(json_object_get(hvt__pt2_arg(f->head, "weight", &kind), "name")),
            *state = name ? json_string_value(json_object_get(f->inputs, name)) : NULL,
            *dot = state ? strrchr(state, '.') : NULL;

        f->head_name = dot ? strndup(state, (size_t)(dot - state)) : strdup("");
        HVT_CHECK(f->head_name, E_MEM, "%s: no memory", f->path);
    }
    return HVT_OK;
}
