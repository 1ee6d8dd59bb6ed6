/*
 * TIFF, by libtiff: the first page as RGB, as Pillow's convert("RGB") has it.
 *
 * Supported are grey, palettes and RGB of up to 8 bits, and RGB of 16 bits, of which the upper 8 are used, in
 * strips or tiles with any compression of libtiff. 16-bit grey is converted as in PNG files. Alpha is
 * dropped; colours that were multiplied by it are divided by it again. The whole page is decoded, so the
 * verdict on a file does not depend on the view. libtiff 4.5 has handlers of errors for each file, which
 * threads need.
 */
#include "image_impl.h"

#include <stdarg.h>
#include <tiffio.h>

enum { COLOURS = 256 };

typedef struct tiff {
    const hvt_record *r;
    const char *path;
    TIFF *lib;
    uint64_t at; /* of the next byte that libtiff reads */
    int height, width;
    uint16_t bits, samples, kind; /* kind: TIFF's photometric interpretation */
    bool multiplied;              /* by the fourth sample */
    uint8_t palette[COLOURS][3];
    uint8_t *image, *part; /* [height,width,3]; a strip or tile as libtiff decodes it */
    size_t image_room, part_room;
    hvt__region region;
    int row; /* the next row */
    char why[200];
} tiff;

static hvt_status open_tiff(void **ret_ctx)
{
    *ret_ctx = calloc(1, sizeof(tiff));
    HVT_CHECK(*ret_ctx, E_MEM, "no memory for a decoder (%zu bytes)", sizeof(tiff));
    return HVT_OK;
}

static hvt_status end_tiff(void *ctx, bool check)
{
    tiff *f = ctx;

    if (f->lib)
        TIFFClose(f->lib);
    f->lib = NULL;
    return HVT_OK;
}

static void close_tiff(void *ctx)
{
    tiff *f = ctx;

    if (!f)
        return;
    end_tiff(f, false);
    free(f->image);
    free(f->part);
    free(f);
}

static bool is_tiff(const hvt_record *r)
{
    return r->encoding == HVT_IMAGE_FILE && r->bytes >= 8 &&
           (!memcmp(r->data, "II*\0", 4) || !memcmp(r->data, "MM\0*", 4));
}

/* ---- callbacks of the library ------------------------------------------------------------------ */

static tmsize_t on_read(thandle_t ctx, void *to, tmsize_t bytes)
{
    tiff *f = ctx;
    size_t left = f->at < f->r->bytes ? f->r->bytes - (size_t)f->at : 0;
    size_t n = (size_t)bytes < left ? (size_t)bytes : left;

    memcpy(to, f->r->data + (n ? f->at : 0), n);
    f->at += n;
    return (tmsize_t)n;
}

static tmsize_t on_write(thandle_t ctx, void *from, tmsize_t bytes)
{
    return -1;
}

static toff_t on_seek(thandle_t ctx, toff_t offset, int from)
{
    tiff *f = ctx;

    f->at = offset + (from == SEEK_CUR ? f->at : from == SEEK_END ? f->r->bytes : 0);
    return f->at;
}

static int on_close(thandle_t ctx)
{
    return 0;
}

static toff_t on_size(thandle_t ctx)
{
    return ((const tiff *)ctx)->r->bytes;
}

/* Keeps the first error. */
static int on_error(TIFF *lib, void *ctx, const char *module, const char *fmt, va_list args)
{
    tiff *f = ctx;

    if (!*f->why)
        vsnprintf(f->why, sizeof f->why, fmt, args);
    return 1;
}

/* Treats as an error that a palette cannot be read, which the library only warns about. */
static int on_warning(TIFF *lib, void *ctx, const char *module, const char *fmt, va_list args)
{
    tiff *f = ctx;
    char text[sizeof f->why];

    vsnprintf(text, sizeof text, fmt, args);
    if (strstr(text, "\"ColorMap\"") && !*f->why)
        memcpy(f->why, text, sizeof text);
    return 1;
}

static hvt_status failed(const tiff *f)
{
    return HVT_FAIL(E_FORMAT, "%s: the TIFF cannot be decoded: %s", f->path,
                    *f->why ? f->why : "broken data");
}

static hvt_status open_lib(tiff *f)
{
    TIFFOpenOptions *how = TIFFOpenOptionsAlloc();

    HVT_CHECK(how, E_MEM, "%s: no memory to decode it", f->path);
    TIFFOpenOptionsSetMaxSingleMemAlloc(how, (tmsize_t)HVT__IMAGE_MEMORY_MAX);
    TIFFOpenOptionsSetErrorHandlerExtR(how, on_error, f);
    TIFFOpenOptionsSetWarningHandlerExtR(how, on_warning, f);
    f->lib =
        TIFFClientOpenExt(f->path, "rm", f, on_read, on_write, on_seek, on_close, on_size, NULL, NULL, how);
    TIFFOpenOptionsFree(how);
    return f->lib ? HVT_OK : failed(f);
}

