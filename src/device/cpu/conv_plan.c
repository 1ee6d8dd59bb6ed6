/*
 * Planning a convolution: the entry lists of its three passes (see conv_impl.h), the sizes of blocks and
 * tiles, the memory. A step then allocates and decides nothing.
 *
 * Invariant: a list contains a source pixel only if it exists, so padding costs no arithmetic and no kernel
 * checks borders. All choices depend on the shape and the instruction set, never on the number of threads.
 */
#include "conv_impl.h"
#include "device/host.h"

#include <assert.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Backward weights: bytes of packed x and dy per block, half of a common L2 cache; less for vnni2, where the
 * next block is prefetched into L2 meanwhile. */
#define BLOCK_BYTES       (1 << 20)
#define VNNI2_BLOCK_BYTES (1 << 19)
#define LEAST_CHUNK       32
/* In a model of many layers, weights of this size and more are evicted before their next use. Non-temporal
 * stores of their gradient saved 6 % of backward weights, those of the packed copy 60 % of conv_pack_weights
 * (512 -> 512, 3x3, cold). */
#define STREAM_BYTES (1 << 20)

/* Number of (output, tap) pairs along one dimension whose input exists. */
static long valid_products(int in, int out, int window, int stride, int pad)
{
    long count = 0;

    for (int o = 0; o < out; o++)
        for (int t = 0; t < window; t++) {
            int i = o * stride + t - pad;

            count += i >= 0 && i < in;
        }
    return count;
}

/* The input that tap t of output o reads, or -1. */
static int input_index(int o, int t, int in, int stride, int pad)
{
    int i = o * stride + t - pad;

    return i >= 0 && i < in ? i : -1;
}

/* The output that reads input i with tap t, or -1. */
static int output_index(int i, int t, int out, int stride, int pad)
{
    int o = i + pad - t;

    return o >= 0 && o % stride == 0 && o / stride < out ? o / stride : -1;
}

/* All entries of one target pixel, in ascending order of source pixels: source rows that no earlier target
 * has read come last, and hardware prefetchers follow the ascending addresses (backward data of 64 -> 64, 3x3
 * at 32x32 on Zen 5: 178 GF/s in the order of taps, 227 in this one). With few channels (`narrow`) entries go
 * column by column, so that two_pixels can share them: those of the left pixel alone, of both, of the right
 * one alone. The order, and so the bits, is the same for every batch, with two_pixels or without. */
static int entries_of(const conv_op *op, bool back, bool narrow, int y, int x, hvt_entry *e)
{
    int count = 0;

    for (int t = 0; t < op->taps; t++) {
        int i = narrow ? t % op->r : t / op->s, j = narrow ? t / op->r : t % op->s;
        int r = back ? op->r - 1 - i : i, s = back ? op->s - 1 - j : j;
        int sy = back ? output_index(y, r, op->oh, op->stride, op->pad)
                      : input_index(y, r, op->h, op->stride, op->pad);
        int sx = back ? output_index(x, s, op->ow, op->stride, op->pad)
                      : input_index(x, s, op->w, op->stride, op->pad);

        if (sy >= 0 && sx >= 0)
            e[count++] = (hvt_entry){sy * (back ? op->ow : op->w) + sx, r * op->s + s};
    }
    return count;
}

static bool same_shifted(const hvt_entry *e, const hvt_entry *later, int count, int by)
{
    for (int i = 0; i < count; i++)
        if (later[i].b != e[i].b || later[i].a != e[i].a + by)
            return false;
    return true;
}

/* Merge the entries of two neighbouring pixels, `first` of the left one and then `second` of the right one:
 * those that both read, which end the first list and begin the second, are kept once. Returns the new number
 * of entries. If nothing is shared, nothing changes. */
static int join_two_pixels(hvt_entry *e, int first, int second, conv_run *run)
{
    int own = 0;

    while (second && own < first && e[own].a != e[first].a)
        own++;
    run->shared = second ? first - own : 0;
    run->own = run->shared ? own : 0;
    memmove(e + first, e + first + run->shared, sizeof *e * (size_t)(second - run->shared));
    return first + second - run->shared;
}

