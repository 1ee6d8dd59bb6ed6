/*
 * One checkpoint: a file with the weights and its *sidecar files* (optimizer, PowerSGD state). The weights'
 * metadata names the sidecar files, whose metadata has the hash of these weights. train.h explains the order
 * of writes. With averaged weights, the file has their average, which was evaluated, and a sidecar file the
 * *raw* weights, from which training continues.
 */
#include "snapshot.h"
#include "base_impl.h"

#include "config.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <libgen.h>
#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

const char *const hvt__sidecar_end[HVT__SIDECARS] = {
    ".momentum" HVT_CHECKPOINT_END, ".adam" HVT_CHECKPOINT_END, ".powersgd" HVT_CHECKPOINT_END,
    ".raw" HVT_CHECKPOINT_END};

static const struct {
    const char *key, *what; /* in the weights' metadata; in messages */
} sidecars[HVT__SIDECARS] = {{"momentum", "momentum"},
                             {"adam", "averages of Adam"},
                             {"powersgd", "PowerSGD state"},
                             {"raw", "weights before averaging"}};

/* The sidecar file of this optimizer's state. */
static int sidecar_of(const hvt__optim_rule *rule)
{
    int k = 0;

    while (strcmp(sidecars[k].key, rule->file) != 0)
        k++;
    return k;
}

/* Metadata has the loss scale as [SCALE, GOOD, SKIPS]: the dynamic scale or 0, the updates since it changed,
 * and the steps skipped in a row. SCALE applies to the mean loss, so that it does not depend on the batch.
 * Only a dynamic scale is restored; a fixed one comes from the options. Files from before loss scaling have
 * none. */
static hvt_status load_scaler(const hvt_st *st, const json_t *meta, hvt_model *m)
{
    json_t *scaler = json_object_get(meta, "scaler");
    double scale;
    json_int_t good, skips;
    hvt_step_state s;

    if (!scaler)
        return HVT_OK;
    HVT_CHECK(json_unpack(scaler, "[F, I, I!]", &scale, &good, &skips) == 0 && scale >= 0 && good >= 0 &&
                  good <= INT_MAX && skips >= 0 && skips <= INT_MAX,
              E_FORMAT, "%s: metadata scaler: expected a scale and two counts", st->path);
    HVT_TRY(hvt__model_state(m, &s));
    s.skips_in_row = (int32_t)skips;
    if (s.interval && scale > 0) {
        s.loss_scale = fmaxf((float)(scale / m->batch), s.floor);
        s.good = good < s.interval ? (int32_t)good : 0;
    }
    return hvt__model_set_state(m, &s);
}

/* ---- writing ---- */

typedef struct sidecar {
    char name[128], path[PATH_MAX]; /* "": none */
    bool was_there;
} sidecar;

/* The sums of a loss as JSON. With targets the error is a fifth number, if it is known; without, older
 * versions would not expect one. */
static json_t *pack_loss(const hvt_loss *l)
{
    json_t *sums =
        json_pack("[f, I, I, I]", l->sum, (json_int_t)l->top1, (json_int_t)l->top5, (json_int_t)l->count);

    if (l->error > 0)
        json_array_append_new(sums, json_real(l->error));
    return sums;
}

/* The metadata of an epoch in progress. */
static json_t *pack_position(const hvt_progress *p)
{
    json_t *at = json_pack("{s:I, s:b, s:I, s:o, s:o}", "sample", (json_int_t)p->sample, "untested",
                           p->untested, "updates", (json_int_t)p->epoch_steps, "loss",
                           pack_loss(&p->epoch_loss), "recent", pack_loss(&p->recent));

    if (p->begun)
        json_object_set_new(at, "begun", json_loads(p->begun, 0, NULL));
    return at;
}

