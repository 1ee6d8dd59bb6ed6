/*
 * typed_depthwise.h - depthwise convolution, a part of typed_tmpl.c; used by depthwise.c. Every element of a
 * target is one chain of multiply-adds in the order of the lists, however many targets are computed together.
 *
 * Neighbouring targets read mostly the same columns, so DEPTHWISE_TARGETS of them are computed from one load
 * of each: 18 loads, not 36, for a filter of 3 x 3.
 */

enum {
    DEPTHWISE_TARGETS = 4,
    DEPTHWISE_COLS = 7, /* the most of such a filter */
    DEPTHWISE_TAPS = 9  /* whose gradients are kept in registers */
};

/* What the next runs read and write is too scattered for hardware prefetchers: the channels of a slice, pixel
 * by pixel. A vector is a line or a part of one. */
INLINE void depthwise_prefetch(const hvt_depthwise *g, const void *from, const void *to, size_t c, int t,
                               bool write)
{
    if (!g->ahead_to)
        return;
    __builtin_prefetch(hvt__at(from, TYPE, (size_t)(t * g->from_step + g->ahead_from) + c), 0);
    if (write && !g->stream)
        __builtin_prefetch(hvt__at(to, TYPE, (size_t)(t * g->to_step + g->ahead_to) + c), 1);
    else if (!write)
        __builtin_prefetch(hvt__at(to, TYPE, (size_t)(t * g->to_step + g->ahead_to) + c), 0);
}

INLINE void depthwise_put(const hvt_depthwise *g, void *to, size_t at, F x, bool add, int lanes)
{
    if (TYPE == HVT_F32 && g->stream && lanes == VL)
        f_stream((float *)to + at, x);
    else
        put_or_add(to, at, x, add, lanes);
}

/* From a column that targets share to the next. */
INLINE long depthwise_step(const hvt_depthwise *g, const int cols)
{
    return cols > 1 ? g->col[1].from - g->col[0].from : g->from_step;
}

/* The target that reads column k of those that DEPTHWISE_TARGETS share as its column j; -1: none does. */
INLINE int depthwise_reader(const int k, const int j, const int shift)
{
    return k >= j && (k - j) % shift == 0 && (k - j) / shift < DEPTHWISE_TARGETS ? (k - j) / shift : -1;
}

/* A vector of channels of DEPTHWISE_TARGETS targets. */
INLINE void depthwise_some_at(const hvt_depthwise *g, const void *from, const float *w, void *to, size_t c,
                              const int cols, const int shift, bool add)
{
    const long step = depthwise_step(g, cols);
    F sum[DEPTHWISE_TARGETS];

    UNROLL
    for (int t = 0; t < DEPTHWISE_TARGETS; t++) {
        depthwise_prefetch(g, from, to, c, t, true);
        sum[t] = f_zero();
    }
    w += (long)(c / HVT_PANEL) * g->panel + (long)(c % HVT_PANEL);
    for (int plane = 0; plane < g->planes; plane++, w += g->w_plane)
        for (int i = 0; i < g->rows; i++) {
            const long at = plane * g->from_plane + g->row[i].from + g->col[0].from + (long)c;
            F weight[DEPTHWISE_COLS];

            UNROLL
            for (int j = 0; j < cols; j++)
                weight[j] = f_load(w + g->row[i].w + g->col[j].w, VL);
            UNROLL
            for (int k = 0; k < (DEPTHWISE_TARGETS - 1) * shift + cols; k++) {
                const F x = get(from, (size_t)(at + k * step), VL);

                UNROLL
                for (int j = 0; j < cols; j++) {
                    const int t = depthwise_reader(k, j, shift);

                    if (t >= 0)
                        sum[t] = f_fma(x, weight[j], sum[t]);
                }
            }
        }
    UNROLL
    for (int t = 0; t < DEPTHWISE_TARGETS; t++)
        depthwise_put(g, to, (size_t)(t * g->to_step) + c, sum[t], add, VL);
}

