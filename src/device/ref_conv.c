/* Convolutions and pooling on device ref. */
#include "base_impl.h"
#include "host.h"
#include "ref.h"
#include "scalar.h"

hvt_status hvt__conv_plan_ref(hvt_device *d, const hvt_conv_desc *c, hvt_op **ret_op, size_t *ret_weights,
                              size_t *ret_ws)
{
    size_t weights;
    hvt_conv *o;

    HVT_TRY(hvt__conv_check(d, c));
    weights = (size_t)c->k * hvt__conv_depth(c) * c->r * c->s;
    o = malloc(sizeof *o);
    HVT_CHECK(o, E_MEM, "no memory for %zu bytes of a convolution's plan", sizeof *o);
    *o = (hvt_conv){{d, hvt__op_free_plain}, *c, hvt__conv_height(c), hvt__conv_width(c)};
    *ret_op = &o->op;
    *ret_weights = weights;
    *ret_ws = (weights > (size_t)c->c ? weights : (size_t)c->c) * sizeof(double);
    return HVT_OK;
}

/* Returns the index of a tap's first weight in filter k. */
static size_t weight_at(const hvt_conv_desc *d, int k, int r, int s)
{
    return (((size_t)k * d->r + r) * d->s + s) * hvt__conv_depth(d);
}

enum { OUTSIDE = -1 };

/* Returns the first channel that filter k reads. */
static int channel_of(const hvt_conv_desc *d, int k)
{
    return k / (d->k / d->groups) * hvt__conv_depth(d);
}

/* Returns the index of the input pixel that an output pixel reads with a tap; OUTSIDE in the padding. */
static ptrdiff_t input_at(const hvt_conv_desc *d, int n, int p, int q, int r, int s)
{
    int h = hvt__input_index(p, r * d->dilation_h, d->h, d->stride_h, d->top);
    int w = hvt__input_index(q, s * d->dilation_w, d->w, d->stride_w, d->left);

    return h < 0 || w < 0 ? OUTSIDE : (ptrdiff_t)hvt__row_of(d->order, d->n, d->h, d->w, n, h, w) * d->c;
}

