/*
 * Weights and checkpoints: a model's tensors by name in canonical layout, and what else a run needs to go on.
 *
 * "Tensors" here are parameters and moving statistics, plus a num_batches_tracked for each batch norm, which
 * is what torchvision's state_dict() has. A file is compared with the model as a whole before the first
 * element is written into the model, so a file that does not fit leaves the model alone. The order in which
 * files are written is explained in train.h.
 */
#include "memory.h"
#include "train_impl.h"
#include "base_impl.h"
#include "model_impl.h"

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
#define MOMENTUM_OF  "optim.momentum_buffer."
#define RUNNING_MEAN ".running_mean"

/* ---- the model's tensors as a list ---- */

enum { ID_STAT = 1 << 20, ID_TRACKED = 1 << 21 }; /* item.id: a parameter's index, or these plus a stat's */

static bool ends_with(const char *text, const char *end)
{
    size_t n = strlen(text), k = strlen(end);

    return n >= k && !strcmp(text + n - k, end);
}

/* Every tensor of a state_dict, malloc'ed; parameters in forward order, so that messages begin where a reader
 * does. */
static hvt_status list_tensors(const hvt_model *m, hvt_st_item **ret_items, int *ret_n)
{
    hvt_st_item *items = calloc((size_t)(m->nparam_tensors + 2 * m->nstat + 1), sizeof *items), *t = items;

    HVT_CHECK(items, E_MEM, "no memory to list %d tensors", m->nparam_tensors + 2 * m->nstat);
    for (int i = m->nparam_tensors - 1; i >= 0; i--, t++) {
        snprintf(t->name, sizeof t->name, "%s", m->param[i].name);
        t->type = HVT_ST_F32;
        t->ndim = m->param[i].ndim;
        for (int d = 0; d < t->ndim; d++)
            t->dim[d] = m->param[i].dim[d];
        t->id = i;
    }
    for (int i = 0; i < m->nstat; i++) {
        const char *name = m->stat[i].name;
        snprintf(t->name, sizeof t->name, "%s", name);
        t->type = HVT_ST_F32;
        t->ndim = 1;
        t->dim[0] = (int64_t)m->stat[i].count;
        t->id = ID_STAT + i;
        t++;
        if (!ends_with(name, RUNNING_MEAN))
            continue;
        snprintf(t->name, sizeof t->name, "%.*s.num_batches_tracked",
                 (int)(strlen(name) - strlen(RUNNING_MEAN)), name);
        t->type = HVT_ST_I64;
        t->id = ID_TRACKED + i;
        t++;
    }
    *ret_items = items;
    *ret_n = (int)(t - items);
    return HVT_OK;
}

/* ---- loading weights ---- */

/* What a file and a model do not share, for one line. */
typedef struct misfit {
    int n;
    char names[1300];
} misfit;

static void misfit_add(misfit *f, const char *name)
{
    size_t used = strlen(f->names);

    if (f->n < 3)
        snprintf(f->names + used, sizeof f->names - used, "%s%s", f->n ? ", " : "", name);
    else if (f->n == 3)
        snprintf(f->names + used, sizeof f->names - used, ", ...");
    f->n++;
}

static bool same_shape(const hvt_st_item *want, const hvt_st_tensor *t)
{
    if (want->ndim != t->ndim)
        return false;
    for (int d = 0; d < t->ndim; d++)
        if (want->dim[d] != t->dim[d])
            return false;
    return true;
}

/* Names of DataParallel and DistributedDataParallel begin with "module." */
static const hvt_st_tensor *find_tensor(const hvt_st *st, const char *name)
{
    char long_name[200];
    const hvt_st_tensor *t = hvt__st_find(st, name);

    if (t)
        return t;
    snprintf(long_name, sizeof long_name, "module.%s", name);
    return hvt__st_find(st, long_name);
}

static bool is_item(const hvt_st_item *items, int n, const char *name)
{
    if (!strncmp(name, "module.", 7))
        name += 7;
    for (int i = 0; i < n; i++)
        if (!strcmp(items[i].name, name))
            return true;
    return false;
}

