/*
 * host.h - what the host devices share: memory, synchronisation and the decision of a step.
 *
 * Included by src/device. Nothing else.
 */
#ifndef HVT_HOST_H
#define HVT_HOST_H

#include "device_impl.h"

#define HVT_CHECK_ACTIVATIONS(t)                                                                             \
    HVT_CHECK((t) == HVT_F32 || (t) == HVT_F16 || (t) == HVT_BF16, E_UNSUPPORTED,                            \
              "activations are f32, f16 or bf16, not %s", hvt_dtype_name(t))

/* Images are stored with the channels that they have. */
#define HVT_CHECK_CHANNELS(conv)                                                                             \
    HVT_CHECK((conv)->cx == (conv)->c, E_UNSUPPORTED,                                                        \
              "convolution of %d channels that are stored as %d; this device stores no more than there are", \
              (conv)->c, (conv)->cx)

/* entries of hvt_device_ref and hvt_device_cpu */
hvt_status hvt__host_alloc(hvt_device *d, size_t bytes, void **ret_ptr);
void hvt__host_release(hvt_device *d, void *ptr);
hvt_status hvt__host_copy(hvt_device *d, void *dst, const void *src, size_t bytes);
hvt_status hvt__host_mark(hvt_device *d, hvt_mark *ret_mark);
hvt_status hvt__host_await(hvt_device *d, hvt_mark mark);
hvt_status hvt__host_sync(hvt_device *d);
int hvt__host_channels(const hvt_device *d, hvt_dtype t, int c);
void hvt__host_describe(const hvt_device *d, hvt_device_info *ret_info);
hvt_status hvt__host_decide(hvt_device *d, hvt_step_state *step, const float *sums);

#endif /* HVT_HOST_H */
