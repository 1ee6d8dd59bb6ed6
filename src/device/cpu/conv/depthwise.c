/*
 * Depthwise convolutions: every filter reads one channel, so there is no matrix product, and memory traffic
 * determines the time of a pass.
 *
 * All three passes run over *targets* (outputs; backward data: inputs) line by line, in *slices* of images
 * and channels. The lines of *sources* that a window spans are copied into a *ring* or, with a fused norm
 * (conv.set_norm), computed there. The ring of a slice stays in the L2 cache, and its pixels are dense,
 * whereas an array's are often a multiple of 4096 bytes apart and would share a few sets of the L1 cache.
 * Around the image the ring is zero, so that all targets have all taps.
 *
 * A kernel computes the targets of a line that use the same taps. Backward data with a stride has several
 * *phases* of them, and so has forward with dilation, where neighbours share no column.
 *
 * If a channel has several filters, y and dy are split into one *plane* per filter, [M][rows][C], between the
 * caller and the kernels; weights always have this layout.
 *
 * Backward weights cuts (chunk of images, line) into parts by the shape; a part's terms are added in order,
 * and the parts along the tree.
 */
#include "conv_impl.h"
#include "device/host.h"

#include <math.h>

/* Bytes of a slice in the lines that a window spans: less than half of an L2 cache of 1 MiB, or of 512 KiB on
 * processors with shorter vectors */
#define LARGE_RING  (448u << 10)
#define SMALL_RING  (192u << 10)
#define PIECE_BYTES (2 << 10)  /* minimum of a slice per pixel: shorter pieces are slow to read */
#define PARTS_BYTES (4u << 20) /* the sums of all parts */
enum {
    PART_TERMS = 4096,
    MOST_PARTS = 32,
    SUM = 8192,  /* weights per job */
    SPLIT = 1024 /* rows per job */
};

/* One dimension of a pass. A source is in reach if some target reads it, also outside of the image. */
typedef struct axis {
    bool back;
    int targets, sources, taps, dilation, stride, pad;
    int phases;       /* targets p, p + phases, ... use the same taps */
    int ahead, shift; /* distance between the sources of two such targets; shift: see hvt_depthwise */
    int low, width;   /* first source in reach, and number of them */
    int window;       /* sources from a target's first to its last */
    int *first; /* [lists+1] first entry of each list; a list for each line, or for each phase of a line */
    hvt_depthwise_entry *e;
} axis;

/* One direction of a convolution: its lines and columns, and the ring, [plane][line][column][image][channel],
 * in which a line of zeros follows each plane's lines. Strides in elements. */
typedef struct side {
    axis h, w;
    int planes, images, channels;
    long pixel, line, plane;
} side;

typedef struct depthwise {
    conv_op op;
    side out, in; /* out: forward and backward weights; in: backward data */
} depthwise;

static const depthwise *depthwise_of(const conv_op *op)
{
    return (const depthwise *)op;
}

static bool suits(const conv_op *op)
{
    return op->depthwise;
}

static int least(int a, int b)
{
    return a < b ? a : b;
}

static int most(int a, int b)
{
    return a > b ? a : b;
}

/* ---- plan ---- */

static axis axis_of(bool back, int in, int out, int taps, int dilation, int stride, int pad)
{
    const int reach = (taps - 1) * dilation;
    axis a = {.back = back,
              .targets = back ? in : out,
              .sources = back ? out : in,
              .taps = taps,
              .dilation = dilation,
              .stride = stride,
              .pad = pad};
    int common = dilation, high;

    while (dilation % common || stride % common)
        common--;
    a.phases = dilation / common * (back ? stride : 1);
    a.shift = back ? 1 : stride / common;
    a.ahead = back ? dilation / common : stride / common * dilation;
    a.low = back ? (int)floor((double)(pad - reach) / stride) : -pad;
    high = back ? (a.targets - 1 + pad) / stride : (a.targets - 1) * stride - pad + reach;
    a.width = high - a.low + 1;
    a.window = least(back ? reach / stride + 1 : reach + 1, a.sources);
    return a;
}

