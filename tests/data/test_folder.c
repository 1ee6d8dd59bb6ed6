/*
 * Folders of pictures: layouts, refused folders, the stored index, files that change. With several ranks each
 * uses rank 0's list.
 */
#include "data/format/listing.h"
#include "folder.h"
#include "hvt/data.h"
#include "logged.h"
#include "ranks.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

/* All ranks have the same folder, which rank 0 makes and changes. */
static void barrier(void)
{
    CHECK_OK(hvt_world_barrier(world));
}

static void shell(const char *command)
{
    char line[1400];

    barrier();
    snprintf(line, sizeof line, "cd %s && { %s; }", folder, command);
    if (rank == 0)
        CHECK(system(line) == 0, "failed: %s", line);
    barrier();
}

/* Pictures of one pixel, with blanks between; their folders are made. Rank 0. */
static void write_pictures(const char *paths)
{
    char line[1200];

    snprintf(line, sizeof line,
             "for f in %s; do mkdir -p \"$(dirname $f)\" && printf 'P6\\n1 1\\n255\\nabc' > $f; done", paths);
    shell(line);
}

static void make_two_splits(void)
{
    shell("rm -rf set");
    write_pictures("set/train/bee/2.jpg set/train/bee/10.PNG set/train/ant/a.JPEG set/train/ant/b.ppm "
                   "set/train/ant/deep/c.png set/train/Cat/x.jpg set/val/bee/v.jpg set/val/ant/v.jpg "
                   "set/val/Cat/v.jpg");
}

static hvt_status open_set(const char *name, bool train, hvt_dataset **ret_set)
{
    char path[400];

    snprintf(path, sizeof path, "%s/%s", folder, name);
    return hvt_dataset_open("folder", &(hvt_dataset_opts){.dir = path, .train = train, .world = world},
                            ret_set);
}

static hvt_dataset *must_open(const char *name, bool train)
{
    hvt_dataset *set = NULL;

    CHECK_OK(open_set(name, train, &set));
    if (!set)
        exit(1);
    return set;
}

/* "label:name" of each image, below `name`. */
static const char *images_of(const hvt_dataset *set, const char *name)
{
    static char text[2000];
    char path[500];
    size_t used = 0, skip = strlen(folder) + strlen(name) + 2;
    hvt_record r = {0};

    *text = 0;
    for (uint32_t i = 0; i < hvt_dataset_describe(set)->count; i++) {
        CHECK_OK(hvt_dataset_name(set, i, path, sizeof path));
        CHECK_OK(hvt_dataset_read(set, i, &r));
        CHECK(r.encoding == HVT_IMAGE_FILE && r.bytes == 14, "%zu bytes", r.bytes);
        used +=
            (size_t)snprintf(text + used, sizeof text - used, "%s%d:%s", i ? " " : "", r.label, path + skip);
    }
    free(r.data);
    return text;
}

static void check_images(const char *name, bool train, const char *want)
{
    hvt_dataset *set = must_open(name, train);
    const char *got = images_of(set, name);

    CHECK(!strcmp(got, want), "expected %s, got %s", want, got);
    hvt_dataset_close(&set);
}

TEST(classes_and_files_are_sorted_as_image_folder_does)
{
    hvt_dataset *set;

    make_two_splits();
    shell("echo 1 > set/train/ant/notes.txt; echo 1 > set/train/readme.jpg; mkdir -p set/train/.trash; "
          "ln -s ../bee/2.jpg set/train/Cat/link.jpg");
    check_images("set", true,
                 "0:train/Cat/link.jpg 0:train/Cat/x.jpg 1:train/ant/a.JPEG 1:train/ant/b.ppm "
                 "1:train/ant/deep/c.png 2:train/bee/10.PNG 2:train/bee/2.jpg");
    check_images("set", false, "0:val/Cat/v.jpg 1:val/ant/v.jpg 2:val/bee/v.jpg");
    set = must_open("set", true);
    CHECK(hvt_dataset_describe(set)->classes == 3 && !hvt_dataset_describe(set)->height, "%d classes",
          hvt_dataset_describe(set)->classes);
    CHECK(!strcmp(hvt_dataset_class_name(set, 0), "Cat") && !strcmp(hvt_dataset_class_name(set, 2), "bee"),
          "classes %s %s", hvt_dataset_class_name(set, 0), hvt_dataset_class_name(set, 2));
    CHECK(!hvt_dataset_class_name(set, 3) && !hvt_dataset_class_name(set, -1), "a class that is not there");
    hvt_dataset_close(&set);
}

