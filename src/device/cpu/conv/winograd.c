/*
 * 3x3 convolutions with stride 1 by Winograd's minimal filtering F(m x m, 3x3), after Lavin and Gray, "Fast
 * Algorithms for Convolutional Neural Networks", 2015: 4 multiplications per output for m = 2, and 2.25 for m
 * = 4, instead of 9. Arithmetic is in floats, whatever the type of the activations. With A, B and G of
 * typed_winograd.h, a tile of m x m outputs y is computed from (m+2) x (m+2) inputs d and the filter g by
 *
 *     y = A' [sum over channels (G g G') * (B' d B)] A            (*: element by element)
 *
 * that is, by 16 or 36 matrix products [tiles x C] * [C x K], one per point of the transformed tile. Backward
 * data does the same to dy with the filter rotated by 180 degrees. Backward weights is the derivative:
 *
 *     dg = G' [sum over tiles (B' d B) * (A dy A')] G
 *
 * Rows of these matrices are (tile, image) in the row order of the activations; a *block* of rows goes
 * through all steps while it is in the cache. Every row is computed the same way wherever it is, so the bits
 * depend neither on the batch nor on blocks or threads. Backward weights cuts the rows into parts by the
 * shape, adds the blocks of a part in order, and the parts along the tree. A thread does a part alone. Blocks
 * that cannot be divided equally among threads are done together: the threads transform the rows of several
 * blocks, then each multiplies some points of all of them.
 *
 * Rounding: for m = 2, B, A and G contain only 0, 1 and 1/2, and sums are a ninth as long. The root mean
 * square error is 0.7 to 0.9 times the direct convolution's for y and dx, and 1.0 to 1.2 times for dw. For m
 * = 4 it is 2 to 3 times for y and dx, 0.6 to 3 times for dw (7 times for dw of two images), at most an 80th
 * of TF32's (tests/device/test_conv.c, bench/conv_error.py). An infinite input makes its whole tile NaN.
 */
#include "conv_impl.h"

#include <math.h>

enum { MOST_PARTS = 16, MOST_ROUND = 64 };

static const hvt_entry one_entry = {0, 0}; /* a plain GEMM is a batch of one entry */

/* Minimum ratio of the direct convolution's multiplications, without those by padding, to Winograd's, and of
 * those for m = 2 to those for m = 4. Planes of 4x4 pixels have 1.56 for m = 2 and 1.78 from there to m = 4,
 * of 7x7 1.41 and 1.78, of 5x5 1.17 and 1, of 2x2 1 and 0.44. */
#define LEAST_GAIN              1.25
#define LEAST_CHANNELS          16 /* with fewer, transforms cost as much as they save */
#define MOST_CHANNELS           (HVT_TILE_SPAN / 2)
#define LEAST_GAIN_OF_PAIRS     3.0
#define LEAST_CHANNELS_OF_PAIRS 64
#define BLOCK_BYTES             (256 << 10) /* a block's transformed inputs and products */
#define DW_BYTES                (512 << 10) /* both factors of backward weights */
#define PARTS_BYTES             (4u << 20)  /* the sums of all parts */
#define LEAST_BLOCKS            2           /* per part */
#define ROUND_BYTES             (32u << 20) /* the factors of blocks that threads do together */
#define WAITING                 0.05        /* share of the time worth losing to save barriers */
#define LEAST_ROWS              56          /* whole tiles of 14 */
#define NEAR_A                  128         /* floats per row */
#define NEAR_B                  64

/* Round up to an odd number of lines of 16 floats: otherwise the matrices of different points would map to
 * the same cache sets. */
static size_t lines(size_t floats)
{
    return ((floats + 15) / 16 | 1) * 16;
}

/* Tiles of mxm outputs: side of a tile in points, and tiles of an image. */
static int side(const conv_op *op)
{
    return op->algorithm->tile + 2;
}

static int points(const conv_op *op)
{
    return side(op) * side(op);
}

static double multiplications(const conv_op *op, int m)
{
    return (double)((m + 2) * (m + 2)) * tile_count(op->oh, m) * tile_count(op->ow, m);
}

