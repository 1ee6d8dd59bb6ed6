/*
 * Loaders. (The pixels of batches: test_pixels.c; the sampler: test_sampler.c; data sets: test_dataset.c.)
 */
#include "batches.h"

#include <math.h>

static hvt_device *ref;

static uint64_t hash_sample(const hvt_batch *b, int n, int h, int w, int c)
{
    uint64_t hash = HVT_HASH_INIT;

    for (int y = 0; y < h; y++)
        for (int x = 0; x < w; x++)
            hash = hvt__hash(hash, pixel(b, n, y, x), (size_t)c * sizeof(float));
    return hash;
}

/* A hash over everything that a loader yields from where it stands to the end of the epoch. */
static uint64_t hash_epoch(hvt_loader *l, int h, int w, int c)
{
    uint64_t hash = HVT_HASH_INIT;
    hvt_batch b;
    bool end = false;

    for (;;) {
        hvt_status s = hvt_loader_next(l, &b, &end);

        CHECK_OK(s);
        if (s != HVT_OK || end)
            return hash;
        hash = hvt__hash(hash, b.shard_counts, (size_t)b.shards * sizeof(int));
        hash = hvt__hash(hash ^ (uint64_t)b.shard, b.labels.data, (size_t)b.count * sizeof(int32_t));
        for (int n = 0; n < b.count; n++)
            hash = hvt__hash(hash, (uint64_t[]){b.ids[n], hash_sample(&b, n, h, w, c)}, 16);
    }
}

TEST(exact_shards_cover_every_sample_once)
{
    const struct {
        uint32_t count;
        int shards, batch;
    } size[] = {{1, 1, 1},  {1, 4, 3},  {3, 8, 2},   {7, 2, 2},   {10, 4, 2},  {10, 4, 3},   {16, 4, 4},
                {17, 4, 4}, {31, 3, 5}, {64, 8, 16}, {65, 8, 16}, {100, 7, 1}, {100, 7, 200}};
    own o = {2, 3, 3};

    for (size_t t = 0; t < HVT_LEN(size); t++) {
        hvt_dataset *set = own_set(&o, size[t].count);
        hvt_loader_opts opts = loader_opts(size[t].batch, size[t].shards);
        hvt_loader *l = loader_on(ref, set, &opts);
        uint32_t seen[128] = {0}, steps = 0, total = 0;
        uint32_t each = (size[t].count + (uint32_t)size[t].shards - 1) / (uint32_t)size[t].shards;
        bool end = false;
        hvt_batch b;

        for (int turn = 0;; turn = (turn + 1) % size[t].shards) {
            int all = 0;

            CHECK_OK(hvt_loader_next(l, &b, &end));
            if (end)
                break;
            steps += turn == 0;
            CHECK(b.shard == turn && b.shards == size[t].shards, "shard %d of %d, expected %d of %d", b.shard,
                  b.shards, turn, size[t].shards);
            CHECK(b.count == b.shard_counts[b.shard], "%d images, announced were %d", b.count,
                  b.shard_counts[b.shard]);
            CHECK(b.count >= 0 && b.count <= size[t].batch, "%d images", b.count);
            for (int s = 0; s < b.shards; s++)
                all += b.shard_counts[s];
            total += turn == 0 ? (uint32_t)all : 0;
            for (int n = 0; n < b.count; n++) {
                seen[b.ids[n]]++;
                CHECK(((int32_t *)b.labels.data)[n] == (int32_t)(b.ids[n] % 7), "sample %u has label %d",
                      b.ids[n], ((int32_t *)b.labels.data)[n]);
            }
        }
        for (uint32_t n = 0; n < size[t].count; n++)
            CHECK(seen[n] == 1, "N=%u S=%d B=%d: sample %u came %u times", size[t].count, size[t].shards,
                  size[t].batch, n, seen[n]);
        CHECK(total == size[t].count, "counts of all shards add to %u, expected %u", total, size[t].count);
        CHECK(steps == hvt_loader_steps(l) &&
                  steps == (each + (uint32_t)size[t].batch - 1) / (uint32_t)size[t].batch,
              "%u steps, announced were %u", steps, hvt_loader_steps(l));
        hvt_loader_close(&l);
        hvt_dataset_close(&set);
    }
}

