/**
 * @file world.h
 * Ranks and nodes of a job, and small values that all ranks must know or agree on. Comms (comm.h) exchange
 * gradients.
 *
 * Terms: a *rank* is a process, 0..size-1, or a thread of one (hvt_world_open_threads()); a *node* is a
 * host's set of ranks that can share memory; *collective* means that every rank of the world must call, in
 * the same order.
 *
 * Threads. Only one thread at a time may use a world and the objects made from it: groups, comms, fused
 * tensors and their devices. Several threads may work at once if each has its own world, device and comm.
 * Worlds of MPI then need MPI_THREAD_MULTIPLE and a communicator each: the host program initialises MPI with
 * that level and passes the communicators to hvt_world_wrap(). hvt_world_open() asks only for
 * MPI_THREAD_SERIALIZED, which makes steps faster. Below MPI_THREAD_MULTIPLE a thread that would wait for
 * other ranks while another thread does so gets E_COMM, because the two could deadlock.
 *
 * Ranks that are threads need none of this: each uses the world that it is given.
 *
 * Per thread: the last error, its trace and whether it is agreed (base.h); hvt_world_watch(), which watches
 * one world and the calling thread; hvt_comm_set_cutoffs(). Per process: hvt_log_to(), called before other
 * threads start (any of them may then call its function).
 *
 * Order. Close what was made from an object before the object: a world's comms and groups, a comm's memory
 * and its users (distributed optimizers, fused tensors), a device's comms. Closing an object that is still in
 * use does nothing but log a line that names the user; the pointer stays valid.
 */
#ifndef HVT_WORLD_H
#define HVT_WORLD_H

#include "hvt/device.h"

HVT_C_BEGIN

typedef struct hvt_world hvt_world;

/**
 * Join the job's ranks. name: "mpi", "tcp" (with the variables that hvt_world_join() reads), "singleton" (one
 * rank), or NULL for hvt_world_join(NULL).
 *
 * Initialises MPI unless the program has, and then finalises it on close. Fails if a launcher started N tasks
 * but MPI sees only one (wrong srun --mpi, another MPI's mpirun); the message says how to fix it. Collective:
 * every process of the job. Errors: E_ARG unknown name, E_MEM, E_COMM, E_UNSUPPORTED (launcher seen, no MPI
 * in this build).
 */
HVT_API hvt_status hvt_world_open(const char *name, hvt_world **ret_world);

/** How the ranks of a job without MPI find each other, as in PyTorch's init_process_group(). */
typedef struct hvt_tcp_opts {
    /** "env://" (also NULL and ""): the variables MASTER_ADDR and MASTER_PORT; "tcp://HOST:PORT": where rank
     * 0 listens; "file:///PATH": a file that does not exist, in a folder that all hosts share. */
    const char *init_method;
    int rank;              ///< -1: the variable RANK, or a launcher's
    int size;              ///< number of ranks; 0: the variable WORLD_SIZE, or a launcher's
    const char *interface; ///< network interface to use, "eth0"; NULL or "": by the host's routes
} hvt_tcp_opts;

/**
 * Join the job's ranks by the means that started this process: MPI if an MPI launcher started it (opts are
 * then ignored, and a log line says so); else TCP if opts or the variables RANK and WORLD_SIZE give rank and
 * size, or if hvt_spawn() started it; else the process is alone. opts may be NULL; its rank is -1 if unknown.
 *
 * Over TCP, all ranks wait for each other. A line names the missing ranks after stall.warn
 * (hvt_world_watch()), and the call fails after stall.abort. If two processes have the same rank, or sizes
 * differ, the call fails on all ranks. Rank 0 warns if the address is not one of its host. All connections
 * need the job's secret: the text in the variable HVT_JOB_SECRET or, with file://, one in the file, whose
 * mode is 0600. Without a secret, any hvtrain that reaches the port may join. Data is not encrypted. Ranks on
 * one machine share memory if they have the same host name, PID namespace and network namespace. After a rank
 * has ended or become unreachable, every wait for it returns E_COMM (a sleeping thread detects this).
 *
 * Collective: every process of the job. Errors: E_ARG (no rank, no size, bad init_method, no such interface),
 * E_COMM, E_IO (the file), E_MEM.
 */
