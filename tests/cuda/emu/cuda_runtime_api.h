/*
 * cuda_runtime_api.h - the part of NVIDIA's header of this name that cuda/kernels.h and the kernels need, so
 * that the emulator is built without a toolkit. Names and values are CUDA's, so objects made with either
 * header link.
 */
#ifndef HVT_EMU_CUDA_RUNTIME_API_H
#define HVT_EMU_CUDA_RUNTIME_API_H

typedef struct CUstream_st *cudaStream_t;

typedef enum cudaError {
    cudaSuccess = 0,
    cudaErrorInvalidValue = 1,
    cudaErrorInvalidConfiguration = 9
} cudaError_t;

#endif /* HVT_EMU_CUDA_RUNTIME_API_H */
