/*
 * Plans one pass of a convolution with cuDNN's graph API: tensors and one operation form a graph, a heuristic
 * lists engine configurations for it, each is checked by its notes, and an admissible one is finalized into a
 * plan.
 *
 * Every descriptor is created, given attributes and finalized. `graph` keeps the first failure and all
 * descriptors, so that a graph is a list of calls and is freed in one place.
 */
#include "conv_impl.h"
#include "cuda_impl.h"

typedef cudnnBackendDescriptor_t descriptor;

enum { GRAPH_DESCRIPTORS = 64, NOTES_MOST = 32, CONFIGS_MOST = 256 };
_Static_assert((int)CUDNN_KNOB_TYPE_COUNTS <= (int)GRAPH_DESCRIPTORS, "a descriptor for each kind of knob");

typedef struct graph {
    hvt_status status;
    descriptor made[GRAPH_DESCRIPTORS];
    int count;
} graph;

#define TRY_CUDNN(g, call)                                                                                   \
    do {                                                                                                     \
        if ((g)->status == HVT_OK)                                                                           \
            (g)->status = CUDNN(NULL, call);                                                                 \
    } while (0)

static descriptor make(graph *g, cudnnBackendDescriptorType_t type)
{
    descriptor d = NULL;

    TRY_CUDNN(g, cudnnBackendCreateDescriptor(type, &d));
    if (d)
        g->made[g->count++] = d;
    return d;
}

static void set(graph *g, descriptor d, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                int64_t count, const void *values)
{
    TRY_CUDNN(g, cudnnBackendSetAttribute(d, name, type, count, values));
}

/* *ret_count: number of values, at most `most` */
static void get(graph *g, descriptor d, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                int64_t most, int64_t *ret_count, void *values)
{
    TRY_CUDNN(g, cudnnBackendGetAttribute(d, name, type, most, ret_count, values));
}

static void set_descriptor(graph *g, descriptor d, cudnnBackendAttributeName_t name, descriptor value)
{
    set(g, d, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value);
}

static void finish(graph *g, descriptor d)
{
    TRY_CUDNN(g, cudnnBackendFinalize(d));
}

static void free_graph(graph *g)
{
    while (g->count > 0)
        hvt__nv.cudnnBackendDestroyDescriptor(g->made[--g->count]);
}

/* ---- the graph ---- */

static cudnnDataType_t data_type(hvt_dtype t)
{
    return t == HVT_F16 ? CUDNN_DATA_HALF : t == HVT_BF16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_FLOAT;
}

