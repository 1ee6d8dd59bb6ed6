/*
 * coll.h - shared by the files of the public collectives.
 *
 * Terms. A *call* is one operation of hvt/collective.h. A rank's *part* is defined there.
 */
#ifndef HVT_COLL_H
#define HVT_COLL_H

#include "hvt/collective.h"
#include "vectors.h"
#include "comm_impl.h"

typedef struct hvt__call {
    hvt__action action;
    hvt_dtype type;
    const void *in;
    void *out;
    size_t count;         /* elements of the vector, or of this rank's part */
    const size_t *counts; /* [size] counts of the parts (alltoall: of the parts sent); NULL: `count` each */
    int peer;             /* root, or the peer of a send or receive */
    const size_t *recv_counts; /* [size] for alltoall */
    hvt_reduction how;
    hvt_scale scale;
    const hvt__vectors *of; /* of an Adasum of f32; NULL: one vector of each rank, one tensor */
} hvt__call;

_Static_assert(sizeof(hvt__call) <= sizeof(((hvt__op *)0)->args), "a call's arguments fit into an operation");

static inline const char *hvt__action_name(const hvt__call *k)
{
    return hvt__action_names[k->action];
}

static inline bool hvt__call_reduces(const hvt__call *k)
{
    return k->action == HVT__CALL_ALLREDUCE || k->action == HVT__CALL_REDUCE_SCATTER;
}

static inline bool hvt__call_adds_adaptively(const hvt__call *k)
{
    return hvt__call_reduces(k) && k->how == HVT_ADASUM;
}

/* True for types reduced in f32, of 16 or 32 bits; f64 is reduced in f64, integers in i64. */
static inline bool hvt__is_narrow_float(hvt_dtype t)
{
    return t == HVT_F32 || t == HVT_F16 || t == HVT_BF16;
}

/* Elements of rank r's part; for an allreduce, of the part that the rank reduces. */
static inline size_t hvt__part(const hvt_comm *c, const hvt__call *k, int r)
{
    int size = c->world->size;

    if (k->action == HVT__CALL_ALLREDUCE)
        return hvt__cut(k->count, r + 1, size) - hvt__cut(k->count, r, size);
    return k->counts ? k->counts[r] : k->count;
}

/* A running call, or sends and receives that run together, with all its memory. The memory is allocated
 * before any data moves, so that a failure can be reported to the other ranks. */
typedef struct hvt__work {
    hvt_comm *c;
    const hvt__call *k;
    size_t bytes;          /* of an element */
    size_t *first;         /* [size + 1] */
    hvt__message *message; /* [2 * most]: received in the first half, sent in the second */
    int most, recvs, sends;
    size_t longest,
        window; /* reductions: elements of the longest part, and elements of each rank held at once */
    char *room; /* [size][window], and more: see reduce.c */
} hvt__work;

/* ---- move.c -------------------------------------------------------------------------- */

void hvt__work_recv(hvt__work *w, void *to, size_t bytes, int from, bool answer);
void hvt__work_send(hvt__work *w, const void *what, size_t bytes, int to, bool answer);
hvt_status hvt__work_exchange(hvt__work *w); /* exchanges the listed messages and empties the lists */

/* Run a call that only moves data, or send an allreduce's reduced parts to all. */
hvt_status hvt__coll_move(hvt__work *w);
/* Run consecutive sends and receives. An error of one does not stop the others. */
hvt_status hvt__coll_send_recv(hvt_comm *c, hvt_ticket first, int n);

/* ---- reduce.c ------------------------------------------------------------------------ */

extern size_t hvt__coll_window;      /* bytes of other ranks' parts that a reduction holds; set by tests */
size_t hvt__coll_room(hvt__work *w); /* bytes of room; sets longest and window */
hvt_status hvt__coll_reduce(hvt__work *w); /* allreduce and reduce_scatter */
/* Convert n elements of a call to or from the type in which they are reduced, with the call's factors. */
hvt_status hvt__coll_load(const hvt__work *w, const void *src, size_t n, void *to);
hvt_status hvt__coll_store(const hvt__work *w, void *sum, size_t n, void *dst);
void hvt__scale_f32(float *x, size_t n, double by); /* computed in f64, rounded once */

/* ---- adasum.c ------------------------------------------------------------------------ */

int hvt__adasum_messages(const hvt__work *w); /* at most, in one direction at once */
size_t hvt__adasum_room(hvt__work *w);        /* bytes of room */
hvt_status hvt__adasum(hvt__work *w);

/* ---- check.c: comparing ranks -------------------------------------------------------- */

hvt_status hvt__coll_check(const hvt_comm *c, const hvt__call *k); /* checks this rank's arguments */
/* Exchange this rank's readiness s, and find differences. Errors are agreed. */
hvt_status hvt__coll_compare(hvt__work *w, hvt_status s, uint64_t number);

#endif /* HVT_COLL_H */
