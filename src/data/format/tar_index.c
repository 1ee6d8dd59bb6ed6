/*
 * The index of a shard as a file beside it, SHARD.hvtindex, so that a shard is scanned only once.
 *
 * The file is the index as it is in memory. It is valid if its hash is right, its numbers are within bounds,
 * and the shard still has its size, its time of modification (which copies keep and programs can set) and its
 * time of status change; otherwise the shard is scanned again. It is written under a temporary name and
 * renamed, so that no reader sees an incomplete file; if it cannot be written, the index is in memory only.
 */
#include "entries.h"
#include "tar_index.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stddef.h>
#include <sys/stat.h>
#include <unistd.h>

static const char magic[8] = {'h', 'v', 't', 't', 'a', 'r', '0', '4'};

static uint64_t hash_of(const hvt__tar_index *x)
{
    size_t skipped = offsetof(hvt__tar_index, tar_bytes);

    return hvt__hash(HVT_HASH_INIT, (const char *)x + skipped, hvt__tar_index_bytes(x) - skipped);
}

static bool sample_is_valid(const hvt__tar_index *x, const hvt__tar_sample *s)
{
    bool labelled = x->labelled && s->label >= 0 && (uint32_t)s->label < x->classes;

    return s->bytes > 0 && s->at <= x->tar_bytes && (s->map || s->bytes <= x->tar_bytes - s->at) &&
           s->name < x->name_bytes && s->map < x->name_bytes && s->pixels <= 1 &&
           (labelled || (!x->labelled && s->label == -1)) && !s->mask_bytes == !x->masked &&
           s->mask_at <= x->tar_bytes && s->mask_bytes <= x->tar_bytes - s->mask_at;
}

bool hvt__tar_index_valid(const hvt__tar_index *x, size_t bytes)
{
    if (bytes < sizeof *x || memcmp(x->magic, magic, sizeof magic) || bytes != hvt__tar_index_bytes(x) ||
        x->hash != hash_of(x))
        return false;
    if (!x->count || !x->name_bytes || x->classes > INT_MAX || (x->labelled && x->labelled != x->count) ||
        (x->masked && x->masked != x->count) || hvt__tar_names(x)[x->name_bytes - 1])
        return false;
    for (uint32_t i = 0; i < x->count; i++)
        if (!sample_is_valid(x, &hvt__tar_samples(x)[i]))
            return false;
    return true;
}

static int64_t time_of(const struct stat *info)
{
    return (int64_t)info->st_mtim.tv_sec * 1000000000 + info->st_mtim.tv_nsec;
}

static int64_t change_of(const struct stat *info)
{
    return (int64_t)info->st_ctim.tv_sec * 1000000000 + info->st_ctim.tv_nsec;
}

bool hvt__tar_is_as_indexed(int fd, const hvt__tar_index *x, uint64_t *ret_bytes)
{
    struct stat info;

    if (fstat(fd, &info))
        return false;
    *ret_bytes = (uint64_t)info.st_size;
    return (uint64_t)info.st_size == x->tar_bytes && time_of(&info) == x->tar_time;
}

/* True if the index was made from this copy of the shard. Copies of the same size and modification time may
 * differ, for example in labels. */
static bool is_current(const hvt__data_file *f, const hvt__tar_index *x)
{
    struct stat info;
    uint64_t bytes;

    return hvt__tar_is_as_indexed(f->fd, x, &bytes) && !fstat(f->fd, &info) &&
           change_of(&info) == x->tar_change && hvt__fs_kind_of(f->path) != HVT__FS_IMAGE;
}

/* Loads the file at `path`, malloc'ed; NULL if it is missing or invalid. */
static hvt__tar_index *load(const char *path)
{
    hvt__data_file f = {.fd = -1};
    hvt__tar_index *x = NULL;

    if (access(path, R_OK) || hvt__data_open(&f, "%s", path))
        return NULL;
    if (f.bytes >= sizeof *x && f.bytes <= SIZE_MAX / 2)
        x = malloc((size_t)f.bytes);
    if (x && (hvt__data_read(&f, 0, (size_t)f.bytes, x, (hvt__data_unit){"byte", 0, f.bytes}) ||
              !hvt__tar_index_valid(x, (size_t)f.bytes))) {
        free(x);
        x = NULL;
    }
    hvt__data_close(&f);
    return x;
}

