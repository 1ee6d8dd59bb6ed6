/*
 * Dropout and stochastic depth. Backward draws the mask again: hashing an element's index is cheaper than
 * reading a saved mask. hvt_dropout() documents the keys.
 */
#include "base_impl.h"
#include "layers.h"

#include <math.h>

static hvt_value append(hvt_model *m, hvt_value x, hvt_drop what, double p, bool whole_batch)
{
    double least = ldexp(p, 32) - 0x1p31; /* threshold for the draw's bits as a signed number */
    hvt_layer *l;

    if (m && p == 0)
        return x;
    l = hvt__layer_begin(m, &hvt_layer_dropout, x);
    if (!l)
        return -1;
    HVT_EXPECT(m, l, p > 0 && p <= 1, "p is %g; expected 0 to 1", p);
    l->is.dropout.args = (hvt_dropout_args){.what = what,
                                            .least = least < INT32_MAX ? (int32_t)least : INT32_MAX,
                                            .scale = p < 1 ? (float)(1 / (1 - p)) : 0,
                                            .salt = (uint64_t)++m->dropouts};
    l->is.dropout.whole_batch = whole_batch;
    l->in_place[0] = true;
    return hvt__layer_end(m, l, l->y.dim[1], l->y.dim[2], l->y.dim[3]);
}

hvt_value hvt_dropout(hvt_model *m, hvt_value x, double p)
{
    return append(m, x, HVT_DROP_ELEMENTS, p, false);
}

hvt_value hvt_dropout_channels(hvt_model *m, hvt_value x, double p)
{
    return append(m, x, HVT_DROP_CHANNELS, p, false);
}

hvt_value hvt_drop_path(hvt_model *m, hvt_value x, double p, bool whole_batch)
{
    return append(m, x, HVT_DROP_IMAGES, p, whole_batch);
}

/* A flattened value's channels are [flat pixels, channels]. */
static hvt_status dropout_plan(hvt_model *m, hvt_layer *l)
{
    hvt_dropout_args *a = &l->is.dropout.args;

    HVT__COMPUTES(m, l, general.dropout);
    a->order = l->flat > 1 ? HVT_ORDER_NHW : m->order;
    a->type = l->y.dtype;
    a->n = m->batch;
    a->pixels = hvt__pixels(l) * l->flat;
    a->c = l->y.dim[3] / l->flat;
    return HVT_OK;
}

static uint64_t first_index(const hvt_model *m, const hvt_batch *b)
{
    uint64_t first = 0;

    for (int s = 0; s < b->shard && s < b->shards; s++)
        first += (uint64_t)(b->shard_counts ? b->shard_counts[s] : m->batch);
    return first;
}

/* Returns key i of m->keys: that of image i; in the second half, that of the whole batch (image 0's). */
static uint64_t key_at(const hvt_model *m, const hvt_batch *b, int i)
{
    int image = i < m->batch ? i : 0;

    if (b->key && b->ids)
        return hvt__mix(b->key ^ (image < b->count ? b->ids[image] : 0));
    return hvt__mix(hvt__mix((uint64_t)m->tracked ^ hvt__mix(~m->seed)) ^
                    (first_index(m, b) + (uint64_t)image));
}

/* Uploads the keys in pieces, because memory.put() copies HVT__PUT_MOST bytes at most. It does not wait for
 * the queue. */
hvt_status hvt__dropout_keys(hvt_model *m, const hvt_batch *b)
{
    uint64_t some[HVT__PUT_MOST / sizeof *m->keys];
    int all = 2 * m->batch, most = (int)HVT_LEN(some);

    for (int i = 0; i < all; i += most) {
        int n = all - i < most ? all - i : most;

        for (int k = 0; k < n; k++)
            some[k] = key_at(m, b, i + k);
        HVT_TRY(m->dev->ops->memory.put(m->dev, m->keys + i, some, (size_t)n * sizeof *some));
    }
    return HVT_OK;
}

static hvt_status run(hvt_model *m, const hvt_layer *l, const void *x, void *y, bool add)
{
    hvt_dropout_args a = l->is.dropout.args;

    a.real = m->real;
    a.keys = m->keys + (l->is.dropout.whole_batch ? m->batch : 0);
    a.x = x;
    a.y = y;
    a.add = add;
    return m->dev->ops->general.dropout(m->dev, &a);
}

static hvt_status dropout_forward(hvt_model *m, hvt_layer *l)
{
    const void *x = hvt__in(m, l, 0)->y.data;

    return m->training ? run(m, l, x, l->y.data, false)
                       : m->dev->ops->memory.copy(m->dev, l->y.data, x, hvt__bytes(l));
}

static hvt_status dropout_backward(hvt_model *m, hvt_layer *l)
{
    return run(m, l, l->dy.data, hvt__in(m, l, 0)->dy.data, l->add[0]);
}

const hvt_layer_ops hvt_layer_dropout = {"dropout",
                                         dropout_plan,
                                         dropout_forward,
                                         dropout_backward,
                                         true,
                                         .hash = hvt__hash_no_arguments,
                                         .training_only = true};
