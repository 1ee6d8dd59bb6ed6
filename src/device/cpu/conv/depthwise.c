/*
 * Depthwise convolutions: every filter reads one channel, so there is no matrix product, and a pass takes
 * about as long as moving its arrays. All three passes run over output (backward data: input) lines in order,
 * so that the lines that a window spans are read from memory once; images go in chunks for which these lines
 * stay in the L2 cache.
 *
 * A kernel computes several *targets* that read the same taps: pixels of a line, and all images of a slice.
 * Its lists are the product of one list along each dimension, which name existing pixels only.
 *
 * A norm of x (conv.set_norm) is computed line by line, into a ring of as many lines as a window spans.
 * Forward does so in strips of columns, of which the ring stays in the L2 cache.
 *
 * Where a channel has several filters, y and dy are split into one *plane* for each, [M][rows][C], between
 * the caller and the kernels; weights always lie so.
 *
 * Backward weights cuts (chunk of images, line) into parts by the shape alone; a part's terms are added in
 * their order, and the parts along the tree.
 */
#include "conv_impl.h"
#include "device/host.h"

#define LINES_BYTES  (512 << 10) /* of a slice in the lines that a window spans */
#define WINDOW_BYTES (24 << 10)  /* of a slice in a window and the pixels that enter it next */
#define PARTS_BYTES  (4u << 20)  /* of the sums of all parts */
#define RINGS_BYTES  (64u << 20) /* of all threads, or as many as x has */
#define LARGE_BYTES  (8u << 20)  /* of x: smaller arrays are near enough, and prefetching costs 10 to 15 % */
enum {
    LEAST_IMAGES = 4, /* of a pixel that are worth a kernel's call */
    DW_IMAGES = 16,   /* the same of backward weights: a call loads and stores its sums */
    PART_TERMS = 4096,
    MOST_PARTS = 32,
    JOBS_A_THREAD = 4,
    SUM = 8192,   /* weights of a job */
    SPLIT = 1024, /* rows of a job */
    PIXELS_AHEAD = 4,
    RING_LINES = 32,
    LEAST_STRIP = 14 /* columns */
};

/* Targets along one dimension: `count` of them, `step` apart, each of which reads `shift` further on than the
 * one before. */
typedef struct axis_run {
    int entry, target, count;
} axis_run;

typedef struct axis {
    int runs, step;
    long shift;    /* elements */
    axis_run *run; /* [runs+1] */
    hvt_depthwise_entry *e;
} axis;

typedef struct depthwise {
    conv_op op;
    axis out_h, out_w, in_h, in_w; /* forward, and backward weights; backward data */
} depthwise;

static const depthwise *depthwise_of(const conv_op *op)
{
    return (const depthwise *)op;
}

static bool suits(const conv_op *op)
{
    return op->depthwise;
}

/* ---- plan ---- */

static bool continues(const axis *a, const axis_run *run, int entry, int count, int target)
{
    const hvt_depthwise_entry *e = a->e + run->entry, *next = a->e + entry;

    if (target != run->target + run->count * a->step || count != entry - run->entry)
        return false;
    for (int i = 0; i < count; i++)
        if (next[i].w != e[i].w || next[i].from != e[i].from + run->count * a->shift)
            return false;
    return true;
}

/* source: elements from one source to the next; weight: of a tap. */
static hvt_status make_axis(axis *a, bool back, bool join, int in, int out, int taps, int dilation,
                            int stride, int pad, long source, long weight)
{
    const int targets = back ? in : out;
    int n = 0;

    a->step = join && back ? stride : 1;
    a->shift = (back ? 1 : stride) * source;
    a->run = malloc(sizeof *a->run * ((size_t)targets + 1));
    a->e = malloc(sizeof *a->e * ((size_t)targets * (size_t)taps + 1));
    HVT_CHECK(a->run && a->e, E_MEM, "no memory for the %d taps of a convolution", taps);
    for (int phase = 0; phase < a->step; phase++)
        for (int o = phase; o < targets; o += a->step) {
            axis_run *last = o == phase ? NULL : &a->run[a->runs - 1];
            const int entry = n;

            for (int t = 0; t < taps; t++) {
                int tap = back ? taps - 1 - t : t;
                int i = back ? hvt__output_index(o, tap * dilation, out, stride, pad)
                             : hvt__input_index(o, tap * dilation, in, stride, pad);

                if (i >= 0)
                    a->e[n++] = (hvt_depthwise_entry){i * source, tap * weight};
            }
            if (join && last && continues(a, last, entry, n - entry, o)) {
                last->count++;
                n = entry;
            } else {
                a->run[a->runs++] = (axis_run){entry, o, 1};
            }
        }
    a->run[a->runs].entry = n;
    return HVT_OK;
}

