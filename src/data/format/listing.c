/*
 * Listings: rank 0 scans the folders or loads the stored list, and each host receives it once.
 *
 * A list is stored beside the folders or, if that is not writable, in the cache folder. It is valid as long
 * as the root has the same classes and no folder below has changed: its times of modification and status
 * change, its size and its number of links. Programs can set the first time (tar does), but not the second.
 * In images of file systems (squashfs) both times are fixed, so their lists are not stored. A folder that
 * changed within the last seconds may change again without a new time, so its list is not stored either; nor
 * is a short list, which is made in a moment.
 */
#include "listing.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

uint32_t hvt__listing_kept_from = 10000;

static const char kept_name[] = ".hvtrain-index";
enum { STEADY = 2 /* s without a change */ };

uint32_t hvt__listing_folder(const hvt__listing *l, uint32_t file)
{
    uint32_t low = 0, high = l->folders;

    while (high - low > 1) {
        uint32_t middle = low + (high - low) / 2;

        if (l->folder_first[middle] <= file)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* ---- where the list is stored ---- */

static bool write_all(int fd, const char *at, size_t bytes)
{
    while (bytes > 0) {
        ssize_t n = write(fd, at, bytes);

        if (n < 0 && errno != EINTR)
            return false;
        at += n > 0 ? n : 0;
        bytes -= n > 0 ? (size_t)n : 0;
    }
    return true;
}

static bool write_file(const char *path, const char *block, size_t bytes)
{
    char fresh[PATH_MAX];
    int fd;
    bool good;

    if (!*path || hvt__path(fresh, "%s.%d", path, (int)getpid()))
        return false;
    fd = open(fresh, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0)
        return false;
    good = write_all(fd, block, bytes);
    good = close(fd) == 0 && good && rename(fresh, path) == 0;
    if (!good)
        unlink(fresh);
    return good;
}

/* Reads a whole file; NULL if there is none, or it cannot be read. */
static char *read_file(const char *path, size_t *ret_bytes)
{
    uint64_t bytes;
    size_t got = 0;
    ssize_t n = 1;
    char *block;
    int fd;

    if (!*path || access(path, F_OK) || hvt__open_regular(path, &fd, &bytes))
        return NULL;
    block = bytes ? malloc(bytes) : NULL;
    while (block && got < bytes && (n > 0 || (n < 0 && errno == EINTR))) {
        n = pread(fd, block + got, bytes - got, (off_t)got);
        got += n > 0 ? (size_t)n : 0;
    }
    close(fd);
    if (got < bytes) {
        free(block);
        return NULL;
    }
    *ret_bytes = bytes;
    return block;
}

static hvt_status folder_path(const hvt__listing *l, const char *root, uint32_t folder,
                              char ret_path[PATH_MAX])
{
    const char *name = l->text + l->folder_name[folder];

    return hvt__path(ret_path, *name ? "%s/%s" : "%s", root, name);
}

/* True if changes of folders show in their times. They do not show in the image of a file system, nor in a
 * copy of one (a container's layer), whose folders all have the same time. A program behind the file system
 * may invent the times. */
static bool times_tell(const char *root, const hvt__folder_state *state, uint32_t folders)
{
    bool fixed = folders > 1;

    if (hvt__fs_kind_of(root) != HVT__FS_PLAIN)
        return false;
    for (uint32_t i = 0; i < folders && fixed; i++)
        fixed = state[i].mtime == state[0].mtime && state[i].ctime == state[0].mtime;
    return !fixed;
}

/* True if the classes and the entries of the root are the listed ones. */
static bool has_classes(const hvt__listing *l, const hvt__listed *what)
{
    hvt__entries root = {0}, all = {0};
    uint32_t given = 0;
    bool flat, good = !hvt__entries_read(what->root, &root) && !hvt__entries_read(what->classes_of, &all);

    flat = good && hvt__listing_is_flat(what, &root);
    good = good && !*root.dead_link && l->classes == (flat ? 0 : all.folders.n);
    for (uint32_t i = 0; good && i < l->classes; i++)
        good = !strcmp(l->text + l->class_name[i], hvt__name_at(&all.folders, i));
    for (uint32_t i = 0; good && i < l->folders; i++)
        given += !strchr(l->text + l->folder_name[i], '/');
    good = good && given == root.folders.n + flat;
    hvt__entries_free(&root);
    hvt__entries_free(&all);
    return good;
}

/* True if the list is still valid. */
static bool holds(const hvt__listing *l, const hvt__listed *what)
{
    bool good = times_tell(what->root, l->state, l->folders) && has_classes(l, what);
    char path[PATH_MAX];

    for (uint32_t i = 0; good && i < l->folders; i++) {
        struct stat info;
        hvt__folder_state now;

        good = !folder_path(l, what->root, i, path) && stat(path, &info) == 0;
        if (good) {
            now = hvt__folder_state_of(&info);
            good = now.mtime == l->state[i].mtime && now.ctime == l->state[i].ctime &&
                   now.size == l->state[i].size;
        }
    }
    return good;
}

static bool load(const char *path, const hvt__listed *what, char **ret_block, size_t *ret_bytes)
{
    hvt__listing l;
    size_t bytes = 0;
    char *block = read_file(path, &bytes);

    if (block && !hvt__listing_attach(block, bytes, &l))
        HVT_WARN("%s: damaged, or of another version; the folder is listed again", path);
    else if (block && holds(&l, what)) {
        *ret_block = block;
        *ret_bytes = bytes;
        return true;
    }
    free(block);
    return false;
}

/* True if no folder has changed recently. */
static bool is_steady(const hvt__listing *l)
{
    int64_t now = (int64_t)time(NULL) * 1000000000;

    for (uint32_t i = 0; i < l->folders; i++)
        if (l->state[i].mtime > now - STEADY * INT64_C(1000000000))
            return false;
    return true;
}

/* Stores the list; returns its path, or "". Writing into the root would change its time, on which a set
 * without classes depends, so its list is stored in the cache. */
static const char *keep(const hvt__listing *l, const char *root, const char *beside, const char *cache)
{
    if (l->files < hvt__listing_kept_from || !is_steady(l) || !times_tell(root, l->state, l->folders))
        return "";
    if (l->classes && write_file(beside, l->block, l->bytes))
        return beside;
    return write_file(cache, l->block, l->bytes) ? cache : "";
}

void hvt__say_once(_Atomic uint64_t *said, hvt_log_level level, const char *dir, const char *text)
{
    uint64_t now = hvt__hash_text(hvt__hash_text(HVT_HASH_INIT, dir), text);

    if (atomic_exchange(said, now) != now)
        hvt__log(level, "%s: %s", dir, text);
}

static void say_note(const char *root, const hvt__listing *l)
{
    static _Atomic uint64_t said;

    if (*l->note)
        hvt__say_once(&said, l->is_warning ? HVT_LOG_WARN : HVT_LOG_INFO, root, l->note);
}

/* Loads or scans the list, and stores it. Call on rank 0. */
static hvt_status make(const hvt__listed *what, char **ret_block, size_t *ret_bytes)
{
    char beside[PATH_MAX], cache[PATH_MAX];
    const char *root = what->root, *kept;
    double began = hvt__now();
    hvt__listing l;

    HVT_TRY(hvt__path(beside, "%s/%s", root, kept_name));
    hvt__cache_path_of("index", root, cache);
    if (load(beside, what, ret_block, ret_bytes) || load(cache, what, ret_block, ret_bytes)) {
        if (hvt__listing_attach(*ret_block, *ret_bytes, &l))
            say_note(root, &l);
        return HVT_OK;
    }
    HVT_TRY(hvt__listing_scan(what, ret_block, ret_bytes));
    HVT_CHECK(hvt__listing_attach(*ret_block, *ret_bytes, &l), E_FORMAT, "%s: it cannot be listed", root);
    say_note(root, &l);
    kept = keep(&l, root, beside, cache);
    if (l.files >= hvt__listing_kept_from)
        HVT_INFO("%s: %u pictures listed in %.1f s; %s%s", root, l.files, hvt__now() - began,
                 *kept ? "the list is stored in "
                       : "the list is not stored, because the folder has just changed, is not writable or "
                         "does not show changes in its times",
                 kept);
    return HVT_OK;
}

/* ---- sharing ---- */

/* Shares rank 0's block with all ranks. After an error *l holds what was opened, too. */
static hvt_status share(hvt_world *world, const char *block, size_t bytes, hvt__listing *l)
{
    int64_t sizes[2] = {(int64_t)bytes, 0};
    hvt__node node = {0};
    bool good;

    if (block && hvt__listing_attach(block, bytes, l))
        sizes[1] = l->files;
    HVT_TRY(hvt_world_broadcast(world, sizes, sizeof sizes, 0));
    bytes = (size_t)sizes[0];
    HVT_TRY(hvt__node_open(world, (bytes + 3) / 4 * 4 + 4 * (size_t)sizes[1], &node));
    l->node = node;
    HVT_TRY(hvt__node_fill(world, &node, block, bytes));
    good = hvt__listing_attach(node.block, bytes, l);
    l->node = node;
    l->seen = (void *)((char *)node.block + (bytes + 3) / 4 * 4);
    return hvt_world_agree(world, good ? HVT_OK : HVT_FAIL(E_COMM, "the list of pictures arrived damaged"));
}

static hvt_status take_alone(char *block, size_t bytes, hvt__listing *l)
{
    bool good = hvt__listing_attach(block, bytes, l);

    l->block = block;
    HVT_CHECK(good, E_FORMAT, "the list of pictures is damaged");
    l->seen = calloc(l->files, sizeof *l->seen);
    HVT_CHECK(l->seen, E_MEM, "no memory to remember %u files", l->files);
    return HVT_OK;
}

hvt_status hvt__listing_open(const hvt__listed *what, hvt_world *world, hvt__listing *ret_listing)
{
    hvt__listing l = {0};
    char *block = NULL;
    size_t bytes = 0;
    hvt_status s = HVT_OK;

    if (hvt_world_rank(world) == 0)
        s = make(what, &block, &bytes);
    if (world)
        s = hvt_world_agree(world, s);
    if (s == HVT_OK)
        s = world ? share(world, block, bytes, &l) : take_alone(block, bytes, &l);
    if (world || s != HVT_OK)
        free(block);
    if (s != HVT_OK) {
        l.block = NULL; /* freed above */
        hvt__listing_close(&l);
        return hvt__pass(s, __FILE__, __LINE__, what->root);
    }
    *ret_listing = l;
    return HVT_OK;
}

void hvt__listing_close(hvt__listing *l)
{
    if (l->node.block) {
        hvt__node_close(&l->node);
    } else {
        free((char *)(uintptr_t)l->block);
        free(l->seen);
    }
    *l = (hvt__listing){0};
}
