/*
 * BMP: uncompressed pixels of 1, 4, 8, 24 or 32 bits, as Pillow's convert("RGB") has them.
 *
 * Rows are stored from the bottom up or, if the height is negative, from the top down. Palettes are looked
 * up; the fourth byte of 32 bits is dropped. Source: Microsoft, "Bitmap Storage"; Pillow 13's
 * BmpImagePlugin.py.
 */
#include "image_impl.h"

enum { FILE_HEADER = 14, CORE = 12, COLOURS = 256, COLOURS_MAX = 65536, BITFIELDS = 3 };

typedef struct bmp {
    const hvt_record *r;
    const char *path;
    int height, width, bits;
    bool core; /* the header of OS/2, with numbers of 16 bits and colours of 3 bytes */
    bool down; /* the first row is the top one */
    size_t pixels, pitch;
    uint8_t palette[COLOURS][3]; /* red, green, blue */
    hvt__region region;
    int row; /* the next row */
} bmp;

static hvt_status open_bmp(void **ret_ctx)
{
    *ret_ctx = calloc(1, sizeof(bmp));
    HVT_CHECK(*ret_ctx, E_MEM, "no memory for a decoder (%zu bytes)", sizeof(bmp));
    return HVT_OK;
}

static uint32_t number_at(const bmp *f, size_t at, int bytes)
{
    uint32_t v = 0;

    for (int i = bytes - 1; i >= 0; i--)
        v = v << 8 | f->r->data[at + (size_t)i];
    return v;
}

/* True if the record is a BMP. Checks the header's size, too, since text may begin with BM. */
static bool is_bmp(const hvt_record *r)
{
    static const uint8_t sizes[] = {CORE, 40, 52, 56, 64, 108, 124};

    if (r->encoding != HVT_IMAGE_FILE || r->bytes < FILE_HEADER + 4 || memcmp(r->data, "BM", 2))
        return false;
    for (size_t i = 0; i < HVT_LEN(sizes); i++)
        if (!memcmp(r->data + FILE_HEADER, (const uint8_t[4]){sizes[i]}, 4))
            return true;
    return false;
}

/* True if the masks give the usual order, blue, green, red. */
static bool has_usual_masks(const bmp *f)
{
    enum { MASKS = FILE_HEADER + 40 };

    return f->bits == 32 && f->r->bytes >= MASKS + 12 && number_at(f, MASKS, 4) == 0xff0000 &&
           number_at(f, MASKS + 4, 4) == 0xff00 && number_at(f, MASKS + 8, 4) == 0xff;
}

static hvt_status check_kind(const bmp *f)
{
    static const char *const names[] = {"none", "RLE8", "RLE4", "bit masks", "JPEG", "PNG"};
    uint32_t how = f->core ? 0 : number_at(f, FILE_HEADER + 16, 4);

    HVT_CHECK(f->bits == 1 || f->bits == 4 || f->bits == 8 || f->bits == 24 || f->bits == 32, E_UNSUPPORTED,
              "%s: a BMP of %d bits per pixel; supported are 1, 4, 8, 24 and 32", f->path, f->bits);
    HVT_CHECK(how == 0 || (how == BITFIELDS && has_usual_masks(f)), E_UNSUPPORTED,
              "%s: a BMP with compression %u (%s); supported are uncompressed ones", f->path, how,
              how < HVT_LEN(names) ? names[how] : "unknown");
    return HVT_OK;
}

/* Reads the colour table that follows the header. Entries that the file lacks are black. */
static hvt_status read_palette(bmp *f, size_t at, uint32_t colours)
{
    const size_t each = f->core ? 3 : 4;

    HVT_CHECK(colours <= COLOURS_MAX, E_FORMAT, "%s: the BMP's palette has %u colours, expected 1 to %d",
              f->path, colours, COLOURS_MAX);
    memset(f->palette, 0, sizeof f->palette);
    for (uint32_t i = 0; i < colours && i < COLOURS && at + 3 <= f->r->bytes; i++, at += each)
        for (size_t c = 0; c < 3; c++)
            f->palette[i][c] = f->r->data[at + 2 - c];
    return HVT_OK;
}

