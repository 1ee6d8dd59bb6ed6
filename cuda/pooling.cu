/*
 * Pooling and the option A shortcut of He et al. A block writes one row of one image; its threads take vecs
 * of channels of the row's pixels. Everything is a gather: every output pixel reads its window, every input
 * pixel's gradient the outputs that it may have contributed to, in their row-major order, so there are no
 * atomics.
 */
#include "lanes.h"

/* ---- maximum ---- */

struct pooling {
    int h, w, c, p, q; /* input [n,h,w,c], output [n,p,q,c] */
    int size, stride, pad;
};

static pooling pooling_of(const hvt_pooling_desc *d)
{
    if (d->mean)
        return {d->h, d->w, d->c, 1, 1, 0, 0, 0};
    return {d->h,
            d->w,
            d->c,
            hvt__conv_out(d->h, d->size, d->stride, d->pad),
            hvt__conv_out(d->w, d->size, d->stride, d->pad),
            d->size,
            d->stride,
            d->pad};
}

size_t hvt__cuda_pooling_saved(const hvt_pooling_desc *p)
{
    const pooling o = pooling_of(p);

    return p->mean ? 0 : (size_t)p->n * o.p * o.q * o.c;
}

template <class T, int V>
__global__ void __launch_bounds__(THREADS) max_forward_kernel(pooling o, const T *x, T *y, uint8_t *saved)
{
    const int n = (int)blockIdx.x / o.p, p = (int)blockIdx.x % o.p, vecs = o.c / V;
    const int top = p * o.stride - o.pad;

    for (int i = (int)threadIdx.x; i < o.q * vecs; i += (int)blockDim.x) {
        const int q = i / vecs, c = i % vecs * V, left = q * o.stride - o.pad;
        const size_t to = ((size_t)blockIdx.x * o.q + q) * o.c + c;
        float best[V] = {};
        vec<uint8_t, V> argmax = {};
        bool first = true;

        for (int r = top < 0 ? -top : 0; r < o.size && top + r < o.h; r++)
            for (int s = left < 0 ? -left : 0; s < o.size && left + s < o.w; s++) {
                const vec<T, V> in = load<V>(x + (((size_t)n * o.h + top + r) * o.w + left + s) * o.c + c);

#pragma unroll
                for (int v = 0; v < V; v++) {
                    const float here = to_float(in.at[v]);

                    if (first || pooling_wins(here, best[v])) {
                        best[v] = here;
                        argmax.at[v] = (uint8_t)(r * o.size + s);
                    }
                }
                first = false;
            }
        store(y + to, best);
        *(vec<uint8_t, V> *)(saved + to) = argmax;
    }
}

template <class T, int V>
__global__ void __launch_bounds__(THREADS)
    max_backward_kernel(pooling o, const uint8_t *saved, const T *dy, T *dx, bool add)
{
    const int n = (int)blockIdx.x / o.h, h = (int)blockIdx.x % o.h, vecs = o.c / V;
    const int below = h + o.pad; /* this is row below - p*stride in the window of output row p */
    const int p0 = below < o.size ? 0 : (below - o.size) / o.stride + 1;
    const int p1 = below / o.stride < o.p - 1 ? below / o.stride : o.p - 1;

    for (int i = (int)threadIdx.x; i < o.w * vecs; i += (int)blockDim.x) {
        const int w = i / vecs, c = i % vecs * V, beside = w + o.pad;
        const int q0 = beside < o.size ? 0 : (beside - o.size) / o.stride + 1;
        const int q1 = beside / o.stride < o.q - 1 ? beside / o.stride : o.q - 1;
        T *to = dx + ((size_t)blockIdx.x * o.w + w) * o.c + c;
        float sum[V] = {};

        for (int p = p0; p <= p1; p++)
#pragma unroll 2
            for (int q = q0; q <= q1; q++) {
                const size_t from = (((size_t)n * o.p + p) * o.q + q) * o.c + c;
                const int pos = (below - p * o.stride) * o.size + beside - q * o.stride;
                const vec<uint8_t, V> chosen = load<V>(saved + from);
                const vec<T, V> g = load<V>(dy + from);

#pragma unroll
                for (int v = 0; v < V; v++)
                    if (chosen.at[v] == pos)
                        sum[v] += to_float(g.at[v]);
            }
        if (add) {
            const vec<T, V> was = load<V>((const T *)to);

#pragma unroll
            for (int v = 0; v < V; v++)
                sum[v] += to_float(was.at[v]);
        }
        store(to, sum);
    }
}

