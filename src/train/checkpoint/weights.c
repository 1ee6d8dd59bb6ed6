/*
 * A model's tensors in a file, by name and in canonical layout: an optimizer's state; or the parameters, the
 * running statistics, and num_batches_tracked of each batch norm, as in torchvision's state_dict(). All
 * tensors are compared with the model before any is loaded, so a file that does not fit leaves the model
 * unchanged.
 */
#include "snapshot.h"
#include "base_impl.h"

#include <inttypes.h>
#include <math.h>

#define STATE_OF "optim.%s."

/* item.id: a parameter's index, in state k plus k * nparam_tensors; or one of these plus the index of a
 * running statistic or an attached tensor */
enum { ID_STAT = 1 << 20, ID_TRACKED = 1 << 21, ID_ATTACHED = 1 << 22 };

/* Lists parameter i under a name. */
static void list_param(const hvt_model *m, int i, const char *prefix, const char *name, int id,
                       hvt_st_item *t)
{
    const hvt_param *p = &m->param[i];

    *t = (hvt_st_item){.type = HVT_ST_F32, .ndim = p->ndim, .id = id + i};
    snprintf(t->name, sizeof t->name, "%s%s", prefix, name);
    for (int d = 0; d < p->ndim; d++)
        t->dim[d] = p->dim[d];
}

/* Lists the parameters [0, n), last first, with this prefix; returns the end of the list. */
static hvt_st_item *list_params(const hvt_model *m, int n, const char *prefix, int id, hvt_st_item *t)
{
    for (int i = n - 1; i >= 0; i--)
        list_param(m, i, prefix, m->param[i].name, id, t++);
    return t;
}

static hvt_st_item *list_aliases(const hvt_model *m, hvt_st_item *t)
{
    for (const hvt_alias *a = m->alias; a < m->alias + m->naliases; a++)
        for (int i = 0; i < m->nparam_tensors; i++)
            if (!strcmp(m->param[i].name, a->of)) {
                list_param(m, i, "", a->name, 0, t);
                t++->second = true;
            }
    return t;
}

static hvt_st_item *list_attached(const hvt_model *m, hvt_st_item *t)
{
    for (int i = 0; i < m->nattached; i++, t++) {
        const hvt_attached *a = &m->attached[i];

        *t = (hvt_st_item){.type = a->whole ? HVT_ST_I64 : HVT_ST_F32,
                           .ndim = a->ndim,
                           .id = ID_ATTACHED + i,
                           .fixed = true};
        snprintf(t->name, sizeof t->name, "%s", a->name);
        for (int d = 0; d < a->ndim; d++)
            t->dim[d] = a->dim[d];
    }
    return t;
}

static const void *attached(const hvt_model *m, const hvt_st_item *item)
{
    const hvt_attached *a = &m->attached[item->id - ID_ATTACHED];

    return a->whole ? (const void *)a->whole : a->real;
}

/* Lists the tensors of an optimizer's state, malloc'ed; frozen parameters have none. */
static hvt_status list_state(const hvt_model *m, const hvt__optim_rule *rule, int states,
                             hvt_st_item **ret_items, int *ret_n)
{
    int most = states * m->ntrained;
    hvt_st_item *items = calloc((size_t)most + 1, sizeof *items), *t = items;
    char prefix[64];

    HVT_CHECK(items, E_MEM, "no memory to list %d tensors", most);
    for (int k = 0; k < states; k++) {
        snprintf(prefix, sizeof prefix, STATE_OF, rule->state[k]);
        t = list_params(m, m->ntrained, prefix, k * m->nparam_tensors, t);
    }
    *ret_items = items;
    *ret_n = (int)(t - items);
    return HVT_OK;
}

/* Lists the tensors of a state_dict, malloc'ed; parameters are in forward order, so that messages name the
 * first layers first. */
