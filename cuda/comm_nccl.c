/*
 * The comm over NCCL: collectives over the GPUs' links, queued on a separate stream, so that they overlap
 * with backward. The host never blocks: an operation first waits, on its stream, for the work queued on the
 * device's stream so far; hvt_comm_wait() makes the device's stream wait for the operation's end.
 *
 * NCCL adds in the wire type, in its own order (the same on every rank and, for one communicator and count,
 * in every run with a pinned algorithm), so its sums are not those of the fixed tree. Slices are in rank
 * order. NCCL's are equal, so every rank has the same multiple of 16 elements, and the last rank also the
 * remainder.
 *
 * Operations can be captured with the device's stream: the events draw the comm's stream into the capture.
 * NCCL connects ranks at the first operation of a kind, so one must have run before. Captured graphs must be
 * freed before the comm is closed, or NCCL waits for them; see hvt__nccl_end().
 */
#include "nccl_impl.h"

static bool holds(const hvt_comm *c, const char *p)
{
    for (int i = 0; i < c->blocks; i++)
        if (p >= (char *)c->block[i].ptr && p < (char *)c->block[i].ptr + c->block[i].bytes)
            return true;
    return false;
}

/* Checked here, because NCCL would fail inside a kernel. */
static hvt_status check_memory(hvt_comm *c, const char *what, const void *buf, size_t bytes)
{
    int index = cuda_of(c->dev)->index;
    struct cudaPointerAttributes a;

    if (!bytes || holds(c, buf))
        return HVT_OK;
    HVT_TRY(CUDA(c->dev, cudaPointerGetAttributes(&a, buf)));
    HVT_CHECK(a.type == cudaMemoryTypeDevice || a.type == cudaMemoryTypeManaged, E_ARG,
              "comm nccl: %s got %zu bytes of host memory at %p, expected memory of device cuda:%d", what,
              bytes, buf, index);
    HVT_CHECK(a.device == index, E_ARG,
              "comm nccl: %s got memory of device cuda:%d, expected memory of cuda:%d", what, a.device,
              index);
    return HVT_OK;
}

/* NCCL can register memory that it allocated, so that peers, switches and network cards read it without a
 * copy. The handle is that of the registration, or NULL. */
static hvt_status comm_alloc_nccl(hvt_comm *c, bool shared, hvt__block *b)
{
    comm_nccl *st = c->state;
    void *ptr = NULL;
    ncclResult_t r;
    hvt_status s;

    HVT_TRY(hvt__cuda_use(c->dev));
    b->bytes += !b->bytes;
    r = hvt__nv.ncclMemAlloc(&ptr, b->bytes);
    if (r != ncclSuccess)
        cudaGetLastError();
    HVT_CHECK(r == ncclSuccess, E_MEM, "comm nccl: no memory for %zu bytes on the GPU: %s (%s)", b->bytes,
              hvt__nv.ncclGetErrorString(r), hvt__nv.ncclGetLastError(NULL));
    HVT_TRY_OR(fail, CUDA(c->dev, cudaMemsetAsync(ptr, 0, b->bytes, cuda_of(c->dev)->stream)));
    pthread_mutex_lock(&st->lock);
    s = hvt__nccl_alive(st);
    if (s == HVT_OK && !st->shared) /* without effect over sockets */
        s = NCCL(st, ncclCommRegister(st->nccl, ptr, b->bytes, &b->handle));
    pthread_mutex_unlock(&st->lock);
    if (s != HVT_OK)
        goto fail;
    hvt__cuda_account(c->dev, (int64_t)b->bytes);
    b->ptr = ptr;
    return HVT_OK;
fail:
    CUDA_WAIT(c->dev, cudaStreamSynchronize(cuda_of(c->dev)->stream));
    hvt__nv.ncclMemFree(ptr);
    return s;
}

/* Before the memory is freed, posted operations and the device's queued work must end. */
static void comm_release_nccl(hvt_comm *c, hvt__block *b)
{
    comm_nccl *st = c->state;

    if (!b->ptr)
        return;
    hvt__cuda_use(c->dev);
    hvt__nccl_drain(st);
    CUDA_WAIT(c->dev, cudaStreamSynchronize(st->stream)); /* after an abort, too */
    CUDA_WAIT(c->dev, cudaStreamSynchronize(cuda_of(c->dev)->stream));
    pthread_mutex_lock(&st->lock);
    if (b->handle && st->nccl && NCCL(st, ncclCommDeregister(st->nccl, b->handle)) != HVT_OK)
        HVT_WARN("%s", hvt_last_error());
    pthread_mutex_unlock(&st->lock);
    hvt__nv.ncclMemFree(b->ptr);
    hvt__cuda_account(c->dev, -(int64_t)b->bytes);
}

