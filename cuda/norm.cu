/*
 * Batch norm and bias: sums per channel of a matrix [rows, c], and functions applied to every row.
 *
 * Sums over rows take two levels. Every thread sums some rows of its channels, the threads of a block merge
 * their sums along a tree, and the blocks' results ("parts") are stored in scratch until a second kernel
 * merges them, along a tree again. Which thread takes which row depends on the shape alone. Means and sums of
 * squared deviations are merged as by Chan, Golub and LeVeque (1979), so that a mean that is large against
 * the deviation costs no precision.
 *
 * A *lane* holds one thread's V channels: constants, loaded once. Its `accumulate` adds U rows, its `apply`
 * writes them; both load everything before they compute, so that ROWS rows are in flight.
 */
#include "lanes.h"

/* ---- sums over rows ---- */

enum {
    MOST_PARTS = 512,
    SUM_BLOCKS = 1024, /* over all channels */
    ROW_BLOCKS = 4096,
    MOST_SUMS = 2, /* floats per channel of a part */
    FINISH_LANES = 8
};

size_t hvt__cuda_scratch(int c)
{
    size_t most = (size_t)SUM_BLOCKS * THREADS * full_vec<f16>(), one = (size_t)c;

    return (most > one ? most : one) * MOST_SUMS * sizeof(float);
}

/* The first channel of this thread; c or more if its lane is past the row's end. */
template <int V> HVT_FN int my_channel()
{
    return (int)(blockIdx.x * blockDim.x + threadIdx.x) * V;
}

/* Merge the sums of the lanes of one column of a block, which cover `count` rows each. The lanes with y = 0
 * get the result. */
template <class R, int V> HVT_FN void join_lanes(float (&sum)[R::K][V], float count)
{
    struct shared {
        float sum[R::K][V][THREADS], count[THREADS];
    };
    HVT_SHARED(shared, s);
    const unsigned me = threadIdx.y * blockDim.x + threadIdx.x;

    for (unsigned half = blockDim.y / 2; half; half /= 2) {
        const unsigned other = me + half * blockDim.x;

        if (threadIdx.y >= half && threadIdx.y < 2 * half) {
#pragma unroll
            for (int k = 0; k < R::K; k++)
#pragma unroll
                for (int v = 0; v < V; v++)
                    s.sum[k][v][me] = sum[k][v];
            s.count[me] = count;
        }
        __syncthreads(); /* the half written now is not written again */
        if (threadIdx.y < half) {
            float theirs[R::K][V];

#pragma unroll
            for (int k = 0; k < R::K; k++)
#pragma unroll
                for (int v = 0; v < V; v++)
                    theirs[k][v] = s.sum[k][v][other];
            R::merge(sum, count, theirs, s.count[other]);
            count += s.count[other];
        }
    }
}

/* part[blockIdx.y][k][c] of this block's rows */
template <class L>
__global__ void __launch_bounds__(THREADS)
    columns_kernel(__grid_constant__ const typename L::args a, int rows, int c, int chunk, float *part)
{
    constexpr int V = L::V;
    const int col = my_channel<V>();
    const size_t step = (size_t)blockDim.y * c;
    float sum[L::K][V] = {}, count = 0;

    if (col < c) {
        L lane(a, col);

        down<L::ROWS>(rows, chunk, [&](auto u, int row) {
            lane.template accumulate<u.value>(a, (size_t)row * c + col, step, sum, count);
            count += u.value;
        });
    }
    join_lanes<L>(sum, count);
    if (threadIdx.y == 0 && col < c)
#pragma unroll
        for (int k = 0; k < L::K; k++)
            store(part + ((size_t)blockIdx.y * L::K + k) * c + col, sum[k]);
}

template <class R>
__global__ void __launch_bounds__(THREADS) finish_kernel(__grid_constant__ const typename R::args a, int rows,
                                                         int c, int chunk, int parts, const float *part)
{
    const int col = my_channel<1>();
    float sum[R::K][1] = {}, count = 0;

    for (int p = threadIdx.y; col < c && p < parts; p += blockDim.y) {
        const int left = rows - p * chunk, taken = left < chunk ? left : chunk;
        float theirs[R::K][1];

#pragma unroll
        for (int k = 0; k < R::K; k++)
            theirs[k][0] = part[((size_t)p * R::K + k) * c + col];
        R::merge(sum, count, theirs, (float)taken);
        count += (float)taken;
    }
    join_lanes<R>(sum, count);
    if (threadIdx.y == 0 && col < c)
        R::finish(a, rows, c, col, sum);
}

