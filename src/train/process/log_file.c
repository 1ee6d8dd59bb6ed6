/*
 * The log's file. A line is written completely or not at all. Training continues if the disk is full, a quota
 * is exceeded or the reader of a pipe is gone: missing lines are counted, and writing is tried again with the
 * next line.
 *
 * A line that was written in part is cut off. Where that is impossible (a pipe), the next line begins with a
 * line feed, so that it is complete. Nothing is buffered: each line is written by write().
 *
 * The last line can also be written by a signal handler, or by the watchdog's thread when the training thread
 * is stuck. The state that this needs is kept here in atomics, and hvt__log_last() only calls functions that
 * are allowed in handlers.
 */
#define _GNU_SOURCE
#include "process_impl.h"
#include "base_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* The open log, once it has its first record. */
static struct {
    atomic_int fd;         /* -1: none */
    atomic_bool busy;      /* a line is being written: `bytes` bytes at `at` */
    _Atomic int64_t at;    /* -1: the file cannot be truncated */
    _Atomic int64_t bytes; /* of the line */
    _Atomic int64_t steps; /* finished updates */
    atomic_bool torn;      /* the file ends with a part of a line that cannot be removed */
} now = {.fd = -1};

/* ---- lines ---- */

/* Write as much as possible; the bytes written. errno is set if that is not all. */
static size_t write_some(int fd, const char *text, size_t bytes)
{
    size_t done = 0;

    while (done < bytes) {
        ssize_t n = write(fd, text + done, bytes - done);

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            break;
        done += (size_t)n;
    }
    return done;
}

/* As write_some(), but a pipe without a reader is an error instead of a signal. */
static size_t write_quietly(int fd, const char *text, size_t bytes)
{
    sigset_t pipe, before, pending;
    bool was_pending;
    size_t done;
    int why;

    sigemptyset(&pipe);
    sigaddset(&pipe, SIGPIPE);
    sigpending(&pending);
    was_pending = sigismember(&pending, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe, &before);
    errno = 0;
    done = write_some(fd, text, bytes);
    why = errno;
    if (done < bytes && why == EPIPE && !was_pending)
        while (sigtimedwait(&pipe, NULL, &(struct timespec){0}) < 0 && errno == EINTR)
            ;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    errno = why;
    return done;
}

bool hvt__log_line(int fd, const char *line, size_t bytes)
{
    off_t at = lseek(fd, 0, SEEK_END); /* -1: a pipe */
    size_t done;
    int why;

    atomic_store(&now.at, at);
    atomic_store(&now.bytes, bytes);
    atomic_store(&now.busy, true);
    if (atomic_load(&now.torn) && write_quietly(fd, "\n", 1) == 1)
        atomic_store(&now.torn, false);
    done = atomic_load(&now.torn) ? 0 : write_quietly(fd, line, bytes);
    why = errno;
    if (done > 0 && done < bytes && (at < 0 || ftruncate(fd, at)))
        atomic_store(&now.torn, true);
    atomic_store(&now.busy, false);
    errno = why ? why : EIO;
    return done == bytes;
}

/* ---- the last line ---- */

void hvt__log_begun(int fd)
{
    hvt__process_seconds(); /* it reads /proc now and not in a handler */
    atomic_store(&now.fd, fd);
}

void hvt__log_ended(void)
{
    atomic_store(&now.fd, -1);
    atomic_store(&now.torn, false);
}

void hvt__log_at(int64_t steps)
{
    atomic_store_explicit(&now.steps, steps, memory_order_relaxed);
}

/* A line that is put together piece by piece; it is cut off at the end of the buffer. */
typedef struct line {
    char at[HVT__LOG_WHY + 256];
    size_t used;
} line;

static void put(line *l, const char *text)
{
    while (*text && l->used < sizeof l->at)
        l->at[l->used++] = *text++;
}

static void put_number(line *l, int64_t v)
{
    char digits[24];
    int n = sizeof digits - 1;

    digits[n] = 0;
    do
        digits[--n] = (char)('0' + v % 10);
    while (v /= 10);
    put(l, digits + n);
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

/* Remove an unfinished line. Its writer does not continue. */
static bool make_way(int fd)
{
    int64_t at = atomic_load(&now.at), bytes = atomic_load(&now.bytes);
    struct stat info;

    if (!atomic_load(&now.busy))
        return true;
    if (at < 0) /* a pipe takes a short line completely or not at all */
        return bytes <= PIPE_BUF || write_some(fd, "\n", 1) == 1;
    if (fstat(fd, &info))
        return false;
    return info.st_size <= at || info.st_size >= at + bytes || ftruncate(fd, at) == 0;
}

void hvt__log_last(const char *status, const char *signal_name, const char *why)
{
    int fd = atomic_exchange(&now.fd, -1);
    struct pollfd pipe = {.fd = fd, .events = POLLOUT};
    struct sigaction ignore = {.sa_handler = SIG_IGN}, before;
    int64_t ms;
    line l = {.used = 0};

    if (fd < 0 || poll(&pipe, 1, 100) != 1) /* do not wait for the reader of a pipe */
        return;
    ms = (int64_t)(1000 * hvt__process_seconds());
    put(&l, "{\"record\":\"end\",\"status\":\"");
    put(&l, status);
    if (signal_name) {
        put(&l, "\",\"signal\":\"");
        put(&l, signal_name);
    }
    put(&l, "\",\"error\":");
    put(&l, why && *why ? why : "null");
    put(&l, ",\"seconds\":");
    put_number(&l, ms / 1000);
    put(&l, ".");
    put_number(&l, ms / 100 % 10);
    put_number(&l, ms / 10 % 10);
    put(&l, ",\"steps\":");
    put_number(&l, atomic_load(&now.steps));
    put(&l, "}\n");
    sigaction(SIGPIPE, &ignore, &before);
    if (make_way(fd)) {
        off_t at = lseek(fd, 0, SEEK_END);

        if (atomic_load(&now.torn) && at < 0)
            write_some(fd, "\n", 1);
        if (write_some(fd, l.at, l.used) < l.used && at >= 0 && ftruncate(fd, at))
            atomic_store(&now.torn, true);
    }
    sigaction(SIGPIPE, &before, NULL);
}
