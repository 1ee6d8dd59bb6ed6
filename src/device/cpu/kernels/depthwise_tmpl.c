/*
 * Depthwise convolution, for conv/depthwise.c. It is half of a type's code, so it is a separate file beside
 * typed_tmpl.c, compiled once per type and instruction set. Every element of a target is one chain of
 * multiply-adds, row by row of the lists, however many targets are computed together. A gradient's chain goes
 * through blocks of DEPTHWISE_TARGETS targets, and within a block image by image.
 *
 * Neighbouring targets read mostly the same columns. They are computed in *tiles* with sums in registers:
 * every column is loaded once for all targets of the tile that read it, and every weight once for all
 * targets. Pixels are often a multiple of 4096 bytes apart, so a 3 x 3 window does not fit into an L1 cache
 * of 8 ways and would be loaded from the L2 cache nine times.
 */
#include "typed.h"

enum {
    DEPTHWISE_REGISTERS = VL == 16 ? 32 : 16,
    DEPTHWISE_TARGETS =
        14, /* maximum of a tile; image widths are often multiples. All channels of these pixels are computed
               before the next tile, so that few streams are read at a time */
    DEPTHWISE_IMAGES = 4, /* images that share loads of weights when targets are computed one by one */
    DEPTHWISE_COLS = 7,   /* maximum columns of a filter whose targets share columns */
    DEPTHWISE_SUMS = VL == 16 ? 25 : 9, /* gradients kept in registers */
    DEPTHWISE_TAPS = 9,                 /* the same for single targets */
    LINE = 64 / sizeof(float)
};

/* Keep loads at p and prefetches in their column. Compilers would move them all to the start of a tile: more
 * than a core can have in flight, and more addresses than registers. */
#define IN_ORDER(p) __asm__ volatile("" : "+r"(p)::"memory")

/* Store a vector of channels of `targets` neighbours. Stores past the caches are in whole lines, since
 * writing half a line reads the other half: `held` keeps a line's vectors until its last one. (32 -> 32, 3x3
 * at 112x112, 16 images on Zen 3: 6 GF/s by halves, 13 by lines; 144 channels at 56x56: 8 and 19.) */
INLINE void depthwise_put(const hvt_depthwise *g, void *to, size_t c, const F *sum, F (*held)[LINE / VL],
                          const int targets, bool add, int lanes)
{
    const int last = LINE / VL - 1, v = (int)(c % LINE) / VL;

    UNROLL
    for (int u = 0; u < targets; u++) {
        const size_t at = (size_t)(u * g->to_step) + c;

        if (TYPE != HVT_F32 || !g->stream) {
            put_or_add(to, at, sum[u], add, lanes);
            continue;
        }
        held[u][v] = sum[u];
        UNROLL
        for (int i = 0; v == last && i <= last; i++)
            f_stream((float *)to + at - (last - i) * VL, held[u][i]);
    }
}

/* Returns cols * 10 + shift if targets share columns, else 0. */
INLINE int depthwise_shape(const hvt_depthwise *g)
{
    return !g->shift ? 0 : g->cols == 1 ? 11 : g->cols * 10 + g->shift;
}

/* Returns the distance between columns that targets share. */
INLINE long depthwise_step(const hvt_depthwise *g, const int cols)
{
    return cols > 1 ? g->col[1].from - g->col[0].from : g->from_step;
}

/* Returns the targets of the next tile, if `left` remain and there are registers for fewer than `room`. */
INLINE int depthwise_targets(int left, const int room)
{
    return room > 14 && left >= 14 ? 14 : room > 7 && left >= 7 ? 7 : left >= 4 ? 4 : left >= 2 ? 2 : 1;
}

/* Runs TILE(targets) for the next tile, with constant `targets`. */
#define DEPTHWISE_TILE(targets, room, TILE)                                                                  \
    do {                                                                                                     \
        if ((room) > 14 && (targets) == 14)                                                                  \
            TILE(14);                                                                                        \
        else if ((room) > 7 && (targets) == 7)                                                               \
            TILE(7);                                                                                         \
        else if ((targets) == 4)                                                                             \
            TILE(4);                                                                                         \
        else if ((targets) == 2)                                                                             \
            TILE(2);                                                                                         \
        else                                                                                                 \
            TILE(1);                                                                                         \
    } while (0)

