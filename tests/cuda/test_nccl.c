/*
 * The comm over NCCL and the staged one, on 1 to 4 ranks, over doubles of NCCL and of the CUDA runtime:
 * order, tickets, wires, dependencies, and missing ranks. To the double every rank has its own GPU, unless a
 * test says otherwise.
 */
#include "logged.h"
#include "ranks.h"
#include "../../cuda/cuda_impl.h"
#include "double.h"
#include "double_nccl.h"
#include "config.h"

#include <math.h>
#include <nccl.h>
#include <sys/wait.h>
#include <unistd.h>

extern const hvt_device_ops hvt_device_cuda; /* the spy */

static const hvt_dtype dtypes[] = {HVT_F32, HVT_F16, HVT_BF16};
static hvt_device *gpu;

static void open_gpu(const hvt_device_opts *opts)
{
    log_keep(HVT_LOG_INFO);
    CHECK_OK(hvt_device_open("cuda", opts, &gpu));
}

static hvt_comm *begin(void)
{
    hvt_comm *c = NULL;

    hvt_double_reset();
    hvt_double_gpus(rank, 1);
    open_gpu(NULL);
    CHECK_OK(hvt_comm_open("nccl", world, gpu, &c));
    return c;
}

static void end_gpu(int faults)
{
    hvt_double_alive left;

    hvt_device_close(&gpu);
    left = hvt_double_count();
    CHECK(!left.streams && !left.events && !left.blocks && !left.host_blocks && !left.graphs && !left.execs &&
              !left.bytes && !left.queued,
          "%d streams, %d events, %d blocks, %d graphs, %d queued are left", left.streams, left.events,
          left.blocks, left.execs, left.queued);
    CHECK(hvt_double_faults() == faults, "%d faults", hvt_double_faults());
    CHECK(!hvt_double_nccl_comms() && !hvt_double_nccl_registered(), "%d communicators, %d registrations",
          hvt_double_nccl_comms(), hvt_double_nccl_registered());
    log_release();
    hvt_stall before = {.warn = 30, .abort = 300};
    hvt__stall = before;
}

static void end(hvt_comm *c)
{
    hvt_comm_close(&c);
    end_gpu(0);
}

/* ---- values whose sums are exact in every type, whatever the order ------------------------------- */

static float term(int r, size_t i)
{
    return (float)((int)((i + (size_t)r) % 7) - 2) * (float)(r + 1);
}

static float total(size_t i)
{
    float sum = 0;

    for (int r = 0; r < size; r++)
        sum += term(r, i);
    return sum;
}

static void put(void *to, size_t count, hvt_dtype t)
{
    float *f = calloc(count + 1, sizeof *f);
    void *wire = malloc((count + 1) * sizeof *f);

    for (size_t i = 0; i < count; i++)
        f[i] = term(rank, i);
    dev->ops->vector.cast(dev, count, 1, f, HVT_F32, wire, t);
    if (count)
        CHECK_OK(hvt_device_upload(gpu, to, wire, count * hvt_dtype_size(t)));
    free(f);
    free(wire);
}

/* Elements of [first, end) that are not their total. */
static size_t wrong(const void *at, size_t first, size_t end, hvt_dtype t)
{
    size_t n = end - first, bad = 0, bytes = hvt_dtype_size(t);
    float *f = malloc((n + 1) * sizeof *f);
    void *wire = malloc((n + 1) * sizeof *f);

    if (n)
        CHECK_OK(hvt_device_download(gpu, wire, (const char *)at + first * bytes, n * bytes));
    dev->ops->vector.cast(dev, n, 1, wire, t, f, HVT_F32);
    for (size_t i = 0; i < n; i++)
        bad += f[i] != total(first + i);
    free(f);
    free(wire);
    return bad;
}