/* A rank's description of its GPU; fits in hvt_world's scratch. */
typedef struct gpu_card {
    char uuid[41], name[22]; /* "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6", "NVIDIA H100 80GB HBM3" */
    bool share;
} gpu_card;

_Static_assert(sizeof(gpu_card) <= HVT__SCRATCH, "a card fits into the world's scratch");

static bool same_gpu(const hvt_world *w, const gpu_card *card, int a, int b)
{
    return !strcmp(card[a].uuid, card[b].uuid) && !strcmp(w->host[a], w->host[b]);
}

/* Refuse ranks that share a GPU without `share`, which NCCL would report as invalid usage. Every rank sees
 * the same cards. */
static hvt_status check_gpus(hvt_comm *c)
{
    comm_nccl *st = c->state;
    hvt_world *w = c->world;
    gpu_card mine = {.share = c->dev->share}, *card = w->scratch;
    hvt_device_info info;

    hvt_device_describe(c->dev, &info);
    snprintf(mine.uuid, sizeof mine.uuid, "%.40s", info.uuid);
    snprintf(mine.name, sizeof mine.name, "%.21s", info.name);
    HVT_TRY(hvt_world_allgather(w, &mine, sizeof mine, card));
    for (int b = 1; b < w->size; b++)
        for (int a = 0; a < b; a++) {
            if (!same_gpu(w, card, a, b))
                continue;
            if (!card[a].share || !card[b].share) {
                HVT_FAIL(E_UNSUPPORTED,
                         "comm nccl: ranks %d and %d of host %s have the same GPU, %s (%s): start no more "
                         "ranks there than it has GPUs, or let them share one (--device cuda:N)",
                         a, b, w->host[a], card[a].name, card[a].uuid);
                hvt__error_agreed(true);
                return HVT_E_UNSUPPORTED;
            }
            st->shared = true;
        }
    return HVT_OK;
}

/* NCCL reads these once per process, so the first comm sets them for all.
 *
 * Operations of several comms may be in flight at once. Each waits on the GPU for those of the other ranks,
 * which never run if another comm's operations occupy that GPU. With NCCL_LAUNCH_ORDER_IMPLICIT NCCL runs all
 * operations in the host's order of issue, which is the same on every rank.
 *
 * The user's own settings take precedence, except for the one that must
 * differ between ranks. */
static void set_environment(hvt_comm *c)
{
    comm_nccl *st = c->state;
    char id[96];

    setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", 0);
    if (c->dev->deterministic || st->shared) {
        setenv("NCCL_ALGO", "Ring", 0);
        setenv("NCCL_PROTO", "Simple", 0);
    }
    if (!st->shared)
        return;
    /* Different host IDs let ranks pass NCCL's check and communicate by network. */
    snprintf(id, sizeof id, "%s-rank%d", c->world->host[c->world->rank], c->world->rank);
    setenv("NCCL_HOSTID", id, 1);
    setenv("NCCL_NET", "Socket", 0);
    setenv("NCCL_MNNVL_ENABLE", "0", 0);
    setenv("NCCL_NVLS_ENABLE", "0", 0);
    setenv("NCCL_RAS_ENABLE", "0", 0);
    if (c->world->nodes == 1)
        setenv("NCCL_SOCKET_IFNAME", "lo", 0);
    if (c->world->rank == 0)
        HVT_INFO("comm nccl: ranks share a GPU, so they exchange over sockets: correct, but slow");
}

/* The steps of opening that may fail on one rank only. */
static hvt_status open_local(hvt_comm *c)
{
    comm_nccl *st;
    int least, greatest;

    HVT_CHECK(!strcmp(c->dev->ops->name, "cuda"), E_UNSUPPORTED,
              "comm nccl moves memory of device cuda; this device is %s", c->dev->ops->name);
    st = calloc(1, sizeof *st);
    HVT_CHECK(st, E_MEM, "no memory for a comm");
    c->state = st;
    st->world = c->world;
    st->dev = c->dev;
    st->stall = hvt__stall;
    pthread_mutex_init(&st->lock, NULL);
    HVT_TRY(hvt__cuda_load(CUDA_NCCL));
    HVT_TRY(hvt__cuda_use(c->dev));
    HVT_TRY(CUDA(c->dev, cudaDeviceGetStreamPriorityRange(&least, &greatest)));
    HVT_TRY(CUDA(c->dev, cudaStreamCreateWithPriority(&st->stream, cudaStreamNonBlocking, greatest)));
    HVT_TRY(CUDA(c->dev, cudaEventCreateWithFlags(&st->ready, cudaEventDisableTiming)));
    for (int i = 0; i < NCCL_WATCHED; i++)
        HVT_TRY(CUDA(c->dev, cudaEventCreateWithFlags(&st->op[i].done, cudaEventDisableTiming)));
    return HVT_OK;
}

