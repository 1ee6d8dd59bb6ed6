/*
 * The loss, a cross-entropy (softmax or binary) or mean squared error: the tape's last layer, appended by the
 * plan. It reads the logits and has no output. Its forward pass computes d(logits) of the loss SUM, so it has
 * no backward pass. Per row of the logits it saves the loss, and the label's rank or the mean absolute error.
 * A row is an image or, if the logits are [N,K,H,W], a pixel.
 *
 * The cross-entropy of pixels is the mean over the pixels of the global batch that are not ignored. Their
 * number is known only when all shards have run. So gradients are sums over pixels, divided by the pixels of
 * an image. The step divides them by the summed share of labelled pixels (device/step.h), as it divides those
 * of other losses by the number of images. Shards with different shares are thus weighted exactly.
 *
 * A batch without labels or targets has no loss; hvt_model_backward_from() takes d(logits) then.
 */
#include "base_impl.h"
#include "layers.h"

#include <math.h>

enum { ROWS = 2 }; /* 32-bit words per row: loss, and label rank or error */

static size_t rows_of(const hvt_model *m)
{
    return (size_t)m->batch * (size_t)hvt__pixels(&m->layer[m->logits]);
}

/* Saved: loss [rows] f32, label rank [rows] i32 or error [rows] f32, sums [HVT__STEP_SUMS] f32 of passes that
 * do not train. */
static float *losses(const hvt_layer *l)
{
    return l->saved;
}

static float *seconds(const hvt_model *m, const hvt_layer *l)
{
    return (float *)l->saved + rows_of(m);
}

static float *sums(const hvt_model *m, const hvt_layer *l)
{
    return m->training ? hvt__step_stats(m) + m->step_stats_count - HVT__STEP_SUMS
                       : losses(l) + ROWS * rows_of(m);
}

static bool has_targets(const hvt_model *m)
{
    return hvt_loss_has_targets(m->loss.kind);
}

hvt_status hvt_model_set_loss(hvt_model *m, const hvt_loss_opts *opts)
{
    HVT_GIVEN(m, "a model");
    HVT_GIVEN(opts, "options of the loss");
    HVT_CHECK(!m->batch, E_ARG, "call hvt_model_set_loss() before hvt_model_plan()");
    HVT_CHECK((unsigned)opts->kind <= HVT_LOSS_MAE, E_ARG,
              "loss kind %d, expected HVT_LOSS_CE, HVT_LOSS_MSE, HVT_LOSS_BCE or HVT_LOSS_MAE",
              (int)opts->kind);
    HVT_CHECK(opts->kind != HVT_LOSS_BCE || m->dev->ops->host, E_UNSUPPORTED,
              "the binary cross-entropy is for devices ref and cpu, not %s", hvt_device_name(m->dev));
    HVT_CHECK(opts->label_smoothing >= 0 && opts->label_smoothing <= 1, E_ARG,
              "label_smoothing is %g, expected 0 to 1", (double)opts->label_smoothing);
    HVT_CHECK(!hvt_loss_has_targets(opts->kind) || opts->label_smoothing == 0, E_ARG,
              "label_smoothing is %g, but the mean %s error has no labels", (double)opts->label_smoothing,
              opts->kind == HVT_LOSS_MSE ? "squared" : "absolute");
    m->loss = *opts;
    return HVT_OK;
}

hvt_status hvt_model_set_class_weights(hvt_model *m, const float *weights, int classes)
{
    HVT_GIVEN(m, "a model");
    HVT_CHECK(!m->batch, E_ARG, "call hvt_model_set_class_weights() before hvt_model_plan()");
    HVT_CHECK(!weights || m->dev->ops->host, E_UNSUPPORTED,
              "weights of classes are for devices ref and cpu, not %s", hvt_device_name(m->dev));
    HVT_CHECK(!weights || classes >= 1, E_ARG, "weights of %d classes, expected 1 or more", classes);
    for (int i = 0; weights && i < classes; i++)
        HVT_CHECK(isfinite(weights[i]) && weights[i] > 0, E_ARG,
                  "the weight of class %d is %g, expected a number above 0", i, (double)weights[i]);
    free(m->class_weights);
    m->class_weights = NULL;
    if (!weights)
        return HVT_OK;
    m->class_weights = malloc((size_t)classes * sizeof *weights + 1);
    HVT_CHECK(m->class_weights, E_MEM, "no memory for weights of %d classes", classes);
    memcpy(m->class_weights, weights, (size_t)classes * sizeof *weights);
    m->weighted_classes = classes;
    return HVT_OK;
}

