/*
 * Translation of the vendors' errors: one line with the device, the call, and the library's name (to look up)
 * and text of the error.
 */
#include "cuda_impl.h"

/* "cuda:1 (NVIDIA H200): cudaMalloc: NAME, TEXT"; call is reduced to the name of the function or kernel */
static hvt_status report(const hvt_device *d, bool no_memory, bool unsupported, const char *file, int line,
                         const char *call, const char *name, const char *text)
{
    hvt_status code = no_memory ? HVT_E_MEM : unsupported ? HVT_E_UNSUPPORTED : HVT_E_DEVICE;
    const cuda_device *s = d ? d->state : NULL;
    const char *from = call + (*call == '('), *comma = text[0] ? ", " : "";
    int length = (int)strcspn(from, "(<");

    if (s && s->info.name[0])
        return hvt__fail(code, file, line, "cuda:%d (%s): %.*s: %s%s%s", s->index, s->info.name, length, from,
                         name, comma, text);
    return hvt__fail(code, file, line, "device cuda: %.*s: %s%s%s", length, from, name, comma, text);
}

/* True for errors after which the process's context is unusable, so that every later call fails the same way.
 */
static bool is_final(cudaError_t e)
{
    enum { CONTAINED = 226, TENSOR_MEMORY_LEAK = 721 }; /* not in every version's headers */

    return e == cudaErrorECCUncorrectable || e == cudaErrorNvlinkUncorrectable ||
           e == cudaErrorIllegalAddress || e == cudaErrorLaunchTimeout || e == cudaErrorAssert ||
           e == cudaErrorHardwareStackError || e == cudaErrorIllegalInstruction ||
           e == cudaErrorMisalignedAddress || e == cudaErrorInvalidAddressSpace || e == cudaErrorInvalidPc ||
           e == cudaErrorLaunchFailure || e == cudaErrorMpsClientTerminated || e == cudaErrorExternalDevice ||
           (int)e == CONTAINED || (int)e == TENSOR_MEMORY_LEAK;
}

hvt_status hvt__cuda_check(const hvt_device *d, cudaError_t e, const char *file, int line, const char *call)
{
    bool missing = e == cudaErrorNoDevice || e == cudaErrorInsufficientDriver || e == cudaErrorStubLibrary ||
                   e == cudaErrorNoKernelImageForDevice;
    char text[256];

    if (e == cudaSuccess)
        return HVT_OK;
    cudaGetLastError(); /* otherwise the next launch would report it again */
    snprintf(text, sizeof text, "%s%s", cudaGetErrorString(e),
             is_final(e) ? "; this process cannot use the GPU any more" : "");
    return report(d, e == cudaErrorMemoryAllocation, missing, file, line, call, cudaGetErrorName(e), text);
}

hvt_status hvt__cudnn_check(const hvt_device *d, cudnnStatus_t e, const char *file, int line,
                            const char *call)
{
    bool no_memory = e == CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED ||
                     e == CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED;
    bool unsupported = CUDNN_STATUS_CATEGORY((int)e) == CUDNN_STATUS_NOT_SUPPORTED;
    char text[512] = "";

    if (e == CUDNN_STATUS_SUCCESS)
        return HVT_OK;
    hvt__nv.cudnnGetLastErrorString(text, sizeof text);
    text[strcspn(text, "\n")] = '\0';
    return report(d, no_memory, unsupported, file, line, call, hvt__nv.cudnnGetErrorString(e), text);
}

hvt_status hvt__cublas_check(const hvt_device *d, cublasStatus_t e, const char *file, int line,
                             const char *call)
{
    bool unsupported = e == CUBLAS_STATUS_NOT_SUPPORTED || e == CUBLAS_STATUS_ARCH_MISMATCH;

    if (e == CUBLAS_STATUS_SUCCESS)
        return HVT_OK;
    return report(d, e == CUBLAS_STATUS_ALLOC_FAILED, unsupported, file, line, call,
                  hvt__nv.cublasLtGetStatusName(e), hvt__nv.cublasLtGetStatusString(e));
}
