/*
 * Data sets: user-defined ones, CIFAR-10, synth.
 *
 * HVT_TEST_CIFAR10 names the folder of the real CIFAR-10 (binary version); otherwise its test is skipped.
 */
#include "folder.h"
#include "own_set.h"

#include <math.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- a user's own ------------------------------------------------------------------------------------ */

TEST(a_users_data_set_is_closed_once)
{
    own o = {4, 5, 3};
    hvt_dataset *set = own_set(&o, 10);

    CHECK(o.closed == 0, "closed %d times while open", o.closed);
    hvt_dataset_close(&set);
    CHECK(!set && o.closed == 1, "closed %d times", o.closed);
    hvt_dataset_close(&set);
    hvt_dataset_close(NULL);
    CHECK(o.closed == 1, "closed %d times", o.closed);
}

TEST(a_refused_source_stays_with_its_owner)
{
    own o = {4, 5, 3};
    hvt_source good = own_source(&o, 10), bad;
    hvt_dataset *set = NULL;

    bad = good, bad.info.count = 0;
    CHECK_FAILS(hvt_dataset_from(&bad, 0, &set), E_ARG, "'own' has 0 images");
    bad = good, bad.info.classes = 1;
    CHECK_FAILS(hvt_dataset_from(&bad, 0, &set), E_ARG, "1 classes");
    bad = good, bad.info.targets = 1;
    CHECK_FAILS(hvt_dataset_from(&bad, 0, &set), E_ARG, "1 targets per image, no target() and labels");
    bad = good, bad.info.height = 100000;
    CHECK_FAILS(hvt_dataset_from(&bad, 0, &set), E_ARG, "100000 x 5");
    bad = good, bad.info.width = 0;
    CHECK_FAILS(hvt_dataset_from(&bad, 0, &set), E_ARG, "4 x 0");
    bad = good, bad.info.channels = 4;
    CHECK_FAILS(hvt_dataset_from(&bad, 0, &set), E_ARG, "4 channels");
    bad = good, bad.get = NULL;
    CHECK_FAILS(hvt_dataset_from(&bad, 0, &set), E_ARG, "neither get() nor read()");
    CHECK(!set && o.closed == 0, "closed %d times", o.closed);
}

TEST(a_limit_takes_a_sample_in_the_sets_order)
{
    own o = {4, 5, 3};
    hvt_source source = own_source(&o, 10);
    hvt_dataset *all = own_set(&o, 10), *some = NULL, *more = NULL;
    uint8_t pixels[60];
    int label;

    CHECK_OK(hvt_dataset_from(&source, 4, &some));
    CHECK_OK(hvt_dataset_from(&source, 40, &more));
    CHECK(hvt_dataset_describe(some)->count == 4, "%u", hvt_dataset_describe(some)->count);
    CHECK(hvt_dataset_describe(more)->count == 10, "%u", hvt_dataset_describe(more)->count);
    CHECK(hvt_dataset_describe(some)->fingerprint != hvt_dataset_describe(all)->fingerprint,
          "a part has the fingerprint of the whole");
    CHECK(hvt_dataset_describe(more)->fingerprint == hvt_dataset_describe(all)->fingerprint,
          "a limit that takes nothing away changes the fingerprint");
    for (uint32_t i = 0, last = 0; i < 4; i++) {
        uint32_t from = 0;
        char name[20] = "";

        CHECK_OK(hvt_dataset_get(some, i, pixels, &label));
        CHECK_OK(hvt_dataset_name(some, i, name, sizeof name));
        CHECK(sscanf(name, "image %u", &from) == 1 && (!i || from > last), "%s after %u", name, last);
        CHECK(pixels[0] == own_byte(from, 0, 0, 0), "image %u is another one than %s", i, name);
        last = from;
    }
    CHECK_FAILS(hvt_dataset_get(some, 4, pixels, &label), E_ARG, "has 4 images; number 4 was requested");
    hvt_dataset_close(&all);
    hvt_dataset_close(&some);
    hvt_dataset_close(&more);
}

