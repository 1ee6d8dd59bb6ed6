/*
 * What cuDNN refuses: each mistake is made once, in a convolution that is otherwise valid, from its tensors
 * to its plan. cuDNN does all of that without a GPU for a described one (tests/cuda/sm_90.json), so the whole
 * table is run against it, too.
 *
 * Sources are sections of "cudnn_graph Library" in NVIDIA's cuDNN backend documentation, by their headings.
 */
#include "mistakes.h"

#include <cudnn.h>

#ifdef HVT_REAL
#define CALLS(X)                                                                                             \
    X(cudnnBackendCreateDescriptor)                                                                          \
    X(cudnnBackendDestroyDescriptor)                                                                         \
    X(cudnnBackendSetAttribute)                                                                              \
    X(cudnnBackendGetAttribute)                                                                              \
    X(cudnnBackendFinalize)                                                                                  \
    X(cudnnBackendExecute) X(cudnnGetVersion) X(cudnnCreate) X(cudnnSetStream) X(cudnnGetStream)
#define X(name) static __typeof__(name) *real_##name;
CALLS(X)
#undef X
#define cudnnBackendCreateDescriptor  real_cudnnBackendCreateDescriptor
#define cudnnBackendDestroyDescriptor real_cudnnBackendDestroyDescriptor
#define cudnnBackendSetAttribute      real_cudnnBackendSetAttribute
#define cudnnBackendGetAttribute      real_cudnnBackendGetAttribute
#define cudnnBackendFinalize          real_cudnnBackendFinalize
#define cudnnBackendExecute           real_cudnnBackendExecute
#define cudnnGetVersion               real_cudnnGetVersion
#define cudnnCreate                   real_cudnnCreate
#define cudnnSetStream                real_cudnnSetStream
#define cudnnGetStream                real_cudnnGetStream
#endif

typedef cudnnBackendDescriptor_t descriptor;
typedef cudnnBackendAttributeName_t attribute;

/* ---- one convolution with one mistake ----------------------------------------------------------- */

typedef enum object { X, W, Y, CONV, OP, GRAPH, PROP, HEUR, ENGINE, CONFIG, PLAN, PACK } object;

/* Attribute `name` of one object is told otherwise: another type, count or value, not at all, or besides.
 * Names of operations are those of the forward one. */
typedef struct mistake {
    const char *what, *source;
    cudnnStatus_t code;
    asked asked;
    object on;
    attribute name;
    enum { LEAVE_OUT = 1, TYPE, COUNT, VALUE, ADD } how;
    cudnnBackendAttributeType_t type;
    int64_t count, value[4];
    cudnnStatus_t also; /* cuDNN's in another of the three operations */
} mistake;

enum { KINDS = 3, MOST_CONFIGS = 32 };
static const cudnnBackendDescriptorType_t operations[KINDS] = {
    CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
    CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
    CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR};
enum { NAMES = 6 };
#define NAMES_OF(at, x, w, y)                                                                                \
    {                                                                                                        \
        CUDNN_ATTR_OPERATION_CONVOLUTION_##at##_##x, CUDNN_ATTR_OPERATION_CONVOLUTION_##at##_##w,            \
            CUDNN_ATTR_OPERATION_CONVOLUTION_##at##_##y, CUDNN_ATTR_OPERATION_CONVOLUTION_##at##_CONV_DESC,  \
            CUDNN_ATTR_OPERATION_CONVOLUTION_##at##_ALPHA, CUDNN_ATTR_OPERATION_CONVOLUTION_##at##_BETA      \
    }
static const attribute names[KINDS][NAMES] = {NAMES_OF(FORWARD, X, W, Y), NAMES_OF(BWD_DATA, DX, W, DY),
                                              NAMES_OF(BWD_FILTER, X, DW, DY)};

static const mistake *now; /* NULL: none */
static int kind;
static cudnnDataType_t io = CUDNN_DATA_HALF;
static char *gpu; /* its description */
static descriptor made[128];
static int nmade;
static cudnnStatus_t status; /* the first that is no success */

static void note(cudnnStatus_t s)
{
    if (status == CUDNN_STATUS_SUCCESS)
        status = s;
}

static descriptor make(cudnnBackendDescriptorType_t type)
{
    descriptor d = NULL;

    note(cudnnBackendCreateDescriptor(type, &d));
    return made[nmade++] = d;
}

static void destroy_all(void)
{
    while (nmade)
        if (made[--nmade])
            cudnnBackendDestroyDescriptor(made[nmade]);
}

static attribute of_kind(attribute forward)
{
    for (int i = 0; i < NAMES; i++)
        if (names[0][i] == forward)
            return names[kind][i];
    return forward;
}

