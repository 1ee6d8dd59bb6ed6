/**
 * @file comm.h
 * How gradients travel: sums in place that may overlap with arithmetic, and no control messages. For anything
 * else see hvt/collective.h. Words, threads and order are those of world.h.
 */
#ifndef HVT_COMM_H
#define HVT_COMM_H

#include "hvt/world.h"

HVT_C_BEGIN

typedef struct hvt_comm hvt_comm;
typedef uint64_t hvt_ticket; ///< tickets of one comm complete in issue order

/**
 * Open a data plane: "self" (one rank), "shm" (one node), "hier" (shm inside nodes, mpi between them), "mpi",
 * "nccl" (device cuda), or "auto": self for one rank; nccl on cuda; shm if all ranks share a node, hier over
 * several nodes that hold 2^k neighbouring ranks each (the last one what is left), else mpi; mpi also where
 * memory cannot be shared (one log line says why). On cuda "mpi" copies to the host and back.
 *
 * Sum along one fixed binary tree over ranks: on each level 2i and 2i+1 are added, an odd last one moves up,
 * whatever the comm, the algorithm or the count. Accumulation is in f32; 16-bit types are rounded once per
 * partial sum that travels, and every rank ends with the same bits. But nccl adds in its own order and, for
 * 16-bit types, rounds every addition to the type; it too ends with the same bits on every rank, and repeats
 * them from run to run on a deterministic device, which pins its algorithm.
 *
 * nccl: one GPU per rank, unless all ranks that have the same one opened it with `share`. An operation that
 * has not ended after 300 s (or hvt_world_watch()'s stall.abort) is given up: a log line names it, its age,
 * rank and host, and from then on every call gives E_COMM. Captured graphs that hold operations of a comm are
 * freed before it is closed; an operation is captured only after one of its kind has run, and in one graph
 * with its wait.
 *
 * Collective. Errors: E_ARG unknown name, E_UNSUPPORTED (shm over several nodes, self with several ranks,
 * hier where nodes hold other ranks, shm and hier on cuda, nccl elsewhere or on a GPU that is not shared),
 * E_MEM, E_COMM, E_MISMATCH (ranks ask for different comms, or have different cutoffs).
 */
HVT_API hvt_status hvt_comm_open(const char *name, hvt_world *world, hvt_device *dev, hvt_comm **ret_comm);
/**
 * Leave. What was issued and not waited for is given up; who still waits for it gets E_COMM, which names this
 * rank, and here a line names one who does. Waits until all ranks have closed the comm or given up, for 10 s
 * at most. Collective.
 */
HVT_API void hvt_comm_close(hvt_comm **comm);
HVT_API const char *hvt_comm_name(const hvt_comm *comm);
HVT_API hvt_world *hvt_comm_world(const hvt_comm *comm); /* borrowed */

/** Zeroed, 64-byte aligned memory that this comm moves fastest (shm: pages that the peers can read).
 * Collective, the same bytes on every rank. E_MEM leaves nothing behind, on every rank alike. A comm that
 * "auto" chose may change from shm or hier to mpi here, as long as it holds no other memory (one log line
 * says so). Then operations in flight are completed first, and hvt_comm_name() is another.
 */
HVT_API hvt_status hvt_comm_alloc(hvt_comm *comm, size_t bytes, void **ret_ptr);
/** Operations in flight are completed first. Collective. NULL is fine; what is not a block of this comm's is
 * logged and left alone. */
HVT_API void hvt_comm_release(hvt_comm *comm, void *ptr);

/** buf of every rank = the root's, when the call returns; operations in flight come first. Collective; bytes
 * and root the same on every rank. Errors: E_ARG no such rank, and as hvt_comm_wait(). */
HVT_API hvt_status hvt_comm_broadcast(hvt_comm *comm, void *buf, size_t bytes, int root);

/**
 * Sum count elements (f32, f16, bf16) in place over all ranks; returns at once with a ticket, buf is not
 * to be touched until hvt_comm_wait(). Async, collective: the same calls in the same order on every rank.
 */
HVT_API hvt_status hvt_comm_allreduce(hvt_comm *comm, void *buf, size_t count, hvt_dtype dtype,
                                      hvt_ticket *ret_ticket);
HVT_API hvt_status hvt_comm_reduce_scatter(hvt_comm *comm, void *buf, size_t count, hvt_dtype dtype,
                                           hvt_ticket *ret_ticket); ///< my slice of buf holds the sum
HVT_API hvt_status hvt_comm_allgather(hvt_comm *comm, void *buf, size_t count, hvt_dtype dtype,
                                      hvt_ticket *ret_ticket); ///< every slice from its owner
/** The slice of `count` elements that a rank owns in reduce_scatter and allgather: [first, end). In multiples
 * of 16; not in the order of ranks, but so that neighbours in the tree own neighbouring slices (nccl: in the
 * order of ranks, and the last one's is the longest). */
