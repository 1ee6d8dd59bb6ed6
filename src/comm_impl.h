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

typedef struct hvt_world_ops {
    const char *name;
    hvt_status (*open)(hvt_world *w, const void *mpi_comm); /* mpi_comm: a host program's, or NULL */
    void (*close)(hvt_world *w);
    /* small host values; every fold, comparison and agreement is made of these two */
    hvt_status (*gather)(hvt_world *w, const void *mine, size_t bytes, void *all);
    hvt_status (*broadcast)(hvt_world *w, void *data, size_t bytes, int root);
    hvt_status (*barrier)(hvt_world *w);
    void (*abort)(hvt_world *w, int exit_code);
} hvt_world_ops;

struct hvt_world {
    const hvt_world_ops *ops;
    int rank, size, local_rank, local_size, nodes;
    int *node_of;     /* [size] node number of every rank */
    char (*host)[64]; /* [size] */
    void *scratch; /* [size] x HVT__SCRATCH bytes: words gathered where failing would leave others waiting */
    void *state;   /* MPI communicators, ... */
};

enum { HVT__SCRATCH = 64 };

extern const hvt_world_ops hvt_world_mpi, hvt_world_lone;

typedef struct hvt_comm_ops {
    const char *name;
    hvt_status (*open)(hvt_comm *c);
    void (*close)(hvt_comm *c);
    hvt_status (*alloc)(hvt_comm *c, size_t bytes, void **ret_ptr); /* memory that peers may read */
    void (*release)(hvt_comm *c, void *ptr);
    int (*peers)(hvt_comm *c, const void *buf, const void *ret_ptrs[]); /* 0: not readable */
    hvt_status (*broadcast)(hvt_comm *c, void *buf, size_t bytes, int root);
    hvt_status (*allreduce)(hvt_comm *c, void *buf, size_t count, hvt_dtype t, hvt_ticket *ret_ticket);
    hvt_status (*reduce_scatter)(hvt_comm *c, void *buf, size_t count, hvt_dtype t, hvt_ticket *ret_ticket);
    hvt_status (*allgather)(hvt_comm *c, void *buf, size_t count, hvt_dtype t, hvt_ticket *ret_ticket);
    hvt_status (*wait)(hvt_comm *c, hvt_ticket ticket);
} hvt_comm_ops;

struct hvt_comm {
    const hvt_comm_ops *ops;
    hvt_world *world; /* borrowed */
    hvt_device *dev;  /* borrowed */
    void *state;
    hvt_ticket issued; /* last ticket handed out */
    int blocks;        /* allocated and not released */
    bool chosen;       /* by "auto", which may think again while blocks is 0 */
};

extern const hvt_comm_ops hvt_comm_self, hvt_comm_shm, hvt_comm_mpi;

#endif /* HVT_COMM_IMPL_H */
