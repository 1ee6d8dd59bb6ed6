/*
 * ring.h - slots of work, done by threads in the order in which they are posted.
 *
 * Terms. A *post* is a slot with a number of items; it may be *taken* when all its items are done. The result
 * does not depend on which thread does which item.
 */
#ifndef HVT_DATA_RING_H
#define HVT_DATA_RING_H

#include "base_impl.h"

typedef struct hvt__ring hvt__ring;

/* Does item i of a slot. worker: 0 ... workers - 1; 0 if the caller works. */
typedef hvt_status hvt__ring_fn(void *ctx, int worker, int slot, int item);

typedef struct hvt__ring_opts {
    int slots, workers; /* without workers, hvt__ring_take() does the work: */
    /* it calls job(job_ctx, item, worker) for all items by this function; NULL: one after the other */
    void (*each)(void *ctx, int items, void (*job)(void *job_ctx, int item, int worker), void *job_ctx);
    const int *cpus; /* [ncpus] processors for workers; ncpus 0: the caller's */
    int ncpus;
    hvt__ring_fn *work;
    /* Announcing items some time before they are done: image_of, called with the ring's lock, gives an item's
     * image; a worker then calls ahead. NULL: no announcements. */
    uint32_t (*image_of)(void *ctx, int slot, int item);
    void (*ahead)(void *ctx, int worker, uint32_t image);
    void *ctx;
} hvt__ring_opts;

/* Workers block all signals and have a low priority. Errors: E_MEM. */
hvt_status hvt__ring_open(const hvt__ring_opts *opts, hvt__ring **ret_ring);
void hvt__ring_close(hvt__ring **ring); /* finishes items in progress first */
/* Slots are posted in turn: 0, 1, ..., slots - 1, 0, ...; each must have been taken before. */
void hvt__ring_post(hvt__ring *r, int slot, int items);
/* Waits for all items of a slot. Returns the error of the lowest item that failed. Taking a slot again
 * returns the error again or, without workers, does the work again. */
hvt_status hvt__ring_take(hvt__ring *r, int slot);
/* Waits for items in progress and drops all posts. The next post is slot 0. */
void hvt__ring_drop(hvt__ring *r);

#endif /* HVT_DATA_RING_H */