static void every_operation(hvt_comm *c, char *buf)
{
    static const size_t counts[] = {0, 1, 15, 16, 17, 64, 1000, 40003};

    for (int t = 0; t < 3; t++)
        for (size_t i = 0; i < HVT_LEN(counts); i++) {
            size_t n = counts[i], bytes = hvt_dtype_size(dtypes[t]), first, end, at = 0;
            hvt_ticket ticket;

            put(buf, n, dtypes[t]);
            CHECK_OK(hvt_comm_allreduce(c, buf, n, dtypes[t], &ticket));
            CHECK_OK(hvt_comm_wait(c, ticket));
            CHECK(!wrong(buf, 0, n, dtypes[t]), "allreduce of %zu %s", n, hvt_dtype_name(dtypes[t]));

            put(buf, n, dtypes[t]);
            CHECK_OK(hvt_comm_reduce_scatter(c, buf, n, dtypes[t], &ticket));
            CHECK_OK(hvt_comm_wait(c, ticket));
            hvt_comm_slice(c, n, rank, &first, &end);
            CHECK(!wrong(buf, first, end, dtypes[t]), "reduce_scatter of %zu %s slice %zu-%zu", n,
                  hvt_dtype_name(dtypes[t]), first, end);
            CHECK_OK(hvt_device_sync(gpu));
            CHECK_OK(CUDA(gpu, cudaMemset(buf, 0x11, first * bytes))); /* must come from their owners */
            CHECK_OK(CUDA(gpu, cudaMemset(buf + end * bytes, 0x11, (n - end) * bytes)));
            CHECK_OK(hvt_comm_allgather(c, buf, n, dtypes[t], &ticket));
            CHECK_OK(hvt_comm_wait(c, ticket));
            CHECK(!wrong(buf, 0, n, dtypes[t]), "allgather of %zu %s", n, hvt_dtype_name(dtypes[t]));
            for (int r = 0; r < size; r++) {
                int next = 0;

                while (next < size - 1 &&
                       (hvt_comm_slice(c, n, next, &first, &end), first != at || end == at))
                    next++;
                hvt_comm_slice(c, n, next, &first, &end);
                at = first == at ? end : at;
            }
            CHECK(at == n, "slices cover %zu of %zu", at, n);
        }
}

static void every_broadcast(hvt_comm *c, char *buf)
{
    static const size_t sizes[] = {0, 1, 1000, 199999};
    char *host = malloc(sizes[3]);

    for (size_t i = 0; i < HVT_LEN(sizes); i++)
        for (int root = 0; root < size; root++) {
            size_t bad = 0;

            memset(host, rank == root ? root + 1 : 0x7f, sizes[i]);
            CHECK_OK(hvt_device_upload(gpu, buf, host, sizes[i]));
            CHECK_OK(hvt_comm_broadcast(c, buf, sizes[i], root));
            CHECK_OK(hvt_device_download(gpu, host, buf, sizes[i]));
            for (size_t k = 0; k < sizes[i]; k++)
                bad += host[k] != root + 1;
            CHECK(!bad, "%zu of %zu bytes from %d", bad, sizes[i], root);
        }
    free(host);
}

TEST(sums_slices_and_broadcasts_are_right)
{
    hvt_comm *c = begin();
    void *mine = NULL, *plain = NULL;

    for (uint64_t seed = 0; seed < 3; seed++) {
        hvt_double_seed(seed);
        CHECK_OK(hvt_comm_alloc(c, 4 * 50000, &mine));
        CHECK_OK(gpu->ops->memory.alloc(gpu, 4 * 50000, &plain));
        every_operation(c, mine);
        every_operation(c, plain);
        every_broadcast(c, mine);
        gpu->ops->memory.release(gpu, plain);
        hvt_comm_release(c, mine);
    }
    end(c);
}

TEST(all_ranks_hold_the_same_bits)
{
    enum { COUNT = 1000 };
    hvt_comm *c = begin();
    float *buf = NULL, host[COUNT];
    uint64_t hash, all[16];
    hvt_ticket ticket;

    CHECK_OK(hvt_comm_alloc(c, sizeof host, (void **)&buf));
    for (int t = 0; t < 3; t++) {
        for (int i = 0; i < COUNT; i++)
            host[i] = hvt__unit(hvt__draw(1, (uint64_t)rank, (uint64_t)i, 0)) - 0.5f;
        dev->ops->vector.cast(dev, COUNT, 1, host, HVT_F32, host, dtypes[t]);
        CHECK_OK(hvt_device_upload(gpu, buf, host, sizeof host));
        CHECK_OK(hvt_comm_allreduce(c, buf, COUNT, dtypes[t], &ticket));
        CHECK_OK(hvt_comm_wait(c, ticket));
        CHECK_OK(hvt_device_download(gpu, host, buf, sizeof host));
        hash = hvt__hash(HVT_HASH_INIT, host, COUNT * hvt_dtype_size(dtypes[t]));
        CHECK_OK(hvt_world_allgather(world, &hash, sizeof hash, all));
        for (int r = 0; r < size; r++)
            CHECK(all[r] == hash, "%s differs on rank %d", hvt_dtype_name(dtypes[t]), r);
    }
    hvt_comm_release(c, buf);
    end(c);
}

/* ---- order -------------------------------------------------------------------------------------- */

