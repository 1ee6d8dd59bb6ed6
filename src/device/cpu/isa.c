/*
 * The table of instruction sets. A set is a name, a question to the processor, and the functions that were
 * compiled for it; everything else in the cpu device is one text. Sets stand in order of strength, so that
 * `auto` is the last one supported and ranks on different processors agree on the smallest index of theirs.
 */
#include "base_impl.h"
#include "cpu_impl.h"

extern const hvt_conv_kernels hvt__conv_portable;
extern const hvt_elementwise hvt__elementwise_portable;

static bool always(void)
{
    return true;
}

#ifdef __x86_64__
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

extern const hvt_conv_kernels hvt__conv_avx2, hvt__conv_avx512, hvt__conv_avx512_bf16, hvt__conv_amx;
extern const hvt_elementwise hvt__elementwise_avx2, hvt__elementwise_avx512;

/* Does the system save the upper halves of these registers at a task switch? CPUID alone does not tell. */
static bool saved_by_system(uint32_t parts)
{
    uint32_t low, high;

    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (low & parts) == parts;
}

static bool has_f16c(void) /* clang 14 does not know this word */
{
    unsigned a, b, c, d;

    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

static bool has_avx2(void)
{
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c() &&
           saved_by_system(0x06);
}

static bool has_avx512(void)
{
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") && saved_by_system(0xe6);
}

static bool has_avx512_bf16(void)
{
    unsigned a, b, c, d;

    return has_avx512() && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & 1u << 5);
}

/* Linux gives tiles to a process that asks; threads that exist and threads to come have them, too. Asking
 * again is harmless. */
static bool may_use_tiles(void)
{
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, XTILEDATA = 18 };

    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XTILEDATA) == 0;
}

static bool has_amx(void)
{
    const unsigned bf16 = 1u << 22, tile = 1u << 24;
    unsigned a, b, c, d;

    return has_avx512() && __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & bf16) && (d & tile) &&
           saved_by_system(0x60000) && may_use_tiles();
}
#endif

const hvt_isa hvt__isas[] = {
    {.name = "portable", .supported = always, .conv = &hvt__conv_portable, .el = &hvt__elementwise_portable},
#ifdef __x86_64__
    {.name = "avx2", .supported = has_avx2, .conv = &hvt__conv_avx2, .el = &hvt__elementwise_avx2},
    {.name = "avx512", .supported = has_avx512, .conv = &hvt__conv_avx512, .el = &hvt__elementwise_avx512},
    {.name = "avx512_bf16",
     .supported = has_avx512_bf16,
     .conv = &hvt__conv_avx512,
     .bf16 = &hvt__conv_avx512_bf16,
     .el = &hvt__elementwise_avx512},
    {.name = "amx",
     .supported = has_amx,
     .conv = &hvt__conv_avx512,
     .bf16 = &hvt__conv_amx,
     .el = &hvt__elementwise_avx512},
#endif
};

const int hvt__isa_count = HVT_LEN(hvt__isas);

int hvt_cpu_isa_count(void)
{
    return hvt__isa_count;
}

const char *hvt_cpu_isa_name(int i)
{
    return hvt__isas[i].name;
}

bool hvt_cpu_isa_supported(int i)
{
    return hvt__isas[i].supported();
}
