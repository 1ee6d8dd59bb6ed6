/*
 * host.h - what the devices that compute on the host share: memory and order.
 *
 * Included by src/device. Nothing else.
 */
#ifndef HVT_HOST_H
#define HVT_HOST_H

#include "device_impl.h"

/* Activations in 16 bits have an issue of their own. */
#define HVT_CHECK_F32(t)                                                                                     \
    HVT_CHECK((t) == HVT_F32, E_UNSUPPORTED, "this device computes in f32, not in %s", hvt_dtype_name(t))

/* entries of hvt_device_ref and hvt_device_cpu */
hvt_status alloc_here(hvt_device *d, size_t bytes, void **ret_ptr);
void release_here(hvt_device *d, void *ptr);
hvt_status copy_here(hvt_device *d, void *dst, const void *src, size_t bytes);
hvt_status mark_here(hvt_device *d, hvt_mark *ret_mark);
hvt_status await_here(hvt_device *d, hvt_mark mark);
hvt_status sync_here(hvt_device *d);

#endif /* HVT_HOST_H */
