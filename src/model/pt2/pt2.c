/*
 * Opens a .pt2 file, which runs every pass except lowering; describes it; and builds it, which lowers its
 * graph to a tape. Only what the logits depend on is imported, so not the auxiliary classifiers of
 * GoogLeNet and Inception. The run decides whether it trains or evaluates, not the mode in which the file
 * was exported.
 */
#include "passes.h"
#include "pt2_impl.h"

void hvt_pt2_close(hvt_pt2 **file)
{
    hvt_pt2 *p = file ? *file : NULL;

    if (!p)
        return;
    if (p->zip)
        zip_discard(p->zip);
    json_decref(p->weights);
    json_decref(p->fixed);
    hvt__pt2_graph_free(&p->graph);
    free(p->top);
    free(p->path);
    free(p);
    *file = NULL;
}

hvt_pt2_info hvt_pt2_describe(const hvt_pt2 *p)
{
    const pt2_graph *g = p ? p->graph : NULL;

    if (!p)
        return (hvt_pt2_info){0};
    return (hvt_pt2_info){.height = g->height,
                          .width = g->width,
                          .channels = g->channels,
                          .classes = g->classes,
                          .outputs = g->outputs,
                          .output = g->output_name,
                          .unused = p->unused,
                          .first_unused = p->first_unused,
                          .norms = g->norms,
                          .fixed_norms = g->fixed_norms,
                          .eval_mode = g->eval_mode,
                          .changed = g->nchanged,
                          .first_changed = g->nchanged ? g->changed[0]->state : NULL,
                          .log_softmax = g->log_softmax,
                          .weights = p->weights != NULL,
                          .trained = p->trained,
                          .head = g->head_name};
}

/* ---- opening ---- */

static hvt_status read_config(hvt_pt2 *p, const char *entry, json_t **ret)
{
    json_t *config;

    HVT_TRY(hvt__pt2_archive_json(p, entry, &config));
    *ret = json_incref(json_object_get(config, "config"));
    json_decref(config);
    return HVT_OK;
}

static void print(const pt2_graph *g, FILE *f, const char *pass)
{
    if (!f)
        return;
    fprintf(f, "\nafter %s:\n", pass);
    hvt__pt2_print(g, f);
}

/* Runs every pass except lowering. f: prints the graph after each pass; NULL: does not. */
static hvt_status compile(hvt_pt2 *p, const json_t *program, FILE *f)
{
    pt2_graph *g = p->graph;

    HVT_CHECK(!setjmp(g->no_memory), E_MEM, "%s: no memory for its graph", p->path);
    HVT_TRY(hvt__pt2_decode(g, program));
    HVT_TRY(hvt__pt2_canonicalise(g));
    print(g, f, "canonicalise");
    hvt__pt2_find_heads(g);
    HVT_TRY(read_config(p, "data/weights/model_weights_config.json", &p->weights));
    HVT_TRY(read_config(p, "data/constants/model_constants_config.json", &p->fixed));
    hvt__pt2_find_unused(p);
    if (p->weights) {
        HVT_TRY(hvt__pt2_check_weights(p));
        HVT_TRY(hvt__pt2_find_trained(p));
    }
    hvt__pt2_fold(g);
    hvt__pt2_find_unknown(g);
    print(g, f, "fold");
    hvt__pt2_match(g);
    print(g, f, "match");
    hvt__pt2_lay_out(g);
    if (!g->refusals.kinds && !g->unknown)
        print(g, f, "lay out");
    HVT_TRY(hvt__pt2_reported(g));
    HVT_CHECK(g->last, E_UNSUPPORTED, "%s: no operation leads from its input to its output", p->path);
    return HVT_OK;
}

/* Builds the model once, so that open refuses whatever cannot be imported. */
static hvt_status try_to_build(const hvt_pt2 *p)
{
    hvt_device *dev = NULL;
    hvt_model *m = NULL;
    hvt_value logits;
    hvt_status s;

    HVT_TRY(hvt_device_open("ref", NULL, &dev));
    s = hvt_model_create(dev, &m);
    if (s == HVT_OK)
        s = hvt_pt2_build(p, m, hvt_input(m, p->graph->height, p->graph->width, p->graph->channels), 0,
                          &logits);
    hvt_model_free(&m);
    hvt_device_close(&dev);
    return s;
}

static hvt_status open_file(const char *path, FILE *f, hvt_pt2 **ret_file)
{
    hvt_pt2 *p = calloc(1, sizeof *p);
    json_t *program = NULL;
    hvt_status s = HVT_OK;

    HVT_CHECK(p, E_MEM, "no memory");
    p->path = strdup(path);
    p->graph = calloc(1, sizeof *p->graph);
    HVT_CHECK_OR(fail, p->path && p->graph, E_MEM, "no memory");
    p->graph->path = p->path;
    p->graph->file = p;
    HVT_TRY_OR(fail, hvt__pt2_archive_open(p));
    HVT_TRY_OR(fail, hvt__pt2_archive_json(
                         p, *p->top ? "models/model.json" : "serialized_exported_program.json", &program));
    HVT_TRY_OR(fail, compile(p, program, f));
    json_decref(program);
    program = NULL;
    HVT_TRY_OR(fail, try_to_build(p));
    *ret_file = p;
    return HVT_OK;
fail:
    json_decref(program);
    hvt_pt2_close(&p);
    return s;
}