static json_t *describe(const hvt__snapshot *s, const sidecar file[HVT__SIDECARS])
{
    const hvt_progress *p = &s->progress;
    json_t *options = p->options ? json_loads(p->options, 0, NULL) : NULL;
    json_t *names = p->class_names ? json_loads(p->class_names, 0, NULL) : NULL, *meta;
    char run[17], weights[17], tape[17], data[17];

    snprintf(tape, sizeof tape, "%016" PRIx64, s->m->tape);
    snprintf(run, sizeof run, "%016" PRIx64, p->run);
    snprintf(weights, sizeof weights, "%016" PRIx64, s->hash);
    meta = json_pack("{s:s, s:b, s:s, s:s, s:s, s:s, s:i, s:I, s:I, s:f, s:s, s:o, s:s, s:[f, i, i], s:o}",
                     "version", hvt_version(), HVT_SEALED, 1, "build", HVT_COMPILER, "device",
                     hvt_device_name(s->m->dev), "isa", hvt_device_isa(s->m->dev), "layers", tape, "epoch",
                     p->epoch, "step", (json_int_t)p->step, "steps", (json_int_t)p->steps, "top1", p->top1,
                     "run", run, "options", options ? options : json_object(), "weights", weights, "scaler",
                     s->step.interval ? (double)s->step.loss_scale * s->m->batch : 0, (int)s->step.good,
                     (int)s->step.skips_in_row, "position", pack_position(p));
    if (names)
        json_object_set_new(meta, "class_names", names);
    if (p->loss > 0 && p->loss < HUGE_VAL)
        json_object_set_new(meta, "loss", json_real(p->loss));
    if (p->patience.least > 0)
        json_object_set_new(meta, "patience",
                            json_pack("[f, f, i, f, i, i]", p->patience.top1, p->patience.loss,
                                      p->patience.stale, p->patience.least, p->patience.bad,
                                      p->patience.cuts));
    if (p->data) {
        snprintf(data, sizeof data, "%016" PRIx64, p->data);
        json_object_set_new(meta, "data",
                            json_pack("{s:I, s:s}", "images", (json_int_t)p->images, "digest", data));
    }
    if (s->rule)
        json_object_set_new(
            meta, "optimizer",
            json_pack("{s:s, s:I}", "name", s->rule->name, "updates", (json_int_t)s->step.updates));
    if (s->takes_average)
        json_object_set_new(meta, "ema", json_pack("{s:I}", "averages", (json_int_t)s->step.ema_count));
    for (int k = 0; k < HVT__SIDECARS; k++)
        json_object_set_new(meta, sidecars[k].key, json_string(file[k].name));
    return meta;
}

/* The metadata of a sidecar file; weights among them describe their images. */
static json_t *describe_sidecar(const hvt__snapshot *s, int k)
{
    const hvt_progress *p = &s->progress;
    char weights[17];
    json_t *meta;

    snprintf(weights, sizeof weights, "%016" PRIx64, s->hash);
    meta = json_pack("{s:s, s:b, s:s}", "version", hvt_version(), HVT_SEALED, 1, "weights", weights);
    if (k == HVT__RAW && p->options)
        json_object_set_new(meta, "options", json_loads(p->options, 0, NULL));
    if (k == HVT__RAW && p->class_names)
        json_object_set_new(meta, "class_names", json_loads(p->class_names, 0, NULL));
    return meta;
}

/* Removes sidecar files of earlier checkpoints: NAME-<16 hex digits>END. */
static void remove_old(const char *dir, const char *name, const char *end, const char *keep)
{
    DIR *d = opendir(dir);
    struct dirent *e;
    size_t len = strlen(name);

    while (d && (e = readdir(d))) {
        const char *hex = e->d_name + len + 1;
        if (!strncmp(e->d_name, name, len) && e->d_name[len] == '-' &&
            strspn(hex, "0123456789abcdef") == 16 && !strncmp(hex + 16, end, strlen(end)) &&
            strcmp(e->d_name, keep))
            unlinkat(dirfd(d), e->d_name, 0);
    }
    if (d)
        closedir(d);
}

