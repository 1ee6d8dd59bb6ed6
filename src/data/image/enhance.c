/*
 * Operations on the pixels of an image, with the bytes of torchvision.transforms.functional on Pillow images.
 *
 * Sources: torchvision 0.29 (_functional_pil.py, functional.py), Pillow 13 (ImageEnhance.py, ImageOps.py,
 * libImaging's Blend.c, Convert.c, Filter.c, Geometry.c). The arithmetic is theirs, to the type: floats where
 * Pillow has floats, 16.16 fixed point for coordinates. Pixels outside the image are 0. Most operations map
 * each byte by itself and are a table of 256 entries per channel.
 */
#include "image_impl.h"

#include <math.h>

enum { CHUNK = 768 }; /* bytes; whole pixels of 1 and of 3 channels */

typedef struct image {
    int h, w, c;
    const uint8_t *from;
    uint8_t *to;
} image;

static size_t bytes_of(const image *m)
{
    return (size_t)m->h * (size_t)m->w * (size_t)m->c;
}

/* ---- tables ------------------------------------------------------------------------------------ */

typedef uint8_t table[3][256]; /* one per channel */

static void map(const image *m, table t)
{
    const size_t bytes = bytes_of(m);
    const uint8_t *from = m->from;
    uint8_t *to = m->to;

    if (m->c == 1)
        for (size_t i = 0; i < bytes; i++)
            to[i] = t[0][from[i]];
    else
        for (size_t i = 0; i < bytes; i += 3) {
            to[i] = t[0][from[i]];
            to[i + 1] = t[1][from[i + 1]];
            to[i + 2] = t[2][from[i + 2]];
        }
}

/* The same table for all channels. */
static void map_all(const image *m, table t)
{
    memcpy(t[1], t[0], sizeof t[0]);
    memcpy(t[2], t[0], sizeof t[0]);
    map(m, t);
}

static void count_bytes(const image *m, uint32_t ret_count[3][256])
{
    const size_t bytes = bytes_of(m);

    memset(ret_count, 0, 3 * sizeof *ret_count);
    if (m->c == 1)
        for (size_t i = 0; i < bytes; i++)
            ret_count[0][m->from[i]]++;
    else
        for (size_t i = 0; i < bytes; i += 3) {
            ret_count[0][m->from[i]]++;
            ret_count[1][m->from[i + 1]]++;
            ret_count[2][m->from[i + 2]]++;
        }
}

static void identity(uint8_t t[256])
{
    for (int v = 0; v < 256; v++)
        t[v] = (uint8_t)v;
}

static void posterize(const image *m, int bits)
{
    table t;

    for (int v = 0; v < 256; v++)
        t[0][v] = (uint8_t)(v & ~((1 << (8 - bits)) - 1));
    map_all(m, t);
}

/* Inverts the bytes that are not below the threshold. */
static void solarize(const image *m, double threshold)
{
    table t;

    for (int v = 0; v < 256; v++)
        t[0][v] = (uint8_t)(v < threshold ? v : 255 - v);
    map_all(m, t);
}

static void stretch(const uint32_t count[256], uint8_t t[256])
{
    int low = 0, high = 255;
    double scale, offset;

    identity(t);
    while (low < 255 && !count[low])
        low++;
    while (high > 0 && !count[high])
        high--;
    if (high <= low)
        return;
    scale = 255.0 / (high - low);
    offset = -low * scale;
    for (int v = 0; v < 256; v++) {
        int to = (int)(v * scale + offset);

        t[v] = (uint8_t)(to < 0 ? 0 : to > 255 ? 255 : to);
    }
}

static void flatten(const uint32_t count[256], uint8_t t[256])
{
    int64_t all = 0, last = 0, step, n;

    identity(t);
    for (int v = 0; v < 256; v++) {
        all += count[v];
        last = count[v] ? count[v] : last;
    }
    step = (all - last) / 255;
    if (!step)
        return;
    n = step / 2;
    for (int v = 0; v < 256; v++) {
        int64_t to = n / step;

        t[v] = (uint8_t)(to > 255 ? 255 : to);
        n += count[v];
    }
}

static void by_histogram(const image *m, void (*fill)(const uint32_t count[256], uint8_t t[256]))
{
    uint32_t count[3][256];
    table t;

    count_bytes(m, count);
    for (int k = 0; k < m->c; k++)
        fill(count[k], t[k]);
    map(m, t);
}

/* ---- blending ---------------------------------------------------------------------------------- */

/* Returns a + share * (b - a); a share above 1 goes beyond b. */
static inline uint8_t blend(int a, int b, float share)
{
    float x = (float)a + share * (float)(b - a);

    return (uint8_t)(x <= 0 ? 0 : x >= 255 ? 255 : x);
}

static void blend_bytes(int count, const uint8_t *restrict a, const uint8_t *restrict b, float share,
                        uint8_t *restrict to)
{
    for (int i = 0; i < count; i++)
        to[i] = blend(a[i], b[i], share);
}

