/* comm_internal.h - shared by the files of src/comm: the queue and its worker, slices, the tree. */
#ifndef HVT_COMM_INTERNAL_H
#define HVT_COMM_INTERNAL_H

#include "comm_impl.h"

/* For close: leaves the comm, and waits until all other ranks have left. So if a rank still waits for an
 * operation, both sides report it. False: some ranks have not left in time. */
bool hvt__comm_disconnect(hvt_comm *c);

/* Runs the next operation on dev, the calling thread's device. Call with the worker's lock. */
hvt_status hvt__queue_run_next(hvt_comm *c, hvt_device *dev);

/* No operation may be in flight. Errors, which leave the comm unchanged: E_UNSUPPORTED, E_MEM, E_DEVICE. */
hvt_status hvt__worker_start(hvt_comm *c, const hvt_overlap *how);
/* Completes the worker's operations first, but not those held for the caller. NULL-safe. */
void hvt__worker_stop(hvt_comm *c);
/* These are no-ops without a worker. The lock guards the queue's ring; unlock wakes the worker if there is
 * work. */
void hvt__worker_lock(hvt_comm *c);
void hvt__worker_unlock(hvt_comm *c);
/* Call with the lock: waits for a change. False: the next operation is for the caller, not the worker. */
bool hvt__worker_await(hvt_comm *c);
/* Take over the worker's error with status s as this thread's. */
hvt_status hvt__worker_error(hvt_comm *c, hvt_status s);
/* Waits until the worker has no work, so that the caller may use the backend. */
void hvt__worker_rest(hvt_comm *c);

typedef struct hvt__span {
    size_t first, end;
} hvt__span;

static inline hvt__span hvt__intersect(hvt__span a, hvt__span b)
{
    hvt__span s = {a.first > b.first ? a.first : b.first, a.end < b.end ? a.end : b.end};

    return s.first < s.end ? s : (hvt__span){0, 0};
}

/* The index of a rank's slice among `size` slices; see tree.c. */
int hvt__slice_index(int rank, int size);

/* Add n elements of all leaves, leaf i at part[i], into part[0]; the others hold partial sums then. */
hvt_status hvt__leaves_add(hvt_device *dev, const hvt__leaves *l, size_t n, void *const part[]);
/* Run an operation of a world of one rank: adds the rank's leaves, if it has several. */
hvt_status hvt__leaves_add_own(hvt_device *dev, const hvt__op *op);

/* The number of tree levels that lie inside nodes. E_UNSUPPORTED, the same on every rank, if some node's
 * ranks are not a block of the tree or no node has two. */
hvt_status hvt__levels_inside(const hvt_world *w, int *ret_levels);

/* True if a vector is sent whole. Then every rank of a block holds the whole sum, else its slice. */
bool hvt__sent_whole(const hvt_comm *c, const hvt__op *op);
/* Make this comm over messages skip the tree's lowest `levels` levels. */
void hvt__skip_levels(hvt_comm *c, int levels);

/* The cutoffs of comms that this thread opens from now on. */
extern _Thread_local hvt__cutoffs hvt__cutoffs_next;

#endif /* HVT_COMM_INTERNAL_H */
