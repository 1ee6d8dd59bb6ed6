/*
 * NCCL on host memory, between processes of one host: the functions that cuda/comm_nccl.c calls.
 *
 * Ranks meet in a piece of shared memory with a seat for each. An operation is work in its stream, as a
 * kernel of NCCL is: when the stream comes to it, it goes round by round; in a round every rank lays a part
 * of its data on its seat and reads the others'. Until all have, the answer is "not yet", and other streams
 * go on; after ncclCommAbort it just leaves.
 *
 * As in the original, communicators are nonblocking: the first operation of each kind connects the ranks, so
 * it is not yet in its stream when the call returns; 16-bit sums are rounded at every addition; a
 * communicator does not end while a graph holds its operations; ranks with the same GPU and the same host
 * are refused. Stricter: ranks whose operations differ, memory that is not the device's, use after the end,
 * and memory freed while it is registered are faults.
 */
#define _GNU_SOURCE
#include "double_nccl.h"
#include "double.h"
#include "device/half.h"

#include "../../cuda/vendor_names.h"

#include <assert.h>
#include <fcntl.h>
#include <nccl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { SEATS = 16, PART = 1 << 16, KINDS = 4, GROUP = 16 };

typedef struct seat {
    _Atomic uint64_t laid, read; /* rounds: data is there; the others' was taken */
    _Atomic bool sits, left;
    char gpu[160];  /* what tells GPUs of hosts apart */
    char asks[160]; /* the operation under way */
    char data[PART];
} seat;

typedef struct board {
    seat seat[SEATS];
} board;

typedef enum kind { ALLREDUCE, REDUCE_SCATTER, ALLGATHER, BROADCAST } kind;
static const char *const kind_names[] = {"ncclAllReduce", "ncclReduceScatter", "ncclAllGather",
                                         "ncclBroadcast"};

typedef struct task {
    ncclComm_t comm;
    kind kind;
    const char *in;
    char *out;
    size_t count; /* elements of `in` on the receiving side of a scatter, else as the call says */
    size_t bytes; /* of one */
    ncclDataType_t type;
    int root;
    cudaStream_t stream;
    bool captured;
    size_t done; /* bytes of the way */
    bool laid;   /* this round's part */
} task;

struct ncclComm {
    int rank, size, fd;
    board *board;
    int waits; /* polls until what goes on in the background has come */
    bool joined, finalizing, closed;
    _Atomic bool aborted;
    bool connected[KINDS];
    task *later[GROUP]; /* tasks that wait for the connection */
    int nlater;
    _Atomic int captured; /* tasks that graphs hold */
    _Atomic int refs;     /* the caller's and the tasks' */
    uint64_t round;
};

typedef struct registration {
    ncclComm_t comm;
    void *ptr;
} registration;

static _Atomic int async_error, comms, registered;
static _Atomic bool stuck;
static pthread_mutex_t desk =
    PTHREAD_MUTEX_INITIALIZER; /* for registrations: a helper may end a communicator */
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
        int e_ = hvt_double_enter(__func__ + sizeof "hvt__" - 1); /* the vendor's name */                    \
        if (e_)                                                                                              \
            return (ncclResult_t)e_;                                                                         \
    } while (0)

static ncclResult_t fault(const char *text)
{
    hvt_double_fault("nccl: %s", text);
    return ncclInvalidUsage;
}

/* ---- what the ranks do together ----------------------------------------------------------------- */

static float load(const char *p, ncclDataType_t t)
{
    uint16_t half;
    float f;

    if (t == ncclFloat32) {
        memcpy(&f, p, sizeof f);
        return f;
    }
    memcpy(&half, p, sizeof half);
    return t == ncclFloat16 ? hvt__from_f16(half) : hvt__from_bf16(half);
}

static void store(char *p, ncclDataType_t t, float f)
{
    uint16_t half = t == ncclFloat16 ? hvt__to_f16(f) : hvt__to_bf16(f);

    if (t == ncclFloat32)
        memcpy(p, &f, sizeof f);
    else
        memcpy(p, &half, sizeof half);
}

/* The sum over ranks of the bytes [at, at + n) of the round, rounded at every addition. */
static void sum(const task *t, size_t at, size_t n, char *out)
{
    const struct ncclComm *c = t->comm;

    for (size_t i = 0; i < n; i += t->bytes) {
        store(out + i, t->type, load(c->board->seat[0].data + at + i, t->type));
        for (int r = 1; r < c->size; r++)
            store(out + i, t->type, load(out + i, t->type) + load(c->board->seat[r].data + at + i, t->type));
    }
}

/* Bytes that a rank lays down in all rounds. */
static size_t way(const task *t)
{
    return t->count * t->bytes * (t->kind == REDUCE_SCATTER ? (size_t)t->comm->size : 1);
}

