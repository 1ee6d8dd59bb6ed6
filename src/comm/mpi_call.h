/* mpi_call.h - for the files that are compiled only where MPI is found: the one translation of its errors. */
#ifndef HVT_MPI_CALL_H
#define HVT_MPI_CALL_H

#include "comm_impl.h"
#include "watch.h"

#include <mpi.h>

hvt_status hvt__mpi_fail(int rc, const char *file, int line, const char *call);
MPI_Comm hvt__world_mpi_comm(const hvt_world *w);

/* MPI is called by one thread at a time (MPI_THREAD_SERIALIZED): a comm's worker is a second one. */
void hvt__mpi_enter(void);
void hvt__mpi_leave(void);
/* MPI_Waitall. peer[i] is the rank of w at the other end of request i, and is to do `what`: the watchdog is
 * told of those who have not. Where there is a worker, it lets the other thread in between. */
hvt_status hvt__mpi_await(const hvt_world *w, int n, MPI_Request *request, const int *peer, const char *what);

/* MPI_Testall. */
hvt_status hvt__mpi_test(int n, MPI_Request *request, bool *ret_done);

#define HVT_TRY_MPI(call)                                                                                    \
    do {                                                                                                     \
        int rc_;                                                                                             \
        hvt__mpi_enter();                                                                                    \
        rc_ = (call);                                                                                        \
        hvt__mpi_leave();                                                                                    \
        if (rc_ != MPI_SUCCESS)                                                                              \
            return hvt__mpi_fail(rc_, __FILE__, __LINE__, #call);                                            \
    } while (0)

/* A call that every rank of w, or `peer`, is to come to; the watchdog is told. */
#define HVT_TRY_MPI_WAIT(w, peer, what, call)                                                                \
    do {                                                                                                     \
        int wait_ = hvt__wait_begin(w, peer, what);                                                          \
        int done_;                                                                                           \
        hvt__mpi_enter();                                                                                    \
        done_ = (call);                                                                                      \
        hvt__mpi_leave();                                                                                    \
        hvt__wait_end(wait_);                                                                                \
        if (done_ != MPI_SUCCESS)                                                                            \
            return hvt__mpi_fail(done_, __FILE__, __LINE__, #call);                                          \
    } while (0)

#endif /* HVT_MPI_CALL_H */
