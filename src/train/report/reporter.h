/* reporter.h - the reporter, for report.c and summary.c. */
#ifndef HVT_TRAIN_REPORTER_H
#define HVT_TRAIN_REPORTER_H

#include "report_impl.h"
#include "train/process/process_impl.h"
#include "base_impl.h"

#include <jansson.h>

/* ---- log_begin.c: the file of --log before its first record ---- */

/* Lock it, unless it is a pipe or a device. E_IO: another job writes it. */
hvt_status hvt__log_lock(FILE *log, const char *path);
/* Before the first record: empty the file, or append to it, removing a last line that was cut off. */
hvt_status hvt__log_begin(FILE *log, const char *path, bool append);

struct hvt_reporter {
    FILE *log; /* NULL: none */
    const char *path;
    bool begun;       /* the log has its first record */
    int64_t missing;  /* records that could not be written */
    bool quiet, bar;  /* bar: stderr is a terminal */
    bool evaluates;   /* --evaluate: the result goes to stdout */
    double bar_drawn; /* time */
};

json_t *hvt__number(double v); /* null where it is not finite */
/* Write a record, and release it. An error (E_IO, E_MEM) only for the first record; when a later one cannot
 * be written, there is one warning, and missing ones are counted. */
hvt_status hvt__report_put(hvt_reporter *rep, json_t *record);

void hvt__report_print(hvt_reporter *rep, const char *fmt, ...) HVT_PRINTF(2, 3); /* a line, unless --quiet */

/* placement.c: rank, host, cores: a line for each rank of a small job, for each host of a large one. */
void hvt__report_ranks(hvt_reporter *rep, int ranks, const char *const *host, const hvt_placement *placement);

static inline double hvt__mib(double bytes)
{
    return bytes / (1 << 20);
}

#endif /* HVT_TRAIN_REPORTER_H */
