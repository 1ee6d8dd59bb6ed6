/*
 * Scaled dot-product attention between the pixels (tokens) of an image. Softmax weights are not saved:
 * backward recomputes them from queries and keys.
 */
#include "base_impl.h"
#include "layers.h"

#include <math.h>

enum { MOST_SCORES = 1 << 28 }; /* scores of one image, if a table or mask has an element for each */

/* Returns the position of the first index in pixel[n] that is out of range or repeated, or n. */
static int wrong_pixel(const int *pixel, int n)
{
    bool *named = calloc((size_t)n, sizeof *named);
    int i = 0;

    while (named && i < n && pixel[i] >= 0 && pixel[i] < n && !named[pixel[i]])
        named[pixel[i++]] = true;
    free(named);
    return i;
}

/* Counting sort: the positions in `bias`, grouped by their table element. */
static void sort_places(hvt__constants *c, int elements)
{
    const int32_t *bias = c->data + c->bias;
    int32_t *first = c->data + c->first, *where = c->data + c->where;
    const size_t n = c->first - c->bias;

    memset(first, 0, (c->where - c->first) * sizeof *first);
    for (size_t i = 0; i < n; i++)
        first[bias[i] + 1]++;
    for (int e = 0; e < elements; e++)
        first[e + 1] += first[e];
    for (size_t i = 0; i < n; i++)
        where[first[bias[i]]++] = (int32_t)i;
    memmove(first + 1, first, (size_t)elements * sizeof *first);
    first[0] = 0;
}

/* Copies the caller's arrays into the layer. */
static hvt_value keep_arrays(hvt_model *m, hvt_layer *l, const hvt_attention_opts *o)
{
    const hvt_attention_args *a = &l->is.attention;
    const size_t scores = (size_t)a->queries * (size_t)a->keys;
    const size_t tokens = (size_t)a->windows * (size_t)a->queries;
    hvt__constants is = {0}, *c;

    is.bias = o->pixel ? tokens : 0;
    is.first = is.bias + (a->elements ? (size_t)a->heads * scores : 0);
    is.where = is.first + (a->elements ? (size_t)a->elements + 1 : 0);
    is.mask = is.where + (is.first - is.bias);
    is.all = is.mask + (o->mask ? (size_t)a->windows * scores : 0);
    if (!is.all)
        return 0;
    c = hvt__constants_begin(m, l, &is);
    if (!c)
        return -1;
    if (o->pixel)
        memcpy(c->data, o->pixel, tokens * sizeof *c->data);
    if (a->elements) {
        memcpy(c->data + c->bias, o->bias, (c->first - c->bias) * sizeof *c->data);
        sort_places(c, a->elements);
    }
    if (o->mask)
        memcpy(c->data + c->mask, o->mask, (c->all - c->mask) * sizeof *c->data);
    return 0;
}

