/*
 * fuzz_generations SECONDS [SEED]: folders of damaged generations, opened as --resume auto opens them:
 * changed bits and bytes, files that are truncated, extended, missing, renamed, copied, or links, folders and
 * pipes instead, and headers with recomputed hashes. The run must continue with weights, momentum and
 * progress of one saved generation, the newest undamaged one or a newer one, or say in one line why it does
 * not; and it must find what it saves then. Damage with valid hashes may be believed, but must do no harm.
 * Best built with -Db_sanitize=address,undefined. Not a test by itself, since it runs for a given time. To
 * repeat a failing case, give its printed seed and 0 seconds.
 */
#define _GNU_SOURCE /* memmem */

#include "base_impl.h"
#include "check.h"
#include "folder.h"
#include "logged.h"
#include "train/checkpoint/checkpoint_impl.h"
#include "model_impl.h"
#include "optim_impl.h"

#include <dirent.h>
#include <math.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

enum { GENERATIONS = 4, MOST = 1 << 16, NAMES = 32 };

static uint64_t state, seed;

static uint32_t below(uint32_t n)
{
    state = hvt__mix(state);
    return hvt__below(state, n);
}

/* ---- a run of four generations ---- */

static hvt_world *world;
static hvt_device *dev;
static hvt_model *model;
static hvt_optim *optim;

static uint64_t weights_of[GENERATIONS + 2], momentum_of[GENERATIONS + 2]; /* by steps / 10 */

static struct {
    char name[100], *data;
    size_t bytes;
} good[2 * GENERATIONS];
static int ngood;

static void open_model(void)
{
    const hvt_device_opts device = {.threads = 1};
    const hvt_optim_opts sgd = {.momentum = 0.9f};
    hvt_value x;

    CHECK_OK(hvt_world_open(NULL, &world));
    CHECK_OK(hvt_device_open("ref", &device, &dev));
    CHECK_OK(hvt_model_create(dev, &model));
    x = hvt_conv2d(model, hvt_input(model, 8, 8, 3), 4, 3, 2, 1);
    x = hvt_linear(model, hvt_avgpool(model, hvt_relu(model, hvt_batchnorm(model, x))), 3);
    CHECK_OK(hvt_model_plan(model, 2, x));
    CHECK_OK(hvt_optim_create(model, &sgd, &optim));
}

static void close_model(void)
{
    hvt_optim_free(&optim);
    hvt_model_free(&model);
    hvt_device_close(&dev);
    hvt_world_close(&world);
}

/* All weights and all momentum are this, and something of their place. */
static void fill(float with)
{
    for (int i = 0; i < model->nparam_tensors; i++)
        for (size_t k = 0; k < model->param[i].count; k++) {
            model->params[model->param[i].offset + k] = with + (float)(k % 7);
            optim->v[model->param[i].offset + k] = -with - (float)(k % 5);
        }
    for (size_t k = 0; k < model->stats_count; k++)
        model->stats[k] = with;
    CHECK_OK(hvt__optim_set_updates(optim, !isnan(with)));
}

static uint64_t hash_weights(void)
{
    uint64_t h = 0;

    CHECK_OK(hvt_model_hash(model, &h));
    return h;
}

static uint64_t hash_momentum(void)
{
    uint64_t h = HVT_HASH_INIT;

    for (int i = 0; i < model->ntrained; i++)
        h = hvt__hash(h, optim->v + model->param[i].offset, model->param[i].count * sizeof(float));
    return h;
}

static hvt_options resuming(const char *path)
{
    hvt_options o;

    hvt_options_default(&o);
    CHECK_OK(hvt_options_set(&o, "save", folder));
    CHECK_OK(hvt_options_set(&o, "keep", "4"));
    o.resume = path;
    return o;
}

static hvt_progress progress(int generation)
{
    static char options[] =
        "{\"model\":\"resnet20\",\"batch\":\"16\",\"lr\":\"0.1\",\"mean\":\"0.5,0.5,0.5\"}";

    return (hvt_progress){.epoch = generation,
                          .step = 3,
                          .steps = 10 * generation,
                          .top1 = 20 + 30 * (generation == 2),
                          .run = 7,
                          .options = options,
                          .sample = 48,
                          .epoch_steps = 3};
}

