/* weights.h - a model's tensors in a safetensors file, for checkpoints and --init. */
#ifndef HVT_TRAIN_WEIGHTS_H
#define HVT_TRAIN_WEIGHTS_H

#include "model_impl.h"
#include "checkpoint_impl.h"

/* All tensors of the model, without those of the head if skip_head. A file that does not fit changes nothing.
 * Errors: E_SHAPE, E_FORMAT, E_IO, E_MEM. */
hvt_status hvt__weights_load(hvt_st *st, hvt_model *m, bool skip_head);
/* E_DIVERGED: a number is not finite; the file at `path` is unchanged. */
hvt_status hvt__weights_save(const char *path, hvt_model *m, const json_t *meta);

/* The same for the momentum v, which is laid out as the parameters are. Loading checks tensor by tensor. */
hvt_status hvt__momentum_load(hvt_st *st, hvt_model *m, float *v);
hvt_status hvt__momentum_save(const char *path, hvt_model *m, const float *v, const json_t *meta);

#endif /* HVT_TRAIN_WEIGHTS_H */