static hvt_status make_list(const conv_op *op, bool back, conv_rows rows, long entries, conv_list *l)
{
    int h = back ? op->h : op->oh, w = back ? op->w : op->ow;
    int most = rows == CONV_IMAGES ? 1 : INT_MAX, n = 0, runs = 0;
    bool narrow = op->kern->two_pixels && (back ? op->c : op->k) <= op->kern->vl,
         two_pixels = narrow && rows == CONV_IMAGES;

    l->rows = rows;
    l->pixels = h * w;
    l->sources = back ? op->oh * op->ow : op->h * op->w;
    l->step = rows != CONV_IMAGES && back ? op->stride : 1;
    l->shift = back ? 1 : op->stride;
    l->next_tap = back ? 1 : -op->stride;
    l->run = malloc(sizeof *l->run * ((size_t)l->pixels + 1));
    /* + taps: a list is written first, and dropped if it repeats the previous one */
    l->e = malloc(sizeof *l->e * ((size_t)entries + (size_t)op->taps));
    HVT_CHECK(l->run && l->e, E_MEM, "no memory for the %ld entries of a convolution", entries);
    for (int y = 0; y < h; y++)
        for (int phase = 0; phase < l->step; phase++) {
            conv_run *last = NULL;

            for (int x = phase; x < w; x += l->step) {
                int count = entries_of(op, back, narrow, y, x, l->e + n);

                if (last && last->count < most && count == n - last->entry &&
                    same_shifted(l->e + last->entry, l->e + n, count, last->count * l->shift)) {
                    last->count++;
                } else {
                    last = &l->run[runs++];
                    *last = (conv_run){.entry = n, .pixel = y * w + x, .count = 1};
                    if (two_pixels && x + 1 < w) {
                        int next = entries_of(op, back, narrow, y, x + 1, l->e + n + count);
                        int joined = join_two_pixels(l->e + n, count, next, last);

                        if (last->shared)
                            count = joined, x++;
                    }
                    n += count;
                }
            }
        }
    l->run[runs] = (conv_run){.entry = n};
    l->runs = runs;
    return HVT_OK;
}

/* What the rows of a tile are. In HWN the images of a pixel are dense, and every pixel has equally many. With
 * few images tiles would have few rows; then they also span the pixels of a line. */
static conv_rows choose_rows(const conv_op *op, hvt_order order, int width, int stride)
{
    if (order == HVT_ORDER_NHW)
        return width >= 8 || width > op->n ? CONV_WIDTH : CONV_IMAGES;
    if (op->n >= 8)
        return CONV_IMAGES;
    return stride == 1 ? CONV_BOTH : op->n == 1 ? CONV_WIDTH : CONV_IMAGES;
}

/*
 * Rows of 1,024 floats or a multiple map to the same set of an L1 cache with 64 sets, so that the lines of a
 * tall tile evict each other (conflict misses). Such rows are copied to a pitch that is one line longer.
 */
static bool rows_conflict(long row, int rows)
{
    const int sets = 64, line = 16, ways = 8;
    int distinct = sets;

    if (row % line)
        return false;
    for (long lines = row / line; distinct > 1 && lines % 2 == 0; lines /= 2)
        distinct /= 2;
    return rows > distinct * ways;
}

/* Sets l->pitch if rows must be copied; s_pixel and s_image are strides of the source, whose pixels have c
 * channels. Rows to be widened are always copied, densely, and so are bf16 rows that do not fill their
 * k-groups. AMX loads whole lines, so conflict misses do not hurt it. */
static hvt_status plan_copy(const conv_op *op, int c, long s_pixel, long s_image, conv_list *l)
{
    const int len = conv_k_groups(op->kern, c, &l->depth), per = op->vnni2 ? 2 : 1;
    const bool move = op->vnni2 ? len * per != c : op->type != HVT_F32;
    long row = move ? len : (l->rows == CONV_WIDTH ? s_pixel : s_image) / per;
    bool conflict = op->kern->depth == 1 &&
                    rows_conflict(l->rows == CONV_WIDTH ? row * l->shift : row, op->kern->rows[1]);

    l->len = len;
    if (!conflict && !move)
        return HVT_OK;
    l->is_source = calloc((size_t)l->sources, sizeof *l->is_source);
    HVT_CHECK(l->is_source, E_MEM, "no memory for a convolution's %d source pixels", l->sources);
    for (const conv_run *run = l->run; run < l->run + l->runs; run++)
        for (int i = run->entry; i < run[1].entry; i++)
            for (int j = 0; j < run->count; j++)
                l->is_source[l->e[i].a + j * l->shift] = true;
    l->pitch = conflict ? (len + 15) / 16 * 16 + 16 : len;
    return HVT_OK;
}

