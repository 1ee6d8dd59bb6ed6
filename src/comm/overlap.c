/*
 * The worker: a thread that performs a host comm's operations as soon as they are issued, while the caller
 * computes.
 *
 * The comm's table is replaced by one that queues. What the comm was, its table and its state, is the *inner*
 * comm, and nobody but the worker touches that while it has work. It has work until the queue is empty, an
 * operation has failed, or the next one is *held*: a combine, whose function is the caller's. Held ones are
 * performed by whoever waits for them, on the caller's device; all others by the worker, on one of its own,
 * since a device is one thread's at a time.
 *
 * Only the caller issues. So once the worker has no work, it gets none before the caller comes back, and
 * until then the inner comm is the caller's.
 *
 * Ranks with a worker and ranks without do the same things in the same order, so they may be mixed.
 */
#define _GNU_SOURCE
#include "base/trace.h"
#include "base_impl.h"
#include "room.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

struct hvt__overlap {
    hvt__pending pending; /* run: performed; broken: what failed there, or at the start */
    hvt_comm_ops ops;     /* the comm's table now */
    hvt_comm inner;
    hvt_device *callers, *own;
    hvt_overlap how;

    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t work, news; /* news: of `opened` and `pending` */
    bool opened, stop;
    hvt__error error; /* of what failed; from the worker to the first who asks */
    bool told;
    atomic_bool awaited; /* the caller does nothing but wait */
};

static _Thread_local const atomic_bool *awaited; /* of the worker that this thread is */

bool hvt__overlap_patient(void)
{
    return awaited && !atomic_load_explicit(awaited, memory_order_relaxed);
}

/* ---- the inner comm, for whoever may use it -------------------------------------------------- */

static hvt_status perform(hvt_comm *inner, const hvt__job *j)
{
    hvt_ticket t;

    if (j->kind == HVT__COMBINE)
        HVT_TRY(inner->ops->combine(inner, j->buf, j->count, j->type, j->fn, j->ctx, &t));
    else
        HVT_TRY(hvt__comm_issue(inner, j->kind, j->buf, j->count, j->type, &t));
    return inner->ops->wait(inner, t);
}

/* Perform the next operation of the queue; called and left with the mutex held. */
static void perform_next(struct hvt__overlap *o, hvt_device *dev)
{
    hvt__job j = *hvt__pending_at(&o->pending, o->pending.run + 1); /* the ring may grow meanwhile */
    hvt_status s;

    pthread_mutex_unlock(&o->mutex);
    o->inner.dev = dev;
    s = perform(&o->inner, &j);
    o->inner.dev = o->callers;
    if (s != HVT_OK)
        hvt__error_take(&o->error);
    pthread_mutex_lock(&o->mutex);
    if (s == HVT_OK)
        o->pending.run++;
    else
        o->pending.broken = s;
}

static size_t next_bytes(const struct hvt__overlap *o)
{
    const hvt__job *j = hvt__pending_at(&o->pending, o->pending.run + 1);

    return j->count * hvt_dtype_size(j->type);
}

static bool is_held(const struct hvt__overlap *o)
{
    return hvt__pending_at(&o->pending, o->pending.run + 1)->kind == HVT__COMBINE;
}

static bool has_work(const struct hvt__overlap *o)
{
    return !o->pending.broken && o->pending.run < o->pending.issued && !is_held(o);
}

/* ---- the worker ------------------------------------------------------------------------------ */

/* What it inherited is the caller's place: that of thread 0 of a device. */
static void take_place(const hvt_overlap *how)
{
    cpu_set_t set;

    CPU_ZERO(&set);
    for (int i = 0; i < how->ncpus; i++)
        if (how->cpus[i] >= 0 && how->cpus[i] < CPU_SETSIZE)
            CPU_SET(how->cpus[i], &set);
    if (CPU_COUNT(&set) && pthread_setaffinity_np(pthread_self(), sizeof set, &set))
        HVT_WARN("the comm's worker stays on the processors of its caller");
}

static hvt_status open_own(struct hvt__overlap *o)
{
    const hvt_device_opts opts = {.threads = 1, .yield = o->how.yield, .isa = hvt_device_isa(o->callers)};

    return hvt_device_open(hvt_device_name(o->callers), &opts, &o->own);
}

static void *work(void *arg)
{
    struct hvt__overlap *o = arg;
    hvt_status s;

    hvt__trace_thread(HVT__EXCHANGING);
    awaited = o->how.yield ? &o->awaited : NULL;
    take_place(&o->how);
    s = open_own(o);
    if (s != HVT_OK)
        hvt__error_take(&o->error);
    pthread_mutex_lock(&o->mutex);
    o->pending.broken = s;
    o->opened = true;
    pthread_cond_broadcast(&o->news);
    for (;;) {
        while (!has_work(o) && !o->stop)
            pthread_cond_wait(&o->work, &o->mutex);
        if (!has_work(o))
            break;
        hvt__trace_begin(HVT__EXCHANGE, -1);
        hvt__trace_bytes(next_bytes(o));
        perform_next(o, o->own);
        hvt__trace_end();
        pthread_cond_broadcast(&o->news);
    }
    pthread_mutex_unlock(&o->mutex);
    hvt_device_close(&o->own);
    return NULL;
}

