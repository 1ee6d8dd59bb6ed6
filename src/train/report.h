/* report.h - a reporter, for what tells of a run and for what tells of its start. */
#ifndef HVT_TRAIN_REPORT_H
#define HVT_TRAIN_REPORT_H

#include "train_impl.h"
#include "base_impl.h"

#include <jansson.h>

struct hvt_reporter {
    FILE *log; /* NULL: none */
    const char *path;
    bool quiet, bar;  /* bar: stderr is a terminal */
    bool evaluates;   /* and nothing else: its result is what was asked for */
    double bar_drawn; /* when */
};

json_t *hvt__number(double v); /* null where it is not finite */
/* Write one record and give up `record`. */
hvt_status hvt__report_put(hvt_reporter *rep, json_t *record);

void hvt__report_say(hvt_reporter *rep, const char *fmt, ...) HVT_PRINTF(2, 3); /* a line, unless --quiet */

static inline double hvt__mib(double bytes)
{
    return bytes / (1 << 20);
}

#endif /* HVT_TRAIN_REPORT_H */
