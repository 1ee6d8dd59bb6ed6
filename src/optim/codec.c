/*
 * Codecs: gradients as they travel, if not as f32, and what becomes of that which a codec loses.
 *
 * A codec is two functions, and a third where gradients travel in two rounds. Casts and the table are here,
 * factors in powersgd.c. Of factors a rank keeps the *rest*, what its own encoding took from each gradient,
 * and adds it to the next gradient of the same element before that is encoded. The rest is in the arena's
 * units, which the number of images and the loss scale change; it follows them, so that what was sent and
 * what is left are all that there was, counted in mean gradients.
 *
 * Invariant: a rest is finite when it is read. An encoding that is not finite makes a sum that is not, the
 * update is skipped, and the rest of a skipped update is dropped.
 */
#include "dist.h"
#include "base_impl.h"

enum { CHUNK = 1 << 17 };

/* ---- the table ---- */

/* Scaled before the sum: a mean has a chance to fit where the sum has not. */
static hvt_status encode_cast(const hvt_distopt *d, size_t first, size_t n)
{
    hvt_device *dev = d->optim->m->dev;

    return dev->ops->cast(dev, n, d->wire_scale, d->grads + first, HVT_F32, d->wire + first, d->opts.wire);
}

static hvt_status decode_cast(const hvt_distopt *d, size_t first, size_t n, float s, float *ret_g)
{
    hvt_device *dev = d->optim->m->dev;

    return dev->ops->cast(dev, n, s / d->wire_scale, d->wire + first, d->opts.wire, ret_g, HVT_F32);
}

const hvt__codec *hvt__codec_of(hvt_dtype wire)
{
    static const hvt__codec table[] = {
        {.wire = HVT_F32},
        {.wire = HVT_F16, .encode = encode_cast, .decode = decode_cast},
        {.wire = HVT_BF16, .encode = encode_cast, .decode = decode_cast},
    };

    for (size_t i = 0; i < HVT_LEN(table); i++)
        if (table[i].wire == wire)
            return &table[i];
    return NULL;
}

/* The rider, alone in the first bucket then, travels as it is. */
const hvt__codec *hvt__codec_for(const hvt_distopt *d, const hvt_bucket *b)
{
    return d->powersgd && b != d->bucket ? &hvt__codec_powersgd : hvt__codec_of(b->wire);
}

size_t hvt__codec_chunk(const hvt_distopt *d)
{
    return d->optim->m->dev->ops->host ? CHUNK : SIZE_MAX;
}

/* ---- the rest ---- */

hvt_status hvt__rest_begin(hvt_distopt *d, int64_t images)
{
    hvt_model *m = d->optim->m;
    const hvt_device_ops *ops = m->dev->ops;
    double unit = (double)images * (double)m->step->loss_scale, before = d->rest_unit;
    bool dropped = !before || d->rest_skipped != m->step->skipped;

    d->rest_unit = unit;
    d->rest_skipped = m->step->skipped;
    if (dropped)
        return ops->zero(m->dev, d->rest, m->arena_count * sizeof *d->rest);
    if (unit == before)
        return HVT_OK;
    return ops->cast(m->dev, m->arena_count, (float)(unit / before), d->rest, HVT_F32, d->rest, HVT_F32);
}
