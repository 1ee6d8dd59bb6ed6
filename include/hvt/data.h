/**
 * @file data.h
 * Datasets, the sampler and loaders. A dataset holds bytes, read from files or generated; the sampler defines
 * the order of samples; loaders turn them into batches.
 */
#ifndef HVT_DATA_H
#define HVT_DATA_H

#include "hvt/world.h"

HVT_C_BEGIN

/* ---- datasets ----------------------------------------------------------------------------- */

typedef struct hvt_dataset hvt_dataset;

/** Encoding of an image: a picture file (JPEG, PNG, PNM, BMP, WebP or TIFF, by its first bytes), or pixels
 * [height,width,channels] as bytes or floats. */
typedef enum hvt_encoding { HVT_IMAGE_FILE, HVT_IMAGE_U8, HVT_IMAGE_F32 } hvt_encoding;

#define HVT_IGNORED 255 ///< in a mask: the pixel has no label

/** One image in its source's encoding. Start with {0}, reuse it for any number of reads, then free(data). One
 * thread at a time. */
typedef struct hvt_record {
    uint8_t *data; ///< malloc'ed; hvt_record_reserve() grows it
    size_t bytes;  ///< size of the image
    size_t room;   ///< capacity of data
    hvt_encoding encoding;
    int height, width; ///< of pixels; picture files hold their own
    int label;         ///< -1: the source has none
} hvt_record;

/** Make room for `bytes`. data may move, and its contents are lost. Sets r->bytes. Errors: E_MEM. */
HVT_API hvt_status hvt_record_reserve(hvt_record *r, size_t bytes);

/** Description of a dataset. */
typedef struct hvt_dataset_info {
    const char *name;
    uint32_t count;
    int classes;       ///< 0: unlabelled
    int height, width; ///< 0: images differ in size
    int channels;
    uint64_t fingerprint; ///< hash of file sizes and labels (or of the generator); must be equal on all ranks
    hvt_dtype type;       ///< of pixels: HVT_U8, or HVT_F32 (only with read())
    bool unlabelled;      ///< every label is -1; for predictions, or with targets or masks
    int targets;          ///< floats per image instead of a label; 0: none
    /** > 0: targets are images [targets / (target_h * target_w), target_h, target_w]; 0: vectors. */
    int target_h, target_w;
    /** Each image has a mask, which labels every pixel: 0 to classes - 1, or HVT_IGNORED; classes 0: any. */
    bool masks;
} hvt_dataset_info;

/** A user-defined dataset. Exactly one of get() and read() is given. All functions but close() are called
 * from several threads at once. */
typedef struct hvt_source {
    hvt_dataset_info info;
    /** For images of one size: fill [height,width,channels] bytes and a label. info.type is ignored. */
    hvt_status (*get)(void *ctx, uint32_t index, uint8_t *ret_pixels, int *ret_label);
    /** Fill a record. The function owns its data, bytes and room. */
    hvt_status (*read)(void *ctx, uint32_t index, hvt_record *r);
    /** The label that get() or read() gives image `index`, without reading pixels. NULL: `limit` and
     * val_split choose images without regard to classes. */
    int (*label)(void *ctx, uint32_t index);
    /** Fill [info.targets] floats. Required if that is above 0; the set must be `unlabelled`. */
    hvt_status (*target)(void *ctx, uint32_t index, float *ret_targets);
    /** Fill a record with the mask of image `index`, which has the image's size: a PNG file whose grey or
     * palette values are labels, or HVT_IMAGE_U8 with a byte for each pixel. Required with info.masks; the
     * set must be `unlabelled`. */
    hvt_status (*mask)(void *ctx, uint32_t index, hvt_record *r);
    /** The file that holds a mask, for messages. May be NULL: "the mask of" the image's name. */
    hvt_status (*mask_name)(void *ctx, uint32_t index, char *ret_name, size_t room);
    /** The file or record that holds an image, for messages and predictions. May be NULL: "image 7". */
    hvt_status (*name)(void *ctx, uint32_t index, char *ret_name, size_t room);
    /** Prefetch hint: image `index` will be read soon. Must return at once; may be NULL. */
    void (*ahead)(void *ctx, uint32_t index);
    const char *(*class_name)(void *ctx, int label); ///< may be NULL: classes have numbers only
    void (*close)(void *ctx);                        ///< may be NULL
    void *ctx;
} hvt_source;