/* Mark what `ranks` ranks read of an epoch from step `first` up to step `end`. */
static void read_steps(hvt_dataset *set, int shards, int ranks, uint32_t first, uint32_t end, int *seen)
{
    for (int rank = 0; rank < ranks; rank++) {
        hvt_loader_opts opts = loader_opts(3, shards);
        hvt_loader *l;
        hvt_batch b;
        bool over;

        opts.shard_count = shards / ranks;
        opts.first_shard = rank * opts.shard_count;
        l = loader_on(ref, set, &opts);
        CHECK_OK(hvt_loader_rewind(l, 4, first));
        for (uint32_t i = 0; i < (end - first) * (uint32_t)opts.shard_count; i++) {
            CHECK_OK(hvt_loader_next(l, &b, &over));
            for (int n = 0; n < b.count; n++)
                seen[b.ids[n]]++;
        }
        hvt_loader_close(&l);
    }
}

TEST(an_epoch_may_go_on_with_other_ranks_and_still_sees_every_sample_once)
{
    static const int sizes[] = {1, 2, 3, 4, 6, 12};
    enum { COUNT = 131, SHARDS = 12, STEPS = 4 };
    own o = {2, 3, 3};
    hvt_dataset *set = own_set(&o, COUNT);

    for (size_t i = 0; i < HVT_LEN(sizes) * HVT_LEN(sizes); i++)
        for (uint32_t at = 0; at <= STEPS; at++) {
            int before = sizes[i / HVT_LEN(sizes)], after = sizes[i % HVT_LEN(sizes)], wrong = 0,
                seen[COUNT] = {0};

            read_steps(set, SHARDS, before, 0, at, seen);
            read_steps(set, SHARDS, after, at, STEPS, seen);
            for (int n = 0; n < COUNT; n++)
                wrong += seen[n] != 1;
            CHECK(!wrong, "%d ranks, from step %u on %d: %d samples never or twice", before, at, after,
                  wrong);
        }
    hvt_dataset_close(&set);
}

/* The ids that each shard sees in an epoch, one after the other. */
static uint32_t collect(hvt_loader *l, int shard, uint32_t *ret_ids)
{
    uint32_t n = 0;
    bool end = false;
    hvt_batch b;

    for (;;) {
        CHECK_OK(hvt_loader_next(l, &b, &end));
        if (end)
            return n;
        for (int i = 0; b.shard == shard && i < b.count; i++)
            ret_ids[n++] = b.ids[i];
    }
}

TEST(batches_follow_the_sampler)
{
    const uint32_t pad[4][3] = {{4, 3, 6}, {1, 9, 2}, {7, 0, 4}, {5, 8, 1}};
    own o = {2, 3, 3};
    hvt_dataset *set = own_set(&o, 10), *three = own_set(&o, 3);
    hvt_loader_opts opts = loader_opts(2, 4);
    hvt_loader *l;
    uint32_t ids[8];

    opts.seed = 0;
    opts.last_batch = HVT_LAST_BATCH_PAD;
    l = loader_on(ref, set, &opts);
    CHECK(hvt_loader_steps(l) == 2, "%u steps", hvt_loader_steps(l));
    for (int s = 0; s < 4; s++) {
        CHECK_OK(hvt_loader_rewind(l, 0, 0));
        CHECK(collect(l, s, ids) == 3 && !memcmp(ids, pad[s], sizeof pad[s]), "shard %d sees %u %u %u", s,
              ids[0], ids[1], ids[2]);
    }
    hvt_loader_close(&l);

    opts.last_batch = HVT_LAST_BATCH_DROP; /* full batches only: the first 2 of floor(10/4) */
    l = loader_on(ref, set, &opts);
    CHECK(hvt_loader_steps(l) == 1, "%u steps", hvt_loader_steps(l));
    for (int s = 0; s < 4; s++) {
        CHECK_OK(hvt_loader_rewind(l, 0, 0));
        CHECK(collect(l, s, ids) == 2 && !memcmp(ids, pad[s], 8), "shard %d sees %u %u", s, ids[0], ids[1]);
    }
    hvt_loader_close(&l);

    opts = loader_opts(1, 8);
    opts.last_batch = HVT_LAST_BATCH_PAD;
    opts.shuffle = false;
    l = loader_on(ref, three, &opts);
    for (int s = 0; s < 8; s++) {
        CHECK_OK(hvt_loader_rewind(l, 0, 0));
        CHECK(collect(l, s, ids) == 1 && ids[0] == (uint32_t)s % 3, "shard %d sees %u", s, ids[0]);
    }
    hvt_loader_close(&l);
    hvt_dataset_close(&set);
    hvt_dataset_close(&three);
}

