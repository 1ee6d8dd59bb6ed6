/*
 * Ops for layers of one's own: functions, binary operations, moves, dropout. Norms over a shape are in
 * shape_norm.cu.
 */
#include "columns.h"
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

/* ---- binary operations ---- */

/* f(number<op>()), so that threads branch once for all their elements */
template <class Do> HVT_FN void with_op(hvt_binary op, Do f)
{
    switch (op) {
    case HVT_ADD:
        f(number<HVT_ADD>());
        break;
    case HVT_SUB:
        f(number<HVT_SUB>());
        break;
    case HVT_MUL:
        f(number<HVT_MUL>());
        break;
    default:
        f(number<HVT_DIV>());
        break;
    }
}

/* y = a op b */
template <int N>
HVT_FN void combine_all(const hvt_binary_args &k, const float (&a)[N], const float (&b)[N], float (&y)[N])
{
    with_op(k.op, [&](auto op) {
        for (int i = 0; i < N; i++)
            y[i] = combine((hvt_binary)op.value, k.swapped, a[i], b[i]);
    });
}

/* What dy gives to a, and what to b. */
template <int N>
HVT_FN void pull_a(const hvt_binary_args &k, const float (&dy)[N], const float (&a)[N], const float (&b)[N],
                   float (&da)[N])
{
    with_op(k.op, [&](auto op) {
        for (int i = 0; i < N; i++)
            da[i] = pulled((hvt_binary)op.value, !k.swapped, dy[i], a[i], b[i]);
    });
}

template <int N>
HVT_FN void pull_b(const hvt_binary_args &k, const float (&dy)[N], const float (&a)[N], const float (&b)[N],
                   float (&db)[N])
{
    with_op(k.op, [&](auto op) {
        for (int i = 0; i < N; i++)
            db[i] = pulled((hvt_binary)op.value, k.swapped, dy[i], b[i], a[i]);
    });
}

/* Gradients of sums do not depend on the operands, whose memory may be others' by then. */
HVT_ANYWHERE bool reads_operands(const hvt_binary_args &k)
{
    return k.op >= HVT_MUL;
}

template <class T> struct binary_forward_op { /* b has a's shape */
    hvt_binary_args k;

    template <int W> __device__ void at(size_t i) const
    {
        float a[W], b[W], y[W];

        load_floats((const T *)k.a + i, a);
        load_floats((const T *)k.b + i, b);
        combine_all(k, a, b, y);
        store((T *)k.y + i, y);
    }
};

template <class T> struct binary_backward_op {
    hvt_binary_args k;

    template <int W> __device__ void at(size_t i) const
    {
        float dy[W], a[W] = {}, b[W] = {}, g[W];

        load_floats((const T *)k.dy + i, dy);
        if (reads_operands(k)) {
            load_floats((const T *)k.a + i, a);
            load_floats((const T *)k.b + i, b);
        }
        if (k.db) {
            pull_b(k, dy, a, b, g);
            if (k.add_b)
                add_floats((const T *)k.db + i, g);
            store((T *)k.db + i, g);
        }
        if (k.da) {
            pull_a(k, dy, a, b, g);
            if (k.add_a)
                add_floats((const T *)k.da + i, g);
            store((T *)k.da + i, g);
        }
    }
};

/* What of b a lane meets: of an image, of its channels, or one number. */
template <class T, int V>
HVT_FN void lane_operand(const hvt_binary_args &k, int image, int col, float (&b)[V])
{
    for (int v = 0; v < V; v++)
        switch (k.across) {
        case HVT_PER_IMAGE:
            b[v] = to_float(((const T *)k.b)[(size_t)image * k.c + col + v]);
            break;
        case HVT_PER_CHANNEL:
            b[v] = ((const float *)k.b)[col + v];
            break;
        case HVT_ONE_NUMBER:
            b[v] = *(const float *)k.b;
            break;
        default:
            b[v] = 0;
        }
}

template <class T, int V> HVT_FN void pixel_operand(const hvt_binary_args &k, int64_t row, float (&b)[V])
{
    const float x = to_float(((const T *)k.b)[row]);

    for (int v = 0; v < V; v++)
        b[v] = x;
}

template <class T, int VEC> struct binary_lane {
    typedef hvt_binary_args args;
    static constexpr int V = VEC, ROWS = 4;
    float b[V];

    __device__ binary_lane(const args &k, int image, int col)
    {
        lane_operand<T>(k, image, col, b);
    }

    template <int U> __device__ void apply(const args &k, size_t at, int row, size_t step)
    {
        vec<T, V> in[U];

        load_rows(k.a, at, step, in, U);
#pragma unroll
        for (int u = 0; u < U; u++) {
            float a[V], y[V];

            for (int v = 0; v < V; v++)
                a[v] = to_float(in[u].at[v]);
            if (k.across == HVT_PER_PIXEL)
                pixel_operand<T>(k, row + u * (int)blockDim.y, b);
            combine_all(k, a, b, y);
            store((T *)k.y + at + u * step, y);
        }
    }
};

