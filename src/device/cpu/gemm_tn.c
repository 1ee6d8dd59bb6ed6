/*
 * Backward weights: for every tap, the sum over its list of (input pixel, output pixel) of X' * dY, where the
 * inner dimension is the images; computed by the gemm_tn kernels.
 *
 * Rows of C or K floats are so far apart that they would map to a few sets of the L1 cache, so x and dy are
 * first packed into panels as narrow as a tile; each pixel once, not once per tap. Work goes block by block
 * (output pixels x images), so that packed data is read from the L2 cache. Blocks depend on the shape alone;
 * within one, threads pack pixels and then split the gradient's elements, which accumulate the blocks' sums
 * in block order.
 */
#include "conv_impl.h"

#include <string.h>

typedef struct wgrad {
    const conv_op *op;
    const void *x, *dy; /* of op->type */
    float *dw, *packed_x, *packed_y;
    int real;                 /* images */
    int block, image, images; /* of this chunk */
    int len, depth;           /* of this chunk, in k-groups */
    int column_parts, row_parts;
} wgrad;

/* ---- packing: job = one pixel of x or of dy ---- */

/* Pack pixel p of x (a) or of dy in panels of w columns. `next` is packed afterwards and prefetched
 * meanwhile: pixels of a page or so are too short for the hardware prefetcher, and packing would wait for
 * memory (16 -> 16, 3x3 at 32x32, 128 images of bf16 on Zen 5: 200 GF/s without, 290 with it; 64 -> 64, 64
 * images: 255, 405). */
static void pack_pixel(const wgrad *g, bool a, int p, int next, float *out)
{
    const conv_op *op = g->op;
    const int c = a ? op->c : op->k;
    const long image = a ? op->x_image : op->y_image, pixel = a ? op->x_pixel : op->y_pixel;
    const void *from = hvt__at(a ? g->x : g->dy, op->type, (size_t)(p * pixel + g->image * image));
    const long prefetch = (next - p) * pixel;
    const int w = a ? op->a_panel : CONV_PANEL, pitch = a ? op->a_pitch : op->b_pitch;

    if (op->vnni2) {
        hvt_vnni2 rows = {from, image, prefetch, g->images, c, g->len, g->depth, pitch};

        (a ? op->kern->pack_a : op->kern->pack_b)(&rows, w, out);
    } else {
        op->typed->pack_panels(from, image, prefetch, g->images, c, w, pitch, out);
    }
}

static void pack_job(void *ctx, int job, int thread)
{
    const wgrad *g = ctx;
    const conv_op *op = g->op;
    const conv_block *b = &op->block[g->block];
    int new_pixels = op->slots ? b->pack_end - b->pack_first : 0;

    (void)thread;
    if (job < new_pixels) {
        int i = b->pack_first + job, last = op->block[op->blocks - 1].pack_end - 1;

        pack_pixel(g, true, op->used[i], op->used[i < last ? i + 1 : i],
                   g->packed_x + i % op->slots * op->a_slot);
    } else {
        int i = job - new_pixels, p = b->pixel + i, last = op->oh * op->ow - 1;

        pack_pixel(g, false, p, p < last ? p + 1 : p, g->packed_y + i * op->b_slot);
    }
}

static int pack_jobs(const wgrad *g)
{
    const conv_block *b = &g->op->block[g->block];

    return (g->op->slots ? b->pack_end - b->pack_first : 0) + (g->op->pack_y ? b->end - b->pixel : 0);
}

/* What tile number `call` of this block's `calls` prefetches of the next block's input: a slice of each pixel
 * at a time. */
static hvt_prefetch next_prefetch(const wgrad *g, int call, int calls)
{
    const conv_op *op = g->op;
    const conv_block *b = &op->block[g->block], *next = g->block + 1 < op->blocks ? b + 1 : op->block;
    const int image = next > b ? g->image : g->image + g->images, left = g->real - image;
    const int images = left < op->chunk ? left : op->chunk;
    const size_t element = hvt_dtype_size(op->type);
    hvt_prefetch a = {0};

    if (!op->slots || !op->pack_y || op->x_image != op->c || images <= 0)
        return a;
    /* first dy, then x, as many pixels at a time as this block has of dy */
    const int pixels = b->end - b->pixel, new_pixels = next->pack_end - next->pack_first;
    const int groups = 1 + conv_tiles(new_pixels, pixels), group = call % groups,
              first = (group - 1) * pixels;
    const int slice = call / groups, slices = calls / groups;
    const size_t whole = (size_t)images * element * (size_t)(group ? op->c : op->k);

    if (slice >= slices)
        return a;
    a.bytes = (whole / (size_t)slices + 63) / 64 * 64;
    if (group == 0) {
        a.from = hvt__at(g->dy, op->type, (size_t)(next->pixel * op->y_pixel + image * op->y_image));
        a.step = op->y_pixel * (long)element;
        a.count = next->end - next->pixel;
    } else {
        a.from = hvt__at(g->x, op->type, (size_t)(image * op->x_image));
        a.pixel = op->used + next->pack_first + first;
        a.step = op->x_pixel * (long)element;
        a.count = new_pixels - first;
    }
    a.from += a.bytes * (size_t)slice;
    return a;
}

/* ---- products: job = one tap or a row of three, a part of the columns, a part of the tiles along c ---- */