typedef struct hvt_dataset_opts {
    const char *dir;  ///< folder that holds the files
    bool train;       ///< the training split, else the test split
    uint32_t limit;   ///< use a sample of `limit` images: see hvt_dataset_open(); 0 = all
    uint64_t seed;    ///< draws this sample
    int image_size;   ///< synth: side in pixels              (0 = 32)
    int classes;      ///< synth: classes (0 = 10); npy, tar: at least as many, even if fewer occur
    uint32_t samples; ///< synth: training images; the test split has a fifth (0 = 10000)
    double val_split; ///< held-out fraction of the training images: see hvt_dataset_open(); 0 = none
    bool flat;        ///< folder, for predictions: if pictures lie beside folders, use all, without labels
    bool reconstruct; ///< images will be their own targets: labels may be missing; targets and masks are not
                      ///< read
    hvt_world
        *world; ///< borrowed; one rank scans for all, and a host's ranks share an index. NULL: one process
} hvt_dataset_opts;

/**
 * Open a data set by its format's name:
 *
 *  - "synth": generated on demand.
 *  - "cifar10", "cifar100" (fine labels), "stl10" (labels 1 to 10 become 0 to 9): the official binary files.
 *  - "npy": {train,test}_images.npy of uint8, float32 or float64, [N,H,W,C], [N,C,H,W] or [N,H,W] with 1 to 3
 *    channels, and {train,test}_labels.npy of integers; without test_labels.npy the test split is unlabelled.
 *    Labels of float32 or float64, [N] or [N,K], are targets, K per image.
 *  - "folder": picture files in DIR/train/CLASS/... and DIR/val/CLASS/..., or, for both splits, in
 *    DIR/CLASS/... Case is ignored. train may also be training; val may be valid, validation, dev or eval,
 *    else test or testing. Images may differ in size.
 *  - "tar": WebDataset's shards, train-*.tar and val-*.tar (the test split), with samples of NAME.jpg (or
 *    another picture) or NAME.npy (uint8 [h,w,3]), and NAME.cls, the label as text; all or none have labels.
 *    Images may differ in size. A file SHARD.hvtindex is kept beside each shard if the folder is writable.
 *
 * Class names are the folders' names ("folder") or the lines of an optional file: batches.meta.txt,
 * fine_label_names.txt, class_names.txt of the official archives, classes.txt beside shards.
 *
 * With val_split = f, round(f * n) of the n training images are held out, the same ones in every run,
 * whatever its seed and ranks. They are the test split, and its files are ignored; the other images are the
 * training split. Both keep the order of the files. A folder without labels is entirely a test split. `limit`
 * keeps a sample of the split, also in file order.
 *
 * Both choices are stratified: each class gets its share, rounded by largest remainders. If at least as many
 * images as classes are chosen, every class has at least one; val_split also leaves one of each class for
 * training. Within a class the chosen images are those that come first in hvt_sampler_permutation(seed, 0,
 * n), with seed 0 for val_split. Sets without labels, or with targets, count as one class.
 *
 * Collective if opts->world is given; errors are agreed then. Errors: E_ARG unknown name, or a split with an
 * empty part; E_IO, E_FORMAT (truncated file, label out of range: names file, record and both values).
 */
HVT_API hvt_status hvt_dataset_open(const char *name, const hvt_dataset_opts *opts, hvt_dataset **ret_set);
/** A user-defined dataset; source is copied, and only hvt_dataset_close() calls its close(). limit: use a
 * sample of `limit` images, with seed 0; 0 = all. Errors: E_ARG (not one of get() and read(), no image,
 * fewer than 2 classes unless it is unlabelled, targets without target() or with labels, other than 1 to 3
 * channels, a side beyond 16384, a type that does not fit), E_MEM. */
