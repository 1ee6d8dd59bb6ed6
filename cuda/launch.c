/* A device's state for launches. Separate from device_cuda.c, so that tests of the kernels can replace it. */
#include "cuda_impl.h"
#include "kernels.h"

cudaStream_t hvt__cuda_stream(hvt_device *d)
{
    cudaSetDevice(cuda_of(d)->index); /* if it fails, so does the launch */
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
