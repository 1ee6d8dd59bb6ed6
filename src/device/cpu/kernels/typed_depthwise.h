/*
 * typed_depthwise.h - depthwise convolution, a part of typed_tmpl.c; used by depthwise.c. Every element is
 * one chain of multiply-adds in the order of the lists, however many targets are computed together.
 */

enum { DEPTHWISE_TARGETS = 8, DEPTHWISE_TAPS = 9 /* computed together, in registers */ };

/* What the next runs read and write is too scattered for hardware prefetchers: the channels of a slice, pixel
 * by pixel. A vector is a line or a part of one. */
INLINE void depthwise_prefetch(const hvt_depthwise *g, const void *from, const void *to, size_t c, int t,
                               bool write)
{
    if (!g->ahead_to)
        return;
    __builtin_prefetch(hvt__at(from, TYPE, (size_t)(t * g->from_step + g->ahead_from) + c), 0);
    if (write)
        __builtin_prefetch(hvt__at(to, TYPE, (size_t)(t * g->to_step + g->ahead_to) + c), 1);
    else
        __builtin_prefetch(hvt__at(to, TYPE, (size_t)(t * g->to_step + g->ahead_to) + c), 0);
}

/* A vector of channels of `targets` targets. */
INLINE void depthwise_at(const hvt_depthwise *g, const void *from, const float *w, void *to, size_t c,
                         const int targets, bool add, int lanes)
{
    const long step = g->from_step;
    F sum[DEPTHWISE_TARGETS];

    UNROLL
    for (int t = 0; t < targets; t++) {
        depthwise_prefetch(g, from, to, c, t, true);
        sum[t] = f_zero();
    }
    w += (long)(c / HVT_PANEL) * g->panel + (long)(c % HVT_PANEL);
    for (int plane = 0; plane < g->planes; plane++, w += g->w_plane)
        for (int i = 0; i < g->rows; i++) {
            const long row = plane * g->from_plane + g->row[i].from + (long)c;
            const float *row_w = w + g->row[i].w;

            for (int j = 0; j < g->cols; j++) {
                const F weight = f_load(row_w + g->col[j].w, VL);
                const long at = row + g->col[j].from;

                UNROLL
                for (int t = 0; t < targets; t++)
                    sum[t] = f_fma(get(from, (size_t)(at + t * step), lanes), weight, sum[t]);
            }
        }
    UNROLL
    for (int t = 0; t < targets; t++)
        put_or_add(to, (size_t)(t * g->to_step) + c, sum[t], add, lanes);
}

INLINE void depthwise_span(const hvt_depthwise *g, const void *from, const float *w, void *to, int first,
                           const int targets, bool add)
{
    from = hvt__at(from, TYPE, (size_t)(first * g->from_step));
    to = hvt__at(to, TYPE, (size_t)(first * g->to_step));
    SPAN(g->channels, depthwise_at(g, from, w, to, i, targets, add, lanes););
}

static void depthwise(const hvt_depthwise *g, const void *from, const float *w, void *to, bool add)
{
    int t = 0;

    for (; t + 8 <= g->count; t += 8)
        depthwise_span(g, from, w, to, t, 8, add);
    for (; t + 4 <= g->count; t += 4)
        depthwise_span(g, from, w, to, t, 4, add);
    for (; t < g->count; t++)
        depthwise_span(g, from, w, to, t, 1, add);
}

/* Adds up a vector of channels of the gradients of `taps` taps. */
INLINE void depthwise_taps_at(const hvt_depthwise *g, const void *from, const void *to, float *dw,
                              const long *at, const long *out, size_t c, const int taps, int lanes)
{
    F sum[DEPTHWISE_TAPS];

    dw += (long)(c / HVT_PANEL) * g->panel + (long)(c % HVT_PANEL);
    UNROLL
    for (int k = 0; k < taps; k++)
        sum[k] = f_load(dw + out[k], VL);
    for (long t = 0, x = (long)c, y = (long)c; t < g->count; t++, x += g->from_step, y += g->to_step) {
        const F dy = get(to, (size_t)y, lanes);

        if (taps == DEPTHWISE_TAPS)
            depthwise_prefetch(g, from, to, c, (int)t, false);
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
    int k = 0;

    for (; k + 9 <= taps; k += 9)
        depthwise_taps(g, from, to, dw, k, 9);
    for (; k + 3 <= taps; k += 3)
        depthwise_taps(g, from, to, dw, k, 3);
    for (; k + 2 <= taps; k += 2)
        depthwise_taps(g, from, to, dw, k, 2);
    for (; k < taps; k++)
        depthwise_taps(g, from, to, dw, k, 1);
}