/* Parameters of the layer that makes the logits. */
static bool is_head(const hvt_model *m, const char *name)
{
    const char *head = m->layer[m->logits].name;
    size_t len = strlen(head);

    return !strncmp(name, head, len) && name[len] == '.';
}

static hvt_status compare(const hvt_st *st, const hvt_model *m, bool skip_head, const hvt_st_item *items,
                          int n)
{
    misfit missing = {0}, unknown = {0}, shape = {0}, type = {0};
    bool head_only = true;
    const char *advice;

    for (int i = 0; i < n; i++) {
        const hvt_st_tensor *t = find_tensor(st, items[i].name);
        bool head = is_head(m, items[i].name);
        char has[100], wants[100], line[400];
        if (head && skip_head)
            continue;
        if (!t) {
            if (items[i].id < ID_TRACKED) { /* files older than PyTorch 0.4.1 lack the counters */
                misfit_add(&missing, items[i].name);
                head_only &= head;
            }
            continue;
        }
        if (!same_shape(&items[i], t)) {
            hvt__st_shape(t->dim, t->ndim, has, sizeof has);
            hvt__st_shape(items[i].dim, items[i].ndim, wants, sizeof wants);
            snprintf(line, sizeof line, "%s is %s, the model's is %s", items[i].name, has, wants);
            misfit_add(&shape, line);
            head_only &= head;
        } else if (items[i].type == HVT_ST_I64
                       ? t->type != HVT_ST_I64
                       : t->type != HVT_ST_F32 && t->type != HVT_ST_F16 && t->type != HVT_ST_BF16) {
            snprintf(line, sizeof line, "%s is %s, expected %s", items[i].name, t->type_name,
                     items[i].type == HVT_ST_I64 ? "I64" : "F32, F16 or BF16");
            misfit_add(&type, line);
            head_only = false;
        }
    }
    for (int i = 0; i < hvt__st_count(st); i++) {
        const char *name = hvt__st_at(st, i)->name;
        if (!is_item(items, n, name)) {
            misfit_add(&unknown, name);
            head_only = false;
        }
    }
    if (!missing.n && !unknown.n && !shape.n && !type.n)
        return HVT_OK;
    advice = head_only && !skip_head ? " (--init-skip-head leaves the head as initialised)" : "";
    if (shape.n)
        return HVT_FAIL(
            E_SHAPE, "%s does not fit the model: %d shapes differ (%s), %d tensors are missing, %d unknown%s",
            hvt__st_path(st), shape.n, shape.names, missing.n, unknown.n, advice);
    if (type.n)
        return HVT_FAIL(E_FORMAT, "%s: %d tensors have another type (%s)", hvt__st_path(st), type.n,
                        type.names);
    return HVT_FAIL(E_SHAPE, "%s does not fit the model: %d tensors are missing%s%s%s, %d unknown%s%s%s%s",
                    hvt__st_path(st), missing.n, missing.n ? " (" : "", missing.names, missing.n ? ")" : "",
                    unknown.n, unknown.n ? " (" : "", unknown.names, unknown.n ? ")" : "", advice);
}

static hvt_status load_item(hvt_st *st, hvt_model *m, const hvt_st_item *item, const hvt_st_tensor *t,
                            float *buf)
{
    if (item->id >= ID_TRACKED)
        return hvt__st_i64(st, t, &m->tracked);
    HVT_TRY(hvt__st_f32(st, t, buf));
    if (item->id >= ID_STAT) {
        const hvt_stat *stat = &m->stat[item->id - ID_STAT];
        return hvt_device_upload(m->dev, m->stats + stat->offset, buf, stat->count * sizeof *buf);
    }
    return hvt__model_import(m, &m->param[item->id], m->params, buf);
}

static float *largest_buffer(const hvt_model *m)
{
    size_t most = 1;

    for (int i = 0; i < m->nparam_tensors; i++)
        most = m->param[i].elements > most ? m->param[i].elements : most;
    for (int i = 0; i < m->nstat; i++)
        most = m->stat[i].count > most ? m->stat[i].count : most;
    return malloc(most * sizeof(float));
}

