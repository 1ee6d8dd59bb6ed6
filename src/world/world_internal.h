/*
 * world_internal.h - shared by the files of src/world: recognising launchers, splitting a node's cores,
 * cgroup limits.
 */
#ifndef HVT_WORLD_INTERNAL_H
#define HVT_WORLD_INTERNAL_H

#include "world_impl.h"

typedef struct hvt_launch {
    bool started;    /* a launcher started this process */
    int size;        /* processes it started; 0: unknown */
    const char *var; /* the variable that contains it */
    bool by_srun;    /* srun without mpirun */
    const char *by;  /* name of a launcher without MPI support */
    bool unwired;    /* no process manager that MPI could connect to */
    bool one_node;   /* all processes are on this node */
} hvt_launch;

/* get: getenv, or a test's table. A pure function of the variables. */
hvt_launch hvt__launch(char *(*get)(const char *name));
/* E_COMM with a remedy if MPI's number of processes is not the launcher's. */
hvt_status hvt__launch_check(const hvt_launch *l, int mpi_size);

/* True if variables say how ranks meet without MPI: RANK and WORLD_SIZE. */
bool hvt__launch_without_mpi(char *(*get)(const char *name));
extern bool hvt__was_spawned; /* hvt_spawn() started this process: launchers' variables are the parent's */

/* Mark this launcher rank as starting MPI. E_COMM: another process has done so as the same rank; MPI would
 * print two pages and exit(). */
hvt_status hvt__launch_mark(char *(*get)(const char *name));

/* Watches the start of a world until hvt__startup_close(), with the limits of hvt__watch_default. Call before
 * MPI_Init() or, over TCP, when the ranks have met. */
void hvt__startup_open(const hvt_launch *l);
void hvt__startup_connected(void); /* MPI_Init() has returned */
void hvt__startup_close(void);     /* a no-op if not open */

/* True if pml, btl or mtl is set by a variable (as mpirun --mca does) or in one of the NULL-terminated
 * `files`, as `pml = ucx`. An exclusion in a file, `pml = ^ucx`, counts only if it excludes ob1. */
bool hvt__transport_chosen(char *(*get)(const char *name), const char *const *files);

enum { HVT__MAX_CPUS = 4096 };

/* One rank's affinity, limits and request. */
typedef struct hvt__claim {
    uint64_t mask[HVT__MAX_CPUS / 64]; /* affinity */
    double quota;                      /* CPUs that the cgroup grants the node's ranks; 0: all */
    int threads;                       /* requested; 0: the rank's share */
    int node;
} hvt__claim;

/* The share of rank `me` among the n ranks of a node, in local-rank order. */
void hvt__cores_split(const hvt__claim *claims, int n, int me, hvt_cores *ret_cores);

/* Number of third-level caches and NUMA nodes that CPUs belong to; 0: unknown. root: as below. */
void hvt__domains(const char *root, const int *cpus, int count, int *ret_caches, int *ret_nodes);

/* Limits of the cgroup; its files are below `root`, which is "" except in tests. */
double hvt__cgroup_cpus(const char *root);   /* CPUs' worth of time; 0: no limit */
double hvt__cgroup_memory(const char *root); /* bytes still available; 0: no limit */
/* The positive number after `key` at the start of a line; 0: none. */
double hvt__file_number(const char *folder, const char *file, const char *key);

#endif /* HVT_WORLD_INTERNAL_H */
