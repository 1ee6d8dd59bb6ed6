/*
 * Batches: the sampler's samples, fetched as bytes, cropped, mirrored and normalised by the device.
 *
 * A step is one batch from each of S shards; a loader yields those of its own shards, one after the other.
 * Invariant: a batch is a pure function of (data set, seed, epoch, step, shard), and an image's augmentation
 * one of (seed, epoch, sample), so neither ranks nor threads nor the step at which a run began affect it.
 * Everything is allocated at open: twice on the host, so that the next batch is fetched while the device
 * still reads this one; once on the device, whose queue keeps batches apart.
 *
 * Images are fetched by the caller: two (cifar10) to twelve (synth) microseconds for one of 32 x 32 are less
 * than a percent of a training step. For slower sources (JPEG) a thread that calls fetch() for the next batch
 * would fit behind next(), invisible from outside.
 */
#include "hvt/data.h"
#include "data_impl.h"
#include "base/trace.h"
#include "device_impl.h"

#include <math.h>
#include <stdlib.h>

/* The operations that draw. The numbers are private to this file and differ from those that the model's
 * initialisation uses with the same seed. */
enum { DRAW_CROP_Y = 0x0d00, DRAW_CROP_X, DRAW_MIRROR };

enum { CROP_MAX = 127 }; /* offsets are int8_t */

/* A batch in host memory, which the device may still read while the next one is fetched. */
typedef struct slot {
    void *memory;    /* from the device's alloc_host; holds what follows */
    int32_t *labels; /* [batch] */
    uint8_t *bytes;  /* [batch,H,W,C] */
    int8_t *draws;   /* [batch,3] */
    uint32_t *ids;   /* [batch] */
    hvt_mark read;   /* reached when the device has read them */
    bool queued;     /* `read` was set */
} slot;

enum { SLOTS = 2 };

struct hvt_loader {
    const hvt_dataset *set; /* borrowed */
    hvt_device *dev;        /* borrowed */
    hvt_loader_opts opts;
    hvt_dataset_info info;
    size_t image_bytes;
    hvt_augment_args augment;

    uint32_t *order;   /* [count] the epoch's permutation */
    int order_epoch;   /* of which epoch; -1: none yet */
    int *shard_counts; /* [S] of the current step */
    slot slot[SLOTS];
    int next_slot;       /* the slot to fill */
    void *dev_images;    /* [batch,H,W,channels] in the loader's row order, device */
    int32_t *dev_labels; /* [batch] device */

    int epoch, shards_done; /* shards_done: shards of this step already yielded */
    uint32_t step, steps;
};

/* ---- open and close ---------------------------------------------------------------------------------- */

static hvt_status check_opts(const hvt_dataset_info *info, const hvt_loader_opts *o)
{
    int side = info->height < info->width ? info->height : info->width;

    HVT_CHECK(o->batch >= 1, E_ARG, "batch is %d, expected at least 1 image per shard", o->batch);
    HVT_CHECK(o->shards >= 1, E_ARG, "shards is %d, expected at least 1", o->shards);
    HVT_CHECK(o->first_shard >= 0 && o->shard_count >= 1 && o->shard_count <= o->shards &&
                  o->first_shard <= o->shards - o->shard_count,
              E_ARG, "shards %d to %lld asked for, expected some of 0 to %d", o->first_shard,
              (long long)o->first_shard + o->shard_count - 1, o->shards - 1);
    HVT_CHECK(o->last_batch == HVT_LAST_BATCH_KEEP || o->last_batch == HVT_LAST_BATCH_PAD ||
                  o->last_batch == HVT_LAST_BATCH_DROP,
              E_ARG, "last_batch is %d, expected keep, pad or drop", (int)o->last_batch);
    HVT_CHECK(o->type == HVT_F32 || o->type == HVT_F16 || o->type == HVT_BF16, E_ARG,
              "images in %s, expected f32, f16 or bf16", hvt_dtype_name(o->type));
    HVT_CHECK(!o->channels || o->channels >= info->channels, E_ARG,
              "images of %d channels are to be stored with %d", info->channels, o->channels);
    HVT_CHECK(o->crop >= 0 && o->crop <= CROP_MAX && o->crop < side, E_ARG,
              "crop pads by %d pixels, expected 0 to %d for images of %d x %d", o->crop,
              side - 1 < CROP_MAX ? side - 1 : CROP_MAX, info->height, info->width);
    for (int c = 0; c < info->channels; c++) {
        HVT_CHECK(isfinite(o->mean[c]), E_ARG, "mean of channel %d is %g, expected a finite number", c,
                  (double)o->mean[c]);
        HVT_CHECK(isfinite(o->std[c]) && o->std[c] > 0, E_ARG,
                  "std of channel %d is %g, expected a positive number", c, (double)o->std[c]);
    }
    return HVT_OK;
}

