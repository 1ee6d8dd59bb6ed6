/*
 * Maxima over an image's dimensions, with PyTorch's gradients in case of ties: torch.max(dim) gives the whole
 * gradient to the first maximum; torch.amax shares it equally.
 *
 * Both use existing device operations: the channels of a pixel are pooled as the pixels of a small image, and
 * amax uses element-wise operations to find the elements that equal its result. A *view* is the shape
 * (images, pixels, channels) in which these operations read an array.
 */
#include "base_impl.h"
#include "layers.h"

/* Returns the number of rows to compute. In HWN order absent images lie between the others, so they are
 * computed, too. */
static int present(const hvt_model *m, int rows)
{
    return m->order == HVT_ORDER_NHW ? rows / m->batch * m->real : rows;
}

/* ---- the first maximum: torch.max(dim) ---- */

/* Adaptive pooling of `groups` groups of channels to `out` groups. */
static hvt_value pool_groups(hvt_model *m, hvt_value x, int groups, int out)
{
    hvt_layer *l = hvt__layer_begin(m, &hvt_layer_maxima, x);

    if (!l)
        return -1;
    HVT_EXPECT(m, l, groups > 0 && l->y.dim[3] % groups == 0, "%d channels cannot be divided into %d groups",
               l->y.dim[3], groups);
    l->is.maxima.groups = groups;
    l->is.maxima.out = out;
    return hvt__layer_end(m, l, l->y.dim[1], l->y.dim[2], l->y.dim[3] / groups * out);
}

hvt_value hvt_max_groups(hvt_model *m, hvt_value x, int groups)
{
    for (; groups > HVT_POOLING_TAPS; groups = (groups - 1) / (HVT_POOLING_TAPS - 1) + 1)
        x = pool_groups(m, x, groups, (groups - 1) / (HVT_POOLING_TAPS - 1) + 1);
    return pool_groups(m, x, groups, 1);
}

hvt_value hvt_max_channels(hvt_model *m, hvt_value x)
{
    int d[3];

    if (!m)
        return -1;
    hvt_value_shape(m, x, d);
    return d[2] == 1 ? x : hvt_max_groups(m, x, d[2]);
}

/* Each pixel becomes an image of one column. */
static hvt_status maxima_plan(hvt_model *m, hvt_layer *l)
{
    const hvt_layer *in = hvt__in(m, l, 0);
    const int groups = l->is.maxima.groups;

    return m->dev->ops->pooling.plan(m->dev,
                                     &(hvt_pooling_desc){.order = HVT_ORDER_NHW,
                                                         .type = l->y.dtype,
                                                         .n = m->batch * hvt__pixels(in),
                                                         .h = groups,
                                                         .w = 1,
                                                         .c = in->y.dim[3] / groups,
                                                         .windows = true,
                                                         .rows = {.out = l->is.maxima.out},
                                                         .columns = {.out = 1}},
                                     &l->op, &l->saved_bytes);
}

static hvt_status maxima_forward(hvt_model *m, hvt_layer *l)
{
    return m->dev->ops->pooling.forward(l->op, present(m, m->batch * hvt__pixels(l)),
                                        hvt__in(m, l, 0)->y.data, l->y.data, l->saved);
}

static hvt_status maxima_backward(hvt_model *m, hvt_layer *l)
{
    return m->dev->ops->pooling.backward(l->op, present(m, m->batch * hvt__pixels(l)), l->saved, l->dy.data,
                                         hvt__in(m, l, 0)->dy.data, l->add[0]);
}

static uint64_t maxima_hash(const hvt_model *m, const hvt_layer *l, uint64_t h)
{
    return HVT__HASH(h, l->is.maxima.groups, l->is.maxima.out);
}

const hvt_layer_ops hvt_layer_maxima = {"maxima", maxima_plan, maxima_forward, maxima_backward,
                                        .hash = maxima_hash};

/* ---- all maxima: torch.amax ---- */

