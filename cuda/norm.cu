/*
 * Batch norm and bias: sums per channel of a matrix [rows, c], and functions applied to every row.
 *
 * Sums over rows take three levels in one kernel. Every thread sums some rows of its channels, and the
 * threads of a block merge their sums along a tree: a "part". Parts are stored in scratch, and the last block
 * to come of GROUP neighbours merges theirs to a group's sums, along a tree again; the last of all groups
 * merges those and finishes. Who is last depends on chance, what is merged with what on the shape alone.
 * Means and sums of squared deviations are merged as by Chan, Golub and LeVeque (1979), so that a mean that
 * is large against the deviation costs no precision.
 *
 * A *lane* holds one thread's V channels: constants, loaded once. Its `accumulate` adds U rows, its `apply`
 * writes them; both load everything before they compute, so that ROWS rows are in flight.
 */
#include "lanes.h"

/* ---- sums over rows ---- */

enum {
    MOST_PARTS = 512,
    GROUP = 16,
    SUM_BLOCKS = 1024, /* over all channels */
    ROW_BLOCKS = 4096,
    MOST_SUMS = 2 /* floats per channel of a part */
};

/* Where there are two parts or more, there are no more than SUM_BLOCKS blocks: so many parts times channels,
 * and counters. Where there are two groups or more, there is one for every eight parts at most. */
constexpr size_t PART_BYTES = (size_t)SUM_BLOCKS * MOST_ACROSS * full_vec<f16>() * MOST_SUMS * sizeof(float);

static_assert(HVT__CUDA_COUNTERS + PART_BYTES + PART_BYTES / 8 <= HVT__CUDA_SCRATCH &&
                  SUM_BLOCKS * sizeof(unsigned) <= HVT__CUDA_COUNTERS &&
                  MOST_ACROSS * full_vec<f16>() <= THREADS,
              "all parts, groups and counters fit into scratch, and a block's channels into its threads");

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
            for (int k = 0; k < R::K; k++)
                for (int v = 0; v < V; v++)
                    s.sum[k][v][me] = sum[k][v];
            s.count[me] = count;
        }
        __syncthreads(); /* the half written now is not written again */
        if (threadIdx.y < half) {
            float theirs[R::K][V];

            for (int k = 0; k < R::K; k++)
                for (int v = 0; v < V; v++)
                    theirs[k][v] = s.sum[k][v][other];
            R::merge(sum, count, theirs, s.count[other]);
            count += s.count[other];
        }
    }
}

/* The blocks of a column of the grid as they come: its parts in groups, the groups in one. A counter is 0
 * between kernels, since the one who brings it to its end sets it back. */
struct arrivals {
    float *part, *group; /* [parts][K][c], [groups][K][c] */
    unsigned *counter;   /* [columns][groups + 1] the last one counts groups */
};

/* Is this block the last of `all` that come to the counter? All threads get the answer, and the last block's
 * see what the others have stored. */
HVT_FN bool comes_last(unsigned *counter, unsigned all)
{
    struct shared {
        bool last;
    };
    HVT_SHARED(shared, s);

    __threadfence(); /* what this thread has stored, before the block is counted */
    __syncthreads();
    if (threadIdx.x == 0 && threadIdx.y == 0)
        s.last = atomicInc(counter, all - 1) == all - 1;
    __syncthreads();
    __threadfence();
    return s.last;
}

/* Rows of parts first .. first+parts-1, as far as there are so many. */
HVT_FN float rows_of_parts(int rows, int chunk, int first, int parts)
{
    const int64_t begin = (int64_t)first * chunk, end = begin + (int64_t)parts * chunk;

    return (float)((end < rows ? end : rows) - begin);
}

/* sum = of `count` entries of from[...][K][c], each of `parts` parts, from number `first` on; the lanes with
 * y = 0 get it. */
