/*
 * Measures what a rehearsal on one thread does not show: the time of a run beyond its jobs, and the copy rate
 * of a core.
 */
#include "span_impl.h"
#include "bench.h"
#include "base_impl.h"

#include <stdatomic.h>

machine span_machine;

enum { ROUNDS = 501 };

static void spin_job(void *ctx, int job, int thread)
{
    const double end = hvt__now() + *(const double *)ctx;

    while (hvt__now() < end)
        ;
}

/* The time of a run of one job per thread beyond the job, if the run before ended `gap` seconds ago: the
 * first decile, which other processes do not disturb. Jobs are so long that no thread steals one. */
static double measure_barrier(hvt_thread_pool *pool, int threads, double job, double gap, int rounds)
{
    double took[ROUNDS];

    hvt__parallel_for(pool, threads, spin_job, &job);
    for (int i = 0; i < rounds; i++) {
        double start;

        spin_job(&gap, 0, 0);
        start = hvt__now();
        hvt__parallel_for(pool, threads, spin_job, &job);
        took[i] = hvt__now() - start - job;
    }
    hvt__sort(took, (size_t)rounds);
    return took[rounds / 10];
}

typedef struct line {
    _Alignas(128) _Atomic int at; /* as far apart as in parallel.c */
} line;

enum { TURNS = 100, LINES = 64 };
static line ball, lines[LINES];
static double least; /* seconds in which the first of two threads has read all lines */

/* Two threads alternate: the second writes all lines, then the first reads them. */
static void lines_job(void *ctx, int job, int thread)
{
    for (int i = job; i < 2 * TURNS; i += 2) {
        double start;
        int sum = 0;

        while (atomic_load(&ball.at) != i)
            hvt__relax();
        start = hvt__now();
        for (int l = 0; l < LINES; l++)
            if (job)
                atomic_store_explicit(&lines[l].at, i, memory_order_relaxed);
            else
                sum += atomic_load_explicit(&lines[l].at, memory_order_relaxed);
        start = hvt__now() - start;
        if (job == 0 && i > 0 && sum)
            least = start < least ? start : least;
        atomic_store(&ball.at, i + 1);
    }
}

/* The cost of one more thread for a run: it fetches the line that describes the run, and the caller fetches
 * the line that it has written, each among others'. The first decile, as above. */
static double measure_line(hvt_thread_pool *pool)
{
    double took[ROUNDS];

    for (int i = 0; i < ROUNDS; i++) {
        ball.at = 0;
        least = 1;
        hvt__parallel_for(pool, 2, lines_job, NULL);
        took[i] = least;
    }
    hvt__sort(took, ROUNDS);
    return 2 * took[ROUNDS / 10] / LINES;
}

hvt_thread_pool *span_open_pool(const hvt_cores *c, int threads)
{
    hvt_thread_pool *pool = NULL;

    bench_must("bench_step", NULL, hvt__thread_pool_open(threads, c->cpus, c->ncpus, false, &pool));
    return pool;
}

void span_measure(const span_opts *o)
{
    const rehearsal *widest = NULL;

    span_machine.copy = bench_copy((size_t)256 << 20);
    for (rehearsal *r = span_reh; r < span_reh + span_rehearsals; r++) {
        if (r->threads > 1 && r->threads <= o->cores->threads) {
            hvt_thread_pool *pool = span_open_pool(o->cores, r->threads);

            r->barrier = measure_barrier(pool, r->threads, 20e-6, 5e-6, ROUNDS);
            r->asleep = measure_barrier(pool, r->threads, 500e-6, 3 * SPIN_SECONDS, ROUNDS / 5);
            span_machine.line = measure_line(pool);
            hvt__thread_pool_close(&pool);
            widest = r;
        } else if (widest) {
            const double more = (r->threads - widest->threads) * span_machine.line;

            r->barrier = widest->barrier + more;
            r->asleep = widest->asleep + more;
        }
    }
}
