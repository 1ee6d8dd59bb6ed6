/**
 * @file world.h
 * Who we are: ranks, nodes, and small values that all ranks must know or agree on. Gradients travel by comms
 * (comm.h).
 *
 * Words: a *rank* is a process, 0..size-1; a *node* is a host's set of ranks that can share
 * memory; *collective* means that every rank of the world must call, in the same order.
 *
 * Threads. One thread at a time uses a world and what was made from it: its groups, comms and fused tensors,
 * and the devices under them. It may be another thread later, if that one is synchronised with the first.
 * Several threads may work at once if each has a world, a device and a comm of its own. Worlds of MPI then
 * need MPI_THREAD_MULTIPLE and a communicator each: the host program initialises MPI with it and lends them
 * (hvt_world_wrap()), because hvt_world_open() asks only for MPI_THREAD_SERIALIZED, with which steps are
 * faster. Below MPI_THREAD_MULTIPLE a thread that would wait for other ranks while another one does gets
 * E_COMM, because the two might wait for each other for ever.
 *
 * A thread's own: the last error, its trace and whether it is agreed (base.h); the update and the phase that
 * hvt_world_watch() reports. The process's, for all threads: hvt_log_to(), which is set before other threads
 * begin and whose function any of them may call at any time; hvt_comm_set_cutoffs(); hvt_world_watch(), which
 * watches one world; --timeline's trace.
 *
 * Order. What was made from an object is closed before it: a world's comms and groups, a comm's memory and
 * whatever holds some (distributed optimizers, fused tensors), a device's comms. An object that is still in
 * use is not closed: a line says what uses it, the pointer stays, and all of it goes on working.
 */
#ifndef HVT_WORLD_H
#define HVT_WORLD_H

#include "hvt/device.h"

HVT_C_BEGIN

typedef struct hvt_world hvt_world;

/**
 * Find out who we are. name: "mpi", "singleton", or NULL for the one that the environment asks for
 * (a launcher's variables present: mpi, else singleton).
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
/** This process's rank as its launcher's variables say it, before a world is open; -1: there is no launcher.
 */
HVT_API int hvt_world_launched_rank(void);

/* Who we are. A NULL world, which is what hvt_world_open() leaves when it fails, is that of a process alone:
 * rank 0 of 1, and no names. */

HVT_API const char *hvt_world_name(const hvt_world *world); ///< "mpi", "singleton"
HVT_API int hvt_world_rank(const hvt_world *world);
HVT_API int hvt_world_size(const hvt_world *world);
HVT_API int hvt_world_local_rank(const hvt_world *world); ///< rank within the node
HVT_API int hvt_world_local_size(const hvt_world *world); ///< ranks on this node
HVT_API int hvt_world_nodes(const hvt_world *world);
HVT_API const char *hvt_world_host(const hvt_world *world, int rank); ///< host name of any rank

/** How values of all ranks become one. The world's: SUM, MIN, MAX, and AND of integers; a comm's collectives
 * (collective.h): all but AND. */
typedef enum hvt_reduction { HVT_SUM, HVT_AVERAGE, HVT_MIN, HVT_MAX, HVT_PRODUCT, HVT_AND } hvt_reduction;

/** values[i] = the reduction over all ranks of values[i]. Sums of doubles are added in rank order, so that
 * all ranks hold the same bits; a NaN of any rank gives NaN, whatever the reduction. Sums of integers wrap.
 * AND is for integers. Takes no memory, and one allgather for every 8 values. Collective. */
HVT_API hvt_status hvt_world_allreduce(hvt_world *world, hvt_reduction how, double *values, int n);
HVT_API hvt_status hvt_world_allreduce_i64(hvt_world *world, hvt_reduction how, int64_t *values, int n);
/** data of every rank = the root's. Collective; bytes and root the same on every rank. Errors: E_ARG no such
 * rank. */
HVT_API hvt_status hvt_world_broadcast(hvt_world *world, void *data, size_t bytes, int root);
/** all[r*bytes ...] = rank r's mine. Collective; bytes the same on every rank. */
HVT_API hvt_status hvt_world_allgather(hvt_world *world, const void *mine, size_t bytes, void *all);
/** The same on root alone; elsewhere `all` is ignored. Errors: E_ARG no such rank. */
HVT_API hvt_status hvt_world_gather(hvt_world *world, const void *mine, size_t bytes, void *all, int root);
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
    double warn;  ///< then a line names the unresponsive ranks
    double abort; ///< then the process ends; not less than warn
} hvt_stall;

enum { HVT_EXIT_STALLED = 3 }; ///< hvtrain's exit code if it waited for stall.abort

/** Called on the watchdog's thread of a process that has waited for stall.abort. line: what was logged, or ""
 * where another rank of the node logged it. It may end the process, as hvtrain does. */
typedef void hvt_stalled_fn(void *ctx, const char *line);

/**
 * The function to call then; NULL, the default: none. The library does not end the process: if the function
 * returns, operations of comms that wait fail with E_COMM on this rank, until hvt_world_watch() is called
 * again, and collectives of worlds, which wait inside MPI, still wait. For all worlds of the process; set it
 * before the first is opened.
 */
HVT_API void hvt_world_on_stall(hvt_stalled_fn *fn, void *ctx);

/**
 * Start a watchdog that reports ranks which wait for an unresponsive one: in operations of comms, in
 * collectives of worlds, and until MPI has ended. It is a thread of each process, which is never inside MPI.
 *
 * After stall.warn, and again after twice, four times ... that time, one rank of each node with waiting ranks
 * logs one line: who waits, for how long, for which ranks and hosts, in which bucket and update; and of ranks
 * of its own node also where they are instead (data, backward, save, ...), or that they are stopped or ended.
 * Where nobody waits, but a rank has not moved for that long, the line says where it is. A rank that has
 * waited for stall.abort, while no rank is known to have made progress of any kind (a record read or written,
 * an image decoded, a phase begun), logs such a line and calls the function of hvt_world_on_stall(); of other
 * hosts this is known where UDP reaches them. These lines reach the function of hvt_log_to() from another
 * thread, whatever its level. Time in which the process was stopped itself does not count.
 *
 * hvt_world_open() and hvt_world_wrap() turn it on for a world of several ranks, with {.warn = 30}, if no
 * world of these processes is watched; {0, 0} turns it off, and so does closing the world. Of several worlds
 * of a process the last one asked for is watched, and of its threads the one that asked.
 *
 * A NULL world sets the times for worlds that are opened from now on. hvt_world_open() then watches from its
 * beginning: where MPI does not start, or its first messages do not come through, a line names this host's
 * network interfaces and how to choose among them. Not collective.
 *
 * Also for comms that are
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
    int caches, nodes;         ///< third-level caches and NUMA nodes of cpus; 0: unknown, or not pinned
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

HVT_C_END
#endif /* HVT_WORLD_H */
