/* checkpoint: the files of a checkpoint are complete or absent, and damage to them is noticed. */
#include "base_impl.h"
#include "check.h"
#include "folder.h"
#include "heap.h"
#include "logged.h"
#include "model_impl.h"
#include "optim_impl.h"
#include "train/checkpoint/checkpoint_impl.h"
#include "train/cli/cli_impl.h"
#include "train/process/process_impl.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- checkpoints ---- */

/* Folders are synced after each rename; the n-th such moment is when SIGTERM comes. 0: never. */
static int stop_at_sync;
static bool in_handler; /* from then on */

/* It allocates, which a handler must not. */
FILE *fopen(const char *path, const char *mode)
{
    int more = strchr(mode, '+') ? O_RDWR : *mode == 'r' ? O_RDONLY : O_WRONLY, fd;

    if (in_handler)
        _exit(99);
    fd = open(path, *mode == 'r' ? more : more | O_CREAT | (*mode == 'w' ? O_TRUNC : O_APPEND), 0666);
    return fd < 0 ? NULL : fdopen(fd, mode);
}

/* What a save asks of the system, by any thread: the n-th such call is never made, or, if it writes, half of
 * it is; it fails with this error, or the process is killed. 0: never. */
static atomic_int cut_at, cut_by; /* an errno; 0: SIGKILL */

static bool is_cut(void)
{
    if (!cut_at || atomic_fetch_sub(&cut_at, 1) != 1)
        return false;
    if (!cut_by)
        kill(getpid(), SIGKILL);
    errno = cut_by;
    return true;
}

int fsync(int fd)
{
    struct stat info;

    if (fstat(fd, &info) == 0 && S_ISDIR(info.st_mode)) {
        if (stop_at_sync && --stop_at_sync == 0) {
            in_handler = true;
            raise(SIGTERM);
        }
        return (int)syscall(SYS_fsync, fd); /* its failure is only warned of */
    }
    return is_cut() ? -1 : (int)syscall(SYS_fsync, fd);
}

ssize_t write(int fd, const void *data, size_t bytes)
{
    if (cut_at == 1)
        (void)!syscall(SYS_write, fd, data, bytes / 2);
    return is_cut() ? -1 : syscall(SYS_write, fd, data, bytes);
}

int rename(const char *from, const char *to)
{
    return is_cut() ? -1 : (int)syscall(SYS_renameat, AT_FDCWD, from, AT_FDCWD, to);
}

static bool no_links; /* the file system has none */

int symlink(const char *to, const char *path)
{
    if (no_links) {
        errno = EPERM;
        return -1;
    }
    return is_cut() ? -1 : (int)syscall(SYS_symlinkat, to, AT_FDCWD, path);
}

int unlinkat(int folder_fd, const char *name, int flags)
{
    if (cut_at && !cut_by) /* its failure leaves something to the next save */
        is_cut();
    return (int)syscall(SYS_unlinkat, folder_fd, name, flags);
}

typedef struct trained {
    hvt_world *world;
    hvt_device *dev;
    hvt_model *m;
    hvt_optim *o;
} trained;

/* A model with a momentum buffer, as after a step. */
static void open_trained(trained *t)
{
    const hvt_device_opts device = {.threads = 1};
    const hvt_zoo_opts zoo = {0};
    const hvt_optim_opts sgd = {.momentum = 0.9f};

    CHECK_OK(hvt_world_open(NULL, &t->world));
    CHECK_OK(hvt_device_open("ref", &device, &t->dev));
    CHECK_OK(hvt_model_create(t->dev, &t->m));
    CHECK_OK(hvt_model_plan(t->m, 1, hvt_zoo(t->m, "resnet20", hvt_input(t->m, 8, 8, 3), 10, &zoo)));
    CHECK_OK(hvt_model_init(t->m, 1));
    CHECK_OK(hvt_optim_create(t->m, &sgd, &t->o));
    for (int i = 0; i < t->m->nparam_tensors; i++)
        memset(t->o->v + t->m->param[i].offset, 0, t->m->param[i].count * sizeof *t->o->v);
    CHECK_OK(hvt__optim_set_updates(t->o, 1));
}

static void close_trained(trained *t)
{
    hvt_optim_free(&t->o);
    hvt_model_free(&t->m);
    hvt_device_close(&t->dev);
    hvt_world_close(&t->world);
}

/* golden/old.safetensors was written by hvtrain 0.1.0 when each thing had a key of its own in the metadata
 * and options had other names; 0.5 was its --dampening, which is gone. */
