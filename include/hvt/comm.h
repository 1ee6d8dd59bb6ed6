/**
 * @file comm.h
 * Gradient exchange: sums in place that may overlap with computation, without control messages. For other
 * collectives see hvt/collective.h. world.h defines terms, threads and order.
 */
#ifndef HVT_COMM_H
#define HVT_COMM_H

#include "hvt/world.h"

HVT_C_BEGIN

typedef struct hvt_comm hvt_comm;
typedef uint64_t hvt_ticket; ///< tickets of one comm complete in issue order

/**
 * Open a data plane: "self" (one rank), "shm" (one node), "hier" (shm inside nodes, messages between them),
 * "mpi" or "tcp" (messages, as the world's name says), "nccl" (device cuda), or "auto": self for one rank;
 * nccl on cuda; shm if all ranks share a node; hier over several nodes that hold 2^k neighbouring ranks each
 * (the last node the rest); else messages, also where memory cannot be shared (one log line says why). On
 * cuda, messages are copied through host memory.
 *
 * Sums follow one fixed binary tree over ranks, whatever the comm, algorithm or count: on each level 2i and
 * 2i+1 are added, and an odd last one moves up. Accumulation is in f32; 16-bit types are rounded once per
 * partial sum that is sent. Every rank ends with the same bits. Exception: nccl adds in its own order and
 * rounds every addition of 16-bit types. It too ends with the same bits on every rank, and repeats them from
 * run to run on a deterministic device, which pins its algorithm.
 *
 * nccl: one GPU per rank, unless all ranks on the same GPU opened it with `share`. An operation that has not
 * ended after 300 s (or hvt_world_watch()'s stall.abort) is aborted: a log line names it, its age, rank and
 * host, and from then on every call returns E_COMM. Free captured graphs that hold operations of a comm
 * before closing it. An operation can be captured only after one of its kind has run, and in the same graph
 * as its wait.
 *
 * Collective. Errors: E_ARG unknown name, E_UNSUPPORTED (mpi or tcp in a world of the other, shm over several
 * nodes, self with several ranks, hier where nodes hold other numbers of ranks, shm and hier on cuda, nccl on
 * other devices or on a GPU that is not shared), E_MEM, E_COMM, E_MISMATCH (ranks ask for different comms or
 * have different cutoffs).
 */
HVT_API hvt_status hvt_comm_open(const char *name, hvt_world *world, hvt_device *dev, hvt_comm **ret_comm);
/**
 * Close a comm. Operations that were issued and not waited for are dropped. A rank that still waits for such
 * an operation gets E_COMM, which names this rank; a log line here names that rank. Waits, for at most 10 s,
 * until all ranks have closed the comm or given up. Collective.
 */
HVT_API void hvt_comm_close(hvt_comm **comm);
HVT_API const char *hvt_comm_name(const hvt_comm *comm); ///< "shm", ...; never "auto"
HVT_API hvt_world *hvt_comm_world(const hvt_comm *comm); /* borrowed */

/** Zeroed, 64-byte aligned memory that this comm moves fastest (shm: pages that the peers can read).
 * Collective, the same bytes on every rank. On E_MEM, which all ranks get, nothing stays allocated. A comm
 * that "auto" chose may change from shm or hier to mpi here, as long as it holds no other memory (one log
 * line says so). Operations in flight are completed first, and hvt_comm_name() changes. */
HVT_API hvt_status hvt_comm_alloc(hvt_comm *comm, size_t bytes, void **ret_ptr);
/** Free memory of hvt_comm_alloc() or hvt_comm_share(), after completing operations in flight. Collective.
 * NULL is fine; a pointer that is not a block of this comm is logged and ignored. */
HVT_API void hvt_comm_release(hvt_comm *comm, void *ptr);

/** buf of every rank = the root's when the call returns; operations in flight complete first. Collective;
 * bytes and root the same on every rank. Errors: E_ARG no such rank, and as hvt_comm_wait(). */
HVT_API hvt_status hvt_comm_broadcast(hvt_comm *comm, void *buf, size_t bytes, int root);

/**
 * Sum count elements (f32, f16, bf16) in place over all ranks; returns at once with a ticket. Do not touch
 * buf until hvt_comm_wait(). Async, collective: the same calls in the same order on every rank.
 */
HVT_API hvt_status hvt_comm_allreduce(hvt_comm *comm, void *buf, size_t count, hvt_dtype dtype,
                                      hvt_ticket *ret_ticket);
HVT_API hvt_status hvt_comm_reduce_scatter(hvt_comm *comm, void *buf, size_t count, hvt_dtype dtype,
                                           hvt_ticket *ret_ticket); ///< this rank's slice of buf gets the sum
HVT_API hvt_status hvt_comm_allgather(hvt_comm *comm, void *buf, size_t count, hvt_dtype dtype,
                                      hvt_ticket *ret_ticket); ///< buf gets every slice from its owner
/** The slice [first, end) of `count` elements that a rank owns in reduce_scatter and allgather; multiples of
 * 16. Slices are not in rank order: neighbours in the tree own neighbouring slices (nccl: in rank order, and
 * the last rank's slice is the longest). */
