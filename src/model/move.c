/*
 * Layers without arithmetic: concatenation, slices, transposes, padding, flattening, reshaping. Except for
 * transposes they copy boxes.
 */
#include "base_impl.h"
#include "layers.h"

static hvt_box whole(const hvt_layer *l)
{
    return (hvt_box){l->y.dim[1], l->y.dim[2], l->y.dim[3], 0, 0, 0};
}

static hvt_status move_plan(hvt_model *m, hvt_layer *l)
{
    HVT__COMPUTES(m, l, general.move);
    return HVT_OK;
}

/* Copies a box of h x w x c from `src` in `from` to `dst` in `to`. */
static hvt_status move(hvt_model *m, const hvt_layer *l, int h, int w, int c, hvt_box src, const void *from,
                       hvt_box dst, void *to, bool add)
{
    return m->dev->ops->general.move(m->dev, &(hvt_move_args){.order = m->order,
                                                              .type = l->y.dtype,
                                                              .n = m->batch,
                                                              .h = h,
                                                              .w = w,
                                                              .c = c,
                                                              .src = src,
                                                              .dst = dst,
                                                              .from = from,
                                                              .to = to,
                                                              .add = add});
}

/* ---- concatenation ---- */

hvt_value hvt_concat(hvt_model *m, const hvt_value *in, int count)
{
    hvt_layer *l;
    int64_t c = 0;

    if (!m)
        return -1;
    if (count < 1 || !in)
        return hvt__mistake(m, NULL, HVT_E_SHAPE, "%d values are concatenated, expected 1 or more", count);
    l = hvt__layer_begin_many(m, &hvt_layer_concat, in, count);
    if (!l)
        return -1;
    for (int i = 0; i < count; i++) {
        const int *p = m->layer[in[0]].y.dim, *q = m->layer[in[i]].y.dim;

        HVT_EXPECT(m, l, p[1] == q[1] && p[2] == q[2],
                   "%s is %dx%dx%d, %s is %dx%dx%d: expected one height and width", m->layer[in[0]].name,
                   p[1], p[2], p[3], m->layer[in[i]].name, q[1], q[2], q[3]);
        c += q[3];
    }
    return hvt__layer_end(m, l, l->y.dim[1], l->y.dim[2], c);
}

static hvt_status concat_forward(hvt_model *m, hvt_layer *l)
{
    hvt_box to = whole(l);

    for (int i = 0; i < l->nin && l->in[i] >= 0; i++) {
        const hvt_layer *in = hvt__in(m, l, i);
        const int *d = in->y.dim;

        HVT_TRY(move(m, l, d[1], d[2], d[3], whole(in), in->y.data, to, l->y.data, false));
        to.first += d[3];
    }
    return HVT_OK;
}

static hvt_status concat_backward(hvt_model *m, hvt_layer *l)
{
    hvt_box from = whole(l);

    for (int i = 0; i < l->nin && l->in[i] >= 0; i++) {
        const hvt_layer *in = hvt__in(m, l, i);
        const int *d = in->y.dim;

        if (in->dy.data)
            HVT_TRY(move(m, l, d[1], d[2], d[3], from, l->dy.data, whole(in), in->dy.data, l->add[i]));
        from.first += d[3];
    }
    return HVT_OK;
}

/* ---- slices of channels ---- */

hvt_value hvt_slice(hvt_model *m, hvt_value x, int first, int count)
{
    hvt_layer *l = hvt__layer_begin(m, &hvt_layer_slice, x);

    if (!l)
        return -1;
    HVT_EXPECT(m, l, first >= 0 && count > 0 && first < l->y.dim[3] && count <= l->y.dim[3] - first,
               "cannot take %d channels from channel %d of %d", count, first, l->y.dim[3]);
    l->is.box = (hvt_box){l->y.dim[1], l->y.dim[2], l->y.dim[3], 0, 0, first};
    return hvt__layer_end(m, l, l->y.dim[1], l->y.dim[2], count);
}

static hvt_status slice_forward(hvt_model *m, hvt_layer *l)
{
    const int *d = l->y.dim;

    return move(m, l, d[1], d[2], d[3], l->is.box, hvt__in(m, l, 0)->y.data, whole(l), l->y.data, false);
}

