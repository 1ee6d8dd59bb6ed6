/*
 * Convolutions of 3x3, stride 1, in f32, with 4 multiplications per output instead of 9: Winograd's minimal
 * filtering F(2x2, 3x3), after Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks", 2015.
 * With A, B and G of typed_winograd.h, a tile of 2x2 outputs y is computed from 4x4 inputs d and the filter g
 * by
 *
 *     y = A' [sum over channels (G g G') * (B' d B)] A            (*: element by element)
 *
 * that is by 16 matrix products, one for each point of the transformed tile, [tiles x C] * [C x K]. Backward
 * data does the same to dy with the filter rotated by 180 degrees. Backward weights is the derivative, term
 * by term:
 *
 *     dg = G' [sum over tiles (B' d B) * (A dy A')] G
 *
 * Rows of these matrices are (tile, image) in the row order of the activations; a *block* of rows goes
 * through all steps while it is in the cache. Every row is computed in the same way wherever it is, so the
 * bits depend neither on the batch nor on blocks or threads; backward weights adds blocks in their order.
 *
 * Rounding: B, A and G contain only 0, 1 and 1/2, and sums are a ninth as long, so the error is no larger
 * than that of the direct convolution: its root mean square is 0.7 to 0.9 times that for y and dx, 1.0 to 1.2
 * times for dw (tests/device/test_conv.c). An infinite input makes its whole tile NaN.
 */
#include "conv_impl.h"

#include <string.h>

enum { WINOGRAD_POINTS = 16, OUTPUTS = 4 };

static const hvt_entry one_entry = {0, 0}; /* a plain GEMM is a batch of one entry */

/* Minimum ratio of the direct convolution's multiplications, without those by padding, to the ones done here.
 * Planes of 4x4 pixels have 1.56, of 7x7 1.41, of 5x5 1.17, of 2x2 1. */
#define LEAST_GAIN     1.25
#define LEAST_CHANNELS 16 /* with fewer the transforms cost as much as they save */
#define MOST_CHANNELS  (HVT_TILE_SPAN / 2)
#define BLOCK_BYTES    (256 << 10) /* of a block's transformed inputs and products */
#define DW_BYTES       (512 << 10) /* of both factors of backward weights */
#define LEAST_ROWS     56          /* whole tiles of 14 */
#define NEAR_A         128         /* floats of a row */
#define NEAR_B         64
#define LINE                                                                                                 \
    16 /* floats: the matrices of different points are an odd number of lines apart, or they would map to    \
          the same cache sets */
#define TRANSFORM_ROWS 32

static size_t lines(size_t floats)
{
    return ((floats + LINE - 1) / LINE | 1) * LINE;
}

bool hvt__winograd_is_faster(const conv_op *op, long products)
{
    const long tiles = (long)((op->oh + 1) / 2) * ((op->ow + 1) / 2);

    return !op->vnni2 && op->r == 3 && op->s == 3 && op->stride == 1 && op->pad <= 2 &&
           op->c >= LEAST_CHANNELS && op->k >= LEAST_CHANNELS && op->c <= MOST_CHANNELS &&
           op->k <= MOST_CHANNELS && (double)products >= LEAST_GAIN * WINOGRAD_POINTS * (double)tiles;
}

/* ---- a pass from planes of one size to planes of another ---- */

typedef struct plane {
    const void *at;
    long pixel, image; /* elements from one to the next */
    int h, w, c;
} plane;

typedef struct pass {
    const conv_op *op;
    plane from, to;
    int pad, images, across, tiles, rows; /* tiles per line; tiles per image; tiles * images */
    bool by_tile; /* order of rows: the images of each tile; else the tiles of each image */
    bool back, add;

    const float *u;
    float *scratch; /* scratch_floats for each thread */
    long scratch_floats;
    int block; /* rows */
    long v_next, m_next;
} pass;

/* Rows at a constant stride: the images of a tile, or neighbouring tiles of a line. */
typedef struct run {
    int y, x, image, count; /* y, x: of the outputs; image: of the first row */
} run;

