/*
 * Pooling: the maximum of a window, and the mean of an image.
 */
#include "base_impl.h"
#include "layers.h"

hvt_value hvt_maxpool(hvt_model *m, hvt_value x, int size, int stride, int pad)
{
    hvt_layer *l = hvt__layer_begin(m, &hvt_layer_maxpool, x);

    if (!l)
        return -1;
    HVT_EXPECT(m, l,
               size > 0 && size <= HVT_POOLING_WINDOW && stride > 0 && stride <= HVT_MOST && pad >= 0 &&
                   pad <= size / 2,
               "window %dx%d, stride %d, padding %d: the window must be 1 to %d wide, the padding at most "
               "half of it",
               size, size, stride, pad, HVT_POOLING_WINDOW);
    return hvt__window_end(m, l, size, stride, pad, l->y.dim[3]);
}

hvt_value hvt_avgpool(hvt_model *m, hvt_value x)
{
    hvt_layer *l = hvt__layer_begin(m, &hvt_layer_avgpool, x);

    return l ? hvt__layer_end(m, l, 1, 1, l->y.dim[3]) : -1;
}

/* Returns the number of windows along a dimension. With ceil_mode, a window that begins within the input or
 * its leading padding may end past the trailing padding. */
static int windows_in(int in, int size, int stride, int pad, bool ceil_mode)
{
    const int64_t out = ((int64_t)in + 2 * pad - size + (ceil_mode ? stride - 1 : 0)) / stride + 1;

    return (int)(ceil_mode && (out - 1) * stride >= (int64_t)in + pad ? out - 1 : out);
}

hvt_value hvt_pool_with(hvt_model *m, hvt_value x, hvt_pooling_kind kind, const hvt_pool_opts *opts)
{
    const bool mean = kind == HVT_POOL_MEAN;
    hvt_layer *l = hvt__layer_begin(m, mean ? &hvt_layer_avgpool : &hvt_layer_maxpool, x);

    if (!l)
        return -1;
    const int *d = l->y.dim;
    const hvt_pool_opts k = opts ? *opts : (hvt_pool_opts){0};
    bool fits = true;

    HVT_EXPECT(m, l, mean || kind == HVT_POOL_MAX,
               "a pooling of kind %d; expected HVT_POOL_MAX or HVT_POOL_MEAN", (int)kind);
    for (int i = 0; i < 2; i++)
        fits = fits && k.size[i] > 0 && k.size[i] <= HVT_POOLING_WINDOW && k.stride[i] > 0 &&
               k.stride[i] <= HVT_MOST && k.pad[i] >= 0 && k.pad[i] <= k.size[i] / 2 &&
               d[1 + i] >= k.size[i] - 2 * k.pad[i];
    HVT_EXPECT(
        m, l, fits,
        "windows of %dx%d, stride %dx%d, padding %dx%d over %dx%dx%d: they must be 1 to %d long and fit, the "
        "padding at most half of it",
        k.size[0], k.size[1], k.stride[0], k.stride[1], k.pad[0], k.pad[1], d[1], d[2], d[3],
        HVT_POOLING_WINDOW);
    l->is.pooling =
        (hvt_pooling_desc){.mean = mean,
                           .windows = true,
                           .count_pad = !k.exclude_pad,
                           .rows = {k.size[0], k.stride[0], k.pad[0],
                                    windows_in(d[1], k.size[0], k.stride[0], k.pad[0], k.ceil_mode)},
                           .columns = {k.size[1], k.stride[1], k.pad[1],
                                       windows_in(d[2], k.size[1], k.stride[1], k.pad[1], k.ceil_mode)}};
    return hvt__layer_end(m, l, l->is.pooling.rows.out, l->is.pooling.columns.out, d[3]);
}

/* Returns the length of the longest of `out` windows over `in` pixels. */
static int longest(int in, int out)
{
    return (in - 1) / out + 1 + (in % out != 0);
}

