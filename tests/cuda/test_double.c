/* Tests that the double of the CUDA runtime catches what it is meant to catch. */
#define _GNU_SOURCE
#include "check.h"
#include "double.h"

#include <cuda_runtime_api.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#define GOOD(call) CHECK((call) == cudaSuccess, "%s", cudaGetErrorName(cudaPeekAtLastError()))
#define GIVES(e, call)                                                                                       \
    do {                                                                                                     \
        cudaError_t e_ = (call);                                                                             \
        CHECK(e_ == e, "%s gave %s, not " #e, #call, cudaGetErrorName(e_));                                  \
    } while (0)

static cudaStream_t one, two;
static int *dev; /* [4] device memory */

static void begin(void)
{
    GOOD(cudaStreamCreateWithFlags(&one, cudaStreamNonBlocking));
    GOOD(cudaStreamCreateWithPriority(&two, cudaStreamNonBlocking, -5));
    GOOD(cudaMalloc((void **)&dev, 4 * sizeof *dev));
    GOOD(cudaMemset(dev, 0, 4 * sizeof *dev));
}

static void end(void)
{
    hvt_double_alive left;

    GOOD(cudaFree(dev));
    GOOD(cudaStreamDestroy(one));
    GOOD(cudaStreamDestroy(two));
    left = hvt_double_count();
    CHECK(!left.streams && !left.events && !left.blocks && !left.host_blocks && !left.graphs && !left.execs &&
              !left.queued && !left.bytes,
          "%d streams, %d events, %d blocks, %d graphs, %d queued", left.streams, left.events, left.blocks,
          left.graphs, left.queued);
    hvt_double_reset();
}

static int at(int i)
{
    int v = -1;

    GOOD(cudaMemcpy(&v, dev + i, sizeof v, cudaMemcpyDeviceToHost));
    return v;
}

static void increase(void *ctx)
{
    ++*(int *)ctx;
}

static void append(void *ctx) /* dev[0] = 10 * dev[0] + digit */
{
    dev[0] = 10 * dev[0] + *(int *)ctx;
}

static int digits[] = {0, 1, 2, 3};

TEST(nothing_runs_before_somebody_waits)
{
    begin();
    hvt_double_launch(one, increase, dev, NULL);
    CHECK(at(0) == 0, "ran at once");
    GOOD(cudaStreamSynchronize(two));
    CHECK(at(0) == 0, "ran for another stream");
    GOOD(cudaStreamSynchronize(one));
    CHECK(at(0) == 1, "%d", at(0));
    end();
}

TEST(events_order_streams_and_nothing_else_does)
{
    bool seen[2] = {false};

    begin();
    for (uint64_t seed = 0; seed < 40; seed++)
        for (int waits = 0; waits < 2; waits++) {
            cudaEvent_t e;

            hvt_double_seed(seed);
            GOOD(cudaMemset(dev, 0, sizeof *dev));
            GOOD(cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
            hvt_double_launch(one, append, &digits[1], NULL);
            GOOD(cudaEventRecord(e, one));
            if (waits)
                GOOD(cudaStreamWaitEvent(two, e, 0));
            hvt_double_launch(two, append, &digits[2], NULL);
            GOOD(cudaEventDestroy(e));
            GOOD(cudaStreamSynchronize(two));
            CHECK(!waits || at(0) == 12, "seed %d: %d", (int)seed, at(0));
            GOOD(cudaDeviceSynchronize());
            if (!waits)
                seen[at(0) == 12] = true;
        }
    CHECK(seen[0] && seen[1], "without a wait only one order came");
    end();
}

TEST(pinned_memory_is_read_late_and_pageable_memory_at_once)
{
    int *pinned, value = 1;

    begin();
    GOOD(cudaMallocHost((void **)&pinned, sizeof *pinned));
    *pinned = 1;
    GOOD(cudaMemcpyAsync(dev, &value, sizeof value, cudaMemcpyHostToDevice, one));
    GOOD(cudaMemcpyAsync(dev + 1, pinned, sizeof value, cudaMemcpyHostToDevice, one));
    value = *pinned = 2;
    GOOD(cudaStreamSynchronize(one));
    CHECK(at(0) == 1 && at(1) == 2, "%d and %d", at(0), at(1));
    GOOD(cudaMemcpyAsync(pinned, dev, sizeof value, cudaMemcpyDeviceToHost, one));
    CHECK(*pinned == 2, "came early");
    GOOD(cudaFreeHost(pinned));
    end();
}

TEST(memory_of_the_wrong_side_is_refused)
{
    int host[2] = {0};

    begin();
    GIVES(cudaErrorInvalidValue, cudaMemsetAsync(host, 0, 4, one));
    GIVES(cudaErrorInvalidValue, cudaMemsetAsync(dev, 0, 4 * sizeof *dev + 1, one));
    GIVES(cudaErrorInvalidValue, cudaMemcpyAsync(dev, host, 8, cudaMemcpyDeviceToDevice, one));
    GIVES(cudaErrorInvalidValue, cudaMemcpyAsync(host, dev, 8, cudaMemcpyHostToDevice, one));
    GIVES(cudaErrorInvalidValue, cudaFree(host));
    GIVES(cudaErrorInvalidValue, cudaFree(dev + 1));
    GIVES(cudaErrorInvalidResourceHandle, cudaMemsetAsync(dev, 0, 4, NULL));
    CHECK(!hvt_double_need_device("a kernel", host, 8) && hvt_double_faults() == 1, "not noticed");
    GIVES(cudaErrorIllegalAddress, cudaStreamSynchronize(one));
    hvt_double_reset();
    end();
}

TEST(the_host_cannot_touch_device_memory)
{
    begin();
    for (int beyond = 0; beyond < 2; beyond++) { /* and queued work cannot leave its block */
        int status = 0;
        pid_t child;

        fflush(NULL);
        child = fork();
        if (!child) {
            if (beyond)
                hvt_double_launch(one, increase, (char *)dev + 256, NULL);
            else
                dev[0]++;
            cudaStreamSynchronize(one);
            _exit(0);
        }
        waitpid(child, &status, 0);
        CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV, "status %x", (unsigned)status);
    }
    end();
}

/* dev[0] = 10 * dev[0] + 1, then 2 on the other stream, then 3 here */
static void fork_and_join(bool join)
{
    cudaEvent_t e;

    GOOD(cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
    hvt_double_launch(one, append, &digits[1], NULL);
    GOOD(cudaEventRecord(e, one));
    GOOD(cudaStreamWaitEvent(two, e, 0));
    hvt_double_launch(two, append, &digits[2], NULL);
    GOOD(cudaEventRecord(e, two));
    if (join)
        GOOD(cudaStreamWaitEvent(one, e, 0));
    hvt_double_launch(one, append, &digits[3], NULL);
    GOOD(cudaEventDestroy(e));
}

TEST(a_capture_runs_at_each_launch_and_keeps_its_order)
{
    cudaGraph_t g;
    cudaGraphExec_t x;

    begin();
    GOOD(cudaStreamBeginCapture(one, cudaStreamCaptureModeThreadLocal));
    fork_and_join(true);
    GOOD(cudaStreamEndCapture(one, &g));
    GOOD(cudaGraphInstantiate(&x, g, 0));
    GOOD(cudaGraphDestroy(g));
    GOOD(cudaDeviceSynchronize());
    CHECK(at(0) == 0, "ran while captured: %d", at(0));
    for (int i = 0; i < 20; i++) {
        hvt_double_seed((uint64_t)i);
        GOOD(cudaMemsetAsync(dev, 0, sizeof *dev, one));
        GOOD(cudaGraphLaunch(x, one));
        GOOD(cudaGraphLaunch(x, one));
        GOOD(cudaStreamSynchronize(one));
        CHECK(at(0) == 123123, "seed %d: %d", i, at(0));
    }
    GOOD(cudaGraphExecDestroy(x));
    end();
}

static void *query(void *mode)
{
    cudaEvent_t e;
    cudaError_t r;

    if (mode)
        cudaThreadExchangeStreamCaptureMode(&(enum cudaStreamCaptureMode){cudaStreamCaptureModeThreadLocal});
    cudaEventCreateWithFlags(&e, cudaEventDisableTiming);
    r = cudaEventQuery(e);
    cudaEventDestroy(e);
    return (void *)(intptr_t)r;
}

static cudaError_t query_elsewhere(bool local)
{
    pthread_t t;
    void *r;

    pthread_create(&t, NULL, query, local ? &t : NULL);
    pthread_join(t, &r);
    return (cudaError_t)(intptr_t)r;
}

TEST(a_capture_refuses_what_would_break_it)
{
    static const enum cudaStreamCaptureMode modes[] = {cudaStreamCaptureModeGlobal,
                                                       cudaStreamCaptureModeThreadLocal};
    cudaGraph_t g;
    cudaEvent_t e;
    void *p;

    begin();
    GOOD(cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
    GOOD(cudaStreamBeginCapture(one, cudaStreamCaptureModeThreadLocal));
    fork_and_join(false);
    GIVES(cudaErrorStreamCaptureUnjoined, cudaStreamEndCapture(one, &g));
    CHECK(!g, "a graph came");

    GOOD(cudaStreamBeginCapture(one, cudaStreamCaptureModeThreadLocal));
    GIVES(cudaErrorStreamCaptureUnsupported, cudaMalloc(&p, 1));
    GIVES(cudaErrorStreamCaptureInvalidated, cudaMemsetAsync(dev, 0, 4, one));
    GIVES(cudaErrorStreamCaptureInvalidated, cudaStreamEndCapture(one, &g));

    GOOD(cudaEventRecord(e, two));
    GOOD(cudaStreamBeginCapture(one, cudaStreamCaptureModeThreadLocal));
    GIVES(cudaErrorStreamCaptureIsolation, cudaStreamWaitEvent(one, e, 0));
    GIVES(cudaErrorStreamCaptureInvalidated, cudaStreamEndCapture(one, &g));

    for (int i = 0; i < 2; i++) { /* another thread's query; the mode of either side saves the capture */
        GOOD(cudaStreamBeginCapture(one, modes[i]));
        GIVES(cudaSuccess, query_elsewhere(true));
        CHECK((query_elsewhere(false) == cudaSuccess) == (i == 1), "mode %d", i);
        CHECK((cudaStreamEndCapture(one, &g) == cudaSuccess) == (i == 1), "mode %d", i);
    }
    GOOD(cudaGraphDestroy(g));

    GOOD(cudaStreamBeginCapture(one, cudaStreamCaptureModeThreadLocal));
    GOOD(cudaEventRecord(e, one));
    GOOD(cudaStreamEndCapture(one, &g));
    GIVES(cudaErrorCapturedEvent, cudaEventQuery(e));
    GOOD(cudaGraphDestroy(g));
    GOOD(cudaEventDestroy(e));
    end();
}

static int asked;

static bool third_time(void *ctx)
{
    (void)ctx;
    return ++asked % 3 == 0;
}

TEST(work_that_waits_for_others_is_asked_again)
{
    cudaEvent_t e;

    begin();
    GOOD(cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
    asked = 0;
    hvt_double_launch_poll(one, third_time, NULL, NULL);
    GOOD(cudaEventRecord(e, one));
    GIVES(cudaErrorNotReady, cudaEventQuery(e));
    GIVES(cudaErrorNotReady, cudaEventQuery(e));
    GOOD(cudaEventQuery(e));
    hvt_double_launch_poll(one, third_time, NULL, NULL);
    GOOD(cudaStreamSynchronize(one));
    CHECK(asked == 6, "%d", asked);
    GOOD(cudaEventDestroy(e));
    end();
}

TEST(errors_come_where_a_test_wants_them)
{
    void *p = NULL, *q = NULL;
    int n = 7;

    begin();
    hvt_double_fail("cudaMalloc", 2, cudaErrorMemoryAllocation);
    GOOD(cudaMalloc(&p, 1));
    GIVES(cudaErrorMemoryAllocation, cudaMalloc(&q, 1));
    GOOD(cudaFree(p));
    hvt_double_memory(100);
    GOOD(cudaMalloc(&p, 84));
    GIVES(cudaErrorMemoryAllocation, cudaMalloc(&q, 1));
    GOOD(cudaFree(p));
    hvt_double_driverless(cudaErrorInsufficientDriver);
    GIVES(cudaErrorInsufficientDriver, cudaGetDeviceCount(&n));
    GIVES(cudaErrorInsufficientDriver, cudaMalloc(&q, 1));
    CHECK(n == 0, "%d devices", n);
    hvt_double_driverless(0);
    end();
}

int main(void)
{
    RUN(nothing_runs_before_somebody_waits);
    RUN(events_order_streams_and_nothing_else_does);
    RUN(pinned_memory_is_read_late_and_pageable_memory_at_once);
    RUN(memory_of_the_wrong_side_is_refused);
    RUN(the_host_cannot_touch_device_memory);
    RUN(a_capture_runs_at_each_launch_and_keeps_its_order);
    RUN(a_capture_refuses_what_would_break_it);
    RUN(work_that_waits_for_others_is_asked_again);
    RUN(errors_come_where_a_test_wants_them);
    return check_done();
}
