/*
 * Translation of the vendors' errors: one line with the device, the call, the library's name of the error,
 * which can be looked up, and its text.
 */
#include "cuda_impl.h"

#include <stdio.h>
#include <string.h>

/* "cuda:1 (NVIDIA H200): cudaMalloc", from a call's text without its arguments */
static const char *describe_call(const hvt_device *d, const char *call, char *text, size_t size)
{
    const cuda_device *s = d ? d->state : NULL;
    int name = (int)strcspn(call, "(");

    if (s && s->info.name[0])
        snprintf(text, size, "cuda:%d (%s): %.*s", s->index, s->info.name, name, call);
    else
        snprintf(text, size, "device cuda: %.*s", name, call);
    return text;
}

/* After these errors the process's context is unusable: every later call fails the same way. */
static bool is_final(cudaError_t e)
{
    switch ((int)e) {
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
    case cudaErrorMpsClientTerminated:
    case 226: /* cudaErrorContained */
    case 721: /* cudaErrorTensorMemoryLeak */
    case cudaErrorExternalDevice:
        return true;
    default:
        return false;
    }
}

hvt_status hvt__cuda_check(const hvt_device *d, cudaError_t e, const char *file, int line, const char *call)
{
    hvt_status code = HVT_E_DEVICE;
    char where[160];

    if (e == cudaSuccess)
        return HVT_OK;
    cudaGetLastError(); /* else the next launch would report this one again */
    if (e == cudaErrorMemoryAllocation)
        code = HVT_E_MEM;
    else if (e == cudaErrorNoDevice || e == cudaErrorInsufficientDriver || e == cudaErrorStubLibrary ||
             e == cudaErrorNoKernelImageForDevice)
        code = HVT_E_UNSUPPORTED;
    return hvt__fail(code, file, line, "%s: %s, %s%s", describe_call(d, call, where, sizeof where),
                     cudaGetErrorName(e), cudaGetErrorString(e),
                     is_final(e) ? "; this process cannot use the GPU any more" : "");
}

hvt_status hvt__cudnn_check(const hvt_device *d, cudnnStatus_t e, const char *file, int line,
                            const char *call)
{
    hvt_status code = HVT_E_DEVICE;
    char where[160], text[512] = "";

    if (e == CUDNN_STATUS_SUCCESS)
        return HVT_OK;
    cudnnGetLastErrorString(text, sizeof text);
    text[strcspn(text, "\n")] = '\0';
    if (e == CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED ||
        e == CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED)
        code = HVT_E_MEM;
    else if (CUDNN_STATUS_CATEGORY((int)e) == CUDNN_STATUS_NOT_SUPPORTED)
        code = HVT_E_UNSUPPORTED;
    return hvt__fail(code, file, line, "%s: %s%s%s", describe_call(d, call, where, sizeof where),
                     cudnnGetErrorString(e), text[0] ? ", " : "", text);
}

hvt_status hvt__cublas_check(const hvt_device *d, cublasStatus_t e, const char *file, int line,
                             const char *call)
{
    hvt_status code = HVT_E_DEVICE;
    char where[160];

    if (e == CUBLAS_STATUS_SUCCESS)
        return HVT_OK;
    if (e == CUBLAS_STATUS_ALLOC_FAILED)
        code = HVT_E_MEM;
    else if (e == CUBLAS_STATUS_NOT_SUPPORTED || e == CUBLAS_STATUS_ARCH_MISMATCH)
        code = HVT_E_UNSUPPORTED;
    return hvt__fail(code, file, line, "%s: %s, %s", describe_call(d, call, where, sizeof where),
                     cublasLtGetStatusName(e), cublasLtGetStatusString(e));
}
