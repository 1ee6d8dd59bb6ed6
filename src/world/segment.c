/*
 * Nameless shared memory: rank 0 creates a memfd, the others open it through /proc/<pid>/fd. No path can
 * collide, the size of /dev/shm does not matter, and nothing is left when all processes die.
 *
 * Every rank reserves its own part before any rank touches it, which also places the pages on its NUMA node.
 * So a lack of memory is an error here, on all ranks alike, and never a SIGBUS later.
 *
 * Ranks that are threads of one process share a mapping.
 */
#define _GNU_SOURCE
#include "base_impl.h"
#include "facts.h"
#include "world_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* since Linux 5.14 */
#endif

static int create(size_t bytes)
{
    int fd = memfd_create("hvt", MFD_CLOEXEC | MFD_ALLOW_SEALING), why;
    struct rlimit most;

    if (fd < 0)
        return -1;
    /* beyond this limit ftruncate() would kill the process instead of failing */
    if (getrlimit(RLIMIT_FSIZE, &most) == 0 && most.rlim_cur != RLIM_INFINITY && bytes > most.rlim_cur)
        why = EFBIG;
    else if (ftruncate(fd, (off_t)bytes) || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL))
        why = errno;
    else
        return fd;
    close(fd);
    errno = why;
    return -1;
}

static int attach(int pid, int fd)
{
    char path[64];

    snprintf(path, sizeof path, "/proc/%d/fd/%d", pid, fd);
    return open(path, O_RDWR | O_CLOEXEC);
}

static void *map(int fd, size_t bytes)
{
    return mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
}

/*
 * Reserve bytes [first, first + count) of a mapping; returns 0 or an errno. Huge pages on request come only
 * when a page is touched, not by fallocate(), so populate first. fallocate() then reserves whatever
 * populating did not.
 */
static int reserve(int fd, char *base, size_t bytes, size_t first, size_t count)
{
    int err;

    madvise(base, bytes, MADV_HUGEPAGE);
    madvise(base + first, count, MADV_POPULATE_WRITE);
    do
        err = fallocate(fd, 0, (off_t)first, (off_t)count) ? errno : 0;
    while (err == EINTR);
    return err;
}

int (*hvt__shm_create)(size_t bytes) = create;
int (*hvt__shm_attach)(int pid, int fd) = attach;
void *(*hvt__shm_map)(int fd, size_t bytes) = map;
int (*hvt__shm_unmap)(void *base, size_t bytes) = munmap;

/* The mappings of this process by file. */
typedef struct mapping {
    struct mapping *next;
    dev_t dev;
    ino_t ino;
    void *base;
    int users;
} mapping;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static mapping *mappings;

/* The file's only mapping in this process, or MAP_FAILED with errno. */
static void *map_once(int fd, const struct stat *file, size_t bytes)
{
    void *base = MAP_FAILED;
    mapping *m;

    pthread_mutex_lock(&lock);
    m = mappings;
    while (m && (m->dev != file->st_dev || m->ino != file->st_ino))
        m = m->next;
    if (!m && (m = malloc(sizeof *m))) {
        *m = (mapping){mappings, file->st_dev, file->st_ino, hvt__shm_map(fd, bytes), 0};
        if (m->base == MAP_FAILED)
            free(m), m = NULL;
        else
            mappings = m;
    }
    if (m) {
        m->users++;
        base = m->base;
    }
    pthread_mutex_unlock(&lock);
    return base;
}

static void unmap_last(void *base, size_t bytes)
{
    mapping **at = &mappings, *m;

    pthread_mutex_lock(&lock);
    while ((*at)->base != base)
        at = &(*at)->next;
    m = *at;
    if (--m->users == 0) {
        hvt__shm_unmap(base, bytes);
        *at = m->next;
        free(m);
    }
    pthread_mutex_unlock(&lock);
}

double hvt__memory_available(void)
{
    double group = hvt__cgroup_memory(""),
           machine = 1024 * hvt__file_number("/proc", "meminfo", "MemAvailable:");

    return group > 0 && (machine == 0 || group < machine) ? group : machine;
}