static bool write_all(int fd, const void *bytes, size_t n)
{
    for (size_t done = 0; done < n;) {
        ssize_t wrote = write(fd, (const char *)bytes + done, n - done);
        if (wrote < 0 && errno == EINTR)
            continue;
        if (wrote <= 0)
            return false;
        done += (size_t)wrote;
    }
    return true;
}

static bool save(const char *path, const hvt__tar_index *x)
{
    char fresh[PATH_MAX];
    int fd;

    if (!*path || snprintf(fresh, sizeof fresh, "%s.%d.tmp", path, (int)getpid()) >= (int)sizeof fresh)
        return false;
    fd = open(fresh, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0)
        return false;
    bool wrote = write_all(fd, x, hvt__tar_index_bytes(x));
    wrote = close(fd) == 0 && wrote && rename(fresh, path) == 0;
    if (!wrote)
        unlink(fresh);
    return wrote;
}

/* A shard that has become shorter was probably truncated by a copy; the scan might not notice. */
static hvt_status refuse_shorter(const hvt__data_file *f, const hvt__tar_index *old, const char *index_path)
{
    HVT_CHECK(f->bytes >= old->tar_bytes, E_FORMAT,
              "%s: has %" PRIu64 " bytes, but had %" PRIu64
              " when it was indexed: it was truncated; if it was replaced, remove %s",
              f->path, f->bytes, old->tar_bytes, index_path);
    return HVT_OK;
}

static hvt_status scan_and_save(const hvt__data_file *f, const char *index_path, hvt__tar_index **ret_index)
{
    char cache[PATH_MAX];
    hvt__tar_index *x;
    struct stat before, after;

    HVT_CHECK(fstat(f->fd, &before) == 0, E_IO, "%s: %s", f->path, strerror(errno));
    HVT_TRY(hvt__tar_scan(f, &x));
    memcpy(x->magic, magic, sizeof magic);
    x->tar_bytes = f->bytes;
    x->tar_time = time_of(&before);
    x->tar_change = change_of(&before);
    x->hash = hash_of(x);
    if (fstat(f->fd, &after) || after.st_size != before.st_size || time_of(&after) != time_of(&before)) {
        free(x);
        return HVT_FAIL(E_IO, "%s: was written to while it was indexed", f->path);
    }
    if (!save(index_path, x)) { /* if that fails, too, the index is in memory only */
        hvt__cache_path_of("shard", f->path, cache);
        save(cache, x);
    }
    *ret_index = x;
    return HVT_OK;
}

/* The index of this copy of the shard, if one is stored; otherwise NULL. */
static hvt__tar_index *load_current(const hvt__data_file *f, hvt__tar_index *beside)
{
    char cache[PATH_MAX];
    hvt__tar_index *x;

    if (beside && is_current(f, beside))
        return beside;
    hvt__cache_path_of("shard", f->path, cache);
    x = *cache ? load(cache) : NULL;
    if (x && is_current(f, x))
        return x;
    free(x);
    return NULL;
}

hvt_status hvt__tar_index_open(const char *path, hvt__tar_index **ret_index, hvt__tar_found *ret_found)
{
    char index_path[PATH_MAX];
    hvt__tar_index *old = NULL, *kept;
    hvt__data_file f;
    hvt_status s = HVT_OK;

    HVT_TRY(hvt__path(index_path, "%s.hvtindex", path));
    HVT_TRY(hvt__data_open(&f, "%s", path));
    old = load(index_path);
    kept = load_current(&f, old);
    if (kept) {
        *ret_found = HVT__TAR_KEPT;
        *ret_index = kept;
        old = kept == old ? NULL : old;
        goto done;
    }
    *ret_found = access(index_path, F_OK) == 0 ? HVT__TAR_CHANGED : HVT__TAR_NEW;
    if (old)
        HVT_TRY_OR(done, refuse_shorter(&f, old, index_path));
    HVT_TRY_OR(done, scan_and_save(&f, index_path, ret_index));
done:
    free(old);
    hvt__data_close(&f);
    return s;
}
