/* batches.h - loaders' options for tests, and the pixels of a batch. */
#ifndef HVT_TESTS_DATA_BATCHES_H
#define HVT_TESTS_DATA_BATCHES_H

#include "device_impl.h"
#include "own_set.h"

static inline hvt_loader_opts loader_opts(int batch, int shards)
{
    return (hvt_loader_opts){.batch = batch,
                             .shards = shards,
                             .shard_count = shards,
                             .shuffle = true,
                             .seed = 11,
                             .mean = {.5f, .25f, .125f},
                             .std = {.5f, .25f, 2}};
}

/* The pixel of image n of a batch, in whatever order it lies. */
static inline const float *pixel(const hvt_batch *b, int n, int y, int x)
{
    const int *d = b->images.dim;
    const float *at = b->images.data;

    if (b->images.ndim == 4 && d[2] == b->labels.dim[0] && d[0] != d[2])
        return at + (((size_t)y * (size_t)d[1] + (size_t)x) * (size_t)d[2] + (size_t)n) * (size_t)d[3];
    return at + (((size_t)n * (size_t)d[1] + (size_t)y) * (size_t)d[2] + (size_t)x) * (size_t)d[3];
}

#endif /* HVT_TESTS_DATA_BATCHES_H */
