/*
 * bench.h - common code of the benches: the first line, the clock, the processor's peak.
 *
 * A bench verifies the buffers that it times: a wrong answer prints no speed. Times are medians over rounds,
 * each long enough for the clock, after one call to warm up; the minimum is kept, too, for shared machines.
 */
#ifndef HVT_BENCH_H
#define HVT_BENCH_H

#include "hvt/comm.h"

#include <stdio.h>

/* "bench_ops: host, processor, isa, threads, compiler, commit", the first line of every bench */
void bench_header(const char *bench, const char *isa, int threads);

/* The same, for a file. */
void bench_describe(char *text, size_t size, const char *bench, const char *isa, int threads);

typedef struct bench_seconds {
    double median; /* by the clock */
    double least;  /* in this thread's processor time */
} bench_seconds;

/* Seconds of one fn(ctx), over eleven rounds that take about `budget` seconds in all. */
bench_seconds bench_time(void (*fn)(void *ctx), void *ctx, double budget);

/* Peak multiply-adds of this thread with the set's vectors, in GFLOP/s (2 each): twelve or more chains of
 * them in registers. Sets without a fused one multiply and add. */
double bench_peak(const char *isa);

/* The same for pairs of bf16, if the set multiplies them (avx512_bf16, amx); otherwise 0. */
double bench_peak_bf16(const char *isa);

/* GB/s read plus written when half of `bytes` is copied to the other half, again and again. */
double bench_copy(size_t bytes);

/* Prints the last error and ends all ranks; world NULL: this process alone. */
void bench_fail(const char *bench, hvt_world *world) __attribute__((noreturn));

static inline void bench_must(const char *bench, hvt_world *world, hvt_status s)
{
    if (s != HVT_OK)
        bench_fail(bench, world);
}

/* Ends all ranks with status 2 after one line on rank 0, for a command line that is wrong on all ranks. world
 * NULL: this process alone. */
void bench_refuse(const char *bench, hvt_world *world, const char *format, ...)
    __attribute__((noreturn, format(printf, 3, 4)));

/* A row of a table of options. A value goes to one of text, number, real and flag. A name without "--" is an
 * argument. */
typedef struct bench_row {
    const char *name, *values, *meaning;
    const char **text;
    int *number, *flag;
    double *real;       /* 0 or more */
    double least, most; /* of a number, or of a real; most 0: no limit */
    bool one_of;        /* values is a list, separated by |, of all allowed texts or numbers */
} bench_row;

/* Reads the command line by the table of n rows and refuses a wrong one. --help prints the table and exits
 * with 0. */
void bench_options(const char *bench, hvt_world *world, const bench_row *rows, size_t n, int argc,
                   char **argv);

#endif /* HVT_BENCH_H */
