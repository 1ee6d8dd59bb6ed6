/*
 * The reference device: every op in plain C, on one thread, in an obvious order. It is the specification, the
 * fallback and the oracle for other devices. Sums are in double and read valid rows only. Elementwise ops are
 * formula.h on one float at a time, so the cpu device must give the same bits. Weights are [K,R,S,C/groups],
 * so that a convolution's innermost loop runs along both operands' channels. Offsets are in elements, since
 * the type varies.
 */
#include "base_impl.h"
#include "host.h"
#include "ref.h"
#include "scalar.h"
#include "step.h"

#include <math.h>

/* ---- life ---- */

static hvt_status open_ref(hvt_device *d, const hvt_device_opts *opts)
{
    HVT_CHECK(!opts->isa || !strcmp(opts->isa, "auto") || !strcmp(opts->isa, "plain"), E_ARG,
              "device ref has no instruction sets: expected plain, got '%s'", opts->isa);
    d->isa = "plain";
    d->threads = 1;
    return HVT_OK;
}

/* ---- elements ---- */

/* index of element `col` of the i-th valid row of a matrix with c columns */
static size_t at_row(hvt_rows r, size_t i, int c, int col)
{
    return (i / r.real * r.block + i % r.real) * c + col;
}

static size_t real_rows(hvt_rows r)
{
    return (size_t)r.blocks * r.real;
}

/* ---- convolution ---- */

