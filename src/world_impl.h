/*
 * world_impl.h - what a world must be able to do, and what it offers to comms beside its public functions.
 *
 * Included by src/world, src/comm, src/coll and cuda/. Nothing else.
 */
#ifndef HVT_WORLD_IMPL_H
#define HVT_WORLD_IMPL_H

#include "base/users.h"
#include "hvt/world.h"

#include <stdatomic.h>

/* Why a rank takes part in a comm no longer. */
typedef enum hvt__leaving {
    HVT__HERE,         /* it still does */
    HVT__ENDED,        /* its process has, without a word */
    HVT__BY_ITSELF,    /* it closed the comm, or failed */
    HVT__AFTER_ANOTHER /* it gave up waiting for a rank that had left */
} hvt__leaving;

/* Those who exchange messages, as a comm's collectives do, until they leave. */
typedef struct hvt__party {
    int channel; /* of the world */
    /* Has this rank left? */
    hvt__leaving (*left)(const struct hvt__party *party, int rank);
    /* It has, and `what` will not come of it: E_COMM that names it; the others are told that this rank gives
     * up. */
    hvt_status (*lost)(const struct hvt__party *party, int rank, const char *what);
} hvt__party;

/* Bytes on their way between two ranks of a world. */
typedef struct hvt__message {
    const void *at; /* of what is received: memory to write */
    size_t bytes;
    int rank;    /* the other one */
    bool answer; /* against the direction of the operation's data: an order of its own */
} hvt__message;

struct hvt__mpi_facts; /* world/facts.h */

typedef struct hvt_world_ops {
    const char *name;
    /* mpi_comm: a host program's, or NULL. w: NULL on a rank that has no memory for it, so that all fail. */
    hvt_status (*open)(hvt_world *w, const void *mpi_comm);
    void (*close)(hvt_world *w); /* NULL: nothing to do, as that of barrier and abort */
    /* small host values; every reduction, comparison and agreement is made of the first two */
    hvt_status (*allgather)(hvt_world *w, const void *mine, size_t bytes, void *all);
    hvt_status (*broadcast)(hvt_world *w, void *data, size_t bytes, int root);
    hvt_status (*gather)(hvt_world *w, const void *mine, size_t bytes, void *all, int root);
    hvt_status (*barrier)(hvt_world *w);
    void (*abort)(hvt_world *w, int exit_code);
    /* part: of the fresh world only ops is set; a negative color leaves it so. As open it also allocates all
     * that a world holds. */
    hvt_status (*split)(hvt_world *w, int color, int key, hvt_world *fresh);
    /* Let messages of a party travel on its channel, and wait for them. Those between two ranks arrive in the
     * order of the list; sizes agree on both sides. Lists of up to 2 * size messages need no memory. A rank
     * that has left it is not waited for: E_COMM names it. NULL: one rank. */
    hvt_status (*exchange)(hvt_world *w, const hvt__party *party, const hvt__message *messages, int recvs,
                           int sends);
    /* Another thread of this process comes to send messages of this kind, or goes. E_UNSUPPORTED. NULL: it
     * may. */
    hvt_status (*another_thread)(hvt_world *w, bool comes);
    /* The library and its level of threads. NULL: there is no library. */
    void (*describe)(struct hvt__mpi_facts *ret_facts);
} hvt_world_ops;

struct hvt_world {
    const hvt_world_ops *ops;
    int rank, size, local_rank, local_size, nodes;
    int channels;         /* given to comms so far */
    int comms, groups;    /* open ones, which must be closed before this world */
    hvt_world *parent;    /* borrowed; the world that this one was split from, counted in its `groups` */
    const hvt_world *job; /* borrowed; the world that this one is a part of; NULL: of none */
    int *job_rank;        /* [size] every rank's number in `job`, which messages name; NULL: its own */
    int *node_of;         /* [size] node number of every rank */
    char (*host)[64];     /* [size] */
    void *scratch; /* [size] x HVT__SCRATCH bytes: words gathered where failing would leave others waiting */
    void *state;   /* MPI communicators, ... */
};

enum { HVT__SCRATCH = 64 };

extern const hvt_world_ops hvt_world_mpi, hvt_world_singleton;

/* What a rank is called in messages: by its number in the whole job. */
static inline int hvt__job_rank(const hvt_world *w, int rank)
{
    return w->job_rank ? w->job_rank[rank] : rank;
}

typedef struct hvt__segment {
    char *base;    /* NULL: none */
    size_t stride; /* rank r's part begins at base + r * stride */
    int ranks;
    bool shared; /* the whole of it is every rank's */
} hvt__segment;

/* Collective; zeroed, and reserved: touching it cannot fail later. Its error is agreed. */
hvt_status hvt__segment_open(hvt_world *w, size_t bytes, hvt__segment *ret_segment);
void hvt__segment_close(hvt__segment *s);

/* Of a thread that shares its processor: while this is false nobody waits for what it does, and it waits
 * asleep. NULL: it does not sleep. */
extern _Thread_local const atomic_bool *hvt__awaited;

/* How long an operation may be under way; what comms with a watchdog of their own take when they are opened.
 */
extern hvt_stall hvt__stall;

/* Tests turn these. */
extern size_t hvt__world_message;                   /* longest one, in bytes */
extern int (*hvt__shm_create)(size_t bytes);        /* a new nameless file of this size, or -1 with errno */
extern int (*hvt__shm_attach)(int pid, int fd);     /* another process's file, or -1 with errno */
extern void *(*hvt__shm_map)(int fd, size_t bytes); /* or MAP_FAILED with errno */
extern int (*hvt__shm_unmap)(void *base, size_t bytes);

#endif /* HVT_WORLD_IMPL_H */