TEST(files_that_are_no_pictures_are_told_of)
{
    hvt_dataset *set;

    make_two_splits();
    shell("echo 1 > set/train/ant/notes.txt");
    log_keep(HVT_LOG_INFO);
    set = must_open("set", true);
    log_release();
    CHECK(rank ? !logged_lines
               : strstr(logged, "not used: 1 file other than .jpg, .jpeg, .png, .ppm, .pgm, .pbm, .bmp, "
                                ".webp, .tif or .tiff (notes.txt in ant)") != NULL,
          "%s", logged);
    hvt_dataset_close(&set);
}

/* What rank 0 says when a split is opened. */
static const char *said_of(bool train, double val_split)
{
    hvt_dataset *set = NULL;

    log_keep(HVT_LOG_INFO);
    CHECK_OK(hvt_dataset_open(
        "folder",
        &(hvt_dataset_opts){.dir = in_folder("set"), .train = train, .val_split = val_split, .world = world},
        &set));
    log_release();
    hvt_dataset_close(&set);
    CHECK(rank == 0 || !logged_lines, "rank %d says %s", rank, logged);
    return logged;
}

/* On rank 0. */
static void check_said(const char *text, const char *part)
{
    CHECK(rank || strstr(text, part), "expected %s, got %s", part, text);
}

TEST(splits_have_their_common_names_in_any_case)
{
    static const char *const names[][2] = {
        {"Training", "Testing"},    {"TRAIN", "Valid"},       {"train", "validation"},
        {"training", "DEV"},        {"Train", "eval"},        {"train", "test"},
        {"train", "Val"},           {"Training", "val"},      {"training_set", "test_set"},
        {"trainset", "Val-Images"}, {"train2017", "val2017"}, {"Training-Data", "dev_imgs"}};

    for (size_t i = 0; i < HVT_LEN(names); i++) {
        char paths[300], want[100];

        shell("rm -rf set");
        snprintf(paths, sizeof paths, "set/%s/ant/a.jpg set/%s/bee/b.jpg set/%s/ant/x.jpg", names[i][0],
                 names[i][0], names[i][1]);
        write_pictures(paths);
        snprintf(want, sizeof want, "the training images are those of %s/", names[i][0]);
        if (strcmp(names[i][0], "train"))
            check_said(said_of(true, 0), want);
        snprintf(want, sizeof want, "the test images are those of %s/", names[i][1]);
        if (strcmp(names[i][1], "val"))
            check_said(said_of(false, 0), want);
        snprintf(want, sizeof want, "0:%s/ant/a.jpg 1:%s/bee/b.jpg", names[i][0], names[i][0]);
        check_images("set", true, want);
        snprintf(want, sizeof want, "0:%s/ant/x.jpg", names[i][1]);
        check_images("set", false, want);
    }
}

TEST(splits_of_other_names_are_doubted)
{
    static const char said[] =
        "x_test/ and x_train/ are used as classes, but hold the same folders (ant, bee); if they are "
        "splits, rename them to train/ and val/";

    shell("rm -rf set");
    write_pictures("set/x_train/ant/a.jpg set/x_train/bee/b.jpg set/x_test/ant/c.jpg set/x_test/bee/d.jpg");
    check_said(said_of(true, 0), said);
    said_of(false, 0);
    CHECK(!logged_lines, "the other split says it again: %s", logged);
    shell("rm -r set/x_test/ant");
    said_of(true, 0);
    CHECK(!logged_lines, "other folders: %s", logged);
    write_pictures("set/x_test/ant/c.jpg set/x_test/e.jpg");
    said_of(true, 0);
    CHECK(!logged_lines, "a class with pictures: %s", logged);
    shell("rm -rf set"); /* names that only begin like a split's */
    write_pictures("set/trainer/a.jpg set/dev1/b.jpg set/testbed/c.jpg");
    check_images("set", true, "0:dev1/b.jpg 1:testbed/c.jpg 2:trainer/a.jpg");
}

