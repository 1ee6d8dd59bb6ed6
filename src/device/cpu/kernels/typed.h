/*
 * typed.h - elements of the type that typed_tmpl.c and depthwise_tmpl.c are compiled for: widened when loaded
 * and rounded when stored.
 */
#ifndef HVT_TYPED_H
#define HVT_TYPED_H

#include "device/cpu/cpu_impl.h"
#include "device/cpu/elementwise.h"
#include "vec.h"

/* Names, by type and instruction set, that one of the two files defines for the other. */
#define OF_A_TYPE(name, type) HVT_OF_ISA(name##_##type)
#define OF_THIS(name, type)   OF_A_TYPE(name, type)
#define OF_TYPE(name)         OF_THIS(name, NAME)

void OF_TYPE(depthwise)(const hvt_depthwise *g, const void *from, const float *w, void *to, bool add);
void OF_TYPE(depthwise_dw)(const hvt_depthwise *g, const void *from, const void *to, float *dw);

enum { ELEMENT = TYPE == HVT_F32 ? sizeof(float) : sizeof(uint16_t) }; /* bytes */

INLINE F get(const void *p, size_t at, int lanes)
{
    return f_load_as(TYPE, p, at, lanes);
}

INLINE void put(void *p, size_t at, F x, int lanes)
{
    f_store_as(TYPE, p, at, x, lanes);
}

/* p += x, or p = x. If `add` is not constant, its branch must remain a branch: gcc 12 turns a choice between
 * vectors into an AVX-512 addition with the number `add` as its mask, which covers only the first element. */
INLINE void put_or_add(void *p, size_t at, F x, bool add, int lanes)
{
    const bool known = __builtin_constant_p(add);

    if (add) {
        if (!known)
            __asm__ volatile("");
        x = get(p, at, lanes) + x;
    }
    put(p, at, x, lanes);
}

#endif /* HVT_TYPED_H */