static void set(object on, descriptor d, attribute name, cudnnBackendAttributeType_t type, int64_t count,
                const void *value)
{
    if (status != CUDNN_STATUS_SUCCESS)
        return;
    if (now && now->on == on && of_kind(now->name) == name) {
        if (now->how == LEAVE_OUT)
            return;
        if (now->how == TYPE)
            type = now->type;
        if (now->how == COUNT || now->how == VALUE)
            count = now->count;
        if (now->how == VALUE)
            value = now->value;
    }
    note(cudnnBackendSetAttribute(d, name, type, count, value));
}

static descriptor finish(object on, descriptor d)
{
    if (status == CUDNN_STATUS_SUCCESS && now && now->on == on && now->how == ADD)
        note(cudnnBackendSetAttribute(d, of_kind(now->name), now->type, now->count, now->value));
    if (status == CUDNN_STATUS_SUCCESS)
        note(cudnnBackendFinalize(d));
    return d;
}

static descriptor tensor(object on, int64_t n, int64_t c, int64_t h, int64_t w)
{
    descriptor d = make(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    /* longer than what is told, for counts that are too high */
    int64_t dim[16] = {n, c, h, w}, stride[16] = {c * h * w, 1, c * w, c}, uid[4] = {on + 1}, align[4] = {16};
    cudnnDataType_t type[2] = {io, io};

    set(on, d, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, type);
    set(on, d, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, dim);
    set(on, d, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, stride);
    set(on, d, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, uid);
    set(on, d, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, align);
    return finish(on, d);
}

static descriptor convolution(void)
{
    descriptor d = make(CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
    int64_t dims[4] = {2}, ones[8] = {1, 1, 1, 1, 1, 1, 1, 1};
    cudnnConvolutionMode_t mode[2] = {CUDNN_CROSS_CORRELATION, CUDNN_CROSS_CORRELATION};
    cudnnDataType_t type[2] = {CUDNN_DATA_FLOAT, CUDNN_DATA_FLOAT};

    set(CONV, d, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, type);
    set(CONV, d, CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1, mode);
    set(CONV, d, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, 1, dims);
    set(CONV, d, CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, 2, ones);
    set(CONV, d, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64, 2, ones);
    set(CONV, d, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, 2, ones);
    set(CONV, d, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64, 2, ones);
    return finish(CONV, d);
}

static descriptor operation(void)
{
    descriptor x = tensor(X, 2, 8, 6, 6), w = tensor(W, 16, 8, 3, 3), y = tensor(Y, 2, 16, 6, 6);
    descriptor part[NAMES] = {x, w, y, convolution()}, d = make(operations[kind]);
    float factor[4] = {1, 0};

    for (int i = 0; i < 4; i++) {
        descriptor twice[2] = {part[i], part[i]};

        set(OP, d, names[kind][i], CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, twice);
    }
    set(OP, d, names[kind][4], CUDNN_TYPE_FLOAT, 1, &factor[0]);
    set(OP, d, names[kind][5], CUDNN_TYPE_FLOAT, 1, &factor[1]);
    return finish(OP, d);
}

static descriptor link(object on, cudnnBackendDescriptorType_t type, attribute name, descriptor to)
{
    descriptor d = make(type), twice[2] = {to, to};

    set(on, d, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, twice);
    return d;
}

/* The chain from an operation to a plan; ask: by the heuristics, else by an engine's number. */
static descriptor plan(bool ask)
{
    descriptor op = operation(), graph, prop, d, config[MOST_CONFIGS] = {NULL};
    cudnnBackendHeurMode_t mode[2] = {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_A};
    int64_t index[4] = {0}, count = 0;

    graph = finish(GRAPH,
                   link(GRAPH, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, CUDNN_ATTR_OPERATIONGRAPH_OPS, op));
    prop = make(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
    set(PROP, prop, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, (int64_t)strlen(gpu) + 1,
        gpu);
    finish(PROP, prop);
    d = link(HEUR, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
    set(HEUR, d, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, mode);
    set(HEUR, d, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &prop);
    finish(HEUR, d);
    for (int i = 0; i < MOST_CONFIGS; i++)
        config[i] = make(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    if (status == CUDNN_STATUS_SUCCESS)
        note(cudnnBackendGetAttribute(d, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                                      MOST_CONFIGS, &count, config));
    if (!ask && status == CUDNN_STATUS_SUCCESS) {
        descriptor engine = make(CUDNN_BACKEND_ENGINE_DESCRIPTOR);

        /* the number of one that is there */
        note(cudnnBackendGetAttribute(config[count - 1], CUDNN_ATTR_ENGINECFG_ENGINE,
                                      CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, NULL, &engine));
        note(cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1, NULL,
                                      index));
        d = link(ENGINE, CUDNN_BACKEND_ENGINE_DESCRIPTOR, CUDNN_ATTR_ENGINE_OPERATION_GRAPH, graph);
        set(ENGINE, d, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1, index);
        set(ENGINE, d, CUDNN_ATTR_ENGINE_DEVICEPROP, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &prop);
        finish(ENGINE, d);
        config[0] =
            finish(CONFIG, link(CONFIG, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, CUDNN_ATTR_ENGINECFG_ENGINE, d));
        count = 1;
    }
    for (int i = 0; i < count; i++) { /* some engines need what is not here, and say so */
        cudnnStatus_t s;

        d = link(PLAN, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG,
                 config[i]);
        set(PLAN, d, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &prop);
        if (status == CUDNN_STATUS_SUCCESS && now && now->on == PLAN && now->how == ADD)
            note(cudnnBackendSetAttribute(d, now->name, now->type, now->count, now->value));
        s = status == CUDNN_STATUS_SUCCESS ? cudnnBackendFinalize(d) : status;
        if (CUDNN_STATUS_CATEGORY(s) != CUDNN_STATUS_NOT_SUPPORTED || i + 1 == count) {
            note(s);
            return d;
        }
    }
    return NULL;
}

static descriptor pack(void *x, void *w, void *y, void *workspace)
{
    descriptor d = make(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
    int64_t uid[3] = {X + 1, W + 1, Y + 1};
    void *pointer[3] = {x, w, y};

    set(PACK, d, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, 3, uid);
    set(PACK, d, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, 3, pointer);
    set(PACK, d, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace);
    return finish(PACK, d);
}

static cudnnStatus_t make_it(const mistake *m)
{
    static char memory[64];

    now = m;
    status = CUDNN_STATUS_SUCCESS;
    if (m && m->on == PACK)
        pack(memory, memory + 16, memory + 32, NULL);
    else
        plan(!m || (m->on != ENGINE && m->on != CONFIG));
    destroy_all();
    now = NULL;
    return status;
}

/* ---- the table ---------------------------------------------------------------------------------- */

#define BAD         CUDNN_STATUS_BAD_PARAM
#define NOT         CUDNN_STATUS_NOT_SUPPORTED
#define BAD_TYPE    CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE
#define SETS        "cudnnBackendSetAttribute(): "
#define TENSOR(a)   X, CUDNN_ATTR_TENSOR_##a
#define FILTER(a)   W, CUDNN_ATTR_TENSOR_##a
#define RESULT(a)   Y, CUDNN_ATTR_TENSOR_##a
#define CONVOL(a)   CONV, CUDNN_ATTR_CONVOLUTION_##a
#define FORWARD(a)  OP, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_##a
#define GRAPH_OF(a) GRAPH, CUDNN_ATTR_OPERATIONGRAPH_##a
#define HEURIST(a)  HEUR, CUDNN_ATTR_ENGINEHEUR_##a
#define ENGINE_(a)  ENGINE, CUDNN_ATTR_ENGINE_##a
#define CONFIG_(a)  CONFIG, CUDNN_ATTR_ENGINECFG_##a
#define PLAN_(a)    PLAN, CUDNN_ATTR_EXECUTION_PLAN_##a
#define VARIANT(a)  PACK, CUDNN_ATTR_VARIANT_PACK_##a
#define T_NEEDS     "TENSOR_DESCRIPTOR, Attributes: required"
#define T_VALUE     "TENSOR_DESCRIPTOR, Finalization: invalid value"
#define C_NEEDS     "CONVOLUTION_DESCRIPTOR, Attributes: required"
#define C_VALUE     "CONVOLUTION_DESCRIPTOR, Finalization"
#define O_NEEDS     "OPERATION_CONVOLUTION_*, Attributes: required"
#define O_VALUE     "OPERATION_CONVOLUTION_*, Finalization: shapes"
#define P_NEEDS     "VARIANT_PACK_DESCRIPTOR, Attributes"
/* clang-format off: one mistake a line */
static const mistake mistakes[] = {
    {"a tensor without type", T_NEEDS, BAD, UNCHECKED, TENSOR(DATA_TYPE), LEAVE_OUT},
    {"without dimensions", T_NEEDS, BAD, ANYWHERE, TENSOR(DIMENSIONS), LEAVE_OUT},
    {"without strides", T_NEEDS, BAD, ANYWHERE, TENSOR(STRIDES), LEAVE_OUT},
    {"without unique id", T_NEEDS, BAD, UNCHECKED, TENSOR(UNIQUE_ID), LEAVE_OUT},
    {"without alignment", T_NEEDS, BAD, ANYWHERE, TENSOR(BYTE_ALIGNMENT), LEAVE_OUT},
    {"3 strides for 4 dimensions", T_VALUE, BAD, ANYWHERE, TENSOR(STRIDES), COUNT, .count = 3},
    {"more than CUDNN_MAX_DIMS dimensions", SETS "elementCount", BAD, ANYWHERE, TENSOR(DIMENSIONS), COUNT,
     .count = 9},
    {"no dimension", SETS "elementCount", BAD, ANYWHERE, TENSOR(DIMENSIONS), COUNT, .count = 0},
    {"2 types", SETS "elementCount", BAD, ANYWHERE, TENSOR(DATA_TYPE), COUNT, .count = 2},
    {"2 unique ids", SETS "elementCount", BAD, ANYWHERE, TENSOR(UNIQUE_ID), COUNT, .count = 2},
    {"2 alignments", SETS "elementCount", BAD, ANYWHERE, TENSOR(BYTE_ALIGNMENT), COUNT, .count = 2},
    {"the type as int64", SETS "attributeType", BAD_TYPE, ANYWHERE, TENSOR(DATA_TYPE), TYPE,
     CUDNN_TYPE_INT64},
    {"dimensions as int32", SETS "attributeType", BAD_TYPE, ANYWHERE, TENSOR(DIMENSIONS), TYPE,
     CUDNN_TYPE_INT32},
    {"strides as int32", SETS "attributeType", BAD_TYPE, ANYWHERE, TENSOR(STRIDES), TYPE, CUDNN_TYPE_INT32},
    {"a unique id as pointer", SETS "attributeType", BAD_TYPE, ANYWHERE, TENSOR(UNIQUE_ID), TYPE,
     CUDNN_TYPE_VOID_PTR},
    {"virtual as int64",
     SETS "attributeType",
     BAD_TYPE,
     ANYWHERE,
     TENSOR(IS_VIRTUAL),
     ADD,
     CUDNN_TYPE_INT64,
     1,
     {0}},
    {"a convolution's attribute in a tensor",
     SETS "attributeName",
     BAD,
     ANYWHERE,
     X,
     CUDNN_ATTR_CONVOLUTION_COMP_TYPE,
     ADD,
     CUDNN_TYPE_DATA_TYPE,
     1,
     {0}},
    {"a dimension of 0", T_VALUE, BAD, ANYWHERE, TENSOR(DIMENSIONS), VALUE, .count = 4,
     .value = {0, 8, 6, 6}},
    {"a dimension of -2", T_VALUE, BAD, ANYWHERE, TENSOR(DIMENSIONS), VALUE, .count = 4,
     .value = {-2, 8, 6, 6}},
    {"a stride of 0", T_VALUE, BAD, UNCHECKED, TENSOR(STRIDES), VALUE, .count = 4, .value = {0, 1, 48, 8}},
    {"a stride of -1", T_VALUE, BAD, ANYWHERE, TENSOR(STRIDES), VALUE, .count = 4, .value = {288, -1, 48, 8}},
    {"images that overlap", T_VALUE, BAD, ANYWHERE, TENSOR(STRIDES), VALUE, .count = 4,
     .value = {287, 1, 48, 8}},
    {"an alignment of 0", T_VALUE, BAD, ANYWHERE, TENSOR(BYTE_ALIGNMENT), VALUE, .count = 1, .value = {0}},
    {"an alignment of -16", T_VALUE, BAD, ANYWHERE, TENSOR(BYTE_ALIGNMENT), VALUE, .count = 1,
     .value = {-16}},
    {"an alignment of 1 for elements of 2 bytes", T_VALUE, BAD, ANYWHERE, TENSOR(BYTE_ALIGNMENT), VALUE,
     .count = 1, .value = {1}},
    {"an alignment of 3 for elements of 2 bytes", T_VALUE, BAD, ANYWHERE, TENSOR(BYTE_ALIGNMENT), VALUE,
     .count = 1, .value = {3}},
    {"a type that is none", T_VALUE, CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE, UNCHECKED, TENSOR(DATA_TYPE),
     VALUE, .count = 1, .value = {999}},

    {"a convolution without type", C_NEEDS, BAD, UNCHECKED, CONVOL(COMP_TYPE), LEAVE_OUT},
    {"without mode", C_NEEDS, BAD, UNCHECKED, CONVOL(CONV_MODE), LEAVE_OUT},
    {"without spatial dimensions", C_NEEDS, BAD, ANYWHERE, CONVOL(SPATIAL_DIMS), LEAVE_OUT},
    {"without dilations", C_NEEDS, BAD, ANYWHERE, CONVOL(DILATIONS), LEAVE_OUT},
    {"without strides of windows", C_NEEDS, BAD, ANYWHERE, CONVOL(FILTER_STRIDES), LEAVE_OUT},
    {"without padding before", C_NEEDS, BAD, ANYWHERE, CONVOL(PRE_PADDINGS), LEAVE_OUT},
    {"without padding after", C_NEEDS, BAD, ANYWHERE, CONVOL(POST_PADDINGS), LEAVE_OUT},
    {"3 spatial dimensions, lists of 2", C_VALUE ": elemCount", BAD, ANYWHERE, CONVOL(SPATIAL_DIMS), VALUE,
     .count = 1, .value = {3}},
    {"1 stride for 2 dimensions", C_VALUE ": elemCount", BAD, ANYWHERE, CONVOL(FILTER_STRIDES), COUNT,
     .count = 1},
    {"1 dilation for 2 dimensions", C_VALUE ": elemCount", BAD, ANYWHERE, CONVOL(DILATIONS), COUNT,
     .count = 1},
    {"1 padding for 2 dimensions", C_VALUE ": elemCount", BAD, ANYWHERE, CONVOL(PRE_PADDINGS), COUNT,
     .count = 1},
    {"4 strides of windows", SETS "elementCount", BAD, ANYWHERE, CONVOL(FILTER_STRIDES), COUNT, .count = 4},
    {"a window's stride of 0", C_VALUE, BAD, ANYWHERE, CONVOL(FILTER_STRIDES), VALUE, .count = 2,
     .value = {0, 1}},
    {"a window's stride of -1", C_VALUE, BAD, ANYWHERE, CONVOL(FILTER_STRIDES), VALUE, .count = 2,
     .value = {-1, 1}},
    {"a dilation of 0", C_VALUE, BAD, ANYWHERE, CONVOL(DILATIONS), VALUE, .count = 2, .value = {0, 1}},
    {"a padding of -1", C_VALUE, BAD, ANYWHERE, CONVOL(PRE_PADDINGS), VALUE, .count = 2, .value = {-1, 1}},
    {"the mode as int64", SETS "attributeType", BAD_TYPE, ANYWHERE, CONVOL(CONV_MODE), TYPE,
     CUDNN_TYPE_INT64},
    {"strides of windows as int32", SETS "attributeType", BAD_TYPE, ANYWHERE, CONVOL(FILTER_STRIDES), TYPE,
     CUDNN_TYPE_INT32},

    {"an operation without x", O_NEEDS, BAD, ANYWHERE, FORWARD(X), LEAVE_OUT},
    {"without w", O_NEEDS, BAD, ANYWHERE, FORWARD(W), LEAVE_OUT},
    {"without y", O_NEEDS, BAD, ANYWHERE, FORWARD(Y), LEAVE_OUT},
    {"without convolution", O_NEEDS, BAD, ANYWHERE, FORWARD(CONV_DESC), LEAVE_OUT},
    {"without alpha", O_NEEDS, BAD, UNCHECKED, FORWARD(ALPHA), LEAVE_OUT},
    {"without beta", O_NEEDS, BAD, UNCHECKED, FORWARD(BETA), LEAVE_OUT},
    {"x as pointer", SETS "attributeType", BAD, ANYWHERE, FORWARD(X), TYPE, CUDNN_TYPE_VOID_PTR,
     .also = BAD_TYPE},
    {"two tensors for x", SETS "elementCount", BAD, UNCHECKED, FORWARD(X), COUNT, .count = 2},
    {"alpha as int64", SETS "attributeType", BAD, ANYWHERE, FORWARD(ALPHA), TYPE, CUDNN_TYPE_INT64,
     .also = NOT},
    {"a tensor's attribute in an operation",
     SETS "attributeName",
     BAD,
     ANYWHERE,
     OP,
     CUDNN_ATTR_TENSOR_UNIQUE_ID,
     ADD,
     CUDNN_TYPE_INT64,
     1,
     {7},
     .also = NOT},
    {"padding that changes y", O_VALUE, BAD, ANYWHERE, CONVOL(PRE_PADDINGS), VALUE, .count = 2,
     .value = {2, 1}},
    {"strides that change y", O_VALUE, BAD, ANYWHERE, CONVOL(FILTER_STRIDES), VALUE, .count = 2,
     .value = {2, 1}},
    {"dilations that change y", O_VALUE, BAD, ANYWHERE, CONVOL(DILATIONS), VALUE, .count = 2,
     .value = {2, 1}},
    {"y of another height", O_VALUE, BAD, ANYWHERE, RESULT(DIMENSIONS), VALUE, .count = 4,
     .value = {2, 16, 5, 6}},
    {"y of other channels", O_VALUE, BAD, ANYWHERE, RESULT(DIMENSIONS), VALUE, .count = 4,
     .value = {2, 15, 6, 6}},
    {"y of other images", O_VALUE, BAD, ANYWHERE, RESULT(DIMENSIONS), VALUE, .count = 4,
     .value = {1, 16, 6, 6}},
    {"w of more channels than x", O_VALUE, BAD, ANYWHERE, FILTER(DIMENSIONS), VALUE, .count = 4,
     .value = {16, 9, 3, 3}},
    {"w of 7 channels where x has 8", O_VALUE, BAD, ANYWHERE, FILTER(DIMENSIONS), VALUE, .count = 4,
     .value = {16, 7, 3, 3}},
    {"w of other filters than y", O_VALUE, BAD, ANYWHERE, FILTER(DIMENSIONS), VALUE, .count = 4,
     .value = {15, 8, 3, 3}},
    {"one unique id for x and w", "OPERATIONGRAPH_DESCRIPTOR, Finalization",
     CUDNN_STATUS_BAD_PARAM_DUPLICATED_ENTRIES, UNCHECKED, FILTER(UNIQUE_ID), VALUE, .count = 1,
     .value = {X + 1}},

    {"a graph without operation", "OPERATIONGRAPH_DESCRIPTOR, Attributes: required", BAD, ANYWHERE,
     GRAPH_OF(OPS), LEAVE_OUT},
    {"a graph with one operation twice", "OPERATIONGRAPH_DESCRIPTOR, Finalization", BAD, ANYWHERE,
     GRAPH_OF(OPS), COUNT, .count = 2},
    {"a number of engines that is told",
     "OPERATIONGRAPH_DESCRIPTOR, Attributes: read-only",
     BAD,
     ANYWHERE,
     GRAPH_OF(ENGINE_GLOBAL_COUNT),
     ADD,
     CUDNN_TYPE_INT64,
     1,
     {3}},
    {"heuristics without graph", "ENGINEHEUR_DESCRIPTOR, Attributes: required", BAD, ANYWHERE,
     HEURIST(OPERATION_GRAPH), LEAVE_OUT},
    {"heuristics without mode", "ENGINEHEUR_DESCRIPTOR, Attributes: required", BAD, UNCHECKED, HEURIST(MODE),
     LEAVE_OUT},
    {"heuristics of two graphs", SETS "elementCount", BAD, ANYWHERE, HEURIST(OPERATION_GRAPH), COUNT,
     .count = 2},
    {"a mode as int64", SETS "attributeType", BAD_TYPE, ANYWHERE, HEURIST(MODE), TYPE, CUDNN_TYPE_INT64},
    {"a mode that is none", "ENGINEHEUR_DESCRIPTOR, Finalization", BAD, UNCHECKED, HEURIST(MODE), VALUE,
     .count = 1, .value = {999}},
    {"an engine without graph", "ENGINE_DESCRIPTOR, Attributes: required",
     CUDNN_STATUS_BAD_PARAM_NULL_POINTER, ANYWHERE, ENGINE_(OPERATION_GRAPH), LEAVE_OUT},
    {"an engine without number", "ENGINE_DESCRIPTOR, Attributes: required", NOT, ANYWHERE,
     ENGINE_(GLOBAL_INDEX), LEAVE_OUT},
    {"an engine of number -1", "ENGINE_DESCRIPTOR, GLOBAL_INDEX: [0, count - 1]", NOT, ANYWHERE,
     ENGINE_(GLOBAL_INDEX), VALUE, .count = 1, .value = {-1}},
    {"an engine of number 100000", "ENGINE_DESCRIPTOR, GLOBAL_INDEX: [0, count - 1]", NOT, ANYWHERE,
     ENGINE_(GLOBAL_INDEX), VALUE, .count = 1, .value = {100000}},
    {"a note that is told",
     "ENGINE_DESCRIPTOR, Attributes: read-only",
     NOT,
     ANYWHERE,
     ENGINE_(NUMERICAL_NOTE),
     ADD,
     CUDNN_TYPE_NUMERICAL_NOTE,
     1,
     {0}},
    {"a configuration without engine", "ENGINECFG_DESCRIPTOR, Attributes: required", BAD, UNCHECKED,
     CONFIG_(ENGINE), LEAVE_OUT},
    {"a plan without configuration", "EXECUTION_PLAN_DESCRIPTOR, Attributes: required",
     CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED, UNCHECKED, PLAN_(ENGINE_CONFIG), LEAVE_OUT},
    {"a plan without GPU", "EXECUTION_PLAN_DESCRIPTOR, Attributes: HANDLE or DEVICEPROP", BAD, UNCHECKED,
     PLAN_(DEVICEPROP), LEAVE_OUT},
    {"a workspace size that is told",
     "EXECUTION_PLAN_DESCRIPTOR, Attributes: read-only",
     NOT,
     ANYWHERE,
     PLAN_(WORKSPACE_SIZE),
     ADD,
     CUDNN_TYPE_INT64,
     1,
     {0}},

    {"unique ids without pointers", P_NEEDS, BAD, ANYWHERE, VARIANT(DATA_POINTERS), LEAVE_OUT},
    {"pointers without unique ids", P_NEEDS, BAD, ANYWHERE, VARIANT(UNIQUE_IDS), LEAVE_OUT},
    {"2 pointers for 3 unique ids", P_NEEDS, BAD, ANYWHERE, VARIANT(DATA_POINTERS), COUNT, .count = 2},
    {"a unique id twice", P_NEEDS, CUDNN_STATUS_BAD_PARAM_DUPLICATED_ENTRIES, UNCHECKED, VARIANT(UNIQUE_IDS),
     VALUE, .count = 3, .value = {1, 2, 2}},
    {"pointers as int64", SETS "attributeType", NOT, ANYWHERE, VARIANT(DATA_POINTERS), TYPE,
     CUDNN_TYPE_INT64},
    {"without workspace", P_NEEDS, BAD, UNCHECKED, VARIANT(WORKSPACE), LEAVE_OUT},
    {"2 workspaces", SETS "elementCount", BAD, ANYWHERE, VARIANT(WORKSPACE), COUNT, .count = 2},
};
/* clang-format on */

static void try_it(const mistake *m)
{
    const cudnnStatus_t got = make_it(m);
    const bool also = REAL && m->also && got == m->also;

    refused(m->what, m->source, (int)(also ? m->also : m->code), (int)got);
}

TEST(every_mistake_gives_its_status)
{
    for (kind = 0; kind < KINDS; kind++) {
        CHECK(make_it(NULL) == CUDNN_STATUS_SUCCESS, "kind %d without a mistake gives %d", kind, (int)status);
        for (size_t i = 0; i < sizeof mistakes / sizeof *mistakes; i++)
            if (can_ask(mistakes[i].asked))
                try_it(&mistakes[i]);
    }
    kind = 0;
}

/* ---- calls out of order ------------------------------------------------------------------------- */

static cudnnStatus_t tell(descriptor d, attribute name, descriptor value)
{
    return cudnnBackendSetAttribute(d, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value);
}

#define ORDER(what, source, asked, want, call)                                                               \
    do {                                                                                                     \
        if (can_ask(asked))                                                                                  \
            refused(what, source, (int)CUDNN_STATUS_##want, (int)(call));                                    \
    } while (0)

TEST(every_call_out_of_order_gives_its_status)
{
    const char *const creates = "cudnnBackendCreateDescriptor(): Returns",
                      *const sets = "cudnnBackendSetAttribute(): Returns",
                      *const gets = "cudnnBackendGetAttribute(): Returns",
                      *const finalizes = "cudnnBackendFinalize(): Returns",
                      *const executes = "cudnnBackendExecute(): Returns";
    int64_t one = 1, count;
    float factor = 1;
    descriptor done, open_tensor = make(CUDNN_BACKEND_TENSOR_DESCRIPTOR),
                     op = make(CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR),
                     graph = make(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR),
                     heuristics = make(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR),
                     engine = make(CUDNN_BACKEND_ENGINE_DESCRIPTOR),
                     config = make(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR),
                     a_plan = make(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR),
                     other = make(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR), conv;

    status = CUDNN_STATUS_SUCCESS;
    done = tensor(X, 2, 8, 6, 6);
    conv = convolution();
    CHECK(status == CUDNN_STATUS_SUCCESS, "%d", (int)status);
    ORDER("a descriptor that has no place", creates, UNCHECKED, BAD_PARAM_NULL_POINTER,
          cudnnBackendCreateDescriptor(CUDNN_BACKEND_TENSOR_DESCRIPTOR, NULL));
    ORDER("told: no descriptor", sets, ANYWHERE, BAD_PARAM_NULL_POINTER,
          cudnnBackendSetAttribute(NULL, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &one));
    ORDER("told: no value", sets, ANYWHERE, BAD_PARAM,
          cudnnBackendSetAttribute(open_tensor, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, NULL));
    ORDER("told: after its end", sets, ANYWHERE, BAD_PARAM,
          cudnnBackendSetAttribute(done, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &one));
    ORDER("finalized: no descriptor", finalizes, ANYWHERE, BAD_PARAM_NULL_POINTER,
          cudnnBackendFinalize(NULL));
    ORDER("finalized: twice", finalizes, ANYWHERE, BAD_PARAM, cudnnBackendFinalize(done));
    ORDER("finalized: nothing told", finalizes, ANYWHERE, BAD_PARAM, cudnnBackendFinalize(open_tensor));
    ORDER("asked: no descriptor", gets, ANYWHERE, BAD_PARAM,
          cudnnBackendGetAttribute(NULL, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &count, &one));
    ORDER("asked: before its end", gets, ANYWHERE, NOT_INITIALIZED,
          cudnnBackendGetAttribute(open_tensor, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &count,
                                   &one));
    ORDER("asked: as another type", gets, ANYWHERE, BAD_PARAM_ATTRIBUTE_TYPE,
          cudnnBackendGetAttribute(done, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_FLOAT, 1, &count, &factor));
    ORDER("asked: another descriptor's attribute", gets, ANYWHERE, BAD_PARAM,
          cudnnBackendGetAttribute(done, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, 1, &count,
                                   &one));
    ORDER("asked: a negative count", gets, ANYWHERE, BAD_PARAM,
          cudnnBackendGetAttribute(done, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, -1, &count, &one));
    ORDER("an open tensor in an operation", sets, UNCHECKED, BAD_PARAM_NOT_FINALIZED,
          tell(op, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X, open_tensor));
    ORDER("an open operation in a graph", sets, ANYWHERE, BAD_PARAM_NOT_FINALIZED,
          tell(graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, op));
    ORDER("an open graph in heuristics", sets, UNCHECKED, BAD_PARAM_NOT_FINALIZED,
          tell(heuristics, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, other));
    ORDER("an open graph in an engine", sets, UNCHECKED, BAD_PARAM_NOT_FINALIZED,
          tell(engine, CUDNN_ATTR_ENGINE_OPERATION_GRAPH, other));
    ORDER("an open engine in a configuration", sets, UNCHECKED, BAD_PARAM_NOT_FINALIZED,
          tell(config, CUDNN_ATTR_ENGINECFG_ENGINE, engine));
    ORDER("an open configuration in a plan", sets, UNCHECKED, BAD_PARAM_NOT_FINALIZED,
          tell(a_plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config));
    ORDER("a convolution for a tensor", sets, UNCHECKED, BAD_PARAM,
          tell(op, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X, conv));
    ORDER("a tensor for a convolution", sets, UNCHECKED, BAD_PARAM,
          tell(op, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC, done));
    ORDER("a tensor for an operation", sets, UNCHECKED, BAD_PARAM,
          tell(graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, done));
    ORDER("a tensor for a graph", sets, UNCHECKED, BAD_PARAM,
          tell(heuristics, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, done));
    ORDER("a tensor for a graph of an engine", sets, UNCHECKED, BAD_PARAM,
          tell(engine, CUDNN_ATTR_ENGINE_OPERATION_GRAPH, done));
    ORDER("a tensor for an engine", sets, UNCHECKED, BAD_PARAM,
          tell(config, CUDNN_ATTR_ENGINECFG_ENGINE, done));
    ORDER("a tensor for a configuration", sets, UNCHECKED, BAD_PARAM,
          tell(a_plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, done));
    ORDER("executed: nothing", executes, ANYWHERE, BAD_PARAM, cudnnBackendExecute(NULL, NULL, NULL));
    ORDER("executed: no handle", executes, ANYWHERE, BAD_PARAM,
          cudnnBackendExecute(NULL, a_plan, open_tensor));
    ORDER("a stream for no handle", "cudnnSetStream(): Returns", ANYWHERE, BAD_PARAM,
          cudnnSetStream(NULL, NULL));
    ORDER("the stream of no handle", "cudnnGetStream(): Returns", ANYWHERE, BAD_PARAM,
          cudnnGetStream(NULL, NULL));
    ORDER("a handle without place", "cudnnCreate(): Returns", ANYWHERE, BAD_PARAM, cudnnCreate(NULL));
    destroy_all();
}

static char *read_gpu(void)
{
    static char json[4096];
    FILE *f = fopen(HVT_TESTS "/cuda/sm_90.json", "r");

    CHECK(f, "no description of a GPU");
    if (f)
        json[fread(json, 1, sizeof json - 1, f)] = 0;
    if (f)
        fclose(f);
    return json;
}

int main(int argc, char **argv)
{
    gpu = read_gpu();
#ifdef HVT_REAL
    void *library = open_library(argc, argv, HVT_LIBCUDNN);

    if (!library)
        return check_done();
#define X(name) *(void **)&real_##name = dlsym(library, #name);
    CALLS(X)
#undef X
    printf("cuDNN %zu\n", cudnnGetVersion());
#else
    (void)argc, (void)argv;
#endif
    RUN(every_mistake_gives_its_status);
    RUN(every_call_out_of_order_gives_its_status);
    return check_done();
}