/* A vector of channels of one target of `images` images. */
INLINE void depthwise_one_at(const hvt_depthwise *g, const void *from, const float *w, void *to, size_t c,
                             const int images, bool add, int lanes)
{
    F sum[DEPTHWISE_TARGETS];

    UNROLL
    for (int n = 0; n < images; n++)
        sum[n] = f_zero();
    w += (long)(c / HVT_PANEL) * g->panel + (long)(c % HVT_PANEL);
    for (int plane = 0; plane < g->planes; plane++, w += g->w_plane)
        for (int i = 0; i < g->rows; i++)
            for (int j = 0; j < g->cols; j++) {
                const F weight = f_load(w + g->row[i].w + g->col[j].w, VL);
                const long at = plane * g->from_plane + g->row[i].from + g->col[j].from + (long)c;

                UNROLL
                for (int n = 0; n < images; n++)
                    sum[n] = f_fma(get(from, (size_t)(at + n * g->from_image), lanes), weight, sum[n]);
            }
    UNROLL
    for (int n = 0; n < images; n++)
        depthwise_put(g, to, (size_t)(n * g->to_image) + c, sum[n], add, lanes);
}

/* Channels from c on. */
INLINE void depthwise_one(const hvt_depthwise *g, const void *from, const float *w, void *to, size_t c,
                          const int images, bool add)
{
    for (; c + VL <= (size_t)g->channels; c += VL)
        depthwise_one_at(g, from, w, to, c, images, add, VL);
    if (c < (size_t)g->channels)
        depthwise_one_at(g, from, w, to, c, images, add, g->channels - (int)c);
}

/* Do the targets share columns, and is there code for as many? */
INLINE int depthwise_shape(const hvt_depthwise *g)
{
    return g->count < DEPTHWISE_TARGETS || !g->shift ? 0 : g->cols == 1 ? 11 : g->cols * 10 + g->shift;
}

/* Some targets at once, as many channels of them as fill vectors. Returns these. */
static size_t depthwise_some(const hvt_depthwise *g, const void *from, const float *w, void *to, bool add)
{
    size_t c = 0;

#define SHAPE(cols, shift)                                                                                   \
    case (cols)*10 + (shift):                                                                                \
        for (; c + VL <= (size_t)g->channels; c += VL)                                                       \
            depthwise_some_at(g, from, w, to, c, cols, shift, add);                                          \
        break;

    switch (depthwise_shape(g)) {
        SHAPE(1, 1)
        SHAPE(2, 1)
        SHAPE(3, 1)
        SHAPE(3, 2)
        SHAPE(5, 1)
        SHAPE(5, 2)
        SHAPE(7, 1)
    }
#undef SHAPE
    return c;
}

static void depthwise(const hvt_depthwise *g, const void *from, const float *w, void *to, bool add)
{
    const int shared = depthwise_shape(g) ? g->count / DEPTHWISE_TARGETS * DEPTHWISE_TARGETS : 0;
    size_t c = 0;

    for (int t = 0; t < shared; t += DEPTHWISE_TARGETS)
        for (int n = 0; n < g->images; n++)
            c = depthwise_some(g, hvt__at(from, TYPE, (size_t)(t * g->from_step + n * g->from_image)), w,
                               hvt__at(to, TYPE, (size_t)(t * g->to_step + n * g->to_image)), add);
    for (int t = c == (size_t)g->channels ? shared : 0; t < g->count; t++) {
        const size_t first = t < shared ? c : 0;

        for (int n = 0; n < g->images;) {
            const void *x = hvt__at(from, TYPE, (size_t)(t * g->from_step + n * g->from_image));
            void *y = hvt__at(to, TYPE, (size_t)(t * g->to_step + n * g->to_image));

            if (n + DEPTHWISE_TARGETS <= g->images) {
                depthwise_one(g, x, w, y, first, DEPTHWISE_TARGETS, add);
                n += DEPTHWISE_TARGETS;
            } else {
                depthwise_one(g, x, w, y, first, 1, add);
                n++;
            }
        }
    }
}

/* Adds up a vector of channels of the gradients of `rows` rows of taps, from `first` on, over
 * DEPTHWISE_TARGETS targets of all images. */
