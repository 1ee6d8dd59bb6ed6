/*
 * JPEG, by libjpeg-turbo: decodes a part of a picture at a scale of eighths, as RGB.
 *
 * Scaling costs almost nothing: the library computes fewer values of each block's inverse transform. Only
 * blocks of the part are transformed. The rows above and below it are entropy-decoded and dropped, so that
 * the verdict on a file does not depend on the part. The pixels are those of the whole picture decoded at
 * this scale: the part grows by a margin, since chroma is interpolated between neighbours ("fancy
 * upsampling").
 *
 * As in Pillow, the inverse transform is the accurate integer one, EXIF orientation is ignored, and a file
 * that ends before its last row or has a broken marker is an error. Pillow ignores the library's warnings;
 * here those that mean lost data are errors, too. Grey is copied to three channels. CMYK is taken as
 * inverted, as Adobe writes it, and converted to RGB by the formula of Pillow's convert().
 *
 * libjpeg reports errors by longjmp(): each function here that calls it begins with setjmp(), and has no
 * variable that changes in between. Every picture has its own decoder: a decoder keeps its tables, and would
 * decode a file without tables with those of the previous file.
 */
#include "image_impl.h"

#include <setjmp.h>
#include <jpeglib.h>
#include <jerror.h>

enum { BLOCK = 8, MARGIN = 2, SCANS_MAX = 500 };

typedef struct jpeg {
    struct jpeg_decompress_struct lib;
    struct jpeg_error_mgr errors;
    struct jpeg_source_mgr source;
    struct jpeg_progress_mgr progress;
    jmp_buf escape;
    bool alive, cut; /* lib exists; the library asked for more bytes than the file has */
    bool all_rows;   /* the last row was read, so the rest may be missing */
    const hvt_record *r;
    const char *path;
    uint8_t *inks; /* a row of CMYK */
    size_t inks_room;
} jpeg;

static hvt_status open_jpeg(void **ret_ctx)
{
    jpeg *f = calloc(1, sizeof *f);

    HVT_CHECK(f, E_MEM, "no memory for a decoder (%zu bytes)", sizeof *f);
    *ret_ctx = f;
    return HVT_OK;
}

static void destroy(jpeg *f)
{
    if (f->alive)
        jpeg_destroy_decompress(&f->lib);
    f->alive = false;
}

static void close_jpeg(void *ctx)
{
    jpeg *f = ctx;

    if (!f)
        return;
    destroy(f);
    free(f->inks);
    free(f);
}

static bool is_jpeg(const hvt_record *r)
{
    return r->encoding == HVT_IMAGE_FILE && r->bytes >= 3 && !memcmp(r->data, "\xff\xd8\xff", 3);
}

/* ---- callbacks of the library ------------------------------------------------------------------ */

static void on_error(j_common_ptr lib)
{
    longjmp(((jpeg *)lib->client_data)->escape, 1);
}

/* A warning that means lost data is an error. The other warnings are about bytes that no pixel needs. */
static void on_message(j_common_ptr lib, int level)
{
    static const int losses[] = {JWRN_HIT_MARKER,     JWRN_HUFF_BAD_CODE,     JWRN_MUST_RESYNC,
                                 JWRN_ARITH_BAD_CODE, JWRN_BOGUS_PROGRESSION, JWRN_JPEG_EOF};

    for (size_t i = 0; level < 0 && i < HVT_LEN(losses); i++)
        if (lib->err->msg_code == losses[i])
            on_error(lib);
}

static boolean on_empty(j_decompress_ptr lib) /* the library has all bytes already */
{
    jpeg *f = lib->client_data;

    if (f->all_rows)
        return FALSE;
    f->cut = true;
    ERREXIT(lib, JERR_INPUT_EOF);
    return FALSE;
}

static void on_skip(j_decompress_ptr lib, long bytes)
{
    if (bytes <= 0)
        return;
    if ((size_t)bytes > lib->src->bytes_in_buffer) {
        on_empty(lib);
        bytes = (long)lib->src->bytes_in_buffer;
    }
    lib->src->next_input_byte += bytes;
    lib->src->bytes_in_buffer -= (size_t)bytes;
}

static void on_source(j_decompress_ptr lib)
{
}

/* Refuses thousands of empty scans, by which a file of a few kilobytes can cost minutes. */
static void on_progress(j_common_ptr lib)
{
    j_decompress_ptr d = (j_decompress_ptr)lib;

    if (d->input_scan_number > SCANS_MAX)
        ERREXIT(lib, JERR_BAD_PROGRESSION);
}

static hvt_status failed(jpeg *f)
{
    char why[JMSG_LENGTH_MAX] = "";
    bool memory = f->errors.msg_code == JERR_OUT_OF_MEMORY;

    f->errors.format_message((j_common_ptr)&f->lib, why);
    destroy(f);
    if (f->cut)
        return HVT_FAIL(E_FORMAT, "%s: truncated: the JPEG goes on after its %zu bytes", f->path,
                        f->r->bytes);
    if (memory)
        return HVT_FAIL(E_MEM, "%s: no memory to decode the JPEG: %s", f->path, why);
    return HVT_FAIL(E_FORMAT, "%s: the JPEG cannot be decoded: %s", f->path, why);
}

