/*
 * The order of operations in the double of the CUDA runtime: streams, copies, events and capture, over the
 * lazy queues of double_queue.c.
 *
 * Pageable host memory is copied at the call, pinned memory when the copy runs. The default stream accepts
 * only calls that wait. Capture refuses what the original refuses, by the rules of the three modes.
 */
#include "double_room.h"

#include <assert.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

typedef struct capture {
    struct capture *next;
    pthread_t thread;
    enum cudaStreamCaptureMode mode;
    struct CUstream_st *origin;
    graph *graph;
    bool broken, ended;
    int refs; /* origin, joined streams, events */
} capture;

struct CUstream_st {
    stream *queue;
    struct CUstream_st *next;
    capture *capture; /* NULL: not capturing */
    tails tails;
};

struct CUevent_st {
    point *point;     /* NULL: never recorded */
    capture *capture; /* recorded there */
    tails tails;
    bool timed;
};

struct CUgraph_st {
    graph *graph;
};

struct CUgraphExec_st {
    graph *graph;
};

static struct CUstream_st *open_streams;
static capture *captures; /* under way */
static _Thread_local enum cudaStreamCaptureMode thread_mode = cudaStreamCaptureModeGlobal;

cudaError_t hvt__double_forbidden(void)
{
    cudaError_t e = cudaSuccess;

    for (capture *c = captures; c && thread_mode != cudaStreamCaptureModeRelaxed; c = c->next) {
        bool mine = pthread_equal(c->thread, pthread_self()) && c->mode != cudaStreamCaptureModeRelaxed;

        if (mine || (thread_mode == cudaStreamCaptureModeGlobal && c->mode == cudaStreamCaptureModeGlobal)) {
            c->broken = true;
            e = cudaErrorStreamCaptureUnsupported;
        }
    }
    return e;
}

/* ---- streams ------------------------------------------------------------------------------------ */

static bool is_open(const struct CUstream_st *s)
{
    for (const struct CUstream_st *i = open_streams; i; i = i->next)
        if (i == s)
            return true;
    return false;
}

/* Streams that were opened and not destroyed; the default stream is not one of them. */
#define NEED_STREAM(s)                                                                                       \
    REFUSE(!is_open(s), hvt__double_refuse(cudaErrorInvalidResourceHandle, "%s: %p is no open stream",       \
                                           __func__, (void *)(s)))

static void drop_capture(capture *c)
{
    if (c && --c->refs == 0)
        free(c);
}

/* What s is given now: queued, or noted by the capture. */
static cudaError_t submit(struct CUstream_st *s, work w)
{
    if (!s->capture) {
        hvt__double_queue(s->queue, w);
        return cudaSuccess;
    }
    if (s->capture->broken) {
        if (w.drop)
            w.drop(w.ctx);
        return cudaErrorStreamCaptureInvalidated;
    }
    hvt__double_graph_add(s->capture->graph, w, &s->tails);
    return cudaSuccess;
}

static void submit_any(void *s, work w)
{
    hvt__double_lock();
    if (is_open(s)) {
        submit(s, w);
    } else {
        hvt_double_fault("%p is no open stream", s);
        if (w.drop)
            w.drop(w.ctx);
    }
    hvt__double_unlock();
}

void hvt_double_launch(void *s, void (*fn)(void *ctx), void *ctx, void (*drop)(void *ctx))
{
    submit_any(s, (work){.fn = fn, .ctx = ctx, .drop = drop});
}

void hvt_double_launch_poll(void *s, bool (*poll)(void *ctx), void *ctx, void (*drop)(void *ctx))
{
    submit_any(s, (work){.poll = poll, .ctx = ctx, .drop = drop});
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    ENTER();
    *least = 0;
    *greatest = -5;
    return hvt__double_give(cudaSuccess);
}

