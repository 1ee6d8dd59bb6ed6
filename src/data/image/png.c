/*
 * PNG, by libpng: every kind becomes 8-bit RGB as Pillow's convert("RGB") has it. Masks keep their grey
 * values or palette indices, as np.array(PIL.Image.open(FILE)) has them.
 *
 * Palettes are looked up, grey is copied to three channels, and alpha is dropped (not blended). Of 16 bits
 * the upper 8 are used, except in grey without alpha, where convert("RGB") turns all values above 255 into
 * 255. Interlaced files are decoded as a whole.
 *
 * survey() walks the file's chunks and decides as Pillow does which of them must be valid. libpng then reads
 * a plain file made of the header, the palette and the pixels' data, so that its own checks of other chunks
 * refuse nothing. That file claims one row more than the picture has: libpng checks for the stream's end
 * after the last row, and Pillow does not. All rows are decoded, whatever the view, so the verdict on a file
 * does not depend on the view.
 *
 * A wrong checksum of pixels is an error unless the zlib stream's own checksum proves them right. Pillow
 * ignores both.
 *
 * libpng reports errors by longjmp(): each function here that calls it begins with setjmp(), and has no
 * variable that changes in between.
 */
#include "image_impl.h"

#include <ctype.h>
#include <png.h>
#include <zlib.h>

enum { FRAME = 12, HEADER = 13, COLOURS = 256 }; /* FRAME: a chunk's length, name and checksum, in bytes */

typedef struct chunk {
    const uint8_t *name, *data;
    size_t bytes, have; /* the length in its head; bytes that the file has of it */
} chunk;

