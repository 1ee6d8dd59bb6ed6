/*
 * Tar shards: reading those of any program, their indexes, and packing.
 */
#include "base_impl.h"
#include "check.h"
#include "files.h"

#include <sys/resource.h>
#include <unistd.h>

/* ---- writing shards ----------------------------------------------------------------------------------- */

static void fill_octal(char *field, int digits, unsigned long long value)
{
    char text[32];

    snprintf(text, sizeof text, "%0*llo", digits, value);
    memcpy(field, text, (size_t)digits + 1);
}

/* A header; magic "" is that of old programs. */
static void put_header(FILE *f, const char *name, char type, unsigned long long bytes, const char *magic,
                       const char *prefix)
{
    char h[512] = {0};
    unsigned sum = 0;

    strncpy(h, name, 100);
    fill_octal(h + 100, 7, 0644);
    fill_octal(h + 124, 11, bytes);
    fill_octal(h + 136, 11, 0);
    memset(h + 148, ' ', 8);
    h[156] = type;
    memcpy(h + 257, magic, strlen(magic));
    if (!strcmp(magic, "ustar")) {
        memcpy(h + 263, "00", 2);
        strncpy(h + 345, prefix, 155);
    }
    for (size_t i = 0; i < sizeof h; i++)
        sum += (unsigned char)h[i];
    fill_octal(h + 148, 6, sum);
    fwrite(h, 1, sizeof h, f);
}

static void put_contents(FILE *f, const void *data, size_t bytes)
{
    static const char zeros[512];

    fwrite(data, 1, bytes, f);
    fwrite(zeros, 1, (512 - bytes % 512) % 512, f);
}

static void put_file(FILE *f, const char *name, const void *data, size_t bytes)
{
    put_header(f, name, '0', bytes, "ustar", "");
    put_contents(f, data, bytes);
}

static void put_text(FILE *f, const char *name, const char *text)
{
    put_file(f, name, text, strlen(text));
}

static void put_end(FILE *f, int blocks)
{
    static const char zeros[512];

    for (int i = 0; i < blocks; i++)
        fwrite(zeros, 1, sizeof zeros, f);
    fclose(f);
}

/* A shard of `count` samples from number `first` on: image "picture N", label N mod 7. */
static void write_shard(const char *path, int first, int count)
{
    FILE *f = create(path);
    char name[64], text[64];

    for (int i = first; i < first + count; i++) {
        snprintf(name, sizeof name, "d/%06d.jpg", i);
        snprintf(text, sizeof text, "picture %d", i);
        put_text(f, name, text);
        snprintf(name, sizeof name, "d/%06d.cls", i);
        snprintf(text, sizeof text, "%d\n", i % 7);
        put_text(f, name, text);
    }
    put_end(f, 2);
}

/* Does sample `index` hold this text and label, and is its name's end `name`? */
static bool is_sample(const hvt_dataset *set, uint32_t index, const char *text, int label, const char *name)
{
    char got[600];
    hvt_record r = {0};
    bool same;

    CHECK_OK(hvt_dataset_read(set, index, &r));
    CHECK_OK(hvt_dataset_name(set, index, got, sizeof got));
    same = r.encoding == HVT_IMAGE_FILE && r.label == label && r.bytes == strlen(text) &&
           !memcmp(r.data, text, r.bytes) && strlen(got) >= strlen(name) &&
           !strcmp(got + strlen(got) - strlen(name), name);
    if (!same)
        fprintf(stderr, "sample %u: label %d, '%.*s', '%s'\n", index, r.label, (int)r.bytes, (char *)r.data,
                got);
    free(r.data);
    return same;
}