static hvt_value adaptive(hvt_model *m, hvt_value x, hvt_pooling_kind kind, int h, int w)
{
    const bool mean = kind == HVT_POOL_MEAN;
    hvt_layer *l = hvt__layer_begin(m, mean ? &hvt_layer_avgpool : &hvt_layer_maxpool, x);

    if (!l)
        return -1;
    const int *d = l->y.dim;

    HVT_EXPECT(m, l, mean || kind == HVT_POOL_MAX,
               "a pooling of kind %d; expected HVT_POOL_MAX or HVT_POOL_MEAN", (int)kind);
    HVT_EXPECT(m, l, h > 0 && w > 0 && h <= HVT_MOST && w <= HVT_MOST,
               "%dx%d windows; each number must be 1 to %d", h, w, HVT_MOST);
    HVT_EXPECT(m, l,
               h <= HVT_POOLING_WINDOW * (int64_t)d[1] && w <= HVT_POOLING_WINDOW * (int64_t)d[2] &&
                   (int64_t)(1 + (h - 1) / d[1] + 1) * (1 + (w - 1) / d[2] + 1) <= HVT_POOLING_TAPS,
               "%dx%d windows over %dx%dx%d: a pixel would be in more than %d", h, w, d[1], d[2], d[3],
               HVT_POOLING_TAPS);
    HVT_EXPECT(m, l, mean || (int64_t)longest(d[1], h) * longest(d[2], w) <= HVT_POOLING_TAPS,
               "%dx%d maxima over %dx%dx%d: only windows of one size may be longer than %d", h, w, d[1], d[2],
               d[3], HVT_POOLING_TAPS);
    l->is.pooling =
        (hvt_pooling_desc){.mean = mean, .windows = true, .rows = {.out = h}, .columns = {.out = w}};
    return hvt__layer_end(m, l, h, w, d[3]);
}

/* Maxima along one dimension. Windows of one size that are too long for the argmax are reduced in parts
 * first. */
static hvt_value maxima_along(hvt_model *m, hvt_value x, bool columns, int out)
{
    int d[3];

    for (hvt_value_shape(m, x, d);
         x >= 0 && longest(d[columns], out) > HVT_POOLING_TAPS && d[columns] % out == 0;
         hvt_value_shape(m, x, d)) {
        const int parts = out * ((d[columns] / out - 1) / (HVT_POOLING_TAPS - 1) + 1);

        x = adaptive(m, x, HVT_POOL_MAX, columns ? d[0] : parts, columns ? parts : d[1]);
    }
    return x < 0 ? x : adaptive(m, x, HVT_POOL_MAX, columns ? d[0] : out, columns ? out : d[1]);
}

/* Columns are reduced before rows: ties then go to the first element in row-major order, as with one large
 * window. */
hvt_value hvt_adaptive_pool(hvt_model *m, hvt_value x, hvt_pooling_kind kind, int h, int w)
{
    int d[3];

    if (!m)
        return -1;
    hvt_value_shape(m, x, d);
    if (kind != HVT_POOL_MAX || h < 1 || w < 1 || !d[0] ||
        (int64_t)longest(d[0], h) * longest(d[1], w) <= HVT_POOLING_TAPS)
        return adaptive(m, x, kind, h, w);
    return maxima_along(m, maxima_along(m, x, true, w), false, h);
}

static hvt_status pooling_plan(hvt_model *m, hvt_layer *l)
{
    const int *d = hvt__in(m, l, 0)->y.dim;

    hvt_pooling_desc k = l->is.pooling;

    if (!k.windows) {
        k.size = l->size;
        k.stride = l->stride;
        k.pad = l->pad;
        k.mean = l->ops == &hvt_layer_avgpool;
    }
    k.order = m->order;
    k.type = l->y.dtype;
    k.n = m->batch;
    k.h = d[1];
    k.w = d[2];
    k.c = d[3];
    return m->dev->ops->pooling.plan(m->dev, &k, &l->op, &l->saved_bytes);
}

static hvt_status pooling_forward(hvt_model *m, hvt_layer *l)
{
    return m->dev->ops->pooling.forward(l->op, m->real, hvt__in(m, l, 0)->y.data, l->y.data, l->saved);
}

static hvt_status pooling_backward(hvt_model *m, hvt_layer *l)
{
    return m->dev->ops->pooling.backward(l->op, m->real, l->saved, l->dy.data, hvt__in(m, l, 0)->dy.data,
                                         l->add[0]);
}

static uint64_t pooling_hash(const hvt_model *m, const hvt_layer *l, uint64_t h)
{
    const hvt_pooling_desc *p = &l->is.pooling;
    const hvt_window *r = &p->rows, *s = &p->columns;

    return HVT__HASH(h, l->size, l->stride, l->pad, p->windows, p->count_pad, r->size, r->stride, r->pad,
                     r->size ? 0 : r->out, s->size, s->stride, s->pad, s->size ? 0 : s->out);
}

const hvt_layer_ops hvt_layer_maxpool = {"maxpool", pooling_plan, pooling_forward, pooling_backward,
                                         .hash = pooling_hash};
const hvt_layer_ops hvt_layer_avgpool = {"avgpool", pooling_plan, pooling_forward, pooling_backward,
                                         .hash = pooling_hash};
