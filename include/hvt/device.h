/**
 * @file device.h
 * Where arithmetic happens: "ref" (plain C, the oracle), "cpu" (vector kernels by CPUID), "cuda".
 */
#ifndef HVT_DEVICE_H
#define HVT_DEVICE_H

#include "hvt/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct hvt_device hvt_device;

#define HVT_MAX_THREADS 256 ///< of one device

typedef struct hvt_device_opts {
    int index;       ///< which one, where a host has several (cuda)
    int threads;     ///< threads of this device, the caller included; 0 = one per cpu given, else 1
    const int *cpus; ///< [ncpus] processors to pin the threads to, thread t to cpus[t % ncpus]; or NULL
    int ncpus;       ///< 0: no pinning
    bool yield;      ///< waiting threads give the core away at once (more threads than cores)
    const char *isa; ///< instruction set by name, see hvt_cpu_isa_name(); NULL or "auto": the best here
} hvt_device_opts;

/**
 * Open a device. opts may be NULL (all defaults). A device is used by one thread at a time.
 *
 * "ref" and "cpu" flush subnormal numbers to zero in the calling thread from now until the device is closed,
 * and "cpu" in every thread that calls one of its ops. The caller is thread 0 of the device: with `cpus` it
 * is pinned too, until close, and threads that it starts in between inherit that. Errors: E_ARG unknown name
 * or ISA (the message lists the known ones), E_UNSUPPORTED not in this build or not on this processor, E_MEM.
 */
HVT_API hvt_status hvt_device_open(const char *name, const hvt_device_opts *opts, hvt_device **ret_dev);
HVT_API void hvt_device_close(hvt_device **dev);
HVT_API const char *hvt_device_name(const hvt_device *dev); ///< "ref", "cpu"
HVT_API const char *hvt_device_isa(const hvt_device *dev);  ///< "avx512", "avx2", "portable"; "plain" for ref
HVT_API int hvt_device_threads(const hvt_device *dev);
HVT_API hvt_order hvt_device_order(const hvt_device *dev, int batch); ///< the row order it likes

/** Copy between host and device; both wait for everything queued before. */
HVT_API hvt_status hvt_device_upload(hvt_device *dev, void *dst, const void *host, size_t bytes);
HVT_API hvt_status hvt_device_download(hvt_device *dev, void *host, const void *src, size_t bytes);
HVT_API hvt_status hvt_device_sync(hvt_device *dev);

/* The cpu device's table of instruction sets, weakest first: 0 .. hvt_cpu_isa_count()-1. */
HVT_API int hvt_cpu_isa_count(void);
HVT_API const char *hvt_cpu_isa_name(int i); ///< "portable", "avx2", "avx512"
HVT_API bool hvt_cpu_isa_supported(int i);   ///< built in, and this processor has it

#ifdef __cplusplus
}
#endif
#endif /* HVT_DEVICE_H */
