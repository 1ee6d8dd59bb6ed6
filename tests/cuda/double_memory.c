/*
 * The GPU of the CUDA runtime's double: its memory, its properties, and the errors that tests inject.
 *
 * Stricter than the original if that finds mistakes. The host cannot read device memory, and each block ends
 * where its pages end, so an access past its end is caught, too. Fresh memory holds NaNs.
 */
#include "double_room.h"

#include <assert.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef struct block {
    char *ptr, *map;
    size_t bytes, mapped; /* mapped 0: pinned host memory */
} block;

typedef struct call {
    const char *name;
    int count, fail_at, error;
} call;

cudaError_t hvt__double_sticky;
hvt_double_alive hvt__double_live;

static block *blocks;
static int nblocks;
static call calls[256];
static int driverless, gpu_first, gpu_count = 1, faults, memory_users;
static size_t memory = (size_t)16 << 30;
static _Thread_local cudaError_t last_error;
static _Thread_local int gpu_now; /* a new thread begins on GPU 0 */

/* ---- what tests turn ---------------------------------------------------------------------------- */

static call *call_of(const char *name)
{
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        if (!calls[i].name)
            calls[i].name = name;
        if (!strcmp(calls[i].name, name))
            return &calls[i];
    }
    assert(!"room for one more name");
    return NULL;
}

int hvt_double_enter(const char *name)
{
    call *c;
    int error;

    hvt__double_lock();
    c = call_of(name);
    c->count++;
    error = c->count == c->fail_at ? c->error : 0;
    hvt__double_unlock();
    return error;
}

void hvt_double_fail(const char *name, int kth, int error)
{
    call *c;

    hvt__double_lock();
    c = call_of(name);
    c->fail_at = c->count + kth;
    c->error = error;
    hvt__double_unlock();
}

int hvt_double_calls(const char *name)
{
    int count;

    hvt__double_lock();
    count = call_of(name)->count;
    hvt__double_unlock();
    return count;
}

void hvt_double_seed(uint64_t seed)
{
    hvt__double_random = seed ? seed * 0x9e3779b97f4a7c15u | 1 : 0;
}

void hvt_double_driverless(int error)
{
    driverless = error;
}

void hvt_double_gpus(int first, int count)
{
    gpu_first = first;
    gpu_count = count;
    gpu_now = 0;
}

void hvt_double_memory(size_t bytes)
{
    memory = bytes;
}

int hvt_double_faults(void)
{
    return faults;
}

void hvt_double_reset(void)
{
    hvt__double_lock();
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
        calls[i].count = calls[i].fail_at = 0;
    hvt_double_seed(0);
    hvt_double_gpus(0, 1);
    driverless = faults = 0;
    memory = (size_t)16 << 30;
    hvt__double_sticky = cudaSuccess;
    hvt__double_unlock();
}

hvt_double_alive hvt_double_count(void)
{
    hvt_double_alive now;

    hvt__double_lock();
    now = hvt__double_live;
    now.queued = hvt__double_queued();
    hvt__double_unlock();
    return now;
}

void hvt_double_fault(const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    fputs("double: ", stderr);
    vfprintf(stderr, fmt, ap);
    fputc('\n', stderr);
    va_end(ap);
    faults++;
    hvt__double_sticky = cudaErrorIllegalAddress;
}

/* ---- entering a call ---------------------------------------------------------------------------- */

cudaError_t hvt__double_give(cudaError_t e)
{
    if (e != cudaSuccess)
        last_error = e;
    hvt__double_unlock();
    return e;
}

/* Lock, and what every call may give. */
cudaError_t hvt__double_begin(const char *name)
{
    int error = hvt_double_enter(name);

    hvt__double_lock();
    return error ? (cudaError_t)error : driverless ? (cudaError_t)driverless : hvt__double_sticky;
}

