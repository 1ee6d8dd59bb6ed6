/*
 * The reference device: every op in plain C, on one thread, in an obvious order. It is the specification, the
 * fallback and the oracle for the others: sums are taken in double, elementwise ops are formula.h on one
 * float at a time (so the cpu device must give the same bits), and sums read valid rows only.
 */
#include "base_impl.h"
#include "host.h"
#include "ref_impl.h"

#include <math.h>
#include <string.h>

/* ---- life ---- */

static void close_ref(hvt_device *d)
{
    (void)d;
}

static hvt_status open_ref(hvt_device *d, const hvt_device_opts *opts)
{
    HVT_CHECK(!opts->isa || !strcmp(opts->isa, "auto") || !strcmp(opts->isa, "plain"), E_ARG,
              "device ref has no instruction set '%s'; it is plain", opts->isa);
    d->isa = "plain";
    d->threads = 1;
    return HVT_OK;
}

static hvt_order order_ref(const hvt_device *d, int batch, int height, int width)
{
    (void)d;
    (void)batch;
    (void)height;
    (void)width;
    return HVT_ORDER_NHW;
}

/* ---- rows ---- */

/* the i-th valid row of a matrix */
static size_t real_row(hvt_rows r, size_t i)
{
    return i / r.real * r.block + i % r.real;
}

static size_t real_rows(hvt_rows r)
{
    return (size_t)r.blocks * r.real;
}

/* ---- batch norm: Ioffe and Szegedy 2015, as torch.nn.BatchNorm2d computes it ---- */

static void normalise(const hvt_bn_args *a, int c, float mean, float rstd)
{
    float scale = a->gamma[c] * rstd;

    for (size_t i = 0; i < real_rows(a->rows); i++) {
        size_t at = real_row(a->rows, i) * a->c + c;
        float y = bn_value(hvt__load(a->x, a->type, at), mean, scale, a->beta[c]);

        if (a->residual)
            y += hvt__load(a->residual, a->type, at);
        hvt__store(a->y, a->type, at, a->relu ? f_relu(y) : y);
    }
}

