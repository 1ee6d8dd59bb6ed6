/*
 * cuda_impl.h - shared by the files of cuda/: the state of one GPU, and the translation of the vendors'
 * errors.
 *
 * Included by the .c files of cuda/. Nothing else.
 */
#ifndef HVT_CUDA_IMPL_H
#define HVT_CUDA_IMPL_H

#include "base_impl.h"
#include "device_impl.h"

#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <cudnn.h>
#include <nccl.h>

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
    int index;           /* the runtime's index of this GPU, among those visible to the process */
    cudaStream_t stream; /* the queue: every op, in call order */
    cudaStream_t copy;   /* image bytes are uploaded here while a step runs */
    cudnnHandle_t dnn;   /* its stream is `stream` */
    cublasLtHandle_t blas;

    cudaEvent_t mark[CUDA_MARKS]; /* mark m is mark[m % CUDA_MARKS] */
    hvt_mark marks;               /* recorded so far; the first is 1 */
    cuda_slot slot[CUDA_SLOTS];
    unsigned next_slot; /* augment's next slot */
    bool capturing;     /* between capture_begin and capture_end */
    void *scratch;      /* of the kernels, which run one after the other */

    hvt_device_info info; /* bytes and peak_bytes: those of alloc, staging slots and comms */
    cuda_block *block;
    int blocks;
    char isa[16];
    struct plan_cache *plans; /* fastest algorithm per shape */

    _Atomic double waits; /* when the host began to wait for the queue; 0: not waiting */
    _Atomic bool is_lost; /* the queue's results are invalid; `lost` says why */
    char lost[512];
} cuda_device;

static inline cuda_device *cuda_of(const hvt_device *d)
{
    return d->state;
}

/* Round up to a multiple of 256, the alignment of cudaMalloc(). */
static inline size_t cuda_align(size_t bytes)
{
    return (bytes + 255) / 256 * 256;
}

/* Make this GPU current in the calling thread. Every entry calls it first, since different threads may use a
 * device in turn, and a host program may use several GPUs. */
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

/* Called before and after each call in which the host waits for the queue; see wait.c. */
void hvt__cuda_waits(hvt_device *d);
hvt_status hvt__cuda_waited(hvt_device *d, cudaError_t e, const char *file, int line, const char *call);
/* Make every wait from now on fail with E_COMM and this line. Any thread. */
void hvt__cuda_lose(hvt_device *d, const char *why);
#define CUDA_WAIT(d, call) (hvt__cuda_waits(d), hvt__cuda_waited(d, call, __FILE__, __LINE__, #call))

/* CUDA(d, cudaEventRecord(e, s)) is an hvt_status: HVT_TRY(CUDA(...)), HVT_TRY_OR(fail, CUDA(...)). The two
 * others call through hvt__nv. */
#define CUDA(d, call)   hvt__cuda_check(d, call, __FILE__, __LINE__, #call)
#define CUDNN(d, call)  hvt__cudnn_check(d, hvt__nv.call, __FILE__, __LINE__, #call)
#define CUBLAS(d, call) hvt__cublas_check(d, hvt__nv.call, __FILE__, __LINE__, #call)

/* ---- the vendors' libraries (load.c) ---- */

/* The functions of cuBLASLt, cuDNN and NCCL that cuda/ calls. */
/* clang-format off */
#define CUBLASLT_CALLS(X)                                                                                    \
    X(cublasLtGetStatusName) X(cublasLtGetStatusString) X(cublasLtCreate) X(cublasLtDestroy)                 \
    X(cublasLtMatmulDescCreate) X(cublasLtMatmulDescDestroy) X(cublasLtMatmulDescSetAttribute)               \
    X(cublasLtMatrixLayoutCreate) X(cublasLtMatrixLayoutDestroy) X(cublasLtMatmulPreferenceCreate)           \
    X(cublasLtMatmulPreferenceDestroy) X(cublasLtMatmulPreferenceSetAttribute)                               \
    X(cublasLtMatmulAlgoGetHeuristic) X(cublasLtMatmul)
#define CUDNN_CALLS(X)                                                                                       \
    X(cudnnGetVersion) X(cudnnGetErrorString) X(cudnnGetLastErrorString) X(cudnnCreate) X(cudnnDestroy)      \
    X(cudnnSetStream) X(cudnnBackendCreateDescriptor) X(cudnnBackendDestroyDescriptor)                       \
    X(cudnnBackendFinalize) X(cudnnBackendSetAttribute) X(cudnnBackendGetAttribute)                          \
    X(cudnnBackendExecute)
#define NCCL_CALLS(X)                                                                                        \
    X(ncclGetVersion) X(ncclGetUniqueId) X(ncclGetErrorString) X(ncclGetLastError)                           \
    X(ncclCommInitRankConfig) X(ncclCommGetAsyncError) X(ncclCommFinalize) X(ncclCommDestroy)                \
    X(ncclCommAbort) X(ncclMemAlloc) X(ncclMemFree) X(ncclCommRegister) X(ncclCommDeregister)                \
    X(ncclAllReduce) X(ncclReduceScatter) X(ncclAllGather) X(ncclBroadcast) X(ncclGroupStart)                \
    X(ncclGroupEnd)
/* clang-format on */

/* They are called through these pointers, with their names and prototypes. The libraries are loaded when a
 * device or comm is opened: together they are 1.2 GB, take a tenth of a second to load, and need not be
 * installed on machines without a GPU. */
typedef struct cuda_vendors {
#define MEMBER(name) __typeof__(name) *name;
    CUBLASLT_CALLS(MEMBER) CUDNN_CALLS(MEMBER) NCCL_CALLS(MEMBER)
#undef MEMBER
} cuda_vendors;

extern cuda_vendors hvt__nv;

typedef enum cuda_library { CUDA_CUBLASLT, CUDA_CUDNN, CUDA_NCCL, CUDA_LIBRARIES } cuda_library;

/* Load a library once; E_UNSUPPORTED names the file and the loader's error. No function of the library may be
 * called before this succeeds. */
hvt_status hvt__cuda_load(cuda_library which);

#endif /* HVT_CUDA_IMPL_H */