/* Filter columns and strides with a function of their own: one function for all takes twice as long to
 * compile. The narrow ones are for gradients with a stride. */
#ifdef FEW_SHAPES
#define NARROW_SHAPES(X)
#define WIDE_SHAPES(X) X(3, 1) X(3, 2)
#else
#define NARROW_SHAPES(X) X(1, 1) X(2, 1)
#define WIDE_SHAPES(X)   X(3, 1) X(3, 2) X(5, 1) X(5, 2) X(7, 1)
#endif

/* ---- targets ---- */

/* Add a row of sources of `targets` neighbours, for a vector of channels. Shared columns are `step` bytes
 * apart, their weights w_step; ahead: may be NULL. */
INLINE void depthwise_row(const hvt_depthwise *g, const char *x, long step, const float *w, long w_step,
                          const char *ahead, F *sum, const int targets, const int cols, const int shift,
                          int lanes)
{
    const long ahead_step = ELEMENT * g->ahead_pixel;
    F weight[DEPTHWISE_COLS];

    UNROLL
    for (int j = 0; j < cols; j++)
        weight[j] = f_load(w + j * w_step, VL);
    UNROLL
    for (int k = 0; k < (targets - 1) * shift + cols; k++, x += step) {
        const F of_column = get(x, 0, lanes);

        if (ahead && k < targets * shift) {
            __builtin_prefetch(ahead, 0, 2);
            ahead += ahead_step;
        }
        IN_ORDER(x);
        UNROLL
        for (int u = 0; u < targets; u++) {
            const int j = k - u * shift;

            if (j >= 0 && j < cols)
                sum[u] = f_fma(of_column, weight[j], sum[u]);
        }
    }
}

/* Compute a vector of channels of `targets` neighbours. */
INLINE void depthwise_tile_at(const hvt_depthwise *g, const char *x, long step, const float *w, long w_step,
                              void *to, const void *ahead, size_t c, F (*held)[LINE / VL], const int targets,
                              const int cols, const int shift, bool add, int lanes)
{
    const char *next = hvt__at(ahead, TYPE, c);
    F sum[DEPTHWISE_TARGETS];

    x += ELEMENT * c;
    w += (long)(c / HVT_PANEL) * g->panel + (long)(c % HVT_PANEL);
    UNROLL
    for (int u = 0; u < targets; u++) {
        sum[u] = f_zero();
        if (!g->stream && c % LINE == 0) /* prefetch the stores two lines further on */
            __builtin_prefetch(hvt__at(to, TYPE, (size_t)(u * g->to_step) + c + 2 * LINE), 1);
    }
    for (int i = 0; i < g->rows; i++)
        depthwise_row(g, x + ELEMENT * g->row[i].from, step, w + g->row[i].w, w_step,
                      i < g->ahead_lines ? next + ELEMENT * i * g->ahead_line : NULL, sum, targets, cols,
                      shift, lanes);
    depthwise_put(g, to, c, sum, held, targets, add, lanes);
}

INLINE void depthwise_tiles(const hvt_depthwise *args, const void *from, const float *w, void *to, bool add,
                            const int cols, const int shift)
{
    const hvt_depthwise copy = *args, *g = &copy; /* a copy that stores cannot alias */
    /* with a stride, a tile of 14 would have 56 lines in flight */
    const int room = shift > 1 ? 14 : DEPTHWISE_REGISTERS - cols;
    const long step = ELEMENT * depthwise_step(g, cols), w_step = cols > 1 ? g->col[1].w - g->col[0].w : 0;

    w += g->col[0].w;
    for (int t = 0, targets; t < g->count; t += targets) {
        targets = depthwise_targets(g->count - t, room);
        for (int n = 0; n < g->images; n++) {
            const char *x =
                hvt__at(from, TYPE, (size_t)(t * g->from_step + n * g->from_image + g->col[0].from));
            const void *ahead =
                g->ahead ? hvt__at(g->ahead, TYPE, (size_t)(t * g->ahead_step + n * g->ahead_image)) : x;
            void *y = hvt__at(to, TYPE, (size_t)(t * g->to_step + n * g->to_image));
            F held[DEPTHWISE_TARGETS][LINE / VL];

#define TILE(targets)                                                                                        \
    SPAN(g->channels,                                                                                        \
         depthwise_tile_at(g, x, step, w, w_step, y, ahead, i, held, targets, cols, shift, add, lanes);)
            DEPTHWISE_TILE(targets, room, TILE);
#undef TILE
        }
    }
}

