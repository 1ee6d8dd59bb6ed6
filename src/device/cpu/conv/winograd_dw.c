/* Backward weights of Winograd convolutions (winograd.c). */
#include "winograd.h"

enum { MOST_PARTS = 16, MOST_ROUND = 64 };

#define DW_BYTES     (512 << 10) /* both factors of backward weights */
#define PARTS_BYTES  (4u << 20)  /* the sums of all parts */
#define LEAST_BLOCKS 2           /* per part */
#define ROUND_BYTES  (32u << 20) /* the factors of blocks that threads do together */
#define WAITING      0.05        /* share of the time worth losing to save barriers */
#define NEAR_A       128         /* floats per row */
#define NEAR_B       64

typedef struct wgrad {
    pass g;
    matrix v, m; /* a block's transformed inputs and gradients of outputs */
    float *u;    /* [parts] sums over the rows of a part: [ceil(K/32)][point][C][32] */
    float *dw;
    float *scratch; /* block_floats for each of `room` blocks: v, then m */
    long block_floats;
    int room;
    int a_rows, a_tiles, vectors, steps; /* tiles of C: rows, number; steps of K: vectors, number */
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
 * that threads do fewer blocks together. (ResNet-20 on 16 threads on Zen 4, predicted efficiency: 0.84
 * with twice as many blocks per part, 0.86 with this.) */
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
    wgrad w = {.g = hvt__winograd_pass(op, false, op->n, x, dy), .vectors = op->k > kern->vl ? 2 : 1};
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
    w.g = hvt__winograd_pass(op, false, real, x, dy); /* memory is planned for all images, as in bytes() */
    cut_rows(&w, u);
    cut_jobs(&w);
    return w;
}

/* Returns the offset of column `at` of row 0. */
static long column_at(const matrix *m, int at)
{
    return at / m->w * m->panel + at % m->w;
}

static int rows_of(const wgrad *w, int block)
{
    const int left = w->g.rows - block * w->block;

    return left < w->block ? left : w->block;
}

/* Transforms a piece of a block's rows of x or dy, into block number `at` of the scratch. */
static void transform_piece(const wgrad *w, int block, int at, bool grad, int piece, int pieces)
{
    const int first = block * w->block, rows = rows_of(w, block), row = conv_part(rows, piece, pieces);
    matrix to = grad ? w->m : w->v;

    to.at = w->scratch + at * w->block_floats + (grad ? w->g.points * w->v.next : 0) + (long)row * to.pitch;
    hvt__winograd_transform(&w->g, grad ? &w->g.to : &w->g.from, grad, first + row,
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

void hvt__winograd_backward_w(const conv_op *op, int real, const void *x, const void *dy, float *dw, void *ws)
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

size_t hvt__winograd_dw_bytes(const conv_op *op)
{
    const wgrad w = make_wgrad(op, op->n, NULL, NULL);

    return sizeof(float) * ((size_t)w.parts * u_floats(op, op->c, op->k) + (size_t)(w.room * w.block_floats));
}
