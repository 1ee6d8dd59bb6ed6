/*
 * step.h - the decision of a step: whether it updates, the next loss scale, whether the run ends.
 *
 * One source for all devices: host devices call it, and a GPU kernel of one thread is compiled from it (there
 * HVT_FN makes it a host and device function). All ranks pass the same sums and the same `bad`, so they
 * decide alike without communication.
 *
 *   ranks differ             stop, see hvt__step_agrees().
 *   loss not finite          stop. Nothing is applied or counted; no scale would help.
 *   gradients not finite     skip: parameters stay unchanged. The scale changes as in torch.amp.GradScaler:
 *                            times `backoff` now, times `growth` after `interval` updates in a row. At
 *                            `floor` it cannot fall, and the next such step stops the run; so do
 *                            HVT__SKIPS_MOST of them in a row with a fixed scale, which would never end.
 *   else                     update. Only these count for the bias of an optimizer's averages, and for the
 *                            average of the weights. Gradients are clipped with clip_norm.
 *
 * Included by src/device and cuda/. Nothing else.
 */
#ifndef HVT_STEP_H
#define HVT_STEP_H

#include "device_impl.h"
#include "half.h" /* HVT_FN */
#include "squares.h"

#include <math.h>

enum { HVT__SKIPS_MOST = 100 };

HVT_FN bool hvt__is_finite(float x)
{
    return x - x == 0;
}

/* Lower the scale after non-finite gradients. False: the run cannot continue. */
HVT_FN bool hvt__step_back_off(hvt_step_state *s)
{
    s->skips_in_row++;
    if (!s->interval)
        return s->skips_in_row < HVT__SKIPS_MOST;
    if (s->loss_scale <= s->floor)
        return false;
    s->loss_scale *= s->backoff;
    if (s->loss_scale < s->floor)
        s->loss_scale = s->floor;
    s->good = 0;
    return true;
}

/* By squaring, so that every device gets the same bits. */
HVT_FN double hvt__power(double x, int64_t n)
{
    double p = 1;

    for (; n; n >>= 1, x *= x)
        if (n & 1)
            p *= x;
    return p;
}

/* Averages that start at 0 are too small by 1 - beta^t; see torch/optim/adam.py. */
HVT_FN void hvt__step_count_update(hvt_step_state *s)
{
    s->updates++;
    s->bias[0] = (float)(1 / (1 - hvt__power(s->beta[0], s->updates)));
    s->bias[1] = (float)(1 / sqrt(1 - hvt__power(s->beta[1], s->updates)));
}

/* As torch.optim.swa_utils.AveragedModel: the first average is a copy; an integer's is rounded down. */
HVT_FN void hvt__step_average(hvt_step_state *s)
{
    int64_t tracked = s->tracked + 1;
    double decay = s->ema_every ? s->ema_decay : (double)s->ema_count / (double)(s->ema_count + 1);
    float mean;

    if (s->ema_every ? (s->updates - 1) % s->ema_every != 0 : !s->average)
        return;
    s->ema_share = s->ema_count++ ? (float)(1 - decay) : 1;
    mean = (float)s->ema_tracked * (float)decay;
    mean = mean + (float)tracked * (float)(1 - decay);
    s->ema_tracked = s->ema_share == 1 ? tracked : (int64_t)mean;
}

/* formula.h's adam_consts, as floats */
typedef struct hvt__adam_numbers {
    float scale, decay, keep1, beta2, keep2, shrink, minus_rate, root, eps;
} hvt__adam_numbers;

HVT_FN hvt__adam_numbers hvt__adam_numbers_of(const hvt_adam_args *a)
{
    const hvt_step_state *s = a->step;
    hvt__adam_numbers k;

    k.scale = s->grad_scale;
    k.decay = a->decoupled ? 0 : a->weight_decay;
    k.keep1 = (float)(1 - a->beta[0]);
    k.beta2 = (float)a->beta[1];
    k.keep2 = (float)(1 - a->beta[1]);
    k.shrink = a->decoupled ? (float)(1 - (double)s->lr * a->weight_decay) : 1;
    k.minus_rate = -s->lr * s->bias[0];
    k.root = s->bias[1];
    k.eps = a->eps;
    return k;
}

