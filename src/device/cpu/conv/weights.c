/*
 * Layouts of weights. The master copy has panels of 32 filters, [ceil(K/32)][tap][C][32]. Derived from it are
 * canonical [K,C,R,S] for files and, in the workspace, panels along c, [ceil(C/32)][tap][K][32], for backward
 * data and, with 16-bit activations, forward's weights, widened to f32 or as vnni2 along c. Momentum and
 * gradients have the layout of the master copy, which is the same for every instruction set; padding columns
 * are zero.
 */
#include "direct_impl.h"

/* Permute channels [c, end) of filter k of a block. In the file a channel's taps are adjacent; in the master
 * copy they are in lines shared by a panel's filters. */
static void permute_filter(const conv_op *op, bool to_file, int block, float *mine, float *kcrs, int k, int c,
                           int end)
{
    const int taps = op->taps, group = op->depthwise ? 0 : k / op->filters * op->depth;
    const int first = k < op->k && group > c ? group : c, past = group + op->depth,
              last = k >= op->k   ? first
                     : past < end ? past
                                  : end; /* end of the channels that filter k reads */
    const long file_k = op->depthwise ? (long)k * op->blocks + block : (long)block * op->k + k;

    for (int t = 0; t < taps; t++) {
        float *at = mine + conv_weight(taps, op->c, t, 0, k);
        float *file = kcrs + (file_k * op->depth - group) * taps + t;
        for (int i = first; i < last && to_file; i++)
            file[(long)i * taps] = at[(long)i * CONV_PANEL];
        for (int i = c; i < end && !to_file; i++)
            at[(long)i * CONV_PANEL] = i >= first && i < last ? file[(long)i * taps] : 0;
    }
}

void hvt__conv_permute_cpu(const hvt_op *head, bool to_file, float *mine, float *kcrs)
{
    enum { BLOCK = 16 }; /* channels, whose lines stay in the cache for all filters of a panel */
    const conv_op *op = (const conv_op *)head;
    const int padded = conv_panels(op->k) * CONV_PANEL;

    for (int block = 0; block < op->blocks; block++, mine += conv_block_weights(op))
        for (int panel = 0; panel < padded; panel += CONV_PANEL)
            for (int c = 0; c < op->c; c += BLOCK)
                for (int k = panel; k < panel + CONV_PANEL && (k < op->k || !to_file); k++)
                    permute_filter(op, to_file, block, mine, kcrs, k, c,
                                   op->c - c < BLOCK ? op->c : c + BLOCK);
}

void hvt__conv_clear_between_groups(const conv_op *op, float *dw)
{
    for (int block = 0; block < op->blocks; block++, dw += conv_block_weights(op))
        for (int k = 0; k < op->k; k++)
            for (int t = 0; t < op->taps; t++)
                for (int c = 0; c < op->c; c++)
                    if (c / op->depth != k / op->filters)
                        dw[conv_weight(op->taps, op->c, t, c, k)] = 0;
}

typedef struct packing {
    const direct *d;
    const void *w; /* a block's, in op->type */
    float *to;
} packing;

/* Pack a tap of a panel along c, [in.len][32], by transposing 32 channels of 32 filters at a time. */
static void pack_tap(const direct *d, const void *w, int panel, int tap, bool stream, float *out)
{
    const conv_op *op = &d->op;
    const int c = panel * CONV_PANEL, count = op->c - c < CONV_PANEL ? op->c - c : CONV_PANEL;
    const int per = op->vnni2 ? 2 : 1, used = tile_count(op->k, per); /* adjacent filters form k-groups */
    _Alignas(64) float wide[CONV_PANEL * CONV_PANEL];

    for (int k = 0; k < op->k; k += CONV_PANEL) {
        const int filters = op->k - k < CONV_PANEL ? op->k - k : CONV_PANEL;
        const void *block = hvt__at(w, op->type, (size_t)conv_weight(op->taps, op->c, tap, c, k)),
                   *next = hvt__at(w, op->type, (size_t)conv_weight(op->taps, op->c, tap, c, k + CONV_PANEL));

        if (k + CONV_PANEL < op->k)
            hvt__prefetch(next, hvt_dtype_size(op->type) * (size_t)count * CONV_PANEL);
        if (op->type != HVT_F32 && !op->vnni2) {
            op->typed->widen((size_t)count * CONV_PANEL, block, wide);
            block = wide;
        }
        op->kern->pack_weights(block, count, tile_count(filters, per), out + k / per * CONV_PANEL, stream);
    }
    memset(out + used * CONV_PANEL, 0, sizeof *out * (size_t)(d->in.len - used) * CONV_PANEL);
}

void hvt__direct_pack_panel(const direct *d, const void *w, int panel, float *out)
{
    for (int tap = 0; tap < d->op.taps; tap++, out += d->in.len * (long)CONV_PANEL)
        if (d->tap_used[tap])
            pack_tap(d, w, panel, tap, false, out);
}

/* job = one tap of one panel */
static void pack_job(void *ctx, int job, int thread)
{
    const packing *g = ctx;
    const direct *d = g->d;
    const int taps = d->op.taps;

    if (!d->tap_used[job % taps])
        return;
    pack_tap(d, g->w, job / taps, job % taps, d->stream, g->to + job * (long)d->in.len * CONV_PANEL);
    if (d->stream)
        hvt__fence();
}

void hvt__direct_pack(const direct *d, const void *w, float *to)
{
    packing g = {d, w, to};

    hvt__parallel_for(d->op.pool, conv_panels(d->op.c) * d->op.taps, pack_job, &g);
}

enum { WIDEN = 8192 }; /* weights per job */

static void widen_job(void *ctx, int job, int thread)
{
    const packing *g = ctx;
    size_t first = (size_t)job * WIDEN, all = g->d->w_bytes / sizeof(float);

    g->d->op.typed->widen(all - first < WIDEN ? all - first : WIDEN, hvt__at(g->w, g->d->op.type, first),
                          g->to + first);
}

/* job = one tap of one panel */
static void vnni2_job(void *ctx, int job, int thread)
{
    const packing *g = ctx;
    const direct *d = g->d;
    const conv_op *op = &d->op;
    const conv_list *l = &d->out;
    int tap = job % op->taps, column = job / op->taps * CONV_PANEL;
    hvt_vnni2 p = {.x = (const uint16_t *)g->w + conv_weight(op->taps, op->c, tap, 0, column),
                   .ld = CONV_PANEL,
                   .n = op->c,
                   .c = CONV_PANEL,
                   .len = l->len,
                   .depth = l->depth,
                   .pitch = CONV_PANEL};

    if (d->tap_used[tap])
        op->kern->pack_b(&p, CONV_PANEL, g->to + conv_weight(op->taps, l->len, tap, 0, column));
}

void hvt__direct_pack_forward(const direct *d, const void *w, float *ws)
{
    const conv_op *op = &d->op;
    packing g = {d, w, ws};

    if (op->vnni2)
        hvt__parallel_for(op->pool, conv_panels(op->k) * op->taps, vnni2_job, &g);
    else
        hvt__parallel_for(op->pool, (int)((d->w_bytes / sizeof(float) + WIDEN - 1) / WIDEN), widen_job, &g);
}
