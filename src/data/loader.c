/*
 * Batches: the sampler's samples, fetched as bytes (fetch.c) by a ring of workers (ring.c), cropped, mirrored
 * and normalised by the device.
 *
 * A step is one batch from each of S shards; a loader yields those of its own shards, one after the other.
 * Invariant: a batch is a pure function of (data set, seed, epoch, step, shard), and an image's augmentation
 * is a pure function of (seed, epoch, sample). So neither ranks nor threads nor the first step of a run
 * affect them: a batch's slot and each image's place in it are assigned before any work on it starts. Workers
 * do not stop at the end of an epoch: if opts.epochs allows another one, they fetch its first batches while
 * the last batches of this epoch are used, and a seek to its start keeps them. All memory is allocated at
 * open: on the host for the batches that are fetched ahead and those that the device may still read; on the
 * device for one batch, since its queue keeps batches apart.
 *
 * Without workers the caller fetches, with the device's threads if it has any: two (cifar10) to twelve
 * (synth) microseconds for an image of 32 x 32 are less than a percent of a training step on one thread, and
 * a tenth of one on sixteen.
 */
#include "hvt/data.h"
#include "data_impl.h"
#include "fetch.h"
#include "mask.h"
#include "mix.h"
#include "ring.h"
#include "base/trace.h"
#include "device_impl.h"

#include <math.h>

/* Different from the operations of mix.c, fetch.c, view.c and policy.c. */
enum { DRAW_MODEL = 0x0c00, DRAW_COPY };
enum { CROP_MAX = 127 };                       /* crop offsets are int8_t */
enum { REPEATS_MAX = 255, REPEATED_OF = 256 }; /* copies are uint8_t; RASampler's default */
enum { WORKERS_MAX = 256 };
enum { AHEAD = 3, QUEUED = 2 }; /* batches fetched by workers; batches that a device's queue may still read */

/* A batch in host memory. */
typedef struct slot {
    void *memory;    /* from the device's alloc_host; holds the arrays below */
    int32_t *labels; /* [batch] */
    uint32_t *ids;   /* [batch] */
    float *targets;  /* [batch,outputs]; NULL: no targets */
    int32_t *mixed;  /* [batch] the labels that the device gets; NULL: labels */
    int16_t *erased; /* [batch,4]; NULL: nothing is erased */
    uint8_t *pixels; /* [batch,H,W,C] bytes or floats */
    uint8_t *copies; /* [batch] number of the copy of its image */
    int8_t *draws;   /* [batch,3]; NULL: the device neither crops nor mirrors */
    uint8_t *masks;  /* [batch,H,W]; NULL: no masks */
    int epoch;
    hvt_mark read; /* reached when the device has read the arrays */
    bool queued;   /* `read` is set */
} slot;

/* An epoch, or the rest of one. */
typedef struct part {
    int epoch;
    uint32_t first; /* position in the order at step 0 */
    uint32_t last;  /* number of steps to the end of the epoch */
    uint64_t key;   /* key of the epoch's draws in the model */
} part;

typedef struct position {
    part of;
    uint32_t step;
    int shard; /* index among this loader's shards */
} position;

struct hvt_loader {
    const hvt_dataset *set; /* borrowed */
    hvt_device *dev;        /* borrowed */
    hvt_loader_opts opts;
    hvt_dataset_info info; /* with the batches' image size */
    hvt__fetch fetch;
    hvt__fetcher **fetcher; /* [fetchers] one per thread that fetches */
    int fetchers;
    hvt__ring *ring;
    size_t slot_bytes;
    hvt_augment_args augment;
    int outputs;     /* targets per image: the set's, or of mixed labels; 0: none */
    uint32_t images; /* images in an epoch: the set's, unless they are repeated */

