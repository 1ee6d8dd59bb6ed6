/*
 * The world: how a launcher is recognised, what ranks exchange, how they share a node's cores. Alone and on 1
 * to 4 ranks.
 */
#define _GNU_SOURCE
#include "config.h"
#include "ranks.h"

#include <math.h>
#include <sys/wait.h>
#include <unistd.h>
#if HVT_HAVE_MPI
#include <mpi.h>
#endif

/* ---- launch ------------------------------------------------------------------------------- */

static const char *const *table; /* name, value, ..., NULL */

static char *look_up(const char *name)
{
    for (int i = 0; table[i]; i += 2)
        if (!strcmp(table[i], name))
            return (char *)(uintptr_t)table[i + 1];
    return NULL;
}

static hvt_launch launch_of(const char *const *variables)
{
    table = variables;
    return hvt__launch(look_up);
}

TEST(a_process_inside_an_allocation_is_still_alone)
{
    hvt_launch l = launch_of((const char *[]){"SLURM_NTASKS", "4", "SLURM_JOB_ID", "7", NULL});

    CHECK(!l.started && !l.size, "started %d, size %d", l.started, l.size);
    CHECK_OK(hvt__launch_check(&l, 1));
}

TEST(mpirun_inside_an_srun_step_is_mpirun)
{
    hvt_launch l = launch_of((const char *[]){"OMPI_COMM_WORLD_SIZE", "4", "OMPI_COMM_WORLD_LOCAL_SIZE", "2",
                                              "PMIX_RANK", "1", "SLURM_STEP_NUM_TASKS", "2", NULL});

    CHECK(l.started && l.size == 4 && !l.by_srun && !l.one_node, "size %d, by_srun %d", l.size, l.by_srun);
    CHECK_OK(hvt__launch_check(&l, 4));
    CHECK_FAILS(hvt__launch_check(&l, 1), E_COMM, "use the mpirun of the MPI");
    CHECK(hvt_last_error_is_agreed(), "each process sees this");
}

TEST(srun_without_a_process_manager_is_refused_with_the_flag_to_use)
{
    hvt_launch l = launch_of((const char *[]){"SLURM_STEP_NUM_TASKS", "4", "SLURM_NTASKS", "4", NULL});

    CHECK(l.started && l.unwired && l.size == 4, "size %d, unwired %d", l.size, l.unwired);
    CHECK_FAILS(hvt__launch_check(&l, 1), E_COMM, "srun --mpi=pmix");
    CHECK_FAILS(hvt__launch_check(&l, 1), E_COMM, "srun --mpi=list");
}

TEST(srun_with_pmix_is_ready)
{
    hvt_launch l = launch_of(
        (const char *[]){"SLURM_STEP_NUM_TASKS", "4", "SLURM_STEP_NUM_NODES", "1", "PMIX_RANK", "3", NULL});

    CHECK(l.started && !l.unwired && l.by_srun && l.one_node, "unwired %d", l.unwired);
    l = launch_of((const char *[]){"SLURM_STEP_NUM_TASKS", "1", "PMIX_RANK", "0", NULL});
    CHECK(l.started && l.size == 1, "one task under PMIx is a world of MPI");
    l = launch_of((const char *[]){"SLURM_STEP_NUM_TASKS", "1", NULL});
    CHECK(!l.started, "one task without is alone");
    l = launch_of((const char *[]){"PMI_SIZE", "3", "PMI_RANK", "0", "SLURM_STEP_NUM_TASKS", "3", NULL});
    CHECK(l.by_srun && l.size == 3, "PMI-2 of srun");
    l = launch_of((const char *[]){"PMI_SIZE", "3", "PMI_RANK", "0", NULL});
    CHECK(l.started && !l.by_srun && l.size == 3, "hydra");
}

