/**
 * @file data.h
 * Datasets are bytes, read from files or generated; the sampler defines the order of samples;
 * loaders turn them into batches.
 */
#ifndef HVT_DATA_H
#define HVT_DATA_H

#include "hvt/device.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- datasets ----------------------------------------------------------------------------- */

typedef struct hvt_dataset hvt_dataset;

/** Description of a dataset. All images have the same size. */
typedef struct hvt_dataset_info {
    const char *name;
    uint32_t count;
    int classes, height, width, channels;
    uint64_t fingerprint; ///< of file sizes and labels (or of the generator): equal on all ranks
} hvt_dataset_info;

/** A user-defined dataset. get() fills [height,width,channels] bytes and a label; it is called from several
 * threads at once. */
typedef struct hvt_source {
    hvt_dataset_info info;
    hvt_status (*get)(void *ctx, uint32_t index, uint8_t *ret_pixels, int *ret_label);
    void (*close)(void *ctx); ///< may be NULL
    void *ctx;
} hvt_source;

typedef struct hvt_dataset_opts {
    const char *dir;  ///< folder that holds the files
    bool train;       ///< the training split, else the test split
    uint32_t limit;   ///< only the first `limit` images; 0 = all
    int image_size;   ///< synth: side in pixels              (0 = 32)
    int classes;      ///< synth: classes                     (0 = 10)
    uint32_t samples; ///< synth: training images; the test split has a fifth (0 = 10000)
} hvt_dataset_opts;

/** "synth": generated on demand; "cifar10": the official binary layout. Errors: E_ARG unknown name, E_IO,
 * E_FORMAT (truncated file, label out of range: names file, record and both values). */
HVT_API hvt_status hvt_dataset_open(const char *name, const hvt_dataset_opts *opts, hvt_dataset **ret_set);
/** A user-defined dataset; source is copied, and only hvt_dataset_close() calls its close(). limit: only the
 * first `limit` images; 0 = all. Errors: E_ARG (no get(), no image, fewer than 2 classes, other than 1 to 3
 * channels, a side beyond 16384), E_MEM. */
HVT_API hvt_status hvt_dataset_from(const hvt_source *source, uint32_t limit, hvt_dataset **ret_set);
/** Call it after its loaders are closed, else it stays open and that is logged: see hvt_device_close(). */
HVT_API void hvt_dataset_close(hvt_dataset **set);
HVT_API const hvt_dataset_info *hvt_dataset_describe(const hvt_dataset *set);
/** Image `index`: [height,width,channels] bytes and a label. May be called from several threads at once.
 * Errors: E_ARG no such image, E_FORMAT a label out of range, and get()'s own. */
HVT_API hvt_status hvt_dataset_get(const hvt_dataset *set, uint32_t index, uint8_t *ret_pixels,
                                   int *ret_label);

/* ---- the sampler -------------------------------------------------------------------------- */

typedef enum hvt_last_batch {
    HVT_LAST_BATCH_KEEP, ///< every sample once; a last batch may be short or empty
    HVT_LAST_BATCH_PAD,  ///< PyTorch's DistributedSampler: the first samples again until shards are even
    HVT_LAST_BATCH_DROP  ///< drop_last=True of DistributedSampler and DataLoader: full batches only
} hvt_last_batch;

/**
 * torch.randperm(count) with a generator seeded seed + epoch, bit for bit (MT19937, 32-bit seed).
 * Source: the golden tables in tests/data/test_sampler.c, made by PyTorch.
 */
HVT_API void hvt_sampler_permutation(uint64_t seed, int epoch, uint32_t count, uint32_t *ret_order);

/** How many samples shard `shard` of `shards` sees in an epoch of `count` samples. */
HVT_API uint32_t hvt_sampler_count(uint32_t count, int shards, int shard, hvt_last_batch last_batch);
/** Its i-th sample as an index into the epoch's order: (shard + i*shards) mod count. */
HVT_API uint32_t hvt_sampler_at(uint32_t count, int shards, int shard, uint32_t i);

/* ---- loaders ------------------------------------------------------------------------------ */

typedef struct hvt_loader hvt_loader;

typedef struct hvt_loader_opts {
    int batch;       ///< images per shard and step
    int shards;      ///< S, shards in the global batch
    int first_shard; ///< this rank's shards: first_shard ...
    int shard_count; ///< ... first_shard + shard_count - 1
    bool shuffle;    ///< permute per epoch, else in order
    hvt_last_batch last_batch;
    uint64_t seed;         ///< of the permutation and of augmentation; same on every rank
    int crop;              ///< random crop of the same size after padding by this many zero pixels; 0 = none
    bool flip;             ///< mirror left-right with probability 1/2
    float mean[3], std[3]; ///< x = (byte/255 - mean) / std, per channel
    hvt_order order;       ///< row order of the batches: hvt_model_order()
    hvt_dtype type;        ///< type of the batches: hvt_model_input_type(), HVT_F32 by default
    int channels; ///< stored per pixel, zeros after the data's own: hvt_model_input_channels(); 0: the data's
} hvt_loader_opts;

/** set and dev are borrowed. Errors: E_ARG (a global batch larger than the set when it must be full, ...),
 * E_MEM. */
HVT_API hvt_status hvt_loader_open(const hvt_dataset *set, hvt_device *dev, const hvt_loader_opts *opts,
                                   hvt_loader **ret_loader);
HVT_API void hvt_loader_close(hvt_loader **loader);
HVT_API uint32_t hvt_loader_steps(const hvt_loader *loader); ///< steps per epoch, the same on every rank
/** Go to the start of step `step` (0-based) of an epoch; draws depend on (seed, epoch, sample) alone. */
HVT_API hvt_status hvt_loader_rewind(hvt_loader *loader, int epoch, uint32_t step);
/** The next shard's batch of the current step, then of the next step; after the last one *ret_end is true and
 * there is no batch. */
HVT_API hvt_status hvt_loader_next(hvt_loader *loader, hvt_batch *ret_batch, bool *ret_end);

#ifdef __cplusplus
}
#endif
#endif /* HVT_DATA_H */