static uint32_t count_steps(uint32_t count, const hvt_loader_opts *o)
{
    uint32_t most =
        hvt_sampler_count(count, o->shards, 0, o->last_batch); /* no shard has more than shard 0 */
    uint32_t batch = (uint32_t)o->batch;

    return o->last_batch == HVT_LAST_BATCH_DROP ? most / batch : most / batch + (most % batch > 0);
}

static hvt_status allocate_slot(hvt_loader *l, slot *s)
{
    size_t batch = (size_t)l->opts.batch;

    s->ids = calloc(batch, sizeof *s->ids);
    HVT_CHECK(s->ids, E_MEM, "no memory for the numbers of %zu images", batch);
    HVT_TRY(l->dev->ops->alloc_host(l->dev, batch * (sizeof *s->labels + 3 + l->image_bytes), &s->memory));
    s->labels = s->memory;
    s->bytes = (uint8_t *)(s->labels + batch);
    s->draws = (int8_t *)(s->bytes + batch * l->image_bytes);
    return HVT_OK;
}

static hvt_status allocate(hvt_loader *l)
{
    const hvt_device_ops *ops = l->dev->ops;
    size_t batch = (size_t)l->opts.batch, count = l->info.count;
    size_t pixels = batch * (size_t)l->info.height * (size_t)l->info.width;

    l->order = malloc(count * sizeof *l->order);
    l->shard_counts = calloc((size_t)l->opts.shards, sizeof *l->shard_counts);
    HVT_CHECK(l->order && l->shard_counts, E_MEM, "no memory for the order of %zu images in %d shards", count,
              l->opts.shards);
    for (int i = 0; i < SLOTS; i++)
        HVT_TRY(allocate_slot(l, &l->slot[i]));
    HVT_TRY(
        ops->alloc(l->dev, pixels * (size_t)l->opts.channels * hvt_dtype_size(l->opts.type), &l->dev_images));
    HVT_TRY(ops->alloc(l->dev, batch * sizeof *l->dev_labels, (void **)&l->dev_labels));
    return HVT_OK;
}

