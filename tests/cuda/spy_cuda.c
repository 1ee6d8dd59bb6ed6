/*
 * A device "cuda" with only memory, synchronisation and graph capture, over the double of the CUDA runtime:
 * the part of the real one that a comm uses. It replaces device_cuda.c, errors.c and load.c.
 */
#include "../../cuda/cuda_impl.h"

#include <stdlib.h>
#include <string.h>

hvt_status hvt__cuda_check(const hvt_device *d, cudaError_t e, const char *file, int line, const char *call)
{
    (void)d;
    return e == cudaSuccess ? HVT_OK
                            : hvt__fail(HVT_E_DEVICE, file, line, "%s: %s", call, cudaGetErrorName(e));
}

hvt_status hvt__cuda_use(hvt_device *d)
{
    return CUDA(d, cudaSetDevice(cuda_of(d)->index));
}

void hvt__cuda_account(hvt_device *d, int64_t bytes)
{
    cuda_of(d)->info.bytes += bytes;
}

#define SET(name) .name = name,

cuda_vendors hvt__nv = {NCCL_CALLS(SET)};

hvt_status hvt__cuda_load(cuda_library which)
{
    (void)which;
    return HVT_OK;
}

int hvt__cuda_count(void)
{
    return 1;
}

static hvt_status open_spy(hvt_device *d, const hvt_device_opts *opts)
{
    cuda_device *s = calloc(1, sizeof *s);
    struct cudaDeviceProp p;

    HVT_CHECK(s, E_MEM, "no memory for a spy");
    d->state = s;
    d->isa = "spy";
    d->threads = 1;
    d->share = opts->share;
    d->deterministic = opts->deterministic;
    s->index = opts->index;
    HVT_TRY(hvt__cuda_use(d));
    HVT_TRY(CUDA(d, cudaGetDeviceProperties(&p, s->index)));
    snprintf(s->info.name, sizeof s->info.name, "%.63s", p.name);
    snprintf(s->info.uuid, sizeof s->info.uuid, "GPU-%02x", (unsigned)p.uuid.bytes[0]);
    return CUDA(d, cudaStreamCreateWithFlags(&s->stream, cudaStreamNonBlocking));
}

static void close_spy(hvt_device *d)
{
    if (d->state && cuda_of(d)->stream)
        cudaStreamDestroy(cuda_of(d)->stream);
    free(d->state);
}

static void describe_spy(const hvt_device *d, hvt_device_info *ret_info)
{
    *ret_info = cuda_of(d)->info;
}

static hvt_status alloc_spy(hvt_device *d, size_t bytes, void **ret_ptr)
{
    HVT_TRY(CUDA(d, cudaMalloc(ret_ptr, bytes)));
    return CUDA(d, cudaMemsetAsync(*ret_ptr, 0, bytes, cuda_of(d)->stream));
}

static void release_spy(hvt_device *d, void *ptr)
{
    (void)d;
    cudaFree(ptr);
}

static hvt_status alloc_host_spy(hvt_device *d, size_t bytes, void **ret_ptr)
{
    return CUDA(d, cudaMallocHost(ret_ptr, bytes));
}

static void release_host_spy(hvt_device *d, void *ptr)
{
    (void)d;
    cudaFreeHost(ptr);
}

static hvt_status sync_spy(hvt_device *d)
{
    return CUDA_WAIT(d, cudaStreamSynchronize(cuda_of(d)->stream));
}

static hvt_status upload_spy(hvt_device *d, void *dst, const void *host, size_t bytes)
{
    HVT_TRY(CUDA_WAIT(d, cudaMemcpyAsync(dst, host, bytes, cudaMemcpyHostToDevice, cuda_of(d)->stream)));
    return sync_spy(d);
}

static hvt_status download_spy(hvt_device *d, void *host, const void *src, size_t bytes)
{
    HVT_TRY(CUDA_WAIT(d, cudaMemcpyAsync(host, src, bytes, cudaMemcpyDeviceToHost, cuda_of(d)->stream)));
    return sync_spy(d);
}

typedef struct recording {
    hvt_op op;
    cudaGraphExec_t exec;
} recording;

static void free_recording(hvt_op *op)
{
    cudaStreamSynchronize(cuda_of(op->dev)->stream);
    cudaGraphExecDestroy(((recording *)op)->exec);
    free(op);
}

static hvt_status capture_begin_spy(hvt_device *d)
{
    cuda_of(d)->capturing = true;
    return CUDA(d, cudaStreamBeginCapture(cuda_of(d)->stream, cudaStreamCaptureModeThreadLocal));
}

static hvt_status capture_end_spy(hvt_device *d, hvt_op **ret_op)
{
    recording *r;
    cudaGraph_t graph;
    hvt_status s;

    cuda_of(d)->capturing = false;
    HVT_TRY(CUDA(d, cudaStreamEndCapture(cuda_of(d)->stream, &graph)));
    r = calloc(1, sizeof *r);
    HVT_CHECK(r, E_MEM, "no memory for a captured graph");
    r->op = (hvt_op){d, free_recording};
    s = CUDA(d, cudaGraphInstantiate(&r->exec, graph, 0));
    cudaGraphDestroy(graph);
    *ret_op = &r->op;
    return s;
}

static hvt_status graph_launch_spy(hvt_op *op)
{
    return CUDA(op->dev, cudaGraphLaunch(((recording *)op)->exec, cuda_of(op->dev)->stream));
}

const hvt_device_ops hvt_device_cuda = {
    .name = "cuda",
    .open = open_spy,
    .close = close_spy,
    .describe = describe_spy,
    .memory.alloc = alloc_spy,
    .memory.release = release_spy,
    .memory.alloc_host = alloc_host_spy,
    .memory.release_host = release_host_spy,
    .memory.upload = upload_spy,
    .memory.download = download_spy,
    .queue.sync = sync_spy,
    .queue.capture_begin = capture_begin_spy,
    .queue.capture_end = capture_end_spy,
    .queue.graph_launch = graph_launch_spy,
};
