/* weights.h - a model's tensors in a safetensors file, for checkpoints and --init. */
#ifndef HVT_TRAIN_WEIGHTS_H
#define HVT_TRAIN_WEIGHTS_H

#include "model_impl.h"
#include "train_impl.h"

/* All tensors of the model, but for the head's if skip_head. A file that does not fit leaves it alone.
 * Errors: E_SHAPE, E_FORMAT, E_IO, E_MEM. */
hvt_status hvt__weights_load(hvt_st *st, hvt_model *m, bool skip_head);
/* E_DIVERGED: a number is not finite; `path` is what it was. */
hvt_status hvt__weights_save(const char *path, hvt_model *m, const hvt_st_pair *meta, int pairs);

/* The same of v, which lies as the parameters do. Loading checks tensor by tensor. */
hvt_status hvt__momentum_load(hvt_st *st, hvt_model *m, float *v);
hvt_status hvt__momentum_save(const char *path, hvt_model *m, const float *v, const hvt_st_pair *meta,
                              int pairs);

#endif /* HVT_TRAIN_WEIGHTS_H */
