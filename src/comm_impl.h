/*
 * comm_impl.h - what a world and a data plane must be able to do.
 *
 * Included by src/comm and cuda/. Nothing else.
 *
 * allreduce sums in place and returns at once; operations of one comm run in
 * issue order, which must be the same on every rank. Host comms add along one
 * fixed binary tree over ranks, whatever the algorithm.  wait() makes the
 * device's queue (and, on a host device, the caller) see the result.
 */
#ifndef HVT_COMM_IMPL_H
#define HVT_COMM_IMPL_H

#include "hvt/comm.h"
#include "device_impl.h"

/* Bytes on their way between two ranks of a world. */
typedef struct hvt__parcel {
    const void *at; /* of what is taken: memory to write */
    size_t bytes;
    int rank;    /* the other one */
    bool answer; /* against the direction of the operation's data: an order of its own */
} hvt__parcel;

typedef struct hvt_world_ops {
    const char *name;
    /* mpi_comm: a host program's, or NULL. w: NULL on a rank that has no memory for it, so that all fail. */
    hvt_status (*open)(hvt_world *w, const void *mpi_comm);
    void (*close)(hvt_world *w);
    /* small host values; every fold, comparison and agreement is made of these two */
    hvt_status (*gather)(hvt_world *w, const void *mine, size_t bytes, void *all);
    hvt_status (*broadcast)(hvt_world *w, void *data, size_t bytes, int root);
    hvt_status (*barrier)(hvt_world *w);
    void (*abort)(hvt_world *w, int exit_code);
    /* part: of the fresh world only ops is set; a negative color leaves it so */
    hvt_status (*split)(hvt_world *w, int color, int key, hvt_world *fresh);
    /* Let parcels of a comm travel on its channel, and wait for them. Those between two ranks arrive in the
     * order of the list; sizes agree on both sides. Lists of up to 2 * size parcels need no memory. A rank
     * that has left the comm is not waited for: E_COMM names it. NULL: one rank. */
    hvt_status (*exchange)(hvt_world *w, hvt_comm *c, const hvt__parcel *parcels, int takes, int gives);
    /* Another thread of this process comes to send messages of this kind, or goes. E_UNSUPPORTED. NULL: it
     * may. */
    hvt_status (*another_thread)(hvt_world *w, bool comes);
} hvt_world_ops;

struct hvt_world {
    const hvt_world_ops *ops;
    int rank, size, local_rank, local_size, nodes;
    int channels;         /* given to comms so far */
    int comms, groups;    /* open ones, which must be closed before this world */
    hvt_world *parent;    /* borrowed; the world that this one was split from, counted in its `groups` */
    const hvt_world *job; /* borrowed; the world that this one is a part of; NULL: of none */
    int *called;          /* [size] every rank's number in `job`, which messages name; NULL: its own */
    int *node_of;         /* [size] node number of every rank */
    char (*host)[64];     /* [size] */
    void *scratch; /* [size] x HVT__SCRATCH bytes: words gathered where failing would leave others waiting */
    void *state;   /* MPI communicators, ... */
};

enum { HVT__SCRATCH = 64 };

extern const hvt_world_ops hvt_world_mpi, hvt_world_lone;

/* Which way for which size. Each comm keeps those that it was opened with; the same on every rank. Results do
 * not depend on them. Defaults are in tree.c. */
typedef struct hvt__comm_tuning {
    size_t shm_ride;   /* bytes; where the other ranks' vectors are at most these in all, every rank reads all
                          of them: one exchange in the place of two, but more bytes. <= 4096 of each rank */
    size_t mpi_short;  /* bytes; a sum of at most this size travels whole: fewer messages, more bytes */
    size_t mpi_window; /* elements; of a longer one that are added while the next ones travel */
    size_t mpi_packet; /* bytes; of one message on a level of the tree that spans hosts, at most: below MPI's
                          eager limit, so that nothing is asked first and both directions flow at once */
    size_t mpi_message; /* elements in one message at most; MPI counts in int */
} hvt__comm_tuning;

/* Why a rank takes part in a comm no longer. */
typedef enum hvt__leaving {
    HVT__HERE,         /* it still does */
    HVT__BY_ITSELF,    /* it closed the comm, or failed */
    HVT__AFTER_ANOTHER /* it gave up waiting for a rank that had left */
} hvt__leaving;

typedef struct hvt_comm_ops {
    const char *name;
    hvt_status (*open)(hvt_comm *c);
    void (*close)(hvt_comm *c);
    hvt_status (*alloc)(hvt_comm *c, size_t bytes, void **ret_ptr); /* memory that peers may read */
    void (*release)(hvt_comm *c, void *ptr);
    int (*peers)(hvt_comm *c, const void *buf, const void *ret_ptrs[]); /* 0: not readable */
    void (*slice)(const hvt_comm *c, size_t count, int rank, size_t *ret_first, size_t *ret_end); /* NULL: the
                                                                                                    tree's */
    hvt_status (*broadcast)(hvt_comm *c, void *buf, size_t bytes, int root);
    hvt_status (*allreduce)(hvt_comm *c, void *buf, size_t count, hvt_dtype t, hvt_ticket *ret_ticket);
    hvt_status (*reduce_scatter)(hvt_comm *c, void *buf, size_t count, hvt_dtype t, hvt_ticket *ret_ticket);
    hvt_status (*allgather)(hvt_comm *c, void *buf, size_t count, hvt_dtype t, hvt_ticket *ret_ticket);
    hvt_status (*wait)(hvt_comm *c, hvt_ticket ticket);
    /* What was issued goes on as far as it can without waiting. NULL: not before wait. */
    hvt_status (*progress)(hvt_comm *c);
    /* Has this rank left the comm, and why? Asked while somebody waits for it. NULL: nobody can tell. */
    hvt__leaving (*left)(hvt_comm *c, int rank);
    /* Tell the others, once, that this rank takes part in nothing any more. NULL where left is. */
    void (*leave)(hvt_comm *c, hvt__leaving why);
    bool records;  /* its operations may be recorded with the device's */
    bool messages; /* its operations send messages of the world's kind */
    /* NULL: not for this comm */
    hvt_status (*share)(hvt_comm *c, size_t bytes, void **ret_ptr); /* one block for a node's ranks; zeroed */
    hvt_status (*combine)(hvt_comm *c, void *buf, size_t count, hvt_dtype t, hvt_combine_fn *fn, void *ctx,
                          hvt_ticket *ret_ticket);
} hvt_comm_ops;

struct hvt_comm {
    const hvt_comm_ops *ops;
    hvt_world *world; /* borrowed */
    hvt_device *dev;  /* borrowed */
    void *state;
    hvt_ticket issued;      /* last ticket that ops handed out */
    hvt_ticket front;       /* last one that a user got: of ops, or of a call; see coll.c */
    int channel;            /* of the world, for parcels of this comm */
    hvt__comm_tuning tuned; /* as they were when it was opened */
    struct hvt__calls *calls;
    struct hvt__overlap *overlap; /* NULL: no worker */
    int blocks;                   /* allocated and not released */
    bool chosen;                  /* by "auto", which may think again while blocks is 0 */
};

/* How long an operation may be under way; what comms with a watchdog of their own take when they are opened.
 */
extern hvt_stall hvt__stall;

extern const hvt_comm_ops hvt_comm_self, hvt_comm_shm, hvt_comm_mpi, hvt_comm_hier, hvt_comm_staged,
    hvt_comm_nccl;

#endif /* HVT_COMM_IMPL_H */
