/*
 * Scaled dot-product attention. P, the matrix of queries and keys, is never in memory: a block computes it in
 * tiles of SIDE queries and SIDE keys and consumes each before the next.
 *
 *   forward    A block has a tile of queries of one head of a window, and loops over the keys. For each query
 *              it keeps the largest score so far, the sum of exponentials relative to it, and the sum of
 *              values weighted by them. A larger score scales both sums down.
 *   backward   Three kernels. The first loops over the keys in the same way and writes each query's largest
 *              score, sum of exponentials and dot = sum over j of P[i,j] dP[i,j] to the workspace. With them
 *              a tile of P, and of dS = P (dP - dot), needs no other tile: the second kernel loops over the
 *              keys again, for dq; the third has a tile of keys and loops over the queries, for dk and dv.
 *   dtable     Two more. The first sums a tile of dS over the windows of an image, to the workspace. The
 *              second sums these over images, for each place in [heads,queries,keys] that reads an element
 *              of the table.
 *
 * Matrix products take two forms. `products` multiplies the rows of two matrices with each other, DEPTH
 * channels at a time, which are in shared memory channel by channel. `add_weighted` adds rows with weights in
 * shared memory. A thread has DOWN x ACROSS elements of a tile. Sums over channels, keys and queries are in
 * index order.
 *
 * A block has a chunk of 32 or 64 channels of its sums, which is all of most heads. Each chunk of a wider
 * head has its own blocks, which recompute P.
 */
#include "lanes.h"

enum {
    SIDE = 64,         /* tokens of a tile */
    DEPTH = 32,        /* channels of a product in shared memory at a time */
    LANES = 16,        /* threads across a tile */
    ACROSS = 4,        /* a thread's elements in a row of a tile */
    DOWN = 8,          /* a thread's rows */
    LINE = SIDE + 4,   /* pitch of rows in shared memory, so that they begin in different banks */
    WARP_CHANNELS = 8, /* channels of DEPTH that one warp copies to shared memory */
    IN_FLIGHT = 4,     /* loads per thread */
    IMAGES = 16,       /* the same if there are few threads */
    QUERY_NUMBERS = 3, /* numbers per query in the workspace */
    TILE_THREADS = LANES * (SIDE / DOWN)
};

static_assert(LANES * ACROSS == SIDE && TILE_THREADS / 32 * WARP_CHANNELS == DEPTH,
              "threads divide a tile and a product's channels evenly");

struct alignas(16) tile_room {
    union {
        float transposed[2][DEPTH][LINE]; /* two matrices, channel by channel: the tokens' values */
        float straight[SIDE * SIDE];      /* one matrix, token by token: the channels' values */
    };
    float weight[SIDE][LINE]; /* [row that is added][row of the sum] */
};

/* A head of a window of an image; numbered with heads fastest. */
struct one_head {
    int head, window, image;

    __device__ one_head(const hvt_attention_args &a, int number)
        : head(number % a.heads), window(number / a.heads % a.windows), image(number / a.heads / a.windows)
    {
    }
};

/* One head's channels of a window's tokens. */
template <class T> struct tokens {
    static constexpr int FULL = full_vec<T>();
    T *at;                /* start of the image or, without a list of pixels, of the window */
    const int32_t *pixel; /* the window's pixels; NULL: consecutive */
    size_t pitch;
    int count, width;
    bool wide; /* allows accesses of 16 bytes */

    __device__ tokens(const hvt_attention_args &a, const void *x, int pitch, int count, const one_head &my)
        : at((T *)x + ((size_t)my.image * a.windows + (a.pixel ? 0 : my.window)) * count * pitch +
             (size_t)my.head * a.width),
          pixel(a.pixel ? a.pixel + (size_t)my.window * a.queries : NULL), pitch(pitch), count(count),
          width(a.width), wide((a.width | pitch) % FULL == 0 && (uintptr_t)x % 16 == 0)
    {
    }

    __device__ T *row(int token) const
    {
        return at + (pixel ? pixel[token] : token) * pitch;
    }
};

/* A block's work. Blocks are ordered by window, head, chunk, tile. */
template <int N> struct task : one_head {
    int first, channel; /* first token and first channel of its sums */

    __device__ task(const hvt_attention_args &a, int count)
        : one_head(a, (int)blockIdx.x / tiles(count) / chunks(a)),
          first((int)blockIdx.x % tiles(count) * SIDE),
          channel((int)blockIdx.x / tiles(count) % chunks(a) * N * LANES)
    {
    }

    static __device__ int tiles(int count)
    {
        return (count + SIDE - 1) / SIDE;
    }

    static __device__ int chunks(const hvt_attention_args &a)
    {
        return (a.width + N * LANES - 1) / (N * LANES);
    }
};

