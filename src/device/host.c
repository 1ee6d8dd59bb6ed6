/*
 * What the devices that compute on the host share. Ops have completed when they return, so there is nothing
 * to wait for.
 *
 * A block starts with a 64-byte header that says how to free it. Small blocks come from the heap. Blocks of a
 * huge page or more are mapped: the kernel's zero pages cost nothing until they are touched, and that is done
 * by the thread that will use them.
 */
#include "host.h"
#include "base_impl.h"
#include "step.h"

#include <sys/mman.h>

enum { HEAD = 64, HUGE_PAGE = 2 << 20 };

typedef struct head {
    void *base;
    size_t mapped; /* bytes of the mapping; 0: from the heap */
} head;

/* Map `bytes` at the start of a huge page; NULL on failure. What is mapped around them is never touched. */
static char *map(size_t bytes)
{
    size_t all = bytes + HUGE_PAGE;
    char *base = mmap(NULL, all, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), *p;

    if (base == MAP_FAILED)
        return NULL;
    p = base + (HUGE_PAGE - (uintptr_t)base % HUGE_PAGE) % HUGE_PAGE;
    madvise(p, bytes, MADV_HUGEPAGE); /* advisory; without it there are more page faults */
    *(head *)p = (head){base, all};
    return p;
}

static char *from_heap(size_t bytes)
{
    char *p = aligned_alloc(64, bytes);

    if (p) {
        memset(p, 0, bytes);
        *(head *)p = (head){p, 0};
    }
    return p;
}

hvt_status hvt__host_alloc(hvt_device *d, size_t bytes, void **ret_ptr)
{
    size_t total = (bytes + HEAD + 4095) & ~(size_t)4095;
    char *p = NULL;

    if (bytes <= SIZE_MAX / 2)
        p = bytes >= HUGE_PAGE ? map(total) : from_heap((bytes + HEAD + 63) & ~(size_t)63);
    HVT_CHECK(p, E_MEM, "no memory for %zu bytes", bytes);
    *ret_ptr = p + HEAD;
    return HVT_OK;
}

void hvt__host_release(hvt_device *d, void *ptr)
{
    head h;

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
    if (bytes)
        memcpy(dst, src, bytes);
    return HVT_OK;
}

void hvt__host_xent_sums(const hvt_xent_args *a)
{
    double sum = 0, top1 = 0, top5 = 0;

    for (size_t i = 0; i < (size_t)a->rows.blocks * a->rows.block; i++)
        if (i % a->rows.block < (size_t)a->rows.real) {
            sum += a->loss[i];
            top1 += a->label_rank[i] < 1;
            top5 += a->label_rank[i] < 5;
        }
    a->sums[0] = (float)sum;
    a->sums[1] = (float)top1;
    a->sums[2] = (float)top5;
}

hvt_status hvt__host_decide(hvt_device *d, hvt_step_state *step, const float *sums)
{
    HVT_FLOATS;
    hvt__step_decide(step, sums);
    return HVT_OK;
}
