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
    const char *content;  /* borrowed: the data section, after hvt__st_read() */
} hvt_st;

hvt_status hvt__st_open(const char *path, hvt_st **ret_st); /* reads and checks the whole header */
void hvt__st_close(hvt_st **st);
const char *hvt__st_meta(const hvt_st *st, const char *key);              /* NULL: none */
const hvt_st_tensor *hvt__st_find(const hvt_st *st, const char *name);    /* NULL: none */
hvt_status hvt__st_f32(hvt_st *st, const hvt_st_tensor *t, float *ret);   /* from F32, F16, BF16 */
hvt_status hvt__st_i64(hvt_st *st, const hvt_st_tensor *t, int64_t *ret); /* from I64 */
/* Elements as floats: in place after hvt__st_read(), or in buf if they must be converted. */
hvt_status hvt__st_floats(hvt_st *st, const hvt_st_tensor *t, float *buf, const float **ret);
/* Checks the data against the digest in the metadata; files of other programs have none, and pass. */
hvt_status hvt__st_verify(hvt_st *st);
/* The same, and keeps the data, so that tensors are then taken from memory. data: st->bytes bytes, valid as
 * long as st. */
hvt_status hvt__st_read(hvt_st *st, void *data);

/* A tensor to write; type is I64 or F32, id is free for the caller. */
typedef struct hvt_st_item {
    char name[256]; /* a tensor of a model, with a prefix */
    hvt_st_type type;
    int ndim;
    int64_t dim[HVT_ST_DIMS];
    int id;
    bool second; /* another name of a tensor that has an item */
    bool fixed;  /* not trained: it need not be finite (a mask) */
} hvt_st_item;

/* Returns the elements of an item, valid until the next call. */
typedef hvt_status hvt_st_fetch(void *ctx, const hvt_st_item *item, const void **ret_data);

/* Writes items (after sorting them in the reference writer's order) and metadata beside `path`, then syncs,
 * renames over it and syncs the folder. On failure `path` is unchanged. A float that is not finite is
 * E_DIVERGED: a diverged model must not replace a good one. */
hvt_status hvt__st_write(const char *path, hvt_st_item *items, int n, const json_t *meta, hvt_st_fetch *fetch,
                         void *ctx);

/* ---- metadata.c: the metadata of our files, one JSON object ---- */

bool hvt__metadata_is_ours(const hvt_st *st);                       /* false for files of other programs */
hvt_status hvt__metadata_read(const hvt_st *st, json_t **ret_meta); /* json_decref() it */
/* Reads a number of at most `most`. Errors: E_FORMAT. */
hvt_status hvt__metadata_number(const hvt_st *st, const json_t *meta, const char *key, double most,
                                double *ret);
const char *hvt__metadata_text(const json_t *meta, const char *key); /* "": none */
/* Reads the names of the classes, an array of text, part of meta; NULL: none. Errors: E_FORMAT. */
hvt_status hvt__metadata_class_names(const hvt_st *st, const json_t *meta, json_t **ret_names);

/* In the metadata of our files: they have a digest and a seal. */
#define HVT_SEALED "sealed"

/* ---- resume.c: the data of --resume and --init besides tensors ---- */

/* The number of outputs of a zoo model's head in a file of weights. path: as for hvt__weights_file(). Errors:
 * E_IO, E_FORMAT. */
hvt_status hvt__weights_classes(const char *path, int *ret_classes);
/* The names of the classes in such a file, an array of text to json_decref(); NULL: none, as in files of
 * other programs. Errors: E_IO, E_FORMAT. */
hvt_status hvt__weights_class_names(const char *path, json_t **ret_names);
/* Resolves --resume, --init and --save as in hvt_options_prepare(). opts refers to texts in *ret_memory:
 * free() it after opts. Collective; errors are agreed: E_IO, E_FORMAT, E_MEM. */
hvt_status hvt__options_resume(hvt_options *opts, hvt_world *world, void **ret_memory);
/* The options with which the weights were saved, a JSON object to json_decref(), with "images": {"height",
 * "width", "pixels"}, the images of training; NULL: none, as in files of other programs. Errors: E_IO,
 * E_FORMAT. */
hvt_status hvt__weights_options(const char *path, json_t **ret_options);

/* ---- weights.c: a model's tensors in a file ---- */