TEST(launchers_that_know_no_mpi_are_refused_and_mpirun_inside_them_is_not)
{
    hvt_launch l = launch_of((const char *[]){"HOROVOD_CONTROLLER", "gloo", "HOROVOD_SIZE", "2", NULL});

    CHECK(l.started && l.unwired && l.size == 2, "size %d, unwired %d", l.size, l.unwired);
    CHECK_FAILS(hvt__launch_check(&l, 1), E_COMM, "horovodrun started 2 processes");
    CHECK_FAILS(hvt__launch_check(&l, 1), E_COMM, "mpirun -np 2");
    l = launch_of((const char *[]){"TORCHELASTIC_RUN_ID", "none", "RANK", "0", "WORLD_SIZE", "4", NULL});
    CHECK(!l.started, "torchrun needs no MPI");
    l = launch_of((const char *[]){"WORLD_SIZE", "4", NULL});
    CHECK(!l.started, "a variable of anybody's");
    l = launch_of((const char *[]){"TORCHELASTIC_RUN_ID", "none", "WORLD_SIZE", "4", "OMPI_COMM_WORLD_SIZE",
                                   "2", "PMIX_RANK", "1", NULL});
    CHECK(l.size == 2 && !l.unwired && !l.by, "size %d", l.size);
}

/* ---- transport ---------------------------------------------------------------------------- */

static bool chosen(const char *const *variables, const char *file_text)
{
    char path[] = "/tmp/hvt-transport-XXXXXX";
    const char *const files[] = {"/there/is/no/such/file", path, NULL};
    int fd = mkstemp(path);
    bool is;

    CHECK(fd >= 0 && write(fd, file_text, strlen(file_text)) == (ssize_t)strlen(file_text), "%s", path);
    close(fd);
    table = variables;
    is = hvt__transport_chosen(look_up, files);
    unlink(path);
    return is;
}

TEST(a_transport_that_the_user_chose_is_never_overruled)
{
    static const char *const none[] = {"OMPI_COMM_WORLD_SIZE", "2", NULL};
    static const char *const debian = "# pml = cm\nmtl = ^ofi\nbtl = ^uct,openib,ofi\npml = ^ucx\n";

    CHECK(!chosen(none, ""), "nothing is said");
    CHECK(!chosen(none, debian), "exclusions choose nothing");
    CHECK(chosen(none, "pml = ^ob1\n"), "but this one excludes ob1");
    CHECK(chosen(none, "btl_x = 1\n  pml=ucx"), "a file chooses a pml");
    CHECK(chosen(none, "btl\t= tcp,self\n"), "a file chooses btls");
    CHECK(!chosen(none, "pml_ob1_verbose = 1\nbtl_tcp_if_include = eth0\npml =\n"), "other parameters");
    CHECK(chosen((const char *[]){"OMPI_MCA_pml", "ucx", NULL}, ""), "mpirun --mca pml ucx");
    CHECK(chosen((const char *[]){"OMPI_MCA_btl", "tcp,self", NULL}, ""), "mpirun --mca btl tcp,self");
    CHECK(chosen((const char *[]){"OMPI_MCA_mca_base_param_files", "/etc/mine", NULL}, ""), "a file of his");
}

/* ---- world -------------------------------------------------------------------------------- */

TEST(the_world_knows_its_ranks)
{
    int nodes = hvt_world_nodes(world);

    CHECK(rank >= 0 && rank < size, "rank %d of %d", rank, size);
    CHECK(nodes == 1 && hvt_world_local_rank(world) == rank && hvt_world_local_size(world) == size,
          "%d nodes, local %d of %d", nodes, hvt_world_local_rank(world), hvt_world_local_size(world));
    for (int r = 0; r < size; r++)
        CHECK(*hvt_world_host(world, r), "rank %d has no host name", r);
    CHECK(!*hvt_world_host(world, size), "a rank too many");
}