static void gemm_job(void *ctx, int job, int thread)
{
    const wgrad *g = ctx;
    const conv_op *op = g->op;
    const int rows = job % g->row_parts, columns = job / g->row_parts % g->column_parts;
    const int tap = job / g->row_parts / g->column_parts * op->taps_per_tile;
    const int *first = &op->first[g->block * op->taps + tap];
    const int width = 2 * op->kern->vl, steps = conv_tiles(op->k, width);
    const int calls = op->taps / op->taps_per_tile * steps * op->a_tiles;
    const bool overwrite = g->block == 0 && g->image == 0;
    hvt_tile t = {.e = op->e + first[0],
                  .entries = first[op->taps_per_tile] - first[0],
                  .len = g->len,
                  .depth = g->depth,
                  .high = op->a_rows,
                  .c_row = CONV_PANEL};

    (void)thread;
    if (t.entries == 0 && !overwrite)
        return;
    t.add = !overwrite;
    t.stream = op->stream && overwrite && op->blocks == 1 && op->chunk >= op->n && (uintptr_t)g->dw % 64 == 0;
    t.a_entry = op->slots ? op->a_slot : op->x_pixel;
    t.a_row = op->slots ? op->a_pitch : op->x_image;
    t.b_entry = op->pack_y ? op->b_slot : op->y_pixel;
    t.b_row = op->pack_y ? op->b_pitch : op->y_image;
    if (op->taps_per_tile == 3) { /* the next tap reads the same x for the previous pixel of dy */
        t.own = first[1] - first[0];
        t.shared = first[2] - first[1];
        t.b_next = -t.b_entry;
        t.c_next = (long)op->c * CONV_PANEL;
    }
    if (op->kern->begin)
        op->kern->begin(t.high, t.depth);
    for (int i = conv_part(steps, columns, g->column_parts);
         i < conv_part(steps, columns + 1, g->column_parts); i++) {
        int column = i * width, vectors;

        t.nc = op->k - column < width ? op->k - column : width;
        vectors = op->taps_per_tile == 3 ? 3 : t.nc > op->kern->vl ? 2 : 1;
        t.b = op->pack_y
                  ? g->packed_y + (long)(column / CONV_PANEL) * g->len * op->b_pitch + column % CONV_PANEL
                  : (const float *)g->dy + g->image * op->y_image + column;
        for (int j = conv_part(op->a_tiles, rows, g->row_parts);
             j < conv_part(op->a_tiles, rows + 1, g->row_parts); j++) {
            int panel = j / op->panel_tiles, row = j % op->panel_tiles * op->a_rows;
            int channel = panel * op->a_panel + row;
            int count = op->a_panel - row < op->a_rows ? op->a_panel - row : op->a_rows;

            if (count > op->c - channel)
                count = op->c - channel;
            if (count <= 0)
                continue;
            t.prefetch = next_prefetch(g, (tap / op->taps_per_tile * steps + i) * op->a_tiles + j, calls);
            t.a = op->slots ? g->packed_x + (long)panel * g->len * op->a_pitch + row
                            : (const float *)g->x + g->image * op->x_image + channel;
            t.rows = count;
            t.c = g->dw + conv_weight(op->taps, op->c, tap, channel, column);
            op->kern->gemm_tn[vectors - 1][count - 1](&t);
            if (overwrite && column + t.nc == op->k && op->k % CONV_PANEL) /* the last panel's padding */
                for (int n = 0; n < count * op->taps_per_tile; n++)
                    memset(t.c + n / count * t.c_next + n % count * (long)CONV_PANEL + t.nc, 0,
                           sizeof(float) * (size_t)(CONV_PANEL - op->k % CONV_PANEL));
        }
    }
    if (op->kern->end)
        op->kern->end();
    if (t.stream)
        conv_fence();
}

static void run_blocks(const conv_op *op, int images, const void *x, const void *dy, float *dw, void *ws)
{
    const int groups = op->taps / op->taps_per_tile;
    wgrad g = {.op = op,
               .x = x,
               .dy = dy,
               .dw = dw,
               .packed_x = ws,
               .packed_y = (float *)((char *)ws + op->x_bytes),
               .real = images};

    conv_share(op, groups, conv_tiles(op->k, 2 * op->kern->vl), op->a_tiles, &g.column_parts, &g.row_parts);
    for (g.image = 0; g.image < images; g.image += op->chunk) {
        g.images = images - g.image < op->chunk ? images - g.image : op->chunk;
        g.len = conv_k_groups(op->kern, g.images, &g.depth);
        for (g.block = 0; g.block < op->blocks; g.block++) {
            if (pack_jobs(&g))
                hvt__parallel_for(op->pool, pack_jobs(&g), pack_job, &g);
            hvt__parallel_for(op->pool, groups * g.column_parts * g.row_parts, gemm_job, &g);
        }
    }
}

hvt_status hvt__conv_backward_w_cpu(hvt_op *head, int real, const void *x, const void *dy, float *dw,
                                    void *ws)
{
    const conv_op *op = (const conv_op *)head;

    if (real == 0)
        memset(dw, 0,
               sizeof *dw * (size_t)conv_panels(op->k) * CONV_PANEL * (size_t)op->taps * (size_t)op->c);
    else if (op->winograd)
        hvt__winograd_backward_w(op, real, x, dy, dw, ws);
    else
        run_blocks(op, real * op->rows_per_image, x, dy, dw, ws);
    return HVT_OK;
}
