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
    bool unwired;    /* by_srun without a process manager that an MPI could ask */
    bool one_node;   /* all processes are on this node */
} hvt_launch;

/* get: getenv, or a test's table. A pure function of the variables. */
hvt_launch hvt__launch(char *(*get)(const char *name));
/* E_COMM with the remedy if the world that MPI sees is not the one that was started. */
hvt_status hvt__launch_check(const hvt_launch *l, int mpi_size);

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

typedef enum hvt__kind { HVT__ALLREDUCE, HVT__REDUCE_SCATTER, HVT__ALLGATHER, HVT__BROADCAST } hvt__kind;

typedef struct hvt__job {
    void *buf;
    size_t count; /* elements; bytes for broadcast */
    hvt_dtype type;
    hvt__kind kind;
    int root;
} hvt__job;

/* A ring of jobs with tickets run+1 .. issued; grows by doubling, so a step allocates nothing once the
 * largest number in flight has been seen. */
typedef struct hvt__pending {
    hvt__job *jobs;
    size_t room; /* a power of two */
    hvt_ticket run, issued;
} hvt__pending;

hvt_status hvt__pending_add(hvt__pending *p, const hvt__job *job);
static inline hvt__job *hvt__pending_at(const hvt__pending *p, hvt_ticket ticket)
{
    return &p->jobs[ticket & (p->room - 1)];
}

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

/* The place of a rank's slice among `size` slices; see mpi.c. */
int hvt__slice_of(int rank, int size);

/* ---- shm_segment.c: memory that all ranks of a node can read and write ---------------------- */

typedef struct hvt__segment {
    char *base;    /* NULL: none */
    size_t stride; /* rank r's part begins at base + r * stride */
    size_t bytes;  /* asked for, of every part */
    int ranks;
} hvt__segment;

/* Collective; zeroed, and reserved: touching it cannot fail later. Its error is agreed. */
hvt_status hvt__segment_open(hvt_world *w, size_t bytes, hvt__segment *ret_segment);
void hvt__segment_close(hvt__segment *s);

/* ---- what tests turn ---------------------------------------------------------------------- */

extern size_t hvt__mpi_message;                 /* longest message in elements */
extern int (*hvt__shm_create)(size_t bytes);    /* a new nameless file of this size, or -1 with errno */
extern int (*hvt__shm_attach)(int pid, int fd); /* another process's file, or -1 with errno */

#endif /* HVT_COMM_ROOM_H */
