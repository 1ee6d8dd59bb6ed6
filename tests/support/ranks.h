/*
 * ranks.h - for tests that run alone, under mpirun and on threads: the world of all ranks and a plain device.
 * Every rank checks; a failure on any of them fails the program on all.
 */
#ifndef HVT_RANKS_H
#define HVT_RANKS_H

#include "threads.h"
#include "base_impl.h"
#include "comm/comm_internal.h"
#include "world/world_internal.h"

static __thread hvt_world *world;
static __thread hvt_device *dev;
static __thread int rank, size;

/* False, with a message, on failure. */
static inline bool ranks_open(void)
{
    threads_begin();
    if (threads_open(&world) != HVT_OK || hvt_device_open("ref", NULL, &dev) != HVT_OK) {
        fprintf(stderr, "%s\n%s", hvt_last_error(), hvt_last_trace());
        return false;
    }
    rank = hvt_world_rank(world);
    size = hvt_world_size(world);
    return true;
}

static inline bool ranks_are_alone(void)
{
    return !strcmp(hvt_world_name(world), "singleton");
}

/* The comm that sends messages: "mpi" or "tcp". */
static inline const char *over_messages(void)
{
    return world->ops->comm ? world->ops->comm : "none";
}

/* The exit code. */
static inline int ranks_done(void)
{
    double sums[] = {check_failed, check_ran};

    CHECK_OK(hvt_world_allreduce(world, HVT_SUM, sums, 2));
    hvt_device_close(&dev);
    threads_close(&world);
    check_done();
    return sums[0] != 0 ? 1 : sums[1] != 0 ? 0 : 77;
}

#endif /* HVT_RANKS_H */
