/*
 * Data sets read from files: CIFAR-100, STL-10, NumPy's arrays; and the split of a training set. Tar shards
 * are in test_tar.c.
 */
#include "base_impl.h"
#include "check.h"
#include "files.h"

#include <math.h>
#include <unistd.h>

/* ---- CIFAR-100 --------------------------------------------------------------------------------------- */

/* `count` records with the fine label 7i mod 100. */
static void write_cifar100(const char *path, int count, int bad_coarse, int bad_fine)
{
    FILE *f = create(path);

    for (int i = 0; i < count; i++) {
        fputc(i == 3 && bad_coarse ? bad_coarse : i % 20, f);
        fputc(i == 3 && bad_fine ? bad_fine : 7 * i % 100, f);
        for (int c = 0; c < 3; c++)
            for (int p = 0; p < 1024; p++)
                fputc(byte_of(100, (uint64_t)i, (uint64_t)c, (uint64_t)p), f);
    }
    fclose(f);
}

TEST(cifar100_has_fine_labels_behind_coarse_ones)
{
    const char *dir = fresh_folder("cifar-100-binary");
    hvt_dataset *train = NULL, *test = NULL;
    uint8_t pixels[3072];
    int label, wrong = 0;

    write_cifar100(in_folder("cifar-100-binary/train.bin"), 300, 0, 0);
    write_cifar100(in_folder("cifar-100-binary/test.bin"), 20, 0, 0);
    CHECK_OK(open_set("cifar100", folder, true, &train)); /* where the archive was unpacked */
    CHECK_OK(open_set("cifar100", dir, false, &test));
    if (!train || !test)
        return;
    CHECK(hvt_dataset_describe(train)->count == 300 && hvt_dataset_describe(train)->classes == 100,
          "%u images of %d classes", hvt_dataset_describe(train)->count,
          hvt_dataset_describe(train)->classes);
    CHECK(hvt_dataset_describe(test)->count == 20, "%u test images", hvt_dataset_describe(test)->count);
    CHECK_OK(hvt_dataset_get(train, 299, pixels, &label));
    CHECK(label == 7 * 299 % 100, "image 299 has label %d", label);
    for (int p = 0; p < 1024; p++)
        for (int c = 0; c < 3; c++)
            wrong += pixels[3 * p + c] != byte_of(100, 299, (uint64_t)c, (uint64_t)p);
    CHECK(!wrong, "%d bytes are wrong", wrong);
    hvt_dataset_close(&train);
    hvt_dataset_close(&test);
}

TEST(bad_cifar100_files_are_refused_by_name)
{
    const char *dir = fresh_folder("bad100");
    hvt_dataset *set = NULL;

    CHECK_FAILS(open_set("cifar100", dir, true, &set), E_IO, "cifar-100-binary.tar.gz");
    write_cifar100(in_folder("bad100/train.bin"), 9, 20, 0);
    CHECK_FAILS(open_set("cifar100", dir, true, &set), E_FORMAT,
                "bad100/train.bin, record 3: coarse label is 20, expected 0 to 19");
    write_cifar100(in_folder("bad100/train.bin"), 9, 0, 100);
    CHECK_FAILS(open_set("cifar100", dir, true, &set), E_FORMAT,
                "record 3: fine label is 100, expected 0 to 99");
    write_cifar100(in_folder("bad100/train.bin"), 9, 0, 0);
    CHECK(truncate(in_folder("bad100/train.bin"), 3074 * 8 + 3073) == 0, "cannot cut");
    CHECK_FAILS(open_set("cifar100", dir, true, &set), E_FORMAT,
                "expected a positive multiple of 3074: record 8 is cut off");
    CHECK(!set, "a refused open returned a data set");
}

/* ---- STL-10 ------------------------------------------------------------------------------------------ */

enum { STL_SIDE = 96, STL_PIXELS = STL_SIDE * STL_SIDE, STL_IMAGE = 3 * STL_PIXELS };

/* Images whose byte at row y and column x is byte_of(split, i, c, 96*y + x), labels 1 + i mod 10. */
static void write_stl10(const char *dir, const char *split, int count, int labels, int bad_label)
{
    char path[400];
    FILE *f;

    snprintf(path, sizeof path, "%s/%s_X.bin", dir, split);
    f = create(path);
    for (int i = 0; i < count; i++)
        for (int c = 0; c < 3; c++)
            for (int x = 0; x < STL_SIDE; x++)
                for (int y = 0; y < STL_SIDE; y++)
                    fputc(byte_of((uint64_t)*split, (uint64_t)i, (uint64_t)c, (uint64_t)(STL_SIDE * y + x)),
                          f);
    fclose(f);
    snprintf(path, sizeof path, "%s/%s_y.bin", dir, split);
    f = create(path);
    for (int i = 0; i < labels; i++)
        fputc(i == 2 && bad_label >= 0 ? bad_label : 1 + i % 10, f);
    fclose(f);
}

