/*
 * The pool of threads when threads are delayed at the worst places: behind each atomic load one may sleep.
 */
#define _GNU_SOURCE
#include "check.h"

#include <stdatomic.h>
#include <unistd.h>

static void delay(void)
{
    static atomic_uint draws;

    if ((atomic_fetch_add(&draws, 1) * 2654435761u) >> 31)
        usleep(200);
}

#undef atomic_load
#define atomic_load(at)                                                                                      \
    __extension__({                                                                                          \
        __auto_type value_ = atomic_load_explicit(at, memory_order_seq_cst);                                 \
        delay();                                                                                             \
        value_;                                                                                              \
    })
#include "device/cpu/parallel.c"

static void count(void *ctx, int job, int thread)
{
    atomic_fetch_add((atomic_int *)ctx, 1 << job);
}

TEST(every_job_runs_once_and_the_pool_closes)
{
    alarm(120); /* a pool that does not close is a thread that waits for ever */
    for (int i = 0; i < 300; i++) {
        hvt_thread_pool *pool = NULL;
        atomic_int done = 0;

        CHECK_OK(hvt__thread_pool_open(1 + i % 5, NULL, 0, i & 1, &pool));
        for (int k = 0; k < i % 4; k++) {
            int jobs = 1 + (i + k) % 9;

            atomic_store(&done, 0);
            hvt__parallel_for(pool, jobs, count, &done);
            CHECK(done == (1 << jobs) - 1, "%d jobs: %x", jobs, (unsigned)done);
        }
        hvt__thread_pool_close(&pool);
    }
    alarm(0);
}

int main(void)
{
    RUN(every_job_runs_once_and_the_pool_closes);
    return check_done();
}
