/*
 * Backward weights: for every tap, the sum over its list of (input pixel, output pixel) of X' * dY, where the
 * inner step runs over images.
 *
 * Rows of C or K floats lie so far apart that they would fall into the same few sets of the first-level
 * cache, so x and dy are first copied into panels as narrow as a tile; each pixel once, not once per tap.
 * Work goes block by block (output pixels x images) so that the copies are read from the second-level cache.
 * Blocks are a matter of the shape; within one, threads copy pixels and then share the gradient's elements,
 * which add the blocks' sums in the order of blocks.
 */
#include "conv_impl.h"

#include <string.h>

#define JOBS_A_THREAD 8

typedef struct wgrad {
    const conv_op *op;
    const void *x, *dy; /* of op->type */
    float *dw, *x_copy, *y_copy;
    int block, image, images; /* this chunk's */
    int len, depth;           /* its words */
    int column_parts, row_parts;
} wgrad;

/* ---- copies: job = one pixel of x or of dy ---- */

/* Pixel p of x (a) or of dy in panels of w columns. `next` comes after it and is asked for meanwhile: else
 * copies wait for memory, as pixels of a page or so are too short for processors to foresee much (16 -> 16,
 * 3x3 at 32x32, 128 images of bf16 on Zen 5: 200 GF/s without, 290 with it; 64 -> 64, 64 images: 255, 405).
 */
static void arrange(const wgrad *g, bool a, int p, int next, int w, int pitch, float *out)
{
    const conv_op *op = g->op;
    const int c = a ? op->c : op->k;
    const long image = a ? op->x_image : op->y_image, pixel = a ? op->x_pixel : op->y_pixel;
    const void *from = hvt__at(a ? g->x : g->dy, op->type, (size_t)(p * pixel + g->image * image));
    const long ahead = (next - p) * pixel;

    if (op->pairs) {
        hvt_pairs pairs = {from, image, ahead, g->images, c, g->len, g->depth};

        (a ? op->kern->arrange_a : op->kern->arrange_b)(&pairs, w, out);
    } else {
        op->typed->panels(from, image, ahead, g->images, c, w, pitch, out);
    }
}

static void copy_job(void *ctx, int job, int thread)
{
    const wgrad *g = ctx;
    const conv_op *op = g->op;
    const conv_block *b = &op->block[g->block];
    int fresh = op->slots ? b->done - b->fresh : 0;

    (void)thread;
    if (job < fresh) {
        int i = b->fresh + job, last = op->block[op->blocks - 1].done - 1;

        arrange(g, true, op->used[i], op->used[i < last ? i + 1 : i], op->a_rows, op->kern->pitch,
                g->x_copy + i % op->slots * op->a_slot);
    } else {
        int i = job - fresh, p = b->pixel + i, last = op->oh * op->ow - 1;

        arrange(g, false, p, p < last ? p + 1 : p, CONV_PANEL, CONV_PANEL, g->y_copy + i * op->b_slot);
    }
}

static int copies(const wgrad *g)
{
    const conv_block *b = &g->op->block[g->block];

    return (g->op->slots ? b->done - b->fresh : 0) + (g->op->copy_y ? b->end - b->pixel : 0);
}

/* ---- products: job = one tap, a part of the columns, a part of the tiles along c ---- */