/* Blends the image with one grey value. */
static void blend_grey(const image *m, int grey, float share)
{
    table t;

    for (int v = 0; v < 256; v++)
        t[0][v] = blend(grey, v, share);
    map_all(m, t);
}

static inline int luma(const uint8_t *rgb)
{
    return (int)((19595u * rgb[0] + 38470u * rgb[1] + 7471u * rgb[2] + 32768u) >> 16);
}

static int mean_luma(const image *m)
{
    const size_t pixels = (size_t)m->h * (size_t)m->w;
    uint64_t sum = 0;

    if (m->c == 1)
        for (size_t i = 0; i < pixels; i++)
            sum += m->from[i];
    else
        for (size_t i = 0; i < pixels; i++)
            sum += (uint64_t)luma(m->from + 3 * i);
    return (int)((double)sum / (double)pixels + .5);
}

/* Blends each pixel with its grey value. */
static void saturate(const image *m, float share)
{
    const size_t bytes = bytes_of(m);
    uint8_t grey[CHUNK];

    if (m->c == 1) {
        memcpy(m->to, m->from, bytes);
        return;
    }
    for (size_t at = 0; at < bytes; at += CHUNK) {
        int count = bytes - at < CHUNK ? (int)(bytes - at) : CHUNK;

        for (int i = 0; i < count; i += 3)
            grey[i] = grey[i + 1] = grey[i + 2] = (uint8_t)luma(m->from + at + i);
        blend_bytes(count, grey, m->from + at, share, m->to + at);
    }
}

/* Pillow's SMOOTH: weights 1 around 5, divided by 13 and rounded; a quotient is never near a half. */
static void smooth(int count, const uint8_t *above, const uint8_t *row, const uint8_t *below, int c,
                   uint8_t *restrict to)
{
    for (int i = 0; i < count; i++) {
        int ring = above[i - c] + above[i] + above[i + c] + row[i - c] + row[i + c] + below[i - c] +
                   below[i] + below[i + c];

        to[i] = (uint8_t)((unsigned)(2 * (ring + 5 * row[i]) + 13) / 26);
    }
}

/* Blends the image with its smoothed copy, whose outermost pixels are the image's own. */
static void sharpen(const image *m, float share)
{
    const int pitch = m->w * m->c, inside = pitch - 2 * m->c;
    uint8_t soft[CHUNK];

    memcpy(m->to, m->from, bytes_of(m));
    for (int y = 1; y < m->h - 1; y++) {
        const uint8_t *row = m->from + (size_t)y * (size_t)pitch + m->c;
        uint8_t *to = m->to + (size_t)y * (size_t)pitch + m->c;

        for (int x = 0; x < inside; x += CHUNK) {
            int count = inside - x < CHUNK ? inside - x : CHUNK;

            smooth(count, row + x - pitch, row + x, row + x + pitch, m->c, soft);
            blend_bytes(count, soft, row + x, share, to + x);
        }
    }
}

static void rotate_hue(const image *m, uint8_t by)
{
    if (m->c == 1)
        memcpy(m->to, m->from, bytes_of(m));
    else
        hvt__rotate_hue((size_t)m->h * (size_t)m->w, by, m->from, m->to);
}

/* ---- affine ------------------------------------------------------------------------------------ */

/* The pixel of the image for output (x, y) is (a[0] x + a[1] y + a[2], a[3] x + a[4] y + a[5]). */
typedef struct affine {
    double a[6];
} affine;

static int fixed(double v)
{
    return (int)floor(v * 65536.0 + .5);
}

/* Narrows [*first, *end) to the x with 0 <= start + x * step < most. */
static void narrow(int64_t start, int64_t step, int64_t most, int *first, int *end)
{
    int64_t low = 0, high = *end;

    if (step == 0) {
        high = start >= 0 && start < most ? high : 0;
    } else {
        int64_t at = step > 0 ? -start : start - (most - 1), to = step > 0 ? most - 1 - start : start;

        step = step < 0 ? -step : step;
        low = at > 0 ? (at + step - 1) / step : 0;
        high = to < 0 ? 0 : to / step + 1;
    }
    *first = low > *first ? (int)(low < *end ? low : *end) : *first;
    *end = high < *end ? (int)high : *end;
}

/* Copies pixels of 3 bytes, 4 bytes at a time but for the last one. */
static void gather_three(const image *m, int first, int end, int xx, int yy, int dx, int dy, uint8_t *to)
{
    const size_t pitch = (size_t)m->w * 3;

    for (int x = first; x < end; x++, xx += dx, yy += dy, to += 3)
        memcpy(to, m->from + (size_t)(yy >> 16) * pitch + (size_t)(xx >> 16) * 3, x + 1 < end ? 4 : 3);
}

static void gather_one(const image *m, int first, int end, int xx, int yy, int dx, int dy, uint8_t *to)
{
    for (int x = first; x < end; x++, xx += dx, yy += dy)
        *to++ = m->from[(size_t)(yy >> 16) * (size_t)m->w + (size_t)(xx >> 16)];
}

