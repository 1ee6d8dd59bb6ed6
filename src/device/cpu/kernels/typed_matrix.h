/*
 * typed_matrix.h - part of typed_tmpl.c: batch norm and bias, on a part of a matrix that one thread owns.
 *
 * Matrices are walked in *wide rows*: a few adjacent matrix rows, so that narrow or odd rows (16, 37, 3
 * channels) fill whole vectors; column i of a wide row is channel i % c. Per part, channel constants are
 * repeated to that width once, and sums of wide columns are reduced to channels at the end. Rows that are
 * wide enough are used unchanged and end in a masked vector.
 *
 * Sums add the rows of a block first, then blocks, unless rows are wider than BLOCK_WIDTH, in an order that
 * depends only on the shape.
 */

enum {
    WIDE = 4 * VL,              /* narrower rows are joined */
    WIDE_MAX = (WIDE - 1) * VL, /* the widest joined row */
    BLOCK = 8,                  /* wide rows summed before they are added to the total */
    BLOCK_WIDTH = 1024,         /* a part has few rows wider than this */
    NEAR = 2048                 /* columns whose statistics are computed at once */
};

/* ---- walking a matrix ---- */

/* Matrix rows per wide row, which is a whole number of vectors. */
static int row_step(int c)
{
    const int factor = c & -c, step = factor < VL ? VL / factor : 1; /* factor: the largest power of two */

    return c >= WIDE ? 1 : step * ((WIDE + c * step - 1) / (c * step));
}

/* Finds the longest contiguous run of valid rows from `first` on: *ret_row is its first row in the matrix.
 * Returns its length. */
INLINE size_t next_run(hvt_rows r, size_t first, size_t end, size_t *ret_row)
{
    size_t block = first / r.real, within = first % r.real, rows = end - first;

    if (r.real == r.block) {
        *ret_row = first;
        return rows;
    }
    *ret_row = block * r.block + within;
    return rows < r.real - within ? rows : r.real - within;
}

/* x[c] repeated to the width of a wide row; x itself if c is that width */
INLINE const float *widen(const float *x, int c, int width, float *scratch)
{
    if (width <= c || !x)
        return x;
    for (int i = 0; i < width; i += c)
        memcpy(scratch + i, x, (size_t)c * sizeof *x);
    return scratch;
}

/* A piece of a part: `rows` rows of `width` elements, `ld` apart, from element `at` on. wide: they are wide
 * rows. */
typedef struct piece {
    size_t at, rows, ld, width;
    bool wide;
} piece;

/* Returns the piece after `done` rows of a run of `rows` rows from `start` on; `whole` form wide rows. */
INLINE piece next_piece(hvt_part part, int c, int step, size_t start, size_t rows, size_t whole, size_t done)
{
    const size_t width = step > 1 ? (size_t)step * c : (size_t)part.cols;

    if (done < whole)
        return (piece){start * c + part.col, whole / step, (size_t)step * c, width, true};
    return (piece){(start + done) * c, rows - done, c, c, false};
}

/* Run the statements for each piece `p` of a part: for each contiguous run the whole wide rows, then the
 * remaining rows, too few for a wide one. */
#define PIECES(r, c, part, step, ...)                                                                        \
    for (size_t row_ = (part).first, start_, run_; row_ < (part).end; row_ += run_) {                        \
        run_ = next_run(r, row_, (part).end, &start_);                                                       \
        for (size_t done_ = 0, whole_ = run_ / (step) * (step); done_ < run_;) {                             \
            const piece p = next_piece(part, c, step, start_, run_, whole_, done_);                          \
            __VA_ARGS__                                                                                      \
            done_ = p.wide ? whole_ : run_;                                                                  \
        }                                                                                                    \
    }

/* Run a statement for every vector of a piece, with `i` (column), `at` (element) and `lanes`. */
#define WALK(p, ...)                                                                                         \
    for (size_t from_ = (p).at, end_ = from_ + (p).rows * (p).ld; from_ < end_; from_ += (p).ld)             \
    SPAN((p).width, const size_t at = from_ + i; __VA_ARGS__)

/* ---- batch norm ---- */

static void clear(float *x, int n)
{
    memset(x, 0, (size_t)n * sizeof *x);
}

/* Inputs of a norm's y; constants are per column. */
typedef struct normed {
    const void *x;
    const float *mean, *scale, *beta;
} normed;