TEST(shards_are_one_set_in_the_order_of_their_names)
{
    const char *dir = fresh_folder("shards");
    hvt_dataset *set = NULL;

    write_shard(in_folder("shards/train-000001.tar"), 4, 3);
    write_shard(in_folder("shards/train-000000.tar"), 0, 4);
    write_shard(in_folder("shards/train-000002.tar"), 7, 2);
    write_shard(in_folder("shards/val-x.tar"), 49, 1);
    for (int again = 0; again < 2; again++) { /* by a scan, and by the kept indexes */
        CHECK_OK(open_set("tar", dir, true, &set));
        if (!set)
            return;
        CHECK(hvt_dataset_describe(set)->count == 9 && hvt_dataset_describe(set)->classes == 7 &&
                  hvt_dataset_describe(set)->height == 0,
              "%u samples of %d classes", hvt_dataset_describe(set)->count,
              hvt_dataset_describe(set)->classes);
        for (int i = 8; i >= 0; i--) {
            char text[32], name[64];
            snprintf(text, sizeof text, "picture %d", i);
            snprintf(name, sizeof name, "shards/train-%06d.tar: d/%06d.jpg", i < 4 ? 0 : i < 7 ? 1 : 2, i);
            CHECK(is_sample(set, (uint32_t)i, text, i % 7, name), "another sample");
        }
        hvt_dataset_close(&set);
        CHECK(access(in_folder("shards/train-000002.tar.hvtindex"), F_OK) == 0, "no index is kept");
    }
    CHECK_FAILS(open_set("tar", dir, false, &set), E_ARG, "1 classes"); /* of one image */
    CHECK_OK(hvt_dataset_open("tar", &(hvt_dataset_opts){.dir = dir, .classes = 7}, &set));
    CHECK(is_sample(set, 0, "picture 49", 0, "val-x.tar: d/000049.jpg"), "another test set");
    hvt_dataset_close(&set);
}

TEST(members_come_in_any_order_and_by_any_kind_of_name)
{
    const char *dir = fresh_folder("members");
    char long_name[300], pax[400], bytes[16];
    hvt_dataset *set = NULL;
    FILE *f = create(in_folder("members/train-0.tar"));

    memset(long_name, 'n', sizeof long_name);
    put_header(f, "d/", '5', 0, "ustar", "");
    put_text(f, "d/b.cls", " 1 ");
    put_text(f, "d/a.PNG", "A");
    put_text(f, "d/b.json", "{}");
    put_text(f, "d/b.jpeg", "B");
    put_text(f, "d/._a.jpg", "a file of macOS");
    put_text(f, "d/a.seg.png", "another picture of it");
    put_header(f, "deep.PGM", '0', 1, "ustar", "prefix"); /* of ustar */
    put_contents(f, "C", 1);
    put_text(f, "prefix/deep.cls", "2");
    strcpy(long_name + 200, ".jpg"); /* of GNU tar */
    put_header(f, "././@LongLink", 'L', 205, "ustar  ", "");
    put_contents(f, long_name, 205);
    put_header(f, "nnn", '0', 1, "ustar  ", "");
    put_contents(f, "D", 1);
    long_name[200] = 0; /* of pax */
    snprintf(pax, sizeof pax, "214 path=%s.cls\n", long_name);
    snprintf(bytes, sizeof bytes, "10 size=2\n");
    strcat(pax, bytes);
    put_header(f, "PaxHeaders/x", 'x', strlen(pax), "ustar", "");
    put_contents(f, pax, strlen(pax));
    put_header(f, "nnn", '0', 0, "ustar", "");
    put_contents(f, "3\n", 2);
    put_header(f, "pax_global_header", 'g', 20, "ustar", "");
    put_contents(f, "20 comment=any text\n", 20);
    put_end(f, 1); /* as cat of two files */
    f = fopen(in_folder("members/train-0.tar"), "ab");
    put_text(f, "d/a.cls", "0");
    put_end(f, 20);
    CHECK_OK(open_set("tar", dir, true, &set));
    if (!set)
        return;
    CHECK(hvt_dataset_describe(set)->count == 4, "%u samples", hvt_dataset_describe(set)->count);
    CHECK(is_sample(set, 0, "A", 0, ": d/a.PNG"), "another first one");
    CHECK(is_sample(set, 1, "B", 1, ": d/b.jpeg"), "another second one");
    CHECK(is_sample(set, 2, "C", 2, ": prefix/deep.PGM"), "a prefix is lost");
    CHECK(is_sample(set, 3, "D", 3, "nnnn.jpg"), "long names do not meet");
    hvt_dataset_close(&set);
}

