/* Workers of loaders: what they fetch, how far ahead, and what happens to images that cannot be fetched. */
#include "base/trace.h"
#include "device_impl.h"
#include "logged.h"
#include "own_set.h"

#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

static hvt_device *ref;

/* Images of bytes, each of its own size; number `bad` is damaged, `gone` cannot be read. */
typedef struct odd {
    int bad, bad_too, gone;
    bool floats, unlabelled;
    atomic_int reads;
    atomic_bool held; /* readers wait while it is set */
    bool slow;
    atomic_int announced[64];
} odd;

static hvt_status odd_read(void *ctx, uint32_t index, hvt_record *r)
{
    odd *o = ctx;
    int h = o->floats ? 5 : 3 + (int)(index * 7 % 11), w = o->floats ? 4 : 2 + (int)(index * 5 % 13);
    size_t count = (size_t)h * (size_t)w * 3;

    atomic_fetch_add(&o->reads, 1);
    while (atomic_load(&o->held))
        usleep(100);
    if (o->slow)
        usleep(500);
    r->label = o->unlabelled ? -1 : (int)(index % 7);
    r->encoding = o->floats ? HVT_IMAGE_F32 : HVT_IMAGE_U8;
    r->height = h;
    r->width = w;
    HVT_CHECK((int)index != o->bad && (int)index != o->bad_too, E_FORMAT, "odd/%u is damaged", index);
    HVT_CHECK((int)index != o->gone, E_IO, "odd/%u is gone", index);
    HVT_TRY(hvt_record_reserve(r, count * (o->floats ? sizeof(float) : 1)));
    for (size_t i = 0; i < count; i++)
        if (o->floats)
            ((float *)(void *)r->data)[i] = (float)(i + 100 * index);
        else
            r->data[i] = (uint8_t)hvt__draw(index, i, 0, 0);
    return HVT_OK;
}

static void odd_ahead(void *ctx, uint32_t index)
{
    odd *o = ctx;

    atomic_fetch_add(&o->announced[index % 64], 1);
}

static hvt_status odd_name(void *ctx, uint32_t index, char *ret_name, size_t room)
{
    (void)ctx;
    snprintf(ret_name, room, "odd/%u", index);
    return HVT_OK;
}

static hvt_dataset *odd_set(odd *o, uint32_t count)
{
    hvt_source source = {.info = {"odd", count, o->unlabelled ? 0 : 7, o->floats ? 5 : 0, o->floats ? 4 : 0,
                                  3, .type = o->floats ? HVT_F32 : HVT_U8, .unlabelled = o->unlabelled},
                         .read = odd_read,
                         .name = odd_name,
                         .ahead = odd_ahead,
                         .ctx = o};
    hvt_dataset *set = NULL;

    CHECK_OK(hvt_dataset_from(&source, 0, &set));
    return set;
}

static const odd sound = {.bad = -1, .bad_too = -1, .gone = -1};

static hvt_loader_opts loader_opts(int batch, int shards, int workers)
{
    return (hvt_loader_opts){.batch = batch,
                             .shards = shards,
                             .shard_count = shards,
                             .shuffle = true,
                             .seed = 11,
                             .flip = true,
                             .mean = {.5f, .25f, .125f},
                             .std = {.5f, .25f, 2},
                             .workers = workers};
}

/* A number for each sample of what is left of an epoch, added to those of other parts of it. */
static void add_samples(hvt_loader *l, uint64_t *sum)
{
    bool end = false;
    hvt_batch b;

    for (;;) {
        const int *d = b.images.dim;

        CHECK_OK(hvt_loader_next(l, &b, &end));
        if (end)
            return;
        for (int n = 0; n < b.count; n++) {
            size_t floats = (size_t)d[1] * (size_t)d[2] * (size_t)d[3];
            uint64_t key = hvt__mix((uint64_t)b.shard << 32 | b.ids[n]) ^ (uint64_t)((int *)b.labels.data)[n];

            *sum += hvt__hash(key, (float *)b.images.data + (size_t)n * floats, floats * sizeof(float));
        }
    }
}