HVT_API void hvt_comm_slice(const hvt_comm *comm, size_t count, int rank, size_t *ret_first, size_t *ret_end);
/** Capabilities of a comm. */
enum {
    HVT_COMM_SHARE = 1,        ///< hvt_comm_share() works: ranks of a node share memory
    HVT_COMM_REDUCE_APPLY = 2, ///< hvt_comm_reduce_apply() works: all ranks see each other's memory
    HVT_COMM_CAPTURABLE = 4,   ///< operations can be captured in a graph: they need no work of the host
    HVT_COMM_ASYNCHRONOUS = 8, ///< operations start before anyone waits for them, on a worker or a stream
};
HVT_API unsigned hvt_comm_can(const hvt_comm *comm); ///< HVT_COMM_..., or-ed; NULL: 0
/** As hvt_comm_alloc(), but one block that the ranks of a node share, each at its own address. Callers
 * coordinate reads and writes. hvt_comm_allgather() on a part of it copies the slices of other nodes into
 * every node's block; after it all ranks have written theirs. Errors: as hvt_comm_alloc(), and
 * E_UNSUPPORTED. Collective. */
HVT_API hvt_status hvt_comm_share(hvt_comm *comm, size_t bytes, void **ret_ptr);
/** in[r]: rank r's buf. The function owns elements [first, end) of all of them until it returns. */
typedef hvt_status hvt_reduce_apply_fn(void *ctx, size_t first, size_t end, const void *const in[],
                                       int ranks);
/**
 * As hvt_comm_reduce_scatter(), but fn does the reduction: hvt_comm_wait() calls it once for this rank's
 * slice, after all ranks have issued the operation. After that wait the slices of all ranks are done. buf
 * must be in memory of hvt_comm_alloc(), at the same offset on all ranks. Async, collective. Errors:
 * E_UNSUPPORTED.
 */
HVT_API hvt_status hvt_comm_reduce_apply(hvt_comm *comm, void *buf, size_t count, hvt_dtype dtype,
                                         hvt_reduce_apply_fn *fn, void *ctx, hvt_ticket *ret_ticket);
/** Complete all operations up to this ticket. nccl: the host does not wait; work queued on the device from
 * now on runs after them. Host comms do their work in this call, so every rank must wait for the same
 * tickets at the same places among its other collective calls. Collective. Errors: E_COMM (a rank ended or
 * left; it is named), E_MISMATCH (ranks issued different operations: only shm detects
 * this; or some ranks run a collective of collective.h instead). After either
 * the comm is unusable: every later wait for an operation that did not run is E_COMM. */
HVT_API hvt_status hvt_comm_wait(hvt_comm *comm, hvt_ticket ticket);

/* ---- cutoffs ------------------------------------------------------------------------------ */

/** A size at which comms mpi, tcp and hier change algorithms. It affects speed, not results. */
typedef struct hvt_cutoff {
    const char *name;    ///< "mpi-short"
    const char *meaning; ///< includes its unit
    size_t value;        ///< current value
    size_t least, most;  ///< allowed range
    size_t from, to;     ///< approximate sizes, in bytes, of the sums that it affects
    bool hosts;          ///< affects exchange between hosts only
} hvt_cutoff;

/** Get the i-th cutoff; false after the last. */
HVT_API bool hvt_comm_cutoff(int i, hvt_cutoff *ret_cutoff);
/** Set cutoffs: "mpi-short=8192,mpi-packet=65536"; the others get their defaults. Must be the same on every
 * rank. Applies to comms that this thread opens from now on; open ones keep theirs. check: only validate the
 * list. Errors: E_ARG, which names the invalid part. */
HVT_API hvt_status hvt_comm_set_cutoffs(const char *list, bool check);

/* ---- overlap ------------------------------------------------------------------------------ */

/** Options of a worker. */
typedef struct hvt_overlap {
    const int *cpus; ///< [ncpus] CPUs that it may run on; NULL: those of the calling thread
    int ncpus;
    bool yield; ///< it has no CPU of its own: it sleeps while idle, unless a caller waits for it
} hvt_overlap;

/**
 * Give a host comm a worker: a thread that runs operations in the order of issue while the caller computes.
 * hvt_comm_wait() then waits for it and returns its failures. hvt_comm_wait() still runs checked collectives
 * and the fn of hvt_comm_reduce_apply(); operations issued after one of these run after it. `how` NULL: stop
 * the worker; operations run in hvt_comm_wait() again.
 *
 * Waits for operations in flight. Not collective: ranks with and without a worker exchange the same bits; but
 * call it at the same place among the operations that all ranks issue. From then on a comm that "auto" chose
 * no longer changes. With mpi and hier the worker calls MPI. Below MPI_THREAD_MULTIPLE libhvt never calls MPI
 * from two threads at once; a host program that calls MPI meanwhile must have initialised it with
 * MPI_THREAD_MULTIPLE.
 *
 * Errors, which leave the comm without a worker: E_UNSUPPORTED (device memory; an MPI that a host program
 * initialised below MPI_THREAD_MULTIPLE, or one without MPI_THREAD_SERIALIZED), E_MEM, E_DEVICE.
 */
HVT_API hvt_status hvt_comm_overlap(hvt_comm *comm, const hvt_overlap *how);

HVT_C_END
#endif /* HVT_COMM_H */
