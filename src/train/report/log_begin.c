/*
 * Preparing the file of --log for its first record. One job at a time writes it; a new run replaces what is
 * there, a resumed run appends to it; every line remains a complete JSON value. log_file.c writes the lines.
 */
#define _GNU_SOURCE /* memrchr */

#include "reporter.h"
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
    /* several programs may share the file that a shell redirected stdout to */
    if (!is_file(log) || !strncmp(path, "/dev/", 5) || !strncmp(path, "/proc/", 6))
        return HVT_OK;
    HVT_CHECK(hvt__file_lock(fileno(log), "--log", path), E_IO,
              "--log %s: another job writes this log; expected a file for each job", path);
    return HVT_OK;
}

/* The text after the last newline, malloc'ed; NULL: there is none, or it is longer than any record. */
static hvt_status read_tail(const char *path, off_t size, char **ret_tail, size_t *ret_bytes)
{
    size_t room = size < TAIL_MOST ? (size_t)size : TAIL_MOST;
    FILE *f = fopen(path, "re");
    char *text = malloc(room + 1), *line;
    hvt_status s = HVT_OK;

    HVT_CHECK_OR(done, text, E_MEM, "--log %s: no memory to read its last line", path);
    HVT_CHECK_OR(done, f && fseeko(f, size - (off_t)room, SEEK_SET) == 0 && fread(text, 1, room, f) == room,
                 E_IO, "--log %s: cannot read what it holds, to append to it: %s", path,
                 f && feof(f) ? "it ends too early" : strerror(errno));
    line = memrchr(text, '\n', room);
    line = line ? line + 1 : room == TAIL_MOST ? text + room : text;
    *ret_bytes = (size_t)(text + room - line);
    if (*ret_bytes) {
        memmove(text, line, *ret_bytes);
        *ret_tail = text;
        text = NULL;
    }
done:
    if (f)
        fclose(f);
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

/* Make the file end with a complete line. A record that was cut off when its writer was killed is removed;
 * other text becomes a line. */
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