hvt_status hvt_loader_open(const hvt_dataset *set, hvt_device *dev, const hvt_loader_opts *opts,
                           hvt_loader **ret_loader)
{
    HVT_GIVEN(set, "a data set");
    HVT_GIVEN(dev, "a device");
    HVT_GIVEN(opts, "options");
    HVT_GIVEN(ret_loader, "an output pointer for the loader");

    const hvt_dataset_info *info = hvt_dataset_describe(set);
    uint32_t steps;
    hvt_loader *l;
    hvt_status s;

    HVT_TRY(check_opts(info, opts));
    steps = count_steps(info->count, opts);
    HVT_CHECK(steps > 0, E_ARG, "%u images cannot fill a global batch of %d x %d", info->count, opts->shards,
              opts->batch);

    l = calloc(1, sizeof *l);
    HVT_CHECK(l, E_MEM, "no memory for a loader (%zu bytes)", sizeof *l);
    l->set = set;
    l->dev = dev;
    hvt__use(&dev->users, HVT__USER_LOADER, 1);
    hvt__dataset_use(set, 1);
    l->opts = *opts;
    l->opts.channels = opts->channels ? opts->channels : info->channels;
    l->info = *info;
    l->steps = steps;
    l->image_bytes = (size_t)info->height * (size_t)info->width * (size_t)info->channels;
    l->order_epoch = -1;
    HVT_TRY_OR(fail, allocate(l));
    HVT_TRY_OR(fail, hvt_loader_rewind(l, 0, 0));

    l->augment = (hvt_augment_args){.order = opts->order,
                                    .n = opts->batch,
                                    .h = info->height,
                                    .w = info->width,
                                    .c = info->channels,
                                    .type = opts->type,
                                    .cx = l->opts.channels,
                                    .dst = l->dev_images,
                                    .dst_labels = l->dev_labels};
    for (int c = 0; c < info->channels; c++) {
        l->augment.scale[c] = (float)(1 / (255.0 * opts->std[c]));
        l->augment.shift[c] = (float)(-(double)opts->mean[c] / opts->std[c]);
    }
    *ret_loader = l;
    return HVT_OK;

fail:
    hvt_loader_close(&l);
    return s;
}

void hvt_loader_close(hvt_loader **loader)
{
    hvt_loader *l;

    if (!loader || !*loader)
        return;
    l = *loader;
    for (int i = 0; i < SLOTS; i++) {
        if (l->slot[i].queued)
            l->dev->ops->await(l->dev, l->slot[i].read);
        l->dev->ops->release_host(l->dev, l->slot[i].memory);
        free(l->slot[i].ids);
    }
    l->dev->ops->release(l->dev, l->dev_labels);
    l->dev->ops->release(l->dev, l->dev_images);
    free(l->shard_counts);
    free(l->order);
    hvt__use(&l->dev->users, HVT__USER_LOADER, -1);
    hvt__dataset_use(l->set, -1);
    free(l);
    *loader = NULL;
}

/* ---- an epoch ---------------------------------------------------------------------------------------- */

uint32_t hvt_loader_steps(const hvt_loader *loader)
{
    if (!loader)
        return 0;
    return loader->steps;
}

hvt_status hvt_loader_rewind(hvt_loader *l, int epoch, uint32_t step)
{
    HVT_GIVEN(l, "a loader");
    HVT_CHECK(epoch >= 0, E_ARG, "epoch is %d, expected 0 or more", epoch);
    HVT_CHECK(step <= l->steps, E_ARG, "step %u asked for, an epoch has %u", step, l->steps);

    if (l->order_epoch < 0 || (l->opts.shuffle && l->order_epoch != epoch)) {
        if (l->opts.shuffle)
            hvt_sampler_permutation(l->opts.seed, epoch, l->info.count, l->order);
        else
            for (uint32_t i = 0; i < l->info.count; i++)
                l->order[i] = i;
        l->order_epoch = epoch;
    }
    l->epoch = epoch;
    l->step = step;
    l->shards_done = 0;
    return HVT_OK;
}

/* Valid images of each shard in the current step. */
static void count_shards(hvt_loader *l)
{
    const hvt_loader_opts *o = &l->opts;
    uint64_t before = (uint64_t)l->step * (uint64_t)o->batch;

    for (int s = 0; s < o->shards; s++) {
        uint64_t all = hvt_sampler_count(l->info.count, o->shards, s, o->last_batch);
        uint64_t left = all > before ? all - before : 0;

        l->shard_counts[s] = left < (uint64_t)o->batch ? (int)left : o->batch;
    }
}

static bool is_drawn(const hvt_loader *l)
{
    return l->opts.crop || l->opts.flip;
}

