/*
 * The CUDA device: one GPU, one queue. Opening and closing, memory, synchronisation, graph capture, upload of
 * images, and the table. Convolutions are in conv_cudnn.c, matrix products in linear_cublas.c, other ops in
 * kernels.
 *
 * Invariant: buffers are read and written only on one stream, in call order, so ops need no events. The
 * exception are images: a second stream copies their bytes into one of two staging slots while the first
 * computes, and only the augment kernel waits for it. Capture is a stream capture; a comm joins it with its
 * own stream through events.
 */
#include "conv_impl.h"
#include "cuda_impl.h"
#include "kernels.h"

#include <assert.h>

/* ---- life ---- */

int hvt__cuda_count(void)
{
    int count = 0;

    if (cudaGetDeviceCount(&count) != cudaSuccess) {
        cudaGetLastError();
        return 0;
    }
    return count;
}

hvt_status hvt__cuda_use(hvt_device *d)
{
    return CUDA(d, cudaSetDevice(cuda_of(d)->index));
}

static hvt_status query_gpu(hvt_device *d, int wanted)
{
    cuda_device *s = cuda_of(d);
    struct cudaDeviceProp prop;
    const unsigned char *u = (const unsigned char *)prop.uuid.bytes;
    cudaError_t e;
    int count = 0;

    e = cudaGetDeviceCount(&count);
    if (e != cudaSuccess)
        cudaGetLastError();
    HVT_CHECK(e == cudaSuccess && count > 0, E_UNSUPPORTED,
              "device cuda: no GPU is available to this process: %s, %s", cudaGetErrorName(e),
              e == cudaSuccess ? "none is visible" : cudaGetErrorString(e));
    HVT_CHECK(wanted >= 0, E_ARG, "device cuda: index is %d, expected 0 or more", wanted);
    s->index = wanted % count;
    HVT_TRY(hvt__cuda_use(d));
    HVT_TRY(CUDA(d, cudaGetDeviceProperties(&prop, s->index)));
    snprintf(s->info.name, sizeof s->info.name, "%.63s", prop.name);
    snprintf(s->info.uuid, sizeof s->info.uuid,
             "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", u[0], u[1], u[2],
             u[3], u[4], u[5], u[6], u[7], u[8], u[9], u[10], u[11], u[12], u[13], u[14], u[15]);
    HVT_TRY(CUDA(d, cudaDeviceGetPCIBusId(s->info.bus, sizeof s->info.bus, s->index)));
    s->info.total_bytes = (int64_t)prop.totalGlobalMem;
    snprintf(s->isa, sizeof s->isa, "sm_%d", prop.major * 10 + prop.minor);
    return HVT_OK;
}

static hvt_status open_cuda(hvt_device *d, const hvt_device_opts *opts)
{
    cuda_device *s = calloc(1, sizeof *s);

    HVT_CHECK(s, E_MEM, "no memory for %zu bytes of device cuda", sizeof *s);
    d->state = s;
    HVT_TRY(query_gpu(d, opts->index));
    d->isa = s->isa;
    d->threads = 1;
    HVT_TRY(hvt__cuda_load(CUDA_CUBLASLT));
    HVT_TRY(hvt__cuda_load(CUDA_CUDNN));
    HVT_TRY(CUDA(d, cudaStreamCreateWithFlags(&s->stream, cudaStreamNonBlocking)));
    HVT_TRY(CUDA(d, cudaStreamCreateWithFlags(&s->copy, cudaStreamNonBlocking)));
    for (int i = 0; i < CUDA_MARKS; i++) /* the host sleeps while it waits, because decoders need its core */
        HVT_TRY(
            CUDA(d, cudaEventCreateWithFlags(&s->mark[i], cudaEventDisableTiming | cudaEventBlockingSync)));
    for (int i = 0; i < CUDA_SLOTS; i++) {
        HVT_TRY(CUDA(d, cudaEventCreateWithFlags(&s->slot[i].uploaded, cudaEventDisableTiming)));
        HVT_TRY(CUDA(d, cudaEventCreateWithFlags(&s->slot[i].read, cudaEventDisableTiming)));
    }
    HVT_TRY(CUBLAS(d, cublasLtCreate(&s->blas)));
    HVT_TRY(CUDNN(d, cudnnCreate(&s->dnn)));
    HVT_TRY(CUDNN(d, cudnnSetStream(s->dnn, s->stream)));
    HVT_TRY(d->ops->memory.alloc(d, HVT__CUDA_SCRATCH, &s->scratch));
    return hvt__plan_cache_open(opts->plan_cache, &s->plans);
}

