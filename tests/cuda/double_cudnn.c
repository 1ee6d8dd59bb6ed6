/*
 * The double of cuDNN's backend API: the checks of finalizing, engines, plans and their execution, as far as
 * conv_cudnn.c uses them. It is compiled against cudnn.h and linked in its place.
 *
 * It refuses what cuDNN refuses, with the same code: test_mistakes_cudnn.c runs one table of mistakes against
 * both. It also refuses what cuDNN's documents forbid without a check, as marked in that table, and operands
 * that overlap, lie outside of device memory or are less aligned than stated.
 *
 * The heuristics know the engines of the table below, and list one with a knob once for each of its settings.
 * They are ranked so that a caller who takes the first gets an unavailable one, and a caller who ignores the
 * notes gets one that is not deterministic, or rounds f32 to TF32, or needs more workspace than any GPU has.
 */
#include "double_conv.h"
#include "double_descriptor.h"

#include <stdlib.h>
#include <string.h>

typedef enum room { NONE, SMALL, LARGE, TOO_LARGE } room;

/* In the order of the heuristics; a global index is a place here. */
static const struct engine {
    unsigned numerical, behavior; /* bits 1 << note */
    room workspace;
    bool no_plan;  /* fails when the plan is finalized */
    bool eights;   /* 16-bit types: channels in multiples of 8 */
    bool fallback; /* the only one of CUDNN_HEUR_MODE_FALLBACK, and no other mode knows it */
    int settings;  /* of its one knob; 0: it has none */
} engines[] = {
#define BIT(note) (1u << CUDNN_##note)
    {BIT(NUMERICAL_NOTE_TENSOR_CORE), BIT(BEHAVIOR_NOTE_RUNTIME_COMPILATION), NONE, .no_plan = true},
    {BIT(NUMERICAL_NOTE_TENSOR_CORE) | BIT(NUMERICAL_NOTE_NONDETERMINISTIC), 0, SMALL},
    {BIT(NUMERICAL_NOTE_TENSOR_CORE), 0, TOO_LARGE},
    {BIT(NUMERICAL_NOTE_TENSOR_CORE), 0, LARGE, .eights = true},
    {BIT(NUMERICAL_NOTE_DOWN_CONVERT_INPUTS), 0, SMALL},
    {0, 0, SMALL, .settings = 2},
    {0, 0, NONE, .fallback = true},
};
enum { ENGINES = sizeof engines / sizeof *engines };

static int wrong_engine = -1;

void hvt_double_cudnn_wrong(int engine)
{
    wrong_engine = engine;
}

struct cudnnContext {
    cudaStream_t stream;
};
/* ---- handles ------------------------------------------------------------------------------------ */

