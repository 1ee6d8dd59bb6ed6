/*
 * Predictions: the logits of an inference pass, and inference over images in host memory, which are converted
 * to the input's row order, type and stored channels as a loader's batches are.
 */
#include "base_impl.h"
#include "device/scalar.h"
#include "layers.h"

#include <math.h>

/* Returns the elements of a batch as stored. */
static size_t stored_elements(const hvt_model *m)
{
    const int *d = m->layer[m->input].y.dim;

    return (size_t)m->batch * (size_t)d[1] * (size_t)d[2] * (size_t)m->input_channels;
}

hvt_status hvt__open_wide(hvt_model *m)
{
    size_t images = stored_elements(m), logits = hvt__elements(&m->layer[m->logits]);

    if (m->wide || m->type == HVT_F32)
        return HVT_OK;
    return m->dev->ops->memory.alloc(m->dev, (images > logits ? images : logits) * sizeof *m->wide,
                                     (void **)&m->wide);
}

size_t hvt__logit_row(const hvt_model *m, size_t n, size_t pixel)
{
    const size_t pixels = (size_t)hvt__pixels(&m->layer[m->logits]);

    return m->order == HVT_ORDER_HWN ? pixel * (size_t)m->batch + n : n * pixels + pixel;
}

void hvt__outputs_order(const hvt_model *m, int count, int c, const void *from, void *to, bool to_rows)
{
    enum { SIZE = sizeof(float) };
    const size_t pixels = (size_t)hvt__pixels(&m->layer[m->logits]), planes = (size_t)c;

    for (size_t n = 0; n < (size_t)count; n++)
        for (size_t p = 0; p < pixels; p++) {
            const size_t row = hvt__logit_row(m, n, p) * planes;

            for (size_t k = 0; k < planes; k++) {
                const size_t at = (n * planes + k) * pixels + p;

                memcpy((char *)to + SIZE * (to_rows ? row + k : at),
                       (const char *)from + SIZE * (to_rows ? at : row + k), SIZE);
            }
        }
}

hvt_status hvt_model_logits(hvt_model *m, float *ret_logits)
{
    HVT_GIVEN(m, "a model");
    HVT_CHECK(m->batch && m->real >= 0 && (!m->training || (m->backward_pending && !hvt__has_loss(m))), E_ARG,
              "logits were requested; expected an inference pass before, or a training pass without labels "
              "whose backward pass has not run");
    HVT_CHECK(!m->real || ret_logits, E_ARG, "logits of %d images were requested, but the output is NULL",
              m->real);

    const hvt_layer *l = &m->layer[m->logits];
    const bool rows = hvt__logit_pixels(m);
    size_t count = rows ? hvt__elements(l) : (size_t)m->real * (size_t)l->y.dim[3];
    const void *from = l->y.data;

    if (!m->real)
        return HVT_OK;
    if (m->type != HVT_F32) {
        HVT_TRY(hvt__open_wide(m));
        HVT_TRY(m->dev->ops->vector.cast(m->dev, count, 1, l->y.data, m->type, m->wide, HVT_F32));
        from = m->wide;
    }
    if (rows) { /* in host memory, as plan.c requires */
        hvt__outputs_order(m, m->real, l->y.dim[3], from, ret_logits, false);
        return HVT_OK;
    }
    return hvt_device_download(m->dev, ret_logits, from, count * sizeof *ret_logits);
}

hvt_status hvt__input_open(hvt_model *m)
{
    const hvt_device_ops *ops = m->dev->ops;
    size_t count = stored_elements(m);

    HVT_TRY(hvt__open_wide(m));
    if (!m->arranged) /* padding channels stay 0; images of an earlier batch stay, too */
        HVT_TRY(ops->memory.alloc_host(m->dev, count * sizeof *m->arranged, (void **)&m->arranged));
    if (m->images)
        return HVT_OK;
    memset(m->arranged, 0, count * sizeof *m->arranged);
    return ops->memory.alloc(m->dev, count * hvt_dtype_size(m->type), &m->images);
}