TEST(a_label_out_of_range_is_named)
{
    own o = {4, 5, 3, .bad_label = 7, .bad_index = 6};
    hvt_dataset *set = own_set(&o, 10);
    uint8_t pixels[60];
    int label = 99;

    CHECK_FAILS(hvt_dataset_get(set, 6, pixels, &label), E_FORMAT, "image 6: label is 7, expected 0 to 6");
    o.bad_label = -1;
    CHECK_FAILS(hvt_dataset_get(set, 6, pixels, &label), E_FORMAT, "label is -1");
    CHECK(label == 99, "a failed call wrote %d", label);
    hvt_dataset_close(&set);
}

/* ---- CIFAR-10 ---------------------------------------------------------------------------------------- */

enum { RECORD = 3073 };

static uint8_t cifar_byte(int file, uint32_t record, int channel, int pixel)
{
    return (uint8_t)hvt__draw((uint64_t)file, record, (uint64_t)channel, (uint64_t)pixel);
}

/* `records` whole records, label (file + record) mod 10; then change one label, and `extra` bytes. */
static void write_cifar(const char *dir, const char *name, int file, uint32_t records, int bad_record,
                        int bad_label, int extra)
{
    char path[256];
    FILE *f;

    snprintf(path, sizeof path, "%s/%s", dir, name);
    f = fopen(path, "wb");
    CHECK(f, "cannot write %s", path);
    for (uint32_t r = 0; f && r < records; r++) {
        fputc((int)r == bad_record ? bad_label : (int)((uint32_t)file + r) % 10, f);
        for (int c = 0; c < 3; c++)
            for (int p = 0; p < 1024; p++)
                fputc(cifar_byte(file, r, c, p), f);
    }
    for (int i = 0; f && i < extra; i++)
        fputc(1, f);
    if (f)
        fclose(f);
}

static const uint32_t cifar_records[5] = {3, 1, 4, 1, 5};

static void write_training_files(const char *dir)
{
    for (int i = 0; i < 5; i++) {
        char name[32];

        snprintf(name, sizeof name, "data_batch_%d.bin", i + 1);
        write_cifar(dir, name, i + 1, cifar_records[i], -1, 0, 0);
    }
}

static hvt_status open_cifar(const char *dir, bool train, uint32_t limit, hvt_dataset **ret_set)
{
    return hvt_dataset_open("cifar10", &(hvt_dataset_opts){.dir = dir, .train = train, .limit = limit},
                            ret_set);
}

static void check_cifar_image(const hvt_dataset *set, uint32_t index, int file, uint32_t record)
{
    uint8_t pixels[3072];
    int label, wrong = 0;

    CHECK_OK(hvt_dataset_get(set, index, pixels, &label));
    CHECK(label == (int)((uint32_t)file + record) % 10, "image %u has label %d", index, label);
    for (int p = 0; p < 1024; p++)
        for (int c = 0; c < 3; c++)
            wrong += pixels[3 * p + c] != cifar_byte(file, record, c, p);
    CHECK(!wrong, "image %u: %d bytes are not those of file %d, record %u", index, wrong, file, record);
}

TEST(cifar_planes_become_interleaved_pixels_file_after_file)
{
    const char *dir = in_folder("cifar");
    hvt_dataset *train = NULL, *test = NULL;
    uint32_t index = 0;

    mkdir(dir, 0755);
    write_training_files(dir);
    write_cifar(dir, "test_batch.bin", 9, 2, -1, 0, 0);
    CHECK_OK(open_cifar(dir, true, 0, &train));
    CHECK_OK(open_cifar(dir, false, 0, &test));
    if (!train || !test)
        return;
    CHECK(hvt_dataset_describe(train)->count == 14, "%u", hvt_dataset_describe(train)->count);
    CHECK(hvt_dataset_describe(train)->classes == 10 && hvt_dataset_describe(train)->height == 32 &&
              hvt_dataset_describe(train)->width == 32 && hvt_dataset_describe(train)->channels == 3,
          "another shape");
    for (int f = 0; f < 5; f++)
        for (uint32_t r = 0; r < cifar_records[f]; r++)
            check_cifar_image(train, index++, f + 1, r);
    check_cifar_image(test, 1, 9, 1);
    CHECK(hvt_dataset_describe(train)->fingerprint != hvt_dataset_describe(test)->fingerprint,
          "one fingerprint for two splits");
    hvt_dataset_close(&train);
    hvt_dataset_close(&test);
}

