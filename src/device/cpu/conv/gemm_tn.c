/*
 * Direct convolution, backward weights: for every tap, the sum of X' * dY over its list of (input pixel,
 * output pixel), with images as the inner dimension; computed by the gemm_tn kernels.
 *
 * Rows of C or K floats are so far apart that they would map to a few sets of the L1 cache, so x and dy are
 * first packed into panels as narrow as a tile; each pixel once, not once per tap. Floats that only one tap
 * reads stay in place. Work proceeds in *units*, a block of output pixels of a chunk of images, so that
 * packed data is read from the L2 cache.
 *
 * Units are grouped into parts; a part's units are added in order, and the parts along the tree. Blocks,
 * chunks and parts depend only on the shape and the number of images. A thread does a part alone, or a share
 * of its elements, for which it packs all pixels. If that leaves threads without work, or units are large,
 * all threads do a unit of several parts together: they pack its pixels, then split the gradients' elements.
 */
#include "direct_impl.h"

#include <math.h>

#define PARTS_BYTES (4u << 20)  /* the sums of all parts */
#define ALONE_BYTES (4u << 20)  /* for packing a unit per thread, if threads share a part */
#define ROUND_BYTES (16u << 20) /* the units that threads do together */
#define PACKING     0.06        /* relative to the time of a unit's multiplications */
#define WAITING     0.05        /* share of the time lost to barriers when threads work together */
enum {
    MOST_PARTS = 32,
    LEAST_UNITS = 2, /* per part */
    MOST_SHARES = 4,
    SUM = 2048 /* weights per job */
};

typedef struct wgrad {
    const direct *d;
    const void *x, *dy; /* in op->type */
    float *dw, *sums;   /* sums of the first part; sums of the other parts, in order */
    size_t weights;
    char *ws;     /* x_bytes + y_bytes for each thread, or for each part of a round */
    int real;     /* images */
    char *normed; /* with a norm: per thread, the norm of a pixel's images to pack */
    int units, parts;
    int column_parts, row_parts;
    int shares; /* shares of a part; 0: all threads do units together */
    int room;   /* parts of a round */

    /* the current round */
    int group, step; /* its first part; finished units of each part */
    int packs;       /* maximum pack_jobs of a unit */

    /* the current part */
    bool alone; /* one thread does it */
    int first, end;
    float *to, *packed_x, *packed_y;

    /* the current unit */
    int unit, block, image, images;
    int len, depth; /* k-groups */
} wgrad;

/* Pack pixel p of x (a) or of dy in panels of w columns, and prefetch `next`, the following pixel: pixels of
 * about a page are too short for the hardware prefetcher, so packing would wait for memory (16 -> 16, 3x3 at
 * 32x32, 128 images of bf16 on Zen 5: 200 GF/s without, 290 with it; 64 -> 64, 64 images: 255, 405). */
static void pack_pixel(const wgrad *g, bool a, int p, int next, void *room, float *out)
{
    const direct *d = g->d;
    const conv_op *op = &d->op;
    const int c = a ? op->c : op->k;
    const long image = a ? op->x_image : op->y_image, pixel = a ? op->x_pixel : op->y_pixel;
    const size_t at = (size_t)(p * pixel + g->image * image);
    const bool norm = a && op->normed;
    const void *from = hvt__at(a ? g->x : g->dy, op->type, at);
    const long prefetch = norm ? 0 : (next - p) * pixel;
    const int w = a ? d->a_panel : d->b_panel, pitch = a ? d->a_pitch : d->b_pitch;
    const long panel = a ? d->a_next : d->b_next;

    if (norm) {
        conv_norm(op, at, g->images, 0, c, room);
        from = room;
    }
    if (op->vnni2) {
        hvt_vnni2 rows = {from, image, prefetch, g->images, c, g->len, g->depth, pitch, panel};

        (a ? op->kern->pack_a : op->kern->pack_b)(&rows, w, out);
    } else {
        op->typed->pack_panels(from, image, prefetch, g->images, c, w, pitch, panel, out);
    }
}

/* True if x is read in place except for its norm: the norm of a block's pixels, [pixel][image][c], is stored
 * where packed x would be. */
static bool reads_norm_in_place(const direct *d)
{
    return d->op.normed && !d->slots;
}

/* Number of input pixels of this block to pack, and the first: all that it reads, except those just packed
 * for the previous block. */
