/*
 * hvt_world_open_threads(): starts the ranks of a process as threads, and tells each thread when another one
 * ends.
 */
#define _GNU_SOURCE
#include "base/thread.h"
#include "threads.h"
#include "watch.h"

#include <sched.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

void hvt__ring(hvt__hall *h)
{
    atomic_fetch_add(&h->events, 1);
    if (!atomic_load(&h->sleepers))
        return;
    pthread_mutex_lock(&h->lock);
    pthread_cond_broadcast(&h->bell);
    pthread_mutex_unlock(&h->lock);
}

/* Sleeps until the bell rings, at most `ms` milliseconds; not if `seen` is out of date. */
static void nap(hvt__hall *h, uint64_t seen, int ms)
{
    struct timespec until;

    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += ms * 1000000L;
    until.tv_sec += until.tv_nsec / 1000000000L;
    until.tv_nsec %= 1000000000L;
    pthread_mutex_lock(&h->lock);
    atomic_fetch_add(&h->sleepers, 1);
    if (atomic_load(&h->events) == seen)
        pthread_cond_timedwait(&h->bell, &h->lock, &until);
    atomic_fetch_sub(&h->sleepers, 1);
    pthread_mutex_unlock(&h->lock);
}

bool hvt__idle(hvt__hall *h, hvt__idling *i, uint64_t seen, bool polls)
{
    enum { SPINS = 2000, YIELD_US = 1000, LOOK_MS = 100, POLL_US = 50 };
    double now;

    if (i->spins++ < SPINS) {
        hvt__relax();
        return false;
    }
    now = hvt__now();
    if (i->began <= 0)
        i->began = i->looked = now;
    if (now - i->began < YIELD_US * 1e-6)
        sched_yield();
    else if (polls)
        nanosleep(&(struct timespec){0, POLL_US * 1000}, NULL);
    else
        nap(h, seen, LOOK_MS);
    now = hvt__now();
    if (now - i->looked < LOOK_MS * 0.9e-3)
        return false;
    i->looked = now;
    return true;
}

typedef struct thread {
    pthread_t id;
    hvt__hall *hall;
    hvt_world *world; /* NULL once it is closed */
    int index;        /* index among this process's threads */
} thread;

/* Reports a thread's end to the others. Its error is stored first, so that it precedes the errors that it
 * causes. */
static void end(hvt__hall *h, int index, int rank, hvt_status s)
{
    pthread_mutex_lock(&h->lock);
    if (s != HVT_OK && h->s == HVT_OK) {
        h->s = s;
        h->failed = rank;
        hvt__error_take(&h->why);
    }
    pthread_mutex_unlock(&h->lock);
    atomic_store(&h->life[index].ended, true);
    if (h->life[index].fd >= 0)
        eventfd_write(h->life[index].fd, 1);
    hvt__ring(h);
}

static void *live(void *arg)
{
    thread *t = arg;
    hvt__hall *h = t->hall;
    const int rank = t->world->rank;
    int begin;
    hvt_status s;

    pthread_mutex_lock(&h->lock);
    while (!h->begin)
        pthread_cond_wait(&h->bell, &h->lock);
    begin = h->begin;
    pthread_mutex_unlock(&h->lock);
    if (begin < 0)
        return NULL;
    hvt__kin = (hvt__kinship){.most = rank ? HVT_LOG_ERROR : hvt__kin.most};
    hvt__watch_by_default(t->world);
    s = h->fn(t->world, h->ctx);
    if (s != HVT_OK && (t->world->comms || t->world->groups)) {
        pthread_mutex_lock(&h->lock);
        h->held = true; /* leave them open, as a failing process would */
        pthread_mutex_unlock(&h->lock);
        hvt__watch_close(t->world);
    } else {
        hvt_world_close(&t->world);
    }
    end(h, t->index, rank, s);
    return NULL;
}

/* Starts the threads, which run once all of them exist, and waits for them to end. */
static hvt_status run_all(hvt__hall *h, thread *threads, int n)
{
    int started = 0, error = 0;

    while (started < n && !error) {
        error = hvt__thread_start(&threads[started].id, live, &threads[started]);
        started += !error;
    }
    pthread_mutex_lock(&h->lock);
    h->begin = error ? -1 : 1;
    pthread_cond_broadcast(&h->bell);
    pthread_mutex_unlock(&h->lock);
    for (int r = 0; r < started; r++)
        pthread_join(threads[r].id, NULL);
    HVT_CHECK(!error, E_MEM, "no thread for rank %d of %d: %s", started, n, strerror(error));
    if (!h->s)
        return HVT_OK;
    hvt__error_put(&h->why); /* the error of the rank that failed first */
    if (h->failed && !h->why.agreed)
        hvt__fail(h->s, __FILE__, __LINE__, "rank %d: %s", h->failed, h->why.text);
    hvt__error_agreed(true);
    return h->s;
}

/* ---- opening -------------------------------------------------------------------------------------- */

static hvt__hall *new_hall(int n, hvt_rank_fn *fn, void *ctx)
{
    hvt__hall *h = calloc(1, sizeof *h + (size_t)n * sizeof *h->life);
    pthread_condattr_t clock;

    if (!h)
        return NULL;
    h->fn = fn;
    h->ctx = ctx;
    h->size = h->most = n;
    pthread_mutex_init(&h->lock, NULL);
    pthread_mutex_init(&h->of_lock, NULL);
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&h->bell, &clock);
    pthread_condattr_destroy(&clock);
    for (int i = 0; i < n; i++)
        h->life[i].fd = eventfd(0, EFD_CLOEXEC);
    return h;
}

