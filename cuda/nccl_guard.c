/*
 * The guard of the comm over NCCL: no wait lasts for ever, and every failure is reported.
 *
 * A rank that has died shows over sockets as an error of the communicator, but over NVLink and shared memory
 * as nothing at all: the other ranks' kernels spin. So a thread polls the communicator's error and the age of
 * the oldest operation several times a second; for captured operations, whose age is not visible, how long
 * the host has been waiting for the device. After a failure, or at an age of stall.abort, it logs the reason
 * and aborts the communicator, which ends the kernels; from then on every call on the comm, and every wait
 * for the device, returns E_COMM with the same line. If the host's wait does not end even then, the process
 * exits: a device whose queue never empties cannot be closed.
 *
 * The communicator is nonblocking: calls that would wait for other ranks return at once and are polled here.
 * Calls that may block all the same (destroy, abort) are made by a helper thread, with a deadline.
 */
#define _GNU_SOURCE
#include "nccl_impl.h"

#include <math.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { POLL_MS = 100 };
static const double abort_most = 30; /* s; an abort takes much less, or never returns */

static void pause_ns(long ns)
{
    nanosleep(&(struct timespec){.tv_nsec = ns}, NULL);
}

/* ---- giving up ---------------------------------------------------------------------------------- */

typedef struct helper_call {
    ncclResult_t (*call)(ncclComm_t nccl);
    ncclComm_t nccl;
} helper_call;

static void *run_helper_call(void *arg)
{
    helper_call e = *(helper_call *)arg;

    free(arg);
    e.call(e.nccl);
    return NULL;
}

/* Call in a helper thread; false: no thread could be started, and the call was made here. */
static bool call_in_helper(ncclResult_t (*call)(ncclComm_t), ncclComm_t nccl, pthread_t *ret_helper)
{
    helper_call *e = malloc(sizeof *e);

    if (e)
        *e = (helper_call){call, nccl};
    if (e && pthread_create(ret_helper, NULL, run_helper_call, e) == 0)
        return true;
    free(e);
    call(nccl);
    return false;
}

/* Join the helper with a timeout. On timeout it may never return, and is detached. */
static bool join_within(double seconds, pthread_t helper)
{
    struct timespec end;

    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += (time_t)ceil(seconds);
    if (pthread_timedjoin_np(helper, NULL, &end) == 0)
        return true;
    pthread_detach(helper);
    return false;
}

static double abort_timeout(const comm_nccl *st)
{
    return st->stall.abort < abort_most ? st->stall.abort : abort_most;
}

/* L: abort; no other call on it follows. What its kernels leave behind is not a valid sum. */
static void abort_nccl(comm_nccl *st)
{
    ncclComm_t nccl = st->nccl;

    st->nccl = NULL;
    if (st->broken)
        hvt__cuda_lose(st->dev, st->why);
    if (!nccl)
        return;
    st->aborted = hvt__now();
    st->aborting = call_in_helper(ncclCommAbort, nccl, &st->aborter);
}

/* L: an abort also waits until captured graphs that contain operations are freed. But while the host waits
 * for the device, a slow abort means that kernels do not end. */
static void check_abort(comm_nccl *st)
{
    double now = hvt__now(), most = abort_timeout(st), since = cuda_of(st->dev)->waits;

    if (st->aborting && pthread_tryjoin_np(st->aborter, NULL) == 0)
        st->aborting = false;
    if (!st->aborting || now - st->aborted < most || !(since > 0) || now - since < most)
        return;
    hvt__log(HVT_LOG_ERROR,
             "comm nccl, rank %d (%s): ncclCommAbort has not returned after %.0f s: ending the process",
             st->world->rank, st->world->host[st->world->rank], now - st->aborted);
    _exit(EXIT_FAILURE);
}

/* L: record why the comm is unusable; only the first reason counts. */
static void mark_broken(comm_nccl *st, const char *fmt, ...) HVT_PRINTF(2, 3);

static void mark_broken(comm_nccl *st, const char *fmt, ...)
{
    char text[400];
    va_list ap;

    if (st->broken)
        return;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    snprintf(st->why, sizeof st->why, "comm nccl, rank %d (%s): %s", st->world->rank,
             st->world->host[st->world->rank], text);
    st->broken = true;
}