/* Say why; most of these errors have no text of their own. */
cudaError_t hvt__double_refuse(cudaError_t e, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    fputs("double: ", stderr);
    vfprintf(stderr, fmt, ap);
    fputc('\n', stderr);
    va_end(ap);
    return e;
}

/* ---- memory ------------------------------------------------------------------------------------- */

static block *block_of(const void *ptr)
{
    const char *p = ptr;

    for (int i = 0; i < nblocks; i++)
        if (p >= blocks[i].ptr && p < blocks[i].ptr + blocks[i].bytes)
            return &blocks[i];
    return NULL;
}

bool hvt__double_in_device(const void *ptr, size_t bytes)
{
    const block *b = block_of(ptr);

    return b && b->mapped && (size_t)((const char *)ptr - b->ptr) + bytes <= b->bytes;
}

bool hvt__double_in_host(const void *ptr, size_t bytes)
{
    const block *b = block_of(ptr);

    return b && !b->mapped && (size_t)((const char *)ptr - b->ptr) + bytes <= b->bytes;
}

bool hvt__double_in_block(const void *ptr)
{
    return block_of(ptr);
}

bool hvt_double_is_device(const void *ptr, size_t bytes)
{
    bool yes;

    hvt__double_lock();
    yes = hvt__double_in_device(ptr, bytes);
    hvt__double_unlock();
    return yes;
}

bool hvt_double_need_device(const char *name, const void *ptr, size_t bytes)
{
    bool yes = hvt_double_is_device(ptr, bytes);

    if (!yes)
        hvt_double_fault("%s: %p is not device memory of %zu bytes", name, ptr, bytes);
    return yes;
}

static void set_access(const block *b)
{
    if (b->mapped)
        mprotect(b->map, b->mapped, memory_users ? PROT_READ | PROT_WRITE : PROT_NONE);
}

void hvt__double_open_memory(bool open)
{
    int before = memory_users;

    memory_users += open ? 1 : -1;
    if (!before != !memory_users)
        for (int i = 0; i < nblocks; i++)
            set_access(&blocks[i]);
}

/* A host access to device memory gets a name before it ends the process. */
static void explain(int sig, siginfo_t *info, void *context)
{
    static const char text[] = "double: the host touched device memory\n";

    (void)context;
    for (int i = 0; i < nblocks; i++)
        if (blocks[i].mapped && (char *)info->si_addr >= blocks[i].map &&
            (char *)info->si_addr < blocks[i].map + blocks[i].mapped)
            (void)!write(2, text, sizeof text - 1);
    signal(sig, SIG_DFL); /* and on return the access comes again */
}

static void explain_faults(void)
{
    static bool set;
    struct sigaction a = {.sa_sigaction = explain, .sa_flags = SA_SIGINFO};

    if (!set)
        sigaction(SIGSEGV, &a, NULL);
    set = true;
}

static void add_block(block b)
{
    blocks = realloc(blocks, (size_t)(nblocks + 1) * sizeof *blocks);
    assert(blocks);
    blocks[nblocks++] = b;
}