HVT_API void hvt_comm_slice(const hvt_comm *comm, size_t count, int rank, size_t *ret_first, size_t *ret_end);
/** What a comm can do. */
enum {
    HVT_COMM_SHARE = 1,        ///< ranks of a node share memory: hvt_comm_share() works
    HVT_COMM_REDUCE_APPLY = 2, ///< all ranks see each other's memory: hvt_comm_reduce_apply() works
    HVT_COMM_CAPTURABLE = 4,   ///< operations may be part of a captured step: the host has no part in them
    HVT_COMM_ASYNCHRONOUS = 8, ///< operations begin before somebody waits for them: on a worker or a stream
};
HVT_API unsigned hvt_comm_can(const hvt_comm *comm); ///< HVT_COMM_..., or-ed; 0 of NULL
/** As hvt_comm_alloc(), but one block for the ranks of a node, which all of them read and write; each at an
 * address of its own. Who writes what, and when, is the callers' to arrange; hvt_comm_allgather() on a part
 * of it brings the slices of other nodes into every node's block, and after it all ranks have written theirs.
 * Errors: as hvt_comm_alloc(), and E_UNSUPPORTED. Collective. */
HVT_API hvt_status hvt_comm_share(hvt_comm *comm, size_t bytes, void **ret_ptr);
/** in[r]: rank r's buf. Elements [first, end) of all of them are the caller's until it returns. */
typedef hvt_status hvt_reduce_apply_fn(void *ctx, size_t first, size_t end, const void *const in[],
                                       int ranks);
/**
 * As hvt_comm_reduce_scatter(), but what becomes of a slice is the caller's: fn is called once for this
 * rank's slice, by hvt_comm_wait(), when all ranks have issued the operation; after that wait the slices of
 * all ranks have been worked through. buf lies in memory of hvt_comm_alloc() at the same offset on all ranks.
 * Async, collective. Errors: E_UNSUPPORTED.
 */
HVT_API hvt_status hvt_comm_reduce_apply(hvt_comm *comm, void *buf, size_t count, hvt_dtype dtype,
                                         hvt_reduce_apply_fn *fn, void *ctx, hvt_ticket *ret_ticket);
/** All operations up to this ticket have ended (nccl: what the device is given from now on comes after them,
 * the host does not wait). Host comms do their work in here, so every rank must wait for
 * the same tickets at the same places among its other collective calls. Collective.
 * Errors: E_COMM a rank ended or left (it is named), E_MISMATCH ranks issued different operations (shm
 * alone can tell); after either the comm is of no more use, and every later wait for what did not run is
 * E_COMM. */
HVT_API hvt_status hvt_comm_wait(hvt_comm *comm, hvt_ticket ticket);

/* ---- cutoffs ------------------------------------------------------------------------------ */

/** A size from which on comms mpi and hier do something else. Speed depends on it, results do not. */
typedef struct hvt_cutoff {
    const char *name;    ///< "mpi-short"
    const char *meaning; ///< with its unit
    size_t value;        ///< in effect
    size_t least, most;  ///< that it may be
    size_t from, to;     ///< bytes of the sums that it makes a difference to, about
    bool hosts;          ///< it makes one between hosts only
} hvt_cutoff;

/** The i-th one; false after the last. */
HVT_API bool hvt_comm_cutoff(int i, hvt_cutoff *ret_cutoff);
/** Set cutoffs: "mpi-short=8192,mpi-packet=65536"; those not named become the defaults. The same on every
 * rank. They are for comms that are opened from now on; open ones keep theirs. check: whether it could be
 * done. Errors: E_ARG naming what is not understood. */
HVT_API hvt_status hvt_comm_set_cutoffs(const char *list, bool check);

/* ---- overlap ------------------------------------------------------------------------------ */

/** Where a worker runs. */
typedef struct hvt_overlap {
    const int *cpus; ///< [ncpus] processors that it may run on; NULL: those of the thread that starts it
    int ncpus;
    bool yield; ///< none of them is its own: it waits asleep, unless somebody waits for it
} hvt_overlap;

/**
 * Give a host comm a worker: a thread that runs operations as soon as they are issued, in that order,
 * while the caller computes. hvt_comm_wait() then waits until it has come so far, and returns what failed on
 * it. The fn of hvt_comm_reduce_apply() and checked collectives are still run by hvt_comm_wait(), and what
 * was issued behind it comes after. `how` NULL: from now on they run in hvt_comm_wait() again.
 *
 * Waits for all that is in flight. Not collective: ranks with a worker and ranks without exchange alike,
 * the same bits; but as always, at the same place among what all ranks issue. A comm that "auto" chose does
 * not change any more. With mpi and hier the worker calls MPI. Below MPI_THREAD_MULTIPLE libhvt itself never
 * does so from two threads at once; a host program that calls MPI meanwhile must have initialised it with
 * MPI_THREAD_MULTIPLE.
 *
 * Errors: E_UNSUPPORTED (memory of a device; an MPI that a host program initialised below
 * MPI_THREAD_MULTIPLE, or one that cannot do MPI_THREAD_SERIALIZED), E_MEM, E_DEVICE: then there is none.
 */
HVT_API hvt_status hvt_comm_overlap(hvt_comm *comm, const hvt_overlap *how);

HVT_C_END
#endif /* HVT_COMM_H */
