/* checkpoint_impl.h - safetensors, the files of a checkpoint, and the folder of --save. */
#ifndef HVT_TRAIN_CHECKPOINT_IMPL_H
#define HVT_TRAIN_CHECKPOINT_IMPL_H

#include "hvt/train.h"

#include <jansson.h>

/* ---- safetensors.c ---- */

typedef struct hvt_st hvt_st;
typedef enum hvt_st_type { HVT_ST_I64, HVT_ST_F32, HVT_ST_BF16, HVT_ST_F16, HVT_ST_OTHER } hvt_st_type;

#define HVT_ST_DIGEST "digest" /* metadata: chained hash of the data section, block by block */
enum { HVT_ST_DIMS = 8, HVT_ST_BLOCK = 1 << 20 };

typedef struct hvt_st_tensor {
    const char *name;
    hvt_st_type type;
    char type_name[16];
    int ndim;
    int64_t dim[HVT_ST_DIMS];
    size_t count;        /* elements */
    uint64_t first, end; /* bytes in the data section */
} hvt_st_tensor;

hvt_status hvt__st_open(const char *path, hvt_st **ret_st); /* reads and checks the whole header */
void hvt__st_close(hvt_st **st);
const char *hvt__st_path(const hvt_st *st);
const char *hvt__st_meta(const hvt_st *st, const char *key); /* NULL: not there */
int hvt__st_count(const hvt_st *st);
const hvt_st_tensor *hvt__st_at(const hvt_st *st, int i);                 /* sorted by name */
const hvt_st_tensor *hvt__st_find(const hvt_st *st, const char *name);    /* NULL: not there */
hvt_status hvt__st_f32(hvt_st *st, const hvt_st_tensor *t, float *ret);   /* from F32, F16, BF16 */
hvt_status hvt__st_i64(hvt_st *st, const hvt_st_tensor *t, int64_t *ret); /* from I64 */
/* Check the data against the digest in the metadata; other programs' files have none, and pass. */
hvt_status hvt__st_verify(hvt_st *st);
void hvt__st_shape(const int64_t *dim, int ndim, char *ret_text, size_t bytes); /* "[64, 3, 7, 7]" */

/* A tensor to write; type is I64 or F32, id is free for the caller. */
typedef struct hvt_st_item {
    char name[160];
    hvt_st_type type;
    int ndim;
    int64_t dim[HVT_ST_DIMS];
    int id;
} hvt_st_item;

/* Fill `data` with the elements of items[i]. */
typedef hvt_status hvt_st_fetch(void *ctx, const hvt_st_item *item, void *data);

/* Write items (which are sorted here as the reference writer lays them out) and metadata,
 * beside `path`, then sync, rename over it and sync the folder. On failure `path` is what it was: what has
 * diverged must not replace what has not, so a float that is not finite is E_DIVERGED. */
hvt_status hvt__st_write(const char *path, hvt_st_item *items, int n, const json_t *meta, hvt_st_fetch *fetch,
                         void *ctx);

/* ---- metadata.c: what a file of ours says of itself, as one JSON object ---- */

hvt_status hvt__metadata_read(const hvt_st *st, json_t **ret_meta); /* json_decref() it */
/* At most `most`. Errors: E_FORMAT. */
hvt_status hvt__metadata_number(const hvt_st *st, const json_t *meta, const char *key, double most,
                                double *ret);
const char *hvt__metadata_text(const json_t *meta, const char *key); /* "": not there */

/* ---- weights.c ---- */

/* The file at the path, or in a folder `last`, or `best` if there is no `last`. */
hvt_status hvt__weights_file(const char *path, char *ret_path, size_t bytes);

/* ---- checkpoint.c ---- */

hvt_status hvt__checkpoint_folder(const char *dir);             /* create it if needed; E_IO: not writable */
void hvt__checkpoint_remove(const char *dir, const char *name); /* with its sidecar files */

/* ---- folder.c: the folder of --save ---- */

typedef struct hvt__folder hvt__folder;

/* On rank 0, before the run computes anything: lock the folder, and check that this run may replace its
 * contents: nothing, or the checkpoint that it resumes, or anything with --overwrite. *ret_folder is NULL
 * without --save. Errors: E_IO (not writable; another job holds the lock), E_ARG (it contains a checkpoint of
 * another run). */
hvt_status hvt__folder_open(const hvt_options *opts, hvt__folder **ret_folder);
void hvt__folder_close(hvt__folder **folder);         /* unlocks it */
double hvt__folder_best(const hvt__folder *folder);   /* top-1 in percent of this run's `best`; -1: none */
bool hvt__folder_is_saved(const hvt__folder *folder); /* `last` is what the run resumes */
/* Write `last`, and `best` if top1 is better than the best so far. */
hvt_status hvt__folder_save(hvt__folder *folder, hvt_model *m, hvt_optim *o, const hvt_progress *progress);

#endif /* HVT_TRAIN_CHECKPOINT_IMPL_H */
