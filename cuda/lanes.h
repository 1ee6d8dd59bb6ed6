/*
 * lanes.h - common code of the kernels: launching, elements of a type, and three ways to iterate.
 *
 *   span    n independent elements: `each`
 *   rows    a matrix [rows, c], where every thread keeps its channels and their constants: `cut_rows`,
 *           `down`, and the kernels of rows.h
 *   lines   rows of images, one block each; its threads share the items of the row (`line_threads`)
 *
 * A vec is V adjacent elements of type T: 16 bytes if addresses and the number of channels allow it, else one
 * element. All arithmetic is in floats. nvcc unrolls loops with constant bounds, such as those over a vec's
 * elements, so small arrays are registers; `#pragma unroll` is used only where it would not.
 *
 * Compiled by nvcc, and as plain C++ by the emulator of tests/cuda, which provides CUDA's keywords.
 *
 * Included by the .cu files. Nothing else.
 */
#ifndef HVT_CUDA_LANES_H
#define HVT_CUDA_LANES_H

#define HVT_FN static __device__ __forceinline__
#ifndef HVT_ANYWHERE
#define HVT_ANYWHERE static __host__ __device__ inline
#endif

#include "kernels.h"

#include "device/scalar.h"

#include <initializer_list>

/* ---- launching ---- */

#ifdef __CUDACC__
/* Queue a kernel on device d: an hvt_status. Parenthesize a kernel with a comma in its template arguments. */
#define HVT_LAUNCH(d, kernel, grid, block, ...)                                                              \
    hvt__cuda_launched(d,                                                                                    \
                       (kernel<<<grid, block, 0, hvt__cuda_stream(d)>>>(__VA_ARGS__), cudaGetLastError()),   \
                       __FILE__, __LINE__, #kernel)
/* A variable in a block's shared memory. */
#define HVT_SHARED(type, name) __shared__ type name
#endif

enum { THREADS = 256, MOST_BLOCKS = 8192, MOST_ACROSS = 32 /* lanes of a row_cut's block */ };

static inline unsigned blocks_for(size_t threads)
{
    size_t blocks = (threads + THREADS - 1) / THREADS, most = MOST_BLOCKS;

    return (unsigned)(blocks < most ? blocks : most);
}

/* ---- elements ---- */

struct f16 {
    uint16_t bits;
};

struct bf16 {
    uint16_t bits;
};

/* The hardware conversions give half.h's results, except for a NaN's payload. */

HVT_FN float to_float(float x)
{
    return x;
}

HVT_FN float to_float(f16 x)
{
#ifdef __CUDA_ARCH__
    float y;

    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
    return y;
#else
    return hvt__from_f16(x.bits);
#endif
}

HVT_FN float to_float(bf16 x)
{
    return hvt__from_bf16(x.bits);
}

HVT_FN void from_float(float x, float &to)
{
    to = x;
}

HVT_FN void from_float(float x, f16 &to)
{
#ifdef __CUDA_ARCH__
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(to.bits) : "f"(x));
#else
    to.bits = hvt__to_f16(x);
#endif
}

HVT_FN void from_float(float x, bf16 &to)
{
#if __CUDA_ARCH__ >= 800
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(to.bits) : "f"(x));
#else
    to.bits = hvt__to_bf16(x);
#endif
}

/* a float rounded to T */
template <class T> HVT_FN float rounded(float x)
{
    T stored;

    from_float(x, stored);
    return to_float(stored);
}

/* ---- vectors of elements ---- */

template <class T> constexpr int full_vec()
{
    return 16 / sizeof(T);
}

template <class T, int V> struct alignas(sizeof(T) * V < 16 ? sizeof(T) * V : 16) vec {
    T at[V];
};

template <int V, class T> HVT_FN vec<T, V> load(const T *from)
{
    return *(const vec<T, V> *)from;
}

template <class T, int V> HVT_FN void store(T *to, const float (&x)[V])
{
    vec<T, V> p;

    for (int v = 0; v < V; v++)
        from_float(x[v], p.at[v]);
    *(vec<T, V> *)to = p;
}

