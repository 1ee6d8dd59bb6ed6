/*
 * Checkpoints: which files one consists of, what their metadata say, and how one is read again.
 *
 * The weights' file is the checkpoint; it names those beside it, its *sides* (momentum, what gradients in
 * factors left), which say in turn to which weights they belong. The order in which files are written is
 * explained in train.h.
 */
#include "powersgd_state.h"
#include "weights.h"
#include "base_impl.h"

#include "config.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FILE_END     ".safetensors"
#define MOMENTUM_END ".momentum.safetensors"
#define MEMORY_END   ".powersgd.safetensors"

/* ---- the loss scale, as metadata ---- */

/* "SCALE GOOD SKIPS": the dynamic loss scale, exactly, or 0; updates since it moved; steps skipped in a row.
 * SCALE is one of the mean loss, so that it holds for other batches, too. */
static hvt_status scaler_text(hvt_model *m, char *ret_text, size_t bytes)
{
    hvt_step_state s;

    HVT_TRY(hvt__model_state(m, &s));
    snprintf(ret_text, bytes, "%.17g %" PRId32 " %" PRId32, s.interval ? (double)s.loss_scale * m->batch : 0,
             s.good, s.skips_in_row);
    return HVT_OK;
}

/* Go on with a dynamic scale where it stood; one that is fixed is what the options say. Files of before loss
 * scaling have none. */
static hvt_status load_scaler(const hvt_st *st, hvt_model *m)
{
    const char *text = hvt__st_meta(st, "scaler");
    hvt_step_state s;
    double scale;
    int good, skips;

    if (!text)
        return HVT_OK;
    HVT_CHECK(sscanf(text, "%lf %d %d", &scale, &good, &skips) == 3 && scale >= 0 && isfinite(scale) &&
                  good >= 0 && skips >= 0,
              E_FORMAT, "%s: metadata scaler is '%.60s', expected a scale and two counts", hvt__st_path(st),
              text);
    HVT_TRY(hvt__model_state(m, &s));
    s.skips_in_row = skips;
    if (s.interval && scale > 0) {
        s.loss_scale = fmaxf((float)(scale / m->batch), s.floor);
        s.good = good < s.interval ? good : 0;
    }
    return hvt__model_set_state(m, &s);
}

/* ---- saving ---- */

static hvt_status save_weights(const char *path, hvt_model *m, const hvt_progress *p, const char *weights,
                               const char *momentum, const char *memory)
{
    char epoch[24], step[24], steps[24], top1[40], of_run[17], scaler[100];
    const hvt_st_pair meta[] = {
        {"hvtrain", HVT_VERSION},
        {"build", HVT_COMPILER},
        {"device", hvt_device_name(m->dev)},
        {"isa", hvt_device_isa(m->dev)},
        {"epoch", epoch},
        {"step", step},
        {"steps", steps},
        {"top1", top1},
        {"run", of_run},
        {"options", p->options ? p->options : ""},
        {"weights", weights},
        {"momentum", momentum},
        {"powersgd", memory},
        {"scaler", scaler},
    };

    snprintf(epoch, sizeof epoch, "%d", p->epoch);
    snprintf(step, sizeof step, "%" PRIu32, p->step);
    snprintf(steps, sizeof steps, "%" PRId64, p->steps);
    snprintf(top1, sizeof top1, "%.17g", p->top1);
    snprintf(of_run, sizeof of_run, "%016" PRIx64, p->run);
    HVT_TRY(scaler_text(m, scaler, sizeof scaler));
    return hvt__weights_save(path, m, meta, HVT_LEN(meta));
}

/* A file beside the weights, which name it. */
typedef struct side {
    const char *end;
    char name[128], path[PATH_MAX]; /* "": there is none */
    bool was_there;
} side;

