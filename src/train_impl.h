/*
 * train_impl.h - inside the training program: settled options, safetensors, the reporter, interrupts.
 *
 * Included by src/train. Nothing else.
 */
#ifndef HVT_TRAIN_IMPL_H
#define HVT_TRAIN_IMPL_H

#include "hvt/train.h"

#include <stdio.h>

/* ---- options.c ---- */

typedef enum hvt_scope { HVT_SCOPE_RANK, HVT_SCOPE_JOB, HVT_SCOPE_RUN } hvt_scope;
enum { HVT_OPTION_VALUE = 4200 }; /* bytes that hold any value as text; a path is the longest */
enum { HVT_OPTION_FLAG = 48 };    /* and any flag */

const char *hvt__option_flag(int i);    /* "--weight-decay" */
int hvt__option_find(const char *name); /* without "--", with '-' or '_'; -1: there is none */
bool hvt__option_nearest(const char *name, char ret_flag[HVT_OPTION_FLAG]); /* false: none is like it */
/* What stands for a flag of other trainers, or of this one in earlier versions; false: it was none. */
bool hvt__option_gone(const char *name, char *ret_here, size_t bytes);
bool hvt__option_is_text(int i);
bool hvt__option_is_switch(int i);
hvt_scope hvt__option_scope(int i);
void hvt__option_text(const hvt_options *opts, int i, char ret_text[HVT_OPTION_VALUE]);

/* ---- share.c ---- */

/* `read` is rank 0's outcome, with *text and *bytes; it becomes everybody's, and so does the text, malloc'ed
 * and with a 0 behind it. If it fails no rank has a text. `what` names it where memory is short. Collective.
 */
hvt_status hvt__share_text(hvt_world *world, hvt_status read, const char *what, char **text, size_t *bytes);

/* ---- settle.c: the options, read together ---- */

typedef struct hvt_settled {
    int shards, local_shards, batch; /* batch: images per shard */
    double lr;                       /* after the scaling rule */
    int crop;
    bool flip, no_decay_norm, no_decay_bias;
    hvt_last_batch tail;
    hvt_dtype wire, amp; /* amp: of activations */
    int powersgd;        /* rank of the gradients' factors; 0: none */
    hvt_update update;
    hvt_scaling scaling;
    size_t first_bucket;
    const char *device;
    bool on_gpu;
    int gpu;                  /* --device cuda:N; -1: that of the local rank */
    bool by_steps, by_epochs; /* what ends the run; both: whichever comes first */
} hvt_settled;

bool hvt__has_stem(const char *model); /* --stem has a meaning for it */
hvt_status hvt__settle(const hvt_options *opts, int ranks, hvt_settled *ret_settled);

/* ---- gpu.c: which GPU is whose ---- */

enum { HVT_MAX_GPUS = 1024 };
hvt_status hvt__settle_device(const hvt_options *opts, int ranks, hvt_settled *settled);

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
/* Data against the digest in the metadata; a file without one (not ours) passes. */
hvt_status hvt__st_verify(hvt_st *st);
void hvt__st_shape(const int64_t *dim, int ndim, char *ret_text, size_t bytes); /* "[64, 3, 7, 7]" */

/* A tensor to write: name, type (I64 or F32), ndim, dim; `id` is the caller's. */
typedef struct hvt_st_item {
    char name[160];
    hvt_st_type type;
    int ndim;
    int64_t dim[HVT_ST_DIMS];
    int id;
} hvt_st_item;

typedef struct hvt_st_pair {
    const char *key, *value;
} hvt_st_pair;

/* Fill `data` with the elements of items[i]. */
typedef hvt_status hvt_st_fetch(void *ctx, const hvt_st_item *item, void *data);

/* Write items (which are sorted here as the reference writer lays them out) and metadata, beside `path`, then
 * sync, rename over it and sync the folder. On failure `path` is what it was: what has diverged must not
 * replace what has not, so a float that is not finite is E_DIVERGED. */
hvt_status hvt__st_write(const char *path, hvt_st_item *items, int n, const hvt_st_pair *meta, int pairs,
                         hvt_st_fetch *fetch, void *ctx);

/* ---- checkpoint.c ---- */

hvt_status hvt__checkpoint_folder(const char *dir); /* make it if need be; can files be written there? */
/* The file that a path names: itself, or in a folder `last`, or `best` where there is no `last`. */
hvt_status hvt__checkpoint_file(const char *path, char *ret_path, size_t bytes);
void hvt__checkpoint_remove(const char *dir, const char *name); /* with the files that it names */

