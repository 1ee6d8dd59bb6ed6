/*
 * Plans a direct convolution: the entry lists of its three passes (see direct_impl.h), sizes of blocks and
 * tiles, memory. A step then neither allocates nor decides.
 *
 * Invariant: lists contain only existing source pixels, so padding costs no arithmetic and no kernel checks
 * borders. All choices depend on the shape and the instruction set, never on the number of threads.
 */
#include "direct_impl.h"
#include "device/host.h"

/* Backward weights: bytes of packed x and dy per block, half of a common L2 cache; less for vnni2, where the
 * next block is prefetched into L2 meanwhile. */
#define BLOCK_BYTES       (1 << 20)
#define SMALL_BLOCK_BYTES (1 << 19) /* vnni2, or one tap */
/* Channels below which rows are read in place. A single tap with long vectors, whose tiles are tall, reads
 * all rows in place (1x1 on Zen 4, packed and in place: 192 -> 32 at 28x28 82 and 110 GF/s, 64 -> 384 at
 * 14x14 98 and 108, 256 -> 64 at 56x56 73 and 93; with more channels 0.97 to 1.1 times); tiles of 6 x 16 read
 * rows more often, so both are packed unless filters are few (Zen 3: 768 -> 3072 at 7x7 60 and 84 GF/s, 96 ->
 * 384 at 56x56 71 and 78, 96 -> 24 at 56x56 35 and 27). */
#define IN_PLACE_X  128
#define IN_PLACE_Y  64
#define FEW         32
#define LEAST_CHUNK 32
/* In a model of many layers, weights of this size or more are evicted before their next use. Non-temporal
 * stores saved 6 % of backward weights for the gradient, and 60 % of packing for the packed copy (512 -> 512,
 * 3x3, cold). */
#define STREAM_BYTES (1 << 20)

/* Lists the entries of one target pixel in ascending order of source pixels: rows that no earlier target has
 * read come last, and hardware prefetchers follow ascending addresses (backward data of 64 -> 64, 3x3 at
 * 32x32 on Zen 5: 178 GF/s in the order of taps, 227 in this one). With few channels (`narrow`) entries go
 * column by column, so that two_pixels can share them: those of the left pixel only, of both, of the right
 * one only. The order, and so the bits, is the same for every batch, with or without two_pixels. */