static hvt_status load_weights(hvt_st *st, hvt_model *m, bool skip_head)
{
    hvt_st_item *items = NULL;
    float *buf = largest_buffer(m);
    int n = 0;
    hvt_status s;

    HVT_CHECK_OR(done, buf, E_MEM, "no memory to read %s", hvt__st_path(st));
    HVT_TRY_OR(done, list_tensors(m, &items, &n));
    HVT_TRY_OR(done, compare(st, m, skip_head, items, n));
    HVT_TRY_OR(done, hvt__st_verify(st));
    for (int i = 0; i < n; i++) {
        const hvt_st_tensor *t = find_tensor(st, items[i].name);
        if (t && !(skip_head && is_head(m, items[i].name)))
            HVT_TRY_OR(done, load_item(st, m, &items[i], t, buf));
    }
    hvt__model_changed(m);
done:
    free(items);
    free(buf);
    return s;
}

hvt_status hvt_weights_load(const char *file, hvt_model *m, bool skip_head)
{
    hvt_st *st = NULL;
    hvt_status s;

    HVT_TRY(hvt__st_open(file, &st));
    s = load_weights(st, m, skip_head);
    hvt__st_close(&st);
    return s;
}

/* ---- saving ---- */

typedef struct source {
    hvt_model *m;
    const float *arena; /* parameters or momentum */
} source;

static hvt_status fetch(void *ctx, const hvt_st_item *item, void *data)
{
    const source *from = ctx;
    hvt_model *m = from->m;

    if (item->id >= ID_TRACKED) {
        memcpy(data, &m->tracked, sizeof m->tracked);
        return HVT_OK;
    }
    if (item->id >= ID_STAT) {
        const hvt_stat *stat = &m->stat[item->id - ID_STAT];
        return hvt_device_download(m->dev, data, m->stats + stat->offset, stat->count * sizeof(float));
    }
    return hvt__model_export(m, &m->param[item->id], from->arena, data);
}

/* What has diverged must not replace what has not: numbers that are not finite are never written. */
static hvt_status fetch_finite(void *ctx, const hvt_st_item *item, void *data)
{
    size_t count = 1;
    const float *x = data;

    HVT_TRY(fetch(ctx, item, data));
    for (int d = 0; d < item->ndim; d++)
        count *= (size_t)item->dim[d];
    for (size_t i = 0; i < count && item->type == HVT_ST_F32; i++)
        HVT_CHECK(isfinite(x[i]), E_DIVERGED, "not saved: %s holds %g, expected finite numbers", item->name,
                  isnan(x[i]) ? (double)NAN : (double)x[i]);
    return HVT_OK;
}

static hvt_status save_momentum(const char *path, hvt_model *m, const float *v, const char *weights)
{
    const hvt_st_pair meta[] = {{"hvtrain", HVT_VERSION}, {"weights", weights}};
    source from = {m, v};
    hvt_st_item *items;
    int n, kept = 0;
    hvt_status s;

    HVT_TRY(list_tensors(m, &items, &n));
    for (int i = 0; i < n; i++)
        if (items[i].id < ID_STAT) {
            items[kept] = items[i];
            snprintf(items[kept++].name, sizeof items->name, MOMENTUM_OF "%s", m->param[items[i].id].name);
        }
    s = hvt__st_write(path, items, kept, meta, HVT_LEN(meta), fetch_finite, &from);
    free(items);
    return s;
}

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