/* ---- backward weights ---- */

/* Rows this narrow are read in place; with one tap there is nothing to gain by packing, because each element
 * is read fewer times. Measured; a matter of 10 to 25 % either way. */
static bool reads_in_place(const conv_op *op, int width, int most)
{
    return op->taps == 1 || width <= most;
}

/* Whether a tile computes the three taps of a filter row, one vector of columns each: with a single tap,
 * loads would take as long as multiply-adds. In f32, where four pixels fill the L1 cache, it is slower if c
 * takes several tiles (16 -> 16, 3x3 at 32x32, 128 images of f32 on Zen 5: 184 GF/s without, 152 with it; 3
 * -> 16: 71, 104). */
static bool takes_three_taps(const conv_op *op)
{
    return op->kern->rows[2] && op->k <= op->kern->vl && op->s == 3 && op->stride == 1 && op->pad == 1 &&
           op->w > 1 && (op->vnni2 || op->c <= op->kern->rows[2]);
}

/* Splits c into tiles of at most `most` rows, and into panels of packed x. */
static void size_tiles(conv_op *op, int most)
{
    const hvt_conv_kernels *kern = op->kern;

    if (kern->shared_panels) {
        op->a_panel = op->c < kern->pitch ? op->c : kern->pitch;
        op->panel_tiles = conv_tiles(op->a_panel, most);
        op->a_tiles = conv_tiles(op->c, op->a_panel) * op->panel_tiles;
        op->a_rows = conv_tiles(op->a_panel, op->panel_tiles);
        op->a_pitch = conv_tiles(op->a_panel, kern->vl) * kern->vl;
    } else {
        op->a_tiles = conv_tiles(op->c, most);
        op->a_panel = op->a_rows = conv_tiles(op->c, op->a_tiles);
        op->panel_tiles = 1;
        op->a_pitch = kern->pitch;
    }
    op->b_pitch = op->vnni2 && op->k <= kern->vl ? kern->vl : CONV_PANEL;
}

static void size_blocks(conv_op *op, hvt_order order)
{
    const hvt_conv_kernels *kern = op->kern;
    const bool in_place = order == HVT_ORDER_HWN && op->type == HVT_F32;
    const size_t element = op->vnni2 ? sizeof(uint16_t) : sizeof(float);
    size_t weights = sizeof(float) * (size_t)op->taps * (size_t)op->c * (size_t)op->k;
    int k_groups, depth;

    op->stream = weights >= STREAM_BYTES;
    op->taps_per_tile = takes_three_taps(op) ? 3 : 1;
    op->vectors = op->taps_per_tile == 3 ? 3 : op->k > kern->vl ? 2 : 1;
    size_tiles(op, kern->rows[op->vectors - 1]);
    op->pack_y = !(in_place && op->k % kern->vl == 0 && reads_in_place(op, op->k, 64));
    op->slots = in_place && reads_in_place(op, op->c, 128) ? 0 : 1;

    /* each block reads and writes the gradient once more: with large weights blocks should be large */
    const size_t cached = op->vnni2 ? VNNI2_BLOCK_BYTES : BLOCK_BYTES,
                 budget = weights > cached ? weights : cached;
    size_t line = element * ((size_t)op->c * (size_t)(op->stride * op->stride) + (size_t)op->k);
    int lines = op->taps > 1 && op->slots ? op->r : 1;

    op->chunk = op->n;
    while (op->chunk > LEAST_CHUNK && line * (size_t)op->ow * (size_t)lines * (size_t)op->chunk > budget)
        op->chunk = (op->chunk + 1) / 2;

    size_t fit = budget / (line * (size_t)op->chunk);
    int pixels = op->oh * op->ow, each = fit < 1 ? 1 : fit < (size_t)pixels ? (int)fit : pixels;

    op->blocks = conv_tiles(pixels, each);
    each = conv_tiles(pixels, op->blocks);
    if (op->taps_per_tile == 3) /* whole lines */
        each = conv_tiles(each, op->ow) * op->ow;
    op->blocks = conv_tiles(pixels, each);
    k_groups = conv_k_groups(kern, op->chunk, &depth);
    op->a_slot = (long)k_groups * (op->a_tiles / op->panel_tiles) * op->a_pitch;
    op->b_slot = (long)k_groups * conv_panels(op->k) * op->b_pitch;
    for (int b = 0; b < op->blocks; b++) {
        op->block[b].pixel = b * each;
        op->block[b].end = (b + 1) * each < pixels ? (b + 1) * each : pixels;
    }
}