TEST(reductions_give_every_rank_the_same_bits)
{
    double d[3] = {1.0 + rank, 1.0 + rank, 0.1 * (rank + 1)}, sum = 0.1;
    int64_t i[4] = {rank + 1, rank + 1, rank + 1, ~((int64_t)1 << rank)};

    for (int r = 1; r < size; r++)
        sum += 0.1 * (r + 1);
    CHECK_OK(hvt_world_allreduce(world, HVT_MIN, &d[0], 1));
    CHECK_OK(hvt_world_allreduce(world, HVT_MAX, &d[1], 1));
    CHECK_OK(hvt_world_allreduce(world, HVT_SUM, &d[2], 1));
    CHECK(d[0] == 1 && d[1] == size && d[2] == sum, "%g %g %.17g, not %.17g", d[0], d[1], d[2], sum);
    CHECK_OK(hvt_world_allreduce_i64(world, HVT_SUM, &i[0], 1));
    CHECK_OK(hvt_world_allreduce_i64(world, HVT_MIN, &i[1], 1));
    CHECK_OK(hvt_world_allreduce_i64(world, HVT_MAX, &i[2], 1));
    CHECK_OK(hvt_world_allreduce_i64(world, HVT_AND, &i[3], 1));
    CHECK(i[0] == size * (size + 1) / 2 && i[1] == 1 && i[2] == size, "%ld %ld %ld", (long)i[0], (long)i[1],
          (long)i[2]);
    CHECK(i[3] == (int64_t)(UINT64_MAX << size), "%lx", (long)i[3]);
    CHECK_FAILS(hvt_world_allreduce(world, HVT_AND, d, 1), E_ARG, "doubles");
    CHECK_FAILS(hvt_world_allreduce_i64(world, HVT_PRODUCT, i, 1), E_ARG, "integers");
    CHECK_OK(hvt_world_allreduce(world, HVT_SUM, NULL, 0));
}

TEST(a_nan_of_any_rank_is_every_reductions_result)
{
    const hvt_reduction how[] = {HVT_SUM, HVT_MIN, HVT_MAX};

    for (int bad = 0; bad < size; bad++)
        for (size_t i = 0; i < HVT_LEN(how); i++) {
            double d = rank == bad ? (double)NAN : rank;

            CHECK_OK(hvt_world_allreduce(world, how[i], &d, 1));
            CHECK(isnan(d), "reduction %zu of rank %d's NaN is %g", i, bad, d);
        }
}

TEST(broadcast_and_gather_carry_bytes)
{
    for (int root = 0; root < size; root++) {
        char text[100000];
        int all[64];

        memset(text, rank == root ? 'a' + root : 0, sizeof text);
        CHECK_OK(hvt_world_broadcast(world, text, sizeof text, root));
        for (size_t i = 0; i < sizeof text; i++)
            if (text[i] != 'a' + root) {
                CHECK(false, "byte %zu from %d is %d", i, root, text[i]);
                break;
            }
        CHECK_OK(hvt_world_allgather(world, &(int){rank * root}, sizeof(int), all));
        for (int r = 0; r < size; r++)
            CHECK(all[r] == r * root, "rank %d gave %d", r, all[r]);
        memset(all, 0, sizeof all);
        CHECK_OK(hvt_world_gather(world, &(int){rank + root}, sizeof(int), rank == root ? all : NULL, root));
        for (int r = 0; r < size; r++)
            CHECK(all[r] == (rank == root ? r + root : 0), "rank %d gave %d to %d", r, all[r], root);
    }
    CHECK_OK(hvt_world_gather(world, NULL, 0, NULL, 0));
    CHECK_FAILS(hvt_world_gather(world, NULL, 0, NULL, size), E_ARG, "root");
    CHECK_FAILS(hvt_world_gather(world, NULL, 1, NULL, 0), E_ARG, "no buffer");
    CHECK_FAILS(hvt_world_gather(world, "x", 1, NULL, rank), E_ARG, "no buffer on its root");
    CHECK_FAILS(hvt_world_broadcast(world, NULL, 0, size), E_ARG, "root");
    CHECK_OK(hvt_world_barrier(world));
}