INLINE normed normed_of(const void *x, const float *mean, const float *scale, const float *beta, int c,
                        int col, float scratch[3][WIDE_MAX])
{
    const int width = row_step(c) * c;

    return (normed){x, widen(mean + col, c, width, scratch[0]), widen(scale + col, c, width, scratch[1]),
                    widen(beta + col, c, width, scratch[2])};
}

INLINE F normed_at(const normed *z, size_t i, size_t at, int lanes)
{
    return bn_value(get(z->x, at, lanes), f_load(z->mean + i, lanes), f_load(z->scale + i, lanes),
                    f_load(z->beta + i, lanes));
}

INLINE void apply_at(const normed *z, const void *residual, void *y, size_t i, size_t at, bool relu,
                     int lanes)
{
    F v = normed_at(z, i, at, lanes);

    if (residual)
        v = v + get(residual, at, lanes);
    put(y, at, relu ? f_relu(v) : v, lanes);
}

static void bn_apply(const hvt_bn_args *a, hvt_bn_consts k, hvt_part part)
{
    const int step = row_step(a->c);
    float scratch[3][WIDE_MAX];
    const normed z = normed_of(a->x, a->mean, k.scale, a->beta, a->c, part.col, scratch);
    const void *const residual = a->residual; /* copies, which stores to y cannot alias */
    void *const y = a->y;

    PIECES(a->rows, a->c, part, step, {
        if (residual && a->relu)
            WALK(p, apply_at(&z, residual, y, i, at, true, lanes););
        else if (residual)
            WALK(p, apply_at(&z, residual, y, i, at, false, lanes););
        else if (a->relu)
            WALK(p, apply_at(&z, NULL, y, i, at, true, lanes););
        else
            WALK(p, apply_at(&z, NULL, y, i, at, false, lanes););
    })
}

/* How dz is computed: dy unmasked; masked by relu's output y; masked by relu recomputed from x, which saves
 * reading y (the same arithmetic gives the same sign); masked by a recomputed clamp; for statistics x - mean.
 */
typedef enum mask { MASK_NONE, MASK_Y, MASK_X, MASK_CLAMP, OFF_MEAN } mask;

static mask mask_of(const hvt_bn_grad_args *a)
{
    return hvt__is_clamp(a->map) ? MASK_CLAMP : !a->y ? MASK_NONE : a->beta ? MASK_X : MASK_Y;
}

/* Inputs and outputs of backward and of statistics; unused members are NULL. */
typedef struct grad {
    const void *x, *y, *dy;
    void *keep, *dx, *res;
    const float *mean, *scale, *beta, *share, *slope; /* per column */
    float low, high;                                  /* of a clamp */
} grad;

/* y rounded to TYPE */
INLINE F stored(F y)
{
    return TYPE == HVT_F16 ? f_from_f16(f_to_f16(y)) : TYPE == HVT_BF16 ? f_from_bf16(f_to_bf16(y)) : y;
}

/* dz, computed by `how` */
INLINE F masked(const grad *g, size_t i, size_t at, F x, mask how, int lanes)
{
    if (how == OFF_MEAN)
        return x - f_load(g->mean + i, lanes);

    const F dz = get(g->dy, at, lanes);

    if (how == MASK_Y)
        return f_keep(get(g->y, at, lanes), dz);
    if (how == MASK_X || how == MASK_CLAMP) {
        F y =
            bn_value(x, f_load(g->mean + i, lanes), f_load(g->scale + i, lanes), f_load(g->beta + i, lanes));

        if (TYPE == HVT_F16 || how == MASK_CLAMP) /* otherwise rounding keeps the sign */
            y = stored(y);
        return how == MASK_X ? f_keep(y, dz) : f_keep_within(y, f_splat(g->low), f_splat(g->high), dz);
    }
    return dz;
}

/* Add a row of a block; the block's sums stay in `s` and `d` until its last row. */
INLINE void sums_of_row(const grad *g, size_t width, size_t from, float *sum, float *dot, float *s, float *d,
                        mask how, bool with_x, bool begins, bool ends)
{
    SPAN(width, {
        const size_t at = from + i;
        const F x = with_x ? get(g->x, at, lanes) : f_zero(), dz = masked(g, i, at, x, how, lanes);
        F all = begins ? dz : f_load(s + i, lanes) + dz;

        if (g->keep)
            put(g->keep, at, dz, lanes);
        if (ends)
            all = f_load(sum + i, lanes) + all;
        f_store(ends ? sum + i : s + i, all, lanes);
        if (with_x) {
            all = f_fma(dz, x - f_load(g->mean + i, lanes), begins ? f_zero() : f_load(d + i, lanes));
            if (ends)
                all = f_load(dot + i, lanes) + all;
            f_store(ends ? dot + i : d + i, all, lanes);
        }
    });
}