TEST(neither_workers_nor_ranks_change_a_bit)
{
    static const int workers[] = {0, 1, 3}, ranks[] = {1, 2, 4};
    odd o = sound;
    own plain = {6, 5, 3};
    hvt_dataset *sets[] = {odd_set(&o, 61), own_set(&plain, 61)};

    for (int k = 0; k < 4;
         k++) { /* pictures with random boxes, and from the centre; bytes as they are, cropped */
        uint64_t want = 0;

        for (size_t t = 0; t < HVT_LEN(workers) * HVT_LEN(ranks); t++) {
            int n = ranks[t / HVT_LEN(workers)];
            hvt_loader_opts opts = loader_opts(4, 4, workers[t % HVT_LEN(workers)]);
            uint64_t sum = 0;

            opts.rrc = (hvt_rrc){k == 0, .1f, 1, .75f, 4.f / 3};
            opts.resize = k == 1 ? 9 : 0;
            opts.height = opts.width = k < 2 ? 8 : 0;
            opts.crop = k == 3 ? 2 : 0;
            for (int r = 0; r < n; r++) {
                hvt_loader *l;

                opts.shard_count = 4 / n;
                opts.first_shard = r * opts.shard_count;
                l = loader_on(ref, sets[k / 2], &opts);
                for (int epoch = 0; epoch < 2; epoch++) {
                    CHECK_OK(hvt_loader_rewind(l, epoch, 0));
                    add_samples(l, &sum);
                }
                hvt_loader_close(&l);
            }
            want = t ? want : sum;
            CHECK(sum == want, "kind %d, %d ranks of %d workers: other samples", k, n, opts.workers);
        }
    }
    hvt_dataset_close(&sets[0]);
    hvt_dataset_close(&sets[1]);
}

TEST(a_rewind_forgets_what_was_fetched_ahead)
{
    odd o = sound;
    hvt_dataset *set = odd_set(&o, 61);
    hvt_loader_opts opts = loader_opts(4, 2, 3);
    hvt_loader *l;
    uint64_t want[2] = {0}, got;
    bool end;
    hvt_batch b;

    opts.height = opts.width = 8;
    l = loader_on(ref, set, &opts);
    for (int epoch = 0; epoch < 2; epoch++) {
        CHECK_OK(hvt_loader_rewind(l, epoch, 3));
        add_samples(l, &want[epoch]);
    }
    for (int turn = 0; turn < 20; turn++) {
        CHECK_OK(hvt_loader_rewind(l, turn % 3, (uint32_t)turn % 5));
        for (int i = 0; i < turn % 4; i++)
            CHECK_OK(hvt_loader_next(l, &b, &end));
        CHECK_OK(hvt_loader_rewind(l, turn % 2, 3));
        got = 0;
        add_samples(l, &got);
        CHECK(got == want[turn % 2], "turn %d: other samples", turn);
    }
    hvt_loader_close(&l);
    hvt_dataset_close(&set);
}

/* Of an epoch from a step on. */
static uint64_t sum_from(hvt_loader *l, int epoch, uint32_t step)
{
    uint64_t sum = 0;

    CHECK_OK(hvt_loader_rewind(l, epoch, step));
    add_samples(l, &sum);
    return sum;
}

