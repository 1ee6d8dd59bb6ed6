/*
 * Environment variables of hvtrain-double:
 *
 *   HVT_TEST_ORDER         the order of a kernel's blocks, and of a block's threads between two barriers
 *                          (hvt_emu_order), and which streams run besides the one that is waited for
 *                          (hvt_double_seed)
 *   HVT_TEST_GPUS          the number of GPUs of the host
 *   HVT_TEST_FAIL          RANK:CALL:KTH:ERROR: this call fails on that rank, once (hvt_double_fail)
 *   HVT_TEST_WRONG_ENGINE  cuDNN's engine that computes wrong results (hvt_double_cudnn_wrong)
 */
#include "../double.h"
#include "../emu/emu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

__attribute__((constructor)) static void set_up(void)
{
    const char *text = getenv("HVT_TEST_ORDER"), *rank = getenv("OMPI_COMM_WORLD_RANK");
    const uint64_t seed = text ? strtoull(text, NULL, 10) : 0;
    static char call[64]; /* hvt_double_fail() keeps it */
    int on, kth, error;

    hvt_emu_order(seed);
    hvt_double_seed(seed);
    text = getenv("HVT_TEST_GPUS");
    if (text)
        hvt_double_gpus(0, atoi(text));
    text = getenv("HVT_TEST_FAIL");
    if (text && sscanf(text, "%d:%63[^:]:%d:%d", &on, call, &kth, &error) == 4 &&
        on == (rank ? atoi(rank) : 0))
        hvt_double_fail(call, kth, error);
    text = getenv("HVT_TEST_WRONG_ENGINE");
    if (text)
        hvt_double_cudnn_wrong(atoi(text));
}
