/**
 * @file comm.h
 * Two planes. The world says who we are and carries small host values;
 * a comm carries gradients and may overlap with arithmetic.
 *
 * Words: a *rank* is a process, 0..size-1; a *node* is a host's set of ranks that can share
 * memory; *collective* means that every rank of the world must call, in the same order.
 */
#ifndef HVT_COMM_H
#define HVT_COMM_H

#include "hvt/device.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- the world ---------------------------------------------------------------------------- */

typedef struct hvt_world hvt_world;

/**
 * Find out who we are. name: "mpi", "lone", or NULL for the one that the environment asks for
 * (a launcher's variables present: mpi, else lone).
 *
 * Initialises MPI if nobody has, and then finalises it on close. Refuses the silent-singleton trap:
 * a launcher that started N tasks of which MPI sees only one (wrong srun --mpi, another MPI's mpirun);
 * the message holds the fix.
 * Collective: every process of the job. Errors: E_COMM, E_UNSUPPORTED (launcher seen, no MPI in this build).
 */
HVT_API hvt_status hvt_world_open(const char *name, hvt_world **ret_world);

/**
 * A world over a host program's communicator: mpi_comm is the address of an MPI_Comm. It is duplicated;
 * MPI is neither initialised nor finalised, and MPI_COMM_WORLD is not used.
 * Collective: every rank of that communicator.
 */
HVT_API hvt_status hvt_world_wrap(const void *mpi_comm, hvt_world **ret_world);

/** Leave. Collective: every rank (use hvt_world_abort() when the others cannot be expected to come). */
HVT_API void hvt_world_close(hvt_world **world);
HVT_API const char *hvt_world_name(const hvt_world *world); ///< "mpi", "lone"
HVT_API int hvt_world_rank(const hvt_world *world);
HVT_API int hvt_world_size(const hvt_world *world);
HVT_API int hvt_world_local_rank(const hvt_world *world); ///< rank within the node
HVT_API int hvt_world_local_size(const hvt_world *world); ///< ranks on this node
HVT_API int hvt_world_nodes(const hvt_world *world);
HVT_API const char *hvt_world_host(const hvt_world *world, int rank); ///< host name of any rank

typedef enum hvt_fold { HVT_FOLD_SUM, HVT_FOLD_MIN, HVT_FOLD_MAX, HVT_FOLD_AND } hvt_fold;

/** values[i] = fold over all ranks of values[i]. Sums of doubles are added in rank order, so that all
 *  ranks hold the same bits. AND is for integers. Collective. */
HVT_API hvt_status hvt_world_fold(hvt_world *world, hvt_fold how, double *values, int n);
HVT_API hvt_status hvt_world_fold_i64(hvt_world *world, hvt_fold how, int64_t *values, int n);
HVT_API hvt_status hvt_world_broadcast(hvt_world *world, void *data, size_t bytes, int root);
/** all[r*bytes ...] = rank r's mine. Collective; bytes the same on every rank. */
HVT_API hvt_status hvt_world_gather(hvt_world *world, const void *mine, size_t bytes, void *all);
HVT_API hvt_status hvt_world_barrier(hvt_world *world);

/**
 * One outcome for all: pass this rank's status (with its error recorded); if any rank failed, every rank
 * gets the lowest failing rank's status and message, prefixed with that rank and host where they are
 * not rank 0's, marked as agreed. HVT_OK if all are. Collective.
 */
HVT_API hvt_status hvt_world_agree(hvt_world *world, hvt_status mine);

/** A thing that must be the same on every rank, e.g. {"--batch", "128"}, {"tensor fc.weight", "[10,64] f32"}.
 */
typedef struct hvt_item {
    const char *name, *value;
} hvt_item;

/**
 * Compare n items over all ranks by one hash; on a difference every rank gets E_MISMATCH naming the first
 * differing item, both values, the ranks and their hosts. n may differ by mistake: that too is reported.
 * Collective.
 */
