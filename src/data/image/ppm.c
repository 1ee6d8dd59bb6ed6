/*
 * PPM and PGM: binary pixels (P6, P5) after a header of text. And pixels without any header, which records of
 * other formats hold.
 *
 * A sample of up to 255 is one byte, else two, the higher one first. Other maxima than 255 are scaled as
 * Pillow scales them: colours to 255 by rounding to even, grey of two bytes to 65,535, of which
 * convert("RGB") then makes 255 of all that is above it. Source: https://netpbm.sourceforge.net/doc/ppm.html;
 * Pillow 13, PpmImagePlugin.py.
 */
#include "image_impl.h"

#include <math.h>
#include <stdatomic.h>

enum { SAMPLE_MAX = 65535, TOKEN_MAX = 10 };

typedef struct ppm {
    const hvt_record *r;
    const char *path;
    const uint8_t *pixels;
    int height, width;
    int channels, bytes, most; /* of a sample */
    hvt__region region;
    int row;
    uint8_t *scaled; /* [65536] what each sample becomes */
    int scaled_most, scaled_channels;
} ppm;

void hvt__warn_of_white(const char *path)
{
    static atomic_bool said;

    if (!atomic_exchange(&said, true))
        HVT_WARN("%s is grey of 16 bits: all above 255 becomes white, as with Pillow's convert(\"RGB\"); "
                 "scale such "
                 "pictures to 8 bits. There may be more of them",
                 path);
}

static hvt_status open_ppm(void **ret_ctx)
{
    ppm *f = calloc(1, sizeof *f);

    HVT_CHECK(f, E_MEM, "no memory for a decoder (%zu bytes)", sizeof *f);
    *ret_ctx = f;
    return HVT_OK;
}

static void close_ppm(void *ctx)
{
    ppm *f = ctx;

    if (f)
        free(f->scaled);
    free(f);
}

static bool is_ppm(const hvt_record *r)
{
    return r->encoding == HVT_IMAGE_FILE && r->bytes >= 3 && r->data[0] == 'P' && r->data[1] >= '1' &&
           r->data[1] <= '7' && strchr(" \t\r\n\v\f#", r->data[2]) && r->data[2];
}

/* The header's next number; comments run from '#' to the end of their line. */
static bool number(const hvt_record *r, size_t *at, int *ret)
{
    int digits = 0, n = 0;

    for (; *at < r->bytes; ++*at) {
        int c = r->data[*at];

        if (c == '#') {
            while (*at < r->bytes && r->data[*at] != '\n' && r->data[*at] != '\r')
                ++*at;
        } else if (c >= '0' && c <= '9') {
            if (++digits > TOKEN_MAX || n > (INT_MAX - 9) / 10)
                return false;
            n = 10 * n + c - '0';
        } else if (!strchr(" \t\r\n\v\f", c) || !c) {
            return false;
        } else if (digits) {
            break;
        }
    }
    ++*at; /* the one blank after it */
    *ret = n;
    return digits && *at <= r->bytes;
}

/* What a sample becomes. Both formulas are Pillow's, whose round() goes to the even neighbour. */
static uint8_t scale(int sample, int most, bool grey)
{
    double full = grey && most > 255 ? 65535 : 255, v = nearbyint((double)sample / most * full);

    return (uint8_t)(v < 255 ? v : 255);
}

static hvt_status scale_all(ppm *f)
{
    if (f->scaled_most == f->most && f->scaled_channels == f->channels)
        return HVT_OK;
    if (!f->scaled)
        f->scaled = malloc(SAMPLE_MAX + 1);
    HVT_CHECK(f->scaled, E_MEM, "%s: no memory for its colours", f->path);
    for (int i = 0; i <= SAMPLE_MAX; i++)
        f->scaled[i] = scale(i, f->most, f->channels == 1);
    f->scaled_most = f->most;
    f->scaled_channels = f->channels;
    return HVT_OK;
}

