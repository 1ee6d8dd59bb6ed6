/* launches.h - between the kernels in launches.cpp and the device in launches.c. */
#ifndef HVT_LAUNCHES_H
#define HVT_LAUNCHES_H

#include "base_impl.h"

#ifdef __cplusplus
extern "C"
#endif
    hvt_status
    note_launch(const char *kernel, size_t blocks, unsigned threads);

#endif /* HVT_LAUNCHES_H */