static hvt_status make_id(const hvt_comm *c, ncclUniqueId *ret_id)
{
    ncclResult_t r = c->world->rank ? ncclSuccess : hvt__nv.ncclGetUniqueId(ret_id);

    HVT_CHECK(r == ncclSuccess, E_COMM, "ncclGetUniqueId: %s (%s)", hvt__nv.ncclGetErrorString(r),
              hvt__nv.ncclGetLastError(NULL));
    return HVT_OK;
}

static hvt_status init_rank(hvt_comm *c, ncclUniqueId id)
{
    comm_nccl *st = c->state;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    hvt_status s;

    config.blocking = 0;
    if (st->shared) { /* the ranks' kernels must fit on the GPU at the same time */
        config.minCTAs = 1;
        config.maxCTAs = 2;
    }
    pthread_mutex_lock(&st->lock);
    s = NCCL(st, ncclCommInitRankConfig(&st->nccl, c->world->size, id, c->world->rank, &config));
    pthread_mutex_unlock(&st->lock);
    return s;
}

/* A rank that knows the reason of a failure reports before those that only waited. */
static hvt_status comm_open_nccl(hvt_comm *c)
{
    comm_nccl *st;
    ncclUniqueId id = {0};
    hvt_status s;

    HVT_TRY(hvt_world_agree(c->world, open_local(c)));
    HVT_TRY(check_gpus(c));
    set_environment(c);
    HVT_TRY(hvt_world_agree(c->world, make_id(c, &id)));
    HVT_TRY(hvt_world_broadcast(c->world, &id, sizeof id, 0));
    s = init_rank(c, id);
    st = c->state;
    HVT_TRY(hvt_world_agree(c->world, st->peers_missing ? HVT_OK : s));
    HVT_TRY(hvt_world_agree(c->world, s));
    return hvt__nccl_guard_start(st);
}

static void comm_close_nccl(hvt_comm *c)
{
    comm_nccl *st = c->state;

    if (!st)
        return;
    hvt__cuda_use(c->dev);
    if (st->nccl)
        hvt__nccl_drain(st);
    hvt__nccl_end(st);
    for (int i = 0; i < NCCL_WATCHED; i++)
        if (st->op[i].done)
            cudaEventDestroy(st->op[i].done);
    if (st->ready)
        cudaEventDestroy(st->ready);
    if (st->stream)
        cudaStreamDestroy(st->stream);
    cudaGetLastError();
    pthread_mutex_destroy(&st->lock);
    free(st);
    c->state = NULL;
}

static ncclDataType_t wire(hvt_dtype t)
{
    return t == HVT_F32 ? ncclFloat32 : t == HVT_F16 ? ncclFloat16 : t == HVT_BF16 ? ncclBfloat16 : ncclUint8;
}

/* Elements of a slice; the last one also has the remainder. */
static size_t slice(size_t count, int size)
{
    return count / (size_t)size / 16 * 16;
}

static void comm_slice_nccl(const hvt_comm *c, size_t count, int rank, size_t *ret_first, size_t *ret_end)
{
    size_t each = slice(count, c->world->size);

    *ret_first = each * (size_t)rank;
    *ret_end = rank == c->world->size - 1 ? count : *ret_first + each;
}

/* Equal slices by NCCL's operation; the last rank's remainder, fewer than 16 elements per rank plus one, in
 * the same launch. */
static ncclResult_t ask_slices(const hvt__op *o, comm_nccl *st, bool sum)
{
    int size = st->world->size;
    size_t each = slice(o->count, size), bytes = hvt_dtype_size(o->type), done = each * (size_t)size;
    char *buf = o->buf, *mine = buf + each * bytes * (size_t)st->world->rank, *tail = buf + done * bytes;
    ncclResult_t r = hvt__nv.ncclGroupStart(), end;

    if (r != ncclSuccess)
        return r;
    if (each)
        r = sum ? hvt__nv.ncclReduceScatter(o->buf, mine, each, wire(o->type), ncclSum, st->nccl, st->stream)
                : hvt__nv.ncclAllGather(mine, o->buf, each, wire(o->type), st->nccl, st->stream);
    if ((r == ncclSuccess || r == ncclInProgress) && done < o->count)
        r = sum ? hvt__nv.ncclAllReduce(tail, tail, o->count - done, wire(o->type), ncclSum, st->nccl,
                                        st->stream)
                : hvt__nv.ncclBroadcast(tail, tail, o->count - done, wire(o->type), size - 1, st->nccl,
                                        st->stream);
    end = hvt__nv.ncclGroupEnd();
    return r == ncclSuccess || r == ncclInProgress ? end : r;
}