/* Finds the source and the tap of a target's k-th tap, in the order of sources; false if it has none. */
static bool source_of(const axis *a, int target, int k, int *ret_source, int *ret_tap)
{
    const int tap = a->back ? a->taps - 1 - k : k, at = target + a->pad - tap * a->dilation;

    *ret_tap = tap;
    *ret_source = a->back ? at / a->stride : target * a->stride - a->pad + tap * a->dilation;
    return !a->back || at % a->stride == 0;
}

/* Makes the entries of `lists` targets, `planes` times each. Source i is at i % slots * from; if it is
 * outside of the image, at slots * from. slots = 0: at its index in reach. */
static hvt_status make_lists(axis *a, int lists, int planes, long from, int slots, long plane, long w,
                             long w_plane)
{
    int n = 0, source, tap;

    a->first = malloc(sizeof *a->first * ((size_t)lists + 1));
    a->e = malloc(sizeof *a->e * ((size_t)lists * (size_t)planes * (size_t)a->taps + 1));
    HVT_CHECK(a->first && a->e, E_MEM, "no memory for the %d taps of a convolution", a->taps);
    for (int target = 0; target < lists; target++) {
        a->first[target] = n;
        for (int p = 0; p < planes; p++)
            for (int k = 0; k < a->taps; k++) {
                if (!source_of(a, target, k, &source, &tap))
                    continue;
                if (!slots)
                    source -= a->low;
                else
                    source = source >= 0 && source < a->sources ? source % slots : slots;
                a->e[n++] = (hvt_depthwise_entry){p * plane + source * from, p * w_plane + tap * w};
            }
    }
    a->first[lists] = n;
    return HVT_OK;
}

/* Returns the elements between pixels of x, and of a plane of y. */
static long pixel_of(const conv_op *op)
{
    return op->x_row * (op->hwn ? (long)op->n : 1);
}

/* Plan a side's ring and slices: as many images as fit, or some channels of one image. */
static hvt_status plan_side(const conv_op *op, bool back, side *s)
{
    const size_t element = hvt_dtype_size(op->type), line = 64 / element,
                 ring = op->kern->vl == 16 ? LARGE_RING : SMALL_RING;
    size_t fit, column;

    s->h = axis_of(back, op->h, op->oh, op->r, op->dilation_h, op->stride_h, op->top);
    s->w = axis_of(back, op->w, op->ow, op->s, op->dilation_w, op->stride_w, op->left);
    s->planes = back ? op->blocks : 1;
    column = element * (size_t)s->planes * (size_t)s->h.window * (size_t)s->w.width;
    fit = ring / column > PIECE_BYTES / element ? ring / column : PIECE_BYTES / element;
    s->channels = fit >= (size_t)op->x_row ? op->x_row : (int)(fit / CONV_PANEL * CONV_PANEL);
    s->images = s->channels < op->x_row ? 1 : (int)((fit + (size_t)op->x_row - 1) / (size_t)op->x_row);
    s->images = tile_count(op->n, tile_count(op->n, s->images));
    s->pixel = (long)((((size_t)s->images * (size_t)s->channels + line - 1) / line | 1) * line);
    s->line = s->pixel * s->w.width;
    s->plane = s->line * (s->h.window + 1);
    HVT_TRY(make_lists(&s->h, s->h.targets, s->planes, s->line, s->h.window, s->plane,
                       (long)op->s * CONV_PANEL, (long)conv_block_weights(op)));
    return make_lists(&s->w, s->w.phases, 1, s->pixel, 0, 0, CONV_PANEL, 0);
}

static hvt_status plan(conv_op *op)
{
    depthwise *d = (depthwise *)op;

    HVT_TRY(plan_side(op, false, &d->out));
    return op->no_dx ? HVT_OK : plan_side(op, true, &d->in);
}

static void free_plan(conv_op *op)
{
    depthwise *d = (depthwise *)op;
    axis *const all[] = {&d->out.h, &d->out.w, &d->in.h, &d->in.w};

    for (size_t i = 0; i < HVT_LEN(all); i++) {
        free(all[i]->first);
        free(all[i]->e);
    }
}

/* ---- planes ---- */

