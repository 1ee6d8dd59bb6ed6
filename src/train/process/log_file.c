/*
 * The log's file. A line is written completely or not at all. Training continues if the disk is full, a quota
 * is exceeded or a pipe has lost its reader: missing lines are counted, and the next line is tried again.
 *
 * A line that was written in part is removed. If that is impossible (a pipe), the next line begins with a
 * line feed, so that it is complete. The last line can also be written by a signal handler, or by the
 * watchdog's thread when the training thread is stuck: its state is kept in atomics, and hvt__log_last()
 * calls only functions that are allowed in handlers.
 */
#include "process_impl.h"
#include "base_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* Open logs. They never move, so that signal handlers can read them at any time. */
struct hvt__log_file {
    atomic_bool taken;
    atomic_bool live; /* between its first and its last record */
    atomic_int fd;
    atomic_bool busy;      /* a line is being written: `bytes` bytes at `at` */
    _Atomic int64_t at;    /* -1: the file cannot be truncated */
    _Atomic int64_t bytes; /* of the line */
    _Atomic int64_t steps; /* finished updates */
    atomic_bool torn;      /* the file ends in a partial line that cannot be removed */
};
static hvt__log_file logs[64];

hvt__log_file *hvt__log_open(int fd)
{
    for (size_t i = 0; i < HVT_LEN(logs); i++) {
        hvt__log_file *log = &logs[i];

        if (atomic_exchange(&log->taken, true))
            continue;
        atomic_store(&log->fd, fd);
        atomic_store(&log->torn, false);
        atomic_store(&log->steps, 0);
        return log;
    }
    return NULL;
}

void hvt__log_close(hvt__log_file *log)
{
    if (!log)
        return;
    hvt__log_ended(log);
    atomic_store(&log->taken, false);
}

/* Writes as much as possible; returns the bytes written, with errno set if some are missing. A pipe without a
 * reader is an error instead of a signal. */
static size_t write_text(int fd, const char *text, size_t bytes)
{
    sigset_t pipe, pending, before;
    size_t done = 0;
    int why;

    sigemptyset(&pipe);
    sigaddset(&pipe, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe, &before);
    sigpending(&pending);
    errno = 0;
    while (done < bytes) {
        ssize_t n = write(fd, text + done, bytes - done);
        if (n > 0)
            done += (size_t)n;
        else if (n == 0 || errno != EINTR)
            break;
    }
    why = errno;
    if (why == EPIPE && !sigismember(&pending, SIGPIPE))
        sigtimedwait(&pipe, NULL, &(struct timespec){0});
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    errno = why;
    return done;
}

bool hvt__log_line(hvt__log_file *log, const char *line, size_t bytes)
{
    const int fd = atomic_load(&log->fd);
    off_t at = lseek(fd, 0, SEEK_END); /* -1: a pipe */
    size_t done;
    int why;

    atomic_store(&log->at, at);
    atomic_store(&log->bytes, bytes);
    atomic_store(&log->busy, true);
    if (atomic_load(&log->torn) && write_text(fd, "\n", 1) == 1)
        atomic_store(&log->torn, false);
    done = atomic_load(&log->torn) ? 0 : write_text(fd, line, bytes);
    why = errno;
    if (done > 0 && done < bytes && (at < 0 || ftruncate(fd, at)))
        atomic_store(&log->torn, true);
    atomic_store(&log->busy, false);
    errno = why ? why : EIO;
    return done == bytes;
}

void hvt__log_begun(hvt__log_file *log)
{
    hvt__process_seconds(); /* reads /proc now, not in a handler */
    atomic_store(&log->live, true);
}

void hvt__log_ended(hvt__log_file *log)
{
    if (log)
        atomic_store(&log->live, false);
}

void hvt__log_at(hvt__log_file *log, int64_t steps)
{
    if (log)
        atomic_store_explicit(&log->steps, steps, memory_order_relaxed);
}

/* v >= 0, padded to at least this many digits. */
static const char *digits_of(int64_t v, int digits, char ret_text[24])
{
    char *at = ret_text + 23;

    for (*at = 0; v || digits > 0; v /= 10, digits--)
        *--at = (char)('0' + v % 10);
    return at;
}

void hvt__log_quote(const char *text, char ret_json[HVT__LOG_WHY])
{
    size_t n = 0;

    ret_json[n++] = '"';
    for (; *text && n + 4 < HVT__LOG_WHY; text++) {
        if (*text == '"' || *text == '\\')
            ret_json[n++] = '\\';
        ret_json[n++] = *text >= ' ' && *text < 127 ? *text : *text == '\n' || *text == '\t' ? ' ' : '?';
    }
    ret_json[n++] = '"';
    ret_json[n] = 0;
}

/* Removes an unfinished line, whose writer will not continue. */
static bool make_way(hvt__log_file *log)
{
    const int fd = atomic_load(&log->fd);
    int64_t at = atomic_load(&log->at), bytes = atomic_load(&log->bytes);
    struct stat info;

    if (!atomic_load(&log->busy))
        return true;
    if (at < 0) /* a pipe takes a short line completely or not at all */
        return bytes <= PIPE_BUF || write_text(fd, "\n", 1) == 1;
    if (fstat(fd, &info))
        return false;
    return info.st_size <= at || info.st_size >= at + bytes || ftruncate(fd, at) == 0;
}

/* The age of the process was read from /proc when the log began, and is a difference of clocks from then
 * on. */
static void end_log(hvt__log_file *log, const char *status, const char *signal_name, const char *why)
{
    struct pollfd pipe = {.fd = atomic_load(&log->fd), .events = POLLOUT};
    int64_t hundredths = (int64_t)(100 * hvt__process_seconds()), clock = hvt__process_clock();
    char seconds[24], fraction[24], steps[24], time[24], thousandths[24], line[HVT__LOG_WHY + 300] = "";
    const char *const parts[] = {"{\"record\":\"end\",\"status\":\"",
                                 status,
                                 signal_name ? "\",\"signal\":\"" : "",
                                 signal_name ? signal_name : "",
                                 "\",\"error\":",
                                 why && *why ? why : "null",
                                 ",\"seconds\":",
                                 digits_of(hundredths / 100, 1, seconds),
                                 ".",
                                 digits_of(hundredths % 100, 2, fraction),
                                 ",\"steps\":",
                                 digits_of(atomic_load(&log->steps), 1, steps),
                                 ",\"time\":",
                                 digits_of(clock / 1000, 1, time),
                                 ".",
                                 digits_of(clock % 1000, 3, thousandths),
                                 "}\n"};

    if (poll(&pipe, 1, 100) != 1) /* do not wait for the reader of a pipe */
        return;
    for (size_t i = 0; i < HVT_LEN(parts); i++)
        strncat(line, parts[i], sizeof line - 1 - strlen(line));
    if (make_way(log))
        hvt__log_line(log, line, strlen(line));
}

void hvt__log_last(const char *status, const char *signal_name, const char *why)
{
    for (size_t i = 0; i < HVT_LEN(logs); i++)
        if (atomic_exchange(&logs[i].live, false))
            end_log(&logs[i], status, signal_name, why);
}
