/*
 * Direct convolution, forward and backward data: for every target pixel, the sum of rows * weights over its
 * list of (source pixel, tap), computed by the gemm_nn kernels. One function does both passes, which differ
 * in the list, the packed weights and the strides.
 *
 * A norm of x (conv.set_norm) is computed by each job for its block of pixels, or in the copy of x if several
 * jobs share a block or x is copied anyway.
 *
 * Loops, outermost first: blocks of pixels, panels of weights, pixels, tiles. A block's source rows stay in
 * the cache while the panels stream past. Threads split this space. One thread computes each target element,
 * with the same chain of multiply-adds in every tile, so the bits depend neither on threads nor on the batch
 * or the position in it.
 */
#include "direct_impl.h"

#include <math.h>

/* Source bytes of a block. A block should not evict small weights from the cache; large weights stream
 * through, less often with larger blocks. */
#define SMALL_BLOCK  (64 << 10)
#define LARGE_BLOCK  (1 << 20)
#define MANY_WEIGHTS (256 << 10)
#define SHARED       0.03 /* share of a block's time lost if several jobs read it */
#define MORE         0.01 /* the same for smaller blocks */
#define NARROW_ROW   32   /* k-groups */

typedef struct pass {
    const conv_op *op;
    const conv_list *list;
    const void *source; /* in op->type until packed */
    const float *weights;
    const void *unpacked; /* weights of which each thread packs a panel at a time into `weights`; or NULL */
    void *target;
    long s_pixel, s_image;         /* strides in elements, in k-groups once packed */
    long t_pixel, t_image;         /* elements */
    int channels, columns, images; /* channels of the source; columns and images of the target */
    bool add, stream;
    int blocks, column_parts, row_parts; /* jobs: their product */
    float *copy;                         /* copy of the source, with these strides in k-groups */
    long c_pixel, c_image;
    char *normed;      /* norm of each thread's block, if forward's source has one that is not in the copy */
    size_t norm_bytes; /* per thread */
} pass;

/* Compute a tile with first target element `to` and rows `row` apart. The first `skip` rows also belong to
 * another tile and are not stored; skip is 0 for kernels that store directly to the target. */
static void run_tile(const pass *g, hvt_tile *t, hvt_kernel *kernel, int skip, long to, long row)
{
    _Alignas(64) float tile[CONV_TILE_ROWS * CONV_PANEL];

    if (g->op->type == HVT_F32 || (g->op->vnni2 && g->op->kern->stores_bf16)) {
        t->c = hvt__at(g->target, g->op->type, (size_t)to);
        t->c_row = row;
        t->c_next = g->t_pixel;
        t->add = g->add;
        t->c_bf16 = g->op->vnni2;
        t->stream = g->stream;
        kernel(t);
        return;
    }
    t->c = tile;
    t->c_row = CONV_PANEL;
    t->c_next = CONV_PANEL / 2;
    kernel(t);
    for (int i = 0; i < (t->shared ? 2 : 1); i++)
        g->op->typed->store_tile(t->rows - skip, t->nc, tile + skip * CONV_PANEL + i * t->c_next, CONV_PANEL,
                                 hvt__at(g->target, g->op->type, (size_t)(to + i * g->t_pixel + skip * row)),
                                 row, g->add);
}

/* Narrow rows take less time to multiply than to load from memory, so prefetch the next tile's rows of the
 * last entry, the only new source pixel, and with two_pixels also those of the last shared entry. After the
 * last tile these are the next pixel's first. (16 -> 16, 3x3 at 32x32, 128 images on Zen 5: 120 GF/s without,
 * 170 with it while other processes use the memory, otherwise 175 either way. No gain with rows of 64
 * k-groups or more.) */
static void prefetch_next(const hvt_tile *t, int entry, int high)
{
    const float *a = t->a + t->e[entry].a * t->a_entry + high * t->a_row;

    for (int i = 0; i < high; i++, a += t->a_row)
        for (int k = 0; k < t->len; k += 16)
            __builtin_prefetch(a + k, 0, 2);
}

/* Run part i of `parts` of a run's tiles, for the columns from `column` on, which `t` points to. fresh: no
 * other columns have read its source yet. Unless its rows are narrow, the source is then prefetched line by
 * line during the previous tile. (144 -> 24, 1x1 at 56x56, 16 images on Zen 4: 48 GF/s without, 80 with it.)
 */