static pass make_pass(const conv_op *op, bool back, int real)
{
    const plane x = {NULL, op->x_pixel, op->x_image, op->h, op->w, op->c};
    const plane y = {NULL, op->y_pixel, op->y_image, op->oh, op->ow, op->k};
    pass g = {.op = op, .from = back ? y : x, .to = back ? x : y, .images = real, .back = back};

    g.pad = back ? 2 - op->pad : op->pad;
    g.across = (g.to.w + 1) / 2;
    g.tiles = g.across * ((g.to.h + 1) / 2);
    g.rows = g.tiles * real;
    g.by_tile = op->n > 1 && op->x_image == op->c;
    return g;
}

static run run_at(const pass *g, int row, int end)
{
    const int tile = g->by_tile ? row / g->images : row % g->tiles;
    run r = {.y = 2 * (tile / g->across), .x = 2 * (tile % g->across), .count = 1};

    if (g->by_tile) {
        const int most = HVT_TILE_SPAN / (g->from.c > g->to.c ? g->from.c : g->to.c);

        r.image = row % g->images;
        r.count = end - row < g->images - r.image ? end - row : g->images - r.image;
        r.count = r.count < most ? r.count : most;
        return r;
    }
    r.image = row / g->tiles;
    if (r.x >= g->pad) /* up to the last tile that needs no padding */
        for (int x = r.x + 2; r.count < end - row && x + 1 < g->to.w && x - g->pad + 3 < g->from.w; x += 2)
            r.count++;
    return r;
}

/* Addresses of the first row's size x size pixels at (y, x); NULL outside the image. */
static void pixels_at(const conv_op *op, const plane *p, int image, int y, int x, int size, const void **out)
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
    return g->by_tile ? p->image : 2 * p->pixel;
}

/* A GEMM operand that rows are transformed into, in panels of w columns. */
typedef struct matrix {
    float *at;
    int w, pitch;
    long panel, next;
} matrix;

/* Transform rows [row, end) of the inputs, or of the gradients of the outputs, into the 16 matrices `to`,
 * whose row 0 is `row`. */
static void transform_rows(const pass *g, bool grad, int row, int end, matrix to)
{
    const plane *p = grad ? &g->to : &g->from;
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

        if (to.w == p->c && to.pitch == p->c && step == p->c) { /* as one long row */
            t.c = t.w = r.count * p->c;
            t.rows = 1;
        }
        if (g->by_tile && r.x - g->pad + 5 < p->w)
            t.prefetch = 2 * p->pixel;
        if (grad)
            pixels_at(g->op, p, r.image, r.y, r.x, 2, t.from);
        else
            pixels_at(g->op, p, r.image, r.y - g->pad, r.x - g->pad, 4, t.from);
        (grad ? g->op->typed->tile_dy : g->op->typed->tile_input)(&t);
        to.at += (long)r.count * to.pitch;
        row += r.count;
    }
}

/* ---- forward and backward data ---- */

/* m = v * u: transformed inputs times transformed filters */
static void multiply(const pass *g, const float *v, int rows, float *m)
{
    const hvt_conv_kernels *kern = g->op->kern;
    const int c = g->from.c, k = g->to.c, width = 2 * kern->vl;
    hvt_tile t = {
        .e = &one_entry, .entries = 1, .len = c, .depth = 1, .a_row = c, .b_row = CONV_PANEL, .c_row = k};

    for (int point = 0; point < WINOGRAD_POINTS; point++)
        for (int column = 0; column < k; column += width) {
            const int vectors = k - column > kern->vl ? 2 : 1,
                      tiles = conv_tiles(rows, kern->rows[vectors - 1]);
            const int high = conv_tiles(rows, tiles);

            t.nc = k - column < width ? k - column : width;
            t.b = g->u + conv_weight(WINOGRAD_POINTS, c, point, 0, column);
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
        const void *pixel[OUTPUTS];
        void *to[OUTPUTS];

        pixels_at(g->op, &g->to, r.image, r.y, r.x, 2, pixel);
        for (int i = 0; i < OUTPUTS; i++)
            to[i] = (void *)(uintptr_t)pixel[i];
        g->op->typed->tile_output(m, g->m_next, dense ? 1 : r.count, g->to.c * (dense ? r.count : 1), to,
                                  step, g->add);
        m += (long)r.count * g->to.c;
        row += r.count;
    }
}

