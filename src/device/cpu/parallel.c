/*
 * A pool of threads, created once, and parallel_for on it: `jobs` calls of one function. The caller is thread
 * 0 and works, too. Which thread runs a job never changes a result: jobs write disjoint outputs.
 *
 * Each thread owns a *queue*, an equal and contiguous range of the jobs (so that a row stays in the same
 * cache in every run), and steals from the other queues when its own is empty. Jobs are claimed by
 * compare-and-swap, and a run cannot end before claimed jobs are done. So a sleeping or preempted thread does
 * not block the others: the caller waits for jobs, not for threads.
 *
 * Runs are short and threads many, so a run moves few cache lines between cores. The caller writes one line,
 * which all threads read. A thread claims jobs in a line of its own and counts finished ones in another,
 * which only it writes and the caller reads. Both counts start at the run's *base*, so values of earlier runs
 * are smaller and need no clearing.
 *
 * Between runs the threads spin for about as long as the usual gap between two ops, then sleep; with `yield`
 * they sleep at once.
 */
#define _GNU_SOURCE
#include "cpu_impl.h"
#include "base_impl.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <unistd.h>

#define SPIN_SECONDS 100e-6
#define RUN_BITS     24 /* a run has fewer than 2^24 jobs */

typedef struct queue {
    _Alignas(64) _Atomic uint64_t next; /* base + the next job, after the first claim in the run */
    hvt_thread_pool *pool;
    int thread;
    pthread_t handle;
    _Alignas(64) _Atomic uint64_t
        done; /* base + the thread's finished jobs, for the last run in which it did any */
} queue;

/* A run, as the threads see it. */
typedef struct run {
    uint64_t base; /* the run's number << RUN_BITS */
    hvt_job_fn *fn;
    void *ctx;
    int jobs;
} run;

struct hvt_thread_pool {
    int size, started; /* started: running threads besides the caller */
    bool yield;
    int home; /* the caller's CPU; -1: not pinned */

    /* the caller, while it is pinned */
    bool pinned;
    pid_t caller;
    cpu_set_t mask_before; /* its affinity before it was pinned */

    /* The current or last run; threads wait for its base to change. Odd and even runs have separate places,
     * so that a late thread can read one while the next is written. */
    _Alignas(64) _Atomic uint64_t base;
    struct {
        hvt_job_fn *_Atomic fn;
        void *_Atomic ctx;
        atomic_int jobs;
    } of[2];

    _Alignas(64) atomic_int sleepers;
    pthread_mutex_t mutex;
    pthread_cond_t wake;

    queue queues[]; /* [size] */
};

/* A count's distance from the run's base; negative for an earlier run. */
static int64_t past(const _Atomic uint64_t *count, const run *r)
{
    return (int64_t)(atomic_load_explicit(count, memory_order_acquire) - r->base);
}

/* The current or last run. */
static run read_run(const hvt_thread_pool *pool)
{
    run r = {.base = atomic_load_explicit(&pool->base, memory_order_acquire)};

    for (;;) {
        const int odd = r.base >> RUN_BITS & 1;
        uint64_t now;

        r.fn = atomic_load_explicit(&pool->of[odd].fn, memory_order_relaxed);
        r.ctx = atomic_load_explicit(&pool->of[odd].ctx, memory_order_relaxed);
        r.jobs = atomic_load_explicit(&pool->of[odd].jobs, memory_order_relaxed);
        atomic_thread_fence(memory_order_acquire);
        now = atomic_load_explicit(&pool->base, memory_order_relaxed);
        if (now == r.base)
            return r;
        r.base = now;
    }
}

/* Claim the next job of a thread's queue; -1 if it is empty or another run has begun. */
static int claim(hvt_thread_pool *pool, const run *r, int thread)
{
    const int64_t first = (int64_t)r->jobs * thread / pool->size,
                  end = (int64_t)r->jobs * (thread + 1) / pool->size;
    _Atomic uint64_t *next = &pool->queues[thread].next;
    uint64_t at = atomic_load_explicit(next, memory_order_relaxed);

    for (;;) {
        int64_t job = (int64_t)(at - r->base);

        job = job < first ? first : job;
        if (job >= end)
            return -1;
        if (atomic_compare_exchange_weak_explicit(next, &at, r->base + (uint64_t)job + 1,
                                                  memory_order_acq_rel, memory_order_relaxed))
            return (int)job;
    }
}

