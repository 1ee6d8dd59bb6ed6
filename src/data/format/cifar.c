/*
 * CIFAR-10 and CIFAR-100 in their official binary layouts.
 *
 * A file is a sequence of records: a label (CIFAR-100: a coarse and a fine one; the fine one is used), then
 * 1,024 bytes each of red, green and blue, row by row. Training images are in data_batch_1.bin
 * ... data_batch_5.bin in this order, or in train.bin; test images in test_batch.bin, or in test.bin. A file
 * may have any positive number of records. Sizes and labels are checked once, at open. Source:
 * https://www.cs.toronto.edu/~kriz/cifar.html, "Binary version".
 */
#include "data/data_impl.h"

#include <inttypes.h>

enum { SIDE = 32, PIXELS = SIDE * SIDE, LABELS_MAX = 2, RECORD_MAX = LABELS_MAX + 3 * PIXELS, FILES_MAX = 5 };

typedef struct layout {
    hvt__archive archive;
    int labels; /* bytes before the pixels; the last one is used */
    struct {
        const char *name;
        int classes;
    } label[LABELS_MAX];
    const char *train[FILES_MAX + 1], *test[2]; /* ends with NULL */
    const char *names;                          /* file of class names */
} layout;

static const layout cifar10 = {
    {"cifar10", "CIFAR-10", "cifar-10-binary.tar.gz", "cifar-10-batches-bin"},
    1,
    {{"label", 10}},
    {"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin", "data_batch_4.bin", "data_batch_5.bin"},
    {"test_batch.bin"},
    "batches.meta.txt"};

static const layout cifar100 = {{"cifar100", "CIFAR-100", "cifar-100-binary.tar.gz", "cifar-100-binary"},
                                2,
                                {{"coarse label", 20}, {"fine label", 100}},
                                {"train.bin"},
                                {"test.bin"},
                                "fine_label_names.txt"};

typedef struct cifar {
    hvt__data_file file[FILES_MAX];
    uint32_t end[FILES_MAX]; /* index of the first image after this file */
    int nfiles, labels;
    size_t record;  /* bytes */
    uint8_t *label; /* [count] */
    hvt__class_list names;
} cifar;

static void close_cifar(void *ctx)
{
    cifar *c = ctx;

    for (int i = 0; i < c->nfiles; i++)
        hvt__data_close(&c->file[i]);
    hvt__class_list_free(&c->names);
    free(c->label);
    free(c);
}

static hvt_status read_record(const cifar *c, int i, uint64_t number, size_t bytes, uint8_t *ret_bytes)
{
    return hvt__data_read(&c->file[i], number * c->record, bytes, ret_bytes,
                          (hvt__data_unit){"record", number, c->file[i].bytes / c->record});
}

static hvt_status get_cifar(void *ctx, uint32_t index, uint8_t *ret_pixels, int *ret_label)
{
    const cifar *c = ctx;
    uint8_t record[RECORD_MAX];
    const uint8_t *red = record + c->labels, *green = red + PIXELS, *blue = green + PIXELS;
    uint32_t first = 0;
    int i = 0;

    while (index >= c->end[i])
        first = c->end[i++];
    HVT_TRY(read_record(c, i, index - first, c->record, record));
    *ret_label = red[-1];
    for (int p = 0; p < PIXELS; p++) {
        ret_pixels[3 * p] = red[p];
        ret_pixels[3 * p + 1] = green[p];
        ret_pixels[3 * p + 2] = blue[p];
    }
    return HVT_OK;
}

static int label_cifar(void *ctx, uint32_t index)
{
    const cifar *c = ctx;

    return c->label[index];
}

static const char *class_of_cifar(void *ctx, int label)
{
    const cifar *c = ctx;

    return hvt__class_list_at(&c->names, label);
}

