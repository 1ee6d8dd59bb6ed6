/*
 * Descriptors of cuDNN's double: creating them, setting their attributes, destroying them. A descriptor that
 * is an attribute of another lives as long as that, as cuDNN's do: callers may destroy theirs at once.
 */
#include "double_descriptor.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* clang-format off: one attribute a line */
enum { ANY_OPERATION = -1 };
static const rule rules[] = {
#define TENSOR(name, type, most, use)                                                                        \
    {                                                                                                        \
        CUDNN_BACKEND_TENSOR_DESCRIPTOR, CUDNN_ATTR_TENSOR_##name, CUDNN_TYPE_##type, most, use              \
    }
    TENSOR(DATA_TYPE, DATA_TYPE, 1, NEEDED),
    TENSOR(DIMENSIONS, INT64, 8, NEEDED),
    TENSOR(STRIDES, INT64, 8, NEEDED),
    TENSOR(UNIQUE_ID, INT64, 1, NEEDED),
    TENSOR(BYTE_ALIGNMENT, INT64, 1, NEEDED),
    TENSOR(IS_VIRTUAL, BOOLEAN, 1, OPTIONAL),
#define CONV(name, type, most)                                                                               \
    {                                                                                                        \
        CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, CUDNN_ATTR_CONVOLUTION_##name, CUDNN_TYPE_##type, most, NEEDED \
    }
    CONV(COMP_TYPE, DATA_TYPE, 1),
    CONV(CONV_MODE, CONVOLUTION_MODE, 1),
    CONV(SPATIAL_DIMS, INT64, 1),
    CONV(DILATIONS, INT64, 3),
    CONV(FILTER_STRIDES, INT64, 3),
    CONV(PRE_PADDINGS, INT64, 3),
    CONV(POST_PADDINGS, INT64, 3),
#define OP(kind, at, name, type, target)                                                                     \
    {                                                                                                        \
        CUDNN_BACKEND_OPERATION_CONVOLUTION_##kind##_DESCRIPTOR,                                             \
            CUDNN_ATTR_OPERATION_CONVOLUTION_##at##_##name, CUDNN_TYPE_##type, 1, NEEDED, target             \
    }
#define OPERATION(kind, at, x, w, y)                                                                         \
    OP(kind, at, x, BACKEND_DESCRIPTOR, CUDNN_BACKEND_TENSOR_DESCRIPTOR),                                    \
        OP(kind, at, w, BACKEND_DESCRIPTOR, CUDNN_BACKEND_TENSOR_DESCRIPTOR),                                \
        OP(kind, at, y, BACKEND_DESCRIPTOR, CUDNN_BACKEND_TENSOR_DESCRIPTOR),                                \
        OP(kind, at, CONV_DESC, BACKEND_DESCRIPTOR, CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR),                   \
        OP(kind, at, ALPHA, FLOAT, 0), OP(kind, at, BETA, FLOAT, 0)
    OPERATION(FORWARD, FORWARD, X, W, Y),
    OPERATION(BACKWARD_DATA, BWD_DATA, DX, W, DY),
    OPERATION(BACKWARD_FILTER, BWD_FILTER, X, DW, DY),
#define OTHER(of, name, type, most, use, target)                                                             \
    {                                                                                                        \
        CUDNN_BACKEND_##of##_DESCRIPTOR, CUDNN_ATTR_##of##_##name, CUDNN_TYPE_##type, most, use, target      \
    }
#define LINK(of, name, use, target)                                                                          \
    OTHER(of, name, BACKEND_DESCRIPTOR, 1, use, CUDNN_BACKEND_##target##_DESCRIPTOR)
    OTHER(DEVICEPROP, JSON_REPRESENTATION, CHAR, 1 << 16, NEEDED, 0),
    OTHER(OPERATIONGRAPH, HANDLE, HANDLE, 1, OPTIONAL, 0),
    OTHER(OPERATIONGRAPH, OPS, BACKEND_DESCRIPTOR, 1, NEEDED, ANY_OPERATION),
    OTHER(OPERATIONGRAPH, ENGINE_GLOBAL_COUNT, INT64, 1, READ, 0),
    OTHER(ENGINEHEUR, MODE, HEUR_MODE, 1, NEEDED, 0),
    LINK(ENGINEHEUR, OPERATION_GRAPH, NEEDED, OPERATIONGRAPH),
    LINK(ENGINEHEUR, DEVICEPROP, OPTIONAL, DEVICEPROP),
    LINK(ENGINEHEUR, RESULTS, READ, ENGINECFG),
    LINK(ENGINE, OPERATION_GRAPH, NEEDED, OPERATIONGRAPH),
    OTHER(ENGINE, GLOBAL_INDEX, INT64, 1, NEEDED, 0),
    LINK(ENGINE, DEVICEPROP, OPTIONAL, DEVICEPROP),
    OTHER(ENGINE, NUMERICAL_NOTE, NUMERICAL_NOTE, 1, READ, 0),
    OTHER(ENGINE, BEHAVIOR_NOTE, BEHAVIOR_NOTE, 1, READ, 0),
    LINK(ENGINECFG, ENGINE, NEEDED, ENGINE),
    LINK(ENGINECFG, KNOB_CHOICES, OPTIONAL, KNOB_CHOICE),
    OTHER(KNOB_CHOICE, KNOB_TYPE, KNOB_TYPE, 1, NEEDED, 0),
    OTHER(KNOB_CHOICE, KNOB_VALUE, INT64, 1, NEEDED, 0),
    OTHER(EXECUTION_PLAN, HANDLE, HANDLE, 1, OPTIONAL, 0),
    LINK(EXECUTION_PLAN, DEVICEPROP, OPTIONAL, DEVICEPROP),
    LINK(EXECUTION_PLAN, ENGINE_CONFIG, NEEDED, ENGINECFG),
    OTHER(EXECUTION_PLAN, WORKSPACE_SIZE, INT64, 1, READ, 0),
    OTHER(VARIANT_PACK, UNIQUE_IDS, INT64, 64, NEEDED, 0),
    OTHER(VARIANT_PACK, DATA_POINTERS, VOID_PTR, 64, NEEDED, 0),
    OTHER(VARIANT_PACK, WORKSPACE, VOID_PTR, 1, NEEDED, 0),
};
/* clang-format on */

static _Thread_local char text[512];

/* ---- errors ------------------------------------------------------------------------------------- */

cudnnStatus_t hvt__dnn_refuse(cudnnStatus_t code, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    return code;
}

const char *cudnnGetErrorString(cudnnStatus_t status)
{
    switch (CUDNN_STATUS_CATEGORY(status)) {
    case 0:
        return "CUDNN_STATUS_SUCCESS";
    case CUDNN_STATUS_BAD_PARAM:
        return "CUDNN_STATUS_BAD_PARAM";
    case CUDNN_STATUS_NOT_SUPPORTED:
        return "CUDNN_STATUS_NOT_SUPPORTED";
    case CUDNN_STATUS_INTERNAL_ERROR:
        return "CUDNN_STATUS_INTERNAL_ERROR";
    case CUDNN_STATUS_EXECUTION_FAILED:
        return "CUDNN_STATUS_EXECUTION_FAILED";
    default:
        return "CUDNN_STATUS_NOT_INITIALIZED";
    }
}

void cudnnGetLastErrorString(char *message, size_t max_size)
{
    snprintf(message, max_size, "%s", text);
}

size_t cudnnGetVersion(void)
{
    return CUDNN_VERSION;
}
/* ---- descriptors and their attributes ----------------------------------------------------------- */

size_t hvt__dnn_element(cudnnBackendAttributeType_t type)
{
    switch (type) {
    case CUDNN_TYPE_BOOLEAN:
        return sizeof(bool);
    case CUDNN_TYPE_CHAR:
        return sizeof(char);
    case CUDNN_TYPE_INT64:
        return sizeof(int64_t);
    case CUDNN_TYPE_FLOAT:
        return sizeof(float);
    case CUDNN_TYPE_HANDLE:
    case CUDNN_TYPE_VOID_PTR:
    case CUDNN_TYPE_BACKEND_DESCRIPTOR:
        return sizeof(void *);
    default:
        return sizeof(cudnnDataType_t); /* an enum */
    }
}

static void drop(descriptor *d);

static void drop_value(value *v)
{
    for (int64_t i = 0; v->rule->type == CUDNN_TYPE_BACKEND_DESCRIPTOR && i < v->count; i++)
        drop(((descriptor **)v->data)[i]);
    free(v->data);
    free(v);
}

static void drop(descriptor *d)
{
    if (--d->refs)
        return;
    while (d->values) {
        value *v = d->values;

        d->values = v->next;
        drop_value(v);
    }
    free(d);
}

const rule *hvt__dnn_rule(const descriptor *d, cudnnBackendAttributeName_t name)
{
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        if (rules[i].of == d->type && rules[i].name == name)
            return &rules[i];
    return NULL;
}

const value *hvt__dnn_value(const descriptor *d, cudnnBackendAttributeName_t name)
{
    for (const value *v = d->values; v; v = v->next)
        if (v->rule->name == name)
            return v;
    return NULL;
}

/* The first element of a scalar attribute that is known to be set. */
cudnnStatus_t hvt__dnn_keep(descriptor *d, const rule *r, int64_t count, const void *data)
{
    size_t bytes = (size_t)count * hvt__dnn_element(r->type);
    value *v = calloc(1, sizeof *v);

    REQUIRE(v && (v->data = malloc(bytes)), INTERNAL_ERROR_HOST_ALLOCATION_FAILED, "no memory");
    memcpy(v->data, data, bytes);
    v->rule = r;
    v->count = count;
    for (int64_t i = 0; r->type == CUDNN_TYPE_BACKEND_DESCRIPTOR && i < count; i++)
        ((descriptor **)v->data)[i]->refs++;
    for (value **at = &d->values; *at; at = &(*at)->next)
        if ((*at)->rule == r) {
            value *old = *at;

            *at = old->next;
            drop_value(old);
            break;
        }
    v->next = d->values;
    d->values = v;
    return CUDNN_STATUS_SUCCESS;
}

bool hvt__dnn_is_operation(const descriptor *d)
{
    return d->type == CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR ||
           d->type == CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR ||
           d->type == CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR;
}

/* cuDNN's own words for what is missing; the documents know BAD_PARAM alone. */
static cudnnStatus_t lacking(cudnnBackendAttributeName_t name)
{
    switch (name) {
    case CUDNN_ATTR_ENGINE_OPERATION_GRAPH:
        return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
    case CUDNN_ATTR_ENGINE_GLOBAL_INDEX:
        return CUDNN_STATUS_NOT_SUPPORTED;
    case CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG:
        return CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED;
    default:
        return CUDNN_STATUS_BAD_PARAM;
    }
}

cudnnStatus_t hvt__dnn_complete(const descriptor *d)
{
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        if (rules[i].of == d->type && rules[i].use == NEEDED && !hvt__dnn_value(d, rules[i].name))
            return hvt__dnn_refuse(lacking(rules[i].name), "a descriptor of type %d lacks attribute %d",
                                   (int)d->type, (int)rules[i].name);
    return CUDNN_STATUS_SUCCESS;
}

/* Of an attribute that a descriptor does not have, or is not told. */
static cudnnStatus_t unknown(const descriptor *d)
{
    switch (d->type) {
    case CUDNN_BACKEND_ENGINE_DESCRIPTOR:
    case CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR:
    case CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR:
        return CUDNN_STATUS_NOT_SUPPORTED;
    default:
        return CUDNN_STATUS_BAD_PARAM;
    }
}

static cudnnStatus_t of_another_type(const rule *r)
{
    return r->type == CUDNN_TYPE_VOID_PTR ? CUDNN_STATUS_NOT_SUPPORTED
           : r->type == CUDNN_TYPE_FLOAT || r->type == CUDNN_TYPE_BACKEND_DESCRIPTOR
               ? CUDNN_STATUS_BAD_PARAM
               : CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE;
}

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type, cudnnBackendDescriptor_t *ret)
{
    descriptor *d;
    bool known = false;

    ENTER("cudnnBackendCreateDescriptor");
    REQUIRE(ret, BAD_PARAM_NULL_POINTER, "no place for a descriptor");
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        known = known || rules[i].of == type;
    REQUIRE(known, NOT_SUPPORTED, "the double has no descriptors of type %d", (int)type);
    d = calloc(1, sizeof *d);
    REQUIRE(d, INTERNAL_ERROR_HOST_ALLOCATION_FAILED, "no memory for a descriptor");
    d->type = type;
    d->refs = 1;
    *ret = d;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor_)
{
    descriptor *d = descriptor_;

    REQUIRE(d && !d->gone, BAD_PARAM, "no descriptor, or one that was destroyed before");
    d->gone = true;
    drop(d);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor_, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t count, const void *data)
{
    descriptor *d = descriptor_, *const *of = data;
    const rule *r;

    ENTER("cudnnBackendSetAttribute");
    REQUIRE(d, BAD_PARAM_NULL_POINTER, "no descriptor");
    REQUIRE(data, BAD_PARAM, "no value for attribute %d", (int)name);
    REQUIRE(!d->gone && !d->final, BAD_PARAM, "attribute %d of a descriptor that is finalized", (int)name);
    r = hvt__dnn_rule(d, name);
    if (!r || r->use == READ)
        return hvt__dnn_refuse(unknown(d), "a descriptor of type %d is not told attribute %d", (int)d->type,
                               (int)name);
    if (type != r->type)
        return hvt__dnn_refuse(of_another_type(r), "attribute %d has type %d, not %d", (int)name,
                               (int)r->type, (int)type);
    REQUIRE(count >= 1 && count <= r->most, BAD_PARAM, "attribute %d takes up to %lld elements, not %lld",
            (int)name, (long long)r->most, (long long)count);
    for (int64_t i = 0; r->type == CUDNN_TYPE_BACKEND_DESCRIPTOR && i < count; i++) {
        REQUIRE(of[i] && !of[i]->gone && of[i]->final, BAD_PARAM_NOT_FINALIZED,
                "attribute %d takes descriptors that are finalized", (int)name);
        REQUIRE(r->target == ANY_OPERATION ? hvt__dnn_is_operation(of[i]) : (int)of[i]->type == r->target,
                BAD_PARAM, "attribute %d takes no descriptor of type %d", (int)name, (int)of[i]->type);
    }
    return hvt__dnn_keep(d, r, count, data);
}