static void block_job(void *ctx, int job, int thread)
{
    const pass *g = ctx;
    const int row = job * g->block, end = g->rows - row < g->block ? g->rows : row + g->block;
    float *v = g->scratch + thread * g->scratch_floats, *m = v + WINOGRAD_POINTS * g->v_next;

    transform_rows(g, false, row, end, (matrix){v, g->from.c, g->from.c, 0, g->v_next});
    multiply(g, v, end - row, m);
    store_outputs(g, row, end, m);
}

/* ---- weights ---- */

typedef struct filters {
    const pass *g;
    const void *w;
    float *u;
} filters;

/* job = 32 channels of a panel */
static void forward_job(void *ctx, int job, int thread)
{
    const filters *f = ctx;
    const conv_op *op = f->g->op;
    const int parts = conv_panels(op->c), panel = job / parts, c = job % parts * CONV_PANEL;
    const int count = op->c - c < CONV_PANEL ? op->c - c : CONV_PANEL;
    const long tap = (long)op->c * CONV_PANEL;
    const size_t at = (size_t)conv_weight(op->taps, op->c, 0, c, panel * CONV_PANEL);

    (void)thread;
    op->typed->tile_filter((size_t)count * CONV_PANEL, hvt__at(f->w, op->type, at), tap,
                           f->u + conv_weight(WINOGRAD_POINTS, op->c, 0, c, panel * CONV_PANEL), tap);
}

/* In a filter rotated by 180 degrees the first and last points are exchanged. */
static int rotated_point(int point)
{
    static const int rotated[] = {3, 1, 2, 0};

    return rotated[point / 4] * 4 + rotated[point % 4];
}

static void backward_job(void *ctx, int job, int thread)
{
    const filters *f = ctx;
    const conv_op *op = f->g->op;
    const int parts = conv_panels(op->c), column = job / parts * CONV_PANEL, c = job % parts * CONV_PANEL;
    const int count = op->c - c < CONV_PANEL ? op->c - c : CONV_PANEL;
    const int k = op->k - column < CONV_PANEL ? op->k - column : CONV_PANEL;
    const size_t at = (size_t)conv_weight(op->taps, op->c, 0, c, column);
    float *mine = f->g->scratch + thread * f->g->scratch_floats;
    const long block = CONV_PANEL * CONV_PANEL;

    op->typed->tile_filter((size_t)count * CONV_PANEL, hvt__at(f->w, op->type, at), (long)op->c * CONV_PANEL,
                           mine, block);
    for (int point = 0; point < WINOGRAD_POINTS; point++)
        op->kern->pack_weights(mine + point * block, count, k,
                               f->u + conv_weight(WINOGRAD_POINTS, op->k, rotated_point(point), column, c), 0,
                               false);
}

/* ---- sizes ---- */

static size_t u_floats(int channels, int columns)
{
    return (size_t)conv_panels(columns) * WINOGRAD_POINTS * (size_t)channels * CONV_PANEL;
}

/* Lay out a block of `rows`; returns the floats of scratch per thread. */
static size_t lay_out(pass *g, int rows)
{
    size_t each, packing = WINOGRAD_POINTS * CONV_PANEL * CONV_PANEL;

    g->block = rows;
    g->v_next = (long)lines((size_t)rows * (size_t)g->from.c);
    g->m_next = (long)lines((size_t)rows * (size_t)g->to.c);
    each = WINOGRAD_POINTS * (size_t)(g->v_next + g->m_next);
    return each > packing ? each : packing;
}

/* Rows of a block, in whole tiles. Each block reads all filters once more: with large filters blocks should
 * be large. */
static int block_rows(const pass *g)
{
    const hvt_conv_kernels *kern = g->op->kern;
    const int row = WINOGRAD_POINTS * (int)sizeof(float) * (g->from.c + g->to.c),
              high = kern->rows[g->to.c > kern->vl];
    const int u = (int)(u_floats(g->from.c, g->to.c) * sizeof(float));
    int fit = (u / 2 > BLOCK_BYTES ? u / 2 : BLOCK_BYTES) / row / high * high;

    fit = fit < LEAST_ROWS ? LEAST_ROWS : fit;
    return fit < g->rows ? fit : g->rows;
}

static size_t pass_bytes(const conv_op *op, bool back)
{
    pass g = make_pass(op, back, op->n);
    const size_t each = lay_out(&g, block_rows(&g));

    return sizeof(float) * (u_floats(g.from.c, g.to.c) + each * (size_t)hvt__thread_pool_size(op->pool));
}