static hvt_status list_tensors(const hvt_model *m, hvt_st_item **ret_items, int *ret_n)
{
    int most = m->nparam_tensors + 2 * m->nstat + m->naliases + m->nattached;
    hvt_st_item *items = calloc((size_t)most + 1, sizeof *items), *t = items;

    HVT_CHECK(items, E_MEM, "no memory to list %d tensors", most);
    t = list_params(m, m->nparam_tensors, "", 0, t);
    for (int i = 0; i < m->nstat; i++) {
        const char *name = m->stat[i].name, *dot = strrchr(name, '.');
        *t = (hvt_st_item){
            .type = HVT_ST_F32, .ndim = 1, .dim = {(int64_t)m->stat[i].count}, .id = ID_STAT + i};
        snprintf(t->name, sizeof t->name, "%s", name);
        t++;
        if (strcmp(dot, ".running_mean"))
            continue;
        *t = (hvt_st_item){.type = HVT_ST_I64, .id = ID_TRACKED + i};
        snprintf(t->name, sizeof t->name, "%.*s.num_batches_tracked", (int)(dot - name), name);
        t++;
    }
    t = list_attached(m, list_aliases(m, t));
    *ret_items = items;
    *ret_n = (int)(t - items);
    return HVT_OK;
}

hvt_status hvt__weights_bytes(const hvt_model *m, const hvt__optim_rule *rule, int states,
                              uint64_t *ret_bytes)
{
    hvt_st_item *items;
    uint64_t bytes = 0;
    int n;

    HVT_TRY(rule ? list_state(m, rule, states, &items, &n) : list_tensors(m, &items, &n));
    for (const hvt_st_item *t = items; t < items + n; t++) {
        uint64_t count = 1;

        for (int d = 0; d < t->ndim; d++)
            count *= (uint64_t)t->dim[d];
        bytes += count * (t->type == HVT_ST_I64 ? sizeof(int64_t) : sizeof(float));
    }
    free(items);
    *ret_bytes = bytes;
    return HVT_OK;
}

/* Differences of one kind between a file and a model, for one line. */
typedef struct misfit {
    int n;
    char names[1300];
} misfit;

static void misfit_add(misfit *f, const char *name)
{
    size_t used = strlen(f->names);

    if (f->n < 4)
        snprintf(f->names + used, sizeof f->names - used, "%s%s", f->n ? ", " : "", f->n < 3 ? name : "...");
    f->n++;
}

static bool same_shape(const hvt_st_item *want, const hvt_st_tensor *t)
{
    return want->ndim == t->ndim && !memcmp(want->dim, t->dim, (size_t)t->ndim * sizeof *t->dim);
}

/* "[64, 3, 7, 7]" */
static const char *shape_text(const int64_t *dim, int ndim, char ret_text[100])
{
    size_t n = (size_t)snprintf(ret_text, 100, "[");

    for (int i = 0; i < ndim && n < 100; i++)
        n += (size_t)snprintf(ret_text + n, 100 - n, "%s%" PRId64, i ? ", " : "", dim[i]);
    if (n < 100)
        snprintf(ret_text + n, 100 - n, "]");
    return ret_text;
}

/* Prefixes that DataParallel and DistributedDataParallel, torch.compile, and both add to names */
static const char *const wrappers[] = {"", "module.", "_orig_mod.", "module._orig_mod.", "_orig_mod.module."};

const hvt_st_tensor *hvt__weights_tensor(const hvt_st *st, const char *name)
{
    char long_name[300];
    const hvt_st_tensor *t = NULL;

    for (size_t k = 0; k < HVT_LEN(wrappers) && !t; k++) {
        snprintf(long_name, sizeof long_name, "%s%s", wrappers[k], name);
        t = hvt__st_find(st, long_name);
    }
    return t;
}

/* The tensor of this name or, if it is missing, of the parameter's other name. */
static const hvt_st_tensor *find_either(const hvt_st *st, const hvt_model *m, const char *name)
{
    const hvt_st_tensor *t = hvt__weights_tensor(st, name);

    for (const hvt_alias *a = m->alias; a < m->alias + m->naliases && !t; a++)
        t = strcmp(a->of, name) ? NULL : hvt__weights_tensor(st, a->name);
    return t;
}

static bool is_item(const hvt_st_item *items, int n, const char *name)
{
    for (size_t k = 0; k < HVT_LEN(wrappers); k++) {
        size_t len = strlen(wrappers[k]);

        for (int i = 0; i < n && !strncmp(name, wrappers[k], len); i++)
            if (!strcmp(items[i].name, name + len))
                return true;
    }
    return false;
}

