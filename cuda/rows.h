/*
 * rows.h - sums over the rows of a matrix [rows, c], and functions of its rows, for one matrix or one per
 * image.
 *
 * Sums over rows take three levels in one kernel. Every thread sums some rows of its channels, and the
 * threads of a block merge their sums along a tree: a "part". Parts are stored in scratch. The last block to
 * arrive of GROUP neighbours merges theirs to a group's sums, along a tree again; the last of all groups
 * merges those and finishes. Which block is last is random, but the order of merging depends only on the
 * shape. Means and sums of squared deviations are merged as by Chan, Golub and LeVeque (1979), so that a mean
 * that is large against the deviation costs no precision. Images are numerous enough for one level: their
 * parts stay in scratch for the next kernel.
 *
 * A *lane* holds one thread's V channels: constants, loaded once. Its `accumulate` adds U rows, its `apply`
 * writes them; both load everything before they compute, so that ROWS rows are in flight. They get the first
 * row's element and number, and the distance between rows.
 *
 * Included by .cu files. Nothing else.
 */
#ifndef HVT_CUDA_ROWS_H
#define HVT_CUDA_ROWS_H

#include "lanes.h"

/* ---- sums over rows ---- */

enum {
    MOST_PARTS = 512,
    GROUP = 16,
    SUM_BLOCKS = 1024, /* over all channels */
    ROW_BLOCKS = 4096,
    MOST_SUMS = 2,        /* maximum floats per channel of a part */
    IMAGE_ROWS = 512,     /* approximate rows of an image's part */
    IMAGE_SUMS = 1 << 20, /* maximum channels times parts */
    MOST_IMAGES = 65535   /* maximum of a grid */
};

/* With two or more parts there are at most SUM_BLOCKS blocks, which bounds parts times channels, and
 * counters. With two or more groups there is at most one per eight parts. */
constexpr size_t PART_BYTES = (size_t)SUM_BLOCKS * MOST_ACROSS * full_vec<f16>() * MOST_SUMS * sizeof(float);
/* The rest of scratch: sums of images, and other results for the next kernel. */
constexpr size_t SPARE = HVT__CUDA_COUNTERS + PART_BYTES + PART_BYTES / 8;
constexpr size_t SPARE_BYTES = HVT__CUDA_SCRATCH - SPARE;

static_assert(
    SPARE + HVT__CUDA_CHANNELS * 8 * sizeof(float) <= HVT__CUDA_SCRATCH &&
        SUM_BLOCKS * sizeof(unsigned) <= HVT__CUDA_COUNTERS && MOST_ACROSS * full_vec<f16>() <= THREADS,
    "scratch holds all parts, groups, counters and an image's sums; a block has a thread per channel");

/* This thread's first channel; >= c if its lane is past the row's end. */
template <int V> HVT_FN int my_channel()
{
    return (int)(blockIdx.x * blockDim.x + threadIdx.x) * V;
}

/* Merge the sums of the lanes in a column of a block, which cover `count` rows each. The lanes with y = 0 get
 * the result. */
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
        __syncthreads(); /* the half written here is not written again */
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

/* Counts the arriving blocks of a column of the grid: parts per group, and groups. A counter is 0 between
 * kernels: the last block to arrive resets it. */
struct arrivals {
    float *part, *group; /* [parts][K][c], [groups][K][c] */
    unsigned *counter;   /* [columns][groups + 1]; the last one counts groups */
};

/* True in all threads of the last of `all` blocks to arrive at the counter; they see what the other blocks
 * have stored. */
HVT_FN bool comes_last(unsigned *counter, unsigned all)
{
    struct shared {
        bool last;
    };
    HVT_SHARED(shared, s);

    __threadfence(); /* make this thread's stores visible before the block is counted */
    __syncthreads();
    if (threadIdx.x == 0 && threadIdx.y == 0)
        s.last = atomicInc(counter, all - 1) == all - 1;
    __syncthreads();
    __threadfence();
    return s.last;
}

/* Rows in parts first .. first+parts-1. */
HVT_FN float rows_of_parts(int rows, int chunk, int first, int parts)
{
    const int64_t begin = (int64_t)first * chunk, end = begin + (int64_t)parts * chunk;

    return (float)((end < rows ? end : rows) - begin);
}