TEST(more_operations_than_the_guard_watches_keep_their_order)
{
    enum { COUNT = 100, DEEP = 700 };
    hvt_comm *c = begin();
    float *buf = NULL, host[COUNT];
    hvt_ticket t = 0;

    CHECK_OK(hvt_comm_alloc(c, sizeof host, (void **)&buf));
    for (int i = 0; i < COUNT; i++)
        host[i] = 1;
    CHECK_OK(hvt_device_upload(gpu, buf, host, sizeof host));
    for (int i = 0; i < DEEP; i++) { /* every other one is a broadcast, which keeps its ticket */
        CHECK_OK(i % 2 ? hvt_comm_broadcast(c, buf + COUNT / 2, sizeof *buf, 0)
                       : hvt_comm_allreduce(c, buf + i % 64, 1, HVT_F32, &t));
        CHECK(t == (hvt_ticket)(i / 2 * 2 + 1), "ticket %llu of operation %d", (unsigned long long)t, i);
    }
    CHECK_OK(hvt_comm_wait(c, t / 2));
    CHECK_OK(hvt_comm_wait(c, t));
    CHECK_OK(hvt_device_download(gpu, host, buf, sizeof host));
    for (int i = 0; i < COUNT; i++) {
        int times = i < 64 && i % 2 == 0 ? (DEEP - i + 63) / 64 : 0;

        CHECK(host[i] == (float)pow(size, times) || isinf(host[i]), "element %d is %g", i, (double)host[i]);
    }
    CHECK_FAILS(hvt_comm_wait(c, (hvt_ticket)DEEP + 1), E_ARG, "never issued");
    hvt_comm_release(c, buf);
    end(c);
}

static void two(void *ctx) /* ctx[0] = 2 */
{
    *(float *)ctx = 2;
}

static void keep(void *ctx) /* ctx[1] = ctx[0] */
{
    ((float *)ctx)[1] = *(float *)ctx;
}

/* What the device is given before an operation comes before it, what comes after wait() after it; and nothing
 * waits for it otherwise, neither the device nor the host. */
TEST(the_device_waits_and_the_host_does_not)
{
    hvt_comm *c = begin();
    float *buf = NULL, host[2];
    bool early = false, ahead = false;
    hvt_ticket t;

    CHECK_OK(hvt_comm_alloc(c, sizeof host, (void **)&buf));
    CHECK_OK(hvt_comm_allreduce(c, buf, 1, HVT_F32, &t)); /* connects */
    CHECK_OK(hvt_comm_wait(c, t));
    for (uint64_t seed = 0; seed < 60; seed++) {
        bool waits = seed % 2;

        CHECK_OK(hvt_device_sync(gpu));
        hvt_double_seed(seed / 2);
        hvt_double_launch(cuda_of(gpu)->stream, two, buf, NULL);
        CHECK_OK(hvt_comm_allreduce(c, buf, 1, HVT_F32, &t));
        if (waits)
            CHECK_OK(hvt_comm_wait(c, t));
        hvt_double_launch(cuda_of(gpu)->stream, keep, buf, NULL);
        ahead = ahead || hvt_double_count().queued > 2; /* not always: the guard's thread looks at streams */
        CHECK_OK(hvt_device_sync(gpu));
        CHECK_OK(hvt_comm_wait(c, t));
        CHECK_OK(hvt_device_download(gpu, host, buf, sizeof host));
        CHECK(host[0] == 2 * (float)size, "seed %d: the sum is %g", (int)seed, (double)host[0]);
        CHECK(!waits || host[1] == host[0], "seed %d: %g came after a wait", (int)seed, (double)host[1]);
        early = early || (!waits && host[1] == 2);
    }
    CHECK(ahead, "the host waited");
    CHECK(early || size == 1, "without a wait the sum was seen all the same: this test sees nothing");
    hvt_comm_release(c, buf);
    end(c);
}

/* ---- memory ------------------------------------------------------------------------------------- */

TEST(memory_is_zeroed_registered_accounted_and_given_back)
{
    hvt_comm *c = begin();
    char *a = NULL, *b = NULL, host[1000];
    hvt_device_info info;

    CHECK_OK(hvt_comm_alloc(c, sizeof host, (void **)&a));
    CHECK_OK(hvt_comm_alloc(c, 300, (void **)&b));
    CHECK((uintptr_t)a % 64 == 0 && (uintptr_t)b % 64 == 0, "%p and %p", (void *)a, (void *)b);
    CHECK_OK(hvt_device_download(gpu, host, a, sizeof host));
    for (size_t i = 0; i < sizeof host; i++)
        if (host[i]) {
            CHECK(false, "byte %zu is %d", i, host[i]);
            break;
        }
    CHECK(hvt_double_nccl_registered() == 2, "%d registered", hvt_double_nccl_registered());
    hvt_device_describe(gpu, &info);
    CHECK(info.bytes == 1300, "%lld bytes", (long long)info.bytes);
    hvt_comm_release(c, a);
    hvt_device_describe(gpu, &info);
    CHECK(info.bytes == 300 && hvt_double_nccl_registered() == 1, "%lld bytes", (long long)info.bytes);
    hvt_comm_release(c, NULL);
    hvt_comm_close(&c);
    CHECK(c, "a comm was closed of which a block is held");
    hvt_comm_release(c, b);
    hvt_comm_close(&c);
    hvt_device_describe(gpu, &info);
    CHECK(info.bytes == 0, "%lld bytes", (long long)info.bytes);
    end_gpu(0);
}

