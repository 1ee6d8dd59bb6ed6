/*
 * bench_jpeg_bound - the time of libjpeg-turbo for a data set's pictures: a bound for bench_loader.
 *
 *     bench_jpeg_bound --data folder --data-dir DIR [--size 224] [--seed N] [--limit N] [--max-time 10s]
 *
 * Reads a thousand JPEG files, evenly spread over the set, into memory, and decodes each by several methods,
 * one after the other, for about ten seconds or --max-time. Boxes are those that the loader's
 * RandomResizedCrop draws in epoch 0, 1, ... Neither reading nor resampling is timed. Last line: total N
 * img/s, for boxes at the faster scale of the last two methods.
 */
#include "hvt/train.h"
#include "bench.h"
#include "base_impl.h"
#include "data/image/image_impl.h"
#include "train/cli/cli_impl.h"

#include <jpeglib.h>
#include <math.h>
#include <setjmp.h>
#include <stdlib.h>

enum { PICTURES = 1000, SECONDS = 10, MARGIN = 2, ROWS = 4, SIZE = 224 };

typedef enum way { COEFFICIENTS, WHOLE, BOX, EIGHTHS, POWERS, WAYS } way;
static const char *const names[WAYS] = {
    "entropy decoding alone (jpeg_read_coefficients)", "the whole picture", "a box",
    "a box at the smallest of 1/8, 2/8, 3/8 ... 8/8", "a box at the smallest of 1/8, 1/4, 1/2, 1"};

typedef struct bound {
    hvt_record picture[PICTURES];
    uint32_t index[PICTURES]; /* in the set */
    int pictures, size;
    uint64_t seed;
    uint8_t *pixels; /* of the largest picture */
    double seconds[WAYS];
} bound;

typedef struct decoder {
    struct jpeg_decompress_struct lib;
    struct jpeg_error_mgr errors;
    jmp_buf escape;
} decoder;

static void must(hvt_status s)
{
    bench_must("bench_jpeg_bound", NULL, s);
}

static void on_error(j_common_ptr lib)
{
    longjmp(((decoder *)lib->client_data)->escape, 1);
}

static void on_message(j_common_ptr lib, int level)
{
}

static void begin(decoder *d, const hvt_record *r)
{
    d->lib.client_data = d;
    d->lib.err = jpeg_std_error(&d->errors);
    d->errors.error_exit = on_error;
    d->errors.emit_message = on_message;
    jpeg_create_decompress(&d->lib);
    jpeg_mem_src(&d->lib, r->data, r->bytes);
    jpeg_read_header(&d->lib, TRUE);
}

/* The smallest scale at which the box has at least as many pixels as its output. */
static unsigned scale_of(way how, const hvt__view *v)
{
    unsigned n = how < EIGHTHS ? 8 : 1;

    while (n < 8 && (v->w * (int)n < v->full_w * 8 || v->h * (int)n < v->full_h * 8))
        n += how == POWERS ? n : 1;
    return n;
}

/* Decodes the rows of the box, whose columns may grow, plus a margin, because chroma is interpolated between
 * neighbours. */
static void decode_box(struct jpeg_decompress_struct *lib, const hvt__view *v, uint8_t *pixels)
{
    double sx = (double)lib->output_width / lib->image_width,
           sy = (double)lib->output_height / lib->image_height;
    JDIMENSION x = (JDIMENSION)fmax(0, v->x * sx - MARGIN), y = (JDIMENSION)fmax(0, v->y * sy - MARGIN);
    JDIMENSION width = (JDIMENSION)fmin(lib->output_width - x, ceil(v->w * sx) + 2 * MARGIN);
    JDIMENSION end = (JDIMENSION)fmin(lib->output_height, ceil((v->y + v->h) * sy) + MARGIN);
    JSAMPROW rows[ROWS];

    if (width < lib->output_width)
        jpeg_crop_scanline(lib, &x, &width);
    if (y)
        jpeg_skip_scanlines(lib, y);
    while (lib->output_scanline < end) {
        for (unsigned i = 0; i < ROWS; i++)
            rows[i] = pixels + (size_t)(lib->output_scanline - y + i) * width * 3;
        jpeg_read_scanlines(lib, rows, ROWS);
    }
}

