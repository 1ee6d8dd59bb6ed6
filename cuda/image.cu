/*
 * Augmentation: crop, mirror, normalise bytes or floats, erase a box, mix with the image before, with the
 * loader's draws. A block writes one row of one image, a thread one pixel at a time.
 */
#include "lanes.h"

/* Element i of the images; a pixel outside them is 0. */
HVT_FN float source(const hvt_augment_args &a, const void *src, bool inside, size_t i)
{
    return !inside ? 0 : a.floats ? ((const float *)src)[i] : ((const uint8_t *)src)[i];
}

struct choice {
    const void *src;
    const int8_t *draws;
    const int16_t *erased;
};

/* Where pixel (p, q) of image n comes from. */
struct origin {
    bool erased, inside;
    size_t at;
};

HVT_FN origin origin_of(const hvt_augment_args &a, const choice &from, int n, int p, int q)
{
    const int8_t *draw = from.draws ? from.draws + n * 3 : NULL;
    const int16_t *box = from.erased ? from.erased + n * 4 : NULL;
    const int h = p + (draw ? draw[0] : 0), w = (draw && draw[2] ? a.w - 1 - q : q) + (draw ? draw[1] : 0);
    const bool inside = h >= 0 && h < a.h && w >= 0 && w < a.w;

    return {box && p >= box[0] && p < box[0] + box[2] && q >= box[1] && q < box[1] + box[3], inside,
            inside ? (((size_t)n * a.h + h) * a.w + w) * a.c : 0};
}

/* Channel c of a finished pixel, before mixing. */
HVT_FN float finished(const hvt_augment_args &a, const void *src, const origin &o, int c)
{
    return o.erased ? 0 : f_fma(source(a, src, o.inside, o.at + c), a.scale[c & 3], a.shift[c & 3]);
}

/* CX: channels stored per pixel, or 0 for any number, written one by one */
template <class T, int CX>
__global__ void __launch_bounds__(THREADS, 2)
    augment_kernel(__grid_constant__ const hvt_augment_args a, const choice from, const int32_t *labels)
{
    const int n = (int)blockIdx.x / a.h, p = (int)blockIdx.x % a.h, before = n ? n - 1 : a.real - 1;
    const hvt_mixing m = a.mixing;

    for (int q = (int)threadIdx.x; q < a.w; q += (int)blockDim.x) {
        const bool mixed = p >= m.top && p < m.bottom && q >= m.left && q < m.right;
        const origin one = origin_of(a, from, n, p, q), other = origin_of(a, from, mixed ? before : n, p, q);
        T *to = (T *)a.dst + ((size_t)blockIdx.x * a.w + q) * a.cx;
        const auto value = [&](int c) {
            const float x = finished(a, from.src, one, c);

            return mixed ? augment_mix(m.share, x, finished(a, from.src, other, c)) : x;
        };

        if constexpr (CX > 0) {
            float x[CX];

            for (int c = 0; c < CX; c++)
                x[c] = c < a.c && c < 4 ? value(c) : 0;
            store(to, x);
        } else {
            for (int c = 0; c < a.cx; c++)
                from_float(c < a.c ? value(c) : 0, to[c]);
        }
    }
    if (labels && p == 0 && threadIdx.x == 0)
        a.dst_labels[n] = labels[n];
}

hvt_status hvt__cuda_augment(hvt_device *d, const hvt_augment_args *a, const void *src, const int8_t *draws,
                             const int16_t *erased, const int32_t *labels)
{
    const choice from = {src, draws, erased};
    const unsigned blocks = (unsigned)a->real * a->h, threads = line_threads(a->w);

    if (blocks == 0)
        return HVT_OK;
    return with_type(a->type, [=](auto zero) {
        typedef decltype(zero) T;

        if (a->cx == 4 && (heads(4, a->dst, sizeof(T)) & 1))
            return HVT_LAUNCH(d, (augment_kernel<T, 4>), blocks, threads, *a, from, labels);
        if (a->cx == 8 && (heads(8, a->dst, sizeof(T)) & 1))
            return HVT_LAUNCH(d, (augment_kernel<T, 8>), blocks, threads, *a, from, labels);
        return HVT_LAUNCH(d, (augment_kernel<T, 0>), blocks, threads, *a, from, labels);
    });
}