static void run_pass(pass *g, const void *w, float *ws)
{
    const conv_op *op = g->op;
    const int threads = hvt__thread_pool_size(op->pool), rows = block_rows(g);
    const int blocks = conv_tiles(conv_tiles(g->rows, rows), threads) * threads;
    filters f = {g, w, ws};

    g->u = ws;
    g->scratch = ws + u_floats(g->from.c, g->to.c);
    g->scratch_floats = (long)lay_out(g, rows);
    hvt__parallel_for(op->pool, conv_panels(op->k) * conv_panels(op->c), g->back ? backward_job : forward_job,
                      &f);
    lay_out(g, conv_tiles(g->rows, blocks));
    hvt__parallel_for(op->pool, conv_tiles(g->rows, g->block), block_job, g);
}

void hvt__winograd_forward(const conv_op *op, int real, const void *x, const void *w, void *y, void *ws)
{
    pass g = make_pass(op, false, real);

    g.from.at = x;
    g.to.at = y;
    if (real)
        run_pass(&g, w, ws);
}

void hvt__winograd_backward_x(const conv_op *op, int real, const void *w, const void *dy, void *dx, bool add,
                              void *ws)
{
    pass g = make_pass(op, true, real);

    g.from.at = dy;
    g.to.at = dx;
    g.add = add;
    if (real)
        run_pass(&g, w, ws);
}

/* ---- backward weights ---- */

typedef struct wgrad {
    pass g;
    matrix v, m; /* of a block: transformed inputs and gradients of the outputs */
    float *u, *dw;
    int a_rows, a_tiles, vectors, block; /* block: maximum rows */
    int first, end;                      /* rows of this block */
    int column_parts, row_parts;
} wgrad;

/* Narrow rows are stored side by side; wide ones go to panels as narrow as a tile. */
static matrix layout_of(int channels, int rows, int near, int w, int pitch)
{
    const long panel = (long)rows * pitch;

    if (channels <= near)
        return (matrix){NULL, channels, channels, 0, (long)lines((size_t)rows * (size_t)channels)};
    return (matrix){NULL, w, pitch, panel, (long)lines((size_t)(panel * conv_tiles(channels, w)))};
}

static size_t matrix_floats(const matrix *m)
{
    return WINOGRAD_POINTS * (size_t)m->next;
}

static wgrad make_wgrad(const conv_op *op, int real)
{
    const hvt_conv_kernels *kern = op->kern;
    wgrad w = {.g = make_pass(op, false, real), .vectors = op->k > kern->vl ? 2 : 1};
    const size_t u = u_floats(op->c, op->k) * sizeof(float), budget = u > DW_BYTES ? u : DW_BYTES;
    int rows = (int)(budget / (WINOGRAD_POINTS * (size_t)(op->c + op->k) * sizeof(float)));

    w.a_tiles = conv_tiles(op->c, kern->rows[w.vectors - 1]);
    w.a_rows = conv_tiles(op->c, w.a_tiles);
    rows = rows < LEAST_ROWS ? LEAST_ROWS : rows;
    w.block = rows < w.g.rows ? rows : w.g.rows;
    w.v = layout_of(op->c, w.block, NEAR_A, w.a_rows, kern->pitch);
    w.m = layout_of(op->k, w.block, op->k % kern->vl ? 0 : NEAR_B, CONV_PANEL, CONV_PANEL);
    return w;
}

static void transform_job(void *ctx, int job, int thread)
{
    const wgrad *w = ctx;
    const int row = w->first + job * TRANSFORM_ROWS,
              end = row + TRANSFORM_ROWS < w->end ? row + TRANSFORM_ROWS : w->end;
    matrix v = w->v, m = w->m;

    (void)thread;
    v.at += (long)(row - w->first) * v.pitch;
    m.at += (long)(row - w->first) * m.pitch;
    transform_rows(&w->g, false, row, end, v);
    transform_rows(&w->g, true, row, end, m);
}

/* Column `at` of row 0. */
static float *column_at(const matrix *m, int at)
{
    return m->at + at / m->w * m->panel + at % m->w;
}

