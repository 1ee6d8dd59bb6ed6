/*
 * PNG, by libpng: every kind becomes 8-bit RGB as Pillow's convert("RGB") has it.
 *
 * Palettes are looked up, grey is spread over three channels, alpha is dropped (not blended), and of 16 bits
 * the upper 8 are taken, except of grey without alpha, where convert("RGB") makes 255 of all that is above
 * it. Rows are decoded from the top and not beyond the last one that is wanted; a file that does not run to
 * its last chunk is decoded to the end, so that a truncated one is an error whatever the view. Interlaced
 * files are decoded as a whole.
 *
 * libpng leaves a function by longjmp() when it fails: each function here that calls it begins with
 * setjmp(), and has no variable that changes in between.
 */
#include "image_impl.h"

#include <png.h>

typedef struct png {
    png_structp lib;
    png_infop info;
    const hvt_record *r;
    const char *path;
    size_t at; /* bytes read */
    int height, width, channels;
    bool clips, whole; /* 16-bit grey; the file ends as it should */
    bool interlaced;
    hvt__region region;
    int row; /* the next one that comes */
    uint8_t *line, *image;
    size_t line_room, image_room;
    char why[160];
} png;

static const uint8_t signature[8] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'};

static hvt_status open_png(void **ret_ctx)
{
    png *f = calloc(1, sizeof *f);

    HVT_CHECK(f, E_MEM, "no memory for a decoder (%zu bytes)", sizeof *f);
    *ret_ctx = f;
    return HVT_OK;
}

static hvt_status end_png(void *ctx, bool last);

static void close_png(void *ctx)
{
    png *f = ctx;

    if (!f)
        return;
    end_png(f, false);
    free(f->line);
    free(f->image);
    free(f);
}

static bool is_png(const hvt_record *r)
{
    return r->encoding == HVT_IMAGE_FILE && r->bytes >= sizeof signature &&
           !memcmp(r->data, signature, sizeof signature);
}

static void on_error(png_structp lib, png_const_charp why)
{
    png *f = png_get_error_ptr(lib);

    snprintf(f->why, sizeof f->why, "%s", why);
    png_longjmp(lib, 1);
}

static void on_warning(png_structp lib, png_const_charp why) /* Pillow has none either */
{
}

static void on_read(png_structp lib, png_bytep out, size_t bytes)
{
    png *f = png_get_io_ptr(lib);

    if (bytes > f->r->bytes - f->at)
        png_error(lib, "truncated");
    memcpy(out, f->r->data + f->at, bytes);
    f->at += bytes;
}

static hvt_status failed(const png *f)
{
    return HVT_FAIL(E_FORMAT, "%s: the PNG cannot be decoded: %s", f->path, f->why);
}

/* Whether the chunks go on to the last one's end. */
static bool runs_to_its_end(const hvt_record *r)
{
    size_t at = sizeof signature;

    while (r->bytes - at >= 12) {
        const uint8_t *c = r->data + at;
        size_t bytes = (size_t)c[0] << 24 | (size_t)c[1] << 16 | (size_t)c[2] << 8 | c[3];

        if (bytes > r->bytes - at - 12)
            return false;
        if (!memcmp(c + 4, "IEND", 4))
            return true;
        at += 12 + bytes;
    }
    return false;
}

/* All kinds to RGB; samples of 16-bit grey stay as they are. */
static void choose_transforms(png *f)
{
    int kind = png_get_color_type(f->lib, f->info), bits = png_get_bit_depth(f->lib, f->info);

    f->clips = kind == PNG_COLOR_TYPE_GRAY && bits == 16;
    if (kind == PNG_COLOR_TYPE_PALETTE)
        png_set_palette_to_rgb(f->lib);
    if (kind == PNG_COLOR_TYPE_GRAY && bits < 8)
        png_set_expand_gray_1_2_4_to_8(f->lib);
    if (bits == 16 && !f->clips)
        png_set_strip_16(f->lib);
    png_set_strip_alpha(f->lib);
    if (!(kind & PNG_COLOR_MASK_COLOR) && !f->clips)
        png_set_gray_to_rgb(f->lib);
    f->interlaced = png_set_interlace_handling(f->lib) > 1;
}

static hvt_status read_header(png *f)
{
    if (setjmp(png_jmpbuf(f->lib)))
        return failed(f);
    png_set_user_limits(f->lib, HVT__IMAGE_SIDE_MAX, HVT__IMAGE_SIDE_MAX);
    png_set_read_fn(f->lib, f, on_read);
    png_read_info(f->lib, f->info);
    f->height = (int)png_get_image_height(f->lib, f->info);
    f->width = (int)png_get_image_width(f->lib, f->info);
    choose_transforms(f);
    return HVT_OK;
}

