/*
 * Time in which this process was stopped (Ctrl-Z, `scontrol suspend`, a debugger, a suspended machine), so
 * that it is not counted as work.
 *
 * Nothing notifies a process that it was stopped, and SIGCONT does not say since when. So a thread updates a
 * *heartbeat* every TICK. A heartbeat older than LATE shows that not even this thread could run: the time
 * since then, less half a tick for the time before the stop, was a pause. It is noted by whoever sees it
 * first, the thread or a caller that asks for the time. The time that callers see never goes back: a tenth of
 * a tick of work is kept between the values returned before and after a pause.
 */
#include "base_impl.h"

#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

#define TICK 0.1 /* s */
#define LATE 1.0 /* s: machine load alone never delays a sleeping thread this long */

static pthread_mutex_t users_lock =
    PTHREAD_MUTEX_INITIALIZER; /* protects `users`; held while the thread is started and stopped */
static int users;

static struct {
    pthread_mutex_t lock;
    pthread_cond_t wake;
    pthread_t thread;
    bool closing;
    _Atomic double heartbeat; /* hvt__now() of the last heartbeat; 0: no thread */
    _Atomic double paused;    /* s; written under the lock, before the corresponding heartbeat */
    _Atomic double latest;    /* last returned hvt__now() less pauses */
} pauses = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* With the lock held. */
static void update(double now)
{
    double passed = now - atomic_load(&pauses.heartbeat), paused;

    if (passed > LATE) {
        paused = atomic_load(&pauses.paused) + passed - TICK / 2;
        atomic_store(&pauses.paused, fmin(paused, now - atomic_load(&pauses.latest) - TICK / 10));
    }
    if (passed > 0)
        atomic_store(&pauses.heartbeat, now);
}

double hvt__paused(double now)
{
    double heartbeat = atomic_load(&pauses.heartbeat), paused;

    if (heartbeat > 0 && now - heartbeat > LATE) {
        pthread_mutex_lock(&pauses.lock);
        if (atomic_load(&pauses.heartbeat) > 0)
            update(now);
        pthread_mutex_unlock(&pauses.lock);
    }
    paused = atomic_load(&pauses.paused);
    if (now - paused > atomic_load_explicit(&pauses.latest, memory_order_relaxed))
        atomic_store_explicit(&pauses.latest, now - paused, memory_order_relaxed);
    return paused;
}

double hvt__running(void)
{
    double now = hvt__now();

    return now - hvt__paused(now);
}

static void *tick(void *arg)
{
    struct timespec next;

    (void)arg;
    pthread_mutex_lock(&pauses.lock);
    while (!pauses.closing) {
        update(hvt__now());
        clock_gettime(CLOCK_MONOTONIC, &next);
        next.tv_nsec += (long)(TICK * 1e9);
        next.tv_sec += next.tv_nsec / 1000000000;
        next.tv_nsec %= 1000000000;
        pthread_cond_timedwait(&pauses.wake, &pauses.lock, &next);
    }
    pthread_mutex_unlock(&pauses.lock);
    return NULL;
}

static bool start(void)
{
    pthread_condattr_t a;
    sigset_t all, before;
    bool runs;

    if (pthread_condattr_init(&a))
        return false;
    pthread_condattr_setclock(&a, CLOCK_MONOTONIC);
    runs = pthread_cond_init(&pauses.wake, &a) == 0;
    pthread_condattr_destroy(&a);
    if (!runs)
        return false;
    pauses.closing = false;
    atomic_store(&pauses.heartbeat, hvt__now());
    sigfillset(&all); /* signals are left to the threads that exist already */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    runs = pthread_create(&pauses.thread, NULL, tick, NULL) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (runs)
        return true;
    atomic_store(&pauses.heartbeat, 0);
    pthread_cond_destroy(&pauses.wake);
    return false;
}

bool hvt__pause_open(void)
{
    bool runs;

    pthread_mutex_lock(&users_lock);
    runs = users || start();
    users += runs;
    pthread_mutex_unlock(&users_lock);
    return runs;
}

void hvt__pause_close(void)
{
    pthread_mutex_lock(&users_lock);
    if (--users == 0) {
        pthread_mutex_lock(&pauses.lock);
        pauses.closing = true;
        pthread_cond_signal(&pauses.wake);
        pthread_mutex_unlock(&pauses.lock);
        pthread_join(pauses.thread, NULL);
        pthread_cond_destroy(&pauses.wake);
        atomic_store(&pauses.heartbeat, 0);
    }
    pthread_mutex_unlock(&users_lock);
}