/* The tensor of this name, also behind the prefix of a wrapper such as "module."; NULL: none. */
const hvt_st_tensor *hvt__weights_tensor(const hvt_st *st, const char *name);
/* Loads all tensors of the model, without those of the head if skip_head. weights: their expected hash in
 * hex; NULL: unknown. The whole file is in host memory meanwhile; one that does not fit, or is damaged,
 * changes nothing. Errors: E_SHAPE, E_FORMAT, E_IO, E_MEM. */
hvt_status hvt__weights_load(hvt_st *st, hvt_model *m, bool skip_head, const char *weights);
/* The same for the optimizer's state, an arena for each kind, in the layout of the parameters. State that is
 * missing because its parameter was frozen becomes 0 or, if the optimizer cannot start so, is E_SHAPE. */
hvt_status hvt__state_load(hvt_st *st, hvt_optim *o);

/* ---- powersgd_state.c: the sidecar file of --compression powersgd:R ---- */

/* Loads the file, whose metadata is meta. Errors: E_IO, E_FORMAT. */
hvt_status hvt__powersgd_state_load(hvt_st *st, const json_t *meta, hvt_optim *o);

/* ---- snapshot.c: a copy of the data of a checkpoint, in host memory ---- */

typedef struct hvt__snapshot hvt__snapshot;

/* Takes a copy. Memory is reused from the last snapshot, or new if *snapshot is NULL; it belongs to the
 * model's device, and has room for weights, optimizer state and the largest tensor. Errors: E_ARG (not
 * gathered), E_MEM. */
hvt_status hvt__snapshot_take(hvt__snapshot **snapshot, hvt_model *m, hvt_optim *o,
                              const hvt_progress *progress);
const hvt_progress *hvt__snapshot_progress(const hvt__snapshot *snapshot);
void hvt__snapshot_free(hvt__snapshot **snapshot); /* NULL is fine */
void hvt__progress_free(hvt_progress *p);          /* frees its texts */

/* ---- checkpoint.c: one checkpoint ---- */

#define HVT_CHECKPOINT_END ".safetensors"

/* Suffixes of the sidecar files. */
enum { HVT__MOMENTUM, HVT__ADAM, HVT__POWERSGD, HVT__RAW, HVT__SIDECARS };
extern const char *const hvt__sidecar_end[HVT__SIDECARS];

/* Writes a snapshot, which can only be freed or taken again after that: DIR/NAME.safetensors, and before it
 * the sidecar files DIR/STEM.*; stem NULL: NAME-HASH. On failure no file is new. */
hvt_status hvt__checkpoint_write(const char *dir, const char *name, const char *stem,
                                 hvt__snapshot *snapshot);
/* Reads one file. m NULL: progress only. raw: without o, reads the raw weights instead of their average. The
 * texts of *ret_progress are malloc'ed. */
hvt_status hvt__checkpoint_read(const char *file, hvt_model *m, hvt_optim *o, bool raw,
                                hvt_progress *ret_progress);
/* Creates the folder, unless it exists. flag: precedes its name in messages. Errors: E_IO (a file, not
 * writable). */
hvt_status hvt__make_folder(const char *flag, const char *dir);
/* The sidecar files that the checkpoint names; "": none. Errors: E_IO, E_FORMAT. */
hvt_status hvt__checkpoint_sidecars(const char *file, char ret_name[HVT__SIDECARS][128]);

/* ---- checkpoint_room.c: checks that checkpoints fit on the disk ---- */

/* Checks the room for the checkpoints of a run that saves at most `saves` times, in a folder that has `there`
 * of its generations. Warns if the generations to keep do not fit. Errors: E_IO (not one fits), E_MEM. */
hvt_status hvt__checkpoint_room(const hvt_options *opts, const hvt_model *m, const hvt_optim *o, int ranks,
                                int there, int64_t saves);

/* ---- generations.c: the checkpoints of a folder ---- */

typedef struct hvt__generation {
    char path[PATH_MAX];
    int64_t number;   /* -1: `last` or `best`, as a file of its own */
    bool is_best;     /* `best` is such a file */
    bool is_readable; /* its header is readable */
    hvt_progress p;   /* if readable */
    char why[600];    /* if not */
} hvt__generation;

typedef struct hvt__generations {
    hvt__generation *at; /* [n], in the order of resuming */
    int n;
} hvt__generations;

