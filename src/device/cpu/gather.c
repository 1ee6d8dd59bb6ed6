/*
 * Forward and backward data: for every target pixel, the sum over its list of (source pixel, tap) of
 * rows * weights. Both are one function; they differ in the list, the weights' panels and the strides.
 *
 * The order of work is blocks of pixels, panels of weights, pixels, tiles: a block's source rows stay in the
 * cache while the panels pass over them. Threads take parts of that space, each target element is computed by
 * one thread from first to last, and its chain of multiply-adds is the same in every tile: no bit depends on
 * threads, on the batch, or on the place in it.
 */
#include "conv_impl.h"

/* Source bytes of a block. Few weights lie in the cache anyway and the block should leave them there; many
 * weights stream through, and a larger block lets them do so less often. */
#define SMALL_BLOCK   (64 << 10)
#define LARGE_BLOCK   (1 << 20)
#define MANY_WEIGHTS  (256 << 10)
#define JOBS_A_THREAD 4

typedef struct gather {
    const conv_op *op;
    const conv_list *list;
    const float *source, *weights;
    float *target;
    long s_pixel, s_image, t_pixel, t_image; /* floats from one to the next */
    int len, columns, images;
    bool add;
    int blocks, column_parts, row_parts; /* jobs are the product */
} gather;

/* All tiles of one run for the columns that `t` stands on: those of part i of `parts`. */
static void run_tiles(const gather *g, const conv_run *run, hvt_tile *t, int vectors, int i, int parts)
{
    const conv_rows kind = g->list->rows;
    const hvt_conv_kernels *kern = g->op->kern;
    int rows = kind == CONV_IMAGES ? g->images : kind == CONV_WIDTH ? run->count : run->count * g->op->n;
    int repeats = kind == CONV_WIDTH ? g->images : 1;
    int tiles = conv_tiles(rows, kern->rows[vectors - 1]);
    int high = conv_tiles(rows, tiles);
    const float *source = t->a;
    float *target = t->c + run->pixel * g->t_pixel;

    for (int n = conv_part(tiles * repeats, i, parts), end = conv_part(tiles * repeats, i + 1, parts);
         n < end; n++) {
        int image = n / tiles, row = (n % tiles) * high;
        int count = rows - row < high ? rows - row : high;

        if (count <= 0) /* 9 rows in 4 tiles of 3: one tile less */
            continue;
        t->a = source + image * g->s_image + row * t->a_row;
        t->c = target + image * g->t_image + row * t->c_row;
        kern->gather[vectors - 1][count - 1](t);
    }
}

static void gather_job(void *ctx, int job, int thread)
{
    const gather *g = ctx;
    const conv_list *l = g->list;
    const int width = 2 * g->op->kern->vl, steps = conv_tiles(g->columns, width);
    const int rows = job % g->row_parts, columns = job / g->row_parts % g->column_parts;
    const int block = job / g->row_parts / g->column_parts;
    const int first = conv_part(l->runs, block, g->blocks), end = conv_part(l->runs, block + 1, g->blocks);
    hvt_tile t = {
        .len = g->len, .a_entry = g->s_pixel, .b_entry = (long)g->len * CONV_PANEL, .b_row = CONV_PANEL};

    (void)thread;
    t.add = g->add;
    t.a_row = l->rows == CONV_WIDTH ? g->s_pixel * l->shift : g->s_image;
    t.c_row = l->rows == CONV_WIDTH ? g->t_pixel * l->step : g->t_image;
    for (int i = conv_part(steps, columns, g->column_parts);
         i < conv_part(steps, columns + 1, g->column_parts); i++) {
        int column = i * width;
        int count = g->columns - column < width ? g->columns - column : width;

        t.b = g->weights + conv_weight(g->op->taps, g->len, 0, 0, column);
        t.nc = count;
        for (const conv_run *run = l->run + first; run < l->run + end; run++) {
            t.e = l->e + run->entry;
            t.entries = run[1].entry - run->entry;
            if (t.entries == 0 && t.add)
                continue;
            t.a = g->source;
            t.c = g->target + column;
            run_tiles(g, run, &t, count > g->op->kern->vl ? 2 : 1, rows, g->row_parts);
        }
    }
}