TEST(stl10_stands_upright_and_counts_classes_from_0)
{
    const char *dir = fresh_folder("stl10_binary");
    hvt_dataset *train = NULL, *test = NULL;
    uint8_t *pixels = malloc(STL_IMAGE);
    int label, wrong = 0;

    write_stl10(dir, "train", 12, 12, -1);
    write_stl10(dir, "test", 3, 3, -1);
    CHECK_OK(open_set("stl10", folder, true, &train));
    CHECK_OK(open_set("stl10", dir, false, &test));
    if (!train || !test)
        return;
    CHECK(hvt_dataset_describe(train)->count == 12 && hvt_dataset_describe(train)->height == 96 &&
              hvt_dataset_describe(train)->width == 96 && hvt_dataset_describe(train)->classes == 10,
          "%u images", hvt_dataset_describe(train)->count);
    for (uint32_t i = 0; i < 12; i++) {
        CHECK_OK(hvt_dataset_get(train, i, pixels, &label));
        CHECK(label == (int)i % 10, "image %u has label %d", i, label);
        for (uint64_t p = 0; p < STL_PIXELS; p++)
            for (uint64_t c = 0; c < 3; c++)
                wrong += pixels[3 * p + c] != byte_of('t', i, c, p);
    }
    CHECK(!wrong, "%d bytes are wrong", wrong);
    CHECK(hvt_dataset_describe(train)->fingerprint != hvt_dataset_describe(test)->fingerprint,
          "one fingerprint for two splits");
    free(pixels);
    hvt_dataset_close(&train);
    hvt_dataset_close(&test);
}

TEST(bad_stl10_files_are_refused_by_name)
{
    const char *dir = fresh_folder("badstl");
    hvt_dataset *set = NULL;
    uint8_t *pixels = malloc(STL_IMAGE);
    int label;

    CHECK_FAILS(open_set("stl10", dir, false, &set), E_IO, "badstl/test_X.bin");
    write_stl10(dir, "test", 3, 2, -1);
    CHECK_FAILS(open_set("stl10", dir, false, &set), E_FORMAT, "badstl/test_y.bin holds 2 labels, but ");
    write_stl10(dir, "test", 3, 3, 0);
    CHECK_FAILS(open_set("stl10", dir, false, &set), E_FORMAT, "test_y.bin, image 2: label is 0, expected 1");
    write_stl10(dir, "test", 3, 3, 11);
    CHECK_FAILS(open_set("stl10", dir, false, &set), E_FORMAT, "image 2: label is 11, expected 1 to 10");
    unlink(in_folder("badstl/test_y.bin"));
    CHECK_FAILS(open_set("stl10", dir, false, &set), E_IO, "badstl/test_y.bin: No such file");
    write_stl10(dir, "test", 3, 3, -1);
    CHECK(truncate(in_folder("badstl/test_X.bin"), 2 * STL_IMAGE + 1) == 0, "cannot cut");
    CHECK_FAILS(open_set("stl10", dir, false, &set), E_FORMAT, "image 2 is cut off");
    CHECK(!set, "a refused open returned a data set");

    write_stl10(dir, "test", 3, 3, -1);
    CHECK_OK(open_set("stl10", dir, false, &set));
    CHECK(truncate(in_folder("badstl/test_X.bin"), 2 * STL_IMAGE + 1) == 0, "cannot cut");
    CHECK_OK(hvt_dataset_get(set, 1, pixels, &label));
    CHECK_FAILS(hvt_dataset_get(set, 2, pixels, &label), E_IO, "ends in image 2 of 3: it was truncated");
    free(pixels);
    hvt_dataset_close(&set);
}

/* ---- names of classes --------------------------------------------------------------------------------- */

static void write_lines(const char *path, const char *text, int lines)
{
    FILE *f = create(path);

    for (int i = 0; i < lines; i++)
        fprintf(f, "%s_%d\r\n", text, i);
    fputs("\n", f); /* as CIFAR-10's ends */
    fclose(f);
}

static void check_names(const char *data, const char *dir, int label, const char *want)
{
    hvt_dataset *set = NULL;
    const char *name;

    CHECK_OK(open_set(data, dir, false, &set));
    name = hvt_dataset_class_name(set, label);
    CHECK(want ? name && !strcmp(name, want) : !name, "class %d of %s is '%s'", label, data,
          name ? name : "");
    hvt_dataset_close(&set);
}

TEST(archives_name_their_classes)
{
    const char *dir = fresh_folder("named");

    write_cifar100(in_folder("named/test.bin"), 20, 0, 0);
    write_stl10(dir, "test", 3, 3, -1);
    check_names("cifar100", dir, 99, NULL);
    check_names("stl10", dir, 0, NULL);
    write_lines(in_folder("named/fine_label_names.txt"), "thing", 100);
    write_lines(in_folder("named/class_names.txt"), "animal", 10);
    check_names("cifar100", dir, 99, "thing_99");
    check_names("stl10", dir, 0, "animal_0");
    write_lines(in_folder("named/class_names.txt"), "animal", 9); /* and a warning */
    check_names("stl10", dir, 0, NULL);
}