/* A direct convolution on pairs of bf16 takes half the time per multiplication, with AMX far less. (Zen 4,
 * 128 channels at 16x16: 1.4 to 1.6 times as fast with m = 4, 64 at 8x8 1.15 times; 32 at 16x16 1.02 times,
 * and less on several threads; below LEAST_GAIN_OF_PAIRS 256 at 14x14 0.75 times, 512 at 4x4 0.95 times.) */
static bool suits(const conv_op *op, int m)
{
    const double each = multiplications(op, m), least = op->vnni2 ? LEAST_GAIN_OF_PAIRS : LEAST_GAIN;
    const int channels = op->vnni2 ? LEAST_CHANNELS_OF_PAIRS : LEAST_CHANNELS;

    if (op->vnni2 && (m == 2 || op->kern->begin))
        return false;
    return op->even && op->r == 3 && op->s == 3 && op->stride_w == 1 && op->left <= 2 && op->c >= channels &&
           op->k >= channels && op->c <= MOST_CHANNELS && op->k <= MOST_CHANNELS &&
           (double)op->products >= least * each && (m == 2 || multiplications(op, 2) >= LEAST_GAIN * each);
}

static bool suits_2(const conv_op *op)
{
    return suits(op, 2);
}

static bool suits_4(const conv_op *op)
{
    return suits(op, 4);
}

/* ---- a pass from planes of one size to planes of another ---- */

typedef struct plane {
    const void *at;
    long pixel, image; /* strides in elements */
    int h, w, c;
} plane;

typedef struct pass {
    const conv_op *op;
    plane from, to;
    int m, points, pad, images, across, tiles, rows; /* tiles per line; tiles per image; tiles * images */
    bool by_tile; /* order of rows: the images of each tile; else the tiles of each image */
    bool back, add;

    const void *w;
    float *u;       /* transformed w */
    float *scratch; /* scratch_floats for each thread */
    long scratch_floats;
    int block; /* rows */
    long v_next, m_next;
    int pieces, column_parts; /* pieces of all rows, parts of the columns of a point */
    int each;                 /* channels of a filter_job */
} pass;

/* Rows at a constant stride: the images of a tile, or neighbouring tiles of a line. */
typedef struct run {
    int y, x, image, count; /* y, x: of the outputs; image: of the first row */
} run;

static pass make_pass(const conv_op *op, bool back, int real, const void *from, const void *to)
{
    const plane x = {back ? to : from, op->x_pixel, op->x_image, op->h, op->w, op->c};
    const plane y = {back ? from : to, op->y_pixel, op->y_image, op->oh, op->ow, op->k};
    pass g = {.op = op,
              .from = back ? y : x,
              .to = back ? x : y,
              .m = op->algorithm->tile,
              .points = points(op),
              .images = real,
              .back = back};

    g.pad = back ? 2 - op->left : op->left;
    g.across = tile_count(g.to.w, g.m);
    g.tiles = g.across * tile_count(g.to.h, g.m);
    g.rows = g.tiles * real;
    g.by_tile = op->n > 1 && op->x_image == op->c;
    return g;
}

static run run_at(const pass *g, int row, int end)
{
    const int tile = g->by_tile ? row / g->images : row % g->tiles;
    run r = {.y = g->m * (tile / g->across), .x = g->m * (tile % g->across), .count = 1};

    if (g->by_tile) {
        const int most = HVT_TILE_SPAN / (g->from.c > g->to.c ? g->from.c : g->to.c);

        r.image = row % g->images;
        r.count = end - row < g->images - r.image ? end - row : g->images - r.image;
        r.count = r.count < most ? r.count : most;
        return r;
    }
    r.image = row / g->tiles;
    if (r.x >= g->pad) /* up to the last tile without padding */
        for (int x = r.x + g->m;
             r.count < end - row && x + g->m <= g->to.w && x - g->pad + g->m + 2 <= g->from.w; x += g->m)
            r.count++;
    return r;
}

/* Addresses of the first row's size x size pixels at (y, x); NULL outside the image. */
static void pixels_at(const conv_op *op, const plane *p, int image, int y, int x, int size, void **out)
{
    for (int i = 0; i < size; i++)
        for (int j = 0; j < size; j++) {
            const bool inside = y + i >= 0 && y + i < p->h && x + j >= 0 && x + j < p->w;
            const long at = ((y + i) * (long)p->w + x + j) * p->pixel + image * p->image;

            out[i * size + j] = inside ? hvt__at(p->at, op->type, (size_t)at) : NULL;
        }
}