HVT_API hvt_status hvt_world_join(const hvt_tcp_opts *opts, hvt_world **ret_world);

/**
 * Start n ranks of this program on this host: n child processes continue from here, with *ret_exit_code -1,
 * and their hvt_world_join() connects them. The calling process waits until all have ended and gets their
 * exit code, 0 or that of the first one that failed (128 + a signal that killed it). Until then it forwards
 * signals to them, and when one fails, it ends the others. They are killed if the calling thread ends. Call
 * it before other threads start, and before worlds are open. Errors: E_ARG (n is not 1 to 4096; a launcher
 * started several such processes), E_COMM (no loopback network), E_MEM.
 */
HVT_API hvt_status hvt_spawn(int n, int *ret_exit_code);

/**
 * A world over a host program's communicator: mpi_comm is the address of an MPI_Comm. It is duplicated;
 * MPI is neither initialised nor finalised, and MPI_COMM_WORLD is not used.
 * Collective: every rank of that communicator. Errors: E_ARG (also MPI_COMM_NULL and an intercommunicator),
 * E_MEM, E_COMM (also before MPI_Init() and after MPI_Finalize()), E_UNSUPPORTED (no MPI in this build).
 */
HVT_API hvt_status hvt_world_wrap(const void *mpi_comm, hvt_world **ret_world);

/** The function that each rank runs. world: this rank's, borrowed, open until the function returns. */
typedef hvt_status hvt_rank_fn(hvt_world *world, void *ctx);

/**
 * Run fn(world, ctx) on n ranks that are threads of this process, and return when all have ended. For
 * programs without MPI; hvtrain --devices does the same. Every rank opens a device, comm and model of its own
 * and calls hvt_train(), as a process would; hvt_world_cores() divides the cores among them. The ranks share
 * memory and one node. ctx is shared, too. Ranks other than 0 log only errors.
 *
 * Close what was made from a world before fn returns; the world itself is closed afterwards. If fn fails on
 * one rank, the others do not wait for it any longer: their collectives and comm operations return E_COMM,
 * also if the objects of the failed rank are still open (these remain so until the process ends). A rank that
 * computes without waiting continues until fn returns. Then this function returns the status and the message
 * of the rank that failed first. hvt_world_abort() ends the whole process with its exit code, as it does in
 * other worlds; return an error from fn to end only the ranks.
 *
 * Several threads may call it at once; each call has its own ranks. Errors: those of fn; E_ARG n not in 1 to
 * 1024; E_MEM, before any rank has run.
 */
HVT_API hvt_status hvt_world_open_threads(int n, hvt_rank_fn *fn, void *ctx);

/**
 * Split a world: ranks with the same color >= 0 form a new world, in the order of (key, rank). A rank with a
 * negative color gets NULL. The new world can do all that the old one can, ignores ranks outside of it, and
 * must be closed before it. Collective over `world`. Errors, agreed by all its ranks: E_MEM, E_COMM.
 */
HVT_API hvt_status hvt_world_split(hvt_world *world, int color, int key, hvt_world **ret_world);

/** Leave the job and free the world. Collective: every rank; use hvt_world_abort() if the others may not call
 * it. After a host program's MPI_Finalize() it only frees memory, and logs a line. */
HVT_API void hvt_world_close(hvt_world **world);
/** This process's rank according to its launcher's variables, also before a world is open; -1 without a
 * launcher. */
HVT_API int hvt_world_launched_rank(void);

/* For these functions a NULL world is a single process: rank 0 of 1, with empty names. */