static void run_tiles(const pass *g, const conv_run *run, hvt_tile *t, int column, bool fresh, int i,
                      int parts)
{
    const conv_rows kind = g->list->rows;
    const hvt_conv_kernels *kern = g->op->kern;
    /* with missing images, a pixel's images are not adjacent to the next pixel's */
    const bool by_pixel = kind == CONV_BOTH && g->images < g->op->n;
    int rows = kind == CONV_WIDTH                ? run->count
               : kind == CONV_IMAGES || by_pixel ? g->images
                                                 : run->count * g->op->n;
    int repeats = kind == CONV_WIDTH ? g->images
                  : by_pixel         ? run->count
                                     : 1,
        vectors = t->nc > kern->vl || run->shared ? 2 : 1;
    hvt_kernel *const *kernels = run->shared ? kern->two_pixels : kern->gemm_nn[vectors - 1];
    int tiles = tile_count(rows, kern->rows[vectors - 1]);
    int high = tile_count(rows, tiles);
    const float *source = t->a;
    const long s_repeat = by_pixel ? g->s_pixel : g->s_image, t_repeat = by_pixel ? g->t_pixel : g->t_image;
    long target = run->pixel * g->t_pixel + column;
    long t_row = kind == CONV_WIDTH ? g->t_pixel * g->list->step : g->t_image;

    if (kern->begin && t->high != high) {
        t->high = high;
        kern->begin(high, t->depth);
    }
    if (!g->normed)
        t->ahead = fresh && t->len > NARROW_ROW ? high * t->a_row : 0;
    for (int n = conv_part(tiles * repeats, i, parts), end = conv_part(tiles * repeats, i + 1, parts);
         n < end; n++) {
        int repeat = n / tiles, row = (n % tiles) * high;
        int count = rows - row < high ? rows - row : high, skip = kern->begin ? high - count : 0;

        if (count <= 0) /* an empty tile, for example the last one of 9 rows in 4 tiles of 3 */
            continue;
        t->rows = count + skip;
        t->a = source + repeat * s_repeat + (row - skip) * t->a_row;
        if (kind != CONV_WIDTH && t->len <= NARROW_ROW && t->entries > 0) {
            prefetch_next(t, t->entries - 1, high);
            if (t->shared)
                prefetch_next(t, t->own + t->shared - 1, high);
        }
        run_tile(g, t, kernels[t->rows - 1], skip, target + repeat * t_repeat + (row - skip) * t_row, t_row);
    }
}

static int end_pixel(const conv_list *l, int run)
{
    return run < l->runs ? l->run[run].pixel : l->pixels;
}

/* Returns the bytes of x in the longest block; runs are pixels, or lines of pixels. */
static size_t block_bytes(const conv_op *op, const conv_list *l, int blocks)
{
    int most = 0;

    for (int b = 0; b < blocks; b++) {
        const int pixels =
            end_pixel(l, conv_part(l->runs, b + 1, blocks)) - l->run[conv_part(l->runs, b, blocks)].pixel;

        most = pixels > most ? pixels : most;
    }
    return (hvt_dtype_size(op->type) * (size_t)op->x_pixel * (size_t)most + 63) / 64 * 64;
}

/* Compute the norm of the pixels of runs [first, end); returns the address of pixel 0. *ret_ahead: distance
 * from a row of it to the corresponding row of x in the next block, if that fits into the L2 cache, too; else
 * 0. (144 -> 24, 1x1 at 56x56, 16 images on Zen 4: 6.9 ms without prefetching it, 5.4 with it.) */
static const float *norm_block(const pass *g, int first, int end, int thread, long *ret_ahead)
{
    const conv_op *op = g->op;
    const int pixel = g->list->run[first].pixel, count = end_pixel(g->list, end) - pixel;
    const size_t at = (size_t)(pixel * op->x_pixel), elements = (size_t)(count * op->x_pixel),
                 element = hvt_dtype_size(op->type);
    char *to = g->normed + (size_t)thread * g->norm_bytes;

    conv_norm(op, at, count * op->n, 0, op->c, to);
    *ret_ahead = 0;
    if (elements * element <= 2 * SMALL_BLOCK)
        *ret_ahead = ((const char *)hvt__at(g->source, op->type, at + elements) - to) / (long)sizeof(float);
    return (const float *)((uintptr_t)to - at * element);
}

