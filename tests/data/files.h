/*
 * files.h - the files of data sets that tests write; in_folder() says where.
 */
#ifndef HVT_TESTS_DATA_FILES_H
#define HVT_TESTS_DATA_FILES_H

#include "base_impl.h"
#include "folder.h"
#include "hvt/data.h"

#include <sys/stat.h>

/* What a test file holds: bytes drawn by their place. */
static inline uint8_t byte_of(uint64_t file, uint64_t image, uint64_t channel, uint64_t pixel)
{
    return (uint8_t)hvt__draw(file, image, channel, pixel);
}

static inline FILE *create(const char *path)
{
    FILE *f = fopen(path, "wb");

    if (!f) {
        perror(path);
        exit(1);
    }
    return f;
}

static inline hvt_status open_set(const char *name, const char *dir, bool train, hvt_dataset **ret_set)
{
    return hvt_dataset_open(name, &(hvt_dataset_opts){.dir = dir, .train = train}, ret_set);
}

/* A new folder; its path stays. */
static inline const char *fresh_folder(const char *name)
{
    static char paths[64][300];
    static int n;

    snprintf(paths[n], sizeof paths[n], "%s", in_folder(name));
    mkdir(paths[n], 0777);
    return paths[n++];
}

/* A file of this version with this dict, padded as NumPy does, and this data. */
static inline void write_npy(const char *path, int version, const char *dict, const void *data, size_t bytes)
{
    size_t prefix = version == 1 ? 10 : 12, length = strlen(dict) + 1;
    FILE *f = create(path);

    length += (64 - (prefix + length) % 64) % 64;
    fprintf(f, "\x93NUMPY%c%c%c%c", version, 0, (int)(length & 255), (int)(length >> 8));
    if (version > 1)
        fwrite("\0", 1, 2, f);
    fprintf(f, "%-*s\n", (int)length - 1, dict);
    fwrite(data, 1, bytes, f);
    fclose(f);
}

static inline const char *dict_of(const char *descr, const char *shape)
{
    static char text[200];

    snprintf(text, sizeof text, "{'descr': '%s', 'fortran_order': False, 'shape': %s, }", descr, shape);
    return text;
}

#endif /* HVT_TESTS_DATA_FILES_H */
