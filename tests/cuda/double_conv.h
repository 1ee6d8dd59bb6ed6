/* double_conv.h - a convolution of strided tensors as queued work. Included by double_cudnn.c and its tests.
 */
#ifndef HVT_DOUBLE_CONV_H
#define HVT_DOUBLE_CONV_H

#include "hvt/tensor.h"

/* One operand: extents and strides in elements, in cuDNN's order (x: N C H W, w: K C R S, y: N K P Q). */
typedef struct double_tensor {
    hvt_dtype type;
    int64_t dim[4], stride[4];
    void *data; /* device memory */
} double_tensor;

typedef enum double_conv_kind { DOUBLE_FORWARD, DOUBLE_BACKWARD_X, DOUBLE_BACKWARD_W } double_conv_kind;

typedef struct double_conv {
    double_conv_kind kind;
    double_tensor x, w, y; /* the output among them is alpha * result + beta * what it was */
    int64_t stride[2], pad[2], dilation[2];
    double alpha, beta;
    bool tf32;     /* f32 factors are cut to 10 bits first */
    bool unsteady; /* another rounding in every run, as an engine with atomic additions has */
    void *workspace;
    size_t workspace_bytes; /* filled with NaNs */
} double_conv;

/* Bytes from the first to the last element, both included. */
size_t hvt__double_tensor_bytes(const double_tensor *t);

/* fn of hvt_double_launch(): ctx is a double_conv. */
void hvt__double_conv_run(void *ctx);

#endif /* HVT_DOUBLE_CONV_H */
