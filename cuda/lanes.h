/*
 * lanes.h - common code of the kernels: launching, elements of a type, and three ways to iterate.
 *
 *   span    n independent elements: `each`
 *   rows    a matrix [rows, c], where every thread keeps its channels and their constants: `row_block`,
 * `down` lines   rows of images, one block each; its threads share the items of the row (`line_threads`)
 *
 * A vec is V adjacent elements of type T: as many as fill 16 bytes if addresses and the number of channels
 * allow it, else one. All arithmetic is on floats.
 *
 * Compiled by nvcc, and as plain C++ by the emulator of tests/cuda, which then provides CUDA's keywords.
 *
 * Included by the .cu files. Nothing else.
 */
#ifndef HVT_CUDA_LANES_H
#define HVT_CUDA_LANES_H

#define HVT_FN static __device__ __forceinline__

#include "kernels.h"

#include "device/scalar.h"

#include <initializer_list>

/* ---- launching ---- */

#ifdef __CUDACC__
/* cudaError_t; a kernel with a comma in its template arguments must be parenthesized */
#define HVT_LAUNCH(kernel, grid, block, stream, ...)                                                         \
    (kernel<<<grid, block, 0, stream>>>(__VA_ARGS__), cudaGetLastError())
/* shared memory of a block */
#define HVT_SHARED(type, name) __shared__ type name
#endif

/* Return unless the launch succeeded. */
#define HVT_CUDA_TRY(launch)                                                                                 \
    do {                                                                                                     \
        cudaError_t e_ = (launch);                                                                           \
        if (e_ != cudaSuccess)                                                                               \
            return e_;                                                                                       \
    } while (0)

enum { THREADS = 256, MOST_BLOCKS = 8192 };

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
#ifdef __CUDA_ARCH__
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

#pragma unroll
    for (int v = 0; v < V; v++)
        from_float(x[v], p.at[v]);
    *(vec<T, V> *)to = p;
}

/* An array that a kernel accesses in vecs: its address. */
struct array {
    const void *ptr; /* NULL: absent */
    size_t size;     /* bytes of an element */
};

/* Are vecs of v elements aligned from element `head` on in all arrays? */
static inline bool vecs_fit(int v, size_t head, std::initializer_list<array> arrays)
{
    for (const array &a : arrays) {
        size_t bytes = a.size * v < 16 ? a.size * v : 16;

        if (a.ptr && ((uintptr_t)a.ptr + head * a.size) % bytes)
            return false;
    }
    return true;
}

/* Can rows of c elements be accessed in vecs of v? */
static inline bool rows_fit(int v, int c, std::initializer_list<array> arrays)
{
    return c % v == 0 && vecs_fit(v, 0, arrays);
}

/* f(T()) for the type T of t */
template <class Do> static cudaError_t with_type(hvt_dtype t, Do f)
{
    switch (t) {
    case HVT_F32:
        return f(float());
    case HVT_F16:
        return f(f16());
    case HVT_BF16:
        return f(bf16());
    default:
        return cudaErrorInvalidValue;
    }
}

/* ---- spans ---- */

/* `head` single elements, `vecs` vecs, and single elements to the end at n */
struct span {
    size_t head, vecs, n;
};

/* op.at<W>(i) for the W elements from i on, W being V or 1. How a span is split does not affect the bits. */
template <int V, class Op>
__global__ void __launch_bounds__(THREADS) each_kernel(span s, __grid_constant__ const Op op)
{
    const size_t step = (size_t)gridDim.x * THREADS, first = (size_t)blockIdx.x * THREADS + threadIdx.x;

    for (size_t i = first; i < s.vecs; i += step)
        op.template at<V>(s.head + i * V);
    for (size_t i = first; i < s.n - s.vecs * V; i += step)
        op.template at<1>(i < s.head ? i : i + s.vecs * V);
}

/* The arrays may have any alignment, as parts of arenas do; vecs are used if one `head` aligns all of them,
 * as fit(head) tells. */
template <int V, class Fit, class Op>
static cudaError_t each_where(cudaStream_t stream, size_t n, Fit fit, const Op &op)
{
    span s = {0, 0, n};

    if (n == 0)
        return cudaSuccess;
    for (size_t head = 0; head < V && head + V <= n; head++)
        if (fit(head)) {
            s.head = head;
            s.vecs = (n - head) / V;
            break;
        }
    return HVT_LAUNCH((each_kernel<V, Op>), blocks_for(s.vecs > n - s.vecs * V ? s.vecs : n - s.vecs * V),
                      THREADS, stream, s, op);
}

template <int V, class Op>
static cudaError_t each(cudaStream_t stream, size_t n, std::initializer_list<array> arrays, const Op &op)
{
    return each_where<V>(
        stream, n, [=](size_t head) { return vecs_fit(V, head, arrays); }, op);
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

    while (x < 32 && x < vecs)
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

template <int N> struct number {
    static constexpr int value = N;
};

/* f(number<U>, row) for this thread's rows of its block's `chunk`: U rows, blockDim.y apart, starting with
 * `row`. */
template <int AT_ONCE, class Do> HVT_FN void down(int rows, int chunk, Do f)
{
    const int first = (int)blockIdx.y * chunk, end = rows - first < chunk ? rows : first + chunk;
    const int step = (int)blockDim.y;
    int row = first + (int)threadIdx.y;

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

#endif /* HVT_CUDA_LANES_H */