TEST(folders_that_are_not_used_are_named)
{
    make_two_splits();
    said_of(true, 0);
    CHECK(!logged_lines, "%s", logged);
    write_pictures("set/test/ant/a.jpg set/extra/b.jpg set/cover.jpg");
    shell("echo 1,2 > set/labels.csv");
    check_said(
        said_of(false, 0),
        "the test images are those of val/; not used: extra/, test/, labels.csv, 1 picture (cover.jpg)");
    check_said(said_of(true, 0.4),
               "the training and test images are those of train/; not used: extra/, test/, val/, "
               "labels.csv, 1 picture (cover.jpg)");
    said_of(false, 0.4);
    CHECK(!logged_lines, "the other part of the split says it again: %s", logged);
    shell("rm -r set/val set/test");
    check_said(said_of(false, 0),
               "there is no val/ or test/: the test images are those of train/; not used: extra/, "
               "labels.csv, 1 picture (cover.jpg)");
}

TEST(what_may_be_a_split_or_a_class_is_refused)
{
    hvt_dataset *set = NULL;

    for (int train = 0; train < 2; train++) {
        shell("rm -rf set");
        write_pictures("set/cat/1.jpg set/dog/1.jpg set/Test/1.jpg");
        CHECK_FAILS(open_set("set", train, &set), E_FORMAT, "set/Test: may be a split or a class");
        CHECK(strstr(hvt_last_error(), "folders of pictures (cat, dog): move all classes to "), "%s",
              hvt_last_error());
        shell("rm -rf set");
        write_pictures("set/bus/1.jpg set/car/deep/1.jpg set/train/1.jpg");
        CHECK_FAILS(open_set("set", train, &set), E_FORMAT, "beside folders of pictures (bus, car)");
        make_two_splits();
        write_pictures("set/Validation/ant/1.jpg");
        CHECK_FAILS(open_set("set", train, &set), E_FORMAT, "Validation/ and val/ are names of one split");
        make_two_splits();
        shell("mv set/val away; ln -s nowhere set/val");
        CHECK_FAILS(open_set("set", train, &set), E_IO, "set/val: a broken link");
        shell("rm -rf away; mkdir outer; mv set/train outer; rm -rf set; mkdir set; mv outer set/data");
        CHECK_FAILS(open_set("set", train, &set), E_FORMAT, "contains only data/, which has train/: use");
    }
    shell("rm -rf set");
    write_pictures("set/train/bus/1.jpg set/train/test/1.jpg set/train/train/1.jpg");
    check_images("set", true, "0:train/bus/1.jpg 1:train/test/1.jpg 2:train/train/1.jpg");
    CHECK(!set, "a refused set is open");
}

