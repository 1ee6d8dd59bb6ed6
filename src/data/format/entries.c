/*
 * The contents of one folder.
 *
 * Names that begin with a dot, and those that operating systems and storage boxes leave behind, are not used.
 * A link counts as its target.
 */
#define _GNU_SOURCE
#include "entries.h"

#include <dirent.h>
#include <errno.h>
#include <strings.h>
#include <sys/vfs.h>

enum { NAMED = 5 };

/* ---- names ---- */

void hvt__names_free(hvt__names *names)
{
    free(names->text);
    free(names->at);
    *names = (hvt__names){0};
}

hvt_status hvt__names_grow(void *array, size_t n, size_t more, size_t *room, size_t size)
{
    void **at = array, *moved;
    size_t want = *room ? *room : 16;

    if (n + more <= *room)
        return HVT_OK;
    while (want < n + more)
        want *= 2;
    moved = realloc(*at, want * size);
    HVT_CHECK(moved, E_MEM, "no memory to list %zu files", n);
    *at = moved;
    *room = want;
    return HVT_OK;
}

hvt_status hvt__name_add(hvt__names *names, const char *name)
{
    size_t bytes = strlen(name) + 1;

    HVT_CHECK(names->used + bytes < UINT32_MAX, E_FORMAT, "%zu names of one folder are too many", names->n);
    HVT_TRY(hvt__names_grow(&names->at, names->n, 1, &names->at_room, sizeof *names->at));
    HVT_TRY(hvt__names_grow(&names->text, names->used, bytes, &names->text_room, 1));
    memcpy(names->text + names->used, name, bytes);
    names->at[names->n++] = (uint32_t)names->used;
    names->used += bytes;
    return HVT_OK;
}

static int by_name(const void *a, const void *b, void *text)
{
    return strcmp((char *)text + *(const uint32_t *)a, (char *)text + *(const uint32_t *)b);
}

static void sort_names(hvt__names *names)
{
    if (names->n)
        qsort_r(names->at, names->n, sizeof *names->at, by_name, names->text);
}

