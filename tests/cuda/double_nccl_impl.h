/*
 * double_nccl_impl.h - common to the two files of NCCL's double: communicators, and operations as queued
 * work.
 */
#ifndef HVT_DOUBLE_NCCL_IMPL_H
#define HVT_DOUBLE_NCCL_IMPL_H

#include "double.h"

#include <nccl.h>
#include <pthread.h>
#include <stdatomic.h>

enum { SEATS = 16, PART = 1 << 16, KINDS = 4, GROUP = 16 };

typedef struct seat {
    _Atomic uint64_t laid, read; /* rounds: data is there; the others' was taken */
    _Atomic bool sits, left;
    char gpu[160];  /* what tells GPUs of hosts apart */
    char asks[160]; /* the operation under way */
    char data[PART];
} seat;

typedef struct board {
    seat seat[SEATS];
} board;

typedef enum kind { ALLREDUCE, REDUCE_SCATTER, ALLGATHER, BROADCAST } kind;

typedef struct task {
    ncclComm_t comm;
    kind kind;
    const char *in;
    char *out;
    size_t count; /* elements of `in` on the receiving side of a scatter, else as the call says */
    size_t bytes; /* of one */
    ncclDataType_t type;
    int root;
    cudaStream_t stream;
    bool captured;
    size_t done;       /* bytes of `in` that were laid down */
    bool laid;         /* this round's part */
    struct task *next; /* of the communicator's */
} task;

struct ncclComm {
    int rank, size, fd, gpu;
    board *board;
    int waits; /* polls until what goes on in the background has come */
    bool joined, finalizing, closed;
    bool busy; /* what a call began in the background is not known to have ended */
    _Atomic bool aborted;
    task *tasks; /* that streams or graphs hold */
    bool connected[KINDS];
    task *later[GROUP]; /* tasks that wait for the connection */
    int nlater;
    _Atomic int captured; /* tasks that graphs hold */
    _Atomic int refs;     /* the caller's and the tasks' */
    uint64_t round;
};

extern const char *const hvt__nccl_names[KINDS];
/* For registrations and the communicators' tasks: a helper may end a communicator. */
extern pthread_mutex_t hvt__nccl_desk;

size_t hvt__nccl_in_bytes(const task *t);
size_t hvt__nccl_out_bytes(const task *t);
bool hvt__nccl_run(void *ctx); /* a task, as work of hvt_double_launch_poll() */
void hvt__nccl_drop(void *ctx);
void hvt__nccl_unref(ncclComm_t c);

#endif /* HVT_DOUBLE_NCCL_IMPL_H */
