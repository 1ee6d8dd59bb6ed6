/*
 * Saving and loading checkpoints.
 *
 * The file with the weights is the checkpoint. Its metadata names its *sidecar files* (momentum, PowerSGD
 * state), and theirs contains the hash of the weights that they belong to. train.h explains the order of
 * writes.
 */
#include "powersgd_state.h"
#include "weights.h"
#include "train/process/process_impl.h"
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
#define POWERSGD_END ".powersgd.safetensors"

/* ---- the loss scale, as metadata ---- */

/* [SCALE, GOOD, SKIPS]: the dynamic loss scale or 0, the updates since it changed, and the steps skipped in a
 * row. SCALE applies to the mean loss, so that it does not depend on the batch. */
static hvt_status scaler_of(hvt_model *m, json_t **ret_scaler)
{
    hvt_step_state s;

    HVT_TRY(hvt__model_state(m, &s));
    *ret_scaler = json_pack("[f, i, i]", s.interval ? (double)s.loss_scale * m->batch : 0, (int)s.good,
                            (int)s.skips_in_row);
    return HVT_OK;
}

/* Restore a dynamic scale; a fixed one comes from the options. Files from before loss scaling have none. */
static hvt_status load_scaler(const hvt_st *st, const json_t *meta, hvt_model *m)
{
    json_t *scaler = json_object_get(meta, "scaler");
    double scale = json_number_value(json_array_get(scaler, 0));
    json_int_t good = json_integer_value(json_array_get(scaler, 1));
    json_int_t skips = json_integer_value(json_array_get(scaler, 2));
    hvt_step_state s;

    if (!scaler)
        return HVT_OK;
    HVT_CHECK(json_array_size(scaler) == 3 && scale >= 0 && good >= 0 && good <= INT_MAX && skips >= 0 &&
                  skips <= INT_MAX,
              E_FORMAT, "%s: metadata scaler: expected a scale and two counts", hvt__st_path(st));
    HVT_TRY(hvt__model_state(m, &s));
    s.skips_in_row = (int32_t)skips;
    if (s.interval && scale > 0) {
        s.loss_scale = fmaxf((float)(scale / m->batch), s.floor);
        s.good = good < s.interval ? (int32_t)good : 0;
    }
    return hvt__model_set_state(m, &s);
}

/* ---- saving ---- */

static hvt_status save_weights(const char *path, hvt_model *m, const hvt_progress *p, const char *weights,
                               const char *momentum, const char *powersgd)
{
    json_t *meta, *scaler = NULL, *options = p->options ? json_loads(p->options, 0, NULL) : NULL;
    char run[17];
    hvt_status s;

    HVT_TRY(scaler_of(m, &scaler));
    snprintf(run, sizeof run, "%016" PRIx64, p->run);
    meta = json_pack("{s:s, s:s, s:s, s:s, s:i, s:I, s:I, s:f, s:s, s:o, s:s, s:s, s:s, s:o}", "version",
                     HVT_VERSION, "build", HVT_COMPILER, "device", hvt_device_name(m->dev), "isa",
                     hvt_device_isa(m->dev), "epoch", p->epoch, "step", (json_int_t)p->step, "steps",
                     (json_int_t)p->steps, "top1", p->top1, "run", run, "options",
                     options ? options : json_object(), "weights", weights, "momentum", momentum, "powersgd",
                     powersgd, "scaler", scaler);
    s = hvt__weights_save(path, m, meta);
    json_decref(meta);
    return s;
}

/* A file that the metadata of the weights names. */
typedef struct sidecar {
    const char *end;
    char name[128], path[PATH_MAX]; /* "": none */
    bool was_there;
} sidecar;

static hvt_status name_sidecar(const char *dir, const char *name, uint64_t id, sidecar *ret_sidecar)
{
    snprintf(ret_sidecar->name, sizeof ret_sidecar->name, "%.80s-%016" PRIx64 "%s", name, id,
             ret_sidecar->end);
    HVT_CHECK((size_t)snprintf(ret_sidecar->path, sizeof ret_sidecar->path, "%s/%s", dir, ret_sidecar->name) <
                  sizeof ret_sidecar->path - 8,
              E_IO, "%s: the name is too long", dir);
    ret_sidecar->was_there = access(ret_sidecar->path, F_OK) == 0;
    return HVT_OK;
}

/* Remove sidecar files of earlier checkpoints: NAME-<16 hex digits>END. */
static void remove_old(const char *dir, const char *name, const sidecar *keep)
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
    const sidecar none[] = {{.end = MOMENTUM_END}, {.end = POWERSGD_END}};
    char path[PATH_MAX];

    if ((size_t)snprintf(path, sizeof path, "%s/%s" FILE_END, dir, name) < sizeof path)
        unlink(path);
    for (size_t i = 0; i < HVT_LEN(none); i++)
        remove_old(dir, name, &none[i]);
}