template <class T, int V> HVT_FN void load_floats(const T *from, float (&ret)[V])
{
    const vec<T, V> x = load<V>(from);

    for (int v = 0; v < V; v++)
        ret[v] = to_float(x.at[v]);
}

/* sum += the elements at `from` */
template <class T, int V> HVT_FN void add_floats(const T *from, float (&sum)[V])
{
    const vec<T, V> x = load<V>(from);

    for (int v = 0; v < V; v++)
        sum[v] += to_float(x.at[v]);
}

/* Bit h < v is set if vecs of v elements of `size` bytes are aligned from element h of the array on. All bits
 * for NULL. */
static inline unsigned heads(int v, const void *array, size_t size)
{
    const size_t bytes = size * v < 16 ? size * v : 16;
    unsigned fit = 0;

    for (int h = 0; h < v; h++)
        if (!array || ((uintptr_t)array + h * size) % bytes == 0)
            fit |= 1u << h;
    return fit;
}

/* f(T()) for the type T of t */
template <class Do> static hvt_status with_type(hvt_dtype t, Do f)
{
    switch (t) {
    case HVT_F32:
        return f(float());
    case HVT_F16:
        return f(f16());
    case HVT_BF16:
        return f(bf16());
    default:
        return HVT_FAIL(E_UNSUPPORTED, "device cuda does not compute in %s", hvt_dtype_name(t));
    }
}

template <int N> struct number {
    static constexpr int value = N;
};

/* f(T(), number<V>()) for the type T of t: V fills 16 bytes if all arrays' rows of c elements allow such
 * accesses, else 1. */
template <class Do>
static hvt_status with_rows(hvt_dtype t, int c, std::initializer_list<const void *> arrays, Do f)
{
    return with_type(t, [=](auto zero) {
        constexpr int V = full_vec<decltype(zero)>();
        bool fit = c % V == 0;

        for (const void *a : arrays)
            fit = fit && (uintptr_t)a % 16 == 0;
        return fit ? f(zero, number<V>()) : f(zero, number<1>());
    });
}

/* ---- spans ---- */

/* `head` single elements, `vecs` vecs, and single elements to the end at n */
struct span {
    size_t head, vecs, n;
};

/* op.at<W>(i) for the W elements from i on; W is V or 1. The split of a span does not affect the bits. */
template <int V, class Op>
__global__ void __launch_bounds__(THREADS) each_kernel(span s, __grid_constant__ const Op op)
{
    const size_t step = (size_t)gridDim.x * THREADS, first = (size_t)blockIdx.x * THREADS + threadIdx.x;

    for (size_t i = first; i < s.vecs; i += step)
        op.template at<V>(s.head + i * V);
    for (size_t i = first; i < s.n - s.vecs * V; i += step)
        op.template at<1>(i < s.head ? i : i + s.vecs * V);
}

/* The arrays may have any alignment, as parts of arenas have; vecs are used if one head fits all of them. */
template <int V, class Op> static hvt_status each(hvt_device *d, size_t n, unsigned fit, const Op &op)
{
    span s = {0, 0, n};

    if (n == 0)
        return HVT_OK;
    for (size_t head = 0; head < V && head + V <= n; head++)
        if (fit >> head & 1) {
            s.head = head;
            s.vecs = (n - head) / V;
            break;
        }
    return HVT_LAUNCH(d, (each_kernel<V, Op>), blocks_for(s.vecs > n - s.vecs * V ? s.vecs : n - s.vecs * V),
                      THREADS, s, op);
}

/* ---- rows ---- */

/*
 * A block is x lanes over vecs of channels times y lanes over rows, x*y threads, and handles `chunk` rows;
 * the grid covers the channels in x and the rows in y. The lanes of a row are adjacent, so that narrow rows,
 * too, are read in long contiguous runs.
 */
struct row_cut {
    dim3 block, grid;
    int chunk; /* rows per block */
};

/* Split [rows, c] into about `blocks` blocks, at most `parts` of them along the rows. A thread has `at_once`
 * rows in flight. */
