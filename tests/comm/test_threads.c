/*
 * The shared-memory protocol with ranks that are threads of one process, for ThreadSanitizer.
 */
#define _GNU_SOURCE
#include "check.h"
#include "base_impl.h"
#include "comm/comm_internal.h"

#include <unistd.h>

typedef struct resident {
    void (*live)(hvt_comm *c, int rank, int size);
    int first_worker; /* ranks from here on have a worker */
} resident;

static hvt_status reside(hvt_world *w, void *ctx)
{
    const resident *all = ctx;
    hvt_device *dev = NULL;
    hvt_comm *c = NULL;

    CHECK_OK(hvt_device_open("ref", NULL, &dev));
    CHECK_OK(hvt_comm_open("shm", w, dev, &c));
    if (w->rank >= all->first_worker)
        CHECK_OK(hvt_comm_overlap(c, &(hvt_overlap){.yield = true}));
    if (c)
        all->live(c, w->rank, w->size);
    hvt_comm_close(&c);
    hvt_device_close(&dev);
    return HVT_OK;
}

static void settle(int n, int first_worker, void (*live)(hvt_comm *c, int rank, int size))
{
    CHECK_OK(hvt_world_open_threads(n, reside, &(resident){live, first_worker}));
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
    RUN(sums_awaited_at_once);
    RUN(sums_in_flight);
    RUN(operations_that_overlap);
    return check_done();
}