TEST(dropped_tails_leave_only_full_batches)
{
    own o = {2, 3, 3};
    hvt_dataset *set = own_set(&o, 101);
    hvt_loader_opts opts = loader_opts(8, 3);
    hvt_loader *l;
    bool end = false;
    int batches = 0;
    hvt_batch b;

    opts.last_batch = HVT_LAST_BATCH_DROP;
    l = loader_on(ref, set, &opts);
    for (;; batches++) {
        CHECK_OK(hvt_loader_next(l, &b, &end));
        if (end)
            break;
        for (int s = 0; s < 3; s++)
            CHECK(b.shard_counts[s] == 8, "shard %d has %d images", s, b.shard_counts[s]);
    }
    CHECK(batches == 12 && hvt_loader_steps(l) == 4, "%d batches in %u steps", batches, hvt_loader_steps(l));
    hvt_loader_close(&l);
    hvt_dataset_close(&set);
}

TEST(ranks_share_the_shards_of_a_step)
{
    own o = {4, 4, 3};
    hvt_dataset *set = own_set(&o, 45);
    hvt_loader_opts opts = loader_opts(4, 4);
    hvt_loader *whole, *part[2];
    hvt_batch a, b;
    bool end = false, ended = false;

    opts.crop = 2, opts.flip = true;
    whole = loader_on(ref, set, &opts);
    opts.shard_count = 2;
    for (int r = 0; r < 2; r++) {
        opts.first_shard = 2 * r;
        part[r] = loader_on(ref, set, &opts);
        CHECK(hvt_loader_steps(part[r]) == hvt_loader_steps(whole), "rank %d has %u steps", r,
              hvt_loader_steps(part[r]));
    }
    for (int turn = 0;; turn++) {
        CHECK_OK(hvt_loader_next(whole, &a, &end));
        CHECK_OK(hvt_loader_next(part[turn / 2 % 2], &b, &ended));
        CHECK(end == ended, "turn %d: one has ended", turn);
        if (end || ended)
            break;
        CHECK(a.shard == b.shard && a.count == b.count, "shard %d with %d, shard %d with %d", a.shard,
              a.count, b.shard, b.count);
        CHECK(!memcmp(a.shard_counts, b.shard_counts, 4 * sizeof(int)), "step's counts differ");
        CHECK(!memcmp(a.ids, b.ids, (size_t)a.count * sizeof *a.ids), "ids differ");
        CHECK(a.key && a.key == b.key, "keys %llx and %llx", (unsigned long long)a.key,
              (unsigned long long)b.key);
        CHECK(!memcmp(a.labels.data, b.labels.data, (size_t)a.count * 4), "labels differ");
        CHECK(!memcmp(a.images.data, b.images.data, (size_t)a.count * 48 * sizeof(float)), "images differ");
    }
    hvt_loader_close(&whole);
    hvt_loader_close(&part[0]);
    hvt_loader_close(&part[1]);
    hvt_dataset_close(&set);
}

