/*
 * Erasing, mixup, CutMix and repeated images: torchvision's definitions, and the same batches whatever the
 * loader's workers and the rank's shards.
 */
#include "data/image/image_impl.h"
#include "data/mix.h"
#include "own_set.h"

#include <math.h>

static hvt_device *ref;

enum { COUNT = 70, H = 10, W = 12, SIZE = H * W * 3, CLASSES = 9 };

static hvt_loader_opts loader_opts(int batch, int shards)
{
    return (hvt_loader_opts){.batch = batch,
                             .shards = shards,
                             .shard_count = shards,
                             .shuffle = true,
                             .seed = 5,
                             .classes = CLASSES,
                             .mean = {.5f, .25f, .125f},
                             .std = {.5f, .25f, 2}};
}

TEST(shares_are_distributed_as_beta)
{
    static const float alphas[] = {.2f, 1, 4};

    for (int t = 0; t < 3; t++) {
        hvt_loader_opts o = {.seed = 3, .mixup = alphas[t]};
        double sum = 0, squares = 0, want = .25 / (2 * (double)alphas[t] + 1); /* the variance */
        enum { MANY = 20000 };

        for (uint64_t i = 0; i < MANY; i++) {
            hvt__mixture m = hvt__mix_draw(&o, H, W, 1, i);

            CHECK(m.share >= 0 && m.share <= 1 && !m.top && !m.left && m.bottom == H && m.right == W,
                  "share %g", (double)m.share);
            sum += (double)m.share;
            squares += ((double)m.share - .5) * ((double)m.share - .5);
        }
        CHECK(fabs(sum / MANY - .5) < .02, "alpha %g: mean %g", (double)alphas[t], sum / MANY);
        CHECK(fabs(squares / MANY / want - 1) < .05, "alpha %g: variance %g, not %g", (double)alphas[t],
              squares / MANY, want);
    }
}

TEST(boxes_of_cutmix_have_the_shares_area)
{
    hvt_loader_opts o = {.seed = 3, .cutmix = 1}, both = {.seed = 3, .cutmix = 1, .mixup = 1};
    double area = 0;
    int cut = 0;
    enum { MANY = 4000, SIDE = 100 };

    for (uint64_t i = 0; i < MANY; i++) {
        hvt__mixture m = hvt__mix_draw(&o, SIDE, 2 * SIDE, 0, i), n = hvt__mix_draw(&both, SIDE, SIDE, 0, i);

        CHECK(m.top >= 0 && m.left >= 0 && m.bottom <= SIDE && m.right <= 2 * SIDE && m.top <= m.bottom &&
                  m.left <= m.right && m.share == 0,
              "box %d, %d to %d, %d", m.top, m.left, m.bottom, m.right);
        area += (double)(m.bottom - m.top) * (m.right - m.left) / (2 * SIDE * SIDE);
        cut += n.share == 0;
    }
    /* torchvision's expectation: boxes are cut off at the border; 1 - share is uniform, as a square of r has
     * the area r^2 (1 - r/4)^2 on average, and r^2 is uniform */
    CHECK(fabs(area / MANY - (1. / 2 - 1. / 5 + 1. / 48)) < .02, "mean area %g", area / MANY);
    CHECK(abs(cut - MANY / 2) < 200, "%d of %d batches are cut", cut, MANY);
}

TEST(targets_are_mixed_onehots)
{
    const hvt__mixture m = {.25f, 0, 0, 4, 4}, cut = {0, 1, 1, 3, 4};
    const int32_t labels[3] = {2, 0, 2};
    int32_t top[3];
    float t[3 * 3];

    CHECK_OK(hvt__mix_targets(&m, 4, 4, 3, 3, labels, t, top));
    CHECK(t[2] == 1 && t[0] == 0, "equal labels share a target of %g", (double)t[2]);
    CHECK(t[3] == .25f && t[5] == .75f && t[4] == 0 && top[1] == 2, "targets %g %g %g, label %d",
          (double)t[3], (double)t[4], (double)t[5], top[1]);
    CHECK(t[6] == .75f && t[8] == .25f && top[2] == 0, "targets %g %g, label %d", (double)t[6], (double)t[8],
          top[2]);
    CHECK_OK(hvt__mix_targets(&cut, 4, 4, 3, 3, labels, t, top)); /* 6 of 16 pixels */
    CHECK(t[3] == .625f && t[5] == .375f && top[1] == 0, "targets %g %g, label %d", (double)t[3],
          (double)t[5], top[1]);
    CHECK(hvt__mix_targets(&m, 4, 4, 2, 3, labels, t, top) == HVT_E_ARG, "label 2 of 2 classes");
}

