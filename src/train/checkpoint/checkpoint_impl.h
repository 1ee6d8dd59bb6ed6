/* checkpoint_impl.h - safetensors, the files of a checkpoint, and the folder of --save. */
#ifndef HVT_TRAIN_CHECKPOINT_IMPL_H
#define HVT_TRAIN_CHECKPOINT_IMPL_H

#include "hvt/train.h"
#include "writer.h"

#include <jansson.h>
#include <limits.h>

/* ---- safetensors.c ---- */

typedef enum hvt_st_type { HVT_ST_I64, HVT_ST_F32, HVT_ST_BF16, HVT_ST_F16, HVT_ST_OTHER } hvt_st_type;

#define HVT_ST_DIGEST "digest" /* metadata: chained hash of the data section, block by block */
#define HVT_ST_SEAL   "seal"   /* metadata: hash of the header, with zeros for these digits */
enum { HVT_ST_DIMS = 8, HVT_ST_BLOCK = 1 << 20 };

typedef struct hvt_st_tensor {
    const char *name;
    hvt_st_type type;
    const char *type_name;
    int ndim;
    int64_t dim[HVT_ST_DIMS];
    size_t count;        /* elements */
    uint64_t first, end; /* bytes in the data section */
} hvt_st_tensor;

typedef struct hvt_st {
    char *path;
    int fd;
    json_t *header;        /* owns names and metadata */
    json_t *meta;          /* part of header, or NULL */
    hvt_st_tensor *tensor; /* [n] sorted by name */
    int n;
    uint64_t data, bytes; /* the data section: its offset and size */
    const char *content;  /* borrowed: the data section, once hvt__st_read() has read it */
} hvt_st;

hvt_status hvt__st_open(const char *path, hvt_st **ret_st); /* reads and checks the whole header */
void hvt__st_close(hvt_st **st);
const char *hvt__st_meta(const hvt_st *st, const char *key);              /* NULL: not there */
const hvt_st_tensor *hvt__st_find(const hvt_st *st, const char *name);    /* NULL: not there */
hvt_status hvt__st_f32(hvt_st *st, const hvt_st_tensor *t, float *ret);   /* from F32, F16, BF16 */
hvt_status hvt__st_i64(hvt_st *st, const hvt_st_tensor *t, int64_t *ret); /* from I64 */
/* The same where they lie in what hvt__st_read() has read or, if they must be converted, in buf. */
hvt_status hvt__st_floats(hvt_st *st, const hvt_st_tensor *t, float *buf, const float **ret);
/* Check the data against the digest in the metadata; other programs' files have none, and pass. */
hvt_status hvt__st_verify(hvt_st *st);
/* The same of data that are kept: from now on tensors come from here. data: st->bytes, as long as st is. */
hvt_status hvt__st_read(hvt_st *st, void *data);

/* A tensor to write; type is I64 or F32, id is free for the caller. */
typedef struct hvt_st_item {
    char name[256]; /* a tensor of a model, with a prefix */
    hvt_st_type type;
    int ndim;
    int64_t dim[HVT_ST_DIMS];
    int id;
    bool second; /* name of a tensor that has another item, too */
    bool fixed;  /* not trained: it need not be finite, as a mask */
} hvt_st_item;

/* Where the elements of items[i] lie until the next call. */
typedef hvt_status hvt_st_fetch(void *ctx, const hvt_st_item *item, const void **ret_data);

/* Write items (which are sorted here as the reference writer lays them out) and metadata,
 * beside `path`, then sync, rename over it and sync the folder. On failure `path` is what it was: what has
 * diverged must not replace what has not, so a float that is not finite is E_DIVERGED. */
hvt_status hvt__st_write(const char *path, hvt_st_item *items, int n, const json_t *meta, hvt_st_fetch *fetch,
                         void *ctx);

/* ---- metadata.c: what a file of ours says of itself, as one JSON object ---- */

bool hvt__metadata_is_ours(const hvt_st *st); /* other programs' files say nothing of us */
hvt_status hvt__metadata_read(const hvt_st *st, json_t **ret_meta); /* json_decref() it */
/* At most `most`. Errors: E_FORMAT. */
hvt_status hvt__metadata_number(const hvt_st *st, const json_t *meta, const char *key, double most,
                                double *ret);
const char *hvt__metadata_text(const json_t *meta, const char *key); /* "": not there */
/* What the classes are called, an array of text, part of meta; NULL: it does not say. Errors: E_FORMAT. */
hvt_status hvt__metadata_class_names(const hvt_st *st, const json_t *meta, json_t **ret_names);

/* In the metadata of our files: they have a digest and a seal. */
#define HVT_SEALED "sealed"

