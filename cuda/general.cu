/*
 * Other ops: functions, moves, dropout, rotary embeddings. Binary operations are in binary.cu, layer and
 * group norm in shape_norm.cu.
 */
#include "rows.h"
#include "maps.h"

/* ---- functions of one number ---- */

template <class T> struct map_forward_op {
    hvt_map f;
    const T *x;
    T *y;

    template <int W> __device__ void at(size_t i) const
    {
        float v[W];

        load_floats(x + i, v);
        map_values(f, v);
        store(y + i, v);
    }
};

hvt_status hvt__map_forward_cuda(hvt_device *d, size_t n, hvt_dtype t, const hvt_map *f, const void *x,
                                 void *y)
{
    return with_type(t, [=](auto zero) {
        typedef decltype(zero) T;
        constexpr int V = full_vec<T>();

        return each<V>(d, n, heads(V, x, sizeof(T)) & heads(V, y, sizeof(T)),
                       map_forward_op<T>{*f, (const T *)x, (T *)y});
    });
}

template <class T> struct map_backward_op {
    hvt_map f;
    const T *kept, *dy;
    T *dx;
    bool add;

    template <int W> __device__ void at(size_t i) const
    {
        float v[W], g[W];

        load_floats(kept + i, v);
        load_floats(dy + i, g);
        map_slopes(f, v, g);
        if (add)
            add_floats(dx + i, g);
        store(dx + i, g);
    }
};

hvt_status hvt__map_backward_cuda(hvt_device *d, size_t n, hvt_dtype t, const hvt_map *f, const void *saved,
                                  const void *dy, void *dx, bool add)
{
    return with_type(t, [=](auto zero) {
        typedef decltype(zero) T;
        constexpr int V = full_vec<T>();

        return each<V>(d, n, heads(V, saved, sizeof(T)) & heads(V, dy, sizeof(T)) & heads(V, dx, sizeof(T)),
                       map_backward_op<T>{*f, (const T *)saved, (const T *)dy, (T *)dx, add});
    });
}

/* ---- moves ---- */

/* A block moves one row of one image's box. */
template <class T, int V>
__global__ void __launch_bounds__(THREADS) move_kernel(__grid_constant__ const hvt_move_args a)
{
    const int n = (int)blockIdx.x / a.h, y = (int)blockIdx.x % a.h, vecs = a.c / V;
    const hvt_box &s = a.src, &t = a.dst;
    const T *from = (const T *)a.from + (((size_t)n * s.h + s.y + y) * s.w + s.x) * s.c + s.first;
    T *to = (T *)a.to + (((size_t)n * t.h + t.y + y) * t.w + t.x) * t.c + t.first;

    for (int i = (int)threadIdx.x; i < a.w * vecs; i += (int)blockDim.x) {
        const int x = i / vecs, c = i % vecs * V;
        const vec<T, V> in = load<V>(from + (size_t)x * s.c + c);
        T *here = to + (size_t)x * t.c + c;
        float sum[V];

        if (!a.add) {
            *(vec<T, V> *)here = in;
            continue;
        }
        for (int v = 0; v < V; v++)
            sum[v] = to_float(in.at[v]);
        add_floats(here, sum);
        store(here, sum);
    }
}

hvt_status hvt__move_cuda(hvt_device *d, const hvt_move_args *a)
{
    const hvt_box *s = &a->src, *t = &a->dst;

    return with_rows(a->type, a->c | s->c | s->first | t->c | t->first, {a->from, a->to},
                     [=](auto zero, auto v) {
                         constexpr int V = decltype(v)::value;

                         return HVT_LAUNCH(d, (move_kernel<decltype(zero), V>), a->n * a->h,
                                           line_threads(a->w * (a->c / V)), *a);
                     });
}

struct transpose_args {
    const void *x;
    void *y;
    int rows, cols, block;
    bool add;
};

/* Reads x element by element, from a matrix that the caches hold. */
template <class T, int VEC> struct transpose_lane {
    typedef transpose_args args;
    static constexpr int V = VEC, ROWS = 2;
    int from[V];

    __device__ transpose_lane(const args &a, int, int col)
    {
        for (int v = 0; v < V; v++) {
            const int at = (col + v) / a.block;

            from[v] = (at % a.rows * a.cols + at / a.rows) * a.block + (col + v) % a.block - col;
        }
    }

    template <int U> __device__ void apply(const args &a, size_t at, int, size_t step) const
    {
        vec<T, V> y[U];

        for (int u = 0; u < U; u++)
            for (int v = 0; v < V; v++)
                y[u].at[v] = ((const T *)a.x)[(ptrdiff_t)(at + u * step) + from[v]];
        for (int u = 0; u < U; u++) {
            T *to = (T *)a.y + at + u * step;
            float sum[V];

            if (!a.add) {
                *(vec<T, V> *)to = y[u];
                continue;
            }
            for (int v = 0; v < V; v++)
                sum[v] = to_float(y[u].at[v]);
            add_floats(to, sum);
            store(to, sum);
        }
    }
};

hvt_status hvt__transpose_cuda(hvt_device *d, size_t n, hvt_dtype t, int rows, int cols, int block,
                               const void *x, void *y, bool add)
{
    const transpose_args a = {x, y, rows, cols, block, add};
    const int all = rows * cols * block;

    return with_rows(t, all, {y}, [=](auto zero, auto v) {
        return rows_done<transpose_lane<decltype(zero), decltype(v)::value>>(d, a, (int)n, all);
    });
}

/* ---- dropout ---- */

