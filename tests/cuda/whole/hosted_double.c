/*
 * For hosted programs on the double: device memory stays accessible to the host. Protecting it after every
 * op, each of which is waited for, would take most of their time; programs that use the queue protect it.
 */
#include "../double_queue.h"

#include <malloc.h>

__attribute__((constructor)) static void save_time(void)
{
    hvt__double_open_memory(true);
    mallopt(M_MMAP_THRESHOLD, 1 << 30); /* pages of large arrays come once, not for each array */
    mallopt(M_TRIM_THRESHOLD, -1);
}
