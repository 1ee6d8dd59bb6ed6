/* shm.h - shared by the files of the shm comm; shm.c describes the protocol. */
#ifndef HVT_COMM_SHM_H
#define HVT_COMM_SHM_H

#include "comm_internal.h"

#include <stdatomic.h>
#include <stddef.h>

enum {
    HVT__SHM_RING = 256,     /* posts per rank */
    HVT__SHM_SLOT = 1 << 20, /* bytes of each of a rank's two slots */
};

typedef struct hvt__counter {
    _Alignas(128) _Atomic uint64_t v; /* alone in a pair of cache lines, which are fetched together */
} hvt__counter;

/* A rank's announcement of one operation. */
typedef struct hvt__post {
    _Alignas(64) _Atomic uint64_t number; /* the operation's; written last */
    uint64_t count, offset;               /* offset: of the buffer in the rank's part of the segment */
    int32_t segment, root;                /* segment -1: private memory */
    int16_t kind, type;
} hvt__post;

_Static_assert(sizeof(hvt__post) == 64, "a post is one cache line");

/* One rank's part of the control segment; its two slots follow. */
typedef struct hvt__mailbox {
    hvt__counter staged, done, ran, word; /* word: see hvt_comm_ops */
    hvt__post ring[HVT__SHM_RING];
    _Alignas(128) char slots[];
} hvt__mailbox;

typedef struct hvt__peer {
    int life;        /* readable once the rank has ended; -1: none */
    int slice_index; /* see hvt__slice_index() */
    hvt__span busy;  /* addresses of the rank's memory that steps since the last fence use */
} hvt__peer;

typedef struct comm_shm {
    hvt__segment control, *data; /* data: [segments]; open ones have a base */
    int segments;
    uint64_t posted, run; /* this rank's operations, numbered from 1 */
    uint64_t ran;         /* all ranks are known to have run up to this one */
    uint64_t step;
    bool unfenced;    /* a rank may still be copying a staged sum into its buffer */
    bool yield;       /* the running thread shares its CPU */
    char **at;        /* [size] every rank's buffer or slot in this step */
    void **part;      /* [size] the same, from my slice on */
    void **leaf;      /* [leaves] where each leaf lies, in a sum over shards */
    char **extra;     /* [size] every rank's partials.extra, in a sum over shards */
    hvt__peer peer[]; /* [size] */
} comm_shm;

static inline hvt__mailbox *hvt__shm_box(const comm_shm *st, int rank)
{
    return (hvt__mailbox *)(void *)(st->control.base + (size_t)rank * st->control.stride);
}

static inline void hvt__store_release(_Atomic uint64_t *mine, uint64_t value)
{
    atomic_store_explicit(mine, value, memory_order_release);
}

void hvt__shm_tell(hvt_comm *c, int word);
int hvt__shm_word(hvt_comm *c, int rank);
/* Wait until every other rank's counter `which`, an offset in the mailbox, has reached `value`. E_COMM if a
 * rank will not reach it; `what`: what it was to do. */
hvt_status hvt__shm_await(hvt_comm *c, size_t which, uint64_t value, const char *what);

#define HVT__SHM_AWAIT(c, which, value, what)                                                                \
    HVT_TRY(hvt__shm_await(c, offsetof(hvt__mailbox, which), value, what))

/* Run an operation that all ranks have posted; their buffers are in st->at. */
hvt_status hvt__shm_run_direct(hvt_comm *c, hvt_device *dev, const hvt__op *op);
hvt_status hvt__shm_run_staged(hvt_comm *c, hvt_device *dev, const hvt__op *op);
/* Wait until all ranks have finished all steps, so that my buffers may be reused. */
hvt_status hvt__shm_fence(hvt_comm *c);

#endif /* HVT_COMM_SHM_H */
