/* A library that has the names of all functions which cuda/ takes from one of NVIDIA's: those of LIST. All
 * are its version: what VERSION returns for cuDNN, and writes for NCCL. */
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
