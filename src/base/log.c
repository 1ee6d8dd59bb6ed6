/*
 * Log lines and the clock. A line goes to the function set by hvt_log_to(), else to stderr with the program's
 * name in front. The environment variable HVT_LOG (error, warn, info, debug), the library's only one,
 * overrides the level.
 */
#include "line.h"
#include "thread.h"

#include <errno.h>
#include <poll.h>
#include <stdatomic.h>
#include <strings.h>
#include <time.h>
#include <unistd.h>

static hvt_log_fn *log_fn;
static void *log_ctx;
static hvt_log_level log_max = HVT_LOG_INFO;
static bool log_is_taken; /* printed lines go to the embedding program's function, too */

void hvt_log_to(hvt_log_fn *fn, void *ctx, hvt_log_level max_level)
{
    hvt__log_beside(fn, ctx, max_level);
    log_is_taken = fn;
}

void hvt__log_beside(hvt_log_fn *fn, void *ctx, hvt_log_level max_level)
{
    log_fn = fn;
    log_ctx = ctx;
    log_max = max_level;
    log_is_taken = false;
}

bool hvt__log_is_taken(void)
{
    return log_is_taken;
}

static hvt_log_level wanted(void)
{
    static const char *const names[] = {"error", "warn", "info", "debug"};
    const char *env = getenv("HVT_LOG");

    for (size_t i = 0; env && i < HVT_LEN(names); i++)
        if (!strcasecmp(env, names[i]))
            return (hvt_log_level)i;
    return log_max < hvt__kin.most ? log_max : hvt__kin.most;
}

bool hvt__write(int fd, const char *text, size_t bytes)
{
    while (bytes) {
        ssize_t n = write(fd, text, bytes);

        if (n < 0 && errno == EAGAIN) /* a terminal or pipe that another program made non-blocking */
            poll(&(struct pollfd){.fd = fd, .events = POLLOUT}, 1, -1);
        else if (n < 0 && errno != EINTR)
            return false;
        text += n > 0 ? n : 0;
        bytes -= n > 0 ? (size_t)n : 0;
    }
    return true;
}

/* Pass lines to the embedding program instead of printing them. */
static void pass_on(char *lines)
{
    char *rest;

    for (char *line = strtok_r(lines, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest))
        if (HVT_LOG_INFO <= wanted())
            log_fn(log_ctx, HVT_LOG_INFO, line);
}

bool hvt__vprint_line(int fd, const char *fmt, va_list ap)
{
    char line[HVT_LINE];
    int n = vsnprintf(line, sizeof line - 1, fmt, ap);
    size_t bytes = n < 0 ? 0 : n < HVT_LINE - 2 ? (size_t)n : HVT_LINE - 2;

    if (log_is_taken) {
        line[bytes] = 0;
        pass_on(line);
        return true;
    }
    line[bytes++] = '\n';
    if (fd == STDOUT_FILENO) /* keep the order of what the program has printed */
        fflush(stdout);
    return hvt__write(fd, line, bytes);
}

bool hvt__print_line(int fd, const char *fmt, ...)
{
    va_list ap;
    bool written;

    va_start(ap, fmt);
    written = hvt__vprint_line(fd, fmt, ap);
    va_end(ap);
    return written;
}

void hvt__log_always(hvt_log_level level, const char *line)
{
    static const char *const prefix[] = {"error: ", "warning: ", "", "debug: "};

    if (log_fn)
        log_fn(log_ctx, level, line);
    else
        hvt__print_line(STDERR_FILENO, "hvt: %s%s", prefix[level], line);
}

void hvt__log(hvt_log_level level, const char *fmt, ...)
{
    char line[2048];
    va_list ap;

    if (level > wanted())
        return;
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    hvt__log_always(level, line);
}

static _Atomic(hvt__report_vote_fn *) report_vote;

void hvt__set_report_vote(hvt__report_vote_fn *vote)
{
    atomic_store(&report_vote, vote);
}

bool hvt__may_report(const char *why)
{
    hvt__report_vote_fn *vote = atomic_load(&report_vote);

    return !vote || vote(why);
}

double hvt__now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
