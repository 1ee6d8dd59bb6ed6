/* vec_128.h - vectors of four floats with the compiler's vector extension: SSE, NEON. Included by
 * vec_portable.h and vec_neon.h. */
#include <string.h>

#ifdef __aarch64__
#include <arm_neon.h>
#define f_from_f16(h) ((F)vcvt_f32_f16((float16x4_t)(h)))
#define f_to_f16(x)   ((H)vcvt_f16_f32(x))
#define f_sqrt(x)     ((F)vsqrtq_f32(x))
#endif

enum { VL = 4 };
typedef float F __attribute__((vector_size(16)));
typedef int32_t mask_128 __attribute__((vector_size(16)));

INLINE F f_load(const float *p, int lanes)
{
    F x = {0};

    memcpy(&x, p, lanes == VL ? sizeof x : (size_t)lanes * sizeof *p);
    return x;
}

INLINE void f_store(float *p, F x, int lanes)
{
    memcpy(p, &x, lanes == VL ? sizeof x : (size_t)lanes * sizeof *p);
}

#define f_stream(p, x) f_store(p, x, VL)

INLINE F f_splat(float x)
{
    return (F){x, x, x, x};
}

INLINE F f_fma(F a, F b, F c)
{
#ifdef __aarch64__
    return vfmaq_f32(c, a, b);
#else
    return a * b + c;
#endif
}

INLINE F f_relu(F x)
{
    return (F)(~(mask_128)(0 > x) & (mask_128)x);
}

INLINE F f_keep(F y, F d)
{
    return (F)(~(mask_128)(y <= 0) & (mask_128)d);
}