TEST(cifar_is_found_where_its_archive_was_unpacked)
{
    char sub[160];
    hvt_dataset *outer = NULL, *inner = NULL;

    mkdir(in_folder("unpacked"), 0755);
    snprintf(sub, sizeof sub, "%s", in_folder("unpacked/cifar-10-batches-bin"));
    mkdir(sub, 0755);
    write_training_files(sub);
    CHECK_OK(open_cifar(in_folder("unpacked"), true, 0, &outer));
    CHECK_OK(open_cifar(sub, true, 14, &inner));
    if (!outer || !inner)
        return;
    CHECK(hvt_dataset_describe(outer)->count == 14, "%u", hvt_dataset_describe(outer)->count);
    CHECK(hvt_dataset_describe(outer)->fingerprint == hvt_dataset_describe(inner)->fingerprint,
          "the folder's name changes the fingerprint");
    check_cifar_image(outer, 5, 3, 1);
    hvt_dataset_close(&outer);
    hvt_dataset_close(&inner);
}

TEST(the_fingerprint_of_cifar_sees_labels_and_sizes)
{
    const char *dir = in_folder("prints");
    uint64_t print[4];

    mkdir(dir, 0755);
    for (int i = 0; i < 4; i++) {
        hvt_dataset *set = NULL;

        /* as before, the same again, one label changed, one record fewer */
        write_cifar(dir, "test_batch.bin", 9, i == 3 ? 699 : 700, i == 2 ? 650 : -1, 3, 0);
        CHECK_OK(open_cifar(dir, false, 10, &set));
        print[i] = set ? hvt_dataset_describe(set)->fingerprint : 0;
        hvt_dataset_close(&set);
    }
    CHECK(print[0] == print[1], "it is not repeatable");
    CHECK(print[0] != print[2], "it does not see a label");
    CHECK(print[0] != print[3], "it does not see a size");
}

TEST(bad_cifar_files_are_refused_by_name)
{
    char dir[160];
    hvt_dataset *set = NULL;

    snprintf(dir, sizeof dir, "%s", in_folder("bad"));
    mkdir(dir, 0755);
    CHECK_FAILS(open_cifar(NULL, true, 0, &set), E_ARG, "--data-dir");
    CHECK_FAILS(open_cifar(dir, true, 0, &set), E_IO, "bad/cifar-10-batches-bin/data_batch_1.bin");
    CHECK_FAILS(open_cifar(in_folder("nowhere"), false, 0, &set), E_IO, "nowhere/test_batch.bin");

    write_training_files(dir);
    unlink(in_folder("bad/data_batch_4.bin"));
    CHECK_FAILS(open_cifar(dir, true, 0, &set), E_IO, "bad/data_batch_4.bin: No such file");

    write_cifar(dir, "data_batch_4.bin", 4, 2, -1, 0, 100);
    CHECK_FAILS(open_cifar(dir, true, 0, &set), E_FORMAT,
                "bad/data_batch_4.bin holds 6246 bytes, expected a positive multiple of 3073: record 2");
    write_cifar(dir, "data_batch_4.bin", 4, 0, -1, 0, 0);
    CHECK_FAILS(open_cifar(dir, true, 0, &set), E_FORMAT, "bad/data_batch_4.bin holds 0 bytes");
    write_cifar(dir, "data_batch_4.bin", 4, 5, 3, 10, 0);
    CHECK_FAILS(open_cifar(dir, true, 0, &set), E_FORMAT,
                "bad/data_batch_4.bin, record 3: label is 10, expected 0 to 9");
    unlink(in_folder("bad/data_batch_4.bin"));
    mkdir(in_folder("bad/data_batch_4.bin"), 0755);
    CHECK_FAILS(open_cifar(dir, true, 0, &set), E_IO, "bad/data_batch_4.bin is a folder");
    CHECK(!set, "a refused open returned a data set");
}

