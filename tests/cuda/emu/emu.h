/*
 * emu.h - an emulator of a GPU's threads: runs cuda/'s kernels, unchanged, on the CPU.
 *
 * A launch runs block after block, and the threads of a block one after another from barrier to barrier, each
 * on its own stack. hvt_emu_order sets the order that a real GPU leaves open: kernels that give the same bits
 * in every order do not depend on it (no harmful race), and a block's shared memory starts as NaNs.
 *
 * Undefined behaviour of a kernel ends the process with a message: a barrier that some threads never reach,
 * or threads of one block at different barriers. Under the address sanitizer reads and writes outside of
 * shared and global memory do, too.
 *
 * A launch goes through hvt_double_launch (tests/cuda/double.h): with the double of the CUDA runtime it runs
 * when the stream does; without, at once. It copies its arguments.
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