static cudaError_t open_stream(cudaStream_t *ret, unsigned flags)
{
    struct CUstream_st *s;

    REFUSE(!ret || flags > cudaStreamNonBlocking, cudaErrorInvalidValue);
    REFUSE(flags != cudaStreamNonBlocking,
           hvt__double_refuse(cudaErrorInvalidValue, "a stream that waits for the default stream"));
    s = calloc(1, sizeof *s);
    assert(s);
    s->queue = hvt__double_stream_open();
    s->next = open_streams;
    *ret = open_streams = s;
    hvt__double_live.streams++;
    return hvt__double_give(cudaSuccess);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *ret, unsigned flags)
{
    ENTER();
    return open_stream(ret, flags);
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *ret, unsigned flags, int priority)
{
    (void)priority; /* one outside of the range is clamped to it */
    ENTER();
    return open_stream(ret, flags);
}

cudaError_t cudaStreamDestroy(cudaStream_t s)
{
    ENTER();
    NEED_STREAM(s);
    for (struct CUstream_st **at = &open_streams; *at; at = &(*at)->next)
        if (*at == s) {
            *at = s->next;
            break;
        }
    hvt__double_stream_close(s->queue);
    drop_capture(s->capture);
    free(s->tails.at);
    free(s);
    hvt__double_live.streams--;
    return hvt__double_give(cudaSuccess);
}

/* A stream that captures cannot be waited for. */
#define NEED_EAGER(s)                                                                                        \
    do {                                                                                                     \
        if ((s)->capture) {                                                                                  \
            (s)->capture->broken = true;                                                                     \
            return hvt__double_give(cudaErrorStreamCaptureUnsupported);                                      \
        }                                                                                                    \
    } while (0)

cudaError_t cudaStreamSynchronize(cudaStream_t s)
{
    ENTER_UNSAFE();
    NEED_STREAM(s);
    NEED_EAGER(s);
    hvt__double_run(s->queue, NULL, true);
    return hvt__double_give(hvt__double_sticky);
}

cudaError_t cudaStreamQuery(cudaStream_t s)
{
    ENTER_UNSAFE();
    NEED_STREAM(s);
    NEED_EAGER(s);
    REFUSE(!hvt__double_run(s->queue, NULL, false), cudaErrorNotReady);
    return hvt__double_give(hvt__double_sticky);
}

/* ---- copies ------------------------------------------------------------------------------------- */

typedef struct copy {
    void *dst;
    const void *src;
    size_t bytes;
    int value; /* of a memset */
    char staged[];
} copy;

static copy *new_copy(void *dst, const void *src, size_t bytes, bool staged)
{
    copy *c = malloc(sizeof *c + (staged ? bytes : 0));

    assert(c);
    *c = (copy){.dst = dst, .src = src, .bytes = bytes};
    if (staged) {
        memcpy(c->staged, src, bytes);
        c->src = c->staged;
    }
    return c;
}

static void run_copy(void *ctx)
{
    const copy *c = ctx;

    memmove(c->dst, c->src, c->bytes);
}

static void run_set(void *ctx)
{
    const copy *c = ctx;

    memset(c->dst, c->value, c->bytes);
}

/* Does a copy go where its direction says? */
static cudaError_t check_copy(const char *name, const void *dst, const void *src, size_t n,
                              enum cudaMemcpyKind kind)
{
    bool to = hvt__double_in_device(dst, n), from = hvt__double_in_device(src, n);
    bool to_wanted = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
    bool from_wanted = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;

    if (kind == cudaMemcpyDefault)
        to_wanted = to, from_wanted = from;
    if (to != to_wanted || (!to && hvt__double_in_block(dst) && !hvt__double_in_host(dst, n)))
        return hvt__double_refuse(cudaErrorInvalidValue, "%s: %p is not %s memory of %zu bytes", name, dst,
                                  to_wanted ? "device" : "host", n);
    if (from != from_wanted || (!from && hvt__double_in_block(src) && !hvt__double_in_host(src, n)))
        return hvt__double_refuse(cudaErrorInvalidValue, "%s: %p is not %s memory of %zu bytes", name, src,
                                  from_wanted ? "device" : "host", n);
    return cudaSuccess;
}

