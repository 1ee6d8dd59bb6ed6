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
    HVT__HERE,          /* it has not */
    HVT__ENDED,         /* its process ended without notice */
    HVT__BY_ITSELF,     /* it closed the comm, or failed */
    HVT__AFTER_ANOTHER, /* it gave up waiting for a rank that had left */
    HVT__DISAGREES      /* it runs another operation than a rank that it waits for; plus more (comm.c) */
} hvt__departure;

/* A group of ranks that exchange messages. */
typedef struct hvt__rank_group {
    int channel; /* of the world */
    /* Whether and why this rank has left. */
    hvt__departure (*has_left)(const struct hvt__rank_group *group, int rank);
    /* Handle a departed rank: E_COMM that names it and the failed operation `what`; tells the others that
     * this rank gives up. */
    hvt_status (*lost)(const struct hvt__rank_group *group, int rank, const char *what);
    const char *what; /* what ranks wait for others to do; NULL: send and take their part */
} hvt__rank_group;

/* A message between two ranks of a world. */
typedef struct hvt__message {
    const void *at; /* memory to read or, when receiving, to write */
    size_t bytes;
    int rank;    /* the other one */
    bool answer; /* sent against the operation's data, so ordered separately */
} hvt__message;

/* Messages in flight on a channel, between this rank and others. */
typedef struct hvt__flight {
    hvt_world *world;
    void *channel;  /* of open_channel(); NULL: the world's own */
    int tag;        /* only messages with the same tag meet */
    size_t element; /* bytes of an element: 1, 2 or 4 */
    int n, room;
    void *request; /* [room] the world's, ops->request bytes each; in one block with: */
    int *peer;     /* [room] peer of each */
} hvt__flight;

struct hvt__mpi_facts; /* world/facts.h */

typedef struct hvt_world_ops {
    const char *name;
    /* how: a host program's communicator, or NULL; how the ranks meet by TCP. w: NULL on a rank without
     * memory, so that all fail. */
    hvt_status (*open)(hvt_world *w, const void *how);
    void (*close)(hvt_world *w); /* NULL: nothing to do, also for barrier and abort */
    /* Small host values. Reductions, comparisons and agreements use only the first two */
    hvt_status (*allgather)(hvt_world *w, const void *mine, size_t bytes, void *all);
    hvt_status (*broadcast)(hvt_world *w, void *channel, void *data, size_t bytes, int root);
    hvt_status (*gather)(hvt_world *w, const void *mine, size_t bytes, void *all, int root);
    hvt_status (*barrier)(hvt_world *w);
    void (*abort)(hvt_world *w, int exit_code);
    /* Fill a fresh world, whose only valid member is ops; a negative color leaves it so. Like open it
     * allocates all that a world holds. */
    hvt_status (*split)(hvt_world *w, int color, int key, hvt_world *fresh);
    /* Messages, by the functions below. Those between two ranks arrive in the order of their posting on a
     * channel; sizes agree on both sides. All members but is_up are NULL in a world of one rank. */
    const char *comm;    /* name of the comm over these messages */
    size_t request;      /* bytes of a message's entry in a flight */
    bool (*is_up)(void); /* ranks can be reached; NULL: always */
    /* Collective. Messages of different channels never meet. */
    hvt_status (*open_channel)(hvt_world *w, void **ret_channel);
    /* quiet: all ranks have left the channel, so nothing is in flight on it. */
    void (*close_channel)(hvt_world *w, void *channel, bool quiet);
    /* Tell the others on the channel a word: why this rank has left, which is its last, or a number below 0.
     */
    void (*tell)(hvt_world *w, void *channel, int word);
    /* word[size]: set the entries of ranks that have told a word to the last one. */
    hvt_status (*hear)(hvt_world *w, void *channel, int *word);
    hvt_status (*post)(hvt__flight *f, bool send, void *at, size_t count, int peer);
    /* *ret_done: all messages have been sent or received. again: since the last call it only waited. */
    hvt_status (*test)(hvt__flight *f, bool again, bool *ret_done);
    hvt_status (*test_one)(hvt__flight *f, int i, bool *ret_done);
    void (*drop)(hvt__flight *f);
    /* A thread of this process starts or stops sending. E_UNSUPPORTED if it may not; NULL: it may. */
    hvt_status (*another_thread)(hvt_world *w, bool comes);
    /* A file that becomes readable when this rank ends, borrowed; -1: none. NULL: a rank is a process. */
    int (*life)(const hvt_world *w, int rank);
    /* The library and its level of threads. NULL: there is no library. */
    void (*describe)(struct hvt__mpi_facts *ret_facts);
} hvt_world_ops;