/* ---- NumPy's arrays ---------------------------------------------------------------------------------- */

enum { NPY_N = 5, NPY_H = 6, NPY_W = 7 };

/* Value of image i at (y, x, c): a byte, exact in every type. */
static int npy_value(int i, int y, int x, int c)
{
    return byte_of(77, (uint64_t)i, (uint64_t)c, (uint64_t)(100 * y + x));
}

/* NPY_N images of c channels in this type ('1' u8, '4' f32, '8' f64). Floats are value / 16 - 4. */
/* The values of a .npy in the other order of bytes, or of indices. */
static void turn_values(unsigned char *data, size_t n, size_t size, bool big, const int *side, int sides)
{
    static unsigned char turned[NPY_N * NPY_H * NPY_W * 3 * 8];

    for (size_t i = 0; big && i < n; i += size)
        for (size_t k = 0; k < size / 2; k++) {
            unsigned char t = data[i + k];

            data[i + k] = data[i + size - 1 - k];
            data[i + size - 1 - k] = t;
        }
    if (!sides)
        return;
    for (size_t i = 0; i < n / size; i++) { /* i in C order; to: in Fortran order */
        size_t rest = i, to = 0, step = n / size;

        for (int k = sides - 1; k >= 0; k--) {
            step /= (size_t)side[k];
            to += rest % (size_t)side[k] * step;
            rest /= (size_t)side[k];
        }
        memcpy(turned + to * size, data + i * size, size);
    }
    memcpy(data, turned, n);
}

enum { BIG = 1, FORTRAN = 2 };

static void write_images_as(const char *path, char type, int c, bool planes, int how)
{
    static unsigned char data[NPY_N * NPY_H * NPY_W * 3 * 8];
    size_t n = 0, size = (size_t)(type - '0');
    char shape[80], dict[200];

    for (int i = 0; i < NPY_N; i++)
        for (int a = 0; a < (planes ? c : NPY_H); a++)
            for (int b = 0; b < (planes ? NPY_H : NPY_W); b++)
                for (int d = 0; d < (planes ? NPY_W : c); d++, n += size) {
                    int value = planes ? npy_value(i, b, d, a) : npy_value(i, a, b, d);
                    double twice = value / 16.0 - 4;
                    float single = (float)twice;

                    data[n] = (unsigned char)value;
                    if (size > 1)
                        memcpy(data + n, size == 8 ? (void *)&twice : (void *)&single, size);
                }
    if (planes)
        snprintf(shape, sizeof shape, "(%d, %d, %d, %d)", NPY_N, c, NPY_H, NPY_W);
    else
        snprintf(shape, sizeof shape, "(%d, %d, %d, %d)", NPY_N, NPY_H, NPY_W, c);
    if (c == 1 && !planes)
        snprintf(shape, sizeof shape, "(%d, %d, %d)", NPY_N, NPY_H, NPY_W);
    turn_values(data, n, size, how & BIG,
                planes ? (int[]){NPY_N, c, NPY_H, NPY_W} : (int[]){NPY_N, NPY_H, NPY_W, c},
                how & FORTRAN ? 4 : 0);
    snprintf(dict, sizeof dict, "{'descr': '%s', 'fortran_order': %s, 'shape': %s, }",
             type == '1'   ? "|u1"
             : type == '4' ? (how & BIG ? ">f4" : "<f4")
                           : (how & BIG ? ">f8" : "<f8"),
             how & FORTRAN ? "True" : "False", shape);
    write_npy(path, 1, dict, data, n);
}

static void write_images(const char *path, char type, int c, bool planes)
{
    write_images_as(path, type, c, planes, 0);
}

static void write_labels(const char *path)
{
    write_npy(path, 1, dict_of("<i2", "(5,)"), "\0\0\1\0\2\0\1\0\6\0", 10);
}

static void check_npy(const char *dir, char type, int c, bool planes, int how)
{
    const int labels[NPY_N] = {0, 1, 2, 1, 6};
    hvt_dataset *set = NULL;
    hvt_record r = {0};
    int wrong = 0;

    write_images_as(in_folder("npy/train_images.npy"), type, c, planes, how);
    CHECK_OK(open_set("npy", dir, true, &set));
    if (!set)
        return;
    const hvt_dataset_info *info = hvt_dataset_describe(set);
    CHECK(info->count == NPY_N && info->height == NPY_H && info->width == NPY_W && info->channels == c &&
              info->classes == 7 && info->type == (type == '1' ? HVT_U8 : HVT_F32),
          "%u images of %dx%dx%d, %d classes", info->count, info->height, info->width, info->channels,
          info->classes);
    for (int i = 0; i < NPY_N; i++) {
        CHECK_OK(hvt_dataset_read(set, (uint32_t)i, &r));
        CHECK(r.label == labels[i], "image %d has label %d", i, r.label);
        for (int p = 0, y = 0; y < NPY_H; y++)
            for (int x = 0; x < NPY_W; x++)
                for (int k = 0; k < c; k++, p++) {
                    int value = npy_value(i, y, x, k);
                    wrong += type == '1' ? r.data[p] != value
                                         : ((float *)(void *)r.data)[p] != (float)(value / 16.0 - 4);
                }
    }
    CHECK(!wrong, "type %c, %d channels, planes %d: %d values are wrong", type, c, planes, wrong);
    free(r.data);
    hvt_dataset_close(&set);
}