TEST(the_lowest_failing_rank_speaks_for_all)
{
    CHECK_OK(hvt_world_agree(world, HVT_OK));
    for (int bad = 0; bad < size; bad++) {
        char text[32], prefix[32];
        hvt_status s = HVT_OK;

        snprintf(text, sizeof text, "file %d is missing", bad);
        snprintf(prefix, sizeof prefix, "rank %d (", bad);
        if (rank == bad)
            s = HVT_FAIL(E_IO, "file %d is missing", bad);
        else if (rank > bad)
            s = HVT_FAIL(E_MEM, "and more went wrong");
        CHECK_FAILS(hvt_world_agree(world, s), E_IO, text);
        CHECK(hvt_last_error_is_agreed(), "not marked");
        CHECK(!strncmp(hvt_last_error(), prefix, strlen(prefix)) == (bad > 0), "%s", hvt_last_error());
    }
    CHECK_OK(hvt_world_agree(world, HVT_OK));
}

TEST(a_comparison_names_what_differs_where)
{
    hvt_item a[] = {{"--model", "resnet20"}, {"--batch", "128"}, {"tensor fc.weight", "[10,64] f32"}};
    char text[64];

    CHECK_OK(hvt_world_compare(world, a, 3));
    CHECK_OK(hvt_world_compare(world, NULL, 0));
    if (size == 1)
        SKIP("it takes two ranks");
    if (rank)
        a[1].value = "64";
    snprintf(text, sizeof text, size == 2 ? "\"64\" on rank 1 (" : "\"64\" on ranks 1-%d (", size - 1);
    CHECK_FAILS(hvt_world_compare(world, a, 3), E_MISMATCH, "--batch differs: \"128\" on rank 0 (");
    CHECK(strstr(hvt_last_error(), text), "%s", hvt_last_error());
    CHECK(hvt_last_error_is_agreed(), "not marked");
    a[1].value = "128";
    /* a missing one, in the middle and at the end; another name; another order */
    CHECK_FAILS(hvt_world_compare(world, a, rank == size - 1 ? 2 : 3), E_MISMATCH,
                "tensor fc.weight differs: \"[10,64] f32\" on rank");
    CHECK(strstr(hvt_last_error(), "missing on rank "), "%s", hvt_last_error());
    CHECK_FAILS(hvt_world_compare(world, a, rank ? 3 : 0), E_MISMATCH,
                "--model differs: missing on rank 0 (");
    a[1].name = rank ? "--batch" : "--lr";
    CHECK_FAILS(hvt_world_compare(world, a, 3), E_MISMATCH, "--lr differs: \"128\" on rank 0 (");
    a[1].name = "--batch";
    if (rank) {
        hvt_item t = a[0];

        a[0] = a[1], a[1] = t;
    }
    CHECK_FAILS(hvt_world_compare(world, a, 3), E_MISMATCH,
                "item 0 of the list differs: \"--model\" on rank 0 (");
    CHECK_OK(hvt_world_compare(world, NULL, 0));
}

TEST(a_name_and_its_value_do_not_run_together)
{
    hvt_item a = {rank ? "ab" : "a", rank ? "c" : "bc"};

    if (size == 1)
        SKIP("it takes two ranks");
    CHECK_FAILS(hvt_world_compare(world, &a, 1), E_MISMATCH, "a differs: \"bc\" on rank 0 (");
    CHECK_OK(hvt_world_barrier(world));
}

#if HVT_HAVE_MPI
TEST(a_wrapped_world_is_its_communicator)
{
    MPI_Comm half;
    hvt_world *w = NULL;
    double one = 1;
    int members = size / 2 + (size % 2 && rank % 2 == 0);

    if (strcmp(hvt_world_name(world), "mpi"))
        SKIP("there is no communicator without MPI");
    MPI_Comm_split(MPI_COMM_WORLD, rank % 2, -rank, &half); /* in reverse order */
    CHECK_OK(hvt_world_wrap(&half, &w));
    MPI_Comm_free(&half); /* it was duplicated */
    CHECK(hvt_world_size(w) == members, "%d of %d", hvt_world_size(w), members);
    CHECK(hvt_world_rank(w) == members - 1 - rank / 2, "rank %d", hvt_world_rank(w));
    CHECK_OK(hvt_world_allreduce(w, HVT_SUM, &one, 1));
    CHECK(one == members, "%g", one);
    hvt_world_close(&w);
    CHECK(!w, "close leaves NULL");
    CHECK_FAILS(hvt_world_wrap(NULL, &w), E_ARG, "communicator");
}

