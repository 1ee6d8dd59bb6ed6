/*
 * Interpolation, padding with the image's own pixels, and pixels selected by index. The first two are
 * separable: each row of the output is a weighted sum of a few rows of the input, and so is each column. This
 * file computes the weights, as PyTorch does in f32 (ATen/native/UpSample.h and UpSampleKernel.cpp,
 * ReflectionPad.cpp, ReplicationPadding.cpp); the device adds up pixels.
 */
#include "base_impl.h"
#include "layers.h"

#include <math.h>

/* ---- builders ---- */

static bool is_output(int64_t n)
{
    return n >= 1 && n <= HVT_MOST;
}

hvt_value hvt_interpolate(hvt_model *m, hvt_value x, const hvt_interpolate_opts *opts)
{
    hvt_layer *l = hvt__layer_begin(m, &hvt_layer_interpolate, x);

    if (!l)
        return -1;
    const int *d = l->y.dim;
    const hvt_interpolate_opts o = opts ? *opts : (hvt_interpolate_opts){0};
    const bool smooth = o.kind == HVT_BILINEAR || o.kind == HVT_BICUBIC;
    double out[2] = {o.height, o.width};
    const double scale[2] = {o.scale_h, o.scale_w};

    HVT_EXPECT(m, l, o.kind <= HVT_BICUBIC, "an interpolation of kind %d; expected 0 to %d", (int)o.kind,
               (int)HVT_BICUBIC);
    HVT_EXPECT(m, l, smooth || !(o.align_corners || o.antialias),
               "align_corners and antialias are for bilinear and bicubic interpolation only");
    HVT_EXPECT(m, l, !(o.align_corners && o.antialias), "align_corners with antialias; expected one of them");
    for (int i = 0; i < 2; i++) {
        HVT_EXPECT(m, l, scale[i] == 0 || (scale[i] >= 1.0 / HVT_MOST && scale[i] <= HVT_MOST),
                   "a scale of %g; expected 0, or 1/%d to %d", scale[i], HVT_MOST, HVT_MOST);
        out[i] = out[i] == 0 ? floor(d[1 + i] * scale[i]) : out[i];
    }
    HVT_EXPECT(m, l, is_output((int64_t)out[0]) && is_output((int64_t)out[1]),
               "an output of %.0fx%.0f; expected 1 to %d in each dimension", out[0], out[1], HVT_MOST);
    l->is.resample = (hvt__resampling){.kind = (int)o.kind,
                                       .aligned = o.align_corners,
                                       .smoothed = o.antialias,
                                       .scale = {scale[0], scale[1]},
                                       .size = {o.height, o.width}};
    return hvt__layer_end(m, l, (int64_t)out[0], (int64_t)out[1], d[3]);
}

hvt_value hvt_pad_with(hvt_model *m, hvt_value x, hvt_padding how, int top, int bottom, int left, int right)
{
    hvt_layer *l = hvt__layer_begin(m, &hvt_layer_border, x);

    if (!l)
        return -1;
    const int *d = l->y.dim, by[] = {top, bottom, left, right};

    HVT_EXPECT(m, l, how <= HVT_PAD_CIRCULAR, "a padding of kind %d; expected 0 to %d", (int)how,
               (int)HVT_PAD_CIRCULAR);
    for (int i = 0; i < 4; i++) {
        const int size = d[1 + i / 2], most = how == HVT_PAD_REFLECT    ? size - 1
                                              : how == HVT_PAD_CIRCULAR ? size
                                                                        : HVT_MOST;

        HVT_EXPECT(m, l, by[i] >= 0 && by[i] <= most,
                   "padding of %d and %d rows, %d and %d columns around %dx%dx%d; expected 0 to %d %s", top,
                   bottom, left, right, d[1], d[2], d[3], most, i < 2 ? "rows" : "columns");
    }
    l->is.resample = (hvt__resampling){.kind = (int)how, .pad = {top, left}};
    return hvt__layer_end(m, l, (int64_t)d[1] + top + bottom, (int64_t)d[2] + left + right, d[3]);
}

hvt_value hvt_gather_pixels(hvt_model *m, hvt_value x, int h, int w, int terms, const int *index)
{
    hvt_layer *l = hvt__layer_begin(m, &hvt_layer_gather, x);
    hvt__constants *kept;
    int64_t n;

    if (!l)
        return -1;
    HVT_EXPECT(m, l, index, "the indices are NULL");
    HVT_EXPECT(m, l,
               h > 0 && w > 0 && terms > 0 && h <= HVT_MOST && w <= HVT_MOST / h && terms <= HVT_MOST / h / w,
               "%d terms of %dx%d pixels; expected 1 to %d indices", terms, h, w, HVT_MOST);
    n = (int64_t)h * w * terms;
    for (int64_t i = 0; i < n; i++)
        HVT_EXPECT(m, l, index[i] >= -1 && index[i] < hvt__pixels(l), "index %lld is %d; expected -1 to %d",
                   (long long)i, index[i], hvt__pixels(l) - 1);
    kept = hvt__constants_begin(m, l, &(hvt__constants){.all = (size_t)n});
    if (!kept)
        return -1;
    memcpy(kept->data, index, (size_t)n * sizeof *index);
    return hvt__layer_end(m, l, h, w, l->y.dim[3]);
}

