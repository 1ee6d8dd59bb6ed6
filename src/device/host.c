/*
 * Memory and synchronisation of the devices that compute on the host. Ops have completed when they return, so
 * every mark is already reached and waiting does nothing.
 *
 * A block starts with a 64-byte header that says how to free it. Small blocks come from the heap. Blocks of a
 * huge page or more are mapped: the kernel's zero pages cost nothing until they are touched, and that is done
 * by the thread that will use them.
 */
#include "host.h"
#include "base_impl.h"
#include "step.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { HEAD = 64, HUGE_PAGE = 2 << 20 };

typedef struct head {
    void *base;
    size_t mapped; /* bytes of the mapping; 0: from the heap */
} head;

/* Map `bytes` at the start of a huge page; NULL on failure. */
static void *map(size_t bytes)
{
    size_t total = bytes + HUGE_PAGE;
    char *p = mmap(NULL, total, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    size_t before, after;

    if (p == MAP_FAILED)
        return NULL;
    before = (HUGE_PAGE - (uintptr_t)p % HUGE_PAGE) % HUGE_PAGE;
    after = total - before - bytes;
    if (before)
        munmap(p, before);
    p += before;
    if (after)
        munmap(p + bytes, after);
    madvise(p, bytes, MADV_HUGEPAGE); /* advisory; without it there are more page faults */
    return p;
}

hvt_status hvt__host_alloc(hvt_device *d, size_t bytes, void **ret_ptr)
{
    size_t total = (bytes + HEAD + 4095) & ~(size_t)4095;
    bool big = bytes >= HUGE_PAGE;
    char *p = NULL;

    (void)d;
    HVT_CHECK(bytes <= SIZE_MAX / 2, E_MEM, "no memory for %zu bytes", bytes);
    if (big) {
        p = map(total);
    } else {
        total = (bytes + HEAD + 63) & ~(size_t)63;
        p = aligned_alloc(64, total);
        if (p)
            memset(p, 0, total);
    }
    HVT_CHECK(p, E_MEM, "no memory for %zu bytes", bytes);
    *(head *)p = (head){p, big ? total : 0};
    *ret_ptr = p + HEAD;
    return HVT_OK;
}

void hvt__host_release(hvt_device *d, void *ptr)
{
    head h;

    (void)d;
    if (!ptr)
        return;
    h = *(head *)((char *)ptr - HEAD);
    if (h.mapped)
        munmap(h.base, h.mapped);
    else
        free(h.base);
}

hvt_status hvt__host_copy(hvt_device *d, void *dst, const void *src, size_t bytes)
{
    (void)d;
    if (bytes)
        memcpy(dst, src, bytes);
    return HVT_OK;
}

hvt_status hvt__host_mark(hvt_device *d, hvt_mark *ret_mark)
{
    (void)d;
    *ret_mark = 0;
    return HVT_OK;
}

hvt_status hvt__host_await(hvt_device *d, hvt_mark mark)
{
    (void)d;
    (void)mark;
    return HVT_OK;
}

hvt_status hvt__host_sync(hvt_device *d)
{
    (void)d;
    return HVT_OK;
}

/* Images are stored with the channels that they have. */
int hvt__host_channels(const hvt_device *d, hvt_dtype t, int c)
{
    (void)d;
    (void)t;
    return c;
}

void hvt__host_describe(const hvt_device *d, hvt_device_info *ret_info)
{
    (void)d;
    *ret_info = (hvt_device_info){0};
}

hvt_status hvt__host_decide(hvt_device *d, hvt_step_state *step, const float *sums)
{
    HVT_FLOATS;
    (void)d;
    hvt__step_decide(step, sums);
    return HVT_OK;
}
