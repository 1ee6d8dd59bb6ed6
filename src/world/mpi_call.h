/* mpi_call.h - calls of MPI and translation of its errors, for the files that are compiled only with MPI. */
#ifndef HVT_MPI_CALL_H
#define HVT_MPI_CALL_H

#include "world_impl.h"
#include "watch.h"

#include <mpi.h>

hvt_status hvt__mpi_fail(int rc, const char *file, int line, const char *call);
MPI_Comm hvt__world_mpi_comm(const hvt_world *w);

/* Around every MPI call. Below MPI_THREAD_MULTIPLE it admits one thread at a time, as a comm's worker also
 * calls MPI; with it, there is no lock. Pass the result to leave. */
bool hvt__mpi_enter(void);
void hvt__mpi_leave(bool entered);
/* Around a call that returns only when other ranks have called, too. E_COMM: MPI is finalised, or, below
 * MPI_THREAD_MULTIPLE, another thread is in such a call, so that both might deadlock. */
hvt_status hvt__mpi_enter_wait(bool *ret_entered);
void hvt__mpi_leave_wait(bool entered);
/* True if MPI is initialised and not finalised. */
bool hvt__mpi_is_up(void);
hvt_status hvt__mpi_check_up(void);
/* MPI_Bcast in messages of at most `most` bytes. */
hvt_status hvt__mpi_broadcast(const hvt_world *w, MPI_Comm comm, void *data, size_t bytes, size_t most,
                              int root);

/* Messages in flight. */
typedef struct hvt__flight {
    MPI_Comm comm;
    MPI_Datatype type;
    int tag;
    int n, room;
    MPI_Request *request; /* [room]; in one block with: */
    int *peer;            /* [room] peer of each */
} hvt__flight;

/* Make room for `room` messages; free(f->request). */
hvt_status hvt__mpi_reserve(hvt__flight *f, int room);
/* Post one more message of `count` elements, to or from the peer. */
hvt_status hvt__mpi_post(hvt__flight *f, bool send, void *at, size_t count, int peer);
/* Wait for all messages; peers are ranks of w. Tells the watchdog which peers have not sent or received
 * theirs, and lets a worker call MPI in between. E_COMM if a peer has left the group; the messages are still
 * in flight then. */
hvt_status hvt__mpi_await(const hvt_world *w, const hvt__rank_group *group, hvt__flight *f);
/* Abandon messages. The receiver may still read an unreceived send. */
void hvt__mpi_drop(hvt__flight *f);

#define HVT_TRY_MPI(call)                                                                                    \
    do {                                                                                                     \
        bool in_ = hvt__mpi_enter();                                                                         \
        int rc_ = (call);                                                                                    \
                                                                                                             \
        hvt__mpi_leave(in_);                                                                                 \
        if (rc_ != MPI_SUCCESS)                                                                              \
            return hvt__mpi_fail(rc_, __FILE__, __LINE__, #call);                                            \
    } while (0)

/* A call that waits for every rank of w, or for `peer`, with notice to the watchdog. */
#define HVT_TRY_MPI_WAIT(w, peer, what, call)                                                                \
    do {                                                                                                     \
        bool in_;                                                                                            \
        int wait_, done_;                                                                                    \
                                                                                                             \
        HVT_TRY(hvt__mpi_enter_wait(&in_));                                                                  \
        wait_ = hvt__wait_begin(w, peer, what);                                                              \
        done_ = (call);                                                                                      \
        hvt__wait_end(wait_);                                                                                \
        hvt__mpi_leave_wait(in_);                                                                            \
        if (done_ != MPI_SUCCESS)                                                                            \
            return hvt__mpi_fail(done_, __FILE__, __LINE__, #call);                                          \
    } while (0)

#endif /* HVT_MPI_CALL_H */