/* False if it cannot be decoded to RGB. */
static bool decode(way how, const hvt_record *r, const hvt__view *v, uint8_t *pixels)
{
    decoder d;

    if (setjmp(d.escape)) {
        jpeg_destroy_decompress(&d.lib);
        return false;
    }
    begin(&d, r);
    if (how == COEFFICIENTS) {
        jpeg_read_coefficients(&d.lib);
    } else {
        d.lib.out_color_space = JCS_RGB;
        d.lib.dct_method = JDCT_ISLOW;
        d.lib.scale_num = scale_of(how, v);
        d.lib.scale_denom = 8;
        jpeg_start_decompress(&d.lib);
        decode_box(&d.lib, v, pixels);
    }
    jpeg_destroy_decompress(&d.lib);
    return true;
}

static bool read_size(const hvt_record *r, int *ret_h, int *ret_w)
{
    decoder d;

    if (r->encoding != HVT_IMAGE_FILE || r->bytes < 3 || memcmp(r->data, "\xff\xd8\xff", 3) != 0)
        return false;
    if (setjmp(d.escape)) {
        jpeg_destroy_decompress(&d.lib);
        return false;
    }
    begin(&d, r);
    *ret_h = (int)d.lib.image_height;
    *ret_w = (int)d.lib.image_width;
    jpeg_destroy_decompress(&d.lib);
    return true;
}

/* The part of the picture drawn in epoch `epoch`, or all of it. */
static hvt__view view_of(const bound *b, way how, int i, int epoch)
{
    static const hvt_rrc usual = {true, .08f, 1, 3.f / 4, 4.f / 3};
    int h = 0, w = 0;

    read_size(&b->picture[i], &h, &w);
    return how == WHOLE ? hvt__view_whole(h, w)
                        : hvt__view_rrc(h, w, &usual, b->seed, epoch, b->index[i], b->size, b->size);
}

/* Reads the pictures that can be decoded. */
static void read_pictures(bound *b, const hvt_dataset *set)
{
    uint32_t count = hvt_dataset_describe(set)->count, most = count < PICTURES ? count : PICTURES;
    size_t pixels = 0;
    int n = 0, h, w;

    for (uint32_t i = 0; i < most; i++) {
        uint32_t index = (uint32_t)((uint64_t)i * count / most);
        hvt_record *r = &b->picture[n];

        must(hvt_dataset_read(set, index, r));
        if (!read_size(r, &h, &w))
            continue;
        if ((size_t)(h + ROWS) * (size_t)w > pixels) {
            pixels = (size_t)(h + ROWS) * (size_t)w;
            free(b->pixels);
            b->pixels = malloc(pixels * 3);
        }
        if (b->pixels && decode(WHOLE, r, &(hvt__view){.w = w, .h = h}, b->pixels))
            b->index[n++] = index;
    }
    b->pictures = n;
    if (!n || !b->pixels)
        must(HVT_FAIL(E_ARG, "none of %u pictures can be decoded: JPEG files in grey or colour are", most));
}

/* Runs every method on a picture, then on the next one, so that a slow phase of the machine affects all. */
static int work(bound *b, double seconds)
{
    double began = hvt__now();
    int passes = 0;

    for (; !passes || hvt__now() - began < seconds; passes++)
        for (int i = 0; i < b->pictures; i++)
            for (way how = 0; how < WAYS; how++) {
                hvt__view v = view_of(b, how, i, passes);
                double start = hvt__now();

                decode(how, &b->picture[i], &v, b->pixels);
                b->seconds[how] += hvt__now() - start;
            }
    return passes;
}

int main(int argc, char **argv)
{
    static bound b;
    hvt_options o;
    hvt_dataset *set = NULL;
    double best, seconds = SECONDS;
    int passes;

    must(hvt_options_parse(argc, argv, &o));
    hvt__time_read(o.max_time, &seconds);
    must(hvt_dataset_open(
        o.data, &(hvt_dataset_opts){.dir = o.data_dir, .train = true, .limit = (uint32_t)o.limit}, &set));
    b.size = o.size ? o.size : SIZE;
    b.seed = (uint64_t)o.seed;
    read_pictures(&b, set);
    bench_header("bench_jpeg_bound", "libjpeg", 1);
    passes = work(&b, seconds);
    printf("%d of %u pictures, boxes to %d x %d, %d times\n", b.pictures, hvt_dataset_describe(set)->count,
           b.size, b.size, passes);
    for (way how = 0; how < WAYS; how++)
        printf("%-50s %8.0f img/s\n", names[how], passes * b.pictures / b.seconds[how]);
    best = fmin(b.seconds[EIGHTHS], b.seconds[POWERS]);
    printf("total %.0f img/s\n", passes * b.pictures / best);
    for (int i = 0; i < PICTURES; i++)
        free(b.picture[i].data);
    free(b.pixels);
    hvt_dataset_close(&set);
    return 0;
}