HVT_API hvt_status hvt_world_compare(hvt_world *world, const hvt_item *items, int n);

/** End the job now: for failures that other ranks cannot know of. Prints nothing; does not return. */
HVT_API void hvt_world_abort(hvt_world *world, int exit_code) __attribute__((noreturn));

/**
 * This rank's share of the processors it may use.
 *
 * threads = 0 asks for all of the share, at most HVT_MAX_THREADS; asking for more is E_ARG. Ranks of
 * a node whose affinity masks are equal split that mask by local rank; a rank with a mask of its own keeps
 * it. cpus gets one processor per thread if the node's ranks x threads fit in their masks, else ncpus
 * is 0: no pinning, and waiting threads must yield. Limits of the cgroup (cpu.max) count as fewer
 * processors; where one binds, nothing is pinned, because it does not say which processors. Masks that
 * overlap in part are not pinned either. Collective.
 */
typedef struct hvt_cores {
    int threads;               ///< for this rank, >= 1
    int cpus[HVT_MAX_THREADS]; ///< where to pin them
    int ncpus;                 ///< threads, or 0: do not pin
    int share;                 ///< processors that this rank could use by itself
    int mask;                  ///< processors in this rank's affinity mask
    bool crowded;              ///< the node has more threads than processors
} hvt_cores;
HVT_API hvt_status hvt_world_cores(hvt_world *world, int threads, hvt_cores *ret_cores);

/* ---- comms -------------------------------------------------------------------------------- */

typedef struct hvt_comm hvt_comm;
typedef uint64_t hvt_ticket; ///< tickets of one comm complete in issue order

/**
 * Open a data plane: "self" (one rank), "shm" (one node), "mpi", or "auto": self for one rank, shm if
 * all ranks share a node and the shared segment can be had, else mpi (one log line says why).
 *
 * Sum along one fixed binary tree over ranks: on each level 2i and 2i+1 are added, an odd last one moves up,
 * whatever the comm, the algorithm or the count. Accumulation is in f32; 16-bit types are rounded once per
 * partial sum that travels, and every rank ends with the same bits.
 * Collective. Errors: E_ARG unknown name, E_UNSUPPORTED (shm over several nodes, self with several ranks),
 * E_COMM.
 */
HVT_API hvt_status hvt_comm_open(const char *name, hvt_world *world, hvt_device *dev, hvt_comm **ret_comm);
HVT_API void hvt_comm_close(hvt_comm **comm); ///< Collective.
HVT_API const char *hvt_comm_name(const hvt_comm *comm);
HVT_API hvt_world *hvt_comm_world(const hvt_comm *comm); /* borrowed */

/** Zeroed, 64-byte aligned memory that this comm moves fastest (shm: pages that the peers can read).
 *  Collective, the same bytes on every rank. E_MEM leaves nothing behind, on every rank alike. A comm that
 *  "auto" chose may change from shm to mpi here, as long as it holds no other memory (one log line says so).
 *  Then operations in flight are completed first, and hvt_comm_name() is another.
 */
HVT_API hvt_status hvt_comm_alloc(hvt_comm *comm, size_t bytes, void **ret_ptr);
HVT_API void hvt_comm_release(hvt_comm *comm, void *ptr); ///< Collective. NULL is fine.

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
 * of 16; not in the order of ranks, but so that neighbours in the tree own neighbouring slices. */
HVT_API void hvt_comm_slice(const hvt_comm *comm, size_t count, int rank, size_t *ret_first, size_t *ret_end);
/** All operations up to this ticket have ended. Host comms do their work in here, so every rank must wait for
 *  the same tickets at the same places among its other collective calls. Collective.
 *  Errors: E_COMM a rank ended or left (it is named), E_MISMATCH ranks issued different operations (shm
 *  alone can tell); after either the comm is of no more use. */
HVT_API hvt_status hvt_comm_wait(hvt_comm *comm, hvt_ticket ticket);

#ifdef __cplusplus
}
#endif
#endif /* HVT_COMM_H */