TEST(files_of_before_are_read_and_their_options_renamed)
{
    static const char options[] =
        "{\"model\":\"resnet20\",\"size\":\"16\",\"last-batch\":\"keep\",\"epochs\":\"7\","
        "\"dampening\":\"0.5\",\"compression\":\"bf16\",\"device\":\"ref\",\"isa\":\"c\"}";
    const hvt_device_opts device = {.threads = 1};
    const hvt_optim_opts sgd = {.momentum = 0.9f};
    const char *old = check_file("golden/old.safetensors");
    hvt_progress p = {0};
    trained t = {0};
    hvt_options o;
    hvt_value x;
    void *memory = NULL;

    CHECK_OK(hvt_world_open(NULL, &t.world));
    CHECK_OK(hvt_device_open("ref", &device, &t.dev));
    CHECK_OK(hvt_model_create(t.dev, &t.m));
    x = hvt_conv2d(t.m, hvt_input(t.m, 8, 8, 3), 4, 3, 2, 1);
    x = hvt_linear(t.m, hvt_avgpool(t.m, hvt_relu(t.m, hvt_batchnorm(t.m, x))), 3);
    CHECK_OK(hvt_model_plan(t.m, 2, x));
    CHECK_OK(hvt_optim_create(t.m, &sgd, &t.o));
    CHECK_OK(hvt_checkpoint_load(old, t.m, t.o, &p));
    CHECK(p.epoch == 3 && p.step == 1 && p.steps == 25 && p.top1 == 62.5 && p.run == 0xfeed,
          "%d %u %lld %g %llx", p.epoch, p.step, (long long)p.steps, p.top1, (unsigned long long)p.run);
    CHECK(p.options && !strcmp(p.options, options), "%s", p.options ? p.options : "no options");
    for (int i = 0; i < t.m->nparam_tensors; i++)
        CHECK(t.o->v[t.m->param[i].offset] == 0.25f, "momentum of %s", t.m->param[i].name);
    hvt_options_default(&o);
    CHECK_OK(hvt_options_set(&o, "epochs", "9"));
    CHECK_OK(hvt_options_set(&o, "resume", old));
    CHECK_OK(hvt__options_resume(&o, t.world, &memory));
    CHECK(o.size == 16 && o.epochs == 9 && !strcmp(o.compression, "bf16") && !strcmp(o.last_batch, "keep"),
          "%d %d %s %s", o.size, o.epochs, o.compression, o.last_batch);
    CHECK(!strcmp(o.device, "cpu") && !strcmp(o.isa, "auto"), "a job's options were taken");
    free(memory);
    free(p.options);
    close_trained(&t);
}

static void remove_checkpoints(void)
{
    DIR *d = opendir(folder);
    struct dirent *e;

    while (d && (e = readdir(d)))
        if (!strncmp(e->d_name, "last", 4) || !strncmp(e->d_name, "best", 4) ||
            !strncmp(e->d_name, "gen-", 4) || !strcmp(e->d_name, ".hvtrain.lock"))
            unlink(in_folder(e->d_name));
    closedir(d);
}

/* ImageNet-21k's classes, and more of them than any set should have. */
TEST(class_names_are_kept_however_many_there_are)
{
    enum { NAMES = 21841 };
    hvt_progress p = {.epoch = 1, .steps = 5, .run = 7}, found = {0};
    json_t *names = json_array(), *got = NULL;
    trained t = {0};
    hvt_st *st = NULL;

    for (int i = 0; i < NAMES; i++) {
        char name[40];

        snprintf(name, sizeof name, "n%08d, \"\xc3\xa4\"", i * 4567);
        json_array_append_new(names, json_string(name));
    }
    p.class_names = json_dumps(names, JSON_COMPACT);
    open_trained(&t);
    CHECK_OK(hvt_checkpoint_save(folder, "last", t.m, t.o, &p));
    CHECK_OK(hvt_checkpoint_load(in_folder("last.safetensors"), t.m, t.o, &found));
    CHECK(found.class_names && !strcmp(found.class_names, p.class_names), "other names");
    CHECK_OK(hvt__weights_class_names(in_folder("last.safetensors"), &got));
    CHECK(json_equal(got, names), "other names of the weights");
    CHECK_OK(hvt__st_open(in_folder("last.safetensors"), &st));
    CHECK(st->data < 1 << 20, "a header of %llu bytes", (unsigned long long)st->data);
    hvt__st_close(&st);
    json_decref(got);
    hvt__progress_free(&found);
    free(p.class_names);
    p.class_names = NULL;
    CHECK_OK(hvt_checkpoint_save(folder, "last", t.m, t.o, &p));
    CHECK_OK(hvt_checkpoint_load(in_folder("last.safetensors"), NULL, NULL, &found));
    CHECK_OK(hvt__weights_class_names(in_folder("last.safetensors"), &got));
    CHECK(!found.class_names && !got, "names from nowhere");
    hvt__progress_free(&found);
    json_decref(names);
    close_trained(&t);
    remove_checkpoints();
}