/* ---- the header -------------------------------------------------------------------------------- */

static uint16_t tag(const tiff *f, uint32_t name)
{
    uint16_t v = 0;

    TIFFGetFieldDefaulted(f->lib, name, &v);
    return v;
}

/* Colours have 16 bits. */
static hvt_status read_palette(tiff *f)
{
    uint16_t *map[3];

    HVT_CHECK(TIFFGetField(f->lib, TIFFTAG_COLORMAP, &map[0], &map[1], &map[2]), E_FORMAT,
              "%s: the TIFF has no palette", f->path);
    for (int i = 0; i < 1 << f->bits; i++)
        for (int c = 0; c < 3; c++)
            f->palette[i][c] = (uint8_t)(map[c][i] >> 8);
    return HVT_OK;
}

/* Errors: E_UNSUPPORTED. */
static hvt_status read_kind(tiff *f)
{
    uint16_t extras = 0, *extra = NULL;
    bool grey, rgb, associated;

    f->bits = tag(f, TIFFTAG_BITSPERSAMPLE);
    f->samples = tag(f, TIFFTAG_SAMPLESPERPIXEL);
    HVT_CHECK(TIFFGetField(f->lib, TIFFTAG_PHOTOMETRIC, &f->kind), E_FORMAT,
              "%s: the TIFF does not say what its samples mean", f->path);
    if (f->kind == PHOTOMETRIC_YCBCR && tag(f, TIFFTAG_COMPRESSION) == COMPRESSION_JPEG) {
        TIFFSetField(f->lib, TIFFTAG_JPEGCOLORMODE, JPEGCOLORMODE_RGB);
        f->kind = PHOTOMETRIC_RGB;
    }
    TIFFGetFieldDefaulted(f->lib, TIFFTAG_EXTRASAMPLES, &extras, &extra);
    associated = extras && extra[0] == EXTRASAMPLE_ASSOCALPHA;
    rgb = f->kind == PHOTOMETRIC_RGB && f->samples >= 3 && (f->bits == 8 || (f->bits == 16 && !associated));
    grey = (f->kind <= PHOTOMETRIC_MINISBLACK || f->kind == PHOTOMETRIC_PALETTE) &&
           (f->bits == 8 || (f->samples == 1 && (f->bits == 1 || f->bits == 2 || f->bits == 4))) &&
           !associated;
    grey |= f->kind == PHOTOMETRIC_MINISBLACK && f->samples == 1 && f->bits == 16;
    HVT_CHECK(
        (rgb || grey) && f->samples <= 16 && tag(f, TIFFTAG_SAMPLEFORMAT) == SAMPLEFORMAT_UINT &&
            (f->samples == 1 || tag(f, TIFFTAG_PLANARCONFIG) == PLANARCONFIG_CONTIG),
        E_UNSUPPORTED,
        "%s: a TIFF of %d bits, %d channels, photometric interpretation %d, sample format %d and planes %d; "
        "supported are grey and palettes of 1 to 8 bits, grey of 16, and RGB of 8 or 16, in one plane",
        f->path, f->bits, f->samples, f->kind, tag(f, TIFFTAG_SAMPLEFORMAT), tag(f, TIFFTAG_PLANARCONFIG));
    f->multiplied = rgb && associated && f->samples >= 4;
    if (grey && f->bits == 16)
        hvt__warn_of_white(f->path);
    return f->kind == PHOTOMETRIC_PALETTE ? read_palette(f) : HVT_OK;
}

static hvt_status begin_tiff(void *ctx, const hvt_record *r, const char *path, int *ret_h, int *ret_w)
{
    tiff *f = ctx;
    uint32_t h = 0, w = 0;

    f->r = r;
    f->path = path;
    f->at = 0;
    f->why[0] = 0;
    HVT_TRY(open_lib(f));
    TIFFGetField(f->lib, TIFFTAG_IMAGELENGTH, &h);
    TIFFGetField(f->lib, TIFFTAG_IMAGEWIDTH, &w);
    HVT_CHECK(w >= 1 && h >= 1 && w <= HVT__IMAGE_SIDE_MAX && h <= HVT__IMAGE_SIDE_MAX, E_FORMAT,
              "%s has %u x %u pixels, expected sides of 1 to %d", path, h, w, HVT__IMAGE_SIDE_MAX);
    *ret_h = f->height = (int)h;
    *ret_w = f->width = (int)w;
    return read_kind(f);
}

/* ---- pixels ------------------------------------------------------------------------------------ */

/* Returns sample i of a row as a byte; for palettes, the index. */
static uint8_t sample(const tiff *f, const uint8_t *line, size_t i)
{
    uint16_t wide;

    if (f->bits == 8)
        return line[i];
    if (f->bits == 16) {
        memcpy(&wide, line + 2 * i, 2);
        return (uint8_t)(f->kind == PHOTOMETRIC_RGB ? wide >> 8 : wide > 255 ? 255 : wide);
    }
    uint8_t v = line[i * f->bits / 8] >> (8 - f->bits - i * f->bits % 8) & ((1 << f->bits) - 1);

    return f->kind == PHOTOMETRIC_PALETTE ? v : (uint8_t)(v * 255 / ((1 << f->bits) - 1));
}