/* Also of batches that workers fetched before the epoch began, and in the middle of an epoch. */
TEST(a_batchs_key_is_of_seed_and_epoch)
{
    own o = {4, 4, 3};
    hvt_dataset *set = own_set(&o, 12);
    uint64_t keys[2][4] = {0};

    for (int seed = 0; seed < 2; seed++)
        for (int workers = 0; workers < 2; workers++) {
            hvt_loader_opts opts = loader_opts(4, 1);
            hvt_loader *l;
            hvt_batch b;
            bool end = false;

            opts.seed = (uint64_t)seed;
            opts.workers = workers;
            opts.epochs = 4;
            l = loader_on(ref, set, &opts);
            for (int epoch = 0; epoch < 4; epoch++) {
                CHECK_OK(hvt_loader_rewind(l, epoch, 0));
                for (int step = 0; step < 4; step++) {
                    CHECK_OK(hvt_loader_next(l, &b, &end));
                    CHECK(end == (step == 3), "epoch %d ends at step %d", epoch, step);
                    if (!workers && !step)
                        keys[seed][epoch] = b.key;
                    CHECK(end || b.key == keys[seed][epoch], "seed %d, %d workers, epoch %d, step %d", seed,
                          workers, epoch, step);
                }
            }
            CHECK_OK(hvt_loader_seek(l, 2, 8));
            CHECK_OK(hvt_loader_next(l, &b, &end));
            CHECK(b.key == keys[seed][2], "seed %d, %d workers: another key after a seek", seed, workers);
            hvt_loader_close(&l);
        }
    for (int i = 0; i < 8; i++)
        for (int j = 0; j < i; j++)
            CHECK(keys[i / 4][i % 4] != keys[j / 4][j % 4], "keys %d and %d are equal", i, j);
    hvt_dataset_close(&set);
}

TEST(a_sample_is_augmented_alike_whatever_the_shards_batch_and_order)
{
    const struct {
        int batch, shards, first, count;
        bool shuffle;
        hvt_order order;
    } way[] = {{60, 1, 0, 1, true, HVT_ORDER_NHW},  {7, 4, 0, 4, true, HVT_ORDER_NHW},
               {7, 4, 0, 4, false, HVT_ORDER_HWN},  {1, 3, 0, 3, true, HVT_ORDER_HWN},
               {16, 8, 2, 5, false, HVT_ORDER_NHW}, {9, 2, 1, 1, true, HVT_ORDER_HWN}};
    own o = {6, 5, 3};
    hvt_dataset *set = own_set(&o, 60);
    uint64_t want[60] = {0};
    int compared = 0;

    for (size_t t = 0; t < HVT_LEN(way); t++) {
        hvt_loader_opts opts = loader_opts(way[t].batch, way[t].shards);
        hvt_loader *l;
        bool end = false;
        hvt_batch b;

        opts.first_shard = way[t].first, opts.shard_count = way[t].count;
        opts.shuffle = way[t].shuffle, opts.order = way[t].order;
        opts.crop = 3, opts.flip = true;
        l = loader_on(ref, set, &opts);
        CHECK_OK(hvt_loader_rewind(l, 5, 0));
        for (;;) {
            CHECK_OK(hvt_loader_next(l, &b, &end));
            if (end)
                break;
            for (int n = 0; n < b.count; n++) {
                uint64_t h = hash_sample(&b, n, 6, 5, 3);

                if (t == 0)
                    want[b.ids[n]] = h;
                compared++;
                CHECK(h == want[b.ids[n]], "way %zu: sample %u looks different", t, b.ids[n]);
            }
        }
        hvt_loader_close(&l);
    }
    CHECK(compared > 5 * 30, "only %d samples compared", compared);
    hvt_dataset_close(&set);
}

TEST(epochs_differ_and_repeat)
{
    own o = {6, 5, 3};
    hvt_dataset *set = own_set(&o, 33);
    hvt_loader_opts opts = loader_opts(4, 2);
    hvt_loader *l;
    uint64_t first, second, still;

    opts.crop = 2, opts.flip = true;
    l = loader_on(ref, set, &opts);
    first = hash_epoch(l, 6, 5, 3);
    CHECK_OK(hvt_loader_rewind(l, 1, 0));
    second = hash_epoch(l, 6, 5, 3);
    CHECK(first != second, "epochs 0 and 1 are the same");
    CHECK_OK(hvt_loader_rewind(l, 0, 0));
    CHECK(hash_epoch(l, 6, 5, 3) == first, "epoch 0 does not repeat");
    hvt_loader_close(&l);

    /* without shuffling, augmentation differs still; without both, nothing does */
    opts.shuffle = false;
    l = loader_on(ref, set, &opts);
    still = hash_epoch(l, 6, 5, 3);
    CHECK_OK(hvt_loader_rewind(l, 1, 0));
    CHECK(hash_epoch(l, 6, 5, 3) != still, "epochs are augmented alike");
    hvt_loader_close(&l);
    opts.crop = 0, opts.flip = false;
    l = loader_on(ref, set, &opts);
    still = hash_epoch(l, 6, 5, 3);
    CHECK_OK(hvt_loader_rewind(l, 1, 0));
    CHECK(hash_epoch(l, 6, 5, 3) == still, "plain epochs in order differ");
    hvt_loader_close(&l);

    /* another seed is another order */
    opts = loader_opts(4, 2);
    opts.seed = 12;
    l = loader_on(ref, set, &opts);
    CHECK(hash_epoch(l, 6, 5, 3) != first, "seeds 11 and 12 give the same epoch");
    hvt_loader_close(&l);
    hvt_dataset_close(&set);
}

