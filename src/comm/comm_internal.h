/*
 * comm_internal.h - what the files of src/comm share: the queue and its worker, slices, the tree.
 */
#ifndef HVT_COMM_INTERNAL_H
#define HVT_COMM_INTERNAL_H

#include "comm_impl.h"

/* In close: this rank leaves, and waits until all others have left too, so that each side learns of the other
 * one's mistake where one of them still waits for an operation. False: some have not come in good time. */
bool hvt__comm_disconnect(hvt_comm *c);

/* For the worker, with its lock: the next operation, on a device of this thread's. */
hvt_status hvt__queue_run_next(hvt_comm *c, hvt_device *dev);

/* Nothing may be in flight. Errors: E_UNSUPPORTED, E_MEM, E_DEVICE; the comm is what it was then. */
hvt_status hvt__worker_start(hvt_comm *c, const hvt_overlap *how);
/* What the worker can still do is done first; what is held for the caller is not. NULL-safe. */
void hvt__worker_stop(hvt_comm *c);
/* All of these do nothing without a worker. Around what the queue does with its ring; unlock wakes the worker
 * where there is work. */
void hvt__worker_lock(hvt_comm *c);
void hvt__worker_unlock(hvt_comm *c);
/* With the lock. False: the next operation is not the worker's to run. Else waits until something has
 * changed. */
bool hvt__worker_await(hvt_comm *c);
/* What failed on the worker, by status s, is this thread's error now. */
hvt_status hvt__worker_error(hvt_comm *c, hvt_status s);
/* Until it has no work: the backend is the caller's. */
void hvt__worker_rest(hvt_comm *c);

typedef struct hvt__span {
    size_t first, end;
} hvt__span;

static inline hvt__span hvt__intersect(hvt__span a, hvt__span b)
{
    hvt__span s = {a.first > b.first ? a.first : b.first, a.end < b.end ? a.end : b.end};

    return s.first < s.end ? s : (hvt__span){0, 0};
}

/* The place of a rank's slice among `size` slices; see tree.c. */
int hvt__slice_index(int rank, int size);

/* The number of the tree's lower levels that lie inside nodes. E_UNSUPPORTED, the same on every rank, where
 * some node's ranks are not a block of the tree, or no node has two. */
hvt_status hvt__levels_inside(const hvt_world *w, int *ret_levels);

/* Does a vector travel whole? Then every rank of a block holds all of its sum, else its slice of it. */
bool hvt__mpi_whole(const hvt_comm *c, const hvt__op *op);
/* From now on this comm mpi does only what lies above the tree's lowest `levels` levels. */
void hvt__mpi_skip(hvt_comm *c, int levels);

/* What comms are opened with from now on. */
extern hvt__cutoffs hvt__cutoffs_next;

#endif /* HVT_COMM_INTERNAL_H */