static void pass_job(void *ctx, int job, int thread)
{
    const pass *g = ctx;
    const conv_list *l = g->list;
    const int width = 2 * g->op->kern->vl, steps = tile_count(g->columns, width);
    const int rows = job % g->row_parts, columns = job / g->row_parts % g->column_parts;
    const int block = job / g->row_parts / g->column_parts;
    const int first = conv_part(l->runs, block, g->blocks), end = conv_part(l->runs, block + 1, g->blocks);
    hvt_tile t = {.len = l->len,
                  .depth = l->depth,
                  .a_entry = g->s_pixel,
                  .b_entry = (long)l->len * CONV_PANEL,
                  .b_row = CONV_PANEL};

    long ahead = 0;
    float *own = (float *)g->weights + (size_t)thread * conv_panel_bytes(g->op, l->len) / sizeof *own;
    const float *source = g->normed && first < end ? norm_block(g, first, end, thread, &ahead) : g->source;

    t.b_next = l->next_tap * t.b_entry;
    t.a_row = l->rows == CONV_WIDTH ? g->s_pixel * l->shift : g->s_image;
    const int begin = conv_part(steps, columns, g->column_parts);

    for (int i = begin; i < conv_part(steps, columns + 1, g->column_parts); i++) {
        int column = i * width;
        int count = g->columns - column < width ? g->columns - column : width;

        if (g->unpacked && (i == begin || column % CONV_PANEL == 0))
            hvt__direct_pack_panel(direct_of(g->op), g->unpacked, column / CONV_PANEL, own);
        t.b = g->unpacked ? own + column % CONV_PANEL
                          : g->weights + conv_weight(g->op->taps, l->len, 0, 0, column);
        t.nc = count;
        for (const conv_run *run = l->run + first; run < l->run + end; run++) {
            t.e = l->e + run->entry;
            t.entries = run[1].entry - run->entry;
            t.own = run->own;
            t.shared = run->shared;
            if (t.entries == 0 && g->add)
                continue;
            t.a = source;
            t.ahead = i == begin ? ahead : 0;
            run_tiles(g, run, &t, column, i == begin, rows, g->row_parts);
        }
    }
    if (t.high)
        g->op->kern->end();
    if (g->stream)
        hvt__fence();
}

/* ---- copying the source: to a pitch without conflict misses, to f32, or to whole k-groups ---- */

enum { COPY_ROWS = 64 };

static inline __attribute__((always_inline)) void copy_rows(const pass *g, int images, const uint16_t *from,
                                                            float *to, long to_image, const size_t bytes,
                                                            const size_t padding)
{
    for (int i = 0; i < images; i++, from += g->s_image, to += to_image) {
        memcpy(to, from, bytes);
        memset((char *)to + bytes, 0, padding);
    }
}

/* Rows of bf16, zero-padded to whole k-groups: adjacent channels already form vnni2 k-groups. */
static void copy_padded(const pass *g, int images, const uint16_t *from, float *to, long to_image)
{
    const size_t bytes = sizeof *from * (size_t)g->channels,
                 padding = sizeof *to * (size_t)g->list->len - bytes;

    if (bytes == 6 && padding == 2) /* a pixel of an image; calls of memcpy() would take half of the pass */
        copy_rows(g, images, from, to, to_image, 6, 2);
    else
        copy_rows(g, images, from, to, to_image, bytes, padding);
}

