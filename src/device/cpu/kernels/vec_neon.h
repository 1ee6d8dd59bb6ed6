/* vec_neon.h - vec.h's vectors for AArch64. */
#include "vec_128.h"

/* Load a float of A into the first lane of a register; the multiply-add by lane broadcasts it. */
#define vmuladd(a, b, c) vfmaq_laneq_f32(c, b, a, 0)
#define vbroadcast(p)    ((F){*(p)})

/* pairs, then halves */
INLINE void f_transpose(F *r)
{
    float32x4x2_t a = vtrnq_f32(r[0], r[1]), b = vtrnq_f32(r[2], r[3]);

    for (int i = 0; i < 2; i++) {
        r[i] = vcombine_f32(vget_low_f32(a.val[i]), vget_low_f32(b.val[i]));
        r[2 + i] = vcombine_f32(vget_high_f32(a.val[i]), vget_high_f32(b.val[i]));
    }
}

/* tiles of 12 x 8: 24 of 32 registers are accumulators */
#define ROWS1     16
#define ROWS2     12
#define PITCH     16
#define ISA_ENTRY .conv = &hvt__conv_neon