static void product_job(void *ctx, int job, int thread)
{
    const wgrad *g = ctx;
    const conv_op *op = g->op;
    const int rows = job % g->row_parts, columns = job / g->row_parts % g->column_parts;
    const int tap = job / g->row_parts / g->column_parts;
    const int *first = &op->first[g->block * op->taps + tap];
    const int width = op->vectors * op->kern->vl, steps = conv_tiles(op->k, width);
    const bool fresh = g->block == 0 && g->image == 0;
    hvt_tile t = {.e = op->e + first[0],
                  .entries = first[1] - first[0],
                  .len = g->len,
                  .depth = g->depth,
                  .high = op->a_rows,
                  .c_row = CONV_PANEL};

    (void)thread;
    if (t.entries == 0 && !fresh)
        return;
    t.add = !fresh;
    t.stream = op->stream && fresh && op->blocks == 1 && op->chunk >= op->n && (uintptr_t)g->dw % 64 == 0;
    t.a_entry = op->slots ? op->a_slot : op->x_pixel;
    t.a_row = op->slots ? op->kern->pitch : op->x_image;
    t.b_entry = op->copy_y ? op->b_slot : op->y_pixel;
    t.b_row = op->copy_y ? CONV_PANEL : op->y_image;
    if (op->kern->begin)
        op->kern->begin(t.high, t.depth);
    for (int i = conv_part(steps, columns, g->column_parts);
         i < conv_part(steps, columns + 1, g->column_parts); i++) {
        int column = i * width, vectors;

        t.nc = op->k - column < width ? op->k - column : width;
        vectors = t.nc > op->kern->vl ? 2 : 1;
        t.b = op->copy_y ? g->y_copy + (long)(column / CONV_PANEL) * g->len * CONV_PANEL + column % CONV_PANEL
                         : (const float *)g->dy + g->image * op->y_image + column;
        for (int j = conv_part(op->a_tiles, rows, g->row_parts);
             j < conv_part(op->a_tiles, rows + 1, g->row_parts); j++) {
            int channel = j * op->a_rows;
            int count = op->c - channel < op->a_rows ? op->c - channel : op->a_rows;

            if (count <= 0)
                continue;
            t.a = op->slots ? g->x_copy + (long)j * g->len * op->kern->pitch
                            : (const float *)g->x + g->image * op->x_image + channel;
            t.rows = count;
            t.c = g->dw + conv_weight(op->taps, op->c, tap, channel, column);
            op->kern->wgrad[vectors - 1][count - 1](&t);
            if (fresh && column + t.nc == op->k && op->k % CONV_PANEL) /* the last panel's padding */
                for (int n = 0; n < count; n++)
                    memset(t.c + n * (long)CONV_PANEL + t.nc, 0,
                           sizeof(float) * (size_t)(CONV_PANEL - op->k % CONV_PANEL));
        }
    }
    if (op->kern->end)
        op->kern->end();
    if (t.stream)
        conv_fence();
}

hvt_status conv_backward_w_cpu(hvt_op *head, int real, const void *x, const void *dy, float *dw, void *ws)
{
    const conv_op *op = (const conv_op *)head;
    const int threads = hvt__pool_threads(op->pool), images = real * op->rows_per_image;
    const int steps = conv_tiles(op->k, op->vectors * op->kern->vl);
    wgrad g = {
        .op = op, .x = x, .dy = dy, .dw = dw, .x_copy = ws, .y_copy = (float *)((char *)ws + op->x_bytes)};
    int jobs = threads > 1 ? conv_tiles(threads * JOBS_A_THREAD, op->taps) : 1;

    if (images == 0) {
        memset(dw, 0,
               sizeof *dw * (size_t)conv_panels(op->k) * CONV_PANEL * (size_t)op->taps * (size_t)op->c);
        return HVT_OK;
    }
    g.column_parts = jobs < steps ? jobs : steps;
    jobs = conv_tiles(jobs, g.column_parts);
    g.row_parts = jobs < op->a_tiles ? jobs : op->a_tiles;
    for (g.image = 0; g.image < images; g.image += op->chunk) {
        g.images = images - g.image < op->chunk ? images - g.image : op->chunk;
        g.len = conv_words(op->kern, g.images, &g.depth);
        for (g.block = 0; g.block < op->blocks; g.block++) {
            if (copies(&g))
                hvt__pool_run(op->pool, copies(&g), copy_job, &g);
            hvt__pool_run(op->pool, op->taps * g.column_parts * g.row_parts, product_job, &g);
        }
    }
    return HVT_OK;
}
