/*
 * Convolution, pooling and subsampling of the reference device: loops over images, pixels and taps, with one
 * sum in double per output. Weights are [K,R,S,C], so that the innermost loop runs along both operands'
 * channels. Images past `real` are neither read nor written. Offsets are in elements, since the type varies.
 */
#include "base_impl.h"
#include "host.h"
#include "ref_impl.h"

#include <stdlib.h>
#include <string.h>

/* ---- convolution ---- */

typedef struct conv {
    hvt_op op;
    hvt_conv_desc d;
    int p, q; /* output [n,p,q,k] */
} conv;

static void free_op(hvt_op *op)
{
    free(op);
}

hvt_status hvt__conv_plan_ref(hvt_device *d, const hvt_conv_desc *c, hvt_op **ret_op, size_t *ret_weights,
                              size_t *ret_ws)
{
    size_t weights = (size_t)c->k * c->c * c->r * c->s;
    conv *o;

    HVT_CHECK_ACTIVATIONS(c->type);
    HVT_CHECK_CHANNELS(c);
    HVT_CHECK(c->n > 0 && c->h > 0 && c->w > 0 && c->c > 0 && c->k > 0 && c->r > 0 && c->s > 0 &&
                  c->stride > 0 && c->pad >= 0 && c->h + 2 * c->pad >= c->r && c->w + 2 * c->pad >= c->s,
              E_SHAPE, "no convolution: input %dx%dx%dx%d, %d filters %dx%d, stride %d, padding %d", c->n,
              c->h, c->w, c->c, c->k, c->r, c->s, c->stride, c->pad);
    o = malloc(sizeof *o);
    HVT_CHECK(o, E_MEM, "no memory for %zu bytes of a convolution's plan", sizeof *o);
    *o = (conv){{d, free_op},
                *c,
                hvt__conv_out(c->h, c->r, c->stride, c->pad),
                hvt__conv_out(c->w, c->s, c->stride, c->pad)};
    *ret_op = &o->op;
    *ret_weights = weights;
    *ret_ws = (weights > (size_t)c->c ? weights : (size_t)c->c) * sizeof(double);
    return HVT_OK;
}

void hvt__conv_permute_ref(const hvt_op *op, bool to_file, float *mine, float *kcrs)
{
    const hvt_conv_desc *d = &((const conv *)op)->d;

    for (int k = 0; k < d->k; k++)
        for (int c = 0; c < d->c; c++)
            for (int r = 0; r < d->r; r++)
                for (int s = 0; s < d->s; s++) {
                    float *file = kcrs + (((size_t)k * d->c + c) * d->r + r) * d->s + s;
                    float *here = mine + (((size_t)k * d->r + r) * d->s + s) * d->c + c;

                    if (to_file)
                        *file = *here;
                    else
                        *here = *file;
                }
}

hvt_status hvt__conv_pack_weights_ref(hvt_op *op, const void *w)
{
    (void)op;
    (void)w;
    return HVT_OK;
}

enum { OUTSIDE = -1 };

/* The first element of the input pixel that an output pixel reads with a tap, or OUTSIDE in the padding. */
static ptrdiff_t input_at(const conv *o, int n, int p, int q, int r, int s)
{
    const hvt_conv_desc *d = &o->d;
    int h = p * d->stride - d->pad + r, w = q * d->stride - d->pad + s;

    if (h < 0 || h >= d->h || w < 0 || w >= d->w)
        return OUTSIDE;
    return (ptrdiff_t)row_of(d->order, d->n, d->h, d->w, n, h, w) * d->c;
}

/* The first weight of a tap of filter k. */
static size_t weight_at(const conv *o, int k, int r, int s)
{
    return (((size_t)k * o->d.r + r) * o->d.s + s) * o->d.c;
}

hvt_status hvt__conv_forward_ref(hvt_op *op, int real, const void *x, const void *w, void *y, void *ws)
{
    HVT_FLOATS;
    const conv *o = (const conv *)op;
    const hvt_conv_desc *d = &o->d;

    (void)ws;
    for (int n = 0; n < real; n++)
        for (int p = 0; p < o->p; p++)
            for (int q = 0; q < o->q; q++) {
                size_t out = row_of(d->order, d->n, o->p, o->q, n, p, q) * d->k;

                for (int k = 0; k < d->k; k++) {
                    double sum = 0;

                    for (int r = 0; r < d->r; r++)
                        for (int s = 0; s < d->s; s++) {
                            ptrdiff_t in = input_at(o, n, p, q, r, s);
                            size_t wk = weight_at(o, k, r, s);

                            for (int c = 0; in != OUTSIDE && c < d->c; c++)
                                sum += (double)hvt__load(x, d->type, in + c) * hvt__load(w, d->type, wk + c);
                        }
                    hvt__store(y, d->type, out + k, (float)sum);
                }
            }
    return HVT_OK;
}