/* ---- the header -------------------------------------------------------------------------------- */

static hvt_status read_header(jpeg *f)
{
    if (setjmp(f->escape))
        return failed(f);
    jpeg_create_decompress(&f->lib);
    f->alive = true;
    f->lib.src = &f->source;
    f->lib.progress = &f->progress;
    f->lib.mem->max_memory_to_use = (long)HVT__IMAGE_MEMORY_MAX;
    while (jpeg_read_header(&f->lib, FALSE) == JPEG_HEADER_TABLES_ONLY)
        continue; /* a stream of tables may precede the picture's */
    return HVT_OK;
}

/* True if Pillow accepts the markers before the first scan, which it reads itself before the library does. It
 * refuses reserved markers (0x01 to 0xbf) and short JFIF and Adobe segments, and skips bytes between
 * segments. The library finds segments that are truncated by the file's end. */
static bool markers_are_sound(const hvt_record *r)
{
    const uint8_t *d = r->data;
    size_t at = 2, bytes;

    for (;;) {
        while (at < r->bytes && d[at] != 0xff)
            at++;
        while (at < r->bytes && d[at] == 0xff)
            at++;
        if (r->bytes - at < 3 || d[at] == 0xda)
            return true;
        if (d[at] > 0 && d[at] < 0xc0)
            return false;
        bytes = (size_t)d[at + 1] << 8 | d[at + 2];
        if (d[at] == 0 || d[at] == 0xc8 || (d[at] >= 0xd0 && d[at] <= 0xd9) ||
            (d[at] >= 0xf0 && d[at] < 0xfe)) {
            at++;
            continue;
        }
        if (bytes < 9 && r->bytes - at >= 8 &&
            ((d[at] == 0xe0 && bytes >= 6 && !memcmp(d + at + 3, "JFIF", 4)) ||
             (d[at] == 0xee && bytes >= 7 && !memcmp(d + at + 3, "Adobe", 5))))
            return false;
        at += 1 + (bytes < 2 ? 2 : bytes);
        if (at > r->bytes)
            return true;
    }
}

/* Bytes of coefficients. The library holds all coefficients of progressive files, and of files with a scan
 * per channel. */
static size_t coefficients(const jpeg *f)
{
    size_t blocks = 0;

    for (int i = 0; i < f->lib.num_components; i++) {
        const jpeg_component_info *c = &f->lib.comp_info[i];

        blocks += ((size_t)c->width_in_blocks + (size_t)c->h_samp_factor) *
                  ((size_t)c->height_in_blocks + (size_t)c->v_samp_factor);
    }
    return blocks * BLOCK * BLOCK * sizeof(JCOEF);
}

static hvt_status begin_jpeg(void *ctx, const hvt_record *r, const char *path, int *ret_h, int *ret_w)
{
    jpeg *f = ctx;

    f->r = r;
    f->path = path;
    f->cut = f->all_rows = false;
    f->lib.client_data = f;
    f->lib.err = jpeg_std_error(&f->errors);
    f->errors.error_exit = on_error;
    f->errors.emit_message = on_message;
    f->source = (struct jpeg_source_mgr){.next_input_byte = r->data,
                                         .bytes_in_buffer = r->bytes,
                                         .init_source = on_source,
                                         .fill_input_buffer = on_empty,
                                         .skip_input_data = on_skip,
                                         .resync_to_restart = jpeg_resync_to_restart,
                                         .term_source = on_source};
    f->progress.progress_monitor = on_progress;
    HVT_CHECK(markers_are_sound(r), E_FORMAT, "%s: the JPEG is damaged: a marker before its pixels is broken",
              path);
    HVT_TRY(read_header(f));
    HVT_CHECK(f->lib.num_components != 2 && f->lib.num_components <= 4, E_UNSUPPORTED,
              "%s: a JPEG of %d channels; supported are grey, colour and CMYK", path, f->lib.num_components);
    HVT_CHECK(!jpeg_has_multiple_scans(&f->lib) || coefficients(f) <= HVT__IMAGE_MEMORY_MAX, E_UNSUPPORTED,
              "%s: a progressive JPEG of %u x %u pixels takes %zu MiB to decode, at most %zu are allowed",
              path, f->lib.image_height, f->lib.image_width, coefficients(f) >> 20,
              HVT__IMAGE_MEMORY_MAX >> 20);
    *ret_h = (int)f->lib.image_height;
    *ret_w = (int)f->lib.image_width;
    return HVT_OK;
}

/* ---- pixels ------------------------------------------------------------------------------------ */

/* True if the library may skip columns and rows, which it may for all common samplings. With a factor of 3 or
 * 4 libjpeg-turbo 2.1 computes a wrong width of the part and leaves values undefined (2x4 or 4x2 at reduced
 * scale), interpolates otherwise (4x1 beside 2x1), or skips too many rows (1x4 beside 1x2). */
