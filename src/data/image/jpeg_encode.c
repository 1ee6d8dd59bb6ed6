/*
 * Encodes pixels as a JPEG file, by libjpeg-turbo: baseline, chroma at half the size on both axes, optimised
 * Huffman tables, the accurate integer transform. The same library gives the same bytes for the same pixels.
 */
#include "image_impl.h"

#include <setjmp.h>
#include <jpeglib.h>

typedef struct encoder {
    struct jpeg_compress_struct lib;
    struct jpeg_error_mgr errors;
    jmp_buf escape;
    unsigned char *bytes; /* malloc'ed by the library */
    unsigned long size;
} encoder;

static void on_error(j_common_ptr lib)
{
    longjmp(((encoder *)lib->client_data)->escape, 1);
}

/* False: the library failed, and its error is in e->errors. */
static bool encode(encoder *e, const uint8_t *pixels, int h, int w, int quality)
{
    if (setjmp(e->escape))
        return false;
    e->lib.err = jpeg_std_error(&e->errors);
    e->errors.error_exit = on_error;
    e->lib.client_data = e;
    jpeg_create_compress(&e->lib);
    jpeg_mem_dest(&e->lib, &e->bytes, &e->size);
    e->lib.image_height = (JDIMENSION)h;
    e->lib.image_width = (JDIMENSION)w;
    e->lib.input_components = 3;
    e->lib.in_color_space = JCS_RGB;
    jpeg_set_defaults(&e->lib);
    jpeg_set_quality(&e->lib, quality, TRUE);
    e->lib.dct_method = JDCT_ISLOW;
    e->lib.optimize_coding = TRUE;
    jpeg_start_compress(&e->lib, TRUE);
    while (e->lib.next_scanline < e->lib.image_height) {
        JSAMPROW row = (JSAMPROW)(uintptr_t)(pixels + (size_t)e->lib.next_scanline * (size_t)w * 3);
        jpeg_write_scanlines(&e->lib, &row, 1);
    }
    jpeg_finish_compress(&e->lib);
    return true;
}

hvt_status hvt__jpeg_encode(const uint8_t *pixels, int h, int w, int quality, hvt_record *ret_file)
{
    encoder *e = calloc(1, sizeof *e);
    char why[JMSG_LENGTH_MAX];
    hvt_status s;

    HVT_CHECK(e, E_MEM, "no memory for an encoder (%zu bytes)", sizeof *e);
    if (encode(e, pixels, h, w, quality)) {
        s = hvt_record_reserve(ret_file, e->size);
        if (s == HVT_OK)
            memcpy(ret_file->data, e->bytes, e->size);
        ret_file->encoding = HVT_IMAGE_FILE;
    } else {
        e->errors.format_message((j_common_ptr)&e->lib, why);
        s = HVT_FAIL(E_MEM, "a picture of %d x %d pixels cannot become a JPEG: %s", h, w, why);
    }
    jpeg_destroy_compress(&e->lib);
    free(e->bytes);
    free(e);
    return s;
}
