/*
 * libcuda.so.1 for tests of plans without a driver. If cuDNN cannot load this library, it omits engines that
 * are compiled at plan time, and from 9.28 on all engines. With it they are compiled for a described GPU;
 * nothing can run: a program that loads this finds no GPU. It has what cuDNN 9.8 to 9.28 look for.
 */
enum { STUB_LIBRARY = 34 }; /* CUDA_ERROR_STUB_LIBRARY */

#define CALLS_THAT_LOAD(X) X(cuLibraryLoadData) X(cuLibraryGetKernel)
/* clang-format off */
#define CALLS_THAT_FAIL(X)                                                                                   \
    X(cuCtxGetCurrent) X(cuCtxGetDevice) X(cuCtxGetLimit) X(cuCtxPopCurrent) X(cuCtxPushCurrent)             \
    X(cuDeviceGet) X(cuDeviceGetAttribute) X(cuDeviceGetCount) X(cuDevicePrimaryCtxRelease)                  \
    X(cuDevicePrimaryCtxReset) X(cuDevicePrimaryCtxRetain) X(cuDriverGetVersion) X(cuFuncGetAttribute)       \
    X(cuFuncSetAttribute) X(cuGetErrorName) X(cuKernelGetFunction) X(cuGetErrorString) X(cuInit) X(cuKernelGetAttribute)            \
    X(cuKernelSetAttribute) X(cuLaunchCooperativeKernel) X(cuLaunchKernel) X(cuLaunchKernelEx)               \
    X(cuLibraryLoadFromFile) X(cuLibraryUnload) X(cuLinkAddData) X(cuLinkAddData_v2) X(cuLinkAddFile_v2)     \
    X(cuLinkComplete) X(cuLinkCreate) X(cuLinkCreate_v2) X(cuLinkDestroy) X(cuMemcpyDtoH_v2)                 \
    X(cuModuleGetFunction) X(cuModuleGetGlobal_v2) X(cuModuleLoadData) X(cuModuleLoadDataEx)                 \
    X(cuModuleLoadFatBinary) X(cuModuleUnload) X(cuOccupancyMaxActiveBlocksPerMultiprocessor)                \
    X(cuOccupancyMaxPotentialClusterSize) X(cuStreamGetCtx) X(cuStreamSynchronize)                           \
    X(cuTensorMapEncodeIm2col) X(cuTensorMapEncodeTiled)
/* clang-format on */

#define LOAD(name)                                                                                           \
    int name(void **ret);                                                                                    \
    int name(void **ret)                                                                                     \
    {                                                                                                        \
        static char something;                                                                               \
                                                                                                             \
        if (ret)                                                                                             \
            *ret = &something;                                                                               \
        return 0;                                                                                            \
    }
#define FAIL(name)                                                                                           \
    int name(void);                                                                                          \
    int name(void)                                                                                           \
    {                                                                                                        \
        return STUB_LIBRARY;                                                                                 \
    }

CALLS_THAT_LOAD(LOAD)
CALLS_THAT_FAIL(FAIL)
