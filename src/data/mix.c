/*
 * mixup (Zhang et al. 2018) and CutMix (Yun et al. 2019), as torchvision.transforms.v2 0.29 defines them
 * (v2/_augment.py): one draw for a batch; each image is mixed with the one before it, the first with the
 * last.
 *
 * The share is Beta(alpha, alpha), a quotient of two gamma variates by Marsaglia and Tsang (2000). Draws are
 * keyed by seed, epoch, and the position of the batch's first image in the epoch's order: they depend neither
 * on ranks nor on the step at which a run continues.
 */
#include "mix.h"
#include "base_impl.h"

#include <math.h>

enum { DRAW_MIX = 0x0a00 }; /* the first key; the loader's keys begin at 0x0c00 */

typedef struct draws {
    uint64_t seed, epoch, first, next;
} draws;

/* uniform in (0, 1) */
static double uniform(draws *d)
{
    uint64_t bits = hvt__draw(d->seed, d->epoch, d->first, d->next++);

    return ((double)(bits >> 12) + .5) * 0x1p-52;
}

static double normal(draws *d)
{
    double radius = sqrt(-2 * log(uniform(d)));

    return radius * cos(2 * M_PI * uniform(d));
}

/* Draws the logarithm of a gamma variate, because variates of a small alpha underflow. */
static double log_gamma(draws *d, double alpha)
{
    const double shift = alpha + 1 - 1.0 / 3, scale = 1 / sqrt(9 * shift); /* alpha + 1 is at least 1 */

    for (;;) {
        double x = normal(d), v = 1 + scale * x, u = log(uniform(d));

        v = v * v * v;
        if (v > 0 && u < .5 * x * x + shift * (1 - v + log(v)))
            return log(shift * v) + log(uniform(d)) / alpha;
    }
}

static double beta(draws *d, double alpha)
{
    double x = log_gamma(d, alpha), y = log_gamma(d, alpha);

    return 1 / (1 + exp(y - x));
}

static int clamp(int x, int most)
{
    return x < 0 ? 0 : x > most ? most : x;
}

hvt__mixture hvt__mix_draw(const hvt_loader_opts *o, int h, int w, int epoch, uint64_t first)
{
    draws d = {o->seed, (uint64_t)epoch, first, DRAW_MIX};
    bool both = o->mixup > 0 && o->cutmix > 0, cut = both ? uniform(&d) < .5 : o->cutmix > 0;
    double share = beta(&d, (double)(cut ? o->cutmix : o->mixup)), half = .5 * sqrt(1 - share);
    int y = (int)(uniform(&d) * h), x = (int)(uniform(&d) * w), down = (int)(half * h),
        across = (int)(half * w);

    if (!cut)
        return (hvt__mixture){(float)share, 0, 0, h, w};
    return (hvt__mixture){0, clamp(y - down, h), clamp(x - across, w), clamp(y + down, h),
                          clamp(x + across, w)};
}

hvt_status hvt__mix_targets(const hvt__mixture *m, int h, int w, int classes, int count,
                            const int32_t *labels, float *ret_targets, int32_t *ret_labels)
{
    double part = (double)(m->bottom - m->top) * (m->right - m->left) / ((double)h * w);
    float other = (float)(part * (1 - (double)m->share)), own = 1 - other;
    int32_t before = count ? labels[count - 1] : 0;

    memset(ret_targets, 0, (size_t)count * (size_t)classes * sizeof *ret_targets);
    for (int n = 0; n < count; n++) {
        float *row = ret_targets + (size_t)n * (size_t)classes;
        int32_t label = labels[n];

        HVT_CHECK(label >= 0 && label < classes, E_ARG,
                  "an image has label %d, but mixed images have targets of %d classes", label, classes);
        row[label] += own;
        row[before] += other;
        ret_labels[n] = other > own ? before : label;
        before = label;
    }
    return HVT_OK;
}
