/*
 * WebP, by libwebp: the whole picture as RGB, without its alpha, as Pillow's convert("RGB") has it.
 *
 * The file must be complete, including the data after the pixels: Pillow refuses a truncated file. Animated
 * files are refused, although Pillow reads their first frame.
 */
#include "image_impl.h"

#include <webp/decode.h>

typedef struct webp {
    const hvt_record *r;
    const char *path;
    int height, width;
    const uint8_t *pixels; /* [bytes], encoded */
    size_t bytes;
    uint8_t *image; /* [height,width,3] */
    size_t room;
    hvt__region region;
    int row; /* the next row */
} webp;

static hvt_status open_webp(void **ret_ctx)
{
    *ret_ctx = calloc(1, sizeof(webp));
    HVT_CHECK(*ret_ctx, E_MEM, "no memory for a decoder (%zu bytes)", sizeof(webp));
    return HVT_OK;
}

static void close_webp(void *ctx)
{
    webp *f = ctx;

    if (f)
        free(f->image);
    free(f);
}

static bool is_webp(const hvt_record *r)
{
    return r->encoding == HVT_IMAGE_FILE && r->bytes >= 12 && !memcmp(r->data, "RIFF", 4) &&
           !memcmp(r->data + 8, "WEBP", 4);
}

static hvt_status failed(const webp *f, VP8StatusCode code)
{
    static const char *const why[] = {"",
                                      "out of memory",
                                      "a wrong parameter",
                                      "broken data",
                                      "an unsupported feature",
                                      "suspended",
                                      "aborted",
                                      "the data end before the last pixel"};

    return hvt__fail(code == VP8_STATUS_OUT_OF_MEMORY ? HVT_E_MEM : HVT_E_FORMAT, __FILE__, __LINE__,
                     "%s: the WebP cannot be decoded: %s", f->path,
                     (size_t)code < HVT_LEN(why) ? why[code] : "an error");
}

static size_t little(const uint8_t *at)
{
    return at[0] | (size_t)at[1] << 8 | (size_t)at[2] << 16 | (size_t)at[3] << 24;
}

/* Finds the chunk of the pixels, which is decoded alone: of the whole file libwebp would read on behind a
 * chunk that is too short. Pillow refuses such a file, and one with a chunk that goes on after the file's
 * end. */
static hvt_status find_pixels(webp *f, size_t end)
{
    WebPBitstreamFeatures about = {0};
    size_t at = 12;

    f->pixels = NULL;
    while (at + 8 <= end) {
        const uint8_t *chunk = f->r->data + at;
        size_t size = little(chunk + 4);

        HVT_CHECK(size <= end - at - 8, E_FORMAT, "%s: damaged: a chunk of the WebP goes on after its end",
                  f->path);
        if (!f->pixels && (!memcmp(chunk, "VP8 ", 4) || !memcmp(chunk, "VP8L", 4))) {
            f->pixels = chunk + 8;
            f->bytes = size;
        }
        at += 8 + size + size % 2; /* with a byte of padding */
    }
    HVT_CHECK(at >= end, E_FORMAT, "%s: damaged: the WebP ends within the head of a chunk", f->path);
    HVT_CHECK(f->pixels && WebPGetFeatures(f->pixels, f->bytes, &about) == VP8_STATUS_OK &&
                  about.width == f->width && about.height == f->height,
              E_FORMAT, "%s: damaged: the WebP has no pixels of its size", f->path);
    return HVT_OK;
}

static hvt_status begin_webp(void *ctx, const hvt_record *r, const char *path, int *ret_h, int *ret_w)
{
    webp *f = ctx;
    WebPBitstreamFeatures about;
    VP8StatusCode code;
    size_t bytes = little(r->data + 4);

    f->r = r;
    f->path = path;
    HVT_CHECK(bytes <= r->bytes - 8, E_FORMAT, "%s: truncated: the WebP goes on after its %zu bytes", path,
              r->bytes);
    code = WebPGetFeatures(r->data, r->bytes, &about);
    if (code != VP8_STATUS_OK)
        return failed(f, code);
    HVT_CHECK(!about.has_animation, E_UNSUPPORTED, "%s is an animated WebP; convert its first frame to PNG",
              path);
    *ret_h = f->height = about.height;
    *ret_w = f->width = about.width;
    return find_pixels(f, bytes + 8);
}

static hvt_status start_webp(void *ctx, hvt__region *region)
{
    webp *f = ctx;
    WebPDecoderConfig how;
    size_t bytes = 3 * (size_t)f->width * (size_t)f->height;
    VP8StatusCode code;

    HVT_TRY(hvt__image_reserve(f->path, "a WebP", f->height, f->width, &f->image, &f->room, bytes));
    if (!WebPInitDecoderConfig(&how))
        return HVT_FAIL(E_UNSUPPORTED, "%s: libwebp has another version than its header", f->path);
    how.output.colorspace = MODE_RGB;
    how.output.is_external_memory = 1;
    how.output.u.RGBA.rgba = f->image;
    how.output.u.RGBA.stride = 3 * f->width;
    how.output.u.RGBA.size = bytes;
    code = WebPDecode(f->pixels, f->bytes, &how);
    f->region = *region;
    f->row = region->y0;
    return code == VP8_STATUS_OK ? HVT_OK : failed(f, code);
}

static hvt_status rows_webp(void *ctx, int count, uint8_t **rows)
{
    webp *f = ctx;

    for (int i = 0; i < count; i++, f->row++)
        memcpy(rows[i], f->image + 3 * ((size_t)f->row * (size_t)f->width + (size_t)f->region.x0),
               3 * (size_t)(f->region.x1 - f->region.x0));
    return HVT_OK;
}

static hvt_status end_webp(void *ctx, bool check)
{
    return HVT_OK;
}

const hvt__decoder hvt__decoder_webp = {"WebP",     false,      is_webp,   open_webp, close_webp,
                                        begin_webp, start_webp, rows_webp, end_webp};