static hvt_status name_side(const char *dir, const char *name, uint64_t id, side *ret_side)
{
    snprintf(ret_side->name, sizeof ret_side->name, "%.80s-%016" PRIx64 "%s", name, id, ret_side->end);
    HVT_CHECK((size_t)snprintf(ret_side->path, sizeof ret_side->path, "%s/%s", dir, ret_side->name) <
                  sizeof ret_side->path - 8,
              E_IO, "%s: the name is too long", dir);
    ret_side->was_there = access(ret_side->path, F_OK) == 0;
    return HVT_OK;
}

/* Those of this name that belong to no checkpoint any more: NAME-<16 hex digits>END. */
static void remove_old(const char *dir, const char *name, const side *keep)
{
    DIR *d = opendir(dir);
    struct dirent *e;
    size_t len = strlen(name);

    while (d && (e = readdir(d))) {
        char path[PATH_MAX];
        const char *hex = e->d_name + len + 1;
        if (strncmp(e->d_name, name, len) || e->d_name[len] != '-' || strspn(hex, "0123456789abcdef") != 16 ||
            strncmp(hex + 16, keep->end, strlen(keep->end)) || !strcmp(e->d_name, keep->name))
            continue;
        if ((size_t)snprintf(path, sizeof path, "%s/%s", dir, e->d_name) < sizeof path)
            unlink(path);
    }
    if (d)
        closedir(d);
}

void hvt__checkpoint_remove(const char *dir, const char *name)
{
    const side none[] = {{.end = MOMENTUM_END}, {.end = MEMORY_END}};
    char path[PATH_MAX];

    if ((size_t)snprintf(path, sizeof path, "%s/%s" FILE_END, dir, name) < sizeof path)
        unlink(path);
    for (size_t i = 0; i < HVT_LEN(none); i++)
        remove_old(dir, name, &none[i]);
}

/* Who is stopped in here leaves sides behind: it cannot be known whether the weights name them already. The
 * next save removes them. */
static hvt_status save_all(const char *path, hvt_model *m, hvt_optim *o, const hvt_progress *progress,
                           const char *weights, const side *momentum, const side *memory)
{
    const hvt_st_pair meta[] = {{"hvtrain", HVT_VERSION}, {"weights", weights}};
    float *v;

    if (*memory->name)
        HVT_TRY(hvt__memory_save(memory->path, m, o->powersgd, weights));
    if (*momentum->name) {
        HVT_TRY(hvt__optim_state(o, false, &v));
        HVT_TRY(hvt__momentum_save(momentum->path, m, v, meta, HVT_LEN(meta)));
    }
    return save_weights(path, m, progress, weights, momentum->name, memory->name);
}

hvt_status hvt_checkpoint_save(const char *dir, const char *name, hvt_model *m, hvt_optim *o,
                               const hvt_progress *progress)
{
    HVT_GIVEN(dir, "a folder");
    HVT_GIVEN(name, "a name");
    HVT_GIVEN(m, "a model");
    HVT_GIVEN(progress, "what to go on with");
    side sides[2] = {{.end = MOMENTUM_END}, {.end = MEMORY_END}}, *momentum = sides, *memory = sides + 1;
    char path[PATH_MAX], weights[17];
    bool has_momentum = o && o->v, fresh = false;
    uint64_t hash, id;
    float *v;
    hvt_status s;

    if (has_momentum)
        HVT_TRY(hvt__optim_fresh(o, &fresh));
    has_momentum = has_momentum && !fresh;
    if (has_momentum)
        HVT_TRY(hvt__optim_state(o, false, &v));
    HVT_CHECK(
        !o || !o->powersgd || o->powersgd->q, E_ARG,
        "what gradients leave from step to step lies on the ranks; hvt_distopt_gather() brings it here");
    HVT_TRY(hvt_model_hash(m, &hash));
    id = hvt__hash(hash, &progress->steps, sizeof progress->steps);
    snprintf(weights, sizeof weights, "%016" PRIx64, hash);
    HVT_CHECK((size_t)snprintf(path, sizeof path, "%s/%s" FILE_END, dir, name) < sizeof path - 8, E_IO,
              "%s: the name is too long", dir);
    if (has_momentum)
        HVT_TRY(name_side(dir, name, id, momentum));
    if (o && o->powersgd)
        HVT_TRY(name_side(dir, name, id, memory));
    s = save_all(path, m, o, progress, weights, momentum, memory);
    for (side *x = sides; s && x < sides + 2; x++)
        if (*x->name && !x->was_there) /* the weights are those of before, which name others */
            unlink(x->path);
    if (s)
        return hvt__pass(s, __FILE__, __LINE__, "save_all");
    remove_old(dir, name, momentum);
    remove_old(dir, name, memory);
    return HVT_OK;
}

