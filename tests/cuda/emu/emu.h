/*
 * emu.h - the emulator of a GPU's threads: cuda/'s kernels, word for word, run on the CPU.
 *
 * A launch runs block after block, and the threads of a block one after another from barrier to barrier, each
 * on a stack of its own. What a real GPU leaves open is turned by hvt_emu_order: kernels that give the same
 * bits in every order depend on none (no race that matters), and a block's shared memory is fresh NaNs.
 *
 * The process ends with a line that says why where a kernel does what has no meaning: a barrier that some
 * threads never reach, or threads of one block at different barriers. Under the address sanitizer reads and
 * writes outside of shared and global memory end it, too.
 *
 * A launch goes through hvt_double_launch (tests/cuda/double.h): with the double of the CUDA runtime it runs
 * when the stream does; without, at once. It takes its arguments with it.
 */
#ifndef HVT_EMU_H
#define HVT_EMU_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* From now on blocks, and threads between two barriers, run 0: first to last, 1: last to first, else: in an
 * order drawn from the seed. */
void hvt_emu_order(uint64_t seed);

#ifdef __cplusplus
}
#endif

#endif /* HVT_EMU_H */