    uint32_t *order;   /* [count] the permutation of the epoch of `ahead`, or its balanced draws */
    int32_t *labels;   /* [count] balanced: labels of all images; else NULL */
    uint8_t *copy_of;  /* [count] balanced: earlier draws of the same image */
    int order_epoch;   /* epoch of `order`; -1: none yet */
    int *shard_counts; /* [S] images in the current step */
    uint32_t *ids;     /* [batch] of the last batch */
    slot *slot;        /* [slots] batch n since the ring was last dropped is in slot n % slots */
    int slots;
    uint64_t posted, taken; /* batches since the ring was last dropped */
    void *dev_images;       /* [batch,H,W,channels] in the loader's row order, device */
    int32_t *dev_labels;    /* [batch], of masks [batch,H,W] in the loader's row order, device */
    float *dev_targets;     /* [batch,outputs] device; NULL: no targets */

    position at, ahead; /* positions of the next batch to yield, and to post */
    uint32_t steps;     /* steps in a whole epoch */
    double waited;
};

static hvt_status check_shards(const hvt_loader_opts *o)
{
    HVT_CHECK(o->first_shard >= 0 && o->shard_count >= 1 && o->shard_count <= o->shards &&
                  o->first_shard <= o->shards - o->shard_count,
              E_ARG, "shards %d to %lld requested, expected a range within 0 to %d", o->first_shard,
              (long long)o->first_shard + o->shard_count - 1, o->shards - 1);
    return HVT_OK;
}

static hvt_status check_mixing(const hvt_dataset_info *info, const hvt_loader_opts *o)
{
    HVT_CHECK(o->mixup >= 0 && isfinite(o->mixup) && o->cutmix >= 0 && isfinite(o->cutmix), E_ARG,
              "alpha of mixup is %g, of CutMix %g: expected numbers, 0 or more", (double)o->mixup,
              (double)o->cutmix);
    HVT_CHECK(!hvt__mixes(o) || (!info->unlabelled && o->classes >= info->classes), E_ARG,
              "mixed images have targets of %d classes, but data set '%s' has %d%s", o->classes, info->name,
              info->classes, info->unlabelled ? " and no labels" : "");
    HVT_CHECK(!o->balanced || (o->shuffle && o->repeats <= 1), E_ARG,
              "balanced images are drawn at random: expected shuffle, and no repeats");
    HVT_CHECK(o->repeats >= 0 && o->repeats <= REPEATS_MAX, E_ARG, "each image %d times, expected 1 to %d",
              o->repeats, REPEATS_MAX);
    HVT_CHECK(o->repeats <= 1 || info->count >= REPEATED_OF, E_ARG,
              "repeated images make an epoch of a multiple of %d images, but data set '%s' has %u",
              REPEATED_OF, info->name, info->count);
    return HVT_OK;
}

static hvt_status check_opts(const hvt_dataset_info *info, const hvt_loader_opts *o)
{
    const int channels = hvt_loader_channels(info, o);
    int h, w, side;

    HVT_CHECK(o->batch >= 1, E_ARG, "batch is %d, expected at least 1 image per shard", o->batch);
    HVT_CHECK(o->shards >= 1, E_ARG, "shards is %d, expected at least 1", o->shards);
    HVT_TRY(check_shards(o));
    HVT_CHECK(o->last_batch == HVT_LAST_BATCH_KEEP || o->last_batch == HVT_LAST_BATCH_PAD ||
                  o->last_batch == HVT_LAST_BATCH_DROP,
              E_ARG, "last_batch is %d, expected keep, pad or drop", (int)o->last_batch);
    HVT_CHECK(o->type == HVT_F32 || o->type == HVT_F16 || o->type == HVT_BF16, E_ARG,
              "images in %s, expected f32, f16 or bf16", hvt_dtype_name(o->type));
    HVT_CHECK(!o->channels || o->channels >= channels, E_ARG,
              "images of %d channels do not fit %d stored channels", channels, o->channels);
    HVT_CHECK(o->order == HVT_ORDER_NHW || o->order == HVT_ORDER_HWN, E_ARG,
              "order %d of a batch's rows, expected that of hvt_model_order()", (int)o->order);
    HVT_CHECK(o->epochs >= 0, E_ARG, "epochs is %d, expected 0 or more", o->epochs);
    HVT_CHECK(o->ncpus >= 0 && (o->cpus || !o->ncpus), E_ARG,
              "%d processors for workers, %s list of them: expected 0, or a list", o->ncpus,
              o->cpus ? "with a" : "without a");
    HVT_CHECK(o->workers >= 0 && o->workers <= WORKERS_MAX, E_ARG, "%d workers, expected 0 to %d", o->workers,
              WORKERS_MAX);
    HVT_TRY(hvt__fetch_size(info, o, &h, &w));
    side = h < w ? h : w;
    HVT_CHECK(o->crop >= 0 && o->crop <= CROP_MAX && o->crop < side, E_ARG,
              "crop pads by %d pixels, expected 0 to %d for images of %d x %d", o->crop,
              side - 1 < CROP_MAX ? side - 1 : CROP_MAX, h, w);
    HVT_TRY(hvt__mask_changes(info, o, h, w));
    HVT_TRY(check_mixing(info, o));
    for (int c = 0; c < channels; c++) {
        HVT_CHECK(isfinite(o->mean[c]), E_ARG, "mean of channel %d is %g, expected a finite number", c,
                  (double)o->mean[c]);
        HVT_CHECK(isfinite(o->std[c]) && o->std[c] > 0, E_ARG,
                  "std of channel %d is %g, expected a positive number", c, (double)o->std[c]);
    }
    return HVT_OK;
}