/* ---- rows that collide in the cache are copied to a better pitch ---- */

enum { COPY_ROWS = 64 };

typedef struct copy {
    const gather *g;
    float *to;
    long pixel, image; /* floats from one to the next in the copy */
} copy;

/* job = up to COPY_ROWS images of one source pixel */
static void copy_job(void *ctx, int job, int thread)
{
    const copy *c = ctx;
    const gather *g = c->g;
    int parts = conv_tiles(g->images, COPY_ROWS), pixel = job / parts, image = job % parts * COPY_ROWS;
    int images = g->images - image < COPY_ROWS ? g->images - image : COPY_ROWS;

    (void)thread;
    if (!g->list->is_source[pixel])
        return;
    g->op->kern->panels(g->source + pixel * g->s_pixel + image * g->s_image, g->s_image, images, g->len,
                        g->len, (int)c->image, c->to + pixel * c->pixel + image * c->image);
}

static void copy_source(gather *g, void *ws)
{
    const conv_list *l = g->list;
    bool by_image = l->rows == CONV_WIDTH;
    copy c = {.g = g, .to = ws};

    c.pixel = by_image ? l->pitch : (long)g->op->n * l->pitch;
    c.image = by_image ? (long)l->sources * l->pitch : l->pitch;
    hvt__pool_run(g->op->pool, l->sources * conv_tiles(g->images, COPY_ROWS), copy_job, &c);
    g->source = ws;
    g->s_pixel = c.pixel;
    g->s_image = c.image;
}

/* ---- */

static void run_gather(gather *g, void *ws)
{
    const conv_op *op = g->op;
    const conv_list *l = g->list;
    const int threads = hvt__pool_threads(op->pool), steps = conv_tiles(g->columns, 2 * op->kern->vl);
    size_t weights = sizeof(float) * (size_t)op->taps * (size_t)g->len * (size_t)g->columns;
    size_t pixel = sizeof(float) * (size_t)op->n * (size_t)g->len;
    size_t fit = (weights > MANY_WEIGHTS ? LARGE_BLOCK : SMALL_BLOCK) / pixel;
    int each = fit < 1 ? 1 : fit < (size_t)l->pixels ? (int)fit : l->pixels; /* pixels in a block */
    int jobs = threads > 1 ? threads * JOBS_A_THREAD : 1;

    if (g->images == 0)
        return;
    if (l->pitch)
        copy_source(g, ws);
    g->blocks = conv_tiles(l->pixels, each);
    if (g->blocks > l->runs)
        g->blocks = l->runs;
    g->column_parts = g->blocks >= jobs ? 1 : conv_tiles(jobs, g->blocks);
    if (g->column_parts > steps)
        g->column_parts = steps;
    g->row_parts = g->blocks * g->column_parts >= jobs ? 1 : conv_tiles(jobs, g->blocks * g->column_parts);
    hvt__pool_run(op->pool, g->blocks * g->column_parts * g->row_parts, gather_job, g);
}

hvt_status conv_forward_cpu(hvt_op *head, int real, const void *x, const float *w, void *y, void *ws)
{
    const conv_op *op = (const conv_op *)head;
    gather g = {.op = op,
                .list = &op->out,
                .source = x,
                .weights = w,
                .target = y,
                .s_pixel = op->x_pixel,
                .s_image = op->x_image,
                .t_pixel = op->y_pixel,
                .t_image = op->y_image,
                .len = op->c,
                .columns = op->k,
                .images = real * op->rows_per_image};

    run_gather(&g, ws);
    return HVT_OK;
}

hvt_status conv_backward_x_cpu(hvt_op *head, int real, const float *w, const void *dy, void *dx, bool add,
                               void *ws)
{
    const conv_op *op = (const conv_op *)head;
    gather g = {.op = op,
                .list = &op->in,
                .source = dy,
                .weights = op->turned,
                .target = dx,
                .s_pixel = op->y_pixel,
                .s_image = op->y_image,
                .t_pixel = op->x_pixel,
                .t_image = op->x_image,
                .len = op->k,
                .columns = op->c,
                .images = real * op->rows_per_image,
                .add = add};

    (void)w; /* conv_pack turned them */
    run_gather(&g, ws);
    return HVT_OK;
}
