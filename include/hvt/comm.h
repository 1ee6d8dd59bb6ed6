/**
 * @file comm.h
 * Two planes. The world says who we are and carries small host values;
 * a comm carries gradients and may overlap with arithmetic.
 *
 * Words: a *rank* is a process, 0..size-1; a *node* is a host's set of ranks that can share
 * memory; *collective* means that every rank of the world must call, in the same order.
 *
 * Threads. One thread at a time uses a world and what was made from it: its groups, comms and fused tensors,
 * and the devices under them. It may be another thread later, if that one is synchronised with the first.
 * Several threads may work at once if each has a world, a device and a comm of its own. Worlds of MPI then
 * need MPI_THREAD_MULTIPLE and a communicator each: the host program initialises MPI with it and lends them
 * (hvt_world_wrap()), because hvt_world_open() asks for MPI_THREAD_SERIALIZED only, which steps are faster
 * with. Below MPI_THREAD_MULTIPLE a thread that would wait for other ranks while another one does gets
 * E_COMM, because the two might wait for each other for ever.
 *
 * A thread's own: the last error, its trace and whether it is agreed (base.h); the update and the phase that
 * hvt_world_watch() tells of. The process's, for all threads: hvt_log_to(), which is set before other threads
 * begin and whose function any of them may call at any time; hvt_comm_tune(); hvt_world_watch(), which
 * watches one world; --timeline's trace.
 *
 * Order. What was made from an object is closed before it: a world's comms and groups, a comm's memory and
 * whatever holds some (distributed optimizers, fused tensors), a device's comms. An object that is still in
 * use is not closed: a line says what uses it, the pointer stays, and all of it goes on working.
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
 * Collective: every process of the job. Errors: E_ARG unknown name, E_MEM, E_COMM, E_UNSUPPORTED (launcher
 * seen, no MPI in this build).
 */
HVT_API hvt_status hvt_world_open(const char *name, hvt_world **ret_world);

/**
 * A world over a host program's communicator: mpi_comm is the address of an MPI_Comm. It is duplicated;
 * MPI is neither initialised nor finalised, and MPI_COMM_WORLD is not used.
 * Collective: every rank of that communicator. Errors: E_ARG (also MPI_COMM_NULL and an intercommunicator),
 * E_MEM, E_COMM (also before MPI_Init() and after MPI_Finalize()), E_UNSUPPORTED (no MPI in this build).
 */
HVT_API hvt_status hvt_world_wrap(const void *mpi_comm, hvt_world **ret_world);

/**
 * Part a world: ranks with the same color >= 0 form a new one, in the order of (key, rank). A negative color
 * forms none: *ret_world becomes NULL. A group is a world like any other: it takes comms, knows nothing of
 * the ranks outside, and is closed before the one that it came from. Collective over `world`; errors, E_MEM
 * and E_COMM, are agreed by all of it.
 */
HVT_API hvt_status hvt_world_split(hvt_world *world, int color, int key, hvt_world **ret_world);

/** Leave. Collective: every rank (use hvt_world_abort() when the others cannot be expected to come). After a
 * host program's MPI_Finalize() what is left is freed, and a line says so. */
HVT_API void hvt_world_close(hvt_world **world);

/* Who we are. A NULL world, which is what hvt_world_open() leaves when it fails, is that of a process alone:
 * rank 0 of 1, and no names. */

HVT_API const char *hvt_world_name(const hvt_world *world); ///< "mpi", "lone"
HVT_API int hvt_world_rank(const hvt_world *world);
HVT_API int hvt_world_size(const hvt_world *world);
HVT_API int hvt_world_local_rank(const hvt_world *world); ///< rank within the node
HVT_API int hvt_world_local_size(const hvt_world *world); ///< ranks on this node
HVT_API int hvt_world_nodes(const hvt_world *world);
HVT_API const char *hvt_world_host(const hvt_world *world, int rank); ///< host name of any rank

typedef enum hvt_fold { HVT_FOLD_SUM, HVT_FOLD_MIN, HVT_FOLD_MAX, HVT_FOLD_AND } hvt_fold;

/** values[i] = fold over all ranks of values[i]. Sums of doubles are added in rank order, so that all
 * ranks hold the same bits; a NaN of any rank gives NaN, whatever the fold. Sums of integers wrap. AND is
 * for integers. Takes no memory, and one gather for every 8 values. Collective. */
HVT_API hvt_status hvt_world_fold(hvt_world *world, hvt_fold how, double *values, int n);
HVT_API hvt_status hvt_world_fold_i64(hvt_world *world, hvt_fold how, int64_t *values, int n);
/** data of every rank = the root's. Collective; bytes and root the same on every rank. Errors: E_ARG no such
 * rank. */
