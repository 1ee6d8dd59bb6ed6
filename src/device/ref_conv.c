/*
 * Convolution, pooling and subsampling of the reference device: loops over images, pixels and taps, one
 * sum in double per output. Weights lie as [K,R,S,C], so that the innermost loop runs along both operands'
 * channels. Nothing past the real images is read or written.
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

hvt_status conv_plan_ref(hvt_device *d, const hvt_conv_desc *c, hvt_op **ret_op, size_t *ret_weights,
                         size_t *ret_ws)
{
    size_t weights = (size_t)c->k * c->c * c->r * c->s;
    conv *o;

    HVT_CHECK_F32(c->type);
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

void conv_permute_ref(const hvt_op *op, bool to_file, float *mine, float *kcrs)
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

hvt_status conv_pack_ref(hvt_op *op, const float *w)
{
    (void)op;
    (void)w;
    return HVT_OK;
}

/* One output pixel and one tap meet at one input pixel: NULL if that lies in the padding. */
static const float *input_at(const conv *o, const float *x, int n, int p, int q, int r, int s)
{
    const hvt_conv_desc *d = &o->d;
    int h = p * d->stride - d->pad + r, w = q * d->stride - d->pad + s;

    if (h < 0 || h >= d->h || w < 0 || w >= d->w)
        return NULL;
    return x + row_of(d->order, d->n, d->h, d->w, n, h, w) * d->c;
}

hvt_status conv_forward_ref(hvt_op *op, int real, const void *x, const float *w, void *y, void *ws)
{
    const conv *o = (const conv *)op;
    const hvt_conv_desc *d = &o->d;

    (void)ws;
    for (int n = 0; n < real; n++)
        for (int p = 0; p < o->p; p++)
            for (int q = 0; q < o->q; q++) {
                float *out = (float *)y + row_of(d->order, d->n, o->p, o->q, n, p, q) * d->k;

                for (int k = 0; k < d->k; k++) {
                    double sum = 0;

                    for (int r = 0; r < d->r; r++)
                        for (int s = 0; s < d->s; s++) {
                            const float *in = input_at(o, x, n, p, q, r, s);
                            const float *wk = w + (((size_t)k * d->r + r) * d->s + s) * d->c;

                            for (int c = 0; in && c < d->c; c++)
                                sum += (double)in[c] * wk[c];
                        }
                    out[k] = (float)sum;
                }
            }
    return HVT_OK;
}

hvt_status conv_backward_x_ref(hvt_op *op, int real, const float *w, const void *dy, void *dx, bool add,
                               void *ws)
{
    const conv *o = (const conv *)op;
    const hvt_conv_desc *d = &o->d;
    double *sum = ws; /* [C] */

    for (int n = 0; n < real; n++)
        for (int h = 0; h < d->h; h++)
            for (int v = 0; v < d->w; v++) {
                float *out = (float *)dx + row_of(d->order, d->n, d->h, d->w, n, h, v) * d->c;

                for (int c = 0; c < d->c; c++)
                    sum[c] = 0;
                for (int r = 0; r < d->r; r++)
                    for (int s = 0; s < d->s; s++) {
                        int p = h + d->pad - r, q = v + d->pad - s; /* times stride */
                        const float *g;

                        if (p < 0 || q < 0 || p % d->stride || q % d->stride || p / d->stride >= o->p ||
                            q / d->stride >= o->q)
                            continue;
                        g = (const float *)dy +
                            row_of(d->order, d->n, o->p, o->q, n, p / d->stride, q / d->stride) * d->k;
                        for (int k = 0; k < d->k; k++) {
                            const float *wk = w + (((size_t)k * d->r + r) * d->s + s) * d->c;

                            for (int c = 0; c < d->c; c++)
                                sum[c] += (double)g[k] * wk[c];
                        }
                    }
                for (int c = 0; c < d->c; c++)
                    out[c] = (float)(add ? out[c] + sum[c] : sum[c]);
            }
    return HVT_OK;
}

hvt_status conv_backward_w_ref(hvt_op *op, int real, const void *x, const void *dy, float *dw, void *ws)
{
    const conv *o = (const conv *)op;
    const hvt_conv_desc *d = &o->d;
    size_t weights = (size_t)d->k * d->r * d->s * d->c;
    double *sum = ws; /* [K,R,S,C] */

    for (size_t i = 0; i < weights; i++)
        sum[i] = 0;
    for (int n = 0; n < real; n++)
        for (int p = 0; p < o->p; p++)
            for (int q = 0; q < o->q; q++) {
                const float *g = (const float *)dy + row_of(d->order, d->n, o->p, o->q, n, p, q) * d->k;

                for (int r = 0; r < d->r; r++)
                    for (int s = 0; s < d->s; s++) {
                        const float *in = input_at(o, x, n, p, q, r, s);

                        for (int k = 0; in && k < d->k; k++) {
                            double *to = sum + (((size_t)k * d->r + r) * d->s + s) * d->c;

                            for (int c = 0; c < d->c; c++)
                                to[c] += (double)g[k] * in[c];
                        }
                    }
            }
    for (size_t i = 0; i < weights; i++)
        dw[i] = (float)sum[i];
    return HVT_OK;
}

/* ---- pooling ---- */

typedef struct pool {
    hvt_op op;
    hvt_pool_desc d;
    int p, q; /* output [n,p,q,c] */
} pool;

