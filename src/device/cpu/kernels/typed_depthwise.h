/*
 * typed_depthwise.h - depthwise convolution, a part of typed_tmpl.c; used by depthwise.c. Every element of a
 * target is one chain of multiply-adds, column by column of the lists, however many targets are computed
 * together; a gradient's is image by image, target by target.
 *
 * Neighbouring targets read mostly the same columns. A kernel walks along them and loads every column once,
 * for all targets that read it, whose sums wait in registers: pixels are often a multiple of 4096 bytes
 * apart, so that a window of 3 x 3 does not fit into an L1 cache of 8 ways, and would be loaded from the L2
 * cache nine times.
 */

enum {
    DEPTHWISE_RUN = 8,    /* targets: a pixel of all channels is written at about the same time */
    DEPTHWISE_IMAGES = 4, /* that share the loads of weights where targets are computed one by one */
    DEPTHWISE_COLS = 7,   /* the most of a filter whose targets share columns */
    DEPTHWISE_SUMS = VL == 16 ? 25 : 9, /* taps whose weights or gradients are kept in registers */
    DEPTHWISE_TAPS = 9                  /* the same of single targets */
};

INLINE void depthwise_put(const hvt_depthwise *g, void *to, size_t at, F x, bool add, int lanes)
{
    if (TYPE == HVT_F32 && g->stream && lanes == VL)
        f_stream((float *)to + at, x);
    else
        put_or_add(to, at, x, add, lanes);
}

/* Do the targets share columns? And these, as number cols * 10 + shift */
INLINE int depthwise_shape(const hvt_depthwise *g)
{
    return !g->shift ? 0 : g->cols == 1 ? 11 : g->cols * 10 + g->shift;
}

/* From a column that targets share to the next. */
INLINE long depthwise_step(const hvt_depthwise *g, const int cols)
{
    return cols > 1 ? g->col[1].from - g->col[0].from : g->from_step;
}

/* Targets that read a column, at most. */
INLINE int depthwise_readers(const int cols, const int shift)
{
    return (cols + shift - 1) / shift;
}

/* A vector of channels of column k of what is ahead, to the L2 cache. */
INLINE void depthwise_ahead(const hvt_depthwise *g, size_t at)
{
    if (g->ahead)
        for (int i = 0; i < g->ahead_lines; i++)
            __builtin_prefetch(hvt__at(g->ahead, TYPE, at + (size_t)(i * g->ahead_line)), 0, 2);
}

/* ---- targets ---- */

/* Row i of column k of the first of some targets: to the sums of the targets that read it. weight: of all
 * taps, or NULL, if they are to be loaded */
INLINE void depthwise_tap(const hvt_depthwise *g, const void *from, long at, const float *w, const F *weight,
                          F *sum, const int i, const int k, const int cols, const int shift, int lanes)
{
    const F x = get(from, (size_t)(at + g->row[i].from), lanes);

    UNROLL
    for (int u = 0; u < depthwise_readers(cols, shift); u++) {
        const int j = k - u * shift;

        if (j >= 0)
            sum[u] =
                f_fma(x, weight ? weight[i * cols + j] : f_load(w + g->row[i].w + g->col[j].w, VL), sum[u]);
    }
}

/* rows: 0, or that of g */
INLINE void depthwise_column(const hvt_depthwise *g, const void *from, long at, const float *w,
                             const F *weight, F *sum, const int k, const int rows, const int cols,
                             const int shift, int lanes)
{
    if (rows) {
        UNROLL
        for (int i = 0; i < rows; i++)
            depthwise_tap(g, from, at, w, weight, sum, i, k, cols, shift, lanes);
    } else {
        for (int i = 0; i < g->rows; i++)
            depthwise_tap(g, from, at, w, NULL, sum, i, k, cols, shift, lanes);
    }
}

/* A vector of channels of all targets of an image. */
INLINE void depthwise_walk_at(const hvt_depthwise *g, int image, const void *from, const float *w, void *to,
                              size_t c, const int rows, const int cols, const int shift, bool add, int lanes)
{
    const int readers = depthwise_readers(cols, shift);
    const long step = depthwise_step(g, cols);
    long at = image * g->from_image + g->col[0].from + (long)c;
    size_t out = (size_t)(image * g->to_image) + c, ahead = (size_t)(image * g->ahead_image) + c;
    F sum[DEPTHWISE_COLS], weight[DEPTHWISE_SUMS];

    w += (long)(c / HVT_PANEL) * g->panel + (long)(c % HVT_PANEL);
    UNROLL
    for (int k = 0; k < rows * cols; k++)
        weight[k] = f_load(w + g->row[k / cols].w + g->col[k % cols].w, VL);
    UNROLL
    for (int u = 0; u < readers; u++)
        sum[u] = f_zero();
    UNROLL
    for (int k = 0; k < cols - shift; k++, at += step, ahead += (size_t)g->ahead_pixel) {
        depthwise_ahead(g, ahead);
        depthwise_column(g, from, at, w, weight, sum, k, rows, cols, shift, lanes);
    }
    for (int t = 0; t < g->count; t++, out += (size_t)g->to_step) {
        UNROLL
        for (int k = cols - shift; k < cols; k++, at += step, ahead += (size_t)g->ahead_pixel) {
            depthwise_ahead(g, ahead);
            depthwise_column(g, from, at, w, weight, sum, k, rows, cols, shift, lanes);
        }
        depthwise_put(g, to, out, sum[0], add, lanes);
        UNROLL
        for (int u = 1; u < readers; u++)
            sum[u - 1] = sum[u];
        sum[readers - 1] = f_zero();
    }
}