/* Elements from a pixel to the next, of x and of a plane of y. */
static long pixel_of(const conv_op *op)
{
    return op->x_row * (op->hwn ? (long)op->n : 1);
}

static hvt_status plan_axes(conv_op *op, bool back, axis *h, axis *w)
{
    const long pixel = pixel_of(op), line = pixel * (back ? op->ow : op->w);

    HVT_TRY(make_axis(h, back, false, op->h, op->oh, op->r, op->dilation_h, op->stride_h, op->top, line,
                      (long)op->s * CONV_PANEL));
    return make_axis(w, back, true, op->w, op->ow, op->s, op->dilation_w, op->stride_w, op->left, pixel,
                     CONV_PANEL);
}

static hvt_status plan(conv_op *op)
{
    depthwise *d = (depthwise *)op;

    HVT_TRY(plan_axes(op, false, &d->out_h, &d->out_w));
    return op->no_dx ? HVT_OK : plan_axes(op, true, &d->in_h, &d->in_w);
}

static void free_plan(conv_op *op)
{
    depthwise *d = (depthwise *)op;
    axis *const all[] = {&d->out_h, &d->out_w, &d->in_h, &d->in_w};

    for (size_t i = 0; i < HVT_LEN(all); i++) {
        free(all[i]->run);
        free(all[i]->e);
    }
}

/* ---- planes ---- */

typedef struct planes {
    const conv_op *op;
    const void *from;
    void *to;
    size_t rows;
    int real;  /* images; the rows of others are left alone */
    bool join; /* [M][rows][C] becomes [rows][K], else the reverse */
} planes;

static size_t image_of(const conv_op *op, size_t row)
{
    return op->hwn ? row % (size_t)op->n : row / ((size_t)op->oh * (size_t)op->ow);
}

static void planes_job(void *ctx, int job, int thread)
{
    const planes *g = ctx;
    const size_t m = (size_t)g->op->blocks, c = (size_t)g->op->x_row, first = (size_t)job * SPLIT;
    const size_t end = g->rows - first < SPLIT ? g->rows : first + SPLIT;

    for (size_t row = first; row < end; row++)
        for (size_t j = 0; j < m && image_of(g->op, row) < (size_t)g->real; j++)
            for (size_t i = 0; i < c; i++) {
                const size_t plane = (j * g->rows + row) * c + i, whole = (row * c + i) * m + j;
                const size_t from = g->join ? plane : whole, to = g->join ? whole : plane;

                if (g->op->type == HVT_F32)
                    ((float *)g->to)[to] = ((const float *)g->from)[from];
                else
                    ((uint16_t *)g->to)[to] = ((const uint16_t *)g->from)[from];
            }
}

static size_t rows_of_y(const conv_op *op)
{
    return (size_t)op->n * (size_t)op->oh * (size_t)op->ow;
}

static void move_planes(const conv_op *op, int real, bool join, const void *from, void *to)
{
    planes g = {op, from, to, rows_of_y(op), real, join};

    hvt__parallel_for(op->pool, (int)((g.rows + SPLIT - 1) / SPLIT), planes_job, &g);
}

/* Bytes of y in planes; 0: y is one itself. */
static size_t plane_bytes(const conv_op *op)
{
    return op->blocks == 1 ? 0
                           : (rows_of_y(op) * (size_t)op->y_row * hvt_dtype_size(op->type) + 63) / 64 * 64;
}

/* ---- lines of x with a norm ---- */