/* ---- global mean ---- */

template <class T, int V>
__global__ void __launch_bounds__(THREADS) mean_forward_kernel(pooling o, const T *x, T *y)
{
    const int c = (int)(blockIdx.y * blockDim.x + threadIdx.x) * V, pixels = o.h * o.w;
    const T *from = x + (size_t)blockIdx.x * pixels * o.c + c;
    float sum[V] = {};

    if (c >= o.c)
        return;
#pragma unroll 4
    for (int i = 0; i < pixels; i++) {
        const vec<T, V> in = load<V>(from + (size_t)i * o.c);

#pragma unroll
        for (int v = 0; v < V; v++)
            sum[v] += to_float(in.at[v]);
    }
#pragma unroll
    for (int v = 0; v < V; v++)
        sum[v] /= (float)pixels;
    store(y + (size_t)blockIdx.x * o.c + c, sum);
}

template <class T, int V>
__global__ void __launch_bounds__(THREADS) mean_backward_kernel(pooling o, const T *dy, T *dx, bool add)
{
    const int n = (int)blockIdx.x / o.h, vecs = o.c / V;
    const float part = 1.0f / (float)(o.h * o.w);

    for (int i = (int)threadIdx.x; i < o.w * vecs; i += (int)blockDim.x) {
        const int c = i % vecs * V;
        T *to = dx + (size_t)blockIdx.x * o.w * o.c + (size_t)i * V;
        const vec<T, V> in = load<V>(dy + (size_t)n * o.c + c);
        float g[V];

#pragma unroll
        for (int v = 0; v < V; v++)
            g[v] = to_float(in.at[v]) * part;
        if (add) {
            const vec<T, V> was = load<V>((const T *)to);

#pragma unroll
            for (int v = 0; v < V; v++)
                g[v] += to_float(was.at[v]);
        }
        store(to, g);
    }
}

template <class T, int V>
static cudaError_t pooling_forward(cudaStream_t stream, const hvt_pooling_desc *d, int real, const T *x, T *y,
                                   uint8_t *saved)
{
    const pooling o = pooling_of(d);
    const int vecs = o.c / V;
    const unsigned threads = line_threads(vecs);

    if (d->mean)
        return HVT_LAUNCH((mean_forward_kernel<T, V>), dim3(real, (vecs + threads - 1) / threads), threads,
                          stream, o, x, y);
    return HVT_LAUNCH((max_forward_kernel<T, V>), real * o.p, line_threads(o.q * vecs), stream, o, x, y,
                      saved);
}

template <class T, int V>
static cudaError_t pooling_backward(cudaStream_t stream, const hvt_pooling_desc *d, int real,
                                    const uint8_t *saved, const T *dy, T *dx, bool add)
{
    const pooling o = pooling_of(d);
    const unsigned threads = line_threads(o.w * (o.c / V));

    if (d->mean)
        return HVT_LAUNCH((mean_backward_kernel<T, V>), real * o.h, threads, stream, o, dy, dx, add);
    return HVT_LAUNCH((max_backward_kernel<T, V>), real * o.h, threads, stream, o, saved, dy, dx, add);
}

cudaError_t hvt__cuda_pooling_forward(cudaStream_t stream, const hvt_pooling_desc *p, int real, const void *x,
                                      void *y, void *saved)
{
    if (real == 0)
        return cudaSuccess;
    return with_type(p->type, [=](auto zero) {
        typedef decltype(zero) T;
        constexpr int V = full_vec<T>();
        const bool fit = rows_fit(V, p->c, {{x, sizeof(T)}, {y, sizeof(T)}, {saved, 1}});

        return fit ? pooling_forward<T, V>(stream, p, real, (const T *)x, (T *)y, (uint8_t *)saved)
                   : pooling_forward<T, 1>(stream, p, real, (const T *)x, (T *)y, (uint8_t *)saved);
    });
}

cudaError_t hvt__cuda_pooling_backward(cudaStream_t stream, const hvt_pooling_desc *p, int real,
                                       const void *saved, const void *dy, void *dx, bool add)
{
    if (real == 0)
        return cudaSuccess;
    return with_type(p->type, [=](auto zero) {
        typedef decltype(zero) T;
        constexpr int V = full_vec<T>();
        const bool fit = rows_fit(V, p->c, {{saved, 1}, {dy, sizeof(T)}, {dx, sizeof(T)}});

        return fit ? pooling_backward<T, V>(stream, p, real, (const uint8_t *)saved, (const T *)dy, (T *)dx,
                                            add)
                   : pooling_backward<T, 1>(stream, p, real, (const uint8_t *)saved, (const T *)dy, (T *)dx,
                                            add);
    });
}