TEST(arrays_of_every_type_and_order_are_the_same_images)
{
    const char *dir = fresh_folder("npy");

    write_labels(in_folder("npy/train_labels.npy"));
    for (const char *type = "148"; *type; type++)
        for (int c = 1; c <= 3; c++)
            for (int planes = 0; planes < 2; planes++)
                for (int how = 0; how <= (BIG | FORTRAN); how++)
                    check_npy(dir, *type, c, planes, how);
}

TEST(labels_are_integers_of_any_type)
{
    static const struct {
        const char *descr, *shape, *data;
        size_t bytes;
    } good[] = {{"|u1", "(5,)", "\0\1\2\1\6", 5},
                {"|i1", "(5, 1)", "\0\1\2\1\6", 5},
                {"<u2", "(5,)", "\0\0\1\0\2\0\1\0\6\0", 10},
                {">i2", "(5,)", "\0\0\0\1\0\2\0\1\0\6", 10},
                {">u4", "(5, 1)", "\0\0\0\0\0\0\0\1\0\0\0\2\0\0\0\1\0\0\0\6", 20},
                {"<i4", "(5,)", "\0\0\0\0\1\0\0\0\2\0\0\0\1\0\0\0\6\0\0\0", 20},
                {"<u8", "(5,)",
                 "\0\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0\2\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0\6\0\0\0\0\0\0\0", 40},
                {"<i8", "(5, 1)",
                 "\0\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0\2\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0\6\0\0\0\0\0\0\0", 40}};
    const int want[NPY_N] = {0, 1, 2, 1, 6};
    const char *dir = fresh_folder("npylabels");
    uint8_t pixels[NPY_H * NPY_W * 3];

    write_images(in_folder("npylabels/test_images.npy"), '1', 3, false);
    for (size_t t = 0; t < HVT_LEN(good); t++) {
        hvt_dataset *set = NULL;

        write_npy(in_folder("npylabels/test_labels.npy"), 1, dict_of(good[t].descr, good[t].shape),
                  good[t].data, good[t].bytes);
        CHECK_OK(open_set("npy", dir, false, &set));
        for (uint32_t i = 0; set && i < NPY_N; i++) {
            int label;
            CHECK_OK(hvt_dataset_get(set, i, pixels, &label));
            CHECK(label == want[i], "%s: image %u has label %d", good[t].descr, i, label);
        }
        hvt_dataset_close(&set);
    }
}

TEST(a_test_array_alone_may_lack_labels_and_classes_may_be_more)
{
    const char *dir = fresh_folder("npyalone");
    hvt_dataset *set = NULL;
    uint8_t pixels[NPY_H * NPY_W * 3];
    int label = 0;

    write_images(in_folder("npyalone/test_images.npy"), '1', 3, true);
    CHECK_OK(open_set("npy", dir, false, &set));
    if (!set)
        return;
    CHECK(hvt_dataset_describe(set)->unlabelled, "it has labels");
    CHECK_OK(hvt_dataset_get(set, 4, pixels, &label));
    CHECK(label == -1, "its label is %d", label);
    hvt_dataset_close(&set);
    write_labels(in_folder("npyalone/test_labels.npy"));
    for (int classes = 5; classes < 12; classes += 5) {
        CHECK_OK(hvt_dataset_open("npy", &(hvt_dataset_opts){.dir = dir, .classes = classes}, &set));
        CHECK(set && hvt_dataset_describe(set)->classes == (classes < 7 ? 7 : classes),
              "asked for %d classes", classes);
        hvt_dataset_close(&set);
    }
    write_images(in_folder("npyalone/train_images.npy"), '1', 3, true);
    CHECK_FAILS(open_set("npy", dir, true, &set), E_IO, "npyalone/train_labels.npy: No such file");
    CHECK_FAILS(open_set("npy", NULL, true, &set), E_ARG, "--data-dir");
}

TEST(headers_are_read_as_numpy_reads_them)
{
    static const char *const good[] = {
        "{'descr': '|u1', 'fortran_order': False, 'shape': (2, 4, 4, 1), }",
        "{\"shape\":(2,4,4,1),\"fortran_order\":False,\"descr\":\"u1\"}",
        "{ 'fortran_order' : False , 'shape' : ( 2L , 4L , 4L , 1L , ) , 'descr' : '>u1' } ",
        "{'descr': '<u1', 'fortran_order': False, 'shape': (2, 4, 4)}"};
    const char *dir = fresh_folder("npyheads");
    uint8_t data[32], pixels[16];

    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (uint8_t)(3 * i);
    for (size_t t = 0; t < HVT_LEN(good); t++)
        for (int version = 1; version <= 3; version++) {
            hvt_dataset *set = NULL;
            int label;

            write_npy(in_folder("npyheads/test_images.npy"), version, good[t], data, sizeof data);
            CHECK_OK(open_set("npy", dir, false, &set));
            if (!set)
                continue;
            CHECK_OK(hvt_dataset_get(set, 1, pixels, &label));
            CHECK(!memcmp(pixels, data + 16, 16), "%s, version %d: other bytes", good[t], version);
            hvt_dataset_close(&set);
        }
}