HVT_FN void hvt__step_grow(hvt_step_state *s)
{
    float grown = s->loss_scale * s->growth;

    s->skips_in_row = 0;
    if (!s->interval || ++s->good != s->interval)
        return;
    s->good = 0;
    if (hvt__is_finite(grown))
        s->loss_scale = grown;
}

/* As torch.nn.utils.clip_grad_norm_. squares: the sum of the gradients' squares. */
HVT_FN void hvt__step_clip(hvt_step_state *s, double squares)
{
    double norm = sqrt(squares) * (double)s->grad_scale, factor = s->clip_norm / (norm + 1e-6);

    if (factor < 1)
        s->grad_scale = (float)(s->grad_scale * factor);
}

/*
 * True if all ranks have the same inputs for this step. Each rank contributes 1 and, for some words h of a
 * hash of its inputs, h and h*h. The sums are N, sum h and sum h*h, all exact, since they are integers below
 * 2^24. N times the sum of squares equals the square of the sum only if all h are equal (Cauchy-Schwarz).
 * Every rank sees the same sums, so no message is needed and all ranks notice in the same step.
 */
HVT_FN bool hvt__step_agrees(const float *agreement)
{
    for (int i = 1; i < HVT__STEP_AGREEMENT; i += 2)
        if ((double)agreement[0] * agreement[i + 1] != (double)agreement[i] * agreement[i])
            return false;
    return true;
}

/* sums [HVT__STEP_SUMS] over the global batch: loss, agreement check, and votes, 1 for each rank that votes.
 */
HVT_FN void hvt__step_decide(hvt_step_state *s, const float *sums)
{
    const float *agreement = sums + HVT__SUMS, *votes = agreement + HVT__STEP_AGREEMENT;
    const double count = s->pixels > 0 ? (double)sums[HVT__SUM_PIXELS] : s->images;
    /* 0 if no pixel has a label: then loss and gradients are 0, too */
    const double weight = s->weighted && sums[HVT__SUM_WEIGHT] > 0 ? (double)sums[HVT__SUM_WEIGHT] : 1;
    const double divisor = !s->weighted ? s->images : s->pixels > 0 ? weight / (double)s->pixels : weight;
    const float loss = sums[HVT__SUM_LOSS];
    const double squares = s->clip_norm > 0 ? hvt__squares_take(s->squares) : 0;
    uint64_t bad = s->bad;
    hvt_stop why = HVT_STOP_NOT;

    s->steps++;
    s->bad = UINT64_MAX;
    if (s->apply)
        s->fresh = 0;
    s->apply = 0;
    s->ema_share = 0;
    if (s->stop)
        return;
    if (!hvt__step_agrees(agreement)) {
        why = HVT_STOP_DISAGREE;
    } else if (!hvt__is_finite(loss)) {
        why = HVT_STOP_LOSS;
    } else {
        s->grad_scale = (float)(1 / (divisor * (double)s->loss_scale));
        s->apply = bad == UINT64_MAX;
        if (s->apply) {
            if (s->clip_norm > 0)
                hvt__step_clip(s, squares);
            hvt__step_grow(s);
            hvt__step_count_update(s);
            hvt__step_average(s);
        } else if (hvt__step_back_off(s)) {
            s->skipped++;
        } else {
            why = HVT_STOP_SCALE;
        }
    }
    if (why != HVT_STOP_NOT) {
        s->stop = why;
        s->stop_step = s->steps;
        s->stop_loss = loss;
        s->stop_bad = bad;
        return;
    }
    for (int i = 0; i < HVT__SUMS; i++)
        s->sums[i] += (double)sums[i] * (i == HVT__SUM_LOSS && s->weighted ? count / weight : 1);
    s->count += (int64_t)count;
    for (int i = 0; i < HVT__STEP_VOTES; i++)
        s->votes[i] += (int64_t)votes[i];
}

#endif /* HVT_STEP_H */