/* job = a point, a part of the columns, a part of the tiles along c */
static void gemm_job(void *ctx, int job, int thread)
{
    const wgrad *w = ctx;
    const conv_op *op = w->g.op;
    const int rows = job % w->row_parts, columns = job / w->row_parts % w->column_parts;
    const int point = job / w->row_parts / w->column_parts;
    const int width = w->vectors * op->kern->vl, steps = conv_tiles(op->k, width);
    hvt_tile t = {.e = &one_entry,
                  .entries = 1,
                  .len = w->end - w->first,
                  .depth = 1,
                  .a_row = w->v.pitch,
                  .b_row = w->m.pitch,
                  .c_row = CONV_PANEL,
                  .add = w->first > 0};

    (void)thread;
    for (int i = conv_part(steps, columns, w->column_parts);
         i < conv_part(steps, columns + 1, w->column_parts); i++) {
        const int column = i * width;

        t.nc = op->k - column < width ? op->k - column : width;
        t.b = column_at(&w->m, column) + point * w->m.next;
        for (int j = conv_part(w->a_tiles, rows, w->row_parts);
             j < conv_part(w->a_tiles, rows + 1, w->row_parts); j++) {
            const int channel = j * w->a_rows;

            t.rows = op->c - channel < w->a_rows ? op->c - channel : w->a_rows;
            if (t.rows <= 0)
                continue;
            t.a = column_at(&w->v, channel) + point * w->v.next;
            t.c = w->u + conv_weight(WINOGRAD_POINTS, op->c, point, channel, column);
            if (t.add)
                hvt__prefetch(t.c, sizeof *t.c * CONV_PANEL * (size_t)t.rows);
            op->kern->gemm_tn[t.nc > op->kern->vl][t.rows - 1](&t);
        }
    }
}

/* job = 32 channels of a panel */
static void dw_job(void *ctx, int job, int thread)
{
    const wgrad *w = ctx;
    const conv_op *op = w->g.op;
    const int parts = conv_panels(op->c), column = job / parts * CONV_PANEL, c = job % parts * CONV_PANEL;
    const int count = op->c - c < CONV_PANEL ? op->c - c : CONV_PANEL;
    const long point = (long)op->c * CONV_PANEL;

    (void)thread;
    op->typed->tile_dw((size_t)count * CONV_PANEL, w->u + conv_weight(WINOGRAD_POINTS, op->c, 0, c, column),
                       point, w->dw + conv_weight(op->taps, op->c, 0, c, column), point);
}

void hvt__winograd_backward_w(const conv_op *op, int real, const void *x, const void *dy, float *dw, void *ws)
{
    wgrad w = make_wgrad(op, real);
    const int block = conv_tiles(w.g.rows, conv_tiles(w.g.rows, w.block));

    w.u = ws;
    w.v.at = w.u + u_floats(op->c, op->k);
    w.m.at = w.v.at + matrix_floats(&w.v);
    w.dw = dw;
    w.g.from.at = x;
    w.g.to.at = dy;
    conv_share(op, WINOGRAD_POINTS, conv_tiles(op->k, w.vectors * op->kern->vl), w.a_tiles, &w.column_parts,
               &w.row_parts);
    if (op->k % CONV_PANEL) /* the last panel's padding */
        memset(w.u + conv_weight(WINOGRAD_POINTS, op->c, 0, 0, op->k / CONV_PANEL * CONV_PANEL), 0,
               sizeof *w.u * WINOGRAD_POINTS * (size_t)op->c * CONV_PANEL);
    for (w.first = 0; w.first < w.g.rows; w.first = w.end) {
        w.end = w.g.rows - w.first < block ? w.g.rows : w.first + block;
        hvt__parallel_for(op->pool, conv_tiles(w.end - w.first, TRANSFORM_ROWS), transform_job, &w);
        hvt__parallel_for(op->pool, WINOGRAD_POINTS * w.column_parts * w.row_parts, gemm_job, &w);
    }
    hvt__parallel_for(op->pool, conv_panels(op->k) * conv_panels(op->c), dw_job, &w);
}

size_t hvt__winograd_bytes(const conv_op *op, bool no_dx)
{
    const wgrad w = make_wgrad(op, op->n);
    const size_t dw = sizeof(float) * (u_floats(op->c, op->k) + matrix_floats(&w.v) + matrix_floats(&w.m));
    const size_t out = pass_bytes(op, false), in = no_dx ? 0 : pass_bytes(op, true);
    const size_t most = out > in ? out : in;

    return dw > most ? dw : most;
}