TEST(host_memory_is_refused_by_name_before_anything_is_launched)
{
    hvt_comm *c = begin();
    float host[4], *pinned = NULL;
    hvt_ticket t;
    int before;

    CHECK_OK(gpu->ops->memory.alloc_host(gpu, sizeof host, (void **)&pinned));
    before = hvt_double_calls("ncclAllReduce") + hvt_double_calls("cudaEventRecord");
    CHECK_FAILS(hvt_comm_allreduce(c, host, 4, HVT_F32, &t), E_ARG, "allreduce got 16 bytes of host memory");
    CHECK_FAILS(hvt_comm_allgather(c, pinned, 4, HVT_F16, &t), E_ARG, "allgather got 8 bytes of host memory");
    CHECK_FAILS(hvt_comm_broadcast(c, host, 4, 0), E_ARG, "broadcast got 4 bytes of host memory");
    CHECK(hvt_double_calls("ncclAllReduce") + hvt_double_calls("cudaEventRecord") == before, "launched");
    gpu->ops->memory.release_host(gpu, pinned);
    end(c);
}

/* ---- recording ---------------------------------------------------------------------------------- */

TEST(a_captured_exchange_runs_again_and_the_guard_leaves_it_alone)
{
    hvt_comm *c = begin();
    float *buf = NULL, host[2], want = 1;
    hvt_op *op = NULL;
    hvt_ticket t, old;

    CHECK_OK(hvt_comm_alloc(c, sizeof host, (void **)&buf));
    CHECK_OK(hvt_comm_allreduce(c, buf, 1, HVT_F32, &t));
    CHECK_OK(hvt_comm_wait(c, t));
    CHECK_OK(hvt_comm_allreduce(c, buf, 1, HVT_F32, &old));
    CHECK_OK(gpu->ops->queue.capture_begin(gpu));
    CHECK_FAILS(hvt_comm_allreduce(c, buf, 1, HVT_F32, &t), E_ARG, "ticket 2 from before it was not waited");
    CHECK_OK(gpu->ops->queue.capture_end(gpu, &op));
    hvt__op_free(op);
    CHECK_OK(hvt_comm_wait(c, old));
    CHECK_OK(gpu->ops->queue.capture_begin(gpu));
    for (int i = 0; i < 2; i++) {
        CHECK_OK(hvt_comm_allreduce(c, buf, 1, HVT_F32, &t));
        CHECK_OK(hvt_comm_wait(c, t));
        hvt_double_launch(cuda_of(gpu)->stream, keep, buf, NULL);
    }
    usleep(250000); /* the guard looks meanwhile */
    CHECK_OK(gpu->ops->queue.capture_end(gpu, &op));
    for (int seed = 0; seed < 10; seed++) {
        hvt_double_seed((uint64_t)seed);
        host[0] = 1;
        CHECK_OK(hvt_device_upload(gpu, buf, host, sizeof host));
        want = powf((float)size, 4);
        for (int i = 0; i < 2; i++)
            CHECK_OK(op->dev->ops->queue.graph_launch(op));
        CHECK_OK(hvt_comm_allreduce(c, buf, 1, HVT_F32, &t)); /* and one that is not captured, after it */
        CHECK_OK(hvt_comm_wait(c, t));
        CHECK_OK(hvt_device_download(gpu, host, buf, sizeof host));
        CHECK(host[0] == want * (float)size && host[1] == want, "%g and %g, not %g", (double)host[0],
              (double)host[1], (double)want);
    }
    hvt__op_free(op);
    hvt_comm_release(c, buf);
    end(c);
}

TEST(a_captured_graph_that_outlives_its_comm_costs_time_and_a_line)
{
    hvt_comm *c;
    float *buf = NULL;
    hvt_op *op = NULL;
    hvt_ticket t;

    hvt__stall.abort = 1;
    c = begin();
    CHECK_OK(gpu->ops->memory.alloc(gpu, 64, (void **)&buf));
    CHECK_OK(hvt_comm_allreduce(c, buf, 1, HVT_F32, &t));
    CHECK_OK(hvt_comm_wait(c, t));
    CHECK_OK(gpu->ops->queue.capture_begin(gpu));
    CHECK_OK(hvt_comm_allreduce(c, buf, 1, HVT_F32, &t));
    CHECK_OK(hvt_comm_wait(c, t));
    CHECK_OK(gpu->ops->queue.capture_end(gpu, &op));
    hvt_comm_close(&c);
    CHECK(strstr(logged, "a captured graph may still contain its operations"), "said: %s", logged);
    hvt__op_free(op);
    gpu->ops->memory.release(gpu, buf);
    for (int i = 0; i < 100 && hvt_double_nccl_comms(); i++)
        usleep(10000); /* now it can end */
    end_gpu(0);
}