/* ---- weights along one dimension ---- */

typedef struct axis {
    const hvt__resampling *by;
    int in, out, pad;
    double given; /* scale factor; 0: out / in */
} axis;

/* Adds a tap to an output that has `count` taps; returns the new count. The image's edge repeats outside. */
static int add_tap(const axis *a, hvt_tap *tap, int count, int index, double weight)
{
    index = index < 0 ? 0 : index < a->in ? index : a->in - 1;
    for (int i = 0; i < count; i++)
        if (tap[i].index == index) {
            tap[i].weight += (float)weight;
            return count;
        }
    tap[count] = (hvt_tap){index, (float)weight};
    return count + (weight != 0);
}

/* Input pixels per output pixel. */
static float step_of(const axis *a)
{
    if (a->by->aligned)
        return a->out > 1 ? (float)(a->in - 1) / (float)(a->out - 1) : 0;
    return a->given > 0 ? (float)(1 / a->given) : (float)a->in / (float)a->out;
}

static int nearest(const axis *a, int o)
{
    const double at = (double)o + (a->by->kind == HVT_NEAREST_EXACT ? 0.5 : 0);
    int i = (int)floorf((float)(at * (double)step_of(a)));

    if (a->by->kind == HVT_NEAREST && a->out == a->in)
        i = o;
    if (a->by->kind == HVT_NEAREST && a->out == 2 * a->in)
        i = o / 2;
    return i;
}

/* The cubic convolution of Keys 1981; a: the slope at 1. */
static double cubic(double x, double a)
{
    x = fabs(x);
    return x < 1   ? ((a + 2) * x - (a + 3)) * x * x + 1
           : x < 2 ? ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
                   : 0;
}

static double filter(const axis *a, double x, double slope)
{
    return a->by->kind == HVT_BICUBIC ? cubic(x, slope) : fmax(0, 1 - fabs(x));
}

/* Half the width of an antialiasing filter, in input pixels. */
static double support(const axis *a)
{
    return (a->by->kind == HVT_BICUBIC ? 2 : 1) * fmax(step_of(a), 1);
}

/* Taps of antialiased interpolation, as in Pillow: shrinking widens the filter, whose weights sum to 1. */
static int smoothed_taps(const axis *a, int o, hvt_tap *ret)
{
    const double step = step_of(a), center = step * (o + 0.5), wide = fmax(step, 1);
    const int from = (int)fmax(center - support(a) + 0.5, 0),
              end = (int)fmin(center + support(a) + 0.5, (double)a->in);
    double sum = 0;
    int count = 0;

    for (int i = from; i < end; i++)
        sum += filter(a, (i - center + 0.5) / wide, -0.5);
    for (int i = from; i < end; i++)
        count = add_tap(a, ret, count, i, filter(a, (i - center + 0.5) / wide, -0.5) / sum);
    return count;
}

static int interpolated_taps(const axis *a, int o, hvt_tap *ret)
{
    const bool is_cubic = a->by->kind == HVT_BICUBIC;
    float at = a->by->aligned ? step_of(a) * (float)o : step_of(a) * ((float)o + 0.5f) - 0.5f;
    int first, count = 0;

    if (a->by->kind == HVT_NEAREST || a->by->kind == HVT_NEAREST_EXACT)
        return add_tap(a, ret, 0, nearest(a, o), 1);
    if (a->by->smoothed)
        return smoothed_taps(a, o, ret);
    at = at < 0 && !is_cubic ? 0 : at;
    first = (int)floorf(at);
    for (int i = is_cubic ? -1 : 0; i < (is_cubic ? 3 : 2); i++)
        count = add_tap(a, ret, count, first + i, filter(a, (double)at - first - i, -0.75));
    return count;
}

static int padded_tap(const axis *a, int o, hvt_tap *ret)
{
    int i = o - a->pad;

    if (a->by->kind == HVT_PAD_REFLECT)
        i = i < 0 ? -i : i < a->in ? i : 2 * (a->in - 1) - i;
    if (a->by->kind == HVT_PAD_CIRCULAR)
        i = i < 0 ? i + a->in : i < a->in ? i : i - a->in;
    return add_tap(a, ret, 0, i, 1);
}

