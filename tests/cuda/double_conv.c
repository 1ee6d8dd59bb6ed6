/*
 * The arithmetic of cuDNN's double: sums in double, one rounding when the result is stored. Operands are
 * first gathered into dense arrays (x: N H W C, w: R S C K, or R S K C for the gradient of x, y: N P Q K; C
 * of w are a group's), so that the caller's strides are read in one place and the innermost loop runs over
 * channels.
 */
#include "double_conv.h"

#include "device/half.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

typedef struct extent {
    int64_t n, h, w, c, k, r, s, p, q;
    int64_t groups, depth, filters; /* channels and filters of a group */
} extent;

static double load(const double_tensor *t, int64_t at)
{
    switch (t->type) {
    case HVT_F16:
        return hvt__from_f16(((const uint16_t *)t->data)[at]);
    case HVT_BF16:
        return hvt__from_bf16(((const uint16_t *)t->data)[at]);
    default:
        return ((const float *)t->data)[at];
    }
}

static void store(const double_tensor *t, int64_t at, double v)
{
    switch (t->type) {
    case HVT_F16:
        ((uint16_t *)t->data)[at] = hvt__to_f16((float)v);
        break;
    case HVT_BF16:
        ((uint16_t *)t->data)[at] = hvt__to_bf16((float)v);
        break;
    default:
        ((float *)t->data)[at] = (float)v;
    }
}

size_t hvt__double_tensor_bytes(const double_tensor *t)
{
    int64_t last = 0;

    for (int i = 0; i < 4; i++)
        last += (t->dim[i] - 1) * t->stride[i];
    return (size_t)(last + 1) * (t->type == HVT_F32 ? 4 : 2);
}

/* ---- between the caller's strides and dense arrays ---------------------------------------------- */

/* Elements of a tensor in an order of its four dimensions; the last one of `order` is contiguous in dense. */
static void gather(const double_tensor *t, const int order[4], bool tf32, double *dense)
{
    const int64_t *d = t->dim, *s = t->stride;
    const int o0 = order[0], o1 = order[1], o2 = order[2], o3 = order[3];

    for (int64_t a = 0; a < d[o0]; a++)
        for (int64_t b = 0; b < d[o1]; b++)
            for (int64_t c = 0; c < d[o2]; c++)
                for (int64_t e = 0; e < d[o3]; e++) {
                    double v = load(t, a * s[o0] + b * s[o1] + c * s[o2] + e * s[o3]);

                    *dense++ = tf32 ? hvt__from_bits((hvt__bits((float)v) + 0x1000) & 0xffffe000) : v;
                }
}

/* beta of 0 does not read: what the output held may be NaN. */
static void scatter(const double_conv *j, const double_tensor *t, const int order[4], const double *dense)
{
    static unsigned runs;
    const int64_t *d = t->dim, *s = t->stride;
    const int o0 = order[0], o1 = order[1], o2 = order[2], o3 = order[3];
    double alpha = j->alpha * (j->unsteady && runs++ % 2 ? 1 + 0x1p-21 : 1);

    for (int64_t a = 0; a < d[o0]; a++)
        for (int64_t b = 0; b < d[o1]; b++)
            for (int64_t c = 0; c < d[o2]; c++)
                for (int64_t e = 0; e < d[o3]; e++) {
                    int64_t at = a * s[o0] + b * s[o1] + c * s[o2] + e * s[o3];
                    double old = j->beta != 0 ? j->beta * load(t, at) : 0;

                    store(t, at, alpha * *dense++ + old);
                }
}

/* ---- sums --------------------------------------------------------------------------------------- */

/* One tap of one output pixel, each group by itself: y[k] += x[c] * w[c][k] */
static void forward(const extent *e, const double *x, const double *w, double *restrict y)
{
    for (int64_t g = 0; g < e->groups; g++, x += e->depth, w += e->filters, y += e->filters)
        for (int64_t c = 0; c < e->depth; c++)
            for (int64_t k = 0; k < e->filters; k++)
                y[k] += x[c] * w[c * e->k + k];
}

