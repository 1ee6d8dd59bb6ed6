/*
 * The world and the comms, alone and on 1 to 4 ranks. Every rank checks; a failure on any of them fails the
 * program on all.
 */
#define _GNU_SOURCE
#include "check.h"
#include "config.h"
#include "base_impl.h"
#include "comm/room.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#if HVT_HAVE_MPI
#include <mpi.h>
#endif

static hvt_world *world;
static hvt_device *dev;
static int rank, size;

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

TEST(folds_give_every_rank_the_same_bits)
{
    double d[3] = {1.0 + rank, 1.0 + rank, 0.1 * (rank + 1)}, sum = 0.1;
    int64_t i[4] = {rank + 1, rank + 1, rank + 1, ~((int64_t)1 << rank)};

    for (int r = 1; r < size; r++)
        sum += 0.1 * (r + 1);
    CHECK_OK(hvt_world_fold(world, HVT_FOLD_MIN, &d[0], 1));
    CHECK_OK(hvt_world_fold(world, HVT_FOLD_MAX, &d[1], 1));
    CHECK_OK(hvt_world_fold(world, HVT_FOLD_SUM, &d[2], 1));
    CHECK(d[0] == 1 && d[1] == size && d[2] == sum, "%g %g %.17g, not %.17g", d[0], d[1], d[2], sum);
    CHECK_OK(hvt_world_fold_i64(world, HVT_FOLD_SUM, &i[0], 1));
    CHECK_OK(hvt_world_fold_i64(world, HVT_FOLD_MIN, &i[1], 1));
    CHECK_OK(hvt_world_fold_i64(world, HVT_FOLD_MAX, &i[2], 1));
    CHECK_OK(hvt_world_fold_i64(world, HVT_FOLD_AND, &i[3], 1));
    CHECK(i[0] == size * (size + 1) / 2 && i[1] == 1 && i[2] == size, "%ld %ld %ld", (long)i[0], (long)i[1],
          (long)i[2]);
    CHECK(i[3] == (int64_t)(UINT64_MAX << size), "%lx", (long)i[3]);
    CHECK_FAILS(hvt_world_fold(world, HVT_FOLD_AND, d, 1), E_ARG, "doubles");
    CHECK_OK(hvt_world_fold(world, HVT_FOLD_SUM, NULL, 0));
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
        CHECK_OK(hvt_world_gather(world, &(int){rank * root}, sizeof(int), all));
        for (int r = 0; r < size; r++)
            CHECK(all[r] == r * root, "rank %d gave %d", r, all[r]);
    }
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
        return;
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

    if (size > 1)
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
        return;
    MPI_Comm_split(MPI_COMM_WORLD, rank % 2, -rank, &half); /* in reverse order */
    CHECK_OK(hvt_world_wrap(&half, &w));
    MPI_Comm_free(&half); /* it was duplicated */
    CHECK(hvt_world_size(w) == members, "%d of %d", hvt_world_size(w), members);
    CHECK(hvt_world_rank(w) == members - 1 - rank / 2, "rank %d", hvt_world_rank(w));
    CHECK_OK(hvt_world_fold(w, HVT_FOLD_SUM, &one, 1));
    CHECK(one == members, "%g", one);
    hvt_world_close(&w);
    CHECK(!w, "close leaves NULL");
    CHECK_FAILS(hvt_world_wrap(NULL, &w), E_ARG, "communicator");
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
    c[0].threads = 2;
    hvt__cores_split(c, 2, 0, &k);
    CHECK(k.ncpus == 0 && k.threads == 2 && k.crowded, "ncpus %d", k.ncpus);
    c[1].threads = 1;
    c[0].threads = 1;
    hvt__cores_split(c, 2, 1, &k); /* each in its own half */
    CHECK(k.ncpus == 1 && k.cpus[0] == 2, "on %d", k.cpus[0]);
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

/* ---- slices ------------------------------------------------------------------------------- */

TEST(slices_are_balanced_and_cover_everything_once)
{
    const size_t counts[] = {0, 1, 15, 16, 17, 1000, 100003};

    for (int n = 1; n <= 40; n++) {
        bool taken[40] = {false};

        for (int r = 0; r < n; r++) {
            int p = hvt__slice_of(r, n);

            CHECK(p >= 0 && p < n && !taken[p], "slice %d of %d, twice or none", p, n);
            taken[p] = true;
        }
        for (size_t i = 0; i < HVT_LEN(counts); i++) {
            size_t at = 0;

            for (int p = 0; p < n; p++) {
                size_t first = hvt__cut(counts[i], p, n), end = hvt__cut(counts[i], p + 1, n);
                size_t fair = (counts[i] + 15) / 16 / (size_t)n * 16;

                CHECK(first == at && (first % 16 == 0 || first == counts[i]), "slice %d of %d begins at %zu",
                      p, n, first);
                CHECK(end - first <= fair + 16 && (end == counts[i] || end - first >= fair),
                      "slice %d of %d of %zu holds %zu", p, n, counts[i], end - first);
                at = end;
            }
            CHECK(at == counts[i], "%zu of %zu", at, counts[i]);
        }
    }
    CHECK(hvt__cut((size_t)1 << 62, 3, 4) == (size_t)3 << 60, "no overflow");
}