typedef struct offer {
    uint64_t bytes, dev, ino; /* bytes of one part; identity of the file */
    int32_t pid, fd;
} offer;

_Static_assert(sizeof(offer) <= HVT__SCRATCH, "a gathered offer must fit in the world's scratch");

static hvt_status make(size_t bytes, offer *ret_offer)
{
    double room = hvt__memory_available();
    struct stat st;
    int fd;

    HVT_CHECK(room == 0 || (double)bytes <= room, E_MEM, "%.1f MiB of shared memory; %.1f MiB are available",
              (double)bytes / (1 << 20), room / (1 << 20));
    fd = hvt__shm_create(bytes);
    HVT_CHECK(fd >= 0, E_MEM, "shared memory of %.1f MiB: memfd: %s", (double)bytes / (1 << 20),
              strerror(errno));
    ret_offer->fd = fd;
    HVT_CHECK(!fstat(fd, &st), E_MEM, "shared memory: fstat: %s", strerror(errno));
    ret_offer->dev = st.st_dev;
    ret_offer->ino = st.st_ino;
    return HVT_OK;
}

static hvt_status join(const hvt_world *w, const offer *from, int *fd, hvt__segment *s)
{
    struct stat st;
    char *base;
    int err;

    if (*fd < 0)
        *fd = hvt__shm_attach(from->pid, from->fd);
    HVT_CHECK(*fd >= 0, E_UNSUPPORTED, "shared memory of process %d: /proc/%d/fd/%d: %s", from->pid,
              from->pid, from->fd, strerror(errno));
    HVT_CHECK(!fstat(*fd, &st) && st.st_dev == from->dev && st.st_ino == from->ino, E_UNSUPPORTED,
              "process %d is another process for this rank: the ranks of this node run in separate PID "
              "namespaces (containers)",
              from->pid);
    base = map_once(*fd, &st, s->stride * (size_t)w->size);
    HVT_CHECK(base != MAP_FAILED, E_MEM, "shared memory of %d x %zu bytes: mmap: %s", w->size, s->stride,
              strerror(errno));
    s->base = base;
    err = reserve(*fd, base, s->stride * (size_t)w->size, s->stride * (size_t)w->rank, s->stride);
    HVT_CHECK(!err, E_MEM, "shared memory: no room for %zu bytes: %s", s->stride, strerror(err));
    return HVT_OK;
}

hvt_status hvt__segment_open(hvt_world *w, size_t bytes, hvt__segment *ret_segment)
{
    const size_t page = 4096;
    hvt__segment seg = {.stride = bytes / page * page + page, .ranks = w->size};
    offer mine = {.bytes = bytes, .pid = getpid(), .fd = -1}, first, *all = w->scratch;
    hvt_status s = HVT_OK;

    if (bytes > SIZE_MAX / 4 / (size_t)w->size)
        s = HVT_FAIL(E_MEM, "%zu bytes of shared memory for each of %d ranks", bytes, w->size);
    else if (w->rank == 0)
        s = make(seg.stride * (size_t)w->size, &mine);
    HVT_TRY_OR(done, hvt_world_agree(w, s));
    HVT_TRY_OR(done, w->ops->allgather(w, &mine, sizeof mine, all));
    first = all[0];
    for (int r = 1; r < w->size; r++)
        if (all[r].bytes != first.bytes) {
            s = HVT_FAIL(E_MISMATCH, "shared memory: rank %d asks for %zu bytes, rank %d (%s) for %zu",
                         hvt__job_rank(w, 0), (size_t)first.bytes, hvt__job_rank(w, r), w->host[r],
                         (size_t)all[r].bytes);
            hvt__error_agreed(true);
            goto done;
        }
    HVT_TRY_OR(done, hvt_world_agree(w, join(w, &first, &mine.fd, &seg))); /* before rank 0 closes its file */
    *ret_segment = seg;
done:
    if (mine.fd >= 0)
        close(mine.fd);
    if (s != HVT_OK)
        hvt__segment_close(&seg);
    return s;
}

void hvt__segment_close(hvt__segment *s)
{
    if (s->base)
        unmap_last(s->base, s->stride * (size_t)s->ranks);
    s->base = NULL;
}