/* x[c] += w[k][c] * y[k] */
static void backward_x(const extent *e, double *restrict x, const double *w, const double *y)
{
    for (int64_t k = 0; k < e->k; k++, w += e->depth) {
        double *to = x + k / e->filters * e->depth;

        for (int64_t c = 0; c < e->depth; c++)
            to[c] += w[c] * y[k];
    }
}

/* w[c][k] += x[c] * y[k] */
static void backward_w(const extent *e, const double *x, double *restrict w, const double *y)
{
    for (int64_t g = 0; g < e->groups; g++, x += e->depth, w += e->filters, y += e->filters)
        for (int64_t c = 0; c < e->depth; c++)
            for (int64_t k = 0; k < e->filters; k++)
                w[c * e->k + k] += x[c] * y[k];
}

static void sum(const double_conv *j, const extent *e, double *x, double *w, double *y)
{
    for (int64_t at = 0; at < e->n * e->p * e->q; at++)
        for (int64_t tap = 0; tap < e->r * e->s; tap++) {
            int64_t n = at / (e->p * e->q), p = at / e->q % e->p, q = at % e->q;
            int64_t h = p * j->stride[0] - j->pad[0] + tap / e->s * j->dilation[0];
            int64_t i = q * j->stride[1] - j->pad[1] + tap % e->s * j->dilation[1];
            double *px = x + ((n * e->h + h) * e->w + i) * e->c;
            double *pw = w + tap * e->depth * e->k, *py = y + at * e->k;

            if (h < 0 || h >= e->h || i < 0 || i >= e->w)
                continue;
            if (j->kind == DOUBLE_FORWARD)
                forward(e, px, pw, py);
            else if (j->kind == DOUBLE_BACKWARD_X)
                backward_x(e, px, pw, py);
            else
                backward_w(e, px, pw, py);
        }
}

static double *zeros(int64_t count)
{
    double *p = calloc((size_t)count, sizeof *p);

    assert(p);
    return p;
}

static int64_t elements(const double_tensor *t)
{
    return t->dim[0] * t->dim[1] * t->dim[2] * t->dim[3];
}

void hvt__double_conv_run(void *ctx)
{
    static const int channels_last[4] = {0, 2, 3, 1}, filters_last[4] = {2, 3, 1, 0},
                     taps_first[4] = {2, 3, 0, 1};
    const double_conv *j = ctx;
    const int64_t groups = j->x.dim[1] / j->w.dim[1];
    const extent e = {j->x.dim[0], j->x.dim[2], j->x.dim[3], j->x.dim[1], j->w.dim[0], j->w.dim[2],
                      j->w.dim[3], j->y.dim[2], j->y.dim[3], groups,      j->w.dim[1], j->w.dim[0] / groups};
    double *x = zeros(elements(&j->x)), *w = zeros(elements(&j->w)), *y = zeros(elements(&j->y));

    if (j->workspace_bytes)
        memset(j->workspace, 0xff, j->workspace_bytes);
    if (j->kind != DOUBLE_BACKWARD_X)
        gather(&j->x, channels_last, j->tf32, x);
    if (j->kind != DOUBLE_BACKWARD_W)
        gather(&j->w, j->kind == DOUBLE_FORWARD ? filters_last : taps_first, j->tf32, w);
    if (j->kind != DOUBLE_FORWARD)
        gather(&j->y, channels_last, j->tf32, y);
    sum(j, &e, x, w, y);
    if (j->kind == DOUBLE_FORWARD)
        scatter(j, &j->y, channels_last, y);
    else if (j->kind == DOUBLE_BACKWARD_X)
        scatter(j, &j->x, channels_last, x);
    else
        scatter(j, &j->w, filters_last, w);
    free(x);
    free(w);
    free(y);
}