/* Line i of x, with x's strides, is at i % lines; of those before `end` the last ones are there. */
typedef struct ring {
    char *at;
    int lines, end;
} ring;

static int window_lines(const conv_op *op)
{
    const int high = (op->r - 1) * op->dilation_h + 1;

    return high < op->h ? high : op->h;
}

static long line_of(const conv_op *op)
{
    return pixel_of(op) * op->w;
}

static size_t ring_bytes(const conv_op *op)
{
    return (hvt_dtype_size(op->type) * (size_t)window_lines(op) * (size_t)line_of(op) + 63) / 64 * 64;
}

/* Are the rings small? Bits do not depend on it. */
static bool takes_norm(const conv_op *op)
{
    const size_t rings = ring_bytes(op) * (size_t)hvt__thread_pool_size(op->pool),
                 x = hvt_dtype_size(op->type) * (size_t)line_of(op) * (size_t)op->h;

    return op->hwn && op->r <= RING_LINES && (rings <= RINGS_BYTES || rings <= x);
}

/* Bytes of the rings of all threads, behind what else is in ws. */
static size_t rings_bytes(const conv_op *op)
{
    return takes_norm(op) ? ring_bytes(op) * (size_t)hvt__thread_pool_size(op->pool) : 0;
}

static void fetch_pixel(const conv_op *op, size_t at, int images, int channels)
{
    const bool dense = channels == op->x_row;

    for (int i = 0; i < (dense ? 1 : images); i++)
        hvt__prefetch(hvt__at(op->norm.x, op->type, at + (size_t)i * (size_t)op->x_row),
                      hvt_dtype_size(op->type) * (size_t)channels * (size_t)(dense ? images : 1));
}

/* A part of every line of x. */
typedef struct area {
    int column, end; /* columns of pixels */
    int image, images, channel, channels;
} area;

/* Compute those of lines [first, end) that are not there. */
static void fill_ring(const conv_op *op, ring *r, int first, int end, const area *a)
{
    const size_t pixel = (size_t)pixel_of(op), line = (size_t)line_of(op);
    const bool whole = a->images == op->n && a->channels == op->x_row;
    const int pixels = whole ? a->end - a->column : 1; /* without gaps in memory */

    for (int i = r->end > first ? r->end : first; i < end; i++) {
        const size_t x = (size_t)i * line, to = (size_t)(i % r->lines) * line;

        for (int q = a->column; q < a->end; q += pixels) {
            const size_t in = (size_t)q * pixel + (size_t)a->image * (size_t)op->x_row + (size_t)a->channel;

            if (!whole) /* too scattered for hardware prefetchers */
                fetch_pixel(op, x + in + PIXELS_AHEAD * pixel, a->images, a->channels);
            conv_norm(op, x + in, pixels * a->images, a->channel, a->channels,
                      hvt__at(r->at, op->type, to + in));
        }
    }
    r->end = end > r->end ? end : r->end;
}

/* ---- a pass ---- */

typedef struct pass {
    const conv_op *op;
    const axis *h, *w;
    const void *from, *to; /* to: written, but by backward weights, where it is dy */
    const float *weights;
    long s_image, t_line, t_pixel, t_image; /* strides in elements, of source and target */
    int planes;
    int images, channels;      /* of a slice */
    int chunks, slices, bands; /* of images, of channels, of lines */
    int strips;                /* of columns, where from has a norm */
    int all;                   /* images */
    bool back, add, stream;
    char *rings; /* of all threads; NULL: from has no norm */

    /* backward weights */
    float *dw, *sums; /* of the first part; of the others, one after another */
    int parts, column_parts;
} pass;

/* Slices of `images` or more images, if there are as many: as many channels as fit, whole panels, and if
 * these are all channels more images. */
