/*
 * Softmax cross-entropy: the tape's last layer, appended by the plan. It reads the logits, has no output, and
 * is the first to write a gradient: d(logits) of the loss SUM is computed in its forward pass, so its
 * backward pass does nothing. Per image it saves the loss and the label's rank among the logits.
 */
#include "base_impl.h"
#include "layers.h"

/* Saved: loss [N] f32, label rank [N] i32, sums [HVT__STEP_SUMS] f32 of passes that do not train. */
static float *losses(const hvt_layer *l)
{
    return l->saved;
}

static int32_t *label_ranks(const hvt_model *m, const hvt_layer *l)
{
    return (int32_t *)l->saved + m->batch;
}

static hvt_status loss_plan(hvt_model *m, hvt_layer *l)
{
    HVT_CHECK(hvt__in(m, l, 0)->y.dim[3] >= 2, E_SHAPE,
              "logits of %d class, expected 2 or more: a softmax over one class is always right",
              hvt__in(m, l, 0)->y.dim[3]);
    l->saved_bytes = ((size_t)m->batch * 2 + HVT__STEP_SUMS) * sizeof(float);
    return HVT_OK;
}

static hvt_status loss_forward(hvt_model *m, hvt_layer *l, bool train)
{
    const hvt_layer *logits = hvt__in(m, l, 0);

    return m->dev->ops->xent(m->dev, &(hvt_xent_args){
                                         .rows = hvt__real_rows(m, logits),
                                         .classes = logits->y.dim[3],
                                         .type = logits->y.dtype,
                                         .logits = logits->y.data,
                                         .labels = m->labels,
                                         .dlogits = train ? logits->dy.data : NULL,
                                         .scale = &m->step->loss_scale,
                                         .loss = losses(l),
                                         .label_rank = label_ranks(m, l),
                                         .sums = train ? m->grads + m->step_stats_count - HVT__STEP_SUMS
                                                       : losses(l) + 2 * m->batch,
                                     });
}

static hvt_status loss_backward(hvt_model *m, hvt_layer *l)
{
    (void)m;
    (void)l;
    return HVT_OK;
}

hvt_status hvt_model_rows(hvt_model *m, float *ret_loss, int32_t *ret_label_rank)
{
    const hvt_layer *l;
    size_t bytes;

    HVT_GIVEN(m, "a model");
    HVT_CHECK(m->batch && m->real >= 0, E_ARG, "rows were requested before a forward pass");
    HVT_CHECK(!m->real || (ret_loss && ret_label_rank), E_ARG,
              "%d rows were requested, but an output pointer is NULL", m->real);
    l = &m->layer[m->nlayer - 1];
    bytes = (size_t)m->real * sizeof(float);
    HVT_TRY(hvt_device_download(m->dev, ret_loss, losses(l), bytes));
    HVT_TRY(hvt_device_download(m->dev, ret_label_rank, label_ranks(m, l), bytes));
    return HVT_OK;
}

const hvt_layer_ops hvt_layer_loss = {"loss", loss_plan, loss_forward, loss_backward};