HVT_API hvt_status hvt_world_broadcast(hvt_world *world, void *data, size_t bytes, int root);
/** all[r*bytes ...] = rank r's mine. Collective; bytes the same on every rank. */
HVT_API hvt_status hvt_world_gather(hvt_world *world, const void *mine, size_t bytes, void *all);
HVT_API hvt_status hvt_world_barrier(hvt_world *world); ///< Collective: no rank leaves before all have come.

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

/** How long ranks may wait for one another, in seconds; 0: for ever. */
typedef struct hvt_stall {
    double warn;  ///< then a line names who does not come
    double abort; ///< then the process ends; not less than warn
} hvt_stall;

enum { HVT_EXIT_STALLED = 3 }; ///< exit code of a process that waited for stall.abort

/**
 * Let a watchdog speak up where ranks wait for one that does not come: in operations of comms, in what worlds
 * do together, and until MPI has ended. It is a thread of each process, which is never inside MPI.
 *
 * After stall.warn, and again after twice, four times ... that time, one rank of each node with waiting ranks
 * logs one line: who waits, for how long, for which ranks and hosts, in which bucket and update; and of ranks
 * of its own node also where they are instead (data, backward, save, ...), or that they are stopped or ended.
 * Where nobody waits, but a rank has not moved for that long, the line tells where it is. After stall.abort a
 * rank that waits logs such a line and ends its process by _exit(HVT_EXIT_STALLED); mpirun, or srun with
 * --kill-on-bad-exit=1, then ends the others. These lines reach the function of hvt_log_to() from another
 * thread, whatever its level. Time in which the process was stopped itself does not count.
 *
 * Off until asked for; {0, 0} turns it off again, and so does closing the world. Of several worlds of a
 * process the last one asked for is watched; call it on the thread that trains. Also for comms that are
 * opened from now on over NCCL, which have a watchdog of their own. Where ranks of a node cannot share memory
 * each knows only whom it waits for. Cost: no messages, no time in a step; the thread wakes up once a second,
 * for a short stall.warn more often. Collective. Errors, the same on every rank: E_ARG, E_MEM, E_COMM.
 */
HVT_API hvt_status hvt_world_watch(hvt_world *world, const hvt_stall *stall);

/** A rank's part of its node's processors, ready for hvt_device_opts: yield is `crowded`. */
typedef struct hvt_cores {
    int threads;               ///< for this rank, >= 1
    int cpus[HVT_MAX_THREADS]; ///< where to pin them
    int ncpus;                 ///< threads, or 0: do not pin
    int spare;                 ///< another of this rank's part that nobody is pinned to; -1: none
    int share;                 ///< processors that this rank could use by itself
    int mask;                  ///< processors in this rank's affinity mask
    bool crowded;              ///< the node has more threads than processors
} hvt_cores;

/**
 * This rank's share of the processors it may use.
 *
 * threads = 0 asks for all of the share, at most HVT_MAX_THREADS; asking for more is E_ARG. Ranks of
 * a node whose affinity masks are equal split that mask by local rank; a rank with a mask of its own keeps
 * it. ret_cores->cpus gets one processor per thread if the node's ranks x threads fit in their masks, else
 * ncpus is 0: no pinning, and waiting threads must yield. Limits of the cgroup (cpu.max) count as fewer
 * processors; where one binds, nothing is pinned, because it does not say which processors. Masks that
 * overlap in part are not pinned either. Collective. Errors: E_ARG, E_MEM, E_COMM, on every rank alike.
 */
HVT_API hvt_status hvt_world_cores(hvt_world *world, int threads, hvt_cores *ret_cores);

/* ---- comms -------------------------------------------------------------------------------- */

/* The way of gradients: sums in place, no control messages. For anything else see hvt/collective.h. */

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
 * rank and host, and from then on every call gives E_COMM. Recordings of the device that hold operations of a
 * comm are freed before it is closed; an operation is recorded only after one of its kind has run, and in one
 * recording with its wait.
 *
 * Collective. Errors: E_ARG unknown name, E_UNSUPPORTED (shm over several nodes, self with several ranks,
 * hier where nodes hold other ranks, shm and hier on cuda, nccl elsewhere or on a GPU that is not shared),
 * E_MEM, E_COMM, E_MISMATCH (ranks ask for different comms, or have different thresholds).
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
/** Operations in flight are completed first. Collective. NULL is fine. */
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
/** May operations be part of a recorded step (hvt_distopt_record())? Not where the host has a part in them.
 */