static long row_step(const pass *g, const plane *p)
{
    return g->by_tile ? p->image : g->m * p->pixel;
}

/* A GEMM operand for transformed rows, in panels of w columns. */
typedef struct matrix {
    float *at;
    int w, pitch;
    long panel, next;
} matrix;

/* Transform rows [row, end) of a plane (inputs, or gradients of outputs) into the matrices `to`, one per
 * point, whose row 0 is `row`. */
static void transform_rows(const pass *g, const plane *p, bool grad, int row, int end, matrix to)
{
    const long step = row_step(g, p);

    while (row < end) {
        const run r = run_at(g, row, end);
        hvt_tiles t = {.rows = r.count,
                       .c = p->c,
                       .row = step,
                       .w = to.w,
                       .pitch = to.pitch,
                       .out = to.at,
                       .panel = to.panel,
                       .next = to.next};

        if (to.w == p->c && to.pitch == p->c && step == p->c) { /* as a single row */
            t.c = t.w = r.count * p->c;
            t.rows = 1;
        }
        if (g->by_tile && r.x - g->pad + 2 * g->m + 1 < p->w)
            t.prefetch = g->m * p->pixel;
        if (grad)
            pixels_at(g->op, p, r.image, r.y, r.x, g->m, t.from);
        else
            pixels_at(g->op, p, r.image, r.y - g->pad, r.x - g->pad, g->m + 2, t.from);
        g->op->typed->tile(&t, g->m, grad);
        to.at += (long)r.count * to.pitch;
        row += r.count;
    }
}

/* ---- forward and backward data ---- */

/* m = v * u of a point, columns [column, end): transformed inputs times transformed filters */
static void multiply(const pass *g, int point, int rows, int column, int end, const float *v, float *m)
{
    const hvt_conv_kernels *kern = g->op->kern;
    const int c = g->from.c, k = g->to.c, width = 2 * kern->vl;
    hvt_tile t = {
        .e = &one_entry, .entries = 1, .len = c, .depth = 1, .a_row = c, .b_row = CONV_PANEL, .c_row = k};

    for (; column < end; column += width) {
        const int vectors = k - column > kern->vl ? 2 : 1, tiles = tile_count(rows, kern->rows[vectors - 1]);
        const int high = tile_count(rows, tiles);

        t.nc = k - column < width ? k - column : width;
        t.b = g->u + conv_weight(g->points, c, point, 0, column);
        for (int row = 0; row < rows; row += high) {
            t.rows = rows - row < high ? rows - row : high;
            t.a = v + point * g->v_next + (long)row * c;
            t.c = m + point * g->m_next + (long)row * k + column;
            kern->gemm_nn[vectors - 1][t.rows - 1](&t);
        }
    }
}

/* Transform rows [row, end) of m to the outputs. */
static void store_outputs(const pass *g, int row, int end, const float *m)
{
    const long step = row_step(g, &g->to);

    while (row < end) {
        const run r = run_at(g, row, end);
        const bool dense = step == g->to.c;
        void *to[16];

        pixels_at(g->op, &g->to, r.image, r.y, r.x, g->m, to);
        g->op->typed->tile_output(g->m, m, g->m_next, dense ? 1 : r.count, g->to.c * (dense ? r.count : 1),
                                  to, step, g->add);
        m += (long)r.count * g->to.c;
        row += r.count;
    }
}

static void block_job(void *ctx, int job, int thread)
{
    const pass *g = ctx;
    const int row = job * g->block, end = g->rows - row < g->block ? g->rows : row + g->block;
    float *v = g->scratch + thread * g->scratch_floats, *m = v + g->points * g->v_next;

    transform_rows(g, &g->from, false, row, end, (matrix){v, g->from.c, g->from.c, 0, g->v_next});
    for (int point = 0; point < g->points; point++)
        multiply(g, point, end - row, 0, g->to.c, v, m);
    store_outputs(g, row, end, m);
}

