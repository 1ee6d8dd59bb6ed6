/*
 * Layer, group and instance norm.
 *
 * If every pixel has its own mean, a row's lanes sum along the row, which is still in the cache when they
 * read it again. A group of a whole image takes three steps: each channel is summed over parts of the image,
 * then the parts over the channels of a group, and then every pixel is normalised. An image's result depends
 * neither on its index nor on the batch.
 */
#include "rows.h"

/* index in gamma and beta */
HVT_FN size_t weight_at(const hvt_norm_args &a, int pixel, int col)
{
    return a.per_element ? (size_t)pixel * a.c + col : (size_t)col;
}

HVT_FN float gamma_at(const hvt_norm_args &a, size_t k)
{
    return a.gamma ? a.gamma[k] : 1;
}

/* ---- a mean of every pixel's group ---- */

/* A row: one group of a pixel. */
struct pixel_group {
    size_t at; /* its first element */
    int pixel, col;

    __device__ pixel_group(const hvt_norm_args &a, int64_t row)
    {
        const int length = a.c / a.groups;

        at = (size_t)row * length;
        pixel = (int)(row / a.groups % a.pixels);
        col = (int)(row % a.groups) * length;
    }
};

template <class T, int V>
__global__ void __launch_bounds__(THREADS)
    pixel_norm_kernel(__grid_constant__ const hvt_norm_args a, int64_t rows)
{
    const int length = a.c / a.groups, step = (int)blockDim.x * V;
    const int begin = (int)threadIdx.x * V;

    along(rows, [&](int64_t row) {
        const bool mine = row < rows;
        const int end = mine ? length : 0;
        const pixel_group g(a, row);
        const T *x = (const T *)a.x + g.at;
        float mean = 0, squares = 0, rstd;

        for (int i = begin; i < end; i += step) {
            float in[V];

            load_floats(x + i, in);
            for (int v = 0; v < V; v++)
                mean += in[v];
        }
        mean = join_row(mean) / (float)length;
        for (int i = begin; i < end; i += step) {
            float in[V];

            load_floats(x + i, in);
            for (int v = 0; v < V; v++)
                squares = f_fma(in[v] - mean, in[v] - mean, squares);
        }
        rstd = 1 / sqrtf(join_row(squares) / (float)length + a.eps);
        for (int i = begin; i < end; i += step) {
            float in[V], y[V];

            load_floats(x + i, in);
            for (int v = 0; v < V; v++) {
                const size_t k = weight_at(a, g.pixel, g.col + i + v);

                y[v] = f_fma((in[v] - mean) * rstd, gamma_at(a, k), a.beta ? a.beta[k] : 0);
            }
            store((T *)a.y + g.at + i, y);
        }
        if (mine && threadIdx.x == 0) {
            a.mean[row] = mean;
            a.rstd[row] = rstd;
        }
    });
}

/* dx */
template <class T, int V>
__global__ void __launch_bounds__(THREADS)
    pixel_norm_grad_kernel(__grid_constant__ const hvt_norm_args a, int64_t rows)
{
    const int length = a.c / a.groups, step = (int)blockDim.x * V;
    const int begin = (int)threadIdx.x * V;

    along(rows, [&](int64_t row) {
        const bool mine = row < rows;
        const int end = mine ? length : 0;
        const pixel_group g(a, row);
        const float mean = mine ? a.mean[row] : 0, rstd = mine ? a.rstd[row] : 0;
        float share = 0, dot = 0;

        for (int i = begin; i < end; i += step) {
            float x[V], dy[V];

            load_floats((const T *)a.x + g.at + i, x);
            load_floats((const T *)a.dy + g.at + i, dy);
            for (int v = 0; v < V; v++) {
                const float dz = dy[v] * gamma_at(a, weight_at(a, g.pixel, g.col + i + v));

                share += dz;
                dot = f_fma(dz, (x[v] - mean) * rstd, dot);
            }
        }
        share = join_row(share) / (float)length;
        dot = join_row(dot) / (float)length;
        for (int i = begin; i < end; i += step) {
            float x[V], dy[V], dx[V];
            T *to = (T *)a.dx + g.at + i;

            load_floats((const T *)a.x + g.at + i, x);
            load_floats((const T *)a.dy + g.at + i, dy);
            for (int v = 0; v < V; v++) {
                const float dz = dy[v] * gamma_at(a, weight_at(a, g.pixel, g.col + i + v));

                dx[v] = rstd * (dz - f_fma((x[v] - mean) * rstd, dot, share));
            }
            if (a.add)
                add_floats(to, dx);
            store(to, dx);
        }
    });
}