/* Called and left with the mutex held. */
static void await_news(struct hvt__overlap *o)
{
    atomic_store(&o->awaited, true);
    pthread_cond_wait(&o->news, &o->mutex);
    atomic_store(&o->awaited, false);
}

/* ---- the comm's table now --------------------------------------------------------------------- */

/* The worker's failure becomes the caller's, with all that it says; once. */
static hvt_status tell_failure(struct hvt__overlap *o)
{
    HVT_CHECK(!o->told, E_COMM, "an earlier operation of this comm failed (%s): it cannot go on",
              hvt_status_name(o->pending.broken));
    o->told = true;
    hvt__error_put(&o->error);
    return hvt__pass(o->pending.broken, __FILE__, __LINE__, "on the comm's worker");
}

static hvt_status overlap_wait(hvt_comm *c, hvt_ticket ticket)
{
    struct hvt__overlap *o = c->state;
    hvt_status s = HVT_OK;

    pthread_mutex_lock(&o->mutex);
    while (!o->pending.broken && o->pending.run < ticket) {
        if (!is_held(o)) {
            await_news(o);
            continue;
        }
        perform_next(o, o->callers);
        if (has_work(o))
            pthread_cond_signal(&o->work);
    }
    if (o->pending.run < ticket)
        s = tell_failure(o);
    pthread_mutex_unlock(&o->mutex);
    if (s != HVT_OK && o->inner.ops->leave) /* the worker has no work any more */
        o->inner.ops->leave(&o->inner, HVT__BY_ITSELF);
    return s;
}

/* Until the inner comm is the caller's. What failed is told by the next wait. */
static hvt_comm *take_inner(hvt_comm *c)
{
    struct hvt__overlap *o = c->state;

    pthread_mutex_lock(&o->mutex);
    while (has_work(o))
        await_news(o);
    pthread_mutex_unlock(&o->mutex);
    return &o->inner;
}

static hvt_status queue(hvt_comm *c, const hvt__job *job, hvt_ticket *ret_ticket)
{
    struct hvt__overlap *o = c->state;
    hvt_status s;

    pthread_mutex_lock(&o->mutex);
    s = hvt__pending_issue(c, job, ret_ticket);
    if (s != HVT_OK)
        hvt__error_take(&o->error);
    if (has_work(o))
        pthread_cond_signal(&o->work);
    pthread_mutex_unlock(&o->mutex);
    return s;
}

static hvt_status overlap_allreduce(hvt_comm *c, void *buf, size_t count, hvt_dtype t, hvt_ticket *ret)
{
    return queue(c, &(hvt__job){.buf = buf, .count = count, .type = t, .kind = HVT__ALLREDUCE}, ret);
}

static hvt_status overlap_reduce_scatter(hvt_comm *c, void *buf, size_t count, hvt_dtype t, hvt_ticket *ret)
{
    return queue(c, &(hvt__job){.buf = buf, .count = count, .type = t, .kind = HVT__REDUCE_SCATTER}, ret);
}

static hvt_status overlap_allgather(hvt_comm *c, void *buf, size_t count, hvt_dtype t, hvt_ticket *ret)
{
    return queue(c, &(hvt__job){.buf = buf, .count = count, .type = t, .kind = HVT__ALLGATHER}, ret);
}

static hvt_status overlap_combine(hvt_comm *c, void *buf, size_t count, hvt_dtype t, hvt_combine_fn *fn,
                                  void *ctx, hvt_ticket *ret)
{
    const hvt__job job = {.buf = buf, .count = count, .type = t, .kind = HVT__COMBINE, .fn = fn, .ctx = ctx};

    return queue(c, &job, ret);
}

/* The rest is the inner comm's, between operations. */

static hvt_status overlap_broadcast(hvt_comm *c, void *buf, size_t bytes, int root)
{
    struct hvt__overlap *o = c->state;

    HVT_TRY(overlap_wait(c, c->issued));
    return o->inner.ops->broadcast(&o->inner, buf, bytes, root);
}

static hvt_status overlap_alloc(hvt_comm *c, size_t bytes, void **ret_ptr)
{
    hvt_comm *inner = take_inner(c);

    return inner->ops->alloc(inner, bytes, ret_ptr);
}

static hvt_status overlap_share(hvt_comm *c, size_t bytes, void **ret_ptr)
{
    hvt_comm *inner = take_inner(c);

    return inner->ops->share(inner, bytes, ret_ptr);
}