/* List the entries of a block for the three taps of filter row `row`, from number n on: for each line the
 * first pixel of x, those between, the last; `b` is dy's pixel for the first tap that has one. Returns the
 * number after the last. */
static int list_three_taps(const conv_op *op, const conv_block *b, int row, int n, int *first)
{
    for (int part = 0; part < 3; part++) {
        const int from = part == 0 ? 0 : part == 1 ? 1 : op->w - 1, end = part == 0 ? 1 : op->w - (part == 1);

        first[part] = n;
        for (int line = b->pixel / op->ow; line < b->end / op->ow; line++) {
            const int y = input_index(line, row, op->h, op->stride, op->pad);

            for (int x = from; y >= 0 && x < end; x++)
                op->e[n++] =
                    (hvt_entry){y * op->w + x, line * op->ow + x + (part < 2) - (op->pack_y ? b->pixel : 0)};
        }
    }
    return n;
}

/* List the entries of a block and a tap from number n on. Returns the number after the last. */
static int list_tap(const conv_op *op, const conv_block *b, int tap, int n)
{
    for (int p = b->pixel; p < b->end; p++) {
        int y = input_index(p / op->ow, tap / op->s, op->h, op->stride, op->pad);
        int x = input_index(p % op->ow, tap % op->s, op->w, op->stride, op->pad);

        if (y >= 0 && x >= 0)
            op->e[n++] = (hvt_entry){y * op->w + x, op->pack_y ? p - b->pixel : p};
    }
    return n;
}

/* List the entries of all blocks and taps, with input pixels as they are, and find the range of input pixels
 * that each block needs. */
static void list_blocks(conv_op *op, int *low, int *high)
{
    int n = 0;

    for (int b = 0; b < op->blocks; b++) {
        int *first = &op->first[b * op->taps], from = n;

        for (int t = 0; t < op->taps; t += op->taps_per_tile) {
            first[t] = n;
            n = op->taps_per_tile == 3 ? list_three_taps(op, &op->block[b], t / 3, n, first + t)
                                       : list_tap(op, &op->block[b], t, n);
        }
        low[b] = INT_MAX;
        high[b] = -1;
        for (const hvt_entry *e = op->e + from; e < op->e + n; e++) {
            low[b] = e->a < low[b] ? e->a : low[b];
            high[b] = e->a > high[b] ? e->a : high[b];
        }
    }
    op->first[op->blocks * op->taps] = n;
}

/* Assign packed input pixels to slots of a ring that is as long as the widest block needs, so that pixels
 * shared by two blocks are packed once. ordinal[pixel]: its index among the used ones. */
