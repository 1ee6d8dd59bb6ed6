/*
 * Planning one pass of a convolution with cuDNN's graph API: tensors and one operation make a graph, a
 * heuristic lists engine configurations for it, each is inspected by its notes, and an admissible one is
 * finalized into a plan.
 *
 * Every descriptor is created, given attributes and finalized. `graph` keeps the first failure and the
 * descriptors made, so that a graph is written as a list of calls and freed in one place.
 */
#include "plan_cudnn.h"
#include "cuda_impl.h"

#include <stdlib.h>
#include <string.h>

typedef cudnnBackendDescriptor_t descriptor;

enum { GRAPH_DESCRIPTORS = 8, NOTES_MOST = 32 };

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
        cudnnBackendDestroyDescriptor(g->made[--g->count]);
}

/* ---- the graph ---- */

static cudnnDataType_t data_type(hvt_dtype t)
{
    return t == HVT_F16 ? CUDNN_DATA_HALF : t == HVT_BF16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_FLOAT;
}

/* dims in cuDNN's order n, c, h, w (weights: k, c, r, s), in memory channels last */
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

static descriptor geometry(graph *g, const conv_request *w)
{
    descriptor d = make(g, CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
    int64_t dims = 2, stride[2] = {w->stride, w->stride}, pad[2] = {w->pad, w->pad}, dilation[2] = {1, 1};
    cudnnConvolutionMode_t mode = CUDNN_CROSS_CORRELATION;
    cudnnDataType_t compute = CUDNN_DATA_FLOAT;

    set(g, d, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &compute);
    set(g, d, CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1, &mode);
    set(g, d, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, 1, &dims);
    set(g, d, CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, 2, dilation);
    set(g, d, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64, 2, stride);
    set(g, d, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, 2, pad);
    set(g, d, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64, 2, pad);
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
    int64_t p = hvt__conv_out(w->h, w->r, w->stride, w->pad),
            q = hvt__conv_out(w->w, w->s, w->stride, w->pad);
    hvt_dtype tx = w->pass == CONV_BACKWARD_X ? w->out : w->type;
    hvt_dtype tw = w->pass == CONV_BACKWARD_W ? w->out : w->type;
    descriptor x = tensor(g, CUDNN_X, tx, w->n, w->c, w->h, w->w);
    descriptor filters = tensor(g, CUDNN_W, tw, w->k, w->c, w->r, w->s);
    descriptor y = tensor(g, CUDNN_Y, w->type, w->n, w->k, p, q);
    descriptor shape = geometry(g, w), op = make(g, passes[w->pass].type);
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

static hvt_status get(descriptor d, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                      int64_t most, int64_t *ret_count, void *values)
{
    return CUDNN(NULL, cudnnBackendGetAttribute(d, name, type, most, ret_count, values));
}

static bool has_note(const cudnnBackendNumericalNote_t *note, int64_t count,
                     cudnnBackendNumericalNote_t which)
{
    for (int64_t i = 0; i < count; i++)
        if (note[i] == which)
            return true;
    return false;
}

/* Read an engine's number and notes, which is possible before it is compiled. */
static hvt_status inspect(const conv_request *w, descriptor config, conv_plan *p, bool *ret_fits)
{
    cudnnBackendNumericalNote_t note[NOTES_MOST];
    cudnnBackendBehaviorNote_t behaviour[NOTES_MOST];
    descriptor engine = NULL;
    int64_t n = 0, notes = 0, behaviours = 0;
    bool strict = w->type == HVT_F32 && !w->tf32;
    hvt_status s;

    HVT_TRY(CUDNN(NULL, cudnnBackendCreateDescriptor(CUDNN_BACKEND_ENGINE_DESCRIPTOR, &engine)));
    HVT_TRY_OR(done, get(config, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &n, &engine));
    HVT_TRY_OR(done, get(engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1, &n, &p->engine));
    HVT_TRY_OR(done, get(engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE, NOTES_MOST,
                         &notes, note));
    HVT_TRY_OR(done, get(engine, CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE, CUDNN_TYPE_BEHAVIOR_NOTE, NOTES_MOST,
                         &behaviours, behaviour));
    p->deterministic = !has_note(note, notes, CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC);
    p->compiled = false;
    for (int64_t i = 0; i < behaviours; i++)
        p->compiled = p->compiled || behaviour[i] == CUDNN_BEHAVIOR_NOTE_RUNTIME_COMPILATION;
    *ret_fits = (p->deterministic || !w->deterministic) &&
                !has_note(note, notes, CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION) &&
                !has_note(note, notes, CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_13x13) &&
                !(strict && (has_note(note, notes, CUDNN_NUMERICAL_NOTE_TENSOR_CORE) ||
                             has_note(note, notes, CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS) ||
                             has_note(note, notes, CUDNN_NUMERICAL_NOTE_WINOGRAD) ||
                             has_note(note, notes, CUDNN_NUMERICAL_NOTE_FFT)));
done:
    cudnnBackendDestroyDescriptor(engine);
    return s;
}

/* Finalize a plan of this configuration. Failure is not an error: engines report only now whether they
 * support a shape, workspace and GPU. */
static bool finalize(const plan_target *on, descriptor config, size_t most, conv_plan *p)
{
    descriptor plan = NULL;
    int64_t ws = 0, n = 0;
    bool ok;

    if (cudnnBackendCreateDescriptor(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, &plan) != CUDNN_STATUS_SUCCESS)
        return false;
    ok = cudnnBackendSetAttribute(plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG,
                                  CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &config) == CUDNN_STATUS_SUCCESS &&
         (on->handle ? cudnnBackendSetAttribute(plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1,
                                                &on->handle)
                     : cudnnBackendSetAttribute(plan, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP,
                                                CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &on->gpu)) ==
             CUDNN_STATUS_SUCCESS &&
         cudnnBackendFinalize(plan) == CUDNN_STATUS_SUCCESS &&
         cudnnBackendGetAttribute(plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &n,
                                  &ws) == CUDNN_STATUS_SUCCESS &&
         ws >= 0 && (size_t)ws <= most;
    if (!ok) {
        cudnnBackendDestroyDescriptor(plan);
        return false;
    }
    p->plan = plan;
    p->config = config;
    p->ws = (size_t)ws;
    return true;
}

/* The configurations that one heuristic lists for a graph, best first; the caller destroys them. */
static hvt_status list(const plan_target *on, descriptor graph_of, cudnnBackendHeurMode_t mode,
                       descriptor **ret_configs, int64_t *ret_count)
{
    graph g = {.status = HVT_OK};
    descriptor heuristic = make(&g, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR), *configs = NULL;
    int64_t count = 0, got = 0;

    set_descriptor(&g, heuristic, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph_of);
    set(&g, heuristic, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
    if (!on->handle)
        set_descriptor(&g, heuristic, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, on->gpu);
    finish(&g, heuristic);
    if (g.status == HVT_OK)
        g.status =
            get(heuristic, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, &count, NULL);
    if (g.status == HVT_OK && count > 0) {
        configs = calloc((size_t)count, sizeof *configs);
        if (!configs)
            g.status = HVT_FAIL(E_MEM, "no memory to list %lld engines", (long long)count);
    }
    for (int64_t i = 0; i < count && configs; i++)
        TRY_CUDNN(&g, cudnnBackendCreateDescriptor(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, &configs[i]));
    if (g.status == HVT_OK && count > 0)
        g.status = get(heuristic, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, count, &got,
                       configs);
    free_graph(&g);
    if (g.status != HVT_OK) {
        for (int64_t i = 0; i < count && configs; i++)
            if (configs[i])
                cudnnBackendDestroyDescriptor(configs[i]);
        free(configs);
        return g.status;
    }
    for (int64_t i = got; i < count; i++)
        cudnnBackendDestroyDescriptor(configs[i]);
    *ret_configs = configs;
    *ret_count = got;
    return HVT_OK;
}

/* ---- the plan ---- */

hvt_status hvt__cudnn_describe(const char *json, cudnnBackendDescriptor_t *ret_gpu)
{
    graph g = {.status = HVT_OK};
    descriptor gpu = make(&g, CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);

    set(&g, gpu, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, (int64_t)strlen(json) + 1, json);
    finish(&g, gpu);
    if (g.status != HVT_OK) {
        free_graph(&g);
        return g.status;
    }
    *ret_gpu = gpu;
    return HVT_OK;
}

/* Add the admissible engines of one heuristic's list, either precompiled ones or those compiled now. */
static hvt_status select_engines(const plan_target *on, const conv_request *w, descriptor graph_of,
                                 cudnnBackendHeurMode_t mode, bool compiled, int most, conv_plan plans[],
                                 int *count)
{
    descriptor *configs = NULL;
    int64_t n = 0;

    if (list(on, graph_of, mode, &configs, &n) != HVT_OK)
        return HVT_OK; /* this heuristic does not support the graph */
    for (int64_t i = 0; i < n; i++) {
        conv_plan p = {0};
        bool fits = false;

        if (*count < most && inspect(w, configs[i], &p, &fits) != HVT_OK)
            fits = false; /* it cannot be inspected: skip it */
        if (fits && p.compiled == compiled && finalize(on, configs[i], w->ws_most, &p))
            plans[(*count)++] = p;
        else
            cudnnBackendDestroyDescriptor(configs[i]);
    }
    free(configs);
    return HVT_OK;
}

hvt_status hvt__cudnn_plan(const plan_target *on, const conv_request *w, int most, conv_plan ret_plans[],
                           int *ret_count)
{
    static const cudnnBackendHeurMode_t modes[] = {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_B,
                                                   CUDNN_HEUR_MODE_FALLBACK};
    graph g = {.status = HVT_OK};
    descriptor all = describe_pass(&g, w);
    int count = 0;

    if (on->handle)
        set(&g, all, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &on->handle);
    finish(&g, all);
    for (int compiled = 0; compiled <= w->compile && count == 0; compiled++)
        for (size_t i = 0; i < HVT_LEN(modes) && count == 0; i++)
            if (g.status == HVT_OK)
                g.status = select_engines(on, w, all, modes[i], compiled, most, ret_plans, &count);
    free_graph(&g);
    if (g.status != HVT_OK) {
        while (count > 0)
            hvt__cudnn_plan_free(&ret_plans[--count]);
        return g.status;
    }
    *ret_count = count;
    return HVT_OK;
}

void hvt__cudnn_plan_free(conv_plan *p)
{
    if (p->plan)
        cudnnBackendDestroyDescriptor(p->plan);
    if (p->config)
        cudnnBackendDestroyDescriptor(p->config);
    *p = (conv_plan){0};
}