/* Destroy handles before their streams; queued work finishes first. */
static void close_cuda(hvt_device *d)
{
    cuda_device *s = cuda_of(d);
    cudaGraph_t graph = NULL;

    if (!s)
        return;
    if (s->stream) {
        cudaSetDevice(s->index);
        if (s->capturing && cudaStreamEndCapture(s->stream, &graph) == cudaSuccess && graph)
            cudaGraphDestroy(graph);
        CUDA_WAIT(d, cudaStreamSynchronize(s->stream));
    }
    if (s->copy)
        CUDA_WAIT(d, cudaStreamSynchronize(s->copy));
    hvt__plan_cache_close(&s->plans);
    d->ops->memory.release(d, s->scratch);
    for (int i = 0; i < CUDA_SLOTS; i++) {
        d->ops->memory.release(d, s->slot[i].staged);
        if (s->slot[i].uploaded)
            cudaEventDestroy(s->slot[i].uploaded);
        if (s->slot[i].read)
            cudaEventDestroy(s->slot[i].read);
    }
    for (int i = 0; i < CUDA_MARKS; i++)
        if (s->mark[i])
            cudaEventDestroy(s->mark[i]);
    if (s->dnn)
        hvt__nv.cudnnDestroy(s->dnn);
    if (s->blas)
        hvt__nv.cublasLtDestroy(s->blas);
    if (s->copy)
        cudaStreamDestroy(s->copy);
    if (s->stream)
        cudaStreamDestroy(s->stream);
    cudaGetLastError();
    free(s->block);
    free(s);
    d->state = NULL;
}

/* With fewer than 8 channels cuDNN's engines first pad the images. For ResNet's 7x7 stem, 128 images of
 * 224x224 and 3 or 4 channels, that takes 100 MiB of workspace for the gradient of w, and in bf16 as much
 * again in forward; with 8 channels at most 10. In f32 it does not help. */
static int channels_cuda(const hvt_device *d, hvt_dtype t, int c)
{
    return t == HVT_F32 || c > 8 ? c : 8;
}

static void describe_cuda(const hvt_device *d, hvt_device_info *ret_info)
{
    *ret_info = cuda_of(d)->info;
}

/* ---- memory ---- */

void hvt__cuda_account(hvt_device *d, int64_t bytes)
{
    hvt_device_info *info = &cuda_of(d)->info;

    info->bytes += bytes;
    if (info->bytes > info->peak_bytes)
        info->peak_bytes = info->bytes;
}

static hvt_status track_block(cuda_device *s, void *ptr, size_t bytes)
{
    cuda_block *more = realloc(s->block, (size_t)(s->blocks + 1) * sizeof *more);

    HVT_CHECK(more, E_MEM, "no memory to keep %d blocks of device memory", s->blocks + 1);
    s->block = more;
    s->block[s->blocks++] = (cuda_block){ptr, bytes};
    return HVT_OK;
}

static hvt_status no_memory(hvt_device *d, size_t bytes)
{
    size_t left = 0, all = 0;
    const cuda_device *s = cuda_of(d);

    cudaGetLastError();
    if (cudaMemGetInfo(&left, &all) != cudaSuccess)
        cudaGetLastError();
    return HVT_FAIL(
        E_MEM,
        "cuda:%d (%s): no memory for %.1f MiB; %.1f of its %.1f MiB are free, %.1f are used by this device",
        s->index, s->info.name, (double)bytes / 0x1p20, (double)left / 0x1p20, (double)all / 0x1p20,
        (double)s->info.bytes / 0x1p20);
}

