/* Convolution kernels of 14 x 32: 28 accumulators, one broadcast, two columns of weights. See kern.h. */
#include "avx512.h"

#define ROWS1    16
#define ROWS2    14
#define PITCH    16
#define EACH2(X) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14)
#define EACH1(X) EACH2(X) X(15) X(16)
#define ROWS3    8
#define EACH3(X) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8)

#define vbroadcast(p)    _mm512_set1_ps(*(p))
#define vmuladd(a, b, c) _mm512_fmadd_ps(a, b, c)

#include "kern.h"

KERNELS(avx512);

extern const hvt_elementwise hvt__elementwise_avx512;

const hvt_isa hvt__isa_avx512 = {.name = "avx512",
                                 .needs = {AVX512_NEEDS, .xcr0 = AVX512_STATE},
                                 .conv = &hvt__conv_avx512,
                                 .el = &hvt__elementwise_avx512};
