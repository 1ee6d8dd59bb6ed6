/*
 * The shared-memory protocol with ranks that are threads of one process, for ThreadSanitizer. It needs the
 * same addresses in all ranks, so a segment is mapped once for all of them.
 */
#define _GNU_SOURCE
#include "check.h"
#include "base_impl.h"
#include "comm/comm_internal.h"

#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MOST = 8 };

/* ---- one mapping for all ------------------------------------------------------------------------ */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct mapping {
    ino_t file;
    void *base;
    int users;
} mappings[16];
static void *(*real_map)(int fd, size_t bytes);
static int (*real_unmap)(void *base, size_t bytes);

static void *map_once(int fd, size_t bytes)
{
    struct mapping *m = NULL;
    struct stat st;

    fstat(fd, &st);
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < HVT_LEN(mappings); i++)
        if (mappings[i].users && mappings[i].file == st.st_ino)
            m = &mappings[i];
    for (size_t i = 0; i < HVT_LEN(mappings) && !m; i++)
        if (!mappings[i].users) {
            m = &mappings[i];
            *m = (struct mapping){st.st_ino, real_map(fd, bytes), 0};
        }
    m->users++;
    pthread_mutex_unlock(&lock);
    return m->base;
}

static int unmap_last(void *base, size_t bytes)
{
    int failed = 0;

    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < HVT_LEN(mappings); i++)
        if (mappings[i].users && mappings[i].base == base && !--mappings[i].users)
            failed = real_unmap(base, bytes);
    pthread_mutex_unlock(&lock);
    return failed;
}

/* ---- a world of threads ------------------------------------------------------------------------- */

static struct {
    pthread_barrier_t gate;
    char board[MOST][4096];
} hall;

static hvt_status hall_gather(hvt_world *w, const void *mine, size_t bytes, void *all)
{
    memcpy(hall.board[w->rank], mine, bytes);
    pthread_barrier_wait(&hall.gate);
    for (int r = 0; r < w->size; r++)
        memcpy((char *)all + (size_t)r * bytes, hall.board[r], bytes);
    pthread_barrier_wait(&hall.gate);
    return HVT_OK;
}

static hvt_status hall_broadcast(hvt_world *w, void *data, size_t bytes, int root)
{
    if (w->rank == root)
        memcpy(hall.board[root], data, bytes);
    pthread_barrier_wait(&hall.gate);
    memcpy(data, hall.board[root], bytes);
    pthread_barrier_wait(&hall.gate);
    return HVT_OK;
}

static const hvt_world_ops hall_ops = {.name = "hall", .allgather = hall_gather, .broadcast = hall_broadcast};

typedef struct resident {
    pthread_t thread;
    hvt_world w;
    void (*live)(hvt_comm *c, int rank, int size);
    bool worker;
} resident;

static void *reside(void *arg)
{
    resident *me = arg;
    hvt_device *dev = NULL;
    hvt_comm *c = NULL;

    CHECK_OK(hvt_device_open("ref", NULL, &dev));
    CHECK_OK(hvt_comm_open("shm", &me->w, dev, &c));
    if (me->worker)
        CHECK_OK(hvt_comm_overlap(c, &(hvt_overlap){.yield = true}));
    if (c)
        me->live(c, me->w.rank, me->w.size);
    hvt_comm_close(&c);
    hvt_device_close(&dev);
    return NULL;
}

/* Ranks from first_worker on have a worker. */
static void settle(int n, int first_worker, void (*live)(hvt_comm *c, int rank, int size))
{
    static int node_of[MOST];
    static char host[MOST][64], scratch[MOST][MOST * HVT__SCRATCH];
    resident all[MOST];

    pthread_barrier_init(&hall.gate, NULL, (unsigned)n);
    for (int r = 0; r < n; r++) {
        strcpy(host[r], "hall");
        all[r] = (resident){.live = live,
                            .worker = r >= first_worker,
                            .w = {.ops = &hall_ops,
                                  .rank = r,
                                  .size = n,
                                  .local_rank = r,
                                  .local_size = n,
                                  .nodes = 1,
                                  .node_of = node_of,
                                  .host = host,
                                  .scratch = scratch[r]}};
    }
    for (int r = 0; r < n; r++)
        pthread_create(&all[r].thread, NULL, reside, &all[r]);
    for (int r = 0; r < n; r++)
        pthread_join(all[r].thread, NULL);
    pthread_barrier_destroy(&hall.gate);
}

static void settle_any_number(void (*live)(hvt_comm *c, int rank, int size))
{
    for (int n = 2; n <= 5; n++) {
        settle(n, n, live);
        settle(n, n % 2, live); /* on all of them, or all but the first */
    }
}

/* ---- what must be true -------------------------------------------------------------------------- */

static void dawdle(int rank, int round)
{
    uint64_t d = hvt__draw((uint64_t)rank, (uint64_t)round, 0, 0);

    if (d % 16 == 0)
        usleep((useconds_t)(d >> 32) % 300);
}

static float given(int rank, int round, size_t i)
{
    return (float)((rank + 1) * (int)(i % 100) + round);
}

