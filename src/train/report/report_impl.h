/* report_impl.h - a run's output: the log's records, the lines and the bar on stderr, the timeline. */
#ifndef HVT_TRAIN_REPORT_IMPL_H
#define HVT_TRAIN_REPORT_IMPL_H

#include "train/cli/cli_impl.h"
#include "train/process/process_impl.h"

#include <stdio.h>

/* ---- tensorboard.c ---- */

typedef struct hvt__events hvt__events;

/* Opens a folder for event files, and creates it if it is missing. dir: borrowed. Errors: E_IO. */
hvt_status hvt__events_open(const char *dir, hvt__events **ret);
/* Writes the scalars of a record, which has its time. The first record, of the start, creates the file, and
 * is the only one that can fail (E_IO); later there is one warning. */
hvt_status hvt__events_put(hvt__events *e, const json_t *record);
void hvt__events_close(hvt__events **events); /* NULL is fine */

/* ---- report.c ---- */

typedef struct hvt_reporter {
    const hvt_options *opts;                 /* borrowed */
    FILE *log;                               /* NULL: none */
    hvt__log_file *lines_of;                 /* the log's lines */
    bool begun;                              /* the log has its first record */
    int64_t missing;                         /* records that could not be written */
    hvt__events *events;                     /* of --tensorboard; NULL: none */
    void (*also)(void *ctx, json_t *record); /* also gets every record; NULL: none */
    void *also_ctx;
    bool bar;         /* stderr is a terminal, without --quiet */
    double bar_drawn; /* time */
    int lines;        /* printed so far; the start table counts its own */
    double printed;   /* time of the last line, or of opening the reporter */
} hvt_reporter;

/* E_ARG if the file at `path`, which `flag` names, is also one that the run reads (--init, --resume, or the
 * `last` in such a folder) or its --log. */
hvt_status hvt__report_check_path(const hvt_options *opts, const char *flag, const char *path);
hvt_status hvt__report_open(const hvt_options *opts, hvt_reporter **ret_rep);
void hvt__report_close(hvt_reporter **rep); /* may be NULL */

json_t *hvt__number(double v); /* null if it is not finite */
/* Writes a record with its time of day, and releases it. Only the first record can fail (E_IO, E_MEM); later
 * ones that cannot be written are counted, and there is one warning. */
hvt_status hvt__report_put(hvt_reporter *rep, json_t *record);
/* A record as in the log, without line feed; malloc'ed. NULL if out of memory. */
char *hvt__record_text(const json_t *record);
/* Ends the log with hvt_last_error(), if rep is not NULL and the log has its first record. */
void hvt__report_failed(hvt_reporter *rep, int64_t steps);

void hvt__report_print(hvt_reporter *rep, const char *fmt, ...) HVT_PRINTF(2, 3); /* a line, unless --quiet */
hvt_status hvt__report_result(hvt_reporter *rep, const char *text);               /* a line on stdout; E_IO */
bool hvt__report_bar_due(const hvt_reporter *rep); /* true if a bar is shown, a tenth of a second old */
/* head [====>   ] rest */
void hvt__report_bar(hvt_reporter *rep, const char *head, double part, const char *rest);
/* True if there is no bar and nothing has been printed for 30 s: a line of progress is due. rep may be
 * NULL. */
bool hvt__report_line_due(const hvt_reporter *rep);
/* "3m05s" */
void hvt__duration(double seconds, char ret_text[32]);

/* The format of a loss in every line: four decimals, or four significant digits if these are too many or too
 * few. */
typedef struct hvt__loss_text {
    char text[24];
} hvt__loss_text;

hvt__loss_text hvt__loss_shown(double loss);

/* The figures of a loss: its mean, and hits in percent, NaN with targets. */
typedef struct hvt__figures {
    double loss, top1, top5, error, miou; /* miou: of an evaluation of masks, else NaN */
    hvt_loss_kind kind;
    bool masks;
    hvt__loss_text shown; /* the loss */
    char score[40];       /* "top-1 12.34 %", "pixel accuracy 12.34 %", or "mae 0.1234" */
    char scores[60]; /* with ", top-5 45.67 %" for more than five classes, ", mean IoU 45.67 %" of masks */
} hvt__figures;

hvt__figures hvt__figures_of(const hvt_loss *l, hvt_loss_kind kind, int classes, bool masks);
/* Adds to a record that has hits: with targets the mean absolute error, for an evaluation of masks the mean
 * IoU. */
void hvt__figures_add(const hvt__figures *x, bool evaluation, json_t *record);

static inline double hvt__mib(double bytes)
{
    return bytes / (1 << 20);
}

/* ---- placement.c ---- */

/* The placement of one rank. */
typedef struct hvt_placement {
    hvt_cores cores;
    int allowed; /* processors of the launcher itself; 0: unknown, or no launcher */
    int gpus;    /* that it can see */
    hvt_device_info gpu;
} hvt_placement;

/* Number of processors the launcher may use (more than ours if it bound us); 0 without a launcher. */
int hvt__launchers_processors(void);

/* A warning if the ranks of a host have more threads than processors, or are bound to few of the processors
 * that the launcher may use. It describes the first such host and counts the others; "" if there is none. */
enum { HVT_PLACEMENT_TEXT = 600 };
void hvt__placement_warning(int ranks, const char *const *host, const hvt_placement *placement,
                            char ret_text[HVT_PLACEMENT_TEXT]);
/* A better command if threads of a rank span several NUMA nodes or third-level caches; "" if none do. */
void hvt__domains_advice(int ranks, const char *const *host, const hvt_placement *placement,
                         char ret_text[HVT_PLACEMENT_TEXT]);
bool hvt__same_gpu(const hvt_placement *a, const hvt_placement *b);
/* A warning if ranks of a host cannot see each other's GPUs. */
void hvt__gpu_warning(int ranks, const char *const *host, const hvt_placement *placement,
                      char ret_text[HVT_PLACEMENT_TEXT]);
/* A warning if the sum of many ranks' gradients in 16 bits loses precision. */
void hvt__sums_warning(const char *comm, hvt_dtype wire, int ranks, char ret_text[HVT_PLACEMENT_TEXT]);
/* Rank, host, cores: a line per rank of a small job, per host of a large one. */
void hvt__report_ranks(hvt_reporter *rep, int ranks, const char *const *host, const hvt_placement *placement);

/* ---- timeline.c ---- */

typedef struct hvt_timeline hvt_timeline; /* NULL: no --timeline; all calls do nothing */

/* Collective, like the other functions. Compares the clocks; rank 0 creates the file. */
hvt_status hvt__timeline_open(const hvt_options *opts, const hvt_resolved *set, hvt_world *world,
                              hvt_timeline **ret_timeline);
/* Call after each update; `steps` is the number of finished updates. */
hvt_status hvt__timeline_at(hvt_timeline *t, int64_t steps);
hvt_status hvt__timeline_flush(hvt_timeline *t);
void hvt__timeline_close(hvt_timeline **timeline);

/* Estimates how far rank r's clock is ahead of rank 0's, and the largest error. In each round of gathers rank
 * r began at began[round * ranks + r] and ended at ended[round * ranks + r], by its own clock. */
void hvt__clock_offset(const double *began, const double *ended, int rounds, int ranks, int r,
                       double *ret_ahead, double *ret_error);

#endif /* HVT_TRAIN_REPORT_IMPL_H */