/* Begin a call that would invalidate a capture; refuse it during one. */
static hvt_status begin(hvt_device *d, const char *what)
{
    HVT_CHECK(!cuda_of(d)->capturing, E_ARG, "%s during a graph capture of device cuda", what);
    return hvt__cuda_use(d);
}

static hvt_status alloc_cuda(hvt_device *d, size_t bytes, void **ret_ptr)
{
    cudaStream_t stream = cuda_of(d)->stream;
    void *p = NULL;
    cudaError_t e;
    hvt_status s;

    HVT_TRY(begin(d, "alloc"));
    if (bytes == 0)
        bytes = 1; /* for a unique address */
    e = cudaMalloc(&p, bytes);
    if (e == cudaErrorMemoryAllocation)
        return no_memory(d, bytes);
    HVT_TRY(hvt__cuda_check(d, e, __FILE__, __LINE__, "cudaMalloc"));
    HVT_TRY_OR(fail, CUDA(d, cudaMemsetAsync(p, 0, bytes, stream)));
    HVT_TRY_OR(fail, CUDA_WAIT(d, cudaStreamSynchronize(stream))); /* other streams may use it immediately */
    HVT_TRY_OR(fail, track_block(cuda_of(d), p, bytes));
    hvt__cuda_account(d, (int64_t)bytes);
    *ret_ptr = p;
    return HVT_OK;
fail:
    cudaFree(p);
    return s;
}

static void release_cuda(hvt_device *d, void *ptr)
{
    cuda_device *s = cuda_of(d);

    if (!ptr)
        return;
    assert(!s->capturing);
    for (int i = 0; i < s->blocks; i++)
        if (s->block[i].ptr == ptr) {
            hvt__cuda_account(d, -(int64_t)s->block[i].bytes);
            s->block[i] = s->block[--s->blocks];
            break;
        }
    cudaSetDevice(s->index);
    CUDA_WAIT(d, cudaStreamSynchronize(s->stream)); /* cudaFree() would wait unseen by a comm's guard */
    cudaFree(ptr);
    cudaGetLastError();
}

static hvt_status alloc_host_cuda(hvt_device *d, size_t bytes, void **ret_ptr)
{
    void *p = NULL;

    HVT_TRY(begin(d, "alloc_host"));
    HVT_TRY(CUDA(d, cudaMallocHost(&p, bytes ? bytes : 1)));
    memset(p, 0, bytes);
    *ret_ptr = p;
    return HVT_OK;
}

static void release_host_cuda(hvt_device *d, void *ptr)
{
    if (!ptr)
        return;
    assert(!cuda_of(d)->capturing);
    cudaSetDevice(cuda_of(d)->index);
    cudaFreeHost(ptr);
    cudaGetLastError();
}

/* ---- order ---- */

static hvt_status sync_cuda(hvt_device *d)
{
    HVT_TRY(begin(d, "sync"));
    return CUDA_WAIT(d, cudaStreamSynchronize(cuda_of(d)->stream));
}

static hvt_status transfer(hvt_device *d, void *dst, const void *src, size_t bytes, enum cudaMemcpyKind kind)
{
    if (bytes)
        HVT_TRY(CUDA_WAIT(d, cudaMemcpyAsync(dst, src, bytes, kind, cuda_of(d)->stream)));
    return sync_cuda(d);
}

static hvt_status upload_cuda(hvt_device *d, void *dst, const void *host, size_t bytes)
{
    HVT_TRY(begin(d, "upload"));
    return transfer(d, dst, host, bytes, cudaMemcpyHostToDevice);
}

static hvt_status download_cuda(hvt_device *d, void *host, const void *src, size_t bytes)
{
    HVT_TRY(begin(d, "download"));
    return transfer(d, host, src, bytes, cudaMemcpyDeviceToHost);
}

static hvt_status copy_cuda(hvt_device *d, void *dst, const void *src, size_t bytes)
{
    HVT_TRY(hvt__cuda_use(d));
    if (!bytes)
        return HVT_OK;
    return CUDA(d, cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDeviceToDevice, cuda_of(d)->stream));
}

