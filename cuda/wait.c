/*
 * The host's waits for the queue. A queue that contains an operation of several ranks may never empty. So a
 * comm's guard can see how long the host has been waiting, and can declare the queue's contents lost. Then
 * the kernels are aborted, and the wait fails instead of returning invalid results.
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