TEST(what_is_not_used_is_counted)
{
    hvt_dataset *set = NULL;

    make_two_splits();
    shell("cd set/train; mkdir -p ant/.ipynb_checkpoints __MACOSX .git bee/@eaDir; cp Cat/x.jpg "
          "ant/.ipynb_checkpoints/a-checkpoint.jpg; cp Cat/x.jpg __MACOSX/._x.jpg; cp Cat/x.jpg bee/._2.jpg; "
          "cp Cat/x.jpg bee/@eaDir/2.jpg; echo > Cat/.DS_Store; echo > Cat/Thumbs.db; echo > bee/list.csv; "
          "ln -s nowhere.jpg ant/gone.jpg; ln -s loop bee/loop");
    check_images("set", true,
                 "0:train/Cat/x.jpg 1:train/ant/a.JPEG 1:train/ant/b.ppm 1:train/ant/deep/c.png "
                 "2:train/bee/10.PNG 2:train/bee/2.jpg");
    shell("echo > set/train/Cat/more.txt; echo > set/train/Cat/phone.HEIC; echo > set/train/bee/web.avif");
    check_said(
        said_of(true, 0),
        "not used: 2 files other than .jpg, .jpeg, .png, .ppm, .pgm, .pbm, .bmp, .webp, .tif or .tiff (");
    check_said(logged, "1 table, since labels are folder names (list.csv in bee)");
    check_said(logged, "6 hidden or system entries (");
    check_said(logged, "2 broken links (gone.jpg in ant)");
    check_said(logged, "2 pictures to convert to JPEG or PNG (phone.HEIC in Cat)");
    CHECK_FAILS(open_set("set/train/Cat/x.jpg", true, &set), E_IO,
                "Cat/x.jpg is a file, expected a folder; name the folder that this picture is in");
    CHECK(logged_lines == (rank == 0), "%d lines: %s", logged_lines, logged);
}

TEST(a_link_to_nothing_in_place_of_a_class_is_refused)
{
    hvt_dataset *set = NULL;

    make_two_splits();
    shell("cd set/train; mv ant ../elsewhere; ln -s ../elsewhere ant; ln -s ../nowhere aunt");
    CHECK_FAILS(open_set("set", true, &set), E_IO, "train/aunt: a broken link, perhaps to a class");
    shell("rm set/train/aunt");
    check_images("set", true,
                 "0:train/Cat/x.jpg 1:train/ant/a.JPEG 1:train/ant/b.ppm 1:train/ant/deep/c.png "
                 "2:train/bee/10.PNG 2:train/bee/2.jpg");
}

TEST(pictures_beside_folders_are_taken_for_predictions)
{
    static const char beside[] = "1 picture beside class folders (a.jpg)";
    hvt_dataset *set = NULL;
    hvt_dataset_opts opts = {.world = world, .flat = true};

    shell("rm -rf set");
    write_pictures("set/a.jpg set/cam1/b.jpg set/cam1/c.jpg set/cam2/deep/d.jpg");
    check_said(said_of(false, 0), beside);
    opts.dir = in_folder("set");
    CHECK_OK(hvt_dataset_open("folder", &opts, &set));
    const char *got = images_of(set, "set");
    CHECK(!strcmp(got, "-1:a.jpg -1:cam1/b.jpg -1:cam1/c.jpg -1:cam2/deep/d.jpg"), "%s", got);
    hvt_dataset_close(&set);
    shell("rm set/a.jpg");
    CHECK_OK(hvt_dataset_open("folder", &opts, &set));
    got = images_of(set, "set");
    CHECK(!strcmp(got, "0:cam1/b.jpg 0:cam1/c.jpg 1:cam2/deep/d.jpg"), "%s", got);
    hvt_dataset_close(&set);
}

TEST(names_may_be_any)
{
    shell("rm -rf set");
    write_pictures("set/train/one set/train/other");
    shell("cd set/train; mkdir 'a b' \"$(printf 'new\\nline')\" \"$(printf 'caf\\303\\251')\"; "
          "mv one 'a b/x y.JPG'; cp other \"$(printf 'new\\nline')/1.PpM\"; mv other "
          "\"$(printf 'caf\\303\\251')/n\\303\\266.png\" 2> log || mv other \"$(printf "
          "'caf\\303\\251')/n.png\"; "
          "rm -f log");
    hvt_dataset *set = must_open("set", true);
    CHECK(hvt_dataset_describe(set)->count == 3 && !strcmp(hvt_dataset_class_name(set, 0), "a b") &&
              !strcmp(hvt_dataset_class_name(set, 1), "caf\303\251") &&
              !strcmp(hvt_dataset_class_name(set, 2), "new\nline"),
          "%u images, classes %s, %s, %s", hvt_dataset_describe(set)->count, hvt_dataset_class_name(set, 0),
          hvt_dataset_class_name(set, 1), hvt_dataset_class_name(set, 2));
    hvt_dataset_close(&set);
}