/* Both levels of a sum for lane type L. */
template <class L>
static cudaError_t columns(cudaStream_t stream, const typename L::args &a, int rows, int c, void *scratch)
{
    typedef typename L::reducer R;
    row_cut cut = cut_rows(rows, c, L::V, L::ROWS, SUM_BLOCKS, MOST_PARTS);
    float *part = (float *)scratch;

    HVT_CUDA_TRY(HVT_LAUNCH((columns_kernel<L>), cut.grid, cut.block, stream, a, rows, c, cut.chunk, part));
    return HVT_LAUNCH((finish_kernel<R>), (c + FINISH_LANES - 1) / FINISH_LANES,
                      dim3(FINISH_LANES, THREADS / FINISH_LANES), stream, a, rows, c, cut.chunk,
                      (int)cut.grid.y, part);
}

/* ---- a function of every row ---- */

template <class L>
__global__ void __launch_bounds__(THREADS, 2)
    rows_kernel(__grid_constant__ const typename L::args a, int rows, int c, int chunk)
{
    const int col = my_channel<L::V>();
    const size_t step = (size_t)blockDim.y * c;

    if (col < c) {
        L lane(a, rows, col);

        down<L::ROWS>(rows, chunk,
                      [&](auto u, int row) { lane.template apply<u.value>(a, (size_t)row * c + col, step); });
    }
}

template <class L>
static cudaError_t rows_done(cudaStream_t stream, const typename L::args &a, int rows, int c)
{
    row_cut cut = cut_rows(rows, c, L::V, L::ROWS, ROW_BLOCKS, ROW_BLOCKS);

    if (rows == 0)
        return cudaSuccess;
    return HVT_LAUNCH((rows_kernel<L>), cut.grid, cut.block, stream, a, rows, c, cut.chunk);
}

template <int V, class T>
HVT_FN void load_rows(const void *from, size_t at, size_t step, vec<T, V> *ret, int u)
{
#pragma unroll
    for (int i = 0; i < u; i++)
        ret[i] = load<V>((const T *)from + at + i * step);
}

/* ---- batch norm, forward ---- */

struct moments {
    typedef hvt_bn_args args;
    typedef moments reducer;
    static constexpr int K = 2; /* mean, sum of squared deviations */

    template <int V>
    static __device__ void merge(float (&sum)[K][V], float count, const float (&theirs)[K][V], float more)
    {
        const float share = more > 0 ? more / (count + more) : 0;

#pragma unroll
        for (int v = 0; v < V; v++) {
            const float off = theirs[0][v] - sum[0][v];

            sum[0][v] = f_fma(off, share, sum[0][v]);
            sum[1][v] = f_fma(off * off, share * count, sum[1][v] + theirs[1][v]);
        }
    }

    static __device__ void finish(const args &a, int rows, int c, int col, const float (&sum)[K][1])
    {
        const float mean = sum[0][0], m2 = sum[1][0];

        a.mean[col] = mean;
        a.rstd[col] = (float)(1 / sqrt(m2 / (double)(rows ? rows : 1) + a.eps));
        a.moments[col] = rows < 2 ? 0 : a.weight * mean;
        a.moments[c + col] = rows < 2 ? 0 : a.weight * (float)(m2 / (double)(rows - 1));
    }
};

template <class T, int VEC> struct moments_lane : moments {
    static constexpr int V = VEC, ROWS = 4;

    __device__ moments_lane(const args &, int)
    {
    }

    template <int U>
    __device__ void accumulate(const args &a, size_t at, size_t step, float (&sum)[K][V], float count)
    {
        vec<T, V> x[U];
        float group[K][V];

        load_rows(a.x, at, step, x, U);
#pragma unroll
        for (int v = 0; v < V; v++) {
            float all = 0, squares = 0;

#pragma unroll
            for (int u = 0; u < U; u++)
                all += to_float(x[u].at[v]);
            all *= 1.0f / U;
#pragma unroll
            for (int u = 0; u < U; u++) {
                const float off = to_float(x[u].at[v]) - all;

                squares = f_fma(off, off, squares);
            }
            group[0][v] = all;
            group[1][v] = squares;
        }
        merge(sum, count, group, U);
    }
};

