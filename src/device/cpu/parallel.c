/*
 * A pool of threads, created once, and parallel_for on it: `jobs` calls of one function. The caller is thread
 * 0 and works too. Which thread runs which job never changes a result: jobs write disjoint outputs.
 *
 * Each thread owns a *queue*, an equal and contiguous range of the jobs (so that the same rows meet the same
 * cache in every run), and steals from the other queues when its own is empty. A queue is one 64-bit word
 * with the next job and the end. A job is claimed by a compare-and-swap of that word while a job is left; the
 * run cannot end before the claimed job is done, so the thread that claimed it may read the run's function
 * and context. A thread that sleeps or was preempted therefore blocks nobody: the caller waits for jobs, not
 * for threads.
 *
 * Between runs the threads spin for about as long as the usual gap between two ops, then sleep; with `yield`
 * they sleep at once.
 */
#define _GNU_SOURCE
#include "cpu_impl.h"
#include "base_impl.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SPIN_SECONDS 100e-6

typedef struct queue {
    _Alignas(64) _Atomic uint64_t range; /* next job | end << 32 */
    hvt_thread_pool *pool;
    int thread;
    pthread_t handle;
} queue;

struct hvt_thread_pool {
    int size, started; /* started: running threads besides the caller */
    bool yield;

    /* the caller, while it is pinned */
    bool pinned;
    pid_t caller;
    cpu_set_t mask_before; /* its affinity before any pool pinned it */
    hvt_thread_pool *next; /* next pool that has pinned its caller */

    hvt_job_fn *fn; /* of the run in progress */
    void *ctx;
    _Alignas(64) atomic_int left; /* jobs that are not done */

    _Alignas(64) atomic_uint run; /* run counter; the threads wait for it to change */
    atomic_int sleepers;
    atomic_bool quit;
    pthread_mutex_t mutex;
    pthread_cond_t wake;

    queue *queues; /* [threads] */
};

/* Claim the next job of a queue; -1: it is empty. */
static int claim(queue *l)
{
    uint64_t range = atomic_load_explicit(&l->range, memory_order_acquire);

    while ((uint32_t)range < range >> 32)
        if (atomic_compare_exchange_weak_explicit(&l->range, &range, range + 1, memory_order_acq_rel,
                                                  memory_order_acquire))
            return (int)(uint32_t)range;
    return -1;
}

/* Run jobs until none is left to claim. */
static void work(hvt_thread_pool *pool, int thread)
{
    int job, done = 0;

    for (int i = 0; i < pool->size; i++) {
        queue *l = &pool->queues[(thread + i) % pool->size];

        while ((job = claim(l)) >= 0) {
            pool->fn(pool->ctx, job, thread);
            done++;
        }
    }
    if (done)
        atomic_fetch_sub_explicit(&pool->left, done, memory_order_release);
}

/* Wait until a run other than `seen` has begun; returns it. */
static unsigned await_run(hvt_thread_pool *pool, unsigned seen)
{
    unsigned now = atomic_load(&pool->run);
    double end = pool->yield ? 0 : hvt__now() + SPIN_SECONDS;

    while (now == seen && end != 0) {
        for (int i = 0; i < 32 && now == seen; i++) {
            hvt__relax();
            now = atomic_load_explicit(&pool->run, memory_order_acquire);
        }
        if (hvt__now() > end)
            break;
    }
    if (now != seen)
        return now;
    /* Announce the sleep, then check again: the caller first increments `run`, then checks for sleepers. */
    pthread_mutex_lock(&pool->mutex);
    atomic_fetch_add(&pool->sleepers, 1);
    while ((now = atomic_load(&pool->run)) == seen)
        pthread_cond_wait(&pool->wake, &pool->mutex);
    atomic_fetch_sub(&pool->sleepers, 1);
    pthread_mutex_unlock(&pool->mutex);
    return now;
}

static void *thread_main(void *arg)
{
    queue *l = arg;
    hvt_thread_pool *pool = l->pool;
    unsigned seen = 0;

    hvt__floats_enter();
    for (;;) {
        seen = await_run(pool, seen);
        if (atomic_load(&pool->quit))
            return NULL;
        work(pool, l->thread);
    }
}

