/*
 * cuda_impl.h - shared by the files of cuda/: one GPU as this process uses it, and the translation of the
 * vendors' errors.
 *
 * Included by the .c files of cuda/. Nothing else. NVIDIA's functions are called by their own names;
 * cuBLASLt, cuDNN and NCCL are loaded when first needed (load.c), so that a program that trains on CPUs
 * starts without them.
 */
#ifndef HVT_CUDA_IMPL_H
#define HVT_CUDA_IMPL_H

#include "base_impl.h"
#include "device_impl.h"
#include "plan_cache.h"
#include "vendor_names.h" /* before the vendors' headers */

#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <cudnn.h>

/* ---- one GPU ---- */

enum { CUDA_MARKS = 64, CUDA_SLOTS = 2 };

typedef struct cuda_block { /* an allocation, so that release knows its size */
    void *ptr;
    size_t bytes;
} cuda_block;

typedef struct cuda_slot { /* staging buffers of one batch */
    char *staged;          /* device memory: labels, draws, images */
    size_t capacity;
    cudaEvent_t uploaded; /* on `copy`: the upload is complete */
    cudaEvent_t read;     /* on `stream`: augment has read them */
} cuda_slot;

typedef struct cuda_device {
    hvt_device *dev;     /* the device that this is the state of */
    int index;           /* the runtime's index of this GPU, among those visible to the process */
    int sm;              /* 90 is compute capability 9.0 */
    cudaStream_t stream; /* the queue: every op, in call order */
    cudaStream_t copy;   /* image bytes are uploaded here while a step runs */
    cudnnHandle_t dnn;   /* its stream is `stream` */
    cublasLtHandle_t blas;

    cudaEvent_t mark[CUDA_MARKS]; /* mark m is mark[m % CUDA_MARKS] */
    hvt_mark marks;               /* recorded so far; the first is 1 */
    cuda_slot slot[CUDA_SLOTS];
    unsigned next_slot; /* augment's next slot */
    bool capturing;     /* between capture_begin and capture_end */
    void *scratch;      /* of kernels, which run one after the other */

    hvt_device_info info; /* bytes and peak_bytes: those of alloc, staging slots and comms */
    cuda_block *block;
    int blocks, block_capacity;
    char isa[16];
    plan_cache *plans; /* fastest algorithm of each shape */

    _Atomic double waits; /* when the host began to wait for the queue; 0: it does not wait */
    _Atomic bool is_lost; /* the queue's results are invalid; `lost` says why */
    char lost[512];
} cuda_device;

static inline cuda_device *cuda_of(const hvt_device *d)
{
    return d->state;
}

/* Make this GPU current in the calling thread. Every entry begins so: a device may be used by one thread
 * after another, and a host program may use several GPUs. */
hvt_status hvt__cuda_use(hvt_device *d);

/* Account for memory that another owner (a comm) allocates on this GPU, or frees (negative), in describe. */
void hvt__cuda_account(hvt_device *d, int64_t bytes);

/* ---- errors ---- */

/* HVT_OK, or an error with the library's own name and text, the device and the call. After an unrecoverable
 * fault the text says so. d may be NULL: no device is open yet. */
hvt_status hvt__cuda_check(const hvt_device *d, cudaError_t e, const char *file, int line, const char *call);
hvt_status hvt__cudnn_check(const hvt_device *d, cudnnStatus_t e, const char *file, int line,
                            const char *call);
hvt_status hvt__cublas_check(const hvt_device *d, cublasStatus_t e, const char *file, int line,
                             const char *call);

/* To be called before and after each call in which the host waits for the queue; see wait.c. */
void hvt__cuda_waits(hvt_device *d);
hvt_status hvt__cuda_waited(hvt_device *d, cudaError_t e, const char *file, int line, const char *call);
/* From any thread: every wait from now on fails with E_COMM and this line. */
void hvt__cuda_lose(hvt_device *d, const char *why);
#define CUDA_WAIT(d, call) (hvt__cuda_waits(d), hvt__cuda_waited(d, call, __FILE__, __LINE__, #call))

/* CUDA(d, cudaEventRecord(e, s)) is an hvt_status: HVT_TRY(CUDA(...)), HVT_TRY_OR(fail, CUDA(...)) */
#define CUDA(d, call)   hvt__cuda_check(d, call, __FILE__, __LINE__, #call)
#define CUDNN(d, call)  hvt__cudnn_check(d, call, __FILE__, __LINE__, #call)
#define CUBLAS(d, call) hvt__cublas_check(d, call, __FILE__, __LINE__, #call)

/* ---- the vendors' libraries (load.c) ---- */

typedef enum cuda_library { CUDA_CUBLASLT, CUDA_CUDNN, CUDA_NCCL, CUDA_LIBRARIES } cuda_library;

/* Load a library once; E_UNSUPPORTED names the file and the loader's error. No function of the library may be
 * called before this succeeds. */
hvt_status hvt__cuda_load(cuda_library which);

/* ---- entries of hvt_device_cuda that are not in device_cuda.c ---- */

hvt_status hvt__conv_plan_cuda(hvt_device *d, const hvt_conv_desc *c, hvt_op **ret_op, size_t *ret_weights,
                               size_t *ret_ws);
void hvt__conv_permute_cuda(const hvt_op *op, bool to_file, float *mine, float *kcrs);
hvt_status hvt__conv_pack_weights_cuda(hvt_op *op, const void *w);
hvt_status hvt__conv_forward_cuda(hvt_op *op, int real, const void *x, const void *w, void *y, void *ws);
hvt_status hvt__conv_backward_x_cuda(hvt_op *op, int real, const void *w, const void *dy, void *dx, bool add,
                                     void *ws);
hvt_status hvt__conv_backward_w_cuda(hvt_op *op, int real, const void *x, const void *dy, float *dw,
                                     void *ws);

#endif /* HVT_CUDA_IMPL_H */
