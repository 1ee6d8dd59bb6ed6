/*
 * double_room.h - common to the two files of the CUDA runtime's double: the start and end of a call.
 *
 * A call begins with ENTER or ENTER_UNSAFE, which take the lock, and ends with hvt__double_give(), which
 * releases it.
 */
#ifndef HVT_DOUBLE_ROOM_H
#define HVT_DOUBLE_ROOM_H

#include "double_queue.h"

#include <cuda_runtime_api.h>

cudaError_t hvt__double_begin(const char *call); /* what every call may give */
cudaError_t hvt__double_give(cudaError_t e);
/* A call that captures under way forbid breaks them. */
cudaError_t hvt__double_forbidden(void);
/* Say why, and return e. */
cudaError_t hvt__double_refuse(cudaError_t e, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

bool hvt__double_in_device(const void *ptr, size_t bytes);
bool hvt__double_in_host(const void *ptr, size_t bytes); /* pinned */
bool hvt__double_in_block(const void *ptr);              /* of either kind */

extern cudaError_t hvt__double_sticky;
extern hvt_double_alive hvt__double_live;

#define ENTER()                                                                                              \
    do {                                                                                                     \
        cudaError_t e_ = hvt__double_begin(__func__);                                                        \
        if (e_ != cudaSuccess)                                                                               \
            return hvt__double_give(e_);                                                                     \
    } while (0)

#define REFUSE(cond, error)                                                                                  \
    do {                                                                                                     \
        if (cond)                                                                                            \
            return hvt__double_give(error);                                                                  \
    } while (0)

/* Enter a call that a capture forbids. */
#define ENTER_UNSAFE()                                                                                       \
    do {                                                                                                     \
        cudaError_t f_;                                                                                      \
        ENTER();                                                                                             \
        f_ = hvt__double_forbidden();                                                                        \
        REFUSE(f_ != cudaSuccess, f_);                                                                       \
    } while (0)

#endif /* HVT_DOUBLE_ROOM_H */