static void set_slice(pass *g, int images)
{
    const conv_op *op = g->op;
    const size_t element = hvt_dtype_size(op->type), line = (size_t)window_lines(op) * (size_t)op->w,
                 window = (size_t)op->r * ((size_t)op->s + 1);
    const size_t bytes =
        WINDOW_BYTES / window < LINES_BYTES / line ? WINDOW_BYTES / window : LINES_BYTES / line;
    const size_t channels = bytes / element / (size_t)images / CONV_PANEL * CONV_PANEL,
                 more = bytes / element / (size_t)op->x_row / LEAST_IMAGES * LEAST_IMAGES;

    g->channels = channels >= (size_t)op->x_row ? op->x_row : channels ? (int)channels : CONV_PANEL;
    if (op->hwn && more > (size_t)images)
        images = more < (size_t)g->all ? (int)more : g->all;
    g->images = images < g->all ? images : g->all;
    g->chunks = conv_tiles(g->all, g->images);
    g->slices = conv_tiles(op->x_row, g->channels);
}

static pass make_pass(const conv_op *op, bool back, int real)
{
    const depthwise *d = depthwise_of(op);
    const long pixel = pixel_of(op), x_image = op->hwn ? op->x_row : (long)op->x_row * op->h * op->w,
               y_image = op->hwn ? op->x_row : (long)op->x_row * op->oh * op->ow;
    pass g = {.op = op,
              .h = back ? &d->in_h : &d->out_h,
              .w = back ? &d->in_w : &d->out_w,
              .t_line = pixel * (back ? op->w : op->ow),
              .t_pixel = pixel,
              .s_image = back ? y_image : x_image,
              .t_image = back ? x_image : y_image,
              .planes = back ? op->blocks : 1,
              .all = real * op->rows_per_image,
              .back = back};

    set_slice(&g, op->hwn ? LEAST_IMAGES : 1);
    return g;
}

/* The kernel's view of the targets of run `across` in line `down`, of images from `image` on and channels
 * from `channel` on, and where they begin. */
static hvt_depthwise targets_of(const pass *g, int down, int across, int image, int channel, size_t *ret_from,
                                size_t *ret_to)
{
    const conv_op *op = g->op;
    const axis_run *row = &g->h->run[down], *col = &g->w->run[across];
    const int left = g->all - image, channels = op->x_row - channel;
    const int rows = row[1].entry - row->entry, cols = col[1].entry - col->entry;
    const int stride = g->back ? 1 : op->stride_w; /* as wide as the filter, targets share no column */
    const bool ahead =
        op->hwn && rows && cols &&
        hvt_dtype_size(op->type) * (size_t)op->n * (size_t)op->h * (size_t)op->w * (size_t)op->x_row >=
            LARGE_BYTES;

    *ret_from = (size_t)(image * g->s_image + channel);
    *ret_to = (size_t)(image * g->t_image + row->target * g->t_line + col->target * g->t_pixel + channel);
    return (hvt_depthwise){.channels = channels < g->channels ? channels : g->channels,
                           .count = col->count,
                           .images = left < g->images ? left : g->images,
                           .rows = rows,
                           .cols = cols,
                           .row = g->h->e + row->entry,
                           .col = g->w->e + col->entry,
                           .panel = (long)op->taps * CONV_PANEL,
                           .shift = op->dilation_w > 1 ? 0
                                    : cols == 1        ? 1
                                    : stride < cols    ? stride
                                                       : 0,
                           .from_step = g->w->shift,
                           .to_step = g->t_pixel * g->w->step,
                           .from_image = g->s_image,
                           .to_image = g->t_image,
                           .stream = g->stream,
                           .planes = g->planes,
                           .from_plane = (long)rows_of_y(op) * op->x_row,
                           .w_plane = (long)conv_block_weights(op),
                           .ahead_from = ahead
                                             ? g->h->e[row[1].entry - 1].from +
                                                   g->w->e[col[1].entry - 1].from + PIXELS_AHEAD * g->w->shift
                                             : 0,
                           .ahead_to = ahead ? PIXELS_AHEAD * g->t_pixel : 0};
}

static ring thread_ring(const pass *g, int thread)
{
    return (ring){g->rings ? g->rings + (size_t)thread * ring_bytes(g->op) : NULL, window_lines(g->op), 0};
}

static int least(int a, int b)
{
    return a < b ? a : b;
}

