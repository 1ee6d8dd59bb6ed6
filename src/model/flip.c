/*
 * Test-time augmentation by mirroring: the logits of a batch become the mean of its logits and of those of
 * its mirror images, as in timm's validation and in airbench (Jordan 2024), before the loss is computed.
 */
#include "base_impl.h"
#include "device/half.h"
#include "layers.h"

/* Mirrors the images in place. A row of the batch is a pixel: n,h,w or h,w,n. */
static hvt_status mirror(const hvt_model *m, const hvt_batch *b)
{
    const hvt_tensor *x = &b->images;
    const bool hwn = hvt_model_order(m) == HVT_ORDER_HWN;
    const size_t w = (size_t)x->dim[hwn ? 1 : 2],
                 lines = hwn ? (size_t)x->dim[0] : (size_t)x->dim[0] * x->dim[1];
    const size_t bytes = (size_t)x->dim[3] * (hwn ? (size_t)x->dim[2] : 1) * hvt_dtype_size(x->dtype);
    char *room = malloc(bytes);

    HVT_CHECK(room, E_MEM, "no memory to mirror images (%zu bytes)", bytes);
    for (size_t i = 0; i < lines; i++)
        for (size_t k = 0; k < w / 2; k++) {
            char *left = (char *)x->data + (i * w + k) * bytes,
                 *right = (char *)x->data + (i * w + w - 1 - k) * bytes;

            memcpy(room, left, bytes);
            memcpy(left, right, bytes);
            memcpy(right, room, bytes);
        }
    free(room);
    return HVT_OK;
}

hvt_status hvt_model_forward_flipped(hvt_model *m, const hvt_batch *batch)
{
    const hvt_layer *logits;
    size_t count;
    float *first;
    hvt_status s;

    HVT_TRY(hvt_model_forward(m, batch, false));
    HVT_CHECK(m->dev->ops->host && !hvt__model_is_split(m), E_UNSUPPORTED,
              "images are mirrored on devices ref and cpu, with a model that is not split");
    HVT_CHECK(!hvt__logit_pixels(m), E_UNSUPPORTED,
              "mirrored images are for models with one output of each class, not for outputs of %d pixels",
              hvt__logit_pixels(m));
    if (!m->real)
        return HVT_OK;
    logits = &m->layer[m->logits];
    count = hvt__elements(logits);
    first = malloc(count * sizeof *first);
    HVT_CHECK(first, E_MEM, "no memory for %zu logits", count);
    for (size_t i = 0; i < count; i++)
        first[i] = hvt__load(logits->y.data, logits->y.dtype, i);
    HVT_TRY_OR(done, mirror(m, batch));
    HVT_TRY_OR(done, hvt_model_forward(m, batch, false));
    for (size_t i = 0; i < count; i++)
        hvt__store(logits->y.data, logits->y.dtype, i,
                   .5f * (first[i] + hvt__load(logits->y.data, logits->y.dtype, i)));
    HVT_TRY_OR(done, hvt__layer_forward(m, &m->layer[m->nlayer - 1])); /* the loss, of the mean */
    s = mirror(m, batch);
done:
    free(first);
    return s;
}