hvt_status hvt__checkpoint_folder(const char *dir)
{
    char path[PATH_MAX];
    struct stat info;
    int fd;

    if (stat(dir, &info) && errno == ENOENT)
        HVT_CHECK(mkdir(dir, 0777) == 0, E_IO, "--save %s: cannot make this folder: %s", dir,
                  strerror(errno));
    HVT_CHECK(stat(dir, &info) == 0, E_IO, "--save %s: %s", dir, strerror(errno));
    HVT_CHECK(S_ISDIR(info.st_mode), E_IO, "--save %s: is a file, expected a folder", dir);
    HVT_CHECK((size_t)snprintf(path, sizeof path, "%s/write-test.tmp", dir) < sizeof path, E_IO,
              "--save %s: the name is too long", dir);
    fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    HVT_CHECK(fd >= 0, E_IO, "--save %s: cannot write there: %s", dir, strerror(errno));
    close(fd);
    unlink(path);
    return HVT_OK;
}

/* ---- going on ---- */

hvt_status hvt__checkpoint_file(const char *path, char *ret_path, size_t bytes)
{
    struct stat info;
    bool folder = stat(path, &info) == 0 && S_ISDIR(info.st_mode);
    char best[PATH_MAX];

    HVT_CHECK((size_t)snprintf(ret_path, bytes, "%s%s", path, folder ? "/last" FILE_END : "") < bytes, E_IO,
              "%s: the name is too long", path);
    if (folder && access(ret_path, F_OK)) { /* where there is neither, messages name `last` */
        snprintf(best, sizeof best, "%s/best" FILE_END, path);
        if (access(best, F_OK) == 0)
            snprintf(ret_path, bytes, "%s", best);
    }
    return HVT_OK;
}

static hvt_status read_number(const hvt_st *st, const char *key, double *ret)
{
    const char *text = hvt__st_meta(st, key);
    char *end;

    HVT_CHECK(text, E_FORMAT,
              "%s: no checkpoint of hvtrain: its metadata lacks '%s' (--init takes weights alone)",
              hvt__st_path(st), key);
    *ret = strtod(text, &end);
    HVT_CHECK(end != text && !*end && *ret == *ret, E_FORMAT, "%s: metadata %s is '%.40s', expected a number",
              hvt__st_path(st), key, text);
    return HVT_OK;
}

static hvt_status read_progress(const hvt_st *st, hvt_progress *p)
{
    const char *run = hvt__st_meta(st, "run");
    double epoch, step, steps;

    HVT_TRY(read_number(st, "epoch", &epoch));
    HVT_TRY(read_number(st, "step", &step));
    HVT_TRY(read_number(st, "steps", &steps));
    HVT_TRY(read_number(st, "top1", &p->top1));
    HVT_CHECK(epoch >= 0 && epoch <= INT_MAX && step >= 0 && step <= UINT32_MAX && steps >= 0 &&
                  steps <= 0x1p53,
              E_FORMAT, "%s: epoch %g, step %g, steps %g are no progress of a run", hvt__st_path(st), epoch,
              step, steps);
    p->run = run ? strtoull(run, NULL, 16) : 0;
    p->epoch = (int)epoch;
    p->step = (uint32_t)step;
    p->steps = (int64_t)steps;
    return HVT_OK;
}

