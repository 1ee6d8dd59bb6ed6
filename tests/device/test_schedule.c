/*
 * bench_step --span's simulation of a run of the thread pool, and the pool's rehearsal of one.
 */
#include "../../bench/schedule.h"
#include "check.h"
#include "device/cpu/cpu_impl.h"

enum { MOST = 16 };

/* A run, when it ends, and who does which job. */
typedef struct expected {
    int threads, jobs;
    float seconds[MOST];
    double end;
    int thread[MOST];
} expected;

static void check_run_of(const expected *e)
{
    int thread[MOST];
    const double end = schedule_run(e->seconds, e->jobs, e->threads, thread);

    CHECK(end == e->end, "%d jobs on %d threads: ends after %g s, not %g", e->jobs, e->threads, end, e->end);
    CHECK(schedule_run(e->seconds, e->jobs, e->threads, NULL) == end, "the end depends on who asks");
    for (int i = 0; i < e->jobs; i++)
        CHECK(thread[i] == e->thread[i], "%d jobs on %d threads: job %d is done by thread %d, not %d",
              e->jobs, e->threads, i, thread[i], e->thread[i]);
}

TEST(equal_jobs_are_done_in_contiguous_ranges)
{
    check_run_of(&(expected){4, 8, {1, 1, 1, 1, 1, 1, 1, 1}, 2, {0, 0, 1, 1, 2, 2, 3, 3}});
    check_run_of(&(expected){1, 3, {1, 2, 4}, 7, {0, 0, 0}});
    check_run_of(&(expected){3, 0, {0}, 0, {0}});
}

/* Ranges of 2, 3, 2 and 3 jobs: after two seconds thread 0 takes the third of thread 1's, which then finds
 * nothing at home nor at thread 2's, and takes the third of thread 3's. */
TEST(what_is_left_of_unequal_ranges_is_stolen)
{
    check_run_of(&(expected){4, 10, {1, 1, 1, 1, 1, 1, 1, 1, 1, 1}, 3, {0, 0, 1, 1, 0, 2, 2, 3, 3, 1}});
}

/* Thread 1 is done after three seconds. It steals from thread 2 as long as something is left there, and only
 * then from thread 0. */
TEST(a_thread_steals_from_the_next_one_first)
{
    check_run_of(&(expected){3, 9, {5, 5, 5, 1, 1, 1, 5, 5, 5}, 13, {0, 0, 1, 1, 1, 1, 2, 1, 2}});
}

TEST(with_more_threads_than_jobs_each_job_has_a_thread)
{
    check_run_of(&(expected){8, 3, {2, 7, 3}, 7, {0, 1, 2}});
    check_run_of(&(expected){8, 1, {4}, 4, {0}});
}

TEST(the_other_threads_take_over_the_range_of_a_long_job)
{
    check_run_of(&(expected){2, 8, {10, 1, 1, 1, 1, 1, 1, 1}, 10, {0, 1, 1, 1, 1, 1, 1, 1}});
}

/* Nobody knows that the last job is the long one. */
TEST(a_long_job_that_comes_last_delays_the_end)
{
    check_run_of(&(expected){2, 8, {1, 1, 1, 1, 1, 1, 1, 10}, 13, {0, 0, 0, 0, 1, 1, 1, 1}});
}

/* ---- the pool ---- */

typedef struct tally {
    int runs, jobs, done, others; /* others: jobs that had another thread's number */
} tally;

static void count_job(void *ctx, int job, int thread)
{
    tally *t = ctx;

    t->done++;
    t->others += thread != 0;
}

static void rehearse(void *ctx, int jobs, hvt_job_fn *fn, void *fn_ctx)
{
    tally *t = ctx;

    t->runs++;
    t->jobs += jobs;
    for (int i = 0; i < jobs; i++)
        fn(fn_ctx, i, 0);
}

static void no_job(void *ctx, int job, int thread)
{
}

TEST(a_rehearsed_pool_has_as_many_threads_as_it_is_told_and_starts_none)
{
    hvt_thread_pool *pool = NULL;
    tally t = {0};

    CHECK_OK(hvt__thread_pool_open(2, NULL, 0, true, &pool));
    hvt__parallel_for(pool, 8, no_job, NULL);
    for (int threads = 1; threads <= 64; threads *= 8) {
        hvt__thread_pool_rehearse(pool, threads, rehearse, &t);
        CHECK(hvt__thread_pool_size(pool) == threads, "%d threads", hvt__thread_pool_size(pool));
        hvt__parallel_for(pool, 100, count_job, &t);
        hvt__parallel_for(pool, 1, count_job, &t);
    }
    CHECK(t.runs == 6 && t.jobs == 303 && t.done == 303 && !t.others,
          "%d runs of %d jobs, %d done, %d by others", t.runs, t.jobs, t.done, t.others);
    hvt__thread_pool_rehearse(pool, 0, NULL, NULL);
    CHECK(hvt__thread_pool_size(pool) == 2, "%d threads", hvt__thread_pool_size(pool));
    hvt__parallel_for(pool, 8, no_job, NULL);
    CHECK(t.runs == 6, "%d runs were rehearsed", t.runs);
    hvt__thread_pool_close(&pool);
}

int main(int argc, char **argv)
{
    RUN(equal_jobs_are_done_in_contiguous_ranges);
    RUN(what_is_left_of_unequal_ranges_is_stolen);
    RUN(a_thread_steals_from_the_next_one_first);
    RUN(with_more_threads_than_jobs_each_job_has_a_thread);
    RUN(the_other_threads_take_over_the_range_of_a_long_job);
    RUN(a_long_job_that_comes_last_delays_the_end);
    RUN(a_rehearsed_pool_has_as_many_threads_as_it_is_told_and_starts_none);
    return check_done();
}
