/*
 * NCCL on host memory, between processes of one host: the functions that cuda/comm_nccl.c calls.
 *
 * Ranks meet in shared memory with a seat for each. An operation is work in its stream, like a kernel of
 * NCCL. It proceeds in rounds: every rank puts a part of its data on its seat and reads the others'
 * (double_nccl_round.c). Until all have, the work answers "not yet", and other streams continue; after
 * ncclCommAbort it just ends.
 *
 * As in the original, communicators are nonblocking: the first operation of each kind connects the ranks, so
 * it is not yet in its stream when the call returns, and no other may follow before ncclCommGetAsyncError
 * reports that it is; 16-bit sums are rounded at every addition; a communicator does not end while a graph
 * holds its operations; ranks with the same GPU and the same host are refused, and so are invalid arguments,
 * with NCCL's statuses (test_mistakes_nccl.c). What NCCL leaves undefined is a fault: ranks whose operations
 * differ, memory that is not the device's, buffers that overlap other than in place, use after the end or
 * before ncclCommFinalize has ended, and memory that is freed while registered, or deregistered while in use.
 */
#define _GNU_SOURCE
#include "double_nccl.h"
#include "double_nccl_impl.h"

#include <assert.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

typedef struct registration {
    ncclComm_t comm;
    char *ptr;
    size_t bytes;
} registration;

static _Atomic int async_error, comms, registered;
static _Atomic bool stuck;
static int depth, ngroup;
static task *group[GROUP];
static registration *registrations[64];

void hvt_double_nccl_error(int error)
{
    async_error = error;
}

void hvt_double_nccl_stuck(bool is)
{
    stuck = is;
}

int hvt_double_nccl_comms(void)
{
    return comms;
}

int hvt_double_nccl_registered(void)
{
    return registered;
}

#define ENTER()                                                                                              \
    do {                                                                                                     \
        int e_ = hvt_double_enter(__func__);                                                                 \
        if (e_)                                                                                              \
            return (ncclResult_t)e_;                                                                         \
    } while (0)

static ncclResult_t fault(const char *text)
{
    hvt_double_fault("nccl: %s", text);
    return ncclInvalidUsage;
}

/* What NCCL itself looks at, and gives this status for. */
static ncclResult_t refuse(ncclResult_t r, const char *text)
{
    fprintf(stderr, "double of NCCL: %s\n", text);
    return r;
}

