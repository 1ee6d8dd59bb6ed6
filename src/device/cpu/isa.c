/*
 * The table of instruction sets. A set is a name, its requirements, and the functions compiled for it;
 * everything else in the cpu device is common. Sets are in order of strength: `auto` is the last one that the
 * processor supports and that is worthwhile there. Only CPUID decides, so all processes of a machine decide
 * alike; ranks on different processors agree on the strongest set that all would choose.
 *
 * meson.build lists the sets, kernels/vec_<isa>.h has the contents of an entry, and kernels/gemm_tmpl.c
 * defines it.
 */
#include "base_impl.h"
#include "config.h"
#include "cpu_impl.h"

#ifdef __x86_64__
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

static bool all(uint32_t have, uint32_t need)
{
    return (have & need) == need;
}

/* True if the system saves these registers at a context switch, which CPUID alone does not show. */
static bool saved_by_system(uint32_t parts)
{
    enum { OSXSAVE = 1 << 27 };
    unsigned a, b, c, d;
    uint32_t low, high;

    if (!parts)
        return true;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !all(c, OSXSAVE))
        return false;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return all(low, parts);
}

/* Linux grants a state component to a process that requests it, for existing and future threads. Requesting
 * it again is harmless. */
static bool given_when_asked(int part)
{
    enum { ARCH_REQ_XCOMP_PERM = 0x1023 };

    return !part || syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, part) == 0;
}

static bool has(const hvt_needs *n)
{
    unsigned a, b, c, d;

    if (n->ecx1 && !(__get_cpuid(1, &a, &b, &c, &d) && all(c, n->ecx1)))
        return false;
    if ((n->ebx7 | n->edx7) &&
        !(__get_cpuid_count(7, 0, &a, &b, &c, &d) && all(b, n->ebx7) && all(d, n->edx7)))
        return false;
    if (n->eax7_1 && !(__get_cpuid_count(7, 1, &a, &b, &c, &d) && all(a, n->eax7_1)))
        return false;
    return saved_by_system(n->xcr0) && given_when_asked(n->ask);
}

static bool made_by(const char *vendor)
{
    unsigned a, name[3]; /* CPUID's order: ebx, edx, ecx */

    return __get_cpuid(0, &a, &name[0], &name[2], &name[1]) && !memcmp(name, vendor, sizeof name);
}

#else

/* Sets of other architectures need only what these always have. */
#define has(needs)      true
#define made_by(vendor) false

#endif

#define DECLARE(set) extern const hvt_isa hvt__isa_##set;
#define ADDRESS(set) &hvt__isa_##set,

HVT_ISAS(DECLARE)

const hvt_isa *const hvt__isas[] = {HVT_ISAS(ADDRESS)};

const int hvt__isa_count = HVT_LEN(hvt__isas);

int hvt_cpu_isa_count(void)
{
    return hvt__isa_count;
}

const char *hvt_cpu_isa_name(int i)
{
    return i >= 0 && i < hvt__isa_count ? hvt__isas[i]->name : NULL;
}

bool hvt_cpu_isa_supported(int i)
{
    return i >= 0 && i < hvt__isa_count && has(&hvt__isas[i]->needs);
}

bool hvt_cpu_isa_auto(int i)
{
    return hvt_cpu_isa_supported(i) && (!hvt__isas[i]->vendor || made_by(hvt__isas[i]->vendor));
}