/* ---- products ---- */

/* Copy channels of tokens to shared memory, transposed. The threads of a warp have the same channels of many
 * tokens, so they write to different banks. */
template <int V, class T> HVT_FN void transpose(const tokens<T> &x, int first, int channel, float (*to)[LINE])
{
    constexpr int VECS = WARP_CHANNELS / V, ROWS = 32 / VECS,
                  AT_ONCE = ROWS * IN_FLIGHT < SIDE ? IN_FLIGHT : SIDE / ROWS;
    const int me = (int)(threadIdx.y * LANES + threadIdx.x), lane = me % 32;
    const int depth = me / 32 * WARP_CHANNELS + lane % VECS * V, row = lane / VECS;

#pragma unroll 1
    for (int token = row; token < SIDE; token += AT_ONCE * ROWS) {
        vec<T, V> in[AT_ONCE] = {};

        for (int i = 0; i < AT_ONCE; i++)
            if (channel + depth < x.width && first + token + i * ROWS < x.count)
                in[i] = load<V>(x.row(first + token + i * ROWS) + channel + depth);
        for (int i = 0; i < AT_ONCE; i++)
            for (int v = 0; v < V; v++)
                to[depth + v][token + i * ROWS] = to_float(in[i].at[v]);
    }
}

template <class T> HVT_FN void transpose_tile(const tokens<T> &x, int first, int channel, float (*to)[LINE])
{
    if (x.wide)
        transpose<tokens<T>::FULL>(x, first, channel, to);
    else
        transpose<1>(x, first, channel, to);
}

/* Products of SIDE tokens of a and SIDE tokens of b, summed over all channels. The thread gets those of a's
 * tokens from DOWN * threadIdx.y on and b's from ACROSS * threadIdx.x on, with zeros past the end.
 * When it returns, no thread reads the previous weights any more. */
template <class T>
HVT_FN void products(tile_room &s, const tokens<T> &a, int first_a, const tokens<T> &b, int first_b,
                     float (&sum)[DOWN][ACROSS])
{
    for (int r = 0; r < DOWN; r++)
        for (int c = 0; c < ACROSS; c++)
            sum[r][c] = 0;
    for (int channel = 0; channel < a.width; channel += DEPTH) {
        const int depth = a.width - channel < DEPTH ? a.width - channel : DEPTH;

        __syncthreads(); /* other threads may still read the previous contents */
        transpose_tile(a, first_a, channel, s.transposed[0]);
        transpose_tile(b, first_b, channel, s.transposed[1]);
        __syncthreads();
#pragma unroll 2
        for (int i = 0; i < depth; i++) {
            float u[DOWN], w[ACROSS];

            load_floats(&s.transposed[0][i][threadIdx.y * DOWN], u);
            load_floats(&s.transposed[1][i][threadIdx.x * ACROSS], w);
            for (int r = 0; r < DOWN; r++)
                for (int c = 0; c < ACROSS; c++)
                    sum[r][c] = f_fma(u[r], w[c], sum[r][c]);
        }
    }
}

/* ---- weighted sums ---- */

/* Copy N * LANES channels of SIDE tokens to shared memory, with zeros past the end. */
template <int V, int N, class T> HVT_FN void lay(const tokens<T> &x, int first, int channel, float *to)
{
    constexpr int WIDTH = N * LANES, STEP = TILE_THREADS * V, ALL = SIDE * WIDTH;
    constexpr int AT_ONCE = STEP * IN_FLIGHT < ALL ? IN_FLIGHT : ALL / STEP;

#pragma unroll 1
    for (int at = (int)(threadIdx.y * LANES + threadIdx.x) * V; at < ALL; at += AT_ONCE * STEP) {
        vec<T, V> in[AT_ONCE] = {};

        for (int i = 0; i < AT_ONCE; i++) {
            const int row = first + (at + i * STEP) / WIDTH, c = channel + (at + i * STEP) % WIDTH;

            if (row < x.count && c < x.width)
                in[i] = load<V>(x.row(row) + c);
        }
        for (int i = 0; i < AT_ONCE; i++) {
            float out[V];

            for (int v = 0; v < V; v++)
                out[v] = to_float(in[i].at[v]);
            store(to + at + i * STEP, out);
        }
    }
}