/* Writes all files, the weights last. A killed process leaves its sidecar files, which weights may name. */
static hvt_status write_files(const char *path, hvt__snapshot *of, const sidecar file[HVT__SIDECARS])
{
    json_t *meta[HVT__SIDECARS + 1];
    hvt_status s = HVT_OK;

    for (int k = 0; k < HVT__SIDECARS; k++)
        meta[k] = describe_sidecar(of, k);
    meta[HVT__SIDECARS] = describe(of, file);

    if (*file[HVT__POWERSGD].name)
        s = hvt__powersgd_state_save(file[HVT__POWERSGD].path, of, meta[HVT__POWERSGD]);
    for (int k = 0; k < HVT__POWERSGD; k++)
        if (s == HVT_OK && *file[k].name)
            s = hvt__weights_save(file[k].path, of, HVT__SAVE_STATE, meta[k]);
    if (s == HVT_OK && *file[HVT__RAW].name)
        s = hvt__weights_save(file[HVT__RAW].path, of, HVT__SAVE_RAW, meta[HVT__RAW]);
    if (s == HVT_OK)
        s = hvt__weights_save(path, of, HVT__SAVE_WEIGHTS, meta[HVT__SIDECARS]);
    for (size_t i = 0; i < HVT_LEN(meta); i++)
        json_decref(meta[i]);
    return s;
}

/* True if this checkpoint has sidecar file k. */
static bool has_sidecar(const hvt__snapshot *of, int k)
{
    if (k == HVT__POWERSGD)
        return of->powersgd.q != NULL;
    if (k == HVT__RAW)
        return of->average != NULL;
    return of->state && k == sidecar_of(of->rule);
}

hvt_status hvt__checkpoint_write(const char *dir, const char *name, const char *stem, hvt__snapshot *of)
{
    sidecar file[HVT__SIDECARS] = {0};
    char path[PATH_MAX], hashed[128];
    hvt_status s;

    HVT_TRY(hvt__path(path, "%s/%s" HVT_CHECKPOINT_END, dir, name));
    hvt__snapshot_arrange(of);
    snprintf(hashed, sizeof hashed, "%.80s-%016" PRIx64, name,
             hvt__hash(of->hash, &of->progress.steps, sizeof of->progress.steps));
    for (int k = 0; k < HVT__SIDECARS; k++)
        if (has_sidecar(of, k)) {
            snprintf(file[k].name, sizeof file[k].name, "%.100s%s", stem ? stem : hashed,
                     hvt__sidecar_end[k]);
            HVT_TRY(hvt__path(file[k].path, "%s/%s", dir, file[k].name));
            file[k].was_there = access(file[k].path, F_OK) == 0;
        }
    s = write_files(path, of, file);
    for (int k = 0; k < HVT__SIDECARS; k++)
        if (s == HVT_OK && !stem)
            remove_old(dir, name, hvt__sidecar_end[k], file[k].name);
        else if (s && *file[k].name && !file[k].was_there) /* the old weights, still in place, name others */
            unlink(file[k].path);
    return s;
}

hvt_status hvt__make_folder(const char *flag, const char *dir)
{
    char copy[PATH_MAX];
    struct stat info;

    if (stat(dir, &info) && errno == ENOENT && mkdir(dir, 0777)) {
        const int why = errno;
        const char *above;

        snprintf(copy, sizeof copy, "%s", dir);
        above = dirname(copy);
        HVT_CHECK(why != ENOENT || stat(above, &info) == 0, E_IO,
                  "%s%s: cannot make this folder: the folder above it does not exist: mkdir -p %s", flag, dir,
                  above);
        HVT_CHECK(why != ENOENT || info.st_nlink, E_IO,
                  "%s%s: cannot make this folder: the current folder was removed (%s)", flag, dir,
                  strerror(why));
        HVT_CHECK(why != ENOENT, E_IO, "%s%s: no folder can be made in %s", flag, dir, above);
        return HVT_FAIL(E_IO, "%s%s: cannot make this folder: %s", flag, dir, strerror(why));
    }
    HVT_CHECK(stat(dir, &info) == 0 || errno != ENOTDIR, E_IO,
              "%s%s: a part of this path is a file, expected folders", flag, dir);
    HVT_CHECK(stat(dir, &info) == 0, E_IO, "%s%s: %s", flag, dir, strerror(errno));
    HVT_CHECK(S_ISDIR(info.st_mode), E_IO, "%s%s: is a file, expected a folder", flag, dir);
    HVT_CHECK(access(dir, W_OK | X_OK) == 0, E_IO, "%s%s: cannot write there: %s", flag, dir,
              strerror(errno));
    return HVT_OK;
}

