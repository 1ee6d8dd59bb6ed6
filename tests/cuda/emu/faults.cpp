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
    return hvt_emu::launch(faulty_kernel, 1, which == FAULT_BIG_BLOCK ? 1025 : 64, nullptr, which, ret_word);
}

enum { BLOCKS = 4, LANES = 32 };

struct lanes {
    unsigned x[LANES];
};

/* As norm.cu's sums: word[0] the sum, word[1] the counter, word[2 ...] the parts. */
__global__ void race_kernel(emu_race which, unsigned *word)
{
    HVT_SHARED(lanes, s);
    unsigned *part = word + 2;

    s.x[threadIdx.x] = threadIdx.x;
    if (which != RACE_BARRIER)
        __syncthreads();
    if (threadIdx.x > 0)
        return;
    part[which == RACE_BLOCKS ? 0 : blockIdx.x] = blockIdx.x;
    for (unsigned i = 0; i < LANES; i++)
        part[which == RACE_BLOCKS ? 0 : blockIdx.x] += s.x[i];
    if (which != RACE_FENCE)
        __threadfence();
    if (atomicInc(&word[1], BLOCKS - 1) != BLOCKS - 1)
        return;
    if (which != RACE_FENCE)
        __threadfence();
    for (unsigned b = 0; b < BLOCKS; b++)
        word[0] += part[b];
}

cudaError_t hvt_emu_race(emu_race which, unsigned *word)
{
    return hvt_emu::launch(race_kernel, BLOCKS, LANES, nullptr, which, word);
}
