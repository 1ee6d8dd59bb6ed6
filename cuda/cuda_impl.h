/*
 * cuda_impl.h - what the files of cuda/ know of each other: one GPU as this process holds it, and how the
 * vendors' errors become ours.
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

typedef struct cuda_block { /* memory given out, so that release knows its size */
    void *ptr;
    size_t bytes;
} cuda_block;

typedef struct cuda_slot { /* one batch of bytes on its way to the GPU */
    char *staged;          /* device memory: labels, draws, images */
    size_t capacity;
    cudaEvent_t uploaded; /* on `copy`: the bytes have come */
    cudaEvent_t read; /* on `stream`: augment has read them */
} cuda_slot;

typedef struct cuda_device {
    hvt_device *dev;     /* whose state this is */
    int index;           /* the runtime's number of this GPU, of those that the process sees */
    int sm;              /* 90 is compute capability 9.0 */
    cudaStream_t stream; /* the queue: every op, in call order */
    cudaStream_t copy;   /* bytes of images travel here while a step runs */
    cudnnHandle_t dnn;   /* its stream is `stream` */
    cublasLtHandle_t blas;

    cudaEvent_t mark[CUDA_MARKS]; /* mark m is mark[m % CUDA_MARKS] */
    hvt_mark marks;               /* made so far; the first is 1 */
    cuda_slot slot[CUDA_SLOTS];
    unsigned next_slot;  /* augment's next slot */
    bool capturing; /* between record and record_end */
    void *scratch;  /* of kernels; they run one after the other */

    hvt_device_info info; /* bytes and peak_bytes: what alloc, staging slots and comms hold */
    cuda_block *block;
    int blocks, block_capacity;
    char isa[16];
    plan_cache *plans; /* which algorithm was the fastest for what */

    _Atomic double waits; /* since when the host waits for the queue; 0: it does not */
    _Atomic bool is_lost; /* what is in the queue is worth nothing; `lost` says why */
    char lost[512];
} cuda_device;

static inline cuda_device *cuda_of(const hvt_device *d)
{
    return d->state;
}

/* Make this GPU the calling thread's. Every entry begins so: a device may be used by one thread after
 * another, and a host program may hold several. */
hvt_status hvt__cuda_use(hvt_device *d);

/* Memory that another owner takes on this GPU (a comm's), or gives back (negative): it shows in describe. */
void hvt__cuda_account(hvt_device *d, int64_t bytes);

/* ---- errors ---- */

/* HVT_OK, or the library's own name and text for what happened, on which device, in which call. After a fault
 * that a process cannot recover from the text says so. d may be NULL: no device is open yet. */
hvt_status hvt__cuda_check(const hvt_device *d, cudaError_t e, const char *file, int line, const char *call);
hvt_status hvt__cudnn_check(const hvt_device *d, cudnnStatus_t e, const char *file, int line,
                            const char *call);
hvt_status hvt__cublas_check(const hvt_device *d, cublasStatus_t e, const char *file, int line,
                             const char *call);

/* Before and after each call in which the host waits for the queue; see wait.c. */
void hvt__cuda_waits(hvt_device *d);
hvt_status hvt__cuda_waited(hvt_device *d, cudaError_t e, const char *file, int line, const char *call);
/* From any thread: from now on waits give E_COMM with this line. */
void hvt__cuda_lose(hvt_device *d, const char *why);
#define CUDA_WAIT(d, call) (hvt__cuda_waits(d), hvt__cuda_waited(d, call, __FILE__, __LINE__, #call))

/* CUDA(d, cudaEventRecord(e, s)) is a hvt_status: HVT_TRY(CUDA(...)), HVT_TRY_OR(fail, CUDA(...)) */
#define CUDA(d, call)   hvt__cuda_check(d, call, __FILE__, __LINE__, #call)
#define CUDNN(d, call)  hvt__cudnn_check(d, call, __FILE__, __LINE__, #call)
#define CUBLAS(d, call) hvt__cublas_check(d, call, __FILE__, __LINE__, #call)

/* ---- the vendors' libraries (load.c) ---- */

typedef enum cuda_library { CUDA_CUBLASLT, CUDA_CUDNN, CUDA_NCCL, CUDA_LIBRARIES } cuda_library;

/* Load it once; E_UNSUPPORTED names the file and what the loader says. Before this succeeds no function of
 * that library may be called. */
hvt_status hvt__cuda_load(cuda_library which);

/* ---- entries of hvt_device_cuda that live in other files than device_cuda.c ---- */

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
