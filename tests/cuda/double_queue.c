/*
 * Streams that run when a caller waits. A stream is a list of operations; its first one is ready if it is
 * work, or waits for a point that is done. To wait for a point, a stream with a ready operation is chosen and
 * that is run, until the point is done. With seed 0 only streams on which the point depends are chosen;
 * otherwise any, at random.
 *
 * Work may answer "not yet" (a collective whose peers have not arrived): then other work runs, and it is
 * tried again. A graph is an operation that runs its nodes, each after those it depends on, in a random
 * order.
 */
#include "double_queue.h"

#include <assert.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef enum kind { WORK, RECORD, WAIT, GRAPH } kind;

typedef struct op {
    struct op *next;
    kind kind;
    work w;
    point *point;
    graph *graph;
    bool *ran; /* [graph->count] nodes */
    int left;  /* nodes that have not */
} op;

struct stream {
    stream *next;
    op *first, **last;
    bool closed, wanted;
};

uint64_t hvt__double_random;
static stream *streams;

static pthread_mutex_t mutex;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void start(void)
{
    pthread_mutexattr_t a;

    pthread_mutexattr_init(&a);
    pthread_mutexattr_settype(&a, PTHREAD_MUTEX_RECURSIVE); /* queued work may ask the double */
    pthread_mutex_init(&mutex, &a);
    pthread_mutexattr_destroy(&a);
}

void hvt__double_lock(void)
{
    pthread_once(&once, start);
    pthread_mutex_lock(&mutex);
}

void hvt__double_unlock(void)
{
    pthread_mutex_unlock(&mutex);
}

static void *more(void *old, size_t bytes)
{
    void *p = realloc(old, bytes ? bytes : 1);

    assert(p);
    return p;
}

static void drop(const work *w)
{
    if (w->drop)
        w->drop(w->ctx);
}

/* 0 .. n-1; 0 without a seed */
static int draw(int n)
{
    if (!hvt__double_random || n < 2)
        return 0;
    hvt__double_random ^= hvt__double_random << 13;
    hvt__double_random ^= hvt__double_random >> 7;
    hvt__double_random ^= hvt__double_random << 17;
    return (int)((hvt__double_random >> 33) % (uint64_t)n);
}

/* ---- streams and points ------------------------------------------------------------------------- */

stream *hvt__double_stream_open(void)
{
    stream *s = more(NULL, sizeof *s);

    *s = (stream){.next = streams, .last = &s->first};
    return streams = s;
}

static void free_closed(void)
{
    for (stream **at = &streams; *at;) {
        stream *s = *at;

        if (s->closed && !s->first) {
            *at = s->next;
            free(s);
        } else {
            at = &s->next;
        }
    }
}

void hvt__double_stream_close(stream *s)
{
    s->closed = true;
    free_closed();
}

bool hvt__double_is_stream(const stream *s)
{
    for (const stream *i = streams; i; i = i->next)
        if (i == s)
            return !s->closed;
    return false;
}

static op *append(stream *s, kind k)
{
    op *o = more(NULL, sizeof *o);

    *o = (op){.kind = k};
    *s->last = o;
    s->last = &o->next;
    return o;
}

void hvt__double_queue(stream *s, work w)
{
    append(s, WORK)->w = w;
}

point *hvt__double_mark(stream *s)
{
    point *p = more(NULL, sizeof *p);

    *p = (point){.refs = 2, .stream = s};
    return append(s, RECORD)->point = p;
}

void hvt__double_await(stream *s, point *p)
{
    p->refs++;
    append(s, WAIT)->point = p;
}

void hvt__double_point_drop(point *p)
{
    if (p && --p->refs == 0)
        free(p);
}

int hvt__double_queued(void)
{
    int n = 0;

    for (const stream *s = streams; s; s = s->next)
        for (const op *o = s->first; o; o = o->next)
            n++;
    return n;
}

/* ---- graphs ------------------------------------------------------------------------------------- */

void hvt__double_graph_add(graph *g, work w, tails *t)
{
    if (g->count == g->room) {
        g->room = g->room ? 2 * g->room : 64;
        g->nodes = more(g->nodes, (size_t)g->room * sizeof *g->nodes);
    }
    g->nodes[g->count] = (node){w, t->at, t->count};
    t->at = more(NULL, sizeof *t->at);
    t->count = 1;
    t->at[0] = g->count++;
}

void hvt__double_graph_drop(graph *g)
{
    if (--g->refs)
        return;
    for (int i = 0; i < g->count; i++) {
        drop(&g->nodes[i].w);
        free(g->nodes[i].deps);
    }
    free(g->nodes);
    free(g);
}

