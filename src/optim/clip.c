/*
 * Clipping by the norm of all gradients, as torch.nn.utils.clip_grad_norm_ does it.
 *
 * The sum of squares is exact as soon as it leaves a block of 16 neighbours, so it does not depend on the
 * order of additions, and ranks may add up their slices in any way: a block's sum, a double, is cut at
 * multiples of 32 binary places and added to integers, one for each such place that a square of a float can
 * reach. Buckets, pieces and slices are cut at multiples of 16 elements, so nobody has a part of a block.
 *
 * A gradient that is not finite is found before and skips the update; the norm does not matter then.
 */
#include "dist.h"
#include "base_impl.h"

#include <math.h>

enum { BLOCK = 16, WIDTH = 32, LOWEST = -384, BINS = 24 /* 2^-384 to 2^384: a square has 2^-298 to 2^256 */ };

/* The squares of floats are exact doubles; added in one order. */
static double block_sum(const float *g, size_t n)
{
    double sum = 0;

    for (size_t i = 0; i < n; i++)
        sum += (double)g[i] * g[i];
    return sum;
}

/* x >= 0 is finite: 53 bits that begin somewhere in a bin, and end in the second one above it. */
static void add_exactly(int64_t bin[BINS], double x)
{
    int exponent, at;
    uint64_t bits, low;

    if (!(x > 0) || !isfinite(x))
        return;
    bits = (uint64_t)ldexp(frexp(x, &exponent), 53);
    at = exponent - 53 - LOWEST;
    low = (bits & UINT32_MAX) << at % WIDTH;
    bits = (bits >> WIDTH) << at % WIDTH;
    at /= WIDTH;
    bin[at] += (int64_t)(low & UINT32_MAX);
    bin[at + 1] += (int64_t)(low >> WIDTH) + (int64_t)(bits & UINT32_MAX);
    bin[at + 2] += (int64_t)(bits >> WIDTH);
}

static double sum_of(const int64_t bin[BINS])
{
    double sum = 0;

    for (int k = 0; k < BINS; k++)
        sum += ldexp((double)bin[k], LOWEST + k * WIDTH);
    return sum;
}

hvt_status hvt__clip_norm(hvt_distopt *d)
{
    const hvt_model *m = d->optim->m;
    int64_t bin[BINS] = {0};

    if (m->step->bad != UINT64_MAX)
        return HVT_OK;
    for (const hvt_bucket *b = d->bucket; b < d->bucket + d->nbucket; b++) {
        size_t at = b->own_first < m->step_stats_count ? m->step_stats_count : b->own_first;

        for (; at < b->own_end; at += BLOCK)
            add_exactly(bin, block_sum(d->grads + at, b->own_end - at < BLOCK ? b->own_end - at : BLOCK));
    }
    if (d->opts.update == HVT_UPDATE_SHARDED)
        HVT_TRY(hvt_world_allreduce_i64(d->world, HVT_SUM, bin, BINS));
    d->norm = sqrt(sum_of(bin));
    return HVT_OK;
}

void hvt__clip_apply(hvt_distopt *d)
{
    hvt_step_state *s = d->optim->m->step;
    double norm = d->norm * (double)s->grad_scale, factor = d->opts.clip_norm / (norm + 1e-6);

    if (s->apply && factor < 1)
        s->grad_scale = (float)(s->grad_scale * factor);
}