INLINE void depthwise_some_dw_at(const hvt_depthwise *g, const void *from, const void *to, float *dw,
                                 size_t c, int first, const int rows, const int cols, const int shift)
{
    const long step = depthwise_step(g, cols);
    F sum[DEPTHWISE_TAPS];

    dw += (long)(c / HVT_PANEL) * g->panel + (long)(c % HVT_PANEL);
    UNROLL
    for (int k = 0; k < rows * cols; k++)
        sum[k] = f_load(dw + g->row[first + k / cols].w + g->col[k % cols].w, VL);
    for (int image = 0; image < g->images; image++) {
        const long x = image * g->from_image + g->col[0].from + (long)c, y = image * g->to_image + (long)c;
        F dy[DEPTHWISE_TARGETS];

        UNROLL
        for (int t = 0; t < DEPTHWISE_TARGETS; t++) {
            if (!first)
                depthwise_prefetch(g, hvt__at(from, TYPE, (size_t)(image * g->from_image)),
                                   hvt__at(to, TYPE, (size_t)(image * g->to_image)), c, t, false);
            dy[t] = get(to, (size_t)(y + t * g->to_step), VL);
        }
        UNROLL
        for (int i = 0; i < rows; i++) {
            UNROLL
            for (int k = 0; k < (DEPTHWISE_TARGETS - 1) * shift + cols; k++) {
                const F v = get(from, (size_t)(x + g->row[first + i].from + k * step), VL);

                UNROLL
                for (int j = 0; j < cols; j++) {
                    const int t = depthwise_reader(k, j, shift);

                    if (t >= 0)
                        sum[i * cols + j] = f_fma(v, dy[t], sum[i * cols + j]);
                }
            }
        }
    }
    UNROLL
    for (int k = 0; k < rows * cols; k++)
        f_store(dw + g->row[first + k / cols].w + g->col[k % cols].w, sum[k], VL);
}

/* As depthwise_some(). `most` rows of taps at a time, then single ones. */
INLINE size_t depthwise_rows_dw(const hvt_depthwise *g, const void *from, const void *to, float *dw,
                                const int most, const int cols, const int shift)
{
    size_t c = 0;

    for (; c + VL <= (size_t)g->channels; c += VL) {
        int i = 0;

        for (; most > 1 && i + most <= g->rows; i += most)
            depthwise_some_dw_at(g, from, to, dw, c, i, most, cols, shift);
        for (; i < g->rows; i++)
            depthwise_some_dw_at(g, from, to, dw, c, i, 1, cols, shift);
    }
    return c;
}

static size_t depthwise_some_dw(const hvt_depthwise *g, const void *from, const void *to, float *dw)
{
    switch (depthwise_shape(g)) {
    case 31:
        return depthwise_rows_dw(g, from, to, dw, 3, 3, 1);
    case 32:
        return depthwise_rows_dw(g, from, to, dw, 3, 3, 2);
    case 51:
        return depthwise_rows_dw(g, from, to, dw, 1, 5, 1);
    case 52:
        return depthwise_rows_dw(g, from, to, dw, 1, 5, 2);
    case 71:
        return depthwise_rows_dw(g, from, to, dw, 1, 7, 1);
    }
    return 0;
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

/* Of `taps` pairs of the lists, from number `first` on, and channels from `channel` on. */
INLINE void depthwise_taps(const hvt_depthwise *g, const void *from, const void *to, float *dw,
                           size_t channel, int first, const int taps)
{
    long at[DEPTHWISE_TAPS], out[DEPTHWISE_TAPS];
    size_t c = channel;

    for (int k = 0; k < taps; k++) {
        const hvt_depthwise_entry row = g->row[(first + k) / g->cols], col = g->col[(first + k) % g->cols];

        at[k] = row.from + col.from;
        out[k] = row.w + col.w;
    }
    for (; c + VL <= (size_t)g->channels; c += VL)
        depthwise_taps_at(g, from, to, dw, at, out, c, taps, VL);
    if (c < (size_t)g->channels)
        depthwise_taps_at(g, from, to, dw, at, out, c, taps, g->channels - (int)c);
}

static void depthwise_dw(const hvt_depthwise *g, const void *from, const void *to, float *dw)
{
    const int taps = g->rows * g->cols;

    for (int t = 0; t < g->count; t += DEPTHWISE_TARGETS) {
        const int count = g->count - t < DEPTHWISE_TARGETS ? g->count - t : DEPTHWISE_TARGETS;
        const void *x = hvt__at(from, TYPE, (size_t)(t * g->from_step)),
                   *y = hvt__at(to, TYPE, (size_t)(t * g->to_step));
        const size_t c = count == DEPTHWISE_TARGETS ? depthwise_some_dw(g, x, y, dw) : 0;

        for (int i = 0; c < (size_t)g->channels && i < count; i++) {
            int k = 0;

            for (; k + 9 <= taps; k += 9)
                depthwise_taps(g, x, y, dw, c, k, 9);
            for (; k + 3 <= taps; k += 3)
                depthwise_taps(g, x, y, dw, c, k, 3);
            for (; k < taps; k++)
                depthwise_taps(g, x, y, dw, c, k, 1);
            x = hvt__at(x, TYPE, (size_t)g->from_step);
            y = hvt__at(y, TYPE, (size_t)g->to_step);
        }
    }
}
