/*
 * Augmentation (crop, mirror, normalise, erase, mix), and the option A shortcut of He et al.
 *
 * In HWN order an image's pixels, 12 bytes for three channels, are n*c floats apart. So a group of images is
 * written together, pixel by pixel, to make writes contiguous. In NHW order a row of an image is contiguous,
 * and floats are written directly.
 */
#include "base_impl.h"
#include "cpu_impl.h"
#include "device/host.h"
#include "device/scalar.h"
#include "elementwise.h"

enum { GROUP = 16, TILE = 64, LINE = 512 /* pixels */, MOST_CHANNELS = 4, MOST_VECTOR = 16 };
enum { STREAMED = 16 << 20 /* bytes */ };

typedef struct augment {
    const hvt_elementwise *el;
    const hvt_augment_args *a;
    bool stream; /* the batch is too large for the caches */
    int bands;   /* bands of rows; a job is a band of a group of images */
    _Alignas(64) float scale[MOST_CHANNELS * MOST_VECTOR]; /* repeated to fill c vectors */
    _Alignas(64) float shift[MOST_CHANNELS * MOST_VECTOR];
} augment;

static void copy_pixels(const augment *g, bool mirror, int count, const char *from, size_t pixel, char *to)
{
    if (!mirror)
        memcpy(to, from, count * pixel);
    else if (pixel == 3)
        g->el->mirror(count, (const uint8_t *)from, (uint8_t *)to);
    else
        for (int i = count; i-- > 0; to += pixel)
            memcpy(to, from + i * pixel, pixel);
}

/* Returns the cropped and mirrored output pixels [first, first+count) of row p of image n, in the source's
 * type: in place, or copied to `room`. Pixels outside the image are 0. */
static const void *choose(const augment *g, int n, int p, int first, int count, char *room)
{
    const hvt_augment_args *a = g->a;
    const int8_t *draw = a->draws ? a->draws + n * 3 : (const int8_t[3]){0};
    const bool mirror = draw[2];
    const size_t pixel = a->c * (a->floats ? sizeof(float) : 1);
    const int h = p + draw[0], from = (mirror ? a->w - first - count : first) + draw[1]; /* count columns */
    const int left = from < 0 ? -from : 0,
              right = from + count > a->w ? from + count - a->w : 0; /* pixels outside */
    const int inside = count - left - right, before = mirror ? right : left;
    const char *row;

    if (h < 0 || h >= a->h || inside <= 0) {
        memset(room, 0, count * pixel);
        return room;
    }
    row = (const char *)a->src + (((size_t)n * a->h + h) * a->w + from + left) * pixel;
    if (inside == count && !mirror)
        return row;
    if (mirror) /* hardware prefetches less along descending addresses */
        for (size_t i = 0; i < inside * pixel; i += 64)
            __builtin_prefetch(row + a->w * pixel + i);
    memset(room, 0, before * pixel);
    copy_pixels(g, mirror, inside, row, pixel, room + before * pixel);
    memset(room + (before + inside) * pixel, 0, (count - inside - before) * pixel);
    return room;
}

/* Writes the same pixels as normalised floats. */
static void normalise(const augment *g, int n, int p, int first, int count, float *out)
{
    const hvt_augment_args *a = g->a;
    float room[LINE * MOST_CHANNELS];
    const void *chosen = choose(g, n, p, first, count, (char *)room);

    if (a->floats)
        g->el->normalise_floats((size_t)count * a->c, chosen, a->c, g->scale, g->shift, out);
    else
        g->el->normalise((size_t)count * a->c, chosen, a->c, g->scale, g->shift, out, g->stream);
}

/* Writes the same pixels, normalised and erased in the box. */
static void finish(const augment *g, int n, int p, int first, int count, float *out)
{
    const hvt_augment_args *a = g->a;
    const int16_t *box = a->erased ? a->erased + n * 4 : NULL;
    int left, right;

    normalise(g, n, p, first, count, out);
    if (!box || p < box[0] || p >= box[0] + box[2])
        return;
    left = box[1] > first ? box[1] : first;
    right = box[1] + box[3] < first + count ? box[1] + box[3] : first + count;
    if (left < right)
        memset(out + (left - first) * a->c, 0, (size_t)(right - left) * a->c * sizeof *out);
}