static bool can_leave_out(const jpeg *f)
{
    return f->lib.max_h_samp_factor <= 2 && f->lib.max_v_samp_factor <= 2;
}

static JSAMPROW spare_row(jpeg *f)
{
    return f->lib.mem->alloc_large((j_common_ptr)&f->lib, JPOOL_IMAGE, (size_t)f->lib.output_width * 4);
}

/* Drops the next n rows, which are not the picture's last. */
static void drop_rows(jpeg *f, JDIMENSION n)
{
    JSAMPROW row;

    if (n > 0 && can_leave_out(f)) {
        jpeg_skip_scanlines(&f->lib, n);
        return;
    }
    row = n > 0 ? spare_row(f) : NULL;
    for (; n > 0; n--)
        jpeg_read_scanlines(&f->lib, &row, 1);
}

static hvt_status start(jpeg *f, hvt__region *g)
{
    JDIMENSION x0, width;

    if (setjmp(f->escape))
        return failed(f);
    f->lib.out_color_space = f->lib.num_components == 4 ? JCS_CMYK : JCS_RGB;
    f->lib.dct_method = JDCT_ISLOW;
    f->lib.do_fancy_upsampling = TRUE;
    f->lib.scale_num = (unsigned)g->eighths;
    f->lib.scale_denom = BLOCK;
    jpeg_start_decompress(&f->lib);
    x0 = g->x0 > MARGIN ? (JDIMENSION)g->x0 - MARGIN : 0;
    width = (JDIMENSION)g->x1 + MARGIN < f->lib.output_width ? (JDIMENSION)g->x1 + MARGIN - x0
                                                             : f->lib.output_width - x0;
    if (!can_leave_out(f)) {
        x0 = 0;
        width = f->lib.output_width;
    }
    if (width < f->lib.output_width)
        jpeg_crop_scanline(&f->lib, &x0, &width);
    g->x0 = (int)x0;
    g->x1 = (int)(x0 + width);
    drop_rows(f, (JDIMENSION)g->y0);
    return HVT_OK;
}

static hvt_status start_jpeg(void *ctx, hvt__region *region)
{
    jpeg *f = ctx;
    size_t inks;

    HVT_TRY(start(f, region));
    inks = f->lib.num_components == 4 ? (size_t)f->lib.output_width * 4 : 0;
    if (inks > f->inks_room) {
        free(f->inks);
        f->inks_room = 0;
        f->inks = malloc(inks);
        HVT_CHECK(f->inks, E_MEM, "%s: no memory to decode it (%zu bytes)", f->path, inks);
        f->inks_room = inks;
    }
    return HVT_OK;
}

/* x * y / 255, rounded */
static int over_255(int x, int y)
{
    int p = x * y + 128;

    return (p + (p >> 8)) >> 8;
}

/* Pillow's convert("RGB") of inverted inks */
static void to_rgb(const uint8_t *inks, unsigned n, uint8_t *rgb)
{
    for (unsigned i = 0; i < n; i++, inks += 4, rgb += 3)
        for (int c = 0; c < 3; c++)
            rgb[c] = (uint8_t)(inks[3] - over_255(255 - inks[c], inks[3]));
}

static hvt_status rows_jpeg(void *ctx, int n, uint8_t **rows)
{
    jpeg *f = ctx;
    bool inks = f->lib.num_components == 4;

    if (setjmp(f->escape))
        return failed(f);
    for (volatile int i = 0; i < n;) {
        int came =
            (int)jpeg_read_scanlines(&f->lib, inks ? &f->inks : rows + i, inks ? 1 : (JDIMENSION)(n - i));

        if (came == 0)
            ERREXIT(&f->lib, JERR_INPUT_EOF);
        if (inks)
            to_rgb(f->inks, f->lib.output_width, rows[i]);
        i += came;
    }
    return HVT_OK;
}

/* Reads on to the end marker, as Pillow does, so that damage anywhere is an error. The last row is read, not
 * skipped, since skipping it would not read the file. After the last row the file may end. */
static hvt_status read_rest(jpeg *f)
{
    JSAMPROW row;
    JDIMENSION left;

    if (setjmp(f->escape))
        return failed(f);
    left = f->lib.output_height - f->lib.output_scanline;
    if (left > 0) {
        drop_rows(f, left - 1);
        row = spare_row(f);
        jpeg_read_scanlines(&f->lib, &row, 1);
    }
    f->all_rows = true;
    jpeg_finish_decompress(&f->lib);
    return HVT_OK;
}

static hvt_status end_jpeg(void *ctx, bool check)
{
    jpeg *f = ctx;
    hvt_status s = f->alive && check && f->lib.output_height ? read_rest(f) : HVT_OK;

    destroy(f);
    return s;
}

const hvt__decoder hvt__decoder_jpeg = {"JPEG",     true,       is_jpeg,   open_jpeg, close_jpeg,
                                        begin_jpeg, start_jpeg, rows_jpeg, end_jpeg};