hvt_value hvt_amax(hvt_model *m, hvt_value x, bool over_h, bool over_w, int groups)
{
    int d[3];
    hvt_value y = x;
    hvt_layer *l;

    if (!m)
        return -1;
    hvt_value_shape(m, x, d);
    if ((over_h && d[0] > 1) || (over_w && d[1] > 1))
        y = hvt_adaptive_pool(m, y, HVT_POOL_MAX, over_h ? 1 : d[0], over_w ? 1 : d[1]);
    if (groups != 1)
        y = hvt_max_groups(m, y, groups);
    if (y == x)
        return x;
    l = hvt__layer_begin_many(m, &hvt_layer_amax, (hvt_value[]){x, y}, 2);
    if (!l)
        return -1;
    l->is.maxima.groups = groups;
    l->saves_input = l->saves_output = true;
    hvt_value_shape(m, y, d);
    return hvt__layer_end(m, l, d[0], d[1], d[2]);
}

/* Makes a view of images x pixels x c whose pixels are reduced to one. */
static hvt_binary_args view_of(const hvt_model *m, const hvt_layer *l, int images, int pixels, int c)
{
    return (hvt_binary_args){.across = HVT_PER_IMAGE,
                             .order = HVT_ORDER_NHW,
                             .type = l->y.dtype,
                             .n = images,
                             .real = present(m, images),
                             .pixels = pixels,
                             .c = c};
}

/* The view in which x's pixels are reduced to y's. */
static hvt_binary_args pixels_of(hvt_model *m, const hvt_layer *l)
{
    const int *x = hvt__in(m, l, 0)->y.dim, *y = l->y.dim, n = m->batch;
    const bool rows = y[1] < x[1], columns = y[2] < x[2];

    if (!rows && !columns)
        return view_of(m, l, n * x[1] * x[2], 1, x[3]);
    if (m->order == HVT_ORDER_HWN)
        return rows && columns ? view_of(m, l, 1, x[1] * x[2], n * x[3])
               : rows          ? view_of(m, l, 1, x[1], x[2] * n * x[3])
                               : view_of(m, l, x[1], x[2], n * x[3]);
    return rows && columns ? view_of(m, l, n, x[1] * x[2], x[3])
           : rows          ? view_of(m, l, n, x[1], x[2] * x[3])
                           : view_of(m, l, n * x[1], x[2], x[3]);
}

/* The view in which each group of channels is reduced to one, at y's pixels. */
static hvt_binary_args groups_of(const hvt_model *m, const hvt_layer *l)
{
    return view_of(m, l, m->batch * hvt__pixels(l), l->is.maxima.groups, l->y.dim[3]);
}

/* Broadcasts each result to its elements. */
static hvt_status spread(hvt_model *m, hvt_binary_args k, const void *from, void *to, size_t bytes)
{
    k.op = HVT_ADD;
    k.a = k.y = to;
    k.b = from;
    HVT_TRY(m->dev->ops->memory.zero(m->dev, to, bytes));
    return m->dev->ops->general.binary_forward(m->dev, &k);
}

/* Sums each result's elements: the gradient of b in a + b, which reads neither a nor b. */
static hvt_status sum(hvt_model *m, hvt_binary_args k, const void *from, void *to)
{
    k.op = HVT_ADD;
    k.a = k.dy = from;
    k.b = k.db = to;
    return m->dev->ops->general.binary_backward(m->dev, &k);
}

typedef struct room {
    size_t x, part, y; /* bytes: of x, of x at y's pixels, of y */
    void *half, *other, *largest, *share, *count;
    size_t all;
} room;

static void *take(const hvt_model *m, room *r, size_t bytes)
{
    void *at = m->ws ? (char *)m->ws + r->all : NULL;

    r->all += (bytes + 63) / 64 * 64;
    return at;
}