hvt_status hvt__input_bring(hvt_model *m)
{
    bool wide = m->type != HVT_F32;

    HVT_TRY(hvt_device_upload(m->dev, wide ? (void *)m->wide : m->images, m->arranged,
                              stored_elements(m) * sizeof *m->arranged));
    return wide
               ? m->dev->ops->vector.cast(m->dev, stored_elements(m), 1, m->wide, HVT_F32, m->images, m->type)
               : HVT_OK;
}

hvt_tensor hvt__input_tensor(const hvt_model *m)
{
    const int *d = m->layer[m->input].y.dim;
    bool hwn = m->order == HVT_ORDER_HWN;

    return (hvt_tensor){m->images,
                        m->type,
                        4,
                        {hwn ? d[1] : m->batch, hwn ? d[2] : d[1], hwn ? m->batch : d[2], m->input_channels}};
}

/* Copies images [count,h,w,c] into m->images. */
static hvt_status bring(hvt_model *m, const float *from, int count)
{
    const int *d = m->layer[m->input].y.dim;
    size_t pixels = (size_t)d[1] * (size_t)d[2], c = (size_t)d[3], cx = (size_t)m->input_channels;
    bool hwn = m->order == HVT_ORDER_HWN;
    size_t next_image = hwn ? 1 : pixels, next_pixel = hwn ? (size_t)m->batch : 1; /* in rows */

    for (size_t i = 0; i < (size_t)count; i++)
        for (size_t p = 0; p < pixels; p++, from += c)
            memcpy(m->arranged + (i * next_image + p * next_pixel) * cx, from, c * sizeof *from);
    return hvt__input_bring(m);
}

hvt_status hvt_model_predict(hvt_model *m, const float *images, int64_t n, float *ret_logits)
{
    HVT_GIVEN(m, "a model");
    HVT_CHECK(m->batch, E_ARG, "call hvt_model_plan() before hvt_model_predict()");
    HVT_CHECK(n >= 0 && (!n || (images && ret_logits)), E_ARG,
              "predictions of %lld images: expected 0 or more, images and an output", (long long)n);

    const int *d = m->layer[m->input].y.dim;
    size_t image = (size_t)d[1] * (size_t)d[2] * (size_t)d[3];
    size_t outputs = (size_t)hvt__pixels(&m->layer[m->logits]) * (size_t)hvt_model_classes(m);
    hvt_batch b = {0};

    HVT_TRY(hvt__input_open(m));
    b.images = hvt__input_tensor(m);
    for (int64_t at = 0; at < n; at += b.count) {
        b.count = n - at < m->batch ? (int)(n - at) : m->batch;
        HVT_TRY(bring(m, images + (size_t)at * image, b.count));
        HVT_TRY(hvt_model_forward(m, &b, false));
        HVT_TRY(hvt_model_logits(m, ret_logits + (size_t)at * outputs));
    }
    return HVT_OK;
}

static bool is_larger(float a, float b)
{
    return a > b || (isnan(a) && !isnan(b));
}

hvt_status hvt_model_predicted(hvt_model *m, int32_t *ret_classes)
{
    HVT_GIVEN(m, "a model");
    HVT_CHECK(m->batch && m->real >= 0, E_ARG, "predicted classes were requested before a forward pass");
    HVT_CHECK(m->dev->ops->host, E_UNSUPPORTED,
              "predicted classes of pixels are supported on the CPU; of images use hvt_model_logits()");
    HVT_CHECK(!m->real || ret_classes, E_ARG, "classes of %d images were requested, but the output is NULL",
              m->real);

    const hvt_layer *l = &m->layer[m->logits];
    const size_t pixels = (size_t)hvt__pixels(l), classes = (size_t)l->y.dim[3];

    for (size_t n = 0; n < (size_t)m->real; n++)
        for (size_t p = 0; p < pixels; p++) {
            const size_t at = hvt__logit_row(m, n, p) * classes;
            float most = hvt__load(l->y.data, m->type, at);
            int32_t best = 0;

            for (size_t k = 1; k < classes; k++) {
                float x = hvt__load(l->y.data, m->type, at + k);

                best = is_larger(x, most) ? (int32_t)k : best;
                most = is_larger(x, most) ? x : most;
            }
            ret_classes[n * pixels + p] = best;
        }
    return HVT_OK;
}