HVT_API hvt_status hvt_dataset_from(const hvt_source *source, uint32_t limit, hvt_dataset **ret_set);
/** Close a data set, after its loaders; else it stays open and a line is logged: see hvt_device_close(). */
HVT_API void hvt_dataset_close(hvt_dataset **set);
HVT_API const hvt_dataset_info *hvt_dataset_describe(const hvt_dataset *set); ///< owned by the set
/** Image `index` of a set whose images are bytes of one size: [height,width,channels] bytes and a label, -1
 * if the set is unlabelled. May be called from several threads at once. Errors: E_ARG no such image,
 * E_UNSUPPORTED images of floats, picture files or several sizes (use hvt_dataset_read()), E_FORMAT a label
 * out of range, and the source's. */
HVT_API hvt_status hvt_dataset_get(const hvt_dataset *set, uint32_t index, uint8_t *ret_pixels,
                                   int *ret_label);
/** Image `index` of any set, in its source's encoding. May be called from several threads at once, each with
 * its own record. Errors: E_ARG no such image, E_FORMAT a label out of range or fewer bytes than its size
 * needs, E_MEM, and the source's. */
HVT_API hvt_status hvt_dataset_read(const hvt_dataset *set, uint32_t index, hvt_record *r);
/** The targets of image `index`: info.targets floats. May be called from several threads at once. Errors:
 * E_ARG no such image, a set without targets; E_FORMAT a target that is not finite; the source's. */
HVT_API hvt_status hvt_dataset_targets(const hvt_dataset *set, uint32_t index, float *ret_targets);
/** Labels of all images, as hvt_dataset_read() returns them, without reading images: ret_labels [count].
 * Errors: E_ARG a set without labels, E_UNSUPPORTED a source without label(), E_FORMAT a label out of range.
 */
HVT_API hvt_status hvt_dataset_labels(const hvt_dataset *set, int32_t *ret_labels);
/** The mask of image `index` in its source's encoding, and the name of its file (ret_name[room], or NULL).
 * May be called from several threads at once, each with its own record. Errors: E_ARG no such image, a set
 * without masks; the source's. */
HVT_API hvt_status hvt_dataset_mask(const hvt_dataset *set, uint32_t index, hvt_record *r, char *ret_name,
                                    size_t room);
/** The file or record that holds image `index`, truncated to ret_name[room]. Errors: E_ARG, and the source's.
 */
HVT_API hvt_status hvt_dataset_name(const hvt_dataset *set, uint32_t index, char *ret_name, size_t room);
/** A class's name, owned by the set; NULL if it has none. */
HVT_API const char *hvt_dataset_class_name(const hvt_dataset *set, int label);
/** Number the classes as a model does: label i becomes map[i], 0 to classes - 1, for each of the set's
 * info.classes labels. map is copied. NULL: drop the labels, so that the set is unlabelled. Call it at most
 * once, before loaders are opened. Errors: E_ARG a number out of range, a set that is unlabelled or has been
 * relabelled; E_MEM. */
HVT_API hvt_status hvt_dataset_relabel(hvt_dataset *set, const int32_t *map, int classes);

typedef struct hvt_pack_opts {
    const char *output;    ///< DIR/train-%06d.tar or DIR/val-%06d.tar, formatted with the shard's number
    uint32_t shard_images; ///< images in each shard but the last                          (0 = 5000)
    int resize;            ///< scale larger pictures to this shorter side, as JPEG of quality 92; 0 = keep
    bool exif;             ///< turn pictures by their EXIF orientation, unless they are copied
    bool raw;              ///< write pixels, as NAME.npy of bytes [height,width,3], instead of picture files
    /** Omit up to this many damaged images (E_FORMAT, E_UNSUPPORTED) over all ranks; a warning names each.
     * Copied files are then decoded, too, to check them. 0 = none. */
    int skip_damaged;
    /** Called after each of this rank's `all` images. May be NULL. */
    void (*progress)(void *ctx, uint64_t done, uint64_t all);
    /** Called with a temporary file's name before it is written, and with NULL after it was renamed. May be
     * NULL. */
    void (*writing)(void *ctx, const char *path);
    void *ctx;
} hvt_pack_opts;

typedef struct hvt_pack_info {
    uint64_t shards, images, bytes; ///< written
    uint64_t damaged;               ///< images omitted
} hvt_pack_info;

