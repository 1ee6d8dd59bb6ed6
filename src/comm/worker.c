/*
 * The worker: a thread that runs a host comm's operations as soon as they are issued, while the caller
 * computes.
 *
 * It has work until the queue is empty, an operation has failed, or the next one is *held*: one that calls a
 * function of the caller's or is a checked collective. Held ones are run by whoever waits for them, on the
 * caller's device; all others by the worker, on one of its own, since a device is one thread's at a time.
 *
 * Only the caller issues. So once the worker has no work, it gets none before the caller comes back, and
 * until then the comm's backend is the caller's.
 *
 * Ranks with a worker and ranks without do the same things in the same order, so they may be mixed.
 */
#define _GNU_SOURCE
#include "base/trace.h"
#include "base_impl.h"
#include "comm_internal.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

struct hvt__worker {
    hvt_comm *c;
    hvt_device *dev; /* its own */
    hvt_overlap how;
    pthread_t thread;
    pthread_mutex_t mutex;     /* of the comm's queue */
    pthread_cond_t work, news; /* news: of `opened` and the queue */
    bool opened, stop;
    hvt_status refused;  /* its device */
    hvt__error error;    /* of what failed here; to the first who asks */
    atomic_bool awaited; /* the caller does nothing but wait */
};

/* ---- with the queue's lock --------------------------------------------------------------------- */

static const hvt__op *next(const hvt__queue *q)
{
    return hvt__queue_at(q, q->run + 1);
}

static bool has_work(const struct hvt__worker *w)
{
    const hvt__queue *q = &w->c->queue;

    return !q->broken && q->run < q->issued && next(q)->kind != HVT__REDUCE_APPLY &&
           next(q)->kind != HVT__CALL;
}

static void await_news(struct hvt__worker *w)
{
    pthread_cond_signal(&w->work);
    atomic_store(&w->awaited, true);
    pthread_cond_wait(&w->news, &w->mutex);
    atomic_store(&w->awaited, false);
}

bool hvt__worker_await(hvt_comm *c)
{
    if (!has_work(c->worker))
        return false;
    await_news(c->worker);
    return true;
}

hvt_status hvt__worker_error(hvt_comm *c, hvt_status s)
{
    hvt__error_put(&c->worker->error);
    return hvt__pass(s, __FILE__, __LINE__, "on the comm's worker");
}

void hvt__worker_lock(hvt_comm *c)
{
    if (c->worker)
        pthread_mutex_lock(&c->worker->mutex);
}

void hvt__worker_unlock(hvt_comm *c)
{
    if (!c->worker)
        return;
    if (has_work(c->worker))
        pthread_cond_signal(&c->worker->work);
    pthread_mutex_unlock(&c->worker->mutex);
}

void hvt__worker_rest(hvt_comm *c)
{
    hvt__worker_lock(c);
    while (c->worker && has_work(c->worker))
        await_news(c->worker);
    hvt__worker_unlock(c);
}

/* ---- the thread -------------------------------------------------------------------------------- */

/* What it inherited is the caller's place: that of thread 0 of a device. */
static void move_to_own_processors(const hvt_overlap *how)
{
    cpu_set_t set;

    CPU_ZERO(&set);
    for (int i = 0; i < how->ncpus; i++)
        if (how->cpus[i] >= 0 && how->cpus[i] < CPU_SETSIZE)
            CPU_SET(how->cpus[i], &set);
    if (CPU_COUNT(&set) && pthread_setaffinity_np(pthread_self(), sizeof set, &set))
        HVT_WARN("the comm's worker stays on the processors of its caller");
}

static hvt_status open_device(struct hvt__worker *w)
{
    const hvt_device_opts opts = {.threads = 1, .yield = w->how.yield, .isa = hvt_device_isa(w->c->dev)};

    return hvt_device_open(hvt_device_name(w->c->dev), &opts, &w->dev);
}

static void run_next(struct hvt__worker *w)
{
    const hvt__op *op = next(&w->c->queue);

    hvt__trace_begin(HVT__EXCHANGE, -1);
    hvt__trace_bytes(op->count * hvt_dtype_size(op->type));
    if (hvt__queue_run_next(w->c, w->dev) != HVT_OK)
        hvt__error_take(&w->error);
    hvt__trace_end();
    pthread_cond_broadcast(&w->news);
}

static void *work(void *arg)
{
    struct hvt__worker *w = arg;

    hvt__trace_thread(HVT__EXCHANGING);
    hvt__awaited = w->how.yield ? &w->awaited : NULL;
    move_to_own_processors(&w->how);
    w->refused = open_device(w);
    if (w->refused != HVT_OK)
        hvt__error_take(&w->error);
    pthread_mutex_lock(&w->mutex);
    w->opened = true;
    pthread_cond_broadcast(&w->news);
    while (w->refused == HVT_OK) {
        while (!w->stop && !has_work(w))
            pthread_cond_wait(&w->work, &w->mutex);
        if (!has_work(w))
            break;
        run_next(w);
    }
    pthread_mutex_unlock(&w->mutex);
    hvt_device_close(&w->dev);
    return NULL;
}

/* ---- life -------------------------------------------------------------------------------------- */

/* Signals are the main program's. */
static hvt_status start(struct hvt__worker *w)
{
    sigset_t all, before;
    int error;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    error = pthread_create(&w->thread, NULL, work, w);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    HVT_CHECK(!error, E_DEVICE, "the comm's worker did not start: %s", strerror(error));
    pthread_mutex_lock(&w->mutex);
    while (!w->opened)
        pthread_cond_wait(&w->news, &w->mutex);
    pthread_mutex_unlock(&w->mutex);
    if (w->refused == HVT_OK)
        return HVT_OK;
    pthread_join(w->thread, NULL);
    hvt__error_put(&w->error);
    return hvt__pass(w->refused, __FILE__, __LINE__, "on the comm's worker");
}

static void discard(struct hvt__worker *w)
{
    pthread_cond_destroy(&w->work);
    pthread_cond_destroy(&w->news);
    pthread_mutex_destroy(&w->mutex);
    free(w);
}

hvt_status hvt__worker_start(hvt_comm *c, const hvt_overlap *how)
{
    const hvt_world_ops *world = c->world->ops;
    bool asks = c->ops->messages && world->another_thread;
    struct hvt__worker *w;
    hvt_status s = HVT_OK;

    if (asks)
        HVT_TRY(world->another_thread(c->world, true));
    w = calloc(1, sizeof *w);
    HVT_CHECK_OR(fail, w, E_MEM, "no memory for a comm's worker (%zu bytes)", sizeof *w);
    w->c = c;
    w->how = *how;
    pthread_mutex_init(&w->mutex, NULL);
    pthread_cond_init(&w->work, NULL);
    pthread_cond_init(&w->news, NULL);
    HVT_TRY_OR(fail, start(w));
    c->worker = w;
    return HVT_OK;
fail:
    if (w)
        discard(w);
    if (asks)
        world->another_thread(c->world, false);
    return s;
}

void hvt__worker_stop(hvt_comm *c)
{
    struct hvt__worker *w = c->worker;
    const hvt_world_ops *world = c->world->ops;

    if (!w)
        return;
    pthread_mutex_lock(&w->mutex);
    w->stop = true;
    atomic_store(&w->awaited, true);
    pthread_cond_signal(&w->work);
    pthread_mutex_unlock(&w->mutex);
    pthread_join(w->thread, NULL);
    c->worker = NULL;
    discard(w);
    if (c->ops->messages && world->another_thread)
        world->another_thread(c->world, false);
}