hvt_status hvt_checkpoint_save(const char *dir, const char *name, hvt_model *m, hvt_optim *o,
                               const hvt_progress *progress)
{
    HVT_GIVEN(dir, "a folder");
    HVT_GIVEN(name, "a name");
    HVT_GIVEN(m, "a model");
    HVT_GIVEN(progress, "the progress to save");

    hvt__snapshot *snapshot = NULL;
    hvt_status s;

    HVT_CHECK(*name && !strchr(name, '/'), E_ARG,
              "hvt_checkpoint_save(): the name is '%.100s', expected one without '/'", name);
    HVT_TRY(hvt__make_folder("", dir));
    HVT_TRY_OR(done, hvt__snapshot_take(&snapshot, m, o, progress));
    HVT_TRY_OR(done, hvt__checkpoint_write(dir, name, NULL, snapshot));
done:
    hvt__snapshot_free(&snapshot);
    return s;
}

/* ---- reading ---- */

static bool unpack_loss(const json_t *from, hvt_loss *l)
{
    json_int_t top1, top5, count;
    double sum, error = 0;

    if (json_unpack((json_t *)from, "[F, I, I, I!]", &sum, &top1, &top5, &count) &&
        json_unpack((json_t *)from, "[F, I, I, I, F!]", &sum, &top1, &top5, &count, &error))
        return false;
    *l = (hvt_loss){sum, top1, top5, count, error};
    return true;
}

static hvt_status read_position(const hvt_st *st, json_t *from, hvt_progress *p)
{
    json_int_t sample = 0, updates = 0;
    int untested = 0;

    if (!from)
        return HVT_OK;
    HVT_CHECK(json_unpack(from, "{s:I, s:b, s:I}", "sample", &sample, "untested", &untested, "updates",
                          &updates) == 0 &&
                  sample >= 0 && sample <= UINT32_MAX && updates >= 0 &&
                  unpack_loss(json_object_get(from, "loss"), &p->epoch_loss) &&
                  unpack_loss(json_object_get(from, "recent"), &p->recent),
              E_FORMAT, "%s: metadata position: expected the position in an epoch", st->path);
    p->sample = (uint32_t)sample;
    p->untested = untested;
    p->epoch_steps = updates;
    return HVT_OK;
}

/* Reads the description of the training set. */
static hvt_status read_data(const hvt_st *st, json_t *from, hvt_progress *p)
{
    json_int_t images = 0;
    const char *digest = "";

    if (!from)
        return HVT_OK;
    HVT_CHECK(json_unpack(from, "{s:I, s:s}", "images", &images, "digest", &digest) == 0 && images > 0 &&
                  images <= UINT32_MAX,
              E_FORMAT, "%s: metadata data: expected a number of images and a digest", st->path);
    p->images = (uint32_t)images;
    p->data = strtoull(digest, NULL, 16);
    return HVT_OK;
}

static hvt_status read_progress(const hvt_st *st, const json_t *meta, hvt_progress *p)
{
    double epoch, step, steps;

    HVT_TRY(hvt__metadata_number(st, meta, "epoch", INT_MAX, &epoch));
    HVT_TRY(hvt__metadata_number(st, meta, "step", UINT32_MAX, &step));
    HVT_TRY(hvt__metadata_number(st, meta, "steps", 0x1p53, &steps));
    HVT_TRY(hvt__metadata_number(st, meta, "top1", 100, &p->top1));
    HVT_CHECK(epoch >= 0 && step >= 0 && steps >= 0, E_FORMAT,
              "%s: epoch %g, step %g, steps %g: expected numbers that are 0 or more", st->path, epoch, step,
              steps);
    p->loss = json_number_value(json_object_get(meta, "loss"));
    json_unpack(json_object_get(meta, "patience"), "[F, F, i, F, i, i]", &p->patience.top1, &p->patience.loss,
                &p->patience.stale, &p->patience.least, &p->patience.bad,
                &p->patience.cuts); /* all are 0 if the file has none */
    p->run = strtoull(hvt__metadata_text(meta, "run"), NULL, 16);
    p->epoch = (int)epoch;
    p->step = (uint32_t)step;
    p->steps = (int64_t)steps;
    HVT_TRY(read_data(st, json_object_get(meta, "data"), p));
    return read_position(st, json_object_get(meta, "position"), p);
}