static void overlap_release(hvt_comm *c, void *ptr)
{
    struct hvt__overlap *o = c->state;

    if (ptr)
        overlap_wait(c, c->issued); /* what was issued on it; a failure has been or will be told by wait */
    o->inner.ops->release(&o->inner, ptr);
}

static int overlap_peers(hvt_comm *c, const void *buf, const void *ret_ptrs[])
{
    hvt_comm *inner = take_inner(c);

    return inner->ops->peers(inner, buf, ret_ptrs);
}

static void overlap_slice(const hvt_comm *c, size_t count, int rank, size_t *ret_first, size_t *ret_end)
{
    const struct hvt__overlap *o = c->state;

    o->inner.ops->slice(&o->inner, count, rank, ret_first, ret_end);
}

static hvt__leaving overlap_left(hvt_comm *c, int rank)
{
    hvt_comm *inner = take_inner(c);

    return inner->ops->left(inner, rank);
}

static void overlap_leave(hvt_comm *c, hvt__leaving why)
{
    hvt_comm *inner = take_inner(c);

    inner->ops->leave(inner, why);
}

static void overlap_close(hvt_comm *c)
{
    hvt__overlap_end(c);
    c->ops->close(c);
}

static hvt_comm_ops table_over(const hvt_comm_ops *inner)
{
    return (hvt_comm_ops){
        .name = inner->name,
        .close = overlap_close,
        .alloc = overlap_alloc,
        .release = overlap_release,
        .peers = overlap_peers,
        .slice = inner->slice ? overlap_slice : NULL,
        .broadcast = overlap_broadcast,
        .allreduce = overlap_allreduce,
        .reduce_scatter = overlap_reduce_scatter,
        .allgather = overlap_allgather,
        .wait = overlap_wait,
        .share = inner->share ? overlap_share : NULL,
        .combine = inner->combine ? overlap_combine : NULL,
        .left = inner->left ? overlap_left : NULL,
        .leave = inner->leave ? overlap_leave : NULL,
    };
}

/* ---- life ------------------------------------------------------------------------------------- */

static void stop(struct hvt__overlap *o)
{
    pthread_mutex_lock(&o->mutex);
    o->stop = true;
    atomic_store(&o->awaited, true);
    pthread_cond_signal(&o->work);
    pthread_mutex_unlock(&o->mutex);
    pthread_join(o->thread, NULL);
}

/* Signals are the main program's. */
static hvt_status start(struct hvt__overlap *o)
{
    sigset_t all, before;
    int error;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    error = pthread_create(&o->thread, NULL, work, o);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    HVT_CHECK(!error, E_DEVICE, "the comm's worker did not start: %s", strerror(error));
    pthread_mutex_lock(&o->mutex);
    while (!o->opened)
        pthread_cond_wait(&o->news, &o->mutex);
    pthread_mutex_unlock(&o->mutex);
    if (!o->pending.broken)
        return HVT_OK;
    stop(o);
    return tell_failure(o);
}

static void discard(struct hvt__overlap *o)
{
    pthread_cond_destroy(&o->work);
    pthread_cond_destroy(&o->news);
    pthread_mutex_destroy(&o->mutex);
    free(o->pending.jobs);
    free(o);
}

hvt_status hvt__overlap_begin(hvt_comm *c, const hvt_overlap *how)
{
    const hvt_world_ops *world = c->world->ops;
    bool asks = c->ops->messages && world->another_thread;
    struct hvt__overlap *o;
    hvt_status s = HVT_OK;

    if (asks)
        HVT_TRY(world->another_thread(c->world, true));
    o = calloc(1, sizeof *o);
    HVT_CHECK_OR(fail, o, E_MEM, "no memory for a comm's worker (%zu bytes)", sizeof *o);
    o->inner = *c;
    o->callers = c->dev;
    o->how = *how;
    o->ops = table_over(c->ops);
    o->pending.run = o->pending.issued = c->issued;
    pthread_mutex_init(&o->mutex, NULL);
    pthread_cond_init(&o->work, NULL);
    pthread_cond_init(&o->news, NULL);
    HVT_TRY_OR(fail, start(o));
    c->ops = &o->ops;
    c->state = o;
    c->overlap = o;
    return HVT_OK;
fail:
    if (o)
        discard(o);
    if (asks)
        world->another_thread(c->world, false);
    return s;
}

void hvt__overlap_end(hvt_comm *c)
{
    struct hvt__overlap *o = c->overlap;
    const hvt_world_ops *world = c->world->ops;

    if (!o)
        return;
    stop(o);
    c->ops = o->inner.ops;
    c->state = o->inner.state;
    c->issued = o->inner.issued;
    c->overlap = NULL;
    discard(o);
    if (c->ops->messages && world->another_thread)
        world->another_thread(c->world, false);
}