hvt_status hvt__nccl_alive(const comm_nccl *st)
{
    HVT_CHECK(!st->broken, E_COMM, "%s", st->why);
    return HVT_OK;
}

/* "allreduce of 1000 f32 (ticket 7)" */
static const char *name_of(const comm_nccl *st, hvt_ticket t, char *text, size_t size)
{
    const nccl_op *o = &st->op[t % NCCL_WATCHED];

    snprintf(text, size, "%s of %zu %s (ticket %llu)", o->what, o->count, hvt_dtype_name(o->type),
             (unsigned long long)t);
    return text;
}

/* ---- the guard's thread ------------------------------------------------------------------------- */

/* L: advance `ended`; returns the oldest operation that has not ended, or 0. */
static hvt_ticket oldest(comm_nccl *st)
{
    if (st->issued > st->ended + NCCL_WATCHED) /* older ones share their events with newer ones */
        st->ended = st->issued - NCCL_WATCHED;
    for (; st->ended < st->issued; st->ended++) {
        const nccl_op *o = &st->op[(st->ended + 1) % NCCL_WATCHED];
        cudaError_t e = o->captured ? cudaSuccess : cudaEventQuery(o->done);

        if (e == cudaErrorNotReady)
            return st->ended + 1;
        if (e != cudaSuccess) {
            mark_broken(st, "%s: %s", cudaGetErrorName(e), cudaGetErrorString(e));
            return 0;
        }
    }
    return 0;
}

/* L */
static void poll_comm(comm_nccl *st)
{
    ncclResult_t error = ncclSuccess, r = ncclCommGetAsyncError(st->nccl, &error);
    hvt_ticket t = oldest(st);
    double now = hvt__now(), age = t ? now - st->op[t % NCCL_WATCHED].issued : 0;
    double since = st->has_captured ? (double)cuda_of(st->dev)->waits : 0;
    char name[96] = "no operation is under way", seconds[48] = "";

    if (t) {
        name_of(st, t, name, sizeof name);
        snprintf(seconds, sizeof seconds, ", begun %.1f s ago, has not ended", age);
    }
    if (r == ncclSuccess)
        r = error;
    if (r != ncclSuccess && r != ncclInProgress) {
        mark_broken(st, "%s (%s); %s%s", ncclGetErrorString(r), ncclGetLastError(st->nccl), name, seconds);
    } else if (t && age > st->stall.abort) {
        mark_broken(st, "%s%s: a rank does not take part", name, seconds);
    } else if (since > 0 && now - since > st->stall.abort) {
        mark_broken(st,
                    "the host has waited for the device for %.1f s: a rank did not launch its captured step",
                    now - since);
    } else if (t && age > st->stall.warn && !st->op[t % NCCL_WATCHED].warned) {
        st->op[t % NCCL_WATCHED].warned = true;
        HVT_WARN("comm nccl, rank %d (%s): %s%s", st->world->rank, st->world->host[st->world->rank], name,
                 seconds);
    }
}

static void *guard(void *arg)
{
    comm_nccl *st = arg;
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeThreadLocal; /* ignore others' captures */
    struct timespec next;

    cudaSetDevice(cuda_of(st->dev)->index);
    cudaThreadExchangeStreamCaptureMode(&mode);
    clock_gettime(CLOCK_MONOTONIC, &next);
    pthread_mutex_lock(&st->lock);
    while (!st->closing) {
        next.tv_nsec += POLL_MS * 1000000L;
        next.tv_sec += next.tv_nsec / 1000000000L;
        next.tv_nsec %= 1000000000L;
        pthread_cond_timedwait(&st->wake, &st->lock, &next);
        clock_gettime(CLOCK_MONOTONIC, &next);
        if (st->broken)
            check_abort(st);
        else if (!st->closing)
            poll_comm(st);
        if (st->broken && st->nccl) {
            hvt__log(HVT_LOG_ERROR, "%s", st->why); /* at once: the caller may be waiting for the device */
            abort_nccl(st);
        }
    }
    pthread_mutex_unlock(&st->lock);
    return NULL;
}