/* ---- comms -------------------------------------------------------------------------------- */

static const hvt_dtype dtypes[] = {HVT_F32, HVT_F16, HVT_BF16};

/* What rank r contributes to element i: signs and magnitudes that make sums depend on their order. */
static float leaf(int r, size_t i, uint64_t seed)
{
    uint64_t d = hvt__draw(seed, (uint64_t)r, i, 0);

    return (hvt__unit(d) - 0.5f) * (float)(1 << (d & 7));
}

static void fill(int r, size_t first, size_t count, uint64_t seed, hvt_dtype t, void *out, float *f)
{
    for (size_t i = 0; i < count; i++)
        f[i] = leaf(r, first + i, seed);
    dev->ops->cast(dev, count, 1, f, HVT_F32, out, t);
}

/* The tree by its definition, level by level, over one block of elements of all ranks. Where partial
 * sums travel, 16-bit ones are rounded. */
static void plain_sum(size_t first, size_t count, uint64_t seed, hvt_dtype t, bool travels, void *out)
{
    static float level[64][1024], f[1024];
    static uint16_t half[1024];
    int n = size;

    for (int r = 0; r < n; r++) {
        fill(r, first, count, seed, t, t == HVT_F32 ? (void *)level[r] : half, f);
        if (t != HVT_F32)
            dev->ops->cast(dev, count, 1, half, t, level[r], HVT_F32);
    }
    for (; n > 1; n = (n + 1) / 2) {
        for (int i = 0; 2 * i < n; i++) {
            bool pair = 2 * i + 1 < n;

            for (size_t k = 0; k < count; k++)
                level[i][k] = pair ? level[2 * i][k] + level[2 * i + 1][k] : level[2 * i][k];
            if (pair && travels && t != HVT_F32) {
                dev->ops->cast(dev, count, 1, level[i], HVT_F32, half, t);
                dev->ops->cast(dev, count, 1, half, t, level[i], HVT_F32);
            }
        }
    }
    dev->ops->cast(dev, count, 1, level[0], HVT_F32, out, t);
}

static bool equals_plain_sum(const hvt_comm *c, const void *buf, size_t first, size_t end, uint64_t seed,
                             hvt_dtype t)
{
    bool travels = !strcmp(hvt_comm_name(c), "mpi");
    size_t bytes = hvt_dtype_size(t);
    float want[1024];

    for (size_t at = first; at < end; at += 1024) {
        size_t n = end - at < 1024 ? end - at : 1024;

        plain_sum(at, n, seed, t, travels, want);
        if (memcmp((const char *)buf + at * bytes, want, n * bytes))
            return false;
    }
    return true;
}

static void fill_mine(void *buf, size_t count, uint64_t seed, hvt_dtype t)
{
    float f[1024];

    for (size_t at = 0; at < count; at += 1024)
        fill(rank, at, count - at < 1024 ? count - at : 1024, seed, t, (char *)buf + at * hvt_dtype_size(t),
             f);
}

static void every_sum(hvt_comm *c, void *buf, const char *where, const size_t *counts, int ncounts)
{
    for (int t = 0; t < 3; t++)
        for (int i = 0; i < ncounts; i++) {
            size_t n = counts[i], bytes = hvt_dtype_size(dtypes[t]), first, end;
            uint64_t seed = (uint64_t)(100 * t + i);
            char *past = (char *)buf + n * bytes;
            hvt_ticket ticket;

            memset(past, 0x5a, 64);
            fill_mine(buf, n, seed, dtypes[t]);
            CHECK_OK(hvt_comm_allreduce(c, buf, n, dtypes[t], &ticket));
            CHECK_OK(hvt_comm_wait(c, ticket));
            CHECK(equals_plain_sum(c, buf, 0, n, seed, dtypes[t]), "allreduce: comm %s, %s, %zu %s",
                  hvt_comm_name(c), where, n, hvt_dtype_name(dtypes[t]));

            fill_mine(buf, n, seed, dtypes[t]);
            CHECK_OK(hvt_comm_reduce_scatter(c, buf, n, dtypes[t], &ticket));
            CHECK_OK(hvt_comm_wait(c, ticket));
            hvt_comm_slice(c, n, rank, &first, &end);
            CHECK(equals_plain_sum(c, buf, first, end, seed, dtypes[t]),
                  "reduce_scatter: comm %s, %s, %zu %s, slice %zu-%zu", hvt_comm_name(c), where, n,
                  hvt_dtype_name(dtypes[t]), first, end);
            memset(buf, 0x11, first * bytes); /* what others own must come from them */
            memset((char *)buf + end * bytes, 0x11, (n - end) * bytes);
            CHECK_OK(hvt_comm_allgather(c, buf, n, dtypes[t], &ticket));
            CHECK_OK(hvt_comm_wait(c, ticket));
            CHECK(equals_plain_sum(c, buf, 0, n, seed, dtypes[t]), "allgather: comm %s, %s, %zu %s",
                  hvt_comm_name(c), where, n, hvt_dtype_name(dtypes[t]));
            for (int k = 0; k < 64; k++)
                if (past[k] != 0x5a) {
                    CHECK(false, "comm %s, %s, %zu %s: byte %d past the end was written", hvt_comm_name(c),
                          where, n, hvt_dtype_name(dtypes[t]), k);
                    break;
                }
        }
}

