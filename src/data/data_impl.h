/*
 * data_impl.h - the interface of a data set format.
 *
 * Included by src/data only.
 */
#ifndef HVT_DATA_IMPL_H
#define HVT_DATA_IMPL_H

#include "hvt/data.h"
#include "base_impl.h"

#define HVT_SIDE_MAX 16384 /* longest side of an image in pixels: height*width*channels then fits an int */

/* A data set format. open() makes a source, which the source's close() frees. The caller applies opts->limit
 * and agrees on the status. open() may be collective over opts->world, and then must not leave other ranks
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

/* What is being read, for messages: "record" 7 of 10000. */
typedef struct hvt__data_unit {
    const char *name;
    uint64_t number, count;
} hvt__data_unit;

/* An official archive: the set's name and title, the archive's file, the folder that it unpacks to. */
typedef struct hvt__archive {
    const char *set, *title, *file, *folder;
} hvt__archive;

/* Finds the folder that holds `file`: dir, or the archive's folder in it. Errors: E_ARG no dir, E_IO. */
hvt_status hvt__data_folder(const hvt__archive *a, const char *dir, const char *file,
                            char ret_folder[PATH_MAX]);
/* Opens the file at the formatted path. f may be closed after an error, too. Errors: E_IO. */
hvt_status hvt__data_open(hvt__data_file *f, const char *fmt, ...) HVT_PRINTF(2, 3);
void hvt__data_close(hvt__data_file *f);
/* Reads `bytes` bytes at `at`. Errors: E_IO, also if the file ends before. */
hvt_status hvt__data_read(const hvt__data_file *f, uint64_t at, size_t bytes, void *ret_bytes,
                          hvt__data_unit unit);

/* ---- format/class_list.c: lists of class names, one per line ---- */

typedef struct hvt__class_list {
    const char **name; /* [n] in `text` */
    int n;             /* 0: no such file */
    char *text;
} hvt__class_list;

/* Errors: E_IO, E_FORMAT, E_MEM. */
hvt_status hvt__class_list_read(const char *folder, const char *file, hvt__class_list *ret_list);
/* The same for an archive: warns and returns no names if the file does not have `classes` names. */
hvt_status hvt__class_list_read_all(const char *folder, const char *file, int classes,
                                    hvt__class_list *ret_list);
const char *hvt__class_list_at(const hvt__class_list *list, int label); /* NULL: no name */
void hvt__class_list_free(hvt__class_list *list);
/* Writes the set's class names, if it has any, unless the file has them already. only_check: writes nothing.
 * Errors: E_IO (also if the file has other names), E_MEM. */
hvt_status hvt__class_list_write(const char *folder, const char *file, const hvt_dataset *set,
                                 bool only_check);
#define HVT__CLASSES_FILE "classes.txt" /* beside tar shards */

/* ---- sample.c ---- */

/* Chooses `wanted` of `count` images, a proportional share of each class. label: [count], -1 or more; NULL:
 * one class. leave_one: leaves one image of each class, if the others are enough. Errors: E_MEM. */
hvt_status hvt__sample(const int32_t *label, uint32_t count, uint32_t wanted, uint64_t seed, bool leave_one,
                       bool *ret_chosen);

/* True if the set's source has get(), not read(). */
bool hvt__dataset_has_get(const hvt_dataset *set);
/* True for the first rank of a node that names this damaged image. */
bool hvt__dataset_name_damaged(const hvt_dataset *set, uint32_t index);
bool hvt__dataset_is_shared(const hvt_dataset *set); /* several ranks read it */

/* True for an error of an image, not of the machine. */
static inline bool hvt__is_damage(hvt_status s)
{
    return s == HVT_E_FORMAT || s == HVT_E_UNSUPPORTED;
}

/* Tells the source that image `index`, which exists, will be read soon. */
void hvt__dataset_ahead(const hvt_dataset *set, uint32_t index);

/* Adds (1) or removes (-1) a loader that uses the set. */
void hvt__dataset_use(const hvt_dataset *set, int by);

extern const hvt_format hvt_format_synth, hvt_format_cifar10, hvt_format_cifar100, hvt_format_stl10,
    hvt_format_npy, hvt_format_tar, hvt_format_folder;

#endif /* HVT_DATA_IMPL_H */