/* A reducer of dbeta and dgamma. */
struct weight_sums : plain_sums<2> {
    typedef hvt_norm_args args;
    typedef weight_sums reducer;

    static __device__ void finish(const args &a, int, int, int col, const float (&sum)[K][1])
    {
        if (a.dbeta)
            a.dbeta[col] = sum[0][0];
        if (a.dgamma)
            a.dgamma[col] = sum[1][0];
    }
};

template <class T, int VEC> struct pixel_weights_lane : weight_sums {
    static constexpr int V = VEC, ROWS = 2;
    int group[V];

    __device__ pixel_weights_lane(const args &a, int col)
    {
        for (int v = 0; v < V; v++)
            group[v] = (col + v) / (a.c / a.groups);
    }

    template <int U>
    __device__ void accumulate(const args &a, size_t at, int row, size_t step, float (&sum)[K][V],
                               float) const
    {
        vec<T, V> x[U], dy[U];

        load_rows(a.x, at, step, x, U);
        load_rows(a.dy, at, step, dy, U);
        for (int u = 0; u < U; u++) {
            const size_t first = (size_t)(row + u * (int)blockDim.y) * a.groups;

            for (int v = 0; v < V; v++) {
                const float g = to_float(dy[u].at[v]), mean = a.mean[first + group[v]];

                sum[0][v] += g;
                sum[1][v] = f_fma(g, (to_float(x[u].at[v]) - mean) * a.rstd[first + group[v]], sum[1][v]);
            }
        }
    }
};

/* ---- weights per element ---- */

/* dgamma and dbeta of element i: sums over images */
template <class T> struct element_weights_op {
    hvt_norm_args a;

    template <int W> __device__ void at(size_t i) const
    {
        const size_t image = (size_t)a.pixels * a.c;
        const int length = a.c / a.groups;
        float dgamma[W] = {}, dbeta[W] = {};

        for (int n = 0; n < a.real; n++) {
            float x[W], dy[W];

            load_floats((const T *)a.x + n * image + i, x);
            load_floats((const T *)a.dy + n * image + i, dy);
            for (int w = 0; w < W; w++) {
                const int col = (int)((i + w) % a.c), pixel = (int)((i + w) / a.c);
                const size_t g =
                    (a.per_pixel ? (size_t)n * a.pixels + pixel : (size_t)n) * a.groups + col / length;

                dbeta[w] += dy[w];
                dgamma[w] = f_fma(dy[w], (x[w] - a.mean[g]) * a.rstd[g], dgamma[w]);
            }
        }
        if (a.dgamma)
            store(a.dgamma + i, dgamma);
        if (a.dbeta)
            store(a.dbeta + i, dbeta);
    }
};

template <class T> static hvt_status element_weights(hvt_device *d, const hvt_norm_args &a)
{
    constexpr int V = full_vec<T>();
    const unsigned fit = heads(V, a.dgamma, sizeof(float)) & heads(V, a.dbeta, sizeof(float)) &
                         heads(V, a.x, sizeof(T)) & heads(V, a.dy, sizeof(T));

    /* vecs only if they also fit at the start of every image */
    return each<V>(d, (size_t)a.pixels * a.c, a.pixels * (int64_t)a.c % V ? 0 : fit,
                   element_weights_op<T>{a});
}

/* ---- a mean of every image's group ---- */

struct image_spread : spread {
    typedef hvt_norm_args args;
    typedef image_spread reducer;
};