/* Reads width, height and bits per pixel. */
static hvt_status read_size(bmp *f, size_t header)
{
    uint32_t w, h;

    f->core = header == CORE;
    w = number_at(f, FILE_HEADER + 4, f->core ? 2 : 4);
    h = number_at(f, FILE_HEADER + (f->core ? 6 : 8), f->core ? 2 : 4);
    f->bits = (int)number_at(f, FILE_HEADER + (f->core ? 10 : 14), 2);
    f->down = !f->core && h >> 24 == 0xff;
    h = f->down ? 0 - h : h;
    HVT_CHECK(w >= 1 && h >= 1 && w <= HVT__IMAGE_SIDE_MAX && h <= HVT__IMAGE_SIDE_MAX, E_FORMAT,
              "%s has %u x %u pixels, expected sides of 1 to %d", f->path, h, w, HVT__IMAGE_SIDE_MAX);
    f->width = (int)w;
    f->height = (int)h;
    return HVT_OK;
}

static hvt_status begin_bmp(void *ctx, const hvt_record *r, const char *path, int *ret_h, int *ret_w)
{
    bmp *f = ctx;
    size_t header, end, needed;
    uint32_t colours;

    f->r = r;
    f->path = path;
    header = number_at(f, FILE_HEADER, 4);
    end = FILE_HEADER + header;
    HVT_CHECK(r->bytes >= end, E_FORMAT, "%s: truncated: the BMP's header takes %zu bytes, the file has %zu",
              path, end, r->bytes);
    HVT_TRY(read_size(f, header));
    HVT_TRY(check_kind(f));
    f->pixels = number_at(f, 10, 4);
    if (f->bits <= 8) {
        colours = f->core ? 0 : number_at(f, FILE_HEADER + 32, 4);
        colours = colours ? colours : 1u << f->bits;
        HVT_TRY(read_palette(f, end, colours));
        if (!f->pixels || f->pixels == end) /* some writers forget the palette */
            f->pixels = end + (f->core ? 3u : 4u) * colours;
    }
    f->pixels = f->pixels ? f->pixels : end;
    f->pitch = ((size_t)f->width * (size_t)f->bits + 31) / 32 * 4;
    needed = f->pixels + f->pitch * (size_t)(f->height - 1) + ((size_t)f->width * (size_t)f->bits + 7) / 8;
    HVT_CHECK(r->bytes >= needed, E_FORMAT,
              "%s: truncated: the BMP's pixels end at byte %zu, the file has %zu", path, needed, r->bytes);
    *ret_h = f->height;
    *ret_w = f->width;
    return HVT_OK;
}

static hvt_status start_bmp(void *ctx, hvt__region *region)
{
    bmp *f = ctx;

    f->region = *region;
    f->row = region->y0;
    return HVT_OK;
}

static void put_row(const bmp *f, const uint8_t *line, uint8_t *out)
{
    const size_t bits = (size_t)f->bits, bytes = bits / 8;

    for (size_t x = (size_t)f->region.x0; x < (size_t)f->region.x1; x++, out += 3) {
        if (bits <= 8) {
            uint8_t shift = (uint8_t)(8 - bits - x * bits % 8);

            memcpy(out, f->palette[line[x * bits / 8] >> shift & ((1 << bits) - 1)], 3);
            continue;
        }
        for (size_t c = 0; c < 3; c++)
            out[c] = line[x * bytes + 2 - c];
    }
}

static hvt_status rows_bmp(void *ctx, int count, uint8_t **rows)
{
    bmp *f = ctx;

    for (int i = 0; i < count; i++, f->row++) {
        size_t line = (size_t)(f->down ? f->row : f->height - 1 - f->row);

        put_row(f, f->r->data + f->pixels + line * f->pitch, rows[i]);
    }
    return HVT_OK;
}

static hvt_status end_bmp(void *ctx, bool check)
{
    return HVT_OK;
}

const hvt__decoder hvt__decoder_bmp = {"BMP",     false,     is_bmp,   open_bmp, free,
                                       begin_bmp, start_bmp, rows_bmp, end_bmp};
