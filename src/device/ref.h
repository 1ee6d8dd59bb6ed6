/*
 * ref.h - shared by the files of device ref: storing an element, and the entries of ref_general.c.
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

#define HVT_DECLARE_REF(entry, op) HVT__OP_TYPE(entry) hvt__##op##_ref;
HVT__GENERAL_OPS(HVT_DECLARE_REF)
HVT_DECLARE_REF(resample.forward, resample_forward)
HVT_DECLARE_REF(resample.backward, resample_backward)

#endif /* HVT_REF_H */
