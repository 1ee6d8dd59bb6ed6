/*
 * span.h - what a training step would take on more threads than this machine has processors.
 *
 * A *rehearsal* for T threads is a number of steps in which the device's thread pool says that it has T
 * threads, so that all work is cut into jobs as for T, but every job runs on the calling thread. Each job's
 * time is noted, each run of the pool is scheduled as the pool would (schedule.h), step by step, and the mean
 * of the middle half is taken over the steps. To that are added
 *   - the *barrier* of a run: what a run in which every thread has one job of the same length takes longer
 *     than the job, measured with as many real threads as there are. Each further thread adds two lines of
 *     memory: it fetches the one that describes the run, and the caller the one in which it counts what it
 *     has done. That is measured between two cores. Nothing is done in a tree, so the cost grows with the
 *     number of threads, not with its logarithm. A run that begins so long after the one before that the
 *     threads sleep has a barrier of its own.
 *   - the time outside of runs, as measured,
 *   - *bandwidth*: an op cannot take less time than it needs to move its bytes at T times the speed of one
 *     core or at the speed of a socket, whichever is less. A core's speed is that of a copy of memory, or the
 *     op's own on one thread where that is faster. Bytes are those that the op reads and writes, wherever
 *     they lie: where they are in a cache this asks too much.
 *
 * Jobs are measured while the other processors of this machine train the same model by themselves, with a
 * batch that is their share of this one: they would have work if they were threads of this process, and what
 * is shared (memory, the last cache, turbo) is as busy. The rehearsal for 1 thread is measured in the same
 * way, so efficiency is what T threads lose against T busy cores, and not what a core loses because others
 * are busy. On a machine that others use, `least` counts the time for which the rehearsing thread has its
 * processor, and of each run the least of all steps. That is also the moment in which the other processors
 * did least: 2 threads then take longer than is foretold.
 *
 * What is not foretold: T threads have T L2 caches and, on large sockets, several L3 caches. Here all jobs
 * share one L2, so what a job finds there was left by the job before it and not by an earlier op's job on the
 * same rows. Passes over arrays that fit into T L2 caches but not into one are therefore faster in truth
 * than foretold; the first job of each thread, which is measured hot and would be cold, and everything that
 * one thread writes and another reads (packed weights, halos) is slower. Memory of another NUMA node, cores
 * that are slower when more of them are busy than there are here, and hyperthreads are not foretold either.
 */
#ifndef HVT_SPAN_H
#define HVT_SPAN_H

#include "device_impl.h"
#include "hvt/world.h"

enum { SPAN_LIST = 16 };

typedef struct span_opts {
    hvt_device *dev; /* cpu, with cores->threads threads */
    const hvt_cores *cores;
    const int *threads; /* ascending; 1 and cores->threads are added where they lack */
    int count;
    double socket;              /* GB/s; 0: a socket has no limit */
    int steps;                  /* of each rehearsal */
    bool least;                 /* the least time of all steps, of this thread's processor; else a mean */
    void (*load)(void);         /* the first part of a step: its images */
    void (*train)(void);        /* the second */
    void (*company)(bool busy); /* the other processors begin or stop working */
} span_opts;

/* "2,4,16" as ascending numbers without repetition; returns how many, 0: it is no such list of 1 to
 * HVT_MAX_THREADS. */
int span_read(const char *list, int threads[SPAN_LIST]);

/* Both are to be called between the device's opening and the first plan on it, so that plans have workspace
 * for `threads`, the most. From then on its ops are noted, and it says that it has so many threads. */
void span_watch(hvt_device *dev);
void span_prepare(hvt_device *dev, int threads);

/* Rehearse and print. Between the rehearsals' steps the same step is made by the real threads, to compare. */
void span_run(const span_opts *o);

#endif /* HVT_SPAN_H */
