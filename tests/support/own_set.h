/* own_set.h - a data set for tests whose every byte is known. */
#ifndef HVT_OWN_SET_H
#define HVT_OWN_SET_H

#include "hvt/data.h"
#include "base_impl.h"
#include "check.h"

/* Image i has pixel bytes that name image, row, column and channel; label i mod 7. */
typedef struct own {
    int h, w, c, closed;
    int bad_label, bad_index; /* image bad_index has label bad_label, if that is not 0 */
    hvt_status answer;
} own;

static uint8_t own_byte(uint32_t i, int y, int x, int c)
{
    return (uint8_t)(1 + hvt__draw(i, (uint64_t)y, (uint64_t)x, (uint64_t)c) % 255); /* never 0 */
}

static hvt_status own_get(void *ctx, uint32_t index, uint8_t *ret_pixels, int *ret_label)
{
    const own *o = ctx;

    HVT_CHECK(o->answer == HVT_OK, E_IO, "image %u is on the moon", index);
    for (int y = 0; y < o->h; y++)
        for (int x = 0; x < o->w; x++)
            for (int c = 0; c < o->c; c++)
                *ret_pixels++ = own_byte(index, y, x, c);
    *ret_label = o->bad_label && (int)index == o->bad_index ? o->bad_label : (int)(index % 7);
    return HVT_OK;
}

static void own_close(void *ctx)
{
    ((own *)ctx)->closed++;
}

static inline hvt_source own_source(own *o, uint32_t count)
{
    return (hvt_source){.info = {"own", count, 7, o->h, o->w, o->c, 5, .type = HVT_U8},
                        .get = own_get,
                        .close = own_close,
                        .ctx = o};
}

static inline hvt_dataset *own_set(own *o, uint32_t count)
{
    hvt_source source = own_source(o, count);
    hvt_dataset *set = NULL;

    CHECK_OK(hvt_dataset_from(&source, 0, &set));
    return set;
}

static inline hvt_loader *loader_on(hvt_device *dev, const hvt_dataset *set, const hvt_loader_opts *opts)
{
    hvt_loader *l = NULL;

    CHECK_OK(hvt_loader_open(set, dev, opts, &l));
    if (!l)
        exit(1);
    return l;
}

#endif /* HVT_OWN_SET_H */