static hvt_status zero_cuda(hvt_device *d, void *dst, size_t bytes)
{
    HVT_TRY(hvt__cuda_use(d));
    if (!bytes)
        return HVT_OK;
    return CUDA(d, cudaMemsetAsync(dst, 0, bytes, cuda_of(d)->stream));
}

static hvt_status put_cuda(hvt_device *d, void *dst, const void *host, size_t bytes)
{
    HVT_TRY(begin(d, "put"));
    return hvt__cuda_put(d, dst, host, bytes);
}

static hvt_status mark_cuda(hvt_device *d, hvt_mark *ret_mark)
{
    cuda_device *s = cuda_of(d);

    HVT_TRY(begin(d, "mark"));
    HVT_TRY(CUDA(d, cudaEventRecord(s->mark[(s->marks + 1) % CUDA_MARKS], s->stream)));
    *ret_mark = ++s->marks;
    return HVT_OK;
}

/* If a later mark has reused the event, this waits for the later one: longer, never shorter. */
static hvt_status await_cuda(hvt_device *d, hvt_mark mark)
{
    HVT_TRY(begin(d, "await"));
    return CUDA_WAIT(d, cudaEventSynchronize(cuda_of(d)->mark[mark % CUDA_MARKS]));
}

/* ---- graph capture ---- */

typedef struct captured_graph {
    hvt_op op;
    cudaGraphExec_t exec;
} captured_graph;

static void free_graph(hvt_op *op)
{
    captured_graph *r = (captured_graph *)op;

    cudaSetDevice(cuda_of(op->dev)->index);
    CUDA_WAIT(op->dev, cudaStreamSynchronize(cuda_of(op->dev)->stream));
    cudaGraphExecDestroy(r->exec);
    cudaGetLastError();
    free(r);
}

/* This mode lets other threads (a watchdog, a loader) call the runtime during the capture. */
static hvt_status capture_begin_cuda(hvt_device *d)
{
    cuda_device *s = cuda_of(d);

    HVT_TRY(begin(d, "capture_begin"));
    HVT_TRY(CUDA(d, cudaStreamBeginCapture(s->stream, cudaStreamCaptureModeThreadLocal)));
    s->capturing = true;
    return HVT_OK;
}

static hvt_status capture_end_cuda(hvt_device *d, hvt_op **ret_op)
{
    cuda_device *s = cuda_of(d);
    captured_graph *r;
    cudaGraph_t graph = NULL;
    hvt_status st;

    HVT_CHECK(s->capturing, E_ARG, "device cuda is not capturing");
    HVT_TRY(hvt__cuda_use(d));
    s->capturing = false;
    HVT_TRY(CUDA(d, cudaStreamEndCapture(s->stream, &graph)));
    r = calloc(1, sizeof *r);
    st = r ? CUDA(d, cudaGraphInstantiate(&r->exec, graph, 0))
           : HVT_FAIL(E_MEM, "no memory for %zu bytes of a captured graph", sizeof *r);
    cudaGraphDestroy(graph);
    if (st != HVT_OK) {
        free(r);
        return st;
    }
    r->op = (hvt_op){d, free_graph};
    *ret_op = &r->op;
    return HVT_OK;
}

static hvt_status graph_launch_cuda(hvt_op *op)
{
    HVT_TRY(begin(op->dev, "graph_launch"));
    return CUDA(op->dev, cudaGraphLaunch(((captured_graph *)op)->exec, cuda_of(op->dev)->stream));
}

/* ---- images ---- */

static hvt_status reserve_slot(hvt_device *d, cuda_slot *slot, size_t capacity)
{
    void *p;

    if (capacity <= slot->capacity)
        return HVT_OK;
    HVT_TRY(CUDA_WAIT(d, cudaStreamSynchronize(cuda_of(d)->copy)));
    release_cuda(d, slot->staged);
    slot->staged = NULL;
    slot->capacity = 0;
    HVT_TRY(alloc_cuda(d, capacity, &p));
    slot->staged = p;
    slot->capacity = capacity;
    return HVT_OK;
}