/* True if the tensor belongs to the last layer. */
static bool is_head(const hvt_model *m, const char *name)
{
    const char *head = m->layer[m->logits].name;
    size_t len = strlen(head);

    return !strncmp(name, head, len) && name[len] == '.';
}

/* The permitted differences between a file and the requested tensors. */
typedef struct lenience {
    bool skip_head;  /* the head may be missing, and is not loaded */
    bool less, more; /* optimizer state of a run that froze other parameters */
} lenience;

static hvt_status compare(const hvt_st *st, const hvt_model *m, lenience may, const hvt_st_item *items, int n)
{
    misfit missing = {0}, unknown = {0}, shape = {0}, type = {0};
    bool head_only = true;
    const char *advice;

    for (int i = 0; i < n; i++) {
        const char *name = items[i].name;
        const hvt_st_tensor *t = find_either(st, m, name);
        bool head = is_head(m, items[i].second ? m->param[items[i].id].name : name),
             counts = items[i].type == HVT_ST_I64;
        char has[100], wants[100], line[400];
        if ((head && may.skip_head) || items[i].id >= ID_ATTACHED)
            continue;
        if (!t && (may.less || items[i].second))
            continue;
        if (!t && counts) /* files from before PyTorch 0.4.1 lack the counters */
            continue;
        if (!t) {
            misfit_add(&missing, name);
        } else if (!same_shape(&items[i], t)) {
            snprintf(line, sizeof line, "%s is %s, the model's is %s", name, shape_text(t->dim, t->ndim, has),
                     shape_text(items[i].dim, items[i].ndim, wants));
            misfit_add(&shape, line);
        } else if (t->type == HVT_ST_OTHER || (t->type == HVT_ST_I64) != counts) {
            snprintf(line, sizeof line, "%s is %s, expected %s", name, t->type_name,
                     counts ? "I64" : "F32, F16 or BF16");
            misfit_add(&type, line);
        } else {
            continue;
        }
        head_only = head_only && head && !type.n;
    }
    for (int i = 0; i < st->n && !may.more; i++)
        if (!is_item(items, n, st->tensor[i].name)) {
            misfit_add(&unknown, st->tensor[i].name);
            head_only = false;
        }
    if (!missing.n && !unknown.n && !shape.n && !type.n)
        return HVT_OK;
    advice = head_only && !may.skip_head ? " (--init with --reset-head reinitialises the head)" : "";
    if (shape.n)
        return HVT_FAIL(
            E_SHAPE, "%s does not fit the model: %d shapes differ (%s), %d tensors are missing, %d unknown%s",
            st->path, shape.n, shape.names, missing.n, unknown.n, advice);
    if (type.n)
        return HVT_FAIL(E_FORMAT, "%s: %d tensors have another type (%s)", st->path, type.n, type.names);
    if (may.more)
        advice = "; they cannot start to train in the middle of a run: give --freeze as before, or use "
                 "--init instead of --resume";
    return HVT_FAIL(E_SHAPE, "%s does not fit the model: %d tensors are missing%s%s%s, %d unknown%s%s%s%s",
                    st->path, missing.n, missing.n ? " (" : "", missing.names, missing.n ? ")" : "",
                    unknown.n, unknown.n ? " (" : "", unknown.names, unknown.n ? ")" : "", advice);
}

static bool is_state(const hvt_optim *o, const char *name)
{
    char prefix[64];

    for (int k = 0; k < o->states; k++) {
        snprintf(prefix, sizeof prefix, STATE_OF, o->rule->state[k]);
        if (!strncmp(name, prefix, strlen(prefix)))
            return true;
    }
    return false;
}

/* Refuses a file that is no optimizer state: state that it lacks would become 0. */
static hvt_status check_state(const hvt_st *st, const hvt_optim *o)
{
    for (int i = 0; i < st->n; i++)
        HVT_CHECK(is_state(o, st->tensor[i].name), E_FORMAT,
                  "%s holds %.100s, expected only the %s of parameters", st->path, st->tensor[i].name,
                  o->rule->file);
    return HVT_OK;
}

