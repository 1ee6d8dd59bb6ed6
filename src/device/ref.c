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

hvt_status hvt__subsample_forward_ref(hvt_device *dev, const hvt_subsample_desc *d, const void *x, void *y)
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

hvt_status hvt__subsample_backward_ref(hvt_device *dev, const hvt_subsample_desc *d, const void *dy, void *dx,
                                       bool add)
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

/* ---- bias ---- */

hvt_status hvt__bias_forward_ref(hvt_device *d, hvt_rows rows, int c, hvt_dtype t, const float *b, void *y)
{
    HVT_FLOATS;
    for (size_t i = 0; i < hvt__real_rows_ref(rows); i++)
        for (int k = 0; k < c; k++)
            hvt__put_ref(y, t, hvt__at_row_ref(rows, i, c, k), b[k], true);
    return HVT_OK;
}

hvt_status hvt__bias_backward_ref(hvt_device *d, hvt_rows rows, int c, hvt_dtype t, const void *dy, float *db)
{
    HVT_FLOATS;
    for (int k = 0; k < c; k++) {
        double sum = 0;

        for (size_t i = 0; i < hvt__real_rows_ref(rows); i++)
            sum += hvt__load(dy, t, hvt__at_row_ref(rows, i, c, k));
        db[k] = (float)sum;
    }
    return HVT_OK;
}

/* ---- loss ---- */

hvt_status hvt__xent_ref(hvt_device *d, const hvt_xent_args *a)
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

hvt_status hvt__mse_ref(hvt_device *d, const hvt_mse_args *a)
{
    HVT_FLOATS;
    hvt__host_mse_rows(a, 0, (size_t)a->rows.blocks * a->rows.block);
    hvt__host_mse_sums(a);
    return HVT_OK;
}

/* ---- on n elements ---- */

hvt_status hvt__relu_forward_ref(hvt_device *d, size_t n, hvt_dtype t, const void *x, void *y)
{
    HVT_FLOATS;
    for (size_t i = 0; i < n; i++)
        hvt__store(y, t, i, f_relu(hvt__load(x, t, i)));
    return HVT_OK;
}

hvt_status hvt__relu_backward_ref(hvt_device *d, size_t n, hvt_dtype t, const void *y, const void *dy,
                                  void *dx, bool add)
{
    HVT_FLOATS;
    for (size_t i = 0; i < n; i++)
        hvt__put_ref(dx, t, i, f_keep(hvt__load(y, t, i), hvt__load(dy, t, i)), add);
    return HVT_OK;
}

hvt_status hvt__add_ref(hvt_device *d, size_t n, hvt_dtype t, const void *a, const void *b, void *y)
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

hvt_status hvt__cast_ref(hvt_device *d, size_t n, float s, const void *src, hvt_dtype st, void *dst,
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

hvt_status hvt__reduce_ref(hvt_device *d, size_t n, hvt_dtype t, const void *const in[], int count, void *out)
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
hvt_status hvt__sgd_ref(hvt_device *d, size_t n, const hvt_sgd_args *a, const float *const g[], int ng,
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
hvt_status hvt__adam_ref(hvt_device *d, size_t n, const hvt_adam_args *a, const float *const g[], int ng,
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

hvt_status hvt__ema_ref(hvt_device *d, size_t n, const hvt_step_state *step, const float *w, float *ema)
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

hvt_status hvt__check_ref(hvt_device *d, size_t n, const float *g, uint64_t base, hvt_step_state *step)
{
    HVT_FLOATS;
    for (size_t i = 0; i < n && base + i < step->bad; i++)
        if (!isfinite(g[i]))
            step->bad = base + i;
    return HVT_OK;
}

hvt_status hvt__squares_ref(hvt_device *d, size_t n, const float *g, hvt_step_state *step)
{
    HVT_FLOATS;
    hvt__host_squares(n, g, step->squares);
    return HVT_OK;
}

/* ---- images ---- */

/* Returns a channel of an output pixel before mixing: cropped, mirrored, normalised; 0 if erased. */
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

#define ENTRY(entry, op) .entry = hvt__##op##_ref,

const hvt_device_ops hvt_device_ref = {
    .name = "ref",
    .open = open_ref,
    HVT__OPS(ENTRY) HVT__GENERAL_OPS(ENTRY) HVT_HOST_OPS,
    ENTRY(resample.forward, resample_forward) ENTRY(resample.backward, resample_backward)
        ENTRY(matmul.room, matmul_room) ENTRY(matmul.run, matmul_run)
            .conv.permute = hvt__conv_permute_krsc,
    .recomputes = true,
    .memory.copy = hvt__host_copy,
    .memory.zero = zero_ref,
    .host_only.reduce_all = reduce_all_ref,
    .host_only.factor_p = factor_p_ref,
    .host_only.factor_q = factor_q_ref,
    .host_only.factor_join = factor_join_ref,
    .augment = augment_ref,
};