TEST(raw_pixels_are_arrays_in_a_shard)
{
    static const struct {
        const char *descr, *shape, *part;
    } bad[] = {{"<f4", "(2, 1, 3)", "'<f4' of 3 dimensions, expected uint8 [h,w,3]"},
               {"|u1", "(2, 4, 3, 1)", "4 dimensions"},
               {"|u1", "(6, 4, 1)", "expected uint8 [h,w,3]"},
               {"|u1", "(0, 4, 3)", "0 x 4 pixels"},
               {"|u1", "(2, 3, 3)", "has 152 bytes, expected 146"}};
    const char *dir = fresh_folder("raw");
    hvt_dataset *set = NULL;
    hvt_record r = {0};
    uint8_t npy[200], pixels[24];

    for (int i = 0; i < 24; i++)
        pixels[i] = (uint8_t)(i * 11);
    for (size_t t = 0; t <= HVT_LEN(bad); t++) {
        FILE *f = create(in_folder("raw/train-0.tar"));
        FILE *array;
        size_t bytes;

        write_npy(in_folder("raw/array"), 1,
                  t < HVT_LEN(bad) ? dict_of(bad[t].descr, bad[t].shape) : dict_of("|u1", "(2, 4, 3)"),
                  pixels, 24);
        array = fopen(in_folder("raw/array"), "rb");
        bytes = array ? fread(npy, 1, sizeof npy, array) : 0;
        if (array)
            fclose(array);
        put_file(f, "x.npy", npy, bytes);
        put_text(f, "x.cls", "1");
        put_end(f, 2);
        CHECK_OK(open_set("tar", dir, true, &set));
        if (t < HVT_LEN(bad)) {
            CHECK_FAILS(hvt_dataset_read(set, 0, &r), E_FORMAT, bad[t].part);
            CHECK(strstr(hvt_last_error(), "x.npy"), "%s", hvt_last_error());
        } else {
            CHECK_OK(hvt_dataset_read(set, 0, &r));
            CHECK(r.encoding == HVT_IMAGE_U8 && r.height == 2 && r.width == 4 && r.bytes == 24 &&
                      !memcmp(r.data, pixels, 24),
                  "other pixels");
        }
        hvt_dataset_close(&set);
    }
    free(r.data);
}

/* What is wrong with a shard of three samples. */
static void write_bad_shard(const char *path, int what)
{
    FILE *f = create(path);

    put_text(f, "a.jpg", "A");
    put_text(f, "a.cls", what == 0 ? "-1" : what == 1 ? "1x" : what == 2 ? "" : "1");
    if (what == 3)
        put_text(f, "b.jpg", "B");
    if (what == 4)
        put_text(f, "b.cls", "1");
    if (what == 5)
        put_text(f, "a.png", "B");
    if (what == 6)
        put_text(f, "a.cls", "1");
    if (what == 7)
        put_header(f, "b.jpg", '2', 0, "ustar", "");
    if (what == 8)
        put_header(f, "b.jpg", 'S', 0, "ustar  ", "");
    if (what == 9)
        put_text(f, "b.jpg", "");
    if (what == 10)
        put_text(f, "b.left.cls", "1");
    if (what == 11)
        fwrite("not a header", 1, 12, f), fseek(f, 500, SEEK_CUR), fputc(1, f);
    if (what == 12) {
        put_header(f, "x", 'x', 9, "ustar", "");
        put_contents(f, "99 path=x", 9);
    }
    if (what == 13)
        put_header(f, "b.jpg", '0', 5000, "ustar", "");
    put_end(f, 2);
}

