/*
 * What `hvtrain check` makes of facts that a test machine cannot have: several hosts, GPUs, clocks that
 * differ, processors of different kinds.
 */
#include "check.h"
#include "train/check/check_impl.h"

#include <math.h>

enum { N = 4 };

/* Four ranks on two hosts, with nothing to mend. */
static const char *host[N];
static hvt_placement place[N];
static hvt__facts fact[N];
static double ahead[N], unsure[N];
static bool in[N];
static const hvt__ranks four = {N, host, place, fact, ahead, unsure, in},
                        two = {2, host, place, fact, ahead, unsure, in};

static void begin(void)
{
    for (int r = 0; r < N; r++) {
        host[r] = r < 2 ? "node1" : "node2";
        place[r] = (hvt_placement){
            .cores = {.threads = 2, .ncpus = 2, .share = 2, .mask = 4, .caches = 1, .nodes = 1},
            .allowed = 4};
        fact[r] = (hvt__facts){.shm = 1 << 30,
                               .memory = 8e9,
                               .memlock = INFINITY,
                               .address_space = INFINITY,
                               .cpu_seconds = INFINITY,
                               .files = 4096,
                               .nets = 1};
        fact[r].mask[0] = 0xf;
        fact[r].net[0] = (hvt__net){.name = "eth0", .network = "10.0.7.0/24", .mbits = 10000};
        snprintf(fact[r].net[0].address, sizeof fact[r].net[0].address, "10.0.7.%d", r < 2 ? 1 : 2);
        ahead[r] = r < 2 ? 0 : 2e-4;
        unsure[r] = 1e-4;
    }
}

/* The line has this grade and text. */
static void expect(hvt__line l, hvt__grade grade, const char *part)
{
    CHECK(l.grade == grade && strstr(l.text, part), "expected %d with '%s', got %d: %s", (int)grade, part,
          (int)l.grade, l.text);
}

static void all_good(const hvt__ranks *r)
{
    expect(hvt__judge_build(r, "amx"), HVT__GOOD, "");
    expect(hvt__judge_cores(r), HVT__GOOD, "");
    expect(hvt__judge_gpus(r, false, false), HVT__GOOD, "");
    expect(hvt__judge_network(r), HVT__GOOD, "");
    expect(hvt__judge_memory(r), HVT__GOOD, "");
    expect(hvt__judge_limits(r), HVT__GOOD, "");
    expect(hvt__judge_clocks(r), HVT__GOOD, "");
}

TEST(ranks_are_counted_by_host)
{
    char text[200];

    begin();
    all_good(&four);
    all_good(&two);
    hvt__hosts_text(&four, text);
    CHECK(!strcmp(text, "4 ranks on 2 hosts, 2 each"), "%s", text);
    host[1] = host[2];
    hvt__hosts_text(&four, text);
    CHECK(!strcmp(text, "4 ranks on 2 hosts, 1 to 3 each"), "%s", text);
    hvt__hosts_text(&(hvt__ranks){.n = 2, .host = host + 1}, text);
    CHECK(!strcmp(text, "2 ranks on 1 host (node2)"), "%s", text);
    hvt__hosts_text(&(hvt__ranks){.n = 1, .host = host}, text);
    CHECK(!strcmp(text, "one process on node1"), "%s", text);
}

TEST(processors_that_this_build_or_some_hosts_do_not_suit_are_named)
{
    bool amx = false; /* in this build */

    begin();
    for (int i = 0; i < hvt_cpu_isa_count(); i++)
        amx = amx || !strcmp(hvt_cpu_isa_name(i), "amx");
    for (int r = 0; r < N; r++)
        fact[r].has[0] = true;
    expect(hvt__judge_build(&four, "avx2"), HVT__GOOD, "this run uses avx2");
    for (int i = 0; i < hvt_cpu_isa_count(); i++)
        if (!strcmp(hvt_cpu_isa_name(i), "avx512")) {
            fact[3].has[1] = true;
            expect(hvt__judge_build(&four, "avx2"), HVT__DOUBTFUL,
                   "1 of 4 ranks have avx512, but 3 ranks on 2 hosts, such as rank 0 (node1) not");
        }
    for (int r = 0; r < N; r++)
        fact[r].has[1] = fact[r].has[2] = true;
    expect(hvt__judge_build(&four, "avx512_bf16"), amx ? HVT__GOOD : HVT__DOUBTFUL, "avx512_bf16");
    expect(hvt__judge_build(&four, NULL), HVT__GOOD, "kernels for");
}