TEST(an_unknown_data_set_lists_the_known_ones)
{
    hvt_dataset *set = NULL;

    CHECK_FAILS(hvt_dataset_open("imagenet", &(hvt_dataset_opts){0}, &set), E_ARG,
                "'imagenet'; the data sets are: synth, cifar10, ");
}

TEST(a_cifar_file_that_becomes_shorter_is_an_error_that_names_it)
{
    const char *dir = in_folder("shorter");
    char path[200];
    hvt_dataset *set = NULL;
    uint8_t pixels[3 * 1024];
    int label;

    mkdir(dir, 0777);
    write_cifar(dir, "test_batch.bin", 9, 20, -1, 0, 0);
    CHECK_OK(open_cifar(dir, false, 0, &set));
    check_cifar_image(set, 19, 9, 19);
    snprintf(path, sizeof path, "%s/test_batch.bin", dir);
    CHECK(truncate(path, 3073 * 7 + 100) == 0, "cannot cut %s", path);
    check_cifar_image(set, 6, 9, 6);
    CHECK_FAILS(hvt_dataset_get(set, 7, pixels, &label), E_IO,
                "shorter/test_batch.bin: ends in record 7 of 20: it was truncated");
    CHECK_FAILS(hvt_dataset_get(set, 19, pixels, &label), E_IO, "test_batch.bin: ends in record 19 of 20");
    hvt_dataset_close(&set);
}

TEST(the_real_cifar_has_its_known_counts)
{
    const char *dir = getenv("HVT_TEST_CIFAR10");

    for (int train = 0; train < 2; train++) {
        hvt_dataset *set = NULL;
        uint32_t per_class[10] = {0}, n = train ? 50000 : 10000;
        uint8_t pixels[3072];
        uint64_t sum = 0;

        CHECK_OK(open_cifar(dir, train, 0, &set));
        if (!set)
            return;
        CHECK(hvt_dataset_describe(set)->count == n, "%u images", hvt_dataset_describe(set)->count);
        for (uint32_t i = 0; i < hvt_dataset_describe(set)->count; i++) {
            int label = 0;

            CHECK_OK(hvt_dataset_get(set, i, pixels, &label));
            per_class[label]++;
            for (size_t p = 0; p < sizeof pixels; p++)
                sum += pixels[p];
        }
        for (int c = 0; c < 10; c++)
            CHECK(per_class[c] == n / 10, "class %d has %u images of %u", c, per_class[c], n);
        /* its well-known means .4914 .4822 .4465 (training), together .4734; .4758 for test */
        CHECK(fabs((double)sum / n / 3072 / 255 - (train ? .4734 : .4758)) < 2e-3, "mean is %.4f",
              (double)sum / n / 3072 / 255);
        hvt_dataset_close(&set);
    }
}

/* ---- synth ------------------------------------------------------------------------------------------- */

static hvt_dataset *synth(bool train, int size, int classes, uint32_t samples)
{
    hvt_dataset *set = NULL;

    CHECK_OK(hvt_dataset_open(
        "synth",
        &(hvt_dataset_opts){.train = train, .image_size = size, .classes = classes, .samples = samples},
        &set));
    return set;
}

/* A hash over bytes and labels of the first `count` images. */
static uint64_t hash_images(const hvt_dataset *set, uint32_t count)
{
    const hvt_dataset_info *i = hvt_dataset_describe(set);
    size_t bytes = (size_t)i->height * (size_t)i->width * (size_t)i->channels;
    uint8_t *pixels = malloc(bytes);
    uint64_t h = HVT_HASH_INIT;

    for (uint32_t n = 0; n < count; n++) {
        int label = 0;

        CHECK_OK(hvt_dataset_get(set, n, pixels, &label));
        h = hvt__hash(h ^ (uint64_t)label, pixels, bytes);
    }
    free(pixels);
    return h;
}