TEST(bad_shards_are_refused_by_name)
{
    static const char *const parts[] = {"'a.cls' holds '-1', expected a label",
                                        "'a.cls' holds '1x'",
                                        "'a.cls' holds ''",
                                        "'b.jpg' has no label beside it, 'b.cls'",
                                        "'b.cls' has no image beside it",
                                        "sample 'a' has two images, one of them 'a.png'",
                                        "'a.cls' occurs twice",
                                        "'b.jpg' is a link",
                                        "image 'b.jpg' has 0 bytes",
                                        "'b.jpg' has 0 bytes",
                                        "'b.left.cls': a sample's name ends at the first dot",
                                        "no tar header at byte 2048",
                                        "the pax header at byte 2048 is damaged",
                                        "truncated in 'b.jpg': it has 1024 of its 5000 bytes"};
    const char *dir = fresh_folder("badtar");
    hvt_dataset *set = NULL;

    CHECK_FAILS(open_set("tar", NULL, true, &set), E_ARG, "--data-dir");
    CHECK_FAILS(open_set("tar", in_folder("nowhere"), true, &set), E_IO, "nowhere: No such file");
    CHECK_FAILS(open_set("tar", dir, true, &set), E_IO, "holds no shards train-*.tar");
    for (int what = 0; what < (int)HVT_LEN(parts); what++) {
        write_bad_shard(in_folder("badtar/train-7.tar"), what);
        CHECK_FAILS(open_set("tar", dir, true, &set), E_FORMAT, parts[what]);
        CHECK(strstr(hvt_last_error(), "badtar/train-7.tar"), "%s", hvt_last_error());
        CHECK(access(in_folder("badtar/train-7.tar.hvtindex"), F_OK) != 0, "a bad shard has an index");
    }
    put_end(create(in_folder("badtar/train-7.tar")), 2);
    CHECK_FAILS(open_set("tar", dir, true, &set), E_FORMAT, "holds no image");
    write_shard(in_folder("badtar/train-7.tar"), 0, 5);
    CHECK(truncate(in_folder("badtar/train-7.tar"), 4 * 2048) == 0, "cannot cut"); /* between two members */
    CHECK_FAILS(open_set("tar", dir, true, &set), E_FORMAT, "ends at byte 8192 without the blocks of zeros");
    CHECK(!set, "a refused open returned a data set");
}

TEST(shards_without_labels_are_unlabelled_as_a_whole)
{
    const char *dir = fresh_folder("nolabels");
    hvt_dataset *set = NULL;
    FILE *f = create(in_folder("nolabels/val-0.tar"));

    put_text(f, "a.jpg", "A");
    put_end(f, 2);
    CHECK_OK(open_set("tar", dir, false, &set));
    CHECK(set && hvt_dataset_describe(set)->unlabelled && is_sample(set, 0, "A", -1, "a.jpg"),
          "it has labels");
    hvt_dataset_close(&set);
    write_shard(in_folder("nolabels/val-1.tar"), 0, 2);
    CHECK_FAILS(open_set("tar", dir, false, &set), E_FORMAT,
                "val-1.tar: its samples have labels, those of the shards before it have none");
}

static char last_line[600];

static void keep_line(void *ctx, hvt_log_level level, const char *line)
{
    (void)ctx, (void)level;
    snprintf(last_line, sizeof last_line, "%s", line);
}

TEST(a_shard_that_changes_is_indexed_again_and_one_that_shrinks_is_refused)
{
    const char *dir = fresh_folder("changes");
    char shard[300], index[310];
    hvt_dataset *set = NULL;
    hvt_record r = {0};

    snprintf(shard, sizeof shard, "%s/train-0.tar", dir);
    snprintf(index, sizeof index, "%s.hvtindex", shard);
    write_shard(shard, 0, 5);
    CHECK_OK(open_set("tar", dir, true, &set));
    CHECK_OK(hvt_dataset_read(set, 4, &r));
    write_shard(shard, 10, 6); /* while it is open */
    CHECK_FAILS(hvt_dataset_read(set, 4, &r), E_IO, "train-0.tar: changed after it was indexed");
    hvt_dataset_close(&set);

    hvt_log_to(keep_line, NULL, HVT_LOG_INFO);
    CHECK_OK(open_set("tar", dir, true, &set));
    CHECK(strstr(last_line, "train-0.tar: changed since it was indexed"), "'%s'", last_line);
    CHECK(set && hvt_dataset_describe(set)->count == 6 && is_sample(set, 0, "picture 10", 3, "000010.jpg"),
          "another set");
    hvt_dataset_close(&set);
    *last_line = 0;
    CHECK_OK(open_set("tar", dir, true, &set));
    CHECK(!*last_line, "'%s'", last_line);
    hvt_dataset_close(&set);
    hvt_log_to(NULL, NULL, HVT_LOG_INFO);

    write_shard(shard, 0, 2);
    CHECK_FAILS(open_set("tar", dir, true, &set), E_FORMAT,
                "when it was indexed: it was truncated; if it was");
    CHECK(unlink(index) == 0, "no index");
    CHECK_OK(open_set("tar", dir, true, &set));
    CHECK(set && hvt_dataset_describe(set)->count == 2, "another count");
    hvt_dataset_close(&set);
    free(r.data);
}