uint32_t hvt_loader_images(const hvt_dataset_info *data, const hvt_loader_opts *o)
{
    uint32_t shards = o && o->shards > 1 ? (uint32_t)o->shards : 1;

    if (!data || !o || o->repeats <= 1)
        return data ? data->count : 0;
    return data->count / REPEATED_OF * REPEATED_OF / shards * shards;
}

static uint32_t steps_of(const hvt_loader_opts *o, uint32_t images)
{
    uint32_t most = hvt_sampler_count(images, o->shards, 0, o->last_batch); /* no shard has more */
    uint32_t batch = (uint32_t)o->batch;

    return most / batch + (o->last_batch != HVT_LAST_BATCH_DROP && most % batch > 0);
}

static hvt_status allocate_slot(hvt_loader *l, slot *s)
{
    size_t batch = (size_t)l->opts.batch, outputs = (size_t)l->outputs;

    HVT_TRY(l->dev->ops->memory.alloc_host(l->dev, l->slot_bytes, &s->memory));
    s->labels = s->memory;
    s->ids = (uint32_t *)(s->labels + batch);
    s->targets = outputs ? (float *)(s->ids + batch) : NULL;
    s->pixels = (uint8_t *)((float *)(s->ids + batch) + batch * outputs);
    if (hvt__mixes(&l->opts)) {
        s->mixed = (int32_t *)s->pixels;
        s->pixels += batch * sizeof *s->mixed;
    }
    if (l->opts.erase > 0) {
        s->erased = (int16_t *)s->pixels;
        s->pixels += batch * 4 * sizeof *s->erased;
    }
    s->copies = s->pixels + batch * l->fetch.image_bytes;
    if (l->info.masks)
        s->masks = s->copies + batch * (sizeof *s->copies + 3);
    if ((l->opts.crop || l->opts.flip) && !l->fetch.edits)
        s->draws = (int8_t *)(s->copies + batch);
    return HVT_OK;
}

