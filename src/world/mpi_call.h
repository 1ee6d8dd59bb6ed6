/* mpi_call.h - for the files that are compiled only where MPI is found: the one translation of its errors. */
#ifndef HVT_MPI_CALL_H
#define HVT_MPI_CALL_H

#include "world_impl.h"
#include "watch.h"

#include <mpi.h>

hvt_status hvt__mpi_fail(int rc, const char *file, int line, const char *call);
MPI_Comm hvt__world_mpi_comm(const hvt_world *w);

/* Below MPI_THREAD_MULTIPLE, MPI is called by one thread at a time: a comm's worker is a second one. With it
 * nobody waits here. Returns what leave takes. */
bool hvt__mpi_enter(void);
void hvt__mpi_leave(bool entered);
/* Around a call that returns only when other ranks have called, too. E_COMM: MPI has been finalised, or below
 * MPI_THREAD_MULTIPLE another thread is in such a call, which might never return then. */
hvt_status hvt__mpi_enter_wait(bool *ret_entered);
void hvt__mpi_leave_wait(bool entered);
/* MPI was initialised and not finalised; E_COMM. */
bool hvt__mpi_is_up(void);
hvt_status hvt__mpi_check_up(void);
/* MPI_Bcast in messages of at most `most` bytes. */
hvt_status hvt__mpi_broadcast(const hvt_world *w, MPI_Comm comm, void *data, size_t bytes, size_t most,
                              int root);

/* Messages on their way. */
typedef struct hvt__flight {
    MPI_Comm comm;
    MPI_Datatype type;
    int tag;
    int n, room;
    MPI_Request *request; /* [room]; in one block with: */
    int *peer;            /* [room] the rank at the other end of each */
} hvt__flight;

/* Room for so many at once; freed as f->request. */
hvt_status hvt__mpi_reserve(hvt__flight *f, int room);
/* One more of `count` elements: to the peer, or from it into `at`. */
hvt_status hvt__mpi_post(hvt__flight *f, bool send, void *at, size_t count, int peer);
/* Until all have arrived; peers are ranks of w. The watchdog is told of those who have not sent or taken
 * theirs. Where there is a worker, it lets the other thread in between. E_COMM where one of them has left the
 * party; then they are still under way. */
hvt_status hvt__mpi_await(const hvt_world *w, const hvt__party *party, hvt__flight *f);
/* Nobody waits for these any more. A send that has not been received may still be read by its receiver. */
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

/* A call that every rank of w, or `peer`, is to come to; the watchdog is told. */
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
