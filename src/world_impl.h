/*
 * world_impl.h - the interface of a world backend, and what worlds offer to comms besides public functions.
 *
 * Included by src/world, src/comm, src/coll and cuda/. Nothing else.
 */
#ifndef HVT_WORLD_IMPL_H
#define HVT_WORLD_IMPL_H

#include "base/users.h"
#include "hvt/world.h"

#include <stdatomic.h>

/* Why a rank left a comm. */
typedef enum hvt__departure {
    HVT__HERE,         /* it has not */
    HVT__ENDED,        /* its process ended without notice */
    HVT__BY_ITSELF,    /* it closed the comm, or failed */
    HVT__AFTER_ANOTHER /* it gave up waiting for a rank that had left */
} hvt__departure;

/* A group of ranks that exchange messages. */
typedef struct hvt__rank_group {
    int channel; /* of the world */
    /* Whether and why this rank has left. */
    hvt__departure (*has_left)(const struct hvt__rank_group *group, int rank);
    /* Handle a departed rank: E_COMM that names it and the failed operation `what`; tells the others that
     * this rank gives up. */
    hvt_status (*lost)(const struct hvt__rank_group *group, int rank, const char *what);
} hvt__rank_group;

/* A message between two ranks of a world. */
typedef struct hvt__message {
    const void *at; /* memory to read or, when receiving, to write */
    size_t bytes;
    int rank;    /* the other one */
    bool answer; /* sent against the operation's data, so ordered separately */
} hvt__message;

struct hvt__mpi_facts; /* world/facts.h */

typedef struct hvt_world_ops {
    const char *name;
    /* mpi_comm: a host program's, or NULL. w: NULL on a rank without memory, so that all fail. */
    hvt_status (*open)(hvt_world *w, const void *mpi_comm);
    void (*close)(hvt_world *w); /* NULL: nothing to do, also for barrier and abort */
    /* Small host values. Reductions, comparisons and agreements use only the first two */
    hvt_status (*allgather)(hvt_world *w, const void *mine, size_t bytes, void *all);
    hvt_status (*broadcast)(hvt_world *w, void *data, size_t bytes, int root);
    hvt_status (*gather)(hvt_world *w, const void *mine, size_t bytes, void *all, int root);
    hvt_status (*barrier)(hvt_world *w);
    void (*abort)(hvt_world *w, int exit_code);
    /* Fill a fresh world, whose only valid member is ops; a negative color leaves it so. Like open it
     * allocates all that a world holds. */
    hvt_status (*split)(hvt_world *w, int color, int key, hvt_world *fresh);
    /* Exchange messages on the group's channel, and wait for them. Messages between two ranks arrive in the
     * order of the list; sizes agree on both sides. Lists of up to 2 * size messages allocate nothing. If a
     * rank has left, E_COMM names it. NULL: one rank. */
    hvt_status (*exchange)(hvt_world *w, const hvt__rank_group *group, const hvt__message *messages,
                           int recvs, int sends);
    /* A thread of this process starts or stops sending. E_UNSUPPORTED if it may not; NULL: it may. */
    hvt_status (*another_thread)(hvt_world *w, bool comes);
    /* The library and its level of threads. NULL: there is no library. */
    void (*describe)(struct hvt__mpi_facts *ret_facts);
} hvt_world_ops;

struct hvt_world {
    const hvt_world_ops *ops;
    int rank, size, local_rank, local_size, nodes;
    int channels;         /* assigned to comms so far */
    int comms, groups;    /* open ones, to be closed before this world */
    hvt_world *parent;    /* borrowed; the world that this one was split from, counted in its `groups` */
    const hvt_world *job; /* borrowed; the whole job's world; NULL: this one */
    int *job_rank;        /* [size] every rank's number in `job`, for log lines; NULL: the same */
    int *node_of;         /* [size] node number of every rank */
    char (*host)[64];     /* [size] */
    void *scratch; /* [size] x HVT__SCRATCH bytes, for gathers that must not fail, because other ranks would
                      wait */
    void *state;   /* MPI communicators, ... */
};

enum { HVT__SCRATCH = 64 };

extern const hvt_world_ops hvt_world_mpi, hvt_world_singleton;

/* A rank's number in log lines: that in the whole job. */
static inline int hvt__job_rank(const hvt_world *w, int rank)
{
    return w->job_rank ? w->job_rank[rank] : rank;
}

typedef struct hvt__segment {
    char *base;    /* NULL: none */
    size_t stride; /* rank r's part begins at base + r * stride */
    int ranks;
    bool shared; /* all ranks see all of it */
} hvt__segment;

/* Collective. Zeroed and reserved, so that touching it cannot fail later. Errors are agreed. */
hvt_status hvt__segment_open(hvt_world *w, size_t bytes, hvt__segment *ret_segment);
void hvt__segment_close(hvt__segment *s);

/* For a thread that shares its CPU: while false, no one waits for its work, so it sleeps when idle. NULL: it
 * never sleeps. */
extern _Thread_local const atomic_bool *hvt__awaited;

/* Time limits of an operation, for comms with their own watchdog, read when they are opened. */
extern hvt_stall hvt__stall;

/* Set by tests. */
extern size_t hvt__world_message;                   /* longest one, in bytes */
extern int (*hvt__shm_create)(size_t bytes);        /* a new nameless file of this size, or -1 with errno */
extern int (*hvt__shm_attach)(int pid, int fd);     /* another process's file, or -1 with errno */
extern void *(*hvt__shm_map)(int fd, size_t bytes); /* or MAP_FAILED with errno */
extern int (*hvt__shm_unmap)(void *base, size_t bytes);

#endif /* HVT_WORLD_IMPL_H */