/* A damaged index is no index: each of its bytes changed, and each of its lengths. */
TEST(an_index_that_is_damaged_is_made_again)
{
    const char *dir = fresh_folder("damaged");
    char index[300], now[4096], good[4096];
    hvt_dataset *set = NULL;
    size_t bytes;
    FILE *f;

    snprintf(index, sizeof index, "%s/train-0.tar.hvtindex", dir);
    write_shard(in_folder("damaged/train-0.tar"), 0, 5);
    CHECK_OK(open_set("tar", dir, true, &set));
    hvt_dataset_close(&set);
    f = fopen(index, "rb");
    bytes = f ? fread(good, 1, sizeof good, f) : 0;
    CHECK(bytes > 100 && bytes < sizeof good, "an index of %zu bytes", bytes);
    if (f)
        fclose(f);
    hvt_log_to(keep_line, NULL, HVT_LOG_ERROR);
    for (size_t i = 0; i < 2 * bytes; i++) {
        f = create(index);
        memcpy(now, good, bytes);
        now[i % bytes] ^= 4;
        fwrite(i < bytes ? now : good, 1, i < bytes ? bytes : i - bytes, f);
        fclose(f);
        CHECK_OK(open_set("tar", dir, true, &set));
        CHECK(set && hvt_dataset_describe(set)->count == 5 && is_sample(set, 4, "picture 4", 4, "000004.jpg"),
              "byte %zu", i);
        hvt_dataset_close(&set);
        f = fopen(index, "rb");
        CHECK(f && fread(now, 1, sizeof now, f) == bytes && !memcmp(now, good, bytes), "byte %zu stays", i);
        if (f)
            fclose(f);
    }
    hvt_log_to(NULL, NULL, HVT_LOG_INFO);
}

TEST(an_index_that_cannot_be_kept_beside_its_shard_is_in_the_cache_folder)
{
    const char *dir = fresh_folder("unkept"), *cache;
    char index[300], line[200];
    hvt_dataset *set = NULL;

    fresh_folder("cache");
    cache = fresh_folder("cache/hvtrain");
    snprintf(index, sizeof index, "%s/train-0.tar.hvtindex", dir);
    write_shard(in_folder("unkept/train-0.tar"), 0, 5);
    mkdir(index, 0777); /* nothing can be renamed to that */
    setenv("XDG_CACHE_HOME", in_folder("cache"), 1);
    hvt_log_to(keep_line, NULL, HVT_LOG_ERROR);
    CHECK_OK(open_set("tar", dir, true, &set));
    hvt_log_to(NULL, NULL, HVT_LOG_INFO);
    CHECK(set && is_sample(set, 4, "picture 4", 4, "000004.jpg"), "another sample");
    hvt_dataset_close(&set);
    snprintf(line, sizeof line, "cd %.80s && touch -d @9 shard-* && ls shard-* | wc -l | grep -qx 1", cache);
    CHECK(system(line) == 0, "no index in the cache folder");
    CHECK_OK(open_set("tar", dir, true, &set));
    CHECK(set && is_sample(set, 4, "picture 4", 4, "000004.jpg"), "another sample");
    hvt_dataset_close(&set);
    snprintf(line, sizeof line, "cd %.80s && stat -c %%Y shard-* | grep -qx 9", cache);
    CHECK(system(line) == 0, "the index is made again");
    unsetenv("XDG_CACHE_HOME");
    CHECK(rmdir(index) == 0, "something is in it");
    snprintf(line, sizeof line, "ls %.80s | wc -l | grep -qx 1", dir);
    CHECK(system(line) == 0, "something is left in %s", dir);
}

