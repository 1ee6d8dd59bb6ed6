/*
 * bench_loader - the cost of images from their files to batches on the device.
 *
 *     bench_loader [hvtrain's options]
 *
 * Takes hvtrain's options of data (--data, --data-dir, --size, --augment, --erase, --mixup, --cutmix, --mean,
 * --workers, ...), --batch, --amp, --device, --threads, --steps and --max-time, and loads training batches
 * for about ten seconds, or --max-time, or --steps of them, as one rank. On one core: taskset -c 0
 * bench_loader
 * --threads 1 --workers 0 ... A hash over all labels and pixels shows whether two methods fetch the same.
 *
 * Parts, per image and thread, in microseconds: read (opening and reading its file or record), decode
 * (including decompression of skipped rows, and operations on bytes), resample; and of the caller: wait (for
 * workers), and batch (crop, mirror, normalise, erase, mix, round to the activations' type, on the device).
 * cpu is the processor time of all threads, which other programs on the machine change less than the rate.
 * Last line: total N img/s.
 */
#include "train/run.h"
#include "bench.h"
#include "base_impl.h"
#include "device_impl.h"
#include "train/cli/cli_impl.h"

#define SECONDS 10

static void must(hvt_status s)
{
    bench_must("bench_loader", NULL, s);
}

static hvt_dataset *open_set(const hvt_options *o)
{
    hvt_dataset_opts opts = {.dir = o->data_dir,
                             .train = true,
                             .limit = (uint32_t)o->limit,
                             .image_size = o->size,
                             .classes = o->classes,
                             .samples = (uint32_t)o->samples,
                             .val_split = o->val_split};
    hvt_dataset *set = NULL;

    must(hvt_dataset_open(o->data, &opts, &set));
    return set;
}

static hvt_device *open_device(const hvt_options *o, const hvt_resolved *set, hvt_cores *ret_cores)
{
    hvt_device_opts opts = {.pin_caller = false};
    hvt_device *dev = NULL;
    hvt_world *world = NULL;

    must(hvt_world_open("singleton", &world));
    must(hvt_world_cores(world, o->threads, ret_cores));
    hvt_world_close(&world);
    ret_cores->ncpus = 0; /* no pinning */
    opts.threads = ret_cores->threads;
    must(hvt_device_open(set->device, &opts, &dev));
    return dev;
}

static hvt_loader *open_loader(const hvt_dataset *set, hvt_device *dev, const hvt_resolved *r,
                               hvt_loader_opts *opts)
{
    hvt_loader *l = NULL;

    opts->shards = opts->shard_count = 1;
    opts->type = r->amp;
    opts->order = HVT_ORDER_NHW;
    opts->epochs = INT_MAX;
    opts->classes = hvt_dataset_describe(set)->classes;
    must(hvt_loader_open(set, dev, opts, &l));
    return l;
}

/* A hash of the batch's contents. */
static uint64_t hash_batch(hvt_device *dev, const hvt_batch *b, uint64_t h)
{
    size_t image = hvt_tensor_count(&b->images) / (size_t)b->images.dim[0] * hvt_dtype_size(b->images.dtype);
    void *copy = malloc((size_t)b->count * image + 1);

    if (!copy)
        must(HVT_FAIL(E_MEM, "no memory for a copy of a batch"));
    must(dev->ops->memory.download(dev, copy, b->images.data, (size_t)b->count * image));
    h = hvt__hash(hvt__hash(h, b->ids, (size_t)b->count * sizeof *b->ids), copy, (size_t)b->count * image);
    free(copy);
    return h;
}

/* A hash of the first batches, which are not timed, because workers would continue meanwhile. */
static uint64_t hash_first(hvt_loader *l, hvt_device *dev)
{
    enum { BATCHES = 8 };
    uint64_t h = HVT_HASH_INIT;
    bool end = false;
    hvt_batch b;

    for (int i = 0; i < BATCHES && !end; i++) {
        must(hvt_loader_next(l, &b, &end));
        if (!end)
            h = hash_batch(dev, &b, h);
    }
    return h;
}

typedef struct total {
    double seconds, cpu; /* cpu: processor time */
    uint64_t images;
} total;

static double processor_time(void)
{
    struct timespec t;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Loads batches, epoch after epoch. */
static total work(hvt_loader *l, hvt_device *dev, int steps, double seconds)
{
    total t = {0};
    int batches = 0;
    hvt_batch b;
    bool end;
    double began = hvt__now();

    for (int epoch = 0;; epoch++) {
        must(hvt_loader_rewind(l, epoch, 0));
        for (;;) {
            must(hvt_loader_next(l, &b, &end));
            must(hvt_device_sync(dev));
            t.seconds = hvt__now() - began;
            if (end)
                break;
            t.images += (uint64_t)b.count;
            if (steps ? ++batches == steps : t.seconds > seconds)
                return t;
        }
    }
}

/* Prints the work done between two descriptions. */
static void print_parts(const hvt_loader_info *from, const hvt_loader_info *to, const total *t)
{
    double us = 1e6 / (double)(to->images - from->images), each = 1e6 / (double)t->images;
    double read = (to->read - from->read) * us, decode = (to->decode - from->decode) * us;
    double resample = (to->resample - from->resample) * us, wait = (to->wait - from->wait) * each;

    printf("read %.1f, decode %.1f, resample %.1f us of an image; wait %.1f, batch %.1f us\n", read, decode,
           resample, wait, t->seconds * each - (to->workers ? wait : read + decode + resample));
}

int main(int argc, char **argv)
{
    hvt_options o;
    hvt_resolved resolved;
    hvt__loading loading;
    hvt_cores cores;
    hvt_loader_info before, after;
    hvt_dataset *set;
    hvt_device *dev;
    hvt_loader *l;
    double seconds = SECONDS, began;
    total t;

    must(hvt_options_parse(argc, argv, &o));
    hvt__time_read(o.max_time, &seconds);
    must(hvt__resolve(&o, 1, &resolved));
    dev = open_device(&o, &resolved, &cores);
    set = open_set(&o);
    must(hvt__resolve_loading(&o, &resolved, hvt_dataset_describe(set), NULL, &cores, &loading));
    l = open_loader(set, dev, &resolved, &loading.train);
    bench_header("bench_loader", hvt_device_isa(dev), hvt_device_threads(dev));
    hvt_loader_describe(l, &before);
    printf("%s, %u images as %d x %d; batch %d, %d workers, %d batches in %.1f MiB\n",
           hvt_dataset_describe(set)->name, hvt_dataset_describe(set)->count, loading.train.height,
           loading.train.width, loading.train.batch, before.workers, before.slots,
           (double)before.bytes / (1 << 20));
    printf("first batches %016llx\n", (unsigned long long)hash_first(l, dev));
    hvt_loader_describe(l, &before);
    began = processor_time();
    t = work(l, dev, o.steps, seconds);
    t.cpu = processor_time() - began;
    hvt_loader_describe(l, &after);
    print_parts(&before, &after, &t);
    printf("cpu %.1f us of an image\n", 1e6 * t.cpu / (double)t.images);
    printf("total %.0f img/s\n", (double)t.images / t.seconds);
    hvt_loader_close(&l);
    hvt_dataset_close(&set);
    hvt_device_close(&dev);
    return 0;
}
