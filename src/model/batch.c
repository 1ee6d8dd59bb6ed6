/*
 * Batches from the caller's arrays, converted to the input's row order, type and stored channels with the
 * arithmetic of a loader.
 */
#include "base_impl.h"
#include "device/half.h"
#include "device/scalar.h"
#include "layers.h"

#include <math.h>

enum { MOST_CHANNELS = 64 }; /* elements of mean and std */

static hvt_status check_arrays(const hvt_model *m, const hvt_arrays *a)
{
    int c = m->layer[m->input].y.dim[3];
    bool known = a->type == HVT_U8 || a->type == HVT_F16 || a->type == HVT_BF16 || a->type == HVT_F32 ||
                 a->type == HVT_F64;

    HVT_CHECK(a->count >= 0 && a->count <= m->batch, E_SHAPE,
              "%d images for a batch; the model is planned for 0 to %d", a->count, m->batch);
    HVT_CHECK(a->images || !a->count, E_ARG, "a batch of %d images, but images is NULL", a->count);
    HVT_CHECK(known, E_ARG, "images are %s, expected u8, f16, bf16, f32 or f64", hvt_dtype_name(a->type));
    HVT_CHECK(c <= MOST_CHANNELS || (!a->mean && !a->std), E_ARG,
              "mean and std of %d channels, expected at most %d", c, MOST_CHANNELS);
    for (int i = 0; i < c; i++) {
        HVT_CHECK(!a->mean || isfinite(a->mean[i]), E_ARG,
                  "mean of channel %d is %g, expected a finite number", i, (double)a->mean[i]);
        HVT_CHECK(!a->std || (isfinite(a->std[i]) && a->std[i] > 0), E_ARG,
                  "std of channel %d is %g, expected a positive number", i, (double)a->std[i]);
    }
    return HVT_OK;
}

static float value_at(const void *x, hvt_dtype t, size_t i)
{
    return t == HVT_U8    ? (float)((const uint8_t *)x)[i]
           : t == HVT_F64 ? (float)((const double *)x)[i]
                          : hvt__load(x, t, i);
}

/* Converts the images into m->arranged. */
static void arrange(hvt_model *m, const hvt_arrays *a)
{
    const int *d = m->layer[m->input].y.dim;
    size_t pixels = (size_t)d[1] * (size_t)d[2], c = (size_t)d[3], cx = (size_t)m->input_channels;
    bool hwn = m->order == HVT_ORDER_HWN, plain = !a->mean && !a->std && a->type != HVT_U8;
    size_t next_image = hwn ? 1 : pixels, next_pixel = hwn ? (size_t)m->batch : 1; /* in rows */
    double unit = a->type == HVT_U8 ? 255 : 1;

    for (size_t k = 0; k < c; k++) {
        double mean = a->mean ? (double)a->mean[k] : 0, std = a->std ? (double)a->std[k] : 1;
        float scale = (float)(1 / (unit * std)), shift = (float)(-mean / std);

        for (size_t i = 0; i < (size_t)a->count; i++)
            for (size_t p = 0; p < pixels; p++) {
                size_t from = a->nchw ? (i * c + k) * pixels + p : (i * pixels + p) * c + k;
                float x = value_at(a->images, a->type, from);

                m->arranged[(i * next_image + p * next_pixel) * cx + k] = plain ? x : f_fma(x, scale, shift);
            }
    }
}

/* Puts labels or targets into the order of the logits' rows: *ret is `from`, or a copy in m->answers. */
static hvt_status arrange_answers(hvt_model *m, int count, int c, const void *from, const void **ret)
{
    *ret = from;
    if (!hvt__logit_pixels(m))
        return HVT_OK;
    if (!m->answers) {
        const size_t bytes = hvt__elements(&m->layer[m->logits]) * sizeof(float);

        HVT_TRY(m->dev->ops->memory.alloc_host(m->dev, bytes, &m->answers));
        memset(m->answers, 0, bytes);
    }
    hvt__outputs_order(m, count, c, from, m->answers, true);
    *ret = m->answers;
    return HVT_OK;
}

/* Uploads `bytes` bytes to *array, which the first call allocates with `room` bytes. */
static hvt_status bring(hvt_model *m, const void *from, size_t bytes, size_t room, void **array)
{
    if (!*array)
        HVT_TRY(m->dev->ops->memory.alloc(m->dev, room, array));
    return bytes ? hvt_device_upload(m->dev, *array, from, bytes) : HVT_OK;
}

hvt_status hvt_batch_set(hvt_model *m, const hvt_arrays *a, hvt_batch *ret_batch)
{
    HVT_GIVEN(m, "a model");
    HVT_GIVEN(a, "arrays");
    HVT_GIVEN(ret_batch, "an output pointer for the batch");
    HVT_CHECK(m->batch, E_ARG, "call hvt_model_plan() before hvt_batch_set()");
    HVT_TRY(check_arrays(m, a));

    const int k = hvt_model_classes(m);
    const size_t pixels = (size_t)hvt__pixels(&m->layer[m->logits]), n = (size_t)m->batch * pixels,
                 count = hvt__logit_pixels(m) ? n : (size_t)a->count;
    hvt_batch b = {.count = a->count};
    const void *from;

    HVT_TRY(hvt__input_open(m));
    arrange(m, a);
    HVT_TRY(hvt__input_bring(m));
    b.images = hvt__input_tensor(m);
    if (a->labels) {
        HVT_TRY(arrange_answers(m, a->count, 1, a->labels, &from));
        HVT_TRY(bring(m, from, count * sizeof *a->labels, n * sizeof *a->labels, (void **)&m->own_labels));
        b.labels = hvt__answers_tensor(m, true, m->own_labels);
    }
    if (a->targets) {
        const size_t row = (size_t)k * sizeof *a->targets;

        HVT_TRY(arrange_answers(m, a->count, k, a->targets, &from));
        HVT_TRY(bring(m, from, count * row, n * row, (void **)&m->own_targets));
        b.targets = hvt__answers_tensor(m, false, m->own_targets);
    }
    *ret_batch = b;
    return HVT_OK;
}