static room workspace(hvt_model *m, const hvt_layer *l)
{
    const hvt_layer *in = hvt__in(m, l, 0);
    room r = {.x = hvt__bytes(in), .y = hvt__bytes(l)};

    r.part = r.y / (size_t)l->y.dim[3] * (size_t)in->y.dim[3];
    r.half = take(m, &r, r.x);
    r.other = take(m, &r, r.x);
    r.largest = take(m, &r, r.part);
    r.share = take(m, &r, r.part);
    r.count = take(m, &r, r.y);
    return r;
}

static hvt_status amax_plan(hvt_model *m, hvt_layer *l)
{
    HVT__COMPUTES(m, l, general.binary_forward);
    l->ws_bytes = workspace(m, l).all;
    return HVT_OK;
}

static hvt_status amax_forward(hvt_model *m, hvt_layer *l)
{
    return m->dev->ops->memory.copy(m->dev, l->y.data, hvt__in(m, l, 1)->y.data, hvt__bytes(l));
}

/* r->half = x == y ? 1/2 : 0, which is d max(x, y) / dx. */
static hvt_status find_largest(hvt_model *m, const hvt_layer *l, const room *r, const void *largest)
{
    const hvt_device_ops *ops = m->dev->ops;
    const hvt_layer *in = hvt__in(m, l, 0);
    hvt_binary_args k = pixels_of(m, l);

    HVT_TRY(ops->memory.zero(m->dev, r->other, r->x));
    HVT_TRY(ops->general.map_forward(m->dev, hvt__elements(in), l->y.dtype, &(hvt_map){HVT_AFFINE, 1, 1},
                                     r->other, r->other));
    k.op = HVT_MAXIMUM;
    k.a = in->y.data;
    k.b = largest;
    k.dy = r->other;
    k.da = r->half;
    return ops->general.binary_backward(m->dev, &k);
}

/* count = dy / count */
static hvt_status divide(hvt_model *m, const hvt_layer *l, void *count)
{
    hvt_binary_args k = view_of(m, l, m->batch * hvt__pixels(l), 1, l->y.dim[3]);

    k.across = HVT_SAME;
    k.op = HVT_DIV;
    k.a = l->dy.data;
    k.b = k.y = count;
    return m->dev->ops->general.binary_forward(m->dev, &k);
}

/* dx = half * dy / sum(half) */
static hvt_status amax_backward(hvt_model *m, hvt_layer *l)
{
    const hvt_device_ops *ops = m->dev->ops;
    const hvt_layer *in = hvt__in(m, l, 0), *y = hvt__in(m, l, 1);
    const bool grouped = l->is.maxima.groups != 1;
    const hvt_binary_args groups = groups_of(m, l);
    const room r = workspace(m, l);
    const void *largest = grouped ? r.largest : l->y.data;
    void *share = grouped ? r.share : r.count, *dx = in->dy.data;
    hvt_binary_args k = pixels_of(m, l);

    if (y->dy.data && !l->add[1])
        HVT_TRY(ops->memory.zero(m->dev, y->dy.data, r.y));
    if (!dx)
        return HVT_OK;
    if (grouped)
        HVT_TRY(spread(m, groups, l->y.data, r.largest, r.part));
    HVT_TRY(find_largest(m, l, &r, largest));
    HVT_TRY(sum(m, k, r.half, share));
    if (grouped)
        HVT_TRY(sum(m, groups, share, r.count));
    HVT_TRY(divide(m, l, r.count));
    if (grouped)
        HVT_TRY(spread(m, groups, r.count, share, r.part));
    k.op = HVT_MUL;
    k.a = r.half;
    k.b = share;
    k.y = l->add[0] ? r.other : dx;
    HVT_TRY(ops->general.binary_forward(m->dev, &k));
    return l->add[0] ? ops->vector.add(m->dev, hvt__elements(in), l->y.dtype, dx, r.other, dx) : HVT_OK;
}

const hvt_layer_ops hvt_layer_amax = {"amax", amax_plan, amax_forward, amax_backward, .hash = maxima_hash};
