/*
 * What NCCL refuses, with a communicator of one rank: each mistake is made once.
 *
 * Sources: NCCL's documentation, "NCCL API" and "User Buffer Registration", by function or section; "itself"
 * is the answer of NCCL 2.28.9 and 2.30.7 where it is silent. Without a GPU little more than missing
 * communicators can be tested.
 */
#include "mistakes.h"

#include <cuda_runtime_api.h>
#include <nccl.h>

#ifdef HVT_REAL
#define CALLS(X)                                                                                             \
    X(ncclAllGather)                                                                                         \
    X(ncclAllReduce)                                                                                         \
    X(ncclBroadcast)                                                                                         \
    X(ncclCommAbort)                                                                                         \
    X(ncclCommDeregister)                                                                                    \
    X(ncclCommDestroy)                                                                                       \
    X(ncclCommFinalize)                                                                                      \
    X(ncclCommGetAsyncError)                                                                                 \
    X(ncclCommInitRankConfig)                                                                                \
    X(ncclCommRegister)                                                                                      \
    X(ncclGetUniqueId)                                                                                       \
    X(ncclGetVersion)                                                                                        \
    X(ncclGroupEnd)                                                                                          \
    X(ncclMemAlloc)                                                                                          \
    X(ncclMemFree)                                                                                           \
    X(ncclReduceScatter)
#define X(name) static __typeof__(name) *real_##name;
CALLS(X)
#undef X
#define ncclAllGather          real_ncclAllGather
#define ncclAllReduce          real_ncclAllReduce
#define ncclBroadcast          real_ncclBroadcast
#define ncclCommAbort          real_ncclCommAbort
#define ncclCommDeregister     real_ncclCommDeregister
#define ncclCommDestroy        real_ncclCommDestroy
#define ncclCommFinalize       real_ncclCommFinalize
#define ncclCommGetAsyncError  real_ncclCommGetAsyncError
#define ncclCommInitRankConfig real_ncclCommInitRankConfig
#define ncclCommRegister       real_ncclCommRegister
#define ncclGetUniqueId        real_ncclGetUniqueId
#define ncclGetVersion         real_ncclGetVersion
#define ncclGroupEnd           real_ncclGroupEnd
#define ncclMemAlloc           real_ncclMemAlloc
#define ncclMemFree            real_ncclMemFree
#define ncclReduceScatter      real_ncclReduceScatter
#else
#include "double_nccl.h"
#endif

#define BAD   ncclInvalidArgument
#define USAGE ncclInvalidUsage

#define MISTAKE(what, source, asked, want, call)                                                             \
    do {                                                                                                     \
        if (can_ask(asked))                                                                                  \
            refused(what, source, (int)(want), (int)(call));                                                 \
    } while (0)

static const char *const itself = "itself";

/* ---- without a communicator --------------------------------------------------------------------- */

TEST(no_communicator_is_refused)
{
    const char *const source = "Communicator Creation and Management Functions: comm";
    ncclResult_t state;
    void *p;
    float x[4] = {0};

    MISTAKE("a version without place", itself, ANYWHERE, BAD, ncclGetVersion(NULL));
    MISTAKE("a unique id without place", itself, ANYWHERE, BAD, ncclGetUniqueId(NULL));
    MISTAKE("the end of no group", "ncclGroupEnd()", ANYWHERE, USAGE, ncclGroupEnd());
    MISTAKE("a sum", source, ANYWHERE, BAD, ncclAllReduce(x, x, 4, ncclFloat32, ncclSum, NULL, NULL));
    MISTAKE("a scattered sum", source, ANYWHERE, BAD,
            ncclReduceScatter(x, x, 4, ncclFloat32, ncclSum, NULL, NULL));
    MISTAKE("a gathering", source, ANYWHERE, BAD, ncclAllGather(x, x, 4, ncclFloat32, NULL, NULL));
    MISTAKE("a broadcast", source, ANYWHERE, BAD, ncclBroadcast(x, x, 4, ncclFloat32, 0, NULL, NULL));
    MISTAKE("the state", source, ANYWHERE, BAD, ncclCommGetAsyncError(NULL, &state));
    MISTAKE("the state without place", source, ANYWHERE, BAD, ncclCommGetAsyncError(NULL, NULL));
    MISTAKE("a registration", source, ANYWHERE, BAD, ncclCommRegister(NULL, x, sizeof x, &p));
    MISTAKE("its end", source, ANYWHERE, BAD, ncclCommDeregister(NULL, NULL));
    /* these three are none */
    MISTAKE("nothing is finalized", itself, ANYWHERE, ncclSuccess, ncclCommFinalize(NULL));
    MISTAKE("nothing is destroyed", itself, ANYWHERE, ncclSuccess, ncclCommDestroy(NULL));
    MISTAKE("nothing is aborted", itself, ANYWHERE, ncclSuccess, ncclCommAbort(NULL));
}