TEST(boxes_to_erase_are_as_torchvisions)
{
    enum { MANY = 4000, SIDE = 64 };
    int erased = 0;
    double area = 0;
    int16_t b[4];

    for (uint32_t i = 0; i < MANY; i++)
        if (hvt__erase_box(SIDE, SIDE, .25f, 7, 3, i, b)) {
            double part = (double)b[2] * b[3] / (SIDE * SIDE), ratio = (double)b[2] / b[3];

            CHECK(b[0] >= 0 && b[1] >= 0 && b[0] + b[2] <= SIDE && b[1] + b[3] <= SIDE && b[2] < SIDE &&
                      b[3] < SIDE,
                  "box %d %d %d %d", b[0], b[1], b[2], b[3]);
            CHECK(part > .01 && part < .36 && ratio > .25 && ratio < 4, "area %g, ratio %g", part, ratio);
            erased++;
            area += part;
        } else {
            CHECK(!b[2] && !b[3], "a box of an image that stays");
        }
    CHECK(abs(erased - MANY / 4) < 150, "%d of %d erased", erased, MANY);
    CHECK(fabs(area / erased - .17) < .02, "mean area %g", area / erased);
    hvt__erase_box(1, 1, 1, 7, 3, 0, b);
    CHECK(!b[2] && !b[3], "a box in one pixel");
}

/* All batches of epoch 2 of shards [first, first + count) as they are in memory: images, labels, targets. */
static uint64_t hash_batches(const hvt_dataset *set, hvt_loader_opts opts, int first, int count)
{
    hvt_loader *l;
    hvt_batch b;
    bool end = false;
    uint64_t hash = 0;

    opts.first_shard = first, opts.shard_count = count;
    l = loader_on(ref, set, &opts);
    CHECK_OK(hvt_loader_rewind(l, 2, 0));
    for (;;) {
        uint64_t h = HVT_HASH_INIT;
        size_t n;

        CHECK_OK(hvt_loader_next(l, &b, &end));
        if (end)
            break;
        n = (size_t)b.count;
        h = hvt__hash(h, b.images.data, n * SIZE * sizeof(float));
        h = hvt__hash(h, b.labels.data, n * sizeof(int32_t));
        h = hvt__hash(h, b.targets.data, n * CLASSES * sizeof(float));
        hash ^= hvt__mix(h + (uint64_t)b.shard); /* in any order */
    }
    hvt_loader_close(&l);
    return hash;
}

TEST(batches_do_not_depend_on_workers_and_ranks)
{
    own o = {H, W, 3};
    hvt_dataset *set = own_set(&o, COUNT);
    hvt_loader_opts opts = loader_opts(6, 3);
    uint64_t want;

    opts.mixup = 1, opts.cutmix = 1, opts.erase = .5f, opts.flip = true;
    want = hash_batches(set, opts, 0, 3);
    for (int workers = 0; workers < 3; workers++) {
        opts.workers = workers;
        CHECK(hash_batches(set, opts, 0, 3) == want, "%d workers: other batches", workers);
        CHECK((hash_batches(set, opts, 0, 1) ^ hash_batches(set, opts, 1, 2)) == want,
              "two ranks: other batches");
    }
    opts.seed++;
    CHECK(hash_batches(set, opts, 0, 3) != want, "another seed: the same batches");
    hvt_dataset_close(&set);
}

TEST(a_batch_is_the_mixture_of_its_images)
{
    own o = {H, W, 3};
    hvt_dataset *set = own_set(&o, COUNT);
    hvt_loader_opts opts = loader_opts(7, 1);
    hvt_loader *plain = loader_on(ref, set, &opts), *mixed;
    hvt_batch a, b;
    bool end = false;
    float *before = malloc(7 * SIZE * sizeof *before);

    opts.mixup = 1;
    mixed = loader_on(ref, set, &opts);
    for (int step = 0; before && step < 10; step++) {
        const float *x, *t;

        CHECK_OK(hvt_loader_next(plain, &a, &end));
        memcpy(before, a.images.data, 7 * SIZE * sizeof *before);
        CHECK_OK(hvt_loader_next(mixed, &b, &end));
        x = b.images.data, t = b.targets.data;
        CHECK(b.targets.dim[1] == CLASSES && a.targets.data == NULL, "targets of %d", b.targets.dim[1]);
        for (int n = 0; n < 7; n++) {
            int own_label = (int)(a.ids[n] % 7), other_label = (int)(a.ids[(n + 6) % 7] % 7);
            float share = hvt__mix_draw(&opts, H, W, 0, (uint64_t)step * 7).share, sum = 0;

            for (int i = 0; i < SIZE; i++) {
                float want = share * before[n * SIZE + i] + (1 - share) * before[(n + 6) % 7 * SIZE + i];

                CHECK(fabsf(x[n * SIZE + i] - want) < 1e-5f, "step %d, image %d: element %d is %g, not %g",
                      step, n, i, (double)x[n * SIZE + i], (double)want);
            }
            for (int k = 0; k < CLASSES; k++)
                sum += t[n * CLASSES + k];
            CHECK(fabsf(sum - 1) < 1e-6f, "targets sum to %g", (double)sum);
            CHECK(own_label == other_label || fabsf(t[n * CLASSES + own_label] - share) < 1e-6f,
                  "target %g, not %g", (double)t[n * CLASSES + own_label], (double)share);
            CHECK(((const int32_t *)b.labels.data)[n] == (share >= .5f ? own_label : other_label), "label");
        }
    }
    free(before);
    hvt_loader_close(&plain);
    hvt_loader_close(&mixed);
    hvt_dataset_close(&set);
}