/* All threads together, if blocks would be lower than a tile and each would read all filters: job = a piece
 * of the rows... */
static void transform_rows_job(void *ctx, int job, int thread)
{
    const pass *g = ctx;
    const int row = conv_part(g->rows, job, g->pieces);

    transform_rows(g, &g->from, false, row, conv_part(g->rows, job + 1, g->pieces),
                   (matrix){g->scratch + (long)row * g->from.c, g->from.c, g->from.c, 0, g->v_next});
}

/* ... a point, a part of the columns... */
static void multiply_rows_job(void *ctx, int job, int thread)
{
    const pass *g = ctx;
    const int panels = conv_panels(g->to.c), part = job % g->column_parts;
    const int end = conv_part(panels, part + 1, g->column_parts) * CONV_PANEL;

    multiply(g, job / g->column_parts, g->rows, conv_part(panels, part, g->column_parts) * CONV_PANEL,
             end < g->to.c ? end : g->to.c, g->scratch, g->scratch + g->points * g->v_next);
}

/* ... a piece of the rows */
static void store_rows_job(void *ctx, int job, int thread)
{
    const pass *g = ctx;
    const int row = conv_part(g->rows, job, g->pieces);

    store_outputs(g, row, conv_part(g->rows, job + 1, g->pieces),
                  g->scratch + g->points * g->v_next + (long)row * g->to.c);
}

/* ---- weights ---- */

/* job = some channels of a panel. Forward transforms in place; backward data transforms into scratch and
 * packs that. */
static void filter_job(void *ctx, int job, int thread)
{
    const pass *g = ctx;
    const conv_op *op = g->op;
    const int parts = tile_count(op->c, g->each), column = job / parts * CONV_PANEL,
              c = job % parts * g->each;
    const int count = op->c - c < g->each ? op->c - c : g->each;
    const int k = op->k - column < CONV_PANEL ? op->k - column : CONV_PANEL;
    const size_t at = (size_t)conv_weight(op->taps, op->c, 0, c, column);
    const long tap = (long)op->c * CONV_PANEL, next = g->back ? CONV_PANEL * CONV_PANEL : tap;
    float *out = g->back ? g->scratch + thread * g->scratch_floats
                         : g->u + conv_weight(g->points, op->c, 0, c, column);

    op->typed->tile_filter(g->m, (size_t)count * CONV_PANEL, hvt__at(g->w, op->type, at), tap, g->back, out,
                           next);
    for (int point = 0; g->back && point < g->points; point++)
        op->kern->pack_weights(out + point * next, count, k,
                               g->u + conv_weight(g->points, op->k, point, column, c), false);
}

/* Fewer channels per job if a thread would have none, but whole vectors when packing. */
static void transform_filters(pass *g)
{
    const conv_op *op = g->op;
    const int panels = conv_panels(op->k), threads = hvt__thread_pool_size(op->pool),
              least = g->back ? op->kern->vl : 1;

    for (g->each = CONV_PANEL; g->each > least; g->each /= 2)
        if (threads == 1 || panels * tile_count(op->c, g->each) >= 2 * threads)
            break;
    hvt__parallel_for(op->pool, panels * tile_count(op->c, g->each), filter_job, g);
}

/* ---- sizes ---- */

static size_t u_floats(const conv_op *op, int channels, int columns)
{
    return (size_t)(conv_panels(columns) * points(op)) * (size_t)channels * CONV_PANEL;
}

/* Lay out a block of `rows`; returns the floats of scratch per thread. */
static size_t lay_out(pass *g, int rows)
{
    size_t each, packing = (size_t)g->points * CONV_PANEL * CONV_PANEL;

    g->block = rows;
    g->v_next = (long)lines((size_t)rows * (size_t)g->from.c);
    g->m_next = (long)lines((size_t)rows * (size_t)g->to.c);
    each = (size_t)g->points * (size_t)(g->v_next + g->m_next);
    return each > packing ? each : packing;
}