/* Its helper threads begin on GPU 0. */
TEST(a_comm_ends_on_its_own_gpu)
{
    hvt_comm *c = NULL;

    for (int aborted = 0; aborted < 2; aborted++) {
        hvt_double_reset();
        hvt_double_gpus(0, size + 1);
        open_gpu(&(hvt_device_opts){.index = rank + 1});
        CHECK_OK(hvt_comm_open("nccl", world, gpu, &c));
        if (aborted) /* the guard meets it, or the close */
            hvt_double_nccl_error(ncclRemoteError);
        hvt_comm_close(&c);
        hvt_double_nccl_error(0);
        end_gpu(0);
    }
}

/* cudaEventQuery() leaves an error where an operation has not ended; the next launch must not report it. */
TEST(waiting_for_operations_leaves_no_error)
{
    hvt_comm *c = begin();
    void *buf = NULL;
    hvt_ticket t;

    CHECK_OK(hvt_comm_alloc(c, 4 * 100, &buf));
    CHECK_OK(hvt_comm_allreduce(c, buf, 100, HVT_F32, &t));
    CHECK_OK(hvt_comm_wait(c, t));
    CHECK(cudaGetLastError() == cudaSuccess, "an error before");
    hvt_comm_release(c, buf); /* drains */
    CHECK(cudaPeekAtLastError() == cudaSuccess, "%s", cudaGetErrorName(cudaPeekAtLastError()));
    end(c);
}

/* ---- who shares a GPU ---------------------------------------------------------------------------- */

static void forget_environment(void)
{
    static const char *const names[] = {
        "NCCL_HOSTID",      "NCCL_ALGO",          "NCCL_PROTO",
        "NCCL_NET",         "NCCL_RAS_ENABLE",    "NCCL_MNNVL_ENABLE",
        "NCCL_NVLS_ENABLE", "NCCL_SOCKET_IFNAME", "NCCL_LAUNCH_ORDER_IMPLICIT"};

    for (size_t i = 0; i < HVT_LEN(names); i++)
        unsetenv(names[i]);
}

TEST(ranks_with_one_gpu_are_refused_unless_they_share)
{
    hvt_comm *c = NULL;
    void *buf = NULL;

    if (size == 1)
        SKIP("one rank has a GPU of its own");
    forget_environment();
    hvt_double_reset(); /* all see the same one */
    open_gpu(NULL);
    CHECK_FAILS(hvt_comm_open("nccl", world, gpu, &c), E_UNSUPPORTED, "ranks 0 and 1 of host ");
    CHECK(strstr(hvt_last_error(), "Double 0 (GPU-00)") && hvt_last_error_is_agreed() && !c, "%s",
          hvt_last_error());
    CHECK(!hvt_double_calls("ncclCommInitRankConfig"), "NCCL was asked");
    end_gpu(0);

    open_gpu(&(hvt_device_opts){.share = rank > 0}); /* all of them must agree */
    CHECK_FAILS(hvt_comm_open("nccl", world, gpu, &c), E_UNSUPPORTED, "--device cuda:N");
    end_gpu(0);

    open_gpu(&(hvt_device_opts){.share = true});
    CHECK_OK(hvt_comm_open("nccl", world, gpu, &c));
    CHECK(getenv("NCCL_HOSTID") && !strcmp(getenv("NCCL_SOCKET_IFNAME"), "lo"), "environment");
    CHECK(!!strstr(logged, "ranks share a GPU") == (rank == 0), "said: %s", logged);
    CHECK_OK(hvt_comm_alloc(c, 4 * 50000, &buf));
    every_operation(c, buf);
    hvt_comm_release(c, buf);
    end(c);
    forget_environment();
}

TEST(a_deterministic_device_pins_algorithm_and_protocol)
{
    hvt_comm *c = NULL;

    for (int fixed = 0; fixed < 2; fixed++) {
        forget_environment();
        hvt_double_reset();
        hvt_double_gpus(rank, 1);
        open_gpu(&(hvt_device_opts){.deterministic = fixed});
        CHECK_OK(hvt_comm_open("nccl", world, gpu, &c));
        CHECK(!!getenv("NCCL_ALGO") == fixed && !!getenv("NCCL_PROTO") == fixed && !getenv("NCCL_HOSTID"),
              "deterministic %d", fixed);
        end(c);
        c = NULL;
    }
    forget_environment();
}

/* A second one has operations of its own in flight, beside a sum that nobody has waited for; and NCCL is told
 * to run those of both in the order in which they are given. */