HVT_API bool hvt_comm_records(const hvt_comm *comm);
/** Do operations begin before somebody waits for them: has the comm a worker, or a queue of its own? */
HVT_API bool hvt_comm_ahead(const hvt_comm *comm);
/** Do ranks of a node share memory, so that hvt_comm_share() works? */
HVT_API bool hvt_comm_shares(const hvt_comm *comm);
/** Do all ranks see each other's memory, so that hvt_comm_combine() works? */
HVT_API bool hvt_comm_combines(const hvt_comm *comm);
/** As hvt_comm_alloc(), but one block for the ranks of a node, which all of them read and write; each at an
 * address of its own. Who writes what, and when, is the callers' to arrange; hvt_comm_allgather() on a part
 * of it brings the slices of other nodes into every node's block, and after it all ranks have written theirs.
 * Errors: as hvt_comm_alloc(), and E_UNSUPPORTED. Collective. */
HVT_API hvt_status hvt_comm_share(hvt_comm *comm, size_t bytes, void **ret_ptr);
/** in[r]: rank r's buf. Elements [first, end) of all of them are the caller's until it returns. */
typedef hvt_status hvt_combine_fn(void *ctx, size_t first, size_t end, const void *const in[], int ranks);
/**
 * As hvt_comm_reduce_scatter(), but what becomes of a slice is the caller's: fn is called once for this
 * rank's slice, by hvt_comm_wait(), when all ranks have issued the operation; after that wait the slices of
 * all ranks have been worked through. buf lies in memory of hvt_comm_alloc() at the same offset on all ranks.
 * Async, collective. Errors: E_UNSUPPORTED.
 */
HVT_API hvt_status hvt_comm_combine(hvt_comm *comm, void *buf, size_t count, hvt_dtype dtype,
                                    hvt_combine_fn *fn, void *ctx, hvt_ticket *ret_ticket);
/** All operations up to this ticket have ended (nccl: what the device is given from now on comes after them,
 * the host does not wait). Host comms do their work in here, so every rank must wait for
 * the same tickets at the same places among its other collective calls. Collective.
 * Errors: E_COMM a rank ended or left (it is named), E_MISMATCH ranks issued different operations (shm
 * alone can tell); after either the comm is of no more use, and every later wait for what did not run is
 * E_COMM. */
HVT_API hvt_status hvt_comm_wait(hvt_comm *comm, hvt_ticket ticket);

/* ---- thresholds --------------------------------------------------------------------------- */

/** A size at which host comms change their way. Speed depends on it, results do not. */
typedef struct hvt_threshold {
    const char *name;    ///< "mpi-short"
    const char *comms;   ///< whose, with spaces between
    const char *meaning; ///< with its unit
    size_t value;        ///< in effect
    size_t least, most;  ///< that it may be
    size_t from, to;     ///< bytes of the sums that it makes a difference to, about
    bool hosts;          ///< it makes one between hosts only
} hvt_threshold;

/** The i-th one; false after the last. */
HVT_API bool hvt_comm_threshold(int i, hvt_threshold *ret_threshold);
/** Set thresholds: "mpi-short=8192,mpi-window=65536"; those not named stay. The same on every rank. They are
 * for comms that are opened from now on; open ones keep theirs. check: whether it could be done. Errors:
 * E_ARG naming what is not understood. */
HVT_API hvt_status hvt_comm_tune(const char *list, bool check);

/* ---- overlap ------------------------------------------------------------------------------ */

/** Where a worker runs. */
typedef struct hvt_overlap {
    const int *cpus; ///< [ncpus] processors that it may run on; NULL: those of the thread that starts it
    int ncpus;
    bool yield; ///< none of them is its own: it waits asleep, unless somebody waits for it
} hvt_overlap;

/**
 * Give a host comm a worker: a thread that performs operations as soon as they are issued, in that order,
 * while the caller computes. hvt_comm_wait() then waits until it has come so far, and returns what failed on
 * it. The fn of a combine is still called by hvt_comm_wait(), and what was issued behind it comes after.
 * `how` NULL: from now on they are performed in hvt_comm_wait() again.
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

/**
 * Without a worker: let operations that were issued go on as far as they can without waiting. Worth a call
 * now and then while the caller computes; what it does not come to is done by hvt_comm_wait(). Not
 * collective; the same bits. Errors: those of hvt_comm_wait().
 */
HVT_API hvt_status hvt_comm_progress(hvt_comm *comm);
/** Does that do anything? Where operations are messages of this thread: comm mpi without a worker. */
HVT_API bool hvt_comm_progresses(const hvt_comm *comm);

#ifdef __cplusplus
}
#endif
#endif /* HVT_COMM_H */