/* Rows of a block, in whole tiles. Each block reads all filters, so large filters need large blocks. */
static int block_rows(const pass *g)
{
    const hvt_conv_kernels *kern = g->op->kern;
    const int row = g->points * (int)sizeof(float) * (g->from.c + g->to.c),
              high = kern->rows[g->to.c > kern->vl];
    const int u = (int)(u_floats(g->op, g->from.c, g->to.c) * sizeof(float));
    int fit = (u / 2 > BLOCK_BYTES ? u / 2 : BLOCK_BYTES) / row / high * high;

    fit = fit < LEAST_ROWS ? LEAST_ROWS : fit;
    return fit < g->rows ? fit : g->rows;
}

static size_t pass_bytes(const conv_op *op, bool back)
{
    pass g = make_pass(op, back, op->n, NULL, NULL);
    const size_t each = lay_out(&g, block_rows(&g));

    return sizeof(float) * (u_floats(op, g.from.c, g.to.c) + each * (size_t)hvt__thread_pool_size(op->pool));
}

/* forward: y = x * w; back: x = y * w rotated */
static void run_pass(const conv_op *op, bool back, int real, const void *from, const void *w, void *to,
                     bool add, void *ws)
{
    pass g = make_pass(op, back, real, from, to);
    const int threads = hvt__thread_pool_size(op->pool), rows = block_rows(&g);
    const int blocks = tile_count(tile_count(g.rows, rows), threads) * threads;
    int one;

    g.add = add;
    g.w = w;
    g.u = ws;
    g.scratch = g.u + u_floats(op, g.from.c, g.to.c);
    g.scratch_floats = (long)lay_out(&g, rows);
    transform_filters(&g);
    if (threads > 1 && tile_count(g.rows, blocks) < op->kern->rows[1]) {
        lay_out(&g, g.rows);
        conv_share(op, 1, g.rows, 1, &g.pieces, &one);
        conv_share(op, g.points, conv_panels(g.to.c), 1, &g.column_parts, &one);
        hvt__parallel_for(op->pool, g.pieces, transform_rows_job, &g);
        hvt__parallel_for(op->pool, g.points * g.column_parts, multiply_rows_job, &g);
        hvt__parallel_for(op->pool, g.pieces, store_rows_job, &g);
        return;
    }
    lay_out(&g, tile_count(g.rows, blocks));
    hvt__parallel_for(op->pool, tile_count(g.rows, g.block), block_job, &g);
}

static void forward(const conv_op *op, int real, const void *x, const void *w, void *y, void *ws)
{
    run_pass(op, false, real, x, w, y, false, ws);
}

static void backward_x(const conv_op *op, int real, const void *w, const void *dy, void *dx, bool add,
                       void *ws)
{
    run_pass(op, true, real, dy, w, dx, add, ws);
}

/* ---- backward weights ---- */

typedef struct wgrad {
    pass g;
    matrix v, m; /* a block's transformed inputs and gradients of outputs */
    float *u;    /* [parts] sums over the rows of a part: [ceil(K/32)][point][C][32] */
    float *dw;
    float *scratch; /* block_floats for each of `room` blocks: v, then m */
    long block_floats;
    int room;
    int a_rows, a_tiles, vectors, steps; /* of K */
    int most;                            /* maximum rows of a block, also with fewer images */
    int block, blocks, parts;            /* rows of each block; a part has whole blocks */
    int own_parts,
        own_blocks; /* of the first own_parts parts, a single thread does the first own_blocks blocks */
    int round[MOST_ROUND], count;        /* blocks done by all threads together */
    int pieces, column_parts, row_parts; /* pieces of each block's rows; parts of K and C */
    int sums;                            /* jobs per panel of dw */
    const void *partial[MOST_PARTS];     /* u of each part */
} wgrad;

/* Narrow rows are stored densely, wide ones in panels as narrow as a tile. */
static matrix layout_of(int channels, int rows, int near, int w, int pitch)
{
    const long panel = (long)rows * pitch;

    if (channels <= near)
        return (matrix){NULL, channels, channels, 0, (long)lines((size_t)rows * (size_t)channels)};
    return (matrix){NULL, w, pitch, panel, (long)lines((size_t)(panel * tile_count(channels, w)))};
}

/* Cut into blocks and parts, by the shape only; parts have nearly the same number of blocks. A part's sums
 * are read and written once per block, and once more at the end. If they are small, parts have few blocks, so
 * that threads do fewer blocks together. (ResNet-20 on 16 threads on Zen 4, efficiency predicted by
 * bench_step --span: 0.84 with twice as many blocks per part, 0.86 with this.) */
