/*
 * double_descriptor.h - the objects of cuDNN's backend API in the double: a descriptor is a list of
 * attributes under a table of rules. double_descriptor.c defines the attributes; double_cudnn.c implements
 * their meaning. Included by both.
 */
#ifndef HVT_DOUBLE_DESCRIPTOR_H
#define HVT_DOUBLE_DESCRIPTOR_H

#include "double.h"

#include <cudnn.h>

typedef enum use { NEEDED, OPTIONAL, READ } use;

typedef struct rule {
    cudnnBackendDescriptorType_t of;
    cudnnBackendAttributeName_t name;
    cudnnBackendAttributeType_t type;
    int64_t most; /* elements */
    use use;
    int target; /* the type of descriptor it takes, or ANY_OPERATION */
} rule;

typedef struct value {
    struct value *next;
    const rule *rule;
    int64_t count;
    void *data;
} value;

typedef struct descriptor {
    cudnnBackendDescriptorType_t type;
    int refs;         /* the caller's, and one for each descriptor that this is an attribute of */
    bool final, gone; /* gone: the caller destroyed it */
    value *values;
} descriptor;

const rule *hvt__dnn_rule(const descriptor *d, cudnnBackendAttributeName_t name); /* NULL: it has none such */
cudnnStatus_t hvt__dnn_keep(descriptor *d, const rule *r, int64_t count, const void *data);
const value *hvt__dnn_value(const descriptor *d, cudnnBackendAttributeName_t name); /* NULL: not set */
size_t hvt__dnn_element(cudnnBackendAttributeType_t type);                          /* bytes */
bool hvt__dnn_is_operation(const descriptor *d);
cudnnStatus_t hvt__dnn_complete(const descriptor *d); /* has all that it needs */

/* Keep the text for cudnnGetLastErrorString; returns the code. */
cudnnStatus_t hvt__dnn_refuse(cudnnStatus_t code, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#define REQUIRE(cond, code, ...)                                                                             \
    do {                                                                                                     \
        if (!(cond))                                                                                         \
            return hvt__dnn_refuse(CUDNN_STATUS_##code, __VA_ARGS__);                                        \
    } while (0)
#define TRY(call)                                                                                            \
    do {                                                                                                     \
        cudnnStatus_t s_ = (call);                                                                           \
        if (s_ != CUDNN_STATUS_SUCCESS)                                                                      \
            return s_;                                                                                       \
    } while (0)
#define ENTER(call)                                                                                          \
    do {                                                                                                     \
        int e_ = hvt_double_enter(call);                                                                     \
        if (e_)                                                                                              \
            return hvt__dnn_refuse((cudnnStatus_t)e_, "%s was told to fail", call);                          \
    } while (0)

/* The first element of an attribute that is known to be set. */
#define GET(type, d, name) (*(type *)hvt__dnn_value(d, CUDNN_ATTR_##name)->data)

#endif /* HVT_DOUBLE_DESCRIPTOR_H */