TEST(a_rank_without_memory_for_a_world_ends_it_on_all)
{
    MPI_Comm all = MPI_COMM_WORLD;
    hvt_world *w = NULL;
    bool lacks = rank == size - 1;

    if (strcmp(hvt_world_name(world), "mpi"))
        SKIP("there is no communicator without MPI");
    CHECK_FAILS(lacks ? hvt_world_mpi.open(NULL, &all) : hvt_world_wrap(&all, &w), E_MEM,
                lacks ? "this rank" : "another rank");
    CHECK(!w && hvt_last_error_is_agreed(), "a world, or an error of one's own");
    CHECK_OK(hvt_world_wrap(&all, &w)); /* and it may be tried again */
    hvt_world_close(&w);
}
#endif

/* ---- cores -------------------------------------------------------------------------------- */

static void claim(hvt__claim *c, int first, int count, int threads)
{
    memset(c, 0, sizeof *c);
    for (int i = first; i < first + count; i++)
        c->mask[i / 64] |= (uint64_t)1 << (i % 64);
    c->threads = threads;
}

TEST(equal_masks_are_split_by_local_rank)
{
    hvt__claim c[3];
    hvt_cores k[3];
    int shares[3] = {2, 3, 3}, at = 60;

    for (int r = 0; r < 3; r++)
        claim(&c[r], 60, 8, 0); /* across a word's end */
    for (int r = 0; r < 3; r++) {
        hvt__cores_split(c, 3, r, &k[r]);
        CHECK(k[r].share == shares[r] && k[r].threads == shares[r] && k[r].ncpus == shares[r] &&
                  k[r].mask == 8 && !k[r].crowded,
              "rank %d: share %d, threads %d, ncpus %d", r, k[r].share, k[r].threads, k[r].ncpus);
        for (int i = 0; i < k[r].ncpus; i++)
            CHECK(k[r].cpus[i] == at++, "rank %d thread %d on %d", r, i, k[r].cpus[i]);
    }
}

TEST(a_bound_rank_keeps_its_mask)
{
    hvt__claim c[2];
    hvt_cores k;

    claim(&c[0], 0, 2, 0);
    claim(&c[1], 6, 3, 0);
    hvt__cores_split(c, 2, 1, &k);
    CHECK(k.share == 3 && k.ncpus == 3 && k.cpus[0] == 6 && k.cpus[2] == 8, "share %d", k.share);
    c[1].threads = 4;
    hvt__cores_split(c, 2, 0, &k);
    CHECK(k.ncpus == 0 && k.crowded, "6 threads on 5 processors, yet %d pinned", k.ncpus);
}

TEST(more_ranks_than_cores_share_and_yield)
{
    hvt__claim c[4];
    hvt_cores k;

    for (int r = 0; r < 4; r++)
        claim(&c[r], 0, 2, 0);
    for (int r = 0; r < 4; r++) {
        hvt__cores_split(c, 4, r, &k);
        CHECK(k.share == 1 && k.threads == 1 && k.ncpus == 0 && k.crowded, "rank %d: share %d", r, k.share);
    }
}

TEST(explicit_threads_get_a_processor_each_or_no_pin)
{
    hvt__claim c[2];
    hvt_cores k;

    claim(&c[0], 0, 4, 1);
    claim(&c[1], 0, 4, 3);
    hvt__cores_split(c, 2, 1, &k); /* more than its half, but it fits */
    CHECK(k.ncpus == 3 && k.cpus[0] == 1 && k.cpus[2] == 3 && k.share == 2, "ncpus %d, first %d", k.ncpus,
          k.cpus[0]);
    CHECK(k.spare == -1, "%d is another's", k.spare);
    c[0].threads = 2;
    hvt__cores_split(c, 2, 0, &k);
    CHECK(k.ncpus == 0 && k.threads == 2 && k.crowded, "ncpus %d", k.ncpus);
    c[1].threads = 1;
    c[0].threads = 1;
    hvt__cores_split(c, 2, 1, &k); /* each in its own half */
    CHECK(k.ncpus == 1 && k.cpus[0] == 2, "on %d", k.cpus[0]);
    CHECK(k.spare == 3, "%d is spare", k.spare);
}