/* The lines that run `down` reads, in their ring, of this area; *row: the kernel's list of them. */
static void norm_lines(const pass *g, ring *r, int down, const area *a, hvt_depthwise_entry *row)
{
    const conv_op *op = g->op;
    const axis_run *run = &g->h->run[down];
    const hvt_depthwise_entry *e = g->h->e + run->entry;
    const long line = line_of(op);
    const int rows = run[1].entry - run->entry;

    if (!rows)
        return;
    fill_ring(op, r, (int)(e[0].from / line), (int)(e[rows - 1].from / line) + 1, a);
    for (int i = 0; i < rows; i++)
        row[i] = (hvt_depthwise_entry){e[i].from / line % r->lines * line, e[i].w};
}

/* job = a band of lines of a slice */
static void pass_job(void *ctx, int job, int thread)
{
    const pass *g = ctx;
    const conv_op *op = g->op;
    const int band = job % g->bands, channel = job / g->bands % g->slices * g->channels,
              image = job / g->bands / g->slices * g->images;
    const float *weights = g->weights + (long)channel * op->taps;

    for (int p = conv_part(g->h->runs, band, g->bands); p < conv_part(g->h->runs, band + 1, g->bands); p++)
        for (int q = 0; q < g->w->runs; q++) {
            size_t from, to;
            const hvt_depthwise t = targets_of(g, p, q, image, channel, &from, &to);

            op->typed->depthwise(&t, hvt__at(g->from, op->type, from), weights, hvt__at(g->to, op->type, to),
                                 g->add);
        }
    if (g->stream)
        hvt__fence();
}

/* The targets of run `across` that are in columns [first, end), of one slice, whose lines are in a ring. */
static void strip_targets(const pass *g, const ring *r, const hvt_depthwise_entry *row, int down, int across,
                          int first, int end, int image, int channel)
{
    const conv_op *op = g->op;
    const axis_run *run = &g->w->run[across];
    const int skip = first > run->target ? first - run->target : 0,
              count = least(run->count, end - run->target) - skip;
    size_t from, to;
    hvt_depthwise t;

    if (count <= 0)
        return;
    t = targets_of(g, down, across, image, channel, &from, &to);
    t.row = row;
    t.count = count;
    t.ahead_from = 0;
    from += (size_t)skip * (size_t)g->w->shift;
    to += (size_t)skip * (size_t)g->t_pixel;
    op->typed->depthwise(&t, hvt__at(r->at, op->type, from), g->weights + (long)channel * op->taps,
                         hvt__at(g->to, op->type, to), false);
}

/* job = a band of lines of a strip of columns, with all its slices: the norm then has no gaps in memory */
static void strip_job(void *ctx, int job, int thread)
{
    const pass *g = ctx;
    const conv_op *op = g->op;
    const int band = job % g->bands, strip = job / g->bands;
    const int first = conv_part(op->ow, strip, g->strips), end = conv_part(op->ow, strip + 1, g->strips);
    const int left = first * op->stride_w - op->left,
              right = (end - 1) * op->stride_w - op->left + (op->s - 1) * op->dilation_w + 1;
    const area a = {left > 0 ? left : 0, least(right, op->w), 0, g->all, 0, op->x_row};
    ring r = thread_ring(g, thread);
    hvt_depthwise_entry row[RING_LINES];

    for (int p = conv_part(g->h->runs, band, g->bands); p < conv_part(g->h->runs, band + 1, g->bands); p++) {
        norm_lines(g, &r, p, &a, row);
        for (int image = 0; image < g->all; image += g->images)
            for (int channel = 0; channel < op->x_row; channel += g->channels)
                for (int q = 0; q < g->w->runs; q++)
                    strip_targets(g, &r, row, p, q, first, end, image, channel);
    }
    if (g->stream)
        hvt__fence();
}

/* Columns of targets for which the lines of a window fit, or few more: strips compute the norm of the pixels
 * between them twice. */
static int strip_columns(const conv_op *op)
{
    const size_t column = hvt_dtype_size(op->type) * (size_t)pixel_of(op) * (size_t)window_lines(op);
    const int columns = (int)(LINES_BYTES / column) / op->stride_w;

    return columns > LEAST_STRIP ? columns : LEAST_STRIP;
}