/* Sets the windows, the table and the mask; l->is.attention.heads is set already. */
static hvt_value divide(hvt_model *m, hvt_layer *l, int queries, int keys, const hvt_attention_opts *o)
{
    hvt_attention_args *a = &l->is.attention;
    const int windows = o->windows > 1 ? o->windows : 1;
    int64_t elements = o->ndim > 0, scores;
    int wrong, table[3];

    HVT_EXPECT(
        m, l, queries % windows == 0 && (queries == keys || (windows == 1 && !o->pixel)),
        "%d windows of %d queries and %d keys; expected equal numbers of both, a multiple of the windows",
        windows, queries, keys);
    a->windows = windows;
    a->queries = queries / windows;
    a->keys = keys / windows;
    scores = (int64_t)a->queries * a->keys * (windows > a->heads ? windows : a->heads);
    HVT_EXPECT(m, l, (!o->ndim && !o->table && !o->mask) || scores <= MOST_SCORES,
               "%d queries and %d keys of %d windows and %d heads; expected at most %d scores", a->queries,
               a->keys, windows, a->heads, MOST_SCORES);
    HVT_EXPECT(m, l, o->ndim >= 0 && o->ndim <= 4 && ((!o->ndim && !o->table) || o->bias),
               "a bias table of %d dimensions; expected 0 to 4, and an index per score with a table",
               o->ndim);
    HVT_EXPECT(m, l, !o->table || (!o->ndim && l->nin == 4),
               "a computed bias table; expected separate queries, keys and values, and no other table");
    for (int i = 0; i < o->ndim; i++) {
        HVT_EXPECT(m, l, o->dim[i] > 0 && o->dim[i] <= HVT_MOST / elements,
                   "a bias table whose dimension %d is %d; expected at most %d elements", i, o->dim[i],
                   HVT_MOST);
        elements *= o->dim[i];
        l->dim[i] = o->dim[i];
    }
    if (o->table) {
        hvt_value_shape(m, *o->table, table);
        elements = (int64_t)table[0] * table[1] * table[2];
        HVT_EXPECT(m, l, elements <= HVT_MOST, "a bias table of %lld elements; expected at most %d",
                   (long long)elements, HVT_MOST);
    }
    l->has_parameter = o->ndim > 0;
    l->ndim = o->ndim;
    a->elements = (int)elements;
    for (int64_t i = 0, n = elements ? (int64_t)a->queries * a->keys * a->heads : 0; i < n; i++)
        HVT_EXPECT(m, l, o->bias[i] >= 0 && o->bias[i] < elements,
                   "bias index %lld is %d; the table has %d elements", (long long)i, o->bias[i], a->elements);
    for (int64_t i = 0, n = o->mask ? (int64_t)a->queries * a->keys * windows : 0; i < n; i++)
        HVT_EXPECT(m, l, isfinite(o->mask[i]), "element %lld of the mask is %g; expected a finite number",
                   (long long)i, (double)o->mask[i]);
    wrong = o->pixel ? wrong_pixel(o->pixel, queries) : queries;
    HVT_EXPECT(m, l, wrong == queries, "token %d has pixel %d; expected each of 0 to %d once", wrong,
               o->pixel[wrong], queries - 1);
    return keep_arrays(m, l, o);
}

static hvt_value attention(hvt_model *m, const hvt_value *in, int count, const hvt_attention_opts *o)
{
    hvt_layer *l = hvt__layer_begin_many(m, &hvt_layer_attention, in, count);
    const int *q, *k, *v;
    int channels;

    if (!l)
        return -1;
    HVT_EXPECT(m, l, o, "the options are NULL");
    l->whole_image = l->nin > 3;
    q = m->layer[in[0]].y.dim;
    k = m->layer[in[count > 1]].y.dim;
    v = m->layer[in[count > 1 ? 2 : 0]].y.dim;
    HVT_EXPECT(m, l, count > 1 || q[3] % 3 == 0,
               "%d channels; expected a multiple of 3 for queries, keys and values", q[3]);
    HVT_EXPECT(m, l, q[3] == k[3] && !memcmp(k + 1, v + 1, 3 * sizeof *k),
               "queries are %dx%dx%d, keys %dx%dx%d, values %dx%dx%d; expected queries and keys of the same "
               "channels, and values as large as keys",
               q[1], q[2], q[3], k[1], k[2], k[3], v[1], v[2], v[3]);
    channels = count > 1 ? q[3] : q[3] / 3;
    HVT_EXPECT(m, l, o->heads > 0 && channels % o->heads == 0, "%d channels cannot be divided into %d heads",
               channels, o->heads);
    HVT_EXPECT(m, l, isfinite(o->scale) && o->scale >= 0, "a scale of %g; expected 0 or more",
               (double)o->scale);
    l->is.attention =
        (hvt_attention_args){.heads = o->heads,
                             .width = channels / o->heads,
                             .scale = o->scale > 0 ? o->scale : 1 / sqrtf((float)channels / (float)o->heads)};
    if (divide(m, l, q[1] * q[2], k[1] * k[2], o) < 0)
        return -1;
    l->saves_input = l->saves_others = true;
    return hvt__layer_end(m, l, q[1], q[2], channels);
}