template <class R, int V>
HVT_FN void merge_parts(const float *from, int c, int col, int rows, int chunk, int first, int count,
                        int parts, float (&sum)[R::K][V])
{
    float have = 0;

    for (int k = 0; k < R::K; k++)
        for (int v = 0; v < V; v++)
            sum[k][v] = 0;
    for (int p = first + (int)threadIdx.y; col < c && p < first + count; p += (int)blockDim.y) {
        const float more = rows_of_parts(rows, chunk, p * parts, parts);
        float theirs[R::K][V];

        for (int k = 0; k < R::K; k++)
            load_floats(from + ((size_t)p * R::K + k) * c + col, theirs[k]);
        R::merge(sum, have, theirs, more);
        have += more;
    }
    join_lanes<R>(sum, have);
}

template <class R, int V>
HVT_FN void store_sums(float *to, int c, int col, int at, const float (&sum)[R::K][V])
{
    if (threadIdx.y == 0 && col < c)
        for (int k = 0; k < R::K; k++)
            store(to + ((size_t)at * R::K + k) * c + col, sum[k]);
}

/* Finish the block's channels, one of them in each thread. */
template <class R, int V>
HVT_FN void finish_columns(const typename R::args &a, int rows, int c, const float (&sum)[R::K][V])
{
    struct shared {
        float sum[R::K][THREADS];
    };
    HVT_SHARED(shared, s);
    const int me = (int)(threadIdx.y * blockDim.x + threadIdx.x), across = (int)blockDim.x * V;
    const int col = (int)blockIdx.x * across + me;

    if (threadIdx.y == 0)
        for (int k = 0; k < R::K; k++)
            for (int v = 0; v < V; v++)
                s.sum[k][threadIdx.x * V + v] = sum[k][v];
    __syncthreads();
    if (me < across && col < c) {
        float mine[R::K][1];

        for (int k = 0; k < R::K; k++)
            mine[k][0] = s.sum[k][me];
        R::finish(a, rows, c, col, mine);
    }
}

template <class L>
__global__ void __launch_bounds__(THREADS, 2)
    columns_kernel(__grid_constant__ const typename L::args a, int rows, int c, int chunk, arrivals to)
{
    typedef typename L::reducer R;
    constexpr int V = L::V;
    const int col = my_channel<V>(), parts = (int)gridDim.y, part = (int)blockIdx.y;
    const int groups = (parts + GROUP - 1) / GROUP, group = part / GROUP, first = group * GROUP;
    const int members = parts - first < GROUP ? parts - first : GROUP;
    unsigned *counter = to.counter + (size_t)blockIdx.x * (groups + 1);
    const size_t step = (size_t)blockDim.y * c;
    float sum[R::K][V] = {}, count = 0;

    if (col < c) {
        L lane(a, col);

        down<L::ROWS>(rows, chunk, [&](auto u, int row) {
            lane.template accumulate<u.value>(a, (size_t)row * c + col, step, sum, count);
            count += u.value;
        });
    }
    join_lanes<R>(sum, count);
    if (parts > 1) {
        store_sums<R>(to.part, c, col, part, sum);
        if (!comes_last(counter + group, members))
            return;
        merge_parts<R>(to.part, c, col, rows, chunk, first, members, 1, sum);
    }
    if (groups > 1) {
        store_sums<R>(to.group, c, col, group, sum);
        if (!comes_last(counter + groups, groups))
            return;
        merge_parts<R>(to.group, c, col, rows, chunk, 0, groups, GROUP, sum);
    }
    finish_columns<R>(a, rows, c, sum);
}

/* A sum for lane type L, finished. */
template <class L> static hvt_status columns(hvt_device *d, const typename L::args &a, int rows, int c)
{
    row_cut cut = cut_rows(rows, c, L::V, L::ROWS, SUM_BLOCKS, MOST_PARTS);
    char *scratch = (char *)hvt__cuda_scratch(d);
    const arrivals to = {(float *)(scratch + HVT__CUDA_COUNTERS),
                         (float *)(scratch + HVT__CUDA_COUNTERS + PART_BYTES), (unsigned *)scratch};

    HVT_CHECK(c <= HVT__CUDA_CHANNELS, E_UNSUPPORTED, "device cuda: %d channels, at most %d are possible", c,
              HVT__CUDA_CHANNELS);
    return HVT_LAUNCH(d, (columns_kernel<L>), cut.grid, cut.block, a, rows, c, cut.chunk, to);
}