static hvt_status begin_ppm(void *ctx, const hvt_record *r, const char *path, int *ret_h, int *ret_w)
{
    ppm *f = ctx;
    int kind = r->data[1];
    size_t at = 2, pixels;
    bool whole;

    HVT_CHECK(kind == '5' || kind == '6', E_UNSUPPORTED,
              "%s is a PNM file of kind P%c; of these, P5 and P6 can be read", path, kind);
    f->r = r;
    f->path = path;
    f->channels = kind == '6' ? 3 : 1;
    whole = number(r, &at, &f->width) && number(r, &at, &f->height) && number(r, &at, &f->most);
    HVT_CHECK(whole, E_FORMAT, "%s: not a PPM header: expected width, height and maximum as numbers", path);
    HVT_CHECK(f->most >= 1 && f->most <= SAMPLE_MAX, E_FORMAT,
              "%s: the samples' maximum is %d, expected 1 to %d", path, f->most, SAMPLE_MAX);
    f->bytes = f->most > 255 ? 2 : 1;
    pixels = (r->bytes - at) / (size_t)(f->channels * f->bytes);
    HVT_CHECK(pixels / (size_t)(f->width ? f->width : 1) >= (size_t)f->height, E_FORMAT,
              "%s: truncated: %d x %d pixels are promised, and there are %zu", path, f->height, f->width,
              pixels);
    if (f->channels == 1 && f->bytes == 2)
        hvt__warn_of_white(path);
    f->pixels = r->data + at;
    *ret_h = f->height;
    *ret_w = f->width;
    return HVT_OK;
}

static hvt_status start_ppm(void *ctx, hvt__region *region)
{
    ppm *f = ctx;

    f->region = *region;
    f->row = region->y0;
    return f->most == 255 ? HVT_OK : scale_all(f);
}

/* Grey to three channels alike. */
static void spread(int n, const uint8_t *grey, uint8_t *out)
{
    for (int i = 0; i < n; i++, out += 3)
        out[0] = out[1] = out[2] = grey[i];
}

static void convert(const ppm *f, int n, const uint8_t *in, uint8_t *out)
{
    for (int i = 0; i < n; i++, out += 3) {
        for (int c = 0; c < f->channels; c++, in += f->bytes)
            out[c] = f->scaled[f->bytes == 2 ? in[0] << 8 | in[1] : in[0]];
        if (f->channels == 1)
            out[1] = out[2] = out[0];
    }
}

/* A row is used where it lies if what follows it may be loaded, too. */
static void put_row(const hvt_record *r, const uint8_t *in, int n, int channels, uint8_t **row)
{
    if (channels == 1)
        spread(n, in, *row);
    else if ((size_t)(r->data + r->bytes - in) >= (size_t)n * 3 + HVT__ROW_SLACK)
        *row = (uint8_t *)(uintptr_t)in;
    else
        memcpy(*row, in, (size_t)n * 3);
}

static hvt_status rows_ppm(void *ctx, int count, uint8_t **rows)
{
    ppm *f = ctx;
    int n = f->region.x1 - f->region.x0;

    for (int i = 0; i < count; i++, f->row++) {
        size_t pixel = (size_t)f->row * (size_t)f->width + (size_t)f->region.x0;
        const uint8_t *in = f->pixels + pixel * (size_t)(f->channels * f->bytes);

        if (f->most == 255)
            put_row(f->r, in, n, f->channels, &rows[i]);
        else
            convert(f, n, in, rows[i]);
    }
    return HVT_OK;
}

static hvt_status end_ppm(void *ctx, bool last)
{
    return HVT_OK;
}

const hvt__decoder hvt__decoder_ppm = {"PPM",     false,     is_ppm,   open_ppm, close_ppm,
                                       begin_ppm, start_ppm, rows_ppm, end_ppm};

/* Pixels without a header are one more kind of the same: their size stands beside them. */

static bool is_pixels(const hvt_record *r)
{
    return r->encoding == HVT_IMAGE_U8;
}

static hvt_status begin_pixels(void *ctx, const hvt_record *r, const char *path, int *ret_h, int *ret_w)
{
    ppm *f = ctx;
    size_t pixels = (size_t)(r->height > 0 ? r->height : 0) * (size_t)(r->width > 0 ? r->width : 0);

    HVT_CHECK(pixels && (r->bytes == pixels || r->bytes == 3 * pixels), E_FORMAT,
              "%s: %zu bytes are not %d x %d pixels of 1 or 3 channels", path, r->bytes, r->height, r->width);
    *f = (ppm){.r = r,
               .path = path,
               .pixels = r->data,
               .height = r->height,
               .width = r->width,
               .channels = r->bytes == pixels ? 1 : 3,
               .bytes = 1,
               .most = 255};
    *ret_h = r->height;
    *ret_w = r->width;
    return HVT_OK;
}

const hvt__decoder hvt__decoder_pixels = {"pixels",     false,     is_pixels, open_ppm, close_ppm,
                                          begin_pixels, start_ppm, rows_ppm,  end_ppm};