TEST(workers_go_on_with_the_next_epoch)
{
    static const int counts[] = {61, 5}; /* of images: an epoch has sixteen batches, or two */

    for (size_t k = 0; k < HVT_LEN(counts); k++) {
        enum { EPOCHS = 4 };
        odd o = sound;
        int count = counts[k];
        hvt_dataset *set = odd_set(&o, (uint32_t)count);
        hvt_loader_opts opts = loader_opts(4, 2, 3);
        uint64_t want[EPOCHS];
        hvt_loader *l;

        opts.height = opts.width = 8;
        l = loader_on(ref, set, &opts);
        for (int epoch = 0; epoch < EPOCHS; epoch++)
            want[epoch] = sum_from(l, epoch, 0);
        hvt_loader_close(&l);
        atomic_store(&o.reads, 0);
        opts.epochs = EPOCHS;
        l = loader_on(ref, set, &opts);
        for (int epoch = 0; epoch < EPOCHS; epoch++) {
            int least = (epoch + 1) * count + (epoch + 1 < EPOCHS);

            CHECK(sum_from(l, epoch, 0) == want[epoch], "other samples in epoch %d of %d images", epoch,
                  count);
            for (int wait = 0; wait < 1000 && atomic_load(&o.reads) < least; wait++)
                usleep(1000);
            CHECK(atomic_load(&o.reads) >= least, "%d images read at the end of epoch %d, expected %d",
                  atomic_load(&o.reads), epoch, least);
        }
        usleep(2000);
        hvt_loader_close(&l);
        CHECK(atomic_load(&o.reads) == EPOCHS * count, "%d images read for %d epochs of %d",
              atomic_load(&o.reads), EPOCHS, count);
        hvt_dataset_close(&set);
    }
}

TEST(what_was_fetched_of_the_next_epoch_is_forgotten_elsewhere)
{
    static const struct {
        int epoch;
        uint32_t step;
    } to[] = {{0, 0}, {1, 3}, {2, 0}, {1, 0}, {0, 7}, {1, 8}};
    odd o = sound;
    hvt_dataset *set = odd_set(&o, 61);
    hvt_loader_opts opts = loader_opts(4, 2, 0);
    hvt_loader *one, *l;

    opts.height = opts.width = 8;
    one = loader_on(ref, set, &opts);
    opts.workers = 3;
    opts.epochs = 10;
    l = loader_on(ref, set, &opts);
    for (size_t i = 0; i < HVT_LEN(to); i++) {
        sum_from(l, 0, 6);
        usleep(i % 2 * 2000); /* workers have begun the next epoch, or are done with what has room */
        CHECK(sum_from(l, to[i].epoch, to[i].step) == sum_from(one, to[i].epoch, to[i].step),
              "after epoch 0, step %u of epoch %d: other samples", to[i].step, to[i].epoch);
    }
    hvt_loader_close(&l);
    hvt_loader_close(&one);
    hvt_dataset_close(&set);
}

TEST(the_ring_stays_within_its_memory)
{
    enum { BATCH = 5 };
    odd o = sound;
    hvt_dataset *set = odd_set(&o, 500);
    hvt_loader_opts opts = loader_opts(BATCH, 1, 3);
    hvt_loader_info info;
    hvt_loader *l;
    bool end;
    hvt_batch b;

    opts.height = opts.width = 8;
    l = loader_on(ref, set, &opts);
    hvt_loader_describe(l, &info);
    CHECK(info.slots >= 3 && info.workers == 3, "%d slots, %d workers", info.slots, info.workers);
    CHECK(info.bytes >= 3u * BATCH * 8 * 8 * 3 && info.bytes < 8u * BATCH * (8 * 8 * 3 + 16), "%zu bytes",
          info.bytes);
    for (int i = 1; i < 10; i++) {
        int least = BATCH * (i + 3), most = BATCH * (i + info.slots);

        CHECK_OK(hvt_loader_next(l, &b, &end));
        for (int wait = 0; wait < 1000 && atomic_load(&o.reads) < least; wait++)
            usleep(1000);
        usleep(2000);
        CHECK(atomic_load(&o.reads) >= least && atomic_load(&o.reads) <= most,
              "%d images fetched after batch %d, expected %d to %d", atomic_load(&o.reads), i, least, most);
    }
    hvt_loader_describe(l, &info);
    CHECK(info.images == (uint64_t)atomic_load(&o.reads), "%llu images are counted, %d were read",
          (unsigned long long)info.images, atomic_load(&o.reads));
    hvt_loader_close(&l);
    hvt_dataset_close(&set);
}