/* Take what this round brought: bytes [done, done + n) of the way. */
static void take(const task *t, size_t n)
{
    const struct ncclComm *c = t->comm;
    size_t mine = t->count * t->bytes, first = mine * (size_t)c->rank, end = first + mine;

    switch (t->kind) {
    case ALLREDUCE:
        sum(t, 0, n, t->out + t->done);
        break;
    case REDUCE_SCATTER:
        first = first > t->done ? first : t->done;
        end = end < t->done + n ? end : t->done + n;
        if (first < end)
            sum(t, first - t->done, end - first, t->out + first - mine * (size_t)c->rank);
        break;
    case ALLGATHER:
        for (int r = 0; r < c->size; r++)
            memcpy(t->out + mine * (size_t)r + t->done, c->board->seat[r].data, n);
        break;
    case BROADCAST:
        memcpy(t->out + t->done, c->board->seat[t->root].data, n);
        break;
    }
}

static void describe(const task *t, char *text, size_t room)
{
    snprintf(text, room, "%s of %zu of type %d, root %d", kind_names[t->kind], t->count, (int)t->type,
             t->root);
}

/* One round, or not yet. */
static bool play(task *t)
{
    struct ncclComm *c = t->comm;
    seat *me = &c->board->seat[c->rank];
    size_t left = way(t) - t->done, n = left < PART ? left : PART;

    if (!t->laid) {
        for (int r = 0; r < c->size; r++)
            if (c->board->seat[r].read < c->round)
                return false;
        describe(t, me->asks, sizeof me->asks);
        memcpy(me->data, t->in + t->done, n);
        me->laid = c->round + 1;
        t->laid = true;
    }
    for (int r = 0; r < c->size; r++)
        if (c->board->seat[r].laid <= c->round)
            return false;
    for (int r = 0; r < c->size; r++)
        if (strcmp(c->board->seat[r].asks, me->asks))
            hvt_double_fault("nccl: rank %d asks for %s, rank %d for %s", c->rank, me->asks, r,
                             c->board->seat[r].asks);
    take(t, n);
    me->read = ++c->round;
    t->done += n;
    t->laid = false;
    return true;
}

static bool run(void *ctx)
{
    task *t = ctx;

    if (t->comm->aborted)
        return true;
    while (t->done < way(t))
        if (!play(t))
            return false;
    t->done = 0; /* for the next launch of a graph */
    return true;
}

static void unref(ncclComm_t c)
{
    if (--c->refs)
        return;
    munmap(c->board, sizeof *c->board);
    close(c->fd);
    free(c);
}

static void drop(void *ctx)
{
    task *t = ctx;

    t->comm->captured -= t->captured;
    unref(t->comm);
    free(t);
}

/* ---- life --------------------------------------------------------------------------------------- */

ncclResult_t ncclGetVersion(int *ret)
{
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
    fd = memfd_create("double-nccl", MFD_CLOEXEC);
    assert(fd >= 0 && ftruncate(fd, sizeof(board)) == 0);
    memset(ret, 0, sizeof *ret);
    snprintf(ret->internal, sizeof ret->internal, "/proc/%d/fd/%d", (int)getpid(), fd);
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
    if (config->blocking != 0 || size > SEATS)
        return fault("a communicator that blocks, or has more ranks than seats");
    c = calloc(1, sizeof *c);
    assert(c);
    *c = (struct ncclComm){.rank = rank, .size = size, .waits = 3, .refs = 1};
    c->fd = open(id.internal, O_RDWR | O_CLOEXEC);
    assert(c->fd >= 0);
    c->board = mmap(NULL, sizeof *c->board, PROT_READ | PROT_WRITE, MAP_SHARED, c->fd, 0);
    assert(c->board != MAP_FAILED);
    if (cudaGetDevice(&index) != cudaSuccess || cudaDeviceGetPCIBusId(bus, sizeof bus, index) != cudaSuccess)
        return ncclUnhandledCudaError;
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
    hvt_double_launch_poll(t->stream, run, t, drop);
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t c, ncclResult_t *ret)
{
    ENTER();
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
        return ncclSuccess;
    }
    for (int i = 0; i < c->nlater; i++)
        submit(c->later[i]);
    c->nlater = 0;
    for (int r = 0; r < c->size && c->finalizing; r++)
        if (!c->board->seat[r].left)
            return ncclSuccess;
    *ret = ncclSuccess;
    return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t c)
{
    ENTER();
    c->finalizing = true;
    c->board->seat[c->rank].left = true;
    c->waits = 2;
    return ncclInProgress;
}