static hvt_status slice_backward(hvt_model *m, hvt_layer *l)
{
    const hvt_layer *in = hvt__in(m, l, 0);
    const int *d = l->y.dim;

    if (!l->add[0])
        HVT_TRY(m->dev->ops->memory.zero(m->dev, in->dy.data, hvt__bytes(in)));
    return move(m, l, d[1], d[2], d[3], whole(l), l->dy.data, l->is.box, in->dy.data, l->add[0]);
}

/* ---- transposes ---- */

enum { ELEMENTS = 1 << 28 }; /* elements of an image that is transposed */
enum { PIXELS = 1024 };      /* the largest factor of a pixel shuffle, along one dimension */

static hvt_value begin_transpose(hvt_model *m, hvt_layer *l, int rows, int cols, int block, int64_t h,
                                 int64_t w, int64_t c)
{
    const int *x = l->y.dim;

    l->is.transpose.rows = rows;
    l->is.transpose.cols = cols;
    l->is.transpose.block = block;
    l->whole_image = h != x[1] || w != x[2] || x[3] % ((int64_t)rows * cols * block) != 0;
    return hvt__layer_end(m, l, h, w, c);
}

hvt_value hvt_shuffle(hvt_model *m, hvt_value x, int groups)
{
    hvt_layer *l = hvt__layer_begin(m, &hvt_layer_shuffle, x);
    int c;

    if (!l)
        return -1;
    c = l->y.dim[3];
    HVT_EXPECT(m, l, groups > 0 && c % groups == 0, "%d channels cannot be divided into %d groups", c,
               groups);
    return begin_transpose(m, l, groups, c / groups, 1, l->y.dim[1], l->y.dim[2], c);
}

hvt_value hvt_transpose(hvt_model *m, hvt_value x, int rows, int columns, int block, int h, int w)
{
    hvt_layer *l = hvt__layer_begin(m, &hvt_layer_transpose, x);
    int64_t all, pixels = (int64_t)h * w;

    if (!l)
        return -1;
    all = (int64_t)l->y.dim[1] * l->y.dim[2] * l->y.dim[3];
    HVT_EXPECT(m, l,
               rows > 0 && columns > 0 && block > 0 && rows <= all && columns <= all / rows &&
                   block <= all / rows / columns && all % ((int64_t)rows * columns * block) == 0,
               "%d x %d x %d elements do not divide %dx%dx%d", rows, columns, block, l->y.dim[1], l->y.dim[2],
               l->y.dim[3]);
    HVT_EXPECT(m, l, h > 0 && w > 0 && all % pixels == 0 && all <= ELEMENTS,
               "%dx%d pixels do not divide %lld elements", h, w, (long long)all);
    return begin_transpose(m, l, rows, columns, block, h, w, all / pixels);
}

/* Channels [C][f*f] become [f*f][C], whose rows of f then become pixels. */
hvt_value hvt_pixel_shuffle(hvt_model *m, hvt_value x, int f)
{
    hvt_layer *l = hvt__layer_begin(m, &hvt_layer_shuffle, x);

    if (!l)
        return -1;
    const int h = l->y.dim[1], w = l->y.dim[2], c = l->y.dim[3];

    HVT_EXPECT(m, l, f >= 1 && f <= PIXELS && c % (f * f) == 0,
               "a pixel shuffle by %d of %d channels; expected 1 to %d, and a multiple of its square", f, c,
               PIXELS);
    x = begin_transpose(m, l, c / (f * f), f * f, 1, h, w, c);
    l = hvt__layer_begin(m, &hvt_layer_transpose, x);
    return l ? begin_transpose(m, l, w, f, c / f, (int64_t)h * f, (int64_t)w * f, c / (f * f)) : -1;
}

hvt_value hvt_pixel_unshuffle(hvt_model *m, hvt_value x, int f)
{
    hvt_layer *l = hvt__layer_begin(m, &hvt_layer_transpose, x);

    if (!l)
        return -1;
    const int h = l->y.dim[1], w = l->y.dim[2], c = l->y.dim[3];

    HVT_EXPECT(
        m, l, f >= 1 && f <= PIXELS && h % f == 0 && w % f == 0 && (int64_t)c * f * f <= HVT_MOST,
        "a pixel unshuffle by %d of %dx%dx%d; expected 1 to %d, multiples of it, and at most %d channels", f,
        h, w, c, PIXELS, HVT_MOST);
    x = begin_transpose(m, l, f, w / f, f * c, h / f, w / f, (int64_t)c * f * f);
    return hvt_shuffle(m, x, f * f);
}