/* Add the SIDE tokens of x, weighted, to each of the thread's rows of sums, for its N channels. */
template <int N, class T>
HVT_FN void add_weighted(tile_room &s, const tokens<T> &x, int first, int channel, float (&sum)[DOWN][N])
{
    const int rows = x.count - first < SIDE ? x.count - first : SIDE;

    __syncthreads(); /* other threads may still read the previous contents */
    if (x.wide)
        lay<tokens<T>::FULL, N>(x, first, channel, s.straight);
    else
        lay<1, N>(x, first, channel, s.straight);
    __syncthreads();
#pragma unroll 2
    for (int i = 0; i < rows; i++) {
        float u[DOWN], w[N];

        load_floats(&s.weight[i][threadIdx.y * DOWN], u);
        load_floats(&s.straight[(i * LANES + threadIdx.x) * N], w);
        for (int r = 0; r < DOWN; r++)
            for (int n = 0; n < N; n++)
                sum[r][n] = f_fma(u[r], w[n], sum[r][n]);
    }
}

/* Store the thread's weights, for its rows of the sum and of the added matrix. */
HVT_FN void put_weights(tile_room &s, const float (&weight)[DOWN][ACROSS])
{
    for (int c = 0; c < ACROSS; c++) {
        float column[DOWN];

        for (int r = 0; r < DOWN; r++)
            column[r] = weight[r][c];
        store(&s.weight[threadIdx.x * ACROSS + c][threadIdx.y * DOWN], column);
    }
}

HVT_FN void get_weights(const tile_room &s, float (&weight)[DOWN][ACROSS])
{
    for (int c = 0; c < ACROSS; c++) {
        float column[DOWN];

        load_floats(&s.weight[threadIdx.x * ACROSS + c][threadIdx.y * DOWN], column);
        for (int r = 0; r < DOWN; r++)
            weight[r][c] = column[r];
    }
}

/* to (+)= scale * sum, for the thread's rows and channels */
template <int N, class T>
HVT_FN void put_sums(const tokens<T> &to, int first, int channel, bool add, const float (&scale)[DOWN],
                     const float (&sum)[DOWN][N])
{
    const int c = channel + (int)threadIdx.x * N;

    for (int r = 0; r < DOWN; r++) {
        const int row = first + (int)threadIdx.y * DOWN + r;
        T *here;
        float y[N];

        if (row >= to.count)
            continue;
        here = to.row(row) + c;
        for (int n = 0; n < N; n++)
            y[n] = scale[r] * sum[r][n];
        if (to.wide && c + N <= to.width) {
            if (add)
                add_floats(here, y);
            store(here, y);
        } else
            for (int n = 0; n < N && c + n < to.width; n++)
                from_float(add ? to_float(here[n]) + y[n] : y[n], here[n]);
    }
}

/* ---- softmax ---- */

/* Turn the thread's products of queries and keys, from query i and key j on, into scores; past the end they
 * are arbitrary. KEYS_DOWN: rows are keys. Bias and mask are staged through `weight`, a column at a time, to
 * save registers. */
template <bool KEYS_DOWN>
HVT_FN void to_scores(tile_room &s, const hvt_attention_args &a, const one_head &my, int i, int j,
                      float (&x)[DOWN][ACROSS])
{
    const size_t bias = (size_t)my.head * a.queries * a.keys, mask = (size_t)my.window * a.queries * a.keys;

    for (int r = 0; r < DOWN; r++)
        for (int c = 0; c < ACROSS; c++)
            x[r][c] *= a.scale;
    if (!a.table && !a.mask)
        return;
    put_weights(s, x);
#pragma unroll 1
    for (int c = 0; c < ACROSS; c++) {
        float *here = &s.weight[threadIdx.x * ACROSS + c][threadIdx.y * DOWN], column[DOWN];

        load_floats(here, column);
        for (int r = 0; r < DOWN; r++) {
            const int query = i + (KEYS_DOWN ? c : r), key = j + (KEYS_DOWN ? r : c);

            if (query >= a.queries || key >= a.keys)
                continue;
            if (a.table)
                column[r] += a.table[a.bias[bias + query * a.keys + key]];
            if (a.mask)
                column[r] += a.mask[mask + query * a.keys + key];
        }
        store(here, column);
    }
    get_weights(s, x);
}