bool hvt__has_loss(const hvt_model *m)
{
    return has_targets(m) ? m->targets != NULL : m->labels != NULL;
}

static hvt_status loss_plan(hvt_model *m, hvt_layer *l)
{
    int classes = hvt__in(m, l, 0)->y.dim[3];

    HVT_CHECK(has_targets(m) || classes >= 2, E_SHAPE,
              "logits of %d class, expected 2 or more: a softmax over one class is always right", classes);
    HVT_CHECK(!m->class_weights || m->loss.kind == HVT_LOSS_CE, E_ARG,
              "weights of classes are for a softmax cross-entropy");
    HVT_CHECK(!m->class_weights || m->weighted_classes == classes, E_SHAPE,
              "weights of %d classes, but the model has %d", m->weighted_classes, classes);
    l->saved_bytes = (rows_of(m) * ROWS + HVT__STEP_SUMS) * sizeof(float);
    return HVT_OK;
}

static hvt_status cross_entropy(hvt_model *m, const hvt_layer *l, const hvt_layer *logits)
{
    const hvt_xent_args a = {.rows = hvt__real_rows(m, logits),
                             .classes = logits->y.dim[3],
                             .type = logits->y.dtype,
                             .logits = logits->y.data,
                             .labels = m->labels,
                             .soft = m->training ? m->targets : NULL,
                             .smoothing = m->training ? m->loss.label_smoothing : 0,
                             .binary = m->loss.kind == HVT_LOSS_BCE,
                             .weights = m->training ? m->class_weights : NULL,
                             .dlogits = m->training ? logits->dy.data : NULL,
                             .scale = &m->step->loss_scale,
                             .loss = losses(l),
                             .label_rank = (int32_t *)seconds(m, l),
                             .sums = sums(m, l),
                             .pixels = hvt__logit_pixels(m)};

    return m->dev->ops->matrix.xent(m->dev, &a);
}

static hvt_status error_of_targets(hvt_model *m, const hvt_layer *l, const hvt_layer *logits)
{
    const hvt_mse_args a = {.rows = hvt__real_rows(m, logits),
                            .outputs = logits->y.dim[3],
                            .type = logits->y.dtype,
                            .y = logits->y.data,
                            .targets = m->targets,
                            .dy = m->training ? logits->dy.data : NULL,
                            .absolute = m->loss.kind == HVT_LOSS_MAE,
                            .scale = &m->step->loss_scale,
                            .loss = losses(l),
                            .error = seconds(m, l),
                            .sums = sums(m, l),
                            .pixels = hvt__logit_pixels(m)};

    return m->dev->ops->matrix.mse(m->dev, &a);
}

static hvt_status loss_forward(hvt_model *m, hvt_layer *l)
{
    const hvt_layer *logits = hvt__in(m, l, 0);

    if (!hvt__has_loss(m))
        return HVT_OK;
    return has_targets(m) ? error_of_targets(m, l, logits) : cross_entropy(m, l, logits);
}

hvt_status hvt__loss_bring(hvt_model *m, const float *dlogits, double loss)
{
    const hvt_layer *l = &m->layer[m->logits];
    size_t count = (size_t)m->real * (size_t)hvt__pixels(l) * (size_t)l->y.dim[3], all = hvt__elements(l);
    const int pixels = hvt__logit_pixels(m);
    const float sum[HVT__SUMS] = {[HVT__SUM_LOSS] = (float)loss,
                                  [HVT__SUM_PIXELS] = (float)m->real * (float)pixels,
                                  [HVT__SUM_WEIGHT] = (float)m->real * (float)(pixels ? pixels : 1)};
    hvt_step_state state;

    HVT_TRY(hvt_device_upload(m->dev, m->grads + m->step_stats_count - HVT__STEP_SUMS, sum, sizeof sum));
    if (!count)
        return HVT_OK;
    HVT_CHECK(dlogits, E_ARG, "a loss of %d images without its gradient", m->real);
    if (!m->dlogits)
        HVT_TRY(m->dev->ops->memory.alloc_host(m->dev, all * sizeof *m->dlogits, (void **)&m->dlogits));
    HVT_TRY(hvt__model_state(m, &state));
    memset(m->dlogits, 0, all * sizeof *m->dlogits);
    hvt__outputs_order(m, m->real, l->y.dim[3], dlogits, m->dlogits, true);
    for (size_t i = 0; i < all; i++)
        m->dlogits[i] *= state.loss_scale;
    if (m->type == HVT_F32)
        return hvt_device_upload(m->dev, l->dy.data, m->dlogits, all * sizeof *m->dlogits);
    HVT_TRY(hvt__open_wide(m));
    HVT_TRY(hvt_device_upload(m->dev, m->wide, m->dlogits, all * sizeof *m->dlogits));
    return m->dev->ops->vector.cast(m->dev, all, 1, m->wide, HVT_F32, l->dy.data, m->type);
}