static void sums_equal_the_plain_tree(const char *name)
{
    const size_t counts[] = {0, 1, 15, 16, 17, 1000, 4096, 100003, ((size_t)1 << 20) + 1};
    size_t bytes = 4 * counts[8] + 64;
    hvt_comm *c = NULL;
    void *mine = NULL, *plain = aligned_alloc(64, (bytes + 63) / 64 * 64);

    CHECK_OK(hvt_comm_open(name, world, dev, &c));
    if (!c)
        return;
    CHECK_OK(hvt_comm_alloc(c, bytes, &mine));
    CHECK((uintptr_t)mine % 64 == 0, "alignment of %p", mine);
    for (size_t i = 0; i < bytes; i++)
        if (((char *)mine)[i]) {
            CHECK(false, "byte %zu is not zero", i);
            break;
        }
    every_sum(c, mine, "own memory", counts, HVT_LEN(counts));
    every_sum(c, plain, "plain memory", counts, HVT_LEN(counts));
    hvt_comm_release(c, mine);
    hvt_comm_close(&c);
    CHECK(!c, "close leaves NULL");
    free(plain);
}

static void broadcasts_reach_everyone(const char *name)
{
    const size_t sizes[] = {0, 1, 1000, 3000001};
    hvt_comm *c = NULL;
    void *mine = NULL;
    char *plain = malloc(sizes[3]);

    CHECK_OK(hvt_comm_open(name, world, dev, &c));
    CHECK_OK(hvt_comm_alloc(c, sizes[3], &mine));
    for (int own = 0; own < 2; own++)
        for (size_t i = 0; i < HVT_LEN(sizes); i++)
            for (int root = 0; root < size; root++) {
                char *buf = own ? mine : plain;

                for (size_t k = 0; k < sizes[i]; k++)
                    buf[k] = rank == root ? (char)hvt__mix(k + (size_t)root) : 0;
                CHECK_OK(hvt_comm_broadcast(c, buf, sizes[i], root));
                for (size_t k = 0; k < sizes[i]; k++)
                    if (buf[k] != (char)hvt__mix(k + (size_t)root)) {
                        CHECK(false, "comm %s, byte %zu of %zu from %d", name, k, sizes[i], root);
                        break;
                    }
            }
    CHECK_FAILS(hvt_comm_broadcast(c, plain, 1, -1), E_ARG, "root");
    hvt_comm_release(c, mine);
    hvt_comm_close(&c);
    free(plain);
}

/* Buckets in flight, and the same memory used again at once, by ranks that come late in turn. */
static void a_thousand_rounds(const char *name)
{
    enum { BUCKETS = 90, EACH = 48, ROUNDS = 1000 };
    hvt_comm *c = NULL;
    float *buf = NULL;
    hvt_ticket ticket[BUCKETS], last = 0;
    int wrong = 0;

    CHECK_OK(hvt_comm_open(name, world, dev, &c));
    CHECK_OK(hvt_comm_alloc(c, BUCKETS * EACH * sizeof *buf, (void **)&buf));
    for (int round = 0; round < ROUNDS && !check_now; round++) {
        int buckets = round % 10 ? 3 : BUCKETS;

        for (int b = 0; b < buckets; b++) {
            for (int i = 0; i < EACH; i++)
                buf[b * EACH + i] = (float)(rank + 1) * (float)(round + b + i);
            if (hvt__draw((uint64_t)rank, (uint64_t)round, (uint64_t)b, 1) % 64 == 0)
                usleep((useconds_t)(hvt__draw((uint64_t)rank, (uint64_t)round, (uint64_t)b, 2) % 500));
            CHECK_OK(hvt_comm_allreduce(c, buf + b * EACH, EACH, HVT_F32, &ticket[b]));
            CHECK(ticket[b] == ++last, "ticket %llu, not %llu", (unsigned long long)ticket[b],
                  (unsigned long long)last);
        }
        for (int b = 0; b < buckets; b++) {
            CHECK_OK(hvt_comm_wait(c, ticket[b]));
            for (int i = 0; i < EACH; i++) {
                wrong += buf[b * EACH + i] != (float)(size * (size + 1) / 2) * (float)(round + b + i);
                buf[b * EACH + i] = -1e30f; /* whoever still reads this will tell */
            }
        }
    }
    CHECK(!wrong, "comm %s: %d of the sums", name, wrong);
    CHECK_FAILS(hvt_comm_wait(c, last + 1), E_ARG, "never issued");
    CHECK_FAILS(hvt_comm_allreduce(c, buf, 1, HVT_I32, ticket), E_ARG, "i32");
    CHECK_FAILS(hvt_comm_allreduce(c, NULL, 1, HVT_F32, ticket), E_ARG, "buffer");
    hvt_comm_release(c, buf);
    hvt_comm_close(&c);
}

