/* facts.h - facts about MPI, the launcher and this host, for messages and for `hvtrain check`. */
#ifndef HVT_WORLD_FACTS_H
#define HVT_WORLD_FACTS_H

#include <stdbool.h>

enum { HVT__FACT_TEXT = 256 };

typedef struct hvt__mpi_facts {
    char library[HVT__FACT_TEXT]; /* "Open MPI v4.1.4"; "": built without MPI */
    const char *threads;          /* "MPI_THREAD_SERIALIZED"; "": MPI is not running */
    bool worker;                  /* a comm's worker may run */
} hvt__mpi_facts;

hvt__mpi_facts hvt__mpi_describe(void); /* MPI need not be running */
/* The launcher's variables: "OMPI_COMM_WORLD_SIZE=4, PMIX_RANK=0"; "": none. */
void hvt__launch_variables(char ret_text[HVT__FACT_TEXT]);

/* A network interface that is up, has an IPv4 address, and is not the loopback. */
typedef struct hvt__net {
    char name[16], address[16], network[20]; /* "eth0", "10.0.7.1", "10.0.7.0/24" */
    int mbits;                               /* per second; 0: unknown */
    bool is_inside; /* connects the containers or virtual machines of one host, as docker0 does */
} hvt__net;

enum { HVT__NETS_MOST = 8 };
int hvt__nets(hvt__net ret_nets[HVT__NETS_MOST]); /* returns their number */

/* Bytes of memory still available on the machine and in the cgroup; 0: unknown. */
double hvt__memory_available(void);
/* Free bytes of /dev/shm, where Open MPI's ranks of a host share memory; < 0: unknown. *ret_due: bytes that
 * MPI may still write to its files there, which also need room. */
double hvt__shm_room(double *ret_due);
enum { HVT__SHM_PER_RANK = 4 << 20 }; /* bytes of such a file (btl_vader_segment_size) */

#endif /* HVT_WORLD_FACTS_H */