hvt_status hvt__conv_backward_x_ref(hvt_op *op, int real, const void *w, const void *dy, void *dx, bool add,
                                    void *ws)
{
    HVT_FLOATS;
    const conv *o = (const conv *)op;
    const hvt_conv_desc *d = &o->d;
    double *sum = ws; /* [C] */

    for (int n = 0; n < real; n++)
        for (int h = 0; h < d->h; h++)
            for (int v = 0; v < d->w; v++) {
                size_t out = row_of(d->order, d->n, d->h, d->w, n, h, v) * d->c;

                for (int c = 0; c < d->c; c++)
                    sum[c] = 0;
                for (int r = 0; r < d->r; r++)
                    for (int s = 0; s < d->s; s++) {
                        int p = h + d->pad - r, q = v + d->pad - s; /* times stride */
                        size_t g;

                        if (p < 0 || q < 0 || p % d->stride || q % d->stride || p / d->stride >= o->p ||
                            q / d->stride >= o->q)
                            continue;
                        g = row_of(d->order, d->n, o->p, o->q, n, p / d->stride, q / d->stride) * d->k;
                        for (int k = 0; k < d->k; k++) {
                            double gk = hvt__load(dy, d->type, g + k);
                            size_t wk = weight_at(o, k, r, s);

                            for (int c = 0; c < d->c; c++)
                                sum[c] += gk * hvt__load(w, d->type, wk + c);
                        }
                    }
                for (int c = 0; c < d->c; c++) {
                    double old = add ? hvt__load(dx, d->type, out + c) : 0;

                    hvt__store(dx, d->type, out + c, (float)(old + sum[c]));
                }
            }
    return HVT_OK;
}

hvt_status hvt__conv_backward_w_ref(hvt_op *op, int real, const void *x, const void *dy, float *dw, void *ws)
{
    HVT_FLOATS;
    const conv *o = (const conv *)op;
    const hvt_conv_desc *d = &o->d;
    size_t weights = (size_t)d->k * d->r * d->s * d->c;
    double *sum = ws; /* [K,R,S,C] */

    for (size_t i = 0; i < weights; i++)
        sum[i] = 0;
    for (int n = 0; n < real; n++)
        for (int p = 0; p < o->p; p++)
            for (int q = 0; q < o->q; q++) {
                size_t g = row_of(d->order, d->n, o->p, o->q, n, p, q) * d->k;

                for (int r = 0; r < d->r; r++)
                    for (int s = 0; s < d->s; s++) {
                        ptrdiff_t in = input_at(o, n, p, q, r, s);

                        for (int k = 0; in != OUTSIDE && k < d->k; k++) {
                            double gk = hvt__load(dy, d->type, g + k), *to = sum + weight_at(o, k, r, s);

                            for (int c = 0; c < d->c; c++)
                                to[c] += gk * hvt__load(x, d->type, in + c);
                        }
                    }
            }
    for (size_t i = 0; i < weights; i++)
        dw[i] = (float)sum[i];
    return HVT_OK;
}

/* ---- pooling ---- */

typedef struct pooling {
    hvt_op op;
    hvt_pooling_desc d;
    int p, q; /* output [n,p,q,c] */
} pooling;

hvt_status hvt__pooling_plan_ref(hvt_device *d, const hvt_pooling_desc *p, hvt_op **ret_op, size_t *ret_saved)
{
    pooling *o;

    HVT_TRY(hvt__pooling_check(p));
    o = malloc(sizeof *o);
    HVT_CHECK(o, E_MEM, "no memory for %zu bytes of a pooling's plan", sizeof *o);
    *o = (pooling){{d, free_op},
                   *p,
                   p->mean ? 1 : hvt__conv_out(p->h, p->size, p->stride, p->pad),
                   p->mean ? 1 : hvt__conv_out(p->w, p->size, p->stride, p->pad)};
    *ret_op = &o->op;
    *ret_saved = p->mean ? 0 : (size_t)p->n * o->p * o->q * p->c; /* one byte each: the argmax */
    return HVT_OK;
}

static void mean_forward(const pooling *o, int real, const void *x, void *y)
{
    const hvt_pooling_desc *d = &o->d;

    for (int n = 0; n < real; n++)
        for (int c = 0; c < d->c; c++) {
            double sum = 0;

            for (int h = 0; h < d->h; h++)
                for (int w = 0; w < d->w; w++)
                    sum += hvt__load(x, d->type, row_of(d->order, d->n, d->h, d->w, n, h, w) * d->c + c);
            hvt__store(y, d->type, (size_t)n * d->c + c, (float)(sum / (d->h * d->w)));
        }
}

static void mean_backward(const pooling *o, int real, const void *dy, void *dx, bool add)
{
    const hvt_pooling_desc *d = &o->d;
    float part = 1.0f / (float)(d->h * d->w);

    for (int n = 0; n < real; n++)
        for (int h = 0; h < d->h; h++)
            for (int w = 0; w < d->w; w++)
                for (int c = 0; c < d->c; c++) {
                    float g = hvt__load(dy, d->type, (size_t)n * d->c + c) * part;

                    put(dx, d->type, row_of(d->order, d->n, d->h, d->w, n, h, w) * d->c + c, g, add);
                }
}