/* Merge the parts of a group's channels to its mean and rstd: one warp per group. */
static __global__ void __launch_bounds__(THREADS)
    group_stats_kernel(__grid_constant__ const hvt_norm_args a, image_sums s)
{
    const int length = a.c / a.groups, items = s.parts * length;
    const int64_t rows = (int64_t)s.images * a.groups;
    const float count = (float)a.pixels * (float)length;

    along(rows, [&](int64_t row) {
        const int end = row < rows ? items : 0;
        const float *from =
            s.part + (size_t)(row / a.groups) * s.parts * 2 * a.c + (size_t)(row % a.groups) * length;
        float mean = 0, squares = 0;

        for (int i = (int)threadIdx.x; i < end; i += (int)blockDim.x) {
            const int p = i / length, col = i % length;

            mean = f_fma(rows_of_parts(a.pixels, s.chunk, p, 1), from[(size_t)p * 2 * a.c + col], mean);
        }
        mean = join_row(mean) / count;
        for (int i = (int)threadIdx.x; i < end; i += (int)blockDim.x) {
            const int p = i / length, col = i % length;
            const float off = from[(size_t)p * 2 * a.c + col] - mean;

            squares += f_fma(rows_of_parts(a.pixels, s.chunk, p, 1) * off, off,
                             from[((size_t)p * 2 + 1) * a.c + col]);
        }
        squares = join_row(squares);
        if (end && threadIdx.x == 0) {
            a.mean[(size_t)s.first * a.groups + row] = mean;
            a.rstd[(size_t)s.first * a.groups + row] = 1 / sqrtf(squares / count + a.eps);
        }
    });
}

/* The constants of a lane's channels in an image. */
template <int V> struct image_channels {
    float mean[V], rstd[V], gamma[V];
    size_t group[V];

    __device__ image_channels(const hvt_norm_args &a, int image, int col)
    {
        for (int v = 0; v < V; v++) {
            group[v] = (size_t)image * a.groups + (col + v) / (a.c / a.groups);
            mean[v] = a.mean[group[v]];
            rstd[v] = a.rstd[group[v]];
            gamma[v] = a.per_element ? 1 : gamma_at(a, col + v);
        }
    }
};

template <class T, int VEC> struct group_norm_lane {
    typedef hvt_norm_args args;
    static constexpr int V = VEC, ROWS = 2;
    image_channels<V> k;
    float beta[V];
    int col;

    __device__ group_norm_lane(const args &a, int image, int col) : k(a, image, col), col(col)
    {
        for (int v = 0; v < V; v++)
            beta[v] = a.beta && !a.per_element ? a.beta[col + v] : 0;
    }

    template <int U> __device__ void apply(const args &a, size_t at, int row, size_t step) const
    {
        vec<T, V> x[U];

        load_rows(a.x, at, step, x, U);
        for (int u = 0; u < U; u++) {
            float y[V];

            for (int v = 0; v < V; v++) {
                const size_t w = weight_at(a, row + u * (int)blockDim.y, col + v);
                const float gamma = a.per_element ? gamma_at(a, w) : k.gamma[v];

                y[v] = f_fma((to_float(x[u].at[v]) - k.mean[v]) * k.rstd[v], gamma,
                             a.per_element && a.beta ? a.beta[w] : beta[v]);
            }
            store((T *)a.y + at + u * step, y);
        }
    }
};

/* Per image and channel the sums of dz and of dz*(x - mean)*rstd. dz is dy, or dy*gamma if gamma is per
 * element. */
template <class T, int VEC> struct group_sums_lane : plain_sums<2> {
    typedef hvt_norm_args args;
    typedef group_sums_lane reducer;
    static constexpr int V = VEC, ROWS = 2;
    image_channels<V> k;
    int col;

    __device__ group_sums_lane(const args &a, int image, int col) : k(a, image, col), col(col)
    {
    }

    template <int U>
    __device__ void accumulate(const args &a, size_t at, int row, size_t step, float (&sum)[K][V],
                               float) const
    {
        vec<T, V> x[U], dy[U];

        load_rows(a.x, at, step, x, U);
        load_rows(a.dy, at, step, dy, U);
        for (int u = 0; u < U; u++)
            for (int v = 0; v < V; v++) {
                float dz = to_float(dy[u].at[v]);

                if (a.per_element)
                    dz *= gamma_at(a, weight_at(a, row + u * (int)blockDim.y, col + v));
                sum[0][v] += dz;
                sum[1][v] = f_fma(dz, (to_float(x[u].at[v]) - k.mean[v]) * k.rstd[v], sum[1][v]);
            }
    }
};

