/* ops/matmul.h - arguments of products of matrices. */
#ifndef HVT_DEVICE_OPS_MATMUL_H
#define HVT_DEVICE_OPS_MATMUL_H

#include "device/ops/op.h"

/* Y (+)= A B for each of `count` consecutive matrices, in rows: A [m,k], or [k,m] if it is transposed; B
 * [k,n], or [n,k]; Y [m,n]. */
typedef struct hvt_matmul_args {
    hvt_dtype type;
    int count, m, n, k;
    bool a_transposed, b_transposed;
    const void *a, *b;
    void *y;
    bool add;
    void *ws; /* matmul.room() bytes; that function reads no pointer */
} hvt_matmul_args;

#endif /* HVT_DEVICE_OPS_MATMUL_H */
