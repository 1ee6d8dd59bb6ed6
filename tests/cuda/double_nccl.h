/* double_nccl.h - the settings of NCCL's double, for tests. */
#ifndef HVT_DOUBLE_NCCL_H
#define HVT_DOUBLE_NCCL_H

#include <stdbool.h>

void hvt_double_nccl_error(int error);  /* what communicators of this process report from now on; 0: none */
void hvt_double_nccl_stuck(bool stuck); /* ncclCommAbort of this process does not come back */
int hvt_double_nccl_comms(void);        /* that exist: not destroyed, not aborted */
int hvt_double_nccl_registered(void);   /* buffers that are registered now */

#endif /* HVT_DOUBLE_NCCL_H */