/* Connects the processes. count[size of `of`]: the number of threads of each. Collective. */
static hvt_status connect(hvt__hall *h, hvt_world *of, const int *count)
{
    for (int p = 0; p < hvt_world_size(of); p++)
        h->most = count[p] > h->most ? count[p] : h->most;
    atomic_init(&h->channels, 1); /* 0: the team's own */
    h->process = of;
    if (hvt_world_size(of) == 1)
        return HVT_OK;
    h->of = of;
    HVT_TRY(hvt_world_agree(of, of->ops->another_thread ? of->ops->another_thread(of, true) : HVT_OK));
    return of->ops->open_channel(of, &h->outside);
}

static void free_hall(hvt__hall *h, bool quiet)
{
    if (h->outside)
        h->of->ops->close_channel(h->of, h->outside, quiet);
    if (h->of && h->of->ops->another_thread)
        h->of->ops->another_thread(h->of, false);
    for (int i = 0; i < h->size; i++)
        if (h->life[i].fd >= 0)
            close(h->life[i].fd);
    pthread_cond_destroy(&h->bell);
    pthread_mutex_destroy(&h->of_lock);
    pthread_mutex_destroy(&h->lock);
    free(h);
}

/* Makes the team of all ranks, and a world for each thread of this process. */
static hvt_status found(hvt__hall *h, const hvt_world *of, const int *count, thread *threads,
                        hvt__team **ret_team)
{
    const int me = hvt_world_rank(of);
    int size = 0, first = 0, rank = 0;
    hvt__team *t;

    for (int p = 0; p < hvt_world_size(of); p++) {
        first += p < me ? count[p] : 0;
        size += count[p];
    }
    *ret_team = t = hvt__team_new(h, size);
    HVT_CHECK(t, E_MEM, "no memory for a world of %d ranks", size);
    t->remote = h->of;
    atomic_init(&t->users, 1);
    for (int p = 0; p < hvt_world_size(of); p++)
        for (int i = 0; i < count[p]; i++, rank++) {
            t->place[rank].thread = i;
            t->place[rank].process = p == me ? HVT__OWN : p;
        }
    for (int i = 0; i < h->size; i++) {
        hvt_world *w = calloc(1, sizeof *w);

        threads[i] = (thread){.hall = h, .world = w, .index = i};
        HVT_CHECK(w, E_MEM, "no memory for a world of %d ranks", size);
        HVT_TRY(hvt__member_open(w, t, first + i, size));
        atomic_fetch_add(&t->users, 1);
        for (int r = 0; r < size; r++) {
            const int its = t->place[r].process == HVT__OWN ? me : t->place[r].process;

            w->node_of[r] = of ? of->node_of[its] : 0;
            if (of)
                memcpy(w->host[r], of->host[its], sizeof *w->host);
            else
                gethostname(w->host[r], sizeof w->host[r] - 1);
        }
        hvt__member_nodes(w);
    }
    return HVT_OK;
}

static hvt_status agree(hvt_world *of, hvt_status s)
{
    return of ? hvt_world_agree(of, s) : s;
}

static hvt_status check(int n, hvt_rank_fn *fn, const hvt_world *of)
{
    enum { MOST = 1024 };

    HVT_CHECK(fn, E_ARG, "threads of a world need a function for the ranks");
    HVT_CHECK(n >= 1 && n <= MOST, E_ARG, "%d threads for a world, expected 1 to %d", n, MOST);
    HVT_CHECK(!of || of->ops->request <= sizeof((hvt__letter *)0)->request, E_UNSUPPORTED,
              "world %s cannot be joined by threads", of->ops->name);
    return HVT_OK;
}

hvt_status hvt__world_open_threads(hvt_world *of, int n, hvt_rank_fn *fn, void *ctx)
{
    thread *threads = NULL;
    hvt__team *t = NULL;
    hvt__hall *h = NULL;
    int *count = NULL;
    hvt_status s;

    HVT_TRY(agree(of, check(n, fn, of)));
    count = calloc((size_t)hvt_world_size(of), sizeof *count);
    threads = calloc((size_t)n, sizeof *threads);
    h = new_hall(n, fn, ctx);
    s = count && threads && h ? HVT_OK : HVT_FAIL(E_MEM, "no memory for a world of %d threads", n);
    HVT_TRY_OR(done, agree(of, s));
    if (of)
        HVT_TRY_OR(done, hvt_world_allgather(of, &n, sizeof n, count));
    else
        count[0] = n;
    HVT_TRY_OR(done, connect(h, of, count));
    HVT_TRY_OR(done, agree(of, found(h, of, count, threads, &t)));
    s = agree(of, run_all(h, threads, n));
done:
    if (!h || !h->held) {
        for (int i = 0; threads && i < n; i++)
            hvt_world_close(&threads[i].world);
        if (t && atomic_fetch_sub(&t->users, 1) == 1)
            free(t);
        if (h)
            free_hall(h, s == HVT_OK);
    }
    free(threads);
    free(count);
    return s;
}

hvt_status hvt_world_open_threads(int n, hvt_rank_fn *fn, void *ctx)
{
    return hvt__world_open_threads(NULL, n, fn, ctx);
}