/* ---- folder.c: the folder of --save ---- */

typedef struct hvt__folder hvt__folder;

/*
 * Rank 0's alone, before anything is computed: lock the folder, and see that this run may replace what is in
 * it: nothing, or what it goes on with, or anything with --overwrite. *ret_folder is NULL without --save.
 * Errors: E_IO (cannot be written; another job holds the lock), E_ARG (it holds another run's checkpoint).
 */
hvt_status hvt__folder_open(const hvt_options *opts, hvt__folder **ret_folder);
void hvt__folder_close(hvt__folder **folder);         /* and unlock it */
double hvt__folder_best(const hvt__folder *folder);   /* top-1 in percent of this run's `best`; -1: none */
bool hvt__folder_is_saved(const hvt__folder *folder); /* `last` is what the run goes on with */
/* `last`, and `best` if `top1` beats what best was so far. */
hvt_status hvt__folder_save(hvt__folder *folder, hvt_model *m, hvt_optim *o, const hvt_progress *progress);

/* ---- log_begin.c: the file of --log before its first record ---- */

/* Lock it, unless it is a pipe or a device. E_IO: another job writes it. */
hvt_status hvt__log_lock(FILE *log, const char *path);
/* Before the first record: empty the file, or go to its end. A last line that was cut off is no JSON: it is
 * removed. */
hvt_status hvt__log_begin(FILE *log, const char *path, bool append);

/* ---- eval.c ---- */

/* Images whose loss is 2^30 nats or more, infinite, or NaN. */
typedef struct hvt__odd_losses {
    int64_t large, inf, nan;
} hvt__odd_losses;

/* hvt_evaluate(), which tells how many images each batch of this rank had, once it is evaluated, and in the
 * end how many losses were odd. */
typedef void hvt__evaluated_fn(void *ctx, int images);
hvt_status hvt__evaluate(hvt_model *m, hvt_loader *loader, hvt_world *world, hvt__evaluated_fn *tell,
                         void *ctx, hvt_loss *ret_loss, hvt__odd_losses *ret_odd);

/* ---- interrupt.c: SIGINT and SIGTERM ---- */

hvt_status hvt__interrupt_open(hvt_world *world); /* Collective. */
void hvt__interrupt_close(void);
/* This rank is about to abort: may it say why? Then the others of its host say nothing from now on. False:
 * one of them says why already, and had a moment for it. Rank 0 ends its log with `why`. */
bool hvt__interrupt_last_word(const char *why);
void hvt__interrupt_unlink(const char *path); /* remove this file if stopped now; NULL: no more */
void hvt__interrupt_bar(bool shown);          /* a progress bar stands on stderr's last line */

/* ---- report.c, report_start.c: the log's JSON lines, the table at start, progress ---- */

/* What one rank tells about its place. */
typedef struct hvt_place {
    hvt_cores cores;
    int allowed; /* processors that the launcher itself may use; 0: not known, or no launcher */
    int gpus;    /* that it can see */
    hvt_device_info gpu;
} hvt_place;

/* What a person should know of where the ranks run: too many threads, or bound to few of the processors that
 * the launcher may use. Of the first host that it holds for, and how many more; "": nothing. */
enum { HVT_PLACE = 600 };
void hvt__place_warning(int ranks, const char *const *host, const hvt_place *place, char ret_text[HVT_PLACE]);
/* Ranks of a host that cannot see each other's GPUs. */
void hvt__gpu_warning(int ranks, const char *const *host, const hvt_place *place, char ret_text[HVT_PLACE]);

typedef struct hvt_start {
    const hvt_options *opts;
    const hvt_settled *set;
    hvt_world *world;
    const char *device, *isa, *comm, *update, *graph, *overlap, *overlap_why;
    size_t exchange_bytes; /* that a rank gives to the sums of an update */
    int threads, classes;
    const hvt_dataset_info *train, *test; /* train NULL: evaluation only */
    size_t params, bytes;
    hvt_memory memory;    /* what bytes are */
    size_t optim_bytes;   /* besides them: the optimizer's state on this rank */
    int64_t device_bytes; /* allocated on this rank's GPU; 0 on host devices */
    uint32_t steps_per_epoch;
    int64_t steps; /* of the whole run */
    int64_t done;  /* of these, before this job */
    int buckets;
    const size_t *bucket_bytes;
    const hvt_place *place; /* [ranks] */
} hvt_start;