/* ---- weights.c: a model's tensors in a file ---- */

/* Outputs of the head of such a file's model, one of the zoo; of a folder as hvt__weights_file() takes it.
 * Errors: E_IO, E_FORMAT. */
hvt_status hvt__weights_classes(const char *path, int *ret_classes);
/* What such a file calls the classes, an array of text to json_decref(); NULL: it has no names, as files of
 * other programs. Errors: E_IO, E_FORMAT. */
hvt_status hvt__weights_class_names(const char *path, json_t **ret_names);
/* Resolves --resume, --init and --save as hvt_options_prepare() says. opts refers to texts in *ret_memory:
 * free() it after opts. Collective; errors are agreed: E_IO, E_FORMAT, E_MEM. */
hvt_status hvt__options_resume(hvt_options *opts, hvt_world *world, void **ret_memory);
/* The options with which the weights of such a file were saved, a JSON object to json_decref(), with
 * "images":
 * {"height", "width", "pixels"}, those that the model was trained with; NULL: the file does not say, as those
 * of other programs. Errors: E_IO, E_FORMAT. */
hvt_status hvt__weights_options(const char *path, json_t **ret_options);
/* All tensors of the model, without those of the head if skip_head. weights: their hash in hex, as the file
 * says; NULL: it says none. The whole file is in host memory meanwhile; one that does not fit, or is damaged,
 * changes nothing. Errors: E_SHAPE, E_FORMAT, E_IO, E_MEM. */
hvt_status hvt__weights_load(hvt_st *st, hvt_model *m, bool skip_head, const char *weights);
/* The same of the optimizer's state, an arena for each of its kinds, laid out as the parameters are. What is
 * not in the file, because it was frozen, becomes 0 or, where the optimizer cannot begin so, is E_SHAPE. */
hvt_status hvt__state_load(hvt_st *st, hvt_optim *o);

/* ---- powersgd_state.c: the sidecar file of --compression powersgd:R ---- */

/* meta: the metadata of that file. Errors: E_IO, E_FORMAT. */
hvt_status hvt__powersgd_state_load(hvt_st *st, const json_t *meta, hvt_optim *o);

/* ---- snapshot.c: what a checkpoint holds, as it is now, in host memory ---- */

typedef struct hvt__snapshot hvt__snapshot;

/* Copy it. The memory is that of the snapshot before, or new where *snapshot is NULL; it is of the model's
 * device, and as much as weights, optimizer state and the largest tensor take. Errors: E_ARG (not gathered),
 * E_MEM. */
hvt_status hvt__snapshot_take(hvt__snapshot **snapshot, hvt_model *m, hvt_optim *o,
                              const hvt_progress *progress);
const hvt_progress *hvt__snapshot_progress(const hvt__snapshot *snapshot);
void hvt__snapshot_free(hvt__snapshot **snapshot); /* NULL is fine */

/* ---- checkpoint.c: one checkpoint ---- */

#define HVT_CHECKPOINT_END ".safetensors"

/* The ends of the names of all sidecar files. */
enum { HVT__MOMENTUM, HVT__ADAM, HVT__POWERSGD, HVT__RAW, HVT__SIDECARS };
extern const char *const hvt__sidecar_end[HVT__SIDECARS];

/* Write a snapshot, which can only be freed or taken again after that: DIR/NAME.safetensors, and before it
 * the sidecar files DIR/STEM.*; stem NULL: NAME-HASH. On failure there is nothing new. */
hvt_status hvt__checkpoint_write(const char *dir, const char *name, const char *stem,
                                 hvt__snapshot *snapshot);
/* Of one file. m NULL: progress only. raw: without o, of an average the weights that it was made of. The
 * texts of *ret_progress are malloc'ed. */
hvt_status hvt__checkpoint_read(const char *file, hvt_model *m, hvt_optim *o, bool raw,
                                hvt_progress *ret_progress);
void hvt__progress_free(hvt_progress *p); /* its texts */
/* The sidecar files that the checkpoint names, "": none. Errors: E_IO, E_FORMAT. */
hvt_status hvt__checkpoint_sidecars(const char *file, char ret_name[HVT__SIDECARS][128]);

/* ---- checkpoint_room.c: will checkpoints fit on the disk? ---- */

/* Of a run that saves so many times at most, in a folder where `there` generations of it lie. Warns where the
 * generations to be kept do not fit. Errors: E_IO, where not even one does; E_MEM. */
hvt_status hvt__checkpoint_room(const hvt_options *opts, const hvt_model *m, const hvt_optim *o, int ranks,
                                int there, int64_t saves);

/* ---- generations.c: the checkpoints of a folder ---- */