static cudaError_t copy_async(const char *name, void *dst, const void *src, size_t n,
                              enum cudaMemcpyKind kind, cudaStream_t s)
{
    cudaError_t e = check_copy(name, dst, src, n, kind);
    bool pageable_src = !hvt__double_in_block(src), pageable_dst = !hvt__double_in_block(dst);

    REFUSE(kind > cudaMemcpyDefault, cudaErrorInvalidMemcpyDirection);
    REFUSE(!n, cudaSuccess);
    REFUSE(e != cudaSuccess, e);
    if ((const char *)dst < (const char *)src + n && (const char *)src < (const char *)dst + n)
        hvt_double_fault("%s: %p and %p overlap within %zu bytes", name, dst, src, n);
    REFUSE(s->capture && (pageable_src || pageable_dst),
           hvt__double_refuse(cudaErrorStreamCaptureUnsupported, "%s: pageable memory under capture", name));
    e = submit(s, (work){.fn = run_copy, .ctx = new_copy(dst, src, n, pageable_src), .drop = free});
    if (pageable_dst && e == cudaSuccess)
        hvt__double_run(s->queue, NULL, true);
    return hvt__double_give(e);
}

cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t n, enum cudaMemcpyKind kind, cudaStream_t s)
{
    ENTER();
    NEED_STREAM(s);
    return copy_async(__func__, dst, src, n, kind, s);
}

cudaError_t cudaMemcpy(void *dst, const void *src, size_t n, enum cudaMemcpyKind kind)
{
    cudaError_t e;

    ENTER_UNSAFE();
    REFUSE(kind > cudaMemcpyDefault, cudaErrorInvalidMemcpyDirection);
    REFUSE(!n, cudaSuccess);
    e = check_copy(__func__, dst, src, n, kind);
    REFUSE(e != cudaSuccess, e);
    hvt__double_open_memory(true); /* no stream of ours waits for the default stream, nor it for them */
    memmove(dst, src, n);
    hvt__double_open_memory(false);
    return hvt__double_give(hvt__double_sticky);
}

cudaError_t cudaMemsetAsync(void *dst, int value, size_t n, cudaStream_t s)
{
    copy *c;

    ENTER();
    NEED_STREAM(s);
    REFUSE(!n, cudaSuccess);
    REFUSE(!hvt__double_in_device(dst, n),
           hvt__double_refuse(cudaErrorInvalidValue, "%s: %p is not device memory of %zu bytes", __func__,
                              dst, n));
    c = new_copy(dst, NULL, n, false);
    c->value = value;
    return hvt__double_give(submit(s, (work){.fn = run_set, .ctx = c, .drop = free}));
}

cudaError_t cudaMemset(void *dst, int value, size_t n)
{
    ENTER_UNSAFE();
    REFUSE(!n, cudaSuccess);
    REFUSE(!hvt__double_in_device(dst, n),
           hvt__double_refuse(cudaErrorInvalidValue, "%s: %p is not device memory of %zu bytes", __func__,
                              dst, n));
    hvt__double_open_memory(true);
    memset(dst, value, n);
    hvt__double_open_memory(false);
    return hvt__double_give(hvt__double_sticky);
}

/* ---- events ------------------------------------------------------------------------------------- */

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *ret, unsigned flags)
{
    const unsigned known = cudaEventBlockingSync | cudaEventDisableTiming | cudaEventInterprocess;
    struct CUevent_st *e;

    ENTER();
    REFUSE(!ret || flags & ~known || (flags & cudaEventInterprocess && !(flags & cudaEventDisableTiming)),
           cudaErrorInvalidValue);
    e = calloc(1, sizeof *e);
    assert(e);
    e->timed = !(flags & cudaEventDisableTiming);
    *ret = e;
    hvt__double_live.events++;
    return hvt__double_give(cudaSuccess);
}

cudaError_t cudaEventCreate(cudaEvent_t *ret)
{
    return cudaEventCreateWithFlags(ret, cudaEventDefault);
}

