/* memory.h - what --wire powersgd adds to a checkpoint: see checkpoint.c and memory.c. */
#ifndef HVT_TRAIN_MEMORY_H
#define HVT_TRAIN_MEMORY_H

#include "optim_impl.h"

/* weights: the hash of those that it belongs to. */
hvt_status hvt__memory_save(const char *path, hvt_model *m, const hvt__powersgd_state *memory,
                            const char *weights);
/* Whole or not at all. Errors: E_IO, E_FORMAT. */
hvt_status hvt__memory_load(const char *path, hvt_model *m, hvt__powersgd_state *memory, const char *weights);

#endif /* HVT_TRAIN_MEMORY_H */