/* A process that is killed in here leaves sidecar files behind, since the weights may name them already. The
 * next save removes them. */
static hvt_status save_all(const char *path, hvt_model *m, hvt_optim *o, const hvt_progress *progress,
                           const char *weights, const sidecar *momentum, const sidecar *powersgd)
{
    json_t *meta;
    float *v;
    hvt_status s;

    if (*powersgd->name)
        HVT_TRY(hvt__powersgd_state_save(powersgd->path, m, o->powersgd, weights));
    if (*momentum->name) {
        HVT_TRY(hvt__optim_state(o, false, &v));
        meta = json_pack("{s:s, s:s}", "version", HVT_VERSION, "weights", weights);
        s = hvt__momentum_save(momentum->path, m, v, meta);
        json_decref(meta);
        HVT_TRY(s);
    }
    return save_weights(path, m, progress, weights, momentum->name, powersgd->name);
}

hvt_status hvt_checkpoint_save(const char *dir, const char *name, hvt_model *m, hvt_optim *o,
                               const hvt_progress *progress)
{
    HVT_GIVEN(dir, "a folder");
    HVT_GIVEN(name, "a name");
    HVT_GIVEN(m, "a model");
    HVT_GIVEN(progress, "what to go on with");
    sidecar sidecars[2] = {{.end = MOMENTUM_END}, {.end = POWERSGD_END}}, *momentum = sidecars,
            *powersgd = sidecars + 1;
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
        HVT_TRY(name_sidecar(dir, name, id, momentum));
    if (o && o->powersgd)
        HVT_TRY(name_sidecar(dir, name, id, powersgd));
    s = save_all(path, m, o, progress, weights, momentum, powersgd);
    for (sidecar *x = sidecars; s && x < sidecars + 2; x++)
        if (*x->name && !x->was_there) /* the old weights, which are still in place, name other files */
            unlink(x->path);
    if (s)
        return hvt__pass(s, __FILE__, __LINE__, "save_all");
    remove_old(dir, name, momentum);
    remove_old(dir, name, powersgd);
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

static hvt_status read_progress(const hvt_st *st, const json_t *meta, hvt_progress *p)
{
    double epoch, step, steps;

    HVT_TRY(hvt__metadata_number(st, meta, "epoch", INT_MAX, &epoch));
    HVT_TRY(hvt__metadata_number(st, meta, "step", UINT32_MAX, &step));
    HVT_TRY(hvt__metadata_number(st, meta, "steps", 0x1p53, &steps));
    HVT_TRY(hvt__metadata_number(st, meta, "top1", 100, &p->top1));
    HVT_CHECK(epoch >= 0 && step >= 0 && steps >= 0, E_FORMAT,
              "%s: epoch %g, step %g, steps %g: expected numbers from 0 on", hvt__st_path(st), epoch, step,
              steps);
    p->run = strtoull(hvt__metadata_text(meta, "run"), NULL, 16);
    p->epoch = (int)epoch;
    p->step = (uint32_t)step;
    p->steps = (int64_t)steps;
    return HVT_OK;
}

/* The path of a sidecar file. */
static hvt_status sidecar_path(const char *weights_path, const char *name, char ret_path[PATH_MAX])
{
    const char *slash = strrchr(weights_path, '/');
    int dir = slash ? (int)(slash - weights_path + 1) : 0;

    HVT_CHECK(!strchr(name, '/'), E_FORMAT, "%s: names the file '%.100s', which is no file name",
              weights_path, name);
    HVT_CHECK((size_t)snprintf(ret_path, PATH_MAX, "%.*s%s", dir, weights_path, name) < PATH_MAX, E_IO,
              "%s: the name is too long", weights_path);
    return HVT_OK;
}

/* Open a sidecar file, and check that it belongs to these weights. */
static hvt_status open_sidecar(const char *weights_path, const char *name, const char *weights,
                               const char *what, hvt_st **ret_st, json_t **ret_meta)
{
    char path[PATH_MAX];
    const char *belongs;

    HVT_TRY(sidecar_path(weights_path, name, path));
    if (hvt__st_open(path, ret_st))
        return HVT_FAIL(E_IO, "%s needs its %s: %s (--init %s starts with its weights alone)", weights_path,
                        what, hvt_last_error(), weights_path);
    HVT_TRY(hvt__metadata_read(*ret_st, ret_meta));
    belongs = hvt__metadata_text(*ret_meta, "weights");
    HVT_CHECK(!strcmp(belongs, weights), E_FORMAT, "%s belongs to the weights %.20s, %s has %.20s", path,
              *belongs ? belongs : "?", weights_path, weights);
    return hvt__st_verify(*ret_st);
}

/* The sidecar files that the metadata names. */
static hvt_status load_sidecars(const char *path, const json_t *meta, hvt_model *m, hvt_optim *o)
{
    const char *momentum = hvt__metadata_text(meta, "momentum"),
               *weights = hvt__metadata_text(meta, "weights");
    const char *powersgd = hvt__metadata_text(meta, "powersgd");
    json_t *its = NULL;
    hvt_st *st = NULL;
    float *v;
    hvt_status s = HVT_OK;

    if (o->v && *momentum) {
        HVT_TRY_OR(done, open_sidecar(path, momentum, weights, "momentum", &st, &its));
        HVT_TRY_OR(done, hvt__optim_state(o, true, &v));
        HVT_TRY_OR(done, hvt__momentum_load(st, m, v));
        HVT_TRY_OR(done, hvt__optim_set_fresh(o, false));
        json_decref(its);
        its = NULL;
        hvt__st_close(&st);
    }
    if (o->powersgd && *powersgd) {
        HVT_TRY_OR(done, open_sidecar(path, powersgd, weights, "PowerSGD state", &st, &its));
        HVT_TRY_OR(done, hvt__powersgd_state_load(st, its, m, o->powersgd));
    }
done:
    json_decref(its);
    hvt__st_close(&st);
    return s;
}

static hvt_status load_model(hvt_st *st, const json_t *meta, hvt_model *m, hvt_optim *o)
{
    const char *path = hvt__st_path(st), *weights = hvt__metadata_text(meta, "weights");
    char found[17];
    uint64_t hash;

    HVT_TRY(hvt__weights_load(st, m, false));
    HVT_TRY(hvt_model_hash(m, &hash));
    snprintf(found, sizeof found, "%016" PRIx64, hash);
    HVT_CHECK(!strcmp(weights, found), E_FORMAT,
              "%s: damaged: its weights hash to %s, its metadata says %.20s", path, found,
              *weights ? weights : "nothing");
    if (!o)
        return HVT_OK;
    HVT_TRY(load_sidecars(path, meta, m, o));
    return load_scaler(st, meta, m);
}

static hvt_status load_file(const char *file, hvt_model *m, hvt_optim *o, hvt_progress *ret_progress)
{
    hvt_progress p = {0};
    hvt_st *st = NULL;
    json_t *meta = NULL, *options;
    hvt_status s;

    HVT_TRY(hvt__st_open(file, &st));
    HVT_TRY_OR(done, hvt__metadata_read(st, &meta));
    HVT_TRY_OR(done, read_progress(st, meta, &p));
    if (m)
        HVT_TRY_OR(done, load_model(st, meta, m, o));
    options = json_object_get(meta, "options");
    p.options = options ? json_dumps(options, JSON_COMPACT) : NULL;
    HVT_CHECK_OR(done, !options || p.options, E_MEM, "no memory for the options of %s", file);
    *ret_progress = p;
done:
    json_decref(meta);
    hvt__st_close(&st);
    return s;
}

/* The folder's `last` cannot be loaded: can its `best`? */
static hvt_status suggest_best(const char *dir, hvt_status s)
{
    char best[PATH_MAX], why[1024], file[HVT_SHELL_WORD], folder[HVT_SHELL_WORD];
    hvt_progress p;

    snprintf(why, sizeof why, "%s", hvt_last_error());
    if ((size_t)snprintf(best, sizeof best, "%s/best" FILE_END, dir) >= sizeof best ||
        load_file(best, NULL, NULL, &p) != HVT_OK)
        return hvt__fail(s, __FILE__, __LINE__, "%s", why);
    free(p.options);
    return hvt__fail(s, __FILE__, __LINE__,
                     "%s; its best can be read (epoch %d, update %" PRId64
                     "): --resume %s --save %s --overwrite continues from there",
                     why, p.epoch, p.steps, hvt__shell_word(best, file), hvt__shell_word(dir, folder));
}

hvt_status hvt_checkpoint_load(const char *path, hvt_model *m, hvt_optim *o, hvt_progress *ret_progress)
{
    HVT_GIVEN(path, "a path");
    HVT_GIVEN(ret_progress, "a place for progress");

    char file[PATH_MAX];
    struct stat info;
    hvt_status s;

    HVT_TRY(hvt__weights_file(path, file, sizeof file));
    s = load_file(file, m, o, ret_progress);
    if ((s == HVT_E_IO || s == HVT_E_FORMAT) && stat(path, &info) == 0 && S_ISDIR(info.st_mode))
        return suggest_best(path, s);
    return s == HVT_OK ? s : hvt__pass(s, __FILE__, __LINE__, "load");
}