hvt_value hvt_attention_with(hvt_model *m, hvt_value q, hvt_value k, hvt_value v,
                             const hvt_attention_opts *opts)
{
    const bool table = opts && opts->table;

    return m ? attention(m, (hvt_value[]){q, k, v, table ? *opts->table : -1}, 3 + table, opts) : -1;
}

hvt_value hvt_self_attention_with(hvt_model *m, hvt_value qkv, const hvt_attention_opts *opts)
{
    return m ? attention(m, &qkv, 1, opts) : -1;
}

hvt_value hvt_attention(hvt_model *m, hvt_value q, hvt_value k, hvt_value v, int heads, float scale)
{
    return hvt_attention_with(m, q, k, v, &(hvt_attention_opts){.heads = heads, .scale = scale});
}

hvt_value hvt_self_attention(hvt_model *m, hvt_value qkv, int heads, float scale)
{
    return hvt_self_attention_with(m, qkv, &(hvt_attention_opts){.heads = heads, .scale = scale});
}

/* True if q, k and v are columns of one input. */
static bool is_packed(const hvt_layer *l)
{
    return l->in[1] < 0;
}

/* True if the table is one of the inputs. */
static bool has_table(const hvt_layer *l)
{
    return l->nin == 4 && !is_packed(l);
}

/* Returns the bytes of the table in f32 and of its gradient, at the end of the workspace. */
static size_t tables(const hvt_layer *l)
{
    return 2 * (size_t)l->is.attention.elements * sizeof(float);
}

static float *table_in_workspace(const hvt_model *m, const hvt_layer *l)
{
    return (float *)(void *)((char *)m->ws + l->ws_bytes - tables(l));
}

/* Uploads the layer's arrays. */
static hvt_status put_arrays(hvt_model *m, hvt_layer *l)
{
    const hvt__constants *c = l->constants;
    hvt_attention_args *a = &l->is.attention;
    const int32_t *data;

    HVT_TRY(hvt__constants_put(m, l));
    data = l->constants_there;
    a->pixel = c->bias > c->pixel ? data + c->pixel : NULL;
    a->bias = data + c->bias;
    a->first = data + c->first;
    a->where = data + c->where;
    a->mask = c->all > c->mask ? (const float *)(const void *)(data + c->mask) : NULL;
    return HVT_OK;
}

static hvt_status attention_plan(hvt_model *m, hvt_layer *l)
{
    hvt_attention_args *k = &l->is.attention;
    const int channels = l->y.dim[3];

    HVT__COMPUTES(m, l, general.attention_forward);
    k->order = m->order;
    k->type = l->y.dtype;
    k->n = m->batch;
    k->q.pitch = k->k.pitch = k->v.pitch = is_packed(l) ? 3 * channels : channels;
    if (l->constants)
        HVT_TRY(put_arrays(m, l));
    if (l->has_parameter) {
        hvt_param p = {.ndim = l->ndim,
                       .count = (size_t)k->elements,
                       .role = HVT_ROLE_NORM,
                       .init = HVT_INIT_NORMAL,
                       .init_arg = 0.02f};

        memcpy(p.dim, l->dim, sizeof p.dim);
        HVT_TRY(hvt__param_add(m, l, 0, &p, NULL));
    }
    l->ws_bytes = m->dev->ops->general.attention_room(m->dev, k);
    if (has_table(l))
        l->ws_bytes = (l->ws_bytes + 63) / 64 * 64 + tables(l);
    return HVT_OK;
}

/* Returns where q, k or v (i = 0, 1, 2) begins in `data`, its input's values or gradients; NULL if data is
 * NULL. */
static void *part(const hvt_layer *l, int i, void *data)
{
    const size_t first = is_packed(l) ? (size_t)i * (size_t)l->y.dim[3] : 0;

    return data ? (char *)data + first * hvt_dtype_size(l->y.dtype) : NULL;
}

