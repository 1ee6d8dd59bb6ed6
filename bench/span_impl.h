/*
 * span_impl.h - common to the files of a rehearsal (span.h). span_record.c records its steps, span_machine.c
 * measures barriers and memory, span.c predicts, span_print.c prints.
 *
 * A step writes a *tape* of seconds whose order is the same in every step: for each run of the pool the time
 * since the run before and the times of its jobs; for each op, on return, its time outside of runs. A first
 * step records the order: the list of ops (calls) and of runs.
 */
#ifndef HVT_SPAN_IMPL_H
#define HVT_SPAN_IMPL_H

#include "device/cpu/cpu_impl.h"
#include "op_times.h"
#include "span.h"

#define SPIN_SECONDS 100e-6 /* of parallel.c: threads sleep if the gap between two runs is longer */

typedef struct tape {
    float *at;
    long count, room;
} tape;

/* An op of a step; the first two stand for the time between ops. */
enum { READING, BETWEEN, PSEUDO };
typedef struct call {
    op_call what;
    long serial; /* on the tape: seconds outside of runs */
} call;

typedef struct run {
    int call, jobs;
    long first; /* on the tape: the gap before the run, then the jobs */
} run;

/* The parts of an op's time, in seconds; their sum is the op's time on T threads. */
typedef struct parts {
    double work, imbalance, barrier, serial, bandwidth;
} parts;

typedef struct rehearsal {
    int threads;
    hvt_thread_pool *pool;  /* real threads that do the runs: a run is recorded as a single job */
    double barrier, asleep; /* of a run; of a run before which the threads sleep */
    call *calls;
    run *runs;
    int call_count, run_count, call_room, run_room;
    tape *tapes;     /* [steps] */
    double *took;    /* [steps] seconds of a rehearsed step */
    parts *of_calls; /* [call_count] */
} rehearsal;

extern rehearsal span_reality, span_reh[SPAN_LIST + 2];
extern int span_rehearsals;

/* Speeds of one core and of one cache line. */
typedef struct machine {
    double copy; /* GB/s of one core */
    double line; /* seconds added to a barrier per further thread */
} machine;
extern machine span_machine;

void *span_grown(void *p, size_t bytes); /* realloc, or exit */

/* Rehearses step `n`; -1: the one that records the order. */
void span_rehearse_step(const span_opts *o, rehearsal *r, int n);

hvt_thread_pool *span_open_pool(const hvt_cores *c, int threads);
void span_measure(const span_opts *o); /* measures span_machine and the barriers of all rehearsals */

/* For sorted times, one of each step: the mean of the middle half, or the minimum. */
double span_typical(const span_opts *o, const double *sorted);
double span_free_time(const parts *p); /* without a limit on memory bandwidth */
double span_time_of(const parts *p);
void span_add_parts(parts *sum, const parts *p);
parts span_total_of(const rehearsal *r);

void span_print(const span_opts *o);

#endif /* HVT_SPAN_IMPL_H */