void *hvt_double_block(size_t bytes)
{
    const size_t page = 4096;
    size_t room, mapped;
    char *map = NULL, *ptr = NULL;

    bytes += !bytes;
    room = (bytes + 255) / 256 * 256;
    mapped = (room + page - 1) / page * page + page;
    hvt__double_lock();
    explain_faults();
    if (hvt__double_live.bytes + bytes <= memory) {
        map = mmap(NULL, mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        assert(map != MAP_FAILED);
        mapped -= page; /* the last one stays closed */
        mprotect(map, mapped, PROT_READ | PROT_WRITE);
        memset(map, 0xff, mapped);
        ptr = map + mapped - room;
        add_block((block){ptr, map, bytes, mapped});
        set_access(&blocks[nblocks - 1]);
        hvt__double_live.blocks++;
        hvt__double_live.bytes += bytes;
    }
    hvt__double_unlock();
    return ptr;
}

bool hvt_double_unblock(void *ptr)
{
    block *b;

    hvt__double_lock();
    b = block_of(ptr);
    if (!b || b->ptr != ptr || !b->mapped)
        b = NULL;
    if (b) {
        munmap(b->map, b->mapped + 4096);
        hvt__double_live.blocks--;
        hvt__double_live.bytes -= b->bytes;
        *b = blocks[--nblocks];
    }
    hvt__double_unlock();
    return b;
}

cudaError_t cudaMalloc(void **ret, size_t bytes)
{
    void *p;

    ENTER_UNSAFE();
    REFUSE(!ret, cudaErrorInvalidValue);
    p = hvt_double_block(bytes);
    REFUSE(!p, cudaErrorMemoryAllocation);
    *ret = p;
    return hvt__double_give(cudaSuccess);
}

cudaError_t cudaFree(void *ptr)
{
    ENTER_UNSAFE();
    REFUSE(!ptr, cudaSuccess);
    hvt__double_run(NULL, NULL, true);
    REFUSE(!hvt_double_unblock(ptr),
           hvt__double_refuse(cudaErrorInvalidValue, "cudaFree(%p): no such block", ptr));
    return hvt__double_give(cudaSuccess);
}

cudaError_t cudaMallocHost(void **ret, size_t bytes)
{
    char *p;

    ENTER_UNSAFE();
    REFUSE(!ret, cudaErrorInvalidValue);
    p = aligned_alloc(4096, (bytes + 4096) / 4096 * 4096);
    REFUSE(!p, cudaErrorMemoryAllocation);
    add_block((block){p, NULL, bytes ? bytes : 1, 0});
    hvt__double_live.host_blocks++;
    *ret = p;
    return hvt__double_give(cudaSuccess);
}

cudaError_t cudaFreeHost(void *ptr)
{
    block *b;

    ENTER_UNSAFE();
    REFUSE(!ptr, cudaSuccess);
    hvt__double_run(NULL, NULL, true);
    b = block_of(ptr);
    REFUSE(!b || b->ptr != ptr || b->mapped,
           hvt__double_refuse(cudaErrorInvalidValue, "cudaFreeHost(%p): no such block", ptr));
    free(ptr);
    *b = blocks[--nblocks];
    hvt__double_live.host_blocks--;
    return hvt__double_give(cudaSuccess);
}

cudaError_t cudaMemGetInfo(size_t *ret_free, size_t *ret_total)
{
    ENTER();
    *ret_free = memory - hvt__double_live.bytes;
    *ret_total = memory;
    return hvt__double_give(cudaSuccess);
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *a, const void *ptr)
{
    const block *b;

    ENTER();
    REFUSE(!a, cudaErrorInvalidValue);
    b = block_of(ptr);
    *a = (struct cudaPointerAttributes){.type = !b          ? cudaMemoryTypeUnregistered
                                                : b->mapped ? cudaMemoryTypeDevice
                                                            : cudaMemoryTypeHost,
                                        .device = b ? gpu_now : -2};
    if (b)
        *(b->mapped ? &a->devicePointer : &a->hostPointer) = (void *)(uintptr_t)ptr;
    return hvt__double_give(cudaSuccess);
}

/* ---- devices ------------------------------------------------------------------------------------ */

cudaError_t cudaGetDeviceCount(int *ret)
{
    if (ret)
        *ret = 0;
    ENTER();
    REFUSE(!ret, cudaErrorInvalidValue);
    REFUSE(!gpu_count, cudaErrorNoDevice);
    *ret = gpu_count;
    return hvt__double_give(cudaSuccess);
}

cudaError_t cudaSetDevice(int index)
{
    ENTER();
    REFUSE(index < 0 || index >= gpu_count, cudaErrorInvalidDevice);
    gpu_now = index;
    return hvt__double_give(cudaSuccess);
}

cudaError_t cudaGetDevice(int *ret)
{
    ENTER();
    REFUSE(!ret, cudaErrorInvalidValue);
    *ret = gpu_now;
    return hvt__double_give(cudaSuccess);
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int index)
{
    ENTER();
    REFUSE(index < 0 || index >= gpu_count, cudaErrorInvalidDevice);
    memset(p, 0, sizeof *p);
    snprintf(p->name, sizeof p->name, "Double %d", gpu_first + index);
    for (int i = 0; i < 16; i++)
        p->uuid.bytes[i] = (char)(16 * i + gpu_first + index);
    p->totalGlobalMem = memory;
    p->major = 9;
    p->multiProcessorCount = 4;
    p->warpSize = 32;
    p->maxThreadsPerBlock = 1024;
    p->maxThreadsPerMultiProcessor = 2048;
    p->sharedMemPerBlock = 48 << 10;
    p->sharedMemPerBlockOptin = p->sharedMemPerMultiprocessor = 227 << 10;
    p->l2CacheSize = 50 << 20;
    p->pciBusID = 0x10 + gpu_first + index;
    return hvt__double_give(cudaSuccess);
}

cudaError_t cudaDeviceGetPCIBusId(char *ret, int room, int index)
{
    ENTER();
    REFUSE(index < 0 || index >= gpu_count, cudaErrorInvalidDevice);
    snprintf(ret, (size_t)room, "0000:%02x:00.0", (unsigned)(0x10 + gpu_first + index));
    return hvt__double_give(cudaSuccess);
}

cudaError_t cudaDriverGetVersion(int *ret)
{
    if (!ret)
        return cudaErrorInvalidValue;
    *ret = driverless ? 0 : CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *ret)
{
    if (!ret)
        return cudaErrorInvalidValue;
    *ret = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize(void)
{
    ENTER_UNSAFE();
    hvt__double_run(NULL, NULL, true);
    return hvt__double_give(hvt__double_sticky);
}

/* ---- errors ------------------------------------------------------------------------------------- */

#define ERRORS(X)                                                                                            \
    X(cudaSuccess)                                                                                           \
    X(cudaErrorInvalidValue)                                                                                 \
    X(cudaErrorMemoryAllocation)                                                                             \
    X(cudaErrorInitializationError)                                                                          \
    X(cudaErrorInsufficientDriver)                                                                           \
    X(cudaErrorNoDevice)                                                                                     \
    X(cudaErrorInvalidDevice)                                                                                \
    X(cudaErrorInvalidResourceHandle)                                                                        \
    X(cudaErrorInvalidMemcpyDirection)                                                                       \
    X(cudaErrorIllegalState)                                                                                 \
    X(cudaErrorNotReady)                                                                                     \
    X(cudaErrorIllegalAddress)                                                                               \
    X(cudaErrorLaunchFailure)                                                                                \
    X(cudaErrorStreamCaptureUnsupported)                                                                     \
    X(cudaErrorStreamCaptureInvalidated)                                                                     \
    X(cudaErrorStreamCaptureMerge)                                                                           \
    X(cudaErrorStreamCaptureUnmatched)                                                                       \
    X(cudaErrorStreamCaptureUnjoined)                                                                        \
    X(cudaErrorStreamCaptureIsolation)                                                                       \
    X(cudaErrorStreamCaptureWrongThread)                                                                     \
    X(cudaErrorCapturedEvent)

const char *cudaGetErrorName(cudaError_t e)
{
#define X(name)                                                                                              \
    if (e == name)                                                                                           \
        return #name;
    ERRORS(X)
#undef X
    return "cudaErrorUnknown";
}

const char *cudaGetErrorString(cudaError_t e)
{
    return cudaGetErrorName(e);
}

cudaError_t cudaGetLastError(void)
{
    cudaError_t e = last_error;

    last_error = hvt__double_sticky;
    return e;
}

cudaError_t cudaPeekAtLastError(void)
{
    return last_error;
}
