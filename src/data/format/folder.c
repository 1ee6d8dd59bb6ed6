/*
 * A folder of picture files: DIR/train/CLASS/... and DIR/val/CLASS/..., as torchvision's ImageFolder is used
 * for ImageNet, or DIR/CLASS/... alone (splits.c). Labels are indices of the sorted classes of training.
 * Pictures directly in a folder are unlabelled. Beside masks/, images/ has a mask for each of its pictures.
 *
 * Paths come from a listing (listing.h), which the ranks of a host share. A file is opened, read whole and
 * closed. The first read by any rank of the host records size and times: a file that differs later is an
 * error, because the run could not be repeated.
 */
#include "data/data_impl.h"
#include "listing.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

enum { FILE_MAX = 1 << 30 };

typedef struct folder {
    char root[PATH_MAX], masks[PATH_MAX]; /* masks: the folder of masks; "": none */
    hvt__listing list;
    hvt__class_list names; /* names of the masks' classes */
} folder;

static void close_folder(void *ctx)
{
    folder *f = ctx;

    hvt__listing_close(&f->list);
    hvt__class_list_free(&f->names);
    free(f);
}

static hvt_status name_folder(void *ctx, uint32_t index, char *ret_name, size_t room)
{
    const folder *f = ctx;
    const hvt__listing *l = &f->list;
    const char *inside = l->text + l->folder_name[hvt__listing_folder(l, index)];

    if (snprintf(ret_name, room, "%s/%s%s%s", f->root, inside, *inside ? "/" : "",
                 l->text + l->file_name[index]) >= (int)room)
        memcpy(ret_name + room - 4, "...", 4); /* the name is cut */
    return HVT_OK;
}

static int label_folder(void *ctx, uint32_t index)
{
    const folder *f = ctx;
    const hvt__listing *l = &f->list;

    return l->classes && !*f->masks ? (int)l->folder_class[hvt__listing_folder(l, index)] : -1;
}

static const char *class_of_folder(void *ctx, int label)
{
    const folder *f = ctx;

    if (*f->masks)
        return hvt__class_list_at(&f->names, label);
    return f->list.text + f->list.class_name[label];
}

static hvt_status open_picture(const char *path, int *ret_fd, struct stat *ret_info)
{
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    hvt_status s = HVT_OK;

    HVT_CHECK(fd >= 0 || errno != ENOENT, E_IO, "%s: removed since the folder was listed", path);
    HVT_CHECK(fd >= 0, E_IO, "%s: %s", path, strerror(errno));
    HVT_CHECK_OR(fail, fstat(fd, ret_info) == 0, E_IO, "%s: %s", path, strerror(errno));
    HVT_CHECK_OR(fail, S_ISREG(ret_info->st_mode), E_FORMAT, "%s is no regular file", path);
    HVT_CHECK_OR(fail, ret_info->st_size > 0, E_FORMAT, "%s is empty", path);
    HVT_CHECK_OR(fail, ret_info->st_size <= FILE_MAX, E_FORMAT, "%s holds %lld bytes, expected at most %d",
                 path, (long long)ret_info->st_size, FILE_MAX);
    *ret_fd = fd;
    return HVT_OK;
fail:
    close(fd);
    return s;
}

/* Checks that this is the file that was read before. */
static hvt_status check_same(const folder *f, uint32_t index, const char *path, const struct stat *info)
{
    uint64_t changed = (uint64_t)info->st_mtim.tv_sec * 1000000000 + (uint64_t)info->st_mtim.tv_nsec;
    uint32_t now = (uint32_t)hvt__mix(changed ^ hvt__mix((uint64_t)info->st_size)) | 1, was = 0;

    if (atomic_compare_exchange_strong_explicit(&f->list.seen[index], &was, now, memory_order_relaxed,
                                                memory_order_relaxed))
        return HVT_OK;
    HVT_CHECK(was == now, E_IO, "%s: changed since this run first read it", path);
    return HVT_OK;
}

static hvt_status read_whole(const char *path, int fd, hvt_record *r)
{
    size_t got = 0;

    while (got < r->bytes) {
        ssize_t n = pread(fd, r->data + got, r->bytes - got, (off_t)got);

        if (n < 0 && errno == EINTR)
            continue;
        HVT_CHECK(n >= 0, E_IO, "%s: %s", path, strerror(errno));
        HVT_CHECK(n > 0, E_IO, "%s: ends after %zu of %zu bytes: it was truncated while it was read", path,
                  got, r->bytes);
        got += (size_t)n;
        hvt__progressed();
    }
    return HVT_OK;
}

static hvt_status read_folder(void *ctx, uint32_t index, hvt_record *r)
{
    const folder *f = ctx;
    char path[PATH_MAX];
    struct stat info;
    hvt_status s;
    int fd = -1;

    name_folder(ctx, index, path, sizeof path);
    r->label = label_folder(ctx, index);
    r->encoding = HVT_IMAGE_FILE;
    HVT_TRY(open_picture(path, &fd, &info));
    HVT_TRY_OR(done, check_same(f, index, path, &info));
    HVT_TRY_OR(done, hvt_record_reserve(r, (size_t)info.st_size));
    HVT_TRY_OR(done, read_whole(path, fd, r));
done:
    close(fd);
    return s;
}