TEST(no_gpu_is_refused)
{
    const char *const source = "ncclUnhandledCudaError: a call to a CUDA function failed";
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclUniqueId id;
    ncclComm_t c = NULL;
    void *p;

#ifdef HVT_REAL
    if (on_a_gpu)
        SKIP("there is one");
#else
    hvt_double_driverless(cudaErrorInsufficientDriver);
#endif
    CHECK(ncclGetUniqueId(&id) == ncclSuccess, "no unique id");
    refused("memory", source, ncclUnhandledCudaError, ncclMemAlloc(&p, 64));
    refused("a communicator", source, ncclUnhandledCudaError, ncclCommInitRankConfig(&c, 1, id, 0, &config));
    refused("a rank that is none, and no GPU", "itself", ncclUnhandledCudaError,
            ncclCommInitRankConfig(&c, 1, id, 7, &config));
#ifndef HVT_REAL
    hvt_double_reset();
#endif
}

/* ---- with one ----------------------------------------------------------------------------------- */

static ncclComm_t comm;
static cudaStream_t stream;
static float *memory; /* of the GPU */
enum { COUNT = 1024 };

static ncclResult_t settle(ncclComm_t c)
{
    ncclResult_t state = ncclInProgress;

    while (ncclCommGetAsyncError(c, &state) == ncclSuccess && state == ncclInProgress)
        ;
    return state;
}

static ncclResult_t open_one(int size, int rank, const ncclConfig_t *config)
{
    ncclConfig_t mine = *config;
    ncclUniqueId id;

    if (ncclGetUniqueId(&id) != ncclSuccess)
        return ncclSystemError;
    return ncclCommInitRankConfig(&comm, size, id, rank, &mine);
}

static ncclResult_t configured(int blocking, int min, int max, int cga, bool magic)
{
    ncclConfig_t c = NCCL_CONFIG_INITIALIZER;

    c.blocking = blocking;
    c.minCTAs = min;
    c.maxCTAs = max;
    c.cgaClusterSize = cga;
    c.magic ^= !magic;
    return open_one(1, 0, &c);
}

TEST(a_communicator_of_wrong_arguments_is_refused)
{
    const char *const rank = "ncclCommInitRank(): rank", *const config = "ncclConfig_t";
    const ncclConfig_t fresh = NCCL_CONFIG_INITIALIZER;
    const int unset = NCCL_CONFIG_UNDEF_INT;

    MISTAKE("rank 1 of 1", rank, ON_A_GPU, BAD, open_one(1, 1, &fresh));
    MISTAKE("rank -1", rank, ON_A_GPU, BAD, open_one(1, -1, &fresh));
    MISTAKE("no ranks", rank, ON_A_GPU, BAD, open_one(0, 0, &fresh));
    MISTAKE("a configuration of zeros", config, ON_A_GPU, BAD, configured(0, unset, unset, unset, false));
    MISTAKE("blocking 2", config, ON_A_GPU, BAD, configured(2, unset, unset, unset, true));
    MISTAKE("minCTAs 0", config, ON_A_GPU, BAD, configured(0, 0, unset, unset, true));
    MISTAKE("minCTAs 4 of at most 2", config, ON_A_GPU, BAD, configured(0, 4, 2, unset, true));
    MISTAKE("a cluster of 9", config, ON_A_GPU, BAD, configured(0, unset, unset, 9, true));
}

