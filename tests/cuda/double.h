/*
 * double.h - the test double of a GPU: the settings and observations of tests, and the base of the doubles of
 * other libraries.
 *
 * double_cudart.c replaces the CUDA runtime. Queued work runs only when a caller waits for it, and then in
 * any order that streams and events allow; so code that forgets to wait sees wrong data in every run, not in
 * one of a thousand. Only queued work can access device memory: a host access ends the process with a line
 * that says so. The doubles of cuDNN, cuBLASLt, NCCL and of our kernels queue functions here.
 *
 * A stream is a cudaStream_t, an error a cudaError_t; without their types this header needs no toolkit.
 */
#ifndef HVT_DOUBLE_H
#define HVT_DOUBLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- for doubles of other libraries --------------------------------------------------------- */

/* Queue fn(ctx); drop(ctx), which may be NULL, follows the last run. Under capture fn becomes a node of the
 * graph, runs once a launch, and is dropped with the graph: so fn leaves ctx as it was. */
void hvt_double_launch(void *stream, void (*fn)(void *ctx), void *ctx, void (*drop)(void *ctx));

/* The same for work that waits for others: called again until it returns true; then ready to run anew. */
void hvt_double_launch_poll(void *stream, bool (*poll)(void *ctx), void *ctx, void (*drop)(void *ctx));

/* Call first in every function of a double: counts it, and returns the error it shall give, or 0. The error
 * is one set by hvt_double_fail(), whatever it means in that library. */
int hvt_double_enter(const char *call);

/* Device memory as cudaMalloc gives it; NULL: more than hvt_double_memory(). */
void *hvt_double_block(size_t bytes);
bool hvt_double_unblock(void *ptr); /* false: no such block */

/* Queued work found a mistake of the caller: print it, and fail everything from now on with
 * cudaErrorIllegalAddress, as a GPU does. */
void hvt_double_fault(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* Are all these bytes one block of device memory? need_device faults, naming `call`, if not. */
bool hvt_double_is_device(const void *ptr, size_t bytes);
bool hvt_double_need_device(const char *call, const void *ptr, size_t bytes);

/* ---- for tests ------------------------------------------------------------------------------ */

/* 0: whoever waits gets only what it waits for, as late as possible. Else any other work that may run is
 * mixed in, at random. */
void hvt_double_seed(uint64_t seed);
void hvt_double_driverless(int error);      /* what all calls give then; 0: there is a driver */
void hvt_double_gpus(int first, int count); /* this process sees the host's GPUs first, first + 1, ... */
void hvt_double_memory(size_t bytes);       /* of the GPU */
void hvt_double_fail(const char *call, int kth, int error); /* the kth call from now on, once; keeps `call` */
int hvt_double_calls(const char *call);                     /* so far */
int hvt_double_faults(void);                                /* so far */
void hvt_double_reset(void); /* all of the above as at the start; objects live on */

typedef struct hvt_double_alive {
    int streams, events, blocks, host_blocks, graphs, execs, queued;
    size_t bytes; /* of device memory */
} hvt_double_alive;
hvt_double_alive hvt_double_count(void);
/* Of cuDNN: the engine with this index is fast and wrong; -1: all are right. */
void hvt_double_cudnn_wrong(int engine);

#endif /* HVT_DOUBLE_H */
