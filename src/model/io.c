/*
 * Parameters and running statistics in canonical order in host memory, and the placement of the arenas. Only
 * conv_permute knows the device's layout.
 */
#include "base_impl.h"
#include "layers.h"

/* Transposes each row of x [rows][a][b] to [b][a] in place, along the cycles of the permutation. */
static void transpose(float *x, size_t rows, size_t a, size_t b)
{
    const size_t n = a * b; /* <= HVT_MOST */
    uint64_t done[HVT_MOST / 64 + 1];

    for (; rows; rows--, x += n) {
        memset(done, 0, (n / 64 + 1) * sizeof *done);
        for (size_t first = 0; first < n; first++) {
            float carried = x[first];

            for (size_t i = first; !(done[i / 64] >> i % 64 & 1);) {
                size_t to = i % b * a + i / b;
                float next = x[to];

                done[i / 64] |= (uint64_t)1 << i % 64;
                x[to] = carried;
                carried = next;
                i = to;
            }
        }
    }
}

static size_t flat_rows(const hvt_param *p)
{
    return p->op ? (size_t)p->dim[0] : 1;
}

void hvt__param_to_file(const hvt_model *m, const hvt_param *p, const float *mine, float *canonical)
{
    if (p->op)
        m->dev->ops->conv.permute(p->op, true, (float *)mine, canonical); /* only read in this direction */
    else
        memcpy(canonical, mine, p->count * sizeof *mine);
    if (p->flat > 1)
        transpose(canonical, flat_rows(p), (size_t)p->flat, p->elements / flat_rows(p) / (size_t)p->flat);
}

/* Returns `canonical` in the order of p->op and the arena. If the parameter reads a flattened value, the
 * result is a copy that the caller frees; otherwise it is `canonical`. */
static float *unflattened(const hvt_param *p, const float *canonical)
{
    float *copy;

    if (p->flat <= 1)
        return (float *)canonical;
    copy = malloc(p->elements * sizeof *copy);
    if (copy) {
        memcpy(copy, canonical, p->elements * sizeof *copy);
        transpose(copy, flat_rows(p), p->elements / flat_rows(p) / (size_t)p->flat, (size_t)p->flat);
    }
    return copy;
}

/* If device memory is host memory, the permutation reads it directly. */
hvt_status hvt__model_export(hvt_model *m, const hvt_param *p, const float *arena, float *canonical)
{
    const float *from = arena + p->offset;
    float *copy = NULL;
    hvt_status s = HVT_OK;

    if (!p->op && p->flat <= 1)
        return hvt_device_download(m->dev, canonical, from, p->count * sizeof *from);
    if (!m->dev->ops->host) {
        copy = malloc(p->count * sizeof *copy);
        HVT_CHECK(copy, E_MEM, "no memory for a copy of %s (%zu floats)", p->name, p->count);
        s = hvt_device_download(m->dev, copy, from, p->count * sizeof *copy);
    }
    if (s == HVT_OK)
        hvt__param_to_file(m, p, copy ? copy : from, canonical);
    free(copy);
    return s;
}

hvt_status hvt__model_import(hvt_model *m, const hvt_param *p, float *arena, const float *canonical)
{
    float *to = arena + p->offset, *from = unflattened(p, canonical), *copy = NULL;
    hvt_status s = HVT_OK;

    HVT_CHECK(from, E_MEM, "no memory for a copy of %s (%zu floats)", p->name, p->elements);
    if (arena == m->params)
        hvt__model_changed(m);
    if (!p->op) {
        s = hvt_device_upload(m->dev, to, from, p->count * sizeof *to);
    } else if (m->dev->ops->host) {
        m->dev->ops->conv.permute(p->op, false, to, from); /* only read in this direction */
    } else {
        copy = calloc(p->count, sizeof *copy);
        HVT_CHECK_OR(done, copy, E_MEM, "no memory for a copy of %s (%zu floats)", p->name, p->count);
        m->dev->ops->conv.permute(p->op, false, copy, from);
        s = hvt_device_upload(m->dev, to, copy, p->count * sizeof *copy);
    }
done:
    if (from != canonical)
        free(from);
    free(copy);
    return s;
}

hvt_status hvt__model_place(hvt_model *m, float *grads)
{
    HVT_CHECK(m->batch, E_ARG, "call hvt_model_plan() before placing gradients");
    if (!m->grads_placed)
        m->dev->ops->memory.release(m->dev, m->grads);
    m->backward_pending = false; /* its step statistics are gone */
    m->grads_placed = grads != NULL;
    m->grads = grads;
    if (!grads)
        HVT_TRY(m->dev->ops->memory.alloc(m->dev, m->grad_count * sizeof *m->grads, (void **)&m->grads));
    return HVT_OK;
}

hvt_status hvt__model_place_params(hvt_model *m, float *params)
{
    const hvt_device_ops *ops = m->dev->ops;
    size_t bytes = m->arena_count * sizeof *m->params;
    void *own = NULL;

    HVT_CHECK(m->batch, E_ARG, "call hvt_model_plan() before placing parameters");
    if (!params) {
        HVT_TRY(ops->memory.alloc(m->dev, bytes, &own));
        HVT_TRY(ops->memory.copy(m->dev, own, m->params, bytes));
    }
    if (!m->params_placed)
        ops->memory.release(m->dev, m->params);
    m->params_placed = params != NULL;
    m->params = params ? params : own;
    hvt__model_changed(m);
    return HVT_OK;
}

