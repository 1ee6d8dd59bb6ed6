/*
 * For hvtrain-double: HVT_TEST_ORDER is the order in which the blocks of a kernel run, and the threads of a
 * block between two barriers (hvt_emu_order), and what waiting streams run beside what is waited for
 * (hvt_double_seed).
 */
#include "../double.h"
#include "../emu/emu.h"

#include <stdlib.h>

__attribute__((constructor)) static void set_order(void)
{
    const char *text = getenv("HVT_TEST_ORDER");
    const uint64_t seed = text ? strtoull(text, NULL, 10) : 0;

    hvt_emu_order(seed);
    hvt_double_seed(seed);
}
