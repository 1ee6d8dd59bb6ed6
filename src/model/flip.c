/*
 * Test-time augmentation: the logits of a batch become the mean of the logits of its images and of their
 * mirror images, as in timm's validation and in airbench (Jordan 2024), before the loss is computed. airbench
 * also shifts the images by a pixel up-left and down-right.
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

/* Sets the images to those of `from`, shifted: pixel (y, x) becomes (y + by, x + by). */
static void shift(const hvt_model *m, const hvt_batch *b, const char *from, int by)
{
    const hvt_tensor *x = &b->images;
    const bool hwn = hvt_model_order(m) == HVT_ORDER_HWN;
    const int n = hwn ? 1 : x->dim[0], h = x->dim[hwn ? 0 : 1], w = x->dim[hwn ? 1 : 2];
    const size_t bytes = (size_t)x->dim[3] * (hwn ? (size_t)x->dim[2] : 1) * hvt_dtype_size(x->dtype);
    char *to = x->data;

    for (int i = 0; i < n; i++, from += (size_t)h * (size_t)w * bytes)
        for (int y = 0; y < h; y++) {
            const char *line = from + (size_t)hvt__reflected(y + by, h) * (size_t)w * bytes;

            for (int k = 0; k < w; k++, to += bytes)
                memcpy(to, line + (size_t)hvt__reflected(k + by, w) * bytes, bytes);
        }
}

/* Adds `share` of the logits of the last forward to sum. */
static void add_logits(const hvt_model *m, float share, float *sum)
{
    const hvt_layer *logits = &m->layer[m->logits];
    const size_t count = hvt__elements(logits);

    for (size_t i = 0; i < count; i++)
        sum[i] += share * hvt__load(logits->y.data, logits->y.dtype, i);
}

/* Adds the logits of the batch, whose forward is the last one, and of its mirror images, half each. Leaves
 * the batch mirrored. */
static hvt_status add_both(hvt_model *m, const hvt_batch *b, float share, float *sum)
{
    add_logits(m, share / 2, sum);
    HVT_TRY(mirror(m, b));
    HVT_TRY(hvt_model_forward(m, b, false));
    add_logits(m, share / 2, sum);
    return HVT_OK;
}

static hvt_status add_shifted(hvt_model *m, const hvt_batch *b, const char *images, float *sum)
{
    for (int by = -1; by <= 1; by += 2) {
        shift(m, b, images, by);
        HVT_TRY(hvt_model_forward(m, b, false));
        HVT_TRY(add_both(m, b, .25f, sum));
    }
    return HVT_OK;
}

hvt_status hvt_model_forward_flipped(hvt_model *m, const hvt_batch *batch, bool shifted)
{
    const hvt_layer *logits;
    const hvt_tensor *x;
    size_t count, bytes;
    float *sum;
    char *images;
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
    x = &batch->images;
    count = hvt__elements(logits);
    bytes = hvt_dtype_size(x->dtype);
    for (int i = 0; i < 4; i++)
        bytes *= (size_t)x->dim[i];
    sum = calloc(count, sizeof *sum);
    images = malloc(bytes);
    HVT_CHECK_OR(done, sum && images, E_MEM, "no memory for %zu logits and a copy of the images", count);
    memcpy(images, batch->images.data, bytes);
    HVT_TRY_OR(done, add_both(m, batch, shifted ? .5f : 1, sum));
    if (shifted)
        HVT_TRY_OR(done, add_shifted(m, batch, images, sum));
    for (size_t i = 0; i < count; i++)
        hvt__store(logits->y.data, logits->y.dtype, i, sum[i]);
    memcpy(batch->images.data, images, bytes);
    s = hvt__layer_forward(m, &m->layer[m->nlayer - 1]); /* the loss, of the mean */
done:
    free(sum);
    free(images);
    return s;
}
