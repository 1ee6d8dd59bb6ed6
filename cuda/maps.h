/*
 * maps.h - device/functions.h for a thread's elements. All threads of a kernel compute the same function, so
 * they branch once for all elements. The bits equal those of cpu's vectors with fma.
 *
 * Included by .cu files. Nothing else.
 */
#ifndef HVT_CUDA_MAPS_H
#define HVT_CUDA_MAPS_H

#include "lanes.h"

#define INLINE HVT_FN

INLINE float f_splat(float x)
{
    return x;
}

INLINE float f_zero()
{
    return 0;
}

INLINE float f_select(int mask, float yes, float no)
{
    return mask ? yes : no;
}

INLINE uint32_t f_bits(float x)
{
    return hvt__bits(x);
}

INLINE float f_from_bits(uint32_t x)
{
    return hvt__from_bits(x);
}

#include "device/functions.h"

/* x = f(x) */
template <int N> HVT_FN void map_values(const hvt_map &f, float (&x)[N])
{
    switch (f.f) {
#define VALUES(constant, name, from_x)                                                                       \
    case HVT_##constant:                                                                                     \
        for (int i = 0; i < N; i++)                                                                          \
            x[i] = name##_value(x[i], f.a, f.b);                                                             \
        break;
        HVT__MAPS(VALUES)
#undef VALUES
    default:
        break;
    }
}

/* dy becomes the gradient of x, from forward's x or y, see HVT__MAPS */
template <int N> HVT_FN void map_slopes(const hvt_map &f, const float (&kept)[N], float (&dy)[N])
{
    switch (f.f) {
#define SLOPES(constant, name, from_x)                                                                       \
    case HVT_##constant:                                                                                     \
        for (int i = 0; i < N; i++)                                                                          \
            dy[i] = name##_gradient(kept[i], f.a, f.b, dy[i]);                                               \
        break;
        HVT__MAPS(SLOPES)
#undef SLOPES
    default:
        break;
    }
}

/* the same from x, if f's value is stored as a T */
template <class T, int N> HVT_FN void map_slopes_at(const hvt_map &f, const float (&x)[N], float (&dy)[N])
{
    switch (f.f) {
#define SLOPES_AT(constant, name, from_x)                                                                    \
    case HVT_##constant:                                                                                     \
        for (int i = 0; i < N; i++)                                                                          \
            dy[i] =                                                                                          \
                name##_gradient(from_x ? x[i] : rounded<T>(name##_value(x[i], f.a, f.b)), f.a, f.b, dy[i]);  \
        break;
        HVT__MAPS(SLOPES_AT)
#undef SLOPES_AT
    default:
        break;
    }
}

#endif /* HVT_CUDA_MAPS_H */
