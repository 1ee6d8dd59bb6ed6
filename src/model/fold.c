/*
 * Fusion: batchnorm -> add -> relu, or a part of it, becomes one batch norm with a residual and a relu flag;
 * batchnorm -> another function becomes one batch norm with that function.
 *
 * A layer is fused into the producer of its input if it is the only reader of that input. An add is fused
 * into the later of its operands if that is a batch norm without relu, because only there the other operand
 * is already computed. Readers of a fused layer then read the batch norm itself, so the result is again a
 * tape: layers in execution order that read earlier ones.
 */
#include "layers.h"

static bool is_open_norm(const hvt_layer *l)
{
    return l->ops->is_norm && !l->relu && !l->maps;
}

static bool is_map(const hvt_layer *l)
{
    return l->ops->may_fuse == HVT_FUSE_MAP;
}

/* Returns the batch norm into which layer l can be fused, or -1. l's inputs already skip fused layers. uses[]
 * counts readers in the tape as built, so `as_built` has l's original inputs. */
static hvt_value fold_target(const hvt_model *m, const hvt_layer *l, const hvt_value *as_built,
                             const int *uses)
{
    hvt_value later;
    int i;

    if (l->ops->may_fuse == HVT_FUSE_RELU || is_map(l)) {
        const hvt_layer *norm = &m->layer[l->in[0]];
        const bool fits = !is_map(l) || (norm->in[1] < 0 && m->dev->ops->general.map_forward);

        return fits && uses[as_built[0]] == 1 && is_open_norm(norm) ? l->in[0] : -1;
    }
    if (l->ops->may_fuse != HVT_FUSE_ADD)
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
        const hvt_value as_built[2] = {l->in[0], l->in[1]}; /* fusable layers read at most two values */
        hvt_value into;

        for (int i = 0; i < l->nin; i++)
            if (l->in[i] >= 0 && m->layer[l->in[i]].folded)
                l->in[i] =
                    m->layer[l->in[i]].in[0]; /* in[0] of a fused layer is the norm that it was fused into */
        into = m->unfused ? -1 : fold_target(m, l, as_built, uses);
        if (into < 0)
            continue;
        if (l->ops->may_fuse == HVT_FUSE_RELU) {
            m->layer[into].relu = true;
        } else if (is_map(l)) {
            m->layer[into].maps = true;
            m->layer[into].is.batchnorm.map = l->is.map;
        } else {
            m->layer[into].in[1] = l->in[0] == into ? l->in[1] : l->in[0];
        }
        l->folded = true;
        l->in[0] = into;
        l->in[1] = -1;
    }
}