template <class T, int VEC> struct dropout_lane {
    typedef hvt_dropout_args args;
    static constexpr int V = VEC, ROWS = 4;
    uint32_t low, high, first;

    __device__ dropout_lane(const args &a, int image, int col)
    {
        const uint64_t key = hvt__mix(a.keys[image] ^ a.salt);

        low = (uint32_t)key;
        high = (uint32_t)(key >> 32);
        first = (uint32_t)col;
    }

    template <int U> __device__ void apply(const args &a, size_t at, int row, size_t step) const
    {
        const uint32_t pixels = a.what == HVT_DROP_ELEMENTS   ? (uint32_t)a.pixels
                                : a.what == HVT_DROP_CHANNELS ? 1
                                                              : 0;
        vec<T, V> x[U], was[U];

        load_rows(a.x, at, step, x, U);
        if (a.add)
            load_rows(a.y, at, step, was, U);
        for (int u = 0; u < U; u++) {
            const uint32_t p = a.what == HVT_DROP_ELEMENTS ? (uint32_t)row + u * blockDim.y : 0;
            float y[V];

            for (int v = 0; v < V; v++) {
                const bool kept = drop_keeps(drop_bits((first + v) * pixels + p, low, high), a.least);

                y[v] = to_float(x[u].at[v]) * (kept ? a.scale : 0);
                if (a.add)
                    y[v] += to_float(was[u].at[v]);
            }
            store((T *)a.y + at + u * step, y);
        }
    }
};

hvt_status hvt__dropout_cuda(hvt_device *d, const hvt_dropout_args *a)
{
    return with_rows(a->type, a->c, {a->x, a->y}, [=](auto zero, auto v) {
        return image_rows_done<dropout_lane<decltype(zero), decltype(v)::value>>(d, *a, a->real, a->pixels,
                                                                                 a->c);
    });
}

/* ---- rotary embeddings ---- */

/* True if the pairs of V channels are within them; else they are in two vecs, `apart` from each other. */
HVT_ANYWHERE bool pairs_within(int V, int apart)
{
    return V % (2 * apart) == 0;
}

/* One thread has both channels of a pair, since y may be x. Columns are first the rotated channels (every
 * other vec unless pairs are within), then the channels before and after them. */
template <class T, int VEC> struct rotary_lane {
    typedef hvt_rotary_args args;
    static constexpr int V = VEC, ROWS = 2;
    int image, here, apart; /* here: first channel; apart: distance to the second vec, 0: none */
    int number;             /* index of the first factor; -1: channels are copied */

    __device__ rotary_lane(const args &a, int image, int col) : image(image), here(col), apart(0), number(-1)
    {
        const bool within = pairs_within(V, a.apart);
        const int all = a.vectors * a.width, rotated = within ? all : all / 2;

        if (col >= rotated) {
            here -= rotated;
            here += here < a.first ? 0 : all;
            return;
        }
        if (!within) {
            apart = a.apart;
            here += col / apart * apart;
        }
        number = here % a.width;
        here += a.first;
    }

    /* Elements from `at` on, with factors from n on. */
    static __device__ void rotate(const args &a, size_t n, size_t at, const float (&x)[V],
                                  const float (&with)[V])
    {
        float own[V], other[V], y[V];

        load_floats(a.own + n, own);
        load_floats(a.other + n, other);
        for (int v = 0; v < V; v++)
            y[v] = f_fma(other[v], with[v], own[v] * x[v]);
        put(a, at, y);
    }

    static __device__ void put(const args &a, size_t at, float (&y)[V])
    {
        if (a.add)
            add_floats((const T *)a.y + at, y);
        store((T *)a.y + at, y);
    }

    template <int U> __device__ void apply(const args &a, size_t, int row, size_t) const
    {
        const size_t first = ((size_t)image * a.pixels + row) * a.c + here, step = (size_t)blockDim.y * a.c;
        vec<T, V> x[U], with[U];

        load_rows(a.x, first, step, x, U);
        if (apart)
            load_rows(a.x, first + apart, step, with, U);
#pragma unroll
        for (int u = 0; u < U; u++) {
            const size_t n = ((size_t)row + u * blockDim.y) * a.width + number, at = first + u * step;
            float mine[V], theirs[V];

            for (int v = 0; v < V; v++)
                mine[v] = to_float(x[u].at[v]);
            for (int v = 0; v < V; v++)
                theirs[v] = apart          ? to_float(with[u].at[v])
                            : a.apart == 1 ? mine[(v ^ 1) % V]
                            : a.apart == 2 ? mine[(v ^ 2) % V]
                                           : mine[(v ^ 4) % V];
            if (number < 0)
                put(a, at, mine);
            else
                rotate(a, n, at, mine, theirs);
            if (apart)
                rotate(a, n + apart, at + apart, theirs, mine);
        }
    }
};

hvt_status hvt__rotary_cuda(hvt_device *d, const hvt_rotary_args *a)
{
    const bool within = pairs_within(16 / (int)hvt_dtype_size(a->type), a->apart);

    return with_rows(a->type, a->c | a->first | a->width | (within ? 0 : a->apart),
                     {a->x, a->y, a->own, a->other}, [=](auto zero, auto v) {
                         constexpr int V = decltype(v)::value;
                         const int all = a->vectors * a->width,
                                   rotated = pairs_within(V, a->apart) ? all : all / 2;

                         return image_rows_done<rotary_lane<decltype(zero), V>>(
                             d, *a, a->real, a->pixels, rotated + (a->x == a->y ? 0 : a->c - all));
                     });
}
