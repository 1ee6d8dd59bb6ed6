/*
 * The file of --log before its first record: one job at a time writes it, a new run replaces it, a run that
 * goes on appends to it, and every line stays a whole JSON value. How lines are written is in log_file.c.
 */
#define _GNU_SOURCE /* memrchr */

#include "train/process/log_file.h"
#include "base_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { TAIL_MOST = 1 << 20 }; /* bytes of a last line; a record has some thousands */

static bool is_file(FILE *log)
{
    struct stat info;

    return fstat(fileno(log), &info) == 0 && S_ISREG(info.st_mode);
}

hvt_status hvt__log_lock(FILE *log, const char *path)
{
    /* what a shell has led stdout to may be several programs' */
    if (!is_file(log) || !strncmp(path, "/dev/", 5) || !strncmp(path, "/proc/", 6))
        return HVT_OK;
    HVT_CHECK(hvt__file_lock(fileno(log), "--log", path), E_IO,
              "--log %s: another job writes this log; expected a file for each job", path);
    return HVT_OK;
}

/* The bytes after the last newline, malloc'ed with a 0 behind them; NULL: none, or more than any record. */
static hvt_status read_tail(const char *path, off_t size, char **ret_tail, size_t *ret_bytes)
{
    size_t room = size < TAIL_MOST ? (size_t)size : TAIL_MOST, got = 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC), error = fd < 0 ? errno : 0;
    char *text = malloc(room + 1), *line;
    hvt_status s = HVT_OK;

    HVT_CHECK_OR(done, text, E_MEM, "--log %s: no memory to read its last line", path);
    while (fd >= 0 && got < room) {
        ssize_t n = pread(fd, text + got, room - got, size - (off_t)room + (off_t)got);
        if (n < 0 && errno == EINTR)
            continue;
        error = n < 0 ? errno : 0;
        if (n <= 0)
            break;
        got += (size_t)n;
    }
    HVT_CHECK_OR(done, got == room, E_IO, "--log %s: cannot read what it holds, to append to it: %s", path,
                 error ? strerror(error) : "it ends too early");
    text[room] = 0;
    line = memrchr(text, '\n', room);
    line = line ? line + 1 : room == TAIL_MOST ? text + room : text;
    *ret_bytes = (size_t)(text + room - line);
    if (*ret_bytes) {
        memmove(text, line, *ret_bytes + 1);
        *ret_tail = text;
        text = NULL;
    }
done:
    if (fd >= 0)
        close(fd);
    free(text);
    return s;
}

static bool is_whole(const char *line, size_t bytes)
{
    json_error_t ignored;
    json_t *record = json_loadb(line, bytes, 0, &ignored);

    json_decref(record);
    return record != NULL;
}

/* What is there ends with a whole line; lines are added at the end. A record that was cut off when its writer
 * was killed goes; other text becomes a line. */
static hvt_status go_to_end(FILE *log, const char *path)
{
    struct stat info;
    char *tail = NULL;
    size_t bytes = 0;
    hvt_status s;

    HVT_CHECK(fstat(fileno(log), &info) == 0, E_IO, "--log %s: %s", path, strerror(errno));
    HVT_TRY(read_tail(path, info.st_size, &tail, &bytes));
    s = HVT_OK;
    if (tail && *tail == '{' && !is_whole(tail, bytes)) {
        info.st_size -= (off_t)bytes;
        bytes = 0;
        HVT_CHECK_OR(done, ftruncate(fileno(log), info.st_size) == 0, E_IO, "--log %s: cannot shorten it: %s",
                     path, strerror(errno));
        HVT_INFO("note: the last record in %s was cut off and is left out", path);
    }
    HVT_CHECK_OR(done, !bytes || hvt__log_line(fileno(log), "\n", 1), E_IO, "--log %s: cannot write: %s",
                 path, strerror(errno));
done:
    free(tail);
    return s;
}

hvt_status hvt__log_begin(FILE *log, const char *path, bool append)
{
    if (!is_file(log))
        return HVT_OK;
    if (append)
        return go_to_end(log, path);
    HVT_CHECK(ftruncate(fileno(log), 0) == 0, E_IO, "--log %s: cannot empty it: %s", path, strerror(errno));
    return HVT_OK;
}