static void cut_rows(wgrad *w, size_t u)
{
    const conv_op *op = w->g.op;
    const size_t row = (size_t)points(op) * (size_t)(op->c + op->k) * sizeof(float);
    const size_t budget = u > DW_BYTES ? u : DW_BYTES;
    const int least = u <= PARTS_BYTES / MOST_PARTS ? LEAST_BLOCKS : 2 * LEAST_BLOCKS;
    int rows = (int)(budget / row), parts = (int)(PARTS_BYTES / u), each;

    rows = rows < LEAST_ROWS ? LEAST_ROWS : rows;
    w->blocks = tile_count(w->g.rows, rows);
    parts = parts < w->blocks / least ? parts : w->blocks / least;
    w->parts = parts < 1 ? 1 : parts > MOST_PARTS ? MOST_PARTS : parts;
    each = (2 * w->blocks + w->parts) / (2 * w->parts); /* rounded to nearest */
    w->block = tile_count(w->g.rows, each * w->parts);
    w->blocks = tile_count(w->g.rows, w->block);
    w->most = w->parts > 1 ? rows + rows / 4 : rows < w->g.rows ? rows : w->g.rows;
}

/* Distribute work by the number of threads, which does not change the sums. A thread alone with its blocks
 * does not wait and finds them in its cache. */
static void cut_jobs(wgrad *w)
{
    const conv_op *op = w->g.op;
    const int threads = hvt__thread_pool_size(op->pool), panels = conv_panels(op->k);
    const int longest = tile_count(w->blocks * tile_count(w->parts, threads), w->parts);
    int one;

    w->own_parts = w->room < threads ? 0 : w->parts / threads * threads;
    w->own_blocks = w->blocks / w->parts;
    if (w->own_parts && longest * threads <= (1 + WAITING) * w->blocks) {
        w->own_parts = w->parts;
        w->own_blocks = w->blocks;
    }
    conv_share(op, w->g.points, w->steps, w->a_tiles, &w->column_parts, &w->row_parts);
    conv_share(op, panels, 1, op->c, &one, &w->sums);
    w->sums = w->sums < conv_panels(op->c) ? conv_panels(op->c) : w->sums;
}

static wgrad make_wgrad(const conv_op *op, int real, const void *x, const void *dy)
{
    const hvt_conv_kernels *kern = op->kern;
    const int threads = hvt__thread_pool_size(op->pool);
    wgrad w = {.g = make_pass(op, false, op->n, x, dy), .vectors = op->k > kern->vl ? 2 : 1};
    const size_t u = u_floats(op, op->c, op->k) * sizeof(float);
    int fit;

    w.a_tiles = tile_count(op->c, kern->rows[w.vectors - 1]);
    w.a_rows = tile_count(op->c, w.a_tiles);
    w.steps = tile_count(op->k, w.vectors * kern->vl);
    cut_rows(&w, u);
    w.v = layout_of(op->c, w.most, NEAR_A, w.a_rows, kern->pitch);
    w.m = layout_of(op->k, w.most, op->k % kern->vl ? 0 : NEAR_B, CONV_PANEL, CONV_PANEL);
    w.block_floats = w.g.points * (w.v.next + w.m.next);
    fit = (int)(ROUND_BYTES / sizeof(float) / (size_t)w.block_floats);
    w.room = w.blocks < threads ? w.blocks : threads;
    w.room = w.room < fit ? w.room : fit;
    w.room = w.room < 1 ? 1 : w.room < MOST_ROUND ? w.room : MOST_ROUND;
    w.g = make_pass(op, false, real, x, dy); /* memory is planned for all images, as in bytes() */
    cut_rows(&w, u);
    cut_jobs(&w);
    return w;
}

/* Offset of column `at` of row 0. */
static long column_at(const matrix *m, int at)
{
    return at / m->w * m->panel + at % m->w;
}

static int rows_of(const wgrad *w, int block)
{
    const int left = w->g.rows - block * w->block;

    return left < w->block ? left : w->block;
}