/* Sum over the LANES threads that share rows; all get the result. */
HVT_FN float row_sum(float x)
{
    for (int by = LANES / 2; by; by /= 2)
        x += __shfl_xor_sync(0xffffffff, x, by);
    return x;
}

HVT_FN float row_most(float x)
{
    for (int by = LANES / 2; by; by /= 2) {
        const float other = __shfl_xor_sync(0xffffffff, x, by);

        x = other > x ? other : x;
    }
    return x;
}

/* Softmax state of a thread's queries. `total` is its own share of the sum of exponentials. */
struct softmax {
    float most[DOWN], total[DOWN];

    __device__ softmax()
    {
        for (int r = 0; r < DOWN; r++) {
            most[r] = -INFINITY;
            total[r] = 0;
        }
    }

    /* Turn scores of keys from `first` on into exponentials; keep: factor for sums over earlier keys. */
    __device__ void take(const hvt_attention_args &a, int first, float (&score)[DOWN][ACROSS],
                         float (&keep)[DOWN])
    {
        for (int r = 0; r < DOWN; r++) {
            float now = -INFINITY;

            for (int c = 0; c < ACROSS; c++) {
                const bool there = first + (int)threadIdx.x * ACROSS + c < a.keys;

                score[r][c] = there ? score[r][c] : -INFINITY;
                now = score[r][c] > now ? score[r][c] : now;
            }
            now = row_most(now);
            now = now > most[r] ? now : most[r];
            keep[r] = expf(most[r] - now);
            most[r] = now;
            total[r] *= keep[r];
            for (int c = 0; c < ACROSS; c++) {
                score[r][c] = expf(score[r][c] - now);
                total[r] += score[r][c];
            }
        }
    }
};

/* ---- forward ---- */

template <class T, int N>
__global__ void __launch_bounds__(TILE_THREADS, 3)
    attention_kernel(__grid_constant__ const hvt_attention_args a)
{
    HVT_SHARED(tile_room, s);
    const task<N> my(a, a.queries);
    const tokens<T> q(a, a.q.x, a.q.pitch, a.queries, my);
    const tokens<T> k(a, a.k.x, a.k.pitch, a.keys, my);
    const tokens<T> v(a, a.v.x, a.v.pitch, a.keys, my);
    const tokens<T> y(a, a.y, a.heads * a.width, a.queries, my);
    float sum[DOWN][N] = {}, score[DOWN][ACROSS], keep[DOWN];
    softmax of;

    for (int key = 0; key < a.keys; key += SIDE) {
        products(s, q, my.first, k, key, score);
        to_scores<false>(s, a, my, my.first + (int)threadIdx.y * DOWN, key + (int)threadIdx.x * ACROSS,
                         score);
        of.take(a, key, score, keep);
        for (int r = 0; r < DOWN; r++)
            for (int n = 0; n < N; n++)
                sum[r][n] *= keep[r];
        put_weights(s, score);
        add_weighted(s, v, key, my.channel, sum);
    }
    for (int r = 0; r < DOWN; r++)
        keep[r] = 1 / row_sum(of.total[r]);
    put_sums(y, my.first, my.channel, false, keep, sum);
}

/* ---- backward ---- */

/* The workspace's numbers for the queries of a head of a window. */
struct query_numbers {
    float *most, *share, *dot; /* largest score, 1 / sum of exponentials, sum of P dP */

    __device__ query_numbers(const hvt_attention_args &a, const one_head &my)
        : most((float *)a.ws +
               (((size_t)my.image * a.windows + my.window) * a.heads + my.head) * QUERY_NUMBERS * a.queries),
          share(most + a.queries), dot(share + a.queries)
    {
    }
};

/* Size of all images' numbers. They are followed, per image, by the sums of dS over its windows,
 * [heads,queries,keys]. */
HVT_ANYWHERE size_t all_query_numbers(const hvt_attention_args &a)
{
    return (size_t)a.n * a.windows * a.heads * a.queries * QUERY_NUMBERS;
}

HVT_ANYWHERE size_t places_of_image(const hvt_attention_args &a)
{
    return (size_t)a.heads * a.queries * a.keys;
}