static hvt_status allocate(hvt_loader *l)
{
    const hvt_device_ops *ops = l->dev->ops;
    size_t batch = (size_t)l->opts.batch, count = l->info.count;
    size_t pixels = batch * (size_t)l->info.height * (size_t)l->info.width;
    size_t targets = hvt__widens(&l->opts) ? hvt__stored(&l->info, &l->opts) : batch * (size_t)l->outputs;

    l->slots = !l->opts.workers ? QUEUED : AHEAD + (ops->queue.mark ? QUEUED : 0);
    l->slot_bytes = batch * (sizeof *l->slot->labels + sizeof *l->slot->ids + 3 + sizeof *l->slot->copies +
                             (l->opts.erase > 0 ? 4 * sizeof *l->slot->erased : 0) +
                             (hvt__mixes(&l->opts) ? sizeof *l->slot->mixed : 0) + l->fetch.image_bytes +
                             l->fetch.mask_bytes + (size_t)l->outputs * sizeof *l->slot->targets);
    l->order = malloc(count * sizeof *l->order);
    l->shard_counts = calloc((size_t)l->opts.shards, sizeof *l->shard_counts);
    l->ids = calloc(batch, sizeof *l->ids);
    l->slot = calloc((size_t)l->slots, sizeof *l->slot);
    HVT_CHECK(l->order && l->shard_counts && l->ids && l->slot, E_MEM,
              "no memory for the order of %zu images in %d shards", count, l->opts.shards);
    if (l->opts.balanced) {
        l->labels = malloc(count * sizeof *l->labels);
        l->copy_of = malloc(count * sizeof *l->copy_of);
        HVT_CHECK(l->labels && l->copy_of, E_MEM, "no memory for the labels of %zu images", count);
        HVT_TRY(hvt_dataset_labels(l->set, l->labels));
    }
    for (int i = 0; i < l->slots; i++)
        HVT_TRY(allocate_slot(l, &l->slot[i]));
    HVT_TRY(ops->memory.alloc(l->dev, hvt__stored(&l->info, &l->opts) * hvt_dtype_size(l->opts.type),
                              &l->dev_images));
    if (targets)
        HVT_TRY(ops->memory.alloc(l->dev, targets * sizeof *l->dev_targets, (void **)&l->dev_targets));
    return ops->memory.alloc(l->dev, (l->info.masks ? pixels : batch) * sizeof *l->dev_labels,
                             (void **)&l->dev_labels);
}

/* An item of the ring: image i of a slot's batch. */
static hvt_status fetch_item(void *ctx, int worker, int at, int i)
{
    hvt_loader *l = ctx;
    const slot *s = &l->slot[at];
    hvt__target to = {.pixels = s->pixels + (size_t)i * l->fetch.image_bytes,
                      .label = &s->labels[i],
                      .targets = l->info.targets ? s->targets + (size_t)i * (size_t)l->outputs : NULL,
                      .erased = s->erased ? s->erased + 4 * i : NULL,
                      .draw = s->draws ? s->draws + 3 * i : NULL,
                      .mask = s->masks ? s->masks + (size_t)i * l->fetch.mask_bytes : NULL};

    hvt__image image = {s->ids[i], s->epoch, l->opts.seed};

    if (s->copies[i])
        image.seed = hvt__draw(image.seed, s->copies[i], 0, DRAW_COPY);
    return hvt__fetch_image(&l->fetch, l->fetcher[worker], image, &to);
}

static uint32_t image_of_item(void *ctx, int at, int i)
{
    const hvt_loader *l = ctx;

    return l->slot[at].ids[i];
}

static void announce_item(void *ctx, int worker, uint32_t image)
{
    hvt_loader *l = ctx;

    hvt__fetch_ahead(&l->fetch, l->fetcher[worker], image);
}

static void each_item(void *ctx, int items, hvt_job_fn *job, void *job_ctx)
{
    hvt_loader *l = ctx;

    l->dev->ops->parallel_for(l->dev, items, job, job_ctx);
}

static hvt_status open_ring(hvt_loader *l)
{
    const bool shares = !l->opts.workers && !l->fetch.pictures && l->dev->ops->parallel_for;
    hvt__ring_opts ring = {.slots = l->slots,
                           .workers = l->opts.workers,
                           .each = shares ? each_item : NULL,
                           .cpus = l->opts.cpus,
                           .ncpus = l->opts.ncpus,
                           .work = fetch_item,
                           .image_of = image_of_item,
                           .ahead = announce_item,
                           .ctx = l};
    int n = l->opts.workers ? l->opts.workers : shares ? l->dev->threads : 1;

    l->fetcher = calloc((size_t)n, sizeof(hvt__fetcher *));
    HVT_CHECK(l->fetcher, E_MEM, "no memory for %d threads that fetch images", n);
    for (; l->fetchers < n; l->fetchers++)
        HVT_TRY(hvt__fetcher_open(&l->fetch, &l->fetcher[l->fetchers]));
    return hvt__ring_open(&ring, &l->ring);
}

