/*
 * checkpoint: a weights file that is not what it claims is refused by name; files are whole or not there.
 */
#include "base_impl.h"
#include "check.h"
#include "folder.h"
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
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- safetensors ---- */

static void clean_folder(void)
{
    static const char *const names[] = {"bad", "odd", "written", "kept", "half"};

    for (size_t i = 0; i < HVT_LEN(names); i++)
        unlink(in_folder(names[i]));
    CHECK(rmdir(folder) == 0, "something else was left in %s", folder);
}

static void put_file(const char *path, const char *header, size_t data_bytes)
{
    FILE *f = fopen(path, "wb");
    uint64_t n = strlen(header);

    fwrite(&n, 8, 1, f);
    fwrite(header, 1, n, f);
    for (size_t i = 0; i < data_bytes; i++)
        fputc((int)i, f);
    fclose(f);
}

TEST(files_that_are_not_what_they_claim_are_refused)
{
    static const struct {
        const char *header;
        size_t data;
        const char *part;
    } bad[] = {
        {"[]", 0, "does not begin with '{'"},
        {"{", 0, "header"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}x", 4, "header"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
         "\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}",
         8, "duplicate"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}", 8, "begins at byte 4"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
         "\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[2,6]}}",
         6, "tensor b begins at byte 2"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 8,
         "the tensors have 4 bytes, the file has 8"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 3, "bytes 0 to 4 of 3"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4]}}", 4,
         "2 elements of F32, but 4 bytes"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,4]}}", 4, "dimension 0"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,0]}}", 0,
         "64 bits"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387904],\"data_offsets\":[0,0]}}", 0, "elements"},
        {"{\"a\":{\"dtype\":\"Q7\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "unknown dtype 'Q7'"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0]}}", 4, "two data_offsets"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,1e1]}}", 4, "two data_offsets"},
        {"{\"a\":7}", 0, "tensor a needs dtype"},
        {"{\"__metadata__\":{\"x\":1}}", 0, "metadata x is no text"},
        {"{\"\xff\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "unable to decode byte"},
    };
    const char *path = in_folder("bad");
    hvt_st *st;

    for (size_t i = 0; i < HVT_LEN(bad); i++) {
        put_file(path, bad[i].header, bad[i].data);
        CHECK_FAILS(hvt__st_open(path, &st), E_FORMAT, bad[i].part);
        CHECK(strstr(hvt_last_error(), path), "the file is not named: %s", hvt_last_error());
    }
    CHECK_FAILS(hvt__st_open(in_folder("none"), &st), E_IO, "none: No such file");
    CHECK_FAILS(hvt__st_open(folder, &st), E_IO, "is a folder");
    truncate(path, 5);
    CHECK_FAILS(hvt__st_open(path, &st), E_FORMAT, "5 bytes are too few");
    put_file(path, "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4);
    truncate(path, 20);
    CHECK_FAILS(hvt__st_open(path, &st), E_FORMAT, "a header of");
}

TEST(empty_scalar_and_padded_are_allowed)
{
    const char *path = in_folder("odd");
    hvt_st *st = NULL;
    float x[2];

    put_file(path,
             "{\"z\":{\"dtype\":\"F32\",\"shape\":[0,3],\"data_offsets\":[0,0]},"
             "\"s\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]}}    ",
             4);
    CHECK_OK(hvt__st_open(path, &st));
    CHECK(hvt__st_count(st) == 2 && hvt__st_find(st, "z")->count == 0 && hvt__st_find(st, "s")->count == 1,
          "%d", hvt__st_count(st));
    CHECK_OK(hvt__st_f32(st, hvt__st_find(st, "s"), x));
    hvt__st_close(&st);
    put_file(path, "{}", 0);
    CHECK_OK(hvt__st_open(path, &st));
    CHECK(hvt__st_count(st) == 0, "%d", hvt__st_count(st));
    hvt__st_close(&st);
}

static hvt_status count_up(void *ctx, const hvt_st_item *item, void *data)
{
    (void)ctx;
    if (item->type == HVT_ST_I64)
        *(int64_t *)data = 7000000000;
    for (int64_t i = 0; item->type == HVT_ST_F32 && i < item->dim[0]; i++)
        ((float *)data)[i] = (float)item->id + (float)i / 8;
    return item->id == 99 ? HVT_FAIL(E_IO, "no more") : HVT_OK;
}

