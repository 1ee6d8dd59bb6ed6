/* ops/op.h - a planned operation, and the rows that operations cover. */
#ifndef HVT_DEVICE_OPS_OP_H
#define HVT_DEVICE_OPS_OP_H

#include "hvt/device.h"

typedef uint64_t hvt_mark; /* a point in the device's queue */
typedef struct hvt_op hvt_op;
enum { HVT__PUT_MOST = 256 };

/* A planned operation, owned by its layer. Each backend's own operation struct starts with this. */
struct hvt_op {
    hvt_device *dev;
    void (*free)(hvt_op *op);
    bool takes_norm; /* a convolution that is faster with conv.set_norm */
};

static inline void hvt__op_free(hvt_op *op) /* NULL is fine */
{
    if (op)
        op->free(op);
}

/* The valid rows of a matrix: the first `real` of each of `blocks` blocks of `block` rows. HWN: {pixels, n,
 * real}; NHW: {1, n*pixels, real*pixels}. */
typedef struct hvt_rows {
    int blocks, block, real;
} hvt_rows;

static inline hvt_rows hvt__rows(hvt_order order, int pixels, int n, int real)
{
    return order == HVT_ORDER_HWN ? (hvt_rows){pixels, n, real} : (hvt_rows){1, n * pixels, real * pixels};
}

#endif /* HVT_DEVICE_OPS_OP_H */