static int new_pixels_of(const wgrad *g, int *ret_first)
{
    const conv_block *b = &g->d->block[g->block];

    *ret_first = g->alone && g->unit == g->first ? b->reads : b->pack_first;
    if (reads_norm_in_place(g->d))
        *ret_first = b->pixel;
    return reads_norm_in_place(g->d) ? b->end - b->pixel : g->d->slots ? b->pack_end - *ret_first : 0;
}

static size_t norm_bytes(const direct *d)
{
    return (hvt_dtype_size(d->op.type) * (size_t)d->chunk * (size_t)d->op.c + 63) / 64 * 64;
}

static void pack_job(void *ctx, int job, int thread)
{
    const wgrad *g = ctx;
    const direct *d = g->d;
    const conv_op *op = &d->op;
    const conv_block *b = &d->block[g->block];
    void *room = g->normed ? g->normed + (size_t)thread * norm_bytes(d) : NULL;
    int first, new_pixels = new_pixels_of(g, &first);

    if (job < new_pixels && reads_norm_in_place(d)) {
        conv_norm(op, (size_t)((first + job) * op->x_pixel + g->image * op->x_image), g->images, 0, op->c,
                  g->packed_x + (long)job * d->chunk * op->c);
    } else if (job < new_pixels) {
        int i = first + job, last = d->block[d->blocks - 1].pack_end - 1;

        pack_pixel(g, true, d->used[i], d->used[i < last ? i + 1 : i], room,
                   g->packed_x + i % d->slots * d->a_slot);
    } else {
        int i = job - new_pixels, p = b->pixel + i, last = op->oh * op->ow - 1;

        pack_pixel(g, false, p, p < last ? p + 1 : p, NULL, g->packed_y + i * d->b_slot);
    }
}

static int pack_jobs(const wgrad *g)
{
    const conv_block *b = &g->d->block[g->block];
    int first;

    return new_pixels_of(g, &first) + (g->d->pack_y ? b->end - b->pixel : 0);
}

/* Returns what tile `call` of this unit's `calls` tiles prefetches of the next unit's input: a slice of each
 * pixel. */
static hvt_prefetch next_prefetch(const wgrad *g, int call, int calls)
{
    const direct *d = g->d;
    const conv_op *op = &d->op;
    const conv_block *b = &d->block[g->block], *next = g->block + 1 < d->blocks ? b + 1 : d->block;
    const int image = next > b ? g->image : g->image + g->images, left = g->real - image;
    const int images = left < d->chunk ? left : d->chunk;
    const size_t element = hvt_dtype_size(op->type);
    hvt_prefetch a = {0};

    if (!d->slots || !d->pack_y || op->x_image != op->c || images <= 0 || (g->alone && g->unit + 1 == g->end))
        return a;
    /* first dy, then x, as many pixels at a time as this block has of dy */
    const int pixels = b->end - b->pixel, new_pixels = next->pack_end - next->pack_first;
    const int groups = 1 + tile_count(new_pixels, pixels), group = call % groups,
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
        a.pixel = d->used + next->pack_first + first;
        a.step = op->x_pixel * (long)element;
        a.count = new_pixels - first;
    }
    a.from += a.bytes * (size_t)slice;
    return a;
}

/* HVT_FAR in rows of `row` floats */
static long far_of(long row)
{
    const long rows = HVT_FAR / (long)sizeof(float) / row;

    return rows > 1 ? rows * row : row;
}

/* Distance from a row of the norm read in place to the corresponding row of x in the next unit, if pixels
 * have the same distance in both; else 0. */
static long next_of_norm(const wgrad *g)
{
    const direct *d = g->d;

    if (!reads_norm_in_place(d) || (long)d->chunk * d->op.c != d->op.x_pixel)
        return 0;
    return (const float *)g->x + (long)d->block[g->block].end * d->op.x_pixel - g->packed_x;
}

/* Returns the address of pixel 0 of the norm, since entries count pixels of the image. */
static const float *norm_origin(const wgrad *g, const hvt_tile *t)
{
    return (const float *)((uintptr_t)g->packed_x -
                           sizeof(float) * (uintptr_t)g->d->block[g->block].pixel * (uintptr_t)t->a_entry);
}