TEST(what_is_written_is_read_back)
{
    hvt_st_item items[] = {{.name = "b", .type = HVT_ST_F32, .ndim = 1, .dim = {5}, .id = 1},
                           {.name = "a", .type = HVT_ST_F32, .ndim = 1, .dim = {300000}, .id = 2},
                           {.name = "n", .type = HVT_ST_I64, .id = 3}};
    json_t *meta =
        json_pack("{s:i, s:o}", "epoch", 3, "path", hvt__json_text("not \xff utf-8, \"quoted\"\n"));
    double epoch;
    static float x[300000];
    const char *path = in_folder("written");
    unsigned char head[8];
    int64_t n = 0;
    hvt_st *st = NULL;
    FILE *f;

    CHECK_OK(hvt__st_write(path, items, 3, meta, count_up, NULL));
    CHECK(access(in_folder("written.tmp"), F_OK), "the temporary file is still there");
    CHECK_OK(hvt__st_open(path, &st));
    json_decref(meta);
    CHECK(!strcmp(hvt__st_meta(st, "format"), "pt"), "format");
    CHECK_OK(hvt__metadata_read(st, &meta));
    CHECK_OK(hvt__metadata_number(st, meta, "epoch", 3, &epoch));
    CHECK(epoch == 3, "%g", epoch);
    CHECK_FAILS(hvt__metadata_number(st, meta, "epoch", 2, &epoch), E_FORMAT,
                "epoch is 3, expected a number up to 2");
    CHECK_FAILS(hvt__metadata_number(st, meta, "path", 2, &epoch), E_FORMAT, "metadata path is \"not");
    CHECK_FAILS(hvt__metadata_number(st, meta, "top1", 2, &epoch), E_FORMAT, "lacks 'top1'");
    CHECK(!strcmp(hvt__metadata_text(meta, "path"), "not ? utf-8, \"quoted\"\n"), "'%s'",
          hvt__metadata_text(meta, "path"));
    json_decref(meta);
    CHECK(hvt__st_find(st, "n")->first == 0 && hvt__st_find(st, "a")->first == 8,
          "counters first, then by name");
    CHECK_OK(hvt__st_verify(st));
    CHECK_OK(hvt__st_i64(st, hvt__st_find(st, "n"), &n));
    CHECK(n == 7000000000, "%lld", (long long)n);
    CHECK_OK(hvt__st_f32(st, hvt__st_find(st, "a"), x));
    CHECK(x[299999] == 2 + 299999.0f / 8, "%g", (double)x[299999]);
    CHECK_OK(hvt__st_f32(st, hvt__st_find(st, "b"), x));
    CHECK(x[4] == 1.5f, "%g", (double)x[4]);
    CHECK_FAILS(hvt__st_f32(st, hvt__st_find(st, "n"), x), E_FORMAT, "tensor n is I64");
    hvt__st_close(&st);

    f = fopen(path, "r+b");
    CHECK(fread(head, 1, 8, f) == 8 && head[0] % 8 == 0, "data does not begin at a multiple of 8");
    fseek(f, -3, SEEK_END); /* one bit of the last tensor */
    n = fgetc(f);
    fseek(f, -3, SEEK_END);
    fputc((int)n ^ 4, f);
    fclose(f);
    CHECK_OK(hvt__st_open(path, &st));
    CHECK_FAILS(hvt__st_verify(st), E_FORMAT, "damaged");
    hvt__st_close(&st);
}

TEST(a_failed_write_leaves_the_file_of_before)
{
    hvt_st_item good = {.name = "a", .type = HVT_ST_F32, .ndim = 1, .dim = {5}, .id = 1};
    hvt_st_item bad = {.name = "a", .type = HVT_ST_F32, .ndim = 1, .dim = {5}, .id = 99};
    const char *path = in_folder("kept");
    json_t *meta = json_object();
    hvt_st *st = NULL;
    float x[5];

    CHECK_OK(hvt__st_write(path, &good, 1, meta, count_up, NULL));
    CHECK_FAILS(hvt__st_write(path, &bad, 1, meta, count_up, NULL), E_IO, "no more");
    CHECK(access(in_folder("kept.tmp"), F_OK), "the temporary file is still there");
    CHECK_OK(hvt__st_open(path, &st));
    CHECK_OK(hvt__st_f32(st, hvt__st_find(st, "a"), x));
    CHECK(x[4] == 1.5f, "%g", (double)x[4]);
    hvt__st_close(&st);
    CHECK_FAILS(hvt__st_write(in_folder("no/such"), &good, 1, meta, count_up, NULL), E_IO, "no/such");
    json_decref(meta);
}