/* da; and the sums of db, of a column. */
template <class T, int VEC> struct binary_grad_lane : plain_sums<1> {
    typedef hvt_binary_args args;
    typedef binary_grad_lane reducer;
    static constexpr int V = VEC, ROWS = 2;
    float b[V];

    __device__ binary_grad_lane(const args &k, int image, int col)
    {
        lane_operand<T>(k, image, col, b);
    }

    __device__ binary_grad_lane(const args &k, int col) : binary_grad_lane(k, 0, col)
    {
    }

    template <int U>
    __device__ void accumulate(const args &k, size_t at, int row, size_t step, float (&sum)[K][V], float)
    {
        vec<T, V> dys[U], as[U] = {}, was[U] = {};

        load_rows(k.dy, at, step, dys, U);
        if (reads_operands(k))
            load_rows(k.a, at, step, as, U);
        if (k.da && k.add_a)
            load_rows(k.da, at, step, was, U);
#pragma unroll
        for (int u = 0; u < U; u++) {
            float dy[V], a[V], da[V], db[V];

            for (int v = 0; v < V; v++) {
                dy[v] = to_float(dys[u].at[v]);
                a[v] = to_float(as[u].at[v]);
            }
            if (k.across == HVT_PER_PIXEL && reads_operands(k))
                pixel_operand<T>(k, row + u * (int)blockDim.y, b);
            pull_b(k, dy, a, b, db);
            pull_a(k, dy, a, b, da);
            for (int v = 0; v < V; v++) {
                sum[0][v] += db[v];
                if (k.da && k.add_a)
                    da[v] += to_float(was[u].at[v]);
            }
            if (k.da)
                store((T *)k.da + at + u * step, da);
        }
    }

    template <int U> __device__ void apply(const args &k, size_t at, int row, size_t step)
    {
        float sum[K][V];

        accumulate<U>(k, at, row, step, sum, 0);
    }

    static __device__ void finish(const args &k, int, int, int col, const float (&sum)[K][1])
    {
        ((float *)k.db)[col] = sum[0][0];
    }
};

/* db of a pixel: the sum along its row */
template <class T, int V>
__global__ void __launch_bounds__(THREADS)
    pixel_grad_kernel(__grid_constant__ const hvt_binary_args k, int64_t rows)
{
    along(rows, [&](int64_t row) {
        const bool mine = row < rows;
        float b[V] = {}, sum = 0;

        if (mine && reads_operands(k))
            pixel_operand<T>(k, row, b);
        for (int col = (int)threadIdx.x * V; mine && col < k.c; col += (int)blockDim.x * V) {
            const size_t at = (size_t)row * k.c + col;
            float dy[V], a[V] = {}, da[V], db[V];

            load_floats((const T *)k.dy + at, dy);
            if (reads_operands(k))
                load_floats((const T *)k.a + at, a);
            pull_b(k, dy, a, b, db);
            pull_a(k, dy, a, b, da);
            for (int v = 0; v < V; v++)
                sum += db[v];
            if (k.da && k.add_a)
                add_floats((const T *)k.da + at, da);
            if (k.da)
                store((T *)k.da + at, da);
        }
        sum = join_row(sum);
        if (mine && threadIdx.x == 0) {
            T *to = (T *)k.db + row;

            from_float(k.add_b ? to_float(*to) + sum : sum, *to);
        }
    });
}

/* db of images from the sums of their parts */
template <class T> struct image_grad_op {
    image_sums s;
    int c;
    T *db;
    bool add;

    template <int W> __device__ void at(size_t i) const
    {
        const size_t image = i / c, col = i % c;
        float sum[W] = {};

        for (int p = 0; p < s.parts; p++)
            add_floats(s.part + (image * s.parts + p) * c + col, sum);
        if (add)
            add_floats(db + i, sum);
        store(db + i, sum);
    }
};

/* f(T(), number<V>()) for the elements of all arrays of a's shape */
template <class Do> static hvt_status with_operands(const hvt_binary_args &k, Do f)
{
    return with_rows(k.type, k.c, {k.a, k.y, k.dy, k.da}, f);
}

/* Where b is that of an image, images are matrices of their own, else all are one. */
static int images_of(const hvt_binary_args *k)
{
    return k->across == HVT_PER_IMAGE ? k->real : k->real > 0;
}

