#include "device.h"
#include "faults.h"

struct word {
    unsigned x;
};

__global__ void faulty_kernel(emu_fault which, unsigned *ret_word)
{
    HVT_SHARED(word, s);
    const bool last = threadIdx.x == blockDim.x - 1;

    if (which == FAULT_EARLY_END && last)
        return;
    if (which != FAULT_UNWRITTEN)
        s.x = threadIdx.x;
    if (which == FAULT_OTHER_BARRIER && last)
        __syncthreads();
    else
        __syncthreads();
    if (threadIdx.x == 0)
        *ret_word = s.x;
}

cudaError_t hvt_emu_faulty(emu_fault which, unsigned *ret_word)
{
    return HVT_LAUNCH(faulty_kernel, 1, which == FAULT_BIG_BLOCK ? 1025 : 64, nullptr, which, ret_word);
}
