/*
 * The host's waits for the queue. A queue that holds other ranks' part of an operation may never empty: so
 * who guards a comm can see since when the host waits, and can declare what is in the queue lost. Then the
 * kernels are made to leave, the wait ends, and says so, rather than hand out what they left behind.
 */
#include "cuda_impl.h"

#include <stdio.h>

void hvt__cuda_waits(hvt_device *d)
{
    cuda_of(d)->waits = hvt__now();
}

hvt_status hvt__cuda_waited(hvt_device *d, cudaError_t e, const char *file, int line, const char *call)
{
    cuda_device *s = cuda_of(d);

    s->waits = 0;
    if (s->is_lost)
        return hvt__fail(HVT_E_COMM, file, line, "%s", s->lost);
    return hvt__cuda_check(d, e, file, line, call);
}

void hvt__cuda_lose(hvt_device *d, const char *why)
{
    cuda_device *s = cuda_of(d);

    if (s->is_lost)
        return;
    snprintf(s->lost, sizeof s->lost, "%s", why);
    s->is_lost = true;
}