/* Compute a vector of channels of one target of `images` images. */
INLINE void depthwise_one_at(const hvt_depthwise *g, const void *from, const float *w, void *to, size_t c,
                             const int images, bool add, int lanes)
{
    F sum[DEPTHWISE_IMAGES];

    UNROLL
    for (int n = 0; n < images; n++)
        sum[n] = f_zero();
    w += (long)(c / HVT_PANEL) * g->panel + (long)(c % HVT_PANEL);
    for (int i = 0; i < g->rows; i++)
        for (int j = 0; j < g->cols; j++) {
            const F weight = f_load(w + g->row[i].w + g->col[j].w, VL);
            const long at = g->row[i].from + g->col[j].from + (long)c;

            UNROLL
            for (int n = 0; n < images; n++)
                sum[n] = f_fma(get(from, (size_t)(at + n * g->from_image), lanes), weight, sum[n]);
        }
    UNROLL
    for (int n = 0; n < images; n++)
        put_or_add(to, (size_t)(n * g->to_image) + c, sum[n], add, lanes);
}

/* Compute some targets of all images one by one, whatever their columns. */
static void depthwise_each(const hvt_depthwise *g, const void *from, const float *w, void *to, bool add)
{
    for (int t = 0; t < g->count; t++)
        for (int image = 0, some; image < g->images; image += some) {
            const void *x = hvt__at(from, TYPE, (size_t)(t * g->from_step + image * g->from_image));
            void *y = hvt__at(to, TYPE, (size_t)(t * g->to_step + image * g->to_image));

            some = image + DEPTHWISE_IMAGES <= g->images ? DEPTHWISE_IMAGES : 1;
            if (some > 1)
                SPAN(g->channels, depthwise_one_at(g, x, w, y, i, DEPTHWISE_IMAGES, add, lanes););
            else
                SPAN(g->channels, depthwise_one_at(g, x, w, y, i, 1, add, lanes););
        }
}

#define SHAPE(cols, shift)                                                                                   \
    static __attribute__((noinline)) void depthwise_##cols##_##shift(                                        \
        const hvt_depthwise *g, const void *from, const float *w, void *to, bool add)                        \
    {                                                                                                        \
        depthwise_tiles(g, from, w, to, add, cols, shift);                                                   \
    }
NARROW_SHAPES(SHAPE)
WIDE_SHAPES(SHAPE)
#undef SHAPE

void OF_TYPE(depthwise)(const hvt_depthwise *g, const void *from, const float *w, void *to, bool add)
{
#define SHAPE(cols, shift)                                                                                   \
    case (cols)*10 + (shift):                                                                                \
        depthwise_##cols##_##shift(g, from, w, to, add);                                                     \
        break;

    switch (depthwise_shape(g)) {
        NARROW_SHAPES(SHAPE)
        WIDE_SHAPES(SHAPE)
    default:
        depthwise_each(g, from, w, to, add);
    }
#undef SHAPE
}

/* ---- gradients of weights ---- */

/* Add some rows of sources of `targets` neighbours, for a vector of channels, to the gradients of their taps.
 * Columns are `step` bytes apart, rows begin row_at bytes further on. To prefetch: fetch: distance from a
 * target of dy, may be 0; ahead: `lines` of columns from here on. */
