/*
 * gpu_facts: what device cuda finds on this host, as one JSON object. Ends with 0, or 77 without a GPU.
 *
 *   driver runtime   CUDA versions, as 13000; the driver's is 0 where there is none
 *   error            why there is no GPU, or null
 *   gpus             name, compute capability, multiprocessors, bytes, UUID, and to which others it has
 * direct access libraries        cuBLASLt, cuDNN and NCCL: the path and version of what load.c found, or why
 * it found nothing
 */
#define _GNU_SOURCE /* dladdr */
#include "../../cuda/cuda_impl.h"

#include <dlfcn.h>
#include <stdio.h>

static void print_string(const char *text)
{
    putchar('"');
    for (; *text; text++)
        if (*text == '"' || *text == '\\')
            printf("\\%c", *text);
        else
            putchar((unsigned char)*text < ' ' ? ' ' : *text);
    putchar('"');
}

static void print_library(cuda_library which, const char *name, void *const *function, const char *version)
{
    static bool comma;
    Dl_info from;

    printf("%s{\"name\":\"%s\"", comma ? "," : "", name);
    comma = true;
    if (hvt__cuda_load(which)) {
        printf(",\"error\":");
        print_string(hvt_last_error());
    } else if (dladdr(*function, &from)) {
        void *library = dlopen(from.dli_fname, RTLD_NOW | RTLD_LOCAL);
        void *call = library ? dlsym(library, version) : NULL;
        long number = 0;

        if (which == CUDA_NCCL && call) { /* the one that returns a status */
            int n = 0;

            ((int (*)(int *))call)(&n);
            number = n;
        } else if (call) {
            number = (long)((size_t(*)(void))call)();
        }
        printf(",\"version\":%ld,\"path\":", number);
        print_string(from.dli_fname);
    }
    putchar('}');
}

static void print_gpu(int index, int count)
{
    struct cudaDeviceProp p;

    printf("%s{\"index\":%d", index ? "," : "", index);
    if (cudaGetDeviceProperties(&p, index) == cudaSuccess) {
        printf(",\"name\":");
        print_string(p.name);
        printf(",\"capability\":\"%d.%d\",\"multiprocessors\":%d,\"bytes\":%zu,\"uuid\":\"", p.major, p.minor,
               p.multiProcessorCount, p.totalGlobalMem);
        for (int i = 0; i < 16; i++)
            printf("%02x", (unsigned char)p.uuid.bytes[i]);
        putchar('"');
    }
    printf(",\"direct_access\":[");
    for (int other = 0, listed = 0; other < count; other++) {
        int can = 0;

        if (other != index && cudaDeviceCanAccessPeer(&can, index, other) == cudaSuccess && can)
            printf("%s%d", listed++ ? "," : "", other);
    }
    printf("]}");
}

int main(void)
{
    int driver = 0, runtime = 0, count = 0;
    cudaError_t error;

    cudaDriverGetVersion(&driver);
    cudaRuntimeGetVersion(&runtime);
    error = cudaGetDeviceCount(&count);
    if (error != cudaSuccess)
        count = 0;
    printf("{\"driver\":%d,\"runtime\":%d,\"error\":", driver, runtime);
    if (error != cudaSuccess)
        printf("\"%s: %s\"", cudaGetErrorName(error), cudaGetErrorString(error));
    else
        printf("%s", count ? "null" : "\"no GPU is visible\"");
    printf(",\"gpus\":[");
    for (int i = 0; i < count; i++)
        print_gpu(i, count);
    printf("],\"libraries\":[");
    print_library(CUDA_CUBLASLT, "cuBLASLt", (void **)&hvt__nv.cublasLtCreate, "cublasLtGetVersion");
    print_library(CUDA_CUDNN, "cuDNN", (void **)&hvt__nv.cudnnCreate, "cudnnGetVersion");
    print_library(CUDA_NCCL, "NCCL", (void **)&hvt__nv.ncclAllReduce, "ncclGetVersion");
    printf("]}\n");
    return count ? 0 : 77;
}
