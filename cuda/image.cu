/*
 * Augmentation: crop, then mirror, then normalise bytes or floats, with the loader's draws. A block writes
 * one row of one image, a thread one pixel at a time.
 */
#include "lanes.h"

/* Element i of the images; a pixel outside them is 0. */
HVT_FN float source(const hvt_augment_args &a, const void *src, bool inside, size_t i)
{
    return !inside ? 0 : a.floats ? ((const float *)src)[i] : ((const uint8_t *)src)[i];
}

/* CX: channels stored per pixel, or 0 for any number, written one by one */
template <class T, int CX>
__global__ void __launch_bounds__(THREADS, 2)
    augment_kernel(__grid_constant__ const hvt_augment_args a, const void *src, const int8_t *draws,
                   const int32_t *labels)
{
    const int n = (int)blockIdx.x / a.h, p = (int)blockIdx.x % a.h;
    const int down = draws ? draws[n * 3] : 0, right = draws ? draws[n * 3 + 1] : 0;
    const bool mirror = draws && draws[n * 3 + 2];
    const int h = p + down;

    for (int q = (int)threadIdx.x; q < a.w; q += (int)blockDim.x) {
        const int w = (mirror ? a.w - 1 - q : q) + right;
        const bool inside = h >= 0 && h < a.h && w >= 0 && w < a.w;
        const size_t from = inside ? (((size_t)n * a.h + h) * a.w + w) * a.c : 0;
        T *to = (T *)a.dst + ((size_t)blockIdx.x * a.w + q) * a.cx;

        if constexpr (CX > 0) {
            float x[CX];

            for (int c = 0; c < CX; c++)
                x[c] = c < a.c && c < 4
                           ? f_fma(source(a, src, inside, from + c), a.scale[c & 3], a.shift[c & 3])
                           : 0;
            store(to, x);
        } else {
            for (int c = 0; c < a.cx; c++)
                from_float(c < a.c ? f_fma(source(a, src, inside, from + c), a.scale[c & 3], a.shift[c & 3])
                                   : 0,
                           to[c]);
        }
    }
    if (labels && p == 0 && threadIdx.x == 0)
        a.dst_labels[n] = labels[n];
}

hvt_status hvt__cuda_augment(hvt_device *d, const hvt_augment_args *a, const void *src, const int8_t *draws,
                             const int32_t *labels)
{
    const unsigned blocks = (unsigned)a->real * a->h, threads = line_threads(a->w);

    if (blocks == 0)
        return HVT_OK;
    return with_type(a->type, [=](auto zero) {
        typedef decltype(zero) T;

        if (a->cx == 4 && (heads(4, a->dst, sizeof(T)) & 1))
            return HVT_LAUNCH(d, (augment_kernel<T, 4>), blocks, threads, *a, src, draws, labels);
        if (a->cx == 8 && (heads(8, a->dst, sizeof(T)) & 1))
            return HVT_LAUNCH(d, (augment_kernel<T, 8>), blocks, threads, *a, src, draws, labels);
        return HVT_LAUNCH(d, (augment_kernel<T, 0>), blocks, threads, *a, src, draws, labels);
    });
}
