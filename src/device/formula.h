/*
 * formula.h - the arithmetic of every elementwise op, defined once.
 *
 * A template for one type: the including file (scalar.h, cpu/kernels/elementwise_tmpl.c) defines F, a float
 * or a vector of floats; M, as many integers, the result of comparing two F, nonzero where true; and
 *     f_fma(a, b, c)   a*b + c, rounded once where the processor can do that fast (ref: always)
 *     f_relu(x)        0 > x ? 0 : x, which keeps NaN
 *     f_keep(y, d)     y <= 0 ? 0 : d, so that d passes where y is NaN, as in PyTorch (threshold_backward)
 *     U, I             unsigned and signed integers of 32 bits, of the same count
 *     f_sqrt(x)        rounded once
 * so that ref, the cpu's vectors, in loop bodies and tails, and GPU threads round alike, wherever a span is
 * split. Exception: the portable set on a processor without fma rounds products separately (fmaf() would be a
 * function call of some 20 ns), and differs from ref in the last place.
 *
 * Included by src/device and cuda/. Nothing else.
 */
#include "half.h" /* HVT_FN */

#include <math.h>

/* torch.optim.SGD. g is the sum of all gradients; keep = 1 - dampening. */
typedef struct sgd_consts {
    F scale, decay, momentum, keep, minus_lr;
} sgd_consts;

HVT_FN F sgd_gradient(const sgd_consts *k, F g, F w)
{
    return f_fma(k->decay, w, k->scale * g);
}

HVT_FN F sgd_velocity(const sgd_consts *k, F g, F v)
{
    return f_fma(k->momentum, v, k->keep * g);
}

HVT_FN F sgd_nesterov(const sgd_consts *k, F g, F v)
{
    return f_fma(k->momentum, v, g);
}

HVT_FN F sgd_step(const sgd_consts *k, F w, F direction)
{
    return f_fma(k->minus_lr, direction, w);
}

/*
 * torch.optim.Adam and AdamW. g is the sum of all gradients; keep1 = 1 - beta1, keep2 = 1 - beta2. decay is
 * the weight decay and shrink 1; decoupled, decay is 0 and shrink 1 - lr * weight decay. minus_rate = -lr /
 * (1 - beta1^t), root = 1 / sqrt(1 - beta2^t).
 */
typedef struct adam_consts {
    F scale, decay, keep1, beta2, keep2, shrink, minus_rate, root, eps;
} adam_consts;

HVT_FN F adam_gradient(const adam_consts *k, F g, F w)
{
    return f_fma(k->decay, w, k->scale * g);
}

HVT_FN F adam_mean(const adam_consts *k, F g, F m)
{
    return f_fma(k->keep1, g - m, m);
}

HVT_FN F adam_square(const adam_consts *k, F g, F v)
{
    return f_fma(k->keep2 * g, g, k->beta2 * v);
}

HVT_FN F adam_step(const adam_consts *k, F w, F m, F v)
{
    return f_fma(k->minus_rate, m / f_fma(f_sqrt(v), k->root, k->eps), k->shrink * w);
}

/* torch.optim.swa_utils.get_ema_multi_avg_fn(decay), which is a lerp by share = 1 - decay */
HVT_FN F ema_next(F share, F w, F ema)
{
    return f_fma(share, w - ema, ema);
}

/* Batch norm. a = gamma * rstd. x - mean is computed first: a folded shift, beta - mean * a, would lose
 * precision if the mean is large against the deviation. */
HVT_FN F bn_value(F x, F mean, F a, F beta)
{
    return f_fma(x - mean, a, beta);
}

/* dx = a * (dz - sum(dz)/count - xhat * sum(dz*xhat)/count); b = sum(dz)/count,
 * c = rstd * sum(dz*xhat)/count */
HVT_FN F bn_dx(F x, F mean, F a, F b, F c, F dz)
{
    return a * f_fma(mean - x, c, dz - b);
}

HVT_FN F bn_running(F run, F moment, F rate, F keep, F scale)
{
    return f_fma(rate, scale * moment, keep * run);
}

/* Max pooling: true if v replaces the maximum so far. Pixels of a window come in row-major order. The first
 * of equal maxima wins, and a NaN wins over everything before it, as in PyTorch. */
HVT_FN M pooling_wins(F v, F best)
{
    return (v > best) | (v != v);
}

/*
 * Softmax cross-entropy of a row x: loss = log(sum exp(x - max)) - (x[label] - max) in nats, its gradient
 * exp(x - max) / sum - onehot.
 *
 * True if class `index` with logit x ranks before the label, whose logit is `target`: if it is larger, equal
 * with a lower index, or NaN.
 */
HVT_FN M xent_before(F x, F target, M index, M label)
{
    return (((x > target) | (x != x) | (target != target)) & (index != label)) |
           ((x == target) & (index < label));
}

/* 0, or NaN for a non-finite logit; added to the loss, since the maximum would hide it */
HVT_FN F xent_poison(F x)
{
    return x * 0;
}

/* e = exp(x - max); sum: of all e; hit: 1 for the label, else 0 */
HVT_FN F xent_grad(F e, F sum, F hit, F scale)
{
    return (e / sum - hit) * scale;
}

HVT_FN float xent_loss(double sum, float target, float max, float poison)
{
    return (float)(log(sum) - ((double)target - max)) + poison;
}

/* Label smoothing by s: the target (1 - s) * onehot + s / classes replaces `hit` above, and the logits
 * weighted by it, with `all` their sum over classes, replace x[label]. */
HVT_FN float xent_smooth_hit(float s, int classes, int hit)
{
    return (hit ? 1 - s : 0.0f) + s / (float)classes;
}

/* The same of a soft target. */
HVT_FN float xent_smooth_soft(float s, int classes, float target)
{
    return (1 - s) * target + s / (float)classes;
}

HVT_FN float xent_smooth_target(float s, int classes, float target, double all)
{
    return (float)((1 - (double)s) * (double)target + (double)s * (all / classes));
}

/* An image mixed with another one, in this order of roundings. */
HVT_FN float augment_mix(float share, float x, float other)
{
    float kept = share * x;

    return kept + (1 - share) * other;
}

/* Mean squared error of a row: gradient of an output with off = y - target. */
HVT_FN float mse_grad(float off, int outputs, float scale)
{
    return 2 * off / (float)outputs * scale;
}

/* The same of a mean absolute error. NaN stays NaN. */
HVT_FN float mae_grad(float off, int outputs, float scale)
{
    return (off > 0 ? 1.0f : off < 0 ? -1.0f : off) / (float)outputs * scale;
}

/*
 * Dropout's 32 random bits for element `index` of an image: a pure function of the index and both halves of a
 * hashed key. The upper bits, which decide, depend on all bits of the three. Fewer than two multiplications
 * would leave neighbours and keys correlated (tests/device/test_dropout.c); the constants are those of Chris
 * Wellons' lowbias32.
 */
HVT_FN U drop_bits(U index, uint32_t low, uint32_t high)
{
    U x = index + low;

    x = (x ^ x >> 16 ^ high) * 0x7feb352du;
    return (x ^ x >> 15) * 0x846ca68bu;
}

/* True if the element is kept: the bits, as a signed number, which all vector sets can compare, are at least
 * `least`. */
HVT_FN I drop_keeps(U bits, int32_t least)
{
    return (I)((I)bits >= least);
}