static int pixels_of(const hvt_binary_args *k)
{
    return k->across == HVT_PER_IMAGE ? k->pixels : k->pixels * k->real;
}

/* The heads that fit all arrays of one shape. */
template <class T> static unsigned operand_heads(const hvt_binary_args &k)
{
    unsigned fit = ~0u;

    for (const void *p : {k.a, k.b, k.dy, (const void *)k.y, (const void *)k.da, (const void *)k.db})
        fit &= heads(full_vec<T>(), p, sizeof(T));
    return fit;
}

hvt_status hvt__binary_forward_cuda(hvt_device *d, const hvt_binary_args *a)
{
    hvt_binary_args k = *a;

    k.dy = NULL;
    k.da = k.db = NULL;
    if (k.across == HVT_SAME)
        return with_type(k.type, [=](auto zero) {
            typedef decltype(zero) T;

            return each<full_vec<T>()>(d, (size_t)k.real * k.pixels * k.c, operand_heads<T>(k),
                                       binary_forward_op<T>{k});
        });
    return with_operands(k, [=](auto zero, auto v) {
        return image_rows_done<binary_lane<decltype(zero), decltype(v)::value>>(d, k, images_of(&k),
                                                                                pixels_of(&k), k.c);
    });
}

/* db and da, where b is repeated along something. */
template <class T, int V> static hvt_status spread_backward(hvt_device *d, const hvt_binary_args &k)
{
    typedef binary_grad_lane<T, V> lane;
    const int64_t rows = (int64_t)k.real * k.pixels;
    hvt_binary_args each_column = k;

    if (!k.db)
        return image_rows_done<lane>(d, k, images_of(&k), pixels_of(&k), k.c);
    switch (k.across) {
    case HVT_PER_IMAGE:
        return image_columns<lane>(d, k, k.real, k.pixels, k.c, 0, [=](const image_sums &s) {
            T *db = (T *)k.db + (size_t)s.first * k.c;

            return each<V>(d, (size_t)s.images * k.c, heads(V, db, sizeof(T)) & 1,
                           image_grad_op<T>{s, k.c, db, k.add_b});
        });
    case HVT_PER_PIXEL: {
        const along_cut cut = cut_along(rows, k.c, V);

        return rows ? HVT_LAUNCH(d, (pixel_grad_kernel<T, V>), cut.grid, cut.block, k, rows) : HVT_OK;
    }
    case HVT_ONE_NUMBER: /* as one of each channel, and then their sum */
        each_column.db = (char *)hvt__cuda_scratch(d) + SPARE;
        HVT_TRY(columns<lane>(d, each_column, (int)rows, k.c));
        return hvt__bias_backward_cuda(d, {1, k.c, k.c}, 1, HVT_F32, each_column.db, (float *)k.db);
    default:
        return columns<lane>(d, k, (int)rows, k.c);
    }
}

hvt_status hvt__binary_backward_cuda(hvt_device *d, const hvt_binary_args *a)
{
    hvt_binary_args k = *a;

    k.y = NULL;
    if (!reads_operands(k))
        k.a = NULL;
    if (k.across == HVT_SAME)
        return with_type(k.type, [=](auto zero) {
            typedef decltype(zero) T;

            return each<full_vec<T>()>(d, (size_t)k.real * k.pixels * k.c, operand_heads<T>(k),
                                       binary_backward_op<T>{k});
        });
    return with_operands(
        k, [=](auto zero, auto v) { return spread_backward<decltype(zero), decltype(v)::value>(d, k); });
}

/* ---- moves ---- */

/* A block has one row of one image's box. */
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

struct shuffle_args {
    const void *x;
    void *y;
    int c, groups;
    bool add;
};

/* x is read one by one, from a row that the caches hold. */
template <class T, int VEC> struct shuffle_lane {
    typedef shuffle_args args;
    static constexpr int V = VEC, ROWS = 2;
    int from[V];

    __device__ shuffle_lane(const args &a, int, int col)
    {
        for (int v = 0; v < V; v++)
            from[v] = (col + v) % a.groups * (a.c / a.groups) + (col + v) / a.groups - col;
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

hvt_status hvt__shuffle_cuda(hvt_device *d, size_t rows, hvt_dtype t, int c, int groups, const void *x,
                             void *y, bool add)
{
    const shuffle_args a = {x, y, c, groups, add};

    return with_rows(t, c, {y}, [=](auto zero, auto v) {
        return rows_done<shuffle_lane<decltype(zero), decltype(v)::value>>(d, a, (int)rows, c);
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