/* x = value * scale + shift; bytes are units of 1/255. */
static hvt_augment_args augmentation(const hvt_loader *l)
{
    const hvt_loader_opts *o = &l->opts;
    double unit = l->info.type == HVT_F32 ? 1.0 : 255.0;
    hvt_augment_args a = {.order = o->order,
                          .n = o->batch,
                          .h = l->info.height,
                          .w = l->info.width,
                          .c = l->info.channels,
                          .floats = l->info.type == HVT_F32,
                          .type = o->type,
                          .cx = o->channels,
                          .dst = l->dev_images,
                          .dst_labels = l->dev_labels,
                          .outputs = l->outputs,
                          .dst_targets = l->dev_targets};

    for (int c = 0; c < l->info.channels; c++) {
        a.scale[c] = (float)(1 / (unit * o->std[c]));
        a.shift[c] = (float)(-(double)o->mean[c] / o->std[c]);
    }
    return a;
}

hvt_status hvt_loader_open(const hvt_dataset *set, hvt_device *dev, const hvt_loader_opts *opts,
                           hvt_loader **ret_loader)
{
    HVT_GIVEN(set, "a data set");
    HVT_GIVEN(dev, "a device");
    HVT_GIVEN(opts, "options");
    HVT_GIVEN(ret_loader, "an output pointer for the loader");

    const hvt_dataset_info *info = hvt_dataset_describe(set);
    hvt_loader *l;
    hvt_status s;

    HVT_TRY(check_opts(info, opts));
    HVT_TRY(hvt__pixels_device(info, opts, dev->ops->host ? NULL : dev->ops->name));
    uint32_t images = hvt_loader_images(info, opts), steps = steps_of(opts, images);

    HVT_CHECK(steps > 0, E_ARG, "%u images cannot fill a global batch of %d x %d", images, opts->shards,
              opts->batch);

    l = calloc(1, sizeof *l);
    HVT_CHECK(l, E_MEM, "no memory for a loader (%zu bytes)", sizeof *l);
    l->set = set;
    l->dev = dev;
    hvt__use(&dev->users, HVT__USER_LOADER, 1);
    hvt__dataset_use(set, 1);
    l->opts = *opts;
    l->opts.channels = opts->channels ? opts->channels : hvt_loader_channels(info, opts);
    l->steps = steps;
    l->images = images;
    l->order_epoch = -1;
    HVT_TRY_OR(fail, hvt__fetch_open(set, &l->opts, &l->fetch));
    l->info = l->fetch.info;
    l->outputs = hvt__mixes(opts) ? opts->classes : l->info.targets;
    HVT_TRY_OR(fail, allocate(l));
    HVT_TRY_OR(fail, open_ring(l));
    l->opts.cpus = NULL; /* the caller owns them */
    HVT_TRY_OR(fail, hvt_loader_rewind(l, 0, 0));
    l->augment = augmentation(l);
    *ret_loader = l;
    return HVT_OK;

fail:
    hvt_loader_close(&l);
    return s;
}

/* Waits until the device has read the batch that was in the slot. */
static hvt_status await_slot(const hvt_loader *l, slot *s)
{
    if (s->queued) {
        hvt__trace_begin(HVT__DEVICE, -1);
        HVT_TRY(hvt__traced(l->dev->ops->queue.await(l->dev, s->read)));
    }
    s->queued = false;
    return HVT_OK;
}

void hvt_loader_close(hvt_loader **loader)
{
    hvt_loader *l = loader ? *loader : NULL;

    if (!l)
        return;
    hvt__ring_close(&l->ring);
    for (int i = 0; i < l->fetchers; i++)
        hvt__fetcher_close(&l->fetcher[i]);
    for (int i = 0; l->slot && i < l->slots; i++) {
        await_slot(l, &l->slot[i]);
        l->dev->ops->memory.release_host(l->dev, l->slot[i].memory);
    }
    l->dev->ops->memory.release(l->dev, l->dev_targets);
    l->dev->ops->memory.release(l->dev, l->dev_labels);
    l->dev->ops->memory.release(l->dev, l->dev_images);
    hvt__fetch_close(&l->fetch);
    free(l->fetcher);
    free(l->slot);
    free(l->ids);
    free(l->shard_counts);
    free(l->order);
    free(l->labels);
    free(l->copy_of);
    hvt__use(&l->dev->users, HVT__USER_LOADER, -1);
    hvt__dataset_use(l->set, -1);
    free(l);
    *loader = NULL;
}

