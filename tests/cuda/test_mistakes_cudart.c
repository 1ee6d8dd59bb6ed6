/*
 * What the CUDA runtime refuses: each mistake is made once. Without a driver every call fails for that
 * reason, whatever its arguments; the rest is tested on a GPU, otherwise on the double only.
 *
 * Sources: the comments of cuda_runtime_api.h, by function, and of driver_types.h, by error.
 */
#include "mistakes.h"

#include <cuda_runtime_api.h>
#include <pthread.h>

#define MISTAKE(what, source, asked, want, call)                                                             \
    do {                                                                                                     \
        if (can_ask(asked))                                                                                  \
            refused(what, source, (int)cudaError##want, (int)(call));                                        \
    } while (0)
#define GOOD(call) CHECK((call) == cudaSuccess, "%s", cudaGetErrorName(cudaPeekAtLastError()))

static cudaStream_t one, two;
static cudaEvent_t event;
static char *dev, *pinned;

static void begin(void)
{
    GOOD(cudaStreamCreateWithFlags(&one, cudaStreamNonBlocking));
    GOOD(cudaStreamCreateWithFlags(&two, cudaStreamNonBlocking));
    GOOD(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    GOOD(cudaMalloc((void **)&dev, 4096));
    GOOD(cudaMallocHost((void **)&pinned, 4096));
}

static void end(void)
{
    GOOD(cudaDeviceSynchronize());
    GOOD(cudaFree(dev));
    GOOD(cudaFreeHost(pinned));
    GOOD(cudaEventDestroy(event));
    GOOD(cudaStreamDestroy(one));
    GOOD(cudaStreamDestroy(two));
    cudaGetLastError();
}

TEST(no_driver_is_said_before_anything_else)
{
    const char *const source = "cudaErrorInsufficientDriver";
    cudaEvent_t e;
    cudaStream_t s;
    void *p;
    int n;

#ifdef HVT_REAL
    if (on_a_gpu || cudaGetDeviceCount(&n) != cudaErrorInsufficientDriver)
        SKIP("there is a driver");
#else
    hvt_double_driverless(cudaErrorInsufficientDriver);
#endif
    MISTAKE("GPUs are counted", source, ANYWHERE, InsufficientDriver, cudaGetDeviceCount(&n));
    MISTAKE("a GPU of number -1", source, ANYWHERE, InsufficientDriver, cudaSetDevice(-1));
    MISTAKE("memory", source, ANYWHERE, InsufficientDriver, cudaMalloc(&p, 4));
    MISTAKE("memory without place", source, ANYWHERE, InsufficientDriver, cudaMalloc(NULL, 4));
    MISTAKE("nothing is freed", source, ANYWHERE, InsufficientDriver, cudaFree(NULL));
    MISTAKE("a stream", source, ANYWHERE, InsufficientDriver,
            cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    MISTAKE("an event of flags 99", source, ANYWHERE, InsufficientDriver, cudaEventCreateWithFlags(&e, 99));
    MISTAKE("no event is recorded", source, ANYWHERE, InsufficientDriver, cudaEventRecord(NULL, NULL));
    MISTAKE("no time", source, ANYWHERE, InsufficientDriver, cudaEventElapsedTime(NULL, NULL, NULL));
    MISTAKE("no graph", source, ANYWHERE, InsufficientDriver, cudaGraphInstantiate(NULL, NULL, 0));
    MISTAKE("no mode", source, ANYWHERE, InsufficientDriver, cudaThreadExchangeStreamCaptureMode(NULL));
    MISTAKE("the driver's version without place", "cudaDriverGetVersion()", ANYWHERE, InvalidValue,
            cudaDriverGetVersion(NULL));
    MISTAKE("the runtime's version without place", "cudaRuntimeGetVersion()", ANYWHERE, InvalidValue,
            cudaRuntimeGetVersion(NULL));
#ifndef HVT_REAL
    hvt_double_reset();
#endif
}

TEST(devices_and_memory_refuse_what_is_none)
{
    struct cudaDeviceProp prop;
    void *p;

    begin();
    MISTAKE("a GPU of number -1", "cudaSetDevice()", ON_A_GPU, InvalidDevice, cudaSetDevice(-1));
    MISTAKE("a GPU of number 99", "cudaSetDevice()", ON_A_GPU, InvalidDevice, cudaSetDevice(99));
    MISTAKE("properties of GPU 99", "cudaGetDeviceProperties()", ON_A_GPU, InvalidDevice,
            cudaGetDeviceProperties(&prop, 99));
    MISTAKE("memory without place", "cudaMalloc()", ON_A_GPU, InvalidValue, cudaMalloc(NULL, 4));
    MISTAKE("more memory than there is", "cudaMalloc()", ON_A_GPU, MemoryAllocation,
            cudaMalloc(&p, (size_t)1 << 50));
    MISTAKE("host memory without place", "cudaMallocHost()", ON_A_GPU, InvalidValue, cudaMallocHost(NULL, 4));
    MISTAKE("memory freed in its middle", "cudaFree()", ON_A_GPU, InvalidValue, cudaFree(dev + 256));
    MISTAKE("device memory freed as the host's", "cudaFreeHost()", ON_A_GPU, InvalidValue, cudaFreeHost(dev));
    GOOD(cudaMalloc(&p, 64));
    GOOD(cudaFree(p));
    MISTAKE("memory freed twice", "cudaFree()", ON_A_GPU, InvalidValue, cudaFree(p));
    MISTAKE("attributes without place", "cudaPointerGetAttributes()", ON_A_GPU, InvalidValue,
            cudaPointerGetAttributes(NULL, dev));
    end();
}

TEST(copies_refuse_what_is_not_there)
{
    const char *const copies = "cudaMemcpyAsync()", *const sets = "cudaMemsetAsync()";
    char host[64] = {0};

    begin();
    MISTAKE("a direction that is none", copies, ON_A_GPU, InvalidMemcpyDirection,
            cudaMemcpyAsync(dev, pinned, 4, (enum cudaMemcpyKind)77, one));
    MISTAKE("a direction that is none, waited for", "cudaMemcpy()", ON_A_GPU, InvalidMemcpyDirection,
            cudaMemcpy(dev, pinned, 4, (enum cudaMemcpyKind)77));
    MISTAKE("past the end", copies, ON_A_GPU, InvalidValue,
            cudaMemcpyAsync(dev, pinned, (size_t)1 << 40, cudaMemcpyHostToDevice, one));
    MISTAKE("host memory as the device's", "cudaMemcpyAsync(): undefined", UNCHECKED, InvalidValue,
            cudaMemcpyAsync(dev, host, 4, cudaMemcpyDeviceToDevice, one));
    MISTAKE("device memory as the host's", "cudaMemcpyAsync(): undefined", UNCHECKED, InvalidValue,
            cudaMemcpyAsync(host, dev, 4, cudaMemcpyHostToDevice, one));
    MISTAKE("host memory set", sets, ON_A_GPU, InvalidValue, cudaMemsetAsync(host, 0, 4, one));
    MISTAKE("set past the end", sets, ON_A_GPU, InvalidValue, cudaMemsetAsync(dev, 0, (size_t)1 << 40, one));
#ifndef HVT_REAL
    GOOD(cudaMemcpyAsync(dev, dev + 64, 65, cudaMemcpyDeviceToDevice, one));
    refused("areas that overlap", "cudaMemcpyAsync(): the memory areas may not overlap", 1,
            hvt_double_faults());
    hvt_double_reset();
#endif
    end();
}

TEST(streams_and_events_refuse_what_is_none)
{
    const char *const elapsed = "cudaEventElapsedTime()";
    cudaEvent_t e, late;
    cudaStream_t s;
    float ms;

    begin();
    GOOD(cudaEventCreate(&e));
    GOOD(cudaEventCreate(&late));
    MISTAKE("a stream of flags 99", "cudaStreamCreateWithFlags()", ON_A_GPU, InvalidValue,
            cudaStreamCreateWithFlags(&s, 99));
    MISTAKE("an event of flags 99", "cudaEventCreateWithFlags()", ON_A_GPU, InvalidValue,
            cudaEventCreateWithFlags(&e, 0x99));
    MISTAKE("an event between processes that takes time", "cudaEventCreateWithFlags()", ON_A_GPU,
            InvalidValue, cudaEventCreateWithFlags(&late, cudaEventInterprocess));
    MISTAKE("no event recorded", "cudaEventRecord()", ON_A_GPU, InvalidResourceHandle,
            cudaEventRecord(NULL, one));
    MISTAKE("no event waited for", "cudaStreamWaitEvent()", ON_A_GPU, InvalidResourceHandle,
            cudaStreamWaitEvent(one, NULL, 0));
    MISTAKE("waiting with flags 99", "cudaStreamWaitEvent()", ON_A_GPU, InvalidValue,
            cudaStreamWaitEvent(one, event, 99));
    MISTAKE("no event queried", "cudaEventQuery()", ON_A_GPU, InvalidResourceHandle, cudaEventQuery(NULL));
    MISTAKE("the time of no event", elapsed, ON_A_GPU, InvalidResourceHandle,
            cudaEventElapsedTime(&ms, NULL, e));
    MISTAKE("the time between events that were not recorded", elapsed, ON_A_GPU, InvalidResourceHandle,
            cudaEventElapsedTime(&ms, e, late));
    GOOD(cudaEventRecord(e, one));
    GOOD(cudaEventRecord(event, one));
    GOOD(cudaStreamSynchronize(one));
    MISTAKE("the time of an event that takes none", elapsed, ON_A_GPU, InvalidResourceHandle,
            cudaEventElapsedTime(&ms, e, event));
#ifndef HVT_REAL /* which may be done at once */
    GOOD(cudaMemsetAsync(dev, 0, 4, one));
    GOOD(cudaEventRecord(late, one));
    refused("the time to an event that is not over", elapsed, cudaErrorNotReady,
            (int)cudaEventElapsedTime(&ms, e, late));
#endif
    GOOD(cudaEventDestroy(e));
    GOOD(cudaEventDestroy(late));
    /* not a mistake: a priority beyond the range is clamped (cudaStreamCreateWithPriority) */
    GOOD(cudaStreamCreateWithPriority(&s, cudaStreamNonBlocking, -99));
    GOOD(cudaStreamDestroy(s));
    end();
}

/* ---- capture ------------------------------------------------------------------------------------ */

static void capture(cudaStream_t s)
{
    GOOD(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal));
    GOOD(cudaMemsetAsync(dev, 0, 4, s));
}

static void leave(cudaStream_t s)
{
    cudaGraph_t g = NULL;

    cudaStreamEndCapture(s, &g);
    if (g)
        cudaGraphDestroy(g);
    cudaGetLastError();
}

/* One mistake in a capture of its own. */
#define CAPTURED(what, source, want, call)                                                                   \
    do {                                                                                                     \
        capture(one);                                                                                        \
        MISTAKE(what, source, ON_A_GPU, want, call);                                                         \
        leave(one);                                                                                          \
    } while (0)

static void *end_elsewhere(void *ret_error)
{
    cudaGraph_t g = NULL;

    *(cudaError_t *)ret_error = cudaStreamEndCapture(one, &g);
    return NULL;
}

TEST(a_capture_refuses_what_is_not_for_it)
{
    const char *const unsupported = "cudaErrorStreamCaptureUnsupported", *const ends =
                                                                             "cudaStreamEndCapture()";
    enum cudaStreamCaptureMode mode = (enum cudaStreamCaptureMode)77;
    cudaError_t elsewhere = cudaSuccess;
    cudaEvent_t other;
    cudaGraph_t g = NULL;
    pthread_t thread;
    void *p;

    begin();
    GOOD(cudaEventCreateWithFlags(&other, cudaEventDisableTiming));
    MISTAKE("a capture of mode 77", "cudaStreamBeginCapture()", ON_A_GPU, InvalidValue,
            cudaStreamBeginCapture(one, mode));
    MISTAKE("a thread's mode of 77", "cudaThreadExchangeStreamCaptureMode()", ON_A_GPU, InvalidValue,
            cudaThreadExchangeStreamCaptureMode(&mode));
    CAPTURED("waiting for the stream", unsupported, StreamCaptureUnsupported, cudaStreamSynchronize(one));
    CAPTURED("asking the stream", unsupported, StreamCaptureUnsupported, cudaStreamQuery(one));
    CAPTURED("waiting for the device", unsupported, StreamCaptureUnsupported, cudaDeviceSynchronize());
    CAPTURED("memory", "cudaThreadExchangeStreamCaptureMode(): unsafe calls", StreamCaptureUnsupported,
             cudaMalloc(&p, 4));
    CAPTURED("a capture in a capture", "cudaStreamBeginCapture()", IllegalState,
             cudaStreamBeginCapture(one, cudaStreamCaptureModeThreadLocal));

    GOOD(cudaEventRecord(event, two));
    CAPTURED("waiting for what is outside", "cudaErrorStreamCaptureIsolation", StreamCaptureIsolation,
             cudaStreamWaitEvent(one, event, 0));

    capture(one);
    capture(two);
    GOOD(cudaEventRecord(event, one));
    MISTAKE("two captures joined", "cudaErrorStreamCaptureMerge", ON_A_GPU, StreamCaptureMerge,
            cudaStreamWaitEvent(two, event, 0));
    leave(one);
    leave(two);

    capture(one);
    GOOD(cudaEventRecord(event, one));
    leave(one);
    MISTAKE("asking an event of a capture", "cudaErrorCapturedEvent", ON_A_GPU, CapturedEvent,
            cudaEventQuery(event));
    MISTAKE("waiting for it", "cudaErrorCapturedEvent", ON_A_GPU, CapturedEvent, cudaEventSynchronize(event));

    capture(one);
    GOOD(cudaEventRecord(event, one));
    GOOD(cudaStreamWaitEvent(two, event, 0));
    GOOD(cudaMemsetAsync(dev + 64, 0, 4, two));
    MISTAKE("ended on a stream that joined", "cudaErrorStreamCaptureUnmatched", ON_A_GPU,
            StreamCaptureUnmatched, cudaStreamEndCapture(two, &g));
    MISTAKE("a stream that does not come back", "cudaErrorStreamCaptureUnjoined", ON_A_GPU,
            StreamCaptureUnjoined, cudaStreamEndCapture(one, &g));
    CHECK(!g, "%s gives a graph", ends);
    leave(one);
    leave(two);

    capture(one);
    cudaMalloc(&p, 4);
    MISTAKE("work after a mistake", "cudaErrorStreamCaptureInvalidated", ON_A_GPU, StreamCaptureInvalidated,
            cudaMemsetAsync(dev, 0, 4, one));
    MISTAKE("the end after a mistake", ends, ON_A_GPU, StreamCaptureInvalidated,
            cudaStreamEndCapture(one, &g));
    CHECK(!g, "%s gives a graph", ends);
    cudaGetLastError();

    capture(one);
    pthread_create(&thread, NULL, end_elsewhere, &elsewhere);
    pthread_join(thread, NULL);
    MISTAKE("ended by another thread", ends, ON_A_GPU, StreamCaptureWrongThread, elsewhere);
    leave(one);

    MISTAKE("an instance of no graph", "cudaGraphInstantiate()", ON_A_GPU, InvalidValue,
            cudaGraphInstantiate(NULL, NULL, 0));
    MISTAKE("the launch of no graph", "cudaGraphLaunch()", ON_A_GPU, InvalidValue,
            cudaGraphLaunch(NULL, one));
    GOOD(cudaEventDestroy(other));
    end();
}

int main(void)
{
#ifdef HVT_REAL
    int gpus = 0;

    on_a_gpu = cudaGetDeviceCount(&gpus) == cudaSuccess && gpus;
    cudaGetLastError();
#endif
    RUN(no_driver_is_said_before_anything_else);
    if (on_a_gpu) {
        RUN(devices_and_memory_refuse_what_is_none);
        RUN(copies_refuse_what_is_not_there);
        RUN(streams_and_events_refuse_what_is_none);
        RUN(a_capture_refuses_what_is_not_for_it);
    }
    return check_done();
}
