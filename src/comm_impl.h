/*
 * comm_impl.h - the interface of a comm backend, and what the collectives of src/coll use of it.
 *
 * Included by src/comm, src/coll and cuda/. Nothing else.
 *
 * A comm's operations wait in its queue (queue.c) and run in the order of issue, which is the same on every
 * rank. Host comms add along one fixed binary tree over ranks, whatever the algorithm. hvt_comm_wait() makes
 * the result visible to the device's queue and, on a host device, to the caller.
 */
#ifndef HVT_COMM_IMPL_H
#define HVT_COMM_IMPL_H

#include "comm/sums.h"
#include "device_impl.h"
#include "world_impl.h"

/* Sizes at which a comm changes algorithms. A comm keeps those that it was opened with; they are the same on
 * every rank. Results do not depend on them. Defaults are in cutoffs.c. */
typedef struct hvt__cutoffs {
    size_t mpi_short;  /* bytes; sums up to this size are sent whole: fewer messages, more bytes */
    size_t mpi_packet; /* bytes; maximum message on a tree level that spans hosts. Below MPI's eager limit, so
                          that no handshake is needed and both directions are busy at once */
    size_t mpi_window; /* elements of a longer sum that are added while the next ones are received */
    size_t mpi_message; /* elements in one message at most; MPI counts in int */
} hvt__cutoffs;

typedef enum hvt__op_kind {
    HVT__ALLREDUCE,
    HVT__REDUCE_SCATTER,
    HVT__ALLGATHER,
    HVT__BROADCAST,
    HVT__REDUCE_APPLY,
    HVT__CALL /* a function of src/coll; backends never get one */
} hvt__op_kind;

/* Run the calls with tickets first ... first + n - 1; n > 1 only if `joins` is set. A failure concerns only
 * these calls, except E_COMM, E_DEVICE and those passed to hvt__comm_break(), after which the comm is
 * unusable. */
typedef hvt_status hvt__call_fn(hvt_comm *c, hvt_ticket first, int n);

/* A collective of src/coll. */
typedef enum hvt__action {
    HVT__CALL_ALLREDUCE,
    HVT__CALL_REDUCE_SCATTER,
    HVT__CALL_BROADCAST,
    HVT__CALL_ALLGATHER,
    HVT__CALL_GATHER,
    HVT__CALL_SCATTER,
    HVT__CALL_ALLTOALL,
    HVT__CALL_BARRIER,
    HVT__CALL_SEND,
    HVT__CALL_RECV
} hvt__action;
extern const char *const hvt__action_names[];

enum { HVT__OPERATION = 32 }; /* in hvt_comm.running */

typedef struct hvt__op {
    hvt__op_kind kind;
    hvt_dtype type;
    int root;
    void *buf;
    size_t count;               /* elements; bytes of a broadcast */
    hvt_reduce_apply_fn *apply; /* for HVT__REDUCE_APPLY */
    void *ctx;
    hvt__partials partials; /* of a sum over shards; leaves NULL: over ranks */
    hvt__call_fn *call;     /* of HVT__CALL */
    bool joins;             /* runs together with the calls of the same function issued directly after it */
    _Alignas(16) char args[128]; /* of HVT__CALL */
} hvt__op;

typedef struct hvt__queue {
    hvt__op *op; /* a ring */
    size_t room; /* a power of two; it only doubles, so steps stop allocating once the largest was seen */
    hvt_ticket issued, posted, run;
    hvt_ticket ended;  /* tickets that ran and were fenced */
    hvt_status broken; /* first failure that made the comm unusable */
    char why[160];     /* its message */
    bool reported;     /* the caller has been given this failure */
} hvt__queue;

typedef struct hvt__block { /* allocated memory of a comm */
    void *ptr;
    size_t bytes;
    void *handle; /* the backend's */
} hvt__block;

/* A comm backend. One thread at a time calls these (the caller, or the worker of worker.c while it is busy),
 * except word and tell. */