cudnnStatus_t cudnnCreate(cudnnHandle_t *handle)
{
    int count = 0;

    ENTER("cudnnCreate");
    REQUIRE(handle, BAD_PARAM, "no place for a handle");
    REQUIRE(cudaGetDeviceCount(&count) == cudaSuccess && count, NOT_INITIALIZED, "no GPU for a handle");
    *handle = calloc(1, sizeof **handle);
    REQUIRE(*handle, INTERNAL_ERROR_HOST_ALLOCATION_FAILED, "no memory for a handle");
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnDestroy(cudnnHandle_t handle)
{
    free(handle);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream)
{
    ENTER("cudnnSetStream");
    REQUIRE(handle, BAD_PARAM, "no handle");
    handle->stream = stream;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetStream(cudnnHandle_t handle, cudaStream_t *stream)
{
    REQUIRE(handle && stream, BAD_PARAM, "no handle or no place for its stream");
    *stream = handle->stream;
    return CUDNN_STATUS_SUCCESS;
}

/* ---- finalizing --------------------------------------------------------------------------------- */

static const int64_t *list(const descriptor *d, cudnnBackendAttributeName_t name)
{
    return hvt__dnn_value(d, name)->data;
}

static bool type_of(cudnnDataType_t type, hvt_dtype *ret_type)
{
    *ret_type = type == CUDNN_DATA_HALF ? HVT_F16 : type == CUDNN_DATA_BFLOAT16 ? HVT_BF16 : HVT_F32;
    return type == CUDNN_DATA_FLOAT || *ret_type != HVT_F32;
}

/* Do two elements of the tensor share an address? Sorted by stride, each must step over all the ones below.
 */
static bool overlaps(const int64_t dim[], const int64_t stride[], int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        int64_t below = 1; /* elements from the first to the last of the dimensions with smaller strides */

        for (int64_t j = 0; j < n; j++)
            if (dim[j] > 1 && (stride[j] < stride[i] || (stride[j] == stride[i] && j < i)))
                below += (dim[j] - 1) * stride[j];
        if (dim[i] > 1 && stride[i] < below)
            return true;
    }
    return false;
}

static cudnnStatus_t finalize_tensor(const descriptor *d)
{
    const value *dims = hvt__dnn_value(d, CUDNN_ATTR_TENSOR_DIMENSIONS),
                *strides = hvt__dnn_value(d, CUDNN_ATTR_TENSOR_STRIDES);
    int64_t align = GET(int64_t, d, TENSOR_BYTE_ALIGNMENT);
    hvt_dtype type;

    REQUIRE(type_of(GET(cudnnDataType_t, d, TENSOR_DATA_TYPE), &type), NOT_SUPPORTED_DATA_TYPE,
            "the double knows f32, f16 and bf16");
    REQUIRE(dims->count == strides->count, BAD_PARAM, "%lld dimensions, %lld strides", (long long)dims->count,
            (long long)strides->count);
    REQUIRE(align > 0 && align % (type == HVT_F32 ? 4 : 2) == 0, BAD_PARAM, "alignment of %lld bytes",
            (long long)align);
    for (int64_t i = 0; i < dims->count; i++)
        REQUIRE(((int64_t *)dims->data)[i] > 0 && ((int64_t *)strides->data)[i] > 0, BAD_PARAM,
                "dimension %lld is %lld, its stride %lld", (long long)i,
                (long long)((int64_t *)dims->data)[i], (long long)((int64_t *)strides->data)[i]);
    REQUIRE(!overlaps(dims->data, strides->data, dims->count), BAD_PARAM, "elements share addresses");
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t finalize_convolution(const descriptor *d)
{
    static const cudnnBackendAttributeName_t lists[] = {
        CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES,
        CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS};
    int64_t dims = GET(int64_t, d, CONVOLUTION_SPATIAL_DIMS);

    REQUIRE(GET(cudnnConvolutionMode_t, d, CONVOLUTION_CONV_MODE) == CUDNN_CROSS_CORRELATION, NOT_SUPPORTED,
            "the double only knows cross-correlation");
    REQUIRE(GET(cudnnDataType_t, d, CONVOLUTION_COMP_TYPE) == CUDNN_DATA_FLOAT, NOT_SUPPORTED_DATA_TYPE,
            "the double computes in f32");
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        REQUIRE(hvt__dnn_value(d, lists[i])->count == dims, BAD_PARAM,
                "attribute %d has %lld elements, not %lld", (int)lists[i],
                (long long)hvt__dnn_value(d, lists[i])->count, (long long)dims);
        for (int64_t j = 0; j < dims; j++)
            REQUIRE(list(d, lists[i])[j] >= (i < 2), BAD_PARAM, "attribute %d is %lld", (int)lists[i],
                    (long long)list(d, lists[i])[j]);
    }
    return CUDNN_STATUS_SUCCESS;
}

/* The attributes of an operation: x, w, y, convolution, alpha, beta. */
static const cudnnBackendAttributeName_t *operands(const descriptor *op, double_conv_kind *ret_kind)
{
#define NAMES(at, x, w, y)                                                                                   \
    {                                                                                                        \
        CUDNN_ATTR_OPERATION_CONVOLUTION_##at##_##x, CUDNN_ATTR_OPERATION_CONVOLUTION_##at##_##w,            \
            CUDNN_ATTR_OPERATION_CONVOLUTION_##at##_##y, CUDNN_ATTR_OPERATION_CONVOLUTION_##at##_CONV_DESC,  \
            CUDNN_ATTR_OPERATION_CONVOLUTION_##at##_ALPHA, CUDNN_ATTR_OPERATION_CONVOLUTION_##at##_BETA      \
    }
    static const cudnnBackendAttributeName_t names[3][6] = {
        NAMES(FORWARD, X, W, Y), NAMES(BWD_DATA, DX, W, DY), NAMES(BWD_FILTER, X, DW, DY)};

    *ret_kind = op->type == CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR ? DOUBLE_FORWARD
                : op->type == CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR
                    ? DOUBLE_BACKWARD_X
                    : DOUBLE_BACKWARD_W;
    return names[*ret_kind];
}

static const descriptor *operand(const descriptor *op, int i)
{
    double_conv_kind kind;

    return *(descriptor **)hvt__dnn_value(op, operands(op, &kind)[i])->data;
}

static int64_t *dims(const descriptor *tensor)
{
    return hvt__dnn_value(tensor, CUDNN_ATTR_TENSOR_DIMENSIONS)->data;
}

static cudnnStatus_t finalize_operation(const descriptor *d)
{
    const descriptor *conv = operand(d, 3);
    const int64_t *x, *w, *y;

    for (int i = 0; i < 3; i++) {
        const value *is_virtual = hvt__dnn_value(operand(d, i), CUDNN_ATTR_TENSOR_IS_VIRTUAL);

        REQUIRE(hvt__dnn_value(operand(d, i), CUDNN_ATTR_TENSOR_DIMENSIONS)->count == 4, BAD_PARAM,
                "an operand has no 4 dimensions");
        REQUIRE(!is_virtual || !*(bool *)is_virtual->data, NOT_SUPPORTED_GRAPH_PATTERN,
                "the double has no engine for a virtual tensor");
        for (int j = 0; j < i; j++)
            REQUIRE(GET(int64_t, operand(d, i), TENSOR_UNIQUE_ID) !=
                        GET(int64_t, operand(d, j), TENSOR_UNIQUE_ID),
                    BAD_PARAM_DUPLICATED_ENTRIES, "two operands have one unique id");
    }
    REQUIRE(GET(int64_t, conv, CONVOLUTION_SPATIAL_DIMS) == 2, BAD_PARAM,
            "operands have 2 spatial dimensions");
    x = dims(operand(d, 0));
    w = dims(operand(d, 1));
    y = dims(operand(d, 2));
    REQUIRE(x[0] == y[0] && x[1] % w[1] == 0 && w[0] % (x[1] / w[1]) == 0 && w[0] == y[1], BAD_PARAM,
            "%lld images of %lld channels become %lld of %lld by %lld filters of %lld", (long long)x[0],
            (long long)x[1], (long long)y[0], (long long)y[1], (long long)w[0], (long long)w[1]);
    for (int i = 0; i < 2; i++) {
        int64_t all = x[2 + i] + list(conv, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS)[i] +
                      list(conv, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS)[i];
        int64_t window = (w[2 + i] - 1) * list(conv, CUDNN_ATTR_CONVOLUTION_DILATIONS)[i] + 1;
        int64_t stride = list(conv, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES)[i];

        REQUIRE(window <= all && y[2 + i] == (all - window) / stride + 1, BAD_PARAM,
                "a window of %lld at stride %lld on %lld pixels gives not %lld", (long long)window,
                (long long)stride, (long long)all, (long long)y[2 + i]);
    }
    return CUDNN_STATUS_SUCCESS;
}

/* The operation under an object that leads to one: graph, heuristics, engine, configuration, plan. */
static const descriptor *operation_of(const descriptor *d)
{
    static const cudnnBackendAttributeName_t down[] = {
        CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, CUDNN_ATTR_ENGINECFG_ENGINE,
        CUDNN_ATTR_ENGINE_OPERATION_GRAPH, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH,
        CUDNN_ATTR_OPERATIONGRAPH_OPS};

    while (!hvt__dnn_is_operation(d)) {
        const value *v = NULL;

        for (size_t i = 0; !v && i < sizeof down / sizeof *down; i++)
            v = hvt__dnn_value(d, down[i]);
        d = *(descriptor **)v->data;
    }
    return d;
}

static cudnnDataType_t operand_type(const descriptor *op, int i)
{
    return GET(cudnnDataType_t, operand(op, i), TENSOR_DATA_TYPE);
}

/* No engine of any GPU mixes the types of operands. */
static bool has_engines(const descriptor *op)
{
    return operand_type(op, 0) == operand_type(op, 1) && operand_type(op, 0) == operand_type(op, 2);
}

static const struct engine *engine_of(const descriptor *plan)
{
    const descriptor *config = GET(descriptor *, plan, EXECUTION_PLAN_ENGINE_CONFIG);

    return &engines[GET(int64_t, GET(descriptor *, config, ENGINECFG_ENGINE), ENGINE_GLOBAL_INDEX)];
}

static cudnnStatus_t finalize_heuristics(const descriptor *d)
{
    cudnnBackendHeurMode_t mode = GET(cudnnBackendHeurMode_t, d, ENGINEHEUR_MODE);

    REQUIRE(mode >= CUDNN_HEUR_MODE_INSTANT && mode < CUDNN_HEUR_MODES_COUNT, BAD_PARAM,
            "heuristics of mode %d", (int)mode);
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t finalize_engine(const descriptor *d)
{
    int64_t index = GET(int64_t, d, ENGINE_GLOBAL_INDEX);

    REQUIRE(index >= 0 && index < ENGINES, NOT_SUPPORTED, "engine %lld is not one of %d", (long long)index,
            (int)ENGINES);
    REQUIRE(has_engines(operation_of(d)), NOT_SUPPORTED_DATA_TYPE, "no engine mixes types");
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t finalize_plan(const descriptor *d)
{
    const struct engine *e = engine_of(d);
    const int64_t *w = dims(operand(operation_of(d), 1));

    REQUIRE(hvt__dnn_value(d, CUDNN_ATTR_EXECUTION_PLAN_HANDLE) ||
                hvt__dnn_value(d, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP),
            BAD_PARAM, "a plan is for a handle's GPU, or for one that is described");
    REQUIRE(!e->no_plan, NOT_SUPPORTED_RUNTIME_PREREQUISITE_MISSING, "this engine is compiled at run time");
    REQUIRE(!e->eights || operand_type(operation_of(d), 0) == CUDNN_DATA_FLOAT || (w[0] | w[1]) % 8 == 0,
            NOT_SUPPORTED_SHAPE, "this engine takes channels in multiples of 8, not %lld and %lld",
            (long long)w[1], (long long)w[0]);
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t finalize_pack(const descriptor *d)
{
    const value *ids = hvt__dnn_value(d, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
    const value *pointers = hvt__dnn_value(d, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
    const int64_t *id = ids->data;

    REQUIRE(ids->count == pointers->count, BAD_PARAM, "%lld unique ids, %lld pointers", (long long)ids->count,
            (long long)pointers->count);
    for (int64_t i = 0; i < ids->count; i++)
        for (int64_t j = 0; j < i; j++)
            REQUIRE(id[i] != id[j], BAD_PARAM_DUPLICATED_ENTRIES, "unique id %lld is given twice",
                    (long long)id[i]);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor_)
{
    descriptor *d = descriptor_;

    ENTER("cudnnBackendFinalize");
    REQUIRE(d, BAD_PARAM_NULL_POINTER, "no descriptor");
    REQUIRE(!d->gone && !d->final, BAD_PARAM, "a descriptor is finalized once");
    TRY(hvt__dnn_complete(d));
    if (d->type == CUDNN_BACKEND_TENSOR_DESCRIPTOR)
        TRY(finalize_tensor(d));
    else if (d->type == CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR)
        TRY(finalize_convolution(d));
    else if (hvt__dnn_is_operation(d))
        TRY(finalize_operation(d));
    else if (d->type == CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR)
        TRY(finalize_heuristics(d));
    else if (d->type == CUDNN_BACKEND_ENGINE_DESCRIPTOR)
        TRY(finalize_engine(d));
    else if (d->type == CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR)
        TRY(finalize_plan(d));
    else if (d->type == CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR)
        TRY(finalize_pack(d));
    d->final = true;
    return CUDNN_STATUS_SUCCESS;
}

/* ---- asking ------------------------------------------------------------------------------------- */

static int64_t workspace_of(const descriptor *plan)
{
    const int64_t *x = dims(operand(operation_of(plan), 0));

    switch (engine_of(plan)->workspace) {
    case SMALL:
        return 4096;
    case LARGE:
        return 4 * x[0] * x[1] * x[2] * x[3];
    case TOO_LARGE:
        return (int64_t)1 << 45;
    default:
        return 0;
    }
}

/* The k-th engine that heuristics of this mode name; -1: there are no more. */
static int64_t ranked(const descriptor *heuristics, int64_t k, int64_t *ret_setting)
{
    bool fallback = GET(cudnnBackendHeurMode_t, heuristics, ENGINEHEUR_MODE) == CUDNN_HEUR_MODE_FALLBACK;

    for (int i = 0; has_engines(operation_of(heuristics)) && i < ENGINES; i++)
        for (*ret_setting = 0; *ret_setting < engines[i].settings + !engines[i].settings; ++*ret_setting)
            if (engines[i].fallback == fallback && k-- == 0)
                return i;
    return -1;
}

/* Add the choice of an engine's one knob to its configuration. */
static cudnnStatus_t turn_knob(descriptor *config, int64_t setting)
{
    cudnnBackendKnobType_t type = CUDNN_KNOB_TYPE_TILE_SIZE;
    descriptor *k = calloc(1, sizeof *k);

    REQUIRE(k, INTERNAL_ERROR_HOST_ALLOCATION_FAILED, "no memory for a knob");
    *k = (descriptor){.type = CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR, .final = true, .gone = true};
    TRY(hvt__dnn_keep(k, hvt__dnn_rule(k, CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE), 1, &type));
    TRY(hvt__dnn_keep(k, hvt__dnn_rule(k, CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE), 1, &setting));
    return hvt__dnn_keep(config, hvt__dnn_rule(config, CUDNN_ATTR_ENGINECFG_KNOB_CHOICES), 1, &k);
}

/* Make the caller's new descriptor the configuration of this engine for the heuristics' graph. */
static cudnnStatus_t configure(const descriptor *heuristics, int64_t index, int64_t setting,
                               descriptor *config)
{
    const descriptor *graph = GET(descriptor *, heuristics, ENGINEHEUR_OPERATION_GRAPH);
    descriptor engine = {.type = CUDNN_BACKEND_ENGINE_DESCRIPTOR};
    descriptor *e = calloc(1, sizeof *e);

    REQUIRE(e, INTERNAL_ERROR_HOST_ALLOCATION_FAILED, "no memory for an engine");
    *e = engine;
    e->final = e->gone = true; /* the configuration is its only owner */
    TRY(hvt__dnn_keep(e, hvt__dnn_rule(e, CUDNN_ATTR_ENGINE_OPERATION_GRAPH), 1, &graph));
    TRY(hvt__dnn_keep(e, hvt__dnn_rule(e, CUDNN_ATTR_ENGINE_GLOBAL_INDEX), 1, &index));
    TRY(hvt__dnn_keep(config, hvt__dnn_rule(config, CUDNN_ATTR_ENGINECFG_ENGINE), 1, &e));
    if (engines[index].settings)
        TRY(turn_knob(config, setting));
    config->final = true;
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t get_results(const descriptor *d, int64_t most, int64_t *ret_count, descriptor **into)
{
    int64_t n = 0, setting;

    if (!into) { /* how many are there? */
        while (ranked(d, n, &setting) >= 0)
            n++;
        *ret_count = n;
        return CUDNN_STATUS_SUCCESS;
    }
    for (; n < most && ranked(d, n, &setting) >= 0 && into[n] && !into[n]->final; n++) {
        int64_t index = ranked(d, n, &setting);

        REQUIRE(into[n]->type == CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, BAD_PARAM,
                "results are engine configurations");
        TRY(configure(d, index, setting, into[n]));
    }
    *ret_count = n;
    return CUDNN_STATUS_SUCCESS;
}

static void get_notes(unsigned bits, int64_t most, int64_t *ret_count, int *into)
{
    *ret_count = 0;
    for (int note = 0; bits >> note; note++)
        if (bits >> note & 1) {
            if (*ret_count < most && into)
                into[*ret_count] = note;
            ++*ret_count;
        }
}

/* An attribute that was set. A descriptor is handed over by filling the caller's new one with the same. */
static cudnnStatus_t get_value(const value *v, int64_t most, int64_t *ret_count, void *into)
{
    const descriptor *from;
    descriptor *to;

    *ret_count = v->count;
    if (!most || !into)
        return CUDNN_STATUS_SUCCESS;
    if (v->rule->type != CUDNN_TYPE_BACKEND_DESCRIPTOR) {
        memcpy(into, v->data, (size_t)(most < v->count ? most : v->count) * hvt__dnn_element(v->rule->type));
        return CUDNN_STATUS_SUCCESS;
    }
    from = *(descriptor **)v->data;
    to = *(descriptor **)into;
    REQUIRE(to && !to->gone && !to->final && to->type == from->type, BAD_PARAM,
            "attribute %d is written to a new descriptor of type %d", (int)v->rule->name, (int)from->type);
    for (const value *i = from->values; i; i = i->next)
        TRY(hvt__dnn_keep(to, i->rule, i->count, i->data));
    to->final = true;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t const descriptor_,
                                       cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                                       int64_t most, int64_t *ret_count, void *into)
{
    const descriptor *d = descriptor_;
    int64_t count, *ret = ret_count ? ret_count : &count;
    const rule *r;

    ENTER("cudnnBackendGetAttribute");
    REQUIRE(d && !d->gone && most >= 0, BAD_PARAM, "no descriptor, or room for less than nothing");
    REQUIRE(d->final, NOT_INITIALIZED, "attribute %d of a descriptor that is not finalized", (int)name);
    r = hvt__dnn_rule(d, name);
    REQUIRE(r, BAD_PARAM, "a descriptor of type %d has no attribute %d", (int)d->type, (int)name);
    REQUIRE(r->type == type, BAD_PARAM_ATTRIBUTE_TYPE, "attribute %d has type %d, not %d", (int)name,
            (int)r->type, (int)type);
    switch (name) {
    case CUDNN_ATTR_ENGINEHEUR_RESULTS:
        return get_results(d, most, ret, into);
    case CUDNN_ATTR_ENGINE_NUMERICAL_NOTE:
        get_notes(engines[GET(int64_t, d, ENGINE_GLOBAL_INDEX)].numerical, most, ret, into);
        return CUDNN_STATUS_SUCCESS;
    case CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE:
        get_notes(engines[GET(int64_t, d, ENGINE_GLOBAL_INDEX)].behavior, most, ret, into);
        return CUDNN_STATUS_SUCCESS;
    case CUDNN_ATTR_OPERATIONGRAPH_ENGINE_GLOBAL_COUNT:
        REQUIRE(most >= 1 && into, BAD_PARAM, "no place for attribute %d", (int)name);
        *ret = 1;
        *(int64_t *)into = ENGINES;
        return CUDNN_STATUS_SUCCESS;
    case CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE:
        REQUIRE(most >= 1 && into, BAD_PARAM, "no place for attribute %d", (int)name);
        *ret = 1;
        *(int64_t *)into = workspace_of(d);
        return CUDNN_STATUS_SUCCESS;
    default:
        REQUIRE(hvt__dnn_value(d, name), BAD_PARAM, "attribute %d was not set", (int)name);
        return get_value(hvt__dnn_value(d, name), most, ret, into);
    }
}

/* ---- running ------------------------------------------------------------------------------------ */

/* Operand i of the plan's operation with the pointer that the pack has for it. */
static cudnnStatus_t bind(const descriptor *op, int i, const descriptor *pack, double_tensor *t)
{
    const descriptor *d = operand(op, i);
    const value *ids = hvt__dnn_value(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
    int64_t id = GET(int64_t, d, TENSOR_UNIQUE_ID), align = GET(int64_t, d, TENSOR_BYTE_ALIGNMENT);

    type_of(GET(cudnnDataType_t, d, TENSOR_DATA_TYPE), &t->type);
    memcpy(t->dim, dims(d), sizeof t->dim);
    memcpy(t->stride, list(d, CUDNN_ATTR_TENSOR_STRIDES), sizeof t->stride);
    for (int64_t j = 0; j < ids->count; j++)
        if (((int64_t *)ids->data)[j] == id)
            t->data = ((void **)hvt__dnn_value(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS)->data)[j];
    REQUIRE(t->data, BAD_PARAM_NULL_POINTER, "the variant pack has no pointer for tensor %lld",
            (long long)id);
    REQUIRE((uintptr_t)t->data % (uintptr_t)align == 0, BAD_PARAM_MISALIGNED_POINTER,
            "tensor %lld at %p is not aligned to the %lld bytes that were promised", (long long)id, t->data,
            (long long)align);
    return CUDNN_STATUS_SUCCESS;
}

static bool apart(const void *a, size_t a_bytes, const void *b, size_t b_bytes)
{
    return (const char *)a + a_bytes <= (const char *)b || (const char *)b + b_bytes <= (const char *)a;
}

/* What a GPU does not check, but computes wrongly or dies of. */
static bool is_sound(const double_conv *j)
{
    const double_tensor *const t[] = {&j->x, &j->w, &j->y};
    const double_tensor *out = t[j->kind == DOUBLE_FORWARD ? 2 : j->kind == DOUBLE_BACKWARD_X ? 0 : 1];
    bool sound = true;

    for (int i = 0; i < 3; i++) {
        size_t bytes = hvt__double_tensor_bytes(t[i]);

        sound = sound && hvt_double_need_device("cudnnBackendExecute", t[i]->data, bytes);
        if (sound && ((t[i] != out && !apart(out->data, hvt__double_tensor_bytes(out), t[i]->data, bytes)) ||
                      !apart(j->workspace, j->workspace_bytes, t[i]->data, bytes))) {
            hvt_double_fault("cudnnBackendExecute: operand %d overlaps the output or the workspace", i);
            sound = false;
        }
    }
    return sound && (!j->workspace_bytes || hvt_double_need_device("cudnnBackendExecute: workspace",
                                                                   j->workspace, j->workspace_bytes));
}

/* What the wrong engine does: nothing that was asked for, in no time. */
static void zero_output(void *ctx)
{
    const double_conv *j = ctx;
    const double_tensor *out = j->kind == DOUBLE_FORWARD      ? &j->y
                               : j->kind == DOUBLE_BACKWARD_X ? &j->x
                                                              : &j->w;

    memset(out->data, 0, hvt__double_tensor_bytes(out));
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan_,
                                  cudnnBackendDescriptor_t pack_)
{
    const descriptor *plan = plan_, *pack = pack_, *op, *conv;
    const cudnnBackendAttributeName_t *names;
    double_conv job = {0}, *queued;

    ENTER("cudnnBackendExecute");
    REQUIRE(handle && plan && pack, BAD_PARAM, "no handle, plan or variant pack");
    REQUIRE(!plan->gone && plan->final && plan->type == CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR &&
                !pack->gone && pack->final && pack->type == CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR,
            BAD_PARAM_NOT_FINALIZED, "a plan and a variant pack that are finalized are executed");
    op = operation_of(plan);
    conv = operand(op, 3);
    names = operands(op, &job.kind);
    TRY(bind(op, 0, pack, &job.x));
    TRY(bind(op, 1, pack, &job.w));
    TRY(bind(op, 2, pack, &job.y));
    memcpy(job.stride, list(conv, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES), sizeof job.stride);
    memcpy(job.pad, list(conv, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS), sizeof job.pad);
    memcpy(job.dilation, list(conv, CUDNN_ATTR_CONVOLUTION_DILATIONS), sizeof job.dilation);
    job.alpha = *(float *)hvt__dnn_value(op, names[4])->data;
    job.beta = *(float *)hvt__dnn_value(op, names[5])->data;
    job.tf32 = engine_of(plan)->numerical &
               (BIT(NUMERICAL_NOTE_TENSOR_CORE) | BIT(NUMERICAL_NOTE_DOWN_CONVERT_INPUTS));
    job.unsteady = engine_of(plan)->numerical & BIT(NUMERICAL_NOTE_NONDETERMINISTIC);
    job.workspace = GET(void *, pack, VARIANT_PACK_WORKSPACE);
    job.workspace_bytes = (size_t)workspace_of(plan);
    REQUIRE(job.workspace || !job.workspace_bytes, BAD_PARAM_NULL_POINTER, "no workspace of %zu bytes",
            job.workspace_bytes);
    if (!is_sound(&job))
        return CUDNN_STATUS_SUCCESS; /* the fault shows at the next call of the runtime */
    queued = malloc(sizeof *queued);
    REQUIRE(queued, INTERNAL_ERROR_HOST_ALLOCATION_FAILED, "no memory for a launch");
    *queued = job;
    hvt_double_launch(handle->stream,
                      engine_of(plan) == engines + wrong_engine ? zero_output : hvt__double_conv_run, queued,
                      free);
    return CUDNN_STATUS_SUCCESS;
}