INLINE void depthwise_rows_dw(const hvt_depthwise *g, const char *x, long step, const long *row_at,
                              const char *dy, long fetch, const char *ahead, int lines, F *sum,
                              const int targets, const int rows, const int cols, const int shift, int lanes)
{
    const long dy_step = ELEMENT * g->to_step;
    F of_target[DEPTHWISE_TARGETS];

    UNROLL
    for (int u = 0; u < targets; u++, dy += dy_step) {
        of_target[u] = get(dy, 0, lanes);
        __builtin_prefetch(dy + ELEMENT * fetch, 0, 2);
    }
    UNROLL
    for (int k = 0; k < (targets - 1) * shift + cols; k++, x += step) {
        for (int i = 0; k < targets * shift && i < lines; i++)
            __builtin_prefetch(ahead + ELEMENT * (k * g->ahead_pixel + i * g->ahead_line), 0, 2);
        UNROLL
        for (int i = 0; i < rows; i++) {
            const F of_column = get(x + row_at[i], 0, lanes);

            UNROLL
            for (int u = 0; u < targets; u++) {
                const int j = k - u * shift;

                if (j >= 0 && j < cols)
                    sum[i * cols + j] = f_fma(of_column, of_target[u], sum[i * cols + j]);
            }
        }
        IN_ORDER(x);
    }
}

/* Distance from a vector of channels of dy to what it prefetches: these channels of the next block of targets
 * or, if the L2 cache does not hold a block of all channels, the next line of this block's. (576 channels,
 * 3x3 at 14x14, 16 images on Zen 3: 7 GF/s without, 16 with it.) */
INLINE long depthwise_fetch(const hvt_depthwise *g, size_t c)
{
    const long block = DEPTHWISE_TARGETS * g->to_step, line = (long)(c / LINE * LINE);

    return VL == 16 ? block : line + LINE < g->channels ? LINE : block - line;
}

/* Sum the gradients of `rows` rows of taps from `first` on, for a vector of channels, over all targets of all
 * images. */
INLINE void depthwise_tiles_dw(const hvt_depthwise *g, const void *from, const void *to, float *dw, size_t c,
                               const int first, const int rows, const int cols, const int shift, int lanes)
{
    const hvt_depthwise_entry *row = g->row + first;
    /* if a single row leaves room for 14 targets, few or no rows remain for it */
    const int room = rows == 1 ? 14 : DEPTHWISE_REGISTERS - rows * cols;
    const long fetch = first ? 0 : depthwise_fetch(g, c);
    const int lines = first || !g->ahead ? 0 : g->ahead_lines;
    const long step = ELEMENT * depthwise_step(g, cols);
    long row_at[DEPTHWISE_SUMS];
    F sum[DEPTHWISE_SUMS];

    dw += (long)(c / HVT_PANEL) * g->panel + (long)(c % HVT_PANEL);
    UNROLL
    for (int i = 0; i < rows; i++)
        row_at[i] = ELEMENT * (row[i].from + g->col[0].from);
    UNROLL
    for (int k = 0; k < rows * cols; k++)
        sum[k] = f_load(dw + row[k / cols].w + g->col[k % cols].w, VL);
    for (int n = 0; n < g->images; n++)
        for (int t = 0, targets; t < g->count; t += targets) {
            const char *y = hvt__at(to, TYPE, (size_t)(t * g->to_step + n * g->to_image) + c);
            const char *x = hvt__at(from, TYPE, (size_t)(t * g->from_step + n * g->from_image) + c);
            const char *ahead =
                lines ? hvt__at(g->ahead, TYPE, (size_t)(t * g->ahead_step + n * g->ahead_image) + c) : x;

            targets = depthwise_targets(g->count - t, room);
#define TILE(targets)                                                                                        \
    depthwise_rows_dw(g, x, step, row_at, y, fetch, ahead, lines, sum, targets, rows, cols, shift, lanes)
            DEPTHWISE_TILE(targets, room, TILE);
#undef TILE
        }
    UNROLL
    for (int k = 0; k < rows * cols; k++)
        f_store(dw + row[k / cols].w + g->col[k % cols].w, sum[k], VL);
}

/* Sums the gradients of `most` rows of taps at a time, then of single rows. */
INLINE void depthwise_groups_dw(const hvt_depthwise *g, const void *from, const void *to, float *dw, size_t c,
                                const int most, const int cols, const int shift, int lanes)
{
    int i = 0;

    for (; most > 1 && i + most <= g->rows; i += most)
        depthwise_tiles_dw(g, from, to, dw, c, i, most, cols, shift, lanes);
    for (; i < g->rows; i++)
        depthwise_tiles_dw(g, from, to, dw, c, i, 1, cols, shift, lanes);
}