HVT_API const char *hvt_world_name(const hvt_world *world); ///< "mpi", "tcp", "singleton", "threads"
HVT_API int hvt_world_rank(const hvt_world *world);
HVT_API int hvt_world_size(const hvt_world *world);
HVT_API int hvt_world_local_rank(const hvt_world *world); ///< rank within the node
HVT_API int hvt_world_local_size(const hvt_world *world); ///< ranks on this node
HVT_API int hvt_world_nodes(const hvt_world *world);
HVT_API const char *hvt_world_host(const hvt_world *world, int rank); ///< host name of any rank

/** Reductions over ranks. Worlds take SUM, MIN, MAX, and AND of integers; collective.h takes all but AND. */
typedef enum hvt_reduction {
    HVT_SUM,
    HVT_AVERAGE,
    HVT_MIN,
    HVT_MAX,
    HVT_PRODUCT,
    HVT_AND,
    HVT_ADASUM
} hvt_reduction;

/** values[i] = the reduction over all ranks of values[i]. Doubles are added in rank order, so all ranks get
 * the same bits; a NaN on any rank gives NaN, whatever the reduction. Sums of integers wrap. AND is for
 * integers. Allocates no memory; costs one allgather per 8 values. Collective. */
HVT_API hvt_status hvt_world_allreduce(hvt_world *world, hvt_reduction how, double *values, int n);
HVT_API hvt_status hvt_world_allreduce_i64(hvt_world *world, hvt_reduction how, int64_t *values, int n);
/** data of every rank = the root's. Collective; bytes and root the same on every rank. Errors: E_ARG no such
 * rank. */
HVT_API hvt_status hvt_world_broadcast(hvt_world *world, void *data, size_t bytes, int root);
/** all[r*bytes ...] = `mine` of rank r. Collective; bytes the same on every rank. */
HVT_API hvt_status hvt_world_allgather(hvt_world *world, const void *mine, size_t bytes, void *all);
/** As hvt_world_allgather(), but only the root's `all` is filled; other ranks may pass NULL. Collective.
 * Errors: E_ARG no such rank. */
HVT_API hvt_status hvt_world_gather(hvt_world *world, const void *mine, size_t bytes, void *all, int root);
HVT_API hvt_status
hvt_world_barrier(hvt_world *world); ///< Collective: returns when all ranks have called it.

/**
 * Agree on one outcome. Pass this rank's status, with its error recorded. If any rank failed, every rank gets
 * the status and message of the lowest failing rank, marked as agreed; the message begins with that rank and
 * host unless it is rank 0. HVT_OK if no rank failed. Collective.
 */
HVT_API hvt_status hvt_world_agree(hvt_world *world, hvt_status mine);

/** A value that must be the same on every rank, e.g. {"--batch", "128"}, {"tensor fc.weight", "[10,64] f32"}.
 */
typedef struct hvt_item {
    const char *name, *value;
} hvt_item;

/**
 * Compare n items over all ranks by one hash. If they differ, every rank gets E_MISMATCH, which names the
 * first differing item, both values, the ranks and their hosts. A different n is reported, too. Collective.
 */
HVT_API hvt_status hvt_world_compare(hvt_world *world, const hvt_item *items, int n);

/** End the job now, after a failure that other ranks cannot know about. Prints nothing; does not return. */
HVT_API void hvt_world_abort(hvt_world *world, int exit_code) __attribute__((noreturn));

/** How long ranks may wait for one another, in seconds; 0: for ever. */
typedef struct hvt_stall {
    double warn;  ///< after this time a line names the unresponsive ranks
    double abort; ///< after this time the process gives up; at least warn
} hvt_stall;

enum { HVT_EXIT_STALLED = 3 }; ///< hvtrain's exit code if it waited for stall.abort

/** Called on the watchdog thread after stall.abort. line: what was logged; "" if another rank of the node
 * logged it. The function may end the process, as hvtrain's does. */
