/* ops/resample.h - arguments of interpolation and padding: output pixels are weighted sums of input pixels.
 */
#ifndef HVT_DEVICE_OPS_RESAMPLE_H
#define HVT_DEVICE_OPS_RESAMPLE_H

#include "device/ops/op.h"

typedef struct hvt_tap {
    int index; /* of an input */
    float weight;
} hvt_tap;

/* Along one dimension: output o reads taps [first[o], first[o+1]). */
typedef struct hvt_taps {
    int in, out;
    const int *first;   /* [out+1], from 0 */
    const hvt_tap *tap; /* [first[out]] */
} hvt_taps;

/* y[n,p,q,c] = sum over taps i of row p and taps j of column q of
 *              i.weight * j.weight * x[n, i.index, j.index, c] */
typedef struct hvt_resample_desc {
    hvt_order order;
    hvt_dtype type;
    int n, c;               /* x [n,rows.in,columns.in,c], y [n,rows.out,columns.out,c] */
    hvt_taps rows, columns; /* copied by the plan */
} hvt_resample_desc;

typedef struct hvt_resample {
    hvt_op op;
    hvt_resample_desc d;
    hvt_taps rows_back, columns_back; /* from outputs to inputs: backward is a resampling with these */
} hvt_resample;

/* The plan of all host devices. Errors: E_UNSUPPORTED type, E_MEM. */
hvt_status hvt__resample_plan(hvt_device *d, const hvt_resample_desc *r, hvt_op **ret_op);

#endif /* HVT_DEVICE_OPS_RESAMPLE_H */
