/*
 * Parameters and running statistics in canonical order in host memory. Only conv_permute knows the device's
 * own layout. Also the placement of the arenas.
 */
#include "base_impl.h"
#include "layers.h"

#include <stdlib.h>

hvt_status hvt__model_export(hvt_model *m, const hvt_param *p, const float *arena, float *canonical)
{
    const hvt_device_ops *ops = m->dev->ops;
    hvt_status s = HVT_OK;
    float *mine;

    if (!p->op) {
        HVT_TRY(hvt_device_download(m->dev, canonical, arena + p->offset, p->count * sizeof *canonical));
        return HVT_OK;
    }
    mine = malloc(p->count * sizeof *mine);
    HVT_CHECK(mine, E_MEM, "no memory for a copy of %s (%zu floats)", p->name, p->count);
    HVT_TRY_OR(done, hvt_device_download(m->dev, mine, arena + p->offset, p->count * sizeof *mine));
    ops->conv_permute(p->op, true, mine, canonical);
done:
    free(mine);
    return s;
}

hvt_status hvt__model_import(hvt_model *m, const hvt_param *p, float *arena, const float *canonical)
{
    const hvt_device_ops *ops = m->dev->ops;
    hvt_status s = HVT_OK;
    float *mine;

    if (arena == m->params)
        hvt__model_changed(m);
    if (!p->op) {
        HVT_TRY(hvt_device_upload(m->dev, arena + p->offset, canonical, p->count * sizeof *canonical));
        return HVT_OK;
    }
    mine = calloc(p->count, sizeof *mine);
    HVT_CHECK(mine, E_MEM, "no memory for a copy of %s (%zu floats)", p->name, p->count);
    ops->conv_permute(p->op, false, mine, (float *)canonical); /* only read in this direction */
    HVT_TRY_OR(done, hvt_device_upload(m->dev, arena + p->offset, mine, p->count * sizeof *mine));
done:
    free(mine);
    return s;
}

hvt_status hvt__model_place(hvt_model *m, float *grads)
{
    HVT_CHECK(m->batch, E_ARG, "gradients are placed before hvt_model_plan()");
    if (!m->grads_placed)
        m->dev->ops->release(m->dev, m->grads);
    m->backward_pending = false; /* its step statistics are gone */
    m->grads_placed = grads != NULL;
    m->grads = grads;
    if (!grads)
        HVT_TRY(m->dev->ops->alloc(m->dev, m->arena_count * sizeof *m->grads, (void **)&m->grads));
    return HVT_OK;
}

hvt_status hvt__model_place_params(hvt_model *m, float *params)
{
    const hvt_device_ops *ops = m->dev->ops;
    size_t bytes = m->arena_count * sizeof *m->params;
    void *own = NULL;

    HVT_CHECK(m->batch, E_ARG, "parameters are placed before hvt_model_plan()");
    if (!params) {
        HVT_TRY(ops->alloc(m->dev, bytes, &own));
        HVT_TRY(ops->copy(m->dev, own, m->params, bytes));
    }
    if (!m->params_placed)
        ops->release(m->dev, m->params);
    m->params_placed = params != NULL;
    m->params = params ? params : own;
    hvt__model_changed(m);
    return HVT_OK;
}

size_t hvt__model_largest(const hvt_model *m)
{
    size_t most = 1;

    for (int i = 0; i < m->nparam_tensors; i++)
        most = m->param[i].elements > most ? m->param[i].elements : most;
    return most;
}

/* ---- the fingerprint ---- */

static hvt_status hash_param(hvt_model *m, const hvt_param *p, float *copy, uint64_t *h)
{
    HVT_TRY(hvt__model_export(m, p, m->params, copy));
    *h = hvt__hash(hvt__hash_text(*h, p->name), copy, p->elements * sizeof *copy);
    return HVT_OK;
}

static hvt_status hash_stat(hvt_model *m, const hvt_stat *t, float *copy, uint64_t *h)
{
    HVT_TRY(hvt_device_download(m->dev, copy, m->stats + t->offset, t->count * sizeof *copy));
    *h = hvt__hash(hvt__hash_text(*h, t->name), copy, t->count * sizeof *copy);
    return HVT_OK;
}

hvt_status hvt_model_hash(hvt_model *m, uint64_t *ret_hash)
{
    uint64_t h = HVT_HASH_INIT;
    hvt_status s = HVT_OK;
    size_t most;
    float *copy;

    HVT_GIVEN(m, "a model");
    HVT_GIVEN(ret_hash, "an output pointer for the hash");
    HVT_CHECK(m->batch, E_ARG, "hash before hvt_model_plan()");
    most = hvt__model_largest(m);
    copy = malloc(most * sizeof *copy);
    HVT_CHECK(copy, E_MEM, "no memory for a copy of %zu floats", most);
    for (const hvt_layer *l = m->layer; l < m->layer + m->nlayer;
         l++) { /* in the order of building, as in a state_dict */
        for (int i = 0; i < HVT_LAYER_PARAMS && l->param[i] >= 0; i++)
            HVT_TRY_OR(done, hash_param(m, &m->param[l->param[i]], copy, &h));
        for (int i = 0; i < 2 && l->stat >= 0; i++)
            HVT_TRY_OR(done, hash_stat(m, &m->stat[l->stat + i], copy, &h));
    }
    *ret_hash = h;
done:
    free(copy);
    return s;
}