static hvt_status conv_plan_ref(hvt_device *d, const hvt_conv_desc *c, hvt_op **ret_op, size_t *ret_weights,
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

/* Index of a tap's first weight in filter k. */
static size_t weight_at(const hvt_conv_desc *d, int k, int r, int s)
{
    return (((size_t)k * d->r + r) * d->s + s) * hvt__conv_depth(d);
}

enum { OUTSIDE = -1 };

/* The first channel that filter k reads. */
static int channel_of(const hvt_conv_desc *d, int k)
{
    return k / (d->k / d->groups) * hvt__conv_depth(d);
}

/* Index of the input pixel that an output pixel reads with a tap; OUTSIDE in the padding. */
static ptrdiff_t input_at(const hvt_conv_desc *d, int n, int p, int q, int r, int s)
{
    int h = hvt__input_index(p, r * d->dilation_h, d->h, d->stride_h, d->top);
    int w = hvt__input_index(q, s * d->dilation_w, d->w, d->stride_w, d->left);

    return h < 0 || w < 0 ? OUTSIDE : (ptrdiff_t)hvt__row_of(d->order, d->n, d->h, d->w, n, h, w) * d->c;
}

static hvt_status conv_forward_ref(hvt_op *op, int real, const void *x, const void *w, void *y, void *ws)
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

static hvt_status conv_backward_x_ref(hvt_op *op, int real, const void *w, const void *dy, void *dx, bool add,
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

static hvt_status conv_backward_w_ref(hvt_op *op, int real, const void *x, const void *dy, float *dw,
                                      void *ws)
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

/* One output: the mean, or the maximum and its index in the window. */
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

static hvt_status pooling_forward_ref(hvt_op *op, int real, const void *x, void *y, void *saved)
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

/* Gradient of input pixel (h, w): the sum over outputs that read it or, for a maximum, chose it, in row-major
 * order. */
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

static hvt_status pooling_backward_ref(hvt_op *op, int real, const void *saved, const void *dy, void *dx,
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

/* ---- subsampling ---- */

/* element offsets of output (p, q) of image n, and of the pixel that it copies */
static size_t subsample_x(const hvt_subsample_desc *d, int n, int p, int q)
{
    return hvt__row_of(d->order, d->n, d->h, d->w, n, p * d->stride, q * d->stride) * d->c;
}

static size_t subsample_y(const hvt_subsample_desc *d, int n, int p, int q)
{
    int height = (d->h + d->stride - 1) / d->stride, width = (d->w + d->stride - 1) / d->stride;

    return hvt__row_of(d->order, d->n, height, width, n, p, q) * d->k;
}

static hvt_status subsample_forward_ref(hvt_device *dev, const hvt_subsample_desc *d, const void *x, void *y)
{
    HVT_FLOATS;
    int lead = (d->k - d->c) / 2;

    for (int n = 0; n < d->n; n++)
        for (int p = 0; p * d->stride < d->h; p++)
            for (int q = 0; q * d->stride < d->w; q++)
                for (int k = 0; k < d->k; k++) {
                    bool has = k >= lead && k < lead + d->c;

                    hvt__store(y, d->type, subsample_y(d, n, p, q) + k,
                               has ? hvt__load(x, d->type, subsample_x(d, n, p, q) + k - lead) : 0);
                }
    return HVT_OK;
}

static hvt_status subsample_backward_ref(hvt_device *dev, const hvt_subsample_desc *d, const void *dy,
                                         void *dx, bool add)
{
    HVT_FLOATS;
    int lead = (d->k - d->c) / 2;

    if (!add)
        memset(dx, 0, (size_t)d->n * d->h * d->w * d->c * hvt_dtype_size(d->type));
    for (int n = 0; n < d->n; n++)
        for (int p = 0; p * d->stride < d->h; p++)
            for (int q = 0; q * d->stride < d->w; q++)
                for (int c = 0; c < d->c; c++)
                    hvt__put_ref(dx, d->type, subsample_x(d, n, p, q) + c,
                                 hvt__load(dy, d->type, subsample_y(d, n, p, q) + lead + c), add);
    return HVT_OK;
}

/* ---- batch norm: Ioffe and Szegedy 2015, as torch.nn.BatchNorm2d computes it ---- */

static void normalise(const hvt_bn_args *a, int c, float mean, float rstd)
{
    float scale = a->gamma[c] * rstd;

    for (size_t i = 0; i < real_rows(a->rows); i++) {
        size_t at = at_row(a->rows, i, a->c, c);
        float y = bn_value(hvt__load(a->x, a->type, at), mean, scale, a->beta[c]);

        if (a->residual)
            y += hvt__load(a->residual, a->type, at);
        hvt__store(a->y, a->type, at, a->relu ? f_relu(y) : y);
        if (a->map)
            hvt__map_forward_ref(NULL, 1, a->type, a->map, hvt__at(a->y, a->type, at),
                                 hvt__at(a->y, a->type, at));
    }
}

/* Mean of channel c, and sum of squared deviations from it. */
static void moments_of(const hvt_bn_args *a, int c, double *ret_mean, double *ret_m2)
{
    size_t count = real_rows(a->rows);
    double mean = 0, m2 = 0;

    for (size_t i = 0; i < count; i++)
        mean += hvt__load(a->x, a->type, at_row(a->rows, i, a->c, c));
    mean /= count ? (double)count : 1;
    for (size_t i = 0; i < count; i++) {
        double off = hvt__load(a->x, a->type, at_row(a->rows, i, a->c, c)) - mean;

        m2 += off * off;
    }
    *ret_mean = mean;
    *ret_m2 = m2;
}

static hvt_status bn_moments_ref(hvt_device *d, const hvt_bn_args *a)
{
    HVT_FLOATS;
    for (int c = 0; c < a->c; c++) {
        double mean, m2;

        moments_of(a, c, &mean, &m2);
        a->moments[c] = (float)mean;
        a->moments[a->c + c] = (float)m2;
    }
    return HVT_OK;
}

static hvt_status bn_train_ref(hvt_device *d, const hvt_bn_args *a)
{
    HVT_FLOATS;
    size_t count = real_rows(a->rows);

    for (int c = 0; c < a->c; c++) {
        double mean, m2;

        moments_of(a, c, &mean, &m2);
        a->mean[c] = (float)mean;
        a->rstd[c] = (float)(1 / sqrt(m2 / (count ? (double)count : 1) + a->eps));
        a->moments[c] = count < 2 ? 0 : a->weight * (float)mean;
        a->moments[a->c + c] = count < 2 ? 0 : a->weight * (float)(m2 / (double)(count - 1));
        normalise(a, c, a->mean[c], a->rstd[c]);
    }
    return HVT_OK;
}

static hvt_status bn_infer_ref(hvt_device *d, const hvt_bn_args *a)
{
    HVT_FLOATS;
    for (int c = 0; c < a->c; c++)
        normalise(a, c, a->mean[c],
                  a->is_variance ? (float)(1 / sqrt((double)a->rstd[c] + a->eps)) : a->rstd[c]);
    return HVT_OK;
}

/* With a function after the norm: compute dz, and return arguments with dz as dy and without the function. */
static hvt_bn_grad_args through_map(const hvt_bn_grad_args *a)
{
    hvt_bn_grad_args g = *a;

    for (size_t i = 0; a->map && i < real_rows(a->rows) * (size_t)a->c; i++) {
        int c = (int)(i % (size_t)a->c);
        size_t at = at_row(a->rows, i / (size_t)a->c, a->c, c);
        float z = bn_value(hvt__load(a->x, a->type, at), a->mean[c], a->gamma[c] * a->rstd[c], a->beta[c]);

        hvt__store(&z, a->type, 0, z);
        if (!hvt__slope_from_x(a->map->f))
            hvt__map_forward_ref(NULL, 1, a->type, a->map, &z, &z);
        hvt__map_backward_ref(NULL, 1, a->type, a->map, &z, hvt__at(a->dy, a->type, at),
                              hvt__at(a->dz, a->type, at), false);
    }
    if (a->map)
        g.dy = a->dz;
    return g;
}

/* dz: dy masked by relu */
static float masked(const hvt_bn_grad_args *a, size_t at)
{
    float dz = hvt__load(a->dy, a->type, at);

    return a->y ? f_keep(hvt__load(a->y, a->type, at), dz) : dz;
}

/* The sums over channel c of dz and of dz * (x - mean). */
static void bn_sums_of(const hvt_bn_grad_args *a, int c, double *ret_sum, double *ret_dot)
{
    double sum = 0, dot = 0;

    for (size_t i = 0; i < real_rows(a->rows); i++) {
        size_t at = at_row(a->rows, i, a->c, c);
        float dz = masked(a, at);

        sum += dz;
        dot += (double)dz * ((double)hvt__load(a->x, a->type, at) - a->mean[c]);
    }
    a->dbeta[c] = (float)sum;
    a->dgamma[c] = (float)(dot * a->rstd[c]);
    *ret_sum = sum;
    *ret_dot = dot;
}

static void bn_dx_of(const hvt_bn_grad_args *a, int c, float share, float slope)
{
    float mean = a->mean[c], scale = a->gamma[c] * a->rstd[c];

    for (size_t i = 0; i < real_rows(a->rows); i++) {
        size_t at = at_row(a->rows, i, a->c, c);
        float dz = masked(a, at);
        float g = bn_dx(hvt__load(a->x, a->type, at), mean, scale, share, slope, dz);

        if (a->dresidual)
            hvt__put_ref(a->dresidual, a->type, at, dz, a->add_residual);
        hvt__put_ref(a->dx, a->type, at, g, a->add);
    }
}

static hvt_status bn_backward_ref(hvt_device *d, const hvt_bn_grad_args *given)
{
    HVT_FLOATS;
    const hvt_bn_grad_args g = through_map(given), *a = &g;
    size_t count = real_rows(a->rows);

    for (int c = 0; c < a->c; c++) {
        float rstd = a->rstd[c];
        double sum, dot;

        bn_sums_of(a, c, &sum, &dot);
        bn_dx_of(a, c, count ? (float)(sum / (double)count) : 0,
                 count ? (float)(dot * rstd * rstd / (double)count) : 0);
    }
    return HVT_OK;
}

static hvt_status bn_sums_ref(hvt_device *d, const hvt_bn_grad_args *a)
{
    HVT_FLOATS;
    const hvt_bn_grad_args g = through_map(a);
    double sum, dot;

    for (int c = 0; c < a->c; c++)
        bn_sums_of(&g, c, &sum, &dot);
    return HVT_OK;
}

static hvt_status bn_dx_ref(hvt_device *d, const hvt_bn_grad_args *a)
{
    HVT_FLOATS;
    hvt_bn_grad_args g = *a;

    if (a->map)
        g.dy = a->dz;
    for (int c = 0; c < a->c; c++)
        bn_dx_of(&g, c, a->share[c], a->slope[c] * a->rstd[c]);
    return HVT_OK;
}

static hvt_status bn_update_ref(hvt_device *d, const hvt_bn_update_args *a)
{
    HVT_FLOATS;
    for (int i = 0; i < a->c && !a->step->stop; i++) {
        a->mean[i] = bn_running(a->mean[i], a->moments[i], a->rate, 1 - a->rate, a->scale);
        a->var[i] = bn_running(a->var[i], a->moments[a->c + i], a->rate, 1 - a->rate, a->scale);
    }
    return HVT_OK;
}

/* ---- bias ---- */

static hvt_status bias_forward_ref(hvt_device *d, hvt_rows rows, int c, hvt_dtype t, const float *b, void *y)
{
    HVT_FLOATS;
    for (size_t i = 0; i < real_rows(rows); i++)
        for (int k = 0; k < c; k++)
            hvt__put_ref(y, t, at_row(rows, i, c, k), b[k], true);
    return HVT_OK;
}

static hvt_status bias_backward_ref(hvt_device *d, hvt_rows rows, int c, hvt_dtype t, const void *dy,
                                    float *db)
{
    HVT_FLOATS;
    for (int k = 0; k < c; k++) {
        double sum = 0;

        for (size_t i = 0; i < real_rows(rows); i++)
            sum += hvt__load(dy, t, at_row(rows, i, c, k));
        db[k] = (float)sum;
    }
    return HVT_OK;
}

/* ---- loss ---- */

static hvt_status xent_ref(hvt_device *d, const hvt_xent_args *a)
{
    HVT_FLOATS;
    size_t rows = (size_t)a->rows.blocks * a->rows.block;
    float scale = (a->scale ? *a->scale : 1) / (float)(a->pixels ? a->pixels : 1);

    for (size_t i = 0; i < rows; i++)
        if (i % a->rows.block < (size_t)a->rows.real) {
            if (!hvt__host_xent_ignores(a, i))
                hvt__host_xent_row(a, i, scale);
        } else
            for (int k = 0; a->dlogits && k < a->classes; k++)
                hvt__store(a->dlogits, a->type, i * a->classes + k, 0);
    hvt__host_xent_sums(a);
    return HVT_OK;
}

static hvt_status mse_ref(hvt_device *d, const hvt_mse_args *a)
{
    HVT_FLOATS;
    hvt__host_mse_rows(a, 0, (size_t)a->rows.blocks * a->rows.block);
    hvt__host_mse_sums(a);
    return HVT_OK;
}

/* ---- on n elements ---- */

static hvt_status relu_forward_ref(hvt_device *d, size_t n, hvt_dtype t, const void *x, void *y)
{
    HVT_FLOATS;
    for (size_t i = 0; i < n; i++)
        hvt__store(y, t, i, f_relu(hvt__load(x, t, i)));
    return HVT_OK;
}

static hvt_status relu_backward_ref(hvt_device *d, size_t n, hvt_dtype t, const void *y, const void *dy,
                                    void *dx, bool add)
{
    HVT_FLOATS;
    for (size_t i = 0; i < n; i++)
        hvt__put_ref(dx, t, i, f_keep(hvt__load(y, t, i), hvt__load(dy, t, i)), add);
    return HVT_OK;
}

static hvt_status add_ref(hvt_device *d, size_t n, hvt_dtype t, const void *a, const void *b, void *y)
{
    HVT_FLOATS;
    for (size_t i = 0; i < n; i++)
        hvt__store(y, t, i, hvt__load(a, t, i) + hvt__load(b, t, i));
    return HVT_OK;
}

static hvt_status zero_ref(hvt_device *d, void *dst, size_t bytes)
{
    if (bytes)
        memset(dst, 0, bytes);
    return HVT_OK;
}

static hvt_status cast_ref(hvt_device *d, size_t n, float s, const void *src, hvt_dtype st, void *dst,
                           hvt_dtype dt)
{
    HVT_FLOATS;
    for (size_t i = 0; i < n; i++)
        hvt__store(dst, dt, i, hvt__load(src, st, i) * s);
    return HVT_OK;
}

/* The sum of in[0 .. count-1] at i along the tree. The left half of a tree over `count` leaves is the largest
 * power of two below `count`. */
static float tree(const void *const in[], hvt_dtype t, int count, size_t i)
{
    int left = 1;

    if (count == 1)
        return hvt__load(in[0], t, i);
    while (left * 2 < count)
        left *= 2;
    return tree(in, t, left, i) + tree(in + left, t, count - left, i);
}

static hvt_status reduce_ref(hvt_device *d, size_t n, hvt_dtype t, const void *const in[], int count,
                             void *out)
{
    HVT_FLOATS;
    for (size_t i = 0; i < n; i++)
        hvt__store(out, t, i, tree(in, t, count, i));
    return HVT_OK;
}

static hvt_status reduce_all_ref(hvt_device *d, size_t n, hvt_dtype t, void *const io[], int count)
{
    HVT_FLOATS;
    for (size_t i = 0; i < n; i++) {
        float sum = tree((const void *const *)io, t, count, i);

        for (int k = 0; k < count; k++)
            hvt__store(io[k], t, i, sum);
    }
    return HVT_OK;
}

/* torch.optim.SGD: lr is applied after momentum; no dampening on the first step or without momentum. */
static hvt_status sgd_ref(hvt_device *d, size_t n, const hvt_sgd_args *a, const float *const g[], int ng,
                          float *w, float *v)
{
    HVT_FLOATS;
    const hvt_step_state *s = a->step;
    sgd_consts k = {s->grad_scale, a->weight_decay, a->momentum, 1 - a->dampening, -s->lr};

    for (size_t i = 0; i < n && s->apply; i++) {
        float step = sgd_gradient(&k, tree((const void *const *)g, HVT_F32, ng, i), w[i]);

        if (a->momentum != 0) {
            v[i] = s->fresh ? step : sgd_velocity(&k, step, v[i]);
            step = a->nesterov ? sgd_nesterov(&k, step, v[i]) : v[i];
        }
        w[i] = sgd_step(&k, w[i], step);
        if (a->copy)
            hvt__store(a->copy, a->copy_type, i, w[i]);
    }
    return HVT_OK;
}

/* torch.optim.Adam and AdamW */
static hvt_status adam_ref(hvt_device *d, size_t n, const hvt_adam_args *a, const float *const g[], int ng,
                           float *w, float *m, float *v)
{
    HVT_FLOATS;
    const hvt_step_state *s = a->step;
    const hvt__adam_numbers x = hvt__adam_numbers_of(a);
    const adam_consts k = {x.scale,  x.decay,      x.keep1, x.beta2, x.keep2,
                           x.shrink, x.minus_rate, x.root,  x.eps};

    for (size_t i = 0; i < n && s->apply; i++) {
        float grad = adam_gradient(&k, tree((const void *const *)g, HVT_F32, ng, i), w[i]);

        m[i] = adam_mean(&k, grad, s->fresh ? 0 : m[i]);
        v[i] = adam_square(&k, grad, s->fresh ? 0 : v[i]);
        w[i] = adam_step(&k, w[i], m[i], v[i]);
        if (a->copy)
            hvt__store(a->copy, a->copy_type, i, w[i]);
    }
    return HVT_OK;
}

static hvt_status ema_ref(hvt_device *d, size_t n, const hvt_step_state *step, const float *w, float *ema)
{
    HVT_FLOATS;
    const float share = step->ema_share;

    for (size_t i = 0; i < n && share != 0; i++)
        ema[i] = share == 1 ? w[i] : ema_next(share, w[i], ema[i]);
    return HVT_OK;
}

/* ---- factors: filters are contiguous, so a gradient is [k, m] ---- */

static hvt_status factor_p_ref(hvt_device *d, const hvt_factor_args *a)
{
    HVT_FLOATS;
    for (size_t i = 0; i < (size_t)a->k * (size_t)a->m; i++)
        a->e[i] += a->g[i];
    for (int t = 0; t < a->r; t++)
        for (int k = 0; k < a->k; k++) {
            double sum = 0;

            for (int j = 0; j < a->m; j++)
                sum += (double)a->e[(size_t)k * a->m + j] * a->q[(size_t)t * a->m + j];
            a->p[(size_t)t * a->k + k] = (float)sum;
        }
    return HVT_OK;
}

static hvt_status factor_q_ref(hvt_device *d, const hvt_factor_args *a)
{
    HVT_FLOATS;
    for (int t = 0; t < a->r; t++)
        for (int j = 0; j < a->m; j++) {
            double sum = 0;

            for (int k = 0; k < a->k; k++)
                sum += (double)a->e[(size_t)k * a->m + j] * a->p[(size_t)t * a->k + k];
            a->q[(size_t)t * a->m + j] = (float)sum;
        }
    return HVT_OK;
}

static hvt_status factor_join_ref(hvt_device *d, const hvt_factor_args *a)
{
    HVT_FLOATS;
    for (int k = 0; k < a->k; k++)
        for (int j = 0; j < a->m; j++) {
            size_t i = (size_t)k * a->m + j;
            double sum = 0;

            for (int t = 0; t < a->r; t++)
                sum += (double)a->p[(size_t)t * a->k + k] * a->q[(size_t)t * a->m + j];
            a->g[i] = (float)sum;
            a->e[i] -= a->share * a->g[i];
        }
    return HVT_OK;
}

static hvt_status check_ref(hvt_device *d, size_t n, const float *g, uint64_t base, hvt_step_state *step)
{
    HVT_FLOATS;
    for (size_t i = 0; i < n && base + i < step->bad; i++)
        if (!isfinite(g[i]))
            step->bad = base + i;
    return HVT_OK;
}

static hvt_status squares_ref(hvt_device *d, size_t n, const float *g, hvt_step_state *step)
{
    HVT_FLOATS;
    hvt__host_squares(n, g, step->squares);
    return HVT_OK;
}

/* ---- images ---- */

/* A finished pixel's channel, before mixing: cropped, mirrored, normalised; 0 if it is erased. */
static float finished(const hvt_augment_args *a, int n, int p, int q, int c)
{
    const int8_t *draw = a->draws ? a->draws + n * 3 : (const int8_t[3]){0};
    const int16_t *box = a->erased ? a->erased + n * 4 : (const int16_t[4]){0};
    int h = p + draw[0], w = (draw[2] ? a->w - 1 - q : q) + draw[1];
    bool inside = h >= 0 && h < a->h && w >= 0 && w < a->w;
    size_t at = (((size_t)n * a->h + h) * a->w + w) * a->c + c;
    float x = !inside ? 0 : a->floats ? ((const float *)a->src)[at] : ((const uint8_t *)a->src)[at];

    if (p >= box[0] && p < box[0] + box[2] && q >= box[1] && q < box[1] + box[3])
        return 0;
    return f_fma(x, a->scale[c], a->shift[c]);
}

static hvt_status augment_ref(hvt_device *d, const hvt_augment_args *a)
{
    HVT_FLOATS;
    const hvt_mixing *m = &a->mixing;

    hvt__host_answers(a);
    for (int n = 0; n < a->real; n++)
        for (int p = 0; p < a->h; p++)
            for (int q = 0; q < a->w; q++) {
                bool mixed = p >= m->top && p < m->bottom && q >= m->left && q < m->right;
                size_t to = hvt__row_of(a->order, a->n, a->h, a->w, n, p, q) * a->cx;

                for (int c = 0; c < a->c; c++) {
                    float x = finished(a, n, p, q, c);

                    if (mixed)
                        x = augment_mix(m->share, x, finished(a, n ? n - 1 : a->real - 1, p, q, c));
                    hvt__store(a->dst, a->type, to + c, x);
                }
                for (int c = a->c; c < a->cx; c++)
                    hvt__store(a->dst, a->type, to + c, 0);
            }
    return HVT_OK;
}

#define ENTRY(entry, op)   .entry = op##_ref,
#define GENERAL(entry, op) .entry = hvt__##op##_ref,

const hvt_device_ops hvt_device_ref = {
    .name = "ref",
    .open = open_ref,
    HVT__OPS(ENTRY) HVT__GENERAL_OPS(GENERAL) HVT_HOST_OPS,
    GENERAL(resample.forward, resample_forward) GENERAL(resample.backward, resample_backward).conv.permute =
        hvt__conv_permute_krsc,
    .recomputes = true,
    .memory.copy = hvt__host_copy,
    .memory.zero = zero_ref,
    .host_only.reduce_all = reduce_all_ref,
    .host_only.factor_p = factor_p_ref,
    .host_only.factor_q = factor_q_ref,
    .host_only.factor_join = factor_join_ref,
    .augment = augment_ref,
};
