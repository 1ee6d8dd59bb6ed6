/*
 * embedded: a program that embeds the library takes all its lines by hvt_log_to(). The library writes nothing
 * to stdout and stderr, whatever it does: train, evaluate, tune, pack, fail.
 */
#include "base_impl.h"
#include "check.h"
#include "folder.h"
#include "own_set.h"
#include "hvt/hvt.h"

#include <fcntl.h>
#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

static hvt_world *world;
static char *taken; /* lines, one after the other */
static int lines, highest;

static void take(void *ctx, hvt_log_level level, const char *line)
{
    size_t used = taken ? strlen(taken) : 0;
    char *at = realloc(taken, used + strlen(line) + 2);

    (void)ctx;
    if (!at)
        return;
    taken = at;
    snprintf(taken + used, strlen(line) + 2, "%s\n", line);
    lines++;
    highest = (int)level > highest ? (int)level : highest;
    CHECK(!strchr(line, '\n') && !strchr(line, '\r'), "more than a line: %s", line);
}

static void forget(void)
{
    free(taken);
    taken = NULL;
    lines = highest = 0;
}

/* Bytes that the call leaves on stdout and stderr. */
static long leaves(hvt_status call(const hvt_options *o), const hvt_options *o, hvt_log_level level,
                   hvt_status *ret_status)
{
    int fd[2], kept[2];
    struct stat info;
    long bytes = 0;

    fflush(NULL);
    for (int i = 0; i < 2; i++) {
        fd[i] = open(in_folder(i ? "err" : "out"), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
        kept[i] = dup(1 + i);
        dup2(fd[i], 1 + i);
    }
    forget();
    hvt_log_to(take, NULL, level);
    *ret_status = call(o);
    hvt_log_to(NULL, NULL, HVT_LOG_INFO);
    fflush(NULL);
    for (int i = 0; i < 2; i++) {
        dup2(kept[i], 1 + i);
        close(kept[i]);
        bytes += fstat(fd[i], &info) ? 1 : info.st_size;
        close(fd[i]);
    }
    return bytes;
}

static hvt_status train(const hvt_options *o)
{
    hvt_report report;

    return hvt_train(o, world, &report);
}

static hvt_status tune(const hvt_options *o)
{
    return hvt_tune(o, world);
}

static hvt_status pack(const hvt_options *o)
{
    return hvt_pack(o, world);
}

static hvt_options tiny(void)
{
    hvt_options o;

    hvt_options_default(&o);
    o.samples = 64;
    o.batch = o.size = 16;
    o.epochs = o.threads = 1;
    o.print_freq = 1;
    return o;
}

static void check_taken(long bytes, const char *what, const char *const *parts)
{
    CHECK(!bytes, "%s leaves %ld bytes on stdout and stderr", what, bytes);
    for (; *parts; parts++)
        CHECK(taken && strstr(taken, *parts), "%s: no line has '%s': %s", what, *parts, taken ? taken : "");
}

TEST(a_run_and_its_evaluation_print_nothing)
{
    hvt_options o = tiny();
    char save[300];
    hvt_status s;
    long bytes;

    snprintf(save, sizeof save, "%s", in_folder("run"));
    o.save = save;
    o.lr_scale = "linear";
    o.verbose = true;
    bytes = leaves(train, &o, HVT_LOG_INFO, &s);
    CHECK_OK(s);
    check_taken(bytes, "a run",
                (const char *const[]){"  device     ", "  defaults   ", "loss ",
                                      "epoch 1/1: ", "test after epoch 1", "only 4 updates",
                                      "done: 4 updates", "next: ", NULL});
    CHECK(lines > 20 && highest == HVT_LOG_INFO, "%d lines up to level %d", lines, highest);
    o.save = "";
    o.resume = save;
    o.evaluate = true;
    bytes = leaves(train, &o, HVT_LOG_INFO, &s);
    CHECK_OK(s);
    check_taken(bytes, "an evaluation", (const char *const[]){"test after epoch 1", NULL});
}

TEST(a_run_on_the_callers_images_suggests_no_command)
{
    own images = {16, 16, 3};
    hvt_dataset *set = own_set(&images, 64);
    hvt_options o = tiny();
    hvt_status s;

    o.train_set = o.test_set = set;
    check_taken(leaves(train, &o, HVT_LOG_INFO, &s), "a run", (const char *const[]){"done: 4 updates", NULL});
    CHECK_OK(s);
    CHECK(!strstr(taken, "next: "), "%s", taken);
    hvt_dataset_close(&set);
}

TEST(the_level_and_quiet_hold_for_printed_lines_too)
{
    hvt_options o = tiny();
    hvt_status s;
    long bytes = leaves(train, &o, HVT_LOG_WARN, &s);

    CHECK_OK(s);
    check_taken(bytes, "a run", (const char *const[]){"only 4 updates", NULL});
    CHECK(lines == 1, "%d lines up to level WARN: %s", lines, taken);
    o.quiet = true;
    o.shards = 2;
    o.batch = 8;
    o.lr_scale = "linear";
    bytes = leaves(train, &o, HVT_LOG_INFO, &s);
    CHECK_OK(s);
    check_taken(bytes, "a quiet run", (const char *const[]){"--lr-scale linear", NULL});
    CHECK(lines < 6, "%d lines of a quiet run: %s", lines, taken);
}

TEST(what_fails_prints_nothing)
{
    hvt_options o = tiny();
    hvt_status s;
    long bytes;

    o.lr = 1e30;
    bytes = leaves(train, &o, HVT_LOG_INFO, &s);
    CHECK(s == HVT_E_DIVERGED, "%s", hvt_status_name(s));
    check_taken(bytes, "a run that diverges", (const char *const[]){"  device     ", NULL});
    o.lr = .1;
    o.data = "folder";
    o.data_dir = "/nowhere";
    bytes = leaves(train, &o, HVT_LOG_INFO, &s);
    CHECK(s == HVT_E_IO && !bytes, "%s, %ld bytes", hvt_status_name(s), bytes);
}

/* It measures the exchange, so it needs several ranks; the first one reports. */
TEST(tuning_prints_nothing)
{
    static const char *const nothing[] = {NULL};
    hvt_options o = tiny();
    char file[300];
    hvt_status s;
    long bytes;

    snprintf(file, sizeof file, "%s", in_folder("tuned"));
    o.ask = HVT_ASK_TUNE;
    o.tune_file = file;
    o.tune_seconds = .5;
    bytes = leaves(tune, &o, HVT_LOG_INFO, &s);
    CHECK_OK(s);
    check_taken(bytes, "tuning",
                hvt_world_rank(world)
                    ? nothing
                    : (const char *const[]){"bucket: a step of ", " <- chosen", "written: ", NULL});
}

TEST(packing_prints_nothing)
{
    hvt_options o = tiny();
    char output[300];
    hvt_status s;
    long bytes;

    snprintf(output, sizeof output, "%s", in_folder("train-%06d.tar"));
    o.ask = HVT_ASK_PACK;
    o.output = output;
    o.raw = true;
    bytes = leaves(pack, &o, HVT_LOG_INFO, &s);
    CHECK_OK(s);
    check_taken(bytes, "packing", (const char *const[]){"packed 64 images", "next: ", NULL});
}

TEST(without_a_function_lines_are_printed_as_before)
{
    hvt_options o = tiny();
    int kept = dup(2), fd = open(in_folder("err"), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    struct stat info = {0};
    hvt_status s;

    fflush(NULL);
    dup2(fd, 2);
    s = train(&o);
    fflush(NULL);
    dup2(kept, 2);
    close(kept);
    CHECK_OK(s);
    CHECK(fstat(fd, &info) == 0 && info.st_size > 1000, "%ld bytes on stderr", (long)info.st_size);
    close(fd);
}

int main(void)
{
    if (!folder_make())
        return 1;
    unsetenv("HVT_LOG");
    CHECK_OK(hvt_world_open(NULL, &world));
    if (hvt_world_size(world) > 1) {
        RUN(tuning_prints_nothing);
        hvt_world_close(&world);
        forget();
        return folder_remove() ? check_done() : 1;
    }
    RUN(a_run_and_its_evaluation_print_nothing);
    RUN(a_run_on_the_callers_images_suggests_no_command);
    RUN(the_level_and_quiet_hold_for_printed_lines_too);
    RUN(what_fails_prints_nothing);
    RUN(packing_prints_nothing);
    RUN(without_a_function_lines_are_printed_as_before);
    hvt_world_close(&world);
    forget();
    if (!folder_remove())
        return 1;
    return check_done();
}