/* Draw how this sample is cropped and mirrored in this epoch. */
static void draw(const hvt_loader *l, uint32_t id, int8_t ret_draw[3])
{
    uint64_t seed = l->opts.seed, epoch = (uint64_t)l->epoch;
    uint32_t places = 2 * (uint32_t)l->opts.crop + 1;

    ret_draw[0] = (int8_t)((int)hvt__below(hvt__draw(seed, epoch, id, DRAW_CROP_Y), places) - l->opts.crop);
    ret_draw[1] = (int8_t)((int)hvt__below(hvt__draw(seed, epoch, id, DRAW_CROP_X), places) - l->opts.crop);
    ret_draw[2] = l->opts.flip && hvt__below(hvt__draw(seed, epoch, id, DRAW_MIRROR), 2);
}

/* Fetch image i of the shard's batch of this step: id, bytes, label, draws. */
static hvt_status fetch(const hvt_loader *l, slot *s, int shard, int i)
{
    uint32_t nth = (uint32_t)((uint64_t)l->step * (uint64_t)l->opts.batch + (uint64_t)i);
    uint32_t id = l->order[hvt_sampler_at(l->info.count, l->opts.shards, shard, nth)];
    int label;

    HVT_TRY(hvt_dataset_get(l->set, id, s->bytes + (size_t)i * l->image_bytes, &label));
    s->ids[i] = id;
    s->labels[i] = label;
    if (is_drawn(l))
        draw(l, id, s->draws + 3 * i);
    return HVT_OK;
}

static hvt_status fill(hvt_loader *l, slot *s, int shard, int count)
{
    const hvt_device_ops *ops = l->dev->ops;

    if (s->queued) /* the device may still read the batch before last */
        HVT_TRY(ops->await(l->dev, s->read));
    s->queued = false;
    for (int i = 0; i < count; i++)
        HVT_TRY(fetch(l, s, shard, i));
    if (count == 0)
        return HVT_OK;
    l->augment.real = count;
    l->augment.src = s->bytes;
    l->augment.labels = s->labels;
    l->augment.draws = is_drawn(l) ? s->draws : NULL;
    HVT_TRY(ops->augment(l->dev, &l->augment));
    HVT_TRY(ops->mark(l->dev, &s->read));
    s->queued = true;
    return HVT_OK;
}

static void describe(const hvt_loader *l, const slot *filled, int shard, hvt_batch *ret_batch)
{
    int n = l->opts.batch, h = l->info.height, w = l->info.width, c = l->opts.channels;
    hvt_tensor images = {l->dev_images, l->opts.type, 4, {n, h, w, c}};

    if (l->opts.order == HVT_ORDER_HWN)
        images = (hvt_tensor){l->dev_images, l->opts.type, 4, {h, w, n, c}};
    *ret_batch = (hvt_batch){.images = images,
                             .labels = {l->dev_labels, HVT_I32, 1, {n, 1, 1, 1}},
                             .count = l->shard_counts[shard],
                             .shard = shard,
                             .shards = l->opts.shards,
                             .shard_counts = l->shard_counts,
                             .ids = filled->ids};
}

static hvt_status next(hvt_loader *l, hvt_batch *ret_batch, bool *ret_end)
{
    int shard = l->opts.first_shard + l->shards_done;
    slot *s = &l->slot[l->next_slot];

    if (l->step == l->steps) {
        *ret_end = true;
        return HVT_OK;
    }
    if (l->shards_done == 0)
        count_shards(l);
    HVT_TRY(fill(l, s, shard, l->shard_counts[shard]));
    describe(l, s, shard, ret_batch);
    l->next_slot = (l->next_slot + 1) % SLOTS;
    if (++l->shards_done == l->opts.shard_count) {
        l->shards_done = 0;
        l->step++;
    }
    *ret_end = false;
    return HVT_OK;
}

hvt_status hvt_loader_next(hvt_loader *l, hvt_batch *ret_batch, bool *ret_end)
{
    HVT_GIVEN(l, "a loader");
    HVT_GIVEN(ret_batch, "an output pointer for the batch");
    HVT_GIVEN(ret_end, "an output pointer for the end");

    hvt__trace_begin(HVT__DATA, -1);
    return hvt__traced(next(l, ret_batch, ret_end));
}