/* Files that were not fetched, in the place of each kind of data. */
TEST(what_lies_in_the_place_of_a_file_is_named)
{
    static const char *const texts[][2] = {
        {"version https://git-lfs.github.com/spec/v1\noid sha256:a\nsize 1\n",
         "is a Git LFS pointer; git lfs pull"},
        {"\n<!DOCTYPE HTML><title>404</title>", "is a web page; download the file again"},
        {"<?xml version=\"1.0\"?><Error><Code>AccessDenied</Code></Error>", "an object store's error"},
        {"{\"error\": \"denied\"}", "is an error message in JSON"}};
    static const char *const sets[][2] = {{"npy", "train_images.npy"},
                                          {"tar", "train-0.tar"},
                                          {"cifar10", "data_batch_1.bin"},
                                          {"cifar100", "train.bin"},
                                          {"stl10", "train_X.bin"}};
    hvt_dataset *set = NULL;

    for (size_t i = 0; i < HVT_LEN(sets); i++)
        for (size_t k = 0; k < HVT_LEN(texts); k++) {
            const char *dir = fresh_folder("instead");
            char path[80];
            FILE *f;

            snprintf(path, sizeof path, "instead/%s", sets[i][1]);
            f = create(in_folder(path));
            fputs(texts[k][0], f);
            fclose(f);
            CHECK_FAILS(open_set(sets[i][0], dir, true, &set), E_FORMAT, texts[k][1]);
            CHECK(strstr(hvt_last_error(), path), "the file is not named: %s", hvt_last_error());
        }
    CHECK(!set, "a refused open returned a data set");
}

TEST(bad_arrays_are_refused_with_what_to_do)
{
    static const struct {
        const char *dict, *part;
    } bad[] = {
        {"{'descr': '<f4', 'fortran_order': True, 'shape': (2, 4, 4, 1), }", "32 bytes behind"},
        {"{'descr': '|b1', 'fortran_order': False, 'shape': (2, 4, 4, 1), }", ".astype(np.uint8) * 255)"},
        {"{'descr': '<c8', 'fortran_order': False, 'shape': (2, 4, 4, 1), }", "'<c8', expected uint8"},
        {"{'descr': '<f2', 'fortran_order': False, 'shape': (2, 4, 4, 1), }", "'<f2', expected uint8"},
        {"{'descr': '<i8', 'fortran_order': False, 'shape': (2, 4, 4, 1), }", "'<i8', expected uint8"},
        {"{'descr': '|O', 'fortran_order': False, 'shape': (2, 4, 4, 1), }", "holds Python objects"},
        {"{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (2, 4, 4, 1), }", "structured"},
        {"{'descr': '|u1', 'fortran_order': False, 'shape': (2, 3, 4, 3), }", "[2,3,4,3], which may be"},
        {"{'descr': '|u1', 'fortran_order': False, 'shape': (2, 4, 4, 4), }", "1 to 3 channels"},
        {"{'descr': '|u1', 'fortran_order': False, 'shape': (2, 4, 4, 4, 1), }", "5 dimensions"},
        {"{'descr': '|u1', 'fortran_order': False, 'shape': (32,), }", "1 dimensions"},
        {"{'descr': '|u1', 'fortran_order': False, 'shape': (), }", "0 dimensions"},
        {"{'descr': '|u1', 'fortran_order': False, 'shape': (2, 4, 5, 1), }", "32 bytes behind"},
        {"{'descr': '|u1', 'fortran_order': False, 'shape': (2, 4, 3, 1), }", "expected 24"},
        {"{'descr': '|u1', 'fortran_order': False, 'shape': (4294967296, 4294967296, 4, 1), }",
         "exceeds the size of any file"},
        {"{'descr': '|u1', 'fortran_order': False, 'shape': (99999999999999999999, 1, 4, 1), }", "a number"},
        {"{'descr': '|u1', 'fortran_order': False, 'shape': (-2, 4, 4, 1), }", "a number"},
        {"{'descr': '|u1', 'fortran_order': False}", "descr, fortran_order and shape"},
        {"{'descr': '|u1', 'descr': '|u1', 'fortran_order': False, 'shape': (32,)}", "each once"},
        {"{'descr': '|u1', 'fortran_order': False, 'shape': (2, 4, 4, 1), 'more': 1}", "each once"},
        {"{'descr': '|u1', 'fortran_order': 0, 'shape': (2, 4, 4, 1)}", "True or False"},
        {"{'descr': '|u1', 'fortran_order': False, 'shape': (2, 4, 4, 1)", "',' or '}'"},
        {"{'descr': '|u1', 'fortran_order': False, 'shape': (2, 4, 4, 1)} x", "nothing more"},
        {"{'descr': '|u1, 'fortran_order': False, 'shape': (2, 4, 4, 1)}", "'|u1, ', expected plain"},
        {"", "a dict"}};
    const char *dir = fresh_folder("npybad");
    hvt_dataset *set = NULL;
    uint8_t data[32] = {0};

    for (size_t t = 0; t < HVT_LEN(bad); t++) {
        write_npy(in_folder("npybad/test_images.npy"), 1, bad[t].dict, data, sizeof data);
        CHECK_FAILS(open_set("npy", dir, false, &set), E_FORMAT, bad[t].part);
        CHECK(strstr(hvt_last_error(), "npybad/test_images.npy"), "%s", hvt_last_error());
    }
    write_npy(in_folder("npybad/test_images.npy"), 4, dict_of("|u1", "(2, 4, 4, 1)"), data, sizeof data);
    CHECK_FAILS(open_set("npy", dir, false, &set), E_FORMAT, "version 4.0, expected 1 to 3");
    fclose(create(in_folder("npybad/test_images.npy")));
    CHECK_FAILS(open_set("npy", dir, false, &set), E_FORMAT, "is not a NumPy file");
    CHECK(!set, "a refused open returned a data set");
}