/* job = up to COPY_ROWS images of one source pixel */
static void copy_job(void *ctx, int job, int thread)
{
    const pass *g = ctx;
    int parts = tile_count(g->images, COPY_ROWS), pixel = job / parts, image = job % parts * COPY_ROWS;
    int images = g->images - image < COPY_ROWS ? g->images - image : COPY_ROWS;
    bool dense = g->s_image == g->channels && g->c_image == g->channels;
    int rows = dense ? 1 : images;
    size_t at = (size_t)(pixel * g->s_pixel + image * g->s_image);
    float *to = g->copy + pixel * g->c_pixel + image * g->c_image;
    const void *from = hvt__at(g->source, g->op->type, at);

    if (g->list->is_source && !g->list->is_source[pixel])
        return;
    if (g->normed) {
        void *room = g->normed + (size_t)thread * g->norm_bytes;

        conv_norm(g->op, at, images, 0, g->channels, room);
        from = room;
    }
    if (g->op->vnni2) {
        copy_padded(g, images, from, to, g->c_image);
        return;
    }
    for (int i = 0; i < rows; i++)
        g->op->typed->widen((size_t)g->channels * (dense ? images : 1),
                            hvt__at(from, g->op->type, (size_t)(i * g->s_image)), to + i * g->c_image);
}

static void copy_source(pass *g, int pitch, void *ws)
{
    const conv_list *l = g->list;
    bool by_image = l->rows == CONV_WIDTH;

    g->copy = ws;
    g->c_pixel = by_image ? pitch : (long)g->op->n * pitch;
    g->c_image = by_image ? (long)l->sources * pitch : pitch;
    hvt__parallel_for(g->op->pool, l->sources * tile_count(g->images, COPY_ROWS), copy_job, g);
    g->source = ws;
    g->s_pixel = g->c_pixel;
    g->s_image = g->c_image;
    g->normed = NULL;
}

/* ---- a pass ---- */

/* Chooses the pixels of a block by the shape, so that its source stays in the cache. */
static int pixels_of_block(const pass *g)
{
    const conv_op *op = g->op;
    const size_t weights = sizeof(float) * (size_t)op->taps * (size_t)g->list->len * (size_t)g->columns;
    const size_t pixel = sizeof(float) * (size_t)op->n * (size_t)g->list->len;
    const size_t fit = (weights > MANY_WEIGHTS ? LARGE_BLOCK : SMALL_BLOCK) / pixel;

    return fit < 1 ? 1 : fit < (size_t)g->list->pixels ? (int)fit : g->list->pixels;
}

/* Cut the pass into jobs (blocks, parts of the columns and of each run's tiles) that take the least time.
 * Several jobs that read one block, and many jobs, cost a little more. */
static void cut_pass(pass *g)
{
    const conv_list *l = g->list;
    const hvt_conv_kernels *kern = g->op->kern;
    const int threads = hvt__thread_pool_size(g->op->pool), steps = tile_count(g->columns, 2 * kern->vl);
    const int tiles = tile_count(g->op->n, kern->rows[1]); /* tiles of a run's pixel */
    const int whole = tile_count(l->pixels, pixels_of_block(g)), least = whole < l->runs ? whole : l->runs;
    double best = INFINITY;

    g->blocks = least;
    g->column_parts = g->row_parts = 1;
    for (int i = 0; threads > 1 && i <= 4; i++) {
        const int some = i ? tile_count(least, threads) * threads * i : least;
        const int blocks = some < l->runs ? some : l->runs;

        for (int columns = 1; columns <= steps; columns++) {
            const int jobs = blocks * columns, first = tile_count(jobs, threads);

            for (int rounds = first; rounds <= CONV_ROUNDS || (rounds == first && columns == 1); rounds++) {
                const int rows = conv_parts(tiles, jobs, threads, rounds);
                const double each = (double)tile_count(l->runs, blocks) * tile_count(steps, columns) *
                                    tile_count(tiles, rows) * (1 + SHARED * (columns * rows > 1)) *
                                    (1 + MORE * i),
                             time = conv_time(jobs * rows, threads, each);

                if (time < best) {
                    best = time;
                    g->blocks = blocks;
                    g->column_parts = columns;
                    g->row_parts = rows;
                }
            }
        }
        if (blocks == l->runs)
            break;
    }
}

static pass make_pass(const conv_op *op, bool back)
{
    const direct *d = direct_of(op);
    pass g = {.op = op,
              .list = back ? &d->in : &d->out,
              .s_pixel = back ? op->y_pixel : op->x_pixel,
              .s_image = back ? op->y_image : op->x_image,
              .t_pixel = back ? op->x_pixel : op->y_pixel,
              .t_image = back ? op->x_image : op->y_image,
              .channels = back ? op->k : op->c,
              .columns = back ? op->c : op->k};

    cut_pass(&g);
    return g;
}