TEST(two_comms_go_side_by_side)
{
    enum { COUNT = 50000 };
    hvt_comm *sums, *parts = NULL;
    void *sum = NULL, *part = NULL;
    hvt_ticket whole, t;

    forget_environment();
    sums = begin();
    CHECK(getenv("NCCL_LAUNCH_ORDER_IMPLICIT"), "NCCL reads it in the first comm's first operation");
    CHECK_OK(hvt_comm_open("nccl", world, gpu, &parts));
    CHECK_OK(hvt_comm_alloc(sums, COUNT * sizeof(float), &sum));
    CHECK_OK(hvt_comm_alloc(parts, COUNT * sizeof(float), &part));
    for (int k = 0; k < 3; k++) {
        put(sum, COUNT, HVT_F32);
        CHECK_OK(hvt_comm_allreduce(sums, sum, COUNT, HVT_F32, &whole));
        every_operation(parts, part);
        CHECK_OK(hvt_comm_allgather(parts, part, 64, HVT_F32, &t));
        CHECK_OK(hvt_comm_wait(sums, whole));
        CHECK(!wrong(sum, 0, COUNT, HVT_F32), "a sum beside another comm's operations");
        CHECK_OK(hvt_comm_wait(parts, t));
    }
    hvt_comm_release(parts, part);
    hvt_comm_close(&parts);
    hvt_comm_release(sums, sum);
    end(sums);
    forget_environment();
}

/* ---- a rank that does not come -------------------------------------------------------------------- */

TEST(an_operation_that_takes_too_long_is_given_up_and_named)
{
    hvt_comm *c;
    float *buf = NULL;
    hvt_ticket t;
    double start;

    if (size == 1)
        SKIP("nobody else is there to be waited for");
    hvt__stall = (hvt_stall){.warn = 0.3, .abort = 1};
    c = begin();
    CHECK_OK(hvt_comm_alloc(c, 4 * 100, (void **)&buf));
    CHECK_OK(hvt_comm_allreduce(c, buf, 100, HVT_F32, &t));
    CHECK_OK(hvt_comm_wait(c, t));
    CHECK_OK(hvt_device_sync(gpu));
    start = hvt__now();
    if (rank < size - 1) {
        CHECK_OK(hvt_comm_allreduce(c, buf, 77, HVT_F16, &t));
        CHECK_OK(hvt_comm_wait(c, t));
        CHECK_FAILS(hvt_device_sync(gpu), E_COMM, "(ticket 2)"); /* when the comm is aborted; and no data */
        CHECK(hvt__now() - start > 0.9 && hvt__now() - start < 20, "after %.1f s", hvt__now() - start);
        CHECK(strstr(logged, "allreduce of 77 f16 (ticket 2), begun ") &&
                  strstr(logged, "a rank does not take"),
              "said: %s", logged);
        CHECK(strstr(logged, "has not ended\n"), "no warning before: %s", logged);
        CHECK_FAILS(hvt_comm_wait(c, t), E_COMM, "allreduce of 77 f16 (ticket 2)");
        CHECK_FAILS(hvt_comm_allreduce(c, buf, 1, HVT_F32, &t), E_COMM, "(ticket 2)");
    }
    CHECK_OK(hvt_world_barrier(world));
    hvt_comm_release(c, buf);
    end(c);
}

TEST(a_captured_step_that_a_rank_does_not_launch_is_given_up)
{
    hvt_comm *c;
    float *buf = NULL;
    hvt_op *op = NULL;
    hvt_ticket t;
    double start;

    if (size == 1)
        SKIP("nobody else is there to be waited for");
    hvt__stall.abort = 1;
    c = begin();
    CHECK_OK(hvt_comm_alloc(c, 4 * 100, (void **)&buf));
    CHECK_OK(hvt_comm_allreduce(c, buf, 100, HVT_F32, &t));
    CHECK_OK(hvt_comm_wait(c, t));
    CHECK_OK(gpu->ops->queue.capture_begin(gpu));
    CHECK_OK(hvt_comm_allreduce(c, buf, 100, HVT_F32, &t));
    CHECK_OK(hvt_comm_wait(c, t));
    CHECK_OK(gpu->ops->queue.capture_end(gpu, &op));
    CHECK_OK(op->dev->ops->queue.graph_launch(op));
    CHECK_OK(hvt_device_sync(gpu));
    start = hvt__now();
    if (rank < size - 1) {
        CHECK_OK(op->dev->ops->queue.graph_launch(op));
        CHECK_FAILS(hvt_device_sync(gpu), E_COMM, "a rank did not launch its captured step");
        CHECK(hvt__now() - start > 0.9 && hvt__now() - start < 20, "after %.1f s", hvt__now() - start);
        CHECK_FAILS(hvt_comm_allreduce(c, buf, 1, HVT_F32, &t), E_COMM, "captured step");
    }
    CHECK_OK(hvt_world_barrier(world));
    hvt__op_free(op);
    hvt_comm_release(c, buf);
    end(c);
}