TEST(ranks_that_share_processors_are_named)
{
    begin();
    fact[2].mask[0] = fact[3].mask[0] = 1;
    expect(hvt__judge_cores(&four), HVT__WRONG, "2 ranks on node2 are bound to 1 processor of 4");
    fact[3].mask[0] = 2;
    expect(hvt__judge_cores(&four), HVT__GOOD, "2 threads for each rank");
    place[3].cores.threads = 4;
    expect(hvt__judge_cores(&four), HVT__DOUBTFUL, "ranks have 2 to 4 threads");
    place[3].cores = place[0].cores;
    place[2].cores.crowded = true;
    expect(hvt__judge_cores(&four), HVT__DOUBTFUL, "node2: 4 threads of 2 ranks share 4 processors");
    begin();
    snprintf(fact[1].governor, sizeof fact[1].governor, "powersave");
    expect(hvt__judge_cores(&four), HVT__DOUBTFUL, "node1's processors is held down (powersave)");
}

TEST(gpus_that_are_missing_shared_or_unused_are_named)
{
    begin();
    expect(hvt__judge_gpus(&four, true, false), HVT__WRONG, "no device cuda");
    expect(hvt__judge_gpus(&four, true, true), HVT__WRONG,
           "no GPU is visible to all ranks on 2 hosts: NVIDIA's driver");
    fact[0].driver = true;
    expect(hvt__judge_gpus(&four, false, false), HVT__DOUBTFUL,
           "driver is loaded, but this build has no device cuda");
    for (int r = 0; r < N; r++) {
        place[r].gpus = 2;
        snprintf(place[r].gpu.name, sizeof place[r].gpu.name, "NVIDIA H200");
        snprintf(place[r].gpu.uuid, sizeof place[r].gpu.uuid, "GPU-%d", r);
    }
    expect(hvt__judge_gpus(&four, true, true), HVT__GOOD, "NVIDIA H200, one for each rank");
    expect(hvt__judge_gpus(&four, false, true), HVT__GOOD, "2 here, which --device cuda would use");
    place[3].gpus = 0;
    expect(hvt__judge_gpus(&four, true, true), HVT__WRONG,
           "no GPU is visible to rank 3 (node2): see CUDA_VISIBLE_DEVICES");
    place[3] = place[2];
    expect(hvt__judge_gpus(&four, true, true), HVT__WRONG, "ranks 2 and 3 (node2) use the same GPU");
}

TEST(networks_of_several_hosts_are_compared)
{
    begin();
    expect(hvt__judge_network(&two), HVT__GOOD, "one host");
    expect(hvt__judge_network(&four), HVT__GOOD, "the hosts share 10.0.7.0/24 (eth0, 10 Gb/s)");
    for (int r = 0; r < N; r++) {
        fact[r].nets = 2;
        fact[r].net[1] = (hvt__net){.name = "docker0", .address = "172.17.0.1", .network = "172.17.0.0/16"};
    }
    expect(hvt__judge_network(&four), HVT__DOUBTFUL,
           "docker0 has the address 172.17.0.1 on several hosts, and MPI may try to reach others there: "
           "mpirun --mca "
           "btl_tcp_if_include 10.0.7.0/24");
    for (int r = 0; r < N; r++) {
        fact[r].nets = 1;
        fact[r].rdma_gbits = 100;
    }
    expect(hvt__judge_network(&four), HVT__GOOD, "InfiniBand or RoCE of 100 Gb/s");
    begin();
    for (int r = 2; r < N; r++)
        snprintf(fact[r].net[0].network, sizeof fact[r].net[0].network, "10.0.8.0/24");
    expect(hvt__judge_network(&four), HVT__GOOD, "no network in common");
}

