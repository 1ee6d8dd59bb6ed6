/*
 * collectives.h - for tests of the public collectives: every comm and type, elements of any type as doubles,
 * and parts of any size.
 */
#ifndef HVT_COLLECTIVES_H
#define HVT_COLLECTIVES_H

#include "sums.h"
#include "config.h"
#include "hvt/collective.h"

#include <math.h>

static __thread hvt_comm *c; /* under test */

static const char *const comms[] = {"self", "shm", "mpi", "hier"};

static inline bool comm_is_here(const char *name)
{
    int levels;

    if (!strcmp(name, "self"))
        return size == 1;
    if (!strcmp(name, "hier"))
        return HVT_HAVE_MPI && hvt__levels_inside(world, &levels) == HVT_OK;
    return HVT_HAVE_MPI || strcmp(name, "mpi");
}

/* A main() that runs the truths on every available comm. */
static inline int on_every_comm(void (*truths)(void))
{
    if (!ranks_open())
        return 1;
    for (size_t i = 0; i < HVT_LEN(comms); i++) {
        if (!comm_is_here(comms[i]))
            continue;
        printf("comm %s\n", comms[i]);
        CHECK_OK(hvt_comm_open(comms[i], world, dev, &c));
        if (c)
            truths();
        hvt_comm_close(&c);
    }
    return ranks_done();
}

static const hvt_dtype types[] = {HVT_F32, HVT_F16, HVT_BF16, HVT_F64, HVT_I8, HVT_U8, HVT_I32, HVT_I64};
enum { TYPES = HVT_LEN(types) };

static inline bool is_integer(hvt_dtype t)
{
    return t == HVT_I8 || t == HVT_U8 || t == HVT_I32 || t == HVT_I64;
}

static inline void put(hvt_dtype t, void *buf, size_t i, double v)
{
    float f = (float)v;

    switch (t) {
    case HVT_F64:
        ((double *)buf)[i] = v;
        break;
    case HVT_I8:
        ((int8_t *)buf)[i] = (int8_t)v;
        break;
    case HVT_U8:
        ((uint8_t *)buf)[i] = (uint8_t)v;
        break;
    case HVT_I32:
        ((int32_t *)buf)[i] = (int32_t)v;
        break;
    case HVT_I64:
        ((int64_t *)buf)[i] = (int64_t)v;
        break;
    default:
        dev->ops->vector.cast(dev, 1, 1, &f, HVT_F32, (char *)buf + i * hvt_dtype_size(t), t);
    }
}

static inline double get(hvt_dtype t, const void *buf, size_t i)
{
    float f;

    switch (t) {
    case HVT_F64:
        return ((const double *)buf)[i];
    case HVT_I8:
        return ((const int8_t *)buf)[i];
    case HVT_U8:
        return ((const uint8_t *)buf)[i];
    case HVT_I32:
        return ((const int32_t *)buf)[i];
    case HVT_I64:
        return (double)((const int64_t *)buf)[i];
    default:
        dev->ops->vector.cast(dev, 1, 1, (const char *)buf + i * hvt_dtype_size(t), t, &f, HVT_F32);
        return (double)f;
    }
}

/* v rounded to its type */
static inline double rounded(hvt_dtype t, double v)
{
    char room[8];

    put(t, room, 0, v);
    return get(t, room, 0);
}

/* How the elements are distributed over the ranks. */
enum { EQUAL, ODD_EMPTY, ONE_HAS_ALL, ODD, SHAPES };
static inline size_t lay_parts(int shape, size_t *counts)
{
    size_t total = 0;

    for (int r = 0; r < size; r++) {
        counts[r] = (size_t[]){11, r % 2 ? 0 : (size_t)(r + 3), r == size - 1 ? 1000 : 0,
                               (size_t)(17 * (r + 1) % 23)}[shape];
        total += counts[r];
    }
    return total;
}

#endif /* HVT_COLLECTIVES_H */