TEST(what_is_saved_under_a_name_is_found_again)
{
    hvt_progress p = {.epoch = 1, .steps = 5, .images = 7, .data = 0xabc}, found = {0};
    char deep[400];
    trained t = {0};

    open_trained(&t);
    snprintf(deep, sizeof deep, "%s", in_folder("new"));
    CHECK_OK(hvt_checkpoint_save(deep, "x", t.m, t.o, &p)); /* makes the folder */
    for (int i = 0; i < 3; i++) {
        const char *const paths[] = {in_folder("new"), in_folder("new/x"), in_folder("new/x.safetensors")};

        CHECK_OK(hvt_checkpoint_load(paths[i], t.m, t.o, &found));
        CHECK(found.steps == 5 && found.images == 7 && found.data == 0xabc, "%s: %lld updates", paths[i],
              (long long)found.steps);
        hvt__progress_free(&found);
    }
    p.steps = 9;
    CHECK_OK(hvt_checkpoint_save(deep, "a", t.m, NULL, &p));
    p.steps = 3;
    CHECK_OK(hvt_checkpoint_save(deep, "y", t.m, t.o, &p));
    CHECK_OK(hvt_checkpoint_load(deep, NULL, NULL, &found));
    CHECK(found.steps == 9, "the folder's furthest has %lld updates", (long long)found.steps);
    hvt__progress_free(&found);
    CHECK_FAILS(hvt_checkpoint_load(in_folder("new/z"), t.m, t.o, &found), E_IO, "new/z");
    CHECK_FAILS(hvt_checkpoint_load("/", t.m, t.o, &found), E_IO, "holds no checkpoint");
    CHECK_FAILS(hvt_checkpoint_save(deep, "", t.m, t.o, &p), E_ARG, "expected one without '/'");
    CHECK_FAILS(hvt_checkpoint_save(deep, "a/b", t.m, t.o, &p), E_ARG, "a/b");
    CHECK_FAILS(hvt_checkpoint_save(in_folder("no/where"), "x", t.m, t.o, &p), E_IO, "mkdir -p");
    CHECK_FAILS(hvt_checkpoint_save(in_folder("new/x.safetensors"), "x", t.m, t.o, &p), E_IO, "is a file");
    close_trained(&t);
    snprintf(deep, sizeof deep, "rm -r %s", in_folder("new"));
    CHECK(system(deep) == 0, "%s", deep);
}

/* The first sync is the momentum's, the second that of the weights that name it. */
TEST(a_signal_while_a_folder_is_synced_leaves_a_whole_checkpoint)
{
    for (int at = 1; at <= 2; at++) {
        hvt_progress p = {.epoch = 1, .steps = 1}, found = {0};
        trained t = {0};
        int status;
        pid_t child;

        fflush(NULL);
        child = fork(); /* all of it in the child: the handlers are a process's */
        if (child == 0) {
            open_trained(&t);
            CHECK_OK(hvt__signals_open(t.world));
            CHECK_OK(hvt_checkpoint_save(folder, "last", t.m, t.o, &p));
            p.steps = 2;
            stop_at_sync = at;
            hvt_checkpoint_save(folder, "last", t.m, t.o, &p);
            _exit(1);
        }
        CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 143,
              "status %x", status);
        open_trained(&t);
        CHECK_OK(hvt_checkpoint_load(folder, t.m, t.o, &found));
        CHECK(found.steps == at, "%lld updates after the signal at sync %d", (long long)found.steps, at);
        free(found.options);
        CHECK_OK(hvt_checkpoint_save(folder, "last", t.m, t.o, &p)); /* and what is left over goes */
        close_trained(&t);
        remove_checkpoints();
    }
}

TEST(numbers_that_are_not_finite_replace_no_checkpoint)
{
    hvt_progress p = {.epoch = 1, .steps = 1}, found = {0};
    trained t = {0};

    open_trained(&t);
    CHECK_OK(hvt_checkpoint_save(folder, "last", t.m, t.o, &p));
    for (int where = 0; where < 3; where++) { /* ref's memory is the host's */
        float *arena = where == 0 ? t.m->params : t.o->v;
        float *x = where == 1 ? t.m->stats : arena + t.m->param[0].offset, was = x[0];
        p.steps = 2;
        x[0] = where == 1 ? -INFINITY : NAN;
        CHECK_FAILS(hvt_checkpoint_save(folder, "last", t.m, t.o, &p), E_DIVERGED,
                    where == 0   ? ".bias holds nan"
                    : where == 1 ? "running_mean holds -inf"
                                 : "optim.momentum_buffer.");
        x[0] = was;
        CHECK_OK(hvt_checkpoint_load(folder, t.m, t.o, &found));
        CHECK(found.steps == 1, "%lld", (long long)found.steps);
        free(found.options);
    }
    close_trained(&t);
    remove_checkpoints();
}