static ncclResult_t ask(const hvt__op *o, comm_nccl *st)
{
    if (o->kind == HVT__ALLREDUCE)
        return hvt__nv.ncclAllReduce(o->buf, o->buf, o->count, wire(o->type), ncclSum, st->nccl, st->stream);
    if (o->kind == HVT__BROADCAST)
        return hvt__nv.ncclBroadcast(o->buf, o->buf, o->count, ncclUint8, o->root, st->nccl, st->stream);
    return ask_slices(o, st, o->kind == HVT__REDUCE_SCATTER);
}

static const char *const names[] = {[HVT__ALLREDUCE] = "allreduce",
                                    [HVT__REDUCE_SCATTER] = "reduce_scatter",
                                    [HVT__ALLGATHER] = "allgather",
                                    [HVT__BROADCAST] = "broadcast"};

/* With the lock held. */
static hvt_status launch(comm_nccl *st, const hvt__op *o)
{
    const char *what = names[o->kind];
    cuda_device *d = cuda_of(st->dev);
    nccl_op *op = &st->op[(st->issued + 1) % NCCL_WATCHED];

    HVT_TRY(hvt__nccl_alive(st));
    HVT_CHECK(!d->capturing || st->waited == st->issued || st->op[st->issued % NCCL_WATCHED].captured, E_ARG,
              "comm nccl: %s in a graph capture, while ticket %llu from before it was not waited for", what,
              (unsigned long long)st->issued);
    HVT_TRY(CUDA(st->dev, cudaEventRecord(st->ready, d->stream)));
    HVT_TRY(CUDA(st->dev, cudaStreamWaitEvent(st->stream, st->ready, 0)));
    if (o->count)
        HVT_TRY(hvt__nccl_complete(st, ask(o, st), what));
    HVT_TRY(CUDA(st->dev, cudaEventRecord(op->done, st->stream)));
    *op = (nccl_op){what, o->count, o->type, hvt__now(), d->capturing, false, op->done};
    st->has_captured = st->has_captured || d->capturing;
    st->issued++;
    return HVT_OK;
}

static hvt_status comm_post_nccl(hvt_comm *c, const hvt__op *op, bool *ret_posted)
{
    comm_nccl *st = c->state;
    hvt_status s;

    HVT_TRY(hvt__cuda_use(c->dev));
    HVT_TRY(check_memory(c, names[op->kind], op->buf, op->count * hvt_dtype_size(op->type)));
    pthread_mutex_lock(&st->lock);
    s = launch(st, op);
    pthread_mutex_unlock(&st->lock);
    *ret_posted = s == HVT_OK;
    return s;
}

/* Make the device's stream wait for the operation's end. The host does not wait. An operation of an abandoned
 * capture has not begun, so nothing waits for it. */
static hvt_status comm_run_nccl(hvt_comm *c, hvt_device *dev, const hvt__op *op)
{
    comm_nccl *st = c->state;
    const nccl_op *o = &st->op[++st->waited % NCCL_WATCHED];

    if (o->captured && !cuda_of(dev)->capturing)
        return HVT_OK;
    HVT_TRY(hvt__cuda_use(dev));
    return CUDA(dev, cudaStreamWaitEvent(cuda_of(dev)->stream, o->done, 0));
}

/* Report failures of operations in flight. */
static hvt_status comm_fence_nccl(hvt_comm *c)
{
    comm_nccl *st = c->state;
    hvt_status s;

    pthread_mutex_lock(&st->lock);
    s = hvt__nccl_alive(st);
    pthread_mutex_unlock(&st->lock);
    return s;
}

const hvt_comm_ops hvt_comm_nccl = {
    .name = "nccl",
    .can = HVT_COMM_CAPTURABLE | HVT_COMM_ASYNCHRONOUS,
    .open = comm_open_nccl,
    .close = comm_close_nccl,
    .alloc = comm_alloc_nccl,
    .release = comm_release_nccl,
    .slice = comm_slice_nccl,
    .post = comm_post_nccl,
    .run = comm_run_nccl,
    .fence = comm_fence_nccl,
};
