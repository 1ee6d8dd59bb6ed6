/*
 * PBM, PGM and PPM: pixels as bits or bytes (P4, P5, P6) or as text (P1, P2, P3) after a header of text. Also
 * pixels without a header, as records of other formats hold them.
 *
 * A sample of up to 255 is one byte, larger ones are two, the higher byte first. Bits and text are expanded
 * to such samples when the file is opened. A comment runs from '#' to the end of its line and, as in Pillow,
 * does not end a number. Maxima other than 255 are scaled as in Pillow: colours to 255, rounding to even;
 * grey of two bytes to 65,535. convert("RGB") then turns every grey value above 255 into 255. Source:
 * https://netpbm.sourceforge.net/doc/ppm.html; Pillow 13, PpmImagePlugin.py.
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
    uint8_t *scaled; /* [65536] scaled value of each sample */
    int scaled_most, scaled_channels;
    uint8_t *expanded; /* samples of bits or text */
    size_t expanded_room;
} ppm;

void hvt__warn_of_white(const char *path)
{
    static atomic_bool said;

    if (!atomic_exchange(&said, true))
        HVT_WARN("%s is 16-bit grey: values above 255 become white, as in Pillow's convert(\"RGB\"); scale "
                 "such pictures to 8 bits. This is said only once",
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

    if (!f)
        return;
    free(f->scaled);
    free(f->expanded);
    free(f);
}

static bool is_ppm(const hvt_record *r)
{
    return r->encoding == HVT_IMAGE_FILE && r->bytes >= 3 && r->data[0] == 'P' && r->data[1] >= '1' &&
           r->data[1] <= '7' && strchr(" \t\r\n\v\f#", r->data[2]) && r->data[2];
}

/* Reads the next number, and the blank after it. */
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
    ++*at;
    *ret = n;
    return digits;
}

/* Scales a sample by Pillow's formulas, whose round() rounds to even. */
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

static hvt_status reserve(ppm *f, size_t bytes)
{
    HVT_CHECK(bytes <= HVT__IMAGE_MEMORY_MAX, E_UNSUPPORTED,
              "%s: %d x %d pixels as bits or text take %zu MiB to read, at most %zu are allowed", f->path,
              f->height, f->width, bytes >> 20, HVT__IMAGE_MEMORY_MAX >> 20);
    if (bytes > f->expanded_room) {
        free(f->expanded);
        f->expanded_room = 0;
        f->expanded = malloc(bytes);
        HVT_CHECK(f->expanded, E_MEM, "%s: no memory to read it (%zu bytes)", f->path, bytes);
        f->expanded_room = bytes;
    }
    f->pixels = f->expanded;
    return HVT_OK;
}

/* P4: a bit per pixel, rows padded to bytes; 1 is black. */
static void expand_bits(ppm *f, const uint8_t *in)
{
    uint8_t *out = f->expanded;

    for (int y = 0; y < f->height; y++, in += (f->width + 7) / 8)
        for (int x = 0; x < f->width; x++)
            *out++ = in[x / 8] << x % 8 & 0x80 ? 0 : 255;
}

/* P1: a digit per pixel, with or without blanks between them. Pillow reads all of the file. */
static hvt_status expand_digits(ppm *f, size_t at, size_t count)
{
    size_t n = 0;

    for (; at < f->r->bytes; at++) {
        int c = f->r->data[at];

        if (c == '#') {
            while (at + 1 < f->r->bytes && f->r->data[at] != '\n' && f->r->data[at] != '\r')
                at++;
        } else if (c == '0' || c == '1') {
            if (n < count)
                f->expanded[n] = c == '1' ? 0 : 255;
            n++;
        } else {
            HVT_CHECK(c && strchr(" \t\r\n\v\f", c), E_FORMAT, "%s: byte %zu is neither 0 nor 1", f->path,
                      at);
        }
    }
    HVT_CHECK(n >= count, E_FORMAT, "%s: truncated: the header says %d x %d pixels, and there are %zu",
              f->path, f->height, f->width, n);
    return HVT_OK;
}

/* P2 and P3 */
static hvt_status expand_numbers(ppm *f, size_t at, size_t count)
{
    uint8_t *out = f->expanded;
    int sample;

    for (size_t i = 0; i < count; i++) {
        size_t from = at;

        HVT_CHECK(number(f->r, &at, &sample), E_FORMAT, "%s: truncated or damaged after %zu of %zu samples",
                  f->path, i, count);
        HVT_CHECK(sample <= f->most, E_FORMAT, "%s: %d at byte %zu, expected 0 to %d", f->path, sample, from,
                  f->most);
        if (f->bytes == 2)
            *out++ = (uint8_t)(sample >> 8);
        *out++ = (uint8_t)sample;
    }
    return HVT_OK;
}

