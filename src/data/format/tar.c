/*
 * WebDataset's shards as a data set: DIR/train-*.tar and DIR/val-*.tar.
 *
 * Samples are in the order of the shards' names, and within a shard in the order of their images. An image is
 * one pread() at its offset from the index, so any order of samples costs the same. Shards stay open up to
 * half of the files that this process may open; further shards are opened for each image. Each read checks
 * that the shard is still the one that was indexed. Labels are numbers; a file classes.txt beside the shards
 * has their names.
 */
#include "npy.h"
#include "shards.h"
#include "tar_sparse.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <unistd.h>

typedef struct tar {
    hvt__shard_set set;
    const hvt__shards *shards; /* the set's block */
    uint64_t kept;             /* shards below this number stay open */
    atomic_int *fd;            /* [kept] -1: not open yet */
    hvt__class_list names;
} tar;

static void close_tar(void *ctx)
{
    tar *t = ctx;

    for (uint64_t i = 0; t->fd && i < t->kept; i++)
        if (t->fd[i] >= 0)
            close(t->fd[i]);
    free(t->fd);
    hvt__class_list_free(&t->names);
    hvt__shards_close(&t->set);
    free(t);
}

static uint64_t shard_of(const tar *t, uint32_t index)
{
    uint64_t low = 0, high = t->shards->shards;

    while (high - low > 1) {
        uint64_t middle = low + (high - low) / 2;
        if (hvt__shard_at(t->shards, middle)->first <= index)
            low = middle;
        else
            high = middle;
    }
    return low;
}

static const hvt__tar_sample *sample_of(const tar *t, uint32_t index, uint64_t *ret_shard)
{
    uint64_t i = shard_of(t, index);

    *ret_shard = i;
    return &hvt__tar_samples(hvt__shard_index(t->shards, i))[index - hvt__shard_at(t->shards, i)->first];
}

/* Opens shard i, or uses what another thread has opened. */
static hvt_status open_shard(const tar *t, uint64_t i, hvt__data_file *ret_file)
{
    int none = -1;

    if (i < t->kept && (ret_file->fd = t->fd[i]) >= 0) {
        HVT_TRY(hvt__path(ret_file->path, "%s", hvt__shard_path(t->shards, i)));
    } else {
        HVT_TRY(hvt__data_open(ret_file, "%s", hvt__shard_path(t->shards, i)));
        if (i < t->kept && !atomic_compare_exchange_strong(&t->fd[i], &none, ret_file->fd)) {
            hvt__data_close(ret_file);
            ret_file->fd = none;
        }
    }
    ret_file->bytes = hvt__shard_index(t->shards, i)->tar_bytes;
    return HVT_OK;
}

static void leave_shard(const tar *t, uint64_t i, hvt__data_file *f)
{
    if (i >= t->kept)
        hvt__data_close(f);
}

static hvt_status read_bytes(const tar *t, uint64_t i, const hvt__data_file *f, uint64_t at, size_t bytes,
                             void *ret_bytes)
{
    const hvt__tar_index *x = hvt__shard_index(t->shards, i);
    uint64_t now = 0;

    HVT_CHECK(hvt__tar_is_as_indexed(f->fd, x, &now), E_IO,
              "%s: changed after it was indexed: it has %" PRIu64 " bytes, and had %" PRIu64, f->path, now,
              x->tar_bytes);
    return hvt__data_read(f, at, bytes, ret_bytes, (hvt__data_unit){"byte", at, x->tar_bytes});
}

static const char *name_of(const tar *t, uint64_t i, const hvt__tar_sample *s)
{
    return hvt__tar_names(hvt__shard_index(t->shards, i)) + s->name;
}

/* Reads a member as it was packed. */
static hvt_status read_whole(const tar *t, uint64_t i, const hvt__data_file *f, const hvt__tar_sample *s,
                             hvt_record *r)
{
    HVT_TRY(hvt_record_reserve(r, s->bytes));
    if (!s->map)
        return read_bytes(t, i, f, s->at, s->bytes, r->data);
    HVT_TRY(read_bytes(t, i, f, s->at, 0, NULL));
    return hvt__tar_read_sparse(f, hvt__tar_names(hvt__shard_index(t->shards, i)) + s->map, s->at, s->bytes,
                                r->data);
}