typedef struct hvt__generation {
    char path[PATH_MAX];
    int64_t number;   /* -1: `last` or `best`, where that is a file of its own */
    bool is_best;     /* `best` is such a file */
    bool is_readable; /* its header is */
    hvt_progress p;   /* then */
    char why[600];    /* why it is not */
} hvt__generation;

typedef struct hvt__generations {
    hvt__generation *at; /* [n], what is to be resumed first is first */
    int n;
} hvt__generations;

/* Reads their headers. A folder that is not there is empty. Errors: E_MEM. */
hvt_status hvt__generations_open(const char *dir, hvt__generations *ret);
void hvt__generations_close(hvt__generations *g);
/* The first that is readable; NULL: there is none. */
const hvt__generation *hvt__generations_first(const hvt__generations *g);
#define HVT__GENERATIONS_MOST INT64_C(1000000000000000000) /* as many digits as a name may have */
/* The number in the name of one of the files of a generation; -1: it is none. *ret_end: what follows it. */
int64_t hvt__generation_number(const char *name, const char **ret_end);
void hvt__generation_name(int64_t number, char ret_name[32]); /* "gen-000012" */

/* The file at the path, or the first readable one of a folder; where there is none, that of `last`. */
hvt_status hvt__weights_file(const char *path, char ret_path[PATH_MAX]);
/* hvt_checkpoint_load(), with hvt__checkpoint_read()'s raw, and which file it was. */
hvt_status hvt__resume(const char *path, hvt_model *m, hvt_optim *o, bool raw, hvt_progress *ret_progress,
                       char ret_file[PATH_MAX]);

/* ---- tidy.c: names in a folder that lead to generations, and files to be removed ---- */

/* Let DIR/NAME.safetensors lead to a generation; one rename. Errors: E_IO. */
hvt_status hvt__link_generation(const char *dir, const char *name, int64_t number);
/* Remove generations that `keeps` does not want. */
void hvt__prune_generations(const char *dir, bool keeps(void *ctx, int64_t number), void *ctx);
/* Remove what saves that were cut left behind: temporary files, and sidecar files that no checkpoint names.
 */
void hvt__sweep_folder(const char *dir);
/* The highest number that occurs in any name; 0: none. */
int64_t hvt__newest_number(const char *dir);

/* ---- folder.c: the folder of --save ---- */

/* Make it, unless it is there. flag: what comes before its name in messages. Errors: E_IO (a file, not
 * writable).
 */
hvt_status hvt__make_folder(const char *flag, const char *dir);
bool hvt__is_same_file(const char *one, const char *other); /* false: one of them is not there */

/* A generation of this run. */
typedef struct hvt__own {
    int64_t number, steps;
    double top1;
} hvt__own;

typedef struct hvt__folder {
    const char *dir; /* borrowed; NULL: closed; "": nothing is saved */
    int lock;        /* -1: none */
    int keep;
    bool is_saved; /* what the run resumes is the folder's newest */
    int epoch;     /* of the newest generation of this run; -1: there is none */
    int64_t steps;
    double best;         /* top-1 in percent of this run's `best`; -1: none */
    double best_file;    /* the same, where that is a file of its own */
    int64_t best_number; /* -1: it is none */
    int64_t newest;      /* number in the folder */
    hvt__own *own;       /* [nown], oldest first */
    int nown;
    hvt__snapshot *snapshot;
    hvt__writer writer;
} hvt__folder;

/* On rank 0, before the run computes anything: lock the folder, and check that this run may replace its
 * contents: nothing, or the checkpoint that it resumes, or anything with --overwrite. Then remove what saves
 * that were cut left behind. Errors: E_IO (not writable; another job holds the lock), E_ARG (it contains a
 * checkpoint of another run). */
hvt_status hvt__folder_open(const hvt_options *opts, hvt__folder *ret_folder);
/* Waits for a save that is under way, and unlocks it. */
void hvt__folder_close(hvt__folder *folder);
/* The run goes on from this file; newer generations were damaged. */
void hvt__folder_resumed(hvt__folder *folder, const char *file, const hvt_progress *progress);
/* Copy what is to be saved, and leave it to a thread to write a generation, to lead `last` there, and `best`
 * if its top1 is better than the best so far, and to remove what is not to be kept. Between
 * hvt__folder_wait() and the next. Errors: E_MEM. */
hvt_status hvt__folder_save(hvt__folder *folder, hvt_model *m, hvt_optim *o, const hvt_progress *progress);
/* Wait for that, if it is under way: what came of it. Errors: E_IO naming what is complete, E_DIVERGED,
 * E_MEM. */
hvt_status hvt__folder_wait(hvt__folder *folder);

#endif /* HVT_TRAIN_CHECKPOINT_IMPL_H */
