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
#include "winograd.h"

/* Minimum ratio of the direct convolution's multiplications, without those by padding, to Winograd's, and of
 * those for m = 2 to those for m = 4. Planes of 4x4 pixels have 1.56 for m = 2 and 1.78 from there to m = 4,
 * of 7x7 1.41 and 1.78, of 5x5 1.17 and 1, of 2x2 1 and 0.44. */
#define LEAST_GAIN              1.25
#define LEAST_CHANNELS          16 /* with fewer, transforms cost as much as they save */
#define MOST_CHANNELS           (HVT_TILE_SPAN / 2)
#define LEAST_GAIN_OF_PAIRS     3.0
#define LEAST_CHANNELS_OF_PAIRS 64
#define BLOCK_BYTES             (256 << 10) /* a block's transformed inputs and products */

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
        const run r = hvt__winograd_run(g, row, end);
        const bool dense = step == g->to.c;
        void *to[16];

        hvt__winograd_pixels(g->op, &g->to, r.image, r.y, r.x, g->m, to);
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

    hvt__winograd_transform(g, &g->from, false, row, end, (matrix){v, g->from.c, g->from.c, 0, g->v_next});
    for (int point = 0; point < g->points; point++)
        multiply(g, point, end - row, 0, g->to.c, v, m);
    store_outputs(g, row, end, m);
}

/* The next three jobs are for blocks that would be lower than a tile and each read all filters: all threads
 * do all rows together. job = a piece of the rows */
static void transform_rows_job(void *ctx, int job, int thread)
{
    const pass *g = ctx;
    const int row = conv_part(g->rows, job, g->pieces);

    hvt__winograd_transform(g, &g->from, false, row, conv_part(g->rows, job + 1, g->pieces),
                            (matrix){g->scratch + (long)row * g->from.c, g->from.c, g->from.c, 0, g->v_next});
}

/* job = a point and a part of the columns */
static void multiply_rows_job(void *ctx, int job, int thread)
{
    const pass *g = ctx;
    const int panels = conv_panels(g->to.c), part = job % g->column_parts;
    const int end = conv_part(panels, part + 1, g->column_parts) * CONV_PANEL;

    multiply(g, job / g->column_parts, g->rows, conv_part(panels, part, g->column_parts) * CONV_PANEL,
             end < g->to.c ? end : g->to.c, g->scratch, g->scratch + g->points * g->v_next);
}

/* job = a piece of the rows */
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

/* Transforms the filters. Jobs have fewer channels if a thread would get no job, but whole vectors when
 * packing. */
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

/* Chooses the rows of a block, in whole tiles. Each block reads all filters, so large filters need large
 * blocks. */
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
    pass g = hvt__winograd_pass(op, back, op->n, NULL, NULL);
    const size_t each = lay_out(&g, block_rows(&g));

    return sizeof(float) * (u_floats(op, g.from.c, g.to.c) + each * (size_t)hvt__thread_pool_size(op->pool));
}

/* forward: y = x * w; back: x = y * w rotated */
static void run_pass(const conv_op *op, bool back, int real, const void *from, const void *w, void *to,
                     bool add, void *ws)
{
    pass g = hvt__winograd_pass(op, back, real, from, to);
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

/* ---- the algorithm ---- */

static size_t bytes(const conv_op *op)
{
    const size_t dw = hvt__winograd_dw_bytes(op);
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
        .describe = describe, .forward = forward, .backward_x = backward_x,                                  \
        .backward_w = hvt__winograd_backward_w,                                                              \
    }
const conv_algorithm hvt__conv_winograd_2 = WINOGRAD(2), hvt__conv_winograd_4 = WINOGRAD(4);