#define REQUIRE(cond, code, text)                                                                            \
    do {                                                                                                     \
        if (!(cond))                                                                                         \
            return refuse(nccl##code, text);                                                                 \
    } while (0)

/* May c be given work, or its end? As the state that ncclCommGetAsyncError tells. */
static ncclResult_t ready(const struct ncclComm *c)
{
    if (async_error)
        return refuse((ncclResult_t)async_error, "a communicator is used after its error");
    REQUIRE(!c->busy, InvalidArgument, "a communicator is used before its last call has ended");
    return ncclSuccess;
}

/* ---- life --------------------------------------------------------------------------------------- */

ncclResult_t ncclGetVersion(int *ret)
{
    REQUIRE(ret, InvalidArgument, "no place for the version");
    *ret = NCCL_VERSION_CODE;
    return ncclSuccess;
}

const char *ncclGetErrorString(ncclResult_t r)
{
    static const char *const names[] = {
        "no error",         "unhandled cuda error", "unhandled system error", "internal error",
        "invalid argument", "invalid usage",        "remote process exited",  "in progress"};

    return r < ncclNumResults ? names[r] : "unknown result code";
}

const char *ncclGetLastError(ncclComm_t c)
{
    (void)c;
    return "the double's own words";
}

/* A nameless file; the others reach it through the process that made it. */
ncclResult_t ncclGetUniqueId(ncclUniqueId *ret)
{
    int fd;

    ENTER();
    REQUIRE(ret, InvalidArgument, "no place for a unique id");
    fd = memfd_create("double-nccl", MFD_CLOEXEC);
    assert(fd >= 0 && ftruncate(fd, sizeof(board)) == 0);
    memset(ret, 0, sizeof *ret);
    snprintf(ret->internal, sizeof ret->internal, "/proc/%d/fd/%d", (int)getpid(), fd);
    return ncclSuccess;
}

#define TRY(call)                                                                                            \
    do {                                                                                                     \
        ncclResult_t r_ = (call);                                                                            \
        if (r_ != ncclSuccess)                                                                               \
            return r_;                                                                                       \
    } while (0)

static bool is_set(int value)
{
    return value != NCCL_CONFIG_UNDEF_INT;
}

/* A configuration begins as NCCL_CONFIG_INITIALIZER. */
static ncclResult_t check_config(const ncclConfig_t *c)
{
    const ncclConfig_t fresh = NCCL_CONFIG_INITIALIZER;

    if (!c)
        return ncclSuccess;
    REQUIRE(c->magic == fresh.magic, InvalidArgument, "a configuration that was not initialized");
    REQUIRE(!is_set(c->blocking) || c->blocking == 0 || c->blocking == 1, InvalidArgument,
            "blocking is neither 0 nor 1");
    REQUIRE((!is_set(c->minCTAs) || c->minCTAs > 0) && (!is_set(c->maxCTAs) || c->maxCTAs > 0) &&
                (!is_set(c->minCTAs) || !is_set(c->maxCTAs) || c->minCTAs <= c->maxCTAs),
            InvalidArgument, "minCTAs and maxCTAs are at least 1 and in order");
    REQUIRE(!is_set(c->cgaClusterSize) || (c->cgaClusterSize >= 0 && c->cgaClusterSize <= 8), InvalidArgument,
            "cgaClusterSize is 0 to 8");
    return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *ret, int size, ncclUniqueId id, int rank,
                                    ncclConfig_t *config)
{
    const char *host = getenv("NCCL_HOSTID");
    char bus[32];
    int index;
    seat *me;
    ncclComm_t c;

    ENTER();
    if (cudaGetDevice(&index) != cudaSuccess || cudaDeviceGetPCIBusId(bus, sizeof bus, index) != cudaSuccess)
        return ncclUnhandledCudaError;
    REQUIRE(ret, InvalidArgument, "no place for a communicator");
    REQUIRE(size > 0 && rank >= 0 && rank < size, InvalidArgument, "a rank is one of 0 to nranks - 1");
    TRY(check_config(config));
    if (!config || config->blocking != 0 || size > SEATS)
        return fault("a communicator that blocks, or has more ranks than seats");
    c = calloc(1, sizeof *c);
    assert(c);
    *c = (struct ncclComm){.rank = rank, .size = size, .gpu = index, .waits = 3, .refs = 1, .busy = true};
    c->fd = open(id.internal, O_RDWR | O_CLOEXEC);
    assert(c->fd >= 0);
    c->board = mmap(NULL, sizeof *c->board, PROT_READ | PROT_WRITE, MAP_SHARED, c->fd, 0);
    assert(c->board != MAP_FAILED);
    me = &c->board->seat[rank];
    snprintf(me->gpu, sizeof me->gpu, "%s %s", host ? host : "this host", bus);
    me->sits = true;
    comms++;
    *ret = c;
    return ncclInProgress;
}

static ncclResult_t join(ncclComm_t c)
{
    for (int r = 0; r < c->size; r++)
        if (!c->board->seat[r].sits)
            return ncclInProgress;
    for (int r = 0; r < c->size; r++)
        if (r != c->rank && !strcmp(c->board->seat[r].gpu, c->board->seat[c->rank].gpu))
            return fault("two ranks on one GPU of one host");
    c->joined = true;
    return ncclSuccess;
}

static void submit(task *t)
{
    hvt_double_launch_poll(t->stream, hvt__nccl_run, t, hvt__nccl_drop);
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t c, ncclResult_t *ret)
{
    ENTER();
    REQUIRE(c && ret, InvalidArgument, "no communicator, or no place for its state");
    if (c->closed)
        return fault("ncclCommGetAsyncError after the end");
    *ret = (ncclResult_t)async_error;
    if (async_error)
        return ncclSuccess;
    *ret = ncclInProgress;
    if (c->waits && --c->waits)
        return ncclSuccess;
    if (!c->joined) {
        *ret = join(c);
        c->busy = *ret == ncclInProgress;
        return ncclSuccess;
    }
    for (int i = 0; i < c->nlater; i++)
        submit(c->later[i]);
    c->nlater = 0;
    for (int r = 0; r < c->size && c->finalizing; r++)
        if (!c->board->seat[r].left)
            return ncclSuccess;
    *ret = ncclSuccess;
    c->busy = false;
    return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t c)
{
    ENTER();
    if (!c)
        return ncclSuccess;
    TRY(ready(c));
    REQUIRE(!c->finalizing, InvalidArgument, "a communicator is finalized once");
    c->busy = true;
    c->finalizing = true;
    c->board->seat[c->rank].left = true;
    c->waits = 2;
    return ncclInProgress;
}

/* Registrations of c, or of ptr with whatever communicator lives, are counted, and c's dropped on demand. */
static int find(ncclComm_t c, const void *ptr, bool forget)
{
    int found = 0;

    pthread_mutex_lock(&hvt__nccl_desk);
    for (int i = 0; i < registered; i++) {
        registration *r = registrations[i];

        if (c ? r->comm != c : r->ptr != ptr || r->comm->aborted)
            continue;
        found++;
        if (forget) {
            registrations[i--] = registrations[--registered];
            hvt__nccl_unref(r->comm);
            free(r);
        }
    }
    pthread_mutex_unlock(&hvt__nccl_desk);
    return found;
}

/* The end, of either kind; it does not come while a graph could launch an operation again. */
static ncclResult_t end(ncclComm_t c)
{
    int gpu;

    if (cudaGetDevice(&gpu) == cudaSuccess && gpu != c->gpu)
        fault("a communicator ends in a thread on another GPU than its own");
    while (c->captured || (c->aborted && stuck))
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    for (int i = 0; i < c->nlater; i++)
        hvt__nccl_drop(c->later[i]);
    c->nlater = 0;
    find(c, NULL, true);
    c->closed = true;
    c->board->seat[c->rank].left = true;
    comms--;
    hvt__nccl_unref(c);
    return ncclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t c)
{
    ENTER();
    if (!c)
        return ncclSuccess;
    if (!c->finalizing)
        return fault("ncclCommDestroy before ncclCommFinalize");
    if (c->busy)
        return fault("ncclCommDestroy before ncclCommFinalize has ended");
    if (find(c, NULL, false))
        fault("ncclCommDestroy while memory is registered");
    return end(c);
}

ncclResult_t ncclCommAbort(ncclComm_t c)
{
    ENTER();
    if (!c)
        return ncclSuccess;
    c->aborted = true;
    return end(c);
}

/* ---- memory ------------------------------------------------------------------------------------- */

ncclResult_t ncclMemAlloc(void **ret, size_t bytes)
{
    void *p;
    int index;

    ENTER();
    if (cudaGetDevice(&index) != cudaSuccess)
        return ncclUnhandledCudaError;
    p = hvt_double_block(bytes);
    if (!p)
        return ncclUnhandledCudaError;
    *ret = p;
    return ncclSuccess;
}

ncclResult_t ncclMemFree(void *ptr)
{
    ENTER();
    if (find(NULL, ptr, false))
        return fault("ncclMemFree of memory that is registered");
    if (hvt_double_count().queued)
        return fault("ncclMemFree while work is queued");
    return hvt_double_unblock(ptr) ? ncclSuccess : fault("ncclMemFree of what ncclMemAlloc did not give");
}

ncclResult_t ncclCommRegister(const ncclComm_t c, void *ptr, size_t bytes, void **ret)
{
    registration *r;

    ENTER();
    REQUIRE(c, InvalidArgument, "no communicator to register with");
    if (!hvt_double_need_device("ncclCommRegister", ptr, bytes))
        return ncclInvalidArgument;
    r = malloc(sizeof *r);
    assert(r && registered < 64);
    *r = (registration){c, ptr, bytes};
    c->refs++;
    pthread_mutex_lock(&hvt__nccl_desk);
    registrations[registered++] = r;
    pthread_mutex_unlock(&hvt__nccl_desk);
    *ret = r;
    return ncclSuccess;
}

static bool overlap(const char *a, size_t a_bytes, const char *b, size_t b_bytes)
{
    return a < b + b_bytes && b < a + a_bytes;
}

/* Has an operation, queued or in a graph, this registration's memory? */
static bool is_used(ncclComm_t c, const void *handle)
{
    const registration *r = handle;
    bool used = false, known = false;

    pthread_mutex_lock(&hvt__nccl_desk);
    for (int i = 0; i < registered; i++)
        known = known || registrations[i] == handle;
    for (const task *t = c->tasks; known && t; t = t->next)
        used = used || overlap(r->ptr, r->bytes, t->in, hvt__nccl_in_bytes(t)) ||
               overlap(r->ptr, r->bytes, t->out, hvt__nccl_out_bytes(t));
    pthread_mutex_unlock(&hvt__nccl_desk);
    return used && !c->aborted;
}

ncclResult_t ncclCommDeregister(const ncclComm_t c, void *handle)
{
    bool found = false;

    ENTER();
    REQUIRE(c, InvalidArgument, "no communicator to deregister with");
    if (is_used(c, handle))
        return fault("ncclCommDeregister of memory that an operation is still to use");
    if (c->closed || c->aborted)
        return fault("ncclCommDeregister after the end");
    pthread_mutex_lock(&hvt__nccl_desk);
    for (int i = 0; i < registered && !found; i++)
        if (registrations[i] == handle && registrations[i]->comm == c) {
            registrations[i] = registrations[--registered];
            found = true;
        }
    pthread_mutex_unlock(&hvt__nccl_desk);
    if (found) {
        free(handle);
        hvt__nccl_unref(c);
        return ncclSuccess;
    }
    return fault("ncclCommDeregister of what was not registered");
}

/* ---- operations --------------------------------------------------------------------------------- */

static ncclResult_t launch(task *t)
{
    ncclComm_t c = t->comm;

    if (c->connected[t->kind] && !c->nlater) {
        submit(t);
        return ncclSuccess;
    }
    c->connected[t->kind] = true;
    assert(c->nlater < GROUP);
    c->later[c->nlater++] = t;
    c->busy = true;
    c->waits = 2;
    return ncclInProgress;
}

static size_t size_of(ncclDataType_t t)
{
    return t == ncclUint8 ? 1 : t == ncclFloat16 || t == ncclBfloat16 ? 2 : t == ncclFloat32 ? 4 : 0;
}

/* In place is the same memory, or this rank's part of it; every other overlap is undefined. */
static bool in_place_or_apart(const task *t)
{
    const size_t part = t->count * t->bytes * (size_t)t->comm->rank;
    const char *in = t->in, *out = t->out;

    return !t->count || !overlap(in, hvt__nccl_in_bytes(t), out, hvt__nccl_out_bytes(t)) ||
           (t->kind == ALLGATHER        ? in == out + part
            : t->kind == REDUCE_SCATTER ? out == in + part
                                        : in == out);
}

/* The arguments, in the order in which NCCL looks at them. */
static ncclResult_t check(const task *t, ncclRedOp_t op)
{
    REQUIRE(t->comm, InvalidArgument, "no communicator");
    if (t->comm->closed || t->comm->aborted)
        return fault("an operation after the communicator's end");
    REQUIRE(t->root >= 0 && t->root < t->comm->size, InvalidArgument, "the root is no rank");
    REQUIRE((int)t->type >= 0 && t->type < ncclNumTypes, InvalidArgument, "no type of this number");
    REQUIRE((int)op >= 0 && op < ncclNumOps, InvalidArgument, "no operation of this number");
    TRY(ready(t->comm));
    REQUIRE(!t->comm->finalizing, InvalidUsage, "an operation after ncclCommFinalize");
    if (op != ncclSum)
        return fault("an operation other than a sum");
    return ncclSuccess;
}

static ncclResult_t ask(task want, ncclRedOp_t op)
{
    ncclComm_t c = want.comm;
    enum cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    task *t;

    TRY(check(&want, op));
    want.bytes = size_of(want.type);
    if (!want.bytes || (want.type == ncclUint8 && want.kind != BROADCAST))
        return fault("a type that this double does not know");
    if (!hvt_double_need_device(hvt__nccl_names[want.kind], want.in, hvt__nccl_in_bytes(&want)) ||
        !hvt_double_need_device(hvt__nccl_names[want.kind], want.out, hvt__nccl_out_bytes(&want)))
        return ncclInvalidArgument;
    if (!in_place_or_apart(&want))
        return fault("an operation whose buffers overlap, but not as one in place");
    if (cudaStreamIsCapturing(want.stream, &capture) != cudaSuccess)
        return ncclUnhandledCudaError;
    want.captured = capture != cudaStreamCaptureStatusNone;
    t = malloc(sizeof *t);
    assert(t);
    *t = want;
    c->captured += t->captured;
    c->refs++;
    pthread_mutex_lock(&hvt__nccl_desk);
    t->next = c->tasks;
    c->tasks = t;
    pthread_mutex_unlock(&hvt__nccl_desk);
    if (!depth)
        return launch(t);
    assert(ngroup < GROUP);
    group[ngroup++] = t;
    return ncclSuccess;
}

ncclResult_t ncclGroupStart(void); /* nccl.h's own declarations leave the parameters open */
ncclResult_t ncclGroupEnd(void);

ncclResult_t ncclGroupStart(void)
{
    ENTER();
    depth++;
    return ncclSuccess;
}

ncclResult_t ncclGroupEnd(void)
{
    ncclResult_t r = ncclSuccess;

    ENTER();
    REQUIRE(depth, InvalidUsage, "ncclGroupEnd outside of a group");
    if (--depth)
        return ncclSuccess;
    for (int i = 0; i < ngroup; i++)
        if (launch(group[i]) == ncclInProgress)
            r = ncclInProgress;
    ngroup = 0;
    return r;
}

ncclResult_t ncclAllReduce(const void *in, void *out, size_t n, ncclDataType_t t, ncclRedOp_t op,
                           ncclComm_t c, cudaStream_t s)
{
    ENTER();
    return ask((task){.comm = c, .kind = ALLREDUCE, .in = in, .out = out, .count = n, .type = t, .stream = s},
               op);
}

ncclResult_t ncclReduceScatter(const void *in, void *out, size_t n, ncclDataType_t t, ncclRedOp_t op,
                               ncclComm_t c, cudaStream_t s)
{
    ENTER();
    return ask(
        (task){.comm = c, .kind = REDUCE_SCATTER, .in = in, .out = out, .count = n, .type = t, .stream = s},
        op);
}

ncclResult_t ncclAllGather(const void *in, void *out, size_t n, ncclDataType_t t, ncclComm_t c,
                           cudaStream_t s)
{
    ENTER();
    return ask((task){.comm = c, .kind = ALLGATHER, .in = in, .out = out, .count = n, .type = t, .stream = s},
               ncclSum);
}

ncclResult_t ncclBroadcast(const void *in, void *out, size_t n, ncclDataType_t t, int root, ncclComm_t c,
                           cudaStream_t s)
{
    ENTER();
    return ask((task){.comm = c,
                      .kind = BROADCAST,
                      .in = in,
                      .out = out,
                      .count = n,
                      .type = t,
                      .root = root,
                      .stream = s},
               ncclSum);
}