static hvt_status transpose_plan(hvt_model *m, hvt_layer *l)
{
    HVT__COMPUTES(m, l, general.transpose);
    return HVT_OK;
}

static hvt_status transpose(hvt_model *m, const hvt_layer *l, int rows, int cols, const void *x, void *y,
                            bool add)
{
    const size_t all = (size_t)rows * (size_t)cols * (size_t)l->is.transpose.block;

    return m->dev->ops->general.transpose(m->dev, hvt__elements(l) / all, l->y.dtype, rows, cols,
                                          l->is.transpose.block, x, y, add);
}

static hvt_status transpose_forward(hvt_model *m, hvt_layer *l)
{
    return transpose(m, l, l->is.transpose.rows, l->is.transpose.cols, hvt__in(m, l, 0)->y.data, l->y.data,
                     false);
}

static hvt_status transpose_backward(hvt_model *m, hvt_layer *l)
{
    return transpose(m, l, l->is.transpose.cols, l->is.transpose.rows, l->dy.data, hvt__in(m, l, 0)->dy.data,
                     l->add[0]);
}

/* ---- padding and cutting ---- */

hvt_value hvt_pad(hvt_model *m, hvt_value x, int top, int bottom, int left, int right)
{
    hvt_layer *l = hvt__layer_begin(m, &hvt_layer_pad, x);

    if (!l)
        return -1;
    const int *d = l->y.dim, all[] = {top, bottom, left, right};
    bool fits = true;

    for (int i = 0; i < 4; i++)
        fits = fits && all[i] <= HVT_MOST && all[i] >= -HVT_MOST;
    /* cropping must leave at least a pixel, too */
    fits = fits && d[1] + (top < 0 ? top : 0) + (bottom < 0 ? bottom : 0) > 0 &&
           d[2] + (left < 0 ? left : 0) + (right < 0 ? right : 0) > 0;
    HVT_EXPECT(m, l, fits,
               "padding of %d and %d rows, %d and %d columns around %dx%dx%d leaves nothing, or more than %d",
               top, bottom, left, right, d[1], d[2], d[3], HVT_MOST);
    l->is.box = (hvt_box){.y = top, .x = left}; /* position of the input in the output */
    return hvt__layer_end(m, l, d[1] + top + bottom, d[2] + left + right, d[3]);
}

/* The overlap of input and output: its size, and its position in each. */
static void common(const hvt_layer *in, const hvt_layer *l, int *ret_h, int *ret_w, hvt_box *ret_in,
                   hvt_box *ret_out)
{
    const int y = l->is.box.y, x = l->is.box.x;

    *ret_in = whole(in);
    *ret_out = whole(l);
    ret_in->y = y < 0 ? -y : 0;
    ret_in->x = x < 0 ? -x : 0;
    ret_out->y = y > 0 ? y : 0;
    ret_out->x = x > 0 ? x : 0;
    *ret_h = in->y.dim[1] - ret_in->y < l->y.dim[1] - ret_out->y ? in->y.dim[1] - ret_in->y
                                                                 : l->y.dim[1] - ret_out->y;
    *ret_w = in->y.dim[2] - ret_in->x < l->y.dim[2] - ret_out->x ? in->y.dim[2] - ret_in->x
                                                                 : l->y.dim[2] - ret_out->x;
}

static hvt_status pad_forward(hvt_model *m, hvt_layer *l)
{
    const hvt_layer *in = hvt__in(m, l, 0);
    hvt_box src, dst;
    int h, w;

    common(in, l, &h, &w, &src, &dst);
    if (h < l->y.dim[1] || w < l->y.dim[2])
        HVT_TRY(m->dev->ops->memory.zero(m->dev, l->y.data, hvt__bytes(l)));
    return move(m, l, h, w, l->y.dim[3], src, in->y.data, dst, l->y.data, false);
}

static hvt_status pad_backward(hvt_model *m, hvt_layer *l)
{
    const hvt_layer *in = hvt__in(m, l, 0);
    hvt_box src, dst;
    int h, w;

    common(in, l, &h, &w, &src, &dst);
    if (!l->add[0] && (h < in->y.dim[1] || w < in->y.dim[2]))
        HVT_TRY(m->dev->ops->memory.zero(m->dev, in->dy.data, hvt__bytes(in)));
    return move(m, l, h, w, l->y.dim[3], dst, l->dy.data, src, in->dy.data, l->add[0]);
}