/* Per group the means of dy*gamma and of dy*gamma*(x - mean)*rstd, to means[images][groups][2]. */
static __global__ void __launch_bounds__(THREADS)
    group_means_kernel(__grid_constant__ const hvt_norm_args a, image_sums s, float *means)
{
    const int length = a.c / a.groups, items = s.parts * length;
    const int64_t rows = (int64_t)s.images * a.groups;
    const float count = (float)a.pixels * (float)length;

    along(rows, [&](int64_t row) {
        const int end = row < rows ? items : 0, first = (int)(row % a.groups) * length;
        const float *from = s.part + (size_t)(row / a.groups) * s.parts * 2 * a.c + first;
        float share = 0, dot = 0;

        for (int i = (int)threadIdx.x; i < end; i += (int)blockDim.x) {
            const int p = i / length, col = i % length;
            const float gamma = a.per_element ? 1 : gamma_at(a, first + col);

            share = f_fma(gamma, from[(size_t)p * 2 * a.c + col], share);
            dot = f_fma(gamma, from[((size_t)p * 2 + 1) * a.c + col], dot);
        }
        share = join_row(share);
        dot = join_row(dot);
        if (end && threadIdx.x == 0) {
            means[2 * row] = share / count;
            means[2 * row + 1] = dot / count;
        }
    });
}

struct group_dx_args : hvt_norm_args {
    const float *means; /* written by group_means_kernel */
};

template <class T, int VEC> struct group_dx_lane {
    typedef group_dx_args args;
    static constexpr int V = VEC, ROWS = 2;
    image_channels<V> k;
    float share[V], dot[V];
    int col;

    __device__ group_dx_lane(const args &a, int image, int col) : k(a, image, col), col(col)
    {
        for (int v = 0; v < V; v++) {
            share[v] = a.means[2 * k.group[v]];
            dot[v] = a.means[2 * k.group[v] + 1];
        }
    }

    template <int U> __device__ void apply(const args &a, size_t at, int row, size_t step) const
    {
        vec<T, V> x[U], dy[U], was[U];

        load_rows(a.x, at, step, x, U);
        load_rows(a.dy, at, step, dy, U);
        if (a.add)
            load_rows(a.dx, at, step, was, U);
        for (int u = 0; u < U; u++) {
            float dx[V];

            for (int v = 0; v < V; v++) {
                const float gamma = a.per_element
                                        ? gamma_at(a, weight_at(a, row + u * (int)blockDim.y, col + v))
                                        : k.gamma[v];
                const float xhat = (to_float(x[u].at[v]) - k.mean[v]) * k.rstd[v];

                dx[v] = k.rstd[v] * (to_float(dy[u].at[v]) * gamma - f_fma(xhat, dot[v], share[v]));
                if (a.add)
                    dx[v] += to_float(was[u].at[v]);
            }
            store((T *)a.dx + at + u * step, dx);
        }
    }
};

/* dbeta and dgamma from the parts of images, a matrix [images * parts, 2c] */
struct part_weights_args {
    const float *part;
    float *dbeta, *dgamma;
    bool add;
};

struct part_weights_lane : plain_sums<1> {
    typedef part_weights_args args;
    typedef part_weights_lane reducer;
    static constexpr int V = 1, ROWS = 4;

    __device__ part_weights_lane(const args &, int)
    {
    }

    template <int U>
    __device__ void accumulate(const args &a, size_t at, int, size_t step, float (&sum)[K][V], float) const
    {
        for (int u = 0; u < U; u++)
            sum[0][0] += a.part[at + u * step];
    }

    static __device__ void finish(const args &a, int, int c, int col, const float (&sum)[K][1])
    {
        float *to = col < c / 2 ? a.dbeta : a.dgamma;
        const int k = col % (c / 2);

        if (to)
            to[k] = a.add ? to[k] + sum[0][0] : sum[0][0];
    }
};

/* ---- entries ---- */