static void gemm_job(void *ctx, int job, int thread)
{
    const wgrad *g = ctx;
    const direct *d = g->d;
    const conv_op *op = &d->op;
    const int rows = job % g->row_parts, columns = job / g->row_parts % g->column_parts;
    const int tap = job / g->row_parts / g->column_parts * d->taps_per_tile;
    const int *first = &d->first[g->block * op->taps + tap];
    const int width = 2 * op->kern->vl, steps = tile_count(op->k, width);
    const int calls = op->taps / d->taps_per_tile * steps * d->a_tiles;
    const int first_step = conv_part(steps, columns, g->column_parts),
              first_tile = conv_part(d->a_tiles, rows, g->row_parts);
    const bool overwrite = g->unit == g->first;
    /* the first tile to read rows in place waits for memory, so they are prefetched (24 -> 144, 1x1 at 56x56,
     * 16 images on Zen 4: 11 ms if to the L1 cache, 24 rows ahead, 7 with this) */
    const bool x_in_place = op->taps == 1 && !d->slots && !op->normed,
               y_in_place = op->taps == 1 && !d->pack_y;
    hvt_tile t = {.e = d->e + first[0],
                  .entries = first[d->taps_per_tile] - first[0],
                  .len = g->len,
                  .depth = g->depth,
                  .high = d->a_rows,
                  .c_row = CONV_PANEL};

    if (t.entries == 0 && !overwrite)
        return;
    t.add = !overwrite;
    t.stream = d->stream && overwrite && d->blocks == 1 && d->chunk >= op->n && (uintptr_t)g->to % 64 == 0;
    t.a_entry = d->slots ? d->a_slot : reads_norm_in_place(d) ? (long)d->chunk * op->c : op->x_pixel;
    t.a_row = d->slots ? d->a_pitch : op->x_image;
    t.b_entry = d->pack_y ? d->b_slot : op->y_pixel;
    t.b_row = d->pack_y ? d->b_pitch : op->y_image;
    if (d->taps_per_tile == 3) { /* the next tap reads the same x for the previous pixel of dy */
        t.own = first[1] - first[0];
        t.shared = first[2] - first[1];
        t.b_next = -t.b_entry;
        t.c_next = (long)op->c * CONV_PANEL;
    }
    if (op->kern->begin)
        op->kern->begin(t.high, t.depth);
    for (int i = first_step; i < conv_part(steps, columns + 1, g->column_parts); i++) {
        int column = i * width, vectors;

        t.nc = op->k - column < width ? op->k - column : width;
        vectors = d->taps_per_tile == 3 ? 3 : t.nc > op->kern->vl ? 2 : 1;
        t.b = d->pack_y ? g->packed_y + column / d->b_panel * d->b_next + column % d->b_panel
                        : (const float *)g->dy + g->image * op->y_image + column;
        for (int j = first_tile; j < conv_part(d->a_tiles, rows + 1, g->row_parts); j++) {
            int panel = j / d->panel_tiles, row = j % d->panel_tiles * d->a_rows;
            int channel = panel * d->a_panel + row;
            int count = d->a_panel - row < d->a_rows ? d->a_panel - row : d->a_rows;

            if (count > op->c - channel)
                count = op->c - channel;
            if (count <= 0)
                continue;
            t.a_ahead = i != first_step ? 0 : x_in_place ? far_of(t.a_row) : next_of_norm(g);
            t.b_ahead = y_in_place && j == first_tile ? far_of(t.b_row) : 0;
            t.prefetch = next_prefetch(g, (tap / d->taps_per_tile * steps + i) * d->a_tiles + j, calls);
            t.a = d->slots                 ? g->packed_x + panel * d->a_next + row
                  : reads_norm_in_place(d) ? norm_origin(g, &t) + channel
                                           : (const float *)g->x + g->image * op->x_image + channel;
            t.rows = count;
            t.c = g->to + conv_weight(op->taps, op->c, tap, channel, column);
            op->kern->gemm_tn[vectors - 1][count - 1](&t);
            if (overwrite && column + t.nc == op->k && op->k % CONV_PANEL) /* the last panel's padding */
                for (int n = 0; n < count * d->taps_per_tile; n++)
                    memset(t.c + n / count * t.c_next + n % count * (long)CONV_PANEL + t.nc, 0,
                           sizeof(float) * (size_t)(CONV_PANEL - op->k % CONV_PANEL));
        }
    }
    if (op->kern->end)
        op->kern->end();
    if (t.stream)
        hvt__fence();
}