TEST(what_is_read_next_is_announced_where_reads_are_slow)
{
    for (int slow = 0; slow < 2; slow++) {
        odd o = sound;
        hvt_dataset *set = odd_set(&o, 64);
        hvt_loader_opts opts = loader_opts(8, 1, 2);
        hvt_loader *l;
        uint64_t sum = 0;
        int announced = 0, twice = 0;

        o.slow = slow;
        opts.height = opts.width = 8;
        l = loader_on(ref, set, &opts);
        add_samples(l, &sum);
        hvt_loader_close(&l);
        for (int i = 0; i < 64; i++) {
            announced += atomic_load(&o.announced[i]) > 0;
            twice += atomic_load(&o.announced[i]) > 1;
        }
        CHECK(!slow || (announced > 16 && announced < 64), "%d of 64 images announced", announced);
        CHECK(!twice, "%d images announced twice", twice);
        hvt_dataset_close(&set);
    }
}

TEST(an_error_comes_with_the_batch_it_belongs_to)
{
    static const int workers[] = {0, 1, 3};

    for (size_t t = 0; t < HVT_LEN(workers); t++) {
        odd o = sound;
        hvt_dataset *set = odd_set(&o, 60);
        hvt_loader_opts opts = loader_opts(4, 1, workers[t]);
        hvt_loader *l;
        bool end;
        hvt_batch b;

        o.gone = 13;
        o.bad = 15; /* the first one counts */
        opts.shuffle = false;
        opts.height = opts.width = 8;
        l = loader_on(ref, set, &opts);
        for (int i = 0; i < 3; i++)
            CHECK_OK(hvt_loader_next(l, &b, &end));
        CHECK_FAILS(hvt_loader_next(l, &b, &end), E_IO, "odd/13 is gone");
        CHECK_FAILS(hvt_loader_next(l, &b, &end), E_IO, "odd/13 is gone");
        CHECK_OK(hvt_loader_rewind(l, 0, 4));
        CHECK_OK(hvt_loader_next(l, &b, &end));
        CHECK(b.ids[0] == 16, "image %u", b.ids[0]);
        hvt_loader_close(&l);
        hvt_dataset_close(&set);
    }
}

/* Labels of an epoch that is not shuffled. */
static void take_labels(hvt_loader *l, int *ret_labels)
{
    bool end = false;
    hvt_batch b;

    for (;;) {
        CHECK_OK(hvt_loader_next(l, &b, &end));
        if (end)
            return;
        for (int n = 0; n < b.count; n++)
            ret_labels[b.ids[n]] = ((int *)b.labels.data)[n];
    }
}

TEST(the_next_image_takes_the_place_of_a_damaged_one)
{
    static const int workers[] = {0, 3};

    for (size_t t = 0; t < HVT_LEN(workers); t++) {
        odd o = sound;
        hvt_dataset *set = odd_set(&o, 20);
        hvt_loader_opts opts = loader_opts(4, 1, workers[t]);
        hvt_loader_info info;
        hvt_loader *l;
        int labels[20];

        o.bad = 5, o.bad_too = 19; /* after which comes the first one */
        opts.shuffle = false;
        opts.height = opts.width = 8;
        opts.skip_damaged = 2;
        log_keep(HVT_LOG_WARN);
        l = loader_on(ref, set, &opts);
        for (int turn = 0; turn < 2; turn++) {
            take_labels(l, labels);
            CHECK(labels[4] == 4 && labels[5] == 6 && labels[6] == 6 && labels[19] == 0, "labels %d %d %d %d",
                  labels[4], labels[5], labels[6], labels[19]);
            CHECK_OK(hvt_loader_rewind(l, 1, 0));
        }
        log_release();
        CHECK(logged_lines == 2 &&
                  strstr(logged, "odd/5 is damaged; skipped: the next one takes its place") &&
                  strstr(logged, "odd/19 is damaged") && strstr(logged, "(2 of at most 2 damaged images)"),
              "%d lines: %s", logged_lines, logged);
        hvt_loader_describe(l, &info);
        CHECK(info.damaged == 2, "%d are counted", info.damaged);
        hvt_loader_close(&l);

        opts.skip_damaged = 1;
        log_keep(HVT_LOG_WARN);
        l = loader_on(ref, set, &opts);
        hvt_batch b;
        bool end = false;
        hvt_status s = HVT_OK;
        while (!end && s == HVT_OK)
            s = hvt_loader_next(l, &b, &end);
        log_release();
        CHECK(s == HVT_E_FORMAT && strstr(hvt_last_error(), "1 damaged image has been skipped before"), "%s",
              hvt_last_error());
        hvt_loader_close(&l);
        hvt_dataset_close(&set);
    }
}