TEST(a_lone_rank_that_leaves_processors_free_is_not_pinned)
{
    hvt__claim c;
    hvt_cores k;

    claim(&c, 0, 2, 1);
    hvt__cores_split(&c, 1, 0, &k);
    CHECK(k.ncpus == 0 && k.threads == 1 && k.share == 2 && !k.crowded, "ncpus %d", k.ncpus);
    c.threads = 2;
    hvt__cores_split(&c, 1, 0, &k);
    CHECK(k.ncpus == 2 && k.cpus[1] == 1, "ncpus %d", k.ncpus);
}

TEST(a_rank_of_a_large_host_gets_the_most_threads_that_a_device_takes)
{
    hvt__claim c;
    hvt_cores k;

    claim(&c, 0, 384, 0);
    hvt__cores_split(&c, 1, 0, &k);
    CHECK(k.threads == HVT_MAX_THREADS && k.share == 384 && k.mask == 384 && !k.crowded,
          "threads %d, share %d", k.threads, k.share);
}

TEST(masks_that_overlap_in_part_are_not_pinned)
{
    hvt__claim c[2];
    hvt_cores k;

    claim(&c[0], 0, 4, 1);
    claim(&c[1], 2, 4, 1);
    hvt__cores_split(c, 2, 0, &k);
    CHECK(k.ncpus == 0 && !k.crowded, "ncpus %d", k.ncpus);
}

TEST(a_quota_counts_as_fewer_processors)
{
    hvt__claim c[2];
    hvt_cores k;

    for (int r = 0; r < 2; r++) {
        claim(&c[r], 0, 16, 0);
        c[r].quota = 5.5;
    }
    hvt__cores_split(c, 2, 0, &k);
    CHECK(k.share == 2 && k.mask == 16 && k.ncpus == 0 && !k.crowded, "share %d, ncpus %d", k.share, k.ncpus);
    hvt__cores_split(c, 2, 1, &k);
    CHECK(k.share == 3, "share %d", k.share);
    c[0].threads = 4;
    hvt__cores_split(c, 2, 1, &k);
    CHECK(k.crowded, "7 threads in 5.5 processors' time");
}

static void put(const char *root, const char *path, const char *text)
{
    char name[512], cmd[1024];
    FILE *f;

    snprintf(name, sizeof name, "%s/%s", root, path);
    snprintf(cmd, sizeof cmd, "mkdir -p \"$(dirname '%s')\"", name);
    CHECK(!system(cmd), "%s", cmd);
    f = fopen(name, "w");
    CHECK(f && fputs(text, f) >= 0 && !fclose(f), "cannot write %s", name);
}