hvt_status hvt__nccl_guard_open(comm_nccl *st)
{
    pthread_condattr_t a;
    int e = pthread_condattr_init(&a);

    HVT_CHECK(e == 0, E_MEM, "no condition variable: %s", strerror(e));
    pthread_condattr_setclock(&a, CLOCK_MONOTONIC);
    e = pthread_cond_init(&st->wake, &a);
    pthread_condattr_destroy(&a);
    HVT_CHECK(e == 0, E_MEM, "no condition variable: %s", strerror(e));
    pthread_mutex_init(&st->lock, NULL);
    st->locks = true;
    return HVT_OK;
}

void hvt__nccl_guard_close(comm_nccl *st)
{
    if (!st->locks)
        return;
    pthread_cond_destroy(&st->wake);
    pthread_mutex_destroy(&st->lock);
}

hvt_status hvt__nccl_guard_start(comm_nccl *st)
{
    int e = pthread_create(&st->guard, NULL, guard, st);

    HVT_CHECK(e == 0, E_MEM, "no thread to guard a comm: %s", strerror(e));
    st->guarded = true;
    return HVT_OK;
}

void hvt__nccl_guard_stop(comm_nccl *st)
{
    if (!st->guarded)
        return;
    pthread_mutex_lock(&st->lock);
    st->closing = true;
    pthread_cond_signal(&st->wake);
    pthread_mutex_unlock(&st->lock);
    pthread_join(st->guard, NULL);
    st->guarded = false;
}

/* ---- calls that involve other ranks ----------------------------------------------------------------- */

hvt_status hvt__nccl_complete(comm_nccl *st, ncclResult_t r, const char *call)
{
    int name = (int)strcspn(call, "(");
    double start = hvt__now();

    for (long ns = 1000; r == ncclInProgress;) {
        double waited = hvt__now() - start;
        ncclResult_t asked;

        if (waited > st->stall.abort) {
            mark_broken(st, "%.*s has not returned after %.1f s: a rank does not take part", name, call,
                        waited);
            st->peers_missing = true;
            break;
        }
        if (waited < 1e-4) { /* NCCL queues operations in a thread; the shortest sleep takes longer */
            sched_yield();
        } else {
            pause_ns(ns);
            ns = ns < 1000000 ? 2 * ns : ns;
        }
        asked = ncclCommGetAsyncError(st->nccl, &r);
        if (asked != ncclSuccess)
            r = asked;
    }
    if (r == ncclSuccess)
        return HVT_OK;
    if (r != ncclInProgress)
        mark_broken(st, "%.*s: %s (%s)", name, call, ncclGetErrorString(r), ncclGetLastError(st->nccl));
    abort_nccl(st);
    return hvt__nccl_alive(st);
}

hvt_status hvt__nccl_drain(comm_nccl *st)
{
    hvt_status s;
    bool waits;

    for (long ns = 1000;; ns = ns < 1000000 ? 2 * ns : ns) {
        pthread_mutex_lock(&st->lock);
        waits = !st->broken && oldest(st); /* the guard checks its age */
        s = hvt__nccl_alive(st);
        if (s != HVT_OK) {
            abort_nccl(st);
            check_abort(st);
            waits = st->aborting && hvt__now() - st->aborted < abort_timeout(st);
        }
        pthread_mutex_unlock(&st->lock);
        if (!waits)
            return s;
        pause_ns(ns);
    }
}

static void finish(comm_nccl *st)
{
    pthread_t helper;

    if (st->broken || NCCL(st, ncclCommFinalize(st->nccl)) != HVT_OK) {
        abort_nccl(st);
        return;
    }
    if (call_in_helper(ncclCommDestroy, st->nccl, &helper) && !join_within(st->stall.abort, helper))
        HVT_WARN("comm nccl: ncclCommDestroy has not returned after %.0f s: does a captured graph still "
                 "contain its operations?",
                 st->stall.abort);
    st->nccl = NULL;
}

/* The guard has stopped, so no lock is needed. */
void hvt__nccl_end(comm_nccl *st)
{
    if (st->nccl)
        finish(st);
    if (st->aborting && !join_within(abort_timeout(st), st->aborter))
        HVT_WARN("comm nccl: ncclCommAbort has not returned after %.0f s: does a captured graph still "
                 "contain its operations?",
                 abort_timeout(st));
    st->aborting = false;
}
