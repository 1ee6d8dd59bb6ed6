/* pictures.h - picture files for tests, in memory: JPEG, PNG and PPM of any kind. */
#ifndef HVT_PICTURES_H
#define HVT_PICTURES_H

#include "data/image/image_impl.h"
#include "check.h"

#include <setjmp.h>
#include <jpeglib.h>
#include <png.h>

/* A smooth picture with edges and some noise, of `channels` bytes per pixel. */
static uint8_t *picture_pixels(int h, int w, int channels, uint64_t seed)
{
    uint8_t *p = malloc((size_t)h * (size_t)w * (size_t)channels), *at = p;

    for (int y = 0; y < h; y++)
        for (int x = 0; x < w; x++)
            for (int c = 0; c < channels; c++) {
                int v = (x * (3 + c) + y * (5 - c)) / 4 + (((x / 7 + y / 5 + c) & 1) ? 60 : 0);

                *at++ = (uint8_t)((unsigned)v + hvt__draw(seed, (uint64_t)y, (uint64_t)x, (uint64_t)c) % 24);
            }
    return p;
}

typedef struct jpeg_kind {
    int h, w;
    int channels;     /* 1: grey, 3: colour, 4: CMYK, 5: YCCK */
    int across, down; /* chroma's subsampling; 0: 1 */
    bool progressive, optimized;
    int quality, restart;   /* restart: rows of blocks between markers */
    bool arithmetic, split; /* split: a separate scan for each channel */
    uint8_t sampling[4][2]; /* of each channel, across and down; zeros: `across` and `down` apply */
} jpeg_kind;

/* Sets each channel's sampling. At most ten blocks may be interleaved. */
static void set_sampling(j_compress_ptr c, const jpeg_kind *k, jpeg_scan_info *scans)
{
    int blocks = 0;

    for (int i = 0; i < c->num_components; i++) {
        jpeg_component_info *of = &c->comp_info[i];

        of->h_samp_factor = k->sampling[i][0] ? k->sampling[i][0] : i == 0 && k->across ? k->across : 1;
        of->v_samp_factor = k->sampling[i][1] ? k->sampling[i][1] : i == 0 && k->down ? k->down : 1;
        blocks += of->h_samp_factor * of->v_samp_factor;
        scans[i] = (jpeg_scan_info){.comps_in_scan = 1, .component_index = {i}, .Se = 63};
    }
    if (k->progressive && blocks <= 10) {
        jpeg_simple_progression(c);
    } else if (k->split || (blocks > 10 && c->num_components > 1)) {
        c->scan_info = scans;
        c->num_scans = c->num_components;
    }
}

static inline hvt_record make_jpeg(const jpeg_kind *k, uint64_t seed)
{
    struct jpeg_compress_struct c;
    struct jpeg_error_mgr errors;
    jpeg_scan_info scans[4];
    int channels = k->channels == 5 ? 4 : k->channels;
    uint8_t *pixels = picture_pixels(k->h, k->w, channels, seed);
    unsigned char *bytes = NULL;
    unsigned long size = 0;
    hvt_record r = {.label = -1};

    c.err = jpeg_std_error(&errors);
    jpeg_create_compress(&c);
    jpeg_mem_dest(&c, &bytes, &size);
    c.image_height = (JDIMENSION)k->h;
    c.image_width = (JDIMENSION)k->w;
    c.input_components = channels;
    c.in_color_space = channels == 1 ? JCS_GRAYSCALE : channels == 3 ? JCS_RGB : JCS_CMYK;
    jpeg_set_defaults(&c);
    if (k->channels == 5)
        jpeg_set_colorspace(&c, JCS_YCCK);
    jpeg_set_quality(&c, k->quality ? k->quality : 85, TRUE);
    set_sampling(&c, k, scans);
    c.optimize_coding = k->optimized && !k->arithmetic;
    c.arith_code = k->arithmetic;
    c.restart_in_rows = k->restart;
    jpeg_start_compress(&c, TRUE);
    while (c.next_scanline < c.image_height) {
        JSAMPROW row = pixels + (size_t)c.next_scanline * (size_t)k->w * (size_t)channels;

        jpeg_write_scanlines(&c, &row, 1);
    }
    jpeg_finish_compress(&c);
    jpeg_destroy_compress(&c);
    if (hvt_record_reserve(&r, size) == HVT_OK)
        memcpy(r.data, bytes, size);
    free(bytes);
    free(pixels);
    return r;
}

typedef struct png_kind {
    int h, w, type, bits; /* PNG_COLOR_TYPE_...; bits of a sample */
    bool interlaced;
} png_kind;

static void append(png_structp lib, png_bytep data, png_size_t bytes)
{
    hvt_record *r = png_get_io_ptr(lib);
    hvt_record longer = {.label = -1};

    if (hvt_record_reserve(&longer, r->bytes + bytes) != HVT_OK)
        exit(1);
    if (r->bytes)
        memcpy(longer.data, r->data, r->bytes);
    memcpy(longer.data + r->bytes, data, bytes);
    free(r->data);
    *r = longer;
}

static void flush_nothing(png_structp lib)
{
}

static inline hvt_record make_png(const png_kind *k, uint64_t seed)
{
    static const int channels[] = {1, 0, 3, 1, 2, 0, 4};
    size_t pitch = ((size_t)k->w * (size_t)(channels[k->type] * k->bits) + 7) / 8;
    uint8_t *pixels = picture_pixels(k->h, (int)pitch, 1, seed), **rows = malloc((size_t)k->h * sizeof *rows);
    png_structp lib = png_create_write_struct(PNG_LIBPNG_VER_STRING, NULL, NULL, NULL);
    png_infop info = png_create_info_struct(lib);
    png_color palette[256];
    hvt_record r = {.label = -1};

    for (int i = 0; i < 256; i++)
        palette[i] = (png_color){(uint8_t)(i * 7), (uint8_t)(255 - i), (uint8_t)(i * i)};
    for (int y = 0; y < k->h; y++)
        rows[y] = pixels + (size_t)y * pitch;
    png_set_write_fn(lib, &r, append, flush_nothing);
    png_set_IHDR(lib, info, (png_uint_32)k->w, (png_uint_32)k->h, k->bits, k->type,
                 k->interlaced ? PNG_INTERLACE_ADAM7 : PNG_INTERLACE_NONE, PNG_COMPRESSION_TYPE_DEFAULT,
                 PNG_FILTER_TYPE_DEFAULT);
    if (k->type == PNG_COLOR_TYPE_PALETTE)
        png_set_PLTE(lib, info, palette, 1 << k->bits);
    png_write_info(lib, info);
    png_write_image(lib, rows);
    png_write_end(lib, NULL);
    png_destroy_write_struct(&lib, &info);
    free(rows);
    free(pixels);
    return r;
}

/* P5 or P6 */
static inline hvt_record make_ppm(int kind, int h, int w, int most, uint64_t seed)
{
    int samples = (kind == 6 ? 3 : 1) * (most > 255 ? 2 : 1);
    uint8_t *pixels = picture_pixels(h, w, samples, seed);
    size_t bytes = (size_t)h * (size_t)w * (size_t)samples;
    hvt_record r = {.label = -1};
    char header[64];
    int n = snprintf(header, sizeof header, "P%d\n# a comment\n%d %d\n%d\n", kind, w, h, most);

    if (hvt_record_reserve(&r, (size_t)n + bytes) == HVT_OK) {
        memcpy(r.data, header, (size_t)n);
        memcpy(r.data + n, pixels, bytes);
    }
    free(pixels);
    return r;
}

#endif /* HVT_PICTURES_H */