static void clear_event(struct CUevent_st *e)
{
    hvt__double_point_drop(e->point);
    drop_capture(e->capture);
    free(e->tails.at);
    *e = (struct CUevent_st){.timed = e->timed};
}

#define NEED_EVENT(e) REFUSE(!(e), cudaErrorInvalidResourceHandle)

cudaError_t cudaEventDestroy(cudaEvent_t e)
{
    ENTER();
    NEED_EVENT(e);
    clear_event(e);
    free(e);
    hvt__double_live.events--;
    return hvt__double_give(cudaSuccess);
}

cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s)
{
    ENTER();
    NEED_STREAM(s);
    NEED_EVENT(e);
    clear_event(e);
    if (s->capture) {
        REFUSE(s->capture->broken, cudaErrorStreamCaptureInvalidated);
        e->capture = s->capture;
        e->capture->refs++;
        hvt__double_tails_join(&e->tails, &s->tails);
    } else {
        e->point = hvt__double_mark(s->queue);
    }
    return hvt__double_give(cudaSuccess);
}

/* An event of a capture leads the stream into it. */
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned flags)
{
    ENTER();
    NEED_STREAM(s);
    NEED_EVENT(e);
    REFUSE(flags & ~(unsigned)cudaEventWaitExternal, cudaErrorInvalidValue);
    if (e->capture) {
        REFUSE(e->capture->ended, cudaErrorCapturedEvent);
        if (s->capture && s->capture != e->capture) {
            s->capture->broken = e->capture->broken = true;
            return hvt__double_give(cudaErrorStreamCaptureMerge);
        }
        if (!s->capture) {
            s->capture = e->capture;
            s->capture->refs++;
        }
        hvt__double_tails_join(&s->tails, &e->tails);
        return hvt__double_give(cudaSuccess);
    }
    if (s->capture && e->point) {
        s->capture->broken = true;
        return hvt__double_give(hvt__double_refuse(cudaErrorStreamCaptureIsolation,
                                                   "a captured stream waits for what is outside"));
    }
    if (e->point && !e->point->done)
        hvt__double_await(s->queue, e->point);
    return hvt__double_give(cudaSuccess);
}

cudaError_t cudaEventQuery(cudaEvent_t e)
{
    ENTER_UNSAFE();
    NEED_EVENT(e);
    REFUSE(e->capture, cudaErrorCapturedEvent);
    REFUSE(e->point && !hvt__double_run(NULL, e->point, false), cudaErrorNotReady);
    return hvt__double_give(hvt__double_sticky);
}

cudaError_t cudaEventSynchronize(cudaEvent_t e)
{
    ENTER_UNSAFE();
    NEED_EVENT(e);
    REFUSE(e->capture, cudaErrorCapturedEvent);
    if (e->point)
        hvt__double_run(NULL, e->point, true);
    return hvt__double_give(hvt__double_sticky);
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to)
{
    ENTER();
    REFUSE(!ms, cudaErrorInvalidValue);
    NEED_EVENT(from);
    NEED_EVENT(to);
    REFUSE(!from->timed || !to->timed || !from->point || !to->point, cudaErrorInvalidResourceHandle);
    REFUSE(!from->point->done || !to->point->done, cudaErrorNotReady);
    *ms = (float)(1e3 * (to->point->time - from->point->time));
    return hvt__double_give(cudaSuccess);
}

/* ---- capture ------------------------------------------------------------------------------------ */

cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode)
{
    enum cudaStreamCaptureMode before = thread_mode;

    ENTER();
    REFUSE(!mode || *mode > cudaStreamCaptureModeRelaxed, cudaErrorInvalidValue);
    thread_mode = *mode;
    *mode = before;
    return hvt__double_give(cudaSuccess);
}

cudaError_t cudaStreamIsCapturing(cudaStream_t s, enum cudaStreamCaptureStatus *ret)
{
    ENTER();
    NEED_STREAM(s);
    REFUSE(!ret, cudaErrorInvalidValue);
    *ret = !s->capture          ? cudaStreamCaptureStatusNone
           : s->capture->broken ? cudaStreamCaptureStatusInvalidated
                                : cudaStreamCaptureStatusActive;
    return hvt__double_give(cudaSuccess);
}

