/*
 * A file of Chrome's trace events that is whole JSON at every moment, for readers while it is written and
 * after a kill alike.
 *
 * The end of the list stands at the end of the file, from the beginning, and between it and the last event
 * are spaces, which JSON skips. Events are written over the spaces, and none lies in two pages: the kernel
 * copies a page or leaves it, so that what is on disk ends behind a whole event. Where the spaces are used
 * up, a file of twice the size is made beside it and renamed over it: what is copied in all is no more than
 * twice the events. The last such file has no spaces left.
 */
#define _GNU_SOURCE
#include "timeline.h"
#include "base_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PAGE = 4096, FIRST = 64 * PAGE, LINE = 1024 };

static const char head[] =
    "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n"
    "{\"name\":\"process_sort_index\",\"ph\":\"M\",\"pid\":0,\"args\":{\"sort_index\":0}}";
static const char tail[] = "\n]}\n";
enum { HEAD = sizeof head - 1, TAIL = sizeof tail - 1 };

struct hvt__trace_file {
    const char *flag_path; /* borrowed: as it was given */
    char path[PATH_MAX];   /* without links, so that renaming replaces the file itself */
    int fd;
    size_t at, size; /* the events' end, and the file's */
    char *text;      /* [room] of it `used`: for `at`, not yet written */
    size_t used, room;
};

/* ---- the file ---- */

static hvt_status failed(const hvt__trace_file *f, const char *what)
{
    return HVT_FAIL(E_IO, "--timeline %s: cannot %s: %s", f->flag_path, what, strerror(errno));
}

static bool write_all(int fd, const char *data, size_t bytes, size_t at)
{
    while (bytes) {
        ssize_t n = pwrite(fd, data, bytes, (off_t)at);

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return false;
        data += n;
        at += (size_t)n;
        bytes -= (size_t)n;
    }
    return true;
}

/* What is there up to f->at, then spaces and the end. */
static bool fill(const hvt__trace_file *f, int fd, size_t size)
{
    char block[16 * PAGE];

    if (f->fd < 0 && !write_all(fd, head, HEAD, 0))
        return false;
    for (size_t at = 0, n; f->fd >= 0 && at < f->at; at += n) {
        ssize_t got = pread(f->fd, block, f->at - at < sizeof block ? f->at - at : sizeof block, (off_t)at);

        if (got <= 0)
            return false;
        n = (size_t)got;
        if (!write_all(fd, block, n, at))
            return false;
    }
    memset(block, ' ', sizeof block);
    for (size_t at = f->at, n; at < size - TAIL; at += n) {
        n = size - TAIL - at < sizeof block ? size - TAIL - at : sizeof block;
        if (!write_all(fd, block, n, at))
            return false;
    }
    return write_all(fd, tail, TAIL, size - TAIL);
}

/* The file becomes one of this size. On failure it is what it was. */
static hvt_status resize(hvt__trace_file *f, size_t size)
{
    char fresh[PATH_MAX + 8];
    int fd;

    snprintf(fresh, sizeof fresh, "%s.new", f->path);
    fd = open(fresh, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0)
        return failed(f, "write");
    if (!fill(f, fd, size) || rename(fresh, f->path)) {
        hvt_status s = failed(f, "write");
        unlink(fresh);
        close(fd);
        return s;
    }
    if (f->fd >= 0)
        close(f->fd);
    f->fd = fd;
    f->size = size;
    return HVT_OK;
}

/* ---- life ---- */

/* Where the path leads, and is it a place for a file? */
static hvt_status find_place(hvt__trace_file *f, const hvt_options *opts)
{
    struct stat info;

    if (stat(f->flag_path, &info)) {
        HVT_CHECK(errno == ENOENT && strlen(f->flag_path) < sizeof f->path, E_IO,
                  "--timeline %s: cannot write: %s", f->flag_path, strerror(errno));
        strcpy(f->path, f->flag_path);
        return HVT_OK;
    }
    HVT_CHECK(S_ISREG(info.st_mode), E_IO, "--timeline %s: is no regular file", f->flag_path);
    HVT_TRY(hvt__report_spares(opts, "--timeline", f->flag_path, &info));
    if (!realpath(f->flag_path, f->path))
        return failed(f, "write");
    return HVT_OK;
}

hvt_status hvt__trace_file_open(const hvt_options *opts, hvt__trace_file **ret_file)
{
    hvt__trace_file *f = calloc(1, sizeof *f);
    hvt_status s;

    HVT_CHECK(f, E_MEM, "--timeline %s: no memory", opts->timeline);
    f->flag_path = opts->timeline;
    f->fd = -1;
    f->at = HEAD;
    HVT_TRY_OR(fail, find_place(f, opts));
    HVT_TRY_OR(fail, resize(f, FIRST));
    *ret_file = f;
    return HVT_OK;
fail:
    free(f);
    return s;
}

hvt_status hvt__trace_file_close(hvt__trace_file **file)
{
    hvt__trace_file *f = *file;
    hvt_status s;

    if (!f)
        return HVT_OK;
    s = hvt__trace_file_flush(f);
    if (s == HVT_OK)
        s = resize(f, f->at + TAIL);
    close(f->fd);
    free(f->text);
    free(f);
    *file = NULL;
    return s;
}

/* ---- events ---- */

hvt_status hvt__trace_file_add(hvt__trace_file *f, const char *fmt, ...)
{
    char line[LINE] = ",\n";
    size_t here, gap = 0, n;
    va_list ap;

    va_start(ap, fmt);
    n = 2 + (size_t)vsnprintf(line + 2, sizeof line - 2, fmt, ap);
    va_end(ap);
    HVT_CHECK(n < sizeof line, E_ARG, "--timeline %s: an event of %zu bytes", f->flag_path, n);
    here = (f->at + f->used) % PAGE;
    if (here + n > PAGE)
        gap = PAGE - here;
    if (f->used + gap + n > f->room) {
        size_t room = 2 * f->room + 16 * PAGE;
        char *text = realloc(f->text, room);

        HVT_CHECK(text, E_MEM, "--timeline %s: no memory for %zu bytes of events", f->flag_path, room);
        f->text = text;
        f->room = room;
    }
    memset(f->text + f->used, ' ', gap);
    memcpy(f->text + f->used + gap, line, n);
    f->used += gap + n;
    return HVT_OK;
}

hvt_status hvt__trace_file_flush(hvt__trace_file *f)
{
    size_t end = f->at + f->used;

    if (end + TAIL > f->size)
        HVT_TRY(resize(f, 2 * (end + TAIL)));
    if (!write_all(f->fd, f->text, f->used, f->at))
        return failed(f, "write");
    f->at = end;
    f->used = 0;
    return HVT_OK;
}
