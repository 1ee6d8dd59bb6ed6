/* mask.h - labels of pixels, and images as targets: how they follow their pictures into a batch. */
#ifndef HVT_DATA_MASK_H
#define HVT_DATA_MASK_H

#include "data_impl.h"
#include "image/image_impl.h"

/* Refuses changes of pictures that masks, or images as targets, cannot follow; batches have h x w pixels.
 * Errors: E_UNSUPPORTED. */
hvt_status hvt__mask_changes(const hvt_dataset_info *info, const hvt_loader_opts *o, int h, int w);

/* Refuses masks, and images as targets, on a GPU. gpu: the name of a device other than the host; NULL: none.
 * Errors: E_UNSUPPORTED. */
hvt_status hvt__pixels_device(const hvt_dataset_info *info, const hvt_loader_opts *o, const char *gpu);

/* Shifts an image of `pixel` bytes per pixel by at[0] rows and at[1] columns, as the device does, and mirrors
 * it if at[2]. Pixels outside the image are its reflected ones, as with padding_mode="reflect", or bytes of
 * `fill` without reflect. */
void hvt__shift(int h, int w, size_t pixel, int fill, bool reflect, const int8_t at[3], const void *from,
                void *to);

/* Applies a view to a mask of w columns by Pillow's NEAREST. Pixels outside the mask are HVT_IGNORED. */
void hvt__mask_view(const uint8_t *mask, int w, const hvt__view *v, uint8_t *ret_mask);

/* Checks that labels are below `classes`, or HVT_IGNORED. Errors: E_FORMAT naming `path` and the pixel. */
hvt_status hvt__mask_check(const uint8_t *mask, int h, int w, int classes, const char *path);

/* A batch's pixels as a tensor, [n,h,w,c] in the loader's row order; c 0: [n,h,w]. */
static inline hvt_tensor hvt__pixels_tensor(const hvt_loader_opts *o, void *data, hvt_dtype type, int h,
                                            int w, int c)
{
    const int n = o->batch, hwn = o->order == HVT_ORDER_HWN;

    return (hvt_tensor){data, type, c ? 4 : 3, {hwn ? h : n, hwn ? w : h, hwn ? n : w, c ? c : 1}};
}

/* Returns the elements in a batch's images. */
static inline size_t hvt__stored(const hvt_dataset_info *i, const hvt_loader_opts *o)
{
    return (size_t)o->batch * (size_t)i->height * (size_t)i->width * (size_t)o->channels;
}

/* True if images are targets and have 16 bits, while targets have 32. */
static inline bool hvt__widens(const hvt_loader_opts *o)
{
    return o->reconstruct && o->type != HVT_F32;
}

static inline int hvt__target_planes(const hvt_dataset_info *i)
{
    return i->targets / (i->target_h * i->target_w);
}

/* Writes masks [real,h,w] as labels of a batch of n images, in a model's row order and in host memory;
 * ignored pixels become -1. */
void hvt__mask_rows(const hvt_dataset_info *info, hvt_order order, int n, int real, const uint8_t *masks,
                    int32_t *ret_labels);
/* Sets the shapes of a batch's labels or targets if they are per pixel. If images are their own targets,
 * these are the batch's targets or, without them, its images. */
void hvt__pixel_answers(const hvt_dataset_info *info, const hvt_loader_opts *o, hvt_batch *batch);
/* Writes targets [real,c,h,w] in the same way. */
void hvt__target_rows(const hvt_dataset_info *info, hvt_order order, int n, int real, const float *targets,
                      float *ret_targets);

#endif /* HVT_DATA_MASK_H */