/* ---- flattening ---- */

hvt_value hvt_flatten(hvt_model *m, hvt_value x)
{
    hvt_layer *l = hvt__layer_begin(m, &hvt_layer_flatten, x);

    if (!l)
        return -1;
    int64_t pixels = (int64_t)l->y.dim[1] * l->y.dim[2];

    HVT_EXPECT(m, l, pixels * l->y.dim[3] <= HVT_MOST, "%dx%dx%d flattened are more than %d channels",
               l->y.dim[1], l->y.dim[2], l->y.dim[3], HVT_MOST);
    l->flat = (int)pixels;
    return hvt__layer_end(m, l, 1, 1, pixels * l->y.dim[3]);
}

/* Pixels are contiguous in the output, as in an image; in the order HWN they are copied one by one. */
static hvt_status flatten_move(hvt_model *m, hvt_layer *l, bool back)
{
    const hvt_layer *in = hvt__in(m, l, 0);
    const hvt_box all = whole(l);
    const int w = in->y.dim[2], c = in->y.dim[3];

    if (m->order == HVT_ORDER_NHW)
        return back ? move(m, l, 1, 1, all.c, all, l->dy.data, all, in->dy.data, l->add[0])
                    : move(m, l, 1, 1, all.c, all, in->y.data, all, l->y.data, false);
    for (int p = 0; p < l->flat; p++) {
        hvt_box pixel = whole(in), flat = whole(l);

        pixel.y = p / w;
        pixel.x = p % w;
        flat.first = p * c;
        if (back)
            HVT_TRY(move(m, l, 1, 1, c, flat, l->dy.data, pixel, in->dy.data, l->add[0]));
        else
            HVT_TRY(move(m, l, 1, 1, c, pixel, in->y.data, flat, l->y.data, false));
    }
    return HVT_OK;
}

static hvt_status flatten_forward(hvt_model *m, hvt_layer *l)
{
    return flatten_move(m, l, false);
}

static hvt_status flatten_backward(hvt_model *m, hvt_layer *l)
{
    return flatten_move(m, l, true);
}

/* ---- reshaping: the same pixels in other lines ---- */

hvt_value hvt_reshape(hvt_model *m, hvt_value x, int h, int w)
{
    hvt_layer *l = hvt__layer_begin(m, &hvt_layer_reshape, x);

    if (!l)
        return -1;
    HVT_EXPECT(m, l, h > 0 && w > 0 && (int64_t)h * w == hvt__pixels(l),
               "cannot reshape to %dx%d pixels from %dx%d", h, w, l->y.dim[1], l->y.dim[2]);
    l->in_place[0] = true;
    return hvt__layer_end(m, l, h, w, l->y.dim[3]);
}

static hvt_status reshape_forward(hvt_model *m, hvt_layer *l)
{
    return m->dev->ops->memory.copy(m->dev, l->y.data, hvt__in(m, l, 0)->y.data, hvt__bytes(l));
}

static hvt_status reshape_backward(hvt_model *m, hvt_layer *l)
{
    const hvt_layer *in = hvt__in(m, l, 0);

    if (l->add[0])
        return m->dev->ops->vector.add(m->dev, hvt__elements(l), l->y.dtype, in->dy.data, l->dy.data,
                                       in->dy.data);
    return in->dy.data == l->dy.data
               ? HVT_OK
               : m->dev->ops->memory.copy(m->dev, in->dy.data, l->dy.data, hvt__bytes(l));
}

/* ---- zeros ---- */

hvt_value hvt_zeros(hvt_model *m, hvt_value x, int h, int w, int c)
{
    hvt_layer *l = hvt__layer_begin(m, &hvt_layer_zeros, x);

    if (!l)
        return -1;
    HVT_EXPECT(m, l, h > 0 && w > 0 && c > 0 && h <= HVT_MOST && w <= HVT_MOST && c <= HVT_MOST,
               "%dx%dx%d zeros; expected 1 to %d in each dimension", h, w, c, HVT_MOST);
    l->flat = 1;
    return hvt__layer_end(m, l, h, w, c);
}