TEST(bad_labels_of_arrays_are_named)
{
    static const struct {
        const char *descr, *shape, *part;
        uint8_t first[4];
        size_t bytes;
    } bad[] = {{"<c8", "(5,)", "'<c8', expected integers", {0}, 40},
               {"<f2", "(5,)", "'<f2', expected float32 or float64", {0}, 10},
               {"<f4", "(4,)", "targets of 4 images, but ", {0}, 16},
               {"<f4", "()", "0 dimensions, expected targets of the shape [N], [N,K]", {0}, 4},
               {"|u1", "(5, 1, 1)", "expected a mask for each image of ", {0}, 5},
               {"<f4", "(5,)", "target 0 of image 0 is inf", {0, 0, 0x80, 0x7f}, 20},
               {"<i4", "(4,)", "4 labels, but ", {0}, 16},
               {"<i4", "(5, 2)", "if they are one-hot: np.save(FILE, np.load(FILE).argmax(1))", {0}, 40},
               {"|u1", "(1, 5)", "one row of 5 labels, expected [N] or [N,1]", {0}, 5},
               {"<i4", "()", "0 dimensions, expected one label for each image", {0}, 4},
               {"<i4", "(5, 1, 1)", "3 dimensions, expected one label for each image", {0}, 20},
               {"<i4", "(5,)", "label 0 is negative", {0, 0, 0, 128}, 20},
               {"<u4", "(5,)", "label 0 is too large", {255, 255, 255, 127}, 20}};
    const char *dir = fresh_folder("npybadlabels");
    hvt_dataset *set = NULL;
    uint8_t data[40];

    write_images(in_folder("npybadlabels/test_images.npy"), '1', 3, false);
    for (size_t t = 0; t < HVT_LEN(bad); t++) {
        memset(data, 0, sizeof data);
        memcpy(data, bad[t].first, 4);
        write_npy(in_folder("npybadlabels/test_labels.npy"), 1, dict_of(bad[t].descr, bad[t].shape), data,
                  bad[t].bytes);
        CHECK_FAILS(open_set("npy", dir, false, &set), E_FORMAT, bad[t].part);
        CHECK(strstr(hvt_last_error(), "test_labels.npy"), "%s", hvt_last_error());
    }
    CHECK(!set, "a refused open returned a data set");
}