/**
 * Write a set as WebDataset's shards, which "tar" opens, with their indexes. A sample is NUMBER_NAME.jpg (or
 * .png, ..., with the file's own bytes; or .npy) and NUMBER_NAME.cls, where NAME is the name of the image's
 * file. Every rank writes some of the shards, whose bytes do not depend on the number of ranks. Class names
 * are written to classes.txt. An omitted image leaves a gap in the numbers, and so does a shard without
 * images. world: NULL for one process.
 *
 * Collective; errors are agreed: E_ARG (the form of output), E_IO (a shard exists already or cannot be
 * written; classes.txt has other names), E_UNSUPPORTED (images of floats, a set with targets or masks, other
 * than 3 channels, or pixels without `raw`), and those of reading images.
 */
HVT_API hvt_status hvt_dataset_pack(const hvt_dataset *set, hvt_world *world, const hvt_pack_opts *opts,
                                    hvt_pack_info *ret_info);

/* ---- the sampler -------------------------------------------------------------------------- */

typedef enum hvt_last_batch {
    HVT_LAST_BATCH_KEEP, ///< each sample once; the last batch may be short or empty
    HVT_LAST_BATCH_PAD,  ///< PyTorch's DistributedSampler: repeats the first samples until shards are even
    HVT_LAST_BATCH_DROP  ///< drop_last=True of DistributedSampler and DataLoader: full batches only
} hvt_last_batch;

/**
 * torch.randperm(count) with a generator seeded seed + epoch, bit for bit (MT19937, 32-bit seed).
 * Source: the golden tables in tests/data/test_sampler.c, made by PyTorch.
 */
HVT_API void hvt_sampler_permutation(uint64_t seed, int epoch, uint32_t count, uint32_t *ret_order);

/** Draws `count` images with replacement, all classes with images being equally probable: the distribution of
 * torch.utils.data.WeightedRandomSampler with weights 1 / (images of the class). Draws are keyed by (seed,
 * epoch, position). ret_copy[i] is the number of earlier positions with the same image, modulo 256. labels:
 * [count], 0 or more. Errors: E_ARG a negative label or epoch, E_MEM. */
HVT_API hvt_status hvt_sampler_balanced(uint64_t seed, int epoch, uint32_t count, const int32_t *labels,
                                        uint32_t *ret_order, uint8_t *ret_copy);

/** Number of samples that shard `shard` of `shards` gets in an epoch of `count` samples. */
HVT_API uint32_t hvt_sampler_count(uint32_t count, int shards, int shard, hvt_last_batch last_batch);
/** The shard's i-th sample, as an index into the epoch's order: (shard + i*shards) mod count. */
HVT_API uint32_t hvt_sampler_at(uint32_t count, int shards, int shard, uint32_t i);

/* ---- loaders ------------------------------------------------------------------------------ */

typedef struct hvt_loader hvt_loader;

/** RandomResizedCrop: a random box, by ranges of area and aspect ratio, resampled to the loader's size. */
typedef struct hvt_rrc {
    bool on;
    float least, most;  ///< fraction of the area: 0 < least <= most <= 1; torchvision's are 0.08 and 1
    float narrow, wide; ///< width / height: torchvision's are 3/4 and 4/3
} hvt_rrc;

typedef enum hvt_policy {
    HVT_POLICY_NONE,
    HVT_POLICY_TRIVIAL, ///< TrivialAugmentWide(): one of 14 operations, of random strength
    HVT_POLICY_RAND,    ///< RandAugment(ops, magnitude)
    HVT_POLICY_AUTO     ///< AutoAugment(): two operations, by ImageNet's policy
} hvt_policy;

#define HVT_EDITS_MAX 16

/**
 * Random operations on images of bytes, with the bytes of torchvision's transforms on Pillow images of 1 or 3
 * channels: the nearest pixel, and 0 outside the image. Strengths are distributed as torchvision's, but drawn
 * by (seed, epoch, sample). Source: torchvision 0.29's transforms.py and autoaugment.py, Pillow 13.
 */