/* Checks, stores and hashes the labels of file i. */
static hvt_status check_labels(const cifar *c, const layout *l, int i, uint64_t records,
                               hvt_dataset_info *info)
{
    uint8_t labels[512]; /* a multiple of any layout's */
    size_t n = 0;

    for (uint64_t r = 0; r < records; r++) {
        HVT_TRY(read_record(c, i, r, (size_t)c->labels, &labels[n]));
        for (int k = 0; k < c->labels; k++, n++)
            HVT_CHECK(labels[n] < l->label[k].classes, E_FORMAT,
                      "%s, record %" PRIu64 ": %s is %d, expected 0 to %d", c->file[i].path, r,
                      l->label[k].name, labels[n], l->label[k].classes - 1);
        c->label[info->count + r] = labels[n - 1];
        if (n == sizeof labels || r + 1 == records) {
            info->fingerprint = hvt__hash(info->fingerprint, labels, n);
            n = 0;
        }
    }
    return HVT_OK;
}

static hvt_status open_file(cifar *c, const layout *l, const char *folder, const char *name,
                            hvt_dataset_info *info)
{
    hvt__data_file *f = &c->file[c->nfiles];
    uint64_t records;
    uint8_t *label;

    HVT_TRY(hvt__data_open(f, "%s/%s", folder, name));
    records = f->bytes / c->record;
    c->nfiles++;
    HVT_CHECK(f->bytes > 0 && f->bytes % c->record == 0, E_FORMAT,
              "%s holds %" PRIu64 " bytes, expected a positive multiple of %zu: record %" PRIu64
              " is cut off",
              f->path, f->bytes, c->record, records);
    HVT_CHECK(records <= UINT32_MAX - info->count, E_FORMAT, "%s: %" PRIu64 " records after %u are too many",
              f->path, records, info->count);
    label = realloc(c->label, info->count + records);
    HVT_CHECK(label, E_MEM, "no memory for the labels of %s", f->path);
    c->label = label;
    info->fingerprint = hvt__mix(info->fingerprint ^ records);
    HVT_TRY(check_labels(c, l, c->nfiles - 1, records, info));
    info->count += (uint32_t)records;
    c->end[c->nfiles - 1] = info->count;
    return HVT_OK;
}

static hvt_status open_layout(const layout *l, const hvt_dataset_opts *opts, hvt_source *ret_source)
{
    const char *const *names = opts->train ? l->train : l->test;
    size_t record = (size_t)l->labels + 3 * PIXELS;
    hvt_dataset_info info = {l->archive.set, .classes = l->label[l->labels - 1].classes,
                             .height = SIDE, .width = SIDE,
                             .channels = 3,  .fingerprint = record,
                             .type = HVT_U8};
    char folder[PATH_MAX];
    cifar *c;
    hvt_status s;

    HVT_TRY(hvt__data_folder(&l->archive, opts->dir, names[0], folder));
    c = calloc(1, sizeof *c);
    HVT_CHECK(c, E_MEM, "no memory for data set '%s' (%zu bytes)", info.name, sizeof *c);
    c->labels = l->labels;
    c->record = record;
    for (; *names; names++)
        HVT_TRY_OR(fail, open_file(c, l, folder, *names, &info));
    HVT_TRY_OR(fail, hvt__class_list_read_all(folder, l->names, info.classes, &c->names));
    *ret_source = (hvt_source){.info = info,
                               .get = get_cifar,
                               .label = label_cifar,
                               .class_name = class_of_cifar,
                               .close = close_cifar,
                               .ctx = c};
    return HVT_OK;

fail:
    close_cifar(c);
    return s;
}

static hvt_status open_cifar10(const hvt_dataset_opts *opts, hvt_source *ret_source)
{
    return open_layout(&cifar10, opts, ret_source);
}

static hvt_status open_cifar100(const hvt_dataset_opts *opts, hvt_source *ret_source)
{
    return open_layout(&cifar100, opts, ret_source);
}

const hvt_format hvt_format_cifar10 = {"cifar10", open_cifar10};
const hvt_format hvt_format_cifar100 = {"cifar100", open_cifar100};