static int entries_of(const conv_op *op, bool back, bool narrow, int y, int x, hvt_entry *e)
{
    int count = 0;

    for (int t = 0; t < op->taps; t++) {
        int i = narrow ? t % op->r : t / op->s, j = narrow ? t / op->r : t % op->s;
        int r = back ? op->r - 1 - i : i, s = back ? op->s - 1 - j : j;
        int dr = r * op->dilation_h, ds = s * op->dilation_w;
        int sy = back ? hvt__output_index(y, dr, op->oh, op->stride_h, op->top)
                      : hvt__input_index(y, dr, op->h, op->stride_h, op->top);
        int sx = back ? hvt__output_index(x, ds, op->ow, op->stride_w, op->left)
                      : hvt__input_index(x, ds, op->w, op->stride_w, op->left);

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

/* Merge the entries of two neighbouring pixels, `first` of the left one followed by `second` of the right
 * one: shared entries, which end the first list and begin the second, are kept once. Returns the new number
 * of entries; a no-op if none are shared. */
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

/* Returns the number of pixels whose images fill tiles of the greatest height. */
static int pixels_of_tiles(const conv_op *op)
{
    int pixels = 1;

    while (pixels * op->n % op->kern->rows[1])
        pixels++;
    return pixels;
}

static hvt_status make_list(const conv_op *op, bool back, conv_rows rows, conv_list *l)
{
    int h = back ? op->h : op->oh, w = back ? op->w : op->ow;
    int most = rows == CONV_IMAGES               ? 1
               : rows == CONV_BOTH && op->n >= 8 ? pixels_of_tiles(op)
                                                 : INT_MAX,
        n = 0, runs = 0;
    bool narrow = op->kern->two_pixels && (back ? op->c : op->k) <= op->kern->vl,
         two_pixels = narrow && rows == CONV_IMAGES;

    *l = (conv_list){.rows = rows,
                     .pixels = h * w,
                     .sources = back ? op->oh * op->ow : op->h * op->w,
                     .step = rows != CONV_IMAGES && back ? op->stride_w : 1,
                     .shift = back ? 1 : op->stride_w,
                     .next_tap =
                         back ? 1 : -op->stride_w / op->dilation_w, /* otherwise neighbours share no source */
                     .run = malloc(sizeof *l->run * ((size_t)h * (size_t)w + 1)),
                     /* + taps: a list is written before it is compared with the previous one, and dropped if
                      * equal */
                     .e = malloc(sizeof *l->e * ((size_t)op->products + (size_t)op->taps))};
    HVT_CHECK(l->run && l->e, E_MEM, "no memory for the %ld entries of a convolution", op->products);
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

/* Choose the rows of a tile. In HWN the images of a pixel are dense and equally many. If they give few tiles,
 * or few of maximum height, rows also span the pixels of a line. (192 -> 768, 1x1 at 28x28, 16 images on Zen
 * 3: 139 ms without, 133 with it. Not measured with longer vectors.) */
static conv_rows choose_rows(const conv_op *op, int width, int stride, int columns)
{
    const int high = op->kern->rows[1];

    if (!op->hwn)
        return width >= 8 || width > op->n ? CONV_WIDTH : CONV_IMAGES;
    if (op->n >= 8 && (stride != 1 || op->kern->vl != 8 || columns <= op->kern->vl || op->n % high == 0))
        return CONV_IMAGES;
    return stride == 1 ? CONV_BOTH : op->n == 1 ? CONV_WIDTH : CONV_IMAGES;
}

/*
 * True if rows are a multiple of 1,024 floats and so map to the same set of an L1 cache with 64 sets: the
 * lines of a tall tile evict each other (conflict misses). Such rows are copied to a pitch one line longer.
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

/* Set l->pitch if rows must be copied; s_pixel and s_image are strides of the source, whose pixels have c
 * channels. Rows to be widened are always copied, densely, and so are bf16 rows that do not fill their
 * k-groups. AMX loads whole lines, so conflict misses do not matter. */
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

/* True if a tile computes the three taps of a filter row, one vector of columns each: with a single tap,
 * loads would take as long as multiply-adds. In f32, where four pixels fill the L1 cache, it is slower if c
 * needs several tiles (16 -> 16, 3x3 at 32x32, 128 images of f32 on Zen 5: 184 GF/s without, 152 with it; 3
 * -> 16: 71, 104). */
static bool takes_three_taps(const conv_op *op)
{
    return op->kern->rows[2] && op->k <= op->kern->vl && op->s == 3 && op->even && op->stride_w == 1 &&
           op->left == 1 && op->w > 1 && (op->vnni2 || op->c <= op->kern->rows[2]);
}

/* Split c into tiles of at most `most` rows, and into panels of packed x. */
static void size_tiles(direct *d, int most)
{
    const conv_op *op = &d->op;
    const hvt_conv_kernels *kern = op->kern;

    if (kern->shared_panels) {
        d->a_panel = op->c < kern->pitch ? op->c : kern->pitch;
        d->panel_tiles = tile_count(d->a_panel, most);
        d->a_tiles = tile_count(op->c, d->a_panel) * d->panel_tiles;
        d->a_rows = tile_count(d->a_panel, d->panel_tiles);
        d->a_pitch = tile_count(d->a_panel, kern->vl) * kern->vl;
    } else {
        d->a_tiles = tile_count(op->c, most);
        d->a_panel = d->a_rows = tile_count(op->c, d->a_tiles);
        d->panel_tiles = 1;
        d->a_pitch = kern->pitch;
    }
    d->b_panel = op->vnni2 ? CONV_PANEL : 2 * kern->vl;
    d->b_pitch = op->vnni2 && op->k <= kern->vl ? kern->vl : d->b_panel;
}

static void size_blocks(direct *d)
{
    const conv_op *op = &d->op;
    const hvt_conv_kernels *kern = op->kern;
    const bool in_place = op->hwn && op->type == HVT_F32;
    const size_t element = op->vnni2 ? sizeof(uint16_t) : sizeof(float);
    size_t weights = sizeof(float) * (size_t)op->taps * (size_t)op->c * (size_t)op->k;

    d->stream = weights >= STREAM_BYTES;
    d->taps_per_tile = takes_three_taps(op) ? 3 : 1;
    size_tiles(d, kern->rows[d->taps_per_tile == 3 ? 2 : op->k > kern->vl]);
    if (!in_place) {
        d->slots = d->pack_y = 1;
    } else if (op->taps == 1) {
        d->slots = kern->vl < 16 && (op->k > FEW ? op->c >= IN_PLACE_Y : op->c > IN_PLACE_X);
        d->pack_y = op->k % kern->vl || (d->slots && op->k > FEW);
    } else {
        d->slots = op->c > IN_PLACE_X;
        d->pack_y = op->k % kern->vl || op->k > IN_PLACE_Y;
    }

    /* each block reads and writes the whole gradient, so large weights need large blocks */
    const size_t cached = op->vnni2 || op->taps == 1 ? SMALL_BLOCK_BYTES : BLOCK_BYTES,
                 budget = weights > cached ? weights : cached;
    size_t line = element * ((size_t)op->c * (size_t)op->stride_h * (size_t)op->stride_w + (size_t)op->k);
    int lines = op->taps > 1 && d->slots ? op->r : 1;

    d->chunk = op->n;
    while (d->chunk > LEAST_CHUNK && line * (size_t)op->ow * (size_t)lines * (size_t)d->chunk > budget)
        d->chunk = (d->chunk + 1) / 2;

    size_t fit = budget / (line * (size_t)d->chunk);
    int pixels = op->oh * op->ow, each = fit < 1 ? 1 : fit < (size_t)pixels ? (int)fit : pixels;

    d->blocks = tile_count(pixels, each);
    each = tile_count(pixels, d->blocks);
    if (d->taps_per_tile == 3) /* whole lines */
        each = tile_count(each, op->ow) * op->ow;
    d->blocks = tile_count(pixels, each);

    for (int b = 0; b < d->blocks; b++) {
        d->block[b].pixel = b * each;
        d->block[b].end = (b + 1) * each < pixels ? (b + 1) * each : pixels;
    }
}

/* List the entries of a block for the three taps of filter row `row`, from index n on: for each line the
 * first pixel of x, those between, the last; `b` is dy's pixel for the first tap that has one. Returns the
 * end index. */
static int list_three_taps(const direct *d, const conv_block *b, int row, int n, int *first)
{
    const conv_op *op = &d->op;

    for (int part = 0; part < 3; part++) {
        const int from = part == 0 ? 0 : part == 1 ? 1 : op->w - 1, end = part == 0 ? 1 : op->w - (part == 1);

        first[part] = n;
        for (int line = b->pixel / op->ow; line < b->end / op->ow; line++) {
            const int y = hvt__input_index(line, row, op->h, op->stride_h, op->top);

            for (int x = from; y >= 0 && x < end; x++)
                d->e[n++] =
                    (hvt_entry){y * op->w + x, line * op->ow + x + (part < 2) - (d->pack_y ? b->pixel : 0)};
        }
    }
    return n;
}

/* List the entries of a block and a tap from index n on. Returns the end index. */
static int list_tap(const direct *d, const conv_block *b, int tap, int n)
{
    const conv_op *op = &d->op;

    for (int p = b->pixel; p < b->end; p++) {
        int y = hvt__input_index(p / op->ow, tap / op->s * op->dilation_h, op->h, op->stride_h, op->top);
        int x = hvt__input_index(p % op->ow, tap % op->s * op->dilation_w, op->w, op->stride_w, op->left);

        if (y >= 0 && x >= 0)
            d->e[n++] = (hvt_entry){y * op->w + x, d->pack_y ? p - b->pixel : p};
    }
    return n;
}

/* List the entries of all blocks and taps, with unpacked input pixels, and find the range of input pixels
 * that each block reads. */
static void list_blocks(direct *d, int *low, int *high)
{
    const int taps = d->op.taps;
    int n = 0;

    for (int b = 0; b < d->blocks; b++) {
        int *first = &d->first[b * taps], from = n;

        for (int t = 0; t < taps; t += d->taps_per_tile) {
            first[t] = n;
            n = d->taps_per_tile == 3 ? list_three_taps(d, &d->block[b], t / 3, n, first + t)
                                      : list_tap(d, &d->block[b], t, n);
            for (int i = t; i < t + d->taps_per_tile; i++)
                d->tap_used[i] |= n > first[t];
        }
        low[b] = INT_MAX;
        high[b] = -1;
        for (const hvt_entry *e = d->e + from; e < d->e + n; e++) {
            low[b] = e->a < low[b] ? e->a : low[b];
            high[b] = e->a > high[b] ? e->a : high[b];
        }
    }
    d->first[d->blocks * taps] = n;
}

/* Assign packed input pixels to slots of a ring, as long as the widest block needs, so that pixels shared by
 * two blocks are packed once. ordinal[pixel]: its index among the used ones. */
static void assign_slots(direct *d, const int *low, const int *high, int *ordinal)
{
    const conv_op *op = &d->op;
    int entries = d->first[d->blocks * op->taps], used = 0, done = 0, needed = INT_MAX;

    memset(ordinal, 0, sizeof *ordinal * (size_t)op->h * (size_t)op->w);
    for (int i = 0; i < entries; i++)
        ordinal[d->e[i].a] = 1;
    for (int p = 0; p < op->h * op->w; p++)
        if (ordinal[p]) {
            d->used[used] = p;
            ordinal[p] = used++;
        }
    for (int b = 0; b < d->blocks; b++) {
        d->block[b].reads = high[b] >= 0 ? ordinal[low[b]] : done;
        d->block[b].pack_first = done;
        if (high[b] >= 0 && ordinal[high[b]] >= done)
            done = ordinal[high[b]] + 1;
        d->block[b].pack_end = done;
    }
    d->slots = 1;
    for (int b = d->blocks - 1; b >= 0;
         b--) { /* pixels that this or a later block reads must not be overwritten */
        if (low[b] < needed)
            needed = low[b];
        if (needed < INT_MAX && d->block[b].pack_end - ordinal[needed] > d->slots)
            d->slots = d->block[b].pack_end - ordinal[needed];
    }
    for (int i = 0; i < entries; i++)
        d->e[i].a = ordinal[d->e[i].a] % d->slots;
}

static size_t floats_bytes(size_t count)
{
    return (sizeof(float) * count + 63) / 64 * 64;
}

/* Place the panels of packed pixels, and count their bytes. */
static void place_panels(direct *d)
{
    const conv_op *op = &d->op;
    const int x_panels = d->a_tiles / d->panel_tiles, y_panels = tile_count(op->k, d->b_panel),
              pixels = d->block[0].end;
    int depth;
    const long rows = conv_k_groups(op->kern, d->chunk, &depth), x = rows * d->a_pitch, y = rows * d->b_pitch;

    d->a_slot = op->vnni2 ? x_panels * x : x;
    d->b_slot = op->vnni2 ? y_panels * y : y;
    d->a_next = op->vnni2 ? x : d->slots * x;
    d->b_next = op->vnni2 ? y : pixels * y;
    d->x_bytes = floats_bytes((size_t)(d->slots * x_panels * x));
    if (!d->slots && direct_takes_norm(op)) /* room for its norm */
        d->x_bytes = floats_bytes((size_t)pixels * (size_t)d->chunk * (size_t)op->c);
    d->y_bytes = d->pack_y ? floats_bytes((size_t)(pixels * y_panels * y)) : 0;
}

static hvt_status plan_wgrad(direct *d)
{
    const conv_op *op = &d->op;
    size_t in = (size_t)op->h * (size_t)op->w, out = (size_t)op->oh * (size_t)op->ow, blocks;
    int *low; /* [blocks], then high [blocks] and ordinal [in] */

    d->block = calloc(out, sizeof *d->block); /* without slots all ranges stay empty */
    HVT_CHECK(d->block, E_MEM, "no memory for the blocks of a convolution");
    size_blocks(d);
    blocks = (size_t)d->blocks;
    d->first = malloc(sizeof *d->first * (blocks * (size_t)op->taps + 1));
    d->e = malloc(sizeof *d->e * ((size_t)op->products + 1));
    d->used = malloc(sizeof *d->used * in);
    d->tap_used = calloc((size_t)op->taps, sizeof *d->tap_used);
    low = malloc(sizeof *low * (2 * blocks + in));
    bool has = d->first && d->e && d->used && d->tap_used && low;

    if (has) {
        list_blocks(d, low, low + blocks);
        if (d->slots)
            assign_slots(d, low, low + blocks, low + 2 * blocks);
    }
    free(low);
    HVT_CHECK(has, E_MEM, "no memory for the %ld entries of a convolution", op->products);
    place_panels(d);
    return HVT_OK;
}

/* ---- the algorithm ---- */

static void free_list(conv_list *l)
{
    free(l->run);
    free(l->e);
    free(l->is_source);
}

static void free_direct(conv_op *op)
{
    direct *d = (direct *)op;

    free_list(&d->out);
    free_list(&d->in);
    free(d->tap_used);
    free(d->block);
    free(d->first);
    free(d->e);
    free(d->used);
}

/* Plan the entry lists of the three passes, and their copies. */
static hvt_status plan_direct(conv_op *op)
{
    direct *d = (direct *)op;

    HVT_TRY(make_list(op, false, choose_rows(op, op->ow, op->stride_w, op->k), &d->out));
    HVT_TRY(plan_copy(op, op->c, op->x_pixel, op->x_image, &d->out));
    d->w_bytes = op->type == HVT_F32 ? 0 : (size_t)conv_panels(op->k) * conv_panel_bytes(op, d->out.len);
    HVT_TRY(plan_wgrad(d));
    if (op->no_dx)
        return HVT_OK;
    HVT_TRY(make_list(op, true, choose_rows(op, op->w, op->stride_w, op->c), &d->in));
    return plan_copy(op, op->k, op->y_pixel, op->y_image, &d->in);
}

static size_t direct_bytes(const conv_op *op)
{
    const size_t out = hvt__direct_pass_bytes(op, false),
                 in = op->no_dx ? 0 : hvt__direct_pass_bytes(op, true);
    const size_t pass = in > out ? in : out, dw = hvt__direct_backward_w_bytes(op);

    return dw > pass ? dw : pass;
}

static void describe_direct(const conv_op *op, char *ret_text, size_t room)
{
    static const char *const rows[] = {"images", "pixels of a line", "pixels and images"};
    const direct *d = direct_of(op);

    snprintf(
        ret_text, room,
        "a tile's rows in y: %s, source pitch %d (0: in place); dx: %s, %d; dw: %d blocks of %d pixels x "
        "%d images, x %s, dy %s%s",
        rows[d->out.rows], d->out.pitch, op->no_dx ? "none" : rows[d->in.rows], d->in.pitch, d->blocks,
        d->block[0].end - d->block[0].pixel, d->chunk, d->slots ? "copied" : "in place",
        d->pack_y ? "copied" : "in place", d->stream ? ", non-temporal stores" : "");
}

const conv_algorithm hvt__conv_direct = {
    .size = sizeof(direct),
    .plan = plan_direct,
    .free = free_direct,
    .bytes = direct_bytes,
    .takes_norm = direct_takes_norm,
    .describe = describe_direct,
    .forward = hvt__direct_forward,
    .backward_x = hvt__direct_backward_x,
    .backward_w = hvt__direct_backward_w,
};
