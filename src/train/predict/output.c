/*
 * Files that replace earlier ones only when they are complete: written beside them, synced, renamed. A target
 * that cannot be renamed over (stdout, a pipe, a device) is written directly.
 */
#include "predict_impl.h"
#include "base_impl.h"

#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

static hvt_status failed(const hvt__output *o, const char *what)
{
    return HVT_FAIL(E_IO, "%s %s: cannot %s: %s", o->flag, o->path, what, strerror(errno ? errno : EIO));
}

hvt_status hvt__output_open(hvt__output *o, hvt__own_file kind, const char *flag, const char *path)
{
    struct stat info;
    bool special = hvt__is_stream_path(path) || (stat(path, &info) == 0 && !S_ISREG(info.st_mode));

    HVT_TRY(hvt__own_file_check(kind, flag, path));
    *o = (hvt__output){.flag = flag, .path = path};
    if (!special)
        HVT_TRY(hvt__path(o->temp, "%s.tmp", path));
    errno = 0;
    if (!strcmp(path, "-") || !strcmp(path, "/dev/stdout")) {
        int fd = dup(STDOUT_FILENO);

        o->file = fd < 0 ? NULL : fdopen(fd, "w");
    } else {
        o->file = special ? hvt__open_stream(path, true) : fopen(o->temp, "we");
    }
    if (!o->file)
        return failed(o, "write");
    if (*o->temp)
        hvt__signals_temp(o->temp, true);
    return HVT_OK;
}

hvt_status hvt__output_put(hvt__output *o, const void *data, size_t bytes)
{
    errno = 0;
    return fwrite(data, 1, bytes, o->file) == bytes ? HVT_OK : failed(o, "write");
}

hvt_status hvt__output_finish(hvt__output *o)
{
    FILE *f = o->file;
    bool written;

    errno = 0;
    written = fflush(f) == 0 && (!*o->temp || fsync(fileno(f)) == 0);
    o->file = NULL;
    return fclose(f) == 0 && written ? HVT_OK : failed(o, "write");
}

hvt_status hvt__output_replace(hvt__output *o)
{
    errno = 0;
    if (*o->temp && rename(o->temp, o->path))
        return failed(o, "replace");
    *o->temp = 0;
    hvt__signals_temp(o->temp, false);
    return HVT_OK;
}

void hvt__output_drop(hvt__output *o)
{
    if (o->file)
        fclose(o->file);
    o->file = NULL;
    if (*o->temp)
        unlink(o->temp);
    *o->temp = 0;
    hvt__signals_temp(o->temp, false);
}