static hvt_status save(hvt__folder *f, int generation)
{
    hvt_progress p = progress(generation);

    fill((float)generation);
    weights_of[generation] = hash_weights();
    momentum_of[generation] = hash_momentum();
    HVT_TRY(hvt__folder_save(f, model, optim, &p));
    return hvt__folder_wait(f);
}

static void keep_files(void)
{
    static char names[2][40];

    for (int g = 1; g <= GENERATIONS; g++) {
        snprintf(names[0], sizeof names[0], "gen-%06d.safetensors", g);
        snprintf(names[1], sizeof names[1], "gen-%06d.momentum.safetensors", g);
        for (int k = 0; k < 2; k++, ngood++) {
            FILE *f = fopen(in_folder(names[k]), "rb");
            good[ngood].data = malloc(MOST);
            snprintf(good[ngood].name, sizeof good[ngood].name, "%s", names[k]);
            good[ngood].bytes = f ? fread(good[ngood].data, 1, MOST, f) : 0;
            CHECK(good[ngood].bytes > 500 && good[ngood].bytes < MOST, "%s", names[k]);
            if (f)
                fclose(f);
        }
    }
}

static void make_generations(void)
{
    hvt_options o = resuming("");
    hvt__folder f = {0};

    CHECK_OK(hvt__folder_open(&o, &f));
    for (int g = 1; g <= GENERATIONS; g++)
        CHECK_OK(save(&f, g));
    hvt__folder_close(&f);
    keep_files();
}

/* ---- damage ---- */

static char data[2 * MOST];
static size_t bytes;
static bool touched[GENERATIONS + 1]; /* that generation */
static bool moved, forged;            /* a file has another name; hashes were made right again */

/* In place of what is there, unless that is a folder. */
static void put_file(const char *name)
{
    FILE *f;

    unlink(in_folder(name));
    f = fopen(in_folder(name), "wb");
    if (!f)
        return;
    fwrite(data, 1, bytes, f);
    fclose(f);
}

static bool get_file(const char *name)
{
    struct stat info;
    FILE *f =
        stat(in_folder(name), &info) == 0 && S_ISREG(info.st_mode) ? fopen(in_folder(name), "rb") : NULL;

    bytes = f ? fread(data, 1, MOST, f) : 0;
    if (f)
        fclose(f);
    return bytes > 0;
}

static void lay_out(void)
{
    DIR *d = opendir(folder);
    struct dirent *e;

    while (d && (e = readdir(d)))
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0 && unlink(in_folder(e->d_name)))
            (void)!rmdir(in_folder(e->d_name));
    if (d)
        closedir(d);
    for (int i = 0; i < ngood; i++) {
        memcpy(data, good[i].data, bytes = good[i].bytes);
        put_file(good[i].name);
    }
    (void)!symlink("gen-000004.safetensors", in_folder("last.safetensors"));
    (void)!symlink("gen-000002.safetensors", in_folder("best.safetensors"));
    memset(touched, 0, sizeof touched);
    moved = forged = false;
}

/* A name that is in the folder, or might be. */
static const char *any_name(void)
{
    static const char *const odd[] = {
        "last.safetensors",
        "best.safetensors",
        "gen-000005.safetensors",
        "gen-000000.safetensors",
        "gen-00003.safetensors",
        "gen-999999999999999999.safetensors",
        "gen-000004.powersgd.safetensors",
        "gen-000004.safetensors.tmp",
        "last.safetensors.tmp",
        ".hvtrain.lock",
        "gen-000003",
        "last-0123456789abcdef.momentum.safetensors",
    };

    return below(4) ? good[below((uint32_t)ngood)].name : odd[below(HVT_LEN(odd))];
}

static void touch(const char *name)
{
    const char *end;
    int64_t number = hvt__generation_number(name, &end);

    if (number >= 1 && number <= GENERATIONS)
        touched[number] = true;
    else
        moved = true;
}

static void damage_bytes(size_t from, size_t to)
{
    size_t n = to - from, at, most;

    if (to <= from)
        return;
    at = from + below((uint32_t)n);
    most = to - at < 300 ? to - at : 300;
    switch (below(5)) {
    case 0:
        data[at] ^= (char)(1 << below(8));
        break;
    case 1:
        data[at] = "0123456789-{}[]\",.e \\"[below(21)];
        break;
    case 2:
        memset(data + at, (int)below(256), below((uint32_t)most + 1));
        break;
    case 3:
        memmove(data + at, data + from + below((uint32_t)(at - from) + 1), below((uint32_t)most + 1));
        break;
    default:
        for (size_t i = 0; i < most; i++)
            data[at + i] = (char)below(256);
    }
}