/* sum = merge of `count` entries of from[...][K][c] from index `first` on, each of `parts` parts; the lanes
 * with y = 0 get it. */
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

/* Finish the block's channels, one per thread. */
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
            lane.template accumulate<u.value>(a, (size_t)row * c + col, row, step, sum, count);
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

/* Sum and finish for lane type L, in the order of lanes of ROWS rows. */
template <class L, int ROWS = L::ROWS>
static hvt_status columns(hvt_device *d, const typename L::args &a, int rows, int c)
{
    row_cut cut = cut_rows(rows, c, L::V, ROWS, SUM_BLOCKS, MOST_PARTS);
    char *scratch = (char *)hvt__cuda_scratch(d);
    const arrivals to = {(float *)(scratch + HVT__CUDA_COUNTERS),
                         (float *)(scratch + HVT__CUDA_COUNTERS + PART_BYTES), (unsigned *)scratch};

    HVT_CHECK(c <= HVT__CUDA_CHANNELS, E_UNSUPPORTED, "device cuda: %d channels, expected at most %d", c,
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

/* A reducer of means and of sums of squared deviations from them. */
struct spread {
    static constexpr int K = 2;

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
};

template <int V, class T>
HVT_FN void load_rows(const void *from, size_t at, size_t step, vec<T, V> *ret, int u)
{
    for (int i = 0; i < u; i++)
        ret[i] = load<V>((const T *)from + at + i * step);
}

/* The same for x of Base's args; Base is a spread. */
template <class Base, class T, int VEC> struct spread_lane : Base {
    static constexpr int V = VEC, ROWS = 4;

    __device__ spread_lane(const typename Base::args &, int, int = 0)
    {
    }

    template <int U>
    __device__ void accumulate(const typename Base::args &a, size_t at, int, size_t step,
                               float (&sum)[Base::K][V], float count)
    {
        vec<T, V> x[U];
        float group[Base::K][V];

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
        Base::merge(sum, count, group, U);
    }
};

/* ---- functions of rows ---- */

template <class L>
__global__ void __launch_bounds__(THREADS, 2)
    apply_kernel(__grid_constant__ const typename L::args a, int rows, int c, int chunk)
{
    const int col = my_channel<L::V>();
    const size_t step = (size_t)blockDim.y * c;

    if (col < c) {
        L lane(a, rows, col);

        down<L::ROWS>(rows, chunk, [&](auto u, int row) {
            lane.template apply<u.value>(a, (size_t)row * c + col, row, step);
        });
    }
}

template <class L> static hvt_status rows_done(hvt_device *d, const typename L::args &a, int rows, int c)
{
    row_cut cut = cut_rows(rows, c, L::V, L::ROWS, ROW_BLOCKS, ROW_BLOCKS);

    if (rows == 0)
        return HVT_OK;
    return HVT_LAUNCH(d, (apply_kernel<L>), cut.grid, cut.block, a, rows, c, cut.chunk);
}

/* ---- functions of images' rows ---- */

template <class L>
__global__ void __launch_bounds__(THREADS, 2)
    image_sums_kernel(__grid_constant__ const typename L::args a, int first, int pixels, int c, int chunk,
                      float *to)
{
    typedef typename L::reducer R;
    constexpr int V = L::V;
    const int col = my_channel<V>(), image = first + (int)blockIdx.z;
    const size_t begin = (size_t)image * pixels * c + col, step = (size_t)blockDim.y * c;
    float sum[R::K][V] = {}, count = 0;

    if (col < c) {
        L lane(a, image, col);

        down<L::ROWS>(pixels, chunk, [&](auto u, int row) {
            lane.template accumulate<u.value>(a, begin + (size_t)row * c, row, step, sum, count);
            count += u.value;
        });
    }
    join_lanes<R>(sum, count);
    store_sums<R>(to, c, col, (int)(blockIdx.z * gridDim.y + blockIdx.y), sum);
}

/* The sums of images [first, first + images) in scratch. */
struct image_sums {
    const float *part; /* [images][parts][K][c] */
    int first, images, parts, chunk;
    void *behind; /* free scratch */
};

/* An image's parts depend only on its shape, so its sums do not depend on the batch. */
template <class L> static row_cut cut_image(int pixels, int c)
{
    const int parts = (pixels + IMAGE_ROWS - 1) / IMAGE_ROWS, most = c < IMAGE_SUMS ? IMAGE_SUMS / c : 1;

    return cut_rows(pixels, c, L::V, L::ROWS, INT32_MAX, parts < most ? parts : most);
}

/* then(image_sums), for as many images at a time as fit in scratch, with `beside` more floats per image. */
template <class L, class Do>
static hvt_status image_columns(hvt_device *d, const typename L::args &a, int n, int pixels, int c,
                                size_t beside, Do then)
{
    row_cut cut = cut_image<L>(pixels, c);
    const size_t image = (cut.grid.y * (size_t)c * L::reducer::K + beside) * sizeof(float);
    const size_t fit = SPARE_BYTES / image;
    const int room = fit < MOST_IMAGES ? (int)fit : MOST_IMAGES;
    char *scratch = (char *)hvt__cuda_scratch(d) + SPARE;

    HVT_CHECK(room > 0, E_UNSUPPORTED,
              "device cuda: sums of %d pixels of %d channels need %zu bytes of scratch, there are %zu",
              pixels, c, image, SPARE_BYTES);
    for (int first = 0; first < n; first += room) {
        const int images = n - first < room ? n - first : room;
        image_sums s = {(float *)scratch, first,
                        images,           (int)cut.grid.y,
                        cut.chunk,        (float *)scratch + (size_t)images * cut.grid.y * c * L::reducer::K};

        cut.grid.z = (unsigned)images;
        HVT_TRY(HVT_LAUNCH(d, (image_sums_kernel<L>), cut.grid, cut.block, a, first, pixels, c, cut.chunk,
                           (float *)scratch));
        HVT_TRY(then(s));
    }
    return HVT_OK;
}

template <class L>
__global__ void __launch_bounds__(THREADS, 2)
    apply_images_kernel(__grid_constant__ const typename L::args a, int n, int pixels, int c, int chunk)
{
    const int col = my_channel<L::V>();
    const size_t step = (size_t)blockDim.y * c;

    for (int image = (int)blockIdx.z; col < c && image < n; image += (int)gridDim.z) {
        const size_t begin = (size_t)image * pixels * c + col;
        L lane(a, image, col);

        down<L::ROWS>(pixels, chunk, [&](auto u, int row) {
            lane.template apply<u.value>(a, begin + (size_t)row * c, row, step);
        });
    }
}

/* Apply L to every row of n images of [pixels, c]. */
template <class L>
static hvt_status image_rows_done(hvt_device *d, const typename L::args &a, int n, int pixels, int c)
{
    const int blocks = n && n < ROW_BLOCKS ? ROW_BLOCKS / n : 1;
    row_cut cut = cut_rows(pixels, c, L::V, L::ROWS, blocks, blocks);

    if (n == 0)
        return HVT_OK;
    cut.grid.z = (unsigned)(n < MOST_IMAGES ? n : MOST_IMAGES);
    return HVT_LAUNCH(d, (apply_images_kernel<L>), cut.grid, cut.block, a, n, pixels, c, cut.chunk);
}

/* ---- sums along rows ---- */

/* The sum over the blockDim.x <= 32 lanes that share a row (threadIdx.y), for all of them. All threads of the
 * block must call it. */
HVT_FN float join_row(float x)
{
    for (unsigned by = blockDim.x / 2; by; by /= 2)
        x += __shfl_xor_sync(0xffffffff, x, (int)by);
    return x;
}

/* f(row) for this thread's rows, the same number for all threads of a block, so row may be >= `rows`. */
template <class Do> HVT_FN void along(int64_t rows, Do f)
{
    for (int64_t first = (int64_t)blockIdx.x * blockDim.y; first < rows;
         first += (int64_t)gridDim.x * blockDim.y)
        f(first + threadIdx.y);
}

struct along_cut {
    dim3 grid, block;
};

/* for rows of `length` elements, v at a time */
static inline along_cut cut_along(int64_t rows, int length, int v)
{
    const int vecs = (length + v - 1) / v;
    int x = 1;

    while (x < 32 && x < vecs)
        x *= 2;
    const int64_t blocks = (rows + THREADS / x - 1) / (THREADS / x);

    return {dim3(blocks < MOST_BLOCKS ? (unsigned)blocks : (unsigned)MOST_BLOCKS), dim3(x, THREADS / x)};
}

#endif /* HVT_CUDA_ROWS_H */
