/*
 * vendor_names.h - our own names for the functions of cuBLASLt, cuDNN and NCCL that load.c defines.
 *
 * load.c defines a function for each of the vendors' that cuda/ calls. In a static library under their own
 * names they would shadow the real ones of a host program that uses NCCL or cuDNN itself. This header is
 * included before the vendors', so that their prototypes declare our functions, and calls are written as
 * usual.
 */
#ifndef HVT_VENDOR_NAMES_H
#define HVT_VENDOR_NAMES_H

#define cublasLtCreate                       hvt__cublasLtCreate
#define cublasLtDestroy                      hvt__cublasLtDestroy
#define cublasLtGetStatusName                hvt__cublasLtGetStatusName
#define cublasLtGetStatusString              hvt__cublasLtGetStatusString
#define cublasLtGetVersion                   hvt__cublasLtGetVersion
#define cublasLtMatmul                       hvt__cublasLtMatmul
#define cublasLtMatmulAlgoGetHeuristic       hvt__cublasLtMatmulAlgoGetHeuristic
#define cublasLtMatmulDescCreate             hvt__cublasLtMatmulDescCreate
#define cublasLtMatmulDescDestroy            hvt__cublasLtMatmulDescDestroy
#define cublasLtMatmulDescSetAttribute       hvt__cublasLtMatmulDescSetAttribute
#define cublasLtMatmulPreferenceCreate       hvt__cublasLtMatmulPreferenceCreate
#define cublasLtMatmulPreferenceDestroy      hvt__cublasLtMatmulPreferenceDestroy
#define cublasLtMatmulPreferenceSetAttribute hvt__cublasLtMatmulPreferenceSetAttribute
#define cublasLtMatrixLayoutCreate           hvt__cublasLtMatrixLayoutCreate
#define cublasLtMatrixLayoutDestroy          hvt__cublasLtMatrixLayoutDestroy
#define cudnnBackendCreateDescriptor         hvt__cudnnBackendCreateDescriptor
#define cudnnBackendDestroyDescriptor        hvt__cudnnBackendDestroyDescriptor
#define cudnnBackendExecute                  hvt__cudnnBackendExecute
#define cudnnBackendFinalize                 hvt__cudnnBackendFinalize
#define cudnnBackendGetAttribute             hvt__cudnnBackendGetAttribute
#define cudnnBackendSetAttribute             hvt__cudnnBackendSetAttribute
#define cudnnCreate                          hvt__cudnnCreate
#define cudnnDestroy                         hvt__cudnnDestroy
#define cudnnGetErrorString                  hvt__cudnnGetErrorString
#define cudnnGetLastErrorString              hvt__cudnnGetLastErrorString
#define cudnnGetVersion                      hvt__cudnnGetVersion
#define cudnnSetStream                       hvt__cudnnSetStream
#define ncclAllGather                        hvt__ncclAllGather
#define ncclAllReduce                        hvt__ncclAllReduce
#define ncclBroadcast                        hvt__ncclBroadcast
#define ncclCommAbort                        hvt__ncclCommAbort
#define ncclCommDeregister                   hvt__ncclCommDeregister
#define ncclCommDestroy                      hvt__ncclCommDestroy
#define ncclCommFinalize                     hvt__ncclCommFinalize
#define ncclCommGetAsyncError                hvt__ncclCommGetAsyncError
#define ncclCommInitRankConfig               hvt__ncclCommInitRankConfig
#define ncclCommRegister                     hvt__ncclCommRegister
#define ncclGetErrorString                   hvt__ncclGetErrorString
#define ncclGetLastError                     hvt__ncclGetLastError
#define ncclGetUniqueId                      hvt__ncclGetUniqueId
#define ncclGetVersion                       hvt__ncclGetVersion
#define ncclGroupEnd                         hvt__ncclGroupEnd
#define ncclGroupStart                       hvt__ncclGroupStart
#define ncclMemAlloc                         hvt__ncclMemAlloc
#define ncclMemFree                          hvt__ncclMemFree
#define ncclReduceScatter                    hvt__ncclReduceScatter

#endif /* HVT_VENDOR_NAMES_H */
