/*
 * Folding: batchnorm -> add -> relu, or a part of it, becomes one batch norm with a residual and a relu flag.
 *
 * A layer is folded into the one that made its input if nobody else reads that input. An add goes into the
 * later of its operands if that is a batch norm without relu, because only there the other operand is
 * already computed. Readers of a folded layer then read the batch norm itself, so after folding the tape is
 * again a tape: layers in the order they run, reading earlier ones.
 */
#include "layers.h"

static bool is_open_norm(const hvt_layer *l)
{
    return l->ops == &hvt_layer_norm && !l->arg[HVT_NORM_RELU];
}

/* The batch norm that takes over layer l, or -1. l's inputs name unfolded layers already; uses[] counts
 * readers of values as built, so `via` are l's inputs as built. */
static hvt_value fold_target(const hvt_model *m, const hvt_layer *l, const hvt_value *as_built, const int *uses)
{
    hvt_value later;
    int i;

    if (l->ops == &hvt_layer_relu)
        return uses[as_built[0]] == 1 && is_open_norm(&m->layer[l->in[0]]) ? l->in[0] : -1;
    if (l->ops != &hvt_layer_add)
        return -1;
    i = l->in[1] > l->in[0];
    later = l->in[i];
    if (uses[as_built[i]] != 1 || l->in[0] == l->in[1] || !is_open_norm(&m->layer[later]) ||
        m->layer[later].in[1] >= 0)
        return -1;
    return m->layer[later].in[0] == l->in[!i] ? -1 : later; /* one op cannot write dx twice */
}

void hvt__model_fold(hvt_model *m, const int *uses)
{
    for (hvt_layer *l = m->layer; l < m->layer + m->nlayer; l++) {
        hvt_value as_built[HVT_LAYER_IN], into;

        for (int i = 0; i < HVT_LAYER_IN; i++) {
            as_built[i] = l->in[i];
            if (as_built[i] >= 0 && m->layer[as_built[i]].folded)
                l->in[i] = m->layer[as_built[i]].in[0]; /* where a folded layer says who took it over */
        }
        into = m->unfused ? -1 : fold_target(m, l, as_built, uses);
        if (into < 0)
            continue;
        if (l->ops == &hvt_layer_relu)
            m->layer[into].arg[HVT_NORM_RELU] = true;
        else
            m->layer[into].in[1] = l->in[0] == into ? l->in[1] : l->in[0];
        l->folded = true;
        l->in[0] = into;
        l->in[1] = -1;
    }
}
