/*
 * sums.h - sums over shards, whatever block of shards each rank holds.
 *
 * Gradients are added along one binary tree over all shards. If every rank holds an aligned block of the
 * tree, a rank contributes one vector, and the comm adds the vectors along its tree over ranks. Otherwise a
 * rank contributes several: its *leaves*, the largest blocks of the tree that lie inside its own shards. So
 * the order of additions, and every bit of a sum in f32, is that of one rank that holds all shards.
 *
 * Included by src/comm and src/optim.
 */
#ifndef HVT_COMM_SUMS_H
#define HVT_COMM_SUMS_H

#include "hvt/comm.h"

typedef struct hvt__leaf {
    int rank, first, end; /* its shards: first ... end - 1 */
} hvt__leaf;

typedef struct hvt__merge {
    int left, right; /* leaf `left` += leaf `right` */
} hvt__merge;

typedef struct hvt__leaves {
    int ranks, n;      /* leaves of all ranks, by shard */
    int most;          /* the largest number of leaves of a rank */
    const int *of;     /* [ranks + 1] a rank's leaves: of[r] ... of[r + 1] - 1 */
    hvt__leaf *leaf;   /* [n] */
    hvt__merge *merge; /* [n - 1] in this order; the sum is then in leaf 0 */
} hvt__leaves;

/* Plan the sums for ranks that hold the shards first[r] ... first[r + 1] - 1, at least one each; first[ranks
 * + 1]. each: every shard is a leaf. The caller frees *ret_leaves, one block; NULL: the tree over ranks adds
 * in this order anyway. Errors: E_MEM. */
hvt_status hvt__leaves_plan(int ranks, const int *first, bool each, hvt__leaves **ret_leaves);

/* A rank's vectors: its last leaf is the operation's buffer, leaf j before it lies at extra + j * stride. */
typedef struct hvt__partials {
    hvt__leaves *leaves; /* the same on every rank, until the operation has ended */
    float *extra;        /* memory of hvt_comm_alloc(); NULL if `most` is 1 */
    size_t stride;       /* elements */
} hvt__partials;

typedef enum hvt__sum { HVT__SUM_ALL, HVT__SUM_SLICES, HVT__SUM_APPLY } hvt__sum;

/* True if the comm can add leaves, as the host comms of several ranks can. */
bool hvt__comm_can_sum(const hvt_comm *comm);
/* Memory for sums over such leaves, on this rank. Errors: E_MEM. */
hvt_status hvt__comm_reserve(hvt_comm *comm, const hvt__leaves *leaves);
/* hvt_comm_allreduce(), hvt_comm_reduce_scatter() or hvt_comm_reduce_apply() of f32 over the ranks' leaves.
 * Leaves are overwritten. apply gets one vector, the sum, in pieces of the rank's slice. */
hvt_status hvt__comm_sum(hvt_comm *comm, hvt__sum kind, float *buf, size_t count,
                         const hvt__partials *partials, hvt_reduce_apply_fn *apply, void *ctx,
                         hvt_ticket *ret_ticket);

#endif /* HVT_COMM_SUMS_H */