/* Transform a piece of a block's rows of x or dy; the block is number `at` in scratch. */
static void transform_piece(const wgrad *w, int block, int at, bool grad, int piece, int pieces)
{
    const int first = block * w->block, rows = rows_of(w, block), row = conv_part(rows, piece, pieces);
    matrix to = grad ? w->m : w->v;

    to.at = w->scratch + at * w->block_floats + (grad ? w->g.points * w->v.next : 0) + (long)row * to.pitch;
    transform_rows(&w->g, grad ? &w->g.to : &w->g.from, grad, first + row,
                   first + conv_part(rows, piece + 1, pieces), to);
}

/* Multiply a point of that block, for a part of the columns and of the rows: u (+)= v' * m. */
static void multiply_point(const wgrad *w, int block, int at, int point, int column_part, int row_part)
{
    const conv_op *op = w->g.op;
    const int width = w->vectors * op->kern->vl, part = ((block + 1) * w->parts - 1) / w->blocks;
    const int first_step = conv_part(w->steps, column_part, w->column_parts),
              end_step = conv_part(w->steps, column_part + 1, w->column_parts);
    const int first_tile = conv_part(w->a_tiles, row_part, w->row_parts),
              end_tile = conv_part(w->a_tiles, row_part + 1, w->row_parts);
    const int padding = conv_panels(op->k) * CONV_PANEL - op->k; /* of the last panel */
    const long ahead =
        at + 1 < w->count ? w->block_floats : 0; /* the next block's, written by other threads */
    const float *v = w->scratch + at * w->block_floats + point * w->v.next;
    const float *m = w->scratch + at * w->block_floats + w->g.points * w->v.next + point * w->m.next;
    float *u = w->u + part * (long)u_floats(op, op->c, op->k);
    hvt_tile t = {.e = &one_entry,
                  .entries = 1,
                  .len = rows_of(w, block),
                  .depth = 1,
                  .a_row = w->v.pitch,
                  .b_row = w->m.pitch,
                  .c_row = CONV_PANEL,
                  .add = block > conv_part(w->blocks, part, w->parts)};

    for (int step = first_step; step < end_step; step++)
        for (int tile = first_tile; tile < end_tile; tile++) {
            const int column = step * width, channel = tile * w->a_rows;

            t.nc = op->k - column < width ? op->k - column : width;
            t.rows = op->c - channel < w->a_rows ? op->c - channel : w->a_rows;
            t.b = m + column_at(&w->m, column);
            t.a = v + column_at(&w->v, channel);
            t.c = u + conv_weight(w->g.points, op->c, point, channel, column);
            t.a_ahead = step == first_step ? ahead : 0;
            t.b_ahead = tile == first_tile ? ahead : 0;
            if (t.add)
                hvt__prefetch(t.c, sizeof *t.c * CONV_PANEL * (size_t)t.rows);
            op->kern->gemm_tn[t.nc > op->kern->vl][t.rows - 1](&t);
            for (int i = 0; !t.add && padding && column + t.nc == op->k && i < t.rows; i++)
                memset(t.c + i * t.c_row + t.nc, 0, sizeof *t.c * (size_t)padding);
        }
}

/* job = a part; this thread does its own_blocks */
static void part_job(void *ctx, int job, int thread)
{
    wgrad w = *(const wgrad *)ctx;
    const int first = conv_part(w.blocks, job, w.parts), end = conv_part(w.blocks, job + 1, w.parts);

    w.column_parts = w.row_parts = 1;
    for (int block = first; block < end && block < first + w.own_blocks; block++) {
        transform_piece(&w, block, thread, false, 0, 1);
        transform_piece(&w, block, thread, true, 0, 1);
        for (int point = 0; point < w.g.points; point++)
            multiply_point(&w, block, thread, point, 0, 0);
    }
}

/* job = a piece of a block's rows, of x or of dy */
static void transform_job(void *ctx, int job, int thread)
{
    const wgrad *w = ctx;
    const int at = job / 2 / w->pieces;

    transform_piece(w, w->round[at], at, job % 2, job / 2 % w->pieces, w->pieces);
}

