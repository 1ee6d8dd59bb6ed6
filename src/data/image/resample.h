/* resample.h - the interface between resample.c and the kernels of resample_kernels.c. */
#ifndef HVT_IMAGE_RESAMPLE_H
#define HVT_IMAGE_RESAMPLE_H

#include "image_impl.h"

enum { PAIR = 2 /* rows */, GROUP = 8 /* outputs per step of a kernel */ };

static inline size_t round_up(size_t n, size_t to)
{
    return (n + to - 1) / to * to;
}

/* The working memory for rows of outputs. Vertical passes compute one row at a time, horizontal passes two,
 * which have the same weights. A kernel may write up to GROUP outputs and 16 bytes beyond the end. */
typedef struct hvt__resample_pass {
    const uint8_t **rows;   /* [down taps] */
    size_t bytes;           /* needed bytes of a row */
    int16_t *to;            /* one of `between` */
    int16_t *between[PAIR]; /* [bytes], and slack */
    const hvt__axis *across;
    int pairs;           /* pairs of taps of `across` */
    int32_t *at;         /* [across count, rounded up] index in `between` of an output's first input */
    int16_t *spread;     /* weights of `across`, and more, in the vector kernels' layout */
    uint8_t *line[PAIR]; /* [across count * 3] */
} hvt__resample_pass;

typedef void hvt__across_kernel(const hvt__resample_pass *p);

typedef struct hvt__resample_kernels {
    const char *name;
    void (*down)(const hvt__resample_pass *p, const int16_t *weight, int taps);
    hvt__across_kernel *(*prepare)(hvt__resample_pass *p); /* fills `spread` for the kernel that it returns */
} hvt__resample_kernels;

/* Returns the kernels of the strongest instruction set that this processor has, or of the set that a test
 * chose. */
const hvt__resample_kernels *hvt__strongest_kernels(void);

#endif /* HVT_IMAGE_RESAMPLE_H */
