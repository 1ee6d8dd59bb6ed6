/*
 * CIFAR-10 in its official binary layout.
 *
 * A file is a sequence of records of 3,073 bytes: one label, then 1,024 bytes each of red, green and blue,
 * row by row. Training images are in data_batch_1.bin ... data_batch_5.bin in this order, test images in
 * test_batch.bin. A file may have any positive number of records. Sizes and labels are checked once, at open.
 *
 * Files stay open, and each image is one pread() from the page cache: one or two microseconds more than from
 * a mapping, compared with a millisecond of training. With a mapping, a file that is truncated or a disk that
 * fails during the run would be a SIGBUS; here both are an error that names the file and the record. Source:
 * https://www.cs.toronto.edu/~kriz/cifar.html, "Binary version".
 */
#include "data_impl.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SIDE = 32, PIXELS = SIDE * SIDE, RECORD = 1 + 3 * PIXELS, CLASSES = 10, FILES_MAX = 5 };

static const char *const train_files[] = {"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin",
                                          "data_batch_4.bin", "data_batch_5.bin"};
static const char *const test_files[] = {"test_batch.bin"};
static const char subfolder[] = "cifar-10-batches-bin"; /* what the official archive unpacks to */

typedef struct cifar {
    struct {
        int fd;
        char *path;
        size_t bytes;
        uint32_t end; /* index of the first image after this file */
    } file[FILES_MAX];
    int nfiles;
} cifar;

static void close_cifar(void *ctx)
{
    cifar *c = ctx;

    for (int i = 0; i < c->nfiles; i++) {
        close(c->file[i].fd);
        free(c->file[i].path);
    }
    free(c);
}

/* The first bytes of a record of file i. */
static hvt_status read_record(const cifar *c, int i, size_t record, size_t bytes, uint8_t *ret_bytes)
{
    size_t got = 0;

    while (got < bytes) {
        ssize_t n = pread(c->file[i].fd, ret_bytes + got, bytes - got, (off_t)(record * RECORD + got));

        if (n < 0 && errno == EINTR)
            continue;
        HVT_CHECK(n >= 0, E_IO, "%s: cannot read record %zu: %s", c->file[i].path, record, strerror(errno));
        HVT_CHECK(n > 0, E_IO, "%s: ends in record %zu of %zu: it was truncated after it was opened",
                  c->file[i].path, record, c->file[i].bytes / RECORD);
        got += (size_t)n;
    }
    return HVT_OK;
}

static hvt_status get_cifar(void *ctx, uint32_t index, uint8_t *ret_pixels, int *ret_label)
{
    const cifar *c = ctx;
    uint8_t record[RECORD];
    const uint8_t *red = record + 1, *green = red + PIXELS, *blue = green + PIXELS;
    uint32_t first = 0;
    int i = 0;

    while (index >= c->file[i].end)
        first = c->file[i++].end;
    HVT_TRY(read_record(c, i, index - first, RECORD, record));
    *ret_label = record[0];
    for (int p = 0; p < PIXELS; p++) {
        ret_pixels[3 * p] = red[p];
        ret_pixels[3 * p + 1] = green[p];
        ret_pixels[3 * p + 2] = blue[p];
    }
    return HVT_OK;
}

/* Open the next file. */
static hvt_status open_file(cifar *c, const char *path)
{
    uint64_t bytes;
    char *kept;
    int fd;
    hvt_status s;

    HVT_TRY(hvt__open_regular(path, &fd, &bytes));
    HVT_CHECK_OR(fail, bytes > 0 && bytes % RECORD == 0, E_FORMAT,
                 "%s holds %" PRIu64 " bytes, expected a positive multiple of %d: record %" PRIu64
                 " is cut off",
                 path, bytes, RECORD, bytes / RECORD);
    kept = strdup(path);
    HVT_CHECK_OR(fail, kept, E_MEM, "no memory for the name of %s", path);
    c->file[c->nfiles].fd = fd;
    c->file[c->nfiles].path = kept;
    c->file[c->nfiles++].bytes = bytes;
    return HVT_OK;
fail:
    close(fd);
    return s;
}

/* Check and hash the labels of the file opened last; count its images. */
static hvt_status read_labels(cifar *c, const char *path, hvt_dataset_info *info)
{
    size_t records = c->file[c->nfiles - 1].bytes / RECORD;
    uint8_t labels[512];
    size_t n = 0;

    HVT_CHECK(records <= UINT32_MAX - info->count, E_FORMAT, "%s: %zu records after %u are too many", path,
              records, info->count);
    info->fingerprint = hvt__mix(info->fingerprint ^ records);
    for (size_t i = 0; i < records; i++) {
        HVT_TRY(read_record(c, c->nfiles - 1, i, 1, &labels[n]));
        HVT_CHECK(labels[n] < CLASSES, E_FORMAT, "%s, record %zu: label is %d, expected 0 to %d", path, i,
                  labels[n], CLASSES - 1);
        n++;
        if (n == sizeof labels || i + 1 == records) {
            info->fingerprint = hvt__hash(info->fingerprint, labels, n);
            n = 0;
        }
    }
    info->count += (uint32_t)records;
    c->file[c->nfiles - 1].end = info->count;
    return HVT_OK;
}

static hvt_status join(char *path, const char *dir, const char *sub, const char *file)
{
    int n = snprintf(path, PATH_MAX, "%s/%s%s%s", dir, sub, *sub ? "/" : "", file);

    HVT_CHECK(n < PATH_MAX, E_ARG, "path of %s is longer than %d bytes", file, PATH_MAX - 1);
    return HVT_OK;
}

static hvt_status open_cifar(const hvt_dataset_opts *opts, hvt_source *ret_source)
{
    const char *const *names = opts->train ? train_files : test_files;
    int n = opts->train ? (int)HVT_LEN(train_files) : (int)HVT_LEN(test_files);
    hvt_dataset_info info = {"cifar10",     .classes = CLASSES, .height = SIDE,
                             .width = SIDE, .channels = 3,      .fingerprint = RECORD};
    char path[PATH_MAX];
    const char *sub = "";
    cifar *c = NULL;
    hvt_status s;

    HVT_CHECK(opts->dir && *opts->dir, E_ARG,
              "cifar10 needs the folder of its files (--data-dir), the one with %s", names[0]);

    /* dir may be the folder of the files, or the one in which the archive was unpacked */
    HVT_TRY(join(path, opts->dir, "", names[0]));
    if (access(path, F_OK) != 0) {
        HVT_TRY(join(path, opts->dir, subfolder, names[0]));
        if (access(path, F_OK) == 0)
            sub = subfolder;
        else
            return HVT_FAIL(E_IO,
                            "found neither %s/%s nor %s/%s/%s: %s; expected the binary version of CIFAR-10, "
                            "cifar-10-binary.tar.gz, unpacked",
                            opts->dir, names[0], opts->dir, subfolder, names[0], strerror(errno));
    }

    c = calloc(1, sizeof *c);
    HVT_CHECK(c, E_MEM, "no memory for data set 'cifar10' (%zu bytes)", sizeof *c);
    for (int i = 0; i < n; i++) {
        HVT_TRY_OR(fail, join(path, opts->dir, sub, names[i]));
        HVT_TRY_OR(fail, open_file(c, path));
        HVT_TRY_OR(fail, read_labels(c, path, &info));
    }
    *ret_source = (hvt_source){.info = info, .get = get_cifar, .close = close_cifar, .ctx = c};
    return HVT_OK;

fail:
    close_cifar(c);
    return s;
}

const hvt_format hvt_format_cifar10 = {"cifar10", open_cifar};