static inline row_cut cut_rows(int rows, int c, int v, int at_once, int blocks, int parts)
{
    row_cut cut;
    int vecs = (c + v - 1) / v, x = 1, across, step;

    while (x < MOST_ACROSS && x < vecs)
        x *= 2;
    across = (vecs + x - 1) / x;
    step = THREADS / x * at_once;
    if (parts > blocks / across)
        parts = blocks / across > 1 ? blocks / across : 1;
    cut.chunk = (int)(((int64_t)rows + (int64_t)parts * step - 1) / ((int64_t)parts * step)) * step;
    if (cut.chunk < step)
        cut.chunk = step;
    cut.block = dim3(x, THREADS / x);
    cut.grid = dim3(across, rows > cut.chunk ? (rows + cut.chunk - 1) / cut.chunk : 1);
    return cut;
}

/* f(number<U>, row) for this thread's rows of its block's `chunk`: U rows, blockDim.y apart, starting with
 * `row`. */
template <int AT_ONCE, class Do> HVT_FN void down(int rows, int chunk, Do f)
{
    const int first = (int)blockIdx.y * chunk, end = rows - first < chunk ? rows : first + chunk;
    const int step = (int)blockDim.y;
    int row = first + (int)threadIdx.y;

    if constexpr (AT_ONCE > 1)
        for (; row < end - (AT_ONCE - 1) * step; row += AT_ONCE * step)
            f(number<AT_ONCE>(), row);
    for (; row < end; row += step)
        f(number<1>(), row);
}

/* ---- lines ---- */

/* threads of a block that processes `items` */
static inline unsigned line_threads(int items)
{
    int threads = 32;

    while (threads < THREADS && threads < items)
        threads *= 2;
    return (unsigned)threads;
}

/* ---- arrays of several ranks or shards, added elementwise along the fixed tree ---- */

struct inputs {
    const void *at[HVT__CUDA_MOST_INPUTS];
    int count;
};

enum { INPUT_LEVELS = 8 };
static_assert(HVT__CUDA_MOST_INPUTS < 1 << INPUT_LEVELS, "a sum for every level of the tree");

static inline hvt_status check_inputs(int count)
{
    HVT_CHECK(count >= 1 && count <= HVT__CUDA_MOST_INPUTS, E_UNSUPPORTED,
              "device cuda: expected 1 to %d arrays to add, got %d", HVT__CUDA_MOST_INPUTS, count);
    return HVT_OK;
}

static inline inputs inputs_of(const void *const in[], int count)
{
    inputs all = {};

    for (int i = 0; i < count; i++)
        all.at[i] = in[i];
    all.count = count;
    return all;
}

static inline unsigned inputs_heads(int v, const inputs &in, size_t size)
{
    unsigned fit = ~0u;

    for (int i = 0; i < in.count; i++)
        fit &= heads(v, in.at[i], size);
    return fit;
}

/* The sums of elements [i, i+V). The tree is a binary counter: if bit l of the leaf's index is set, held[l]
 * is the sum of 2^l leaves that waits for its sibling. */
template <class T, int V> HVT_FN void tree_sum(const inputs &in, size_t i, float (&sum)[V])
{
    float held[INPUT_LEVELS][V] = {};
    bool any = false;

    for (int leaf = 0; leaf < in.count; leaf++) {
        bool carry = true;

        load_floats((const T *)in.at[leaf] + i, sum);
        for (int l = 0; l < INPUT_LEVELS; l++) {
            const bool full = leaf >> l & 1;

            for (int v = 0; v < V; v++)
                if (carry && full)
                    sum[v] = held[l][v] + sum[v];
                else if (carry)
                    held[l][v] = sum[v];
            carry = carry && full;
        }
    }
    for (int l = 0; l < INPUT_LEVELS; l++)
        if (in.count >> l & 1) {
            for (int v = 0; v < V; v++)
                sum[v] = any ? held[l][v] + sum[v] : held[l][v];
            any = true;
        }
}

#endif /* HVT_CUDA_LANES_H */
