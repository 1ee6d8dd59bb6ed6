/*
 * span.h - predicts a training step on more threads than this machine has processors.
 *
 * A *rehearsal* for T threads is a number of steps in which the device's thread pool claims to have T
 * threads, so that all work is cut into jobs as for T, but every job runs on the calling thread. Each job is
 * timed, each run of the pool is scheduled as the pool would (schedule.h), step by step, and the mean of the
 * middle half over the steps is taken. Added to that are
 *   - the *barrier* of a run: by how much a run in which every thread has one job of the same length takes
 *     longer than the job, measured with all available threads. Each further thread adds two cache lines:
 *     it fetches the line that describes the run, and the caller the line in which it counts its work. That
 *     is measured between two cores. Nothing is done in a tree, so the cost is linear in the number of
 *     threads, not logarithmic. A run that starts so late after the one before that the threads sleep has
 *     its own barrier.
 *   - the time outside of runs, as measured,
 *   - *bandwidth*: an op takes at least the time to move its bytes at T times the speed of one core or at
 *     the speed of a socket, whichever is less. A core's speed is that of a copy of memory, or the op's own
 *     on one thread if that is faster. Bytes are those that the op reads and writes, wherever they are; for
 *     bytes in a cache the bound is too strict.
 *
 * During the measurement the other processors of this machine train the same model independently, with their
 * share of the batch: as threads of this process they would be busy, and shared resources (memory, the last
 * cache, turbo) are as busy. The rehearsal for 1 thread is measured in the same way, so efficiency is the
 * loss of T threads against T busy cores, not the loss of a core because others are busy. On a shared
 * machine, `least` counts the processor time of the rehearsing thread, and takes for each run the minimum
 * over all steps. In that moment the other processors did least, so 2 threads take longer than predicted.
 *
 * Not predicted: T threads have T L2 caches and, on large sockets, several L3 caches. Here all jobs share one
 * L2, so a job finds what the job before it left, not an earlier op's job on the same rows. Passes over
 * arrays that fit T L2 caches but not one are therefore faster than predicted; slower are the first job of
 * each thread, which is measured hot and would be cold, and everything that one thread writes and another
 * reads (packed weights, halos). Memory of another NUMA node, cores that slow down when more of them are busy
 * than there are here, and hyperthreads are not predicted either.
 */
#ifndef HVT_SPAN_H
#define HVT_SPAN_H

#include "device_impl.h"
#include "hvt/world.h"

enum { SPAN_LIST = 16 };

typedef struct span_opts {
    hvt_device *dev; /* cpu, with cores->threads threads */
    const hvt_cores *cores;
    const int *threads; /* ascending; 1 and cores->threads are added if missing */
    int count;
    double socket;              /* GB/s; 0: no limit */
    int steps;                  /* of each rehearsal */
    bool least;                 /* minimum over all steps, in processor time; otherwise a mean */
    void (*load)(void);         /* first part of a step: its images */
    void (*train)(void);        /* second part */
    void (*company)(bool busy); /* starts or stops the work of the other processors */
} span_opts;

/* Reads "2,4,16" as ascending numbers without duplicates; returns their number, or 0 if it is not such a list
 * of 1 to HVT_MAX_THREADS. */
int span_read(const char *list, int threads[SPAN_LIST]);

/* Call both between the device's opening and the first plan on it, so that plans have workspace for
 * `threads`, the maximum. From then on its ops are recorded, and it claims to have that many threads. */
void span_watch(hvt_device *dev);
void span_prepare(hvt_device *dev, int threads);

/* Rehearses and prints. Between the rehearsals the same step runs on the real threads, for comparison. */
void span_run(const span_opts *o);

#endif /* HVT_SPAN_H */
