/*
 * Convolution kernels of 12 x 8 for AArch64: 24 of 32 registers are accumulators. A float of A is loaded into
 * the first lane of a register; the multiply-add by lane broadcasts it. See kern.h.
 */
#include <arm_neon.h>

#define VL       4
#define ROWS1    16
#define ROWS2    12
#define PITCH    16
#define EACH2(X) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12)
#define EACH1(X) EACH2(X) X(13) X(14) X(15) X(16)

typedef float32x4_t vec;

#define vzero()          vdupq_n_f32(0)
#define vload(p)         vld1q_f32(p)
#define vstore(p, v)     vst1q_f32(p, v)
#define vstream(p, v)    vst1q_f32(p, v)
#define vbroadcast(p)    ((vec){*(p)})
#define vadd(a, b)       vaddq_f32(a, b)
#define vmuladd(a, b, c) vfmaq_laneq_f32(c, b, a, 0)

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

/* 4 x 4 floats: pairs, then halves */
static inline __attribute__((always_inline)) void vtranspose(vec *r)
{
    float32x4x2_t a = vtrnq_f32(r[0], r[1]), b = vtrnq_f32(r[2], r[3]);

    for (int i = 0; i < 2; i++) {
        r[i] = vcombine_f32(vget_low_f32(a.val[i]), vget_low_f32(b.val[i]));
        r[2 + i] = vcombine_f32(vget_high_f32(a.val[i]), vget_high_f32(b.val[i]));
    }
}

#include "kern.h"

KERNELS(neon);

extern const hvt_elementwise hvt__elementwise_portable;

const hvt_isa hvt__isa_neon = {.name = "neon",
                               .needs = {.hwcap = 1 << 1 /* ASIMD */},
                               .conv = &hvt__conv_neon,
                               .el = &hvt__elementwise_portable}; /* compiled for NEON on AArch64 */