/* More operations in flight than the ring has places, on the same and on overlapping memory, unawaited. */
static void operations_keep_their_order(const char *name)
{
    enum { COUNT = 1000, DEEP = 700 };
    hvt_comm *c = NULL;
    hvt_ticket t;
    float *buf = NULL;
    int wrong = 0;

    CHECK_OK(hvt_comm_open(name, world, dev, &c));
    CHECK_OK(hvt_comm_alloc(c, COUNT * sizeof *buf, (void **)&buf));
    for (int round = 0; round < 20; round++) {
        for (int i = 0; i < COUNT; i++)
            buf[i] = (float)(rank + i % 8);
        for (int k = 0; k < 2; k++) {
            CHECK_OK(hvt_comm_allreduce(c, buf, COUNT, HVT_F32, &t));
            CHECK_OK(hvt_comm_reduce_scatter(c, buf + 100, COUNT - 100, HVT_F32, &t));
            CHECK_OK(hvt_comm_allgather(c, buf + 100, COUNT - 100, HVT_F32, &t));
            CHECK_OK(hvt_comm_allreduce(c, buf + 500, COUNT - 700, HVT_F32, &t));
        }
        CHECK_OK(hvt_comm_wait(c, t));
        for (int i = 0; i < COUNT; i++) {
            double v = (double)size * (i % 8) + size * (size - 1) / 2.0; /* the first sum; then all hold it */

            for (int k = 0; k < 2; k++) {
                v *= k ? size : 1;
                v *= i >= 100 ? size : 1;
                v *= i >= 500 && i < 800 ? size : 1;
            }
            wrong += buf[i] != (float)v;
        }
    }
    CHECK(!wrong, "comm %s: %d wrong", name, wrong);
    for (int i = 0; i < DEEP; i++) {
        buf[i] = 1;
        CHECK_OK(hvt_comm_allreduce(c, buf + i, 1, HVT_F32, &t));
    }
    CHECK_OK(hvt_comm_wait(c, t - DEEP / 2));
    CHECK_OK(hvt_comm_wait(c, t));
    for (int i = 0; i < DEEP; i++)
        CHECK(buf[i] == (float)size, "comm %s: element %d is %g", name, i, (double)buf[i]);
    hvt_comm_release(c, buf);
    hvt_comm_close(&c);
}

TEST(self_is_for_one_rank)
{
    hvt_comm *c = NULL;
    hvt_ticket ticket;
    float x = 3;

    CHECK_FAILS(hvt_comm_open("tcp", world, dev, &c), E_ARG, "self, shm, mpi");
    if (size > 1) {
        CHECK_FAILS(hvt_comm_open("self", world, dev, &c), E_UNSUPPORTED, "one rank");
        return;
    }
    CHECK_OK(hvt_comm_open("auto", world, dev, &c));
    CHECK(!strcmp(hvt_comm_name(c), "self") && hvt_comm_world(c) == world, "%s", hvt_comm_name(c));
    CHECK_OK(hvt_comm_allreduce(c, &x, 1, HVT_F32, &ticket));
    CHECK_OK(hvt_comm_wait(c, ticket));
    CHECK(x == 3, "%g", (double)x);
    hvt_comm_close(&c);
}

TEST(self_sums_equal_the_plain_tree)
{
    if (size == 1) {
        sums_equal_the_plain_tree("self");
        broadcasts_reach_everyone("self");
        a_thousand_rounds("self");
    }
}

#if HVT_HAVE_MPI
TEST(mpi_sums_equal_the_plain_tree)
{
    sums_equal_the_plain_tree("mpi");
}

TEST(mpi_messages_may_be_cut_anywhere)
{
    const size_t counts[] = {17, 1000, 100003}, most[] = {7, 1000, 4097}, before = hvt__mpi_message;
    float *buf = aligned_alloc(64, 4 * 100032 + 64);
    hvt_comm *c = NULL;

    CHECK_OK(hvt_comm_open("mpi", world, dev, &c));
    for (int i = 0; i < 3; i++) {
        hvt__mpi_message = most[i];
        every_sum(c, buf, "cut messages", counts, i ? 3 : 2);
    }
    broadcasts_reach_everyone("mpi");
    hvt__mpi_message = before;
    hvt_comm_close(&c);
    free(buf);
}

TEST(mpi_broadcasts_reach_everyone)
{
    broadcasts_reach_everyone("mpi");
}

TEST(mpi_runs_a_thousand_rounds)
{
    a_thousand_rounds("mpi");
}

TEST(mpi_operations_keep_their_order)
{
    operations_keep_their_order("mpi");
}
#endif

TEST(shm_sums_equal_the_plain_tree)
{
    sums_equal_the_plain_tree("shm");
}

TEST(shm_broadcasts_reach_everyone)
{
    broadcasts_reach_everyone("shm");
}

TEST(shm_runs_a_thousand_rounds)
{
    a_thousand_rounds("shm");
}