static hvt_status name_mask(void *ctx, uint32_t index, char *ret_name, size_t room)
{
    const folder *f = ctx;
    const hvt__listing *l = &f->list;
    const char *inside = l->text + l->folder_name[hvt__listing_folder(l, index)],
               *name = l->text + l->file_name[index], *dot = strrchr(name, '.');
    const int stem = dot ? (int)(dot - name) : (int)strlen(name);

    if (snprintf(ret_name, room, "%s/%s%s%.*s.png", f->masks, inside, *inside ? "/" : "", stem, name) >=
        (int)room)
        memcpy(ret_name + room - 4, "...", 4); /* the name is cut */
    return HVT_OK;
}

static hvt_status mask_folder(void *ctx, uint32_t index, hvt_record *r)
{
    char path[PATH_MAX], picture[PATH_MAX];
    struct stat info;
    hvt_status s;
    int fd = -1;

    name_mask(ctx, index, path, sizeof path);
    name_folder(ctx, index, picture, sizeof picture);
    r->encoding = HVT_IMAGE_FILE;
    HVT_CHECK(access(path, F_OK) == 0 || errno != ENOENT, E_IO, "%s: there is no mask for %s", path, picture);
    HVT_TRY(open_picture(path, &fd, &info));
    HVT_TRY_OR(done, hvt_record_reserve(r, (size_t)info.st_size));
    HVT_TRY_OR(done, read_whole(path, fd, r));
done:
    close(fd);
    return s;
}

static void ahead_folder(void *ctx, uint32_t index)
{
    char path[PATH_MAX];
    int fd;

    name_folder(ctx, index, path, sizeof path);
    fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return; /* reading it will report the error */
    posix_fadvise(fd, 0, 0, POSIX_FADV_WILLNEED);
    close(fd);
}

/* Rank 0 finds the split for all ranks. */
static hvt_status find_split(const hvt_dataset_opts *opts, hvt__split *ret_split)
{
    hvt_world *w = opts->world;
    hvt_status s = hvt_world_rank(w) == 0 ? hvt__split_find(opts, ret_split) : HVT_OK;

    if (!w)
        return s;
    HVT_TRY(hvt_world_agree(w, s));
    return hvt_world_broadcast(w, ret_split, sizeof *ret_split, 0);
}

static hvt_status check_classes(const folder *f, bool train)
{
    uint32_t n = f->list.classes;

    if (*f->masks)
        return HVT_OK;
    HVT_CHECK(n || !train, E_FORMAT,
              "%s: has pictures but no class folders to train on (labels are folder names; tables such as "
              ".csv are not read); use --evaluate --predict for unlabelled pictures",
              f->root);
    HVT_CHECK(n != 1 || !train, E_FORMAT,
              "%s: 1 class (%s), at least 2 are needed; if that folder holds the classes: --data-dir %s/%s",
              f->root, f->list.text + f->list.class_name[0], f->root, f->list.text + f->list.class_name[0]);
    HVT_CHECK(n <= INT_MAX, E_FORMAT, "%s: %u classes are too many", f->root, n);
    return HVT_OK;
}

static hvt_status open_folder(const hvt_dataset_opts *opts, hvt_source *ret_source)
{
    hvt__split split = {"", "", ""};
    hvt_dataset_info info = {"folder", .channels = 3, .type = HVT_U8};
    folder *f = calloc(1, sizeof *f);
    hvt_status s = f ? HVT_OK : HVT_FAIL(E_MEM, "no memory for data set 'folder' (%zu bytes)", sizeof *f);

    if (opts->world)
        s = hvt_world_agree(opts->world, s);
    HVT_TRY_OR(fail, s);
    HVT_TRY_OR(fail, find_split(opts, &split));
    memcpy(f->root, split.root, sizeof f->root);
    if (!opts->reconstruct)
        memcpy(f->masks, split.masks, sizeof f->masks);
    info.masks = *f->masks;
    HVT_TRY_OR(fail, hvt__listing_open(&(hvt__listed){split.root, info.masks ? split.root : split.classes_of,
                                                      opts->flat || opts->reconstruct || info.masks},
                                       opts->world, &f->list));
    HVT_TRY_OR(fail, check_classes(f, opts->train && !(opts->val_split > 0) && !opts->reconstruct));
    info.count = f->list.files;
    info.classes = (int)f->list.classes;
    info.unlabelled = !f->list.classes || info.masks;
    info.fingerprint = f->list.fingerprint;
    if (info.masks) {
        HVT_TRY_OR(fail, hvt__class_list_read(opts->dir, HVT__CLASSES_FILE, &f->names));
        info.classes = f->names.n > opts->classes ? f->names.n : opts->classes;
        info.fingerprint = hvt__mix(info.fingerprint);
    }
    *ret_source = (hvt_source){.info = info,
                               .read = read_folder,
                               .label = label_folder,
                               .name = name_folder,
                               .mask = info.masks ? mask_folder : NULL,
                               .mask_name = info.masks ? name_mask : NULL,
                               .ahead = ahead_folder,
                               .class_name = class_of_folder,
                               .close = close_folder,
                               .ctx = f};
    return HVT_OK;
fail:
    if (f)
        close_folder(f);
    return s;
}

const hvt_format hvt_format_folder = {"folder", open_folder};