/* Computes all taps of dimension i. The caller frees *ret, also after a failure. */
static hvt_status open_taps(const hvt_model *m, const hvt_layer *l, int i, hvt_taps *ret)
{
    const bool pads = l->ops == &hvt_layer_border;
    const axis a = {&l->is.resample, m->layer[l->in[0]].y.dim[1 + i], l->y.dim[1 + i], l->is.resample.pad[i],
                    l->is.resample.scale[i]};
    const size_t most = !pads && a.by->smoothed ? (size_t)fmin(2 * support(&a) + 1, a.in) : 4;
    hvt_tap *tap = malloc((size_t)a.out * most * sizeof *tap);
    int *first = malloc(((size_t)a.out + 1) * sizeof *first), count = 0;

    *ret = (hvt_taps){a.in, a.out, first, tap};
    HVT_CHECK(tap && first, E_MEM, "no memory for the weights of layer %s", l->name);
    for (int o = 0; o < a.out; o++) {
        first[o] = count;
        count += pads ? padded_tap(&a, o, tap + count) : interpolated_taps(&a, o, tap + count);
    }
    first[a.out] = count;
    return HVT_OK;
}

static void close_taps(hvt_taps *t)
{
    free((void *)t->first);
    free((void *)t->tap);
}

/* ---- the layers ---- */

static hvt_status resample_plan(hvt_model *m, hvt_layer *l)
{
    hvt_resample_desc d = {.order = m->order, .type = l->y.dtype, .n = m->batch, .c = l->y.dim[3]};
    hvt_status s;

    HVT__COMPUTES(m, l, resample.plan);
    s = open_taps(m, l, 0, &d.rows);
    if (s == HVT_OK)
        s = open_taps(m, l, 1, &d.columns);
    if (s == HVT_OK)
        s = m->dev->ops->resample.plan(m->dev, &d, &l->op);
    close_taps(&d.rows);
    close_taps(&d.columns);
    return s;
}

/* An image is one line of pixels; each output has a tap for each of its indices. */
static hvt_status gather_plan(hvt_model *m, hvt_layer *l)
{
    static const hvt_tap one = {0, 1};
    const int n = hvt__pixels(l), all = (int)l->constants->all, *index = l->constants->data;
    hvt_tap *tap = malloc((size_t)all * sizeof *tap);
    int *first = malloc(((size_t)n + 1) * sizeof *first), count = 0;
    hvt_resample_desc d = {.order = m->order,
                           .type = l->y.dtype,
                           .n = m->batch,
                           .c = l->y.dim[3],
                           .rows = {1, 1, (const int[]){0, 1}, &one},
                           .columns = {hvt__pixels(hvt__in(m, l, 0)), n, first, tap}};
    hvt_status s = HVT_OK;

    HVT_CHECK_OR(done, m->dev->ops->resample.plan, E_UNSUPPORTED,
                 "layer %s (gather): device %s does not compute it", l->name, m->dev->ops->name);
    HVT_CHECK_OR(done, tap && first, E_MEM, "no memory for the indices of layer %s", l->name);
    for (int i = 0; i < all; i++) {
        if (i % (all / n) == 0)
            first[i / (all / n)] = count;
        if (index[i] >= 0)
            tap[count++] = (hvt_tap){index[i], 1};
    }
    first[n] = count;
    s = m->dev->ops->resample.plan(m->dev, &d, &l->op);
done:
    free(tap);
    free(first);
    return s;
}

static hvt_status resample_forward(hvt_model *m, hvt_layer *l)
{
    return m->dev->ops->resample.forward(l->op, m->real, hvt__in(m, l, 0)->y.data, l->y.data);
}

static hvt_status resample_backward(hvt_model *m, hvt_layer *l)
{
    return m->dev->ops->resample.backward(l->op, m->real, l->dy.data, hvt__in(m, l, 0)->dy.data, l->add[0]);
}

static uint64_t interpolate_hash(const hvt_model *m, const hvt_layer *l, uint64_t h)
{
    const hvt__resampling *r = &l->is.resample;

    return HVT__HASH(h, r->kind, r->aligned, r->smoothed, r->scale[0], r->scale[1], r->size[0], r->size[1]);
}

static uint64_t border_hash(const hvt_model *m, const hvt_layer *l, uint64_t h)
{
    const hvt__resampling *r = &l->is.resample;
    const int *in = m->layer[l->in[0]].y.dim, *out = l->y.dim;

    return HVT__HASH(h, r->kind, r->pad[0], r->pad[1], out[1] - in[1], out[2] - in[2]);
}

const hvt_layer_ops hvt_layer_interpolate = {"interpolate", resample_plan, resample_forward,
                                             resample_backward, .hash = interpolate_hash};
const hvt_layer_ops hvt_layer_border = {"border", resample_plan, resample_forward, resample_backward,
                                        .hash = border_hash};
const hvt_layer_ops hvt_layer_gather = {"gather", gather_plan, resample_forward, resample_backward,
                                        .hash = hvt__hash_no_arguments};