TEST(a_buffer_may_be_shared_on_one_rank_and_plain_on_another)
{
    enum { COUNT = 300007 };
    hvt_comm *c = NULL;
    hvt_ticket ticket;
    void *mine = NULL, *plain = aligned_alloc(64, 4 * COUNT / 64 * 64 + 64), *buf;

    CHECK_OK(hvt_comm_open("shm", world, dev, &c));
    CHECK_OK(hvt_comm_alloc(c, 4 * COUNT, &mine));
    buf = rank % 2 ? plain : mine;
    for (int root = 0; root < size; root++) {
        fill_mine(buf, COUNT, 5, HVT_F32);
        CHECK_OK(hvt_comm_allreduce(c, buf, COUNT, HVT_F32, &ticket));
        CHECK_OK(hvt_comm_wait(c, ticket));
        CHECK(equals_plain_sum(c, buf, 0, COUNT, 5, HVT_F32), "root %d", root);
        memset(buf, rank == root ? root + 1 : 99, 4 * COUNT);
        CHECK_OK(hvt_comm_broadcast(c, buf, 4 * COUNT, root));
        CHECK(((char *)buf)[0] == root + 1 && ((char *)buf)[4 * COUNT - 1] == root + 1, "root %d", root);
    }
    hvt_comm_release(c, mine);
    hvt_comm_close(&c);
    free(plain);
}

TEST(a_shared_buffer_may_go_on_from_a_staged_sum)
{
    enum { COUNT = 5000, ROUNDS = 300 };
    hvt_comm *c = NULL;
    hvt_ticket first, second;
    float *mine = NULL, *plain = aligned_alloc(64, 4 * COUNT / 64 * 64 + 64);
    int odd = size / 2, even = size - odd;

    CHECK_OK(hvt_comm_open("shm", world, dev, &c));
    CHECK_OK(hvt_comm_alloc(c, 4 * COUNT, (void **)&mine));
    for (int round = 0; round < ROUNDS && !check_now; round++) {
        float sum = (float)(size * (size - 1) / 2 + size * round);
        float last = (float)even * sum + (float)odd * 1000;

        for (int i = 0; i < COUNT; i++) {
            mine[i] = rank % 2 ? 1000 : (float)(rank + round);
            plain[i] = (float)(rank + round);
        }
        if (hvt__draw(1, (uint64_t)round, (uint64_t)rank, 0) % 4 == 0)
            usleep(200);
        CHECK_OK(hvt_comm_allreduce(c, rank % 2 ? plain : mine, COUNT, HVT_F32, &first));
        CHECK_OK(hvt_comm_allreduce(c, mine, COUNT, HVT_F32, &second));
        CHECK_OK(hvt_comm_wait(c, second));
        for (int i = 0; i < COUNT && !check_now; i++)
            CHECK(mine[i] == last && (rank % 2 == 0 || plain[i] == sum), "round %d, element %d: %g and %g",
                  round, i, (double)mine[i], (double)plain[i]);
    }
    hvt_comm_release(c, mine);
    hvt_comm_close(&c);
    free(plain);
}

TEST(shm_operations_keep_their_order)
{
    operations_keep_their_order("shm");
}

TEST(issuing_waits_for_nobody)
{
    hvt_comm *c = NULL;
    hvt_ticket t;
    float *buf = NULL;
    double start, spent;

    CHECK_OK(hvt_comm_open("shm", world, dev, &c));
    CHECK_OK(hvt_comm_alloc(c, 4000 * sizeof *buf, (void **)&buf));
    if (rank == size - 1 && size > 1)
        usleep(300000);
    start = hvt__now();
    for (int i = 0; i < 1000; i++)
        CHECK_OK(hvt_comm_allreduce(c, buf + 4 * i, 4, HVT_F32, &t));
    spent = hvt__now() - start;
    CHECK(spent < 0.2, "1000 operations took %.3f s to issue", spent);
    CHECK_OK(hvt_comm_wait(c, t));
    hvt_comm_release(c, buf);
    hvt_comm_close(&c);
}

TEST(different_operations_are_told_apart_on_every_rank)
{
    hvt_comm *c = NULL;
    hvt_ticket t;
    float x[32] = {0};

    if (size == 1)
        return;
    CHECK_OK(hvt_comm_open("shm", world, dev, &c));
    CHECK_OK(hvt_comm_allreduce(c, x, rank == 1 ? 31 : 32, HVT_F32, &t));
    CHECK_FAILS(hvt_comm_wait(c, t), E_MISMATCH, "allreduce of 32 f32");
    CHECK(strstr(hvt_last_error(), "rank 1 (") && hvt_last_error_is_agreed(), "%s", hvt_last_error());
    CHECK_FAILS(hvt_comm_wait(c, t), E_COMM, "E_MISMATCH");
    hvt_comm_close(&c);
}

TEST(peers_memory_is_readable_in_segments_only)
{
    const void *at[64];
    hvt_comm *c = NULL;
    float *buf = NULL, x = 0;

    CHECK_OK(hvt_comm_open("shm", world, dev, &c));
    CHECK_OK(hvt_comm_alloc(c, 100 * sizeof *buf, (void **)&buf));
    buf[7] = (float)(10 + rank);
    CHECK_OK(hvt_world_barrier(world));
    CHECK(c->ops->peers(c, &x, at) == 0, "own memory");
    CHECK(c->ops->peers(c, buf + 7, at) == size, "segment");
    for (int r = 0; r < size; r++)
        CHECK(*(const float *)at[r] == (float)(10 + r), "rank %d", r);
    CHECK_OK(hvt_world_barrier(world));
    hvt_comm_release(c, buf);
    CHECK(c->ops->peers(c, buf, at) == 0, "released");
    hvt_comm_close(&c);
}