/* Transforms the image, taking the nearest pixel. Sides are at most HVT_SIDE_MAX, so coordinates fit in 16
 * bits before the point. */
static void transform(const image *m, const affine *f)
{
    const double *a = f->a;
    const size_t pitch = (size_t)m->w * (size_t)m->c;
    int dx = fixed(a[0]), dy = fixed(a[3]), xx = fixed(a[2] + a[0] * .5 + a[1] * .5);
    int yy = fixed(a[5] + a[3] * .5 + a[4] * .5), down_x = fixed(a[1]), down_y = fixed(a[4]);

    for (int y = 0; y < m->h; y++, xx += down_x, yy += down_y) {
        int first = 0, end = m->w;
        uint8_t *row = m->to + (size_t)y * pitch, *to;

        narrow(xx, dx, (int64_t)m->w << 16, &first, &end);
        narrow(yy, dy, (int64_t)m->h << 16, &first, &end);
        end = end < first ? first : end;
        to = row + (size_t)first * (size_t)m->c;
        memset(row, 0, (size_t)(to - row));
        (m->c == 1 ? gather_one : gather_three)(m, first, end, xx + first * dx, yy + first * dy, dx, dy, to);
        memset(row + (size_t)end * (size_t)m->c, 0, (size_t)(m->w - end) * (size_t)m->c);
    }
}

static double to_radians(double degrees)
{
    return degrees * (M_PI / 180);
}

/* Shears the image by torchvision's _get_inverse_affine_matrix(), without rotation and scale. */
static void shear(const image *m, double level_x, double level_y)
{
    double sx = to_radians(atan(level_x) * (180 / M_PI)), sy = to_radians(atan(level_y) * (180 / M_PI));
    double a = cos(-sy) / cos(sy), b = -cos(-sy) * tan(sx) / cos(sy), c = sin(-sy) / cos(sy);
    double d = -sin(-sy) * tan(sx) / cos(sy) + 1;

    transform(m, &(affine){{d, -b, 0, -c, a, 0}});
}

static void translate(const image *m, int x, int y)
{
    transform(m, &(affine){{1, 0, -x, 0, 1, -y}});
}

/* Python's round(x, 15) for |x| <= 1. */
static double to_15_places(double x)
{
    double scaled = x * 1e15, rest = fma(x, 1e15, -scaled), whole = floor(scaled), part = scaled - whole;

    if (part == .5)
        whole += rest > 0 || (rest == 0 && fmod(whole, 2) != 0);
    else
        whole += part > .5;
    return whole / 1e15;
}

/* Rotates the image counterclockwise about its centre, as Pillow's Image.rotate(). */
static void rotate(const image *m, double degrees)
{
    double turn = fmod(degrees, 360), x = m->w / 2.0, y = m->h / 2.0, angle, co, si;
    affine f;

    turn += turn < 0 ? 360 : 0;
    if (turn == 0) {
        memcpy(m->to, m->from, bytes_of(m));
        return;
    }
    angle = -to_radians(turn);
    co = to_15_places(cos(angle));
    si = to_15_places(sin(angle));
    f = (affine){{co, si, 0, to_15_places(-sin(angle)), co, 0}};
    f.a[2] = f.a[0] * -x + f.a[1] * -y + x;
    f.a[5] = f.a[3] * -x + f.a[4] * -y + y;
    transform(m, &f);
}

/* ---- dispatch ---------------------------------------------------------------------------------- */

void hvt__enhance(const hvt__edit *e, int h, int w, int c, const uint8_t *from, uint8_t *to)
{
    const image m = {h, w, c, from, to};
    const double v = e->value;

    switch (e->op) {
    case HVT__SHEAR_X:
        shear(&m, v, 0);
        break;
    case HVT__SHEAR_Y:
        shear(&m, 0, v);
        break;
    case HVT__TRANSLATE_X:
        translate(&m, (int)v, 0);
        break;
    case HVT__TRANSLATE_Y:
        translate(&m, 0, (int)v);
        break;
    case HVT__ROTATE:
        rotate(&m, v);
        break;
    case HVT__BRIGHTNESS:
        blend_grey(&m, 0, (float)v);
        break;
    case HVT__COLOR:
        saturate(&m, (float)v);
        break;
    case HVT__CONTRAST:
        blend_grey(&m, mean_luma(&m), (float)v);
        break;
    case HVT__SHARPNESS:
        sharpen(&m, (float)v);
        break;
    case HVT__POSTERIZE:
        posterize(&m, (int)v);
        break;
    case HVT__SOLARIZE:
        solarize(&m, v);
        break;
    case HVT__AUTOCONTRAST:
        by_histogram(&m, stretch);
        break;
    case HVT__EQUALIZE:
        by_histogram(&m, flatten);
        break;
    case HVT__INVERT:
        solarize(&m, 0);
        break;
    case HVT__HUE:
        rotate_hue(&m, (uint8_t)(int)(v * 255));
        break;
    case HVT__IDENTITY:
        memcpy(to, from, bytes_of(&m));
        break;
    }
}