struct hvt_world {
    const hvt_world_ops *ops;
    int rank, size, local_rank, local_size, nodes;
    int channels;               /* assigned to comms so far */
    int comms, groups;          /* open ones, to be closed before this world */
    struct hvt_comm *comm;      /* the open ones, a list of comm.c */
    void (*ends)(hvt_world *w); /* called if the process leaves while comms are open: tells the other ranks */
    hvt_world *parent;    /* borrowed; the world that this one was split from, counted in its `groups` */
    const hvt_world *job; /* borrowed; the whole job's world; NULL: this one */
    int *job_rank;        /* [size] every rank's number in `job`, for log lines; NULL: the same */
    int *node_of;         /* [size] node number of every rank */
    char (*host)[64];     /* [size] */
    hvt__flight flight;   /* of collectives, by hvt__exchange() */
    void *scratch; /* [size] x HVT__SCRATCH bytes, for gathers that must not fail, because other ranks would
                      wait */
    void *state;   /* MPI communicators, ... */
};

enum { HVT__SCRATCH = 64 };

extern const hvt_world_ops hvt_world_mpi, hvt_world_singleton, hvt_world_threads, hvt_world_tcp;

/* A rank's number in log lines: that in the whole job. */
static inline int hvt__job_rank(const hvt_world *w, int rank)
{
    return w->job_rank ? w->job_rank[rank] : rank;
}

/* Make room for `room` messages; free(f->request). */
hvt_status hvt__flight_reserve(hvt__flight *f, int room);
/* Post one more message of `count` elements, to or from the peer. */
hvt_status hvt__flight_post(hvt__flight *f, bool send, void *at, size_t count, int peer);
/* Wait for all messages. Tells the watchdog which peers have not sent or received theirs. E_COMM if a peer
 * has left the group; the messages are still in flight then. */
hvt_status hvt__flight_await(hvt__flight *f, const hvt__rank_group *group);
/* Abandon messages. The receiver may still read an unreceived send. */
void hvt__flight_drop(hvt__flight *f);
/* Exchange messages on the group's channel of the world, and wait for them. Messages between two ranks arrive
 * in the order of the list. Lists of up to 2 * size messages allocate nothing. If a rank has left, E_COMM
 * names it. */
hvt_status hvt__exchange(hvt__flight *f, const hvt__rank_group *group, const hvt__message *messages,
                         int recvs, int sends);
/* E_COMM: no rank can be reached any more. */
hvt_status hvt__world_check_up(const hvt_world *w);

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

/* Time limits of an operation, for comms with their own watchdog, read when this thread opens them. */
extern _Thread_local hvt_stall hvt__stall;

/* Set by tests. */
extern size_t hvt__world_message;                   /* longest one, in bytes */
extern int (*hvt__shm_create)(size_t bytes);        /* a new nameless file of this size, or -1 with errno */
extern int (*hvt__shm_attach)(int pid, int fd);     /* another process's file, or -1 with errno */
extern void *(*hvt__shm_map)(int fd, size_t bytes); /* or MAP_FAILED with errno */
extern int (*hvt__shm_unmap)(void *base, size_t bytes);

#endif /* HVT_WORLD_IMPL_H */
