/*
 * For hosted programs on the double: device memory stays open to the host. Closing it after every op, of
 * which each is waited for, would be most of their time; programs that use the queue close it.
 */
#include "../double_queue.h"

#include <malloc.h>

__attribute__((constructor)) static void save_time(void)
{
    hvt__double_open_memory(true);
    mallopt(M_MMAP_THRESHOLD, 1 << 30); /* pages of large arrays come once, not for each array */
    mallopt(M_TRIM_THRESHOLD, -1);
}