static hvt_status begin_png(void *ctx, const hvt_record *r, const char *path, int *ret_h, int *ret_w)
{
    png *f = ctx;

    f->r = r;
    f->path = path;
    f->at = 0;
    f->row = 0;
    f->whole = runs_to_its_end(r);
    f->lib = png_create_read_struct(PNG_LIBPNG_VER_STRING, f, on_error, on_warning);
    f->info = f->lib ? png_create_info_struct(f->lib) : NULL;
    HVT_CHECK(f->info, E_MEM, "%s: no memory to decode it", path);
    HVT_TRY(read_header(f));
    if (f->clips)
        hvt__warn_of_white(path);
    *ret_h = f->height;
    *ret_w = f->width;
    return HVT_OK;
}

static hvt_status reserve(const png *f, uint8_t **memory, size_t *room, size_t bytes)
{
    HVT_CHECK(bytes <= HVT__IMAGE_MEMORY_MAX, E_UNSUPPORTED,
              "%s: an interlaced PNG of %d x %d pixels takes %zu MiB to decode, at most %zu are allowed",
              f->path, f->height, f->width, bytes >> 20, HVT__IMAGE_MEMORY_MAX >> 20);
    if (bytes <= *room)
        return HVT_OK;
    free(*memory);
    *room = 0;
    *memory = calloc(1, bytes); /* kernels may load bytes that no row has */
    HVT_CHECK(*memory, E_MEM, "%s: no memory to decode it (%zu bytes)", f->path, bytes);
    *room = bytes;
    return HVT_OK;
}

/* All rows, pass after pass. */
static hvt_status read_image(png *f, size_t pitch)
{
    if (setjmp(png_jmpbuf(f->lib)))
        return failed(f);
    for (int pass = 0; pass < PNG_INTERLACE_ADAM7_PASSES; pass++)
        for (int y = 0; y < f->height; y++)
            png_read_row(f->lib, f->image + (size_t)y * pitch, NULL);
    return HVT_OK;
}

static hvt_status read_line(png *f)
{
    if (setjmp(png_jmpbuf(f->lib)))
        return failed(f);
    png_read_row(f->lib, f->line, NULL);
    f->row++;
    return HVT_OK;
}

static hvt_status update_info(png *f)
{
    if (setjmp(png_jmpbuf(f->lib)))
        return failed(f);
    png_read_update_info(f->lib, f->info);
    return HVT_OK;
}

static hvt_status start_png(void *ctx, hvt__region *region)
{
    png *f = ctx;
    size_t pitch = (size_t)f->width * (f->clips ? 2 : 3);

    f->region = *region;
    HVT_TRY(update_info(f));
    if (f->interlaced) {
        HVT_TRY(reserve(f, &f->image, &f->image_room, pitch * (size_t)f->height));
        HVT_TRY(read_image(f, pitch));
        f->row = region->y0;
        return HVT_OK;
    }
    HVT_TRY(reserve(f, &f->line, &f->line_room, pitch));
    while (f->row < region->y0)
        HVT_TRY(read_line(f));
    return HVT_OK;
}

static void put_row(const png *f, const uint8_t *line, uint8_t *out)
{
    int n = f->region.x1 - f->region.x0;

    if (!f->clips) {
        memcpy(out, line + (size_t)f->region.x0 * 3, (size_t)n * 3);
        return;
    }
    line += (size_t)f->region.x0 * 2;
    for (int i = 0; i < n; i++)
        out[3 * i] = out[3 * i + 1] = out[3 * i + 2] = line[2 * i] ? 255 : line[2 * i + 1];
}

static hvt_status rows_png(void *ctx, int count, uint8_t **rows)
{
    png *f = ctx;
    size_t pitch = (size_t)f->width * (f->clips ? 2 : 3);

    for (int i = 0; i < count; i++) {
        if (!f->interlaced)
            HVT_TRY(read_line(f));
        put_row(f, f->interlaced ? f->image + (size_t)f->row++ * pitch : f->line, rows[i]);
    }
    return HVT_OK;
}

static hvt_status end_png(void *ctx, bool last)
{
    png *f = ctx;
    hvt_status s = HVT_OK;

    while (s == HVT_OK && last && !f->whole && !f->interlaced && f->row < f->height)
        s = read_line(f);
    if (f->lib)
        png_destroy_read_struct(&f->lib, &f->info, NULL);
    return s;
}

const hvt__decoder hvt__decoder_png = {"PNG",     false,     is_png,   open_png, close_png,
                                       begin_png, start_png, rows_png, end_png};
