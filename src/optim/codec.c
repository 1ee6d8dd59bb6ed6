/*
 * Codecs: the forms in which gradients travel. This file has the codecs that convert element by element, and
 * the function that selects a codec; powersgd.c has low-rank factors, adasum.c Adasum.
 *
 * A 16-bit wire carries a gradient times a power of two, so that roughly the mean has to fit into the type. A
 * sum that still does not fit is not finite, and the update is skipped.
 */
#include "dist.h"
#include "base_impl.h"

void *hvt__span_f32(const hvt_distopt *d, const hvt_bucket *b, size_t *ret_count)
{
    *ret_count = b->end - b->first;
    return d->grads + b->first;
}

const hvt__codec hvt__codec_f32 = {.wire = HVT_F32, .span = hvt__span_f32};

static hvt_status open_cast(hvt_distopt *d)
{
    d->coded_bytes = (d->optim->m->grad_count * sizeof(uint16_t) + 63) / 64 * 64;
    return HVT_OK;
}

static void *span_cast(const hvt_distopt *d, const hvt_bucket *b, size_t *ret_count)
{
    *ret_count = b->end - b->first;
    return (uint16_t *)d->coded + b->first;
}

/* Scales to roughly a mean. A scaled loss is divided by a shard's batch already. */
static hvt_status begin_cast(hvt_distopt *d, int64_t images)
{
    int batch = d->opts.scaling.scale ? d->optim->m->batch : 1;

    d->wire_scale = 1;
    while ((double)d->wire_scale * (double)images > batch)
        d->wire_scale /= 2;
    return HVT_OK;
}

/* Scales before the sum: the mean may fit where the sum does not. */
static hvt_status encode_cast(hvt_distopt *d, const hvt_bucket *b)
{
    hvt_device *dev = d->optim->m->dev;
    size_t n;
    void *wire = span_cast(d, b, &n);

    return dev->ops->vector.cast(dev, n, d->wire_scale, d->grads + b->first, HVT_F32, wire, d->codec->wire);
}

static hvt_status decode_cast(hvt_distopt *d, size_t first, size_t n)
{
    hvt_device *dev = d->optim->m->dev;
    const uint16_t *wire = d->coded;

    return dev->ops->vector.cast(dev, n, 1 / d->wire_scale, wire + first, d->codec->wire, d->grads + first,
                                 HVT_F32);
}

#define CAST(type)                                                                                           \
    {                                                                                                        \
        .wire = type, .open = open_cast, .span = span_cast, .begin = begin_cast, .encode = encode_cast,      \
        .decode = decode_cast                                                                                \
    }

static const hvt__codec codec_f16 = CAST(HVT_F16), codec_bf16 = CAST(HVT_BF16);

hvt_status hvt__codec_pick(const hvt_optim *o, const hvt_distopt_opts *opts, const hvt__codec **ret_codec)
{
    static const hvt__codec *const of[] = {
        [HVT_F32] = &hvt__codec_f32, [HVT_F16] = &codec_f16, [HVT_BF16] = &codec_bf16};
    const hvt__codec *codec = (size_t)opts->wire < HVT_LEN(of) ? of[opts->wire] : NULL;

    HVT_CHECK(codec, E_ARG, "wire type is %s, expected f32, f16 or bf16", hvt_dtype_name(opts->wire));
    if (opts->adasum)
        codec = &hvt__codec_adasum;
    else if (opts->powersgd)
        codec = &hvt__codec_powersgd;
    if (codec->check)
        HVT_TRY(codec->check(o, opts));
    *ret_codec = codec;
    return HVT_OK;
}