static void begin_run(hvt_thread_pool *pool)
{
    atomic_fetch_add(&pool->run, 1);
    if (atomic_load(&pool->sleepers)) {
        pthread_mutex_lock(&pool->mutex);
        pthread_cond_broadcast(&pool->wake);
        pthread_mutex_unlock(&pool->mutex);
    }
}

void hvt__parallel_for(hvt_thread_pool *pool, int jobs, hvt_job_fn *fn, void *ctx)
{
    HVT_FLOATS; /* the calling thread may be the host program's or a comm's worker */

    if (pool->size == 1 || jobs <= 1) {
        for (int i = 0; i < jobs; i++)
            fn(ctx, i, 0);
        return;
    }
    pool->fn = fn;
    pool->ctx = ctx;
    atomic_store_explicit(&pool->left, jobs, memory_order_relaxed);
    for (int t = 0; t < pool->size; t++) {
        uint64_t first = (uint64_t)jobs * t / pool->size, end = (uint64_t)jobs * (t + 1) / pool->size;

        atomic_store_explicit(&pool->queues[t].range, first | end << 32, memory_order_release);
    }
    begin_run(pool);
    work(pool, 0);
    for (unsigned spins = 0; atomic_load_explicit(&pool->left, memory_order_acquire); spins++) {
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

/* Pin a thread to a processor. If that is not allowed, the scheduler decides as before. */
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

/* Pools that have pinned the thread that opened them. A thread may have several, and they may be closed in
 * any order: it gets back the affinity that it had before the first when the last one is closed. */
static pthread_mutex_t pins_lock = PTHREAD_MUTEX_INITIALIZER;
static hvt_thread_pool *pins;

static hvt_thread_pool *other_pin(const hvt_thread_pool *pool)
{
    hvt_thread_pool *p = pins;

    while (p && (p == pool || p->caller != pool->caller))
        p = p->next;
    return p;
}

void hvt__thread_pool_pin_caller(hvt_thread_pool *pool, int cpu)
{
    const hvt_thread_pool *other;

    pool->caller = gettid();
    pthread_mutex_lock(&pins_lock);
    other = other_pin(pool);
    if (other)
        pool->mask_before = other->mask_before;
    if (other || !sched_getaffinity(pool->caller, sizeof pool->mask_before, &pool->mask_before)) {
        pool->pinned = true;
        pool->next = pins;
        pins = pool;
        pin(pthread_self(), 0, cpu);
    }
    pthread_mutex_unlock(&pins_lock);
}

/* Called by whichever thread closes the pool; the one that opened it may have exited. */
static void unpin_caller(hvt_thread_pool *pool)
{
    hvt_thread_pool **link = &pins;

    if (!pool->pinned)
        return;
    pthread_mutex_lock(&pins_lock);
    while (*link != pool)
        link = &(*link)->next;
    *link = pool->next;
    if (!other_pin(pool))
        sched_setaffinity(pool->caller, sizeof pool->mask_before, &pool->mask_before);
    pthread_mutex_unlock(&pins_lock);
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
    size_t bytes = sizeof(hvt_thread_pool), queues = (size_t)threads * sizeof(queue);
    hvt_thread_pool *pool = aligned_alloc(64, bytes);
    hvt_status s;

    HVT_CHECK(pool, E_MEM, "no memory for %zu bytes of a thread pool", bytes);
    memset(pool, 0, bytes);
    pthread_mutex_init(&pool->mutex, NULL);
    pthread_cond_init(&pool->wake, NULL);
    pool->size = threads;
    pool->yield = yield;
    pool->queues = aligned_alloc(64, queues);
    HVT_CHECK_OR(fail, pool->queues, E_MEM, "no memory for %zu bytes of %d threads", queues, threads);
    memset(pool->queues, 0, queues);
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
    atomic_store(&p->quit, true);
    begin_run(p);
    for (int t = 1; t <= p->started; t++)
        pthread_join(p->queues[t].handle, NULL);
    unpin_caller(p);
    pthread_cond_destroy(&p->wake);
    pthread_mutex_destroy(&p->mutex);
    free(p->queues);
    free(p);
    *pool = NULL;
}