static hvt_status bn_train_ref(hvt_device *d, const hvt_bn_args *a)
{
    HVT_FLOATS;
    size_t count = real_rows(a->rows);

    (void)d;
    for (int c = 0; c < a->c; c++) {
        double mean = 0, m2 = 0;

        for (size_t i = 0; i < count; i++)
            mean += hvt__load(a->x, a->type, real_row(a->rows, i) * a->c + c);
        mean /= count ? (double)count : 1;
        for (size_t i = 0; i < count; i++) {
            double off = hvt__load(a->x, a->type, real_row(a->rows, i) * a->c + c) - mean;

            m2 += off * off;
        }
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
    (void)d;
    for (int c = 0; c < a->c; c++)
        normalise(a, c, a->mean[c], (float)(1 / sqrt((double)a->rstd[c] + a->eps)));
    return HVT_OK;
}

static hvt_status bn_recompute_ref(hvt_device *d, const hvt_bn_args *a)
{
    HVT_FLOATS;
    (void)d;
    for (int c = 0; c < a->c; c++)
        normalise(a, c, a->mean[c], a->rstd[c]);
    return HVT_OK;
}

/* dz: dy masked by relu */
static float masked(const hvt_bn_grad_args *a, size_t at)
{
    float dz = hvt__load(a->dy, a->type, at);

    return a->y ? f_keep(hvt__load(a->y, a->type, at), dz) : dz;
}

static hvt_status bn_backward_ref(hvt_device *d, const hvt_bn_grad_args *a)
{
    HVT_FLOATS;
    size_t count = real_rows(a->rows);

    (void)d;
    for (int c = 0; c < a->c; c++) {
        float mean = a->mean[c], rstd = a->rstd[c], scale = a->gamma[c] * rstd, share, slope;
        double sum = 0, dot = 0;

        for (size_t i = 0; i < count; i++) {
            size_t at = real_row(a->rows, i) * a->c + c;
            float dz = masked(a, at);

            sum += dz;
            dot += (double)dz * ((double)hvt__load(a->x, a->type, at) - mean);
        }
        a->dbeta[c] = (float)sum;
        a->dgamma[c] = (float)(dot * rstd);
        share = count ? (float)(sum / (double)count) : 0;
        slope = count ? (float)(dot * rstd * rstd / (double)count) : 0;
        for (size_t i = 0; i < count; i++) {
            size_t at = real_row(a->rows, i) * a->c + c;
            float dz = masked(a, at);
            float g = bn_dx(hvt__load(a->x, a->type, at), mean, scale, share, slope, dz);

            if (a->dresidual)
                put(a->dresidual, a->type, at, dz, a->add_residual);
            put(a->dx, a->type, at, g, a->add);
        }
    }
    return HVT_OK;
}

static hvt_status bn_update_ref(hvt_device *d, const hvt_step_state *step, int c, float rate, float scale,
                                const float *moments, float *run_mean, float *run_var)
{
    HVT_FLOATS;
    (void)d;
    for (int i = 0; i < c && !step->stop; i++) {
        run_mean[i] = bn_running(run_mean[i], moments[i], rate, 1 - rate, scale);
        run_var[i] = bn_running(run_var[i], moments[c + i], rate, 1 - rate, scale);
    }
    return HVT_OK;
}

/* ---- bias ---- */

static hvt_status bias_forward_ref(hvt_device *d, hvt_rows rows, int c, hvt_dtype t, const float *b, void *y)
{
    HVT_FLOATS;
    (void)d;
    for (size_t i = 0; i < real_rows(rows); i++)
        for (int k = 0; k < c; k++)
            put(y, t, real_row(rows, i) * c + k, b[k], true);
    return HVT_OK;
}

static hvt_status bias_backward_ref(hvt_device *d, hvt_rows rows, int c, hvt_dtype t, const void *dy,
                                    float *db)
{
    HVT_FLOATS;
    (void)d;
    for (int k = 0; k < c; k++) {
        double sum = 0;

        for (size_t i = 0; i < real_rows(rows); i++)
            sum += hvt__load(dy, t, real_row(rows, i) * c + k);
        db[k] = (float)sum;
    }
    return HVT_OK;
}

/* ---- loss ---- */

static void xent_row(const hvt_xent_args *a, size_t row, float scale)
{
    size_t at = row * (size_t)a->classes;
    int label = a->labels[row], label_rank = 0;
    float target = hvt__load(a->logits, a->type, at + label), max = hvt__load(a->logits, a->type, at),
          poison = 0;
    double sum = 0;

    for (int k = 0; k < a->classes; k++) {
        float x = hvt__load(a->logits, a->type, at + k);

        max = x > max ? x : max;
        poison += xent_poison(x);
        label_rank += xent_before(x, target, k, label);
    }
    for (int k = 0; k < a->classes; k++)
        sum += exp((double)hvt__load(a->logits, a->type, at + k) - max);
    for (int k = 0; a->dlogits && k < a->classes; k++) {
        double softmax = exp((double)hvt__load(a->logits, a->type, at + k) - max) / sum;

        hvt__store(a->dlogits, a->type, at + k, (float)(softmax - (k == label)) * scale);
    }
    a->loss[row] = xent_loss(sum, target, max, poison);
    a->label_rank[row] = label_rank;
}

static hvt_status xent_ref(hvt_device *d, const hvt_xent_args *a)
{
    HVT_FLOATS;
    size_t rows = (size_t)a->rows.blocks * a->rows.block;
    double sum = 0, top1 = 0, top5 = 0;
    float scale = a->scale ? *a->scale : 1;

    (void)d;
    for (size_t i = 0; i < rows; i++) {
        if (i % a->rows.block >= (size_t)a->rows.real) {
            for (int k = 0; a->dlogits && k < a->classes; k++)
                hvt__store(a->dlogits, a->type, i * a->classes + k, 0);
            continue;
        }
        xent_row(a, i, scale);
        sum += a->loss[i];
        top1 += a->label_rank[i] < 1;
        top5 += a->label_rank[i] < 5;
    }
    a->sums[0] = (float)sum;
    a->sums[1] = (float)top1;
    a->sums[2] = (float)top5;
    return HVT_OK;
}

/* ---- on n elements ---- */

static hvt_status relu_forward_ref(hvt_device *d, size_t n, hvt_dtype t, const void *x, void *y)
{
    HVT_FLOATS;
    (void)d;
    for (size_t i = 0; i < n; i++)
        hvt__store(y, t, i, f_relu(hvt__load(x, t, i)));
    return HVT_OK;
}

static hvt_status relu_backward_ref(hvt_device *d, size_t n, hvt_dtype t, const void *y, const void *dy,
                                    void *dx, bool add)
{
    HVT_FLOATS;
    (void)d;
    for (size_t i = 0; i < n; i++)
        put(dx, t, i, f_keep(hvt__load(y, t, i), hvt__load(dy, t, i)), add);
    return HVT_OK;
}

static hvt_status add_ref(hvt_device *d, size_t n, hvt_dtype t, const void *a, const void *b, void *y)
{
    HVT_FLOATS;
    (void)d;
    for (size_t i = 0; i < n; i++)
        hvt__store(y, t, i, hvt__load(a, t, i) + hvt__load(b, t, i));
    return HVT_OK;
}

static hvt_status zero_ref(hvt_device *d, void *dst, size_t bytes)
{
    (void)d;
    if (bytes)
        memset(dst, 0, bytes);
    return HVT_OK;
}

static hvt_status cast_ref(hvt_device *d, size_t n, float s, const void *src, hvt_dtype st, void *dst,
                           hvt_dtype dt)
{
    HVT_FLOATS;
    (void)d;
    for (size_t i = 0; i < n; i++)
        hvt__store(dst, dt, i, hvt__load(src, st, i) * s);
    return HVT_OK;
}

/* The sum of in[0 .. count-1] at i along the tree. The left half of a tree over `count` leaves is the largest
 * power of two below it. */
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
    (void)d;
    for (size_t i = 0; i < n; i++)
        hvt__store(out, t, i, tree(in, t, count, i));
    return HVT_OK;
}