hvt_status hvt_pt2_open(const char *path, hvt_pt2 **ret_file)
{
    HVT_GIVEN(path, "the path of a .pt2 file");
    HVT_GIVEN(ret_file, "an output pointer for the file");
    return open_file(path, NULL, ret_file);
}

hvt_status hvt__pt2_print_passes(const char *path, FILE *f)
{
    hvt_pt2 *file = NULL;
    hvt_status s = open_file(path, f, &file);

    hvt_pt2_close(&file);
    return s;
}

/* ---- building ---- */

/* Registers the prefixes that hvt_model_freeze() accepts. A new last layer gets none. */
static hvt_status freeze(const pt2_graph *g, hvt_model *m, int classes)
{
    size_t room = 1, used = 0;
    char *list;
    hvt_status s;

    for (int i = 0; i < g->ninputs; i++)
        room += strlen(g->input[i]->state) + 2;
    list = calloc(room, 1);
    HVT_CHECK(list, E_MEM, "%s: no memory for the names of its parameters", g->path);
    for (int i = 0; i < g->ninputs; i++) {
        const pt2_value *v = g->input[i];

        if (v->source == PT2_TRAINED && v->used && v->no_gradient && !(classes && v->resized))
            used += (size_t)snprintf(list + used, room - used, "%s%s$", used ? "," : "", v->state);
    }
    s = hvt_model_freeze(m, list);
    free(list);
    return s;
}

/* True for statistics of a batch norm, which its layer has already. */
static bool is_of_norm(const char *state)
{
    return hvt__pt2_ends_in(state, "running_mean") || hvt__pt2_ends_in(state, "running_var") ||
           hvt__pt2_counts_batches(state);
}

/* Buffers of the state_dict that are constants on the tape, or unused, still go into files of weights. */
static hvt_status attach(const hvt_pt2 *p, hvt_model *m, const pt2_value *v)
{
    const bool whole = hvt__pt2_is_whole(v->type);
    const int64_t count = v->ndim < 0 ? 0 : hvt__pt2_count(v->ndim, v->size);
    double *values;
    hvt_status s;
    int dim[4];

    HVT_CHECK(!v->read || (v->ndim >= 0 && v->ndim <= 4), E_UNSUPPORTED,
              "%s: the buffer %s has more than 4 dimensions", p->path, v->state);
    if (!v->read && (v->used || v->ndim < 0 || v->ndim > 4 || is_of_norm(v->state) ||
                     !json_object_get(p->weights, v->state) || (!hvt__pt2_is_float(v->type) && !whole)))
        return HVT_OK;
    for (int i = 0; i < v->ndim; i++)
        dim[i] = (int)v->size[i];
    HVT_CHECK(count <= INT_MAX, E_FORMAT, "%s: the buffer %s has too many values", p->path, v->state);
    values = malloc((size_t)(count ? count : 1) * sizeof *values);
    HVT_CHECK(values, E_MEM, "%s: no memory for the buffer %s", p->path, v->state);
    s = hvt__pt2_read_values(p, v->state, count, values);
    if (s == HVT_OK)
        s = hvt_model_attach(m, v->state, v->ndim, dim, whole, values);
    free(values);
    return s;
}

hvt_status hvt_pt2_build(const hvt_pt2 *file, hvt_model *m, hvt_value images, int classes,
                         hvt_value *ret_logits)
{
    HVT_GIVEN(file, "a .pt2 file");
    HVT_GIVEN(m, "a model");
    HVT_GIVEN(ret_logits, "an output pointer for the logits");
    HVT_CHECK(classes >= 0, E_ARG, "%d classes; 0 keeps those of the file", classes);
    *ret_logits = -1;
    if (images < 0) /* hvt_model_plan() reports the error */
        return HVT_OK;

    const pt2_graph *g = file->graph;

    classes = classes == g->classes ? 0 : classes;
    HVT_TRY(hvt__pt2_lower(g, m, images, classes, ret_logits));
    HVT_TRY(freeze(g, m, classes));
    for (int i = 0; i < g->ninputs; i++) {
        const pt2_value *v = g->input[i];

        if (v->second_of)
            HVT_TRY(hvt_model_alias(m, v->state, v->second_of->state));
        if (v->source == PT2_BUFFER && v->persistent)
            HVT_TRY(attach(file, m, v));
    }
    return HVT_OK;
}
