/*
 * Batch norm and bias: sums per channel of a matrix [rows, c], and functions of every row.
 */
#include "rows.h"
#include "maps.h"

#include "device/join.h"

/* ---- batch norm, forward ---- */

struct moments : spread {
    typedef hvt_bn_args args;
    typedef moments reducer;

    static __device__ void finish(const args &a, int rows, int c, int col, const float (&sum)[K][1])
    {
        const float mean = sum[0][0], m2 = sum[1][0];

        a.mean[col] = mean;
        a.rstd[col] = (float)(1 / sqrt(m2 / (double)(rows ? rows : 1) + a.eps));
        a.moments[col] = rows < 2 ? 0 : a.weight * mean;
        a.moments[c + col] = rows < 2 ? 0 : a.weight * (float)(m2 / (double)(rows - 1));
    }
};

/* Moments of one shard, to be joined with other shards'. */
struct own_moments : spread {
    typedef hvt_bn_args args;
    typedef own_moments reducer;

    static __device__ void finish(const args &a, int, int c, int col, const float (&sum)[K][1])
    {
        a.moments[col] = sum[0][0];
        a.moments[c + col] = sum[1][0];
    }
};

template <class T, int VEC, bool IS_VARIANCE> struct normalise_lane {
    typedef hvt_bn_args args;
    static constexpr int V = VEC, ROWS = 4;
    float mean[V], scale[V], beta[V];

    __device__ normalise_lane(const args &a, int, int col)
    {
        for (int v = 0; v < V; v++) {
            const float r = a.rstd[col + v];

            mean[v] = a.mean[col + v];
            scale[v] = a.gamma[col + v] * (IS_VARIANCE ? (float)(1 / sqrt((double)r + a.eps)) : r);
            beta[v] = a.beta[col + v];
        }
    }

    template <int U> __device__ void apply(const args &a, size_t at, int, size_t step) const
    {
        vec<T, V> x[U], residual[U];

        load_rows(a.x, at, step, x, U);
        if (a.residual)
            load_rows(a.residual, at, step, residual, U);
        for (int u = 0; u < U; u++) {
            float y[V];

            for (int v = 0; v < V; v++) {
                y[v] = bn_value(to_float(x[u].at[v]), mean[v], scale[v], beta[v]);
                if (a.residual)
                    y[v] += to_float(residual[u].at[v]);
                y[v] = a.relu ? f_relu(y[v]) : y[v];
            }
            store((T *)a.y + at + u * step, y);
        }
    }
};

struct bn_mapped : hvt_bn_args {
    hvt_map f;
};

/* With a function of the rounded result; without residual and relu. */
template <class T, int VEC, bool IS_VARIANCE> struct mapped_lane : normalise_lane<T, VEC, IS_VARIANCE> {
    typedef bn_mapped args;
    static constexpr int V = VEC, ROWS = 1; /* functions have long code */

    __device__ mapped_lane(const args &a, int rows, int col)
        : normalise_lane<T, VEC, IS_VARIANCE>(a, rows, col)
    {
    }

    template <int U> __device__ void apply(const args &a, size_t at, int, size_t step) const
    {
        vec<T, V> x[U];

        load_rows(a.x, at, step, x, U);
        for (int u = 0; u < U; u++) {
            float y[V];

            for (int v = 0; v < V; v++)
                y[v] =
                    rounded<T>(bn_value(to_float(x[u].at[v]), this->mean[v], this->scale[v], this->beta[v]));
            map_values(a.f, y);
            store((T *)a.y + at + u * step, y);
        }
    }
};

template <class T, int V, bool IS_VARIANCE> static hvt_status normalise(hvt_device *d, const hvt_bn_args &a)
{
    return a.map ? rows_done<mapped_lane<T, V, IS_VARIANCE>>(d, {a, *a.map}, a.rows.real, a.c)
                 : rows_done<normalise_lane<T, V, IS_VARIANCE>>(d, a, a.rows.real, a.c);
}

hvt_status hvt__bn_train_cuda(hvt_device *d, const hvt_bn_args *a)
{
    return with_rows(a->type, a->c, {a->x, a->residual, a->y}, [=](auto zero, auto v) {
        typedef decltype(zero) T;
        constexpr int V = decltype(v)::value;

        HVT_TRY((columns<spread_lane<moments, T, V>>(d, *a, a->rows.real, a->c)));
        return normalise<T, V, false>(d, *a);
    });
}