TEST(in_evaluation_a_damaged_image_is_black_and_counts)
{
    odd o = sound;
    hvt_dataset *set = odd_set(&o, 20);
    hvt_loader_opts opts = loader_opts(20, 1, 2);
    hvt_loader *l;
    bool end;
    hvt_batch b;

    o.bad = 5;
    opts.shuffle = opts.flip = false;
    opts.height = opts.width = 8;
    opts.skip_damaged = 1;
    opts.blank_damaged = true;
    log_keep(HVT_LOG_WARN);
    l = loader_on(ref, set, &opts);
    CHECK_OK(hvt_loader_next(l, &b, &end));
    log_release();
    CHECK(b.count == 20 && ((int *)b.labels.data)[5] == 5, "%d images, label %d", b.count,
          ((int *)b.labels.data)[5]);
    for (int i = 0; i < 8 * 8 * 3; i++) {
        static const float black[] = {-1, -1, -.0625f};
        float x = ((float *)b.images.data)[5 * 8 * 8 * 3 + i];

        CHECK(x == black[i % 3], "value %d is %g", i, (double)x);
    }
    CHECK(strstr(logged, "odd/5 is damaged; skipped: it counts as a black image, without a prediction"), "%s",
          logged);
    hvt_loader_close(&l);
    hvt_dataset_close(&set);
}

TEST(a_set_of_damaged_images_ends)
{
    odd o = sound;
    hvt_dataset *set = odd_set(&o, 2);
    hvt_loader_opts opts = loader_opts(2, 1, 1);
    hvt_loader *l;
    bool end;
    hvt_batch b;

    o.bad = 0, o.bad_too = 1;
    opts.height = opts.width = 8;
    opts.skip_damaged = 5;
    log_keep(HVT_LOG_WARN);
    l = loader_on(ref, set, &opts);
    CHECK_FAILS(hvt_loader_next(l, &b, &end), E_FORMAT, "all 2 images of data set 'odd' are damaged");
    log_release();
    hvt_loader_close(&l);
    hvt_dataset_close(&set);
}

TEST(floats_are_scaled_alone)
{
    odd o = sound;
    hvt_dataset *set;
    hvt_loader_opts opts = loader_opts(3, 1, 2);
    hvt_loader *l = NULL;
    bool end;
    hvt_batch b;

    o.floats = true;
    set = odd_set(&o, 3);
    opts.shuffle = opts.flip = false;
    l = loader_on(ref, set, &opts);
    CHECK_OK(hvt_loader_next(l, &b, &end));
    for (int i = 0; i < 3 * 60; i++) {
        float x = (float)(i % 60 + 100 * (i / 60)), got = ((float *)b.images.data)[i];
        float want = (x - opts.mean[i % 3]) / opts.std[i % 3];

        CHECK(got - want < 1e-4f && want - got < 1e-4f, "value %d is %g, expected %g", i, (double)got,
              (double)want);
    }
    hvt_loader_close(&l);
    opts.resize = 9;
    CHECK_FAILS(hvt_loader_open(set, ref, &opts, &l), E_UNSUPPORTED, "only u8 images of three channels");
    hvt_dataset_close(&set);
}

TEST(images_without_labels_have_label_minus_one)
{
    odd o = sound;
    hvt_dataset *set;
    hvt_loader_opts opts = loader_opts(3, 1, 1);
    hvt_loader *l = NULL;
    bool end;
    hvt_batch b;

    o.unlabelled = true;
    set = odd_set(&o, 3);
    opts.height = opts.width = 8;
    l = loader_on(ref, set, &opts);
    CHECK_OK(hvt_loader_next(l, &b, &end));
    CHECK(((int *)b.labels.data)[1] == -1, "label %d", ((int *)b.labels.data)[1]);
    hvt_loader_close(&l);
    hvt_dataset_close(&set);
}