/* The loading of a file, which is read once. */
typedef struct loading {
    hvt_st *st;
    hvt_model *m;
    float *buf; /* for the largest tensor, if it has another type */
} loading;

static hvt_status load_item(const loading *from, const hvt_st_item *item, const hvt_st_tensor *t)
{
    hvt_model *m = from->m;
    const float *x;

    if (item->id >= ID_TRACKED)
        return hvt__st_i64(from->st, t, &m->tracked);
    HVT_TRY(hvt__st_floats(from->st, t, from->buf, &x));
    if (item->id >= ID_STAT) {
        const hvt_stat *stat = &m->stat[item->id - ID_STAT];
        return hvt_device_upload(m->dev, m->stats + stat->offset, x, stat->count * sizeof *x);
    }
    return hvt__model_import(m, &m->param[item->id], m->params, x);
}

/* Loads one tensor into the arena of its state; 0 if the tensor is missing. */
static hvt_status load_state(const loading *from, float *arenas, const hvt_st_item *item,
                             const hvt_st_tensor *t)
{
    hvt_model *m = from->m;
    int k = item->id / m->nparam_tensors;
    const hvt_param *p = &m->param[item->id % m->nparam_tensors];
    const float *x = from->buf;

    if (t)
        HVT_TRY(hvt__st_floats(from->st, t, from->buf, &x));
    else
        memset(from->buf, 0, p->elements * sizeof *from->buf);
    return hvt__model_import(m, p, arenas + (size_t)k * m->grad_count, x);
}

static hvt_status get_tensor(void *ctx, const hvt_param *p, const hvt_stat *stat, const float **ret_x)
{
    const loading *from = ctx;

    return hvt__st_floats(from->st, find_either(from->st, from->m, p ? p->name : stat->name), from->buf,
                          ret_x);
}

/* Checks the weights' hash against the metadata. */
static hvt_status check_weights(loading *from, const char *weights)
{
    uint64_t hash;

    HVT_TRY(hvt__model_hash_of(from->m, get_tensor, from, &hash));
    HVT_CHECK(strtoull(weights, NULL, 16) == hash, E_FORMAT,
              "%s: damaged: its weights hash to %016" PRIx64 ", its metadata says %.20s", from->st->path,
              hash, *weights ? weights : "nothing");
    return HVT_OK;
}

/* Refuses weights that are not finite: a run with them would blame its learning rate. */
static hvt_status check_finite(const loading *from, const hvt_st_tensor *t)
{
    const float *x;

    if (t->type == HVT_ST_I64)
        return HVT_OK;
    HVT_TRY(hvt__st_floats(from->st, t, from->buf, &x));
    for (size_t i = 0; i < t->count; i++)
        HVT_CHECK(isfinite(x[i]), E_FORMAT, "%s: %s holds %g, expected finite numbers", from->st->path,
                  t->name, isnan(x[i]) ? (double)NAN : (double)x[i]);
    return HVT_OK;
}

hvt_status hvt__weights_load(hvt_st *st, hvt_model *m, bool skip_head, const char *weights)
{
    loading from = {st, m, malloc(hvt__model_largest(m) * sizeof *from.buf)};
    hvt_st_item *items = NULL;
    void *data = NULL;
    int n = 0;
    hvt_status s;

    HVT_CHECK_OR(done, from.buf, E_MEM, "no memory to read %s", st->path);
    HVT_TRY_OR(done, list_tensors(m, &items, &n));
    HVT_TRY_OR(done, compare(st, m, (lenience){.skip_head = skip_head}, items, n));
    HVT_TRY_OR(done, m->dev->ops->memory.alloc_host(m->dev, st->bytes + 1, &data));
    HVT_TRY_OR(done, hvt__st_read(st, data));
    if (weights)
        HVT_TRY_OR(done, check_weights(&from, weights));
    for (int i = 0; i < 2 * n; i++) { /* checks all, then loads all */
        const hvt_st_item *item = &items[i % n];
        const hvt_st_tensor *t = find_either(st, m, item->name);
        if (!t || item->second || item->id >= ID_ATTACHED || (skip_head && is_head(m, item->name)))
            continue;
        HVT_TRY_OR(done, i < n ? check_finite(&from, t) : load_item(&from, item, t));
    }
    hvt__model_changed(m);
done:
    st->content = NULL;
    m->dev->ops->memory.release_host(m->dev, data);
    free(items);
    free(from.buf);
    return s;
}