/* job = a point and a part of the columns and of the rows, in all blocks of a round in turn */
static void multiply_job(void *ctx, int job, int thread)
{
    const wgrad *w = ctx;

    for (int i = 0; i < w->count; i++)
        multiply_point(w, w->round[i], i, job / w->row_parts / w->column_parts,
                       job / w->row_parts % w->column_parts, job % w->row_parts);
}

/* job = some channels of a panel */
static void dw_job(void *ctx, int job, int thread)
{
    const wgrad *w = ctx;
    const conv_op *op = w->g.op;
    const hvt_typed *f32 = hvt__cpu(op->head.dev)->isa->el->in[HVT_F32];
    const int column = job / w->sums * CONV_PANEL, c = conv_part(op->c, job % w->sums, w->sums),
              count = conv_part(op->c, job % w->sums + 1, w->sums) - c;
    const long point = (long)op->c * CONV_PANEL, at = conv_weight(w->g.points, op->c, 0, c, column);
    void *const sum = w->u;

    for (int i = 0; w->parts > 1 && i < w->g.points; i++)
        f32->reduce((size_t)(at + i * point), (size_t)count * CONV_PANEL, w->partial, w->parts, &sum, 1);
    op->typed->tile_dw(w->g.m, (size_t)count * CONV_PANEL, w->u + at, point,
                       w->dw + conv_weight(op->taps, op->c, 0, c, column), point);
}

/* Find the next blocks, from *block on, that no thread owns; false if there are none. */
static bool next_round(wgrad *w, int *block)
{
    int one;

    for (w->count = 0; *block < w->blocks && w->count < w->room; ++*block) {
        const int part = ((*block + 1) * w->parts - 1) / w->blocks;

        if (part >= w->own_parts || *block >= conv_part(w->blocks, part, w->parts) + w->own_blocks)
            w->round[w->count++] = *block;
    }
    if (w->count)
        conv_share(w->g.op, 2 * w->count, w->block, 1, &w->pieces, &one);
    return w->count > 0;
}

static void backward_w(const conv_op *op, int real, const void *x, const void *dy, float *dw, void *ws)
{
    wgrad w = make_wgrad(op, real, x, dy);

    w.u = ws;
    w.dw = dw;
    w.scratch = w.u + (size_t)w.parts * u_floats(op, op->c, op->k);
    for (int i = 0; i < w.parts; i++)
        w.partial[i] = w.u + (size_t)i * u_floats(op, op->c, op->k);
    if (w.own_parts)
        hvt__parallel_for(op->pool, w.own_parts, part_job, &w);
    for (int block = 0; next_round(&w, &block);) {
        hvt__parallel_for(op->pool, 2 * w.count * w.pieces, transform_job, &w);
        hvt__parallel_for(op->pool, w.g.points * w.column_parts * w.row_parts, multiply_job, &w);
    }
    hvt__parallel_for(op->pool, conv_panels(op->k) * w.sums, dw_job, &w);
}

/* ---- the algorithm ---- */

static size_t bytes(const conv_op *op)
{
    const wgrad w = make_wgrad(op, op->n, NULL, NULL);
    const size_t dw =
        sizeof(float) * ((size_t)w.parts * u_floats(op, op->c, op->k) + (size_t)(w.room * w.block_floats));
    const size_t out = pass_bytes(op, false), in = op->no_dx ? 0 : pass_bytes(op, true);
    const size_t most = out > in ? out : in;

    return dw > most ? dw : most;
}

/* Computes in floats. */
static hvt_status plan(conv_op *op)
{
    op->kern = hvt__cpu(op->head.dev)->isa->conv;
    op->vnni2 = false;
    return HVT_OK;
}

static void describe(const conv_op *op, char *ret_text, size_t room)
{
    snprintf(ret_text, room, "Winograd, F(%dx%d, 3x3)", op->algorithm->tile, op->algorithm->tile);
}

#define WINOGRAD(m)                                                                                          \
    {                                                                                                        \
        .size = sizeof(conv_op), .tile = m, .suits = suits_##m, .plan = plan, .bytes = bytes,                \
        .describe = describe, .forward = forward, .backward_x = backward_x, .backward_w = backward_w,        \
    }
const conv_algorithm hvt__conv_winograd_2 = WINOGRAD(2), hvt__conv_winograd_4 = WINOGRAD(4);
