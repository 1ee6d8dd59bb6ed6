/*
 * ref.h - shared by the files of device ref: elements of tensors, and the operations that its table has.
 *
 * Included by src/device/ref*.c. Nothing else.
 */
#ifndef HVT_REF_H
#define HVT_REF_H

#include "device_impl.h"
#include "half.h"

/* p[i] (+)= x */
static inline void hvt__put_ref(void *p, hvt_dtype t, size_t i, float x, bool add)
{
    hvt__store(p, t, i, add ? hvt__load(p, t, i) + x : x);
}

/* Returns the index of element `col` of the i-th valid row of a matrix with c columns. */
static inline size_t hvt__at_row_ref(hvt_rows r, size_t i, int c, int col)
{
    return (i / r.real * r.block + i % r.real) * c + col;
}

static inline size_t hvt__real_rows_ref(hvt_rows r)
{
    return (size_t)r.blocks * r.real;
}

#define HVT_DECLARE_REF(entry, op) HVT__OP_TYPE(entry) hvt__##op##_ref;
HVT__OPS(HVT_DECLARE_REF)
HVT__GENERAL_OPS(HVT_DECLARE_REF)
HVT_DECLARE_REF(resample.forward, resample_forward)
HVT_DECLARE_REF(resample.backward, resample_backward)
HVT_DECLARE_REF(matmul.room, matmul_room)
HVT_DECLARE_REF(matmul.run, matmul_run)

#endif /* HVT_REF_H */
