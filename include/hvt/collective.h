/**
 * @file collective.h
 * Checked collectives on a program's own tensors: the usual operations on the usual types.
 *
 * hvt_comm_allreduce() and its neighbours in comm.h exchange gradients: sums in place, without control
 * messages. These functions are for everything else. Before an operation moves data, the ranks compare their
 * arguments. A difference is an error on every rank, which names both values and their ranks.
 *
 * Rules for all of them:
 *   - Collective over the comm's world: every rank issues the same operations in the same order. Operations
 *     of comm.h may come in between. Send and receive involve only their two ranks.
 *   - Async: with ret_ticket the call returns at once, and hvt_comm_wait() runs all operations up to the
 *     ticket in the order of issue. Until then buffers and arrays of counts must not change. With ret_ticket
 *     NULL the call waits.
 *   - Errors are found when an operation runs, on every rank alike: E_ARG, E_MEM and E_UNSUPPORTED for one
 *     rank's arguments or memory (the message begins with that rank), E_MISMATCH where ranks differ. In these
 *     cases no data was moved and the comm remains usable. After E_COMM (also if a rank closed the comm; the
 *     message names it) and E_DEVICE it is not, and every issued operation that has not run fails too. A wait
 *     for several operations runs them all and returns the last failure.
 *   - If a rank runs an operation of comm.h (as a step of fused tensors or of an optimizer does) where others
 *     run one of these, all get E_MISMATCH within seconds, and the comm is not usable any more.
 *   - A buffer of 0 elements may be NULL. Buffers must not overlap, except where "in place" is documented.
 *   - Every rank ends with the same bits. Counts may exceed 2^31.
 *   - Memory is host memory, and the comm's device "ref" or "cpu". On a comm of another device all of them
 *     return E_UNSUPPORTED, even for host memory; hvt_comm_allreduce() and its neighbours take device memory.
 *   - Cost: one gather of 64 bytes per rank, then the data, straight from owner to receiver.
 *
 * Rank r's *part* of a shared vector has counts[r] elements; parts lie in rank order without gaps. counts
 * NULL: every part has `count` elements.
 */
#ifndef HVT_COLLECTIVE_H
#define HVT_COLLECTIVE_H

#include "hvt/comm.h"

HVT_C_BEGIN

/** Factors applied to every element before and after a reduction. A NULL pointer means 1 for both. */
typedef struct hvt_scale {
    double pre, post;
} hvt_scale;

/**
 * out[i] = post * (pre * in[i] of rank 0 (+) ... (+) pre * in[i] of the last rank), (+) along the fixed tree
 * of hvt_comm_open(). AVERAGE is the sum divided by the number of ranks.
 *
 * f16, bf16, f32: in f32, rounded to the type once, at the end (scaling multiplies in f64, then rounds to
 * f32). Exception: a SUM of 16-bit numbers without scale is computed by hvt_comm_allreduce(). f64: in f64.
 * Subnormal numbers are flushed to zero, see hvt_device_open(). MIN and MAX are NaN if any rank has a NaN.
 *
 * Integers: in 64 bits; sums and products wrap to the type. AVERAGE truncates the exact quotient towards
 * zero, as C's division does. A factor other than 1 multiplies in f64, truncates towards zero and saturates:
 * at 64 bits before the reduction, at the type's range after it.
 *
 * ADASUM adds vectors in pairs along the fixed tree, and counts only once what the two have in common:
 *
 *     a (+) b = (1 - a.b / (2 a.a)) a  +  (1 - a.b / (2 b.b)) b
 *
 * So orthogonal vectors are added, and equal ones are averaged. A vector of zeros has the factor 1. The whole
 * buffer is one vector, of a floating-point type; only hvt_allreduce() has it. Products and factors are f64.
 * Source: Maleki et al. 2021, arXiv 2006.02924; horovod/common/ops/adasum/adasum.h, with which 2^n ranks
 * agree.
 *
 * In place: in NULL or equal to out.
 */
HVT_API hvt_status hvt_allreduce(hvt_comm *comm, const void *in, void *out, size_t count, hvt_dtype dtype,
                                 hvt_reduction how, const hvt_scale *scale, hvt_ticket *ret_ticket);
/** out = my part of hvt_allreduce()'s result, where sums of 16-bit types are rounded once. in: all parts.
 * out: [count]; may be my part of `in`. */
HVT_API hvt_status hvt_reduce_scatter(hvt_comm *comm, const void *in, void *out, size_t count,
                                      const size_t *counts, hvt_dtype dtype, hvt_reduction how,
                                      const hvt_scale *scale, hvt_ticket *ret_ticket);

/** buf of every rank = the root's. */
HVT_API hvt_status hvt_broadcast(hvt_comm *comm, void *buf, size_t count, hvt_dtype dtype, int root,
                                 hvt_ticket *ret_ticket);
/** out of every rank = all parts. in: [count], my part; NULL if it is already in place in out. */
HVT_API hvt_status hvt_allgather(hvt_comm *comm, const void *in, size_t count, void *out,
                                 const size_t *counts, hvt_dtype dtype, hvt_ticket *ret_ticket);
/** The root's out = all parts. in: [count], my part. out and counts are read on the root only. */
HVT_API hvt_status hvt_gather(hvt_comm *comm, const void *in, size_t count, void *out, const size_t *counts,
                              hvt_dtype dtype, int root, hvt_ticket *ret_ticket);