TEST(synth_draws_the_same_bytes_on_every_machine)
{
    const struct {
        bool train;
        int size, classes;
        uint64_t hash;
    } want[] = {
        {true, 32, 10, 0x82e8c681d9df4ca4},   {false, 32, 10, 0x68c0a71b67666556},
        {true, 8, 2, 0x99f0829ab9a1ee8f},     {true, 33, 256, 0x205eb8e368ab3032},
        {true, 64, 1000, 0x7c1b4dd6bc69c18c}, {false, 300, 100, 0x75c57b75a4b02365},
    };

    for (size_t t = 0; t < HVT_LEN(want); t++) {
        hvt_dataset *set = synth(want[t].train, want[t].size, want[t].classes, 5000);
        uint64_t h = hash_images(set, 300);

        CHECK(h == want[t].hash, "%d classes of side %d: 0x%016llx", want[t].classes, want[t].size,
              (unsigned long long)h);
        hvt_dataset_close(&set);
    }
}

TEST(synth_is_what_its_options_say)
{
    hvt_dataset *set = synth(true, 0, 0, 0);
    const hvt_dataset_info *i = hvt_dataset_describe(set);
    uint64_t print = i->fingerprint;

    CHECK(i->count == 10000 && i->classes == 10 && i->height == 32 && i->width == 32 && i->channels == 3,
          "%u images of %d classes, %dx%dx%d", i->count, i->classes, i->height, i->width, i->channels);
    CHECK(!strcmp(i->name, "synth"), "name is %s", i->name);
    hvt_dataset_close(&set);
    set = synth(false, 16, 4, 500);
    i = hvt_dataset_describe(set);
    CHECK(i->count == 100 && i->classes == 4 && i->height == 16, "%u images", i->count);
    CHECK(i->fingerprint != print, "one fingerprint for two sets");
    hvt_dataset_close(&set);
    set = synth(false, 16, 4, 3);
    CHECK(hvt_dataset_describe(set)->count == 1, "a test split of %u", hvt_dataset_describe(set)->count);
    hvt_dataset_close(&set);
}

TEST(synth_images_do_not_depend_on_how_many_there_are)
{
    hvt_dataset *few = synth(true, 32, 10, 100), *many = synth(true, 32, 10, 100000);

    CHECK(hash_images(few, 100) == hash_images(many, 100), "the first 100 of 100,000 are others");
    hvt_dataset_close(&few);
    hvt_dataset_close(&many);
}

TEST(synth_splits_differ_and_no_image_comes_twice)
{
    hvt_dataset *set[2] = {synth(false, 32, 10, 5000), synth(true, 32, 10, 5000)};
    uint64_t seen[2000];
    uint8_t pixels[3072];
    int label;

    for (uint32_t n = 0; n < 2000; n++) {
        CHECK_OK(hvt_dataset_get(set[n / 1000], n % 1000, pixels, &label));
        seen[n] = hvt__hash(1, pixels, sizeof pixels);
        for (uint32_t m = 0; m < n; m++)
            CHECK(seen[m] != seen[n], "images %u and %u are equal", m, n);
    }
    hvt_dataset_close(&set[0]);
    hvt_dataset_close(&set[1]);
}

TEST(synth_labels_are_balanced_and_in_no_order)
{
    const int classes[] = {2, 3, 10, 97, 256, 1000};

    for (size_t t = 0; t < HVT_LEN(classes); t++) {
        int k = classes[t], same = 0, last = -1;
        hvt_dataset *set = synth(true, 8, k, 10 * (uint32_t)k);
        uint32_t seen[1000] = {0};
        uint8_t pixels[192];

        for (int n = 0; n < 10 * k; n++) {
            int label = 0;

            CHECK_OK(hvt_dataset_get(set, (uint32_t)n, pixels, &label));
            seen[label]++;
            same += label == (last + 1) % k;
            last = label;
        }
        for (int c = 0; c < k; c++)
            CHECK(seen[c] == 10, "class %d of %d has %u of %d images", c, k, seen[c], 10 * k);
        CHECK(k < 10 || same < 5 * k, "%d of %d labels follow their predecessor", same, 10 * k);
        hvt_dataset_close(&set);
    }
}