TEST(what_is_left_of_an_epoch_is_dealt_to_other_shards)
{
    const struct {
        uint32_t count;
        int shards, batch;
        uint32_t steps; /* of these shards, before the others take over */
        int then_shards, then_batch;
    } all[] = {{100, 4, 5, 3, 2, 7}, {100, 4, 5, 3, 3, 5},  {97, 2, 8, 1, 8, 4}, {65, 8, 2, 4, 1, 1},
               {64, 1, 3, 7, 7, 3},  {100, 4, 5, 4, 16, 9}, {31, 3, 5, 2, 4, 5}};
    own o = {2, 3, 3};

    for (size_t t = 0; t < HVT_LEN(all); t++) {
        hvt_dataset *set = own_set(&o, all[t].count);
        hvt_loader_opts opts = loader_opts(all[t].batch, all[t].shards);
        hvt_loader_opts then = loader_opts(all[t].then_batch, all[t].then_shards);
        hvt_loader *one = loader_on(ref, set, &opts), *other = loader_on(ref, set, &then);
        uint32_t behind = all[t].steps * (uint32_t)(all[t].shards * all[t].batch), left, took = 0;
        int seen[128] = {0};
        bool end = false;
        hvt_batch b;

        CHECK_OK(hvt_loader_rewind(one, 3, 0));
        for (int i = 0; i < (int)all[t].steps * all[t].shards; i++) {
            CHECK_OK(hvt_loader_next(one, &b, &end));
            for (int n = 0; n < b.count; n++)
                seen[b.ids[n]]++;
        }
        CHECK_OK(hvt_loader_seek(other, 3, behind));
        left = hvt_loader_left(other);
        for (int i = 0;; i++) {
            CHECK_OK(hvt_loader_next(other, &b, &end));
            if (end)
                break;
            took += i % all[t].then_shards == 0;
            for (int n = 0; n < b.count; n++)
                seen[b.ids[n]]++;
        }
        CHECK(took == left, "case %zu: %u steps, announced were %u", t, took, left);
        for (uint32_t n = 0; n < all[t].count; n++)
            CHECK(seen[n] == 1, "case %zu: sample %u came %d times", t, n, seen[n]);
        hvt_loader_close(&one);
        hvt_loader_close(&other);
        hvt_dataset_close(&set);
    }
}

TEST(seeking_is_rewinding_where_the_shards_are_the_same)
{
    const hvt_last_batch how[] = {HVT_LAST_BATCH_KEEP, HVT_LAST_BATCH_PAD, HVT_LAST_BATCH_DROP};
    own o = {2, 3, 3};
    hvt_dataset *set = own_set(&o, 67);

    for (size_t t = 0; t < HVT_LEN(how); t++) {
        hvt_loader_opts opts = loader_opts(4, 3);
        hvt_loader *l;

        opts.last_batch = how[t];
        l = loader_on(ref, set, &opts);
        for (uint32_t step = 0; step < hvt_loader_steps(l); step++) {
            uint64_t want, got;

            CHECK_OK(hvt_loader_rewind(l, 2, step));
            CHECK(hvt_loader_left(l) == hvt_loader_steps(l) - step, "%u steps left", hvt_loader_left(l));
            want = hash_epoch(l, 2, 3, 3);
            CHECK_OK(hvt_loader_seek(l, 2, step * 12));
            CHECK(hvt_loader_left(l) == hvt_loader_steps(l) - step, "%u steps left", hvt_loader_left(l));
            got = hash_epoch(l, 2, 3, 3);
            CHECK(got == want, "last batch %d, step %u: other batches", (int)how[t], step);
        }
        CHECK_FAILS(hvt_loader_seek(l, 2, 68), E_ARG, "image 68");
        hvt_loader_close(&l);
    }
    hvt_dataset_close(&set);
}