/* Points f->pixels to the samples, which begin at `at` in the file. */
static hvt_status find_samples(ppm *f, int kind, size_t at)
{
    size_t there = at < f->r->bytes ? f->r->bytes - at : 0, width = (size_t)f->width,
           height = (size_t)f->height;
    size_t samples = width * height * (size_t)f->channels;
    size_t needed = kind == '4'  ? (width + 7) / 8 * height
                    : kind < '4' ? samples
                                 : samples * (size_t)f->bytes;

    HVT_CHECK(there >= needed, E_FORMAT,
              "%s: truncated: %d x %d pixels need %zu bytes or more, and there are %zu", f->path, f->height,
              f->width, needed, there);
    f->pixels = f->r->data + at;
    if (kind > '4')
        return HVT_OK;
    HVT_TRY(reserve(f, samples * (size_t)f->bytes));
    if (kind == '1')
        return expand_digits(f, at, samples);
    if (kind != '4')
        return expand_numbers(f, at, samples);
    expand_bits(f, f->r->data + at);
    return HVT_OK;
}

static hvt_status begin_ppm(void *ctx, const hvt_record *r, const char *path, int *ret_h, int *ret_w)
{
    ppm *f = ctx;
    int kind = r->data[1];
    bool bits = kind == '1' || kind == '4', whole;
    size_t at = 2;

    HVT_CHECK(kind >= '1' && kind <= '6', E_UNSUPPORTED,
              "%s is a PNM file of kind P%c; supported are P1 to P6", path, kind);
    f->r = r;
    f->path = path;
    f->channels = kind == '3' || kind == '6' ? 3 : 1;
    f->most = 255;
    whole = number(r, &at, &f->width) && number(r, &at, &f->height) && (bits || number(r, &at, &f->most));
    HVT_CHECK(whole, E_FORMAT, "%s: not a PPM header: expected width, height and maximum as numbers", path);
    HVT_CHECK(f->most >= 1 && f->most <= SAMPLE_MAX, E_FORMAT,
              "%s: the samples' maximum is %d, expected 1 to %d", path, f->most, SAMPLE_MAX);
    f->bytes = f->most > 255 ? 2 : 1;
    *ret_h = f->height;
    *ret_w = f->width;
    if (f->height < 1 || f->width < 1 || f->height > HVT__IMAGE_SIDE_MAX || f->width > HVT__IMAGE_SIDE_MAX)
        return HVT_OK; /* the caller refuses it */
    if (f->channels == 1 && f->bytes == 2)
        hvt__warn_of_white(path);
    return find_samples(f, kind, at);
}

static hvt_status start_ppm(void *ctx, hvt__region *region)
{
    ppm *f = ctx;

    f->region = *region;
    f->row = region->y0;
    return f->most == 255 ? HVT_OK : scale_all(f);
}

/* Copies grey to three channels. */
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

/* Uses a row in place if the bytes after it may be loaded, too. */
static void put_row(const ppm *f, const uint8_t *in, int n, uint8_t **row)
{
    const hvt_record *r = f->r;

    if (f->channels == 1)
        spread(n, in, *row);
    else if (f->pixels != f->expanded && (size_t)(r->data + r->bytes - in) >= (size_t)n * 3 + HVT__ROW_SLACK)
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
            put_row(f, in, n, &rows[i]);
        else
            convert(f, n, in, rows[i]);
    }
    return HVT_OK;
}

static hvt_status end_ppm(void *ctx, bool check)
{
    return HVT_OK;
}

const hvt__decoder hvt__decoder_ppm = {"PPM",     false,     is_ppm,   open_ppm, close_ppm,
                                       begin_ppm, start_ppm, rows_ppm, end_ppm};

/* True for pixels without a header; the record has their size. */

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
    f->r = r;
    f->path = path;
    f->pixels = r->data;
    f->height = r->height;
    f->width = r->width;
    f->channels = r->bytes == pixels ? 1 : 3;
    f->bytes = 1;
    f->most = 255;
    *ret_h = r->height;
    *ret_w = r->width;
    return HVT_OK;
}

const hvt__decoder hvt__decoder_pixels = {"pixels",     false,     is_pixels, open_ppm, close_ppm,
                                          begin_pixels, start_ppm, rows_ppm,  end_ppm};
