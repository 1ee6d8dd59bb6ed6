/*
 * span_impl.h - what the files of a rehearsal (span.h) share. span_record.c writes down its steps,
 * span_machine.c measures barriers and memory, span.c foretells, span_print.c prints.
 *
 * What a step leaves behind is a *tape* of seconds whose order is the same in every step: for each run of the
 * pool the time since the run before and those of its jobs, for each op, when it returns, its time outside of
 * runs. A first step writes down the order: the list of ops (calls) and of runs.
 */
#ifndef HVT_SPAN_IMPL_H
#define HVT_SPAN_IMPL_H

#include "device/cpu/cpu_impl.h"
#include "op_times.h"
#include "span.h"

#define SPIN_SECONDS 100e-6 /* of parallel.c: after a longer gap between two runs the threads sleep */

typedef struct tape {
    float *at;
    long count, room;
} tape;

/* An op of a step; the first two are what is between ops. */
enum { READING, BETWEEN, PSEUDO };
typedef struct call {
    op_call what;
    long serial; /* on the tape: seconds outside of runs */
} call;

typedef struct run {
    int call, jobs;
    long first; /* on the tape: the gap before the run, then the jobs */
} run;

/* Where the time of an op goes, in seconds; their sum is the op's time on T threads. */
typedef struct parts {
    double work, imbalance, barrier, serial, bandwidth;
} parts;

typedef struct rehearsal {
    int threads;
    hvt_thread_pool *pool;  /* real threads that do the runs: a run's time is noted as that of a single job */
    double barrier, asleep; /* of a run; of one before which the threads sleep */
    call *calls;
    run *runs;
    int call_count, run_count, call_room, run_room;
    tape *tapes;     /* [steps] */
    double *took;    /* [steps] seconds of a step as it was rehearsed */
    parts *of_calls; /* [call_count] */
} rehearsal;

extern rehearsal span_reality, span_reh[SPAN_LIST + 2];
extern int span_rehearsals;

/* What one core and one line of memory do. */
typedef struct machine {
    double copy; /* GB/s of one core */
    double line; /* seconds by which a barrier is longer for each further thread */
} machine;
extern machine span_machine;

void *span_grown(void *p, size_t bytes); /* realloc, or the end of the program */

/* Step number `n` of a rehearsal; -1: the one that learns. */
void span_rehearse_step(const span_opts *o, rehearsal *r, int n);

hvt_thread_pool *span_open_pool(const hvt_cores *c, int threads);
void span_measure(const span_opts *o); /* span_machine, and the barriers of all rehearsals */

/* Of sorted times, one of each step, the mean of the middle half, or the least. */
double span_typical(const span_opts *o, const double *sorted);
double span_free_time(const parts *p); /* as long as nothing limits the memory */
double span_time_of(const parts *p);
void span_add_parts(parts *sum, const parts *p);
parts span_total_of(const rehearsal *r);

void span_print(const span_opts *o);

#endif /* HVT_SPAN_IMPL_H */