TEST(a_folder_without_splits_is_both)
{
    static const char want[] = "0:ant/a.jpg 1:bee/b.jpg 1:bee/c.pgm";

    shell("rm -rf set");
    write_pictures("set/ant/a.jpg set/bee/b.jpg set/bee/c.pgm");
    check_images("set", true, want);
    check_images("set", false, want);
    shell("mkdir set/train && mv set/ant set/bee set/train");
    check_images("set", false, "0:train/ant/a.jpg 1:train/bee/b.jpg 1:train/bee/c.pgm");
}

TEST(pictures_without_folders_have_no_labels)
{
    hvt_dataset *set = NULL;

    shell("rm -rf set");
    write_pictures("set/b.jpg set/a.jpg");
    check_images("set", false, "-1:a.jpg -1:b.jpg");
    CHECK_FAILS(open_set("set", true, &set), E_FORMAT, "use --evaluate --predict for unlabelled pictures");
    set = must_open("set", false);
    CHECK(hvt_dataset_describe(set)->unlabelled && hvt_dataset_describe(set)->classes == 0, "%d classes",
          hvt_dataset_describe(set)->classes);
    hvt_dataset_close(&set);
    CHECK_OK(hvt_dataset_open(/* of a run that held a part of its training images out */
                              "folder",
                              &(hvt_dataset_opts){.dir = in_folder("set"), .val_split = 0.5, .world = world},
                              &set));
    CHECK(set && hvt_dataset_describe(set)->count == 2, "a part of images without labels");
    hvt_dataset_close(&set);
}

TEST(folders_that_cannot_be_labelled_are_refused_in_a_line)
{
    hvt_dataset *set = NULL;

    make_two_splits();
    write_pictures("set/val/dog/1.jpg set/val/eel/1.jpg");
    CHECK_FAILS(open_set("set", false, &set), E_FORMAT, "classes that ");
    CHECK(strstr(hvt_last_error(), "does not have: dog, eel"), "%s", hvt_last_error());
    make_two_splits();
    shell("rm set/train/bee/*; mkdir set/train/dog");
    CHECK_FAILS(open_set("set", true, &set), E_FORMAT, ": bee, dog");
    make_two_splits();
    shell("rm -r set/val/bee");
    log_keep(HVT_LOG_WARN);
    check_images("set", false, "0:val/Cat/v.jpg 1:val/ant/v.jpg");
    log_release();
    CHECK(rank || strstr(logged, "1 of 3 classes have no images here: bee"), "%s", logged);
    shell("rm -r set/train");
    CHECK_FAILS(open_set("set", true, &set), E_IO, "has val/, but no train/");
    check_images("set", false, "0:val/Cat/v.jpg 1:val/ant/v.jpg");
    shell("rm -rf set; mkdir set");
    CHECK_FAILS(open_set("set", true, &set), E_FORMAT, "no class folders and no pictures");
    shell("touch set/IMG_1.HEIC");
    CHECK_FAILS(open_set("set", true, &set), E_FORMAT, "convert IMG_1.HEIC to JPEG or PNG");
    write_pictures("set/only/1.jpg");
    CHECK_FAILS(open_set("set", true, &set), E_FORMAT, "1 class (only)");
    CHECK_FAILS(open_set("nowhere", true, &set), E_IO, "nowhere: No such file");
    shell("ln -s .. set/only/up; mkdir set/other; ln -s ../only set/other/x");
    CHECK_FAILS(open_set("set", true, &set), E_FORMAT, "perhaps by a circular link");
    CHECK(!set, "a refused set is open");
}