void hvt__double_tails_join(tails *into, const tails *from)
{
    for (int i = 0; i < from->count; i++) {
        bool known = false;

        for (int j = 0; j < into->count; j++)
            known = known || into->at[j] == from->at[i];
        if (known)
            continue;
        into->at = more(into->at, (size_t)(into->count + 1) * sizeof *into->at);
        into->at[into->count++] = from->at[i];
    }
}

bool hvt__double_reaches(const graph *g, const tails *end, const tails *all)
{
    bool *before = calloc((size_t)g->count + 1, sizeof *before), yes = true;

    assert(before);
    for (int i = 0; i < end->count; i++)
        before[end->at[i]] = true;
    for (int i = g->count - 1; i >= 0; i--)
        for (int j = 0; before[i] && j < g->nodes[i].ndeps; j++)
            before[g->nodes[i].deps[j]] = true;
    for (int i = 0; i < all->count; i++)
        yes = yes && before[all->at[i]];
    free(before);
    return yes;
}

void hvt__double_queue_graph(stream *s, graph *g)
{
    op *o = append(s, GRAPH);

    g->refs++;
    o->graph = g;
    o->left = g->count;
    o->ran = calloc((size_t)g->count + 1, sizeof *o->ran);
    assert(o->ran);
}

/* ---- running ------------------------------------------------------------------------------------ */

static bool run_work(const work *w)
{
    if (w->poll)
        return w->poll(w->ctx);
    w->fn(w->ctx);
    return true;
}

/* One node, if any can. */
static bool run_node(op *o)
{
    const graph *g = o->graph;

    for (int i = 0, at = draw(g->count); i < g->count; i++, at = (at + 1) % g->count) {
        const node *n = &g->nodes[at];
        bool ready = !o->ran[at];

        for (int j = 0; ready && j < n->ndeps; j++)
            ready = o->ran[n->deps[j]];
        if (ready && run_work(&n->w)) {
            o->ran[at] = true;
            o->left--;
            return true;
        }
    }
    return false;
}

/* The first operation of s, or a part of it; false: it cannot yet. */
static bool run_first(stream *s)
{
    op *o = s->first;
    struct timespec now;

    if (!o)
        return false;
    switch (o->kind) {
    case WORK:
        if (!run_work(&o->w))
            return false;
        drop(&o->w);
        break;
    case RECORD:
        clock_gettime(CLOCK_MONOTONIC, &now);
        o->point->done = true;
        o->point->time = (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
        hvt__double_point_drop(o->point);
        break;
    case WAIT:
        if (!o->point->done)
            return false;
        hvt__double_point_drop(o->point);
        break;
    case GRAPH:
        if (o->left && !run_node(o))
            return false;
        if (o->left)
            return true;
        hvt__double_graph_drop(o->graph);
        free(o->ran);
        break;
    }
    s->first = o->next;
    if (!s->first)
        s->last = &s->first;
    free(o);
    return true;
}

/* Mark the streams that have to move now: s, and what its first operation waits for. */
static int want(stream *s)
{
    int n = 0;

    for (; s && !s->wanted; n++) {
        s->wanted = true;
        s = s->first && s->first->kind == WAIT && !s->first->point->done ? s->first->point->stream : NULL;
    }
    return n;
}

static stream *wanted(int k)
{
    for (stream *s = streams; s; s = s->next)
        if (s->wanted && k-- == 0)
            return s;
    return NULL;
}

/* Run one operation on the way to the end of `to`, NULL: of all. */
static bool step(stream *to)
{
    int n = 0;

    for (stream *s = streams; s; s = s->next)
        s->wanted = false;
    if (to && !hvt__double_random)
        n = want(to);
    else
        for (stream *s = streams; s; s = s->next, n++)
            s->wanted = true;
    for (int i = 0, at = draw(n); i < n; i++)
        if (run_first(wanted((at + i) % n)))
            return true;
    return false;
}

static bool reached(const stream *s, const point *p)
{
    if (p)
        return p->done;
    if (s)
        return !s->first;
    for (s = streams; s; s = s->next)
        if (s->first)
            return false;
    return true;
}

bool hvt__double_run(stream *s, const point *p, bool wait)
{
    const struct timespec pause = {.tv_nsec = 50000};
    bool done = reached(s, p);

    if (done)
        return true;
    hvt__double_open_memory(true);
    while (!(done = reached(s, p))) {
        if (step(p ? p->stream : s))
            continue;
        if (!wait)
            break;
        hvt__double_unlock(); /* peers and other threads */
        nanosleep(&pause, NULL);
        hvt__double_lock();
    }
    hvt__double_open_memory(false);
    free_closed();
    return done;
}
