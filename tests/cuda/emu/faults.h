/* faults.h - faulty kernels, to test that the emulator reports them. */
#ifndef HVT_EMU_FAULTS_H
#define HVT_EMU_FAULTS_H

#include "cuda_runtime_api.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum emu_fault {
    FAULT_RACE,          /* all threads write one word of shared memory, thread 0 reads it */
    FAULT_UNWRITTEN,     /* shared memory is read before it is written */
    FAULT_EARLY_END,     /* the last thread ends before the barrier */
    FAULT_OTHER_BARRIER, /* the last thread waits at a barrier of its own */
    FAULT_BIG_BLOCK      /* more threads than a block may have */
} emu_fault;

/* ret_word: what thread 0 read */
cudaError_t hvt_emu_faulty(emu_fault which, unsigned *ret_word);

typedef enum emu_race {
    RACE_NONE,    /* the last block to come adds what all have written, and everything is in order */
    RACE_BARRIER, /* without the barrier between threads that write and the one that reads */
    RACE_BLOCKS,  /* all blocks write one word */
    RACE_FENCE,   /* without the fence between what a block has written and that it has come */
    RACES
} emu_race;

enum { RACE_WORDS = 8 }; /* all 0 before */

/* word[0] becomes the sum of the numbers of all threads of all blocks, and of the blocks. */
cudaError_t hvt_emu_race(emu_race which, unsigned *word);

#ifdef __cplusplus
}
#endif

#endif /* HVT_EMU_FAULTS_H */
