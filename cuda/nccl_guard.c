/*
 * The guard of the NCCL comm: it ends waits and reports failures.
 *
 * A dead rank is an error of the communicator over sockets, but over NVLink and shared memory the other
 * ranks' kernels just spin. So a thread polls, several times a second, the communicator's error and the age
 * of the oldest operation; for captured operations, whose age is not visible, the time that the host has been
 * waiting for the device. After a failure, or at an age of stall.abort, it logs the reason and aborts the
 * communicator, which ends the kernels. From then on every call on the comm, and every wait for the device,
 * returns E_COMM with the same line. If the host's wait does not end even then, the process exits, because a
 * device whose queue never empties cannot be closed.
 *
 * The communicator is nonblocking: calls that would wait for other ranks return at once and are polled here.
 * Calls that may block nevertheless (destroy, abort) run in a helper thread, with a deadline.
 */
#define _GNU_SOURCE
#include "nccl_impl.h"

#include <math.h>
#include <sched.h>
#include <stdarg.h>
#include <time.h>
#include <unistd.h>

static const double abort_most = 30; /* s; an abort takes much less time, or never returns */

static void pause_ns(long ns)
{
    nanosleep(&(struct timespec){.tv_nsec = ns}, NULL);
}

/* The end of a communicator. It outlives the comm if the call never returns. */
typedef struct ending {
    ncclComm_t nccl;
    int gpu;
    bool abort;
} ending;

static void run_ending(const ending *e)
{
    cudaSetDevice(e->gpu); /* a new thread would otherwise create a context on GPU 0 */
    if (e->abort)
        hvt__nv.ncclCommAbort(e->nccl);
    else
        hvt__nv.ncclCommDestroy(e->nccl);
}

static void *ending_thread(void *arg)
{
    run_ending(arg);
    free(arg);
    return NULL;
}

/* End the communicator in a helper thread, or here if none can be started. */
static void end_in_helper(comm_nccl *st, bool abort)
{
    ending here = {st->nccl, cuda_of(st->dev)->index, abort}, *e = malloc(sizeof *e);

    st->nccl = NULL;
    if (e)
        *e = here;
    st->ending = e && pthread_create(&st->helper, NULL, ending_thread, e) == 0;
    if (st->ending)
        return;
    free(e);
    run_ending(&here);
}

static double abort_timeout(const comm_nccl *st)
{
    return st->stall.abort < abort_most ? st->stall.abort : abort_most;
}

/* L: abort; no other call on it follows. Its kernels' results are invalid. */
static void abort_nccl(comm_nccl *st)
{
    if (st->broken)
        hvt__cuda_lose(st->dev, st->why);
    if (!st->nccl)
        return;
    st->aborted = hvt__now();
    end_in_helper(st, true);
}

/* L: exit if an abort takes too long while the host waits for the device, which means that kernels do not
 * end. (Otherwise it may be waiting for captured graphs to be freed.) */
static void check_abort(comm_nccl *st)
{
    double now = hvt__now(), most = abort_timeout(st), since = cuda_of(st->dev)->waits;

    if (st->ending && pthread_tryjoin_np(st->helper, NULL) == 0)
        st->ending = false;
    if (!st->ending || now - st->aborted < most || !(since > 0) || now - since < most)
        return;
    HVT_ERROR("comm nccl, rank %d (%s): ncclCommAbort has not returned after %.0f s: ending the process",
              st->world->rank, st->world->host[st->world->rank], now - st->aborted);
    _exit(EXIT_FAILURE);
}

/* L: record why the comm is unusable; only the first reason counts. */
static HVT_PRINTF(2, 3) void mark_broken(comm_nccl *st, const char *fmt, ...)
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