static void mix(size_t count, float share, const float *restrict other, float *restrict x)
{
    for (size_t i = 0; i < count; i++)
        x[i] = augment_mix(share, x[i], other[i]);
}

/* Writes the same pixels, mixed with the image before this one. */
static void finish_mixed(const augment *g, int n, int p, int first, int count, float *out)
{
    const hvt_augment_args *a = g->a;
    const hvt_mixing *m = &a->mixing;
    const int left = m->left > first ? m->left : first,
              right = m->right < first + count ? m->right : first + count;
    float other[LINE * MOST_CHANNELS];

    finish(g, n, p, first, count, out);
    if (p < m->top || p >= m->bottom || left >= right)
        return;
    finish(g, n ? n - 1 : a->real - 1, p, left, right - left, other);
    mix((size_t)(right - left) * a->c, m->share, other, out + (left - first) * a->c);
}

/* Stores a pixel's c elements, and zeros up to cx. */
INLINE void put_pixel(bool wide, void *dst, const void *src, int c, int cx)
{
    for (int k = 0; wide && k < cx; k++)
        ((float *)dst)[k] = k < c ? ((const float *)src)[k] : 0;
    for (int k = 0; !wide && k < cx; k++)
        ((uint16_t *)dst)[k] = k < c ? ((const uint16_t *)src)[k] : 0;
}

/* Copy pixels [first, first+count) of row p of `images` images, from `start` on, from tiles with c elements
 * per pixel to the batch. */
INLINE void put_tiles(bool wide, const hvt_augment_args *a, int c, int cx, int start, int images, int p,
                      int first, int count, const void *tiles, size_t tile)
{
    const size_t size = wide ? sizeof(float) : sizeof(uint16_t);
    const bool hwn = a->order == HVT_ORDER_HWN;

    for (int q = 0; q < count; q++)
        for (int i = 0; i < images; i++) {
            size_t pixel = (size_t)p * a->w + first + q;
            size_t row = hwn ? pixel * a->n + start + i : (size_t)(start + i) * a->h * a->w + pixel;

            put_pixel(wide, (char *)a->dst + row * cx * size,
                      (const char *)tiles + i * tile + (size_t)q * c * size, c, cx);
        }
}

/* Writes some rows of a group of images, tile by tile. */
static void group_job(void *ctx, int job, int thread)
{
    const augment *g = ctx;
    const hvt_augment_args *a = g->a;
    const int band = job % g->bands, end = a->h * (band + 1) / g->bands;
    const int start = job / g->bands * GROUP, images = a->real - start < GROUP ? a->real - start : GROUP;
    float floats[GROUP][TILE * MOST_CHANNELS];
    uint16_t halves[GROUP][TILE * MOST_CHANNELS];
    const bool three = a->c == 3 && a->cx == 3;

    for (int p = a->h * band / g->bands; p < end; p++)
        for (int first = 0; first < a->w; first += TILE) {
            const int count = a->w - first < TILE ? a->w - first : TILE;

            for (int i = 0; i < images; i++) {
                finish_mixed(g, start + i, p, first, count, floats[i]);
                if (a->type != HVT_F32)
                    g->el->in[HVT_F32]->cast((size_t)count * a->c, 1, floats[i], halves[i], a->type);
            }
            if (a->type == HVT_F32 && three) /* constants for the compiler */
                put_tiles(true, a, 3, 3, start, images, p, first, count, floats, sizeof *floats);
            else if (a->type == HVT_F32)
                put_tiles(true, a, a->c, a->cx, start, images, p, first, count, floats, sizeof *floats);
            else if (three)
                put_tiles(false, a, 3, 3, start, images, p, first, count, halves, sizeof *halves);
            else
                put_tiles(false, a, a->c, a->cx, start, images, p, first, count, halves, sizeof *halves);
        }
}

/* job = an image whose rows of floats are contiguous in the batch */
static void image_job(void *ctx, int n, int thread)
{
    const augment *g = ctx;
    const hvt_augment_args *a = g->a;

    for (int p = 0; p < a->h; p++)
        for (int first = 0; first < a->w; first += LINE)
            finish_mixed(g, n, p, first, a->w - first < LINE ? a->w - first : LINE,
                         (float *)a->dst + (((size_t)n * a->h + p) * a->w + first) * a->c);
    hvt__fence();
}

