/*
 * Convolution kernels of 6 x 8 in the compiler's own vectors of four floats: SSE on x86-64. Multiply and add
 * are rounded separately, so that every machine gives the same bits. See kern.h.
 */
#include <string.h>

#define VL       4
#define ROWS1    6
#define ROWS2    6
#define PITCH    8
#define EACH1(X) X(1) X(2) X(3) X(4) X(5) X(6)
#define EACH2(X) EACH1(X)

typedef float vec __attribute__((vector_size(16)));

#define vzero()          ((vec){0})
#define vadd(a, b)       ((a) + (b))
#define vmuladd(a, b, c) ((c) + (a) * (b))
#define vstream(p, v)    vstore(p, v)
#define vbroadcast(p)    vfill(*(p))

static inline __attribute__((always_inline)) vec vfill(float x)
{
    return (vec){x, x, x, x};
}

static inline __attribute__((always_inline)) vec vload(const float *p)
{
    vec v;

    memcpy(&v, p, sizeof v);
    return v;
}

static inline __attribute__((always_inline)) void vstore(float *p, vec v)
{
    memcpy(p, &v, sizeof v);
}

static inline __attribute__((always_inline)) vec vload_part(const float *p, int n)
{
    vec v = vzero();

    for (int i = 0; i < n; i++)
        v[i] = p[i];
    return v;
}

static inline __attribute__((always_inline)) void vstore_part(float *p, vec v, int n)
{
    for (int i = 0; i < n; i++)
        p[i] = v[i];
}

static inline __attribute__((always_inline)) void vtranspose(vec *r)
{
    vec t[4];

    for (int i = 0; i < 4; i++)
        t[i] = (vec){r[0][i], r[1][i], r[2][i], r[3][i]};
    for (int i = 0; i < 4; i++)
        r[i] = t[i];
}

#include "kern.h"

KERNELS(portable);

extern const hvt_elementwise hvt__elementwise_portable;

const hvt_isa hvt__isa_portable = {
    .name = "portable", .conv = &hvt__conv_portable, .el = &hvt__elementwise_portable};