/* L: advance `ended`; returns the oldest operation that has not ended, or 0. */
static hvt_ticket oldest(comm_nccl *st)
{
    if (st->issued > st->ended + NCCL_WATCHED) /* older ones' events have been reused */
        st->ended = st->issued - NCCL_WATCHED;
    for (; st->ended < st->issued; st->ended++) {
        const nccl_op *o = &st->op[(st->ended + 1) % NCCL_WATCHED];
        cudaError_t e = o->captured ? cudaSuccess : cudaEventQuery(o->done);

        if (e != cudaSuccess)
            cudaGetLastError(); /* otherwise the next launch of this thread would report it */
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
    ncclResult_t error = ncclSuccess, r = hvt__nv.ncclCommGetAsyncError(st->nccl, &error);
    hvt_ticket t = oldest(st);
    nccl_op *o = &st->op[t % NCCL_WATCHED];
    double now = hvt__now(), age = t ? now - o->issued : 0;
    double since = st->has_captured ? (double)cuda_of(st->dev)->waits : 0;
    char state[144] = "no operation is in flight";

    if (t)
        snprintf(state, sizeof state, "%s of %zu %s (ticket %llu), begun %.1f s ago, has not ended", o->what,
                 o->count, hvt_dtype_name(o->type), (unsigned long long)t, age);
    if (r == ncclSuccess)
        r = error;
    if (r != ncclSuccess && r != ncclInProgress) {
        mark_broken(st, "%s (%s); %s", hvt__nv.ncclGetErrorString(r), hvt__nv.ncclGetLastError(st->nccl),
                    state);
    } else if (t && age > st->stall.abort) {
        mark_broken(st, "%s: a rank does not take part", state);
    } else if (since > 0 && now - since > st->stall.abort) {
        mark_broken(st,
                    "the host has waited for the device for %.1f s: a rank did not launch its captured step",
                    now - since);
    } else if (t && age > st->stall.warn && !o->warned) {
        o->warned = true;
        HVT_WARN("comm nccl, rank %d (%s): %s", st->world->rank, st->world->host[st->world->rank], state);
    }
}

static void guard(void *arg)
{
    comm_nccl *st = arg;
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeThreadLocal; /* ignore others' captures */

    cudaSetDevice(cuda_of(st->dev)->index); /* per thread, like the mode */
    cudaThreadExchangeStreamCaptureMode(&mode);
    pthread_mutex_lock(&st->lock);
    if (st->broken)
        check_abort(st);
    else
        poll_comm(st);
    if (st->broken && st->nccl) {
        HVT_ERROR("%s", st->why); /* at once: the caller may be waiting for the device */
        abort_nccl(st);
    }
    pthread_mutex_unlock(&st->lock);
}

hvt_status hvt__nccl_guard_start(comm_nccl *st)
{
    st->guard = (hvt__ticker){"the guard of a comm", 0.1, guard, st};
    return hvt__ticker_open(&st->guard);
}

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
        if (waited < 1e-4) { /* NCCL queues operations in a thread, faster than the shortest sleep */
            sched_yield();
        } else {
            pause_ns(ns);
            ns = ns < 1000000 ? 2 * ns : ns;
        }
        asked = hvt__nv.ncclCommGetAsyncError(st->nccl, &r);
        if (asked != ncclSuccess)
            r = asked;
    }
    if (r == ncclSuccess)
        return HVT_OK;
    if (r != ncclInProgress)
        mark_broken(st, "%.*s: %s (%s)", name, call, hvt__nv.ncclGetErrorString(r),
                    hvt__nv.ncclGetLastError(st->nccl));
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
            waits = st->ending && hvt__now() - st->aborted < abort_timeout(st);
        }
        pthread_mutex_unlock(&st->lock);
        if (!waits)
            return s;
        pause_ns(ns);
    }
}

/* Without the guard no lock is needed. A helper that takes too long may never return. */
void hvt__nccl_end(comm_nccl *st)
{
    bool whole;
    double most;
    struct timespec end;

    hvt__ticker_close(&st->guard);
    whole = st->nccl && !st->broken && NCCL(st, ncclCommFinalize(st->nccl)) == HVT_OK;
    most = whole ? st->stall.abort : abort_timeout(st);
    if (whole)
        end_in_helper(st, false);
    else
        abort_nccl(st);
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += (time_t)ceil(most);
    if (!st->ending || pthread_timedjoin_np(st->helper, NULL, &end) == 0)
        return;
    pthread_detach(st->helper);
    HVT_WARN("comm nccl: %s has not returned after %.0f s; a captured graph may still contain its operations",
             whole ? "ncclCommDestroy" : "ncclCommAbort", most);
}
