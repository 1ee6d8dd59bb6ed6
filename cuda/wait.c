/*
 * The host's waits for the queue. A queue that contains other ranks' part of an operation may never empty. So
 * the guard of a comm can see since when the host has been waiting, and can declare the queue's contents
 * lost: the kernels are then aborted, the wait ends and fails, rather than return invalid results.
 */
#include "cuda_impl.h"

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