template <class T>
__global__ void __launch_bounds__(TILE_THREADS, 3)
    attention_queries_kernel(__grid_constant__ const hvt_attention_args a)
{
    HVT_SHARED(tile_room, s);
    const int tiles = (a.queries + SIDE - 1) / SIDE, first = (int)blockIdx.x % tiles * SIDE;
    const one_head my(a, (int)blockIdx.x / tiles);
    const tokens<T> q(a, a.q.x, a.q.pitch, a.queries, my);
    const tokens<T> k(a, a.k.x, a.k.pitch, a.keys, my);
    const tokens<T> v(a, a.v.x, a.v.pitch, a.keys, my);
    const tokens<T> dy(a, a.dy, a.heads * a.width, a.queries, my);
    const query_numbers to(a, my);
    float score[DOWN][ACROSS], dp[DOWN][ACROSS], keep[DOWN], dot[DOWN] = {};
    softmax of;

    for (int key = 0; key < a.keys; key += SIDE) {
        products(s, q, first, k, key, score);
        to_scores<false>(s, a, my, first + (int)threadIdx.y * DOWN, key + (int)threadIdx.x * ACROSS, score);
        of.take(a, key, score, keep);
        products(s, dy, first, v, key, dp);
        for (int r = 0; r < DOWN; r++) {
            dot[r] *= keep[r];
            for (int c = 0; c < ACROSS; c++)
                dot[r] = f_fma(score[r][c], dp[r][c], dot[r]);
        }
    }
    for (int r = 0; r < DOWN; r++) {
        const int query = first + (int)threadIdx.y * DOWN + r;
        const float share = 1 / row_sum(of.total[r]), all = row_sum(dot[r]);

        if (threadIdx.x == 0 && query < a.queries) {
            to.most[query] = of.most[r];
            to.share[query] = share;
            to.dot[query] = share * all;
        }
    }
}

template <class T, int N>
__global__ void __launch_bounds__(TILE_THREADS, 3)
    attention_dq_kernel(__grid_constant__ const hvt_attention_args a)
{
    HVT_SHARED(tile_room, s);
    const task<N> my(a, a.queries);
    const tokens<T> q(a, a.q.x, a.q.pitch, a.queries, my);
    const tokens<T> k(a, a.k.x, a.k.pitch, a.keys, my);
    const tokens<T> v(a, a.v.x, a.v.pitch, a.keys, my);
    const tokens<T> dy(a, a.dy, a.heads * a.width, a.queries, my);
    const tokens<T> dq(a, a.q.dx, a.q.pitch, a.queries, my);
    const query_numbers of(a, my);
    float sum[DOWN][N] = {}, p[DOWN][ACROSS], ds[DOWN][ACROSS], scale[DOWN];

    for (int key = 0; key < a.keys; key += SIDE) {
        products(s, q, my.first, k, key, p);
        to_scores<false>(s, a, my, my.first + (int)threadIdx.y * DOWN, key + (int)threadIdx.x * ACROSS, p);
        for (int r = 0; r < DOWN; r++) {
            const int query = my.first + (int)threadIdx.y * DOWN + r;
            const float most = query < a.queries ? of.most[query] : 0;
            const float share = query < a.queries ? of.share[query] : 0;

            for (int c = 0; c < ACROSS; c++)
                p[r][c] = expf(p[r][c] - most) * share;
        }
        put_weights(s, p);
        products(s, dy, my.first, v, key, ds);
        get_weights(s, p);
        for (int r = 0; r < DOWN; r++) {
            const int query = my.first + (int)threadIdx.y * DOWN + r;
            const float dot = query < a.queries ? of.dot[query] : 0;

            for (int c = 0; c < ACROSS; c++)
                ds[r][c] = p[r][c] * (ds[r][c] - dot);
        }
        put_weights(s, ds);
        add_weighted(s, k, key, my.channel, sum);
    }
    for (int r = 0; r < DOWN; r++)
        scale[r] = a.scale;
    put_sums(dq, my.first, my.channel, a.q.add, scale, sum);
}

