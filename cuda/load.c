/*
 * cuBLASLt, cuDNN and NCCL, loaded when a cuda device is opened and not when the program starts: together
 * they are 1.2 GB of libraries, a tenth of a second for every start of a program that may never use a GPU,
 * and a program linked to them does not start at all if they are not installed.
 *
 * Each of their functions that cuda/ calls is in a list below; its line generates a pointer and a function of
 * the vendor's own name and prototype that calls through it. So the other files are written as if the
 * libraries were linked, the vendors' headers check the lists, and a test may replace this file by its own
 * functions of these names.
 */
#include "cuda_impl.h"
#include "config.h"

#include <dlfcn.h>
#include "vendor_names.h"

#include <nccl.h>
#include <pthread.h>
#include <string.h>

/* result, name, parameters, arguments */
#define CUBLASLT_CALLS(X)                                                                                    \
    X(size_t, cublasLtGetVersion, (void), ())                                                                \
    X(const char *, cublasLtGetStatusName, (cublasStatus_t s), (s))                                          \
    X(const char *, cublasLtGetStatusString, (cublasStatus_t s), (s))                                        \
    X(cublasStatus_t, cublasLtCreate, (cublasLtHandle_t * h), (h))                                           \
    X(cublasStatus_t, cublasLtDestroy, (cublasLtHandle_t h), (h))                                            \
    X(cublasStatus_t, cublasLtMatmulDescCreate,                                                              \
      (cublasLtMatmulDesc_t * d, cublasComputeType_t c, cudaDataType_t s), (d, c, s))                        \
    X(cublasStatus_t, cublasLtMatmulDescDestroy, (cublasLtMatmulDesc_t d), (d))                              \
    X(cublasStatus_t, cublasLtMatmulDescSetAttribute,                                                        \
      (cublasLtMatmulDesc_t d, cublasLtMatmulDescAttributes_t a, const void *buf, size_t bytes),             \
      (d, a, buf, bytes))                                                                                    \
    X(cublasStatus_t, cublasLtMatrixLayoutCreate,                                                            \
      (cublasLtMatrixLayout_t * l, cudaDataType t, uint64_t rows, uint64_t cols, int64_t ld),                \
      (l, t, rows, cols, ld))                                                                                \
    X(cublasStatus_t, cublasLtMatrixLayoutDestroy, (cublasLtMatrixLayout_t l), (l))                          \
    X(cublasStatus_t, cublasLtMatmulPreferenceCreate, (cublasLtMatmulPreference_t * p), (p))                 \
    X(cublasStatus_t, cublasLtMatmulPreferenceDestroy, (cublasLtMatmulPreference_t p), (p))                  \
    X(cublasStatus_t, cublasLtMatmulPreferenceSetAttribute,                                                  \
      (cublasLtMatmulPreference_t p, cublasLtMatmulPreferenceAttributes_t a, const void *buf, size_t bytes), \
      (p, a, buf, bytes))                                                                                    \
    X(cublasStatus_t, cublasLtMatmulAlgoGetHeuristic,                                                        \
      (cublasLtHandle_t h, cublasLtMatmulDesc_t d, cublasLtMatrixLayout_t la, cublasLtMatrixLayout_t lb,     \
       cublasLtMatrixLayout_t lc, cublasLtMatrixLayout_t ld, cublasLtMatmulPreference_t p, int most,         \
       cublasLtMatmulHeuristicResult_t results[], int *ret_count),                                           \
      (h, d, la, lb, lc, ld, p, most, results, ret_count))                                                   \
    X(cublasStatus_t, cublasLtMatmul,                                                                        \
      (cublasLtHandle_t h, cublasLtMatmulDesc_t desc, const void *alpha, const void *a,                      \
       cublasLtMatrixLayout_t la, const void *b, cublasLtMatrixLayout_t lb, const void *beta, const void *c, \
       cublasLtMatrixLayout_t lc, void *d, cublasLtMatrixLayout_t ld, const cublasLtMatmulAlgo_t *algo,      \
       void *ws, size_t ws_bytes, cudaStream_t stream),                                                      \
      (h, desc, alpha, a, la, b, lb, beta, c, lc, d, ld, algo, ws, ws_bytes, stream))

#define CUDNN_CALLS(X)                                                                                       \
    X(size_t, cudnnGetVersion, (void), ())                                                                   \
    X(const char *, cudnnGetErrorString, (cudnnStatus_t s), (s))                                             \
    X(void, cudnnGetLastErrorString, (char *text, size_t size), (text, size))                                \
    X(cudnnStatus_t, cudnnCreate, (cudnnHandle_t * h), (h))                                                  \
    X(cudnnStatus_t, cudnnDestroy, (cudnnHandle_t h), (h))                                                   \
    X(cudnnStatus_t, cudnnSetStream, (cudnnHandle_t h, cudaStream_t s), (h, s))                              \
    X(cudnnStatus_t, cudnnBackendCreateDescriptor,                                                           \
      (cudnnBackendDescriptorType_t t, cudnnBackendDescriptor_t * d), (t, d))                                \
    X(cudnnStatus_t, cudnnBackendDestroyDescriptor, (cudnnBackendDescriptor_t d), (d))                       \
    X(cudnnStatus_t, cudnnBackendFinalize, (cudnnBackendDescriptor_t d), (d))                                \
    X(cudnnStatus_t, cudnnBackendSetAttribute,                                                               \
      (cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t a, cudnnBackendAttributeType_t t, int64_t n,  \
       const void *v),                                                                                       \
      (d, a, t, n, v))                                                                                       \
    X(cudnnStatus_t, cudnnBackendGetAttribute,                                                               \
      (cudnnBackendDescriptor_t const d, cudnnBackendAttributeName_t a, cudnnBackendAttributeType_t t,       \
       int64_t most, int64_t *ret_n, void *v),                                                               \
      (d, a, t, most, ret_n, v))                                                                             \
    X(cudnnStatus_t, cudnnBackendExecute,                                                                    \
      (cudnnHandle_t h, cudnnBackendDescriptor_t plan, cudnnBackendDescriptor_t pack), (h, plan, pack))