/* Loads the sidecar file that the weights' metadata names, if any. updates: made by its optimizer. */
static hvt_status load_sidecar(const char *path, const json_t *meta, int k, int64_t updates, hvt_model *m,
                               hvt_optim *o)
{
    const char *name = hvt__metadata_text(meta, sidecars[k].key), *belongs;
    const char *weights = hvt__metadata_text(meta, "weights");
    char dir[PATH_MAX], file[PATH_MAX];
    json_t *its = NULL;
    hvt_st *st = NULL;
    hvt_status s;

    if (!*name)
        return HVT_OK;
    HVT_CHECK(!strchr(name, '/'), E_FORMAT, "%s: names the file '%.100s', which is not a file name", path,
              name);
    snprintf(dir, sizeof dir, "%s", path);
    HVT_TRY(hvt__path(file, "%s/%s", dirname(dir), name));
    if (hvt__st_open(file, &st))
        return HVT_FAIL(E_IO, "%s needs its %s: %s (--init %s loads its weights only)", path,
                        sidecars[k].what, hvt_last_error(), path);
    HVT_TRY_OR(done, hvt__metadata_read(st, &its));
    belongs = hvt__metadata_text(its, "weights");
    HVT_CHECK_OR(done, !strcmp(belongs, weights), E_FORMAT, "%s belongs to the weights %.20s, %s has %.20s",
                 file, *belongs ? belongs : "?", path, weights);
    if (k == HVT__POWERSGD) {
        HVT_TRY_OR(done, hvt__st_verify(st));
        HVT_TRY_OR(done, hvt__powersgd_state_load(st, its, o));
    } else if (k == HVT__RAW) {
        HVT_TRY_OR(done, hvt__weights_load(st, m, false, NULL));
    } else {
        HVT_TRY_OR(done, hvt__state_load(st, o));
        HVT_TRY_OR(done, hvt__optim_set_updates(o, updates));
    }
done:
    json_decref(its);
    hvt__st_close(&st);
    return s;
}

/* Checks the optimizer of the state, and reads its number of updates. Older files have SGD's state, which
 * does not need the number. */
static hvt_status read_optimizer(const hvt_st *st, const json_t *meta, const hvt_optim *o,
                                 int64_t *ret_updates)
{
    json_t *from = json_object_get(meta, "optimizer");
    const char *name = hvt__optim_rules[HVT_OPTIM_SGD].name;
    json_int_t updates = 1;

    HVT_CHECK(!from ||
                  (json_unpack(from, "{s:s, s:I}", "name", &name, "updates", &updates) == 0 && updates >= 0),
              E_FORMAT, "%s: metadata optimizer: expected a name and a number of updates", st->path);
    HVT_CHECK(!strcmp(name, o->rule->name), E_ARG,
              "%s was saved with optimizer %s, but this run has %s (--init loads the weights only)", st->path,
              name, o->rule->name);
    *ret_updates = updates;
    return HVT_OK;
}

static hvt_status read_averages(const hvt_st *st, const json_t *meta, int64_t *ret_averages)
{
    json_t *ema = json_object_get(meta, "ema");
    bool averaged = *hvt__metadata_text(meta, sidecars[HVT__RAW].key);
    json_int_t averages = 0;

    HVT_CHECK(!ema || (json_unpack(ema, "{s:I}", "averages", &averages) == 0 && averages >= 0 &&
                       averaged == (averages > 0)),
              E_FORMAT, "%s: metadata ema: expected the number of averages", st->path);
    *ret_averages = averages;
    return HVT_OK;
}

/* The model has the file's weights. If these are an average, moves it to the optimizer, and loads the raw
 * weights into the model; an optimizer without an average continues without. */
static hvt_status load_average(const hvt_st *st, const json_t *meta, int64_t updates, int64_t averages,
                               hvt_optim *o)
{
    json_t *ema = json_object_get(meta, "ema");
    bool averaged = averages > 0, takes = o->arenas > o->states;

    if (averaged && takes) {
        HVT_TRY(hvt__optim_set_updates(o, updates));
        HVT_TRY(hvt__ema_load(o, averages));
    } else if (averaged) {
        HVT_INFO("note: %s holds an average of the weights; without --ema or --swa the run continues with "
                 "the raw weights",
                 st->path);
    } else if (takes && !ema && updates && !o->opts.ema.equal) {
        HVT_INFO("note: %s holds no average of the weights, so a new one begins with the next update",
                 st->path);
    }
    return load_sidecar(st->path, meta, HVT__RAW, updates, o->m, o);
}