template <class T, int N>
__global__ void __launch_bounds__(TILE_THREADS, 3)
    attention_dkv_kernel(__grid_constant__ const hvt_attention_args a)
{
    HVT_SHARED(tile_room, s);
    const task<N> my(a, a.keys);
    const tokens<T> q(a, a.q.x, a.q.pitch, a.queries, my);
    const tokens<T> k(a, a.k.x, a.k.pitch, a.keys, my);
    const tokens<T> v(a, a.v.x, a.v.pitch, a.keys, my);
    const tokens<T> dy(a, a.dy, a.heads * a.width, a.queries, my);
    const tokens<T> dk(a, a.k.dx, a.k.pitch, a.keys, my);
    const tokens<T> dv(a, a.v.dx, a.v.pitch, a.keys, my);
    const query_numbers of(a, my);
    float k_sum[DOWN][N] = {}, v_sum[DOWN][N] = {}, p[DOWN][ACROSS], ds[DOWN][ACROSS], scale[DOWN];

    for (int first = 0; first < a.queries; first += SIDE) {
        products(s, k, my.first, q, first, p);
        to_scores<true>(s, a, my, first + (int)threadIdx.x * ACROSS, my.first + (int)threadIdx.y * DOWN, p);
        for (int c = 0; c < ACROSS; c++) {
            const int query = first + (int)threadIdx.x * ACROSS + c;
            const float most = query < a.queries ? of.most[query] : 0;
            const float share = query < a.queries ? of.share[query] : 0;

            for (int r = 0; r < DOWN; r++)
                p[r][c] = expf(p[r][c] - most) * share;
        }
        put_weights(s, p);
        if (a.v.dx)
            add_weighted(s, dy, first, my.channel, v_sum);
        if (!a.k.dx)
            continue;
        products(s, v, my.first, dy, first, ds);
        get_weights(s, p);
        for (int c = 0; c < ACROSS; c++) {
            const int query = first + (int)threadIdx.x * ACROSS + c;
            const float dot = query < a.queries ? of.dot[query] : 0;

            for (int r = 0; r < DOWN; r++)
                ds[r][c] = p[r][c] * (ds[r][c] - dot);
        }
        put_weights(s, ds);
        add_weighted(s, q, first, my.channel, k_sum);
    }
    for (int r = 0; r < DOWN; r++)
        scale[r] = a.scale;
    if (a.k.dx)
        put_sums(dk, my.first, my.channel, a.k.add, scale, k_sum);
    for (int r = 0; r < DOWN; r++)
        scale[r] = 1;
    if (a.v.dx)
        put_sums(dv, my.first, my.channel, a.v.add, scale, v_sum);
}

/* Sum dS over windows. A block has a tile of queries and keys of a head of an image. */
template <class T>
__global__ void __launch_bounds__(TILE_THREADS, 2)
    attention_places_kernel(__grid_constant__ const hvt_attention_args a)
{
    HVT_SHARED(tile_room, s);
    const int down = (a.queries + SIDE - 1) / SIDE, across = (a.keys + SIDE - 1) / SIDE;
    const int tile = (int)blockIdx.x % (down * across), other = (int)blockIdx.x / (down * across);
    const int first = tile / across * SIDE, key = tile % across * SIDE;
    const int i = first + (int)threadIdx.y * DOWN, j = key + (int)threadIdx.x * ACROSS;
    const int head = other % a.heads, image = other / a.heads;
    float *to = (float *)a.ws + all_query_numbers(a) + image * places_of_image(a);
    float sum[DOWN][ACROSS] = {}, p[DOWN][ACROSS], ds[DOWN][ACROSS];

#pragma unroll 1
    for (int window = 0; window < a.windows; window++) {
        const one_head my(a, (image * a.windows + window) * a.heads + head);
        const tokens<T> q(a, a.q.x, a.q.pitch, a.queries, my);
        const tokens<T> k(a, a.k.x, a.k.pitch, a.keys, my);
        const tokens<T> v(a, a.v.x, a.v.pitch, a.keys, my);
        const tokens<T> dy(a, a.dy, a.heads * a.width, a.queries, my);
        const query_numbers of(a, my);

        products(s, q, first, k, key, p);
        to_scores<false>(s, a, my, i, j, p);
        put_weights(s, p);
        products(s, dy, first, v, key, ds);
        get_weights(s, p);
        for (int r = 0; r < DOWN; r++) {
            const bool there = i + r < a.queries;
            const float most = there ? of.most[i + r] : 0, share = there ? of.share[i + r] : 0;
            const float dot = there ? of.dot[i + r] : 0;

            for (int c = 0; c < ACROSS; c++)
                sum[r][c] += expf(p[r][c] - most) * share * (ds[r][c] - dot);
        }
    }
    for (int r = 0; r < DOWN; r++)
        for (int c = 0; c < ACROSS; c++)
            if (i + r < a.queries && j + c < a.keys)
                to[((size_t)head * a.queries + i + r) * a.keys + j + c] = sum[r][c];
}

