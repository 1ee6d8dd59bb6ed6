/*
 * The worker: a thread that runs a host comm's operations as soon as they are issued, while the caller
 * computes.
 *
 * It has work until the queue is empty, an operation has failed, or the next one is *held*, that is, calls a
 * function of the caller or is a checked collective. The waiting caller runs held ones on its device; the
 * worker has its own device, since a device is used by one thread at a time.
 *
 * Only the caller issues. So a worker without work gets none until the caller issues more, and until then the
 * caller may use the comm's backend.
 *
 * Ranks with and without a worker run the same operations in the same order, so they can be mixed.
 */
#define _GNU_SOURCE
#include "base/thread.h"
#include "base/trace.h"
#include "comm_internal.h"

#include <errno.h>
#include <sched.h>
#include <stdatomic.h>

struct hvt__worker {
    hvt_comm *c;
    hvt_device *dev; /* the worker's own */
    pthread_t thread;
    pthread_mutex_t mutex; /* guards the comm's queue */
    pthread_cond_t work, news;
    bool yield, stop;
    hvt__error error;    /* the worker's failure, until a caller takes it */
    atomic_bool awaited; /* the caller is waiting */
};

/* Returns the worker's next operation, or NULL. Call with the queue's lock. */
static const hvt__op *next(const struct hvt__worker *w)
{
    const hvt__queue *q = &w->c->queue;
    const hvt__op *op = hvt__queue_at(q, q->run + 1);
    bool held = q->broken || q->run == q->issued || op->kind == HVT__REDUCE_APPLY || op->kind == HVT__CALL;

    return held ? NULL : op;
}

bool hvt__worker_await(hvt_comm *c)
{
    struct hvt__worker *w = c->worker;

    if (!w || !next(w))
        return false;
    pthread_cond_signal(&w->work);
    atomic_store(&w->awaited, true);
    pthread_cond_wait(&w->news, &w->mutex);
    atomic_store(&w->awaited, false);
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
    if (next(c->worker))
        pthread_cond_signal(&c->worker->work);
    pthread_mutex_unlock(&c->worker->mutex);
}

void hvt__worker_rest(hvt_comm *c)
{
    hvt__worker_lock(c);
    while (hvt__worker_await(c))
        ;
    hvt__worker_unlock(c);
}

static void *work(void *arg)
{
    struct hvt__worker *w = arg;
    const hvt__op *op;

    hvt__trace_thread(HVT__EXCHANGING);
    hvt__awaited = w->yield ? &w->awaited : NULL;
    pthread_mutex_lock(&w->mutex);
    for (;;) {
        while (!(op = next(w)) && !w->stop)
            pthread_cond_wait(&w->work, &w->mutex);
        if (!op)
            break;
        hvt__trace_begin(HVT__EXCHANGE, -1);
        hvt__trace_bytes(op->count * hvt_dtype_size(op->type));
        if (hvt__queue_run_next(w->c, w->dev) != HVT_OK)
            hvt__error_take(&w->error);
        hvt__trace_end();
        pthread_cond_broadcast(&w->news);
    }
    pthread_mutex_unlock(&w->mutex);
    return NULL;
}

static void discard(struct hvt__worker *w)
{
    pthread_cond_destroy(&w->work);
    pthread_cond_destroy(&w->news);
    pthread_mutex_destroy(&w->mutex);
    hvt_device_close(&w->dev);
    free(w);
}

/* Gives the worker its own CPUs. Until then it has the caller's affinity, which may be that of a device's
 * thread 0. */
static void move_to_own_processors(pthread_t thread, const hvt_overlap *how)
{
    cpu_set_t set;

    CPU_ZERO(&set);
    for (int i = 0; i < how->ncpus; i++)
        if (how->cpus[i] >= 0 && how->cpus[i] < CPU_SETSIZE)
            CPU_SET(how->cpus[i], &set);
    if (CPU_COUNT(&set) && pthread_setaffinity_np(thread, sizeof set, &set))
        HVT_WARN("cannot pin the comm's worker, so it runs on its caller's processors");
}

static hvt_status start(struct hvt__worker *w, const hvt_overlap *how)
{
    const hvt_device_opts opts = {.threads = 1, .yield = how->yield, .isa = hvt_device_isa(w->c->dev)};
    int error;

    HVT_TRY(hvt_device_open(hvt_device_name(w->c->dev), &opts, &w->dev));
    error = hvt__thread_start(&w->thread, work, w);
    HVT_CHECK(error != ENOMEM, E_MEM, "no memory to start the comm's worker");
    HVT_CHECK(!error, E_DEVICE, "the comm's worker did not start: %s", strerror(error));
    move_to_own_processors(w->thread, how);
    return HVT_OK;
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
    w->yield = how->yield;
    pthread_mutex_init(&w->mutex, NULL);
    pthread_cond_init(&w->work, NULL);
    pthread_cond_init(&w->news, NULL);
    HVT_TRY_OR(fail, start(w, how));
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
