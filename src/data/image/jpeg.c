/*
 * JPEG, by libjpeg-turbo: a part of a picture at a scale of eighths, as RGB.
 *
 * The library scales for (almost) nothing: it computes fewer values of each block's inverse transform.
 * Columns left and right of the part are not transformed, rows above it neither, but all must be read; rows
 * below it are not even read. What remains has the bits that decoding the whole picture at this scale would
 * give: the part grows by a margin, since chroma is interpolated between neighbours ("fancy upsampling").
 *
 * As in Pillow, the inverse transform is the accurate one of integers, an EXIF orientation is not applied,
 * damage that the library decodes around stays without a message, and a file that ends too early is an error:
 * also where its end lies below the part, as far as a missing end marker shows that. Grey is spread over
 * three channels. CMYK is taken as inverted, as Adobe writes it, and made RGB by the formula of Pillow's
 * convert().
 *
 * libjpeg leaves a function by longjmp() when it fails: each function here that calls it begins with
 * setjmp(), and has no variable that changes in between. Every picture has a decoder of its own, since
 * a decoder keeps tables, and a file without tables would be decoded by those of the file before.
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
    bool alive, cut, whole; /* lib exists; it wanted more than there is; the end marker is there */
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

/* ---- what the library calls -------------------------------------------------------------------- */

static void on_error(j_common_ptr lib)
{
    longjmp(((jpeg *)lib->client_data)->escape, 1);
}

static void on_message(j_common_ptr lib, int level)
{
}

static boolean on_empty(j_decompress_ptr lib) /* all there is was given at once */
{
    ((jpeg *)lib->client_data)->cut = true;
    ERREXIT(lib, JERR_INPUT_EOF);
    return FALSE;
}

static void on_skip(j_decompress_ptr lib, long bytes)
{
    if (bytes <= 0)
        return;
    if ((size_t)bytes > lib->src->bytes_in_buffer)
        on_empty(lib);
    lib->src->next_input_byte += bytes;
    lib->src->bytes_in_buffer -= (size_t)bytes;
}

static void on_source(j_decompress_ptr lib)
{
}

/* A file of a few kilobytes can ask for minutes of work by thousands of empty scans. */
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
    jpeg_read_header(&f->lib, TRUE);
    return HVT_OK;
}

/* Whether the end marker comes after the first scan's header, where the library has read up to. */
static bool has_end(const jpeg *f)
{
    const uint8_t *from = f->source.next_input_byte, *end = f->r->data + f->r->bytes;

    while (end - from >= 2) {
        if (end[-1] == JPEG_EOI && end[-2] == 0xff)
            return true;
        end--;
    }
    return false;
}

/* Progressive files, and those with a scan per channel, are held as coefficients. */
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
    f->cut = false;
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
    HVT_TRY(read_header(f));
    f->whole = has_end(f);
    HVT_CHECK(f->lib.num_components != 2 && f->lib.num_components <= 4, E_UNSUPPORTED,
              "%s: a JPEG of %d channels; grey, colour and CMYK can be read", path, f->lib.num_components);
    HVT_CHECK(!jpeg_has_multiple_scans(&f->lib) || coefficients(f) <= HVT__IMAGE_MEMORY_MAX, E_UNSUPPORTED,
              "%s: a progressive JPEG of %u x %u pixels takes %zu MiB to decode, at most %zu are allowed",
              path, f->lib.image_height, f->lib.image_width, coefficients(f) >> 20,
              HVT__IMAGE_MEMORY_MAX >> 20);
    *ret_h = (int)f->lib.image_height;
    *ret_w = (int)f->lib.image_width;
    return HVT_OK;
}

/* ---- pixels ------------------------------------------------------------------------------------ */

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
    if (width < f->lib.output_width)
        jpeg_crop_scanline(&f->lib, &x0, &width);
    g->x0 = (int)x0;
    g->x1 = (int)(x0 + width);
    if (g->y0 > 0)
        jpeg_skip_scanlines(&f->lib, (JDIMENSION)g->y0);
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

/* Read what is left, to find where it ends. The last row is not skipped: the library would not read the file
 * for that. */
static hvt_status read_rest(jpeg *f)
{
    JSAMPROW row;
    JDIMENSION left;

    if (setjmp(f->escape))
        return failed(f);
    left = f->lib.output_height - f->lib.output_scanline;
    if (left == 0)
        return HVT_OK;
    row = f->lib.mem->alloc_large((j_common_ptr)&f->lib, JPOOL_IMAGE, (size_t)f->lib.output_width * 4);
    if (left > 1)
        jpeg_skip_scanlines(&f->lib, left - 1);
    jpeg_read_scanlines(&f->lib, &row, 1);
    return HVT_OK;
}

static hvt_status end_jpeg(void *ctx, bool last)
{
    jpeg *f = ctx;
    hvt_status s = f->alive && last && !f->whole ? read_rest(f) : HVT_OK;

    destroy(f);
    return s;
}

const hvt__decoder hvt__decoder_jpeg = {"JPEG",     true,       is_jpeg,   open_jpeg, close_jpeg,
                                        begin_jpeg, start_jpeg, rows_jpeg, end_jpeg};