/* sum += dz, dot += dz * (x - mean) over the rows of a piece; without x only the sum. Memory is read row by
 * row: column by column is half as fast outside of the caches. */
INLINE void accumulate_sums(const grad *g, piece p, float *sum, float *dot, mask how, bool with_x)
{
    const bool narrow = p.width <= BLOCK_WIDTH;
    float s[BLOCK_WIDTH], d[BLOCK_WIDTH];

    for (size_t row = 0, rows; row < p.rows; row += rows) {
        size_t from = p.at + row * p.ld;

        rows = !narrow ? 1 : p.rows - row < BLOCK ? p.rows - row : BLOCK;
        if (rows == 1) {
            sums_of_row(g, p.width, from, sum, dot, NULL, NULL, how, with_x, true, true);
            continue;
        }
        sums_of_row(g, p.width, from, sum, dot, s, d, how, with_x, true, false);
        for (size_t r = 2; r < rows; r++)
            sums_of_row(g, p.width, from += p.ld, sum, dot, s, d, how, with_x, false, false);
        sums_of_row(g, p.width, from + p.ld, sum, dot, s, d, how, with_x, false, true);
    }
}

/* Computes the sums of a part's columns; the constants of `whole` begin with these columns. */
INLINE void part_sums(hvt_rows rows, int c, const grad *whole, hvt_part part, float *sum, float *dot,
                      mask how, bool with_x)
{
    const int step = row_step(c), width = step * c;
    float wide_sum[WIDE_MAX], wide_dot[WIDE_MAX], scratch[3][WIDE_MAX];
    float *ws = step > 1 ? wide_sum : sum, *wd = step > 1 ? wide_dot : dot;
    grad g = *whole;

    if (with_x)
        g.mean = widen(g.mean, c, width, scratch[0]);
    if (how == MASK_X || how == MASK_CLAMP) {
        g.scale = widen(g.scale, c, width, scratch[1]);
        g.beta = widen(g.beta, c, width, scratch[2]);
    }
    clear(sum, part.cols);
    if (with_x)
        clear(dot, part.cols);
    if (step > 1) {
        clear(ws, width);
        clear(wd, width);
    }
    PIECES(rows, c, part, step, accumulate_sums(&g, p, p.wide ? ws : sum, p.wide ? wd : dot, how, with_x);)
    for (int s = 0; step > 1 && s < step; s++)
        for (int i = 0; i < c; i++) {
            sum[i] += ws[s * c + i];
            if (with_x)
                dot[i] += wd[s * c + i];
        }
}

static void bn_sums(const hvt_bn_grad_args *a, hvt_bn_consts k, hvt_part part, bool keep, float *sum,
                    float *dot)
{
    const mask how = mask_of(a);
    const grad g = {.x = a->x,
                    .y = a->y,
                    .dy = a->dy,
                    .keep = keep ? a->dresidual : NULL,
                    .mean = a->mean + part.col,
                    .scale = k.scale + part.col,
                    .beta = a->beta ? a->beta + part.col : NULL,
                    .low = how == MASK_CLAMP ? a->map->a : 0,
                    .high = how == MASK_CLAMP ? a->map->b : 0};

    if (how == MASK_NONE)
        part_sums(a->rows, a->c, &g, part, sum, dot, MASK_NONE, true);
    else if (how == MASK_Y)
        part_sums(a->rows, a->c, &g, part, sum, dot, MASK_Y, true);
    else if (how == MASK_X)
        part_sums(a->rows, a->c, &g, part, sum, dot, MASK_X, true);
    else
        part_sums(a->rows, a->c, &g, part, sum, dot, MASK_CLAMP, true);
}

/* Computes mean and squared deviations of at most NEAR columns of a part from sums of x - near, where near is
 * the mean of some rows in its middle. If these rows are unlike the others, their difference is in the
 * deviations, too, so rounding errors grow by at most about rows/8. */