hvt_status hvt__norm_forward_cuda(hvt_device *d, const hvt_norm_args *n)
{
    const hvt_norm_args a = *n;
    const int64_t rows = (int64_t)a.real * a.pixels * a.groups;
    const int length = a.c / a.groups;

    if (a.real == 0)
        return HVT_OK;
    if (a.per_pixel)
        return with_rows(a.type, length, {a.x, a.y}, [=](auto zero, auto v) {
            constexpr int V = decltype(v)::value;
            const along_cut cut = cut_along(rows, length, V);

            return HVT_LAUNCH(d, (pixel_norm_kernel<decltype(zero), V>), cut.grid, cut.block, a, rows);
        });
    return with_rows(a.type, a.c, {a.x, a.y}, [=](auto zero, auto v) {
        typedef decltype(zero) T;
        constexpr int V = decltype(v)::value;

        HVT_TRY((image_columns<spread_lane<image_spread, T, V>>(
            d, a, a.real, a.pixels, a.c, 0, [=](const image_sums &s) {
                const along_cut cut = cut_along((int64_t)s.images * a.groups, s.parts * length, 1);

                return HVT_LAUNCH(d, group_stats_kernel, cut.grid, cut.block, a, s);
            })));
        return image_rows_done<group_norm_lane<T, V>>(d, a, a.real, a.pixels, a.c);
    });
}

static hvt_status pixel_norm_backward(hvt_device *d, const hvt_norm_args &a)
{
    const int64_t rows = (int64_t)a.real * a.pixels * a.groups;
    const int length = a.c / a.groups;

    if (!a.per_element && (a.dgamma || a.dbeta)) /* first, because dx may be dy */
        HVT_TRY(with_rows(a.type, a.c, {a.x, a.dy}, [=](auto zero, auto v) {
            return columns<pixel_weights_lane<decltype(zero), decltype(v)::value>>(d, a, a.real * a.pixels,
                                                                                   a.c);
        }));
    if (!a.dx || rows == 0)
        return HVT_OK;
    return with_rows(a.type, length, {a.x, a.dy, a.dx}, [=](auto zero, auto v) {
        constexpr int V = decltype(v)::value;
        const along_cut cut = cut_along(rows, length, V);

        return HVT_LAUNCH(d, (pixel_norm_grad_kernel<decltype(zero), V>), cut.grid, cut.block, a, rows);
    });
}

/* After the sums of images s: add their part of dgamma and dbeta, and compute their dx. */
template <class T, int V>
static hvt_status group_norm_finish(hvt_device *d, const hvt_norm_args &a, const image_sums &s)
{
    const along_cut cut = cut_along((int64_t)s.images * a.groups, s.parts * (a.c / a.groups), 1);
    const size_t skip = (size_t)s.first * a.pixels * a.c;
    float *means = (float *)s.behind;
    hvt_norm_args some = a;

    if (!a.per_element && (a.dgamma || a.dbeta))
        HVT_TRY(columns<part_weights_lane>(d, {s.part, a.dbeta, a.dgamma, s.first > 0}, s.images * s.parts,
                                           2 * a.c));
    if (!a.dx)
        return HVT_OK;
    HVT_TRY(HVT_LAUNCH(d, group_means_kernel, cut.grid, cut.block, a, s, means));
    some.mean += (size_t)s.first * a.groups;
    some.rstd += (size_t)s.first * a.groups;
    some.x = (const T *)a.x + skip;
    some.dy = (const T *)a.dy + skip;
    some.dx = (T *)a.dx + skip;
    return image_rows_done<group_dx_lane<T, V>>(d, {some, means}, s.images, a.pixels, a.c);
}

hvt_status hvt__norm_backward_cuda(hvt_device *d, const hvt_norm_args *n)
{
    const hvt_norm_args a = *n;
    const bool has_weights = a.dgamma || a.dbeta;

    if (a.per_element && has_weights)
        HVT_TRY(with_type(a.type, [=](auto zero) { return element_weights<decltype(zero)>(d, a); }));
    if (a.per_pixel)
        return pixel_norm_backward(d, a);
    if (a.real == 0 && has_weights && !a.per_element) /* zeros */
        return columns<part_weights_lane>(d, {NULL, a.dbeta, a.dgamma, false}, 0, 2 * a.c);
    if (!a.dx && (a.per_element || !has_weights))
        return HVT_OK;
    return with_rows(a.type, a.c, {a.x, a.dy, a.dx}, [=](auto zero, auto v) {
        typedef decltype(zero) T;
        constexpr int V = decltype(v)::value;

        return image_columns<group_sums_lane<T, V>>(
            d, a, a.real, a.pixels, a.c, 2 * (size_t)a.groups,
            [=](const image_sums &s) { return group_norm_finish<T, V>(d, a, s); });
    });
}
