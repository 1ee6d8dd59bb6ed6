/*
 * Masks: a picture's labels, one byte a pixel. They take the picture's box, size, crop and mirroring, with
 * the nearest pixel instead of an average. Images as targets are shifted and mirrored only.
 */
#include "mask.h"
#include "mix.h"

/* Copies the pixels of a line for the columns [first, end) of the shifted one, mirrored if at[2]. Columns
 * outside take the reflected pixel. */
static void shift_pixels(int w, size_t pixel, const int8_t at[3], int first, int end, const char *line,
                         char *out)
{
    for (int x = first; x < end; x++)
        memcpy(out + (size_t)(at[2] ? w - 1 - x : x) * pixel,
               line + (size_t)hvt__reflected(x + at[1], w) * pixel, pixel);
}

void hvt__shift(int h, int w, size_t pixel, int fill, bool reflect, const int8_t at[3], const void *from,
                void *to)
{
    const size_t pitch = (size_t)w * pixel;
    const int first = at[1] < 0 ? -at[1] : 0, end = at[1] > 0 ? w - at[1] : w; /* columns inside */
    char *out = to;

    memset(to, fill, (size_t)h * pitch);
    for (int y = 0; y < h; y++, out += pitch) {
        const int row = reflect ? hvt__reflected(y + at[0], h) : y + at[0];
        const char *line = (const char *)from + (size_t)(row < 0 ? 0 : row) * pitch;

        if (row < 0 || row >= h)
            continue;
        if (at[2])
            shift_pixels(w, pixel, at, first, end, line, out);
        else
            memcpy(out + (size_t)first * pixel, line + (size_t)(first + at[1]) * pixel,
                   (size_t)(end - first) * pixel);
        if (reflect) {
            shift_pixels(w, pixel, at, 0, first, line, out);
            shift_pixels(w, pixel, at, end, w, line, out);
        }
    }
}

/* The input that is nearest to output `i` of `full` ones over `size` inputs from `at` on; -1: outside. */
static int nearest(int i, int full, int at, int size)
{
    return i < 0 || i >= full ? -1 : at + (int)((2 * (int64_t)i + 1) * size / (2 * (int64_t)full));
}

void hvt__mask_view(const uint8_t *mask, int w, const hvt__view *v, uint8_t *ret_mask)
{
    for (int y = 0; y < v->out_h; y++) {
        const int row = nearest(v->top + y, v->full_h, v->y, v->h);

        for (int x = 0; x < v->out_w; x++, ret_mask++) {
            const int column = nearest(v->left + x, v->full_w, v->x, v->w);

            *ret_mask = row < 0 || column < 0 ? HVT_IGNORED : mask[(size_t)row * (size_t)w + (size_t)column];
        }
    }
}

hvt_status hvt__mask_check(const uint8_t *mask, int h, int w, int classes, const char *path)
{
    const size_t all = (size_t)h * (size_t)w;

    for (size_t i = 0; i < all; i++)
        HVT_CHECK(mask[i] < classes || mask[i] == HVT_IGNORED, E_FORMAT,
                  "%s: class %d at row %zu, column %zu, expected 0 to %d, or %d for ignored pixels", path,
                  mask[i], i / (size_t)w, i % (size_t)w, classes - 1, HVT_IGNORED);
    return HVT_OK;
}

void hvt__pixel_answers(const hvt_dataset_info *info, const hvt_loader_opts *o, hvt_batch *batch)
{
    if (info->masks)
        batch->labels = hvt__pixels_tensor(o, batch->labels.data, HVT_I32, info->height, info->width, 0);
    if (info->target_h)
        batch->targets = hvt__pixels_tensor(o, batch->targets.data, HVT_F32, info->target_h, info->target_w,
                                            hvt__target_planes(info));
    if (o->reconstruct)
        batch->targets = hvt__pixels_tensor(o, batch->targets.data ? batch->targets.data : batch->images.data,
                                            HVT_F32, info->height, info->width, o->channels);
}

static size_t row_at(hvt_order order, int n, size_t pixels, int image, size_t pixel)
{
    return order == HVT_ORDER_HWN ? pixel * (size_t)n + (size_t)image : (size_t)image * pixels + pixel;
}

void hvt__mask_rows(const hvt_dataset_info *info, hvt_order order, int n, int real, const uint8_t *masks,
                    int32_t *ret_labels)
{
    const size_t pixels = (size_t)info->height * (size_t)info->width;

    for (int i = 0; i < real; i++)
        for (size_t p = 0; p < pixels; p++, masks++)
            ret_labels[row_at(order, n, pixels, i, p)] = *masks == HVT_IGNORED ? -1 : *masks;
}

void hvt__target_rows(const hvt_dataset_info *info, hvt_order order, int n, int real, const float *targets,
                      float *ret_targets)
{
    const size_t pixels = (size_t)info->target_h * (size_t)info->target_w,
                 planes = (size_t)hvt__target_planes(info);

    for (int i = 0; i < real; i++)
        for (size_t k = 0; k < planes; k++)
            for (size_t p = 0; p < pixels; p++, targets++)
                ret_targets[row_at(order, n, pixels, i, p) * planes + k] = *targets;
}

hvt_status hvt__mask_changes(const hvt_dataset_info *info, const hvt_loader_opts *o, int h, int w)
{
    const char *what = info->masks ? "masks" : "images as targets";

    HVT_CHECK(!o->reconstruct || (!info->masks && !info->targets && !hvt__mixes(o)), E_UNSUPPORTED,
              "data set '%s' has %s: its images cannot be their own targets (reconstruct)", info->name,
              info->masks     ? "masks"
              : info->targets ? "targets"
                              : "mixed images");
    if (!info->masks && !info->target_h)
        return HVT_OK;
    HVT_CHECK(!hvt__mixes(o), E_UNSUPPORTED,
              "data set '%s' has %s: mixup and CutMix are for labels of whole images", info->name, what);
    HVT_CHECK(o->edits.policy == HVT_POLICY_NONE, E_UNSUPPORTED,
              "data set '%s' has %s, which cannot follow the random operations of a policy: expected crops, "
              "mirroring, colour jitter or erased boxes",
              info->name, what);
    HVT_CHECK(!o->exif, E_UNSUPPORTED, "data set '%s' has %s, which EXIF orientations do not turn (exif)",
              info->name, what);
    HVT_CHECK(info->masks || (!o->rrc.on && !o->resize), E_UNSUPPORTED,
              "data set '%s' has images as targets, which are neither resized nor cut out", info->name);
    HVT_CHECK(
        info->masks || (!o->crop && !o->flip) || (info->target_h == h && info->target_w == w), E_UNSUPPORTED,
        "data set '%s' has targets of %d x %d pixels, which cannot follow crops and mirroring of images "
        "of %d x %d",
        info->name, info->target_h, info->target_w, h, w);
    return HVT_OK;
}

hvt_status hvt__pixels_device(const hvt_dataset_info *info, const hvt_loader_opts *o, const char *gpu)
{
    HVT_CHECK(!gpu || (!info->masks && !info->target_h && !o->reconstruct), E_UNSUPPORTED,
              "data set '%s' has %s, which device %s does not support: expected device cpu", info->name,
              info->masks ? "masks" : "images as targets", gpu);
    return HVT_OK;
}