/* The class whose mean training image lies nearest, a linear classifier, hardly beats chance. */
TEST(synth_is_not_told_apart_by_templates)
{
    enum { TRAIN = 5000, TESTS = 1000 };
    hvt_dataset *train = synth(true, 32, 10, 0), *test = synth(false, 32, 10, 0);
    double(*mean)[3072] = calloc(10, sizeof *mean);
    uint8_t pixels[3072];
    int label, hits = 0;

    for (uint32_t n = 0; n < TRAIN; n++) {
        CHECK_OK(hvt_dataset_get(train, n, pixels, &label));
        for (int p = 0; p < 3072; p++)
            mean[label][p] += pixels[p] / (TRAIN / 10.0);
    }
    for (uint32_t n = 0; n < TESTS; n++) {
        double nearest = HUGE_VAL;
        int guess = 0;

        CHECK_OK(hvt_dataset_get(test, n, pixels, &label));
        for (int c = 0; c < 10; c++) {
            double d = 0;

            for (int p = 0; p < 3072; p++)
                d += (pixels[p] - mean[c][p]) * (pixels[p] - mean[c][p]);
            if (d < nearest)
                nearest = d, guess = c;
        }
        hits += guess == label;
    }
    CHECK(hits < TESTS * 3 / 10, "templates tell %d of %d", hits, TESTS);
    free(mean);
    hvt_dataset_close(&train);
    hvt_dataset_close(&test);
}

static void *hash_in_thread(void *arg)
{
    uint64_t *h = malloc(sizeof *h);

    *h = hash_images(arg, 300);
    return h;
}

TEST(synth_may_be_read_by_several_threads)
{
    hvt_dataset *set = synth(true, 32, 10, 0);
    uint64_t alone = hash_images(set, 300);
    pthread_t thread[4];

    for (int t = 0; t < 4; t++)
        pthread_create(&thread[t], NULL, hash_in_thread, set);
    for (int t = 0; t < 4; t++) {
        void *h;

        pthread_join(thread[t], &h);
        CHECK(*(uint64_t *)h == alone, "thread %d saw other images", t);
        free(h);
    }
    hvt_dataset_close(&set);
}

TEST(bad_synth_options_are_refused)
{
    const struct {
        int size, classes;
        const char *part;
    } bad[] = {{7, 10, "image size is 7, expected 8"},
               {5000, 10, "image size is 5000"},
               {-1, 10, "image size is -1"},
               {32, 1, "classes is 1, expected 2 to 1000"},
               {32, 1001, "classes is 1001"}};

    for (size_t t = 0; t < HVT_LEN(bad); t++) {
        hvt_dataset *set = NULL;

        CHECK_FAILS(hvt_dataset_open("synth",
                                     &(hvt_dataset_opts){
                                         .train = true, .image_size = bad[t].size, .classes = bad[t].classes},
                                     &set),
                    E_ARG, bad[t].part);
    }
}

int main(void)
{
    if (!folder_make())
        return 1;
    RUN(a_users_data_set_is_closed_once);
    RUN(a_refused_source_stays_with_its_owner);
    RUN(a_limit_takes_a_sample_in_the_sets_order);
    RUN(a_label_out_of_range_is_named);

    RUN(cifar_planes_become_interleaved_pixels_file_after_file);
    RUN(cifar_is_found_where_its_archive_was_unpacked);
    RUN(the_fingerprint_of_cifar_sees_labels_and_sizes);
    RUN(bad_cifar_files_are_refused_by_name);
    RUN(an_unknown_data_set_lists_the_known_ones);
    RUN(a_cifar_file_that_becomes_shorter_is_an_error_that_names_it);
    if (getenv("HVT_TEST_CIFAR10"))
        RUN(the_real_cifar_has_its_known_counts);
    else
        check_skip("the_real_cifar_has_its_known_counts", "HVT_TEST_CIFAR10 names no folder");

    RUN(synth_draws_the_same_bytes_on_every_machine);
    RUN(synth_is_what_its_options_say);
    RUN(synth_images_do_not_depend_on_how_many_there_are);
    RUN(synth_splits_differ_and_no_image_comes_twice);
    RUN(synth_labels_are_balanced_and_in_no_order);
    RUN(synth_is_not_told_apart_by_templates);
    RUN(synth_may_be_read_by_several_threads);
    RUN(bad_synth_options_are_refused);

    if (!folder_remove())
        fprintf(stderr, "cannot remove %s\n", folder);
    return check_done();
}