size_t hvt__model_largest(const hvt_model *m)
{
    size_t most = 1;

    for (int i = 0; i < m->nparam_tensors; i++)
        most = m->param[i].elements > most ? m->param[i].elements : most;
    return most;
}

/* Hashes the tensors in the order of building, as in a state_dict. */
hvt_status hvt__model_hash_of(const hvt_model *m, hvt__tensor_fn *get, void *ctx, uint64_t *ret_hash)
{
    uint64_t h = HVT_HASH_INIT;
    const float *x;

    for (const hvt_layer *l = m->layer; l < m->layer + m->nlayer; l++) {
        for (int i = 0; i < HVT_LAYER_PARAMS && l->param[i] >= 0 && l->shares < 0; i++) {
            const hvt_param *p = &m->param[l->param[i]];
            HVT_TRY(get(ctx, p, NULL, &x));
            h = hvt__hash(hvt__hash_text(h, p->name), x, p->elements * sizeof *x);
        }
        for (int i = 0; i < 2 && l->stat >= 0; i++) {
            const hvt_stat *t = &m->stat[l->stat + i];
            HVT_TRY(get(ctx, NULL, t, &x));
            h = hvt__hash(hvt__hash_text(h, t->name), x, t->count * sizeof *x);
        }
    }
    *ret_hash = h;
    return HVT_OK;
}

typedef struct copied {
    hvt_model *m;
    float *copy; /* with room for the largest tensor */
} copied;

static hvt_status copy_tensor(void *ctx, const hvt_param *p, const hvt_stat *t, const float **ret_x)
{
    const copied *x = ctx;

    *ret_x = x->copy;
    if (p)
        return hvt__model_export(x->m, p, x->m->params, x->copy);
    return hvt_device_download(x->m->dev, x->copy, x->m->stats + t->offset, t->count * sizeof *x->copy);
}

hvt_status hvt_model_hash(hvt_model *m, uint64_t *ret_hash)
{
    HVT_GIVEN(m, "a model");
    HVT_GIVEN(ret_hash, "an output pointer for the hash");
    HVT_CHECK(m->batch, E_ARG, "call hvt_model_plan() before hvt_model_hash()");

    size_t most = hvt__model_largest(m);
    copied x = {m, malloc(most * sizeof *x.copy)};
    hvt_status s;

    HVT_CHECK(x.copy, E_MEM, "no memory for a copy of %zu floats", most);
    s = hvt__model_hash_of(m, copy_tensor, &x, ret_hash);
    free(x.copy);
    return s == HVT_OK ? s : hvt__pass(s, __FILE__, __LINE__, "hvt__model_hash_of");
}

bool hvt_model_named(const hvt_model *m, int i, hvt_named *ret_tensor)
{
    if (!m || !ret_tensor || !m->batch || i < 0 || i >= m->nparam_tensors + m->nstat)
        return false;
    if (i < m->nparam_tensors) {
        const hvt_param *p = &m->param[i];

        *ret_tensor = (hvt_named){.name = p->name, .ndim = p->ndim, .count = p->elements};
        memcpy(ret_tensor->dim, p->dim, sizeof p->dim);
    } else {
        const hvt_stat *t = &m->stat[i - m->nparam_tensors];

        *ret_tensor = (hvt_named){.name = t->name, .ndim = 1, .dim = {(int)t->count}, .count = t->count};
    }
    return true;
}

hvt_status hvt_model_alias(hvt_model *m, const char *name, const char *of)
{
    hvt_alias *list;

    HVT_GIVEN(m, "a model");
    HVT_GIVEN(name, "a second name");
    HVT_GIVEN(of, "a parameter's name");
    HVT_CHECK(!m->batch, E_ARG, "call hvt_model_alias() for %s before hvt_model_plan()", of);
    HVT_CHECK(*name && strlen(name) < HVT_NAME_MAX && strlen(of) < HVT_NAME_MAX, E_ARG,
              "'%.200s' as an alias of '%.200s': expected names of 1 to %d bytes", name, of,
              HVT_NAME_MAX - 1);
    list = realloc(m->alias, sizeof *list * ((size_t)m->naliases + 1));
    HVT_CHECK(list, E_MEM, "no memory for %d aliases", m->naliases + 1);
    m->alias = list;
    strcpy(list[m->naliases].name, name);
    strcpy(list[m->naliases++].of, of);
    return HVT_OK;
}