static bool begin(void)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;

    config.blocking = 0;
    comm = NULL;
    CHECK(open_one(1, 0, &config) <= ncclInProgress && settle(comm) == ncclSuccess, "no communicator");
    CHECK(!cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) &&
              ncclMemAlloc((void **)&memory, COUNT * sizeof *memory) == ncclSuccess,
          "no memory");
    return comm;
}

static void end(void)
{
    CHECK(!cudaStreamSynchronize(stream) && ncclCommFinalize(comm) <= ncclInProgress &&
              settle(comm) == ncclSuccess && ncclCommDestroy(comm) == ncclSuccess &&
              ncclMemFree(memory) == ncclSuccess && !cudaStreamDestroy(stream),
          "the end");
}

static ncclResult_t sum(ncclDataType_t type, ncclRedOp_t op)
{
    return ncclAllReduce(memory, memory, 4, type, op, comm, stream);
}

static void connect(void)
{
    CHECK(sum(ncclFloat32, ncclSum) <= ncclInProgress && settle(comm) == ncclSuccess, "a sum");
}

TEST(operations_of_wrong_arguments_are_refused)
{
    const char *const types = "Types: ncclDataType_t, ncclRedOp_t", *const root =
                                                                        "Collective Communication: root";

    if (!on_a_gpu)
        SKIP("no GPU");
    begin();
    connect();
    MISTAKE("the state without place", itself, ON_A_GPU, BAD, ncclCommGetAsyncError(comm, NULL));
    MISTAKE("a type that is none", types, ON_A_GPU, BAD, sum(ncclNumTypes, ncclSum));
    MISTAKE("an operation that is none", types, ON_A_GPU, BAD, sum(ncclFloat32, (ncclRedOp_t)ncclNumOps));
    MISTAKE("root 1 of 1", root, ON_A_GPU, BAD,
            ncclBroadcast(memory, memory, 4, ncclFloat32, 1, comm, stream));
    MISTAKE("root -1", root, ON_A_GPU, BAD, ncclBroadcast(memory, memory, 4, ncclFloat32, -1, comm, stream));
    end();
}

TEST(a_call_waits_for_the_one_before_it)
{
    if (!on_a_gpu)
        SKIP("no GPU");
    begin();
    CHECK(sum(ncclFloat32, ncclSum) <= ncclInProgress, "a sum");
#ifndef HVT_REAL /* whose connection may have ended */
    const char *const source = "Fault Tolerance, asynchronous errors: ncclInProgress";

    refused("a sum while one is in progress", source, BAD, sum(ncclFloat32, ncclSum));
    refused("the end while a sum is in progress", source, BAD, ncclCommFinalize(comm));
#endif
    CHECK(settle(comm) == ncclSuccess && !cudaStreamSynchronize(stream), "a sum");
    CHECK(ncclCommFinalize(comm) <= ncclInProgress, "the end");
    CHECK(settle(comm) == ncclSuccess, "the end");
    MISTAKE("finalized: twice", "ncclCommFinalize()", ON_A_GPU, BAD, ncclCommFinalize(comm));
    CHECK(ncclCommDestroy(comm) == ncclSuccess && ncclMemFree(memory) == ncclSuccess &&
              !cudaStreamDestroy(stream),
          "the end");
}

#ifndef HVT_REAL
/* ---- what NCCL leaves undefined ----------------------------------------------------------------- */

#define FAULT(what, source, call)                                                                            \
    do {                                                                                                     \
        (void)(call);                                                                                        \
        refused(what, source, 1, hvt_double_faults());                                                       \
        hvt_double_reset();                                                                                  \
    } while (0)

