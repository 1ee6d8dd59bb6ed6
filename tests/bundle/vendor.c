/* A library that has the names of all functions which cuda/ takes from one of NVIDIA's: those of LIST. */
#include "../../cuda/cuda_impl.h"

#define DEFINE(name) __asm__(".globl " #name "\n.type " #name ", @function\n" #name ": .byte 0xcc\n");

__asm__(".text\n");
LIST(DEFINE)