TEST(a_file_that_changes_during_the_run_is_named)
{
    hvt_dataset *set;
    hvt_record r = {0};

    shell("rm -rf set");
    write_pictures("set/ant/a.jpg set/ant/b.jpg set/bee/c.jpg set/bee/d.jpg set/bee/e.jpg");
    set = must_open("set", true);
    CHECK_OK(hvt_dataset_read(set, 0, &r));
    CHECK_OK(hvt_dataset_read(set, 0, &r));
    shell("echo more >> set/ant/a.jpg; rm set/ant/b.jpg; : > set/bee/c.jpg; rm set/bee/d.jpg; mkdir "
          "set/bee/d.jpg");
    CHECK_FAILS(hvt_dataset_read(set, 0, &r), E_IO, "ant/a.jpg: changed since this run first read it");
    CHECK_FAILS(hvt_dataset_read(set, 1, &r), E_IO, "ant/b.jpg: removed since");
    CHECK_FAILS(hvt_dataset_read(set, 2, &r), E_FORMAT, "bee/c.jpg is empty");
    CHECK_FAILS(hvt_dataset_read(set, 3, &r), E_FORMAT, "bee/d.jpg is no regular file");
    CHECK_OK(hvt_dataset_read(set, 4, &r));
    CHECK(r.label == 1, "label %d", r.label);
    barrier();
    free(r.data);
    hvt_dataset_close(&set);
}

/* As if nothing had changed for a while. */
static void let_time_pass(void)
{
    shell("find set -exec touch -h -d '1 hour ago' {} +");
}

/* Open, and tell whether rank 0 has listed the folder. */
static bool lists(const char *want)
{
    double listed;

    log_keep(HVT_LOG_INFO);
    check_images("set", true, want);
    log_release();
    listed = strstr(logged, "pictures listed in") ? 1 : 0;
    CHECK_OK(hvt_world_broadcast(world, &listed, sizeof listed, 0));
    return listed > 0;
}

TEST(the_list_is_kept_until_a_folder_changes)
{
    static const char want[] = "0:ant/a.jpg 1:bee/b.jpg 1:bee/c.jpg";
    const char *kept = "set/.hvtrain-index";
    struct stat info;
    int first;

    shell("rm -rf set cache; mkdir cache");
    setenv("XDG_CACHE_HOME", in_folder("cache"), 1);
    hvt__listing_kept_from = 1;
    write_pictures("set/ant/a.jpg set/bee/b.jpg set/bee/c.jpg");
    CHECK(lists(want) && lists(want), "a list of folders that have just changed is kept");
    let_time_pass();
    CHECK(lists(want), "a list that was not kept is used");
    CHECK(!lists(want) && !stat(in_folder(kept), &info), "the list is not stored");
    write_pictures("set/ant/b.jpg");
    CHECK(lists("0:ant/a.jpg 0:ant/b.jpg 1:bee/b.jpg 1:bee/c.jpg"), "another file is overlooked");
    shell("rm set/ant/b.jpg");
    let_time_pass();
    CHECK(lists(want) && !lists(want), "the list is not stored again");
    write_pictures("set/cat/x.jpg");
    CHECK(lists("0:ant/a.jpg 1:bee/b.jpg 1:bee/c.jpg 2:cat/x.jpg"), "another class is overlooked");
    shell("rm -r set/cat");

    CHECK(!stat(in_folder(kept), &info), "no list");
    for (first = 0; first < info.st_size; first += 7) { /* damage of any part */
        char line[200];

        snprintf(line, sizeof line,
                 "cp %s keep; printf '\\377\\001' | dd of=%s bs=1 seek=%d conv=notrunc 2>&1 | cat > log",
                 kept, kept, first);
        shell(line);
        lists(want); /* which checks the images */
        shell("mv keep set/.hvtrain-index");
    }
    shell("truncate -s 30 set/.hvtrain-index");
    CHECK(lists(want), "a cut list is used");

    /* where nothing can be written beside it */
    shell("rm -f set/.hvtrain-index; mkdir set/.hvtrain-index");
    let_time_pass();
    CHECK(lists(want) && !lists(want), "the list is not stored in the cache folder");
    shell("ls cache/hvtrain/index-* > log");
    hvt__listing_kept_from = 10000;
}