/* As a loader gives them, in its order, each with its image. */
TEST(labels_of_floats_are_targets)
{
    const double values[10] = {0.5, -1, 1.5, -2, 2.5, -3, 3.5, -4, 4.5, -5};
    const double columns[10] = {0.5, 1.5, 2.5, 3.5, 4.5, -1, -2, -3, -4, -5};
    const char *dir = fresh_folder("npytargets");
    hvt_loader_opts opts = {.batch = 3, .shards = 1, .shard_count = 1, .shuffle = true, .std = {1, 1, 1}};
    hvt_device *dev = NULL;
    hvt_loader *loader = NULL;
    hvt_dataset *set = NULL;
    float t[2] = {0};
    int seen = 0;

    write_images(in_folder("npytargets/test_images.npy"), '1', 3, false);
    write_npy(in_folder("npytargets/test_labels.npy"), 1, dict_of("<f8", "(5, 2)"), values, sizeof values);
    CHECK_OK(open_set("npy", dir, false, &set));
    CHECK(hvt_dataset_describe(set)->targets == 2 && hvt_dataset_describe(set)->unlabelled, "%d targets",
          hvt_dataset_describe(set)->targets);
    CHECK_OK(hvt_dataset_targets(set, 4, t));
    CHECK(t[0] == 4.5f && t[1] == -5, "targets %g and %g", (double)t[0], (double)t[1]);
    hvt_dataset_close(&set);
    write_npy(in_folder("npytargets/test_labels.npy"), 1,
              "{'descr': '<f8', 'fortran_order': True, 'shape': (5, 2), }", columns, sizeof columns);
    CHECK_OK(open_set("npy", dir, false, &set));
    CHECK_OK(hvt_dataset_targets(set, 3, t));
    CHECK(t[0] == 3.5f && t[1] == -4, "in Fortran order %g and %g", (double)t[0], (double)t[1]);
    CHECK_FAILS(hvt_dataset_targets(set, 5, t), E_ARG, "number 5 was requested");
    CHECK_FAILS(hvt_dataset_targets(set, 0, NULL), E_ARG, "output pointer");
    CHECK_FAILS(hvt_dataset_targets(NULL, 0, t), E_ARG, "a data set");
    CHECK_OK(hvt_device_open("ref", NULL, &dev));
    for (opts.workers = 0; opts.workers < 3; opts.workers += 2) {
        hvt_batch b;
        bool end = false;

        CHECK_OK(hvt_loader_open(set, dev, &opts, &loader));
        while (hvt_loader_next(loader, &b, &end) == HVT_OK && !end)
            for (int i = 0; i < b.count; i++, seen++) {
                const float *got = (const float *)b.targets.data + 2 * i;
                const double *want = values + 2 * b.ids[i];

                CHECK(b.targets.dim[1] == 2 && (double)got[0] == want[0] && (double)got[1] == want[1],
                      "image %u has targets %g and %g", b.ids[i], (double)got[0], (double)got[1]);
            }
        hvt_loader_close(&loader);
    }
    CHECK(seen == 10, "%d images", seen);
    hvt_device_close(&dev);
    hvt_dataset_close(&set);
}

TEST(values_that_are_not_finite_and_arrays_that_become_shorter_are_named)
{
    const char *dir = fresh_folder("npynan");
    const double big[32] = {[20] = 1e300}, nan[32] = {[3] = (double)NAN};
    hvt_dataset *set = NULL;
    hvt_record r = {0};

    write_npy(in_folder("npynan/test_images.npy"), 1, dict_of("<f8", "(2, 4, 4)"), big, sizeof big);
    CHECK_OK(open_set("npy", dir, false, &set));
    CHECK_OK(hvt_dataset_read(set, 0, &r));
    CHECK_FAILS(hvt_dataset_read(set, 1, &r), E_FORMAT, "image 1: value 4 is 1e+300");
    CHECK(truncate(in_folder("npynan/test_images.npy"), 200) == 0, "cannot cut");
    CHECK_FAILS(hvt_dataset_read(set, 1, &r), E_IO, "ends in image 1 of 2");
    hvt_dataset_close(&set);
    write_npy(in_folder("npynan/test_images.npy"), 1, dict_of("<f8", "(2, 4, 4)"), nan, sizeof nan);
    CHECK_OK(open_set("npy", dir, false, &set));
    CHECK_FAILS(hvt_dataset_read(set, 0, &r), E_FORMAT, "image 0: value 3 is nan");
    free(r.data);
    hvt_dataset_close(&set);
}

/* ---- a split of a training set ----------------------------------------------------------------------- */

static hvt_status open_synth(bool train, double val_split, uint32_t limit, hvt_dataset **ret_set)
{
    return hvt_dataset_open(
        "synth",
        &(hvt_dataset_opts){
            .train = train, .image_size = 8, .samples = 200, .limit = limit, .val_split = val_split},
        ret_set);
}

/* Is image i of this part number `whole_index` of the whole set? */
static bool is_image(const hvt_dataset *part, uint32_t i, const hvt_dataset *whole, uint32_t whole_index)
{
    uint8_t a[192], b[192];
    int label_a, label_b;
    char name[32], want[32];

    CHECK_OK(hvt_dataset_get(part, i, a, &label_a));
    CHECK_OK(hvt_dataset_get(whole, whole_index, b, &label_b));
    CHECK_OK(hvt_dataset_name(part, i, name, sizeof name));
    snprintf(want, sizeof want, "image %u", whole_index);
    return label_a == label_b && !memcmp(a, b, sizeof a) && !strcmp(name, want);
}