/* ---- when shared memory cannot be had ------------------------------------------------------- */

static int creations; /* that still work */
static int (*real_create)(size_t bytes);
static int (*real_attach)(int pid, int fd);
static char logged[512];

static int create_some(size_t bytes)
{
    if (creations-- > 0)
        return real_create(bytes);
    errno = ENOSPC;
    return -1;
}

static int attach_never(int pid, int fd)
{
    (void)pid, (void)fd;
    errno = EACCES;
    return -1;
}

static void keep_line(void *ctx, hvt_log_level level, const char *line)
{
    (void)ctx, (void)level;
    snprintf(logged, sizeof logged, "%s", line);
}

TEST(without_shared_memory_auto_takes_mpi_and_says_why)
{
    hvt_comm *c = NULL;
    void *p = NULL;

    if (size == 1)
        return;
    real_create = hvt__shm_create;
    real_attach = hvt__shm_attach;
    hvt_log_to(keep_line, NULL, HVT_LOG_WARN);

    CHECK_OK(hvt_comm_open("auto", world, dev, &c));
    CHECK(!strcmp(hvt_comm_name(c), "shm") && !*logged, "%s: %s", hvt_comm_name(c), logged);
    hvt_comm_close(&c);

    hvt__shm_create = create_some;
    creations = 0;
    CHECK_FAILS(hvt_comm_open("shm", world, dev, &c), E_MEM, "memfd");
    CHECK(hvt_last_error_is_agreed() && !c, "%s", hvt_last_error());
    CHECK_OK(hvt_comm_open("auto", world, dev, &c));
    CHECK(!strcmp(hvt_comm_name(c), "mpi"), "%s", hvt_comm_name(c));
    CHECK(!!*logged == (rank == 0) && (rank || strstr(logged, "No space left")), "said: %s", logged);
    hvt_comm_close(&c);

    creations = 1; /* the control segment, but no arena */
    logged[0] = '\0';
    CHECK_OK(hvt_comm_open("auto", world, dev, &c));
    CHECK(!strcmp(hvt_comm_name(c), "shm"), "%s", hvt_comm_name(c));
    CHECK_OK(hvt_comm_alloc(c, 1000, &p));
    CHECK(!strcmp(hvt_comm_name(c), "mpi") && p, "%s", hvt_comm_name(c));
    CHECK(!!*logged == (rank == 0), "said: %s", logged);
    every_sum(c, p, "after falling back", &(size_t){200}, 1);
    hvt_comm_release(c, p);
    hvt_comm_close(&c);

    creations = 1;
    CHECK_OK(hvt_comm_open("shm", world, dev, &c));
    p = NULL;
    CHECK_FAILS(hvt_comm_alloc(c, 1000, &p), E_MEM, "memfd");
    CHECK(!p, "something was given");
    creations = 1;
    CHECK_OK(hvt_comm_alloc(c, 1000, &p)); /* and it can go on */
    every_sum(c, p, "after a failed alloc", &(size_t){200}, 1);
    CHECK_FAILS(hvt_comm_alloc(c, (size_t)1 << 50, &p), E_MEM, "available");
    hvt_comm_release(c, p);
    creations = 1;
    CHECK_FAILS(hvt_comm_alloc(c, (size_t)(1000 + rank), &p), E_MISMATCH, "rank 1");
    hvt_comm_close(&c);
    hvt__shm_create = real_create;

    if (rank == size - 1) /* one rank alone fails */
        hvt__shm_attach = attach_never;
    CHECK_FAILS(hvt_comm_open("shm", world, dev, &c), E_UNSUPPORTED, "Permission denied");
    CHECK_OK(hvt_comm_open("auto", world, dev, &c));
    CHECK(!strcmp(hvt_comm_name(c), "mpi"), "%s", hvt_comm_name(c));
    hvt_comm_close(&c);
    hvt__shm_attach = real_attach;
    hvt_log_to(NULL, NULL, HVT_LOG_WARN);
}

/* ---- what becomes of processes: only alone, where children may be made freely ---------------- */

/* A world of forked processes over one page of shared memory: ranks that can be killed. */
typedef struct village {
    pthread_barrier_t gate;
    char board[16][1 << 12];
} village;

static hvt_status village_gather(hvt_world *w, const void *mine, size_t bytes, void *all)
{
    village *v = w->state;

    memcpy(v->board[w->rank], mine, bytes);
    pthread_barrier_wait(&v->gate);
    for (int r = 0; r < w->size; r++)
        memcpy((char *)all + (size_t)r * bytes, v->board[r], bytes);
    pthread_barrier_wait(&v->gate);
    return HVT_OK;
}

static hvt_status village_broadcast(hvt_world *w, void *data, size_t bytes, int root)
{
    village *v = w->state;

    if (w->rank == root)
        memcpy(v->board[root], data, bytes);
    pthread_barrier_wait(&v->gate);
    memcpy(data, v->board[root], bytes);
    pthread_barrier_wait(&v->gate);
    return HVT_OK;
}