static void run_pass(pass *g)
{
    const conv_op *op = g->op;
    const int threads = hvt__thread_pool_size(op->pool), jobs = threads > 1 ? threads * JOBS_A_THREAD : 1;
    const int groups = g->rings ? g->strips : g->chunks * g->slices, bands = conv_tiles(jobs, groups);
    const size_t pixels = g->back ? (size_t)op->h * (size_t)op->w : (size_t)op->oh * (size_t)op->ow;

    g->stream = conv_streams(op, g->to, g->add, (size_t)op->n * pixels, op->x_row, g->t_image, g->t_pixel);
    g->bands = bands < g->h->runs ? bands : g->h->runs;
    hvt__parallel_for(op->pool, groups * g->bands, g->rings ? strip_job : pass_job, g);
}

/* The weights as floats, if need be at `room`. */
static const float *widened(const conv_op *op, const void *w, void *room)
{
    if (op->type == HVT_F32)
        return w;
    op->typed->widen(conv_weights(op), w, room);
    return room;
}

static size_t widened_bytes(const conv_op *op)
{
    return op->type == HVT_F32 ? 0 : sizeof(float) * conv_weights(op); /* panels of 128 bytes */
}

/* Of backward weights. */
static int parts_of(const conv_op *op, int images)
{
    const size_t most = PARTS_BYTES / sizeof(float) / conv_weights(op),
                 terms = (size_t)images * (size_t)op->oh * (size_t)op->ow / PART_TERMS;
    const size_t parts = most < MOST_PARTS ? most : MOST_PARTS;

    return terms < 1 || parts < 1 ? 1 : (int)(terms < parts ? terms : parts);
}

static size_t bytes_before_rings(const conv_op *op)
{
    const size_t sums = sizeof(float) * conv_weights(op) * (size_t)(parts_of(op, op->n) - 1);
    const size_t wide = widened_bytes(op);

    return (plane_bytes(op) + (sums > wide ? sums : wide) + 63) / 64 * 64;
}

static void forward(const conv_op *op, int real, const void *x, const void *w, void *y, void *ws)
{
    pass g = make_pass(op, false, real);
    void *to = op->blocks == 1 ? y : (char *)ws + widened_bytes(op);
    const float *weights = widened(op, w, ws);

    g.from = x;
    g.rings = op->normed ? (char *)ws + bytes_before_rings(op) : NULL;
    g.strips = conv_tiles(op->ow, strip_columns(op));
    for (int j = 0; j < op->blocks; j++) {
        g.weights = weights + (size_t)j * conv_block_weights(op);
        g.to = hvt__at(to, op->type, (size_t)j * rows_of_y(op) * (size_t)op->x_row);
        run_pass(&g);
    }
    if (to != y)
        move_planes(op, real, true, to, y);
}

/* dy, or a copy of it in planes at `room`. */
static const void *dy_in_planes(const conv_op *op, int real, const void *dy, void *room)
{
    if (op->blocks == 1)
        return dy;
    move_planes(op, real, false, dy, room);
    return room;
}

static void backward_x(const conv_op *op, int real, const void *w, const void *dy, void *dx, bool add,
                       void *ws)
{
    pass g = make_pass(op, true, real);

    g.weights = widened(op, w, ws);
    g.from = dy_in_planes(op, real, dy, (char *)ws + widened_bytes(op));
    g.to = dx;
    g.add = add;
    run_pass(&g);
}

/* ---- backward weights ---- */

