/*
 * STL-10 in its official binary layout: train_X.bin with train_y.bin, test_X.bin with test_y.bin.
 *
 * An image is 27,648 bytes: a plane each of red, green and blue, stored column by column. A label is one
 * byte, 1 to 10, used as 0 to 9 here. unlabeled_X.bin is not read. Source:
 * https://cs.stanford.edu/~acoates/stl10/.
 */
#include "data/data_impl.h"

#include <inttypes.h>

enum { SIDE = 96, PIXELS = SIDE * SIDE, IMAGE = 3 * PIXELS, CLASSES = 10 };

static const hvt__archive archive = {"stl10", "STL-10", "stl10_binary.tar.gz", "stl10_binary"};

typedef struct stl10 {
    hvt__data_file images;
    uint32_t count;
    uint8_t *labels; /* [count], as in the file */
    hvt__class_list names;
} stl10;

static void close_stl10(void *ctx)
{
    stl10 *d = ctx;

    hvt__data_close(&d->images);
    hvt__class_list_free(&d->names);
    free(d->labels);
    free(d);
}

static hvt_status get_stl10(void *ctx, uint32_t index, uint8_t *ret_pixels, int *ret_label)
{
    const stl10 *d = ctx;
    uint8_t planes[IMAGE]; /* [3,SIDE,SIDE]: channel, column, row */

    HVT_TRY(hvt__data_read(&d->images, (uint64_t)index * IMAGE, IMAGE, planes,
                           (hvt__data_unit){"image", index, d->count}));
    for (int y = 0; y < SIDE; y++)
        for (int x = 0; x < SIDE; x++)
            for (int c = 0; c < 3; c++)
                *ret_pixels++ = planes[c * PIXELS + x * SIDE + y];
    *ret_label = d->labels[index] - 1;
    return HVT_OK;
}

static int label_stl10(void *ctx, uint32_t index)
{
    const stl10 *d = ctx;

    return d->labels[index] - 1;
}

static const char *class_of_stl10(void *ctx, int label)
{
    const stl10 *d = ctx;

    return hvt__class_list_at(&d->names, label);
}

static hvt_status open_images(stl10 *d, const char *folder, const char *split)
{
    HVT_TRY(hvt__data_open(&d->images, "%s/%s_X.bin", folder, split));
    HVT_CHECK(d->images.bytes > 0 && d->images.bytes % IMAGE == 0, E_FORMAT,
              "%s holds %" PRIu64 " bytes, expected a positive multiple of %d: image %" PRIu64 " is cut off",
              d->images.path, d->images.bytes, IMAGE, d->images.bytes / IMAGE);
    HVT_CHECK(d->images.bytes / IMAGE <= UINT32_MAX, E_FORMAT, "%s: %" PRIu64 " images are too many",
              d->images.path, d->images.bytes / IMAGE);
    d->count = (uint32_t)(d->images.bytes / IMAGE);
    return HVT_OK;
}

static hvt_status check_labels(const stl10 *d, const hvt__data_file *f)
{
    for (uint32_t i = 0; i < d->count; i++)
        HVT_CHECK(d->labels[i] >= 1 && d->labels[i] <= CLASSES, E_FORMAT,
                  "%s, image %u: label is %d, expected 1 to %d", f->path, i, d->labels[i], CLASSES);
    return HVT_OK;
}

static hvt_status read_labels(stl10 *d, const char *folder, const char *split)
{
    hvt__data_file f;
    hvt_status s;

    HVT_TRY(hvt__data_open(&f, "%s/%s_y.bin", folder, split));
    HVT_CHECK_OR(done, f.bytes == d->count, E_FORMAT, "%s holds %" PRIu64 " labels, but %s %u images", f.path,
                 f.bytes, d->images.path, d->count);
    d->labels = malloc(d->count);
    HVT_CHECK_OR(done, d->labels, E_MEM, "no memory for %u labels", d->count);
    HVT_TRY_OR(done, hvt__data_read(&f, 0, d->count, d->labels, (hvt__data_unit){"label", 0, d->count}));
    HVT_TRY_OR(done, check_labels(d, &f));
done:
    hvt__data_close(&f);
    return s;
}

static hvt_status open_stl10(const hvt_dataset_opts *opts, hvt_source *ret_source)
{
    const char *split = opts->train ? "train" : "test";
    hvt_dataset_info info = {"stl10",       .classes = CLASSES, .height = SIDE,
                             .width = SIDE, .channels = 3,      .type = HVT_U8};
    char folder[PATH_MAX];
    stl10 *d;
    hvt_status s;

    HVT_TRY(hvt__data_folder(&archive, opts->dir, opts->train ? "train_X.bin" : "test_X.bin", folder));
    d = calloc(1, sizeof *d);
    HVT_CHECK(d, E_MEM, "no memory for data set 'stl10' (%zu bytes)", sizeof *d);
    d->images.fd = -1;
    HVT_TRY_OR(fail, open_images(d, folder, split));
    HVT_TRY_OR(fail, read_labels(d, folder, split));
    HVT_TRY_OR(fail, hvt__class_list_read_all(folder, "class_names.txt", CLASSES, &d->names));
    info.count = d->count;
    info.fingerprint = hvt__hash(hvt__mix(IMAGE ^ (uint64_t)d->count), d->labels, d->count);
    *ret_source = (hvt_source){.info = info,
                               .get = get_stl10,
                               .label = label_stl10,
                               .class_name = class_of_stl10,
                               .close = close_stl10,
                               .ctx = d};
    return HVT_OK;

fail:
    close_stl10(d);
    return s;
}

const hvt_format hvt_format_stl10 = {"stl10", open_stl10};
