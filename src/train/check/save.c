/*
 * Checks the folder of --save: writes, syncs, locks, renames and removes a small file, as a checkpoint's are.
 * If the run would create the folder, the one above it is checked instead.
 */
#include "check_impl.h"
#include "train/checkpoint/checkpoint_impl.h"
#include "base_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PROBE = 64 << 10 }; /* bytes */

/* Writes the small file. Returns the operation that failed, with errno; NULL if all succeeded. */
static const char *write_probe(const char *dir, const char *from, const char *to, bool *ret_locks)
{
    static const char zeros[PROBE];
    int fd = open(from, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600), folder;
    const char *lacks = NULL;

    if (fd < 0)
        return "create a file";
    *ret_locks = flock(fd, LOCK_EX | LOCK_NB) == 0;
    if (!hvt__write(fd, zeros, PROBE))
        lacks = "write a file";
    else if (fsync(fd))
        lacks = "sync a file (fsync)";
    if (close(fd) && !lacks)
        lacks = "close a file";
    if (!lacks && rename(from, to))
        lacks = "rename a file";
    folder = lacks ? -1 : open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder >= 0 && fsync(folder) && errno != EINVAL) /* file systems without such a sync return EINVAL */
        lacks = "sync the folder (fsync)";
    if (folder >= 0)
        close(folder);
    return lacks;
}

/* Checks whether another job saves there now, or another run has saved there. */
static void look_inside(const hvt_options *o, hvt__line *l)
{
    hvt__generations g = {0};
    char path[PATH_MAX];
    int fd =
        hvt__path(path, "%s/.hvtrain.lock", o->save) ? -1 : open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);

    if (fd >= 0 && flock(fd, LOCK_SH | LOCK_NB) && errno == EWOULDBLOCK)
        hvt__line_set(l, HVT__WRONG, "%s: another job saves there now: give each job a folder of its own",
                      o->save);
    else if (!*o->resume && !o->overwrite && hvt__generations_open(o->save, &g) == HVT_OK && g.n)
        hvt__line_set(
            l, HVT__WRONG,
            "%s: holds a checkpoint already: --resume auto continues it, --overwrite replaces it, or "
            "save to another folder",
            o->save);
    if (fd >= 0)
        close(fd);
    hvt__generations_close(&g);
}

/* Finds the existing folder: --save's, or the one above, in which the run creates it. */
static bool find_folder(const char *save, char ret_dir[PATH_MAX])
{
    struct stat info;
    char copy[PATH_MAX];

    snprintf(ret_dir, PATH_MAX, "%s", save);
    if (stat(save, &info) == 0 || errno != ENOENT)
        return true;
    snprintf(copy, sizeof copy, "%s", save);
    snprintf(ret_dir, PATH_MAX, "%s", dirname(copy));
    return false;
}

/* Compares the free bytes with the checkpoints that a run keeps: --keep, the best, and one being written. */
static void describe_room(const hvt_options *o, const char *dir, uint64_t bytes, hvt__line *l)
{
    const uint64_t room = hvt__room_in(dir), all = bytes * ((uint64_t)o->keep + 2);
    char there[HVT__SIZE_TEXT], one[HVT__SIZE_TEXT], most[HVT__SIZE_TEXT];

    hvt__size_text(room, there);
    hvt__size_text(bytes, one);
    hvt__size_text(all, most);
    hvt__line_set(l,
                  room < bytes ? HVT__WRONG
                  : room < all ? HVT__DOUBTFUL
                               : HVT__GOOD,
                  "%s: %s free", o->save, room == UINT64_MAX ? "an unknown size" : there);
    if (room < all)
        hvt__line_add(l, ", but a checkpoint takes %s, and --keep %d keeps up to %s", one, o->keep, most);
    else if (bytes)
        hvt__line_add(l, " for checkpoints of %s", one);
}

hvt__line hvt__check_save(const hvt_options *opts, uint64_t bytes)
{
    hvt__line l = {HVT__GOOD, "no --save: a run would keep nothing"};
    char dir[PATH_MAX], from[PATH_MAX], to[PATH_MAX];
    const char *lacks;
    bool is_there, locks = true;
    int why;

    if (!*opts->save)
        return l;
    is_there = find_folder(opts->save, dir);
    if (hvt__path(from, "%s/.hvtrain-check-%d.tmp", dir, (int)getpid()) ||
        hvt__path(to, "%s/.hvtrain-check-%d", dir, (int)getpid())) {
        hvt__line_set(&l, HVT__WRONG, "%s: the name is too long", opts->save);
        return l;
    }
    lacks = write_probe(dir, from, to, &locks);
    why = errno;
    unlink(from);
    unlink(to);
    if (lacks && why == ENOENT && !is_there && access(dir, F_OK)) {
        hvt__line_set(&l, HVT__WRONG, "%s: the folder above it does not exist: mkdir -p %s", opts->save, dir);
        return l;
    }
    if (lacks) {
        hvt__line_set(&l, HVT__WRONG,
                      "%s: cannot %s %s%s: %s; give --save a folder that this user can write to", opts->save,
                      lacks, is_there ? "there" : "in ", is_there ? "" : dir,
                      why == ENOENT ? "its file system takes no new files" : strerror(why));
        return l;
    }
    describe_room(opts, dir, bytes, &l);
    hvt__line_add(&l, "%s; sync, rename%s", is_there ? "" : " (the run makes it)",
                  locks ? " and locks work" : " work");
    if (!locks)
        hvt__line_set(
            &l, HVT__DOUBTFUL,
            "%s: no locks on this file system (NFS: mount it with local_lock=flock or as version 4): "
            "two jobs that save there would not notice each other",
            opts->save);
    if (is_there)
        look_inside(opts, &l);
    return l;
}