uint32_t hvt_loader_steps(const hvt_loader *loader)
{
    return loader ? loader->steps : 0;
}

void hvt_loader_describe(const hvt_loader *l, hvt_loader_info *ret_info)
{
    if (!ret_info)
        return;
    *ret_info = (hvt_loader_info){0};
    if (!l)
        return;
    ret_info->workers = l->opts.workers;
    ret_info->slots = l->slots;
    ret_info->bytes = (size_t)l->slots * l->slot_bytes;
    ret_info->unlabelled = l->info.unlabelled;
    ret_info->targets =
        l->opts.reconstruct ? l->info.height * l->info.width * l->opts.channels : l->info.targets;
    ret_info->masks = l->info.masks;
    ret_info->wait = l->waited;
    hvt__fetch_count(&l->fetch, l->fetcher, l->fetchers, ret_info);
}

bool hvt_loader_damaged(hvt_loader *l, uint32_t index)
{
    return l && hvt__fetch_damaged(&l->fetch, index);
}

uint32_t hvt_loader_left(const hvt_loader *loader)
{
    return loader ? loader->at.of.last - loader->at.step : 0;
}

static part part_from(const hvt_loader *l, int epoch, uint32_t sample)
{
    uint64_t key = hvt__draw(l->opts.seed, (uint64_t)epoch, 0, DRAW_MODEL);

    return (part){epoch, sample, steps_of(&l->opts, l->images - sample), key ? key : 1};
}

static hvt_status find_order(hvt_loader *l, int epoch)
{
    if (l->order_epoch >= 0 && (!l->opts.shuffle || l->order_epoch == epoch))
        return HVT_OK;
    if (l->opts.balanced)
        HVT_TRY(hvt_sampler_balanced(l->opts.seed, epoch, l->info.count, l->labels, l->order, l->copy_of));
    else if (l->opts.shuffle)
        hvt_sampler_permutation(l->opts.seed, epoch, l->info.count, l->order);
    else
        for (uint32_t i = 0; i < l->info.count; i++)
            l->order[i] = i;
    l->order_epoch = epoch;
    return HVT_OK;
}

/* Continues at a step of a part. At the end of an epoch the first batches of the next epoch may already be
 * posted; they are kept. */
static hvt_status go_to(hvt_loader *l, part of, uint32_t step)
{
    bool follows = l->at.step == l->at.of.last && of.epoch == l->at.of.epoch + 1 && of.first == 0;

    if (follows && step == 0 && l->ahead.of.epoch > l->at.of.epoch) {
        l->at = (position){.of = of};
        return HVT_OK;
    }
    hvt__ring_drop(l->ring);
    HVT_TRY(find_order(l, of.epoch));
    l->at = l->ahead = (position){.of = of, .step = step};
    l->posted = l->taken = 0;
    return HVT_OK;
}

hvt_status hvt_loader_seek(hvt_loader *l, int epoch, uint32_t sample)
{
    HVT_GIVEN(l, "a loader");
    HVT_CHECK(epoch >= 0, E_ARG, "epoch is %d, expected 0 or more", epoch);
    HVT_CHECK(sample <= l->images, E_ARG, "image %u requested, but an epoch has %u", sample, l->images);

    return go_to(l, part_from(l, epoch, sample), 0);
}

hvt_status hvt_loader_rewind(hvt_loader *l, int epoch, uint32_t step)
{
    HVT_GIVEN(l, "a loader");
    HVT_CHECK(epoch >= 0, E_ARG, "epoch is %d, expected 0 or more", epoch);
    HVT_CHECK(step <= l->steps, E_ARG, "step %u requested, but an epoch has %u", step, l->steps);
    return go_to(l, part_from(l, epoch, 0), step);
}

