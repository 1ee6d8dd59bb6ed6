/*
 * Attention: what a pixel, or token, reads of all others depends on their likeness. Softmax's weights are not
 * kept for backward, which computes them anew from queries and keys.
 */
#include "base_impl.h"
#include "layers.h"

#include <math.h>

static hvt_value attention(hvt_model *m, const hvt_value *in, int count, int heads, float scale)
{
    hvt_layer *l = hvt__layer_begin_many(m, &hvt_layer_attention, in, count);
    const int *q, *k, *v;
    int channels;

    if (!l)
        return -1;
    q = m->layer[in[0]].y.dim;
    k = m->layer[in[count > 1]].y.dim;
    v = m->layer[in[count - 1]].y.dim;
    HVT_EXPECT(m, l, count > 1 || q[3] % 3 == 0,
               "%d channels; expected three times as many as its output has", q[3]);
    HVT_EXPECT(
        m, l, q[3] == k[3] && !memcmp(k + 1, v + 1, 3 * sizeof *k),
        "queries are %dx%dx%d, keys %dx%dx%d, values %dx%dx%d; expected one number of channels, and as "
        "many values as keys",
        q[1], q[2], q[3], k[1], k[2], k[3], v[1], v[2], v[3]);
    channels = count > 1 ? q[3] : q[3] / 3;
    HVT_EXPECT(m, l, heads > 0 && channels % heads == 0, "%d channels in %d heads", channels, heads);
    HVT_EXPECT(m, l, isfinite(scale) && scale >= 0, "a scale of %g; expected 0 or more", (double)scale);
    l->is.attention =
        (hvt_attention_args){.heads = heads,
                             .width = channels / heads,
                             .scale = scale > 0 ? scale : 1 / sqrtf((float)channels / (float)heads)};
    l->saves_input = l->saves_others = true;
    return hvt__layer_end(m, l, q[1], q[2], channels);
}

hvt_value hvt_attention(hvt_model *m, hvt_value q, hvt_value k, hvt_value v, int heads, float scale)
{
    return m ? attention(m, (hvt_value[]){q, k, v}, 3, heads, scale) : -1;
}

hvt_value hvt_self_attention(hvt_model *m, hvt_value qkv, int heads, float scale)
{
    return m ? attention(m, &qkv, 1, heads, scale) : -1;
}

/* q, k and v are columns of one input. */
static bool is_packed(const hvt_layer *l)
{
    return l->in[1] < 0;
}

static hvt_status attention_plan(hvt_model *m, hvt_layer *l)
{
    hvt_attention_args *k = &l->is.attention;
    const int channels = l->y.dim[3];

    HVT__COMPUTES(m, l, general.attention_forward);
    k->order = m->order;
    k->type = l->y.dtype;
    k->n = m->batch;
    k->queries = hvt__pixels(l);
    k->keys = hvt__pixels(hvt__in(m, l, is_packed(l) ? 0 : 1));
    k->q.pitch = k->k.pitch = k->v.pitch = is_packed(l) ? 3 * channels : channels;
    l->ws_bytes = m->dev->ops->general.attention_room(m->dev, k);
    return HVT_OK;
}

/* The part of q, k or v of its input's values, or of their gradients; NULL: there are none. */
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
    for (int i = 0; i < 3; i++)
        *x[i] = part(l, i, hvt__in(m, l, is_packed(l) ? 0 : i)->y.data);
    return a;
}

static hvt_status attention_forward(hvt_model *m, hvt_layer *l)
{
    hvt_attention_args a = arguments(m, l);

    a.y = l->y.data;
    return m->dev->ops->general.attention_forward(m->dev, &a);
}

/* Where one value is two of the inputs, the second gradient is added to the first. */
static hvt_status attention_backward(hvt_model *m, hvt_layer *l)
{
    const bool packed = is_packed(l),
               twice = !packed && (l->in[0] == l->in[1] || l->in[0] == l->in[2] || l->in[1] == l->in[2]);
    hvt_attention_args a = arguments(m, l);
    void **const dx[3] = {&a.q.dx, &a.k.dx, &a.v.dx};
    bool *const add[3] = {&a.q.add, &a.k.add, &a.v.add};

    a.dy = l->dy.data;
    for (int i = 0; i < 3; i++) {
        *dx[i] = part(l, i, hvt__in(m, l, packed ? 0 : i)->dy.data);
        *add[i] = l->add[packed ? 0 : i];
        if (twice) {
            HVT_TRY(m->dev->ops->general.attention_backward(m->dev, &a));
            *dx[i] = NULL;
        }
    }
    return twice ? HVT_OK : m->dev->ops->general.attention_backward(m->dev, &a);
}

const hvt_layer_ops hvt_layer_attention = {"attention", attention_plan, attention_forward,
                                           attention_backward};