/* Losses of pixels and their label ranks, in the order of images, or means over the pixels of an image. */
static void copy_pixels(const hvt_model *m, const hvt_layer *l, float *ret_loss, void *ret_second)
{
    const size_t pixels = (size_t)hvt__logit_pixels(m);
    const float *loss = losses(l), *second = seconds(m, l);

    for (size_t n = 0; n < (size_t)m->real; n++) {
        double sum = 0, error = 0;

        for (size_t p = 0; p < pixels; p++) {
            const size_t row = hvt__logit_row(m, n, p);

            sum += (double)loss[row];
            error += has_targets(m) ? (double)second[row] : 0;
            if (has_targets(m))
                continue;
            ret_loss[n * pixels + p] = loss[row];
            ((int32_t *)ret_second)[n * pixels + p] = ((const int32_t *)(const void *)second)[row];
        }
        if (!has_targets(m))
            continue;
        ret_loss[n] = (float)(sum / (double)pixels);
        ((float *)ret_second)[n] = (float)(error / (double)pixels);
    }
}

/* Downloads the losses of the last forward pass, and its label ranks or errors: 32 bits each. */
static hvt_status download_rows(hvt_model *m, float *ret_loss, void *ret_second)
{
    const hvt_layer *l = &m->layer[m->nlayer - 1];
    size_t bytes = (size_t)m->real * sizeof(float);

    HVT_CHECK(!m->real || hvt__has_loss(m), E_ARG, "rows were requested, but the last batch had no %s",
              has_targets(m) ? "targets" : "labels");
    HVT_CHECK(!m->real || (ret_loss && ret_second), E_ARG,
              "%d rows were requested, but an output pointer is NULL", m->real);
    if (!m->real)
        return HVT_OK;
    if (hvt__logit_pixels(m)) {
        copy_pixels(m, l, ret_loss, ret_second);
        return HVT_OK;
    }
    if (!m->rows)
        HVT_TRY(m->dev->ops->memory.alloc_host(m->dev, ROWS * (size_t)m->batch * sizeof *m->rows,
                                               (void **)&m->rows));
    HVT_TRY(hvt_device_download(m->dev, m->rows, losses(l), (size_t)m->batch * sizeof *m->rows + bytes));
    memcpy(ret_loss, m->rows, bytes);
    memcpy(ret_second, m->rows + m->batch, bytes);
    return HVT_OK;
}

hvt_status hvt_model_rows(hvt_model *m, float *ret_loss, int32_t *ret_label_rank)
{
    HVT_GIVEN(m, "a model");
    HVT_CHECK(m->batch && m->real >= 0, E_ARG, "rows were requested before a forward pass");
    HVT_CHECK(!has_targets(m), E_ARG, "a loss of targets has no label ranks; use hvt_model_errors()");
    return download_rows(m, ret_loss, ret_label_rank);
}

hvt_status hvt_model_errors(hvt_model *m, float *ret_loss, float *ret_error)
{
    HVT_GIVEN(m, "a model");
    HVT_CHECK(m->batch && m->real >= 0, E_ARG, "errors were requested before a forward pass");
    HVT_CHECK(has_targets(m), E_ARG, "a cross-entropy has no errors; use hvt_model_rows()");
    return download_rows(m, ret_loss, ret_error);
}

const hvt_layer_ops hvt_layer_loss = {"loss", loss_plan, loss_forward, NULL, .hash = hvt__hash_no_arguments};