hvt_status hvt_model_attach(hvt_model *m, const char *name, int ndim, const int *dim, bool whole,
                            const double *values)
{
    hvt_attached *list, a = {.ndim = ndim};
    size_t count = 1;

    HVT_GIVEN(m, "a model");
    HVT_GIVEN(name, "a tensor's name");
    HVT_GIVEN(values, "an array of values");
    HVT_CHECK(!m->batch, E_ARG, "attach %s before hvt_model_plan()", name);
    HVT_CHECK(*name && strlen(name) < HVT_NAME_MAX, E_ARG,
              "cannot attach '%.200s': expected a name of 1 to %d bytes", name, HVT_NAME_MAX - 1);
    HVT_CHECK(ndim >= 0 && ndim <= 4 && (!ndim || dim), E_ARG, "%s has %d dimensions, expected 0 to 4", name,
              ndim);
    for (int i = 0; i < m->nattached; i++)
        HVT_CHECK(strcmp(m->attached[i].name, name), E_ARG, "%s is attached twice", name);
    for (int i = 0; i < ndim; i++) {
        HVT_CHECK(dim[i] > 0 && count * (size_t)dim[i] <= INT_MAX, E_ARG,
                  "dimension %d of %s is %d; expected 1 or more, and fewer than 2^31 elements in all", i,
                  name, dim[i]);
        count *= (size_t)dim[i];
        a.dim[i] = dim[i];
    }
    strcpy(a.name, name);
    a.whole = whole ? malloc(count * sizeof *a.whole) : NULL;
    a.real = whole ? NULL : malloc(count * sizeof *a.real);
    list = realloc(m->attached, sizeof *list * ((size_t)m->nattached + 1));
    m->attached = list ? list : m->attached;
    if (!list || (!a.whole && !a.real)) {
        free(a.whole);
        free(a.real);
        return HVT_FAIL(E_MEM, "no memory for %zu values of %s", count, name);
    }
    for (size_t i = 0; i < count; i++)
        if (whole)
            a.whole[i] = (int64_t)values[i];
        else
            a.real[i] = (float)values[i];
    list[m->nattached++] = a;
    return HVT_OK;
}

static int index_of(const hvt_model *m, const char *name)
{
    for (int i = 0; i < m->nparam_tensors; i++)
        if (!strcmp(m->param[i].name, name))
            return i;
    for (int i = 0; i < m->nstat; i++)
        if (!strcmp(m->stat[i].name, name))
            return m->nparam_tensors + i;
    return -1;
}

static int by_alias(const void *a, const void *b)
{
    return strcmp(((const hvt_alias *)a)->name, ((const hvt_alias *)b)->name);
}

hvt_status hvt__alias_check(hvt_model *m)
{
    if (m->naliases)
        qsort(m->alias, (size_t)m->naliases, sizeof *m->alias, by_alias);
    for (const hvt_alias *a = m->alias; a < m->alias + m->naliases; a++) {
        const int i = index_of(m, a->of);

        HVT_CHECK(i >= 0 && i < m->nparam_tensors, E_ARG, "%s is an alias of %s, which is not a parameter",
                  a->name, a->of);
        HVT_CHECK(index_of(m, a->name) < 0, E_ARG, "%s cannot be an alias of %s: it is a tensor's own name",
                  a->name, a->of);
        HVT_CHECK(a == m->alias || strcmp(a[-1].name, a->name), E_ARG, "%s is an alias of both %s and %s",
                  a->name, a[-1].of, a->of);
    }
    return HVT_OK;
}

/* ret_i: the index that hvt_model_named() takes */
static hvt_status find_named(const hvt_model *m, const char *name, size_t count, int *ret_i)
{
    hvt_named t;
    int i;

    HVT_CHECK(m->batch, E_ARG, "call hvt_model_plan() before reading or writing %s", name);
    i = index_of(m, name);
    for (const hvt_alias *a = m->alias; a < m->alias + m->naliases && i < 0; a++)
        i = strcmp(a->name, name) ? -1 : index_of(m, a->of);
    HVT_CHECK(hvt_model_named(m, i, &t), E_ARG, "the model has no parameter or running statistics named '%s'",
              name);
    HVT_CHECK(t.count == count, E_SHAPE, "%s has %zu values, not %zu", name, t.count, count);
    *ret_i = i;
    return HVT_OK;
}

hvt_status hvt_model_get(hvt_model *m, const char *name, float *ret_values, size_t count)
{
    HVT_GIVEN(m, "a model");
    HVT_GIVEN(name, "a tensor's name");
    HVT_GIVEN(ret_values, "an array of floats");

    int i = -1;

    HVT_TRY(find_named(m, name, count, &i));
    if (i < m->nparam_tensors)
        return hvt__model_export(m, &m->param[i], m->params, ret_values);
    return hvt_device_download(m->dev, ret_values, m->stats + m->stat[i - m->nparam_tensors].offset,
                               count * sizeof *ret_values);
}

hvt_status hvt_model_set(hvt_model *m, const char *name, const float *values, size_t count)
{
    HVT_GIVEN(m, "a model");
    HVT_GIVEN(name, "a tensor's name");
    HVT_GIVEN(values, "an array of floats");

    int i = -1;

    HVT_TRY(find_named(m, name, count, &i));
    if (i < m->nparam_tensors)
        return hvt__model_import(m, &m->param[i], m->params, values);
    return hvt_device_upload(m->dev, m->stats + m->stat[i - m->nparam_tensors].offset, values,
                             count * sizeof *values);
}