cudaError_t cudaStreamBeginCapture(cudaStream_t s, enum cudaStreamCaptureMode mode)
{
    capture *c;

    ENTER();
    NEED_STREAM(s);
    REFUSE(mode > cudaStreamCaptureModeRelaxed, cudaErrorInvalidValue);
    REFUSE(s->capture, cudaErrorIllegalState);
    c = calloc(1, sizeof *c);
    assert(c);
    *c = (capture){.next = captures, .thread = pthread_self(), .mode = mode, .origin = s, .refs = 1};
    c->graph = calloc(1, sizeof *c->graph);
    assert(c->graph);
    c->graph->refs = 1;
    s->capture = captures = c;
    return hvt__double_give(cudaSuccess);
}

/* Every stream that joined leaves; was all that it was given waited for? */
static bool leave(capture *c)
{
    bool joined = true;

    for (struct CUstream_st *s = open_streams; s; s = s->next) {
        if (s->capture != c || s == c->origin)
            continue;
        joined = joined && hvt__double_reaches(c->graph, &c->origin->tails, &s->tails);
        s->capture = NULL;
        free(s->tails.at);
        s->tails = (tails){0};
        c->refs--; /* never the last: the origin has one */
    }
    c->origin->capture = NULL;
    free(c->origin->tails.at);
    c->origin->tails = (tails){0};
    return joined;
}

cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *ret)
{
    capture *c;
    cudaError_t e = cudaSuccess;

    *ret = NULL;
    ENTER();
    NEED_STREAM(s);
    c = s->capture;
    REFUSE(!c || c->origin != s, cudaErrorStreamCaptureUnmatched);
    REFUSE(c->mode != cudaStreamCaptureModeRelaxed && !pthread_equal(c->thread, pthread_self()),
           cudaErrorStreamCaptureWrongThread);
    for (capture **at = &captures; *at; at = &(*at)->next)
        if (*at == c) {
            *at = c->next;
            break;
        }
    c->ended = true;
    if (!leave(c))
        e = cudaErrorStreamCaptureUnjoined;
    if (c->broken)
        e = cudaErrorStreamCaptureInvalidated;
    if (e == cudaSuccess) {
        *ret = calloc(1, sizeof **ret);
        assert(*ret);
        (*ret)->graph = c->graph;
        c->graph->refs++;
        hvt__double_live.graphs++;
    }
    hvt__double_graph_drop(c->graph); /* events that were recorded in it may outlive it */
    c->graph = NULL;
    drop_capture(c);
    return hvt__double_give(e);
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *ret, cudaGraph_t g, unsigned long long flags)
{
    (void)flags;
    ENTER();
    REFUSE(!ret || !g, cudaErrorInvalidValue);
    *ret = calloc(1, sizeof **ret);
    assert(*ret);
    (*ret)->graph = g->graph;
    g->graph->refs++;
    hvt__double_live.execs++;
    return hvt__double_give(cudaSuccess);
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t x, cudaStream_t s)
{
    ENTER();
    NEED_STREAM(s);
    REFUSE(!x, cudaErrorInvalidValue);
    REFUSE(s->capture, hvt__double_refuse(cudaErrorStreamCaptureUnsupported, "a graph in a graph"));
    hvt__double_queue_graph(s->queue, x->graph);
    return hvt__double_give(cudaSuccess);
}

cudaError_t cudaGraphDestroy(cudaGraph_t g)
{
    ENTER();
    REFUSE(!g, cudaErrorInvalidValue);
    hvt__double_graph_drop(g->graph);
    free(g);
    hvt__double_live.graphs--;
    return hvt__double_give(cudaSuccess);
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t x)
{
    ENTER();
    REFUSE(!x, cudaErrorInvalidValue);
    hvt__double_graph_drop(x->graph);
    free(x);
    hvt__double_live.execs--;
    return hvt__double_give(cudaSuccess);
}