TEST(more_shards_than_may_be_open_are_read_all_the_same)
{
    const char *dir = fresh_folder("many");
    struct rlimit before, few;
    hvt_dataset *set = NULL;

    for (int i = 0; i < 60; i++) {
        char name[64];
        snprintf(name, sizeof name, "many/train-%02d.tar", i);
        write_shard(in_folder(name), i, 1);
    }
    CHECK(getrlimit(RLIMIT_NOFILE, &before) == 0, "no limit");
    few = before;
    few.rlim_cur = 40;
    CHECK(setrlimit(RLIMIT_NOFILE, &few) == 0, "cannot lower it");
    CHECK_OK(open_set("tar", dir, true, &set));
    for (int i = 0; set && i < 120; i++) {
        char text[32], name[64];
        snprintf(text, sizeof text, "picture %d", i % 60);
        snprintf(name, sizeof name, "%06d.jpg", i % 60);
        CHECK(is_sample(set, (uint32_t)(i % 60), text, i % 60 % 7, name), "another sample");
    }
    hvt_dataset_close(&set);
    setrlimit(RLIMIT_NOFILE, &before);
}

/* ---- packing ----------------------------------------------------------------------------------------- */

/* Pictures of 2 x 1 pixels, label i mod 3; ctx: a letter for each, 'd' for a damaged one, 'e' for an empty
 * file. */
static hvt_status read_tiny(void *ctx, uint32_t index, hvt_record *r)
{
    static const char ppm[] = "P6\n2 1\n255\nabcdef";
    const char *kinds = ctx;

    HVT_CHECK(kinds[index] != 'e', E_FORMAT, "file %u is empty", index);
    HVT_TRY(hvt_record_reserve(r, sizeof ppm - 1 - (kinds[index] == 'd')));
    memcpy(r->data, ppm, r->bytes);
    r->encoding = HVT_IMAGE_FILE;
    r->label = (int)index % 3;
    return HVT_OK;
}

static const char *name_of_three(void *ctx, int label)
{
    (void)ctx;
    return (const char *[]){"ant", "bee", "cat"}[label];
}

static const char *name_of_others(void *ctx, int label)
{
    (void)ctx;
    return (const char *[]){"ant", "bee", "dog"}[label];
}

/* Into DIR/train-*.tar, or val-. */
static hvt_status pack_tiny(const char *kinds, const char *(*class_name)(void *, int), const char *output,
                            int skip, hvt_pack_info *ret_info)
{
    char text[32];
    hvt_source source = {.info = {"tiny", (uint32_t)strlen(kinds), 3, .channels = 3, .type = HVT_U8},
                         .read = read_tiny,
                         .class_name = class_name,
                         .ctx = memcpy(text, kinds, strlen(kinds) + 1)};
    hvt_pack_opts opts = {.output = in_folder(output), .shard_images = 2, .skip_damaged = skip};
    hvt_dataset *set = NULL;
    hvt_status s;

    CHECK_OK(hvt_dataset_from(&source, 0, &set));
    s = hvt_dataset_pack(set, NULL, &opts, ret_info);
    hvt_dataset_close(&set);
    return s;
}