/* ---- the folder of --save ---- */

static hvt_options saving(const char *resume, bool overwrite)
{
    hvt_options o;

    hvt_options_default(&o);
    CHECK_OK(hvt_options_set(&o, "save", folder));
    o.resume = resume;
    o.overwrite = overwrite;
    return o;
}

static hvt_progress progress(uint64_t of_run, int64_t steps, double top1)
{
    return (hvt_progress){.epoch = (int)steps, .steps = steps, .top1 = top1, .run = of_run};
}

/* Save it, and wait for what comes of it. */
static hvt_status save_now(hvt__folder *f, trained *t, const hvt_progress *p)
{
    CHECK_OK(hvt__folder_save(f, t->m, t->o, p));
    return hvt__folder_wait(f);
}

/* One epoch's files: steps and top-1 in percent, into an empty folder or over those of another run. */
static void save_epoch(trained *t, const char *resume, bool overwrite, hvt_progress p)
{
    hvt_options o = saving(resume, overwrite);
    hvt__folder f = {0};

    t->m->stats[0] = (float)p.steps; /* other weights than those of before */
    CHECK_OK(hvt__folder_open(&o, &f));
    CHECK_OK(save_now(&f, t, &p));
    hvt__folder_close(&f);
}

static hvt_progress found_as(const char *name)
{
    hvt_progress p = {.steps = -1};

    CHECK_OK(hvt_checkpoint_load(in_folder(name), NULL, NULL, &p));
    free(p.options);
    return p;
}

/* What is to be resumed, which must be whole. */
static hvt_progress resumed(trained *t)
{
    hvt_progress p = {.steps = -1};

    CHECK_OK(hvt_checkpoint_load(folder, t->m, t->o, &p));
    CHECK(t->m->stats[0] == (float)p.steps, "weights of update %g, progress of %lld", (double)t->m->stats[0],
          (long long)p.steps);
    free(p.options);
    return p;
}

/* Of checkpoints, with what a save that was cut leaves. */
static int files_in_folder(void)
{
    DIR *d = opendir(folder);
    int n = 0;

    for (struct dirent *e; (e = readdir(d));)
        n += !strncmp(e->d_name, "gen-", 4) || !strncmp(e->d_name, "last", 4) ||
             !strncmp(e->d_name, "best", 4);
    closedir(d);
    return n;
}

/* From one call that is cut to the next. */
static int call_stride(void)
{
    return heap_memcheck() ? 7 : 1;
}

/* A save that a kill ends at the n-th call. False: there were fewer, and the save is done. */
static bool killed_at(int at, const char *resume, bool overwrite, hvt_progress p)
{
    int status = 0;
    pid_t child;

    fflush(NULL);
    child = fork();
    if (child == 0) {
        trained t = {0};
        hvt_options o = saving(resume, overwrite);
        hvt__folder f = {0};
        open_trained(&t);
        t.m->stats[0] = (float)p.steps;
        CHECK_OK(hvt__folder_open(&o, &f));
        cut_by = 0;
        cut_at = at;
        CHECK_OK(save_now(&f, &t, &p));
        cut_at = 0;
        _exit(check_now ? 1 : 0);
    }
    CHECK(waitpid(child, &status, 0) == child, "no child");
    CHECK(WIFSIGNALED(status) || (WIFEXITED(status) && WEXITSTATUS(status) == 0), "status %x", status);
    return WIFSIGNALED(status);
}

TEST(a_kill_at_any_call_of_a_save_loses_nothing)
{
    const int stride = call_stride();
    trained t = {0};
    int at = 1, before = 0, after = 0;

    open_trained(&t);
    for (bool killed = true; killed; at += stride) {
        hvt_options o = saving(folder, false);
        hvt__folder f = {0};
        hvt_progress now, best;

        save_epoch(&t, "", false, progress(7, 1, 10));
        killed = killed_at(at, folder, false, progress(7, 2, 20));
        now = resumed(&t);
        best = found_as("best.safetensors");
        CHECK(now.steps == (killed && now.steps < 2 ? 1 : 2), "killed at call %d: update %lld", at,
              (long long)now.steps);
        CHECK(best.top1 == 20 || found_as("last.safetensors").steps == 1, "call %d: last before best", at);
        before += now.steps == 1;
        after += now.steps == 2;
        CHECK_OK(hvt__folder_open(&o, &f)); /* the lock is free, and the run goes on */
        CHECK(f.best.top1 == now.top1, "call %d: best is %g", at, f.best.top1);
        hvt__folder_resumed(&f,
                            f.own[f.nown - 1].number == 1 ? in_folder("gen-000001.safetensors")
                                                          : in_folder("gen-000002.safetensors"),
                            &now);
        CHECK(found_as("last.safetensors").steps == now.steps &&
                  found_as("best.safetensors").top1 == now.top1,
              "call %d: links", at);
        CHECK(files_in_folder() == 2 + 2 * (int)now.steps, "call %d: %d files are there", at,
              files_in_folder());
        hvt__folder_close(&f);
        save_epoch(&t, folder, false, progress(7, 3, 5));
        CHECK(resumed(&t).steps == 3 && files_in_folder() == 2 + 2 * ((int)now.steps + 1), "%d",
              files_in_folder());
        remove_checkpoints();
    }
    CHECK(before * stride > 8 && after * stride > 3, "%d and %d kills", before, after - 1);
    close_trained(&t);
}