hvt_status hvt__bn_infer_cuda(hvt_device *d, const hvt_bn_args *a)
{
    return with_rows(a->type, a->c, {a->x, a->residual, a->y}, [=](auto zero, auto v) {
        typedef decltype(zero) T;
        constexpr int V = decltype(v)::value;

        return a->is_variance ? normalise<T, V, true>(d, *a) : normalise<T, V, false>(d, *a);
    });
}

hvt_status hvt__bn_moments_cuda(hvt_device *d, const hvt_bn_args *a)
{
    return with_rows(a->type, a->c, {a->x}, [=](auto zero, auto v) {
        return columns<spread_lane<own_moments, decltype(zero), decltype(v)::value>>(d, *a, a->rows.real,
                                                                                     a->c);
    });
}

/* ---- batch norm, backward ---- */

/* Source of relu's mask. */
enum mask { MASK_NONE, MASK_Y, MASK_X };

/* dz, the gradient before relu, and x, for U rows of V channels. MASK_X recomputes y from x as forward did,
 * rounding included. */
template <class T, int V, mask MASK> struct masked {
    float mean[V], scale[V], beta[V];

    __device__ masked(const hvt_bn_grad_args &a, int col)
    {
        for (int v = 0; v < V; v++) {
            mean[v] = a.mean[col + v];
            scale[v] = a.gamma[col + v] * a.rstd[col + v];
            beta[v] = MASK == MASK_X ? a.beta[col + v] : 0;
        }
    }

    template <int U> struct rows {
        vec<T, V> x[U], y[U], dy[U];

        __device__ rows(const hvt_bn_grad_args &a, size_t at, size_t step)
        {
            load_rows(a.x, at, step, x, U);
            load_rows(a.dy, at, step, dy, U);
            if (MASK == MASK_Y)
                load_rows(a.y, at, step, y, U);
        }
    };

    template <int U> __device__ float dz(const rows<U> &r, int u, int v) const
    {
        const float dy = to_float(r.dy[u].at[v]);

        switch (MASK) {
        case MASK_Y:
            return f_keep(to_float(r.y[u].at[v]), dy);
        case MASK_X:
            return f_keep(rounded<T>(bn_value(to_float(r.x[u].at[v]), mean[v], scale[v], beta[v])), dy);
        default:
            return dy;
        }
    }
};

struct slopes : plain_sums<2> { /* sum(dz), sum(dz * (x - mean)) */
    typedef hvt_bn_grad_args args;
    typedef slopes reducer;

    static __device__ void finish(const args &a, int, int, int col, const float (&sum)[K][1])
    {
        a.dbeta[col] = sum[0][0];
        a.dgamma[col] = sum[1][0] * a.rstd[col];
    }
};

/* Also writes dz to dresidual if the second pass can read it from there. */
template <class T, int VEC, mask MASK> struct slopes_lane : slopes {
    static constexpr int V = VEC, ROWS = 4;
    masked<T, V, MASK> m;

    __device__ slopes_lane(const args &a, int col) : m(a, col)
    {
    }

    template <int U>
    __device__ void accumulate(const args &a, size_t at, int, size_t step, float (&sum)[K][V], float) const
    {
        const typename masked<T, V, MASK>::template rows<U> r(a, at, step);

        for (int u = 0; u < U; u++) {
            float dz[V];

            for (int v = 0; v < V; v++) {
                dz[v] = m.dz(r, u, v);
                sum[0][v] += dz[v];
                sum[1][v] = f_fma(dz[v], to_float(r.x[u].at[v]) - m.mean[v], sum[1][v]);
            }
            if (a.dresidual && !a.add_residual)
                store((T *)a.dresidual + at + u * step, dz);
        }
    }
};

template <class T, int VEC, mask MASK> struct dx_lane {
    typedef hvt_bn_grad_args args;
    static constexpr int V = VEC, ROWS = 2;
    masked<T, V, MASK> m;
    float share[V], slope[V];

    __device__ dx_lane(const args &a, int rows, int col) : m(a, col)
    {
#pragma unroll
        for (int v = 0; v < V; v++) {
            share[v] = a.share ? a.share[col + v] : a.dbeta[col + v] / (float)rows;
            slope[v] = a.share ? a.slope[col + v] * a.rstd[col + v]
                               : a.dgamma[col + v] * a.rstd[col + v] / (float)rows;
        }
    }

    template <int U> __device__ void apply(const args &a, size_t at, int, size_t step) const
    {
        const typename masked<T, V, MASK>::template rows<U> r(a, at, step);
        vec<T, V> dx_was[U], residual_was[U];

        if (a.add)
            load_rows(a.dx, at, step, dx_was, U);
        if (a.dresidual)
            load_rows(a.dresidual, at, step, residual_was, U);
#pragma unroll
        for (int u = 0; u < U; u++) {
            float dx[V], residual[V];

#pragma unroll
            for (int v = 0; v < V; v++) {
                const float dz = m.dz(r, u, v);

                dx[v] = bn_dx(to_float(r.x[u].at[v]), m.mean[v], m.scale[v], share[v], slope[v], dz);
                if (a.add)
                    dx[v] += to_float(dx_was[u].at[v]);
                if (a.dresidual)
                    residual[v] = to_float(residual_was[u].at[v]) + dz;
            }
            if (a.dresidual)
                store((T *)a.dresidual + at + u * step, residual);
            store((T *)a.dx + at + u * step, dx);
        }
    }
};