hvt_status hvt_loader_divide(hvt_loader *l, int first_shard, int shard_count)
{
    hvt_loader_opts opts;

    HVT_GIVEN(l, "a loader");
    HVT_CHECK(!l->at.shard, E_ARG, "shards are divided anew in the middle of a step, after %d of %d",
              l->at.shard, l->opts.shard_count);
    opts = l->opts;
    opts.first_shard = first_shard;
    opts.shard_count = shard_count;
    HVT_TRY(check_shards(&opts));
    hvt__ring_drop(l->ring);
    l->opts = opts;
    HVT_TRY(find_order(l, l->at.of.epoch));
    l->ahead = l->at;
    l->posted = l->taken = 0;
    return HVT_OK;
}

/* Returns the number of images of a shard in a position's step. */
static int count_at(const hvt_loader *l, const position *p, int shard)
{
    const hvt_loader_opts *o = &l->opts;
    uint64_t before = (uint64_t)p->step * (uint64_t)o->batch;
    uint64_t all = hvt_sampler_count(l->images - p->of.first, o->shards, shard, o->last_batch);
    uint64_t left = all > before ? all - before : 0;

    return left < (uint64_t)o->batch ? (int)left : o->batch;
}

static void advance(const hvt_loader *l, position *p)
{
    if (++p->shard == l->opts.shard_count) {
        p->shard = 0;
        p->step++;
    }
}

/* True if a batch is left to post, in this epoch or a later one. */
static bool goes_on(const hvt_loader *l)
{
    return l->ahead.step < l->ahead.of.last || (l->opts.workers && l->ahead.of.epoch + 1 < l->opts.epochs);
}

/* The next post begins an epoch; posted batches keep their images. */
static hvt_status begin_epoch(hvt_loader *l)
{
    l->ahead = (position){.of = part_from(l, l->ahead.of.epoch + 1, 0)};
    return find_order(l, l->ahead.of.epoch);
}

/* Posts the next batch to the ring: its images and their places. */
static hvt_status post(hvt_loader *l)
{
    int at = (int)(l->posted % (uint64_t)l->slots), shard = l->opts.first_shard + l->ahead.shard;
    int count = count_at(l, &l->ahead, shard);
    uint64_t first = (uint64_t)l->ahead.step * (uint64_t)l->opts.batch;
    uint64_t repeats = l->opts.repeats > 1 ? (uint64_t)l->opts.repeats : 1;
    slot *s = &l->slot[at];

    HVT_TRY(await_slot(l, s));
    s->epoch = l->ahead.of.epoch;
    for (int i = 0; i < count; i++) {
        uint64_t nth = hvt_sampler_at(l->images, l->opts.shards, shard, (uint32_t)(first + (uint64_t)i));

        nth = (l->ahead.of.first + nth) % l->images; /* padding wraps around */
        s->ids[i] = l->order[nth / repeats];
        s->copies[i] = l->copy_of ? l->copy_of[nth] : (uint8_t)(nth % repeats);
    }
    hvt__ring_post(l->ring, at, count);
    l->posted++;
    advance(l, &l->ahead);
    return HVT_OK;
}

/* Posts batches to the free slots, except the last batch's, which a device with a queue may still read.
 * Without workers only the next batch is posted. */
static hvt_status post_ahead(hvt_loader *l)
{
    uint64_t most = !l->opts.workers ? 1 : (uint64_t)l->slots - (l->dev->ops->queue.mark ? 1 : 0);

    while (goes_on(l) && l->posted < l->taken + most) {
        if (l->ahead.step == l->ahead.of.last)
            HVT_TRY(begin_epoch(l));
        HVT_TRY(post(l));
    }
    return HVT_OK;
}

/* Draws how the batch of the current position is mixed, and makes targets of its labels. */
static hvt_status mix(hvt_loader *l, slot *s, int count)
{
    const position *p = &l->at;
    const uint64_t step = (uint64_t)p->step * (uint64_t)l->opts.batch * (uint64_t)l->opts.shards;
    const uint64_t first = p->of.first + step + (uint64_t)(l->opts.first_shard + p->shard);
    const int h = l->info.height, w = l->info.width;
    const hvt__mixture m = hvt__mix_draw(&l->opts, h, w, p->of.epoch, first);

    l->augment.mixing = (hvt_mixing){m.share, m.top, m.left, m.bottom, m.right};
    return hvt__mix_targets(&m, h, w, l->outputs, count, s->labels, s->targets, s->mixed);
}

