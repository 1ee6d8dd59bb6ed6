/*
 * coll.h - what the files of the public collectives share.
 *
 * Words. A *call* is one operation of hvt/collective.h, or one of hvt/comm.h that was issued behind such a
 * one and keeps its place. A rank's *part* is its share of a vector, see hvt/collective.h.
 */
#ifndef HVT_COMM_COLL_H
#define HVT_COMM_COLL_H

#include "hvt/collective.h"
#include "room.h"

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
    HVT__CALL_RECV,
    HVT__CALL_COMM /* `kind` of comm.h: on out, in place, unchecked */
} hvt__action;

typedef struct hvt__call {
    hvt__action action;
    hvt__kind kind;
    hvt_dtype type;
    hvt_reduction how;
    hvt_scale scale;
    int peer;             /* root, or the other rank of a send or receive */
    size_t count;         /* elements: of the vector, or of this rank's part where there are parts */
    const size_t *counts; /* [size] of the parts; of alltoall, those given; NULL: `count` each */
    const size_t *takes;  /* [size] of alltoall */
    const void *in;
    void *out;
    hvt_ticket ticket;
} hvt__call;

/* Elements of rank r's part. */
static inline size_t hvt__part(const hvt__call *k, int r)
{
    return k->counts ? k->counts[r] : k->count;
}

/* One call under way, and all the memory that it takes: found before any data moves, so that a lack of
 * it can be told to the others. */
typedef struct hvt__work {
    hvt_comm *c;
    const hvt__call *k;
    size_t bytes;        /* of an element */
    size_t *first;       /* [size + 1] where each rank's part begins, in elements */
    hvt__parcel *parcel; /* [2 * size]: takes from the front, gives from the back */
    int takes, gives;
    char *room; /* of reductions: see coll_reduce.c */
} hvt__work;

/* ---- coll_move.c -------------------------------------------------------------------------- */

void hvt__work_take(hvt__work *w, void *to, size_t bytes, int from);
void hvt__work_give(hvt__work *w, const void *what, size_t bytes, int to);
hvt_status hvt__work_exchange(hvt__work *w); /* all that was listed; the lists are empty after */

hvt_status hvt__coll_move(hvt__work *w); /* the calls that only move data */
/* Sends and receives, n in a row, at first. Errors of one do not stop the others. */
hvt_status hvt__coll_pass(hvt_comm *c, const hvt__call *const calls[], int n);

/* ---- coll_reduce.c ------------------------------------------------------------------------ */

size_t hvt__coll_room(const hvt_comm *c, const hvt__call *k); /* bytes of room */
hvt_status hvt__coll_reduce(hvt__work *w);                    /* allreduce and reduce_scatter */
void hvt__scale_f32(float *x, size_t n, double by);           /* in f64, rounded once */

/* ---- coll.c: a comm's calls, in the order of issue ------------------------------------------- */

hvt_status hvt__calls_open(hvt_comm *c); /* can fail on one rank alone */
void hvt__calls_close(hvt_comm *c);
hvt_status hvt__calls_check(const hvt_comm *c); /* can the comm go on? */
bool hvt__calls_waiting(const hvt_comm *c);
hvt_status hvt__calls_add(hvt_comm *c, const hvt__call *k, hvt_ticket *ret_ticket);
hvt_status hvt__calls_wait(hvt_comm *c, hvt_ticket ticket);

/* ---- coll_check.c: the same on every rank, or else ------------------------------------------- */

hvt_status hvt__coll_check(const hvt_comm *c, const hvt__call *k); /* this rank's arguments */
/* Tell the others that this rank is ready (s), and find what differs. Errors are agreed. */
hvt_status hvt__coll_meet(hvt__work *w, hvt_status s, uint64_t number);
const char *hvt__action_name(const hvt__call *k);

#endif /* HVT_COMM_COLL_H */