/* With function `f` after the norm; dy is the gradient of its output. */
struct bn_grad_mapped : hvt_bn_grad_args {
    hvt_map f;
};

/* Also writes dz, which the second pass reads. */
template <class T, int VEC> struct mapped_slopes_lane : slopes {
    typedef bn_grad_mapped args;
    static constexpr int V = VEC, ROWS = 1;
    masked<T, V, MASK_X> m;

    __device__ mapped_slopes_lane(const args &a, int col) : m(a, col)
    {
    }

    template <int U>
    __device__ void accumulate(const args &a, size_t at, int, size_t step, float (&sum)[K][V], float) const
    {
        const typename masked<T, V, MASK_X>::template rows<U> r(a, at, step);

        for (int u = 0; u < U; u++) {
            float z[V], dz[V];

            for (int v = 0; v < V; v++) {
                z[v] = rounded<T>(bn_value(to_float(r.x[u].at[v]), m.mean[v], m.scale[v], m.beta[v]));
                dz[v] = to_float(r.dy[u].at[v]);
            }
            map_slopes_at<T>(a.f, z, dz);
            store((T *)a.dz + at + u * step, dz);
            for (int v = 0; v < V; v++) {
                dz[v] = rounded<T>(dz[v]);
                sum[0][v] += dz[v];
                sum[1][v] = f_fma(dz[v], to_float(r.x[u].at[v]) - m.mean[v], sum[1][v]);
            }
        }
    }
};

/* f(T(), number<V>()) for the elements of a */
template <class Do> static hvt_status with_gradients(const hvt_bn_grad_args &a, Do f)
{
    return with_rows(a.type, a.c, {a.x, a.y, a.dy, a.map ? a.dz : NULL, a.dx, a.dresidual}, f);
}

/* First pass: dgamma and dbeta, and dz or dresidual if the second pass can read it. */
hvt_status hvt__bn_sums_cuda(hvt_device *d, const hvt_bn_grad_args *g)
{
    const hvt_bn_grad_args a = *g;

    return with_gradients(a, [=](auto zero, auto v) {
        typedef decltype(zero) T;
        constexpr int V = decltype(v)::value;

        return a.map  ? columns<mapped_slopes_lane<T, V>, slopes_lane<T, V, MASK_NONE>::ROWS>(d, {a, *a.map},
                                                                                             a.rows.real, a.c)
               : !a.y ? columns<slopes_lane<T, V, MASK_NONE>>(d, a, a.rows.real, a.c)
               : a.beta ? columns<slopes_lane<T, V, MASK_X>>(d, a, a.rows.real, a.c)
                        : columns<slopes_lane<T, V, MASK_Y>>(d, a, a.rows.real, a.c);
    });
}

hvt_status hvt__bn_dx_cuda(hvt_device *d, const hvt_bn_grad_args *g)
{
    hvt_bn_grad_args a = *g;

    if (a.map) {
        a.dy = a.dz;
    } else if (a.dresidual && !a.add_residual) { /* complete already */
        a.dy = a.dresidual;
        a.dresidual = NULL;
        a.y = NULL;
    }
    return with_gradients(a, [=](auto zero, auto v) {
        typedef decltype(zero) T;
        constexpr int V = decltype(v)::value;

        return !a.y     ? rows_done<dx_lane<T, V, MASK_NONE>>(d, a, a.rows.real, a.c)
               : a.beta ? rows_done<dx_lane<T, V, MASK_X>>(d, a, a.rows.real, a.c)
                        : rows_done<dx_lane<T, V, MASK_Y>>(d, a, a.rows.real, a.c);
    });
}