typedef struct planes {
    const conv_op *op;
    const void *from;
    void *to;
    size_t rows;
    int all;   /* images of op->n; rows of others are untouched */
    bool join; /* [M][rows][C] to [rows][K], else the reverse */
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
        for (size_t j = 0; j < m && image_of(g->op, row) < (size_t)g->all; j++)
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
    planes g = {op, from, to, rows_of_y(op), real * op->rows_per_image, join};

    hvt__parallel_for(op->pool, (int)((g.rows + SPLIT - 1) / SPLIT), planes_job, &g);
}

static size_t whole_lines(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

/* Returns the bytes of y in planes; 0: y is a single plane. */
static size_t plane_bytes(const conv_op *op)
{
    return op->blocks == 1 ? 0 : whole_lines(rows_of_y(op) * (size_t)op->y_row * hvt_dtype_size(op->type));
}

/* ---- a pass ---- */

typedef struct array {
    const void *at; /* the targets' array is written, except in backward weights, where it is dy */
    long line, pixel, image, plane; /* strides in elements */
} array;

typedef struct pass {
    const conv_op *op;
    const side *s;
    array from, to;
    const float *weights;
    int all, chunks, slices, bands; /* images; chunks of them; slices of channels; bands of lines */
    bool normed, add, stream;
    char *rings;
    size_t ring_bytes; /* per thread */

    /* backward weights */
    float *dw, *sums; /* sums of the first part; sums of the other parts, in order */
    int parts;
} pass;

/* A thread's ring; lines before `end` have been filled. */
typedef struct ring {
    char *at;
    int end;
} ring;

/* A job's images and channels. */
typedef struct area {
    int image, images, channel, channels;
} area;

static array array_of(const conv_op *op, bool y, const void *at)
{
    const int h = y ? op->oh : op->h, w = y ? op->ow : op->w;
    const long pixel = pixel_of(op);

    return (array){at, pixel * w, pixel, op->hwn ? op->x_row : (long)op->x_row * h * w,
                   (long)rows_of_y(op) * op->x_row};
}

static pass make_pass(const conv_op *op, bool back, int real, const void *from, const void *to)
{
    const side *s = back ? &depthwise_of(op)->in : &depthwise_of(op)->out;
    const int all = real * op->rows_per_image;

    return (pass){.op = op,
                  .s = s,
                  .from = array_of(op, back, from),
                  .to = array_of(op, !back, to),
                  .normed = !back && op->normed,
                  .all = all,
                  .chunks = tile_count(all, s->images),
                  .slices = tile_count(op->x_row, s->channels)};
}

/* Returns the number of parts of each group's `items` that finishes first, if every part costs `more`
 * additional items. */
static int cut(const conv_op *op, int groups, int items, double more)
{
    const int threads = hvt__thread_pool_size(op->pool);
    double best = INFINITY;
    int parts = 1;

    for (int i = 1; i <= items; i++) {
        const double time = conv_time(groups * i, threads, tile_count(items, i) + more);

        if (time < best) {
            best = time;
            parts = i;
        }
    }
    return parts;
}

static area area_of(const pass *g, int chunk, int slice)
{
    const int panels = conv_panels(g->op->x_row), image = chunk * g->s->images;
    const int channel = conv_part(panels, slice, g->slices) * CONV_PANEL,
              end = least(conv_part(panels, slice + 1, g->slices) * CONV_PANEL, g->op->x_row);

    return (area){image, least(g->s->images, g->all - image), channel, end - channel};
}

/* Copies `bytes` bytes while it prefetches `ahead` to the L2 cache. */
static void copy_ahead(char *to, const char *from, const char *ahead, size_t bytes)
{
    size_t i = 0;

    for (; i + 64 <= bytes; i += 64) {
        __builtin_prefetch(ahead + i, 0, 2);
        memcpy(to + i, from + i, 64);
    }
    memcpy(to + i, from + i, bytes - i);
}

/* Copy `columns` pixels of an array, from element `at` on, densely; normed: y of op's norm instead. */
static void copy_pixels(const pass *g, const array *a, bool normed, size_t at, int columns, const area *part,
                        char *to)
{
    const conv_op *op = g->op;
    const size_t element = hvt_dtype_size(op->type), c = (size_t)part->channels;
    const bool dense = a->image == op->x_row && part->channels == op->x_row;
    const int rows = dense ? part->images : 1;
    const size_t bytes = element * c * (size_t)rows,
                 far = (1 + HVT_FAR / (element * c * (size_t)part->images)) * (size_t)a->pixel;

    at += (size_t)(part->image * a->image + part->channel);
    for (int q = 0; q < columns; q++, at += (size_t)a->pixel, to += element * (size_t)g->s->pixel)
        for (int i = 0; i < part->images; i += rows) {
            const size_t from = at + (size_t)(i * a->image);
            const char *ahead = hvt__at(a->at, op->type, from + far);
            char *out = to + element * (size_t)(i * g->s->channels);

            if (normed) {
                hvt__prefetch(ahead, bytes);
                conv_norm(op, from, rows, part->channel, part->channels, out);
            } else {
                copy_ahead(out, hvt__at(a->at, op->type, from), ahead, bytes);
            }
        }
}

/* Zero the ring outside of the image. */
static ring clear_ring(const pass *g, int thread)
{
    const side *s = g->s;
    const size_t element = hvt_dtype_size(g->op->type);
    const int left = most(-s->w.low, 0), end = least(s->w.sources - s->w.low, s->w.width);
    ring r = {g->rings + (size_t)thread * g->ring_bytes, 0};

    for (int i = 0; i < s->planes * (s->h.window + 1); i++) {
        char *line = r.at + element * (size_t)(i * s->line);
        const bool outside = i % (s->h.window + 1) == s->h.window || left >= end;

        memset(line, 0, element * (size_t)((outside ? s->w.width : left) * s->pixel));
        if (!outside)
            memset(line + element * (size_t)(end * s->pixel), 0,
                   element * (size_t)((s->w.width - end) * s->pixel));
    }
    return r;
}

/* Finds the first and the last image line that a target may read. Both increase with the target. */
static void window_of(const axis *h, int target, int *ret_first, int *ret_end)
{
    const int reach = (h->taps - 1) * h->dilation, last = h->back ? target + h->pad : 0;
    const int first =
        h->back ? (most(last - reach, 0) + h->stride - 1) / h->stride : target * h->stride - h->pad;

    *ret_first = most(first, 0);
    *ret_end = least(h->back ? last / h->stride + 1 : first + reach + 1, h->sources);
}

/* Put the lines that line `target` reads into the ring. */
static void fill_ring(const pass *g, ring *r, int target, const area *part)
{
    const side *s = g->s;
    const int left = most(s->w.low, 0), columns = least(s->w.low + s->w.width, s->w.sources) - left;
    const size_t element = hvt_dtype_size(g->op->type);
    int first, end;

    window_of(&s->h, target, &first, &end);
    for (int i = most(r->end, first); i < end; i++)
        for (int p = 0; p < s->planes; p++)
            copy_pixels(g, &g->from, g->normed,
                        (size_t)(p * g->from.plane + i * g->from.line + left * g->from.pixel), columns, part,
                        r->at + element * (size_t)(p * s->plane + i % s->h.window * s->line +
                                                   (left - s->w.low) * s->pixel));
    r->end = most(r->end, end);
}

/* Set what the kernel prefetches: lines that the next line will read beyond the ring. */
static void set_ahead(const pass *g, const ring *r, int target, const area *part, hvt_depthwise *t)
{
    const side *s = g->s;
    int first, end;

    window_of(&s->h, target + 1, &first, &end);
    first = most(first, r->end);
    if (s->planes > 1 || target + 1 >= s->h.targets || first >= end)
        return;
    t->ahead = hvt__at(g->from.at, g->op->type,
                       (size_t)(first * g->from.line + s->w.low * g->from.pixel +
                                part->image * g->from.image + part->channel));
    t->ahead_lines = end - first;
    t->ahead_line = g->from.line;
    t->ahead_pixel = g->from.pixel;
    t->ahead_step = s->w.ahead * g->from.pixel;
    t->ahead_image = g->from.image;
}

/* Describes a phase of a line of targets for the kernel. */
static hvt_depthwise targets_of(const pass *g, int line, int phase, const area *part)
{
    const side *s = g->s;
    const int *h = s->h.first + line, *w = s->w.first + phase;

    return (hvt_depthwise){.channels = part->channels,
                           .count = tile_count(s->w.targets - phase, s->w.phases),
                           .images = part->images,
                           .rows = h[1] - h[0],
                           .cols = w[1] - w[0],
                           .shift = w[1] - w[0] == 1           ? 1
                                    : s->w.shift < w[1] - w[0] ? s->w.shift
                                                               : 0,
                           .row = s->h.e + h[0],
                           .col = s->w.e + w[0],
                           .panel = (long)g->op->taps * CONV_PANEL,
                           .from_step = s->w.ahead * s->pixel,
                           .from_image = s->channels,
                           .to_step = s->w.phases * g->to.pixel,
                           .to_image = g->to.image,
                           .stream = g->stream};
}

/* job = a band of lines of a slice */
static void pass_job(void *ctx, int job, int thread)
{
    const pass *g = ctx;
    const conv_op *op = g->op;
    const int band = job % g->bands, lines = g->s->h.targets;
    const area part = area_of(g, job / g->bands / g->slices, job / g->bands % g->slices);
    const float *weights = g->weights + (long)part.channel * op->taps;
    ring r = clear_ring(g, thread);

    for (int l = conv_part(lines, band, g->bands); l < conv_part(lines, band + 1, g->bands); l++) {
        const size_t to = (size_t)(l * g->to.line + part.image * g->to.image + part.channel);

        fill_ring(g, &r, l, &part);
        for (int phase = 0; phase < least(g->s->w.phases, g->s->w.targets); phase++) {
            hvt_depthwise t = targets_of(g, l, phase, &part);

            if (!phase)
                set_ahead(g, &r, l, &part, &t);
            op->typed->depthwise(&t, r.at, weights,
                                 hvt__at(g->to.at, op->type, to + (size_t)(phase * g->to.pixel)), g->add);
        }
    }
    if (g->stream)
        hvt__fence();
}

static void run_pass(pass *g)
{
    const conv_op *op = g->op;
    const int lines = g->s->h.targets, groups = g->chunks * g->slices;

    g->stream = conv_streams(op, g->to.at, g->add, (size_t)op->n * (size_t)lines * (size_t)g->s->w.targets,
                             op->x_row, g->to.image, g->to.pixel);
    g->bands = cut(op, groups, lines, 0.3 * (g->s->h.window - 1)); /* counts lines that two bands read */
    hvt__parallel_for(op->pool, groups * g->bands, pass_job, g);
}

/* Returns the weights as floats, widened to `room` if needed. */
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

/* Returns the number of parts of backward weights. */
static int parts_of(const conv_op *op, int images)
{
    const size_t fit = PARTS_BYTES / sizeof(float) / conv_weights(op),
                 terms = (size_t)images * (size_t)op->oh * (size_t)op->ow / PART_TERMS;
    const size_t parts = fit < MOST_PARTS ? fit : MOST_PARTS;

    return terms < 1 || parts < 1 ? 1 : (int)(terms < parts ? terms : parts);
}

/* ws holds planes of y or dy; the sums of parts or the weights as floats; the rings. */
static size_t bytes_before_rings(const conv_op *op)
{
    const size_t sums = sizeof(float) * conv_weights(op) * (size_t)(parts_of(op, op->n) - 1);
    const size_t wide = widened_bytes(op);

    return whole_lines(plane_bytes(op) + (sums > wide ? sums : wide));
}

static size_t bytes_of_ring(const conv_op *op, const side *s)
{
    return whole_lines(hvt_dtype_size(op->type) * (size_t)(s->planes * s->plane));
}

static void set_rings(pass *g, void *ws)
{
    g->rings = (char *)ws + bytes_before_rings(g->op);
    g->ring_bytes = bytes_of_ring(g->op, g->s);
}

static void forward(const conv_op *op, int real, const void *x, const void *w, void *y, void *ws)
{
    void *to = op->blocks == 1 ? y : (char *)ws + widened_bytes(op);
    const float *weights = widened(op, w, ws);

    for (int j = 0; j < op->blocks; j++) {
        pass g = make_pass(op, false, real, x,
                           hvt__at(to, op->type, (size_t)j * rows_of_y(op) * (size_t)op->x_row));

        g.weights = weights + (size_t)j * conv_block_weights(op);
        set_rings(&g, ws);
        run_pass(&g);
    }
    if (to != y)
        move_planes(op, real, true, to, y);
}

/* Returns dy, or a copy of it in planes at `room`. */
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
    pass g = make_pass(op, true, real, dy_in_planes(op, real, dy, (char *)ws + widened_bytes(op)), dx);

    g.weights = widened(op, w, ws);
    g.add = add;
    set_rings(&g, ws);
    run_pass(&g);
}