TEST(rewinding_to_a_step_continues_the_epoch)
{
    own o = {4, 4, 3};
    hvt_dataset *set = own_set(&o, 50);
    hvt_loader_opts opts = loader_opts(4, 3);
    hvt_loader *straight, *jumped;

    opts.crop = 1, opts.flip = true;
    straight = loader_on(ref, set, &opts);
    jumped = loader_on(ref, set, &opts);
    for (uint32_t step = 0; step <= hvt_loader_steps(straight); step++) {
        hvt_batch b;
        bool end;

        CHECK_OK(hvt_loader_rewind(straight, 3, 0));
        for (uint32_t i = 0; i < 3 * step; i++)
            CHECK_OK(hvt_loader_next(straight, &b, &end));
        CHECK_OK(hvt_loader_rewind(jumped, 2, 0)); /* from within another epoch's step */
        CHECK_OK(hvt_loader_next(jumped, &b, &end));
        CHECK_OK(hvt_loader_rewind(jumped, 3, step));
        CHECK(hash_epoch(jumped, 4, 4, 3) == hash_epoch(straight, 4, 4, 3), "from step %u it differs", step);
    }
    CHECK_FAILS(hvt_loader_rewind(jumped, 0, hvt_loader_steps(jumped) + 1), E_ARG, "step 6 requested");
    CHECK_FAILS(hvt_loader_rewind(jumped, -1, 0), E_ARG, "epoch is -1");
    hvt_loader_close(&straight);
    hvt_loader_close(&jumped);
    hvt_dataset_close(&set);
}

TEST(bad_loader_options_are_refused)
{
    const struct {
        hvt_loader_opts change; /* what is not 0 replaces the good one's */
        const char *part;
    } bad[] = {
        {{.batch = -3}, "batch is -3"},
        {{.shards = -1}, "shards is -1"},
        {{.first_shard = 3, .shard_count = 2}, "shards 3 to 4 requested, expected a range within 0 to 3"},
        {{.first_shard = -1}, "shards -1 to"},
        {{.shard_count = -1}, "expected a range within 0 to 3"},
        {{.shard_count = 5}, "shards 0 to 4"},
        {{.last_batch = (hvt_last_batch)7}, "last_batch is 7"},
        {{.crop = -1}, "crop pads by -1"},
        {{.crop = 4}, "crop pads by 4 pixels, expected 0 to 3"},
        {{.last_batch = HVT_LAST_BATCH_DROP, .batch = 6}, "20 images cannot fill a global batch of 4 x 6"},
        {{.std = {.5f, 0, .5f}}, "std of channel 1 is 0"},
        {{.std = {.5f, .5f, -1}}, "std of channel 2 is -1"},
        {{.std = {(float)NAN, 1, 1}}, "std of channel 0 is"},
        {{.mean = {0, 0, (float)INFINITY}}, "mean of channel 2 is inf"}};
    own o = {4, 5, 3};
    hvt_dataset *set = own_set(&o, 20);

    for (size_t t = 0; t < HVT_LEN(bad); t++) {
        hvt_loader_opts opts = loader_opts(5, 4);
        const hvt_loader_opts *c = &bad[t].change;
        hvt_loader *l = NULL;

        opts.batch = c->batch ? c->batch : opts.batch;
        opts.shards = c->shards ? c->shards : opts.shards;
        opts.first_shard = c->first_shard ? c->first_shard : opts.first_shard;
        opts.shard_count = c->shard_count ? c->shard_count : opts.shard_count;
        opts.last_batch = c->last_batch ? c->last_batch : opts.last_batch;
        opts.crop = c->crop ? c->crop : opts.crop;
        if (c->std[0] != 0)
            memcpy(opts.std, c->std, sizeof opts.std);
        if (c->mean[2] != 0)
            memcpy(opts.mean, c->mean, sizeof opts.mean);
        CHECK_FAILS(hvt_loader_open(set, ref, &opts, &l), E_ARG, bad[t].part);
        CHECK(!l, "case %zu gave a loader", t);
        hvt_loader_close(&l);
    }
    hvt_dataset_close(&set);
}

