/*
 * Masks in PNG files, read and written: grey values or palette indices are classes, as
 * np.array(PIL.Image.open(FILE)) has them. Colours of a palette are ignored. libpng reports errors by
 * longjmp(): read_rows() begins with setjmp(), and has no variable that changes in between.
 */
#include "image_impl.h"

#include <errno.h>
#include <png.h>

typedef struct source {
    const hvt_record *r;
    size_t at;
    char why[160];
} source;

static void give(png_structp lib, png_bytep to, size_t bytes)
{
    source *s = png_get_io_ptr(lib);

    if (bytes > s->r->bytes - s->at)
        png_error(lib, "the file ends too early");
    memcpy(to, s->r->data + s->at, bytes);
    s->at += bytes;
}

static void fail_png(png_structp lib, png_const_charp why)
{
    source *s = png_get_error_ptr(lib);

    snprintf(s->why, sizeof s->why, "%s", why);
    png_longjmp(lib, 1);
}

static void ignore(png_structp lib, png_const_charp why)
{
    (void)lib;
    (void)why;
}

static hvt_status check_kind(png_structp lib, png_infop info, const char *path)
{
    const int kind = png_get_color_type(lib, info), bits = png_get_bit_depth(lib, info);
    const uint32_t h = png_get_image_height(lib, info), w = png_get_image_width(lib, info);

    HVT_CHECK(
        (kind == PNG_COLOR_TYPE_GRAY || kind == PNG_COLOR_TYPE_PALETTE) && bits <= 8, E_FORMAT,
        "%s is a PNG of %s with %d bits, expected a mask: grey or palette of at most 8 bits, whose values "
        "are classes",
        path,
        kind & PNG_COLOR_MASK_COLOR   ? "colours"
        : kind & PNG_COLOR_MASK_ALPHA ? "grey with alpha"
                                      : "grey",
        bits);
    HVT_CHECK(h <= HVT__IMAGE_SIDE_MAX && w <= HVT__IMAGE_SIDE_MAX && (size_t)h * w <= HVT__IMAGE_MEMORY_MAX,
              E_FORMAT, "%s has %u x %u pixels, expected sides of 1 to %d", path, h, w, HVT__IMAGE_SIDE_MAX);
    return HVT_OK;
}

static hvt_status read_rows(source *s, png_structp lib, png_infop info, const char *path, hvt_record *to)
{
    if (setjmp(png_jmpbuf(lib)))
        return HVT_FAIL(E_FORMAT, "%s: %s", path, s->why);
    png_read_info(lib, info);
    HVT_TRY(check_kind(lib, info, path));
    to->height = (int)png_get_image_height(lib, info);
    to->width = (int)png_get_image_width(lib, info);
    HVT_TRY(hvt_record_reserve(to, (size_t)to->height * (size_t)to->width));
    png_set_packing(lib);
    for (int pass = png_set_interlace_handling(lib); pass > 0; pass--)
        for (int y = 0; y < to->height; y++)
            png_read_row(lib, to->data + (size_t)y * (size_t)to->width, NULL);
    return HVT_OK;
}

hvt_status hvt__mask_decode(const hvt_record *r, const char *path, hvt_record *ret_mask)
{
    source s = {.r = r};
    png_structp lib;
    png_infop info;
    hvt_status status;

    HVT_CHECK(r->bytes >= 8 && !png_sig_cmp(r->data, 0, 8), E_FORMAT, "%s is no PNG, expected a mask", path);
    lib = png_create_read_struct(PNG_LIBPNG_VER_STRING, &s, fail_png, ignore);
    info = lib ? png_create_info_struct(lib) : NULL;
    if (info) {
        png_set_read_fn(lib, &s, give);
        status = read_rows(&s, lib, info, path, ret_mask);
    } else {
        status = HVT_FAIL(E_MEM, "%s: no memory for a decoder", path);
    }
    png_destroy_read_struct(&lib, &info, NULL);
    return status;
}

/* Colours of PASCAL VOC's masks: bit 7 - j of red, green and blue is bit 3j, 3j + 1 and 3j + 2 of the class.
 */
static void paint(png_color ret_palette[256])
{
    for (int k = 0; k < 256; k++) {
        int r = 0, g = 0, b = 0;

        for (int j = 0; j < 3; j++) {
            r |= (k >> 3 * j & 1) << (7 - j);
            g |= (k >> (3 * j + 1) & 1) << (7 - j);
            b |= (k >> (3 * j + 2) & 1) << (7 - j);
        }
        ret_palette[k] = (png_color){(png_byte)r, (png_byte)g, (png_byte)b};
    }
}

static bool write_rows(png_structp lib, png_infop info, FILE *to, const uint8_t *mask, int h, int w)
{
    png_color palette[256];

    if (setjmp(png_jmpbuf(lib)))
        return false;
    paint(palette);
    png_init_io(lib, to);
    png_set_IHDR(lib, info, (png_uint_32)w, (png_uint_32)h, 8, PNG_COLOR_TYPE_PALETTE, PNG_INTERLACE_NONE,
                 PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
    png_set_PLTE(lib, info, palette, 256);
    png_write_info(lib, info);
    for (int y = 0; y < h; y++)
        png_write_row(lib, mask + (size_t)y * (size_t)w);
    png_write_end(lib, info);
    return true;
}

hvt_status hvt__mask_write(const char *path, const uint8_t *mask, int h, int w)
{
    source s = {.why = "no memory"};
    FILE *to = fopen(path, "we");
    png_structp lib = to ? png_create_write_struct(PNG_LIBPNG_VER_STRING, &s, fail_png, ignore) : NULL;
    png_infop info = lib ? png_create_info_struct(lib) : NULL;
    bool written = info && write_rows(lib, info, to, mask, h, w);

    png_destroy_write_struct(&lib, &info);
    HVT_CHECK(to, E_IO, "%s: cannot write: %s", path, strerror(errno));
    errno = 0;
    written = fclose(to) == 0 && written;
    HVT_CHECK(written, E_IO, "%s: cannot write: %s", path, errno ? strerror(errno) : s.why);
    return HVT_OK;
}
