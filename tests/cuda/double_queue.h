/* double_queue.h - the lazy queues under double_cudart.c. Every call holds hvt__double_lock(). */
#ifndef HVT_DOUBLE_QUEUE_H
#define HVT_DOUBLE_QUEUE_H

#include "double.h"

/* What is queued: fn runs once, or poll until it returns true. */
typedef struct work {
    void (*fn)(void *ctx);
    bool (*poll)(void *ctx);
    void *ctx;
    void (*drop)(void *ctx);
} work;

/* A place in a stream that was marked by recording an event. */
typedef struct point {
    int refs;
    bool done;
    double time; /* s, when it was done */
    struct stream *stream;
} point;

typedef struct node {
    work w;
    int *deps, ndeps; /* earlier nodes */
} node;

/* Nodes in an order in which they may run. A graph under capture grows at its end. */
typedef struct graph {
    int refs;
    node *nodes;
    int count, room;
} graph;

/* The nodes that the next one of a stream comes after. */
typedef struct tails {
    int *at, count;
} tails;

typedef struct stream stream;

void hvt__double_lock(void);
void hvt__double_unlock(void);

stream *hvt__double_stream_open(void);
void hvt__double_stream_close(stream *s); /* what is queued still runs */
bool hvt__double_is_stream(const stream *s);

void hvt__double_queue(stream *s, work w);
point *hvt__double_mark(stream *s);          /* a reference is the caller's */
void hvt__double_await(stream *s, point *p); /* s waits for it */
void hvt__double_queue_graph(stream *s, graph *g);
void hvt__double_point_drop(point *p); /* NULL is fine */

void hvt__double_graph_add(graph *g, work w, tails *t); /* after t, which becomes the new node */
void hvt__double_graph_drop(graph *g);
void hvt__double_tails_join(tails *into, const tails *from);
/* Does everything in `all` come before, or stand in, `end`? */
bool hvt__double_reaches(const graph *g, const tails *end, const tails *all);

/* Run until p is done (NULL: until s is empty; both NULL: until all is). wait: as long as it takes; else
 * give up when nothing moves. True when it came to that. */
bool hvt__double_run(stream *s, const point *p, bool wait);
int hvt__double_queued(void);
extern uint64_t hvt__double_random; /* state of the draws; 0: none */

/* Device memory: closed to the host, open while queued work runs. */
void hvt__double_open_memory(bool open);

#endif /* HVT_DOUBLE_QUEUE_H */
