/* Binary operations; one operand may be broadcast over pixels, channels or images. */
#include "rows.h"
#include "maps.h"

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
    case HVT_MAXIMUM:
        f(number<HVT_MAXIMUM>());
        break;
    case HVT_MINIMUM:
        f(number<HVT_MINIMUM>());
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

enum { ELEMENT_IMAGES = 4 }; /* images in flight for a table's gradient */

/* Gradients of a and of b from dy. */
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

/* False for sums: their gradients do not depend on the operands, whose memory may have been reused. */
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

/* A lane's elements of b: per image, per channel, or one number. */
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

/* This pixel's row of a table; 0 for pixels without one. The table is a parameter, which may have any
 * alignment in an arena. */
template <int V> HVT_FN void element_operand(const hvt_binary_args &k, int pixel, int col, float (&b)[V])
{
    const int row = pixel - k.at.first;
    const float *from = (const float *)k.b + (ptrdiff_t)row * k.c + col;

    if (row < 0 || row >= k.at.count)
        for (int v = 0; v < V; v++)
            b[v] = 0;
    else if ((uintptr_t)k.b % 16 == 0)
        load_floats(from, b);
    else
        for (int v = 0; v < V; v++)
            b[v] = from[v];
}

template <class T, int VEC> struct binary_lane {
    typedef hvt_binary_args args;
    static constexpr int V = VEC, ROWS = 4;
    float b[V];
    int col;

    __device__ binary_lane(const args &k, int image, int col) : col(col)
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
            if (k.across == HVT_PER_ELEMENT)
                element_operand(k, row + u * (int)blockDim.y, col, b);
            combine_all(k, a, b, y);
            store((T *)k.y + at + u * step, y);
        }
    }
};

/* da, and the sums of db over a column. */
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

/* db of a pixel: the sum along its row. */
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

/* db of a table: for each element the sum of dy over images. */
template <class T, int V>
__global__ void __launch_bounds__(THREADS, 2)
    element_grad_kernel(__grid_constant__ const hvt_binary_args k, int images)
{
    typedef plain_sums<1> R;
    const int c = k.at.count * k.c, col = my_channel<V>();
    const size_t image = (size_t)k.pixels * k.c, step = blockDim.y * image;
    const T *dy = (const T *)k.dy + (size_t)k.at.first * k.c + col;
    float sum[R::K][V] = {};

    if (col < c)
        down<ELEMENT_IMAGES>(images, images, [&](auto u, int n) {
            vec<T, V> in[u.value];

            load_rows(dy, n * image, step, in, u.value);
            for (int i = 0; i < u.value; i++)
                for (int v = 0; v < V; v++)
                    sum[0][v] += to_float(in[i].at[v]);
        });
    join_lanes<R>(sum, 0);
    if (threadIdx.y == 0 && col < c)
        for (int v = 0; v < V; v++)
            ((float *)k.db)[col + v] = sum[0][v];
}

/* db of images from the sums of their parts. */
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

/* f(T(), number<V>()) for the elements of all arrays with a's shape. */
template <class Do> static hvt_status with_operands(const hvt_binary_args &k, Do f)
{
    return with_rows(k.type, k.c, {k.a, k.y, k.dy, k.da}, f);
}

/* True if b is per image or per pixel: then images are separate matrices, else they form one. */
static bool is_each_image(const hvt_binary_args *k)
{
    return k->across == HVT_PER_IMAGE || k->across == HVT_PER_ELEMENT;
}

static int images_of(const hvt_binary_args *k)
{
    return is_each_image(k) ? k->real : k->real > 0;
}

static int pixels_of(const hvt_binary_args *k)
{
    return is_each_image(k) ? k->pixels : k->pixels * k->real;
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

/* db and da if b is broadcast. */
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
    case HVT_ONE_NUMBER: /* as one per channel, then their sum */
        each_column.db = (char *)hvt__cuda_scratch(d) + SPARE;
        HVT_TRY(columns<lane>(d, each_column, (int)rows, k.c));
        return hvt__bias_backward_cuda(d, {1, k.c, k.c}, 1, HVT_F32, each_column.db, (float *)k.db);
    default:
        return columns<lane>(d, k, (int)rows, k.c);
    }
}

/* db and da if b is a table for some pixels: the operation is an addition, so da is dy. */
static hvt_status element_backward(hvt_device *d, const hvt_binary_args &k)
{
    hvt_binary_args of_a = k;

    if (k.db)
        HVT_TRY(with_rows(k.type, k.c, {k.dy}, [=](auto zero, auto v) {
            constexpr int V = decltype(v)::value;
            const row_cut cut = cut_rows(k.real, k.at.count * k.c, V, ELEMENT_IMAGES, INT32_MAX, 1);

            return HVT_LAUNCH(d, (element_grad_kernel<decltype(zero), V>), cut.grid, cut.block, k, k.real);
        }));
    if (!k.da || (k.da == k.dy && !k.add_a))
        return HVT_OK;
    of_a.across = HVT_SAME;
    of_a.b = NULL;
    of_a.db = NULL;
    return hvt__binary_backward_cuda(d, &of_a);
}

hvt_status hvt__binary_backward_cuda(hvt_device *d, const hvt_binary_args *a)
{
    hvt_binary_args k = *a;

    k.y = NULL;
    if (!reads_operands(k))
        k.a = NULL;
    if (k.across == HVT_PER_ELEMENT)
        return element_backward(d, k);
    if (k.across == HVT_SAME)
        return with_type(k.type, [=](auto zero) {
            typedef decltype(zero) T;

            return each<full_vec<T>()>(d, (size_t)k.real * k.pixels * k.c, operand_heads<T>(k),
                                       binary_backward_op<T>{k});
        });
    return with_operands(
        k, [=](auto zero, auto v) { return spread_backward<decltype(zero), decltype(v)::value>(d, k); });
}