static hvt_status reduce_all_ref(hvt_device *d, size_t n, hvt_dtype t, void *const io[], int count)
{
    HVT_FLOATS;
    (void)d;
    for (size_t i = 0; i < n; i++) {
        float sum = tree((const void *const *)io, t, count, i);

        for (int k = 0; k < count; k++)
            hvt__store(io[k], t, i, sum);
    }
    return HVT_OK;
}

/* torch.optim.SGD: lr after momentum, no dampening on the first step, none without momentum. */
static hvt_status sgd_ref(hvt_device *d, size_t n, const hvt_sgd_args *a, const float *const g[], int ng,
                          float *w, float *v)
{
    HVT_FLOATS;
    const hvt_step_state *s = a->step;
    sgd_consts k = {s->grad_scale, a->weight_decay, a->momentum, 1 - a->dampening, -s->lr};

    (void)d;
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

/* ---- factors: filters are contiguous, so a gradient already is [k, m] ---- */

static hvt_status factor_p_ref(hvt_device *d, const hvt_factor_args *a)
{
    HVT_FLOATS;
    (void)d;
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
    (void)d;
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
    (void)d;
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
    (void)d;
    for (size_t i = 0; i < n && base + i < step->bad; i++)
        if (!isfinite(g[i]))
            step->bad = base + i;
    return HVT_OK;
}

/* ---- images ---- */

/* Crop, then mirror, then normalise. */
static hvt_status augment_ref(hvt_device *d, const hvt_augment_args *a)
{
    HVT_FLOATS;
    (void)d;
    for (int n = 0; n < a->real; n++) {
        int dy = a->draws ? a->draws[n * 3] : 0, dx = a->draws ? a->draws[n * 3 + 1] : 0;
        bool mirror = a->draws && a->draws[n * 3 + 2];

        for (int p = 0; p < a->h; p++)
            for (int q = 0; q < a->w; q++) {
                int h = p + dy, w = (mirror ? a->w - 1 - q : q) + dx;
                bool inside = h >= 0 && h < a->h && w >= 0 && w < a->w;
                size_t to = row_of(a->order, a->n, a->h, a->w, n, p, q) * a->cx;

                for (int c = 0; c < a->c; c++) {
                    uint8_t byte = inside ? a->src[(((size_t)n * a->h + h) * a->w + w) * a->c + c] : 0;

                    hvt__store(a->dst, a->type, to + c, f_fma(byte, a->scale[c], a->shift[c]));
                }
                for (int c = a->c; c < a->cx; c++)
                    hvt__store(a->dst, a->type, to + c, 0);
            }
        a->dst_labels[n] = a->labels[n];
    }
    return HVT_OK;
}

const hvt_device_ops hvt_device_ref = {
    .name = "ref",
    .open = open_ref,
    .close = close_ref,
    .order = order_ref,
    .channels = hvt__host_channels,
    .describe = hvt__host_describe,
    .host = true,
    .alloc = hvt__host_alloc,
    .release = hvt__host_release,
    .alloc_host = hvt__host_alloc,
    .release_host = hvt__host_release,
    .upload = hvt__host_copy,
    .download = hvt__host_copy,
    .put = hvt__host_copy,
    .mark = hvt__host_mark,
    .await = hvt__host_await,
    .sync = hvt__host_sync,
    .conv_plan = hvt__conv_plan_ref,
    .conv_permute = hvt__conv_permute_ref,
    .conv_pack_weights = hvt__conv_pack_weights_ref,
    .conv_forward = hvt__conv_forward_ref,
    .conv_backward_x = hvt__conv_backward_x_ref,
    .conv_backward_w = hvt__conv_backward_w_ref,
    .pooling_plan = hvt__pooling_plan_ref,
    .pooling_forward = hvt__pooling_forward_ref,
    .pooling_backward = hvt__pooling_backward_ref,
    .bn_train = bn_train_ref,
    .bn_infer = bn_infer_ref,
    .bn_recompute = bn_recompute_ref,
    .bn_backward = bn_backward_ref,
    .bn_update = bn_update_ref,
    .bias_forward = bias_forward_ref,
    .bias_backward = bias_backward_ref,
    .subsample_forward = hvt__subsample_forward_ref,
    .subsample_backward = hvt__subsample_backward_ref,
    .xent = xent_ref,
    .relu_forward = relu_forward_ref,
    .relu_backward = relu_backward_ref,
    .add = add_ref,
    .copy = hvt__host_copy,
    .zero = zero_ref,
    .cast = cast_ref,
    .reduce = reduce_ref,
    .reduce_all = reduce_all_ref,
    .sgd = sgd_ref,
    .factor_p = factor_p_ref,
    .factor_q = factor_q_ref,
    .factor_join = factor_join_ref,
    .check = check_ref,
    .decide = hvt__host_decide,
    .augment = augment_ref,
};
