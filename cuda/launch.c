/*
 * What a kernel's launch needs of its device. Apart from device_cuda.c, so that a test of the kernels can
 * stand in for it.
 */
#include "cuda_impl.h"
#include "kernels.h"

cudaStream_t hvt__cuda_stream(hvt_device *d)
{
    cudaSetDevice(cuda_of(d)->index); /* after a failure the launch fails, too */
    return cuda_of(d)->stream;
}

void *hvt__cuda_scratch(hvt_device *d)
{
    return cuda_of(d)->scratch;
}

hvt_status hvt__cuda_launched(const hvt_device *d, cudaError_t e, const char *file, int line,
                              const char *kernel)
{
    return hvt__cuda_check(d, e, file, line, kernel);
}