hvt_status pool_plan_ref(hvt_device *d, const hvt_pool_desc *p, hvt_op **ret_op, size_t *ret_saved)
{
    pool *o;

    HVT_CHECK_F32(p->type);
    if (!p->mean)
        HVT_CHECK(p->size > 0 && p->size <= 15 && p->stride > 0 && p->pad >= 0 && p->pad * 2 <= p->size &&
                      p->h + 2 * p->pad >= p->size && p->w + 2 * p->pad >= p->size,
                  E_SHAPE,
                  "no pooling: input %dx%dx%dx%d, window %d (1 to 15), stride %d, padding %d (at most half)",
                  p->n, p->h, p->w, p->c, p->size, p->stride, p->pad);
    o = malloc(sizeof *o);
    HVT_CHECK(o, E_MEM, "no memory for %zu bytes of a pooling's plan", sizeof *o);
    *o = (pool){{d, free_op},
                *p,
                p->mean ? 1 : hvt__conv_out(p->h, p->size, p->stride, p->pad),
                p->mean ? 1 : hvt__conv_out(p->w, p->size, p->stride, p->pad)};
    *ret_op = &o->op;
    *ret_saved = p->mean ? 0 : (size_t)p->n * o->p * o->q * p->c; /* one byte each: place in the window */
    return HVT_OK;
}

static void mean_forward(const pool *o, int real, const float *x, float *y)
{
    const hvt_pool_desc *d = &o->d;

    for (int n = 0; n < real; n++)
        for (int c = 0; c < d->c; c++) {
            double sum = 0;

            for (int h = 0; h < d->h; h++)
                for (int w = 0; w < d->w; w++)
                    sum += x[row_of(d->order, d->n, d->h, d->w, n, h, w) * d->c + c];
            y[(size_t)n * d->c + c] = (float)(sum / (d->h * d->w));
        }
}

static void mean_backward(const pool *o, int real, const float *dy, float *dx, bool add)
{
    const hvt_pool_desc *d = &o->d;
    float part = 1.0f / (float)(d->h * d->w);

    for (int n = 0; n < real; n++)
        for (int h = 0; h < d->h; h++)
            for (int w = 0; w < d->w; w++)
                for (int c = 0; c < d->c; c++) {
                    float *to = dx + row_of(d->order, d->n, d->h, d->w, n, h, w) * d->c + c;

                    float g = dy[(size_t)n * d->c + c] * part;

                    *to = add ? *to + g : g;
                }
}

/* The first largest of the window in row-major order wins; a NaN wins over all before it, as in PyTorch. */
hvt_status pool_forward_ref(hvt_op *op, int real, const void *x, void *y, void *saved)
{
    const pool *o = (const pool *)op;
    const hvt_pool_desc *d = &o->d;
    const float *in = x;

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
                    int place = -1;

                    for (int r = 0; r < d->size; r++)
                        for (int s = 0; s < d->size; s++) {
                            int h = p * d->stride - d->pad + r, w = q * d->stride - d->pad + s;
                            float v;

                            if (h < 0 || h >= d->h || w < 0 || w >= d->w)
                                continue;
                            v = in[row_of(d->order, d->n, d->h, d->w, n, h, w) * d->c + c];
                            if (place < 0 || v > best || v != v) {
                                best = v;
                                place = r * d->size + s;
                            }
                        }
                    ((float *)y)[to] = best;
                    ((uint8_t *)saved)[to] = (uint8_t)place;
                }
    return HVT_OK;
}

/* Each input pixel adds up the outputs that chose it, in their row-major order. */
hvt_status pool_backward_ref(hvt_op *op, int real, const void *saved, const void *dy, void *dx, bool add)
{
    const pool *o = (const pool *)op;
    const hvt_pool_desc *d = &o->d;

    if (d->mean) {
        mean_backward(o, real, dy, dx, add);
        return HVT_OK;
    }
    for (int n = 0; n < real; n++)
        for (int h = 0; h < d->h; h++)
            for (int w = 0; w < d->w; w++)
                for (int c = 0; c < d->c; c++) {
                    float *to = (float *)dx + row_of(d->order, d->n, d->h, d->w, n, h, w) * d->c + c;
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
                                sum += ((const float *)dy)[from];
                        }
                    *to = add ? *to + sum : sum;
                }
    return HVT_OK;
}

/* ---- subsampling ---- */

hvt_status subsample_forward_ref(hvt_device *dev, hvt_order o, hvt_dtype t, int n, int h, int w, int c,
                                 int stride, int channels, const void *x, void *y)
{
    int p = (h + stride - 1) / stride, q = (w + stride - 1) / stride, lead = (channels - c) / 2;

    (void)dev;
    HVT_CHECK_F32(t);
    for (int i = 0; i < n; i++)
        for (int a = 0; a < p; a++)
            for (int b = 0; b < q; b++) {
                float *to = (float *)y + row_of(o, n, p, q, i, a, b) * channels;

                memset(to, 0, (size_t)channels * sizeof *to);
                memcpy(to + lead, (const float *)x + row_of(o, n, h, w, i, a * stride, b * stride) * c,
                       (size_t)c * sizeof *to);
            }
    return HVT_OK;
}

hvt_status subsample_backward_ref(hvt_device *dev, hvt_order o, hvt_dtype t, int n, int h, int w, int c,
                                  int stride, int channels, const void *dy, void *dx, bool add)
{
    int p = (h + stride - 1) / stride, q = (w + stride - 1) / stride, lead = (channels - c) / 2;

    (void)dev;
    HVT_CHECK_F32(t);
    if (!add)
        memset(dx, 0, (size_t)n * h * w * c * sizeof(float));
    for (int i = 0; i < n; i++)
        for (int a = 0; a < p; a++)
            for (int b = 0; b < q; b++) {
                float *to = (float *)dx + row_of(o, n, h, w, i, a * stride, b * stride) * c;
                const float *from = (const float *)dy + row_of(o, n, p, q, i, a, b) * channels + lead;

                for (int k = 0; k < c; k++)
                    to[k] = add ? to[k] + from[k] : from[k];
            }
    return HVT_OK;
}
