/*
 * faults.h - kernels that are wrong, to see that the emulator tells.
 */
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

#ifdef __cplusplus
}
#endif

#endif /* HVT_EMU_FAULTS_H */
