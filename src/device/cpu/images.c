/*
 * Bytes to normalised floats (crop, mirror, normalise), and the option A shortcut of He et al.
 *
 * In HWN order the floats of one image are n*c apart, 12 bytes for three channels. So a group of images is
 * written together, pixel by pixel, and writes are contiguous.
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

/* Bytes of output pixels [first, first+count) of row p of image n, as crop and mirror choose them; 0
 * outside. */
static void choose(const hvt_augment_args *a, int n, int p, int first, int count, uint8_t *out)
{
    const int8_t *draw = a->draws ? a->draws + n * 3 : (const int8_t[3]){0};
    const int c = a->c, h = p + draw[0];
    const uint8_t *row;

    if (h < 0 || h >= a->h) {
        memset(out, 0, (size_t)count * c);
        return;
    }
    row = a->src + ((size_t)n * a->h + h) * a->w * c;
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

/* Store a pixel's c elements, and zeros up to cx. */
static inline void put_pixel(bool wide, void *dst, const void *src, int c, int cx)
{
    for (int k = 0; wide && k < cx; k++)
        ((float *)dst)[k] = k < c ? ((const float *)src)[k] : 0;
    for (int k = 0; !wide && k < cx; k++)
        ((uint16_t *)dst)[k] = k < c ? ((const uint16_t *)src)[k] : 0;
}

/* Copy pixels [first, first+count) of row p of `images` images, from `start` on, from tiles with c elements
 * per pixel to the batch. */
static inline void put_tiles(bool wide, const hvt_augment_args *a, int start, int images, int p, int first,
                             int count, const void *tiles, size_t tile)
{
    const size_t size = wide ? sizeof(float) : sizeof(uint16_t);
    const bool hwn = a->order == HVT_ORDER_HWN;

    for (int q = 0; q < count; q++)
        for (int i = 0; i < images; i++) {
            size_t pixel = (size_t)p * a->w + first + q;
            size_t row = hwn ? pixel * a->n + start + i : (size_t)(start + i) * a->h * a->w + pixel;

            put_pixel(wide, (char *)a->dst + row * a->cx * size,
                      (const char *)tiles + i * tile + (size_t)q * a->c * size, a->c, a->cx);
        }
}

static void group_job(void *ctx, int job, int thread)
{
    const augment *g = ctx;
    const hvt_augment_args *a = g->a;
    const int c = a->c, start = job * GROUP, images = a->real - start < GROUP ? a->real - start : GROUP;
    const bool wide = a->type == HVT_F32, as_is = wide && a->order == HVT_ORDER_NHW && a->cx == c;
    uint8_t bytes[TILE * MOST_CHANNELS];
    float floats[GROUP][TILE * MOST_CHANNELS];
    uint16_t halves[GROUP][TILE * MOST_CHANNELS];

    (void)thread;
    for (int i = start; i < start + images; i++)
        a->dst_labels[i] = a->labels[i];
    for (int p = 0; p < a->h; p++)
        for (int first = 0; first < a->w; first += TILE) {
            const int count = a->w - first < TILE ? a->w - first : TILE;
            const size_t n = (size_t)count * c;

            for (int i = 0; i < images; i++) {
                const size_t pixel = ((size_t)(start + i) * a->h + p) * a->w + first;
                float *to = as_is ? (float *)a->dst + pixel * c : floats[i];

                choose(a, start + i, p, first, count, bytes);
                g->el->normalise(n, bytes, c, g->scale, g->shift, to);
                if (!wide)
                    g->el->cast(n, 1, to, HVT_F32, halves[i], a->type);
            }
            if (wide && !as_is)
                put_tiles(true, a, start, images, p, first, count, floats, sizeof *floats);
            else if (!wide)
                put_tiles(false, a, start, images, p, first, count, halves, sizeof *halves);
        }
}

hvt_status hvt__augment_cpu(hvt_device *d, const hvt_augment_args *a)
{
    const hvt_cpu *cpu = d->state;
    augment g = {.el = cpu->isa->el, .a = a};

    HVT_CHECK(a->c >= 1 && a->c <= MOST_CHANNELS, E_UNSUPPORTED, "images have 1 to %d channels, not %d",
              MOST_CHANNELS, a->c);
    for (int i = 0; i < a->c * g.el->vl; i++) {
        g.scale[i] = a->scale[i % a->c];
        g.shift[i] = a->shift[i % a->c];
    }
    hvt__parallel_for(cpu->pool, (a->real + GROUP - 1) / GROUP, group_job, &g);
    return HVT_OK;
}

/* ---- subsampling ---- */

typedef struct subsample {
    const hvt_typed *in;
    hvt_order order;
    hvt_dtype type;
    int n, h, w, c, p, q, stride, channels, lead;
    const void *from;
    void *to;
    bool add;
} subsample;

static subsample make_subsample(const hvt_device *d, hvt_order o, hvt_dtype t, int n, int h, int w, int c,
                                int stride, int channels)
{
    const hvt_cpu *cpu = d->state;

    return (subsample){.in = cpu->isa->el->in[t],
                       .order = o,
                       .type = t,
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
            size_t x = row_of(s, s->h, s->w, n, p * s->stride, q * s->stride) * s->c;
            size_t y = row_of(s, s->p, s->q, n, p, q) * s->channels;

            memset(hvt__at(s->to, s->type, y), 0, s->channels * hvt_dtype_size(s->type));
            memcpy(hvt__at(s->to, s->type, y + s->lead), hvt__at(s->from, s->type, x),
                   s->c * hvt_dtype_size(s->type));
        }
}

hvt_status hvt__subsample_forward_cpu(hvt_device *d, hvt_order o, hvt_dtype t, int n, int h, int w, int c,
                                      int stride, int channels, const void *x, void *y)
{
    const hvt_cpu *cpu = d->state;
    subsample s = make_subsample(d, o, t, n, h, w, c, stride, channels);

    s.from = x;
    s.to = y;
    hvt__parallel_for(cpu->pool, s.p, subsample_forward_job, &s);
    return HVT_OK;
}

/* One row of input pixels of all images. */
static void subsample_backward_job(void *ctx, int h, int thread)
{
    const subsample *s = ctx;

    (void)thread;
    for (int w = 0; w < s->w; w++)
        for (int n = 0; n < s->n; n++) {
            void *dx = hvt__at(s->to, s->type, row_of(s, s->h, s->w, n, h, w) * s->c);
            const void *dy =
                hvt__at(s->from, s->type,
                        row_of(s, s->p, s->q, n, h / s->stride, w / s->stride) * s->channels + s->lead);
            bool read = h % s->stride == 0 && w % s->stride == 0;

            if (read && s->add)
                s->in->add(s->c, dx, dy, dx);
            else if (read)
                memcpy(dx, dy, s->c * hvt_dtype_size(s->type));
            else if (!s->add)
                memset(dx, 0, s->c * hvt_dtype_size(s->type));
        }
}

hvt_status hvt__subsample_backward_cpu(hvt_device *d, hvt_order o, hvt_dtype t, int n, int h, int w, int c,
                                       int stride, int channels, const void *dy, void *dx, bool add)
{
    const hvt_cpu *cpu = d->state;
    subsample s = make_subsample(d, o, t, n, h, w, c, stride, channels);

    s.from = dy;
    s.to = dx;
    s.add = add;
    hvt__parallel_for(cpu->pool, h, subsample_backward_job, &s);
    return HVT_OK;
}