/* All targets of an image, if there is code for their columns. */
static bool depthwise_walk(const hvt_depthwise *g, int image, const void *from, const float *w, void *to,
                           bool add)
{
    const size_t channels = (size_t)g->channels;

#define SHAPE(rows_, cols, shift)                                                                            \
    if (((rows_) == 0 || (rows_) == g->rows) && (rows_) * (cols) <= DEPTHWISE_SUMS) {                        \
        SPAN(channels,                                                                                       \
             depthwise_walk_at(g, image, from, w, to, i, (rows_) * (cols) <= DEPTHWISE_SUMS ? (rows_) : 0,   \
                               cols, shift, add, lanes););                                                   \
        return true;                                                                                         \
    }

    switch (depthwise_shape(g)) {
    case 11:
        SHAPE(1, 1, 1)
        SHAPE(2, 1, 1)
        SHAPE(0, 1, 1)
    case 21:
        SHAPE(1, 2, 1)
        SHAPE(2, 2, 1)
        SHAPE(3, 2, 1)
        SHAPE(0, 2, 1)
    case 31:
        SHAPE(2, 3, 1)
        SHAPE(3, 3, 1)
        SHAPE(0, 3, 1)
    case 32:
        SHAPE(3, 3, 2)
        SHAPE(0, 3, 2)
    case 51:
        SHAPE(5, 5, 1)
        SHAPE(0, 5, 1)
    case 52:
        SHAPE(5, 5, 2)
        SHAPE(0, 5, 2)
    case 71:
        SHAPE(0, 7, 1)
    }
#undef SHAPE
    return false;
}

/* A vector of channels of one target of `images` images. */
INLINE void depthwise_one_at(const hvt_depthwise *g, const void *from, const float *w, void *to, size_t c,
                             const int images, bool add, int lanes)
{
    F sum[DEPTHWISE_IMAGES];

    UNROLL
    for (int n = 0; n < images; n++)
        sum[n] = f_zero();
    w += (long)(c / HVT_PANEL) * g->panel + (long)(c % HVT_PANEL);
    for (int j = 0; j < g->cols; j++)
        for (int i = 0; i < g->rows; i++) {
            const F weight = f_load(w + g->row[i].w + g->col[j].w, VL);
            const long at = g->row[i].from + g->col[j].from + (long)c;

            UNROLL
            for (int n = 0; n < images; n++)
                sum[n] = f_fma(get(from, (size_t)(at + n * g->from_image), lanes), weight, sum[n]);
        }
    UNROLL
    for (int n = 0; n < images; n++)
        depthwise_put(g, to, (size_t)(n * g->to_image) + c, sum[n], add, lanes);
}

/* Some targets after each other of all images, whatever their columns. */
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

static void depthwise(const hvt_depthwise *g, const void *from, const float *w, void *to, bool add)
{
    hvt_depthwise run = *g;

    for (int t = 0; t < g->count; t += run.count) {
        const void *x = hvt__at(from, TYPE, (size_t)(t * g->from_step));
        void *y = hvt__at(to, TYPE, (size_t)(t * g->to_step));
        int image = 0;

        run.count = g->count - t < DEPTHWISE_RUN ? g->count - t : DEPTHWISE_RUN;
        if (g->ahead)
            run.ahead = hvt__at(g->ahead, TYPE, (size_t)(t * g->ahead_step));
        while (image < g->images && depthwise_walk(&run, image, x, w, y, add))
            image++;
        if (!image)
            depthwise_each(&run, x, w, y, add);
    }
}

/* ---- gradients of weights ---- */