static size_t header_end(void)
{
    uint64_t n = 0;

    if (bytes >= 8)
        memcpy(&n, data, 8);
    return n <= bytes && n + 8 <= bytes ? (size_t)n + 8 : bytes;
}

/* The digits behind `key` become this hash. */
static void put_hash(const char *key, size_t end, uint64_t hash)
{
    char *at = memmem(data, end, key, strlen(key)), hex[17];

    snprintf(hex, sizeof hex, "%016llx", (unsigned long long)hash);
    if (at && at + strlen(key) + 16 <= data + end)
        memcpy(at + strlen(key), hex, 16);
}

/* As a program would that knows how: a digest of the data, then a seal of the header. */
static void make_right(void)
{
    size_t end = header_end();

    if (end < 8)
        return;
    put_hash("\"" HVT_ST_DIGEST "\":\"", end,
             bytes > end ? hvt__hash(HVT_HASH_INIT, data + end, bytes - end) : HVT_HASH_INIT);
    put_hash("\"" HVT_ST_SEAL "\":\"", end, 0);
    put_hash("\"" HVT_ST_SEAL "\":\"", end, hvt__hash(HVT_HASH_INIT, data + 8, end - 8));
}

static void damage_contents(const char *name)
{
    bool header = below(2);

    if (!get_file(name))
        return;
    for (uint32_t n = 1 + below(3); n; n--)
        damage_bytes(header ? below(2) ? 8 : 0 : header_end(), header ? header_end() : bytes);
    if (below(3) == 0) {
        make_right();
        forged = true;
    }
    if (below(6) == 0)
        bytes = below((uint32_t)bytes + 1);
    else if (below(6) == 0)
        bytes += below(700);
    put_file(name);
}

static void replace(const char *name)
{
    static const char *const others[] = {"/dev/null", "/dev/zero", ".",
                                         "..",        "nothing",   "gen-000001.safetensors"};
    const char *path = in_folder(name);

    unlink(path);
    switch (below(5)) {
    case 0:
        (void)!mkdir(path, 0777);
        break;
    case 1:
        (void)!mkfifo(path, 0666);
        break;
    case 2:
        bytes = 0;
        put_file(name);
        break;
    case 3:
        (void)!symlink(others[below(HVT_LEN(others))], path);
        moved = true;
        break;
    default:
        (void)!symlink(any_name(), path);
        moved = true;
    }
}

static void damage(void)
{
    const char *name = any_name(), *other = any_name();

    touch(name);
    switch (below(8)) {
    case 0:
        touch(other);
        moved = true;
        (void)!rename(in_folder(name), in_folder(other));
        break;
    case 1:
        touch(other);
        moved = true;
        if (get_file(other))
            put_file(name);
        break;
    case 2:
        unlink(in_folder(name));
        break;
    case 3:
        replace(name);
        break;
    default:
        damage_contents(name);
    }
}

/* ---- resuming ---- */

static void check_line(const char *line)
{
    CHECK(strlen(line) > 20, "seed %llu: '%s'", (unsigned long long)seed, line);
    for (const char *c = line; *c; c++)
        CHECK((unsigned char)*c >= ' ', "seed %llu: byte %d in '%s'", (unsigned long long)seed, *c, line);
}

/* Each that was logged is one. */
static void check_logged(void)
{
    int lines = 0;

    for (char *rest, *line = strtok_r(logged, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest), lines++)
        check_line(line);
    CHECK(lines == logged_lines, "seed %llu: %d lines are %d", (unsigned long long)seed, logged_lines, lines);
    log_forget();
}

/* The newest generation that was left alone; 0: none. */
static int newest_untouched(void)
{
    for (int g = GENERATIONS; g > 0; g--)
        if (!touched[g])
            return g;
    return 0;
}