/* Every f16, against the definition: sign, 5 bits of exponent, 10 of fraction. */
TEST(halves_become_the_same_number)
{
    const char *path = in_folder("half");
    static uint16_t bits[65536];
    static float x[65536];
    hvt_st *st = NULL;

    for (int pass = 0; pass < 2; pass++) {
        char header[100];
        uint64_t n;
        FILE *f = fopen(path, "wb");
        snprintf(header, sizeof header,
                 "{\"h\":{\"dtype\":\"%s\",\"shape\":[65536],\"data_offsets\":[0,131072]}}",
                 pass ? "BF16" : "F16");
        n = strlen(header);
        for (int i = 0; i < 65536; i++)
            bits[i] = (uint16_t)i;
        fwrite(&n, 8, 1, f);
        fwrite(header, 1, n, f);
        fwrite(bits, 2, 65536, f);
        fclose(f);
        CHECK_OK(hvt__st_open(path, &st));
        CHECK_OK(hvt__st_f32(st, hvt__st_find(st, "h"), x));
        hvt__st_close(&st);
        for (int i = 0; i < 65536; i++) {
            int width = pass ? 7 : 10, bias = pass ? 127 : 15, most = pass ? 255 : 31;
            int e = i >> width & most, m = i & ((1 << width) - 1);
            double v = e == most ? (m ? NAN : INFINITY)
                       : e       ? ldexp(1 + ldexp(m, -width), e - bias)
                                 : ldexp(m, 1 - bias - width);
            v = i & 0x8000 ? -v : v;
            CHECK(v != v ? x[i] != x[i] : (double)x[i] == v, "%s %04x is %g, not %g", pass ? "BF16" : "F16",
                  i, (double)x[i], v);
        }
    }
}

/* ---- checkpoints ---- */

/* Folders are synced after each rename; the n-th such moment is when a signal comes. 0: never. */
static int stop_at_sync, stop_by = SIGTERM;

int fsync(int fd)
{
    struct stat info;

    if (fstat(fd, &info) == 0 && S_ISDIR(info.st_mode) && stop_at_sync && --stop_at_sync == 0)
        raise(stop_by);
    return (int)syscall(SYS_fsync, fd);
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
    CHECK_OK(hvt__optim_set_fresh(t->o, false));
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
    const char *old = HVT_TESTS "/golden/old.safetensors";
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
    CHECK_OK(hvt_options_resume(&o, t.world, &memory));
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
            !strcmp(e->d_name, ".hvtrain.lock"))
            unlink(in_folder(e->d_name));
    closedir(d);
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
        CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 130,
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

/* One epoch's files: steps and top-1 in percent, into an empty folder or over those of another run. */
static void save_epoch(trained *t, const char *resume, bool overwrite, hvt_progress p)
{
    hvt_options o = saving(resume, overwrite);
    hvt__folder *f = NULL;

    CHECK_OK(hvt__folder_open(&o, &f));
    CHECK_OK(hvt__folder_save(f, t->m, t->o, &p));
    hvt__folder_close(&f);
}

static hvt_progress found_as(const char *name)
{
    hvt_progress p = {.steps = -1};

    CHECK_OK(hvt_checkpoint_load(in_folder(name), NULL, NULL, &p));
    free(p.options);
    return p;
}

/* A save that a kill ends at the n-th sync of the folder. False: there were fewer, and the save is done. */
static bool killed_at(int at, const char *resume, bool overwrite, hvt_progress p)
{
    int status = 0;
    pid_t child;

    fflush(NULL);
    child = fork();
    if (child == 0) {
        trained t = {0};
        open_trained(&t);
        t.m->stats[0] = (float)p.steps; /* other weights than those of before */
        stop_by = SIGKILL;
        stop_at_sync = at;
        save_epoch(&t, resume, overwrite, p);
        _exit(check_now ? 1 : 0);
    }
    CHECK(waitpid(child, &status, 0) == child, "no child");
    CHECK(WIFSIGNALED(status) || (WIFEXITED(status) && WEXITSTATUS(status) == 0), "status %x", status);
    return WIFSIGNALED(status);
}