/* A reducer of plain sums. */
template <int SUMS> struct plain_sums {
    static constexpr int K = SUMS;

    template <int V>
    static __device__ void merge(float (&sum)[K][V], float, const float (&theirs)[K][V], float)
    {
        for (int k = 0; k < K; k++)
            for (int v = 0; v < V; v++)
                sum[k][v] += theirs[k][v];
    }
};

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

template <class L> static hvt_status rows_done(hvt_device *d, const typename L::args &a, int rows, int c)
{
    row_cut cut = cut_rows(rows, c, L::V, L::ROWS, ROW_BLOCKS, ROW_BLOCKS);

    if (rows == 0)
        return HVT_OK;
    return HVT_LAUNCH(d, (rows_kernel<L>), cut.grid, cut.block, a, rows, c, cut.chunk);
}

template <int V, class T>
HVT_FN void load_rows(const void *from, size_t at, size_t step, vec<T, V> *ret, int u)
{
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
        for (int v = 0; v < V; v++) {
            float all = 0, squares = 0;

            for (int u = 0; u < U; u++)
                all += to_float(x[u].at[v]);
            all *= 1.0f / U;
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

    template <int U> __device__ void apply(const args &a, size_t at, size_t step) const
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

hvt_status hvt__bn_train_cuda(hvt_device *d, const hvt_bn_args *a)
{
    return with_rows(a->type, a->c, {a->x, a->residual, a->y}, [=](auto zero, auto v) {
        typedef decltype(zero) T;
        constexpr int V = decltype(v)::value;

        HVT_TRY((columns<moments_lane<T, V>>(d, *a, a->rows.real, a->c)));
        return rows_done<normalise_lane<T, V, false>>(d, *a, a->rows.real, a->c);
    });
}

hvt_status hvt__bn_infer_cuda(hvt_device *d, const hvt_bn_args *a)
{
    return with_rows(a->type, a->c, {a->x, a->residual, a->y}, [=](auto zero, auto v) {
        typedef decltype(zero) T;
        constexpr int V = decltype(v)::value;

        return a->is_variance ? rows_done<normalise_lane<T, V, true>>(d, *a, a->rows.real, a->c)
                              : rows_done<normalise_lane<T, V, false>>(d, *a, a->rows.real, a->c);
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
    __device__ void accumulate(const args &a, size_t at, size_t step, float (&sum)[K][V], float) const
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

template <class T, int V, mask MASK> static hvt_status backward(hvt_device *d, const hvt_bn_grad_args &a)
{
    hvt_bn_grad_args second = a;

    HVT_TRY((columns<slopes_lane<T, V, MASK>>(d, a, a.rows.real, a.c)));
    if (!a.dresidual || a.add_residual)
        return rows_done<dx_lane<T, V, MASK>>(d, a, a.rows.real, a.c);
    second.dy = a.dresidual; /* complete already */
    second.dresidual = NULL;
    return rows_done<dx_lane<T, V, MASK_NONE>>(d, second, a.rows.real, a.c);
}

hvt_status hvt__bn_backward_cuda(hvt_device *d, const hvt_bn_grad_args *a)
{
    return with_rows(a->type, a->c, {a->x, a->y, a->dy, a->dx, a->dresidual}, [=](auto zero, auto v) {
        typedef decltype(zero) T;
        constexpr int V = decltype(v)::value;

        return !a->y     ? backward<T, V, MASK_NONE>(d, *a)
               : a->beta ? backward<T, V, MASK_X>(d, *a)
                         : backward<T, V, MASK_Y>(d, *a);
    });
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

    template <int U> __device__ void apply(const args &a, size_t at, size_t step) const
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
    __device__ void accumulate(const args &a, size_t at, size_t step, float (&sum)[K][V], float) const
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
