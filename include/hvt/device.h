/**
 * @file device.h
 * Compute devices: "ref" (plain C, the reference), "cpu" (vector kernels, chosen by CPUID), "cuda".
 */
#ifndef HVT_DEVICE_H
#define HVT_DEVICE_H

#include "hvt/tensor.h"

HVT_C_BEGIN

typedef struct hvt_device hvt_device;

#define HVT_MAX_THREADS 256 ///< per device

typedef struct hvt_device_opts {
    int index;              ///< cuda: index of the GPU
    bool share;             ///< cuda: other ranks may use the same GPU
    bool deterministic;     ///< cuda: the same bits in every run (ref and cpu: always)
    bool tf32;              ///< cuda: f32 products may round their factors to 10 mantissa bits (TF32)
    const char *plan_cache; ///< cuda: file that caches measured algorithm choices; NULL: none
    int threads;            ///< threads of this device, the caller included; 0 = ncpus, or 1 without cpus
    const int *cpus; ///< [ncpus] processors to pin the threads to, thread t to cpus[t % ncpus]; or NULL
    int ncpus;       ///< 0: no pinning
    bool pin_caller; ///< cpu: pin the calling thread (thread 0) to cpus[0], too, until close
    int conv_tile;   ///< cpu: 3x3 convolutions by at most Winograd's F(n x n, 3x3): 4, 2, 1 (direct); 0: 4
    bool yield;      ///< waiting threads yield the core at once (more threads than cores)
    const char *isa; ///< instruction set, see hvt_cpu_isa_name(); NULL or "auto": see hvt_cpu_isa_auto()
} hvt_device_opts;

/**
 * Open a device. opts may be NULL (all defaults). A device is used by one thread at a time. "ref" computes
 * only in the calling thread and is never pinned: it ignores threads, cpus and ncpus; a comm opened with it
 * honours yield.
 *
 * "ref" and "cpu" set the calling thread's floating-point environment during calls and restore it before they
 * return: they round to nearest, flush subnormal numbers to zero and trap nothing. The calling thread is
 * pinned only with `pin_caller` (for programs that own their process, as hvtrain does), and only if it may
 * use more than one CPU. Threads that it starts meanwhile inherit the affinity; closing the device restores
 * the caller's. Errors: E_ARG unknown name or ISA (the message lists the known ones), E_UNSUPPORTED not in
 * this build or not on this processor, E_MEM.
 */
HVT_API hvt_status hvt_device_open(const char *name, const hvt_device_opts *opts, hvt_device **ret_dev);
/** Close a device, after everything that was made with it: models, loaders, comms, captured graphs. If one of
 * these still exists, the device stays open, *dev is unchanged, and a log line names the user; close it again
 * later. The same holds for a model and its optimizers, an optimizer and its distributed ones, a data set
 * and its loaders. */
HVT_API void hvt_device_close(hvt_device **dev);
HVT_API const char *hvt_device_name(const hvt_device *dev); ///< "ref", "cpu", "cuda"
HVT_API const char *hvt_device_isa(const hvt_device *dev);  ///< hvt_cpu_isa_name(); "plain" (ref), "sm_90"
HVT_API int hvt_device_threads(const hvt_device *dev);

/** Properties of a device. Host devices have empty strings and zeros. */
typedef struct hvt_device_info {
    char name[64];       ///< "NVIDIA H200"
    char uuid[48];       ///< "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6"
    char bus[16];        ///< "0000:1b:00.0"
    int64_t total_bytes; ///< memory in total
    int64_t bytes;       ///< allocated by this hvt_device now
    int64_t peak_bytes;  ///< maximum so far
} hvt_device_info;
HVT_API void hvt_device_describe(const hvt_device *dev, hvt_device_info *ret_info);
/** Number of devices of this name that this process can open: 1 for ref and cpu; 0 if this build lacks the
 * device, or without a driver or GPU. */
HVT_API int hvt_device_count(const char *name);
/** The row order that is fastest for a model of `batch` images of height x width pixels. */
HVT_API hvt_order hvt_device_order(const hvt_device *dev, int batch, int height, int width);

/** Copy between host and device. Both wait for all queued work. */
HVT_API hvt_status hvt_device_upload(hvt_device *dev, void *dst, const void *host, size_t bytes);
HVT_API hvt_status hvt_device_download(hvt_device *dev, void *host, const void *src, size_t bytes);
/** Wait for all queued work. Asynchronous failures are reported here or by a copy. Errors of all three:
 * E_DEVICE. */
HVT_API hvt_status hvt_device_sync(hvt_device *dev);

/* The cpu device's table of instruction sets, weakest first: 0 .. hvt_cpu_isa_count()-1. */
HVT_API int hvt_cpu_isa_count(void);
HVT_API const char *
hvt_cpu_isa_name(int i); ///< "portable", "neon", "avx2", "avx512", "avx512_bf16", "amx"; NULL: none
HVT_API bool hvt_cpu_isa_supported(int i); ///< in this build and on this processor
/** True if "auto" may choose this set; it chooses the last such set. False for unsupported sets, and for
 * avx512_bf16 on Intel processors, where bf16 products are slower than f32 products. f32 results are the same
 * with avx512 and avx512_bf16. */
HVT_API bool hvt_cpu_isa_auto(int i);

/** Element-wise functions with parameters a and b, for hvt_apply(). Source: torch.nn.functional. */
typedef enum hvt_function {
    HVT_RELU,        ///< max(x, 0)
    HVT_HARDTANH,    ///< min(max(x, a), b), a <= b: torch.clamp; 0 and 6: ReLU6. The slope is 0 at a and b
    HVT_LEAKY_RELU,  ///< x > 0 ? x : a*x, a >= 0
    HVT_ELU,         ///< x > 0 ? x : a*(exp(x) - 1), a >= 0
    HVT_SIGMOID,     ///< 1 / (1 + exp(-x))
    HVT_HARDSIGMOID, ///< min(max(x + 3, 0), 6) / 6
    HVT_HARDSWISH,   ///< x * hardsigmoid(x)
    HVT_SILU,        ///< x * sigmoid(x)
    HVT_GELU,        ///< x * (1 + erf(x / sqrt(2))) / 2
    HVT_GELU_TANH,   ///< x * (1 + tanh(sqrt(2/pi) * (x + 0.044715*x^3))) / 2
    HVT_TANH,        ///< tanh(x)
    HVT_SOFTPLUS,    ///< a*x > b ? x : log(1 + exp(a*x)) / a, a > 0
    HVT_AFFINE,      ///< a*x + b
    HVT_CLAMP,       ///< min(max(x, a), b) with slope 1 at a and b
    HVT_EXP,         ///< exp(x)
    HVT_LOG,         ///< log(x)
    HVT_POW,         ///< x^a
    HVT_HARDSHRINK,  ///< |x| <= a ? 0 : x, a >= 0
    HVT_FUNCTIONS
} hvt_function;

typedef enum hvt_binary {
    HVT_ADD,     ///< a + b
    HVT_SUB,     ///< a - b
    HVT_MUL,     ///< a * b
    HVT_DIV,     ///< a / b
    HVT_MAXIMUM, ///< max(a, b); if a = b, each gets half of the gradient
    HVT_MINIMUM, ///< min(a, b), likewise
    HVT_BINARIES
} hvt_binary;

HVT_C_END
#endif /* HVT_DEVICE_H */
