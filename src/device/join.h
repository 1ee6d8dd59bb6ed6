/*
 * join.h - batch norm over several shards: joins the shards' statistics.
 *
 * One source for all devices, like step.h. Every rank has the parts of all shards and joins them in the same
 * order, in f64, so the result does not depend on the distribution of shards over ranks.
 *
 * Included by src/device and cuda/. Nothing else.
 */
#ifndef HVT_JOIN_H
#define HVT_JOIN_H

#include "device_impl.h"
#include "half.h" /* HVT_FN */

#include <math.h>

HVT_FN const float *hvt__join_part(const hvt_bn_join_args *a, int shard)
{
    return a->part + (size_t)a->shard[shard].place * a->stride;
}

HVT_FN double hvt__join_rows(const hvt_bn_join_args *a, int shard)
{
    return (double)a->shard[shard].images * a->pixels;
}

/* Channel i of parts with mean and squared deviations, joined one after the other by Chan, Golub and LeVeque
 * 1979. */
HVT_FN void hvt__join_moments(const hvt_bn_join_args *a, int i)
{
    double n = 0, mean = 0, m2 = 0;

    for (int s = 0; s < a->shards; s++) {
        const float *part = hvt__join_part(a, s);
        double rows = hvt__join_rows(a, s), all = n + rows, off = part[i] - mean;

        mean += off * (rows / all);
        m2 += part[a->c + i] + off * off * (n * rows / all);
        n = all;
    }
    a->joined[i] = (float)mean;
    a->joined[a->c + i] = (float)(1 / sqrt(m2 / n + (double)a->eps));
    a->moments[i] = (float)mean;
    a->moments[a->c + i] = (float)(m2 / (n > 1 ? n - 1 : 1));
}

/* Channel i of parts with dgamma and dbeta: share from dbeta, slope from dgamma. */
HVT_FN void hvt__join_sums(const hvt_bn_join_args *a, int i)
{
    double n = 0, dgamma = 0, dbeta = 0;

    for (int s = 0; s < a->shards; s++) {
        const float *part = hvt__join_part(a, s);

        n += hvt__join_rows(a, s);
        dgamma += part[i];
        dbeta += part[a->c + i];
    }
    a->joined[i] = (float)(dbeta / n);
    a->joined[a->c + i] = (float)(dgamma / n);
}

#endif /* HVT_JOIN_H */