/* Copy host bytes to the slot, on the copy stream. NULL: nothing. */
static hvt_status stage(hvt_device *d, const cuda_slot *slot, size_t at, const void *from, size_t bytes)
{
    if (!from)
        return HVT_OK;
    return CUDA(d, cudaMemcpyAsync(slot->staged + at, from, bytes, cudaMemcpyHostToDevice, cuda_of(d)->copy));
}

static hvt_status augment_cuda(hvt_device *d, const hvt_augment_args *a)
{
    cuda_device *s = cuda_of(d);
    cuda_slot *slot = &s->slot[s->next_slot % CUDA_SLOTS];
    size_t n = (size_t)a->n, real = (size_t)a->real;
    size_t image = (size_t)a->h * (size_t)a->w * (size_t)a->c * (a->floats ? sizeof(float) : 1);
    size_t targets = a->targets ? (size_t)a->outputs * sizeof *a->targets : 0;
    size_t at_draws = cuda_align(n * sizeof *a->labels), at_targets = at_draws + cuda_align(n * 3),
           at_erased = at_targets + cuda_align(n * targets),
           at_images = at_erased + cuda_align(a->erased ? n * 4 * sizeof *a->erased : 0);

    assert(a->order == HVT_ORDER_NHW);
    HVT_TRY(begin(d, "augment"));
    HVT_TRY(reserve_slot(d, slot, at_images + n * image));
    HVT_TRY(CUDA(d, cudaStreamWaitEvent(s->copy, slot->read, 0)));
    HVT_TRY(stage(d, slot, 0, a->labels, real * sizeof *a->labels));
    HVT_TRY(stage(d, slot, at_draws, a->draws, real * 3));
    HVT_TRY(stage(d, slot, at_targets, a->targets, real * targets));
    HVT_TRY(stage(d, slot, at_erased, a->erased, real * 4 * sizeof *a->erased));
    HVT_TRY(stage(d, slot, at_images, a->src, real * image));
    HVT_TRY(CUDA(d, cudaEventRecord(slot->uploaded, s->copy)));
    HVT_TRY(CUDA(d, cudaStreamWaitEvent(s->stream, slot->uploaded, 0)));
    HVT_TRY(hvt__cuda_augment(d, a, (const char *)slot->staged + at_images,
                              a->draws ? (const int8_t *)slot->staged + at_draws : NULL,
                              a->erased ? (const int16_t *)((const char *)slot->staged + at_erased) : NULL,
                              a->labels ? (const int32_t *)slot->staged : NULL));
    HVT_TRY(copy_cuda(d, a->dst_targets, slot->staged + at_targets, real * targets));
    HVT_TRY(CUDA(d, cudaEventRecord(slot->read, s->stream)));
    s->next_slot++;
    return HVT_OK;
}

#define ENTRY(entry, op) .entry = hvt__##op##_cuda,

const hvt_device_ops hvt_device_cuda = {.name = "cuda",
                                        .open = open_cuda,
                                        .close = close_cuda,
                                        .channels = channels_cuda,
                                        .describe = describe_cuda,
                                        .memory.alloc = alloc_cuda,
                                        .memory.release = release_cuda,
                                        .memory.alloc_host = alloc_host_cuda,
                                        .memory.release_host = release_host_cuda,
                                        .memory.upload = upload_cuda,
                                        .memory.download = download_cuda,
                                        .memory.put = put_cuda,
                                        .queue.mark = mark_cuda,
                                        .queue.await = await_cuda,
                                        .queue.sync = sync_cuda,
                                        .queue.capture_begin = capture_begin_cuda,
                                        .queue.capture_end = capture_end_cuda,
                                        .queue.graph_launch = graph_launch_cuda,
                                        .conv.permute = hvt__conv_permute_krsc,
                                        .pooling.plan = hvt__pooling_plan,
                                        .memory.copy = copy_cuda,
                                        .memory.zero = zero_cuda,
                                        .matrix.bn_join_moments = hvt__bn_join_moments_cuda,
                                        .matrix.bn_join_sums = hvt__bn_join_sums_cuda,
                                        .step.decide = hvt__decide_cuda,
                                        .augment = augment_cuda,
                                        HVT__OPS(ENTRY) HVT__GENERAL_OPS(ENTRY)};