TEST(quotas_of_both_control_groups_are_read)
{
    char root[] = "/tmp/hvt-test-XXXXXX", cmd[64];

    CHECK(mkdtemp(root), "no folder");
    CHECK(hvt__cgroup_cpus(root) == 0, "nothing there, no limit");
    put(root, "proc/self/cgroup", "0::/job/step\n");
    put(root, "sys/fs/cgroup/job/step/cpu.max", "max 100000\n");
    CHECK(hvt__cgroup_cpus(root) == 0, "max is no limit");
    put(root, "sys/fs/cgroup/job/cpu.max", "250000 100000\n");
    CHECK(hvt__cgroup_cpus(root) == 2.5, "the parent's: %g", hvt__cgroup_cpus(root));
    put(root, "sys/fs/cgroup/job/step/cpu.max", "50000 50000\n");
    CHECK(hvt__cgroup_cpus(root) == 1, "the smallest: %g", hvt__cgroup_cpus(root));
    put(root, "proc/self/cgroup", "3:cpu,cpuacct:/a\n2:memory:/b\n");
    put(root, "sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us", "-1\n");
    CHECK(hvt__cgroup_cpus(root) == 0, "-1 is no limit");
    put(root, "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "600000\n");
    put(root, "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "200000\n");
    CHECK(hvt__cgroup_cpus(root) == 3, "v1: %g", hvt__cgroup_cpus(root));
    snprintf(cmd, sizeof cmd, "rm -r %s", root);
    CHECK(!system(cmd), "%s", cmd);
}

TEST(caches_and_nodes_of_processors_are_counted)
{
    static const char *const level[] = {"1\n", "2\n", "3\n"};
    char root[] = "/tmp/hvt-test-XXXXXX", cmd[64], path[128], shared[16];
    const int cpus[] = {0, 1, 2, 3, 4};
    int caches, nodes;

    CHECK(mkdtemp(root), "no folder");
    hvt__domains(root, cpus, 5, &caches, &nodes);
    CHECK(caches == 0 && nodes == 0, "%d and %d where nobody says", caches, nodes);
    for (int cpu = 0; cpu < 4; cpu++) { /* two with each cache; all but the last in node 10 */
        for (int i = 0; i < 3; i++) {
            snprintf(path, sizeof path, "sys/devices/system/cpu/cpu%d/cache/index%d/level", cpu, i);
            put(root, path, level[i]);
        }
        snprintf(path, sizeof path, "sys/devices/system/cpu/cpu%d/cache/index2/shared_cpu_list", cpu);
        snprintf(shared, sizeof shared, "%d-%d\n", cpu / 2 * 2, cpu / 2 * 2 + 1);
        put(root, path, shared);
        snprintf(path, sizeof path, "sys/devices/system/cpu/cpu%d/node%d/cpulist", cpu, cpu < 3 ? 10 : 11);
        put(root, path, shared);
    }
    hvt__domains(root, cpus, 2, &caches, &nodes);
    CHECK(caches == 1 && nodes == 1, "%d caches, %d nodes of the first two", caches, nodes);
    hvt__domains(root, cpus, 3, &caches, &nodes);
    CHECK(caches == 2 && nodes == 1, "%d caches, %d nodes of the first three", caches, nodes);
    hvt__domains(root, cpus, 5, &caches, &nodes); /* of the fifth nothing is known */
    CHECK(caches == 2 && nodes == 2, "%d caches, %d nodes of all", caches, nodes);
    snprintf(cmd, sizeof cmd, "rm -r %s", root);
    CHECK(!system(cmd), "%s", cmd);
}

TEST(this_ranks_cores_are_within_its_mask)
{
    hvt_cores k;

    CHECK_OK(hvt_world_cores(world, 0, &k));
    CHECK(k.threads >= 1 && k.share >= 1 && k.mask >= 1, "threads %d", k.threads);
    CHECK(k.ncpus == 0 || k.ncpus == k.threads, "ncpus %d, threads %d", k.ncpus, k.threads);
    CHECK_OK(hvt_world_cores(world, 3, &k));
    CHECK(k.threads == 3, "threads %d", k.threads);
    CHECK_FAILS(hvt_world_cores(world, -1, &k), E_ARG, "threads");
}

/* ---- processes: only alone, where children may be made freely ----------------------------------- */

/* Set variables as a launcher would, in a child that MPI has not touched, and try to join. */
static void join_as(const char *const *variables, hvt_status want, const char *part)
{
    int status = -1;
    pid_t child;

    fflush(NULL);
    child = fork();
    if (child == 0) {
        hvt_world *w = NULL;

        check_now = 0;
        for (int i = 0; variables[i]; i += 2)
            setenv(variables[i], variables[i + 1], 1);
        if (want == HVT_OK)
            CHECK_OK(hvt_world_open(NULL, &w));
        else if (want == HVT_E_COMM)
            CHECK_FAILS(hvt_world_open(NULL, &w), E_COMM, part);
        else
            CHECK_FAILS(hvt_world_open(NULL, &w), E_ARG, part);
        CHECK(w ? !strcmp(hvt_world_name(w), part) : want != HVT_OK, "world %s",
              w ? hvt_world_name(w) : "none");
        hvt_world_close(&w);
        fflush(NULL);
        _exit(check_now ? 1 : 0);
    }
    waitpid(child, &status, 0);
    CHECK(status == 0, "with %s=%s: %x", variables[0], variables[1], (unsigned)status);
}

TEST(a_silent_singleton_is_refused)
{
    join_as((const char *[]){"SLURM_NTASKS", "4", NULL}, HVT_OK, "singleton");
#if HVT_HAVE_MPI
    join_as((const char *[]){"SLURM_STEP_NUM_TASKS", "4", "SLURM_STEPID", "0", NULL}, HVT_E_COMM,
            "srun --mpi=pmix");
    join_as((const char *[]){"PMI_SIZE", "4", "PMI_RANK", "1", NULL}, HVT_E_COMM,
            "use the mpirun of the MPI");
    join_as((const char *[]){"OMPI_COMM_WORLD_SIZE", "2", NULL}, HVT_E_COMM, "MPI sees 1");
#endif
    join_as((const char *[]){"WORLD_SIZE", "2", NULL}, HVT_OK, "singleton");
    join_as((const char *[]){"RANK", "0", "WORLD_SIZE", "1", NULL}, HVT_OK, "singleton");
    join_as((const char *[]){"RANK", "1", "WORLD_SIZE", "2", NULL}, HVT_E_ARG, "needs MASTER_ADDR");
    join_as((const char *[]){"RANK", "2", "WORLD_SIZE", "2", NULL}, HVT_E_ARG,
            "rank 2 of 2 ranks: expected 0 to 1");
    join_as((const char *[]){"RANK", "0", "WORLD_SIZE", "two", NULL}, HVT_E_ARG,
            "WORLD_SIZE: expected a whole");
}

TEST(abort_ends_a_lone_process_with_its_code)
{
    int status = -1;
    pid_t child;

    fflush(NULL);
    child = fork();
    if (child == 0)
        hvt_world_abort(world, 7);
    waitpid(child, &status, 0);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 7, "%x", (unsigned)status);
}

int main(void)
{
    if (!ranks_open())
        return 1;
    if (rank == 0) {
        RUN(a_process_inside_an_allocation_is_still_alone);
        RUN(mpirun_inside_an_srun_step_is_mpirun);
        RUN(srun_without_a_process_manager_is_refused_with_the_flag_to_use);
        RUN(srun_with_pmix_is_ready);
        RUN(launchers_that_know_no_mpi_are_refused_and_mpirun_inside_them_is_not);
        RUN(a_transport_that_the_user_chose_is_never_overruled);
        RUN(equal_masks_are_split_by_local_rank);
        RUN(a_bound_rank_keeps_its_mask);
        RUN(more_ranks_than_cores_share_and_yield);
        RUN(explicit_threads_get_a_processor_each_or_no_pin);
        RUN(a_lone_rank_that_leaves_processors_free_is_not_pinned);
        RUN(a_rank_of_a_large_host_gets_the_most_threads_that_a_device_takes);
        RUN(masks_that_overlap_in_part_are_not_pinned);
        RUN(a_quota_counts_as_fewer_processors);
        RUN(quotas_of_both_control_groups_are_read);
        RUN(caches_and_nodes_of_processors_are_counted);
    }
    RUN(the_world_knows_its_ranks);
    RUN(reductions_give_every_rank_the_same_bits);
    RUN(a_nan_of_any_rank_is_every_reductions_result);
    RUN(broadcast_and_gather_carry_bytes);
    RUN(the_lowest_failing_rank_speaks_for_all);
    RUN(a_comparison_names_what_differs_where);
    RUN(a_name_and_its_value_do_not_run_together);
    RUN(this_ranks_cores_are_within_its_mask);
    if (ranks_are_alone()) {
        RUN(a_silent_singleton_is_refused);
        RUN(abort_ends_a_lone_process_with_its_code);
    }
#if HVT_HAVE_MPI
    RUN(a_wrapped_world_is_its_communicator);
    RUN(a_rank_without_memory_for_a_world_ends_it_on_all);
#endif
    return ranks_done();
}