static void assign_slots(conv_op *op, const int *low, const int *high, int *ordinal)
{
    int entries = op->first[op->blocks * op->taps], used = 0, done = 0, needed = INT_MAX;

    memset(ordinal, 0, sizeof *ordinal * (size_t)op->h * (size_t)op->w);
    for (int i = 0; i < entries; i++)
        ordinal[op->e[i].a] = 1;
    for (int p = 0; p < op->h * op->w; p++)
        if (ordinal[p]) {
            op->used[used] = p;
            ordinal[p] = used++;
        }
    for (int b = 0; b < op->blocks; b++) {
        op->block[b].pack_first = done;
        if (high[b] >= 0 && ordinal[high[b]] >= done)
            done = ordinal[high[b]] + 1;
        op->block[b].pack_end = done;
    }
    op->slots = 1;
    for (int b = op->blocks - 1; b >= 0; b--) { /* what this or a later block reads must not be overwritten */
        if (low[b] < needed)
            needed = low[b];
        if (needed < INT_MAX && op->block[b].pack_end - ordinal[needed] > op->slots)
            op->slots = op->block[b].pack_end - ordinal[needed];
    }
    for (int i = 0; i < entries; i++)
        op->e[i].a = ordinal[op->e[i].a] % op->slots;
}

static void mark_taps(conv_op *op)
{
    for (int b = 0; b < op->blocks; b++)
        for (int t = 0; t < op->taps; t++) {
            const int *first = &op->first[b * op->taps + t - t % op->taps_per_tile];

            op->tap_used[t] |= first[0] < first[op->taps_per_tile];
        }
}

static hvt_status plan_wgrad(conv_op *op, hvt_order order, long entries)
{
    size_t in = (size_t)op->h * (size_t)op->w, out = (size_t)op->oh * (size_t)op->ow;
    int *low = NULL, *high = NULL, *ordinal = NULL;
    hvt_status s = HVT_OK;

    op->block = calloc(out, sizeof *op->block); /* without slots all ranges stay empty */
    HVT_CHECK(op->block, E_MEM, "no memory for the blocks of a convolution");
    size_blocks(op, order);
    op->first = malloc(sizeof *op->first * ((size_t)op->blocks * (size_t)op->taps + 1));
    op->e = malloc(sizeof *op->e * ((size_t)entries + 1));
    op->used = malloc(sizeof *op->used * in);
    op->tap_used = calloc((size_t)op->taps, sizeof *op->tap_used);
    low = malloc(sizeof *low * (size_t)op->blocks);
    high = malloc(sizeof *high * (size_t)op->blocks);
    ordinal = malloc(sizeof *ordinal * in);
    HVT_CHECK_OR(done, op->first && op->e && op->used && op->tap_used && low && high && ordinal, E_MEM,
                 "no memory for the %ld entries of a convolution", entries);
    list_blocks(op, low, high);
    mark_taps(op);
    if (op->slots)
        assign_slots(op, low, high, ordinal);
    op->x_bytes = (sizeof(float) * (size_t)op->slots * (size_t)op->a_slot + 63) / 64 * 64;
done:
    free(low);
    free(high);
    free(ordinal);
    return s;
}

/* ---- the operation ---- */

static void free_list(conv_list *l)
{
    free(l->run);
    free(l->e);
    free(l->is_source);
}

static void conv_free_cpu(hvt_op *head)
{
    conv_op *op = (conv_op *)head;

    free_list(&op->out);
    free_list(&op->in);
    free(op->packed_w);
    free(op->tap_used);
    free(op->block);
    free(op->first);
    free(op->e);
    free(op->used);
    free(op);
}

static hvt_status check(const hvt_conv_desc *c)
{
    HVT_CHECK_ACTIVATIONS(c->type);
    HVT_CHECK_CHANNELS(c);
    HVT_CHECK(c->n >= 1 && c->h >= 1 && c->w >= 1 && c->c >= 1, E_SHAPE,
              "convolution's input is %d images of %dx%d pixels with %d channels; each must be at least 1",
              c->n, c->h, c->w, c->c);
    HVT_CHECK(c->k >= 1 && c->r >= 1 && c->s >= 1 && c->stride >= 1 && c->pad >= 0, E_SHAPE,
              "convolution has %d filters of %dx%d, stride %d, padding %d", c->k, c->r, c->s, c->stride,
              c->pad);
    HVT_CHECK(c->h + 2L * c->pad >= c->r && c->w + 2L * c->pad >= c->s, E_SHAPE,
              "a filter of %dx%d does not fit into %dx%d pixels with padding %d", c->r, c->s, c->h, c->w,
              c->pad);
    HVT_CHECK((long)c->n * c->h * c->w <= INT_MAX && (long)c->r * c->s <= 1 << 20 && c->pad <= 1 << 20 &&
                  (long)c->r * c->s * c->c <= INT_MAX / CONV_PANEL && c->k <= INT_MAX - CONV_PANEL,
              E_SHAPE, "convolution of %d images of %dx%dx%d by %d filters of %dx%d is too large to index",
              c->n, c->h, c->w, c->c, c->k, c->r, c->s);
    return HVT_OK;
}

