/* logged.h - captures the library's log lines for a test. */
#ifndef HVT_LOGGED_H
#define HVT_LOGGED_H

#include "check.h"

static char logged[4096]; /* lines, each with its line feed */
static int logged_lines;
static hvt_log_level logged_up_to; /* HVT_LOG may ask for more */

static inline void log_line(void *ctx, hvt_log_level level, const char *line)
{
    size_t used = strlen(logged);

    (void)ctx;
    if (level > logged_up_to)
        return;
    snprintf(logged + used, sizeof logged - used, "%s\n", line);
    logged_lines++;
}

static inline void log_forget(void)
{
    logged[0] = '\0';
    logged_lines = 0;
}

/* Captures lines up to this level from now on. */
static inline void log_keep(hvt_log_level level)
{
    log_forget();
    logged_up_to = level;
    hvt_log_to(log_line, NULL, level);
}

/* Lines go to stderr again. */
static inline void log_release(void)
{
    hvt_log_to(NULL, NULL, HVT_LOG_INFO);
}

#endif /* HVT_LOGGED_H */