typedef struct png {
    png_structp lib;
    png_infop info;
    const hvt_record *r;
    const char *path;
    /* the file for libpng: the head, then the data of the IDAT chunks */
    uint8_t head[8 + FRAME + HEADER + FRAME + 3 * COLOURS + 8];
    size_t head_bytes, head_at, tail; /* tail: bytes left of the data's checksum, sent as zeros */
    size_t at, left;                  /* the next byte of the pixels' data; bytes left in its chunk */
    int height, width, channels;
    bool mask;  /* decode values, not colours */
    bool clips; /* 16-bit grey */
    bool interlaced;
    hvt__region region;
    int row; /* the next row */
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

static hvt_status end_png(void *ctx, bool check);

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

static void on_warning(png_structp lib, png_const_charp why) /* Pillow shows none either */
{
}

static uint32_t number_at(const uint8_t *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

/* Reads the head of the chunk at byte `at`. False if there is no chunk. */
static bool look(const hvt_record *r, size_t at, chunk *c)
{
    if (at > r->bytes || r->bytes - at < 8)
        return false;
    *c = (chunk){.name = r->data + at + 4,
                 .data = r->data + at + 8,
                 .bytes = number_at(r->data + at),
                 .have = r->bytes - at - 8};
    if (c->have > c->bytes)
        c->have = c->bytes;
    for (int i = 0; i < 4; i++)
        if (!isalnum(c->name[i]) && c->name[i] != '_')
            return false;
    return true;
}

static bool is(const chunk *c, const char *name)
{
    return !memcmp(c->name, name, 4);
}

/* Copies up to `bytes` bytes of the pixels' data; returns their number. */
static size_t take(png *f, uint8_t *out, size_t bytes)
{
    size_t taken = 0;
    chunk c;

    while (taken < bytes) {
        size_t n = f->left < bytes - taken ? f->left : bytes - taken;

        memcpy(out + taken, f->r->data + f->at, n);
        taken += n;
        f->at += n;
        f->left -= n;
        if (f->left)
            continue;
        if (!look(f->r, f->at + 4, &c) || !is(&c, "IDAT"))
            break;
        f->at += FRAME;
        f->left = c.have;
    }
    return taken;
}

static void on_read(png_structp lib, png_bytep out, size_t bytes)
{
    png *f = png_get_io_ptr(lib);
    size_t n = f->head_bytes - f->head_at;

    n = n < bytes ? n : bytes;
    memcpy(out, f->head + f->head_at, n);
    f->head_at += n;
    n += take(f, out + n, bytes - n);
    if (bytes - n > f->tail)
        png_error(lib, "truncated");
    memset(out + n, 0, bytes - n);
    f->tail -= bytes - n;
}

static hvt_status failed(const png *f)
{
    return HVT_FAIL(E_FORMAT, "%s: the PNG cannot be decoded: %s", f->path, f->why);
}

/* ---- chunks ------------------------------------------------------------------------------------ */

static void put_chunk(png *f, const char *name, const uint8_t *data, size_t bytes)
{
    uint8_t *to = f->head + f->head_bytes, length[4] = {0, 0, (uint8_t)(bytes >> 8), (uint8_t)bytes};

    memcpy(to, length, 4);
    memcpy(to + 4, name, 4);
    memcpy(to + 8, data, bytes);
    memset(to + 8 + bytes, 0, 4); /* the checksum, which libpng ignores */
    f->head_bytes += FRAME + bytes;
}

/* Writes the head of the file for libpng. A palette's missing colours are black, as in Pillow. */
static hvt_status put_head(png *f, const chunk *header, const chunk *palette)
{
    uint8_t h[HEADER], colours[3 * COLOURS] = {0};
    size_t most, given = palette->bytes / 3;

    HVT_CHECK(header->bytes >= HEADER, E_FORMAT, "%s: the PNG has no header", f->path);
    memcpy(h, header->data, HEADER);
    f->width = (int)number_at(h);
    f->height = (int)number_at(h + 4);
    HVT_CHECK(f->width >= 1 && f->height >= 1 && f->width <= HVT__IMAGE_SIDE_MAX &&
                  f->height <= HVT__IMAGE_SIDE_MAX,
              E_FORMAT, "%s has %u x %u pixels, expected sides of 1 to %d", f->path, number_at(h + 4),
              number_at(h), HVT__IMAGE_SIDE_MAX);
    h[10] = 0; /* the compression method, which Pillow ignores */
    h[12] = h[12] != 0;
    if (!h[12]) { /* one row more */
        h[6] = (uint8_t)((f->height + 1) >> 8);
        h[7] = (uint8_t)(f->height + 1);
    }
    memcpy(f->head, signature, sizeof signature);
    f->head_bytes = sizeof signature;
    put_chunk(f, "IHDR", h, HEADER);
    if (h[9] == PNG_COLOR_TYPE_PALETTE) {
        HVT_CHECK(given >= 1 && given <= COLOURS, E_FORMAT,
                  "%s: the PNG's palette has %zu colours, expected 1 to %d", f->path, given, COLOURS);
        memcpy(colours, palette->data, 3 * given);
        most = h[8] < 8 ? (size_t)1 << h[8] : COLOURS;
        put_chunk(f, "PLTE", colours, 3 * most);
    }
    return HVT_OK;
}

/* True if the decompressed data match the zlib stream's checksum. */
static bool data_are_right(png *f)
{
    z_stream z = {0};
    uint8_t in[4096], out[16384];
    int code = inflateInit(&z);

    while (code == Z_OK) {
        if (!z.avail_in) {
            z.next_in = in;
            z.avail_in = (uInt)take(f, in, sizeof in);
        }
        z.next_out = out;
        z.avail_out = sizeof out;
        code = inflate(&z, Z_NO_FLUSH); /* Z_BUF_ERROR: no data are left */
    }
    inflateEnd(&z);
    return code == Z_STREAM_END;
}

static bool checksum_holds(const chunk *c)
{
    return c->have == c->bytes &&
           crc32(crc32(0, c->name, 4), c->data, (uInt)c->bytes) == number_at(c->data + c->bytes);
}

/* Reads the chunks before the pixels, and sets ret_at to the first chunk of pixels. Each chunk's checksum
 * must be right, whether the chunk is needed or not. */
static hvt_status read_head(png *f, size_t *ret_at)
{
    chunk c, header = {.data = NULL}, palette = {.data = NULL};
    size_t at;

    for (at = sizeof signature;; at += FRAME + c.bytes) {
        HVT_CHECK(look(f->r, at, &c) && f->r->bytes - at >= FRAME, E_FORMAT,
                  "%s: the PNG is truncated or damaged at byte %zu, before its pixels", f->path, at);
        if (is(&c, "IDAT") && header.data)
            break;
        HVT_CHECK(!is(&c, "IEND") && !is(&c, "fdAT"), E_FORMAT, "%s: the PNG has no pixels", f->path);
        HVT_CHECK(c.bytes <= f->r->bytes - at - FRAME && checksum_holds(&c), E_FORMAT,
                  "%s: the PNG is damaged: the checksum of %.4s at byte %zu is wrong", f->path,
                  (const char *)c.name, at);
        if (is(&c, "IHDR"))
            header = c;
        else if (is(&c, "PLTE") && header.bytes >= HEADER && header.data[9] == PNG_COLOR_TYPE_PALETTE)
            palette = c;
        HVT_CHECK(
            !is(&c, "fcTL") || c.bytes < 20 || header.bytes < HEADER || !memcmp(c.data + 4, header.data, 8),
            E_UNSUPPORTED, "%s: the first frame of the animated PNG is smaller than the picture", f->path);
    }
    *ret_at = at;
    return put_head(f, &header, &palette);
}

/* Restarts take() at the chunk at byte `at`. */
static void rewind_to(png *f, size_t at)
{
    chunk c;

    look(f->r, at, &c);
    f->at = at + 8;
    f->left = c.have;
}

/* Checks the chunks as Pillow does, which refuses a truncated chunk even after the pixels. */
static hvt_status survey(png *f)
{
    size_t at = 0, total = 0, begin;
    bool right = true, pixels = true;
    chunk c;

    HVT_TRY(read_head(f, &at));
    for (begin = at; look(f->r, at, &c) && !is(&c, "IEND"); at += FRAME + c.bytes) {
        pixels &= is(&c, "IDAT");
        if (pixels) {
            total += c.have;
            right &= f->r->bytes - at < FRAME + c.bytes || checksum_holds(&c);
        }
        HVT_CHECK(c.have == c.bytes || pixels, E_FORMAT,
                  "%s: truncated: %.4s at byte %zu goes on after the end", f->path, (const char *)c.name, at);
    }
    total = total < PNG_UINT_31_MAX ? total : PNG_UINT_31_MAX;
    for (int i = 0; i < 4; i++)
        f->head[f->head_bytes + (size_t)i] = (uint8_t)(total >> (24 - 8 * i));
    memcpy(f->head + f->head_bytes + 4, "IDAT", 4);
    f->head_bytes += 8;
    rewind_to(f, begin);
    HVT_CHECK(right || data_are_right(f), E_FORMAT,
              "%s: the PNG is damaged: the checksums of its pixels are wrong", f->path);
    rewind_to(f, begin);
    return HVT_OK;
}

/* ---- the header -------------------------------------------------------------------------------- */

/* Converts all kinds to RGB; samples of 16-bit grey stay as they are. */
static void choose_transforms(png *f)
{
    int kind = png_get_color_type(f->lib, f->info), bits = png_get_bit_depth(f->lib, f->info);

    f->interlaced = png_set_interlace_handling(f->lib) > 1;
    if (f->mask) {
        png_set_packing(f->lib);
        return;
    }
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
}

static size_t pixel_bytes(const png *f)
{
    return f->mask ? 1 : f->clips ? 2 : 3;
}

static hvt_status read_header(png *f)
{
    if (setjmp(png_jmpbuf(f->lib)))
        return failed(f);
    png_set_user_limits(f->lib, HVT__IMAGE_SIDE_MAX, HVT__IMAGE_SIDE_MAX + 1);
    png_set_crc_action(f->lib, PNG_CRC_QUIET_USE, PNG_CRC_QUIET_USE);
    png_set_option(f->lib, PNG_MAXIMUM_INFLATE_WINDOW, PNG_OPTION_ON); /* some writers claim a smaller one */
    png_set_read_fn(f->lib, f, on_read);
    png_read_info(f->lib, f->info);
    choose_transforms(f);
    return HVT_OK;
}

static hvt_status begin_png(void *ctx, const hvt_record *r, const char *path, int *ret_h, int *ret_w)
{
    png *f = ctx;

    f->r = r;
    f->path = path;
    f->row = 0;
    f->head_at = 0;
    f->tail = 4;
    HVT_TRY(survey(f));
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

/* ---- pixels ------------------------------------------------------------------------------------ */

/* Reads all rows, pass after pass. */
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
    size_t pitch = (size_t)f->width * pixel_bytes(f);

    f->region = *region;
    HVT_TRY(update_info(f));
    if (f->interlaced) {
        HVT_TRY(hvt__image_reserve(f->path, "an interlaced PNG", f->height, f->width, &f->image,
                                   &f->image_room, pitch * (size_t)f->height));
        HVT_TRY(read_image(f, pitch));
        f->row = region->y0;
        return HVT_OK;
    }
    HVT_TRY(hvt__image_reserve(f->path, "an interlaced PNG", f->height, f->width, &f->line, &f->line_room,
                               pitch));
    while (f->row < region->y0)
        HVT_TRY(read_line(f));
    return HVT_OK;
}

static void put_row(const png *f, const uint8_t *line, uint8_t *out)
{
    int n = f->region.x1 - f->region.x0;

    line += (size_t)f->region.x0 * pixel_bytes(f);
    if (!f->clips) {
        memcpy(out, line, (size_t)n * pixel_bytes(f));
        return;
    }
    for (int i = 0; i < n; i++)
        out[3 * i] = out[3 * i + 1] = out[3 * i + 2] = line[2 * i] ? 255 : line[2 * i + 1];
}

static hvt_status rows_png(void *ctx, int count, uint8_t **rows)
{
    png *f = ctx;
    size_t pitch = (size_t)f->width * pixel_bytes(f);

    for (int i = 0; i < count; i++) {
        if (!f->interlaced)
            HVT_TRY(read_line(f));
        put_row(f, f->interlaced ? f->image + (size_t)f->row++ * pitch : f->line, rows[i]);
    }
    return HVT_OK;
}

static hvt_status end_png(void *ctx, bool check)
{
    png *f = ctx;
    hvt_status s = HVT_OK;

    while (s == HVT_OK && check && !f->interlaced && f->row < f->height)
        s = read_line(f);
    if (f->lib)
        png_destroy_read_struct(&f->lib, &f->info, NULL);
    return s;
}

/* ---- masks ------------------------------------------------------------------------------------- */

static hvt_status check_mask(const png *f)
{
    const int kind = png_get_color_type(f->lib, f->info), bits = png_get_bit_depth(f->lib, f->info);

    HVT_CHECK(
        (kind == PNG_COLOR_TYPE_GRAY || kind == PNG_COLOR_TYPE_PALETTE) && bits <= 8, E_FORMAT,
        "%s is a PNG of %s with %d bits, expected a mask: grey or palette of at most 8 bits, whose values "
        "are classes",
        f->path,
        kind & PNG_COLOR_MASK_COLOR   ? "colours"
        : kind & PNG_COLOR_MASK_ALPHA ? "grey with alpha"
                                      : "grey",
        bits);
    HVT_CHECK((size_t)f->height * (size_t)f->width <= HVT__IMAGE_MEMORY_MAX, E_UNSUPPORTED,
              "%s has %d x %d pixels, which are too many for a mask", f->path, f->height, f->width);
    return HVT_OK;
}

static hvt_status decode_mask(png *f, const hvt_record *r, const char *path, hvt_record *ret_mask)
{
    hvt__region whole = {.eighths = 8};

    HVT_TRY(begin_png(f, r, path, &ret_mask->height, &ret_mask->width));
    HVT_TRY(check_mask(f));
    HVT_TRY(hvt_record_reserve(ret_mask, (size_t)f->height * (size_t)f->width));
    whole.x1 = f->width;
    whole.y1 = f->height;
    HVT_TRY(start_png(f, &whole));
    for (int y = 0; y < f->height; y++)
        HVT_TRY(rows_png(f, 1, &(uint8_t *){ret_mask->data + (size_t)y * (size_t)f->width}));
    return HVT_OK;
}

hvt_status hvt__mask_decode(const hvt_record *r, const char *path, hvt_record *ret_mask)
{
    void *f = NULL;
    hvt_status s;

    HVT_CHECK(is_png(r), E_FORMAT, "%s is no PNG, expected a mask", path);
    HVT_TRY(open_png(&f));
    ((png *)f)->mask = true;
    s = decode_mask(f, r, path, ret_mask);
    close_png(f);
    return s;
}

/* ---- writing ----------------------------------------------------------------------------------- */

hvt_status hvt__png_write(const char *path, const uint8_t *pixels, int h, int w, int channels)
{
    png_image image = {.version = PNG_IMAGE_VERSION,
                       .width = (png_uint_32)w,
                       .height = (png_uint_32)h,
                       .format = channels == 1 ? PNG_FORMAT_GRAY : PNG_FORMAT_RGB};

    HVT_CHECK(png_image_write_to_file(&image, path, 0, pixels, 0, NULL), E_IO, "%s: %s", path, image.message);
    return HVT_OK;
}

/* Sets PASCAL VOC's colours of masks: bits 7 - j of red, green, blue are bits 3j, 3j + 1, 3j + 2 of the
 * class. */
static void paint(uint8_t ret_colours[COLOURS][3])
{
    memset(ret_colours, 0, 3 * COLOURS);
    for (int k = 0; k < COLOURS; k++)
        for (int j = 0; j < 3; j++)
            for (int c = 0; c < 3; c++)
                ret_colours[k][c] |= (uint8_t)((k >> (3 * j + c) & 1) << (7 - j));
}

hvt_status hvt__mask_write(const char *path, const uint8_t *mask, int h, int w)
{
    uint8_t colours[COLOURS][3];
    png_image image = {.version = PNG_IMAGE_VERSION,
                       .width = (png_uint_32)w,
                       .height = (png_uint_32)h,
                       .format = PNG_FORMAT_RGB_COLORMAP,
                       .colormap_entries = COLOURS};

    paint(colours);
    HVT_CHECK(png_image_write_to_file(&image, path, 0, mask, 0, colours), E_IO, "%s: %s", path,
              image.message);
    return HVT_OK;
}

const hvt__decoder hvt__decoder_png = {"PNG",     false,     is_png,   open_png, close_png,
                                       begin_png, start_png, rows_png, end_png};