/* A 1x1 convolution of stride 1: pixels can be treated as images. */
static bool is_flat(const hvt_conv_desc *c)
{
    return c->order == HVT_ORDER_NHW && c->r == 1 && c->s == 1 && c->stride == 1 && c->pad == 0;
}

static void set_shape(conv_op *op, const hvt_conv_desc *c)
{
    bool flat = is_flat(c);

    op->rows_per_image = flat ? c->h * c->w : 1;
    op->n = c->n * op->rows_per_image;
    op->h = flat ? 1 : c->h;
    op->w = flat ? 1 : c->w;
    op->c = c->c;
    op->k = c->k;
    op->r = c->r;
    op->s = c->s;
    op->taps = c->r * c->s;
    op->stride = c->stride;
    op->pad = c->pad;
    op->oh = hvt__conv_out(op->h, op->r, op->stride, op->pad);
    op->ow = hvt__conv_out(op->w, op->s, op->stride, op->pad);
    if (c->order == HVT_ORDER_HWN || flat) {
        op->x_image = op->c;
        op->y_image = op->k;
        op->x_pixel = (long)op->n * op->c;
        op->y_pixel = (long)op->n * op->k;
    } else {
        op->x_pixel = op->c;
        op->y_pixel = op->k;
        op->x_image = (long)op->h * op->w * op->c;
        op->y_image = (long)op->oh * op->ow * op->k;
    }
}

/* Bytes of weights in panels of `columns` with `len` k-groups per tap. */
static size_t panel_bytes(const conv_op *op, int columns, int len)
{
    return sizeof(float) * (size_t)conv_panels(columns) * CONV_PANEL * (size_t)op->taps * (size_t)len;
}

static size_t copy_bytes(const conv_op *op, const conv_list *l)
{
    return sizeof(float) * (size_t)l->sources * (size_t)op->n * (size_t)l->pitch;
}

/* The largest workspace that any of the three passes needs. */
static size_t workspace(const conv_op *op)
{
    size_t out = op->w_bytes + copy_bytes(op, &op->out), in = copy_bytes(op, &op->in), y_pixels = 0, both;

    for (int b = 0; b < op->blocks && op->pack_y; b++) {
        size_t pixels = (size_t)(op->block[b].end - op->block[b].pixel);

        y_pixels = pixels > y_pixels ? pixels : y_pixels;
    }
    both = op->x_bytes + sizeof(float) * y_pixels * (size_t)op->b_slot;
    in = in > out ? in : out;
    return both > in ? both : in;
}

/* HVT_LOG=debug: one line that says what was chosen. */
static void log_plan(const conv_op *op, const hvt_conv_desc *c)
{
    static const char *const rows[] = {"images", "pixels of a line", "pixels and images"};
    char dx[96] = "", copied[2][48] = {"", ""};
    const conv_list *lists[] = {&op->out, &op->in};

    for (int i = 0; i < 2; i++)
        if (lists[i]->pitch)
            snprintf(copied[i], sizeof copied[i], ", source copied to a pitch of %d k-groups",
                     lists[i]->pitch);
    if (op->winograd) {
        HVT_DEBUG("cpu: %s conv %d -> %d, 3x3/1 at %dx%d, %d images: Winograd, F(2x2, 3x3)",
                  hvt_dtype_name(op->type), op->c, op->k, c->h, c->w, c->n);
        return;
    }
    if (!c->no_dx)
        snprintf(dx, sizeof dx, "; dx: %s%s", rows[op->in.rows], copied[1]);
    HVT_DEBUG(
        "cpu: %s conv %d -> %d, %dx%d/%d at %dx%d, %d images: a tile's rows in y: %s%s%s; dw: %d block%s of "
        "%d pixels x %d images, x %s, dy %s%s",
        hvt_dtype_name(op->type), op->c, op->k, op->r, op->s, op->stride, c->h, c->w, c->n,
        rows[op->out.rows], copied[0], dx, op->blocks, op->blocks == 1 ? "" : "s",
        op->block[0].end - op->block[0].pixel, op->chunk, op->slots ? "copied" : "in place",
        op->pack_y ? "copied" : "in place", op->stream ? ", non-temporal stores" : "");
}

