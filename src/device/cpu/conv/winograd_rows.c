/* Rows of tiles of Winograd convolutions: their positions in planes, and the transform of their pixels. */
#include "winograd.h"

pass hvt__winograd_pass(const conv_op *op, bool back, int real, const void *from, const void *to)
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

run hvt__winograd_run(const pass *g, int row, int end)
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

void hvt__winograd_pixels(const conv_op *op, const plane *p, int image, int y, int x, int size, void **out)
{
    for (int i = 0; i < size; i++)
        for (int j = 0; j < size; j++) {
            const bool inside = y + i >= 0 && y + i < p->h && x + j >= 0 && x + j < p->w;
            const long at = ((y + i) * (long)p->w + x + j) * p->pixel + image * p->image;

            out[i * size + j] = inside ? hvt__at(p->at, op->type, (size_t)at) : NULL;
        }
}

void hvt__winograd_transform(const pass *g, const plane *p, bool grad, int row, int end, matrix to)
{
    const long step = row_step(g, p);

    while (row < end) {
        const run r = hvt__winograd_run(g, row, end);
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
            hvt__winograd_pixels(g->op, p, r.image, r.y, r.x, g->m, t.from);
        else
            hvt__winograd_pixels(g->op, p, r.image, r.y - g->pad, r.x - g->pad, g->m + 2, t.from);
        g->op->typed->tile(&t, g->m, grad);
        to.at += (long)r.count * to.pitch;
        row += r.count;
    }
}
