/*
 * vec.h - a vector of floats for the instruction set being compiled, and its operations: those of
 * vec_<isa>.h, and those common to all sets.
 *
 * GCC's vector extension provides the operators (+, -, <, &, bit casts). `lanes` is the number of the VL
 * elements that a load or store may access: VL in a loop's body, where it is a constant and free, fewer in
 * its tail. Other lanes are zero, so a tail does the same arithmetic as the body.
 *
 * A set consists of its vec_<isa>.h, which defines
 *
 *     VL F                  floats in a vector, and its type
 *     f_load f_store        (p, lanes), (p, x, lanes)
 *     f_stream f_splat f_fma f_relu f_keep    (d where y > 0 or NaN, else 0)
 *     f_transpose           (F r[VL])
 *     ROWS1 ROWS2 ROWS3 PITCH vmuladd vbroadcast VNNI2    for gemm_tmpl.c, which explains them
 *     OTHER_TYPES           the set whose f32 and f16 kernels of typed_tmpl.c this set uses, if not its own
 *     ISA_ENTRY             initializers of its hvt_isa: .conv, .needs, ...
 *
 * and, as macros, faster versions of the code below: f_sqrt, f_clamp together with f_keep_within, i_from_b,
 * u_from_h, h_load_part together with h_store_part, f_to_bf16, f_from_f16 together with f_to_f16.
 *
 * Included by elementwise_tmpl.c, factors_tmpl.c and typed.h. Nothing else.
 */
#ifndef HVT_VEC_H
#define HVT_VEC_H

#include "device/half.h"
#include "device/cpu/cpu_impl.h"

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include HVT_VECTORS

/* ---- common to all sets ---- */

typedef int32_t I __attribute__((vector_size(VL * 4)));
typedef I M; /* formula.h's */
typedef uint32_t U __attribute__((vector_size(VL * 4)));
typedef uint16_t H __attribute__((vector_size(VL * 2)));
typedef uint8_t B __attribute__((vector_size(VL)));

INLINE F f_zero(void)
{
    return f_splat(0);
}

INLINE U f_bits(F x)
{
    return (U)x;
}

INLINE F f_from_bits(U x)
{
    return (F)x;
}

/* mask: all bits of a lane set, or none, as comparisons return */
INLINE F f_select(I mask, F yes, F no)
{
    return (F)((mask & (I)yes) | (~mask & (I)no));
}

INLINE I i_select(I mask, I yes, I no)
{
    return (mask & yes) | (~mask & no);
}

INLINE I i_splat(int x)
{
    return (I){0} + x;
}

#ifndef f_sqrt
INLINE F f_sqrt(F x)
{
    for (int i = 0; i < VL; i++)
        x[i] = __builtin_sqrtf(x[i]);
    return x;
}
#endif

#ifndef i_from_b
#define i_from_b(b) __builtin_convertvector(b, I)
#endif

INLINE I i_load_bytes(const uint8_t *p, int lanes)
{
    B b = {0};

    memcpy(&b, p, lanes == VL ? sizeof b : (size_t)lanes);
    return i_from_b(b);
}

INLINE void i_store_bytes(uint8_t *p, I x, int lanes)
{
    B b = __builtin_convertvector(x, B);

    memcpy(p, &b, lanes == VL ? sizeof b : (size_t)lanes);
}

INLINE F f_from_int(I x)
{
    return __builtin_convertvector(x, F);
}

#ifndef h_load_part
INLINE H h_load_part(const uint16_t *p, int n)
{
    H h = {0};

    memcpy(&h, p, (size_t)n * sizeof *p);
    return h;
}

INLINE void h_store_part(uint16_t *p, H h, int n)
{
    memcpy(p, &h, (size_t)n * sizeof *p);
}
#endif

INLINE H h_load(const uint16_t *p, int lanes)
{
    H h;

    if (lanes != VL)
        return (H)h_load_part(p, lanes);
    memcpy(&h, p, sizeof h);
    return h;
}

INLINE void h_store(uint16_t *p, H h, int lanes)
{
    if (lanes == VL)
        memcpy(p, &h, sizeof h);
    else
        h_store_part(p, h, lanes);
}

#ifndef u_from_h
#define u_from_h(h) __builtin_convertvector(h, U)
#endif

INLINE F f_from_bf16(H h)
{
    return (F)(u_from_h(h) << 16);
}

#ifndef f_to_bf16

INLINE H f_to_bf16(F x)
{
    U u = (U)x, even = (u + 0x7fff + (u >> 16 & 1)) >> 16, quiet = u >> 16 | 0x40;
    I nan = (I)(x != x);

    return __builtin_convertvector((U)i_select(nan, (I)quiet, (I)even), H);
}
#endif

#ifndef f_from_f16
/* Not inlined: inlined into all loads and stores, they make a file of kernels compile for a minute. */
static __attribute__((noinline, unused)) F f_from_f16(H h)
{
    F x;

    for (int i = 0; i < VL; i++)
        x[i] = hvt__from_f16(h[i]);
    return x;
}

static __attribute__((noinline, unused)) H f_to_f16(F x)
{
    H h;

    for (int i = 0; i < VL; i++)
        h[i] = hvt__to_f16(x[i]);
    return h;
}

#endif

INLINE F f_load_as(hvt_dtype t, const void *p, size_t i, int lanes)
{
    return t == HVT_F32   ? f_load((const float *)p + i, lanes)
           : t == HVT_F16 ? f_from_f16(h_load((const uint16_t *)p + i, lanes))
                          : f_from_bf16(h_load((const uint16_t *)p + i, lanes));
}

INLINE void f_store_as(hvt_dtype t, void *p, size_t i, F x, int lanes)
{
    if (t == HVT_F32)
        f_store((float *)p + i, x, lanes);
    else
        h_store((uint16_t *)p + i, t == HVT_F16 ? f_to_f16(x) : f_to_bf16(x), lanes);
}

/* The sum of in[0 .. count-1] along the tree, like a binary counter: partial sums of 2^k leaves wait on the
 * stack for their siblings. */
INLINE F tree(hvt_dtype t, const void *const in[], int count, size_t at, int lanes)
{
    F stack[32], x = f_load_as(t, in[0], at, lanes);
    int depth = 0;

    if (count <= 2)
        return count == 2 ? x + f_load_as(t, in[1], at, lanes) : x;
    for (int k = 0; k < count; k++) {
        x = f_load_as(t, in[k], at, lanes);
        for (int bits = k; bits & 1; bits >>= 1)
            x = stack[--depth] + x;
        stack[depth++] = x;
    }
    x = stack[--depth];
    while (depth)
        x = stack[--depth] + x;
    return x;
}

/* Run the statements for i = 0, VL, 2*VL ... below n, with `i` and `lanes`. */
#define SPAN(n, ...)                                                                                         \
    do {                                                                                                     \
        size_t i = 0;                                                                                        \
                                                                                                             \
        for (; i + VL <= (size_t)(n); i += VL) {                                                             \
            enum { lanes = VL };                                                                             \
            __VA_ARGS__                                                                                      \
        }                                                                                                    \
        if (i < (size_t)(n)) {                                                                               \
            const int lanes = (int)((size_t)(n)-i);                                                          \
            __VA_ARGS__                                                                                      \
        }                                                                                                    \
    } while (0)

#endif /* HVT_VEC_H */
