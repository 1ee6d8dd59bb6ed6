/* powersgd_state.h - the sidecar file of --compression powersgd:R. */
#ifndef HVT_TRAIN_MEMORY_H
#define HVT_TRAIN_MEMORY_H

#include "checkpoint_impl.h"
#include "optim_impl.h"

/* weights: the hash of the weights that it belongs to. */
hvt_status hvt__powersgd_state_save(const char *path, hvt_model *m, const hvt__powersgd_state *state,
                                    const char *weights);
/* meta: the metadata of that file. Errors: E_IO, E_FORMAT. */
hvt_status hvt__powersgd_state_load(hvt_st *st, const json_t *meta, hvt_model *m, hvt__powersgd_state *state);

#endif /* HVT_TRAIN_MEMORY_H */
