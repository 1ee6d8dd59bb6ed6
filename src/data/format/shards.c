/*
 * Finds the shards of a split and combines their indexes, on rank 0 for all.
 *
 * Progress, and a warning about changed shards, are logged once for all shards.
 */
#define _GNU_SOURCE
#include "shards.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>

/* ---- the files ---- */

typedef struct names {
    char **at;
    size_t n, room;
} names;

static void free_names(names *all)
{
    for (size_t i = 0; i < all->n; i++)
        free(all->at[i]);
    free(all->at);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* "train-000007.tar" of split "train". */
static bool is_shard(const char *name, const char *split)
{
    size_t n = strlen(name), prefix = strlen(split);

    return n >= prefix + 5 && !strncmp(name, split, prefix) && name[prefix] == '-' &&
           !strcmp(name + n - 4, ".tar");
}

static hvt_status add_name(names *all, const char *name)
{
    if (all->n == all->room) {
        size_t room = all->room ? 2 * all->room : 64;
        char **at = realloc(all->at, room * sizeof *at);
        HVT_CHECK(at, E_MEM, "no memory for the names of %zu shards", room);
        all->at = at;
        all->room = room;
    }
    all->at[all->n] = malloc(strlen(name) + 1);
    HVT_CHECK(all->at[all->n], E_MEM, "no memory for the names of %zu shards", all->n);
    strcpy(all->at[all->n++], name);
    return HVT_OK;
}

static hvt_status list_shards(const char *dir, const char *split, names *ret_names)
{
    DIR *d = opendir(dir);
    struct dirent *e;
    hvt_status s = HVT_OK;

    HVT_CHECK(d, E_IO, "%s: %s", dir, strerror(errno));
    while (s == HVT_OK && (errno = 0, e = readdir(d)))
        if (is_shard(e->d_name, split))
            s = add_name(ret_names, e->d_name);
    if (s == HVT_OK && errno)
        s = HVT_FAIL(E_IO, "%s: %s", dir, strerror(errno));
    closedir(d);
    HVT_TRY(s);
    HVT_CHECK(ret_names->n, E_IO, "%s: holds no shards %s-*.tar (%s)", dir, split,
              strcmp(split, "val")
                  ? "create them by hvtrain pack"
                  : "create them by hvtrain pack, or hold out a part of train-*.tar by --val-split 0.1");
    qsort(ret_names->at, ret_names->n, sizeof *ret_names->at, by_name);
    return HVT_OK;
}

/* ---- the block ---- */

/* The progress of indexing. */
typedef struct progress {
    double began, said; /* times */
    uint64_t changed;   /* shards whose stored index did not match */
    char first[PATH_MAX];
} progress;

static void note_shard(progress *p, hvt__tar_found found, const char *path, size_t done, size_t all)
{
    enum { QUIET = 2, PAUSE = 10 }; /* s: before the first line, and between lines */
    double now = hvt__now();

    if (found == HVT__TAR_CHANGED && p->changed++ == 0)
        snprintf(p->first, sizeof p->first, "%s", path);
    if (now - p->began < QUIET || now - p->said < PAUSE)
        return;
    p->said = now;
    HVT_INFO("indexing shards: %zu of %zu", done, all);
}

/* Appends to the block, at a multiple of 8. */
static hvt_status append(hvt__shards **block, size_t *room, const void *bytes, size_t n, uint64_t *ret_at)
{
    uint64_t at = ((*block)->bytes + 7) / 8 * 8;

    if (at + n > *room) {
        size_t more = 2 * (at + n);
        hvt__shards *grown = realloc(*block, more);
        HVT_CHECK(grown, E_MEM, "no memory for an index of %zu bytes", more);
        *block = grown;
        *room = more;
    }
    memset((char *)*block + (*block)->bytes, 0, at - (*block)->bytes);
    memcpy((char *)*block + at, bytes, n);
    (*block)->bytes = at + n;
    *ret_at = at;
    return HVT_OK;
}

/* Adds a shard's samples; either all samples have labels or none has; the same holds for masks. */
static hvt_status count_shard(hvt__shards *block, const hvt__tar_index *x, const char *path)
{
    HVT_CHECK(!block->samples || !block->labelled == !x->labelled, E_FORMAT,
              "%s: its samples have %s, those of the shards before it have %s", path,
              x->labelled ? "labels" : "no labels", x->labelled ? "none" : "some");
    HVT_CHECK(!block->samples || !block->masked == !x->masked, E_FORMAT,
              "%s: its samples have %s, those of the shards before it have %s", path,
              x->masked ? "masks" : "no masks", x->masked ? "none" : "some");
    HVT_CHECK(block->samples + x->count < UINT32_MAX, E_FORMAT, "%s: %" PRIu64 " samples are too many", path,
              block->samples + x->count);
    block->samples += x->count;
    block->labelled += x->labelled;
    block->masked += x->masked;
    block->classes = x->classes > block->classes ? x->classes : block->classes;
    block->fingerprint = hvt__mix(block->fingerprint ^ x->count);
    for (uint32_t i = 0; i < x->count; i++) {
        const hvt__tar_sample *s = &hvt__tar_samples(x)[i];

        block->fingerprint =
            hvt__mix(block->fingerprint ^ (uint64_t)s->bytes << 32 ^ (uint32_t)s->label ^ s->mask_bytes);
    }
    return HVT_OK;
}

static hvt_status add_shard(hvt__shards **block, size_t *room, size_t i, const char *path,
                            hvt__tar_found *ret_found)
{
    hvt__shard shard = {.first = (*block)->samples};
    hvt__tar_index *x;
    hvt_status s;

    HVT_TRY(hvt__tar_index_open(path, &x, ret_found));
    HVT_TRY_OR(done, count_shard(*block, x, path));
    HVT_TRY_OR(done, append(block, room, x, hvt__tar_index_bytes(x), &shard.index));
    HVT_TRY_OR(done, append(block, room, path, strlen(path) + 1, &shard.path));
    memcpy((char *)(*block + 1) + i * sizeof shard, &shard, sizeof shard);
done:
    free(x);
    return s;
}

static hvt_status add_shards(const char *dir, const names *all, hvt__shards **block, size_t *room)
{
    progress p = {.began = hvt__now()};
    char path[PATH_MAX];

    for (size_t i = 0; i < all->n; i++) {
        hvt__tar_found found;

        HVT_TRY(hvt__path(path, "%s/%s", dir, all->at[i]));
        HVT_TRY(add_shard(block, room, i, path, &found));
        note_shard(&p, found, path, i + 1, all->n);
    }
    if (p.changed)
        HVT_INFO("note: %s%s: changed since it was indexed; indexed again", p.first,
                 p.changed > 1 ? " and other shards" : "");
    return HVT_OK;
}

/* Call on rank 0; the block is malloc'ed. */
static hvt_status make_block(const char *dir, const char *split, hvt__shards **ret_block)
{
    names all = {0};
    hvt__shards *block = NULL;
    size_t room;
    hvt_status s;

    HVT_TRY_OR(done, list_shards(dir, split, &all));
    room = sizeof *block + all.n * sizeof(hvt__shard);
    block = calloc(1, room);
    HVT_CHECK_OR(done, block, E_MEM, "no memory for an index of %zu shards", all.n);
    block->bytes = room;
    block->shards = all.n;
    HVT_TRY_OR(done, add_shards(dir, &all, &block, &room));
    *ret_block = block;
done:
    free_names(&all);
    if (s != HVT_OK)
        free(block);
    return s;
}

/* ---- sharing ---- */

static hvt_status share(hvt_world *world, const hvt__shards *block, hvt__node *ret_node)
{
    int64_t bytes = block ? (int64_t)block->bytes : 0;

    HVT_TRY(hvt_world_broadcast(world, &bytes, sizeof bytes, 0));
    HVT_TRY(hvt__node_open(world, (size_t)bytes, ret_node));
    return hvt__node_fill(world, ret_node, block, (size_t)bytes);
}

hvt_status hvt__shards_open(const char *dir, const char *split, hvt_world *world, hvt__shard_set *ret_set)
{
    hvt__shards *block = NULL;
    hvt__shard_set set = {0};
    hvt_status s = HVT_OK;

    if (hvt_world_rank(world) == 0)
        s = make_block(dir, split, &block);
    if (!world) {
        *ret_set = (hvt__shard_set){.block = block};
        return s;
    }
    HVT_TRY_OR(done, hvt_world_agree(world, s));
    HVT_TRY_OR(done, share(world, block, &set.node));
    set.block = set.node.block;
    *ret_set = set;
done:
    if (s != HVT_OK)
        hvt__shards_close(&set);
    free(block);
    return s;
}

void hvt__shards_close(hvt__shard_set *set)
{
    if (set->node.block)
        hvt__node_close(&set->node);
    else
        free((void *)(uintptr_t)set->block);
    *set = (hvt__shard_set){0};
}
