/*
 * data_impl.h - the interface of a data set format.
 *
 * Included by src/data. Nothing else.
 */
#ifndef HVT_DATA_IMPL_H
#define HVT_DATA_IMPL_H

#include "hvt/data.h"
#include "base_impl.h"

#define HVT_SIDE_MAX 16384 /* of an image in pixels: keeps height*width*channels an int */

/* A data set format. open() makes a source, which the source's close() frees; the caller handles
 * opts->limit. */
typedef struct hvt_format {
    const char *name;
    hvt_status (*open)(const hvt_dataset_opts *opts, hvt_source *ret_source);
} hvt_format;

/* Count a loader as user (1), or no longer (-1). */
void hvt__dataset_use(const hvt_dataset *set, int by);

extern const hvt_format hvt_format_synth, hvt_format_cifar10;

#endif /* HVT_DATA_IMPL_H */