static void fail_once(hvt_device *dev)
{
    own o = {4, 5, 3};
    hvt_dataset *set = own_set(&o, 20);
    hvt_loader_opts opts = loader_opts(3, 2);
    hvt_loader *l = NULL, *untroubled = NULL;
    hvt_batch b = {.count = -9};
    bool end = true;

    CHECK_OK(hvt_loader_open(set, dev, &opts, &untroubled));
    CHECK_OK(hvt_loader_open(set, dev, &opts, &l));
    o.answer = HVT_E_IO;
    CHECK_FAILS(hvt_loader_next(l, &b, &end), E_IO, "is on the moon");
    CHECK(b.count == -9 && end, "a failed call wrote its results");
    o.answer = HVT_OK;
    CHECK(hash_epoch(l, 4, 5, 3) == hash_epoch(untroubled, 4, 5, 3), "the epoch is another one");
    hvt_loader_close(&l);
    hvt_loader_close(&untroubled);
    hvt_dataset_close(&set);
}

TEST(a_batch_that_failed_can_be_asked_for_again)
{
    hvt_device *threads = NULL;

    fail_once(ref);
    CHECK_OK(hvt_device_open("cpu", &(hvt_device_opts){.threads = 3}, &threads));
    fail_once(threads);
    hvt_device_close(&threads);
}

/* A device whose memory ends after so many allocations. */
static int allocations_left;

static hvt_status alloc_some(hvt_device *d, size_t bytes, void **ret_ptr)
{
    HVT_CHECK(allocations_left-- > 0, E_MEM, "no device memory for %zu bytes", bytes);
    return hvt_device_ref.memory.alloc(d, bytes, ret_ptr);
}

TEST(a_loader_without_device_memory_says_so_and_leaks_nothing)
{
    own o = {4, 5, 3};
    hvt_dataset *set = own_set(&o, 20);
    hvt_loader_opts opts = loader_opts(3, 2);
    hvt_device_ops ops = hvt_device_ref;
    hvt_device small = *ref;

    ops.memory.alloc = ops.memory.alloc_host = alloc_some;
    small.ops = &ops;
    for (int n = 0; n < 3; n++) {
        hvt_loader *l = NULL;

        allocations_left = n;
        CHECK_FAILS(hvt_loader_open(set, &small, &opts, &l), E_MEM, "no device memory");
        CHECK(!l, "a loader came of it");
    }
    hvt_dataset_close(&set);
}

int main(void)
{
    if (hvt_device_open("ref", NULL, &ref) != HVT_OK) {
        fprintf(stderr, "cannot begin: %s\n", hvt_last_error());
        return 1;
    }

    RUN(exact_shards_cover_every_sample_once);
    RUN(an_epoch_may_go_on_with_other_ranks_and_still_sees_every_sample_once);
    RUN(batches_follow_the_sampler);
    RUN(dropped_tails_leave_only_full_batches);
    RUN(ranks_share_the_shards_of_a_step);
    RUN(a_batchs_key_is_of_seed_and_epoch);
    RUN(a_sample_is_augmented_alike_whatever_the_shards_batch_and_order);
    RUN(epochs_differ_and_repeat);
    RUN(what_is_left_of_an_epoch_is_dealt_to_other_shards);
    RUN(seeking_is_rewinding_where_the_shards_are_the_same);
    RUN(rewinding_to_a_step_continues_the_epoch);
    RUN(bad_loader_options_are_refused);
    RUN(a_batch_that_failed_can_be_asked_for_again);
    RUN(a_loader_without_device_memory_says_so_and_leaks_nothing);

    hvt_device_close(&ref);
    return check_done();
}
