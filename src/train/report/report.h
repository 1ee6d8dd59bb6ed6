/* report.h - a reporter, for what tells of a run and for what tells of its start. */
#ifndef HVT_TRAIN_REPORT_H
#define HVT_TRAIN_REPORT_H

#include "train/process/log_file.h"
#include "base_impl.h"

#include <jansson.h>

struct hvt_reporter {
    FILE *log; /* NULL: none */
    const char *path;
    bool begun;       /* the log has its first record */
    int64_t missing;  /* records that could not be written */
    bool quiet, bar;  /* bar: stderr is a terminal */
    bool evaluates;   /* and nothing else: its result is what was asked for */
    double bar_drawn; /* when */
};

json_t *hvt__number(double v); /* null where it is not finite */
/* Write one record, if there is a log, and give up `record`. Only where the first one cannot be written is
 * that an error: E_IO, E_MEM. Of later ones the first that is missing is warned of, and all are counted. */
hvt_status hvt__report_put(hvt_reporter *rep, json_t *record);

void hvt__report_say(hvt_reporter *rep, const char *fmt, ...) HVT_PRINTF(2, 3); /* a line, unless --quiet */

static inline double hvt__mib(double bytes)
{
    return bytes / (1 << 20);
}

#endif /* HVT_TRAIN_REPORT_H */