typedef struct hvt_comm_ops {
    const char *name;
    unsigned can;  /* hvt_comm_can() */
    bool messages; /* its operations send the world's messages */
    bool leaves;   /* it can add leaves: operations may have partials */
    hvt_status (*open)(hvt_comm *c);
    void (*close)(hvt_comm *c); /* NULL: nothing to do */
    /* Allocate block->bytes of zeroed memory that peers may read; shared: one block for the ranks of a node.
     * release takes NULL, too. NULL: use the device's memory. */
    hvt_status (*alloc)(hvt_comm *c, bool shared, hvt__block *block);
    void (*release)(hvt_comm *c, hvt__block *block);
    /* NULL: slices of the tree */
    void (*slice)(const hvt_comm *c, size_t count, int rank, size_t *ret_first, size_t *ret_end);
    /* Announce the next operation without waiting for any rank. If *ret_posted stays false, it could not be
     * announced yet: post is called again, or run without it. NULL: nothing to announce. */
    hvt_status (*post)(hvt_comm *c, const hvt__op *op, bool *ret_posted);
    /* Allocate memory for sums over these leaves. NULL: not needed. */
    hvt_status (*reserve)(hvt_comm *c, const hvt__leaves *leaves);
    /* Run the next operation. It computes on dev, which belongs to this thread. */
    hvt_status (*run)(hvt_comm *c, hvt_device *dev, const hvt__op *op);
    /* Wait until all operations so far have ended on every rank, so that their buffers may be reused. NULL:
     * run does that. */
    hvt_status (*fence)(hvt_comm *c);
    /* The last word of a rank: why it has left the comm, below 0 where it waits (comm.c), or 0. Called while
     * waiting for it. NULL: the host never waits for a rank. */
    int (*word)(hvt_comm *c, int rank);
    /* Tell the other ranks this rank's word. None follows a departure. NULL if word is. */
    void (*tell)(hvt_comm *c, int word);
} hvt_comm_ops;

struct hvt_comm {
    const hvt_comm_ops *ops;
    const char *name; /* the one users know: "mpi" or "tcp" for those over messages */
    hvt_world *world; /* borrowed */
    hvt_device *dev;  /* borrowed */
    void *state;
    hvt__queue queue;
    struct hvt__worker *worker;       /* NULL: operations run in hvt_comm_wait() */
    hvt__rank_group group;            /* exchanges messages of this comm's collectives */
    uint64_t collectives, operations; /* checked collectives and operations so far, the same on every rank */
    void *work;                       /* [work_bytes] of the checked collectives */
    size_t work_bytes;
    int running;     /* 0; HVT__OPERATION + its kind; or 1 + the hvt__action of a checked collective */
    double waiting;  /* when a checked collective was first seen to wait; 0: it has not been */
    int told;        /* the last place that this rank told; see comm.c */
    hvt_comm *outer; /* this one is a part of; NULL: none */
    hvt_comm *next;  /* of the world's open ones */
    hvt__cutoffs cutoffs;
    hvt__block *block; /* [blocks] */
    int blocks;
    bool chosen; /* by "auto", which may choose again while blocks is 0 */
};

extern const hvt_comm_ops hvt_comm_self, hvt_comm_shm, hvt_comm_messages, hvt_comm_hier, hvt_comm_staged,
    hvt_comm_nccl;

static inline hvt__op *hvt__queue_at(const hvt__queue *q, hvt_ticket ticket)
{
    return &q->op[ticket & (q->room - 1)];
}

/* E_COMM if a failure has made the comm unusable. */
hvt_status hvt__queue_check(const hvt_comm *c);
hvt_status hvt__queue_add(hvt_comm *c, const hvt__op *op, hvt_ticket *ret_ticket);
/* In a call: wait until all earlier operations have ended on every rank. */
hvt_status hvt__queue_fence(hvt_comm *c);
/* In a call: run an operation of the comm as part of it. */
hvt_status hvt__queue_run_now(hvt_comm *c, const hvt__op *op);
/* True if this word is a departure. */
static inline bool hvt__is_gone(int word)
{
    return word > 0;
}

/* Make the comm unusable and tell the other ranks; returns s. */
hvt_status hvt__comm_break(hvt_comm *c, hvt_status s);

/* Boundary i of n balanced slices of `count` elements, a multiple of 16. Each of n slices is the union of two
 * of 2n slices. */
static inline size_t hvt__cut(size_t count, int i, int n)
{
    size_t units = (count + 15) / 16, whole = units / (size_t)n, rest = units % (size_t)n;
    size_t at = 16 * (whole * (size_t)i + rest * (size_t)i / (size_t)n);

    return at < count ? at : count;
}

#endif /* HVT_COMM_IMPL_H */