TEST(a_kill_in_the_first_save_leaves_nothing_or_what_can_be_resumed)
{
    bool alone = false;

    for (int at = 1; killed_at(at, "", false, progress(7, 1, 10)); at += call_stride()) {
        hvt_progress p = {0};
        hvt_status s = hvt_checkpoint_load(folder, NULL, NULL, &p);
        CHECK(s == HVT_OK ? p.steps == 1 : s == HVT_E_IO, "killed at call %d: %s", at, hvt_last_error());
        alone |= s == HVT_OK && access(in_folder("last.safetensors"), F_OK);
        free(p.options);
        remove_checkpoints();
    }
    remove_checkpoints();
    CHECK(alone || heap_memcheck(), "there was always a `last`");
}

/* Each kill leaves the old run whole, or the new one, whose best is not the old one's. */
TEST(a_kill_while_a_run_is_overwritten_leaves_one_of_the_two)
{
    const int stride = call_stride();
    trained t = {0};

    open_trained(&t);
    for (int evaluated = 0; evaluated < 2; evaluated++) {
        int old_ones = 0, new_ones = 0;
        for (int at = 1, killed = 1; killed; at += stride) {
            hvt_options o = saving(folder, false);
            hvt__folder f = {0};
            hvt_progress now;

            save_epoch(&t, "", false, progress(7, 4, 80));
            save_epoch(&t, folder, false, progress(7, 5, 90));
            killed = killed_at(at, "", true, progress(8, 1, evaluated ? 10 : -1));
            now = resumed(&t);
            CHECK(now.run == 7 ? now.steps == 5 : now.run == 8 && now.steps == 1, "call %d: run %d", at,
                  (int)now.run);
            CHECK_OK(hvt__folder_open(&o, &f));
            CHECK(f.best.top1 == (now.run == 7 ? 90
                                  : evaluated  ? 10
                                               : -1),
                  "call %d: best is %g", at, f.best.top1);
            hvt__folder_close(&f);
            save_epoch(&t, folder, false, progress(now.run, 6, 5));
            CHECK(found_as("last.safetensors").run == now.run && found_as("best.safetensors").run == now.run,
                  "call %d", at);
            CHECK(files_in_folder() == (now.run == 7 ? 8 : 6), "call %d: %d files", at, files_in_folder());
            old_ones += now.run == 7;
            new_ones += now.run == 8;
            remove_checkpoints();
        }
        CHECK(old_ones * stride > 8 && new_ones * stride > 2, "%d and %d", old_ones, new_ones);
    }
    close_trained(&t);
}

/* A disk that is full, or can only be read, or fails when it is to be sure: at every call of a save. */
TEST(a_save_that_fails_says_what_is_whole_and_leaves_it)
{
    static const int errors[] = {ENOSPC, EROFS, EIO};
    const int stride = call_stride();
    trained t = {0};
    int fails = 0;

    open_trained(&t);
    for (int at = 1, failed = 1; failed; at += stride) {
        hvt_options o = saving("", false), again = saving(folder, false);
        hvt__folder f = {0};
        hvt_progress p = progress(7, 1, 10), now;
        hvt_status s;

        t.m->stats[0] = 1;
        CHECK_OK(hvt__folder_open(&o, &f));
        CHECK_OK(save_now(&f, &t, &p));
        p = progress(7, 2, 20);
        t.m->stats[0] = 2;
        cut_by = errors[at % 3];
        cut_at = at;
        s = save_now(&f, &t, &p);
        failed = s != HVT_OK;
        CHECK(!failed || (s == HVT_E_IO && cut_at == 0), "call %d: %d", at, s);
        CHECK(!failed ||
                  (strstr(hvt_last_error(), strerror(cut_by)) && strstr(hvt_last_error(), "is complete")),
              "call %d: %s", at, hvt_last_error());
        cut_at = 0;
        hvt__folder_close(&f);
        now = resumed(&t);
        CHECK(now.steps == 2 || (failed && now.steps == 1), "call %d: update %lld", at, (long long)now.steps);
        CHECK(files_in_folder() == 2 + 2 * (int)now.steps, "call %d: %d files", at, files_in_folder());
        CHECK_OK(hvt__folder_open(&again, &f));
        t.m->stats[0] = 3;
        p = progress(7, 3, 30);
        CHECK_OK(save_now(&f, &t, &p));
        hvt__folder_close(&f);
        CHECK(resumed(&t).steps == 3, "it does not go on");
        fails += failed;
        remove_checkpoints();
    }
    CHECK(fails * stride > 10, "%d", fails);
    close_trained(&t);
}

