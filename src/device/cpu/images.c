/*
 * Bytes to floats (crop, mirror, normalise), and He's subsampling shortcut.
 *
 * In HWN order the floats of one image lie n*c apart, 12 bytes for three channels. So a group of images is
 * written together, pixel by pixel: what lies side by side is written side by side.
 */
#include "base_impl.h"
#include "cpu_impl.h"
#include "device/host.h"
#include "elementwise.h"

#include <string.h>

/* ---- augment ---- */

enum { GROUP = 16, TILE = 64, MOST_CHANNELS = 4, MOST_VECTOR = 16 };

typedef struct augment {
    const hvt_elementwise *el;
    const hvt_augment_args *a;
    float scale[MOST_CHANNELS * MOST_VECTOR], shift[MOST_CHANNELS * MOST_VECTOR]; /* repeated to c vectors */
} augment;

/* Bytes of output pixels [first, first+count) of row p of image n, as crop and mirror choose them; 0 outside.
 */
static void choose(const hvt_augment_args *a, int n, int p, int first, int count, uint8_t *out)
{
    const int8_t *draw = a->draws ? a->draws + n * 3 : (const int8_t[3]){0};
    const int c = a->c, h = p + draw[0];
    const uint8_t *row = a->src + ((size_t)n * a->h + h) * a->w * c;

    if (h < 0 || h >= a->h) {
        memset(out, 0, (size_t)count * c);
        return;
    }
    if (!draw[2] && first + draw[1] >= 0 && first + draw[1] + count <= a->w) {
        memcpy(out, row + (first + draw[1]) * c, (size_t)count * c);
        return;
    }
    for (int q = first; q < first + count; q++, out += c) {
        int w = (draw[2] ? a->w - 1 - q : q) + draw[1];

        for (int i = 0; i < c; i++)
            out[i] = w >= 0 && w < a->w ? row[w * c + i] : 0;
    }
}

static void group_job(void *ctx, int job, int thread)
{
    const augment *g = ctx;
    const hvt_augment_args *a = g->a;
    const int c = a->c, start = job * GROUP, images = a->real - start < GROUP ? a->real - start : GROUP;
    uint8_t bytes[TILE * MOST_CHANNELS];
    float floats[GROUP][TILE * MOST_CHANNELS];

    (void)thread;
    for (int p = 0; p < a->h; p++)
        for (int first = 0; first < a->w; first += TILE) {
            int count = a->w - first < TILE ? a->w - first : TILE;
            float *hwn = a->dst + (((size_t)p * a->w + first) * a->n + start) * c;

            for (int i = 0; i < images; i++) {
                float *nhw = a->dst + (((size_t)(start + i) * a->h + p) * a->w + first) * c;

                choose(a, start + i, p, first, count, bytes);
                g->el->normalise((size_t)count * c, bytes, c, g->scale, g->shift,
                                 a->order == HVT_ORDER_NHW ? nhw : floats[i]);
            }
            if (a->order == HVT_ORDER_NHW)
                continue;
            for (int q = 0; q < count; q++, hwn += (size_t)a->n * c)
                for (int i = 0; i < images; i++)
                    for (int k = 0; k < c; k++)
                        hwn[i * c + k] = floats[i][q * c + k];
        }
}

hvt_status augment_cpu(hvt_device *d, const hvt_augment_args *a)
{
    const hvt_cpu *cpu = d->state;
    augment g = {.el = cpu->isa->el, .a = a};

    HVT_CHECK(a->c >= 1 && a->c <= MOST_CHANNELS, E_UNSUPPORTED, "images have 1 to %d channels, not %d",
              MOST_CHANNELS, a->c);
    for (int i = 0; i < a->c * g.el->vl; i++) {
        g.scale[i] = a->scale[i % a->c];
        g.shift[i] = a->shift[i % a->c];
    }
    hvt__pool_run(cpu->pool, (a->real + GROUP - 1) / GROUP, group_job, &g);
    return HVT_OK;
}

/* ---- subsampling ---- */

typedef struct subsample {
    hvt_order order;
    int n, h, w, c, p, q, stride, channels, lead;
    const float *from;
    float *to;
    bool add;
} subsample;

static subsample make_subsample(hvt_order o, int n, int h, int w, int c, int stride, int channels)
{
    return (subsample){.order = o,
                       .n = n,
                       .h = h,
                       .w = w,
                       .c = c,
                       .p = (h + stride - 1) / stride,
                       .q = (w + stride - 1) / stride,
                       .stride = stride,
                       .channels = channels,
                       .lead = (channels - c) / 2};
}

/* Row of a matrix for pixel (h, w) of image n. */
static size_t row_of(const subsample *s, int height, int width, int n, int h, int w)
{
    return s->order == HVT_ORDER_HWN ? ((size_t)h * width + w) * s->n + n
                                     : ((size_t)n * height + h) * width + w;
}

/* One row of output pixels of all images. */
static void subsample_forward_job(void *ctx, int p, int thread)
{
    const subsample *s = ctx;

    (void)thread;
    for (int q = 0; q < s->q; q++)
        for (int n = 0; n < s->n; n++) {
            const float *x = s->from + row_of(s, s->h, s->w, n, p * s->stride, q * s->stride) * s->c;
            float *y = s->to + row_of(s, s->p, s->q, n, p, q) * s->channels;

            for (int i = 0; i < s->lead; i++)
                y[i] = 0;
            for (int i = 0; i < s->c; i++)
                y[s->lead + i] = x[i];
            for (int i = s->lead + s->c; i < s->channels; i++)
                y[i] = 0;
        }
}

hvt_status subsample_forward_cpu(hvt_device *d, hvt_order o, hvt_dtype t, int n, int h, int w, int c,
                                 int stride, int channels, const void *x, void *y)
{
    const hvt_cpu *cpu = d->state;
    subsample s = make_subsample(o, n, h, w, c, stride, channels);

    HVT_CHECK_F32(t);
    s.from = x;
    s.to = y;
    hvt__pool_run(cpu->pool, s.p, subsample_forward_job, &s);
    return HVT_OK;
}

/* One row of input pixels of all images. */
static void subsample_backward_job(void *ctx, int h, int thread)
{
    const subsample *s = ctx;

    (void)thread;
    for (int w = 0; w < s->w; w++)
        for (int n = 0; n < s->n; n++) {
            float *dx = s->to + row_of(s, s->h, s->w, n, h, w) * s->c;
            bool read = h % s->stride == 0 && w % s->stride == 0;
            const float *dy =
                read
                    ? s->from + row_of(s, s->p, s->q, n, h / s->stride, w / s->stride) * s->channels + s->lead
                    : NULL;

            for (int i = 0; dy && i < s->c; i++)
                dx[i] = s->add ? dx[i] + dy[i] : dy[i];
            for (int i = 0; !dy && !s->add && i < s->c; i++)
                dx[i] = 0;
        }
}

hvt_status subsample_backward_cpu(hvt_device *d, hvt_order o, hvt_dtype t, int n, int h, int w, int c,
                                  int stride, int channels, const void *dy, void *dx, bool add)
{
    const hvt_cpu *cpu = d->state;
    subsample s = make_subsample(o, n, h, w, c, stride, channels);

    HVT_CHECK_F32(t);
    s.from = dy;
    s.to = dx;
    s.add = add;
    hvt__pool_run(cpu->pool, h, subsample_backward_job, &s);
    return HVT_OK;
}