TEST(a_rank_that_comes_late_is_waited_for)
{
    hvt_comm *c;
    float *buf = NULL;
    hvt_ticket t;

    if (size == 1)
        SKIP("nobody else is there to be waited for");
    hvt__stall = (hvt_stall){.warn = 0.3, .abort = 60};
    c = begin();
    CHECK_OK(hvt_comm_alloc(c, 4 * 100, (void **)&buf));
    if (rank == size - 1)
        usleep(900000);
    put(buf, 100, HVT_F32);
    CHECK_OK(hvt_comm_allreduce(c, buf, 100, HVT_F32, &t));
    CHECK_OK(hvt_comm_wait(c, t));
    CHECK(!wrong(buf, 0, 100, HVT_F32), "wrong sum");
    CHECK(!!strstr(logged, "allreduce of 100 f32 (ticket 1), begun ") == (rank < size - 1), "said: %s",
          logged);
    hvt_comm_release(c, buf);
    end(c);
}

TEST(a_rank_that_cannot_join_is_named_by_all)
{
    hvt_comm *c = NULL;
    double start = hvt__now();
    char name[32];

    hvt_double_reset();
    hvt_double_gpus(rank, 1);
    open_gpu(NULL);
    hvt__stall.abort = 1;
    snprintf(name, sizeof name, "rank %d (", size - 1);
    if (rank == size - 1)
        hvt_double_fail("ncclCommInitRankConfig", 1, ncclSystemError);
    CHECK_FAILS(hvt_comm_open("nccl", world, gpu, &c), E_COMM, "unhandled system error");
    CHECK(strstr(hvt_last_error(), name) && !c, "%s", hvt_last_error());
    CHECK(hvt__now() - start < 20, "after %.1f s", hvt__now() - start);
    end_gpu(0);
}

/* Whoever meets it first: the guard's thread, which logs it, or the next operation, which returns it. */
static void an_error_comes(bool to_the_guard)
{
    hvt_comm *c = begin();
    hvt_ticket t;
    float *buf = NULL;
    double start = hvt__now();

    CHECK_OK(hvt_comm_alloc(c, 64, (void **)&buf));
    CHECK_OK(hvt_comm_allreduce(c, buf, 1, HVT_F32, &t)); /* connects; later ones ask for nothing */
    hvt_double_nccl_error(ncclRemoteError);
    while (to_the_guard && !strstr(logged, "remote process exited") && hvt__now() - start < 20)
        usleep(10000);
    CHECK(!to_the_guard || strstr(logged, "remote process exited"), "said: %s", logged);
    CHECK_FAILS(hvt_comm_allreduce(c, buf, 1, HVT_F32, &t), E_COMM, "remote process exited");
    CHECK_FAILS(hvt_device_sync(gpu), E_COMM, "remote process exited");
    hvt_comm_release(c, buf);
    hvt_comm_close(&c);
    hvt_double_nccl_error(0);
    end_gpu(0);
}

TEST(an_error_of_the_communicator_ends_it)
{
    an_error_comes(true);
    an_error_comes(false);
}

static bool never(void *ctx)
{
    (void)ctx;
    return false;
}

TEST(an_abort_that_hangs_ends_the_process)
{
    int status = -1;
    pid_t child;

    fflush(NULL);
    child = fork();
    if (child == 0) {
        hvt__stall.abort = 1;
        begin();
        hvt_double_nccl_stuck(true);
        hvt_double_nccl_error(ncclRemoteError);
        hvt_double_launch_poll(cuda_of(gpu)->stream, never, NULL, NULL);
        hvt_device_sync(gpu);
        _exit(0);
    }
    waitpid(child, &status, 0);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == EXIT_FAILURE, "status %x", (unsigned)status);
}

/* Each call of open and alloc fails once, on one rank: all get an error, none waits, nothing is left. */
TEST(whatever_fails_on_one_rank_fails_on_all)
{
    static const struct {
        const char *call;
        int kth, error;
    } cases[] = {{"cudaStreamCreateWithPriority", 1, cudaErrorMemoryAllocation},
                 {"cudaEventCreateWithFlags", 1, cudaErrorMemoryAllocation},
                 {"cudaEventCreateWithFlags", 100, cudaErrorMemoryAllocation},
                 {"ncclGetUniqueId", 1, ncclSystemError},
                 {"ncclMemAlloc", 1, ncclUnhandledCudaError},
                 {"ncclCommRegister", 1, ncclUnhandledCudaError}};

    for (size_t i = 0; i < HVT_LEN(cases); i++) {
        bool mine = rank == (i == 3 ? 0 : size - 1);
        hvt_comm *c = NULL;
        void *p = NULL;
        hvt_status s;

        hvt_double_reset();
        hvt_double_gpus(rank, 1);
        open_gpu(NULL);
        hvt__stall.abort = 1;
        if (mine)
            hvt_double_fail(cases[i].call, cases[i].kth, cases[i].error);
        s = hvt_comm_open("nccl", world, gpu, &c);
        if (s == HVT_OK)
            s = hvt_comm_alloc(c, 100, &p);
        CHECK(s != HVT_OK && hvt_last_error_is_agreed() && !p, "%s failed: %s %s", cases[i].call,
              hvt_status_name(s), hvt_last_error());
        hvt_comm_close(&c);
        end_gpu(0);
    }
}

