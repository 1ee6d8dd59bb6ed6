/*
 * formula.h - the arithmetic of every elementwise op, once.
 *
 * A text for one type: whoever includes it defines F, a float or a vector of floats, and
 *     f_fma(a, b, c)   a*b + c, rounded once where the processor can do that fast (ref: always)
 *     f_relu(x)        0 > x ? 0 : x, so that a NaN stays one
 *     f_keep(y, d)     y > 0 ? d : 0
 * so that ref and the cpu's vectors, their bodies and their tails, do the same roundings: equal bits,
 * wherever a span is cut. The one exception: the portable set on a processor without fma rounds products
 * by themselves (fmaf would be a function call of some 20 ns), and differs from ref in the last place.
 *
 * Included by src/device. Nothing else.
 */

/* torch.optim.SGD. g is the sum of all gradients; keep = 1 - dampening. */
typedef struct sgd_consts {
    F scale, decay, momentum, keep, minus_lr;
} sgd_consts;

static inline F sgd_gradient(const sgd_consts *k, F g, F w)
{
    return f_fma(k->decay, w, k->scale * g);
}

static inline F sgd_velocity(const sgd_consts *k, F g, F v)
{
    return f_fma(k->momentum, v, k->keep * g);
}

static inline F sgd_nesterov(const sgd_consts *k, F g, F v)
{
    return f_fma(k->momentum, v, g);
}

static inline F sgd_step(const sgd_consts *k, F w, F direction)
{
    return f_fma(k->minus_lr, direction, w);
}

/* Batch norm. a = gamma * rstd. (x - mean first: with a folded shift, beta - mean * a, a mean that is large
 * against the deviation would cost digits.) */
static inline F bn_value(F x, F mean, F a, F beta)
{
    return f_fma(x - mean, a, beta);
}

/* dx = a * (dz - sum(dz)/count - xhat * sum(dz*xhat)/count); b = sum(dz)/count,
 * c = rstd * sum(dz*xhat)/count */
static inline F bn_dx(F x, F mean, F a, F b, F c, F dz)
{
    return a * f_fma(mean - x, c, dz - b);
}

static inline F bn_moving(F run, F moment, F rate, F keep, F scale)
{
    return f_fma(rate, scale * moment, keep * run);
}