/* Waits for the slot's images; the device makes a batch of them. */
static hvt_status take(hvt_loader *l, int at, int count)
{
    const hvt_device_ops *ops = l->dev->ops;
    slot *s = &l->slot[at];
    double began = hvt__now();

    HVT_TRY(hvt__ring_take(l->ring, at));
    if (l->opts.workers)
        l->waited += hvt__now() - began;
    if (count == 0)
        return HVT_OK;
    memcpy(l->ids, s->ids, (size_t)count * sizeof *l->ids);
    if (hvt__mixes(&l->opts))
        HVT_TRY(mix(l, s, count));
    l->augment.real = count;
    l->augment.src = s->pixels;
    l->augment.labels = s->mixed ? s->mixed : s->labels;
    l->augment.draws = s->draws;
    l->augment.erased = s->erased;
    l->augment.targets = l->info.target_h ? NULL : s->targets;
    HVT_TRY(ops->augment(l->dev, &l->augment));
    if (hvt__widens(&l->opts))
        HVT_TRY(ops->vector.cast(l->dev, hvt__stored(&l->info, &l->opts), 1, l->dev_images, l->opts.type,
                                 l->dev_targets, HVT_F32));
    if (l->info.masks)
        hvt__mask_rows(&l->info, l->opts.order, l->opts.batch, count, s->masks, l->dev_labels);
    if (l->info.target_h)
        hvt__target_rows(&l->info, l->opts.order, l->opts.batch, count, s->targets, l->dev_targets);
    if (ops->queue.mark)
        HVT_TRY(ops->queue.mark(l->dev, &s->read));
    s->queued = ops->queue.mark;
    return HVT_OK;
}

static void describe(const hvt_loader *l, int shard, hvt_batch *ret_batch)
{
    const hvt_dataset_info *i = &l->info;
    const hvt_loader_opts *o = &l->opts;
    int n = o->batch, h = i->height, w = i->width;

    *ret_batch = (hvt_batch){.images = hvt__pixels_tensor(o, l->dev_images, o->type, h, w, o->channels),
                             .labels = {l->dev_labels, HVT_I32, 1, {n, 1, 1, 1}},
                             .targets = {l->dev_targets, HVT_F32, 2, {n, l->outputs, 1, 1}},
                             .count = l->shard_counts[shard],
                             .shard = shard,
                             .shards = o->shards,
                             .shard_counts = l->shard_counts,
                             .ids = l->ids,
                             .key = l->at.of.key};
    hvt__pixel_answers(i, o, ret_batch);
}

static hvt_status next(hvt_loader *l, hvt_batch *ret_batch, bool *ret_end)
{
    int shard = l->opts.first_shard + l->at.shard;

    if (l->at.step == l->at.of.last) {
        *ret_end = true;
        return HVT_OK;
    }
    for (int s = 0; l->at.shard == 0 && s < l->opts.shards; s++)
        l->shard_counts[s] = count_at(l, &l->at, s);
    HVT_TRY(post_ahead(l));
    HVT_TRY(take(l, (int)(l->taken % (uint64_t)l->slots), l->shard_counts[shard]));
    l->taken++;
    advance(l, &l->at);
    if (l->opts.workers && !l->dev->ops->queue.mark) /* the slot is free again */
        HVT_TRY(post_ahead(l));
    describe(l, shard, ret_batch);
    *ret_end = false;
    return HVT_OK;
}

static void about(void *ctx, char *ret_text, size_t room)
{
    hvt_loader *l = ctx;

    hvt__fetch_about(&l->fetch, l->fetcher, l->fetchers, ret_text, room);
}

hvt_status hvt_loader_next(hvt_loader *l, hvt_batch *ret_batch, bool *ret_end)
{
    HVT_GIVEN(l, "a loader");
    HVT_GIVEN(ret_batch, "an output pointer for the batch");
    HVT_GIVEN(ret_end, "an output pointer for the end");

    hvt_status s;

    hvt__trace_begin(HVT__DATA, -1);
    hvt__trace_about(about, l);
    s = next(l, ret_batch, ret_end);
    hvt__trace_about(NULL, NULL);
    return hvt__traced(s);
}
