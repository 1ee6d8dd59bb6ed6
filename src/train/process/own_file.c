/*
 * The kinds of files that hvtrain writes under a name of the user's, recognised by their first bytes. A run
 * replaces only a file of the same kind, so that a mistyped name costs no log, table or photo.
 */
#include "process_impl.h"
#include "base_impl.h"

#include <errno.h>
#include <sys/stat.h>

static const struct {
    const char *name, *head, *also; /* also: must occur soon after the head */
} kinds[] = {
    [HVT__LOG] = {"a log", "{\"record\":", ""},
    [HVT__PREDICTIONS] = {"a table of predictions", "index,file,label", ""},
    [HVT__LOGITS] = {"an array of logits", "\x93NUMPY", "f4', 'fortran_order': False"},
    [HVT__PAGE] = {"a report",
                   "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>hvtrain report: ",
                   ""},
    [HVT__PICTURE] = {"a picture of curves", "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 ",
                      ">\n<style>"},
    [HVT__TIMELINE] = {"a timeline", "[\n{\"name\":\"process_sort_index\"", ""},
    [HVT__TUNED] = {"a result of tune", "{\n \"note\": \"hvtrain tune: ", ""},
};

bool hvt__is_stream_path(const char *path)
{
    return !strcmp(path, "-") || !strcmp(path, "/dev/stdout") || !strcmp(path, "/dev/stderr") ||
           !strncmp(path, "/dev/fd/", 8) || !strncmp(path, "/proc/", 6);
}

/* Reads the beginning of a regular file, with a 0 behind it. False, with errno set, if that fails. */
static bool read_begin(const char *path, char *ret_text, size_t bytes, size_t *ret_n)
{
    FILE *f = fopen(path, "re");
    int error;

    if (!f)
        return false;
    errno = 0;
    *ret_n = fread(ret_text, 1, bytes - 1, f);
    ret_text[*ret_n] = 0;
    error = ferror(f) ? errno : 0;
    fclose(f);
    errno = error;
    return !error;
}

static bool is_kind(hvt__own_file kind, const char *text, size_t n)
{
    size_t head = strlen(kinds[kind].head), also = strlen(kinds[kind].also);

    if (n < head || memcmp(text, kinds[kind].head, head) != 0)
        return false;
    for (size_t i = head; i + also <= n; i++)
        if (!memcmp(text + i, kinds[kind].also, also))
            return true;
    return false;
}

enum { BEGIN = 300 };

bool hvt__is_own_file(hvt__own_file kind, const char *path)
{
    char text[BEGIN];
    struct stat info;
    size_t n;

    return stat(path, &info) == 0 && S_ISREG(info.st_mode) && read_begin(path, text, sizeof text, &n) &&
           is_kind(kind, text, n);
}

hvt_status hvt__own_file_check(hvt__own_file kind, const char *flag, const char *path)
{
    char text[BEGIN];
    struct stat info;
    size_t n = 0;

    if (hvt__is_stream_path(path) || stat(path, &info) || !S_ISREG(info.st_mode) || !info.st_size)
        return HVT_OK;
    HVT_CHECK(read_begin(path, text, sizeof text, &n), E_IO,
              "%s %s: this file exists, but cannot be read to see what it holds: %s", flag, path,
              strerror(errno));
    /* a killed run may have written only a part of the head */
    HVT_CHECK(is_kind(kind, text, n) || (n < strlen(kinds[kind].head) && !memcmp(text, kinds[kind].head, n)),
              E_IO,
              "%s %s: this file exists, but hvtrain did not write it as %s; name another file or remove "
              "this one",
              flag, path, kinds[kind].name);
    return HVT_OK;
}