/* ---- backward weights ---- */

/* Add the gradients of a slice over a line of plane j. */
static void add_line(const pass *g, const ring *r, int j, int line, const area *part, float *dw)
{
    const conv_op *op = g->op;
    const size_t dy =
        (size_t)(j * g->to.plane + line * g->to.line + part->image * g->to.image + part->channel);

    for (int phase = 0; phase < least(g->s->w.phases, op->ow); phase++) {
        hvt_depthwise t = targets_of(g, line, phase, part);

        if (!phase)
            set_ahead(g, r, line, part, &t);
        op->typed->depthwise_dw(&t, r->at, hvt__at(g->to.at, op->type, dy + (size_t)(phase * g->to.pixel)),
                                dw);
    }
}

/* job = some channels of a part */
static void dw_job(void *ctx, int job, int thread)
{
    const pass *g = ctx;
    const conv_op *op = g->op;
    const int part = job / g->slices, slice = job % g->slices, lines = g->chunks * op->oh;
    const area channels = area_of(g, 0, slice);
    const size_t panels = (size_t)conv_panels(channels.channels);
    float *dw =
        (part ? g->sums + (size_t)(part - 1) * conv_weights(op) : g->dw) + (long)channels.channel * op->taps;

    for (int j = 0; j < op->blocks; j++, dw += conv_block_weights(op)) {
        ring r = clear_ring(g, thread);

        memset(dw, 0, sizeof *dw * panels * (size_t)op->taps * CONV_PANEL);
        for (int l = conv_part(lines, part, g->parts); l < conv_part(lines, part + 1, g->parts); l++) {
            const area a = area_of(g, l / op->oh, slice);

            if (l % op->oh == 0)
                r.end = 0; /* restart the ring for other images */
            fill_ring(g, &r, l % op->oh, &a);
            add_line(g, &r, j, l % op->oh, &a, dw);
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
    pass g = make_pass(op, false, real, x, dy_in_planes(op, real, dy, ws));
    const int panels = conv_panels(op->x_row);

    g.dw = dw;
    g.sums = (float *)((char *)ws + plane_bytes(op));
    g.parts = parts_of(op, g.all);
    g.slices = most(g.slices, cut(op, g.parts, panels, 0.5));
    set_rings(&g, ws);
    hvt__parallel_for(op->pool, g.parts * g.slices, dw_job, &g);
    if (g.parts > 1)
        hvt__parallel_for(op->pool, (int)((conv_weights(op) + SUM - 1) / SUM), sum_job, &g);
}

/* ---- the algorithm ---- */

static size_t bytes(const conv_op *op)
{
    const depthwise *d = depthwise_of(op);
    const size_t out = bytes_of_ring(op, &d->out), in = op->no_dx ? 0 : bytes_of_ring(op, &d->in);

    return bytes_before_rings(op) + (out > in ? out : in) * (size_t)hvt__thread_pool_size(op->pool);
}

static bool takes_norm(const conv_op *op)
{
    return op->hwn;
}

static void describe(const conv_op *op, char *ret_text, size_t room)
{
    const side *s = &depthwise_of(op)->out;

    snprintf(ret_text, room, "depthwise, slices of %d images x %d channels; dw: %d parts", s->images,
             s->channels, parts_of(op, op->n));
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
