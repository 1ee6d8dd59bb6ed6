/* vec_portable.h - vec.h's vectors for any processor. */
#include "vec_128.h"

/* Convolutions round the product, too, so every machine gives the same bits. */
#define vmuladd(a, b, c) ((c) + (a) * (b))
#define vbroadcast(p)    f_splat(*(p))

INLINE void f_transpose(F *r)
{
    F t[4];

    for (int i = 0; i < 4; i++)
        t[i] = (F){r[0][i], r[1][i], r[2][i], r[3][i]};
    for (int i = 0; i < 4; i++)
        r[i] = t[i];
}

/* tiles of 6 x 8: 12 of 16 registers are accumulators */
#define ROWS1 6
#define ROWS2 6
#define PITCH 8
/* other shapes of depthwise convolutions are computed target by target, which saves a third of compile time
 */
#define FEW_SHAPES
#define ISA_ENTRY .conv = &hvt__conv_portable