/* dtable, one element per thread. */
static __global__ void __launch_bounds__(TILE_THREADS)
    attention_table_kernel(__grid_constant__ const hvt_attention_args a)
{
    const int e = (int)(blockIdx.x * TILE_THREADS + threadIdx.x);
    const size_t image = places_of_image(a);
    float sum = 0;

    if (e >= a.elements)
        return;
    for (int i = a.first[e]; i < a.first[e + 1]; i++) {
        const float *from = (const float *)a.ws + all_query_numbers(a) + a.where[i];

        for (int n = 0; n < a.real; n += IMAGES) {
            float in[IMAGES];

            for (int k = 0; k < IMAGES; k++)
                in[k] = n + k < a.real ? from[(n + k) * image] : 0;
            for (int k = 0; k < IMAGES; k++)
                sum += in[k];
        }
    }
    a.dtable[e] = sum;
}

/* ---- entries ---- */

/* blocks for chunks of `width` channels */
static unsigned attention_blocks(const hvt_attention_args &a, int count, int width)
{
    const size_t tiles = (size_t)(count + SIDE - 1) / SIDE, chunks = (size_t)(a.width + width - 1) / width;

    return (unsigned)((size_t)a.real * a.windows * a.heads * chunks * tiles);
}

/* f(T(), number<N>()) for chunks of N * LANES channels. */
template <class Do> static hvt_status with_chunks(const hvt_attention_args &a, Do f)
{
    return with_type(a.type, [=](auto zero) {
        return a.width <= 2 * LANES ? f(zero, number<2>()) : f(zero, number<4>());
    });
}

size_t hvt__attention_room_cuda(hvt_device *, const hvt_attention_args *a)
{
    return (all_query_numbers(*a) + (a->elements ? a->n * places_of_image(*a) : 0)) * sizeof(float);
}

hvt_status hvt__attention_forward_cuda(hvt_device *d, const hvt_attention_args *args)
{
    const hvt_attention_args a = *args;
    const dim3 block(LANES, SIDE / DOWN);

    if (a.real == 0)
        return HVT_OK;
    return with_chunks(a, [=](auto zero, auto n) {
        constexpr int N = decltype(n)::value;

        return HVT_LAUNCH(d, (attention_kernel<decltype(zero), N>), attention_blocks(a, a.queries, N * LANES),
                          block, a);
    });
}

/* The queries' numbers must be in the workspace. */
template <class T> static hvt_status attention_table(hvt_device *d, const hvt_attention_args &a)
{
    const size_t down = (size_t)(a.queries + SIDE - 1) / SIDE, across = (size_t)(a.keys + SIDE - 1) / SIDE;

    if (a.real > 0)
        HVT_TRY(HVT_LAUNCH(d, attention_places_kernel<T>, (unsigned)(a.real * a.heads * down * across),
                           dim3(LANES, SIDE / DOWN), a));
    return HVT_LAUNCH(d, attention_table_kernel, (unsigned)(a.elements + TILE_THREADS - 1) / TILE_THREADS,
                      TILE_THREADS, a);
}

hvt_status hvt__attention_backward_cuda(hvt_device *d, const hvt_attention_args *args)
{
    const hvt_attention_args a = *args;
    const dim3 block(LANES, SIDE / DOWN);
    const bool table = a.table && a.dtable;

    if (!a.q.dx && !a.k.dx && !a.v.dx && !table)
        return HVT_OK;
    if (a.real == 0)
        return table ? attention_table<float>(d, a) : HVT_OK;
    return with_chunks(a, [=](auto zero, auto n) {
        typedef decltype(zero) T;
        constexpr int N = decltype(n)::value;

        HVT_TRY(
            HVT_LAUNCH(d, attention_queries_kernel<T>, attention_blocks(a, a.queries, a.width), block, a));
        if (a.q.dx)
            HVT_TRY(HVT_LAUNCH(d, (attention_dq_kernel<T, N>), attention_blocks(a, a.queries, N * LANES),
                               block, a));
        if (a.k.dx || a.v.dx)
            HVT_TRY(HVT_LAUNCH(d, (attention_dkv_kernel<T, N>), attention_blocks(a, a.keys, N * LANES), block,
                               a));
        return table ? attention_table<T>(d, a) : HVT_OK;
    });
}