/* Returns the k-groups between rows of the copy of the source; 0: no copy. If several jobs would compute a
 * block's norm, it is computed there, too. */
static int pitch_of(const pass *g, bool normed)
{
    return g->list->pitch || !normed || g->column_parts * g->row_parts == 1 ? g->list->pitch : g->list->len;
}

/* Returns the bytes of the copy; norm_bytes(): of a thread's norm. */
static size_t copy_bytes(const pass *g, bool normed)
{
    return (sizeof(float) * (size_t)g->list->sources * (size_t)g->op->n * (size_t)pitch_of(g, normed) + 63) /
           64 * 64;
}

static size_t norm_bytes(const pass *g)
{
    return !pitch_of(g, true) ? block_bytes(g->op, g->list, g->blocks)
                              : (hvt_dtype_size(g->op->type) * COPY_ROWS * (size_t)g->op->c + 63) / 64 * 64;
}

/* Backward data: true if each panel is read by one job, which packs it into its cache. */
static bool packs_panels(const pass *g, bool back)
{
    return back && g->blocks * g->row_parts == 1;
}

static size_t weight_bytes(const pass *g, bool back)
{
    const conv_op *op = g->op;

    if (!back)
        return direct_of(op)->w_bytes;
    return conv_panel_bytes(op, g->list->len) *
           (size_t)(packs_panels(g, back) ? hvt__thread_pool_size(op->pool) : conv_panels(op->c));
}

size_t hvt__direct_pass_bytes(const conv_op *op, bool back)
{
    const pass g = make_pass(op, back);
    const bool normed = !back && direct_takes_norm(op);

    return weight_bytes(&g, back) + copy_bytes(&g, normed) +
           (normed ? norm_bytes(&g) * (size_t)hvt__thread_pool_size(op->pool) : 0);
}

/* Run a block of op; w and ws: start of its weights and workspace. */
static void run_pass(const conv_op *op, bool back, int real, const void *source, const void *w, void *target,
                     bool add, void *ws)
{
    const direct *d = direct_of(op);
    pass g = make_pass(op, back);
    const conv_list *l = g.list;
    const bool normed = !back && op->normed;

    g.source = source;
    g.weights = back || d->w_bytes ? ws : w;
    g.target = target;
    if (packs_panels(&g, back))
        g.unpacked = w;
    else if (back)
        hvt__direct_pack(d, w, ws);
    else if (d->w_bytes)
        hvt__direct_pack_forward(d, w, ws);
    ws = (char *)ws + weight_bytes(&g, back);
    g.images = real * op->rows_per_image;
    g.add = add;
    g.stream =
        conv_streams(op, target, add, (size_t)op->n * (size_t)l->pixels, g.columns, g.t_image, g.t_pixel);
    if (normed) {
        g.normed = (char *)ws + copy_bytes(&g, true);
        g.norm_bytes = norm_bytes(&g);
    }
    if (pitch_of(&g, normed)) {
        copy_source(&g, pitch_of(&g, normed), ws);
    } else if (op->vnni2) {
        g.s_pixel /= 2;
        g.s_image /= 2;
    }
    hvt__parallel_for(op->pool, g.blocks * g.column_parts * g.row_parts, pass_job, &g);
}

void hvt__direct_forward(const conv_op *op, int real, const void *x, const void *w, void *y, void *ws)
{
    for (int b = 0; b < op->blocks; b++)
        run_pass(op, false, real, hvt__at(x, op->type, (size_t)b * (size_t)op->c),
                 hvt__at(w, op->type, (size_t)b * conv_block_weights(op)),
                 hvt__at(y, op->type, (size_t)b * (size_t)op->k), false, ws);
}

void hvt__direct_backward_x(const conv_op *op, int real, const void *w, const void *dy, void *dx, bool add,
                            void *ws)
{
    for (int b = 0; b < op->blocks; b++)
        run_pass(op, true, real, hvt__at(dy, op->type, (size_t)b * (size_t)op->k),
                 hvt__at(w, op->type, (size_t)b * conv_block_weights(op)),
                 hvt__at(dx, op->type, (size_t)b * (size_t)op->c), add, ws);
}