typedef void hvt_stalled_fn(void *ctx, const char *line);

/**
 * Set the function to call after stall.abort; NULL, the default: none. The library does not end the process.
 * If the function returns, waiting operations of comms fail with E_COMM on this rank until hvt_world_watch()
 * is called again; collectives of worlds over MPI keep waiting. Applies to all worlds of the
 * process; set it before opening the first.
 */
HVT_API void hvt_world_on_stall(hvt_stalled_fn *fn, void *ctx);

/**
 * Start a watchdog that reports ranks that wait for an unresponsive one: in operations of comms, in
 * collectives of worlds, and while MPI shuts down. It is one thread per rank and never calls MPI.
 *
 * After stall.warn, and again after twice, four times ... that time, one rank of each node with waiting ranks
 * logs one line: who waits, for how long, for which ranks and hosts, in which bucket and update. For ranks of
 * its own node it also says what they are doing (data, backward, save, ...), or that they are stopped or
 * ended. If no rank waits but one has made no progress for that long, the line says where it is. A rank that
 * has waited for stall.abort without known progress of any rank (a record read or written, an image decoded,
 * a phase begun) logs such a line and calls the function of hvt_world_on_stall(). Progress on other hosts is
 * known where UDP reaches them. These lines reach the function of hvt_log_to() from the watchdog thread,
 * whatever its level. Time in which the process itself was stopped does not count.
 *
 * Opening a world of several ranks (by any function but hvt_world_split()) turns it on with {.warn = 30}, if
 * no calling thread has another world watched. {0, 0} or closing the world turns it off. A thread has one
 * world watched: that of its last call.
 *
 * A NULL world sets the times for worlds opened from now on. hvt_world_open() then watches its own start: if
 * MPI does not start, or its first messages do not arrive, a line lists this host's network interfaces and
 * says how to choose one. Not collective.
 *
 * Also applies to NCCL comms that this thread opens from now on, which have a watchdog of their own. If ranks
 * of a node cannot share memory, a rank knows only which ranks it waits for. Cost: no messages, no time in a
 * step; the thread wakes once a second, more often for a short stall.warn. Collective. Errors, the same on
 * every rank: E_ARG, E_MEM, E_COMM.
 */
HVT_API hvt_status hvt_world_watch(hvt_world *world, const hvt_stall *stall);

/** A rank's share of its node's CPUs, for hvt_device_opts, whose yield is `crowded`. */
typedef struct hvt_cores {
    int threads;               ///< threads of this rank, >= 1
    int cpus[HVT_MAX_THREADS]; ///< where to pin them
    int ncpus;                 ///< equals threads; 0: do not pin
    int spare;                 ///< one more CPU of this rank that no thread is pinned to; -1: none
    int share;                 ///< CPUs in this rank's share
    int mask;                  ///< CPUs in this rank's affinity mask
    bool crowded;              ///< the node has more threads than CPUs
    int caches, nodes;         ///< third-level caches and NUMA nodes of cpus; 0: unknown, or not pinned
} hvt_cores;

/**
 * Divide a node's CPUs among its ranks.
 *
 * threads = 0 asks for all of the share, at most HVT_MAX_THREADS; asking for more is E_ARG. Ranks of a node
 * with equal affinity masks split that mask by local rank; a rank with a mask of its own keeps it.
 * ret_cores->cpus gets one CPU per thread if the node's ranks x threads fit in their masks. Else ncpus is 0:
 * threads are not pinned, and waiting threads must yield. A cgroup limit (cpu.max) counts as fewer CPUs; if
 * it is the smaller limit, nothing is pinned, because it does not say which CPUs. Masks that overlap in part
 * are not pinned either. Collective. Errors: E_ARG, E_MEM, E_COMM, on every rank alike.
 */
HVT_API hvt_status hvt_world_cores(hvt_world *world, int threads, hvt_cores *ret_cores);

HVT_C_END
#endif /* HVT_WORLD_H */