static hvt_attention_args arguments(hvt_model *m, const hvt_layer *l)
{
    hvt_attention_args a = l->is.attention;
    const void **const x[3] = {&a.q.x, &a.k.x, &a.v.x};

    a.real = m->real;
    a.ws = m->ws;
    a.table = l->has_parameter ? hvt__weight(m, l, 0) : NULL;
    for (int i = 0; i < 3; i++)
        *x[i] = part(l, i, hvt__in(m, l, is_packed(l) ? 0 : i)->y.data);
    return a;
}

/* Converts the table to f32. It is the same for all images, so the first image's is read. */
static hvt_status read_table(hvt_model *m, const hvt_layer *l, hvt_attention_args *a)
{
    float *table;

    if (!has_table(l))
        return HVT_OK;
    table = table_in_workspace(m, l);
    a->table = table;
    return m->dev->ops->vector.cast(m->dev, (size_t)a->elements, 1, hvt__in(m, l, 3)->y.data, a->type, table,
                                    HVT_F32);
}

/* Writes the table's gradient into the first image's; the gradients of other images are 0. */
static hvt_status give_table(hvt_model *m, const hvt_layer *l, const float *dtable)
{
    const hvt_layer *in = hvt__in(m, l, 3);
    const size_t n = (size_t)l->is.attention.elements;
    void *rounded = table_in_workspace(m, l); /* overwrites the table */

    if (!l->add[3])
        HVT_TRY(m->dev->ops->memory.zero(m->dev, in->dy.data, hvt__bytes(in)));
    HVT_TRY(m->dev->ops->vector.cast(m->dev, n, 1, dtable, HVT_F32, rounded, in->dy.dtype));
    return m->dev->ops->vector.add(m->dev, n, in->dy.dtype, in->dy.data, rounded, in->dy.data);
}

static hvt_status attention_forward(hvt_model *m, hvt_layer *l)
{
    hvt_attention_args a = arguments(m, l);

    HVT_TRY(read_table(m, l, &a));
    a.y = l->y.data;
    return m->dev->ops->general.attention_forward(m->dev, &a);
}

/* If two of q, k and v are one value, one pass per input adds each gradient to the one before. */
static hvt_status attention_backward(hvt_model *m, hvt_layer *l)
{
    const bool packed = is_packed(l),
               twice = !packed && (l->in[0] == l->in[1] || l->in[0] == l->in[2] || l->in[1] == l->in[2]);
    hvt_attention_args a = arguments(m, l);
    void **const dx[3] = {&a.q.dx, &a.k.dx, &a.v.dx};
    bool *const add[3] = {&a.q.add, &a.k.add, &a.v.add};
    float *dtable = NULL;

    a.dy = l->dy.data;
    HVT_TRY(read_table(m, l, &a));
    if (has_table(l) && hvt__in(m, l, 3)->dy.data)
        dtable = table_in_workspace(m, l) + a.elements;
    a.dtable = dtable ? dtable : l->has_parameter && !hvt__is_frozen(m, l, 0) ? hvt__grad(m, l, 0) : NULL;
    for (int i = 0; i < 3; i++) {
        *dx[i] = part(l, i, hvt__in(m, l, packed ? 0 : i)->dy.data);
        *add[i] = l->add[packed ? 0 : i];
        if (twice) {
            HVT_TRY(m->dev->ops->general.attention_backward(m->dev, &a));
            *dx[i] = NULL;
            a.dtable = NULL;
        }
    }
    if (!twice)
        HVT_TRY(m->dev->ops->general.attention_backward(m->dev, &a));
    return dtable ? give_table(m, l, dtable) : HVT_OK;
}

static uint64_t attention_hash(const hvt_model *m, const hvt_layer *l, uint64_t h)
{
    const hvt_attention_args *a = &l->is.attention;

    return HVT__HASH(h, a->heads, a->scale, a->windows, a->elements);
}

const hvt_layer_ops hvt_layer_attention = {"attention", attention_plan, attention_forward, attention_backward,
                                           .hash = attention_hash};
