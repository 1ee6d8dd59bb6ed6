/*
 * The simulation of a run, event by event. An event: the thread with the earliest clock looks for a job. A
 * queue that it has found empty stays empty, so it does not look there again.
 */
#include "schedule.h"
#include "hvt/device.h"

typedef struct queue {
    int next, end; /* unclaimed jobs */
} queue;

typedef struct worker {
    double clock; /* when it looks for its next job; at the end: when it found none */
    int passed;   /* queues that it has found empty, its own first; all: it has ended */
} worker;

/* The next thread to look for a job; -1 if all have ended. */
static int earliest(const worker *w, int threads)
{
    int first = -1;

    for (int t = 0; t < threads; t++)
        if (w[t].passed < threads && (first < 0 || w[t].clock < w[first].clock))
            first = t;
    return first;
}

double schedule_run(const float *seconds, int jobs, int threads, int *ret_thread)
{
    queue q[HVT_MAX_THREADS];
    worker w[HVT_MAX_THREADS] = {{0}};
    double end = 0;

    for (int t = 0; t < threads; t++) {
        q[t].next = (int)((long)jobs * t / threads);
        q[t].end = (int)((long)jobs * (t + 1) / threads);
    }
    for (int t; (t = earliest(w, threads)) >= 0;) {
        queue *from = &q[(t + w[t].passed) % threads];

        if (from->next == from->end) {
            w[t].passed++;
            continue;
        }
        if (ret_thread)
            ret_thread[from->next] = t;
        w[t].clock += (double)seconds[from->next++];
        end = w[t].clock > end ? w[t].clock : end;
    }
    return end;
}