/* Parses the header of a .npy, which must be uint8 [h,w,3]. */
static hvt_status parse_pixels(const uint8_t *head, size_t have, const hvt__data_file *f, const char *name,
                               const hvt__tar_sample *s, hvt__npy *ret_npy)
{
    hvt__npy npy;

    HVT_TRY(hvt__npy_parse(head, have, name, &npy));
    HVT_CHECK(npy.kind == 'u' && npy.size == 1 && npy.dims == 3 && npy.shape[2] == 3 && !npy.fortran,
              E_FORMAT, "%s: '%s' holds '%s' of %d dimensions%s, expected uint8 [h,w,3]", f->path, name,
              npy.type, npy.dims, npy.fortran ? " in Fortran order" : "");
    HVT_CHECK(npy.shape[0] <= HVT_SIDE_MAX && npy.shape[1] <= HVT_SIDE_MAX && npy.bytes > 0, E_FORMAT,
              "%s: '%s' has %" PRIu64 " x %" PRIu64 " pixels, expected sides of 1 to %d", f->path, name,
              npy.shape[0], npy.shape[1], HVT_SIDE_MAX);
    HVT_CHECK(npy.header + npy.bytes == s->bytes, E_FORMAT,
              "%s: '%s' has %u bytes, expected %" PRIu64 " for its shape", f->path, name, s->bytes,
              npy.header + npy.bytes);
    *ret_npy = npy;
    return HVT_OK;
}

static hvt_status read_pixels(const tar *t, uint64_t i, const hvt__data_file *f, const hvt__tar_sample *s,
                              hvt_record *r)
{
    size_t have = s->bytes < HVT__NPY_HEADER ? s->bytes : HVT__NPY_HEADER;
    uint8_t head[HVT__NPY_HEADER];
    hvt__npy npy;

    if (s->map) {
        HVT_TRY(read_whole(t, i, f, s, r));
        HVT_TRY(parse_pixels(r->data, have, f, name_of(t, i, s), s, &npy));
        memmove(r->data, r->data + npy.header, (size_t)npy.bytes);
        r->bytes = (size_t)npy.bytes;
    } else {
        HVT_TRY(read_bytes(t, i, f, s->at, have, head));
        HVT_TRY(parse_pixels(head, have, f, name_of(t, i, s), s, &npy));
        HVT_TRY(hvt_record_reserve(r, (size_t)npy.bytes));
        HVT_TRY(hvt__data_read(f, s->at + npy.header, (size_t)npy.bytes, r->data,
                               (hvt__data_unit){"byte", s->at, f->bytes}));
    }
    r->encoding = HVT_IMAGE_U8;
    r->height = (int)npy.shape[0];
    r->width = (int)npy.shape[1];
    return HVT_OK;
}

static hvt_status read_tar(void *ctx, uint32_t index, hvt_record *r)
{
    const tar *t = ctx;
    uint64_t i;
    const hvt__tar_sample *sample = sample_of(t, index, &i);
    hvt__data_file f;
    hvt_status s;

    HVT_TRY(open_shard(t, i, &f));
    r->label = sample->label;
    r->encoding = HVT_IMAGE_FILE;
    s = sample->pixels ? read_pixels(t, i, &f, sample, r) : read_whole(t, i, &f, sample, r);
    leave_shard(t, i, &f);
    return s;
}

/* "DIR/train-000003.tar: dir/picture.mask.png" */
static hvt_status name_mask(void *ctx, uint32_t index, char *ret_name, size_t room)
{
    const tar *t = ctx;
    uint64_t i;
    const char *name = name_of(t, shard_of(t, index), sample_of(t, index, &i)), *slash = strrchr(name, '/');
    const size_t key = (size_t)(slash ? slash - name : 0) + strcspn(slash ? slash : name, ".");

    snprintf(ret_name, room, "%s: %.*s.mask.png", hvt__shard_path(t->shards, i), (int)key, name);
    return HVT_OK;
}

static hvt_status mask_tar(void *ctx, uint32_t index, hvt_record *r)
{
    const tar *t = ctx;
    uint64_t i;
    const hvt__tar_sample *sample = sample_of(t, index, &i);
    hvt__data_file f;
    hvt_status s;

    HVT_TRY(open_shard(t, i, &f));
    r->encoding = HVT_IMAGE_FILE;
    s = hvt_record_reserve(r, sample->mask_bytes);
    s = s ? s : read_bytes(t, i, &f, sample->mask_at, sample->mask_bytes, r->data);
    leave_shard(t, i, &f);
    return s;
}

