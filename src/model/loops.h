/*
 * loops.h - loops over elements of up to four strided tensors of at most four dimensions, in f32, over the
 * threads of a host device. Included by weight.c, filters.c and init.c.
 */
#ifndef HVT_MODEL_LOOPS_H
#define HVT_MODEL_LOOPS_H

#include "device_impl.h"

enum { HVT__RESULT, HVT__A, HVT__B, HVT__DY, HVT__OPERANDS };

typedef struct hvt__operand {
    float *x; /* NULL: there is none */
    ptrdiff_t stride[4];
} hvt__operand;

/* Formulas of a, b and dy: a; a op b; dy times the derivative of a op b by a, or by b. */
typedef enum hvt__formula { HVT__COPY, HVT__VALUE, HVT__SLOPE_A, HVT__SLOPE_B } hvt__formula;

typedef struct hvt__loops {
    int dim[4];
    hvt__operand of[HVT__OPERANDS];
    hvt__formula formula;
    hvt_binary op;
    bool add; /* add to the result instead of overwriting it */
} hvt__loops;

/* Sets or adds to result[i] the formula's value at place i. Along dimensions in which the result's stride is
 * 0, values are summed in f64 and in order. Along the others, different places must be different elements of
 * the result. */
void hvt__loops_run(hvt_device *d, hvt__loops loops);
/* Calls job(ctx, i, ...) for all i < jobs, on the device's threads if it has any. */
void hvt__jobs(hvt_device *d, int jobs, hvt_job_fn *job, void *ctx);

#endif /* HVT_MODEL_LOOPS_H */
