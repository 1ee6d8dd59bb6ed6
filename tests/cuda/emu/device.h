/* device.h - CUDA's keywords for g++ and clang++: included before cuda/'s files. */
#ifndef HVT_EMU_DEVICE_H
#define HVT_EMU_DEVICE_H

#include "cuda_runtime_api.h"

#include <stddef.h>
#include <tuple>

#define __global__
#define __device__
#define __host__
#define __grid_constant__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __threadfence() hvt_emu::fence()
#define __syncthreads() hvt_emu::barrier(__FILE__, __LINE__)

struct dim3 {
    unsigned x, y, z;

    dim3(unsigned across = 1, unsigned down = 1, unsigned deep = 1) : x(across), y(down), z(deep)
    {
    }
};

namespace hvt_emu
{

struct place {
    unsigned x, y, z;
};

struct kernel {
    dim3 grid, block;
    void (*drop)(kernel *k);
    void (*thread)(const kernel *k); /* one thread's run */
};

template <class... P> struct call : kernel {
    void (*function)(P...);
    std::tuple<P...> arguments;

    call(dim3 grid, dim3 block, void (*f)(P...), P... p)
        : kernel{
              grid, block, [](kernel *k) { delete (call *)k; },
              [](const kernel *k) { std::apply(((const call *)k)->function, ((const call *)k)->arguments); }},
          function(f), arguments(p...)
    {
    }
};

bool can_launch(dim3 grid, dim3 block, size_t bytes); /* bytes of arguments */
void queue(cudaStream_t stream, kernel *k);
void barrier(const char *file, int line);
void fence();
void *shared(const void *key, size_t bytes); /* the same for all threads of a block that give this key */

template <class... P, class... A>
cudaError_t launch(void (*function)(P...), dim3 grid, dim3 block, cudaStream_t stream, const A &...arguments)
{
    if (!can_launch(grid, block, (sizeof(P) + ... + 0)))
        return cudaErrorInvalidConfiguration;
    queue(stream, new call<P...>(grid, block, function, arguments...));
    return cudaSuccess;
}

} // namespace hvt_emu

extern __thread hvt_emu::place threadIdx, blockIdx, blockDim, gridDim;

#define HVT_LAUNCH(d, kernel, grid, block, ...)                                                              \
    hvt__cuda_launched(d, hvt_emu::launch(kernel, grid, block, hvt__cuda_stream(d), __VA_ARGS__), __FILE__,  \
                       __LINE__, #kernel)

#define HVT_SHARED(type, name)                                                                               \
    static const char name##_key = 0;                                                                        \
    type &name = *(type *)hvt_emu::shared(&name##_key, sizeof(type))

/* Where all threads of a block take part, alike. */
static inline float __shfl_xor_sync(unsigned, float x, int by)
{
    struct lanes {
        float at[1024];
    };
    HVT_SHARED(lanes, s);
    const unsigned me = threadIdx.y * blockDim.x + threadIdx.x;
    float theirs;

    s.at[me] = x;
    __syncthreads();
    theirs = s.at[me ^ (unsigned)by];
    __syncthreads(); /* the next exchange writes there */
    return theirs;
}

/* As CUDA's, atomics order nothing but themselves: what else a thread has written needs a fence. */
static inline unsigned atomicInc(unsigned *at, unsigned most)
{
    const unsigned was = __atomic_load_n(at, __ATOMIC_RELAXED);

    __atomic_store_n(at, was >= most ? 0 : was + 1, __ATOMIC_RELAXED);
    return was;
}

static inline unsigned long long atomicAdd(unsigned long long *at, unsigned long long x)
{
    const unsigned long long was = __atomic_load_n(at, __ATOMIC_RELAXED);

    __atomic_store_n(at, was + x, __ATOMIC_RELAXED);
    return was;
}

static inline unsigned long long atomicMin(unsigned long long *at, unsigned long long x)
{
    const unsigned long long was = __atomic_load_n(at, __ATOMIC_RELAXED);

    __atomic_store_n(at, x < was ? x : was, __ATOMIC_RELAXED);
    return was;
}

#endif /* HVT_EMU_DEVICE_H */