/* dims are in cuDNN's order n, c, h, w (weights: k, c, r, s); memory is channels last */
static descriptor tensor(graph *g, int64_t uid, hvt_dtype t, int64_t n, int64_t c, int64_t h, int64_t w)
{
    descriptor d = make(g, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    cudnnDataType_t type = data_type(t);
    int64_t dim[4] = {n, c, h, w}, stride[4] = {c * h * w, 1, c * w, c}, alignment = 16;

    set(g, d, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    set(g, d, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, dim);
    set(g, d, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, stride);
    set(g, d, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &uid);
    set(g, d, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment);
    finish(g, d);
    return d;
}

static descriptor geometry(graph *g, const hvt_conv_desc *c)
{
    descriptor d = make(g, CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
    int64_t dims = 2, stride[2] = {c->stride_h, c->stride_w}, before[2] = {c->top, c->left},
            after[2] = {c->bottom, c->right}, dilation[2] = {c->dilation_h, c->dilation_w};
    cudnnConvolutionMode_t mode = CUDNN_CROSS_CORRELATION;
    cudnnDataType_t compute = CUDNN_DATA_FLOAT;

    set(g, d, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &compute);
    set(g, d, CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1, &mode);
    set(g, d, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, 1, &dims);
    set(g, d, CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, 2, dilation);
    set(g, d, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64, 2, stride);
    set(g, d, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, 2, before);
    set(g, d, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64, 2, after);
    finish(g, d);
    return d;
}

static const struct {
    cudnnBackendDescriptorType_t type;
    cudnnBackendAttributeName_t geometry, x, w, y, alpha, beta;
} passes[CONV_PASSES] = {
    [CONV_FORWARD] = {CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
                      CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
                      CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
                      CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
                      CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
                      CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA},
    [CONV_BACKWARD_X] = {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
                         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
                         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
                         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
                         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
                         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
                         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA},
    [CONV_BACKWARD_W] = {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
                         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
                         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
                         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
                         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
                         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
                         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA},
};

/* A graph of one operation. */
static descriptor describe_pass(graph *g, const conv_request *w)
{
    const hvt_conv_desc *c = &w->conv;
    hvt_dtype tx = w->pass == CONV_BACKWARD_X ? w->out : c->type;
    hvt_dtype tw = w->pass == CONV_BACKWARD_W ? w->out : c->type;
    descriptor x = tensor(g, CUDNN_X, tx, c->n, c->cx, c->h, c->w);
    descriptor filters = tensor(g, CUDNN_W, tw, c->k, hvt__conv_depth(c), c->r, c->s);
    descriptor y = tensor(g, CUDNN_Y, c->type, c->n, c->k, hvt__conv_height(c), hvt__conv_width(c));
    descriptor shape = geometry(g, c), op = make(g, passes[w->pass].type);
    descriptor all = make(g, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    float alpha = 1, beta = w->add ? 1 : 0;

    set_descriptor(g, op, passes[w->pass].geometry, shape);
    set_descriptor(g, op, passes[w->pass].x, x);
    set_descriptor(g, op, passes[w->pass].w, filters);
    set_descriptor(g, op, passes[w->pass].y, y);
    set(g, op, passes[w->pass].alpha, CUDNN_TYPE_FLOAT, 1, &alpha);
    set(g, op, passes[w->pass].beta, CUDNN_TYPE_FLOAT, 1, &beta);
    finish(g, op);
    set_descriptor(g, all, CUDNN_ATTR_OPERATIONGRAPH_OPS, op);
    return all;
}

/* ---- the engines ---- */

#define NOTE(name) (1u << CUDNN_NUMERICAL_NOTE_##name)
enum { /* notes of engines that are never used, and not for strict f32 */
       REFUSED = NOTE(REDUCED_PRECISION_REDUCTION) | NOTE(WINOGRAD_TILE_13x13),
       NOT_STRICT = NOTE(TENSOR_CORE) | NOTE(DOWN_CONVERT_INPUTS) | NOTE(WINOGRAD) | NOTE(FFT)
};

/* Name a configuration of a known engine; without knobs the name is the engine's number. */
static void name_config(descriptor config, conv_plan *p)
{
    graph g = {.status = HVT_OK};
    descriptor knob[CUDNN_KNOB_TYPE_COUNTS];
    int64_t n = 0;
    int used = snprintf(p->name, sizeof p->name, "%lld", (long long)p->engine);

    for (int i = 0; i < CUDNN_KNOB_TYPE_COUNTS; i++)
        knob[i] = make(&g, CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR);
    get(&g, config, CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, CUDNN_TYPE_BACKEND_DESCRIPTOR, CUDNN_KNOB_TYPE_COUNTS,
        &n, knob);
    n = g.status != HVT_OK ? 0 : n;
    for (int64_t i = 0; i < n && used < PLAN_NAME_MOST; i++) {
        cudnnBackendKnobType_t type = 0;
        int64_t value = 0, one = 0;

        get(&g, knob[i], CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, CUDNN_TYPE_KNOB_TYPE, 1, &one, &type);
        get(&g, knob[i], CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, CUDNN_TYPE_INT64, 1, &one, &value);
        used += snprintf(p->name + used, sizeof p->name - (size_t)used, "%c%d=%lld", i ? ',' : ':', (int)type,
                         (long long)value);
    }
    free_graph(&g);
}

/* Read an engine's number and notes, before it is compiled. True if it satisfies the request. */
static bool inspect(const conv_request *w, descriptor config, conv_plan *p)
{
    cudnnBackendNumericalNote_t note[NOTES_MOST];
    cudnnBackendBehaviorNote_t behaviour[NOTES_MOST];
    graph g = {.status = HVT_OK};
    descriptor engine = make(&g, CUDNN_BACKEND_ENGINE_DESCRIPTOR);
    int64_t n = 0, notes = 0, behaviours = 0;
    bool strict = w->conv.type == HVT_F32 && !w->tf32;
    unsigned has = 0;

    get(&g, config, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &n, &engine);
    get(&g, engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1, &n, &p->engine);
    get(&g, engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE, NOTES_MOST, &notes, note);
    get(&g, engine, CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE, CUDNN_TYPE_BEHAVIOR_NOTE, NOTES_MOST, &behaviours,
        behaviour);
    free_graph(&g);
    if (g.status != HVT_OK)
        return false;
    for (int64_t i = 0; i < notes; i++)
        has |= note[i] < 32 ? 1u << note[i] : 0;
    p->deterministic = !(has & NOTE(NONDETERMINISTIC));
    for (int64_t i = 0; i < behaviours; i++)
        p->compiled = p->compiled || behaviour[i] == CUDNN_BEHAVIOR_NOTE_RUNTIME_COMPILATION;
    return (p->deterministic || !w->deterministic) && !(has & REFUSED) && !(strict && (has & NOT_STRICT));
}

/* Finalize a plan of this configuration. False is not an error: engines report only now whether they support
 * a shape, workspace and GPU. */
static bool finalize(const plan_target *on, descriptor config, size_t most, conv_plan *p)
{
    graph g = {.status = HVT_OK};
    descriptor plan = make(&g, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    int64_t ws = 0, n = 0;

    set_descriptor(&g, plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config);
    if (on->handle)
        set(&g, plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &on->handle);
    else
        set_descriptor(&g, plan, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, on->gpu);
    finish(&g, plan);
    get(&g, plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &n, &ws);
    if (g.status != HVT_OK || ws < 0 || (size_t)ws > most) {
        free_graph(&g);
        return false;
    }
    p->plan = plan;
    p->config = config;
    p->ws = (size_t)ws;
    return true;
}

/* List a heuristic's configurations for a graph, best first; the caller destroys them. Returns their number;
 * 0: unsupported graph. */
static int64_t list(const plan_target *on, descriptor graph_of, cudnnBackendHeurMode_t mode,
                    descriptor ret_configs[CONFIGS_MOST])
{
    graph g = {.status = HVT_OK};
    descriptor heuristic = make(&g, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    int64_t made = 0, count = 0, got = 0;

    set_descriptor(&g, heuristic, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph_of);
    set(&g, heuristic, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
    if (!on->handle)
        set_descriptor(&g, heuristic, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, on->gpu);
    finish(&g, heuristic);
    get(&g, heuristic, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, &count, NULL);
    count = count < CONFIGS_MOST ? count : CONFIGS_MOST;
    for (; g.status == HVT_OK && made < count; made += g.status == HVT_OK)
        TRY_CUDNN(&g, cudnnBackendCreateDescriptor(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, &ret_configs[made]));
    if (made > 0)
        get(&g, heuristic, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, made, &got,
            ret_configs);
    free_graph(&g);
    got = g.status != HVT_OK ? 0 : got < made ? got : made;
    while (made > got)
        hvt__nv.cudnnBackendDestroyDescriptor(ret_configs[--made]);
    return got;
}

/* ---- the plan ---- */

/* Name the configuration; true if it was requested. */
static bool is_wanted(const conv_request *w, descriptor config, bool compiled, conv_plan *p)
{
    if (!inspect(w, config, p) || p->compiled != compiled)
        return false;
    name_config(config, p);
    return !w->name || !strcmp(w->name, p->name);
}

/* Add the admissible engines of a heuristic's list, either precompiled ones or those compiled now. */
static void select_engines(const plan_target *on, const conv_request *w, descriptor graph_of,
                           cudnnBackendHeurMode_t mode, bool compiled, int most, conv_plan plans[],
                           int *count)
{
    descriptor configs[CONFIGS_MOST];
    int64_t n = list(on, graph_of, mode, configs);

    for (int64_t i = 0; i < n; i++) {
        conv_plan p = {0};

        if (*count < most && is_wanted(w, configs[i], compiled, &p) &&
            finalize(on, configs[i], w->ws_most, &p))
            plans[(*count)++] = p;
        else
            hvt__nv.cudnnBackendDestroyDescriptor(configs[i]);
    }
}

hvt_status hvt__cudnn_plan(const plan_target *on, const conv_request *w, int most, conv_plan ret_plans[],
                           int *ret_count)
{
    static const cudnnBackendHeurMode_t modes[] = {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_B,
                                                   CUDNN_HEUR_MODE_FALLBACK};
    graph g = {.status = HVT_OK};
    descriptor all = describe_pass(&g, w);

    *ret_count = 0;
    if (on->handle)
        set(&g, all, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &on->handle);
    finish(&g, all);
    for (int compiled = 0; compiled <= w->compile && g.status == HVT_OK; compiled++) {
        if (compiled && most > CUDNN_COMPILED_MOST)
            most = CUDNN_COMPILED_MOST;
        for (size_t i = 0; i < HVT_LEN(modes) && *ret_count == 0; i++)
            select_engines(on, w, all, modes[i], compiled, most, ret_plans, ret_count);
    }
    free_graph(&g);
    return g.status;
}

void hvt__cudnn_plan_free(conv_plan *p)
{
    if (p->plan)
        hvt__nv.cudnnBackendDestroyDescriptor(p->plan);
    if (p->config)
        hvt__nv.cudnnBackendDestroyDescriptor(p->config);
    *p = (conv_plan){0};
}