/* Warns if the saved model computed something else. Files of other versions are not compared: these may build
 * another tape from the same description. */
static void warn_of_layers(const hvt_st *st, const json_t *meta, const hvt_model *m)
{
    const char *was = hvt__metadata_text(meta, "layers");

    if (*was && !strcmp(hvt__metadata_text(meta, "version"), hvt_version()) &&
        strtoull(was, NULL, 16) != m->tape)
        HVT_WARN("%s: its tensors fit the model, but the model that was saved computes something else: it "
                 "has other functions, windows or connections",
                 st->path);
}

static hvt_status load_model(hvt_st *st, const json_t *meta, int64_t averages, hvt_model *m, hvt_optim *o,
                             bool raw)
{
    const char *path = st->path;
    int64_t updates = 0;

    if (o) {
        HVT_TRY(hvt__ema_check_place(o, "a load"));
        HVT_TRY(read_optimizer(st, meta, o, &updates));
    }
    HVT_TRY(hvt__weights_load(st, m, false, hvt__metadata_text(meta, "weights")));
    warn_of_layers(st, meta, m);
    if (!o)
        return raw ? load_sidecar(path, meta, HVT__RAW, 0, m, NULL) : HVT_OK;
    HVT_TRY(hvt__optim_set_updates(o, 0)); /* unless the file has state */
    if (o->states)
        HVT_TRY(load_sidecar(path, meta, sidecar_of(o->rule), updates, m, o));
    if (o->powersgd)
        HVT_TRY(load_sidecar(path, meta, HVT__POWERSGD, updates, m, o));
    HVT_TRY(load_average(st, meta, updates, averages, o));
    return load_scaler(st, meta, m);
}

static hvt_status dump(const char *file, const json_t *value, char **ret_text)
{
    *ret_text = value ? json_dumps(value, JSON_COMPACT) : NULL;
    HVT_CHECK(!value || *ret_text, E_MEM, "no memory for options and class names of %s", file);
    return HVT_OK;
}

hvt_status hvt__checkpoint_read(const char *file, hvt_model *m, hvt_optim *o, bool raw,
                                hvt_progress *ret_progress)
{
    hvt_progress p = {0};
    hvt_st *st = NULL;
    json_t *meta = NULL, *names;
    hvt_status s;

    HVT_TRY(hvt__st_open(file, &st));
    HVT_TRY_OR(done, hvt__metadata_read(st, &meta));
    HVT_TRY_OR(done, read_progress(st, meta, &p));
    HVT_TRY_OR(done, read_averages(st, meta, &p.averages));
    HVT_TRY_OR(done, hvt__metadata_class_names(st, meta, &names));
    if (m)
        HVT_TRY_OR(done, load_model(st, meta, p.averages, m, o, raw));
    HVT_TRY_OR(done, dump(file, json_object_get(meta, "options"), &p.options));
    HVT_TRY_OR(done, dump(file, names, &p.class_names));
    HVT_TRY_OR(done, dump(file, json_object_get(json_object_get(meta, "position"), "begun"), &p.begun));
    *ret_progress = p;
    p = (hvt_progress){0};
done:
    hvt__progress_free(&p);
    json_decref(meta);
    hvt__st_close(&st);
    return s;
}

hvt_status hvt__checkpoint_sidecars(const char *file, char ret_name[HVT__SIDECARS][128])
{
    hvt_st *st = NULL;
    json_t *meta = NULL;
    hvt_status s;

    HVT_TRY(hvt__st_open(file, &st));
    HVT_TRY_OR(done, hvt__metadata_read(st, &meta));
    for (int k = 0; k < HVT__SIDECARS; k++)
        snprintf(ret_name[k], 128, "%s", hvt__metadata_text(meta, sidecars[k].key));
done:
    json_decref(meta);
    hvt__st_close(&st);
    return s;
}