TEST(where_there_are_no_links_last_and_best_are_copies)
{
    trained t = {0};
    struct stat info;

    open_trained(&t);
    no_links = true;
    for (int steps = 1; steps <= 5; steps++) {
        save_epoch(&t, steps > 1 ? folder : "", false, progress(7, steps, steps == 2 ? 90 : 10));
        CHECK(resumed(&t).steps == steps, "not update %d", steps);
        CHECK(found_as("last.safetensors").steps == steps, "last is not of update %d", steps);
        CHECK(found_as("best.safetensors").steps == (steps > 1 ? 2 : 1), "best");
    }
    CHECK(lstat(in_folder("last.safetensors"), &info) == 0 && S_ISREG(info.st_mode), "a link");
    CHECK(files_in_folder() == 2 + 2 * 4, "%d files", files_in_folder());
    no_links = false;
    close_trained(&t);
    remove_checkpoints();
}

TEST(what_diverges_is_not_saved_and_costs_nothing_that_was)
{
    hvt_options o = saving("", false);
    hvt_progress p = progress(7, 1, 10);
    hvt__folder f = {0};
    trained t = {0};

    open_trained(&t);
    CHECK_OK(hvt__folder_open(&o, &f));
    t.m->stats[0] = 1;
    CHECK_OK(save_now(&f, &t, &p));
    p.steps = 2;
    t.m->stats[0] = NAN;
    CHECK_FAILS(save_now(&f, &t, &p), E_DIVERGED, "running_mean holds nan");
    CHECK_OK(hvt__folder_wait(&f)); /* said once */
    t.m->stats[0] = 3;
    p.steps = 3;
    CHECK_OK(save_now(&f, &t, &p));
    hvt__folder_close(&f);
    CHECK(resumed(&t).steps == 3 && files_in_folder() == 6, "%d files", files_in_folder());
    close_trained(&t);
    remove_checkpoints();
}

/* A net whose files are so small that each of their bytes can be damaged. */
static void open_small(trained *t)
{
    const hvt_device_opts device = {.threads = 1};
    const hvt_optim_opts sgd = {.momentum = 0.9f};
    hvt_value x;

    CHECK_OK(hvt_world_open(NULL, &t->world));
    CHECK_OK(hvt_device_open("ref", &device, &t->dev));
    CHECK_OK(hvt_model_create(t->dev, &t->m));
    x = hvt_conv2d(t->m, hvt_input(t->m, 8, 8, 3), 4, 3, 2, 1);
    x = hvt_linear(t->m, hvt_avgpool(t->m, hvt_relu(t->m, hvt_batchnorm(t->m, x))), 3);
    CHECK_OK(hvt_model_plan(t->m, 2, x));
    CHECK_OK(hvt_model_init(t->m, 1));
    CHECK_OK(hvt_optim_create(t->m, &sgd, &t->o));
    memset(t->o->v, 0, t->m->arena_count * sizeof *t->o->v);
    CHECK_OK(hvt__optim_set_updates(t->o, 1));
}

static off_t file_bytes(const char *name)
{
    struct stat info = {0};

    CHECK(stat(in_folder(name), &info) == 0, "%s", name);
    return info.st_size;
}

static uint8_t *slurp(const char *path, size_t *ret_bytes)
{
    static uint8_t buf[1 << 16];
    FILE *f = fopen(path, "rb");

    *ret_bytes = fread(buf, 1, sizeof buf, f);
    fclose(f);
    return buf;
}

static void put(const char *path, const uint8_t *data, size_t bytes)
{
    FILE *f = fopen(path, "wb");

    fwrite(data, 1, bytes, f);
    fclose(f);
}

/* With the file damaged, the generation before is taken, and one line names the file. */
static void expect_passed_over(trained *t, const char *file, const char *how, size_t at)
{
    log_keep(HVT_LOG_WARN);
    CHECK(resumed(t).steps == 1, "%s: %s at byte %zu is not noticed", file, how, at);
    log_release();
    CHECK(logged_lines == 1 && strstr(logged, file) &&
              strstr(logged, "gen-000001.safetensors (epoch 1, update 1)"),
          "%s: %s at byte %zu: %s", file, how, at, logged);
}

/* Where these bytes are in the header of a file. */
static char *find(uint8_t *data, size_t bytes, const char *key)
{
    for (size_t at = 8; at + strlen(key) <= bytes; at++)
        if (!memcmp(data + at, key, strlen(key)))
            return (char *)data + at + strlen(key);
    CHECK(false, "no %s", key);
    return (char *)data;
}