static void set_part(wgrad *g, int part, bool alone, int at)
{
    const direct *d = g->d;

    g->alone = alone;
    g->first = conv_part(g->units, part, g->parts);
    g->end = conv_part(g->units, part + 1, g->parts);
    g->to = part ? g->sums + (size_t)(part - 1) * g->weights : g->dw;
    g->packed_x = (float *)(g->ws + (size_t)at * (d->x_bytes + d->y_bytes));
    g->packed_y = (float *)((char *)g->packed_x + d->x_bytes);
}

static void set_unit(wgrad *g, int unit)
{
    const direct *d = g->d;

    g->unit = unit;
    g->block = unit % d->blocks;
    g->image = unit / d->blocks * d->chunk;
    g->images = g->real - g->image < d->chunk ? g->real - g->image : d->chunk;
    g->len = conv_k_groups(d->op.kern, g->images, &g->depth);
}

static int gemm_jobs(const wgrad *g)
{
    return g->d->op.taps / g->d->taps_per_tile * g->column_parts * g->row_parts;
}

/* job = a share of a part */
static void part_job(void *ctx, int job, int thread)
{
    wgrad g = *(const wgrad *)ctx;
    const int share = job % g.shares, jobs = gemm_jobs(&g);

    set_part(&g, job / g.shares, true, thread);
    for (int unit = g.first; unit < g.end; unit++) {
        set_unit(&g, unit);
        for (int i = 0; i < pack_jobs(&g); i++)
            pack_job(&g, i, thread);
        for (int i = conv_part(jobs, share, g.shares); i < conv_part(jobs, share + 1, g.shares); i++)
            gemm_job(&g, i, thread);
    }
}

/* Select the unit of the round's i-th part; false: it has no more. */
static bool set_round(wgrad *g, int i)
{
    set_part(g, g->group + i, g->room > 1, i);
    if (g->first + g->step >= g->end)
        return false;
    set_unit(g, g->first + g->step);
    return true;
}

static void round_pack_job(void *ctx, int job, int thread)
{
    wgrad g = *(const wgrad *)ctx;

    if (set_round(&g, job / g.packs) && job % g.packs < pack_jobs(&g))
        pack_job(&g, job % g.packs, thread);
}

static void round_gemm_job(void *ctx, int job, int thread)
{
    wgrad g = *(const wgrad *)ctx;

    if (set_round(&g, job / gemm_jobs(&g)))
        gemm_job(&g, job % gemm_jobs(&g), thread);
}

static void run_rounds(wgrad *g)
{
    hvt_thread_pool *pool = g->d->op.pool;

    for (g->group = 0; g->group < g->parts; g->group += g->room) {
        const int left = g->parts - g->group, count = left < g->room ? left : g->room;

        for (g->step = 0; g->step < tile_count(g->units, g->parts); g->step++) {
            wgrad one = *g;
            bool any = false;

            g->packs = 0;
            for (int i = 0; i < count; i++)
                if (set_round(&one, i)) {
                    any = true;
                    g->packs = pack_jobs(&one) > g->packs ? pack_jobs(&one) : g->packs;
                }
            if (g->packs)
                hvt__parallel_for(pool, count * g->packs, round_pack_job, g);
            if (any)
                hvt__parallel_for(pool, count * gemm_jobs(g), round_gemm_job, g);
        }
    }
}

static void sum_job(void *ctx, int job, int thread)
{
    const wgrad *g = ctx;
    const size_t first = (size_t)job * SUM, left = g->weights - first;
    const void *in[MOST_PARTS] = {g->dw};
    void *const out = g->dw;

    for (int i = 1; i < g->parts; i++)
        in[i] = g->sums + (size_t)(i - 1) * g->weights;
    hvt__cpu(g->d->op.head.dev)
        ->isa->el->in[HVT_F32]
        ->reduce(first, left < SUM ? left : SUM, in, g->parts, &out, 1);
}

static int parts_of(const direct *d, int units, size_t weights)
{
    const int most = (int)(PARTS_BYTES / sizeof(float) / weights), parts = units / LEAST_UNITS;
    const int least = most < MOST_PARTS ? most : MOST_PARTS;

    return parts < 1 || least < 1 ? 1 : parts < least ? parts : least;
}