/* ---- the table ----------------------------------------------------------------------------------- */

TEST(each_device_has_its_comms)
{
    hvt_comm *c = NULL;

    hvt_double_reset();
    hvt_double_gpus(rank, 1);
    open_gpu(NULL);
    CHECK_FAILS(hvt_comm_open("nccl", world, dev, &c), E_UNSUPPORTED, "this device is ref");
    CHECK_FAILS(hvt_comm_open("shm", world, gpu, &c), E_UNSUPPORTED, "comm shm is for host memory");
    CHECK_OK(hvt_comm_open("auto", world, gpu, &c));
    CHECK(!strcmp(hvt_comm_name(c), size == 1 ? "self" : "nccl"), "%s", hvt_comm_name(c));
    end(c);
}

#if HVT_HAVE_MPI
TEST(staged_sums_are_those_of_the_tree)
{
    enum { COUNT = (1 << 20) + 77 }; /* more than one piece */
    hvt_comm *c = NULL, *host = NULL;
    float *mine = malloc(COUNT * sizeof *mine), *got = malloc(COUNT * sizeof *got);
    hvt_ticket t;
    void *buf = NULL;

    hvt_double_reset();
    hvt_double_gpus(rank, 1);
    open_gpu(NULL);
    CHECK_OK(hvt_comm_open("mpi", world, gpu, &c));
    CHECK_OK(hvt_comm_open("mpi", world, dev, &host));
    CHECK(!strcmp(hvt_comm_name(c), "mpi"), "%s", hvt_comm_name(c));
    CHECK_OK(hvt_comm_alloc(c, COUNT * sizeof *mine, &buf));
    CHECK(hvt_double_is_device(buf, COUNT * sizeof *mine), "not the device's memory");
    for (int k = 0; k < 3; k++) {
        size_t bytes = COUNT * hvt_dtype_size(dtypes[k]);

        for (int i = 0; i < COUNT; i++)
            mine[i] = hvt__unit(hvt__draw(2, (uint64_t)rank, (uint64_t)i, 0)) - 0.5f;
        dev->ops->vector.cast(dev, COUNT, 1, mine, HVT_F32, mine, dtypes[k]);
        CHECK_OK(hvt_device_upload(gpu, buf, mine, bytes));
        CHECK_OK(hvt_comm_allreduce(c, buf, COUNT, dtypes[k], &t));
        CHECK_OK(hvt_comm_wait(c, t));
        CHECK_OK(hvt_comm_allreduce(host, mine, COUNT, dtypes[k], &t));
        CHECK_OK(hvt_comm_wait(host, t));
        CHECK_OK(hvt_device_download(gpu, got, buf, bytes));
        CHECK(!memcmp(got, mine, bytes), "%s: other bits than on the host", hvt_dtype_name(dtypes[k]));
    }
    every_operation(c, buf);
    every_broadcast(c, buf);
    hvt_comm_release(c, buf);
    hvt_comm_close(&host);
    end(c);
    free(mine);
    free(got);
}
#endif

int main(void)
{
    if (!ranks_open())
        return 1;
    RUN(sums_slices_and_broadcasts_are_right);
    RUN(all_ranks_hold_the_same_bits);
    RUN(more_operations_than_the_guard_watches_keep_their_order);
    RUN(the_device_waits_and_the_host_does_not);
    RUN(memory_is_zeroed_registered_accounted_and_given_back);
    RUN(host_memory_is_refused_by_name_before_anything_is_launched);
    RUN(a_captured_exchange_runs_again_and_the_guard_leaves_it_alone);
    RUN(a_captured_graph_that_outlives_its_comm_costs_time_and_a_line);
    RUN(a_comm_ends_on_its_own_gpu);
    RUN(waiting_for_operations_leaves_no_error);
    RUN(ranks_with_one_gpu_are_refused_unless_they_share);
    RUN(a_deterministic_device_pins_algorithm_and_protocol);
    RUN(two_comms_go_side_by_side);
    RUN(an_operation_that_takes_too_long_is_given_up_and_named);
    RUN(a_captured_step_that_a_rank_does_not_launch_is_given_up);
    RUN(a_rank_that_comes_late_is_waited_for);
    RUN(a_rank_that_cannot_join_is_named_by_all);
    RUN(an_error_of_the_communicator_ends_it);
    if (ranks_are_alone())
        RUN(an_abort_that_hangs_ends_the_process);
    RUN(whatever_fails_on_one_rank_fails_on_all);
    RUN(each_device_has_its_comms);
#if HVT_HAVE_MPI
    RUN(staged_sums_are_those_of_the_tree);
#endif
    return ranks_done();
}