/* By this process so far; -1: this kernel does not count. */
static long long bytes_read(void)
{
    FILE *f = fopen("/proc/self/io", "r");
    long long n = -1;

    if (f && fscanf(f, "rchar: %lld", &n) != 1)
        n = -1;
    if (f)
        fclose(f);
    return n;
}

TEST(each_file_of_a_checkpoint_is_read_once)
{
    enum { OTHER = 1 << 16 }; /* what is read besides */
    hvt_progress p = progress(7, 1, 10);
    trained t = {0};
    long long files, before, read;

    open_trained(&t);
    save_epoch(&t, "", false, p);
    before = bytes_read();
    CHECK_OK(hvt_checkpoint_load(in_folder("gen-000001.safetensors"), t.m, t.o, &p));
    read = bytes_read() - before;
    free(p.options);
    files = file_bytes("gen-000001.safetensors") + file_bytes("gen-000001.momentum.safetensors");
    CHECK(files > 2 * HVT_ST_BLOCK, "%lld bytes", files);
    CHECK(before < 0 || (read >= files && read < files + OTHER), "%lld bytes of %lld", read, files);
    close_trained(&t);
    remove_checkpoints();
}

TEST(weights_that_are_not_those_of_the_metadata_change_nothing)
{
    const char *path = in_folder("gen-000001.safetensors");
    hvt_progress p = progress(7, 1, 10);
    trained t = {0};
    uint8_t *data;
    char *digit, hex[17];
    uint64_t header;
    size_t bytes;

    open_small(&t);
    save_epoch(&t, "", false, p);
    data = slurp(path, &bytes);
    memcpy(&header, data, sizeof header);
    digit = find(data, bytes, "\\\"weights\\\":\\\"");
    *digit = *digit == '0' ? '1' : '0';
    memset(find(data, bytes, "\"seal\":\""), '0', 16);
    snprintf(hex, sizeof hex, "%016llx", (unsigned long long)hvt__hash(HVT_HASH_INIT, data + 8, header));
    memcpy(find(data, bytes, "\"seal\":\""), hex, 16);
    put(path, data, bytes);
    t.m->stats[0] = 77;
    t.m->params[t.m->param[0].offset] = 77;
    CHECK_FAILS(hvt_checkpoint_load(path, t.m, t.o, &p), E_FORMAT, "its weights hash to");
    CHECK(t.m->stats[0] == 77 && t.m->params[t.m->param[0].offset] == 77, "the model was changed");
    close_trained(&t);
    remove_checkpoints();
}

/* It belongs to these weights, as their momentum does. */
TEST(the_weights_themselves_are_no_momentum)
{
    trained t = {0};
    uint8_t *data;
    size_t bytes;

    open_small(&t);
    save_epoch(&t, "", false, progress(7, 1, 10));
    save_epoch(&t, folder, false, progress(7, 2, 20));
    data = slurp(in_folder("gen-000002.safetensors"), &bytes);
    put(in_folder("gen-000002.momentum.safetensors"), data, bytes);
    expect_passed_over(&t, "gen-000002.momentum.safetensors", "weights", 0);
    close_trained(&t);
    remove_checkpoints();
}

TEST(a_number_that_has_no_next_one_is_named)
{
    hvt_options o = saving("", true);
    hvt_progress p = progress(7, 1, 10);
    hvt__folder f = {0};
    trained t = {0};

    open_small(&t);
    put(in_folder("gen-999999999999999999.safetensors"), (const uint8_t *)"mine", 4);
    CHECK_OK(hvt__folder_open(&o, &f));
    CHECK_FAILS(save_now(&f, &t, &p), E_IO, "a file name has the largest number, 999999999999999999");
    hvt__folder_close(&f);
    close_trained(&t);
    remove_checkpoints();
}

TEST(every_byte_that_is_flipped_or_missing_is_noticed)
{
    static const char *const files[] = {"gen-000002.safetensors", "gen-000002.momentum.safetensors"};
    const size_t stride = heap_memcheck() ? 29 : CHECK_SANITIZED ? 13 : 1;
    trained t = {0};

    open_small(&t);
    save_epoch(&t, "", false, progress(7, 1, 10));
    save_epoch(&t, folder, false, progress(7, 2, 20));
    for (size_t i = 0; i < HVT_LEN(files); i++) {
        size_t bytes;
        uint8_t *data = slurp(in_folder(files[i]), &bytes);
        CHECK(bytes > 500 && bytes < 10000, "%zu bytes", bytes);
        for (size_t at = 0; at < bytes && !check_now; at += stride) {
            data[at] ^= (uint8_t)(1 << at % 8);
            put(in_folder(files[i]), data, bytes);
            expect_passed_over(&t, files[i], "a flip", at);
            data[at] ^= (uint8_t)(1 << at % 8);
            if (at % 16 == 0) {
                put(in_folder(files[i]), data, at);
                expect_passed_over(&t, files[i], "the end", at);
            }
        }
        data[bytes] = 0;
        put(in_folder(files[i]), data, bytes + 1);
        expect_passed_over(&t, files[i], "a byte too many", bytes);
        unlink(in_folder(files[i]));
        if (i == 1)
            expect_passed_over(&t, files[i], "no file", 0);
        put(in_folder(files[i]), data, bytes);
        CHECK(resumed(&t).steps == 2, "not put back");
    }
    close_trained(&t);
    remove_checkpoints();
}