/* ---- subsampling ---- */

struct subsampling {
    int h, w, c, p, q, channels; /* x [n,h,w,c], y [n,p,q,channels] */
    int stride, lead;
};

static subsampling subsampling_of(int h, int w, int c, int stride, int channels)
{
    return {
        h, w, c, (h + stride - 1) / stride, (w + stride - 1) / stride, channels, stride, (channels - c) / 2};
}

template <class T, int V>
__global__ void __launch_bounds__(THREADS) subsample_forward_kernel(subsampling o, const T *x, T *y)
{
    const int n = (int)blockIdx.x / o.p, p = (int)blockIdx.x % o.p, vecs = o.channels / V;

    for (int i = (int)threadIdx.x; i < o.q * vecs; i += (int)blockDim.x) {
        const int q = i / vecs, c = i % vecs * V - o.lead;
        T *to = y + (size_t)blockIdx.x * o.q * o.channels + (size_t)i * V;
        const float zeros[V] = {};

        if (c < 0 || c >= o.c)
            store(to, zeros);
        else
            *(vec<T, V> *)to =
                load<V>(x + (((size_t)n * o.h + p * o.stride) * o.w + q * o.stride) * o.c + c);
    }
}

template <class T, int V>
__global__ void __launch_bounds__(THREADS)
    subsample_backward_kernel(subsampling o, const T *dy, T *dx, bool add)
{
    const int n = (int)blockIdx.x / o.h, h = (int)blockIdx.x % o.h, vecs = o.c / V;

    for (int i = (int)threadIdx.x; i < o.w * vecs; i += (int)blockDim.x) {
        const int w = i / vecs, c = i % vecs * V;
        const bool read = h % o.stride == 0 && w % o.stride == 0;
        T *to = dx + (size_t)blockIdx.x * o.w * o.c + (size_t)i * V;
        float g[V] = {};

        if (!read && add)
            continue;
        if (read) {
            const T *from =
                dy + (((size_t)n * o.p + h / o.stride) * o.q + w / o.stride) * o.channels + o.lead + c;
            const vec<T, V> in = load<V>(from);

#pragma unroll
            for (int v = 0; v < V; v++)
                g[v] = to_float(in.at[v]);
            if (add) {
                const vec<T, V> was = load<V>((const T *)to);

#pragma unroll
                for (int v = 0; v < V; v++)
                    g[v] += to_float(was.at[v]);
            }
        }
        store(to, g);
    }
}

template <class T> static bool subsample_fits(const subsampling &o, const void *x, const void *y)
{
    constexpr int V = full_vec<T>();

    return o.channels % V == 0 && o.lead % V == 0 && rows_fit(V, o.c, {{x, sizeof(T)}, {y, sizeof(T)}});
}

cudaError_t hvt__cuda_subsample_forward(cudaStream_t stream, hvt_dtype t, int n, int h, int w, int c,
                                        int stride, int channels, const void *x, void *y)
{
    const subsampling o = subsampling_of(h, w, c, stride, channels);

    return with_type(t, [=](auto zero) {
        typedef decltype(zero) T;
        constexpr int V = full_vec<T>();

        return subsample_fits<T>(o, x, y)
                   ? HVT_LAUNCH((subsample_forward_kernel<T, V>), n * o.p, line_threads(o.q * (channels / V)),
                                stream, o, (const T *)x, (T *)y)
                   : HVT_LAUNCH((subsample_forward_kernel<T, 1>), n * o.p, line_threads(o.q * channels),
                                stream, o, (const T *)x, (T *)y);
    });
}

cudaError_t hvt__cuda_subsample_backward(cudaStream_t stream, hvt_dtype t, int n, int h, int w, int c,
                                         int stride, int channels, const void *dy, void *dx, bool add)
{
    const subsampling o = subsampling_of(h, w, c, stride, channels);

    return with_type(t, [=](auto zero) {
        typedef decltype(zero) T;
        constexpr int V = full_vec<T>();

        return subsample_fits<T>(o, dx, dy)
                   ? HVT_LAUNCH((subsample_backward_kernel<T, V>), n * h, line_threads(w * (c / V)), stream,
                                o, (const T *)dy, (T *)dx, add)
                   : HVT_LAUNCH((subsample_backward_kernel<T, 1>), n * h, line_threads(w * c), stream, o,
                                (const T *)dy, (T *)dx, add);
    });
}