uint32_t hvt__name_find(const hvt__names *sorted, const char *name)
{
    size_t low = 0, high = sorted->n;

    while (low < high) {
        size_t middle = (low + high) / 2;
        int order = strcmp(hvt__name_at(sorted, middle), name);

        if (order == 0)
            return (uint32_t)middle;
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return UINT32_MAX;
}

void hvt__names_text(const hvt__names *names, char *ret_text, size_t room)
{
    size_t used = 0;

    *ret_text = 0;
    for (size_t i = 0; i < names->n && i < NAMED && used < room; i++)
        used += (size_t)snprintf(ret_text + used, room - used, "%s%s", i ? ", " : "", hvt__name_at(names, i));
    if (names->n > NAMED && used < room)
        snprintf(ret_text + used, room - used, " and %zu more", names->n - NAMED);
}

/* ---- kinds of entries ---- */

static bool ends_in(const char *name, const char *const *suffix, size_t n)
{
    const char *dot = strrchr(name, '.');

    for (size_t i = 0; dot && i < n; i++)
        if (!strcasecmp(dot, suffix[i]))
            return true;
    return false;
}

bool hvt__is_picture_name(const char *name)
{
    static const char *const suffix[] = {".jpg", ".jpeg", ".png",  ".ppm", ".pgm",
                                         ".pbm", ".bmp",  ".webp", ".tif", ".tiff"};

    return ends_in(name, suffix, HVT_LEN(suffix));
}

static bool is_other_picture(const char *name)
{
    static const char *const suffix[] = {".heic", ".heif", ".avif", ".gif", ".jxl", ".jp2", ".j2k"};

    return ends_in(name, suffix, HVT_LEN(suffix));
}

static bool is_table(const char *name)
{
    static const char *const suffix[] = {".csv", ".tsv"};

    return ends_in(name, suffix, HVT_LEN(suffix));
}

static bool is_hidden(const char *name)
{
    static const char *const of_system[] = {"__MACOSX",
                                            "@eaDir",
                                            "#recycle",
                                            "lost+found",
                                            "$RECYCLE.BIN",
                                            "RECYCLER",
                                            "System Volume Information"};

    for (size_t i = 0; i < HVT_LEN(of_system); i++)
        if (!strcmp(name, of_system[i]))
            return true;
    return *name == '.';
}

void hvt__unused_add(hvt__unused *unused, hvt__unused_kind kind, uint64_t n, const char *name)
{
    if (n && !unused->n[kind])
        snprintf(unused->first[kind], sizeof unused->first[kind], "%s", name);
    unused->n[kind] += n;
}

/* ---- a folder ---- */

/* Finds an entry's type: DT_DIR, DT_REG or another; DT_UNKNOWN for a broken link. */
static hvt_status type_of(int fd, const char *path, const struct dirent *e, int *ret_type)
{
    struct stat info;

    *ret_type = e->d_type;
    if (e->d_type != DT_UNKNOWN && e->d_type != DT_LNK)
        return HVT_OK;
    if (fstatat(fd, e->d_name, &info, 0) == 0) {
        *ret_type = IFTODT(info.st_mode);
        return HVT_OK;
    }
    *ret_type = DT_UNKNOWN;
    HVT_CHECK(errno == ENOENT || errno == ELOOP || errno == ENOTDIR || errno == ENAMETOOLONG, E_IO,
              "%s/%s: %s", path, e->d_name, strerror(errno));
    return HVT_OK;
}

static hvt_status sort_entry(int fd, const char *path, const struct dirent *e, hvt__entries *to)
{
    const char *name = e->d_name;
    int type;

    if (!strcmp(name, ".") || !strcmp(name, "..") || !strncmp(name, ".hvtrain-index", 14))
        return HVT_OK;
    if (is_hidden(name)) {
        hvt__unused_add(&to->unused, HVT__UNUSED_HIDDEN, 1, name);
        return HVT_OK;
    }
    HVT_TRY(type_of(fd, path, e, &type));
    if (type == DT_DIR)
        return hvt__name_add(&to->folders, name);
    if (type == DT_UNKNOWN) {
        if (!*to->dead_link && !hvt__is_picture_name(name))
            snprintf(to->dead_link, sizeof to->dead_link, "%s", name);
        hvt__unused_add(&to->unused, HVT__UNUSED_LINK, 1, name);
        return HVT_OK;
    }
    if (hvt__is_picture_name(name) && type == DT_REG)
        return hvt__name_add(&to->pictures, name);
    hvt__unused_add(&to->unused,
                    is_table(name)           ? HVT__UNUSED_TABLE
                    : is_other_picture(name) ? HVT__UNUSED_OTHER_PICTURE
                                             : HVT__UNUSED_FILE,
                    1, name);
    return HVT_OK;
}

hvt_status hvt__entries_read(const char *path, hvt__entries *ret_entries)
{
    hvt__entries all = {0};
    DIR *dir = opendir(path);
    struct dirent *e;
    struct stat info;
    hvt_status s = HVT_OK;

    HVT_CHECK(dir || errno != ENOTDIR, E_IO, "%s is a file, expected a folder%s", path,
              hvt__is_picture_name(path) ? "; name the folder that this picture is in" : "");
    HVT_CHECK(dir, E_IO, "%s: %s", path, strerror(errno));
    HVT_CHECK_OR(done, fstat(dirfd(dir), &info) == 0, E_IO, "%s: %s", path, strerror(errno));
    all.state = hvt__folder_state_of(&info);
    while (hvt__progressed(), errno = 0, (e = readdir(dir)))
        HVT_TRY_OR(done, sort_entry(dirfd(dir), path, e, &all));
    HVT_CHECK_OR(done, !errno, E_IO, "%s: %s", path, strerror(errno));
    sort_names(&all.folders);
    sort_names(&all.pictures);
    *ret_entries = all;
done:
    closedir(dir);
    if (s)
        hvt__entries_free(&all);
    return s;
}

void hvt__entries_free(hvt__entries *e)
{
    hvt__names_free(&e->folders);
    hvt__names_free(&e->pictures);
}

hvt__fs_kind hvt__fs_kind_of(const char *path)
{
    static const uint32_t images[] = {0x73717368 /* squashfs */, 0x9660 /* ISO 9660 */,
                                      0x28cd3d45 /* cramfs */, 0xe0f5e1e2 /* EROFS */};
    const uint32_t fuse = 0x65735546;
    struct statfs fs;

    if (statfs(path, &fs))
        return HVT__FS_PROGRAM;
    for (size_t i = 0; i < HVT_LEN(images); i++)
        if ((uint32_t)fs.f_type == images[i])
            return HVT__FS_IMAGE;
    return (uint32_t)fs.f_type == fuse ? HVT__FS_PROGRAM : HVT__FS_PLAIN;
}
