/*
 * mix.h - mixup and CutMix: how the images of a batch are mixed, and its soft targets.
 *
 * Included by src/data.
 */
#ifndef HVT_DATA_MIX_H
#define HVT_DATA_MIX_H

#include "hvt/data.h"

/* How a batch is mixed. In the box, image n becomes share * itself + (1 - share) * the image before it. */
typedef struct hvt__mixture {
    float share;
    int top, left, bottom, right; /* bottom and right are outside */
} hvt__mixture;

static inline bool hvt__mixes(const hvt_loader_opts *o)
{
    return o->mixup > 0 || o->cutmix > 0;
}

/* Draws the mix of the batch whose first image is number `first` of the epoch's order. */
hvt__mixture hvt__mix_draw(const hvt_loader_opts *o, int h, int w, int epoch, uint64_t first);
/* Fills targets [count,classes] from labels [count], and ret_labels with the class of each row's larger
 * target. Errors: E_ARG a label without a target. */
hvt_status hvt__mix_targets(const hvt__mixture *m, int h, int w, int classes, int count,
                            const int32_t *labels, float *ret_targets, int32_t *ret_labels);

#endif /* HVT_DATA_MIX_H */