/* Cut a part's columns and rows of tiles for this number of shares; returns the number of pieces. */
static int cut_shares(const direct *d, int shares, int *ret_columns, int *ret_rows)
{
    const int steps = tile_count(d->op.k, 2 * d->op.kern->vl);
    int rows;

    *ret_columns = shares < steps ? shares : steps;
    rows = tile_count(shares, *ret_columns);
    *ret_rows = rows < d->a_tiles ? rows : d->a_tiles;
    return d->op.taps / d->taps_per_tile * *ret_columns * *ret_rows;
}

/* Distribute work by the number of threads: in shares that pack everything they read, or in rounds. */
static void cut_jobs(wgrad *g)
{
    const direct *d = g->d;
    const conv_op *op = &d->op;
    const int threads = hvt__thread_pool_size(op->pool), steps = tile_count(op->k, 2 * op->kern->vl),
              taps = op->taps / d->taps_per_tile;
    const size_t unit = d->x_bytes + d->y_bytes;
    const int most = g->parts < threads ? g->parts : threads, longest = tile_count(g->units, g->parts);
    double least;
    int jobs;

    g->shares = 0;
    g->room = unit * (size_t)most <= ROUND_BYTES ? most : (int)(ROUND_BYTES / unit);
    g->room = g->room < 1 ? 1 : g->room;
    conv_share(op, g->room * taps, steps, d->a_tiles, &g->column_parts, &g->row_parts);
    jobs = gemm_jobs(g);
    least = (1 + WAITING) * tile_count(g->parts, g->room) * longest *
            (conv_time(g->room * jobs, threads, 1.0 / jobs) + PACKING * g->room / threads);
    for (int shares = 1; threads > 1 && unit <= ALONE_BYTES && shares <= MOST_SHARES; shares++) {
        int columns, rows, all = cut_shares(d, shares, &columns, &rows);
        const double job = (double)tile_count(all, shares) / all + PACKING,
                     time = longest * conv_time(g->parts * shares, threads, job);

        if (time < least) {
            least = time;
            g->shares = shares;
            g->column_parts = columns;
            g->row_parts = rows;
        }
    }
}

static void cut_units(wgrad *g, int images)
{
    g->real = images;
    g->units = g->d->blocks * tile_count(images, g->d->chunk);
    g->parts = parts_of(g->d, g->units, g->weights);
}

/* Cut for all images, as bytes() does. */
static wgrad make_wgrad(const conv_op *op)
{
    wgrad g = {.d = direct_of(op), .weights = conv_block_weights(op)};

    cut_units(&g, op->n);
    cut_jobs(&g);
    return g;
}

/* Bytes for packed pixels. */
static size_t packed_bytes(const wgrad *g)
{
    const int each = g->shares ? hvt__thread_pool_size(g->d->op.pool) : g->room;

    return (size_t)each * (g->d->x_bytes + g->d->y_bytes);
}

size_t hvt__direct_backward_w_bytes(const conv_op *op)
{
    const wgrad g = make_wgrad(op);

    return packed_bytes(&g) + sizeof(float) * g.weights * (size_t)(g.parts - 1) +
           (direct_takes_norm(op) ? norm_bytes(g.d) * (size_t)hvt__thread_pool_size(op->pool) : 0);
}

static void backward_w(const conv_op *op, int real, const void *x, const void *dy, float *dw, void *ws)
{
    wgrad g = make_wgrad(op);

    cut_units(&g, real * op->rows_per_image);
    g.x = x;
    g.dy = dy;
    g.dw = dw;
    g.sums = ws;
    g.ws = (char *)(g.sums + (size_t)(g.parts - 1) * g.weights);
    if (op->normed)
        g.normed = g.ws + packed_bytes(&g);
    if (g.shares)
        hvt__parallel_for(op->pool, g.parts * g.shares, part_job, &g);
    else
        run_rounds(&g);
    if (g.parts > 1)
        hvt__parallel_for(op->pool, (int)((g.weights + SUM - 1) / SUM), sum_job, &g);
}

void hvt__direct_backward_w(const conv_op *op, int real, const void *x, const void *dy, float *dw, void *ws)
{
    for (int b = 0; b < op->blocks; b++)
        backward_w(op, real, hvt__at(x, op->type, (size_t)b * (size_t)op->c),
                   hvt__at(dy, op->type, (size_t)b * (size_t)op->k), dw + (size_t)b * conv_block_weights(op),
                   ws);
    if (op->c != op->depth)
        hvt__conv_clear_between_groups(op, dw);
}