/* ---- a device with a queue: it reads a batch's memory only when somebody waits for it ---- */

static struct {
    hvt_augment_args args[16];
    uint64_t queued, done, hash, late;
    const hvt_device_ops *ops;
} lazy;

static void run_until(hvt_mark mark)
{
    for (; lazy.done < mark; lazy.done++) {
        const hvt_augment_args *a = &lazy.args[lazy.done % 16];
        size_t floats = (size_t)a->real * (size_t)a->h * (size_t)a->w * (size_t)a->cx;

        CHECK_OK(lazy.ops->augment(ref, a));
        lazy.hash = hvt__hash(lazy.hash, a->dst, floats * sizeof(float));
        lazy.hash = hvt__hash(lazy.hash, a->dst_labels, (size_t)a->real * sizeof *a->dst_labels);
        if (a->dst_targets)
            lazy.hash = hvt__hash(lazy.hash, a->dst_targets, (size_t)(a->real * a->outputs) * sizeof(float));
    }
}

static hvt_status augment_lazy(hvt_device *d, const hvt_augment_args *a)
{
    (void)d;
    CHECK(lazy.queued - lazy.done < 16, "the loader never waits");
    lazy.args[lazy.queued++ % 16] = *a;
    return HVT_OK;
}

static hvt_status mark_lazy(hvt_device *d, hvt_mark *ret_mark)
{
    (void)d;
    *ret_mark = lazy.queued;
    return HVT_OK;
}

static hvt_status await_lazy(hvt_device *d, hvt_mark mark)
{
    (void)d;
    CHECK(hvt__trace_where(hvt__trace_lane()).phase == HVT__DEVICE, "the device's work counts as the data's");
    lazy.late = lazy.queued - mark > lazy.late ? lazy.queued - mark : lazy.late;
    run_until(mark);
    return HVT_OK;
}

TEST(a_slot_is_filled_again_only_when_the_device_has_read_it)
{
    static const int workers[] = {0, 1, 3};
    odd o = sound;
    hvt_dataset *set = odd_set(&o, 61);
    hvt_device_ops ops = *ref->ops;
    uint64_t want = 0;

    ops.augment = augment_lazy;
    ops.queue.mark = mark_lazy;
    ops.queue.await = await_lazy;
    lazy.ops = ref->ops;
    ref->ops = &ops;
    for (size_t t = 0; t < HVT_LEN(workers); t++) {
        hvt_loader_opts opts = loader_opts(4, 2, workers[t]);
        hvt_loader *l;
        hvt_batch b;
        bool end = false;

        opts.height = opts.width = 8;
        lazy.queued = lazy.done = lazy.late = 0;
        lazy.hash = HVT_HASH_INIT;
        l = loader_on(ref, set, &opts);
        while (!end)
            CHECK_OK(hvt_loader_next(l, &b, &end));
        run_until(lazy.queued);
        hvt_loader_close(&l);
        want = t ? want : lazy.hash;
        CHECK(lazy.hash == want, "%d workers: the device has read other images", workers[t]);
        CHECK(lazy.late >= 1, "%d workers: the batch yielded last is waited for", workers[t]);
    }
    ref->ops = lazy.ops;
    hvt_dataset_close(&set);
}

