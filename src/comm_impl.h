/*
 * comm_impl.h - what a comm must be able to do, and how the collectives of src/coll use it.
 *
 * Included by src/comm, src/coll and cuda/. Nothing else.
 *
 * Operations of a comm wait in its one queue (queue.c) and run in the order of issue, which is the same on
 * every rank. Host comms add along one fixed binary tree over ranks, whatever the algorithm. hvt_comm_wait()
 * makes the device's queue (and, on a host device, the caller) see the result.
 */
#ifndef HVT_COMM_IMPL_H
#define HVT_COMM_IMPL_H

#include "hvt/comm.h"
#include "device_impl.h"
#include "world_impl.h"

/* From which size on a comm does what. Each comm keeps those that it was opened with; the same on every rank.
 * Results do not depend on them. Defaults are in cutoffs.c. */
typedef struct hvt__cutoffs {
    size_t mpi_short;   /* bytes; a sum of at most this size travels whole: fewer messages, more bytes */
    size_t mpi_packet;  /* bytes; of one message on a level of the tree that spans hosts, at most: below MPI's
                           eager limit, so that nothing is asked first and both directions flow at once */
    size_t mpi_window;  /* elements of a longer sum that are added while the next ones travel */
    size_t mpi_message; /* elements in one message at most; MPI counts in int */
} hvt__cutoffs;

typedef enum hvt__op_kind {
    HVT__ALLREDUCE,
    HVT__REDUCE_SCATTER,
    HVT__ALLGATHER,
    HVT__BROADCAST,
    HVT__REDUCE_APPLY,
    HVT__CALL /* a function of the layer above; backends never see one */
} hvt__op_kind;

/* Run the calls with tickets first ... first + n - 1; n > 1 only where `joins` is set. A failure is this
 * call's alone, but E_COMM and E_DEVICE, after which the comm cannot go on; so can it not where the function
 * says so (hvt__comm_break()). */
typedef hvt_status hvt__call_fn(hvt_comm *c, hvt_ticket first, int n);

typedef struct hvt__op {
    hvt__op_kind kind;
    hvt_dtype type;
    int root;
    void *buf;
    size_t count;               /* elements; bytes of a broadcast */
    hvt_reduce_apply_fn *apply; /* of HVT__REDUCE_APPLY */
    void *ctx;
    hvt__call_fn *call; /* of HVT__CALL */
    bool joins;         /* runs together with those of the same function that are issued right behind it */
    _Alignas(16) char args[128]; /* of HVT__CALL */
} hvt__op;

typedef struct hvt__queue {
    hvt__op *op; /* a ring */
    size_t room; /* a power of two; it doubles, so that a step takes no memory once the largest was seen */
    hvt_ticket issued, posted, run;
    hvt_ticket ended;  /* ran, and a fence came after */
    hvt_status broken; /* of the first failure after which the comm cannot go on */
    char why[160];     /* what was said of it then */
    bool told;         /* that it cannot, to the caller */
} hvt__queue;

typedef struct hvt__block { /* of a comm's memory, until it is released */
    void *ptr;
    size_t bytes;
    void *handle; /* the backend's */
} hvt__block;

/* What a backend does. All of it but left and leave is called by one thread at a time: the caller's, or
 * while it has work the worker's (worker.c). */
typedef struct hvt_comm_ops {
    const char *name;
    unsigned can;  /* hvt_comm_can() */
    bool messages; /* its operations send messages of the world's kind */
    hvt_status (*open)(hvt_comm *c);
    void (*close)(hvt_comm *c); /* NULL: nothing to do */
    /* Memory of so many bytes that peers may read, zeroed; shared, where it can: one block for a node's
     * ranks. And its end, where ptr may be NULL. NULL: the device's. */
    hvt_status (*alloc)(hvt_comm *c, bool shared, hvt__block *block);
    void (*release)(hvt_comm *c, hvt__block *block);
    /* NULL: the tree's */
    void (*slice)(const hvt_comm *c, size_t count, int rank, size_t *ret_first, size_t *ret_end);
    /* Announce the operation that comes after those posted so far, and wait for nobody. *ret_posted stays
     * false where that cannot be done yet: then it comes again, or run comes without it. NULL: nothing to
     * announce. */
    hvt_status (*post)(hvt_comm *c, const hvt__op *op, bool *ret_posted);
    /* Run the operation after those that ran so far; arithmetic on dev, which is this thread's. */
    hvt_status (*run)(hvt_comm *c, hvt_device *dev, const hvt__op *op);
    /* All that ran has ended on every rank: buffers are the caller's again. NULL: they are when run returns.
     */
    hvt_status (*fence)(hvt_comm *c);
    /* Has this rank left the comm, and why? Asked while somebody waits for it. NULL: no operation of the comm
     * waits for a rank on the host. */
    hvt__leaving (*left)(hvt_comm *c, int rank);
    /* Tell the others, once, that this rank takes part in nothing any more. NULL where left is. */
    void (*leave)(hvt_comm *c, hvt__leaving why);
} hvt_comm_ops;

struct hvt_comm {
    const hvt_comm_ops *ops;
    hvt_world *world; /* borrowed */
    hvt_device *dev;  /* borrowed */
    void *state;
    hvt__queue queue;
    struct hvt__worker *worker; /* NULL: operations run in hvt_comm_wait() */
    hvt__party party;           /* for messages of this comm's collectives */
    uint64_t collectives;       /* checked ones so far: as many on every rank */
    hvt__cutoffs cutoffs;
    hvt__block *block; /* [blocks] */
    int blocks;
    bool chosen; /* by "auto", which may think again while blocks is 0 */
};

extern const hvt_comm_ops hvt_comm_self, hvt_comm_shm, hvt_comm_mpi, hvt_comm_hier, hvt_comm_staged,
    hvt_comm_nccl;

static inline hvt__op *hvt__queue_at(const hvt__queue *q, hvt_ticket ticket)
{
    return &q->op[ticket & (q->room - 1)];
}

/* E_COMM after a failure: can the comm go on? */
hvt_status hvt__queue_check(const hvt_comm *c);
hvt_status hvt__queue_add(hvt_comm *c, const hvt__op *op, hvt_ticket *ret_ticket);
/* In a call: all that ran before it has ended on every rank. */
hvt_status hvt__queue_fence(hvt_comm *c);
/* In a call: an operation of the comm's own, as a part of it. */
hvt_status hvt__queue_run_now(hvt_comm *c, const hvt__op *op);
/* The comm cannot go on, and the other ranks are told; returns s. */
hvt_status hvt__comm_break(hvt_comm *c, hvt_status s);

/* Boundary i of n balanced slices of `count` elements, in multiples of 16. The boundaries of n slices are
 * among those of 2n: halving a slice of the one yields two of the other. */
static inline size_t hvt__cut(size_t count, int i, int n)
{
    size_t units = (count + 15) / 16, whole = units / (size_t)n, rest = units % (size_t)n;
    size_t at = 16 * (whole * (size_t)i + rest * (size_t)i / (size_t)n);

    return at < count ? at : count;
}

#endif /* HVT_COMM_IMPL_H */