hvt_status hvt__conv_forward_ref(hvt_op *op, int real, const void *x, const void *w, void *y, void *ws)
{
    HVT_FLOATS;
    const hvt_conv *o = (const hvt_conv *)op;
    const hvt_conv_desc *d = &o->d;

    for (int n = 0; n < real; n++)
        for (int p = 0; p < o->p; p++)
            for (int q = 0; q < o->q; q++) {
                size_t out = hvt__row_of(d->order, d->n, o->p, o->q, n, p, q) * d->k;

                for (int k = 0; k < d->k; k++) {
                    double sum = 0;

                    for (int r = 0; r < d->r; r++)
                        for (int s = 0; s < d->s; s++) {
                            ptrdiff_t in = input_at(d, n, p, q, r, s);
                            size_t wk = weight_at(d, k, r, s);

                            in += in == OUTSIDE ? 0 : channel_of(d, k);
                            for (int c = 0; in != OUTSIDE && c < hvt__conv_depth(d); c++)
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
    const hvt_conv *o = (const hvt_conv *)op;
    const hvt_conv_desc *d = &o->d;
    double *sum = ws; /* [C] */

    for (int n = 0; n < real; n++)
        for (int i = 0; i < d->h * d->w; i++) {
            int h = i / d->w, v = i % d->w;
            size_t out = hvt__row_of(d->order, d->n, d->h, d->w, n, h, v) * d->c;

            memset(sum, 0, sizeof *sum * d->c);
            for (int r = 0; r < d->r; r++)
                for (int s = 0; s < d->s; s++) {
                    int p = hvt__output_index(h, r * d->dilation_h, o->p, d->stride_h, d->top);
                    int q = hvt__output_index(v, s * d->dilation_w, o->q, d->stride_w, d->left);

                    for (int k = 0; p >= 0 && q >= 0 && k < d->k; k++) {
                        size_t g = hvt__row_of(d->order, d->n, o->p, o->q, n, p, q) * d->k + k;
                        double gk = hvt__load(dy, d->type, g), *to = sum + channel_of(d, k);

                        for (int c = 0; c < hvt__conv_depth(d); c++)
                            to[c] += gk * hvt__load(w, d->type, weight_at(d, k, r, s) + c);
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
    const hvt_conv *o = (const hvt_conv *)op;
    const hvt_conv_desc *d = &o->d;
    size_t weights = (size_t)d->k * d->r * d->s * hvt__conv_depth(d);
    double *sum = ws; /* [K,R,S,C/groups] */

    memset(sum, 0, sizeof *sum * weights);
    for (int n = 0; n < real; n++)
        for (int p = 0; p < o->p; p++)
            for (int q = 0; q < o->q; q++) {
                size_t g = hvt__row_of(d->order, d->n, o->p, o->q, n, p, q) * d->k;

                for (int r = 0; r < d->r; r++)
                    for (int s = 0; s < d->s; s++) {
                        ptrdiff_t in = input_at(d, n, p, q, r, s);

                        for (int k = 0; in != OUTSIDE && k < d->k; k++) {
                            double gk = hvt__load(dy, d->type, g + k), *to = sum + weight_at(d, k, r, s);
                            size_t from = (size_t)in + channel_of(d, k);

                            for (int c = 0; c < hvt__conv_depth(d); c++)
                                to[c] += gk * hvt__load(x, d->type, from + c);
                        }
                    }
            }
    for (size_t i = 0; i < weights; i++)
        dw[i] = (float)sum[i];
    return HVT_OK;
}

/* ---- pooling ---- */

/* element c of pixel (h, w) of the input */
static size_t pooled_at(const hvt_pooling_desc *d, int n, int h, int w, int c)
{
    return hvt__row_of(d->order, d->n, d->h, d->w, n, h, w) * d->c + c;
}

static void mean_forward(const hvt_pooling_desc *d, int real, const void *x, void *y)
{
    for (int n = 0; n < real; n++)
        for (int c = 0; c < d->c; c++) {
            double sum = 0;

            for (int h = 0; h < d->h; h++)
                for (int w = 0; w < d->w; w++)
                    sum += hvt__load(x, d->type, pooled_at(d, n, h, w, c));
            hvt__store(y, d->type, (size_t)n * d->c + c, (float)(sum / (d->h * d->w)));
        }
}

static void mean_backward(const hvt_pooling_desc *d, int real, const void *dy, void *dx, bool add)
{
    float part = 1.0f / (float)(d->h * d->w);

    for (int n = 0; n < real; n++)
        for (int h = 0; h < d->h; h++)
            for (int w = 0; w < d->w; w++)
                for (int c = 0; c < d->c; c++) {
                    float g = hvt__load(dy, d->type, (size_t)n * d->c + c) * part;

                    hvt__put_ref(dx, d->type, pooled_at(d, n, h, w, c), g, add);
                }
}

/* Computes one output: the mean, or the maximum and its index in the window. */
static void pool_window(const hvt_pooling *o, int n, int p, int q, int c, const void *x, void *y,
                        uint8_t *saved)
{
    const hvt_pooling_desc *d = &o->d;
    size_t to = hvt__row_of(d->order, d->n, o->p, o->q, n, p, q) * d->c + c;
    int h0, h1, w0, w1, divisor = hvt__window_at(&d->rows, d->h, p, d->count_pad, &h0, &h1);
    int argmax = -1;
    float best = 0;
    double sum = 0;

    divisor *= hvt__window_at(&d->columns, d->w, q, d->count_pad, &w0, &w1);
    for (int h = h0; h < h1; h++)
        for (int w = w0; w < w1; w++) {
            float v = hvt__load(x, d->type, pooled_at(d, n, h, w, c));

            sum += v;
            if (argmax < 0 || pooling_wins(v, best)) {
                best = v;
                argmax = (h - h0) * (w1 - w0) + w - w0;
            }
        }
    hvt__store(y, d->type, to, d->mean ? (float)(sum / divisor) : best);
    if (!d->mean)
        saved[to] = (uint8_t)argmax;
}

hvt_status hvt__pooling_forward_ref(hvt_op *op, int real, const void *x, void *y, void *saved)
{
    HVT_FLOATS;
    const hvt_pooling *o = (const hvt_pooling *)op;
    const hvt_pooling_desc *d = &o->d;

    if (d->mean && !d->windows) {
        mean_forward(d, real, x, y);
        return HVT_OK;
    }
    for (int n = 0; n < real; n++)
        for (int p = 0; p < o->p; p++)
            for (int q = 0; q < o->q; q++)
                for (int c = 0; c < d->c; c++)
                    pool_window(o, n, p, q, c, x, y, saved);
    return HVT_OK;
}

/* Returns the gradient of input pixel (h, w): the sum over outputs that read it or, for a maximum, chose it,
 * in row-major order. */
static float pooled_gradient(const hvt_pooling *o, int n, int h, int w, int c, const uint8_t *saved,
                             const void *dy)
{
    const hvt_pooling_desc *d = &o->d;
    int p0, p1, q0, q1, h0, h1, w0, w1;
    float sum = 0;

    hvt__readers_of(&d->rows, d->h, h, &p0, &p1);
    hvt__readers_of(&d->columns, d->w, w, &q0, &q1);
    for (int p = p0; p < p1; p++)
        for (int q = q0; q < q1; q++) {
            size_t from = hvt__row_of(d->order, d->n, o->p, o->q, n, p, q) * d->c + c;
            int divisor = hvt__window_at(&d->rows, d->h, p, d->count_pad, &h0, &h1);

            divisor *= hvt__window_at(&d->columns, d->w, q, d->count_pad, &w0, &w1);
            if (h >= h1 || w >= w1) /* strides may be longer than windows */
                continue;
            if (d->mean)
                sum += hvt__load(dy, d->type, from) * (1 / (float)divisor);
            else if (saved[from] == (h - h0) * (w1 - w0) + w - w0)
                sum += hvt__load(dy, d->type, from);
        }
    return sum;
}

hvt_status hvt__pooling_backward_ref(hvt_op *op, int real, const void *saved, const void *dy, void *dx,
                                     bool add)
{
    HVT_FLOATS;
    const hvt_pooling *o = (const hvt_pooling *)op;
    const hvt_pooling_desc *d = &o->d;

    if (d->mean && !d->windows) {
        mean_backward(d, real, dy, dx, add);
        return HVT_OK;
    }
    for (int n = 0; n < real; n++)
        for (int h = 0; h < d->h; h++)
            for (int w = 0; w < d->w; w++)
                for (int c = 0; c < d->c; c++)
                    hvt__put_ref(dx, d->type, pooled_at(d, n, h, w, c),
                                 pooled_gradient(o, n, h, w, c, saved, dy), add);
    return HVT_OK;
}
