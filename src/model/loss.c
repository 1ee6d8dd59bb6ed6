/*
 * Softmax cross-entropy: the tape's last layer, appended by the plan. It reads the logits, has no output, and
 * is the first to write a gradient: d(logits) of the loss SUM is computed in its forward pass, so it has no
 * backward pass. Per image it saves the loss and the label's rank among the logits.
 */
#include "base_impl.h"
#include "layers.h"

enum { ROWS = 2 }; /* words of an image: its loss, and its label's rank */

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
    l->saved_bytes = ((size_t)m->batch * ROWS + HVT__STEP_SUMS) * sizeof(float);
    return HVT_OK;
}

static hvt_status loss_forward(hvt_model *m, hvt_layer *l)
{
    const hvt_layer *logits = hvt__in(m, l, 0);

    if (!m->labels)
        return HVT_OK;
    return m->dev->ops->matrix.xent(m->dev,
                                    &(hvt_xent_args){
                                        .rows = hvt__real_rows(m, logits),
                                        .classes = logits->y.dim[3],
                                        .type = logits->y.dtype,
                                        .logits = logits->y.data,
                                        .labels = m->labels,
                                        .dlogits = m->training ? logits->dy.data : NULL,
                                        .scale = &m->step->loss_scale,
                                        .loss = losses(l),
                                        .label_rank = label_ranks(m, l),
                                        .sums = m->training ? m->grads + m->step_stats_count - HVT__STEP_SUMS
                                                            : losses(l) + ROWS * m->batch,
                                    });
}

hvt_status hvt_model_rows(hvt_model *m, float *ret_loss, int32_t *ret_label_rank)
{
    HVT_GIVEN(m, "a model");
    HVT_CHECK(m->batch && m->real >= 0, E_ARG, "rows were requested before a forward pass");
    HVT_CHECK(!m->real || m->labels, E_ARG, "rows were requested, but the last batch had no labels");
    HVT_CHECK(!m->real || (ret_loss && ret_label_rank), E_ARG,
              "%d rows were requested, but an output pointer is NULL", m->real);

    const hvt_layer *l = &m->layer[m->nlayer - 1];
    size_t bytes = (size_t)m->real * sizeof(float);

    if (!m->real)
        return HVT_OK;
    if (!m->rows)
        HVT_TRY(m->dev->ops->memory.alloc_host(m->dev, ROWS * (size_t)m->batch * sizeof *m->rows,
                                               (void **)&m->rows));
    HVT_TRY(hvt_device_download(m->dev, m->rows, losses(l), (size_t)m->batch * sizeof *m->rows + bytes));
    memcpy(ret_loss, m->rows, bytes);
    memcpy(ret_label_rank, m->rows + m->batch, bytes);
    return HVT_OK;
}

const hvt_layer_ops hvt_layer_loss = {"loss", loss_plan, loss_forward, NULL};