/* All times that a program can set are set, as by tar with --mtime. */
static void fix_times(void)
{
    shell("find set -exec touch -h -d '2020-01-01 00:00:00 UTC' {} +");
}

TEST(changes_are_seen_where_times_are_fixed)
{
    shell("rm -rf set cache; mkdir cache");
    setenv("XDG_CACHE_HOME", in_folder("cache"), 1);
    hvt__listing_kept_from = 1;
    write_pictures("set/ant/a.jpg set/ant/b.jpg set/bee/c.jpg");
    fix_times();
    CHECK(lists("0:ant/a.jpg 0:ant/b.jpg 1:bee/c.jpg") && !lists("0:ant/a.jpg 0:ant/b.jpg 1:bee/c.jpg"),
          "the list is not stored");
    write_pictures("set/ant/d.jpg");
    fix_times();
    CHECK(lists("0:ant/a.jpg 0:ant/b.jpg 0:ant/d.jpg 1:bee/c.jpg"), "a new picture is overlooked");
    CHECK(!lists("0:ant/a.jpg 0:ant/b.jpg 0:ant/d.jpg 1:bee/c.jpg"), "the list is not stored");
    shell("mv set/ant/a.jpg set/bee/a.jpg; mv set/bee/c.jpg set/ant/c.jpg"); /* names as long as before */
    fix_times();
    CHECK(lists("0:ant/b.jpg 0:ant/c.jpg 0:ant/d.jpg 1:bee/a.jpg"), "a corrected label is overlooked");
    shell("mv set/ant/b.jpg set/ant/e.jpg");
    fix_times();
    CHECK(lists("0:ant/c.jpg 0:ant/d.jpg 0:ant/e.jpg 1:bee/a.jpg"), "another name is overlooked");
    hvt__listing_kept_from = 10000;
}

TEST(ranks_of_a_host_share_the_list)
{
    hvt__listing l;
    char path[400];

    make_two_splits();
    snprintf(path, sizeof path, "%s/set/train", folder);
    CHECK_OK(hvt__listing_open(&(hvt__listed){path, path, false}, world, &l));
    CHECK(l.files == 6, "%u files", l.files);
    if (rank == 0)
        atomic_store(&l.seen[2], 77);
    barrier();
    CHECK(!l.node.shared || atomic_load(&l.seen[2]) == 77, "this rank has a list of its own");
    barrier();
    hvt__listing_close(&l);
}

int main(void)
{
    bool made;

    if (!ranks_open())
        return 1;
    made = rank > 0 || folder_make();
    hvt_world_broadcast(world, folder, sizeof folder, 0);
    if (!made)
        return 1;
    RUN(classes_and_files_are_sorted_as_image_folder_does);
    RUN(files_that_are_no_pictures_are_told_of);
    RUN(splits_have_their_common_names_in_any_case);
    RUN(splits_of_other_names_are_doubted);
    RUN(folders_that_are_not_used_are_named);
    RUN(what_may_be_a_split_or_a_class_is_refused);
    RUN(what_is_not_used_is_counted);
    RUN(a_link_to_nothing_in_place_of_a_class_is_refused);
    RUN(pictures_beside_folders_are_taken_for_predictions);
    RUN(names_may_be_any);
    RUN(a_folder_without_splits_is_both);
    RUN(pictures_without_folders_have_no_labels);
    RUN(folders_that_cannot_be_labelled_are_refused_in_a_line);
    RUN(a_file_that_changes_during_the_run_is_named);
    RUN(the_list_is_kept_until_a_folder_changes);
    RUN(changes_are_seen_where_times_are_fixed);
    RUN(ranks_of_a_host_share_the_list);
    barrier();
    if (rank == 0)
        CHECK(folder_remove(), "%s is left", folder);
    return ranks_done();
}
