/*
 * Layouts of weights. The master copy has panels of 32 filters, [ceil(K/32)][tap][C][32]. Derived from it:
 * canonical [K,C,R,S] for files; packed panels along c, [ceil(C/32)][tap][K][32], for backward data; and,
 * with 16-bit activations, what forward reads: widened to f32, or vnni2 along c. Momentum and gradients have
 * the layout of the master copy, which is the same for every instruction set; padding columns are zero.
 */
#include "conv_impl.h"

#include <string.h>

void hvt__conv_permute_cpu(const hvt_op *head, bool to_file, float *mine, float *kcrs)
{
    const conv_op *op = (const conv_op *)head;
    const int padded = conv_panels(op->k) * CONV_PANEL;

    for (int k = 0; k < padded; k++)
        for (int c = 0; c < op->c; c++)
            for (int t = 0; t < op->taps; t++) {
                float *in_panel = mine + conv_weight(op->taps, op->c, t, c, k);
                float *in_file = k < op->k ? kcrs + ((long)k * op->c + c) * op->taps + t : NULL;

                if (to_file && in_file)
                    *in_file = *in_panel;
                else if (!to_file)
                    *in_panel = in_file ? *in_file : 0;
            }
}

typedef struct packing {
    const conv_op *op;
    const void *w; /* of op->type */
} packing;

/* Packs a tap of a panel of 16-bit weights, widening CONV_PANEL channels, [CONV_PANEL][CONV_PANEL], at a
 * time. */
static void pack_widened(const conv_op *op, const void *w, int k, float *out, long panel)
{
    _Alignas(64) float wide[CONV_PANEL * CONV_PANEL];

    for (int c = 0; c < op->c; c += CONV_PANEL, out += panel) {
        int count = op->c - c < CONV_PANEL ? op->c - c : CONV_PANEL;

        op->typed->widen((size_t)count * CONV_PANEL, hvt__at(w, op->type, (size_t)c * CONV_PANEL), wide);
        op->kern->pack_weights(wide, count, k, out, panel, op->stream);
    }
}

/* job = one tap of one panel */
static void pack_job(void *ctx, int job, int thread)
{
    const packing *g = ctx;
    const conv_op *op = g->op;
    int panel = job / op->taps, tap = job % op->taps, column = panel * CONV_PANEL;
    int k = op->k - column < CONV_PANEL ? op->k - column : CONV_PANEL;

    (void)thread;
    if (!op->tap_used[tap])
        return;
    const void *w = hvt__at(g->w, op->type, (size_t)conv_weight(op->taps, op->c, tap, 0, column));
    float *out = op->packed_w + conv_weight(op->taps, op->in.len, tap, op->vnni2 ? column / 2 : column, 0);
    long next = (long)op->taps * op->in.len * CONV_PANEL;

    if (op->vnni2) /* adjacent columns k already form k-groups */
        op->kern->pack_weights(w, op->c, (k + 1) / 2, out, next, op->stream);
    else if (op->type == HVT_F32)
        op->kern->pack_weights(w, op->c, k, out, next, op->stream);
    else
        pack_widened(op, w, k, out, next);
    if (op->stream)
        conv_fence();
}

hvt_status hvt__conv_pack_weights_cpu(hvt_op *head, const void *w)
{
    conv_op *op = (conv_op *)head;
    packing g = {op, w};

    if (op->packed_w)
        hvt__parallel_for(op->pool, conv_panels(op->k) * op->taps, pack_job, &g);
    return HVT_OK;
}

/* ---- packing for forward ---- */

enum { WIDEN = 8192 }; /* weights of a job */

typedef struct forward_packing {
    const conv_op *op;
    const void *w; /* of op->type */
    float *to;
} forward_packing;

static void widen_job(void *ctx, int job, int thread)
{
    const forward_packing *g = ctx;
    size_t first = (size_t)job * WIDEN, all = g->op->w_bytes / sizeof(float);

    (void)thread;
    g->op->typed->widen(all - first < WIDEN ? all - first : WIDEN, hvt__at(g->w, g->op->type, first),
                        g->to + first);
}

/* job = one tap of one panel */
static void vnni2_job(void *ctx, int job, int thread)
{
    const forward_packing *g = ctx;
    const conv_op *op = g->op;
    const conv_list *l = &op->out;
    int tap = job % op->taps, column = job / op->taps * CONV_PANEL;
    hvt_vnni2 p = {.x = (const uint16_t *)g->w + conv_weight(op->taps, op->c, tap, 0, column),
                   .ld = CONV_PANEL,
                   .n = op->c,
                   .c = CONV_PANEL,
                   .len = l->len,
                   .depth = l->depth,
                   .pitch = CONV_PANEL};

    (void)thread;
    if (op->tap_used[tap])
        op->kern->pack_b(&p, CONV_PANEL, g->to + conv_weight(op->taps, l->len, tap, 0, column));
}

void hvt__conv_pack_forward(const conv_op *op, const void *w, float *ws)
{
    forward_packing g = {op, w, ws};

    if (op->vnni2)
        hvt__parallel_for(op->pool, conv_panels(op->k) * op->taps, vnni2_job, &g);
    else
        hvt__parallel_for(op->pool, (int)((op->w_bytes / sizeof(float) + WIDEN - 1) / WIDEN), widen_job, &g);
}
