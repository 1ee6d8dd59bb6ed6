/* A library with the names of all functions that cuda/ uses from one of NVIDIA's: those of LIST. All of them
 * give its version: they return VERSION for cuDNN, and write it for NCCL. */
#include "../../cuda/cuda_impl.h"

#define ALIAS(name) __asm__(".globl " #name "\n.set " #name ", any\n");

#ifdef HVT_RETURNS_VERSION
size_t any(void);
size_t any(void)
{
    return VERSION;
}
#else
int any(int *ret);
int any(int *ret)
{
    *ret = VERSION;
    return 0;
}
#endif

LIST(ALIAS)