typedef struct hvt_reporter hvt_reporter; /* NULL on every rank but 0: all calls do nothing then */

/* That a file, which `flag` names, is none that this run reads or writes otherwise. */
struct stat;
hvt_status hvt__report_spares(const hvt_options *opts, const char *flag, const char *path,
                              const struct stat *file);
hvt_status hvt__report_open(const hvt_options *opts, hvt_reporter **ret_rep);
void hvt__report_close(hvt_reporter **rep);
hvt_status hvt__report_start(hvt_reporter *rep, const hvt_start *s);

typedef struct hvt_step_report {
    int epoch, epochs;     /* 1-based */
    uint32_t in_epoch, of; /* updates done in this epoch, of how many */
    int64_t step, steps;   /* updates done in the whole run, of how many */
    hvt_loss loss;         /* since the last record */
    double lr, img_s;
    double loss_scale;
    int64_t skipped; /* of this job's updates */
    double left;     /* seconds to the end of the run, about */
} hvt_step_report;

bool hvt__report_bar_due(const hvt_reporter *rep); /* a bar is shown, and a tenth of a second has gone by */
void hvt__report_bar(hvt_reporter *rep, const hvt_step_report *r);
void hvt__report_eval_bar(hvt_reporter *rep, int64_t images, int64_t of); /* evaluated so far, of how many */
hvt_status hvt__report_step(hvt_reporter *rep, const hvt_step_report *r);

typedef struct hvt_epoch_report {
    int epoch, epochs;
    uint32_t steps;
    hvt_loss loss;
    double img_s, seconds;
    double compute, exposed_comm, data_wait, other; /* fractions of the time, of rank 0 */
    double wait_skew; /* exposed, the most of a rank less the least; as a fraction */
    int waited_for;   /* the rank with the least; -1: there is one rank */
    const char *waited_host;
    double loss_scale; /* 1: none */
    int64_t skipped;
} hvt_epoch_report;

/* The choice that --overlap auto made, and the seconds of an update that it is made on: off, with a
 * worker, between layers; NAN: not tried. */
hvt_status hvt__report_overlap(hvt_reporter *rep, const char *overlap, const double seconds[2]);
hvt_status hvt__report_epoch(hvt_reporter *rep, const hvt_epoch_report *r);
hvt_status hvt__report_eval(hvt_reporter *rep, int epoch, const hvt_loss *loss, const hvt__odd_losses *odd);

typedef struct hvt_end_report {
    double seconds, first_update; /* since the process began; first_update < 0: none */
    int64_t steps, skipped;       /* skipped: by this job, as gradients were not finite */
    double loss_scale;
    uint64_t weights;
    int64_t peak_bytes;        /* of the rank that has most */
    int64_t device_peak_bytes; /* the same of GPU memory; 0 on host devices */
} hvt_end_report;

/* The run ends with hvt_last_error(): the log's last record says so, if it has a first one. */
void hvt__report_failed(hvt_reporter *rep, int64_t steps);
hvt_status hvt__report_end(hvt_reporter *rep, const hvt_options *opts, const hvt_end_report *r);

/* ---- eta.c ---- */

/* What is left of a run, and how long each part of it takes. */
typedef struct hvt__rest {
    int64_t epoch, done; /* epochs finished, and updates done in the one under way */
    int64_t left;        /* updates */
    int64_t per_epoch;
    int eval_freq;
    double update_seconds, eval_seconds,
        save_seconds; /* save_seconds 0: nothing is saved, or not yet known */
} hvt__rest;

double hvt__seconds_left(const hvt__rest *r);

/* ---- process.c ---- */

double hvt__process_seconds(void);     /* since this process began */
int64_t hvt__process_peak_bytes(void); /* most resident memory so far */
/* "process 4711 on node1 (SLURM job 17)" */
void hvt__process_name(char *ret_text, size_t bytes);
const char *hvt__process_program(void); /* hvtrain as it was called, for hints */
/* The text as one word of a shell's command line, in quotes if need be: `text` itself, or ret_word. */
enum { HVT_SHELL_WORD = 4 * HVT_OPTION_VALUE + 3 };
const char *hvt__shell_word(const char *text, char ret_word[HVT_SHELL_WORD]);

#endif /* HVT_TRAIN_IMPL_H */