/* job = the slices of some channels of a part */
static void dw_job(void *ctx, int job, int thread)
{
    const pass *g = ctx;
    const conv_op *op = g->op;
    const int part = job / g->column_parts, columns = job % g->column_parts, lines = g->chunks * op->oh;
    const int first = conv_part(g->slices, columns, g->column_parts),
              end = conv_part(g->slices, columns + 1, g->column_parts);
    const long channel_weights = op->taps; /* all channels of a panel before the next tap's */
    const long past = end == g->slices ? (long)conv_panels(op->x_row) * CONV_PANEL : (long)end * g->channels;
    const int channels = least(end * g->channels, op->x_row) - first * g->channels;
    float *dw = part ? g->sums + (size_t)(part - 1) * conv_weights(op) : g->dw;
    hvt_depthwise_entry row[RING_LINES];

    for (int j = 0; j < op->blocks; j++, dw += conv_block_weights(op)) {
        const size_t plane = (size_t)j * rows_of_y(op) * (size_t)op->x_row;
        ring r = thread_ring(g, thread);

        memset(dw + first * g->channels * channel_weights, 0,
               sizeof *dw * (size_t)((past - (long)first * g->channels) * channel_weights));
        for (int l = conv_part(lines, part, g->parts); l < conv_part(lines, part + 1, g->parts); l++) {
            const int down = l % op->oh, image = l / op->oh * g->images;

            if (!down)
                r.end = 0; /* other images */
            if (g->rings)
                norm_lines(
                    g, &r, down,
                    &(area){0, op->w, image, least(g->images, g->all - image), first * g->channels, channels},
                    row);
            for (int slice = first; slice < end; slice++)
                for (int q = 0; q < g->w->runs; q++) {
                    size_t from, to;
                    hvt_depthwise t = targets_of(g, down, q, image, slice * g->channels, &from, &to);

                    if (g->rings)
                        t.row = row, t.ahead_from = 0;
                    op->typed->depthwise_dw(&t, hvt__at(g->rings ? r.at : g->from, op->type, from),
                                            hvt__at(g->to, op->type, plane + to),
                                            dw + slice * g->channels * channel_weights);
                }
        }
    }
}

static void sum_job(void *ctx, int job, int thread)
{
    const pass *g = ctx;
    const size_t weights = conv_weights(g->op), first = (size_t)job * SUM, left = weights - first;
    const void *in[MOST_PARTS] = {g->dw};
    void *const out = g->dw;

    for (int i = 1; i < g->parts; i++)
        in[i] = g->sums + (size_t)(i - 1) * weights;
    hvt__cpu(g->op->head.dev)
        ->isa->el->in[HVT_F32]
        ->reduce(first, left < SUM ? left : SUM, in, g->parts, &out, 1);
}

static void backward_w(const conv_op *op, int real, const void *x, const void *dy, float *dw, void *ws)
{
    const int threads = hvt__thread_pool_size(op->pool), jobs = threads > 1 ? threads * JOBS_A_THREAD : 1;
    pass g = make_pass(op, false, real);

    g.from = x;
    g.to = dy_in_planes(op, real, dy, ws);
    g.dw = dw;
    g.sums = (float *)((char *)ws + plane_bytes(op));
    g.rings = op->normed ? (char *)ws + bytes_before_rings(op) : NULL;
    if (op->hwn)
        set_slice(&g, DW_IMAGES);
    g.parts = parts_of(op, g.all);
    g.column_parts = conv_tiles(jobs, g.parts);
    if (g.column_parts > g.slices)
        g.column_parts = g.slices;
    hvt__parallel_for(op->pool, g.parts * g.column_parts, dw_job, &g);
    if (g.parts > 1)
        hvt__parallel_for(op->pool, (int)((conv_weights(op) + SUM - 1) / SUM), sum_job, &g);
}

/* ---- the algorithm ---- */

static size_t bytes(const conv_op *op)
{
    return bytes_before_rings(op) + rings_bytes(op);
}

static void describe(const conv_op *op, char *ret_text, size_t room)
{
    const pass g = make_pass(op, false, op->n / op->rows_per_image);

    snprintf(ret_text, room, "depthwise, slices of %d images x %d channels; dw: %d parts", g.images,
             g.channels, parts_of(op, op->n));
}

const conv_algorithm hvt__conv_depthwise = {
    .size = sizeof(depthwise),
    .suits = suits,
    .plan = plan,
    .free = free_plan,
    .bytes = bytes,
    .takes_norm = takes_norm,
    .describe = describe,
    .forward = forward,
    .backward_x = backward_x,
    .backward_w = backward_w,
};
