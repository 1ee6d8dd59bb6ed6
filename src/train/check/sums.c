/*
 * A small and a large sum, like a run's statistics and buckets. Each is repeated for a moment and compared
 * with the expected sum; its time is the median.
 */
#include "check_impl.h"
#include "base_impl.h"

#include <math.h>

enum { SMALL = 16, LARGE = (8 << 20) / 4, REPEATS = 200 }; /* floats */

typedef struct exchange {
    hvt_world *world;
    hvt_device *dev;
    hvt_comm *comm;
    float *host, *buf;
} exchange;

/* Rank r's element i; sums of up to 2^15 ranks are exact. */
static float element(int r, size_t i)
{
    return (float)(r + (int)(i % 7) + 1);
}

static hvt_status sum_once(const exchange *x, size_t count, double *ret_seconds, int *ret_wrong)
{
    const int n = hvt_world_size(x->world), rank = hvt_world_rank(x->world);
    hvt_ticket ticket;
    double began;

    for (size_t i = 0; i < count; i++)
        x->host[i] = element(rank, i);
    HVT_TRY(hvt_device_upload(x->dev, x->buf, x->host, count * sizeof *x->host));
    HVT_TRY(hvt_world_barrier(x->world));
    began = hvt__now();
    HVT_TRY(hvt_comm_allreduce(x->comm, x->buf, count, HVT_F32, &ticket));
    HVT_TRY(hvt_comm_wait(x->comm, ticket));
    HVT_TRY(hvt_device_sync(x->dev));
    *ret_seconds = hvt__now() - began;
    HVT_TRY(hvt_device_download(x->dev, x->host, x->buf, count * sizeof *x->host));
    for (size_t i = 0; i < count; i++)
        *ret_wrong += x->host[i] != (float)n * (float)(i % 7 + 1) + 0.5f * (float)n * (float)(n - 1);
    return HVT_OK;
}

/* Sums for about `seconds`, but at least three times; the ranks agree how often. Returns the median. */
static hvt_status sum_for(const exchange *x, size_t count, double seconds, double *ret_median, int *ret_wrong)
{
    double took[REPEATS], longest;
    int n = 0, often = 3;

    while (n < often) {
        HVT_TRY(sum_once(x, count, &took[n], ret_wrong));
        longest = took[n];
        if (++n == 2) { /* the first one warms up */
            HVT_TRY(hvt_world_allreduce(x->world, HVT_MAX, &longest, 1));
            often = (int)fmin(fmax(3, seconds / (longest + 1e-4)), REPEATS);
        }
    }
    hvt__sort(took + 1, (size_t)n - 1);
    *ret_median = took[1 + (n - 1) / 2];
    return HVT_OK;
}

static hvt_status open_exchange(const hvt_options *o, exchange *x)
{
    const size_t bytes = LARGE * sizeof *x->host;

    x->host = malloc(bytes);
    HVT_TRY(hvt_world_agree(x->world,
                            x->host ? HVT_OK : HVT_FAIL(E_MEM, "no memory for a sum of %zu bytes", bytes)));
    HVT_TRY(hvt_world_agree(x->world, hvt_comm_set_cutoffs(o->comm_cutoffs, false)));
    HVT_TRY(hvt_world_agree(x->world, hvt_comm_open(o->comm, x->world, x->dev, &x->comm)));
    return hvt_world_agree(x->world, hvt_comm_alloc(x->comm, bytes, (void **)&x->buf));
}

hvt_status hvt__check_sums(const hvt_options *opts, hvt_world *world, hvt_device *dev, hvt__sums *ret_sums)
{
    hvt__sums sums = {.small_bytes = SMALL * sizeof(float), .large_bytes = LARGE * sizeof(float)};
    exchange x = {.world = world, .dev = dev};
    int64_t wrong;
    hvt_status s;

    HVT_TRY_OR(done, open_exchange(opts, &x));
    HVT_TRY_OR(done, sum_for(&x, SMALL, 0.1, &sums.small, &sums.wrong));
    HVT_TRY_OR(done, sum_for(&x, LARGE, 0.5, &sums.large, &sums.wrong));
    wrong = sums.wrong;
    HVT_TRY_OR(done, hvt_world_allreduce(world, HVT_MAX, &sums.small, 1)); /* the slowest rank's */
    HVT_TRY_OR(done, hvt_world_allreduce(world, HVT_MAX, &sums.large, 1));
    HVT_TRY_OR(done, hvt_world_allreduce_i64(world, HVT_SUM, &wrong, 1));
    sums.wrong = wrong < INT32_MAX ? (int)wrong : INT32_MAX;
    snprintf(sums.comm, sizeof sums.comm, "%s", hvt_comm_name(x.comm));
    *ret_sums = sums;
done:
    hvt_comm_release(x.comm, x.buf);
    hvt_comm_close(&x.comm);
    free(x.host);
    return s;
}