static float summed(int size, int round, size_t i)
{
    return (float)(size * (size + 1) / 2 * (int)(i % 100) + size * round);
}

/* Sums on shared and on private memory, awaited at once; what is read and written around them belongs to the
 * rank alone. */
static void sum_in_turn(hvt_comm *c, int rank, int size)
{
    const size_t counts[] = {1, 17, 1000, 40000, 300007};
    float *shared = NULL, *plain = malloc(300007 * sizeof *plain);
    hvt_ticket t;

    CHECK_OK(hvt_comm_alloc(c, 300007 * sizeof *shared, (void **)&shared));
    for (int round = 0; round < 60; round++) {
        size_t n = counts[round % (round % 10 ? 4 : 5)];
        float *buf = round % 3 == 2 || (round % 3 == 1 && rank % 2) ? plain : shared;
        int wrong = 0;

        for (size_t i = 0; i < n; i++)
            buf[i] = given(rank, round, i);
        dawdle(rank, round);
        if (round % 4 == 3) {
            CHECK_OK(hvt_comm_reduce_scatter(c, buf, n, HVT_F32, &t));
            CHECK_OK(hvt_comm_allgather(c, buf, n, HVT_F32, &t));
        } else {
            CHECK_OK(hvt_comm_allreduce(c, buf, n, HVT_F32, &t));
        }
        CHECK_OK(hvt_comm_wait(c, t));
        for (size_t i = 0; i < n; i++)
            wrong += buf[i] != summed(size, round, i);
        CHECK(!wrong, "round %d: %d of %zu", round, wrong, n);
    }
    hvt_comm_release(c, shared);
    free(plain);
}

TEST(sums_awaited_at_once)
{
    settle_any_number(sum_in_turn);
}

/* Buckets in flight, more of them than a ring has places; each used again as soon as it is back. */
static void sum_in_flight(hvt_comm *c, int rank, int size)
{
    enum { BUCKETS = 300, EACH = 48 };
    float *buf = NULL;
    hvt_ticket t[BUCKETS];
    int wrong = 0;

    CHECK_OK(hvt_comm_alloc(c, BUCKETS * EACH * sizeof *buf, (void **)&buf));
    for (int round = 0; round < 30; round++) {
        int buckets = round % 10 ? 5 : BUCKETS;

        for (int b = 0; b < buckets; b++) {
            for (size_t i = 0; i < EACH; i++)
                buf[b * EACH + (int)i] = given(rank, round, i);
            dawdle(rank, round * BUCKETS + b);
            CHECK_OK(hvt_comm_allreduce(c, buf + b * EACH, EACH, HVT_F32, &t[b]));
        }
        for (int b = 0; b < buckets; b++) {
            CHECK_OK(hvt_comm_wait(c, t[b]));
            for (size_t i = 0; i < EACH; i++) {
                wrong += buf[b * EACH + (int)i] != summed(size, round, i);
                buf[b * EACH + (int)i] = -1;
            }
        }
    }
    CHECK(!wrong, "%d sums", wrong);
    hvt_comm_release(c, buf);
}

TEST(sums_in_flight)
{
    settle_any_number(sum_in_flight);
}

/* Operations that overlap in memory and are awaited late, with broadcasts between; large ones behind small
 * ones and the other way round. */
static void overlap(hvt_comm *c, int rank, int size)
{
    enum { COUNT = 5000 };
    static const struct {
        size_t first, count;
    } spans[] = {{0, COUNT}, {100, COUNT - 100}, {2000, 1000}, {2500, 20}, {1000, 3500}, {2490, 200}};
    float *buf = NULL;
    hvt_ticket t;

    CHECK_OK(hvt_comm_alloc(c, COUNT * sizeof *buf, (void **)&buf));
    for (int round = 0; round < 20; round++) {
        int root = round % size, wrong = 0;

        for (size_t i = 0; i < COUNT; i++)
            buf[i] = rank == root ? given(0, round, i) : -1;
        CHECK_OK(hvt_comm_broadcast(c, buf, COUNT * sizeof *buf, root));
        for (size_t k = 0; k < HVT_LEN(spans); k++)
            CHECK_OK(hvt_comm_allreduce(c, buf + spans[k].first, spans[k].count, HVT_F32, &t));
        dawdle(rank, round);
        CHECK_OK(hvt_comm_wait(c, t));
        for (size_t i = 0; i < COUNT; i++) {
            int times = 1;

            for (size_t k = 0; k < HVT_LEN(spans); k++)
                times *= i >= spans[k].first && i - spans[k].first < spans[k].count ? size : 1;
            wrong += buf[i] != (float)times * given(0, round, i);
        }
        CHECK(!wrong, "round %d: %d", round, wrong);
    }
    hvt_comm_release(c, buf);
}

TEST(operations_that_overlap)
{
    settle_any_number(overlap);
}

int main(void)
{
    real_map = hvt__shm_map;
    real_unmap = hvt__shm_unmap;
    hvt__shm_map = map_once;
    hvt__shm_unmap = unmap_last;
    RUN(sums_awaited_at_once);
    RUN(sums_in_flight);
    RUN(operations_that_overlap);
    return check_done();
}
