/*
 * The files of a data set: found in the folder of their unpacked archive, opened once, read by pread().
 *
 * An image is one pread() from the page cache: one or two microseconds more than from a mapping, compared
 * with a millisecond of training. With a mapping, a truncated file or a failing disk would be a SIGBUS; here
 * both are an error that names the file and the record.
 */
#include "data/data_impl.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <unistd.h>

hvt_status hvt__data_folder(const hvt__archive *a, const char *dir, const char *file,
                            char ret_folder[PATH_MAX])
{
    char path[PATH_MAX];

    HVT_CHECK(dir && *dir, E_ARG, "data set %s needs --data-dir, the folder with %s", a->set, file);
    HVT_TRY(hvt__path(path, "%s/%s", dir, file));
    if (access(path, F_OK) == 0)
        return hvt__path(ret_folder, "%s", dir);
    HVT_TRY(hvt__path(path, "%s/%s/%s", dir, a->folder, file));
    HVT_CHECK(access(path, F_OK) == 0, E_IO,
              "found neither %s/%s nor %s: %s; expected the binary version of %s, %s, unpacked", dir, file,
              path, strerror(errno), a->title, a->file);
    return hvt__path(ret_folder, "%s/%s", dir, a->folder);
}

void hvt__data_close(hvt__data_file *f)
{
    if (f->fd >= 0)
        close(f->fd);
    f->fd = -1;
}

/* Refuses a file that stands in for the wanted one (a pointer, a page, an error), and closes it. */
static hvt_status refuse_stand_in(hvt__data_file *f)
{
    char head[HVT__HEAD];
    ssize_t n = pread(f->fd, head, sizeof head, 0);
    const char *what = n > 0 ? hvt__stand_in(head, (size_t)n) : NULL;

    if (what)
        hvt__data_close(f);
    HVT_CHECK(!what, E_FORMAT, "%s is %s", f->path, what);
    return HVT_OK;
}

hvt_status hvt__data_open(hvt__data_file *f, const char *fmt, ...)
{
    va_list ap;
    int bytes;

    va_start(ap, fmt);
    bytes = vsnprintf(f->path, sizeof f->path, fmt, ap);
    va_end(ap);
    f->fd = -1;
    HVT_CHECK(bytes < (int)sizeof f->path, E_IO, "%.200s...: the name is too long", f->path);
    HVT_TRY(hvt__open_regular(f->path, &f->fd, &f->bytes));
    return refuse_stand_in(f);
}

hvt_status hvt__data_read(const hvt__data_file *f, uint64_t at, size_t bytes, void *ret_bytes,
                          hvt__data_unit unit)
{
    size_t got = 0;

    while (got < bytes) {
        ssize_t n = pread(f->fd, (char *)ret_bytes + got, bytes - got, (off_t)(at + got));

        if (n < 0 && errno == EINTR)
            continue;
        HVT_CHECK(n >= 0, E_IO, "%s: cannot read %s %" PRIu64 ": %s", f->path, unit.name, unit.number,
                  strerror(errno));
        HVT_CHECK(n > 0, E_IO,
                  "%s: ends in %s %" PRIu64 " of %" PRIu64 ": it was truncated after it was opened", f->path,
                  unit.name, unit.number, unit.count);
        got += (size_t)n;
        hvt__progressed();
    }
    return HVT_OK;
}