/* Where a file lies that the weights name. */
static hvt_status side_path(const char *weights_path, const char *name, char ret_path[PATH_MAX])
{
    const char *slash = strrchr(weights_path, '/');
    int dir = slash ? (int)(slash - weights_path + 1) : 0;

    HVT_CHECK(!strchr(name, '/'), E_FORMAT, "%s: names the file '%.100s', which is no file name",
              weights_path, name);
    HVT_CHECK((size_t)snprintf(ret_path, PATH_MAX, "%.*s%s", dir, weights_path, name) < PATH_MAX, E_IO,
              "%s: the name is too long", weights_path);
    return HVT_OK;
}

static hvt_status load_memory(const char *weights_path, const char *name, const char *weights, hvt_model *m,
                              hvt_optim *o)
{
    char path[PATH_MAX];

    HVT_TRY(side_path(weights_path, name, path));
    if (access(path, F_OK))
        return HVT_FAIL(E_IO,
                        "%s needs what its gradients left: %s: %s (--init %s starts with its weights alone)",
                        weights_path, path, strerror(errno), weights_path);
    return hvt__memory_load(path, m, o->powersgd, weights);
}

static hvt_status load_momentum(const char *weights_path, const char *name, const char *weights, hvt_model *m,
                                hvt_optim *o)
{
    char path[PATH_MAX];
    const char *belongs;
    hvt_st *st = NULL;
    float *v;
    hvt_status s;

    HVT_TRY(side_path(weights_path, name, path));
    s = hvt__st_open(path, &st);
    if (s)
        return HVT_FAIL(E_IO, "%s needs its momentum: %s (--init %s starts with its weights alone)",
                        weights_path, hvt_last_error(), weights_path);
    belongs = hvt__st_meta(st, "weights");
    HVT_CHECK_OR(done, belongs && weights && !strcmp(belongs, weights), E_FORMAT,
                 "%s belongs to the weights %.20s, %s has %.20s", path, belongs ? belongs : "?", weights_path,
                 weights ? weights : "?");
    HVT_TRY_OR(done, hvt__st_verify(st));
    HVT_TRY_OR(done, hvt__optim_state(o, true, &v));
    HVT_TRY_OR(done, hvt__momentum_load(st, m, v));
    HVT_TRY_OR(done, hvt__optim_set_fresh(o, false));
done:
    hvt__st_close(&st);
    return s;
}

hvt_status hvt_checkpoint_load(const char *path, hvt_model *m, hvt_optim *o, hvt_progress *ret_progress)
{
    HVT_GIVEN(path, "a path");
    HVT_GIVEN(ret_progress, "a place for progress");

    char file[PATH_MAX], found[17];
    const char *momentum, *memory, *weights;
    hvt_progress p = {0};
    hvt_st *st = NULL;
    uint64_t hash;
    hvt_status s;

    HVT_TRY(hvt__checkpoint_file(path, file, sizeof file));
    HVT_TRY(hvt__st_open(file, &st));
    HVT_TRY_OR(done, read_progress(st, &p));
    if (m) {
        HVT_TRY_OR(done, hvt__weights_load(st, m, false));
        HVT_TRY_OR(done, hvt_model_hash(m, &hash));
        snprintf(found, sizeof found, "%016" PRIx64, hash);
        weights = hvt__st_meta(st, "weights");
        HVT_CHECK_OR(done, weights && !strcmp(weights, found), E_FORMAT,
                     "%s: damaged: its weights hash to %s, its metadata says %.20s", file, found,
                     weights ? weights : "nothing");
        momentum = hvt__st_meta(st, "momentum");
        if (o && o->v && momentum && *momentum)
            HVT_TRY_OR(done, load_momentum(file, momentum, weights, m, o));
        memory = hvt__st_meta(st, "powersgd");
        if (o && o->powersgd && memory && *memory)
            HVT_TRY_OR(done, load_memory(file, memory, weights, m, o));
        if (o)
            HVT_TRY_OR(done, load_scaler(st, m));
    }
    if (hvt__st_meta(st, "options")) {
        p.options = strdup(hvt__st_meta(st, "options"));
        HVT_CHECK_OR(done, p.options, E_MEM, "no memory for the options of %s", file);
    }
    *ret_progress = p;
done:
    hvt__st_close(&st);
    return s;
}