/** out = my part of the root's in; count is its size. in and counts are read on the root only. */
HVT_API hvt_status hvt_scatter(hvt_comm *comm, const void *in, const size_t *counts, void *out, size_t count,
                               hvt_dtype dtype, int root, hvt_ticket *ret_ticket);
/** Every rank sends a part to every rank. `in` holds send_counts[r] elements for each rank r, `out` receives
 * recv_counts[r] from each, in rank order without gaps. send_counts[r] must equal recv_counts[this rank] on
 * rank r; hvt_allgather() of send_counts yields them. */
HVT_API hvt_status hvt_alltoall(hvt_comm *comm, const void *in, const size_t *send_counts, void *out,
                                const size_t *recv_counts, hvt_dtype dtype, hvt_ticket *ret_ticket);

/**
 * Send from one rank to another, which receives. Type and count must be the same on both; if not, the error
 * names both ranks' values. If one rank is out of memory, only that rank gets the error; it should end the
 * job. Consecutive sends and receives of a rank run together, so two ranks may both issue a send, then a
 * receive, and wait. A send completes when its data has been received.
 */
HVT_API hvt_status hvt_send(hvt_comm *comm, const void *buf, size_t count, hvt_dtype dtype, int to,
                            hvt_ticket *ret_ticket);
HVT_API hvt_status hvt_recv(hvt_comm *comm, void *buf, size_t count, hvt_dtype dtype, int from,
                            hvt_ticket *ret_ticket);

/** Returns when all ranks have called it. */
HVT_API hvt_status hvt_barrier(hvt_comm *comm, hvt_ticket *ret_ticket);

/* ---- many small tensors as a few large ones ------------------------------------------------- */

/** A tensor to register; the caller owns its memory. */
typedef struct hvt_piece {
    const char *name; ///< for messages; NULL: its number
    void *data;       ///< NULL: see hvt_fuse_ready_at()
    size_t count;
    hvt_dtype dtype; ///< f16, bf16, f32 or f64
    hvt_dtype wire;  ///< HVT_F16, HVT_BF16: f32 elements are sent in this type; 0: as they are
} hvt_piece;

typedef struct hvt_fuse hvt_fuse;

/**
 * Register a program's gradients once; then one call per step replaces each by its sum (HVT_SUM) or mean
 * (HVT_AVERAGE) over all ranks. They are packed, in the given order, into buckets of one wire type and at
 * most bucket_bytes, in memory that the comm moves fastest. A larger tensor gets a bucket of its own; with
 * bucket_bytes 0 every tensor does. Give them in the order in which backward finishes them.
 *
 * A mean of f32 or f64 is the sum times 1/ranks, rounded once more. Elements that are sent in 16 bits are
 * multiplied by 1/ranks before they are rounded and summed; their sum could overflow otherwise. Sums are
 * those of hvt_comm_allreduce(), for f64 of hvt_allreduce(), so the bits do not depend on buckets.
 *
 * Names, counts, types, bucket_bytes and the reduction are compared here; a step sends no control message,
 * except one gather of 64 bytes per bucket of f64. The last bucket carries one more element, which counts the
 * ranks that have not joined. Tensors are in host memory, as the comm's device. The list and the names are
 * read only here, the tensors in every step. Collective. Errors, on every rank alike: E_ARG (also a name or a
 * tensor given twice), E_MEM, E_UNSUPPORTED (not host memory), E_MISMATCH, E_COMM.
 */
HVT_API hvt_status hvt_fuse_create(hvt_comm *comm, const hvt_piece *pieces, int n, size_t bucket_bytes,
                                   hvt_reduction how, hvt_fuse **ret_fuse);
/** Free it, after completing what this step has already sent. Call it before its comm is closed. Collective.
 * NULL is fine. */
HVT_API void hvt_fuse_free(hvt_fuse **fuse);
HVT_API int hvt_fuse_buckets(const hvt_fuse *fuse); ///< number of buckets

/** Tensor i of this step is final: pack it now, and send its bucket as soon as that is full and the buckets
 * before it are sent. Optional, in any order. Errors: E_ARG (no such tensor, or twice in a step). */
HVT_API hvt_status hvt_fuse_ready(hvt_fuse *fuse, int i);
/** As hvt_fuse_ready(), for a tensor that has moved: from now on tensor i is at `data`. NULL: this rank has
 * no such tensor; it contributes zeros and drops the result until the tensor has an address again. */
HVT_API hvt_status hvt_fuse_ready_at(hvt_fuse *fuse, int i, void *data);
/** End a step: send the remaining buckets, wait for all, unpack. Then every tensor is reduced. Collective. */
HVT_API hvt_status hvt_fuse_exchange(hvt_fuse *fuse);
/**
 * For ranks with different numbers of steps: a rank that has no more batches calls this instead of
 * hvt_fuse_exchange(). It then takes part in the steps of the other ranks with zeros, and returns when all
 * ranks have joined. Means are still over all ranks. ret_last, which may be NULL: the highest of the ranks
 * with the most steps since the last join; its parameters are the newest.
 *
 * Costs one more exchange, of zeros. Collective. Errors: E_ARG (in the middle of a step), and those of
 * hvt_comm_wait().
 */
HVT_API hvt_status hvt_fuse_join(hvt_fuse *fuse, int *ret_last);

HVT_C_END
#endif /* HVT_COLLECTIVE_H */