/* INFER: a.rstd holds the variance */
template <class T, int VEC, bool INFER> struct normalise_lane {
    typedef hvt_bn_args args;
    static constexpr int V = VEC, ROWS = 4;
    float mean[V], scale[V], beta[V];

    __device__ normalise_lane(const args &a, int, int col)
    {
#pragma unroll
        for (int v = 0; v < V; v++) {
            const float r = a.rstd[col + v];

            mean[v] = a.mean[col + v];
            scale[v] = a.gamma[col + v] * (INFER ? (float)(1 / sqrt((double)r + a.eps)) : r);
            beta[v] = a.beta[col + v];
        }
    }

    template <int U> __device__ void apply(const args &a, size_t at, size_t step) const
    {
        vec<T, V> x[U], residual[U];

        load_rows(a.x, at, step, x, U);
        if (a.residual)
            load_rows(a.residual, at, step, residual, U);
#pragma unroll
        for (int u = 0; u < U; u++) {
            float y[V];

#pragma unroll
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

template <class T, int V, bool INFER> static cudaError_t normalise(cudaStream_t stream, const hvt_bn_args &a)
{
    return rows_done<normalise_lane<T, V, INFER>>(stream, a, a.rows.real, a.c);
}

template <class T> static bool forward_fits(const hvt_bn_args &a)
{
    return rows_fit(full_vec<T>(), a.c, {{a.x, sizeof(T)}, {a.residual, sizeof(T)}, {a.y, sizeof(T)}});
}

template <class T, int V> static cudaError_t train(cudaStream_t stream, const hvt_bn_args &a, void *scratch)
{
    HVT_CUDA_TRY((columns<moments_lane<T, V>>(stream, a, a.rows.real, a.c, scratch)));
    return normalise<T, V, false>(stream, a);
}

cudaError_t hvt__cuda_bn_train(cudaStream_t stream, const hvt_bn_args *a, void *scratch)
{
    return with_type(a->type, [=](auto zero) {
        typedef decltype(zero) T;

        return forward_fits<T>(*a) ? train<T, full_vec<T>()>(stream, *a, scratch)
                                   : train<T, 1>(stream, *a, scratch);
    });
}

cudaError_t hvt__cuda_bn_infer(cudaStream_t stream, const hvt_bn_args *a)
{
    return with_type(a->type, [=](auto zero) {
        typedef decltype(zero) T;

        return forward_fits<T>(*a) ? normalise<T, full_vec<T>(), true>(stream, *a)
                                   : normalise<T, 1, true>(stream, *a);
    });
}

/* ---- batch norm, backward ---- */

/* source of relu's mask */
enum mask { MASK_NONE, MASK_Y, MASK_X };

/* dz, the gradient before relu, of U rows of V channels; and x, which all users need. MASK_X recomputes y
 * from x as forward did, rounding included. */
template <class T, int V, mask MASK> struct masked {
    float mean[V], scale[V], beta[V];

    __device__ masked(const hvt_bn_grad_args &a, int col)
    {
#pragma unroll
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

struct slopes {
    typedef hvt_bn_grad_args args;
    typedef slopes reducer;
    static constexpr int K = 2; /* sum(dz), sum(dz * (x - mean)) */

    template <int V>
    static __device__ void merge(float (&sum)[K][V], float, const float (&theirs)[K][V], float)
    {
#pragma unroll
        for (int v = 0; v < V; v++) {
            sum[0][v] += theirs[0][v];
            sum[1][v] += theirs[1][v];
        }
    }

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
    __device__ void accumulate(const args &a, size_t at, size_t step, float (&sum)[K][V], float) const
    {
        const typename masked<T, V, MASK>::template rows<U> r(a, at, step);

#pragma unroll
        for (int u = 0; u < U; u++) {
            float dz[V];

#pragma unroll
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
            share[v] = a.dbeta[col + v] / (float)rows;
            slope[v] = a.dgamma[col + v] * a.rstd[col + v] / (float)rows;
        }
    }

    template <int U> __device__ void apply(const args &a, size_t at, size_t step) const
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

/* dx, after dgamma and dbeta are known; dresidual is added to, or already complete. */
template <class T, int V, mask MASK>
static cudaError_t write_dx(cudaStream_t stream, const hvt_bn_grad_args &a)
{
    return rows_done<dx_lane<T, V, MASK>>(stream, a, a.rows.real, a.c);
}

template <class T, int V, mask MASK>
static cudaError_t backward(cudaStream_t stream, const hvt_bn_grad_args &a, void *scratch)
{
    HVT_CUDA_TRY((columns<slopes_lane<T, V, MASK>>(stream, a, a.rows.real, a.c, scratch)));
    if (a.dresidual && !a.add_residual) {
        hvt_bn_grad_args second = a;

        second.dy = a.dresidual;
        second.dresidual = NULL;
        return write_dx<T, V, MASK_NONE>(stream, second);
    }
    return write_dx<T, V, MASK>(stream, a);
}

template <class T, int V>
static cudaError_t backward_masked(cudaStream_t stream, const hvt_bn_grad_args &a, void *scratch)
{
    return !a.y     ? backward<T, V, MASK_NONE>(stream, a, scratch)
           : a.beta ? backward<T, V, MASK_X>(stream, a, scratch)
                    : backward<T, V, MASK_Y>(stream, a, scratch);
}

cudaError_t hvt__cuda_bn_backward(cudaStream_t stream, const hvt_bn_grad_args *a, void *scratch)
{
    return with_type(a->type, [=](auto zero) {
        typedef decltype(zero) T;
        const size_t size = sizeof(T);

        return rows_fit(full_vec<T>(), a->c,
                        {{a->x, size}, {a->y, size}, {a->dy, size}, {a->dx, size}, {a->dresidual, size}})
                   ? backward_masked<T, full_vec<T>()>(stream, *a, scratch)
                   : backward_masked<T, 1>(stream, *a, scratch);
    });
}

/* ---- running statistics ---- */

static __global__ void running_kernel(const hvt_step_state *step, int c, float rate, float scale,
                              const float *moments, float *run_mean, float *run_var)
{
    const int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);

    if (i >= c || step->stop)
        return;
    run_mean[i] = bn_running(run_mean[i], moments[i], rate, 1 - rate, scale);
    run_var[i] = bn_running(run_var[i], moments[c + i], rate, 1 - rate, scale);
}

cudaError_t hvt__cuda_bn_update(cudaStream_t stream, const hvt_step_state *step, int c, float rate,
                                float scale, const float *moments, float *run_mean, float *run_var)
{
    return HVT_LAUNCH(running_kernel, (c + THREADS - 1) / THREADS, THREADS, stream, step, c, rate, scale,
                      moments, run_mean, run_var);
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
#pragma unroll
        for (int v = 0; v < V; v++)
            b[v] = a.b[col + v];
    }

    template <int U> __device__ void apply(const args &a, size_t at, size_t step) const
    {
        vec<T, V> was[U];

        load_rows(a.y, at, step, was, U);
#pragma unroll
        for (int u = 0; u < U; u++) {
            float y[V];

#pragma unroll
            for (int v = 0; v < V; v++)
                y[v] = to_float(was[u].at[v]) + b[v];
            store((T *)a.y + at + u * step, y);
        }
    }
};

cudaError_t hvt__cuda_bias_forward(cudaStream_t stream, hvt_rows rows, int c, hvt_dtype t, const float *b,
                                   void *y)
{
    const bias_args a = {b, y};

    return with_type(t, [=](auto zero) {
        typedef decltype(zero) T;

        return rows_fit(full_vec<T>(), c, {{y, sizeof(T)}})
                   ? rows_done<bias_lane<T, full_vec<T>()>>(stream, a, rows.real, c)
                   : rows_done<bias_lane<T, 1>>(stream, a, rows.real, c);
    });
}

struct bias_sums_args {
    const void *dy;
    float *db;
};

struct bias_sums {
    typedef bias_sums_args args;
    typedef bias_sums reducer;
    static constexpr int K = 1;

    template <int V>
    static __device__ void merge(float (&sum)[K][V], float, const float (&theirs)[K][V], float)
    {
#pragma unroll
        for (int v = 0; v < V; v++)
            sum[0][v] += theirs[0][v];
    }

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
    __device__ void accumulate(const args &a, size_t at, size_t step, float (&sum)[K][V], float) const
    {
        vec<T, V> dy[U];

        load_rows(a.dy, at, step, dy, U);
#pragma unroll
        for (int u = 0; u < U; u++)
#pragma unroll
            for (int v = 0; v < V; v++)
                sum[0][v] += to_float(dy[u].at[v]);
    }
};

cudaError_t hvt__cuda_bias_backward(cudaStream_t stream, hvt_rows rows, int c, hvt_dtype t, const void *dy,
                                    float *db, void *scratch)
{
    const bias_sums_args a = {dy, db};

    return with_type(t, [=](auto zero) {
        typedef decltype(zero) T;

        return rows_fit(full_vec<T>(), c, {{dy, sizeof(T)}})
                   ? columns<bias_sums_lane<T, full_vec<T>()>>(stream, a, rows.real, c, scratch)
                   : columns<bias_sums_lane<T, 1>>(stream, a, rows.real, c, scratch);
    });
}