TEST(a_folder_is_its_first_jobs_until_that_ends)
{
    hvt_options o = saving("", false);
    hvt__folder f = {0}, second = {0};
    char part[100];
    pid_t child;
    int status;

    setenv("SLURM_JOB_ID", "4711", 1);
    CHECK_OK(hvt__folder_open(&o, &f));
    snprintf(part, sizeof part, "another job saves there: process %ld on ", (long)getpid());
    CHECK_FAILS(hvt__folder_open(&o, &second), E_IO, part);
    CHECK(strstr(hvt_last_error(), "(SLURM job 4711)"), "%s", hvt_last_error());
    unsetenv("SLURM_JOB_ID");

    fflush(NULL); /* a program that was started meanwhile, and still runs when we have ended */
    child = fork();
    if (child == 0) {
        execlp("sleep", "sleep", "60", (char *)NULL);
        _exit(127);
    }
    usleep(300000); /* fork() alone does share the lock */
    hvt__folder_close(&f);
    CHECK_OK(hvt__folder_open(&o, &f));
    hvt__folder_close(&f);
    kill(child, SIGKILL);
    waitpid(child, &status, 0);

    child = fork(); /* and who is killed holds it no more */
    if (child == 0) {
        CHECK_OK(hvt__folder_open(&o, &f));
        raise(SIGKILL);
    }
    waitpid(child, &status, 0);
    CHECK(WIFSIGNALED(status), "%x", status);
    CHECK_OK(hvt__folder_open(&o, &f));
    hvt__folder_close(&f);
    remove_checkpoints();
}

static int flock_fails; /* an errno; 0: it is the kernel's */

int flock(int fd, int operation)
{
    if (flock_fails) {
        errno = flock_fails;
        return -1;
    }
    return (int)syscall(SYS_flock, fd, operation);
}

TEST(without_locks_a_run_warns_once_and_goes_on)
{
    static const int none[] = {ENOLCK, ENOSYS, EOPNOTSUPP};
    hvt_options o = saving("", false);

    log_keep(HVT_LOG_WARN);
    for (size_t i = 0; i < HVT_LEN(none); i++) {
        hvt__folder f = {0};
        flock_fails = none[i];
        CHECK_OK(hvt__folder_open(&o, &f));
        hvt__folder_close(&f);
    }
    flock_fails = 0;
    log_release();
    CHECK(logged_lines == 1 && strstr(logged, folder) && strstr(logged, "no working locks"), "%d: %s",
          logged_lines, logged);
    remove_checkpoints();
}

int main(void)
{
    if (!folder_make())
        return 1;
    RUN(class_names_are_kept_however_many_there_are);
    RUN(files_of_before_are_read_and_their_options_renamed);
    RUN(what_is_saved_under_a_name_is_found_again);
    RUN(a_signal_while_a_folder_is_synced_leaves_a_whole_checkpoint);
    RUN(numbers_that_are_not_finite_replace_no_checkpoint);
    RUN(a_kill_at_any_call_of_a_save_loses_nothing);
    RUN(a_kill_in_the_first_save_leaves_nothing_or_what_can_be_resumed);
    RUN(a_kill_while_a_run_is_overwritten_leaves_one_of_the_two);
    RUN(a_save_that_fails_says_what_is_whole_and_leaves_it);
    RUN(where_there_are_no_links_last_and_best_are_copies);
    RUN(what_diverges_is_not_saved_and_costs_nothing_that_was);
    RUN(each_file_of_a_checkpoint_is_read_once);
    RUN(weights_that_are_not_those_of_the_metadata_change_nothing);
    RUN(the_weights_themselves_are_no_momentum);
    RUN(a_number_that_has_no_next_one_is_named);
    RUN(every_byte_that_is_flipped_or_missing_is_noticed);
    RUN(a_folder_is_its_first_jobs_until_that_ends);
    RUN(without_locks_a_run_warns_once_and_goes_on);
    CHECK(rmdir(folder) == 0, "something was left in %s", folder);
    return check_done();
}
