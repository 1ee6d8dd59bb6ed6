/*
 * vectors.h - the Adasum of shards: hvt_allreduce() with HVT_ADASUM over several vectors of each rank, of
 * several tensors.
 *
 * Included by src/coll and src/optim.
 */
#ifndef HVT_COLL_VECTORS_H
#define HVT_COLL_VECTORS_H

#include "hvt/comm.h"

/* The vectors that an Adasum adds. The last one of this rank is the operation's buffer. */
typedef struct hvt__vectors {
    const int *first;   /* [ranks + 1] a rank's vectors: first[r] ... first[r + 1] - 1, at least one */
    const float *extra; /* this rank's other vectors, vector i at extra + i * stride */
    size_t stride;
    const size_t *end; /* [tensors] ascending; tensor t ends before element end[t] - base */
    size_t base;
    int tensors;
} hvt__vectors;

/* Post buf = the Adasum of all ranks' vectors, for each tensor. `of` must last until the operation has run.
 * Collective. Errors: those of hvt_allreduce(). */
hvt_status hvt__adasum_post(hvt_comm *comm, float *buf, size_t count, const hvt__vectors *of,
                            hvt_ticket *ret_ticket);

#endif /* HVT_COLL_VECTORS_H */