/* Sums the gradients over all targets, in blocks. */
INLINE void depthwise_blocks_dw(const hvt_depthwise *g, const void *from, const void *to, float *dw,
                                const int cols, const int shift)
{
    const int most = DEPTHWISE_SUMS / cols < cols ? DEPTHWISE_SUMS / cols : cols;
    hvt_depthwise run = *g;

    for (int t = 0; t < g->count; t += run.count) {
        const void *x = hvt__at(from, TYPE, (size_t)(t * g->from_step)),
                   *y = hvt__at(to, TYPE, (size_t)(t * g->to_step));

        run.count = g->count - t < DEPTHWISE_TARGETS ? g->count - t : DEPTHWISE_TARGETS;
        if (g->ahead)
            run.ahead = hvt__at(g->ahead, TYPE, (size_t)(t * g->ahead_step));
        SPAN(g->channels, depthwise_groups_dw(&run, x, y, dw, i, most, cols, shift, lanes););
    }
}

/* Sum the gradients of `taps` taps, for a vector of channels, over one target of all images. */
INLINE void depthwise_taps_at(const hvt_depthwise *g, const void *from, const void *to, float *dw,
                              const long *at, const long *out, size_t c, const int taps, int lanes)
{
    F sum[DEPTHWISE_TAPS];

    dw += (long)(c / HVT_PANEL) * g->panel + (long)(c % HVT_PANEL);
    UNROLL
    for (int k = 0; k < taps; k++)
        sum[k] = f_load(dw + out[k], VL);
    for (long image = 0, x = (long)c, y = (long)c; image < g->images;
         image++, x += g->from_image, y += g->to_image) {
        const F dy = get(to, (size_t)y, lanes);

        UNROLL
        for (int k = 0; k < taps; k++)
            sum[k] = f_fma(get(from, (size_t)(at[k] + x), lanes), dy, sum[k]);
    }
    UNROLL
    for (int k = 0; k < taps; k++)
        f_store(dw + out[k], sum[k], VL);
}

/* The same over all channels, for `taps` pairs of the lists from number `first` on. */
INLINE void depthwise_taps(const hvt_depthwise *g, const void *from, const void *to, float *dw, int first,
                           const int taps)
{
    long at[DEPTHWISE_TAPS], out[DEPTHWISE_TAPS];

    for (int k = 0; k < taps; k++) {
        const hvt_depthwise_entry row = g->row[(first + k) / g->cols], col = g->col[(first + k) % g->cols];

        at[k] = row.from + col.from;
        out[k] = row.w + col.w;
    }
    SPAN(g->channels, depthwise_taps_at(g, from, to, dw, at, out, i, taps, lanes););
}

/* Sums the gradients over some targets one by one, whatever their columns. */
static void depthwise_each_dw(const hvt_depthwise *g, const void *from, const void *to, float *dw)
{
    const int taps = g->rows * g->cols;

    for (int t = 0; t < g->count; t++) {
        const void *x = hvt__at(from, TYPE, (size_t)(t * g->from_step)),
                   *y = hvt__at(to, TYPE, (size_t)(t * g->to_step));
        int k = 0;

        for (; k + 9 <= taps; k += 9)
            depthwise_taps(g, x, y, dw, k, 9);
        for (; k + 3 <= taps; k += 3)
            depthwise_taps(g, x, y, dw, k, 3);
        for (; k < taps; k++)
            depthwise_taps(g, x, y, dw, k, 1);
    }
}

#define SHAPE(cols, shift)                                                                                   \
    static __attribute__((noinline)) void depthwise_dw_##cols##_##shift(                                     \
        const hvt_depthwise *g, const void *from, const void *to, float *dw)                                 \
    {                                                                                                        \
        depthwise_blocks_dw(g, from, to, dw, cols, shift);                                                   \
    }
WIDE_SHAPES(SHAPE)
#undef SHAPE

void OF_TYPE(depthwise_dw)(const hvt_depthwise *g, const void *from, const void *to, float *dw)
{
#define SHAPE(cols, shift)                                                                                   \
    case (cols)*10 + (shift):                                                                                \
        depthwise_dw_##cols##_##shift(g, from, to, dw);                                                      \
        break;

    switch (depthwise_shape(g)) {
        WIDE_SHAPES(SHAPE)
    default:
        depthwise_each_dw(g, from, to, dw);
    }
#undef SHAPE
}
