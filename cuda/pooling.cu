/*
 * Pooling and the option A shortcut of He et al. A block writes one row of one image; its threads take vecs
 * of channels of the row's pixels. Everything is a gather: every output pixel reads its window, every input
 * pixel's gradient the outputs that it may have contributed to, in their row-major order, so there are no
 * atomics.
 */
#include "lanes.h"

/* ---- maximum ---- */

template <class T, int V>
__global__ void __launch_bounds__(THREADS) max_forward_kernel(hvt_pooling o, const T *x, T *y, uint8_t *saved)
{
    const int n = (int)blockIdx.x / o.p, p = (int)blockIdx.x % o.p, vecs = o.d.c / V;
    const int top = p * o.d.stride - o.d.pad;

    for (int i = (int)threadIdx.x; i < o.q * vecs; i += (int)blockDim.x) {
        const int q = i / vecs, c = i % vecs * V, left = q * o.d.stride - o.d.pad;
        const size_t to = ((size_t)blockIdx.x * o.q + q) * o.d.c + c;
        float best[V] = {};
        vec<uint8_t, V> argmax = {};
        bool first = true;

        for (int r = top < 0 ? -top : 0; r < o.d.size && top + r < o.d.h; r++)
            for (int s = left < 0 ? -left : 0; s < o.d.size && left + s < o.d.w; s++) {
                const vec<T, V> in =
                    load<V>(x + (((size_t)n * o.d.h + top + r) * o.d.w + left + s) * o.d.c + c);

                for (int v = 0; v < V; v++) {
                    const float here = to_float(in.at[v]);

                    if (first || pooling_wins(here, best[v])) {
                        best[v] = here;
                        argmax.at[v] = (uint8_t)(r * o.d.size + s);
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
    max_backward_kernel(hvt_pooling o, const uint8_t *saved, const T *dy, T *dx, bool add)
{
    const int n = (int)blockIdx.x / o.d.h, h = (int)blockIdx.x % o.d.h, vecs = o.d.c / V;
    const int below = h + o.d.pad; /* this is row below - p*stride in the window of output row p */
    const int p0 = below < o.d.size ? 0 : (below - o.d.size) / o.d.stride + 1;
    const int p1 = below / o.d.stride < o.p - 1 ? below / o.d.stride : o.p - 1;

    for (int i = (int)threadIdx.x; i < o.d.w * vecs; i += (int)blockDim.x) {
        const int w = i / vecs, c = i % vecs * V, beside = w + o.d.pad;
        const int q0 = beside < o.d.size ? 0 : (beside - o.d.size) / o.d.stride + 1;
        const int q1 = beside / o.d.stride < o.q - 1 ? beside / o.d.stride : o.q - 1;
        T *to = dx + ((size_t)blockIdx.x * o.d.w + w) * o.d.c + c;
        float sum[V] = {};

        for (int p = p0; p <= p1; p++)
#pragma unroll 2
            for (int q = q0; q <= q1; q++) {
                const size_t from = (((size_t)n * o.p + p) * o.q + q) * o.d.c + c;
                const int pos = (below - p * o.d.stride) * o.d.size + beside - q * o.d.stride;
                const vec<uint8_t, V> chosen = load<V>(saved + from);
                const vec<T, V> g = load<V>(dy + from);

                for (int v = 0; v < V; v++)
                    if (chosen.at[v] == pos)
                        sum[v] += to_float(g.at[v]);
            }
        if (add)
            add_floats(to, sum);
        store(to, sum);
    }
}

/* ---- global mean ---- */

template <class T, int V>
__global__ void __launch_bounds__(THREADS) mean_forward_kernel(hvt_pooling o, const T *x, T *y)
{
    const int c = (int)(blockIdx.y * blockDim.x + threadIdx.x) * V, pixels = o.d.h * o.d.w;
    const T *from = x + (size_t)blockIdx.x * pixels * o.d.c + c;
    float sum[V] = {};

    if (c >= o.d.c)
        return;
#pragma unroll 4
    for (int i = 0; i < pixels; i++)
        add_floats(from + (size_t)i * o.d.c, sum);
    for (int v = 0; v < V; v++)
        sum[v] /= (float)pixels;
    store(y + (size_t)blockIdx.x * o.d.c + c, sum);
}

template <class T, int V>
__global__ void __launch_bounds__(THREADS) mean_backward_kernel(hvt_pooling o, const T *dy, T *dx, bool add)
{
    const int n = (int)blockIdx.x / o.d.h, vecs = o.d.c / V;
    const float part = 1.0f / (float)(o.d.h * o.d.w);

    for (int i = (int)threadIdx.x; i < o.d.w * vecs; i += (int)blockDim.x) {
        const int c = i % vecs * V;
        T *to = dx + (size_t)blockIdx.x * o.d.w * o.d.c + (size_t)i * V;
        float g[V];

        load_floats(dy + (size_t)n * o.d.c + c, g);
        for (int v = 0; v < V; v++)
            g[v] *= part;
        if (add)
            add_floats(to, g);
        store(to, g);
    }
}

/* ---- either ---- */

hvt_status hvt__pooling_forward_cuda(hvt_op *op, int real, const void *x, void *y, void *saved)
{
    const hvt_pooling o = *(const hvt_pooling *)op;

    if (real == 0)
        return HVT_OK;
    return with_rows(o.d.type, o.d.c, {x, y, saved}, [=](auto zero, auto v) {
        typedef decltype(zero) T;
        constexpr int V = decltype(v)::value;
        const int vecs = o.d.c / V;
        const unsigned threads = line_threads(o.d.mean ? vecs : o.q * vecs);

        if (o.d.mean)
            return HVT_LAUNCH(op->dev, (mean_forward_kernel<T, V>),
                              dim3(real, (vecs + threads - 1) / threads), threads, o, (const T *)x, (T *)y);
        return HVT_LAUNCH(op->dev, (max_forward_kernel<T, V>), real * o.p, threads, o, (const T *)x, (T *)y,
                          (uint8_t *)saved);
    });
}

hvt_status hvt__pooling_backward_cuda(hvt_op *op, int real, const void *saved, const void *dy, void *dx,
                                      bool add)
{
    const hvt_pooling o = *(const hvt_pooling *)op;

    if (real == 0)
        return HVT_OK;
    return with_rows(o.d.type, o.d.c, {saved, dy, dx}, [=](auto zero, auto v) {
        typedef decltype(zero) T;
        constexpr int V = decltype(v)::value;
        const unsigned threads = line_threads(o.d.w * (o.d.c / V));

        if (o.d.mean)
            return HVT_LAUNCH(op->dev, (mean_backward_kernel<T, V>), real * o.d.h, threads, o, (const T *)dy,
                              (T *)dx, add);
        return HVT_LAUNCH(op->dev, (max_backward_kernel<T, V>), real * o.d.h, threads, o,
                          (const uint8_t *)saved, (const T *)dy, (T *)dx, add);
    });
}

/* ---- subsampling ---- */

struct subsampling {
    int h, w, c, p, q, channels; /* x [n,h,w,c], y [n,p,q,channels] */
    int stride, lead;
};

/* All of c, channels and lead are multiples of a power of two if c | channels | lead is. */
static subsampling subsampling_of(const hvt_subsample_desc *s)
{
    return {s->h,
            s->w,
            s->c,
            (s->h + s->stride - 1) / s->stride,
            (s->w + s->stride - 1) / s->stride,
            s->k,
            s->stride,
            (s->k - s->c) / 2};
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
            *(vec<T, V> *)to = load<V>(x + (((size_t)n * o.h + p * o.stride) * o.w + q * o.stride) * o.c + c);
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
        if (read)
            load_floats(
                dy + (((size_t)n * o.p + h / o.stride) * o.q + w / o.stride) * o.channels + o.lead + c, g);
        if (add)
            add_floats(to, g);
        store(to, g);
    }
}

hvt_status hvt__subsample_forward_cuda(hvt_device *d, const hvt_subsample_desc *s, const void *x, void *y)
{
    const subsampling o = subsampling_of(s);

    return with_rows(s->type, o.c | o.channels | o.lead, {x, y}, [=](auto zero, auto v) {
        typedef decltype(zero) T;
        constexpr int V = decltype(v)::value;

        return HVT_LAUNCH(d, (subsample_forward_kernel<T, V>), s->n * o.p,
                          line_threads(o.q * (o.channels / V)), o, (const T *)x, (T *)y);
    });
}

hvt_status hvt__subsample_backward_cuda(hvt_device *d, const hvt_subsample_desc *s, const void *dy, void *dx,
                                        bool add)
{
    const subsampling o = subsampling_of(s);

    return with_rows(s->type, o.c | o.channels | o.lead, {dy, dx}, [=](auto zero, auto v) {
        typedef decltype(zero) T;
        constexpr int V = decltype(v)::value;

        return HVT_LAUNCH(d, (subsample_backward_kernel<T, V>), s->n * o.h, line_threads(o.w * (o.c / V)), o,
                          (const T *)dy, (T *)dx, add);
    });
}