/* The entry lists of the three passes, and what they copy. */
static hvt_status plan_direct(conv_op *op, bool no_dx, hvt_order order, long entries)
{
    size_t bytes;

    HVT_TRY(make_list(op, false, choose_rows(op, order, op->ow, op->stride), entries, &op->out));
    HVT_TRY(plan_copy(op, op->c, op->x_pixel, op->x_image, &op->out));
    op->w_bytes = op->type == HVT_F32 ? 0 : panel_bytes(op, op->k, op->out.len);
    HVT_TRY(plan_wgrad(op, order, entries));
    if (no_dx)
        return HVT_OK;
    HVT_TRY(make_list(op, true, choose_rows(op, order, op->w, op->stride), entries, &op->in));
    HVT_TRY(plan_copy(op, op->k, op->y_pixel, op->y_image, &op->in));
    bytes = panel_bytes(op, op->c, op->in.len);
    op->packed_w = aligned_alloc(64, (bytes + 63) / 64 * 64);
    HVT_CHECK(op->packed_w, E_MEM, "no memory for a convolution's %zu bytes of packed weights", bytes);
    memset(op->packed_w, 0, bytes); /* padding is not written again */
    return HVT_OK;
}

hvt_status hvt__conv_plan_cpu(hvt_device *d, const hvt_conv_desc *c, hvt_op **ret_op, size_t *ret_weights,
                              size_t *ret_ws)
{
    const hvt_cpu *cpu = d->state;
    conv_op *op = NULL;
    size_t weights;
    hvt_status s;

    HVT_TRY(check(c));
    op = calloc(1, sizeof *op);
    HVT_CHECK(op, E_MEM, "no memory for a convolution");
    op->head = (hvt_op){.dev = d, .free = conv_free_cpu};
    op->vnni2 = c->type == HVT_BF16 && cpu->isa->bf16;
    op->kern = op->vnni2 ? cpu->isa->bf16 : cpu->isa->conv;
    assert(op->kern->rows[0] <= CONV_TILE_ROWS && op->kern->rows[1] <= CONV_TILE_ROWS);
    op->type = c->type;
    op->typed = cpu->isa->el->in[c->type];
    op->pool = cpu->pool;
    set_shape(op, c);
    weights = (size_t)conv_panels(op->k) * CONV_PANEL * (size_t)op->taps * (size_t)op->c;

    /* a flat one is both. Strides do not tell: with one input pixel and several output pixels, those of NHW
     * and HWN agree for x alone */
    hvt_order order = c->order == HVT_ORDER_HWN || is_flat(c) ? HVT_ORDER_HWN : HVT_ORDER_NHW;
    long entries = valid_products(op->h, op->oh, op->r, op->stride, op->pad) *
                   valid_products(op->w, op->ow, op->s, op->stride, op->pad);

    HVT_CHECK_OR(fail, entries <= INT_MAX - op->taps && (long)op->oh * op->ow <= INT_MAX / op->n, E_SHAPE,
                 "convolution of %dx%d pixels by %dx%d taps is too large to index", c->h, c->w, c->r, c->s);
    op->winograd = !d->direct && hvt__winograd_is_faster(op, entries);
    if (!op->winograd)
        HVT_TRY_OR(fail, plan_direct(op, c->no_dx, order, entries));
    *ret_op = &op->head;
    *ret_weights = weights;
    *ret_ws = op->winograd ? hvt__winograd_bytes(op, c->no_dx) : workspace(op);
    log_plan(op, c);
    return HVT_OK;
fail:
    conv_free_cpu(&op->head);
    return s;
}
