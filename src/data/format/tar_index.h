/*
 * tar_index.h - WebDataset's shards: reading one, and its index.
 *
 * A shard is a tar file. The members of a sample share a name up to the first dot behind the last slash: a
 * picture (NAME.jpg, .jpeg, .png, .ppm, .pgm or .pbm) or bytes [h,w,3] (NAME.npy), and NAME.cls, a number as
 * text.
 */
#ifndef HVT_DATA_TAR_INDEX_H
#define HVT_DATA_TAR_INDEX_H

#include "data/data_impl.h"

enum { HVT__TAR_BLOCK = 512 };

typedef struct hvt__tar_sample {
    uint64_t at; /* of the image's bytes in the shard */
    uint32_t bytes;
    int32_t label;   /* -1: none */
    uint32_t name;   /* of the image's member, in the index's names */
    uint32_t pixels; /* 1: it is a .npy */
    uint32_t map;    /* of a sparse member, in the index's names; 0: it is none */
    uint32_t unused;
} hvt__tar_sample;

/* The index of a shard, in memory and as the file beside it: the head, then its samples in the order of their
 * images, then their names, each ended by a zero. */
typedef struct hvt__tar_index {
    char magic[8];
    uint64_t hash;      /* of what follows */
    uint64_t tar_bytes; /* of the shard when it was indexed */
    int64_t tar_time;   /* and when it was last modified, ns */
    int64_t tar_change; /* and when its status changed, which programs cannot set */
    uint32_t count, name_bytes;
    uint32_t classes;  /* the largest label, plus 1 */
    uint32_t labelled; /* samples with a label: all or none */
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

/* Read a shard's members; malloc'ed. Its file and time are not filled in. Errors: E_IO, E_FORMAT, E_MEM. */
hvt_status hvt__tar_scan(const hvt__data_file *f, hvt__tar_index **ret_index);

typedef enum hvt__tar_found {
    HVT__TAR_KEPT,   /* the index file is used */
    HVT__TAR_NEW,    /* there was none */
    HVT__TAR_CHANGED /* there was one of another state of the shard, or a damaged one */
} hvt__tar_found;

/* A shard's index: from the file beside it, or else by a scan, which is kept in that file if it can be
 * written; malloc'ed. Errors: as of the scan, and E_FORMAT where the shard has become shorter. */
hvt_status hvt__tar_index_open(const char *path, hvt__tar_index **ret_index, hvt__tar_found *ret_found);
/* Is this an index as it should be? bytes: of memory. */
bool hvt__tar_index_valid(const hvt__tar_index *x, size_t bytes);

/* Has the open shard the size and the time of modification that it had when it was indexed? */
bool hvt__tar_is_as_indexed(int fd, const hvt__tar_index *x, uint64_t *ret_bytes);

#endif /* HVT_DATA_TAR_INDEX_H */
