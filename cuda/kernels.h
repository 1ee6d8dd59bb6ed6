/*
 * kernels.h - every op of the cuda device: entries of device_impl.h's table, and functions that those in
 * device_cuda.c call. The following holds for all ops but convolutions.
 *
 * An op queues kernels on the device's stream and returns the launches' status; it allocates nothing, waits
 * for nothing, reads no device memory and may be captured. Addresses are device memory, except `put`'s bytes
 * and the argument structs, which are copied at the call. Without work (n, rows or images of 0) it queues
 * only what the contract still requires.
 *
 * Rows are in NHW order: hvt_rows is {1, n*pixels, real*pixels}. Any number of channels and any address work.
 * Accesses are 16 bytes wide for rows whose size and address are multiples of 16 bytes, and for spans that
 * are misaligned by the same number of elements.
 *
 * Deterministic on every GPU: the order of sums depends only on the shape, and there are no float atomics.
 * Elementwise ops give ref's bits (a NaN may differ in its payload) when compiled with -fmad=false -ftz=true.
 *
 * Included by cuda/. Nothing else.
 */
#ifndef HVT_CUDA_KERNELS_H
#define HVT_CUDA_KERNELS_H

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

#include "base_impl.h"
#include "device_impl.h"

/* --- launch.c: a device's state for launches --- */
/* The kernels' stream. Makes this GPU current in the calling thread, which may be any. */
cudaStream_t hvt__cuda_stream(hvt_device *d);
/* Scratch of the kernels, which run one after the other: HVT__CUDA_SCRATCH bytes, 16-byte aligned, initially
 * zero. After every kernel the first HVT__CUDA_COUNTERS bytes are zero again. */
void *hvt__cuda_scratch(hvt_device *d);
hvt_status hvt__cuda_launched(const hvt_device *d, cudaError_t e, const char *file, int line,
                              const char *kernel);

enum { HVT__CUDA_CHANNELS = 131072, HVT__CUDA_SCRATCH = 16 << 20 }; /* rows.h: maximum channels of a sum */
enum { HVT__CUDA_COUNTERS = 8 << 10 };

enum { HVT__CUDA_MOST_INPUTS = 128 }; /* for reduce and sgd */

/* --- entries of hvt_device_cuda; conv's are in conv_cudnn.c --- */
#define DECLARE(entry, op) HVT__OP_TYPE(entry) hvt__##op##_cuda;
HVT__OPS(DECLARE)
HVT__GENERAL_OPS(DECLARE)
#undef DECLARE
HVT__OP_TYPE(matrix.bn_join_moments) hvt__bn_join_moments_cuda;
HVT__OP_TYPE(matrix.bn_join_sums) hvt__bn_join_sums_cuda;
HVT__OP_TYPE(step.decide) hvt__decide_cuda;

/* --- three functions that device_cuda.c's entries call --- */
hvt_status hvt__cuda_put(hvt_device *d, void *dst, const void *host, size_t bytes);
/* Keep the stream busy for `us` microseconds. */
hvt_status hvt__cuda_delay(hvt_device *d, int us);
/* src, draws and labels are device copies of a's, which are ignored; labels NULL: writes none */
hvt_status hvt__cuda_augment(hvt_device *d, const hvt_augment_args *a, const void *src, const int8_t *draws,
                             const int16_t *erased, const int32_t *labels);

#ifdef __cplusplus
}
#endif

#endif /* HVT_CUDA_KERNELS_H */