TEST(a_kill_between_last_and_best_loses_neither)
{
    trained t = {0};
    int at = 1;

    open_trained(&t);
    for (bool killed = true; killed; at++) {
        hvt_options o = saving(folder, false);
        hvt__folder *f = NULL;
        hvt_progress last, best;

        save_epoch(&t, "", false, progress(7, 1, 10));
        killed = killed_at(at, folder, false, progress(7, 2, 20));
        last = found_as("last.safetensors");
        best = found_as("best.safetensors");
        CHECK(best.top1 >= last.top1, "killed at sync %d: last has %g %%, best %g %%", at, last.top1,
              best.top1);
        CHECK_OK(hvt_checkpoint_load(in_folder("last.safetensors"), t.m, t.o, &last));
        CHECK_OK(hvt_checkpoint_load(in_folder("best.safetensors"), t.m, t.o, &best));
        free(last.options);
        free(best.options);
        CHECK_OK(hvt__folder_open(&o, &f)); /* the lock is free, and the run goes on */
        CHECK(hvt__folder_best(f) == best.top1, "%g, not %g", hvt__folder_best(f), best.top1);
        hvt__folder_close(&f);
        remove_checkpoints();
    }
    CHECK(at > 4, "only %d kills", at - 2); /* momentum and weights, twice */
    close_trained(&t);
}

/* A kill before the first checkpoint is whole leaves `best` alone at most; the run continues with that. */
TEST(a_kill_in_the_first_save_leaves_nothing_or_what_can_be_resumed)
{
    bool alone = false;

    for (int at = 1; killed_at(at, "", false, progress(7, 1, 10)); at++) {
        hvt_progress p = {0};
        hvt_status s = hvt_checkpoint_load(folder, NULL, NULL, &p);
        CHECK(s == HVT_OK ? p.steps == 1 : s == HVT_E_IO, "killed at sync %d: %s", at, hvt_last_error());
        alone |= s == HVT_OK && access(in_folder("last.safetensors"), F_OK);
        free(p.options);
        remove_checkpoints();
    }
    remove_checkpoints();
    CHECK(alone, "there was always a `last`");
}

/* Each kill leaves the old run whole, or the new one, whose best is not the old one's. */
TEST(a_kill_while_a_run_is_overwritten_leaves_one_of_the_two)
{
    for (int evaluated = 0; evaluated < 2; evaluated++) {
        int old_ones = 0, new_ones = 0;
        for (int at = 1, killed = 1; killed; at++) {
            hvt_options o = saving(folder, false);
            hvt__folder *f = NULL;
            hvt_progress last, best = {.run = 0};
            trained t = {0};

            open_trained(&t);
            save_epoch(&t, "", false, progress(7, 5, 90));
            close_trained(&t);
            killed = killed_at(at, "", true, progress(8, 1, evaluated ? 10 : -1));
            last = found_as("last.safetensors");
            if (access(in_folder("best.safetensors"), F_OK) == 0)
                best = found_as("best.safetensors");
            CHECK(last.run == 8 || (best.run == 7 && best.steps == 5), "sync %d: best was lost first", at);
            CHECK(killed || (best.run == (evaluated ? 8 : 0) && last.run == 8), "best is of run %d",
                  (int)best.run);
            CHECK_OK(hvt__folder_open(&o, &f));
            CHECK(hvt__folder_best(f) == (last.run == 7   ? 90
                                          : best.run == 8 ? 10
                                                          : -1),
                  "sync %d: best is %g", at, hvt__folder_best(f));
            hvt__folder_close(&f);
            old_ones += last.run == 7;
            new_ones += last.run == 8;
            remove_checkpoints();
        }
        CHECK(old_ones > 0 && new_ones > 1 - evaluated, "%d and %d", old_ones, new_ones);
    }
}

TEST(a_folder_is_its_first_jobs_until_that_ends)
{
    hvt_options o = saving("", false);
    hvt__folder *f = NULL, *second = NULL;
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
        hvt__folder *f = NULL;
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
    RUN(files_that_are_not_what_they_claim_are_refused);
    RUN(empty_scalar_and_padded_are_allowed);
    RUN(what_is_written_is_read_back);
    RUN(a_failed_write_leaves_the_file_of_before);
    RUN(halves_become_the_same_number);
    RUN(files_of_before_are_read_and_their_options_renamed);
    RUN(a_signal_while_a_folder_is_synced_leaves_a_whole_checkpoint);
    RUN(numbers_that_are_not_finite_replace_no_checkpoint);
    RUN(a_kill_between_last_and_best_loses_neither);
    RUN(a_kill_in_the_first_save_leaves_nothing_or_what_can_be_resumed);
    RUN(a_kill_while_a_run_is_overwritten_leaves_one_of_the_two);
    RUN(a_folder_is_its_first_jobs_until_that_ends);
    RUN(without_locks_a_run_warns_once_and_goes_on);
    clean_folder();
    return check_done();
}