/* Registrations of c, or of ptr with whatever communicator lives, are counted, and c's dropped on demand. */
static int find(ncclComm_t c, const void *ptr, bool forget)
{
    int found = 0;

    pthread_mutex_lock(&desk);
    for (int i = 0; i < registered; i++) {
        registration *r = registrations[i];

        if (c ? r->comm != c : r->ptr != ptr || r->comm->aborted)
            continue;
        found++;
        if (forget) {
            registrations[i--] = registrations[--registered];
            unref(r->comm);
            free(r);
        }
    }
    pthread_mutex_unlock(&desk);
    return found;
}

/* The end, of either kind; it does not come while a graph could launch an operation again. */
static ncclResult_t end(ncclComm_t c)
{
    while (c->captured || (c->aborted && stuck))
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    for (int i = 0; i < c->nlater; i++)
        drop(c->later[i]);
    c->nlater = 0;
    find(c, NULL, true);
    c->closed = true;
    c->board->seat[c->rank].left = true;
    comms--;
    unref(c);
    return ncclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t c)
{
    ENTER();
    if (!c->finalizing)
        return fault("ncclCommDestroy before ncclCommFinalize");
    if (find(c, NULL, false))
        fault("ncclCommDestroy while memory is registered");
    return end(c);
}

ncclResult_t ncclCommAbort(ncclComm_t c)
{
    ENTER();
    c->aborted = true;
    return end(c);
}

/* ---- memory ------------------------------------------------------------------------------------- */

ncclResult_t ncclMemAlloc(void **ret, size_t bytes)
{
    void *p;

    ENTER();
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
    if (!hvt_double_need_device("ncclCommRegister", ptr, bytes))
        return ncclInvalidArgument;
    r = malloc(sizeof *r);
    assert(r && registered < 64);
    *r = (registration){c, ptr};
    c->refs++;
    pthread_mutex_lock(&desk);
    registrations[registered++] = r;
    pthread_mutex_unlock(&desk);
    *ret = r;
    return ncclSuccess;
}

ncclResult_t ncclCommDeregister(const ncclComm_t c, void *handle)
{
    bool found = false;

    ENTER();
    if (c->closed || c->aborted)
        return fault("ncclCommDeregister after the end");
    pthread_mutex_lock(&desk);
    for (int i = 0; i < registered && !found; i++)
        if (registrations[i] == handle && registrations[i]->comm == c) {
            registrations[i] = registrations[--registered];
            found = true;
        }
    pthread_mutex_unlock(&desk);
    if (found) {
        free(handle);
        unref(c);
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
    c->waits = 2;
    return ncclInProgress;
}

static size_t size_of(ncclDataType_t t)
{
    return t == ncclUint8 ? 1 : t == ncclFloat16 || t == ncclBfloat16 ? 2 : t == ncclFloat32 ? 4 : 0;
}

static ncclResult_t ask(task want)
{
    ncclComm_t c = want.comm;
    enum cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    size_t in, out;
    task *t;

    want.bytes = size_of(want.type);
    in = out = want.count * want.bytes;
    if (c->closed || c->aborted || !c->joined || c->finalizing)
        return fault("an operation outside the communicator's life");
    if (!want.bytes || (want.type == ncclUint8 && want.kind != BROADCAST))
        return fault("a type that this double does not know");
    if (want.kind == REDUCE_SCATTER)
        in *= (size_t)c->size;
    if (want.kind == ALLGATHER)
        out *= (size_t)c->size;
    if (!hvt_double_need_device(kind_names[want.kind], want.in, in) ||
        !hvt_double_need_device(kind_names[want.kind], want.out, out))
        return ncclInvalidArgument;
    if (cudaStreamIsCapturing(want.stream, &capture) != cudaSuccess)
        return ncclUnhandledCudaError;
    want.captured = capture != cudaStreamCaptureStatusNone;
    t = malloc(sizeof *t);
    assert(t);
    *t = want;
    c->captured += t->captured;
    c->refs++;
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
    if (op != ncclSum)
        return fault("an operation other than a sum");
    return ask(
        (task){.comm = c, .kind = ALLREDUCE, .in = in, .out = out, .count = n, .type = t, .stream = s});
}

ncclResult_t ncclReduceScatter(const void *in, void *out, size_t n, ncclDataType_t t, ncclRedOp_t op,
                               ncclComm_t c, cudaStream_t s)
{
    ENTER();
    if (op != ncclSum)
        return fault("an operation other than a sum");
    return ask(
        (task){.comm = c, .kind = REDUCE_SCATTER, .in = in, .out = out, .count = n, .type = t, .stream = s});
}

ncclResult_t ncclAllGather(const void *in, void *out, size_t n, ncclDataType_t t, ncclComm_t c,
                           cudaStream_t s)
{
    ENTER();
    return ask(
        (task){.comm = c, .kind = ALLGATHER, .in = in, .out = out, .count = n, .type = t, .stream = s});
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
                      .stream = s});
}
