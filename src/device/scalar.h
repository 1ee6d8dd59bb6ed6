/*
 * scalar.h - formula.h for one float: the arithmetic of ref and of a GPU thread.
 *
 * Included by src/device and cuda/. Nothing else.
 */
#ifndef HVT_SCALAR_H
#define HVT_SCALAR_H

#include "half.h"

#include <math.h>

typedef float F;
typedef int M;
typedef int32_t I;
typedef uint32_t U;

HVT_FN float f_fma(float a, float b, float c)
{
    return fmaf(a, b, c);
}

HVT_FN float f_relu(float x)
{
    return 0 > x ? 0 : x;
}

HVT_FN float f_keep(float y, float d)
{
    return y <= 0 ? 0 : d;
}

HVT_FN float f_sqrt(float x)
{
    return sqrtf(x);
}

#include "formula.h"

#endif /* HVT_SCALAR_H */
