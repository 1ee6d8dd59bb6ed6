/* timeline.h - --timeline: what each rank did when, in one file. */
#ifndef HVT_TRAIN_TIMELINE_H
#define HVT_TRAIN_TIMELINE_H

#include "train_impl.h"

/* ---- timeline.c ---- */

typedef struct hvt_timeline hvt_timeline; /* NULL: no --timeline; all calls do nothing then */

/* --timeline-steps: both are seen. */
hvt_status hvt__timeline_window(const hvt_options *opts, int64_t *ret_first, int64_t *ret_last);
/* Collective, as all of these. Clocks are compared, rank 0 makes the file. */
hvt_status hvt__timeline_open(const hvt_options *opts, hvt_world *world, hvt_timeline **ret_timeline);
/* `steps` updates are done: is the next one to be seen, and is it time to write? */
hvt_status hvt__timeline_at(hvt_timeline *t, int64_t steps);
hvt_status hvt__timeline_flush(hvt_timeline *t);
void hvt__timeline_close(hvt_timeline **timeline);

/* What all ranks' clocks said: rank r asked at began[round * ranks + r] for what all others had to give, and
 * had it at ended[...]. How far rank r's clock is ahead of rank 0's, and at most how much that is wrong. */
void hvt__clock_offset(const double *began, const double *ended, int rounds, int ranks, int r,
                       double *ret_ahead, double *ret_error);

/* ---- trace_file.c ---- */

typedef struct hvt__trace_file hvt__trace_file;

hvt_status hvt__trace_file_open(const hvt_options *opts, hvt__trace_file **ret_file);
hvt_status hvt__trace_file_close(hvt__trace_file **file);
/* One event, as JSON. */
hvt_status hvt__trace_file_add(hvt__trace_file *f, const char *fmt, ...) HVT_PRINTF(2, 3);
hvt_status hvt__trace_file_flush(hvt__trace_file *f);

#endif /* HVT_TRAIN_TIMELINE_H */