hvt_status hvt__bn_backward_cuda(hvt_device *d, const hvt_bn_grad_args *a)
{
    hvt_bn_grad_args own = *a;

    own.share = own.slope = NULL;
    HVT_TRY(hvt__bn_sums_cuda(d, &own));
    return hvt__bn_dx_cuda(d, &own);
}

/* ---- batch norm, between two passes over several shards ---- */

/* Threads per block. A thread joins all shards of its channel in f64; small blocks spread the few channels
 * over many multiprocessors. */
enum { JOIN_THREADS = 32 };

static __global__ void join_moments_kernel(__grid_constant__ const hvt_bn_join_args a)
{
    const int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);

    if (i < a.c)
        hvt__join_moments(&a, i);
}

hvt_status hvt__bn_join_moments_cuda(hvt_device *d, const hvt_bn_join_args *a)
{
    return HVT_LAUNCH(d, join_moments_kernel, (a->c + JOIN_THREADS - 1) / JOIN_THREADS, JOIN_THREADS, *a);
}

static __global__ void join_sums_kernel(__grid_constant__ const hvt_bn_join_args a)
{
    const int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);

    if (i < a.c)
        hvt__join_sums(&a, i);
}

hvt_status hvt__bn_join_sums_cuda(hvt_device *d, const hvt_bn_join_args *a)
{
    return HVT_LAUNCH(d, join_sums_kernel, (a->c + JOIN_THREADS - 1) / JOIN_THREADS, JOIN_THREADS, *a);
}

/* ---- running statistics ---- */

static __global__ void running_kernel(hvt_bn_update_args a)
{
    const int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);

    if (i >= a.c || a.step->stop)
        return;
    a.mean[i] = bn_running(a.mean[i], a.moments[i], a.rate, 1 - a.rate, a.scale);
    a.var[i] = bn_running(a.var[i], a.moments[a.c + i], a.rate, 1 - a.rate, a.scale);
}

hvt_status hvt__bn_update_cuda(hvt_device *d, const hvt_bn_update_args *a)
{
    return HVT_LAUNCH(d, running_kernel, (a->c + THREADS - 1) / THREADS, THREADS, *a);
}

/* ---- bias ---- */

struct bias_args {
    const float *b;
    void *y;
};

template <class T, int VEC> struct bias_lane {
    typedef bias_args args;
    static constexpr int V = VEC, ROWS = 4;
    float b[V];

    __device__ bias_lane(const args &a, int, int col)
    {
        for (int v = 0; v < V; v++)
            b[v] = a.b[col + v];
    }

    template <int U> __device__ void apply(const args &a, size_t at, int, size_t step) const
    {
        vec<T, V> was[U];

        load_rows(a.y, at, step, was, U);
        for (int u = 0; u < U; u++) {
            float y[V];

            for (int v = 0; v < V; v++)
                y[v] = to_float(was[u].at[v]) + b[v];
            store((T *)a.y + at + u * step, y);
        }
    }
};

hvt_status hvt__bias_forward_cuda(hvt_device *d, hvt_rows rows, int c, hvt_dtype t, const float *b, void *y)
{
    return with_rows(t, c, {y}, [=](auto zero, auto v) {
        return rows_done<bias_lane<decltype(zero), decltype(v)::value>>(d, {b, y}, rows.real, c);
    });
}

struct bias_sums_args {
    const void *dy;
    float *db;
};

struct bias_sums : plain_sums<1> {
    typedef bias_sums_args args;
    typedef bias_sums reducer;

    static __device__ void finish(const args &a, int, int, int col, const float (&sum)[K][1])
    {
        a.db[col] = sum[0][0];
    }
};

template <class T, int VEC> struct bias_sums_lane : bias_sums {
    static constexpr int V = VEC, ROWS = 4;

    __device__ bias_sums_lane(const args &, int)
    {
    }

    template <int U>
    __device__ void accumulate(const args &a, size_t at, int, size_t step, float (&sum)[K][V], float) const
    {
        vec<T, V> dy[U];

        load_rows(a.dy, at, step, dy, U);
        for (int u = 0; u < U; u++)
            for (int v = 0; v < V; v++)
                sum[0][v] += to_float(dy[u].at[v]);
    }
};

hvt_status hvt__bias_backward_cuda(hvt_device *d, hvt_rows rows, int c, hvt_dtype t, const void *dy,
                                   float *db)
{
    return with_rows(t, c, {dy}, [=](auto zero, auto v) {
        return columns<bias_sums_lane<decltype(zero), decltype(v)::value>>(d, {dy, db}, rows.real, c);
    });
}