hvt_status hvt__state_load(hvt_st *st, hvt_optim *o)
{
    hvt_model *m = o->m;
    loading from = {st, m, malloc(hvt__model_largest(m) * sizeof *from.buf)};
    hvt_st_item *items = NULL;
    void *data = NULL;
    float *arenas;
    int n = 0;
    hvt_status s;

    HVT_CHECK_OR(done, from.buf, E_MEM, "no memory to read %s", st->path);
    HVT_TRY_OR(done, list_state(m, o->rule, o->states, &items, &n));
    HVT_TRY_OR(done, compare(st, m, (lenience){.less = o->rule->begins_at_any_time, .more = true}, items, n));
    HVT_TRY_OR(done, check_state(st, o));
    HVT_TRY_OR(done, m->dev->ops->memory.alloc_host(m->dev, st->bytes + 1, &data));
    HVT_TRY_OR(done, hvt__st_read(st, data));
    HVT_TRY_OR(done, hvt__optim_state(o, true, &arenas));
    for (int i = 0; i < n; i++)
        HVT_TRY_OR(done, load_state(&from, arenas, &items[i], hvt__weights_tensor(st, items[i].name)));
done:
    st->content = NULL;
    m->dev->ops->memory.release_host(m->dev, data);
    free(items);
    free(from.buf);
    return s;
}

static hvt_status fetch(void *ctx, const hvt_st_item *item, const void **ret_data)
{
    const hvt__snapshot *of = ctx;

    if (item->id >= ID_ATTACHED)
        *ret_data = attached(of->m, item);
    else if (item->id >= ID_TRACKED)
        *ret_data = of->average ? &of->step.ema_tracked : &of->tracked;
    else if (item->id >= ID_STAT)
        *ret_data = hvt__snapshot_stat(of, &of->m->stat[item->id - ID_STAT]);
    else
        *ret_data = hvt__snapshot_weight(of, &of->m->param[item->id]);
    return HVT_OK;
}

static hvt_status fetch_raw(void *ctx, const hvt_st_item *item, const void **ret_data)
{
    const hvt__snapshot *of = ctx;

    if (item->id >= ID_ATTACHED)
        *ret_data = attached(of->m, item);
    else if (item->id >= ID_TRACKED)
        *ret_data = &of->tracked;
    else if (item->id >= ID_STAT)
        *ret_data = of->stats + of->m->stat[item->id - ID_STAT].offset;
    else
        *ret_data = of->params + of->m->param[item->id].offset;
    return HVT_OK;
}

static hvt_status fetch_state(void *ctx, const hvt_st_item *item, const void **ret_data)
{
    const hvt__snapshot *of = ctx;
    const hvt_model *m = of->m;
    int k = item->id / m->nparam_tensors, i = item->id % m->nparam_tensors;

    *ret_data = hvt__snapshot_tensor(of, of->state + (size_t)k * m->grad_count, &m->param[i]);
    return HVT_OK;
}

hvt_status hvt__weights_save(const char *path, const hvt__snapshot *of, hvt__save what, const json_t *meta)
{
    static hvt_st_fetch *const fetches[] = {
        [HVT__SAVE_WEIGHTS] = fetch, [HVT__SAVE_RAW] = fetch_raw, [HVT__SAVE_STATE] = fetch_state};
    hvt_st_item *items;
    int n;
    hvt_status s;

    if (what == HVT__SAVE_STATE)
        HVT_TRY(list_state(of->m, of->rule, of->states, &items, &n));
    else
        HVT_TRY(list_tensors(of->m, &items, &n));
    s = hvt__st_write(path, items, n, meta, fetches[what], (void *)(uintptr_t)of);
    free(items);
    return s;
}
