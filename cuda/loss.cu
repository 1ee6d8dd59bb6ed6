/*
 * Softmax cross-entropy and mean squared error: one block per row, then one block that sums the rows in
 * order.
 */
#include "lanes.h"

/* Reduce the threads' values along a tree; every thread gets the result. */
template <class X, class Join> HVT_FN X block_join(X mine, Join join)
{
    struct shared {
        X at[THREADS];
    };
    HVT_SHARED(shared, s);
    const unsigned me = threadIdx.x;

    __syncthreads(); /* threads may still read the previous result */
    s.at[me] = mine;
    for (unsigned half = blockDim.x / 2; half; half /= 2) {
        __syncthreads();
        if (me < half)
            s.at[me] = join(s.at[me], s.at[me + half]);
    }
    __syncthreads();
    return s.at[0];
}

struct scan {
    float max, poison;
    int label_rank; /* classes ranked before the label */
};

template <class T>
__global__ void __launch_bounds__(THREADS) xent_kernel(__grid_constant__ const hvt_xent_args a)
{
    const int row = (int)blockIdx.x, step = (int)blockDim.x;
    const T *x = (const T *)a.logits + (size_t)row * a.classes;
    T *dx = a.dlogits ? (T *)a.dlogits + (size_t)row * a.classes : NULL;

    if (row >= a.rows.real) {
        for (int k = (int)threadIdx.x; dx && k < a.classes; k += step)
            from_float(0, dx[k]);
        return;
    }

    const int label = a.labels[row];
    /* for a label out of range the loss becomes NaN, and nothing outside of the logits is read */
    const float target = label >= 0 && label < a.classes ? to_float(x[label]) : NAN;
    scan all = {-INFINITY, 0, 0};
    const float *soft = a.soft ? a.soft + (size_t)row * a.classes : NULL;
    float sum = 0, logits = 0, weighted = 0;

    for (int k = (int)threadIdx.x; k < a.classes; k += step) {
        const float here = to_float(x[k]);

        all.max = here > all.max ? here : all.max;
        all.poison += xent_poison(here);
        all.label_rank += xent_before(here, target, k, label);
        logits += here;
        weighted += soft ? soft[k] * here : 0;
    }
    all = block_join(all, [](scan p, scan q) {
        return scan{q.max > p.max ? q.max : p.max, p.poison + q.poison, p.label_rank + q.label_rank};
    });
    for (int k = (int)threadIdx.x; k < a.classes; k += step)
        sum += expf(to_float(x[k]) - all.max);
    sum = block_join(sum, [](float p, float q) { return p + q; });

    if (a.smoothing > 0)
        logits = block_join(logits, [](float p, float q) { return p + q; });

    if (soft)
        weighted = block_join(weighted, [](float p, float q) { return p + q; });

    if (threadIdx.x == 0) {
        const float hard = soft ? weighted : target;
        const float smooth =
            a.smoothing > 0 ? xent_smooth_target(a.smoothing, a.classes, hard, logits) : hard;

        a.loss[row] = xent_loss(sum, smooth, all.max, all.poison);
        a.label_rank[row] = all.label_rank;
    }
    if (dx) {
        const float scale = a.scale ? *a.scale : 1;

        for (int k = (int)threadIdx.x; k < a.classes; k += step) {
            const float hit = soft ? xent_smooth_soft(a.smoothing, a.classes, soft[k])
                                   : xent_smooth_hit(a.smoothing, a.classes, k == label);

            from_float((expf(to_float(x[k]) - all.max) / sum - hit) * scale, dx[k]);
        }
    }
}

template <class T>
__global__ void __launch_bounds__(THREADS) mse_kernel(__grid_constant__ const hvt_mse_args a)
{
    const int row = (int)blockIdx.x, step = (int)blockDim.x;
    const T *y = (const T *)a.y + (size_t)row * a.outputs;
    const float *target = a.targets + (size_t)row * a.outputs;
    T *dy = a.dy ? (T *)a.dy + (size_t)row * a.outputs : NULL;
    const float scale = a.scale ? *a.scale : 1;
    float squares = 0, absolute = 0;

    if (row >= a.rows.real) {
        for (int k = (int)threadIdx.x; dy && k < a.outputs; k += step)
            from_float(0, dy[k]);
        return;
    }
    for (int k = (int)threadIdx.x; k < a.outputs; k += step) {
        const float off = to_float(y[k]) - target[k];

        squares += off * off;
        absolute += fabsf(off);
        if (dy)
            from_float(a.absolute ? mae_grad(off, a.outputs, scale) : mse_grad(off, a.outputs, scale), dy[k]);
    }
    squares = block_join(squares, [](float p, float q) { return p + q; });
    absolute = block_join(absolute, [](float p, float q) { return p + q; });
    if (threadIdx.x == 0) {
        a.loss[row] = (a.absolute ? absolute : squares) / (float)a.outputs;
        a.error[row] = absolute / (float)a.outputs;
    }
}

/* error is NULL for a cross-entropy, label_rank for a mean squared error. */
static __global__ void __launch_bounds__(THREADS)
    sums_kernel(int rows, const float *loss, const int32_t *label_rank, const float *error, float *sums)
{
    struct shared {
        float loss[THREADS], error[THREADS];
    };
    HVT_SHARED(shared, s);
    double sum = 0, errors = 0;
    int top1 = 0, top5 = 0;

    for (int first = 0; first < rows; first += THREADS) {
        const int row = first + (int)threadIdx.x, left = rows - first,
                  count = left < THREADS ? left : THREADS;

        __syncthreads();
        if (row < rows) {
            s.loss[threadIdx.x] = loss[row];
            s.error[threadIdx.x] = error ? error[row] : 0;
            top1 += label_rank && label_rank[row] < 1;
            top5 += label_rank && label_rank[row] < 5;
        }
        __syncthreads();
        for (int i = 0; threadIdx.x == 0 && i < count; i++) {
            sum += s.loss[i];
            errors += s.error[i];
        }
    }
    top1 = block_join(top1, [](int p, int q) { return p + q; });
    top5 = block_join(top5, [](int p, int q) { return p + q; });
    if (threadIdx.x == 0) {
        sums[HVT__SUM_LOSS] = (float)sum;
        sums[HVT__SUM_TOP5] = (float)top5;
        sums[HVT__SUM_WEIGHT] = 0;
        if (error)
            sums[HVT__SUM_ERROR] = (float)errors;
        else
            sums[HVT__SUM_TOP1] = (float)top1;
    }
}

hvt_status hvt__xent_cuda(hvt_device *d, const hvt_xent_args *a)
{
    const int rows = a->dlogits ? a->rows.block : a->rows.real;

    if (rows > 0)
        HVT_TRY(with_type(a->type, [=](auto zero) {
            return HVT_LAUNCH(d, (xent_kernel<decltype(zero)>), rows, line_threads(a->classes), *a);
        }));
    return HVT_LAUNCH(d, sums_kernel, 1, THREADS, a->rows.real, a->loss, a->label_rank, (const float *)NULL,
                      a->sums);
}

hvt_status hvt__mse_cuda(hvt_device *d, const hvt_mse_args *a)
{
    const int rows = a->dy ? a->rows.block : a->rows.real;

    if (rows > 0)
        HVT_TRY(with_type(a->type, [=](auto zero) {
            return HVT_LAUNCH(d, (mse_kernel<decltype(zero)>), rows, line_threads(a->outputs), *a);
        }));
    return HVT_LAUNCH(d, sums_kernel, 1, THREADS, a->rows.real, a->loss, (const int32_t *)NULL, a->error,
                      a->sums);
}
