/* mpi_call.h - for the files that are compiled only where MPI is found: the one translation of its errors. */
#ifndef HVT_MPI_CALL_H
#define HVT_MPI_CALL_H

#include "comm_impl.h"

#include <mpi.h>

hvt_status hvt__mpi_fail(int rc, const char *file, int line, const char *call);
MPI_Comm hvt__world_mpi_comm(const hvt_world *w);

#define HVT_TRY_MPI(call)                                                                                    \
    do {                                                                                                     \
        int rc_ = (call);                                                                                    \
        if (rc_ != MPI_SUCCESS)                                                                              \
            return hvt__mpi_fail(rc_, __FILE__, __LINE__, #call);                                            \
    } while (0)

#endif /* HVT_MPI_CALL_H */