static void stats_of_columns(hvt_rows rows, int c, const void *x, hvt_part part, float *mean, float *m2)
{
    float near[NEAR];
    const grad g = {.x = x, .mean = near};
    const size_t n = part.end - part.first, few = n < BLOCK ? n : BLOCK;
    size_t start;

    for (size_t row = 0; row < few; row++) {
        next_run(rows, part.first + (n - few) / 2 + row, part.end, &start);
        SPAN(part.cols, const F v = get(x, start * c + part.col + i, lanes);
             f_store(near + i, row ? f_load(near + i, lanes) + v : v, lanes););
    }
    SPAN(part.cols, f_store(near + i, f_load(near + i, lanes) * f_splat(1 / (float)few), lanes););
    part_sums(rows, c, &g, part, mean, m2, OFF_MEAN, true);
    SPAN(part.cols, {
        const F sum = f_load(mean + i, lanes), off = sum * f_splat(1 / (float)n), all = f_load(m2 + i, lanes);
        const F rest = f_relu(f_fma(-sum, off, all));

        f_store(m2 + i, f_select((I)(all == f_splat(INFINITY)), all, rest), lanes); /* avoids inf - inf */
        f_store(mean + i, f_load(near + i, lanes) + off, lanes);
    });
}

static void bn_stats(hvt_rows rows, int c, const void *x, hvt_part part, float *mean, float *m2)
{
    for (int i = 0; i < part.cols && part.first < part.end; i += NEAR) {
        const int cols = part.cols - i < NEAR ? part.cols - i : NEAR;

        stats_of_columns(rows, c, x, (hvt_part){part.first, part.end, part.col + i, cols}, mean + i, m2 + i);
    }
}

static void sums(hvt_rows rows, int c, const void *dy, hvt_part part, float *sum)
{
    const grad g = {.dy = dy};

    part_sums(rows, c, &g, part, sum, NULL, MASK_NONE, false);
}

INLINE void dx_at(const grad *g, size_t i, size_t at, mask how, bool add, bool add_res, int lanes)
{
    const F x = get(g->x, at, lanes), dz = masked(g, i, at, x, how, lanes);
    const F dx = bn_dx(x, f_load(g->mean + i, lanes), f_load(g->scale + i, lanes),
                       f_load(g->share + i, lanes), f_load(g->slope + i, lanes), dz);

    if (g->res)
        put_or_add(g->res, at, dz, add_res, lanes);
    put_or_add(g->dx, at, dx, add, lanes);
}

INLINE void dx_piece(const grad *g, piece p, mask how, bool add, bool add_res)
{
    WALK(p, dx_at(g, i, at, how, add, add_res, lanes););
}

static void bn_dx_part(const hvt_bn_grad_args *a, hvt_bn_consts k, hvt_part part)
{
    const int step = row_step(a->c), width = step * a->c, col = part.col;
    const mask how = mask_of(a);
    float scratch[5][WIDE_MAX];
    const grad g = {.x = a->x,
                    .y = a->y,
                    .dy = a->dy,
                    .dx = a->dx,
                    .res = a->dresidual,
                    .mean = widen(a->mean + col, a->c, width, scratch[0]),
                    .scale = widen(k.scale + col, a->c, width, scratch[1]),
                    .beta = how == MASK_X || how == MASK_CLAMP ? widen(a->beta + col, a->c, width, scratch[2])
                                                               : NULL,
                    .share = widen(k.share + col, a->c, width, scratch[3]),
                    .slope = widen(k.slope + col, a->c, width, scratch[4]),
                    .low = how == MASK_CLAMP ? a->map->a : 0,
                    .high = how == MASK_CLAMP ? a->map->b : 0};

    PIECES(a->rows, a->c, part, step, {
        if (how == MASK_NONE)
            dx_piece(&g, p, MASK_NONE, a->add, a->add_residual);
        else if (how == MASK_Y)
            dx_piece(&g, p, MASK_Y, a->add, a->add_residual);
        else if (how == MASK_X)
            dx_piece(&g, p, MASK_X, a->add, a->add_residual);
        else
            dx_piece(&g, p, MASK_CLAMP, a->add, false);
    })
}

/* ---- bias ---- */

static void bias(hvt_rows rows, int c, const float *b, void *y, hvt_part part)
{
    const int step = row_step(c);
    float scratch[WIDE_MAX];
    const float *each = widen(b + part.col, c, step * c, scratch);

    PIECES(rows, c, part, step, WALK(p, put_or_add(y, at, f_load(each + i, lanes), true, lanes););)
}