static void ahead_tar(void *ctx, uint32_t index)
{
    const tar *t = ctx;
    uint64_t i;
    const hvt__tar_sample *sample = sample_of(t, index, &i);
    hvt__data_file f;

    if (open_shard(t, i, &f))
        return; /* reading it will report the error */
    posix_fadvise(f.fd, (off_t)sample->at, (off_t)sample->bytes, POSIX_FADV_WILLNEED);
    leave_shard(t, i, &f);
}

/* "DIR/train-000003.tar: dir/picture.jpg" */
static hvt_status name_tar(void *ctx, uint32_t index, char *ret_name, size_t room)
{
    const tar *t = ctx;
    uint64_t i;
    const hvt__tar_sample *s = sample_of(t, index, &i);

    snprintf(ret_name, room, "%s: %s", hvt__shard_path(t->shards, i),
             hvt__tar_names(hvt__shard_index(t->shards, i)) + s->name);
    return HVT_OK;
}

static int label_tar(void *ctx, uint32_t index)
{
    uint64_t shard;

    return sample_of(ctx, index, &shard)->label;
}

static const char *class_of_tar(void *ctx, int label)
{
    const tar *t = ctx;

    return hvt__class_list_at(&t->names, label);
}

/* Sets how many shards stay open: half of the files that this process may open. */
static hvt_status make_room(tar *t)
{
    struct rlimit most;
    uint64_t half = getrlimit(RLIMIT_NOFILE, &most) == 0 ? most.rlim_cur / 2 : 128;

    t->kept = t->shards->shards < half ? t->shards->shards : half;
    t->fd = malloc((t->kept + 1) * sizeof *t->fd);
    HVT_CHECK(t->fd, E_MEM, "no memory for %" PRIu64 " open shards", t->kept);
    for (uint64_t i = 0; i < t->kept; i++)
        atomic_init(&t->fd[i], -1);
    return HVT_OK;
}

static hvt_status hold_shards(hvt__shard_set *set, const char *dir, tar **ret_tar)
{
    tar *t = calloc(1, sizeof *t);
    hvt_status s;

    if (!t) {
        hvt__shards_close(set);
        return HVT_FAIL(E_MEM, "no memory for data set 'tar' (%zu bytes)", sizeof *t);
    }
    t->set = *set;
    t->shards = set->block;
    s = make_room(t);
    if (s == HVT_OK)
        s = hvt__class_list_read(dir, HVT__CLASSES_FILE, &t->names);
    if (s != HVT_OK)
        close_tar(t);
    *ret_tar = t;
    return s;
}

static hvt_status open_tar(const hvt_dataset_opts *opts, hvt_source *ret_source)
{
    hvt_dataset_info info = {"tar", .channels = 3, .type = HVT_U8};
    hvt__shard_set set;
    tar *t = NULL;

    HVT_CHECK(opts->dir && *opts->dir, E_ARG, "data set tar needs --data-dir, the folder of its shards");
    HVT_TRY(hvt__shards_open(opts->dir, opts->train ? "train" : "val", opts->world, &set));
    HVT_TRY(hold_shards(&set, opts->dir, &t));
    info.count = (uint32_t)t->shards->samples;
    info.classes = (int)t->shards->classes;
    info.masks = t->shards->masked && !opts->reconstruct;
    info.unlabelled = !t->shards->labelled;
    if (info.masks)
        info.classes = t->names.n;
    if ((info.masks || !info.unlabelled) && opts->classes > info.classes)
        info.classes = opts->classes;
    info.fingerprint = t->shards->fingerprint;
    *ret_source = (hvt_source){.info = info,
                               .read = read_tar,
                               .label = label_tar,
                               .name = name_tar,
                               .mask = info.masks ? mask_tar : NULL,
                               .mask_name = info.masks ? name_mask : NULL,
                               .ahead = ahead_tar,
                               .class_name = class_of_tar,
                               .close = close_tar,
                               .ctx = t};
    return HVT_OK;
}

const hvt_format hvt_format_tar = {"tar", open_tar};
