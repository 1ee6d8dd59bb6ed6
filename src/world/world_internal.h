/*
 * world_internal.h - what the files of src/world share: how a launcher is recognised, how a node's cores are
 * split, what a control group allows.
 */
#ifndef HVT_WORLD_INTERNAL_H
#define HVT_WORLD_INTERNAL_H

#include "world_impl.h"

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

/* Note that this rank of the launcher starts MPI. E_COMM: another process did so as the same rank, before or
 * beside this one, which MPI would answer by two pages and exit(). */
hvt_status hvt__launch_mark(char *(*get)(const char *name));

/* Watch the start of a world over MPI, with the times of hvt__watch_default: from before MPI_Init() until the
 * first collectives are done. */
void hvt__startup_open(const hvt_launch *l);
void hvt__startup_connected(void); /* MPI_Init() has returned */
void hvt__startup_close(void);     /* if it was opened */

/* Did somebody choose pml, btl or mtl: in a variable (so does mpirun --mca), or in one of `files`, NULL at
 * their end, which name parameters as `pml = ucx`? An exclusion in a file, `pml = ^ucx`, chooses nothing
 * unless it excludes ob1. */
bool hvt__transport_chosen(char *(*get)(const char *name), const char *const *files);

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

/* In how many caches of the third level and NUMA nodes processors lie; 0: unknown. Files as below. */
void hvt__domains(const char *root, const int *cpus, int count, int *ret_caches, int *ret_nodes);

/* Limits of the control group; its files lie below `root`, which is "" but in tests. */
double hvt__cgroup_cpus(const char *root);   /* processors' worth of time; 0: no limit */
double hvt__cgroup_memory(const char *root); /* bytes that can still be had; 0: no limit */
/* The positive number behind `key` at the beginning of a line; 0: there is none. */
double hvt__file_number(const char *folder, const char *file, const char *key);

#endif /* HVT_WORLD_INTERNAL_H */