hvt_status hvt__augment_cpu(hvt_device *d, const hvt_augment_args *a)
{
    augment g = {.el = hvt__cpu(d)->isa->el, .a = a};
    const bool as_is = a->type == HVT_F32 && a->order == HVT_ORDER_NHW && a->cx == a->c;
    const int groups = (a->real + GROUP - 1) / GROUP;

    /* what is erased or mixed is written twice */
    g.stream = as_is && !a->erased && !a->mixing.bottom &&
               (size_t)a->real * a->h * a->w * a->c * sizeof(float) > STREAMED;
    g.bands = d->threads > 1 && groups ? (2 * d->threads + groups - 1) / groups : 1;
    g.bands = g.bands < a->h ? g.bands : a->h;
    HVT_CHECK(a->c >= 1 && a->c <= MOST_CHANNELS, E_UNSUPPORTED,
              "expected images of 1 to %d channels, got %d", MOST_CHANNELS, a->c);
    for (int i = 0; i < a->c * g.el->vl; i++) {
        g.scale[i] = a->scale[i % a->c];
        g.shift[i] = a->shift[i % a->c];
    }
    hvt__host_answers(a);
    if (as_is)
        hvt__parallel_for(hvt__cpu(d)->pool, a->real, image_job, &g);
    else
        hvt__parallel_for(hvt__cpu(d)->pool, groups * g.bands, group_job, &g);
    return HVT_OK;
}

typedef struct subsample {
    hvt_subsample_desc d;
    const hvt_typed *in;
    const void *from;
    void *to;
    bool add;
} subsample;

/* first elements of a pixel of x, and of y */
static size_t x_at(const hvt_subsample_desc *d, int n, int h, int w)
{
    return hvt__row_of(d->order, d->n, d->h, d->w, n, h, w) * d->c;
}

static size_t y_at(const hvt_subsample_desc *d, int n, int p, int q)
{
    int height = (d->h + d->stride - 1) / d->stride, width = (d->w + d->stride - 1) / d->stride;

    return hvt__row_of(d->order, d->n, height, width, n, p, q) * d->k;
}

/* Computes one row of output pixels of all images. */
static void subsample_forward_job(void *ctx, int p, int thread)
{
    const subsample *s = ctx;
    const hvt_subsample_desc *d = &s->d;
    const size_t size = hvt_dtype_size(d->type);

    for (int w = 0; w < d->w; w += d->stride)
        for (int n = 0; n < d->n; n++) {
            char *y = hvt__at(s->to, d->type, y_at(d, n, p, w / d->stride));

            memset(y, 0, d->k * size);
            memcpy(y + (d->k - d->c) / 2 * size, hvt__at(s->from, d->type, x_at(d, n, p * d->stride, w)),
                   d->c * size);
        }
}

/* Computes one row of input pixels of all images. */
static void subsample_backward_job(void *ctx, int h, int thread)
{
    const subsample *s = ctx;
    const hvt_subsample_desc *d = &s->d;
    const size_t bytes = d->c * hvt_dtype_size(d->type);

    for (int w = 0; w < d->w; w++)
        for (int n = 0; n < d->n; n++) {
            bool read = h % d->stride == 0 && w % d->stride == 0;
            void *dx = hvt__at(s->to, d->type, x_at(d, n, h, w));
            const void *dy =
                hvt__at(s->from, d->type, y_at(d, n, h / d->stride, w / d->stride) + (d->k - d->c) / 2);

            if (read && s->add)
                s->in->add(d->c, dx, dy, dx, false);
            else if (read)
                memcpy(dx, dy, bytes);
            else if (!s->add)
                memset(dx, 0, bytes);
        }
}

hvt_status hvt__subsample_forward_cpu(hvt_device *dev, const hvt_subsample_desc *d, const void *x, void *y)
{
    subsample s = {*d, .from = x, .to = y};

    hvt__parallel_for(hvt__cpu(dev)->pool, (d->h + d->stride - 1) / d->stride, subsample_forward_job, &s);
    return HVT_OK;
}

hvt_status hvt__subsample_backward_cpu(hvt_device *dev, const hvt_subsample_desc *d, const void *dy, void *dx,
                                       bool add)
{
    subsample s = {*d, hvt__cpu(dev)->isa->el->in[d->type], dy, dx, add};

    hvt__parallel_for(hvt__cpu(dev)->pool, d->h, subsample_backward_job, &s);
    return HVT_OK;
}