/* Divides a colour by alpha / 255. */
static uint8_t divided(int v, int alpha)
{
    v = alpha ? v * 255 / alpha : 0;
    return (uint8_t)(v < 255 ? v : 255);
}

static void put_pixels(const tiff *f, const uint8_t *line, int count, uint8_t *rgb)
{
    for (size_t x = 0; x < (size_t)count; x++, rgb += 3) {
        const size_t i = x * f->samples;
        uint8_t v = sample(f, line, i);

        if (f->kind == PHOTOMETRIC_PALETTE)
            memcpy(rgb, f->palette[v], 3);
        else if (f->kind != PHOTOMETRIC_RGB)
            memset(rgb, f->kind == PHOTOMETRIC_MINISWHITE ? 255 - v : v, 3);
        for (size_t c = 0; c < 3 && f->kind == PHOTOMETRIC_RGB; c++)
            rgb[c] = f->multiplied ? divided(line[i + c], line[i + 3]) : sample(f, line, i + c);
    }
}

/* Decodes a part, which begins at a row and column and has rows of `pitch` bytes. */
static hvt_status read_part(tiff *f, uint32_t number, int row, int column, int rows, int columns,
                            tmsize_t pitch)
{
    const int h = rows < f->height - row ? rows : f->height - row;
    const int w = columns < f->width - column ? columns : f->width - column;
    const tmsize_t bytes = pitch * (TIFFIsTiled(f->lib) ? rows : h);
    const tmsize_t came = TIFFIsTiled(f->lib) ? TIFFReadEncodedTile(f->lib, number, f->part, bytes)
                                              : TIFFReadEncodedStrip(f->lib, number, f->part, bytes);

    if (came < bytes || *f->why)
        return failed(f);
    for (int y = 0; y < h; y++)
        put_pixels(f, f->part + y * pitch, w,
                   f->image + 3 * ((size_t)(row + y) * (size_t)f->width + (size_t)column));
    return HVT_OK;
}

static hvt_status read_page(tiff *f)
{
    const bool tiled = TIFFIsTiled(f->lib);
    const tmsize_t pitch = tiled ? TIFFTileRowSize(f->lib) : TIFFScanlineSize(f->lib);
    uint32_t rows = 0, columns = (uint32_t)f->width, number = 0;

    TIFFGetFieldDefaulted(f->lib, tiled ? TIFFTAG_TILELENGTH : TIFFTAG_ROWSPERSTRIP, &rows);
    if (tiled)
        TIFFGetField(f->lib, TIFFTAG_TILEWIDTH, &columns);
    else if (rows > (uint32_t)f->height)
        rows = (uint32_t)f->height;
    if (!rows || !columns || *f->why || pitch < 1 ||
        (uint64_t)pitch * 8 < (uint64_t)columns * f->samples * f->bits)
        return failed(f);
    HVT_CHECK(rows <= HVT__IMAGE_MEMORY_MAX / (size_t)pitch && columns <= INT32_MAX, E_UNSUPPORTED,
              "%s: a TIFF in parts of %u rows of %zu bytes; at most %zu MiB are allowed", f->path, rows,
              (size_t)pitch, HVT__IMAGE_MEMORY_MAX >> 20);
    HVT_TRY(hvt__image_reserve(f->path, "a TIFF", f->height, f->width, &f->part, &f->part_room,
                               (size_t)rows * (size_t)pitch));
    for (int y = 0; y < f->height; y += (int)rows)
        for (int64_t x = 0; x < f->width; x += columns)
            HVT_TRY(read_part(f, number++, y, (int)x, (int)rows, (int)columns, pitch));
    return HVT_OK;
}

static hvt_status start_tiff(void *ctx, hvt__region *region)
{
    tiff *f = ctx;

    f->region = *region;
    f->row = region->y0;
    HVT_TRY(hvt__image_reserve(f->path, "a TIFF", f->height, f->width, &f->image, &f->image_room,
                               3 * (size_t)f->width * (size_t)f->height));
    return read_page(f);
}

static hvt_status rows_tiff(void *ctx, int count, uint8_t **rows)
{
    tiff *f = ctx;

    for (int i = 0; i < count; i++, f->row++)
        memcpy(rows[i], f->image + 3 * ((size_t)f->row * (size_t)f->width + (size_t)f->region.x0),
               3 * (size_t)(f->region.x1 - f->region.x0));
    return HVT_OK;
}

const hvt__decoder hvt__decoder_tiff = {"TIFF",     false,      is_tiff,   open_tiff, close_tiff,
                                        begin_tiff, start_tiff, rows_tiff, end_tiff,  true};