#define NCCL_CALLS(X)                                                                                        \
    X(ncclResult_t, ncclGetVersion, (int *v), (v))                                                           \
    X(ncclResult_t, ncclGetUniqueId, (ncclUniqueId * id), (id))                                              \
    X(const char *, ncclGetErrorString, (ncclResult_t r), (r))                                               \
    X(const char *, ncclGetLastError, (ncclComm_t c), (c))                                                   \
    X(ncclResult_t, ncclCommInitRankConfig,                                                                  \
      (ncclComm_t * c, int size, ncclUniqueId id, int rank, ncclConfig_t *config),                           \
      (c, size, id, rank, config))                                                                           \
    X(ncclResult_t, ncclCommGetAsyncError, (ncclComm_t c, ncclResult_t * r), (c, r))                         \
    X(ncclResult_t, ncclCommFinalize, (ncclComm_t c), (c))                                                   \
    X(ncclResult_t, ncclCommDestroy, (ncclComm_t c), (c))                                                    \
    X(ncclResult_t, ncclCommAbort, (ncclComm_t c), (c))                                                      \
    X(ncclResult_t, ncclMemAlloc, (void **p, size_t bytes), (p, bytes))                                      \
    X(ncclResult_t, ncclMemFree, (void *p), (p))                                                             \
    X(ncclResult_t, ncclCommRegister, (const ncclComm_t c, void *p, size_t bytes, void **ret),               \
      (c, p, bytes, ret))                                                                                    \
    X(ncclResult_t, ncclCommDeregister, (const ncclComm_t c, void *ret), (c, ret))                           \
    X(ncclResult_t, ncclAllReduce,                                                                           \
      (const void *in, void *out, size_t n, ncclDataType_t t, ncclRedOp_t op, ncclComm_t c, cudaStream_t s), \
      (in, out, n, t, op, c, s))                                                                             \
    X(ncclResult_t, ncclReduceScatter,                                                                       \
      (const void *in, void *out, size_t n, ncclDataType_t t, ncclRedOp_t op, ncclComm_t c, cudaStream_t s), \
      (in, out, n, t, op, c, s))                                                                             \
    X(ncclResult_t, ncclAllGather,                                                                           \
      (const void *in, void *out, size_t n, ncclDataType_t t, ncclComm_t c, cudaStream_t s),                 \
      (in, out, n, t, c, s))                                                                                 \
    X(ncclResult_t, ncclBroadcast,                                                                           \
      (const void *in, void *out, size_t n, ncclDataType_t t, int root, ncclComm_t c, cudaStream_t s),       \
      (in, out, n, t, root, c, s))                                                                           \
    X(ncclResult_t, ncclGroupStart, (void), ())                                                              \
    X(ncclResult_t, ncclGroupEnd, (void), ())

ncclResult_t ncclGroupStart(void), ncclGroupEnd(void); /* nccl.h gives them no prototypes */

#define POINTER(result, name, parameters, arguments) static result(*p_##name) parameters;
#define FUNCTION(result, name, parameters, arguments)                                                        \
    result name parameters                                                                                   \
    {                                                                                                        \
        return p_##name arguments;                                                                           \
    }
#define ENTRY(result, name, parameters, arguments) {#name, (void **)&p_##name},

CUBLASLT_CALLS(POINTER)
CUDNN_CALLS(POINTER)
NCCL_CALLS(POINTER)
CUBLASLT_CALLS(FUNCTION)
CUDNN_CALLS(FUNCTION)
NCCL_CALLS(FUNCTION)

typedef struct entry {
    const char *name;
    void **where; /* function pointers have the representation of data pointers, as dlsym assumes */
} entry;

static const entry cublaslt[] = {CUBLASLT_CALLS(ENTRY){NULL, NULL}},
                   cudnn[] = {CUDNN_CALLS(ENTRY){NULL, NULL}}, nccl[] = {NCCL_CALLS(ENTRY){NULL, NULL}};

static struct library {
    const char *built; /* path at build time; otherwise the loader is asked for the file name */
    const entry *entries;
    void *handle;
} libraries[CUDA_LIBRARIES] = {
    [CUDA_CUBLASLT] = {HVT_LIBCUBLASLT, cublaslt, NULL},
    [CUDA_CUDNN] = {HVT_LIBCUDNN, cudnn, NULL},
    [CUDA_NCCL] = {HVT_LIBNCCL, nccl, NULL},
};
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* Never unloaded: their threads may outlive the device. */
static hvt_status load(struct library *l)
{
    const char *name = strrchr(l->built, '/') + 1;
    void *h = dlopen(l->built, RTLD_NOW | RTLD_LOCAL);

    if (!h)
        h = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    HVT_CHECK(h, E_UNSUPPORTED, "device cuda needs %s, which does not load: %s", name, dlerror());
    for (const entry *e = l->entries; e->name; e++) {
        *e->where = dlsym(h, e->name);
        HVT_CHECK(*e->where, E_UNSUPPORTED,
                  "device cuda: the %s found here has no %s; it is too old or too new", name, e->name);
    }
    l->handle = h;
    return HVT_OK;
}

hvt_status hvt__cuda_load(cuda_library which)
{
    hvt_status s;

    pthread_mutex_lock(&lock);
    s = libraries[which].handle ? HVT_OK : load(&libraries[which]);
    pthread_mutex_unlock(&lock);
    return s;
}
