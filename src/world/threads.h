/*
 * threads.h - ranks that are threads: shared by world_threads.c, letters.c and threads.c.
 *
 * Terms. The *hall* is what all threads of a call share: which of them have ended, and a bell. A *team* is
 * the ranks of one world, whole or split; each has a *place* in it. Ranks may also be in other processes of
 * the job (*remote*); their places only say where.
 */
#ifndef HVT_WORLD_THREADS_H
#define HVT_WORLD_THREADS_H

#include "base_impl.h"
#include "world_impl.h"

#include <pthread.h>

/* hvt_world_open_threads() over several processes: runs n threads in every process of `of`. All of these
 * threads are the ranks, in the order of the processes; n may differ between processes. of NULL, or of one
 * process: this process alone. Collective over `of`, which the threads must not use. */
hvt_status hvt__world_open_threads(hvt_world *of, int n, hvt_rank_fn *fn, void *ctx);

typedef struct hvt__letter hvt__letter;

typedef struct hvt__place {
    _Alignas(128) _Atomic uint64_t round; /* the last round that the rank has entered */
    struct {
        const void *at;
        size_t bytes;
        char copy[HVT__SCRATCH];
    } given[2];        /* indexed by the parity of the round */
    hvt__letter *mail; /* sends to this rank without a receive, oldest first; guarded by the hall's lock */
    hvt__letter *want; /* receives of this rank without a send, likewise */
    int thread;        /* index in its process */
    int process;       /* HVT__OWN: this process */
} hvt__place;

enum { HVT__OWN = -1 };

typedef struct hvt__hall {
    pthread_mutex_t lock;
    pthread_cond_t bell;
    _Atomic uint64_t events;
    atomic_int sleepers;
    atomic_int channels; /* number of the next channel */

    hvt_world *process;      /* the world of processes; NULL: none */
    hvt_world *of;           /* the same; NULL: no other processes */
    void *outside;           /* channel of `of` */
    pthread_mutex_t of_lock; /* one thread at a time sends to other processes */
    int most;                /* the largest number of threads of a process */

    hvt_rank_fn *fn;
    void *ctx;
    int begin;    /* 1: the threads may run; -1: some do not exist. The lock guards it to `held` */
    hvt_status s; /* status of the first thread that failed; its rank and error follow */
    int failed;
    hvt__error why;
    bool held; /* a rank left objects behind that may still use the hall */
    int size;  /* threads of this process */
    struct {
        atomic_bool ended;
        int fd; /* an eventfd, readable once the thread has ended; -1: none */
    } life[];
} hvt__hall;

typedef struct hvt__team {
    hvt__hall *hall;
    bool remote;      /* some ranks are in other processes */
    int number;       /* number of the team's own channel; with remote ranks only */
    atomic_int users; /* ranks of this process that have not closed it */
    hvt__place place[];
} hvt__team;

/* A rank's handle. */
typedef struct hvt__member {
    hvt__team *team;
    hvt__place *mine;
} hvt__member;

static inline hvt__member *hvt__member_of(const hvt_world *w)
{
    return w->state;
}

/* True if the rank is a thread of this process that has ended. */
static inline bool hvt__thread_ended(const hvt_world *w, int rank)
{
    const hvt__team *t = hvt__member_of(w)->team;

    return t->place[rank].process == HVT__OWN && atomic_load(&t->hall->life[t->place[rank].thread].ended);
}

/* Wakes waiting ranks. Call after each change that a rank may wait for. */
void hvt__ring(hvt__hall *h);

/* State of a wait; begins as zeros. */
typedef struct hvt__idling {
    double began, looked;
    int spins;
} hvt__idling;

/* Waits a moment, or until there are more events than `seen`. True about ten times a second, when the caller
 * should check whether its peers are alive. polls: the caller also waits for something that rings no bell, so
 * sleep briefly. */
bool hvt__idle(hvt__hall *h, hvt__idling *i, uint64_t seen, bool polls);

/* ---- letters.c: the messages of a world of threads ---- */

struct hvt__letter {
    hvt__letter *next;
    void *at;
    size_t bytes;
    const void *channel; /* NULL: the team's own */
    int tag, from, to;
    bool send, paired; /* paired: another thread copies; guarded by the hall's lock */
    atomic_bool done;
    bool misfit; /* the other side gave another size; valid once done */
    bool remote;
    hvt__flight outside; /* the message to or from another process, if remote */
    int peer;
    _Alignas(16) char request[64];
};

enum { HVT__COLLECTIVE = -1 /* tag of collectives on the team's own channel */ };

hvt_status hvt__letters_open_channel(hvt_world *w, void **ret_channel);
void hvt__letters_close_channel(hvt_world *w, void *channel, bool quiet);
void hvt__letters_tell(hvt_world *w, void *channel, int word);
hvt_status hvt__letters_hear(hvt_world *w, void *channel, int *word);
hvt_status hvt__letters_post(hvt__flight *f, bool send, void *at, size_t count, int peer);
hvt_status hvt__letters_test(hvt__flight *f, bool again, bool *ret_done);
hvt_status hvt__letters_test_one(hvt__flight *f, int i, bool *ret_done);
void hvt__letters_drop(hvt__flight *f);
/* Agrees on a number for a new channel of all ranks of w. Collective. */
hvt_status hvt__letters_number(hvt_world *w, int *ret_number);

/* ---- world_threads.c ---- */

/* Opens a rank's world, except host, node_of and the values derived from them. t may be NULL and set later.
 * E_MEM. */
hvt_status hvt__member_open(hvt_world *w, hvt__team *t, int rank, int size);
/* Renumbers node_of's nodes in the order of their first ranks. */
void hvt__member_nodes(hvt_world *w);
hvt__team *hvt__team_new(hvt__hall *h, int size); /* NULL: no memory */

#endif /* HVT_WORLD_THREADS_H */