TEST(sizes_that_do_not_fit_are_refused)
{
    odd o = sound;
    own plain = {6, 5, 3};
    hvt_dataset *set = odd_set(&o, 30), *fixed = own_set(&plain, 30);
    hvt_loader_opts good = loader_opts(3, 1, 1), bad;
    hvt_loader *l = NULL;

    CHECK_FAILS(hvt_loader_open(set, ref, &good, &l), E_ARG, "differ in size");
    good.height = good.width = 8;
    bad = good, bad.width = 0;
    CHECK_FAILS(hvt_loader_open(set, ref, &bad, &l), E_ARG, "8 x 0 pixels");
    bad = good, bad.resize = 7;
    CHECK_FAILS(hvt_loader_open(fixed, ref, &bad, &l), E_ARG, "too few for a crop of 8 x 8");
    bad = good, bad.rrc = (hvt_rrc){true, 0, 1, .75f, 1.3f};
    CHECK_FAILS(hvt_loader_open(fixed, ref, &bad, &l), E_ARG, "0 < least");
    bad = good, bad.rrc = (hvt_rrc){true, .1f, 1, 2, 1.3f};
    CHECK_FAILS(hvt_loader_open(fixed, ref, &bad, &l), E_ARG, "0 < narrow");
    bad = good, bad.workers = -1;
    CHECK_FAILS(hvt_loader_open(fixed, ref, &bad, &l), E_ARG, "-1 workers");
    bad = good, bad.skip_damaged = -1;
    CHECK_FAILS(hvt_loader_open(fixed, ref, &bad, &l), E_ARG, "-1 damaged images");
    CHECK(!l, "a refused loader is open");
    hvt_dataset_close(&set);
    hvt_dataset_close(&fixed);
}

/* A thread that takes a batch. */
typedef struct taker {
    hvt_loader *l;
    _Atomic(hvt__lane *) lane;
} taker;

static void *take_batch(void *arg)
{
    taker *t = arg;
    bool end;
    hvt_batch b;

    atomic_store(&t->lane, hvt__trace_follow());
    CHECK_OK(hvt_loader_next(t->l, &b, &end));
    while (atomic_load(&t->lane)) /* which is gone with its thread */
        usleep(100);
    return NULL;
}

TEST(a_read_that_hangs_is_named)
{
    odd o = sound;
    hvt_dataset *set = odd_set(&o, 30);

    for (int workers = 0; workers < 2; workers++) {
        hvt_loader_opts opts = loader_opts(3, 1, workers);
        taker t = {0};
        pthread_t thread;
        char text[100] = "";

        opts.shuffle = false;
        opts.height = opts.width = 8;
        t.l = loader_on(ref, set, &opts);
        atomic_store(&o.held, true);
        CHECK(!pthread_create(&thread, NULL, take_batch, &t), "no thread");
        for (int i = 0; i < 10000 && !*text; i++) {
            if (atomic_load(&t.lane))
                hvt__trace_followed(atomic_load(&t.lane), text, sizeof text);
            usleep(500);
        }
        CHECK(!strcmp(text, "reading odd/0"), "with %d workers: '%s'", workers, text);
        atomic_store(&o.held, false);
        for (int i = 0; i < 10000 && *text; i++) {
            hvt__trace_followed(atomic_load(&t.lane), text, sizeof text);
            usleep(500);
        }
        CHECK(!*text, "after it: '%s'", text);
        atomic_store(&t.lane, NULL);
        pthread_join(thread, NULL);
        hvt_loader_close(&t.l);
    }
    hvt_dataset_close(&set);
}

int main(void)
{
    if (hvt_device_open("ref", NULL, &ref) != HVT_OK)
        return 1;
    RUN(neither_workers_nor_ranks_change_a_bit);
    RUN(a_rewind_forgets_what_was_fetched_ahead);
    RUN(workers_go_on_with_the_next_epoch);
    RUN(what_was_fetched_of_the_next_epoch_is_forgotten_elsewhere);
    RUN(the_ring_stays_within_its_memory);
    RUN(what_is_read_next_is_announced_where_reads_are_slow);
    RUN(an_error_comes_with_the_batch_it_belongs_to);
    RUN(the_next_image_takes_the_place_of_a_damaged_one);
    RUN(in_evaluation_a_damaged_image_is_black_and_counts);
    RUN(a_set_of_damaged_images_ends);
    RUN(floats_are_scaled_alone);
    RUN(images_without_labels_have_label_minus_one);
    RUN(a_slot_is_filled_again_only_when_the_device_has_read_it);
    RUN(sizes_that_do_not_fit_are_refused);
    RUN(a_read_that_hangs_is_named);
    hvt_device_close(&ref);
    return check_done();
}