static const hvt_world_ops village_ops = {
    .name = "village", .gather = village_gather, .broadcast = village_broadcast};

/* Run `live` on n forked ranks; the wait statuses come back. */
static void settle_village(int n, void (*live)(void), int ret_status[])
{
    hvt_world *alone = world;
    village *v = mmap(NULL, sizeof *v, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pthread_barrierattr_t attr;
    pid_t child[16];

    pthread_barrierattr_init(&attr);
    pthread_barrierattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(&v->gate, &attr, (unsigned)n);
    for (int r = 0; r < n; r++) {
        fflush(NULL);
        child[r] = fork();
        if (child[r])
            continue;
        hvt_world w = {.ops = &village_ops,
                       .rank = r,
                       .size = n,
                       .local_rank = r,
                       .local_size = n,
                       .nodes = 1,
                       .state = v,
                       .node_of = calloc((size_t)n, sizeof(int)),
                       .host = calloc((size_t)n, sizeof *w.host),
                       .scratch = calloc((size_t)n, HVT__SCRATCH)};

        for (int q = 0; q < n; q++)
            strcpy(w.host[q], "village");
        world = &w;
        rank = r;
        size = n;
        check_now = 0;
        live();
        fflush(NULL);
        _exit(check_now ? 1 : 0);
    }
    for (int r = 0; r < n; r++)
        waitpid(child[r], &ret_status[r], 0);
    world = alone;
    munmap(v, sizeof *v);
}

static void every_shm_sum(void)
{
    const size_t counts[] = {1, 100, 5000, 100003};
    hvt_comm *c = NULL;
    void *mine = NULL;

    CHECK_OK(hvt_comm_open("shm", world, dev, &c));
    CHECK_OK(hvt_comm_alloc(c, 500000, &mine));
    every_sum(c, mine, "own memory", counts, HVT_LEN(counts));
    hvt_comm_release(c, mine);
    hvt_comm_close(&c);
    operations_keep_their_order("shm");
}

TEST(shm_works_for_any_number_of_processes)
{
    for (int n = 2; n <= 8; n++) {
        int status[16];

        settle_village(n, every_shm_sum, status);
        for (int r = 0; r < n; r++)
            CHECK(status[r] == 0, "rank %d of %d ended with %x", r, n, (unsigned)status[r]);
    }
}

static void give_up_on_rank_one(void)
{
    hvt_comm *c = NULL;
    hvt_ticket t;
    float x[32] = {0};

    CHECK_OK(hvt_comm_open("shm", world, dev, &c));
    CHECK_OK(hvt_comm_allreduce(c, x, 32, HVT_F32, &t));
    if (rank == 1)
        hvt_comm_close(&c); /* its operation never runs, though the process lives on */
    else
        CHECK_FAILS(hvt_comm_wait(c, t), E_COMM, "rank 1 (village) has left");
    hvt_comm_close(&c);
    if (rank == 1)
        usleep(500000);
}

TEST(a_rank_that_leaves_early_is_named)
{
    int status[16];

    settle_village(3, give_up_on_rank_one, status);
    for (int r = 0; r < 3; r++)
        CHECK(status[r] == 0, "rank %d: %x", r, (unsigned)status[r]);
}

static void lose_rank_two(void)
{
    enum { COUNT = 100000 };
    hvt_comm *c = NULL;
    hvt_ticket t;
    float *buf = NULL;
    double start;

    CHECK_OK(hvt_comm_open("shm", world, dev, &c));
    CHECK_OK(hvt_comm_alloc(c, COUNT * sizeof *buf, (void **)&buf));
    for (int i = 0; i < 5; i++) {
        CHECK_OK(hvt_comm_allreduce(c, buf, COUNT, HVT_F32, &t));
        CHECK_OK(hvt_comm_wait(c, t));
    }
    CHECK_OK(hvt_comm_allreduce(c, buf, COUNT, HVT_F32, &t)); /* issued, but its part is never done */
    if (rank == 2)
        raise(SIGKILL);
    start = hvt__now();
    CHECK_FAILS(hvt_comm_wait(c, t), E_COMM, "rank 2 (village) has ended");
    CHECK(hvt__now() - start < 2, "after %.1f s", hvt__now() - start);
    CHECK_FAILS(hvt_comm_wait(c, t), E_COMM, "earlier operation");
    hvt_comm_release(c, buf);
    hvt_comm_close(&c);
}

TEST(a_killed_rank_is_named_and_leaves_nothing)
{
    int status[16];
    char line[512];
    FILE *maps;

    settle_village(4, lose_rank_two, status);
    for (int r = 0; r < 4; r++)
        CHECK(r == 2 ? WIFSIGNALED(status[r]) : status[r] == 0, "rank %d: %x", r, (unsigned)status[r]);
    maps = popen("ls /dev/shm | grep hvt", "r");
    CHECK(!fgets(line, sizeof line, maps), "left behind: %s", line);
    pclose(maps);
}

static int open_files(void)
{
    int files = 0;

    for (int fd = 0; fd < 256; fd++)
        files += fcntl(fd, F_GETFD) >= 0;
    return files;
}

static void open_and_close(void)
{
    hvt_comm *c = NULL;
    void *p = NULL;
    char line[512];
    FILE *maps;
    int before = open_files();

    CHECK_OK(hvt_comm_open("shm", world, dev, &c));
    CHECK_OK(hvt_comm_alloc(c, 5000, &p));
    hvt_comm_close(&c); /* with a block open */
    maps = fopen("/proc/self/maps", "r");
    while (maps && fgets(line, sizeof line, maps))
        CHECK(!strstr(line, "memfd:hvt"), "still mapped: %s", line);
    fclose(maps);
    CHECK(open_files() == before, "%d files open, not %d", open_files(), before);
}

TEST(close_leaves_no_memory_and_no_file)
{
    int status[16];

    settle_village(3, open_and_close, status);
    for (int r = 0; r < 3; r++)
        CHECK(status[r] == 0, "rank %d: %x", r, (unsigned)status[r]);
}

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
        else
            CHECK_FAILS(hvt_world_open(NULL, &w), E_COMM, part);
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
    join_as((const char *[]){"SLURM_NTASKS", "4", NULL}, HVT_OK, "lone");
#if HVT_HAVE_MPI
    join_as((const char *[]){"SLURM_STEP_NUM_TASKS", "4", "SLURM_STEPID", "0", NULL}, HVT_E_COMM,
            "srun --mpi=pmix");
    join_as((const char *[]){"PMI_SIZE", "4", "PMI_RANK", "1", NULL}, HVT_E_COMM,
            "use the mpirun of the MPI");
    join_as((const char *[]){"OMPI_COMM_WORLD_SIZE", "2", NULL}, HVT_E_COMM, "MPI sees 1");
#endif
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
    double failed;

    if (hvt_world_open(NULL, &world) != HVT_OK || hvt_device_open("ref", NULL, &dev) != HVT_OK) {
        fprintf(stderr, "%s\n%s", hvt_last_error(), hvt_last_trace());
        return 1;
    }
    rank = hvt_world_rank(world);
    size = hvt_world_size(world);
    if (rank == 0) {
        RUN(a_process_inside_an_allocation_is_still_alone);
        RUN(mpirun_inside_an_srun_step_is_mpirun);
        RUN(srun_without_a_process_manager_is_refused_with_the_flag_to_use);
        RUN(srun_with_pmix_is_ready);
        RUN(equal_masks_are_split_by_local_rank);
        RUN(a_bound_rank_keeps_its_mask);
        RUN(more_ranks_than_cores_share_and_yield);
        RUN(explicit_threads_get_a_processor_each_or_no_pin);
        RUN(a_lone_rank_that_leaves_processors_free_is_not_pinned);
        RUN(a_rank_of_a_large_host_gets_the_most_threads_that_a_device_takes);
        RUN(masks_that_overlap_in_part_are_not_pinned);
        RUN(a_quota_counts_as_fewer_processors);
        RUN(quotas_of_both_control_groups_are_read);
        RUN(slices_are_balanced_and_cover_everything_once);
    }
    RUN(the_world_knows_its_ranks);
    RUN(folds_give_every_rank_the_same_bits);
    RUN(broadcast_and_gather_carry_bytes);
    RUN(the_lowest_failing_rank_speaks_for_all);
    RUN(a_comparison_names_what_differs_where);
    RUN(a_name_and_its_value_do_not_run_together);
    RUN(this_ranks_cores_are_within_its_mask);
    RUN(self_is_for_one_rank);
    RUN(self_sums_equal_the_plain_tree);
    RUN(shm_sums_equal_the_plain_tree);
    RUN(shm_broadcasts_reach_everyone);
    RUN(shm_runs_a_thousand_rounds);
    RUN(shm_operations_keep_their_order);
    RUN(a_buffer_may_be_shared_on_one_rank_and_plain_on_another);
    RUN(a_shared_buffer_may_go_on_from_a_staged_sum);
    RUN(issuing_waits_for_nobody);
    RUN(different_operations_are_told_apart_on_every_rank);
    RUN(peers_memory_is_readable_in_segments_only);
    RUN(without_shared_memory_auto_takes_mpi_and_says_why);
    if (!strcmp(hvt_world_name(world), "lone")) {
        RUN(shm_works_for_any_number_of_processes);
        RUN(a_rank_that_leaves_early_is_named);
        RUN(a_killed_rank_is_named_and_leaves_nothing);
        RUN(close_leaves_no_memory_and_no_file);
        RUN(a_silent_singleton_is_refused);
        RUN(abort_ends_a_lone_process_with_its_code);
    }
#if HVT_HAVE_MPI
    RUN(a_wrapped_world_is_its_communicator);
    RUN(mpi_sums_equal_the_plain_tree);
    RUN(mpi_messages_may_be_cut_anywhere);
    RUN(mpi_broadcasts_reach_everyone);
    RUN(mpi_runs_a_thousand_rounds);
    RUN(mpi_operations_keep_their_order);
#endif
    failed = check_failed;
    CHECK_OK(hvt_world_fold(world, HVT_FOLD_SUM, &failed, 1));
    hvt_device_close(&dev);
    hvt_world_close(&world);
    check_done();
    return failed != 0;
}
