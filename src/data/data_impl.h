/*
 * data_impl.h - what a kind of data set is inside this room.
 *
 * Included by src/data. Nothing else.
 */
#ifndef HVT_DATA_IMPL_H
#define HVT_DATA_IMPL_H

#include "hvt/data.h"
#include "base_impl.h"

#define HVT_SIDE_MAX 16384 /* of an image in pixels: keeps height*width*channels an int */

/* One kind of data set. open() makes a source that its close() ends; opts->limit is not its business. */
typedef struct hvt_format {
    const char *name;
    hvt_status (*open)(const hvt_dataset_opts *opts, hvt_source *ret_source);
} hvt_format;

/* A loader begins to borrow it (1), or gives it back (-1). */
void hvt__dataset_use(const hvt_dataset *set, int by);

extern const hvt_format hvt_format_synth, hvt_format_cifar10;

#endif /* HVT_DATA_IMPL_H */
