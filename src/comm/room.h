/*
 * room.h - what the files of src/comm share: how a launcher is recognised, how a node's cores are
 * split, and the queue of operations that were issued and not yet run.
 */
#ifndef HVT_COMM_ROOM_H
#define HVT_COMM_ROOM_H

#include "comm_impl.h"

/* ---- launch.c: what the environment says of the job, before MPI is asked ------------------- */

typedef struct hvt_launch {
    bool started;    /* a launcher started this process */
    int size;        /* processes it started; 0: it does not say */
    const char *var; /* the variable that says so */
    bool by_srun;    /* srun, and no mpirun between */
    const char *by;  /* a launcher that knows nothing of MPI, by its name */
    bool unwired;    /* there is no process manager that an MPI could ask */
    bool one_node;   /* all processes are on this node */
} hvt_launch;

/* get: getenv, or a test's table. A pure function of the variables. */
hvt_launch hvt__launch(char *(*get)(const char *name));
/* E_COMM with the remedy if the world that MPI sees is not the one that was started. */
hvt_status hvt__launch_check(const hvt_launch *l, int mpi_size);

/* ---- transport.c: may Open MPI be told its transport, or did the user say? ------------------- */

/* Did somebody choose pml, btl or mtl: in a variable (so does mpirun --mca), or in one of `files`, NULL at
 * their end, which name parameters as `pml = ucx`? An exclusion in a file, `pml = ^ucx`, chooses nothing
 * unless it excludes ob1. */
bool hvt__transport_chosen(char *(*get)(const char *name), const char *const *files);

/* ---- cores.c ------------------------------------------------------------------------------ */

enum { HVT__MAX_CPUS = 4096 };

/* What one rank of a node may use and wants. */
typedef struct hvt__claim {
    uint64_t mask[HVT__MAX_CPUS / 64]; /* affinity */
    double quota;                      /* processors that the control group grants the node's ranks; 0: all */
    int threads;                       /* wanted; 0: the rank's share */
    int node;
} hvt__claim;

/* The share of rank `me` among the n ranks of a node, in local-rank order. */
void hvt__cores_split(const hvt__claim *claims, int n, int me, hvt_cores *ret_cores);
/* ---- cgroup.c: the control group's limits; files below `root`, which is "" but in tests ----- */

double hvt__cgroup_cpus(const char *root);   /* processors' worth of time; 0: no limit */
double hvt__cgroup_memory(const char *root); /* bytes that can still be had; 0: no limit */

/* ---- issued operations -------------------------------------------------------------------- */

typedef enum hvt__kind {
    HVT__ALLREDUCE,
    HVT__REDUCE_SCATTER,
    HVT__ALLGATHER,
    HVT__BROADCAST,
    HVT__COMBINE
} hvt__kind;

typedef struct hvt__job {
    void *buf;
    size_t count; /* elements; bytes for broadcast */
    hvt_dtype type;
    hvt__kind kind;
    int root;
    hvt_combine_fn *fn; /* of HVT__COMBINE */
    void *ctx;
} hvt__job;

/* ---- comm.c: ranks that leave a comm while others wait for them -------------------------------- */

/* Has one of these n ranks left? E_COMM that names it, and the others are told that this rank gives up. */
hvt_status hvt__comm_lost(hvt_comm *c, const int *peer, int n, const char *what);
/* In close: this rank leaves, and waits until all others have left too, so that each side learns of the other
 * one's mistake where one of them still waits for an operation. False: some have not come in good time. */
bool hvt__comm_part(hvt_comm *c);

/* One of a comm's own operations, by its kind; the ticket is of ops. No broadcasts: they do not queue. */
hvt_status hvt__comm_issue(hvt_comm *c, hvt__kind kind, void *buf, size_t count, hvt_dtype t,
                           hvt_ticket *ret_ticket);

/* A ring of jobs with tickets run+1 .. issued; grows by doubling, so a step allocates nothing once the
 * largest number in flight has been seen. The state of a comm that queues begins with one. */
typedef struct hvt__pending {
    hvt__job *jobs;
    size_t room; /* a power of two */
    hvt_ticket run, issued;
    hvt_status broken; /* what the first failure was: then the ranks' parts no longer match */
} hvt__pending;

static inline hvt__job *hvt__pending_at(const hvt__pending *p, hvt_ticket ticket)
{
    return &p->jobs[ticket & (p->room - 1)];
}

/* Entries of the table of a comm that queues, and what such entries are made of. */
hvt_status hvt__pending_allreduce(hvt_comm *c, void *buf, size_t count, hvt_dtype t, hvt_ticket *ret_ticket);
hvt_status hvt__pending_reduce_scatter(hvt_comm *c, void *buf, size_t count, hvt_dtype t,
                                       hvt_ticket *ret_ticket);