/* Reads the headers of a folder's generations. A missing folder is empty. Errors: E_MEM. */
hvt_status hvt__generations_open(const char *dir, hvt__generations *ret);
void hvt__generations_close(hvt__generations *g);
/* The first readable generation; NULL if there is none. */
const hvt__generation *hvt__generations_first(const hvt__generations *g);
#define HVT__GENERATIONS_MOST INT64_C(1000000000000000000) /* as many digits as a name may have */
/* The number in the name of a generation's file, with *ret_end after it; -1 for other names. */
int64_t hvt__generation_number(const char *name, const char **ret_end);
void hvt__generation_name(int64_t number, char ret_name[32]); /* "gen-000012" */
/* The highest number in any name of a folder; 0 if there is none. */
int64_t hvt__newest_number(const char *dir);

/* The file at the path or, in a folder, the first readable generation, else `last`. Errors: E_IO for a folder
 * without checkpoints. */
hvt_status hvt__weights_file(const char *path, char ret_path[PATH_MAX]);
/* hvt_checkpoint_load() with hvt__checkpoint_read()'s raw; returns the file, too. */
hvt_status hvt__resume(const char *path, hvt_model *m, hvt_optim *o, bool raw, hvt_progress *ret_progress,
                       char ret_file[PATH_MAX]);

/* ---- tidy.c: links to generations, and files to remove ---- */

/* Points DIR/NAME.safetensors to a generation, by one rename. Errors: E_IO. */
hvt_status hvt__link_generation(const char *dir, const char *name, int64_t number);
/* Removes the generations for which `keeps` is false. */
void hvt__prune_generations(const char *dir, bool keeps(void *ctx, int64_t number), void *ctx);
/* Removes leftovers of interrupted saves: temporary files, and sidecar files that no checkpoint names. */
void hvt__sweep_folder(const char *dir);

/* ---- folder.c: the folder of --save ---- */

bool hvt__is_same_file(const char *one, const char *other); /* false if one of them does not exist */

/* The result of an evaluation: top-1 in percent, -1 without one, and the mean loss, NaN if it is unknown. */
typedef struct hvt__score {
    double top1, loss;
} hvt__score;

/* True if a is better than b as `best`: a higher top-1 or, if equal, a lower loss. */
static inline bool hvt__is_better(hvt__score a, hvt__score b)
{
    return a.top1 > b.top1 || (a.top1 == b.top1 && a.loss < b.loss);
}

hvt__score hvt__score_of(const hvt_progress *p);

/* A generation of this run. */
typedef struct hvt__own {
    int64_t number, steps;
    hvt__score score;
} hvt__own;

typedef struct hvt__folder {
    const char *dir; /* borrowed; NULL: closed; "": no saving */
    int lock;        /* -1: none */
    int keep;
    bool is_saved; /* the run resumes the folder's newest generation */
    int epoch;     /* of this run's newest generation; -1: none */
    int64_t steps;
    hvt__score best;      /* of this run's `best` */
    hvt__score best_file; /* the same, if `best` is a file of its own */
    int64_t best_number;  /* -1: none */
    int64_t newest;       /* highest number in the folder */
    hvt__own *own;        /* [nown], oldest first */
    int nown;
    hvt__snapshot *snapshot;
    hvt__writer writer;
} hvt__folder;

/* On rank 0, before the run computes anything: locks the folder, and checks that this run may replace its
 * contents: nothing, or the checkpoint that it resumes, or anything with --overwrite. Then removes leftovers
 * of interrupted saves. Errors: E_IO (not writable; another job holds the lock), E_ARG (it contains a
 * checkpoint of another run). */
hvt_status hvt__folder_open(const hvt_options *opts, hvt__folder *ret_folder);
/* Waits for a save in progress, and unlocks the folder. */
void hvt__folder_close(hvt__folder *folder);
/* The run continues from this file, because newer generations were damaged. */
void hvt__folder_resumed(hvt__folder *folder, const char *file, const hvt_progress *progress);
/* Copies what is to be saved. A thread then writes a generation, points `last` to it, and `best` if its score
 * is the best so far, and removes what is not to be kept. Call after hvt__folder_wait(), and that again
 * before the next. Errors: E_MEM. */
hvt_status hvt__folder_save(hvt__folder *folder, hvt_model *m, hvt_optim *o, const hvt_progress *progress);
/* Waits for the save in progress, if any, and returns its status. Errors: E_IO naming what is complete,
 * E_DIVERGED, E_MEM. */
hvt_status hvt__folder_wait(hvt__folder *folder);

#endif /* HVT_TRAIN_CHECKPOINT_IMPL_H */
