/**
 * @file collective.h
 * What ranks can do together with the tensors of a program of one's own: every usual collective, on every
 * usual type, checked.
 *
 * hvt_comm_allreduce() and its neighbours in comm.h are the way of gradients: sums in place, and not one
 * control message. The functions here are for everything else. Before an operation moves data the ranks
 * compare what they were asked for, and what differs is named on every rank, with both values and the ranks.
 *
 * What holds for all of them:
 *   - Collective over the comm's world: the same operations in the same order on every rank, mixed with those
 *     of comm.h as one likes. Send and receive concern their two ranks.
 *   - Async: with ret_ticket the call returns at once, hvt_comm_wait() runs all operations up to the
 *     ticket in the order of issue, and until then buffers and arrays of counts must stay as they are.
 *     With ret_ticket NULL the call waits by itself.
 *   - Errors are found when an operation runs, on every rank alike: E_ARG, E_MEM, E_UNSUPPORTED where
 *     one rank's arguments or memory do not do (the message begins with that rank), E_MISMATCH where
 *     ranks differ. Then nothing was moved and the comm can go on. After E_COMM (also where a rank has closed
 *     the comm, which is named) and E_DEVICE it cannot, and all that was issued and has not run fails too.
 *     A wait for several operations runs them all, and tells the last failure.
 *   - A buffer of no elements may be NULL. Buffers do not overlap, but where "in place" is said.
 *   - Every rank ends with the same bits. Counts may exceed 2^31.
 *   - Memory is host memory: comms of "ref" and "cpu" devices. On a comm of another device every one of them
 *     is refused, E_UNSUPPORTED, for device memory and for host memory alike; there hvt_comm_allreduce() and
 *     its neighbours take the device's memory.
 *   - Cost: one gather of 64 bytes per rank, then the data, straight from owner to receiver.
 *
 * Words: rank r's *part* of a vector that all share has counts[r] elements, and the parts lie in the order of
 * ranks without gaps. counts NULL: every rank's part has `count`.
 */
#ifndef HVT_COLLECTIVE_H
#define HVT_COLLECTIVE_H

#include "hvt/comm.h"

HVT_C_BEGIN

/** Factors of every element before and after a reduction. Where a pointer to this is NULL, both are 1. */
typedef struct hvt_scale {
    double pre, post;
} hvt_scale;

/**
 * out[i] = post * (pre * in[i] of rank 0 (+) ... (+) pre * in[i] of the last rank), (+) along the fixed tree
 * of hvt_comm_open(). AVERAGE is the sum divided by the number of ranks.
 *
 * f16, bf16, f32: in f32, rounded to the type once, at the end (scaling multiplies in f64, then rounds to
 * f32). The one exception: a SUM of 16-bit numbers without scale goes the way of hvt_comm_allreduce(). f64:
 * in f64. Subnormal numbers are zeros, see hvt_device_open(). MIN and MAX are NaN where any rank has a NaN.
 *
 * Integers: in 64 bits; sums and products wrap to the type. AVERAGE truncates the exact quotient towards
 * zero, as C's division. A factor other than 1 multiplies in f64, truncates towards zero and is cut off at
 * the ends of the range: of 64 bits before the reduction, of the type after it.
 *
 * In place: in NULL or equal to out.
 */
HVT_API hvt_status hvt_allreduce(hvt_comm *comm, const void *in, void *out, size_t count, hvt_dtype dtype,
                                 hvt_reduction how, const hvt_scale *scale, hvt_ticket *ret_ticket);
/** out = my part of what hvt_allreduce() makes of in, sums of 16 bits rounded once. in: all parts; out:
 * [count] mine, and may be where my part lies in `in`. */
HVT_API hvt_status hvt_reduce_scatter(hvt_comm *comm, const void *in, void *out, size_t count,
                                      const size_t *counts, hvt_dtype dtype, hvt_reduction how,
                                      const hvt_scale *scale, hvt_ticket *ret_ticket);

/** buf of every rank = the root's. */
HVT_API hvt_status hvt_broadcast(hvt_comm *comm, void *buf, size_t count, hvt_dtype dtype, int root,
                                 hvt_ticket *ret_ticket);
/** out of every rank = all parts; in: [count] mine, or NULL where it lies in its place in out already. */
HVT_API hvt_status hvt_allgather(hvt_comm *comm, const void *in, size_t count, void *out,
                                 const size_t *counts, hvt_dtype dtype, hvt_ticket *ret_ticket);
