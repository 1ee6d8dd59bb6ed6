/*
 * Paths, locks, and opening files that may be pipes, folders or devices, without waiting for a pipe's other
 * end.
 */
#include "base_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

static _Atomic(hvt__temp_fn *) temp;

void hvt__set_temp(hvt__temp_fn *fn)
{
    atomic_store(&temp, fn);
}

void hvt__temp(const char *path, bool exists)
{
    hvt__temp_fn *fn = atomic_load(&temp);

    if (fn)
        fn(path, exists);
}

hvt_status hvt__path(char ret_path[PATH_MAX], const char *fmt, ...)
{
    va_list ap;
    int bytes;

    va_start(ap, fmt);
    bytes = vsnprintf(ret_path, PATH_MAX, fmt, ap);
    va_end(ap);
    HVT_CHECK(bytes < PATH_MAX, E_IO, "%.200s...: the name is too long", ret_path);
    return HVT_OK;
}

void hvt__cache_path(const char *name, char ret_path[PATH_MAX])
{
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    bool xdg = cache && *cache == '/';
    int bytes;

    *ret_path = 0;
    if (!xdg && !(home && *home == '/'))
        return;
    bytes = snprintf(ret_path, PATH_MAX, xdg ? "%s" : "%s/.cache", xdg ? cache : home);
    if (bytes + (int)strlen("/hvtrain/") + (int)strlen(name) >= PATH_MAX) {
        *ret_path = 0;
        return;
    }
    mkdir(ret_path, 0777); /* an error shows when the file is written; without a cache only time is lost */
    strcat(ret_path, "/hvtrain");
    mkdir(ret_path, 0777);
    strcat(ret_path, "/");
    strcat(ret_path, name);
}

void hvt__cache_path_of(const char *kind, const char *path, char ret_path[PATH_MAX])
{
    char real[PATH_MAX], name[80];

    *ret_path = 0;
    if (!realpath(path, real))
        return;
    snprintf(name, sizeof name, "%s-%016llx", kind, (unsigned long long)hvt__hash_text(HVT_HASH_INIT, real));
    hvt__cache_path(name, ret_path);
}

FILE *hvt__open_stream(const char *path, bool writes)
{
    int fd = open(path, (writes ? O_WRONLY | O_CREAT : O_RDONLY) | O_NONBLOCK | O_CLOEXEC, 0666), error;
    FILE *f;

    if (fd < 0)
        return NULL;
    f = fcntl(fd, F_SETFL, 0) == 0 ? fdopen(fd, writes ? "w" : "r") : NULL;
    error = errno;
    if (!f)
        close(fd);
    errno = error;
    return f;
}

hvt_status hvt__open_regular(const char *path, int *ret_fd, uint64_t *ret_bytes)
{
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    struct stat info;
    hvt_status s = HVT_OK;

    HVT_CHECK(fd >= 0, E_IO, "%s: %s", path, strerror(errno));
    HVT_CHECK_OR(fail, fstat(fd, &info) == 0, E_IO, "%s: %s", path, strerror(errno));
    HVT_CHECK_OR(fail, S_ISREG(info.st_mode), E_IO, "%s is %s, not a regular file", path,
                 S_ISDIR(info.st_mode)    ? "a folder"
                 : S_ISFIFO(info.st_mode) ? "a pipe"
                                          : "a device or socket");
    *ret_fd = fd;
    *ret_bytes = (uint64_t)info.st_size;
    return HVT_OK;
fail:
    close(fd);
    return s;
}

const char *hvt__stand_in(const void *head, size_t bytes)
{
    static const char again[] = "a web page; download the file again",
                      store[] = "an XML document, such as an object store's error; download the file again";
    static const struct {
        const char *begin, *what;
    } kinds[] = {{"version https://git-lfs.github.com/", "a Git LFS pointer; git lfs pull fetches the file"},
                 {"/annex/objects/", "a git-annex pointer; git annex get fetches the file"},
                 {"<!doctype html", again},
                 {"<html", again},
                 {"<?xml", store},
                 {"<error>", store},
                 {"{\"error\"", "an error message in JSON; download the file again"}};
    const char *text = head, *end = text + bytes;

    if (bytes >= 3 && !memcmp(text, "\xef\xbb\xbf", 3)) /* a byte-order mark */
        text += 3;
    while (text < end && strchr("\n\r\t ", *text) && *text)
        text++;
    for (size_t i = 0; i < HVT_LEN(kinds); i++) {
        const size_t n = strlen(kinds[i].begin);

        if ((size_t)(end - text) >= n && !strncasecmp(text, kinds[i].begin, n))
            return kinds[i].what;
    }
    return NULL;
}

/* flock(), because fcntl(F_SETLK)'s locks are lost when any code of the process closes a descriptor of the
 * file. */
bool hvt__file_lock(int fd, const char *flag, const char *path)
{
    static atomic_bool warned;
    int r;

    do
        r = flock(fd, LOCK_EX | LOCK_NB);
    while (r && errno == EINTR);
    if (r == 0)
        return true;
    if (errno == EWOULDBLOCK)
        return false;
    if (!atomic_exchange(&warned, true))
        HVT_WARN("%s %s: this file system has no working locks (%s), so two jobs that write there will not "
                 "detect each other",
                 flag, path, strerror(errno));
    return true;
}