/* Source: references/classification/sampler.py of torchvision, whose indices these are. */
TEST(repeated_images_are_rasamplers)
{
    enum { MANY = 600, SHARDS = 7, REPEATS = 3, EACH = 512 / SHARDS };
    own o = {4, 4, 1};
    hvt_dataset *set = own_set(&o, MANY);
    hvt_loader_opts opts = loader_opts(5, SHARDS);
    static uint32_t order[MANY];
    hvt_loader *l;
    hvt_batch b;
    bool end = false;
    int seen[SHARDS] = {0};

    opts.repeats = REPEATS;
    l = loader_on(ref, set, &opts);
    hvt_sampler_permutation(opts.seed, 4, MANY, order);
    CHECK_OK(hvt_loader_rewind(l, 4, 0));
    for (;;) {
        CHECK_OK(hvt_loader_next(l, &b, &end));
        if (end)
            break;
        for (int n = 0; n < b.count; n++, seen[b.shard]++) {
            uint32_t want = order[(b.shard + seen[b.shard] * SHARDS) / REPEATS];

            CHECK(b.ids[n] == want, "shard %d, image %d: %u, not %u", b.shard, seen[b.shard], b.ids[n], want);
        }
    }
    for (int s = 0; s < SHARDS; s++)
        CHECK(seen[s] == EACH, "shard %d has %d images, not %d", s, seen[s], EACH);
    hvt_loader_close(&l);
    hvt_dataset_close(&set);
}

TEST(copies_of_an_image_are_changed_differently)
{
    own o = {H, W, 3};
    hvt_dataset *set = own_set(&o, 256);
    hvt_loader_opts opts = loader_opts(2, 1);
    hvt_loader *l;
    int differ = 0;

    opts.repeats = 2, opts.crop = 4;
    l = loader_on(ref, set, &opts);
    for (int step = 0; step < 128; step++) {
        hvt_batch b;
        bool end;

        CHECK_OK(hvt_loader_next(l, &b, &end));
        CHECK(b.ids[0] == b.ids[1], "images %u and %u", b.ids[0], b.ids[1]);
        differ += memcmp(b.images.data, (const float *)b.images.data + SIZE, SIZE * sizeof(float)) != 0;
    }
    CHECK(differ > 110, "only %d of 128 pairs differ", differ);
    hvt_loader_close(&l);
    hvt_dataset_close(&set);
}

static void refused(const hvt_dataset *set, const hvt_loader_opts *opts, const char *words)
{
    hvt_loader *l = NULL;
    hvt_status s = hvt_loader_open(set, ref, opts, &l);

    CHECK(s == HVT_E_ARG && strstr(hvt_last_error(), words), "status %d: %s", s, hvt_last_error());
    hvt_loader_close(&l);
}

TEST(impossible_mixtures_are_refused)
{
    own o = {H, W, 3};
    hvt_dataset *set = own_set(&o, COUNT);
    hvt_loader_opts opts = loader_opts(4, 1);

    opts.mixup = -1;
    refused(set, &opts, "alpha of mixup is -1");
    opts.mixup = 1, opts.classes = 5;
    refused(set, &opts, "targets of 5 classes, but data set 'own' has 7");
    opts.mixup = 0, opts.erase = 2;
    refused(set, &opts, "probability 2");
    opts.erase = 0, opts.repeats = 2;
    refused(set, &opts, "a multiple of 256 images, but data set 'own' has 70");
    opts.repeats = 300;
    refused(set, &opts, "300 times, expected 1 to 255");
    hvt_dataset_close(&set);
}

int main(void)
{
    if (hvt_device_open("ref", NULL, &ref) != HVT_OK) {
        fprintf(stderr, "cannot begin: %s\n", hvt_last_error());
        return 1;
    }

    RUN(shares_are_distributed_as_beta);
    RUN(boxes_of_cutmix_have_the_shares_area);
    RUN(targets_are_mixed_onehots);
    RUN(boxes_to_erase_are_as_torchvisions);
    RUN(batches_do_not_depend_on_workers_and_ranks);
    RUN(a_batch_is_the_mixture_of_its_images);
    RUN(repeated_images_are_rasamplers);
    RUN(copies_of_an_image_are_changed_differently);
    RUN(impossible_mixtures_are_refused);

    hvt_device_close(&ref);
    return check_done();
}
