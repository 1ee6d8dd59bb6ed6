/*
 * Thumbnails: images of a data set as small JPEGs within a page.
 */
#include "page_impl.h"
#include "data/image/image_impl.h"

#include <math.h>

enum { SIDE = 96, QUALITY = 80 };

/* Converts pixels of 1 to 3 channels to RGB bytes, malloc'ed. Floats are scaled from their minimum to their
 * maximum. */
static uint8_t *pixels_of(const hvt_record *r, int channels)
{
    size_t n = (size_t)r->height * (size_t)r->width;
    bool floats = r->encoding == HVT_IMAGE_F32;
    const float *v = (const float *)(const void *)r->data;
    uint8_t *rgb = malloc(3 * n + HVT__ROW_SLACK);
    float low = INFINITY, high = -INFINITY;

    for (size_t i = 0; rgb && floats && i < n * (size_t)channels; i++) {
        low = fminf(low, v[i]);
        high = fmaxf(high, v[i]);
    }
    for (size_t i = 0; rgb && i < 3 * n; i++) {
        size_t c = i % 3 < (size_t)channels ? i % 3 : channels == 1 ? 0 : (size_t)channels - 1;
        size_t at = i / 3 * (size_t)channels + c;

        rgb[i] = !floats                         ? r->data[at]
                 : high > low && isfinite(v[at]) ? (uint8_t)(255 * (v[at] - low) / (high - low))
                                                 : 0;
    }
    return rgb;
}

/* The size of a thumbnail: at most SIDE pixels wide and high; smaller images keep their size. */
static void fit(int h, int w, int *ret_h, int *ret_w)
{
    double scale = fmin(1, (double)SIDE / (h > w ? h : w));

    *ret_h = (int)fmax(1, round(h * scale));
    *ret_w = (int)fmax(1, round(w * scale));
}

/* Scales a picture file or pixels to a thumbnail's size, as a JPEG. */
static hvt_status shrink(hvt_record *r, int channels, bool exif, hvt_record *ret_jpeg)
{
    hvt__picture *p = NULL;
    hvt_record raw = *r;
    uint8_t *rgb = NULL, *small = NULL;
    int h, w, to_h, to_w;
    hvt_status s;

    HVT_TRY(hvt__picture_open(&p));
    if (exif)
        hvt__picture_turn(p);
    if (r->encoding != HVT_IMAGE_FILE) {
        rgb = pixels_of(r, channels);
        HVT_CHECK_OR(done, rgb, E_MEM, "no memory for a thumbnail");
        raw.data = rgb;
        raw.bytes = 3 * (size_t)r->height * (size_t)r->width;
        raw.encoding = HVT_IMAGE_U8;
    }
    HVT_TRY_OR(done, hvt__picture_begin(p, &raw, "image", &h, &w));
    fit(h, w, &to_h, &to_w);
    hvt__view view = hvt__view_whole(h, w);

    view.full_h = view.out_h = to_h;
    view.full_w = view.out_w = to_w;
    small = malloc(3 * (size_t)to_h * (size_t)to_w + HVT__ROW_SLACK);
    HVT_CHECK_OR(done, small, E_MEM, "no memory for a thumbnail");
    HVT_TRY_OR(done, hvt__picture_finish(p, &view, small));
    s = hvt__jpeg_encode(small, to_h, to_w, QUALITY, ret_jpeg);
done:
    hvt__picture_close(&p);
    free(rgb);
    free(small);
    return s;
}

static void put_base64(FILE *f, const uint8_t *data, size_t bytes)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

    for (size_t i = 0; i < bytes; i += 3) {
        size_t left = bytes - i;
        uint32_t v = (uint32_t)data[i] << 16 | (left > 1 ? (uint32_t)data[i + 1] << 8 : 0) |
                     (left > 2 ? data[i + 2] : 0);
        char text[5] = {digits[v >> 18], digits[v >> 12 & 63], left > 1 ? digits[v >> 6 & 63] : '=',
                        left > 2 ? digits[v & 63] : '=', 0};

        fputs(text, f);
    }
}

hvt_status hvt__page_thumbnail(FILE *f, const hvt_dataset *set, uint32_t index, bool exif)
{
    hvt_record image = {0}, jpeg = {0};
    hvt_status s;

    HVT_TRY_OR(done, hvt_dataset_read(set, index, &image));
    HVT_TRY_OR(done, shrink(&image, hvt_dataset_describe(set)->channels, exif, &jpeg));
    fputs("<img alt=\"\" src=\"data:image/jpeg;base64,", f);
    put_base64(f, jpeg.data, jpeg.bytes);
    fputs("\">", f);
done:
    free(image.data);
    free(jpeg.data);
    return s;
}