/** The root's out = all parts; in: [count] mine. out and counts are the root's alone to give. */
HVT_API hvt_status hvt_gather(hvt_comm *comm, const void *in, size_t count, void *out, const size_t *counts,
                              hvt_dtype dtype, int root, hvt_ticket *ret_ticket);
/** out = my part of the root's in. in and counts are the root's alone to give; count: of my part. */
HVT_API hvt_status hvt_scatter(hvt_comm *comm, const void *in, const size_t *counts, void *out, size_t count,
                               hvt_dtype dtype, int root, hvt_ticket *ret_ticket);
/** Every rank sends a part to every rank: `in` holds send_counts[r] elements for each rank r, `out` receives
 * recv_counts[r] from each, in the order of ranks without gaps. send_counts[r] here equals recv_counts[this
 * rank] there; hvt_allgather() of send_counts yields them. */
HVT_API hvt_status hvt_alltoall(hvt_comm *comm, const void *in, const size_t *send_counts, void *out,
                                const size_t *recv_counts, hvt_dtype dtype, hvt_ticket *ret_ticket);

/**
 * From one rank to another, both of which call. Type and count must be the same on both; each of them learns
 * what the other one has. Only a rank that has no memory learns of that, and should end the job. Sends and
 * receives that a rank issues one after the other run together, so two ranks may both issue a send, then a
 * receive, and wait. A send ends when it is received.
 */
HVT_API hvt_status hvt_send(hvt_comm *comm, const void *buf, size_t count, hvt_dtype dtype, int to,
                            hvt_ticket *ret_ticket);
HVT_API hvt_status hvt_recv(hvt_comm *comm, void *buf, size_t count, hvt_dtype dtype, int from,
                            hvt_ticket *ret_ticket);

/** No rank leaves before all have come. */
HVT_API hvt_status hvt_barrier(hvt_comm *comm, hvt_ticket *ret_ticket);

/* ---- many small tensors as a few large ones ------------------------------------------------- */

/** A tensor of one's own, wherever it lies: it is registered, not owned. */
typedef struct hvt_piece {
    const char *name; ///< for messages; NULL: its number
    void *data;
    size_t count;
    hvt_dtype dtype; ///< f32, f16 or bf16
} hvt_piece;

typedef struct hvt_fuse hvt_fuse;

/**
 * Register the gradients of a program of one's own once; then one call per step makes each of them the sum
 * (HVT_SUM) or the mean (HVT_AVERAGE) over all ranks. They are packed, in the order given, into buckets of
 * one type and at most bucket_bytes (a larger tensor has its own; 0: each has), in memory that the comm moves
 * fastest: so give them in the order in which backward finishes them.
 *
 * A mean of f32 is the sum times 1/ranks, rounded once more; 16-bit numbers are multiplied by it before the
 * sum, which might overflow. The sum is hvt_comm_allreduce()'s: the bits do not depend on buckets.
 *
 * Names, counts, types, bucket_bytes and the reduction are compared here; a step sends no control message.
 * The list and the names are read here only, the tensors in every step.
 * Collective. Errors, on every rank alike: E_ARG (also a name or a tensor given twice), E_MEM, E_UNSUPPORTED
 * (not host memory), E_MISMATCH, E_COMM.
 */
HVT_API hvt_status hvt_fuse_create(hvt_comm *comm, const hvt_piece *pieces, int n, size_t bucket_bytes,
                                   hvt_reduction how, hvt_fuse **ret_fuse);
/** What has left in this step is completed first. Collective. Before its comm. NULL is fine. */
HVT_API void hvt_fuse_free(hvt_fuse **fuse);
HVT_API int hvt_fuse_buckets(const hvt_fuse *fuse);

/** Tensor i of this step is final: it is packed now, and its bucket leaves as soon as it is full and those
 * before it have left. In any order, and not at all if one likes. Errors: E_ARG no such tensor, or twice in a
 * step. */
HVT_API hvt_status hvt_fuse_ready(hvt_fuse *fuse, int i);
/** Exchange what has not left, wait for all, unpack: every tensor is reduced, and a step ends. Collective. */
HVT_API hvt_status hvt_fuse_exchange(hvt_fuse *fuse);

HVT_C_END
#endif /* HVT_COLLECTIVE_H */
