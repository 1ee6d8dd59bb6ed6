/*
 * Pooling and the option A shortcut of He et al. A block writes one row of one image; its threads take vecs
 * of channels of the row's pixels. Everything is a gather without atomics: an output pixel reads its window;
 * an input pixel's gradient reads the outputs that may have used it, in row-major order.
 */
#include "lanes.h"

#include "device/window.h"

/* ---- windows ---- */

/* The mean (MEAN), or the maximum and its index in the window. */
template <class T, int V, bool MEAN>
__global__ void __launch_bounds__(THREADS, 4)
    window_forward_kernel(hvt_pooling o, const T *x, T *y, uint8_t *saved)
{
    const int n = (int)blockIdx.x / o.p, p = (int)blockIdx.x % o.p, vecs = o.d.c / V;
    int top, bottom;
    const int high = hvt__window_at(&o.d.rows, o.d.h, p, o.d.count_pad, &top, &bottom);

    for (int i = (int)threadIdx.x; i < o.q * vecs; i += (int)blockDim.x) {
        const int q = i / vecs, c = i % vecs * V;
        const size_t to = ((size_t)blockIdx.x * o.q + q) * o.d.c + c;
        int left, right;
        const int wide = hvt__window_at(&o.d.columns, o.d.w, q, o.d.count_pad, &left, &right);
        const float share = MEAN ? 1 / (float)(high * wide) : 0;
        float best[V] = {};
        vec<uint8_t, V> argmax = {};
        uint8_t place = 0;

        for (int h = top; h < bottom; h++)
            for (int w = left; w < right; w++) {
                const vec<T, V> in = load<V>(x + (((size_t)n * o.d.h + h) * o.d.w + w) * o.d.c + c);

                for (int v = 0; v < V; v++) {
                    const float here = to_float(in.at[v]);

                    if (MEAN) {
                        best[v] += here;
                    } else if (place == 0 || pooling_wins(here, best[v])) {
                        best[v] = here;
                        argmax.at[v] = place;
                    }
                }
                place++;
            }
        if (MEAN)
            for (int v = 0; v < V; v++)
                best[v] *= share;
        store(y + to, best);
        if (!MEAN)
            *(vec<uint8_t, V> *)(saved + to) = argmax;
    }
}

template <class T, int V, bool MEAN>
__global__ void __launch_bounds__(THREADS, 4)
    window_backward_kernel(hvt_pooling o, const uint8_t *saved, const T *dy, T *dx, bool add)
{
    const int n = (int)blockIdx.x / o.d.h, h = (int)blockIdx.x % o.d.h, vecs = o.d.c / V;
    int p0, p1;

    hvt__readers_of(&o.d.rows, o.d.h, h, &p0, &p1);
    for (int i = (int)threadIdx.x; i < o.d.w * vecs; i += (int)blockDim.x) {
        const int w = i / vecs, c = i % vecs * V;
        T *to = dx + ((size_t)blockIdx.x * o.d.w + w) * o.d.c + c;
        float sum[V] = {};
        int q0, q1;

        hvt__readers_of(&o.d.columns, o.d.w, w, &q0, &q1);
        for (int p = p0; p < p1; p++) {
            int top, bottom;
            const int high = hvt__window_at(&o.d.rows, o.d.h, p, o.d.count_pad, &top, &bottom);

#pragma unroll 2
            for (int q = q0; q < q1; q++) {
                const size_t from = (((size_t)n * o.p + p) * o.q + q) * o.d.c + c;
                const vec<T, V> g = load<V>(dy + from);
                int left, right;
                const int wide = hvt__window_at(&o.d.columns, o.d.w, q, o.d.count_pad, &left, &right);
                const float share = 1 / (float)(high * wide);
                const int place = (h - top) * (right - left) + w - left;
                vec<uint8_t, V> chosen = {};

                if (h >= bottom || w >= right) /* strides may be longer than windows */
                    continue;
                if (!MEAN)
                    chosen = load<V>(saved + from);
                for (int v = 0; v < V; v++)
                    if (MEAN)
                        sum[v] += to_float(g.at[v]) * share;
                    else if (chosen.at[v] == place)
                        sum[v] += to_float(g.at[v]);
            }
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
        const bool whole = o.d.mean && !o.d.windows;
        const unsigned threads = line_threads(whole ? vecs : o.q * vecs);

        if (whole)
            return HVT_LAUNCH(op->dev, (mean_forward_kernel<T, V>),
                              dim3(real, (vecs + threads - 1) / threads), threads, o, (const T *)x, (T *)y);
        if (o.d.mean)
            return HVT_LAUNCH(op->dev, (window_forward_kernel<T, V, true>), real * o.p, threads, o,
                              (const T *)x, (T *)y, (uint8_t *)NULL);
        return HVT_LAUNCH(op->dev, (window_forward_kernel<T, V, false>), real * o.p, threads, o, (const T *)x,
                          (T *)y, (uint8_t *)saved);
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

        if (o.d.mean && !o.d.windows)
            return HVT_LAUNCH(op->dev, (mean_backward_kernel<T, V>), real * o.d.h, threads, o, (const T *)dy,
                              (T *)dx, add);
        if (o.d.mean)
            return HVT_LAUNCH(op->dev, (window_backward_kernel<T, V, true>), real * o.d.h, threads, o,
                              (const uint8_t *)NULL, (const T *)dy, (T *)dx, add);
        return HVT_LAUNCH(op->dev, (window_backward_kernel<T, V, false>), real * o.d.h, threads, o,
                          (const uint8_t *)saved, (const T *)dy, (T *)dx, add);
    });
}

/* ---- subsampling ---- */

struct subsampling {
    int h, w, c, p, q, channels; /* x [n,h,w,c], y [n,p,q,channels] */
    int stride, lead;
};

/* c, channels and lead are all multiples of a power of two if c | channels | lead is. */
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