TEST(damaged_images_are_left_out_and_the_rest_is_as_it_would_be)
{
    const char *dir = fresh_folder("packed");
    hvt_pack_info info = {0};
    hvt_dataset *set = NULL;
    hvt_record r = {0};
    char name[400];

    CHECK_FAILS(pack_tiny("gdg", NULL, "packed/train-%02d.tar", 0, &info), E_FORMAT, "image 1");
    hvt_log_to(keep_line, NULL, HVT_LOG_INFO);
    CHECK_FAILS(pack_tiny("gdgged", NULL, "packed/train-%02d.tar", 2, &info), E_FORMAT,
                "2 damaged images have been left out before");
    snprintf(name, sizeof name, "rm %s/train-*", dir);
    CHECK(system(name) == 0, "no shard is complete");
    CHECK_FAILS(pack_tiny("de", NULL, "packed/train-%02d.tar", 2, &info), E_FORMAT, "all 2 images of");
    CHECK_OK(pack_tiny("gdedgg", NULL, "packed/train-%02d.tar", 3, &info));
    CHECK(strstr(last_line, "image 3") && strstr(last_line, "left out (3 of at most 3 damaged"), "'%s'",
          last_line);
    hvt_log_to(NULL, NULL, HVT_LOG_INFO);
    CHECK(info.images == 3 && info.damaged == 3 && info.shards == 2, "%d images in %d shards",
          (int)info.images, (int)info.shards);
    CHECK(access(in_folder("packed/train-01.tar"), F_OK), "a shard of nothing");
    CHECK_OK(open_set("tar", dir, true, &set));
    CHECK(set && hvt_dataset_describe(set)->count == 3, "another count");
    for (uint32_t i = 0; set && i < 3; i++) {
        static const char *const names[] = {"train-00.tar: 000000000.ppm", "train-02.tar: 000000004.ppm",
                                            "train-02.tar: 000000005.ppm"};

        CHECK_OK(hvt_dataset_read(set, i, &r));
        CHECK_OK(hvt_dataset_name(set, i, name, sizeof name));
        CHECK(strstr(name, names[i]) && r.label == (int)i, "%s has label %d", name, r.label);
    }
    hvt_dataset_close(&set);
    free(r.data);
}

TEST(shards_keep_the_names_of_classes_beside_them)
{
    const char *dir = fresh_folder("classes");
    hvt_dataset *set = NULL;

    CHECK_OK(pack_tiny("ggg", name_of_three, "classes/train-%02d.tar", 0, NULL));
    CHECK_FAILS(pack_tiny("ggg", name_of_others, "classes/val-%02d.tar", 0, NULL), E_IO,
                "classes.txt has other classes");
    CHECK(access(in_folder("classes/val-00.tar"), F_OK), "other classes are packed");
    CHECK_OK(pack_tiny("gg", name_of_three, "classes/val-%02d.tar", 0, NULL));
    for (int train = 0; train < 2; train++) {
        const char *name;

        CHECK_OK(open_set("tar", dir, train, &set));
        name = hvt_dataset_class_name(set, 1);
        CHECK(name && !strcmp(name, "bee"), "'%s'", name ? name : "");
        hvt_dataset_close(&set);
    }
    CHECK(unlink(in_folder("classes/classes.txt")) == 0, "no names");
    CHECK_OK(open_set("tar", dir, true, &set));
    CHECK(!hvt_dataset_class_name(set, 1), "a name from nowhere");
    hvt_dataset_close(&set);
}

int main(void)
{
    if (!folder_make())
        return 1;
    RUN(shards_are_one_set_in_the_order_of_their_names);
    RUN(members_come_in_any_order_and_by_any_kind_of_name);
    RUN(raw_pixels_are_arrays_in_a_shard);
    RUN(bad_shards_are_refused_by_name);
    RUN(shards_without_labels_are_unlabelled_as_a_whole);
    RUN(a_shard_that_changes_is_indexed_again_and_one_that_shrinks_is_refused);
    RUN(an_index_that_is_damaged_is_made_again);
    RUN(an_index_that_cannot_be_kept_beside_its_shard_is_in_the_cache_folder);
    RUN(more_shards_than_may_be_open_are_read_all_the_same);
    RUN(damaged_images_are_left_out_and_the_rest_is_as_it_would_be);
    RUN(shards_keep_the_names_of_classes_beside_them);

    if (!folder_remove())
        fprintf(stderr, "cannot remove %s\n", folder);
    return check_done();
}
