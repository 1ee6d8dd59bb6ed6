/* Batch norm on device ref: Ioffe and Szegedy 2015, as torch.nn.BatchNorm2d computes it. */
#include "ref.h"
#include "scalar.h"

static void normalise(const hvt_bn_args *a, int c, float mean, float rstd)
{
    float scale = a->gamma[c] * rstd;

    for (size_t i = 0; i < hvt__real_rows_ref(a->rows); i++) {
        size_t at = hvt__at_row_ref(a->rows, i, a->c, c);
        float y = bn_value(hvt__load(a->x, a->type, at), mean, scale, a->beta[c]);

        if (a->residual)
            y += hvt__load(a->residual, a->type, at);
        hvt__store(a->y, a->type, at, a->relu ? f_relu(y) : y);
        if (a->map)
            hvt__map_forward_ref(NULL, 1, a->type, a->map, hvt__at(a->y, a->type, at),
                                 hvt__at(a->y, a->type, at));
    }
}

/* Computes the mean of channel c, and the sum of squared deviations from it. */
static void moments_of(const hvt_bn_args *a, int c, double *ret_mean, double *ret_m2)
{
    size_t count = hvt__real_rows_ref(a->rows);
    double mean = 0, m2 = 0;

    for (size_t i = 0; i < count; i++)
        mean += hvt__load(a->x, a->type, hvt__at_row_ref(a->rows, i, a->c, c));
    mean /= count ? (double)count : 1;
    for (size_t i = 0; i < count; i++) {
        double off = hvt__load(a->x, a->type, hvt__at_row_ref(a->rows, i, a->c, c)) - mean;

        m2 += off * off;
    }
    *ret_mean = mean;
    *ret_m2 = m2;
}

hvt_status hvt__bn_moments_ref(hvt_device *d, const hvt_bn_args *a)
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

hvt_status hvt__bn_train_ref(hvt_device *d, const hvt_bn_args *a)
{
    HVT_FLOATS;
    size_t count = hvt__real_rows_ref(a->rows);

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

hvt_status hvt__bn_infer_ref(hvt_device *d, const hvt_bn_args *a)
{
    HVT_FLOATS;
    for (int c = 0; c < a->c; c++)
        normalise(a, c, a->mean[c],
                  a->is_variance ? (float)(1 / sqrt((double)a->rstd[c] + a->eps)) : a->rstd[c]);
    return HVT_OK;
}

/* If a function follows: computes dz, and returns arguments with dz as dy and without the function. */
static hvt_bn_grad_args through_map(const hvt_bn_grad_args *a)
{
    hvt_bn_grad_args g = *a;

    for (size_t i = 0; a->map && i < hvt__real_rows_ref(a->rows) * (size_t)a->c; i++) {
        int c = (int)(i % (size_t)a->c);
        size_t at = hvt__at_row_ref(a->rows, i / (size_t)a->c, a->c, c);
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

/* Computes the sums over channel c of dz and of dz * (x - mean). */
static void bn_sums_of(const hvt_bn_grad_args *a, int c, double *ret_sum, double *ret_dot)
{
    double sum = 0, dot = 0;

    for (size_t i = 0; i < hvt__real_rows_ref(a->rows); i++) {
        size_t at = hvt__at_row_ref(a->rows, i, a->c, c);
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

    for (size_t i = 0; i < hvt__real_rows_ref(a->rows); i++) {
        size_t at = hvt__at_row_ref(a->rows, i, a->c, c);
        float dz = masked(a, at);
        float g = bn_dx(hvt__load(a->x, a->type, at), mean, scale, share, slope, dz);

        if (a->dresidual)
            hvt__put_ref(a->dresidual, a->type, at, dz, a->add_residual);
        hvt__put_ref(a->dx, a->type, at, g, a->add);
    }
}

hvt_status hvt__bn_backward_ref(hvt_device *d, const hvt_bn_grad_args *given)
{
    HVT_FLOATS;
    const hvt_bn_grad_args g = through_map(given), *a = &g;
    size_t count = hvt__real_rows_ref(a->rows);

    for (int c = 0; c < a->c; c++) {
        float rstd = a->rstd[c];
        double sum, dot;

        bn_sums_of(a, c, &sum, &dot);
        bn_dx_of(a, c, count ? (float)(sum / (double)count) : 0,
                 count ? (float)(dot * rstd * rstd / (double)count) : 0);
    }
    return HVT_OK;
}

hvt_status hvt__bn_sums_ref(hvt_device *d, const hvt_bn_grad_args *a)
{
    HVT_FLOATS;
    const hvt_bn_grad_args g = through_map(a);
    double sum, dot;

    for (int c = 0; c < a->c; c++)
        bn_sums_of(&g, c, &sum, &dot);
    return HVT_OK;
}

hvt_status hvt__bn_dx_ref(hvt_device *d, const hvt_bn_grad_args *a)
{
    HVT_FLOATS;
    hvt_bn_grad_args g = *a;

    if (a->map)
        g.dy = a->dz;
    for (int c = 0; c < a->c; c++)
        bn_dx_of(&g, c, a->share[c], a->slope[c] * a->rstd[c]);
    return HVT_OK;
}

hvt_status hvt__bn_update_ref(hvt_device *d, const hvt_bn_update_args *a)
{
    HVT_FLOATS;
    for (int i = 0; i < a->c && !a->step->stop; i++) {
        a->mean[i] = bn_running(a->mean[i], a->moments[i], a->rate, 1 - a->rate, a->scale);
        a->var[i] = bn_running(a->var[i], a->moments[a->c + i], a->rate, 1 - a->rate, a->scale);
    }
    return HVT_OK;
}