TEST(a_split_holds_out_what_a_permutation_by_seed_0_names_first_of_each_class)
{
    hvt_dataset *whole = NULL, *train = NULL, *test = NULL;
    uint32_t order[200], nth[2] = {0};
    bool held[200] = {false};
    struct {
        int held;
        bool passed;
    } of[10] = {{0, false}};

    CHECK_OK(open_synth(true, 0, 0, &whole));
    CHECK_OK(open_synth(true, 0.1525, 0, &train));
    CHECK_OK(open_synth(false, 0.1525, 0, &test));
    if (!whole || !train || !test)
        return;
    CHECK(hvt_dataset_describe(test)->count == 31, "%u held out of 200", hvt_dataset_describe(test)->count);
    CHECK(hvt_dataset_describe(train)->count == 169, "%u left", hvt_dataset_describe(train)->count);
    hvt_sampler_permutation(0, 0, 200, order);
    for (uint32_t i = 0; i < 31; i++) {
        char name[32];
        unsigned from = 0;

        CHECK_OK(hvt_dataset_name(test, i, name, sizeof name));
        CHECK(sscanf(name, "image %u", &from) == 1 && from < 200, "%s", name);
        held[from] = true;
    }
    for (int i = 0; i < 200; i++) {
        uint8_t pixels[192];
        int label = 0;

        CHECK_OK(hvt_dataset_get(whole, order[i], pixels, &label));
        CHECK(!held[order[i]] || !of[label].passed, "image %u is not among the first of class %d", order[i],
              label);
        of[label].held += held[order[i]];
        of[label].passed |= !held[order[i]];
    }
    for (int c = 0; c < 10; c++)
        CHECK(of[c].held == 3 || of[c].held == 4, "%d images of class %d are held out", of[c].held, c);
    for (uint32_t i = 0; i < 200; i++)
        CHECK(is_image(held[i] ? test : train, nth[held[i]]++, whole, i), "image %u is elsewhere", i);
    hvt_dataset_close(&test);
    CHECK_OK(open_synth(false, 0.1525, 7, &test));
    CHECK(hvt_dataset_describe(test)->count == 7, "%u with a limit", hvt_dataset_describe(test)->count);
    hvt_dataset_close(&whole);
    hvt_dataset_close(&train);
    hvt_dataset_close(&test);
}

TEST(splits_have_fingerprints_of_their_own)
{
    static const struct {
        bool train;
        double split;
    } all[] = {{true, 0}, {true, 0.5}, {false, 0.5}, {true, 0.25}, {false, 0.25}, {false, 0}};
    uint64_t print[HVT_LEN(all)];

    for (size_t i = 0; i < HVT_LEN(all); i++) {
        hvt_dataset *set = NULL;

        CHECK_OK(open_synth(all[i].train, all[i].split, 0, &set));
        print[i] = set ? hvt_dataset_describe(set)->fingerprint : 0;
        hvt_dataset_close(&set);
        for (size_t k = 0; k < i; k++)
            CHECK(print[i] != print[k], "one fingerprint for %zu and %zu", k, i);
    }
}

TEST(a_split_needs_the_training_files_only)
{
    const char *dir = fresh_folder("split100");
    hvt_dataset *set = NULL;

    write_cifar100(in_folder("split100/train.bin"), 30, 0, 0);
    CHECK_OK(hvt_dataset_open("cifar100", &(hvt_dataset_opts){.dir = dir, .val_split = 0.1}, &set));
    CHECK(set && hvt_dataset_describe(set)->count == 3, "another count");
    hvt_dataset_close(&set);
}

TEST(a_split_that_leaves_nothing_is_refused)
{
    hvt_dataset *set = NULL;

    CHECK_FAILS(open_synth(true, 0.002, 0, &set), E_ARG, "holds out 0 of the 200 training images of 'synth'");
    CHECK_FAILS(open_synth(false, 0.998, 0, &set), E_ARG, "holds out 200 of the 200");
    CHECK_FAILS(open_synth(true, 1, 0, &set), E_ARG, "val_split is 1, expected");
    CHECK_FAILS(open_synth(true, -0.1, 0, &set), E_ARG, "val_split is -0.1");
    CHECK(!set, "a refused open returned a data set");
}

int main(void)
{
    if (!folder_make())
        return 1;
    RUN(cifar100_has_fine_labels_behind_coarse_ones);
    RUN(bad_cifar100_files_are_refused_by_name);
    RUN(stl10_stands_upright_and_counts_classes_from_0);
    RUN(bad_stl10_files_are_refused_by_name);
    RUN(archives_name_their_classes);
    RUN(arrays_of_every_type_and_order_are_the_same_images);
    RUN(labels_are_integers_of_any_type);
    RUN(a_test_array_alone_may_lack_labels_and_classes_may_be_more);
    RUN(headers_are_read_as_numpy_reads_them);
    RUN(what_lies_in_the_place_of_a_file_is_named);
    RUN(bad_arrays_are_refused_with_what_to_do);
    RUN(bad_labels_of_arrays_are_named);
    RUN(labels_of_floats_are_targets);
    RUN(values_that_are_not_finite_and_arrays_that_become_shorter_are_named);
    RUN(a_split_holds_out_what_a_permutation_by_seed_0_names_first_of_each_class);
    RUN(splits_have_fingerprints_of_their_own);
    RUN(a_split_needs_the_training_files_only);
    RUN(a_split_that_leaves_nothing_is_refused);

    if (!folder_remove())
        fprintf(stderr, "cannot remove %s\n", folder);
    return check_done();
}