typedef struct hvt_edits {
    float jitter[4]; ///< ColorJitter(brightness, contrast, saturation, hue), before the policy; 0: unchanged
    hvt_policy policy;
    int ops, magnitude; ///< HVT_POLICY_RAND: 1 to HVT_EDITS_MAX operations; 0 to 30, of torchvision's 31 bins
} hvt_edits;

typedef struct hvt_loader_opts {
    int batch;       ///< images per shard and step
    int shards;      ///< S, shards in the global batch
    int first_shard; ///< this rank's shards: first_shard
    int shard_count; ///< to first_shard + shard_count - 1
    bool shuffle;    ///< permute per epoch, else in order
    hvt_last_batch last_batch;
    uint64_t seed;     ///< seed of permutation and augmentation; same on every rank
    int height, width; ///< of the batches' images; 0: the data's, whose images must have one size
    hvt_rrc rrc;       ///< a random box of each image; else its centre
    int resize; ///< resample the shorter side to this (>= height and width) before the centre crop; 0: no
    bool exif;  ///< first turn and mirror pictures by their EXIF orientation, as ImageOps.exif_transpose()
    bool grey;  ///< then: three channels of u8 become one, Pillow's L: (19595 R + 38470 G + 7471 B + 32768) /
                ///< 65536, rounded down
    int crop;   ///< then: random crop of the same size after padding by this many pixels; 0 = none
    bool reflect;    ///< pad by reflected pixels, as RandomCrop(padding_mode="reflect"); else by zeros
    bool flip;       ///< mirror left-right with probability 1/2
    bool alternate;  ///< with flip: mirror each image in every second epoch, beginning with a random one of
                     ///< the first two, as airbench (Jordan 2024)
    hvt_edits edits; ///< then: random operations, of bytes with 1 or 3 channels
    float mean[3], std[3]; ///< x = (byte/255 - mean) / std, per channel; of floats x = (value - mean) / std
    float erase;           ///< then: RandomErasing(p): a box of 2 to 33 % of the area becomes 0, with this
                           ///< probability
    float mixup, cutmix;   ///< then: alpha of MixUp and CutMix, 0: off: see hvt_loader_open()
    int classes;           ///< for mixed targets and for masks: hvt_model_classes()
    bool reconstruct;      ///< each image is its own target: see hvt_loader_open()
    int repeats;           ///< use each image so often in a row, drawn anew: see hvt_loader_open(); 0: once
    bool balanced;   ///< draw the epoch's images by hvt_sampler_balanced(); with shuffle, without repeats
    hvt_order order; ///< row order of the batches: hvt_model_order()
    hvt_dtype type;  ///< type of the batches: hvt_model_input_type(), HVT_F32 by default
    int channels; ///< stored per pixel, zeros after the data's: hvt_model_input_channels(); 0: the data's own
    int workers;  ///< threads that fetch at least three batches ahead; 0: hvt_loader_next() fetches
    int epochs;   ///< epochs of the run: workers fetch ahead into the next epoch, except after the last
    const int *cpus; ///< [ncpus] CPUs that workers may use, copied; ncpus 0: those of the caller
    int ncpus;
    int skip_damaged;   ///< damaged images (E_FORMAT) of the set to tolerate; a warning names each
    bool blank_damaged; ///< for evaluation: a damaged image becomes black and keeps its label, so that each
                        ///< counts once; else the set's next image replaces it, with its label and draws
} hvt_loader_opts;

/** A loader's configuration, and its work since it was opened. */
typedef struct hvt_loader_info {
    int workers, slots;            ///< slots: batches in host memory
    size_t bytes;                  ///< of the slots
    int damaged;                   ///< images that were skipped
    bool unlabelled;               ///< the set has no labels
    int targets;                   ///< targets per image; 0: none
    bool masks;                    ///< each pixel has a label
    uint64_t images;               ///< images fetched
    double read, decode, resample; ///< seconds of all threads together
    double wait;                   ///< seconds that hvt_loader_next() waited for workers
} hvt_loader_info;