hvt_status hvt__pending_allgather(hvt_comm *c, void *buf, size_t count, hvt_dtype t, hvt_ticket *ret_ticket);
hvt_status hvt__pending_issue(hvt_comm *c, const hvt__job *job, hvt_ticket *ret_ticket);

/* Perform what was issued, up to `ticket`; after a failure E_COMM. */
typedef hvt_status hvt__perform_fn(hvt_comm *c, const hvt__job *job);
hvt_status hvt__pending_run(hvt_comm *c, hvt_ticket ticket, hvt__perform_fn *perform);

/* ---- overlap.c: a worker for a comm's operations --------------------------------------------- */

/* Nothing may be in flight. Errors: E_UNSUPPORTED, E_MEM, E_DEVICE; the comm is what it was then. */
hvt_status hvt__overlap_begin(hvt_comm *c, const hvt_overlap *how);
/* What the worker can still do is done first; a combine that nobody waited for is not. NULL-safe. */
void hvt__overlap_end(hvt_comm *c);
/* Is this thread a worker that shares its processor, and nobody waits for it? Then it waits asleep. */
bool hvt__overlap_patient(void);

/* ---- slices ------------------------------------------------------------------------------- */

/* Boundary i of n balanced slices of `count` elements, in multiples of 16. The boundaries of n slices are
 * among those of 2n: halving a slice of the one yields two of the other. */
static inline size_t hvt__cut(size_t count, int i, int n)
{
    size_t units = (count + 15) / 16, whole = units / (size_t)n, rest = units % (size_t)n;
    size_t at = 16 * (whole * (size_t)i + rest * (size_t)i / (size_t)n);

    return at < count ? at : count;
}

typedef struct hvt__span {
    size_t first, end;
} hvt__span;

static inline hvt__span hvt__meet(hvt__span a, hvt__span b)
{
    hvt__span s = {a.first > b.first ? a.first : b.first, a.end < b.end ? a.end : b.end};

    return s.first < s.end ? s : (hvt__span){0, 0};
}

/* The place of a rank's slice among `size` slices; see tree.c. */
int hvt__slice_of(int rank, int size);

/* The number of the tree's lower levels that lie inside nodes. E_UNSUPPORTED, the same on every rank, where
 * some node's ranks are no block of the tree, or no node has two. */
hvt_status hvt__levels_inside(const hvt_world *w, int *ret_levels);

/* ---- mpi.c, for hier.c -------------------------------------------------------------------- */

/* Does a vector travel whole? Then every rank of a block holds all of its sum, else its slice of it. */
bool hvt__mpi_whole(const hvt_comm *c, const hvt__job *job);
/* Do the part of an operation that lies above the tree's lowest `levels` levels. */
hvt_status hvt__mpi_above(hvt_comm *c, const hvt__job *job, int levels);

/* Let the ranks of `part` be called as in `of`, of which it is a part. Collective over the part; what fails
 * on one rank alone is not agreed. */
hvt_status hvt__world_number(hvt_world *part, const hvt_world *of);

/* What a rank is called in messages: by its number in the whole job. */
static inline int hvt__called(const hvt_world *w, int rank)
{
    return w->called ? w->called[rank] : rank;
}

/* ---- shm_segment.c: memory that all ranks of a node can read and write ---------------------- */

typedef struct hvt__segment {
    char *base;    /* NULL: none */
    size_t stride; /* rank r's part begins at base + r * stride */
    size_t bytes;  /* asked for, of every part */
    int ranks;
    bool shared; /* the whole of it is every rank's */
} hvt__segment;

/* Collective; zeroed, and reserved: touching it cannot fail later. Its error is agreed. */
hvt_status hvt__segment_open(hvt_world *w, size_t bytes, hvt__segment *ret_segment);
void hvt__segment_close(hvt__segment *s);

/* ---- thresholds --------------------------------------------------------------------------- */

/* What comms are opened with from now on. */
extern hvt__comm_tuning hvt__comm_tuned;

/* ---- what tests turn ---------------------------------------------------------------------- */

extern size_t hvt__world_message;                   /* and of a parcel, in bytes */
extern size_t hvt__coll_window;                     /* bytes of other ranks' parts that a reduction holds */
extern int (*hvt__shm_create)(size_t bytes);        /* a new nameless file of this size, or -1 with errno */
extern int (*hvt__shm_attach)(int pid, int fd);     /* another process's file, or -1 with errno */
extern void *(*hvt__shm_map)(int fd, size_t bytes); /* or MAP_FAILED with errno */
extern void (*hvt__shm_unmap)(void *base, size_t bytes);

#endif /* HVT_COMM_ROOM_H */