hvt_status hvt__pooling_forward_ref(hvt_op *op, int real, const void *x, void *y, void *saved)
{
    HVT_FLOATS;
    const pooling *o = (const pooling *)op;
    const hvt_pooling_desc *d = &o->d;

    if (d->mean) {
        mean_forward(o, real, x, y);
        return HVT_OK;
    }
    for (int n = 0; n < real; n++)
        for (int p = 0; p < o->p; p++)
            for (int q = 0; q < o->q; q++)
                for (int c = 0; c < d->c; c++) {
                    size_t to = row_of(d->order, d->n, o->p, o->q, n, p, q) * d->c + c;
                    float best = 0;
                    int argmax = -1;

                    for (int r = 0; r < d->size; r++)
                        for (int s = 0; s < d->size; s++) {
                            int h = p * d->stride - d->pad + r, w = q * d->stride - d->pad + s;
                            float v;

                            if (h < 0 || h >= d->h || w < 0 || w >= d->w)
                                continue;
                            v = hvt__load(x, d->type, row_of(d->order, d->n, d->h, d->w, n, h, w) * d->c + c);
                            if (argmax < 0 || pooling_wins(v, best)) {
                                best = v;
                                argmax = r * d->size + s;
                            }
                        }
                    hvt__store(y, d->type, to, best);
                    ((uint8_t *)saved)[to] = (uint8_t)argmax;
                }
    return HVT_OK;
}

/* Each input pixel adds the outputs that chose it, in their row-major order. */
hvt_status hvt__pooling_backward_ref(hvt_op *op, int real, const void *saved, const void *dy, void *dx,
                                     bool add)
{
    HVT_FLOATS;
    const pooling *o = (const pooling *)op;
    const hvt_pooling_desc *d = &o->d;

    if (d->mean) {
        mean_backward(o, real, dy, dx, add);
        return HVT_OK;
    }
    for (int n = 0; n < real; n++)
        for (int h = 0; h < d->h; h++)
            for (int w = 0; w < d->w; w++)
                for (int c = 0; c < d->c; c++) {
                    float sum = 0;

                    for (int r = d->size - 1; r >= 0; r--)
                        for (int k = d->size - 1; k >= 0; k--) {
                            int p = h + d->pad - r, q = w + d->pad - k; /* times stride */
                            size_t from;

                            if (p < 0 || q < 0 || p % d->stride || q % d->stride || p / d->stride >= o->p ||
                                q / d->stride >= o->q)
                                continue;
                            from =
                                row_of(d->order, d->n, o->p, o->q, n, p / d->stride, q / d->stride) * d->c +
                                c;
                            if (((const uint8_t *)saved)[from] == r * d->size + k)
                                sum += hvt__load(dy, d->type, from);
                        }
                    put(dx, d->type, row_of(d->order, d->n, d->h, d->w, n, h, w) * d->c + c, sum, add);
                }
    return HVT_OK;
}

/* ---- subsampling ---- */

hvt_status hvt__subsample_forward_ref(hvt_device *dev, hvt_order o, hvt_dtype t, int n, int h, int w, int c,
                                      int stride, int channels, const void *x, void *y)
{
    HVT_FLOATS;
    int p = (h + stride - 1) / stride, q = (w + stride - 1) / stride, lead = (channels - c) / 2;

    (void)dev;
    for (int i = 0; i < n; i++)
        for (int a = 0; a < p; a++)
            for (int b = 0; b < q; b++) {
                size_t from = row_of(o, n, h, w, i, a * stride, b * stride) * c;
                size_t to = row_of(o, n, p, q, i, a, b) * channels;

                for (int k = 0; k < channels; k++) {
                    bool has = k >= lead && k < lead + c;

                    hvt__store(y, t, to + k, has ? hvt__load(x, t, from + k - lead) : 0);
                }
            }
    return HVT_OK;
}

hvt_status hvt__subsample_backward_ref(hvt_device *dev, hvt_order o, hvt_dtype t, int n, int h, int w, int c,
                                       int stride, int channels, const void *dy, void *dx, bool add)
{
    HVT_FLOATS;
    int p = (h + stride - 1) / stride, q = (w + stride - 1) / stride, lead = (channels - c) / 2;

    (void)dev;
    if (!add)
        memset(dx, 0, (size_t)n * h * w * c * hvt_dtype_size(t));
    for (int i = 0; i < n; i++)
        for (int a = 0; a < p; a++)
            for (int b = 0; b < q; b++) {
                size_t from = row_of(o, n, p, q, i, a, b) * channels + lead;
                size_t to = row_of(o, n, h, w, i, a * stride, b * stride) * c;

                for (int k = 0; k < c; k++)
                    put(dx, t, to + k, hvt__load(dy, t, from + k), add);
            }
    return HVT_OK;
}
