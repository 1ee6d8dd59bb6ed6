/*
 * data_impl.h - the interface of a data set format.
 *
 * Included by src/data. Nothing else.
 */
#ifndef HVT_DATA_IMPL_H
#define HVT_DATA_IMPL_H

#include "hvt/data.h"
#include "base_impl.h"

#define HVT_SIDE_MAX 16384 /* of an image in pixels: keeps height*width*channels an int */

/* A data set format. open() makes a source, which the source's close() frees; the caller handles
 * opts->limit, and agreement: open() may be collective over opts->world, and then must not leave others
 * waiting. */
typedef struct hvt_format {
    const char *name;
    hvt_status (*open)(const hvt_dataset_opts *opts, hvt_source *ret_source);
} hvt_format;

/* ---- format/file.c: files that stay open ---- */

typedef struct hvt__data_file {
    int fd; /* -1: not open */
    uint64_t bytes;
    char path[PATH_MAX];
} hvt__data_file;

/* What is read, for messages: "record" 7 of 10000. */
typedef struct hvt__data_unit {
    const char *name;
    uint64_t number, count;
} hvt__data_unit;

/* An official archive: the set's name, its title, the archive's file, the folder that it unpacks to. */
typedef struct hvt__archive {
    const char *set, *title, *file, *folder;
} hvt__archive;

/* The folder that holds `file`: dir, or that of the archive in it. Errors: E_ARG no dir, E_IO. */
hvt_status hvt__data_folder(const hvt__archive *a, const char *dir, const char *file,
                            char ret_folder[PATH_MAX]);
/* printf() into the path. On an error, too, f may be closed. Errors: E_IO. */
hvt_status hvt__data_open(hvt__data_file *f, const char *fmt, ...) HVT_PRINTF(2, 3);
void hvt__data_close(hvt__data_file *f);
/* All of these bytes. Errors: E_IO, also where the file ends before them. */
hvt_status hvt__data_read(const hvt__data_file *f, uint64_t at, size_t bytes, void *ret_bytes,
                          hvt__data_unit unit);

/* ---- format/class_list.c: what classes are called, one a line of a file ---- */

typedef struct hvt__class_list {
    const char **name; /* [n] in `text` */
    int n;             /* 0: there is no such file */
    char *text;
} hvt__class_list;

/* Errors: E_IO, E_FORMAT, E_MEM. */
hvt_status hvt__class_list_read(const char *folder, const char *file, hvt__class_list *ret_list);
/* Of an archive that has so many classes: with a warning, none where the file has another number. */
hvt_status hvt__class_list_read_all(const char *folder, const char *file, int classes,
                                    hvt__class_list *ret_list);
const char *hvt__class_list_at(const hvt__class_list *list, int label); /* NULL: it has no name */
void hvt__class_list_free(hvt__class_list *list);
/* That of a set, if its classes have names, unless it is there; only_check: whether another is there. Errors:
 * E_IO (also that one), E_MEM. */
hvt_status hvt__class_list_write(const char *folder, const char *file, const hvt_dataset *set,
                                 bool only_check);
#define HVT__CLASSES_FILE "classes.txt" /* beside tar shards */

/* ---- sample.c ---- */

/* Choose `wanted` of `count` images, of each class its share. label: [count], from -1 on; NULL: there is one
 * class. leave_one: leave an image of each class, where the others are enough. Errors: E_MEM. */
hvt_status hvt__sample(const int32_t *label, uint32_t count, uint32_t wanted, uint64_t seed, bool leave_one,
                       bool *ret_chosen);

/* Does its source have get(), and no read()? */
bool hvt__dataset_has_get(const hvt_dataset *set);
/* True for the first rank of a node that names this damaged image. */
bool hvt__dataset_name_damaged(const hvt_dataset *set, uint32_t index);
bool hvt__dataset_is_shared(const hvt_dataset *set); /* several ranks read it */

/* Is it an error of an image, not of the machine? */
static inline bool hvt__is_damage(hvt_status s)
{
    return s == HVT_E_FORMAT || s == HVT_E_UNSUPPORTED;
}

/* Tell the source that image `index`, which exists, will be read soon. */
void hvt__dataset_ahead(const hvt_dataset *set, uint32_t index);

/* Count a loader as user (1), or no longer (-1). */
void hvt__dataset_use(const hvt_dataset *set, int by);

extern const hvt_format hvt_format_synth, hvt_format_cifar10, hvt_format_cifar100, hvt_format_stl10,
    hvt_format_npy, hvt_format_tar, hvt_format_folder;

#endif /* HVT_DATA_IMPL_H */
