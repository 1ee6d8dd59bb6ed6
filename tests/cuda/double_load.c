/*
 * Replaces load.c: the vendors' libraries are doubles that are linked in. A test may make one of them
 * missing.
 */
#include "double.h"

#include "../../cuda/cuda_impl.h"

#define SET(name) .name = name,

cuda_vendors hvt__nv = {CUBLASLT_CALLS(SET) CUDNN_CALLS(SET) NCCL_CALLS(SET)};

hvt_status hvt__cuda_load(cuda_library which)
{
    static const char *const name[CUDA_LIBRARIES] = {"cuBLASLt", "cuDNN", "NCCL"};

    HVT_CHECK(!hvt_double_enter("hvt__cuda_load"), E_UNSUPPORTED, "%s: told to be missing", name[which]);
    return HVT_OK;
}