/* Is what a run goes on with what was saved? */
static void check_state(const hvt_progress *p, int least)
{
    int g = (int)(p->steps / 10);
    bool fresh = true;

    CHECK_OK(hvt__optim_fresh(optim, &fresh));
    CHECK(p->steps == 10 * g && g >= 1 && g <= GENERATIONS + 1 && p->epoch == g && p->step == 3 &&
              p->run == 7 && p->sample == 48,
          "seed %llu: update %lld, epoch %d", (unsigned long long)seed, (long long)p->steps, p->epoch);
    if (g >= 1 && g <= GENERATIONS + 1) {
        CHECK(hash_weights() == weights_of[g], "seed %llu: not the weights of update %d",
              (unsigned long long)seed, 10 * g);
        CHECK(!fresh && hash_momentum() == momentum_of[g], "seed %llu: not the momentum of update %d%s",
              (unsigned long long)seed, 10 * g, fresh ? ", but none" : "");
    }
    CHECK(g >= least, "seed %llu: update %d is taken, %d is whole", (unsigned long long)seed, 10 * g,
          10 * least);
}

static hvt_status resume_in(hvt_options *o, hvt__folder *f, hvt_progress *ret_progress)
{
    char file[PATH_MAX];

    HVT_TRY(hvt__folder_open(o, f));
    HVT_TRY(hvt__resume(o->resume, model, optim, false, ret_progress, file));
    hvt__folder_resumed(f, file, ret_progress);
    free(ret_progress->options);
    return HVT_OK;
}

/* What is saved then is what the next job finds. */
static void go_on(hvt__folder *f)
{
    hvt_progress p = {0};
    char file[PATH_MAX];
    hvt_status s = save(f, GENERATIONS + 1);

    if (s) {
        check_line(hvt_last_error());
        return;
    }
    fill(NAN);
    s = hvt__resume(folder, model, optim, false, &p, file);
    CHECK(s == HVT_OK, "seed %llu: what was saved is not found: %s", (unsigned long long)seed,
          hvt_last_error());
    if (s == HVT_OK)
        check_state(&p, GENERATIONS + 1);
    free(p.options);
}

static hvt_status resume_auto(void)
{
    hvt_options o = resuming("auto");
    hvt__folder f = {0};
    hvt_progress p = {0};
    void *memory = NULL;
    hvt_status s;

    HVT_TRY(hvt__options_resume(&o, world, &memory));
    if (!*o.resume) {
        free(memory);
        return HVT_OK;
    }
    s = resume_in(&o, &f, &p);
    if (s == HVT_OK && !forged)
        check_state(&p, moved ? 0 : newest_untouched());
    if (s == HVT_OK && below(3) == 0 && !forged)
        go_on(&f);
    hvt__error why;
    hvt__error_take(&why);
    hvt__folder_close(&f);
    hvt__error_put(&why);
    free(memory);
    return s;
}

static void try_case(void)
{
    hvt_status s;

    lay_out();
    for (uint32_t n = below(6); n; n--)
        damage();
    fill(NAN);
    log_keep(HVT_LOG_WARN);
    s = resume_auto();
    if (s)
        check_line(hvt_last_error());
    CHECK(s == HVT_OK || forged || moved || !newest_untouched(), "seed %llu: %s", (unsigned long long)seed,
          hvt_last_error());
    CHECK(s != HVT_E_MEM, "seed %llu: %s", (unsigned long long)seed, hvt_last_error());
    check_logged();
    log_release();
}

int main(int argc, char **argv)
{
    double seconds = argc > 1 ? atof(argv[1]) : 60, began = hvt__now();
    uint64_t first = argc > 2 ? strtoull(argv[2], NULL, 0) : 1;
    struct rusage use;

    if (!folder_make())
        return 1;
    open_model();
    make_generations();
    seed = first;
    do {
        state = hvt__mix(seed);
        try_case();
        getrusage(RUSAGE_SELF, &use);
        CHECK(use.ru_maxrss < 1 << 20, "seed %llu: %ld MiB of memory", (unsigned long long)seed,
              use.ru_maxrss >> 10);
        seed++;
    } while (hvt__now() - began < seconds && !check_now);
    printf("%llu folders from seed %llu on; %ld MiB at most\n", (unsigned long long)(seed - first),
           (unsigned long long)first, use.ru_maxrss >> 10);
    for (int i = 0; i < ngood; i++)
        free(good[i].data);
    close_model();
    return !folder_remove() || check_now > 0;
}
