/* parse_line.h - options of a command line in one text. */
#ifndef HVT_TESTS_TRAIN_PARSE_LINE_H
#define HVT_TESTS_TRAIN_PARSE_LINE_H

#include "base_impl.h"
#include "check.h"
#include "train/cli/cli_impl.h"

static inline hvt_status parse(hvt_options *opts, const char *line)
{
    static char text[1024];
    static char *argv[32] = {"hvtrain"}; /* opts borrows from it */
    int argc = 1;

    snprintf(text, sizeof text, "%s", line);
    for (char *word = strtok(text, " "); word; word = strtok(NULL, " "))
        argv[argc++] = word;
    return hvt_options_parse(argc, argv, opts);
}

#endif /* HVT_TESTS_TRAIN_PARSE_LINE_H */