TEST(what_is_undefined_is_a_fault)
{
    const char *const in_place = "In-place Operations", *const registers = "User Buffer Registration";
    void *handle = NULL;
    float host[4] = {0};

    begin();
    connect();
    FAULT("host memory", "Collective Communication: device pointers",
          ncclAllReduce(host, host, 4, ncclFloat32, ncclSum, comm, stream));
    FAULT("a sum that overlaps its operands", in_place,
          ncclAllReduce(memory, memory + 2, 4, ncclFloat32, ncclSum, comm, stream));
    FAULT("a gathering that overlaps its operand", in_place,
          ncclAllGather(memory + 2, memory, 4, ncclFloat32, comm, stream));
    FAULT("a scattered sum that overlaps its operand", in_place,
          ncclReduceScatter(memory, memory + 2, 4, ncclFloat32, ncclSum, comm, stream));
    FAULT("a broadcast that overlaps its operand", in_place,
          ncclBroadcast(memory, memory + 2, 4, ncclFloat32, 0, comm, stream));
    FAULT("memory that ncclMemAlloc did not give", "ncclMemFree()", ncclMemFree(host));
    CHECK(ncclCommRegister(comm, memory, 64, &handle) == ncclSuccess && handle, "a registration");
    FAULT("registered memory that is freed", registers, ncclMemFree(memory));
    CHECK(!cudaStreamSynchronize(stream), "the first sum");
    CHECK(sum(ncclFloat32, ncclSum) == ncclSuccess, "a sum");
    FAULT("a registration that a sum is still to use", registers, ncclCommDeregister(comm, handle));
    CHECK(!cudaStreamSynchronize(stream), "the sum");
    CHECK(ncclCommDeregister(comm, handle) == ncclSuccess, "deregistration");
    FAULT("deregistered: twice", registers, ncclCommDeregister(comm, handle));
    CHECK(ncclCommFinalize(comm) == ncclInProgress, "the end");
    FAULT("destroyed before it is finalized", "ncclCommDestroy()", ncclCommDestroy(comm));
    CHECK(settle(comm) == ncclSuccess && ncclCommDestroy(comm) == ncclSuccess &&
              ncclMemFree(memory) == ncclSuccess && !cudaStreamDestroy(stream),
          "the end");
}

TEST(after_an_error_a_communicator_takes_nothing)
{
    begin();
    connect();
    hvt_double_nccl_error(ncclRemoteError);
    refused("a sum after an error", "Fault Tolerance, error recovery", ncclRemoteError,
            sum(ncclFloat32, ncclSum));
    refused("the end after an error", "Fault Tolerance, error recovery", ncclRemoteError,
            ncclCommFinalize(comm));
    CHECK(ncclCommAbort(comm) == ncclSuccess, "what remains");
    hvt_double_nccl_error(0);
    CHECK(!cudaStreamSynchronize(stream) && ncclMemFree(memory) == ncclSuccess && !cudaStreamDestroy(stream),
          "memory");
}
#endif

int main(int argc, char **argv)
{
#ifdef HVT_REAL
    void *library = open_library(argc, argv, HVT_LIBNCCL);
    int gpus = 0, version = 0;

    if (!library)
        return check_done();
#define X(name) *(void **)&real_##name = dlsym(library, #name);
    CALLS(X)
#undef X
    ncclGetVersion(&version);
    printf("NCCL %d\n", version);
    on_a_gpu = cudaGetDeviceCount(&gpus) == cudaSuccess && gpus;
#else
    (void)argc, (void)argv;
#endif
    RUN(no_communicator_is_refused);
    RUN(no_gpu_is_refused);
    if (on_a_gpu)
        RUN(a_communicator_of_wrong_arguments_is_refused);
    RUN(operations_of_wrong_arguments_are_refused);
    RUN(a_call_waits_for_the_one_before_it);
#ifndef HVT_REAL
    RUN(what_is_undefined_is_a_fault);
    RUN(after_an_error_a_communicator_takes_nothing);
#endif
    return check_done();
}
