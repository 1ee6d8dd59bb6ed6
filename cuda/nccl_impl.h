/*
 * nccl_impl.h - the comm over NCCL: shared by its operations (comm_nccl.c) and its guard (nccl_guard.c).
 *
 * Included by those two. Nothing else.
 */
#ifndef HVT_NCCL_IMPL_H
#define HVT_NCCL_IMPL_H

#include "base/thread.h"
#include "comm_impl.h"
#include "cuda_impl.h"

enum { NCCL_WATCHED = 256 }; /* operations that the guard can distinguish */

typedef struct nccl_op { /* a posted operation */
    const char *what;    /* "allreduce" */
    size_t count;
    hvt_dtype type;
    double issued;    /* hvt__now() */
    bool captured;    /* in a captured graph: `done` belongs to the graph and must not be queried */
    bool warned;      /* a warning about its duration was logged */
    cudaEvent_t done; /* on the comm's stream, after it */
} nccl_op;

/* Must not point to the hvt_comm, which is copied while it is opened. */
typedef struct comm_nccl {
    hvt_world *world;    /* borrowed */
    hvt_device *dev;     /* borrowed */
    ncclComm_t nccl;     /* NULL: not initialised yet, or aborted */
    cudaStream_t stream; /* runs the operations, with the highest priority */
    cudaEvent_t ready;   /* on the device's stream: the next operation's input is ready */
    bool shared;         /* ranks share a GPU */
    uint64_t waited;     /* the device's stream waits for all operations up to this one */

    pthread_mutex_t lock;     /* guards the following members, and every call on `nccl` */
    nccl_op op[NCCL_WATCHED]; /* operation n, from 1, is op[n % NCCL_WATCHED] */
    uint64_t issued, ended;   /* last operation posted, and last known to have ended */
    bool has_captured;        /* a captured graph may contain operations, whose end is not visible */
    bool broken;              /* no more calls on `nccl` */
    bool peers_missing;       /* broken because other ranks did not take part: one of them knows the reason */
    char why[512];
    bool ending; /* a helper thread is aborting (since `aborted`) or destroying */
    double aborted;
    pthread_t helper;

    hvt_stall stall;
    hvt__ticker guard;
} comm_nccl;

/* ---- nccl_guard.c. Functions marked L are called with the lock held. ---- */

hvt_status hvt__nccl_guard_start(comm_nccl *st);

/* L: E_COMM with the reason after a failure. */
hvt_status hvt__nccl_alive(const comm_nccl *st);
/* L: complete a call on `nccl` that returned r. If NCCL continues it in the background, wait for it; if it
 * fails, or takes longer than stall.abort, the comm is broken. */
hvt_status hvt__nccl_complete(comm_nccl *st, ncclResult_t r, const char *call);
#define NCCL(st, call) hvt__nccl_complete(st, hvt__nv.call, #call)
/* Wait until the operations posted so far have ended, or the abort of a broken comm has; at most
 * stall.abort. */
hvt_status hvt__nccl_drain(comm_nccl *st);
/* Stop the guard and destroy the communicator: together with the other ranks, or at once if it is broken. */
void hvt__nccl_end(comm_nccl *st);

#endif /* HVT_NCCL_IMPL_H */