static hvt_status save_weights(const char *path, hvt_model *m, const hvt_progress *p, const char *weights,
                               const char *momentum, const char *memory)
{
    char epoch[24], step[24], steps[24], top1[40], scaler[100];
    const hvt_st_pair meta[] = {
        {"hvtrain", HVT_VERSION},
        {"build", HVT_COMPILER},
        {"device", hvt_device_name(m->dev)},
        {"isa", hvt_device_isa(m->dev)},
        {"epoch", epoch},
        {"step", step},
        {"steps", steps},
        {"top1", top1},
        {"options", p->options ? p->options : ""},
        {"weights", weights},
        {"momentum", momentum},
        {"powersgd", memory},
        {"scaler", scaler},
    };
    source from = {m, m->params};
    hvt_st_item *items;
    int n;
    hvt_status s;

    snprintf(epoch, sizeof epoch, "%d", p->epoch);
    snprintf(step, sizeof step, "%" PRIu32, p->step);
    snprintf(steps, sizeof steps, "%" PRId64, p->steps);
    snprintf(top1, sizeof top1, "%.17g", p->top1);
    HVT_TRY(scaler_text(m, scaler, sizeof scaler));
    HVT_TRY(list_tensors(m, &items, &n));
    s = hvt__st_write(path, items, n, meta, HVT_LEN(meta), fetch_finite, &from);
    free(items);
    return s;
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

/* Who is stopped in here leaves sides behind: it cannot be known whether the weights name them already. The
 * next save removes them. */
static hvt_status save_all(const char *path, hvt_model *m, hvt_optim *o, const hvt_progress *progress,
                           const char *weights, const side *momentum, const side *memory)
{
    float *v;

    if (*memory->name)
        HVT_TRY(hvt__memory_save(memory->path, m, o->memory, weights));
    if (*momentum->name) {
        HVT_TRY(hvt__optim_state(o, false, &v));
        HVT_TRY(save_momentum(momentum->path, m, v, weights));
    }
    return save_weights(path, m, progress, weights, momentum->name, memory->name);
}

hvt_status hvt_checkpoint_save(const char *dir, const char *name, hvt_model *m, hvt_optim *o,
                               const hvt_progress *progress)
{
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
        !o || !o->memory || o->memory->q, E_ARG,
        "what gradients leave from step to step lies on the ranks; hvt_distopt_gather() brings it here");
    HVT_TRY(hvt_model_hash(m, &hash));
    id = hvt__hash(hash, &progress->steps, sizeof progress->steps);
    snprintf(weights, sizeof weights, "%016" PRIx64, hash);
    HVT_CHECK((size_t)snprintf(path, sizeof path, "%s/%s" FILE_END, dir, name) < sizeof path - 8, E_IO,
              "%s: the name is too long", dir);
    if (has_momentum)
        HVT_TRY(name_side(dir, name, id, momentum));
    if (o && o->memory)
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

static hvt_status checkpoint_path(const char *path, char ret_path[PATH_MAX])
{
    struct stat info;
    bool folder = stat(path, &info) == 0 && S_ISDIR(info.st_mode);

    HVT_CHECK((size_t)snprintf(ret_path, PATH_MAX, "%s%s", path, folder ? "/last" FILE_END : "") < PATH_MAX,
              E_IO, "%s: the name is too long", path);
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
    double epoch, step, steps;

    HVT_TRY(read_number(st, "epoch", &epoch));
    HVT_TRY(read_number(st, "step", &step));
    HVT_TRY(read_number(st, "steps", &steps));
    HVT_TRY(read_number(st, "top1", &p->top1));
    HVT_CHECK(epoch >= 0 && epoch <= INT_MAX && step >= 0 && step <= UINT32_MAX && steps >= 0 &&
                  steps <= 0x1p53,
              E_FORMAT, "%s: epoch %g, step %g, steps %g are no progress of a run", hvt__st_path(st), epoch,
              step, steps);
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
    return hvt__memory_load(path, m, o->memory, weights);
}

static hvt_status load_momentum(const char *weights_path, const char *name, const char *weights, hvt_model *m,
                                hvt_optim *o)
{
    char path[PATH_MAX];
    const char *belongs;
    hvt_st *st = NULL;
    float *buf = NULL, *v;
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
    buf = largest_buffer(m);
    HVT_CHECK_OR(done, buf, E_MEM, "no memory to read %s", path);
    HVT_TRY_OR(done, hvt__optim_state(o, true, &v));
    for (int i = 0; i < m->nparam_tensors; i++) {
        char full[200];
        const hvt_st_tensor *t;
        snprintf(full, sizeof full, MOMENTUM_OF "%s", m->param[i].name);
        t = hvt__st_find(st, full);
        HVT_CHECK_OR(done, t && t->count == m->param[i].elements, E_SHAPE,
                     "%s: %s is missing or has another size", path, full);
        HVT_TRY_OR(done, hvt__st_f32(st, t, buf));
        HVT_TRY_OR(done, hvt__model_import(m, &m->param[i], v, buf));
    }
    HVT_TRY_OR(done, hvt__optim_set_fresh(o, false));
done:
    free(buf);
    hvt__st_close(&st);
    return s;
}

hvt_status hvt_checkpoint_load(const char *path, hvt_model *m, hvt_optim *o, hvt_progress *ret_progress)
{
    char file[PATH_MAX], found[17];
    const char *momentum, *memory, *weights;
    hvt_progress p = {0};
    hvt_st *st = NULL;
    uint64_t hash;
    hvt_status s;

    HVT_TRY(checkpoint_path(path, file));
    HVT_TRY(hvt__st_open(file, &st));
    HVT_TRY_OR(done, read_progress(st, &p));
    if (m) {
        HVT_TRY_OR(done, load_weights(st, m, false));
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
        if (o && o->memory && memory && *memory)
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

/* The options of a checkpoint, "--flag=value" a line, broadcast; *text is malloc'ed on every rank. */
static hvt_status share_options(const char *path, hvt_world *world, char **ret_text)
{
    hvt_progress p = {0};
    hvt_status s = HVT_OK;
    int64_t bytes = 0;
    char *text;

    if (hvt_world_rank(world) == 0) {
        s = hvt_checkpoint_load(path, NULL, NULL, &p);
        if (s)
            s = HVT_FAIL(E_IO, "--resume: %s", hvt_last_error());
        bytes = p.options ? (int64_t)strlen(p.options) : 0;
    }
    s = hvt_world_agree(world, s);
    if (s == HVT_OK)
        s = hvt_world_broadcast(world, &bytes, sizeof bytes, 0);
    text = s == HVT_OK ? calloc((size_t)bytes + 1, 1) : NULL;
    if (s == HVT_OK)
        s = hvt_world_agree(world, text ? HVT_OK : HVT_FAIL(E_MEM, "no memory for the options of %s", path));
    if (s == HVT_OK && p.options)
        memcpy(text, p.options, (size_t)bytes);
    if (s == HVT_OK && bytes)
        s = hvt_world_broadcast(world, text, (size_t)bytes, 0);
    free(p.options);
    if (s) {
        free(text);
        return s;
    }
    *ret_text = text;
    return HVT_OK;
}

hvt_status hvt_options_resume(hvt_options *opts, hvt_world *world, void **ret_memory)
{
    hvt_options filled = *opts;
    char *text = NULL, *rest = NULL;
    bool batch = false;
    hvt_status s;

    HVT_TRY(share_options(opts->resume, world, &text));
    for (int i = 0; i < HVT_OPTION_COUNT; i++) /* they are two ways to say one thing */
        batch |= opts->from[i] >= HVT_FROM_CONFIG &&
                 (!strcmp(hvt__option_flag(i), "--batch") || !strcmp(hvt__option_flag(i), "--global-batch"));
    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        char *value = strchr(line, '=');
        int i = 0;
        if (!value)
            continue;
        *value++ = 0;
        while (i < HVT_OPTION_COUNT && strcmp(hvt__option_flag(i), line))
            i++;
        if (i == HVT_OPTION_COUNT || opts->from[i] >= HVT_FROM_CONFIG ||
            hvt__option_scope(i) != HVT_SCOPE_RUN)
            continue; /* written by another version: what is not known here has its default */
        if (batch && (!strcmp(line, "--batch") || !strcmp(line, "--global-batch")))
            continue;
        s = hvt_options_set(&filled, line + 2, value);
        if (s) {
            s = HVT_FAIL(E_FORMAT, "%s was saved with an option that is not understood here: %s",
                         opts->resume, hvt_last_error());
            hvt__error_agreed(true); /* every rank read the same text */
            free(text);
            return s;
        }
        filled.from[i] = HVT_FROM_CHECKPOINT;
    }
    *opts = filled;
    *ret_memory = text;
    return HVT_OK;
}
