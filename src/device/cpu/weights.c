/*
 * Weights in panels of 32 filters, [ceil(K/32)][tap][C][32], and the two copies of them that exist: canonical
 * [K,C,R,S] for files, and panels along c, [ceil(C/32)][tap][K][32], for backward data. Momentum and
 * gradients lie as the weights do. The layout is the same for every instruction set; padding columns are
 * zero.
 */
#include "conv_impl.h"

#include <string.h>

void conv_permute_cpu(const hvt_op *head, bool to_file, float *mine, float *kcrs)
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

typedef struct turn {
    const conv_op *op;
    const float *w;
} turn;

/* job = one tap of one panel */
static void turn_job(void *ctx, int job, int thread)
{
    const turn *g = ctx;
    const conv_op *op = g->op;
    int panel = job / op->taps, tap = job % op->taps, column = panel * CONV_PANEL;
    int k = op->k - column < CONV_PANEL ? op->k - column : CONV_PANEL;

    (void)thread;
    if (!op->tap_used[tap])
        return;
    op->kern->transpose(g->w + conv_weight(op->taps, op->c, tap, 0, column), op->c, k,
                        op->turned + conv_weight(op->taps, op->k, tap, column, 0),
                        (long)op->taps * op->k * CONV_PANEL, op->stream);
    if (op->stream)
        conv_fence();
}

hvt_status conv_pack_cpu(hvt_op *head, const float *w)
{
    conv_op *op = (conv_op *)head;
    turn g = {op, w};

    if (op->turned)
        hvt__pool_run(op->pool, conv_panels(op->k) * op->taps, turn_job, &g);
    return HVT_OK;
}