/* Run jobs until none is left to claim. */
static void work(hvt_thread_pool *pool, const run *r, int thread)
{
    uint64_t done = r->base;

    for (int i = 0; i < pool->size && past(&pool->base, r) == 0; i++) {
        const uint64_t before = done;
        int job;

        for (; (job = claim(pool, r, (thread + i) % pool->size)) >= 0; done++)
            r->fn(r->ctx, job, thread);
        if (done != before)
            atomic_store_explicit(&pool->queues[thread].done, done, memory_order_release);
    }
}

/* Wait until a run with a base other than `seen` has begun. */
static void await_run(hvt_thread_pool *pool, uint64_t seen)
{
    uint64_t now = atomic_load(&pool->base);
    double end = pool->yield ? 0 : hvt__now() + SPIN_SECONDS;

    while (now == seen && end != 0) {
        for (int i = 0; i < 32 && now == seen; i++) {
            hvt__relax();
            now = atomic_load_explicit(&pool->base, memory_order_acquire);
        }
        if (hvt__now() > end)
            break;
    }
    if (now != seen)
        return;
    /* Announce the sleep, then check again: the caller first changes `base`, then checks for sleepers. */
    pthread_mutex_lock(&pool->mutex);
    atomic_fetch_add(&pool->sleepers, 1);
    while (atomic_load(&pool->base) == seen)
        pthread_cond_wait(&pool->wake, &pool->mutex);
    atomic_fetch_sub(&pool->sleepers, 1);
    pthread_mutex_unlock(&pool->mutex);
}

static void *thread_main(void *arg)
{
    queue *q = arg;
    hvt_thread_pool *pool = q->pool;
    uint64_t seen = 0;

    hvt__floats_enter();
    for (;;) {
        run r;

        await_run(pool, seen);
        r = read_run(pool);
        if (!r.fn)
            return NULL;
        seen = r.base;
        work(pool, &r, q->thread);
    }
}

static run begin_run(hvt_thread_pool *pool, int jobs, hvt_job_fn *fn, void *ctx)
{
    const uint64_t base = atomic_load_explicit(&pool->base, memory_order_relaxed) + ((uint64_t)1 << RUN_BITS);
    const int odd = base >> RUN_BITS & 1;

    atomic_thread_fence(
        memory_order_release); /* a thread that reads the following stores sees that its run is over */
    atomic_store_explicit(&pool->of[odd].fn, fn, memory_order_relaxed);
    atomic_store_explicit(&pool->of[odd].ctx, ctx, memory_order_relaxed);
    atomic_store_explicit(&pool->of[odd].jobs, jobs, memory_order_relaxed);
    atomic_store(&pool->base, base);
    if (atomic_load(&pool->sleepers)) {
        pthread_mutex_lock(&pool->mutex);
        pthread_cond_broadcast(&pool->wake);
        pthread_mutex_unlock(&pool->mutex);
    }
    return (run){base, fn, ctx, jobs};
}

/* Number of finished jobs of a run. */
static int count_done(const hvt_thread_pool *pool, const run *r)
{
    int sum = 0;

    for (int t = 0; t < pool->size; t++) {
        const int64_t done = past(&pool->queues[t].done, r);

        sum += done > 0 ? (int)done : 0;
    }
    return sum;
}

void hvt__parallel_for(hvt_thread_pool *pool, int jobs, hvt_job_fn *fn, void *ctx)
{
    HVT_FLOATS; /* the caller may be the host program's thread or a comm's worker */
    run r;

    if (pool->size == 1 || jobs <= 1) {
        for (int i = 0; i < jobs; i++)
            fn(ctx, i, 0);
        return;
    }
    assert(jobs < 1 << RUN_BITS);
    r = begin_run(pool, jobs, fn, ctx);
    work(pool, &r, 0);
    for (unsigned spins = 0; count_done(pool, &r) < jobs; spins++) {
        if (pool->yield || spins > 10000)
            sched_yield();
        else
            hvt__relax();
    }
}

