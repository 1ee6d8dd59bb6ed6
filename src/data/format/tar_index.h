/*
 * tar_index.h - WebDataset's shards: reading one, and its index.
 *
 * A shard is a tar file. The members of a sample share a name up to the first dot after the last slash: a
 * picture (NAME.jpg or another suffix of entries.h) or bytes [h,w,3] (NAME.npy), and NAME.cls, a number as
 * text, or NAME.mask.png, the labels of the pixels. Masks are skipped if there are labels.
 */
#ifndef HVT_DATA_TAR_INDEX_H
#define HVT_DATA_TAR_INDEX_H

#include "data/data_impl.h"

enum { HVT__TAR_BLOCK = 512 };

typedef struct hvt__tar_sample {
    uint64_t at;                /* offset of the image in the shard */
    uint64_t mask_at;           /* offset of the mask */
    uint32_t bytes, mask_bytes; /* mask_bytes 0: none */
    int32_t label;              /* -1: none */
    uint32_t name;              /* name of the image's member: offset in the index's names */
    uint32_t pixels;            /* 1: a .npy */
    uint32_t map;               /* map of a sparse member: offset in the index's names; 0: not sparse */
} hvt__tar_sample;

/* The index of a shard, in memory and in the file beside it: the head, the samples in the order of their
 * images, then their names, each ended by a zero. */
typedef struct hvt__tar_index {
    char magic[8];
    uint64_t hash;      /* of the fields and data that follow */
    uint64_t tar_bytes; /* size of the shard when it was indexed */
    int64_t tar_time;   /* its time of modification, ns */
    int64_t tar_change; /* its time of status change, which programs cannot set */
    uint32_t count, name_bytes;
    uint32_t classes;  /* largest label + 1 */
    uint32_t labelled; /* samples with a label: all or none */
    uint32_t masked;   /* samples with a mask: all or none */
    uint32_t unused;
} hvt__tar_index;

static inline size_t hvt__tar_index_bytes(const hvt__tar_index *x)
{
    return sizeof *x + x->count * sizeof(hvt__tar_sample) + x->name_bytes;
}

static inline const hvt__tar_sample *hvt__tar_samples(const hvt__tar_index *x)
{
    return (const hvt__tar_sample *)(x + 1);
}

static inline const char *hvt__tar_names(const hvt__tar_index *x)
{
    return (const char *)(hvt__tar_samples(x) + x->count);
}

/* Scans a shard's members; the index is malloc'ed, without the shard's size and times. Errors: E_IO,
 * E_FORMAT, E_MEM. */
hvt_status hvt__tar_scan(const hvt__data_file *f, hvt__tar_index **ret_index);

typedef enum hvt__tar_found {
    HVT__TAR_KEPT,   /* the index file was used */
    HVT__TAR_NEW,    /* there was no index file */
    HVT__TAR_CHANGED /* the index file was damaged, or the shard has changed */
} hvt__tar_found;

/* A shard's index, malloc'ed: from the file beside it, or by a scan, which is then stored in that file if
 * possible. Errors: those of the scan, and E_FORMAT if the shard has become shorter. */
hvt_status hvt__tar_index_open(const char *path, hvt__tar_index **ret_index, hvt__tar_found *ret_found);
/* True if an index of `bytes` bytes in memory is valid. */
bool hvt__tar_index_valid(const hvt__tar_index *x, size_t bytes);

/* True if the open shard has the size and the modification time of its index. */
bool hvt__tar_is_as_indexed(int fd, const hvt__tar_index *x, uint64_t *ret_bytes);

#endif /* HVT_DATA_TAR_INDEX_H */
