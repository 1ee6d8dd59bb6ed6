/*
 * A model's tensors in a file, by name and in canonical layout: the parameters, the running statistics, and
 * for each batch norm num_batches_tracked, as in torchvision's state_dict(). All tensors are compared with
 * the model before the first one is loaded, so a file that does not fit leaves the model unchanged.
 */
#include "weights.h"
#include "base_impl.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FILE_END     ".safetensors"
#define MOMENTUM_OF  "optim.momentum_buffer."
#define RUNNING_MEAN ".running_mean"

/* ---- the model's tensors as a list ---- */

enum { ID_STAT = 1 << 20, ID_TRACKED = 1 << 21 }; /* item.id: a parameter's index, or these plus a stat's */

static bool ends_with(const char *text, const char *end)
{
    size_t n = strlen(text), k = strlen(end);

    return n >= k && !strcmp(text + n - k, end);
}

/* The tensors of a state_dict, malloc'ed; parameters are in forward order, so that messages name the first
 * layers first. */
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

/* Differences of one kind between a file and a model, for one line. */
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

/* DataParallel and DistributedDataParallel add the prefix "module." */
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

/* Does the tensor belong to the last layer? */
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
    advice = head_only && !skip_head ? " (--init with --reset-head starts the head anew)" : "";
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

hvt_status hvt__weights_load(hvt_st *st, hvt_model *m, bool skip_head)
{
    hvt_st_item *items = NULL;
    float *buf = malloc(hvt__model_largest(m) * sizeof *buf);
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

hvt_status hvt__weights_file(const char *path, char *ret_path, size_t bytes)
{
    struct stat info;
    bool folder = stat(path, &info) == 0 && S_ISDIR(info.st_mode);
    char best[PATH_MAX];

    HVT_CHECK((size_t)snprintf(ret_path, bytes, "%s%s", path, folder ? "/last" FILE_END : "") < bytes, E_IO,
              "%s: the name is too long", path);
    if (folder && access(ret_path, F_OK)) { /* if there is neither, messages name `last` */
        snprintf(best, sizeof best, "%s/best" FILE_END, path);
        if (access(best, F_OK) == 0)
            snprintf(ret_path, bytes, "%s", best);
    }
    return HVT_OK;
}

hvt_status hvt_weights_load(const char *file, hvt_model *m, bool skip_head)
{
    HVT_GIVEN(file, "a file");
    HVT_GIVEN(m, "a model");

    char path[PATH_MAX];
    hvt_st *st = NULL;
    hvt_status s;

    HVT_TRY(hvt__weights_file(file, path, sizeof path));
    HVT_TRY(hvt__st_open(path, &st));
    s = hvt__weights_load(st, m, skip_head);
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

hvt_status hvt__weights_save(const char *path, hvt_model *m, const json_t *meta)
{
    source from = {m, m->params};
    hvt_st_item *items;
    int n;
    hvt_status s;

    HVT_TRY(list_tensors(m, &items, &n));
    s = hvt__st_write(path, items, n, meta, fetch, &from);
    free(items);
    return s;
}

/* ---- momentum: an arena like that of the parameters ---- */

hvt_status hvt__momentum_save(const char *path, hvt_model *m, const float *v, const json_t *meta)
{
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
    s = hvt__st_write(path, items, kept, meta, fetch, &from);
    free(items);
    return s;
}

hvt_status hvt__momentum_load(hvt_st *st, hvt_model *m, float *v)
{
    float *buf = malloc(hvt__model_largest(m) * sizeof *buf);
    hvt_status s = HVT_OK;

    HVT_CHECK(buf, E_MEM, "no memory to read %s", hvt__st_path(st));
    for (int i = 0; i < m->nparam_tensors; i++) {
        char full[200];
        const hvt_st_tensor *t;
        snprintf(full, sizeof full, MOMENTUM_OF "%s", m->param[i].name);
        t = hvt__st_find(st, full);
        HVT_CHECK_OR(done, t && t->count == m->param[i].elements, E_SHAPE,
                     "%s: %s is missing or has another size", hvt__st_path(st), full);
        HVT_TRY_OR(done, hvt__st_f32(st, t, buf));
        HVT_TRY_OR(done, hvt__model_import(m, &m->param[i], v, buf));
    }
done:
    free(buf);
    return s;
}