int hvt__thread_pool_size(const hvt_thread_pool *pool)
{
    return pool->size;
}

/* Pin a thread to a CPU. If that is not allowed, its affinity stays as it was. */
static void pin(pthread_t thread, int number, int cpu)
{
    cpu_set_t mask;
    int error = EINVAL;

    CPU_ZERO(&mask);
    if (cpu >= 0 && cpu < CPU_SETSIZE) {
        CPU_SET(cpu, &mask);
        error = pthread_setaffinity_np(thread, sizeof mask, &mask);
    }
    if (error)
        HVT_WARN("thread %d is not pinned to processor %d: %s", number, cpu, strerror(error));
}

void hvt__thread_pool_enter(const hvt_thread_pool *pool)
{
    if (pool->home >= 0)
        pin(pthread_self(), 0, pool->home);
}

/* Does not pin a thread that may use only one CPU, for example because another pool has pinned it. */
void hvt__thread_pool_pin_caller(hvt_thread_pool *pool, int cpu)
{
    pool->caller = gettid();
    if (sched_getaffinity(pool->caller, sizeof pool->mask_before, &pool->mask_before) ||
        CPU_COUNT(&pool->mask_before) == 1)
        return;
    pool->pinned = true;
    pin(pthread_self(), 0, cpu);
}

/* Signals belong to the main program: the pool's threads block all of them. */
static hvt_status start(hvt_thread_pool *pool, const int *cpus, int ncpus)
{
    sigset_t all, before;
    int error = 0;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    for (int t = 1; t < pool->size && !error; t++) {
        error = pthread_create(&pool->queues[t].handle, NULL, thread_main, &pool->queues[t]);
        if (!error) {
            pool->started++;
            if (ncpus)
                pin(pool->queues[t].handle, t, cpus[t % ncpus]);
        }
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    HVT_CHECK(!error, E_DEVICE, "thread %d of %d did not start: %s", pool->started + 1, pool->size,
              strerror(error));
    return HVT_OK;
}

hvt_status hvt__thread_pool_open(int threads, const int *cpus, int ncpus, bool yield,
                                 hvt_thread_pool **ret_pool)
{
    size_t bytes = sizeof(hvt_thread_pool) + (size_t)threads * sizeof(queue);
    hvt_thread_pool *pool = aligned_alloc(64, bytes);
    hvt_status s;

    HVT_CHECK(pool, E_MEM, "no memory for %zu bytes of a pool of %d threads", bytes, threads);
    memset(pool, 0, bytes);
    pthread_mutex_init(&pool->mutex, NULL);
    pthread_cond_init(&pool->wake, NULL);
    pool->size = threads;
    pool->yield = yield;
    pool->home = ncpus ? cpus[0] : -1;
    for (int t = 0; t < threads; t++) {
        pool->queues[t].pool = pool;
        pool->queues[t].thread = t;
    }
    HVT_TRY_OR(fail, start(pool, cpus, ncpus));
    *ret_pool = pool;
    return HVT_OK;
fail:
    hvt__thread_pool_close(&pool);
    return s;
}

void hvt__thread_pool_close(hvt_thread_pool **pool)
{
    hvt_thread_pool *p = *pool;

    if (!p)
        return;
    begin_run(p, 0, NULL, NULL); /* a run without a function ends the threads */
    for (int t = 1; t <= p->started; t++)
        pthread_join(p->queues[t].handle, NULL);
    if (p->pinned) /* on any thread that closes the pool; the one that opened it may have exited */
        sched_setaffinity(p->caller, sizeof p->mask_before, &p->mask_before);
    pthread_cond_destroy(&p->wake);
    pthread_mutex_destroy(&p->mutex);
    free(p);
    *pool = NULL;
}