static hvt_status zeros_forward(hvt_model *m, hvt_layer *l)
{
    return m->dev->ops->memory.zero(m->dev, l->y.data, hvt__bytes(l));
}

static hvt_status zeros_backward(hvt_model *m, hvt_layer *l)
{
    const hvt_layer *in = hvt__in(m, l, 0);

    return l->add[0] ? HVT_OK : m->dev->ops->memory.zero(m->dev, in->dy.data, hvt__bytes(in));
}

/* ---- constants ---- */

hvt_value hvt_constant(hvt_model *m, hvt_value x, int h, int w, int c, const float *values)
{
    hvt_layer *l = hvt__layer_begin(m, &hvt_layer_constant, x);
    hvt__constants *kept;
    size_t n;

    if (!l)
        return -1;
    HVT_EXPECT(m, l, values && h > 0 && w > 0 && c > 0 && (int64_t)h * w <= HVT_MOST / c,
               "a constant of %dx%dx%d; expected 1 to %d elements, and an array of values", h, w, c,
               HVT_MOST);
    n = (size_t)h * (size_t)w * (size_t)c;
    kept = hvt__constants_begin(m, l, &(hvt__constants){.all = n});
    if (!kept)
        return -1;
    memcpy(kept->data, values, n * sizeof *values);
    l->flat = 1;
    l->whole_image = true;
    return hvt__layer_end(m, l, h, w, c);
}

static hvt_status constant_forward(hvt_model *m, hvt_layer *l)
{
    const size_t n = l->constants->all, bytes = n * hvt_dtype_size(l->y.dtype);

    for (int i = 0; i < m->batch; i++)
        HVT_TRY(m->dev->ops->vector.cast(m->dev, n, 1, l->constants_there, HVT_F32,
                                         (char *)l->y.data + (size_t)i * bytes, l->y.dtype));
    return HVT_OK;
}

/* ---- hashes and tables ---- */

static uint64_t pad_hash(const hvt_model *m, const hvt_layer *l, uint64_t h)
{
    const int *in = m->layer[l->in[0]].y.dim, *out = l->y.dim;

    return HVT__HASH(h, l->is.box.y, l->is.box.x, out[1] - in[1], out[2] - in[2]);
}

static uint64_t slice_hash(const hvt_model *m, const hvt_layer *l, uint64_t h)
{
    return HVT__HASH(h, l->is.box.first, l->y.dim[3]);
}

static uint64_t shuffle_hash(const hvt_model *m, const hvt_layer *l, uint64_t h)
{
    return HVT__HASH(h, l->is.transpose.rows);
}

static uint64_t transpose_hash(const hvt_model *m, const hvt_layer *l, uint64_t h)
{
    return HVT__HASH(h, l->is.transpose.rows, l->is.transpose.cols, l->is.transpose.block);
}

const hvt_layer_ops hvt_layer_constant = {
    "constant", hvt__constants_put, constant_forward, zeros_backward, true, .hash = hvt__hash_no_arguments};
const hvt_layer_ops hvt_layer_zeros = {"zeros",        NULL, zeros_forward,
                                       zeros_backward, true, .hash = hvt__hash_no_arguments};
const hvt_layer_ops hvt_layer_concat = {"concat", move_plan, concat_forward, concat_backward,
                                        .hash = hvt__hash_no_arguments};
const hvt_layer_ops hvt_layer_slice = {"slice", move_plan, slice_forward, slice_backward, .hash = slice_hash};
const hvt_layer_ops hvt_layer_shuffle = {"shuffle", transpose_plan, transpose_forward, transpose_backward,
                                         .hash = shuffle_hash};
const hvt_layer_ops hvt_layer_transpose = {"transpose", transpose_plan, transpose_forward, transpose_backward,
                                           .hash = transpose_hash};
const hvt_layer_ops hvt_layer_pad = {"pad", move_plan, pad_forward, pad_backward, .hash = pad_hash};
const hvt_layer_ops hvt_layer_reshape = {"reshape", NULL, reshape_forward, reshape_backward,
                                         .hash = hvt__hash_no_arguments};
const hvt_layer_ops hvt_layer_flatten = {"flatten", move_plan, flatten_forward, flatten_backward,
                                         .hash = hvt__hash_no_arguments};
