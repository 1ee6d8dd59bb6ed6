/**
 * @file train.h
 * What hvtrain does, as a library call.
 */
#ifndef HVT_TRAIN_H
#define HVT_TRAIN_H

#include "hvt/data.h"
#include "hvt/optim.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Exact loss, top-1 and top-5 over a loader's images on all ranks: each image's loss is rounded to 2^-24 and
 *  summed as an integer, counts are counts, and one sum over ranks ends it; so the result is equal for every
 *  partition. Collective. Errors: E_DIVERGED naming the first image whose loss is not finite. */
HVT_API hvt_status hvt_evaluate(hvt_model *m, hvt_loader *loader, hvt_world *world, hvt_loss *ret_loss);

#ifdef __cplusplus
}
#endif
#endif /* HVT_TRAIN_H */
