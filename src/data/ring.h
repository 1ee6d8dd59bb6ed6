/*
 * ring.h - slots of work, done by threads in the order in which they are posted.
 *
 * Words. A *post* is a slot with a number of items; it may be *taken* when all its items are done. Which
 * thread does which item never changes what is done.
 */
#ifndef HVT_DATA_RING_H
#define HVT_DATA_RING_H

#include "base_impl.h"

typedef struct hvt__ring hvt__ring;

/* Do item i of a slot; worker: 0 ... workers - 1, or 0 where the caller works. */
typedef hvt_status hvt__ring_fn(void *ctx, int worker, int slot, int item);

typedef struct hvt__ring_opts {
    int slots, workers; /* no workers: hvt__ring_take() does the work, */
    /* and calls job(job_ctx, item, worker) for all items by this function; NULL: one after the other */
    void (*each)(void *ctx, int items, void (*job)(void *job_ctx, int item, int worker), void *job_ctx);
    const int *cpus; /* [ncpus] where workers may run; ncpus 0: where the caller may */
    int ncpus;
    hvt__ring_fn *work;
    /* Announced before its turn, some items ahead: which image an item is, asked for with the ring's lock;
     * and what a worker does about it. NULL: nothing is announced. */
    uint32_t (*image_of)(void *ctx, int slot, int item);
    void (*ahead)(void *ctx, int worker, uint32_t image);
    void *ctx;
} hvt__ring_opts;

/* Workers take no signals, and give way to computing threads. Errors: E_MEM. */
hvt_status hvt__ring_open(const hvt__ring_opts *opts, hvt__ring **ret_ring);
void hvt__ring_close(hvt__ring **ring); /* items that have begun are finished first */
/* Slots are posted in turn: 0, 1, ..., slots - 1, 0, ...; each must have been taken before. */
void hvt__ring_post(hvt__ring *r, int slot, int items);
/* Wait for all its items. The error is that of the first item that failed. Taking it again gives the error
 * again or, without workers, does the work again. */
hvt_status hvt__ring_take(hvt__ring *r, int slot);
/* Forget what has been posted, after waiting for items that have begun. The next post is slot 0. */
void hvt__ring_drop(hvt__ring *r);

#endif /* HVT_DATA_RING_H */