/* Column k of the first of `live` targets, of `rows` rows: to the gradients of its taps. */
INLINE void depthwise_column_dw(const hvt_depthwise *g, const void *from, long at, const F *dy, int live,
                                F *sum, const int k, const int first, const int rows, const int cols,
                                const int shift, int lanes)
{
    UNROLL
    for (int i = 0; i < rows; i++) {
        const F x = get(from, (size_t)(at + g->row[first + i].from), lanes);

        UNROLL
        for (int u = 0; u < depthwise_readers(cols, shift); u++) {
            const int j = k - u * shift;

            if (j >= 0 && u < live)
                sum[i * cols + j] = f_fma(x, dy[u], sum[i * cols + j]);
        }
    }
}

/* Adds up a vector of channels of the gradients of `rows` rows of taps, from `first` on, over all targets of
 * all images. */
INLINE void depthwise_walk_dw_at(const hvt_depthwise *g, const void *from, const void *to, float *dw,
                                 size_t c, const int first, const int rows, const int cols, const int shift,
                                 int lanes)
{
    const int readers = depthwise_readers(cols, shift);
    const long step = depthwise_step(g, cols);
    F sum[DEPTHWISE_SUMS], dy[DEPTHWISE_COLS];

    dw += (long)(c / HVT_PANEL) * g->panel + (long)(c % HVT_PANEL);
    UNROLL
    for (int k = 0; k < rows * cols; k++)
        sum[k] = f_load(dw + g->row[first + k / cols].w + g->col[k % cols].w, VL);
    for (int image = 0; image < g->images; image++) {
        long at = image * g->from_image + g->col[0].from + (long)c, y = image * g->to_image + (long)c;
        size_t ahead = (size_t)(image * g->ahead_image) + c;
        int t = 0, live = readers < g->count ? readers : g->count;

        /* of targets that are not there no dy is multiplied: x may be infinite */
        UNROLL
        for (int u = 0; u < readers; u++, y += g->to_step)
            dy[u] = u < live ? get(to, (size_t)y, lanes) : f_zero();
        UNROLL
        for (int k = 0; k < cols - shift; k++, at += step)
            depthwise_column_dw(g, from, at, dy, live, sum, k, first, rows, cols, shift, lanes);
        for (; t + readers < g->count; t++, y += g->to_step) {
            UNROLL
            for (int k = cols - shift; k < cols; k++, at += step, ahead += (size_t)g->ahead_pixel) {
                if (!first)
                    depthwise_ahead(g, ahead);
                depthwise_column_dw(g, from, at, dy, readers, sum, k, first, rows, cols, shift, lanes);
            }
            UNROLL
            for (int u = 1; u < readers; u++)
                dy[u - 1] = dy[u];
            dy[readers - 1] = get(to, (size_t)y, lanes);
        }
        for (; t < g->count; t++, live--) {
            UNROLL
            for (int k = cols - shift; k < cols; k++, at += step)
                depthwise_column_dw(g, from, at, dy, live, sum, k, first, rows, cols, shift, lanes);
            UNROLL
            for (int u = 1; u < readers; u++)
                dy[u - 1] = dy[u];
        }
    }
    UNROLL
    for (int k = 0; k < rows * cols; k++)
        f_store(dw + g->row[first + k / cols].w + g->col[k % cols].w, sum[k], VL);
}

/* `most` rows of taps at a time, then single ones. */
INLINE void depthwise_rows_dw(const hvt_depthwise *g, const void *from, const void *to, float *dw, size_t c,
                              const int most, const int cols, const int shift, int lanes)
{
    int i = 0;

    for (; most > 1 && i + most <= g->rows; i += most)
        depthwise_walk_dw_at(g, from, to, dw, c, i, most, cols, shift, lanes);
    for (; i < g->rows; i++)
        depthwise_walk_dw_at(g, from, to, dw, c, i, 1, cols, shift, lanes);
}

/* Is there code for the columns of these targets? */
static bool depthwise_walk_dw(const hvt_depthwise *g, const void *from, const void *to, float *dw)
{
    const size_t channels = (size_t)g->channels;

#define SHAPE(cols, shift)                                                                                   \
    case (cols)*10 + (shift):                                                                                \
        SPAN(channels,                                                                                       \
             depthwise_rows_dw(g, from, to, dw, i,                                                           \
                               DEPTHWISE_SUMS / (cols) < (cols) ? DEPTHWISE_SUMS / (cols) : (cols), cols,    \
                               shift, lanes););                                                              \
        return true;

    switch (depthwise_shape(g)) {
        SHAPE(3, 1)
        SHAPE(3, 2)
        SHAPE(5, 1)
        SHAPE(5, 2)
        SHAPE(7, 1)
    }
#undef SHAPE
    return false;
}

/* Adds up a vector of channels of the gradients of `taps` taps over one target of all images. */
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

/* Of `taps` pairs of the lists, from number `first` on. */
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

static void depthwise_dw(const hvt_depthwise *g, const void *from, const void *to, float *dw)
{
    const int taps = g->rows * g->cols;

    if (depthwise_walk_dw(g, from, to, dw))
        return;
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
