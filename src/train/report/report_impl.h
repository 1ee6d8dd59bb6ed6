/* report_impl.h - what a run reports: the log's records, the lines and the bar on stderr, the timeline. */
#ifndef HVT_TRAIN_REPORT_IMPL_H
#define HVT_TRAIN_REPORT_IMPL_H

#include "train/cli/cli_impl.h"

/* ---- placement.c ---- */

/* Where one rank runs. */
typedef struct hvt_placement {
    hvt_cores cores;
    int allowed; /* processors that the launcher itself may use; 0: not known, or no launcher */
    int gpus;    /* that it can see */
    hvt_device_info gpu;
} hvt_placement;

/* A warning where the ranks of a host have more threads than processors, or are bound to few of the
 * processors that the launcher may use. It describes the first such host and counts the others; "": no such
 * host. */
enum { HVT_PLACEMENT_TEXT = 600 };
void hvt__placement_warning(int ranks, const char *const *host, const hvt_placement *placement,
                            char ret_text[HVT_PLACEMENT_TEXT]);
bool hvt__same_gpu(const hvt_placement *a, const hvt_placement *b);
/* A warning where ranks of a host cannot see each other's GPUs. */
void hvt__gpu_warning(int ranks, const char *const *host, const hvt_placement *placement,
                      char ret_text[HVT_PLACEMENT_TEXT]);

/* ---- report.c, summary.c ---- */

typedef struct hvt_start {
    const hvt_options *opts;
    const hvt_resolved *set;
    hvt_world *world;
    const char *device, *isa, *comm, *update, *graph, *overlap, *overlap_why;
    size_t exchange_bytes; /* that a rank contributes to the sums of an update */
    int threads, classes;
    const hvt_dataset_info *train, *test; /* train NULL: evaluation only */
    size_t params, bytes;
    hvt_memory memory;    /* the parts of bytes */
    size_t optim_bytes;   /* besides them: the optimizer's state on this rank */
    int64_t device_bytes; /* allocated on this rank's GPU; 0 on host devices */
    uint32_t steps_per_epoch;
    int64_t steps; /* of the whole run */
    int64_t done;  /* of these, before this job */
    int buckets;
    const size_t *bucket_bytes;
    const hvt_placement *placement; /* [ranks] */
} hvt_start;

typedef struct hvt_reporter hvt_reporter; /* NULL on every rank but 0, where all calls do nothing */

/* E_ARG if the file at `path`, which `flag` names, is also one that the run reads (--init, --resume, or the
 * `last` in such a folder) or its --log. */
struct stat;
hvt_status hvt__report_check_path(const hvt_options *opts, const char *flag, const char *path,
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
    double left;     /* estimated seconds to the end of the run */
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

/* Images whose loss is 2^30 nats or more, infinite, or NaN. */
typedef struct hvt__odd_losses {
    int64_t large, inf, nan;
} hvt__odd_losses;

/* The choice that --overlap auto made, and the seconds of an update that it is made on: off, and with a
 * worker. */
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

/* Ends the log with hvt_last_error(), if the log has its first record. */
void hvt__report_failed(hvt_reporter *rep, int64_t steps);
hvt_status hvt__report_end(hvt_reporter *rep, const hvt_options *opts, const hvt_end_report *r);

/* ---- eta.c ---- */

/* What remains of a run, and how long each part takes. */
typedef struct hvt__remaining {
    int64_t epoch, done; /* finished epochs, and finished updates of the current one */
    int64_t left;        /* updates */
    int64_t per_epoch;
    int eval_freq;
    double update_seconds, eval_seconds,
        save_seconds; /* save_seconds 0: nothing is saved, or not yet known */
} hvt__remaining;

double hvt__seconds_left(const hvt__remaining *r);

/* ---- timeline.c ---- */

typedef struct hvt_timeline hvt_timeline; /* NULL: no --timeline, and all calls do nothing */

/* Collective, as are the other functions. Compares the clocks; rank 0 creates the file. */
hvt_status hvt__timeline_open(const hvt_options *opts, const hvt_resolved *set, hvt_world *world,
                              hvt_timeline **ret_timeline);
/* To be called after each update; `steps` is the number of finished updates. */
hvt_status hvt__timeline_at(hvt_timeline *t, int64_t steps);
hvt_status hvt__timeline_flush(hvt_timeline *t);
void hvt__timeline_close(hvt_timeline **timeline);

/* How far is rank r's clock ahead of rank 0's, and how large can the error be? In each round of gathers rank
 * r began at began[round * ranks + r] and ended at ended[round * ranks + r], by its own clock. */
void hvt__clock_offset(const double *began, const double *ended, int rounds, int ranks, int r,
                       double *ret_ahead, double *ret_error);

#endif /* HVT_TRAIN_REPORT_IMPL_H */