/** Channels of the batches' images, without those added for storage. */
HVT_API int hvt_loader_channels(const hvt_dataset_info *data, const hvt_loader_opts *opts);
/** Images of an epoch: the set's, unless opts->repeats selects fewer. */
HVT_API uint32_t hvt_loader_images(const hvt_dataset_info *data, const hvt_loader_opts *opts);
/** True if the set's images are used unchanged, neither resampled nor cropped. */
HVT_API bool hvt_loader_copies(const hvt_dataset_info *data, const hvt_loader_opts *opts);
/**
 * Open a loader, which makes a set's images into batches for a device. set and dev are borrowed.
 *
 * mixup, cutmix: each shard's batch is mixed as by torchvision.transforms.v2, with a share drawn from
 * Beta(alpha, alpha). MixUp replaces image x[n] by share * x[n] + (1 - share) * x[n-1]; CutMix pastes into
 * x[n] a box of x[n-1] with 1 - share of the area. x[-1] is the last image. With both, each batch draws one
 * of them. Batches then have targets, the labels' one-hot rows mixed in the same proportion, for a
 * cross-entropy of soft targets; a label is the class of its row's largest target.
 *
 * repeats = R: as torchvision's RASampler(repetitions=R). The epoch's order has each image R times in a row.
 * The copies have different boxes, crops and operations, and are in different shards if there are enough. An
 * epoch is the beginning of this order: each of S shards gets count / 256 * 256 / S images.
 *
 * Masks get the box, size, crop and mirroring of their images, by nearest-neighbour sampling, and HVT_IGNORED
 * outside; colours and erased boxes leave masks unchanged. The batch's labels are those of its pixels, with
 * -1 for HVT_IGNORED. Target images get crops and mirroring, with 0 outside, if they have the images' size.
 * With reflect, crops of masks and target images are padded by reflection, too.
 *
 * reconstruct: targets are the batch's images after all changes, normalised and rounded to its type, as f32.
 * The set's labels are ignored. The set must have neither targets nor masks.
 *
 * Errors: E_ARG (a global batch larger than the set when it must be full, sizes and transforms that do not
 * fit, mixing without labels), E_UNSUPPORTED (resampling or grey for floats or other than three channels;
 * masks and target images on a GPU, with mixing, or with a policy of random operations; resampling for target
 * images; reconstruct on a GPU, with mixing, targets or masks), E_MEM.
 */
HVT_API hvt_status hvt_loader_open(const hvt_dataset *set, hvt_device *dev, const hvt_loader_opts *opts,
                                   hvt_loader **ret_loader);
HVT_API void hvt_loader_close(hvt_loader **loader);
HVT_API void hvt_loader_describe(const hvt_loader *loader, hvt_loader_info *ret_info);
/** True if image `index` was damaged and skipped (skip_damaged) in a batch so far. */
HVT_API bool hvt_loader_damaged(hvt_loader *loader, uint32_t index);
HVT_API uint32_t hvt_loader_steps(const hvt_loader *loader); ///< steps per epoch, the same on every rank
/** Go to the start of step `step` (0-based) of an epoch; draws depend only on (seed, epoch, sample). */
HVT_API hvt_status hvt_loader_rewind(hvt_loader *loader, int epoch, uint32_t step);
/**
 * Go to the position after `sample` images of the epoch's order. The rest is divided among the shards as an
 * epoch is: shard s takes those at sample + s, sample + s + shards, ... k * batch * shards is the start of
 * step k. With another batch size or number of shards each remaining image is still used once.
 */
HVT_API hvt_status hvt_loader_seek(hvt_loader *loader, int epoch, uint32_t sample);
/** Load other shards of the same global batch from the current step on, because ranks have divided the shards
 * anew. Call it between steps. Batches that workers have fetched ahead are fetched again. Errors: E_ARG (no
 * such shards, in the middle of a step). */
HVT_API hvt_status hvt_loader_divide(hvt_loader *loader, int first_shard, int shard_count);
HVT_API uint32_t hvt_loader_left(const hvt_loader *loader); ///< steps from here to the end of the epoch
/** The next shard's batch of the current step, then of the next step. After the last one *ret_end is true,
 * without a batch. Errors: those of an image of this batch, naming its file, whichever thread fetched it. */
HVT_API hvt_status hvt_loader_next(hvt_loader *loader, hvt_batch *ret_batch, bool *ret_end);

HVT_C_END
#endif /* HVT_DATA_H */