TEST(memory_limits_and_clocks_that_hinder_are_named)
{
    begin();
    fact[2].memory = fact[3].memory = 1e8;
    expect(hvt__judge_memory(&four), HVT__DOUBTFUL, "node2 has only 0.09 GiB of memory left for 2 ranks");
    fact[2].shm = 3 << 20;
    fact[2].shm_due = 8 << 20;
    expect(hvt__judge_memory(&four), HVT__WRONG,
           "/dev/shm of node2 has 3.0 MiB free, but MPI may still write 8.0 MiB");
    fact[1].files = 256;
    expect(hvt__judge_limits(&four), HVT__DOUBTFUL, "rank 1 (node1) may open only 256 files: ulimit -n 4096");
    fact[2].memlock = fact[3].memlock = 65536;
    CHECK(!strstr(hvt__judge_limits(&four).text, "lock"), "without InfiniBand nobody locks memory");
    fact[2].rdma_gbits = fact[3].rdma_gbits = 100;
    expect(hvt__judge_limits(&four), HVT__DOUBTFUL, "ranks 2-3 (node2) may lock only 65536 bytes");
    expect(hvt__judge_clocks(&two), HVT__GOOD, "one host");
    expect(hvt__judge_clocks(&four), HVT__GOOD, "hosts agree within 0.300 ms");
    ahead[3] = -7.5;
    expect(hvt__judge_clocks(&four), HVT__DOUBTFUL, "node2's clock is 7.5 s behind that of node1");
}

TEST(files_that_a_rank_cannot_read_are_named)
{
    hvt_options o;

    begin();
    hvt_options_default(&o);
    expect(hvt__judge_files(&four, &o), HVT__GOOD, "");
    o.data_dir = "/data/flowers";
    expect(hvt__judge_files(&four, &o), HVT__GOOD, "");
    for (int r = 2; r < N; r++)
        snprintf(fact[r].data, sizeof fact[r].data, "No such file or directory");
    expect(hvt__judge_files(&four, &o), HVT__WRONG,
           "--data-dir /data/flowers: No such file or directory, on ranks 2-3 (node2): it must be there on "
           "every host");
}

TEST(models_that_are_too_large_are_named)
{
    const hvt__needs needs = {.memory = 3e9, .images = "224x224x3", .batch = 32};
    hvt_options o;

    begin();
    hvt_options_default(&o);
    o.model = "resnet20";
    expect(hvt__judge_needs(&four, &needs, &o, false), HVT__GOOD,
           "resnet20, images of 224x224x3, --batch 32: 2.79 GiB for each rank");
    fact[2].memory = fact[3].memory = 5e9;
    expect(hvt__judge_needs(&four, &needs, &o, false), HVT__WRONG,
           "2 ranks on node2 take 5.6 GiB, but only 4.7 GiB are there");
    for (int r = 0; r < N; r++)
        place[r].gpu.total_bytes = (int64_t)4e9;
    expect(hvt__judge_needs(&four, &needs, &o, true), HVT__GOOD, "2.79 GiB for each rank");
    place[2].gpu.total_bytes = (int64_t)2e9;
    expect(hvt__judge_needs(&four, &needs, &o, true), HVT__WRONG,
           "1 rank on node2 takes 2.8 GiB, but only 1.9 GiB are there");
}

TEST(sums_that_are_wrong_or_slow_are_named)
{
    hvt__sums s = {.comm = "hier", .small = 2e-5, .large = 8e-3, .small_bytes = 64, .large_bytes = 8 << 20};

    begin();
    expect(hvt__judge_sums(&four, &s, "auto"), HVT__GOOD,
           "comm hier: 64 bytes in 20.0 us; 8 MiB in 8.00 ms, 1.05 GB/s");
    s.large = 0.4;
    expect(hvt__judge_sums(&four, &s, "auto"), HVT__DOUBTFUL, "the network could carry 1.2 GB/s");
    s.wrong = 3;
    expect(hvt__judge_sums(&four, &s, "auto"), HVT__WRONG, "3 elements of sums are wrong");
    s = (hvt__sums){.comm = "mpi", .small = 2e-5, .large = 8e-3, .small_bytes = 64, .large_bytes = 8 << 20};
    expect(hvt__judge_sums(&four, &s, "mpi"), HVT__GOOD, "comm mpi");
    expect(hvt__judge_sums(&four, &s, "auto"), HVT__DOUBTFUL, "comm hier would be faster");
    expect(hvt__judge_sums(&two, &s, "auto"), HVT__DOUBTFUL, "cannot share memory");
}

int main(void)
{
    RUN(ranks_are_counted_by_host);
    RUN(processors_that_this_build_or_some_hosts_do_not_suit_are_named);
    RUN(ranks_that_share_processors_are_named);
    RUN(gpus_that_are_missing_shared_or_unused_are_named);
    RUN(networks_of_several_hosts_are_compared);
    RUN(memory_limits_and_clocks_that_hinder_are_named);
    RUN(files_that_a_rank_cannot_read_are_named);
    RUN(models_that_are_too_large_are_named);
    RUN(sums_that_are_wrong_or_slow_are_named);
    return check_done();
}
